"""What a test reads back from an HTML page: tables, marks of plots, text, tags."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = frozenset({"meta", "link", "br", "img", "input", "hr"})


@dataclass
class ReadPage(HTMLParser):
    """A page as its parser sees it; a tag that is not closed fails.

    Attributes:
        tables: rows of cells' texts, the head first.
        forest: arm -> class of a cell -> its text.
        marks: arm -> the attributes of what its plot draws: circle, line.
        tags: every tag with its attributes.
        text: of everything but styles and scripts.
    """

    tables: list[list[list[str]]] = field(default_factory=list)
    forest: dict[str, dict[str, str]] = field(default_factory=dict)
    marks: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)
    tags: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    text: str = ""
    _open: list[str] = field(default_factory=list)
    _arm: str = ""
    _cell: str = ""

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = {name: value or "" for name, value in attrs}
        self.tags.append((tag, said))
        if tag not in VOID:
            self._open.append(tag)
        looks = said.get("class", "")
        match tag:
            case "table":
                self.tables.append([])
            case "tr":
                self.tables[-1].append([])
                self._arm = said.get("data-arm", "")
                if self._arm:
                    # one arm stands once in a forest; a page of several cells has several
                    self.forest[self._arm], self.marks[self._arm] = {}, {}
            case "td" | "th":
                self.tables[-1][-1].append("")
                self._cell = next(iter(looks.replace("right", "").split()), "")
            case "circle" | "svg" if self._arm:
                self.marks[self._arm][tag] = said
            case "line" if self._arm:
                self.marks[self._arm][looks] = said

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag, f"</{tag}> at {self.getpos()}"
        if tag == "tr":
            self._arm = ""
        if tag in ("td", "th"):
            self._cell = ""

    def handle_data(self, data: str) -> None:
        if self._open[-1:] in (["style"], ["script"]):
            return
        self.text += data
        if {"td", "th"} & set(self._open):
            self.tables[-1][-1][-1] += data
            if self._arm and self._cell:
                of_arm = self.forest[self._arm]
                of_arm[self._cell] = of_arm.get(self._cell, "") + data


def read(text: str) -> ReadPage:
    page = ReadPage()
    page.feed(text)
    page.close()
    assert page._open == []
    page.tables = [[[cell.strip() for cell in row] for row in rows] for rows in page.tables]
    return page
