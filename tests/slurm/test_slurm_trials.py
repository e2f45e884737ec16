"""Trials on a real Slurm of four nodes: what is submitted, what the job sees, how it ends.

One of them is the process that is a job of maxtext-slurm.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_xlatune.executors import Request, SchedulerDown
from pytest_xlatune.executors.slurm import SHOWN_DIGEST
from pytest_xlatune.executors.slurm._poller import ALL_EMPTY_ROUNDS
from pytest_xlatune.model.errors import SubmissionError
from pytest_xlatune.model.profile import profile
from pytest_xlatune.model.result import State
from pytest_xlatune.workers.maxtext_slurm_job import AXES_FILE, PROFILE_FILE, RECORD
from tests.helpers.waiting import until
from tests.slurm.on_lab import Trials, processes_with, put_before, slurm

ALL = ("node001", "node002", "node003", "node004")
ENVIRONMENT = (sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))")


def job_facts(job_id: str) -> dict[str, str]:
    return dict(re.findall(r"(\S+?)=(\S*)", slurm("scontrol", "show", "job", "-o", job_id)))


def jobs_named(name: str) -> list[str]:
    return slurm("squeue", "-h", "-t", "all", "-n", name, "-o", "%i").split()


def test_a_trial_runs_once_on_each_pinned_node_as_the_site_asks(trials: Trials) -> None:
    nodelist = ("node002", "node001")
    options = {"partition": "half", "nice": "7", "cpus_per_task": "2", "srun.cpu-bind": "none"}
    request = Request(**trials.arguments("pin", nodelist, options=options))
    shown = trials.executor.preview("", request)[1]
    tells = "echo on $SLURMD_NODENAME"
    done = trials.submit("pin", tells, nodelist, spec={"inherit": ("SLURM*",)}, options=options)
    outcome = trials.end(done)
    assert (outcome.state, outcome.exit_code) == (State.COMPLETED, 0), outcome
    assert set(outcome.nodes) == set(nodelist)
    said = [trials.log(done, rank).strip() for rank in (0, 1)]
    assert sorted(said) == ["on node001", "on node002"]
    expected = {
        "OverSubscribe": "NO", "Requeue": "0", "Restarts": "0", "JobName": "xl-pin",
        "Comment": trials.arguments("pin")["comment"],
        "Partition": "half", "Nice": "7", "CPUs/Task": "2",
    }  # fmt: skip
    assert job_facts(done.job_id).items() >= expected.items()
    # what a dry run shows is the script that is submitted, but for the digest of its spec
    script = (trials.folder(done) / "submitit" / f"{done.job_id}_submission.sh").read_text()
    assert re.fullmatch("[0-9a-f]{64}", digest := script.split()[-1])
    assert shown == script.replace(digest, SHOWN_DIGEST)


def test_no_secret_of_the_submitter_is_in_the_job(
    trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = dict.fromkeys(("SECRET_TOKEN", "SLURM_TOKEN", "HF_TOKEN"), "hush-hush")
    # variables of sbatch that would let the secrets in, or the job out of its pins
    steering = {
        "SBATCH_EXPORT": "ALL",
        "SBATCH_PARTITION": "nowhere",
        "SBATCH_JOB_NAME": "other",
        "SLURM_NTASKS": "9",
        "SLURM_MEM_PER_CPU": "1",
    }
    for name, value in (secrets | steering).items():
        monkeypatch.setenv(name, value)
    # everything that the payload could pass on is passed on
    done = trials.submit("secret", ENVIRONMENT, spec={"inherit": ("*",)})
    outcome = trials.end(done)
    assert outcome.state is State.COMPLETED, outcome
    for rank in (0, 1):
        log = trials.log(done, rank)
        assert "hush-hush" not in log
        seen = json.loads(log)
        assert not secrets.keys() & seen.keys()
        assert seen["HOME"], "the node's login environment is there"
        assert seen["SLURM_NTASKS"] == "2"
    script = trials.folder(done) / "submitit" / f"{done.job_id}_submission.sh"
    assert "hush-hush" not in script.read_text()


def test_flags_arrive_byte_for_byte_on_every_rank(trials: Trials) -> None:
    exact = {
        "XLA_FLAGS": '--xla_a=1,2,3 --xla_b=\'x y\' --xla_c="q\\"q"  --xla_d= --xla_e=$HOME;`id`',
        "NCCL_IB_HCA": "rdma0,rdma1:1,^mlx5_0",
        "EMPTY": "",
        "LINES": "one\ntwo\ttabbed",
        "UNICODE": "größe 深",
        "QUOTES": "'\"'\"'",
    }
    done = trials.submit("flags", ENVIRONMENT, ALL, spec={"env": exact})
    assert trials.end(done).state is State.COMPLETED
    for rank in range(4):
        seen = json.loads(trials.log(done, rank))
        assert {name: seen.get(name) for name in exact} == exact


def test_a_payload_that_cannot_run_says_why(
    trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", "/no/such/python")
        done = trials.submit("nopython", "true", ("node001",))
    outcome = trials.end(done)
    assert outcome.state is State.FAILED
    assert "the payload did not run: " in outcome.reason
    assert "/no/such/python" in outcome.reason


def test_a_bad_node_name_is_refused_at_once(trials: Trials) -> None:
    with pytest.raises(SubmissionError, match=r"(?s)node099.*[Ii]nvalid node name") as caught:
        trials.submit("bad", "true", ("node099",))
    assert not isinstance(caught.value, SchedulerDown)
    assert not jobs_named("xl-bad")


def test_our_own_cancel_ends_a_running_and_a_waiting_job(
    trials: Trials, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="pytest_xlatune.executors")
    running, waiting = (trials.submit(name, "sleep 300") for name in ("run", "wait"))
    trials.running(running)
    assert trials.poll(waiting).state is State.PENDING
    trials.executor.cancel([running, waiting], root=trials.root)
    assert trials.end(running).state is State.CANCELLED
    assert trials.end(waiting).state is State.CANCELLED
    assert not list(trials.folder(waiting).glob("log.*"))
    assert f"xl-run is job {running.job_id} on node[001-002]" in caplog.text
    assert f"Slurm is asked to cancel {running.job_id}, {waiting.job_id}" in caplog.text
    assert re.search(r"Slurm was asked by scancel in \d+\.\d\d s: answered", caplog.text)
    trials.executor.cancel([running, waiting], root=trials.root)  # once more does no harm


def test_a_job_is_not_over_while_its_processes_hold_the_nodes(trials: Trials) -> None:
    # as JAX with several processes does: swallow SIGTERM and go on until SIGKILL
    deaf = "trap '' TERM; echo deaf; while :; do sleep 0.2; done"
    done = trials.submit("deaf", deaf)
    trials.running(done)
    slurm("scancel", done.job_id)
    outcome = trials.end(done)
    assert outcome.state is State.CANCELLED
    assert slurm("squeue", "-h", "-j", done.job_id) == ""
    states = slurm("sinfo", "-h", "-N", "-n", "node[001-002]", "-o", "%T").split()
    assert {*states} <= {"idle", "completing"}


@pytest.mark.parametrize(
    "victim", ["started.1.json", "claimed.1.json"], ids=["the trainer", "the payload itself"]
)
def test_kill_9_of_one_rank_ends_all_of_them(trials: Trials, lab: ModuleType, victim: str) -> None:
    done = trials.submit("rank", "sleep 300", ALL)
    trials.running(done, ranks=4)
    os.kill(json.loads((trials.folder(done) / victim).read_text())["pid"], signal.SIGKILL)
    outcome = trials.end(done)
    assert (outcome.state, outcome.exit_code, outcome.signal) == (State.FAILED, None, 9)
    running = {each.name for word in ("sleep", "sleep 300") for each in processes_with(word)}
    assert not running & {*map(str, lab.processes())}


def test_jobs_that_slurm_has_forgotten_are_still_over(trials: Trials, lab: ModuleType) -> None:
    lab.change(MinJobAge=2)
    good = trials.submit("good", "true")
    bad = trials.submit("bad", "exit 3", ("node003",))
    never = trials.submit("never", "true", options={"hold": ""})
    assert trials.poll(never).state is State.PENDING
    slurm("scancel", never.job_id)
    until(lambda: not slurm("squeue", "-h", "-t", "all"))

    watched = [good, bad, never]
    someone_else = trials.new_executor(round_s=0)
    # no job of ours is known to the controller any more, so it is asked for a minute
    rounds = range(ALL_EMPTY_ROUNDS)
    seen = [someone_else.poll(watched, root=trials.root) for _ in rounds]
    assert [each[good.job_id].state for each in seen] == [State.COMPLETED for _ in rounds]
    assert (seen[0][bad.job_id].state, seen[0][bad.job_id].exit_code) == (State.FAILED, 3)
    assert seen[0][good.job_id].nodes == ("node001", "node002")
    states = [each[never.job_id].state for each in seen]
    assert states == [State.PENDING] * (ALL_EMPTY_ROUNDS - 1) + [State.LOST]


# what an sbatch does that is a site's own: {real} is Slurm's, which takes the job
WRAPPER = {
    "the answer is lost": '{real} "$@" >/dev/null; echo "sbatch: error: Batch job submission '
    'failed: Socket timed out on send/recv operation" >&2; exit 1',
    "the submitter dies": '{real} "$@" >/dev/null; kill -9 $(ps -o ppid= -p $PPID)',
    "it says nothing": '{real} "$@" >/dev/null',
    "garbage": '{real} "$@" >/dev/null; printf "\\001\\377 job 9 \\n"',
    "a bare number": '{real} "$@" >/dev/null; echo 4711',
    "an error of its own": '{real} "$@" >/dev/null; echo "line 3: quota?" >&2; exit 1',
    "it is killed": '{real} "$@" >/dev/null; kill -9 $$',
    "it hangs": '{real} "$@" >/dev/null; sleep 1000',
    "it hangs once it has said it": '{real} "$@"; sleep 1000',
}
# the session is over, and says nothing of a job
ENDS = {"the submitter dies": -signal.SIGKILL, "it hangs": 1}


def session_that_submits(trials: Trials, name: str) -> list[str]:
    arguments = {**trials.arguments(name), "folder": str(trials.root / name / "1")}
    code = f"""\
        from pathlib import Path
        from pytest_xlatune.model.trial import LaunchSpec
        from pytest_xlatune.model.resources import Patience, Resources
        from pytest_xlatune.executors import Request
        from pytest_xlatune.executors.slurm import SlurmExecutor, _commands
        _commands.COMMAND_TIMEOUT_S = 5
        print(SlurmExecutor().submit(
            LaunchSpec(argv=("sleep", "2")),
            Request(**{arguments!r} | dict(folder=Path({arguments["folder"]!r}))),
        ))
        """
    return [sys.executable, "-c", textwrap.dedent(code)]


@pytest.mark.parametrize("accident", WRAPPER)
def test_nothing_is_submitted_twice(
    trials: Trials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accident: str
) -> None:
    name = f"twice-{tmp_path.name}"
    with monkeypatch.context() as patch:
        put_before(tmp_path, {"sbatch": f"#!/bin/bash\n{WRAPPER[accident]}\n"}, patch)
        first = subprocess.run(
            session_that_submits(trials, name), capture_output=True, text=True, check=False
        )
    ends = ENDS.get(accident, 0)
    assert first.returncode == ends, first.stderr
    # the next session submits what was intended and finds it running
    done = trials.submit(name, ("sleep", "2"))
    assert jobs_named(f"xl-{name}") == [done.job_id]
    assert ends or first.stdout.strip() == done.job_id
    outcome = trials.end(done)
    assert outcome.state is State.COMPLETED, outcome
    assert trials.submit(name, ("sleep", "2")) == done, "and so it does when it is over"


def test_an_sbatch_that_outlives_its_session_is_waited_for(
    trials: Trials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, go = tmp_path / "asked", tmp_path / "go"
    waits = f'touch {asked}; while [ ! -e {go} ]; do sleep 0.05; done; exec {{real}} "$@"'
    put_before(tmp_path, {"sbatch": f"#!/bin/bash\n{waits}\n"}, monkeypatch)
    first = subprocess.Popen(session_that_submits(trials, "outlived"))
    try:
        until(asked.exists)
    finally:
        first.kill()  # the session alone: its sbatch still asks
        first.wait()
    waited_s, real_sleep = list[float](), time.sleep

    def sleep(wait_s: float) -> None:
        waited_s.append(wait_s)
        go.touch()
        real_sleep(wait_s)

    trials.executor = trials.new_executor()
    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", sleep)
        done = trials.submit("outlived", ("sleep", "2"))
    assert waited_s, "it did not wait for the first"
    assert jobs_named("xl-outlived") == [done.job_id]
    assert trials.end(done).state is State.COMPLETED


PROFILE = profile("p", "--xla_a=1")
PROBE = 'echo "$SLURM_PROCID of $SLURM_NTASKS on $SLURM_STEP_NODELIST"'


def test_a_container_on_every_node_knows_its_rank_and_ends_with_its_job(
    trials: Trials, podman_site: Any
) -> None:
    """srun around the container: one container a node, started by that node's payload."""
    probe = f'{PROBE}; echo "$XLA_FLAGS"; trap "exit 0" TERM; echo up; '
    word = str(trials.root)  # of the process inside
    spec = podman_site.spec(PROFILE, "bash", "-c", f"{probe} while :; do sleep 0.2; done", word)
    job = trials.launch("contained", spec)
    paths = [trials.folder(job) / f"log.{rank}.txt" for rank in (0, 1)]
    until(lambda: all(path.exists() and "up\n" in path.read_text() for path in paths))
    first, second = (path.read_text() for path in paths)
    assert ("0 of 2 on " in first, "1 of 2 on " in second) == (True, True)
    # the first rank alone is asked to tell what XLA has read
    assert re.search(r'(?m)^--xla_dump_to="/.* --xla_from_image=1 --xla_a=1$', first)
    assert "\n--xla_from_image=1 --xla_a=1\n" in second
    assert len(processes_with(word)) >= 2
    trials.executor.cancel([job], root=trials.root)
    assert trials.end(job).state == "cancelled"
    until(lambda: not processes_with(word))


