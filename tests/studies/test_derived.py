"""Waves that are derived from earlier ones: which profiles, when, and always the same ones."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import BASELINE_ID, Profile, profile
from pytest_xlatune.model.result import TrialResult, TrialStatus, VerdictKind
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.report.lines import paragraph, words
from pytest_xlatune.stats.design import Plan
from pytest_xlatune.studies import Ask, Question, all_selected
from pytest_xlatune.studies.derived import Around, Leader, Stacks
from pytest_xlatune.studies.tuning import TuningStudy
from tests.helpers.history import Answer, arm, changed, failing, history, measured, noise
from tests.helpers.knobs import AG, CELL, GIB, LIMIT, SINGLES, cluster, effect, of_wave, slots_of

LADDER: dict[str, tuple[str, ...]] = {
    AG: (str(GIB >> 1), str(GIB), str(2 * GIB)),
    LIMIT: ("2", "4", "8"),
}
QUIET = cluster(sigma=0.0001)
BEST = "overlap-2+ag-1g+double"
LATE = tuple(profile(f"late-{at}", f"--xla_gpu_late={at}", wave="wave9") for at in range(3))


def study(**changes: Any) -> TuningStudy:
    values: dict[str, Any] = {
        "cell": CELL,
        "profiles": SINGLES,
        "derived": (Stacks(slots=4), Around(slots=3, ladders=LADDER)),
        "budget": 60,
    } | changes
    return TuningStudy(**values)


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
    first = sweep.state(done).ranked.arms.slots["stack-1"]
    assert str(first.flags[0]) == f"--{LIMIT}=2"
    for words_of in ("overlap-2 +3.4 %", "ag-1g +2.7 %"):
        assert words_of in sentence(first.origin)
    # of the stack that led: its first setting goes up, then the second up and down
    around = [sweep.state(done).ranked.arms.slots[f"around-{at}"] for at in (1, 2, 3)]
    assert all(each.id.startswith(BEST) for each in around)
    text = "beside {setting} of {leader} in the screen"
    assert {(e.wave, e.origin and e.origin.text) for e in around} == {("wave4", text)}
    conclusion = sweep.decide(done).conclusion
    assert conclusion.complete
    # the best stack stands in the blocks with its best part, and this with its own
    assert conclusion.tuning.finalists[0] == BEST
    assert {"overlap-2"} < set(conclusion.tuning.finalists)
    assert {conclusion.verdicts[at].kind for at in range(3)} == {VerdictKind.FASTER}


@pytest.mark.parametrize(
    ("value", "beside"),
    [
        pytest.param("1", ["2"], id="the first has one neighbour"),
        pytest.param("2", ["4", "1"], id="up comes first"),
        pytest.param("4", ["2"], id="so has the last"),
        pytest.param("3", ["4", "2"], id="between two rungs"),
        pytest.param("9", ["4"], id="above all"),
        pytest.param("auto", [], id="no place on the ladder"),
    ],
)
def test_neighbours_on_a_ladder(value: str, beside: list[str]) -> None:
    leader = Leader(profile=profile("lead", env={"X": value}), estimate=0.02)
    made = list(Around(ladders={"X": ("1", "2", "4")}).make([leader], pool=[leader.profile]))
    assert [each.env["X"] for each in made] == beside
    assert [each.id for each in made] == [f"lead.{each}" for each in beside]


def test_a_ladder_reaches_flags_by_either_name_and_overrides() -> None:
    flags = "--xla_gpu_enable_pipelined_all_gather=true --xla_a=1"
    lead = profile("lead", flags, overrides={"microbatches": "8"})
    ladders: dict[str, tuple[str, ...]] = {
        "xla_gpu_enable_pipelined_all_gather": ("true", "false"),
        "microbatches": ("4", "8", "16"),
    }
    made = list(Around(ladders=ladders).make([Leader(profile=lead, estimate=0.1)], pool=[lead]))
    assert [each.settings_text for each in made] == [
        "--xla_gpu_enable_pipelined_all_gather=false --xla_a=1 microbatches=8",
        "--xla_gpu_enable_pipelined_all_gather=true --xla_a=1 microbatches=16",
        "--xla_gpu_enable_pipelined_all_gather=true --xla_a=1 microbatches=4",
    ]
    # the value alone would not say which setting it is of
    assert [each.id for each in made] == ["lead.pag-false", "lead.m-16", "lead.m-4"]


def test_long_names_are_cut_and_stay_apart() -> None:
    long = [profile(f"{letter}{'x' * 50}", f"--xla_{letter}=1") for letter in "abc"]
    leaders = [Leader(profile=each, estimate=0.01) for each in long]
    made = list(Stacks(of=3).make(leaders, pool=long))
    assert len({each.id for each in made}) == 4
    assert max(len(each.id) for each in made) == 64
    kept = list(Stacks(of=3).find_planned({each.id: each for each in made}, pool=long))
    assert {each.id for each in kept} == {each.id for each in made}


def test_nothing_is_derived_before_the_earlier_waves_are_over() -> None:
    sweep, answer = study(), cluster()
    queue = sweep.decide([]).due
    assert {trial.stage for trial in queue} == {"wave2"}
    done = [answer(trial) for trial in queue[:-1]]
    assert sweep.decide(done).due == queue[-1:]
    assert not slots_of(sweep, done)
    # what is left: a baseline, two waves with theirs, the blocks
    layout = sweep.layout
    assert isinstance(layout, Plan)
    assert sweep.outlook(done).left == 1 + (4 + 1) + (3 + 1) + layout.in_blocks
    assert sweep.outlook([]).left == layout.jobs


ODD = changed(failing(cluster(), arm("overlap-2"), TrialStatus.DROPPED), arm("ag-1g"), loss=3.0)
BOTH = profile("both", f"--{AG}={GIB} --{LIMIT}=2", wave="wave5")


@pytest.mark.parametrize(
    ("changes", "run", "stacked", "count"),
    [
        pytest.param({}, cluster({}, sigma=0.0001), set(), 0, id="nothing leads"),
        pytest.param({}, cluster({"overlap-4": 0.03}, sigma=0.0001), set(), 1,
                     id="a single leader has a value beside it, where none is declared"),
        pytest.param({}, ODD, {"overlap-4", "double", "tree"}, 7,
                     id="what was dropped or trains differently leads nothing"),
        pytest.param({}, changed(cluster(), arm("default"), value=7.2),
                     {"overlap-2", "overlap-4", "ag-1g", "double"}, 7,
                     id="repeats of what is deployed lead nothing"),
        pytest.param({"profiles": (*SINGLES, BOTH)}, cluster(),
                     {"overlap-2", "overlap-4", "ag-1g", "double"}, 7,
                     id="a declared stack is not made again"),
    ],
)  # fmt: skip
def test_what_leads(changes: dict[str, Any], run: Answer, stacked: set[str], count: int) -> None:
    sweep = study(**changes)
    done = one_by_one(sweep, run)
    assert {part for each in of_wave(done, "wave3") for part in each.split("+")} == stacked
    assert len(slots_of(sweep, done)) == count
    assert sweep.decide(done).conclusion.complete
    if count == 1:
        assert slots_of(sweep, done) == {"around-1": "overlap-4.8"}
    if changes:
        assert "overlap-2+ag-1g" not in of_wave(done, "wave3")


def test_the_same_history_gives_the_same_profiles_in_any_order() -> None:
    done = one_by_one(study(), cluster())
    names = [each.id for each in study().decide(done).profiles]
    for seed in range(5):
        shuffled = random.Random(seed).sample(done, len(done))
        assert [each.id for each in study().decide(shuffled + done[:4]).profiles] == names
        assert study().decide(shuffled).conclusion == study().decide(done).conclusion


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


def test_freed_slots_are_filled_by_the_same_rule() -> None:
    sweep = study()
    done = one_by_one(sweep, QUIET, stop="wave3")
    due = [each for each in sweep.decide(done).due if each.arm in {BEST, BASELINE_ID}]
    planned = [*done, *(TrialResult(trial=each, status=TrialStatus.PLANNED) for each in due)]
    stacks = {name: e for name, e in slots_of(sweep, planned).items() if "stack" in name}
    assert len(stacks) == 4
    assert BEST in stacks.values()


def test_a_selected_slot_brings_the_waves_that_it_reads() -> None:
    alone = study(selected=frozenset({"stack-2"}), confirm=False)
    done = one_by_one(alone, QUIET)
    assert of_wave(done, "wave2") == {each.id for each in SINGLES}
    assert of_wave(done, "wave3") == {BEST}
    # after a session of wave 2 nothing of it is measured again
    singles = frozenset(each.id for each in SINGLES)
    before = one_by_one(study(selected=singles, confirm=False), QUIET)
    assert {trial.stage for trial in alone.decide(before).due} == {"wave3"}
    # wave 4 reads wave 3, so all its slots come along
    later = one_by_one(study(selected=frozenset({"around-1"}), confirm=False), QUIET)
    assert [len(of_wave(later, wave)) for wave in ("wave3", "wave4")] == [4, 1]
    # a selection without slots leaves the derived waves alone
    some = study(selected=frozenset({"tree", "double"}), confirm=False)
    assert of_wave(one_by_one(some, cluster()), "wave3") == set()
    assert all_selected(study(selected=singles)) == study(), "it has no slots, and is not the whole"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param({"derived": (Stacks(wave="wave1"),)}, "derived from the waves", id="first"),
        pytest.param({"derived": (Stacks(), Stacks(slots=2))}, "two rules of", id="twice"),
        pytest.param({"profiles": (*SINGLES, profile("stack-1", "--xla_a=1"))}, "name of a slot",
                     id="a slot's name"),
        pytest.param({"selected": frozenset({"stack-9"})}, "stack-9", id="no such slot"),
    ],
)  # fmt: skip
def test_rules_that_nothing_can_come_of(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        study(**changes)


@pytest.mark.parametrize(
    ("rule", "given", "said"),
    [
        (Stacks, {"slots": 0}, "0 slots"),
        (Stacks, {"of": 4}, "expected 2 or 3"),
        (Around, {"ladders": {}}, "no ladder"),
        (Around, {"ladders": {"--xla_a": ("1", "2")}}, "without dashes"),
        (Around, {"ladders": {"xla_a": ("1", "1")}}, "different values"),
    ],
)
def test_malformed_rules(rule: Any, given: Mapping[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        rule(**given)


def test_what_a_later_wave_has_measured_is_no_longer_left() -> None:
    """It waits behind slots that nothing fills yet, but was asked for alone before."""
    whole = study(profiles=(*SINGLES, *LATE))
    alone = replace(whole, selected=frozenset(each.id for each in LATE), confirm=False)
    done = one_by_one(alone, cluster())
    assert {each.trial.stage for each in done} == {"wave9"}
    assert whole.outlook([]).left - whole.outlook(done).left == len(done)


@pytest.mark.parametrize("each", [SINGLES[0], SINGLES[4], LATE[0]], ids=lambda each: each.id)
def test_a_selection_says_what_a_screened_figure_rests_on_and_changes_none(each: Profile) -> None:
    """The line of the screen goes through all waves, and a test's answer waits for its own."""
    whole = study(profiles=(*SINGLES, *LATE))
    done = one_by_one(whole, cluster())
    of_report = whole.decide(done).conclusion.verdict(each.id)
    alone = replace(whole, selected=frozenset({each.id}), confirm=False)
    question = Question(about=Ask.SCREENED, name=each.id, wave=each.wave)
    found = alone.answer(done, question).verdict
    assert found == whole.answer(done, question).verdict
    assert found is not None
    assert of_report is not None
    if each.wave == "wave9":
        # its figures are at the level of the baselines so far; a report knows those of blocks
        assert found == replace(of_report, tgs=found.tgs, step_s=found.step_s)
    else:
        assert found.up_to == "wave2"
        assert " up to wave2" in words(found)
        assert "a report uses all trials." in paragraph(found)
        assert found.delta != of_report.delta


def working_against(trial: Trial) -> TrialResult:
    """Answer where ag-1g and double together gain less than ag-1g alone."""
    value = effect(trial.profile, {"ag-1g": 0.04, "double": 0.03, "tree": 0.02})
    if {"ag-1g", "double"} <= {*trial.profile.id.split("+")}:
        value -= 0.035
    if trial.is_screened:  # the screen puts double first
        value += {"ag-1g": -0.006, "double": 0.006}.get(trial.profile.id, 0.0)
    return measured(trial, 6.9 + value + noise(trial, 0.0005))


def test_a_stack_that_works_against_itself_does_not_win() -> None:
    sweep = study(derived=(Stacks(slots=4),))
    done = one_by_one(sweep, working_against)
    assert {"ag-1g+double", "ag-1g+tree", "double+tree"} <= of_wave(done, "wave3")
    conclusion = sweep.decide(done).conclusion
    assert conclusion.complete
    assert conclusion.winner is not None
    assert conclusion.winner.arm == "ag-1g+tree"
