"""MaxText's metrics file."""

from __future__ import annotations

import json
import math

import pytest

from pytest_xlatune.logs.grammar import parse_metrics

LOSS = 7.12345678


def line(step: float, **more: object) -> str:
    values = {
        "step": step,
        "run_name": "r",
        "learning/loss": LOSS,
        "perf/step_time_seconds": 0.123456789,
        "perf/per_device_tokens_per_sec": 8294.4001,
        "perf/per_device_tflops_per_sec": 0.0345,
    }
    return json.dumps(values | more) + "\n"


def test_values_are_not_rounded() -> None:
    (record,) = parse_metrics(line(3.0))
    assert (record.step, record.step_s, record.tgs) == (3, 0.123456789, 8294.4001)
    assert (record.tflops, record.loss, record.start) == (0.0345, LOSS, 0)


# the text of a file -> step, start and loss of its records
FILES: dict[str, tuple[str, list[tuple[int, int, float | None]]]] = {
    "a missing value": ('{"step": 2, "perf/step_time_seconds": "fast"}', [(2, 0, None)]),
    "a loss that is infinite": (line(0, **{"learning/loss": math.inf}), [(0, 0, math.inf)]),
    "a loss of NaN": (line(0, **{"learning/loss": math.nan}), [(0, 0, math.nan)]),
    "the last start counts": (
        "".join(line(each) for each in (0, 1, 2, 1, 2, 3)),
        [(1, 1, LOSS), (2, 1, LOSS), (3, 1, LOSS)]),
    **{f"torn at {cut}": (line(0) + line(1)[:cut], [(0, 0, LOSS)]) for cut in range(1, 60, 7)},
    **{text or "nothing": (text, [])
       for text in ("", "\n\n", "[1]\n", "null", '{"step": NaN}', '{"step": true}')},
}  # fmt: skip


@pytest.mark.parametrize(("text", "records"), FILES.values(), ids=FILES)
def test_a_file_is_read_as_far_as_it_tells_steps(
    text: str, records: list[tuple[int, int, float | None]]
) -> None:
    found = [(each.step, each.start, each.loss) for each in parse_metrics(text)]
    assert repr(found) == repr(records)  # NaN equals NaN
