"""Trials as steps of an allocation on a real Slurm: the user's own, and one that is asked for."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_xlatune.executors import Request
from pytest_xlatune.executors.slurm import expected_wait
from pytest_xlatune.executors.slurm._held import release, waits_in
from pytest_xlatune.executors.slurm.allocation import AllocationExecutor
from pytest_xlatune.model.errors import SubmissionError
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.result import Outcome, State, Submission
from pytest_xlatune.model.trial import LaunchSpec

Slurm = Callable[..., str]
Wait = Callable[..., None]
PAIR = ("node001", "node002")
# notes when it begins and ends, for all to be held against each other
# `&&`: where a signal ends sleep before it reaches bash, the trial did not succeed
TIMED = "date +%s.%N >{at}/{name}.begin; sleep {s} && date +%s.%N >{at}/{name}.end"


class Steps:
    """Submits trials to the queue of allocations, and watches them."""

    def __init__(self, trials: Any, wait: Wait) -> None:
        self.trials, self.wait, self.root = trials, wait, trials.root
        self.executor = self.new()

    def new(self, **options: Any) -> AllocationExecutor:
        """An executor that remembers nothing, as another process would have it."""
        self.executor = AllocationExecutor(**{"round_s": 0.3, "environ": {}, **options})
        return self.executor

    def submit(
        self,
        name: str,
        command: str,
        nodelist: tuple[str, ...] = PAIR,
        allocation: str = "",
        **resources: Any,
    ) -> Submission:
        said = self.trials.arguments(name, nodelist, **resources) | {"allocation": allocation}
        said |= {"folder": self.root / "run" / f"{name}.1", "job_name": f"xlt-{name}"}
        job_id = self.executor.submit(
            LaunchSpec(argv=("bash", "-c", command), inherit=("PATH", "SLURM*")), Request(**said)
        )
        folder = f"run/{name}.1"
        return Submission(
            trial_id=name, attempt=1, executor="allocation", job_id=job_id, folder=folder
        )

    def timed(self, name: str, s: float = 0.3, **options: Any) -> Submission:
        return self.submit(name, TIMED.format(at=self.root, name=name, s=s), **options)

    def poll(self, of: Submission) -> Outcome:
        return self.executor.poll([of], root=self.root)[of.job_id]

    def end(self, of: Submission) -> Outcome:
        self.wait(lambda: self.poll(of).state.is_final, timeout_s=90)
        return self.poll(of)

    def running(self, of: Submission) -> None:
        self.wait(lambda: self.poll(of).state is State.RUNNING, timeout_s=90)

    def file(self, of: Submission, name: str) -> Any:
        return json.loads((self.root / of.folder / name).read_text())

    def spans(self) -> list[tuple[float, float]]:
        """When each trainer began and ended, in order."""
        return sorted(
            (float(path.read_text()), float(path.with_suffix(".end").read_text()))
            for path in self.root.glob("*.begin")
        )


@pytest.fixture
def steps(trials: Any, wait_until: Wait) -> Iterator[Steps]:
    made = Steps(trials, wait_until)
    yield made
    release(made.root)


@pytest.fixture
def two(
    slurm: Slurm, wait_until: Wait, tmp_path: Path
) -> Iterator[Callable[[], Mapping[str, str]]]:
    """Starts a user's own allocation of two nodes; returns what its environment tells."""
    script, ids = tmp_path / "own.sh", []
    script.write_text("#!/bin/sh\nsleep 600\n")

    def start() -> Mapping[str, str]:
        said = slurm("sbatch", "--parsable", "--nodelist=node[001-002]", "--nodes=2",
                     "--exclusive", "--time=60", "--ntasks-per-node=1", f"--chdir={tmp_path}",
                     str(script))  # fmt: skip
        ids.append(job_id := said.strip())
        wait_until(lambda: slurm("squeue", "-h", "-j", job_id, "-o", "%T").strip() == "RUNNING")
        return {"SLURM_JOB_ID": job_id, "SLURM_JOB_NODELIST": "node[001-002]"}

    yield start
    for each in ids:
        with contextlib.suppress(subprocess.CalledProcessError):  # it may have ended
            slurm("scancel", each)


@pytest.fixture
def own(two: Callable[[], Mapping[str, str]]) -> Mapping[str, str]:
    return two()


def jobs_of(slurm: Slurm) -> list[str]:
    return slurm("squeue", "-h", "-n", "xlt-allocation", "-o", "%i").split()


