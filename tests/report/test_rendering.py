"""Figures, words and renderers: foreign text breaks nothing, no line outgrows the terminal."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_xlatune.model import text as figures
from pytest_xlatune.model.result import Outcome, State, TrialResult, TrialStatus
from pytest_xlatune.model.text import printable
from pytest_xlatune.report.document import (
    Bullets,
    Code,
    Document,
    Section,
    Table,
    Text,
    columns,
    literal,
    plain,
)
from pytest_xlatune.report.leaderboard import jobs_table
from pytest_xlatune.report.render import markdown, terminal
from tests.helpers.finished import FINISHED
from tests.helpers.history import CELL, trial_of

ANY_TEXT = st.text(st.characters(codec="utf-8"), max_size=60) | st.sampled_from(
    ["|", "a|b`c|d`", "`", "``", "\n## x", "<b>*x*", "\\|", "--f=a|b", "\r\n\x0b\x85\u2028"]
)


FIGURES: dict[Callable[[Any], str], list[tuple[Any, str]]] = {
    figures.points: [(0.034, "+3.4"), (-0.0, "+0.0"), (-0.0004, "-0.04"), (math.nan, "nan")],
    figures.interval: [((0.012, 0.034), "[+1.2, +3.4]"), ((-0.0003, 0.2), "[-0.03, +20.0]")],
    figures.rate: [(994.9, "994.9"), (15321.44, "15321.4"), (7.3, "7.300")],
    figures.significant: [(28.8203, "28.82"), (0.07104, "0.07104"), (math.nan, "nan")],
    figures.duration: [
        *((97200, "1 d 3 h"), (86400, "1 d"), (7800, "2 h 10 min"), (7200, "2 h")),
        *((61, "2 min"), (60, "1 min"), (0.2, "1 s"), (-5, "0 s")),
    ],
}


def test_figures() -> None:
    for write, shown in FIGURES.items():
        assert [write(value) for value, _ in shown] == [text for _, text in shown]
        assert write(None) == figures.ABSENT


def test_jobs_stand_in_the_order_of_their_start_though_numbers_of_processes_begin_anew() -> None:
    def result(job: str, start_s: float | None) -> TrialResult:
        ended = Outcome(state=State.COMPLETED, start_s=start_s)
        status = TrialStatus.MEASURED
        return TrialResult(trial=trial_of(CELL), status=status, job_ids=(job,), outcome=ended)

    starts = {"32539.327731": 10.0, "9990.99": 30.0, "9": 20.0, "512_4": None}
    history = tuple(result(*each) for each in starts.items())
    table = jobs_table([("", replace(FINISHED, history=history))])
    assert table is not None
    assert [row[0] for row in table.rows] == ["32539.327731", "9", "9990.99", "512_4"]


COLUMNS = columns("~Profile", "~Flags", ">TGS")


def document(*blocks: Table | Text | Bullets | Code) -> Document:
    return Document(title="t", header=(), sections=(Section(title="s", blocks=blocks),))


@given(rows=st.lists(st.tuples(ANY_TEXT, ANY_TEXT, ANY_TEXT), max_size=5))
def test_foreign_text_never_breaks_a_markdown_table(rows: list[tuple[str, str, str]]) -> None:
    cells = tuple((literal(first), plain(second), literal(third)) for first, second, third in rows)
    table = Table(title="x", columns=COLUMNS, rows=cells)
    lines = markdown(document(table)).splitlines()
    body = lines[lines.index("### x") + 2 :]
    assert len(body) == 2 + len(rows)
    for line in body:
        assert len(re.findall(r"(?<!\\)\|", line)) == 1 + len(COLUMNS)
        assert line.count("`") % 2 == 0


def test_markup_is_text() -> None:
    text = markdown(document(Text(text="a *b* <c> \\d `e *f* <g> \\h`")))
    assert text.endswith("a \\*b\\* \\<c> \\\\d `e *f* <g> \\h`\n")
    text = markdown(document(Code(text="echo ```\n", language="bash")))
    assert text.endswith("\n````bash\necho ```\n````\n")


@given(
    rows=st.lists(st.tuples(ANY_TEXT, ANY_TEXT), max_size=4),
    width=st.integers(40, 200),
    note=ANY_TEXT,
)
@example(rows=[("0" * 39 + " 0", "")], width=40, note="")
@settings(deadline=None)
def test_no_line_is_wider_than_the_terminal(
    rows: list[tuple[str, str]], width: int, note: str
) -> None:
    cells = tuple((literal(first), literal(second), "994.9") for first, second in rows)
    table = Table(title=plain(note), columns=COLUMNS, rows=cells)
    blocks = (table, Text(text=plain(note)), Bullets(items=(literal(note),)))
    lines = terminal(document(*blocks), width=width)
    for line in lines:
        assert len(line) <= width or len(line.split()) == 1, "a word is not broken, a line is"
    assert all(printable(line) == line and "`" not in line for line in lines)


FLAG = "--xla_gpu_experimental_parallel_collective_overlap_limit=2"
LONG = "stack.overlap-2+ag-1g+rs-256m+pipelined-all-reduce+latency-hiding"[:64]


def test_ids_and_flags_are_never_broken_and_tables_fit() -> None:
    titles = (">TGS", ">step (s)", ">delta % vs baseline-deployed", ">95 %", ">n")
    figures = ("800.7", "0.6394", "-20.0", "[+1.2, +5.6]", "1")
    small = Table(
        columns=columns("Profile", *titles, "~verdict", "~settings"),
        rows=(("slow", *figures, "very likely slower", "in effect"),),
    )
    for width in range(40, 120):
        assert max(map(len, terminal(document(small), width=width))) <= width
    said = "unknown-flag (--xla_cpu_enable_warp_drive=true): dropped"
    table = Table(
        columns=columns("~Profile", "~Flags", *titles, "~reason"),
        rows=tuple(
            (literal(name), literal(f"{FLAG} A=1"), *figures, plain(said)) for name in (LONG, "a")
        ),
    )
    for width in (60, 120):
        lines = terminal(document(table), width=width)
        assert max(map(len, lines)) <= max(width, 66)
        text = "\n".join(lines)
        for word in (LONG, FLAG, "[+1.2, +5.6]", "--xla_cpu_enable_warp_drive=true"):
            assert word in text, "in one piece, on one line"
