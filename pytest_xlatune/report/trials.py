"""The table of all jobs: what ran, as what, how it ended. Sorted by job id, numbers as numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_xlatune.report.document import Column, Table, literal, plain
from pytest_xlatune.report.figures import ABSENT, rate
from pytest_xlatune.results import State, TrialResult, TrialStatus

_COLUMNS = (
    Column(title="Job", wrap=True),
    Column(title="Profile", wrap=True),
    Column(title="Stage"),
    Column(title="Attempt", align="right"),
    Column(title="State"),
    Column(title="TGS", align="right"),
    Column(title="Remark", wrap=True),
)


def job_rows(
    history: Sequence[TrialResult], *, remarks: Mapping[str, str] | None = None, cell: str = ""
) -> list[tuple[str, ...]]:
    """Return a row for each attempt; its first entry is the job id, the last the cell.

    `remarks` say of jobs what the results do not: job id -> why it has no score.
    """
    said = remarks or {}
    return [
        (*_row(result, attempt, job_id, said.get(job_id, "")), cell)
        for result in history
        for attempt, job_id in enumerate(result.job_ids, start=1)
    ]


def jobs_table(rows: Sequence[tuple[str, ...]], *, has_cells: bool) -> Table | None:
    """Return the table of some rows; None where there is none."""
    if not rows:
        return None
    ordered = sorted(rows, key=lambda row: _natural(row[0]))
    if has_cells:
        columns = (_COLUMNS[0], Column(title="Cell", wrap=True), *_COLUMNS[1:])
        return Table(columns=columns, rows=tuple((row[0], row[-1], *row[1:-1]) for row in ordered))
    return Table(columns=_COLUMNS, rows=tuple(row[:-1] for row in ordered))


def _row(result: TrialResult, attempt: int, job_id: str, remark: str) -> tuple[str, ...]:
    trial = result.trial
    stage = " ".join(filter(None, (trial.stage, str(trial.block or ""))))
    is_last = attempt == len(result.job_ids)
    score = result.score if is_last else None
    if is_last:
        remark = result.reason or ("" if score else remark)
    return (
        plain(job_id),
        literal(trial.profile.id),
        stage,
        str(attempt),
        _state(result) if is_last else "retried",
        rate(score.tgs if score else None),
        plain(remark) or ABSENT,
    )


def _state(result: TrialResult) -> str:
    outcome = result.outcome
    # an outcome is of the attempt before, where the next one runs
    if outcome is None or result.status is TrialStatus.RUNNING:
        return str(result.status)
    if outcome.signal is not None:
        return f"{outcome.state}, signal {outcome.signal}"
    if outcome.state is State.FAILED and outcome.exit_code is not None:
        return f"{outcome.state}, exit {outcome.exit_code}"
    return str(outcome.state)


def _natural(job_id: str) -> tuple[tuple[int, int, str], ...]:
    """Order numbers as numbers, those of `9990.1309` too, and whatever is no number after them."""
    parts = job_id.split(".")
    return tuple((0, int(each), "") if each.isdecimal() else (1, 0, each) for each in parts)
