"""The sweep file of docs/how-to/trainer.md runs over a trainer that prints what it asks for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.plugin.conftest import Folder

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "trainer.md").read_text(encoding="utf-8")
LINE = "    completed step: 7, seconds: 0.5120, Tokens/s/device: 1000.0, loss: 7.103\n"
TRAINER = """\
import os, sys
print("XLA_FLAGS=" + os.environ["XLA_FLAGS"])
for step in range(int(sys.argv[1].removeprefix("--steps="))):
    print(LINE.replace("7", str(step), 1), flush=True)
"""


@pytest.mark.parametrize(
    "line", [LINE, LINE.replace(" Tokens/s/device: 1000.0,", "")], ids=["whole", "without TGS"]
)
def test_the_example_runs(folder: Folder, line: str) -> None:
    assert LINE in PAGE
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    folder.put("test_sweep.py", code)
    folder.put("train.py", f"LINE = {line.strip()!r}\n{TRAINER}")
    folder.run("-k", "ring").assert_outcomes(passed=1)
    report = folder.read("reports/mine/leaderboard.md")
    assert "| `ring` | `NCCL_ALGO=Ring` | 1000.0 |" in report
    assert "not checked" not in report
