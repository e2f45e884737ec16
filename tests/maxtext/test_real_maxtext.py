"""MaxText itself, by the sweep of `sweeps/test_maxtext_cpu.py` and by the flagship sweeps.

Run by `tox run -e maxtext`, which makes MaxText's own environment and names its interpreter;
without one these tests are skipped. Each trial takes 15 seconds and more, most of them to import
and to compile: four for the small sweep, five for each flagship.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytest_xlatune.catalog.entries import load
from pytest_xlatune.launchers.maxtext import MaxTextLauncher
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.profile import profile
from pytest_xlatune.prepare.preflight import Release, check_keys, release_of
from pytest_xlatune.sweep.declaration import load_sweep
from tests.helpers.ledger_lines import events_in
from tests.helpers.words import in_words

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


def run(*words: str, cwd: Path = ROOT, timeout_s: float) -> str:
    """Run Python to its end, which must be a good one; return what it printed."""
    done = subprocess.run(
        [sys.executable, *words], cwd=cwd, capture_output=True, text=True, timeout=timeout_s,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-3000:]
    return done.stdout


def events(workdir: Path, kind: str) -> list[dict[str, Any]]:
    return events_in(workdir.glob("maxtext-cpu/*/ledger.jsonl"), kind)


def test_the_release_knows_the_keys_of_the_sweep_and_of_the_catalog_and_not_a_forks() -> None:
    sweep = load_sweep(SWEEP_FILE)
    cell = sweep.resolve().cell
    assert isinstance(sweep.launcher, MaxTextLauncher)
    launcher = dataclasses.replace(sweep.launcher, python=LAUNCHER.removeprefix("python="))
    release = release_of(launcher, cell, environ=os.environ)
    assert isinstance(release, Release)
    assert len(release.known) > 700
    tried = tuple(each for entry in load().entries if entry.is_key for each in entry.profiles)
    assert len(tried) > 10
    found = check_keys(launcher, cell, (*sweep.profiles, *tried), environ=os.environ)
    assert (found.faults, found.notes) == ((), ())
    fork: Cell = msgspec.structs.replace(
        cell, overrides={"jax_distributed_heartbeat_timeout_seconds": "99999"}
    )
    typo = profile("typo", overrides={"remat_polisy": "full"})
    found = check_keys(launcher, fork, (typo,), environ=os.environ)
    assert [each.partition(" in ")[0] for each in found.faults] == [
        "unknown key 'jax_distributed_heartbeat_timeout_seconds'",
        "unknown key 'remat_polisy'",
    ]


def test_the_sweep_runs_to_its_leaderboard_and_an_unknown_flag_is_dropped(workdir: Path) -> None:
    said = run(
        *("-m", "pytest", str(SWEEP_FILE), "-n", "0", "-p", "no:cacheprovider"),
        *("-k", "baseline or warp or threshold", "--xlatune-workdir", str(workdir)),
        *("--xlatune-reports", str(workdir / "reports")),
        timeout_s=1800,
    )
    assert "2 passed" in said
    assert "1 xfailed" in said
    results = {each["result"]["trial"]["profile"]["id"]: each["result"]
               for each in events(workdir, "trial-ended")}  # fmt: skip
    baseline = results["baseline-deployed"]
    assert baseline["status"] == "measured"
    assert baseline["score"]["n_steps"] >= 6, "how many are left decides how steady the machine was"
    dropped = results["warp-drive"]
    assert dropped["status"] == "dropped"
    assert dropped["findings"][0]["cls"] == "unknown-flag"
    node = events(workdir, "environment-seen")[0]["nodes"][0]
    assert node["packages"].keys() >= {"python", "jax", "jaxlib"}
    assert node["devices"]["platform"] == "cpu"
    assert node["node"]["kernel"]
    assert node["code"], "the package of MaxText is hashed"
    board = (workdir / "reports" / "maxtext-cpu" / "leaderboard.md").read_text(encoding="utf-8")
    assert "warp-drive" in board


def test_an_evidence_run_leaves_a_program_and_captures_that_can_be_read(workdir: Path) -> None:
    command = "import sys; from pytest_xlatune.cli import main; sys.exit(main())"
    words = ("evidence", str(SWEEP_FILE), "baseline-deployed", "--workdir", str(workdir))
    said = run("-c", command, *words, timeout_s=900)
    (recorded,) = events(workdir, "evidence-recorded")
    text = json.dumps(recorded)
    assert "xla_dump" in text
    assert "xplane.pb" in text
    # FSDP=2 gathers its weights, in a program that the dump of a warm cache would not hold
    assert "jit_train_step for cpu" in said
    (program,) = workdir.glob("**/module_*.jit_train_step.cpu_after_optimizations.txt")
    assert "all-gather" in program.read_text(encoding="utf-8")


# what a user's xlatune.toml says for a flagship sweep on a CPU: its file stays as it is
SITE = """\
model = "tiny-cpu"
parallelism = "{parallelism}"
pdbs = 4
max-target-length = 128
devices = {devices}
executor = "local"