def test_trials_are_steps_of_the_users_own_allocation_one_after_another(
    steps: Steps, own: Mapping[str, str], slurm: Slurm
) -> None:
    steps.new(environ=own)
    before = slurm("squeue", "-h", "-t", "all", "-o", "%i").split()
    done = [steps.timed(f"t{k}") for k in range(3)]
    assert [each.job_id for each in done] == ["step-1", "step-2", "step-3"]
    steps.new(environ=own)  # another process sees the same
    for each in done:
        outcome = steps.end(each)
        assert outcome.state is State.COMPLETED, outcome
        assert outcome.allocation == own["SLURM_JOB_ID"]
        assert sorted(outcome.nodes) == list(PAIR)
    spans = steps.spans()
    assert len(spans) == 3
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))
    # no job more; Slurm may have forgotten one of another test meanwhile
    assert {*slurm("squeue", "-h", "-t", "all", "-o", "%i").split()} <= {*before}
    failed = steps.submit("bad", "exit 41")
    assert (steps.end(failed).state, steps.end(failed).exit_code) == (State.FAILED, 41)


def test_an_allocation_is_asked_for_and_given_back(steps: Steps, slurm: Slurm) -> None:
    steps.new(hold_s=3600)
    first, second = steps.timed("a"), steps.timed("b")
    again = steps.timed("b")  # as a session that was killed in between does
    assert again.job_id == second.job_id
    assert steps.end(first).state is State.COMPLETED
    assert steps.end(second).state is State.COMPLETED
    (job_id,) = jobs_of(slurm)
    assert steps.end(first).allocation == job_id
    release(steps.root)
    steps.wait(lambda: not jobs_of(slurm))


def test_trials_of_two_names_lie_in_two_allocations_whose_waits_are_known(steps: Steps) -> None:
    steps.new(hold_s=3600)
    found: dict[str, list[str]] = {}
    for name, of in (("a", "1"), ("b", "1"), ("c", "2"), ("d", "2")):
        done = steps.timed(name, allocation=of)
        assert steps.end(done).state is State.COMPLETED
        found.setdefault(of, []).append(steps.end(done).allocation)
    assert len({*found["1"]}) == len({*found["2"]}) == 1
    assert found["1"] != found["2"]
    # the first is over before the second begins; a poll notes it
    steps.wait(lambda: bool(steps.poll(done)) and waits_in(steps.root)[0][2] < math.inf)
    waits = waits_in(steps.root)
    assert len(waits) == 2
    assert all(asked_s <= began_s < end_s for asked_s, began_s, end_s in waits)
    assert waits[0][2] <= waits[1][1] + 1, "on the same nodes one after the other"


def test_slurm_says_when_a_job_would_start(own: Mapping[str, str]) -> None:
    limit = Resources(time_limit_s=600)
    free = ("node003", "node004")
    at_once = expected_wait(nodelist=free, resources=limit, now_s=time.time())
    assert isinstance(at_once, float), at_once
    assert at_once < 300
    # for an hour the others are a person's
    later = expected_wait(nodelist=PAIR, resources=limit, now_s=time.time())
    assert isinstance(later, float), later
    assert 1800 < later < 2 * 3600
    said = expected_wait(nodelist=("node009",), resources=limit, now_s=time.time())
    assert isinstance(said, str)
    assert own


def test_slots_of_one_allocation_run_side_by_side(steps: Steps) -> None:
    steps.new(hold_s=3600, nodes=(*PAIR, "node003", "node004"))
    begins = [f"{steps.root}/{name}.begin" for name in ("one", "other")]
    both = "touch {}; until [ -e {} ]; do sleep 0.1; done"  # one waits for the other
    one = steps.submit("one", both.format(*begins))
    other = steps.submit("other", both.format(*begins[::-1]), ("node003", "node004"))
    assert steps.end(one).state is steps.end(other).state is State.COMPLETED


def test_a_cancel_ends_the_step_and_what_waits_never_begins(steps: Steps) -> None:
    steps.new(hold_s=3600)
    running, waiting, last = steps.timed("r", 300), steps.timed("w"), steps.timed("l")
    steps.running(running)
    steps.executor.cancel([running, waiting], root=steps.root)
    assert steps.end(waiting).state is State.CANCELLED
    assert steps.end(running).state is State.CANCELLED
    assert steps.end(last).state is State.COMPLETED
    assert not (steps.root / "w.begin").exists()


