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
NVIDIA = "proc/driver/nvidia"
KFD = "sys/class/kfd/kfd/topology/nodes"
BUSES = {f"{NVIDIA}/gpus/0000:{bus:02x}:00.0/information": H100 for bus in range(8)}
AMD = {
    "sys/module/amdgpu/version": "6.12.12\n",
    f"{KFD}/0/properties": CPU_OF_KFD,
    **{f"{KFD}/{at}/properties": kfd(version) for at, version in ((1, 90402), (4, 90010))},
}


@pytest.mark.parametrize(
    ("files", "driver", "gpus"),
    [
        ({f"{NVIDIA}/version": OPEN, **BUSES}, "NVIDIA 555.42.06", "8 x NVIDIA H100 80GB HBM3"),
        ({f"{NVIDIA}/version": OLD, **BUSES}, "NVIDIA 390.48", "8 x NVIDIA H100 80GB HBM3"),
        (AMD, "amdgpu 6.12.12", "1 x gfx90a, 1 x gfx942"),
    ],
)
def test_the_driver_and_its_devices(
    tmp_path: Path, files: dict[str, str], driver: str, gpus: str
) -> None:
    found = node_facts(machine(tmp_path, **files))
    assert (found["driver"], found["GPUs"]) == (driver, gpus)


PACKAGES = {"jax-cuda12-plugin": "0.10.2", "nvidia-nccl-cu12": "2.27.3", "libtpu": "0.0.17"}
CUDA = '{"cuda" : {"version" : "12.8.1"}}'


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
