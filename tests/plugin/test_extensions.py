"""A study and an executor of other distributions, that of extend.md, run a sweep by their names."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.executors import EXECUTORS
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


def installed(
    folder: Folder, patch: pytest.MonkeyPatch, group: str, **targets: tuple[str, str]
) -> None:
    """Have a distribution of these entry points, each with the text of its module."""
    names = {name: target for name, (target, _) in targets.items()}
    modules = {target.partition(":")[0]: text for target, text in targets.values()}
    patch.syspath_prepend(install(folder.path / "site", "theirs", {group: names}, modules))
    for module in modules:
        patch.delitem(sys.modules, module, raising=False)


def test_a_study_runs_by_its_marker_and_has_a_report(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(toy.__file__).read_text(encoding="utf-8")
    installed(folder, monkeypatch, "pytest_xlatune.studies", toy=("their_toy:TOY", source))
    folder.write(text=STANDARD.replace("    profiles=(\n        PROFILES\n    ),\n", DECLARED))
    folder.edit(
        "test_sweep.py",
        ("import pytest\n", "import pytest\nimport their_toy as toy\n"),
        ('"{trial}")', '"{trial}", "{overrides}")'),
        ("", OWN),
    )
    done = folder.run("-m", "toy", "-v")
    done.assert_outcomes(passed=3, failed=1)
    done.stdout.fnmatch_lines(["*test_arm?quiet?*screened*", "*test_arm?loud?*screened*"])
    done.stdout.fnmatch_lines(["*unknown arm 'lout' in sweep 'pretend'*did you mean 'loud'*"])
    assert len(folder.submitted) == 4, "two rounds of two cells"
    assert "| quiet | " in folder.read("reports/pretend/toy.md")
    record = folder.json("reports/pretend/toy.json")["conclusion"]["record"]
    assert (record["kind"], record["rounds"]) == ("toy", 2)


(POOL,), _ = whole("an executor")
# the trials of `far` run on nodes, each of which is this machine
FAR = f"""{POOL}

class FarExecutor(PoolExecutor):
    name = "far"
    is_here = False
    names_nodes = True
    has_queue = True
"""
FIRST = ("-m", "wave1 or wave2", "-k", "baseline or fast or same")


def test_a_sweep_runs_by_an_executor_that_the_package_does_not_know(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The one of extend.md; one whose trials run on nodes is asked for them."""

    def shown(*words: str) -> str:
        capsys.readouterr()
        assert main([*words]) == 0
        return " ".join("".join(capsys.readouterr()).split())

    added = {"pool": ("xlatune_pool:PoolExecutor", POOL), "far": ("xlatune_far:FarExecutor", FAR)}
    installed(folder, monkeypatch, EXECUTORS.group, **added)
    monkeypatch.setattr(QuickExecutor, "beside", "none of them")  # it waits between two looks
    monkeypatch.chdir(folder.path)
    plan = shown("plan", "test_sweep.py", "--executor", "pool")
    assert re.search(r"\d+ jobs to run, each on 1 node", plan)
    assert not re.search("Ways of running|sbatch", plan)
    folder.run(*FIRST, "--xlatune-executor", "pool").assert_outcomes(passed=3)
    trials = len(folder.submitted)
    jobs = shown("jobs")
    assert len(re.findall(r"pool \d+ \S+ completed", jobs)) == trials
    assert "pretend" in shown("watch", "--once")

    asked = ("--xlatune-executor", "far")
    refused = folder.run(*FIRST, *asked)
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stdout.fnmatch_lines(["*is missing the nodes (--xlatune-nodelist *"])
    done = folder.run(*FIRST, *asked, "--xlatune-nodelist", "n1,n2", "--xlatune-fresh")
    done.assert_outcomes(passed=3)
    assert "executor far cannot ask" in " ".join(done.stdout.str().split())
    lines = folder.events("attempt-submitted")
    assert {line["submission"]["executor"] for line in lines} == {"pool", "far"}
    plan = shown("plan", "test_sweep.py", "--executor", "far", "--nodelist", "n1,n2")
    assert "each on 2 nodes" in plan
    assert "of this cell waited" in plan, "it has a queue"
    # where the distribution is gone nothing is asked of it
    jobs = shown("jobs")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not path.endswith("site")])
    assert shown("jobs") == jobs