@pytest.mark.parametrize("victim", ["srun", "driver"])
def test_a_kill_of_srun_or_driver_in_the_users_allocation_doubles_nothing(
    steps: Steps, own: Mapping[str, str], victim: str
) -> None:
    steps.new(environ=own)
    first, second = steps.timed("a", 3), steps.timed("b")
    steps.running(first)
    if victim == "srun":
        os.kill(steps.file(first, "srun.json")["pid"], signal.SIGKILL)
    else:
        _kill_driver(steps.root)
    steps.new(environ=own)
    found = [steps.end(first), steps.end(second)]
    assert found[1].state is State.COMPLETED
    # Slurm may end a step without its srun; then it is lost, and is run again
    assert found[0].state in (State.COMPLETED, State.LOST, State.FAILED, State.CANCELLED), found
    if victim == "driver":
        assert found[0].state is State.COMPLETED, found
    begins = sorted(float(path.read_text()) for path in steps.root.glob("*.begin"))
    assert len(begins) == 2
    ends = sorted(float(path.read_text()) for path in steps.root.glob("*.end"))
    assert ends[0] <= begins[1] or found[0].state is not State.COMPLETED


def _kill_driver(root: Path) -> None:
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            said = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            if b"slurm/driver.py" in said and str(root).encode() in said:
                os.kill(int(entry.name), signal.SIGKILL)


def test_a_batch_step_that_is_killed_costs_the_trial_that_ran_and_another_allocation_goes_on(
    steps: Steps, slurm: Slurm
) -> None:
    steps.new(hold_s=3600)
    first, second = steps.timed("a", 300), steps.timed("b")
    steps.running(first)
    _kill_driver(steps.root)
    cut, done = steps.end(first), steps.end(second)
    assert cut.state is State.LOST, cut
    assert done.state is State.COMPLETED
    assert done.allocation != cut.allocation
    assert len(jobs_of(slurm)) == 1


def test_a_time_limit_is_a_timeout_and_that_of_the_allocation_preempts_and_the_queue_goes_on(
    steps: Steps, trials: Any, slurm: Slurm
) -> None:
    steps.new(hold_s=3600)
    first, second = steps.timed("a", 300), steps.timed("b")
    job = trials.submit("late", "sleep 300", ("node003", "node004"), time_limit_s=60)
    trials.running(job)
    steps.running(first)
    (job_id,) = jobs_of(slurm)
    # a limit is minutes, and looked at twice a minute: both ends are moved here
    for each in (job.job_id, job_id):
        slurm("scontrol", "update", f"jobid={each}", "EndTime=now+1")
    late = trials.end(job)
    assert late.state is State.TIMEOUT
    assert "TIMEOUT" in late.reason
    cut, done = steps.end(first), steps.end(second)
    assert (cut.state, cut.allocation) == (State.PREEMPTED, job_id)
    assert done.state is State.COMPLETED
    assert done.allocation not in ("", job_id)


def test_a_persons_cancel_of_the_allocation_stands(steps: Steps, slurm: Slurm) -> None:
    steps.new(hold_s=3600, session="s1")
    first, second = steps.timed("a", 300), steps.timed("b")
    steps.running(first)
    slurm("scancel", *jobs_of(slurm))
    assert steps.end(first).state is State.CANCELLED
    assert steps.end(second).state is State.CANCELLED
    with pytest.raises(SubmissionError, match="was cancelled from outside"):
        steps.timed("c")
    assert not jobs_of(slurm)
    steps.new(hold_s=3600, session="s2")
    assert steps.end(steps.timed("d")).state is State.COMPLETED
    assert not (steps.root / "b.begin").exists(), "what was cancelled with it stays so"


def test_another_salloc_goes_on_and_what_waited_in_the_first_never_runs_twice(
    steps: Steps, two: Callable[[], Mapping[str, str]], slurm: Slurm
) -> None:
    first = two()
    steps.new(environ=first)
    cut, waiting = steps.timed("a", 300), steps.timed("b")
    steps.running(cut)
    slurm("scancel", first["SLURM_JOB_ID"])
    assert steps.end(cut).state is State.CANCELLED
    outcome = steps.poll(waiting)
    assert outcome.state is State.PREEMPTED, outcome
    with pytest.raises(SubmissionError, match="Start another salloc"):
        steps.timed("c")
    second = two()  # at once, while the driver of the first may still be there
    steps.new(environ=second)
    done = [steps.timed(name) for name in ("d", "e")]
    for each in done:
        outcome = steps.end(each)
        assert (outcome.state, outcome.allocation) == (State.COMPLETED, second["SLURM_JOB_ID"])
    assert not (steps.root / "b.begin").exists(), "its next attempt runs, not this one"


def test_an_allocation_that_has_ended_takes_no_trial(
    steps: Steps, two: Callable[[], Mapping[str, str]], slurm: Slurm
) -> None:
    first = two()
    steps.new(environ=first)
    assert steps.end(steps.timed("a")).state is State.COMPLETED
    slurm("scancel", first["SLURM_JOB_ID"])  # its driver is idle, and a session's end never came
    second = two()
    steps.new(environ=second)
    outcome = steps.end(steps.timed("b"))
    assert (outcome.state, outcome.allocation) == (State.COMPLETED, second["SLURM_JOB_ID"])


