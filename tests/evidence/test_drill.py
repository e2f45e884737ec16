"""Captures drilled to the figures they were made of, and joined with their program."""

from __future__ import annotations

import contextlib
import re
import tomllib
from importlib.resources import files

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.evidence.trace import (
    KINDS,
    Kind,
    Trace,
    classify,
    parse_families,
    shipped_families,
)
from pytest_xlatune.evidence.trace._chrome import read_trace_json
from pytest_xlatune.evidence.trace.breakdown import (
    CaptureWindow,
    Drill,
    Timeline,
    TimeRow,
    drill,
    timeline,
)
from pytest_xlatune.evidence.trace.collectives import (
    Communication,
    Watch,
    communication_of,
    ranks_of,
    shares_of,
)
from pytest_xlatune.evidence.trace.comparison import SPAN, compare_windows
from pytest_xlatune.evidence.trace.step_times import StepRule
from pytest_xlatune.model.errors import ConfigError, ParseError
from pytest_xlatune.model.shares import Shares
from pytest_xlatune.report.document import terminal
from pytest_xlatune.tasks.drill import TOP, drill_document, drill_json
from pytest_xlatune.tasks.programs import program_document, programs_json
from tests.helpers import golden
from tests.helpers.captures import Space, lines_json, msg, node, num, reconciles
from tests.helpers.hlo_programs import DATA, GATHER, body, entry, loop, made, program


def test_a_node_drills_to_the_figures_it_was_made_of() -> None:
    found = drill([node().trace()], CaptureWindow(gpus=2, steps=3))
    reconciles(found)
    assert found.launcher == "one process per node, 2 GPUs each"
    assert (found.rule, found.steps, found.even) == (StepRule.LAUNCH, (5, 6, 7), True)
    assert found.gpu_steps == 6
    step = found.gpus[1].steps[0]
    assert step.kernels == 4
    assert step.sum_ps == 300 + 201 + 250 + 20
    assert step.compute_ps == 550
    assert step.overlap_ps == 100
    assert step.exposed_communication_ps == 101
    assert step.exposed_memory_ps == 9  # 390..410, of which the all-gather covers 11
    assert step.span_ps == 750
    assert step.idle_ps == 90
    assert found.gpus[0].main_stream == "Stream #1(Compute)"
    # the gemm overlaps for a third of its time: what it takes alone ranks it all the same
    assert [row.name for row in found.blockers] == ["input_scatter_fusion_2.kd", "nvjet_gemm"]
    (scatter,) = (row for row in found.ops if row.name == "input_scatter_fusion_2.kd")
    assert (scatter.count, scatter.sum_ps, scatter.alone_ps) == (6, 250 * 6, 250 * 6)
    assert (scatter.main_ps, scatter.longest_ps) == (250 * 6, 250)


STREAM = "Stream #1(Compute)"


def launched() -> Space:
    """Two steps of one kernel each, and three kernels whose launch is not known."""
    space = Space()
    for step in range(2):
        space.host("train", step * 1000, 900, "step_num", step)
        space.host("cuLaunchKernel", step * 1000 + 1, 1, "correlation_id", 10 + step * 9)
        space.kernel(0, "Stream #1", "fusion", step * 1000 + 10, 50, correlation=10 + step * 9)
    for i, unknown in enumerate((8, 14, 20)):
        space.kernel(0, "Stream #1", "fusion", 300 + i * 10, 1 + i, correlation=unknown)
    return space


def unattributed(marks: int) -> Space:
    """Three kernels in two steps, and one between them, that name nothing."""
    space = Space()
    for step in range(marks):
        space.host("train", step * 1000, 900, "step_num", step)
    for at, size in ((10, 50), (1010, 50), (950, 5)):
        space.kernel(0, "Stream #1", "fusion", at, size)
    return space


def beside() -> Space:
    """A reduction of another program, on a device of its own."""
    space = node(gpus=1, launches=False)
    for step in range(3):
        space.kernel(1, "Stream #1", "loop_add_fusion", step * 1000 + 100, 10)
    return space


