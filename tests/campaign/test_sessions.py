"""A campaign is journalled, adopted by the next session, and told from the ledger alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.campaign.jobs import cancel_unwaited
from pytest_xlatune.executors import JOB_NAME_PREFIX
from pytest_xlatune.ledger import LEDGER, Ledger, find_ledgers
from pytest_xlatune.ledger.state import replay
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError, LedgerError
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import BASELINE_ID
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import Outcome, State, VerdictKind
from pytest_xlatune.tasks.cell_report import read_cell_report
from pytest_xlatune.tasks.reports import publish
from tests.helpers.resolved import again
from tests.helpers.scripted import (
    CELL,
    FakeExecutor,
    campaign,
    failing,
    ordinary,
    run,
)


def test_a_sweep_runs_to_its_conclusion_and_again_for_nothing(tmp_path: Path) -> None:
    executor = FakeExecutor()
    first = campaign(tmp_path, executor)
    run(first)
    conclusion = first.conclude()
    verdict = conclusion.verdict("fast")
    assert verdict is not None
    assert verdict.kind is VerdictKind.FASTER
    assert conclusion.complete
    count = len(executor.submitted)
    assert count == len(set(executor.submitted)) == 2 + 2 + 3 * 3

    again = campaign(tmp_path, executor, session="second")
    run(again)
    assert len(executor.submitted) == count
    assert again.conclude() == conclusion


def test_the_order_is_the_same_however_many_are_in_flight(tmp_path: Path) -> None:
    one, four = FakeExecutor(), FakeExecutor(max_in_flight=4)
    run(campaign(tmp_path / "one", one))
    run(campaign(tmp_path / "four", four))
    assert one.submitted == four.submitted


def test_an_attempt_is_in_the_ledger_before_it_is_submitted(tmp_path: Path) -> None:
    executor = FakeExecutor()
    executor.die_after_submit = True
    with pytest.raises(KeyboardInterrupt):
        campaign(tmp_path, executor).turn()
    executor.die_after_submit = False
    second = campaign(tmp_path, executor, session="second")
    run(second)
    assert len(executor.submitted) == len(set(executor.submitted))
    assert second.conclude().complete


@pytest.mark.parametrize(("ended_s", "stops"), [(50.0, False), (1e6, True)])
def test_a_full_disk_of_an_earlier_session_does_not_stop_the_next_one(
    tmp_path: Path, ended_s: float, *, stops: bool
) -> None:
    """It had filled the ledger's disk as well, so that nobody read how the job ended."""
    full = "OSError: [Errno 28] No space left on device: '/scratch/run7'\n"
    ended = Outcome(state=State.FAILED, exit_code=1, end_s=ended_s)
    executor = FakeExecutor(failing("baseline", full, ended, times=1))
    executor.holds = True
    first = campaign(tmp_path, executor, clocks={"now": lambda: 10.0})
    first.turn()
    executor.holds = False
    second = campaign(tmp_path, executor, session="second", clocks={"now": lambda: 100.0})
    run(second)
    assert (second.view().stopped is not None) is stops


def test_a_session_that_names_the_step_lines_reads_the_trials_that_an_earlier_one_planned(
    tmp_path: Path,
) -> None:
    """As a stop for unreadable step lines advises; the time limit too is that of today."""

    def own(trial_id: str, attempt: int) -> tuple[str, Outcome]:
        text, outcome = ordinary(trial_id, attempt)
        return text.replace("completed step:", "my iteration"), outcome

    executor = FakeExecutor(own)
    first = campaign(tmp_path, executor)
    run(first)
    assert "step_pattern=" in sentence(first.view().stopped)
    protocol = replace(
        CELL.protocol,
        step_pattern=r"my iteration (?P<step>\d+), seconds: (?P<seconds>[\d.]+), .*"
        r"Tokens/s/device: (?P<tgs>[\d.]+)",
        deadline_s=60,
    )
    second = campaign(tmp_path, executor, session="second", cell=replace(CELL, protocol=protocol))
    assert {each.trial.protocol.deadline_s for each in second.view().history} == {60}
    run(second)
    verdict = second.conclude().verdict("fast")
    assert verdict is not None
    assert verdict.kind is VerdictKind.FASTER


