"""The environment of a trial: env files, deployed flags, dumps, and every byte as it was given."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_xlatune.launchers import Launcher
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.launchers.program import PROFILE_FILE
from pytest_xlatune.model.cell import Protocol
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import (
    Flag,
    Profile,
    append_flags,
    effective_values,
    parse_flags,
    profile,
    restore_default,
)
from pytest_xlatune.model.trial import LaunchSpec
from tests.helpers.examples import tried
from tests.helpers.probes import PROBE, make_cell, make_trial, maxtext, probe, run

# any text that a variable can hold: no NUL, and no half of a surrogate pair
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)
NASTY = (
    "FUSION,CUBLAS",
    "a b  c",
    "it's",
    'say "hi"',
    "^mlx5_0:1",
    "größe→∞",
    "two\nlines\n",
    "$HOME",
    "`id`",
    "$(id)",
    "!!",
    "\\",
    "'\"'\"'",
    "",
    " ",
    "\r\n",
    "%s",
    "~",
    "*",
    "<folder of the attempt>"[:-1],
)


@pytest.mark.parametrize("launcher", [maxtext(), probe()], ids=["maxtext", "command"])
def test_contract(launcher: Launcher) -> None:
    cell = make_cell(launcher=launcher.describe())
    spec = launcher.launch(make_trial(cell), cell)
    assert spec == launcher.launch(make_trial(cell), cell)
    assert LaunchSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert "\n" not in launcher.describe()


def test_descriptions_tell_launchers_apart() -> None:
    launchers: list[Launcher] = [
        maxtext(),
        maxtext(axis_prefix={"PP": "ici"}),
        maxtext(module="maxtext.trainers.pre_train.train"),
        maxtext(env_files=("/a.sh", "/b.sh")),
        maxtext(env_files=("/b.sh", "/a.sh")),
        maxtext(inherit=("PATH",)),
        maxtext(cwd="/repo"),
        probe(),
    ]
    assert len({each.describe() for each in launchers}) == len(launchers)


def test_without_env_files_no_shell_is_involved() -> None:
    cell = make_cell(deployed={"XLA_FLAGS": "--xla_a=1 --xla_b", "NCCL_ALGO": "Ring"})
    of = profile("p", "--xla_a=2 --xla_c='x y'", env={"NCCL_ALGO": "Tree", "X": "$Y"})
    spec = probe().launch(make_trial(cell, of), cell)
    assert spec.argv[0] == sys.executable
    assert spec.files == {}
    assert spec.env == {
        "XLA_FLAGS": '--xla_a=1 --xla_b --xla_a=2 --xla_c="x y"',
        "NCCL_ALGO": "Tree",
        "X": "$Y",
    }


def test_deployed_flags_that_xla_would_not_read_to_the_end_are_refused() -> None:
    cell = make_cell(deployed={"XLA_FLAGS": "--xla_a=1 xla_b=2"})
    with pytest.raises(ConfigError, match=r"the deployed XLA_FLAGS.*silently drops"):
        probe().launch(make_trial(cell), cell)


def test_the_profile_comes_after_every_env_file(tmp_path: Path) -> None:
    first, second = tmp_path / "first env.sh", tmp_path / "second.env.sh"
    first.write_text(
        'export XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }--xla_a=1"\nexport NCCL_ALGO=Ring A=1\n'
    )
    # as real ones do: positional parameters, nounset, and a last command that fails
    second.write_text('set -u\nset -- lost\nXLA_FLAGS="$XLA_FLAGS --xla_a=2"\nexport A=2\nfalse\n')
    cell = make_cell(deployed={"XLA_FLAGS": "--xla_d"}, overrides={"k": "a b"})
    of = profile("p", "--xla_a=3", env={"NCCL_ALGO": "Tree", "NEW": "n"})
    launcher = probe(env_files=(str(first), str(second)))
    env, argv, cwd = run(launcher.launch(make_trial(cell, of), cell), tmp_path)
    assert env["XLA_FLAGS"] == "--xla_d --xla_a=1 --xla_a=2 --xla_a=3"
    assert (env["NCCL_ALGO"], env["A"], env["NEW"]) == ("Tree", "2", "n")
    assert argv == ["k=a b"]
    assert Path(cwd) == tmp_path
    assert not [name for name in env if name.startswith("xlatune")]


def test_restore_default_puts_deployed_flags_back_from_the_last_place(tmp_path: Path) -> None:
    env_file = tmp_path / "x.env.sh"
    env_file.write_text('export XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }--xla_b=9"\n')
    defaults = {"xla_a": "0", "xla_b": "1"}
    flags = restore_default(parse_flags("--xla_a=5 --xla_b=9"), defaults)
    of = Profile(id="baseline-no-env", flags=flags)
    cell = make_cell(deployed={"XLA_FLAGS": "--xla_a=5"})
    for launcher in (probe(), probe(env_files=(str(env_file),))):
        env, _, _ = run(launcher.launch(make_trial(cell, of), cell), tmp_path)
        assert effective_values(parse_flags(env["XLA_FLAGS"])) == defaults


@pytest.mark.parametrize("text", [None, "export A=1\nif then\n"], ids=["missing", "no shell text"])
def test_an_env_file_that_cannot_be_read_stops_the_trial(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "it's.env.sh"
    if text is not None:
        path.write_text(text)
    cell = make_cell()
    spec = probe(env_files=(str(path),)).launch(make_trial(cell), cell)
    (tmp_path / PROFILE_FILE).write_text(spec.files[PROFILE_FILE])
    done = subprocess.run(
        spec.argv, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 78
    assert f"xlatune: this env file cannot be read: {path}" in done.stderr
    assert done.stdout == ""


def test_a_variable_that_bash_will_not_set_stops_the_trial(tmp_path: Path) -> None:
    env_file = tmp_path / "x.env.sh"
    env_file.write_text("readonly NCCL_ALGO=Ring\n")
    cell = make_cell()
    trial = make_trial(cell, profile("p", env={"NCCL_ALGO": "Tree"}))
    spec = probe(env_files=(str(env_file),)).launch(trial, cell)
    (tmp_path / PROFILE_FILE).write_text(spec.files[PROFILE_FILE])
    done = subprocess.run(spec.argv, cwd=tmp_path, capture_output=True, timeout=240, check=False)
    assert done.returncode != 0
    assert done.stdout == b""


def test_another_directory_leaves_the_outputs_in_the_folder(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "it's a folder & more", tmp_path / "repo"
    folder.mkdir()
    elsewhere.mkdir()
    argv = (sys.executable, "-c", PROBE, "{metrics_file}", "--out={folder}")
    launcher = CommandLauncher(argv=argv, cwd=str(elsewhere))
    cell = make_cell()
    spec = launcher.launch(make_trial(cell), cell)
    _, found, cwd = run(spec, folder)
    assert found == [f"{folder}/metrics.jsonl", f"--out={folder}"]
    assert Path(cwd) == elsewhere
    assert spec.metrics_file == "metrics.jsonl"


DUMP = {"xla_dump_hlo_as_text": "true", "xla_dump_hlo_module_re": "^(jit|pmap)_"}


def test_an_evidence_trial_dumps_and_keeps_no_compile_cache() -> None:
    cell = make_cell(deployed={"XLA_FLAGS": "--xla_a=1"}, overrides={"jax_cache_dir": "/cache"})
    spec = maxtext().launch(make_trial(cell, dump=True), cell)
    flags = effective_values(parse_flags(spec.env["XLA_FLAGS"]))
    assert flags == {"xla_a": "1", "xla_dump_to": "xla_dump"} | DUMP
    assert spec.env["JAX_ENABLE_COMPILATION_CACHE"] == "false"
    assert "jax_cache_dir=" in spec.argv
    plain = maxtext().launch(make_trial(cell), cell)
    assert "jax_cache_dir=/cache" in plain.argv
    assert "JAX_ENABLE_COMPILATION_CACHE" not in plain.env


KEPT = Protocol(autotune_cache="/shared/tuned", compile_cache="/shared/programs")


def test_a_trial_keeps_its_programs_where_the_protocol_says_so_and_an_evidence_trial_does_not() -> (
    None
):
    cell = make_cell(protocol=KEPT)
    trial = msgspec.structs.replace(make_trial(cell), protocol=KEPT)
    spec = maxtext().launch(trial, cell)
    folder = f"/shared/programs/{cell.digest}"
    assert spec.env["JAX_COMPILATION_CACHE_DIR"] == folder
    assert f"jax_cache_dir={folder}" in spec.argv, "MaxText's key stands above the variable"
    assert spec.folders == (f"/shared/tuned/{cell.digest}", folder), "made before the start"
    own = msgspec.structs.replace(
        trial, profile=profile("own", env={"JAX_COMPILATION_CACHE_DIR": "/x"})
    )
    assert maxtext().launch(own, cell).env["JAX_COMPILATION_CACHE_DIR"] == "/x"
    evidence = msgspec.structs.replace(trial, protocol=msgspec.structs.replace(KEPT, dump=True))
    spec = maxtext().launch(evidence, cell)
    assert "JAX_COMPILATION_CACHE_DIR" not in spec.env
    assert spec.env["JAX_ENABLE_COMPILATION_CACHE"] == "false"
    assert "jax_cache_dir=" in spec.argv
    assert spec.folders == (f"/shared/tuned/{cell.digest}",)


def test_jax_leaves_a_pinned_folder_of_kernels_alone() -> None:
    pinned = Protocol(autotune_cache="/shared/tuned")
    cell = make_cell(protocol=pinned)
    env = maxtext().launch(msgspec.structs.replace(make_trial(cell), protocol=pinned), cell).env
    assert env["JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES"] == "none"
    plain = make_cell()
    assert not [each for each in maxtext().launch(make_trial(plain), plain).env if "CACHE" in each]


@given(
    values=st.lists(TEXT | st.sampled_from(NASTY), min_size=1, max_size=12),
    flag_values=st.lists(TEXT | st.sampled_from(NASTY), max_size=8),
    deployed=st.sampled_from(["", "--xla_d=1", "--xla_d='a b'  --xla_e"]),
)
@settings(deadline=None, max_examples=tried(30))
def test_bash_leaves_every_byte_alone(
    tmp_path_factory: pytest.TempPathFactory,
    values: list[str],
    flag_values: list[str],
    deployed: str,
) -> None:
    folder = tmp_path_factory.mktemp("attempt")
    env_file = folder / "deployed.env.sh"
    env_file.write_text("export FROM_FILE=1\n")
    of = Profile(
        id="p",
        flags=tuple(Flag(name=f"xla_{at}", value=value) for at, value in enumerate(flag_values)),
        env={f"V{at}": value for at, value in enumerate(values)},
        overrides={f"k{at}": value for at, value in enumerate(values)},
    )
    cell = make_cell(deployed={"XLA_FLAGS": deployed} if deployed else {})
    trial = make_trial(cell, of)
    direct = run(probe().launch(trial, cell), folder)
    sourced = run(probe(env_files=(str(env_file),)).launch(trial, cell), folder)
    arguments = [f"k{at}={value}" for at, value in enumerate(values)]
    for env, argv, _ in (direct, sourced):
        assert argv == arguments
        assert {name: env[name] for name in of.env} == of.env
        assert env.get("XLA_FLAGS", "") == append_flags(deployed, of.flags)
