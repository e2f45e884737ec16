"""The container launcher: golden commands, and the mounts of what it makes."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.launchers.container import ENTRY_FILE, ENV_FILE, HOST_FILE, ContainerLauncher
from pytest_xlatune.launchers.maxtext import MaxTextLauncher
from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.profile import profile
from tests.helpers import golden
from tests.helpers.probes import make_trial

GOLDEN = Path(__file__).parents[1] / "data" / "containers"
SHA = "sha256:" + "0123456789abcdef" * 4
NAMED = f"rocm/jax-training:maxtext-v26.4@{SHA}"
SQSH = f"/shared/images/jax.sqsh@{SHA}"
PROFILE = profile("overlap-2", "--xla_a=2 --xla_b=X,Y", env={"NCCL_IB_HCA": "^mlx5_0:1,mlx5_1"})


def make_cell(image: str = NAMED, **changes: Any) -> Cell:
    return Cell(model_tag="m", parallelism=Parallelism.parse("FSDP=8"), image=image, **changes)


def maxtext() -> MaxTextLauncher:
    return MaxTextLauncher(
        python="/opt/venv/bin/python",
        config="configs/{model_tag}.gpu.yml",
        cwd="/workspace/maxtext",
        env_files=("/opt/train_env.sh", "/shared/env/{model_tag}.env.sh"),
    )


def container(**changes: Any) -> ContainerLauncher:
    values: dict[str, Any] = {"inner": maxtext(), "mounts": ("/shared",)}
    return ContainerLauncher(**values | changes)


SITES: dict[str, tuple[ContainerLauncher, str]] = {
    "docker-nvidia": (container(gpus="nvidia", args=("--shm-size=256g",)), NAMED),
    "docker-amd": (
        container(
            gpus="amd",
            mounts=("/shared", "/scratch/my data:/data:ro"),
            program="sudo -n docker",
            args=("--device=/dev/infiniband", "--ulimit=memlock=-1"),
        ),
        NAMED,
    ),
    "podman-nvidia": (container(runtime="podman", gpus="nvidia"), NAMED),
    "podman-plain": (
        ContainerLauncher(
            inner=CommandLauncher(argv=("train.sh", "--steps={steps}")), runtime="podman"
        ),
        SHA,
    ),
    "pyxis-nvidia": (container(runtime="pyxis", gpus="nvidia"), SQSH),
    "pyxis-amd": (container(runtime="pyxis", gpus="amd", mounts=("/shared:/shared:ro",)), SQSH),
}


def rendered(launcher: ContainerLauncher, image: str) -> str:
    cell = make_cell(image, deployed={"HF_HOME": "/shared/hf", "XLA_FLAGS": "--xla_deployed=1"})
    spec = launcher.launch(make_trial(cell, PROFILE), cell)
    parts = [
        f"# {launcher.describe()}\n# inherits: {' '.join(spec.inherit)}\n{shlex.join(spec.argv)}\n",
        *(f"\n# ==> {name}\n{text}" for name, text in sorted(spec.files.items())),
        "\n# ==> looked for on every node\n",
        *(f"{each}\n" for each in launcher.files(cell)),
    ]
    return "".join(parts)


@pytest.mark.parametrize("name", SITES)
def test_the_command_is_as_recorded_and_shows_no_value_of_the_environment(name: str) -> None:
    launcher, image = SITES[name]
    golden.check(GOLDEN / f"{name}.txt", rendered(launcher, image))
    assert launcher.interpreter == "", "what is inside is asked inside"
    secret = "hunter2,with a blank"
    cell = make_cell(image, deployed={"SOME_TOKEN": secret})
    spec = launcher.launch(make_trial(cell, PROFILE), cell)
    for text in spec.files.values():
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    assert spec.env == {}
    assert "hunter2" not in "".join(spec.argv) + spec.files[HOST_FILE] + spec.files[ENTRY_FILE]
    assert f"export SOME_TOKEN='{secret}'" in spec.files[ENV_FILE]


def test_every_golden_file_belongs_to_a_site() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == SITES.keys()


def test_the_folder_of_autotuning_is_the_mounts() -> None:
    cell = make_cell(protocol=Protocol(autotune_cache="/shared/tuned"))
    of = msgspec.structs.replace(make_trial(cell, PROFILE), protocol=cell.protocol)
    spec = container(mounts=("/data:/shared",)).launch(of, cell)
    assert spec.folders == (f"/data/tuned/{cell.digest}",), "the payload makes it outside"
    assert f"_cache_dir=/shared/tuned/{cell.digest}" in "".join(spec.files.values())


# --- stand-in runtimes: they drop their options and start what would be inside --------------------
