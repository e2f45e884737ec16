"""The batch size study: what it tries next, what it never tries, and what it recommends."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.result import TrialResult, TrialStatus, VerdictKind
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.studies.batch_size import BEST_FILE
from tests.helpers.cells import (
    CEILINGS,
    LIMIT,
    PAIRED,
    Ended,
    Run,
    asking,
    batch,
    compiled,
    drive,
    machine,
    paired,
    row,
    size_in,
    sizes,
    unfit,
)
from tests.helpers.examples import tried
from tests.helpers.history import NOT_ACCUSED, measured

REFUSED = (FailureClass.CONFIG_ERROR, FailureClass.UNKNOWN_FLAG)
OOM, HANG = FailureClass.OOM_GPU, FailureClass.HANG_SILENT_OOM
REMAT: dict[str, Any] = {"key": "remat_policy", "sizes": ("full", "minimal", "none")}
FAILED = (TrialStatus.DROPPED, TrialStatus.UNMEASURED)


def probed(ended: Ended) -> list[float]:
    return [size_in(each.trial) for each in ended.jobs if not each.trial.block]


def failing(run: Run, cls: FailureClass, where: Callable[[Trial], Any]) -> Run:
    return lambda trial: unfit(trial, cls) if where(trial) else run(trial)


def memory(power: float) -> Callable[[float], float]:
    return lambda size: LIMIT * (size / 11.5) ** power


def by_policy(speeds: dict[str, float], losses: dict[str, float] | None = None) -> Run:
    """Return a machine on which values that are words have these speeds; NaN does not fit."""
    effects = {f"remat-policy-{name}": speed for name, speed in speeds.items()}
    told = {f"remat-policy-{name}": loss for name, loss in (losses or {}).items()}
    steady = machine(effects, losses=told, noise=0.4)
    return failing(steady, OOM, lambda trial: math.isnan(effects[trial.arm]))


@pytest.mark.parametrize(
    ("study", "run", "expected"),
    [
        row("a list goes upwards, and no further than fits", {"sizes": (4, 8, 12, 16, 20)},
            sizes(ceiling=12), probed=[4, 8, 12, 16], unfit={"pdbs-16": "88.25 GiB"},
            why={"pdbs-20": "not run: larger than 16, which did not fit"}),
        row("a lone leader needs no block where the noise is known",
            {"sizes": (1.0, 2.0, 4.0), "sigma": 0.003}, sizes(), jobs=3, same=("4",),
            kinds={"pdbs-1": NOT_ACCUSED, "pdbs-2": NOT_ACCUSED, "pdbs-4": NOT_ACCUSED}),
        *(
            row(f"{cls} is memory, and is not tried again", {"start": 8},
                failing(sizes(), cls, lambda trial: size_in(trial) > 9),
                largest="9", probed=[8, 12, 9, 10], unfit={"pdbs-10": why, "pdbs-12": why})
            for cls, why in ((OOM, "too little memory"), (FailureClass.KILLED, "SIGKILL"),
                             (FailureClass.OOM_HOST, "the host has too little memory"),
                             (FailureClass.OOM_RCCL_HEADROOM, "pool leaves RCCL"))
        ),
        row("a hang where a smaller size ran is tried once more", {"sizes": (4, 8, 12, 16)},
            failing(sizes(), HANG, lambda trial: size_in(trial) > 9),
            probed=[4, 8, 12, 12], unfit={"pdbs-12": "no progress"}),
        *(
            row(f"{cls} three times first is the configuration, and no matter of size", study,
                failing(sizes(), cls, lambda _: True), jobs=3,
                objection="not the size")
            for cls, study in ((REFUSED[0], {"sizes": (4, 8, 12, 16)}), (REFUSED[1], {"start": 8}))
        ),
        row("where nothing fits it says so", {"start": 8}, sizes(ceiling=0.5),
            objection="is recommended: none fits", summary="ceiling: none ran, 1 did not fit"),
        row("a size that fits by chance is not recommended", {"sizes": (8, 10, 12)},
            failing(sizes(), OOM, lambda e: e.arm == "pdbs-12" and e.block == 2), value="10",
            unfit={"pdbs-12": "near to the ceiling"}),
        row("a budget without blocks says that single runs decided", {"start": 8, "budget": 5},
            sizes(best=12), value="12", same=("12", "18"),
            why={"pdbs-12": "left no block"}),
        row("what computes something else is no winner", REMAT,
            by_policy({"full": 0.0, "minimal": 0.05, "none": 0.1}, {"none": 9.9}),
            value="minimal", kinds={"remat-policy-none": "INCONCLUSIVE"},
            why={"remat-policy-none": "and is not ranked"}),
        row("a listed size above the compiled ceiling is not tried",
            {"sizes": (4, 8, 16, 24), "sigma": 0.003, "compiles": True},
            asking(sizes(ceiling=12), lambda size: size * LIMIT / 12), probed=[4, 8],
            why={"pdbs-16": "no size above 8 fits"}),
        *(
            row(f"memory as the power {power} of the size is bracketed too",
                {"start": 8, "compiles": True},
                asking(sizes(ceiling=11), memory(power)),
                most=11, alone=9)
            for power in (0.5, 1.3, 2.0)
        ),
        row("compiling that ends for want of memory is an answer", {"start": 8, "compiles": True},
            lambda trial: compiled(trial, None, is_refused=True)
            if trial.stage == "compiled" and size_in(trial) > 9
            else asking(sizes(ceiling=9), lambda size: size * LIMIT / 30)(trial),
            most=9),
    ],
)  # fmt: skip
def test_worlds(study: dict[str, Any], run: Run, expected: dict[str, Any]) -> None:
    ended = drive(batch(**study), run)
    record, unfit = ended.record, expected.get("unfit", {})
    probes = probed(ended) if "key" not in study else []
    facts = {
        "value": record.value,
        "largest": record.largest,
        "same": record.same,
        "jobs": len(ended.jobs),
        "probed": probes,
        "most": max(probes, default=0),
    }
    assert {name: fact for name, fact in facts.items() if expected.get(name, fact) != fact} == {}
    assert sum(e.memory is not None for e in ended.history) <= expected.get("alone", 12)
    assert expected.get("kinds", {}).items() <= ended.kinds.items()
    for arm, words in {**expected.get("why", {}), **unfit}.items():
        assert words in ended.why(arm)
    for arm in unfit:
        assert (ended.kinds[arm], ended.verdict(arm).can_run) == ("INVALID", False)
    assert expected.get("summary", "") in " ".join(ended.summary)
    assert expected.get("notes", "") in ended.notes
    assert expected.get("objection", "") in " ".join(map(sentence, record.objection))
    assert bool(record.objection) is ("objection" in expected)
    if probes:
        lost = [e for e in ended.jobs if e.status is TrialStatus.DROPPED]
        gone = [size_in(e.trial) for e in lost if e.findings[0].cls not in REFUSED]
        assert sorted(gone, reverse=True) == gone, "no larger one after one that did not fit"


def test_it_finds_the_ceiling_and_the_best_below_it() -> None:
    ended = drive(batch(start=8), sizes(ceiling=21, best=12))
    found = ended.record
    assert found.value in ("11", "12", "13")
    assert "12" in found.same
    assert found.files[BEST_FILE] == f"per_device_batch_size={found.value}\n"
    assert float(found.largest) <= 21 < float(found.unfit) <= 1.13 * float(found.largest)
    assert ended.summary[0].startswith(f"recommended: {found.key}={found.value} with ")
    assert ended.summary[-1] == f"ceiling: {found.largest} ran, {found.unfit} did not fit"
    # its neighbours cannot be told from it, so nothing is FASTER
    assert ended.conclusion.verdicts[0].arm == found.arm
    assert (ended.kinds[found.arm], ended.conclusion.winner) == ("INCONCLUSIVE", None)
    blocks = [each.trial for each in ended.history if each.trial.block]
    by_block = [[e.arm for e in blocks if e.block == number] for number in (1, 2, 3, 4)]
    assert sum(map(len, by_block)) == len(blocks)
    assert len({frozenset(each) for each in by_block}) == 1, "complete blocks"
    assert 2 <= len(by_block[0]) <= 4
    assert len(set(map(tuple, by_block))) > 1, "each block has an order of its own"


def test_where_the_noise_is_not_known_the_best_two_are_run_in_blocks() -> None:
    ended = drive(batch(sizes=(1.0, 2.0, 4.0)), sizes())
    assert len(ended.history) == 3 + 4 * 2
    assert ended.verdict("pdbs-2").kind is VerdictKind.SLOWER


@pytest.mark.parametrize(
    ("budget", "values", "arm", "delta"),
    [
        pytest.param(
            9, {(0, 1): 0.0, (0, 2): 0.99, (0, 4): 1.0, (1, 2): 1.0, (1, 4): 1.02, (2, 2): 1.01,
                (2, 4): 1.04, (3, 2): 1.02, (3, 4): 1.05},
            "pdbs-2", math.expm1(-0.08 / 3),
            id="two degrees of freedom: the mean of the blocks, and no interval",
        ),
        pytest.param(
            7, {(0, 1): -0.5, (0, 2): 0.0, (0, 4): 0.05, (1, 2): 0.07, (1, 4): 0.0, (2, 2): -0.11,
                (2, 4): 0.0},
            "pdbs-1", None,
            id="one program twice, 47 % between its runs: a first run is not called worse",
        ),
    ],
)  # fmt: skip
def test_blocks_too_few_for_an_interval_show_none(
    budget: int, values: dict[tuple[int, int], float], arm: str, delta: float | None
) -> None:
    study = batch(sizes=(1.0, 2.0, 4.0), budget=budget)
    ended = drive(study, lambda e: measured(e, values[e.block, int(size_in(e))]))
    found = ended.verdict(arm)
    assert (found.kind, found.ci95) == ("INCONCLUSIVE", None)
    if delta is not None:
        assert found.delta == pytest.approx(delta)


def test_a_size_that_ran_above_one_that_did_not_fit_is_not_recommended() -> None:
    steady, asked = sizes(ceiling=40, best=12), list[float]()

    def run(trial: Trial) -> TrialResult:
        asked.append(size_in(trial))
        is_between = 8 < size_in(trial) < max(asked)
        return unfit(trial, OOM) if is_between else steady(trial)

    ended = drive(batch(start=8), run)
    end = float(ended.record.unfit)
    above = {size_in(e.trial) for e in ended.history if e.score is not None} - {*range(int(end))}
    assert above
    for size in above:
        assert not ended.verdict(f"pdbs-{size:g}").can_run
        assert ended.why(f"pdbs-{size:g}").startswith(f"it ran, but {end:g} did not")
    assert all(float(each) < end for each in (ended.record.value, *ended.record.same))
    assert not any(each.trial.block and size_in(each.trial) in above for each in ended.history)


def test_values_of_other_keys_are_cells_too() -> None:
    length = batch(key="max_target_length", sizes=(1024, 2048))
    assert [each.max_target_length for each in length.cells] == [1024, 2048]
    fraction = batch(key="XLA_PYTHON_CLIENT_MEM_FRACTION", sizes=(0.9, 0.93), compiles=True)
    assert fraction.cells[1].deployed["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.93"
    remat = batch(**REMAT, compiles=True)
    assert [each.overrides["remat_policy"] for each in remat.cells] == [*REMAT["sizes"]]
    assert len({each.name for each in (length, fraction, remat)}) == 3
    assert [e.id for e in remat.decide(()).arms] == [f"remat-policy-{e}" for e in REMAT["sizes"]]
    # a compiler knows how the sizes of a program grow, and no variable and no word
    assert {each.policy.compiled_stage for each in (fraction, remat, batch(start=4))} == {""}
    assert batch(start=4).decide(()).arms == ()
    own, configured = batch(), batch(own=None, configured={"per_device_batch_size": "12.0"})
    assert [each.values[each.start] for each in (own, configured)] == ["8", "12"]


@pytest.mark.parametrize("ceiling", [1, 2, 3, 5, 8, 13, 21, 31, 32, 99])
def test_a_compiler_is_asked_before_any_job_and_no_job_is_out_of_memory(ceiling: int) -> None:
    slope = LIMIT / (ceiling + 0.5) / 1.25
    run = asking(sizes(ceiling=ceiling), lambda size: 0.2 * LIMIT + slope * size)
    ended = drive(batch(start=8, sigma=0.004, compiles=True), run)
    alone = len(ended.history) - len(ended.jobs)
    assert all(each.memory for each in ended.history[:alone]), "the compiler first"
    assert alone <= 6
    assert all(each.score for each in ended.jobs), "no job that does not fit"
    top = min(ceiling, 32)
    assert max(probed(ended)) == top
    if ceiling < 32:  # the first job is at three quarters of what fits
        assert probed(ended)[0] == min(range(1, top + 1), key=lambda size: abs(size - 0.75 * top))
    assert (ended.record.largest, ended.record.unfit) == (str(top), "")
    assert ended.summary[-1].endswith("no larger one may be tried")


def test_where_no_compiler_answers_it_goes_on_as_without_one() -> None:
    run = sizes(ceiling=21, best=12)
    before = drive(batch(start=8), run).history
    ended = drive(batch(start=8, compiles=True), asking(run, lambda _: None, said="no target"))
    assert len(ended.history) - len(ended.jobs) == 1, "it is asked once"
    assert [each.trial.id for each in ended.jobs] == [each.trial.id for each in before]
    assert "looked for the ceiling: no target" in ended.notes


@pytest.mark.parametrize(
    ("c", "best"),
    [
        pytest.param(0.1, "4 remat_policy=none", id="small batches lose little"),
        pytest.param(0.8, "9 remat_policy=minimal", id="in between"),
        pytest.param(9.0, "20 remat_policy=full", id="a large batch is worth the most"),
    ],
)
@pytest.mark.parametrize("compiles", [True, False], ids=["a compiler is asked", "jobs tell"])
def test_a_second_key_is_a_list_of_cells(c: float, best: str, *, compiles: bool) -> None:
    ended = drive(batch(sigma=0.002, **PAIRED, compiles=compiles), paired(c=c))
    alone = len(ended.history) - len(ended.jobs)
    assert all(each.memory for each in ended.history[:alone]), "all compilations first"
    assert bool(alone) is compiles
    gone = [each for each in ended.jobs if not each.score]
    assert len(gone) == (0 if compiles else 2), "the smallest of each policy that does not fit"
    assert best in ended.record.same
    assert ended.record.files[BEST_FILE] == f"per_device_batch_size={ended.record.value}\n"
    assert len(probed(ended)) == len(gone) + 6, "each cell that fits, once"


def test_pairs_of_the_same_batch_and_length_must_have_the_same_loss() -> None:
    def loss(trial: Trial) -> float:
        return 9.9 if trial.arm.endswith("none") else 7.0 + size_in(trial)  # each size has its own

    ended = drive(batch(sigma=0.002, **{**PAIRED, "sizes": (2, 4)}), paired(loss=loss))
    other = [name for name in ended.kinds if "something else" in ended.why(name)]
    assert sorted(other) == ["pdbs-2-remat-policy-none", "pdbs-4-remat-policy-none"]
    assert ended.record.value.endswith("minimal")


@settings(max_examples=tried(60), deadline=None)
@given(
    is_paired=st.booleans(),
    ceiling=st.floats(0.5, 60),
    start=st.integers(1, 30),
    budget=st.integers(2, 40),
    failures=st.dictionaries(st.integers(0, 39), st.sampled_from(list(FailureClass)), max_size=6),
    order=st.randoms(use_true_random=False),
)
def test_it_ends_in_every_world_within_its_budget(
    *, is_paired: bool, ceiling: float, start: int, budget: int, failures: Any, order: Any
) -> None:
    steady = paired(beside=min(ceiling / 40, 1)) if is_paired else sizes(ceiling=ceiling)
    asked: dict[str, Any] = {"compiles": True, **PAIRED} if is_paired else {"start": start}
    jobs: list[Trial] = []

    def run(trial: Trial) -> TrialResult:
        if trial.stage == "compiled":
            return steady(trial)
        jobs.append(trial)
        cls = failures.get(len(jobs) - 1)
        if cls is None:
            return steady(trial)
        return replace(unfit(trial, cls), status=FAILED[len(jobs) % 2])

    ended = drive(batch(budget=budget, **asked), run)
    history = [*ended.history]
    order.shuffle(history)
    again = batch(budget=budget, **asked).decide(history)
    assert (again.conclusion, again.due) == (ended.conclusion, ())
    value, _, policy = ended.record.value.partition(" remat_policy=")
    if value:
        assert ended.record.value in ended.record.same
        assert float(value) <= (CEILINGS[policy] if is_paired else ceiling)
        assert float(value) in probed(ended)
