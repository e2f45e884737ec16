"""The checkout after `make sweep`, and a project beside it: pytest starts, no file is changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.benchmarks import load
from tests.helpers.tables import rows

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "sweeps" / "quickstart"
SWEEP = "sweeps/test_quickstart.py"


# a Python that finds no hypothesis, as that of `make sweep`
BARE = """\
import importlib.machinery as machinery
found = machinery.PathFinder.find_spec
class Finder:  # no function: pytest makes it an attribute of a class
    def __call__(self, name, *args, **named):
        return None if name == 'hypothesis' else found(name, *args, **named)
machinery.PathFinder.find_spec = Finder()
"""


def run_pytest(folder: Path, *argv: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *argv],
        cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert "Traceback (most" not in done.stdout + done.stderr
    return done.returncode, done.stdout


@rows(
    "argv, status, shown",
    {
        "without a word": ((), 5, "hypothesis is not installed here"),
        "a sweep": (("--collect-only", "-q", SWEEP), 0, "opt-level-1"),
    },
)
def test_pytest_starts_in_the_checkout_with_what_a_sweep_needs(
    tmp_path: Path, argv: tuple[str, ...], status: int, shown: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(BARE, encoding="utf-8")
    no = ("-p", "no:hypothesispytest", "-p", "no:cacheprovider")
    ended, out = run_pytest(ROOT, *no, *argv, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert ended == status, out
    assert shown in out


@rows(
    "argv",
    {"with workers": ("-n", "2"), "without the plugin": ("-p", "no:xlatune")},
)
def test_a_project_that_merely_has_the_plugin_notices_nothing(
    tmp_path: Path, argv: tuple[str, ...]
) -> None:
    """Its warnings are errors, and its markers strict; what a sweep left lies about."""
    strict = "addopts = --strict-markers --strict-config\nfilterwarnings = error\n"
    (tmp_path / "pytest.ini").write_text(f"[pytest]\n{strict}")
    (tmp_path / "test_own.py").write_text("def test_own():\n    assert True\n", encoding="utf-8")
    (tmp_path / ".xlatune" / "own" / "cell").mkdir(parents=True)
    (tmp_path / ".xlatune" / "own" / "cell" / "ledger.jsonl").write_text("{}\n")
    ended, out = run_pytest(tmp_path, *argv)
    assert ended == 0, out
    assert "1 passed" in out


def test_documents_pages_readme_tutorial_and_picture_show_the_committed_example() -> None:
    """As the code of today writes them from the run's JSON, headers included."""
    made = load("example", QUICKSTART).made()
    assert [path.name for path in made].count("leaderboard.html") == 2
    for path, text in made.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: say `make example`"


def test_the_committed_json_has_what_the_code_of_today_concludes_of_its_trials() -> None:
    found = load("concluded", QUICKSTART).written()
    assert len(found) == 8
    for path, text in found.items():
        # processors differ in the last digits of a product of matrices
        wanted = json.loads(text, parse_float=lambda each: pytest.approx(float(each), rel=1e-9))
        told = json.loads(path.read_text(encoding="utf-8"))
        assert told == wanted, f"{path.name}: say `python sweeps/quickstart/concluded.py`"
