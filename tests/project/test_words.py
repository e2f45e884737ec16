"""Our texts keep to plain words: sentences with a subject that acts, and one word for one thing.

The test reads the package, the sweeps and the documents: names, string literals, docstrings and
comments of Python files; of other files everything but code in backticks. Of the changelog it
reads the part that is not released yet. An honest use of a word is an exception that names its
files and its reason.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pytest_xlatune"
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "sweeps").rglob("*.md"),
    ROOT / "Makefile",
    ROOT / "tox.ini",
]
PARTS: Mapping[str, list[Path]] = {
    **{
        init.parent.name: sorted({*init.parent.rglob("*.py"), *init.parent.rglob("*.toml")})
        for init in PACKAGE.glob("*/__init__.py")
    },
    "the package itself": sorted(PACKAGE.glob("*.py")),
    "sweeps": sorted((ROOT / "sweeps").rglob("*.py")),
    "documents": sorted(DOCUMENTS),
}
# pattern -> what to write instead
FORBIDDEN: Mapping[str, str] = {
    r"nobody|somebody|whoever": "name who acts: the process, the session, the user",
    r"what is": "name the thing, or give the sentence a subject that acts",
    r", for (?:it|its|they|there|nothing)": "because, or a new sentence",
    r"houses?|rooms?": "package; space",
    r"floors?": "layer; lower bound",
    r"seeds?": "the written procedure; the first settings",
    r"rolls?|rolled": "list",
    r"grounds?": "the settings that profiles are applied to",
    r"line-?ups?": "the finalists; the order",
    r"fates?": "decision; result",
    r"settle[sd]?|settling": "decide; of a warm-up: level off",
    r"screening": "the screen; without a device: the compile check",
}
ANY = re.compile("|".join(FORBIDDEN), re.IGNORECASE)


class Honest(NamedTuple):
    """Where a forbidden word is right."""

    word: str
    files: str  # a pattern of the path below the root
    reason: str


HONEST = (
    Honest(
        "floors?",
        r"studies/(gate|node_check)|stats/compare|model/reason|report/(words|claims)|tasks/answers"
        r"|plugin/options|docs/.*/(gates|nodes|trainer|formats)",
        "the least TGS that a gate accepts is its floor: `floor_tgs`",
    ),
    Honest(
        "seeds?",
        r"pytest_xlatune/(studies|sweep|stats|model/environment|tasks/run_record|report/leaderboard)"
        r"|docs/.*/(gates|statistics|settings|tuning|formats)|sweeps/quickstart|CHANGELOG",
        "a random order and a training's random numbers have a seed",
    ),
)


def found(text: str, path: str = "") -> Iterator[str]:
    """Yield each forbidden word of a text with its neighbours."""
    line = " ".join(text.split())
    if not ANY.search(line):
        return
    for pattern, instead in FORBIDDEN.items():
        for match in re.finditer(rf"(?:\b|(?=,))(?:{pattern})\b", line, re.IGNORECASE):
            word = match[0].lower()
            if not any(re.fullmatch(e.word, word) and re.search(e.files, path) for e in HONEST):
                around = line[max(0, match.start() - 30) : match.end() + 30]
                yield f"{word!r} in {around!r}; better: {instead}"


def words_of(name: str) -> str:
    """An identifier as words:  _read_SeedRow -> read seed row"""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", " ", name).strip().lower()


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of each name that a Python file defines, each literal, each comment."""
    source = path.read_text(encoding="utf-8")
    yield 1, words_of(path.stem)
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Constant(value=str(text)):
                yield node.lineno, text
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield node.lineno, words_of(name)
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield node.lineno, words_of(name)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


def passages(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of each paragraph, table or code block of a page."""
    text = path.read_text(encoding="utf-8")
    if path.name == "CHANGELOG.md":
        text = re.split(r"(?m)^## (?!Unreleased)", text)[0]
    line = 1
    for passage in re.split(r"(\n\n+)", text):
        yield line, re.sub(r"`[^`\n]*`", "`", passage)
        line += passage.count("\n")


def complaints(path: Path) -> Iterator[str]:
    """Yield file, line and word of each forbidden word of a file."""
    name = str(path.relative_to(ROOT))
    for line, text in texts(path) if path.suffix == ".py" else passages(path):
        yield from (f"{name}:{line}: {each}" for each in found(text, name))


@pytest.mark.parametrize("part", PARTS)
def test_our_texts_use_plain_words(part: str) -> None:
    problems = [each for path in PARTS[part] for each in complaints(path)]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Nobody waits for it, and whoever comes next takes over.", ["nobody", "whoever"]),
        ("It is refused, for it cannot run.", [", for it"]),
        ("This asks for it, and waits for its end.", []),
        ("What is compiled first is asked again.", ["what is"]),
        ("The background of the playground is unsettled.", []),
        (words_of("_SettledRow"), ["settled"]),
        (words_of("lineup"), ["lineup"]),
        ("the seed of the order", ["seed"]),
    ],
)
def test_a_forbidden_word_is_found_as_a_whole_word(text: str, words: list[str]) -> None:
    assert [each.split("'")[1] for each in found(text)] == words


def test_every_exception_has_a_use() -> None:
    paths = [path for files in PARTS.values() for path in files]
    for each in HONEST:
        of_it = [path for path in paths if re.search(each.files, str(path.relative_to(ROOT)))]
        texts_of_it = " ".join(path.read_text(encoding="utf-8") for path in of_it)
        assert re.search(each.word, texts_of_it), each.reason
