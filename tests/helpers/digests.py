"""Digests that libtpu itself wrote, and what it was told before it wrote them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parents[1] / "data" / "megascale.jsonl"
STEP = "completed step: 7, seconds: 1.234, TFLOP/s/device: 1.5, Tokens/s/device: 9.1, loss: 7.1"


def recorded() -> list[dict[str, Any]]:
    """Return the cases of libtpu 0.0.40 and 0.0.52: clusters with one injected fault each.

    Each is {"version", "fault", "reports", "truth", "text"}: the aggregator was given the reports,
    and logged the text.
    """
    return [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
