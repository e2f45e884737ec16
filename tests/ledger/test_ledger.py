"""The journal comes back as it was written, from any prefix, whoever else writes or is killed."""

from __future__ import annotations

import itertools
import json
import os
import re
import resource
import signal
import subprocess
import sys
import types
import typing
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_xlatune.cli import main
from pytest_xlatune.ledger import (
    EVENTS,
    LEDGER,
    NOW,
    AttemptCutShort,
    AttemptEnded,
    AttemptIntended,
    AttemptLetGo,
    AttemptSubmitted,
    CampaignOpened,
    Decided,
    Event,
    EvidenceRecorded,
    Ledger,
    LedgerEntry,
    NodesPinned,
    Noted,
    Now,
    TrialEnded,
    TrialPlanned,
    _entry,
    _line,
    read_now,
    word_of,
)
from pytest_xlatune.ledger.state import TRANSITIONS, AttemptState, LedgerState, replay
from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.errors import Exit, LedgerError
from pytest_xlatune.model.message import Message, verbatim
from pytest_xlatune.model.profile import profile
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
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import (
    Action,
    Finding,
    Outcome,
    State,
    Submission,
    TrialResult,
    TrialStatus,
)
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.tasks.artifacts import read_attempt
from tests.helpers.history import measured, trial_of
from tests.helpers.probes import make_cell
from tests.helpers.scripted import FakeExecutor, campaign, run
from tests.helpers.tables import rows
from tests.helpers.waiting import LIMIT_S
from tests.helpers.words import places

# one trial that fails and comes again, another that is planned
CELL = Cell(model_tag="toy-1b", parallelism=Parallelism.parse("FSDP=2"), deployed={"A": "1,2 'x'"})


def trial(position: int = 0) -> Trial:
    return trial_of(CELL, profile("overlap", "--xla_a=true"), position=position)


def submission(of: Trial, attempt: int = 1) -> Submission:
    return Submission(
        trial_id=of.id, attempt=attempt, executor="local", job_id=f"71{attempt}", folder="f"
    )


def result(of: Trial, status: TrialStatus = TrialStatus.MEASURED) -> TrialResult:
    return replace(measured(of, 4.6), status=status, job_ids=("711",))


def intended(of: Trial, attempt: int = 1) -> AttemptIntended:
    return AttemptIntended(trial_id=of.id, attempt=attempt, comment=f"{of.id}.{attempt}")


def ended(of: Trial, attempt: int = 1, state: State = State.COMPLETED) -> AttemptEnded:
    return AttemptEnded(trial_id=of.id, attempt=attempt, outcome=Outcome(state=state))


OOM = Finding(cls="oom-gpu", action=Action.DROP, line=7, text="out of memory", detail="3 GiB")
STORY: tuple[Event, ...] = (
    CampaignOpened(cells=(CELL,), study="tuning", session="s1", versions={"pytest-xlatune": "0.1"}),
    TrialPlanned(trial=trial(0)),
    TrialPlanned(trial=trial(1)),
    intended(trial(0)),
    AttemptSubmitted(submission=submission(trial(0))),
    AttemptEnded(
        trial_id=trial(0).id,
        attempt=1,
        outcome=Outcome(state=State.NODE_FAIL, nodes=("node001",)),
        findings=(OOM,),
    ),
    Decided(trial_id=trial(0).id, attempt=1, next=Next.RETRY, cls="node", evidence="node001 died"),
    intended(trial(0), 2),
    AttemptSubmitted(submission=submission(trial(0), 2)),
    ended(trial(0), 2),
    TrialEnded(result=result(trial(0))),
    NodesPinned(cell_digest=CELL.digest, nodes=("node001", "node002")),
    Noted(text="torn\nlines, \u2028 and ünïcode"),
)
LINE = b'{"schema":4,"at":1.0,"event":"noted","text":"fine"}\n'


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "cell" / "ledger.jsonl")


def write_story(ledger: Ledger) -> bytes:
    for number, event in enumerate(STORY):
        ledger.append(event, at_s=100.0 + number)
    return ledger.path.read_bytes()


def noted(*texts: str) -> list[Noted]:
    return [Noted(text=text) for text in texts]


