"""What compiling alone said of profiles, as a section of a plan or a leaderboard.

Nothing is computed here: whether a profile needs a run was decided before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_xlatune.report.document import Block, Column, Section, Table, Text, literal, plain
from pytest_xlatune.report.figures import counted

TITLE = "What compiling said"
_LIMITS = (
    "Compiling says nothing of what acts at run time only (NCCL variables, stream priority, "
    "command buffers), of what a real device's autotuning would choose, or of how fast a program "
    "is."
)
_COLUMNS = (
    Column(title="Profile", wrap=True),
    Column(title="class"),
    Column(title="what the compiler made of it", wrap=True),
    Column(title="so it is", wrap=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A compiled profile, its class, why it is of it, and what follows."""

    profile: str
    cls: str
    sentence: str
    follows: str
    is_settled: bool


def compiled(rows: Sequence[Row], *, by: str) -> Section:
    """Return the section. `by` is what compiled them, and for which device."""
    settled = sum(each.is_settled for each in rows)
    verb = "needs" if settled == 1 else "need"
    blocks: list[Block] = [
        Text(
            text=f"By {plain(by)}: {settled} of {counted(len(rows), 'profile')} {verb} no run. "
            f"{_LIMITS}"
        ),
        Table(
            columns=_COLUMNS,
            rows=tuple(
                (literal(each.profile), plain(each.cls), plain(each.sentence), plain(each.follows))
                for each in rows
            ),
        ),
    ]
    return Section(title=TITLE, blocks=tuple(blocks))
