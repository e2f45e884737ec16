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
PROGRAMS = pytest.mark.part("programs")


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


def run_pytest(folder: Path, *argv: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *argv],
        cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert "Traceback (most" not in done.stdout + done.stderr
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("argv", "status", "shown"),
    [
        pytest.param(("--help",), 0, "--xlatune-model", id="its help", marks=PROGRAMS),
        pytest.param(("--markers",), 0, "@pytest.mark.wave1_5", id="its markers", marks=PROGRAMS),
        pytest.param((), 5, "hypothesis is not installed here", id="without a word"),
        pytest.param(("--collect-only", "-q", SWEEP), 0, "opt-level-1", id="a sweep"),
    ],
)
def test_pytest_starts_in_the_checkout_with_what_a_sweep_needs(
    bare: dict[str, str], argv: tuple[str, ...], status: int, shown: str
) -> None:
    no = ("-p", "no:hypothesispytest", "-p", "no:cacheprovider")
    ended, out = run_pytest(ROOT, *no, *argv, env=bare)
    assert ended == status, out
    assert shown in out


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        pytest.param((), "1 passed", id="without a word", marks=PROGRAMS),
        pytest.param(("--help",), "--xlatune-model", id="its help", marks=PROGRAMS),
        pytest.param(("-n", "2"), "1 passed", id="with workers"),
        pytest.param(("-p", "no:xlatune"), "1 passed", id="without the plugin"),
    ],
)
def test_a_project_that_merely_has_the_plugin_notices_nothing(
    tmp_path: Path, argv: tuple[str, ...], shown: str
) -> None:
    """Its warnings are errors, and its markers strict; what a sweep left lies about."""
    strict = "addopts = --strict-markers --strict-config\nfilterwarnings = error\n"
    (tmp_path / "pytest.ini").write_text(f"[pytest]\n{strict}")
    (tmp_path / "test_own.py").write_text("def test_own():\n    assert True\n", encoding="utf-8")
    (tmp_path / ".xlatune" / "own" / "cell").mkdir(parents=True)
    (tmp_path / ".xlatune" / "own" / "cell" / "ledger.jsonl").write_text("{}\n")
    ended, out = run_pytest(tmp_path, *argv)
    assert ended == 0, out
    assert shown in out


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
