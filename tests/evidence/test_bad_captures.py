"""A capture that is cut, foreign or hostile ends in one clear message; so does an early end."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.evidence import trace
from pytest_xlatune.evidence.trace import xplane
from pytest_xlatune.evidence.trace._chrome import read_trace_json
from pytest_xlatune.evidence.trace.breakdown import CaptureWindow, drill
from pytest_xlatune.evidence.trace.captures import read_window
from pytest_xlatune.model.errors import ParseError
from tests.helpers.captures import msg, node, num, on_stream, read_xplane, reconciles, trace_json


@pytest.mark.parametrize(
    ("data", "says"),
    [
        pytest.param(b"", "empty", id="an empty file"),
        pytest.param(b"\x80" * 50, "does not end", id="a number that never ends"),
        pytest.param(b"\x0a\xff\xff\xff\xff\x0f", "a length of", id="a length beyond the file"),
        pytest.param(b"\x0a\x00" * 5000, "more than 4000 parts", id="thousands of planes"),
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
            msg(1, msg(2, b"/device:GPU:0"), b"\x1a\x00" * 5000),
            "more than 4000 parts",
            id="thousands of lines",
        ),
    ],
)
def test_a_bad_xplane_is_one_clear_message(
    monkeypatch: pytest.MonkeyPatch, data: bytes, says: str
) -> None:
    monkeypatch.setattr(xplane, "MAX_PARTS", 4000)
    with pytest.raises(ParseError, match=rf"^bad\.pb: .*({says})"):
        read_xplane(data, "bad.pb")


def test_a_bad_event_is_told_by_its_place_in_the_file() -> None:
    event = msg(4, num(1, 1), num(2, 3), num(3, 4))
    line = msg(2, b"Stream #1") + event * 100 + msg(4, num(1, 1), b"\x16") + event
    data = msg(1, msg(2, b"/device:GPU:0"), msg(3, line))
    at = data.index(b"\x16")
    with pytest.raises(ParseError, match=rf"wire type 6 at byte {at};"):
        read_xplane(data, "x")


def test_kernels_without_metadata_count_under_a_name_of_their_own() -> None:
    space = node(launches=False)
    (stream,) = (name for name in space.lines["/device:GPU:1"] if name.startswith("Stream #1"))
    for metadata in (num(1, 999), num(1, 0), b""):
        space.lines["/device:GPU:1"][stream].append(msg(4, metadata, num(2, 760), num(3, 40)))
    found = drill([space.trace()])
    reconciles(found)
    (row,) = (row for row in found.kernels if row.name == xplane.NO_NAME)
    assert (row.count, row.sum_ps, row.family) == (3, 120, "other")


def test_a_file_that_becomes_shorter_while_it_is_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(node(steps=40).data())
    whole, read = path.stat().st_size, xplane.read_plane

    def cut(*arguments: Any) -> xplane.Plane:
        os.truncate(path, whole // 2)
        return read(*arguments)

    monkeypatch.setattr(xplane, "read_plane", cut)
    with pytest.raises(ParseError, match=f"became shorter .* {whole // 2} bytes are left"):
        read_window([path], CaptureWindow())


def test_memory_is_bounded_by_a_number_of_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xplane, "MAX_PARTS", 70)
    with pytest.raises(ParseError, match=r"^x: .*more than 70 parts"):
        read_xplane(node().data(), "x")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        pytest.param(b"", "empty", id="an empty file"),
        pytest.param(trace_json(9, cut=True), "does not end", id="a cut list"),
        pytest.param(trace_json(900)[:-60], "ended before", id="a cut file"),
        pytest.param(b"\x1f\x8b\x08garbage", "EOFError", id="a broken gzip"),
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


def test_a_json_that_reached_the_cap_is_marked_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_ROUND", 50)
    full = read_trace_json(trace_json(50), "a.json.gz")
    assert full.truncated is not None
    assert "50 events" in full.truncated
    with pytest.raises(ParseError, match="50 events: the end of the window is missing"):
        drill([full])
    assert read_trace_json(trace_json(49), "a.json.gz").truncated is None


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
    assert list(on_stream(device)["start_ps"]) == [0, 2_500_000, 5_000_000]
    assert list(on_stream(device)["duration_ps"]) == [1_250_000] * 3
