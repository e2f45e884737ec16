"""Gates as pytest runs: of settings, commits, images; a calibration; the walk of gates.md."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import venv
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from pytest_xlatune.cli import main
from tests.helpers.repositories import Repository
from tests.helpers.sessions import run_inside
from tests.helpers.words import events_in, in_words
from tests.plugin.conftest import HEAD, OF_ITS_COMMIT, SWEEP_FILE, Folder, declaring

TESTS = """


@pytest.mark.gate
def test_gate(measure, profile):
    assert measure(profile).no_regression


@pytest.mark.calibrate(jobs=4)
def test_noise(calibration):
    assert calibration.noise.jobs == 4
"""
CANDIDATES = """\
        profile("good", "--xla_other=1"),
        profile("wild", "--xla_wild=1"),
"""
# one candidate whose jobs scatter by a fifth
WILD = 'speed *= 1 + (0.2 if "--xla_wild" in flags else 0.002) * noise'


@pytest.fixture
def gate(folder: Folder) -> Folder:
    declared = "gate=Gate(margin=0.01, blocks=4, block_baselines=1),\n    profiles=(\n        "
    declared += "PROFILES\n    )"
    folder.write(text=declaring(declared, HEAD + TESTS), profiles=CANDIDATES)
    folder.edit("trainer.py", ("speed *= 1 + 0.002 * noise", WILD))
    return folder


def test_each_candidate_has_its_own_end(gate: Folder) -> None:
    gate.run("-m", "gate", "-k", "good").assert_outcomes(passed=1, deselected=2)
    # by itself: its noise is not that of the others
    wild = gate.run("-m", "gate", "-k", "wild", "--junitxml=junit.xml")
    assert wild.ret == 10
    assert len(gate.submitted) == 8 + 8, "baselines are measured beside it, not taken from before"
    lines = [
        "E * assert cannot tell: wild, *",
        "1 cannot tell",
        "* wild INCONCLUSIVE: cannot tell: *",
    ]
    wild.stdout.fnmatch_lines(lines)
    assert "Captured log" not in wild.stdout.str(), "it lies beside the ledger, without secrets"
    (case,) = ET.parse(gate.path / "junit.xml").iter("testcase")
    told = {each.attrib["name"]: each.attrib["value"] for each in case.iter("property")}
    assert told["xlatune.verdict"] == "INCONCLUSIVE"
    (failure,) = case.iter("failure")
    assert "cannot tell: wild" in failure.attrib["message"]
    (verdict,) = gate.json("reports/pretend/gate.json")["conclusion"]["verdicts"]
    assert "would decide it" in in_words(verdict["reasons"])
    assert not (gate.path / "reports/pretend-tuning.md").exists()


def test_a_calibration_is_kept_for_the_next_plan(gate: Folder) -> None:
    done = gate.run("-m", "calibrate")
    done.assert_outcomes(passed=1, deselected=2)
    (path,) = gate.path.glob(".xlatune/pretend/*/calibration.json")
    noise = gate.json(str(path))["noise"]
    assert 0 < noise["sigma_job"] < 0.01
    assert (noise["jobs"], noise["straggler_rate"]) == (4, 0)
    assert len(gate.submitted) == 4
    done.stdout.fnmatch_lines(["*job noise: * % (95 % interval *", "*65 jobs: *"])
    gate.write(text=SWEEP_FILE, profiles=CANDIDATES)
    planned = " ".join(gate.run("--xlatune-plan").stdout.str().split())
    assert f"{100 * noise['sigma_job']:.2f} % job noise" in planned
    assert "is assumed" not in planned


HEAD_GATE = 'gate=Gate(margin=0.01, candidates=(candidate("head", code="HEAD"),))'
DEPLOYED = 'deployed={"XLA_FLAGS": "--xla_deployed=1"}'
GATE_FILE = declaring(HEAD_GATE, commits=True).replace(DEPLOYED, 'code="HEAD~1"')


@pytest.fixture
def repository(folder: Folder) -> Repository:
    """A trainer with the deployed commit, and one with a planted loss."""
    folder.put("test_sweep.py", GATE_FILE)
    made = Repository(folder.path / "trainer")
    made.commit("deployed", train=OF_ITS_COMMIT, speed="SPEED = 1000.0\n")
    made.commit("slow", speed="SPEED = 900.0\n")
    return made


SAME, OTHERS = "what the baseline starts", "no commit has these files, and they would run:"
STEPS = "protocol=Protocol(steps=12),"
DEPLOYED_FLAGS = (
    ('candidate("head", code="HEAD")', 'candidate("same", "--xla_b=true --xla_a=1")'),
    ("HEAD~1", "HEAD"),
    (STEPS, STEPS + 'deployed={"XLA_FLAGS": "--xla_a=1 --xla_b"},'),
)
LAUNCHER = GATE_FILE[GATE_FILE.index("    launcher=") : GATE_FILE.index("    gate=")]
IN_A_CONTAINER = """\
    launcher=ContainerLauncher(
        inner=CommandLauncher(argv=("trainer", "{steps}")), program="/no/podman"
    ),
