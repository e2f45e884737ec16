"""What stands in front of the lines of a log and is in no table: a launcher's own prefix."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence

from pytest_xlatune.logs import grammar

_NUMBERS = re.compile(r"[0-9]+")
_MOST_FRONTS, _MOST_HEADS, _MOST_LINES = 8, 64, 4096
_LEAST_LINES, _RANK_DIGITS = 3, 6


class PrefixLearner:
    """Learns what stands in front of each line and is in no table: a launcher's own prefix.

    It goes by lines whose beginning is known: a configuration's, a step's. A text that is in front
    of three of them, but for its digits, is a prefix. A number in it is the rank where processes
    print the same line with each of 0, 1, ... N-1, three lines of it, before the first step.
    """

    def __init__(self, *, is_learning: bool = True) -> None:
        self.prefix: re.Pattern[str] | None = None
        self.is_learning = is_learning
        self._lines = self._steps = 0
        self._shape = ""
        self._said: dict[str, dict[str, list[tuple[str, ...]]]] = {}  # shape, line -> its numbers

    def see(self, text: str, *, may_be_labelled: bool) -> bool:
        """Take a line without its known prefixes; return whether more is known now.

        `may_be_labelled`: whether the steps so far can still be told apart by their rank.
        """
        if (head := grammar.head_of(text)) is None:
            return False
        front, words, is_step = head
        self._lines, self._steps = self._lines + 1, self._steps + is_step
        shape = _NUMBERS.sub("0", front)
        if len(self._said) < _MOST_FRONTS or shape in self._said:
            said = self._said.setdefault(shape, {})
            if len(said) < _MOST_HEADS or words in said:
                said.setdefault(words, []).append((*_NUMBERS.findall(front),))
        was, seen = self.prefix, self._said.get(shape, {})
        is_enough = sum(map(len, seen.values())) >= _LEAST_LINES and self._shape in ("", shape)
        if is_enough and (is_step or self.prefix is None or self._lines % _MOST_HEADS == 0):
            slot = _rank_in(seen) if may_be_labelled else None
            if self.prefix is None or slot is not None:
                self.prefix, self._shape = _front(shape, slot), shape
                self.is_learning = slot is None
        if self._lines >= _MOST_LINES or self._steps >= _MOST_HEADS or not may_be_labelled:
            self.is_learning &= self.prefix is None and self._lines < _MOST_LINES
        if not self.is_learning:
            self._said.clear()
        return self.prefix is not was or not self.is_learning


def _rank_in(seen: Mapping[str, Sequence[tuple[str, ...]]]) -> int | None:
    """Return which number is the rank: it alone tells apart who prints the same line."""
    alike = [rows for rows in seen.values() if len(rows) > 1]
    if len(alike) < _LEAST_LINES:
        return None
    found: list[tuple[int, list[list[str]]]] = []
    for slot in range(len(alike[0][0])):
        values = [[row[slot] for row in rows] for rows in alike]
        said = {value for each in values for value in each}
        is_rank = len(said) > 1 and all(len(value) <= _RANK_DIGITS for value in said)
        is_told = all(len({*each}) == len(each) for each in values)
        if is_rank and is_told and {*map(int, said)} == {*range(len(said))}:
            found.append((slot, values))
    is_one = bool(found) and all(values == found[0][1] for _, values in found)
    return found[-1][0] if is_one else None


def _front(shape: str, slot: int | None) -> re.Pattern[str]:
    """Return the pattern of a prefix; the number at a slot of it is the rank."""
    parts = [re.escape(each) for each in shape.split("0")]
    numbers = ["(?P<rank>[0-9]{1,9})" if at == slot else "[0-9]+" for at in range(len(parts) - 1)]
    return re.compile("".join(map("".join, itertools.zip_longest(parts, numbers, fillvalue=""))))
