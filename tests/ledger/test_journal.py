"""The journal comes back as it was written, from any prefix, whoever else writes or is killed."""

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
from msgspec.structs import replace

from pytest_xlatune.ledger import (
    AttemptCutShort,
    AttemptEnded,
    AttemptIntended,
    AttemptLetGo,
    AttemptSubmitted,
    CampaignOpened,
    Event,
    Ledger,
    LedgerEntry,
    Noted,
    TrialEnded,
    TrialPlanned,
    word_of,
)
from pytest_xlatune.ledger.state import TRANSITIONS, AttemptState, LedgerState, replay
from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.model.result import Outcome, State, TrialStatus
from tests.helpers.stories import CELL, STORY, ended, intended, result, submission, trial
from tests.helpers.tables import rows
from tests.helpers.waiting import LIMIT_S

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


@rows(
    "content, message",
    {
        "a torn inner line that no writer marked": (
            LINE + LINE[:20] + b"\n" + LINE, r":2: unreadable line .* Restore the file"),
        "another schema": (
            LINE.replace(b'"schema":4', b'"schema":3'),
            r":1: found schema 3, written by another ver"),
        "a log": (b"step: 4, loss: 3.1\n", r"is not a ledger: .*found b'step: 4"),
    },
)  # fmt: skip
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
EVENTS: tuple[Event, ...] = (INTENDED, SUBMITTED, CUT_SHORT, LET_GO, ENDED)
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
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: word_of(type(event)))
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
