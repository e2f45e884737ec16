"""The ledger loses nothing: not to a kill, not to another writer, not to a full disk."""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_xlatune.cells import Cell, Parallelism, Protocol, Stage, Trial
from pytest_xlatune.errors import LedgerError
from pytest_xlatune.ledger import (
    AttemptEnded,
    AttemptIntended,
    AttemptSubmitted,
    CampaignOpened,
    Decided,
    Event,
    Ledger,
    LedgerState,
    NodesPinned,
    Noted,
    TrialEnded,
    TrialPlanned,
    replay,
)
from pytest_xlatune.profiles import profile
from pytest_xlatune.results import (
    Action,
    Finding,
    Outcome,
    Score,
    State,
    Submission,
    TrialResult,
    TrialStatus,
)

CELL = Cell(model_tag="toy-1b", parallelism=Parallelism.parse("FSDP=2"), deployed={"A": "1,2 'x'"})
WRITER = """
import sys
from pathlib import Path
from pytest_xlatune.ledger import Ledger, Noted
ledger = Ledger(Path(sys.argv[1]))
for number in range(int(sys.argv[3])):
    ledger.append(Noted(text=f"{sys.argv[2]}:{number}:" + "x" * 3000), at_s=float(number))
    print(number, flush=True)
"""


def trial(position: int = 0, *, study: str = "tuning") -> Trial:
    return Trial(
        cell_digest=CELL.digest,
        profile=profile("overlap", "--xla_a=true"),
        protocol=Protocol(),
        study=study,
        stage=Stage.SCREEN,
        position=position,
    )


def submission(of: Trial, attempt: int = 1) -> Submission:
    return Submission(
        trial_id=of.id, attempt=attempt, executor="local", job_id=f"71{attempt}", folder="f"
    )


def result(of: Trial, status: TrialStatus = TrialStatus.MEASURED) -> TrialResult:
    score = Score(value=4.6, tgs=99.5, step_s=0.25, n_steps=10, window=(5, 14))
    return TrialResult(trial=of, status=status, score=score, job_ids=("711",))


def intended(of: Trial, attempt: int = 1) -> AttemptIntended:
    return AttemptIntended(trial_id=of.id, attempt=attempt, comment=f"{of.id}.{attempt}")


def ended(of: Trial, attempt: int = 1, state: State = State.COMPLETED) -> AttemptEnded:
    return AttemptEnded(trial_id=of.id, attempt=attempt, outcome=Outcome(state=state))


OOM = Finding(cls="oom-gpu", action=Action.DROP, line=7, text="out of memory", detail="3 GiB")
STORY: tuple[Event, ...] = (
    CampaignOpened(cell=CELL, study="tuning", session="s1", versions={"pytest-xlatune": "0.1"}),
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
    Decided(trial_id=trial(0).id, attempt=1, next="retry", cls="node", evidence="node001 died"),
    intended(trial(0), 2),
    AttemptSubmitted(submission=submission(trial(0), 2)),
    ended(trial(0), 2),
    TrialEnded(result=result(trial(0))),
    NodesPinned(nodes=("node001", "node002")),
    Noted(text="torn\nlines, \u2028 and ünïcode"),
)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "cell" / "ledger.jsonl")


def write_story(ledger: Ledger) -> bytes:
    for number, event in enumerate(STORY):
        ledger.append(event, at_s=100.0 + number)
    return ledger.path.read_bytes()


def test_every_event_comes_back_as_it_was_with_its_line_and_time(ledger: Ledger) -> None:
    write_story(ledger)
    entries = Ledger(ledger.path).events()
    assert tuple(entry.event for entry in entries) == STORY
    assert [entry.number for entry in entries] == list(range(1, len(STORY) + 1))
    assert [entry.at_s for entry in entries] == [100.0 + n for n in range(len(STORY))]


