"""maxtext-slurm to test with: a pretend checkout, a pretend Slurm, and trials to launch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune import Cell, Profile, Protocol
from pytest_xlatune.launchers.maxtext_slurm import DRIVER, MaxTextSlurmLauncher
from pytest_xlatune.model.profile import BASELINE
from pytest_xlatune.model.trial import LaunchSpec, Trial
from pytest_xlatune.workers.maxtext_slurm_job import RECORD
from tests.helpers import probes
from tests.helpers.history import trial_of
from tests.helpers.sessions import run_inside

DATA = Path(__file__).parents[1] / "data" / "maxtext_slurm"
MODEL = "deepseek3-671b"
OVERLAP = "--xla_gpu_experimental_parallel_collective_overlap_limit=2"


def make_cell(**changes: Any) -> Cell:
    values = {"model_tag": MODEL, "per_device_batch_size": 7, "max_target_length": 4096}
    return probes.make_cell("PP=8", **values | changes)


def make_trial(cell: Cell, of: Profile = BASELINE, *, evidence: bool = False) -> Trial:
    if not evidence:
        return trial_of(cell, of)
    protocol = Protocol(profiler="xplane", metric="none", dump=True)
    return trial_of(cell, of, protocol=protocol, stage="evidence")


def make_launcher(**changes: Any) -> MaxTextSlurmLauncher:
    sbatch = ("-N", "8", "-w", "node[001-008]")
    values = {"checkout": "/shared/maxtext-slurm", "sbatch": sbatch, "is_ray": True}
    return MaxTextSlurmLauncher(**{**values, "python": "python3", **changes})


# as `python -m` starts it, but for what it waits between two questions and two looks at the log
QUICK_PYTHON = f"""\
#!/bin/sh
[ "$1 $2" = "-m {DRIVER}" ] || exit 9
shift 2
exec {sys.executable} -c '
import sys
import {DRIVER} as driver
driver.POLL_S, driver._LOOK_S = 0.2, 0.1
sys.exit(driver.main())
' "$@"
"""


def name_of(spec: LaunchSpec) -> str:
    return spec.argv[spec.argv.index("--name") + 1]


class Site:
    """A pretend checkout, a pretend Slurm, and the folder of an attempt."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.checkout = root / "maxtext slurm"
        shutil.copytree(DATA / "checkout", self.checkout)
        self.outputs = self.checkout / "outputs"
        self.outputs.mkdir()
        (self.outputs / "big").write_text("never copied")
        (self.checkout / "secret.local.sh").write_text("never copied")
        for command in (["init", "-q"], ["add", "."]):
            subprocess.run(["git", "-C", str(self.checkout), *command], check=True)
        self.state = root / "state"
        self.attempt = root / "attempt"
        bin_folder = root / "bin"
        for folder in (self.state, self.attempt, bin_folder):
            folder.mkdir()
        for name in ("squeue", "scontrol", "scancel"):
            script = bin_folder / name
            code = (DATA / "slurm.py").read_text(encoding="utf-8")
            script.write_text(f"#!{sys.executable}\n{code}")
            script.chmod(0o755)
        self.python = bin_folder / "quick-python"
        self.python.write_text(QUICK_PYTHON)
        self.python.chmod(0o755)
        self.environ = {
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
            "HOME": str(root),
            "SLURM_STANDIN": str(self.state),
        }

    def start(
        self, of: Profile, *, evidence: bool = False, **environ: str
    ) -> subprocess.Popen[bytes]:
        """Start what a payload would start, as it would."""
        cell = make_cell()
        launcher = make_launcher(
            checkout=str(self.checkout), sbatch=("-N2", "-wnode[001-002]"), python=str(self.python)
        )
        spec = launcher.launch(make_trial(cell, of, evidence=evidence), cell)
        for name, text in spec.files.items():
            (self.attempt / name).write_text(text, encoding="utf-8")
        with (self.attempt / "log.0.txt").open("wb") as log:
            return subprocess.Popen(
                spec.argv,
                env={**self.environ, **spec.env, **environ},
                cwd=self.attempt,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def run(self, of: Profile, *, evidence: bool = False, **environ: str) -> int:
        return self.start(of, evidence=evidence, **environ).wait(timeout=240)

    @property
    def log(self) -> Path:
        return self.attempt / "log.0.txt"

    def run_inside(
        self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, *args: str
    ) -> str:
        """Run a session of pytest in this folder, which must pass; return its words."""
        for name, value in self.environ.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(self.root)
        done = run_inside(pytester, f"--rootdir={self.root}", *args)
        assert done.ret == 0, done.stdout.str()[-3000:]
        return done.stdout.str()

    def record(self) -> Mapping[str, str]:
        found: dict[str, str] = json.loads((self.attempt / RECORD).read_text(encoding="utf-8"))
        return found
