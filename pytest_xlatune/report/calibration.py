"""The document of a calibration: how far two jobs of the cell as deployed are apart.

Nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pytest_xlatune.cells import Cell
from pytest_xlatune.report.document import Bullets, Document, Section, plain
from pytest_xlatune.report.figures import ABSENT, percent, rate, significant
from pytest_xlatune.report.leaderboard import header
from pytest_xlatune.results import Conclusion, TrialResult


def calibration(
    conclusion: Conclusion,
    *,
    cell: Cell,
    history: Sequence[TrialResult],
    now: datetime,
    figures: Sequence[str] = (),
) -> Document:
    """Return the calibration as a document. `figures` say what the steps add, one each."""
    baseline = conclusion.baseline
    reasons = map(plain, baseline.reasons)
    speed = f"{rate(baseline.tgs)} TGS, {significant(baseline.step_s)} s/step"
    return Document(
        title=f"{cell.label}: calibration",
        header=header(conclusion, cell=cell, history=history, now=now),
        sections=(
            Section(
                title="Noise of the cell",
                blocks=(
                    Bullets(
                        items=(
                            f"{baseline.n} jobs as deployed: {speed}",
                            *(figures or (f"job noise: {fine(conclusion.sigma)}",)),
                            *map(plain, conclusion.notes),
                            *reasons,
                        )
                    ),
                ),
            ),
        ),
    )


def fine(fraction: float | None) -> str:
    """Write a noise with two decimals: 0.0061 is `0.61 %`."""
    return ABSENT if fraction is None else f"{100 * fraction:.2f} %"


def noise_figures(
    *,
    sigma: tuple[float, float, float],
    step_sd: float | None,
    lag1: float | None,
    straggler_rate: float,
    drift: float,
    steady_from: int | None,
) -> tuple[str, ...]:
    """Say what a calibration found; `sigma` is the job noise and its 95 % interval."""
    level, low, high = map(fine, sigma)
    steady = (
        "not told: fewer than 12 jobs, or none settles"
        if steady_from is None
        else f"step {steady_from}"
    )
    correlation = ABSENT if lag1 is None else f"{lag1:.2f}"
    return (
        f"job noise: {level} (95 % interval {low} to {high})",
        f"step noise inside a job: {fine(step_sd)}, correlation of neighbours {correlation}",
        f"slow steps: {fine(straggler_rate)} of the window",
        f"drift from the first job to the last: {percent(drift)}",
        f"steady state begins at: {steady}",
    )
