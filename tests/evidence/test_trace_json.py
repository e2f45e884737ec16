"""The profiler's JSON: exact times, and the cap that ends it too early."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_xlatune.evidence.trace import _chrome as chrome
from pytest_xlatune.evidence.trace._chrome import read_trace_json
from pytest_xlatune.evidence.trace.breakdown import drill
from pytest_xlatune.model.errors import ParseError
from tests.helpers.captures import on_stream, trace_json


def test_a_json_that_reached_the_cap_is_marked_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chrome, "at_a_cap", lambda count, **_: count == 50)
    full = read_trace_json(trace_json(50), "a.json.gz")
    assert full.truncated is not None
    assert "50 events" in full.truncated
    with pytest.raises(ParseError, match="50 events, a number at which"):
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
    assert list(on_stream(device).start_ps) == [0, 2_500_000, 5_000_000]
    assert list(on_stream(device).duration_ps) == [1_250_000] * 3
