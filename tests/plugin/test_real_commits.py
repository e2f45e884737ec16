"""A search among 16 commits of a real JAX trainer: the one whose steps do more work is named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

STUDIES = Path(__file__).parents[2] / "sweeps" / "quickstart" / "studies.py"


@pytest.mark.jax
@pytest.mark.part("sweeps")
def test_the_commit_that_computes_a_second_gradient_is_named(
    folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = folder.path / "trainer"
    monkeypatch.setenv("XLATUNE_TRAINER", str(trainer))
    subprocess.run([sys.executable, str(STUDIES), str(trainer)], check=True, timeout=240)

    def log(*words: str) -> list[str]:
        command = ("git", "-C", str(trainer), "log", "--reverse", "--format=%h", "--abbrev=12")
        done = subprocess.run((*command, *words), check=True, capture_output=True, text=True)
        return done.stdout.split()

    commits, (planted,) = log(), log("-S", "jax.grad(")
    assert len(commits) == 1 + 16
    folder.write(text=STUDIES.read_text("utf-8"))
    asked = ("--xlatune-commits", "v1..HEAD", "-m", "commits", "-v", "-n0")
    # 20 starts of JAX, on whatever is free of the cores
    ran = folder.run_apart(*asked, timeout_s=600)
    record = json.loads(folder.read("reports/commits/commits.json"))["conclusion"]["record"]
    if record["found"] == "RANGE":  # after its first, up to its last
        named = commits[commits.index(record["first"]) + 1 : commits.index(record["last"]) + 1]
        assert len(named) < len(commits) // 2
    else:
        assert record["found"] == "FIRST", ran.stdout.str()
        named = [record["first"]]
        ran.stdout.fnmatch_lines([f"*the first slower commit is {planted} *"])
    assert planted in named
    assert ran.ret == pytest.ExitCode.TESTS_FAILED
