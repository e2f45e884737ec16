"""Errors of the harness and of its user's input, and the exit status of each.

Trouble of the *workload* (OOM, NaN, a hang, a dead node) is never an exception: it is an `Outcome`
with findings. This module knows nothing of pytest, of Slurm or of files.

    XlatuneError          the base class, never raised itself
    |-- ConfigError       the user's file, option or sweep is wrong
    |-- ParseError        a dump or a trace cannot be read
    |-- SubmissionError   a trial could not be handed to an executor
    `-- LedgerError       the ledger cannot be read or written

Each error carries exactly one string, so that it can be pickled between xdist's processes. Secrets
in the string are hidden when the error is made, whatever it quotes.

The exit statuses of pytest and of the command line are only declared here. A pipeline acts on them,
so a status tells whether the cause is this tool, the site, or the measured change.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import ClassVar

from pytest_xlatune.model import redact
from pytest_xlatune.model import text as texts


class Exit(IntEnum):
    """The exit status of a run; the numbers below 6 are pytest's own."""

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
# if several apply, the run ends with the first of these
_ORDER = (
    Exit.INTERRUPTED,
    Exit.INTERNAL,
    Exit.USAGE,
    Exit.NEGATIVE,
    Exit.CANNOT_TELL,
    Exit.NOT_MEASURED,
)
_COMMAND_STATUS = {Exit.USAGE: 2, Exit.INTERRUPTED: 130}  # as usual for argparse and for shells


def worst(statuses: Iterable[Exit]) -> Exit:
    """Return the status of a run to which all of these apply; OK if there is none."""
    applying = set(statuses)
    return next((status for status in _ORDER if status in applying), Exit.OK)


def of_command(status: Exit) -> int:
    """Return the exit status of `xlatune`: 2 for wrong usage, 130 for an interrupt."""
    return _COMMAND_STATUS.get(status, int(status))


def help_lines(*, of_command_line: bool = False) -> list[str]:
    """Return one line of help for each status, for pytest or for the command line."""
    listed = [
        status for status in Exit if not of_command_line or status is not Exit.NOTHING_SELECTED
    ]
    numbers = {status: of_command(status) if of_command_line else int(status) for status in listed}
    listed.sort(key=lambda status: numbers[status])
    return [f"{numbers[status]:>5}  {status.meaning}" for status in listed]


_environs: list[Mapping[str, str]] = []  # the environment whose secrets are hidden, if any


def hide_secrets_of(environ: Mapping[str, str]) -> None:
    """Hide the secrets of this environment in every later message, also secrets set later."""
    _environs[:] = [environ]


def known_secrets() -> frozenset[str]:
    """Return the secret values that this process knows or finds in its environment."""
    environs = (_secrets_of(frozenset(environ.items())) for environ in _environs)
    return redact.kept_secrets().union(*environs)


def shown(text: str) -> str:
    """Return a text that is safe to print: without secrets and terminal control characters."""
    return texts.printable(redact.hide_quoted(text, known_secrets()))


@functools.lru_cache(maxsize=4)
def _secrets_of(environ: frozenset[tuple[str, str]]) -> frozenset[str]:
    return redact.secrets_of(dict(environ))


# the number before the words of an error of the system:  [Errno 28] No space left on device
_NUMBER = re.compile(r"\[Errno -?\d+\] ")


class XlatuneError(Exception):
    """Base of all errors of this package; `exit` is the status of a run that it ends.

    Its text goes through `shown`, because messages quote arguments, values, files and programs.
    """

    exit: ClassVar[Exit] = Exit.INTERNAL

    def __init__(self, text: str = "") -> None:
        super().__init__(shown(_NUMBER.sub("", text)))


class NotMeasured(XlatuneError):  # noqa: N818 - it is not an error of the harness
    """What was asked could not be measured; the message says why."""

    exit = Exit.NOT_MEASURED


_MANY = 8  # a message with a near name lists at most this many other names


class ConfigError(XlatuneError):
    """The user's input is wrong. The message says what was found, where, and what was expected."""

    exit = Exit.USAGE

    @classmethod
    def unknown(cls, kind: str, name: str, *, valid: Iterable[str], where: str) -> ConfigError:
        """Return the error for an unknown name, with the nearest valid one.

        If there is a near name, a long list of all names is left out.

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


class ParseError(XlatuneError):
    """A dump or a trace is truncated, of another format or hostile; the message says which."""

    exit = Exit.USAGE


class SubmissionError(XlatuneError):
    """An executor refused a trial or could not be reached."""

    exit = Exit.NOT_MEASURED


class LedgerError(XlatuneError):
    """The ledger cannot be read, locked or written, or it has another schema."""


class UnreadableLedgerError(LedgerError):
    """The ledger's lines are damaged, or are not a ledger, so that a retry does not help."""

    ADVICE = "start over with --xlatune-fresh, which moves the file aside and deletes nothing"
