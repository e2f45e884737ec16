"""The walk of docs/how-to/gates.md, command by command; and what `xlatune gate init` refuses."""

from __future__ import annotations

import json
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
INIT = ("gate", "init", "--model=m", "--parallelism=PP=8", "--command=python t.py --steps={steps}")


# the walk's trainer sleeps until its steps are due, up to a millisecond too long: here none passes
CLOCK = """\
import random, time
now = [0.0]
time.perf_counter = lambda: now[0]
time.sleep = lambda seconds: now.__setitem__(0, now[0] + seconds + random.random() / 1000)
"""


def typed(where: Path, lines: str) -> subprocess.CompletedProcess[str]:
    argv = ["bash", "-c", f"set -e\n{lines}"]
    return subprocess.run(argv, cwd=where, capture_output=True, text=True, check=False)


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
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    for name in ("PYTEST_ADDOPTS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.mark.timeout(600)
def test_the_walk_ends_red_and_then_green(shell: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [int(status or 0) for _, status in STEPS] == [0, 4, 1, 0]
    here = shell.path / "walk"
    here.mkdir()
    shell.put("sitecustomize.py", CLOCK)
    (shell.path / "bin").mkdir()
    text = f'#!/bin/sh\nPYTHONPATH={shell.path} exec {sys.executable} "$@"\n'
    python = shell.put("bin/python", text)
    python.chmod(0o755)
    monkeypatch.setenv("PATH", f"{python.parent}:{os.environ['PATH']}")
    for number, (commands, status) in enumerate(STEPS):
        where = here if not number else here / "trainer"
        *lines, last = commands.splitlines()
        if not last.startswith("pytest"):
            lines, last = commands.splitlines(), ""
        done = typed(where, "\n".join(lines))
        ended, said = done.returncode, f"{done.stdout}\n{done.stderr}"
        if last:
            assert not ended, said
            ended, said = run_here(shell, where, last)
        assert ended == int(status or 0), f"{commands}\n{said}"
    trainer = here / "trainer"
    report = (trainer / "reports/gate/gate.md").read_text(encoding="utf-8")
    assert "1 pass" in report
    assert "no regression" in report
    for commit in typed(trainer, "git rev-parse HEAD main").stdout.split():
        assert f"commit {commit}" in report
    jobs = events_in(trainer.glob(".xlatune/gate/*/ledger.jsonl"), "attempt-submitted")
    assert run_here(shell, trainer, last)[0] == 0
    again = events_in(trainer.glob(".xlatune/gate/*/ledger.jsonl"), "attempt-submitted")
    assert len(again) == len(jobs), "the same gate is not measured again"


# prints as fast a training as its text says, with a noise of 0.1 % that follows the trial's number
PRETENDS = """\
import os, sys
speed = 1000.0
with open(TRIALS, "a") as file:
    file.write(".")
speed *= 1 + 0.001 * (os.path.getsize(TRIALS) * 5 % 7 / 7 - 0.5)
for step in range(int(sys.argv[1])):
    print(f"completed step: {step}, seconds: {512 / speed:.6f}, "
          f"Tokens/s/device: {speed:.3f}, loss: 7.0", flush=True)
"""


def steps_of(ci: str, job: Path) -> tuple[list[str], dict[str, str]]:
    """Return what a runner types of a job, actions left out, and the variables that it sets."""
    told = YAML(typ="safe").load(job.read_text(encoding="utf-8"))
    if ci == "github":
        # what follows the gate shows its report
        steps = [each for each in told["jobs"]["gate"]["steps"] if "env" in each]
        variables = {name: str(said) for each in steps for name, said in each["env"].items()}
        return [each["run"] for each in steps], variables
    variables = {name: str(said) for name, said in told["tgs-gate"]["variables"].items()}
    return told["tgs-gate"]["script"], variables


@pytest.mark.parametrize(
    ("ci", "speed", "status"), [("github", "900.0", 1), ("gitlab", "1001.0", 0)]
)
def test_the_steps_of_the_job_run_in_a_clone(
    shell: Folder, monkeypatch: pytest.MonkeyPatch, *, ci: str, speed: str, status: int
) -> None:
    """As a runner types them: in a clone of the branch, with what the CI system sets."""
    theirs, clone = shell.path / "theirs", shell.path / "clone"
    theirs.mkdir()
    text = PRETENDS.replace("TRIALS", repr(str(shell.path / "trials")))
    (theirs / "train.py").write_text(text, encoding="utf-8")
    trainer = "python train.py {steps}"
    init = (*INIT[:4], f"--command={trainer}", f"--repository={theirs}", f"--ci={ci}")
    assert typed(theirs, "git init --quiet --initial-branch=main").returncode == 0
    assert main([*init, "--steps=12", "--margin=0.05"]) == 0
    made = typed(
        theirs,
        "printf '.xlatune/\\nreports/\\ngate.xml\\n' > .gitignore; git add --all\n"
        "git commit --quiet -m 'a gate'; git switch --quiet --create feature\n"
        f"sed -i 's/speed = 1000.0/speed = {speed}/' train.py\n"
        "git commit --quiet --all -m 'a feature'\n"
        f"git clone --quiet --branch feature {theirs} {clone}",
    )
    assert made.returncode == 0, made.stderr
    (job,) = (clone / f".{ci}").rglob("*.yml")
    lines, variables = steps_of(ci, job)
    assert lines[-1].startswith("python -m pytest gates/test_gate.py")
    monkeypatch.setenv("CI_MERGE_REQUEST_TARGET_BRANCH_NAME", "main")
    for name, said in variables.items():
        filled = said.replace("${{ github.base_ref }}", "main")
        monkeypatch.setenv(name, os.path.expandvars(filled))
    assert os.environ["GATE_BASELINE"] == "origin/main"
    *before, last = lines
    for line in before:
        assert typed(clone, line).returncode == 0, line
    ended, said = run_here(shell, clone, last)
    assert ended == status, said
    assert 'name="xlatune.verdict"' in (clone / "gate.xml").read_text(encoding="utf-8")
    told = json.loads((clone / "reports/gate/gate.json").read_text(encoding="utf-8"))
    assert [each["kind"] == "SLOWER" for each in told["conclusion"]["verdicts"]] == [status == 1]


def test_the_job_of_slurm_names_its_nodes_and_an_edited_file_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".git").mkdir()
    given = (*INIT, f"--repository={tmp_path}", "--ci=github")
    assert main([*given, "--executor=slurm", "--nodelist=n[1-2]"]) == 0
    (job,) = (tmp_path / ".github").rglob("*.yml")
    assert "slurm" in job.read_text(encoding="utf-8")
    assert "('n1', 'n2')" in (tmp_path / "gates/test_gate.py").read_text(encoding="utf-8")
    capsys.readouterr()
    assert main([*given]) == 2
    assert "edited by hand" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--command=python t.py"], "how many steps"),
        (["--command=python 'x {steps}"], "No closing quotation"),
        ([], "is no git repository"),
    ],
)
def test_what_no_gate_can_be_made_of_is_refused_before_a_file_is_written(
    extra: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*INIT, f"--repository={tmp_path}", *extra]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
