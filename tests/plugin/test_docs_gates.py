"""The walk of docs/gates.md, command by command; and what `xlatune gate init` refuses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from pytest_xlatune.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "gates.md").read_text(encoding="utf-8")
WALK = PAGE.partition("### From an empty folder")[2].partition("\n### ")[0]
STEPS = re.findall(r"```bash\n(.*?)```\n\n(?:Exit status (\d+))?", WALK, re.DOTALL)
INIT = ("gate", "init", "--model=m", "--parallelism=PP=8", "--command=python t.py --steps={steps}")


@pytest.mark.timeout(600)
def test_the_walk_ends_red_and_then_green(folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [int(status or 0) for _, status in STEPS] == [0, 4, 1, 0]
    for kind in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{kind}_NAME", "a")
        monkeypatch.setenv(f"GIT_{kind}_EMAIL", "a@localhost")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    here = folder.path / "walk"
    here.mkdir()
    for number, (commands, status) in enumerate(STEPS):
        where = here if not number else here / "trainer"
        done = subprocess.run(
            ["bash", "-c", f"set -e\n{commands}"],
            cwd=where,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == int(status or 0), f"{commands}\n{done.stdout}\n{done.stderr}"
    report = (here / "trainer/reports/gate/gate.md").read_text(encoding="utf-8")
    assert "1 pass" in report
    assert "no regression" in report


@pytest.mark.parametrize(("ci", "name"), [("github", ".github"), ("gitlab", ".gitlab")])
def test_the_job_is_yaml_and_the_file_collects(
    ci: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".git").mkdir()
    given = (*INIT, f"--repository={tmp_path}", f"--ci={ci}")
    assert main([*given, "--executor=slurm", "--nodelist=n[1-2]"]) == 0
    (job,) = (tmp_path / name).rglob("*.yml")
    text = YAML(typ="safe").load(job.read_text(encoding="utf-8"))
    assert "pytest gates/test_gate.py" in str(text)
    assert "slurm" in str(text)
    assert "('n1', 'n2')" in (tmp_path / "gates/test_gate.py").read_text(encoding="utf-8")
    capsys.readouterr()
    assert main([*given]) == 2
    assert "there already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--command=python t.py"], "does not say how many steps"),
        (["--command=python {step}"], "unknown placeholder 'step'"),
        (["--command=python 'x {steps}"], "No closing quotation"),
        (["--parallelism=XP=8"], "unknown axis 'XP'"),
        (["--margin=2"], "the margin is 2.0"),
        (["--executor=slurm"], "go together"),
        (["--steps=6"], "a score needs 6"),
        ([], "is no git repository"),
    ],
)
def test_what_a_sweep_would_refuse_is_refused_before_a_file_is_written(
    extra: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*INIT, f"--repository={tmp_path}", *extra]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
