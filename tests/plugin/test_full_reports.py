"""No space for the reports at the end of a night: what was measured is told and kept."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_xlatune.cli import main

if TYPE_CHECKING:
    from tests.plugin.conftest import Folder


@pytest.fixture
def reports(folder: Folder) -> Iterator[Path]:
    """A directory on a file system of its own with space for one small file."""
    path = folder.path / "reports"
    path.mkdir()
    options = ["-o", "size=8k"]
    done = subprocess.run(["mount", "-t", "tmpfs", *options, "full", path], check=False)
    if done.returncode:
        if os.environ.get("CI"):
            pytest.fail("CI runs this test and does not skip it, but nothing can be mounted")
        pytest.skip("no file system can be mounted here: that needs CAP_SYS_ADMIN")
    yield path
    subprocess.run(["umount", "--lazy", path], check=True)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.part("sweeps"))])
def test_reports_that_cannot_be_written_lose_nothing(
    folder: Folder, reports: Path, workers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder.run_with_workers if workers else folder.run
    result = run()
    said = result.stdout.str()
    assert "reports cannot be written: [Errno 28] No space left on device" in said
    assert "mend the cause, then run `xlatune report`" in said
    assert "Traceback" not in said
    assert "fast is faster than baseline-deployed" in said, "the summary is there all the same"
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    assert not [path for path in reports.rglob("*") if path.name.startswith(".")], "no half a file"
    measured = len(folder.events("trial-ended"))
    jobs = len(folder.submitted)

    places = ["--workdir", str(folder.path / ".xlatune"), "--reports", str(reports)]
    capsys.readouterr()
    assert main(["report", "pretend", *places]) == 3, "still full"
    assert "No space left on device" in capsys.readouterr().err
    subprocess.run(["mount", "-o", "remount,size=16m", reports], check=True)
    assert main(["report", "pretend", *places]) == 0
    assert "fast" in (reports / "pretend" / "leaderboard.md").read_text(encoding="utf-8")
    assert "FASTER" in (reports / "pretend-tuning.md").read_text(encoding="utf-8")

    again = run()
    assert again.ret == pytest.ExitCode.OK
    assert len(folder.events("trial-ended")) == measured
    assert len(folder.submitted) == jobs, "nothing was measured twice"
