"""Pages stay short: what a person writes and what a command writes have at most so many words.

    python tests/project/test_docs_size.py    # the words of each page: by hand, and by a command

Words are those of `wc -w`, bars of tables included. What stands between the comments of a part that
a command writes (`make reference`, `make example`, a benchmark with `--write`) does not count.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
MOST = 28_000
MOST_WRITTEN = 40_000
# <!-- measured: begin --> ... <!-- measured: end -->, and what `make example` writes
WRITTEN = re.compile(
    r"<!-- (?P<name>[^\n]+?): begin -->.*?<!-- (?P=name): end -->"
    r"|<!-- leaderboard: from [^\n]+ -->.*?<!-- end of leaderboard -->",
    re.DOTALL,
)


def by_hand(text: str) -> int:
    """The words that no command writes."""
    return len(WRITTEN.sub("", text).split())


def counted() -> dict[str, tuple[int, int]]:
    """Page -> its words by hand, and those that a command writes."""
    found = {}
    for page in DOCS:
        text = page.read_text(encoding="utf-8")
        hand = by_hand(text)
        found[str(page.relative_to(ROOT))] = hand, len(text.split()) - hand
    return found


def test_the_pages_have_at_most_so_many_words_by_hand() -> None:
    total = sum(hand for hand, _ in counted().values())
    assert total <= MOST, f"{total} words by hand: say a thing once, or let a command write it"
    written = sum(made for _, made in counted().values())
    assert written <= MOST_WRITTEN, f"{written} words that a command writes: say a thing once"


def test_the_changelog_is_short_before_the_first_release() -> None:
    assert len((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split()) <= 1_900


if __name__ == "__main__":
    pages = counted()
    for name, (hand, made) in pages.items():
        sys.stdout.write(f"{hand:7} {made:7}  {name}\n")
    sys.stdout.write(f"{sum(hand for hand, _ in pages.values()):7} by hand in all\n")
