"""Trials as steps of the user's own allocation on a real Slurm."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_xlatune.executors import AllocationOver, Executor
from pytest_xlatune.executors.folder import read_claim
from pytest_xlatune.executors.slurm import allocation
from pytest_xlatune.executors.slurm.allocation import AllocationExecutor
from pytest_xlatune.model.result import State, Submission
from tests.helpers.waiting import until
from tests.slurm.on_lab import TRIALS, Faults, Trials, slurm

# notes when it begins and ends, for all to be held against each other
# `&&`: where a signal ends sleep before it reaches bash, the trial did not succeed
TIMED = "date +%s.%N >{at}/{name}.begin; sleep {s} && date +%s.%N >{at}/{name}.end"


class Steps(Trials):
    executor_name, layout, inherit = "allocation", "run/{name}.1", ("PATH", "SLURM*")

    def new_executor(self, **options: Any) -> Executor:
        made = AllocationExecutor(**{"round_s": 0.3, "environ": {}, **options})
        self.executor = made
        return made

    def timed(self, name: str, s: float = 0.3, **options: Any) -> Submission:
        return self.submit(name, TIMED.format(at=self.root, name=name, s=s), **options)

    def running(self, submission: Submission, ranks: int = 2) -> None:
        """Wait until Slurm says so."""
        until(lambda: self.poll(submission).state is State.RUNNING)


@pytest.fixture
def steps(lab: ModuleType, tmp_path: Path) -> Steps:
    return Steps(tmp_path)


@pytest.fixture
def two(lab: ModuleType, tmp_path: Path) -> Iterator[Callable[..., Mapping[str, str]]]:
    """Starts a user's own allocation of two nodes; returns what its environment tells."""
    script, ids = tmp_path / "own.sh", []
    script.write_text("#!/bin/sh\nsleep 600\n")

    def start(*options: str) -> Mapping[str, str]:
        said = slurm("sbatch", "--parsable", "--nodelist=node[001-002]", "--nodes=2",
                     "--exclusive", "--time=60", "--ntasks-per-node=1", f"--chdir={tmp_path}",
                     *options, str(script))  # fmt: skip
        ids.append(job_id := said.strip())
        until(lambda: slurm("squeue", "-h", "-j", job_id, "-o", "%T").strip() == "RUNNING")
        return {"SLURM_JOB_ID": job_id, "SLURM_JOB_NODELIST": "node[001-002]"}

    yield start
    for each in ids:
        with contextlib.suppress(subprocess.CalledProcessError):  # it may have ended
            slurm("scancel", each)


@pytest.fixture
def own(two: Callable[..., Mapping[str, str]]) -> Mapping[str, str]:
    return two()


def test_trials_are_steps_of_the_users_own_allocation(steps: Steps, own: Mapping[str, str]) -> None:
    steps.new_executor(environ=own)
    before = slurm("squeue", "-h", "-t", "all", "-o", "%i").split()
    done = [steps.timed(f"t{k}") for k in range(2)]
    assert [each.job_id for each in done] == ["step-1", "step-2"]
    steps.new_executor(environ=own)  # another process sees the same
    for each in done:
        outcome = steps.end(each)
        assert outcome.state is State.COMPLETED, outcome
        assert outcome.allocation == own["SLURM_JOB_ID"]
        assert sorted(outcome.nodes) == ["node001", "node002"]
    first_end, second_begin = (steps.root / name for name in ("t0.end", "t1.begin"))
    assert float(first_end.read_text()) <= float(second_begin.read_text())
    # no job more; Slurm may have forgotten one of another test meanwhile
    assert {*slurm("squeue", "-h", "-t", "all", "-o", "%i").split()} <= {*before}

    # on slots side by side: each waits for the other
    begins = [f"{steps.root}/{name}.begin" for name in ("one", "other")]
    both = "touch {}; until [ -e {} ]; do sleep 0.1; done; exit 41"
    one = steps.submit("one", both.format(*begins), ("node001",))
    other = steps.submit("other", both.format(*begins[::-1]), ("node002",))
    for each in (one, other):
        assert (steps.end(each).state, steps.end(each).exit_code) == (State.FAILED, 41)


