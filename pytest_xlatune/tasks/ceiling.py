"""How much any setting could win at most, from a capture and a dump: read, and as a document."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_xlatune.evidence.trace.breakdown import CaptureWindow
from pytest_xlatune.evidence.trace.captures import read_window
from pytest_xlatune.evidence.trace.ceilings import Bounds, Ceiling, Ceilings, ceilings, roofline
from pytest_xlatune.evidence.trace.comparison import milliseconds
from pytest_xlatune.model.channels import DUMP_FOLDER
from pytest_xlatune.model.errors import XlatuneError
from pytest_xlatune.model.record import dataclass
from pytest_xlatune.model.text import at_most, counted
from pytest_xlatune.report.document import Document, Table, columns, lines, plain, section

if TYPE_CHECKING:
    from pytest_xlatune.evidence.hlo import Program
    from pytest_xlatune.tasks.artifacts import Recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class CeilingAsked:
    """What a person says of a capture.

    Attributes:
        program: a dump of its program; None looks for that of recorded evidence.
        steps: how many it has.
        step_s: seconds of a step without the profiler; None takes that of the ledger.
        tflops: the peak of the device, in 10^12 FLOP a second of 16 bits; None takes the table's.
    """

    program: Path | None = None
    steps: int | None = None
    step_s: float | None = None
    tflops: float | None = None


def read_ceilings(
    named: Sequence[str], asked: CeilingAsked, *, workdir: Callable[[], Path]
) -> tuple[Ceilings, tuple[str, ...]]:
    """Return the ceilings of captures, folders of them, or recorded evidence; and the unread files.

    Raises:
        ConfigError: no evidence has a name.
        ParseError: there is no readable capture of one window with a whole step.
    """
    captures: list[Path] = []
    dumps = [asked.program] if asked.program else []
    step_s = asked.step_s
    for said in named:
        found = None if "/" in said or Path(said).exists() else _recorded(said, workdir())
        if found is None:
            captures.append(Path(said))
            dumps += [each for each in (Path(said, DUMP_FOLDER),) if each.is_dir()]
        else:
            captures += found.captures or (Path(said),)
            dumps += [found.dump] if found.dump else []
            step_s = step_s or found.step_s
    program: Program | None = None
    problems: list[str] = []
    if dumps:
        from pytest_xlatune.evidence.hlo.dump import read_program

        try:
            program = read_program(dumps[0])
        except XlatuneError as error:
            problems.append(str(error))
    bounds = Bounds()
    window = CaptureWindow(steps=asked.steps)
    drilled, left_out = read_window(captures, window, step_s=step_s, observe=[bounds])
    roof = roofline(program, bounds.modules, asked.tflops)
    return ceilings(bounds, drilled, roof), (*problems, *left_out)


def _recorded(said: str, workdir: Path) -> Recorded | None:
    from pytest_xlatune.tasks.artifacts import find_recorded  # loads the ledger

    return find_recorded(said, workdir)


def ceiling_document(
    found: Ceilings, problems: Sequence[str] = (), *, sees: float | None = None
) -> Document:
    """Return the document of ceilings; `sees` is the smallest gain that a sweep finds, 0.015."""
    head = ("settings that act on", ">at most", ">single steps", ">itself ms", ">gaps",
            ">of others")  # fmt: skip
    rows = tuple(
        (each.name, *map(plain, (*_gains(each), *map(_ms, (each.own_s, each.gaps_s,
                                                            each.others_s)))))
        for each in found.rows
    )  # fmt: skip
    return Document(
        title="How much any setting could win at most",
        header=tuple(f"left out: {plain(each)}" for each in problems),
        sections=(
            section("In short", lines(*map(plain, _in_short(found, sees)))),
            section("Ceilings", Table(columns=columns(*head), rows=rows, compact=True)),
            section("Remarks", lines(*map(plain, _remarks(found)))),
        ),
        brief=True,
    )


def _in_short(found: Ceilings, sees: float | None) -> Iterator[str]:
    free = "" if found.unprofiled_s is None else f"; {_ms(found.unprofiled_s)} without the profiler"
    span = f" ({_ms(found.shortest_s)} to {_ms(found.longest_s)})" if found.steps > 1 else ""
    yield (
        f"a step takes {_ms(found.step_s)} ms on the slowest device, over "
        f"{counted(found.steps, 'step')}{span}{free}"
    )
    told = [f"{share:.1%} {name}" for name, share in found.parts.items()]
    if found.of_peak is not None:
        told = [f"{each} (at {found.of_peak:.0%} of its peak)" if each.endswith(" compute")
                else each for each in told]  # fmt: skip
    yield f"on the device that computes longest: {', '.join(told)}"
    for each in found.rows:
        if each.gain is None:
            yield f"what settings of {each.name} can win is not known: {each.unknown}"
        elif sees is not None and each.gain < sees:
            yield (
                f"no setting of {each.name} can be seen: at most {upward(each.gain)}, and the "
                f"sweep sees +{sees:.1%}"
            )
        else:
            yield f"no setting of {each.name} can win more than {upward(each.gain)}"


def _gains(row: Ceiling) -> tuple[str, str]:
    if row.gain is None or row.low is None or row.high is None:
        return "-" if row.gain is None else upward(row.gain), "-"
    return upward(row.gain), f"{row.low:+.1%} to {upward(row.high)}"


def _remarks(found: Ceilings) -> Iterator[str]:
    yield from found.notes
    if found.peak:
        yield f"peak: {found.peak}"


def upward(gain: float) -> str:
    """Write a ceiling as the commands on traces do."""
    return at_most(gain).replace(" ", "")


def _ms(value_s: float) -> str:
    return f"{milliseconds(value_s):.3f}"