def test_a_reader_gets_only_what_is_new(ledger: Ledger) -> None:
    reader = Ledger(ledger.path)
    assert reader.refresh() == ()
    ledger.append_all(STORY[:2], at_s=1.0)
    assert [entry.event for entry in reader.refresh()] == list(STORY[:2])
    assert reader.refresh() == ()
    ledger.append(STORY[2], at_s=2.0)
    assert [entry.event for entry in reader.refresh()] == [STORY[2]]
    assert [entry.event for entry in reader.events()] == list(STORY[:3])


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
    replay(reader.events())

    Ledger(path).append(Noted(text="after the kill"), at_s=9.0)
    assert [entry.event for entry in reader.refresh()] == [Noted(text="after the kill")]
    events = tuple(entry.event for entry in Ledger(path).events())
    assert events == (*STORY[:complete], Noted(text="after the kill"))


@given(splits=st.lists(st.integers(0, len(STORY)), max_size=4))
def test_replaying_in_parts_is_the_same_as_in_one_go(
    tmp_path_factory: pytest.TempPathFactory, splits: list[int]
) -> None:
    ledger = Ledger(tmp_path_factory.mktemp("parts") / "ledger.jsonl")
    write_story(ledger)
    entries = ledger.events()
    state: LedgerState | None = None
    at = [0, *sorted(splits), len(entries)]
    for begin, end in itertools.pairwise(at):
        state = replay(entries[begin:end], onto=state)
    assert state == replay(entries)


def story_until(ledger: Ledger, events: int) -> LedgerState:
    ledger.append_all(STORY[:events], at_s=1.0)
    return replay(ledger.events())


@pytest.mark.parametrize(
    ("events", "statuses", "in_flight", "unresolved"),
    [
        pytest.param(3, ["planned", "planned"], [], [], id="planned"),
        pytest.param(4, ["running", "planned"], [], [1], id="intended, perhaps submitted"),
        pytest.param(5, ["running", "planned"], ["711"], [], id="submitted"),
        pytest.param(7, ["planned", "planned"], [], [], id="ended, to be tried again"),
        pytest.param(9, ["running", "planned"], ["712"], [], id="submitted again"),
        pytest.param(11, ["measured", "planned"], [], [], id="measured"),
    ],
)
def test_state_tells_where_each_trial_stands(
    ledger: Ledger, events: int, statuses: list[str], in_flight: list[str], unresolved: list[int]
) -> None:
    state = story_until(ledger, events)
    assert [each.status.value for each in state.history("tuning")] == statuses
    assert [each.trial for each in state.history("tuning")] == [trial(0), trial(1)]
    assert [each.job_id for each in state.in_flight()] == in_flight
    assert [attempt.number for _, attempt in state.unresolved()] == unresolved


def test_a_trial_without_a_result_tells_its_jobs_findings_and_last_outcome(ledger: Ledger) -> None:
    first = story_until(ledger, 9).history("tuning")[0]
    assert first.job_ids == ("711", "712")
    assert first.findings == (OOM,)
    assert first.outcome is not None
    assert first.outcome.state is State.NODE_FAIL


def test_state_keeps_sessions_decisions_and_notes(ledger: Ledger) -> None:
    state = story_until(ledger, len(STORY))
    assert [each.cell for each in state.opened] == [CELL]
    assert [each.evidence for each in state.decisions] == ["node001 died"]
    assert state.pinned == ("node001", "node002")
    assert state.notes == ("torn\nlines, \u2028 and ünïcode",)


def test_history_is_of_one_study(ledger: Ledger) -> None:
    ledger.append(TrialPlanned(trial=trial(study="network")), at_s=0.0)
    ledger.append(TrialPlanned(trial=trial(study="tuning")), at_s=0.0)
    assert [each.trial.study for each in replay(ledger.events()).history("network")] == ["network"]


@pytest.mark.parametrize(
    ("first", "then", "stands"),
    [
        (TrialStatus.MEASURED, TrialStatus.UNMEASURED, TrialStatus.MEASURED),
        (TrialStatus.DROPPED, TrialStatus.MEASURED, TrialStatus.DROPPED),
        (TrialStatus.UNMEASURED, TrialStatus.MEASURED, TrialStatus.MEASURED),
    ],
    ids=["measured stays", "dropped stays", "unmeasured gives way"],
)
def test_a_later_result_replaces_only_a_missing_measurement(
    ledger: Ledger, first: TrialStatus, then: TrialStatus, stands: TrialStatus
) -> None:
    for status in (first, then):
        ledger.append(TrialEnded(result=result(trial(), status)), at_s=0.0)
    assert [each.status for each in replay(ledger.events()).history("tuning")] == [stands]


