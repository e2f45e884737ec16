"""What a test reads back from an HTML page: tags, rows of arms, the marks of their plots."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = frozenset({"meta", "link", "br", "img", "input", "hr"})


class ReadPage(HTMLParser):
    """A page as its parser sees it; a tag that is not closed fails.

    Attributes:
        tags: every tag with its attributes.
        forest: arm -> class of a cell of its row -> the cell's text.
        marks: arm -> what its plot draws, a circle or a class of lines -> the attributes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.forest: dict[str, dict[str, str]] = {}
        self.marks: dict[str, dict[str, dict[str, str]]] = {}
        self.open: list[str] = []
        self._arm = self._cell = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = {name: value or "" for name, value in attrs}
        self.tags.append((tag, said))
        if tag not in VOID:
            self.open.append(tag)
        looks = said.get("class", "")
        if tag == "tr" and (arm := said.get("data-arm", "")):
            self._arm = arm
            self.forest[arm], self.marks[arm] = {}, {}
        elif tag == "td":
            self._cell = next(iter(looks.replace("right", "").split()), "")
        elif tag in ("circle", "line") and self._arm:
            self.marks[self._arm][looks if tag == "line" else tag] = said

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1:] == [tag], f"</{tag}> at {self.getpos()}"
        self.open.pop()
        self._arm, self._cell = "" if tag == "tr" else self._arm, "" if tag == "td" else self._cell

    def handle_data(self, data: str) -> None:
        if self._arm and self._cell:
            cells = self.forest[self._arm]
            cells[self._cell] = cells.get(self._cell, "") + data


def read(text: str) -> ReadPage:
    page = ReadPage()
    page.feed(text)
    page.close()
    assert page.open == []
    return page
