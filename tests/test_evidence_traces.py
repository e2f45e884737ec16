"""Captures to where the time went: real ones against computed truth, made ones, hostile ones."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_xlatune.errors import ConfigError, ParseError
from pytest_xlatune.evidence import columns, xplane
from pytest_xlatune.evidence.captures import choose_captures, read_captures
from pytest_xlatune.evidence.columns import BLOCK, decode, read_line
from pytest_xlatune.evidence.drill import Drill, drill
from pytest_xlatune.evidence.families import FAMILIES, KINDS, OTHER, Kind, classify, parse_families
from pytest_xlatune.evidence.grouped import grouped, merged
from pytest_xlatune.evidence.render import drill_lines
from pytest_xlatune.evidence.steps import Rule
from pytest_xlatune.evidence.timeline import timeline
from pytest_xlatune.evidence.trace import Trace
from pytest_xlatune.evidence.tracejson import read_trace_json
from pytest_xlatune.evidence.wire import Octets, WireError, varint
from pytest_xlatune.evidence.xplane import read_xplane

ROOT = Path(__file__).resolve().parent.parent
TRACES = Path(os.environ.get("XLATUNE_TRACE_DATA", ROOT.parent / "shared" / "data" / "traces"))
REAL = sorted(path.name.removesuffix(".truth.json") for path in TRACES.glob("*.truth.json"))

RECORD = """
import os, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("fsdp",))

def layer(x, w):
    return jnp.tanh(x @ w), None

def loss(ws, x):
    return jnp.mean(jax.lax.scan(layer, x, ws)[0] ** 2)

@jax.jit
def train_step(ws, x):
    value, grad = jax.value_and_grad(loss)(ws, x)
    return value, ws - 0.1 * grad

ws = jax.device_put(np.ones((4, 16, 16), "f4"), NamedSharding(mesh, P(None, "fsdp", None)))
x = jax.device_put(np.ones((8, 16), "f4"), NamedSharding(mesh, P("fsdp", None)))
_, ws = jax.block_until_ready(train_step(ws, x))
jax.profiler.start_trace(sys.argv[1])
for step in (5, 6, 7):
    with jax.profiler.StepTraceAnnotation("train", step_num=step):
        _, ws = jax.block_until_ready(train_step(ws, x))
jax.profiler.stop_trace()
"""


# --- a writer of the wire format, independent of the reader -------------------------------------


def uint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def num(field: int, value: int) -> bytes:
    return uint(field << 3) + uint(value)


def msg(field: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return uint(field << 3 | 2) + uint(len(body)) + body


def named(field: int, table: dict[int, str]) -> bytes:
    return b"".join(
        msg(field, num(1, key), msg(2, num(1, key), msg(2, name.encode())))
        for key, name in table.items()
    )


class Space:
    """An XSpace under construction: kernels, launches and step markers."""

    STATS = {"correlation_id": 1, "hlo_op": 2, "hlo_module": 3, "step_num": 4, "x": 5}  # noqa: RUF012

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.stats = dict(self.STATS)
        self.lines: dict[str, dict[str, list[bytes]]] = {"/host:CPU": {"python": []}}
        self.extra = b""

    def id(self, table: dict[str, int], name: str) -> int:
        return table.setdefault(name, len(table) + 1)

    def kernel(
        self,
        gpu: int,
        stream: str,
        name: str,
        start_ps: int,
        duration_ps: int,
        *,
        op: str | None = None,
        correlation: int | None = None,
    ) -> None:
        stats = b""
        if correlation is not None:
            stats += msg(4, num(1, self.STATS["correlation_id"]), num(3, correlation))
        if op is not None:
            stats += msg(4, num(1, self.STATS["hlo_op"]), num(7, self.id(self.stats, op)))
            stats += msg(4, num(1, self.STATS["hlo_module"]), num(7, self.id(self.stats, "jit_f")))
        line = self.lines.setdefault(f"/device:GPU:{gpu}", {}).setdefault(stream, [])
        line.append(
            msg(4, num(1, self.id(self.names, name)), num(2, start_ps), num(3, duration_ps), stats)
        )

    def host(self, name: str, start_ps: int, duration_ps: int, stat: str, value: int) -> None:
        self.lines["/host:CPU"]["python"].append(
            msg(
                4,
                num(1, self.id(self.names, name)),
                num(2, start_ps),
                num(3, duration_ps),
                msg(4, num(1, self.STATS[stat]), num(4, value)),
            )
        )

    def data(self) -> bytes:
        planes = []
        for plane, lines in self.lines.items():
            body = msg(2, plane.encode())
            for name, events in lines.items():
                body += msg(3, msg(2, name.encode()), *events)
            body += named(4, {v: k for k, v in self.names.items()})
            body += named(5, {v: k for k, v in self.stats.items()})
            planes.append(msg(1, body))
        return b"".join(planes) + self.extra

    def trace(self, source: str = "a.xplane.pb") -> Trace:
        return read_xplane(self.data(), source)


def node(*, steps: int = 3, gpus: int = 2, launches: bool = True, late: int = 0) -> Space:
    """Make a node with a gemm and a scatter on one stream, an all-gather beside the gemm.

    With `late` every kernel runs that much after the annotation that dispatched it.
    """
    space = Space()
    correlation = 0
    for step in range(steps):
        at = step * 1000
        space.host("train", at, 900, "step_num", 5 + step)
        for gpu in range(gpus):
            for stream, name, begin, size in (
                ("Stream #1(Compute)", "nvjet_gemm", 0, 300),
                ("Stream #2(Compute)", "ncclDevKernel_AllGather", 200, 200 + gpu),
                ("Stream #1(Compute)", "input_scatter_fusion_2.kd", 500, 250),
                ("Stream #3(MemcpyD2D)", "MemcpyD2D", 390, 20),
            ):
                correlation += 1
                space.kernel(
                    gpu, stream, name, at + begin + late, size, op=name, correlation=correlation
                )
                if launches:
                    space.host("cuLaunchKernel", at + 1, 1, "correlation_id", correlation)
    return space


# --- real captures ------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def cpu_capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record three annotated steps of a sharded trainer on two CPU devices."""
    pytest.importorskip("jax")
    folder = tmp_path_factory.mktemp("capture")
    environ = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    }
    subprocess.run(
        [sys.executable, "-c", RECORD, str(folder)],
        env=environ,
        check=True,
        timeout=300,
        capture_output=True,
    )
    return next(folder.rglob("*.xplane.pb"))


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
        if found.rule is Rule.WHOLE:
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
    assert found.rule is Rule.LAUNCH
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


