"""Candidates of a wave of single settings, the evidence that orders them, and a run of the wave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_xlatune.catalog.entries import load
from pytest_xlatune.model.profile import BASELINE, profile
from pytest_xlatune.model.result import (
    EvidenceResult,
    TrialResult,
    TrialStatus,
)
from pytest_xlatune.model.shares import Shares
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.studies.derived import Singles, Stacks
from pytest_xlatune.studies.evidence_run import EvidenceStudy
from pytest_xlatune.studies.tuning import TuningStudy
from tests.helpers.history import history, measured, noise
from tests.helpers.knobs import AG, CELL, GIB, cluster

PERMUTE = "xla_gpu_collective_permute_combine_threshold_bytes"
CANDIDATES = (
    profile("ag-1g", f"--{AG}={GIB}"),
    profile("ag-2g", f"--{AG}={2 * GIB}"),
    profile("permute-8g", f"--{PERMUTE}={8 * GIB}"),
    profile("ragged-off", "--xla_gpu_unsupported_use_ragged_all_to_all_one_shot_kernel=false"),
    profile("triton-off", "--xla_gpu_enable_triton_gemm=false"),
    profile("overlap-2", "--xla_gpu_experimental_parallel_collective_overlap_limit=2"),
    profile("unheard-of", "--xla_gpu_knob=7"),
)
AIMS = {each.id: load().aims_of(each) for each in CANDIDATES}
RUN = EvidenceStudy(cell=CELL, profile=BASELINE).trial
PIPELINE = Shares(
    of_step={
        "collective-permute": 0.2,
        "all-gather": 0.03,
        "communication": 0.24,
        "compute": 0.7,
        "copies": 0.0,
        "idle": 0.05,
    },
    kinds=("all-gather", "collective-permute"),
)


def rule(**changes: Any) -> Singles:
    values: dict[str, Any] = {"slots": 3, "candidates": CANDIDATES, "aims": AIMS} | changes
    return Singles(**values)


def study(*rules: Singles | Stacks, **changes: Any) -> TuningStudy:
    values: dict[str, Any] = {
        "cell": CELL,
        "profiles": (),
        "derived": rules or (rule(),),
        "budget": 60,
    } | changes
    return TuningStudy(**values)


def evidence(shares: Shares | None = PIPELINE, **changes: Any) -> EvidenceResult:
    values: dict[str, Any] = {
        "trial": RUN,
        "status": TrialStatus.MEASURED,
        "job_ids": ("7",),
        "is_read": True,
        "shares": shares,
    } | changes
    return EvidenceResult(**values)


def ids(order: Sequence[Any]) -> list[str]:
    return [each.profile.id for each in order]


def run(
    of: TuningStudy,
    *,
    shares: Shares | None = PIPELINE,
    gains: Mapping[str, float] | None = None,
    pgle: str = "",
) -> list[TrialResult]:
    """Drive a study one trial at a time."""
    measure = cluster(gains or {})

    def answer(trial: Trial) -> TrialResult:
        return measure(trial) if trial.protocol.is_scored else evidence(shares, pgle=pgle)

    return history(answer, of=of, one_by_one=True)


def led(sweep: TuningStudy, names: Sequence[str]) -> list[TrialResult]:
    """Run a study in which the named profiles lead."""

    def answer(trial: Trial) -> TrialResult:
        gain = 0.03 * any(each in names for each in trial.profile.id.split("+"))
        found = measured(trial, 6.9 + gain + noise(trial, 0.0005))
        return found if trial.protocol.is_scored else evidence()

    return history(answer, of=sweep, one_by_one=True)
