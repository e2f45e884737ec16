"""Waves that are derived from earlier ones: which profiles, when, and always the same ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import sentence, verbatim
from pytest_xlatune.model.profile import BASELINE_ID, profile
from pytest_xlatune.model.result import TrialResult, TrialStatus, VerdictKind
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.report.lines import paragraph, words
from pytest_xlatune.stats.design import Plan
from pytest_xlatune.studies import Ask, Question, all_selected
from pytest_xlatune.studies.derived import Around, Leader, Stacks
from pytest_xlatune.studies.tuning import TuningStudy
from tests.helpers.history import history, measured, noise
from tests.helpers.knobs import AG, CELL, GIB, LIMIT, SINGLES, cluster, effect, of_wave

LADDER: dict[str, tuple[str, ...]] = {
    AG: (str(GIB >> 1), str(GIB), str(2 * GIB)),
    LIMIT: ("2", "4", "8"),
}


def study(**changes: Any) -> TuningStudy:
    values: dict[str, Any] = {
        "cell": CELL,
        "profiles": SINGLES,
        "derived": (Stacks(slots=4), Around(slots=3, ladders=LADDER)),
        "budget": 60,
    } | changes
    return TuningStudy(**values)


def test_the_waves_run_in_order_and_the_stacks_are_of_what_led() -> None:
    sweep = study()
    done = history(cluster(sigma=0.00001), of=sweep, one_by_one=True)
    groups = list(dict.fromkeys(each.trial.stage for each in done))
    assert groups[:3] == ["wave2", "wave3", "wave4"]
    # pairs and triples in turn; overlap-2 and overlap-4 are two values of one flag
    assert list(sweep.state(done).ranked.arms.slots.items())[:4] == [
        (f"stack-{at}", next(each for each in sweep.decide(done).profiles if each.id == name))
        for at, name in enumerate(
            (
                "overlap-2+ag-1g",
                "overlap-2+ag-1g+double",
                "overlap-2+double",
                "overlap-2+ag-1g+tree",
            ),
            start=1,
        )
    ]
    assert of_wave(done, "wave3") == {each.id for each in sweep.decide(done).profiles[10:14]}
    best = sweep.state(done).ranked.arms.slots["stack-1"]
    assert str(best.flags[0]) == f"--{LIMIT}=2"
    told = {"overlap-2": "+3.4 %", "ag-1g": "+2.7 %"}
    assert all(f"{arm} {gain}" in sentence(best.origin) for arm, gain in told.items())
    conclusion = sweep.decide(done).conclusion
    assert conclusion.complete
    # the best stack stands in the blocks with its best part, and this with its own
    assert conclusion.tuning.finalists[0] == "overlap-2+ag-1g+double"
    assert {"overlap-2"} < set(conclusion.tuning.finalists)
    assert {conclusion.verdicts[at].kind for at in range(3)} == {VerdictKind.FASTER}


def test_the_values_are_those_beside_the_leaders() -> None:
    sweep = study()
    done = history(cluster(), of=sweep, one_by_one=True)
    names = [
        each.id
        for name, each in sweep.state(done).ranked.arms.slots.items()
        if name.startswith("around")
    ]
    # of the stack that led: its first setting goes up, then the second up and down
    leader = "overlap-2+ag-1g+double"
    assert names[0].startswith(leader)
    for name in names:
        found = next(each for each in sweep.decide(done).profiles if each.id == name)
        assert found.origin is not None
        assert (found.wave, found.origin.text) == (
            "wave4",
            "beside {setting} of {leader} in the screen",
        )
    assert len(names) == 3


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
    lead = profile(
        "lead",
        "--xla_gpu_enable_pipelined_all_gather=true --xla_a=1",
        overrides={"microbatches": "8"},
    )
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
    assert not sweep.state(done).ranked.arms.slots
    assert not sweep.decide(done).conclusion.complete
    # what is left: a baseline, two waves with theirs, the blocks
    layout = sweep.layout
    assert isinstance(layout, Plan)
    assert sweep.outlook(done).left == 1 + (4 + 1) + (3 + 1) + layout.in_blocks
    assert sweep.outlook([]).left == layout.jobs


def test_where_nothing_leads_nothing_is_derived() -> None:
    sweep = study()
    done = history(cluster({}, sigma=0.0001), of=sweep, one_by_one=True)
    assert not sweep.state(done).ranked.arms.slots
    assert {each.trial.stage for each in done if each.trial.is_screened} == {"wave2"}
    assert sweep.decide(done).conclusion.complete


def test_a_single_leader_has_values_beside_it_and_no_stack() -> None:
    sweep = study()
    done = history(cluster({"overlap-4": 0.03}, sigma=0.0001), of=sweep, one_by_one=True)
    assert list(sweep.state(done).ranked.arms.slots) == ["around-1"]
    # overlap-2 is declared: the value below is measured already
    assert sweep.state(done).ranked.arms.slots["around-1"].id == "overlap-4.8"


def test_what_was_dropped_or_trains_differently_leads_nothing() -> None:
    answer = cluster()

    def odd(trial: Trial) -> TrialResult:
        if trial.profile.id == "overlap-2":
            return TrialResult(
                trial=trial, status=TrialStatus.DROPPED, reason=verbatim("out of memory")
            )
        if trial.profile.id == "ag-1g":
            return measured(trial, 7.1, loss=3.0)
        return answer(trial)

    sweep = study()
    done = history(odd, of=sweep, one_by_one=True)
    left = {"overlap-4", "double", "tree"}
    assert {name for each in of_wave(done, "wave3") for name in each.split("+")} == left


def test_repeats_of_what_is_deployed_lead_nothing() -> None:
    sweep, answer = study(), cluster()

    def lucky(trial: Trial) -> TrialResult:
        return measured(trial, 7.2) if trial.profile.id == "default" else answer(trial)

    assert not any(
        "default" in each for each in of_wave(history(lucky, of=sweep, one_by_one=True), "wave3")
    )


def test_a_declared_stack_is_not_made_again() -> None:
    both = profile("both", f"--{AG}={GIB} --{LIMIT}=2", wave="wave5")
    sweep = study(profiles=(*SINGLES, both))
    done = history(cluster(), of=sweep, one_by_one=True, stop="wave4")
    assert "overlap-2+ag-1g" not in of_wave(done, "wave3")
    assert len(of_wave(done, "wave3")) == 4


def test_the_same_history_gives_the_same_profiles_in_any_order() -> None:
    done = history(cluster(), of=study(), one_by_one=True)
    names = [each.id for each in study().decide(done).profiles]
    proposed = study().decide(done[:-3]).due
    for seed in range(5):
        shuffled = random.Random(seed).sample(done, len(done))
        assert [each.id for each in study().decide(shuffled + done[:4]).profiles] == names
        assert study().decide(shuffled).conclusion == study().decide(done).conclusion
    for cut in range(len(done)):
        again = TuningStudy.from_json(study().to_json())
        # each trial is what the study asks for next, in every process
        assert again.decide(done[:cut]).due[0] == done[cut].trial
    assert proposed == study().decide(done[:-3]).due


def test_measured_stacks_stay_when_the_screen_is_read_anew() -> None:
    sweep, answer = study(), cluster()
    done = history(answer, of=sweep, one_by_one=True, stop="wave4")
    stacks = of_wave(done, "wave3")
    # a new log reader scores one single differently: another favourite, the same stacks
    other = [measured(r.trial, 6.9) if r.trial.profile.id == "ag-1g" else r for r in done]
    assert {e.id for n, e in sweep.state(other).ranked.arms.slots.items() if "stack" in n} == stacks
    # and a single that is declared later is screened first, the stacks as they are
    more = study(profiles=(*SINGLES, profile("late", "--xla_gpu_late=1")))
    assert [t.profile.id for t in more.decide(done).due] == ["late"]
    assert {e.id for n, e in more.state(done).ranked.arms.slots.items() if "stack" in n} == stacks
    conclusion = more.decide(done).conclusion
    assert {conclusion.verdict(each).kind for each in stacks} == {VerdictKind.SCREENED}  # type: ignore[union-attr]


def test_freed_slots_are_filled_by_the_same_rule() -> None:
    sweep, answer = study(), cluster(sigma=0.0001)
    planned = [
        *history(answer, of=sweep, one_by_one=True, stop="wave3"),
        *(
            TrialResult(trial=trial, status=TrialStatus.PLANNED)
            for trial in sweep.decide(history(answer, of=sweep, one_by_one=True, stop="wave3")).due
            if trial.profile.id in {"overlap-2+ag-1g+double", BASELINE_ID}
        ),
    ]
    assert "overlap-2+ag-1g+double" in {
        each.id for each in sweep.state(planned).ranked.arms.slots.values()
    }
    assert len([each for each in sweep.state(planned).ranked.arms.slots if "stack" in each]) == 4


def test_a_selected_slot_brings_the_waves_that_it_reads() -> None:
    answer = cluster(sigma=0.0001)
    alone = study(selected=frozenset({"stack-2"}), confirm=False)
    done = history(answer, of=alone, one_by_one=True)
    assert of_wave(done, "wave2") == {each.id for each in SINGLES}
    assert of_wave(done, "wave3") == {"overlap-2+ag-1g+double"}
    # after a session of wave 2 nothing of it is measured again
    singles = frozenset(each.id for each in SINGLES)
    before = history(answer, of=study(selected=singles, confirm=False), one_by_one=True)
    assert {trial.stage for trial in alone.decide(before).due} == {"wave3"}
    # wave 4 reads wave 3, so all its slots come along
    later = history(
        answer, of=study(selected=frozenset({"around-1"}), confirm=False), one_by_one=True
    )
    assert len(of_wave(later, "wave3")) == 4
    assert len(of_wave(later, "wave4")) == 1


def test_a_selection_without_slots_leaves_the_derived_waves_alone() -> None:
    some = study(selected=frozenset({"tree", "double"}), confirm=False)
    assert of_wave(history(cluster(), of=some, one_by_one=True), "wave3") == set()
    every = study(selected=frozenset(each.id for each in SINGLES))
    assert all_selected(every) == study(), "it has no slots, and is not the whole"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"derived": (Stacks(wave="wave1"),)}, "derived from the waves", id="1"),
        pytest.param({"derived": (Stacks(), Stacks(slots=2))}, "two rules of", id="twice"),
        pytest.param(
            {"profiles": (*SINGLES, profile("stack-1", "--xla_a=1"))}, "name of a slot", id="name"
        ),
        pytest.param({"selected": frozenset({"stack-9"})}, "stack-9", id="no such slot"),
    ],
)
def test_rules_that_nothing_can_come_of(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        study(**changes)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        pytest.param(lambda: Stacks(slots=0), "0 slots", id="no slot"),
        pytest.param(lambda: Stacks(of=4), "expected 2 or 3", id="four"),
        pytest.param(lambda: Around(ladders={}), "no ladder", id="no ladder"),
        pytest.param(lambda: Around(ladders={"--xla_a": ("1", "2")}), "without dashes", id="dash"),
        pytest.param(lambda: Around(ladders={"xla_a": ("1", "1")}), "different values", id="same"),
    ],
)
def test_malformed_rules(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


def test_what_a_later_wave_has_measured_is_no_longer_left() -> None:
    """It waits behind slots that nothing fills yet, but was asked for alone before."""
    late = tuple(profile(f"late-{at}", f"--xla_gpu_late={at}", wave="wave9") for at in range(3))
    whole = study(profiles=(*SINGLES, *late))
    alone = replace(whole, selected=frozenset(each.id for each in late), confirm=False)
    done = history(cluster(), of=alone, one_by_one=True)
    assert {each.trial.stage for each in done} == {"wave9"}
    assert whole.outlook([]).left - whole.outlook(done).left == len(done)


def test_a_selection_says_what_a_screened_figure_rests_on_and_else_shows_that_of_the_report() -> (
    None
):
    """The line of the screen goes through all waves, and a test's answer waits for its own."""
    late = tuple(profile(f"late-{at}", f"--xla_gpu_late={at}", wave="wave9") for at in range(3))
    whole = study(profiles=(*SINGLES, *late))
    done = history(cluster(), of=whole, one_by_one=True)
    report = whole.decide(done).conclusion
    differ = 0
    for each in (*SINGLES, *late):
        alone = replace(whole, selected=frozenset({each.id}), confirm=False)
        question = Question(about=Ask.SCREENED, name=each.id, wave=each.wave)
        answer, other = alone.answer(done, question), whole.answer(done, question)
        assert answer == other, "a selection changes no figure"
        assert answer.verdict is not None
        said = words(answer.verdict)
        if each.wave == "wave9":
            # its figures are at the level of the baselines so far; a report knows those of blocks
            known = report.verdict(each.id)
            assert known is not None
            level = replace(known, tgs=answer.verdict.tgs, step_s=answer.verdict.step_s)
            assert answer.verdict == level, "of the last wave"
            assert "up to" not in said
        else:
            assert answer.verdict.up_to == each.wave == "wave2"
            assert said.endswith((" up to wave2 (n=1)", " up to wave2, very likely slower (1 run)"))
            assert "a report uses all trials." in paragraph(answer.verdict)
            of_report = report.verdict(each.id)
            assert of_report is not None
            differ += answer.verdict.delta != of_report.delta
    assert differ, "else nothing was to be said"
    alone = replace(study(derived=()), confirm=False)
    question = Question(about=Ask.SCREENED, name="tree", wave="wave2")
    first = alone.answer(history(cluster(), of=alone, one_by_one=True), question)
    assert first.verdict is not None
    assert not first.verdict.up_to, "one wave is all of them"


AGAINST = {"ag-1g": 0.04, "double": 0.03, "tree": 0.02}
NOISE = {"ag-1g": -0.006, "double": 0.006}  # the screen puts double first


def working_against(trial: Trial) -> TrialResult:
    """Answer where ag-1g and double together gain less than ag-1g alone."""
    value = effect(trial.profile, AGAINST)
    if {"ag-1g", "double"} <= {*trial.profile.id.split("+")}:
        value -= 0.035
    off = NOISE.get(trial.profile.id, 0.0) if trial.is_screened else 0.0
    return measured(trial, 6.9 + value + off + noise(trial, 0.0005))


def test_a_stack_that_works_against_itself_does_not_win() -> None:
    sweep = study(derived=(Stacks(slots=4),))
    done = history(working_against, of=sweep, one_by_one=True)
    assert {"ag-1g+double", "ag-1g+tree", "double+tree"} <= of_wave(done, "wave3")
    conclusion = sweep.decide(done).conclusion
    assert conclusion.complete
    assert conclusion.winner is not None
    assert conclusion.winner.arm == "ag-1g+tree"
