"""A session as a person sees it on a terminal, and `xlatune watch` beside it, which only looks."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from pytest_xlatune.cli import main
from tests.helpers.second_looks import BESIDE_THE_LAB
from tests.helpers.terminals import Terminal, screen
from tests.plugin.conftest import Folder

LEFT = pytest.mark.part("sweeps")
SWEEP = [sys.executable, "-m", "pytest", "-p", "xlatune", "test_sweep.py", "-k", "fast"]
WATCH = [sys.executable, "-c", "import sys; from pytest_xlatune.cli import main; sys.exit(main())"]
# the trainer waits before its last step until what it printed was seen, a minute at most
HELD = r"fast \(job [0-9.]+\) step 10/12, [0-9.]+ TGS so far"
LOOP = "for step in range(int(sys.argv[1])):\n"
SLOW = """\
    for _ in range(3000 if "--xla_fast" in flags and step == 11 else 0):
        if not os.path.exists("SEEN"):
            time.sleep(0.02)
"""


@pytest.fixture
def slow(folder: Folder) -> Folder:
    seen = str(folder.path / "seen")
    folder.edit("trainer.py", (LOOP, LOOP + SLOW.replace("SEEN", seen)))
    return folder


def written(folder: Path) -> dict[Path, str]:
    """Every file below a folder, by its content."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


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
    session = Terminal([*SWEEP, *options], cwd=slow.path, env=os.environ)
    session.read_until(lambda text: len(re.findall(HELD, text)) > 3)
    watch = Terminal([*WATCH, "watch", "--every", "0.3"], cwd=slow.path, env=os.environ)
    text = watch.read_until(lambda text: re.search(HELD, text) is not None)
    assert "pretend" in text
    shown = len(watch.said)
    watch.read_until(lambda _: len(watch.said) > shown)
    assert len(watch.said) > shown, "it is drawn again"
    watch.press(b"q")
    watch.read_until(lambda _: False)
    assert watch.close() == 0
    assert b"\x1b[?1049l" in watch.said, "the screen from before is back"

    slow.put("seen", "")
    text = session.read_until(lambda _: False)
    assert session.close() == 0, text
    assert text.count("\x1b[2K") > 2, "a line was rewritten"
    left = screen(text)
    assert not [line for line in left if "so far, about" in line or " started" in line]
    assert not [line for line in left if "submitted" in line], "the line shows it"
    assert len([line for line in left if "TGS" in line and "(job" in line]) == 3, "landed ones"
    assert any("1 passed" in line for line in left)
    assert all(len(line) <= session.columns for line in left if "| " in line or "(job" in line)

    before = written(slow.path / ".xlatune")
    monkeypatch.chdir(slow.path)
    for argv in (["watch"], ["watch", "pretend", "--once"]):
        assert main(argv) == 0
        out = capsys.readouterr().out
        assert all(len(line) <= 80 for line in out.splitlines())
        assert "fast" in out
        assert "screened" in out
    assert written(slow.path / ".xlatune") == before, "it looks on and changes nothing"


def test_ctrl_c_ends_watch_without_a_traceback(folder: Folder) -> None:
    folder.run("-k", "fast").assert_outcomes(passed=1)
    watch = Terminal([*WATCH, "watch"], cwd=folder.path, env=os.environ, columns=40)
    watch.read_until(lambda text: "q quits" in text)
    watch.process.send_signal(signal.SIGINT)
    text = watch.read_until(lambda _: False)
    assert watch.close() == 0
    assert "Traceback" not in text
