"""The command line: what it prints, and how it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_xlatune import ConfigError, __version__, load_sweep
from pytest_xlatune.cli import main

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


def test_steps_as_json(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["steps", "--json", str(log)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    (entry,) = document["logs"]
    assert list(entry) == [
        "path", "status", "health", "phase", "last_step", "steps_wanted", "ended_by", "exit_code",
        "steps", "score", "no_score_reason", "findings", "xla_flags", "notes",
    ]  # fmt: skip
    assert entry["steps"][3] == {
        "step": 3, "seconds": 0.5, "tgs": 1024.0, "tflops": 1.5, "mfu": None, "loss": 7.1,
    }  # fmt: skip
    assert list(entry["score"]) == ["tgs", "step_s", "n_steps", "window", "dropped", "flags"]
    assert entry["score"]["tgs"] == pytest.approx(1024)
    assert entry["score"]["window"] == [5, 14]
    assert (entry["status"], entry["no_score_reason"]) == ("ok", None)
    assert entry["xla_flags"] == "--xla_a=1"


def test_absent_is_null_and_nan_is_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "nan.log"
    path.write_text(STEP.format(0, 1024, "nan"), encoding="utf-8")
    main(["steps", "--json", str(path)])
    (entry,) = json.loads(capsys.readouterr().out)["logs"]
    assert entry["steps"][0]["loss"] == "nan"
    assert entry["score"] is None
    assert "not finite" in entry["no_score_reason"]
    assert entry["status"] == "numerical-failure"
    assert entry["findings"][0]["class"] == "numerical-failure"


def test_steps_and_triage_as_text(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["steps", str(log)]) == 0
    shown = capsys.readouterr().out
    assert "TGS 1024.0, 0.5000 s/step" in shown
    assert "  14" in shown
    assert main(["triage", str(log)]) == 0
    assert "no known failure" in capsys.readouterr().out
    with log.open("a", encoding="utf-8") as file:
        file.write("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 171.96GiB\n")
    assert main(["triage", str(log)]) == 1
    shown = capsys.readouterr().out
    assert "oom-gpu" in shown
    assert "171.96" in shown


def test_a_trial_is_named_by_its_folder(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = log.parent / "fast-wave2.0-ac98cfcf49.1"
    folder.mkdir()
    log.rename(folder / "log.0.txt")
    (folder / "log.1.txt").write_text("completed step: 0, seconds: 9.0\n", encoding="utf-8")
    assert main(["steps", str(folder)]) == 0
    assert "log.0.txt" in capsys.readouterr().out


def test_what_is_no_log_is_named_and_the_others_are_still_read(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "picture.png"
    other.write_bytes(bytes(range(256)) * 40)
    assert main(["steps", "--json", str(other), str(tmp_path / "gone.log"), str(log)]) == 2
    said = capsys.readouterr()
    assert [Path(each["path"]).name for each in json.loads(said.out)["logs"]] == ["job.log"]
    assert "picture.png is not the log" in said.err
    assert "gone.log cannot be read: No such file" in said.err


def test_reports_and_jobs_without_a_sweep_say_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in ("report", "jobs"):
        assert main([command]) == 2
        assert "name another --workdir" in capsys.readouterr().err
    assert main(["jobs", "pretend"]) == 2
    assert "unknown sweep 'pretend'" in capsys.readouterr().err


SWEEPS = Path(__file__).parents[2] / "sweeps"


@pytest.mark.parametrize(
    ("kind", "nodes", "axes", "expected"),
    [
        ("nodes", 128, "FSDP=8", ("128 jobs, one on", "272 jobs in 5 waves")),
        ("network", 128, "FSDP=16", ("in 127 rounds", "at most 8532")),
        ("batch", 8, "FSDP=8", ()),
    ],
)
def test_the_sweep_files_as_shipped_are_planned_up_to_128_nodes(
    *,
    kind: str,
    nodes: int,
    axes: str,
    expected: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command of the file's own docstring, and of its page: it has to be one that works."""
    monkeypatch.chdir(tmp_path)
    words = ["plan", str(SWEEPS / f"test_{kind}.py"), "--budget", "9000"]
    words += ["--nodelist", f"node[001-{nodes:03d}]", "--model", "llama2-70b"]
    words += ["--parallelism", axes, "--pdbs", "8", "--workdir", str(tmp_path / "work")]
    words += ["--launcher", "python=/opt/venv/bin/python,config=/opt/maxtext/configs/base.yml"]
    assert main(words) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert not [each for each in expected if each not in said], said
    assert not (tmp_path / "work").exists(), "a plan writes nothing"


def test_a_plan_shows_the_trials_and_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    sweep = Path(__file__).parents[2] / "sweeps" / "test_quickstart.py"
    assert main(["plan", str(sweep)]) == 0
    shown = capsys.readouterr().out
    assert "finds with 80 % power" in shown
    assert "ici_fsdp_parallelism=2" in shown
    assert main(["plan", str(sweep), "--parallelism", "FSDP=8"]) == 2
    assert "multiply to 8, but the cell has 2 devices" in capsys.readouterr().err


