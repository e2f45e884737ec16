"""Times of a sweep from its ledger: what is left, and the node-hours of all its cells."""

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
from pytest_xlatune.model.result import Outcome, State, Submission, TrialResult, TrialStatus
from pytest_xlatune.studies.node_check import Nodes, NodeStudy
from pytest_xlatune.tasks.run_record import record_of, record_of_study
from pytest_xlatune.tasks.running import Pace, Running
from tests.helpers.history import CELL, measured, trial_of

RUN_S, TRIALS = 300.0, 24


@pytest.mark.parametrize(
    ("lanes", "wait_s", "lost"),
    [(1, 0.0, ()), (1, 100.0, ()), (1, 0.0, (4, 11)), (4, 0.0, ())],
    ids=["one by one", "waits in a queue", "two lost attempts", "four node slots"],
)
def test_the_time_left_is_near_to_what_the_sweep_then_takes(
    lanes: int, wait_s: float, lost: tuple[int, ...]
) -> None:
    free, timed, jobs = [1000.0] * lanes, list[tuple[float, Event]](), []
    for number in range(TRIALS):
        trial, lane = trial_of(CELL, position=number), free.index(min(free))
        for attempt in range(1, 3 if number in lost else 2):
            asked_s, began_s = free[lane], free[lane] + wait_s
            free[lane] = over_s = began_s + RUN_S
            submission = Submission(
                trial_id=trial.id, attempt=attempt, executor="slurm", job_id="1", folder="f"
            )
            timed.append((asked_s, AttemptSubmitted(submission=submission)))
            jobs.append((trial, asked_s, began_s, over_s))
        outcome = Outcome(state=State.COMPLETED, start_s=began_s, end_s=over_s)
        result = TrialResult(
            trial=trial, status=TrialStatus.MEASURED, outcome=outcome, job_ids=("1",)
        )
        timed.append((over_s, TrialEnded(result=result)))
    landed_s = [at_s for at_s, event in timed if isinstance(event, TrialEnded)]
    timed.append((0.0, CampaignOpened(cells=(CELL,), study="tuning")))
    for now_s in range(3000, int(max(free)), 200):
        pace = Pace()
        for at_s, event in sorted(timed, key=lambda each: each[0]):
            if at_s <= now_s:
                pace.note(LedgerEntry(number=1, at_s=at_s, event=event))
        running = [
            Running(
                trial=trial,
                job_id="1",
                state=State.PENDING if now_s < began_s else State.RUNNING,
                since_s=asked_s if now_s < began_s else began_s,
                left_s=over_s - now_s if now_s > began_s + 100 else None,
            )
            for trial, asked_s, began_s, over_s in jobs
            if asked_s <= now_s < over_s
        ]
        said = pace.left_s(sum(at_s > now_s for at_s in landed_s), now_s, running=running)
        assert said == pytest.approx(max(free) - now_s, rel=0.2, abs=RUN_S / 2)


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
    assert record.differing == ("driver: 570.1 on node001, 550.9 on node002",)
    hours = [record_of(state, study, cell).node_hours for cell in cells[:2]]
    assert hours == pytest.approx([0.1, 0.1])
