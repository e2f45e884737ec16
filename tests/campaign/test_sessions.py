"""A campaign over several sessions and processes, and what is seen of it while it runs."""

from __future__ import annotations

import itertools
import logging
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.campaign.jobs import cancel_unwaited
from pytest_xlatune.campaign.log import LOG, write_log
from pytest_xlatune.cli import main
from pytest_xlatune.executors import JOB_NAME_PREFIX, Request, SchedulerDown
from pytest_xlatune.ledger import LEDGER, AttemptEnded, Decided, Event, Ledger, Noted
from pytest_xlatune.ledger.driver_lock import DriverLock
from pytest_xlatune.ledger.state import replay
from pytest_xlatune.model.errors import ConfigError, LedgerError, NotMeasured
from pytest_xlatune.model.message import say, sentence
from pytest_xlatune.model.result import (
    Outcome,
    RotationResult,
    State,
    Submission,
)
from pytest_xlatune.model.text import ABSENT
from pytest_xlatune.model.trial import LaunchSpec
from pytest_xlatune.report.lines import in_columns, live_line
from pytest_xlatune.studies.calibration import CalibrationStudy
from pytest_xlatune.studies.tuning import TuningStudy
from pytest_xlatune.tasks.live import LiveLines
from pytest_xlatune.tasks.reports import publish
from pytest_xlatune.tasks.runs import calibrate
from tests.helpers.history import measured
from tests.helpers.scripted import (
    CELL,
    FAILED,
    KILLED,
    OK,
    STEPS,
    CellsStudy,
    Cluster,
    FakeExecutor,
    campaign,
    campaign_of,
    failing,
    log,
    on,
    ordinary,
    rotation_trial,
    run,
    spec_of,
)
from tests.helpers.second_looks import BESIDE_THE_LAB
from tests.helpers.tables import rows


@pytest.fixture(autouse=True)
def look_shortly_whether_another_session_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = DriverLock.none_waits
    monkeypatch.setattr(DriverLock, "none_waits", lambda lock: waits(lock, patience_s=0.1))


class GoneError(BaseException):
    """The process is gone."""


def held(executor: FakeExecutor | None = None) -> FakeExecutor:
    """An executor whose jobs go on running."""
    executor = executor or FakeExecutor()
    executor.holds = True
    return executor


def test_a_sweep_runs_to_its_conclusion_and_again_for_nothing(tmp_path: Path) -> None:
    executor = FakeExecutor()
    first = campaign(tmp_path, executor)
    run(first)
    conclusion = first.conclude()
    assert {each.arm: each.kind for each in conclusion.verdicts}["fast"] == "FASTER"
    assert conclusion.complete
    submitted = executor.submitted
    assert len(submitted) == len({*submitted}) == 2 + 2 + 3 * 3
    second = campaign(tmp_path, executor, session="second")
    run(second)
    assert (executor.submitted, second.conclude()) == (submitted, conclusion)
    four = FakeExecutor(max_in_flight=4)
    run(campaign(tmp_path / "four", four))
    assert four.submitted == submitted, "the order is the same however many are in flight"
    moved = replace(CELL, nodelist=("node002",))
    with pytest.raises(ConfigError, match=r"nodelist was \[\], is \['node002'\].*--xlatune-fresh"):
        campaign(tmp_path, executor, session="third", cell=moved)


class Losing(FakeExecutor):
    """Its jobs are lost when a process has ended them."""

    def standing(self, job_id: str) -> Outcome:
        found = super().standing(job_id)
        return replace(found, state=State.LOST) if found.state is State.CANCELLED else found


@pytest.mark.parametrize(
    ("kind", "last"), [(FakeExecutor, "cancel"), (FakeExecutor, "poll"), (Losing, "")]
)
def test_killed_between_our_cancel_and_writing_it_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[FakeExecutor], last: str
) -> None:
    executor = held(kind())
    first = campaign(tmp_path, executor)
    first.turn()

    def gone(*args: object, **named: object) -> None:
        real(*args, **named)
        raise GoneError

    with monkeypatch.context() as patched:
        if last:
            real = getattr(executor, last)
            patched.setattr(executor, last, gone)
        with pytest.raises(GoneError) if last else nullcontext():
            assert len(cancel_unwaited(first.folder, executors=lambda _: executor)) == 1
    assert len(executor.cancelled) == 1
    executor.holds = False
    # the next session does not take it for a user's cancel: it measures all, and each once
    second = campaign(tmp_path, executor, session="second")
    run(second)
    assert {each.status for each in second.view().history} == {"measured"}
    assert len(executor.submitted) == len({*executor.submitted}) + 1
    assert second.conclude().complete


