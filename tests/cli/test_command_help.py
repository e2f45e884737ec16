"""Every command shows examples that it takes, and no file is run that declares no sweep."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from pytest_xlatune.cli import COMMANDS, main
from pytest_xlatune.cli import _parser as parser_of
from pytest_xlatune.cli.parsers import command_table
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.sweep.declaration import load_sweep
from pytest_xlatune.sweep.groups import OPTIONS


@pytest.mark.parametrize("name", COMMANDS)
def test_a_help_has_examples_that_the_command_takes(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([name, "--help"])
    said = capsys.readouterr().out
    assert COMMANDS[name].examples
    for each in COMMANDS[name].examples:
        assert each in said
        program, command, *words = shlex.split(each.partition(" > ")[0])  # the shell's own part
        assert (program, command) == ("xlatune", name)
        words = ["--against" if word == "--" else word for word in words]
        if "--help" in words or name == "flags":  # it reads some words in a way of its own
            continue
        parser_of(name).parse_args([name, *words])


def test_an_option_of_the_table_is_declared_as_the_setting_that_it_gives() -> None:
    settings = {option.name: option for option in OPTIONS}
    for name in ("workdir", "config"):
        row, option = command_table()["arguments"][name], settings[name]
        declared = (row["dest"], row["metavar"], row["help"])
        assert declared == (option.key, option.metavar, option.help)


def test_the_list_begins_with_what_a_person_needs_first() -> None:
    assert list(COMMANDS)[:2] == ["init", "plan"]
    assert list(COMMANDS).index("report") < list(COMMANDS).index("steps")


def test_a_trainer_is_not_run_as_a_sweep_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, ran = tmp_path / "trainer.py", tmp_path / "ran"
    path.write_text(f"open({str(ran)!r}, 'w').close()\nprint('training')\n", encoding="utf-8")
    assert main(["plan", str(path)]) == 2
    assert "declares no SWEEP = Sweep(...)" in capsys.readouterr().err
    assert not ran.exists()


@pytest.mark.parametrize(
    "text",
    ["from other import SWEEP", "from other import mine as SWEEP", "if 1:\n    SWEEP = 1",
     "from other import *", "SWEEP: object = 2"],
)  # fmt: skip
def test_a_file_that_may_declare_a_sweep_is_imported(text: str, tmp_path: Path) -> None:
    path = tmp_path / "test_a.py"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        load_sweep(path)
    assert "not run" not in str(refused.value)


def options_of(name: str) -> set[str]:
    """All options that a command takes, those that its help leaves out too."""
    command = parser_of(name).command  # type: ignore[attr-defined]
    return {*command._option_string_actions}


def test_a_help_shows_the_settings_of_every_day_and_says_where_the_others_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    said = capsys.readouterr().out
    shown = set(re.findall(r"^  --([a-z-]+)", said, re.MULTILINE))
    assert shown == {
        "all",
        "model",
        "budget",
        "compile",
        "executor",
        "nodelist",
        "partition",
        "workdir",
    }
    assert "`pytest -v --help` lists them as --xlatune-NAME" in " ".join(said.split())
    assert options_of("plan") >= {"--slots", "--slurm", "--container", "--node-hours"}


def test_an_option_that_help_leaves_out_is_taken_and_named_where_it_is_mistyped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "sweep.py", "--queue-dapth", "1"])
    assert "did you mean --queue-depth?" in capsys.readouterr().err
    assert main(["plan", str(tmp_path / "none.py"), "--slots", "2"]) == 2


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("import", ("--slurm", "--partition", "--launcher", "--notify-file", "--negative")),
        ("plan", ("--notify-file", "--negative", "--log-level", "--reports")),
        ("calibrate", ("--notify-file", "--negative")),
    ],
)
def test_a_command_has_no_option_that_does_nothing_there(
    name: str, options: tuple[str, ...]
) -> None:
    known = options_of(name)
    assert "--model" in known
    assert not known & {*options}
