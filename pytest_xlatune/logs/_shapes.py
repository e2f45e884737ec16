"""Why a gigabyte of log takes seconds: which lines are worth reading, and step lines seen before.

A log is a few shapes of line, repeated a million times with other numbers. Both parts remember
shapes and judge each once; what they remember is a cache of a pure function, and bounded.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from pytest_xlatune.logs import grammar
from pytest_xlatune.logs.grammar import Origin, StepLayout
from pytest_xlatune.model.result import StepRecord

_LOWER = bytes(range(256)).lower()
_KEPT = frozenset(b"fghijklmnopqrstuvwxyz_FGHIJKLMNOPQRSTUVWXYZ")
_DELETED = bytes(byte for byte in range(256) if byte not in _KEPT)
_DELETED_IN_BLOCKS = bytes(byte for byte in _DELETED if byte != ord("\n"))
_CACHED_SHAPES = 1 << 14
_CACHED_LETTERS = 1 << 9  # of one shape: 8 MiB at most in all

# what a logger calls fatal, whatever it says:  F0112 07:08:09.2 77 a.cc:14]     09.2: F external/x
_LAST_WORD = re.compile(rb"F[01][0-9]{3} [0-9][0-9]:|[0-9]: F ")

_DIGITS = bytes(range(256)).translate(bytes.maketrans(b"123456789", b"000000000"))
_MOST_LAYOUTS, _MOST_LAYOUT = 1 << 12, 1 << 10  # 4 MiB at most
_MOST_ORIGINS = 1 << 12
_STEP_WORD = b"completed "
_MOST_DIGITS = 15  # of an integer that is exact as a float
_LEAST_RUN = 4  # lines: fewer are read faster one by one


class StepLines:
    """Reads step lines whose shape was read before: the same text with other digits in it.

    No rule of the grammar tells one digit from another, so that the shape says where the rank, the
    step and its figures stand, whatever is in front of them.
    """

    def __init__(self) -> None:
        self._layouts: dict[bytes, StepLayout | None] = {}
        self._origins: dict[tuple[bytes, bytes], Origin] = {}
        self._labels: dict[Origin, str] = {}

    def layout(self, line: bytes) -> StepLayout | None:
        """Return where the parts of a step line stand; None where it has to be read in full."""
        return self._layout(line.translate(_DIGITS), line)

    def _layout(self, shape: bytes, line: bytes) -> StepLayout | None:
        if len(shape) > _MOST_LAYOUT:
            return None
        try:
            return self._layouts[shape]
        except KeyError:
            if len(self._layouts) >= _MOST_LAYOUTS:
                self._layouts.clear()
            found = self._layouts[shape] = grammar.step_layout(line)
            return found

    def runs(self, block: bytes) -> Iterator[tuple[StepRun | None, bytes]]:
        """Cut a block of whole lines into runs of step lines of one layout, and the rest."""
        at = done = 0
        shapes = block.translate(_DIGITS).split(b"\n")[:-1] if _STEP_WORD in block else []
        for shape, same in itertools.groupby(shapes):
            count = sum(1 for _ in same)
            end = at + count * (len(shape) + 1)
            if count >= _LEAST_RUN and _STEP_WORD in shape:
                layout = self._layout(shape, block[at : at + len(shape)])
                if layout is not None and (parts := _parts(layout, shape)) is not None:
                    if at > done:
                        yield None, block[done:at]
                    yield StepRun(layout, parts, block[at:end], count), block[at:end]
                    done = end
            at = end
        if done < len(block):
            yield None, block[done:]

    def origin(self, line: bytes, layout: StepLayout) -> Origin:
        """Return who printed the line; the same one for the same text."""
        return self.origin_of(line[layout.rank], line[layout.actor])

    def origin_of(self, *said: *tuple[bytes, bytes]) -> Origin:
        """Return the origin of the texts of a rank and an actor; the same one for the same."""
        try:
            return self._origins[said]
        except KeyError:
            if len(self._origins) >= _MOST_ORIGINS:
                self._origins.clear()
                self._labels.clear()
            rank, actor = (each.decode() for each in said)
            origin = self._origins[said] = Origin(str(int(rank)) if rank else "", actor)
            self._labels[origin] = origin.label
            return origin

    def label(self, origin: Origin) -> str:
        """Return how a step record names an origin."""
        return self._labels[origin]


def record(line: bytes, layout: StepLayout, label: str, *, start: int) -> StepRecord:
    """Return the step that a line of a known layout reports."""
    values = {name: float(line[where]) for name, where in layout.fields}
    step = int(line[layout.step])
    return StepRecord(step=step, label=label, start=start, kind=layout.kind, **values)


class _Parts(NamedTuple):
    """How lines of one shape are cut when their dots are taken out: the numbers are integers then.

    `per`: by what each of them is divided. Both are exact below 2^53, and so the quotient is the
    float nearest to the text, as `float` gives it in twice the time.
    """

    cut: struct.Struct
    per: dict[str, float]


class StepRun:
    """Step lines one after the other that differ in digits alone; read as columns."""

    def __init__(self, layout: StepLayout, parts: _Parts, lines: bytes, count: int) -> None:
        self.layout = layout
        self._lines, self._size, self._per = lines, len(lines) // count, parts.per
        rows = parts.cut.iter_unpack(lines.replace(b".", b""))
        self._columns = dict(zip(parts.per, zip(*rows, strict=True), strict=True))

    @property
    def writers(self) -> list[tuple[bytes, bytes]]:
        """The texts of rank and actor of each line; none where no line says them."""
        (rank, rank_end), (actor, actor_end) = (
            (each.start, each.stop) for each in (self.layout.rank, self.layout.actor)
        )
        if rank_end == actor_end == 0:
            return []
        lines = self._lines
        return [
            (lines[at + rank : at + rank_end], lines[at + actor : at + actor_end])
            for at in range(0, len(lines), self._size)
        ]

    def keep(self, chosen: Sequence[bool]) -> None:
        """Leave out the lines that are not chosen."""
        self._columns = {
            name: tuple(itertools.compress(column, chosen))
            for name, column in self._columns.items()
        }

    def steps(self) -> list[int]:
        """Return the step of each line."""
        return [*map(int, self._columns["step"])]

    def records(self, steps: Sequence[int], label: str, *, start: int) -> list[StepRecord]:
        """Return what `record` returns for each line."""
        told: dict[str, Iterable[Any]] = {
            name: map(operator.truediv, map(int, column), itertools.repeat(self._per[name]))
            for name, column in self._columns.items()
        }
        told["step"] = steps
        same = _SAME | {"label": label, "start": start, "kind": self.layout.kind}
        made = [*map(StepRecord.__new__, itertools.repeat(StepRecord, len(steps)))]
        for name, put in _PUT.items():
            # column by column, and not by `__init__`, which takes longer than all the rest
            deque(map(put, made, told.get(name) or itertools.repeat(same[name])), maxlen=0)
        return made


_SAME: dict[str, Any] = {each.name: each.default for each in fields(StepRecord)}
_PUT = {name: getattr(StepRecord, name).__set__ for name in _SAME}


@functools.lru_cache(maxsize=64)
def _parts(layout: StepLayout, shape: bytes) -> _Parts | None:
    """Return how lines of a shape are cut; None where a number has a sign or many digits."""
    at, said, per = 0, [], {}
    for name, where in sorted((("step", layout.step), *layout.fields), key=lambda e: e[1].start):
        digits, _, decimals = shape[where].partition(b".")
        if not digits.isdigit() or len(digits + decimals) > _MOST_DIGITS:
            return None
        begin = where.start - shape.count(b".", 0, where.start)
        said.append(f"{begin - at}x{len(digits + decimals)}s")
        at, per[name] = begin + len(digits + decimals), float(10 ** len(decimals))
    size = len(shape) - shape.count(b".") + 1
    return _Parts(struct.Struct("".join((*said, f"{size - at}x"))), per)


class Sieve:
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
        self._known = _pattern(frozenset(words))
        self._dull: set[bytes] = set()

    def may_hold(self, line: bytes) -> bool:
        """Whether a line may hold one of the words; never false when it does."""
        is_known = self._known.search(line.translate(_LOWER, _DELETED)) is not None
        return is_known or _LAST_WORD.search(line) is not None

    def lines(self, block: bytes) -> tuple[int, list[tuple[int, bytes]]]:
        """Return the number of lines in a block of complete lines, and those worth reading.

        Each with its index in the block, from 0.
        """
        shapes = block.translate(_LOWER, _DELETED_IN_BLOCKS).split(b"\n")
        fresh = set(shapes) - self._dull
        live = {shape for shape in fresh if self._known.search(shape)}
        texts = block.split(b"\n") if fresh else []
        if len(live) < len(fresh):
            live |= {
                shape
                for shape, text in zip(shapes, texts, strict=True)
                if shape in fresh and _LAST_WORD.search(text)
            }
        if len(self._dull) > _CACHED_SHAPES:
            self._dull.clear()
        self._dull.update(shape for shape in fresh - live if len(shape) <= _CACHED_LETTERS)
        if not live:
            return len(shapes) - 1, []
        found = [(at, texts[at]) for at, shape in enumerate(shapes) if shape in live]
        return len(shapes) - 1, found


@functools.lru_cache(maxsize=8)
def _pattern(words: frozenset[str]) -> re.Pattern[bytes]:
    """Return what finds one of the words in letters; a thousand logs are read for the same ones."""
    letters = {word.encode().translate(_LOWER, _DELETED) for word in words}
    # a word that another one is part of is never needed
    needed = {each for each in letters if not any(o in each for o in letters - {each})}
    return re.compile(_any_of(needed))


def _any_of(words: set[bytes]) -> bytes:
    """Write a pattern that branches letter by letter: `re` tries alternatives one by one."""
    if b"" in words:
        return b""
    heads = sorted({word[:1] for word in words})
    branches = (head + _any_of({word[1:] for word in words if word[:1] == head}) for head in heads)
    return b"(?:" + b"|".join(branches) + b")"
