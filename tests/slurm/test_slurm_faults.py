"""Faults on a real cluster, seen through whole sessions: what each ends in, and nothing twice.

The trainer only pretends, so that a trial takes a second; pytest, the campaign, Slurm and the
faults are real. `docs/reference/slurm_jobs.md` holds the same list as a table.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from pytest_xlatune.executors.slurm._poller import EMPTY_ROUNDS
from pytest_xlatune.model.result import State
from tests.helpers.waiting import until
from tests.slurm.on_lab import (
    BUSY,
    NO_HOPE,
    TRIALS,
    Faults,
    Trials,
    declare,
    processes_with,
    put_before,
    slurm,
)

OOM = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 171.96GiB."
UNKNOWN = "F1120 09:03:25.888154 1 parse_flags_from_env.cc:234] Unknown flag in XLA_FLAGS: --xla_x"
NIC = "mlx5_0: Got completion with error IBV_WC_RETRY_EXC_ERR(12) vendor_err=129"


def test_what_the_log_says_drops_the_profile(faults: Faults) -> None:
    faults.write(declare(oom={"SAY": OOM}, unknown={"SAY": UNKNOWN}, nan={"LOSS": "nan"}))
    said = faults.run()
    assert "3 xfailed" in said, said
    assert sorted(faults.decided()) == [
        ("drop", "numerical-failure"),
        ("drop", "oom-gpu"),
        ("drop", "unknown-flag"),
    ]
    assert "171.96" in said
    assert len(faults.project.submitted) == 4, "no drop is tried again"


def test_a_node_that_goes_down_is_resumed_and_the_trial_run_again(faults: Faults) -> None:
    session = faults.start_held()
    slurm("scontrol", "update", "nodename=node002", "state=down", "reason=Not responding")
    until(lambda: faults.states() == ["node-fail"])
    faults.assert_run_again(faults.released(session), state="node-fail", cls="node-fail")
    assert any("node002" in each["nodes"] for each in faults.project.events("epoch-began"))


def run_with_a_drain(faults: Faults, reason: str) -> str:
    """Drain a node under a trial that runs and one that waits behind it; return what was said."""
    faults.write(faults.profiles(), held=True)
    session = faults.start()
    faults.victim("*")
    until(lambda: len(faults.project.submitted) >= 2)
    slurm("scontrol", "update", "nodename=node002", "state=drain", f"reason={reason}")
    return faults.released(session)


def test_a_persons_drain_stands_and_stops_the_sweep(faults: Faults) -> None:
    said = run_with_a_drain(faults, "ADMIN: hardware swap")
    assert "node002 is drained: 'ADMIN: hardware swap'. A person took it out of service" in said
    assert "recovery attempted: none" in said
    assert "drain" in slurm("sinfo", "-h", "-n", "node002", "-o", "%T"), "nothing resumed it"
    assert not faults.project.events("epoch-began")
    assert faults.decided()[0] == ("stop", "node-drain")
    slurm("scontrol", "update", "nodename=node002", "state=resume")
    faults.assert_complete(faults.run())


# what every question gets while the file is there; else Slurm's own word
BLIND = """\
#!/bin/sh
if [ -e {blind} ]; then echo asked >> {blind}; printf '{said}'; exit {code}; fi
exec {real} "$@"
"""


@pytest.mark.parametrize(
    ("said", "code"),
    [
        pytest.param("", 0, id="nothing"),
        pytest.param(r"\\001\\377 garbage\\n", 0, id="garbage"),
        pytest.param("slurm: fatal: garbage", 1, id="an error"),
    ],
)
def test_blindness_is_waited_out(
    faults: Faults, said: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    blind = faults.path / "blind"
    script = BLIND.format(blind=blind, said=said, code=code, real="{real}")
    put_before(faults.path, dict.fromkeys(("scontrol", "squeue", "sacct"), script), monkeypatch)
    session = faults.start_held()
    blind.touch()
    asked = 3 * EMPTY_ROUNDS  # three times what a job needs to be lost
    until(lambda: blind.read_text().count("asked") >= asked)
    blind.unlink()
    faults.assert_undisturbed(faults.released(session))


def test_a_node_drained_by_slurm_under_the_queue_is_resumed(faults: Faults) -> None:
    said = run_with_a_drain(faults, "Kill task failed")
    faults.assert_undisturbed(said)
    assert [each["nodes"] for each in faults.project.events("epoch-began")] == [["node002"]]
    assert "a new epoch: node-drain: resumed node002" in said


def test_a_node_drained_before_the_start_is_named_and_nothing_submitted(faults: Faults) -> None:
    faults.write(faults.profiles())
    slurm("scontrol", "update", "nodename=node002", "state=drain", "reason=bad-nic")
    (faults.path / "trainer.py").unlink()
    said = faults.run(slot=("--xlatune-nodelist", "node002,node099"))
    assert "cannot begin, nothing was submitted" in said, said
    assert "node002 is drained, expected idle: bad-nic" in said
    assert "node099 does not exist in this cluster" in said
    assert faults.project.jobs == 0
    slurm("scontrol", "update", "nodename=node002", "state=resume")
    said = faults.run(slot=("--xlatune-nodelist", "node[001-002]"))
    assert "node001, node002 cannot see" in said, said
    assert not faults.project.submitted


def test_a_dead_node_stops_the_sweep_with_a_message(faults: Faults, lab: ModuleType) -> None:
    lab.change(**lab.QUICK_TO_SEE_A_DEAD_NODE)
    session = faults.start_held(conftest=NO_HOPE)
    lab.kill_node("node002")
    until(lambda: "down" in slurm("sinfo", "-h", "-n", "node002", "-o", "%T"))
    said = faults.finished(session)
    assert "[xla-tuning STOP] pretend FSDP=2 sweep halted" in said, said
    assert "node002" in said
    assert faults.decided()[0][0] == "stop"
    assert faults.decided()[0][1] in ("node-fail", "node-drain")
    lab.start_node("node002")
    until(lambda: "idle" in slurm("sinfo", "-h", "-n", "node002", "-o", "%T"))
    faults.go.touch()
    faults.assert_complete(faults.run())


def test_a_cancel_from_outside_is_no_failure_and_measured_by_the_next_run(faults: Faults) -> None:
    session = faults.start_held()
    slurm("scancel", faults.job())
    said = faults.finished(session)
    assert "1 passed, 1 error" in said, said
    assert faults.decided() == [("give-up", "cancelled")]
    assert faults.states() == ["cancelled"]
    faults.go.touch()
    faults.assert_complete(faults.run())
    assert len(faults.project.submitted) == TRIALS + 1


def test_a_killed_rank_is_run_again(faults: Faults) -> None:
    session = faults.start_held()
    second = json.loads((faults.victim() / "started.1.json").read_text())
    os.kill(second["pid"], signal.SIGKILL)
    until(faults.states)
    faults.assert_run_again(faults.released(session), state="failed", cls="killed")


@pytest.mark.parametrize("has_hook", [True, False], ids=["a site that resets it", "no site hook"])
def test_a_nic_fault_needs_the_site(faults: Faults, *, has_hook: bool) -> None:
    hook = "def pytest_xlatune_recover(sweep, decision, nodes):\n    return True\n"
    faults.write(
        faults.profiles(SAY=NIC, ONCE=str(faults.path / "once")), conftest=hook if has_hook else ""
    )
    said = faults.run()
    if has_hook:
        faults.assert_complete(said)
        assert faults.decided() == [("retry", "nic-fault")]
    else:
        assert "[xla-tuning STOP]" in said, said
        assert "IBV_WC_RETRY_EXC_ERR" in faults.project.events("decided")[0]["evidence"]
        assert faults.decided()[0] == ("stop", "nic-fault")


def test_the_controller_may_die_and_come_back(faults: Faults, lab: ModuleType) -> None:
    session = faults.start_held("-n2")
    until(lambda: len(faults.project.submitted) == TRIALS)
    since_s = lab.state_saved_at()
    slurm("scontrol", "update", f"jobid={faults.job()}", "TimeLimit=500")
    until(lambda: lab.state_saved_at() > since_s)
    lab.kill_controller()
    faults.go.touch()
    lab.start_controller()
    faults.assert_undisturbed(faults.finished(session))
    assert faults.project.jobs == TRIALS


@pytest.mark.part("slurm")
def test_killed_workers_controllers_and_rivals_lose_and_double_nothing(faults: Faults) -> None:
    session = faults.start_held("-n2")
    (beat,) = faults.path.glob("work/*/*/turn.beat")
    path = Path(f"/proc/{session.pid}/task/{session.pid}/children")
    workers = [int(each) for each in path.read_text(encoding="ascii").split()]
    # the one that asks Slurm for all of them, and submits
    until(lambda: beat.read_text(encoding="utf-8").strip() in map(str, workers))
    os.kill(int(beat.read_text(encoding="utf-8")), signal.SIGKILL)
    rival = faults.start("-n0")
    os.killpg(session.pid, signal.SIGKILL)
    session.wait()
    third = faults.start("-n2")
    faults.go.touch()
    assert [rival.wait(240), third.wait(240)] == [0, 0], faults.project.said
    assert faults.project.jobs == len(faults.project.submitted) == TRIALS
    faults.assert_measured_once()


def test_the_nodes_of_the_first_trial_are_those_of_all(faults: Faults) -> None:
    faults.write(faults.profiles())
    partition = ("--xlatune-partition", "half")
    assert "2 passed" in faults.run("-n2", slot=("--xlatune-nodes", "1", *partition))
    (pinned,) = faults.project.events("nodes-pinned")
    ended = [line["outcome"]["nodes"] for line in faults.project.events("attempt-ended")]
    assert ended == [pinned["nodes"]] * TRIALS
    said = faults.run(slot=("--xlatune-nodelist", "node[003-004]"))
    assert f"the scheduler picked {pinned['nodes'][0]}" in said, said
    assert "--xlatune-fresh" in said
    assert len(faults.project.submitted) == TRIALS
    again = ("--xlatune-nodelist", "node[003-004]")
    assert "2 passed" in faults.run("--xlatune-fresh", slot=again)
    assert len(faults.project.submitted) == 2 * TRIALS


# fails at every second call, as long as an error is left; then it is Slurm's own
HITCH = """\
#!/bin/sh
error=$(head -n 1 {errors})
if [ -n "$error" ] && [ ! -e {errors}.said ]; then
  sed -i 1d {errors}
  touch {errors}.said
  echo "sbatch: error: $error" >&2
  exit 1
