"""What other distributions add: found by name, loaded when asked for, refused with a reason."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from pytest_xlatune.entry_points import EntryPointGroup
from pytest_xlatune.model.errors import ConfigError
from tests.helpers.guests import install
from tests.helpers.tables import rows

GROUP = "pytest_xlatune.tools"
TOOLS = EntryPointGroup(GROUP, kind="tool", ours={"join": "os.path:join"})


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_names_are_known_without_an_import_and_loaded_from_their_modules(path: Path) -> None:
    added = {"deep": "door_deep:Outer.inner [more]", "join": "door_deep:taken"}
    install(path, "their-tools", {GROUP: added}, {"door_deep": "class Outer:\n    inner = 7\n"})
    assert TOOLS.names() == {"join": "os.path:join", "deep": "door_deep:Outer.inner"}
    assert TOOLS.source("deep") == "their-tools 1.2"
    assert TOOLS.source("join") == "pytest-xlatune"
    assert "door_deep" not in sys.modules
    assert TOOLS.load("deep", where="here") == 7
    assert TOOLS.load("join", where="here")("a", "b") == "a/b"


REFUSED = {
    "a name that is nearly known": (
        "pol", "", "unknown tool 'pol' in x.toml; did you mean 'pool'? Known: join, pool"),
    "a module that raises what it likes": (
        "pool", "raise SystemError('of theirs')",
        "of their-bad 1.2 cannot be loaded: SystemError: of theirs"),
    "what is of another class": ("pool", "POOL = 7", "'pool' of their-bad 1.2 is int, expected a "),
    "a class in place of one that is made": (
        "pool", "class POOL: ...", "'pool' of their-bad 1.2 is POOL, expected a "),
}  # fmt: skip


@rows("name, module, message", REFUSED)
def test_a_refusal_names_the_distribution(
    path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str, message: str
) -> None:
    install(path, "their-bad", {GROUP: {"pool": "door_bad:POOL"}}, {"door_bad": module})
    monkeypatch.delitem(sys.modules, "door_bad", raising=False)
    with pytest.raises(ConfigError, match=re.escape(message)):
        TOOLS.load_as(name, EntryPointGroup, where="x.toml")


def test_a_name_that_two_distributions_bring_is_refused(path: Path) -> None:
    install(path, "first", {GROUP: {"pool": "door_a:POOL"}})
    install(path, "second", {GROUP: {"pool": "door_b:POOL"}})
    with pytest.raises(ConfigError, match=r"is brought by first 1\.2, second 1\.2: expected one"):
        TOOLS.load("pool", where="x.toml")
