"""A message is a text and values: one sentence in each language, and the same in JSON."""

# ruff: noqa: RUF001 - Chinese prose has full-width punctuation

from __future__ import annotations

import ast
import json
from string import Formatter
from typing import Any

import pytest

from pytest_xlatune.model import sentences
from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.model.message import (
    Message,
    MessageCode,
    at_most,
    coded,
    say,
    sentence,
    verbatim,
)
from pytest_xlatune.report.language import Language, Translator, plainly
from tests.helpers.source import MODULES, called, nodes_of

CHINESE = Translator(Language.CHINESE).text_of
STRAGGLES = (
    "{slow} of its {steps} steps straggle against {baselines_slow} of {baselines_steps} of the "
    "baselines (p = {p:.3f}); with them the change is {change:percent}"
)
COUNTS = {"slow": 9, "steps": 40, "baselines_slow": 1, "baselines_steps": 80}
MESSAGES = [
    pytest.param(
        say(STRAGGLES, **COUNTS, p=0.00123, change=say("unknown")),
        "9 of its 40 steps straggle against 1 of 80 of the baselines (p = 0.001); with them the "
        "change is unknown",
        "其 40 步中有 9 步掉队，基线的 80 步中有 1 步（p = 0.001）；计入它们后变化为 未知",
        id="a value that is unknown",
    ),
    pytest.param(say("{n:+job} ended", n=1), "1 job ended", "1 job ended", id="a counted noun"),
    pytest.param(
        say("of {sigma:.2%}, {gain:percent}, {wait_s:time}", sigma=0.006, gain=0.012, wait_s=90),
        "of 0.60 %, +1.2 %, 2 min",
        "of 0.60 %, +1.2 %, 2 min",
        id="a share, a change and a duration",
    ),
    pytest.param(
        say("then {reason}", reason=say("a gain of {gain:percent}", gain=0.012)),
        "then a gain of +1.2 %",
        "then a gain of +1.2 %",
        id="a message in a message",
    ),
    pytest.param(
        say("the log: {lines: | }", lines=at_most(3, ["a", "b", "c", "d", "e"])),
        "the log: a | b | c | and 2 more",
        "the log: a | b | c | 以及另外 2 个",
        id="the first of many",
    ),
    pytest.param(
        coded(MessageCode.SURVIVORS, "{arm} and {other}", arm="a", other=None),
        "a and ",
        "a and ",
        id="with a code",
    ),
    pytest.param(verbatim("by `me` {x}"), "by `me` {x}", "by `me` {x}", id="words of others"),
    pytest.param(
        say("{said}: {lines} of {n}", said="{n} %s {0} {n.x}", lines=["{n}", "100 %d"], n=3),
        "{n} %s {0} {n.x}: {n}, 100 %d of 3",
        "{n} %s {0} {n.x}: {n}, 100 %d of 3",
        id="a log line that looks like a text",
    ),
    pytest.param(
        verbatim("\x1b[31m{text}\x00\u202e"),
        "\x1b[31m{text}\x00\u202e",
        "\x1b[31m{text}\x00\u202e",
        id="control characters of a log",
    ),
]


@pytest.mark.parametrize(("message", "english", "chinese"), MESSAGES)
def test_a_message_is_one_sentence_in_each_language(
    message: Message, english: str, chinese: str
) -> None:
    assert sentence(message) == english
    assert sentence(message, CHINESE) == chinese
    read = Message.from_json(json.loads(json.dumps(message.to_json())))
    assert (read, hash(read)) == (message, hash(message))
    with pytest.raises(TypeError, match="with `sentence`, not in an f-string"):
        f"{message}"


def test_a_document_gets_it_as_one_line_without_markup() -> None:
    assert plainly(verbatim("by `me`\n{x}")) == "by 'me' {x}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("{a", "{a", id="a brace that is not closed"),
        pytest.param("{a.__class__}", "{a.__class__}", id="an attribute of a value"),
        pytest.param("{a[0]}", "{a[0]}", id="a part of a value"),
        pytest.param("{a:999999999}", "7", id="a width of a gigabyte"),
        pytest.param("{a:{b}}", "{a:9}", id="a nested format"),
        pytest.param("{c:percent}", "x", id="a name where a number is expected"),
        pytest.param("{} {0} %s", "{} {0} %s", id="places without names"),
    ],
)
def test_a_damaged_text_of_a_ledger_is_shown_as_it_stands(text: str, shown: str) -> None:
    assert sentence(say(text, a=7, b=9, c="x")) == shown


@pytest.mark.parametrize(
    "data",
    [
        pytest.param("no step", id="a bare text"),
        pytest.param({"kind": "no-step"}, id="another record"),
        pytest.param({"text": 3}, id="a text that is a number"),
        pytest.param({"text": "a", "values": [1]}, id="values without names"),
        pytest.param({"text": "a", "values": {"b": {"text": 3}}}, id="a damaged value"),
        pytest.param({"text": "a", "code": "run-me"}, id="an unknown code"),
        pytest.param({"text": "a", "sentence": "b"}, id="an unknown field"),
    ],
)
def test_a_damaged_message_of_a_ledger_is_refused(data: Any) -> None:
    with pytest.raises(LedgerError, match="Message: "):
        Message.from_json(data)


def test_each_text_names_the_values_that_stand_beside_it() -> None:
    """A value that is not given would leave a hole in the sentence."""
    shared = {name: text for name, text in vars(sentences).items() if name.isupper()}
    for path in MODULES:
        calls = [node for node in nodes_of(path) if isinstance(node, ast.Call) and node.args]
        for call in calls:
            text = call.args[-1]
            known = text.value if isinstance(text, ast.Constant) else shared.get(ast.unparse(text))
            given = {each.arg for each in call.keywords}
            if called(call) in ("say", "coded") and isinstance(known, str) and None not in given:
                named = {each[1] for each in Formatter().parse(known) if each[1]}
                assert named <= given, (path, call.lineno)
