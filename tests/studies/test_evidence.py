"""Evidence runs: one per profile, never a measurement; one that fails stops no sweep."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pytest_xlatune.logs import read_log
from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.profile import BASELINE, Profile, profile
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import EvidenceResult, Outcome, State, TrialResult, TrialStatus
from pytest_xlatune.studies.evidence_run import EvidenceStudy
from pytest_xlatune.studies.tuning import TuningStudy
from tests.helpers.assessed import assess

CELL = Cell(model_tag="m", parallelism=Parallelism.parse("FSDP=8"))
ONE = profile("overlap-2", "--xla_a=2")
STUDY = EvidenceStudy(cell=CELL, profile=BASELINE)


def ended(study: EvidenceStudy, status: TrialStatus, *, is_read: bool = True) -> TrialResult:
    is_read = is_read and status is TrialStatus.MEASURED
    return EvidenceResult(trial=study.trial, status=status, job_ids=("7",), is_read=is_read)


@pytest.mark.parametrize("each", [BASELINE, ONE], ids=lambda each: each.id)
def test_one_run_and_no_verdict(each: Profile) -> None:
    study = EvidenceStudy(cell=CELL, profile=each)
    (trial,) = study.decide(()).due
    assert not trial.protocol.is_scored
    assert study.outlook(()).left == 1
    for status in (TrialStatus.MEASURED, TrialStatus.DROPPED, TrialStatus.UNMEASURED):
        decision = study.decide((ended(study, status),))
        assert decision.due == ()
        assert decision.conclusion.complete
        assert not decision.conclusion.verdicts
    for unread in (TrialStatus.RUNNING, TrialStatus.MEASURED):
        assert study.decide((ended(study, unread, is_read=False),)).due == (trial,)
    # no tuning study takes it for a trial of its own
    tuning = TuningStudy(cell=CELL, profiles=(ONE,))
    before, after = tuning.decide(()), tuning.decide([ended(study, TrialStatus.MEASURED)])
    assert after.due == before.due
    assert after.conclusion.verdicts == before.conclusion.verdicts


STEPS = b"".join(
    b"completed step: %d, seconds: 0.5, TFLOP/s/device: 1.0, Tokens/s/device: 1024.0, "
    b"total_weights: 512, loss: 7.1\n" % step
    for step in range(15)
)
REFUSED = b"F0112 07:08:09.1 77 parse_flags_from_env.cc:234] Unknown flag in XLA_FLAGS: --x\n"
SCORED = replace(STUDY.trial, stage="wave1", protocol=CELL.protocol)


def test_a_run_with_every_step_has_no_score_and_one_that_cannot_be_profiled_stops_nothing() -> None:
    outcome = Outcome(state=State.COMPLETED, exit_code=0)
    found = assess(STUDY.trial, CELL, outcome, read_log([STEPS]))
    assert (found.decision.next, found.score) == (Next.ACCEPT, None)
    failed = Outcome(state=State.FAILED, exit_code=1)
    for trial, then in ((STUDY.trial, Next.DROP), (SCORED, Next.STOP)):
        found = assess(trial, CELL, failed, read_log([REFUSED]), reference=BASELINE.id)
        assert found.decision.next is then
