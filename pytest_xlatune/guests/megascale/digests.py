"""Find the hang digests of libtpu's Megascale runtime in a log.

    reader = MegascaleReader()
    for chunk in chunks:
        reader.feed(chunk)
    reader.close()
    reader.report()

A digest is several records of a log. One record, the table of states, has several lines, of which
only the first has the prefix of the logger. The indentation of the others is lost in some documents
and in some systems that collect logs. So a line is recognised by its key and its form, never by its
column.

A line can begin a digest if it begins with the words of a digest, after the prefixes of a launcher.
A text that only quotes a digest must not count. So a digest needs two lines that only digests have,
or one line that Megascale's logger printed, or the sentence that no cause is known. A name in angle
brackets, `<host_name_1>`, marks the example of a document. Memory is bounded, because the bytes
between digests are only searched for a few words.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from pytest_xlatune.guests.megascale._builder import (
    KEY,
    DigestBuilder,
    TextLine,
    texts_of_line,
    without_prefix,
)
from pytest_xlatune.guests.megascale.digest import (
    Digest,
    MegascaleReport,
    Trigger,
    cause_of_prose,
)

_LINE_BYTES = 1 << 20  # the most bytes that are read of a line
_MOST_ORIGINS = 64  # the most open digests

# the trigger: Megascale hang detected: Timed out waiting for 4 graphs to complete at launch_id
# 13650.
_TRIGGER = re.compile(
    r"(?:Megascale hang detected: )?Timed out waiting for \d+ graphs to complete"
    r"(?: at launch_id (?P<launch>-?\d{1,18})|:)"
)
# Every line that begins a digest, or that is the trigger, has one of these words. They are long,
# because longer words are found faster.
_OPENING_TEXTS = (
    b"Megascale detects a hang",
    b"Some workers have halted with an",
    b"Potential cause: ",
    b" graphs to complete",
)


class MegascaleReader:
    """Finds the digests in one log, which is fed to it in parts; it can report at any time.

    Attributes:
        lines: the number of lines so far; a caller that leaves lines out adds their number.
    """

    def __init__(self) -> None:
        self._partial_line = b""  # the last line so far, which has no end yet
        self.lines = 0
        self._digests: list[Digest] = []
        # origin (the process that a prefix of the launcher names) -> its open digest
        self._open: dict[str, DigestBuilder] = {}
        self._trigger: Trigger | None = None

    def feed(self, chunk: bytes) -> None:
        """Read more bytes of the log; an unfinished last line waits for its end."""
        block = self._partial_line + chunk if self._partial_line else chunk
        end = block.rfind(b"\n") + 1
        if not end:
            self._partial_line = block[:_LINE_BYTES]
            return
        self._partial_line = block[end : end + _LINE_BYTES]
        at = 0
        while at < end:
            if self._open:
                stop = block.find(b"\n", at, end) + 1
                self._read_line(block[at : stop - 1])
                at = stop
                continue
            place = _find_opening_word(block, at, end)
            if place < 0:
                self.lines += block.count(b"\n", at, end)
                break
            start = max(block.rfind(b"\n", at, place) + 1, at)  # the start of the opener's line
            self.lines += block.count(b"\n", at, start)
            stop = block.find(b"\n", place, end) + 1
            self._read_line(block[start : stop - 1])
            at = stop

    def close(self) -> None:
        """Read a last line without a line end, and close open digests; may be called again."""
        if self._partial_line:
            self._read_line(self._partial_line)
            self._partial_line = b""
        for origin in list(self._open):
            self._close_digest(origin)

    def report(self) -> MegascaleReport:
        """Return the report so far, with the part of an open digest that was read."""
        unfinished = (self._digest_of(builder) for builder in self._open.values())
        digests = [*self._digests, *(digest for digest in unfinished if digest is not None)]
        digests.sort(key=lambda digest: digest.line)
        return MegascaleReport(digests=tuple(digests), trigger=self._trigger)

    def _read_line(self, raw: bytes) -> None:
        self.lines += 1
        for text in texts_of_line(raw[:_LINE_BYTES]):
            self._examine(without_prefix(text, self.lines, self._open))

    def _examine(self, line: TextLine) -> None:
        """Read a line as part of a digest, or as the trigger."""
        body = line.text.strip()
        builder = self._open.get(line.origin)
        opens = cause_of_prose(body) is not None
        key = KEY.match(body)
        if not opens and key and key["key"] in ("Full error digest", "Potential cause"):
            # these keys occur once in a digest, so a second one opens another digest
            opens = builder is None or builder.has_key(key["key"])
        if builder is not None and opens:
            self._close_digest(line.origin)
            builder = None
        if builder is None and opens and len(self._open) < _MOST_ORIGINS:
            builder = self._open[line.origin] = DigestBuilder(line)
        is_of_digest = builder is not None and builder.read(line, body)
        if not is_of_digest and self._trigger is None and (match := _TRIGGER.match(body)):
            launch_id = None if match["launch"] is None else int(match["launch"])
            self._trigger = Trigger(line=line.number, launch_id=launch_id)
        for origin, other in list(self._open.items()):
            other.stray += origin != line.origin
            if other.is_over:
                self._close_digest(origin)

    def _close_digest(self, origin: str) -> None:
        digest = self._digest_of(self._open.pop(origin))
        if digest is not None:
            self._digests.append(digest)

    def _digest_of(self, builder: DigestBuilder) -> Digest | None:
        digest, trigger = builder.digest(), self._trigger
        if digest is not None and trigger is not None and trigger.line < digest.line:
            return replace(digest, is_after_trigger=True)
        return digest


def _find_opening_word(block: bytes, at: int, end: int) -> int:
    """Return the position of the first of `_OPENING_TEXTS` in a part of a block; -1 if none."""
    places = []
    for word in _OPENING_TEXTS:
        place = block.find(word, at, end)
        if place >= 0:
            places.append(place)
            end = place + len(word)  # only an earlier word matters
    return min(places, default=-1)
