"""Env files come to what bash makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.sweep.deployed import deployed_env, with_sourced


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_files_append_to_one_another(tmp_path: Path) -> None:
    first = written(tmp_path, "train_env.sh", "export XLA_FLAGS=--xla_a=1 NCCL_IB_HCA='a:1,^b'\n")
    second = written(
        tmp_path,
        "model.env.sh",
        'XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }--xla_b=x\\ y"\nNOT_EXPORTED=1\necho chatter\n',
    )
    assert deployed_env(first, second) == {
        "XLA_FLAGS": "--xla_a=1 --xla_b=x\\ y",
        "NCCL_IB_HCA": "a:1,^b",
    }


def test_a_file_that_exports_all_from_then_on_adds_no_variable_of_ours(tmp_path: Path) -> None:
    first = written(tmp_path, "train_env.sh", "set -a\nfile=mine\n")
    second = written(tmp_path, "model.env.sh", 'B="$file"\n')
    assert deployed_env(first, second) == {"file": "mine", "B": "mine"}


def test_only_what_differs_from_the_image(tmp_path: Path) -> None:
    file = written(tmp_path, "env.sh", "export A=1 B=2\nexport C=$'new\\nline'\n")
    assert deployed_env(file, base={"A": "1", "Z": "9"}) == {"B": "2", "C": "new\nline"}


def test_the_environment_of_the_caller_stays_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "s")
    file = written(tmp_path, "env.sh", 'export SEEN="${SECRET_TOKEN:-nothing}"\n')
    assert deployed_env(file) == {"SEEN": "nothing"}


@pytest.mark.parametrize(
    ("text", "message"),
    [("false\n", "exit code 1"), ("exit 3\n", "exit code 3"), ("if\n", "exit code")],
    ids=["a failing command", "an exit", "a syntax error"],
)
def test_a_file_that_does_not_run_to_its_end_is_an_error(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        deployed_env(written(tmp_path, "env.sh", text))


def test_a_file_may_be_named_by_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deployed.env.sh").write_text("export A=1\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert deployed_env("deployed.env.sh") == {"A": "1"}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.sh does not exist"):
        deployed_env(tmp_path / "nowhere.sh")


def test_what_env_files_come_to_is_the_cells_without_secrets_and_without_what_varies(
    tmp_path: Path,
) -> None:
    file = tmp_path / "a.env.sh"
    text = """\
export XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }--xla_b=2"
export HF_TOKEN=hush-hush-hush
export OTHER=$HF_TOKEN
export RUN=$(date +%s%N)
"""
    file.write_text(text, encoding="utf-8")
    launcher = CommandLauncher(argv=("train", "{steps}"), env_files=(str(file),))
    axes = Parallelism.parse("FSDP=4")
    cell = Cell(model_tag="m", parallelism=axes, deployed={"XLA_FLAGS": "--xla_a=1"})
    found = with_sourced(cell, launcher)
    assert found.sourced == (("XLA_FLAGS", "--xla_a=1 --xla_b=2"),)
    assert found.digest == with_sourced(cell, launcher).digest
    file.write_text(text.replace("=2", "=3"), encoding="utf-8")
    assert with_sourced(cell, launcher).digest != found.digest
    file.unlink()
    assert with_sourced(cell, launcher) == cell
