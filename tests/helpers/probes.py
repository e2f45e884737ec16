"""Trials to launch, and a program that tells what environment and arguments reached it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.launchers.maxtext import MaxTextLauncher
from pytest_xlatune.launchers.maxtext_slurm import MaxTextSlurmLauncher
from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.profile import BASELINE, Profile
from pytest_xlatune.model.trial import LaunchSpec, Trial
from tests.helpers.history import trial_of

# prints its environment and its arguments, exactly
PROBE = "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:], os.getcwd()]))"


def make_cell(parallelism: str = "FSDP=8", **changes: Any) -> Cell:
    values: dict[str, Any] = {"model_tag": "tiny-1b", "per_device_batch_size": 7.0}
    return Cell(parallelism=Parallelism.parse(parallelism), **values | changes)


def make_trial(cell: Cell, of: Profile = BASELINE, **protocol: Any) -> Trial:
    return trial_of(cell, of, protocol=Protocol(**protocol))


def maxtext(**changes: Any) -> MaxTextLauncher:
    return MaxTextLauncher(**{"config": "/cfg/tiny.gpu.yml"} | changes)


def maxtext_slurm(**changes: Any) -> MaxTextSlurmLauncher:
    sbatch = ("-N", "8", "-w", "node[001-008]")
    values = {"checkout": "/shared/maxtext-slurm", "sbatch": sbatch, "is_ray": True}
    return MaxTextSlurmLauncher(**{**values, "python": "python3", **changes})


def run(spec: LaunchSpec, folder: Path) -> tuple[dict[str, str], list[str], str]:
    """Do what the payload does with a spec, and return what the program saw on the second rank."""
    for name, text in spec.files.items():
        (folder / name).write_text(text, encoding="utf-8", newline="")
    inherited = {name: os.environ[name] for name in spec.inherit if name in os.environ}
    done = subprocess.run(
        spec.argv,
        env=inherited | spec.env | {"SLURM_PROCID": "1"},
        cwd=spec.cwd or folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    env, argv, cwd = json.loads(done.stdout)
    return env, argv, cwd


def probe(**changes: Any) -> CommandLauncher:
    return CommandLauncher(**{"argv": (sys.executable, "-c", PROBE, "{overrides}")} | changes)