# --- made captures ------------------------------------------------------------------------------


def reconciles(found: Drill) -> None:
    """Parts sum to totals to the picosecond."""
    total = found.total
    assert sum(row.sum_ps for row in found.families) == total.sum_ps
    assert sum(row.sum_ps for row in found.kernels) == total.sum_ps
    assert sum(row.count for row in found.kernels) == total.kernels
    assert sum(row.sum_ps for row in found.ops) == found.attributed_ps <= total.sum_ps
    assert total.busy_ps == (
        total.compute_ps + total.exposed_communication_ps + total.exposed_memory_ps
    )
    assert total.sum_ps == total.busy_ps + total.concurrency_ps
    assert total.span_ps == total.busy_ps + total.idle_ps


def test_a_node_drills_to_the_figures_it_was_made_of() -> None:
    found = drill([node().trace()], nodes=1, gpus_per_node=2, steps=3)
    reconciles(found)
    assert found.launcher == "one process per node, 2 GPUs each"
    assert (found.rule, found.steps, found.even) == (Rule.LAUNCH, (5, 6, 7), True)
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
    assert [row.name for row in found.blockers] == ["input_scatter_fusion_2.kd"]
    assert found.blockers[0].alone_ps == 250 * 6


@pytest.mark.parametrize(
    ("space", "rule"),
    [
        pytest.param(node(late=950), Rule.LAUNCH, id="work behind its annotation, by its launch"),
        pytest.param(
            node(late=950, launches=False), Rule.EXECUTIONS, id="no launches, by counting runs"
        ),
    ],
)
def test_work_that_runs_late_stays_in_the_step_that_dispatched_it(space: Space, rule: Rule) -> None:
    found = drill([space.trace()])
    assert (found.rule, found.steps) == (rule, (5, 6, 7))
    assert [step.kernels for step in found.gpus[0].steps] == [4, 4, 4]


