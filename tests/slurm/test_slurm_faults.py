"""Faults on a real cluster, seen through whole sessions: what each ends in, and nothing twice.

The trainer only pretends, so that a trial takes a second; pytest, the campaign, Slurm and the
faults are real. `docs/reference/slurm_jobs.md` holds the same list as a table.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_xlatune.executors.slurm._poller import EMPTY_ROUNDS

Faults = Any  # of conftest.py, which cannot be imported from here

TRIALS = 3  # a baseline, the profile with the fault, one more

OOM = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 171.96GiB."
UNKNOWN = "F1120 09:03:25.888154 1 parse_flags_from_env.cc:234] Unknown flag in XLA_FLAGS: --xla_x"
NIC = "mlx5_0: Got completion with error IBV_WC_RETRY_EXC_ERR(12) vendor_err=129"


def test_what_the_log_says_drops_the_profile(faults: Faults) -> None:
    says = [("oom", {"SAY": OOM}), ("unknown", {"SAY": UNKNOWN}), ("nan", {"LOSS": "nan"})]
    faults.write(
        ", ".join(f'profile("{name}", "--xla_{name}=1", env={env!r})' for name, env in says)
    )
    said = faults.run()
    assert "3 xfailed" in said, said
    assert sorted(faults.decided()) == [
        ("drop", "numerical-failure"),
        ("drop", "oom-gpu"),
        ("drop", "unknown-flag"),
    ]
    assert "171.96" in said
    assert len(faults.project.submitted) == 4, "no drop is tried again"


def test_a_node_that_goes_down_is_resumed_and_the_trial_run_again(
    faults: Faults, slurm: Callable[..., str]
) -> None:
    faults.hold()
    session = faults.start()
    faults.victim()
    slurm("scontrol", "update", "nodename=node002", "state=down", "reason=Not responding")
    faults.wait_until(lambda: faults.states() == ["node-fail"])
    faults.go.touch()
    said = faults.finished(session)
    assert "2 passed" in said, said
    assert faults.states() == ["node-fail", "completed"]
    assert faults.decided() == [("retry", "node-fail")]
    assert any("node002" in each["nodes"] for each in faults.project.events("epoch-began"))
    faults.assert_measured_once("victim")


def test_a_persons_drain_stands_and_stops_the_sweep(
    faults: Faults, slurm: Callable[..., str]
) -> None:
    faults.hold_all()
    session = faults.start()
    faults.victim("*")
    faults.wait_until(lambda: len(faults.project.submitted) >= 2)  # one waits behind it
    drain = ("scontrol", "update", "nodename=node002")
    slurm(*drain, "state=drain", "reason=ADMIN: hardware swap")
    faults.go.touch()
    said = faults.finished(session)
    assert "node002 is drained: 'ADMIN: hardware swap'. A person took it out of service" in said
    assert "recovery attempted: none" in said
    assert "drain" in slurm("sinfo", "-h", "-n", "node002", "-o", "%T"), "nothing resumed it"
    assert not faults.project.events("epoch-began")
    assert faults.decided()[0] == ("stop", "node-drain")
    slurm(*drain, "state=resume")
    assert "2 passed" in faults.run()
    faults.assert_measured_once("victim")


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
    (faults.path / "bin").mkdir()
    for name in ("scontrol", "squeue", "sacct"):
        script = faults.path / "bin" / name
        script.write_text(BLIND.format(blind=blind, said=said, code=code, real=shutil.which(name)))
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{faults.path / 'bin'}:{os.environ['PATH']}")
    faults.hold()
    session = faults.start()
    faults.victim()
    blind.touch()
    asked = 3 * EMPTY_ROUNDS  # three times what a job needs to be lost
    faults.wait_until(lambda: blind.read_text().count("asked") >= asked)
    blind.unlink()
    faults.go.touch()
    words = faults.finished(session)
    assert "2 passed" in words, words
    assert faults.decided() == []
    faults.assert_measured_once("victim")
    assert len(faults.project.submitted) == TRIALS


def test_a_node_drained_by_slurm_under_the_queue_is_resumed(
    faults: Faults, slurm: Callable[..., str]
) -> None:
    faults.hold_all()
    session = faults.start()
    faults.victim("*")
    faults.wait_until(lambda: len(faults.project.submitted) >= 2)  # one waits behind it
    slurm("scontrol", "update", "nodename=node002", "state=drain", "reason=Kill task failed")
    faults.go.touch()
    said = faults.finished(session)
    assert "2 passed" in said, said
    assert [each["nodes"] for each in faults.project.events("epoch-began")] == [["node002"]]
    assert "a new epoch: node-drain: resumed node002" in said
    assert faults.decided() == []
    faults.assert_measured_once("victim")
    assert len(faults.project.submitted) == TRIALS


def test_a_node_drained_before_the_start_is_named_and_nothing_submitted(
    faults: Faults, slurm: Callable[..., str], lab: ModuleType
) -> None:
    faults.write(faults.profiles())
    slurm("scontrol", "update", "nodename=node002", "state=drain", "reason=bad-nic")
    (faults.path / "trainer.py").unlink()
    said = faults.run(slot=("--xlatune-nodelist", "node002,node099"))
    assert "cannot begin, nothing was submitted" in said, said
    assert "node002 is drained, expected idle: bad-nic" in said
    assert "node099 does not exist in this cluster" in said
    assert faults.project.jobs(lab) == 0
    slurm("scontrol", "update", "nodename=node002", "state=resume")
    said = faults.run(slot=("--xlatune-nodelist", "node[001-002]"))
    assert "node001, node002 cannot see" in said, said
    assert not faults.project.submitted


def test_a_dead_node_stops_the_sweep_with_a_message(
    faults: Faults, slurm: Callable[..., str], lab: ModuleType
) -> None:
    lab.change(**lab.QUICK_TO_SEE_A_DEAD_NODE)
    faults.hold(conftest=faults.NO_HOPE)
    session = faults.start()
    faults.victim()
    lab.kill_node("node002")
    faults.wait_until(lambda: "down" in slurm("sinfo", "-h", "-n", "node002", "-o", "%T"))
    said = faults.finished(session)
    assert "[xla-tuning STOP] pretend FSDP=2 sweep halted" in said, said
    assert "node002" in said
    assert faults.decided()[0][0] == "stop"
    assert faults.decided()[0][1] in ("node-fail", "node-drain")
    lab.start_node("node002")
    faults.wait_until(lambda: "idle" in slurm("sinfo", "-h", "-n", "node002", "-o", "%T"))
    faults.go.touch()
    assert "2 passed" in faults.run()
    faults.assert_measured_once("victim")


def test_a_cancel_from_outside_is_no_failure_and_measured_by_the_next_run(
    faults: Faults, slurm: Callable[..., str]
) -> None:
    faults.hold()
    session = faults.start()
    faults.victim()
    slurm("scancel", faults.job())
    said = faults.finished(session)
    assert "1 passed, 1 error" in said, said
    assert faults.decided() == [("give-up", "cancelled")]
    assert faults.states() == ["cancelled"]
    faults.go.touch()
    assert "2 passed" in faults.run()
    faults.assert_measured_once("victim")
    assert len(faults.project.submitted) == TRIALS + 1


def test_a_killed_rank_is_run_again(faults: Faults) -> None:
    faults.hold()
    session = faults.start()
    faults.victim()
    pid = next(
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if is_trainer(path, faults.path) and rank_of(path.parent) == b"1"
    )
    os.kill(pid, signal.SIGKILL)
    faults.wait_until(lambda: len(faults.states()) == 1)
    faults.go.touch()
    said = faults.finished(session)
    assert "2 passed" in said, said
    assert faults.decided() == [("retry", "killed")]
    assert faults.states() == ["failed", "completed"]
    faults.assert_measured_once("victim")


def is_trainer(path: Path, folder: Path) -> bool:
    try:
        words = path.read_bytes().split(b"\0")
    except OSError:
        return False
    return str(folder / "trainer.py").encode() in words[:2]


def rank_of(process: Path) -> bytes:
    pairs = (process / "environ").read_bytes().split(b"\0")
    return next(pair[13:] for pair in pairs if pair.startswith(b"SLURM_PROCID="))


@pytest.mark.parametrize("has_hook", [True, False], ids=["a site that resets it", "no site hook"])
def test_a_nic_fault_needs_the_site(faults: Faults, *, has_hook: bool) -> None:
    hook = "def pytest_xlatune_recover(sweep, decision, nodes):\n    return True\n"
    faults.write(
        faults.profiles(SAY=NIC, ONCE=str(faults.path / "once")), conftest=hook if has_hook else ""
    )
    said = faults.run()
    if has_hook:
        assert "2 passed" in said, said
        assert faults.decided() == [("retry", "nic-fault")]
        faults.assert_measured_once("victim")
    else:
        assert "[xla-tuning STOP]" in said, said
        assert "IBV_WC_RETRY_EXC_ERR" in faults.project.events("decided")[0]["evidence"]
        assert faults.decided()[0] == ("stop", "nic-fault")


def test_the_controller_may_die_and_come_back(
    faults: Faults, lab: ModuleType, slurm: Callable[..., str]
) -> None:
    faults.hold()
    session = faults.start("-n2")
    faults.victim()
    faults.wait_until(lambda: len(faults.project.submitted) == TRIALS)
    since_s = lab.state_saved_at()
    slurm("scontrol", "update", f"jobid={faults.job()}", "TimeLimit=500")
    faults.wait_until(lambda: lab.state_saved_at() > since_s)
    lab.kill_controller()
    faults.go.touch()
    lab.start_controller()
    said = faults.finished(session)
    assert "2 passed" in said, said
    assert faults.decided() == []
    assert faults.project.jobs(lab) == len(faults.project.submitted) == TRIALS
    faults.assert_measured_once("victim")


@pytest.mark.part("slurm")
def test_killed_workers_controllers_and_rivals_lose_and_double_nothing(
    faults: Faults, lab: ModuleType
) -> None:
    faults.hold()
    session = faults.start("-n2")
    faults.victim()
    (beat,) = faults.path.glob("work/*/*/turn.beat")
    path = Path(f"/proc/{session.pid}/task/{session.pid}/children")
    workers = [int(each) for each in path.read_text(encoding="ascii").split()]
    # the one that asks Slurm for all of them, and submits
    faults.wait_until(lambda: beat.read_text(encoding="utf-8").strip() in map(str, workers))
    os.kill(int(beat.read_text(encoding="utf-8")), signal.SIGKILL)
    rival = faults.start("-n0")
    os.killpg(session.pid, signal.SIGKILL)
    session.wait()
    third = faults.start("-n2")
    faults.go.touch()
    assert [rival.wait(240), third.wait(240)] == [0, 0], faults.project.said
    assert faults.project.jobs(lab) == len(faults.project.submitted) == TRIALS
    faults.assert_measured_once("victim")


def test_the_nodes_of_the_first_trial_are_those_of_all(
    faults: Faults, lab: ModuleType, slurm: Callable[..., str]
) -> None:
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
    left, script = faults.path / "errors", faults.path / "bin" / "sbatch"
    left.write_text("".join(f"{each}\n" for each in ERRORS))
    script.parent.mkdir()
    script.write_text(HITCH.format(errors=left, real=shutil.which("sbatch")))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    faults.write(faults.profiles())
    said = faults.run()
    assert "2 passed" in said, said
    assert left.read_text() == ""
    assert faults.decided() == []
    faults.assert_measured_once("victim")
    assert len(faults.project.submitted) == TRIALS
