"""Studies of commits through pytest and the command: real repositories, real worktrees."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.report.cell_documents import COMMIT_RATES
from tests.helpers.second_looks import ALONE_AND_WITH_WORKERS
from tests.helpers.words import in_words

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


# the hashes of the commits, and with them the noise of the trials, are the same in each run
THEN = {"GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z", "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z"}


class Trainer:
    """A repository of a trainer, whose commits have known speeds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        (path / "train.py").write_text(TRAINER, "utf-8")
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@localhost")
        command = ("git", "-C", str(self.path), *who, *words)
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, env=os.environ | THEN
        )
        return done.stdout.strip()

    def commit(
        self, note: str, *, speed: float = 1000.0, loss: str = "7.1", broken: str = ""
    ) -> str:
        text = f"# {note}\nSPEED, LOSS, BROKEN = {speed}, {loss!r}, {broken.split()!r}\n"
        (self.path / "speed.py").write_text(text, "utf-8")
        self.git("add", ".")
        self.git("commit", "--quiet", "--allow-empty", "-m", note)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def trainer(folder: Any) -> Trainer:
    return Trainer(folder.path / "trainer")


def write(folder: Any, loads: str = "") -> None:
    (folder.path / "test_sweep.py").write_text(SWEEP_FILE.replace("LOADS", loads), "utf-8")


