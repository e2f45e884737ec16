"""Waves that are derived, ordered by evidence or searched, and the recipe that comes of all."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.catalog.context import Context
from pytest_xlatune.catalog.entries import load
from pytest_xlatune.model.cell import Parallelism
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import BASELINE, Profile, parse_flags, profile, settings_of
from pytest_xlatune.model.result import (
    Conclusion,
    EvidenceResult,
    Needed,
    Recipe,
    TrialResult,
    TrialStatus,
    TuningRecord,
    VerdictKind,
)
from pytest_xlatune.model.shares import Shares
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.report.document import Table
from pytest_xlatune.report.leaderboard import recipe_blocks
from pytest_xlatune.stats.design import Plan, Refusal
from pytest_xlatune.stats.search import count_points
from pytest_xlatune.studies import Answered, Ask, Question, all_selected
from pytest_xlatune.studies.derived import (
    Around,
    Crossed,
    Leader,
    Search,
    Singles,
    Stacks,
    made_of,
    order_candidates,
)
from pytest_xlatune.studies.evidence_run import EvidenceStudy
from pytest_xlatune.studies.trials import TURNS
from pytest_xlatune.studies.tuning import RotationRule, TuningStudy
from tests.helpers.history import CELL as FSDP_8
from tests.helpers.history import (
    NCCL,
    RULE,
    Answer,
    Machine,
    arm,
    changed,
    failing,
    history,
    measured,
    turning,
    verdict,
)

CELL = replace(FSDP_8, parallelism=Parallelism.parse("PP=8"))
GIB = 1 << 30
AG = "xla_gpu_all_gather_combine_threshold_bytes"
LIMIT = "xla_gpu_experimental_parallel_collective_overlap_limit"

SINGLES = (
    profile("overlap-2", f"--{LIMIT}=2"),
    profile("overlap-4", f"--{LIMIT}=4"),
    profile("ag-1g", f"--{AG}={GIB}"),
    profile("double", "--xla_gpu_enable_while_loop_double_buffering=true"),
    profile("tree", env={"NCCL_ALGO": "Tree"}),
    profile("default", "--xla_gpu_autotune_level=4"),
    *(profile(f"hurts-{at}", f"--xla_gpu_knob={at}") for at in range(4)),
)
GAINS = {"overlap-2": 0.03, "overlap-4": 0.022, "ag-1g": 0.025, "double": 0.015, "tree": 0.01}


def effect(settings: Profile, gains: Mapping[str, float]) -> float:
    """Log gain of a profile: that of each single whose settings it has."""
    own = settings_of(settings).items()
    return sum(
        gains.get(each.id, 0.0) if each.id in gains else -0.05 * each.id.startswith("hurts")
        for each in SINGLES
        if settings_of(each).items() <= own
    )


def cluster(gains: Mapping[str, float] = GAINS, *, sigma: float = 0.001) -> Answer:
    """Return a machine that answers by the settings that are set."""
    return Machine(level=lambda trial: 6.9 + effect(trial.profile, gains), sigma=sigma)


def of_wave(history: Sequence[TrialResult], wave: str) -> set[str]:
    return {
        each.trial.profile.id
        for each in history
        if each.trial.stage == wave and not each.trial.is_baseline
    }


def slots_of(sweep: TuningStudy, done: Sequence[TrialResult]) -> dict[str, str]:
    """Return the profile of each slot of the derived waves that are filled."""
    return {name: each.id for name, each in sweep.state(done).arms.slots.items()}


LADDER: dict[str, tuple[str, ...]] = {
    AG: (str(GIB >> 1), str(GIB), str(2 * GIB)),
    LIMIT: ("2", "4", "8"),
}
QUIET = cluster(sigma=0.0001)
BEST = "overlap-2+ag-1g+double"


def study(**changes: Any) -> TuningStudy:
    rules = (Stacks(slots=4), Around(slots=3, ladders=LADDER))
    values: dict[str, Any] = {"cell": CELL, "profiles": SINGLES, "derived": rules, "budget": 60}
    return TuningStudy(**values | changes)


def one_by_one(sweep: TuningStudy, run: Answer, **how: Any) -> list[TrialResult]:
    return history(run, of=sweep, one_by_one=True, **how)


def test_the_waves_run_in_order_and_the_stacks_are_of_what_led() -> None:
    sweep = study()
    done = one_by_one(sweep, cluster(sigma=0.00001))
    assert list(dict.fromkeys(r.trial.stage for r in done))[:3] == ["wave2", "wave3", "wave4"]
    slots = slots_of(sweep, done)
    # pairs and triples in turn; overlap-2 and overlap-4 are two values of one flag
    stacks = ["overlap-2+ag-1g", BEST, "overlap-2+double", "overlap-2+ag-1g+tree"]
    assert [slots[f"stack-{at}"] for at in range(1, 5)] == stacks
    assert of_wave(done, "wave3") == {*stacks}
    first = sweep.state(done).arms.slots["stack-1"]
    assert str(first.flags[0]) == f"--{LIMIT}=2"
    for words_of in ("overlap-2 +3.4 %", "ag-1g +2.7 %"):
        assert words_of in sentence(first.origin)
    # of the stack that led: its first setting goes up, then the second up and down
    assert all(slots[f"around-{at}"].startswith(BEST) for at in (1, 2, 3))
    conclusion = sweep.decide(done).conclusion
    # the best stack stands in the blocks with its best part, and this with its own
    assert conclusion.tuning.finalists[0] == BEST
    assert {"overlap-2"} < set(conclusion.tuning.finalists)
    assert {each.kind for each in conclusion.verdicts[:3]} == {VerdictKind.FASTER}


def test_neighbours_on_a_ladder() -> None:
    # up comes first; "auto" has no place on the ladder
    for value, beside in (("2", ["4", "1"]), ("4", ["2"]), ("auto", [])):
        leader = Leader(profile=profile("lead", env={"X": value}), estimate=0.02)
        made = list(made_of(Around(ladders={"X": ("1", "2", "4")}), [leader], [leader.profile]))
        assert [(each.id, each.env["X"]) for each in made] == [(f"lead.{e}", e) for e in beside]
    lead = profile("lead", overrides={"m": "8"})
    rule = Around(ladders={"m": ("8", "16")})
    (more,) = made_of(rule, [Leader(profile=lead, estimate=0.02)], [lead])
    assert more.overrides == {"m": "16"}


def test_what_leads() -> None:
    odd = failing(cluster(), arm("overlap-2"), TrialStatus.DROPPED)
    worlds: list[tuple[Answer, set[str], int]] = [
        (cluster({}, sigma=0.0001), set(), 0),
        (cluster({"overlap-4": 0.03}, sigma=0.0001), set(), 1),
        # what was dropped or trains differently leads nothing
        (changed(odd, arm("ag-1g"), loss=3.0), {"overlap-4", "double", "tree"}, 7),
    ]
    sweep = study()
    for run, stacked, count in worlds:
        done = one_by_one(sweep, run)
        assert {part for each in of_wave(done, "wave3") for part in each.split("+")} == stacked
        slots = slots_of(sweep, done)
        assert len(slots) == count
        # a single leader has a value beside it, where none is declared
        assert count != 1 or slots == {"around-1": "overlap-4.8"}
        assert sweep.decide(done).conclusion.complete


def test_measured_stacks_stay_when_the_screen_is_read_anew() -> None:
    sweep = study()
    done = one_by_one(sweep, cluster(), stop="wave4")
    stacks = of_wave(done, "wave3")
    # a new log reader scores one single differently: another favourite, the same stacks
    other = [measured(r.trial, 6.9) if r.trial.profile.id == "ag-1g" else r for r in done]
    assert {e for name, e in slots_of(sweep, other).items() if "stack" in name} == stacks
    # and a single that is declared later is screened first, the stacks as they are
    more = study(profiles=(*SINGLES, profile("late", "--xla_gpu_late=1")))
    assert [t.profile.id for t in more.decide(done).due] == ["late"]
    assert {e for name, e in slots_of(more, done).items() if "stack" in name} == stacks
    found = {each.arm: each.kind for each in more.decide(done).conclusion.verdicts}
    assert {found[each] for each in stacks} == {VerdictKind.SCREENED}


def test_a_selected_slot_brings_the_waves_that_it_reads() -> None:
    alone = study(selected=frozenset({"stack-2"}), confirm=False)
    done = one_by_one(alone, QUIET)
    singles = {each.id for each in SINGLES}
    assert (of_wave(done, "wave2"), of_wave(done, "wave3")) == (singles, {BEST})
    # after a session of wave 2, which leaves the derived ones alone, nothing is measured again
    before = one_by_one(study(selected=frozenset(singles), confirm=False), QUIET)
    assert of_wave(before, "wave3") == set()
    assert {trial.stage for trial in alone.decide(before).due} == {"wave3"}
    # wave 4 reads wave 3, so all its slots come along
    later = one_by_one(study(selected=frozenset({"around-1"}), confirm=False), QUIET)
    assert [len(of_wave(later, wave)) for wave in ("wave3", "wave4")] == [4, 1]
    assert all_selected(study(selected=frozenset(singles))) == study(), "it has no slots"


A, B = (profile(each, f"--xla_{each}=1") for each in "ab")
AB = profile("a+b", "--xla_a=1 --xla_b=1")


def gain_of(of: Profile, gains: Mapping[str, float]) -> float:
    """Log gain of a profile: of each single and of each set that it holds, by names."""
    own = {name.removeprefix("xla_") for _, name in settings_of(of)}
    return sum(gain for names, gain in gains.items() if set(names.split("+")) <= own)


def recommended(
    profiles: tuple[Profile, ...], gains: Mapping[str, float], **changes: Any
) -> tuple[TuningStudy, list[TrialResult], Conclusion, Recipe]:
    values: dict[str, Any] = {"cell": CELL, "profiles": profiles, "budget": 60} | changes
    study = TuningStudy(**values)

    def level(trial: Trial) -> float:
        return 6.9 + gain_of(trial.profile, gains)

    done = one_by_one(study, Machine(level=level, sigma=0.002, seed=study.seed or 0))
    conclusion = study.decide(done).conclusion
    assert conclusion.tuning.recipe is not None
    return study, done, conclusion, conclusion.tuning.recipe


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
    study, done, conclusion, found = recommended((*profiles, *SPARE), gains)
    assert found.arm == arm
    assert conclusion.winner == conclusion.verdict(arm)
    asked = study.answer(done, Question(about=Ask.BEST))
    assert (asked.state, asked.arm and asked.arm.id) == (Answered.YES, arm)
    assert {each.settings: each.need for each in found.parts} == parts
    assert TuningRecord.from_json(conclusion.tuning.to_json()) == conclusion.tuning
    told = " ".join(str(each) for each in recipe_blocks(conclusion) if not isinstance(each, Table))
    assert ("may do nothing" in told) is (Needed.NOT_TESTED in parts.values())
    assert CONTROL not in profiles or verdict(conclusion, "a").kind is VerdictKind.FASTER


@pytest.mark.parametrize(("gain", "seed"), [(0.005, 25), (0.006, 2)])
def test_a_stack_does_not_win_in_the_place_of_its_part(gain: float, seed: int) -> None:
    """The gain of the one setting that helps may be nothing, and that of a stack with it not.

    Where stacks won then, 11 % of the recipes of one setting at +2 % held a useless one.
    """
    _, _, conclusion, recipe = recommended((A, AB, *SPARE), {"a": gain}, seed=seed, budget=45)
    part, stack = verdict(conclusion, "a"), verdict(conclusion, "a+b")
    assert (part.kind, part.wins, stack.wins) == (VerdictKind.FASTER, False, True)
    assert (recipe.arm, conclusion.winner) == ("a", None)
    assert not list(recipe_blocks(conclusion))


def test_flags_and_shape_are_measured_and_recommended_together() -> None:
    """Live: flags +9 %, shape +25 %, and the two together never offered."""
    shape = profile("m-16", "", overrides={"shape": "1"}, wave="wave5")
    gains = {"a": 0.03, "shape": 0.05}
    rules = (Crossed(slots=2),)
    study, done, _, recipe = recommended((A, *SPARE, shape), gains, derived=rules, budget=70)
    assert study.state(done).arms.slots["crossed-1"].id == recipe.arm == "a+m-16"
    needed = {each.settings: each.need for each in recipe.parts}
    assert needed == {("xla_a",): Needed.NEEDED, ("shape",): Needed.NEEDED}
    assert [each.id for each in study.decide(done).profiles][-1] == "a+m-16"


PERMUTE = "xla_gpu_collective_permute_combine_threshold_bytes"
RS = "xla_gpu_reduce_scatter_combine_threshold_bytes"
CANDIDATES = (
    profile("ag-1g", f"--{AG}={GIB}"),
    profile("ag-2g", f"--{AG}={2 * GIB}"),
    profile("permute-8g", f"--{PERMUTE}={8 * GIB}"),
    profile("ragged-off", "--xla_gpu_unsupported_use_ragged_all_to_all_one_shot_kernel=false"),
    profile("triton-off", "--xla_gpu_enable_triton_gemm=false"),
    profile("overlap-2", "--xla_gpu_experimental_parallel_collective_overlap_limit=2"),
    profile("unheard-of", "--xla_gpu_knob=7"),
)
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
    values: dict[str, Any] = {"slots": 3, "candidates": CANDIDATES} | changes
    return Singles(**values)


def ordered(*rules: Singles | Stacks | Around, **changes: Any) -> TuningStudy:
    derived = rules or (rule(),)
    values: dict[str, Any] = {"cell": CELL, "profiles": (), "derived": derived, "budget": 60}
    return TuningStudy(**values | changes)


def evidence(shares: Shares | None = PIPELINE, **changes: Any) -> EvidenceResult:
    values: dict[str, Any] = {"status": TrialStatus.MEASURED, "job_ids": ("7",), "is_read": True}
    return EvidenceResult(trial=RUN, shares=shares, **values | changes)


def order(shares: Shares | None = PIPELINE, **changes: Any) -> list[str]:
    """Return the candidates in their order."""
    return [each.id for each in order_candidates(rule(**changes), evidence(shares))]


def run(sweep: TuningStudy, gains: Mapping[str, float] | None = None) -> list[TrialResult]:
    measure = cluster(gains or {})
    return one_by_one(sweep, lambda e: measure(e) if e.protocol.is_scored else evidence())


def notes_of(sweep: TuningStudy, done: Sequence[TrialResult]) -> list[str]:
    return list(map(sentence, sweep.decide(done).conclusion.notes))


def test_an_evidence_run_is_one_run_without_a_verdict() -> None:
    alone = EvidenceStudy(cell=CELL, profile=BASELINE)
    assert alone.decide(()).due == (RUN,)
    assert (RUN.protocol.is_scored, alone.outlook(()).left) == (False, 1)
    for status in (TrialStatus.MEASURED, TrialStatus.DROPPED, TrialStatus.UNMEASURED):
        decision = alone.decide((evidence(status=status, is_read=status is TrialStatus.MEASURED),))
        assert (decision.due, decision.conclusion.verdicts) == ((), ())
        assert decision.conclusion.complete
    for unread in (TrialStatus.RUNNING, TrialStatus.MEASURED):
        assert alone.decide((evidence(status=unread, is_read=False),)).due == (RUN,)
    # no tuning study takes it for a trial of its own
    tuning = TuningStudy(cell=CELL, profiles=CANDIDATES)
    before, after = tuning.decide(()), tuning.decide([evidence()])
    assert (after.due, after.conclusion.verdicts) == (before.due, before.conclusion.verdicts)


def test_slots_go_where_time_is_lost_and_no_part_takes_them_all() -> None:
    assert order() == [
        "overlap-2",  # communication alone, 24 % of a step
        "permute-8g",  # collective-permute alone, 20 %
        "triton-off",  # compute, 70 %, of which a tenth counts
        "ag-1g",  # all-gather alone, 3 %
        "ag-2g",  # halved: its part has a place already
        "unheard-of",
        "ragged-off",  # the program has no all-to-all
    ]
    many = [profile(f"n-{at}", env={"NCCL_IB_QPS_PER_CONNECTION": str(at)}) for at in range(1, 9)]
    candidates = (*many, CANDIDATES[2])
    assert order(candidates=candidates)[1] == "permute-8g"
    # a collective counts once beside all communication
    shares = Shares(of_step={"all-gather": 0.3, "communication": 0.5, "copies": 0.6})
    copies = profile("copies", env={"MAXTEXT": "1"}, overrides={"remat_policy": "full"})
    both = profile("both", f"--{AG}={GIB} --xla_gpu_enable_while_loop_double_buffering=true")
    assert order(shares, candidates=(both, copies)) == ["copies", "both"]
    # without evidence, and where it tells nothing, the declared order stays
    for nothing in (None, Shares(of_step={})):
        assert order(nothing) == [each.id for each in CANDIDATES]


def test_the_baseline_is_run_for_evidence_before_the_wave_and_not_in_its_budget() -> None:
    sweep = ordered(context=Context())
    assert sweep.decide(()).due == (RUN,)
    assert ordered(rule(evidence=False)).decide(()).due[0].stage == "wave2"
    assert sweep.decide([evidence(None, is_read=False)]).due == (RUN,), "it is waited for"
    done = run(sweep)
    assert [each.trial.stage for each in done].count("evidence") == 1
    assert of_wave(done, "wave2") == {"overlap-2", "permute-8g", "triton-off"}
    assert sweep.decide(done).due == ()
    # each process sees the same slots, whatever the order of its history
    slots = {"single-1": "overlap-2", "single-2": "permute-8g", "single-3": "triton-off"}
    again = TuningStudy.from_json(sweep.to_json())
    for seed in range(5):
        assert slots_of(again, random.Random(seed).sample(done, len(done))) == slots
    # the error rates rest on it: which profiles are tried knows nothing of how fast they are
    for gains in ({"triton-off": 0.05}, {"overlap-2": -0.05}):
        assert slots_of(sweep, run(sweep, gains)) == slots
    # what has a trial stays when evidence is recorded anew
    other = evidence(replace(PIPELINE, of_step={"all-gather": 0.9}), job_ids=("9",))
    assert {*slots_of(sweep, [*done, other]).values()} == {*slots.values()}
    assert sweep.decide([*done, other]).due == ()
    (cut,) = (each for each in notes_of(sweep, done) if each.startswith("wave2: "))
    assert cut == "wave2: cut at 3 slots: ag-1g, ag-2g, unheard-of, ragged-off"


def test_without_a_record_the_declared_order_is_run() -> None:
    sweep = ordered()
    lost = evidence(None, status=TrialStatus.DROPPED, is_read=False, reason="out of memory")
    due = {each.profile.id for each in sweep.decide([lost]).due}
    assert {"ag-1g", "ag-2g", "permute-8g"} < due
    assert any(f"evidence run {RUN.id}: out of memory" in e for e in notes_of(sweep, [lost]))


def test_what_does_nothing_to_the_program_takes_no_slot() -> None:
    own = rule(slots=2, candidates=(profile("rs-1g", f"--{RS}={GIB}"), CANDIDATES[0]))
    sweep = ordered(own, context=Context())
    due = sweep.decide([evidence()]).due
    assert {each.arm for each in due if each.stage == "wave2"} == {BASELINE.id, "ag-1g"}
    assert "left out: rs-1g" in sentence(sweep.state([evidence()]).arms.messages[-1])
    # a trace alone names no collective, and nothing is guessed
    traced = evidence(replace(PIPELINE, kinds=None))
    assert "rs-1g" in {each.profile.id for each in sweep.decide([traced]).due}
    # nor has a value that is deployed already
    deployed = Context(deployed=parse_flags(f"--{AG}={GIB}"))
    sweep = ordered(rule(candidates=CANDIDATES[:2], evidence=False), context=deployed)
    assert [*slots_of(sweep, run(sweep)).values()] == ["ag-2g"]


def test_every_candidate_of_the_catalog_says_what_it_acts_on_or_is_known_not_to() -> None:
    named = [each for each in load().entries if each.status == "candidate" and each.values]
    silent = {each.slug for each in named if not each.aims}
    assert silent == {"mem"}  # the size of a pool shows in no step


AR = "xla_gpu_all_reduce_combine_threshold_bytes"
SWITCH = "xla_gpu_enable_while_loop_double_buffering"
DOUBLED = tuple(str(1 << at) for at in range(24, 31))
RULES = Search(space={AR: DOUBLED, AG: DOUBLED, SWITCH: ("false", "true")}, slots=36)


def gain(name: str) -> float:
    """What a candidate is worth: +3 % at one threshold, +1 % at another, -1 % of the switch."""
    point = RULES.points_by_id[name]
    first = 0.03 * math.exp(-0.5 * (point[0] - 4) ** 2) if point[0] >= 0 else 0.0
    return first + 0.01 * (point[1] == 1) - 0.01 * (point[2] == 1)


class Hidden(Machine):
    """A machine on which values of the space gain."""

    def effect(self, name: str, effects: Mapping[str, float]) -> float:
        return (
            math.log1p(gain(name)) if name in RULES.points_by_id else super().effect(name, effects)
        )


def searching(count: int = 6, **changes: Any) -> TuningStudy:
    return turning(count, **({"derived": (RULES,)} | changes))


def asked(done: Sequence[TrialResult]) -> list[list[str]]:
    """Return the candidates of each round."""
    rotations = [each.trial.rotation for each in done if each.trial.stage == TURNS]
    every = [[e.id for e in each.spec.programs] for each in rotations if each]
    found = [[name for name in names if name in RULES.points_by_id] for names in every]
    return [each for each in found if each]


def test_three_rounds_find_what_jobs_then_prove() -> None:
    sweep = searching(rotation=RotationRule(is_usual=True))
    assert sweep.outlook(()).left == 1 + 1 + 3 + 22
    done = history(Hidden(), of=sweep)
    rounds = asked(done)
    assert [len(each) for each in rounds] == [12, 12, 12]
    assert len({name for each in rounds for name in each}) == 36
    values = [sum(map(gain, each)) / len(each) for each in rounds]
    assert values[0] < values[1], "the second round knows what the first one measured"
    found = sweep.decide(done).conclusion
    assert (found.complete, found.alpha) == (True, 0.05)
    best = found.verdicts[0]
    assert best.kind is VerdictKind.FASTER
    assert gain(best.arm) > 0.035
    # rounds ranked it: only ordinary jobs count
    deciding = [each for each in done if each.trial.block and each.trial.arm == best.arm]
    assert best.n == len(deciding) >= 3
    (slot,) = (e for e in sweep.state(done).arms.slots.values() if e.id == best.arm)
    assert "wave4" in sentence(slot.origin)
    assert TuningStudy.from_json(sweep.to_json()) == sweep
    named = RULES.find("arctb-1g+ewldb-on")
    assert named is not None
    assert [str(each) for each in named.flags] == [f"--{AR}={1 << 30}", f"--{SWITCH}=true"]
    assert RULES.find("arctb-3m") is None
    assert (len(RULES.points_by_id), len(RULES.singles)) == (count_points((7, 7, 2)), 16)


MANY = {f"xla_f{at}": tuple(map(str, range(31))) for at in range(8)}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: study(derived=(Stacks(wave="wave1"),)), "derived from the waves"),
        (lambda: study(derived=(Stacks(), Stacks(slots=2))), "two rules of"),
        (lambda: study(selected=frozenset({"stack-9"})), "stack-9"),
        (lambda: Stacks(slots=0), "slots is 0"),
        (lambda: Around(ladders={"--xla_a": ("1", "2")}), "without dashes"),
        (lambda: Around(ladders={"xla_a": ("1", "1")}), "different values"),
        (lambda: ordered(rule(slots=60)), "the budget is 60"),
        (lambda: Search(space={"NCCL_PROTO": ("LL",)}), "no option of a comp"),
        (lambda: Search(space={AR: ("1", "2")}), "2 candidates in 3"),
        (lambda: Search(space=MANY), "at most 20000"),
        (lambda: Search(space={AR: ("a_b", "a-b", "c")}), "have one name"),
    ],
)
def test_rules_that_nothing_can_come_of(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


def test_a_search_needs_jobs_behind_its_rounds_and_none_for_its_candidates() -> None:
    assert isinstance(searching(0, budget=12).layout, Refusal)
    assert isinstance(searching(0, budget=26).layout, Plan)
    # it is not worth less than jobs: no job can search
    assert searching(0, rotation=replace(RULE, must_save=True)).rotates
    assert isinstance(searching(6, derived=(replace(RULES, slots=90),)).layout, Plan)


def test_profiles_that_stay_jobs_are_ranked_beside_candidates_and_alone_without_a_step() -> None:
    sweep = searching(profiles=(NCCL, *searching().profiles[:5]))
    found = sweep.decide(history(Hidden({"channels": 0.05}), of=sweep)).conclusion
    assert found.winner
    assert found.winner.arm == "channels"
    assert {*found.tuning.finalists} & {*RULES.points_by_id}
    sweep = searching(derived=(RULES, Stacks(wave="wave5", slots=2)))
    done = history(Hidden(finds=False), of=sweep)
    assert (asked(done), sweep.decide(done).conclusion.complete) == ([], True)
    # a stack of a later wave may hold what was found
    done = history(Hidden({"p3": 0.03}), of=sweep)
    assert [len(each) for each in asked(done)][:3] == [12, 12, 12]
    assert any("p3" in name and "ctb-" in name for name in slots_of(sweep, done).values())
