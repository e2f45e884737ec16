"""Launchers of programs and containers: words, environment and files, to the byte."""

from __future__ import annotations

import functools
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_xlatune.executors import payload
from pytest_xlatune.executors.folder import with_worker, write_spec
from pytest_xlatune.launchers import Launcher, Rotates
from pytest_xlatune.launchers.checkout import CheckoutLauncher, LauncherByCell, with_python
from pytest_xlatune.launchers.command import (
    FOLDER,
    PROFILE_FILE,
    SITE_FILE,
    SPEC_FILE,
    VARIABLE,
    WORKER_FILE,
    CommandLauncher,
)
from pytest_xlatune.launchers.container import ENTRY_FILE, ENV_FILE, HOST_FILE, ContainerLauncher
from pytest_xlatune.model.cell import Protocol
from pytest_xlatune.model.channels import DUMP_FOLDER
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import (
    BASELINE,
    OPTIONS_FOLDER,
    Flag,
    Profile,
    append_flags,
    effective_values,
    format_flags,
    parse_flags,
    profile,
)
from pytest_xlatune.model.trial import LaunchSpec
from pytest_xlatune.prepare.preflight import Target
from pytest_xlatune.sweep.settings import check_folders
from pytest_xlatune.workers import maxtext_slurm_job
from tests.helpers import golden
from tests.helpers.payloads import PATH
from tests.helpers.probes import PROBE, make_cell, make_trial, maxtext, maxtext_slurm, probe, run
from tests.helpers.scripted import rotation_trial, spec_of
from tests.helpers.second_looks import tried