# the rule of the steps, kernels of each step of the last device, and time outside of steps
STEPS = {
    "work behind its annotation is of the step that launched it": (
        node(late=950), StepRule.LAUNCH, [4, 4, 4], 0),
    "without launches the runs are counted": (
        node(late=950, launches=False), StepRule.EXECUTIONS, [4, 4, 4], 0),
    "a kernel whose launch is not known is of no step": (
        launched(), StepRule.LAUNCH, [1, 1], 6),
    "kernels that name nothing are of the annotation that is open": (
        unattributed(2), StepRule.WINDOWS, [1, 1], 5),
    "without any marker the capture is one stretch": (
        unattributed(0), StepRule.WHOLE, [3], 0),
    "a device on which the step does not run follows the others": (
        beside(), StepRule.EXECUTIONS, [1, 1, 1], 0),
}  # fmt: skip


@pytest.mark.parametrize(("space", "rule", "kernels", "outside_ps"), STEPS.values(), ids=STEPS)
def test_each_kernel_is_of_its_step(
    space: Space, rule: StepRule, kernels: list[int], outside_ps: int
) -> None:
    found = drill([space.trace()])
    reconciles(found)
    assert found.rule is rule
    assert found.steps in (tuple(range(at, at + len(kernels))) for at in (0, 5))
    assert [step.kernels for step in found.gpus[-1].steps] == kernels
    assert found.gpus[-1].outside.sum_ps == outside_ps


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        pytest.param(3, "", id="three are taken"),
        pytest.param(4, "100% of the kernel time belongs to kernels whose", id="four are refused"),
        pytest.param(7, "no multiple of the 7", id="seven are refused"),
    ],
)
def test_a_number_of_steps_is_held_against_the_kernels_of_a_stretch(steps: int, says: str) -> None:
    space = Space()
    for i in range(6):
        space.kernel(0, "Stream #1", f"fusion_{i % 2}", i * 100, 50)
    with pytest.raises(ParseError, match=says) if says else contextlib.nullcontext():
        found = drill([space.trace()], CaptureWindow(steps=steps))
        assert (found.rule, found.gpu_steps) == (StepRule.WHOLE, steps)


def test_what_is_no_kernel_and_a_device_that_only_copies_are_in_no_figure() -> None:
    space = node(gpus=1)
    for step in range(3):
        space.kernel(1, "Stream #9(MemcpyD2D)", "MemcpyD2D", step * 1000, 700)
    found = drill([space.trace()], CaptureWindow(gpus=2))
    alone = drill([node(gpus=1).trace()])
    assert (found.total, found.families, found.gpu_steps) == (alone.total, alone.families, 3)
    assert found.warnings == (
        "a.xplane.pb: /device:GPU:1 only copied data, and no figure counts them",
    )
    # derived lines of a device, events of the host, and aggregates
    space = node(gpus=1)
    space.kernel(0, "XLA Ops", "fusion.1", 0, 10_000)
    space.kernel(0, "Steps", "5", 0, 10_000)
    space.host("ncclDevKernel_on_the_host", 0, 10_000, "x", 1)
    line = space.lines["/device:GPU:0"]["Stream #1(Compute)"]
    line.append(msg(4, num(1, 1), num(5, 12), num(3, 10_000)))
    assert drill([space.trace()]).total == alone.total


def test_the_straggler_is_the_device_that_computes_longest() -> None:
    space = node(gpus=4)
    for step in range(3):  # launched like the first kernels of each step
        space.kernel(2, STREAM, "slow", step * 1000 + 760, 60, correlation=1 + step)
    found = drill([space.trace()], CaptureWindow(steps=3))
    assert found.straggler.name == "/device:GPU:2"
    assert found.spread > 0


US, MS = 10**6, 10**9  # in picoseconds