fi
rm -f {errors}.said
exec {real} "$@"
"""
ERRORS = (
    "Batch job submission failed: I/O error writing script/environment to file",
    "Batch job submission failed: Socket timed out on send/recv operation",
    "Munge encode failed: Failed to connect to /run/munge/munge.socket.2: Connection refused",
)


def test_a_hitch_at_every_submission_is_waited_out(
    faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = faults.path / "errors"
    left.write_text("".join(f"{each}\n" for each in ERRORS))
    script = HITCH.format(errors=left, real="{real}")
    put_before(faults.path, {"sbatch": script}, monkeypatch)
    faults.write(faults.profiles())
    faults.assert_undisturbed(faults.run())
    assert left.read_text() == ""


def strangers_job() -> str:
    """Let a job of another run on one of the nodes; return its id."""
    where = ("--nodelist=node001", "--exclusive", "--output=/dev/null")
    job = slurm("sbatch", "--parsable", *where, "--job-name=stranger", "--wrap", "sleep 300")
    number = job.strip()
    until(lambda: slurm("squeue", "-h", "-j", number, "-o", "%T") == "RUNNING\n")
    return number


def test_a_job_that_a_person_holds_is_waited_for(faults: Faults) -> None:
    faults.write(faults.profiles(), conftest=BUSY)
    stranger = strangers_job()
    session = faults.start()
    until(lambda: faults.project.events("attempt-submitted"))
    job = faults.project.events("attempt-submitted")[0]["submission"]["job_id"]
    slurm("scontrol", "hold", job)
    held = f"(job {job}) waits, PENDING (JobHeld"
    until(lambda: held in faults.project.said)
    slurm("scancel", stranger)
    assert "JobHeldAdmin" in slurm("squeue", "-h", "-j", job, "-o", "%r"), "it stands"
    slurm("scontrol", "release", job)
    faults.assert_undisturbed(faults.finished(session))


def test_a_suspended_trial_is_told_and_its_time_does_not_count(faults: Faults) -> None:
    faults.write(faults.profiles(HOLD=str(faults.go)), patience="before_memstats_s=8")
    session = faults.start()
    faults.victim()
    slurm("scontrol", "suspend", faults.job())
    until(lambda: "stands still, SUSPENDED" in faults.project.said)
    slurm("scontrol", "resume", faults.job())
    faults.assert_undisturbed(faults.released(session))
    assert faults.project.events("attempt-cut-short") == []


@pytest.mark.parametrize("verb", ["requeue", "requeuehold"])
def test_a_trial_that_a_person_puts_back_is_waited_for_and_run_again(
    faults: Faults, verb: str
) -> None:
    # a person is quicker, on a busy machine too
    session = faults.start_held(patience="before_memstats_s=300")
    job = faults.job()
    slurm("scontrol", "update", f"jobid={job}", "Requeue=1")  # ours ask not to be
    slurm("scontrol", verb, job)
    back = "put back into the queue after it had begun"
    until(lambda: f"(job {job}) waits, PENDING (" in faults.project.said)
    until(lambda: back in faults.project.said)
    faults.go.touch()
    if verb == "requeuehold":
        assert "held" in slurm("squeue", "-h", "-j", job, "-o", "%r"), "it stands"
        slurm("scontrol", "release", job)
    slurm("scontrol", "update", f"jobid={job}", "StartTime=now")  # else in two minutes
    faults.assert_run_again(faults.finished(session), state="requeued", cls="requeued")
    assert faults.project.events("attempt-cut-short") == []
    assert len(faults.project.submitted) == TRIALS + 1


@pytest.mark.parametrize(
    ("reason", "limit", "none"),
    [
        ("PartitionTimeLimit", "MaxTime=1", "MaxTime=INFINITE"),
        ("PartitionNodeLimit", "MaxNodes=1", "MaxNodes=UNLIMITED"),
    ],
)
def test_a_job_that_never_starts_stops_the_sweep_with_the_remedy(
    faults: Faults, reason: str, limit: str, none: str
) -> None:
    soon = "from pytest_xlatune.campaign import attempts\nattempts._NEVER_STARTS_S = 1\n"
    faults.write(faults.profiles(), conftest=BUSY + soon)
    partition = ("--xlatune-partition", "half")
    slurm("scontrol", "update", "partitionname=half", limit)
    try:
        said = faults.run(*partition)
        jobs = slurm("squeue", "-h", "-o", "%i").split()
    finally:
        slurm("scontrol", "update", "partitionname=half", none)
    assert f"never-starts (PENDING ({reason}): " in said, said
    assert faults.decided()[0] == ("stop", "never-starts")
    assert jobs == [], "none is left in the queue"
    said = faults.run(*partition)
    faults.assert_complete(said)


def test_a_preempted_trial_is_run_again(faults: Faults) -> None:
    session = faults.start_held()
    urgent = ("--partition=urgent", "--nodelist=node[001-002]", "--exclusive", "--output=/dev/null")
    slurm("sbatch", *urgent, "--job-name=urgent", "--wrap", "sleep 1")
    until(lambda: faults.states() == ["preempted"])
    said = faults.released(session)
    faults.assert_run_again(said, state="preempted", cls="preempted")
    assert "PREEMPTED" in faults.project.events("decided")[0]["evidence"]
    assert "preempted" in said
    assert len(faults.project.submitted) == TRIALS + 1


def test_a_sweep_queues_behind_the_job_of_another_and_names_it(faults: Faults) -> None:
    faults.write(faults.profiles(), conftest=BUSY)
    job = strangers_job()
    session = faults.start()
    until(lambda: faults.project.submitted)
    behind = "note: trials wait in the queue behind other jobs: "
    until(lambda: f"{behind}{job} (stranger of " in faults.project.said)
    slurm("scancel", job)
    faults.assert_undisturbed(faults.finished(session))
    assert faults.project.events("epoch-began") == []


def test_a_number_that_the_controller_gave_away_again_is_no_longer_ours(
    trials: Trials, lab: ModuleType
) -> None:
    """A controller that has lost its state begins to count anew."""
    lab.restart_controller_without_state()
    ours = trials.submit("first", "exit 7")
    assert trials.end(ours).exit_code == 7
    lab.restart_controller_without_state()
    stranger = slurm("sbatch", "--parsable", "--output=/dev/null", "--wrap", "sleep 300").strip()
    assert stranger == ours.job_id
    afresh = trials.new_executor(round_s=0)
    outcome = afresh.poll([ours], root=trials.root)[ours.job_id]
    assert (outcome.state, outcome.exit_code) == (State.FAILED, 7)
    afresh.cancel([ours], root=trials.root)
    assert slurm("squeue", "-h", "-j", stranger, "-o", "%T").strip() in ("PENDING", "RUNNING")


CRASH = "Fatal Python error: Segmentation fault"


def test_a_fatal_line_ends_a_trial_whose_processes_stay(faults: Faults) -> None:
    faults.write(
        declare(
            victim={"SAY": CRASH, "STAYS": "1", "ONCE": str(faults.path / "once"), "UNTIL": "3"},
            huge={"SAY": OOM, "STAYS": "1", "MEMSTATS": "1"},
        ),
        patience="after_fatal_s=2",
    )
    said = faults.run()
    assert "1 passed, 1 xfailed" in said, said
    # which of the two came first depends on the digest of the cell
    assert sorted(faults.decided()) == [("drop", "oom-gpu"), ("retry", "segfault")]
    assert sorted(each["evidence"] for each in faults.project.events("decided")) == [CRASH, OOM]
    cut = faults.project.events("attempt-cut-short")
    assert sorted(each["fatal"]["text"] for each in cut) == [CRASH, OOM]
    # neither the phase's limit (600 s) nor the trial's (300 s) was waited for
    assert all(2 <= each["still_s"] < 60 for each in cut)
    assert faults.states() == ["cancelled", "completed"]
    assert sorted(faults.project.measured) == ["baseline-deployed", "victim"]
    assert len(faults.project.submitted) == TRIALS + 1
    assert not processes_with(f"{faults.path}/trainer.py")


def test_a_hang_ends_as_its_phase_says(faults: Faults) -> None:
    once = str(faults.path / "once")
    faults.write(
        declare(
            silent={"STAYS": "1"},
            compiling={"STAYS": "1", "MEMSTATS": "1"},
            victim={"STAYS": "1", "UNTIL": "4", "ONCE": once},
        ),
        patience="before_memstats_s=10, compiling_s=5, training_s=5, after_fatal_s=1",
    )
    said = faults.run()
    assert "1 passed, 2 xfailed" in said, said
    assert sorted(faults.decided()) == [
        ("drop", "hang-init"),
        ("drop", "hang-silent-oom"),
        ("retry", "hang-init"),
        ("retry", "hang-init"),
        ("retry", "hang-mid-training"),
    ]
    assert all(each["fatal"] is None for each in faults.project.events("attempt-cut-short"))
    assert faults.states() == ["cancelled", "completed"]
    assert sorted(faults.project.measured) == ["baseline-deployed", "victim"]
    assert len(faults.project.submitted) == 1 + 3 + 1 + 2
    # what each rank did then is noted on its own node
    (folder,) = faults.path.glob("work/*/*/*/silent-*.1")
    assert sorted(each.name for each in folder.glob("hang*")) == ["hang.1.json", "hang.json"]


PAGE_BYTES = 4096


class Disk:
    """A small file system of its own for the work directory."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self.path = path
        self._is_sated, self._is_full = threading.Event(), threading.Event()
        self._glutton = threading.Thread(target=self._eat)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "lab", path], check=True)

    def fill(self) -> None:
        """Leave no byte free, as if another user had written, and take what is set free later."""
        self._glutton.start()
        assert self._is_full.wait(60), f"{self.path} takes more than its size"

    def _eat(self) -> None:
        # Only when nothing is left does it rest: a page set free between two bites would be a place
        # for the line that the test wants refused.
        with (self.path / "glutton").open("ab", buffering=0) as file:
            while not self._is_sated.is_set():
                try:
                    file.write(bytes(PAGE_BYTES))
                except OSError:
                    self._is_full.set()
                    self._is_sated.wait(0.001)

    def clear(self) -> None:
        self._is_sated.set()
        self._glutton.join()
        (self.path / "glutton").unlink()


