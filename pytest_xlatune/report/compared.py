"""The document of two sides of plain logs. Nothing is computed here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_xlatune.report.document import (
    Bullets,
    Column,
    Document,
    Section,
    Table,
    Text,
    literal,
    plain,
)
from pytest_xlatune.report.figures import ABSENT, interval, percent, rate, significant, size
from pytest_xlatune.results import Score, Verdict

_COLUMNS = (
    Column(title="side"),
    Column(title="job", wrap=True),
    Column(title="TGS", align="right"),
    Column(title="step (s)", align="right"),
    Column(title="steps", align="right"),
    Column(title="window"),
)


def compared(
    verdict: Verdict,
    *,
    ratio: float | None,
    jobs: Sequence[tuple[str, Path, Score]],
    left_out: Sequence[tuple[str, Path, str]],
    gate: str = "",
) -> Document:
    """Return the comparison of B with A. `gate` is what a gate says, where one was asked for."""
    shown = ABSENT if ratio is None else f"{ratio:.4f}"
    ends = f"95 % interval {interval(verdict.ci95)}"
    figures = (
        f"B against A: {percent(verdict.delta)}, {ends}, ratio {shown}",
        f"verdict: {verdict.kind if verdict.ci95 else 'none'}",
        *([gate] if gate else []),
        *([f"method: {verdict.method}"] if verdict.method else []),
        *([f"80 % power at {size(verdict.mde80)}"] if verdict.mde80 is not None else []),
        *map(plain, verdict.reasons),
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
        title=f"B against A: {verdict.profile}",
        header=figures,
        sections=(
            Section(title="Jobs", blocks=(Table(columns=_COLUMNS, rows=rows),)),
            *(
                (Section(title="Left out", blocks=(Text(text="Not counted:"), Bullets(items=out))),)
                if out
                else ()
            ),
        ),
    )
