"""The flagship sweeps as their files stand, from the baseline to the report, by pretended runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_xlatune.catalog.context import Context, Level
from pytest_xlatune.catalog.rules import check
from pytest_xlatune.sweep.declaration import load_sweep
from tests.helpers.captures import node
from tests.helpers.hlo_programs import text as hlo_text
from tests.helpers.ledger_lines import whole_lines
from tests.helpers.second_looks import BESIDE_THE_LAB
from tests.helpers.sessions import run_inside
from tests.helpers.tell_options import TELL_OPTIONS
from tests.helpers.words import in_words

SWEEPS = Path(__file__).parents[2] / "sweeps"
# what a setting is worth to the trainer below; all others are worth nothing
TRAINER = """\
import hashlib, os, pathlib, re, shutil, sys
here = pathlib.Path(__file__).parent
flags = os.environ.get("XLA_FLAGS", "")
keys = dict(each.split("=", 1) for each in sys.argv[2:])
print("Show all environment variables:")
print(f"XLA_FLAGS={flags}", flush=True)
for key in sorted(keys):
    print(f"Config param {key}: {keys[key]}")
if os.environ.get("NCCL_DEBUG") == "INFO":
    for name in sorted(os.environ):
        if name.startswith("NCCL_"):
            print(f"n1:7:7 [0] NCCL INFO {name} set by environment to {os.environ[name]}")
"""
TRAINER += TELL_OPTIONS
TRAINER += """\
if keys.get("profiler") == "xplane":
    dump = re.search('--xla_dump_to="?([^" ]+)', flags).group(1)
    os.makedirs(dump, exist_ok=True)
    program = "module_0001.jit_train_step.sm_9.0_gpu_after_optimizations.txt"
    shutil.copy(here / "program.txt", pathlib.Path(dump, program))
    to = pathlib.Path(keys["base_output_directory"], keys["run_name"], "tensorboard", "plugins",
                      "profile", "2026_11_23_10_00_00")
    to.mkdir(parents=True)
    shutil.copy(here / "capture.pb", to / "n1.xplane.pb")
if "xla_gpu_enable_pipelined_p2p=true" in flags:
    print("F1120 09:03:25.888154 14479 hlo.cc:234] Check failed: schedule.size() == 1", flush=True)
    os.abort()
speed = 1000.0
for setting, gain in (
    ("collective_overlap_limit=2", 0.03), ("all_gather_combine_threshold_bytes=1073741824", 0.04),
    ("threshold_for_windowed_einsum_mib=0", 0.05), ("double_buffering=true", -0.03),
):
    speed *= 1 + gain * (setting in flags)
speed *= 1 + 0.06 * ("num_pipeline_microbatches" in keys) + 0.02 * ("remat_policy" in keys)
# the same for every folder that a test runs in: a trial's id without the digest at its end
trial = keys["run_name"].rpartition("-")[0]
noise = int(hashlib.sha256(trial.encode()).hexdigest()[:8], 16) / 2**32 - 0.5
speed *= 1 + 0.004 * noise
for step in range(int(keys["steps"])):
    print(f"completed step: {step}, seconds: {512 / speed:.6f}, TFLOP/s/device: 0.1, "
          f"Tokens/s/device: {speed:.3f}, total_weights: 512, loss: 7.1", flush=True)
"""
SITE = """\
model = "mixtral-8x22b"
executor = "local"

[launcher]
python = "{python}"
module = "{folder}/trainer.py"
config = "{folder}/model.yml"
cwd = "{folder}"

[deployed]
XLA_FLAGS = "--xla_gpu_enable_latency_hiding_scheduler=true"
"""
# name -> the real program that its evidence run dumps, nodes, a profile of its own
FLAGSHIPS = {
    "pp8": ("pp", 8, "overlap-2"),
    "fsdp8": ("fsdp", 8, "ag-1g"),
    "tp8": ("fsdp", 1, "windowed-einsum"),
    "hybrid": ("pp", 8, "ag-1g-overlap-2"),
}


@pytest.fixture
def site(
    loaded: None, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Path:
    """A user's folder with a trainer that pretends, and the settings that name it."""
    monkeypatch.setenv("XLATUNE_MACHINE_LOCK", str(tmp_path / "machine.lock"))
    monkeypatch.setenv("PYTHONPATH", "")
    path = pytester.path
    (path / "trainer.py").write_text(TRAINER, encoding="utf-8")
    (path / "model.yml").write_text("base_num_decoder_layers: 56\n", encoding="utf-8")
    (path / "capture.pb").write_bytes(node().data())
    text = SITE.format(python=sys.executable, folder=path)
    (path / "xlatune.toml").write_text(text, encoding="utf-8")
    return path


