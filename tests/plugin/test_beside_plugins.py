"""Beside other plugins of pytest: pytest-timeout counts no waiting, pytest-html shows a verdict."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_xlatune.plugin import fixtures
from pytest_xlatune.plugin.controller import Controller
from pytest_xlatune.tasks.notify import Notifier
from tests.helpers.second_looks import ALONE_AND_WITH_WORKERS
from tests.helpers.sessions import run_inside
from tests.plugin.conftest import Folder

WAITS = """\
import time
from pytest_xlatune.plugin.fixtures import untimed
def test_waits(request):
    with untimed(request.config):
        time.sleep(0.8)

def test_works_too_long(request):
    with untimed(request.config):
        time.sleep(0.1)
    time.sleep(5)

def test_works_too_long_before_it_waits(request):
    time.sleep(5)
    with untimed(request.config):
        pass
"""


@pytest.mark.parametrize("more", [(), ("-o", "timeout_func_only=true")], ids=["all", "func only"])
def test_waiting_does_not_count_against_a_limit_of_a_test(
    pytester: pytest.Pytester, more: tuple[str, ...]
) -> None:
    pytester.makepyfile(WAITS)
    done = pytester.runpytest_subprocess("-p", "xlatune", "-o", "timeout=0.4", *more)
    done.assert_outcomes(passed=1, failed=2)
    done.stdout.fnmatch_lines(["*Timeout (>0.4s) from pytest-timeout*"])


def test_a_session_without_a_limit_is_left_alone() -> None:
    config: Any = SimpleNamespace(stash=pytest.Stash())
    with fixtures.untimed(config):
        pass


def test_the_page_of_pytest_html_shows_the_verdict_and_escapes_it(tmp_path: Path) -> None:
    options: Any = SimpleNamespace(workdir=tmp_path, reports=tmp_path)
    config: Any = None
    controller = Controller(config, options, "me", Notifier(()))
    words = [("xlatune.words", "FASTER <b>"), ("xlatune", '{"delta": 0.034}')]
    cells = ['<td class="col-result">Passed</td>', '<td class="col-testId">t[fast]</td>']
    for properties in ((), (*words, ("xlatune.profile", "fast"))):
        before = list(cells)
        report: Any = SimpleNamespace(user_properties=properties)
        controller.pytest_html_results_table_row(report, cells)
        assert (cells == before) is (not properties)
    shown = "t[fast] <strong>fast FASTER &lt;b&gt; +3.4 %</strong></td>"
    assert cells[1] == f'<td class="col-testId">{shown}'


def test_a_sweep_without_the_plugin_is_left_out_in_a_line(folder: Folder) -> None:
    folder.put("test_other.py", "def test_one(): pass\n")
    argv = ("-p", "no:xlatune", "test_sweep.py", "test_other.py")
    done = folder.pytester.runpytest_subprocess(*argv)
    assert done.parseoutcomes()["passed"] == 1
    assert "errors" not in done.parseoutcomes()
    done.stdout.fnmatch_lines(["xlatune: the plugin is off*test_sweep.py*"])


def test_a_failed_assertion_explains_itself_without_the_plugin_too(
    loaded: None, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        """
        from pytest_xlatune.model.message import verbatim
        from pytest_xlatune.model.result import Verdict, VerdictKind
        from pytest_xlatune.tasks.answers import Measured

        def test_gain():
            measured = Measured(Verdict(
                arm="overlap-2", kind=VerdictKind.INCONCLUSIVE, delta=0.004,
                ci95=(-0.015, 0.024), n=4, mde80=0.013, method=verbatim("Dunnett, K=3")))
            assert measured.faster_by(0.02)
        """
    )
    done = run_inside(pytester, plugin="no:xlatune")
    done.assert_outcomes(failed=1)
    figures = "delta +0.4 %, 95 % [[]-1.5, +2.4], n = 4, INCONCLUSIVE, 80 % power at 1.3 %"
    done.stdout.fnmatch_lines(
        [f"E *overlap-2 is faster by more than 2.0 %: not shown, {figures}; Dunnett, K=3*"]
    )


@pytest.mark.parametrize("run", ALONE_AND_WITH_WORKERS)
def test_an_expression_that_selects_nothing_gets_a_hint(folder: Folder, run: str) -> None:
    done = folder.run("-k", "fsat")
    assert done.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    done.stdout.fnmatch_lines(["xlatune: -k fsat selects none of 6 tests; did you mean fast? *"])
    folder.put("test_other.py", "def test_nothing(): pass\n")
    done = getattr(folder, run)("-k", "nothing", "test_sweep.py", "test_other.py")
    assert done.ret == 0
    assert "selects none" not in done.stdout.str()


def test_a_sweep_that_ends_at_once_ends_in_three_lines(folder: Folder) -> None:
    folder.put("trainer.py", "import sys; sys.exit(3)\n")
    _, _, shown = folder.run().stdout.str().partition("= xlatune: pretend =")
    lines = shown.partition("\nexit status")[0].splitlines()[1:]
    reason = "no trial has a figure; the reason is shown at test_sweep.py::test_baseline"
    assert len(lines) == 3, lines
    assert reason in lines[0]
    assert lines[1].startswith("written: reports/pretend/leaderboard.md and ")
    assert lines[2].endswith("goes on")


RING = """\
import gc
import weakref

class Ring:
    pass

def test_leaves_a_ring(request):
    gc.disable()
    ring = Ring()
    ring.itself = ring
    weakref.finalize(ring, setattr, request.config, "ring_is_freed", True)
"""
FREED = """

def test_the_ring_is_freed(request):
    gc.enable()
    gc.collect()
    assert request.config.ring_is_freed
"""


def test_what_other_tests_leave_in_cycles_is_freed(folder: Folder) -> None:
    folder.put("test_sweep.py", RING + folder.read("test_sweep.py") + FREED)
    folder.run().assert_outcomes(passed=7, xfailed=1)
