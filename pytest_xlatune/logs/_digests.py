"""The Megascale digests of a log that `LogReader` reads line by line, as findings of it.

`LogReader` notes the lines that may begin a digest, and hands over the blocks from there on; so a
log without such a line costs nothing more. What a digest is decides `megascale`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_xlatune.logs._signatures import EVIDENCE_CHARS, table
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.result import Action, Finding
from pytest_xlatune.model.text import begun

if TYPE_CHECKING:
    from pytest_xlatune.logs.megascale import MegascaleReader
    from pytest_xlatune.logs.megascale.digest import Digest

# one of them stands in each line that can begin a digest, or that a worker prints before one
_OPENING = (
    *("megascale detects a hang ", "halted with an unrecoverable error: "),
    *("potential cause: ", "full error digest:"),
)
WORDS = (*_OPENING, " graphs to complete")
HEADS = ("Megascale detects a hang ", "Some workers have halted with an unrecoverable error: ")
_MOST_PLACES = 4000
_OF_HOSTS = (FailureClass.TPU_CHIP, FailureClass.ICI_ERROR, FailureClass.NETWORK_LINK)


@dataclass(frozen=True, slots=True)
class LinePlace:
    """Where a line stands: the start of the program, its steps so far, and the line itself."""

    start: int
    steps: int
    text: str


@dataclass(slots=True)
class Digests:
    """The digests of one log."""

    _reader: MegascaleReader | None = None
    _places: dict[int, LinePlace] = field(default_factory=dict)
    _is_near: bool = False  # the block that comes next holds a line that may begin one

    @property
    def is_any(self) -> bool:
        """Whether the log holds a line that may begin one."""
        return bool(self._places)

    def note(self, number: int, place: LinePlace) -> None:
        """Remember a line with one of `WORDS`, before its block is handed over."""
        self._is_near = True
        low = place.text.lower()
        if len(self._places) < _MOST_PLACES and any(word in low for word in _OPENING):
            self._places.setdefault(number, replace(place, text=begun(place.text, EVIDENCE_CHARS)))

    def feed(self, block: bytes, before: int) -> None:
        """Read a block of the log, behind as many lines, if it may hold a part of a digest."""
        reader = self._reader
        if not self._is_near and (reader is None or not reader.is_open):
            return
        if reader is None:
            from pytest_xlatune.logs.megascale import MegascaleReader

            reader = self._reader = MegascaleReader()
        self._is_near = False
        reader.lines = before
        reader.feed(block)

    def close(self) -> None:
        """End a digest that is open. Idempotent."""
        if self._reader is not None:
            self._reader.close()

    def found(self) -> list[tuple[LinePlace, Digest]]:
        """Return the digests so far, each with where it begins."""
        if self._reader is None:
            return []
        found = self._reader.report().digests
        return [(self._places[each.line], each) for each in found if each.line in self._places]


def finding_of(digest: Digest, place: LinePlace, *, is_past: bool) -> Finding:
    """Return what a digest says as a finding; one of an earlier start asks for nothing.

    The detail names the hosts of the digest, and says where they are to be left out; without
    hosts it is what the digest's table tells.
    """
    cls = digest.cls
    asks = table().diagnosed[cls].action
    hosts = ", ".join(map(str, digest.culprits))
    # one host of several broken links is at fault, of two either may be
    is_link = cls is FailureClass.NETWORK_LINK and (len(digest.culprits) > 1 or not digest.links)
    if hosts and cls in _OF_HOSTS and not is_link:
        hosts = f"leave out {hosts}"
    detail = hosts or next(iter(digest.notes), "")
    if cls is FailureClass.CANCELLED:
        detail = "libtpu was told to end"
    return Finding(
        cls=cls,
        action=Action.NONE if is_past else asks,
        line=digest.line,
        text=place.text.strip(),
        detail=begun(detail, EVIDENCE_CHARS),
    )
