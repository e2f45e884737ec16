"""Subjects of studies of cells: each study run whole, on made speeds."""

from __future__ import annotations

from datetime import UTC, datetime

from pytest_xlatune.model.result import Conclusion, TrialResult
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.report import Subject
from pytest_xlatune.studies import Study
from tests.helpers.answers import drive
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


def pairs_of_sizes() -> Subject:
    study = sizes.asking_study(sigma=0.002, **sizes.PAIRED)
    found, history = sizes.drive(study, sizes.paired(study, gains=sizes.LATER, c=0.8))
    return subject(study, history, found)


def nodes(count: int = 12, name: str = "node{:03}") -> Subject:
    study = single.study_of(count, names=tuple(name.format(at + 1) for at in range(count)))
    slow = {name.format(3): -0.08, name.format(7): -0.03}
    speed, history = single.speeds(slow), list[TrialResult]()
    while trials := study.decide(history).due:
        history += [speed(each, len(history)) for each in trials]
    return subject(study, history, study.decide(history).conclusion)


def network(count: int = 8) -> Subject:
    study = pairs.study_of(count)

    def scored(trial: Trial) -> TrialResult:
        nodes = next(c.nodelist for c in study.cells if c.digest == trial.cell_digest)
        number = sum(map(ord, "".join(nodes))) * 7 + trial.block * 3 + trial.position
        loss = -0.06 if "node004" in nodes else 0.0
        return pairs.scored(trial, 7.5 + loss + pairs.NOISE[number % len(pairs.NOISE)])

    history = drive(study, scored)
    return subject(study, history, study.decide(history).conclusion)


def commit(count: int = 17, first: int = 7) -> Subject:
    study = commits.study_of(count)
    history, found = commits.run(study, commits.speeds(study, first))
    return subject(study, history, found)
