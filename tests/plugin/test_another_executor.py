"""An executor of another distribution, that of extend.md, runs a sweep by its name."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.executors.named import EXECUTORS
from tests.helpers.guests import install
from tests.helpers.how_to import whole
from tests.helpers.quick_trials import QuickExecutor

(MODULE,), PROJECT = whole("an executor")
# its trials run on nodes, each of which is this machine
FAR = """
from xlatune_pool import PoolExecutor


class FarExecutor(PoolExecutor):
    name = "far"
    is_here = False
    names_nodes = True
    has_queue = True


class Misnamed(PoolExecutor):
    name = "another"


POOL = 7
"""
FIRST = ("-m", "wave1 or wave2", "-k", "baseline or fast or same")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder with the distribution of the page, and with one more on top of it."""
    name, groups = PROJECT["name"], PROJECT["entry-points"]
    install(tmp_path / "site", name, groups, {"xlatune_pool": MODULE})
    more = {
        "far": "xlatune_far:FarExecutor",
        "misnamed": "xlatune_far:Misnamed",
        "number": "xlatune_far:POOL",
        "broken": "xlatune_broken:Executor",
    }
    modules = {"xlatune_far": FAR, "xlatune_broken": "import no_such_scheduler"}
    install(tmp_path / "site", "xlatune-more", {EXECUTORS.group: more}, modules)
    monkeypatch.syspath_prepend(tmp_path / "site")
    yield tmp_path / "site"
    for module in ("xlatune_pool", *modules):
        sys.modules.pop(module, None)


@pytest.fixture
def project(folder: Any, installed: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A sweep of this machine, which the executor may run; it waits between two looks."""
    monkeypatch.setattr(QuickExecutor, "beside", "none of them")
    monkeypatch.chdir(folder.path)
    return folder


def executors(folder: Any) -> set[str]:
    return {line["submission"]["executor"] for line in folder.events("attempt-submitted")}


def said_by(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    capsys.readouterr()
    assert main([*words]) == status
    told = capsys.readouterr()
    return told.out + told.err


def test_a_sweep_runs_by_an_executor_that_the_package_does_not_know(
    project: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = said_by(capsys, "plan", "test_sweep.py", "--executor", "pool")
    assert re.search(r"\d+ jobs to run, each on 1 node", plan)
    assert "Ways of running" not in plan
    assert "sbatch" not in plan
    done = project.run(*FIRST, "--xlatune-executor", "pool")
    done.assert_outcomes(passed=3)
    assert executors(project) == {"pool"}
    trials = len(project.submitted)
    assert trials >= 4, "two baselines and two profiles"
    jobs = said_by(capsys, "jobs").splitlines()
    assert len(jobs) == trials
    assert all(re.fullmatch(r"pool \d+ \S+ completed", each) for each in jobs)
    assert "pretend" in said_by(capsys, "watch", "--once")
    # what was measured is used again, and its time is that of a trial
    project.run(*FIRST, "--xlatune-executor", "pool").assert_outcomes(passed=3)
    assert len(project.submitted) == trials
    plan = said_by(capsys, "plan", "test_sweep.py", "--executor", "pool")
    assert f"the mean of {trials} here" in plan
    # where the distribution is gone nothing is asked of it
    monkeypatch.setattr(sys, "path", [each for each in sys.path if not each.endswith("site")])
    assert said_by(capsys, "jobs").splitlines() == jobs
    assert f"the mean of {trials} here" in said_by(capsys, "plan", "test_sweep.py")


def test_one_whose_trials_run_on_nodes_is_asked_for_them(
    project: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--xlatune-executor", "far")
    done = project.run(*FIRST, *asked)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stdout.fnmatch_lines(["*is missing the nodes (--xlatune-nodelist *"])
    done = project.run(*FIRST, *asked, "--xlatune-nodelist", "n1,n2")
    done.assert_outcomes(passed=3)
    assert executors(project) == {"far"}
    assert "executor far cannot ask" in " ".join(done.stdout.str().split())
    words = ("plan", "test_sweep.py", "--executor", "far", "--nodelist", "n1,n2")
    plan = said_by(capsys, *words)
    assert "each on 2 nodes" in plan
    assert "of this cell waited" in " ".join(plan.split()), "it has a queue"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pol", "unknown value 'pol' in --xlatune-executor; did you mean 'pool'?"),
        (
            "broken",
            "xlatune_broken:Executor of xlatune-more 1.2 cannot be loaded: ModuleNotFoundError: ",
        ),
        ("number", "executor 'number' of xlatune-more 1.2 is 7, expected a subclass of "),
        ("misnamed", "executor 'misnamed' of xlatune-more 1.2 calls itself 'another'"),
    ],
)
def test_one_that_cannot_be_had_is_refused(project: Any, name: str, said: str) -> None:
    done = project.run("--xlatune-executor", name)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert said in done.stdout.str() + done.stderr.str()
    assert not project.submitted
