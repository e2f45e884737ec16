"""Env files come to what bash makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.sweep.deployed import deployed_env, with_sourced


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        pytest.param(
            ("export XLA_FLAGS=--xla_a=1 NCCL_IB_HCA='a:1,^b'\n",
             'XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }--xla_b=x\\ y"\nNOT_EXPORTED=1\necho chatter\n'),
            {"XLA_FLAGS": "--xla_a=1 --xla_b=x\\ y", "NCCL_IB_HCA": "a:1,^b"},
            id="files append to one another",
        ),
        pytest.param(
            ("set -a\nfile=mine\n", 'B="$file"\n'), {"file": "mine", "B": "mine"},
            id="a file that exports all from then on adds no variable of ours",
        ),
        pytest.param(
            ('export SEEN="${SECRET_TOKEN:-nothing}"\n',), {"SEEN": "nothing"},
            id="the environment of the caller stays out",
        ),
    ],
)  # fmt: skip
def test_files_are_sourced_in_their_order(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    texts: tuple[str, ...],
    expected: dict[str, str],
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "s")
    monkeypatch.chdir(tmp_path)
    for number, text in enumerate(texts):
        Path(f"{number}.env.sh").write_text(text, encoding="utf-8")
    names = [f"{number}.env.sh" for number in range(len(texts))]
    assert deployed_env(*names) == expected


def test_a_file_that_does_not_run_to_its_end_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "env.sh"
    with pytest.raises(ConfigError, match=r"env\.sh does not exist"):
        deployed_env(path)
    for text, message in (("false\n", "exit code 1"), ("if\n", "exit code")):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=message):
            deployed_env(path)


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
    sourced = with_sourced(cell, launcher)
    assert sourced.sourced == (("XLA_FLAGS", "--xla_a=1 --xla_b=2"),)
    assert sourced.digest == with_sourced(cell, launcher).digest
    file.write_text(text.replace("=2", "=3"), encoding="utf-8")
    assert with_sourced(cell, launcher).digest != sourced.digest
    file.unlink()
    assert with_sourced(cell, launcher) == cell
