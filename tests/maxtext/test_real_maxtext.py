"""MaxText itself, through the launcher and the sweep of `sweeps/test_maxtext_cpu.py`.

Run by `tox run -e maxtext`, which makes MaxText's own environment and names its interpreter;
without one these tests are skipped. Four trials, most of each importing and compiling.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.launchers.maxtext import MaxTextLauncher
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.profile import profile
from pytest_xlatune.prepare.preflight import Release, ask, look_at_keys
from pytest_xlatune.sweep.declaration import load_sweep

ROOT = Path(__file__).parents[2]
SWEEP_FILE = ROOT / "sweeps" / "test_maxtext_cpu.py"
LAUNCHER = os.environ.get("XLATUNE_LAUNCHER", "")  # python=/path/to/python

pytestmark = pytest.mark.skipif(
    not LAUNCHER.startswith("python="),
    reason="XLATUNE_LAUNCHER names no interpreter of a MaxText; `tox run -e maxtext` makes one",
)


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


def places(workdir: Path) -> list[str]:
    return ["--xlatune-workdir", str(workdir), "--xlatune-reports", str(workdir / "reports")]


def events(workdir: Path, kind: str) -> Iterator[dict[str, Any]]:
    for path in workdir.glob("maxtext-cpu/*/ledger.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            event = json.loads(line)
            if event["event"] == kind:
                yield event


def test_the_release_knows_every_key_of_the_sweep_and_not_that_of_a_fork() -> None:
    sweep = load_sweep(SWEEP_FILE)
    cell = sweep.resolve().cell
    assert isinstance(sweep.launcher, MaxTextLauncher)
    launcher = dataclasses.replace(sweep.launcher, python=LAUNCHER.removeprefix("python="))
    release = ask(launcher, cell, environ=os.environ)
    assert isinstance(release, Release)
    assert len(release.known) > 700
    found = look_at_keys(launcher, cell, sweep.profiles, environ=os.environ)
    assert (found.faults, found.notes) == ((), ())
    fork: Cell = dataclasses.replace(
        cell, overrides={"jax_distributed_heartbeat_timeout_seconds": "99999"}
    )
    typo = profile("typo", overrides={"remat_polisy": "full"})
    found = look_at_keys(launcher, fork, (typo,), environ=os.environ)
    assert [each.partition(" in ")[0] for each in found.faults] == [
        "unknown key 'jax_distributed_heartbeat_timeout_seconds'",
        "unknown key 'remat_polisy'",
    ]


def test_a_baseline_trains_and_an_unknown_flag_is_dropped(workdir: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", str(SWEEP_FILE), "-n", "0", "-p", "no:cacheprovider",
         "-k", "baseline or warp or threshold", *places(workdir)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert "2 passed" in done.stdout
    assert "1 xfailed" in done.stdout
    results = {each["result"]["trial"]["profile"]["id"]: each["result"]
               for each in events(workdir, "trial-ended")}  # fmt: skip
    baseline = results["baseline-deployed"]
    assert baseline["status"] == "measured"
    assert baseline["score"]["n_steps"] >= 6, "how many are left decides how steady the machine was"
    dropped = results["warp-drive"]
    assert dropped["status"] == "dropped"
    assert dropped["findings"][0]["cls"] == "unknown-flag"
    node = next(events(workdir, "environment-seen"))["nodes"][0]
    assert node["packages"].keys() >= {"python", "jax", "jaxlib"}
    assert node["devices"]["platform"] == "cpu"
    assert node["node"]["kernel"]
    assert node["code"], "the package of MaxText is hashed"


def test_an_evidence_run_leaves_a_program_and_captures_that_can_be_read(workdir: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c",
         "import sys; from pytest_xlatune.cli import main; sys.exit(main())",
         "evidence", str(SWEEP_FILE), "baseline-deployed", "--workdir", str(workdir)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (recorded,) = events(workdir, "evidence-recorded")
    text = json.dumps(recorded)
    assert "xla_dump" in text
    assert "xplane.pb" in text
    # FSDP=2 gathers its weights, in a program that the dump of a warm cache would not hold
    assert "jit_train_step for cpu" in done.stdout
    (program,) = workdir.glob("**/module_*.jit_train_step.cpu_after_optimizations.txt")
    assert "all-gather" in program.read_text(encoding="utf-8")
