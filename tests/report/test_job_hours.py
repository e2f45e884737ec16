"""The record of a study of several cells: the node-hours, dates and nodes of all."""

from __future__ import annotations

import math

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
from pytest_xlatune.ledger.state import replay
from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.environment import NodeEnvironment
from pytest_xlatune.model.profile import BASELINE
from pytest_xlatune.model.result import (
    Outcome,
    State,
    Submission,
)
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.studies.calibration import CalibrationStudy
from pytest_xlatune.studies.commit_check import Commits, CommitStudy
from pytest_xlatune.studies.node_check import Nodes, NodeStudy
from pytest_xlatune.tasks.run_record import record_of, record_of_study
from tests.helpers.history import measured

CELL = Cell(model_tag="m", parallelism=Parallelism.parse("FSDP=8"), protocol=Protocol())
STUDY = CalibrationStudy(cell=CELL, jobs=6)
FIRST_S, STEP_S, STEPS = 130.0, 10.0, 19


def attempt(trial: Trial, number: int, *, asked: float, began: float | None, over: float | None,
            state: State) -> list[tuple[float, Event]]:  # fmt: skip
    job = Submission(
        trial_id=trial.id, attempt=number, executor="slurm", job_id=f"{number}", folder="f"
    )
    outcome = Outcome(state=state, start_s=began, end_s=over)
    return [
        (asked, AttemptIntended(trial_id=trial.id, attempt=number, comment="c")),
        (asked, AttemptSubmitted(submission=job)),
        (over or asked, AttemptEnded(trial_id=trial.id, attempt=number, outcome=outcome)),
    ]


def told(*timed: tuple[float, Event]) -> list[LedgerEntry]:
    opened = (0.0, CampaignOpened(cells=(CELL,), study=STUDY.name))
    return [
        LedgerEntry(number=number, at_s=at_s, event=event)
        for number, (at_s, event) in enumerate((opened, *timed), 1)
    ]


def ran(cell: Cell, study: str, at: int, *, began: float, over: float,
        seen: NodeEnvironment) -> list[tuple[float, Event]]:  # fmt: skip
    trial = Trial(
        cell_digest=cell.digest, profile=BASELINE, protocol=cell.protocol, study=study,
        stage="first", position=at,
    )  # fmt: skip
    timings = tuple(enumerate([STEP_S] * (STEPS + 1)))
    result = measured(trial, math.log(9.0), step_s=STEP_S, timings=timings)
    return [
        (0, TrialPlanned(trial=trial)),
        (0, EnvironmentSeen(trial_id=trial.id, cell_digest=cell.digest, nodes=(seen,))),
        *attempt(trial, 1, asked=began - 50, began=began, over=over, state=State.COMPLETED),
        (over, TrialEnded(result=result)),
    ]


def test_a_study_of_two_cells_counts_the_hours_and_the_dates_of_both() -> None:
    cells = tuple(replace(CELL, nodelist=(name,)) for name in ("node001", "node002", "node003"))
    study = NodeStudy(cells=cells, asked=Nodes(), budget=20)
    driver = ({"driver": "570.1"}, {"driver": "550.9"})
    entries = [
        entry
        for at, cell in enumerate(cells[:2])  # the third has not been tried yet
        for entry in ran(
            cell, study.name, at, began=1000 + 5000.0 * at, over=1360 + 5000.0 * at,
            seen=NodeEnvironment(name=cell.nodelist[0], node=driver[at]),
        )
    ]  # fmt: skip
    state = replay(told(*entries))
    record = record_of_study(state, study)
    assert record.node_hours == pytest.approx(0.2), "360 s of each node"
    assert (record.started_s, record.ended_s) == (1000, 6360)
    assert [each.name for each in record.nodes] == ["node001", "node002"]
    assert record.differing == ("driver: 570.1 on node001, 550.9 on node002",)
    first, second = (record_of(state, study, cell).node_hours for cell in cells[:2])
    assert first == second == pytest.approx(0.1)


def test_a_study_of_two_commits_names_no_code_that_is_of_one_of_them() -> None:
    cells = tuple(replace(CELL, nodelist=("node001",), code=code) for code in ("aa11", "bb22"))
    study = CommitStudy(
        cells=cells, labels=("aa11 one", "bb22 two"), asked=Commits(), is_search=False, budget=20
    )
    entries = [
        entry
        for at, cell in enumerate(cells)
        for entry in ran(
            cell, study.name, at, began=1000 + 5000.0 * at, over=1360 + 5000.0 * at,
            seen=NodeEnvironment(
                name="node001", packages={"jax": "0.9.0"},
                code={"/trainer": f"{cell.code} of 4 Python files", "/lib": "cc of 9 Python files"},
            ),
        )
    ]  # fmt: skip
    record = record_of_study(replay(told(*entries)), study)
    assert record.node_hours == pytest.approx(0.2)
    assert [each.name for each in record.nodes] == ["node001"], "one node, told of twice"
    assert record.facts("code") == {"/lib": "cc of 9 Python files"}
    assert record.facts("packages") == {"jax": "0.9.0"}