@pytest.fixture
def disk(faults: Faults) -> Iterator[Disk]:
    try:
        made = Disk(faults.path / "work")
    except subprocess.CalledProcessError:
        if os.environ.get("CI"):
            raise
        pytest.skip("no file system can be mounted here: that needs CAP_SYS_ADMIN")
    yield made
    made._is_sated.set()
    subprocess.run(["umount", "--lazy", made.path], check=True)


def test_a_full_work_directory_ends_the_session_and_the_next_goes_on(
    faults: Faults, disk: Disk
) -> None:
    # A full disk still takes a line that fits into the last page of a file. The victim's result,
    # which holds what it sets, does not fit.
    declared = faults.profiles(HOLD=str(faults.go), PADDING="x" * 8 * PAGE_BYTES)
    faults.write(declared)
    session = faults.start("-n2")
    faults.victim()
    until(lambda: len(faults.project.submitted) == TRIALS)
    disk.fill()
    said = faults.released(session)
    assert "No space left on device" in said, said
    assert "with free space" in said
    assert "Traceback" not in said
    assert len(faults.project.measured) < TRIALS
    said = faults.run()
    assert "cannot begin, nothing was submitted" in said, said
    assert "cannot be written: No space left on device" in said
    disk.clear()
    said = faults.run()
    faults.assert_complete(said)
    # what could write its end was adopted, what could not was run again
    assert {following for following, _ in faults.decided()} <= {"retry", "interrupted"}
    assert len(faults.project.submitted) == faults.project.jobs