def run(pytester: pytest.Pytester, name: str, *options: str) -> pytest.RunResult:
    return run_inside(
        pytester,
        *("-p", "no:cacheprovider", str(SWEEPS / f"test_{name}.py")),
        *("--rootdir", str(pytester.path), "--xlatune-config", "xlatune.toml", *options),
    )


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=() if each == "hybrid" else BESIDE_THE_LAB) for each in FLAGSHIPS],
)
def test_a_flagship_sweep_runs_to_its_report(
    name: str, pytester: pytest.Pytester, site: Path
) -> None:
    program, _, own = FLAGSHIPS[name]
    (site / "program.txt").write_text(hlo_text("0.12.0", program), encoding="utf-8")
    chosen = f"test_baseline or test_evidence or [{own}] or [async-priority-off]"
    done = run(pytester, name, "-m", "wave1 or wave1_5 or wave2", "-k", chosen)
    done.assert_outcomes(passed=4)
    (ledger,) = site.glob(f".xlatune/{name}/*/ledger.jsonl")
    lines = whole_lines(ledger)
    (evidence,) = [each for each in lines if each["event"] == "evidence-recorded"]
    assert evidence["captures"]
    assert not evidence["problems"]
    measured = [each["result"] for each in lines if each["event"] == "trial-ended"]
    assert {each["status"] for each in measured if each["score"]} == {"measured"}
    assert not [each for each in measured if each["status"] == "invalid"]
    board = (site / "reports" / name / "leaderboard.md").read_text(encoding="utf-8")
    assert f"`{own}`" in board
    for each in measured:
        if each["score"]:
            assert f"{each['score']['tgs']:.1f}" in board
    record = json.loads((site / "reports" / name / "leaderboard.json").read_text())
    notes = in_words(record["conclusion"]["notes"])
    assert f"the evidence of {evidence['trial_id']}" in notes
    document = (site / "reports" / "mixtral-8x22b-tuning.md").read_text(encoding="utf-8")
    assert f"`{own}`" in document
    sent = [
        json.loads(path.read_text())["argv"] for path in site.glob(f".xlatune/{name}/**/spec.json")
    ]
    assert sent
    assert all("jax_distributed_heartbeat" not in " ".join(argv) for argv in sent)


def test_the_env_file_of_the_flagships_sets_nothing_where_there_is_no_other_process() -> None:
    """A local run has none of Slurm's variables, and a shell may stop at an unset one."""
    file = SWEEPS / "maxtext" / "coordinator.env.sh"
    names = ("JAX_COORDINATOR_IP", "JAX_COORDINATOR_PORT", "NNODES", "NODE_RANK")
    line = f"set -eu; . {file}; env"
    said = subprocess.run(
        ["bash", "-c", line], env={"PATH": os.environ["PATH"]}, capture_output=True, check=True
    ).stdout.decode()
    assert not [each for each in names if f"\n{each}=" in f"\n{said}"]


def test_the_profiles_of_the_flagships_have_no_fault_and_the_shared_ones_are_in_all() -> None:
    shared = load_sweep(SWEEPS / "maxtext" / "flagship.py")
    for name in FLAGSHIPS:
        sweep = load_sweep(SWEEPS / f"test_{name}.py")
        assert set(shared.profiles) <= set(sweep.profiles)
        assert sweep.launcher == shared.launcher
        assert sweep.cell.overrides == shared.cell.overrides
        found = [each for each in check(sweep.profiles, Context()) if each.level is Level.FAULT]
        assert found == []
        assert sum(each.is_control for each in sweep.profiles) == 1
