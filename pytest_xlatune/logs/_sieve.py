"""Find the lines of a log that are worth reading, so that a gigabyte takes seconds.

A log has few shapes of lines, each repeated many times with other numbers. `LineFilter` and
`StepShapes` judge each shape once. They remember it in a limited cache, which changes no result.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from pytest_xlatune.logs import grammar
from pytest_xlatune.logs.grammar import FIGURES, Layout

_LOWER = bytes(range(256)).lower()
# letters of a shape: without a to e, which occur in hexadecimal numbers; f marks a fatal line
_KEPT = frozenset(b"fghijklmnopqrstuvwxyz_FGHIJKLMNOPQRSTUVWXYZ")
_DELETED = bytes(byte for byte in range(256) if byte not in _KEPT)
_DELETED_IN_BLOCKS = bytes(byte for byte in _DELETED if byte != ord("\n"))
_CACHED_SHAPES = 1 << 14
_CACHED_LETTERS = 1 << 9  # longer shapes are not cached, so that the cache has at most 8 MiB
# lines that their logger calls fatal are always kept:
#   F0112 07:08:09.2 77 a.cc:14]     09.2: F external/x     [F429 14:03:49.3 a.cpp:1554]
_FATAL_LINE = re.compile(rb"F[0-9]{3,4} [0-9][0-9]:|: F ")

# a table that replaces every digit by 0
_DIGITS = bytes(range(256)).translate(bytes.maketrans(b"123456789", b"000000000"))
# most cached layouts, and most bytes of a line that has one; at most 4 MiB together
_MOST_LAYOUTS, _MOST_LAYOUT = 1 << 12, 1 << 10
STEP_WORD = b"completed "  # in each of MaxText's step lines
_INTEGERS, _FLOATS = msgspec.json.Decoder(list[int]), msgspec.json.Decoder(list[float])


class LineFilter:
    """Finds the lines of a block that may contain one of some words, ignoring case.

    The shape of a line consists of its letters f to z and _ in lower case. So counters, times and
    hexadecimal addresses vanish (except for an f), and one `bytes.translate` makes the shapes of a
    whole block. A shape that lacks the letters of every word is dull. Dull shapes are remembered,
    so that each is judged once. The filter may keep other lines too, but drops none with a word.

    A line with a new shape is also kept if its logger calls it fatal. The F before such a line is
    part of its shape, so a line of another severity never has the same shape.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self._words = _pattern(frozenset(words))
        self._dull: set[bytes] = set()

    def may_hold(self, line: bytes) -> bool:
        """Return whether a line may contain one of the words; never False if it does."""
        shape = line.translate(_LOWER, _DELETED)
        return bool(self._words.search(shape) or _FATAL_LINE.search(line))

    def lines(self, block: bytes) -> tuple[int, list[tuple[int, bytes]]]:
        """Return the number of lines in a block of complete lines, and the lines worth reading.

        Each of these comes with its index in the block, from 0.
        """
        shapes = block.translate(_LOWER, _DELETED_IN_BLOCKS).split(b"\n")
        if self._dull.issuperset(shapes):
            return len(shapes) - 1, []
        fresh = {*shapes} - self._dull
        texts = block.split(b"\n")
        live = {shape for shape in fresh if self._words.search(shape)}
        if len(live) < len(fresh) and _FATAL_LINE.search(block):
            pairs = zip(shapes, texts, strict=True)
            live |= {shape for shape, text in pairs if _FATAL_LINE.search(text)} & fresh
        if len(self._dull) > _CACHED_SHAPES:
            self._dull.clear()
        self._dull.update(shape for shape in fresh - live if len(shape) <= _CACHED_LETTERS)
        return len(shapes) - 1, [
            (at, texts[at]) for at, shape in enumerate(shapes) if shape in live
        ]


@functools.lru_cache(maxsize=16)
def _pattern(words: frozenset[str]) -> re.Pattern[bytes]:
    """Return a pattern that finds one of the words in a shape; it is cached for other logs."""
    return re.compile(_any_of({word.encode().translate(_LOWER, _DELETED) for word in words}))


def _any_of(words: Collection[bytes], *, letters: int = 2) -> bytes:
    """Return a pattern that branches at the first letters, because `re` is slow with alternatives.

    To branch at all letters is not faster, and takes four times as long to compile.
    """
    if b"" in words:
        return b""
    if not letters:
        return b"(?:" + b"|".join(sorted(words)) + b")"
    branches = (
        head + _any_of({word[1:] for word in words if word[:1] == head}, letters=letters - 1)
        for head in sorted({word[:1] for word in words})
    )
    return b"(?:" + b"|".join(branches) + b")"


