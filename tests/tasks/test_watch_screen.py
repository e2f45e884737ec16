"""Cells laid out on a screen: all in a table, in full below it while they may change."""

from __future__ import annotations

import pytest

from pytest_xlatune.model.result import Verdict, VerdictKind
from pytest_xlatune.report.lines import words_beside
from pytest_xlatune.tasks.watch import CellStatus, Standing, screen_lines

LONG = "a-profile-with-a-name-that-no-screen-of-forty-columns-holds"
FASTER = Verdict(arm=LONG, kind=VerdictKind.FASTER, delta=0.034, ci95=(0.02, 0.048), n=4)


def seen(sweep: str, state: Standing = Standing.RUNNING, **more: object) -> CellStatus:
    return CellStatus(sweep=sweep, label="m FSDP=8", state=state, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "verdict",
    [
        FASTER,
        Verdict(
            arm=LONG, kind=VerdictKind.INCONCLUSIVE, delta=-0.2345, ci95=(-1.25, 10.2), n=12,
            mde80=2.334,
        ),
        Verdict(
            arm=LONG, kind=VerdictKind.SCREENED, delta=-0.2, n=2, is_likely_slower=True,
            up_to="wave4",
        ),
    ],
    ids=["faster", "inconclusive", "very likely slower"],
)  # fmt: skip
def test_at_80_columns_the_name_is_cut_and_never_the_verdict(verdict: Verdict) -> None:
    *_, head, row = screen_lines([seen("pp8", ranking=(verdict,))], 80)
    assert head.split() == ["delta", "%", "95", "%", "n", "verdict", "profile"]
    assert f" {words_beside(verdict)}  " in row[:80]


def test_every_cell_is_in_the_table_and_what_may_change_stands_below_in_full() -> None:
    running = ("fast (job 7) step 3/12",)
    cells = [
        seen("pp8", progress="7 of 25 jobs", running=running, ranking=(FASTER,)),
        seen("tp4", Standing.STOPPED, why="node-drain " * 20),
        seen("fsdp", Standing.COMPLETE, progress="12 of 12 jobs", ranking=(FASTER,)),
    ]
    _, first, second, third, *rest = screen_lines(cells, 80)
    assert "running" in first
    assert "7 of 25 jobs" in first
    assert "stopped" in second
    assert f"{LONG} +3.4 %" in third
    assert [line for line in rest if line.startswith("  fast (job 7) step 3/12")]
    assert sum("node-drain" in line for line in rest) > 1
    assert not [line for line in rest if line.startswith("fsdp")], "the table has all of it"
