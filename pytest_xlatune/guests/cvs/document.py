"""The report of a study of thresholds: the verdict on each metric, and its plot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pytest_xlatune.guests.cvs.thresholds import HELD, ThresholdFound, ThresholdRecord, our_word
from pytest_xlatune.model.text import ABSENT
from pytest_xlatune.report import Subject
from pytest_xlatune.report.document import Document, Text, bullets, drawn, literal, plain, section
from pytest_xlatune.report.leaderboard import header, jobs_table, sigma_and_notes
from pytest_xlatune.report.lines import speed, step
from pytest_xlatune.report.page_plots import PlotAxis
from pytest_xlatune.report.study_plots import LimitRow, LimitsPlot
from pytest_xlatune.report.words import joined


def thresholds(subject: Subject) -> Document:
    """Return the verdict on each metric of a cell, and the jobs that all rest on."""
    conclusion, own = subject.conclusion, subject.conclusion.reference
    words = [our_word(each) for each in conclusion.verdicts]
    lines = (f"{literal(each.arm)}: {joined(each.reasons)}" for each in conclusion.verdicts)
    table = jobs_table([("", subject.history, {})])
    measured = [f"{own.n} jobs: {speed(own)}{step(own, ', ')}"] if own and own.n else []
    metrics = conclusion.found(ThresholdRecord).metrics
    return Document(
        title=f"{subject.cell.label}: thresholds",
        header=header(subject),
        sections=(
            section(
                "Thresholds",
                Text(text=", ".join(f"{count} {word}" for word, count in Counter(words).items())),
                bullets(*lines),
            ),
            section(
                "Jobs",
                bullets(*measured, *sigma_and_notes(conclusion)),
                *([table] if table else []),
            ),
        ),
        drawn=drawn("Values against their limits", limits_plot(subject, metrics)),
    )


def limits_plot(subject: Subject, metrics: Sequence[ThresholdFound]) -> LimitsPlot | None:
    """Return the mean of each metric with its 90 % interval and its jobs, against its limits.

    None where no job tells any metric.
    """
    if not any(each.jobs for each in metrics):
        return None
    looks = {each.arm: HELD.get(each.kind, "unsure") for each in subject.conclusion.verdicts}
    return LimitsPlot(
        caption="Each line has a scale of its own. Small dots: single jobs. Large dot: their mean. "
        "Bar: its 90 % interval, 5 % beyond either end. Upright mark: the limit; shaded: beyond "
        "it. A metric passes where every job tells it and its whole bar lies outside of the shade. "
        "Jobs that do not differ, as of a loss, have no bar: their dot is the answer.",
        rows=tuple(_limit_row(each, looks.get(each.metric, "unsure")) for each in metrics),
    )


def _limit_row(found: ThresholdFound, looks: str) -> LimitRow:
    limits = [each for each in (found.least, found.most) if each is not None]
    ends = [each for each in (found.mean, found.low, found.high) if each is not None]
    axis = PlotAxis([*limits, *ends, *(each.value for each in found.jobs)], margin=0.08)
    looks = looks if limits else "recorded"
    refused = [(0.0, axis.at(found.least))] if found.least is not None else []
    if found.most is not None:
        refused.append((axis.at(found.most), round(100 - axis.at(found.most), 2)))
    return LimitRow(
        name=plain(found.metric),
        looks=looks,
        at=_place(axis, found.mean),
        low=_place(axis, found.low),
        high=_place(axis, found.high),
        dots=tuple(
            (axis.at(each.value), plain(f"job {each.job}: {each.value:.6g}")) for each in found.jobs
        ),
        limits=tuple(axis.at(each) for each in limits),
        refused=tuple(refused),
        mean=ABSENT if found.mean is None else f"{found.mean:.6g}",
        demand=plain(found.demand),
        n=str(len(found.jobs)),
        said="cannot tell" if looks == "unsure" else looks,
    )


def _place(axis: PlotAxis, value: float | None) -> float | None:
    return None if value is None else axis.at(value)