def test_an_option_is_named_as_it_is_typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = Path(__file__).parents[2] / "sweeps" / "test_quickstart.py"
    assert main(["plan", str(sweep), "--budget", "many"]) == 2
    assert "xlatune: --budget: found 'many'" in capsys.readouterr().err
    assert main(["plan", str(sweep), "--budget", "90"]) == 0
    assert "* budget: --budget" in capsys.readouterr().out
    path = tmp_path / "test_x.py"
    path.write_text(
        "from pytest_xlatune import CommandLauncher, Sweep, profile\n"
        "SWEEP = Sweep(name='x', launcher=CommandLauncher(argv=('true',)),\n"
        "              profiles=(profile('a', '--xla_a=1'),))\n",
        encoding="utf-8",
    )
    assert main(["plan", str(path)]) == 2
    assert "the model (--model)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no such file"),
        ("X = 1\n", "declares no SWEEP"),
        ("import nothing_of_that_name\nSWEEP = 1\n", "cannot be imported: ModuleNotFoundError"),
        (
            "from pytest_xlatune import profile\nSWEEP = profile('A')\n",
            "cannot be imported: ConfigError: profile id 'A'",
        ),
    ],
    ids=["no file", "no sweep", "a failing import", "a bad profile"],
)
def test_a_bad_sweep_file_is_one_message(
    tmp_path: Path, text: str | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "test_x.py"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    assert main(["plan", str(path)]) == 2
    assert message in capsys.readouterr().err


def test_a_sweep_file_may_declare_a_dataclass(tmp_path: Path) -> None:
    path = tmp_path / "test.json.py"  # whatever its name: it shadows no module
    path.write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from pytest_xlatune import CommandLauncher, Sweep, profile\n"
        "@dataclass\n"
        "class Own:\n"
        "    name: str\n"
        "SWEEP = Sweep(name=Own('own').name, launcher=CommandLauncher(argv=('true',)),\n"
        "              profiles=(profile('a', '--xla_a=1'),))\n",
        encoding="utf-8",
    )
    assert load_sweep(path).name == "own"
    (added,) = (
        name
        for name, each in list(sys.modules.items())
        if getattr(each, "__file__", None) == str(path)
    )
    path.write_text("SWEEP = 1 / 0\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be imported: ZeroDivisionError"):
        load_sweep(path)
    assert added not in sys.modules


def written_to(output: int, *given: str) -> tuple[str, int]:
    """What a process of the command says on stderr, and its exit code; closes the output."""
    code = "import sys; from pytest_xlatune.cli import main; sys.exit(main(sys.argv[1:]))"
    buffered = {name: each for name, each in os.environ.items() if name != "PYTHONUNBUFFERED"}
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


def test_a_reader_that_has_gone_is_no_trouble(log: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)  # `xlatune steps LOG | head`, and head has what it wants
    assert written_to(writing, "steps", str(log)) == ("", 0)


@pytest.mark.parametrize("command", [("steps", "LOG"), ("--help",)], ids=" ".join)
def test_an_output_that_is_full_is_one_message(command: tuple[str, ...], log: Path) -> None:
    given = [str(log) if each == "LOG" else each for each in command]
    said, status = written_to(os.open("/dev/full", os.O_WRONLY), *given)
    assert (said.count("\n"), status) == (1, 3)
    assert said.startswith("xlatune: ")
    assert "No space left" in said


def test_a_sign_that_a_terminal_cannot_show_ends_no_command(
    log: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    shown, named = tmp_path / "shown", log.rename(log.with_name("größe.log"))
    output = os.open(shown, os.O_WRONLY | os.O_CREAT)
    assert written_to(output, "triage", str(named)) == ("", 0)
    assert "gr\\xf6\\xdfe.log" in shown.read_text(encoding="ascii")


def test_it_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"xlatune {__version__}\n"


@pytest.mark.parametrize(
    ("argv", "near"),
    [(["step"], "steps"), (["triag", "a.log"], "triage"), (["steps", "a.log", "--jsn"], "--json")],
)
def test_a_mistyped_command_or_option_names_the_nearest(
    argv: list[str], near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(argv)
    assert f"did you mean {near}?" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["hlo .", "steps one/0.log", "drill h.trace.json", "jobs"])
def test_a_misspelt_variable_is_told_by_every_command(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XLATUNE_WORKDIRR", "elsewhere")
    assert main(command.split()) == 2
    said = capsys.readouterr()
    assert "XLATUNE_WORKDIRR" in said.err
    assert "XLATUNE_WORKDIR" in said.err.replace("XLATUNE_WORKDIRR", "")
    assert not said.out


def test_an_output_that_was_closed_from_the_start_is_no_trouble(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", None)  # as Python has it under `>&-`
    assert main(["steps", str(log)]) == 0


def test_a_study_is_what_pytest_runs_with_the_same_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = str(SWEEPS / "test_nodes.py")
    cell = ["--nodelist", "node[001-004]", "--model", "m", "--parallelism", "FSDP=8"]
    cell += ["--launcher", "python=/opt/venv/bin/python,config=/opt/maxtext/configs/base.yml"]
    started: list[list[str]] = []

    def execv(program: str, words: list[str]) -> None:
        started.append([program, *words])
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", execv)
    with pytest.raises(SystemExit):
        main(["study", "nodes", sweep, "--plan", "--pdbs", "8", *cell])
    ((program, *words),) = started
    assert (program, words[:6]) == (
        sys.executable,
        [sys.executable, "-m", "pytest", sweep, "-m", "nodes"],
    )
    assert "--xlatune-nodelist=node[001-004]" in words
    assert "--xlatune-pdbs=8" in words
    assert words[-1] == "--xlatune-plan"
    assert main(["study", "gate", sweep, "--pdbs", "8", *cell]) == 2
    assert "run it: xlatune study nodes" in capsys.readouterr().err
