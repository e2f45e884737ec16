"""The record of a cell says how the hours of its jobs were spent: queue, start-up, steps, loss."""

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
    RotationResult,
    Score,
    State,
    Submission,
    TrialResult,
    TrialStatus,
)
from pytest_xlatune.model.rotation import CompiledProgram, RotationRead
from pytest_xlatune.model.rotation_score import MeasuredTurn, RotationScore
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.report.language import ENGLISH
from pytest_xlatune.report.leaderboard import record_lines
from pytest_xlatune.studies.calibration import CalibrationStudy
from pytest_xlatune.studies.commit_check import Commits, CommitStudy
from pytest_xlatune.studies.node_check import Nodes, NodeStudy
from pytest_xlatune.tasks.run_record import record_of, record_of_study

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


def test_each_hour_of_a_job_is_counted_in_one_place() -> None:
    trial = Trial(
        cell_digest=CELL.digest, profile=BASELINE, protocol=CELL.protocol, study=STUDY.name,
        stage="calibrate",
    )  # fmt: skip
    took = (FIRST_S, *[STEP_S] * STEPS)
    score = Score(
        value=math.log(9.0), tgs=9.0, step_s=STEP_S, n_steps=9, window=(5, 14),
        timings=tuple(enumerate(took)),
    )  # fmt: skip
    lost = attempt(trial, 1, asked=0, began=600, over=700, state=State.NODE_FAIL)
    scored = attempt(trial, 2, asked=700, began=1000, over=1400, state=State.COMPLETED)
    result = TrialResult(trial=trial, status=TrialStatus.MEASURED, score=score)
    entries = told(
        (0, TrialPlanned(trial=trial)), *lost, *scored, (1400, TrialEnded(result=result))
    )
    record = record_of(replay(entries), STUDY, CELL)
    spent = record.job_hours
    assert spent is not None
    assert spent.queue_h * 3600 == pytest.approx(600 + 300)
    assert spent.unscored_h * 3600 == pytest.approx(100)
    assert spent.first_step_h * 3600 == pytest.approx(FIRST_S - STEP_S)
    assert spent.steps_h * 3600 == pytest.approx(STEP_S * (STEPS + 1))
    assert spent.outside_h * 3600 == pytest.approx(400 - FIRST_S - STEP_S * STEPS)
    ran_h = spent.unscored_h + spent.first_step_h + spent.steps_h + spent.outside_h
    assert ran_h == pytest.approx(record.node_hours), "on one node each"
    (line,) = [each for each in record_lines(record, ENGLISH) if each.startswith("Hours of")]
    assert line == (
        "Hours of the jobs: 0.2500 in the queue, 0.02222 outside of steps (start-up and end), "
        "0.03333 of first steps beyond a usual one (compilation), 0.05556 of steps, 0.02778 "
        "without a score (lost attempts, evidence runs)"
    )


def test_the_hours_of_a_rotation_are_those_that_it_tells_itself() -> None:
    trial = Trial(
        cell_digest=CELL.digest, profile=BASELINE, protocol=CELL.protocol, study=STUDY.name,
        stage="calibrate",
    )  # fmt: skip
    turns = tuple(
        MeasuredTurn(
            program="a", before="", round=at, first_step=3 + 10 * at, steps=8,
            log_step_s=math.log(STEP_S),
        )
        for at in range(2)
    )  # fmt: skip
    read = RotationRead(
        found="step",
        compiled=tuple(CompiledProgram(program=each, compile_s=30.0) for each in "ab"),
        calls=20,
    )
    score = RotationScore(level=0.0, programs=(), turn_sd=None, turns=turns)
    result = TrialResult(
        trial=trial, status=TrialStatus.MEASURED, rotation=RotationResult(score=score, read=read)
    )
    ran = attempt(trial, 1, asked=0, began=0, over=1000, state=State.COMPLETED)
    entries = told((0, TrialPlanned(trial=trial)), *ran, (1000, TrialEnded(result=result)))
    spent = record_of(replay(entries), STUDY, CELL).job_hours
    assert spent is not None
    assert spent.unscored_h == 0
    assert spent.first_step_h * 3600 == pytest.approx(60)
    assert spent.steps_h * 3600 == pytest.approx(20 * STEP_S)
    assert spent.outside_h * 3600 == pytest.approx(1000 - 60 - 20 * STEP_S)


def test_a_job_that_still_waits_or_was_never_timed_counts_nowhere() -> None:
    trial = Trial(
        cell_digest=CELL.digest, profile=BASELINE, protocol=CELL.protocol, study=STUDY.name,
        stage="calibrate",
    )  # fmt: skip
    never = attempt(trial, 1, asked=50, began=None, over=None, state=State.CANCELLED)
    record = record_of(replay(told((0, TrialPlanned(trial=trial)), *never)), STUDY, CELL)
    assert record.job_hours is None
    assert not [each for each in record_lines(record, ENGLISH) if each.startswith("Hours of")]


def test_first_steps_of_the_first_trial_of_an_arm_and_of_later_ones_are_told_apart() -> None:
    entries: list[tuple[float, Event]] = []
    for at, first_s in enumerate((130.0, 13.0, 14.0)):
        trial = Trial(
            cell_digest=CELL.digest, profile=BASELINE, protocol=CELL.protocol, study=STUDY.name,
            stage="calibrate", position=at,
        )  # fmt: skip
        score = Score(
            value=math.log(9.0), tgs=9.0, step_s=STEP_S, n_steps=9, window=(5, 14),
            timings=tuple(enumerate((first_s, *[STEP_S] * STEPS))),
        )  # fmt: skip
        began = 1000.0 + 1000 * at
        outcome = Outcome(state=State.COMPLETED, start_s=began, end_s=began + 400)
        result = TrialResult(trial=trial, status=TrialStatus.MEASURED, score=score, outcome=outcome)
        done = attempt(trial, 1, asked=began, began=began, over=began + 400, state=State.COMPLETED)
        entries += [(0, TrialPlanned(trial=trial)), *done, (began + 400, TrialEnded(result=result))]
    record = record_of(replay(told(*entries)), STUDY, CELL)
    (line,) = [each for each in record_lines(record, ENGLISH) if each.startswith("Compilation")]
    assert line == (
        "Compilation: beyond a usual step, the first step took 120.0 s in the first trial of an "
        "arm on its nodes (1) and 3.5 s in later ones (2)"
    )
    only = record_of(replay(told(*entries[:5])), STUDY, CELL)
    assert only.compiling == "", "nothing to tell apart"


def ran(cell: Cell, study: str, at: int, *, began: float, over: float,
        seen: NodeEnvironment) -> list[tuple[float, Event]]:  # fmt: skip
    trial = Trial(
        cell_digest=cell.digest, profile=BASELINE, protocol=cell.protocol, study=study,
        stage="first", position=at,
    )  # fmt: skip
    score = Score(
        value=math.log(9.0), tgs=9.0, step_s=STEP_S, n_steps=9, window=(5, 14),
        timings=tuple(enumerate([STEP_S] * (STEPS + 1))),
    )  # fmt: skip
    result = TrialResult(trial=trial, status=TrialStatus.MEASURED, score=score)
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
    assert record.job_hours is not None
    assert record.job_hours.queue_h * 3600 == pytest.approx(100)
    assert record.job_hours.steps_h * 3600 == pytest.approx(2 * STEP_S * (STEPS + 1))
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
