"""The exit statuses, of pytest and of the command line: declared here and nowhere else.

A pipeline acts on them, so each answers one question: is it us, is it the site, or is it the
change that was measured? This module knows neither pytest nor argparse.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class Exit(IntEnum):
    """How a run ends; the numbers below 6 are pytest's own."""

    OK = 0
    NEGATIVE = 1
    INTERRUPTED = 2
    INTERNAL = 3
    USAGE = 4
    NOTHING_SELECTED = 5
    CANNOT_TELL = 10
    NOT_MEASURED = 11

    @property
    def meaning(self) -> str:
        """One phrase for the help and the documents."""
        return _MEANINGS[self]


_MEANINGS = {
    Exit.OK: "all is well",
    Exit.NEGATIVE: "a regression or another negative finding; an ordinary test failed",
    Exit.INTERRUPTED: "interrupted (Ctrl-C)",
    Exit.INTERNAL: "an internal error; a ledger or a report could not be read or written",
    Exit.USAGE: "wrong usage or a broken setup: nothing was submitted",
    Exit.NOTHING_SELECTED: "nothing was selected",
    Exit.CANNOT_TELL: "measured, but these trials cannot tell",
    Exit.NOT_MEASURED: "it could not be measured, or no setting was in effect",
}
# where several apply the first of these is the end of the run
_ORDER = (
    Exit.INTERRUPTED,
    Exit.INTERNAL,
    Exit.USAGE,
    Exit.NEGATIVE,
    Exit.CANNOT_TELL,
    Exit.NOT_MEASURED,
)
_OF_COMMAND = {Exit.USAGE: 2, Exit.INTERRUPTED: 130}  # as argparse and shells have them


def worst(found: Iterable[Exit]) -> Exit:
    """Return the status of a run in which each of these applies; OK where none does."""
    said = set(found)
    return next((each for each in _ORDER if each in said), Exit.OK)


def of_command(status: Exit) -> int:
    """Return the number with which `xlatune` ends: wrong usage is 2 there, an interrupt 130."""
    return _OF_COMMAND.get(status, int(status))


def help_lines(*, of_command_line: bool = False) -> list[str]:
    """Return a line for each status, for pytest's help or for that of the command line."""
    listed = [each for each in Exit if not of_command_line or each is not Exit.NOTHING_SELECTED]
    numbers = {each: of_command(each) if of_command_line else int(each) for each in listed}
    listed.sort(key=lambda each: numbers[each])
    return [f"{numbers[each]:>5}  {each.meaning}" for each in listed]
