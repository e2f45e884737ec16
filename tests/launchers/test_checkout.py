"""What of a command is the commit's, and what stays where it is."""

from __future__ import annotations

import dataclasses
import sys

import pytest
from msgspec.structs import replace

from pytest_xlatune.launchers.checkout import CheckoutLauncher, LauncherByCell, with_python
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.launchers.container import ContainerLauncher, configured
from pytest_xlatune.launchers.maxtext import MaxTextLauncher
from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import BASELINE
from pytest_xlatune.model.trial import Trial

CODE = "3f2a" + 36 * "0"
CELL = Cell(
    model_tag="pretend",
    parallelism=Parallelism.parse("FSDP=4"),
    code=CODE,
    deployed={"PYTHONPATH": "/shared/trainer/src:/shared/trainer2:/mnt/shared/trainer"},
)
TRIAL = Trial(
    cell_digest=CELL.digest, profile=BASELINE, protocol=CELL.protocol, study="gate", stage="confirm"
)
INNER = CommandLauncher(
    argv=(
        "/shared/trainer/.venv/bin/python",
        "/shared/trainer/train.py",
        "--data=/shared/trainer/data",
    ),
    cwd="/shared/trainer",
    env_files=("/shared/trainer/env.sh",),
)
LAUNCHER = CheckoutLauncher(repository="/shared/trainer/", inner=INNER)
CHECKOUT = f"/shared/trainer/.git/xlatune/{CODE}"


def test_paths_of_the_repository_become_the_commits() -> None:
    spec = LAUNCHER.launch(TRIAL, CELL)
    assert spec.argv[-3:] == (
        "/shared/trainer/.venv/bin/python",
        f"{CHECKOUT}/train.py",
        f"--data={CHECKOUT}/data",
    )
    script = spec.argv[4]
    assert f"cd -- {CHECKOUT} " in script
    assert f". {CHECKOUT}/env.sh" in script
    assert spec.env["PYTHONPATH"] == f"{CHECKOUT}/src:/shared/trainer2:/mnt/shared/trainer"
    assert f"{CHECKOUT}/train.py" in LAUNCHER.files(CELL)
    assert LAUNCHER.env_files_of(CELL) == (f"{CHECKOUT}/env.sh",)


def test_clones_at_other_paths_are_one_cell_and_commits_are_not() -> None:
    other = CheckoutLauncher(
        repository="/builds/7/trainer",
        inner=dataclasses.replace(
            INNER,
            argv=tuple(each.replace("/shared/", "/builds/7/") for each in INNER.argv),
            cwd="/builds/7/trainer",
            env_files=("/builds/7/trainer/env.sh",),
        ),
    )
    assert other.describe() == LAUNCHER.describe()
    assert replace(CELL, code="4" + CODE[1:]).digest != CELL.digest


@pytest.mark.parametrize("code", ["", "main", "3f2a", f"{CODE}+uncommitted"])
def test_a_cell_without_a_hash_cannot_be_started(code: str) -> None:
    with pytest.raises(ConfigError, match="needs a commit"):
        LAUNCHER.launch(TRIAL, replace(CELL, code=code))


@pytest.mark.parametrize("path", ["trainer", "/shared/my trainer", "/shared/$HOME"])
def test_a_path_that_a_shell_would_change_is_refused(path: str) -> None:
    with pytest.raises(ConfigError):
        CheckoutLauncher(repository=path, inner=INNER)


def test_settings_of_the_site_reach_the_launcher_inside() -> None:
    found = configured(
        LAUNCHER, {"cwd": "/shared/trainer/sub"}, {"runtime": "podman"}, where="the options"
    )
    assert isinstance(found, CheckoutLauncher)
    assert isinstance(found.inner, ContainerLauncher)
    spec = found.launch(TRIAL, replace(CELL, image="trainer@sha256:" + 64 * "0"))
    assert f"{CHECKOUT}/sub" in " ".join((*spec.argv, *spec.files.values()))


def test_an_interpreter_takes_the_place_of_the_launchers() -> None:
    maxtext = MaxTextLauncher(config="/shared/base.yml")
    found = with_python(CheckoutLauncher(repository="/work", inner=maxtext), "/opt/new/python")
    assert found.interpreter == "/opt/new/python"
    assert with_python(INNER, sys.executable).interpreter == sys.executable
    by_cell = LauncherByCell(
        default_launcher=maxtext, others={"new": dataclasses.replace(maxtext, python="new-python")}
    )
    assert by_cell.launcher_of(replace(CELL, launcher="new")).interpreter == "new-python"
    assert by_cell.launcher_of(CELL) is maxtext
    with pytest.raises(ConfigError, match="names no interpreter"):
        with_python(CommandLauncher(argv=("train.sh",)), "/opt/new/python")
