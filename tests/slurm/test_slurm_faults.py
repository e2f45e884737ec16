"""Faults on a real cluster, seen through whole sessions: what each ends in, and nothing twice.

The trainer only pretends, so that a trial takes a second; pytest, the campaign, Slurm and the
faults are real. `docs/reference/slurm_jobs.md` holds the same list as a table.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import ModuleType

import pytest

from pytest_xlatune.executors.slurm._poller import EMPTY_ROUNDS
from tests.helpers.waiting import until
from tests.slurm.on_lab import (
    NO_HOPE,
    TRIALS,
    Faults,
    declare,
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