@pytest.mark.parametrize(
    ("period", "steps", "says"),
    [
        (12 * MS, 3, "a step takes 2.000 ms more (+20.0%): between steps +2.970 ms, compute -0.98"),
        (10 * MS, 3, "the time from step to step did not change by more than 0.5%"),
        (10 * MS, 1, "the span of a step is 0.970 ms less (-16.2%)"),
    ],
    ids=["the span is shorter, for the host is waited for", "alike", "one step has no next"],
)
def test_the_headline_tells_a_step_from_its_start_to_that_of_the_next(
    period: int, steps: int, says: str
) -> None:
    drills = []
    for every, gemm, gap in ((10 * MS, 6 * MS, 0), (period, 5 * MS, MS // 100)):
        space = Space()
        for at in range(0, steps * every, every):
            space.host("train", at, every - 10, "step_num", at // every)
            space.kernel(0, STREAM, "gemm", at, gemm, op="gemm")
            if gap:
                space.kernel(0, STREAM, "tail", at + gemm + gap, 2 * gap, op="tail")
        drills.append(drill([space.trace()]))
    found = compare_windows(*drills)
    (span,) = found.of(SPAN)
    assert span.change_s() < 0
    assert found.sentences[0].startswith(says)
    whole, _, parts = found.sentences[0].partition(": ")
    changes = [float(part) for part in re.findall(r"(\S+) ms(?:,|;|$)", parts)]
    assert not parts or abs(sum(changes)) == pytest.approx(float(re.findall(r"[\d.]+", whole)[0]))


def without(space: Space, gpu: int, last: int) -> Space:
    """Lose the last kernels of a device's computing stream."""
    del space.lines[f"/device:GPU:{gpu}"][STREAM][-last:]
    return space


def more_than_a_step() -> Space:
    space = node()
    space.kernel(0, STREAM, "nvjet_gemm", 2_800, 5, op="nvjet_gemm", correlation=1)
    return space


def one_step(kernels: int) -> Space:
    """Ten launches of a step, of which so many have their kernel."""
    space = Space()
    space.host("train", 0, 900, "step_num", 5)
    for at in range(10):
        space.host("cuLaunchKernel", at + 1, 1, "correlation_id", at + 1)
        if at < kernels:
            space.kernel(0, STREAM, "gemm", 100 + at * 10, 9, op="gemm", correlation=at + 1)
    return space


def blocked(kernel: str) -> Trace:
    space = Space()
    for step in range(3):
        space.host("train", step * 1000, 900, "step_num", step)
        space.kernel(0, STREAM, kernel, step * 1000, 800)
    return space.trace()


def stretch(*kernels: int) -> Trace:
    """Devices without steps that ran so many kernels: three names in turn."""
    lines = {
        f"/device:GPU:{gpu}": [("abc"[at % 3], at * 10.0, 8.0) for at in range(count)]
        for gpu, count in enumerate(kernels)
    }
    return read_trace_json(lines_json(lines), "a.json")


(GATHERS,) = [each.remedy for each in shipped_families() if each.name == "gather fusions"]
HIDDEN = {
    "one kernel lost on one of eight GPUs leaves five steps": (
        without(node(steps=5, gpus=8), 3, 1).trace(),
        "steps have different numbers of kernels"),
    "a capture that ends inside its last step says which kernels are missing": (
        without(node(steps=4, gpus=1), 0, 1).trace(),
        "the last step of /device:GPU:0 lacks 1 kernel that all steps before it have"),
    "a single step that ends too early says so by its launches": (
        one_step(kernels=3).trace(),
        "the host launched work 7 more times behind the last kernel of the capture"),
    "a stretch without steps that ends inside a run says so too": (
        stretch(3 * 4 + 1),
        "the last step of /device:GPU:0 lacks 2 kernels that all steps before it have (b, c)"),
    "a window that holds more than its steps says so": (
        more_than_a_step().trace(), "the window cuts a step"),
    "ranks that end apart are told": (
        stretch(12, 12, 6), "/device:GPU:2 ends 0.060 ms before the last device of its process"),
    "a ragged one-shot kernel that blocks names its flag": (
        blocked("RaggedAllToAllKernelImpl<8>"),
        "--xla_gpu_unsupported_use_ragged_all_to_all_one_shot_kernel=false"),
    "a scatter that blocks names the change of the program": (
        blocked("input_scatter_fusion_2.kd"), "jax.custom_vjp"),
    "a gather that blocks names the change of the program": (
        blocked("loop_gather_fusion.kd"), GATHERS),
}  # fmt: skip


@pytest.mark.parametrize(("trace", "says"), HIDDEN.values(), ids=HIDDEN)
def test_what_was_hidden_is_told(trace: Trace, says: str) -> None:
    shown = terminal(drill_document([drill([trace])]), width=1000)
    assert says in "\n".join(shown)


def test_a_whole_capture_is_told_without_a_warning() -> None:
    for whole in (stretch(12), stretch(12, 12), stretch(3), one_step(kernels=10).trace()):
        assert drill([whole]).warnings == ()


def test_a_kernel_belongs_to_the_first_family_that_finds_it() -> None:
    families = shipped_families()
    table = files("pytest_xlatune.evidence.trace").joinpath("families.toml")
    for row in tomllib.loads(table.read_text())["family"]:
        for kernel in row["kernels"]:
            (found,), _ = classify((kernel,), families)
            assert families[found].name == row["name"], kernel


def test_own_families_replace_the_built_in_ones_and_wrong_ones_are_refused() -> None:
    mine = parse_families(
        [{"name": "router", "kind": "communication", "pattern": "scatter"}], where="f.toml"
    )
    found = drill([node().trace()], CaptureWindow(families=mine))
    assert {row.name for row in found.families} == {"router", "other"}
    assert found.total.communication_ps == 250 * 6
    reconciles(found)
    # wrong ones are a usage error
    for kind, pattern, says in (("computer", "", "'computer'"), ("memory", "(", r"pattern '\('")):
        with pytest.raises(ConfigError, match=says):
            parse_families([{"name": "a", "kind": kind, "pattern": pattern}], where="f.toml")
    with pytest.raises(ConfigError, match="expected a list of families"):
        parse_families({}, where="f.toml")


INTERVALS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 20), st.integers(0, len(KINDS) - 1)),
    min_size=1,
    max_size=30,
)


