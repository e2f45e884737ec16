"""Find the hang digests of libtpu's Megascale runtime in a log.

    reader = MegascaleReader()
    for chunk in chunks:
        reader.feed(chunk)
    reader.close()
    reader.report()

A digest is several records of a log. One record, the table of states, has several lines, of which
only the first has the prefix of the logger. The indentation of the others is lost in some documents
and in some systems that collect logs. So a line is recognised by its key and its form, never by its
column. There are four layouts, named after the first libtpu that has them: 0.0.11, 0.0.24, 0.0.40,
0.0.52.

A line can begin a digest if it begins with the words of a digest, after the prefixes of a launcher.
A text that only quotes a digest must not count. So a digest needs two lines that only digests have,
or one line that Megascale's logger printed, or the sentence that no cause is known. A name in angle
brackets, `<host_name_1>`, marks the example of a document. Memory is bounded, because the bytes
between digests are only searched for a few words.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from pytest_xlatune.guests.megascale._builder import HEAD, KEY, DigestBuilder
from pytest_xlatune.guests.megascale._lines import TextLine, texts_of_line, without_prefix
from pytest_xlatune.guests.megascale.digest import (
    Digest,
    MegascaleReport,
    SeenLine,
    Trigger,
    cause_of_prose,
    known_lines,
)

_LINE_BYTES = 1 << 20  # the most bytes that are read of a line
_MOST_DIGESTS, _MOST_ORIGINS, _MOST_SIGHTINGS = 1000, 64, 64
# the most lines and characters of the first sentence, which a document may break into lines
_HEAD_LINES, _HEAD_CHARS = 4, 400
_HEAD_GAP_LINES = 200  # the most lines between two lines of that sentence

# the trigger: Megascale hang detected: Timed out waiting for 4 graphs to complete at launch_id
# 13650.
_TRIGGER = re.compile(
    r"(?:Megascale hang detected: )?Timed out waiting for (?P<graphs>\d{1,9}) graphs to complete"
    r"(?: at launch_id (?P<launch>-?\d{1,18})|:)"
    r"(?:.*?Already completed: (?P<completed>\d{1,18}))?"
    r"(?:.*?StepGloballyInProgress: (?P<step>true|false))?"
    r"(?:.*?Timeout: (?P<timeout>[\w.]+))?"
)
# Every line that begins a digest, or that is read by itself, has one of these words. They are long,
# because longer words are found faster.
_OPENING_TEXTS = (
    b"Megascale detects a hang",
    b"Some workers have halted with an",
    b"Potential cause: ",
    b" graphs to complete",
    *(line.text.encode() for line in known_lines()),
)
_OPENING = re.compile(b"|".join(re.escape(word) for word in _OPENING_TEXTS))


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
        # origin -> the first lines of a sentence that names no cause yet
        self._heads: dict[str, list[TextLine]] = {}
        self._trigger: Trigger | None = None
        self._sightings: dict[tuple[str, str], SeenLine] = {}

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
            if self._open or self._heads:
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
            if self._open or self._heads or _OPENING.search(self._partial_line):
                # a complete JSON object was not cut
                self._read_line(
                    self._partial_line, is_torn=not self._partial_line.rstrip().endswith(b"}")
                )
            self._partial_line = b""
        for origin in list(self._open):
            self._close_digest(origin, at_the_end=True)

    def report(self) -> MegascaleReport:
        """Return the report so far, with the part of an open digest that was read."""
        unfinished = (self._digest_of(builder, is_last=True) for builder in self._open.values())
        digests = [*self._digests, *(digest for digest in unfinished if digest is not None)]
        digests.sort(key=lambda digest: digest.line)
        return MegascaleReport(
            digests=tuple(digests),
            trigger=self._trigger,
            sightings=tuple(self._sightings.values()),
        )

    def _read_line(self, raw: bytes, *, is_torn: bool = False) -> None:
        self.lines += 1
        for text in texts_of_line(raw[:_LINE_BYTES]):
            line = without_prefix(text, self.lines, self._open)
            self._examine(line, is_torn=is_torn)

    def _join_head(self, line: TextLine) -> TextLine:
        """Return a line, joined to the lines before it if together they begin a digest."""
        body = line.text.strip()
        # lines of sentences that did not go on are forgotten
        for origin, head_lines in list(self._heads.items()):
            if line.number - head_lines[-1].number > _HEAD_GAP_LINES:
                del self._heads[origin]
        lines = [*self._heads.pop(line.origin, ()), line]
        is_head = HEAD.match(body) is not None and cause_of_prose(body) is None
        if is_head:
            lines = [line]
        elif len(lines) == 1 or line.is_prefixed:
            return line
        text = " ".join(part.text.strip() for part in lines)
        if cause_of_prose(text) is not None:
            first: TextLine = replace(lines[0], text=text)
            return first
        if (
            len(lines) < _HEAD_LINES
            and len(text) < _HEAD_CHARS
            and len(self._heads) < _MOST_ORIGINS
        ):
            self._heads[line.origin] = lines
        return line

    def _examine(self, line: TextLine, *, is_torn: bool) -> None:
        """Read a line as part of a digest, or as a line that is read by itself.

        `is_torn` says whether the log ends within the line.
        """
        line = self._join_head(line)
        body = line.text.strip()
        builder = self._open.get(line.origin)
        opens = HEAD.match(body) is not None and cause_of_prose(body) is not None
        key = KEY.match(body)
        if not opens and key and key["key"] in ("Full error digest", "Potential cause"):
            # these keys occur once in a digest, so a second one opens another digest
            opens = builder is None or builder.has_key(key["key"])
        if builder is not None and opens and not builder.includes(line):
            self._close_digest(line.origin)
            builder = None
        if builder is None and opens and len(self._open) < _MOST_ORIGINS:
            builder = self._open[line.origin] = DigestBuilder(line)
        if builder is not None:
            builder.read(line, body, is_torn=is_torn)
            if builder.is_over:
                self._close_digest(line.origin)
        for other in [origin for origin in self._open if origin != line.origin]:
            self._open[other].stray += 1
            if self._open[other].is_over:
                self._close_digest(other)
        if builder is None or not builder.took_line:
            self._note_line(line, body)

    def _note_line(self, line: TextLine, body: str) -> None:
        """Note the first trigger, and the known lines of `megascale.toml`."""
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
                    self._sightings[key] = replace(seen, count=seen.count + 1)
                elif len(self._sightings) < _MOST_SIGHTINGS:
                    self._sightings[key] = SeenLine(known=known, line=line.number, text=body[:500])

    def _close_digest(self, origin: str, *, at_the_end: bool = False) -> None:
        digest = self._digest_of(self._open.pop(origin), is_last=at_the_end)
        if digest is not None and len(self._digests) < _MOST_DIGESTS:
            self._digests.append(digest)

    def _digest_of(self, builder: DigestBuilder, *, is_last: bool) -> Digest | None:
        digest, trigger = builder.digest(at_the_end=is_last), self._trigger
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