SUBMIT = """\
#!/usr/bin/env bash
set -e
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
spec=$1
shift
sbatch=()
while [[ $1 != -- ]]; do sbatch+=("$1"); shift; done
shift
name=JAX-${spec%%:*}-${spec#*:}
cp "$here/configs/tiny.env.sh" "$JOB_WORKSPACE"  # jobs run from a copy that stays
sbatch -J "$name" --output="$JOB_WORKSPACE/%j-$name.log" "${sbatch[@]}" \\
    --wrap ". $JOB_WORKSPACE/tiny.env.sh; $*"
"""
# as `python -m` starts it, but for the five seconds between two questions
QUICK = """\
import sys
from pytest_xlatune.workers import maxtext_slurm_job
maxtext_slurm_job.POLL_S = 0.5
sys.exit(maxtext_slurm_job.main())
"""

Start = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def start(lab: ModuleType, tmp_path: Path) -> Start:
    checkout, attempt = tmp_path / "checkout", tmp_path / "attempt"
    (checkout / "configs").mkdir(parents=True)
    attempt.mkdir()
    (checkout / "submit.sh").write_text(SUBMIT)
    (checkout / "submit.sh").chmod(0o755)
    # the axes stand in front, the profile has the last word
    (attempt / AXES_FILE).write_text("export GREETING='it was' SLICES=2\n")
    (attempt / PROFILE_FILE).write_text("export GREETING='it is'\n")

    def call(line: str) -> subprocess.Popen[bytes]:
        argv = [
            *(sys.executable, "-c", QUICK),
            *("--checkout", str(checkout), "--model", "tiny"),
            *("--workspace", str(tmp_path), "--name", "JAX-tiny-t1"),
            *("--", "tiny:t1", "-N", "2", "-w", "node[001-002]", "--", line),
        ]
        with (attempt / "log").open("wb") as log:
            return subprocess.Popen(argv, cwd=attempt, stdout=log, stderr=log, env=os.environ)

    return call


