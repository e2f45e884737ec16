"""What is kept of a sweep: a patch that is deployed, a recipe elsewhere, a ledger that was lost."""

from __future__ import annotations

import subprocess

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.tasks.cell_report import read_cell_report
from tests.helpers.sessions import run_inside
from tests.plugin.conftest import Folder

SECRET = "hush-hush-hush"
ENV_FILE = """\
# what is deployed for the pretend cell
export XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }--xla_deployed=1"
"""
PROFILES = f"""\
        profile("fast", "--xla_fast=1", env={{"PRETEND_TOKEN": "{SECRET}"}}),
        profile("same", "--xla_other=1"),
"""
SITE = 'SiteSettings(executor="local", env_file=str(ENV_FILE), unseen=("PRETEND_*",))'


def test_the_recommended_patch_deploys_the_win_and_the_next_run_shows_it(folder: Folder) -> None:
    folder.write(profiles=PROFILES)
    folder.edit(
        "test_sweep.py",
        ('deployed={"XLA_FLAGS": "--xla_deployed=1"}', "deployed=deployed_env(ENV_FILE)"),
        ('SiteSettings(executor="local")', SITE),
        ("SWEEP = ", 'ENV_FILE = Path(__file__).parent / "pretend.env.sh"\nSWEEP = '),
    )
    folder.put("pretend.env.sh", ENV_FILE)
    subprocess.run(["git", "init", "-q"], cwd=folder.path, check=True, timeout=240)
    assert folder.run("--xlatune-zh").ret == 0
    assert (folder.path / "reports/pretend-tuning.zh.md").is_file()
    assert "★ `fast`" in folder.read("reports/pretend-tuning.md")
    for path in (folder.path / "reports").rglob("*"):
        assert path.is_dir() or SECRET not in path.read_text(encoding="utf-8"), path

    apply = ["git", "apply", "reports/pretend-tuning.patch"]
    subprocess.run(apply, cwd=folder.path, check=True, timeout=240)
    assert folder.run().ret == 0
    ledgers = folder.path.glob(".xlatune/pretend/*/ledger.jsonl")
    reports = [read_cell_report(path.parent) for path in ledgers]
    before, after = (report.conclusion for report in sorted(reports, key=lambda each: each.at_s))
    won = before.verdict("fast")
    now = after.baseline.tgs
    assert won is not None
    assert now == pytest.approx(won.tgs, rel=0.01), "what was measured is what is deployed"


def test_the_gate_of_a_recipe_passes_where_it_holds_and_fails_where_it_does_nothing(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.run().assert_outcomes(passed=5, xfailed=1)
    monkeypatch.chdir(folder.path)
    apply = ["recipe", "apply", "reports/pretend-tuning.json", "--to", "test_sweep.py"]
    assert main(apply) == 0
    run_inside(folder.pytester, "test_sweep_recipe.py").assert_outcomes(passed=1)
    folder.edit("test_sweep_recipe.py", ("--xla_fast=1", "--xla_other=1"))
    done = run_inside(folder.pytester, "test_sweep_recipe.py")
    done.assert_outcomes(failed=1)
    assert done.ret == 1


@pytest.mark.parametrize("gone", ["deleted", "emptied"])
def test_a_ledger_that_is_gone_is_told_and_nothing_is_measured_unasked(
    folder: Folder, gone: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rank = ("-m", "wave2")
    folder.run(*rank)
    (path,) = folder.path.glob(".xlatune/pretend/*/ledger.jsonl")
    attempts = sorted(path.parent.glob("*/*/spec.json"))
    if gone == "deleted":
        path.unlink()
    else:
        path.write_bytes(b"")
        assert main(["jobs", "--workdir", str(folder.path / ".xlatune")]) == 3
        assert "holds attempts of session" in capsys.readouterr().err

    shown = " ".join(folder.run(*rank).stdout.str().split())
    for words in ("holds attempts of session", "deleted or emptied", "--xlatune-fresh"):
        assert words in shown
    assert sorted(path.parent.glob("*/*/spec.json")) == attempts, "nothing was started"
    folder.run(*rank, "--xlatune-fresh")
    assert len(list(path.parent.glob("*/*/spec.json"))) > len(attempts)
