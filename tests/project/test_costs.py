"""The table of what tests cost, and the budget that makes a run fail."""

from __future__ import annotations

import pytest

from tests.helpers import costs

REGISTERED = """
from tests.helpers.costs import Costs
def pytest_configure(config):
    config.pluginmanager.register(Costs(config, is_bound=True), "costs")
"""
TESTS = """
import subprocess, sys
def test_calls():
    pass
def test_starts_a_process():
    subprocess.run([sys.executable, "-c", ""], check=True)
"""


@pytest.mark.parametrize(
    ("most", "status", "said"),
    [
        pytest.param({}, pytest.ExitCode.OK, None, id="within the budget"),
        pytest.param(
            {"MOST_CPU_S": 0}, pytest.ExitCode.TESTS_FAILED, "*CPU s were used, 0 may be", id="CPU"
        ),
        pytest.param(
            {"MOST_SESSIONS": -1}, pytest.ExitCode.TESTS_FAILED,
            "*0 sessions of pytest were started, -1 may be", id="sessions",
        ),
    ],
)  # fmt: skip
def test_a_run_over_its_budget_fails_and_lists_the_dearest(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    most: dict[str, int],
    status: pytest.ExitCode,
    said: str | None,
) -> None:
    for name, value in {"MOST_CPU_S": 10**9, **most}.items():
        monkeypatch.setattr(costs, name, value)
    pytester.makeconftest(REGISTERED)
    pytester.makepyfile(TESTS)
    done = pytester.runpytest_inprocess("-p", "no:xlatune")
    assert done.ret == status
    done.stdout.fnmatch_lines(["| other processes *|* 1 |*", "| in process *|* 1 |*"])
    if said:
        done.stdout.fnmatch_lines([f"over the budget of make test: {said}", "*::test_*"])
    else:
        done.stdout.no_fnmatch_line("*over the budget*")


def test_a_session_of_pytest_is_told_from_other_programs() -> None:
    before = dict(costs._started)
    for argv in (["py", "-m", "pytest"], ["py", "-mpytest"], ["bin/pytest", "-q"], ["xlatune"]):
        costs._note_process("subprocess.Popen", (argv[0], argv, None, None))
    assert costs._started["sessions"] - before["sessions"] == 3
    assert costs._started["processes"] - before["processes"] == 1
