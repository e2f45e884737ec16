"""What the image alone gives: every deployed flag back to a known default."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.launchers.maxtext import MaxTextLauncher
from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.profile import NO_ENV_ID, Profile, effective_values
from pytest_xlatune.sweep.deployed import NoEnv

COMMAND = CommandLauncher(argv=("train", "{steps}"))
AG, LEVEL = "xla_gpu_all_gather_combine_threshold_bytes", "xla_gpu_autotune_level"
COUNT = "xla_force_host_platform_device_count"
KEPT = (COUNT, "xla_kept")


def cell_of(**deployed: str) -> Cell:
    return Cell(model_tag="m", parallelism=Parallelism.parse("FSDP=8"), deployed=deployed)


def restored(flags: str, how: NoEnv) -> Profile:
    return how.profile(COMMAND, cell_of(XLA_FLAGS=flags) if flags else cell_of())


def test_deployed_flags_go_back() -> None:
    flags = f"--{COUNT}=8 --{AG}=8589934592 --{LEVEL}=2"
    found = restored(flags, NoEnv(jaxlib="0.7.2"))
    assert (found.id, found.wave) == (NO_ENV_ID, "wave1")
    # to the defaults of that release, but for a flag that is the cell
    assert effective_values(found.flags) == {AG: "31457287", LEVEL: "4"}
    stated = {LEVEL: "3", "xla_mine": ""}
    found = restored(f"--{LEVEL}=2 --xla_mine=a --xla_kept=1", NoEnv(defaults=stated, keep=KEPT))
    assert effective_values(found.flags) == stated


PIPELINED = "xla_gpu_enable_pipelined_all_gather"


@pytest.mark.parametrize(
    ("flags", "how", "words"),
    [
        (f"--{AG}=1", NoEnv(), f"the default of {AG} in every jaxlib"),
        ("--xla_mine=1 --xla_ours=2", NoEnv(jaxlib="0.7.2"),
         "xla_mine, xla_ours in jaxlib 0.7.2 is not known"),
        (f"--{PIPELINED}=true", NoEnv(jaxlib="0.12.0.1"), PIPELINED),
        (f"--{COUNT}=8", NoEnv(jaxlib="0.7.2"), "could go back"),
    ],
    ids=[
        "one that releases changed", "unknown ones, all are named",
        "an alias whose value is not shown", "the cell's own flag alone",
    ],
)  # fmt: skip
def test_there_is_none_and_the_note_says_why(flags: str, how: NoEnv, words: str) -> None:
    found = restored(flags, how)
    assert found.is_baseline
    assert words in found.note


def test_env_files_are_sourced_where_they_can_be_read(tmp_path: Path) -> None:
    first, second = tmp_path / "image.env.sh", tmp_path / "model.env.sh"
    first.write_text("export XLA_FLAGS=--xla_gpu_autotune_level=2\n", encoding="utf-8")
    second.write_text('export XLA_FLAGS="$XLA_FLAGS --xla_mine=1"\n', encoding="utf-8")
    files = (str(first), str(second))
    launcher = MaxTextLauncher(cwd="/opt/maxtext", config="a.yml", env_files=files)
    how = NoEnv(defaults={"xla_mine": "0"})
    flags = [str(flag) for flag in how.profile(launcher, cell_of()).flags]
    assert flags == ["--xla_gpu_autotune_level=4", "--xla_mine=0"]
    second.unlink()
    gone = how.profile(launcher, cell_of())
    assert gone.is_baseline
    assert f"{second} cannot be read here" in gone.note
