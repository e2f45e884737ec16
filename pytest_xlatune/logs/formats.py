"""Log formats of other distributions: an entry point of `pytest_xlatune.log_formats`.

It names a subclass of `LogFormat`. Each format looks in every log, beside our own reading, for step
lines of another trainer, and for blocks of lines about a failure. The reader of such blocks gets
whole lines. A log without a format's words only costs the search for them. Pure: the caller passes
the bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from pytest_xlatune.entry_points import EntryPointGroup
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.failure import Action, FailureClass
from pytest_xlatune.model.metric import StepRecord

LOG_FORMATS = EntryPointGroup("pytest_xlatune.log_formats", kind="log format")
LEAST_LETTERS = 3  # a word needs so many of f to z and _, because the first search sees no others
_LETTERS = re.compile("[f-z_]")


class BlockFinding(msgspec.Struct, frozen=True, kw_only=True):
    """The finding of a block."""

    cls: FailureClass
    line: int  # number of the block's first line in the log, from 1
    detail: str = ""  # a figure or name in it; "" if none
    action: Action | None = None  # None takes the action of its class, or a retry


class BlockReader:
    """Finds the blocks about failures in one log, for one format."""

    def feed(self, block: bytes, before: int) -> None:
        """Read complete lines; `before` is the number of lines before them.

        The lines of the first call include the first line with one of `words`.
        """

    def close(self) -> None:
        """End an open block. Idempotent."""

    def findings(self) -> Sequence[BlockFinding]:
        """Return the findings of all blocks so far."""
        return ()


class LogFormat:
    """A log format. A subclass is instantiated without arguments, and stores nothing of a log.

    Methods that a subclass does not define read nothing.

    Attributes:
        words: words in lower case, each with three letters of f to z or _; lines without any of
            them are not examined.
    """

    words: ClassVar[tuple[str, ...]] = ()

    def steps(self, text: str, rank: str) -> Sequence[StepRecord]:
        """Return the steps in a line with one of `words`, printed by the process `rank`."""
        del text, rank
        return ()

    def reader(self) -> BlockReader:
        """Return a reader for the blocks of one log; called once a line has one of `words`."""
        return BlockReader()


def formats() -> tuple[LogFormat, ...]:
    """Return the formats of other distributions, by name.

    Raises:
        ConfigError: one of them cannot be loaded.
    """
    formats = []
    for name in LOG_FORMATS.names():
        made = LOG_FORMATS.load_as(name, LogFormat, where="the formats of logs")
        unfit = [word for word in made.words if len(_LETTERS.findall(word)) < LEAST_LETTERS]
        if unfit:
            raise ConfigError(
                f"log format {name!r} of {LOG_FORMATS.source(name)}: found words {made.words}. "
                "Lines are first searched for these words, so each must be in lower case and have "
                f"{LEAST_LETTERS} letters of f to z (or _)"
            )
        formats.append(made)
    return tuple(formats)
