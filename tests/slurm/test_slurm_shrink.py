"""A profile that fails is reduced by trials on a real Slurm, with a trainer that only pretends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from types import ModuleType
from typing import Any

Faults = Any  # of pretend.py, which cannot be imported from here

SHRINK = (
    "import lab_rounds, sys; lab_rounds.quicken(); "
    "from pytest_xlatune.cli import main; sys.exit(main())"
)
OOM = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 123456 bytes."


def started(faults: Faults, *options: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", SHRINK, "shrink", "test_sweep.py:whole", "--trials", "20"]
    argv += ["--nodelist", "node[001-002]", *options]
    return subprocess.Popen(
        argv, cwd=faults.path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def declared(**env: str) -> str:
    return f'profile("whole", "--xla_a=1 --xla_b=1", env={ {"NCCL_A": "1", **env}!r}),'


def test_a_profile_that_runs_out_of_memory_is_reduced_by_jobs(
    faults: Faults, lab: ModuleType
) -> None:
    faults.write(declared(SAY=OOM))
    said, errors = started(faults).communicate(timeout=60)
    assert "--keep" in errors, said
    said, errors = started(faults, "--keep", "kept", "--json").communicate(timeout=240)
    assert errors == ""
    found = json.loads(said)["shrunk"]
    assert (found["symptom"]["cls"], found["by"], found["is_minimal"]) == (
        "oom-gpu",
        "trials",
        True,
    )
    assert [(each["kind"], each["name"]) for each in found["settings"]] == [("variable", "SAY")]
    # the baseline before them, and each on both nodes
    assert faults.project.jobs(lab) == 1 + found["tries"]
    outcomes = list(faults.path.glob("kept/trials/*/outcome.json"))
    assert len(outcomes) == 1 + found["tries"]
    assert {tuple(json.loads(each.read_text())["nodes"]) for each in outcomes} <= {
        ("node001",),
        ("node001", "node002"),
    }


def test_a_shrink_that_is_ended_leaves_no_job(
    faults: Faults, slurm: Any, wait_until: Any, lab: ModuleType
) -> None:
    faults.write(declared(HOLD=str(faults.go)))
    session = started(faults, "--keep", "kept")
    wait_until(
        lambda: len(list(faults.path.glob("kept/trials/whole-*/started*.json"))) == 2, timeout_s=90
    )
    os.kill(session.pid, signal.SIGINT)
    session.communicate(timeout=60)
    assert session.returncode != 0
    wait_until(lambda: not slurm("squeue", "-h").strip(), timeout_s=60)
