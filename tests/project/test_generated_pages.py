"""The tables of docs/ that the code says itself are those that it says today."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_xlatune.cli import commands
from pytest_xlatune.model.result import Effect, VerdictKind
from pytest_xlatune.sweep.groups import OPTIONS, SWITCHES
from tests.helpers.benchmarks import load
from tests.helpers.source import PACKAGE
from tests.project.test_architecture import LAYERS

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]
KNOWN = {*(each.flag for each in OPTIONS), *(f"--{name}" for name in SWITCHES)}
generate, pages = load("generate", DOCS), load("pages")


@pytest.mark.parametrize("name", generate.PARTS)
def test_a_table_is_what_the_code_says(name: str) -> None:
    page = DOCS / generate.PARTS[name][0]
    assert pages.part(page, name).strip("\n") == generate.text_of(name), "run `make reference`"


def test_the_options_and_commands_that_a_page_names_exist() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        named = set(re.findall(r"--(?:no-)?xlatune(?:-[a-z]+)*\b(?!-)", text))
        assert named - {"--xlatune"} <= KNOWN, page
        # in code alone:  `xlatune plan FILE`      or a line of a block that begins with it
        code = re.findall(r"(?m)`xlatune ([a-z][a-z-]*)|^(?:    |\$ )xlatune ([a-z][a-z-]*)", text)
        assert {one or other for one, other in code} <= {*commands()}, page


def test_the_glossary_has_each_verdict_and_each_word_of_effect() -> None:
    text = (DOCS / "reference" / "glossary.md").read_text(encoding="utf-8")
    for each in (*VerdictKind, *Effect):
        assert f"| {each.value} |" in text


def test_the_page_of_the_architecture_names_each_layer_and_files_that_exist() -> None:
    text = (DOCS / "explanation" / "architecture.md").read_text(encoding="utf-8")
    named = {
        name: int(layer)
        for layer, names in re.findall(r"(?m)^\| (\d) \| ([^|]+) \|", text)
        for name in re.findall(r"`([\w/]+)`", names)
    }
    assert named == {name: layer for name, (layer, _) in LAYERS.items() if name != "__init__"}
    text += (DOCS / "how-to" / "extend.md").read_text(encoding="utf-8")
    # `report/page.py`      `stats.blocks`      `tests/words.py`
    for word in re.findall(r"`([\w./]+)`", text):
        package, _, rest = word.partition("." if "/" not in word else "/")
        if package in named and rest and "/" not in word:
            path = PACKAGE / word.replace(".", "/")
            assert path.with_suffix(".py").is_file() or path.is_dir(), word
        elif word.endswith((".py", ".po", ".jinja")) and "/" in word:
            assert (DOCS.parent / word).is_file() or (PACKAGE / word).is_file(), word
        elif word.startswith("tests/"):
            assert (DOCS.parent / word).is_dir(), word
