"""What other distributions add: found by name, loaded when asked for, refused with a reason."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_xlatune.entry_points import EntryPointGroup
from pytest_xlatune.model.errors import ConfigError
from tests.helpers.guests import install

GROUP = "pytest_xlatune.tools"
TOOLS = EntryPointGroup(GROUP, kind="tool", ours={"join": "os.path:join"})


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_names_are_known_without_an_import(path: Path) -> None:
    added = {"pool": "door_pool:POOL", "join": "door_pool:taken"}
    install(path, "their-tools", {GROUP: added}, {"door_pool": "raise RuntimeError('imported')"})
    assert TOOLS.names() == {"join": "os.path:join", "pool": "door_pool:POOL"}
    assert TOOLS.source("pool") == "their-tools 1.2"
    assert TOOLS.source("join") == "pytest-xlatune"
    assert "door_pool" not in sys.modules


def test_a_name_is_loaded_from_its_module(path: Path) -> None:
    install(path, "inner", {GROUP: {"deep": "door_deep:Outer.inner [more]"}},
            {"door_deep": "class Outer:\n    inner = 7\n"})  # fmt: skip
    assert TOOLS.load("deep", where="here") == 7
    assert TOOLS.load("join", where="here")("a", "b") == "a/b"


BAD = "tool 'pool' in x.toml: door_bad:POOL of their-bad 1.2 cannot be loaded: "


@pytest.mark.parametrize(
    ("name", "module", "message"),
    [
        ("pol", "", "unknown tool 'pol' in x.toml; did you mean 'pool'? Known: join, pool"),
        ("pool", "import not_there_at_all",
         f"{BAD}ModuleNotFoundError: No module named 'not_there_at_all'"),
        ("pool", "raise SystemError('of theirs')", f"{BAD}SystemError: of theirs"),
        ("pool", "", f"{BAD}AttributeError: module 'door_bad' has no attribute 'POOL'"),
    ],
    ids=["a name that is nearly known", "a module that cannot be imported",
         "a module that raises what it likes", "an attribute that is not there"],
)  # fmt: skip
def test_a_refusal_names_the_distribution(
    path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str, message: str
) -> None:
    install(path, "their-bad", {GROUP: {"pool": "door_bad:POOL"}}, {"door_bad": module})
    monkeypatch.delitem(sys.modules, "door_bad", raising=False)
    with pytest.raises(ConfigError) as caught:
        TOOLS.load(name, where="x.toml")
    assert str(caught.value) == message
    monkeypatch.delitem(sys.modules, "door_bad", raising=False)


@pytest.mark.parametrize("text", ["POOL = 7", "class POOL:\n    def __init__(self, size): ..."])
def test_what_is_of_another_class_is_refused(path: Path, text: str) -> None:
    install(path, "their-odd", {GROUP: {"pool": "door_odd:POOL"}}, {"door_odd": text})
    sys.modules.pop("door_odd", None)
    with pytest.raises(ConfigError, match=r"'pool' of their-odd 1\.2 is (int|POOL), expected a "):
        TOOLS.load_as("pool", EntryPointGroup, where="here")


def test_a_name_that_two_distributions_bring_is_refused(path: Path) -> None:
    install(path, "first", {GROUP: {"pool": "door_a:POOL"}})
    install(path, "second", {GROUP: {"pool": "door_b:POOL"}})
    with pytest.raises(ConfigError, match=r"is brought by first 1\.2, second 1\.2: expected one"):
        TOOLS.load("pool", where="x.toml")
