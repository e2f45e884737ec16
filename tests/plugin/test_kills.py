"""A session as a process: its statuses, its terminal, `watch` beside it, and what kills it."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.cli.running import ending_jobs
from pytest_xlatune.executors.folder import read_started
from pytest_xlatune.model.errors import Exit, help_lines, of_command
from pytest_xlatune.sweep.groups import OPTIONS, SWITCHES
from tests.helpers.second_looks import BESIDE_THE_LAB
from tests.helpers.waiting import LIMIT_S, until
from tests.plugin.conftest import Folder

OURS = re.compile(r"(?m)^  (?:--xlatune-([a-z-]+)|--(no-xlatune)|xlatune_(\w+) \()")


def test_help_has_the_statuses_and_all_options(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    of_the_command = capsys.readouterr().out
    for status in Exit:
        line = f"{of_command(status):>5}  {status.meaning}"
        assert (line in of_the_command) is (status is not Exit.NOTHING_SELECTED)
    shown = folder.run("--help").stdout.str()
    assert "\n".join(help_lines()) in shown
    assert len({match[0] for match in OURS.finditer(shown)}) == 2 * len(OPTIONS) + len(SWITCHES)


def test_ctrl_c_is_status_130_on_the_command_line(folder: Folder) -> None:
    """The trials of the sweep wait for a file, so one is surely at it."""
    hold = folder.put("hold", "")
    folder.edit("test_sweep.py", ('deployed={"XLA', f'deployed={{"HOLD": "{hold}", "XLA'))
    with subprocess.Popen(
        [*COMMAND, "calibrate", "test_sweep.py", "--jobs", "4"],
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


# they run as long as the file HOLD is there
PROFILES = """\
        profile("fast", "--xla_fast=1", env={"HOLD": "FOLDER/hold"}),
        profile("same", "--xla_other=1", env={"HOLD": "FOLDER/hold"}),
"""
SCREEN, SCREENED = ("-m", "wave1 or wave2"), 2 + 2
Start = Callable[..., "subprocess.Popen[bytes]"]


def held(folder: Folder) -> list[int]:
    """Return the trainers that run, and go on only when they are told to."""
    paths = folder.path.glob(".xlatune/pretend/*/*/*/started.json")
    records = [read_started(path.parent) for path in paths if "baseline" not in path.parent.name]
    return [record.pid for record in records if record and record.is_alive]


@pytest.fixture
def start(folder: Folder) -> Iterator[Start]:
    """Return a function that starts a session in the background; none outlives the test."""
    folder.write(profiles=PROFILES.replace("FOLDER", str(folder.path)))
    site = 'executor="local", unseen=("HOLD",)'  # nothing shows that a trainer waits for a file
    folder.edit("test_sweep.py", ('executor="local"', site))
    hold = folder.put("hold", "")
    started: list[subprocess.Popen[bytes]] = []

    def begin(*args: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "pytest", "-p", "xlatune", "test_sweep.py", "-q"]
        with (folder.path / "said.txt").open("wb") as file:
            process = subprocess.Popen(
                [*argv, *SCREEN, *args], cwd=folder.path, stdout=file, start_new_session=True
            )
        started.append(process)
        return process

    yield begin
    hold.unlink(missing_ok=True)
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize(
    ("args", "by", "ends"),
    [
        pytest.param((), signal.SIGKILL, False, id="killed"),
        pytest.param(
            ("-n2",), signal.SIGKILL, False, id="two workers", marks=pytest.mark.part("sweeps")
        ),
        pytest.param((), signal.SIGTERM, False, id="told to end", marks=pytest.mark.part("sweeps")),
        pytest.param(("--xlatune-keep-jobs",), signal.SIGINT, False, id="Ctrl-C that keeps jobs"),
        pytest.param((), signal.SIGINT, True, id="Ctrl-C ends jobs"),
    ],
)
def test_a_session_that_ends_early_is_gone_on_with(
    folder: Folder, start: Start, args: tuple[str, ...], by: signal.Signals, *, ends: bool
) -> None:
    session = start(*args)
    running = until(lambda: held(folder))
    until(lambda: len(folder.submitted) == len(folder.events("attempt-intended")))
    os.kill(session.pid, by)
    status = session.wait(LIMIT_S)
    if ends:
        assert status == pytest.ExitCode.INTERRUPTED
        shown = folder.read("said.txt")
        assert "Traceback" not in shown
        assert "interrupted. Jobs that no other session waits for are ended now" in shown
        assert "xlatune: ended " in shown
        (interrupted,) = folder.events("decided")
        assert interrupted["next"] == "interrupted"
    assert held(folder) == ([] if ends else running)
    (folder.path / "hold").unlink()
    go_on = folder.run_apart if "-n2" in args else folder.run
    go_on(*SCREEN, *(args if "-n2" in args else ())).assert_outcomes(passed=3)
    assert [result["status"] for result in folder.results] == ["measured"] * SCREENED
    assert ends or len(folder.submitted) == SCREENED


SWEEP = [sys.executable, "-m", "pytest", "-p", "xlatune", "test_sweep.py", "-k", "fast"]
COMMAND = [
    sys.executable,
    "-c",
    "import sys; from pytest_xlatune.cli import main; sys.exit(main())",
]
# the trainer waits before its last step until what it printed was seen, a minute at most
HELD = r"fast \(job [0-9.]+\) step 10/12"
LOOP = 'for step in range(int(keys.get("steps", sys.argv[1]))):\n'
SLOW = """\
    for _ in range(3000 if "--xla_fast" in flags and step == 11 else 0):
        if not os.path.exists("SEEN"):
            time.sleep(0.02)
