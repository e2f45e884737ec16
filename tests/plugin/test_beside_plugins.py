"""Beside other plugins of pytest: pytest-timeout counts no waiting, pytest-html shows a verdict."""

from __future__ import annotations

import pytest

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
"""


@pytest.mark.parametrize("more", [(), ("-o", "timeout_func_only=true")], ids=["all", "func only"])
def test_waiting_does_not_count_against_a_limit_of_a_test(
    pytester: pytest.Pytester, more: tuple[str, ...]
) -> None:
    pytester.makepyfile(WAITS)
    done = pytester.runpytest_subprocess("-p", "xlatune", "-o", "timeout=0.4", *more)
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["*Timeout (>0.4s) from pytest-timeout*"])


def test_a_sweep_without_the_plugin_is_left_out_in_a_line(folder: Folder) -> None:
    folder.put("test_other.py", "def test_one(): pass\n")
    argv = ("-p", "no:xlatune", "test_sweep.py", "test_other.py")
    done = folder.pytester.runpytest_subprocess(*argv)
    assert done.parseoutcomes()["passed"] == 1
    assert "errors" not in done.parseoutcomes()
    done.stdout.fnmatch_lines(["xlatune: the plugin is off*test_sweep.py*"])


def test_an_expression_that_selects_nothing_names_the_tests(folder: Folder) -> None:
    done = folder.run("-k", "fsat")
    assert done.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    done.stdout.fnmatch_lines(["xlatune: no test of a sweep is selected; known: *fast*"])
    folder.put("test_other.py", "def test_nothing(): pass\n")
    done = folder.run("-k", "nothing", "test_sweep.py", "test_other.py")
    assert done.ret == 0
    assert "no test of a sweep" not in done.stdout.str()
