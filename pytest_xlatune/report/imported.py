"""The document of a table that was imported: an order, what noise allows, what contradicts itself.

Nothing is computed here, and nothing is said of how the jobs were run: the table does not tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pytest_xlatune.cells import Cell
from pytest_xlatune.profiles import BASELINE_ID, Profile
from pytest_xlatune.report.document import (
    Block,
    Bullets,
    Column,
    Document,
    Section,
    Table,
    Text,
    literal,
    plain,
)
from pytest_xlatune.report.figures import ABSENT, counted, points, rate, significant, size
from pytest_xlatune.report.trials import job_rows, jobs_table
from pytest_xlatune.results import Conclusion, TrialResult, Verdict, VerdictKind

_COLUMNS = (
    Column(title="Profile", wrap=True),
    Column(title="Flags", wrap=True),
    Column(title="TGS", align="right"),
    Column(title="step (s)", align="right"),
    Column(title="delta % vs the control group", align="right"),
    Column(title="runs", align="right"),
    Column(title="what the noise allows", wrap=True),
    Column(title="jobs", wrap=True),
)
_NO_FIGURE = (
    Column(title="Profile", wrap=True),
    Column(title="Flags", wrap=True),
    Column(title="reason", wrap=True),
    Column(title="jobs", wrap=True),
)


def imported(
    conclusion: Conclusion,
    *,
    cell: Cell,
    profiles: Sequence[Profile],
    history: Sequence[TrialResult],
    now: datetime,
) -> Document:
    """Return the document of a table. `now` is when it was imported."""
    flags = {each.id: literal(each.shown_text) for each in profiles}
    ranked = [each for each in conclusion.verdicts if each.kind is VerdictKind.SCREENED]
    rest = [each for each in conclusion.verdicts if each.kind is not VerdictKind.SCREENED]
    blocks: list[Block] = [
        Table(
            title="Ranks, proves nothing",
            columns=_COLUMNS,
            rows=tuple(_row(each, flags) for each in (*ranked, conclusion.baseline)),
        )
    ]
    if rest:
        rows = tuple(
            (
                literal(each.profile),
                flags.get(each.profile) or ABSENT,
                "; ".join(map(plain, each.reasons)) or ABSENT,
                ", ".join(each.job_ids) or ABSENT,
            )
            for each in rest
        )
        blocks.append(Table(title="No figure", columns=_NO_FIGURE, rows=rows))
    figures = (
        f"Sigma, the noise of one job's score between jobs: {size(conclusion.sigma)}.",
        (
            f"A single run shows a change of {size(conclusion.mde80)} with 80 % power, in one "
            "comparison."
        ),
        *map(plain, conclusion.notes),
    )
    jobs = jobs_table(job_rows(history), has_cells=False)
    return Document(
        title=f"{cell.label}: an imported table",
        header=(
            f"Imported: {now:%Y-%m-%d %H:%M %Z}".rstrip(),
            f"Source: {plain(cell.launcher)}",
            f"Cell: {literal(cell.digest)}",
            f"State: {counted(len(history), 'job')}; nothing of it was measured or randomised here",
        ),
        sections=(
            Section(title="Ranking", blocks=tuple(blocks)),
            Section(title="What this table can tell", blocks=(Bullets(items=figures),)),
            Section(title="Jobs", blocks=(jobs or Text(text="No job."),)),
        ),
    )


def _row(verdict: Verdict, flags: dict[str, str]) -> tuple[str, ...]:
    is_baseline = verdict.profile == BASELINE_ID
    return (
        literal(verdict.profile),
        "as deployed" if is_baseline else flags.get(verdict.profile) or ABSENT,
        rate(verdict.tgs),
        significant(verdict.step_s),
        points(verdict.delta),
        str(verdict.n),
        "; ".join(map(plain, verdict.reasons)) or ABSENT,
        ", ".join(verdict.job_ids) or ABSENT,
    )
