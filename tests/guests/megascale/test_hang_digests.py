"""A hang digest in the log of a trial decides what follows: stop, try again, or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.digests import recorded
from tests.helpers.quick_trials import QuickExecutor

# Prints MaxText's lines; with DIGEST it prints that file after two steps, and hangs or ends as END
# says: once where ONCE names a file.
TRAINER = """\
import os, pathlib, sys, time
once = os.environ.get("ONCE")
print(f"XLA_FLAGS={os.environ['XLA_FLAGS']}", flush=True)
for step in range(12):
    if step == 2 and "DIGEST" in os.environ and not (once and os.path.exists(once)):
        if once:
            pathlib.Path(once).touch()
        sys.stderr.write(pathlib.Path(os.environ["DIGEST"]).read_text())
        sys.stderr.flush()
        if os.environ["END"] == "hang":
            time.sleep(100)
        sys.exit(int(os.environ["END"]))
    print(f"completed step: {step}, seconds: 0.512, TFLOP/s/device: 0.1, "
          f"Tokens/s/device: 1000.{step}, total_weights: 512, loss: 7.1", flush=True)
"""


def swept(folder: Any, fault: str, version: str, *, end: str, once: bool = False) -> Any:
    """Run a sweep of two profiles; the trial of one of them prints a digest of libtpu."""
    [case] = [e for e in recorded() if (e["fault"], e["version"]) == (fault, version)][:1]
    digest = folder.path / "digest.txt"
    digest.write_text(case["text"], encoding="utf-8")
    env = {"DIGEST": str(digest), "END": end} | (
        {"ONCE": str(folder.path / "once")} if once else {}
    )
    folder.write(
        profiles=f'        profile("fast", "--xla_fast=1", env={env!r}),\n'
        '        profile("same", "--xla_same=1"),\n'
    )
    text = folder.read("test_sweep.py")
    text = text.replace("    Protocol,\n", "    Patience,\n    Protocol,\n    Resources,\n")
    text = text.replace(
        'executor="local"',
        'executor="local", unseen=("xla_*",), '
        "resources=Resources(patience=Patience(after_fatal_s=1))",
    )
    (folder.path / "test_sweep.py").write_text(text, encoding="utf-8")
    Path(folder.path, "trainer.py").write_text(TRAINER, encoding="utf-8")
    return case, folder.run("-m", "wave2")


@pytest.mark.parametrize("end", ["hang", "1"])
def test_a_chip_stops_the_sweep_and_its_host_is_named(
    folder: Any, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QuickExecutor, "beside", "fast" if end == "hang" else "")
    case, result = swept(folder, "bad-chip", "0.0.52", end=end)
    job, task, host = case["truth"][0]
    decided = [each for each in folder.events("decided") if each["cls"]]
    assert [(each["next"], each["cls"]) for each in decided] == [("stop", "tpu-chip")]
    assert decided[0]["detail"] == f"leave out {job}/{task}:{host}"
    said = result.stdout.str()
    assert f"leave out {job}/{task}:{host}" in said
    assert len(folder.events("attempt-cut-short")) == (end == "hang")


def test_a_link_is_tried_once_more_on_the_same_nodes(folder: Any) -> None:
    _, result = swept(folder, "link", "0.0.40", end="1", once=True)
    decided = [(each["next"], each["cls"]) for each in folder.events("decided") if each["cls"]]
    assert decided == [("retry", "network-link")]
    result.assert_outcomes(passed=2)
