"""Faults of a held allocation, seen through whole sweeps: nothing lost, nothing doubled.

Each trainer holds a lock of its node while it lives, so that two at once on a node are told. The
trainer only pretends; `docs/reference/slurm_jobs.md` holds the same list as a table.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

Faults = Any  # of conftest.py, which cannot be imported from here
Slurm = Callable[..., str]

HELD = ("--xlatune-executor", "allocation", "--xlatune-allocation", "1:00:00")
# a kernel gives the lock back with the process, however that ends
ALONE = """\
import fcntl, os, pathlib
HERE = pathlib.Path(__file__).parent
mine = open(HERE / f"node.{os.environ['SLURM_PROCID']}", "a")
try:
    fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    (HERE / "two-at-once").touch()
"""


class Allocation:
    """A sweep in an allocation that it asks for, whose victim runs and waits for `go`."""

    def __init__(self, faults: Faults, slurm: Slurm) -> None:
        self.faults, self.slurm = faults, slurm
        self.folder = Path()

    def begin(self, *, conftest: str = "") -> None:
        self.run(self.faults.profiles(HOLD=str(self.faults.go)), conftest=conftest)

    def begin_all(self, *more: str) -> None:
        """Let the first trial of the order wait for `go`, and all behind it."""
        names = ("victim", "after", *more)
        self.run(", ".join(f'profile("{name}", "--xla_{name}=1")' for name in names), "*")

    def run(self, declared: str, which: str = "victim-*.1", *, conftest: str = "") -> None:
        self.faults.write(declared, conftest=conftest)
        if which == "*":  # the baseline too
            sweep = self.faults.path / "test_sweep.py"
            deployed = '"--xla_deployed=1"'
            held = f'{deployed}, "HOLD": {str(self.faults.go)!r}'
            sweep.write_text(sweep.read_text().replace(deployed, held))
        trainer = self.faults.path / "trainer.py"
        trainer.write_text(ALONE + trainer.read_text())
        self.session = self.faults.start(*HELD)
        self.folder = self.faults.victim(which)

    @property
    def jobs(self) -> list[str]:
        """Every allocation that was asked for."""
        return sorted(
            {json.loads(path.read_text())["job_id"]
             for path in self.faults.path.glob("work/*/*/*/held-*/held.json")}
        )  # fmt: skip

    @property
    def job(self) -> str:
        """The allocation of the victim's first attempt."""
        return str(json.loads((self.folder / "taken.json").read_text())["allocation"])

    def cut(self, state: str) -> None:
        """Wait until the victim's first attempt has ended so."""
        self.faults.wait_until(lambda: self.faults.states() != [])
        assert self.faults.states() == [state], self.faults.project.events("attempt-ended")

    def again(self) -> None:
        """Wait until the next attempt stands alone on its nodes, and let it go."""
        folder = self.faults.victim(f"victim-*.{len(self.faults.states()) + 1}")
        logs = [folder / f"log.{rank}.txt" for rank in (0, 1)]
        self.faults.wait_until(lambda: all("XLA_FLAGS=" in path.read_text() for path in logs))
        assert not (self.faults.path / "two-at-once").exists()
        self.faults.go.touch()

    def end(self, *, passed: int = 2) -> str:
        said = str(self.faults.finished(self.session))
        assert f"{passed} passed" in said, said
        return said

    def nothing_lost(self, *more: str) -> None:
        self.faults.assert_measured_once("victim", *more)
        assert self.faults.project.losses() == (0, 0)
        assert not (self.faults.path / "two-at-once").exists()


@pytest.fixture
def allocation(faults: Faults, slurm: Slurm) -> Iterator[Allocation]:
    made = Allocation(faults, slurm)
    yield made
    faults.go.touch()


