"""The command launcher: placeholders, overrides, refusals."""

from __future__ import annotations

import pytest

from pytest_xlatune.launchers.command import PLACEHOLDERS, CommandLauncher
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import profile
from tests.helpers.probes import make_cell, make_trial


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


def test_a_relative_script_is_refused_where_no_folder_is_named() -> None:
    cell = make_cell()
    argv = ("python3", "-u", "train.py", "{steps}")
    with pytest.raises(ConfigError, match=r"script 'train\.py' is relative"):
        CommandLauncher(argv=argv).launch(make_trial(cell), cell)
    CommandLauncher(argv=argv, cwd="/repo").launch(make_trial(cell), cell)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("t", "{step}"), r"unknown placeholder 'step'.*did you mean 'steps'"),
        (("t", "{}"), "unknown placeholder ''"),
        (("t", "{trial.id}"), "unknown placeholder 'trial.id'"),
        (("t", "{steps:>9}"), "unknown placeholder 'steps:>9'"),
        (("t", "{steps!r}"), "unknown placeholder 'steps!r'"),
        (("t", "a}"), "write {{ and }}"),
        (("t", "a{"), "write {{ and }}"),
        (("t", "x{overrides}"), "must be a separate argument"),
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
