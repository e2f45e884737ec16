"""What is said of one log: its steps and score, or what went wrong in it.

This module must not know how a log is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_xlatune.report.document import (
    Column,
    Document,
    Section,
    Table,
    Text,
    literal,
    plain,
)
from pytest_xlatune.report.figures import ABSENT, rate, significant
from pytest_xlatune.results import Action, Finding, NoScore, Score, StepRecord

_STEP_COLUMNS = (
    Column(title="step", align="right"),
    Column(title="seconds", align="right"),
    Column(title="TGS", align="right"),
    Column(title="TFLOP/s", align="right"),
    Column(title="MFU %", align="right"),
    Column(title="loss", align="right"),
    Column(title="in the score"),
)
_FINDING_COLUMNS = (
    Column(title="class"),
    Column(title="action"),
    Column(title="line", align="right"),
    Column(title="evidence", wrap=True),
)


def steps_of_log(
    path: str, *, steps: Sequence[StepRecord], score: Score | NoScore, notes: Sequence[str]
) -> Document:
    """Return the steps of one log and the score of its steady state."""
    if isinstance(score, Score):
        first, last = score.window
        figures = [
            f"TGS {rate(score.tgs)}, {significant(score.step_s)} s/step",
            f"tokens over time of {score.n_steps} steps of {first}-{last}",
            *([f"dropped steps: {', '.join(map(str, score.dropped))}"] if score.dropped else []),
            *([f"flags: {', '.join(score.flags)}"] if score.flags else []),
        ]
    else:
        figures = [f"no score: {score.reason}"]
    rows = tuple(_step_row(each, score) for each in steps)
    return Document(
        title=path,
        header=(*figures, *map(plain, notes)),
        sections=(
            (Section(title="Steps", blocks=(Table(columns=_STEP_COLUMNS, rows=rows),)),)
            if rows
            else ()
        ),
    )


def triage_of_log(path: str, *, status: str, findings: Sequence[Finding], reached: str) -> Document:
    """Return what went wrong in one log, the root cause first."""
    if not findings:
        text = Text(text="nothing that is known to matter")
        return Document(title=f"{path}: {status}", header=(reached,), sections=(
            Section(title="Findings", blocks=(text,)),))  # fmt: skip
    ordered = sorted(findings, key=lambda each: (each.cls != status, each.action is Action.NONE))
    rows = tuple(
        (each.cls, str(each.action), str(each.line or ABSENT), literal(each.text))
        for each in ordered
    )
    return Document(
        title=f"{path}: {status}",
        header=(reached, *(f"{each.cls}: {plain(each.detail)}" for each in ordered if each.detail)),
        sections=(Section(title="Findings", blocks=(Table(columns=_FINDING_COLUMNS, rows=rows),)),),
    )


def _step_row(step: StepRecord, score: Score | NoScore) -> tuple[str, ...]:
    if not isinstance(score, Score) or not score.window[0] <= step.step <= score.window[1]:
        use = ""
    else:
        use = "dropped" if step.step in score.dropped else "yes"
    figures = (step.step_s, step.tgs, step.tflops, step.mfu, step.loss)
    return (str(step.step), *map(_figure, figures), use if step.kind == "step" else step.kind)


def _figure(value: float | None) -> str:
    if value is None:
        return ABSENT
    return f"{value:.3f}" if math.isfinite(value) else str(value)
