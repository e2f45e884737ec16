"""The command line: what it prints and in which forms, its help, and how it refuses."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_xlatune import __version__
from pytest_xlatune.cli import COMMANDS, main
from pytest_xlatune.cli import _parser as parser_of
from pytest_xlatune.cli.show import Output, present
from pytest_xlatune.model.errors import Exit
from pytest_xlatune.report.document import Table, Text, brief, columns, lines, literal
from tests.cli.conftest import Run
from tests.helpers import scripted

SWEEPS = Path(__file__).parents[2] / "sweeps"
LAUNCHER = "python=/opt/venv/bin/python,config=/opt/maxtext/configs/base.yml"
STEP = (
    "completed step: {}, seconds: 0.500, TFLOP/s/device: 1.5, Tokens/s/device: {:.3f}, "
    "total_weights: 512, loss: {}\n"
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "job.log"
    lines = [STEP.format(step, 1024, 7.1) for step in range(15)]
    path.write_text("XLA_FLAGS=--xla_a=1\n" + "".join(lines), encoding="utf-8")
    return path


def test_steps_as_json(log: Path, tmp_path: Path, run: Run) -> None:
    status, out, _ = run("steps", "--json", log)
    document = json.loads(out)
    assert (status, document["schema"]) == (0, 1)
    (entry,) = document["logs"]
    assert entry["steps"][3] == {
        "step": 3, "seconds": 0.5, "tgs": 1024.0, "tflops": 1.5, "mfu": None, "loss": 7.1,
    }  # fmt: skip
    assert entry["score"]["tgs"] == pytest.approx(1024)
    assert entry["score"]["window"] == [5, 14]
    assert (entry["status"], entry["no_score_reason"]) == ("ok", None)
    assert entry["xla_flags"] == "--xla_a=1"
    # absent is null, and NaN is a word
    path = tmp_path / "nan.log"
    path.write_text(STEP.format(0, 1024, "nan"), encoding="utf-8")
    (entry,) = json.loads(run("steps", "--json", path)[1])["logs"]
    assert (entry["steps"][0]["loss"], entry["score"]) == ("nan", None)
    assert entry["findings"][0]["class"] == "numerical-failure"


def test_steps_and_triage_as_text(log: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "TGS 1024.0, 0.5000 s/step" in run("steps", log)[1]
    assert run("triage", log)[0] == 0
    with log.open("a", encoding="utf-8") as file:
        file.write("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 171.96GiB\n")
    status, out, _ = run("triage", log)
    assert status == 1
    assert "oom-gpu" in out
    # a trial is named by its folder
    folder = log.parent / "fast-wave2.0-ac98cfcf49.1"
    folder.mkdir()
    log.rename(folder / "log.0.txt")
    (folder / "log.1.txt").write_text("completed step: 0, seconds: 9.0\n", encoding="utf-8")
    assert "log.0.txt" in run("steps", folder)[1]
    # an output that was closed from the start, as Python has it under `>&-`, is no trouble
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["steps", str(folder)]) == 0


def test_what_is_no_log_is_named_and_the_others_are_still_read(
    log: Path, tmp_path: Path, run: Run
) -> None:
    other = tmp_path / "picture.png"
    other.write_bytes(bytes(range(256)) * 40)
    status, out, err = run("steps", "--json", other, tmp_path / "gone.log", log)
    assert status == 2
    assert [Path(each["path"]).name for each in json.loads(out)["logs"]] == ["job.log"]
    assert "picture.png is not the log" in err
    assert "gone.log cannot be read: No such file" in err


def test_numpy_starts_no_threads_and_jobs_inherit_nothing() -> None:
    code = """if True:
        import os
        from pytest_xlatune.cli.parsers import load_function
        load_function("pytest_xlatune.cli.drill:run_drill")
        print(len(os.listdir("/proc/self/task")), "OPENBLAS_NUM_THREADS" in os.environ)
    """
    clean = {name: value for name, value in os.environ.items() if "OPENBLAS" not in name}
    printed = subprocess.check_output([sys.executable, "-c", code], text=True, env=clean)
    assert printed.split() == ["1", "False"]


def written_to(output: int, *given: str) -> tuple[str, int]:
    """What a process of the command says on stderr, and its exit code; closes the output."""
    code = "import sys; from pytest_xlatune.cli import main; sys.exit(main(sys.argv[1:]))"
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with os.fdopen(output, "w") as file:
        ended = subprocess.run(
            [sys.executable, "-c", code, *given],
            stdout=file,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=buffered,
        )
    return ended.stderr, ended.returncode


def test_an_output_that_cannot_be_written_is_one_message_and_no_traceback(
    log: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reading, writing = os.pipe()
    os.close(reading)  # `xlatune steps LOG | head`, and head has what it wants
    assert written_to(writing, "steps", str(log)) == ("", 0)
    for command in (["steps", str(log)], ["--help"]):
        said, status = written_to(os.open("/dev/full", os.O_WRONLY), *command)
        assert (said.count("\n"), status) == (1, 3)
        assert said.startswith("xlatune: ")
        assert "No space left" in said
    # a sign that a terminal cannot show ends no command
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    shown, named = tmp_path / "shown", log.rename(log.with_name("größe.log"))
    output = os.open(shown, os.O_WRONLY | os.O_CREAT)
    assert written_to(output, "triage", str(named)) == ("", 0)
    assert "gr\\xf6\\xdfe.log" in shown.read_text(encoding="ascii")


# --- sweep files ----------------------------------------------------------------------------------


ONE_PROFILE = """
SWEEP = Sweep(
    name=NAME, launcher=CommandLauncher(argv=("true",)), profiles=(profile("a", "--xla_a=1"),)
)
"""
IMPORTS = "from pytest_xlatune import CommandLauncher, Sweep, profile\n"


BAD_FILES = {
    "no file": (None, "no such file"),
    "a trainer": ("open('ran', 'w').close()\n", "declares no SWEEP = Sweep("),
    "a bad profile": (f"{IMPORTS}SWEEP = profile('A')\n", "imported: ConfigError: profile id 'A'"),
    "what may declare one is imported": (
        "if 1:\n    from other import *\n",
        "cannot be imported: ModuleNotFoundError",
    ),
    "no model": (f'{IMPORTS}NAME = "x"{ONE_PROFILE}', "the model (--model)"),
}


@pytest.mark.parametrize(("text", "message"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_bad_sweep_file_is_one_message(
    tmp_path: Path, text: str | None, message: str, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "test_x.py"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    status, _, err = run("plan", path)
    assert status == 2
    assert message in err
    assert not Path("ran").exists(), "a trainer is not run as a sweep file"


def test_a_study_is_what_pytest_runs_with_the_same_options(
    monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    sweep = str(SWEEPS / "test_nodes.py")
    cell = ["--nodelist", "node[001-004]", "--model", "m", "--parallelism", "FSDP=8"]
    cell += ["--pdbs", "8", "--launcher", LAUNCHER]
    started: list[list[str]] = []

    def execv(program: str, words: list[str]) -> None:
        started.append([program, *words])
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", execv)
    assert run("study", "nodes", sweep, "--plan", *cell)[0] == 0
    (words,) = started
    assert words[:7] == [sys.executable, sys.executable, "-m", "pytest", sweep, "-m", "nodes"]
    assert {"--xlatune-nodelist=node[001-004]", "--xlatune-pdbs=8", "--xlatune-plan"} <= {*words}
    assert "run it: xlatune study nodes" in run("study", "gate", sweep, *cell)[2]


# --- help and options -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
def test_a_help_has_examples_that_the_command_takes(name: str, run: Run) -> None:
    _, said, _ = run(name, "--help")
    assert COMMANDS[name].examples
    for example in COMMANDS[name].examples:
        assert example in said
        program, command, *words = shlex.split(example.partition(" > ")[0])  # the shell's own part
        assert (program, command) == ("xlatune", name)
        words = ["--against" if word == "--" else word for word in words]
        if "--help" in words or name == "flags":  # it reads some words in a way of its own
            continue
        parser_of(name).parse_args([name, *words])


def test_a_misspelt_variable_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLATUNE_WORKDIRR", "elsewhere")
    status, out, err = run("hlo", ".")
    assert (status, out) == (2, "")
    assert "XLATUNE_WORKDIRR" in err


@pytest.mark.parametrize(
    ("argv", "status", "words"),
    [
        ("plan SWEEP", 0, ("finds with 80 % power", "ici_fsdp_parallelism=2")),
        ("plan SWEEP --parallelism FSDP=8", 2, ("multiply to 8, but the cell has 2 devices",)),
        ("plan SWEEP --budget many", 2, ("xlatune: --budget: found 'many'",)),
        ("jobs --workdir nowhere", 2, ("name another --workdir",)),
        ("jobs pretend", 2, ("unknown sweep 'pretend'",)),
        ("--version", 0, (f"xlatune {__version__}\n",)),
    ],
)
def test_a_command_ends_with(argv: str, status: int, words: tuple[str, ...], run: Run) -> None:
    sweep = SWEEPS / "test_quickstart.py"
    ended, out, err = run(*(sweep if word == "SWEEP" else word for word in argv.split()))
    assert ended == status
    assert [each for each in words if each not in (err if status else out)] == []


LONG = "a kernel's name " + "x" * 90
TABLE = Table(
    columns=columns("kernel", "family", ">ms"),
    rows=((literal(LONG), "gemm", "6.000"), ("copy", "", "-12.500")),
    compact=True,
)
QUICK = brief("Where time went", lines("  as it `stands`", "2"), TABLE, Text(text="a `word`"))
VALUES = {"schema": 1, "ms": [6.0, -12.5]}
FOUND = Output(documents=(QUICK,), json=lambda: VALUES)
Said = pytest.CaptureFixture[str]


def test_each_form_has_the_same_figures(capsys: Said) -> None:
    assert present(FOUND, argparse.Namespace(json=False)) == 0
    text = capsys.readouterr().out
    assert all(figure in text for figure in ("6.000", "-12.500"))
    assert present(FOUND, argparse.Namespace(json=True)) == 0
    assert json.loads(capsys.readouterr().out) == VALUES


def test_a_problem_goes_to_stderr_and_decides_the_status(capsys: Said) -> None:
    for output, status, said in (
        (Output(documents=(QUICK,), status=10), 10, ""),
        (Output(documents=(QUICK,), status=10, problems=("gone.log",)), 2, "gone.log"),
        (Output(notes=("a copy",), problem_status=Exit.INTERNAL), 0, "a copy"),
        (Output(problems=("unknown cell",)), 2, "unknown cell"),
    ):
        assert present(output, argparse.Namespace()) == status
        out, err = capsys.readouterr()
        assert bool(out) == bool(output.documents)
        assert err == (f"xlatune: {said}\n" if said else "")


def test_a_report_of_a_ledger_is_named_by_its_path_and_may_leave_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    made = scripted.campaign(tmp_path, scripted.FakeExecutor())
    scripted.run(made)
    monkeypatch.chdir(tmp_path)
    folder, gone = str(made.folder), str(tmp_path / "gone")
    assert main(["report", folder, "--no-files"]) == 0
    assert "FASTER" in capsys.readouterr().out
    assert main(["report", folder, folder, "--json"]) == 0
    assert [report["schema"] for report in json.loads(capsys.readouterr().out)] == [3, 3]
    assert main(["report", folder, gone, "--json"]) == 3
    said = capsys.readouterr()
    assert len(json.loads(said.out)) == 1, "a list where several were named"
    assert "gone does not exist" in said.err
    assert not (tmp_path / "reports").exists()
    assert main(["report", folder, gone, folder]) == 3
    assert (tmp_path / "reports" / "pretend-tuning.md").exists()
