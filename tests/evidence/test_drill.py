"""A made capture drills to the figures it was made of, and what captures once hid is told."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from pytest_xlatune.evidence.trace import Trace, shipped_families
from pytest_xlatune.evidence.trace._chrome import read_trace_json
from pytest_xlatune.evidence.trace.breakdown import CaptureWindow, Drill, drill
from pytest_xlatune.evidence.trace.collectives import shares_of
from pytest_xlatune.evidence.trace.comparison import SPAN, TOTAL, compare_windows, figures
from pytest_xlatune.evidence.trace.step_times import StepRule
from pytest_xlatune.model.errors import ParseError
from pytest_xlatune.report.render import terminal
from pytest_xlatune.tasks.drill import drill_document
from tests.helpers.captures import Space, lines_json, msg, node, num, reconciles


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


def nameless() -> Space:
    """Two kernels of the step's module, in its first step, without hlo_op."""
    space = node(gpus=1)
    for at in (10, 20):
        line = space.lines["/device:GPU:0"]["Stream #2(Compute)"]
        module = msg(4, num(1, 3), num(7, space.id(space.stats, "jit_f")))
        launch = msg(4, num(1, 1), num(3, 1))
        line.append(msg(4, num(1, 1), num(2, at), num(3, 1), launch, module))
    return space


NAMED = (5, 6, 7)


@pytest.mark.parametrize(
    ("space", "rule", "steps", "kernels", "outside_ps"),
    [
        pytest.param(
            node(late=950), StepRule.LAUNCH, NAMED, [4, 4, 4], 0,
            id="work behind its annotation is of the step that launched it",
        ),
        pytest.param(
            node(late=950, launches=False), StepRule.EXECUTIONS, NAMED, [4, 4, 4], 0,
            id="without launches the runs are counted",
        ),
        pytest.param(
            launched(), StepRule.LAUNCH, (0, 1), [1, 1], 6,
            id="a kernel whose launch is not known is of no step",
        ),
        pytest.param(
            unattributed(2), StepRule.WINDOWS, (0, 1), [1, 1], 5,
            id="kernels that name nothing are of the annotation that is open",
        ),
        pytest.param(
            unattributed(0), StepRule.WHOLE, (0,), [3], 0,
            id="without any marker the capture is one stretch",
        ),
        pytest.param(
            beside(), StepRule.EXECUTIONS, NAMED, [1, 1, 1], 0,
            id="a device on which the step does not run follows the others",
        ),
        pytest.param(
            nameless(), StepRule.LAUNCH, NAMED, [6, 4, 4], 0,
            id="kernels of a run that name no operation do not cut a step",
        ),
    ],
)  # fmt: skip
def test_each_kernel_is_of_its_step(
    space: Space, rule: StepRule, steps: tuple[int, ...], kernels: list[int], outside_ps: int
) -> None:
    found = drill([space.trace()])
    reconciles(found)
    assert (found.rule, found.steps) == (rule, steps)
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


def test_the_period_holds_what_lies_between_two_steps() -> None:
    found = drill([node(gpus=1).trace()])
    assert found.gpus[0].begins_ps == (0, 1000, 2000)
    assert found.periods_ps == (2000, 1500, 2)
    totals = figures(found)[TOTAL]
    assert totals["between steps"] == pytest.approx(250e-12)
    assert totals["period, start to start"] == pytest.approx(1000e-12)
    assert drill([node(steps=1).trace()]).periods_ps is None


def test_a_device_that_only_copies_is_in_no_figure() -> None:
    space = node(gpus=1)
    for step in range(3):
        space.kernel(1, "Stream #9(MemcpyD2D)", "MemcpyD2D", step * 1000, 700)
    found = drill([space.trace()], CaptureWindow(gpus=2))
    alone = drill([node(gpus=1).trace()])
    assert (found.total, found.families, found.gpu_steps) == (alone.total, alone.families, 3)
    assert found.warnings == (
        "a.xplane.pb: /device:GPU:1 only copied data, and no figure counts them",
    )


def test_what_is_no_kernel_is_in_no_figure() -> None:
    """Derived lines of a device, events of the host, and aggregates."""
    space = node(gpus=1)
    space.kernel(0, "XLA Ops", "fusion.1", 0, 10_000)
    space.kernel(0, "Steps", "5", 0, 10_000)
    space.host("ncclDevKernel_on_the_host", 0, 10_000, "x", 1)
    line = space.lines["/device:GPU:0"]["Stream #1(Compute)"]
    line.append(msg(4, num(1, 1), num(5, 12), num(3, 10_000)))
    assert drill([space.trace()]).total == drill([node(gpus=1).trace()]).total


def test_the_straggler_is_the_device_that_computes_longest() -> None:
    space = node(gpus=4)
    for step in range(3):
        space.kernel(2, "Stream #1(Compute)", "slow", step * 1000 + 760, 60, correlation=1 + step)
        # launched like the first kernels of each step
    trace = space.trace()
    found = drill([trace], CaptureWindow(steps=3))
    assert found.straggler.name == "/device:GPU:2"
    assert found.spread > 0


def test_blockers_are_ranked_by_the_time_that_nothing_runs_beside_them() -> None:
    space = Space()
    for step in range(2):
        at = step * 1000
        space.host("train", at, 990, "step_num", step)
        space.kernel(0, "Stream #1", "long_gemm", at, 600, op="a")  # 400 of them alone
        space.kernel(0, "Stream #2", "ncclDevKernel_AllGather", at, 200, op="b")
        space.kernel(0, "Stream #1", "short_fusion", at + 700, 100, op="c")
        space.kernel(0, "Stream #1", "tiny", at + 900, 2, op="d")
    found = drill([space.trace()])
    assert [(row.name, row.alone_ps) for row in found.blockers] == [
        ("long_gemm", 800),
        ("short_fusion", 200),
    ]
    told = terminal(drill_document([found]))
    at = next(i for i, each in enumerate(told) if "nothing runs beside them:" in each)
    assert "long_gemm" in told[at + 1]


