"""A study and an executor of other distributions, that of extend.md, run a sweep by their names."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.executors.named import EXECUTORS
from tests.helpers import toy
from tests.helpers.guests import install, whole
from tests.helpers.quick_trials import QuickExecutor
from tests.plugin.conftest import STANDARD, Folder

DECLARED = """\
    study=toy.Toy(rounds=2),
    config_tags={"quiet": {"mode": "quiet"}, "loud": {"mode": "loud"}},
"""
OWN = """

@pytest.mark.toy
def test_own(measure):
    assert measure("loud").n == 2
    measure("lout")
"""


@pytest.fixture
def with_toy(folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    """A sweep file of the toy study, which the package knows by an entry point alone."""
    group = {"pytest_xlatune.studies": {toy.KIND: "their_toy:TOY"}}
    source = Path(toy.__file__).read_text(encoding="utf-8")
    install(tmp_path / "there", "their-toy", group, {"their_toy": source})
    monkeypatch.syspath_prepend(tmp_path / "there")
    folder.write(text=STANDARD.replace("    profiles=(\n        PROFILES\n    ),\n", DECLARED))
    folder.edit(
        "test_sweep.py",
        ("import pytest\n", "import pytest\nimport their_toy as toy\n"),
        ('"{trial}")', '"{trial}", "{overrides}")'),
    )
    yield folder
    sys.modules.pop("their_toy", None)


def test_a_study_runs_by_its_marker_and_has_a_report(with_toy: Folder) -> None:
    done = with_toy.run("-m", "toy", "-v")
    done.assert_outcomes(passed=3)
    done.stdout.fnmatch_lines(["*test_arm?quiet?*screened*", "*test_arm?loud?*screened*"])
    assert len(with_toy.submitted) == 4, "two rounds of two cells"
    assert "| quiet | " in with_toy.read("reports/pretend/toy.md")
    record = with_toy.json("reports/pretend/toy.json")["conclusion"]["record"]
    assert (record["kind"], record["rounds"]) == ("toy", 2)
    with_toy.run("-k", "loud").assert_outcomes(passed=1)
    assert len(with_toy.submitted) == 4, "what was measured is taken from the ledger"
    with_toy.edit("test_sweep.py", ("", OWN))
    done = with_toy.run("-k", "own")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*unknown arm 'lout' in sweep 'pretend'*did you mean 'loud'*"])


(POOL,), PROJECT = whole("an executor")
# the trials of `far` run on nodes, each of which is this machine
FAR = """
from xlatune_pool import PoolExecutor


class FarExecutor(PoolExecutor):
    name = "far"
    is_here = False
    names_nodes = True
    has_queue = True
"""
MORE = {
    "far": "xlatune_far:FarExecutor",
    "broken": "xlatune_broken:Executor",
}
FIRST = ("-m", "wave1 or wave2", "-k", "baseline or fast or same")


@pytest.fixture
def project(folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    """A sweep beside two distributions of executors; the session waits between two looks."""
    site = tmp_path / "site"
    install(site, PROJECT["name"], PROJECT["entry-points"], {"xlatune_pool": POOL})
    modules = {"xlatune_far": FAR, "xlatune_broken": "import no_such_scheduler"}
    install(site, "xlatune-more", {EXECUTORS.group: MORE}, modules)
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr(QuickExecutor, "beside", "none of them")
    monkeypatch.chdir(folder.path)
    yield folder
    for module in ("xlatune_pool", *modules):
        sys.modules.pop(module, None)


def executors(folder: Folder) -> set[str]:
    return {line["submission"]["executor"] for line in folder.events("attempt-submitted")}


def shown_by(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main([*words]) == 0
    return "".join(capsys.readouterr())


def test_a_sweep_runs_by_an_executor_that_the_package_does_not_know(
    project: Folder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, planned = ("--xlatune-executor", "pool"), ("plan", "test_sweep.py", "--executor", "pool")
    plan = shown_by(capsys, *planned)
    assert re.search(r"\d+ jobs to run, each on 1 node", plan)
    assert not re.search("Ways of running|sbatch", plan)
    project.run(*FIRST, *asked).assert_outcomes(passed=3)
    assert executors(project) == {"pool"}
    trials = len(project.submitted)
    assert trials >= 4, "two baselines and two profiles"
    jobs = shown_by(capsys, "jobs").splitlines()
    assert len(jobs) == trials
    assert all(re.fullmatch(r"pool \d+ \S+ completed", line) for line in jobs)
    assert "pretend" in shown_by(capsys, "watch", "--once")
    # what was measured is used again, and its time is that of a trial
    project.run(*FIRST, *asked).assert_outcomes(passed=3)
    assert len(project.submitted) == trials
    assert f"the mean of {trials} here" in shown_by(capsys, *planned)
    # where the distribution is gone nothing is asked of it
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not path.endswith("site")])
    assert shown_by(capsys, "jobs").splitlines() == jobs
    assert f"the mean of {trials} here" in shown_by(capsys, "plan", "test_sweep.py")


def test_an_executor_whose_trials_run_on_nodes_is_asked_for_them(
    project: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--xlatune-executor", "far")
    refused = project.run(*FIRST, *asked)
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stdout.fnmatch_lines(["*is missing the nodes (--xlatune-nodelist *"])
    done = project.run(*FIRST, *asked, "--xlatune-nodelist", "n1,n2")
    done.assert_outcomes(passed=3)
    assert executors(project) == {"far"}
    assert "executor far cannot ask" in " ".join(done.stdout.str().split())
    plan = shown_by(capsys, "plan", "test_sweep.py", "--executor", "far", "--nodelist", "n1,n2")
    assert "each on 2 nodes" in plan
    assert "of this cell waited" in " ".join(plan.split()), "it has a queue"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pol", "unknown value 'pol' in --xlatune-executor; did you mean 'pool'?"),
        ("broken", "xlatune_broken:Executor of xlatune-more 1.2 cannot be loaded: ModuleNotFound"),
    ],
)
def test_an_executor_that_cannot_be_had_is_refused(project: Folder, name: str, words: str) -> None:
    done = project.run("--xlatune-executor", name)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert words in done.stdout.str() + done.stderr.str()
    assert not project.submitted
