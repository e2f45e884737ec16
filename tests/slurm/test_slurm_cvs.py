"""CVS files of generations 1 and 4 on the lab's nodes, adapted to a trainer that pretends."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET

import pytest

from tests.helpers.cvs_written import first, fourth, thresholds, write
from tests.slurm.on_lab import Project

pytestmark = pytest.mark.part("sweeps")

# MaxText's lines, 0.475 TFLOP a token; step 9 of every job is 4 % slower
TRAINER = """\
import hashlib, os, sys
keys = dict(each.split("=", 1) for each in sys.argv[2:])
if os.environ["SLURM_PROCID"] != "0" and os.environ["NCCL_CROSS_NIC"]:
    sys.exit(0)
noise = int(hashlib.sha256(keys["run_name"].rpartition("-")[0].encode()).hexdigest()[:8], 16)
speed = 820.0 * (1 + 0.01 * (noise / 2**32 - 0.5))
tokens = float(keys["per_device_batch_size"]) * float(keys["max_target_length"])
for step in range(int(keys["steps"])):
    own = speed * (0.96 if step == 9 else 1)
    print(f"completed step: {step}, seconds: {tokens / own:.6f}, "
          f"TFLOP/s/device: {own * 0.475:.3f}, Tokens/s/device: {own:.3f}, "
          f"total_weights: 1, loss: {9 - step * 0.1:.3f}", flush=True)
"""


def verdicts(project: Project) -> dict[str, dict[str, str]]:
    found = {}
    for case in ET.parse(project.path / "junit.xml").iter("testcase"):
        own = {each.get("name", ""): each.get("value", "") for each in case.iter("property")}
        if "cvs.metric" in own:
            found[own["cvs.metric"]] = own
    return found


def run(project: Project, name: str, *args: str) -> str:
    return str(
        project.run(
            f"--cvs-config={project.path / name}",
            *("--cvs-jobs", "4", "--junitxml", "junit.xml"),
            *("--xlatune-container", "runtime=none", *args),
        )
    )


def test_files_of_generation_1_and_4_on_the_nodes(project: Project) -> None:
    trainer = project.path / "train.py"
    trainer.write_text(TRAINER)
    nodes = ("--xlatune-nodelist", "node[001-004]")

    data = first(multi=True)
    data["config"] |= {"nccl_ib_hca": "mlx5_0", "nccl_socket_ifname": "lo", "nnodes": "4"}
    write(project.path, "gen1.json", data)
    launcher = f"python={sys.executable},scripts={trainer}"
    said = run(project, "gen1.json", *nodes, "--xlatune-launcher", launcher)
    assert "4 passed" in said, said
    own = verdicts(project)["tflops_per_sec_per_gpu"]
    assert own["cvs.verdict"] == "pass"

    data = fourth()
    data["container"]["image"] = "example/jax-training:v26.4"
    data["container"]["env"] |= {"NCCL_IB_HCA": "mlx5_0", "NCCL_SOCKET_IFNAME": "lo"}
    data["train_params"]["train_script_paths"] = ["/shared/absent.py", str(trainer)]
    data |= {"threshold_json": "tiny_threshold.json", "enforce_thresholds": True}
    write(project.path, "gen4.json", data)
    write(project.path, "tiny_threshold.json", thresholds(data["runs"][0], tflops=500))
    said = run(
        project, "gen4.json", *nodes, "-n", "2", "--xlatune-launcher", f"python={sys.executable}"
    )
    assert "1 failed, 3 passed" in said, said
    found = verdicts(project)
    assert found["tflops_per_sec_per_gpu"]["cvs.verdict"] == "fail"
    assert found["tokens_per_sec_per_gpu"]["cvs.verdict"] == "pass"
    ended = [tuple(each["outcome"]["nodes"]) for each in project.events("attempt-ended")]
    assert set(ended) == {("node001", "node002", "node003", "node004")}
    assert project.jobs == 8
