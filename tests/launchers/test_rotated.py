"""A rotation's worker in front of the trainer: command lines, variables, files; nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.executors.folder import with_worker, write_spec
from pytest_xlatune.launchers import Launcher
from pytest_xlatune.launchers.command import FOLDER, CommandLauncher
from pytest_xlatune.launchers.container import ContainerLauncher
from pytest_xlatune.launchers.maxtext import MaxTextLauncher
from pytest_xlatune.launchers.maxtext_slurm import MaxTextSlurmLauncher
from pytest_xlatune.launchers.rotated import SITE_FILE, SPEC_FILE, VARIABLE, WORKER_FILE, Rotates
from pytest_xlatune.model.cell import Protocol
from pytest_xlatune.model.trial import LaunchSpec
from pytest_xlatune.workers import maxtext_slurm_job
from tests.helpers.probes import make_cell
from tests.helpers.turned import rotation_trial, spec_of

SPEC = spec_of(("fast", {"xla_fast": "1"}))
IMAGE = f"rocm/jax@sha256:{'0f' * 32}"
WORKER = f"{WORKER_FILE} {SPEC_FILE} --".split()
MAXTEXT = MaxTextLauncher(config="/cfg/tiny.yml", python="/venv/bin/python", module="maxtext.train")


def launched(launcher: Launcher, **changes: Any) -> LaunchSpec:
    cell = make_cell(
        **{
            "deployed": {"XLA_FLAGS": "--xla_deployed=1"},
            "protocol": Protocol(steps=20, deadline_s=100),
            **changes,
        }
    )
    return launcher.launch(rotation_trial(cell, SPEC), cell)


def command(*argv: str, **more: Any) -> CommandLauncher:
    return CommandLauncher(argv=argv, **more)


PYTHON = "/venv/bin/python"


@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        (command("python3", "/t.py", "a"), ["python3", *WORKER, "/t.py", "a"]),
        (command(PYTHON, "-X", "dev", "-m", "t"), [PYTHON, "-X", "dev", *WORKER, "-m", "t"]),
        (MAXTEXT, [PYTHON, *WORKER, "-m", "maxtext.train", "/cfg/tiny.yml"]),
        (ContainerLauncher(inner=MAXTEXT), [PYTHON, *WORKER, "-m", "maxtext.train"]),
    ],
    ids=["a script", "a module", "MaxText", "inside a container"],
)
def test_the_worker_stands_in_front_of_what_python_runs(
    launcher: Launcher, words: list[str]
) -> None:
    assert launcher.rotates is Rotates.PYTHON
    spec = launched(launcher, image=IMAGE)
    at = spec.argv.index(words[0])
    argv = [word.removeprefix(f"{FOLDER}/") for word in spec.argv[at:]]
    assert argv[: len(words)] == words
    assert {SPEC_FILE, WORKER_FILE} <= spec.files.keys()
    assert SITE_FILE not in spec.files
    assert not {VARIABLE, "PYTHONPATH"} & spec.env.keys()


@pytest.mark.parametrize("inherits", [True, False], ids=["of the node", "of an env file"])
def test_a_shell_puts_ours_in_front_of_what_is_there(tmp_path: Path, inherits: bool) -> None:
    env_file = tmp_path / "deployed.sh"
    env_file.write_text("export PYTHONPATH=/deployed\n", encoding="utf-8")
    shows = "import os; print(os.environ['PYTHONPATH'], os.environ['XLATUNE_ROTATION'])"
    changes = {"inherit": ("PATH", "PYTHON*")} if inherits else {"env_files": (str(env_file),)}
    launcher = command("env", sys.executable, "-c", shows, **changes)
    assert launcher.rotates is Rotates.WRAPPED
    spec = launched(launcher)
    assert set(spec.files) >= {SPEC_FILE, SITE_FILE}
    assert WORKER_FILE not in spec.files
    for name, text in spec.files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    node = {"PATH": os.environ["PATH"]} | ({"PYTHONPATH": "/deployed"} if inherits else {})
    told = subprocess.check_output(spec.argv, env={**node, **spec.env}, cwd=tmp_path, text=True)
    assert told.split() == [f"{tmp_path}/xlatune_site:/deployed", f"{tmp_path}/rotation.json"]


def test_a_rotation_runs_no_program_that_was_compiled_before(tmp_path: Path) -> None:
    protocol = Protocol(autotune_cache="/shared/k", deadline_s=9)
    spec = launched(MAXTEXT, protocol=protocol)
    assert "jax_cache_dir=" in spec.argv
    assert spec.env["JAX_ENABLE_COMPILATION_CACHE"] == "false"
    # the worker is no secret of the attempt
    spec = with_worker(spec)
    assert "def main" in spec.files[WORKER_FILE]
    write_spec(tmp_path / "one", spec)
    assert not (tmp_path / "one" / "secrets.json").exists()


def test_maxtext_slurm_writes_it_into_the_output_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = MaxTextSlurmLauncher(checkout="/c", sbatch=("-w", "n1"))
    spec = with_worker(launched(launcher, deployed={}))
    for name in (SPEC_FILE, SITE_FILE):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(spec.files[name], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    lines = maxtext_slurm_job._rotation_lines()
    out = tmp_path / "out"
    shows = f'{lines}printf "%s|%s" "$PYTHONPATH" "$XLATUNE_ROTATION"'
    env = {"PATH": os.environ["PATH"], "HOSTNAME": "n1"}
    asked = {**env, "OUTPUT_PATH": str(out), "PYTHONPATH": "/own"}
    told = subprocess.check_output(["bash", "-euc", shows], env=asked, text=True)
    turns = out / "xlatune_rotation"
    assert told == f"{turns}/xlatune_site:/own|{turns}/rotation.json"
    assert json.loads((turns / SPEC_FILE).read_text(encoding="utf-8")) == SPEC.to_json()
    worker = (turns / SITE_FILE).read_text(encoding="utf-8")
    assert worker.rstrip() == spec.files[SITE_FILE].rstrip()
    assert sorted(each.name for each in turns.iterdir()) == ["rotation.json", "xlatune_site"]
    # outside of the container nothing is set
    shows = f'{lines}printf "%s" "${{PYTHONPATH-none}}"'
    assert subprocess.check_output(["bash", "-c", shows], env=env, text=True) == "none"
