"""Four one-node trials on the lab's four nodes run at the same time."""

from __future__ import annotations

import sys
from pathlib import Path

from msgspec.structs import replace

from pytest_xlatune.executors.slurm import SlurmExecutor
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.result import TrialStatus
from tests.helpers.cluster import CellsStudy, on
from tests.helpers.resolved import campaign_of

NODES = ("node001", "node002", "node003", "node004")
# each waits until all four run; where one must end before another begins, none does
TRAINER = f"""
import os, pathlib, sys, time
here = pathlib.Path(__file__).parent
(here / f"began.{{os.environ['SLURM_JOB_ID']}}").touch()
end_s = time.monotonic() + 120
while len(list(here.glob("began.*"))) < {len(NODES)}:
    time.sleep(0.05)
    if time.monotonic() > end_s:
        sys.exit("alone")
for step in range(12):
    print(f"completed step: {{step}}, seconds: 2.5, TFLOP/s/device: 0.1, "
          f"Tokens/s/device: 1000.0, total_weights: 512, loss: 7.1", flush=True)
"""


def test_four_trials_on_four_nodes_run_at_the_same_time(lab: object, tmp_path: Path) -> None:
    deployed = {"XLA_FLAGS": ""}
    study = CellsStudy(cells=tuple(replace(on(node), deployed=deployed) for node in NODES))
    trainer = tmp_path / "trainer.py"
    trainer.write_text(TRAINER, encoding="utf-8")
    campaign = campaign_of(
        tmp_path / "work",
        SlurmExecutor(round_s=0.5),
        study,
        name="toy",
        launcher=CommandLauncher(argv=(sys.executable, str(trainer))),
        site={"resources": Resources(time_limit_s=300)},
    )
    campaign.open()
    history = campaign.wait(lambda view: not view.pending).history
    assert {result.status for result in history} == {TrialStatus.MEASURED}, history
    ran_on = {result.outcome.nodes for result in history if result.outcome}
    assert ran_on == {(node,) for node in NODES}
    assert len(history) == len({result.trial.id for result in history})
