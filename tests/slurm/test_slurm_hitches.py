"""Trouble of sbatch that passes by itself is waited out, and nothing is lost."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_xlatune.model.result import State

Faults = Any  # of conftest.py, which cannot be imported from here
Trials = Any  # likewise

TRIALS = 3  # a baseline, the profile with the fault, one more

FAILED = "Batch job submission failed"
ERRORS = (
    f"{FAILED}: I/O error writing script/environment to file",
    f"{FAILED}: Unspecified error",
    f"{FAILED}: Socket timed out on send/recv operation",
    f"{FAILED}: Unable to contact slurm controller (connect failure)",
    f"{FAILED}: Resource temporarily unavailable",
    f"{FAILED}: Invalid authentication credential",
    f"{FAILED}: Protocol authentication error",
    "Munge encode failed: Failed to connect to /run/munge/munge.socket.2: Connection refused",
    f"{FAILED}: Zero Bytes were transmitted or received",
)
# says the first error that is left, at every second call, then leaves it to Slurm's own
HITCH = """\
#!/bin/sh
echo call >> {calls}
error=$(head -n 1 {errors})
if [ -n "$error" ] && [ $(($(wc -l < {calls}) % 2)) = 1 ]; then
  sed -i 1d {errors}
  echo "sbatch: error: $error" >&2
  exit 1
fi
exec {real} "$@"
"""


def hitches(path: Path, errors: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let sbatch fail with each of these once; return the file of those that are left."""
    left, script = path / "errors", path / "bin" / "sbatch"
    left.write_text("".join(f"{each}\n" for each in errors))
    script.parent.mkdir()
    real = shutil.which("sbatch")
    script.write_text(HITCH.format(calls=path / "calls", errors=left, real=real))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    return left


@pytest.mark.parametrize("error", ERRORS)
def test_a_hitch_of_sbatch_is_tried_again(
    trials: Trials, tmp_path: Path, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = hitches(tmp_path, [error], monkeypatch)
    trials.executor = trials.new_executor(sleep=lambda seconds: time.sleep(seconds / 10))
    done = trials.submit("hitch", "true")
    assert left.read_text() == ""
    assert (tmp_path / "calls").read_text() == "call\ncall\n"
    assert trials.end(done).state is State.COMPLETED


def test_a_sweep_does_not_mind_a_hitch_at_every_submission(
    faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = hitches(faults.path, ERRORS[:TRIALS], monkeypatch)
    faults.write(faults.profiles())
    said = faults.run()
    assert "2 passed" in said, said
    assert left.read_text() == ""
    assert faults.decided() == []
    faults.assert_measured_once("victim")
    assert len(faults.project.submitted) == TRIALS


# Slurm's own sbatch takes the job, and nothing is said of it; what else a site's sbatch may do to
# one submission stands in `test_slurm_trials.py`
MUTE = """\
#!/bin/sh
echo call >> {calls}
{real} "$@" > /dev/null
echo $$ > {calls}.pid; exec sleep 1000
"""


def mute(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let sbatch hide that it took the job; return the file with a line for each of its calls."""
    script, calls = path / "bin" / "sbatch", path / "calls"
    script.parent.mkdir()
    script.write_text(MUTE.format(calls=calls, real=shutil.which("sbatch")))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    return calls


SHORT = """\
from pytest_xlatune import campaign
from pytest_xlatune.executors.slurm import _script
_script.COMMAND_TIMEOUT_S, campaign._TELL_AWAY_S = 5, 1
"""


def test_a_sweep_whose_sbatch_hides_that_it_took_the_job_submits_it_once(
    faults: Faults, lab: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = mute(faults.path, monkeypatch)
    faults.write(faults.profiles(), conftest=SHORT)
    said = faults.run()
    assert "2 passed" in said, said
    assert "is not submitted: sbatch did not answer in 5 s" in said
    assert faults.decided() == []
    faults.assert_measured_once("victim")
    assert len(faults.project.submitted) == TRIALS
    assert calls.read_text().count("call") == TRIALS
    assert faults.project.jobs(lab) == TRIALS


def test_a_session_killed_as_sbatch_took_its_job_leaves_it_to_the_next(
    faults: Faults, lab: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        hung = mute(faults.path, patch).with_name("calls.pid")
        faults.write(faults.profiles())
        first = faults.start()
        faults.wait_until(lambda: hung.exists() and hung.read_text().endswith("\n"))
        os.killpg(first.pid, signal.SIGKILL)
        os.kill(int(hung.read_text()), signal.SIGKILL)
    said = faults.run()
    assert "2 passed" in said, said
    assert faults.decided() == []
    faults.assert_measured_once("victim")
    assert faults.project.jobs(lab) == TRIALS


@pytest.mark.parametrize(
    "left",
    [
        pytest.param('{"state": "compl', id="torn"),
        pytest.param("", id="empty"),
        pytest.param('{"state": 7, "nodes": 7, "end_s": NaN}', id="wrong types"),
        pytest.param("[" * 100_000, id="100,000 brackets"),
    ],
)
def test_an_outcome_that_cannot_be_read_is_its_attempts_failure(faults: Faults, left: str) -> None:
    """Others run meanwhile, and their results count."""
    faults.hold()
    session = faults.start()
    folder = faults.victim()
    faults.wait_until(lambda: len(faults.project.submitted) == TRIALS)
    os.killpg(session.pid, signal.SIGSTOP)
    try:
        faults.go.touch()
        files = [folder / "outcome.json", folder / "outcome.1.json"]
        faults.wait_until(lambda: all(each.exists() for each in files))
        files[0].write_text(left)
    finally:
        os.killpg(session.pid, signal.SIGCONT)
    said = faults.finished(session)
    assert "2 passed" in said, said
    assert [following for following, _ in faults.decided()] == ["retry"]
    assert faults.states()[-1] == "completed"
    faults.assert_measured_once("victim")