@pytest.mark.parametrize(
    ("status", "after"),
    [
        (TrialStatus.UNMEASURED, TrialStatus.RUNNING),
        (TrialStatus.MEASURED, TrialStatus.MEASURED),
    ],
    ids=["an unmeasured trial is open again", "a measured one keeps its score"],
)
def test_a_further_attempt_after_the_result(
    ledger: Ledger, status: TrialStatus, after: TrialStatus
) -> None:
    ledger.append_all((TrialPlanned(trial=trial()), intended(trial()), ended(trial())), at_s=0.0)
    ledger.append(TrialEnded(result=result(trial(), status)), at_s=0.0)
    ledger.append(intended(trial(), 2), at_s=0.0)
    assert replay(ledger.events()).history("tuning")[0].status is after


@pytest.mark.parametrize(
    ("session", "status", "decisions"),
    [("s2", TrialStatus.PLANNED, 0), ("s1", TrialStatus.UNMEASURED, 1)],
    ids=["a later session may try again", "another process of the same session does not"],
)
def test_what_nobody_could_measure_when_a_campaign_opens_again(
    ledger: Ledger, session: str, status: TrialStatus, decisions: int
) -> None:
    ledger.append_all(STORY[:7], at_s=0.0)
    ledger.append(TrialEnded(result=result(trial(), TrialStatus.UNMEASURED)), at_s=0.0)
    ledger.append(CampaignOpened(cell=CELL, study="tuning", session=session), at_s=0.0)
    state = replay(ledger.events())
    assert state.history("tuning")[0].status is status
    assert len(state.decisions) == decisions


def test_an_attempt_of_an_unplanned_trial_is_refused(ledger: Ledger) -> None:
    ledger.append(intended(trial()), at_s=0.0)
    with pytest.raises(LedgerError, match=r"line 1: attempt-intended names trial .*never planned"):
        replay(ledger.events())


LINE = b'{"schema":1,"at":1.0,"event":"noted","text":"fine"}\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (LINE + LINE[:20] + b"\n" + LINE, r":2: unreadable line .* Restore the file"),
        (LINE + LINE[:20] + LINE, r":2: unreadable line"),
        (LINE.replace(b'"schema":1', b'"schema":2'), r":1: written by schema 2.*upgrade"),
        (b"step: 4, loss: 3.1\n", r"is not a ledger: .*found b'step: 4.*another work directory"),
        (b"step: 4", r"is not a ledger"),
        (LINE + LINE.replace(b"noted", b"sung"), r":2: unknown event 'sung'; expected one of"),
        (LINE.replace(b"text", b"words"), r":1: noted: Noted: unknown field 'words'"),
        (LINE.replace(b"1.0", b'"noon"'), r":1: noted: "),
    ],
    ids=[
        "a torn inner line that no writer marked",
        "two lines glued together",
        "a newer schema",
        "a log",
        "a log without a newline",
        "an unknown event",
        "an unknown field",
        "a time that is none",
    ],
)
def test_a_file_that_cannot_be_trusted_is_refused(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(content)
    reader = Ledger(path)
    for _ in range(2):  # and not swallowed by asking again
        with pytest.raises(LedgerError, match=message):
            reader.refresh()
    assert path.read_bytes() == content


def test_a_torn_line_is_marked_by_the_next_writer_and_skipped(ledger: Ledger) -> None:
    ledger.append(Noted(text="a"), at_s=0.0)
    with ledger.path.open("ab") as file:
        file.write(LINE[:30])
    ledger.append(Noted(text="b"), at_s=0.0)
    lines = ledger.path.read_bytes().splitlines()
    assert lines[1].startswith(LINE[:30])
    assert b"# torn" in lines[1]
    assert [(entry.number, entry.event) for entry in ledger.events()] == [
        (1, Noted(text="a")),
        (3, Noted(text="b")),
    ]


def test_four_processes_append_at_once_and_no_line_is_lost(ledger: Ledger) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(ledger.path), name, "40"], stdout=subprocess.DEVNULL
        )
        for name in "abcd"
    ]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    texts = [entry.event.text for entry in ledger.events() if isinstance(entry.event, Noted)]
    for name in "abcd":
        mine = [int(text.split(":")[1]) for text in texts if text.startswith(name)]
        assert mine == list(range(40))


