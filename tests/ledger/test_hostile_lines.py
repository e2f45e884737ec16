"""Whatever a line, a record or a path in it holds, it is read or refused with its place."""

from __future__ import annotations

import json
import os
import re
import types
import typing
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_xlatune.cli import main
from pytest_xlatune.ledger import (
    EVENTS,
    LEDGER,
    AttemptSubmitted,
    CampaignOpened,
    Event,
    EvidenceRecorded,
    Ledger,
    Noted,
    TrialPlanned,
    _entry,
    _line,
)
from pytest_xlatune.ledger.now import NOW, Now, read_now
from pytest_xlatune.ledger.state import replay
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import Exit, LedgerError
from pytest_xlatune.model.message import Message, verbatim
from pytest_xlatune.model.record import (
    AnyRelativePath,
    JobId,
    Json,
    Real,
    Record,
    RelativePath,
    Time,
    Timings,
)
from pytest_xlatune.model.result import Submission
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.tasks.artifacts import read_attempt
from tests.helpers.probes import make_cell
from tests.helpers.scripted import FakeExecutor, campaign, run
from tests.helpers.stories import STORY
from tests.helpers.tables import rows

MARK = "the hostile value"
# as they stand in a text of JSON; the last two come out of no reader of JSON
HOSTILE = {
    "null": "null",
    "a text": '"nan"',
    "a list": "[]",
    "a negative number": "-1",
    "a number beyond all floats": "1e999",
    "NaN": "NaN",
    "an integer of 5,000 digits": "9" * 5000,
    "100,000 brackets": "[" * 100_000,
}
UNREAD = [*HOSTILE][-2:]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Give each place of a value of JSON: the container and the key."""
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    for key in list(keys):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


@pytest.mark.parametrize("hostile", HOSTILE)
def test_each_place_of_each_line_may_hold_anything(hostile: str) -> None:
    read, refused = 0, list[str]()
    for event in STORY:
        data = json.loads(_line(event, 1.0))
        for container, key in places(data):
            kept, container[key] = container[key], MARK
            line = json.dumps(data).replace(f'"{MARK}"', HOSTILE[hostile]).encode() + b"\n"
            container[key] = kept
            try:
                entry = _entry(line, number=1, path=Path("ledger.jsonl"))
            except LedgerError as error:
                refused.append(str(error))
            else:
                read += 1
                _line(entry.event, entry.at_s)
    assert refused
    assert [each for each in refused if not each.startswith("ledger.jsonl:1: ")] == []
    assert max(map(len, refused)) < 1000
    if hostile in (*UNREAD, "NaN"):
        assert not read


# as a text of JSON has it
ORDERS = '"a\\u001b[2J\\u009b1m\\r\\u202e\\n::error::b\\n  ::add-mask::c\\n##[error]d"'
AN_ORDER = re.compile(r"(?m)[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202e]|\r(?!\n)|##\[|^\s*::")


@pytest.mark.parametrize(
    "said",
    [
        *('"config_tag":""', '"sweep":"pretend"', '"job_ids":["1"]', '"nodes":[]'),
        *('"note":""', '"reason":""'),
    ],
)
def test_a_ledger_gives_no_orders_to_a_terminal_a_document_or_a_pipeline(
    said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    each = campaign(tmp_path, FakeExecutor())
    run(each)
    ledger = each.folder / "ledger.jsonl"
    text = ledger.read_text(encoding="utf-8")
    name, _, value = said.partition(":")
    assert said in text
    orders = f"[{ORDERS}]" if value[0] == "[" else ORDERS
    ledger.write_text(text.replace(said, f"{name}:{orders}"), encoding="utf-8")
    reports = tmp_path / "reports"
    capsys.readouterr()
    main(["report", str(ledger), "--reports", str(reports), "--export", "csv"])
    main(["report", str(ledger), "--json"])
    main(["watch", "--once", "--workdir", str(tmp_path)])
    main(["history", str(tmp_path)])
    shown = capsys.readouterr()
    found = {"stdout": shown.out, "stderr": shown.err}
    # a patch has the lines of a file as they are, and JSON is ASCII
    documents = (each for each in reports.rglob("*.*") if each.suffix not in (".patch", ".json"))
    found |= {each.name: each.read_bytes().decode() for each in documents}
    assert {name for name, text in found.items() if AN_ORDER.search(text)} == set()


def records(cls: type[Record] = Record) -> list[type[Record]]:
    return [each for sub in cls.__subclasses__() for each in (sub, *records(sub))]


@pytest.mark.parametrize("hostile", [each for each in HOSTILE if each not in UNREAD])
def test_each_record_is_refused_with_one_kind_of_error(hostile: str) -> None:
    value = json.loads(HOSTILE[hostile])
    for cls in records():
        # other tests bring classes of modules that are gone by now
        if not cls.__module__.startswith("pytest_xlatune."):
            continue
        names = cls.__struct_fields__
        for said in (value, {"x": value}, *({name: value} for name in names)):
            try:
                cls.from_json(said)
            except LedgerError:
                continue


def test_a_file_beside_the_ledger_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    job = '{"at_s": 1.0, "jobs": {"1": {"state": "running", "start_s": 1e999}}}'
    for text in ("", "[" * 100_000, '{"at_s": NaN}', '{"at_s": "x"}', "[]", job):
        (tmp_path / NOW).write_text(text, encoding="utf-8")
        assert read_now(tmp_path) == Now()


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
SOME: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXTS,
    bool: st.booleans(),
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    Real: st.floats(allow_nan=False),
    Timings: st.lists(st.tuples(st.integers(0, 99), st.floats(0, 9))).map(tuple),
    Time: st.floats(0, 1e10),
    RelativePath: st.just("trials/a/1"),
    AnyRelativePath: st.sampled_from(["", "dump"]),
    JobId: st.just("4711"),
    Json: st.none() | st.booleans() | TEXTS,
    # in a message, such a text is a number
    Message: st.builds(verbatim, TEXTS.filter(lambda text: text not in ("nan", "inf", "-inf"))),
    type(None): st.none(),
    # what users construct is checked by itself
    Trial: st.just(next(each.trial for each in STORY if isinstance(each, TrialPlanned))),
    Cell: st.builds(make_cell),
}


def some(kind: Any) -> st.SearchStrategy[Any]:
    """Return values of an annotation of a record."""
    if kind in SOME:
        return SOME[kind]
    origin, of = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*map(some, of))
    if origin is tuple and of[-1] is ...:
        return st.lists(some(of[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(some, of))
    if origin is dict:
        return st.dictionaries(some(of[0]), some(of[1]), max_size=2)
    if issubclass(kind, Enum):
        return st.sampled_from(list(kind))
    hints = typing.get_type_hints(kind, include_extras=True)
    return st.builds(kind, **{name: some(hints[name]) for name in kind.__struct_fields__})


@pytest.mark.parametrize("cls", EVENTS.values(), ids=EVENTS)
@settings(max_examples=20)
@given(data=st.data(), at_s=st.floats(0, 1e10))
def test_each_event_comes_back_equal_from_its_line(
    cls: type[Event], data: st.DataObject, at_s: float
) -> None:
    event = data.draw(some(cls))
    read = _entry(_line(event, at_s), number=1, path=Path("ledger.jsonl"))
    assert (read.event, read.at_s) == (event, at_s)


def test_a_name_that_is_no_text_is_written_so_that_it_can_be_read() -> None:
    line = _line(Noted(text=os.fsdecode(b"run-\xff")), 1.0)
    assert _entry(line, number=1, path=Path("ledger.jsonl")).event == Noted(text="run-?")


NOTED = '{"schema":4,"at":1.0,"event":"noted","text":%s}\n'


WHOLE = NOTED % '"a"'
DEEP = NOTED % ('"a","why":{"text":"b","values":' + '{"c":' * 10_000)


@rows(
    "line, said",
    {
        "nested 10,000 deep": (NOTED % ("[" * 10_000), "noted: "),
        "deep in a message": (DEEP, "unreadable line"),
        "unknown field": (NOTED % '"a","b":1', "noted: .*nknown field `b`"),
        "NaN": (NOTED % "NaN", "unreadable line"),
        "foreign": (WHOLE.replace("noted", "sung"), "sung: no event"),
        "zeros of a file system": ("\0" * 99 + "\n", "unreadable line"),
        **{f"a time of {at}": (WHOLE.replace("1.0", at), "") for at in ("NaN", "-1", "1e999")},
    },
)
def test_a_damaged_line_is_refused_with_its_place(line: str, said: str) -> None:
    replay([_entry(WHOLE.encode(), number=3, path=Path("ledger.jsonl"))])
    with pytest.raises(LedgerError, match=f"^ledger.jsonl:3: {said}"):
        _entry(line.encode(), number=3, path=Path("ledger.jsonl"))


SUBMITTED = {"trial_id": "t", "attempt": 1, "executor": "local", "job_id": "1.1", "folder": "s/t.1"}
OPENED: dict[str, Any] = {"cells": [], "study": "tuning", "sweep": "quickstart"}
EVIDENCE: dict[str, Any] = {"trial_id": "t", "dump": "d", "captures": ["c"]}


@rows(
    "record, good, field",
    {
        "the folder of an attempt": (Submission, SUBMITTED, "folder"),
        "a dump": (EvidenceRecorded, EVIDENCE, "dump"),
        "captures": (EvidenceRecorded, EVIDENCE, "captures"),
        "the name of a sweep": (CampaignOpened, OPENED, "sweep"),
        "the id of a session": (CampaignOpened, OPENED, "session"),
    },
)
def test_a_path_of_a_record_lies_below_its_ledger(
    record: Any, good: dict[str, Any], field: str
) -> None:
    record.from_json(good)
    for path in ("../../..", "s/../../t.1", "/etc", "s/\0", *([""] * (field == "folder"))):
        with pytest.raises(LedgerError, match=rf"leads out of the ledger.*{field}"):
            record.from_json({**good, field: [path] if field == "captures" else path})
    with pytest.raises(LedgerError, match=r"no name of a job - at `.*job_id`"):
        Submission.from_json({**SUBMITTED, "job_id": "--user=me"})


def test_a_ledger_that_leads_elsewhere_is_told_and_not_followed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "work" / "sweep" / "cell" / LEDGER
    Ledger(path).append(AttemptSubmitted(submission=Submission.from_json(SUBMITTED)), at_s=1.0)
    path.write_text(path.read_text().replace('"s/t.1"', '"../../.."'))
    for command in ("jobs", "report"):
        assert main([command, "--workdir", str(tmp_path / "work")]) == Exit.INTERNAL
        said = capsys.readouterr()
        assert "a path that leads out" in said.out + said.err


def test_captures_and_a_dump_behind_a_link_are_told_and_not_read(tmp_path: Path) -> None:
    attempt, other = tmp_path / "s" / "t.1", tmp_path / "other"
    profile = attempt / "plugins" / "profile" / "1"
    for each in (profile, other):
        each.mkdir(parents=True)
    (other / "a.xplane.pb").write_bytes(b"")
    (profile / "a.xplane.pb").symlink_to(other / "a.xplane.pb")
    (attempt / "xla_dump").symlink_to(other)
    found = read_attempt("t", tmp_path, "s/t.1")
    assert (found.dump, found.captures) == ("", ())
    assert sum("leads out of its" in each for each in found.problems) == 2
