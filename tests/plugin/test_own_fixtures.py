"""A fixture that a project defines decides: retries, nodes, the look before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

CRASHES = """\
        profile("crash", env={"MARK": "MARK_FILE"}),
        profile("same", "--xla_other=1"),
"""
POLICY = """\
import pytest
from pytest_xlatune import RetryPolicy

@pytest.fixture(scope="module")
def retry_policy():
    return RetryPolicy(max_attempts=ATTEMPTS)
"""
LOOK = """\
import pytest
from pytest_xlatune import Preflight

@pytest.fixture(scope="module")
def preflight(preflight):
    assert not preflight.faults
    return Preflight(FOUND)
"""


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_retry_policy_of_the_project_decides(folder: Any, attempts: int) -> None:
    mark = str(folder.path / "mark")  # the first attempt dies, the second one would not
    folder.write(profiles=CRASHES.replace("MARK_FILE", mark))
    (folder.path / "conftest.py").write_text(POLICY.replace("ATTEMPTS", str(attempts)), "utf-8")
    folder.run("-m", "wave2")
    crashes = [each for each in folder.submitted if each.startswith("crash-")]
    assert len(crashes) == attempts


def test_a_fault_of_the_projects_look_keeps_all_from_running(folder: Any) -> None:
    text = LOOK.replace("FOUND", 'faults=("the fabric is in maintenance",)')
    (folder.path / "conftest.py").write_text(text, "utf-8")
    done = folder.run("-m", "wave2")
    done.assert_outcomes(errors=3)
    done.stdout.fnmatch_lines(["*nothing was submitted:*"])
    assert "the fabric is in maintenance" in done.stdout.str()
    assert folder.submitted == []
    text = LOOK.replace("FOUND", 'notes=("the fabric was tested",)')
    (folder.path / "conftest.py").write_text(text, "utf-8")
    folder.run("-m", "wave1").assert_outcomes(passed=1, deselected=5)
    assert "the fabric was tested" in [each["text"] for each in folder.events("noted")]


def test_the_projects_look_takes_the_place_of_ours(folder: Any) -> None:
    # a rule of the catalog forbids this profile, and the project knows better
    sized = '        profile("sized", env={"NCCL_BUFFSIZE": "16M"}),\n'
    folder.write(profiles=CRASHES.replace("MARK_FILE", "mark") + sized)
    assert folder.run("-k", "sized").ret != 0
    assert folder.submitted == []
    text = LOOK.replace("preflight(preflight)", "preflight()").replace("    assert not", "    #")
    (folder.path / "conftest.py").write_text(text.replace("FOUND", ""), "utf-8")
    folder.run("-k", "sized").assert_outcomes(passed=1, deselected=5)


def test_nodes_of_the_project_are_the_cells(folder: Any) -> None:
    own = (
        'import pytest\n\n@pytest.fixture(scope="module")\ndef pinned_nodes():\n    return NODES\n'
    )
    (folder.path / "conftest.py").write_text(own.replace("NODES", '("n1", "n2")'), "utf-8")
    # this machine is neither: the executor says so, and nothing runs
    done = folder.run("-m", "wave1")
    done.assert_outcomes(errors=1, deselected=5)
    done.stdout.fnmatch_lines(["*found nodes n1, n2*"])
    (opened, *_) = folder.events("campaign-opened")
    assert [each["nodelist"] for each in opened["cells"]] == [["n1", "n2"]]
    (folder.path / "conftest.py").write_text(own.replace("NODES", '("n1", "other")'), "utf-8")
    done = folder.run("-m", "wave1")
    done.assert_outcomes(errors=1, deselected=5)
    done.stdout.fnmatch_lines(["*another cell: nodelist was*"])


def test_a_fixture_of_another_kind_is_told(folder: Any) -> None:
    text = POLICY.replace("RetryPolicy(max_attempts=ATTEMPTS)", "1")
    (folder.path / "conftest.py").write_text(text, "utf-8")
    done = folder.run("-m", "wave1")
    done.assert_outcomes(errors=1, deselected=5)
    done.stdout.fnmatch_lines(["*retry_policy gives 1, expected RetryPolicy*"])


def test_a_verdict_has_its_figures(folder: Any) -> None:
    test = """\


def test_figures(measure):
    fast = measure("fast")
    assert fast.tgs > 1000
    assert fast.delta > 0.05
    assert fast.n == 1
    assert fast.ci95 is None
    assert fast.verdict.arm == "fast"
    assert len(fast.jobs) == 1
"""
    (folder.path / "test_sweep.py").write_text(folder.read("test_sweep.py") + test, "utf-8")
    folder.run("-k", "figures or test_flag").assert_outcomes(passed=3, xfailed=1, deselected=3)
