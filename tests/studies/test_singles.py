"""Waves of single settings that an evidence run orders, and the catalog's rules about them."""

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
from pytest_xlatune.model.profile import BASELINE, parse_flags, profile
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
from tests.helpers.history import history
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
    found = {each.id: each.origin for each in placed}
    prefix = "chosen by the evidence: "
    return {name: sentence(why).removeprefix(prefix) if why else "" for name, why in found.items()}


def run(
    sweep: TuningStudy, gains: Mapping[str, float] | None = None, *, pgle: str = ""
) -> list[TrialResult]:
    measure = cluster(gains or {})

    def answer(trial: Trial) -> TrialResult:
        return measure(trial) if trial.protocol.is_scored else evidence(pgle=pgle)

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


@pytest.mark.parametrize(
    ("aims", "of_step", "unaimed"),
    [
        pytest.param(("copies",), {"compute": 0.7, "copies": 0.1}, "compute", id="none aims"),
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
    # the order is in the conclusion, the reasons in the profiles
    chosen, cut = (each for each in notes_of(sweep, done) if each.startswith("wave2: "))
    assert chosen.endswith(": overlap-2, permute-8g, triton-off")
    assert cut == "wave2: cut at 3 slots: ag-1g, ag-2g, unheard-of, ragged-off"
    assert sentence(sweep.state(done).ranked.arms.slots["single-1"].origin) == (
        "chosen by the evidence: communication alone, 24.0 % of a step"
    )


def test_without_a_record_the_declared_order_is_run() -> None:
    sweep = study()
    lost = evidence(None, status=TrialStatus.DROPPED, is_read=False, reason="out of memory")
    due = sweep.decide([lost]).due
    assert {"ag-1g", "ag-2g", "permute-8g"} < {each.profile.id for each in due}
    assert any(f"evidence run {RUN.id}: out of memory" in e for e in notes_of(sweep, [lost]))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param({"candidates": ()}, "no candidate is given", id="no candidate"),
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
    first = order_candidates(ours, evidence(pgle=path))[0]  # of equals the first
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


def test_a_sweep_whose_only_candidate_waits_for_a_trace_begins_with_that_run() -> None:
    by_trace = rule(candidates=(), aims={}, slots=1, pgle=True)
    alone = study(by_trace, Stacks(slots=1), selected=frozenset({"stack-1"}))
    for sweep in (study(by_trace), alone):
        assert sweep.decide(()).due == sweep.outlook(()).ahead[:1] == (sweep.evidence_trial,)


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


def test_every_candidate_of_the_catalog_says_what_it_acts_on_or_is_known_not_to() -> None:
    named = [each for each in load().entries if each.status == "candidate" and each.values]
    silent = {each.slug for each in named if not each.aims}
    assert silent == {"mem"}  # the size of a pool shows in no step
