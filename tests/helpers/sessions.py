"""Sessions of pytest inside a test: a tenth of the CPU of a session in a process of its own."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import itertools
import os
import pkgutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest._code.source import Source, getstatementrange_ast

from pytest_xlatune.model.result import StudyRecord
from pytest_xlatune.sweep.registry import KINDS
from tests.helpers.quick_trials import QuickExecutor, git_but_once
from tests.helpers.waiting import LIMIT_S


def load_everything() -> None:
    """Import the product and what it needs, before the first session inside a test.

    Such a session forgets what it has imported itself, and numpy cannot be imported twice.
    """
    import pytest_xlatune

    for name in ("scipy.stats", "submitit", "tabulate", "jinja2"):
        importlib.import_module(name)
    for each in pkgutil.walk_packages(pytest_xlatune.__path__, "pytest_xlatune."):
        if ".workers." not in each.name and not each.name.endswith("__main__"):
            importlib.import_module(each.name)


def run_inside(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    """Run pytest in this process; a trial of this machine has run when it is submitted.

    The test must ask for the fixture `loaded` before `pytester`. Kills and Ctrl-C need
    `pytester.runpytest_subprocess`, two workers `run_with_workers`.
    """
    workers = [
        each for each, after in itertools.pairwise((*args, ""))
        if each.startswith("-n") and (each[2:] or after) != "0"
    ]  # fmt: skip
    assert not workers, args
    with quick_trials(), warnings.catch_warnings(), pytest.MonkeyPatch.context() as patched:
        warnings.simplefilter("default")  # the filters of our own session are no user's
        patched.setattr(sys, "argv", ["pytest", "-p", "xlatune", *args])  # the record quotes it
        patched.setattr("_pytest._code.code.getstatementrange_ast", _statement_range)
        # an alarm of the test's own limit would only fail the session's test that waits just then
        return pytester.runpytest_inprocess("-p", "xlatune", f"--timeout={LIMIT_S:.0f}", *args)


@functools.lru_cache(maxsize=32)
def _parsed(text: str) -> ast.AST:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text, "source", "exec")


def _statement_range(
    lineno: int, source: Source, *, astnode: ast.AST | None = None
) -> tuple[ast.AST, int, int]:
    """Read a module of a traceback once: pytest reads its own ones anew for each that it shows."""
    return getstatementrange_ast(lineno, source, astnode=astnode or _parsed(str(source)))


@contextlib.contextmanager
def quick_trials() -> Iterator[None]:
    """Have a trial of this machine run when it is submitted: for our command in this process."""
    # a conftest of the session may put something into the executor and into the product's modules
    executor = type(QuickExecutor.__name__, (QuickExecutor,), {})
    with _kept_modules(), pytest.MonkeyPatch.context() as patched:
        patched.setattr("pytest_xlatune.executors.local.LocalExecutor", executor)
        patched.setattr("pytest_xlatune.campaign.TURN_S", 0.05 if QuickExecutor.beside else 0.0)
        patched.setattr("pytest_xlatune.workers.probe_environment._git", git_but_once)
        # the limit of such a session is what ends one that would never end
        patched.setattr("pytest_xlatune.plugin.fixtures.untimed", contextlib.nullcontext)
        patched.setattr("os.fsync", lambda _: None)  # no power fails meanwhile
        yield


def run_with_workers(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    """Run pytest in a process of its own, for `-n 2`; a trial has run when it is submitted."""
    # a folder of its own, beside no `pytest_xlatune`: the installed one is what is tested
    tests = pytester.path.parent / "path-of-the-tests" / "tests"
    if not tests.exists():
        tests.parent.mkdir()
        tests.symlink_to(Path(__file__).parents[1])
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(tests.parent), prepend=os.pathsep)
        return pytester.runpytest_subprocess(
            *("-p", "xlatune", "-p", "tests.helpers.quick_plugin"), *args, timeout=240
        )


@contextlib.contextmanager
def _kept_modules() -> Iterator[None]:
    """Take back what a session puts into the modules of the product, and into its registries."""
    ours = [each for name, each in sys.modules.items() if name.startswith("pytest_xlatune")]
    tables = [*map(vars, ours), KINDS, StudyRecord._kinds]
    before = [dict(each) for each in tables]
    try:
        yield
    finally:
        for table, names in zip(tables, before, strict=True):
            table.clear()
            table.update(names)
