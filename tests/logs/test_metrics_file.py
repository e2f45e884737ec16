"""MaxText's metrics file."""

from __future__ import annotations

import json
import math

import pytest

from pytest_xlatune.logs.grammar import parse_metrics


def line(step: float, **more: object) -> str:
    values = {
        "step": step,
        "run_name": "r",
        "learning/loss": 7.12345678,
        "perf/step_time_seconds": 0.123456789,
        "perf/per_device_tokens_per_sec": 8294.4001,
        "perf/per_device_tflops_per_sec": 0.0345,
    }
    return json.dumps(values | more) + "\n"


def test_values_are_not_rounded() -> None:
    (record,) = parse_metrics(line(3.0))
    assert (record.step, record.step_s, record.tgs) == (3, 0.123456789, 8294.4001)
    assert (record.tflops, record.loss, record.start) == (0.0345, 7.12345678, 0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_kept(value: float) -> None:
    (record,) = parse_metrics(line(0, **{"learning/loss": value}))
    assert record.loss is not None
    assert not math.isfinite(record.loss)


def test_a_missing_value_is_none() -> None:
    (record,) = parse_metrics('{"step": 2, "perf/step_time_seconds": "fast"}')
    assert (record.step_s, record.tgs, record.loss) == (None, None, None)


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_line_is_passed_over(cut: int) -> None:
    assert [each.step for each in parse_metrics(line(0) + line(1)[:cut])] == [0]


@pytest.mark.parametrize("text", ["", "\n\n", "[1]\n", "null", '{"step": NaN}', '{"step": true}'])
def test_what_is_no_step(text: str) -> None:
    assert parse_metrics(text) == ()


def test_the_last_start_counts() -> None:
    records = parse_metrics("".join(line(each) for each in (0, 1, 2, 1, 2, 3)))
    assert [(each.step, each.start) for each in records] == [(1, 1), (2, 1), (3, 1)]
