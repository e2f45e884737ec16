"""The report of a study of thresholds: the verdict on each metric, and the jobs behind it."""

from __future__ import annotations

from collections import Counter

from pytest_xlatune.guests.cvs.thresholds import threshold_word
from pytest_xlatune.report.document import Document, Text, bullets, literal, section
from pytest_xlatune.report.language import joined
from pytest_xlatune.report.leaderboard import header, jobs_table, sigma_and_notes
from pytest_xlatune.report.lines import speed, step
from pytest_xlatune.report.measured_cell import MeasuredCell


def thresholds(subject: MeasuredCell) -> Document:
    """Return a document with the verdict on each metric of a cell, and the jobs behind them."""
    conclusion, reference = subject.conclusion, subject.conclusion.reference
    counts = Counter(threshold_word(verdict) for verdict in conclusion.verdicts)
    lines = (
        f"{literal(verdict.arm)}: {joined(verdict.reasons)}" for verdict in conclusion.verdicts
    )
    table = jobs_table([("", subject)])
    measured = []
    if reference and reference.n:
        measured.append(f"{reference.n} jobs: {speed(reference)}{step(reference, ', ')}")
    return Document(
        title=f"{subject.cell.label}: thresholds",
        provenance=header(subject),
        sections=(
            section(
                "Thresholds",
                Text(text=", ".join(f"{count} {word}" for word, count in counts.items())),
                bullets(*lines),
            ),
            section(
                "Jobs",
                bullets(*measured, *sigma_and_notes(conclusion)),
                *([table] if table else []),
            ),
        ),
    )