def test_a_writer_killed_at_any_moment_loses_nothing_that_it_was_told_is_written(
    ledger: Ledger,
) -> None:
    for round_ in range(5):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(ledger.path), str(round_), "100000"],
            stdout=subprocess.PIPE,
        )
        assert writer.stdout is not None
        for _ in range(3 + 2 * round_):
            writer.stdout.readline()
        writer.kill()
        said = writer.stdout.read().splitlines()
        writer.stdout.close()
        assert writer.wait() == -signal.SIGKILL
        acknowledged = 3 + 2 * round_ + len(said)
        texts = [entry.event.text for entry in ledger.events() if isinstance(entry.event, Noted)]
        mine = [int(text.split(":")[1]) for text in texts if text.startswith(f"{round_}:")]
        assert mine == list(range(len(mine)))
        assert len(mine) - acknowledged in (0, 1)


def test_a_full_disk_names_the_file_and_the_ledger_goes_on_later(ledger: Ledger) -> None:
    write_story(ledger)
    limit_bytes = ledger.path.stat().st_size + 40
    code = (
        "import sys; from pathlib import Path; from pytest_xlatune.ledger import Ledger, Noted\n"
        "Ledger(Path(sys.argv[1])).append(Noted(text='x' * 100), at_s=0.0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(ledger.path)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes)),
    )
    assert done.returncode == 1
    assert f"LedgerError: {ledger.path} cannot be written" in done.stderr
    ledger.append(Noted(text="space again"), at_s=0.0)
    assert [entry.event for entry in ledger.events()] == [*STORY, Noted(text="space again")]


def test_an_unwritable_directory_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ledger = Ledger(tmp_path / "file" / "ledger.jsonl")
    with pytest.raises(LedgerError, match=r"cannot be locked: .*must be writable"):
        ledger.append(Noted(text="x"), at_s=0.0)


def test_a_lock_that_another_process_holds_is_named(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.append(Noted(text="x"), at_s=0.0)
    monkeypatch.setattr("pytest_xlatune.ledger._LOCK_TIMEOUT_S", 0.05)
    hold = (
        "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, 2); "
        "print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, f"{ledger.path}.lock"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(LedgerError, match="is locked by another process"):
            ledger.append(Noted(text="y"), at_s=0.0)


def test_archiving_moves_the_ledger_aside_and_deletes_nothing(ledger: Ledger) -> None:
    assert ledger.archive(at_s=0.0) is None
    content = write_story(ledger)
    aside = ledger.archive(at_s=0.0)
    assert aside is not None
    assert (aside.name, aside.read_bytes()) == ("ledger-19700101T000000Z.jsonl", content)
    assert ledger.events() == ()
    ledger.append(Noted(text="afresh"), at_s=0.0)
    again = ledger.archive(at_s=0.0)
    assert again is not None
    assert again.name == "ledger-19700101T000000Z-2.jsonl"
    assert aside.read_bytes() == content


def test_a_reader_of_a_ledger_that_was_moved_aside_is_told(ledger: Ledger) -> None:
    reader = Ledger(ledger.path)
    ledger.append_all(STORY, at_s=0.0)
    reader.refresh()
    ledger.archive(at_s=0.0)
    with pytest.raises(LedgerError, match="cannot be read"):
        reader.refresh()
    ledger.append(Noted(text="afresh"), at_s=0.0)
    with pytest.raises(LedgerError, match="was replaced while this session was using it"):
        reader.refresh()


def test_a_line_is_json_with_schema_time_and_event_first(ledger: Ledger) -> None:
    ledger.append(Noted(text="hello"), at_s=12.5)
    line = ledger.path.read_text(encoding="ascii")
    assert list(json.loads(line)) == ["schema", "at", "event", "text"]
    assert os.linesep not in line[:-1]
