"""A fixture that a project defines decides: retries, nodes, the look before anything runs."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import Folder

CRASHES = """\
        profile("crash", env={"MARK": "MARK_FILE"}),
        profile("same", "--xla_other=1"),
"""
SIZED = '        profile("sized", env={"NCCL_BUFFSIZE": "16M"}),\n'


def fixture(name: str, value: str, *asked: str) -> str:
    """A conftest with one fixture."""
    return f"""\
import pytest
from pytest_xlatune import Preflight, RetryPolicy

@pytest.fixture(scope="module")
def {name}({", ".join(asked)}):
    return {value}
"""


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_retry_policy_of_the_project_decides(folder: Folder, attempts: int) -> None:
    mark = str(folder.path / "mark")  # the first attempt dies, the second one would not
    folder.write(profiles=CRASHES.replace("MARK_FILE", mark))
    folder.put("conftest.py", fixture("retry_policy", f"RetryPolicy(max_attempts={attempts})"))
    folder.run("-k", "crash")
    assert len([trial for trial in folder.submitted if trial.startswith("crash-")]) == attempts


def test_the_projects_look_adds_to_ours_or_takes_its_place(folder: Folder) -> None:
    fault = 'Preflight(faults=(*preflight.faults, "the fabric is in maintenance"))'
    folder.put("conftest.py", fixture("preflight", fault, "preflight"))
    refused = folder.run("-m", "wave2")
    refused.assert_outcomes(errors=3)
    refused.stdout.fnmatch_lines(["*nothing was submitted:*"])
    assert "the fabric is in maintenance" in refused.stdout.str()
    assert folder.submitted == []
    note = 'Preflight(notes=("the fabric was tested",))'
    folder.put("conftest.py", fixture("preflight", note, "preflight"))
    folder.run("-m", "wave1").assert_outcomes(passed=1, deselected=5)
    assert "the fabric was tested" in [event["text"] for event in folder.events("noted")]
    # a rule of the catalog forbids this profile, and the project knows better
    folder.write(profiles=f'        profile("fast", "--xla_fast=1"),\n{SIZED}')
    folder.put("conftest.py", "")
    assert folder.run("-k", "sized").ret != 0
    assert not [trial for trial in folder.submitted if trial.startswith("sized")]
    folder.put("conftest.py", fixture("preflight", "Preflight()"))
    folder.run("-k", "sized").assert_outcomes(passed=1, deselected=4)


def test_nodes_of_the_project_are_the_cells(folder: Folder) -> None:
    # this machine is neither node: the executor says so, and nothing runs
    for nodes, message in (
        ('("n1", "n2")', "*found nodes n1, n2*"),
        ('("n1", "other")', "*another cell: nodelist was*"),
    ):
        folder.put("conftest.py", fixture("pinned_nodes", nodes))
        refused = folder.run("-m", "wave1")
        refused.assert_outcomes(errors=1, deselected=5)
        refused.stdout.fnmatch_lines([message])
    (opened, *_) = folder.events("campaign-opened")
    assert [cell["nodelist"] for cell in opened["cells"]] == [["n1", "n2"]]


def test_a_verdict_has_its_figures(folder: Folder) -> None:
    test = """


def test_figures(measure):
    fast = measure("fast")
    assert (fast.n, fast.ci95, fast.verdict.arm, len(fast.jobs)) == (1, None, "fast", 1)
    assert fast.tgs > 1000 and fast.delta > 0.05
"""
    folder.edit("test_sweep.py", ("", test))
    folder.run("-k", "figures or test_flag").assert_outcomes(passed=3, xfailed=1, deselected=3)
