"""What is wrong with a document, and the few ways of holding a part of it against a value."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tests.helpers.document.lines import ABSENT, NUMBER, rounds_to


class Complaints:
    """A list of them, each with the titles above the place where it belongs."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self.titles = ["", "", "", ""]  # of the document, section, table, table of a cell

    def wrong(self, what: str) -> None:
        where = " / ".join(filter(None, self.titles[1:]))
        self.all.append(f"{where or 'head'}: {what}")

    def texts(self, row: Sequence[str], expected: Mapping[int, str]) -> None:
        for at, text in expected.items():
            if row[at] != text:
                self.wrong(f"{row[0]}: {row[at]!r} is shown, the ledger says {text!r}")

    def number(self, shown: str, value: float | None) -> None:
        """Complain unless a value, rounded to the digits that are shown, is what is shown."""
        if value is None:
            is_right = shown == ABSENT
        else:
            is_right = re.fullmatch(NUMBER, shown) is not None and rounds_to(value, shown)
        if not is_right:
            self.wrong(f"{shown} is shown, the ledger says {value}")

    def change(self, shown: str, fraction: float | None) -> None:
        self.number(shown, None if fraction is None else 100 * fraction)

    def interval(self, shown: str, ends: tuple[float, float] | None) -> None:
        match = re.fullmatch(rf"\[({NUMBER}), ({NUMBER})\]", shown)
        if ends is None or match is None:
            self.texts([shown], {0: ABSENT})
            return
        for text, end in zip(match.groups(), ends, strict=True):
            self.change(text, end)

    def said(
        self, text: str, template: str, *, percent: bool = False, **values: float | None
    ) -> str:
        """Return the text without a sentence, whose figures are compared with what they must be."""
        pattern = re.escape(template)
        for name in values:
            pattern = pattern.replace(rf"\{{{name}\}}", f"(?P<{name}>{NUMBER})")
        for match in re.finditer(pattern, text):
            for name, value in values.items():
                is_count = isinstance(value, int)
                scale = 100 if percent and not is_count else 1
                self.number(match[name], None if value is None else scale * value)
        return re.sub(pattern, "", text)