IN_ALLOCATION = ("--xlatune-executor", "allocation", "-n", "2")


def test_a_sweep_inside_salloc(faults: Any, own: Mapping[str, str], lab: ModuleType) -> None:
    faults.write(faults.profiles())
    with pytest.MonkeyPatch.context() as patch:
        for name, value in own.items():
            patch.setenv(name, value)
        said = faults.run(*IN_ALLOCATION, slot=())  # its nodes are all of the allocation's
    assert "2 passed" in said, said
    faults.assert_measured_once("victim")
    assert faults.project.losses() == (0, 0)
    assert faults.project.jobs(lab) == 0


def test_a_killed_session_loses_and_doubles_nothing(
    faults: Any, slurm: Slurm, wait_until: Wait
) -> None:
    options = (*IN_ALLOCATION, "--xlatune-allocation", "1:00:00")
    faults.hold()
    session = faults.start(*options)
    faults.victim()
    os.killpg(session.pid, signal.SIGKILL)
    session.wait()
    faults.go.touch()
    said = faults.run(*options)
    assert "2 passed" in said, said
    faults.assert_measured_once("victim")
    assert faults.project.losses() == (0, 0)
    assert len(faults.project.submitted) == len(set(faults.project.submitted))
    wait_until(lambda: not jobs_of(slurm), timeout_s=30)  # given back


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "found no allocation"),
        (("--xlatune-allocation", "0:01:00"), "is shorter than a trial may take"),
    ],
    ids=["no allocation and no time", "shorter than a trial"],
)
def test_what_cannot_be_is_one_message_before_anything_is_submitted(
    faults: Any, slurm: Slurm, options: tuple[str, ...], said: str
) -> None:
    faults.write(faults.profiles())
    found = faults.run("--xlatune-executor", "allocation", *options)
    assert said in found
    assert not faults.project.submitted
    assert not jobs_of(slurm)


def is_lost_and_the_next_one_goes_on(
    steps: Steps, slurm: Slurm, lab: ModuleType, *, is_given_away: bool
) -> None:
    """Kill the controller before it has saved that an allocation waits behind a stranger's job."""
    asked = ("sbatch", "--parsable", "--nodelist=node[001-002]", "--exclusive",
             "--output=/dev/null", f"--chdir={steps.root}", "--wrap", "sleep 300")  # fmt: skip
    since_s = lab.state_saved_at()
    strangers = [slurm(*asked).strip()]
    steps.wait(lambda: slurm("squeue", "-h", "-t", "R", "-o", "%i").strip() == strangers[0])
    steps.wait(lambda: lab.state_saved_at() > since_s)
    lab.keep_state()
    steps.new(hold_s=3600, session="one")
    done = steps.submit("t", "true")
    (first,) = jobs_of(slurm)
    assert steps.poll(done).state is State.PENDING
    if lab.has_accounting():  # which the controller tells every five seconds
        steps.wait(lambda: slurm("sacct", "-n", "-X", "-j", first, "-o", "State").strip() != "")
    lab.kill_controller()
    lab.forget_since()
    lab.start_controller()
    if is_given_away:
        strangers.append(slurm(*asked).strip())
        assert strangers[-1] == first
    over_json = steps.root / "run" / "held-1" / "over.json"
    steps.wait(lambda: steps.poll(done).state.is_final or over_json.exists(), timeout_s=60)
    slurm("scancel", *strangers)
    outcome = steps.end(done)
    assert outcome.state is State.COMPLETED, outcome
    held_json = steps.root / "run" / "held-2" / "held.json"
    over, held = (json.loads(each.read_text()) for each in (over_json, held_json))
    assert over["state"] == "lost"
    assert outcome.allocation == held["job_id"]


@pytest.mark.parametrize("is_given_away", [False, True], ids=["forgotten", "its number given away"])
def test_an_allocation_that_the_controller_forgot_is_lost_and_the_next_one_goes_on(
    steps: Steps, slurm: Slurm, lab: ModuleType, *, is_given_away: bool
) -> None:
    is_lost_and_the_next_one_goes_on(steps, slurm, lab, is_given_away=is_given_away)


@pytest.mark.usefixtures("accounting")
@pytest.mark.parametrize("is_given_away", [False, True], ids=["forgotten", "its number given away"])
def test_an_allocation_is_lost_whose_books_stay_open(
    steps: Steps, slurm: Slurm, lab: ModuleType, *, is_given_away: bool
) -> None:
    is_lost_and_the_next_one_goes_on(steps, slurm, lab, is_given_away=is_given_away)
