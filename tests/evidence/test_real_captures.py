"""Captures of real devices against computed truth, and one format against the other."""

from __future__ import annotations

import gzip
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_xlatune.evidence.pgle import pgle_profile
from pytest_xlatune.evidence.protobuf import fields, text
from pytest_xlatune.evidence.trace import Trace
from pytest_xlatune.evidence.trace._chrome import read_trace_json
from pytest_xlatune.evidence.trace.breakdown import CaptureWindow, drill
from pytest_xlatune.evidence.trace.captures import read_window
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


def real(*names: str) -> pytest.MarkDecorator:
    reason = "no captures: set XLATUNE_TRACE_DATA to a folder with some"
    missing = pytest.param("", marks=pytest.mark.skip(reason=reason))
    return pytest.mark.parametrize("name", names or [missing])


@real(*REAL)
def test_real_amd_capture_equals_its_truth(name: str) -> None:
    truth = json.loads((TRACES / f"{name}.truth.json").read_text())
    for trace in both(TRACES / f"{name}.xplane.pb"):
        found = drill([trace])
        (gpu,) = found.gpus
        want = truth["devices"][gpu.name]
        everything = gpu.total + gpu.outside
        assert len(trace.devices) == truth["devices_with_compute_kernels"]
        assert trace.planes_present == 8
        assert (everything.kernels, everything.sum_ps) == (want["events"], want["sum_ps"])
        if found.rule is not StepRule.WHOLE:
            continue
        line = found.total
        assert line.span_ps == want["span_ps"]
        assert line.busy_ps == want["union_busy_ps"]
        assert line.idle_ps == want["idle_in_span_ps"]
        assert line.concurrency_ps == want["stream_concurrency_ps"]
        by_kind = (line.compute_ps, line.communication_ps, line.memory_ps)
        assert by_kind == tuple(
            want["union_by_kind_ps"][kind] for kind in ("compute", "comm", "memory")
        )
        assert line.exposed_memory_ps == want["exposed_memory_ps"]
        assert found.attributed_ps == want["hlo_op_attributed_ps"]
        for row in found.kernels:
            kernel = want["kernels"][row.name]
            expected = tuple(kernel[key] for key in ("count", "total_ps", "max_ps"))
            assert (row.count, row.sum_ps, row.longest_ps) == expected


@real(*(each for each in REAL if "gemm" in each))
def test_the_profile_for_the_scheduler_equals_that_of_jax_on_a_real_capture(name: str) -> None:
    profiler = pytest.importorskip("jax._src.lib", reason="needs JAX")._profiler
    path = TRACES / f"{name}.xplane.pb"
    lines = [
        line.split() for line in pgle_profile(read_window([path], CaptureWindow())[0]).splitlines()
    ]
    expected = {}
    profile = profiler.get_fdo_profile(path.read_bytes())
    for _, _, begin, end in fields(profile, 0, len(profile)):
        parts = {number: (first, last) for number, _, first, last in fields(profile, begin, end)}
        cost = struct.unpack("<d", profile[slice(*parts[2])])[0] if 2 in parts else 0.0
        expected[text(profile, *parts[1])] = cost
    found = {json.loads(words[3]): float(words[5]) for words in lines}
    assert found == pytest.approx(expected, abs=1e-5)
    assert len(found) == 4


H100 = DATA / "jaxlib-0.11.2"


def test_a_real_nvidia_capture_adds_up_to_its_own_events() -> None:
    """A kernel of a CUDA graph names the graph in the place of its operation."""
    drills = {}
    for name in ("graphs", "launches"):
        data = (H100 / f"{name}.trace.json.gz").read_bytes()
        events = json.loads(gzip.decompress(data))["traceEvents"]
        kernels = [each for each in events if each.get("pid") == 1 and each["ph"] == "X"]
        drills[name] = found = drill([read_trace_json(data, name)])
        (gpu,) = found.gpus
        everything = gpu.total + gpu.outside
        assert (found.rule, found.steps) == (StepRule.LAUNCH, (5, 6))
        assert everything.kernels == len(kernels)
        assert everything.sum_ps == sum(round(each["dur"] * 1e6) for each in kernels)
        assert {"gemm", "copies"} <= {row.name for row in found.families}
        of_copies = [row for row in found.kernels if row.family == "copies"]
        assert {row.name.lower()[:6] for row in of_copies} == {"memcpy"}
    graphs, launches = drills.values()
    assert graphs.attributed_ps / graphs.total.sum_ps < 0.05
    assert not any("command_buffer" in row.name for row in graphs.ops)
    assert launches.attributed_ps == launches.total.sum_ps
    assert "gemm_fusion_dot" in pgle_profile(launches)
