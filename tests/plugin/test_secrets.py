"""No file of a run and no view shows a secret, however it was given; the trainer gets them all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.cli import main
from tests.helpers import secrets_planted as planted

RANK_ONLY = ("--xlatune-yes",)  # eight jobs decide nothing
RUN = (*RANK_ONLY, "-vv", "--showlocals", "--junitxml=junit.xml", "--xlatune-log-level=debug")


@pytest.fixture
def sweep(folder: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    planted.write(folder.path, executor="local")
    monkeypatch.setenv(*planted.INHERITED)
    return folder


COMMANDS = (
    ("report", "pretend", "--reports", "again"),
    ("report", "pretend", "--json"),
    ("watch", "--once"),
    ("history",),
    ("jobs", "pretend"),
    ("plan", "test_sweep.py"),
)


def test_thirteen_kinds_of_secrets_reach_the_trainer_and_nothing_else(
    sweep: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    said = sweep.run_apart(*RUN)
    text = said.stdout.str() + said.stderr.str()
    work = sweep.path / ".xlatune"
    for profile, has_profile in (("secretive", True), ("baseline", False)):
        (log,) = planted.logs(work, profile)
        assert f"got {planted.digest_of(has_profile=has_profile)}" in log, log
    assert "401: (hidden)" in sweep.read("junit.xml"), "what the trainer said is quoted"
    assert planted.shown_in(text) == []
    assert planted.leaks(work) == {}
    assert planted.leaks(sweep.path / "reports") == {}
    assert planted.shown_in(sweep.read("junit.xml")) == []
    assert planted.open_ones(work / "pretend") == []
    capsys.readouterr()
    for command in COMMANDS:
        status, shown = main(command), "".join(capsys.readouterr())
        assert status != 2, (command, shown)
        assert shown, command
        assert planted.shown_in(shown) == [], command
    assert planted.leaks(sweep.path / "again") == {}
    before = len(sweep.submitted)
    sweep.run(*RUN)
    assert len(sweep.submitted) <= before + 2, "what was kept without secrets is found again"


def test_a_site_opens_its_work_directory_to_the_group(sweep: Any) -> None:
    sweep.run_apart(*RANK_ONLY, "-k", "secretive", "--xlatune-access=group")
    (ledger,) = sweep.path.glob(".xlatune/pretend/*/ledger.jsonl")
    specs = list(ledger.parent.glob("*/*/spec.json"))
    assert specs
    for path in (ledger, *specs, *ledger.parent.glob("*/*/log.0.txt")):
        assert path.stat().st_mode & 0o777 == 0o660, path
        assert path.parent.stat().st_mode & 0o7777 == 0o2770, path.parent


def test_an_env_file_that_fails_shows_no_secret(sweep: Any) -> None:
    path: Path = sweep.path / "site.env.sh"
    path.write_text("set -x\n" + path.read_text(encoding="utf-8") + "false_command\n")
    said = sweep.run(*RANK_ONLY)
    assert planted.shown_in(said.stdout.str() + said.stderr.str()) == []


def test_a_mistake_in_the_command_shows_no_secret_anywhere(sweep: Any) -> None:
    """What the terminal and junit quote of a placeholder that does not exist."""
    path: Path = sweep.path / "test_sweep.py"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("plant-twelve-12", "plant-{twelve}-12"), encoding="utf-8")
    refused = sweep.run(*RUN)
    said = refused.stdout.str() + refused.stderr.str() + sweep.read("junit.xml")
    assert refused.ret == 4
    assert "the command's argument '(hidden)'" in said
    assert "twelve" not in said
    assert planted.shown_in(said) == []
