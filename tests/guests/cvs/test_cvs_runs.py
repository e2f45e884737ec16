"""A CVS file is run as it is: jobs on this machine, a verdict on each metric."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune import Sweep, profile
from pytest_xlatune.cli import main
from pytest_xlatune.model.errors import ConfigError
from tests.helpers.cvs_written import first, fourth, thresholds, write
from tests.helpers.second_looks import BESIDE_THE_LAB
from tests.helpers.sessions import quick_trials, run_inside, run_with_workers
from tests.helpers.tell_options import TELL_OPTIONS

# MaxText's lines at 820 tokens/s and 0.475 TFLOP a token; step 9 of every job is 4 % slower
TRAINER = f"""\
import hashlib, os, sys
{TELL_OPTIONS}
config, *words = sys.argv[1:]
assert open(config).read() == "base_config: base.yml\\n"
keys = dict(each.split("=", 1) for each in words)
assert keys["dtype"] == "bfloat16"
print(f"XLA_FLAGS={{asked}}", flush=True)
noise = int(hashlib.sha256(keys["run_name"].rpartition("-")[0].encode()).hexdigest()[:8], 16)
speed = 820.0 * (1 + 0.01 * (noise / 2**32 - 0.5))
fast = "--xla_gpu_autotune_level=0" in asked and os.environ["NCCL_DEBUG"] == "INFO"
speed *= 1.1 if fast else 1.0
tokens = float(keys["per_device_batch_size"]) * float(keys["max_target_length"])
if os.environ.get("SLURM_PROCID", "0") == "0":
    for step in range(int(keys["steps"])):
        own = speed * (0.96 if step == 9 else 1)
        print(f"completed step: {{step}}, seconds: {{tokens / own:.6f}}, "
              f"TFLOP/s/device: {{own * 0.475:.3f}}, Tokens/s/device: {{own:.3f}}, "
              f"total_weights: 1, loss: {{9 - step * 0.1:.3f}}", flush=True)
