"""On the lab's four nodes, a pair that a launcher slows is named as a link, and kills lose nothing.

The nodes share this machine's cores, so a step says how long it took and takes nothing.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.executors.slurm import SlurmExecutor
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.ledger import LEDGER
from pytest_xlatune.model.cell import Protocol
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.studies.network_check import CONCLUSION, NetworkStudy
from tests.helpers.resolved import campaign_of
from tests.helpers.scripted import CELL
from tests.helpers.waiting import until

pytestmark = pytest.mark.part("sweeps")

NODES = ("node001", "node002", "node003", "node004")
TRAINER = """
import hashlib, os, sys
if os.environ.get("SLURM_PROCID", "0") != "0":
    sys.exit(0)
trial = sys.argv[1].rpartition("-")[0]
noise = int(hashlib.sha256(trial.encode()).hexdigest()[:8], 16) / 2**32 - 0.5
step_s = 0.4 * (1.3 if trial.startswith("node002+node003-") else 1.0) * (1 + 0.004 * noise)
for step in range(12):
    print(f"completed step: {step}, seconds: {step_s:.6f}, TFLOP/s/device: 0.1, "
          f"Tokens/s/device: {512 / step_s:.3f}, total_weights: 512, loss: 7.1", flush=True)
"""


def campaign_in(folder: Path, session: str) -> Campaign:
    protocol = Protocol(steps=12, first_step=3, min_steps=5)
    plain = replace(CELL, deployed={"XLA_FLAGS": ""}, protocol=protocol)
    study = NetworkStudy(cell=replace(plain, nodelist=NODES))
    return campaign_of(
        folder / "work",
        SlurmExecutor(round_s=0.5),
        study,
        name="network",
        session=session,
        launcher=CommandLauncher(argv=(sys.executable, str(folder / "trainer.py"), "{trial}")),
        site={"resources": Resources(time_limit_s=300)},
    )


# what a killed process ran: the same campaign
DRIVER = """\
import sys
from pathlib import Path
from tests.slurm.test_slurm_network_study import campaign_in

campaign = campaign_in(Path(sys.argv[1]), "first")
campaign.open()
campaign.wait(lambda view: not view.pending)
"""


def test_a_slow_pair_is_a_link_and_a_kill_between_rounds_loses_nothing(
    lab: object, tmp_path: Path
) -> None:
    (tmp_path / "trainer.py").write_text(TRAINER, encoding="utf-8")
    root = Path(__file__).parents[2]
    path = {"PYTHONPATH": str(root)}
    first = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)], env=os.environ | path)
    ledger = tmp_path / "work" / LEDGER
    until(lambda: ledger.exists() and ledger.read_text("utf-8").count('"trial-ended"') >= 2)
    assert first.poll() is None
    first.send_signal(signal.SIGKILL)
    first.wait()
    campaign = campaign_in(tmp_path, "second")
    campaign.open()
    view = campaign.wait(lambda view: not view.pending)
    concluded = campaign.study.conclude(view.history)
    said = {each.arm: each.word for each in concluded.verdicts}
    whole = concluded.verdict(CONCLUSION)
    assert whole is not None
    figures = (len(view.history), whole.word, whole.delta, whole.ci95, whole.reasons)
    logging.getLogger("pytest_xlatune.tests").warning("%s", figures)  # shown by -rP
    assert said[CONCLUSION] == "LINK node002-node003", figures
    assert {said["node001"], said["node004"]} == {"NO FAULT"}
    measured = Counter(
        each.parent.name.rpartition(".")[0]
        for each in (tmp_path / "work").rglob("outcome.json")
        if json.loads(each.read_text(encoding="utf-8"))["state"] == "completed"
    )
    assert measured.keys() == {each.trial.id for each in view.history}, "none lost"
    assert set(measured.values()) == {1}, "none doubled"
    pair_of = {cell.digest: cell.nodelist for cell in campaign.study.cells}
    for each in view.history:
        assert each.outcome is not None
        assert set(each.outcome.nodes) == set(pair_of[each.trial.cell_digest])