[launcher]
python = "{python}"
module = "maxtext.trainers.pre_train.train"
config = "{configs}/{{model_tag}}.gpu.yml"
cwd = "{folder}"
axis-prefix = {{ FSDP = "ici", PP = "ici" }}

[overrides]
model_name = "default"
hardware = "cpu"
{overrides}

[deployed]
JAX_PLATFORMS = "cpu"
XLA_FLAGS = "--xla_force_host_platform_device_count={devices} --xla_gpu_autotune_level=3"
"""
PIPELINE = "num_layers_per_pipeline_stage = 1\nnum_pipeline_microbatches = 4"
# name -> its axes, its devices, further keys, a profile of its own
FLAGSHIPS = {
    "fsdp8": ("FSDP=2", 2, "", "ag-1g"),
    "pp8": ("PP=2", 2, PIPELINE, "overlap-2"),
    "tp8": ("TP=2", 2, "", "windowed-einsum"),
    "hybrid": ("PP=2,FSDP=2", 4, PIPELINE, "ag-1g-overlap-2"),
}


@pytest.mark.parametrize("name", FLAGSHIPS)
def test_a_flagship_sweep_runs_waves_1_to_2_on_maxtext_to_its_leaderboard(
    name: str, tmp_path: Path
) -> None:
    """Both baselines, the evidence run, a declared profile and one that the evidence chooses."""
    parallelism, devices, overrides, own = FLAGSHIPS[name]
    text = SITE.format(
        parallelism=parallelism,
        devices=devices,
        overrides=overrides,
        python=LAUNCHER.removeprefix("python="),
        configs=ROOT / "sweeps" / "maxtext" / "configs",
        folder=tmp_path,
    )
    (tmp_path / "xlatune.toml").write_text(text, encoding="utf-8")
    chosen = f"test_baseline or test_without_env or test_evidence or [{own}] or [single-1]"
    run(
        *("-m", "pytest", str(ROOT / "sweeps" / f"test_{name}.py"), "-n", "0"),
        *("-p", "no:cacheprovider", "--rootdir", str(tmp_path)),
        *("--xlatune-config", "xlatune.toml"),
        *("-m", "wave1 or wave1_5 or wave2", "-k", chosen, "-rsx"),
        cwd=tmp_path,
        timeout_s=2300,
    )
    (ledger,) = tmp_path.glob(f".xlatune/{name}/*/ledger.jsonl")
    lines = [json.loads(line) for line in ledger.read_text(encoding="utf-8").splitlines()]
    (evidence,) = [each for each in lines if each["event"] == "evidence-recorded"]
    assert (len(evidence["captures"]), evidence["problems"]) == (1, [])
    shares = evidence["shares"]["of_step"]
    assert shares["compute"] > 0
    assert shares["communication"] > 0
    results = [each["result"] for each in lines if each["event"] == "trial-ended"]
    measured = {each["trial"]["profile"]["id"]: each["score"] for each in results if each["score"]}
    assert {"baseline-deployed", "baseline-no-env", own} <= measured.keys()
    losses = [each["loss"] for each in measured.values()]
    assert max(losses) - min(losses) < 0.05, "flags of a GPU change nothing here"
    record = json.loads((tmp_path / "reports" / name / "leaderboard.json").read_text("utf-8"))
    said = f"wave2: candidates by the evidence of {evidence['trial_id']}: "
    notes = [in_words(each) for each in record["conclusion"]["notes"]]
    notes = [each for each in notes if each.startswith(said)]
    assert len(notes) == 1
    first = notes[0].removeprefix(said).partition(",")[0].partition(" ")[0]
    tried = {each["trial"]["profile"]["id"] for each in results}
    assert first in tried, "what the evidence chose has been tried"
    board = (tmp_path / "reports" / name / "leaderboard.md").read_text(encoding="utf-8")
    verdicts = {each["arm"]: each for each in record["conclusion"]["verdicts"]}
    verdicts["baseline-deployed"] = record["conclusion"]["reference"]
    for profile_id in measured:
        row = next(line for line in board.splitlines() if f"`{profile_id}` |" in line)
        # a row shows the baseline's TGS times its change; jobs of a busy machine lie apart by more
        change = verdicts[profile_id]["delta"] or 0.0
        expected = record["conclusion"]["reference"]["tgs"] * (1 + change)
        assert float(row.split("|")[3]) == pytest.approx(expected, rel=1e-3)
