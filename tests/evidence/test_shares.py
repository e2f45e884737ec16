"""Shares of a step: which collective stands alone, told by operations or by a library's kernels."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.evidence.trace import Kind
from pytest_xlatune.evidence.trace.breakdown import Drill, Timeline, TimeRow, drill
from pytest_xlatune.evidence.trace.collectives import shares_of
from pytest_xlatune.model.result import Shares
from tests.helpers.captures import node
from tests.helpers.hlo_programs import GATHER, entry, made


def row(name: str, alone_ps: int, kind: Kind = Kind.COMMUNICATION) -> TimeRow:
    return TimeRow(name=name, family="f", kind=kind, count=1, sum_ps=alone_ps, alone_ps=alone_ps)


MADE = drill([node(steps=1, gpus=1).trace()])


def drilled(
    *, ops: tuple[TimeRow, ...] = (), kernels: tuple[TimeRow, ...] = (), span_ps: int = 1000
) -> Drill:
    line = Timeline(
        span_ps=span_ps,
        busy_ps=900,
        compute_ps=600,
        exposed_communication_ps=250,
        exposed_memory_ps=50,
    )
    gpu = replace(MADE.gpus[0], steps=(line,), outside=Timeline())
    return replace(MADE, gpus=(gpu,), kernels=kernels, ops=ops)


def program(*kinds: str) -> Program:
    found = made(entry(GATHER))
    (one,) = found.collectives
    return replace(found, collectives=tuple(replace(one, kind=kind) for kind in kinds))


WHOLE = {"communication": 0.25, "compute": 0.6, "copies": 0.05, "idle": 0.1}


def test_operations_say_which_collective_it_was() -> None:
    ops = (
        row("all-gather-start.3", 100),
        row("all-gather.7", 20),
        row("reduce-scatter-start", 80),
        row("ragged-all-to-all.1", 30),
        row("send-done.2", 20),
        row("all-gather-fusion-like", 500, Kind.COMPUTE),
    )
    assert shares_of(drilled(ops=ops), None) == Shares(
        of_step={
            "all-gather": 0.12,
            "reduce-scatter": 0.08,
            "all-to-all": 0.03,
            "collective-permute": 0.02,
            **WHOLE,
        }
    )


KERNELS = (
    row("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 100),
    row("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", 40),
    row("ncclDevKernel_SendRecv", 60),
    row("mscclKernel_Sum_half_LL", 5),
)


@pytest.mark.parametrize(
    ("kinds", "exchanged"),
    [
        (("all-gather", "collective-permute"), {"collective-permute": 0.06}),
        (("all-gather", "ragged-all-to-all"), {"all-to-all": 0.06}),
        (("all-to-all", "collective-permute"), {}),
        ((), {}),
    ],
    ids=["a pipeline's", "an exchange of tokens", "either", "unknown"],
)
def test_a_library_s_send_and_receive_is_of_the_one_kind_that_the_program_has(
    kinds: tuple[str, ...], exchanged: dict[str, float]
) -> None:
    found = shares_of(drilled(kernels=KERNELS), program(*kinds))
    assert found is not None
    assert found.of_step == {"all-gather": 0.1, "reduce-scatter": 0.04, **exchanged, **WHOLE}


def test_a_dump_alone_tells_the_kinds_and_no_time_and_nothing_tells_nothing() -> None:
    assert shares_of(None, None) is None
    found = shares_of(None, program("send", "recv", "all-reduce", "all-reduce"))
    assert found == Shares(of_step={}, kinds=("all-reduce", "collective-permute"))
    assert shares_of(drilled(span_ps=0), program()) == Shares(of_step={}, kinds=())
