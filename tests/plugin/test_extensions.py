"""What others bring: entry points, a study, an executor, a site's settings and fixtures."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.entry_points import EntryPointGroup
from pytest_xlatune.executors import EXECUTORS
from pytest_xlatune.model.errors import ConfigError
from tests.helpers import toy
from tests.helpers.guests import install, whole
from tests.helpers.sessions import QuickExecutor
from tests.helpers.tables import rows
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
    refused.stdout.fnmatch_lines(["*is missing the nodes in the cluster (--xlatune-nodelist *"])
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


OWN_FORM = """\
    print(f"it {step} took {512e3 / speed:.4f} ms ({speed:.3f} tok/s a device), loss 7.1")
"""
SETTINGS = r"""
step-pattern = 'it (?P<step>\d+) took (?P<ms>[\d.]+) ms \((?P<tgs>[\d.]+) tok/s a device'
model = "from-the-file"
budget = 30

[launcher]
env-files = ["site.env.sh"]

[deployed]
XLA_FLAGS = "--xla_slow=1"

"""


def test_the_file_is_the_sweeps_site_and_says_the_form_of_a_step_line(folder: Folder) -> None:
    head = folder.read("trainer.py").partition('    print(f"completed step: {step}')[0]
    folder.put("trainer.py", f"{head}{OWN_FORM}")
    folder.run("-m", "wave1").stdout.fnmatch_lines(["*no step line*step_pattern*"])
    folder.put("xlatune.toml", SETTINGS)
    folder.put("site.env.sh", 'export XLA_FLAGS="$XLA_FLAGS --xla_of_the_site=1"\n')
    plan = folder.run("--xlatune-plan")
    plan.stdout.fnmatch_lines(["from-the-file FSDP=4: plan"])
    run = folder.run("-m", "wave1")
    run.assert_outcomes(passed=1)
    logs = [path.read_text() for path in folder.path.glob(".xlatune/pretend/*/*/*/log.0.txt")]
    assert any("XLA_FLAGS=--xla_slow=1 --xla_of_the_site=1" in log for log in logs)


PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "trainer.md").read_text(encoding="utf-8")
LINE = "    completed step: 7, seconds: 0.5120, Tokens/s/device: 1000.0, loss: 7.103\n"
TRAINER = """\
import os, sys
print("XLA_FLAGS=" + os.environ["XLA_FLAGS"])
for step in range(int(sys.argv[1].removeprefix("--steps="))):
    print(LINE.replace("7", str(step), 1), flush=True)
"""


def test_the_example_of_trainer_md_runs_with_and_without_a_rate(folder: Folder) -> None:
    assert LINE in PAGE
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    folder.put("test_sweep.py", code)
    for rate in (" Tokens/s/device: 1000.0,", ""):
        line = LINE.replace(" Tokens/s/device: 1000.0,", rate).strip()
        folder.put("train.py", f"LINE = {line!r}\n{TRAINER}")
        folder.run("-k", "ring", "--xlatune-fresh").assert_outcomes(passed=1)
        report = folder.read("reports/mine/leaderboard.md")
        assert "| `ring` | `NCCL_ALGO=Ring` | 1000.0 |" in report
        assert "not checked" not in report


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


def test_a_retry_policy_of_the_project_decides(folder: Folder) -> None:
    # the first attempt dies, the second one would not
    crash = f'        profile("crash", env={{"MARK": "{folder.path}/mark"}}),\n'
    folder.write(profiles=f'{crash}        profile("same", "--xla_other=1"),\n')
    folder.put("conftest.py", fixture("retry_policy", "RetryPolicy(max_attempts=1)"))
    folder.run("-k", "crash")
    assert len([trial for trial in folder.submitted if trial.startswith("crash-")]) == 1


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


GROUP = "pytest_xlatune.tools"
TOOLS = EntryPointGroup(GROUP, kind="tool", ours={"join": "os.path:join"})


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_names_are_known_without_an_import_and_loaded_from_their_modules(path: Path) -> None:
    added = {"deep": "door_deep:Outer.inner [more]", "join": "door_deep:taken"}
    install(path, "their-tools", {GROUP: added}, {"door_deep": "class Outer:\n    inner = 7\n"})
    assert TOOLS.names() == {"join": "os.path:join", "deep": "door_deep:Outer.inner [more]"}
    assert TOOLS.source("deep") == "their-tools 1.2"
    assert TOOLS.source("join") == "pytest-xlatune"
    assert "door_deep" not in sys.modules
    assert TOOLS.load("deep", where="here") == 7
    assert TOOLS.load("join", where="here")("a", "b") == "a/b"


REFUSED = {
    "a name that is nearly known": (
        "pol", "", "unknown tool 'pol' in x.toml; did you mean 'pool'? Known: join, pool"),
    "a module that raises what it likes": (
        "pool", "raise SystemError('of theirs')",
        "of their-bad 1.2 cannot be loaded: SystemError: of theirs"),
    "what is of another class": ("pool", "POOL = 7", "'pool' of their-bad 1.2 is int, expected a "),
    "a class in place of one that is made": (
        "pool", "class POOL: ...", "'pool' of their-bad 1.2 is POOL, expected a "),
}  # fmt: skip


@rows("name, module, message", REFUSED)
def test_a_refusal_names_the_distribution(
    path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str, message: str
) -> None:
    install(path, "their-bad", {GROUP: {"pool": "door_bad:POOL"}}, {"door_bad": module})
    monkeypatch.delitem(sys.modules, "door_bad", raising=False)
    with pytest.raises(ConfigError, match=re.escape(message)):
        TOOLS.load_as(name, EntryPointGroup, where="x.toml")


def test_a_name_that_two_distributions_bring_is_refused(path: Path) -> None:
    install(path, "first", {GROUP: {"pool": "door_a:POOL"}})
    install(path, "second", {GROUP: {"pool": "door_b:POOL"}})
    with pytest.raises(ConfigError, match=r"is brought by first 1\.2, second 1\.2: expected one"):
        TOOLS.load("pool", where="x.toml")