def test_no_process_ends_a_job_or_moves_a_ledger_that_another_session_waits_for(
    tmp_path: Path,
) -> None:
    executor = held()
    first = campaign(tmp_path, executor)
    first.turn()
    with first.attending():  # it waits for nothing now: its next test has not begun
        assert cancel_unwaited(first.folder, executors=lambda _: executor) == ()
        with pytest.raises(LedgerError, match="another session is measuring"):
            campaign(tmp_path, executor, session="second", fresh=True)
    assert executor.cancelled == []
    assert len(first.view().state.in_flight()) == 1, "it goes on"
    campaign(tmp_path, executor, session="second", fresh=True)
    assert executor.cancelled == ["1"]
    (aside,) = first.folder.glob("ledger-*.jsonl")
    assert [each.next for each in replay(Ledger(aside).refresh()).decisions] == ["interrupted"]


class Foreign(FakeExecutor):
    """An executor of another distribution."""

    name = "pool"


def test_each_executor_is_asked_for_its_own_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign, ours = held(Foreign(max_in_flight=2)), FakeExecutor(max_in_flight=3)
    first = campaign(tmp_path, foreign)
    first.turn()
    said = rf"unknown executor 'pool' .*{first.folder}.* cannot be watched"
    with pytest.raises(LedgerError, match=said):  # it is not installed
        campaign(tmp_path, ours, session="second").turn()
    with pytest.raises(LedgerError, match=said):
        cancel_unwaited(first.folder)
    assert {each.executor for each in first.view().state.in_flight()} == {"pool"}
    named = "pytest_xlatune.executors.class_named"
    monkeypatch.setattr(named, lambda *_, **__: lambda: foreign)
    foreign.holds = False
    second = campaign(tmp_path, ours, session="second")
    run(second)
    assert second.conclude().complete
    assert len(foreign.submitted) == 2, "adopted, and measured where they ran"
    assert not {*foreign.submitted} & {*ours.submitted}


def without_an_intention(content: bytes) -> bytes:
    """Cut out one line: an attempt is submitted that no process intended."""
    lines = content.splitlines(keepends=True)
    at = [n for n, line in enumerate(lines) if b"attempt-intended" in line][3]
    return b"".join((*lines[:at], *lines[at + 1 :]))


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "another schema": lambda content: content.replace(b'{"schema":4', b'{"schema":3'),
    "an attempt that no process intended": without_an_intention,
    "binary": lambda _: bytes(range(256)) * 2,
}


