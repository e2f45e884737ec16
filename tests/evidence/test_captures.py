"""Captures: files in every encoding, bad ones, which are one window, real ones against truth."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_xlatune.evidence import trace
from pytest_xlatune.evidence.pgle import pgle_profile
from pytest_xlatune.evidence.protobuf import fields, text
from pytest_xlatune.evidence.trace import (
    ABSENT,
    Names,
    Trace,
    at_a_cap,
    captures,
    columns,
    xplane,
)
from pytest_xlatune.evidence.trace._chrome import read_trace_json
from pytest_xlatune.evidence.trace.breakdown import CaptureWindow, drill
from pytest_xlatune.evidence.trace.captures import choose_captures, read_window
from pytest_xlatune.evidence.trace.columns import NameTable, decode
from pytest_xlatune.evidence.trace.step_times import StepRule
from pytest_xlatune.evidence.trace.xplane import CaptureFile, line_parts, read_plane
from pytest_xlatune.model.errors import ParseError
from tests.helpers.captures import (
    Space,
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
from tests.helpers.hlo_programs import DATA
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
