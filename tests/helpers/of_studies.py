"""Subjects of studies of cells and thresholds: each study run whole, on made speeds."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime

from pytest_xlatune.model.result import Conclusion, Score, TrialResult, TrialStatus
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.report import Subject
from pytest_xlatune.studies import Study
from pytest_xlatune.studies.thresholds import Demand, ThresholdStudy
from tests.studies import test_batch_size as sizes
from tests.studies import test_commits as commits
from tests.studies import test_network as pairs
from tests.studies import test_nodes as single


def subject(
    study: Study, history: list[TrialResult] | tuple[TrialResult, ...], found: Conclusion
) -> Subject:
    return Subject(
        conclusion=found,
        cells=study.cells,
        history=tuple(history),
        now=datetime(2026, 11, 23, tzinfo=UTC),
    )


def batch() -> Subject:
    study = sizes.study_of()
    found, history = sizes.drive(study, sizes.world(ceiling=12, best=6))
    return subject(study, history, found)


def nodes(count: int = 12, name: str = "node{:03}") -> Subject:
    study = single.study_of(count, names=tuple(name.format(at + 1) for at in range(count)))
    slow = {name.format(3): -0.08, name.format(7): -0.03}
    speed, history = single.speeds(slow), list[TrialResult]()
    while trials := study.propose(history):
        history += [speed(each, len(history)) for each in trials]
    return subject(study, history, study.conclude(history))


def network(count: int = 8) -> Subject:
    study, history = pairs.study_of(count), list[TrialResult]()

    def speed(trial: Trial) -> float:
        nodes = next(c.nodelist for c in study.cells if c.digest == trial.cell_digest)
        number = sum(map(ord, "".join(nodes))) * 7 + trial.block * 3 + trial.position
        loss = -0.06 if "node004" in nodes else 0.0
        return 7.5 + loss + pairs.NOISE[number % len(pairs.NOISE)]

    while trials := study.propose(history):
        history += [pairs.scored(each, speed(each)) for each in trials]
    return subject(study, history, study.conclude(history))


def commit(count: int = 17, first: int = 7) -> Subject:
    study = commits.study_of(count)
    history, found = commits.run(study, commits.speeds(study, first))
    return subject(study, history, found)


DEMANDS = (
    Demand(metric="tokens_per_sec_per_gpu", bound="min", value=800.0),
    Demand(metric="tflops_per_sec_per_gpu", bound="min", value=400.0),
    Demand(metric="step_time_seconds", bound="within", value=19.99, tolerance_pct=0.1),
    Demand(metric="tokens_per_sec_total", bound="min", value=0.95, of="tokens_per_sec_per_gpu"),
    Demand(metric="step_time_mean_ms", bound="max", value=21000.0),
    Demand(metric="step_time_p95_ms"),
    Demand(metric="final_loss", bound="max", value=8.5),
    Demand(metric="time_to_target_seconds", bound="max", value=100.0),
)


def thresholds(jobs: int = 5, *, over: int = 5, lost: int = 0) -> Subject:
    """Jobs at 820 tokens/s a device, of which `over` have ended and `lost` without a score."""
    study = ThresholdStudy(cell=replace(single.CELL, devices=8), demands=DEMANDS, jobs=jobs)
    history = []
    for at, trial in enumerate(study.propose([])[:over]):
        tgs = 820.0 * math.exp(single.NOISE[at % len(single.NOISE)])
        score = Score(
            value=math.log(tgs), tgs=tgs, tflops=tgs * 0.475, step_s=16384 / tgs, loss=7.6,
            n_steps=10, window=(5, 14),
            timings=tuple((step, 16384 / tgs) for step in range(15)),
        )  # fmt: skip
        if at < lost:
            result = TrialResult(trial=trial, status=TrialStatus.UNMEASURED, job_ids=(str(at),))
        else:
            result = TrialResult(
                trial=trial, status=TrialStatus.MEASURED, score=score, job_ids=(str(14600 + at),)
            )
        history.append(result)
    return subject(study, history, study.conclude(history))
