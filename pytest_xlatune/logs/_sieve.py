"""Why a gigabyte of log takes seconds: which lines are worth reading, and step lines seen before.

A log is a few shapes of line, repeated a million times with other numbers. Both classes judge each
shape once; what they remember is a cache of a pure function, and bounded.
"""

from __future__ import annotations

import functools
import itertools
import re
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from pytest_xlatune.logs import grammar
from pytest_xlatune.logs.grammar import Origin, StepLayout
from pytest_xlatune.model.metric import StepRecord

_LOWER = bytes(range(256)).lower()
_KEPT = frozenset(b"fghijklmnopqrstuvwxyz_FGHIJKLMNOPQRSTUVWXYZ")
_DELETED = bytes(byte for byte in range(256) if byte not in _KEPT)
_DELETED_IN_BLOCKS = bytes(byte for byte in _DELETED if byte != ord("\n"))
_CACHED_SHAPES = 1 << 14
_CACHED_LETTERS = 1 << 9  # of one shape: 8 MiB at most in all
# what a logger calls fatal, whatever it says:  F0112 07:08:09.2 77 a.cc:14]     09.2: F external/x
#   [F429 14:03:49.3 a.cpp:1554]
_LAST_WORD = re.compile(rb"F[0-9]{3,4} [0-9][0-9]:")
_OLD_LAST_WORD = b": F "

_DIGITS = bytes(range(256)).translate(bytes.maketrans(b"123456789", b"000000000"))
_MOST_LAYOUTS, _MOST_LAYOUT = 1 << 12, 1 << 10  # 4 MiB at most
_MOST_ORIGINS = 1 << 12
_STEP_WORD = b"completed "


