"""What other distributions add: found by name, loaded when asked for, refused with a reason."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

from pytest_xlatune.door import Door, versions_of
from pytest_xlatune.model.errors import ConfigError
from tests.helpers.guests import install
from tests.helpers.sessions import run_inside

GROUP = "pytest_xlatune.tools"
DOOR = Door(GROUP, kind="tool", ours={"join": "os.path:join"})


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_names_are_known_without_an_import(path: Path) -> None:
    added = {"pool": "door_pool:POOL", "join": "door_pool:taken"}
    install(path, "their-tools", {GROUP: added}, {"door_pool": "raise RuntimeError('imported')"})
    assert DOOR.names() == {"join": "os.path:join", "pool": "door_pool:POOL"}
    assert DOOR.source("pool") == "their-tools 1.2"
    assert DOOR.source("join") == "pytest-xlatune"
    assert "door_pool" not in sys.modules


def test_a_name_is_loaded_from_its_module(path: Path) -> None:
    install(path, "inner", {GROUP: {"deep": "door_deep:Outer.inner"}},
            {"door_deep": "class Outer:\n    inner = 7\n"})  # fmt: skip
    assert DOOR.load("deep", where="here") == 7
    assert DOOR.load("join", where="here")("a", "b") == "a/b"


def test_one_of_ours_reads_no_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(**_: str) -> None:
        raise AssertionError

    monkeypatch.setattr(importlib.metadata, "entry_points", read)
    assert DOOR.load("join", where="here")
    assert DOOR.source("join")


@pytest.mark.parametrize(
    ("name", "module", "said"),
    [
        pytest.param(
            "pol", "", "unknown tool 'pol' in x.toml; did you mean 'pool'? Known: join, pool",
            id="a name that is nearly known",
        ),
        pytest.param(
            "pool", "import not_there_at_all",
            "tool 'pool' in x.toml: door_bad:POOL of their-bad 1.2 cannot be loaded: "
            "ModuleNotFoundError: No module named 'not_there_at_all'",
            id="a module that cannot be imported",
        ),
        pytest.param(
            "pool", "raise SystemError('of theirs')",
            "tool 'pool' in x.toml: door_bad:POOL of their-bad 1.2 cannot be loaded: "
            "SystemError: of theirs",
            id="a module that raises what it likes",
        ),
        pytest.param(
            "pool", "",
            "tool 'pool' in x.toml: door_bad:POOL of their-bad 1.2 cannot be loaded: "
            "AttributeError: module 'door_bad' has no attribute 'POOL'",
            id="an attribute that is not there",
        ),
    ],
)  # fmt: skip
def test_a_refusal_names_the_distribution(
    path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str, said: str
) -> None:
    install(path, "their-bad", {GROUP: {"pool": "door_bad:POOL"}}, {"door_bad": module})
    monkeypatch.delitem(sys.modules, "door_bad", raising=False)
    with pytest.raises(ConfigError) as caught:
        DOOR.load(name, where="x.toml")
    assert str(caught.value) == said
    monkeypatch.delitem(sys.modules, "door_bad", raising=False)


def test_a_name_that_two_distributions_bring_is_refused(path: Path) -> None:
    install(path, "first", {GROUP: {"pool": "door_a:POOL"}})
    install(path, "second", {GROUP: {"pool": "door_b:POOL"}})
    with pytest.raises(ConfigError, match=r"is brought by first 1\.2, second 1\.2: expected one"):
        DOOR.load("pool", where="x.toml")


def test_names_are_those_that_the_standard_library_finds(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is installed here, a distribution that is found twice, extras, comments, an egg."""
    install(path, "their-extras", {GROUP: {"extra": "door_x:POOL [more]", "plain": "door_x"}})
    again = install(path / "later", "Their_Extras", {GROUP: {"later": "door_y:POOL"}})
    monkeypatch.setattr(sys, "path", [*sys.path, str(again)])
    egg = path / "an.egg.egg-info"
    egg.mkdir()
    (egg / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: an.egg\nVersion: 3\n")
    (egg / "entry_points.txt").write_text(f"# of it\n\n[{GROUP}]\n# x = y\negg=door_z:POOL\n")
    (path / "no_metadata-1.dist-info").mkdir()
    groups = importlib.metadata.entry_points().groups
    assert "pytest_xlatune.commands" in groups
    for group in {GROUP, *(each for each in groups if each.startswith("pytest_xlatune."))}:
        theirs = importlib.metadata.entry_points(group=group)
        expected = {each.name: each.value.partition(" [")[0] for each in theirs}
        assert Door(group, kind="x").names() == expected
    assert DOOR.names().keys() == {"egg", "extra", "join", "plain"}
    assert DOOR.source("egg") == "an.egg 3"


def test_a_session_without_a_sweep_asks_no_door(
    loaded: None, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def guests(group: str, path: tuple[str, ...]) -> dict[str, object]:
        asked.append(f"{group} {path}")
        return {}

    monkeypatch.setattr("pytest_xlatune.door._guests", guests)
    pytester.makepyfile(test_plain="def test_plain():\n    pass\n")
    run_inside(pytester, "-q").assert_outcomes(passed=1)
    assert asked == []
    run_inside(pytester, "--markers")
    assert {each.partition(" ")[0] for each in asked} == {"pytest_xlatune.studies"}


def test_versions_are_those_that_python_finds() -> None:
    names = ("pytest", "numpy", "ruamel.yaml", "pytest-xlatune")
    said = {name: importlib.metadata.version(name) for name in names}
    assert versions_of((*names, "no-such-package")) == {**said, "no-such-package": ""}
