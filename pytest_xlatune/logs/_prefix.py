"""Learn unknown prefixes of lines, such as a launcher's own."""

from __future__ import annotations

import re
from collections import Counter

from pytest_xlatune.logs import grammar
from pytest_xlatune.logs.grammar import Origin

_NUMBERS = re.compile(r"[0-9]+")
_LEAST_LINES = 3
_MOST_SHAPES, _MOST_HIDDEN = 8, 256


class PrefixLearner:
    """Learns the text before each line, as in `3@gpu020> completed step: 7`.

    A text that precedes three lines of MaxText, apart from digits, is a prefix. None of its numbers
    is taken for a rank.
    """

    def __init__(self) -> None:
        self.hidden: list[str] = []  # earlier lines in which it may have hidden a setting
        self._prefix: re.Pattern[str] | None = None
        self._shapes: Counter[str] = Counter()

    def learns(self, text: str) -> bool:
        """Examine a line without known prefixes; return whether the prefix is now known."""
        if self._prefix is not None:
            return False
        shape = _NUMBERS.sub("0", grammar.front_of(text))
        if not shape:
            if len(self.hidden) < _MOST_HIDDEN and grammar.hides_setting(text):
                self.hidden.append(text)
            return False
        if shape in self._shapes or len(self._shapes) < _MOST_SHAPES:
            self._shapes[shape] += 1
        if self._shapes[shape] < _LEAST_LINES:
            return False
        self._prefix = re.compile("[0-9]+".join(map(re.escape, shape.split("0"))))
        return True

    def split(self, text: str) -> tuple[Origin, str]:
        """Remove the learnt prefix from a line, and known ones after it."""
        match = self._prefix.match(text) if self._prefix is not None else None
        return (Origin(), text) if match is None else grammar.split_origin(text[match.end() :])