"""
LOCAL = ("--xlatune-executor", "local", "--xlatune-container", "runtime=none")


@pytest.fixture
def folder(
    loaded: None, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Path:
    # these jobs measure nothing: they need not take turns with real ones on this machine
    monkeypatch.setenv("XLATUNE_MACHINE_LOCK", str(tmp_path / "machine.lock"))
    (pytester.path / "train.py").write_text(TRAINER)
    return pytester.path


def run(
    pytester: pytest.Pytester, name: str, *args: str, launcher: str = ""
) -> tuple[Any, dict[str, dict[str, str]]]:
    """Run a file; return what pytest said, and the properties of each metric."""
    python = ",".join(filter(None, (f"python={sys.executable}", launcher)))
    words = ("--cvs-config", name, *LOCAL, "--xlatune-launcher", python, "--junitxml", "junit.xml")
    ran = run_with_workers if "-n2" in args else run_inside
    done = ran(pytester, *words, "-p", "no:cacheprovider", *args)
    found = {}
    for case in ET.parse(pytester.path / "junit.xml").iter("testcase"):
        own = {each.get("name", ""): each.get("value", "") for each in case.iter("property")}
        if "cvs.metric" in own:
            found[own["cvs.metric"]] = own
    return done, found


def test_generation_1_passes_by_the_mean_although_a_step_is_slow(
    pytester: pytest.Pytester, folder: Path
) -> None:
    data = first()
    data["config"]["nnodes"] = "1"
    write(folder, "gen1.json", data)
    script = f"scripts={folder / 'train.py'}"
    done, _ = run(pytester, "gen1.json", launcher=script)
    done.assert_outcomes(passed=4)
    text = done.stdout.str()
    assert "tflops_per_sec_per_gpu is 389" in text
    assert "smoke test of CVS" in text


def fourth_here(folder: Path, *, tflops: float, **metrics: Any) -> None:
    data = fourth(multi=False)
    data["train_params"]["train_script_paths"] = [str(folder / "no.py"), str(folder / "train.py")]
    data["container"]["image"] = "example/jax-training:v26.4"
    data["threshold_json"] = "tiny_threshold.json"
    data["enforce_thresholds"] = True
    write(folder, "gen4.json", data)
    limits = thresholds(*(each for each in data["sweeps"] if each[0] != "_"), tflops=tflops)
    for cell in (each for name, each in limits.items() if name[0] != "_"):
        cell |= {f"training.{name}": each for name, each in metrics.items()}
    write(folder, "tiny_threshold.json", limits)


@pytest.mark.parametrize("workers", ["-n0", pytest.param("-n2", marks=BESIDE_THE_LAB)])
def test_generation_4_gates_each_kind_of_threshold_with_noise_and_resumes(
    pytester: pytest.Pytester, folder: Path, workers: str
) -> None:
    demands = {
        "step_time_seconds": {"kind": "max", "value": 21},
        "step_time_p95_ms": {"kind": "max_ms", "value": 19000},
        "final_loss": {"kind": "max", "value": 5},
        "loss_decreased": {"kind": "min", "value": 1},
        "tokens_per_sec_total": {"kind": "info", "value": 6500},
        "scaling_efficiency_pct": {"kind": "min", "value": 90},
    }
    fourth_here(folder, tflops=500, **demands)
    done, found = run(pytester, "gen4.json", workers)
    assert {name: each["cvs.verdict"] for name, each in found.items()} == {
        "tflops_per_sec_per_gpu": "fail",
        "tokens_per_sec_per_gpu": "pass",
        "step_time_seconds": "pass",
        "step_time_p95_ms": "fail",
        "final_loss": "fail",
        "loss_decreased": "pass",
        "tokens_per_sec_total": "recorded",
        "scaling_efficiency_pct": "cannot tell",
    }
    assert "every job has the same" in found["final_loss"]["cvs.lines"]
    assert "no job gives scaling_efficiency_pct" in found["scaling_efficiency_pct"]["cvs.lines"]
    assert found["tokens_per_sec_per_gpu"]["xlatune.n"] == "5"
    done.assert_outcomes(passed=4, failed=4)
    assert done.ret == 1
    (ledger,) = folder.glob(".xlatune/cvs-gen4/*/ledger.jsonl")
    begun = ledger.read_text().count('"attempt-submitted"')
    # a threshold is an argument of the verdict: the same jobs are judged again
    fourth_here(folder, tflops=380)
    done, found = run(pytester, "gen4.json", "-k", "tflops")
    done.assert_outcomes(passed=1)
    assert found["tflops_per_sec_per_gpu"]["cvs.verdict"] == "pass"
    assert ledger.read_text().count('"attempt-submitted"') == begun == 5


@pytest.mark.parametrize("runtime", ["none", "docker"])
def test_open_items_end_the_run_before_anything_starts(
    pytester: pytest.Pytester, folder: Path, capsys: pytest.CaptureFixture[str], runtime: str
) -> None:
    write(folder, "multi.json", first(multi=True))
    assert main(["cvs", "show", "multi.json"]) == 2
    shown = {line.strip() for line in capsys.readouterr().out.splitlines() if "--cvs-set" in line}
    local = (*LOCAL[:2], "--xlatune-container", f"runtime={runtime}")
    done = run_inside(pytester, "--cvs-config", "multi.json", *local)
    assert done.ret == 4
    text = done.stdout.str() + done.stderr.str()
    told = {each for each in shown if each in text}
    # without a container nothing is asked of its image
    is_of_image = {each for each in shown if each.startswith("config.container_image: ")}
    assert len(is_of_image) == 1
    assert told == (shown if runtime == "docker" else shown - is_of_image)
    assert len(told) >= 3
    assert not list(folder.glob(".xlatune/*/*"))


def test_from_cvs_is_a_cell_to_tune(tmp_path: Path) -> None:
    values = {
        "threshold_json": "none.json",
        "container.image": "example/jax-training:v26.4",
        "container.env.NCCL_IB_HCA": "mlx5_0",
        "container.env.NCCL_SOCKET_IFNAME": "eno1",
    }
    path = write(tmp_path, "gen4.json", fourth())
    fast = profile("fast", "--xla_gpu_autotune_level=0")
    sweep = Sweep.from_cvs(path, nodes=4, values=values, profiles=(fast,))
    assert (sweep.cell.parallelism, sweep.cell.devices) == ("FSDP=32", 32)
    assert sweep.cell.deployed["NCCL_SOCKET_IFNAME"] == "eno1"
    assert sweep.cell.deployed["XLA_FLAGS"] == "--xla_gpu_autotune_level=4"
    assert sweep.launcher.describe().startswith("container docker mounts=")
    refused: list[tuple[dict[str, Any], str]] = [
        ({}, "4 open items"),
        ({"cell": "other", "values": values}, "unknown cell 'other'"),
        ({"values": values}, "the number of nodes"),
    ]
    for given, words in refused:
        with pytest.raises(ConfigError, match=words):
            Sweep.from_cvs(path, **given)
    for runtime in ("podman", "pyxis"):
        said = Sweep.from_cvs(path, nodes=4, values=values, runtime=runtime).launcher.describe()
        assert ("/models:/models" in said, "--privileged" in said) == (True, runtime == "podman")
    for steps, said in ((None, "does not say how many steps"), (9, "a run has 9 steps")):
        data = fourth()
        data["train_params"]["maxtext_config"]["steps"] = steps
        write(tmp_path, "gen4.json", data)
        with pytest.raises(ConfigError, match=said):
            Sweep.from_cvs(path, nodes=4, values=values)


def calibrate(*args: str) -> int:
    words = ("--executor", "local", "--container", "runtime=none", "--jobs", "5")
    with quick_trials():
        return main(["cvs", "calibrate", *args, *words])


def test_calibrate_writes_floors_with_their_noise_and_runs_no_job_twice(
    pytester: pytest.Pytester, folder: Path
) -> None:
    fourth_here(folder, tflops=500)
    python = ("--launcher", f"python={sys.executable}")
    assert calibrate("gen4.json", "-o", "floors.json", *python) == 0
    cell = json.loads((folder / "floors.json").read_text())["BS=2,PRECISION=BF16,SL=8192"]
    # mean 819.977 less three times 3.04; 0.475 TFLOP a token
    assert cell["training.tokens_per_sec_per_gpu"]["value"] == pytest.approx(810.8, abs=0.5)
    assert cell["training.tflops_per_sec_per_gpu"]["value"] == pytest.approx(385.1, abs=0.3)
    assert "of 5 jobs; 2.60% of healthy jobs miss it" in cell["_comment"]
    assert "20" in cell["_comment"].partition(":")[0], "the date"
    (ledger,) = folder.glob(".xlatune/cvs-gen4/*/ledger.jsonl")
    assert calibrate("gen4.json", "-o", "floors.json", *python) == 2
    assert calibrate("gen4.json", "-o", "again.json", *python) == 0
    assert ledger.read_text().count('"attempt-submitted"') == 5
    # with these floors the file passes
    data = json.loads((folder / "gen4.json").read_text())
    write(folder, "gen4.json", {**data, "threshold_json": "floors.json"})
    done, found = run(pytester, "gen4.json")
    done.assert_outcomes(passed=5)
    assert found["tflops_per_sec_per_gpu"]["cvs.verdict"] == "pass"