@pytest.mark.parametrize("apart", [1, 1_000_000], ids=["looked up", "searched"])
def test_a_kernel_whose_launch_is_not_known_belongs_to_no_step(apart: int) -> None:
    space = Space()
    for step in range(2):
        space.host("train", step * 1000, 900, "step_num", step)
        space.host("cuLaunchKernel", step * 1000 + 1, 1, "correlation_id", 10 + step * apart)
        space.kernel(0, "Stream #1", "fusion", step * 1000 + 10, 50, correlation=10 + step * apart)
    for i, unknown in enumerate((8, 11 + apart, 10 + apart // 2 + 2)):
        space.kernel(0, "Stream #1", "fusion", 300 + i * 10, 1 + i, correlation=unknown)
    found = drill([space.trace()])
    assert (found.rule, found.steps) == (Rule.LAUNCH, (0, 1))
    assert [step.sum_ps for step in found.gpus[0].steps] == [50, 50]
    assert found.gpus[0].outside.sum_ps == 1 + 2 + 3


def test_kernels_without_attribution_fall_back_to_windows() -> None:
    space = Space()
    for step in range(2):
        space.host("train", step * 1000, 900, "step_num", step)
        space.kernel(0, "Stream #1", "fusion", step * 1000 + 10, 50)
    space.kernel(0, "Stream #1", "fusion", 950, 5)
    found = drill([space.trace()])
    assert (found.rule, found.steps) == (Rule.WINDOWS, (0, 1))
    assert found.gpus[0].outside.sum_ps == 5
    assert found.attributed_ps == 0


def test_without_any_marker_the_capture_is_one_stretch_over_the_given_steps() -> None:
    space = Space()
    for i in range(6):
        space.kernel(0, "Stream #1", f"fusion_{i}", i * 100, 50)
    found = drill([space.trace()], steps=3)
    assert (found.rule, found.gpu_steps) == (Rule.WHOLE, 3)
    reconciles(found)


def test_only_stream_lines_of_device_planes_are_kernels() -> None:
    space = node(gpus=1)
    space.kernel(0, "XLA Ops", "fusion.1", 0, 10_000)
    space.kernel(0, "Steps", "5", 0, 10_000)
    space.host("ncclDevKernel_on_the_host", 0, 10_000, "x", 1)
    assert drill([space.trace()]).total == drill([node(gpus=1).trace()]).total


def test_aggregated_events_are_no_timeline() -> None:
    space = node(gpus=1)
    line = space.lines["/device:GPU:0"]["Stream #1(Compute)"]
    line.append(msg(4, num(1, 1), num(5, 12), num(3, 10_000)))
    assert drill([space.trace()]).total == drill([node(gpus=1).trace()]).total


def test_odd_encodings_read_the_same_as_usual_ones() -> None:
    space = node(gpus=1)
    stats = space.stats
    string = msg(4, num(1, stats["hlo_op"]), msg(5, b"custom-call.77"))
    shuffled = msg(4, num(3, 40), string, num(2, 9_000), num(1, space.names["nvjet_gemm"]))
    wide = msg(4, num(1, 1), num(2, 9_100), num(3, 40), msg(4, num(1, stats["x"]), num(3, 1 << 63)))
    reverse = msg(4, num(2, 9_200), num(3, 40), msg(4, num(7, 2), num(1, stats["hlo_op"])))
    space.lines["/device:GPU:0"]["Stream #1(Compute)"] += [shuffled, wide, reverse]
    (device,) = space.trace().devices
    events = device.streams[0].events
    assert list(events.start_ps[-3:]) == [9_000, 9_100, 9_200]
    assert list(events.duration_ps[-3:]) == [40, 40, 40]
    assert space.trace().names[events.op[-3]] == "custom-call.77"


def test_a_line_of_many_blocks_keeps_every_event() -> None:
    count = 2 * BLOCK + 7
    line = msg(2, b"Stream #1") + b"".join(
        msg(4, num(1, i % 300), num(2, i * 1_000_003), num(3, i)) for i in range(count)
    )
    read = read_line(line, 0, len(line))
    parts = list(decode(read, {}, intern=len))
    assert np.array_equal(np.concatenate([part.duration_ps for part in parts]), np.arange(count))
    assert np.array_equal(
        np.concatenate([part.offset_ps for part in parts]), np.arange(count) * 1_000_003
    )


SMALL = st.integers(0, 200)
NUMBER = st.one_of(SMALL, st.integers(0, 1 << 40), st.integers(0, (1 << 60)))
IDENT = st.one_of(st.integers(0, 6), st.integers(120, 135), st.just(20_000))
STAT = st.tuples(IDENT, st.sampled_from(["uint", "int", "ref", "text", "none"]), NUMBER)
EVENT = st.tuples(st.one_of(st.just(0), NUMBER), NUMBER, SMALL, st.lists(STAT, max_size=5))


def stat(ident: int, kind: str, value: int) -> bytes:
    own = {"uint": num(3, value), "int": num(4, value), "ref": num(7, value), "none": b""}
    return msg(4, num(1, ident) if ident else b"", own.get(kind, msg(5, str(value).encode())))


@settings(max_examples=300)
@given(
    events=st.lists(EVENT, max_size=40),
    wanted=st.lists(st.sampled_from([1, 2, 5, 127, 128, 20_000]), unique=True, max_size=3),
)
def test_reading_in_lockstep_finds_what_reading_one_by_one_finds(
    events: list[tuple[int, int, int, list[tuple[int, str, int]]]], wanted: list[int]
) -> None:
    line = b"".join(
        msg(
            4,
            num(1, name) if name else b"",  # as protobuf writes it: zeros are left out
            num(2, offset) if offset else b"",
            num(3, size) if size else b"",
            *(stat(*each) for each in stats),
        )
        for name, offset, size, stats in events
    )
    ids = {str(each): each for each in wanted}

    def found() -> list[list[int]]:
        parts = list(decode(read_line(line, 0, len(line)), ids, intern=lambda text: -int(text) - 2))
        names = ("name", "offset_ps", "duration_ps")
        rows = [[int(i) for part in parts for i in getattr(part, each)] for each in names]
        return rows + [[int(i) for part in parts for i in part.stats[each]] for each in ids]

    at_once = found()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "IDS", 0)
        ids["none"] = 77  # so that there is an id beyond the table
        assert found()[:-1] == at_once
    assert at_once[:3] == [[event[i] for event in events] for i in range(3)]


@pytest.mark.parametrize(
    "stats",
    [
        pytest.param(b"\x22\x01\x08", id="an id without its number"),
        pytest.param(b"\x22\x02\x08\x80", id="an id that does not end"),
        pytest.param(msg(4, num(1, 1), b"\x18"), id="a value without its number"),
        pytest.param(b"\x22\x7f\x08\x01\x18\x01", id="longer than its event"),
    ],
)
@pytest.mark.parametrize("behind", [b"", msg(4, num(1, 1), num(3, 7))], ids=["last", "not last"])
def test_a_stat_that_is_none_is_refused(stats: bytes, behind: bytes) -> None:
    event = msg(4, num(1, 1), num(2, 3), num(3, 4), msg(4, num(1, 1), num(3, 7)))
    bad = msg(4, num(1, 1), num(2, 3), num(3, 4), stats, behind)
    plane = msg(2, b"/device:GPU:0") + msg(3, msg(2, b"Stream #1"), event, bad, event)
    plane += named(5, {1: "correlation_id"})
    with pytest.raises(ParseError, match="no readable xplane"):
        read_xplane(msg(1, plane), "x")


def test_of_two_values_in_a_stat_the_last_one_counts() -> None:
    odd = msg(4, num(1, 1), num(3, 7), num(4, 9))
    plane = msg(2, b"/device:GPU:0") + msg(3, msg(2, b"Stream #1"), msg(4, num(3, 4), odd) * 2)
    trace = read_xplane(msg(1, plane + named(5, {1: "correlation_id"})), "x")
    assert trace.devices[0].streams[0].events.launch.tolist() == [9, 9]


@pytest.mark.parametrize("ident", [-3, 1 << 20, 1 << 50])
def test_a_stat_with_an_unusual_id_is_found(ident: int) -> None:
    event = msg(4, num(1, 1), num(2, 3), num(3, 4), msg(4, num(1, ident), num(3, 9)))
    line = msg(2, b"Stream #1") + event * 3
    plane = msg(2, b"/device:GPU:0") + msg(3, line) + named(4, {1: "k"})
    trace = read_xplane(msg(1, plane + named(5, {ident: "correlation_id"})), "x")
    assert trace.devices[0].streams[0].events.launch.tolist() == [9, 9, 9]


@pytest.mark.parametrize("size", [100, 1_000, 20_000, 3_000_000])
def test_an_event_of_any_length_is_read(size: int) -> None:
    space = node(gpus=1)
    line = space.lines["/device:GPU:0"]["Stream #1(Compute)"]
    padding = msg(4, num(1, space.STATS["x"]), msg(5, b"k" * size))
    line.insert(1, msg(4, num(1, 1), num(2, 7_000), num(3, 11), padding))
    (device,) = space.trace().devices
    events = device.streams[0].events
    assert (int(events.start_ps[1]), int(events.duration_ps[1]), len(events)) == (7_000, 11, 7)


def test_an_event_cut_off_by_the_end_of_the_file_is_refused() -> None:
    line = msg(2, b"Stream #1") + b"\x22"
    data = uint(1 << 3 | 2) + uint(len(line) + 20) + msg(2, b"/device:GPU:0") + line
    with pytest.raises(ParseError, match="a length of"):
        read_xplane(data, "x")
    with pytest.raises(WireError, match="cut off"):
        read_line(line, 0, len(line))


def test_clocks_in_unix_nanoseconds_do_not_overflow() -> None:
    plane = msg(2, b"/device:GPU:0") + named(4, {1: "fusion"})
    for i, late_ns in enumerate((0, 5)):
        clock = num(3, 1_771_595_650_217_823_548 + late_ns)
        plane += msg(
            3, msg(2, f"Stream #{i}".encode()), clock, msg(4, num(1, 1), num(2, 250), num(3, 10))
        )
    (device,) = read_xplane(msg(1, plane), "x").devices
    assert [int(each.events.start_ps[0]) for each in device.streams] == [250, 5_250]


def task(start_ns: int, stop_ns: int) -> bytes:
    stats = {1: "profile_start_time", 2: "profile_stop_time"}
    return msg(
        1,
        msg(2, b"Task Environment"),
        msg(6, num(1, 1), num(3, start_ns)),
        msg(6, num(1, 2), num(3, stop_ns)),
        named(5, stats),
    )


def test_windows_that_do_not_overlap_in_time_are_refused() -> None:
    one, two = node(), node()
    one.extra, two.extra = task(1_000, 2_000), task(3_000, 4_000)
    assert one.trace().stopped_unix_ns == 2_000
    with pytest.raises(ParseError, match=r"b\.pb starts after a\.pb ends"):
        drill([one.trace("a.pb"), two.trace("b.pb")])


def test_a_process_without_a_kernel_is_a_warning() -> None:
    idle = Space()
    idle.lines["/device:GPU:0"] = {}
    found = drill([idle.trace("idle.pb"), node(gpus=1).trace("busy.pb")])
    assert found.warnings == ("idle.pb: no kernel in it (1 device planes, all idle)",)
    assert found.launcher == "one process with one GPU"


def test_a_window_that_cuts_a_step_is_said() -> None:
    space = node()
    space.kernel(0, "Stream #1(Compute)", "nvjet_gemm", 2_800, 5, op="nvjet_gemm", correlation=1)
    found = drill([space.trace()])
    assert not found.even
    assert any("cuts a step" in line for line in drill_lines(found))


def test_the_straggler_is_the_device_that_computes_longest() -> None:
    space = node(gpus=4)
    for step in range(3):
        space.kernel(2, "Stream #1(Compute)", "slow", step * 1000 + 760, 60, correlation=1 + step)
        # launched like the first kernels of each step
    trace = space.trace()
    found = drill([trace], steps=3)
    assert found.straggler.name == "/device:GPU:2"
    assert found.spread > 0


@pytest.mark.parametrize(
    ("spaces", "options", "says"),
    [
        pytest.param([node()], {"nodes": 2, "gpus_per_node": 2}, "4 expected", id="a node missing"),
        pytest.param([node()], {"steps": 4}, "3 steps found", id="other number of steps"),
        pytest.param(
            [node(), node(steps=2)], {}, "not of one window", id="captures of two windows"
        ),
        pytest.param(
            [node(), node(gpus=1)], {}, "different numbers", id="captures of two launchers"
        ),
        pytest.param([], {}, "no capture was given", id="nothing at all"),
    ],
)
def test_captures_that_do_not_belong_together_are_refused(
    spaces: list[Space], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ParseError, match=says):
        drill([space.trace(f"{i}.pb") for i, space in enumerate(spaces)], **options)


@pytest.mark.parametrize(
    ("files", "gpus", "launcher"),
    [
        pytest.param(2, 1, "one process per GPU", id="a file per GPU"),
        pytest.param(2, 8, "one process per node, 8 GPUs each", id="a file per node"),
        pytest.param(1, 1, "one process with one GPU", id="one file, one GPU"),
    ],
)
def test_the_launcher_is_inferred_from_devices_per_file(
    files: int, gpus: int, launcher: str
) -> None:
    found = drill([node(gpus=gpus).trace(f"{i}.pb") for i in range(files)])
    assert found.launcher == launcher
    assert len(found.gpus) == files * gpus
    reconciles(found)


def test_dropped_events_are_surfaced_and_never_averaged() -> None:
    space = node()
    space.extra = msg(3, b"12 events dropped because the buffer was full")
    with pytest.raises(ParseError, match="12 events dropped"):
        drill([space.trace("a.pb")])
    found = drill([space.trace("a.pb"), node().trace("b.pb")])
    assert found.sources == ("b.pb",)
    assert "12 events dropped" in found.excluded[0]


def trace_json(count: int, *, cut: bool = False) -> bytes:
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}},
        {"ph": "M", "pid": 1, "tid": 7, "name": "thread_name", "args": {"name": "Stream #7"}},
    ]
    events += [
        {"ph": "X", "pid": 1, "tid": 7, "ts": i * 2.5, "dur": 1.25, "name": "fusion"}
        for i in range(count)
    ]
    text = json.dumps({"traceEvents": [*events, {}]})
    return gzip.compress(text[: -30 if cut else None].encode())