def test_a_work_directory_that_is_away_is_waited_for_and_told(faults: Faults) -> None:
    soon = "from pytest_xlatune import campaign\ncampaign._NOTIFY_AFTER_S = 1\n"
    session = faults.start_held(conftest=soon)
    work, gone = faults.path / "work", faults.path / "gone"
    (log,) = work.glob("*/*/*/victim-*/log.0.txt")
    until(lambda: "XLA_FLAGS=" in log.read_text())  # it makes no folder any more
    work.rename(gone)
    until(lambda: "waiting for it" in faults.project.said)
    gone.rename(work)
    faults.assert_undisturbed(faults.released(session))
    assert faults.project.jobs == TRIALS


HOUR_S = 3600
# In every interpreter of the session and of its jobs: a clock that is put forward and back.
CLOCK = """\
import pathlib, sys, time
_real, _offset = time.time, pathlib.Path(__file__).with_name("offset")
time.time = lambda: _real() + float(_offset.read_text())
sys.executable = str(_offset.with_name("python"))
"""


def wait_for_turns(beat: Path) -> None:
    """Wait until the process that drives has looked at the jobs several times more."""
    before_ns = beat.stat().st_mtime_ns
    until(lambda: beat.stat().st_mtime_ns > before_ns + 2_000_000_000)


def test_clocks_that_jump_end_nothing_and_start_nothing(
    faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = faults.path / "clock"
    clock.mkdir()
    (clock / "sitecustomize.py").write_text(CLOCK)
    (clock / "offset").write_text("0")
    # the payload is started with -I -S, which would keep our clock out
    (clock / "python").write_text(
        f'#!/bin/sh\n[ "$1" != -I ] || shift 2\nPYTHONPATH={clock} exec {sys.executable} "$@"\n'
    )
    (clock / "python").chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", str(clock))
    session = faults.start_held("-n2")
    (beat,) = faults.path.glob("work/*/*/turn.beat")
    for hours in (5, -5):
        (clock / "part").write_text(str(hours * HOUR_S))
        (clock / "part").replace(clock / "offset")
        wait_for_turns(beat)
    faults.assert_undisturbed(faults.released(session))
    assert faults.project.events("epoch-began") == faults.project.events("attempt-cut-short") == []
    assert faults.project.jobs == TRIALS
    # the fault was there: by the node's clock the victim ended before it began
    (victim,) = (
        line["outcome"]
        for line in faults.project.events("attempt-ended")
        if line["trial_id"].startswith("victim")
    )
    assert victim["end_s"] < victim["start_s"] - 4 * HOUR_S
