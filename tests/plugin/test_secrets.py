"""No file of a run and no view shows a secret, however it was given; the trainer gets them all."""

from __future__ import annotations

import pytest

from pytest_xlatune.cli import main
from tests.helpers import secrets_planted as planted
from tests.plugin.conftest import Folder

RANK_ONLY = ("--xlatune-yes",)  # eight jobs decide nothing
RUN = (*RANK_ONLY, "-vv", "--showlocals", "--junitxml=junit.xml", "--xlatune-log-level=debug")


@pytest.fixture
def sweep(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> Folder:
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
    sweep: Folder, capsys: pytest.CaptureFixture[str]
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


def test_no_mistake_shows_a_secret(sweep: Folder) -> None:
    """Neither an env file that fails, nor a placeholder that does not exist."""
    text = sweep.read("site.env.sh")
    sweep.put("site.env.sh", f"set -x\n{text}false_command\n")
    failed = sweep.run(*RANK_ONLY)
    assert planted.shown_in(failed.stdout.str() + failed.stderr.str()) == []
    sweep.put("site.env.sh", text)
    sweep.edit("test_sweep.py", ("plant-twelve-12", "plant-{twelve}-12"))
    refused = sweep.run(*RUN)
    shown = refused.stdout.str() + refused.stderr.str() + sweep.read("junit.xml")
    assert refused.ret == 4
    assert "the command's argument '(hidden)'" in shown
    assert "twelve" not in shown
    assert planted.shown_in(shown) == []