def test_a_json_that_reached_the_cap_is_marked_truncated() -> None:
    full = read_trace_json(trace_json(50), "a.json.gz", caps=frozenset({50}))
    assert full.truncated is not None
    assert "50 events" in full.truncated
    with pytest.raises(ParseError, match="50 events, the most"):
        drill([full])
    assert read_trace_json(trace_json(49), "a.json.gz", caps=frozenset({50})).truncated is None


def stepped_json(kernels: dict[int, int]) -> bytes:
    """A JSON with so many kernels of one device in each step."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}},
        {"ph": "M", "pid": 1, "tid": 7, "name": "thread_name", "args": {"name": "Stream #7"}},
    ]
    for step, count in kernels.items():
        at = step * 100
        mark = {"pid": 701, "tid": 1, "name": "train", "args": {"step_num": str(step)}}
        events.append({"ph": "X", "ts": at, "dur": 90, **mark})
        kernel = {"pid": 1, "tid": 7, "name": "fusion", "args": {"hlo_module": "jit_f"}}
        events += [{"ph": "X", "ts": at + i, "dur": 0.5, **kernel} for i in range(count)]
    return json.dumps({"traceEvents": [*events, {}]}).encode()


@pytest.mark.parametrize(
    ("kernels", "cut"),
    [
        pytest.param({5: 4, 6: 4, 7: 3}, 7, id="in its last step"),
        pytest.param({5: 4, 6: 1, 7: 0}, 6, id="before it"),
        pytest.param({5: 4, 6: 4, 7: 4}, None, id="nowhere"),
        pytest.param({5: 4, 6: 3, 7: 4}, None, id="not at its end"),
        pytest.param({5: 3, 6: 4, 7: 4}, None, id="at its begin, by the window"),
    ],
)
def test_a_json_whose_events_end_too_early_is_left_out(
    kernels: dict[int, int], cut: int | None
) -> None:
    trace = read_trace_json(stepped_json(kernels), "a.json")
    if cut is None:
        assert drill([trace]).total.kernels == sum(kernels.values())
        return
    with pytest.raises(ParseError, match=rf"a\.json: its events end in step {cut}, .* xplane\.pb"):
        drill([trace])


def test_json_times_are_exact_in_picoseconds() -> None:
    (device,) = read_trace_json(trace_json(3), "a").devices
    assert list(device.streams[0].events.start_ps) == [0, 2_500_000, 5_000_000]
    assert list(device.streams[0].events.duration_ps) == [1_250_000] * 3


@pytest.mark.parametrize(
    ("paths", "chosen"),
    [
        pytest.param(
            ["t/a.xplane.pb", "t/a.trace.json.gz", "t/x.SSTABLE", "t/ALL_HOSTS.op_stats_v2.pb"],
            ["t/a.xplane.pb"],
            id="the xplane of a pair, no cache of a viewer",
        ),
        pytest.param(
            ["t1/a.xplane.pb", "t2/b.xplane.pb"],
            ["t1/a.xplane.pb", "t2/b.xplane.pb"],
            id="one window in two timestamps",
        ),
        pytest.param(["t/a.trace.json.gz"], ["t/a.trace.json.gz"], id="a JSON where it is alone"),
        pytest.param(["t1/a.xplane.pb", "t2/a.xplane.pb"], "two profiling windows", id="twice"),
        pytest.param(["t/a.xplane.riegeli"], "riegeli", id="a format that is not read"),
        pytest.param(["t/notes.txt"], "no capture among 1 files", id="nothing of the profiler"),
    ],
)
def test_captures_are_chosen_one_per_process(paths: list[str], chosen: list[str] | str) -> None:
    if isinstance(chosen, list):
        assert list(choose_captures(paths)) == chosen
        return
    with pytest.raises(ParseError, match=chosen):
        choose_captures(paths)


def test_a_capture_that_cannot_be_read_leaves_the_others_readable() -> None:
    files = [("a.xplane.pb", b""), ("b.xplane.pb", node().data()), ("c.trace.json.gz", b"{")]
    found = drill(read_captures(files))
    assert found.sources == ("b.xplane.pb",)
    assert [each.partition(":")[0] for each in found.excluded] == ["a.xplane.pb", "c.trace.json.gz"]


# --- families and intervals ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "family"),
    [
        (
            "void stream_executor::gpu::RaggedAllToAllKernelImpl<8>()",
            "ragged all-to-all, in process",
        ),
        ("void primus_turbo::deep_ep::intranode::dispatch<4>()", "deep_ep"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "nccl, rccl"),
        ("rcclGenericKernel", "nccl, rccl"),
        ("all-gather.10", "other collectives"),
        ("__amd_rocclr_fillBufferAligned.kd", "copies"),
        ("MemcpyD2H", "copies"),
        ("aiter::fmha_bwd_hd128_bf16_causal", "attention"),
        ("ck_tile::kentry<FmhaFwdKernel>", "attention"),
        ("Cijk_Ailk_Bljk_BBS_BH_MT256x224x64.kd", "gemm"),
        ("gemm_fusion_dot_general_1.kd", "gemm"),
        ("input_scatter_fusion_2.kd", "scatter fusions"),
        ("loop_convert_fusion.kd", "convert fusions"),
        ("wrapped_broadcast.kd", "other fusions"),
        ("_create_and_install_waiters", "other"),
    ],
)
def test_a_kernel_belongs_to_the_first_family_that_finds_it(kernel: str, family: str) -> None:
    (found,), _ = classify([kernel], FAMILIES)
    assert (*(each.name for each in FAMILIES), OTHER.name)[found] == family


@given(
    tables=st.lists(
        st.lists(st.tuples(st.sampled_from([0, 3, 70_000]), st.integers(0, 99)), max_size=9),
        min_size=1,
        max_size=4,
    )
)
def test_groups_add_up_and_keep_the_longest(tables: list[list[tuple[int, int]]]) -> None:
    parts = []
    for table in tables:
        keys, values = (np.array([each[i] for each in table], np.int64) for i in (0, 1))
        parts.append(grouped(keys, [values, values * 2]))
    every = [each for table in tables for each in table]
    assert merged(parts).tolist() == [
        [key, len(mine), sum(mine), 2 * sum(mine), max(mine)]
        for key in sorted({key for key, _ in every})
        for mine in [[value for its, value in every if its == key]]
    ]


def test_own_families_replace_the_built_in_ones() -> None:
    mine = parse_families(
        [{"name": "router", "kind": "communication", "pattern": "scatter"}], where="f.toml"
    )
    found = drill([node().trace()], families=mine)
    assert {row.name for row in found.families} == {"router", "other"}
    assert found.total.communication_ps == 250 * 6
    reconciles(found)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        pytest.param({}, "expected a list", id="no list"),
        pytest.param([{"name": "a"}], "expected name, kind and pattern", id="keys missing"),
        pytest.param(
            [{"name": "a", "kind": "computer", "pattern": ""}], "did you mean", id="unknown kind"
        ),
        pytest.param(
            [{"name": "a", "kind": "memory", "pattern": "("}], "pattern '\\('", id="no expression"
        ),
    ],
)
def test_wrong_families_are_a_usage_error(data: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_families(data, where="f.toml")


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
    assert found.busy_ps == (
        found.compute_ps + found.exposed_communication_ps + found.exposed_memory_ps
    )
    assert list(alone) == [sum(now == [i] for now in running) for i in range(len(intervals))]


@given(st.lists(st.integers(0, (1 << 64) - 1), min_size=1, max_size=50))
def test_varints_at_once_equal_varints_one_by_one(values: list[int]) -> None:
    data = b"".join(map(uint, values))
    at, places = 0, []
    for value in values:
        places.append(at)
        read, at = varint(data, at, len(data))
        assert read == value
    octets = Octets(b"some bytes before" + data, 17, 17 + len(data))
    found, sizes = octets.varints(np.array(places) + 17 - octets.start)
    for value, one, size in zip(values, found.tolist(), sizes.tolist(), strict=True):
        assert (one, size) == (value, len(uint(value))) if value < 1 << 56 else size == 0


# --- bad input ----------------------------------------------------------------------------------

BOMB = gzip.compress(b'{"traceEvents":[' + b" " * (1 << 27))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        pytest.param(b"", "empty", id="an empty file"),
        pytest.param(b"\x80" * 50, "does not end", id="a number that never ends"),
        pytest.param(b"\x0a\xff\xff\xff\xff\x0f", "a length of", id="a length beyond the file"),
        pytest.param(b"\x0a\x00" * 5000, "more than 4096 planes", id="thousands of planes"),
        pytest.param(b"\x7fELF\x02\x01\x01", "wire type|field", id="a foreign file"),
        pytest.param(msg(4, b"host"), "no plane", id="no plane"),
        pytest.param(
            msg(1, msg(2, b"/device:GPU:0"), msg(3, msg(2, b"Stream #1"), msg(4, num(3, -5)))),
            "event times",
            id="a negative duration",
        ),
        pytest.param(
            msg(1, msg(2, b"/device:GPU:0"), msg(3, msg(2, b"Stream #1"), b"\x22\x70\x08")),
            "ends .* behind",
            id="an event longer than its line",
        ),
        pytest.param(
            msg(1, msg(2, b"/device:GPU:0"), b"\x1a\x00" * ((1 << 16) + 1)),
            "more than 65536 lines",
            id="thousands of lines",
        ),
    ],
)
def test_a_bad_xplane_is_one_clear_message(data: bytes, says: str) -> None:
    with pytest.raises(ParseError, match=rf"^bad\.pb: .*({says})"):
        read_xplane(data, "bad.pb")


def test_a_bad_event_is_told_by_its_place_in_the_file() -> None:
    event = msg(4, num(1, 1), num(2, 3), num(3, 4))
    line = msg(2, b"Stream #1") + event * 100 + msg(4, num(1, 1), b"\x16") + event
    data = msg(1, msg(2, b"/device:GPU:0"), msg(3, line))
    at = data.index(b"\x16")
    with pytest.raises(ParseError, match=rf"wire type 6 at byte {at};"):
        read_xplane(data, "x")


def test_memory_is_bounded_by_a_number_of_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xplane, "MAX_EVENTS", 5)
    with pytest.raises(ParseError, match=r"^x: .*more than 5 events"):
        read_xplane(node().data(), "x")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        pytest.param(b"", "empty", id="an empty file"),
        pytest.param(BOMB, "200 times its size", id="a zip bomb"),
        pytest.param(trace_json(9, cut=True), "does not end", id="a cut list"),
        pytest.param(trace_json(900)[:-60], "ends too early", id="a cut file"),
        pytest.param(b"\x1f\x8b\x08garbage", "error", id="a broken gzip"),
        pytest.param(b'{"a": 1}', 'no "traceEvents"', id="another JSON"),
        pytest.param(b'{"traceEvents":[7,', "AttributeError", id="events that are no objects"),
        pytest.param(b'{"traceEvents":[' + b"[" * 100_000, "Recursion", id="endless nesting"),
        pytest.param(
            b'{"traceEvents":[{"ph":"M","name":"process_name","pid":1,'
            b'"args":{"name":"/device:GPU:0"}},{"ph":"M","name":"thread_name","pid":1,"tid":1,'
            b'"args":{"name":"Stream"}},{"ph":"X","pid":1,"tid":1,"name":"k","ts":NaN,"dur":1}]}',
            "a time of NaN",
            id="a time that is no number",
        ),
    ],
)
def test_a_bad_trace_json_is_one_clear_message(data: bytes, says: str) -> None:
    with pytest.raises(ParseError, match=rf"^bad\.gz: .*({says})"):
        read_trace_json(data, "bad.gz")


GOOD = node(steps=2, gpus=1).data()
GOOD_JSON = trace_json(4)
PLAIN_JSON = gzip.decompress(GOOD_JSON)


@settings(max_examples=300)
@given(
    cut=st.integers(0, len(GOOD)),
    changes=st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=8),
)
def test_a_mutated_xplane_reads_or_fails_with_one_error(
    cut: int, changes: list[tuple[int, int]]
) -> None:
    data = bytearray(GOOD)
    for at, byte in changes:
        data[at] = byte
    with suppress(ParseError):
        reconciles(drill([read_xplane(bytes(data[: cut or None]), "x")]))


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_mutated_real_capture_reads_or_fails_with_one_error(
    cpu_capture: Path, data: st.DataObject
) -> None:
    real = bytearray(cpu_capture.read_bytes())
    at = st.integers(0, len(real) - 1)
    for place, byte in data.draw(st.lists(st.tuples(at, st.integers(0, 255)), max_size=20)):
        real[place] = byte
    with suppress(ParseError):
        reconciles(drill([read_xplane(bytes(real[: data.draw(at) or None]), "x")]))


@settings(max_examples=200)
@given(
    plain=st.booleans(),
    changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=8),
)
def test_a_mutated_trace_json_reads_or_fails_with_one_error(
    plain: bool, changes: list[tuple[int, int]]
) -> None:
    data = bytearray(PLAIN_JSON if plain else GOOD_JSON)
    for at, byte in changes:
        data[at % len(data)] = byte
    with suppress(ParseError):
        reconciles(drill([read_trace_json(bytes(data), "x")]))


@pytest.mark.parametrize("read", [read_xplane, read_trace_json])
@given(data=st.binary(max_size=200))
def test_noise_reads_or_fails_with_one_error(
    read: Callable[[bytes, str], Trace], data: bytes
) -> None:
    with suppress(ParseError):
        assert read(data, "x").source == "x"
