"""A trial that can measure nothing any more is ended soon, and the sweep goes on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.second_looks import BESIDE_THE_LAB

# Prints MaxText's lines; with SAY it says that and stays, once where ONCE names a file.
TRAINER = """\
import os, pathlib, time
once = os.environ.get("ONCE")
print(f"XLA_FLAGS={os.environ['XLA_FLAGS']}", flush=True)
for step in range(12):
    if step == 3 and "SAY" in os.environ and not (once and os.path.exists(once)):
        if once:
            pathlib.Path(once).touch()
        print(os.environ["SAY"], flush=True)
        time.sleep(600)
    print(f"completed step: {step}, seconds: 0.512, TFLOP/s/device: 0.1, "
          f"Tokens/s/device: 1000.{step}, total_weights: 512, loss: 7.1", flush=True)
"""
OOM = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 171.96GiB."
CRASH = "Fatal Python error: Segmentation fault"


@pytest.mark.parametrize("workers", ["-n0", pytest.param("-n2", marks=BESIDE_THE_LAB)])
def test_a_fatal_line_ends_the_trial_and_is_its_class(folder: Any, workers: str) -> None:
    once = str(folder.path / "once")
    profiles = (
        f'        profile("fast", "--xla_fast=1", env={{"SAY": {CRASH!r}, "ONCE": {once!r}}}),\n'
        f'        profile("huge", "--xla_huge=1", env={{"SAY": {OOM!r}}}),\n'
    )
    folder.write(profiles=profiles)
    text = folder.read("test_sweep.py")
    text = text.replace("    Protocol,\n", "    Patience,\n    Protocol,\n    Resources,\n")
    text = text.replace(
        'executor="local"',
        'executor="local", resources=Resources(patience=Patience(after_fatal_s=1))',
    )
    (folder.path / "test_sweep.py").write_text(text, encoding="utf-8")
    (folder.path / "trainer.py").write_text(TRAINER, encoding="utf-8")
    folder.run_apart("-m", "wave2", workers).assert_outcomes(passed=1, xfailed=1)
    cut = folder.events("attempt-cut-short")
    # which of the two came first depends on the digest of the cell
    assert sorted(each["fatal"]["text"] for each in cut) == [CRASH, OOM]
    decided = [(each["next"], each["cls"], each["evidence"]) for each in folder.events("decided")]
    assert sorted(decided) == [("drop", "oom-gpu", OOM), ("retry", "segfault", CRASH)]
    ended = [each["outcome"]["state"] for each in folder.events("attempt-ended")]
    assert sorted(ended) == ["cancelled", "cancelled", "completed", "completed", "completed"]
