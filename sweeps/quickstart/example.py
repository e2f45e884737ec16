"""Put the leaderboard of the committed quickstart run into the README: `make example` calls it.

    python sweeps/quickstart/example.py [LEADERBOARD.md README.md]

A test compares the two, so a change of the example without the README does not pass.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
BOARD = ROOT / "reports" / "example" / "quickstart" / "leaderboard.md"
README = ROOT / "README.md"
# the part that is written:  <!-- leaderboard: from FILE --> ... <!-- end of leaderboard -->
_PART = re.compile(
    r"(?P<head><!-- leaderboard: [^>]* -->\n).*(?P<end><!-- end of leaderboard -->)", re.DOTALL
)
_SHOWN = ("What was found", "Leaderboard")
_DROPPED = {"Profile", "reason"}  # columns of the profiles that cannot run
_WIDE = {"evidence", "jobs"}  # a table with these is one of them


def part_of(board: str) -> str:
    """Return what the README shows of a leaderboard: its finding and its tables."""
    sections = dict(re.findall(r"(?ms)^## (.+?)\n\n(.*?)(?=^## |\Z)", board))
    shown = "\n\n".join(sections[name].strip() for name in _SHOWN if name in sections)
    blocks = [_narrow(block) for block in shown.split("\n\n")]
    return "\n\n".join(re.sub(r"^#+ (.+)$", r"**\1**", each) for each in blocks)


def _narrow(block: str) -> str:
    """Leave out the columns of a table that are too wide for a page."""
    lines = block.splitlines()
    names = _cells(lines[0])
    if not block.startswith("| ") or not _WIDE.issubset(names):
        return block
    keep = [at for at, name in enumerate(names) if name in _DROPPED]
    return "\n".join(f"| {' | '.join(_cells(line)[at] for at in keep)} |" for line in lines)


def _cells(line: str) -> list[str]:
    return list(_split(line.strip("| \n")))


def _split(line: str) -> Iterator[str]:
    yield from (each.strip() for each in re.split(r"(?<!\\)\|", line))


def written(readme: str, board: str) -> str:
    """Return the README with its part made again."""
    text, count = _PART.subn(
        lambda found: f"{found['head']}{part_of(board)}\n{found['end']}", readme
    )
    if count != 1:
        raise SystemExit("README.md: the marks around the leaderboard are not there once each")
    return text


def main() -> None:
    """Write the README."""
    board, readme = map(Path, sys.argv[1:3]) if len(sys.argv) > 2 else (BOARD, README)
    text = written(readme.read_text(encoding="utf-8"), board.read_text(encoding="utf-8"))
    readme.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
