"""Launchers: exact command lines, and an environment that bash itself leaves byte for byte."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_xlatune.cells import Cell, LaunchSpec, Parallelism, Protocol, Stage, Trial
from pytest_xlatune.errors import ConfigError
from pytest_xlatune.launchers import Launcher
from pytest_xlatune.launchers.command import PLACEHOLDERS, CommandLauncher
from pytest_xlatune.launchers.maxtext import MaxTextLauncher
from pytest_xlatune.launchers.program import PROFILE_FILE
from pytest_xlatune.profiles import (
    BASELINE,
    Flag,
    Profile,
    append_flags,
    effective_values,
    parse_flags,
    profile,
    restore_default,
)

# prints its environment and its arguments, exactly
PROBE = "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:], os.getcwd()]))"

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


def make_cell(parallelism: str = "FSDP=8", **changes: Any) -> Cell:
    values: dict[str, Any] = {"model_tag": "tiny-1b", "per_device_batch_size": 7.0}
    return Cell(parallelism=Parallelism.parse(parallelism), **values | changes)


def make_trial(
    cell: Cell, of: Profile = BASELINE, *, stage: Stage = Stage.SCREEN, **protocol: Any
) -> Trial:
    return Trial(
        cell_digest=cell.digest,
        profile=of,
        protocol=Protocol(**protocol),
        study="tuning",
        stage=stage,
    )


def maxtext(**changes: Any) -> MaxTextLauncher:
    return MaxTextLauncher(**{"config": "/cfg/tiny.gpu.yml"} | changes)


def run(spec: LaunchSpec, folder: Path) -> tuple[dict[str, str], list[str], str]:
    """Do what the payload does with a spec, and return what the program saw."""
    for name, text in spec.files.items():
        (folder / name).write_text(text, encoding="utf-8", newline="")
    inherited = {name: os.environ[name] for name in spec.inherit if name in os.environ}
    done = subprocess.run(
        spec.argv,
        env=inherited | spec.env,
        cwd=spec.cwd or folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    env, argv, cwd = json.loads(done.stdout)
    return env, argv, cwd


def probe(**changes: Any) -> CommandLauncher:
    return CommandLauncher(**{"argv": (sys.executable, "-c", PROBE, "{overrides}")} | changes)


# --- maxtext ---------------------------------------------------------------------------------


def keys_of(spec: LaunchSpec) -> list[str]:
    return [argument for argument in spec.argv if "=" in argument]


def test_the_whole_maxtext_command() -> None:
    cell = make_cell("PP=2,FSDP=4", max_target_length=1048576, overrides={"remat_policy": "full"})
    trial = make_trial(cell, profile("mb-16", overrides={"num_pipeline_microbatches": "16"}))
    spec = maxtext(python="/mt/bin/python").launch(trial, cell)
    assert spec.argv == (
        *("/mt/bin/python", "-m", "MaxText.train", "/cfg/tiny.gpu.yml"),
        f"run_name={trial.id}",
        "base_output_directory=output",
        "per_device_batch_size=7",
        "max_target_length=1048576",
        "dcn_pipeline_parallelism=2",
        "dcn_fsdp_parallelism=4",
        "remat_policy=full",
        "num_pipeline_microbatches=16",
        "steps=15",
        "dataset_type=synthetic",
        "metrics_file=metrics.jsonl",
    )
    assert (spec.metrics_file, spec.last_step, spec.cwd) == ("metrics.jsonl", 14, "")


@pytest.mark.parametrize(
    ("parallelism", "prefix", "expected"),
    [
        ("FSDP=8", {}, {"dcn_fsdp": 8, "dcn_pipeline": 1}),
        ("PP=8", {}, {"dcn_pipeline": 8, "dcn_fsdp": 1}),
        ("TP=8", {}, {"ici_tensor": 8}),
        ("DP=8", {}, {"dcn_data": 8, "dcn_fsdp": 1, "dcn_pipeline": 1}),
        ("PP=2,FSDP=4", {}, {"dcn_pipeline": 2, "dcn_fsdp": 4}),
        ("FSDP=4,TP=2", {}, {"dcn_fsdp": 4, "ici_tensor": 2, "dcn_pipeline": 1}),
        ("EP=4", {}, {"ici_expert": 4}),
        ("PP=2,FSDP=2", {"PP": "ici", "FSDP": "ici"}, {"ici_pipeline": 2, "ici_fsdp": 2}),
        ("FSDP=4", {"PP": "ici", "FSDP": "ici"}, {"ici_fsdp": 4, "ici_pipeline": 1}),
    ],
    ids=[
        "fsdp takes the pipeline of the model config back",
        "pipeline takes the fsdp of the model config back",
        "tensor lies inside a slice",
        "data takes both back",
        "a hybrid names both and takes nothing back",
        "a hybrid over both networks",
        "expert lies inside a slice",
        "the prefix is a setting",
        "the prefix holds for what is taken back too",
    ],
)
def test_parallelism_becomes_overrides(
    parallelism: str, prefix: Mapping[str, str], expected: Mapping[str, int]
) -> None:
    cell = make_cell(parallelism)
    spec = maxtext(axis_prefix=prefix).launch(make_trial(cell), cell)
    found = {each for each in keys_of(spec) if "_parallelism=" in each}
    assert found == {f"{axis}_parallelism={degree}" for axis, degree in expected.items()}


@pytest.mark.parametrize(
    ("module", "head"),
    [
        ("MaxText.train", ("-m", "MaxText.train")),
        ("maxtext.trainers.pre_train.train", ("-m", "maxtext.trainers.pre_train.train")),
        ("/repo/train.py", ("/repo/train.py",)),
    ],
    ids=["a module of MaxText 0.1", "a module of MaxText 0.2", "a script"],
)
def test_program_in_front_of_the_keys(module: str, head: tuple[str, ...]) -> None:
    cell = make_cell()
    argv = maxtext(module=module).launch(make_trial(cell), cell).argv
    assert argv[: len(head) + 2] == ("python3", *head, "/cfg/tiny.gpu.yml")


def test_last_override_wins_and_each_key_appears_once() -> None:
    cell = make_cell(overrides={"remat_policy": "full", "dcn_pipeline_parallelism": "-1"})
    trial = make_trial(cell, profile("remat", overrides={"remat_policy": "minimal"}))
    keys = keys_of(maxtext().launch(trial, cell))
    assert "remat_policy=minimal" in keys
    assert "dcn_pipeline_parallelism=-1" in keys
    names = [each.split("=")[0] for each in keys]
    assert len(names) == len(set(names))


def test_profiler_keys_appear_only_when_the_protocol_profiles() -> None:
    cell = make_cell()
    plain = maxtext().launch(make_trial(cell), cell)
    assert not [each for each in plain.argv if "profiler" in each]
    trial = make_trial(cell, profiler="xplane", skip_first_steps=9, profiler_steps=2)
    profiled = keys_of(maxtext().launch(trial, cell))
    assert {"profiler=xplane", "skip_first_n_steps_for_profiler=9", "profiler_steps=2"} <= {
        *profiled
    }


def test_evaluations_come_from_the_protocol() -> None:
    cell = make_cell()
    assert "eval_interval=5" in keys_of(maxtext().launch(make_trial(cell, eval_interval=5), cell))


def test_several_processes_would_share_one_metrics_file_so_there_is_none() -> None:
    cell = make_cell(nodelist=("n1", "n2"))
    spec = maxtext().launch(make_trial(cell), cell)
    assert spec.metrics_file == ""
    assert not [each for each in spec.argv if each.startswith("metrics_file")]


@pytest.mark.parametrize(
    ("of_cell", "of_profile", "message"),
    [
        ({"steps": "99"}, {}, r"cell 'tiny-1b .*steps=99.*Protocol\(steps"),
        ({}, {"dataset_type": "grain"}, r"profile 'p' overrides dataset_type=grain"),
        ({}, {"profiler": ""}, r"profiler=.*Protocol\(profiler"),
        ({}, {"per_device_batch_size": "9"}, r"Cell\(per_device_batch_size"),
        ({}, {"dcn_fsdp_parallelism": "4"}, "the cell's parallelism"),
    ],
    ids=[
        "a cell cannot change the steps",
        "a profile cannot bring real data",
        "a profile cannot empty the profiler",
        "a profile cannot change the batch",
        "a profile cannot change the parallelism",
    ],
)
def test_overrides_that_change_the_measurement_are_refused(
    of_cell: dict[str, str], of_profile: dict[str, str], message: str
) -> None:
    cell = make_cell(overrides=of_cell)
    trial = make_trial(cell, profile("p", overrides=of_profile))
    with pytest.raises(ConfigError, match=message):
        maxtext().launch(trial, cell)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config": "tiny.yml"}, "config 'tiny.yml' is relative"),
        ({"module": "train.py"}, "script 'train.py' is relative"),
        ({"python": "venv/bin/python"}, "interpreter 'venv/bin/python' is relative"),
        ({"cwd": "repo"}, "cwd 'repo' is relative"),
        ({"env_files": ("x.env.sh",)}, "env file 'x.env.sh' is relative"),
        ({"axis_prefix": {"PP": "lan"}}, "unknown prefix 'lan'"),
        ({"axis_prefix": {"QQ": "ici"}}, "unknown axis 'QQ'"),
        ({"inherit": ("PATH", "XLA_FLAGS")}, "`inherit` lets XLA_FLAGS through"),
        ({"inherit": ("XLA_*",)}, "`inherit` lets XLA_FLAGS through"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_misuse_is_refused_at_construction(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        maxtext(**changes)


def test_relative_paths_are_fine_in_a_given_directory() -> None:
    launcher = maxtext(config="configs/x.yml", module="train.py", cwd="/repo")
    assert launcher.describe() == "maxtext python3 train.py configs/x.yml cwd=/repo"


# --- command ---------------------------------------------------------------------------------


def test_every_placeholder_is_filled_in() -> None:
    cell = make_cell("PP=2,TP=4", config_tag="sparse", max_target_length=128)
    trial = make_trial(cell, profile("ag-1g"))
    launcher = CommandLauncher(argv=("t", *(f"{name}={{{name}}}" for name in PLACEHOLDERS)))
    spec = launcher.launch(trial, cell)
    assert dict(each.split("=", 1) for each in spec.argv[1:]) == {
        "model_tag": "tiny-1b",
        "config_tag": "sparse",
        "parallelism": "PP=2,TP=4",
        "per_device_batch_size": "7",
        "max_target_length": "128",
        "steps": "15",
        "dataset_type": "synthetic",
        "profile": "ag-1g",
        "trial": trial.id,
        "folder": ".",
        "metrics_file": "metrics.jsonl",
    }
    assert spec.metrics_file == "metrics.jsonl"


def test_overrides_become_arguments_and_the_profile_has_the_last_word() -> None:
    cell = make_cell(overrides={"a": "1", "b": "x y"})
    trial = make_trial(cell, profile("p", overrides={"a": "2", "c": "$HOME"}))
    spec = CommandLauncher(argv=("t", "{overrides}", "end")).launch(trial, cell)
    assert spec.argv == ("t", "a=2", "b=x y", "c=$HOME", "end")
    assert spec.metrics_file == ""


def test_doubled_braces_are_braces() -> None:
    cell = make_cell()
    spec = CommandLauncher(argv=("awk", "{{print $1}}", "{{steps}}")).launch(make_trial(cell), cell)
    assert spec.argv == ("awk", "{print $1}", "{steps}")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("t", "{step}"), r"unknown placeholder 'step'.*did you mean 'steps'.*overrides"),
        (("t", "{}"), "unknown placeholder ''"),
        (("t", "{trial.id}"), "unknown placeholder 'trial.id'"),
        (("t", "{steps:>9}"), "unknown placeholder 'steps:>9'"),
        (("t", "{steps!r}"), "unknown placeholder 'steps!r'"),
        (("t", "a}"), "write {{ and }}"),
        (("t", "a{"), "write {{ and }}"),
        (("t", "x{overrides}"), "must be an argument of its own"),
        ((), "argv is empty"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_bad_command_is_refused_at_construction(argv: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CommandLauncher(argv=argv)


def test_a_placeholder_without_a_value_names_the_cells_field() -> None:
    cell = make_cell(max_target_length=None)
    launcher = CommandLauncher(argv=("t", "{max_target_length}"))
    with pytest.raises(ConfigError, match=r"Cell\(max_target_length=\.\.\.\)"):
        launcher.launch(make_trial(cell), cell)


def test_overrides_are_never_lost_in_silence() -> None:
    cell = make_cell()
    trial = make_trial(cell, profile("p", overrides={"a": "2"}))
    with pytest.raises(ConfigError, match="override 'a' would be lost"):
        CommandLauncher(argv=("t",)).launch(trial, cell)


# --- the environment -------------------------------------------------------------------------


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
        "XLA_FLAGS": "--xla_a=1 --xla_b --xla_a=2 --xla_c='x y'",
        "NCCL_ALGO": "Tree",
        "X": "$Y",
    }


def test_the_baseline_is_the_deployed_environment_as_it_stands() -> None:
    cell = make_cell(deployed={"XLA_FLAGS": "  --xla_a=1  "})
    assert probe().launch(make_trial(cell), cell).env == {"XLA_FLAGS": "  --xla_a=1  "}
    bare = make_cell()
    assert probe().launch(make_trial(bare), bare).env == {}


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
        spec.argv, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
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
    done = subprocess.run(spec.argv, cwd=tmp_path, capture_output=True, timeout=60, check=False)
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


DUMP = {"xla_dump_hlo_as_text": "true", "xla_dump_hlo_module_re": "^jit_train_step$"}


def test_an_evidence_trial_dumps_and_keeps_no_compile_cache() -> None:
    cell = make_cell(deployed={"XLA_FLAGS": "--xla_a=1"}, overrides={"jax_cache_dir": "/cache"})
    spec = maxtext().launch(make_trial(cell, stage=Stage.EVIDENCE), cell)
    flags = effective_values(parse_flags(spec.env["XLA_FLAGS"]))
    assert flags == {"xla_a": "1", "xla_dump_to": "xla_dump"} | DUMP
    assert spec.env["JAX_ENABLE_COMPILATION_CACHE"] == "false"
    assert "jax_cache_dir=" in spec.argv
    plain = maxtext().launch(make_trial(cell), cell)
    assert "jax_cache_dir=/cache" in plain.argv
    assert "JAX_ENABLE_COMPILATION_CACHE" not in plain.env


def test_an_evidence_trial_elsewhere_dumps_into_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "with blank"
    folder.mkdir()
    cell = make_cell()
    trial = make_trial(cell, profile("p", "--xla_a=2"), stage=Stage.EVIDENCE)
    env, _, _ = run(probe(cwd=str(tmp_path)).launch(trial, cell), folder)
    flags = effective_values(parse_flags(env["XLA_FLAGS"]))
    assert flags == {"xla_a": "2", "xla_dump_to": f"{folder}/xla_dump"} | DUMP
    assert env["JAX_ENABLE_COMPILATION_CACHE"] == "false"


# --- bytes -----------------------------------------------------------------------------------


@given(
    values=st.lists(TEXT | st.sampled_from(NASTY), min_size=1, max_size=6),
    flag_values=st.lists(TEXT | st.sampled_from(NASTY), max_size=4),
    deployed=st.sampled_from(["", "--xla_d=1", "--xla_d='a b'  --xla_e"]),
)
@settings(deadline=None, max_examples=60)
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


@pytest.mark.parametrize("value", NASTY, ids=ascii)
def test_nasty_values_survive_bash(value: str, tmp_path: Path) -> None:
    env_file = tmp_path / "x.env.sh"
    env_file.write_text("")
    cell = make_cell()
    of = Profile(id="p", flags=(Flag(name="xla_a", value=value),), env={"V": value})
    launcher = probe(env_files=(str(env_file),))
    env, _, _ = run(launcher.launch(make_trial(cell, of), cell), tmp_path)
    assert env["V"] == value
    assert parse_flags(env["XLA_FLAGS"]) == of.flags
