"""Why a gigabyte of log takes seconds: which lines are worth reading, and step lines seen before.

A log is a few shapes of line, repeated a million times with other numbers. Both parts remember
shapes and judge each once; what they remember is a cache of a pure function, and bounded.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

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
        if len(line) > _MOST_LAYOUT:
            return None
        shape = line.translate(_DIGITS)
        try:
            return self._layouts[shape]
        except KeyError:
            if len(self._layouts) >= _MOST_LAYOUTS:
                self._layouts.clear()
            found = self._layouts[shape] = grammar.step_layout(line)
            return found

    def origin(self, line: bytes, layout: StepLayout) -> Origin:
        """Return who printed the line; the same one for the same text."""
        said = (line[layout.rank], line[layout.actor])
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