def processes(*words: str) -> list[int]:
    """Return the processes whose command line holds each of these."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            said = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            if all(word in said for word in words):
                found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_payload_costs_its_trial_one_attempt(allocation: Allocation, rank: int) -> None:
    allocation.begin()
    claimed = allocation.folder / (f"claimed.{rank}.json" if rank else "claimed.json")
    os.kill(json.loads(claimed.read_text())["pid"], signal.SIGKILL)
    allocation.cut("failed")
    allocation.again()
    allocation.end()
    assert allocation.faults.decided() == [("retry", "killed")]
    assert len(allocation.jobs) == 1, "the allocation stays"
    allocation.nothing_lost()


def test_a_killed_srun_costs_its_trial_one_attempt_at_most(allocation: Allocation) -> None:
    allocation.begin()
    srun = json.loads((allocation.folder / "srun.json").read_text())["pid"]
    os.kill(srun, signal.SIGKILL)
    allocation.faults.wait_until(lambda: not Path(f"/proc/{srun}").exists())
    allocation.faults.go.touch()  # its step may outlive it, and is then measured
    allocation.end()
    assert allocation.faults.states()[-1] == "completed"
    assert len(allocation.faults.states()) <= 2
    allocation.nothing_lost()


@pytest.mark.parametrize("victim", ["driver.py", "slurmstepd"])
def test_a_killed_batch_step_costs_the_trial_that_ran(allocation: Allocation, victim: str) -> None:
    allocation.begin()
    of = (
        (f"[{allocation.job}.batch]",) if victim == "slurmstepd" else (str(allocation.faults.path),)
    )
    for pid in processes(victim, *of):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if victim == "slurmstepd":  # Slurm may leave the script, and so the driver, at work
        allocation.faults.go.touch()
    else:
        allocation.cut("lost")
        allocation.again()
    allocation.end()
    assert allocation.faults.states()[-1] == "completed"
    allocation.nothing_lost()


def test_a_node_of_the_allocation_that_goes_down_is_resumed(
    allocation: Allocation, slurm: Slurm
) -> None:
    allocation.begin()
    slurm("scontrol", "update", "nodename=node002", "state=down", "reason=Not responding")
    allocation.cut("node-fail")
    allocation.again()
    allocation.end()
    assert allocation.faults.decided() == [("retry", "node-fail")]
    assert len(allocation.jobs) == 2
    allocation.nothing_lost()


def test_a_dead_node_of_the_allocation_stops_the_sweep_which_goes_on_later(
    allocation: Allocation, slurm: Slurm, lab: ModuleType
) -> None:
    lab.change(**lab.QUICK_TO_SEE_A_DEAD_NODE)
    allocation.begin(conftest=allocation.faults.NO_HOPE)
    lab.kill_node("node002")
    said = allocation.faults.finished(allocation.session)
    assert "[xla-tuning STOP] pretend FSDP=2 sweep halted" in said, said
    assert "node002" in said
    lab.start_node("node002")
    allocation.faults.wait_until(
        lambda: "idle" in slurm("sinfo", "-h", "-n", "node002", "-o", "%T")
    )
    allocation.session = allocation.faults.start(*HELD)
    allocation.again()
    allocation.end()
    allocation.nothing_lost()


def test_the_controller_may_die_and_come_back(
    allocation: Allocation, slurm: Slurm, lab: ModuleType
) -> None:
    allocation.begin_all("more")
    project = allocation.faults.project
    allocation.faults.wait_until(lambda: len(project.submitted) == 3)  # two wait behind it
    since_s = lab.state_saved_at()
    slurm("scontrol", "update", f"jobid={allocation.job}", "TimeLimit=100")
    allocation.faults.wait_until(lambda: lab.state_saved_at() > since_s)
    lab.kill_controller()
    allocation.faults.go.touch()
    allocation.faults.wait_until((allocation.folder / "outcome.json").exists)
    time.sleep(3)  # the driver asks every second whether it may start the next
    lab.start_controller()
    allocation.end(passed=3)
    # Slurm 22.05 may refuse steps of this allocation from then on; the next one goes on
    assert set(allocation.faults.decided()) <= {("retry", "lost")}
    allocation.nothing_lost("more")


def test_a_cancelled_allocation_stays_so_and_the_next_run_measures(
    allocation: Allocation, slurm: Slurm
) -> None:
    allocation.begin()
    slurm("scancel", allocation.job)
    said = allocation.faults.finished(allocation.session)
    assert "was cancelled from outside" in said or "CANCELLED" in said, said
    assert len(allocation.jobs) == 1, "no other is asked for"
    allocation.session = allocation.faults.start(*HELD)
    allocation.again()
    allocation.end()
    allocation.nothing_lost()


def test_a_time_limit_is_an_error_of_a_trial_and_its_allocations_preempts_it(
    allocation: Allocation, beside: Faults, slurm: Slurm
) -> None:
    """Slurm looks at limits twice a minute: two sweeps wait for both ends together."""
    beside.hold()
    session = beside.start(slot=("--xlatune-nodelist", "node[003-004]"))
    allocation.begin()
    beside.victim()
    for job in (allocation.job, beside.job()):
        slurm("scontrol", "update", f"jobid={job}", "EndTime=now+1")
    said = beside.finished(session)
    assert "1 passed, 1 error" in said, said
    assert beside.decided() == [("give-up", "time-limit")], "not tried again"
    assert beside.states() == ["timeout"]
    beside.assert_measured_once()

    allocation.cut("preempted")
    allocation.again()
    allocation.end()
    assert len(allocation.jobs) == 2
    allocation.nothing_lost()


def test_the_next_allocation_takes_over_before_the_limit(
    allocation: Allocation, slurm: Slurm
) -> None:
    more = tuple(f"more-{k}" for k in range(5))
    allocation.begin_all(*more)
    # a trial would end within, but the driver leaves twenty seconds to the end
    slurm("scontrol", "update", f"jobid={allocation.job}", "EndTime=now+19")
    allocation.faults.go.touch()
    allocation.end(passed=7)
    ended = allocation.faults.project.events("attempt-ended")
    assert {each["outcome"]["state"] for each in ended} == {"completed"}, ended
    assert len({each["outcome"]["allocation"] for each in ended}) == 2
    allocation.nothing_lost(*more)


def test_a_preempted_allocation_queues_again(allocation: Allocation, slurm: Slurm) -> None:
    allocation.begin()
    first = allocation.job
    urgent = allocation.faults.path / "urgent.sh"
    urgent.write_text("#!/bin/sh\nsleep 300\n")
    asked = slurm("sbatch", "--parsable", "--partition=urgent", "--nodelist=node[001-002]",
                  "--exclusive", "--output=/dev/null", str(urgent)).strip()  # fmt: skip
    allocation.cut("preempted")

    def queued() -> bool:
        # one that Slurm started before the urgent job took the nodes is preempted too
        pending = slurm("squeue", "-h", "-t", "PENDING", "-o", "%i").split()
        return bool((set(allocation.jobs) - {first}) & set(pending))

    allocation.faults.wait_until(queued)
    assert slurm("squeue", "-h", "-j", asked, "-o", "%T").strip() == "RUNNING"
    assert set(allocation.faults.states()) == {"preempted"}
    slurm("scancel", asked)
    allocation.again()
    allocation.end()
    allocation.nothing_lost()
