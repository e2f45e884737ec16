"""`xlatune init`: the file that it writes is collected and planned as it stands."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.cli.init import KINDS, QUESTIONS, answers

CELL = "--model tiny --parallelism FSDP=4"
FLAGS = "--xla_gpu_all_gather_combine_threshold_bytes=1073741824 --xla_gpu_enable_nccl_user_buffers"
OPTIONS = {
    "trainer": ("--command", "python3 /opt/me/train.py --steps={steps} {overrides}"),
    "maxtext": ("--config", "/opt/configs/tiny.yml", "--python", "/opt/venv/bin/python"),
    "maxtext-slurm": ("--checkout", "/opt/maxtext-slurm"),
}


@pytest.mark.parametrize("nodes", ["", "node[001-002]"], ids=["this machine", "two nodes"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_written_file_is_collected_and_planned(
    kind: str, nodes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if kind == "maxtext-slurm" and not nodes:
        nodes = "node[001-008]"
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "sweeps" / "test_mine.py"
    argv = ["init", str(path), "--kind", kind, *OPTIONS[kind], *CELL.split(), "--flags", FLAGS]
    assert main([*argv, "--nodelist", nodes]) == 0
    assert "xlatune plan" in capsys.readouterr().out
    assert main([*argv, "--nodelist", nodes]) == 2, "nothing is overwritten"
    assert "exists" in capsys.readouterr().err

    assert main(["plan", str(path)]) == 0
    said = capsys.readouterr().out
    for each in ("all-gather-combine-threshold-bytes", "--xla_gpu_enable_nccl_user_buffers"):
        assert each in said
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xlatune", "--collect-only", "-q", str(path)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "::test_wave2[enable-nccl-user-buffers]" in done.stdout


@pytest.fixture
def typing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Answer the questions in order; returns what was asked."""

    def type_(*said: str) -> list[str]:
        asked: list[str] = []
        typed: Iterator[str] = iter(said)

        def answer(prompt: str) -> str:
            asked.append(prompt)
            return next(typed)

        found = answers({}, answer)
        asked.append(repr(found))
        return asked

    return type_


def test_what_the_options_leave_out_is_asked(typing: Callable[..., list[str]]) -> None:
    asked = typing("ours", "maxtext", "", "/c.yml", "/py", "", "tiny", "FSDP=4", "", "")
    assert all(kind in asked[0] for kind in KINDS)
    assert "'kind': 'maxtext'" in asked[-1]
    assert "'config': '/c.yml'" in asked[-1], "an empty answer is asked again"
    assert "'module': 'maxtext.trainers.pre_train.train'" in asked[-1], "the default"
    assert "'nodelist': ''" in asked[-1]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("test_a.py --model m", "--command, --parallelism: no terminal to ask on"),
        ("a.py", "test_a.py; name it so"),
        ("test_a.py --config /x", "--config belongs to --kind maxtext"),
        ("test_a.py --command t --model m --parallelism FDSP=4", "did you mean 'FSDP'"),
        ("test_a.py --command t --model m --parallelism DP=4 --flags=xla_a=1", "does not begin"),
    ],
)
def test_bad_input_is_one_message_and_writes_nothing(
    argv: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(["init", *argv.split()]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("*.py"))


def test_every_question_has_an_option_and_a_use() -> None:
    assert {name for each in QUESTIONS.values() for name in each.kinds} == set(KINDS)
