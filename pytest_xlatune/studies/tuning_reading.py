"""All that the verdicts of a tuning sweep rest on, and the words that they share.

Holds what was read and decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_xlatune.cells import Stage
from pytest_xlatune.profiles import Profile
from pytest_xlatune.stats.capacity import Plan, Refusal
from pytest_xlatune.stats.validity import different_loss
from pytest_xlatune.studies.tuning_confirm import Confirmation, Look
from pytest_xlatune.studies.tuning_history import Past, usable
from pytest_xlatune.studies.tuning_screen import Screen

DEFAULT_SIGMA = 0.006  # of a cell that was never calibrated
# what turns the assumption into a figure
NOT_CALIBRATED = "this cell was not calibrated: `xlatune calibrate SWEEP_FILE`"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNoise:
    """The noise of a job's score between jobs, to plan with, and where it comes from.

    Attributes:
        known: from a calibration of the cell, or as the sweep states it; None where nobody knows.
        seen: in the screen; None before that tells.
    """

    known: float | None
    seen: float | None = None

    @property
    def value(self) -> float:
        """The larger of what was known, or else assumed, and what was seen."""
        return max(self.known or DEFAULT_SIGMA, self.seen or 0.0)

    @property
    def words(self) -> str:
        """Say the value and where it is from; what nobody measured is called assumed."""
        value = f"{100 * self.value:.2f} %"
        if self.seen is not None and self.seen >= self.value:
            return f"the job noise of {value} that the screen shows"
        if self.known:
            return f"the known job noise of {value}"
        return f"an assumed job noise of {value} ({NOT_CALIBRATED})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """All that the verdicts rest on.

    Attributes:
        declared: the profiles by id, in declared order.
        selected: ids of this run.
        repeats: profile -> what has the same effective settings.
        past, screen, confirmation: what was measured; no confirmation before the screen is over.
        finalists: in rank order.
        late: what would be a finalist by now, but was screened after they were fixed.
        layout: the plan of the sweep.
        noise: of a job, to plan with.
        loss_tolerance: relative.
        said: how derived waves were filled, one sentence each.
        is_screened, is_complete: whether this run's screen, and everything of it, is over.
    """

    declared: Mapping[str, Profile]
    selected: frozenset[str]
    repeats: Mapping[str, str]
    past: Past
    screen: Screen
    confirmation: Confirmation | None
    finalists: tuple[str, ...]
    late: tuple[str, ...]
    layout: Plan | Refusal
    noise: JobNoise
    loss_tolerance: float
    is_screened: bool
    is_complete: bool
    said: tuple[str, ...] = ()

    @property
    def looks(self) -> tuple[Look, ...]:
        """The looks taken at complete blocks."""
        return self.confirmation.looks if self.confirmation else ()


def loss_reason(past: Past, profile_id: str, *, tolerance: float) -> str:
    """Return how a profile's loss differs from the baselines', "" where it does not."""
    reference = past.baseline_loss
    if reference is None:
        return ""
    for stage in (Stage.SCREEN, Stage.CONFIRM):
        for each in past.of_profile(profile_id, stage):
            score = usable(each)
            if score is None or score.loss is None:
                continue
            reason = different_loss(score.loss, reference, tolerance=tolerance)
            if reason:
                return reason
    return ""


def percent(change: float) -> str:
    """Write a relative change: +0.034 is "+3.4 %"."""
    return f"{100 * change:+.1f} %"
