"""Captures of real devices against computed truth, and one format against the other."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_xlatune.evidence.pgle import pgle_profile
from pytest_xlatune.evidence.trace import Trace
from pytest_xlatune.evidence.trace._chrome import read_trace_json
from pytest_xlatune.evidence.trace.breakdown import drill
from pytest_xlatune.evidence.trace.step_times import StepRule
from tests.helpers.captures import read_xplane
from tests.helpers.hlo_programs import DATA

ROOT = Path(__file__).resolve().parents[2]
TRACES = Path(os.environ.get("XLATUNE_TRACE_DATA", ROOT.parent / "shared" / "data" / "traces"))
REAL = sorted(path.name.removesuffix(".truth.json") for path in TRACES.glob("*.truth.json"))


def both(path: Path) -> Iterator[Trace]:
    yield read_xplane(path.read_bytes(), path.name)
    other = path.with_name(path.name.replace(".xplane.pb", ".trace.json.gz"))
    yield read_trace_json(other.read_bytes(), other.name)


@pytest.mark.parametrize("name", REAL or [None])
def test_real_amd_capture_equals_its_truth(name: str | None) -> None:
    if name is None:
        pytest.skip(f"no captures in {TRACES.name}: set XLATUNE_TRACE_DATA to a folder with some")
    truth = json.loads((TRACES / f"{name}.truth.json").read_text())
    for trace in both(TRACES / f"{name}.xplane.pb"):
        found = drill([trace])
        (gpu,) = found.gpus
        want = truth["devices"][gpu.name]
        everything = gpu.total + gpu.outside
        assert len(trace.devices) == truth["devices_with_compute_kernels"]
        assert trace.planes_present == 8
        assert everything.kernels == want["events"]
        assert everything.sum_ps == want["sum_ps"]
        if found.rule is StepRule.WHOLE:
            line = found.total
            assert line.span_ps == want["span_ps"]
            assert line.busy_ps == want["union_busy_ps"]
            assert line.idle_ps == want["idle_in_span_ps"]
            assert line.concurrency_ps == want["stream_concurrency_ps"]
            assert line.compute_ps == want["union_by_kind_ps"]["compute"]
            assert line.communication_ps == want["union_by_kind_ps"]["comm"]
            assert line.memory_ps == want["union_by_kind_ps"]["memory"]
            assert line.exposed_memory_ps == want["exposed_memory_ps"]
            assert found.attributed_ps == want["hlo_op_attributed_ps"]
            for row in found.kernels:
                kernel = want["kernels"][row.name]
                assert (row.count, row.sum_ps) == (kernel["count"], kernel["total_ps"])
                assert row.longest_ps == kernel["max_ps"]


def test_each_step_of_a_real_capture_is_what_jaxs_own_reader_adds_up() -> None:
    """Between the starts of two steps: kernels, their sum, first start to last end, in ps."""
    several = 0
    for path in [TRACES / f"{name}.xplane.pb" for name in REAL]:
        (gpu,) = drill([read_xplane(path.read_bytes(), "x")]).gpus
        if len(gpu.steps) == 1:
            continue
        several += 1
        kernels = [
            (round(event.start_ns * 1000), round(event.duration_ns * 1000))
            for plane in pytest.importorskip("jax").profiler.ProfileData.from_file(str(path)).planes
            for line in plane.lines
            if plane.name == gpu.name and line.name.startswith("Stream")
            for event in line.events
        ]
        ends = (*gpu.begins_ps[1:], max(start for start, _ in kernels) + 1)
        for step, begin, end in zip(gpu.steps, gpu.begins_ps, ends, strict=True):
            own = [each for each in kernels if begin <= each[0] < end]
            last = max(start + duration for start, duration in own)
            assert (step.kernels, step.sum_ps) == (len(own), sum(size for _, size in own))
            assert step.span_ps == last - begin
    if not REAL:
        pytest.skip("no captures: set XLATUNE_TRACE_DATA to a folder with some")
    assert several


H100 = DATA / "jaxlib-0.11.2"


def of_h100(name: str) -> Trace:
    path = H100 / f"{name}.trace.json.gz"
    return read_trace_json(path.read_bytes(), path.name)


@pytest.mark.parametrize("name", ["graphs", "launches"])
def test_a_real_nvidia_capture_adds_up_to_its_own_events(name: str) -> None:
    with gzip.open(H100 / f"{name}.trace.json.gz", "rb") as file:
        events = json.load(file)["traceEvents"]
    kernels = [each for each in events if each.get("pid") == 1 and each["ph"] == "X"]
    found = drill([of_h100(name)])
    (gpu,) = found.gpus
    everything = gpu.total + gpu.outside
    assert (found.rule, found.steps) == (StepRule.LAUNCH, (5, 6))
    assert everything.kernels == len(kernels)
    assert everything.sum_ps == sum(round(each["dur"] * 1e6) for each in kernels)
    families = {row.name: row for row in found.families}
    assert {"gemm", "copies"} <= families.keys()
    of_copies = [row for row in found.kernels if row.family == "copies"]
    assert {row.name.lower()[:6] for row in of_copies} == {"memcpy"}


def test_a_kernel_of_a_cuda_graph_names_no_operation() -> None:
    """It has the name of its graph in the place of it: `command_buffer_21`."""
    graphs, launches = drill([of_h100("graphs")]), drill([of_h100("launches")])
    named = graphs.attributed_ps / graphs.total.sum_ps
    assert named < 0.05
    assert not any("command_buffer" in row.name for row in graphs.ops)
    assert launches.attributed_ps == launches.total.sum_ps
    assert "gemm_fusion_dot" in pgle_profile(launches)
