"""Waves of single settings that an evidence run orders: which, in which order, always the same."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.catalog.context import Context
from pytest_xlatune.catalog.entries import load
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import MessageCode, sentence
from pytest_xlatune.model.profile import profile
from pytest_xlatune.model.result import (
    TrialStatus,
)
from pytest_xlatune.model.shares import Shares
from pytest_xlatune.studies.derived import NO_AIM, Stacks, choice_notes, order_candidates
from pytest_xlatune.studies.tuning import TuningStudy
from tests.helpers.candidates import (
    AIMS,
    CANDIDATES,
    PIPELINE,
    RUN,
    evidence,
    ids,
    led,
    rule,
    run,
    study,
)
from tests.helpers.history import CELL
from tests.helpers.knobs import cluster, of_wave


def test_slots_go_where_time_is_lost_and_no_part_takes_them_all() -> None:
    order = order_candidates(rule(), evidence())
    assert ids(order) == [
        "overlap-2",  # 24 % of all communication
        "permute-8g",  # 20 %
        "triton-off",  # 70 % of computation, of which a tenth counts
        "ag-1g",  # 3 %
        "ag-2g",  # 3 %, halved: its part has a place already
        "unheard-of",
        "ragged-off",  # last: the program has no such collective
    ]
    why = {each.profile.id: sentence(each.why) for each in order}
    assert why["permute-8g"] == "collective-permute alone, 20.0 % of a step"
    assert why["triton-off"] == "compute, 70.0 % of a step"
    assert why["ragged-off"] == "the program has no all-to-all"
    assert why["unheard-of"] == sentence(NO_AIM)


def test_many_settings_of_one_part_leave_room_for_the_others() -> None:
    many = tuple(
        profile(f"nccl-{at}", env={"NCCL_IB_QPS_PER_CONNECTION": str(at)}) for at in range(1, 9)
    )
    candidates = (*many, CANDIDATES[2])
    aims = {each.id: load().aims_of(each) for each in candidates}
    order = order_candidates(rule(candidates=candidates, aims=aims), evidence())
    assert ids(order)[1] == "permute-8g"


def test_a_collective_counts_once_beside_all_communication() -> None:
    both = CANDIDATES[0]
    aims = {both.id: ("all-gather", "communication", "copies")}
    shares = Shares(of_step={"all-gather": 0.3, "communication": 0.5, "copies": 0.1})
    (only,) = order_candidates(rule(candidates=(both,), aims=aims), evidence(shares))
    assert sentence(only.why) == "communication and copies alone, 60.0 % of a step"


@pytest.mark.parametrize(
    ("aims", "of_step", "unaimed"),
    [
        pytest.param(
            {"a": ("copies",)}, {"compute": 0.7, "copies": 0.1}, "compute", id="none aims"
        ),
        pytest.param({"a": ()}, {"idle": 0.6, "compute": 0.4}, "idle", id="idle time, and no aim"),
        pytest.param({"a": ("compute",)}, {"compute": 0.7, "idle": 0.3}, None, id="one aims at it"),
        pytest.param({"a": ("all-gather",)}, {"communication": 0.6}, None, id="a collective does"),
        pytest.param({"a": ()}, {}, None, id="no trace"),
    ],
)
def test_the_largest_part_that_no_candidate_aims_at_is_told(
    aims: dict[str, tuple[str, ...]], of_step: dict[str, float], unaimed: str | None
) -> None:
    shares = Shares(of_step=of_step, kernels={"compute": ("gemm_1",)})
    ours = rule(candidates=(profile("a", "--xla_a=1"),), aims=aims)
    seen = evidence(shares)
    told = choice_notes(ours, order_candidates(ours, seen), evidence=seen, chosen=(), refused={})
    found = [each.values for each in told if each.code is MessageCode.UNAIMED]
    assert [each["part"] for each in found] == ([unaimed] if unaimed else [])
    if unaimed == "compute":
        assert found[0]["kernels"].values["names"] == ("gemm_1",)


@pytest.mark.parametrize("shares", [None, Shares(of_step={})], ids=["no evidence", "nothing told"])
def test_without_evidence_the_declared_order_stays(shares: Shares | None) -> None:
    assert ids(order_candidates(rule(), evidence(shares))) == [each.id for each in CANDIDATES]


def test_a_dump_alone_tells_which_collectives_there_are() -> None:
    order = order_candidates(rule(), evidence(Shares(of_step={}, kinds=("all-gather",))))
    assert ids(order)[-2:] == ["permute-8g", "ragged-off"]
    assert "no trace" in sentence(order[0].why)


def test_the_baseline_is_run_for_evidence_before_the_wave_and_not_in_its_budget() -> None:
    sweep = study()
    assert sweep.decide(()).due == (RUN,)
    assert study(rule(evidence=False)).decide(()).due[0].stage == "wave2"
    done = run(sweep)
    assert [each.trial.stage for each in done].count("evidence") == 1
    assert of_wave(done, "wave2") == {"overlap-2", "permute-8g", "triton-off"}
    assert sweep.decide(done).due == ()


def test_each_process_sees_the_same_slots_whatever_the_order_of_its_history() -> None:
    sweep, done = study(), run(study())
    expected = {name: each.id for name, each in sweep.state(done).ranked.arms.slots.items()}
    assert expected == {
        "single-1": "overlap-2",
        "single-2": "permute-8g",
        "single-3": "triton-off",
    }
    again = TuningStudy.from_json(sweep.to_json())
    shuffled = random.Random(7)
    for _ in range(5):
        shuffled.shuffle(done)
        assert {
            name: each.id for name, each in again.state(done).ranked.arms.slots.items()
        } == expected


def test_scores_do_not_move_the_order() -> None:
    """The error rates rest on it: which profiles are tried knows nothing of how fast they are."""
    slots = [
        {
            name: each.id
            for name, each in study().state(run(study(), gains=gains)).ranked.arms.slots.items()
        }
        for gains in ({}, {"triton-off": 0.05}, {"overlap-2": -0.05})
    ]
    assert slots[0] == slots[1] == slots[2]


def test_what_has_a_trial_stays_when_evidence_is_recorded_anew() -> None:
    sweep = study()
    done = run(sweep)
    other = evidence(replace(PIPELINE, of_step={"all-gather": 0.9}), job_ids=("9",))
    before = [each.id for each in sweep.state(done).ranked.arms.slots.values()]
    assert {each.id for each in sweep.state([*done, other]).ranked.arms.slots.values()} == set(
        before
    )
    assert sweep.decide([*done, other]).due == ()


def test_an_evidence_run_without_a_record_leaves_the_declared_order_and_says_so() -> None:
    sweep = study()
    lost = evidence(None, status=TrialStatus.DROPPED, is_read=False, reason="out of memory")
    assert {each.profile.id for each in sweep.decide([lost]).due} > {"ag-1g", "ag-2g", "permute-8g"}
    notes = sweep.decide([lost]).conclusion.notes
    said = f"evidence run {RUN.id}: out of memory"
    assert any(said in sentence(each) for each in notes), notes


def test_evidence_that_is_not_read_yet_is_waited_for() -> None:
    unread = evidence(None, is_read=False)
    assert study().decide([unread]).due == (RUN,)


def test_the_plan_shows_the_declared_order_while_there_is_no_evidence() -> None:
    ahead = study().foreseen(())
    assert {"ag-1g", "ag-2g", "permute-8g"} < {each.profile.id for each in ahead.decide(()).due}
    (first, _) = ahead.state(()).ranked.arms.messages
    assert sentence(first) == "wave2: candidates in declared order: 1 ag-1g, 2 ag-2g, 3 permute-8g"
    assert study().foreseen([evidence()]) == study()


def test_the_reasons_are_in_the_conclusion_and_in_the_profiles() -> None:
    sweep = study(context=Context())
    done = run(sweep)
    every = map(sentence, sweep.decide(done).conclusion.notes)
    notes = [each for each in every if each.startswith("wave2: ")]
    assert [word for word in notes[0].split() if word in {each.id for each in CANDIDATES}] == [
        *("overlap-2", "permute-8g", "triton-off")
    ]
    assert "communication alone, 24.0 %" in notes[0]
    assert notes[1] == (
        "wave2: cut at 3 slots: ag-1g, ag-2g (all-gather alone, 3.0 % of a step); "
        f"unheard-of ({sentence(NO_AIM)}); ragged-off (the program has no all-to-all)"
    )
    first = sweep.state(done).ranked.arms.slots["single-1"]
    assert sentence(first.origin) == (
        "number 1 of 7 by the evidence (communication alone, 24.0 % of a step)"
    )


def test_a_candidate_that_is_declared_or_repeats_another_takes_no_slot() -> None:
    twin = profile("as-overlap", "--xla_gpu_experimental_parallel_collective_overlap_limit=2")
    deployed = profile("deployed", "--xla_gpu_autotune_level=4")
    candidates = (twin, deployed, *CANDIDATES)
    sweep = study(rule(candidates=candidates, evidence=False, slots=4), profiles=(CANDIDATES[0],))
    done = run(sweep)
    assert [each.id for each in sweep.state(done).ranked.arms.slots.values()] == [
        "as-overlap",
        "ag-2g",
        "permute-8g",
        "ragged-off",
    ]
    notes = sweep.decide(done).conclusion.notes
    for words in (
        "deployed (the same",
        "ag-1g (the sweep",
        "the same settings as as-overlap",
    ):
        assert words in sentence(notes[-1])


def test_stacks_are_of_the_singles_that_led() -> None:
    others = tuple(profile(f"other-{at}", f"--xla_gpu_knob={at}") for at in range(4))
    sweep = study(rule(), Stacks(slots=1), profiles=others)
    done = led(sweep, ["overlap-2", "permute-8g"])
    assert sweep.state(done).ranked.arms.slots["stack-1"].id == "overlap-2+permute-8g"
    assert of_wave(done, "wave3") == {"overlap-2+permute-8g"}


def test_nothing_is_stacked_while_the_singles_are_unknown() -> None:
    old = profile("old", "--xla_old=1", wave="wave1")
    sweep = study(rule(), Stacks(slots=1), profiles=(old,))
    first = sweep.decide(()).due
    assert {each.stage for each in first if each.is_screened} == {"wave1"}
    answer = cluster({})
    done = [answer(each) for each in first if each.is_screened]
    assert sweep.decide(done).due == (RUN,)
    assert sweep.state(done).ranked.arms.slots == {}


def test_a_selected_slot_alone_is_measured() -> None:
    sweep = study(selected=frozenset({"single-2"}), confirm=False)
    done = run(sweep)
    assert of_wave(done, "wave2") == {"permute-8g"}
    alone = study(profiles=CANDIDATES[:1], selected=frozenset({"ag-1g"}), confirm=False)
    assert alone.decide(()).due[0].is_screened


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: rule(slots=0), "0 slots, expected one"),
        (lambda: rule(candidates=()), "no candidate is given"),
        (lambda: rule(candidates=(*CANDIDATES, CANDIDATES[0])), "ag-1g"),
        (lambda: study(rule(candidates=(profile("single-1", "--xla_a=1"),))), "name of a slot"),
        (lambda: study(rule(slots=60)), "the budget is 60"),
    ],
    ids=["no slot", "no candidate", "an id twice", "a slot's name", "over the budget"],
)
def test_malformed_rules(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


def test_the_trace_of_the_evidence_run_is_one_more_candidate_by_one_word() -> None:
    ours = rule(pgle=True, aims=AIMS | {"pgle-profile": ("communication",)})
    path = "/shared/s/cell/baseline-deployed-e.1/pgle.pbtxt"
    order = order_candidates(ours, evidence(pgle=path))
    assert ids(order)[0] == "pgle-profile"  # of equals the first
    assert order[0].profile.shown_text == (f"--xla_gpu_pgle_profile_file_or_directory_path={path}")
    sweep = study(ours)
    assert TuningStudy.from_json(sweep.to_json()).singles == sweep.singles
    done = run(sweep, pgle=path)
    assert "pgle-profile" in of_wave(done, "wave2")
    # a trace without operations leaves its place to the next, and says so
    done = run(sweep)
    assert "pgle-profile" not in of_wave(done, "wave2")
    told = " | ".join(map(sentence, sweep.decide(done).conclusion.notes))
    assert "no pgle-profile: the trace" in told
    assert rule(candidates=(), pgle=True).fills.values["candidates"] == 1
    with pytest.raises(ConfigError, match=r"pgle=True needs the trace"):
        rule(pgle=True, evidence=False)


@pytest.mark.parametrize(
    ("stacks", "selected"),
    [
        pytest.param((), None, id="all of it"),
        pytest.param((), frozenset({"single-1"}), id="its slot"),
        pytest.param((Stacks(slots=1),), frozenset({"stack-1"}), id="a wave that reads it alone"),
    ],
)
def test_a_sweep_whose_only_candidate_waits_for_a_trace_begins_with_that_run(
    stacks: tuple[Stacks, ...], selected: frozenset[str] | None
) -> None:
    by_trace = rule(candidates=(), aims={}, slots=1, pgle=True)
    sweep = TuningStudy(cell=CELL, profiles=(), derived=(by_trace, *stacks), selected=selected)
    assert sweep.decide(()).due == sweep.outlook(()).ahead[:1] == (sweep.evidence_trial,)