def test_descriptions_tell_launchers_apart() -> None:
    launchers: list[Launcher] = [
        *(maxtext(env_files=files) for files in ((), ("/a.sh", "/b.sh"), ("/b.sh", "/a.sh"))),
        *(maxtext(axis_prefix={"PP": "ici"}), maxtext(inherit=("PATH",)), probe()),
        *(ContainerLauncher(inner=probe(), runtime=name) for name in ("docker", "podman")),
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
    assert maxtext(python="/mt/bin/python").files(cell) == ("/cfg/tiny.gpu.yml", "/mt/bin/python")
    script = maxtext(module="/repo/train.py")
    assert script.launch(trial, cell).argv[1:3] == ("/repo/train.py", "/cfg/tiny.gpu.yml")
    assert script.files(cell) == ("/cfg/tiny.gpu.yml", "/repo/train.py")


def test_parallelism_becomes_overrides() -> None:
    ici = {"PP": "ici", "FSDP": "ici"}
    for parallelism, prefix, expected in (
        ("FSDP=8", {}, {"dcn_fsdp": "8", "dcn_pipeline": "1"}),
        ("DP=8", {}, {"dcn_data": "8", "dcn_fsdp": "1", "dcn_pipeline": "1"}),
        ("TP=8", {}, {"ici_tensor": "8"}),
        ("FSDP=4", ici, {"ici_fsdp": "4", "ici_pipeline": "1"}),
    ):
        cell = make_cell(parallelism)
        keys = keys_of(maxtext(axis_prefix=prefix).launch(make_trial(cell), cell))
        axes = {key: keys[key] for key in keys if key.endswith("_parallelism")}
        assert axes == {f"{axis}_parallelism": degree for axis, degree in expected.items()}


def test_the_protocol_decides_the_keys_of_maxtext() -> None:
    cell = make_cell(overrides={"remat_policy": "full", "dcn_pipeline_parallelism": "-1"})
    of = profile("remat", overrides={"remat_policy": "minimal"})
    plain = keys_of(maxtext().launch(make_trial(cell, of), cell))
    assert (plain["remat_policy"], plain["dcn_pipeline_parallelism"]) == ("minimal", "-1")
    assert not [key for key in plain if "profiler" in key]
    asked: dict[str, Any] = {
        "profiler": "xplane",
        "skip_first_steps": 9,
        "profiler_steps": 2,
        "eval_interval": 5,
    }
    profiled = keys_of(maxtext().launch(make_trial(cell, **asked), cell))
    assert (profiled["profiler"], profiled["eval_interval"]) == ("xplane", "5")
    assert (profiled["skip_first_n_steps_for_profiler"], profiled["profiler_steps"]) == ("9", "2")
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
    for text, code, why in (
        (None, 78, f"xlatune: this env file cannot be read: {path}"),
        ("readonly NCCL_ALGO=Ring\n", 1, "readonly"),
    ):
        if text is not None:
            path.write_text(text)
        done = subprocess.run(
            spec.argv, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
        )
        assert (done.returncode, done.stdout) == (code, "")
        assert why in done.stderr


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


def test_an_evidence_trial_compiles_anew_and_a_protocol_pins_kernels() -> None:
    plain = make_cell(deployed={"XLA_FLAGS": "--xla_a=1"}, overrides={"jax_cache_dir": "/cache"})
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
    spec = maxtext().launch(make_trial(cell, autotune_cache="/shared/tuned"), cell)
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


def of_commits(trainer: str = TRAINER) -> CheckoutLauncher:
    python, script, data = f"{trainer}/.venv/bin/python", f"{trainer}/train.py", f"{trainer}/data"
    inner = CommandLauncher(
        argv=(python, script, f"--data={data}"), cwd=trainer, env_files=(f"{trainer}/env.sh",)
    )
    return CheckoutLauncher(repository=f"{trainer}/", inner=inner)


def test_paths_of_the_repository_become_the_commits() -> None:
    launcher = of_commits()
    spec = launcher.launch(make_trial(OF_COMMIT), OF_COMMIT)
    data = f"--data={CHECKOUT}/data"
    assert spec.argv[-3:] == (f"{TRAINER}/.venv/bin/python", f"{CHECKOUT}/train.py", data)
    assert f"cd -- {CHECKOUT} " in spec.argv[4]
    assert f". {CHECKOUT}/env.sh" in spec.argv[4]
    assert spec.env["PYTHONPATH"] == f"{CHECKOUT}/src:/shared/trainer2:/mnt/shared/trainer"
    assert f"{CHECKOUT}/train.py" in launcher.files(OF_COMMIT)
    assert launcher.env_files_of(OF_COMMIT) == (f"{CHECKOUT}/env.sh",)
    assert launcher.describe() == of_commits("/builds/7/trainer").describe(), "clones are one cell"


# --- containers -----------------------------------------------------------------------------------

GOLDEN = Path(__file__).parents[1] / "data" / "containers"
SHA = "sha256:" + "0123456789abcdef" * 4
NAMED = f"rocm/jax-training:maxtext-v26.4@{SHA}"
SQSH = f"/shared/images/jax.sqsh@{SHA}"
PROFILE = profile("overlap-2", "--xla_a=2 --xla_b=X,Y", env={"NCCL_IB_HCA": "^mlx5_0:1,mlx5_1"})


def container(**changes: Any) -> ContainerLauncher:
    inner = maxtext(
        python="/opt/venv/bin/python",
        config="configs/{model_tag}.gpu.yml",
        cwd="/workspace/maxtext",
        env_files=("/opt/train_env.sh", "/shared/env/{model_tag}.env.sh"),
    )
    values: dict[str, Any] = {"inner": inner, "mounts": ("/shared",)}
    return ContainerLauncher(**values | changes)


SITES: dict[str, tuple[ContainerLauncher, str]] = {
    "docker-nvidia": (container(gpus="nvidia", args=("--shm-size=256g",)), NAMED),
    "docker-amd": (
        container(
            gpus="amd",
            mounts=("/shared", "/scratch/my data:/data:ro"),
            program="sudo -n docker",
            args=("--device=/dev/infiniband", "--ulimit=memlock=-1"),
        ),
        NAMED,
    ),
    "podman-nvidia": (container(runtime="podman", gpus="nvidia"), SHA),
    "pyxis-nvidia": (container(runtime="pyxis", gpus="nvidia"), SQSH),
    "pyxis-amd": (container(runtime="pyxis", gpus="amd", mounts=("/shared:/shared:ro",)), SQSH),
}


def rendered(launcher: ContainerLauncher, image: str) -> str:
    cell = make_cell(
        image=image,
        model_tag="m",
        per_device_batch_size=None,
        deployed={"HF_HOME": "/shared/hf", "XLA_FLAGS": "--xla_deployed=1"},
    )
    spec = launcher.launch(make_trial(cell, PROFILE), cell)
    parts = [
        f"# {launcher.describe()}\n# inherits: {' '.join(spec.inherit)}\n{shlex.join(spec.argv)}\n",
        *(f"\n# ==> {name}\n{text}" for name, text in sorted(spec.files.items())),
        "\n# ==> looked for on every node\n",
        *(f"{each}\n" for each in launcher.files(cell)),
    ]
    return "".join(parts)


@pytest.mark.parametrize("name", SITES)
def test_the_command_is_as_recorded_and_shows_no_value_of_the_environment(name: str) -> None:
    launcher, image = SITES[name]
    golden.check(GOLDEN / f"{name}.txt", rendered(launcher, image))
    assert launcher.interpreter == "", "what is inside is asked inside"
    secret = "hunter2,with a blank"
    cell = make_cell(image=image, deployed={"SOME_TOKEN": secret})
    spec = launcher.launch(make_trial(cell, PROFILE), cell)
    for text in spec.files.values():
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    assert spec.env == {}
    assert "hunter2" not in "".join(spec.argv) + spec.files[HOST_FILE] + spec.files[ENTRY_FILE]
    assert f"export SOME_TOKEN='{secret}'" in spec.files[ENV_FILE]


def test_the_folder_of_autotuning_is_the_mounts() -> None:
    cell = make_cell(image=NAMED, protocol=KEPT)
    trial = make_trial(cell, PROFILE, autotune_cache="/shared/tuned")
    spec = container(mounts=("/data:/shared",)).launch(trial, cell)
    assert spec.folders == (f"/data/tuned/{cell.digest}",), "the payload makes it outside"
    assert f"_cache_dir=/shared/tuned/{cell.digest}" in "".join(spec.files.values())


# --- any sign in a folder, or in the value of a flag ----------------------------------------------

# of a folder, and of the value of a flag
SIGNS = {
    "both quotes": 'it\'s "both"',
    "a backslash before a quote": 'a\\"b \\\\"',
    "a dollar": "$HOME `id` $(id) ${x}",
    "a newline": "two\nlines",
    "blanks": "  a\tb ",
    "what bash puts in place of a match": "& a&b \\&",
    "what would be another flag": "x' --xla_b=2 '",
}
# a work directory with a quote or a backslash is refused
FOLDERS = {name: word for name, word in SIGNS.items() if not {'"', "\\"} & {*word}}
RUN = "import sys; from pytest_xlatune.executors.payload import run; run(*sys.argv[1:])"


def flags_in(line: str) -> dict[str, str]:
    """The flags of a line of the probe."""
    return effective_values(parse_flags(json.loads(line)[0]["XLA_FLAGS"]))


def seen(folder: Path) -> dict[str, str]:
    """Run the spec in a folder as the payload does; return the flags as its program reads them."""
    run = [sys.executable, "-c", RUN, str(folder)]
    subprocess.run(run, env={**os.environ, "SLURM_PROCID": "0"}, check=False, timeout=120)
    outcome = (folder / payload.name_of("outcome")).read_text(encoding="utf-8")
    assert json.loads(outcome)["state"] == "completed"
    return flags_in((folder / payload.log_name()).read_text(encoding="utf-8").splitlines()[-1])


@pytest.mark.parametrize("sign", FOLDERS)
def test_the_folder_and_the_profile_arrive_with_and_without_a_shell(
    tmp_path: Path, sign: str
) -> None:
    word = SIGNS[sign]
    top = tmp_path / word
    top.mkdir()
    sourced = top / f"{word}.env.sh"
    sourced.write_text('export XLA_FLAGS="$XLA_FLAGS --xla_file=1"\n', encoding="utf-8")
    mine = Profile(id="p", flags=(Flag(name="xla_a", value=word), Flag(name="xla_last", value="9")))
    deployed = {"XLA_FLAGS": format_flags([Flag(name="xla_deployed", value=word)]), **PATH}
    cell = make_cell(deployed=deployed)
    ways = {
        "plain": (probe(), OPTIONS_FOLDER, False),
        "shell": (probe(env_files=(str(sourced),), cwd=str(top)), OPTIONS_FOLDER, False),
        "evidence": (probe(env_files=(str(sourced),), cwd=str(top)), DUMP_FOLDER, True),
    }
    for name, (launcher, dumps, dump) in ways.items():
        folder = top / name
        spec = launcher.launch(make_trial(cell, mine, dump=dump), cell)
        write_spec(folder, spec)
        flags = seen(folder)
        assert flags["xla_dump_to"] == f"{folder}/{dumps}", name
        assert (flags["xla_a"], flags["xla_deployed"]) == (word, word), name
        assert flags["xla_last"] == "9", name
        assert ("xla_file" in flags) == (name != "plain")


@pytest.mark.parametrize("sign", FOLDERS)
def test_the_folder_of_a_job_of_maxtext_slurm_arrives(tmp_path: Path, sign: str) -> None:
    launcher, cell = maxtext_slurm(), make_cell()
    mine = Profile(id="p", flags=(Flag(name="xla_a", value=SIGNS[sign]),))
    script = tmp_path / "model.env.sh"
    files = launcher.launch(make_trial(cell, mine), cell).files
    script.write_text(files[PROFILE_FILE], encoding="utf-8")
    told = subprocess.run(
        ["bash", "-euc", f'. {shlex.quote(str(script))}; exec "$@"', "bash", sys.executable, "-c",
         PROBE],
        env={**PATH, "OUTPUT_PATH": f"/outputs/{SIGNS[sign]}", "XLA_FLAGS": "--xla_image=1"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    flags = flags_in(told.stdout)
    assert flags["xla_dump_to"] == f"/outputs/{SIGNS[sign]}/{OPTIONS_FOLDER}"
    assert (flags["xla_image"], flags["xla_a"]) == ("1", SIGNS[sign])


def test_a_work_directory_that_no_list_of_files_can_hold_is_refused(tmp_path: Path) -> None:
    for name in ("two\nlines", "\udcff", 'a "b"', "a\\b"):
        with pytest.raises(ConfigError, match=r"--xlatune-workdir: .* name another folder") as told:
            check_folders([("--xlatune-workdir", tmp_path / name)])
        assert str(told.value).isprintable()
    check_folders([("--xlatune-workdir", tmp_path / "a person's größe $x")])


@pytest.mark.jax
def test_xla_itself_reads_every_sign_back() -> None:
    """One interpreter, one text a sign; `debug_options` hold the value byte for byte."""
    texts = [
        format_flags([Flag(name="xla_dump_to", value=word), Flag(name="xla_dump_hlo_as_text")])
        for word in SIGNS.values()
    ]
    answers = Target(python=sys.executable, environ=os.environ)(texts)
    for word, answer in zip(SIGNS.values(), answers, strict=True):
        assert answer.options is not None, answer
        assert answer.options["xla_dump_to"] == word
        assert answer.options["xla_dump_hlo_as_text"] == "true"


# --- rotations ------------------------------------------------------------------------------------

SPEC = spec_of(("fast", {"xla_fast": "1"}))
WORKER = f"{WORKER_FILE} {SPEC_FILE} --".split()
PYTHON = "/venv/bin/python"
MAXTEXT = maxtext(python=PYTHON, module="maxtext.train")


def launched(launcher: Launcher, **changes: Any) -> LaunchSpec:
    cell = make_cell(
        **{
            "deployed": {"XLA_FLAGS": "--xla_deployed=1"},
            "protocol": Protocol(steps=20, deadline_s=100),
            **changes,
        }
    )
    return launcher.launch(rotation_trial(cell, SPEC), cell)


@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        (probe(argv=("python3", "/t.py", "a")), ["python3", *WORKER, "/t.py", "a"]),
        (probe(argv=(PYTHON, "-X", "dev", "-m", "t")), [PYTHON, "-X", "dev", *WORKER, "-m", "t"]),
        (MAXTEXT, [PYTHON, *WORKER, "-m", "maxtext.train", "/cfg/tiny.gpu.yml"]),
        (ContainerLauncher(inner=MAXTEXT), [PYTHON, *WORKER, "-m", "maxtext.train"]),
    ],
    ids=["a script", "a module", "MaxText", "inside a container"],
)
def test_the_worker_stands_in_front_of_what_python_runs(
    launcher: Launcher, words: list[str]
) -> None:
    assert launcher.rotates is Rotates.PYTHON
    spec = launched(launcher, image=NAMED)
    at = spec.argv.index(words[0])
    argv = [word.removeprefix(f"{FOLDER}/") for word in spec.argv[at:]]
    assert argv[: len(words)] == words
    assert {SPEC_FILE, WORKER_FILE} <= spec.files.keys()
    assert SITE_FILE not in spec.files
    assert not {VARIABLE, "PYTHONPATH"} & spec.env.keys()


@pytest.mark.parametrize("inherits", [True, False], ids=["of the node", "of an env file"])
def test_a_shell_puts_ours_in_front_of_what_is_there(tmp_path: Path, inherits: bool) -> None:
    env_file = tmp_path / "deployed.sh"
    env_file.write_text("export PYTHONPATH=/deployed\n", encoding="utf-8")
    shows = "import os; print(os.environ['PYTHONPATH'], os.environ['XLATUNE_ROTATION'])"
    changes = {"inherit": ("PATH", "PYTHON*")} if inherits else {"env_files": (str(env_file),)}
    launcher = probe(argv=("env", sys.executable, "-c", shows), **changes)
    assert launcher.rotates is Rotates.WRAPPED
    spec = launched(launcher)
    assert set(spec.files) >= {SPEC_FILE, SITE_FILE}
    assert WORKER_FILE not in spec.files
    for name, text in spec.files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    node = {"PATH": os.environ["PATH"]} | ({"PYTHONPATH": "/deployed"} if inherits else {})
    told = subprocess.check_output(spec.argv, env={**node, **spec.env}, cwd=tmp_path, text=True)
    assert told.split() == [f"{tmp_path}/xlatune_site:/deployed", f"{tmp_path}/rotation.json"]


def test_a_rotation_runs_no_program_that_was_compiled_before(tmp_path: Path) -> None:
    protocol = Protocol(autotune_cache="/shared/k", deadline_s=9)
    spec = launched(MAXTEXT, protocol=protocol)
    assert "jax_cache_dir=" in spec.argv
    assert spec.env["JAX_ENABLE_COMPILATION_CACHE"] == "false"
    # the worker is no secret of the attempt
    spec = with_worker(spec)
    assert "def main" in spec.files[WORKER_FILE]
    write_spec(tmp_path / "one", spec)
    assert not (tmp_path / "one" / "secrets.json").exists()


def test_maxtext_slurm_writes_it_into_the_output_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = with_worker(launched(maxtext_slurm(is_ray=False), deployed={}))
    for name in (SPEC_FILE, SITE_FILE):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(spec.files[name], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    lines = maxtext_slurm_job._rotation_lines()
    out = tmp_path / "out"
    shows = f'{lines}printf "%s|%s" "$PYTHONPATH" "$XLATUNE_ROTATION"'
    env = {"PATH": os.environ["PATH"], "HOSTNAME": "n1"}
    asked = {**env, "OUTPUT_PATH": str(out), "PYTHONPATH": "/own"}
    told = subprocess.check_output(["bash", "-euc", shows], env=asked, text=True)
    turns = out / "xlatune_rotation"
    assert told == f"{turns}/xlatune_site:/own|{turns}/rotation.json"
    assert json.loads((turns / SPEC_FILE).read_text(encoding="utf-8")) == SPEC.to_json()
    worker = (turns / SITE_FILE).read_text(encoding="utf-8")
    assert worker.rstrip() == spec.files[SITE_FILE].rstrip()
    assert sorted(each.name for each in turns.iterdir()) == ["rotation.json", "xlatune_site"]
    # outside of the container nothing is set
    shows = f'{lines}printf "%s" "${{PYTHONPATH-none}}"'
    assert subprocess.check_output(["bash", "-c", shows], env=env, text=True) == "none"


# --- refusals -------------------------------------------------------------------------------------

Make = Callable[..., Launcher]
checkout = functools.partial(CheckoutLauncher, inner=probe())


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (probe, {"argv": ("t", "{step}")}, r"unknown placeholder 'step'.*did you mean 'steps'"),
        (probe, {"argv": ("t", "{steps!r}")}, "write {{ and }}"),
        (probe, {"argv": ("t", "a}")}, "write {{ and }}"),
        (probe, {"argv": ("t", "x{overrides}")}, "must be a separate argument"),
        (probe, {"argv": ()}, "argv is empty"),
        (maxtext, {"module": "train.py"}, "script 'train.py' is relative"),
        (maxtext, {"env_files": ("x.env.sh",)}, "env file 'x.env.sh' is relative"),
        (maxtext, {"axis_prefix": {"PP": "lan"}}, "unknown prefix 'lan'"),
        (maxtext, {"axis_prefix": {"QQ": "ici"}}, "unknown axis 'QQ'"),
        (maxtext, {"inherit": ("XLA_*",)}, "`inherit` passes XLA_FLAGS on"),
        (maxtext_slurm, {"sbatch": ("-N", "8")}, r"sbatch='-N 8' names no nodes"),
        (maxtext_slurm, {"sbatch": ("-w", "n1", "--", "a=1")}, "sbatch holds `--`"),
        (maxtext_slurm, {"checkout": "maxtext"}, "checkout 'maxtext' is relative"),
        (checkout, {"repository": "trainer"}, "trainer"),
        (checkout, {"repository": "/shared/$HOME"}, "HOME"),
        (container, {"runtime": "dokcer"}, "unknown runtime 'dokcer' in .*mean 'docker'"),
        (container, {"mounts": ("data",)}, "mount 'data': expected"),
        (container, {"mounts": ("/a,b",)}, "without commas"),
        (container, {"program": "sudo 'docker"}, "program .* No closing quotation"),
        (container, {"inner": container()}, "is a container too"),
    ],
)
def test_misuse_is_refused_at_construction(
    make: Make, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**changes)


