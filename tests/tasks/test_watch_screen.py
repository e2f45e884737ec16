"""Cells laid out on a screen: in full while they may change, never more lines than it has."""

from __future__ import annotations

import pytest

from pytest_xlatune.model.result import Verdict, VerdictKind
from pytest_xlatune.report.lines import words_in_short
from pytest_xlatune.tasks.watch import CellStatus, ScreenLine, Standing, all_lines, screen_lines

LONG = "a-profile-with-a-name-that-no-screen-of-forty-columns-holds"


def seen(sweep: str, standing: Standing = Standing.RUNNING, **more: object) -> CellStatus:
    return CellStatus(sweep=sweep, label="m FSDP=8", standing=standing, **more)  # type: ignore[arg-type]


def text(lines: list[ScreenLine]) -> list[str]:
    return ["".join(part for part, _ in line) for line in lines]


def test_a_ranking_is_a_table_whose_figures_stand_under_their_titles() -> None:
    verdicts = (
        Verdict(arm="fast", kind=VerdictKind.FASTER, delta=0.034, ci95=(0.02, 0.048), n=4),
        Verdict(arm=LONG, kind=VerdictKind.SCREENED, delta=-0.002, n=1),
    )
    *_, head, first, second = text(all_lines([seen("pp8", ranking=verdicts)], 60))
    assert head.split() == ["profile", "delta", "%", "95", "%", "n", "verdict"]
    for title, figures in (("delta %", ("+3.4", "-0.2")), ("n", ("4", "1"))):
        end = head.index(title) + len(title)
        for row, figure in zip((first, second), figures, strict=True):
            assert row[:end].endswith(figure), row
    assert second.split()[0] == f"{LONG[:21]}…"


@pytest.mark.parametrize(
    "verdict",
    [
        Verdict(arm=LONG, kind=VerdictKind.FASTER, delta=0.034, ci95=(0.02, 0.048), n=4),
        Verdict(
            arm=LONG,
            kind=VerdictKind.INCONCLUSIVE,
            delta=-0.2345,
            ci95=(-1.25, 10.2),
            n=12,
            mde80=2.334,
        ),
        Verdict(
            arm=LONG,
            kind=VerdictKind.SCREENED,
            delta=-0.2,
            n=2,
            is_likely_slower=True,
            up_to="wave4",
        ),
    ],
    ids=["faster", "inconclusive", "very likely slower"],
)
def test_at_80_columns_the_name_is_cut_and_never_the_verdict(verdict: Verdict) -> None:
    lines = text(all_lines([seen("pp8", ranking=(verdict,))], 80))
    (row,) = (line for line in lines if LONG[:9] in line)
    assert row.endswith(f" {words_in_short(verdict)}")
    assert LONG not in row
    assert "…" in row
    assert len(row) <= 80


@pytest.mark.parametrize(("height", "shown"), [(12, 2), (6, 2), (3, 1)])
def test_as_many_cells_are_shown_as_fit(height: int, shown: int) -> None:
    events = tuple((float(at), f"event {at}") for at in range(4))
    cells = [
        seen("pp8", progress="7/25 screened", events=events),
        seen("tp4", Standing.COMPLETE, progress="all 12 trials"),
    ]
    found = text(screen_lines(cells, width=60, height=height, now_s=0.0))
    assert len(found) <= height
    assert found[0].startswith("q quits")
    assert sum(name in " ".join(found) for name in ("pp8", "tp4")) == shown
    assert any("event 0" in line for line in found) is (height == 12)
    assert ("and 1 more: name one" in " ".join(found)) is (shown == 1)