"""


# what moves no cursor:  ESC[32m   ESC[?25l   ESC[2K is read by `screen`
STYLE = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?[0-9]+[hl]|\x1b\][^\x07]*\x07")


class Terminal:
    """A process whose input and output are a pseudo-terminal of 80 columns."""

    def __init__(self, argv: Sequence[str], *, cwd: Path) -> None:
        ours, its = pty.openpty()
        termios.tcsetwinsize(its, (30, 80))
        named = {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "30"}
        self.process = subprocess.Popen(
            argv, cwd=cwd, env={**os.environ, **named}, stdin=its, stdout=its, stderr=its,
            start_new_session=True,
        )  # fmt: skip
        os.close(its)
        self._ours, self.said = ours, b""

    def read_until(self, is_enough: Callable[[str], object] = lambda _: False) -> str:
        """Read what it writes until that is enough, or the process has ended; return all of it."""
        until = time.monotonic() + 120.0
        while time.monotonic() < until and not is_enough(self.text):
            if not select.select([self._ours], [], [], 0.2)[0]:
                if self.process.poll() is not None:
                    break
                continue
            try:
                self.said += os.read(self._ours, 65536)
            except OSError:  # the other end is closed
                break
        return self.text

    @property
    def text(self) -> str:
        """All that was written, without colours."""
        return STYLE.sub("", self.said.decode("utf-8", "replace"))

    def close(self) -> int:
        try:
            return self.process.wait(timeout=60)
        finally:
            self.process.kill()
            os.close(self._ours)


@pytest.mark.parametrize(
    "options", [(), pytest.param(("-n2",), marks=BESIDE_THE_LAB)], ids=["alone", "two"]
)
def test_watch_shows_the_jobs_in_flight_of_a_session_on_a_terminal(
    folder: Folder,
    options: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen = str(folder.path / "seen")
    folder.edit("trainer.py", (LOOP, LOOP + SLOW.replace("SEEN", seen)))
    session = Terminal([*SWEEP, *options], cwd=folder.path)
    until((folder.path / ".xlatune").exists)
    watch = Terminal([*COMMAND, "watch"], cwd=folder.path)
    text = watch.read_until(lambda text: re.search(HELD, text))
    assert "pretend" in text
    shown = len(watch.said)
    watch.read_until(lambda _: len(watch.said) > shown)
    assert len(watch.said) > shown, "it is drawn again"
    watch.process.send_signal(signal.SIGINT)
    watch.read_until()
    assert watch.close() == 0
    assert "Traceback" not in watch.text
    assert b"\x1b[?1049l" in watch.said, "the screen from before is back"

    folder.put("seen", "")
    text = session.read_until()
    assert session.close() == 0, text
    left = text.splitlines()
    assert len([line for line in left if "TGS" in line and "(job" in line]) == 3, "landed ones"
    assert any("1 passed" in line for line in left)
    assert all(len(line) <= 80 for line in left if "| " in line or "(job" in line)

    monkeypatch.chdir(folder.path)
    files = {path: path.read_bytes() for path in Path(".xlatune").rglob("*") if path.is_file()}
    for argv in (["watch"], ["watch", "pretend", "--once"]):
        assert main(argv) == 0
        out = capsys.readouterr().out
        assert all(len(line) <= 80 for line in out.splitlines())
        assert "fast" in out
        assert "of 14 jobs" in out
    assert {path: path.read_bytes() for path in files} == files, "it looks on, changes nothing"
