"""Formats of logs that other distributions bring: an entry point of `pytest_xlatune.log_formats`.

It names a subclass of `LogFormat`. Every log is read by all of them, beside what this package
reads: lines of steps that another trainer prints, and blocks of lines that tell of a failure, which
a reader of theirs reads whole. A log without a word of theirs costs the search for those words.
Pure: what they read is handed to them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from pytest_xlatune.entry_points import LOG_FORMATS as BROUGHT
from pytest_xlatune.logs._signatures import EVIDENCE_CHARS
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.failure import Action, FailureClass, Finding
from pytest_xlatune.model.metric import StepRecord
from pytest_xlatune.model.text import begun

LEAST_LETTERS = 3  # of a word, by which the lines worth reading are found
_LETTERS = re.compile("[f-z_]")
_MOST_PLACES = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFinding:
    """What a block tells."""

    cls: FailureClass
    line: int  # the number of its first line, which the finding shows
    detail: str = ""  # the figure or name that it holds
    action: Action | None = None  # None is what its class asks for, or to be tried again


class BlockReader:
    """Reads the blocks of one log that may hold a part of what its format knows."""

    def feed(self, block: bytes, before: int) -> None:
        """Read whole lines; so many lines of the log stand before them.

        It is given all lines from the block on that has the first line with one of `words`.
        """

    def close(self) -> None:
        """End an open block. Idempotent."""

    def told(self) -> Sequence[BlockFinding]:
        """Return what all blocks tell so far."""
        return ()


class LogFormat:
    """A format; a subclass is made without arguments, once, and keeps nothing of a log.

    A method that a subclass leaves out reads nothing.

    Attributes:
        words: in lower case, each with three letters of f to z or _; a line without any of them is
            not looked at.
        openings: those of `words` that stand in the first line of a block.
        heads: with them a line begins that says that the program hangs.
    """

    words: ClassVar[tuple[str, ...]] = ()
    openings: ClassVar[tuple[str, ...]] = ()
    heads: ClassVar[tuple[str, ...]] = ()

    def steps(self, text: str, rank: str) -> Sequence[StepRecord]:
        """Return the steps of a line with one of `words`, as the process `rank` printed them."""
        del text, rank
        return ()

    def reader(self) -> BlockReader:
        """Return a reader for the blocks of one log; asked for once a line had one of `words`."""
        return BlockReader()


@dataclass(frozen=True, slots=True)
class LinePlace:
    """Where a line stands: the start of the program, its steps so far, and the line itself."""

    start: int
    steps: int
    text: str


@dataclass(slots=True)
class Blocks:
    """What one format tells of one log."""

    format: LogFormat
    _reader: BlockReader | None = None
    _places: dict[int, LinePlace] = field(default_factory=dict)

    def note(self, number: int, place: LinePlace) -> None:
        """Remember a line with one of its words, before its block is handed over."""
        self._reader, low = self._reader or self.format.reader(), place.text.lower()
        if len(self._places) < _MOST_PLACES and any(word in low for word in self.format.openings):
            kept = LinePlace(place.start, place.steps, begun(place.text, EVIDENCE_CHARS))
            self._places.setdefault(number, kept)

    def feed(self, block: bytes, before: int) -> None:
        """Read a block of the log, behind as many lines, once one may hold a part of something."""
        if self._reader is not None:
            self._reader.feed(block, before)

    def close(self) -> None:
        """End an open block. Idempotent."""
        if self._reader is not None:
            self._reader.close()

    def findings(self) -> Iterator[tuple[LinePlace, Finding]]:
        """Yield the findings so far, each with where it begins."""
        for finding in self._reader.told() if self._reader is not None else ():
            place = self._places.get(finding.line)
            if place is not None:
                yield (
                    place,
                    Finding(
                        cls=finding.cls,
                        action=finding.action or finding.cls.action or Action.RETRY,
                        line=finding.line,
                        text=place.text.strip(),
                        detail=begun(finding.detail, EVIDENCE_CHARS),
                    ),
                )


def formats() -> tuple[LogFormat, ...]:
    """Return the formats of other distributions, by name.

    Raises:
        ConfigError: one of them cannot be loaded.
    """
    return _formats(tuple(BROUGHT.names().items()))


@functools.lru_cache(maxsize=16)
def _formats(named: tuple[tuple[str, str], ...]) -> tuple[LogFormat, ...]:
    formats = []
    for name, _ in named:
        made = BROUGHT.load(name, where="the formats of logs")()
        if not isinstance(made, LogFormat):
            raise ConfigError(
                f"log format {name!r} of {BROUGHT.source(name)} is {type(made).__name__}, expected "
                "a pytest_xlatune.logs.formats.LogFormat"
            )
        unfit = [word for word in made.words if len(_LETTERS.findall(word)) < LEAST_LETTERS]
        if unfit or {*made.openings} - {*made.words}:
            raise ConfigError(
                f"log format {name!r} of {BROUGHT.source(name)}: found words {made.words} and "
                f"openings {made.openings}. Lines are first searched for these words, so each "
                f"must be in lower case and have {LEAST_LETTERS} letters of f to z (or _)"
            )
        formats.append(made)
    return tuple(formats)
