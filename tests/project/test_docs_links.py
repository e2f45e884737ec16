"""Every link of our pages leads somewhere: a file of the repository, a heading of a page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "sweeps").rglob("*.md")),
]


def without_code(text: str) -> str:
    return re.sub(r"```.*?```|(?m:^    [^\n]*$)|`[^`\n]*`", "", text, flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page:  ## One run  ->  one-run"""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    names: set[str] = set()
    for heading in re.findall(r"(?m)^#+ (.+)$", text):
        base = re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")
        numbered = (f"{base}-{at}" if at else base for at in range(len(names) + 1))
        names.add(next(each for each in numbered if each not in names))
    return names


def dead_links(page: Path, text: str) -> Iterator[str]:
    """Yield each link that leads nowhere; addresses of other sites are not looked at."""
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.is_relative_to(ROOT) or not there.exists():
            yield f"{target}: there is no such file"
        elif anchor and anchor not in anchors(there):
            yield f"{target}: {there.name} has no such heading"


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    dead = {page: [*dead_links(page, page.read_text(encoding="utf-8"))] for page in PAGES}
    assert {page: found for page, found in dead.items() if found} == {}


def test_every_page_is_on_the_list_of_pages() -> None:
    listed = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        named = page.relative_to(ROOT / "docs")
        assert page.name == "README.md" or f"]({named})" in listed, page.name


def test_every_document_has_its_place_in_the_site() -> None:
    from ruamel.yaml import YAML

    site = YAML(typ="safe").load(ROOT / "mkdocs.yml")

    def files(part: object) -> Iterator[str]:
        match part:
            case str():
                yield part
            case dict():
                yield from files(list(part.values()))
            case list():
                for each in part:
                    yield from files(each)

    placed = list(files(site["nav"]))
    pages = (each.relative_to(ROOT / "docs") for each in (ROOT / "docs").rglob("*.md"))
    assert sorted(placed) == sorted(map(str, pages))