@given(INTERVALS)
def test_the_sweep_equals_counting_every_tick(intervals: list[tuple[int, int, int]]) -> None:
    start, size, kind = (np.array(column, np.int64) for column in zip(*intervals, strict=True))
    found, alone = timeline(start, start + size, kind)
    ticks = range(100)
    running = [[i for i, (a, n, _) in enumerate(intervals) if a <= tick < a + n] for tick in ticks]
    kinds = [{Kind(KINDS[intervals[i][2]]) for i in now} for now in running]
    assert found.sum_ps == sum(len(now) for now in running)
    assert found.busy_ps == sum(bool(now) for now in running)
    assert found.compute_ps == sum(Kind.COMPUTE in now for now in kinds)
    assert found.communication_ps == sum(Kind.COMMUNICATION in now for now in kinds)
    assert found.overlap_ps == sum({Kind.COMPUTE, Kind.COMMUNICATION} <= now for now in kinds)
    assert found.exposed_memory_ps == sum(now == {Kind.MEMORY} for now in kinds)
    exposed_ps = found.exposed_communication_ps + found.exposed_memory_ps
    assert found.busy_ps == found.compute_ps + exposed_ps
    assert list(alone) == [sum(now == [i] for now in running) for i in range(len(intervals))]


def hlo_lines(*programs: Program) -> list[str]:
    return terminal(program_document(*programs))


def drill_lines(*drills: Drill, top: int = TOP) -> list[str]:
    return terminal(drill_document(drills, top=top))


def variant(scatter_us: int = 4000, *, devices: int = 2) -> Drill:
    """Make a drill of two steps, with a scatter that blocks."""
    space = Space()
    period_us = 8500 + scatter_us
    for step in (5, 6):
        at = step * period_us
        space.host("train", at * US, 8000 * US, "step_num", step)
        for gpu in range(devices):
            for stream, name, begin_us, size_us in (
                ("Stream #13(Compute)", "nvjet_hsh_128x256_64x4_2x1_v_bz_TNT", 0, 6000),
                ("Stream #14(Compute)", "ncclDevKernel_AllGather_RING_LL", 4000, 3000),
                ("Stream #13(Compute)", "input_scatter_fusion_2.kd", 7500, scatter_us),
            ):
                space.kernel(
                    gpu, stream, name, (at + begin_us) * US, size_us * US, op=name, correlation=at
                )
        space.host("cuLaunchKernel", at * US, 1, "correlation_id", at)
    return drill([space.trace("node001.xplane.pb")], CaptureWindow(step_s=0.0125))


PROGRAMS = {
    "hlo.txt": ("0.10.2", ["fsdp-ov"]),
    "hlo-difference.txt": ("0.12.0", ["fsdp", "fsdp-ag"]),
    "hlo-schedule.txt": ("0.12.0", ["fsdp", "fsdp-ov"]),
    "hlo-identical.txt": ("0.6.2", ["fsdp", "fsdp-noasync"]),
}
DRILLS = {"drill.txt": [4000], "drill-comparison.txt": [4000, 40]}


