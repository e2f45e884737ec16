"""Waves of single settings that an evidence run orders: which, in which order, always the same."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_xlatune.catalog.entries import load
from pytest_xlatune.catalog.ground import Ground
from pytest_xlatune.cells import Stage, Trial
from pytest_xlatune.errors import ConfigError
from pytest_xlatune.profiles import BASELINE, Profile, parse_flags, profile
from pytest_xlatune.results import (
    SETTLED,
    Action,
    EvidenceResult,
    Finding,
    Shares,
    TrialResult,
    TrialStatus,
)
from pytest_xlatune.studies.derived import Around, Stacks
from pytest_xlatune.studies.evidence import EvidenceStudy
from pytest_xlatune.studies.singles import NO_AIM, Singles, placed
from pytest_xlatune.studies.tuning import TuningStudy
from tests.studies.answers import measured, noise
from tests.studies.knobs import AG, CELL, GIB, cluster, of_wave

PERMUTE = "xla_gpu_collective_permute_combine_threshold_bytes"
CANDIDATES = (
    profile("ag-1g", f"--{AG}={GIB}"),
    profile("ag-2g", f"--{AG}={2 * GIB}"),
    profile("permute-8g", f"--{PERMUTE}={8 * GIB}"),
    profile("ragged-off", "--xla_gpu_unsupported_use_ragged_all_to_all_one_shot_kernel=false"),
    profile("triton-off", "--xla_gpu_enable_triton_gemm=false"),
    profile("overlap-2", "--xla_gpu_experimental_parallel_collective_overlap_limit=2"),
    profile("unheard-of", "--xla_gpu_knob=7"),
)
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


def study(*rules: Singles, **changes: Any) -> TuningStudy:
    values: dict[str, Any] = {
        "cell": CELL,
        "profiles": (),
        "singles": rules or (rule(),),
        "budget": 60,
    } | changes
    return TuningStudy(**values)


def evidence(shares: Shares | None = PIPELINE, **changes: Any) -> EvidenceResult:
    values: dict[str, Any] = {
        "trial": RUN,
        "status": TrialStatus.MEASURED,
        "job_ids": ("7",),
        "is_read": True,
        "shares": shares,
    } | changes
    return EvidenceResult(**values)


def ids(order: Sequence[Any]) -> list[str]:
    return [each.profile.id for each in order]


def run(
    of: TuningStudy,
    *,
    shares: Shares | None = PIPELINE,
    settled: Sequence[str] = (),
    gains: Mapping[str, float] | None = None,
) -> list[TrialResult]:
    """Drive a study one trial at a time; what compiling settles ends without a job."""
    answer, done = cluster(gains or {}), list[TrialResult]()
    while trials := of.propose(done):
        trial = next((each for each in trials if each.profile.id in settled), trials[0])
        if trial.stage is Stage.EVIDENCE:
            done.append(evidence(shares))
        elif trial.profile.id in settled:
            done.append(settle(trial))
        else:
            done.append(answer(trial))
    return done


def settle(trial: Trial) -> TrialResult:
    finding = Finding(cls=SETTLED, action=Action.DROP, text="identical to the baseline")
    return TrialResult(
        trial=trial, status=TrialStatus.DROPPED, reason="needs no run", findings=(finding,)
    )


def test_slots_go_where_time_is_lost_and_no_part_takes_them_all() -> None:
    order = placed(rule(), evidence())
    assert ids(order) == [
        "overlap-2",  # 24 % of all communication
        "permute-8g",  # 20 %
        "triton-off",  # 70 % of computation, of which a tenth counts
        "ag-1g",  # 3 %
        "ag-2g",  # 3 %, halved, for its part has a place
        "unheard-of",
        "ragged-off",  # last: the program has no such collective
    ]
    why = {each.profile.id: each.why for each in order}
    assert why["permute-8g"] == "collective-permute alone, 20.0 % of a step"
    assert why["triton-off"] == "compute, 70.0 % of a step"
    assert why["ragged-off"] == "the program has no all-to-all"
    assert why["unheard-of"] == NO_AIM


def test_many_settings_of_one_part_leave_room_for_the_others() -> None:
    many = tuple(
        profile(f"nccl-{at}", env={"NCCL_IB_QPS_PER_CONNECTION": str(at)}) for at in range(1, 9)
    )
    candidates = (*many, CANDIDATES[2])
    aims = {each.id: load().aims_of(each) for each in candidates}
    assert ids(placed(rule(candidates=candidates, aims=aims), evidence()))[1] == "permute-8g"


@pytest.mark.parametrize("shares", [None, Shares(of_step={})], ids=["no evidence", "nothing told"])
def test_without_evidence_the_declared_order_stays(shares: Shares | None) -> None:
    assert ids(placed(rule(), evidence(shares))) == [each.id for each in CANDIDATES]


def test_a_dump_alone_tells_which_collectives_there_are() -> None:
    order = placed(rule(), evidence(Shares(of_step={}, kinds=("all-gather",))))
    assert ids(order)[-2:] == ["permute-8g", "ragged-off"]
    assert order[0].why == "all-gather: no trace tells the time that it costs"


def test_the_baseline_is_run_for_evidence_before_the_wave_and_not_in_its_budget() -> None:
    sweep = study()
    assert sweep.propose(()) == (RUN,)
    assert study(rule(evidence=False)).propose(())[0].group == "wave2"
    done = run(sweep)
    assert [each.trial.stage for each in done].count(Stage.EVIDENCE) == 1
    assert of_wave(done, "wave2") == {"overlap-2", "permute-8g", "triton-off"}
    assert sweep.propose(done) == ()


def test_each_process_sees_the_same_slots_whatever_the_order_of_its_history() -> None:
    sweep, done = study(), run(study())
    expected = {name: each.id for name, each in sweep.slots_of(done).items()}
    assert expected == {
        "single-1": "overlap-2",
        "single-2": "permute-8g",
        "single-3": "triton-off",
    }
    again = TuningStudy.from_json(sweep.to_json())
    shuffled = random.Random(7)
    for _ in range(5):
        shuffled.shuffle(done)
        assert {name: each.id for name, each in again.slots_of(done).items()} == expected


def test_scores_do_not_move_the_order() -> None:
    """The error rates rest on it: which profiles are tried knows nothing of how fast they are."""
    slots = [
        {name: each.id for name, each in study().slots_of(run(study(), gains=gains)).items()}
        for gains in ({}, {"triton-off": 0.05}, {"overlap-2": -0.05})
    ]
    assert slots[0] == slots[1] == slots[2]


def test_what_compiling_settles_makes_room_for_the_next() -> None:
    sweep = study()
    done = run(sweep, settled=["permute-8g"])
    assert [each.id for each in sweep.slots_of(done).values()] == [
        "overlap-2",
        "triton-off",
        "ag-1g",
    ]
    conclusion = sweep.conclude(done)
    told = conclusion.verdict("permute-8g")
    assert told is not None
    assert told.n == 0
    assert len(sweep.profiles_of(done)) == 4


def test_what_has_a_trial_stays_when_evidence_is_recorded_anew() -> None:
    sweep = study()
    done = run(sweep)
    other = evidence(replace(PIPELINE, of_step={"all-gather": 0.9}), job_ids=("9",))
    before = [each.id for each in sweep.slots_of(done).values()]
    assert {each.id for each in sweep.slots_of([*done, other]).values()} == set(before)
    assert sweep.propose([*done, other]) == ()


def test_an_evidence_run_that_nobody_could_record_leaves_the_declared_order_and_says_so() -> None:
    sweep = study()
    lost = evidence(None, status=TrialStatus.DROPPED, is_read=False, reason="out of memory")
    assert {each.profile.id for each in sweep.propose([lost])} > {"ag-1g", "ag-2g", "permute-8g"}
    notes = sweep.conclude([lost]).notes
    said = f"wave2: candidates in declared order, for the evidence run {RUN.id}: out of memory"
    assert any(each.startswith(said) for each in notes), notes


def test_evidence_that_is_not_read_yet_is_waited_for() -> None:
    unread = evidence(None, is_read=False)
    assert study().propose([unread]) == (RUN,)


def test_the_plan_shows_the_declared_order_while_there_is_no_evidence() -> None:
    ahead = study().foreseen(())
    assert {"ag-1g", "ag-2g", "permute-8g"} < {each.profile.id for each in ahead.propose(())}
    (first, _) = ahead.filled(())
    assert first == "wave2: candidates in declared order: 1 ag-1g, 2 ag-2g, 3 permute-8g"
    assert study().foreseen([evidence()]) == study()


def test_the_reasons_are_in_the_conclusion_and_in_the_profiles() -> None:
    sweep = study(ground=Ground())
    done = run(sweep)
    notes = [each for each in sweep.conclude(done).notes if each.startswith("wave2: ")]
    assert notes[0] == (
        f"wave2: candidates by the evidence of {RUN.id}: "
        "1 overlap-2 (communication alone, 24.0 % of a step); "
        "2 permute-8g (collective-permute alone, 20.0 % of a step); "
        "3 triton-off (compute, 70.0 % of a step)"
    )
    assert notes[1] == (
        "wave2: cut, for it has 3 slots: ag-1g, ag-2g (all-gather alone, 3.0 % of a step); "
        f"unheard-of ({NO_AIM}); ragged-off (the program has no all-to-all)"
    )
    first = sweep.slots_of(done)["single-1"]
    assert first.note == ("number 1 of 7 by the evidence (communication alone, 24.0 % of a step)")


def test_a_candidate_that_is_declared_or_repeats_another_takes_no_slot() -> None:
    twin = profile("as-overlap", "--xla_gpu_experimental_parallel_collective_overlap_limit=2")
    deployed = profile("deployed", "--xla_gpu_autotune_level=4")
    candidates = (twin, deployed, *CANDIDATES)
    sweep = study(rule(candidates=candidates, evidence=False, slots=4), profiles=(CANDIDATES[0],))
    done = run(sweep)
    assert [each.id for each in sweep.slots_of(done).values()] == [
        "as-overlap",
        "ag-2g",
        "permute-8g",
        "ragged-off",
    ]
    notes = sweep.conclude(done).notes
    assert notes[-1] == (
        "wave2: left out: deployed (the same settings as baseline-deployed); "
        "ag-1g (the sweep declares it itself); overlap-2 (the same settings as as-overlap)"
    )


def test_stacks_are_of_the_singles_that_led() -> None:
    others = tuple(profile(f"other-{at}", f"--xla_gpu_knob={at}") for at in range(4))
    sweep = study(rule(), profiles=others, stacks=(Stacks(slots=1),))
    done = led(sweep, ["overlap-2", "permute-8g"])
    assert sweep.slots_of(done)["stack-1"].id == "overlap-2+permute-8g"
    assert of_wave(done, "wave3") == {"overlap-2+permute-8g"}


def test_nothing_is_stacked_while_the_singles_are_unknown() -> None:
    sweep = study(
        profiles=(profile("old", "--xla_old=1", wave="wave1"),), stacks=(Stacks(slots=1),)
    )
    first = sweep.propose(())
    assert {each.group for each in first if each.stage is Stage.SCREEN} == {"wave1"}
    answer = cluster({})
    done = [answer(each) for each in first if each.stage is Stage.SCREEN]
    assert sweep.propose(done) == (RUN,)
    assert sweep.slots_of(done) == {}


def test_a_selected_slot_alone_is_measured() -> None:
    sweep = study(selected=frozenset({"single-2"}), confirm=False)
    done = run(sweep)
    assert of_wave(done, "wave2") == {"permute-8g"}
    assert (
        study(profiles=CANDIDATES[:1], selected=frozenset({"ag-1g"}), confirm=False)
        .propose(())[0]
        .stage
        is Stage.SCREEN
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: rule(slots=0), "0 slots, expected one or more"),
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


# -- the catalog's rules hold for what waves derive ------------------------------------------------

DECOMPOSER = "xla_gpu_collective_permute_decomposer_threshold"
LADDER: dict[str, tuple[str, ...]] = {"NCCL_BUFFSIZE": ("8388608", "16M", "33554432")}


def led(sweep: TuningStudy, names: Sequence[str]) -> list[TrialResult]:
    """Run a study in which the named profiles lead."""
    done: list[TrialResult] = []
    while trials := sweep.propose(done):
        if trials[0].stage is Stage.EVIDENCE:
            done.append(evidence())
            continue
        parts = trials[0].profile.id.split("+")
        gain = 0.03 * any(each in names for each in parts)
        done.append(measured(trials[0], 6.9 + gain + noise(trials[0], 0.0005)))
    return done


def test_a_stack_of_flags_that_exclude_each_other_is_passed_over() -> None:
    memory = profile("mem", env={"XLA_PYTHON_CLIENT_MEM_FRACTION": ".95"})
    newer = profile("client-mem", env={"XLA_CLIENT_MEM_FRACTION": ".95"})
    plain = profile("plain", "--xla_gpu_enable_triton_gemm=false")
    others = tuple(profile(f"other-{at}", f"--xla_gpu_knob={at}") for at in range(4))
    sweep = study(
        singles=(), profiles=(memory, newer, plain, *others), stacks=(Stacks(slots=3, of=2),)
    )
    done = led(sweep, ["mem", "client-mem", "plain"])
    assert "mem+client-mem" in of_wave(done, "wave3")  # without a ground no rule is held
    held = replace(sweep, ground=Ground())
    done = led(held, ["mem", "client-mem", "plain"])
    assert of_wave(done, "wave3") == {"mem+plain", "client-mem+plain"}
    said = [each for each in held.conclude(done).notes if each.startswith("wave3: ")]
    (sentence,) = said
    assert sentence.startswith("wave3: left out: mem+client-mem (XLA_PYTHON_CLIENT_MEM_FRACTION")
    assert "which JAX refuses" in sentence


def test_a_value_of_a_ladder_that_would_be_misread_is_passed_over() -> None:
    buffer = profile("buffer", env={"NCCL_BUFFSIZE": "8388608"})
    others = tuple(profile(f"other-{at}", f"--xla_gpu_knob={at}") for at in range(4))
    sweep = study(
        singles=(),
        profiles=(buffer, *others),
        around=(Around(slots=2, ladders=LADDER),),
        ground=Ground(),
    )
    done = led(sweep, ["buffer", "buffer.16m", "buffer.33554432"])
    assert of_wave(done, "wave4") == set()
    (said,) = (each for each in sweep.conclude(done).notes if each.startswith("wave4: "))
    assert "NCCL_BUFFSIZE=16M is read as 16, the rest is ignored; write 16777216" in said


def test_a_value_that_is_deployed_already_is_no_candidate() -> None:
    deployed = parse_flags(f"--{AG}={GIB}")
    sweep = study(rule(candidates=CANDIDATES[:2], evidence=False), ground=Ground(deployed=deployed))
    done = run(sweep)
    assert [each.id for each in sweep.slots_of(done).values()] == ["ag-2g"]


def test_the_ground_goes_into_the_ledger_with_the_study() -> None:
    sweep = study(ground=Ground(deployed=parse_flags("--xla_a=1"), env={"NCCL_DEBUG": "WARN"}))
    assert TuningStudy.from_json(sweep.to_json()) == sweep


def test_every_candidate_of_the_catalog_says_what_it_acts_on_or_is_known_not_to() -> None:
    silent = {each.slug for each in load().entries if each.status == "candidate" and not each.aims}
    assert silent == {"mem", "client-mem"}  # the size of a pool shows in no step
    assert isinstance(CANDIDATES[0], Profile)
