"""A message is a text and values: one sentence in each language, and the same in JSON."""

# ruff: noqa: RUF001 - Chinese prose has full-width punctuation

from __future__ import annotations

import ast
import gettext
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune import report
from pytest_xlatune.model.message import Message, MessageCode, at_most, coded, say, sentence
from pytest_xlatune.model.result import State, VerdictKind
from pytest_xlatune.report.language import Language, Translator
from pytest_xlatune.report.measured_cell import MeasuredCell
from pytest_xlatune.report.render import markdown
from pytest_xlatune.report.tuning_document import tuning
from tests.helpers.finished import COVERED, EXPLAINED, STOPPED, other_parallelism
from tests.helpers.source import MODULES, nodes_of
from tests.helpers.tables import rows

CHINESE = Translator(Language.CHINESE)
UNKNOWN = "then {reason} of {n} (p = {p:.3f})"


MESSAGES = {
    "a message in a message": (
        say(UNKNOWN, reason=say("a gain of {gain:percent}", gain=0.012), n=2, p=0.00123),
        "then a gain of +1.2 % of 2 (p = 0.001)",
        None,
    ),
    "the first of many": (
        say("the log: {lines: | }", lines=at_most(3, ["a", "b", "c", "d", "e"])),
        "the log: a | b | c | and 2 more",
        "the log: a | b | c | 以及另外 2 个",
    ),
    "with a code": (coded(MessageCode.SURVIVORS, "{a} and {b}", a="a", b=None), "a and ", None),
    "a log line that looks like a text": (
        say("{said}: {lines} of {n}", said="{n} %s {0} {n.x}", lines=["{n}", "100 %d"], n=3),
        "{n} %s {0} {n.x}: {n}, 100 %d of 3",
        None,
    ),
    "a value that is a word": (say("{change:percent}", change=say("unknown")), "unknown", "未知"),
}


@pytest.mark.parametrize(("message", "english", "chinese"), MESSAGES.values(), ids=MESSAGES)
def test_a_message_is_one_sentence_in_each_language(
    message: Message, english: str, chinese: str | None
) -> None:
    assert sentence(message) == english
    assert sentence(message, CHINESE.text_of) == (chinese or english)
    read = Message.from_json(json.loads(json.dumps(message.to_json())))
    assert (read, hash(read)) == (message, hash(message))
    with pytest.raises(TypeError, match="with `sentence`, not in an f-string"):
        f"{message}"


def test_a_damaged_text_of_a_ledger_is_shown_as_it_stands() -> None:
    for text, shown in (
        ("{a", "{a"),
        ("{a.__class__}", "{a.__class__}"),
        ("{a:999999999}", "7"),  # a width of a gigabyte
        ("{c:percent}", "x"),  # a name where a number is expected
        ("{} {0} %s", "{} {0} %s"),
    ):
        assert sentence(say(text, a=7, b=9, c="x")) == shown


FOLDER = Path(report.__file__).parent
CATALOG = FOLDER / "po" / "zh.po"


def msgids() -> Iterator[str]:
    """Every text that `report/` can say."""
    # the call -> which of its arguments are texts
    places = {"say": (0, 1), "say.text": (0, 1), "N_": (0, 1), "say.count": (1, 3)}
    calls = (node for path in FOLDER.glob("*.py") for node in nodes_of(path))
    for call in (node for node in calls if isinstance(node, ast.Call)):
        texts = call.args[slice(*places.get(ast.unparse(call.func), (0, 0)))]
        yield from (str(text.value) for text in texts if isinstance(text, ast.Constant))


def test_the_catalog_has_the_texts_of_the_code_translated_and_compiled(tmp_path: Path) -> None:
    text = CATALOG.read_text(encoding="utf-8")
    msgids_of_catalog = re.findall(r'^msgid(?:_plural)? "(.+)"$', text, re.MULTILINE)
    known = {msgid.replace('\\"', '"') for msgid in msgids_of_catalog}
    assert known >= {*msgids()}
    in_code = {
        node.value
        for path in MODULES
        for node in nodes_of(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert in_code >= known, "messages of other layers, which the document shows"
    out = tmp_path / "zh.mo"
    command = ["msgfmt", "--check", "--check-format", "--output-file", str(out), str(CATALOG)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    entries = []
    for path in (CATALOG.with_suffix(".mo"), out):
        with path.open("rb") as file:
            catalog = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
        # plural forms by their own msgid, without the header
        entries.append(
            {key if isinstance(key, str) else key[0]: text for key, text in catalog.items() if key}
        )
    assert entries[0] == entries[1], "run: make translations"
    for msgid, translation in entries[1].items():
        assert translation, msgid
        # a field is written in another way, or less often, where the language has no plural
        parts = [{*re.findall(r"\{\w+|`[^`]*`", each)} for each in (msgid, translation)]
        assert parts[0] == parts[1], msgid


# what stays in Latin letters: names of programs, files, figures and verdicts, and what tables name
# as the statistics, the code and the scheduler do
NAMES = {
    *("XLA", "HLO", "TGS", "MV", "delta", "Tokens", "device", "token", "synthetic", "UTC", "pdbs"),
    *("PP", "FSDP", "sparse", "MDE", "alpha", "baseline", "deployed", "sigma", "vs", "confirm"),
    *("evidence", "exit", "screen", "signal"),
    *VerdictKind,
    *(word for state in State for word in state.split("-")),
}


SUBJECTS = {
    "explained": [replace(COVERED, explanation=EXPLAINED)],
    "two cells": [other_parallelism(), COVERED],
    "stopped": [STOPPED],
}


@rows("cells", SUBJECTS)
def test_the_chinese_prose_has_no_english_but_names_and_records(cells: list[MeasuredCell]) -> None:
    text = markdown(tuning(cells, Language.CHINESE))
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for line in text.splitlines():
        if line.startswith("#"):  # headings are the same in all languages
            continue
        # what the ledger recorded is quoted, and said to be
        own = re.sub(r"`[^`]*`|docs/[\w/]+\.md|：[^：]*（原文.*|原因：.*|所用软件：.*", "", line)
        assert {*re.findall(r"[A-Za-z]{2,}", own)} <= NAMES, line
