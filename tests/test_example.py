"""The checkout after `make sweep`, and a project beside it: pytest starts, no file is changed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
SWEEP = "sweeps/test_quickstart.py"


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment whose Python finds no hypothesis, as that of `make sweep`."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.machinery as machinery\n"
        "found = machinery.PathFinder.find_spec\n"
        "class Finder:  # no function: pytest makes it an attribute of a class\n"
        "    def __call__(self, name, *args, **named):\n"
        "        return None if name == 'hypothesis' else found(name, *args, **named)\n"
        "machinery.PathFinder.find_spec = Finder()\n",
        encoding="utf-8",
    )
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


@pytest.mark.parametrize(
    ("argv", "status", "said"),
    [
        pytest.param(("--help",), 0, "--xlatune-model", id="its help"),
        pytest.param(("--markers",), 0, "@pytest.mark.wave1_5", id="its markers"),
        pytest.param((), 5, "hypothesis is not installed here", id="without a word"),
        pytest.param(("--collect-only", "-q", SWEEP), 0, "opt-level-1", id="a sweep"),
    ],
)  # fmt: skip
def test_pytest_starts_in_the_checkout_with_what_a_sweep_needs(
    bare: dict[str, str], argv: tuple[str, ...], status: int, said: str
) -> None:
    no = ("-p", "no:hypothesispytest", "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *no, *argv],
        cwd=ROOT, env=bare, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    assert said in done.stdout
    assert "Traceback (most" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        pytest.param((), "1 passed", id="without a word"),
        pytest.param(("--help",), "--xlatune-model", id="its help"),
        pytest.param(("--markers",), "@pytest.mark.wave1_5", id="its markers"),
        pytest.param(("-n", "2"), "1 passed", id="with workers"),
        pytest.param(("-p", "no:xlatune"), "1 passed", id="without the plugin"),
    ],
)
def test_a_project_that_merely_has_the_plugin_notices_nothing(
    tmp_path: Path, argv: tuple[str, ...], said: str
) -> None:
    """Its warnings are errors, and its markers strict; what a sweep left lies about."""
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = --strict-markers --strict-config\nfilterwarnings = error\n"
    )
    (tmp_path / "test_own.py").write_text("def test_own():\n    assert True\n", encoding="utf-8")
    (tmp_path / ".xlatune" / "own" / "cell").mkdir(parents=True)
    (tmp_path / ".xlatune" / "own" / "cell" / "ledger.jsonl").write_text("{}\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *argv],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert said in done.stdout
    assert "Traceback (most" not in done.stdout + done.stderr


def test_what_a_sweep_writes_into_the_checkout_is_ignored_by_git() -> None:
    files = [f"{each}/quickstart/x" for each in ("reports", ".xlatune")]
    done = subprocess.run(
        ["git", "check-ignore", *files], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode == 128:
        pytest.skip("no checkout of git")
    assert done.stdout.split() == files
    listed = subprocess.run(
        ["git", "ls-files", "reports"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert all(each.startswith("reports/example/") for each in listed.stdout.split())
    assert "reports/example/quickstart/leaderboard.md" in listed.stdout


def test_the_readme_shows_the_committed_example() -> None:
    example = script()
    readme = example.README.read_text(encoding="utf-8")
    assert example.written(readme, example.BOARD.read_text(encoding="utf-8")) == readme


def script() -> ModuleType:
    path = ROOT / "sweeps" / "quickstart" / "example.py"
    spec = importlib.util.spec_from_file_location("example", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
