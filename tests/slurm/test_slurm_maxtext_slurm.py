"""The process that is a maxtext-slurm job, against a real Slurm: states, exit codes, scancel."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_xlatune.workers.maxtext_slurm_job import AXES_FILE, PROFILE_FILE, RECORD
from tests.helpers.waiting import until
from tests.slurm.on_lab import slurm

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
