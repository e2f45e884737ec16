"""Waves that are derived from earlier ones: which profiles, when, and always the same ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import profile
from pytest_xlatune.model.result import TrialResult, TrialStatus, VerdictKind
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.studies import all_selected
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
        pytest.param("2", ["4", "1"], id="up comes first"),
        pytest.param("9", ["4"], id="above all"),
        pytest.param("auto", [], id="no place on the ladder"),
    ],
)
def test_neighbours_on_a_ladder(value: str, beside: list[str]) -> None:
    leader = Leader(profile=profile("lead", env={"X": value}), estimate=0.02)
    made = list(Around(ladders={"X": ("1", "2", "4")}).make([leader], pool=[leader.profile]))
    assert [each.env["X"] for each in made] == beside
    assert [each.id for each in made] == [f"lead.{each}" for each in beside]
    lead = profile("lead", overrides={"m": "8"})
    ladder: dict[str, tuple[str, ...]] = {"m": ("8", "16")}
    (more,) = Around(ladders=ladder).make([Leader(profile=lead, estimate=0.02)], pool=[lead])
    assert more.overrides == {"m": "16"}


ODD = changed(failing(cluster(), arm("overlap-2"), TrialStatus.DROPPED), arm("ag-1g"), loss=3.0)


@pytest.mark.parametrize(
    ("changes", "run", "stacked", "count"),
    [
        pytest.param({}, cluster({}, sigma=0.0001), set(), 0, id="nothing leads"),
        pytest.param({}, cluster({"overlap-4": 0.03}, sigma=0.0001), set(), 1,
                     id="a single leader has a value beside it, where none is declared"),
        pytest.param({}, ODD, {"overlap-4", "double", "tree"}, 7,
                     id="what was dropped or trains differently leads nothing"),
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
    ("make", "said"),
    [
        (lambda: study(derived=(Stacks(wave="wave1"),)), "derived from the waves"),
        (lambda: study(derived=(Stacks(), Stacks(slots=2))), "two rules of"),
        (lambda: study(selected=frozenset({"stack-9"})), "stack-9"),
        (lambda: Stacks(slots=0), "0 slots"),
        (lambda: Stacks(of=4), "expected 2 or 3"),
        (lambda: Around(ladders={"--xla_a": ("1", "2")}), "without dashes"),
        (lambda: Around(ladders={"xla_a": ("1", "1")}), "different values"),
    ],
)
def test_rules_that_nothing_can_come_of(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


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
