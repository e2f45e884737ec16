"""The container launcher: golden commands, refusals, and the shell around stand-in runtimes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
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
from tests.helpers.probes import PROBE, make_trial

GOLDEN = Path(__file__).parents[1] / "data" / "containers"
SHA = "sha256:" + "0123456789abcdef" * 4
NAMED = f"rocm/jax-training:maxtext-v26.4@{SHA}"
SQSH = f"/shared/images/jax.sqsh@{SHA}"
PROFILE = profile("overlap-2", "--xla_a=2 --xla_b=X,Y", env={"NCCL_IB_HCA": "^mlx5_0:1,mlx5_1"})
NASTY = {
    "COMMAS": "FUSION,CUBLAS",
    "SPACES": " a b  c ",
    "QUOTES": "it's \"x\" '\"'\"'",
    "EMPTY": "",
    "LINES": "two\nlines\n",
    "DOLLAR": "$HOME `id` $(id) \\ !! ~ *",
    "WORDS": "größe→∞ %s #x",
    "FOLDER": "{xlatune.folder}/x y/{xlatune.rank}",
}


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
    "docker-nvidia": (container(gpus="nvidia", shm_size="256g"), NAMED),
    "docker-amd": (
        container(
            gpus="amd",
            devices=("/dev/infiniband",),
            mounts=("/shared", "/scratch/my data:/data:ro"),
            program="sudo -n docker",
            args=("--cap-add=IPC_LOCK", "--ulimit=memlock=-1", "--security-opt=seccomp=unconfined"),
        ),
        NAMED,
    ),
    "podman-nvidia": (container(runtime="podman", gpus="nvidia", as_me=True, pull=True), NAMED),
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
        *(f"{command}   # else: {said}\n" for command, said in launcher.checks(cell)),
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


def test_the_node_is_asked_for_what_it_has_and_not_for_what_the_image_has() -> None:
    launcher = container(
        runtime="podman", mounts=("/data/env:/shared/env", "/data/opt:/opt:ro"), gpus="amd"
    )
    cell = make_cell()
    assert launcher.env_files_of(cell) == ("/data/opt/train_env.sh", "/data/env/m.env.sh")
    assert launcher.files(cell) == (
        *("/data/env", "/data/opt", "/data/opt/train_env.sh", "/data/env/m.env.sh"),
        *("/data/opt/venv/bin/python", "/dev/kfd", "/dev/dri"),
    )


# --- stand-in runtimes: they drop their options and start what would be inside --------------------

STAND_IN = """\
#!{python}
import json, os, sys
words = sys.argv[1:]
if words[0] == "rm":
    open({record!r} + ".removed", "w").write(words[-1])
    sys.exit()
open({record!r}, "w").write(json.dumps(words))
start = words.index("bash")
env = {{"PATH": os.environ["PATH"], "XLA_FLAGS": "--xla_from_image=1"}}
if os.path.basename(sys.argv[0]) == "srun":
    env = {{**os.environ, **env, "SLURM_PROCID": "0"}}
os.execvpe("bash", words[start:], env)
"""


def run_with_stand_in(
    launcher: ContainerLauncher, image: str, folder: Path, *, deployed: dict[str, str]
) -> tuple[dict[str, str], list[str], str]:
    """Do what the payload does on a node whose runtime is the stand-in."""
    programs = folder / "bin"
    programs.mkdir()
    for name in ("docker", "podman", "srun"):
        text = STAND_IN.format(python=sys.executable, record=str(folder / "asked.json"))
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    cell = make_cell(image, deployed=deployed)
    spec = launcher.launch(make_trial(cell, PROFILE), cell)
    attempt = folder / "session 1" / "trial.1"
    attempt.mkdir(parents=True)
    for name, text in spec.files.items():
        (attempt / name).write_text(text, encoding="utf-8", newline="")
    node = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": "/home/of/the/node",
        "LD_LIBRARY_PATH": "/of/the/node",
        "SLURM_PROCID": "3",
        "SLURM_STEP_NODELIST": "node[001,003]",
        "CUDA_VISIBLE_DEVICES": "",
        "SLURMD_NODENAME": "node003",
        "SECRET_OF_THE_NODE": "x",
    }
    kept = {n: v for n, v in node.items() if n in spec.inherit or n.startswith("SLURM_")}
    done = subprocess.run(
        [word.replace("{xlatune.folder}", str(attempt)).replace("{xlatune.rank}", "3")
         for word in spec.argv],
        env=kept, cwd=attempt, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # above it a client that merges both streams hands on what the wrapper tells of XLA_FLAGS
    env, argv, cwd = json.loads(done.stdout.splitlines()[-1])
    return env, argv, cwd


RUNTIMES = {"docker": NAMED, "podman": NAMED, "pyxis": SQSH}


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_environment_arrives_byte_for_byte(runtime: str, tmp_path: Path) -> None:
    inner = CommandLauncher(argv=(sys.executable, "-c", PROBE, "two words", "{folder}"))
    env, argv, _ = run_with_stand_in(
        ContainerLauncher(inner=inner, runtime=runtime),
        RUNTIMES[runtime],
        tmp_path,
        deployed=NASTY,
    )
    attempt = tmp_path / "session 1" / "trial.1"
    expected = {**NASTY, "FOLDER": f"{attempt}/x y/3"}
    assert {name: env[name] for name in NASTY} == expected
    assert argv == ["two words", str(attempt)]
    assert env["NCCL_IB_HCA"] == "^mlx5_0:1,mlx5_1"
    assert env["XLA_FLAGS"] == "--xla_from_image=1 --xla_a=2 --xla_b=X,Y", (
        "the image's flags are deployed as well, and a profile comes after them"
    )
    assert (env["SLURM_PROCID"], env["SLURM_STEP_NODELIST"]) == ("3", "node[001,003]")
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert "LD_LIBRARY_PATH" not in env
    assert "SECRET_OF_THE_NODE" not in env
    assert not list(attempt.glob("container.node.*")), "what the node said does not stay"
    if runtime == "podman":
        asked = json.loads((tmp_path / "asked.json").read_text())
        assert {"--name=xlt-session-1-trial.1-3", "--rm"} <= {*asked}
        assert (tmp_path / "asked.json.removed").read_text() == "xlt-session-1-trial.1-3"