class LineFilter:
    """Finds the lines of a block that may hold one of some words, case ignored.

    It is why a gigabyte takes seconds. A log is a few line shapes, repeated a million times with
    other numbers. The *letters* of a line are its f to z and _, in lower case, without
    everything else: digits, addresses (a-f!), counters and times vanish, and one
    `bytes.translate` does it for a whole block. Letters that hold the letters of no known word are
    dull. The sieve remembers them and judges each shape once; that memory is a cache of a pure
    function. It may let other lines through. A line of a shape that is new is also asked for what a
    logger calls fatal: an F in front is a letter of the shape, so no other severity hides it.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self._words = _pattern(frozenset(words))
        self._dull: set[bytes] = set()

    def may_hold(self, line: bytes) -> bool:
        """Whether a line may hold one of the words; never false when it does."""
        return bool(self._live({line.translate(_LOWER, _DELETED)})) or _is_fatal(line)

    def lines(self, block: bytes) -> tuple[int, list[tuple[int, bytes]]]:
        """Return the number of lines in a block of complete lines, and those worth reading.

        Each with its index in the block, from 0.
        """
        shapes = block.translate(_LOWER, _DELETED_IN_BLOCKS).split(b"\n")
        if self._dull.issuperset(shapes):
            return len(shapes) - 1, []
        fresh = set(shapes) - self._dull
        live = self._live(fresh)
        texts = block.split(b"\n")
        if len(live) < len(fresh) and _is_fatal(block):
            live |= {
                shape
                for shape, text in zip(shapes, texts, strict=True)
                if shape in fresh and _is_fatal(text)
            }
        if len(self._dull) > _CACHED_SHAPES:
            self._dull.clear()
        self._dull.update(shape for shape in fresh - live if len(shape) <= _CACHED_LETTERS)
        if not live:
            return len(shapes) - 1, []
        live_lines = [(at, texts[at]) for at, shape in enumerate(shapes) if shape in live]
        return len(shapes) - 1, live_lines

    def _live(self, shapes: set[bytes]) -> set[bytes]:
        """Return the shapes that hold a word."""
        return {shape for shape in shapes if self._words.search(shape)}


def _is_fatal(text: bytes) -> bool:
    """Whether a text may hold a line that its logger calls fatal."""
    return _OLD_LAST_WORD in text or _LAST_WORD.search(text) is not None


@functools.lru_cache(maxsize=16)
def _pattern(words: frozenset[str]) -> re.Pattern[bytes]:
    """Return what finds one of the words in letters; a thousand logs are read for the same ones."""
    return re.compile(_any_of({word.encode().translate(_LOWER, _DELETED) for word in words}))


def _any_of(words: Collection[bytes]) -> bytes:
    """Write a pattern that branches letter by letter: `re` tries alternatives one by one."""
    if b"" in words:
        return b""
    heads = sorted({word[:1] for word in words})
    branches = (head + _any_of({word[1:] for word in words if word[:1] == head}) for head in heads)
    return b"(?:" + b"|".join(branches) + b")"


class StepShapes:
    """Finds step lines whose shape was read before: the same text with other digits in it.

    No rule of the grammar tells one digit from another, so that the shape says where the rank, the
    step and its figures stand, whatever is in front of them.
    """

    def __init__(self) -> None:
        self._layouts: dict[bytes, StepLayout | None] = {}

    def runs(self, block: bytes) -> Iterator[tuple[StepRun | None, bytes]]:
        """Cut a block of whole lines into runs of step lines of one layout, and the rest."""
        at = done = 0
        shapes = block.translate(_DIGITS) if _STEP_WORD in block else b""
        while (word_at := shapes.find(_STEP_WORD, at)) >= 0:
            begin = max(shapes.rfind(b"\n", at, word_at) + 1, at)
            at = shapes.index(b"\n", word_at) + 1
            shape = shapes[begin:at]
            layout = self._layout(shape[:-1], block[begin : at - 1])
            if layout is None:
                continue
            at = _end_of_repeats(shapes, shape, at)
            if begin > done:
                yield None, block[done:begin]
            done = at
            lines = block[begin:at]
            yield StepRun(layout, len(shape), lines), lines
        if done < len(block):
            yield None, block[done:]

    def _layout(self, shape: bytes, line: bytes) -> StepLayout | None:
        """Return where the parts of a step line stand; None where it has to be read in full."""
        if len(shape) > _MOST_LAYOUT:
            return None
        if shape not in self._layouts:
            if len(self._layouts) >= _MOST_LAYOUTS:
                self._layouts.clear()
            self._layouts[shape] = grammar.step_layout(line)
        return self._layouts[shape]


def _end_of_repeats(text: bytes, part: bytes, at: int) -> int:
    """Return where the repeats of a part end that begin at a place; by halves, for it is faster."""
    count = 1
    while text.startswith(part * count, at):
        at += len(part) * count
        count *= 2
    while count := count // 2:
        if text.startswith(part * count, at):
            at += len(part) * count
    return at


_NUMBERS = msgspec.json.Decoder(list[float])


class StepRun:
    """Step lines one after the other that differ in digits alone."""

    def __init__(self, layout: StepLayout, size: int, lines: bytes) -> None:
        self.layout = layout
        self._size, self._lines = size, lines
        self.count = len(lines) // size

    @functools.cached_property
    def steps(self) -> list[int]:
        """The step of each line."""
        return [int(text) for text in self._texts(self.layout.step)]

    @functools.cached_property
    def writers(self) -> tuple[list[bytes], dict[bytes, Origin]]:
        """The text of each line that names who printed it, and whom each such text names."""
        rank, actor = self.layout.rank, self.layout.actor
        named = [place for place in (rank, actor) if place.start < place.stop]
        if not named:
            return [b""] * self.count, {b"": Origin()}
        at = min(place.start for place in named)
        texts = [*self._texts(slice(at, max(place.stop for place in named)))]
        return texts, {
            text: _origin(
                text[rank.start - at : rank.stop - at], text[actor.start - at : actor.stop - at]
            )
            for text in {*texts}
        }

    def chosen(self, which: Iterable[bool]) -> StepRun:
        """Return the run of the lines that are chosen."""
        lines, size = self._lines, self._size
        begins = itertools.compress(range(0, len(lines), size), which)
        kept = b"".join([lines[begin : begin + size] for begin in begins])
        return StepRun(self.layout, size, kept)

    def seconds(self) -> Sequence[float | None]:
        """Return the seconds of each line's step, None where it tells none."""
        place = self.layout.fields.get("step_s")
        return (None,) * self.count if place is None else self._numbers(place)[0]

    def columns(self, label: str, *, start: int) -> list[Sequence[Any]]:
        """Return the fields of the steps' records, each of all lines."""
        fields = sorted(self.layout.fields.items(), key=lambda field: field[1].start)
        numbers = self._numbers(*(place for _, place in fields))
        columns = {name: column for (name, _), column in zip(fields, numbers, strict=True)}
        alike = {"label": label, "start": start, "kind": self.layout.kind}
        return [
            self.steps if name == "step" else columns.get(name) or (alike.get(name),) * self.count
            for name in StepRecord._fields
        ]

    def _numbers(self, *places: slice) -> list[list[float]]:
        """Return the numbers at each of some places of all lines.

        JSON's reader makes them three times as fast as `float`; it refuses `007`.
        """
        texts = [*self._texts(*places)]
        try:
            numbers = _NUMBERS.decode(b"[%b]" % b",".join(texts))
        except msgspec.DecodeError:
            numbers = [*map(float, texts)]
        return [numbers[at :: len(places)] for at in range(len(places))]

    def _texts(self, *places: slice) -> Iterator[bytes]:
        """Yield the texts at some places of a line, which are in their order, line by line."""
        cut, at = "", 0
        for place in places:
            cut += f"{place.start - at}x{place.stop - place.start}s"
            at = place.stop
        rows = struct.iter_unpack(f"{cut}{self._size - at}x", self._lines)
        return itertools.chain.from_iterable(rows)


@functools.lru_cache(maxsize=_MOST_ORIGINS)
def _origin(rank: bytes, actor: bytes) -> Origin:
    return Origin(str(int(rank)) if rank else "", actor.decode())
