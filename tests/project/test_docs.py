"""Every link of our pages leads somewhere, every page has its place, and the pages stay short."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *DOCS,
    *sorted((ROOT / "sweeps").rglob("*.md")),
]
# what a command writes (`make reference`, `make example`, a benchmark with `--write`):
# <!-- measured: begin --> ... <!-- measured: end -->
WRITTEN = re.compile(
    r"<!-- (?P<name>[^\n]+?): begin -->.*?<!-- (?P=name): end -->"
    r"|<!-- leaderboard: from [^\n]+ -->.*?<!-- end of leaderboard -->",
    re.DOTALL,
)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page:  ## One run  ->  one-run"""
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


def test_the_pages_have_at_most_so_many_words() -> None:
    """The words of `wc -w`, bars of tables included: by hand, and those that a command writes."""
    texts = {page: page.read_text(encoding="utf-8") for page in DOCS}
    by_hand = {page: len(WRITTEN.sub("", text).split()) for page, text in texts.items()}
    total = sum(by_hand.values())
    assert total <= 28_000, f"say a thing once, or let a command write it: {by_hand}"
    assert sum(len(text.split()) for text in texts.values()) - total <= 40_000
    # before the first release
    assert len((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split()) <= 1_900