def test_other_nodes_are_refused_and_fresh_starts_over(tmp_path: Path) -> None:
    executor = FakeExecutor()
    run(campaign(tmp_path, executor))
    count = len(executor.submitted)
    moved = Cell.from_json(CELL.to_json() | {"nodelist": ["node002"]})
    with pytest.raises(ConfigError, match=r"nodelist was \[\], is \['node002'\].*--xlatune-fresh"):
        campaign(tmp_path, executor, session="second", cell=moved)
    run(campaign(tmp_path, executor, session="third", cell=moved, fresh=True))
    assert len(executor.submitted) == 2 * count
    assert len(list(tmp_path.glob("pretend/cell/ledger*.jsonl"))) == 2
    # a later process of the same session does not start over again
    run(campaign(tmp_path, executor, session="third", cell=moved, fresh=True))
    assert len(executor.submitted) == 2 * count


class Stopped(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("last", ["cancel", "poll"])
def test_killed_between_our_cancel_and_writing_it_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    executor = FakeExecutor()
    executor.holds = True
    campaign(tmp_path, executor).turn()
    (folder,) = find_ledgers(tmp_path)

    asked = getattr(executor, last)

    def gone(*args: object, **named: object) -> None:
        asked(*args, **named)
        raise Stopped

    with monkeypatch.context() as patched:
        patched.setattr(executor, last, gone)
        with pytest.raises(Stopped):
            cancel_unwaited(folder, executors=lambda _: executor)
    assert len(executor.cancelled) == 1
    executor.holds = False
    # the next session does not take it for a user's cancel: it measures all
    run(campaign(tmp_path, executor, session="second"))
    state = replay(Ledger(folder / LEDGER).refresh())
    assert [each.next for each in state.decisions] == [Next.INTERRUPTED]
    assert read_cell_report(folder).conclusion.complete


def test_the_ledger_alone_lists_ends_and_reports(tmp_path: Path) -> None:
    executor = FakeExecutor()
    executor.holds = True
    each = campaign(tmp_path, executor)
    each.turn()
    (folder,) = find_ledgers(tmp_path)
    state = replay(Ledger(folder / LEDGER).refresh())
    (planned,) = [each for each in state.trials.values() if each.attempts]
    assert [attempt.outcome for attempt in planned.attempts.values()] == [None]
    (ended,) = cancel_unwaited(folder, executors=lambda _: executor)
    assert executor.cancelled == [ended.job_id]
    assert not cancel_unwaited(folder, executors=lambda _: executor)

    # a trial that was ended so has no result: the next session runs it again
    executor.holds = False
    run(campaign(tmp_path, executor, session="second"))
    known = read_cell_report(folder)
    assert known.conclusion.complete
    paths = publish(known.folder, tmp_path / "reports")
    assert [path.relative_to(tmp_path / "reports").as_posix() for path in paths] == [
        "pretend/leaderboard.md",
        "pretend/leaderboard.json",
        "pretend-tuning.md",
        "pretend-tuning.json",
        "pretend/leaderboard.html",
    ]
    assert all(BASELINE_ID in path.read_text(encoding="utf-8") for path in paths)


def test_a_ledger_of_another_schema_is_refused_and_fresh_moves_it_aside(tmp_path: Path) -> None:
    executor = FakeExecutor()
    run(campaign(tmp_path, executor))
    (folder,) = find_ledgers(tmp_path)
    ledger = folder / LEDGER
    old = ledger.read_bytes().replace(b'{"schema":4', b'{"schema":3')
    ledger.write_bytes(old)
    said = (
        rf"{ledger}:1: found schema 3, .* pytest-xlatune '[0-9.]+'; this version "
        r"reads 4.*--xlatune-fresh"
    )
    with pytest.raises(LedgerError, match=said):
        campaign(tmp_path, executor, session="second")
    assert ledger.read_bytes() == old

    second = campaign(tmp_path, executor, session="second", fresh=True)
    (note,) = map(sentence, second.view().state.notes)
    assert "its job ids" in note
    assert "ended none of" in note
    assert "End them with scancel" in note
    assert f"their names begin with {JOB_NAME_PREFIX}" in note
    run(second)
    assert second.conclude().complete
    assert executor.cancelled == []
    (aside,) = folder.glob("ledger-*.jsonl")
    assert aside.read_bytes() == old, "nothing is deleted"
    # a later process of the same session does not start over again
    assert campaign(tmp_path, executor, session="second", fresh=True).view().pending == ()


class Foreign(FakeExecutor):
    """An executor of another distribution, with a job that runs."""

    name = "pool"

    def __init__(self) -> None:
        super().__init__(max_in_flight=2)
        self.holds = True


def test_each_executor_is_asked_for_its_own_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign, ours = Foreign(), FakeExecutor(max_in_flight=3)
    campaign(tmp_path, foreign).turn()
    (folder,) = find_ledgers(tmp_path)
    monkeypatch.setattr(
        "pytest_xlatune.executors.named.class_named", lambda *_, **__: lambda: foreign
    )
    foreign.holds = False
    run(campaign(tmp_path, ours, session="second"))
    assert read_cell_report(folder).conclusion.complete
    assert len(foreign.submitted) == 2, "adopted, and measured where they ran"
    assert not set(foreign.submitted) & set(ours.submitted)


def test_jobs_of_an_executor_that_is_not_installed_end_in_one_message(tmp_path: Path) -> None:
    campaign(tmp_path, Foreign()).turn()
    (folder,) = find_ledgers(tmp_path)
    said = rf"unknown executor 'pool' .*{folder}.* cannot be watched"
    with pytest.raises(LedgerError, match=said):
        campaign(tmp_path, FakeExecutor(), session="second").turn()
    with pytest.raises(LedgerError, match=said):
        cancel_unwaited(folder)
    state = replay(Ledger(folder / LEDGER).refresh())
    assert {each.executor for each in state.in_flight()} == {"pool"}, "listed as before"


def without_an_intention(content: bytes) -> bytes:
    """Cut out one line: an attempt is submitted that no process intended."""
    lines = content.splitlines(keepends=True)
    at = [n for n, line in enumerate(lines) if b"attempt-intended" in line][3]
    return b"".join((*lines[:at], *lines[at + 1 :]))


@pytest.fixture
def whole(tmp_path: Path) -> Campaign:
    """A campaign that came to its end."""
    made = campaign(tmp_path, FakeExecutor())
    run(made)
    return made


def test_no_campaign_goes_on_with_a_part_of_a_damaged_ledger(whole: Campaign) -> None:
    path = whole.ledger.path
    path.write_bytes(without_an_intention(path.read_bytes()))
    executor = FakeExecutor()
    more = again(whole, whole.study, session="second", executor=executor)
    for ask in (more.open, more.open, more.view, more.turn, more.conclude):
        with pytest.raises(LedgerError, match="attempt-submitted cannot follow"):
            ask()
    assert executor.submitted == []


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "an inner line is torn": lambda content: content.replace(b'"event":"trial-planned"', b"\n", 1),
    "an attempt that no process intended": without_an_intention,
    "the same file twice": lambda content: content * 2,
    "binary": lambda _: bytes(range(256)) * 2,
    "a newline and no more": lambda _: b"\n",
    "a byte order mark": lambda content: b"\xef\xbb\xbf" + content,
    "a line without a schema": lambda content: content.replace(b'{"schema":4,', b"{"),
    "an unknown event": lambda content: content.replace(b'"trial-planned"', b'"trial-dreamt"'),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_starting_over_moves_a_damaged_ledger_aside(whole: Campaign, damage: str) -> None:
    path, work_dir = whole.ledger.path, whole.folder.parent.parent
    content = DAMAGES[damage](path.read_bytes())
    path.write_bytes(content)
    executor = FakeExecutor()
    with pytest.raises(LedgerError, match=rf"^{path}[: ]") as error:
        campaign(work_dir, executor, session="second")
    assert "--xlatune-fresh" in str(error.value)
    assert "deletes nothing" in str(error.value)
    assert path.read_bytes() == content

    again = campaign(work_dir, executor, session="second", fresh=True)
    (aside,) = path.parent.glob("ledger-*.jsonl")
    assert aside.read_bytes() == content
    assert any("its job ids" in note for note in map(sentence, again.view().state.notes))
    run(again)
    assert again.conclude().complete
    assert campaign(work_dir, executor, session="second", fresh=True).view().pending == ()
