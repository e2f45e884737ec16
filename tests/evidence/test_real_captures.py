"""Captures of real devices against computed truth, and one format against the other."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pytest_xlatune.evidence.trace import Kind, Trace
from pytest_xlatune.evidence.trace._chrome import read_trace_json
from pytest_xlatune.evidence.trace._xplane import read_xplane
from pytest_xlatune.evidence.trace.breakdown import drill
from pytest_xlatune.evidence.trace.step_times import StepRule

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


def test_real_cpu_capture_has_its_steps_and_both_formats_agree(cpu_capture: Path) -> None:
    xplane, fallback = both(cpu_capture)
    found = drill([xplane])
    assert found.rule is StepRule.LAUNCH
    assert found.steps == (5, 6, 7)
    assert found.even
    assert [gpu.name for gpu in found.gpus] == ["/host:CPU:0", "/host:CPU:1"]
    assert {row.kind for row in found.families} >= {Kind.COMPUTE, Kind.COMMUNICATION}
    assert found.attributed_ps == found.total.sum_ps
    for one, two in zip(xplane.devices, fallback.devices, strict=True):
        assert one.name == two.name
        for stream in one.streams:
            (other,) = (each for each in two.streams if each.name == stream.name)
            for column in ("start_ps", "duration_ps"):
                mine, its = (np.sort(getattr(each.events, column)) for each in (stream, other))
                assert np.abs(mine - its).max() <= 1000
    assert drill([fallback]).total.kernels == found.total.kernels


def test_real_cpu_capture_leaves_out_what_contains_other_operations(cpu_capture: Path) -> None:
    found = drill([read_xplane(cpu_capture.read_bytes(), "x")])
    names = {row.name for row in found.kernels}
    assert not any(name.startswith("while") for name in names)
    assert found.total.concurrency_ps == 0  # one thread runs one operation of a device at a time
