"""`xlatune init --log FILE` begins from a log that a person has."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.sweep.declaration import Sweep
from tests.helpers.log_lines import step, text_of

COMMAND = "/bin/true --steps={steps} {overrides}"
GIVEN = ["--command", COMMAND, "--flags", "--xla_gpu_enable_nccl_user_buffers=true"]
CONFIG = [
    "XLA_FLAGS=--xla_gpu_autotune_level=0",
    "Config param model_name: llama3-8b",
    "Config param ici_fsdp_parallelism: 8",
    "Config param dcn_pipeline_parallelism: 2",
    "Config param per_device_batch_size: 4.0",
    "Config param max_target_length: 2048",
]


def made(tmp_path: Path, lines: list[str], *more: str) -> Sweep:
    log, file = tmp_path / "job.log", tmp_path / "test_of_log.py"
    log.write_bytes(text_of(lines))
    assert main(["init", str(file), "--log", str(log), *GIVEN, *more]) == 0
    sweep = runpy.run_path(str(file))["SWEEP"]
    assert isinstance(sweep, Sweep)
    return sweep


def test_what_maxtext_printed_is_not_asked(tmp_path: Path) -> None:
    cell = made(tmp_path, [*CONFIG, *map(step, range(15))]).cell
    assert (cell.model_tag, cell.parallelism) == ("llama3-8b", "PP=2,FSDP=8")
    assert dict(cell.deployed) == {"XLA_FLAGS": "--xla_gpu_autotune_level=0"}
    assert (cell.per_device_batch_size, cell.max_target_length) == (4, 2048)
    assert cell.step_pattern == ""


def test_the_format_of_another_trainer_is_found(tmp_path: Path) -> None:
    line = "[titan] 2026-05-18 16:04:46,338 - root - INFO - step: {0:2}  loss:  3.2  tps: 7,282"
    more = ("--model", "m", "--parallelism", "FSDP=8")
    cell = made(tmp_path, [line.format(each) for each in range(1, 16)], *more).cell
    assert (cell.model_tag, cell.step_pattern) == ("m", "torchtitan")


def test_what_is_no_log_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, file = tmp_path / "job.log", tmp_path / "test_of_log.py"
    log.write_bytes(b"hello\n")
    assert main(["init", str(file), "--log", str(log), *GIVEN]) == 2
    assert "is not the log of a training job" in " ".join(capsys.readouterr().err.split())
    # what the log leaves out is named
    log.write_bytes(text_of(map(step, range(15))))
    assert main(["init", str(file), "--log", str(log), *GIVEN]) == 2
    assert "--model, --parallelism" in capsys.readouterr().err
    assert not file.exists()
