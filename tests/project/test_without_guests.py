"""The package without its folder of guests: it runs sweeps, and its own tests hold."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_xlatune
from tests.helpers.guests import install

ROOT = Path(__file__).parents[2]
# those of each place where guests come in; the last one runs whole sweeps of a study
TESTS = (
    *("logs/test_brought_formats.py", "logs/test_read_logs.py", "report/test_exports.py"),
    *(
        "cli/test_brought_commands.py",
        "cli/test_command_help.py",
        "sweep/test_brought_launchers.py",
    ),
    *("tasks/test_explained.py", "studies/test_toy.py", "plugin/test_another_study.py"),
)
# Of the two that are called pytest-xlatune, the first: the other is this checkout's.
ONE_OF_EACH = """\
import importlib.metadata

_distributions = importlib.metadata.distributions


def distributions(**given):
    first = {}
    for each in _distributions(**given):
        first.setdefault(each.metadata["Name"], each)
    return list(first.values())


importlib.metadata.distributions = distributions


def pytest_terminal_summary(terminalreporter):
    import sys
    import pytest_xlatune

    guests = [each for each in sys.modules if each.startswith("pytest_xlatune.guests")]
    terminalreporter.write_line(f"tested: {pytest_xlatune.__file__} {guests}")
"""


@pytest.mark.part("sweeps")
def test_the_tests_of_the_core_hold_without_guests(tmp_path: Path) -> None:
    there = tmp_path / "there"
    left_out = shutil.ignore_patterns("guests", "__pycache__")
    copied = shutil.copytree(
        Path(pytest_xlatune.__file__).parent, there / "pytest_xlatune", ignore=left_out
    )
    install(there, "pytest-xlatune", {"pytest11": {"xlatune": "pytest_xlatune.plugin"}},
            {"one_of_each": ONE_OF_EACH})  # fmt: skip
    env = {name: each for name, each in os.environ.items() if "PYTEST" not in name}
    done = subprocess.run(
        [sys.executable, "-c", "import pytest, sys; sys.exit(pytest.main())",
         *("-p", "one_of_each", "-p", "no:cacheprovider", "-n", "0", "-q"),
         *(f"tests/{each}" for each in TESTS)],
        env={**env, "PYTHONPATH": str(there), "PYTHONSAFEPATH": "1"},
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
    assert f"tested: {copied}/__init__.py []" in done.stdout
