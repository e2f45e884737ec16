"""The frame of staged studies: a walk ends where a stage is not over, and the rest follows."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.message import sentence, verbatim
from pytest_xlatune.model.result import (
    Conclusion,
    Score,
    TrialResult,
    TrialStatus,
    Verdict,
    VerdictKind,
)
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.studies import Answer, Answered, Ask, Question, name_of
from pytest_xlatune.studies.cell_arms import (
    CellArms,
    CellWalk,
    dropped,
    in_a_sentence,
    not_accused,
    undecided,
    worst_first,
)
from pytest_xlatune.sweep.registry import KINDS
from tests.helpers import toy

CELLS = tuple(
    Cell(model_tag="m", parallelism=Parallelism.parse("DP=1"), nodelist=(node,))
    for node in ("a", "b", "c")
)


class TwoWalk(CellWalk["TwoStages"]):
    best = ""

    def walk(self) -> None:
        once = self.run([self.study.trial(name, "once") for name in "abc"], later=2)
        self.best = max(once, key=lambda each: each.score.value if each.score else 0.0).trial.arm
        self.run([self.study.trial(self.best, "again", block) for block in (1, 2)])

    def conclusion(self) -> Conclusion:
        verdicts = [
            Verdict(arm=name, kind=VerdictKind.SCREENED, n=len(own))
            for name, own in self.by_arm.items()
        ]
        return Conclusion(verdicts=tuple(verdicts), complete=self.is_over)


class TwoStages(CellArms, frozen=True, kw_only=True):
    """Each cell once, then the one with the largest score twice more."""

    walk_class = TwoWalk
    cells: tuple[Cell, ...] = CELLS

    @property
    def name(self) -> str:
        return "two"

    @property
    def ids(self) -> list[str]:
        return [cell.nodelist[0] for cell in self.cells]

    def trial(self, name: str, stage: str, block: int = 0) -> Trial:
        arm = next(each for each in self.every_arm if each.id == name)
        return self.trial_of(arm, stage, block=block)


def scored(trial: Trial) -> TrialResult:
    value = {"a": 1.0, "b": 3.0, "c": 2.0}[trial.arm]
    score = Score(value=value, tgs=1.0, step_s=1.0, n_steps=10, window=(5, 14))
    return TrialResult(trial=trial, status=TrialStatus.MEASURED, score=score)


def begun(trial: Trial) -> TrialResult:
    return TrialResult(trial=trial, status=TrialStatus.RUNNING)


def test_the_walk_ends_where_a_stage_is_not_over_and_the_rest_follows() -> None:
    study, asked = TwoStages(), Question(about=Ask.CONFIRMED, name="a")
    first = study.decide(()).due
    assert [(each.arm, each.stage) for each in first] == [(name, "once") for name in "abc"]
    assert study.outlook(()).left == 3 + 2
    other = scored(study.trial("a", "again", 7))
    assert study.decide([other]).due == first, "a trial of no stage ends none"
    history = [scored(first[0]), begun(first[1])]
    assert study.decide(history).due == first[1:], "a trial that runs is proposed until it is over"
    assert study.outlook(history).left == 2 + 2
    assert study.walked(history).best == ""
    once = [scored(each) for each in first]
    part = study.decide(once[:2]).conclusion
    assert not part.complete
    assert [each.n for each in part.verdicts] == [1, 1, 0]
    again = study.decide(once).due
    assert [(each.arm, each.stage, each.block) for each in again] == [
        ("b", "again", 1), ("b", "again", 2),
    ]  # fmt: skip
    assert study.answer(once, asked) == Answer(state=Answered.NOT_YET)
    assert study.walked(once) is study.walked(tuple(once)), "remembered for its history"
    whole = [*once, *map(scored, again)]
    assert (study.decide(whole).due, study.outlook(whole).left) == ((), 0)
    ended = study.decide(whole).conclusion
    assert ended.complete
    assert [each.n for each in ended.verdicts] == [1, 3, 1]
    assert study.answer(whole, asked).state is Answered.YES


BASE = Verdict(arm="a", kind=VerdictKind.INCONCLUSIVE, reasons=(verbatim("known"),), n=9)


@pytest.mark.parametrize(
    ("found", "kind", "can_run"),
    [
        pytest.param(dropped(BASE), VerdictKind.INVALID, False, id="it cannot run"),
        pytest.param(undecided(BASE), VerdictKind.INCONCLUSIVE, True, id="nothing is shown"),
        pytest.param(not_accused(BASE), VerdictKind.SCREENED, True, id="level, and not shown"),
        pytest.param(
            not_accused(replace(BASE, ci95=(-0.005, 0.004))),
            VerdictKind.EQUIVALENT,
            True,
            id="its interval shows it",
        ),
    ],
)
def test_what_follows_of_an_arm_is_a_kind(
    found: Verdict, kind: VerdictKind, *, can_run: bool
) -> None:
    assert (found.kind, found.can_run) == (kind, can_run)
    assert found.reasons == (verbatim("known"),)


def test_verdicts_stand_by_their_kinds_the_worst_first() -> None:
    told = [
        Verdict(arm="open", kind=VerdictKind.INCONCLUSIVE),
        Verdict(arm="fine", kind=VerdictKind.SCREENED),
        Verdict(arm="slow", kind=VerdictKind.SLOWER, delta=-0.02),
        Verdict(arm="slower", kind=VerdictKind.SLOWER, delta=-0.05, ci95=(-0.06, -0.04)),
    ]
    ordered = worst_first(told)
    assert [each.arm for each in ordered] == ["slower", "slow", "open", "fine"]
    said = "slower: slower -5.0 % (-6.0 % to -4.0 %), slow; neither shown nor excluded: open"
    assert sentence(in_a_sentence(ordered)) == said


def test_a_name_tells_studies_of_a_kind_apart() -> None:
    assert name_of("nodes") == "nodes"
    assert name_of("nodes", "monday").startswith("nodes-")
    assert name_of("nodes", "monday") != name_of("nodes", "tuesday")


@pytest.mark.parametrize("kind", ["nodes", "network", "batch", "commits", "toy"])
def test_a_study_of_cells_stands_on_the_frame(kind: str) -> None:
    cls = toy.ToyStudy if kind == "toy" else KINDS[kind].cls
    assert issubclass(cls, CellArms)
    own = {name for each in cls.__mro__ if each not in CellArms.__mro__ for name in vars(each)}
    assert not own & {"decide", "outlook"}, "the frame has them"
