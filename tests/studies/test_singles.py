"""Waves of single settings that an evidence run orders, and the catalog's rules about them.

Which candidates take a slot, in which order, and why others do not; the same holds for stacks and
values of a ladder.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.catalog.context import Context
from pytest_xlatune.catalog.entries import load
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import MessageCode, sentence
from pytest_xlatune.model.profile import BASELINE, Profile, parse_flags, profile
from pytest_xlatune.model.result import EvidenceResult, TrialResult, TrialStatus
from pytest_xlatune.model.shares import Shares
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.studies.derived import (
    NO_AIM,
    Around,
    Singles,
    Stacks,
    choice_notes,
    order_candidates,
)
from pytest_xlatune.studies.evidence_run import EvidenceStudy
from pytest_xlatune.studies.tuning import TuningStudy
from tests.helpers.history import history, measured, noise
from tests.helpers.knobs import AG, CELL, GIB, cluster, of_wave, slots_of

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
OTHERS = tuple(profile(f"other-{at}", f"--xla_gpu_knob={at}") for at in range(4))
AIMS = {each.id: load().aims_of(each) for each in CANDIDATES}
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
    values: dict[str, Any] = {"slots": 3, "candidates": CANDIDATES, "aims": AIMS} | changes
    return Singles(**values)


def study(*rules: Singles | Stacks | Around, **changes: Any) -> TuningStudy:
    derived = rules or (rule(),)
    values: dict[str, Any] = {"cell": CELL, "profiles": (), "derived": derived, "budget": 60}
    return TuningStudy(**values | changes)


def evidence(shares: Shares | None = PIPELINE, **changes: Any) -> EvidenceResult:
    values: dict[str, Any] = {"status": TrialStatus.MEASURED, "job_ids": ("7",), "is_read": True}
    return EvidenceResult(trial=RUN, shares=shares, **values | changes)


def order(shares: Shares | None = PIPELINE, *, pgle: str = "", **changes: Any) -> dict[str, str]:
    """Return the candidates in their order, each with the reason for its place."""
    placed = order_candidates(rule(**changes), evidence(shares, pgle=pgle))
    return {each.profile.id: sentence(each.why) for each in placed}


def run(
    sweep: TuningStudy, gains: Mapping[str, float] | None = None, *, pgle: str = ""
) -> list[TrialResult]:
    measure = cluster(gains or {})

    def answer(trial: Trial) -> TrialResult:
        return measure(trial) if trial.protocol.is_scored else evidence(pgle=pgle)

    return history(answer, of=sweep, one_by_one=True)


def led(sweep: TuningStudy, *names: str) -> list[TrialResult]:
    """Run a study in which the named profiles lead."""

    def answer(trial: Trial) -> TrialResult:
        gain = 0.03 * any(each in names for each in trial.profile.id.split("+"))
        found = measured(trial, 6.9 + gain + noise(trial, 0.0005))
        return found if trial.protocol.is_scored else evidence()

    return history(answer, of=sweep, one_by_one=True)


def notes_of(sweep: TuningStudy, done: Sequence[TrialResult]) -> list[str]:
    return list(map(sentence, sweep.decide(done).conclusion.notes))


def test_slots_go_where_time_is_lost_and_no_part_takes_them_all() -> None:
    assert order() == {
        "overlap-2": "communication alone, 24.0 % of a step",
        "permute-8g": "collective-permute alone, 20.0 % of a step",
        "triton-off": "compute, 70.0 % of a step",  # of which a tenth counts
        "ag-1g": "all-gather alone, 3.0 % of a step",
        "ag-2g": "all-gather alone, 3.0 % of a step",  # halved: its part has a place already
        "unheard-of": sentence(NO_AIM),
        "ragged-off": "the program has no all-to-all",
    }
    many = [profile(f"n-{at}", env={"NCCL_IB_QPS_PER_CONNECTION": str(at)}) for at in range(1, 9)]
    candidates = (*many, CANDIDATES[2])
    aims = {each.id: load().aims_of(each) for each in candidates}
    assert [*order(candidates=candidates, aims=aims)][1] == "permute-8g"
    # a collective counts once beside all communication
    shares = Shares(of_step={"all-gather": 0.3, "communication": 0.5, "copies": 0.1})
    aims = {"ag-1g": ("all-gather", "communication", "copies")}
    found = order(shares, candidates=CANDIDATES[:1], aims=aims)
    assert found == {"ag-1g": "communication and copies alone, 60.0 % of a step"}


@pytest.mark.parametrize("shares", [None, Shares(of_step={})], ids=["no evidence", "nothing told"])
def test_without_evidence_the_declared_order_stays(shares: Shares | None) -> None:
    assert [*order(shares)] == [each.id for each in CANDIDATES]


def test_a_dump_alone_tells_which_collectives_there_are() -> None:
    found = order(Shares(of_step={}, kinds=("all-gather",)))
    assert [*found][-2:] == ["permute-8g", "ragged-off"]
    assert "no trace" in next(iter(found.values()))


@pytest.mark.parametrize(
    ("aims", "of_step", "unaimed"),
    [
        pytest.param(("copies",), {"compute": 0.7, "copies": 0.1}, "compute", id="none aims"),
        pytest.param((), {"idle": 0.6, "compute": 0.4}, "idle", id="idle time, and no aim"),
        pytest.param(("compute",), {"compute": 0.7, "idle": 0.3}, None, id="one aims at it"),
        pytest.param(("all-gather",), {"communication": 0.6}, None, id="a collective does"),
        pytest.param((), {}, None, id="no trace"),
    ],
)
def test_the_largest_part_that_no_candidate_aims_at_is_told(
    aims: tuple[str, ...], of_step: dict[str, float], unaimed: str | None
) -> None:
    ours = rule(candidates=(profile("a", "--xla_a=1"),), aims={"a": aims})
    seen = evidence(Shares(of_step=of_step, kernels={"compute": ("gemm_1",)}))
    told = choice_notes(ours, order_candidates(ours, seen), evidence=seen, chosen=(), refused={})
    found = [each.values for each in told if each.code is MessageCode.UNAIMED]
    assert [each["part"] for each in found] == ([unaimed] if unaimed else [])
    if unaimed == "compute":
        assert found[0]["kernels"].values["names"] == ("gemm_1",)


def test_the_baseline_is_run_for_evidence_before_the_wave_and_not_in_its_budget() -> None:
    sweep = study(context=Context())
    assert sweep.decide(()).due == (RUN,)
    assert study(rule(evidence=False)).decide(()).due[0].stage == "wave2"
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
    # the reasons are in the conclusion and in the profiles
    chosen, cut = (each for each in notes_of(sweep, done) if each.startswith("wave2: "))
    named = [word for word in chosen.split() if word in {each.id for each in CANDIDATES}]
    assert named == [*slots.values()]
    assert "communication alone, 24.0 %" in chosen
    assert cut == (
        "wave2: cut at 3 slots: ag-1g, ag-2g (all-gather alone, 3.0 % of a step); "
        f"unheard-of ({sentence(NO_AIM)}); ragged-off (the program has no all-to-all)"
    )
    assert sentence(sweep.state(done).ranked.arms.slots["single-1"].origin) == (
        "number 1 of 7 by the evidence (communication alone, 24.0 % of a step)"
    )


def test_without_a_record_the_declared_order_is_planned_and_run() -> None:
    sweep = study()
    lost = evidence(None, status=TrialStatus.DROPPED, is_read=False, reason="out of memory")
    ahead = sweep.foreseen(())
    for decision in (sweep.decide([lost]), ahead.decide(())):
        assert {"ag-1g", "ag-2g", "permute-8g"} < {each.profile.id for each in decision.due}
    assert any(f"evidence run {RUN.id}: out of memory" in e for e in notes_of(sweep, [lost]))
    (first, _) = ahead.state(()).ranked.arms.messages
    assert sentence(first) == "wave2: candidates in declared order: 1 ag-1g, 2 ag-2g, 3 permute-8g"
    assert study().foreseen([evidence()]) == study()


def test_a_candidate_that_is_declared_or_repeats_another_takes_no_slot() -> None:
    twin = profile("as-overlap", "--xla_gpu_experimental_parallel_collective_overlap_limit=2")
    deployed = profile("deployed", "--xla_gpu_autotune_level=4")
    candidates = (twin, deployed, *CANDIDATES)
    sweep = study(rule(candidates=candidates, evidence=False, slots=4), profiles=(CANDIDATES[0],))
    done = run(sweep)
    chosen = ["as-overlap", "ag-2g", "permute-8g", "ragged-off"]
    assert [*slots_of(sweep, done).values()] == chosen
    for words in ("deployed (the same", "ag-1g (the sweep", "the same settings as as-overlap"):
        assert words in notes_of(sweep, done)[-1]


def test_stacks_are_of_the_singles_that_led_once_they_are_known() -> None:
    sweep = study(rule(), Stacks(slots=1), profiles=OTHERS)
    done = led(sweep, "overlap-2", "permute-8g")
    assert slots_of(sweep, done)["stack-1"] == "overlap-2+permute-8g"
    assert of_wave(done, "wave3") == {"overlap-2+permute-8g"}
    sweep = study(rule(), Stacks(slots=1), profiles=(profile("old", "--xla_old=1", wave="wave1"),))
    first = sweep.decide(()).due
    assert {each.stage for each in first if each.is_screened} == {"wave1"}
    done = [cluster({})(each) for each in first if each.is_screened]
    assert sweep.decide(done).due == (RUN,)
    assert slots_of(sweep, done) == {}


def test_a_selected_slot_alone_is_measured() -> None:
    sweep = study(selected=frozenset({"single-2"}), confirm=False)
    assert of_wave(run(sweep), "wave2") == {"permute-8g"}
    alone = study(profiles=CANDIDATES[:1], selected=frozenset({"ag-1g"}), confirm=False)
    assert alone.decide(()).due[0].is_screened


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param({"slots": 0}, "0 slots, expected one", id="no slot"),
        pytest.param({"candidates": ()}, "no candidate is given", id="no candidate"),
        pytest.param({"candidates": (*CANDIDATES, CANDIDATES[0])}, "ag-1g", id="an id twice"),
        pytest.param({"candidates": (profile("single-1", "--xla_a=1"),)}, "name of a slot",
                     id="a slot's name"),
        pytest.param({"slots": 60}, "the budget is 60", id="over the budget"),
        pytest.param({"pgle": True, "evidence": False}, "pgle=True needs the trace", id="no trace"),
    ],
)  # fmt: skip
def test_malformed_rules(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        study(rule(**given))


def test_the_trace_of_the_evidence_run_is_one_more_candidate_by_one_word() -> None:
    ours = rule(pgle=True, aims=AIMS | {"pgle-profile": ("communication",)})
    path = "/shared/s/cell/baseline-deployed-e.1/pgle.pbtxt"
    first = order_candidates(ours, evidence(pgle=path))[0].profile  # of equals the first
    assert first.id == "pgle-profile"
    assert first.shown_text == f"--xla_gpu_pgle_profile_file_or_directory_path={path}"
    sweep = study(ours)
    assert TuningStudy.from_json(sweep.to_json()).singles == sweep.singles
    assert "pgle-profile" in of_wave(run(sweep, pgle=path), "wave2")
    # a trace without operations leaves its place to the next, and says so
    done = run(sweep)
    assert "pgle-profile" not in of_wave(done, "wave2")
    assert "no pgle-profile: the trace" in " | ".join(notes_of(sweep, done))
    assert rule(candidates=(), pgle=True).fills.values["candidates"] == 1


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
    sweep = study(by_trace, *stacks, selected=selected)
    assert sweep.decide(()).due == sweep.outlook(()).ahead[:1] == (sweep.evidence_trial,)


# --- the catalog's rules --------------------------------------------------------------------------

MEMORY = (
    profile("mem", env={"XLA_PYTHON_CLIENT_MEM_FRACTION": ".95"}),
    profile("client-mem", env={"XLA_CLIENT_MEM_FRACTION": ".95"}),
    profile("plain", "--xla_gpu_enable_triton_gemm=false"),
)
LADDER: dict[str, tuple[str, ...]] = {"NCCL_BUFFSIZE": ("8388608", "16M", "33554432")}
BUFFER = profile("buffer", env={"NCCL_BUFFSIZE": "8388608"})


@pytest.mark.parametrize(
    ("profiles", "derived", "wave", "filled", "said"),
    [
        pytest.param(MEMORY, Stacks(slots=3, of=2), "wave3", {"mem+plain", "client-mem+plain"},
                     ("left out: mem+client-mem (XLA_PYTHON_CLIENT_MEM_FRACTION",
                      "which JAX refuses"), id="a stack of settings that exclude each other"),
        pytest.param((BUFFER,), Around(slots=2, ladders=LADDER), "wave4", set(),
                     ("NCCL_BUFFSIZE=16M is read as 16, the rest",),
                     id="a value of a ladder that would be misread"),
    ],
)  # fmt: skip
def test_what_the_catalog_objects_to_takes_no_slot(
    profiles: tuple[Profile, ...],
    derived: Stacks | Around,
    wave: str,
    filled: set[str],
    said: tuple[str, ...],
) -> None:
    sweep = study(derived, profiles=(*profiles, *OTHERS), context=Context())
    assert TuningStudy.from_json(sweep.to_json()) == sweep, "the ground is kept with the study"
    leading = [each.id for each in profiles] + ["buffer.16m", "buffer.33554432"]
    done = led(sweep, *leading)
    assert of_wave(done, wave) == filled
    (why,) = (each for each in notes_of(sweep, done) if each.startswith(f"{wave}: "))
    assert all(words in why for words in said)
    plain = replace(sweep, context=None)
    assert of_wave(led(plain, *leading), wave) > filled, "without a context no rule is held"


def test_what_does_nothing_to_the_program_takes_no_slot() -> None:
    own = rule(slots=2, candidates=(profile("rs-1g", f"--{RS}={GIB}"), CANDIDATES[0]), aims={})
    sweep = study(own, context=Context())
    due = sweep.decide([evidence()]).due
    assert {each.arm for each in due if each.stage == "wave2"} == {BASELINE.id, "ag-1g"}
    assert "left out: rs-1g" in sentence(sweep.state([evidence()]).ranked.arms.messages[-1])
    # a trace alone names no collective, and nothing is guessed
    traced = evidence(replace(PIPELINE, kinds=None))
    assert "rs-1g" in {each.profile.id for each in sweep.decide([traced]).due}
    # nor has a value that is deployed already
    deployed = Context(deployed=parse_flags(f"--{AG}={GIB}"))
    sweep = study(rule(candidates=CANDIDATES[:2], evidence=False), context=deployed)
    assert [*slots_of(sweep, run(sweep)).values()] == ["ag-2g"]


def test_a_stack_with_a_part_that_does_nothing_to_the_program_is_passed_over() -> None:
    channels = profile("channels", env={"NCCL_NCHANNELS_PER_NET_PEER": "8"})
    profiles = (CANDIDATES[0], channels, *OTHERS)
    sweep = study(Stacks(slots=1, of=2), profiles=profiles, context=Context())
    whole = led(sweep, "ag-1g", "channels")
    done = [each for each in whole if each.trial.stage == "wave2"]
    assert slots_of(sweep, done) == {"stack-1": "ag-1g+channels"}
    gathers = evidence(replace(PIPELINE, kinds=("all-gather",)))
    assert slots_of(sweep, [*done, gathers]) == {}
    (said,) = sweep.state([*done, gathers]).ranked.arms.messages
    left_out = "wave3: left out: ag-1g+channels (NCCL_NCHANNELS_PER_NET_PEER does"
    assert sentence(said).startswith(left_out)
    # what has a trial stays, whatever is recorded since
    begun = [each for each in whole if each.trial.stage != "confirm"]
    assert "stack-1" in slots_of(sweep, [*begun, gathers])


def test_every_candidate_of_the_catalog_says_what_it_acts_on_or_is_known_not_to() -> None:
    named = [each for each in load().entries if each.status == "candidate" and each.values]
    silent = {each.slug for each in named if not each.aims}
    assert silent == {"mem"}  # the size of a pool shows in no step
