"""The status that a session ends with: one number for a pipeline, whatever else the session ran."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.cli.running import ending_jobs
from pytest_xlatune.model.errors import Exit, help_lines, of_command
from pytest_xlatune.model.result import Verdict, VerdictKind
from pytest_xlatune.plugin.controller import SessionStatus
from pytest_xlatune.plugin.hooks import EXIT
from pytest_xlatune.sweep.groups import BRIEF_HELP, OPTIONS, SWITCHES
from pytest_xlatune.tasks.answers import Measured
from tests.helpers.waiting import until
from tests.plugin.conftest import Folder

COMMAND = "import sys; from pytest_xlatune.cli import main; sys.exit(main())"


OURS = re.compile(r"(?m)^  (?:--xlatune-([a-z-]+)|--(no-xlatune)|xlatune_(\w+) \()")


def test_help_has_the_statuses_and_the_daily_options_and_says_where_all_are(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    of_the_command = capsys.readouterr().out
    for status in Exit:
        line = f"{of_command(status):>5}  {status.meaning}"
        assert (line in of_the_command) is (status is not Exit.NOTHING_SELECTED)
    brief = folder.run("--help").stdout.str()
    assert "\n".join(help_lines()) in brief
    assert {match[1] for match in OURS.finditer(brief)} - {None} == set(BRIEF_HELP)
    assert "12 for daily use; `pytest -v --help` lists all" in " ".join(brief.split())
    whole = OURS.finditer(folder.run("-v", "--help").stdout.str())
    assert len({match[0] for match in whole}) == 2 * len(OPTIONS) + len(SWITCHES)


FAILED, CANNOT = ("failed", None), ("failed", Exit.CANNOT_TELL)
MISSING = ("failed", Exit.NOT_MEASURED)


@pytest.mark.parametrize(
    ("reports", "said", "status"),
    [
        pytest.param((CANNOT, MISSING), 1, 10, id="cannot tell, and another was not measured"),
        pytest.param((("failed", Exit.NEGATIVE),), 2, 1, id="-x with workers is no interrupt"),
        pytest.param((FAILED,), 2, 2, id="without a sweep pytest's own status stays"),
        pytest.param((CANNOT,), 77, 77, id="another plugin's own status"),
    ],
)
def test_what_a_session_ends_with(
    reports: tuple[tuple[str, Exit | None], ...], said: int, status: int
) -> None:
    ends = SessionStatus(statuses=set())
    for outcome, exit_status in reports:
        where: Any = ("test", ("test", 1, "test"), {}, outcome, None, "call")
        made = pytest.TestReport(*where)
        vars(made).update({} if exit_status is None else {EXIT: int(exit_status)})
        ends.note(made)
    assert ends.status(said) == status


def test_a_claim_says_whether_it_is_refuted_or_open() -> None:
    for claimed, ci95, ends in (
        ("faster", (-0.01, 0.02), Exit.CANNOT_TELL),  # the interval holds zero
        ("faster_by", (-0.05, 0.02), Exit.CANNOT_TELL),  # a gain is possible
        ("faster_by", (-0.05, 0.005), Exit.NEGATIVE),  # the gain is excluded
    ):
        verdict = Verdict(arm="a", kind=VerdictKind.INCONCLUSIVE, delta=0.0, ci95=ci95, n=4)
        measured = Measured(verdict)
        claim = getattr(measured, claimed)
        assert not (claim if claimed == "faster" else claim(0.01))
        assert measured.exit is ends


def test_ctrl_c_is_status_130_on_the_command_line(folder: Folder) -> None:
    """The trials of the sweep wait for a file, so one is surely at it."""
    hold = folder.put("hold", "")
    folder.edit("test_sweep.py", ('deployed={"XLA', f'deployed={{"HOLD": "{hold}", "XLA'))
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND, "calibrate", "test_sweep.py", "--jobs", "4"],
        cwd=folder.path, env={**os.environ, "HOLD": str(hold), "PYTHONUNBUFFERED": "1"},
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as running:  # fmt: skip
        try:
            until(lambda: folder.events("attempt-submitted"))
        finally:
            running.send_signal(signal.SIGINT)
        shown, _ = running.communicate()
    assert running.returncode == 130, shown
    assert "Traceback" not in shown
    assert "no other session waits" in shown
    assert "xlatune: ended " in shown


def test_a_second_ctrl_c_leaves_the_jobs_of_a_command_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(folder: Path) -> tuple[()]:
        raise KeyboardInterrupt

    monkeypatch.setattr("pytest_xlatune.cli.running.cancel_unwaited", interrupted)
    with pytest.raises(KeyboardInterrupt), ending_jobs(tmp_path):
        raise KeyboardInterrupt
    said = capsys.readouterr()
    assert "Ctrl-C again leaves them running" in said.err
    assert "jobs that still run are left running; run again to continue" in said.out
