"""Which lines of a block of bytes are worth reading: the reason that a gigabyte takes seconds.

A log is a few line shapes repeated a million times with other numbers. A line's *letters* are what
is left of it when everything but f-z and _ is deleted, in lower case: digits, addresses (a-f!),
counters and times vanish, and one `bytes.translate` does it for a whole block. Letters that hold
the letters of no known word are dull; they are remembered, so each shape is judged once. Nothing
depends on that memory: it is a cache of a pure function.

Knows no log format: the words are given.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

_LOWER = bytes(range(256)).lower()
_KEPT = frozenset(b"fghijklmnopqrstuvwxyz_FGHIJKLMNOPQRSTUVWXYZ")
_DELETED = bytes(byte for byte in range(256) if byte not in _KEPT)
_DELETED_IN_BLOCKS = bytes(byte for byte in _DELETED if byte != ord("\n"))
_CACHED_SHAPES = 1 << 14
_CACHED_LETTERS = 1 << 9  # of one shape: 8 MiB at most in all


class Sieve:
    """Finds the lines that may hold one of some words, case ignored. May let others through."""

    def __init__(self, words: Iterable[str]) -> None:
        self._known = _pattern(frozenset(words))
        self._dull: set[bytes] = set()

    def may_hold(self, line: bytes) -> bool:
        """Whether a line may hold one of the words; never false when it does."""
        return self._known.search(_letters(line)) is not None

    def lines(self, block: bytes) -> tuple[int, list[tuple[int, bytes]]]:
        """Return the number of lines in a block of complete lines, and those worth reading.

        Each with its index in the block, from 0.
        """
        shapes = block.translate(_LOWER, _DELETED_IN_BLOCKS).split(b"\n")
        total = len(shapes) - 1
        fresh = set(shapes) - self._dull
        if not fresh:
            return total, []
        live = {shape for shape in fresh if self._known.search(shape)}
        self._remember(fresh - live)
        if not live:
            return total, []
        texts = block.split(b"\n")
        return total, [(at, texts[at]) for at, shape in enumerate(shapes) if shape in live]

    def _remember(self, shapes: set[bytes]) -> None:
        if len(self._dull) > _CACHED_SHAPES:
            self._dull.clear()
        self._dull.update(shape for shape in shapes if len(shape) <= _CACHED_LETTERS)


def _letters(text: bytes) -> bytes:
    return text.translate(_LOWER, _DELETED)


@functools.lru_cache(maxsize=8)
def _pattern(words: frozenset[str]) -> re.Pattern[bytes]:
    """Return what finds one of the words in letters; a thousand logs are read for the same ones."""
    letters = {_letters(word.encode()) for word in words}
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
