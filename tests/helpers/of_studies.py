"""Subjects of studies of cells: each study run whole, on made speeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from pytest_xlatune.model.result import TrialResult
from pytest_xlatune.report.measured_cell import MeasuredCell
from pytest_xlatune.studies import Study
from tests.helpers import cells
from tests.helpers.cells import PAIRED, Run, machine

WORLDS: Mapping[str, Callable[[], tuple[Study, Run]]] = {
    "batch": lambda: (cells.batch(start=8), cells.sizes(ceiling=12, best=6)),
    "pairs-of-sizes": lambda: (
        cells.batch(sigma=0.002, compiles=True, **PAIRED),
        cells.paired(c=0.8),
    ),
    "nodes": lambda: (cells.nodes(12), machine({"node003": -0.08, "node007": -0.03})),
    "network": lambda: (cells.network(8), machine({"node004": -0.06})),
    "commits": lambda: (cells.commits(17), machine(level=cells.changing(7, -0.05))),
}


def subject(name: str) -> MeasuredCell:
    study, run = WORLDS[name]()
    ended = cells.drive(study, run)
    return MeasuredCell(
        conclusion=ended.conclusion,
        cells=study.cells,
        history=ended.history,
        written_s=datetime(2026, 11, 23, tzinfo=UTC).timestamp(),
    )


def scored_with(results: Sequence[TrialResult], **changes: Any) -> tuple[TrialResult, ...]:
    return tuple(
        replace(result, score=replace(result.score, **changes)) if result.score else result
        for result in results
    )
