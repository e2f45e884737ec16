"""The code and the Chinese catalog have the same msgids, and the catalog translates all of them."""

# ruff: noqa: RUF001 - Chinese prose has full-width punctuation

from __future__ import annotations

import ast
import gettext
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune import report
from pytest_xlatune.model.result import State, VerdictKind
from pytest_xlatune.report.language import ENGLISH, Language, Translator
from pytest_xlatune.report.leaderboard import leaderboard
from pytest_xlatune.report.measured_cell import MeasuredCell
from pytest_xlatune.report.render import markdown
from pytest_xlatune.report.tuning_document import tuning
from tests.helpers.covered import COVERED, EXPLAINED, STOPPED, other_parallelism
from tests.helpers.finished import FINISHED
from tests.helpers.source import called, nodes_of

FOLDER = Path(report.__file__).parent
CATALOG = FOLDER / "po" / "zh.po"
# what stays in Latin letters: names of programs, files, figures and verdicts
NAMES = {
    "XLA",
    "HLO",
    "TGS",
    "MV",
    "delta",
    "Tokens",
    "device",
    "token",
    "synthetic",
    "UTC",
    "pdbs",
}
NAMES |= {"PP", "FSDP", "sparse", *VerdictKind}
# what tables name as the statistics, the code and the scheduler do
NAMES |= {"MDE", "alpha", "baseline", "deployed", "sigma", "vs"}
NAMES |= {"confirm", "evidence", "exit", "screen", "signal"}
NAMES |= {word for state in State for word in state.split("-")}


# messages of other layers that the document shows
QUOTED = (
    "faster: {low:percent} to {high:percent} (95 %)",
    "slower: {low:percent} to {high:percent} (95 %)",
    (
        "cannot tell: {low:percent} to {high:percent} (95 %); a change of "
        "{mde80:percent} would be found with 80 % power"
    ),
    "no relevant difference: {low:percent} to {high:percent} (90 %)",
    (
        "{runs}, {baselines_lost} of {baselines} of the baselines: those that ended may "
        "be the fast ones"
    ),
    "{lost} of {runs} runs lost: {to}",
    "{lost} of {runs} runs lost",
    "hang",
    (
        "{slow} of its {steps} steps straggle against {baselines_slow} of "
        "{baselines_steps} of the baselines (p = {p:.3f}); with them the change is "
        "{change:percent}"
    ),
    "{parts: and }, {share:size} of a step",
    "{parts: and } alone, {share:size} of a step",
    "{number} {name}",
    "and {more} more",
    "unknown",
    "{reasons:; }",
    (
        "{arm} gains {change:percent} and its lower bound is above {excluded:percent}: you may "
        "stop here"
    ),
)


def msgids() -> Iterator[str]:
    """Every text that the document can say: those of `report/`, and the quoted messages."""
    yield from QUOTED
    for path in FOLDER.glob("*.py"):
        for node in nodes_of(path):
            if isinstance(node, ast.Call):
                name = called(node)
                first = {"say": 0, "say.text": 0, "N_": 0, "say.count": 1}.get(name)
                if first is not None:
                    texts = node.args[first : first + 2] if name == "say.count" else node.args[:1]
                    values = (each.value for each in texts if isinstance(each, ast.Constant))
                    yield from map(str, values)


def compiled(folder: Path) -> gettext.GNUTranslations:
    """The catalog as msgfmt compiles it now."""
    out = folder / "zh.mo"
    command = ["msgfmt", "--check", "--check-format", "--output-file", str(out), str(CATALOG)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    with out.open("rb") as file:
        return gettext.GNUTranslations(file)


def entries(catalog: gettext.GNUTranslations) -> dict[str, str]:
    """Msgid -> translation, without the header; plural forms by their own msgid."""
    found = catalog._catalog  # type: ignore[attr-defined]
    return {key if isinstance(key, str) else key[0]: text for key, text in found.items() if key}


def test_msgfmt_accepts_the_catalog_and_the_package_has_it_compiled(tmp_path: Path) -> None:
    with CATALOG.with_suffix(".mo").open("rb") as file:
        kept = gettext.GNUTranslations(file)
    assert entries(kept) == entries(compiled(tmp_path)), "run: make translations"


def test_the_code_and_the_catalog_have_the_same_msgids() -> None:
    text = CATALOG.read_text(encoding="utf-8")
    known = re.findall(r'^msgid(?:_plural)? "(.+)"$', text, re.MULTILINE)
    assert sorted(each.replace('\\"', '"') for each in known) == sorted(set(msgids()))


def test_the_quoted_messages_stand_in_the_code() -> None:
    texts = {
        node.value
        for path in FOLDER.parent.rglob("*.py")
        for node in nodes_of(path)
        if isinstance(node, ast.Constant)
    }
    assert set(QUOTED) <= texts


def test_every_translation_is_there_with_the_literals_of_its_msgid(tmp_path: Path) -> None:
    for msgid, text in entries(compiled(tmp_path)).items():
        assert text, msgid
        # a field is written in another way, or less often, where the language has no plural
        parts = [sorted({*re.findall(r"\{\w+|`[^`]*`", each)}) for each in (msgid, text)]
        assert parts[0] == parts[1], msgid


def test_counted_nouns_follow_the_language() -> None:
    nouns = ("{n} job", "{n} jobs")
    assert [ENGLISH.count(n, *nouns) for n in (1, 3)] == ["1 job", "3 jobs"]
    assert Translator(Language.CHINESE).count(3, *nouns) == "3 个作业"


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (1, "1 sequence per"),
        (2, "2 sequences per"),
        (0.5, "0.5 sequences per"),
        (None, "own batch"),
    ],
)
def test_one_sequence_is_no_sequences(batch: float | None, said: str) -> None:
    one = FINISHED.cells[0]
    cell = replace(one, per_device_batch_size=batch)
    document = leaderboard(replace(FINISHED, cells=(cell, *FINISHED.cells[1:])))
    (line,) = (each for each in markdown(document).splitlines() if each.startswith("* Load: "))
    assert said in line


@pytest.mark.parametrize(
    "cells",
    [
        pytest.param([replace(COVERED, explanation=EXPLAINED)], id="explained"),
        pytest.param([COVERED], id="not explained"),
        pytest.param([other_parallelism(), COVERED], id="two cells"),
        pytest.param([STOPPED], id="stopped"),
    ],
)
def test_the_chinese_prose_has_no_english_but_names_and_records(cells: list[MeasuredCell]) -> None:
    text = markdown(tuning(cells, Language.CHINESE))
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for line in text.splitlines():
        if line.startswith("#"):  # headings are the same in all languages
            continue
        # what the ledger recorded is quoted, and said to be
        own = re.sub(r"`[^`]*`|：[^：]*（原文.*|原因：.*|所用软件：.*", "", line)
        words = set(re.findall(r"[A-Za-z]{2,}", own))
        assert words <= NAMES, line
