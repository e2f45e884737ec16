"""Studies of commits through pytest and the command: real repositories, real worktrees."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.helpers.repositories import Repository

SWEEP_FILE = """\
import sys
from pathlib import Path

from pytest_xlatune import (
    CellSettings,
    CheckoutLauncher,
    CommandLauncher,
    Commits,
    DesignSettings,
    Load,
    Protocol,
    SiteSettings,
    Sweep,
    standard_tests,
)

TRAINER = Path(__file__).parent / "trainer"

SWEEP = Sweep(
    name="pretend",
    cell=CellSettings(model_tag="pretend", parallelism="FSDP=4", protocol=Protocol(steps=12)),
    launcher=CheckoutLauncher(
        repository=str(TRAINER),
        inner=CommandLauncher(
            argv=(sys.executable, "train.py", "{steps}", "{trial}", "{model_tag}"),
            cwd=str(TRAINER),
        ),
    ),
    site=SiteSettings(executor="local"),
    study=Commits(LOADS),
    design=DesignSettings(budget=80),
)

tests = standard_tests(SWEEP)
"""
TRAINER = """\
import hashlib, sys
from speed import SPEED, LOSS, BROKEN
trial = sys.argv[2].rpartition("-")[0]
noise = int(hashlib.sha256(trial.encode()).hexdigest()[:8], 16) / 2**32 - 0.5
speed = SPEED * (1 + 0.004 * noise)
if sys.argv[3] in BROKEN:
    sys.exit("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 99 bytes.")
for step in range(int(sys.argv[1])):
    print(f"completed step: {step}, seconds: {512 / speed:.6f}, TFLOP/s/device: 0.1, "
          f"Tokens/s/device: {speed:.3f}, total_weights: 512, loss: {LOSS}", flush=True)
"""


def commit(
    trainer: Repository, note: str, *, speed: float = 1000.0, loss: str = "7.1", broken: str = ""
) -> str:
    text = f"# {note}\nSPEED, LOSS, BROKEN = {speed}, {loss!r}, {broken.split()!r}\n"
    return trainer.commit(note, train=TRAINER, speed=text)


@pytest.fixture
def trainer(folder: Any) -> Repository:
    return Repository(folder.path / "trainer")


def write(folder: Any, loads: str = "") -> None:
    (folder.path / "test_sweep.py").write_text(SWEEP_FILE.replace("LOADS", loads), "utf-8")


def record_of(folder: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(folder.read("reports/pretend/commits.json"))
    record: dict[str, Any] = found["conclusion"]["record"]
    return record


def test_the_slow_one_of_nine_commits_is_found(
    folder: Any, trainer: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder)
    hashes = [commit(trainer, f"change {at}", speed=1000.0 if at < 6 else 950.0) for at in range(9)]
    span = ("--xlatune-commits", f"{hashes[0]}..HEAD")
    plan = folder.run(*span, "--xlatune-plan")
    plan.stdout.fnmatch_lines(["*8 jobs: 4 alternating pairs of the first and the last of 9*"])
    assert not folder.submitted
    done = folder.run(*span, "-m", "commits", "-v", "--junitxml=junit.xml")
    done.assert_outcomes(passed=1, failed=2)
    done.stdout.fnmatch_lines([f"*the first slower commit is {hashes[6][:12]} change 6, -[45]*%*"])
    record = record_of(folder)
    assert (record["found"], record["first"]) == ("FIRST", hashes[6][:12])
    jobs = len(folder.submitted)
    assert 8 + 3 + 8 <= jobs <= 8 + 6 + 8
    assert "the first slower commit" in folder.read("junit.xml")
    report = folder.read("reports/pretend/commits.md")
    assert f"| `{hashes[6][:12]}` change 6 | SLOWER |" in report


def test_what_is_no_range_ends_in_one_message(folder: Any, trainer: Repository) -> None:
    write(folder)
    commit(trainer, "one")
    for asked, said in (
        ((), "*compares commits, so it needs their names (--xlatune-commits main..HEAD)*"),
        (("--xlatune-commits", "main..HEAD"), "*main..HEAD is no range of 1 to 511 commits*"),
        (("--xlatune-commits", "main,HEAD"), "*names one commit twice*"),
    ):
        done = folder.run(*asked)
        assert done.ret == pytest.ExitCode.USAGE_ERROR
        done.stdout.fnmatch_lines([said])


LOADS = "loads=(Load(model='a'), Load(model='b'), Load(model='c'), Load(model='d'))"


def test_a_table_tells_new_breakage_from_old_and_a_slow_model(
    folder: Any, trainer: Repository
) -> None:
    write(folder, LOADS)
    commit(trainer, "one", broken="a")
    trainer.git("tag", "v1")
    new = commit(trainer, "two", speed=940.0, loss="9.9", broken="a b")
    done = folder.run("--xlatune-commits", "v1,main", "-v")
    found = {arm: (each["kind"], each["can_run"]) for arm, each in verdicts_of(folder).items()}
    short = new[:12]
    assert found[f"a-{short}"] == ("INVALID", True), "it did not run before either"
    assert found[f"b-{short}"] == ("INVALID", False)
    assert found[f"c-{short}"] == found[f"d-{short}"] == ("SLOWER", True)
    assert "computes something else" in folder.read("reports/pretend/commits.md")
    done.assert_outcomes(passed=5, failed=4)
    assert done.ret == pytest.ExitCode.TESTS_FAILED


def verdicts_of(folder: Any) -> dict[str, dict[str, Any]]:
    text = json.loads(folder.read("reports/pretend/commits.json"))
    return {each["arm"]: each for each in text["conclusion"]["verdicts"]}
