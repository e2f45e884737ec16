"""Subjects of studies of cells: each study run whole, on made speeds."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from pytest_xlatune.model.result import TrialResult
from pytest_xlatune.report.measured_cell import MeasuredCell
from pytest_xlatune.studies import Study
from tests.helpers import cells
from tests.helpers.cells import Run, machine


def subject(study: Study, run: Run) -> MeasuredCell:
    ended = cells.drive(study, run)
    return MeasuredCell(
        conclusion=ended.conclusion,
        cells=study.cells,
        history=ended.history,
        written_s=datetime(2026, 11, 23, tzinfo=UTC).timestamp(),
    )


def batch() -> MeasuredCell:
    return subject(cells.batch(start=8), cells.sizes(ceiling=12, best=6))


def pairs_of_sizes() -> MeasuredCell:
    study = cells.batch(sigma=0.002, compiles=True, **cells.PAIRED)
    return subject(study, cells.paired(c=0.8))


def nodes(count: int = 12, name: str = "node{:03}") -> MeasuredCell:
    names = tuple(name.format(at + 1) for at in range(count))
    return subject(cells.nodes(count, names=names), machine({names[2]: -0.08, names[6]: -0.03}))


def network(count: int = 8) -> MeasuredCell:
    return subject(cells.network(count), machine({"node004": -0.06}))


def commit(count: int = 17, first: int = 7) -> MeasuredCell:
    return subject(cells.commits(count), machine(level=cells.changing(first, -0.05)))


def scored_with(results: Sequence[TrialResult], **changes: Any) -> tuple[TrialResult, ...]:
    return tuple(
        replace(result, score=replace(result.score, **changes)) if result.score else result
        for result in results
    )
