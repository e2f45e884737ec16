"""What can go wrong in the harness and with its user's input.

Trouble of the *workload* (OOM, NaN, a hang, a dead node) is never an exception: it is an `Outcome`
with findings. This module knows nothing of pytest, of Slurm or of files.

    XlatuneError          never raised itself
    |-- ConfigError       the user's file, option or sweep is wrong
    |   `-- CheckoutError a commit cannot be checked out
    |-- ParseError        a dump or a trace cannot be read
    |-- SubmissionError   a trial could not be handed to an executor
    `-- LedgerError       the ledger cannot be read or written

Each carries exactly one string, so that it survives the pickling between xdist's processes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from pytest_xlatune.model.exits import Exit


class XlatuneError(Exception):
    """Base of every error of this package; `exit` is the status of a run that it ends."""

    exit: ClassVar[Exit] = Exit.INTERNAL


_MANY = 8  # names in a message


class ConfigError(XlatuneError):
    """The user's input is wrong. The message says what was found, where, what was expected."""

    exit = Exit.USAGE

    @classmethod
    def unknown(cls, kind: str, found: str, *, valid: Iterable[str], where: str) -> ConfigError:
        """Build the message for a name that does not exist, with the nearest one that does.

        A long list of all names is left out where one of them is near.

        >>> str(ConfigError.unknown("profile", "overlap2", valid=["overlap-2"], where="-k"))
        "unknown profile 'overlap2' in -k; did you mean 'overlap-2'? Known: overlap-2"
        """
        import difflib

        names = sorted(valid)
        near = difflib.get_close_matches(found, names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        if near and len(names) > _MANY:
            return cls(f"unknown {kind} {found!r} in {where}{hint}")
        known = ", ".join(names) if names else "none"
        return cls(f"unknown {kind} {found!r} in {where}{hint} Known: {known}")


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