@rows("damage", DAMAGES)
def test_a_damaged_ledger_is_refused_and_starting_over_moves_it_aside(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    executor = FakeExecutor()
    made = campaign(tmp_path, executor)
    run(made)
    path = made.ledger.path
    content = damage(path.read_bytes())
    path.write_bytes(content)
    more = campaign_of(made.folder, executor, made.study, session="second")
    for ask in (more.open, more.open, more.view, more.turn, more.conclude):  # not with a part of it
        with pytest.raises(LedgerError, match=rf"^{path}[: ].*--xlatune-fresh.*deletes nothing"):
            ask()
    assert path.read_bytes() == content

    second = campaign(tmp_path, executor, session="second", fresh=True)
    (aside,) = path.parent.glob("ledger-*.jsonl")
    assert aside.read_bytes() == content
    (note,) = map(sentence, second.view().state.notes)
    assert "none of its jobs was ended" in note
    assert f"their names begin with {JOB_NAME_PREFIX}" in note
    second.turn()
    # a later process of the same session does not start over again
    third = campaign(tmp_path, executor, session="second", fresh=True)
    assert len(third.view().state.in_flight()) == 1
    assert executor.cancelled == []


def test_a_decision_that_is_written_twice_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = Ledger.append

    def cut(self: Ledger, *batch: Event, at_s: float) -> None:
        """Write what a kill leaves of the one write: all lines but the last."""
        if isinstance(batch[-1], AttemptEnded) and any(isinstance(e, Decided) for e in batch):
            append(self, *batch[:-1], at_s=at_s)
            raise GoneError
        append(self, *batch, at_s=at_s)

    attempts = []
    for name in ("whole", "cut"):  # of a trial that never comes to its end
        executor = FakeExecutor(failing("same-wave", log(steps=3), KILLED))
        if name == "cut":
            with monkeypatch.context() as patched:
                patched.setattr(Ledger, "append", cut)
                with pytest.raises(GoneError):
                    run(campaign(tmp_path / name, executor))
        run(campaign(tmp_path / name, executor))  # another process of the same session
        attempts.append(sum(each.startswith("same-wave") for each in executor.submitted))
    assert attempts[0] == attempts[1] > 1


def test_all_processes_of_a_session_plan_with_what_its_first_one_knew(tmp_path: Path) -> None:
    executor = FakeExecutor()
    first = campaign(tmp_path, executor)
    assert isinstance(first.study, TuningStudy)
    calibrated = replace(first.study, sigma_prior=0.05)  # it ended before the second one came
    for session, known in (("first", first.study), ("second", calibrated)):
        other = campaign_of(first.folder, executor, calibrated, session=session)
        other.open()
        assert other.study == known


class Shared(Cluster):
    """In the middle of a question or a submission another process gets on too, or ours is killed.

    `meanwhile` is the other process; `kills` are the submissions after which the process that asked
    for them is gone, before it could write down the job's name.
    """

    def __init__(self, *, kills: set[int]) -> None:
        super().__init__()
        self.kills = kills
        self.meanwhile: Callable[[], None] = lambda: None

    def poll(self, submissions: Sequence[Submission], *, root: Path) -> Any:
        self.meanwhile()
        return super().poll(submissions, root=root)

    def submit(self, spec: LaunchSpec, request: Request) -> str:
        self.meanwhile()
        job_id = super().submit(spec, request)
        if len(self.submitted) in self.kills:
            self.kills.remove(len(self.submitted))
            raise GoneError
        return job_id


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(each, marks=BESIDE_THE_LAB) for each in range(2, 8))]
)
def test_two_processes_drive_all_cells_together_and_double_nothing(
    tmp_path: Path, seed: int
) -> None:
    """Either may take any turn, tries to in the midst of the other's, and may be killed in it."""
    drawn = random.Random(seed)
    nodes = ("node001", "node002", "node003")
    study = CellsStudy(cells=(on(*nodes[:2]), *map(on, nodes)), repeats=4)
    cluster = Shared(kills={*drawn.sample(range(1, 17), 3)})
    sessions = (f"session{number}" for number in itertools.count(1))
    both = [campaign(tmp_path, cluster, study, session=next(sessions)) for _ in range(2)]
    began_s = cluster.now_s
    while both[0].view().pending or both[1].view().pending:
        mine = drawn.randrange(2)

        def other(made: Campaign = both[1 - mine]) -> None:
            cluster.meanwhile, before = lambda: None, len(cluster.submitted)
            made.turn()
            assert len(cluster.submitted) == before, "one at a time"
            cluster.meanwhile = other

        cluster.meanwhile = other
        try:
            both[mine].turn()
        except GoneError:
            both[mine] = campaign(tmp_path, cluster, study, session=next(sessions))
        cluster.now_s += 1
        assert cluster.now_s - began_s < 9000, "the study does not end"

    assert not cluster.kills
    trials = [trial.id for trial in study.decide(()).due]
    assert sorted(cluster.submitted) == sorted(trials), "each once"
    for node in nodes:
        ran = [name for name, used in cluster.ran if node in used]
        assert ran == [name for name in trials if name in ran], "in the order of the study"
    history = both[0].view().history
    assert {each.status for each in history} == {"measured"}
    assert history == both[1].view().history
    # four rounds of a trial on two nodes and of one on each node: two after another in each
    assert cluster.now_s - began_s <= 4 * 2 * cluster.took_s + 20


HOLD = """
import sys, time
from pathlib import Path
from pytest_xlatune.ledger.driver_lock import DriverLock
with DriverLock(Path(sys.argv[1])).next():
    print("holding", flush=True)
    time.sleep(600)
"""


def is_mine(folder: Path) -> bool:
    with DriverLock(folder).next() as found:
        return found


def test_a_turn_is_given_once_and_to_another_when_its_process_was_killed_or_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silence_s = 3600.0  # however long this machine takes to get here, it was a moment
    monkeypatch.setattr("pytest_xlatune.ledger.driver_lock.SILENCE_S", silence_s)
    beat = tmp_path / "turn.beat"
    argv = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("holding")
        assert not is_mine(tmp_path)
        with pytest.raises(LedgerError, match="in use by"), DriverLock(tmp_path).mine(wait_s=0.2):
            pass
        process.kill()
    assert not is_mine(tmp_path), "it drove a moment ago"
    for shift_s in (-silence_s - 1, 3600):  # killed long ago; a clock that was set back since
        beat.write_text("1\n", encoding="utf-8")
        at_s = time.time() + shift_s
        os.utime(beat, (at_s, at_s))
        assert is_mine(tmp_path)
    turns = DriverLock(tmp_path)
    with turns.waiting(), turns.next() as found:
        assert found
    assert beat.read_text(encoding="utf-8") == "0\n", "who stops waiting hands over"


