"""Drill the captures of variants, and write what a person asks for beside.

A variant that cannot be read is told, and the others are drilled all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.evidence.hlo.dump import read_program
from pytest_xlatune.evidence.pgle import pgle_profile
from pytest_xlatune.evidence.trace import Family, parse_families
from pytest_xlatune.evidence.trace.breakdown import CaptureWindow, Drill
from pytest_xlatune.evidence.trace.captures import read_window
from pytest_xlatune.evidence.trace.collectives import Communication, communication_of
from pytest_xlatune.model.errors import ConfigError, ParseError, XlatuneError
from pytest_xlatune.model.profile import PGLE, PGLE_SUFFIX
from pytest_xlatune.model.record import read_json
from pytest_xlatune.model.text import counted
from pytest_xlatune.tasks.artifacts import captures_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Drilled:
    """What was read.

    Attributes:
        drills: of each variant that could be read.
        collectives: those of each, where they were asked for.
        files: a line about each file that was written.
        problems: what could not be read, and what was left out.
    """

    drills: tuple[Drill, ...]
    collectives: tuple[Communication, ...] = ()
    files: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def drill_variants(
    named: Sequence[Sequence[str]],
    window: CaptureWindow,
    *,
    step_times_s: Sequence[float],
    workdir: Callable[[], Path],
    dumps: Sequence[Path] = (),
    collectives: bool = False,
    pgle: Path | None = None,
) -> Drilled:
    """Drill variants: of each the captures, folders of them, or names of recorded evidence.

    Args:
        named: the variants.
        window: what is known of each.
        step_times_s: of runs without profiler, one for each variant; without any, those of the
            ledger count where it has one for each.
        workdir: where recorded evidence is looked for.
        dumps: of the compiled program, one for each variant; each asks for the collectives.
        collectives: asks for them without a program.
        pgle: a file for XLA's scheduler; of one variant.

    Raises:
        ConfigError: what was asked does not fit the variants, or no evidence has a name.
        ParseError: no variant has a readable capture of one window.
    """
    _check(len(named), dumps, pgle)
    found = [[captures_of(name, workdir) for name in names] for names in named]
    variants = [[path for paths, _ in recorded for path in paths] for recorded in found]
    # of trials of the same profile that ran without profiler
    known_s = [step_s for recorded in found for _, step_s in recorded if step_s is not None]
    if not step_times_s and len(known_s) == len(variants):
        step_times_s = known_s
    if len(step_times_s) not in {0, len(variants)}:
        raise ConfigError(
            f"--step-time was given {len(step_times_s)} times for {len(variants)} variants; give "
            "it once for each, in their order, or not at all"
        )
    programs = [read_program(dump) for dump in dumps]
    drills: list[Drill] = []
    problems: list[str] = []
    left_out: list[str] = []
    for paths, step_s in zip_longest(variants, step_times_s):
        try:
            drilled, without = read_window(paths, window, step_s=step_s)
        except XlatuneError as error:
            problems.append(str(error))
        else:
            drills.append(drilled)
            left_out += without
    if not drills:
        raise ParseError("; ".join(problems))
    # beside a variant that is missing, nothing says which program belongs to which other one
    is_complete = not problems
    talking = drills if is_complete and (collectives or programs) else []
    return Drilled(
        drills=tuple(drills),
        collectives=tuple(
            communication_of(drilled, program)
            for drilled, program in zip_longest(talking, programs[: len(talking)])
        ),
        files=tuple(_write(pgle, drills[0], next(iter(programs), None)))
        if pgle is not None and is_complete
        else (),
        problems=(*problems, *left_out),
    )


def _check(variants: int, dumps: Sequence[Path], pgle: Path | None) -> None:
    """Refuse what does not fit so many variants.

    Raises:
        ConfigError: it does not.
    """
    if dumps and len(dumps) != variants:
        raise ConfigError(
            f"--program was given {len(dumps)} times for {counted(variants, 'variant')}; give the "
            "dump of each, in their order"
        )
    if pgle is not None and variants > 1:
        raise ConfigError("--pgle writes one variant; give its captures alone")
    if pgle is not None and pgle.suffix != PGLE_SUFFIX:
        raise ConfigError(
            f"--pgle {pgle}: XLA reads such a text by its ending; expected *{PGLE_SUFFIX}"
        )


def _write(path: Path, found: Drill, program: Program | None) -> Iterator[str]:
    """Write the profile for the scheduler, and tell of it."""
    try:
        path.write_text(pgle_profile(found, program), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: the profile cannot be written: {error.strerror}") from None
    if program is None or program.fingerprint is None:
        yield "any program takes this file: name the one of the capture by --program DUMP"
    yield f"a candidate setting: --{PGLE}={path.absolute()}"
    yield f"in a sweep file: profiles_for(..., pgle={str(path.absolute())!r})"


def read_families(path: Path) -> tuple[Family, ...]:
    """Return the families of kernels that a JSON file declares.

    Raises:
        ConfigError: it is no such file.
    """
    try:
        data = read_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: no JSON file of kernel families: {error}") from None
    return parse_families(data, where=str(path))
