"""`xlatune init`: the file that it writes is collected and planned as it stands."""

from __future__ import annotations

import io
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from pytest_xlatune.cli.init import KINDS, STUDIES, answers, read_command
from pytest_xlatune.sweep.declaration import load_sweep
from pytest_xlatune.sweep.groups import UserOptions
from tests.cli.conftest import Run
from tests.helpers.log_lines import step, text_of
from tests.helpers.sessions import run_inside

CELL = ["--model", "tiny", "--parallelism", "FSDP=4"]
FLAGS = "--xla_gpu_all_gather_combine_threshold_bytes=1073741824 --xla_gpu_enable_nccl_user_buffers"
OPTIONS = {
    "trainer": ("--command", "python3 /opt/me/train.py --steps={steps} {overrides}"),
    "maxtext": ("--config", "/opt/configs/tiny.yml", "--python", "/opt/venv/bin/python"),
    "maxtext-slurm": ("--checkout", "/opt/maxtext-slurm"),
}
PATH = Path("test_a.py")


class Initiated(NamedTuple):
    """What `xlatune init test_a.py ...` ended with, said and wrote into the folder."""

    status: int
    out: str
    err: str
    text: str


Init = Callable[..., Initiated]


@pytest.fixture
def init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> Init:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())

    def call(*argv: str) -> Initiated:
        ended = run("init", PATH, *argv)
        return Initiated(*ended, PATH.read_text(encoding="utf-8") if PATH.exists() else "")

    return call