def test_a_ledger_concludes_to_what_its_reports_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = campaign(tmp_path, FakeExecutor())
    run(made)
    swept = made.folder
    publish(swept, tmp_path / "reports")
    published = (tmp_path / "reports" / "pretend" / "leaderboard.json").read_text(encoding="utf-8")
    for path in (swept, swept / LEDGER):
        assert main(["report", str(path), "--json"]) == 0
        assert capsys.readouterr().out == published
    assert main(["report", str(swept), "--no-files"]) == 0
    assert "FASTER" in capsys.readouterr().out
    copy = tmp_path / "elsewhere.jsonl"
    copy.write_bytes((swept / LEDGER).read_bytes())
    main(["report", str(copy), "--json"])
    assert capsys.readouterr().out == published


def test_a_calibration_without_scores_says_why(tmp_path: Path) -> None:
    """One job of each slot has a score, and a second one of the first."""
    limit = Outcome(state=State.TIMEOUT, reason="DUE TO TIME LIMIT")

    def script(trial_id: str, attempt: int) -> tuple[str, Outcome]:
        if int(trial_id.partition("calibration.")[2].partition("-")[0]) < 7:
            return ordinary(trial_id, attempt)
        return log(steps=2), limit

    slots = tuple((f"node{at}",) for at in range(6))
    cell = replace(CELL, nodelist=slots[0])
    study = CalibrationStudy(cell=cell, jobs=12, slots=slots)
    executor = FakeExecutor(script)
    made = campaign_of(tmp_path / "pretend" / "cell", executor, study, session="later")
    made.open()
    run(made)
    with pytest.raises(NotMeasured, match=r"7 jobs .* too few"):
        calibrate(made, lambda: None)


# ---- what is seen of it while it runs

QUEUED = Outcome(state=State.PENDING, reason="PENDING (Priority)", start_s=1_800_000_000.0)
ON_NODE = Outcome(state=State.RUNNING, nodes=("node001", "node002"), start_s=100.0)


