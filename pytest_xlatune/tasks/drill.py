"""Drill the captures of variants.

If a variant cannot be read, a problem says so, and the others are still drilled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_xlatune import secure_files
from pytest_xlatune.evidence import read_each
from pytest_xlatune.evidence.hlo.dump import read_program
from pytest_xlatune.evidence.trace import Family, parse_families
from pytest_xlatune.evidence.trace.breakdown import CaptureWindow, Drill
from pytest_xlatune.evidence.trace.captures import read_window
from pytest_xlatune.evidence.trace.collectives import Communication, Watch, communication_of
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.record import read_json
from pytest_xlatune.model.text import counted


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
    variants: Sequence[Sequence[Path]],
    window: CaptureWindow,
    *,
    step_times_s: Sequence[float] = (),
    dumps: Sequence[Path] = (),
    collectives: bool = False,
) -> Drilled:
    """Drill variants; each is a list of captures, and of folders with captures.

    Args:
        variants: the captures of each variant.
        window: what is known about each capture.
        step_times_s: the seconds of a step without a profiler, one for each variant; () if unknown.
        dumps: dumps of the compiled program, one for each variant; they imply `collectives`.
        collectives: whether collectives are requested, even without a program.

    Raises:
        ConfigError: the arguments do not fit the variants.
        ParseError: no variant has a readable capture with one window.
    """
    for option, values in (("--program", dumps), ("--step-time", step_times_s)):
        if values and len(values) != len(variants):
            raise ConfigError(
                f"{option} was given {len(values)} times for {counted(len(variants), 'variant')}; "
                "give it once for each, in their order, or not at all"
            )
    programs = [read_program(dump) for dump in dumps]
    talks = collectives or bool(dumps)

    def drilled(place: int) -> tuple[Drill, tuple[str, ...], Communication | None]:
        watch, program = Watch(), programs[place] if programs else None
        step_s = step_times_s[place] if step_times_s else None
        here = replace(window, step_s=step_s, observe=watch if talks else None)
        drill, left_out = read_window(variants[place], here)
        return drill, left_out, communication_of(drill, program, watch) if talks else None

    read, problems = read_each(drilled, range(len(variants)))
    # if a variant is missing, it is not known which program belongs to which of the others
    known = [communication for _, _, communication in read if communication and not problems]
    return Drilled(
        drills=tuple(drill for drill, _, _ in read),
        collectives=tuple(known),
        problems=(*problems, *(text for _, left_out, _ in read for text in left_out)),
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
