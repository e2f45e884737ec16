"""Links of our pages lead somewhere, each page has its place, and tables say what the code says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_xlatune.cli import commands
from pytest_xlatune.sweep.groups import OPTIONS, SWITCHES
from tests.helpers.benchmarks import load

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *(*DOCS, *sorted((ROOT / "sweeps").rglob("*.md"))),
]
OPTIONS_AND_SWITCHES = {*(each.flag for each in OPTIONS), *(f"--{name}" for name in SWITCHES)}
generate, pages = load("generate", ROOT / "docs"), load("pages")


def anchors(page: Path) -> set[str]:
    # as GitHub makes them:  ## One run  ->  one-run
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    names: set[str] = set()
    for heading in re.findall(r"(?m)^#+ (.+)$", text):
        base = re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")
        numbered = (f"{base}-{at}" if at else base for at in range(len(names) + 1))
        names.add(next(each for each in numbered if each not in names))
    return names


def dead_links(page: Path) -> Iterator[str]:
    """Yield each link that leads nowhere; addresses of other sites are not looked at."""
    code = re.compile(r"```.*?```|(?m:^    [^\n]*$)|`[^`\n]*`", re.DOTALL)
    text = code.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.is_relative_to(ROOT) or not there.exists():
            yield f"{page.name}: {target}: there is no such file"
        elif anchor and anchor not in anchors(there):
            yield f"{page.name}: {target}: {there.name} has no such heading"


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    assert [dead for page in PAGES for dead in dead_links(page)] == []


def test_every_page_is_on_the_list_of_pages_and_on_the_site() -> None:
    listed = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    names = {str(page.relative_to(ROOT / "docs")) for page in DOCS}
    assert {name for name in names if f"]({name})" not in listed} == {"README.md"}
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    # the navigation:      - Settings: reference/settings.md
    placed = re.findall(r"(?m)^ +- .*?([\w./-]+\.md)$", site)
    assert sorted(placed) == sorted(names)


@pytest.mark.parametrize("name", generate.PARTS)
def test_a_table_is_what_the_code_says(name: str) -> None:
    page = ROOT / "docs" / generate.PARTS[name][0]
    assert pages.part(page, name).strip("\n") == generate.text_of(name), "run `make reference`"


def test_the_options_and_commands_that_a_page_names_exist() -> None:
    for page in [ROOT / "README.md", *DOCS]:
        text = page.read_text(encoding="utf-8")
        named = set(re.findall(r"--(?:no-)?xlatune(?:-[a-z]+)*\b(?!-)", text))
        assert named - {"--xlatune"} <= OPTIONS_AND_SWITCHES, page
        # in code alone:  `xlatune plan FILE`      or a line of a block that begins with it
        code = re.findall(r"(?m)`xlatune ([a-z][a-z-]*)|^(?:    |\$ )xlatune ([a-z][a-z-]*)", text)
        assert {one or other for one, other in code} <= {*commands()}, page