class Seen(FakeExecutor):
    """A sweep whose jobs are what the test says, and the lines that a session sees of it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.said, self.now_s = QUEUED, 1000.0
        self.log = folder
        clocks = {"now": lambda: self.now_s}
        self.campaign: Campaign = campaign(folder, self, clocks=clocks)
        folder = self.campaign.folder
        self.feed = LiveLines(folder, folder, session_id="first", now=clocks["now"])

    def submit(self, spec: LaunchSpec, request: Request) -> str:
        job = super().submit(spec, request)
        self.log = request.folder / "log.0.txt"
        self.log.unlink()
        return job

    def standing(self, job_id: str) -> Outcome:
        return self.said

    def after(self, seconds: float = 11.0, *, turns: int = 1) -> list[str]:
        """Let time pass and the campaign take turns; return the new lines."""
        self.now_s += seconds
        for _ in range(turns):
            self.campaign.turn()
        return [each.line for each in self.feed.news() if each.line]


@pytest.fixture
def seen(tmp_path: Path) -> Seen:
    return Seen(tmp_path)


def test_what_runs_has_a_line_after_a_minute_and_then_every_ten(seen: Seen) -> None:
    (opening,) = seen.after()
    assert re.fullmatch(r"pretend FSDP=4: \d+ (to \d+ )?jobs to run", opening)
    assert seen.after() == []
    (waits,) = seen.after(50.0)
    queued = r"now: \S+ \(job 1\) waits, PENDING \(Priority\), start exp"
    assert re.match(rf"{queued}.*\| 0 of \d+( to \d+)? jobs, 1 running", waits)

    seen.said = ON_NODE
    assert seen.after() == []
    assert "(job 1) started on node[001-002] | " in seen.feed.status()
    seen.log.write_text(log(1000.0, steps=8))
    assert seen.after(61.0) == [], "within ten minutes"
    (steps,) = seen.after(600.0)
    assert f"step 7/{STEPS}, 1000.0 TGS so far | " in steps
    assert steps == f"now: {seen.feed.status()}"

    seen.said = OK
    seen.log.write_text(log())
    landed = seen.after(turns=2)
    assert len([each for each in landed if "TGS" in each]) == 1
    assert not any("pretend FSDP=4" in each for each in landed), "the cell was named once"


def test_a_live_line_fits_80_columns_and_a_path_stays_whole() -> None:
    assert in_columns(f"{'a ' * 38}| 1/2 b") == f"{'a ' * 37}a\n  1/2 b"
    assert in_columns("note: " + "abcd " * 16) == f"note:{' abcd' * 15}\n  abcd"
    path = "/shared/" + "x" * 90
    assert in_columns(f"note: {path}") == f"note:\n  {path}"


def test_a_look_that_finds_no_turns_says_that_profiles_are_jobs() -> None:
    trial = rotation_trial(CELL, spec_of(copies=1, rounds=3))
    reason = say("no step")
    for rotation, why in ((RotationResult(reason=reason), "no step"), (None, ABSENT)):
        result = replace(measured(trial, 6.9), rotation=rotation)
        line = live_line(result, verdict=None, progress="1 of 30 to 50 jobs")
        assert f"profiles cannot take turns here, so each is a job: {why} |" in line


SECRET = "hush-hush-1234"
DEPLOYED = {**CELL.deployed, "HF_TOKEN": SECRET}
ONE, TWO = (replace(on(name), deployed=DEPLOYED) for name in ("node001", "node002"))


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_the_log_says_what_was_submitted_without_a_secret_and_in_its_context_only(
    tmp_path: Path,
) -> None:
    leak = log(steps=2, last=f"NET/IB : no token {SECRET}: IBV_WC_RETRY_EXC_ERR")
    cluster = Cluster(lambda *_: (leak, FAILED))
    made = campaign(tmp_path, cluster, CellsStudy(cells=(ONE, TWO), repeats=6))
    with write_log(made.folder) as path:
        for _ in range(90):
            made.turn()
            cluster.now_s += 1
        logging.getLogger("pytest_xlatune.executors").warning("sbatch said %r", SECRET)
        try:
            int(SECRET)
        except ValueError:
            logging.getLogger("pytest_xlatune.campaign").exception("trouble")
    assert path == made.folder / LOG
    said = lines_of(path)
    assert sum("submitted node00" in line for line in said) == len(cluster.submitted) > 2
    assert any("sbatch said '(hidden)'" in line for line in said)
    assert any("literal for int() with base 10: '(hidden)'" in line for line in said)
    assert not any(SECRET in line for line in said)
    run(made, cluster)
    assert lines_of(path) == said


def test_a_log_that_is_a_link_is_warned_of_once_and_the_sweep_goes_on(tmp_path: Path) -> None:
    cluster = Cluster()
    made = campaign(tmp_path, cluster, CellsStudy(cells=(ONE,)))
    (tmp_path / "diary").write_text("dear diary\n")
    (made.folder / LOG).symlink_to(tmp_path / "diary")
    with (
        pytest.warns(UserWarning, match="xlatune.log is a link") as said,
        write_log(made.folder),
    ):
        run(made, cluster)
    assert len(said) == 1
    assert all(result.score for result in made.view().history)
    assert (tmp_path / "diary").read_text() == "dear diary\n"


class Shy(Cluster):
    """A scheduler that is away at some polls, and at others leaves a job out."""

    away_s = 10

    def poll(self, submissions: Sequence[Submission], *, root: Path) -> Mapping[str, Outcome]:
        if 10 <= self.now_s - 1e9 < 10 + self.away_s:
            raise SchedulerDown("no answer")
        seen = dict(super().poll(submissions, root=root))
        if self.now_s % 3 == 0:
            seen.popitem()
        return seen


@rows("away_s, is_news", {"a few seconds are no news": (10, False), "a minute is": (60, True)})
def test_a_scheduler_that_is_away_is_told_once_and_its_return_too(
    tmp_path: Path, away_s: int, is_news: bool
) -> None:
    cluster = Shy()
    cluster.away_s = away_s
    made = campaign(tmp_path, cluster, CellsStudy(cells=(ONE, TWO), repeats=2))
    with write_log(made.folder) as path:
        run(made, cluster)
    assert all(result.score for result in made.view().history)
    events = [entry.event for entry in Ledger(made.folder / LEDGER).refresh()]
    notes = [sentence(event.remark) for event in events if isinstance(event, Noted)]
    warnings = [line for line in lines_of(path) if " WARNING " in line]
    for said in [warnings, notes] * is_news:
        away, back = said
        assert "scheduler does not answer" in away
        assert "the scheduler answers again" in back
    assert bool(notes) is bool(warnings) is is_news
