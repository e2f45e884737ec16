"""What captures once hid: each row has what was seen, and the words that say it now."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_xlatune.evidence.trace import Trace, shipped_families
from pytest_xlatune.evidence.trace._chrome import read_trace_json
from pytest_xlatune.evidence.trace.breakdown import drill
from pytest_xlatune.evidence.trace.collectives import shares_of
from pytest_xlatune.report.render import terminal
from pytest_xlatune.tasks.drill import Drilled
from pytest_xlatune.tasks.drill_document import drill_document
from tests.helpers.captures import Space, lines_json, node

STREAM = "Stream #1(Compute)"


def without(space: Space, gpu: int, last: int) -> Space:
    """Lose the last kernels of a device's computing stream."""
    del space.lines[f"/device:GPU:{gpu}"][STREAM][-last:]
    return space


def more_than_a_step() -> Space:
    space = node()
    space.kernel(0, STREAM, "nvjet_gemm", 2_800, 5, op="nvjet_gemm", correlation=1)
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
    shown = terminal(drill_document(Drilled(drills=(found,)), width=None), width=1000)
    assert says in "\n".join(shown)


@pytest.mark.parametrize("kernels", [[12], [12, 12], [3]], ids=str)
def test_a_whole_stretch_is_told_without_a_warning(kernels: list[int]) -> None:
    assert drill([stretch(kernels)]).warnings == ()


def test_the_ceiling_of_a_part_is_its_share_of_a_step() -> None:
    shares = shares_of(drill([blocked("loop_gather_fusion.kd")]), None)
    assert shares is not None
    assert shares.of_step == {"communication": 0, "compute": 1, "copies": 0, "idle": 0}
    assert shares.kernels == {"compute": ("loop_gather_fusion.kd",)}
