"""The command and MaxText launchers: words, environment and files, every byte as it was given."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_xlatune.launchers import Launcher
from pytest_xlatune.launchers.checkout import CheckoutLauncher
from pytest_xlatune.launchers.command import PROFILE_FILE, CommandLauncher
from pytest_xlatune.launchers.container import ContainerLauncher
from pytest_xlatune.model.cell import Protocol
from pytest_xlatune.model.profile import (
    Flag,
    Profile,
    append_flags,
    effective_values,
    parse_flags,
    profile,
)
from pytest_xlatune.model.trial import LaunchSpec
from tests.helpers.examples import tried
from tests.helpers.probes import PROBE, make_cell, make_trial, maxtext, probe, run


def test_descriptions_tell_launchers_apart() -> None:
    launchers: list[Launcher] = [
        maxtext(),
        maxtext(axis_prefix={"PP": "ici"}),
        maxtext(env_files=("/a.sh", "/b.sh")),
        maxtext(env_files=("/b.sh", "/a.sh")),
        maxtext(inherit=("PATH",)),
        probe(),
        ContainerLauncher(inner=probe()),
        ContainerLauncher(inner=probe(), runtime="podman"),
    ]
    assert len({launcher.describe() for launcher in launchers}) == len(launchers)


def keys_of(spec: LaunchSpec) -> dict[str, str]:
    pairs = [word.split("=", 1) for word in spec.argv if "=" in word]
    keys = dict(pairs)
    assert len(keys) == len(pairs), "each key appears once"
    return keys


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
    script = maxtext(module="/repo/train.py").launch(trial, cell)
    assert script.argv[:3] == ("python3", "/repo/train.py", "/cfg/tiny.gpu.yml")


ICI = {"PP": "ici", "FSDP": "ici"}


@pytest.mark.parametrize(
    ("parallelism", "prefix", "expected"),
    [
        pytest.param("FSDP=8", {}, {"dcn_fsdp": 8, "dcn_pipeline": 1}, id="takes PP back"),
        pytest.param("TP=8", {}, {"ici_tensor": 8}, id="tensor lies inside a slice"),
        pytest.param("DP=8", {}, {"dcn_data": 8, "dcn_fsdp": 1, "dcn_pipeline": 1}, id="both back"),
        pytest.param(
            "FSDP=4,TP=2", {}, {"dcn_fsdp": 4, "ici_tensor": 2, "dcn_pipeline": 1},
            id="a hybrid over both networks",
        ),
        pytest.param(
            "FSDP=4", ICI, {"ici_fsdp": 4, "ici_pipeline": 1}, id="and holds for what is taken back"
        ),
    ],
)  # fmt: skip
def test_parallelism_becomes_overrides(
    parallelism: str, prefix: Mapping[str, str], expected: Mapping[str, int]
) -> None:
    cell = make_cell(parallelism)
    keys = keys_of(maxtext(axis_prefix=prefix).launch(make_trial(cell), cell))
    axes = {name: degree for name, degree in keys.items() if name.endswith("_parallelism")}
    assert axes == {f"{axis}_parallelism": str(degree) for axis, degree in expected.items()}


def test_the_protocol_decides_the_keys_of_maxtext() -> None:
    cell = make_cell(overrides={"remat_policy": "full", "dcn_pipeline_parallelism": "-1"})
    of = profile("remat", overrides={"remat_policy": "minimal"})
    plain = keys_of(maxtext().launch(make_trial(cell, of), cell))
    assert (plain["remat_policy"], plain["dcn_pipeline_parallelism"]) == ("minimal", "-1")
    assert not [key for key in plain if "profiler" in key]
    trial = make_trial(cell, profiler="xplane", skip_first_steps=9, profiler_steps=2)
    profiled = keys_of(maxtext().launch(trial, cell))
    assert profiled["profiler"] == "xplane"
    assert profiled["skip_first_n_steps_for_profiler"] == "9"
    assert profiled["profiler_steps"] == "2"
    evaluated = maxtext().launch(make_trial(cell, eval_interval=5), cell)
    assert keys_of(evaluated)["eval_interval"] == "5"
    # several processes would share one metrics file, so there is none
    two = maxtext().launch(make_trial(cell), make_cell(nodelist=("n1", "n2")))
    assert (two.metrics_file, "metrics_file" in keys_of(two)) == ("", False)


# --- the environment ------------------------------------------------------------------------------


def test_without_env_files_no_shell_is_involved() -> None:
    cell = make_cell(deployed={"XLA_FLAGS": "--xla_a=1 --xla_b", "NCCL_ALGO": "Ring"})
    of = profile("p", "--xla_a=2 --xla_c='x y'", env={"NCCL_ALGO": "Tree", "X": "$Y"})
    spec = probe().launch(make_trial(cell, of), cell)
    assert (spec.argv[0], spec.files) == (sys.executable, {})
    flags = '--xla_a=1 --xla_b --xla_a=2 --xla_c="x y"'
    assert spec.env == {"XLA_FLAGS": flags, "NCCL_ALGO": "Tree", "X": "$Y"}


def test_the_profile_comes_after_every_env_file(tmp_path: Path) -> None:
    first, second = tmp_path / "first env.sh", tmp_path / "second.env.sh"
    appended = 'export XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }--xla_a=1"\n'
    first.write_text(f"{appended}export NCCL_ALGO=Ring A=1\n")
    # as real ones do: positional parameters, nounset, and a last command that fails
    second.write_text('set -u\nset -- lost\nXLA_FLAGS="$XLA_FLAGS --xla_a=2"\nexport A=2\nfalse\n')
    cell = make_cell(deployed={"XLA_FLAGS": "--xla_d"}, overrides={"k": "a b"})
    of = profile("p", "--xla_a=3", env={"NCCL_ALGO": "Tree", "NEW": "n"})
    launcher = probe(env_files=(str(first), str(second)))
    env, argv, cwd = run(launcher.launch(make_trial(cell, of), cell), tmp_path)
    assert env["XLA_FLAGS"] == "--xla_d --xla_a=1 --xla_a=2 --xla_a=3"
    assert (env["NCCL_ALGO"], env["A"], env["NEW"]) == ("Tree", "2", "n")
    assert (argv, Path(cwd)) == (["k=a b"], tmp_path)
    assert not [name for name in env if name.startswith("xlatune")]


def test_an_env_file_that_cannot_be_sourced_stops_the_trial(tmp_path: Path) -> None:
    path, cell = tmp_path / "it's.env.sh", make_cell()
    trial = make_trial(cell, profile("p", env={"NCCL_ALGO": "Tree"}))
    spec = probe(env_files=(str(path),)).launch(trial, cell)
    (tmp_path / PROFILE_FILE).write_text(spec.files[PROFILE_FILE])
    run = ["env", "-C", str(tmp_path), *spec.argv]
    done = subprocess.run(run, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout) == (78, "")
    assert f"xlatune: this env file cannot be read: {path}" in done.stderr
    path.write_text("readonly NCCL_ALGO=Ring\n")
    done = subprocess.run(run, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout) == (1, "")


def test_another_directory_leaves_the_outputs_in_the_folder(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "it's a folder & more", tmp_path / "repo"
    folder.mkdir()
    elsewhere.mkdir()
    argv = (sys.executable, "-c", PROBE, "{metrics_file}", "--out={folder}")
    cell = make_cell()
    spec = CommandLauncher(argv=argv, cwd=str(elsewhere)).launch(make_trial(cell), cell)
    _, words, cwd = run(spec, folder)
    assert words == [f"{folder}/metrics.jsonl", f"--out={folder}"]
    assert (Path(cwd), spec.metrics_file) == (elsewhere, "metrics.jsonl")


KEPT = Protocol(autotune_cache="/shared/tuned")


def test_an_evidence_trial_compiles_anew_and_kernels_are_pinned_where_the_protocol_says_so() -> (
    None
):
    deployed, cache = {"XLA_FLAGS": "--xla_a=1"}, {"jax_cache_dir": "/cache"}
    plain = make_cell(deployed=deployed, overrides=cache)
    spec = maxtext().launch(make_trial(plain, dump=True), plain)
    assert effective_values(parse_flags(spec.env["XLA_FLAGS"])) == {
        "xla_a": "1",
        "xla_dump_to": "xla_dump",
        "xla_dump_hlo_as_text": "true",
        "xla_dump_hlo_module_re": "^(jit|pmap)_",
    }
    assert spec.env["JAX_ENABLE_COMPILATION_CACHE"] == "false"
    assert keys_of(spec)["jax_cache_dir"] == ""

    cell = make_cell(protocol=KEPT)
    trial = msgspec.structs.replace(make_trial(cell), protocol=KEPT)
    spec = maxtext().launch(trial, cell)
    assert spec.env["JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES"] == "none", "kernels are pinned"
    assert spec.folders == (f"/shared/tuned/{cell.digest}",), "made before the start"


# any text that a variable can hold: no NUL, and no half of a surrogate pair
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)
NASTY = (
    *("FUSION,CUBLAS", "a b  c", "it's", 'say "hi"', "^mlx5_0:1", "größe→∞", "two\nlines\n"),
    *("$HOME", "`id`", "$(id)", "!!", "\\", "'\"'\"'", "", " ", "\r\n", "%s", "~", "*"),
    "<folder of the attempt",
)


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
    for launcher in (probe(), probe(env_files=(str(env_file),))):
        env, argv, _ = run(launcher.launch(trial, cell), folder)
        assert argv == [f"k{at}={value}" for at, value in enumerate(values)]
        assert {name: env[name] for name in of.env} == of.env
        assert env.get("XLA_FLAGS", "") == append_flags(deployed, of.flags)


# --- what of a command is the commit's, and what stays where it is --------------------------------

CODE = "3f2a" + 36 * "0"
TRAINER = "/shared/trainer"
CHECKOUT = f"{TRAINER}/.git/xlatune/{CODE}"
OF_COMMIT = make_cell(
    code=CODE, deployed={"PYTHONPATH": f"{TRAINER}/src:/shared/trainer2:/mnt/shared/trainer"}
)
INNER = CommandLauncher(
    argv=(f"{TRAINER}/.venv/bin/python", f"{TRAINER}/train.py", f"--data={TRAINER}/data"),
    cwd=TRAINER,
    env_files=(f"{TRAINER}/env.sh",),
)
OF_COMMITS = CheckoutLauncher(repository=f"{TRAINER}/", inner=INNER)


def test_paths_of_the_repository_become_the_commits() -> None:
    spec = OF_COMMITS.launch(make_trial(OF_COMMIT), OF_COMMIT)
    data = f"--data={CHECKOUT}/data"
    assert spec.argv[-3:] == (f"{TRAINER}/.venv/bin/python", f"{CHECKOUT}/train.py", data)
    assert f"cd -- {CHECKOUT} " in spec.argv[4]
    assert f". {CHECKOUT}/env.sh" in spec.argv[4]
    assert spec.env["PYTHONPATH"] == f"{CHECKOUT}/src:/shared/trainer2:/mnt/shared/trainer"
    assert f"{CHECKOUT}/train.py" in OF_COMMITS.files(OF_COMMIT)
    assert OF_COMMITS.env_files_of(OF_COMMIT) == (f"{CHECKOUT}/env.sh",)


def test_clones_at_other_paths_are_one_cell_and_commits_are_not() -> None:
    elsewhere = dataclasses.replace(
        INNER,
        argv=tuple(word.replace("/shared/", "/builds/7/") for word in INNER.argv),
        cwd="/builds/7/trainer",
        env_files=("/builds/7/trainer/env.sh",),
    )
    clone = CheckoutLauncher(repository="/builds/7/trainer", inner=elsewhere)
    assert clone.describe() == OF_COMMITS.describe()
    assert msgspec.structs.replace(OF_COMMIT, code="4" + CODE[1:]).digest != OF_COMMIT.digest
