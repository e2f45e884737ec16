"""From a sweep to what is deployed: the recommended patch is applied, and the win is there."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.tasks.publish import read_known

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


def guarded_text(text: str) -> str:
    """The same for a parallelism that the environment names; where stages are, `fast` is slow."""
    text = sweep_text(text).replace(
        "deployed_env(ENV_FILE)", "deployed_env(ENV_FILE, parallelism=AXES)"
    )
    text = text.replace('parallelism="FSDP=4"', "parallelism=AXES")
    text = text.replace('"{trial}")', '"{trial}", AXES)')
    return text.replace("import sys\n", 'import os\nimport sys\n\nAXES = os.environ["AXES"]\n', 1)


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
        (read_known(each.parent) for each in folder.path.glob(".xlatune/pretend/*/ledger.jsonl")),
        key=lambda known: known.at_s,
    )
    won, now = before.conclusion.verdict("fast"), after.conclusion.baseline
    assert won is not None
    assert won.tgs is not None
    assert now.tgs is not None
    assert abs(now.tgs / won.tgs - 1) < 0.01, "what was measured is what is deployed"
    assert before.conclusion.baseline.tgs is not None
    assert now.tgs > 1.08 * before.conclusion.baseline.tgs
    text = document.read_text(encoding="utf-8")
    assert "The recipe of an earlier measurement of FSDP=4 is deployed now" in text
    kept = json.loads((folder.path / "reports/pretend-tuning.json").read_text(encoding="utf-8"))
    (cell,) = kept["cells"]
    assert cell["earlier"][0]["cell_digest"] == before.cell.digest


def test_a_guarded_recipe_is_deployed_where_it_won_and_nowhere_else(
    folder: Any, sweep_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sweep two parallelisms, apply the patch, sweep both again: the win is in the one cell."""
    profiles = PROFILES.replace(f', env={{"PRETEND_TOKEN": "{SECRET}"}}', "")
    folder.write(profiles=profiles, text=guarded_text(sweep_file))
    trainer = folder.read("trainer.py").replace(
        "speed *= factor", "speed *= factor if sys.argv[3] == 'FSDP=4' else 0.7"
    )
    (folder.path / "trainer.py").write_text(trainer, encoding="utf-8")
    (folder.path / "configs").mkdir()
    (folder.path / "configs" / "pretend.env.sh").write_text(ENV_FILE, encoding="utf-8")
    git(folder.path, "init", "-q")
    for axes in ("FSDP=4", "PP=4"):
        monkeypatch.setenv("AXES", axes)
        folder.run("-m", "not confirm" if axes == "PP=4" else "")
    patch = folder.read("reports/pretend-tuning.patch")
    assert '+if [[ "${MAXTEXT_DCN_PP:-1}" -le 1 ]]; then' in patch
    git(folder.path, "apply", "reports/pretend-tuning.patch")

    before = len(folder.submitted)
    monkeypatch.setenv("AXES", "PP=4")
    folder.run("-m", "not confirm")
    assert len(folder.submitted) == before, "what is deployed for PP=4 is what it was"
    monkeypatch.setenv("AXES", "FSDP=4")
    assert folder.run().ret == 0
    found = [
        read_known(each.parent) for each in folder.path.glob(".xlatune/pretend/*/ledger.jsonl")
    ]
    first, again = sorted(
        (each for each in found if str(each.cell.parallelism) == "FSDP=4"),
        key=lambda known: known.at_s,
    )
    assert "--xla_fast=1" in again.cell.deployed["XLA_FLAGS"]
    assert "MAXTEXT_DCN_FSDP" not in again.cell.deployed
    old, new = first.conclusion.baseline.tgs, again.conclusion.baseline.tgs
    assert old is not None
    assert new is not None
    assert new > 1.08 * old
    text = folder.read("reports/pretend-tuning.md")
    assert "The recipe of an earlier measurement of FSDP=4 is deployed now" in text


def sourced_text(text: str) -> str:
    """The pretend sweep, with an env file that each trial sources by itself."""
    text = text.replace('deployed={"XLA_FLAGS": "--xla_deployed=1"},', "")
    text = text.replace('"{trial}")\n    )', '"{trial}"), env_files=(str(ENV_FILE),)\n    )')
    return text.replace(
        "SWEEP = ", 'ENV_FILE = Path(__file__).parent / "configs" / "pretend.env.sh"\nSWEEP = ', 1
    )


def test_a_recipe_is_confirmed_where_the_trials_source_the_env_file(
    folder: Any, sweep_file: str
) -> None:
    """Sweep, apply the patch, run the very same command again: the document shows it."""
    profiles = PROFILES.replace(f', env={{"PRETEND_TOKEN": "{SECRET}"}}', "")
    text = sourced_text(sweep_file)
    assert "env_files=(str(ENV_FILE),)" in text
    folder.write(profiles=profiles, text=text)
    (folder.path / "configs").mkdir()
    file = folder.path / "configs" / "pretend.env.sh"
    file.write_text(f"{ENV_FILE}export HF_TOKEN={SECRET}\nexport RUN=$(date +%s%N)\n", "utf-8")
    git(folder.path, "init", "-q")

    assert folder.run().ret == 0
    submitted = len(folder.submitted)
    first = folder.read("reports/pretend-tuning.md")
    assert "sets nothing" not in first, "the env file sets XLA_FLAGS"
    assert "Env files set `XLA_FLAGS`: the values are those" in first
    assert "| `XLA_FLAGS` | `--xla_deployed=1` |" in first
    assert folder.run().ret == 0
    assert len(folder.submitted) == submitted, "what a command makes anew is no other cell"

    git(folder.path, "apply", "reports/pretend-tuning.patch")
    assert folder.run().ret == 0, "the same command: no option is needed"
    assert len(folder.submitted) > submitted
    text = " ".join(folder.read("reports/pretend-tuning.md").split())
    assert "The recipe of an earlier measurement of FSDP=4 is deployed now" in text
    assert re.search(r"the recipe promised \+\d+\.\d % \[\+\d", text)
    assert re.search(r"`baseline-deployed` is [\d.]+ TGS \(\+(9|10|11)\.\d % \[\+", text), text
    kept = json.loads(folder.read("reports/pretend-tuning.json"))
    (earlier,) = kept["cells"][0]["earlier"]
    delta, low, high = earlier["change"]
    assert 0.08 < low < delta < high < 0.12
    # back to what it was: the first ledger goes on, nothing is measured again
    submitted = len(folder.submitted)
    file.write_text(f"{ENV_FILE}export HF_TOKEN={SECRET}\n", "utf-8")
    assert folder.run().ret == 0
    assert len(folder.submitted) == submitted
    for path in (folder.path / ".xlatune").rglob("*.jsonl"):
        assert SECRET not in path.read_text(encoding="utf-8"), path
