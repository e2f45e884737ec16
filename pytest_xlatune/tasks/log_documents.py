"""The documents of one plain log: its steps, its findings, and which rank is behind."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_xlatune.logs.standstill import Standstill
from pytest_xlatune.model.failure import Action, FailureClass
from pytest_xlatune.model.metric import NoScore, Score, StepRecord
from pytest_xlatune.model.text import ABSENT, rate, significant
from pytest_xlatune.report.document import (
    Code,
    Document,
    Table,
    Text,
    bullets,
    columns,
    literal,
    plain,
    section,
)
from pytest_xlatune.report.language import plainly
from pytest_xlatune.tasks.read_logs import Health, JobLog

_STEP_COLUMNS = columns(">step", ">seconds", ">TGS", ">TFLOP/s", ">MFU %", ">loss", "in the score")
_FINDING_COLUMNS = columns("class", "action", ">line", "~evidence")
_MOST_ROWS = 200  # steps in a table


def steps_document(log: JobLog, *, title: str = "") -> Document:
    """Return the steps of a log, and the score of its steady state.

    The title is the log's path if it is empty.
    """
    score = log.score
    steps = [*log.report.steps]
    rows = tuple(_row(step, score) for step in steps[-_MOST_ROWS:])
    ends = (each.detail for each in log.findings if each.cls == FailureClass.UNFINISHED)
    notes = [*log.report.notes, *ends]
    if len(steps) > _MOST_ROWS:
        notes.append(f"the table has the last {_MOST_ROWS} of {len(steps)} steps, --json all")
    return Document(
        title=title or str(log.path),
        header=(*_figures(score), *map(plain, notes)),
        sections=(section("Steps", Table(columns=_STEP_COLUMNS, rows=rows)),) if rows else (),
    )


def _figures(score: Score | NoScore) -> Iterator[str]:
    if isinstance(score, NoScore):
        yield f"no score: {plainly(score.reason)}"
        return
    first, last = score.window
    yield f"TGS {rate(score.tgs)}, {significant(score.step_s)} s/step"
    yield f"tokens over time of {score.n_steps} steps of {first}-{last}"
    if score.dropped:
        yield f"dropped steps: {', '.join(map(str, score.dropped))}"
    if score.flags:
        yield f"flags: {', '.join(score.flags)}"


def _use(step: StepRecord, score: Score | NoScore) -> str:
    """Return the kind of a special step, or how the score uses a step; "" outside the window."""
    if step.kind != "step":
        return step.kind
    if isinstance(score, NoScore) or not score.window[0] <= step.step <= score.window[1]:
        return ""
    return "dropped" if step.step in score.dropped else "yes"


def _row(step: StepRecord, score: Score | NoScore) -> tuple[str, ...]:
    figures = (step.step_s, step.tgs, step.tflops, step.mfu, step.loss)
    texts = (ABSENT if figure is None else f"{figure:.3f}" for figure in figures)
    return (str(step.step), *texts, _use(step, score))


def triage_document(log: JobLog) -> Document:
    """Return how far a job came, and the findings of its log with the root cause first."""
    ordered = sorted(
        log.findings,
        key=lambda finding: (finding.cls != log.status, finding.action is Action.NONE),
    )
    rows = tuple(
        (
            finding.cls,
            str(finding.action),
            str(finding.line or ABSENT),
            literal(finding.text.rpartition("\n")[2]),
        )
        for finding in ordered
    )
    details = (
        f"{finding.cls}: {plain(finding.detail)}"
        for finding in ordered
        if finding.detail and (finding.cls == log.status or finding.action is not Action.NONE)
    )
    found = Table(columns=_FINDING_COLUMNS, rows=rows) if rows else Text(text="no known failure")
    advice_of_class: dict[str, str] = {}
    for finding in ordered if log.health is not Health.HEALTHY else ():
        advice_of_class[finding.cls] = FailureClass(finding.cls).advice
    to_do = bullets(*(f"{cls}: {text}" for cls, text in advice_of_class.items() if text))
    # `plain` removes escape sequences, which lines of a log may have
    last_lines = next((each.text.splitlines() for each in ordered if "\n" in each.text), [])
    text = "\n".join(map(plain, last_lines))
    return Document(
        title=f"{log.path}: {log.status}",
        header=(log.reached, *map(plain, log.report.notes), *details),
        sections=(
            section("Findings", found),
            *((section("What to do", to_do),) if to_do.items else ()),
            *((section("Last lines", Code(text=text)),) if text else ()),
        ),
    )


def standstill_document(standstill: Standstill) -> Document:
    """Return which rank of a job the others waited for, and what it did last."""
    return Document(title="Which rank is behind", header=(plainly(standstill.why),), sections=())
