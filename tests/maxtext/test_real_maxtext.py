"""MaxText itself: the sweep of `sweeps/test_maxtext_cpu.py`, flagship sweeps, and a rotation.

Run by `tox run -e maxtext`, which makes MaxText's own environment and names its interpreter;
without one these tests are skipped. Each trial takes 15 seconds and more, most of them to import
and to compile: four for the small sweep, five for each flagship.

The rotation has programs of chosen truth, FSDP=4: a flag slows its program by about half, a copy
and a GPU's flag do nothing here, and one option is unknown.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from pytest_xlatune.catalog.entries import load
from pytest_xlatune.launchers.maxtext import MaxTextLauncher
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.profile import BASELINE_ID, profile
from pytest_xlatune.model.rotation import RotatedProgram, RotationRead, RotationSpec, read_rotation
from pytest_xlatune.prepare.preflight import check_keys
from pytest_xlatune.sweep.declaration import load_sweep
from tests.helpers.words import events_in, whole_lines

ROOT = Path(__file__).parents[2]
SWEEP_FILE = ROOT / "sweeps" / "test_maxtext_cpu.py"
CONFIGS = ROOT / "sweeps" / "maxtext" / "configs"
LAUNCHER = os.environ.get("XLATUNE_LAUNCHER", "")  # python=/path/to/python
PYTHON = LAUNCHER.removeprefix("python=")
TRAIN = "maxtext.trainers.pre_train.train"
TURN_STEPS, DROPPED = 5, 2

pytestmark = pytest.mark.skipif(
    not LAUNCHER.startswith("python="),
    reason="XLATUNE_LAUNCHER names no interpreter of a MaxText; `tox run -e maxtext` makes one",
)


def run(*words: str, cwd: Path = ROOT, timeout_s: float) -> str:
    """Run Python to its end, which must be a good one; return what it printed."""
    done = subprocess.run(
        [sys.executable, *words], cwd=cwd, capture_output=True, text=True, timeout=timeout_s,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-3000:]
    return done.stdout


def test_the_release_knows_the_keys_of_the_sweep_and_of_the_catalog_and_not_a_forks() -> None:
    sweep = load_sweep(SWEEP_FILE)
    cell = sweep.resolve().cell
    assert isinstance(sweep.launcher, MaxTextLauncher)
    launcher = dataclasses.replace(sweep.launcher, python=PYTHON)
    tried = tuple(each for entry in load().entries if entry.is_key for each in entry.profiles)
    assert len(tried) > 10
    found = check_keys(launcher, cell, (*sweep.profiles, *tried), environ=os.environ)
    assert (found.faults, found.notes) == ((), ())
    of_a_fork = "jax_distributed_heartbeat_timeout_seconds"
    fork: Cell = replace(cell, overrides={of_a_fork: "99999"})
    typo = profile("typo", overrides={"remat_polisy": "full"})
    found = check_keys(launcher, fork, (typo,), environ=os.environ)
    faults = [each.partition(" in ")[0] for each in found.faults]
    assert faults == [f"unknown key '{key}'" for key in (of_a_fork, "remat_polisy")]


def test_the_sweep_runs_to_its_leaderboard_and_an_unknown_flag_is_dropped(tmp_path: Path) -> None:
    said = run(
        *("-m", "pytest", str(SWEEP_FILE), "-n", "0", "-p", "no:cacheprovider"),
        *("-k", "baseline or warp or threshold", "--xlatune-workdir", str(tmp_path)),
        *("--xlatune-reports", str(tmp_path / "reports")),
        timeout_s=1800,
    )
    assert "2 passed" in said
    assert "1 xfailed" in said
    (ledger,) = tmp_path.glob("maxtext-cpu/*/ledger.jsonl")
    ended = (each["result"] for each in events_in([ledger], "trial-ended"))
    results = {each["trial"]["profile"]["id"]: each for each in ended}
    baseline = results["baseline-deployed"]
    assert baseline["status"] == "measured"
    assert baseline["score"]["n_steps"] >= 6, "how many are left decides how steady the machine was"
    dropped = results["warp-drive"]
    assert dropped["status"] == "dropped"
    assert dropped["findings"][0]["cls"] == "unknown-flag"
    node = events_in([ledger], "environment-seen")[0]["nodes"][0]
    assert node["packages"].keys() >= {"python", "jax", "jaxlib"}
    assert node["devices"]["platform"] == "cpu"
    assert node["node"]["kernel"]
    assert node["code"], "the package of MaxText is hashed"
    board = (tmp_path / "reports" / "maxtext-cpu" / "leaderboard.md").read_text(encoding="utf-8")
    assert "warp-drive" in board


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
        python=PYTHON,
        configs=CONFIGS,
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
    lines = whole_lines(ledger)
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
    origins = [each["trial"]["profile"]["origin"] for each in results]
    by_evidence = [
        each for each in origins if each and each["text"].startswith("chosen by the evidence")
    ]
    assert by_evidence, "what the evidence chose has been tried"
    assert {each["values"]["trial"] for each in by_evidence} == {evidence["trial_id"]}


SPEC = RotationSpec(
    programs=(
        RotatedProgram(id=BASELINE_ID),
        RotatedProgram(id=f"{BASELINE_ID}~2"),
        # its instructions are not optimised: a known loss of about half (measured a job each)
        RotatedProgram(id="opt-level-0", options={"xla_backend_optimization_level": "0"}),
        RotatedProgram(
            id="gpu-threshold", options={"xla_gpu_all_gather_combine_threshold_bytes": "1073741824"}
        ),
        RotatedProgram(id="unknown", options={"xla_cpu_enable_warp_drive": "true"}),
    ),
    order=(2, 3, 0, 4, 1, 0, 4, 3, 2, 1),
    turn_steps=TURN_STEPS,
    step_function="train_step",
)
STEPS = SPEC.first_step + TURN_STEPS * len(SPEC.order)
# completed step: 14, seconds: 0.189, TFLOP/s/device: 0.035, ..., total_weights: 1024, loss: 7.328
LINE = re.compile(
    r"completed step: (\d+), seconds: ([\d.]+), .*, total_weights: 1024, loss: ([\d.]+)"
)


class Trained(NamedTuple):
    """What MaxText said, and the journal of the rotation."""

    status: int
    said: str
    lines: dict[int, tuple[float, float]]  # step -> seconds, loss
    read: RotationRead


def train(folder: Path, *, steps: int, spec: RotationSpec | None = None) -> Trained:
    folder.mkdir()
    command = [PYTHON]
    if spec is not None:
        path = folder / "rotation.json"
        path.write_text(json.dumps(spec.to_json()), encoding="utf-8")
        rotate = ROOT / "pytest_xlatune" / "workers" / "rotate.py"
        command += [str(rotate), str(path), "--"]
    keys = (
        *(f"steps={steps}", "run_name=a", "log_config=false", "dataset_type=synthetic"),
        *("per_device_batch_size=2", "ici_fsdp_parallelism=4"),
        f"base_output_directory={folder}/out",
    )
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment["JAX_PLATFORMS"] = "cpu"
    environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    done = subprocess.run(
        [*command, "-m", TRAIN, str(CONFIGS / "tiny-cpu.gpu.yml"), *keys], cwd=folder,
        env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False, timeout=2000,
    )  # fmt: skip
    found = (LINE.search(line) for line in done.stdout.splitlines())
    lines = {int(each[1]): (float(each[2]), float(each[3])) for each in found if each}
    journal = folder / "rotation.0.jsonl"
    read = read_rotation(journal.read_text(encoding="utf-8") if journal.exists() else "")
    return Trained(done.returncode, done.stdout, lines, read)


def test_programs_of_chosen_truth_are_told_apart_in_a_rotation(tmp_path: Path) -> None:
    plain = train(tmp_path / "plain", steps=12)
    assert (plain.status, len(plain.lines)) == (0, 12), plain.said[-2000:]
    rotated = train(tmp_path / "rotated", steps=STEPS, spec=SPEC)
    read = rotated.read
    assert (rotated.status, read.found) == (0, "train_step"), rotated.said[-2000:]
    assert read.refused.keys() == {"unknown"}
    assert "No such compile option: 'xla_cpu_enable_warp_drive'" in read.refused["unknown"]
    same = {each.program: each.same_as for each in read.compiled}
    assert (same[f"{BASELINE_ID}~2"], same["gpu-threshold"]) == (BASELINE_ID, BASELINE_ID)
    assert (read.calls, read.odd_calls) == (STEPS, ())

    # the trainer's own lines, each step once, and what it learns
    assert sorted(rotated.lines) == list(range(STEPS))
    for step, (_, loss) in plain.lines.items():
        assert rotated.lines[step][1] == pytest.approx(loss, rel=0.01)

    level_s = level_by_program(rotated)
    baseline_s = level_s[BASELINE_ID]
    assert level_s["opt-level-0"] > 1.2 * baseline_s
    for equal in (f"{BASELINE_ID}~2", "gpu-threshold"):
        assert level_s[equal] < 0.5 * (baseline_s + level_s["opt-level-0"])


def level_by_program(trained: Trained) -> dict[str, float]:
    """Return the median seconds of a step of each program, without the first steps of a turn."""
    found: dict[str, list[float]] = defaultdict(list)
    for turn in trained.read.turns:
        # MaxText's seconds are between dispatches, and its last step of a turn waits for the next
        steps = range(turn.first_call + DROPPED, turn.first_call + turn.calls)
        found[turn.program] += [trained.lines[step][0] for step in steps]
    return {name: statistics.median(each) for name, each in found.items()}
