"""Find the lines of a log that are worth reading, so that a gigabyte takes seconds.

A log has few shapes of lines, each repeated many times with other numbers. `LineFilter` and
`StepShapes` judge each shape once. They remember it in a limited cache, which changes no result.
"""

from __future__ import annotations

import functools
import itertools
import re
import struct
from collections.abc import Collection, Iterable, Iterator

import msgspec

from pytest_xlatune.logs import grammar
from pytest_xlatune.logs.grammar import Layout

_LOWER = bytes(range(256)).lower()
# letters of a shape: without a to e, which occur in hexadecimal numbers; f marks a fatal line
_KEPT = frozenset(b"fghijklmnopqrstuvwxyz_FGHIJKLMNOPQRSTUVWXYZ")
_DELETED = bytes(byte for byte in range(256) if byte not in _KEPT)
_DELETED_IN_BLOCKS = bytes(byte for byte in _DELETED if byte != ord("\n"))
_CACHED_SHAPES = 1 << 14
_CACHED_LETTERS = 1 << 9  # longer shapes are not cached, so that the cache has at most 8 MiB
# lines that their logger calls fatal are always kept:
#   F0112 07:08:09.2 77 a.cc:14]     09.2: F external/x     [F429 14:03:49.3 a.cpp:1554]
_LAST_WORD = re.compile(rb"F[0-9]{3,4} [0-9][0-9]:|: F ")

# a table that replaces every digit by 0
_DIGITS = bytes(range(256)).translate(bytes.maketrans(b"123456789", b"000000000"))
# most cached layouts, and most bytes of their lines: 4 MiB
_MOST_LAYOUTS, _MOST_LAYOUT = 1 << 12, 1 << 10
_STEP_WORD = b"completed "
_NUMBERS = msgspec.json.Decoder(list[float])
# of a run of step lines that differ only in digits: "step", "rank" if the lines name one, and
# attributes of step records -> the number in each line
Columns = dict[str, list[float]]


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
        return bool(self._words.search(shape) or _LAST_WORD.search(line))

    def lines(self, block: bytes) -> tuple[int, list[tuple[int, bytes]]]:
        """Return the number of lines in a block of complete lines, and the lines worth reading.

        Each of these comes with its index in the block, from 0.
        """
        shapes = block.translate(_LOWER, _DELETED_IN_BLOCKS).split(b"\n")
        fresh = {*shapes} - self._dull
        if not fresh:
            return len(shapes) - 1, []
        texts = block.split(b"\n")
        live = {shape for shape in fresh if self._words.search(shape)}
        if len(live) < len(fresh) and _LAST_WORD.search(block):
            of_fatal = zip(shapes, texts, strict=True)
            live |= {shape for shape, text in of_fatal if _LAST_WORD.search(text)} & fresh
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

    def runs(self, block: bytes) -> Iterator[tuple[Columns | None, bytes]]:
        """Cut a block of complete lines into runs of step lines of one layout, and other text.

        Each part comes with its text; the columns are None for other text.
        """
        at = yielded_to = 0
        shapes = block.translate(_DIGITS) if _STEP_WORD in block else b""
        while (word_at := shapes.find(_STEP_WORD, at)) >= 0:
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
            yield _columns(layout, len(shape), block[begin:at]), block[begin:at]
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


def _columns(layout: Layout, size: int, lines: bytes) -> Columns:
    """Return the numbers in lines of one size.

    A JSON decoder is three times as fast as `float`, but it refuses `007`.
    """
    places = sorted(layout.items(), key=lambda field: field[1].start)
    cut, at = "", 0
    for _, place in places:
        cut += f"{place.start - at}x{place.stop - place.start}s"
        at = place.stop
    texts = [*itertools.chain.from_iterable(struct.iter_unpack(f"{cut}{size - at}x", lines))]
    try:
        numbers = _NUMBERS.decode(b"[%b]" % b",".join(texts))
    except msgspec.DecodeError:
        numbers = [*map(float, texts)]
    return {name: numbers[at :: len(places)] for at, (name, _) in enumerate(places)}


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
