"""A session as a person sees it on a terminal, and `xlatune watch` beside it, which only looks."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pytest_xlatune.cli import main
from tests.helpers.second_looks import BESIDE_THE_LAB
from tests.plugin.conftest import Folder

LEFT = pytest.mark.part("sweeps")
SWEEP = [sys.executable, "-m", "pytest", "-p", "xlatune", "test_sweep.py", "-k", "fast"]
WATCH = [sys.executable, "-c", "import sys; from pytest_xlatune.cli import main; sys.exit(main())"]
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
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 80, 0, 0))
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


def screen(text: str) -> list[str]:
    """The lines as they are left on the screen: what was rewritten is gone."""
    lines = text.replace("\r\n", "\n").split("\n")
    return [re.split(r"\r|\x1b\[2K", line)[-1] for line in lines]


@pytest.fixture
def slow(folder: Folder) -> Folder:
    seen = str(folder.path / "seen")
    folder.edit("trainer.py", (LOOP, LOOP + SLOW.replace("SEEN", seen)))
    return folder


def written(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "options",
    [(), pytest.param(("-n2",), marks=BESIDE_THE_LAB), pytest.param(("-v",), marks=LEFT)],
    ids=["alone", "two", "-v"],
)
def test_a_terminal_shows_one_line_that_is_rewritten_and_watch_shows_it_too(
    slow: Folder,
    options: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    session = Terminal([*SWEEP, *options], cwd=slow.path)
    session.read_until(lambda text: re.search(HELD, text))
    watch = Terminal([*WATCH, "watch"], cwd=slow.path)
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

    slow.put("seen", "")
    text = session.read_until()
    assert session.close() == 0, text
    assert text.count("\x1b[2K") > 2, "a line was rewritten"
    left = screen(text)
    assert not [line for line in left if "step 10/12" in line or " started" in line]
    assert not [line for line in left if "submitted" in line], "the line shows it"
    assert len([line for line in left if "TGS" in line and "(job" in line]) == 3, "landed ones"
    assert any("1 passed" in line for line in left)
    assert all(len(line) <= 80 for line in left if "| " in line or "(job" in line)

    before = written(slow.path / ".xlatune")
    monkeypatch.chdir(slow.path)
    for argv in (["watch"], ["watch", "pretend", "--once"]):
        assert main(argv) == 0
        out = capsys.readouterr().out
        assert all(len(line) <= 80 for line in out.splitlines())
        assert "fast" in out
        assert "of 14 jobs" in out
    assert written(slow.path / ".xlatune") == before, "it looks on and changes nothing"
