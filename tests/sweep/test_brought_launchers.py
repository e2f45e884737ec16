"""A launcher of another distribution whose trainer has a configuration file of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_xlatune import ConfigError, Sweep, profile
from tests.helpers.guests import install

THEIRS = """\
from pytest_xlatune import CellSettings, CommandLauncher, ConfigError
from pytest_xlatune.sweep.launcher_files import LauncherFile


class Words(LauncherFile):
    def declared(self, path, *, steps=10, **settings):
        if not path.is_file():
            raise ConfigError(f"{path}: no such file of words")
        argv = (*path.read_text().split(), str(steps))
        own = {"name": path.stem, "launcher": CommandLauncher(argv=argv)}
        return {**own, "cell": CellSettings(model_tag="m", parallelism="DP=4"), **settings}
"""


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    group = {"words": "their_words_file:Words", "none": "their_words_file:CellSettings"}
    entry_points = {"pytest_xlatune.launchers": group}
    install(tmp_path / "there", "their-words", entry_points, {"their_words_file": THEIRS})
    monkeypatch.syspath_prepend(tmp_path / "there")
    file = tmp_path / "run.words"
    file.write_text("/bin/echo train")
    yield file
    sys.modules.pop("their_words_file", None)


def test_a_file_becomes_a_sweep_by_the_name_of_its_launcher(words: Path) -> None:
    fast = profile("fast", "--xla_fast=1")
    sweep = Sweep.of_file(words, launcher="words", steps=12, profiles=(fast,))
    assert (sweep.name, sweep.profiles) == ("run", (fast,))
    assert "train 12" in sweep.launcher.describe()
    for name, why in (
        ("word", "unknown launcher 'word' in the sweep over .*did you mean 'words'"),
        ("none", "launcher 'none' of their-words 1.2 is CellSettings, expected a pytest_xla"),
    ):
        with pytest.raises(ConfigError, match=why):
            Sweep.of_file(words, launcher=name)
