"""`xlatune watch` in a real terminal, beside a real sweep that runs; it changes nothing."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.cli import main
from tests.helpers.terminals import Terminal
from tests.helpers.waiting import until

WATCH = [sys.executable, "-c", "import sys; from pytest_xlatune.cli import main; sys.exit(main())"]
# the fast profile stands at a step until the file is gone
SLOW = (
    "for step in range(int(sys.argv[1])):\n"
    '    while step == 8 and "--xla_fast" in flags and '
    'os.path.exists(os.environ.get("HOLD_FAST", "")): time.sleep(0.02)'
)


@pytest.fixture
def running(folder: Any) -> Iterator[tuple[Any, subprocess.Popen[str]]]:
    """A sweep whose fast profile stands at step 7 until the file `hold` is gone."""
    hold = folder.path / "hold"
    hold.touch()
    trainer = folder.read("trainer.py").replace("for step in range(int(sys.argv[1])):", SLOW)
    (folder.path / "trainer.py").write_text(trainer, encoding="utf-8")
    text = folder.read("test_sweep.py").replace(
        'deployed={"XLA', f'deployed={{"HOLD_FAST": "{hold}", "XLA'
    )
    (folder.path / "test_sweep.py").write_text(text, encoding="utf-8")
    argv = [sys.executable, "-m", "pytest", "-p", "xlatune", "test_sweep.py", "-k", "fast"]
    process = subprocess.Popen(
        argv, cwd=folder.path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield folder, process
    finally:
        hold.unlink(missing_ok=True)
        process.communicate(timeout=120)


def written(folder: Path) -> dict[str, str]:
    """Every file below a folder, by its content."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_the_screen_shows_the_running_trial_and_the_ranking(
    running: tuple[Any, subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, sweep = running
    until(lambda: folder.events("attempt-submitted"))
    seen = Terminal([*WATCH, "watch", "--every", "0.3"], cwd=folder.path, env=os.environ)
    # the baseline may run first, and passes step 7
    shown_at = re.compile(r"fast \(job \S+\) step 7/12, \S+ TGS so far")
    text = seen.read_until(lambda text: shown_at.search(text) is not None)
    assert "pretend" in text
    assert "fast (job " in text
    assert f"step 7/{12}" in text
    assert "TGS so far" in text
    shown = len(seen.said)
    seen.read_until(lambda _: len(seen.said) > shown)
    assert len(seen.said) > shown, "it is drawn again"
    seen.press(b"q")
    seen.read_until(lambda _: False)
    assert seen.close() == 0
    assert b"\x1b[?1049l" in seen.said, "the screen from before is back"

    (folder.path / "hold").unlink()
    sweep.communicate(timeout=120)
    before = written(folder.path / ".xlatune")
    monkeypatch.chdir(folder.path)
    for argv in (["watch"], ["watch", "pretend", "--once"]):
        assert main(argv) == 0
        said = capsys.readouterr().out
        assert all(len(line) <= 80 for line in said.splitlines())
        assert "fast" in said
        assert "screened" in said
    assert written(folder.path / ".xlatune") == before, "it looks on and changes nothing"


def test_ctrl_c_ends_it_without_a_traceback(folder: Any) -> None:
    folder.run("-k", "fast").assert_outcomes(passed=1)
    seen = Terminal([*WATCH, "watch"], cwd=folder.path, env=os.environ, columns=40)
    seen.read_until(lambda text: "q quits" in text)
    seen.process.send_signal(signal.SIGINT)
    text = seen.read_until(lambda _: False)
    assert seen.close() == 0
    assert "Traceback" not in text
