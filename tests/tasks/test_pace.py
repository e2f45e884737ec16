"""Times of a sweep from its ledger: the node-hours of all its cells."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from pytest_xlatune.ledger import (
    AttemptEnded,
    AttemptIntended,
    AttemptSubmitted,
    CampaignOpened,
    EnvironmentSeen,
    Event,
    LedgerEntry,
    TrialEnded,
    TrialPlanned,
)
from pytest_xlatune.ledger.state import LedgerState, replay
from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.environment import NodeEnvironment
from pytest_xlatune.model.result import Outcome, State, Submission
from pytest_xlatune.studies.node_check import Nodes, NodeStudy
from pytest_xlatune.tasks.run_record import record_of, record_of_study
from tests.helpers.history import measured, trial_of

FSDP = Cell(model_tag="m", parallelism=Parallelism.parse("FSDP=8"))


def ran(study: NodeStudy, seen: Sequence[NodeEnvironment]) -> LedgerState:
    """A trial of 360 s in each of the first cells, 5000 s after another."""
    timed: list[tuple[float, Event]] = [(0.0, CampaignOpened(cells=study.cells, study=study.name))]
    for at, (cell, node) in enumerate(zip(study.cells, seen, strict=False)):
        began_s = 1000 + 5000.0 * at
        trial = trial_of(cell, study=study.name, stage="first", position=at)
        job = Submission(trial_id=trial.id, attempt=1, executor="slurm", job_id="1", folder="f")
        outcome = Outcome(state=State.COMPLETED, start_s=began_s, end_s=began_s + 360)
        result = measured(trial, math.log(9.0), step_s=10.0, timings=((0, 10.0),) * 20)
        timed += [
            (0, TrialPlanned(trial=trial)),
            (0, EnvironmentSeen(trial_id=trial.id, cell_digest=cell.digest, nodes=(node,))),
            (began_s - 50, AttemptIntended(trial_id=trial.id, attempt=1, comment="c")),
            (began_s - 50, AttemptSubmitted(submission=job)),
            (began_s + 360, AttemptEnded(trial_id=trial.id, attempt=1, outcome=outcome)),
            (began_s + 360, TrialEnded(result=result)),
        ]
    return replay(
        LedgerEntry(number=number, at_s=at_s, event=event)
        for number, (at_s, event) in enumerate(timed, 1)
    )


def test_a_study_of_several_nodes_counts_the_hours_and_the_dates_of_all() -> None:
    cells = tuple(replace(FSDP, nodelist=(f"node00{at}",)) for at in (1, 2, 3))
    study = NodeStudy(cells=cells, asked=Nodes(), budget=20)
    seen = [  # the third has not been tried yet
        NodeEnvironment(name="node001", node={"driver": "570.1"}),
        NodeEnvironment(name="node002", node={"driver": "550.9"}),
    ]
    state = ran(study, seen)
    record = record_of_study(state, study)
    assert record.node_hours == pytest.approx(0.2), "360 s of each node"
    assert (record.started_s, record.ended_s) == (1000, 6360)
    assert [node.name for node in record.nodes] == ["node001", "node002"]
    hours = [record_of(state, study, cell).node_hours for cell in cells[:2]]
    assert hours == pytest.approx([0.1, 0.1])
