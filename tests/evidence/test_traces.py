"""Captures: files in every encoding, bad ones, one window, and figures that they were made of."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import re
import signal
import struct
import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_xlatune.evidence import trace
from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.evidence.pgle import pgle_profile
from pytest_xlatune.evidence.protobuf import fields, text
from pytest_xlatune.evidence.trace import (
    ABSENT,
    KINDS,
    Kind,
    Names,
    Trace,
    at_a_cap,
    captures,
    classify,
    columns,
    shipped_families,
    xplane,
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
from pytest_xlatune.evidence.trace.captures import choose_captures, read_window
from pytest_xlatune.evidence.trace.collectives import (
    Communication,
    Watch,
    communication_of,
    ranks_of,
    shares_of,
)
from pytest_xlatune.evidence.trace.columns import NameTable, decode
from pytest_xlatune.evidence.trace.comparison import SPAN, compare_windows
from pytest_xlatune.evidence.trace.step_times import StepRule
from pytest_xlatune.evidence.trace.xplane import CaptureFile, line_parts, read_plane
from pytest_xlatune.model.errors import ConfigError, ParseError
from pytest_xlatune.model.shares import Shares
from pytest_xlatune.report.document import terminal
from pytest_xlatune.tasks.drill import TOP, drill_document, drill_json
from pytest_xlatune.tasks.programs import program_document, programs_json
from tests.helpers import golden
from tests.helpers.captures import (
    Space,
    lines_json,
    msg,
    named,
    node,
    num,
    on_stream,
    read_xplane,
    reconciles,
    session,
    trace_json,
)
from tests.helpers.hlo_programs import DATA, GATHER, body, entry, loop, made, program
from tests.helpers.payloads import is_gone
from tests.helpers.second_looks import tried
from tests.helpers.waiting import until

GPU = msg(2, b"/device:GPU:0")


def on_gpu(*events: bytes, stat_id: int = 1) -> bytes:
    """A stream of a GPU with these events; the id belongs to `correlation_id`."""
    line = msg(3, msg(2, b"Stream #1"), *events)
    return msg(1, GPU, line, named(5, {stat_id: "correlation_id"}))


def event(*stats: bytes) -> bytes:
    return msg(4, num(1, 1), num(2, 3), num(3, 4), *stats)


def stat_id(ident: int) -> bytes:
    return on_gpu(event(msg(4, num(1, ident), num(3, 9))), stat_id=ident)


STAT = msg(4, num(1, 1), num(3, 7))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        pytest.param(b"", "empty", id="an empty file"),
        pytest.param(b"\x80" * 50, "does not end", id="a number that never ends"),
        pytest.param(b"\x0a\xff\xff\xff\xff\x0f", "a length of", id="a length beyond the file"),
        pytest.param(b"\x0a\x00" * 5000, "more than 4000 parts", id="thousands of planes"),
        pytest.param(b"\x7fELF\x02\x01\x01", "wire type|field", id="a foreign file"),
        pytest.param(msg(4, b"host"), "no plane", id="no plane"),
        pytest.param(on_gpu(msg(4, num(3, -5))), "event times", id="a negative duration"),
        pytest.param(on_gpu(b"\x22\x70\x08"), "ends .* behind", id="longer than its line"),
        pytest.param(msg(1, GPU, b"\x1a\x00" * 5000), "more than 4000", id="thousands of lines"),
        pytest.param(stat_id(-3), "ids of names from", id="an id below 0"),
        pytest.param(stat_id(1 << 20), "ids of names from", id="an id that no profiler gives"),
        pytest.param(on_gpu(event(b"\x22\x01\x08")), "does not end", id="a stat without its id"),
        pytest.param(
            on_gpu(event(STAT), event(STAT + b"\x22\x02\x08\x80"), event(STAT)),
            "does not end",
            id="a stat's id that does not end, and an event behind it",
        ),
        pytest.param(
            on_gpu(event(msg(4, num(1, 1), b"\x18"))), "does not end", id="a stat without its value"
        ),
        pytest.param(on_gpu(event(b"\x22\x7f\x08\x01\x18\x01")), "a length", id="beyond its event"),
    ],
)
def test_a_bad_xplane_is_one_clear_message(
    monkeypatch: pytest.MonkeyPatch, data: bytes, says: str
) -> None:
    monkeypatch.setattr(xplane, "MAX_PARTS", 4000)
    with pytest.raises(ParseError, match=rf"^bad\.pb: .*({says})"):
        read_xplane(data, "bad.pb")


METADATA = b"""{"traceEvents":[
{"ph":"M","name":"process_name","pid":1,"args":{"name":"/device:GPU:0"}},
{"ph":"M","name":"thread_name","pid":1,"tid":1,"args":{"name":"Stream"}},"""
BAD_JSON = {
    "an empty file": (b"", "empty"),
    "a cut list": (trace_json(9, cut=True), "does not end"),
    "a cut file": (trace_json(900)[:-60], "ended before"),
    "a broken gzip": (b"\x1f\x8b\x08garbage", "EOFError"),
    "another JSON": (b'{"a": 1}', 'no "traceEvents"'),
    "events that are no objects": (b'{"traceEvents":[7,', "AttributeError"),
    "endless nesting": (b'{"traceEvents":[' + b"[" * 100_000, "Recursion"),
    "a time that is no number": (
        METADATA + b'{"ph":"X","pid":1,"tid":1,"name":"k","ts":NaN,"dur":1}]}', "a time of NaN"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "says"), BAD_JSON.values(), ids=BAD_JSON)
def test_a_bad_trace_json_is_one_clear_message(data: bytes, says: str) -> None:
    with pytest.raises(ParseError, match=rf"^bad\.gz: .*({says})"):
        read_trace_json(data, "bad.gz")


def test_a_collector_that_stopped_at_its_cap_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    caps = [count for count in (1 << 20, (1 << 21) + 1, 3, 600_000) if at_a_cap(count, "", "")]
    assert caps == [1 << 20, (1 << 21) + 1]
    assert at_a_cap(300_000, "", "", is_round=True)
    assert not at_a_cap(300_001, "", "", is_round=True)
    monkeypatch.setattr(trace, "_ROUND", 50)
    with pytest.raises(ParseError, match="50 events: the end of the window is missing"):
        drill([read_trace_json(trace_json(50), "a.json.gz")])
    found = read_trace_json(trace_json(49), "a.json.gz")
    assert found.truncated is None
    (device,) = found.devices
    events = on_stream(device)
    assert list(events["start_ps"][:3]) == [0, 2_500_000, 5_000_000], "exact, in picoseconds"
    assert set(events["duration_ps"]) == {1_250_000}
    monkeypatch.setattr(trace, "_BINARY", 12)
    with pytest.raises(ParseError, match="12 kernels: the end of the window is missing"):
        drill([node(gpus=2).trace()])


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


def test_odd_encodings_read_the_same_as_usual_ones() -> None:
    space = node(gpus=1)
    stats = space.stats
    string = msg(4, num(1, stats["hlo_op"]), msg(5, b"custom-call.77"))
    shuffled = msg(4, num(3, 40), string, num(2, 9_000), num(1, space.names["nvjet_gemm"]))
    wide = msg(4, num(1, 1), num(2, 9_100), num(3, 40), msg(4, num(1, stats["x"]), num(3, 1 << 63)))
    launch = num(1, stats["correlation_id"])
    twice = msg(4, num(2, 9_200), num(3, 40), msg(4, num(3, 7) + launch + num(4, 9)))
    nameless = msg(4, num(1, 999), num(2, 9_300), num(3, 40))
    space.lines["/device:GPU:0"]["Stream #1(Compute)"] += [nameless, shuffled, wide, twice]
    found = drill([space.trace()])
    reconciles(found)
    (row,) = (row for row in found.kernels if row.name == xplane.NO_NAME)
    assert (row.count, row.sum_ps, row.family) == (1, 40, "other")
    (device,) = space.trace().devices
    events = on_stream(device)
    assert list(events["start_ps"][-3:]) == [9_000, 9_100, 9_200]
    assert list(events["duration_ps"][-3:]) == [40, 40, 40]
    assert events["launch"][-1] == 9, "the last of two values"
    assert space.trace().names[events["op"][-3]] == "custom-call.77"


SMALL = st.integers(0, 200)
NUMBER = st.one_of(SMALL, st.integers(0, 1 << 40), st.integers(0, (1 << 60)))
IDENT = st.one_of(st.integers(0, 6), st.integers(120, 135), st.just(20_000))
KIND = st.sampled_from(["uint", "int", "ref", "text", "long text", "none"])
STATS = st.lists(st.tuples(IDENT, KIND, NUMBER), max_size=5)
EVENT = st.tuples(st.one_of(st.just(0), NUMBER), NUMBER, SMALL, STATS)


def stat(ident: int, kind: str, value: int) -> bytes:
    if kind == "long text":  # so that its event is longer than 16 KiB; no column is of its id
        return msg(4, num(1, 7), msg(5, b"k" * 20_000))
    own = {"uint": num(3, value), "int": num(4, value), "ref": num(7, value), "none": b""}
    return msg(4, num(1, ident) if ident else b"", own.get(kind, msg(5, str(value).encode())))


@settings(max_examples=tried(300))
@given(
    events=st.lists(EVENT, max_size=40),
    wanted=st.lists(st.sampled_from([1, 2, 5, 127, 128, 20_000]), unique=True, max_size=3),
    block=st.sampled_from([3, columns.BLOCK]),
)
def test_reading_in_lockstep_finds_what_reading_one_by_one_finds(
    events: list[tuple[int, int, int, list[tuple[int, str, int]]]], wanted: list[int], block: int
) -> None:
    def written(fields: list[int]) -> bytes:  # zeros are left out, as protobuf does
        return b"".join(num(at, value) for at, value in enumerate(fields, 1) if value)

    line = b"".join(
        msg(4, written(fields), *(stat(*each) for each in stats)) for *fields, stats in events
    )
    ids = {str(each): each for each in wanted}

    def found() -> list[list[int]]:
        whole = next(line_parts(CaptureFile(io.BytesIO(line)), 0, len(line), len(line)))
        parts = list(decode(whole, ids, intern=lambda text: -int(text) - 2))
        names = ("name", "offset_ps", "duration_ps", *ids)
        return [[int(i) for part in parts for i in part[each]] for each in names]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "BLOCK", block)
        patch.setattr(columns, "_MANY_BYTES", 256)
        patch.setattr(columns, "_PLACES", 4)
        at_once = found()
        one_by_one = lambda block, _: list(range(len(block.name)))  # noqa: E731
        patch.setattr(columns._Block, "lockstep", one_by_one)
        patch.setattr(xplane, "follow_events", columns.follow)
        assert found() == at_once
    assert at_once[:3] == [[event[i] for event in events] for i in range(3)]


def test_clocks_in_unix_nanoseconds_do_not_overflow() -> None:
    plane = GPU + named(4, {1: "fusion"})
    for i, late_ns in enumerate((0, 5)):
        clock = num(3, 1_771_595_650_217_823_548 + late_ns)
        timed = msg(4, num(1, 1), num(2, 250), num(3, 10))
        plane += msg(3, msg(2, f"Stream #{i}".encode()), clock, timed)
    (device,) = read_xplane(msg(1, plane), "x").devices
    assert [int(on_stream(device, each)["start_ps"][0]) for each in device.streams] == [250, 5_250]


def forms(key: int, name: bytes) -> dict[str, tuple[bytes, bytes]]:
    """An entry of a table as a profiler writes it or as protobuf also allows, and its name."""
    ident, named_so = num(1, key), msg(2, name)
    metadata = msg(2, ident, named_so)
    more = (msg(3, b"\x12\x01z"), msg(5, num(1, 1)))
    return {
        "usual": (ident + metadata, name),
        "described": (ident + msg(2, ident, named_so, *more), name),
        "turned": (msg(2, named_so) + ident, name),
        "long": (ident + msg(2, ident, msg(2, name * 2000)), name * 2000),
        "no id": (ident + msg(2, named_so), name),
        "no name": (ident + msg(2, ident), b""),
        "name behind stats": (ident + msg(2, ident, msg(5, b""), named_so), name),
        "twice": (num(1, 7) + ident + metadata, name),
        "empty": (b"", b""),
    }


@settings(max_examples=tried(300))
@given(
    made=st.lists(
        st.tuples(
            st.integers(0, 300),
            st.binary(max_size=200).map(lambda each: each.hex().encode()),
            st.sampled_from([*forms(0, b"")]),
        ),
        max_size=30,
    ),
    between=st.sampled_from([b"", msg(3, msg(2, b"Stream #1"))]),  # a line between the entries
)
def test_a_table_is_read_in_every_form_that_protobuf_allows(
    made: list[tuple[int, bytes, str]], between: bytes
) -> None:
    entries = [forms(key, name)[form] for key, name, form in made]
    data = b"before" + between.join(msg(4, entry) for entry, _ in entries)
    file, names = CaptureFile(io.BytesIO(data)), Names()
    table = NameTable(file.data, read_plane(file, 6, len(data)).event_names, names)
    expected = {
        0 if form == "empty" else key: name.decode()
        for (key, _, form), (_, name) in zip(made, entries, strict=True)
    }
    assert [table.name(ident) for ident in expected] == [*expected.values()]
    indices = table.index(np.array([*expected, 12_345, ABSENT, table.intern("text")], np.int64))
    shown = [*names]
    assert [shown[at] for at in indices[:-3]] == [*expected.values()]
    assert (indices[-3], indices[-2], shown[indices[-1]]) == (ABSENT, ABSENT, "text")
    for each in {"", "00"} & set(expected.values()):
        assert expected[table.wanted(column=each)["column"]] == each


def test_a_process_without_a_kernel_is_a_warning() -> None:
    idle = Space()
    idle.lines["/device:GPU:0"] = {}
    found = drill([idle.trace("idle.pb"), node(gpus=1).trace("busy.pb")])
    assert found.warnings == ("idle.pb: no kernel in it (1 device planes, all idle)",)
    assert found.launcher == "one process with one GPU"


@pytest.mark.parametrize(
    ("spaces", "options", "says"),
    [
        ([node()], {"gpus": 4}, "4 expected"),
        ([node()], {"steps": 4}, "3 steps found"),
        ([node(), node(steps=2)], {}, "not of one window"),
        ([node(), node(gpus=1)], {}, "different numbers"),
        ([], {}, "no capture was given"),
        ([session(1, 2), session(3, 4)], {}, "1.pb starts after 0.pb ends"),
    ],
)
def test_captures_that_do_not_belong_together_are_refused(
    spaces: list[Space], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ParseError, match=says):
        drill([space.trace(f"{i}.pb") for i, space in enumerate(spaces)], CaptureWindow(**options))


LOST = ("7 events dropped", "Truncated", "buffer is full", "Exceeded max number", "3 records lost")


@pytest.mark.parametrize("text", LOST)
def test_lost_events_are_noticed_and_never_averaged(text: str) -> None:
    space = node()
    space.extra = msg(3, text.encode())
    with pytest.raises(ParseError, match=text):
        drill([space.trace()])
    found = drill([space.trace("a.pb"), node().trace("b.pb")])
    assert found.sources == ("b.pb",)
    assert text in found.excluded[0]
    forced = drill([space.trace("a.pb")], CaptureWindow(force=True))
    assert (forced.total, forced.excluded) == (drill([node().trace()]).total, ())
    assert [text in warning for warning in forced.warnings] == [True], "said once"
    space.extra = msg(3, b"clock offset is large")
    assert drill([space.trace("a.pb")]).warnings == ("a.pb: clock offset is large",)


def rank(*, ops: bool = True, late: int = 0) -> Space:
    """Three steps of one GPU; without `ops` no kernel names an operation, and two are one time."""
    space = Space()
    kernels = (("gemm", 0, 300), ("ncclDevKernel_AllGather", 310, 90), ("fusion", 500, 250))
    for step in range(3):
        at = step * 1000
        space.host("train", at, 900, "step_num", 5 + step)
        for place, (name, begin, size) in enumerate(kernels):
            space.kernel(
                0, "Stream #1", name, at + begin + late, size,
                op=name if ops else None, correlation=10 * step + place,
            )  # fmt: skip
    if not ops:
        for at in (460, 470):
            space.kernel(0, "Stream #1", "once", at + late, 5)
    return space


@pytest.mark.parametrize("odd", [0, 3], ids="rank {} is odd".format)
@pytest.mark.parametrize("late", [0, 950])
def test_a_rank_whose_kernels_name_no_operation_is_of_the_window(odd: int, late: int) -> None:
    spaces = [rank(ops=at != odd, late=late) for at in range(4)]
    found = drill([each.trace(f"{at}.pb") for at, each in enumerate(spaces)])
    assert (found.rule, found.steps, found.even) == (StepRule.EXECUTIONS, (5, 6, 7), False)
    assert len(found.gpus) == 4
    assert found.launcher == "one process per GPU"
    steps = {gpu.source: [step.kernels for step in gpu.steps] for gpu in found.gpus}
    assert steps.pop(f"{odd}.pb") == [5, 3, 3]
    assert set(map(tuple, steps.values())) == {(3, 3, 3)}
    reconciles(found)


def test_the_rule_of_a_window_is_the_weakest_of_its_captures() -> None:
    odd = rank(ops=False)
    for at in range(7):  # kernels that fit no number of steps
        odd.kernel(0, "Stream #1", f"stray_{at}", 2800 + at, 200)
    found = drill([rank().trace("a.pb"), odd.trace("b.pb")])
    assert (len(found.gpus), found.rule) == (2, StepRule.WINDOWS)


@pytest.mark.parametrize("launches", [True, False], ids=["alike", "half of them by their runs"])
def test_a_window_is_the_same_whether_a_node_or_each_gpu_has_a_process(launches: bool) -> None:
    space = node(gpus=8)
    whole = drill([space.trace("n.pb")])
    host = {"/host:CPU": space.lines["/host:CPU"]}
    marks = [each for each in host["/host:CPU"]["python"] if b"\x08\x04" in each]
    split = []
    for gpu in range(8):
        one = Space()
        one.names, one.stats = space.names, space.stats
        one.lines = dict(host) if launches or gpu % 2 == 0 else {"/host:CPU": {"python": marks}}
        one.lines[f"/device:GPU:{gpu}"] = space.lines[f"/device:GPU:{gpu}"]
        split.append(one.trace(f"{gpu}.pb"))
    found = drill(split, CaptureWindow(steps=3))
    assert found.launcher == "one process per GPU"
    assert [gpu.steps for gpu in found.gpus] == [gpu.steps for gpu in whole.gpus]
    assert (found.families, found.kernels, found.ops) == (whole.families, whole.kernels, whole.ops)
    assert found.total == whole.total


KINETO = (
    b'{"schemaVersion":1,"deviceProperties":[],"traceEvents":[{"ph":"X","cat":"kernel",'
    b'"name":"ampere_sgemm","pid":0,"tid":7,"ts":1,"dur":2,"args":{"stream":7}}]}'
)
TPU = msg(1, msg(2, b"/device:CUSTOM:Megascale Trace")) + msg(
    1,
    msg(2, b"/device:TPU:0 SparseCore 1"),
    msg(3, msg(2, b"XLA Ops"), msg(4, num(1, 1), num(3, 9))),
)


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("a.trace.json", KINETO, r"a PyTorch \(kineto\) trace;"),
        ("a.xplane.pb", TPU, "a capture of a TPU, which"),
    ],
)
def test_a_trace_of_another_profiler_or_device_is_named(
    tmp_path: Path, name: str, data: bytes, says: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ParseError, match=says):
        read_window([tmp_path], CaptureWindow())
    (tmp_path / "b.xplane.pb").write_bytes(node().data())
    found, left_out = read_window([tmp_path], CaptureWindow())
    assert len(found.sources) == 1
    assert name in left_out[0]


@pytest.mark.parametrize("window", [100, 3_000])
def test_a_file_is_read_part_by_part_to_the_same_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr(xplane, "_WINDOW", window)
    monkeypatch.setattr(xplane, "_AHEAD", window)
    space = node(gpus=8, steps=80)
    space.extra = msg(4, b"node001")
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(space.data())
    one, other = captures._read_one(str(path)), space.trace(str(path))
    assert isinstance(one, Trace)
    assert drill([one]) == drill([other])
    assert one.names == other.names
    assert (one.marks == other.marks).all()
    assert one.launches[0].size
    assert np.array_equal(one.launches, other.launches)


# files of a folder -> those that are read, or why none is
CHOSEN: dict[str, tuple[list[str], list[str] | str]] = {
    "the xplane of a pair, no cache of a viewer": (
        ["t/a.xplane.pb", "t/a.trace.json.gz", "t/x.SSTABLE", "t/ALL_HOSTS.op_stats_v2.pb"],
        ["t/a.xplane.pb"]),
    "one window in two timestamps": (
        ["t1/a.xplane.pb", "t2/b.xplane.pb"], ["t1/a.xplane.pb", "t2/b.xplane.pb"]),
    "a JSON where it is alone": (["t/a.trace.json.gz"], ["t/a.trace.json.gz"]),
    "twice": (["t1/a.xplane.pb", "t2/a.xplane.pb"], "two profiling windows"),
    "a format that is not read": (["t/a.xplane.riegeli"], "riegeli"),
    "nothing of the profiler": (["t/notes.txt"], "no capture among 1 files"),
}  # fmt: skip


@pytest.mark.parametrize(("paths", "chosen"), CHOSEN.values(), ids=CHOSEN)
def test_captures_are_chosen_one_per_process(paths: list[str], chosen: list[str] | str) -> None:
    if isinstance(chosen, list):
        assert list(choose_captures(paths)) == chosen
        return
    with pytest.raises(ParseError, match=chosen):
        choose_captures(paths)


def _many(folder: Path) -> list[Path]:
    """Leave captures of one window, one of which is damaged."""
    paths = [folder / f"node{number}.xplane.pb" for number in range(5)]
    for path in paths:
        path.write_bytes(node().data()[: -5 if path is paths[3] else None])
    return paths


@pytest.mark.parametrize("is_killed", [False, True], ids=["all end", "one is killed"])
def test_captures_are_drilled_alike_side_by_side_and_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_killed: bool
) -> None:
    paths, here = _many(tmp_path), os.getpid()
    monkeypatch.setattr(captures, "_SIDE_BY_SIDE_BYTES", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr("threading.active_count", lambda: 1)

    def noted(file: Any, path: str) -> Any:
        (tmp_path / f"{os.getpid()}.pid").touch()
        if is_killed and os.getpid() != here and "node2" in path:
            os.kill(os.getpid(), signal.SIGKILL)
        return xplane.read_xplane(file, path)

    monkeypatch.setattr(captures, "read_xplane", noted)
    together = read_window(paths, CaptureWindow())
    processes = {each.stem for each in tmp_path.glob("*.pid")} - {str(here)}
    assert processes
    assert is_killed == (tmp_path / f"{here}.pid").exists()
    monkeypatch.setattr(captures, "_SIDE_BY_SIDE_BYTES", 1 << 40)
    alone = read_window(paths, CaptureWindow())
    assert together[0].to_json() == alone[0].to_json()
    assert together[1] == alone[1]
    assert "node3.xplane.pb" in " ".join(alone[1])


def test_no_process_stays_behind_a_command_that_is_killed(tmp_path: Path) -> None:
    paths = _many(tmp_path)
    code = f"""if True:
        import os, sys, time
        from pathlib import Path
        from pytest_xlatune.evidence.trace import captures
        def waits(file, path):
            Path({str(tmp_path)!r}, f"{{os.getpid()}}.pid").touch()
            time.sleep(3600 if "node1" in path else 0)
        captures._SIDE_BY_SIDE_BYTES, os.sched_getaffinity = 0, lambda _: {{0, 1}}
        captures.read_xplane = waits
        list(captures._read(sys.argv[1:]))
    """
    with subprocess.Popen([sys.executable, "-c", code, *paths]) as command:
        until(lambda: len(list(tmp_path.glob("*.pid"))) == 2)
        command.kill()
    processes = [int(each.stem) for each in tmp_path.glob("*.pid")]
    until(lambda: all(map(is_gone, processes)))


ROOT = Path(__file__).resolve().parents[2]
TRACES = Path(os.environ.get("XLATUNE_TRACE_DATA", ROOT.parent / "shared" / "data" / "traces"))
REAL = sorted(path.name.removesuffix(".truth.json") for path in TRACES.glob("*.truth.json"))


def real(*names: str) -> pytest.MarkDecorator:
    reason = "no captures: set XLATUNE_TRACE_DATA to a folder with some"
    missing = pytest.param("", marks=pytest.mark.skip(reason=reason))
    return pytest.mark.parametrize("name", names or [missing])


@real(*REAL)
def test_real_amd_capture_equals_its_truth(name: str) -> None:
    truth = json.loads((TRACES / f"{name}.truth.json").read_text())
    for captured in (
        read_xplane((TRACES / f"{name}.xplane.pb").read_bytes(), name),
        read_trace_json((TRACES / f"{name}.trace.json.gz").read_bytes(), name),
    ):
        found = drill([captured])
        (gpu,) = found.gpus
        want = truth["devices"][gpu.name]
        everything = gpu.total + gpu.outside
        assert len(captured.devices) == truth["devices_with_compute_kernels"]
        assert captured.planes_present == 8
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