def record_of(folder: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(folder.read("reports/pretend/commits.json"))
    record: dict[str, Any] = found["conclusion"]["record"]
    return record


def test_the_slow_one_of_nine_commits_is_found(
    folder: Any, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder)
    hashes = [trainer.commit(f"change {at}", speed=1000.0 if at < 6 else 950.0) for at in range(9)]
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
    assert COMMIT_RATES in report.partition("## Jobs")[0]
    assert trainer.git("status", "--porcelain") == "", "the user's tree is as it was"
    capsys.readouterr()
    assert main(["study", "commits", "test_sweep.py", "--commits", span[1]]) == 1
    assert f"FAILED the first slower commit is {hashes[6][:12]} change 6" in capsys.readouterr().out
    assert len(folder.submitted) == jobs, "what was measured is used again"


def test_what_is_no_range_ends_in_one_message(folder: Any, trainer: Trainer) -> None:
    write(folder)
    first = trainer.commit("one")
    for asked, said in (
        ((), "*compares commits, so it needs their names (--xlatune-commits main..HEAD)*"),
        (("--xlatune-commits", "main..HEAD"), "*main..HEAD holds no commit*"),
        (("--xlatune-commits", "mane..HEAD"), "*no commit 'mane'; did you mean 'main'?*"),
        (("--xlatune-commits", "main,HEAD"), "*names one commit twice*"),
    ):
        done = folder.run(*asked)
        assert done.ret == pytest.ExitCode.USAGE_ERROR
        done.stdout.fnmatch_lines([said])
    trainer.commit("two")
    (trainer.path / "speed.py").write_text("SPEED, LOSS, BROKEN = 1, '7', []\n", "utf-8")
    done = folder.run("--xlatune-commits", f"{first}..HEAD")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stdout.fnmatch_lines(["*not committed: speed.py*"])


LOADS = "loads=(Load(model='a'), Load(model='b'), Load(model='c'), Load(model='d'))"


def test_a_table_tells_new_breakage_from_old_and_a_slow_model(
    folder: Any, trainer: Trainer
) -> None:
    write(folder, LOADS)
    trainer.commit("one", broken="a")
    trainer.git("tag", "v1")
    new = trainer.commit("two", speed=940.0, loss="9.9", broken="a b")
    done = folder.run("--xlatune-commits", "v1,main", "-v")
    found = {arm: (each["kind"], each["can_run"]) for arm, each in verdicts_of(folder).items()}
    short = new[:12]
    assert found[f"a-{short}"] == ("INVALID", True), "it did not run before either"
    assert found[f"b-{short}"] == ("INVALID", False)
    assert found[f"c-{short}"] == found[f"d-{short}"] == ("SLOWER", True)
    assert "computes something else" in folder.read("reports/pretend/commits.md")
    done.assert_outcomes(passed=5, failed=4)
    assert done.ret == pytest.ExitCode.TESTS_FAILED


QUICK = (
    "    site=SiteSettings(\n"
    "        executor='local',\n"
    "        retry_policy=RetryPolicy(rules={'checkout-fail': RetryRule(retries=RETRIES, "
    "backoff_s=1, then=Next.DROP)}),\n"
    "    ),\n"
)


def without_waiting(folder: Any, loads: str = "", *, retries: int = 1) -> None:
    """Write the sweep file; a checkout that cannot be made is tried again after a second."""
    text = SWEEP_FILE.replace("LOADS", loads)
    text = text.replace('    site=SiteSettings(executor="local"),\n', QUICK)
    text = text.replace(
        "    SiteSettings,\n", "    RetryPolicy,\n    RetryRule,\n    SiteSettings,\n"
    )
    text = text.replace("\nTRAINER", "\nfrom pytest_xlatune.model.resources import Next\nTRAINER")
    text = text.replace("RETRIES", str(retries))
    (folder.path / "test_sweep.py").write_text(text, "utf-8")


def lose_files(trainer: Trainer, commit: str) -> None:
    """Remove what git keeps of `speed.py` at a commit, as a damaged or partial clone has it."""
    blob = trainer.git("rev-parse", f"{commit}:speed.py")
    (trainer.path / ".git" / "objects" / blob[:2] / blob[2:]).unlink()


def with_a_submodule_that_is_gone(trainer: Trainer, note: str) -> str:
    """Commit a submodule whose repository no machine has."""
    gone = trainer.path.parent / "gone"
    text = f'[submodule "lib"]\n\tpath = lib\n\turl = {gone}\n'
    (trainer.path / ".gitmodules").write_text(text, "utf-8")
    (trainer.path / "lib").mkdir(exist_ok=True)
    trainer.git("update-index", "--add", "--cacheinfo", f"160000,{'3' * 40},lib")
    found = trainer.commit(note)
    trainer.git("rm", "--quiet", "--cached", "lib", ".gitmodules")
    (trainer.path / ".gitmodules").unlink()
    return found


def verdicts_of(folder: Any) -> dict[str, dict[str, Any]]:
    text = json.loads(folder.read("reports/pretend/commits.json"))
    return {each["arm"]: each for each in text["conclusion"]["verdicts"]}


@pytest.mark.parametrize("run", ALONE_AND_WITH_WORKERS)
def test_a_table_goes_on_past_a_commit_that_cannot_be_checked_out(
    folder: Any, trainer: Trainer, run: str
) -> None:
    without_waiting(folder, "loads=(Load(model='a'), Load(model='b'))")
    hashes = [trainer.commit("one"), with_a_submodule_that_is_gone(trainer, "two")]
    hashes.append(trainer.commit("three"))
    named = ",".join(hashes)
    done = getattr(folder, run)("--xlatune-commits", named, "-v")  # both workers make checkouts
    verdicts, short = verdicts_of(folder), [each[:12] for each in hashes]
    for model in "ab":
        own = [verdicts[f"{model}-{each}"] for each in short]
        assert [each["can_run"] for each in own] == [True, False, True]
        assert [each["kind"] == "INVALID" for each in own] == [False, True, False]
        (why,) = map(in_words, own[1]["reasons"])
        assert f"the checkout of {short[1]} cannot be made" in why
        assert "submodule" in why, "in git's own words"
    assert len(folder.submitted) == 4, "of the two others alone"
    done.assert_outcomes(passed=5, failed=2)
    notes = folder.read("reports/pretend/commits.md")
    assert f"the checkout of {short[1]} cannot be made" in notes
    ledger = (next(folder.path.glob(".xlatune/**/ledger.jsonl"))).read_text("utf-8")
    ended = [each for each in ledger.splitlines() if '"attempt-ended"' in each]
    assert sum("checkout-fail" in each for each in ended) == 4, "each load tried it again"


def test_where_no_commit_can_be_checked_out_nothing_begins(folder: Any, trainer: Trainer) -> None:
    without_waiting(folder, "loads=(Load(model='a'),)")
    hashes = [trainer.commit("one"), trainer.commit("two")]
    for each in hashes:
        lose_files(trainer, each)
    done = folder.run("--xlatune-commits", ",".join(hashes))
    assert done.ret != pytest.ExitCode.OK
    done.stdout.fnmatch_lines([f"*the checkout of {hashes[0][:12]} cannot be made*"])
    assert not folder.submitted


def test_a_search_whose_end_cannot_be_checked_out_cannot_tell(
    folder: Any, trainer: Trainer
) -> None:
    without_waiting(folder, retries=0)
    hashes = [trainer.commit(f"change {at}") for at in range(4)]
    lose_files(trainer, hashes[-1])
    done = folder.run("--xlatune-commits", f"{hashes[0]}..HEAD", "-v")
    record = record_of(folder)
    assert record["found"] == "CANNOT TELL"
    assert "cannot be made" in in_words(record["summary"][0])
    assert len(folder.submitted) <= 1, "what no end can be compared with is not run"
    assert done.ret != pytest.ExitCode.OK