def test_a_step_gets_the_environment_of_a_login_and_nothing_that_steers_srun(
    steps: Steps, own: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = tmp_path / "login.sh"
    login.write_text("export SRUN_PARTITION=other SLURM_TIMELIMIT=1 SLURM_JWT=t PROFILE=yes\n")
    monkeypatch.setattr(allocation, "LOGIN", login)
    monkeypatch.setenv("HF_TOKEN", "planted")
    steps.new_executor(environ=own)
    done = steps.submit("env", "env", spec={"inherit": ("*",)})
    assert steps.end(done).state is State.COMPLETED
    seen = steps.log(done).splitlines()
    assert {"PROFILE=yes", f"SLURM_CONF={os.environ['SLURM_CONF']}"} <= {*seen}
    steers = ("SRUN_PARTITION", "SLURM_TIMELIMIT", "SLURM_JWT", "HF_")
    assert [each for each in seen if each.startswith(steers)] == []
    steps.new_executor(environ=own)  # of another process too
    assert steps.submit("env", "env") == done, "the same attempt again is the same step"


def test_a_cancel_ends_the_step_and_what_waits_never_begins(
    steps: Steps, own: Mapping[str, str]
) -> None:
    steps.new_executor(environ=own)
    running = steps.timed("r", 300)
    steps.running(running)  # of steps that wait Slurm begins any first
    waiting, last = steps.timed("w"), steps.timed("l")
    claim = read_claim(steps.folder(running))
    assert claim is not None
    os.kill(claim.pid, signal.SIGSTOP)
    steps.executor.cancel([running, waiting], root=steps.root)
    assert steps.end(waiting).state is steps.end(running).state is State.CANCELLED
    assert steps.end(last).state is State.COMPLETED
    assert not (steps.root / "w.begin").exists()


@pytest.mark.parametrize(
    ("of_node", "expected"),
    [
        pytest.param((), (State.CANCELLED, State.PREEMPTED), id="scancel"),
        pytest.param(("--no-requeue",), (State.NODE_FAIL,) * 2, id="a dead node"),
        pytest.param(("--requeue",), (State.REQUEUED,) * 2, id="a dead node, put back"),
    ],
)
def test_another_salloc_goes_on_and_what_waited_in_the_first_never_runs_twice(
    steps: Steps,
    two: Callable[..., Mapping[str, str]],
    of_node: tuple[str, ...],
    expected: tuple[State, State],
) -> None:
    first = two(*of_node)
    steps.new_executor(environ=first)
    cut = steps.timed("a", 300)
    steps.running(cut)
    waiting = steps.timed("b")
    if of_node:
        slurm("scontrol", "update", "nodename=node002", "state=down", "reason=dead")
    else:
        slurm("scancel", first["SLURM_JOB_ID"])
    assert (steps.end(cut).state, steps.end(waiting).state) == expected
    with pytest.raises(AllocationOver, match="Start another salloc"):
        steps.timed("c")
    if of_node:
        slurm("scancel", first["SLURM_JOB_ID"])
        with contextlib.suppress(subprocess.CalledProcessError):  # it may be back by itself
            slurm("scontrol", "update", "nodename=node002", "state=resume")
    second = two()
    steps.new_executor(environ=second)
    outcome = steps.end(steps.timed("d"))
    assert (outcome.state, outcome.allocation) == (State.COMPLETED, second["SLURM_JOB_ID"])
    assert not (steps.root / "b.begin").exists(), "its next attempt runs, not this one"


IN_ALLOCATION = ("--xlatune-executor", "allocation", "-n", "2")


@pytest.fixture
def inside(faults: Faults, own: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Faults:
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    return faults


@pytest.mark.parametrize("victim", ["rank 0", "rank 1", "srun", "script"])
def test_a_killed_payload_costs_its_trial_one_attempt(inside: Faults, victim: str) -> None:
    """And so does its srun; the script is missed by nobody."""
    session = inside.start_held(*IN_ALLOCATION, slot=())
    folder = inside.victim()
    claimed = folder / ("claimed.1.json" if victim == "rank 1" else "claimed.json")
    pid = json.loads(claimed.read_text())["pid"]
    if victim in ("srun", "script"):
        pid = json.loads((folder / "step.json").read_text())["process"]["pid"]
    if victim == "srun":
        pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    os.kill(pid, signal.SIGKILL)
    if victim != "script":
        until(inside.states)
    inside.assert_complete(inside.released(session))
    retried = {"srun": ["retry"], "script": []}.get(victim, [("retry", "killed")])
    assert [each[0] for each in inside.decided()] == retried or inside.decided() == retried


def test_a_killed_session_loses_and_doubles_nothing(inside: Faults) -> None:
    session = inside.start_held(*IN_ALLOCATION, slot=())
    os.killpg(session.pid, signal.SIGKILL)
    session.wait()
    inside.go.touch()
    said = inside.run(*IN_ALLOCATION, slot=())
    inside.assert_complete(said)
    assert len(inside.project.submitted) == len(set(inside.project.submitted)) == TRIALS
    assert inside.project.jobs == 0


def test_an_allocation_without_time_ends_the_sweep_and_another_one_goes_on(
    inside: Faults,
    own: Mapping[str, str],
    two: Callable[..., Mapping[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inside.write(inside.profiles(), held=True)
    session = inside.start(*IN_ALLOCATION, slot=())
    inside.victim("baseline-deployed-*.1")  # the first; the order of the others is drawn
    # 15 s before its end: no step took that short
    slurm("scontrol", "update", f"JobId={own['SLURM_JOB_ID']}", "EndTime=now+15")
    said = inside.released(session)
    assert "Start another salloc" in said, said
    assert not {"victim", "after"} & {*inside.project.measured}
    monkeypatch.setenv("SLURM_JOB_ID", two()["SLURM_JOB_ID"])
    said = inside.run(*IN_ALLOCATION, slot=())
    inside.assert_complete(said)


def test_outside_of_an_allocation_one_message_says_so(faults: Faults) -> None:
    faults.write(faults.profiles())
    assert "found no allocation" in faults.run("--xlatune-executor", "allocation")
    assert not faults.project.submitted
