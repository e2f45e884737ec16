"""The numbers of one page agree: every committed page, and pages of which it is known that not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_xlatune.report import Subject
from pytest_xlatune.report.cell_documents import batch, commits, network, nodes
from pytest_xlatune.report.document import Document
from pytest_xlatune.report.page_plots import forest
from pytest_xlatune.report.render import markdown
from tests.helpers import of_studies
from tests.helpers.document.agreement import disagreements

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for folder in ("reports/example", "tests/data/golden")
    for path in (ROOT / folder).rglob("*.md")
)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_two_numbers_of_a_committed_page_disagree(path: Path) -> None:
    assert disagreements(path.read_text(encoding="utf-8")) == []


BOARD = """# m PP=8: leaderboard

## What was found

{said}

## Leaderboard

### Confirmed

| Profile | Flags | TGS | step (s) | delta % vs baseline-deployed | 95 % | n | verdict |
| :--- | :--- | ---: | ---: | ---: | :--- | ---: | :--- |
| {star}`ag` | `--xla_ag=1` | {tgs} | 1.0 | {delta} | {ends} | 4 | {verdict} |
| `baseline-deployed` | as deployed | 1000.0 | 1.0 | – | – | 12 | baseline |
"""  # noqa: RUF001 - the dash of an absent value
STAR = "★ `ag` is faster than `baseline-deployed` by {delta} % (95 % interval {ends}, n = 4)."
RULED_OUT = "We can rule out (95 %) that any tested setting gains more than {bound} % (M)."


def board(**parts: str) -> str:
    found = {"said": "", "star": "", "tgs": "1034.0", "delta": "+3.4", "ends": "[+1.0, +5.8]",
             "verdict": "FASTER", **parts}  # fmt: skip
    return BOARD.format(**found)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        pytest.param(board(said=STAR.format(delta="+3.4", ends="[+1.0, +5.8]")), "", id="a board"),
        pytest.param(
            board(said=STAR.format(delta="+3.6", ends="[+1.0, +5.8]")),
            "+3.6 % [+1.0, +5.8] is said", id="another change in the sentence",
        ),
        pytest.param(
            board(said=STAR.format(delta="+3.4", ends="[+2.0, +4.8]")),
            "[+2.0, +4.8] is said", id="another interval in the sentence",
        ),
        pytest.param(
            board(tgs="953.4", delta="+8.1", ends="[+6.0, +10.2]"),
            "953.4 beside 8.1 %", id="a rate below the baseline's beside a gain",
        ),
        pytest.param(
            board(said=RULED_OUT.format(bound="9.1"), tgs="1083.0", delta="+8.3",
                  ends="[-11.2, +31.6]", verdict="inconclusive (80 % power at 20.0 %)"),
            "may gain 31.6 %, and M excludes 9.1 %", id="M below an interval",
        ),
        pytest.param(
            board(tgs="921.0", delta="-7.9", ends="[-16.5, +1.6]", verdict="EQUIVALENT"),
            "EQUIVALENT, and its interval is (-16.5, 1.6)", id="a wide equality",
        ),
        pytest.param(
            board(delta="–", ends="–"), "FASTER without a change",  # noqa: RUF001
            id="a gain of nothing",
        ),
        pytest.param(
            board(delta="+3.4", ends="[-0.4, +5.8]"), "FASTER, and its interval", id="a gain or not"
        ),
        pytest.param(
            "## Answer\n\nThe link `n2-n3` is slow: -23.1 % (95 % interval [-23.1, -23.0]).\n\n"
            "## Pairs\n\n| Pair | change % | by | runs |\n| :--- | ---: | :--- | ---: |\n"
            "| `n2-n3` | -19.6 | fresh runs | 3 |\n",
            "-23.1 % is said, its row has -19.6", id="a link of two losses",
        ),
    ],
)  # fmt: skip
def test_numbers_that_disagree_are_named(text: str, complaint: str) -> None:
    found = disagreements(text)
    assert complaint in "; ".join(found)
    assert bool(found) == bool(complaint), found


@pytest.mark.parametrize(
    ("document", "subject"),
    [
        pytest.param(batch, of_studies.batch, id="batch sizes"),
        pytest.param(commits, of_studies.commit, id="commits"),
        pytest.param(nodes, of_studies.nodes, id="nodes"),
        pytest.param(network, of_studies.network, id="a network"),
    ],
)
def test_no_two_numbers_of_a_studys_page_disagree(
    document: Callable[[Subject], Document], subject: Callable[[], Subject]
) -> None:
    assert disagreements(markdown(document(subject()))) == []


def test_a_plot_says_of_a_row_against_what_it_is_where_its_title_does_not() -> None:
    found = of_studies.commit().conclusion
    (first,) = (each for each in found.verdicts if each.word == "FIRST BAD")
    plot = forest(found)
    assert plot is not None
    assert plot.title == "Change of TGS against the first commit"
    names = [row.name for part in plot.parts for row in part.rows]
    assert f"{first.arm} against its parent" in names
    assert sum(" against " in each for each in names) == 1