class StepShapes:
    """Finds step lines that have the shape of an earlier one: the same text with other digits.

    The grammar treats all digits alike. So the shape alone says where the rank, the step and the
    figures stand in a line. A line with one of `other_words`, in lower case, may be another
    format's: it has to be read in full.
    """

    def __init__(self, other_words: Collection[str] = ()) -> None:
        self._other_words = [word.encode() for word in other_words]
        self._layouts: dict[bytes, Layout | None] = {}

    def runs(self, block: bytes) -> Iterator[tuple[StepRun | None, bytes]]:
        """Cut a block of complete lines into runs of step lines of one layout, and other text.

        Each part comes with its text; the run is None for other text.
        """
        at = yielded_to = 0
        shapes = block.translate(_DIGITS) if STEP_WORD in block else b""
        while (word_at := shapes.find(STEP_WORD, at)) >= 0:
            begin = max(shapes.rfind(b"\n", at, word_at) + 1, at)
            at = shapes.index(b"\n", word_at) + 1
            shape = shapes[begin:at]
            layout = self._layout(shape, block[begin : at - 1])
            if layout is None:
                continue
            at = _end_of_repeats(shapes, shape, at)
            if begin > yielded_to:
                yield None, block[yielded_to:begin]
            yielded_to = at
            yield StepRun(layout, len(shape), block[begin:at]), block[begin:at]
        if yielded_to < len(block):
            yield None, block[yielded_to:]

    def _layout(self, shape: bytes, line: bytes) -> Layout | None:
        """Return the positions of the numbers; None if the line must be read in full."""
        if len(shape) > _MOST_LAYOUT:
            return None
        if shape not in self._layouts:
            if len(self._layouts) >= _MOST_LAYOUTS:
                self._layouts.clear()
            is_other = any(word in line.lower() for word in self._other_words)
            self._layouts[shape] = None if is_other else grammar.step_layout(line)
        return self._layouts[shape]


class StepRun:
    """Step lines, one after the other, that differ only in digits.

    A column of their numbers is decoded when it is asked for, which is never for most figures of a
    long log.
    """

    def __init__(self, layout: Layout, size: int, lines: bytes) -> None:
        self._layout, self._size, self._lines = layout, size, lines
        self.steps: Sequence[int] = self._column("step", _INTEGERS)  # the id in each line
        # the rank in each line; None if the lines name none
        self.ranks: Sequence[int | None] = [None] * len(self.steps)
        if "rank" in layout:
            self.ranks = self._column("rank", _INTEGERS)
        self.figures = sum(name in layout for name in FIGURES)  # how many figures a line has
        self.label, self.start = "", 0  # of the records; set when the run is added to a start

    def chosen(self, rows: Sequence[int]) -> StepRun:
        """Return the run of the lines with these indices."""
        if len(rows) == len(self.steps):
            return self
        begins = [row * self._size for row in rows]
        lines = b"".join([self._lines[begin : begin + self._size] for begin in begins])
        return StepRun(self._layout, self._size, lines)

    def figure(self, name: str) -> Sequence[float | None]:
        """Return a figure of each line; None if the lines do not have it."""
        return self._column(name, _FLOATS) if name in self._layout else [None] * len(self.steps)

    def columns(self) -> list[Sequence[Any]]:
        """Return the columns of the lines' records."""
        same_for_all = ([value] * len(self.steps) for value in (self.label, self.start, "step"))
        return [self.steps, *map(self.figure, FIGURES), *same_for_all]

    def _column(self, name: str, decoder: msgspec.json.Decoder[list[Any]]) -> list[Any]:
        """Return a number of each line.

        A JSON decoder is three times as fast as `float`, but it refuses `007`.
        """
        place = self._layout[name]
        width = place.stop - place.start + 1
        texts = bytearray(b",") * (len(self._lines) // self._size * width)
        for at in range(width - 1):
            texts[at::width] = self._lines[place.start + at :: self._size]
        try:
            return decoder.decode(b"[%b]" % texts[:-1])
        except msgspec.DecodeError:
            return [*map(float if decoder is _FLOATS else int, texts[:-1].split(b","))]


def _end_of_repeats(text: bytes, part: bytes, at: int) -> int:
    """Return the end of the repetitions of `part` that begin at `at`.

    Doubling and halving the number of repetitions is faster than comparing each.
    """
    count = 1
    while text.startswith(part * count, at):
        at += len(part) * count
        count *= 2
    while count := count // 2:
        if text.startswith(part * count, at):
            at += len(part) * count
    return at
