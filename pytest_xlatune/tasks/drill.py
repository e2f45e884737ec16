"""Drill the captures of variants.

If a variant cannot be read, a problem says so, and the others are still drilled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from pytest_xlatune import secure_files
from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.evidence.hlo.dump import read_program
from pytest_xlatune.evidence.trace import Family, parse_families
from pytest_xlatune.evidence.trace.breakdown import CaptureWindow, Drill
from pytest_xlatune.evidence.trace.captures import read_window
from pytest_xlatune.evidence.trace.collectives import Communication, Watch, communication_of
from pytest_xlatune.model.errors import ConfigError, ParseError, XlatuneError
from pytest_xlatune.model.record import read_json
from pytest_xlatune.model.text import counted
from pytest_xlatune.tasks.artifacts import captures_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Drilled:
    """The drills that were made.

    Attributes:
        drills: the drill of each variant that could be read.
        collectives: the collectives of each variant, if they were requested.
        problems: what could not be read, and what was left out.
    """

    drills: tuple[Drill, ...]
    collectives: tuple[Communication, ...] = ()
    problems: tuple[str, ...] = ()


def drill_variants(
    named: Sequence[Sequence[str]],
    window: CaptureWindow,
    *,
    step_times_s: Sequence[float],
    workdir: Callable[[], Path],
    dumps: Sequence[Path] = (),
    collectives: bool = False,
) -> Drilled:
    """Drill variants; each is a list of captures, folders, or names of recorded evidence.

    Args:
        named: the variants.
        window: what is known about each capture.
        step_times_s: the seconds of a step without a profiler, one for each variant; if empty,
            those in the ledger are used if it has one for each.
        workdir: returns the folder in which recorded evidence is searched.
        dumps: dumps of the compiled program, one for each variant; they imply `collectives`.
        collectives: whether collectives are requested, even without a program.

    Raises:
        ConfigError: the arguments do not fit the variants, or no evidence has a given name.
        ParseError: no variant has a readable capture with one window.
    """
    if dumps and len(dumps) != len(named):
        raise ConfigError(
            f"--program was given {len(dumps)} times for {counted(len(named), 'variant')}; give "
            "the dump of each, in their order"
        )
    evidence = [[captures_of(name, workdir) for name in names] for names in named]
    variants = [[path for paths, _ in recorded for path in paths] for recorded in evidence]
    # the seconds of steps in trials of the same profile without a profiler
    known_s = [step_s for recorded in evidence for _, step_s in recorded if step_s is not None]
    if not step_times_s and len(known_s) == len(variants):
        step_times_s = known_s
    if len(step_times_s) not in {0, len(variants)}:
        raise ConfigError(
            f"--step-time was given {len(step_times_s)} times for {len(variants)} variants; give "
            "it once for each, in their order, or not at all"
        )
    programs: Sequence[Program | None] = [*map(read_program, dumps)] or [None] * len(named)
    talks = collectives or bool(dumps)
    read: list[tuple[Drill, Program | None, Watch]] = []
    problems: list[str] = []
    left_out: list[str] = []
    for paths, program, step_s in zip_longest(variants, programs, step_times_s):
        watch = Watch()
        try:
            here = replace(window, step_s=step_s, observe=watch if talks else None)
            drill, without = read_window(paths, here)
        except XlatuneError as error:
            problems.append(str(error))
        else:
            read.append((drill, program, watch))
            left_out += without
    if not read:
        raise ParseError("; ".join(problems))
    return Drilled(
        drills=tuple(drill for drill, _, _ in read),
        # if a variant is missing, it is not known which program belongs to which of the others
        collectives=tuple(communication_of(*variant) for variant in read if talks and not problems),
        problems=(*problems, *left_out),
    )


def read_families(path: Path) -> tuple[Family, ...]:
    """Return the families of kernels that a JSON file declares.

    Raises:
        ConfigError: the file is not of this form.
    """
    try:
        data = read_json(secure_files.read_named(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: no JSON file of kernel families: {error}") from None
    return parse_families(data, where=str(path))
