"""Trouble of sbatch that passes by itself is waited out, and nothing is lost."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
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
