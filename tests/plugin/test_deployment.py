"""From a sweep to what is deployed: the recommended patch is applied, and the win is there."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from pytest_xlatune.tasks.cell_report import read_cell_report

SECRET = "hush-hush-hush"
ENV_FILE = """\
# what is deployed for the pretend cell
export XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }--xla_deployed=1"
"""
PROFILES = f"""\
        profile("fast", "--xla_fast=1", env={{"PRETEND_TOKEN": "{SECRET}"}}),
        profile("same", "--xla_other=1"),
"""


def sweep_text(text: str) -> str:
    """The pretend sweep, with what is deployed in a file."""
    text = text.replace(
        'deployed={"XLA_FLAGS": "--xla_deployed=1"}',
        "deployed=deployed_env(ENV_FILE)",
    )
    text = text.replace(
        'SiteSettings(executor="local")',
        'SiteSettings(executor="local", env_file=str(ENV_FILE), unseen=("PRETEND_*",))',
    )
    text = text.replace("    profile,\n)", "    deployed_env,\n    profile,\n)")
    return text.replace(
        "SWEEP = ", 'ENV_FILE = Path(__file__).parent / "configs" / "pretend.env.sh"\nSWEEP = ', 1
    )


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, timeout=240)


def test_the_recommended_patch_deploys_the_win_and_the_next_run_shows_it(
    folder: Any, sweep_file: str
) -> None:
    folder.write(profiles=PROFILES, text=sweep_text(sweep_file))
    (folder.path / "configs").mkdir()
    (folder.path / "configs" / "pretend.env.sh").write_text(ENV_FILE, encoding="utf-8")
    git(folder.path, "init", "-q")

    assert folder.run("--xlatune-zh").ret == 0
    assert (folder.path / "reports" / "pretend-tuning.zh.md").is_file()
    document = folder.path / "reports" / "pretend-tuning.md"
    text = document.read_text(encoding="utf-8")
    assert "★ `fast`" in text
    for path in (folder.path / "reports").rglob("*"):
        assert path.is_dir() or SECRET not in path.read_text(encoding="utf-8"), path

    git(folder.path, "apply", "reports/pretend-tuning.patch")
    assert folder.run().ret == 0
    before, after = sorted(
        (
            read_cell_report(each.parent)
            for each in folder.path.glob(".xlatune/pretend/*/ledger.jsonl")
        ),
        key=lambda known: known.at_s,
    )
    won, now = before.conclusion.verdict("fast"), after.conclusion.baseline
    assert won is not None
    assert won.tgs is not None
    assert now.tgs is not None
    assert abs(now.tgs / won.tgs - 1) < 0.01, "what was measured is what is deployed"
    assert before.conclusion.baseline.tgs is not None
    assert now.tgs > 1.08 * before.conclusion.baseline.tgs
