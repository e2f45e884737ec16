"""A session as a person sees it: on a terminal one line that is rewritten, in a file lines."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.second_looks import BESIDE_THE_LAB
from tests.helpers.terminals import Terminal, screen

LEFT = pytest.mark.part("sweeps")
# the trainer waits before its last step until its line was seen again and again, a minute at most
HELD = r"fast \(job [0-9.]+\) step 10/12, [0-9.]+ TGS so far"
SLOW = """\
for step in range(int(sys.argv[1])):
    for _ in range(3000 if "--xla_fast" in flags and step == 11 else 0):
        if not os.path.exists("SEEN"):
            time.sleep(0.02)
"""


@pytest.fixture
def slow(folder: Any) -> Any:
    path: Path = folder.path / "trainer.py"
    text = SLOW.replace("SEEN", str(folder.path / "seen"))
    text = folder.read("trainer.py").replace("for step in range(int(sys.argv[1])):\n", text)
    path.write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "options",
    [(), pytest.param(("-n2",), marks=BESIDE_THE_LAB), pytest.param(("-v",), marks=LEFT)],
    ids=["alone", "two", "-v"],
)
def test_a_terminal_shows_one_line_that_is_rewritten_and_taken_away(
    slow: Any, options: tuple[str, ...]
) -> None:
    argv = [sys.executable, "-m", "pytest", "-p", "xlatune", "test_sweep.py", "-k", "fast"]
    seen = Terminal([*argv, *options], cwd=slow.path, env=os.environ)
    seen.read_until(lambda text: len(re.findall(HELD, text)) > 3)
    (slow.path / "seen").touch()
    text = seen.read_until(lambda _: False)
    assert seen.close() == 0, text
    assert text.count("\x1b[2K") > 2, "a line was rewritten"
    assert re.search(HELD, text)
    left = screen(text)
    assert not [each for each in left if "so far, about" in each or " started" in each]
    assert not [each for each in left if "submitted" in each], "the line shows it"
    assert len([each for each in left if "TGS" in each and "(job" in each]) == 3, "landed ones"
    assert any("1 passed" in each for each in left)
    assert all(len(each) <= seen.columns for each in left if "| " in each or "(job" in each)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=LEFT)])
def test_a_file_has_a_line_for_each_trial_and_no_rewritten_one(folder: Any, workers: int) -> None:
    run = folder.run_with_workers if workers else folder.run
    done = run("-k", "fast")
    done.assert_outcomes(passed=1)
    text = done.stdout.str()
    assert "\x1b" not in text
    assert len(re.findall("pretend FSDP=4: .* to run", text)) == 1, "the cell is named once"
    told = [each for each in text.splitlines() if "(job" in each and "TGS" in each]
    assert len(told) == 3
    done.stdout.fnmatch_lines(["pretend FSDP=4: * jobs to run", "fast (job *) * TGS *"])