def spaced(period: int, gemm: int, *, steps: int = 3) -> Drill:
    space = Space()
    for step in range(steps):
        at = step * period
        space.host("train", at, period - 10, "step_num", step)
        space.kernel(0, "Stream #1", "gemm", at, gemm, op="gemm")
    return drill([space.trace()])


MS = 10**9


@pytest.mark.parametrize(
    ("period", "steps", "says"),
    [
        pytest.param(
            12 * MS,
            3,
            "a step takes 2.000 ms more (+20.0%): between steps +3.000 ms, compute -1.000 ms",
            id="the span is shorter, and the step longer, for the host is waited for",
        ),
        pytest.param(
            10 * MS, 3, "the time from step to step did not change by more than 0.5%", id="alike"
        ),
        pytest.param(
            10 * MS, 1, "the span of a step is 1.000 ms less (-16.7%)", id="one step has no next"
        ),
    ],
)
def test_the_headline_tells_a_step_from_its_start_to_that_of_the_next(
    period: int, steps: int, says: str
) -> None:
    found = compare_windows(
        spaced(10 * MS, 6 * MS, steps=steps), spaced(period, 5 * MS, steps=steps)
    )
    (span,) = found.of(SPAN)
    assert span.change_s() < 0
    assert found.sentences[0].startswith(says)


STREAM = "Stream #1(Compute)"


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


def stretch(kernels: list[int]) -> Trace:
    """Devices without steps that ran so many kernels: three names in turn."""
    lines = {
        f"/device:GPU:{gpu}": [("abc"[at % 3], at * 10.0, 8.0) for at in range(count)]
        for gpu, count in enumerate(kernels)
    }
    return read_trace_json(lines_json(lines), "a.json")


def blocked(kernel: str) -> Trace:
    space = Space()
    for step in range(3):
        space.host("train", step * 1000, 900, "step_num", step)
        space.kernel(0, STREAM, kernel, step * 1000, 800)
    return space.trace()


REMEDIES = {each.name: each.remedy for each in shipped_families()}
ENDS = "steps before it have"


@pytest.mark.parametrize(
    ("trace", "says"),
    [
        pytest.param(
            lambda: without(node(steps=5, gpus=8), 3, 1).trace(),
            "/device:GPU:3 has 3 in step 9, where most steps have 4",
            id="one kernel lost on one of eight GPUs leaves five steps and names the GPU",
        ),
        pytest.param(
            lambda: without(node(steps=5, gpus=8, launches=False), 3, 1).trace(),
            "steps 5, 6, 7, 8, 9: steps are the runs of the step's module",
            id="so it does where no launch is known",
        ),
        pytest.param(
            lambda: without(node(steps=4, gpus=1), 0, 1).trace(),
            f"the last step of /device:GPU:0 lacks 1 kernel that all {ENDS}",
            id="a capture that ends inside its last step says which kernels are missing",
        ),
        pytest.param(
            lambda: one_step(kernels=3).trace(),
            "the host launched work 7 more times behind the last kernel of the capture",
            id="a single step that ends too early says so by its launches",
        ),
        pytest.param(
            lambda: stretch([3 * 4 + 1]),
            f"the last step of /device:GPU:0 lacks 2 kernels that all {ENDS} (b, c)",
            id="a stretch without steps that ends inside a run says so too",
        ),
        pytest.param(
            lambda: more_than_a_step().trace(),
            "the window cuts a step",
            id="a window that holds more than its steps says so",
        ),
        pytest.param(
            lambda: stretch([12, 12, 6]),
            "/device:GPU:2 ends 0.060 ms before the last device of its process",
            id="ranks that end apart are told",
        ),
        pytest.param(
            lambda: blocked("RaggedAllToAllKernelImpl<8>"),
            "--xla_gpu_unsupported_use_ragged_all_to_all_one_shot_kernel=false",
            id="a ragged one-shot kernel that blocks names its flag",
        ),
        pytest.param(
            lambda: blocked("input_scatter_fusion_2.kd"),
            "jax.custom_vjp",
            id="a scatter that blocks names the change of the program",
        ),
        pytest.param(
            lambda: blocked("loop_gather_fusion.kd"),
            REMEDIES["gather fusions"],
            id="a gather that blocks names the change of the program",
        ),
    ],
)
def test_what_was_hidden_is_told(trace: Callable[[], Trace], says: str) -> None:
    found = drill([trace()])
    shown = terminal(drill_document([found], width=None), width=1000)
    assert says in "\n".join(shown)


@pytest.mark.parametrize(
    "trace", [stretch([12]), stretch([12, 12]), stretch([3]), one_step(kernels=10).trace()]
)
def test_a_whole_capture_is_told_without_a_warning(trace: Trace) -> None:
    assert drill([trace]).warnings == ()


def test_the_ceiling_of_a_part_is_its_share_of_a_step() -> None:
    shares = shares_of(drill([blocked("loop_gather_fusion.kd")]), None)
    assert shares is not None
    assert shares.of_step == {"communication": 0, "compute": 1, "copies": 0, "idle": 0}
    assert shares.kernels == {"compute": ("loop_gather_fusion.kd",)}
