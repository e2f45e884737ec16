"""The package as syntax trees: several tests look at all of it, so it is read once in a process."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest_xlatune

PACKAGE = Path(pytest_xlatune.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