"""
IMAGE = f"image='rocm/jax:now@sha256:{'0' * 64}'"
Edits = tuple[tuple[str, str], ...]
REFUSED: dict[str, tuple[Edits, str]] = {
    "the same commit": ((('code="HEAD"', 'code="HEAD~1"'),), SAME),
    "a misspelt branch": ((('code="HEAD"', 'code="mian"'),), "no commit 'mian'"),
    "a clone of one commit": ((), "fetch-depth: 0, GIT_DEPTH: 0)"),
    "what is changed, not committed": ((), f"{OTHERS} speed.py"),
    "a link into the repository": (
        (('"train.py", *argv', 'str(HERE / "link" / "train.py"), *argv'),), OTHERS),
    "flags that are deployed": (DEPLOYED_FLAGS, SAME),
    "the same image": (
        ((LAUNCHER, IN_A_CONTAINER), ('code="HEAD~1"', IMAGE), ('code="HEAD"', IMAGE)), SAME),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_measure_nothing_is_refused(
    folder: Folder, repository: Repository, name: str
) -> None:
    (folder.path / "link").symlink_to(repository.path, target_is_directory=True)
    if "clone" in name:
        head = repository.git("rev-parse", "HEAD")
        folder.put("trainer/.git/shallow", f"{head}\n")
    if "changed" in name:
        repository.write(speed="SPEED = 800.0\n")
    edits, words = REFUSED[name]
    folder.edit("test_sweep.py", *edits)
    done = folder.run()
    assert done.ret not in (0, 1, 10)
    assert words in " ".join(done.stdout.str().split())
    assert folder.submitted == []


@pytest.mark.parametrize("how", [{"editable": True}, {}], ids=["editable", "a copy"])
def test_an_installed_trainer_would_run_one_code_for_all(
    folder: Folder, repository: Repository, tmp_path: Path, how: dict[str, bool]
) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    info = site / "speed-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: speed\nVersion: 1\n", "utf-8")
    url = {"url": f"file://{repository.path}", "dir_info": how}
    (info / "direct_url.json").write_text(json.dumps(url), "utf-8")
    python = str(tmp_path / "venv" / "bin" / "python")
    folder.edit("test_sweep.py", ("sys.executable", repr(python)))
    done = folder.run()
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["*would run: the installed package speed*"])
    assert folder.submitted == []
    first = "deployed={'PYTHONPATH': TRAINER},\n        parallelism="
    folder.edit("test_sweep.py", ("parallelism=", first))
    assert folder.run().ret == 1


def test_a_checkout_that_was_changed_is_no_commit(folder: Folder, repository: Repository) -> None:
    """Not by an edit, nor by a new module, which git does not know."""
    repository.commit("same speed", speed="SPEED = 1000.0  # same\n")
    folder.edit("test_sweep.py", ("HEAD~1", "HEAD~2"))
    assert folder.run("--xlatune-budget=8").ret == 0
    made = repository.path / ".git" / "xlatune"
    changed = next(path for path in made.iterdir() if path.is_dir())
    speed = changed / "speed.py"
    before = speed.read_text("utf-8")
    for path, text in ((speed, "SPEED = 2000.0\n"), (changed / "hashlib.py", "")):
        speed.write_text(before, "utf-8")
        path.write_text(text, "utf-8")
        done = folder.run("--xlatune-fresh")
        done.assert_outcomes(errors=1)
        done.stdout.fnmatch_lines([f"*{OTHERS} {path.name}*"])


PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "gates.md").read_text(encoding="utf-8")
WALK = PAGE.partition("### From an empty folder")[2].partition("\n### ")[0]
WALKED = re.findall(r"```bash\n(.*?)```\n\n(?:Exit status (\d+))?", WALK, re.DOTALL)
# the walk's trainer sleeps until its steps are due, up to a millisecond too long: here none passes
CLOCK = """\
import random, time
now = [0.0]
time.perf_counter = lambda: now[0]
time.sleep = lambda seconds: now.__setitem__(0, now[0] + seconds + random.random() / 1000)
"""


def typed(where: Path, lines: str) -> str:
    argv = ["bash", "-c", f"set -e\n{lines}"]
    done = subprocess.run(argv, cwd=where, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{lines}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_here(folder: Folder, where: Path, line: str) -> tuple[int, str]:
    """Run a line that starts pytest in this process; return its status and what it said."""
    words = shlex.split(line)
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(where)
        done = run_inside(folder.pytester, *words[words.index("pytest") + 1 :])
    return int(done.ret), done.stdout.str()


def steps_of(ci: str, job: Path) -> tuple[list[str], dict[str, object]]:
    """Return what a runner types of a job, actions left out, and the variables that it sets."""
    told = YAML(typ="safe").load(job.read_text(encoding="utf-8"))
    if ci == "gitlab":
        return told["tgs-gate"]["script"], told["tgs-gate"]["variables"]
    # what follows the gate shows its report
    steps = [each for each in told["jobs"]["gate"]["steps"] if "env" in each]
    variables = {name: said for each in steps for name, said in each["env"].items()}
    return [each["run"] for each in steps], variables


@pytest.mark.timeout(600)
def test_the_walk_ends_red_and_then_green_and_a_runner_types_the_steps_of_the_job(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its shells git knows an author, and `python` and `xlatune` are ours."""
    for kind in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{kind}_NAME", "a")
        monkeypatch.setenv(f"GIT_{kind}_EMAIL", "a@localhost")
    for name in ("PYTEST_ADDOPTS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    folder.put("sitecustomize.py", CLOCK)
    (folder.path / "bin").mkdir()
    text = f'#!/bin/sh\nPYTHONPATH={folder.path} exec {sys.executable} "$@"\n'
    python = folder.put("bin/python", text)
    python.chmod(0o755)
    path = f"{python.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    assert [int(status or 0) for _, status in WALKED] == [0, 4, 1, 0]
    here = folder.path / "walk"
    here.mkdir()
    trainer = here / "trainer"
    for number, (commands, status) in enumerate(WALKED):
        where = here if not number else trainer
        lines, _, last = commands.rstrip("\n").rpartition("\n")
        is_gate = last.startswith("pytest")
        typed(where, lines if is_gate else commands)
        ended, said = run_here(folder, where, last) if is_gate else (0, "")
        assert ended == int(status or 0), f"{commands}\n{said}"
    report = (trainer / "reports/gate/gate.md").read_text(encoding="utf-8")
    assert "1 pass" in report
    assert "no regression" in report
    for commit in typed(trainer, "git rev-parse HEAD main").split():
        assert f"commit {commit}" in report
    jobs = events_in(trainer.glob(".xlatune/gate/*/ledger.jsonl"), "attempt-submitted")
    assert run_here(folder, trainer, last)[0] == 0
    again = events_in(trainer.glob(".xlatune/gate/*/ledger.jsonl"), "attempt-submitted")
    assert len(again) == len(jobs), "the same gate is not measured again"

    # in a clone of the branch, with what the CI system sets
    init = re.findall(r"xlatune gate init (.*) --ci github", WALK)[0]
    typed(
        trainer,
        f"rm -r gates\nxlatune gate init {init} --ci gitlab\ngit add --all\ngit commit -qm b",
    )
    monkeypatch.setenv("CI_MERGE_REQUEST_TARGET_BRANCH_NAME", "main")
    for ci in ("github", "gitlab"):
        clone = folder.path / ci
        typed(here, f"git clone --quiet --branch feature {trainer} {clone}")
        (job,) = (clone / f".{ci}").rglob("*.yml")
        (*before, last), variables = steps_of(ci, job)
        for name, value in variables.items():
            filled = str(value).replace("${{ github.base_ref }}", "main")
            monkeypatch.setenv(name, os.path.expandvars(filled))
        assert os.environ["GATE_BASELINE"] == "origin/main"
        for line in before:
            typed(clone, line)
        ended, said = run_here(folder, clone, last)
        assert ended == 0, said
        assert 'name="xlatune.verdict"' in (clone / "gate.xml").read_text(encoding="utf-8")


SLURM = ("--executor=slurm", "--nodelist=n[1-2]")


def test_what_no_gate_can_be_made_of_is_refused_before_a_file_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = ("--model=m", "--parallelism=PP=8", "--command=python t.py --steps={steps}")
    init = ("gate", "init", *cell, f"--repository={tmp_path}", "--ci=github")
    for extra, words in (
        (("--command=python t.py",), "how many steps"),
        (("--command=python 'x {steps}",), "No closing quotation"),
        ((), "is no git repository"),
    ):
        assert main([*init, *extra]) == 2
        assert words in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []
    (tmp_path / ".git").mkdir()
    assert main([*init, *SLURM]) == 0
    (job,) = (tmp_path / ".github").rglob("*.yml")
    assert "slurm" in job.read_text(encoding="utf-8")
    assert "('n1', 'n2')" in (tmp_path / "gates/test_gate.py").read_text(encoding="utf-8")
    assert main([*init]) == 2
    assert "edited by hand" in capsys.readouterr().err
