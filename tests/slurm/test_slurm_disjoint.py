"""Four equal one-node trials on the lab's four nodes take about as long as one of them."""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import replace
from pathlib import Path

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.campaign.setup import Setup, by_digest
from pytest_xlatune.executors.slurm import SlurmExecutor
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.result import TrialStatus
from tests.helpers.cluster import CellsStudy, on

NODES = ("node001", "node002", "node003", "node004")
AT_MOST = 1.3
STEP_S = 2.5  # twelve of them: Slurm's start and our polling are small beside a trial
TRAINER = f"""
import time
for step in range(12):
    time.sleep({STEP_S})
    print(f"completed step: {{step}}, seconds: {STEP_S}, TFLOP/s/device: 0.1, "
          f"Tokens/s/device: 1000.0, total_weights: 512, loss: 7.1", flush=True)
"""


def campaign(folder: Path, nodes: tuple[str, ...]) -> Campaign:
    deployed = {"XLA_FLAGS": ""}
    study = CellsStudy(cells=tuple(replace(on(node), deployed=deployed) for node in nodes))
    trainer = folder / "trainer.py"
    folder.mkdir(parents=True)
    trainer.write_text(TRAINER, encoding="utf-8")
    setup = Setup(
        sweep="toy",
        cells=by_digest(study.cells),
        launcher=CommandLauncher(argv=(sys.executable, str(trainer))),
        executor=SlurmExecutor(round_s=0.5),
        resources=Resources(time_limit_s=300),
        folder=folder,
        session="first",
    )
    made = Campaign(setup, study)
    made.open()
    return made


def took_s(each: Campaign) -> float:
    """Run a campaign as a waiting test does; return the wall seconds."""
    began_s = time.monotonic()
    view = each.wait(lambda view: not view.pending)
    took = time.monotonic() - began_s
    assert {result.status for result in view.history} == {TrialStatus.MEASURED}, view.history
    return took


def test_four_trials_on_four_nodes_take_at_most_a_third_longer_than_one(
    lab: object, tmp_path: Path
) -> None:
    one_s = took_s(campaign(tmp_path / "one", NODES[:1]))
    four = campaign(tmp_path / "four", NODES)
    four_s = took_s(four)
    ran_on = {result.outcome.nodes for result in four.view().history if result.outcome}
    assert ran_on == {(node,) for node in NODES}
    said = f"one trial {one_s:.1f} s, four {four_s:.1f} s: {four_s / one_s:.2f} times"
    logging.getLogger("pytest_xlatune.tests").warning(said)  # shown by -rP
    assert one_s >= 12 * STEP_S
    assert four_s <= AT_MOST * one_s, said