@given(data=st.data())
def test_any_prefix_is_readable_and_can_be_gone_on_with(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = write_story(Ledger(tmp_path_factory.mktemp("whole") / "ledger.jsonl"))
    cut = data.draw(st.integers(0, len(whole)))
    path = tmp_path_factory.mktemp("prefix") / "ledger.jsonl"
    path.write_bytes(whole[:cut])
    complete = whole[:cut].count(b"\n")
    reader = Ledger(path)
    assert tuple(entry.event for entry in reader.refresh()) == STORY[:complete]
    replay(Ledger(path).refresh())
    after = noted("after the kill")
    Ledger(path).append(*after, at_s=9.0)
    assert [entry.event for entry in reader.refresh()] == after
    assert [entry.event for entry in Ledger(path).refresh()] == [*STORY[:complete], *after]


@given(splits=st.lists(st.integers(0, len(STORY)), max_size=4))
def test_replaying_in_parts_is_the_same_as_in_one_go(
    tmp_path_factory: pytest.TempPathFactory, splits: list[int]
) -> None:
    ledger = Ledger(tmp_path_factory.mktemp("parts") / "ledger.jsonl")
    write_story(ledger)
    entries = ledger.refresh()
    state: LedgerState | None = None
    for begin, end in itertools.pairwise([0, *sorted(splits), len(entries)]):
        state = replay(entries[begin:end], onto=state)
    assert state == replay(entries)


NOTED = '{"schema":4,"at":1.0,"event":"noted","text":%s}\n'
WHOLE = NOTED % '"a"'


@rows(
    "line, message",
    {
        "torn, and no writer marked it": (f"{WHOLE[:20]}\n", "unreadable line .* Restore the file"),
        "another schema": (
            WHOLE.replace('"schema":4', '"schema":3'), "found schema 3, written by another ver"),
        "nested 10,000 deep": (NOTED % ("[" * 10_000), "noted: "),
        "deep in a message": (
            NOTED % ('"a","why":{"text":"b","values":' + '{"c":' * 10_000), "unreadable line"),
        "unknown field": (NOTED % '"a","b":1', "noted: .*nknown field `b`"),
        "NaN": (NOTED % "NaN", "unreadable line"),
        "foreign": (WHOLE.replace("noted", "sung"), "sung: no event"),
        "zeros of a file system": ("\0" * 99 + "\n", "unreadable line"),
        **{f"a time of {at}": (WHOLE.replace("1.0", at), "") for at in ("NaN", "-1", "1e999")},
    },
)  # fmt: skip
def test_a_line_that_cannot_be_trusted_is_refused_with_its_place(
    tmp_path: Path, line: str, message: str
) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text(WHOLE + line + WHOLE, encoding="utf-8")
    reader = Ledger(path)
    for _ in range(2):  # and not swallowed by asking again
        with pytest.raises(LedgerError, match=f"ledger.jsonl:2: {message}"):
            reader.refresh()
    assert path.read_text(encoding="utf-8") == WHOLE + line + WHOLE
    path.write_bytes(b"step: 4, loss: 3.1\n")
    with pytest.raises(LedgerError, match=r"is not a ledger: .*found b'step: 4"):
        Ledger(path).refresh()


def test_a_torn_line_is_marked_by_the_next_writer_and_skipped(ledger: Ledger) -> None:
    first, second = noted("a", "b")
    ledger.append(first, at_s=12.5)
    (line,) = ledger.path.read_text(encoding="ascii").splitlines()
    assert list(json.loads(line)) == ["schema", "at", "event", "text", "why"]
    with ledger.path.open("ab") as file:
        file.write(LINE[:30])
    ledger.append(second, at_s=0.0)
    torn = ledger.path.read_bytes().splitlines()[1]
    assert torn.startswith(LINE[:30])
    assert b"# torn" in torn
    entries = ledger.refresh()
    assert [(entry.number, entry.event) for entry in entries] == [(1, first), (3, second)]


WRITER = """
import sys
from pathlib import Path
from pytest_xlatune.ledger import Ledger, Noted
ledger = Ledger(Path(sys.argv[1]))
for number in range(int(sys.argv[3])):
    ledger.append(Noted(text=f"{sys.argv[2]}:{number}:" + "x" * 3000), at_s=float(number))
    print(number, flush=True)
"""


def writer(ledger: Ledger, name: str, count: int) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-c", WRITER, str(ledger.path), name, str(count)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE)


def numbers_of(ledger: Ledger, name: str) -> list[int]:
    entries = Ledger(ledger.path).refresh()
    texts = [entry.event.text for entry in entries if isinstance(entry.event, Noted)]
    return [int(text.split(":")[1]) for text in texts if text.startswith(f"{name}:")]


def test_what_is_appended_is_on_the_disk_before_it_is_acted_on(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill loses nothing that was written; a power cut loses what was not synced."""
    synced: list[tuple[int, int]] = []

    def sync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        synced.append((found.st_ino, found.st_size))

    monkeypatch.setattr(os, "fsync", sync)
    for count, event in enumerate(STORY[:3], 1):
        ledger.append(event, at_s=0.0)
        found = ledger.path.stat()
        assert synced[-1] == (found.st_ino, found.st_size)
        assert len(synced) == count


def test_a_writer_killed_at_any_moment_loses_nothing_that_it_was_told_is_written(
    ledger: Ledger,
) -> None:
    for at_least in range(3, 12, 2):
        others = [writer(ledger, f"{name}{at_least}", 10) for name in "ab"]
        with writer(ledger, str(at_least), 100_000) as process:
            assert process.stdout is not None
            for _ in range(at_least):
                process.stdout.readline()
            process.kill()
            acknowledged = at_least + len(process.stdout.read().splitlines())
        assert process.returncode == -signal.SIGKILL
        for each in others:
            each.communicate(timeout=LIMIT_S)
        written = numbers_of(ledger, str(at_least))
        assert written == list(range(len(written)))
        assert len(written) - acknowledged in (0, 1)
        for name in "ab":  # that write at the same time
            assert numbers_of(ledger, f"{name}{at_least}") == list(range(10))


def test_a_full_disk_names_the_file_and_the_ledger_goes_on_later(ledger: Ledger) -> None:
    write_story(ledger)
    limit_bytes = ledger.path.stat().st_size + 40
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(ledger.path), "a", "1"],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes)),
    )
    assert done.returncode == 1
    assert f"LedgerError: {ledger.path} cannot be written" in done.stderr
    later = noted("space again")
    ledger.append(*later, at_s=0.0)
    assert [entry.event for entry in ledger.refresh()] == [*STORY, *later]


def test_a_place_that_cannot_be_written_or_locked_is_one_clear_error(
    tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LedgerError, match=r"cannot be locked: .*must be writable"):
        Ledger(tmp_path / "file" / "ledger.jsonl").append(*noted("x"), at_s=0.0)
    ledger.append(*noted("x"), at_s=0.0)
    monkeypatch.setattr("pytest_xlatune.ledger._LOCK_TIMEOUT_S", 0.05)
    hold = (
        "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, 2); "
        "print(flush=True); sys.stdin.read()"
    )
    argv = [sys.executable, "-c", hold, f"{ledger.path}.lock"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(LedgerError, match="locked by another"):
            ledger.append(*noted("y"), at_s=0.0)
        holder.kill()


def test_archiving_moves_the_ledger_aside_deletes_nothing_and_a_reader_is_told(
    ledger: Ledger,
) -> None:
    assert ledger.archive(at_s=0.0) is None
    content, reader = write_story(ledger), Ledger(ledger.path)
    reader.refresh()
    aside = ledger.archive(at_s=0.0)
    assert aside is not None
    assert (aside.name, aside.read_bytes()) == ("ledger-19700101T000000Z.jsonl", content)
    assert ledger.refresh() == ()
    with pytest.raises(LedgerError, match="cannot be read"):
        reader.refresh()
    for events in (noted("afresh"), STORY):  # a shorter one; one that has outgrown what was read
        ledger.append(*events, at_s=0.0)
        with pytest.raises(LedgerError, match="was replaced while"):
            reader.refresh()
    again = ledger.archive(at_s=0.0)
    assert again is not None
    assert again.name == "ledger-19700101T000000Z-2.jsonl"
    assert aside.read_bytes() == content


# ---- what a ledger comes to: where each trial stands, and what may still be attempted


def state_of(*events: Event) -> LedgerState:
    return replay(LedgerEntry(number=n, at_s=1.0, event=event) for n, event in enumerate(events, 1))


def with_result(status: str) -> TrialEnded:
    return TrialEnded(result=result(trial(), TrialStatus(status)))


ONCE = (TrialPlanned(trial=trial()), intended(trial()), ended(trial()))
OPENED = [CampaignOpened(cells=(CELL,), study="tuning", session=each) for each in ("s1", "s2")]


@rows(
    "events, status, decisions",
    {
        "dropped stays": ((with_result("dropped"), with_result("measured")), "dropped", 0),
        "unmeasured gives way": (
            (with_result("unmeasured"), with_result("measured")), "measured", 0),
        "an unmeasured trial is open again": (
            (*ONCE, with_result("unmeasured"), intended(trial(), 2)), "running", 0),
        "a measured one keeps its score": (
            (*ONCE, with_result("measured"), intended(trial(), 2)), "measured", 0),
        "a later session may try again": (
            (*STORY[:7], with_result("unmeasured"), OPENED[1]), "planned", 0),
        "another process of the same session does not": (
            (*STORY[:7], with_result("unmeasured"), OPENED[0]), "unmeasured", 1),
    },
)  # fmt: skip
def test_what_a_trial_comes_to(events: tuple[Event, ...], status: str, decisions: int) -> None:
    state = state_of(*events)
    assert state.history("tuning")[0].status == status
    assert len(state.decisions) == decisions


def test_open_trials_have_the_labels_of_the_protocol_of_today() -> None:
    today = replace(CELL, protocol=replace(CELL.protocol, deadline_s=60))
    later = CampaignOpened(cells=(today,), study="tuning", session="s2")
    state = state_of(OPENED[0], TrialPlanned(trial=trial()), later)
    assert state.history("tuning")[0].trial.protocol.deadline_s == 60
    with pytest.raises(LedgerError, match=r"line 1: attempt-intended names trial .*never planned"):
        state_of(intended(trial()))


OF = trial().id
OUTCOME = Outcome(state=State.COMPLETED, exit_code=0)
INTENDED = AttemptIntended(trial_id=OF, attempt=1, comment="c")
SUBMITTED = AttemptSubmitted(submission=submission(trial()))
CUT_SHORT = AttemptCutShort(trial_id=OF, attempt=1, still_s=9.0)
LET_GO = AttemptLetGo(trial_id=OF, attempt=1)
ENDED = AttemptEnded(trial_id=OF, attempt=1, outcome=OUTCOME)
OF_ATTEMPTS: tuple[Event, ...] = (INTENDED, SUBMITTED, CUT_SHORT, LET_GO, ENDED)
# the shortest way into each state
WAYS: dict[AttemptState, tuple[Event, ...]] = {
    AttemptState.UNKNOWN: (),
    AttemptState.INTENDED: (INTENDED,),
    AttemptState.SUBMITTED: (INTENDED, SUBMITTED),
    AttemptState.CUT_SHORT: (INTENDED, SUBMITTED, CUT_SHORT),
    AttemptState.LET_GO: (INTENDED, SUBMITTED, LET_GO),
    AttemptState.ENDED: (INTENDED, SUBMITTED, ENDED),
}
FOLLOWS = {AttemptState.UNKNOWN: "attempt-intended can", AttemptState.ENDED: "nothing can"}


@pytest.mark.parametrize("state", list(AttemptState))
@pytest.mark.parametrize("event", OF_ATTEMPTS, ids=lambda event: word_of(type(event)))
def test_what_the_table_does_not_allow_is_refused_with_its_line(
    state: AttemptState, event: Event
) -> None:
    events = (TrialPlanned(trial=trial()), *WAYS[state], event)
    line = len(WAYS[state]) + 2
    allowed = TRANSITIONS[state].get(type(event))
    if allowed is None:
        why = rf"line {line}: the attempt is {state}, where.*\({FOLLOWS.get(state, '.*')}\)"
        with pytest.raises(LedgerError, match=why):
            state_of(*events)
        return
    found = state_of(*events)
    assert found.trials[OF].attempts[1].state is allowed
    assert [each.attempt for each in found.in_flight()] == [1] * allowed.is_in_flight
    assert len(found.unresolved()) == (allowed is AttemptState.INTENDED)


# ---- whatever a line, a record or a path in it holds, it is read or refused with its place

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


A_SUBMISSION = {
    "trial_id": "t",
    "attempt": 1,
    "executor": "local",
    "job_id": "1.1",
    "folder": "s/t.1",
}
A_SESSION: dict[str, Any] = {"cells": [], "study": "tuning", "sweep": "quickstart"}
EVIDENCE: dict[str, Any] = {"trial_id": "t", "dump": "d", "captures": ["c"]}


@rows(
    "record, good, field",
    {
        "the folder of an attempt": (Submission, A_SUBMISSION, "folder"),
        "a dump": (EvidenceRecorded, EVIDENCE, "dump"),
        "captures": (EvidenceRecorded, EVIDENCE, "captures"),
        "the name of a sweep": (CampaignOpened, A_SESSION, "sweep"),
        "the id of a session": (CampaignOpened, A_SESSION, "session"),
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
        Submission.from_json({**A_SUBMISSION, "job_id": "--user=me"})


def test_a_ledger_that_leads_elsewhere_is_told_and_not_followed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "work" / "sweep" / "cell" / LEDGER
    Ledger(path).append(AttemptSubmitted(submission=Submission.from_json(A_SUBMISSION)), at_s=1.0)
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
