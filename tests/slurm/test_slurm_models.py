"""A table of models on two commits, packed on four nodes; two models break on the second."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.executors.slurm import SlurmExecutor
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.studies.commit_check import Commits, CommitsRecord, CommitStudy, Load
from tests.helpers.resolved import campaign_of
from tests.helpers.scripted import CELL

pytestmark = pytest.mark.part("sweeps")

NODES = ("node001", "node002", "node003", "node004")
GOOD, BAD = (f"{number:012x}{0:028x}" for number in (1, 2))
LOADS = tuple(Load(model=name, nodes=nodes) for name, nodes in (("a", 1), ("b", 2), ("c", 4)))
# of the loads that fit beside each other, one waits until the other runs too
TRAINER = f"""
import os, pathlib, sys, time
if {BAD[:12]!r} in sys.argv[1]:
    sys.exit("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 99 bytes.")
here, model = pathlib.Path(__file__).parent, sys.argv[1][0]
(here / f"began.{{model}}").touch()
end_s = time.monotonic() + 120
while model != "c" and not all((here / f"began.{{each}}").exists() for each in "ab"):
    time.sleep(0.05)
    if time.monotonic() > end_s:
        sys.exit("alone")
for step in range(12):
    if os.environ["SLURM_PROCID"] == "0":
        print(f"completed step: {{step}}, seconds: 0.4, TFLOP/s/device: 0.1, "
              f"Tokens/s/device: 1000.0, total_weights: 512, loss: 7.1", flush=True)
"""


def test_loads_on_disjoint_nodes_run_together_and_two_broken_models_end_a_commit(
    lab: object, tmp_path: Path
) -> None:
    trainer = tmp_path / "trainer.py"
    trainer.write_text(TRAINER, encoding="utf-8")
    whole = replace(CELL, deployed={"XLA_FLAGS": ""}, nodelist=NODES)
    at_commits = tuple(replace(whole, code=each) for each in (GOOD, BAD))
    study = CommitStudy(
        cells=tuple(load.cell(cell) for load in LOADS for cell in at_commits),
        labels=tuple(f"{each[:12]} change" for each in (GOOD, BAD)),
        asked=Commits(loads=LOADS),
    )
    campaign = campaign_of(
        tmp_path / "work",
        SlurmExecutor(round_s=0.5),
        study,
        name="models",
        launcher=CommandLauncher(argv=(sys.executable, str(trainer), "{trial}")),
        site={"resources": Resources(time_limit_s=300)},
    )
    campaign.open()
    view = campaign.wait(lambda view: not view.pending)
    concluded = study.conclude(view.history)

    said = {each.arm: each.word for each in concluded.verdicts}
    one, two = GOOD[:12], BAD[:12]
    assert [said[f"{name}-{one}"] for name in ("a-1n", "b-2n", "c-4n")] == ["OK"] * 3
    assert said[f"a-1n-{two}"] == said[f"b-2n-{two}"] == "BROKEN"
    assert said[f"c-4n-{two}"] == "CANNOT TELL"
    assert isinstance(concluded.record, CommitsRecord)
    (left_out,) = concluded.record.left_out
    assert "breaks a, b, which ran on the commit before" in sentence(left_out)

    ran = [each for each in view.history if each.outcome is not None]
    assert sorted(each.trial.arm for each in ran) == sorted(
        arm for arm in said if arm != f"c-4n-{two}"
    )
    nodes_of = {each.digest: each.nodelist for each in study.cells}
    spans: dict[str, list[tuple[float, float]]] = {}
    models: dict[str, list[tuple[float, float]]] = {}
    for each in ran:
        assert each.outcome is not None
        assert tuple(sorted(each.outcome.nodes)) == nodes_of[each.trial.cell_digest]
        (folder,) = (tmp_path / "work").rglob(f"{each.trial.id}.1")
        told = json.loads((folder / "outcome.json").read_text(encoding="utf-8"))
        span = told["start_s"], told["end_s"]
        models.setdefault(each.trial.arm[0], []).append(span)
        for node in each.outcome.nodes:
            spans.setdefault(node, []).append(span)
    assert any(
        one[0] < other[1] and other[0] < one[1] for one in models["a"] for other in models["b"]
    ), "the loads of one and of two nodes run side by side"
    for node, own in spans.items():
        for (_, over), (began, _) in pairwise(sorted(own)):
            assert over <= began + 0.1, f"{node} ran two trials at once"
