"""The checkout after `make sweep`, and a project beside it: pytest starts, no file is changed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
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


programs = pytest.mark.part("programs")


@pytest.mark.parametrize(
    ("argv", "status", "said"),
    [
        pytest.param(("--help",), 0, "--xlatune-model", id="its help", marks=programs),
        pytest.param(("--markers",), 0, "@pytest.mark.wave1_5", id="its markers", marks=programs),
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
        pytest.param((), "1 passed", id="without a word", marks=programs),
        pytest.param(("--help",), "--xlatune-model", id="its help", marks=programs),
        pytest.param(("--markers",), "@pytest.mark.wave1_5", id="its markers", marks=programs),
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
    # tox writes a file .venv where there is no folder of that name
    files = [*(f"{each}/quickstart/x" for each in ("reports", ".xlatune")), ".venv", ".tox/x"]
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


def test_documents_pages_readme_tutorial_and_picture_show_the_committed_example() -> None:
    """As the code of today writes them from the run's JSON, headers included."""
    example = script()
    made = example.made()
    assert [path.name for path in made].count("leaderboard.html") == 2
    for path, text in made.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: say `make example`"


def test_the_committed_json_has_what_the_code_of_today_concludes_of_its_trials() -> None:
    concluding = script("concluded")
    found = concluding.written()
    assert len(found) == 8
    for path, text in found.items():
        # processors differ in the last digits of a product of matrices
        wanted = json.loads(text, parse_float=lambda each: pytest.approx(float(each), rel=1e-9))
        told = json.loads(path.read_text(encoding="utf-8"))
        assert told == wanted, f"{path.name}: say `python sweeps/quickstart/concluded.py`"


def script(name: str = "example") -> ModuleType:
    path = ROOT / "sweeps" / "quickstart" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # a dataclass looks there
    spec.loader.exec_module(module)
    return module
