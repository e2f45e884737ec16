"""A trial that is a rotation, and what is known of it afterwards: identity and JSON."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from pytest_xlatune.ledger import AttemptEnded
from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.message import say
from pytest_xlatune.model.profile import BASELINE, BASELINE_ID
from pytest_xlatune.model.result import (
    Blamed,
    BlamedAt,
    Outcome,
    RotationResult,
    State,
    TrialResult,
    TrialStatus,
)
from pytest_xlatune.model.rotation import (
    CompiledProgram,
    RotatedProgram,
    RotationRead,
    RotationSpec,
    Turn,
)
from pytest_xlatune.model.rotation_score import MeasuredTurn, ProgramChange, RotationScore
from pytest_xlatune.model.trial import ROTATION, Rotation, Trial

PROGRAMS = (
    RotatedProgram(id=BASELINE_ID),
    RotatedProgram(id="fast", options={"xla_fast": "true"}),
    RotatedProgram(id=f"{BASELINE_ID}~2"),
)
SPEC = RotationSpec(programs=PROGRAMS, order=(0, 1, 2, 2, 1, 0), turn_steps=8, first_step=4)
CELL = Cell(
    model_tag="tiny",
    parallelism=Parallelism.parse("FSDP=4"),
    protocol=Protocol(steps=12, autotune_cache="/shared/kernels", compile_cache="/shared/programs"),
)
PLAIN = Trial(
    arm=ROTATION,
    cell_digest=CELL.digest,
    profile=BASELINE,
    protocol=CELL.protocol,
    study="tuning",
    stage="rank",
)
TRIAL = replace(PLAIN, rotation=Rotation(number=1, spec=SPEC))
SCORE = RotationScore(
    level=-4.0,
    programs=(
        ProgramChange(program=BASELINE_ID, change=0.0, error=0.001, turns=4),
        ProgramChange(program="fast", change=0.02, error=None, turns=1),
    ),
    turns=(
        MeasuredTurn(program="fast", before="", round=0, first_step=4, steps=6, log_step_s=-4.2),
    ),
)
READ = RotationRead(
    found="train_step",
    compiled=(CompiledProgram(program=BASELINE_ID, compile_s=3.5, memory_bytes=1 << 30),),
    refused={"odd": "No such compile option: 'xla_odd'"},
    left_out={"large": 1 << 40},
    turns=(Turn(program=BASELINE_ID, first_call=4, calls=8),),
    suspects=("fast",),
    calls=52,
    jax="0.10.2",
)
BLAMED = Blamed(program="bad", at=BlamedAt.COMPILING, cls="killed", attempt=1)
RESULT = TrialResult(
    trial=TRIAL,
    status=TrialStatus.MEASURED,
    rotation=RotationResult(score=SCORE, read=READ, blamed=(BLAMED,)),
)


def through_json(data: object) -> object:
    return json.loads(json.dumps(data, allow_nan=False))


def test_a_rotation_and_its_result_come_back_equal() -> None:
    assert Trial.from_json(through_json(TRIAL.to_json())) == TRIAL
    assert TrialResult.from_json(through_json(RESULT.to_json())) == RESULT
    untold = replace(RESULT, rotation=RotationResult(reason=say("no turn began")))
    assert TrialResult.from_json(through_json(untold.to_json())) == untold
    end = AttemptEnded(
        trial_id=TRIAL.id, attempt=1, outcome=Outcome(state=State.FAILED), blamed=BLAMED
    )
    assert AttemptEnded.from_json(through_json(end.to_json())) == end


@pytest.mark.parametrize(
    ("change", "is_other"),
    [
        ({"number": 2}, True),
        ({"spec": replace(SPEC, order=(1, 0, 2, 2, 1, 0))}, True),
        ({"spec": replace(SPEC, turn_steps=9)}, True),
        ({"deadline_s": 9000}, False),
        ({"died_of": ("fast",)}, False),
        ({"suspect": "fast"}, False),
    ],
    ids=[
        "another number is another trial",
        "and so is another order",
        "and so is another length of a turn",
        "how long is waited is no part of it",
        "nor is what earlier attempts died of",
        "or may have died of",
    ],
)
def test_identity_is_what_was_planned(change: dict[str, object], is_other: bool) -> None:
    assert TRIAL.rotation is not None
    other = replace(TRIAL, rotation=replace(TRIAL.rotation, **change))
    assert (other.id != TRIAL.id) is is_other
    assert TRIAL.id != PLAIN.id


def test_a_rotation_compiles_anew_and_is_neither_baseline_nor_screened() -> None:
    assert PLAIN.compile_folder
    assert not TRIAL.compile_folder
    assert replace(PLAIN, arm=BASELINE_ID).is_baseline
    assert not replace(TRIAL, arm=BASELINE_ID).is_baseline
    assert PLAIN.is_screened
    assert not TRIAL.is_screened


def test_what_it_died_of_is_not_run_again_and_the_order_keeps_its_length() -> None:
    assert TRIAL.rotation is not None
    after = replace(TRIAL.rotation, died_of=("fast",))
    assert [each.id for each in after.as_run.programs] == [BASELINE_ID, f"{BASELINE_ID}~2"]
    assert after.as_run.order == (0, 0, 1, 1, 0, 0)
    assert TRIAL.rotation.as_run is SPEC
    assert after.steps == TRIAL.rotation.steps == 4 + 6 * 8


def test_a_suspect_has_the_first_turn_of_a_profile() -> None:
    assert TRIAL.rotation is not None
    spec = replace(SPEC, programs=(*SPEC.programs, RotatedProgram(id="slow", options={"a": "1"})))
    spec = replace(spec, order=(0, 1, 3, 2, 3, 1))
    orders = {"slow": (0, 3, 1, 2, 1, 3), "fast": spec.order, "gone": spec.order}
    for suspect, order in orders.items():
        assert replace(TRIAL.rotation, spec=spec, suspect=suspect).as_run.order == order


def test_the_program_counts_as_found_where_nothing_stood_in_the_way() -> None:
    assert RotationResult(read=READ).is_found
    assert not RotationResult().is_found
    assert not RotationResult(read=RotationRead(trouble="no function ran once a step")).is_found
