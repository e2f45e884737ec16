"""The pair of wave 1: does the deployed environment help, hurt, or neither?"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import NO_ENV_ID, Profile, profile
from pytest_xlatune.model.result import TrialResult, VerdictKind
from pytest_xlatune.stats.design import Plan
from pytest_xlatune.studies import Ask, Question
from pytest_xlatune.studies.tuning import TuningStudy
from tests.helpers.answers import CELL, cluster, drive, knobs

NO_ENV = Profile(id=NO_ENV_ID, flags=profile("f", "--xla_deployed=0").flags, wave="wave1")
ASKED = "whether the deployed flags help is not decided: baseline-no-env was only screened"


def sweep(**changes: object) -> TuningStudy:
    values = {"cell": CELL, "profiles": (NO_ENV, *knobs(15)), "budget": 50, "pair": "on"} | changes
    return TuningStudy(**values)  # type: ignore[arg-type]


def in_blocks(history: list[TrialResult]) -> list[int]:
    """Return the blocks that decide in which it ran; spare ones hold what is far below."""
    own = (each.trial for each in history if each.trial.arm == NO_ENV_ID)
    return [each.block for each in own if each.design is not None and each.design.look == 1]


def test_where_it_is_not_decided_the_document_says_what_it_would_cost() -> None:
    study = sweep(pair="off")
    history = drive(study, cluster({NO_ENV_ID: -0.05, "p3": 0.03}))
    conclusion = study.decide(history).conclusion
    assert in_blocks(history) == []
    (said,) = (each for each in conclusion.notes if ASKED in sentence(each))
    decided = [each for each in history if each.trial.design and each.trial.design.look == 1]
    blocks = max(each.trial.block for each in decided)
    assert f"{blocks} more jobs, one in each block, would decide it" in sentence(said)
    assert "--xlatune-pair on, for a sweep of its own" in sentence(said)


@pytest.mark.parametrize(
    ("effect", "kinds"),
    [
        pytest.param(-0.05, {VerdictKind.SLOWER}, id="the deployed flags help"),
        pytest.param(0.0, {VerdictKind.EQUIVALENT, VerdictKind.INCONCLUSIVE}, id="neither"),
        pytest.param(0.05, {VerdictKind.FASTER}, id="they hurt"),
    ],
)
def test_it_stands_in_every_block_and_has_a_verdict(effect: float, kinds: set[VerdictKind]) -> None:
    study = sweep()
    assert isinstance(study.layout, Plan)
    assert study.layout.jobs <= 50
    assert study.layout.jobs == study.outlook(()).left
    history = drive(study, cluster({NO_ENV_ID: effect, "p3": 0.03}, sigma=0.003))
    assert len(history) <= 50
    conclusion = study.decide(history).conclusion
    verdict = conclusion.verdict(NO_ENV_ID)
    assert verdict is not None
    assert verdict.kind in kinds
    assert verdict.ci95 is not None
    assert verdict.ci95[0] < effect + 0.01
    assert verdict.ci95[1] > effect - 0.01
    decided = [each for each in history if each.trial.design and each.trial.design.look == 1]
    last = max(each.trial.block for each in decided)
    assert in_blocks(history) == [*range(1, last + 1)]
    assert not any(ASKED in sentence(each) for each in conclusion.notes)
    # it takes no finalist's place, and the tests of finalists name the others
    own = [
        found.arm.id
        for number in range(9)
        if (found := study.answer(history, Question(about=Ask.RANKED, number=number))).arm
    ]
    assert NO_ENV_ID not in own
    assert {*own} == {*conclusion.tuning.finalists} - {NO_ENV_ID}


def test_switched_on_when_blocks_have_begun_it_changes_nothing() -> None:
    study = sweep(pair="off")
    history = drive(study, cluster({NO_ENV_ID: -0.05, "p3": 0.03}))
    later = replace(study, pair="on")
    assert later.decide(history).due == ()
    assert in_blocks(history) == []
    assert any(
        "for a sweep of its own" in sentence(each)
        for each in later.decide(history).conclusion.notes
    )
