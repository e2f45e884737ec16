"""Collectives joined with the program, and shares of a step."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.evidence.trace import Kind
from pytest_xlatune.evidence.trace.breakdown import CaptureWindow, Drill, Timeline, TimeRow, drill
from pytest_xlatune.evidence.trace.collectives import (
    Communication,
    Watch,
    communication_of,
    ranks_of,
    shares_of,
)
from pytest_xlatune.model.shares import Shares
from tests.helpers.captures import Space, node
from tests.helpers.hlo_programs import GATHER, body, entry, loop, made

US = 1_000_000  # picoseconds


def watched(space: Space, program: Program | None = None) -> Communication:
    watch = Watch()
    return communication_of(drill([space.trace()], CaptureWindow(observe=watch)), program, watch)


def step_of(op: str | None, kernel: str, durations_us: list[list[int]]) -> Space:
    """Make steps of one collective: for each step, what its kernel takes on each device."""
    space = Space()
    for step, devices in enumerate(durations_us):
        at = step * 10_000 * US
        space.host("train", at, 9_000 * US, "step_num", 5 + step)
        for gpu, duration in enumerate(devices):
            launch = 1 + step * 100 + gpu
            # it ends everywhere at once: it began later where it is shorter
            begin = at + (2_000 - duration) * US
            space.kernel(gpu, "Stream #2", kernel, begin, duration * US, op=op, correlation=launch)
            space.host("cuLaunchKernel", at, 1, "correlation_id", launch)
    return space


# instruction of four ranks -> kernel, bytes, and the factor of the bus bandwidth
BANDWIDTHS = {
    "all-gather-start.2 = (f32[1000], f32[4000]) all-gather-start(%p), replica_groups=[1,4]<=[4]":
        ("AllGather_RING_LL", 4000 * 4, 3 / 4),
    "reduce-scatter.1 = bf16[1000] reduce-scatter(%p), replica_groups=[1,4]<=[4], to_apply=%add":
        ("ReduceScatter_Sum_bf16_RING_LL", 4 * 1000 * 2, 3 / 4),
    "all-reduce.7 = f32[5000] all-reduce(%p), replica_groups={{0,1,2,3}}, to_apply=%add":
        ("AllReduce_Sum_f32_TREE_LL", 5000 * 4, 2 * 3 / 4),
}  # fmt: skip


@pytest.mark.parametrize("instruction", BANDWIDTHS)
def test_bandwidths_equal_a_computation_by_hand(instruction: str) -> None:
    kernel, size_bytes, factor = BANDWIDTHS[instruction]
    op = instruction.partition(" ")[0]
    space = step_of(op, f"ncclDevKernel_{kernel}", [[400, 100, 300, 200], [160, 240, 200, 120]])
    found = watched(space, made(entry(f"%{instruction}")))
    (row,) = found.rows
    # by hand: the shortest kernels take 100 and 120 us, so a transfer takes 110 us on average;
    # the kernels of all devices take 215 us on average, of which 105 us are wait
    kind = op.partition(".")[0].removesuffix("-start")
    assert (row.kind, row.size_bytes, row.ranks, row.executions) == (kind, size_bytes, 4, 1.0)
    assert row.transfer_s == pytest.approx(110e-6)
    assert row.duration_s == row.alone_s == pytest.approx(215e-6)
    assert row.wait_s == pytest.approx(105e-6)
    assert row.algbw == pytest.approx(size_bytes / 110e-6)
    assert row.busbw == pytest.approx(size_bytes / 110e-6 * factor)
    assert found.unmatched == ()
    # step 5: device 1 came last, the others waited 300 + 200 + 100; step 6: device 3, 40 + 120 + 80
    assert found.late is not None
    assert (found.late.device, found.late.is_assumed) == ("a.xplane.pb /device:GPU:1", False)
    assert found.late.imposed_s == pytest.approx(600e-6 / 2), "a step"
    assert found.late.of_all == pytest.approx(600 / 840)


ALL_REDUCE = "%all-reduce.1 = f32[4000] all-reduce(%p), replica_groups={}, to_apply=%add"


@pytest.mark.parametrize(
    ("groups", "durations_us", "transfer_us", "late"),
    [
        pytest.param("{}", [[400, 100]] * 2, 100, 1, id="all devices"),
        pytest.param(None, [[400, 100]] * 2, 100, 1, id="no program, as if all"),
        pytest.param("{{0},{1}}", [[400, 100]] * 2, 100, None, id="groups of a mesh"),
        pytest.param("{}", [[400, 400], [100, 100]], 250, None, id="long for all is no wait"),
        pytest.param("{}", [[400, 100], [400]], None, None, id="one device lacks an execution"),
        pytest.param("{}", [[400]] * 2, 400, None, id="one device"),
    ],
)
def test_the_device_that_came_last_is_named_where_it_can_be_told(
    groups: str | None, durations_us: list[list[int]], transfer_us: int | None, late: int | None
) -> None:
    space = step_of("all-reduce.1", "ncclDevKernel_AllReduce", durations_us)
    program = None if groups is None else made(entry(ALL_REDUCE.format(groups)))
    found = watched(space, program)
    (row,) = found.rows
    assert row.transfer_s == (None if transfer_us is None else pytest.approx(transfer_us * 1e-6))
    assert (found.late and found.late.device) == (
        None if late is None else f"a.xplane.pb /device:GPU:{late}"
    )


def test_an_operation_is_counted_as_often_as_it_runs_in_a_loop() -> None:
    space = Space()
    for step in range(2):
        space.host("train", step * 1000, 900, "step_num", step)
        for at in range(step * 1000, step * 1000 + 300, 100):
            space.host("cuLaunchKernel", step * 1000 + 1, 1, "correlation_id", at + 1)
            space.kernel(
                0, "Stream #1", "ncclDevKernel_SendRecv", at, 50, op="cp.1", correlation=at + 1
            )
    permute = "%cp.1 = f32[4] collective-permute(%p), source_target_pairs={{0,1}}"
    (row,) = watched(space, made(body("b", permute), entry(loop("w", "b", 3)))).rows
    assert (row.kind, row.executions) == ("collective-permute", 3.0)
    assert row.busbw == row.algbw == pytest.approx(16 / 50e-12)


def test_without_a_program_the_kind_is_told_by_a_name_and_no_bytes_are_known() -> None:
    kernel = "ncclDevKernel_AllGather_RING_LL"
    for op in ("all-gather.1", None):
        space = step_of(op, kernel, [[5, 7], [5, 7]])
        (row,) = watched(space).rows
        assert (row.kind, row.size_bytes, row.busbw) == ("all-gather", None, None)
        assert row.transfer_s == pytest.approx(5e-6)
        unknown = watched(space, made(entry("%x = f32[4] copy(%p)")))
        assert unknown.unmatched == (op or kernel,)


@pytest.mark.parametrize(
    ("groups", "ranks"),
    [
        ("{}", 4),
        ("{{0,1},{2,3}}", 2),
        ("[4,2]<=[2,4]T(1,0)", 2),
        ("mesh['pp'=2,'fsdp'=4] {'fsdp'}", 4),
        ("mesh['pp'=2,'fsdp'=4] {'pp','fsdp'}", 8),
        ("mesh['pp'=4] {'pp':(1)2}", None),
        ("mesh['pp'=2,'tp'=4], device_ids=([4,2]T(1,0)) {'tp'}", 4),
        ("", None),
    ],
)
def test_ranks_are_read_from_groups_in_every_dialect(groups: str, ranks: int | None) -> None:
    assert ranks_of(groups, 4) == ranks


def drilled(rows: dict[str, tuple[TimeRow, ...]], span_ps: int = 1000) -> Drill:
    line = Timeline(
        span_ps=span_ps,
        busy_ps=900,
        compute_ps=600,
        exposed_communication_ps=250,
        exposed_memory_ps=50,
    )
    found = drill([node(steps=1, gpus=1).trace()])
    gpu = replace(found.gpus[0], steps=(line,), outside=Timeline())
    return replace(found, gpus=(gpu,), **({"kernels": (), "ops": ()} | rows))


def program(*kinds: str) -> Program:
    found = made(entry(GATHER))
    (one,) = found.collectives
    return replace(found, collectives=tuple(replace(one, kind=kind) for kind in kinds))


def rows(alone_ps: dict[str, int], kind: Kind = Kind.COMMUNICATION) -> tuple[TimeRow, ...]:
    return tuple(
        TimeRow(name=name, family="f", kind=kind, count=1, sum_ps=each, alone_ps=each)
        for name, each in alone_ps.items()
    )


OPS = {"ops": (
    *rows({"all-gather-start.3": 100, "all-gather.7": 20, "reduce-scatter-start": 80,
           "ragged-all-to-all.1": 30, "send-done.2": 20}),
    *rows({"all-gather-fusion-like": 500}, Kind.COMPUTE),
)}  # fmt: skip
KERNELS = {"kernels": rows({
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": 120,
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL": 80,
    "ncclDevKernel_SendRecv": 60,
    "mscclKernel_Sum_half_LL": 5,
})}  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "kinds", "exchanged"),
    [
        (OPS, None, {"all-to-all": 0.03, "collective-permute": 0.02}),
        (KERNELS, ("all-gather", "collective-permute"), {"collective-permute": 0.06}),
        (KERNELS, ("all-gather", "ragged-all-to-all"), {"all-to-all": 0.06}),
        (KERNELS, ("all-to-all", "collective-permute"), {}),
        (KERNELS, (), {}),
    ],
    ids=["operations say it", "a pipeline's", "an exchange of tokens", "either", "unknown"],
)
def test_a_library_s_send_and_receive_is_of_the_one_kind_that_the_program_has(
    rows: dict[str, tuple[TimeRow, ...]], kinds: tuple[str, ...] | None, exchanged: dict[str, float]
) -> None:
    found = shares_of(drilled(rows), None if kinds is None else program(*kinds))
    assert found is not None
    whole = {"communication": 0.25, "compute": 0.6, "copies": 0.05, "idle": 0.1}
    assert found.of_step == {"all-gather": 0.12, "reduce-scatter": 0.08, **exchanged, **whole}


def test_a_dump_alone_tells_the_kinds_and_no_time_and_nothing_tells_nothing() -> None:
    assert shares_of(None, None) is None
    found = shares_of(None, program("send", "recv", "all-reduce", "all-reduce"))
    assert found == Shares(of_step={}, kinds=("all-reduce", "collective-permute"))
    assert shares_of(drilled({}, span_ps=0), program()) == Shares(of_step={}, kinds=())
