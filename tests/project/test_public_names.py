"""A sweep file needs `pytest_xlatune` alone, and so do the examples of the pages."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest_xlatune

ROOT = Path(__file__).parents[2]
# extend.md is for people who extend the package, and shows what is inside
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.stem != "extend"),
]
SWEEPS = sorted((ROOT / "sweeps").glob("test_*.py"))


def test_examples_import_from_the_package_alone() -> None:
    for path in (*PAGES, *SWEEPS):
        text = path.read_text(encoding="utf-8")
        code = [text] if path in SWEEPS else re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        for example in code:
            inner = re.findall(r"^ *(?:from|import) pytest_xlatune\..*", example, re.MULTILINE)
            assert not inner, path


def test_every_public_name_is_there_and_costs_nothing_before() -> None:
    code = "import sys, pytest_xlatune; print(sum('xlatune' in each for each in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == 1
    for name in pytest_xlatune.__all__:
        assert getattr(pytest_xlatune, name).__name__
    assert sorted(pytest_xlatune.__all__) == pytest_xlatune.__all__
