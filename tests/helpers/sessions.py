"""Sessions of pytest inside a test: a tenth of the CPU of a session in a process of its own."""

from __future__ import annotations

import importlib
import pkgutil
import warnings

import pytest

from tests.helpers.costs import note_session_inside
from tests.helpers.quick_trials import QuickExecutor


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

    The test must ask for the fixture `loaded` before `pytester`. Two workers, kills and Ctrl-C need
    `pytester.runpytest_subprocess`.
    """
    assert not any(arg.startswith("-n") and arg not in ("-n0", "-n") for arg in args), args
    note_session_inside()
    with pytest.MonkeyPatch.context() as patched, warnings.catch_warnings():
        warnings.simplefilter("default")  # the filters of our own session are no user's
        patched.setattr("pytest_xlatune.executors.local.LocalExecutor", QuickExecutor)
        patched.setattr("pytest_xlatune.campaign.TURN_S", 0.0)
        patched.setattr("os.fsync", lambda _: None)  # no power fails meanwhile
        return pytester.runpytest_inprocess("-p", "xlatune", *args)
