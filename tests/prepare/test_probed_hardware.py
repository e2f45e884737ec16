"""What drivers, devices and collective libraries say of themselves, in their own words.

This machine has no GPU: the texts are those that public documents and logs print, one file each.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_xlatune.logs import read_log
from pytest_xlatune.workers import probe_environment
from pytest_xlatune.workers.probe_environment import MARK, node_facts, packages

PROGRAM = Path(probe_environment.__file__)

H100 = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 150\nGPU UUID: \t GPU-eaf23aa1-4d3d\n"
CPU_OF_KFD = "cpu_cores_count 128\nsimd_count 0\ngfx_target_version 0\n"


def kfd(version: int) -> str:
    return f"cpu_cores_count 0\nsimd_count 1216\nvendor_id 4098\ngfx_target_version {version}\n"


def machine(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


NVRM = "NVRM version: NVIDIA UNIX"
OPEN = f"{NVRM} Open Kernel Module for x86_64  555.42.06  Release Build  (abuild@host)\n"
OLD = f"{NVRM} x86_64 Kernel Module 390.48 Thu Mar 22 00:42:57\n"


def test_the_driver_of_nvidia(tmp_path: Path) -> None:
    gpus = {f"proc/driver/nvidia/gpus/0000:{bus:02x}:00.0/information": H100 for bus in range(8)}
    for text, version in ((OPEN, "555.42.06"), (OLD, "390.48")):
        found = node_facts(machine(tmp_path, **{"proc/driver/nvidia/version": text}, **gpus))
        assert found["driver"] == f"NVIDIA {version}"
        assert found["GPUs"] == "8 x NVIDIA H100 80GB HBM3"


def test_the_driver_of_amd_counts_devices_and_no_processor(tmp_path: Path) -> None:
    nodes = "sys/class/kfd/kfd/topology/nodes"
    root = machine(
        tmp_path,
        **{
            "sys/module/amdgpu/version": "6.12.12\n",
            f"{nodes}/0/properties": CPU_OF_KFD,
            f"{nodes}/1/properties": kfd(90402),
            f"{nodes}/2/properties": kfd(90402),
            f"{nodes}/4/properties": kfd(90010),
        },
    )
    found = node_facts(root)
    assert found["driver"] == "amdgpu 6.12.12"
    assert found["GPUs"] == "1 x gfx90a, 2 x gfx942"


PACKAGES = {
    "jax-cuda12-plugin": "0.10.2",
    "jax-rocm7-pjrt": "0.8.0",
    "nvidia-nccl-cu12": "2.27.3",
    "libtpu": "0.0.17",
    "transformer-engine-jax": "2.4.0+3cd6870",
}
CUDA = """\
{
   "cuda" : {
      "version" : "12.8.1"
   }
}
"""


def test_cuda_rocm_and_the_packages_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, version in {**PACKAGES, "jaxtyping": "0.2.36"}.items():
        folder = f"{name.replace('-', '_')}-{version}.dist-info"
        (tmp_path / "site" / folder).mkdir(parents=True)
    monkeypatch.setattr("sys.path", [str(tmp_path / "site")])
    rocm = {"opt/rocm/.info/version": "6.4.1-83\n"}
    found = packages(machine(tmp_path, **{"usr/local/cuda/version.json": CUDA}, **rocm))
    assert found.items() >= {**PACKAGES, "CUDA": "12.8.1", "ROCm": "6.4.1-83"}.items()
    assert "jaxtyping" not in found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1: p5-dy-gpu-2:62571:62571 [1] NCCL INFO NCCL version 2.26.2+cuda12.2\n",
         {"NCCL": "2.26.2+cuda12.2"}),
        (("node [0] NCCL INFO RCCL version : 2.27.7-HEAD:29e1567\n"
         "HIP version  : 7.2.53211-97f5574fe2\nROCm version : 7.2.4.0-93-97f5574fe2\n"
         "Hostname     : n1\nLibrccl path : /usr/local/lib/librccl.so.1\n"),
         {"RCCL": "2.27.7-HEAD:29e1567", "ROCm": "7.2.4.0-93-97f5574fe2"}),
        ("a trainer asks for NCCL version 2.18 or later\n", {}),
    ],
    ids=["NCCL", "RCCL and ROCm", "a trainer"],
)  # fmt: skip
def test_a_library_tells_its_version_as_it_is_loaded(text: str, found: dict[str, str]) -> None:
    assert read_log([text.encode()]).libraries == found
    split = [text[at : at + 1].encode() for at in range(len(text))]
    assert read_log(split).libraries == found


def test_where_jax_ends_the_process_the_rest_is_told_all_the_same(tmp_path: Path) -> None:
    # an image whose XLA_FLAGS hold an unknown flag: XLA aborts
    (tmp_path / "jax.py").write_text("import os\nos._exit(1)\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "trainer", "train.py", "devices"],
        env={"PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    (line,) = [each for each in done.stdout.splitlines() if each.startswith(MARK)]
    told = json.loads(line.removeprefix(MARK))
    assert told["packages"]["python"] == platform.python_version()
    assert "devices:" in told["problems"][0]
