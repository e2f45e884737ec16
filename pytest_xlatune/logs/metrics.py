"""MaxText's metrics file -> unrounded steps. Knows the text, not the file.

One JSON object per step and line; NaN and Infinity are literals there. Written by every version
since 2023-03 when `metrics_file=` is set.
"""

from __future__ import annotations

import json
import math

from pytest_xlatune.records import Json
from pytest_xlatune.results import StepRecord


def parse_metrics(text: str) -> tuple[StepRecord, ...]:
    """Return the steps of the last start in the text, in order.

    A line that is no JSON object with a step (torn by a kill) is passed over. A step id that does
    not go up begins a new start: a resumed job appends to the same file.
    """
    steps: list[StepRecord] = []
    start = 0
    for line in text.splitlines():
        values = _object(line)
        step = _number(values.get("step"))
        if step is None or not math.isfinite(step):
            continue
        if steps and step <= steps[-1].step:
            start += 1
            steps.clear()
        steps.append(
            StepRecord(
                step=int(step),
                step_s=_number(values.get("perf/step_time_seconds")),
                tgs=_number(values.get("perf/per_device_tokens_per_sec")),
                tflops=_number(values.get("perf/per_device_tflops_per_sec")),
                loss=_number(values.get("learning/loss")),
                start=start,
            )
        )
    return tuple(steps)


def _object(line: str) -> dict[str, Json]:
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _number(value: Json) -> float | None:
    return float(value) if isinstance(value, int | float) and value is not True else None
