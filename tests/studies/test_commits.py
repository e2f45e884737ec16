"""The study of commits: what it runs next, which commit it accuses, and what it cannot tell."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import sentence, verbatim
from pytest_xlatune.model.result import (
    Action,
    Conclusion,
    Finding,
    Outcome,
    Score,
    State,
    TrialResult,
    TrialStatus,
    VerdictKind,
)
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.change_point import posterior
from pytest_xlatune.studies.commit_check import Commits, CommitsRecord, CommitStudy, Load
from tests.helpers import benchmarks
from tests.helpers.answers import NOT_ACCUSED, kinds

rates = benchmarks.load("commit_rates")

NOISE = (0.0031, -0.0024, 0.0008, -0.0015, 0.0022, -0.0007, 0.0013, -0.0028, 0.0004, -0.0011)
NODES = tuple(f"node{at:03d}" for at in range(1, 9))
CELL = Cell(
    model_tag="llama2-70b",
    parallelism=Parallelism.parse("FSDP=8"),
    nodelist=NODES,
    protocol=Protocol(steps=15),
)
Run = Callable[[Trial, int], TrialResult]


def study_of(count: int, *, loads: tuple[Load, ...] = (), budget: int = 200) -> CommitStudy:
    cells = tuple(replace(CELL, code=f"{at + 1:012x}{0:028x}") for at in range(count))
    return CommitStudy(
        cells=tuple(load.cell(cell) for load in loads for cell in cells) or cells,
        labels=tuple(f"{at + 1:012x} change {at}" for at in range(count)),
        asked=Commits(loads=loads),
        is_search=not loads,
        budget=budget,
    )


def scored(trial: Trial, value: float, *, loss: float = 7.1) -> TrialResult:
    score = Score(
        value=value, tgs=math.exp(value), step_s=1.0, n_steps=10, window=(5, 14), loss=loss
    )
    return TrialResult(trial=trial, status=TrialStatus.MEASURED, score=score, job_ids=(trial.id,))


def lost(trial: Trial, cls: FailureClass, *, state: State = State.FAILED) -> TrialResult:
    return TrialResult(
        trial=trial,
        status=TrialStatus.UNMEASURED,
        reason=verbatim(str(cls.meaning)),
        findings=(Finding(cls=cls, action=Action.RETRY, text="a line"),),
        outcome=Outcome(state=state),
    )


def run(study: CommitStudy, result: Run) -> tuple[list[TrialResult], Conclusion]:
    history: list[TrialResult] = []
    while trials := study.decide(history).due:
        for trial in trials:
            history.append(result(trial, len(history)))
        assert len(history) <= study.budget, "the budget is never exceeded"
    return history, study.decide(history).conclusion


def record(found: Conclusion) -> CommitsRecord:
    assert isinstance(found.record, CommitsRecord)
    return found.record


def speeds(study: CommitStudy, first: int, change: float = -0.05) -> Run:
    def result(trial: Trial, number: int) -> TrialResult:
        at = study.places[trial.cell_digest]
        shift = math.log1p(change) if at >= first else 0.0
        return scored(trial, 7.5 + shift + NOISE[number % len(NOISE)])

    return result


@pytest.mark.parametrize("first", [1, 7, 15, 16])
def test_a_planted_commit_is_found_wherever_it_stands(first: int) -> None:
    study = study_of(17)
    history, found = run(study, speeds(study, first))
    assert record(found).found == "FIRST"
    assert record(found).first == study.ids[first]
    assert "the first slower commit is" in sentence(record(found).objection[0])
    verdict = found.verdict(study.ids[first])
    assert verdict is not None
    assert verdict.kind is VerdictKind.SLOWER
    assert len(history) <= 8 + 8 + 8
    again = CommitStudy.from_json(study.to_json())
    assert again.decide(history).conclusion == found


def test_a_gain_is_no_loss() -> None:
    study = study_of(9)
    assert record(run(study, speeds(study, 4, change=0.06))[1]).found == "NO CHANGE"


def test_without_a_change_no_commit_is_accused_and_the_loss_excluded_is_named() -> None:
    study = study_of(64)
    history, found = run(study, speeds(study, 99))
    assert record(found).found == "NO CHANGE"
    assert len(history) in (8, 16)
    assert 0 < (record(found).excluded or 0) < 0.01
    assert not record(found).objection


@pytest.mark.parametrize("change", [-0.002, -0.008])
def test_a_quiet_trainer_s_slight_loss_fails_no_search(change: float) -> None:
    study = study_of(3)

    def result(trial: Trial, number: int) -> TrialResult:
        shift = math.log1p(change) if trial.cell_digest == study.cells[-1].digest else 0.0
        return scored(trial, 7.5 + shift + NOISE[number % len(NOISE)] / 30)

    history, found = run(study, result)
    assert record(found).found == "NO CHANGE"
    assert not record(found).objection
    assert len(history) == 8, "1 % is excluded: four more pairs tell nothing"
    assert -change < (record(found).excluded or 0) < 0.01
    last = found.verdict(study.ids[-1])
    assert last is not None
    assert last.kind is VerdictKind.EQUIVALENT


@pytest.mark.parametrize("count", [4, 9])
def test_a_loss_of_many_small_steps_accuses_none_of_them(count: int) -> None:
    study = study_of(count)

    def result(trial: Trial, number: int) -> TrialResult:
        at = study.places[trial.cell_digest]
        return scored(trial, 7.5 - 0.004 * at + NOISE[number % len(NOISE)] / 3)

    _, found = run(study, result)
    assert record(found).found == "RANGE"
    assert (record(found).first, record(found).last) == (study.ids[0], study.ids[-1])
    assert record(found).objection
    notes = " ".join(map(sentence, found.notes))
    assert "do not show a loss of 1 % or more: -0.4 %" in notes
    assert "more than this commit explains: several commits changed it" in notes


def test_a_commit_that_does_not_run_is_skipped_and_a_neighbour_is_not_accused_alone() -> None:
    study = study_of(9)
    broken = study.cells[4].digest
    speed = speeds(study, 5)

    def result(trial: Trial, number: int) -> TrialResult:
        if trial.cell_digest == broken:
            return lost(trial, FailureClass.OOM_GPU)
        return speed(trial, number)

    _, found = run(study, result)
    assert record(found).found == "RANGE"
    assert (record(found).first, record(found).last) == (study.ids[3], study.ids[5])
    assert record(found).skipped == (study.ids[4],)


def test_an_end_that_never_runs_ends_the_search_at_once() -> None:
    study = study_of(9)
    last = study.cells[-1].digest
    speed = speeds(study, 99)

    def result(trial: Trial, number: int) -> TrialResult:
        return (
            lost(trial, FailureClass.OOM_GPU) if trial.cell_digest == last else speed(trial, number)
        )

    _, found = run(study, result)
    assert record(found).found == "CANNOT TELL"
    verdict = found.verdict(study.ids[-1])
    assert verdict is not None
    assert (verdict.kind, verdict.can_run) == (VerdictKind.INVALID, False)


def test_the_line_of_the_first_commit_counts_its_retries_as_every_other_does() -> None:
    study = study_of(4)
    steady = speeds(study, first=9)

    def twice(trial: Trial, place: int) -> TrialResult:
        return replace(steady(trial, place), job_ids=("1", "2"))

    history, found = run(study, twice)
    assert found.reference is not None
    counts = {each.arm: each.retries for each in (found.reference, *found.verdicts)}
    each_end = len(history) // 2
    assert counts == {study.ids[0]: each_end, study.ids[-1]: each_end}


@pytest.mark.parametrize("budget", [17, 20, 24, 30])
def test_a_small_budget_ends_in_a_range_that_holds_the_commit(budget: int) -> None:
    study = study_of(65, budget=budget)
    _, found = run(study, speeds(study, 40))
    low, high = (study.ids.index(each) for each in (record(found).first, record(found).last))
    assert (low, high) == (40, 40) if record(found).found == "FIRST" else low < 40 <= high


def test_a_budget_below_the_least_is_refused() -> None:
    with pytest.raises(ConfigError, match="a search takes 17 jobs or more, the budget is 16"):
        study_of(9, budget=16)


LOADS = tuple(Load(model=name, nodes=count) for name, count in (("a", 1), ("b", 2), ("c", 4)))
WHOLE = (*LOADS, Load(model="d", nodes=8), Load(model="e"))


def test_loads_of_less_than_all_nodes_are_disjoint_and_keep_their_nodes() -> None:
    nodes = [set(load.cell(CELL).nodelist) for load in LOADS]
    assert [len(each) for each in nodes] == [1, 2, 4]
    assert not nodes[0] & (nodes[1] | nodes[2])
    assert not nodes[1] & nodes[2]
    assert set(WHOLE[3].cell(CELL).nodelist) == set(WHOLE[4].cell(CELL).nodelist) == set(NODES)
    with pytest.raises(ConfigError, match="needs 9 nodes, the node list names 8"):
        Load(model="a", nodes=9).cell(CELL)


def test_only_the_slow_load_is_accused_and_only_it_is_run_again() -> None:
    study = study_of(2, loads=WHOLE)
    slow = study.ids[3]

    def result(trial: Trial, number: int) -> TrialResult:
        shift = -0.05 if trial.arm == slow else 0.0
        return scored(trial, 7.5 + shift + NOISE[number % len(NOISE)] / 3)

    history, found = run(study, result)
    told = kinds(found)
    assert told.pop(slow) == "SLOWER"
    assert set(told.values()) == {NOT_ACCUSED}
    assert len(history) == 10 + 8


def test_breakage_is_new_or_was_there_before_and_a_cancelled_run_says_neither() -> None:
    study = study_of(2, loads=WHOLE)
    gone = {study.ids[0], study.ids[1], study.ids[3]}

    def result(trial: Trial, number: int) -> TrialResult:
        if trial.arm in gone:
            return lost(trial, FailureClass.OOM_GPU)
        if trial.arm == study.ids[5]:
            return lost(trial, FailureClass.CANCELLED, state=State.CANCELLED)
        return scored(trial, 7.5 + NOISE[number % len(NOISE)] / 3)

    _, found = run(study, result)
    old, new = ("INVALID", True), ("INVALID", False)
    runs, is_open = (NOT_ACCUSED, True), ("INCONCLUSIVE", True)
    told = [(kinds(found)[each.arm], each.can_run) for each in found.verdicts]
    assert told[:6] == [old, old, runs, new, runs, is_open]


def test_a_loss_of_another_kind_is_a_finding_of_its_own() -> None:
    study = study_of(2, loads=LOADS)

    def result(trial: Trial, number: int) -> TrialResult:
        loss = 9.9 if trial.arm == study.ids[1] else 7.1
        return scored(trial, 7.5 + NOISE[number % len(NOISE)] / 3, loss=loss)

    _, found = run(study, result)
    assert "computes something else" in sentence(record(found).objection[0])
    assert set(kinds(found).values()) == {NOT_ACCUSED}


def test_the_posterior_finds_a_change_and_a_bad_job_moves_it_little() -> None:
    clean = [(0, 0.0), (8, 0.05), (4, 0.0), (6, 0.05), (5, 0.05)]
    said = {"positions": range(1, 9), "sigma": 0.005, "expected": 0.05}
    found = posterior(clean, level=0.0, level_error=0.002, **said)  # type: ignore[arg-type]
    assert found.likeliest == 5
    assert found.most > 0.95
    bad = [*clean, (2, 0.05)]  # a slow job before the change
    moved = posterior(bad, level=0.0, level_error=0.002, **said)  # type: ignore[arg-type]
    assert moved.likeliest in (2, 1, 5)
    assert math.isclose(sum(moved.mass), 1.0)


def test_the_error_rates_of_the_page_hold_in_a_few_runs() -> None:
    world = rates.World()
    study = rates.of_commits(16)
    runs = [rates.search(world, seed, study, 0.05) for seed in range(30)]
    assert sum(each["right"] for each in runs) >= 28
    assert sum(each["wrong"] for each in runs) == 0
    none = [rates.search(world, seed, study, 0.0) for seed in range(30)]
    assert sum(each["no change"] for each in none) >= 28
