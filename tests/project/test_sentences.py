"""State is fields: no study, statistic, campaign or ledger has a sentence; `report/words.py` does.

A reason is a kind and its fields. Each kind has one sentence, and the code that states a kind gives
it the fields that its sentence names.
"""

# ruff: noqa: RUF001 - Chinese prose has full-width punctuation

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_xlatune.model.reason import Reason, Why, verbatim
from pytest_xlatune.report.language import ENGLISH, Language, Say
from pytest_xlatune.report.words import WORDS, plainly, sentence
from tests.helpers.sentences import sentences
from tests.helpers.source import MODULES, PACKAGE, called, nodes_of

CONVERTED = ("stats", "studies", "campaign", "ledger")
# ids of arms, names of places in an error or on a node, and what a random order is drawn of
NAMES = {
    "the median node", "batch size", "the settings of", "slot of", "this machine", "the nodes of X",
}  # fmt: skip


def held(folder: Path) -> Iterator[str]:
    """Name each sentence that a file of these packages holds."""
    for package in CONVERTED:
        for path in sorted((folder / package).rglob("*.py")):
            for each in sentences(path):
                for line, text in each.sentences:
                    if text not in NAMES:
                        yield f"{path.relative_to(folder)}:{line}: {each.function}: {text}"


def test_no_study_statistic_campaign_or_ledger_holds_a_sentence() -> None:
    assert not list(held(PACKAGE)), "state a Reason, and give its words to report/words.py"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        pytest.param('def f():\n    return f"{n} of {m} trials are over"', True, id="returned"),
        pytest.param('def f():\n    self.note = "the noise is not known"', True, id="stored"),
        pytest.param('WORDS = {1: "not measured yet"}', True, id="in a table"),
        pytest.param('def f():\n    """Return what follows."""', False, id="a docstring"),
        pytest.param('def f():\n    raise ConfigError(f"{n} is not one")', False, id="raised"),
        pytest.param('def f():\n    e = ConfigError("it is not one")', False, id="an error"),
        pytest.param('def f():\n    _LOG.info("%s is over now", n)', False, id="of the log"),
        pytest.param("def f():\n    return Reason(Why.OVER, n=n)", False, id="a reason"),
        pytest.param("def f():\n    return sentence(why)", True, id="made and returned"),
        pytest.param("def f():\n    return f'{n}: {plainly(why)}'", True, id="made in a text"),
        pytest.param("def f():\n    return tuple(map(sentence, each))", True, id="made of each"),
        pytest.param("def f():\n    raise Stopped(sentence(why))", False, id="made and raised"),
        pytest.param('def f():\n    s = "it is one"\n    raise E(s)', False, id="kept, raised"),
        pytest.param('def f():\n    s = "it is one"\n    return s', True, id="kept, returned"),
        pytest.param(
            'def f():\n    s = "it is one"\n    _LOG.info(s)\n    return s',
            True,
            id="kept for both",
        ),
        pytest.param('def f():\n    return " and ".join(names)', False, id="no two words"),
    ],
)
def test_a_sentence_would_be_found(tmp_path: Path, source: str, found: bool) -> None:
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "toy.py").write_text(source, encoding="utf-8")
    assert bool(list(held(tmp_path))) is found


def test_every_kind_of_reason_has_words() -> None:
    assert set(WORDS) == set(Why)


def fields_of(kind: Why) -> set[str]:
    """The fields that the sentence of a kind names."""
    return set(re.findall(r"\{(\w+)", WORDS[kind]))


def stated() -> Iterator[tuple[str, Why, set[str], bool]]:
    """Yield where the package states which kind with which fields, and whether that is all."""
    for path in MODULES:
        if path.name in ("words.py", "reason.py"):
            continue
        for node in nodes_of(path):
            if not isinstance(node, ast.Call) or called(node) != "Reason":
                continue
            kinds = re.findall(r"Why\.(\w+)", ast.unparse(node.args[0]))
            given = {each.arg for each in node.keywords if each.arg is not None}
            is_all = all(each.arg is not None for each in node.keywords)
            for kind in kinds:
                where = f"{path.relative_to(PACKAGE)}:{node.lineno}"
                yield where, Why[kind], given, is_all


def test_who_states_a_reason_gives_it_the_fields_that_its_sentence_names() -> None:
    wrong = []
    for where, kind, given, is_all in stated():
        named = fields_of(kind)
        if (given != named) if is_all else not given <= named:
            wrong.append(f"{where}: {kind} has {sorted(given)}, its sentence {sorted(named)}")
    assert not wrong


def test_every_kind_is_stated_somewhere() -> None:
    text = "".join(
        path.read_text(encoding="utf-8")
        for path in PACKAGE.rglob("*.py")
        if path.name != "words.py"
    )
    used = set(re.findall(r"Why\.(\w+)", text))
    assert {each.name for each in Why} - used == set()


def test_two_kinds_say_two_things() -> None:
    kinds: dict[str, list[str]] = defaultdict(list)
    for kind, text in WORDS.items():
        kinds[text].append(kind)
    assert [own for own in kinds.values() if len(own) > 1] == []


REASONS = [
    pytest.param(
        Reason(Why.LIKELY_SLOWER, runs=2),
        "very likely slower (2 runs): more than three standard deviations below",
        "很可能更慢（2 次运行）：低了三个标准差以上",
        id="a counted noun",
    ),
    pytest.param(
        Reason(Why.STRAGGLERS, slow=9, steps=40, baselines_slow=1, baselines_steps=80, p=0.00123,
               change=None),
        "9 of its 40 steps straggle against 1 of 80 of the baselines (p = 0.001); with them the "
        "change is unknown",
        "其 40 步中有 9 步掉队，基线的 80 步中有 1 步（p = 0.001）；计入它们后变化为 未知",
        id="a field that is unknown",
    ),
    pytest.param(
        Reason(Why.ELSE, reason=Reason(Why.FASTER, low=0.012, high=0.034)),
        "else faster: +1.2 % to +3.4 % (95 %)",
        "否则 更快：+1.2 % 至 +3.4 %（95 %）",
        id="a reason of a reason",
    ),
    pytest.param(
        Reason(Why.OWN_LOG, lines=["a", "b", "c", "d", "e"]),
        "its own log: a | b | c | and 2 further lines",
        "其自身日志：a | b | c | 以及另外 2 行",
        id="the first of many",
    ),
    pytest.param(
        Reason(Why.CONTRADICTED, setting="--a", seen=None, witness="the log", asked="it's"),
        "--a is not set in the log, expected \"it's\": the profile was not in effect",
        "在 the log 中 --a 为 未设置，应为 \"it's\"：配置未生效",
        id="a value that is not there",
    ),
    pytest.param(verbatim("by `me`"), "by `me`", "by `me`", id="foreign words"),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "english", "chinese"), REASONS)
def test_a_reason_is_one_sentence_in_each_language(
    reason: Reason, english: str, chinese: str
) -> None:
    assert sentence(reason, ENGLISH) == english
    assert sentence(reason, Say(Language.CHINESE)) == chinese
    assert plainly(reason) == english.replace("`", "'")
    assert Reason.from_json(reason.to_json()) == reason
    with pytest.raises(TypeError, match="has no words"):
        f"{reason}"