@pytest.mark.parametrize("nodes", ["", "node[001-008]"], ids=["this machine", "nodes"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_written_file_is_collected_and_planned(
    *, kind: str, nodes: str, loaded: None, pytester: pytest.Pytester, init: Init, run: Run
) -> None:
    if kind == "maxtext-slurm":
        nodes = "node[001-008]"
    argv = ["--kind", kind, *OPTIONS[kind], *CELL, "--flags", FLAGS, "--nodelist", nodes]
    assert init(*argv).status == 0
    assert "exists" in init(*argv).err, "nothing is overwritten"
    assert "--xla_gpu_enable_nccl_user_buffers" in run("plan", PATH)[1]
    done = run_inside(pytester, "--collect-only", "-q", str(PATH))
    assert done.ret == 0
    done.stdout.fnmatch_lines(["*::test_wave2[[]enable-nccl-user-buffers]"])


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_of_ones_own_trainer_is_written_and_planned(study: str, init: Init) -> None:
    Path(".git").mkdir()
    argv = ["--study", study, *OPTIONS["trainer"], *CELL, "--nodelist", "node[001-004]"]
    if study == "batch":
        assert "must hold {per_device_batch_size}" in init(*argv).err
        argv += ["--command", f"{OPTIONS['trainer'][1]} --batch={{per_device_batch_size}}"]
    if study in ("nodes", "network"):
        assert "--nodelist must name the nodes" in init(*argv, "--nodelist", "").err
    made = init(*argv)
    assert made.status == 0
    assert ("--xlatune-commits main..HEAD" in made.out) == (study == "commits")
    assert type(load_sweep(PATH).declared).__name__ == STUDIES[study][0]


def test_a_python_without_jax_is_refused_for_a_trainer_that_imports_it(
    tmp_path: Path, init: Init
) -> None:
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n', encoding="utf-8")
    python.chmod(0o700)
    cell = (*CELL, "--nodelist", "")
    Path("train.py").write_text("def f():\n    from jax.sharding import Mesh\n", encoding="utf-8")
    refused = init("--command", f"{python} train.py {{steps}}", *cell)
    assert (refused.status, refused.text) == (2, "")
    assert f"{python} has no JAX, and train.py imports it" in refused.err


def test_a_command_line_is_read_as_a_person_types_it_in_the_trainers_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    (tmp_path / "data").mkdir()
    Path("train.py").touch()
    found = read_command(
        "~/py train.py --steps={steps} --conf=train.py --out=~/out --data data/ --name data"
    )
    there = f"{tmp_path}/train.py"
    assert found[:4] == ("/home/me/py", there, "--steps={steps}", f"--conf={there}")
    assert found[4:] == ("--out=/home/me/out", "--data", f"{tmp_path}/data", "--name", "data")


@pytest.mark.parametrize("kind", ["trainer", "maxtext"])
def test_the_env_file_that_a_recipe_changes_is_the_launchers(
    kind: str, init: Init, tmp_path: Path
) -> None:
    (tmp_path / "job.env.sh").write_text("export A=1\n", encoding="utf-8")
    argv = ["--kind", kind, *OPTIONS[kind], *CELL, "--nodelist", "n1", "--env-file"]
    assert init(*argv, "none.env.sh").status == 2
    assert init(*argv, "job.env.sh").status == 0
    sweep = load_sweep(PATH)
    files = sweep.launcher.env_files_of(sweep.resolve(UserOptions()).cell)
    assert files == (str(tmp_path / "job.env.sh"),)


EIGEN = "--xla_cpu_multi_thread_eigen"
IDS = [f"profile('{name}', '--xla_" for name in ("a-1", "a-2", "b", "c-a-b-c")]
# options -> what the file has, what is told of it
WRITTEN = {
    "an id has the value of its flag": (
        "--flags '--xla_a=1 --xla_a=2 --xla_b --xla_c=/A/b_c'", IDS, ""),
    "a flag that no release has is told": (
        "--flags --xla_cpu_multi_thread_eigne=false", ["multi-thread-eigne-false"],
        f"--xla_cpu_multi_thread_eigne; did you mean {EIGEN}?"),
    "a program that is not here": (
        "--command 'pyhton /t {steps}'", ["'pyhton'"], "has no program pyhton"),
    "a program that nodes may have": (
        "--command 'pyhton /t {steps}' --nodelist node001", ["'pyhton'"], ""),
}  # fmt: skip


@pytest.mark.parametrize(("options", "written", "told"), WRITTEN.values(), ids=WRITTEN)
def test_what_the_file_says_and_what_is_told_of_it(
    options: str, written: list[str], told: str, init: Init
) -> None:
    command = f"{sys.executable} /t {{steps}}"
    made = init("--command", command, *CELL, "--nodelist", "", *shlex.split(options))
    assert [words for words in written if words not in made.text] == []
    assert made.out.count("note: ") == bool(told)
    assert told in made.out


TRAINERS = {
    "MaxText's lines": (
        "print(f'completed step: {i}, seconds: 0.25, Tokens/s/device: 80.0, loss: {9 - i}')",
        ("(exit 0)", "TGS 80.0", "14      0.250  80.000", "-5.000  yes"),
        "# step_pattern=",
    ),
    "a bar without a rate of tokens": (
        "print(f' 12%|#2     | {i}/100 [00:24<02:58,  0.50s/it, loss=3.5]')",
        ("    14      0.500      ", "per_device_batch_size and max_target_length of the cell"),
        "        step_pattern='tqdm',\n        # if its step lines have no Tokens/s/device",
    ),
    "lines of no known format": (
        "print('once more')",
        ("15 lines, none of them a step", "levanter"),
        "# step_pattern=",
    ),
}


@pytest.mark.parametrize(("program", "shown", "written"), TRAINERS.values(), ids=TRAINERS)
def test_one_trial_is_run_if_it_is_asked_for_and_what_was_read_is_shown(
    program: str, shown: tuple[str, ...], written: str, init: Init
) -> None:
    text = f"import sys\nfor i in range(int(sys.argv[1])):\n    {program}\n"
    Path("train.py").write_text(text, encoding="utf-8")
    command = ("--command", f"{sys.executable} train.py {{steps}}", "--nodelist", "")
    made = init("--try", *command, *CELL)
    assert made.status == (2 if made.err else 0)
    assert bool(made.err) is (shown[-1] not in made.out)
    assert [words for words in shown if words not in made.out + made.err] == []
    assert written in made.text
    assert ("trial_s=" in made.text) is ("Steps" in made.out)


def test_what_the_options_leave_out_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my trainer"
    folder.mkdir()
    monkeypatch.chdir(folder)
    typed = iter(("", "t {steps}", "", "", "DP=4", "", "--xla_a=1"))
    asked: list[str] = []

    def answer(prompt: str) -> str:
        asked.append(prompt)
        return next(typed)

    found = {"kind": "trainer", "command": "t {steps}", "env_file": "", "model": "my-trainer"}
    found |= {"parallelism": "DP=4", "nodelist": "", "flags": "--xla_a=1"}
    assert answers({}, answer) == found
    assert all(kind in asked[0] for kind in KINDS)


REFUSED = {
    "--model m": "--command, --parallelism: an answer is needed",
    "--command 't{steps}' --parallelism FDSP=4": "did you mean 'FSDP'",
    "--command 't{steps}' --flags=xla_a=1": "does not begin",
    "--command 'cd /x&&t{steps}'": "needs a shell",
    "--command 'A_TOKEN=x t{steps}'": "into `deployed` of",
    "--command 'python3 a.py {steps}' --nodelist ''": "a.py is no file in",
}


@pytest.mark.parametrize("options", REFUSED)
def test_bad_input_is_one_message_and_writes_nothing(options: str, init: Init, run: Run) -> None:
    cell = CELL if "--command" in options else []
    refused = init(*cell, *shlex.split(options))
    assert (refused.status, refused.text) == (2, "")
    assert REFUSED[options] in refused.err
    assert run("init", "a.py")[0] == 2, "pytest would not collect it"


CONFIG = [
    "XLA_FLAGS=--xla_gpu_autotune_level=0",
    "Config param model_name: llama3-8b",
    "Config param ici_fsdp_parallelism: 8",
    "Config param dcn_pipeline_parallelism: 2",
    "Config param per_device_batch_size: 4.0",
    "Config param max_target_length: 2048",
]
TITAN = "[titan] 2026-05-18 16:04:46,338 - root - INFO - step: {0:2}  loss:  3.2  tps: 7,282"


def test_what_a_log_tells_is_not_asked(init: Init) -> None:
    def of_log(lines: list[str], *more: str) -> Initiated:
        Path("job.log").write_bytes(text_of(lines))
        given = ("--kind", "trainer", *OPTIONS["trainer"], "--flags", "--xla_gpu_a=true")
        return init("--log", "job.log", *given, *more)

    assert "not the log of" in " ".join(of_log(["hello"]).err.split())
    refused = of_log([*map(step, range(15))])
    assert "--model, --parallelism" in refused.err, "what the log leaves out is named"
    assert of_log([*CONFIG, *map(step, range(15))]).status == 0
    cell = load_sweep(PATH).cell
    assert (cell.model_tag, cell.parallelism) == ("llama3-8b", "PP=2,FSDP=8")
    assert dict(cell.deployed) == {"XLA_FLAGS": "--xla_gpu_autotune_level=0"}
    assert (cell.per_device_batch_size, cell.max_target_length) == (4, 2048)
    assert cell.step_pattern == ""
    PATH.unlink()
    assert of_log([TITAN.format(at) for at in range(1, 16)], *CELL).status == 0
    cell = load_sweep(PATH).cell
    assert (cell.model_tag, cell.step_pattern) == ("tiny", "torchtitan")
