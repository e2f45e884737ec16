"""Whether a gain carries: what a study of gains says, refuses, spares and goes on with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import BASELINE_ID, Profile, profile
from pytest_xlatune.model.reason import verbatim
from pytest_xlatune.model.result import (
    Conclusion,
    Effect,
    NoiseRecord,
    Score,
    SettingKind,
    TrialResult,
    TrialSetting,
    TrialStatus,
    Verdict,
    VerdictKind,
)
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.report.words import sentence
from pytest_xlatune.studies import Asked, Report
from pytest_xlatune.studies.carry import Carry, CarryRecord, CarryStudy, told
from pytest_xlatune.sweep.registry import study_of

FULL = Cell(model_tag="pretend", parallelism=Parallelism.parse("FSDP=64"))
SMALL = replace(FULL, parallelism=Parallelism.parse("FSDP=4"))
NEW = profile("new", "--xla_new=1")
OTHER = profile("other", "--xla_other=1")
WINS = Verdict(arm="new", kind=VerdictKind.FASTER, delta=0.02, ci95=(0.012, 0.028), n=4)
WHOLE = Conclusion(verdicts=(WINS,), record=NoiseRecord(sigma=0.004), complete=True)
REPORT = Report(written="", digest="small", cell=SMALL, profiles=(NEW,), conclusion=WHOLE)


def asked(
    *, report: Report = REPORT, profiles: tuple[Profile, ...] = (NEW,), budget: int = 60
) -> Asked:
    def refuse(_: str) -> Any:
        raise AssertionError

    return Asked(
        cell=FULL, variants={"small": SMALL, "same": FULL}, profiles=profiles, others={},
        selected=None, budget=budget, seed=0, loss_tolerance=0.02, read_baselines=refuse,
        read_reference=refuse, read_report=lambda _: report,
    )  # fmt: skip


def by_report(**given: Any) -> CarryStudy:
    return Carry(small="small.json").study(asked(**given))


def scored(trial: Trial, value: float, *, loss: float = 7.0) -> TrialResult:
    score = Score(
        value=value, tgs=math.exp(value), step_s=1.0, n_steps=10, window=(5, 14), loss=loss
    )
    return TrialResult(trial=trial, status=TrialStatus.MEASURED, score=score, job_ids=("1",))


def drive(
    study: CarryStudy,
    *,
    full: float,
    small: float = 0.02,
    sigma: float = 0.002,
    change: Callable[[TrialResult], TrialResult] = lambda each: each,
) -> list[TrialResult]:
    """Run the study to its end in a world where profiles gain so much in each cell."""
    random, history = Random(5), list[TrialResult]()
    while trials := study.propose(history):
        for each in trials:
            gain = small if each.cell_digest == SMALL.digest else full
            value = 7.0 + (0 if each.is_baseline else math.log1p(gain)) + random.gauss(0, sigma)
            history.append(change(scored(each, value)))
    return history


def verdict(study: CarryStudy, history: Sequence[TrialResult], arm: str = "new") -> Verdict:
    conclusion = study.conclude(history)
    assert conclusion.complete
    found = conclusion.verdict(arm)
    assert found is not None
    return found


def said(found: Verdict) -> str:
    return "; ".join(map(sentence, found.reasons))


@pytest.mark.parametrize(
    ("full", "sigma", "ends", "words"),
    [
        pytest.param(
            0.021, 0.002, ("CARRIES", "FASTER", 8), "at least 50 % of the gain", id="all of it"
        ),
        pytest.param(0.009, 0.001, ("SMALLER", "FASTER", 8), "a part of the gain", id="a part"),
        pytest.param(
            0.0, 0.002, ("LOST", "SLOWER", 8), "less than 50 % of the gain", id="nothing of it"
        ),
        pytest.param(-0.03, 0.002, ("LOST", "SLOWER", 8), "slower here than the cell", id="harm"),
        pytest.param(
            0.012, 0.008, ("CANNOT TELL", "INCONCLUSIVE", 16), "blocks tell with 80 %", id="noise"
        ),
    ],
)
def test_what_becomes_of_a_gain(
    full: float, sigma: float, ends: tuple[str, str, int], words: str
) -> None:
    study = by_report()
    history = drive(study, full=full, sigma=sigma)
    found = verdict(study, history)
    word = found.word
    assert (word, found.kind, len(history)) == ends
    assert words in said(found)
    assert "+2.0 % [+1.2, +2.8] in the small cell" in said(found)
    (change,) = study.conclude(history).found(CarryRecord).changes
    assert change.word == word
    assert change.full[0] == found.delta
    assert change.apart[1] < change.apart[0] < change.apart[2]
    again = study_of(study.name, study.to_json())
    assert again.conclude(history) == study.conclude(history)


@pytest.mark.parametrize(
    ("small", "full", "word"),
    [
        pytest.param((0.02, 0.01, 0.03), (0.02, 0.015, 0.025), "CARRIES", id="as much"),
        pytest.param((0.02, 0.019, 0.021), (0.015, 0.013, 0.017), "SMALLER", id="three quarters"),
        pytest.param((0.02, 0.01, 0.03), (0.001, -0.004, 0.006), "LOST", id="nothing"),
        pytest.param((0.02, 0.01, 0.03), (0.005, -0.01, 0.02), "CANNOT TELL", id="wide"),
        pytest.param((0.02, 0.0, 0.06), (0.015, 0.01, 0.02), "CANNOT TELL", id="a rough gain"),
        pytest.param((0.02, 0.01, 0.03), (0.011, 0.001, 0.021), "CANNOT TELL", id="near the half"),
    ],
)
def test_the_word_follows_from_the_two_intervals(
    small: tuple[float, float, float], full: tuple[float, float, float], word: str
) -> None:
    assert told(small, full, least=0.5) == word


def test_a_small_cell_that_is_measured_comes_first_and_spares_jobs_of_the_other() -> None:
    study = Carry(small="small").study(asked(profiles=(NEW, OTHER)))
    assert study.cells == (FULL, SMALL)
    assert {each.cell_digest for each in study.propose(())} == {SMALL.digest}
    assert study.left(()) == 48
    assert "small cell" in sentence(study.place(study.propose(())[0]))

    def other_gains_nothing(each: TrialResult) -> TrialResult:
        if each.trial.arm != "other" or each.score is None:
            return each
        return scored(each.trial, each.score.value - math.log1p(0.02))

    history = drive(study, full=0.02, change=other_gains_nothing)
    here = [each.trial.arm for each in history if each.trial.cell_digest == FULL.digest]
    assert set(here) == {"new", BASELINE_ID}
    assert verdict(study, history).word == "CARRIES"
    left_out = verdict(study, history, "other")
    assert (left_out.word, left_out.n) == ("CANNOT TELL", 0)
    assert "no gain is shown in the small cell" in said(left_out)

    nothing = drive(study, full=0.02, small=0.0)
    assert {each.trial.cell_digest for each in nothing} == {SMALL.digest}
    assert verdict(study, nothing).word == "CANNOT TELL"
    assert not study.conclude(nothing).found(CarryRecord).changes


def test_a_profile_that_is_told_leaves_the_blocks_that_follow() -> None:
    report = replace(
        REPORT,
        profiles=(NEW, OTHER),
        conclusion=replace(WHOLE, verdicts=(WINS, replace(WINS, arm="other"))),
    )
    study = by_report(report=report, profiles=(NEW, OTHER))

    def scatters(each: TrialResult) -> TrialResult:
        if each.trial.arm != "other" or each.score is None:
            return each
        return scored(each.trial, each.score.value - 0.008)

    history = drive(study, full=0.02, sigma=0.0015, change=scatters)
    later = {each.trial.arm for each in history if each.trial.block > study.looks[0]}
    assert verdict(study, history).word == "CARRIES"
    assert later in ({"other", BASELINE_ID}, set())
    assert verdict(study, history).n == study.looks[0]


def test_a_history_cut_anywhere_goes_on_to_the_same_end() -> None:
    study = Carry(small="small").study(asked())
    whole = drive(study, full=0.01)
    known = {each.trial.id: each for each in whole}
    for cut in range(0, len(whole), 5):
        history = list(whole[:cut])
        assert study.conclude(history).verdicts[0].kind is VerdictKind.INCONCLUSIVE
        assert "cannot tell yet" in said(study.conclude(history).verdicts[0])
        while trials := study.propose(history):
            history += [known[each.id] for each in trials]
        assert study.conclude(history) == study.conclude(whole)


def lose(arm: str, blocks: Sequence[int], status: TrialStatus = TrialStatus.UNMEASURED) -> Any:
    def change(each: TrialResult) -> TrialResult:
        if each.trial.arm != arm or each.trial.block not in blocks:
            return each
        return TrialResult(trial=each.trial, status=status, reason=verbatim("node-fail"))

    return change


def unseen(each: TrialResult) -> TrialResult:
    if each.trial.is_baseline:
        return each
    setting = TrialSetting(name="xla_new", kind=SettingKind.FLAG, asked="1", effect=Effect.NOT_SEEN)
    return replace(each, settings=(setting,))


@pytest.mark.parametrize(
    ("change", "word", "words"),
    [
        pytest.param(lose(BASELINE_ID, (2,)), "CARRIES", "at least", id="a baseline is missing"),
        pytest.param(lose(BASELINE_ID, range(9)), "CANNOT TELL", "no block holds",
                     id="no baseline at all"),
        pytest.param(lose("new", (1, 5, 6)), "CANNOT TELL", "runs", id="it loses its runs"),
        pytest.param(unseen, "CANNOT TELL", "nothing shows that --xla_new", id="not in effect"),
        pytest.param(
            lambda each: each if each.trial.is_baseline
            else replace(each, score=replace(each.score, loss=9.0)),
            "", "does not compute the same", id="another loss",
        ),
        pytest.param(lose("new", (1,), TrialStatus.DROPPED), "", "node-fail", id="it cannot run"),
    ],
)  # fmt: skip
def test_what_is_not_valid_tells_nothing(change: Any, word: str, words: str) -> None:
    study = by_report()
    found = verdict(study, drive(study, full=0.021, change=change))
    assert found.word == word
    assert words in said(found)
    assert (found.kind is VerdictKind.INVALID) == (not word)


def test_a_profile_that_cannot_run_in_the_small_cell_is_not_run_here() -> None:
    study = Carry(small="small").study(asked())

    def change(each: TrialResult) -> TrialResult:
        dead = lose("new", (1,), TrialStatus.DROPPED)(each)
        return dead if each.trial.cell_digest == SMALL.digest else each

    history = drive(study, full=0.02, change=change)
    assert {each.trial.cell_digest for each in history} == {SMALL.digest}
    found = verdict(study, history)
    assert (found.kind, found.can_run) == (VerdictKind.INVALID, False)
    assert "in the small cell: node-fail" in said(found)


SCREENED = replace(WINS, kind=VerdictKind.SCREENED, ci95=None, n=1)


@pytest.mark.parametrize(
    ("declared", "given", "words"),
    [
        pytest.param(Carry(small="tiny"), {}, "one of the sweep's config_tags", id="no such tag"),
        pytest.param(Carry(small="same"), {}, "this very cell", id="cells that do not differ"),
        pytest.param(Carry(small="a.json"), {"report": replace(REPORT, digest=FULL.digest)},
                     "this very cell", id="a report of this cell"),
        pytest.param(Carry(small="a.json"), {"profiles": (OTHER,)},
                     "no profile with the settings of 'other'", id="not in the small cell"),
        pytest.param(
            Carry(small="a.json"),
            {"report": replace(REPORT, conclusion=replace(WHOLE, verdicts=(SCREENED,)))},
            "'new' is SCREENED", id="a gain that is not decided",
        ),
        pytest.param(
            Carry(small="a.json"),
            {"report": replace(REPORT, conclusion=replace(WHOLE, complete=False))},
            "is not over", id="a sweep that is not over",
        ),
        *(
            pytest.param(
                Carry(small="a.json"),
                {"report": replace(REPORT, conclusion=replace(WHOLE, verdicts=(
                    replace(WINS, delta=delta, ci95=ci95),)))},
                "do not go together", id=f"figures that are none: {delta} in {ci95}",
            )
            for delta, ci95 in ((-2.0, (-3.0, 1.0)), (0.5, (0.01, 0.03)), (0.02, (0.01, math.inf)),
                                (0.02, (math.nan, math.nan)))
        ),
        pytest.param(Carry(small="a.json"), {"budget": 15}, "--xlatune-budget 16", id="budget"),
        pytest.param(Carry(small="small"), {"budget": 31}, "--xlatune-budget 32",
                     id="budget of both cells"),
        pytest.param(Carry(small="a.json", blocks=3), {}, "blocks=4 or more", id="few blocks"),
        pytest.param(Carry(small="a.json"), {"profiles": ()}, "has no profile", id="no profile"),
        pytest.param(
            Carry(small="a.json"),
            {"report": replace(REPORT, cell=replace(
                SMALL, protocol=replace(SMALL.protocol, metric="busbw")))},
            "do not compare", id="another metric",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused_before_anything_runs(
    declared: Carry, given: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        declared.study(asked(**given))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param({"least": 1.0}, "least is 1.0", id="all of it"),
        pytest.param({"least": 0.0}, "least is 0.0", id="nothing"),
        pytest.param({"block_baselines": 0}, "0 baselines", id="no baseline"),
    ],
)
def test_a_demand_that_means_nothing_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Carry(small="a.json", **given)


def test_a_plan_says_how_many_blocks_would_tell() -> None:
    plan = "; ".join(map(sentence, by_report().outline(())))
    assert "16 trials of this cell at most: 8 blocks of 1 profile + 1 baseline" in plan
    assert "new: at a job noise of 0.40 % " in plan
    assert "if all of +2.0 % is here" in plan
    rough = replace(WHOLE, verdicts=(replace(WINS, ci95=(0.0, 0.045)),))
    plan = "; ".join(map(sentence, by_report(report=replace(REPORT, conclusion=rough)).outline(())))
    assert "no number of blocks tells that it carries" in plan
