"""Compile a sweep's profiles, or one of them without each of its flags; nothing is measured."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from pytest_xlatune.evidence.hlo.difference import CompileFinding, Proof
from pytest_xlatune.model.channels import on_top
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import Profile, merge_flags
from pytest_xlatune.prepare.compile_check import compiled_by
from pytest_xlatune.prepare.compilers import compiler_for, proofs_of, screen
from pytest_xlatune.sweep.declaration import CompileCheck
from pytest_xlatune.sweep.resolved import ResolvedSweep


def compiled(
    resolved: ResolvedSweep, how: CompileCheck, *, keep: Path | None
) -> Iterator[CompileFinding]:
    """Compile a sweep's profiles; yield each as it is judged.

    `keep` is a folder for logs and dumps; None keeps none.

    Raises:
        ConfigError: the options do not fit, or the cell as deployed does not compile.
    """
    compiler = compiler_for(resolved, how)
    compiled_by(compiler)  # says what cannot be compiled with, before anything is
    with TemporaryDirectory() as scratch:
        yield from screen(
            resolved.sweep.profiles,
            compiler.way,
            folder=keep or Path(scratch),
            memory_limit_bytes=compiler.memory_limit_bytes,
            is_away=compiler.target is not None,
        )


def without_each(
    resolved: ResolvedSweep, how: CompileCheck, said: str, *, keep: Path | None
) -> list[Proof]:
    """Return which flags of a profile, or of several joined by `+`, changed the program.

    Raises:
        ConfigError: no such profile, or it does not compile.
    """
    whole = _joined(resolved, said)
    compiler = compiler_for(resolved, how)
    compiled_by(compiler)
    with TemporaryDirectory() as scratch:
        return list(proofs_of(whole, compiler.way, folder=keep or Path(scratch)))


def _joined(resolved: ResolvedSweep, said: str) -> Profile:
    declared = {each.id: each for each in resolved.sweep.profiles}
    names = [said] if said in declared else said.split("+")
    for name in names:
        if name not in declared:
            where = f"sweep {resolved.sweep.name!r}"
            raise ConfigError.unknown("profile", name, valid=declared, where=where)
    parts = [declared[name] for name in names]
    return dataclasses.replace(
        parts[0],
        id="whole",
        flags=merge_flags(flag for each in parts for flag in each.flags),
        env=functools.reduce(on_top, (each.env for each in parts)),
        overrides={key: value for each in parts for key, value in each.overrides.items()},
    )
