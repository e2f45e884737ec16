"""The evidence runs of a cell as a document: what each left, and what it says.

Nothing is computed here, and no figure of an evidence run is a measurement of speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pytest_xlatune.cells import Cell
from pytest_xlatune.report.document import Bullets, Document, Section, literal, plain
from pytest_xlatune.results import TrialResult


def evidence(
    runs: Sequence[tuple[TrialResult, Sequence[str]]], *, cell: Cell, now: datetime
) -> Document:
    """Return the document of evidence runs and what each said. `now` is when it is written."""
    return Document(
        title=f"{cell.label}: evidence",
        header=(
            f"Written: {now:%Y-%m-%d %H:%M %Z}".rstrip(),
            f"Cell: {literal(cell.digest)}",
            "Profiler and dump change the time of a step: nothing here is a measurement of speed",
        ),
        sections=tuple(
            Section(
                title=f"{each.trial.profile.id}, job {', '.join(each.job_ids) or 'none'}",
                blocks=(
                    Bullets(items=tuple(map(plain, said or (each.reason or str(each.status),)))),
                ),
            )
            for each, said in runs
        ),
    )
