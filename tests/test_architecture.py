"""The house stays as designed: arrows point one way, no room outgrows itself, nothing forbidden."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_xlatune

PACKAGE = Path(pytest_xlatune.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
STDLIB = sys.stdlib_module_names

# room -> (floor, rooms of the same floor it may enter, third parties)
FLOORS: dict[str, tuple[int, set[str], set[str]]] = {
    "errors": (0, set(), set()),
    "records": (0, {"errors"}, set()),
    "hidden": (0, set(), set()),
    # runs below another interpreter: what that has, and nothing of ours
    "workers": (0, set(), {"jax", "jaxlib", "jax_plugins"}),
    "profiles": (1, set(), set()),
    "cells": (1, {"profiles"}, set()),
    "results": (1, {"cells", "profiles"}, set()),
    "pipeline": (1, {"cells", "profiles"}, set()),
    "settings": (1, set(), set()),
    "spelling": (1, set(), set()),
    "catalog": (2, set(), set()),
    "logs": (2, set(), set()),
    "stats": (2, set(), {"numpy", "scipy"}),
    "studies": (2, {"stats", "catalog"}, set()),
    "evidence": (2, set(), {"numpy", "scipy"}),
    "launchers": (2, set(), set()),
    "report": (2, set(), {"tabulate"}),
    "ledger": (3, set(), {"filelock"}),
    "executors": (3, set(), {"submitit"}),
    "recovery": (3, set(), set()),
    "notify": (3, set(), {"apprise"}),
    "deployed": (3, set(), set()),
    # the fourth floor: a campaign, and what is asked before it begins
    "campaign": (4, set(), {"filelock"}),
    "evidence_files": (4, set(), set()),
    "linting": (4, set(), set()),
    "preflight": (4, {"linting"}, set()),
    "screening": (4, {"evidence_files"}, set()),
    "sweep": (4, {"campaign", "screening", "preflight"}, set()),
    # the fifth: what people and tests see of it
    "reading": (5, set(), set()),
    "runs": (5, set(), set()),
    "publishing": (5, set(), set()),
    "plan": (5, {"publishing"}, set()),
    "importing": (5, set(), set()),
    # the sixth: pytest and the command line
    "cli": (6, set(), set()),
    "plugin": (6, set(), {"pytest"}),
    "__init__": (6, set(), set()),
}
PURE = ("profiles", "cells", "pipeline", "results", "records", "catalog", "logs", "stats",
        "studies", "evidence", "launchers", "report")  # fmt: skip
IMPURE_MODULES = {"os", "subprocess", "time", "socket", "tempfile", "shutil", "random", "threading"}
# floor 3 stands on floors 0-1 only
SKIPS = {3: {2}}


def room(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


def imports(path: Path) -> list[str]:
    """Every imported module, those under TYPE_CHECKING and inside functions included."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            found += [
                f"{node.module}.{alias.name}" if node.module == "pytest_xlatune" else node.module
                for alias in node.names
            ]
    return sorted(set(found))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_arrows_point_one_way(path: Path) -> None:
    here = room(path)
    assert here in FLOORS, f"{here} is no room of the house; name its floor here first"
    floor, neighbours, third_parties = FLOORS[here]
    for name in imports(path):
        top = name.split(".")[0]
        if top == "pytest_xlatune":
            there = [*name.split("."), "__init__"][1]
            if there == here:
                continue
            assert there in FLOORS, f"{here} imports {there}, which is no room of the house"
            target = FLOORS[there][0]
            allowed = there in neighbours or (target < floor and target not in SKIPS.get(floor, ()))
            assert allowed, f"{here} (floor {floor}) imports {there} (floor {target})"
        else:
            assert top in STDLIB or top in third_parties, f"{here} imports {name}"


def test_payload_is_stdlib_only() -> None:
    payload = PACKAGE / "executors" / "payload.py"
    assert all(name.split(".")[0] in STDLIB for name in imports(payload))


@pytest.mark.parametrize(
    "path",
    [path for path in MODULES if room(path) in PURE],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_pure_rooms_touch_nothing_outside(path: Path) -> None:
    tops = {name.split(".")[0] for name in imports(path)}
    assert not tops & IMPURE_MODULES
    calls = {
        node.func.id
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not calls & {"open", "print", "input", "exec", "eval"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_assert_and_no_print_in_the_package(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    asserts = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    assert not asserts, f"pytest rewrites asserts of a plugin; lines {asserts}"
    if room(path) != "cli":
        prints = [
            node.lineno
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "print"
        ]
        assert not prints


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_rooms_stay_small_and_well_named(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 400, f"{len(lines)} lines: are these two rooms?"
    assert path.stem not in {"utils", "helpers", "common", "core", "base", "manager"}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert path.stem == "__main__" or ast.get_docstring(tree), f"{path} does not say what it does"


def test_rooms_of_the_tests_stay_small_too() -> None:
    root = Path(__file__).parents[1]
    paths = [*root.glob("tests/**/*.py"), *root.glob("benchmarks/*.py")]
    long = {
        str(path.relative_to(root)): lines
        for path in paths
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 400
    }
    assert len(paths) > 100, "the walk sees nothing"
    assert not long, "are these two rooms?"


def arrows() -> dict[str, set[str]]:
    """Module -> modules that it loads, inside functions too; what only types need is no arrow."""
    dotted = {path: path.relative_to(PACKAGE.parent).with_suffix("").parts for path in MODULES}
    names = {".".join(parts).removesuffix(".__init__"): path for path, parts in dotted.items()}
    found: dict[str, set[str]] = {}
    for name, path in names.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        tree.body = [
            each
            for each in tree.body
            if "TYPE_CHECKING" not in ast.dump(getattr(each, "test", each))
        ]
        found[name] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                loaded = {f"{node.module}.{alias.name}" for alias in node.names} & set(names)
                found[name] |= loaded or {f"{node.module}"} & set(names)
    return found


def test_no_module_imports_itself_by_way_of_others() -> None:
    found = arrows()
    assert "pytest_xlatune.errors" in found["pytest_xlatune.profiles"], "the walk sees nothing"
    graphlib.TopologicalSorter(found).prepare()  # a cycle raises, and is told


def test_every_room_is_named_where_newcomers_look() -> None:
    told = (Path(__file__).parents[1] / "docs" / "house.md").read_text(encoding="utf-8")
    rows: dict[str, int] = {}
    for line in told.splitlines():
        # | 3 | `notify`, `deployed` | messages to people; what env files deploy |
        cells = [each.strip() for each in line.strip("|").split("|")]
        if cells[0].isdigit():
            rows |= {name: int(cells[0]) for name in re.findall(r"`(\w+)`", cells[1])}
    floors = {name: floor for name, (floor, _, _) in FLOORS.items() if name != "__init__"}
    assert rows == floors
    assert set(floors) == {room(path) for path in MODULES} - {"__init__"}


def test_the_walk_itself_sees_a_forbidden_arrow(tmp_path: Path) -> None:
    source = tmp_path / "upward.py"
    source.write_text("def late():\n    from pytest_xlatune import campaign\n", encoding="utf-8")
    assert imports(source) == ["pytest_xlatune.campaign"]


def test_importing_the_plugin_stays_light() -> None:
    code = (
        "import sys, pytest; import pytest_xlatune.plugin.plugin; "
        "print([m for m in ('scipy','numpy','submitit','yaml','filelock','tabulate') "
        "if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240
    )
    assert done.stdout.strip() == "[]"
