"""An executor of another distribution, that of extend.md, runs a sweep by its name."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.executors import Executor, Request
from pytest_xlatune.executors.folder import read_claim, read_started
from pytest_xlatune.executors.named import EXECUTORS, executor_named
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.result import Outcome, State, Submission
from pytest_xlatune.model.trial import LaunchSpec
from tests.helpers.guests import install
from tests.helpers.how_to import whole
from tests.helpers.payloads import PATH
from tests.helpers.quick_trials import QuickExecutor
from tests.helpers.waiting import until

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


def test_a_preflight_looks_at_this_machine_where_its_trials_run(project: Any) -> None:
    (project.path / "trainer.py").unlink()
    done = project.run("--xlatune-executor", "pool")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stdout.fnmatch_lines(
        ["*cannot begin, nothing was submitted*", "*trainer.py does not exist*"]
    )
    assert not project.submitted


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
    done.stdout.fnmatch_lines(
        ["note: the nodes could not be asked what they see: executor far cannot ask them"]
    )
    words = ("plan", "test_sweep.py", "--executor", "far", "--nodelist", "n1,n2")
    plan = said_by(capsys, *words)
    assert "each on 2 nodes" in plan
    assert "where a job of this cell waited" in " ".join(plan.split()), "it has a queue"


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


class Held:
    """A trial that ends when its file is written, and the executor of the page, anew each time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.spec = LaunchSpec(argv=("sh", "-c", "until [ -e go ]; do sleep 0.05; done"), env=PATH)
        self.request = Request(
            folder=root / "one.1", job_name="one", comment="one", resources=Resources()
        )

    @property
    def executor(self) -> Executor:
        return executor_named("pool")

    def submit(self) -> Submission:
        job_id = self.executor.submit(self.spec, self.request)
        return Submission(trial_id="one", attempt=1, executor="pool", job_id=job_id, folder="one.1")

    def stands(self, job: Submission, state: State) -> Outcome:
        def look() -> Outcome | None:
            found = self.executor.poll([job], root=self.root)[job.job_id]
            return found if found.state is state else None

        return until(look)


@pytest.fixture
def held(installed: Path, tmp_path: Path) -> Iterator[Held]:
    made = Held(tmp_path)
    yield made
    made.request.folder.mkdir(exist_ok=True)
    (made.request.folder / "go").touch()


def test_an_attempt_that_is_submitted_again_runs_once_and_ends_when_asked(held: Held) -> None:
    job = held.submit()
    held.stands(job, State.RUNNING)
    assert held.submit() == job
    held.executor.cancel([job], root=held.root)
    held.stands(job, State.CANCELLED)


def test_a_payload_that_was_killed_is_lost(held: Held) -> None:
    job = held.submit()
    held.stands(job, State.RUNNING)
    claim, trainer = read_claim(held.request.folder), read_started(held.request.folder)
    assert claim is not None
    assert trainer is not None
    os.kill(claim.pid, signal.SIGKILL)
    held.stands(job, State.LOST)
