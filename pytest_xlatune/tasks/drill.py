"""Drill the captures of variants, and make what a person asks for beside: paths, a file, and more.

A variant that cannot be read is told, and the others are drilled all the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.evidence.hlo.dump import read_program
from pytest_xlatune.evidence.trace import Family, parse_families
from pytest_xlatune.evidence.trace.breakdown import CaptureWindow, Drill
from pytest_xlatune.evidence.trace.captures import (
    operation_paths,
    pgle_profile,
    read_window,
)
from pytest_xlatune.evidence.trace.collectives import Communication, Watch
from pytest_xlatune.evidence.trace.comparison import by_path
from pytest_xlatune.model.errors import ConfigError, ParseError, XlatuneError
from pytest_xlatune.model.profile import PGLE, PGLE_SUFFIX
from pytest_xlatune.model.record import read_json
from pytest_xlatune.model.text import counted
from pytest_xlatune.tasks.artifacts import captures_of


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillOptions:
    """What a person asks of variants beside the drill.

    Attributes:
        collectives: their bytes, waits and stragglers.
        programs: dumps of the compiled program, one for each variant; () asks for none.
        by_path: the time by the operation's path in the framework.
        pgle: a file for XLA's scheduler; of one variant.
    """

    collectives: bool = False
    programs: tuple[Path, ...] = ()
    by_path: bool = False
    pgle: Path | None = None

    def check(self, variants: int) -> None:
        """Refuse what does not fit that many variants.

        Raises:
            ConfigError: it does not.
        """
        if self.programs and len(self.programs) != variants:
            raise ConfigError(
                f"--program was given {len(self.programs)} times for "
                f"{counted(variants, 'variant')}; give the dump of each, in their order"
            )
        if self.pgle is None:
            return
        if variants > 1:
            raise ConfigError("--pgle writes one variant; give its captures alone")
        if self.pgle.suffix != PGLE_SUFFIX:
            raise ConfigError(
                f"--pgle {self.pgle}: XLA reads such a text by its ending; expected *{PGLE_SUFFIX}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Drilled:
    """What was read.

    Attributes:
        drills: of each variant that could be read.
        talking: the collectives of each, where they were asked for.
        paths: the seconds of each path of each, where they were asked for.
        files: a line about each file that was written.
        problems: what could not be read, and what was left out.
    """

    drills: tuple[Drill, ...]
    talking: tuple[Communication, ...] = ()
    paths: tuple[dict[str, float], ...] = ()
    files: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def drill_variants(
    named: Sequence[Sequence[str]],
    window: CaptureWindow,
    asked: DrillOptions,
    *,
    step_times_s: Sequence[float],
    workdir: Callable[[], Path],
) -> Drilled:
    """Drill variants: of each the captures, folders of them, or names of recorded evidence.

    `step_times_s` are those of runs without profiler, one for each variant; without any, those of
    the ledger count where it has one for each.

    Raises:
        ConfigError: a wish does not fit the variants, or no evidence has a name.
        ParseError: no variant has a readable capture of one window.
    """
    variants: list[Sequence[Path]] = []
    known_s: list[float] = []
    for each in named:
        found = [captures_of(name, workdir) for name in each]
        variants.append([path for paths, _ in found for path in paths])
        # of trials of the same profile that ran without profiler
        known_s += [step_s for _, step_s in found if step_s is not None]
    if not step_times_s and len(known_s) == len(variants):
        step_times_s = known_s
    if len(step_times_s) not in {0, len(variants)}:
        raise ConfigError(
            f"--step-time was given {len(step_times_s)} times for {len(variants)} variants; give "
            "it once for each, in their order, or not at all"
        )
    asked.check(len(variants))
    programs = [read_program(each) for each in asked.programs]
    watches = [Watch() for _ in variants if asked.collectives or programs]
    drills: list[Drill] = []
    problems: list[str] = []
    left_out: list[str] = []
    for place, (paths, step_s) in enumerate(zip_longest(variants, step_times_s)):
        observe = watches[place : place + 1]
        try:
            drilled, without = read_window(paths, window, step_s=step_s, observe=observe)
        except XlatuneError as error:
            problems.append(str(error))
        else:
            drills.append(drilled)
            left_out += without
    if not drills:
        raise ParseError("; ".join(problems))
    found_all = Drilled(drills=tuple(drills), problems=(*problems, *left_out))
    if problems:  # what was asked of each variant cannot be told apart
        return found_all
    return dataclasses.replace(
        found_all,
        talking=tuple(
            watch.result(found, program)
            for watch, found, program in zip_longest(watches, drills, programs)
            if watch is not None
        ),
        paths=tuple(
            by_path(found, operation_paths(paths))
            for found, paths in zip(drills, variants, strict=True)
            if asked.by_path
        ),
        files=tuple(_files(asked, drills[0], next(iter(programs), None))),
    )


def _files(asked: DrillOptions, found: Drill, program: Program | None) -> Iterator[str]:
    """Write the profile for the scheduler, and tell of it."""
    if asked.pgle:
        try:
            asked.pgle.write_text(pgle_profile(found, program), encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"{asked.pgle}: the profile cannot be written: {error.strerror}"
            ) from None
        path = str(asked.pgle.absolute())
        if program is None or program.fingerprint is None:
            yield "any program takes this file: name the one of the capture by --program DUMP"
        yield f"a candidate setting: --{PGLE}={path}"
        yield f"in a sweep file: profiles_for(..., pgle={path!r})"


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
