"""The numbers of one page agree: every committed page, and pages of which it is known that not."""

from __future__ import annotations

from pathlib import Path

import pytest

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
