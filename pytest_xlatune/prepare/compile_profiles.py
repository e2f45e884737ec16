"""Compile a sweep's profiles on this machine before any trial, and compare their programs.

Each profile is compiled by one step of the sweep's trainer in a separate process, and its program
is compared with those of the deployed cell and of the profiles before it. Equal programs may still
run differently, so settings that may act at run time are named. Nothing is stored.

This module does not know pytest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory

from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.evidence.hlo.difference import (
    Change,
    change,
    difference,
    differing,
    expectations,
    size,
)
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import BASELINE, BASELINE_ID, Profile, effective_values
from pytest_xlatune.prepare.compile_check import Compiled, compiled, spec_for
from pytest_xlatune.sweep.resolved import ResolvedSweep


class CompileClass(StrEnum):
    """The result of compiling a profile."""

    SAME = "same program"
    COMPILES = "compiles"
    REFUSED = "flag refused"
    FAILED = "does not compile"
    MEMORY = "needs too much memory"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledProfile:
    """A profile and the result of compiling it.

    Attributes:
        profile: the id of the profile.
        cls: the class.
        same_as: the id of the profile with the same program; "" if there is none.
        reason: the reason for the class.
    """

    profile: str
    cls: CompileClass
    same_as: str = ""
    reason: str = ""


def compile_profiles(resolved: ResolvedSweep) -> tuple[CompiledProfile, ...]:
    """Compile the profiles of a sweep in order and return the results.

    Raises:
        ConfigError: the trainer runs on another machine, or the deployed cell yields no program.
    """
    check = resolved.compile_check
    limit_gib = None if check is None else check.memory_limit_gib
    profiles = [profile for profile in resolved.sweep.profiles if not profile.is_baseline]
    with TemporaryDirectory(prefix="compiling-") as scratch:

        def compilation_of(profile: Profile) -> Compiled:
            spec = spec_for(resolved, resolved.cell, profile)
            return compiled(spec, Path(scratch) / profile.id)

        deployed = compilation_of(BASELINE)
        if deployed.program is None:
            raise ConfigError(
                f"the cell as deployed gives no program to compare: {deployed.trouble}. Does the "
                "trainer compile its step with XLA?"
            )
        compilations = ((profile, compilation_of(profile)) for profile in profiles)
        limit_bytes = None if limit_gib is None else int(limit_gib * 2**30)
        return tuple(judged(deployed.program, compilations, limit_bytes=limit_bytes))


def judged(
    deployed: Program, compilations: Iterable[tuple[Profile, Compiled]], *, limit_bytes: int | None
) -> Iterator[CompiledProfile]:
    """Yield the result for each profile; pure.

    `limit_bytes` is the memory of one device; None if unknown.
    """
    # id of a profile -> its program, and its settings that may act at run time
    before: dict[str, tuple[Program, Mapping[str, str | None]]] = {BASELINE_ID: (deployed, {})}
    for profile, compilation in compilations:
        program = compilation.program
        needed = compilation.needed_bytes
        if program is not None and compilation.trouble and program.module != deployed.module:
            program = None  # the trainer ended before its step was compiled
        if compilation.is_out_of_memory:
            cls, same_as, reason = CompileClass.MEMORY, "", compilation.trouble
        elif program is None:
            cls, same_as, reason = CompileClass.FAILED, "", compilation.trouble
            if compilation.is_refused:
                cls = CompileClass.REFUSED
            elif compilation.is_ended_from_outside:
                cls = CompileClass.UNKNOWN
        elif needed is not None and limit_bytes is not None and needed > limit_bytes:
            cls, same_as = CompileClass.MEMORY, ""
            reason = f"{size(needed)} of {size(limit_bytes)}"
        else:
            settings = run_time_settings(profile, deployed, program)
            cls, same_as, reason = _compared(program, settings, before)
            before[profile.id] = (program, settings)
            reason += f"; then: {compilation.trouble}" if compilation.trouble else ""
        yield CompiledProfile(profile=profile.id, cls=cls, same_as=same_as, reason=reason)


def _compared(
    program: Program,
    settings: Mapping[str, str | None],
    before: Mapping[str, tuple[Program, Mapping[str, str | None]]],
) -> tuple[CompileClass, str, str]:
    """Return class, id of the profile with the same program, and reason."""
    # id of a profile with the same program -> run-time settings in which both differ
    different_settings: dict[str, list[str]] = {}
    for name, (other_program, other_settings) in before.items():
        if change(other_program, program) is Change.IDENTICAL:
            pairs = settings.items() ^ other_settings.items()
            different_settings[name] = sorted({setting for setting, _ in pairs})
    if different_settings:
        same_as = min(different_settings, key=lambda name: len(different_settings[name]))
        names = ", ".join(different_settings[same_as])
        reason = "no setting is left that could act: a trial of it measures noise"
        if names:
            reason = f"{names} may act below the program, or at run time"
        return CompileClass.SAME, same_as, reason
    changed = difference(before[BASELINE_ID][0], program)
    reason = "; ".join(map(sentence, changed.facts))
    return CompileClass.COMPILES, "", reason


def run_time_settings(
    profile: Profile, deployed: Program, program: Program
) -> dict[str, str | None]:
    """Return the settings of a profile that may act without changing the program."""
    profile_flags = effective_values(profile.flags)
    flags: dict[str, str | None] = dict(profile_flags)
    names = differing(deployed, program)
    if names is not None and program.options is not None:
        flags = {name: program.options.get(name) for name in names}
        # XLA does not print an emptied list, so the entry of the profile stands for it
        flags |= {name: value for name, value in profile_flags.items() if not value}
    # flags that act only on the program are left out
    in_program = {name for name, expected in expectations().items() if not expected.below}
    return {
        **{f"--{name}": value for name, value in flags.items() if name not in in_program},
        **profile.env,
        **profile.overrides,
    }
