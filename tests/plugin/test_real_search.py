"""A search over a real JAX training job: candidates of two rounds are compiled and take turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.ledger_lines import whole_lines

pytestmark = [pytest.mark.jax, pytest.mark.part("programs")]
QUICKSTART = Path(__file__).parents[2] / "sweeps" / "quickstart"
SWEEP = f"""\
import sys
from pathlib import Path

from pytest_xlatune import (
    CellSettings,
    DesignSettings,
    MaxTextLauncher,
    Protocol,
    Search,
    Sweep,
    standard_tests,
)

HERE = Path({str(QUICKSTART)!r})
LEVEL = "--xla_backend_optimization_level=0"
SWEEP = Sweep(
    name="search",
    cell=CellSettings(
        model_tag="tiny",
        parallelism="FSDP=1",
        devices=1,
        per_device_batch_size=2,
        max_target_length=64,
        deployed={{"XLA_FLAGS": LEVEL}},
        protocol=Protocol(steps=15, first_step=5, deadline_s=300),
    ),
    launcher=MaxTextLauncher(
        python=sys.executable,
        module=str(HERE / "train.py"),
        config=str(HERE / "configs" / "quickstart.yml"),
        axis_prefix={{"FSDP": "ici"}},
    ),
    derived=(
        Search(
            rounds=2,
            slots=4,
            space={{
                "xla_backend_optimization_level": ("1", "3"),
                "xla_cpu_enable_warp_drive": ("true",),
            }},
        ),
    ),
    design=DesignSettings(rotate="on"),
)
tests = standard_tests(SWEEP)
"""


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    environ = {each: os.environ[each] for each in os.environ if each != "XLATUNE_ROTATE"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_sweep.py"]
    return subprocess.run(
        [*command, "-m", "wave4", "--xlatune-executor", "local", "--xlatune-negative", "xfail"],
        cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip


@pytest.mark.timeout(1000)
def test_two_rounds_are_measured_once_and_the_fast_value_leads(tmp_path: Path) -> None:
    (tmp_path / "test_sweep.py").write_text(SWEEP, encoding="utf-8")
    (tmp_path / "pytest.ini").touch()
    first = run(tmp_path)
    assert first.returncode == 0, first.stdout[-4000:] + first.stderr[-2000:]
    assert "wave4: the search measured 4 of 5 candidates" in first.stdout.replace("\n", " ")
    (ledger,) = tmp_path.glob(".xlatune/search/*/ledger.jsonl")
    jobs = [each for each in whole_lines(ledger) if each["event"] == "attempt-submitted"]
    assert len(jobs) == 3, "a look, and a rotation for each round"
    written = json.loads((tmp_path / "reports/search/leaderboard.json").read_text("utf-8"))
    found = {each["arm"]: each for each in written["conclusion"]["verdicts"]}
    fast = found["backend-optimization-level-3"]
    assert (fast["kind"], fast["delta"] > 0.1) == ("SCREENED", True)
    # no such flag: the compiler refused it alone, and no second round holds it
    dropped = [each for each in found if "warp-drive" in each]
    assert all(found[each]["kind"] == "INVALID" for each in dropped)
    again = run(tmp_path)
    assert again.returncode == 0, again.stdout[-4000:]
    over = [each for each in whole_lines(ledger) if each["event"] == "attempt-submitted"]
    assert over == jobs, "the second run reads the ledger"
