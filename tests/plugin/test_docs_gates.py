"""The walk of docs/how-to/gates.md, command by command, and the pipeline's job that it writes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from pytest_xlatune.cli import main
from tests.helpers.ledger_lines import events_in
from tests.helpers.sessions import run_inside
from tests.plugin.conftest import Folder

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "gates.md").read_text(encoding="utf-8")
WALK = PAGE.partition("### From an empty folder")[2].partition("\n### ")[0]
STEPS = re.findall(r"```bash\n(.*?)```\n\n(?:Exit status (\d+))?", WALK, re.DOTALL)
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


@pytest.fixture
def shell(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """A folder in whose shells git knows an author, and `python` and `xlatune` are ours."""
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
    return folder


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
    shell: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [int(status or 0) for _, status in STEPS] == [0, 4, 1, 0]
    here = shell.path / "walk"
    here.mkdir()
    trainer = here / "trainer"
    for number, (commands, status) in enumerate(STEPS):
        where = here if not number else trainer
        lines, _, last = commands.rstrip("\n").rpartition("\n")
        is_gate = last.startswith("pytest")
        typed(where, lines if is_gate else commands)
        ended, said = run_here(shell, where, last) if is_gate else (0, "")
        assert ended == int(status or 0), f"{commands}\n{said}"
    report = (trainer / "reports/gate/gate.md").read_text(encoding="utf-8")
    assert "1 pass" in report
    assert "no regression" in report
    for commit in typed(trainer, "git rev-parse HEAD main").split():
        assert f"commit {commit}" in report
    jobs = events_in(trainer.glob(".xlatune/gate/*/ledger.jsonl"), "attempt-submitted")
    assert run_here(shell, trainer, last)[0] == 0
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
        clone = shell.path / ci
        typed(here, f"git clone --quiet --branch feature {trainer} {clone}")
        (job,) = (clone / f".{ci}").rglob("*.yml")
        (*before, last), variables = steps_of(ci, job)
        for name, value in variables.items():
            filled = str(value).replace("${{ github.base_ref }}", "main")
            monkeypatch.setenv(name, os.path.expandvars(filled))
        assert os.environ["GATE_BASELINE"] == "origin/main"
        for line in before:
            typed(clone, line)
        ended, said = run_here(shell, clone, last)
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
