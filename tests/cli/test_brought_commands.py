"""A command of another distribution: listed without what it needs, run when it is asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_xlatune.cli import main
from tests.helpers.guests import install, whole

(ENTRY, COMMAND), PROJECT = whole("a command")


@pytest.fixture(autouse=True)
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    more = {
        "other": "xlatune_words:__doc__",
        "broken": "their_absence:COMMAND",
        "steps": "xlatune_words:COMMAND",  # a name of ours
    }
    group = "pytest_xlatune.commands"
    names = {group: {**PROJECT["entry-points"][group], **more}}
    modules = {"xlatune_words": ENTRY, "xlatune_words_command": COMMAND}
    install(tmp_path / "there", "their-words", names, modules)
    monkeypatch.syspath_prepend(tmp_path / "there")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    yield
    for module in modules:
        sys.modules.pop(module, None)


def helped(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as left:
        main([*words, "--help"])
    assert left.value.code == 0
    return " ".join(capsys.readouterr().out.split())


def test_it_is_listed_beside_ours_and_runs_as_ours_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "score of logs" in helped(capsys, "steps")
    assert "xlatune_words" not in sys.modules, "no other distribution can take a name of ours"
    assert "words count the words of a file, 100 % of them" in helped(capsys)
    assert "xlatune_words_command" not in sys.modules, "its own module is not loaded for that"
    (tmp_path / "notes.txt").write_text("one two three")
    assert main(["words", "notes.txt"]) == 0
    assert capsys.readouterr().out == "3 words\n"
    assert main(["words", "none.txt"]) == 2
    assert "xlatune: none.txt: no such file" in capsys.readouterr().err
    assert "examples: xlatune words notes.txt" in helped(capsys, "words")


def test_one_that_is_none_says_so_and_the_others_are_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, why in (
        ("broken", "their_absence:COMMAND of their-words 1.2 cannot be loaded: ModuleNotFound"),
        ("other", "'other' of their-words 1.2 is str, expected a pytest_xlatune.cli.Subc"),
    ):
        assert main([name]) == 2
        assert why in capsys.readouterr().err
        assert why in helped(capsys)
