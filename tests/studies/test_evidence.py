"""Evidence runs: one per profile, never a measurement; one that fails stops no sweep."""

from __future__ import annotations

import msgspec
import pytest

from pytest_xlatune.logs import read_log
from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.profile import BASELINE, profile
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import EvidenceResult, Outcome, State, TrialResult, TrialStatus
from pytest_xlatune.studies.evidence_run import EvidenceStudy, evidence_protocol
from pytest_xlatune.studies.tuning import TuningStudy
from pytest_xlatune.sweep.registry import study_of
from tests.helpers.assessed import assess

CELL = Cell(model_tag="m", parallelism=Parallelism.parse("FSDP=8"))
ONE = profile("overlap-2", "--xla_a=2")


def ended(study: EvidenceStudy, status: TrialStatus, *, is_read: bool = True) -> TrialResult:
    is_read = is_read and status is TrialStatus.MEASURED
    return EvidenceResult(trial=study.trial, status=status, job_ids=("7",), is_read=is_read)


@pytest.mark.parametrize("each", [BASELINE, ONE], ids=lambda each: each.id)
def test_one_run_and_no_verdict(each: object) -> None:
    study = EvidenceStudy(cell=CELL, profile=each)  # type: ignore[arg-type]
    (trial,) = study.decide(()).due
    assert not trial.protocol.is_scored
    assert study.outlook(()).left == 1
    for status in (TrialStatus.MEASURED, TrialStatus.DROPPED, TrialStatus.UNMEASURED):
        history = (ended(study, status),)
        assert study.decide(history).due == ()
        assert study.decide(history).conclusion.complete
        assert not study.decide(history).conclusion.verdicts
    assert study.decide((ended(study, TrialStatus.RUNNING),)).due == (trial,)
    assert study.decide((ended(study, TrialStatus.MEASURED, is_read=False),)).due == (trial,)


def test_the_study_is_named_by_what_the_profile_sets() -> None:
    study = EvidenceStudy(cell=CELL, profile=ONE)
    reworded = msgspec.structs.replace(ONE, note="looks good", wave="wave4")
    assert EvidenceStudy(cell=CELL, profile=reworded).name == study.name
    assert EvidenceStudy(cell=CELL, profile=reworded).trial.id == study.trial.id
    other = msgspec.structs.replace(ONE, env={"NCCL_ALGO": "Ring"})
    assert EvidenceStudy(cell=CELL, profile=other).name != study.name
    declared = study.to_json()
    assert study_of(study.name, declared) == study


def test_the_run_is_as_long_as_its_window_needs() -> None:
    told = Protocol(steps=40, skip_first_steps=12, profiler_steps=4, eval_interval=5)
    found = evidence_protocol(told)
    assert (found.profiler, found.steps, found.eval_interval) == ("xplane", 18, 0)
    named = msgspec.structs.replace(told, profiler="nsys")
    assert evidence_protocol(named).profiler == "nsys"


def test_a_cell_that_is_scored_by_its_own_figure_has_evidence_runs_too() -> None:
    told = Protocol(metric="field:latency", metric_is_better="lower", metric_unit="ms")
    found = evidence_protocol(told)
    assert (found.metric, found.metric_is_better, found.metric_unit) == ("none", "", "")


def test_no_tuning_study_takes_it_for_a_trial_of_its_own() -> None:
    study = TuningStudy(cell=CELL, profiles=(ONE,))
    foreign = [ended(EvidenceStudy(cell=CELL, profile=each), TrialStatus.MEASURED)
               for each in (BASELINE, ONE)]  # fmt: skip
    assert study.decide(foreign).due == study.decide(()).due
    assert study.decide(foreign).conclusion.verdicts == study.decide(()).conclusion.verdicts


STEPS = b"".join(
    b"completed step: %d, seconds: 0.5, TFLOP/s/device: 1.0, Tokens/s/device: 1024.0, "
    b"total_weights: 512, loss: 7.1\n" % step
    for step in range(15)
)


def test_a_run_with_every_step_has_no_score() -> None:
    trial = EvidenceStudy(cell=CELL, profile=BASELINE).trial
    outcome = Outcome(state=State.COMPLETED, exit_code=0)
    found = assess(trial, CELL, outcome, read_log([STEPS]))
    assert found.decision.next is Next.ACCEPT
    assert found.score is None


def test_a_baseline_that_cannot_be_profiled_stops_nothing() -> None:
    trial = EvidenceStudy(cell=CELL, profile=BASELINE).trial
    refused = b"F0112 07:08:09.1 77 parse_flags_from_env.cc:234] Unknown flag in XLA_FLAGS: --x\n"
    outcome = Outcome(state=State.FAILED, exit_code=1)
    found = assess(trial, CELL, outcome, read_log([refused]), reference=BASELINE.id)
    assert found.decision.next is Next.DROP
    measured = msgspec.structs.replace(trial, stage="wave1", protocol=CELL.protocol)
    found = assess(measured, CELL, outcome, read_log([refused]), reference=BASELINE.id)
    assert found.decision.next is Next.STOP
