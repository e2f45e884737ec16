"""Compile a sweep's profiles on this machine before any trial, and compare their programs.

Each profile is compiled by one step of the sweep's trainer in a separate process, and its program
is compared with those of the deployed cell and of the profiles before it. Equal programs may still
run differently, so settings that may act at run time are named. Nothing is stored.

This module does not know pytest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory

from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.evidence.hlo.difference import Change, change, difference, expectations
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import BASELINE, BASELINE_ID, Profile, effective_values
from pytest_xlatune.prepare.compile_check import Compiled, compiled, spec_for
from pytest_xlatune.sweep.resolved import ResolvedSweep


class CompileClass(StrEnum):
    """The result of compiling a profile."""

    SAME = "same program"
    COMPILES = "compiles"
    FAILED = "does not compile"


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
        return tuple(judged(deployed.program, compilations))


def judged(
    deployed: Program, compilations: Iterable[tuple[Profile, Compiled]]
) -> Iterator[CompiledProfile]:
    """Yield the result for each profile; pure."""
    # id of a profile -> its program, and its settings that may act at run time
    before: dict[str, tuple[Program, dict[str, str]]] = {BASELINE_ID: (deployed, {})}
    for profile, compilation in compilations:
        program, trouble = compilation.program, compilation.trouble
        # if the modules differ, the trainer ended before its step was compiled
        if program is None or (trouble and program.module != deployed.module):
            yield CompiledProfile(profile=profile.id, cls=CompileClass.FAILED, reason=trouble)
            continue
        settings = _run_time_settings(profile)
        same_as = next(
            (
                name
                for name, (other, _) in before.items()
                if change(other, program) is Change.IDENTICAL
            ),
            "",
        )
        if same_as:
            cls = CompileClass.SAME
            names = sorted({name for name, _ in settings.items() ^ before[same_as][1].items()})
            reason = "no setting is left that could act: a trial of it measures noise"
            if names:
                reason = f"{', '.join(names)} may act below the program, or at run time"
        else:
            cls = CompileClass.COMPILES
            reason = "; ".join(map(sentence, difference(deployed, program).facts))
        before[profile.id] = (program, settings)
        reason += f"; then: {trouble}" if trouble else ""
        yield CompiledProfile(profile=profile.id, cls=cls, same_as=same_as, reason=reason)


def _run_time_settings(profile: Profile) -> dict[str, str]:
    """Return the settings of a profile that may act without changing the program."""
    in_program = {name for name, expected in expectations().items() if not expected.below}
    flags = effective_values(profile.flags)
    return {
        **{f"--{name}": value for name, value in flags.items() if name not in in_program},
        **profile.env,
        **profile.overrides,
    }
