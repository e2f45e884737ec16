"""Find the hang digests of libtpu's Megascale runtime in a log: text in, causes and tables out.

    reader = MegascaleReader()
    for chunk in chunks:
        reader.feed(chunk)
    reader.close()
    reader.report()

A digest is several records of a log. One record, the table of states, has several lines, and only
the first has the prefix of the logger; documents and shippers lose the indentation. So each line is
known by its key and its form, never by its column. Four layouts are known, named after the first
libtpu in which each was seen: 0.0.11, 0.0.24, 0.0.40, 0.0.52.

A line counts if it begins with the words of a digest, after the prefixes of a launcher. A quotation
counts for nothing: a digest needs two of its own lines, or one line that its own logger printed, or
the sentence that no cause is known. Names of hosts come only from the text, and a text in angle
brackets is the example of a document. Memory is bounded: the bytes between digests are searched for
a few words, and dropped. The causes, with advice, are data: `megascale.toml`. Pure.
"""

from __future__ import annotations

import dataclasses
import re

from pytest_xlatune.guests.megascale._builder import HEAD, KEY, DigestBuilder
from pytest_xlatune.guests.megascale._lines import TextLine, payloads, unwrapped
from pytest_xlatune.guests.megascale.digest import (
    Digest,
    MegascaleReport,
    SeenLine,
    Trigger,
    cause_of_prose,
    known_lines,
)

_LINE_BYTES = 1 << 20  # the state of a large cluster is a long line; libtpu lists eleven cores
_MOST_DIGESTS, _MOST_ORIGINS, _MOST_SIGHTINGS = 1000, 64, 64
# a document breaks the first sentence into at most so many lines and characters
_HEAD_LINES, _HEAD_CHARS = 4, 400
_HEAD_WAITS = 200  # other lines before the next line of that sentence

# the trigger: Megascale hang detected: Timed out waiting for 4 graphs to complete at launch_id
# 13650.
_TRIGGER = re.compile(
    r"(?:Megascale hang detected: )?Timed out waiting for (?P<graphs>\d{1,9}) graphs to complete"
    r"(?: at launch_id (?P<launch>-?\d{1,18})|:)"
    r"(?:.*?Already completed: (?P<completed>\d{1,18}))?"
    r"(?:.*?StepGloballyInProgress: (?P<step>true|false))?"
    r"(?:.*?Timeout: (?P<timeout>[\w.]+))?"
)
# each line that begins something has one of them; longer words are found faster
_OPENERS = (
    *(b"Megascale detects a hang", b"Some workers have halted with an"),
    *(b"Potential cause: ", b" graphs to complete"),
    *(line.text.encode() for line in known_lines()),
)
_OPENER = re.compile(b"|".join(re.escape(opener) for opener in _OPENERS))