def ended(process: subprocess.Popen[bytes], root: Path) -> tuple[int, str, dict[str, Any]]:
    code = process.wait(timeout=240)
    record = json.loads((root / "attempt" / RECORD).read_text())
    return code, (root / "attempt" / "log").read_text(), record


def begun(start: Start, root: Path) -> subprocess.Popen[bytes]:
    """Start the process for a job that goes on, and wait until it runs."""
    process = start("echo begun; sleep 300")
    until(lambda: "begun" in (root / "attempt" / "log").read_text())
    return process


def test_it_fails_as_its_job_fails(start: Start, tmp_path: Path) -> None:
    code, log, record = ended(start("echo $GREETING failing on $SLICES; exit 7"), tmp_path)
    assert (code, record["state"]) == (7, "FAILED")
    assert "it is failing on 2\n" in log
    assert "JobState=FAILED ExitCode=7:0 NodeList=node[001-002]" in log


def test_a_signal_to_it_cancels_the_job(start: Start, tmp_path: Path) -> None:
    process = begun(start, tmp_path)
    process.send_signal(signal.SIGTERM)
    code, _, record = ended(process, tmp_path)
    assert (code, record["state"]) == (143, "CANCELLED")
    assert not slurm("squeue", "-h", "-n", "JAX-tiny-t1", "-t", "running,pending")


def test_a_job_left_by_a_process_that_was_killed_is_cancelled_by_the_next(
    start: Start, tmp_path: Path
) -> None:
    process = begun(start, tmp_path)
    left = json.loads((tmp_path / "attempt" / RECORD).read_text())["job_id"]
    process.kill()
    process.wait()
    code, said, record = ended(start("echo second"), tmp_path)
    assert (code, record["state"]) == (0, "COMPLETED")
    assert f"xlatune: job {left} of an earlier attempt" in said
