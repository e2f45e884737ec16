"""The gate of a commit on a real Slurm: three ends, three exit statuses, and what it rests on."""

from __future__ import annotations

import json
import platform
import subprocess
from pathlib import Path
from typing import Any

import pytest

Project = Any  # of conftest.py, which cannot be imported from here

pytestmark = pytest.mark.part("sweeps")

GATE = """\
import sys
from pathlib import Path

from pytest_xlatune import (
    CellSettings, CheckoutLauncher, CommandLauncher, Gate, Protocol, Resources, SiteSettings,
    Sweep, candidate, standard_tests,
)

TRAINER = Path(__file__).parent / "trainer"
SWEEP = Sweep(
    name="commits",
    cell=CellSettings(
        model_tag="pretend", parallelism="FSDP=2", code="deployed",
        protocol=Protocol(steps=12, deadline_s=120),
    ),
    launcher=CheckoutLauncher(
        repository=str(TRAINER),
        inner=CommandLauncher(
            argv=(sys.executable, "train.py", "{steps}", "{trial}"), cwd=str(TRAINER)
        ),
    ),
    site=SiteSettings(resources=Resources(time_limit_s=180)),
    gate=Gate(margin=0.01, candidates=(candidate("head", code="HEAD"),)),
)
tests = standard_tests(SWEEP)
"""
TRAINER = """\
import hashlib, sys
SPEED, NOISE = {speed}, {noise}
trial = sys.argv[2].rpartition("-")[0]
noise = int(hashlib.sha256(trial.encode()).hexdigest()[:8], 16) / 2**32 - 0.5
speed = SPEED * (1 + NOISE * noise)
for step in range(int(sys.argv[1])):
    print(f"completed step: {{step}}, seconds: {{512 / speed:.6f}}, TFLOP/s/device: 0.1, "
          f"Tokens/s/device: {{speed:.3f}}, total_weights: 512, loss: 7.1", flush=True)
"""


@pytest.mark.parametrize(
    ("speed", "noise", "status", "words"),
    [
        pytest.param(900.0, 0.004, 1, "regression: head, delta -", id="a planted loss of 10 %"),
        pytest.param(1000.0, 0.004, 0, "1 passed", id="the same without it"),
        pytest.param(1000.0, 0.2, 10, "cannot tell: head, delta ", id="noise"),
    ],
)
def test_a_gate_of_a_commit_ends_with_its_own_status(
    project: Project, speed: float, noise: float, status: int, words: str
) -> None:
    where: Path = project.path / "trainer"
    where.mkdir()

    def git(*said: str) -> str:
        command = ("git", "-C", str(where), "-c", "user.name=a", "-c", "user.email=a@localhost")
        done = subprocess.run((*command, *said), check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(**values: float) -> str:
        (where / "train.py").write_text(TRAINER.format(**values), encoding="utf-8")
        git("add", "--all")
        git("commit", "--quiet", "--allow-empty", "-m", str(values))
        return git("rev-parse", "HEAD")

    git("init", "--quiet", "--initial-branch=main")
    commit(speed=1000.0, noise=noise)
    git("branch", "deployed")
    # other files, that it is another commit
    (where / "note.txt").write_text("of the candidate\n", encoding="utf-8")
    head = commit(speed=speed, noise=noise)
    sweep = project.path / "test_gate.py"
    sweep.write_text(GATE, encoding="utf-8")
    session = project.start(str(sweep), "-n", "0", "--xlatune-nodelist", "node[001-002]")
    assert session.wait(360) == status, project.said
    assert words in project.said
    assert len(project.submitted) == len(set(project.submitted)) == 8
    assert git("status", "--porcelain") == "", "the repository is left as it was"

    said = json.loads((project.path / "reports" / "commits" / "gate.json").read_text("utf-8"))
    record = said["record"]
    assert [each["name"] for each in record["nodes"]] == ["node001", "node002"]
    for node in record["nodes"]:
        assert node["node"]["kernel"] == platform.release()
        assert node["packages"]["python"] == platform.python_version()
        assert node["problems"] == []
    assert record["changes"] == []
    assert record["differing"] == []
    assert record["node_hours"] > 0
    assert head in (project.path / "reports" / "commits" / "gate.md").read_text("utf-8")
