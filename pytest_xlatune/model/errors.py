"""What can go wrong in the harness and with its user's input, and the exit status it ends in.

Trouble of the *workload* (OOM, NaN, a hang, a dead node) is never an exception: it is an `Outcome`
with findings. This module knows nothing of pytest, of Slurm or of files.

    XlatuneError          never raised itself
    |-- ConfigError       the user's file, option or sweep is wrong
    |   `-- CheckoutError a commit cannot be checked out
    |-- ParseError        a dump or a trace cannot be read
    |-- SubmissionError   a trial could not be handed to an executor
    `-- LedgerError       the ledger cannot be read or written

Each carries exactly one string, so that it survives the pickling between xdist's processes. No
message shows a secret, whatever it quotes: it is hidden where the error is made.

The exit statuses, of pytest and of the command line, are declared here and nowhere else. A
pipeline acts on them, so each answers one question: is it us, is it the site, or is it the change
that was measured?
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import ClassVar

from pytest_xlatune.model import redact
from pytest_xlatune.model import text as texts


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
# where several apply, the run ends with the first of these
_ORDER = (
    Exit.INTERRUPTED,
    Exit.INTERNAL,
    Exit.USAGE,
    Exit.NEGATIVE,
    Exit.CANNOT_TELL,
    Exit.NOT_MEASURED,
)
_OF_COMMAND = {Exit.USAGE: 2, Exit.INTERRUPTED: 130}  # as argparse and shells have them


def worst(statuses: Iterable[Exit]) -> Exit:
    """Return the status of a run in which each of these applies; OK where none does."""
    applying = set(statuses)
    return next((status for status in _ORDER if status in applying), Exit.OK)


def of_command(status: Exit) -> int:
    """Return the number with which `xlatune` ends: wrong usage is 2 there, an interrupt 130."""
    return _OF_COMMAND.get(status, int(status))


def help_lines(*, of_command_line: bool = False) -> list[str]:
    """Return a line for each status, for pytest's help or for that of the command line."""
    listed = [
        status for status in Exit if not of_command_line or status is not Exit.NOTHING_SELECTED
    ]
    numbers = {status: of_command(status) if of_command_line else int(status) for status in listed}
    listed.sort(key=lambda status: numbers[status])
    return [f"{numbers[status]:>5}  {status.meaning}" for status in listed]


_environs: list[Mapping[str, str]] = []


def hide_secrets_of(environ: Mapping[str, str]) -> None:
    """Let no message show a secret of this environment, as it is when the message is made."""
    _environs[:] = [environ]


def known_secrets() -> frozenset[str]:
    """Return the values that no text may show, as far as this process knows or sees them."""
    environs = (_secrets_of(frozenset(environ.items())) for environ in _environs)
    return redact.kept_secrets().union(*environs)


def shown(text: str) -> str:
    """Return a text as a person may see it: without secrets, and without what steers a terminal."""
    return texts.printable(redact.hide_quoted(text, known_secrets()))


@functools.lru_cache(maxsize=4)
def _secrets_of(environ: frozenset[tuple[str, str]]) -> frozenset[str]:
    return redact.secrets_of_environment(dict(environ))


class XlatuneError(Exception):
    """Base of every error of this package; `exit` is the status of a run that it ends.

    Its text is `shown`: messages quote arguments, values, files and what other programs say.
    """

    exit: ClassVar[Exit] = Exit.INTERNAL

    def __init__(self, text: str = "") -> None:
        super().__init__(shown(text))


_MANY = 8  # names in a message


class ConfigError(XlatuneError):
    """The user's input is wrong. The message says what was found, where, what was expected."""

    exit = Exit.USAGE

    @classmethod
    def unknown(cls, kind: str, name: str, *, valid: Iterable[str], where: str) -> ConfigError:
        """Build the message for a name that does not exist, with the nearest one that does.

        A long list of all names is left out where one of them is near.

        >>> str(ConfigError.unknown("profile", "overlap2", valid=["overlap-2"], where="-k"))
        "unknown profile 'overlap2' in -k; did you mean 'overlap-2'? Known: overlap-2"
        """
        names = sorted(valid)
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        if near and len(names) > _MANY:
            return cls(f"unknown {kind} {name!r} in {where}{hint}")
        known = ", ".join(names) if names else "none"
        return cls(f"unknown {kind} {name!r} in {where}{hint} Known: {known}")


class CheckoutError(ConfigError):
    """The checkout of a commit cannot be made, for a reason of that commit: others may have one."""


class ParseError(XlatuneError):
    """A file of evidence is truncated, foreign or hostile; the message names it and why."""

    exit = Exit.USAGE


class SubmissionError(XlatuneError):
    """An executor refused a trial or could not be reached."""

    exit = Exit.NOT_MEASURED


class LedgerError(XlatuneError):
    """The ledger is unreadable, was written by a newer schema, or cannot be locked or written."""


class UnreadableLedgerError(LedgerError):
    """The lines of the ledger are damaged, or no ledger's: reading them again does not help."""

    ADVICE = "start over with --xlatune-fresh, which moves the file aside and deletes nothing"
