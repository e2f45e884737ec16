"""A CVS file is run as it is: jobs on this machine, both verdicts, CVS' rules beside ours."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune import Sweep, profile
from pytest_xlatune.model.errors import ConfigError
from tests.cvs_written import CLUSTER, first, fourth, third, thresholds, write
from tests.tell_options import TELL_OPTIONS

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
def folder(pytester: pytest.Pytester) -> Path:
    (pytester.path / "train.py").write_text(TRAINER)
    return pytester.path


def run(
    pytester: pytest.Pytester, name: str, *args: str, launcher: str = ""
) -> tuple[Any, dict[str, dict[str, str]]]:
    """Run a file; return what pytest said, and the properties of each metric."""
    python = ",".join(filter(None, (f"python={sys.executable}", launcher)))
    done = pytester.runpytest_subprocess(
        *("--cvs-config", name, *LOCAL, "--xlatune-launcher", python, "--junitxml", "junit.xml"),
        *("-p", "no:cacheprovider", *args),
    )
    found = {}
    for case in ET.parse(pytester.path / "junit.xml").iter("testcase"):
        own = {each.get("name", ""): each.get("value", "") for each in case.iter("property")}
        if "cvs.metric" in own:
            found[own["cvs.metric"]] = own
    return done, found


def test_generation_1_passes_by_the_mean_where_cvs_fails_by_a_step(
    pytester: pytest.Pytester, folder: Path
) -> None:
    data = first()
    data["config"]["nnodes"] = "1"
    write(folder, "gen1.json", data)
    script = f"scripts={folder / 'train.py'}"
    done, _ = run(pytester, "gen1.json", "--cvs-strict", launcher=script)
    done.assert_outcomes(passed=4)
    text = done.stdout.str()
    assert "tflops_per_sec_per_gpu is 389" in text
    assert "CVS: fail: 0 of 5 jobs pass" in text
    assert "step 9: 37" in text
    assert "CVS takes every step by itself, ours the mean of all jobs with its noise" in text
    assert "not run: CVS' smoke test" in text


def fourth_here(folder: Path, *, tflops: float, enforce: bool = True) -> None:
    data = fourth(multi=False)
    data["train_params"]["train_script_paths"] = [str(folder / "no.py"), str(folder / "train.py")]
    data["container"]["image"] = "example/jax-training:v26.4"
    data["threshold_json"] = "tiny_threshold.json"
    data["enforce_thresholds"] = enforce
    write(folder, "gen4.json", data)
    names = [each for each in data["sweeps"] if not each.startswith("_")]
    write(folder, "tiny_threshold.json", thresholds(*names, tflops=tflops))


def test_generation_4_tells_each_metric_and_resumes(
    pytester: pytest.Pytester, folder: Path
) -> None:
    fourth_here(folder, tflops=500)
    done, found = run(pytester, "gen4.json", "--cvs-strict", "-n", "2")
    done.assert_outcomes(passed=3, failed=1)
    assert done.ret == 1
    assert found["tflops_per_sec_per_gpu"]["cvs.verdict"] == "fail"
    assert found["tflops_per_sec_per_gpu"]["cvs.strict"].startswith("CVS: fail: 0 of 5")
    assert found["tokens_per_sec_per_gpu"]["cvs.verdict"] == "pass"
    assert found["tokens_per_sec_per_gpu"]["xlatune.n"] == "5"
    assert found["final_loss"]["cvs.verdict"] == "recorded"
    assert float(found["final_loss"]["cvs.loss_slope"]) == pytest.approx(-0.1)
    (ledger,) = folder.glob(".xlatune/cvs-gen4/*/ledger.jsonl")
    begun = ledger.read_text().count('"attempt-submitted"')
    # a threshold is an argument of the verdict: the same jobs are judged again
    fourth_here(folder, tflops=380)
    done, found = run(pytester, "gen4.json", "-k", "tflops")
    done.assert_outcomes(passed=1)
    assert found["tflops_per_sec_per_gpu"]["cvs.verdict"] == "pass"
    assert ledger.read_text().count('"attempt-submitted"') == begun == 5


def test_what_is_not_enforced_is_shown_and_fails_when_asked(
    pytester: pytest.Pytester, folder: Path
) -> None:
    fourth_here(folder, tflops=500, enforce=False)
    done, found = run(pytester, "gen4.json")
    done.assert_outcomes(passed=4)
    assert found["tflops_per_sec_per_gpu"]["cvs.verdict"] == "fail"
    done, found = run(pytester, "gen4.json", "--cvs-enforce")
    done.assert_outcomes(passed=3, failed=1)


def test_close_to_the_threshold_says_how_many_jobs_would_decide(
    pytester: pytest.Pytester, folder: Path
) -> None:
    fourth_here(folder, tflops=389.7)
    done, found = run(pytester, "gen4.json")
    assert found["tflops_per_sec_per_gpu"]["cvs.verdict"] == "cannot tell"
    assert "would decide it" in found["tflops_per_sec_per_gpu"]["cvs.lines"]
    assert done.ret == 10


def test_open_items_end_the_run_before_anything_starts(
    pytester: pytest.Pytester, folder: Path
) -> None:
    write(folder, "multi.json", first(multi=True))
    done = pytester.runpytest_subprocess("--cvs-config", "multi.json", *LOCAL)
    assert done.ret == 4
    text = done.stdout.str() + done.stderr.str()
    for each in ("config.nnodes", "config.nccl_ib_hca", "config.nccl_socket_ifname", "--cvs-set"):
        assert each in text
    assert not list(folder.glob(".xlatune/*/*"))


def test_from_cvs_is_a_cell_to_tune(tmp_path: Path) -> None:
    names = [each["name"] for each in third()["training"]["sweeps"]]
    write(tmp_path, "tiny_threshold.json", thresholds(*names))
    values = {
        "training.nccl.ib_hca": "mlx5_0",
        "training.nccl.ib_hca_list": "mlx5_0",
        "training.nccl.socket_ifname": "eno1",
    }
    path = write(tmp_path, "gen3.json", third())
    sweep = Sweep.from_cvs(path, values=values, profiles=(profile("fast", "--xla_fast=1"),))
    assert sweep.cell.parallelism == "FSDP=32"
    assert sweep.cell.devices == 32
    assert sweep.cell.deployed["NCCL_SOCKET_IFNAME"] == "eno1"
    assert sweep.cell.deployed["XLA_FLAGS"] == "--xla_gpu_autotune_level=4"
    assert sweep.launcher.describe().startswith("container docker mounts=")
    with pytest.raises(ConfigError, match="3 open items"):
        Sweep.from_cvs(path)
    with pytest.raises(ConfigError, match="cluster file of CVS"):
        Sweep.from_cvs(write(tmp_path, "cluster.json", CLUSTER))


@pytest.mark.parametrize("runtime", ["docker", "podman", "apptainer", "pyxis"])
def test_a_container_of_each_runtime_takes_what_has_a_place_in_it(
    tmp_path: Path, runtime: str
) -> None:
    path = write(tmp_path, "gen4.json", fourth(multi=False))
    values = {"container.image": f"x@sha256:{'0' * 64}", "threshold_json": "none.json"}
    sweep = Sweep.from_cvs(path, values=values, runtime=runtime)
    said = sweep.launcher.describe()
    assert "/models:/models" in said
    assert ("--privileged" in said) is (runtime in ("docker", "podman"))
