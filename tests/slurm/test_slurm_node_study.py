"""On the lab's four nodes, a node whose steps last 30 % longer is found; no other is accused."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.executors.slurm import SlurmExecutor
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.studies.node_check import NodesRecord, NodeStudy
from tests.helpers.resolved import campaign_of
from tests.helpers.scripted import CELL

pytestmark = pytest.mark.part("sweeps")

NODES = ("node001", "node002", "node003", "node004")
# the nodes share this machine's cores, so a step says how long it took and takes nothing
TRAINER = """
import hashlib, sys
trial = sys.argv[1].rpartition("-")[0]
noise = int(hashlib.sha256(trial.encode()).hexdigest()[:8], 16) / 2**32 - 0.5
step_s = 0.5 * (1.3 if trial.startswith("node003-") else 1.0) * (1 + 0.004 * noise)
for step in range(12):
    print(f"completed step: {step}, seconds: {step_s:.6f}, TFLOP/s/device: 0.1, "
          f"Tokens/s/device: {512 / step_s:.3f}, total_weights: 512, loss: 7.1", flush=True)
"""

# says where Slurm ran it, and something of one node
HEALTH = """\
#!/bin/sh
echo "$SLURMD_NODENAME" >> "$(dirname "$0")/asked"
[ "$SLURMD_NODENAME" != node002 ] || echo "$SLURMD_NODENAME: 2 corrected ECC errors"
"""


def test_the_slow_node_is_found_and_the_others_are_healthy(lab: object, tmp_path: Path) -> None:
    plain = replace(CELL, deployed={"XLA_FLAGS": ""})
    study = NodeStudy(cells=tuple(replace(plain, nodelist=(node,)) for node in NODES))
    trainer = tmp_path / "trainer.py"
    trainer.write_text(TRAINER, encoding="utf-8")
    health = tmp_path / "health"
    health.write_text(HEALTH, encoding="utf-8")
    health.chmod(0o755)
    campaign = campaign_of(
        tmp_path / "work",
        SlurmExecutor(round_s=0.5),
        study,
        name="nodes",
        launcher=CommandLauncher(argv=(sys.executable, str(trainer), "{trial}")),
        site={"resources": Resources(time_limit_s=300), "node_health": str(health)},
    )
    campaign.open()
    view = campaign.wait(lambda view: not view.pending)
    concluded = study.conclude(view.history)
    said = {each.arm: each.word for each in concluded.verdicts}
    figures = {each.arm: (each.word, each.delta, each.ci95, each.n) for each in concluded.verdicts}
    logging.getLogger("pytest_xlatune.tests").warning("%s", figures)  # shown by -rP
    reasons = {each.arm: each.reasons for each in concluded.verdicts}
    assert said == {
        "node001": "HEALTHY",
        "node002": "HEALTHY",
        "node003": "DEGRADED",
        "node004": "HEALTHY",
    }, reasons
    assert isinstance(concluded.record, NodesRecord)
    assert concluded.record.healthy == ("node001", "node002", "node004")
    ran_on = {(each.trial.arm,) for each in view.history if each.outcome}
    assert {each.outcome.nodes for each in view.history if each.outcome} == ran_on
    asked = (tmp_path / "asked").read_text(encoding="utf-8").split()
    # a busy machine may spoil a score, so that a trial has two jobs
    jobs = sorted(each.trial.arm for each in view.history for _ in each.job_ids)
    assert sorted(asked) == jobs, "after each job"
    told = {arm for arm, why in reasons.items() if "own log" in "; ".join(map(sentence, why))}
    assert told == {"node002"}
    assert "its own log says: node002: 2 corrected ECC errors" in "; ".join(
        map(sentence, reasons["node002"])
    )