class MegascaleReader:
    """Finds the digests in one log: feed it bytes as they come, and ask for the report at any time.

    `lines` is the number of lines read; the caller adds those that it left out.
    """

    def __init__(self) -> None:
        self._held = b""
        self.lines = 0
        self._digests: list[Digest] = []
        self._open: dict[str, DigestBuilder] = {}
        # origin -> the first lines of a sentence that does not tell a cause yet
        self._heads: dict[str, list[TextLine]] = {}
        self._trigger: Trigger | None = None
        self._sightings: dict[tuple[str, str], SeenLine] = {}

    def feed(self, chunk: bytes) -> None:
        """Read more bytes of the log; an unfinished last line waits for its end."""
        block = self._held + chunk if self._held else chunk
        end = block.rfind(b"\n") + 1
        if not end:
            self._held = block[:_LINE_BYTES]
            return
        self._held = block[end : end + _LINE_BYTES]
        at = 0
        while at < end:
            if self._open or self._heads:
                stop = block.find(b"\n", at, end) + 1
                self._line(block[at : stop - 1])
                at = stop
                continue
            place = _first(block, at, end)
            if place < 0:
                self.lines += block.count(b"\n", at, end)
                break
            start = block.rfind(b"\n", at, place) + 1 or at
            self.lines += block.count(b"\n", at, start)
            stop = block.find(b"\n", place, end) + 1
            self._line(block[start : stop - 1])
            at = stop

    def close(self) -> None:
        """Read a last line without a line end, and close open digests; may be called again."""
        if self._held:
            if self._open or self._heads or _OPENER.search(self._held):
                # a complete JSON object was not cut
                self._line(self._held, is_torn=not self._held.rstrip().endswith(b"}"))
            self._held = b""
        for origin in list(self._open):
            self._end(origin, at_the_end=True)

    def report(self) -> MegascaleReport:
        """Return the report so far, with the part of an open digest that was read."""
        still = [
            made for builder in self._open.values() if (made := self._made(builder, is_last=True))
        ]
        digests = sorted((*self._digests, *still), key=lambda digest: digest.line)
        return MegascaleReport(
            digests=tuple(digests),
            trigger=self._trigger,
            sightings=tuple(self._sightings.values()),
        )

    def _line(self, raw: bytes, *, is_torn: bool = False) -> None:
        self.lines += 1
        for text in payloads(raw[:_LINE_BYTES]):
            line = unwrapped(text, self.lines, self._open)
            self._examine(line, is_torn=is_torn)

    def _joined(self, line: TextLine) -> TextLine:
        """Return a line, joined to those before it if together they begin a digest."""
        body = line.text.strip()
        # while a line is kept, every line is checked
        for origin, kept in list(self._heads.items()):
            if line.number - kept[-1].number > _HEAD_WAITS:
                del self._heads[origin]
        lines = [*self._heads.pop(line.origin, ()), line]
        is_head = HEAD.match(body) is not None and cause_of_prose(body) is None
        if is_head:
            lines = [line]
        elif len(lines) == 1 or line.is_prefixed:
            return line
        text = " ".join(part.text.strip() for part in lines)
        if cause_of_prose(text) is not None:
            first: TextLine = dataclasses.replace(lines[0], text=text)
            return first
        if (
            len(lines) < _HEAD_LINES
            and len(text) < _HEAD_CHARS
            and len(self._heads) < _MOST_ORIGINS
        ):
            self._heads[line.origin] = lines
        return line

    def _examine(self, line: TextLine, *, is_torn: bool) -> None:
        line = self._joined(line)
        body = line.text.strip()
        builder = self._open.get(line.origin)
        opens = HEAD.match(body) is not None and cause_of_prose(body) is not None
        key = KEY.match(body)
        if not opens and key and key["key"] in ("Full error digest", "Potential cause"):
            opens = builder is None or builder.has(key["key"])
        if builder is not None and opens and not builder.takes(line, body):
            self._end(line.origin)
            builder = None
        if builder is None and opens and len(self._open) < _MOST_ORIGINS:
            builder = self._open[line.origin] = DigestBuilder(line)
        if builder is not None:
            builder.read(line, body, is_torn=is_torn)
            if builder.is_over:
                self._end(line.origin)
        for other in [name for name, _ in self._open.items() if name != line.origin]:
            self._open[other].stray += 1
            if self._open[other].is_over:
                self._end(other)
        if builder is None or not builder.is_mine:
            self._note(line, body)

    def _note(self, line: TextLine, body: str) -> None:
        if self._trigger is None and (match := _TRIGGER.match(body)):
            self._trigger = Trigger(
                line=line.number,
                graphs=int(match["graphs"]),
                launch_id=None if match["launch"] is None else int(match["launch"]),
                completed=None if match["completed"] is None else int(match["completed"]),
                step_globally_in_progress=None
                if match["step"] is None
                else match["step"] == "true",
                timeout=match["timeout"],
            )
        for known in known_lines():
            if body.startswith(known.text):
                key = (known.kind, body[:200])
                seen = self._sightings.get(key)
                if seen is not None:
                    self._sightings[key] = dataclasses.replace(seen, count=seen.count + 1)
                elif len(self._sightings) < _MOST_SIGHTINGS:
                    self._sightings[key] = SeenLine(known=known, line=line.number, text=body[:500])

    def _end(self, origin: str, *, at_the_end: bool = False) -> None:
        made = self._made(self._open.pop(origin), is_last=at_the_end)
        if made is not None and len(self._digests) < _MOST_DIGESTS:
            self._digests.append(made)

    def _made(self, builder: DigestBuilder, *, is_last: bool) -> Digest | None:
        made = builder.digest(at_the_end=is_last)
        trigger = self._trigger
        is_after = made is not None and trigger is not None and trigger.line < made.line
        return dataclasses.replace(made, is_after_trigger=True) if made and is_after else made


def _first(block: bytes, at: int, end: int) -> int:
    """Return the position of the first word that a line of a digest has; -1 if there is none."""
    places = []
    for word in _OPENERS:
        place = block.find(word, at, end)
        if place >= 0:
            places.append(place)
            end = place + len(word)  # only an earlier word matters
    return min(places, default=-1)
