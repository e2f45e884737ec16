"""The documents of plain logs: steps and findings of one log, and the comparison of two sides.

This module reads no log and computes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from pathlib import Path

from pytest_xlatune.logs.standstill import Standstill
from pytest_xlatune.model.failure import Action, Finding
from pytest_xlatune.model.metric import NoScore, Score, StepRecord, Steps
from pytest_xlatune.model.result import Verdict
from pytest_xlatune.model.text import ABSENT, interval, percent, rate, significant, size
from pytest_xlatune.report.document import (
    Code,
    Document,
    Table,
    Text,
    bullets,
    columns,
    left_out,
    literal,
    plain,
    section,
    shortened,
)
from pytest_xlatune.report.language import plainly

_STEP_COLUMNS = columns(">step", ">seconds", ">TGS", ">TFLOP/s", ">MFU %", ">loss", "in the score")
_FINDING_COLUMNS = columns("class", "action", ">line", "~evidence")


def steps_of_log(
    path: str,
    *,
    steps: Steps,
    score: Score | NoScore,
    notes: Sequence[str],
    shows_all: bool = False,
) -> Document:
    """Return the steps of one log, and the score of its steady state.

    The table of many steps shows the first, the last and those that differ, unless `shows_all`.
    """
    if isinstance(score, Score):
        first, last = score.window
        figures = [
            f"TGS {rate(score.tgs)}, {significant(score.step_s)} s/step",
            f"tokens over time of {score.n_steps} steps of {first}-{last}",
            *([f"dropped steps: {', '.join(map(str, score.dropped))}"] if score.dropped else []),
            *([f"flags: {', '.join(score.flags)}"] if score.flags else []),
        ]
    else:
        figures = [f"no score: {plainly(score.reason)}"]
    differing = _differing(steps, score)
    shown = shortened(range(len(steps)), differing.__contains__, shows_all=shows_all)
    gap = ("...", *[""] * (len(_STEP_COLUMNS) - 1))
    rows = tuple(gap if at is None else _step_row(steps[at], score) for at in shown)
    return Document(
        title=path,
        header=(*figures, *map(plain, notes), *left_out(shown, steps, "step")),
        sections=((section("Steps", Table(columns=_STEP_COLUMNS, rows=rows)),) if rows else ()),
    )


def triage_of_log(
    path: str,
    *,
    status: str,
    findings: Sequence[Finding],
    reached: str,
    advice: Sequence[tuple[str, str]] = (),
) -> Document:
    """Return the findings of one log, with the root cause first.

    `reached` is the line on how far the run came. `advice` has failure classes, each with what a
    person can do.
    """
    ordered = sorted(
        findings, key=lambda finding: (finding.cls != status, finding.action is Action.NONE)
    )
    rows = tuple(
        (
            finding.cls,
            str(finding.action),
            str(finding.line or ABSENT),
            literal(_last_line(finding)),
        )
        for finding in ordered
    )
    heads = [
        finding for finding in ordered if finding.cls == status or finding.action is not Action.NONE
    ]
    tails = [finding.text for finding in ordered if "\n" in finding.text]
    return Document(
        title=f"{path}: {status}",
        header=(
            reached,
            *(f"{finding.cls}: {plain(finding.detail)}" for finding in heads if finding.detail),
        ),
        sections=(
            section(
                "Findings",
                Table(columns=_FINDING_COLUMNS, rows=rows)
                if rows
                else Text(text="no known failure"),
            ),
            *((section("What to do", bullets(*map(": ".join, advice))),) if advice else ()),
            *(section("Last lines", Code(text=_shown(text))) for text in tails[:1]),
        ),
    )


_RANK_COLUMNS = columns(">rank", "node", ">last step", "~what it does", "~last line")
_MOST_ROWS = 64


def rank_behind(standstill: Standstill) -> Document:
    """Return which rank of a job the others waited for, and what each rank did last."""
    behind = [state for state in standstill.stands if state.rank in standstill.behind]
    others = [state for state in standstill.stands if state.rank not in standstill.behind]
    shown = (*behind, *others)[:_MOST_ROWS]
    more = len(standstill.stands) - len(shown)
    rows = tuple(
        (
            str(state.rank),
            literal(state.node) if state.node else ABSENT,
            ABSENT if state.step is None else str(state.step),
            plainly(state.why),
            literal(state.last_line) if state.last_line else ABSENT,
        )
        for state in shown
    )
    reasons = (plainly(standstill.why), *([f"{more} more ranks"] if more else []))
    return Document(
        title="Which rank is behind",
        header=reasons,
        sections=(section("Ranks", Table(columns=_RANK_COLUMNS, rows=rows)),),
    )


def _last_line(finding: Finding) -> str:
    return finding.text.rpartition("\n")[2]


def _shown(lines: str) -> str:
    """Return foreign lines for a terminal, without escape sequences."""
    return "\n".join(map(plain, lines.splitlines()))


_FAR = 0.2  # share of the score's seconds per step; steps that differ by more are shown


def _differing(steps: Steps, score: Score | NoScore) -> Collection[int]:
    """Return the steps that differ from the others in what they did, their loss, or their time."""
    losses = enumerate(steps.loss)
    differing = {at for at, kind in enumerate(steps.kind) if kind != "step"}
    differing |= {at for at, loss in losses if loss is not None and not math.isfinite(loss)}
    if isinstance(score, Score):
        marked = {*score.window, *score.dropped}
        differing |= {at for at, step in enumerate(steps.step) if step in marked}
        if (usual := score.step_s) is not None:
            times, far = enumerate(steps.step_s), _FAR * usual
            differing |= {at for at, s in times if s is not None and not abs(s - usual) <= far}
    return differing


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


_COLUMNS = columns("side", "~job", ">TGS", ">step (s)", ">steps", "window")


def compared(
    verdict: Verdict,
    *,
    ratio: float | None,
    jobs: Sequence[tuple[str, Path, Score]],
    left_out: Sequence[tuple[str, Path, str]],
    gate: str = "",
) -> Document:
    """Return the comparison of B with A; `gate` is the answer of the gate, "" if there is none."""
    shown = ABSENT if ratio is None else f"{ratio:.4f}"
    ends = f"95 % interval {interval(verdict.ci95)}"
    figures = (
        f"B against A: {percent(verdict.delta)}, {ends}, ratio {shown}",
        f"verdict: {verdict.kind if verdict.ci95 else 'none'}",
        *([gate] if gate else []),
        *([f"method: {plainly(verdict.method)}"] if verdict.method else []),
        *([f"80 % power at {size(verdict.mde80)}"] if verdict.mde80 is not None else []),
        *map(plainly, verdict.reasons),
    )
    rows = tuple(
        (
            side,
            literal(str(path)),
            rate(score.tgs),
            significant(score.step_s),
            str(score.n_steps),
            f"{score.window[0]}-{score.window[1]}",
        )
        for side, path, score in jobs
    )
    out = tuple(f"{side}: {literal(str(path))}: {plain(reason)}" for side, path, reason in left_out)
    return Document(
        title=f"B against A: {verdict.arm}",
        header=figures,
        sections=(
            section("Jobs", Table(columns=_COLUMNS, rows=rows)),
            *((section("Left out", Text(text="Not counted:"), bullets(*out)),) if out else ()),
        ),
    )
