"""What the catalog's rules find is one message before the first trial; a control is let through."""

from __future__ import annotations

from typing import Any

from tests.plugin.conftest import SWEEP_FILE

FAULTY = """\
        profile("fast", "--xla_fast=1"),
        profile("buffer", env={"NCCL_BUFFSIZE": "16M"}),
        profile("threshold", "--xla_gpu_collective_permute_decomposer_threshold=1024"),
        profile("control-inflated", "--xla_gpu_collective_inflation_factor=2"),
"""
CONTROL = """\
        profile("fast", "--xla_fast=1"),
        profile("control-threshold", "--xla_gpu_collective_permute_decomposer_threshold=1024"),
"""


def test_faults_are_said_at_once_and_nothing_runs(folder: Any) -> None:
    folder.write(profiles=FAULTY)
    result = folder.run("-m", "wave2")
    assert result.ret != 0
    output = result.stdout.str()
    assert "cannot begin, nothing was submitted" in output
    assert "profile buffer: NCCL_BUFFSIZE=16M is read as 16" in output
    assert "[partner]" in output
    assert "profile control-inflated: --xla_gpu_collective_inflation_factor is never set" in output
    assert not list(folder.path.rglob("log.0.txt")), "no trial has run"


def test_a_control_is_measured(folder: Any) -> None:
    folder.write(profiles=CONTROL)
    result = folder.run("-m", "wave2")
    result.assert_outcomes(passed=2)


def test_what_only_the_targets_xla_can_say_stops_the_tests_behind_it_too(folder: Any) -> None:
    # the look at the flags is that of test_baseline; the other tests do not ask for it
    folder.pytester.makeconftest(
        """
        from pytest_xlatune.plugin import session
        from pytest_xlatune.prepare.preflight import Preflight

        session.look_at_flags = lambda *_, **__: Preflight(faults=("knows no flag",))
        """
    )
    text = SWEEP_FILE.replace("test_baseline(baseline", "test_baseline(preflight, baseline")
    folder.write(profiles=CONTROL, text=text)
    result = folder.run("-m", "wave1 or wave2")
    assert result.ret == 4
    assert "knows no flag" in result.stdout.str()
    assert not list(folder.path.rglob("log.0.txt")), "no trial has run"
