"""xlatune.toml through pytest: its settings, its log, and a trainer with step lines of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.second_looks import ALONE_AND_WITH_WORKERS
from tests.plugin.conftest import Folder

SETTINGS = """\
model = "from-the-file"
budget = 30

[launcher]
env-files = ["site.env.sh"]

[deployed]
XLA_FLAGS = "--xla_slow=1"

"""


def test_the_file_is_the_sweeps_site(folder: Folder) -> None:
    folder.put("xlatune.toml", SETTINGS)
    folder.put("site.env.sh", 'export XLA_FLAGS="$XLA_FLAGS --xla_of_the_site=1"\n')
    plan = folder.run("--xlatune-plan")
    plan.stdout.fnmatch_lines(["from-the-file FSDP=4: plan"])
    run = folder.run("-m", "wave1")
    run.assert_outcomes(passed=1)
    (log, *_) = sorted(folder.path.glob(".xlatune/pretend/*/*/*/log.0.txt"))
    assert "XLA_FLAGS=--xla_slow=1 --xla_of_the_site=1" in log.read_text()


@pytest.mark.parametrize("run", ALONE_AND_WITH_WORKERS)
def test_the_log_lies_beside_the_ledger_and_hides_what_is_secret(folder: Folder, run: str) -> None:
    folder.put("xlatune.toml", '[deployed]\nSITE_TOKEN = "s3cr3t-of-the-site"\n')
    done = getattr(folder, run)("-k", "fast or unknown", "--xlatune-log-level=info")
    done.assert_outcomes(passed=1, xfailed=1)
    (log,) = folder.path.glob(".xlatune/pretend/*/xlatune.log")
    lines = log.read_text(encoding="utf-8").splitlines()
    submitted = [line.split("submitted ")[1] for line in lines if "submitted " in line]
    # each once, whichever process drives
    assert [text.split(",")[0] for text in submitted] == folder.submitted
    assert "s3cr3t-of-the-site" not in "".join(lines)
    folder.run("-k", "same", "--xlatune-log-level=warning").assert_outcomes(passed=1)
    assert log.read_text(encoding="utf-8").splitlines() == lines


PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "trainer.md").read_text(encoding="utf-8")
LINE = "    completed step: 7, seconds: 0.5120, Tokens/s/device: 1000.0, loss: 7.103\n"
TRAINER = """\
import os, sys
print("XLA_FLAGS=" + os.environ["XLA_FLAGS"])
for step in range(int(sys.argv[1].removeprefix("--steps="))):
    print(LINE.replace("7", str(step), 1), flush=True)
"""


def test_the_example_of_trainer_md_runs_with_and_without_a_rate(folder: Folder) -> None:
    assert LINE in PAGE
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    folder.put("test_sweep.py", code)
    for rate in (" Tokens/s/device: 1000.0,", ""):
        line = LINE.replace(" Tokens/s/device: 1000.0,", rate).strip()
        folder.put("train.py", f"LINE = {line!r}\n{TRAINER}")
        folder.run("-k", "ring", "--xlatune-fresh").assert_outcomes(passed=1)
        report = folder.read("reports/mine/leaderboard.md")
        assert "| `ring` | `NCCL_ALGO=Ring` | 1000.0 |" in report
        assert "not checked" not in report


OWN_FORM = """\
    print(f"it {step} took {512e3 / speed:.4f} ms ({speed:.3f} tok/s a device), loss 7.1")
"""


def test_a_trainer_with_a_step_line_of_its_own_is_swept(folder: Folder) -> None:
    head = folder.read("trainer.py").partition('    print(f"completed step: {step}')[0]
    folder.put("trainer.py", f"{head}{OWN_FORM}")
    folder.run("-m", "wave1").stdout.fnmatch_lines(["*no step line*step_pattern*"])
    own = r"it (?P<step>\d+) took (?P<ms>[\d.]+) ms \((?P<tgs>[\d.]+) tok/s a device"
    folder.put("xlatune.toml", f"step-pattern = '{own}'\n")
    run = folder.run("-m", "wave1 or wave2", "--xlatune-fresh")
    run.assert_outcomes(passed=3, xfailed=1)
