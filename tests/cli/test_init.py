"""`xlatune init`: the file that it writes is collected and planned as it stands."""

from __future__ import annotations

import io
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.sweep.declaration import Sweep, load_sweep
from pytest_xlatune.sweep.groups import UserOptions
from pytest_xlatune.tasks.write_sweep import KINDS, STUDIES, answers, read_command
from tests.helpers.log_lines import step, text_of
from tests.helpers.sessions import run_inside

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
    kind: str, nodes: str, loaded: None, pytester: pytest.Pytester,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if kind == "maxtext-slurm" and not nodes:
        nodes = "node[001-008]"
    path = pytester.path / "sweeps" / "test_mine.py"
    argv = ["init", str(path), "--kind", kind, *OPTIONS[kind], *CELL.split(), "--flags", FLAGS]
    assert main([*argv, "--nodelist", nodes]) == 0
    assert "xlatune plan" in capsys.readouterr().out
    assert main([*argv, "--nodelist", nodes]) == 2, "nothing is overwritten"
    assert "exists" in capsys.readouterr().err

    assert main(["plan", str(path)]) == 0
    said = capsys.readouterr().out
    for each in ("all-gather-combine-threshold-bytes", "--xla_gpu_enable_nccl_user_buffers"):
        assert each in said
    done = run_inside(pytester, "--collect-only", "-q", str(path))
    assert done.ret == 0
    done.stdout.fnmatch_lines(["*::test_wave2[[]enable-nccl-user-buffers]"])


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_of_ones_own_trainer_is_written_and_planned(
    study: str, loaded: None, pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    (pytester.path / ".git").mkdir()
    path = pytester.path / f"test_{study}.py"
    argv = ["init", str(path), "--study", study, *OPTIONS["trainer"], *CELL.split()]
    nodes = ["--nodelist", "node[001-004]"]
    if study == "batch":
        assert main([*argv, *nodes]) == 2
        assert "must hold {per_device_batch_size}" in capsys.readouterr().err
        argv += ["--command", f"{OPTIONS['trainer'][1]} --batch={{per_device_batch_size}}"]
    assert main([*argv, *nodes]) == 0
    shown = capsys.readouterr().out
    assert ("--xlatune-commits main..HEAD" in shown) == (study == "commits")
    assert ("--xlatune-pdbs 8" in shown) == (study == "batch")
    sweep = load_sweep(path)
    assert sweep.declared is not None
    assert type(sweep.declared).__name__ == STUDIES[study][0]
    if study in ("nodes", "network"):
        path.unlink()
        assert main([*argv, "--nodelist", ""]) == 2
        assert "--nodelist must name the nodes" in capsys.readouterr().err


def test_what_a_trainer_with_lines_of_its_own_needs_stands_in_the_file_as_a_comment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "test_mine.py"
    argv = ["init", str(path), *OPTIONS["trainer"], *CELL.split(), "--nodelist", ""]
    assert main([*argv, "--flags", "--xla_a=1"]) == 0
    text = path.read_text(encoding="utf-8")
    for name in ("step_pattern=", "per_device_batch_size="):
        assert f"        # {name}" in text
        text = text.replace(f"        # {name}", f"        {name}")
    path.write_text(text, encoding="utf-8")
    capsys.readouterr()
    assert main(["plan", str(path)]) == 0
    assert "pdbs=8" in capsys.readouterr().out


TRAINERS = {
    "imports it": {"train.py": "import os, jax\n"},
    "imports it from elsewhere": {"train.py": "def f():\n    from jax.sharding import Mesh\n"},
    "by a module beside it": {"train.py": "from step import step\n", "step.py": "import jax\n"},
    "as a module": {"train.py": "import jax.numpy as jnp\n"},
}


@pytest.fixture
def without_jax(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The `python3` that comes first has no JAX, as where ours stands before the trainer's."""
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n', encoding="utf-8")
    python.chmod(0o700)
    monkeypatch.setenv("PATH", str(python.parent), prepend=":")
    monkeypatch.chdir(tmp_path)
    return python


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_python_without_jax_is_refused_for_a_trainer_that_imports_it(
    trainer: str, without_jax: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in TRAINERS[trainer].items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    of = "-m train" if trainer == "as a module" else "train.py"
    argv = ["init", "test_a.py", "--command", f"python3 {of} {{steps}}", *CELL.split()]
    assert main([*argv, "--nodelist", ""]) == 2
    said = capsys.readouterr().err
    assert f"{without_jax} has no JAX, and train.py imports it" in said
    assert "--command '/opt/venv/bin/python " in said
    assert not list(tmp_path.glob("test_a.py"))
    assert main([*argv, "--nodelist", "node001"]) == 0, "a node may have it there"
    assert "Python that has it" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "notes"),
    [("python3 /t {steps}", 1), ("sh /t {steps}", 0), (f"{sys.executable} /t {{steps}}", 0)],
    ids=["no JAX", "no Python", "JAX"],
)
def test_a_python_without_jax_is_told_where_the_trainer_may_not_need_it(
    command: str, notes: int, without_jax: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["init", "test_a.py", "--command", command, *CELL.split()]
    assert main([*argv, "--nodelist", ""]) == 0
    assert capsys.readouterr().out.count(f"note: {without_jax} has no JAX") == notes


def test_a_command_line_is_read_as_a_person_types_it_in_the_trainers_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    for name in ("train.py", "data/c4", "pkg/run.py"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    found = read_command(
        "XLA_FLAGS='--xla_a=1 --xla_b=2' ~/py train.py --steps={steps} --conf=train.py "
        "--out=~/out --data data/ --name data --lr=0.1"
    )
    assert found.deployed == {"XLA_FLAGS": "--xla_a=1 --xla_b=2"}
    assert found.words == (
        *("/home/me/py", f"{tmp_path}/train.py", "--steps={steps}", f"--conf={tmp_path}/train.py"),
        *("--out=/home/me/out", "--data", f"{tmp_path}/data", "--name", "data", "--lr=0.1"),
    )
    assert found.cwd == ""
    assert read_command("python -m pkg.run {steps}").cwd == str(tmp_path)
    assert read_command("python -m train {steps}").cwd == str(tmp_path)
    assert read_command("python -m maxtext.train {steps}").cwd == "", "it is installed"
    assert read_command("sh -c 'cd /x; python t.py {steps} > l'").words[0] == "sh"


def test_what_stands_before_the_program_is_deployed_and_a_module_here_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print('began')\n", encoding="utf-8")
    command = ("--command", "NCCL_DEBUG=INFO python3 -m train {steps}")
    argv = ["init", "test_übung 1.py", *command, *CELL.split(), "--nodelist", ""]
    assert main(argv) == 0
    assert "pytest 'test_übung 1.py'  " in capsys.readouterr().out
    assert main(["plan", "test_übung 1.py"]) == 0
    said = capsys.readouterr().out
    assert "NCCL_DEBUG=INFO \\" in said
    text = Path("test_übung 1.py").read_text(encoding="utf-8")
    assert f"cwd='{tmp_path}'" in text
    assert "name='bung-1'" in text


@pytest.mark.parametrize("kind", ["trainer", "maxtext"])
def test_the_env_file_that_a_recipe_changes_is_the_launchers(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.env.sh").write_text("export A=1\n", encoding="utf-8")
    argv = ["init", "test_a.py", "--kind", kind, *OPTIONS[kind], *CELL.split(), "--nodelist", "n1"]
    assert main([*argv, "--env-file", "none.env.sh"]) == 2
    assert main([*argv, "--env-file", "job.env.sh"]) == 0
    sweep = load_sweep(Path("test_a.py"))
    cell = sweep.resolve(UserOptions()).cell
    assert sweep.launcher.env_files_of(cell) == (str(tmp_path / "job.env.sh"),)


EIGEN = "--xla_cpu_multi_thread_eigen"


@pytest.mark.parametrize(
    ("options", "written", "told"),
    [
        pytest.param(
            ("--flags", "--xla_a=1 --xla_a=2 --xla_b --xla_c=/A/b_c"),
            [f"profile('{name}', '--xla_" for name in ("a-1", "a-2", "b", "c-a-b-c")], "",
            id="an id has the value of its flag",
        ),
        pytest.param(
            ("--flags", "--xla_cpu_multi_thread_eigne=false"), ["multi-thread-eigne-false"],
            f"--xla_cpu_multi_thread_eigne; did you mean {EIGEN}?",
            id="a flag that no release has is told",
        ),
        pytest.param(
            ("--flags", f"{EIGEN}=flase"), [], f"{EIGEN}=flase ends the process; expected",
            id="a value on which XLA ends the process is told",
        ),
        pytest.param(
            ("--flags", f"{EIGEN}=1e9"), [], f"{EIGEN}=1e9 ends the process; expected",
            id="a number that is no switch is told",
        ),
        pytest.param(("--flags", f"{EIGEN}=false"), [], "", id="a switch is not told"),
        pytest.param(
            ("--command", "pyhton /t {steps}"), ["'pyhton'"],
            "has no program pyhton", id="a program that is not here",
        ),
        pytest.param(
            ("--command", "pyhton /t {steps}", "--nodelist", "node001"), ["'pyhton'"], "",
            id="a program that nodes may have",
        ),
    ],
)  # fmt: skip
def test_what_the_file_says_and_what_is_told_of_it(
    options: tuple[str, ...], written: list[str], told: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = tmp_path / "test_a.py"
    argv = ["--command", f"{sys.executable} /t {{steps}}", *CELL.split(), "--nodelist", ""]
    assert main(["init", str(path), *argv, *options]) == 0
    text, said = path.read_text(encoding="utf-8"), capsys.readouterr().out
    assert [each for each in written if each not in text] == []
    assert said.count("note: ") == bool(told)
    assert told in said


@pytest.mark.parametrize(
    ("nodes", "has_gpu", "flag"),
    [("", False, "--xla_cpu_"), ("", True, "--xla_gpu_"), ("node001", False, "--xla_gpu_")],
    ids=["a machine without a GPU", "a machine with one", "nodes of Slurm"],
)
def test_the_flag_that_is_tried_where_none_is_named_fits_the_platform(
    nodes: str, flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_gpu: bool
) -> None:
    device = tmp_path / "nvidiactl"
    monkeypatch.setattr("pytest_xlatune.tasks.write_sweep._GPU_DEVICES", (str(device),))
    if has_gpu:
        device.touch()
    path = tmp_path / "test_mine.py"
    argv = ["init", str(path), *OPTIONS["trainer"], *CELL.split(), "--nodelist", nodes]
    assert main([*argv, "--flags", ""]) == 0
    assert f"', '{flag}" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "case",
    [
        (
            "print(f'completed step: {i}, seconds: 0.25, Tokens/s/device: 80.0, loss: {9 - i}')",
            ("(exit 0)", "TGS 80.0", "0.2500 s/step", "14      0.250  80.000", "-5.000  yes"),
            "# step_pattern=",
        ),
        (
            'print(\'{"step": %d, "step_time": 0.5, "loss": 3.5}\' % i)',
            (
                *("    14      0.500      ", "no score: no step of the"),
                "per_device_batch_size and max_target_length of the cell; xlatune steps",
            ),
            "        step_pattern='json',\n        # if its step lines have no Tokens/s/device",
        ),
        (
            'print(\'{"step": %d, "step_time": 0.5, "tps": 80.0}\' % i)',
            ("TGS 80.0", "5-14"),
            "        step_pattern='json',",
        ),
        (
            "print('once more')",
            ("15 lines, none of them a step", "the last one is 'once more'", "levanter"),
            "# step_pattern=",
        ),
        (
            "raise SystemExit('no config')",
            ("(exit 1)", "the last one is 'no config'", "test_mine.py is written all the same"),
            "argv=",
        ),
        ("raise SystemExit(3)", ("ended by itself (exit 3), and its output is empty",), "argv="),
    ],
    ids=[
        "MaxText's lines",
        "JSON lines without a rate",
        "JSON lines with a rate",
        "lines of no known format",
        "it fails with a line",
        "it ends at once",
    ],
)
def test_one_trial_is_run_if_it_is_asked_for_and_what_was_read_is_shown(
    case: tuple[str, tuple[str, ...], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    program, shown, written = case
    monkeypatch.chdir(tmp_path)
    text = f"import sys\nfor i in range(int(sys.argv[1])):\n    {program}\n"
    Path("train.py").write_text(text, encoding="utf-8")
    command = ("--command", f"{sys.executable} train.py {{steps}}", "--nodelist", "")
    status = main(["init", "test_mine.py", "--try", *command, *CELL.split()])
    said = capsys.readouterr()
    assert status == (2 if said.err else 0)
    assert bool(said.err) is (shown[-1] not in said.out)
    for each in shown:
        assert each in said.out + said.err
    text = Path("test_mine.py").read_text(encoding="utf-8")
    assert written in text
    assert ("trial_s=" in text) is ("Steps" in said.out)


def test_a_script_that_is_not_beside_the_person_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ("--command", "python3 train.py {steps}")
    assert main(["init", "test_mine.py", *command, *CELL.split(), "--nodelist", ""]) == 2
    assert "train.py is no file in this folder" in capsys.readouterr().err
    assert not Path("test_mine.py").exists()


@pytest.fixture
def typing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Answer the questions in order; returns what was asked."""

    def type_(*said: str) -> list[str]:
        asked: list[str] = []
        typed: Iterator[str] = iter(said)

        def answer(prompt: str) -> str:
            asked.append(prompt)
            return next(typed)

        found = answers({}, answer, print)
        asked.append(repr(found))
        return asked

    return type_


def test_what_the_options_leave_out_is_asked(typing: Callable[..., list[str]]) -> None:
    asked = typing("ours", "maxtext", "", "/c.yml", "/py", "", "", "tiny", "FSDP=4", "", "")
    assert all(kind in asked[0] for kind in KINDS)
    assert "'kind': 'maxtext'" in asked[-1]
    assert "'config': '/c.yml'" in asked[-1], "an empty answer is asked again"
    assert "'module': 'maxtext.trainers.pre_train.train'" in asked[-1], "the default"
    assert "'nodelist': ''" in asked[-1]


def test_an_answer_that_does_not_fit_is_told_and_asked_again(
    typing: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    typed = ("", "t", "t {steps}", "e.sh", "", "my model", "m", "DP", "DP=4", "n[1", "", "a=1")
    asked = typing(*typed, "--xla_a=1")
    found = {"kind": "trainer", "command": "t {steps}", "env_file": "", "model": "m"}
    found |= {"parallelism": "DP=4"}
    assert asked[-1] == repr({**found, "nodelist": "", "flags": "--xla_a=1"})
    said = capsys.readouterr().out.splitlines()
    expected = ("has no {steps}", "e.sh is no file", "my model", "'DP'", "n[1", "a=1")
    assert [each in line for each, line in zip(expected, said, strict=True)] == [True] * 6


def test_a_closed_terminal_ends_the_questions() -> None:
    def closed(_: str) -> str:
        raise EOFError

    with pytest.raises(ConfigError, match="before the last question"):
        answers({}, closed, print)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("test_a.py --model m", "--command, --parallelism: there is no terminal"),
        ("a.py", "name it test_a.py"),
        ("test_a.py --config /x", "--config belongs to --kind maxtext"),
        ("test_a.py --command t{steps} --model m --parallelism FDSP=4", "did you mean 'FSDP'"),
        (
            "test_a.py --command t{steps} --model m --parallelism DP=4 --flags=xla_a=1",
            "does not begin",
        ),
        (
            "test_a.py --command t{steps} --model m --parallelism DP=4 --flags=--xa${IFS}--xa",
            "--xa and --xa: both are the same profile",
        ),
        (
            "test_a.py --command t{steps} --model m --parallelism DP=4 --nodelist n1 --try",
            "--try runs the --command of --kind trainer",
        ),
        ("test_a.py --command cd${IFS}/x&&t{steps} --model m --parallelism DP=4", "cd is for a"),
        ("test_a.py --command A_TOKEN=x${IFS}t{steps} --model m --parallelism DP=4", "of A_TOKEN"),
        (
            "test_a.py --command A=x{steps} --model m --parallelism DP=4",
            "names no program",
        ),
        ("test_a.py --command t --model m --parallelism DP=4", "has no {steps}"),
        ("test_a.py --command t'{steps} --model m --parallelism DP=4", "No closing quotation"),
        ("test_a.py --command t{steps} --model m/n --parallelism DP=4", "model tag 'm/n'"),
        ("test_a.py --command t{steps} --model m --parallelism DP=4 --nodelist n[1", "n[1"),
    ],
)
def test_bad_input_is_one_message_and_writes_nothing(
    argv: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(["init", *(each.replace("${IFS}", " ") for each in argv.split())]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("*.py"))


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
    assert "not the log of" in " ".join(capsys.readouterr().err.split())
    # what the log leaves out is named
    log.write_bytes(text_of(map(step, range(15))))
    assert main(["init", str(file), "--log", str(log), *GIVEN]) == 2
    assert "--model, --parallelism" in capsys.readouterr().err
    assert not file.exists()