@pytest.mark.parametrize("name", [*PROGRAMS, *DRILLS])
def test_rendered_evidence_equals_its_golden_file(name: str) -> None:
    if name in DRILLS:
        lines = drill_lines(*map(variant, DRILLS[name]))
    else:
        version, programs = PROGRAMS[name]
        lines = hlo_lines(*(program(version, each) for each in programs))
    golden.check(DATA / "golden" / name, "\n".join(lines) + "\n")


def test_flags_are_judged_where_both_option_files_are_known() -> None:
    two = program("0.12.0", "fsdp-ov")
    limit = "xla_gpu_experimental_parallel_collective_overlap_limit"
    options = {name: value for name, value in (two.options or {}).items() if name != limit}
    one = msgspec.structs.replace(program("0.12.0", "fsdp"), options=options)
    assert hlo_lines(one, two)[-1].endswith(f"{limit} acted: collectives in flight changed")
    one = msgspec.structs.replace(one, options=options | {"xla_new": "1"})
    proofs = programs_json(one, two)["difference"]["proofs"]
    assert [each["values"]["flag"] for each in proofs] == [limit, "xla_new"]
    assert hlo_lines(one, msgspec.structs.replace(two, options=None))[-1].count("acted") == 0


def test_three_variants_are_columns_with_their_change_against_the_first() -> None:
    lines = drill_lines(variant(), variant(40), variant(8000), top=1)
    assert lines[3].startswith("variant 2: a step takes 3.960 ms less")
    (row,) = (line.split() for line in lines if line.startswith("compute "))
    assert row == ["compute", "10.000", "6.040", "-3.960", "14.000", "+4.000"]
    kernels = lines[[line.split()[:1] for line in lines].index(["kernel"]) + 1 :]
    assert [line.split()[0] for line in kernels] == ["input_scatter_fusion_2.kd"]
    document = drill_json(variant(), variant(1), variant(2))
    assert [len(document[each]) for each in ("variants", "sentences")] == [3, 2]


def test_names_are_cut_in_the_middle() -> None:
    made = variant()
    ends = ["M64_N64_kd", "M64_N128_kd"]
    rows = [msgspec.structs.replace(made.kernels[0], name="Cijk_" + "A" * 99 + end) for end in ends]
    made = msgspec.structs.replace(made, kernels=tuple(rows))
    cut = drill_lines(made)
    assert sum(line.startswith("Cijk_A") and "M64_N" in line for line in cut) == 2
    assert not any(rows[0].name in line for line in cut)


def test_variants_of_different_yardsticks_are_refused() -> None:
    with pytest.raises(ConfigError, match="launcher is one process per node, 2"):
        compare_windows(variant(), variant(devices=4))


def watched(space: Space, compiled: Program | None = None) -> Communication:
    watch = Watch()
    return communication_of(drill([space.trace()], CaptureWindow(observe=watch)), compiled, watch)


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
    compiled = None if groups is None else made(entry(ALL_REDUCE.format(groups)))
    found = watched(space, compiled)
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


def with_kinds(*kinds: str) -> Program:
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
    found = shares_of(drilled(rows), None if kinds is None else with_kinds(*kinds))
    assert found is not None
    whole = {"communication": 0.25, "compute": 0.6, "copies": 0.05, "idle": 0.1}
    assert found.of_step == {"all-gather": 0.12, "reduce-scatter": 0.08, **exchanged, **whole}


def test_a_dump_alone_tells_the_kinds_and_no_time_and_nothing_tells_nothing() -> None:
    assert shares_of(None, None) is None
    blocked_by = shares_of(drill([blocked("loop_gather_fusion.kd")]), None)
    assert blocked_by is not None
    assert blocked_by.kernels == {"compute": ("loop_gather_fusion.kd",)}
    found = shares_of(None, with_kinds("send", "recv", "all-reduce", "all-reduce"))
    assert found == Shares(of_step={}, kinds=("all-reduce", "collective-permute"))
    assert shares_of(drilled({}, span_ps=0), with_kinds()) == Shares(of_step={}, kinds=())
