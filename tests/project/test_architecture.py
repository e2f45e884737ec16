"""The layout holds: arrows point down, imports stand at the top, and every file is published."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.source import MODULES, PACKAGE, nodes_of

STDLIB = sys.stdlib_module_names
ALL_IMPORT = {"msgspec"}  # but programs below another interpreter

# package -> (layer, third parties it may import); architecture.md says what each is for
LAYERS: dict[str, tuple[int, set[str]]] = {
    "model": (1, set()),
    "secure_files": (1, set()),
    "locks": (2, {"filelock"}),
    "entry_points": (1, set()),
    # programs below another interpreter: what that has, and nothing of ours
    "workers": (1, {"jax", "jaxlib"}),
    "catalog": (2, set()),
    "evidence": (2, {"numpy"}),
    "launchers": (2, {"ruamel"}),
    "logs": (2, set()),
    "report": (3, {"tabulate", "ruamel", "jinja2", "markupsafe"}),
    "stats": (2, {"numpy", "scipy"}),
    "executors": (3, {"submitit"}),
    "ledger": (3, set()),
    "studies": (3, set()),
    "sweep": (4, {"ruamel"}),
    "prepare": (5, {"ruamel"}),
    "campaign": (6, set()),
    "tasks": (7, {"apprise"}),
    "cli": (8, {"rich"}),
    "plugin": (8, {"pytest"}),
    "off": (8, {"pytest"}),  # that the plugin is not there
    "__init__": (9, set()),
    # each comes in by entry points: nothing imports it, another guest neither
    "guests": (9, set()),
    "guests/cvs": (9, {"pytest"}),
    "guests/megascale": (9, {"numpy", "tabulate"}),
    "guests/mlflow": (9, {"mlflow"}),
    "guests/wandb": (9, {"wandb"}),
}
SIDEWAYS = {("evidence", "stats"), ("entry_points", "model"), ("report", "studies")}
PURE = {"model", "stats", "catalog", "logs", "launchers", "report", "studies"}
OUTSIDE_WORLD = {"os", "subprocess", "time", "socket", "tempfile", "shutil", "random", "threading"}


def said(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def package_of(path: Path) -> str:
    first, *more = path.relative_to(PACKAGE).parts
    return f"guests/{more[0]}" if first == "guests" and more[1:] else first.removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Every imported name with its line, those under TYPE_CHECKING and inside functions too."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{said(path)}:{node.lineno}: relative import"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def upward(path: Path) -> Iterator[str]:
    here = package_of(path)
    layer, third_parties = LAYERS[here]
    for line, name in imports(path):
        top, _, rest = name.partition(".")
        if top != "pytest_xlatune":
            may = third_parties | (STDLIB - OUTSIDE_WORLD if here in PURE else STDLIB)
            if top not in may | (ALL_IMPORT if here != "workers" else set()):
                yield f"{said(path)}:{line} imports {name}"
            continue
        there, *more = rest.split(".")
        there = f"guests/{more[0]}" if there == "guests" and more else there
        if there in (here, "__version__") or (here, there) in SIDEWAYS:
            continue
        is_private = any(re.match("_[^_]", part) for part in more)
        if is_private or LAYERS.get(there, LAYERS["__init__"])[0] >= layer:
            yield f"{said(path)}:{line}: {here} (layer {layer}) imports {name}"


def test_arrows_point_down() -> None:
    assert {package_of(path) for path in MODULES} == set(LAYERS), "name the package's layer here"
    assert [each for path in MODULES for each in upward(path)] == []


def test_the_payload_runs_alone() -> None:
    """A node needs its file and that of `secure_files`, which it loads by its path."""
    secure_files = "pytest_xlatune.secure_files"
    for name in ("executors/payload.py", "executors/look_at_hang.py", "secure_files.py"):
        found = {full for _, full in imports(PACKAGE / name)}
        left = {full for full in found if full.partition(".")[0] not in STDLIB}
        assert left <= {secure_files}, name


# (file, module) of each import inside a function; `workers` have rules of their own
INSIDE = {
    # slow to import, or of an extra
    ("cli/watch.py", "rich.text"),
    ("cli/watch.py", "rich.console"),
    ("cli/watch.py", "rich.live"),
    ("executors/slurm/_script.py", "submitit"),
    ("stats/quantiles.py", "scipy"),
    ("report/page.py", "jinja2"),
    ("report/page.py", "markupsafe"),
    ("tasks/notify.py", "apprise"),
    ("guests/mlflow/__init__.py", "mlflow"),
    ("guests/wandb/__init__.py", "wandb"),
    # what every pytest run loads imports these where they are asked for
    ("guests/cvs/options.py", "pytest_xlatune"),
    ("guests/cvs/options.py", "pytest_xlatune.guests.cvs"),
    # programs of a node, which find us only in a process of ours
    ("executors/payload.py", "ctypes"),
}


def test_imports_stand_at_the_top() -> None:
    found = set()
    for path in MODULES:
        for function in nodes_of(path):
            if package_of(path) != "workers" and isinstance(function, ast.FunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.Import):
                        found |= {(said(path), alias.name) for alias in node.names}
                    elif isinstance(node, ast.ImportFrom):
                        found.add((said(path), str(node.module)))
    assert found == INSIDE


def test_an_unrelated_run_of_pytest_loads_little() -> None:
    code = (
        "import sys, pytest; before = set(sys.modules); import pytest_xlatune.plugin; "
        "import pytest_xlatune.off, pytest_xlatune.guests.cvs.options; "
        "print(*sorted(sys.modules.keys() - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240
    )
    assert done.stdout.split() == [
        "pytest_xlatune",
        *(f"pytest_xlatune.guests{name}" for name in ("", ".cvs", ".cvs.options")),
        "pytest_xlatune.off",
        *(f"pytest_xlatune.plugin{name}" for name in ("", ".hooks")),
        *(f"pytest_xlatune.sweep{name}" for name in ("", ".markers")),
    ]


ROOT = Path(__file__).parents[2]
# of the checkout alone: what a pipeline, a forge or an editor reads
NOT_PUBLISHED = {".ci", ".github", ".gitlab", ".pre-commit-config.yaml", ".gitignore"}


def lines_of(*argv: str) -> list[str]:
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 128:
        pytest.skip("no checkout of git")
    return done.stdout.split()


def test_the_builder_takes_every_file_of_the_checkout_but_those_of_a_pipeline() -> None:
    """What the built archives hold, asked of the builder alone, which takes no second."""
    if not os.environ.get("CI"):  # which runs this test and does not skip it
        pytest.importorskip("hatchling", reason="`pip install --group package` installs it")
    from hatchling.builders.sdist import SdistBuilder
    from hatchling.builders.wheel import WheelBuilder

    taken = {
        builder: {each.distribution_path for each in builder(str(ROOT)).recurse_included_files()}
        for builder in (SdistBuilder, WheelBuilder)
    }
    of_itself = {"LICENSE", "pyproject.toml"}  # which the builder adds when it builds
    tracked = set(lines_of("git", "ls-files"))
    published = {name for name in tracked if name.split("/")[0] not in NOT_PUBLISHED}
    assert published - taken[SdistBuilder] == of_itself
    assert set(lines_of("git", "ls-files", "pytest_xlatune")) - taken[WheelBuilder] == set()
    assert {each.split("/")[0] for each in taken[WheelBuilder]} == {"pytest_xlatune"}