CACHES = {"image": NAMED, "protocol": KEPT}
RELATIVE = CommandLauncher(argv=("python3", "-u", "train.py", "{steps}"))
JOB = maxtext_slurm()
EXPORTED = "_env_NCCL_PROTO is exported after .* NCCL_PROTO"


@pytest.mark.parametrize(
    ("launcher", "of", "cell", "message"),
    [
        (RELATIVE, BASELINE, {}, r"script 'train\.py' is relative"),
        (probe(argv=("t", "{max_target_length}")), BASELINE, {"max_target_length": None},
         r"Cell\(max_target_length=\.\.\.\)"),
        (probe(argv=("t",)), profile("p", overrides={"a": "2"}), {}, "override 'a' would be lost"),
        (probe(), BASELINE, {"deployed": {"XLA_FLAGS": "--xla_a=1 xla_b=2"}},
         r"the deployed XLA_FLAGS.*silently drops"),
        (maxtext(), BASELINE, {"overrides": {"steps": "99"}},
         r"cell 'tiny-1b .*steps=99.* its protocol"),
        (maxtext(), profile("p", overrides={"dcn_fsdp_parallelism": "4"}), {},
         "profile 'p' overrides dcn_fsdp.* parallelism, sets this key"),
        (JOB, BASELINE, {"deployed": {"NCCL_ALGO": "Ring"}}, r"put it into .*tiny-1b\.env\.sh"),
        (JOB, BASELINE, {"overrides": {"_env_XLA_FLAGS": "--a=1"}},
         "_env_XLA_FLAGS is exported after"),
        (JOB, profile("p", env={"NCCL_PROTO": "LL"}), {"overrides": {"_env_NCCL_PROTO": "S"}},
         EXPORTED),
        (JOB, BASELINE, {"overrides": {"_env_X": "a b"}}, "_env_X='a b' cannot be a passthrough"),
        (JOB, BASELINE, {"overrides": {"base_output_directory": "/x"}},
         "base_output_directory=/x, which would"),
        (container(), BASELINE, {"image": "rocm/jax:26.4"}, "no name with a digest.*RepoDigests"),
        (container(), BASELINE, {"image": SQSH}, "no name with a digest"),
        (container(runtime="pyxis"), BASELINE, {"image": f"jax.sqsh@{SHA}"}, "absolute path"),
        (container(mounts=("/data",)), BASELINE, CACHES,
         r"autotune_cache /shared/tuned/.* is in no mount"),
    ],
)  # fmt: skip
def test_what_would_be_lost_or_change_the_measurement_is_refused(
    launcher: Launcher, of: Profile, cell: dict[str, Any], message: str
) -> None:
    made = make_cell(**cell)
    trial = make_trial(made, of, autotune_cache=made.protocol.autotune_cache)
    with pytest.raises(ConfigError, match=message):
        launcher.launch(trial, made)


def test_an_interpreter_takes_the_place_of_the_launchers_that_name_one() -> None:
    in_checkout = CheckoutLauncher(repository="/work", inner=maxtext())
    assert with_python(in_checkout, "/opt/new/python").interpreter == "/opt/new/python"
    assert with_python(probe(), "/opt/python").interpreter == "/opt/python"
    by_cell = LauncherByCell(inner=maxtext(), others={"new": maxtext(python="new")})
    assert by_cell.launcher_of(make_cell(launcher="new")).interpreter == "new"
    assert by_cell.launcher_of(make_cell()) == maxtext()
    with pytest.raises(ConfigError, match="names no interpreter"):
        with_python(CommandLauncher(argv=("train.sh",)), "/opt/new/python")
