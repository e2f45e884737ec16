"""What is deployed: env files as bash sources them, and flags set back to known defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.launchers.maxtext import MaxTextLauncher
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import NO_ENV_ID, Profile, effective_values
from pytest_xlatune.sweep.deployed import NoEnv, deployed_env, with_sourced
from tests.helpers.probes import make_cell


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("export XLA_FLAGS=--xla_a=1 NCCL_IB_HCA='a:1,^b'\n",
          'XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }--xla_b=x\\ y"\nNOT_EXPORTED=1\necho chatter\n'),
         {"XLA_FLAGS": "--xla_a=1 --xla_b=x\\ y", "NCCL_IB_HCA": "a:1,^b"}),
        (("set -a\nfile=mine\n", 'B="$file"\n'), {"file": "mine", "B": "mine"}),
        (('export SEEN="${SECRET_TOKEN:-nothing}"\n',), {"SEEN": "nothing"}),
    ],
    ids=["files append", "all are exported from then on", "the caller's environment stays out"],
)  # fmt: skip
def test_files_are_sourced_in_their_order(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    texts: tuple[str, ...],
    expected: dict[str, str],
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "s")
    monkeypatch.chdir(tmp_path)
    names = [f"{number}.env.sh" for number in range(len(texts))]
    for name, text in zip(names, texts, strict=True):
        Path(name).write_text(text, encoding="utf-8")
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
    cell = make_cell(deployed={"XLA_FLAGS": "--xla_a=1"})
    sourced = with_sourced(cell, launcher)
    assert sourced.sourced == (("XLA_FLAGS", "--xla_a=1 --xla_b=2"),)
    assert sourced.digest == with_sourced(cell, launcher).digest
    file.write_text(text.replace("=2", "=3"), encoding="utf-8")
    assert with_sourced(cell, launcher).digest != sourced.digest
    file.unlink()
    assert with_sourced(cell, launcher) == cell


COMMAND = CommandLauncher(argv=("train", "{steps}"))
AG, LEVEL = "xla_gpu_all_gather_combine_threshold_bytes", "xla_gpu_autotune_level"
COUNT = "xla_force_host_platform_device_count"
KEPT = (COUNT, "xla_kept")


def restored(flags: str, how: NoEnv) -> Profile:
    return how.profile(COMMAND, make_cell(deployed={"XLA_FLAGS": flags}))


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
    flags = [str(flag) for flag in how.profile(launcher, make_cell()).flags]
    assert flags == ["--xla_gpu_autotune_level=4", "--xla_mine=0"]
    second.unlink()
    gone = how.profile(launcher, make_cell())
    assert gone.is_baseline
    assert f"{second} cannot be read here" in gone.note
