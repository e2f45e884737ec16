"""A hang digest in the log of a trial ends the sweep and names the host."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.digests import recorded
from tests.helpers.sessions import QuickExecutor

# prints MaxText's lines, after two steps the file DIGEST, and hangs or fails as END says
TRAINER = """\
import os, pathlib, sys, time
print(f"XLA_FLAGS={os.environ['XLA_FLAGS']}", flush=True)
for step in range(12):
    if step == 2 and "DIGEST" in os.environ:
        sys.stderr.write(pathlib.Path(os.environ["DIGEST"]).read_text())
        sys.stderr.flush()
        time.sleep(100 if os.environ["END"] == "hang" else 0)
        sys.exit(1)
    print(f"completed step: {step}, seconds: 0.512, TFLOP/s/device: 0.1, "
          f"Tokens/s/device: 1000.{step}, total_weights: 512, loss: 7.1", flush=True)
"""


@pytest.mark.parametrize("end", ["hang", "1"])
def test_a_chip_stops_the_sweep_and_its_host_is_named(
    folder: Any, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QuickExecutor, "beside", "fast" if end == "hang" else "")
    (case,) = (e for e in recorded() if (e["fault"], e["version"]) == ("bad-chip", "0.0.52"))
    (folder.path / "digest.txt").write_text(case["text"], encoding="utf-8")
    env = {"DIGEST": str(folder.path / "digest.txt"), "END": end}
    digest = f'        profile("fast", "--xla_fast=1", env={env!r}),\n'
    folder.write(profiles=f'{digest}        profile("same", "--xla_same=1"),\n')
    patient = "resources=Resources(patience=Patience(after_fatal_s=1))"
    sweep = folder.read("test_sweep.py").replace(
        'executor="local"', f'executor="local", unseen=("xla_*",), {patient}'
    )
    (folder.path / "test_sweep.py").write_text(sweep, encoding="utf-8")
    (folder.path / "trainer.py").write_text(TRAINER, encoding="utf-8")
    result = folder.run("-m", "wave2")
    job, task, host = case["truth"][0]
    decided = [each for each in folder.events("decided") if each["cls"]]
    assert [(each["next"], each["cls"]) for each in decided] == [("stop", "tpu-chip")]
    assert decided[0]["detail"] == f"leave out {job}/{task}:{host}"
    assert f"leave out {job}/{task}:{host}" in result.stdout.str()
    assert len(folder.events("attempt-cut-short")) == (end == "hang")
