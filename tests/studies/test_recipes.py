"""What is recommended: the smallest set of settings that is shown to be needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.model.profile import Profile, profile, settings_of
from pytest_xlatune.model.result import (
    Conclusion,
    Needed,
    Recipe,
    TrialResult,
    TuningRecord,
    VerdictKind,
)
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.report.document import Table
from pytest_xlatune.report.recipes import recipe_blocks
from pytest_xlatune.studies import Answered, Ask, Question
from pytest_xlatune.studies.derived import Crossed
from pytest_xlatune.studies.tuning import TuningStudy
from tests.helpers.history import history, measured, noise
from tests.helpers.knobs import CELL

A, B = (profile(each, f"--xla_{each}=1") for each in "ab")
AB = profile("a+b", "--xla_a=1 --xla_b=1")


def gain_of(of: Profile, gains: Mapping[str, float]) -> float:
    """Log gain of a profile: of each single and of each set that it holds, by names."""
    own = {name.removeprefix("xla_") for _, name in settings_of(of)}
    return sum(gain for names, gain in gains.items() if set(names.split("+")) <= own)


def run(
    profiles: tuple[Profile, ...], gains: Mapping[str, float], **changes: Any
) -> tuple[TuningStudy, list[TrialResult], Conclusion]:
    values: dict[str, Any] = {"cell": CELL, "profiles": profiles, "budget": 60} | changes
    study = TuningStudy(**values)

    def answer(trial: Trial) -> TrialResult:
        seed = study.seed or 0
        return measured(trial, 6.9 + gain_of(trial.profile, gains) + noise(trial, 0.002, seed=seed))

    done = history(answer, of=study, one_by_one=True)
    return study, done, study.decide(done).conclusion


def recipe_of(conclusion: Conclusion) -> Recipe:
    recipe = conclusion.tuning.recipe
    assert recipe is not None
    return recipe


SPARE = tuple(profile(f"idle-{at}", f"--xla_idle={at}") for at in range(3))
CONTROL = replace(A, is_control=True)
ONLY_A = {("xla_a",): Needed.NEEDED}
BOTH = {("xla_a",): Needed.NEEDED, ("xla_b",): Needed.NEEDED}


@pytest.mark.parametrize(
    ("profiles", "gains", "arm", "parts"),
    [
        pytest.param((A, B, AB), {"a": 0.04}, "a", ONLY_A, id="a passenger in every stack"),
        pytest.param((A, B, AB), {"a": 0.04, "b": 0.03}, "a+b", BOTH, id="both are needed"),
        pytest.param((A, B, AB), {"a": 0.04, "b": 0.03, "a+b": -0.08}, "a", ONLY_A,
                     id="together they lose"),
        pytest.param((A, B, AB), {"a+b": 0.04}, "a+b", BOTH, id="they help together only"),
        pytest.param((AB,), {"a": 0.04}, "a+b", {("xla_a", "xla_b"): Needed.NOT_TESTED},
                     id="only measured together: not called needed"),
        pytest.param((CONTROL, B), {"a": 0.05, "b": 0.02}, "b", {("xla_b",): Needed.NEEDED},
                     id="a control is never recommended"),
    ],
)  # fmt: skip
def test_the_recipe_is_the_smallest_set_that_is_shown_to_be_needed(
    profiles: tuple[Profile, ...],
    gains: Mapping[str, float],
    arm: str,
    parts: Mapping[tuple[str, ...], Needed],
) -> None:
    """Live: `baseline-no-env+chan-8` was recommended, while `chan-8` alone was as fast."""
    study, done, conclusion = run((*profiles, *SPARE), gains)
    found = recipe_of(conclusion)
    assert (found.arm, found.ties) == (arm, ())
    assert conclusion.winner == conclusion.verdict(arm)
    asked = study.answer(done, Question(about=Ask.BEST))
    assert (asked.state, asked.arm and asked.arm.id) == (Answered.YES, arm)
    assert {each.settings: each.need for each in found.parts if each.is_deployed} == parts
    assert TuningRecord.from_json(conclusion.tuning.to_json()) == conclusion.tuning
    told = " ".join(str(each) for each in recipe_blocks(conclusion) if not isinstance(each, Table))
    assert ("may do nothing" in told) is (Needed.NOT_TESTED in parts.values())
    if CONTROL in profiles:
        first = conclusion.verdict("a")
        assert first is not None
        assert first.kind is VerdictKind.FASTER


@pytest.mark.parametrize(("gain", "seed"), [(0.005, 25), (0.006, 2)])
def test_a_stack_does_not_win_in_the_place_of_its_part(gain: float, seed: int) -> None:
    """The gain of the one setting that helps may be nothing, and that of a stack with it not.

    Where stacks won then, 11 % of the recipes of one setting at +2 % held a useless one.
    """
    _, _, conclusion = run((A, AB, *SPARE), {"a": gain}, seed=seed, budget=45)
    part, stack = conclusion.verdict("a"), conclusion.verdict("a+b")
    assert part is not None
    assert stack is not None
    assert (part.kind, part.wins, stack.wins) == (VerdictKind.FASTER, False, True)
    assert recipe_of(conclusion).arm == "a"
    assert conclusion.winner is None
    assert not list(recipe_blocks(conclusion))


def test_flags_and_shape_are_measured_and_recommended_together() -> None:
    """Live: flags +9 %, shape +25 %, and the two together never offered."""
    shape = profile("m-16", "", overrides={"shape": "1"}, wave="wave5")
    gains = {"a": 0.03, "shape": 0.05}
    study, done, conclusion = run((A, *SPARE, shape), gains, derived=(Crossed(slots=2),), budget=70)
    assert study.state(done).ranked.arms.slots["crossed-1"].id == "a+m-16"
    assert recipe_of(conclusion).arm == "a+m-16"
    needed = {each.settings: each.need for each in recipe_of(conclusion).parts}
    assert needed == {("xla_a",): Needed.NEEDED, ("shape",): Needed.NEEDED}
    assert [each.id for each in study.decide(done).profiles][-1] == "a+m-16"
