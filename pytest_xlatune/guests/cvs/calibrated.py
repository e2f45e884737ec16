"""Measured thresholds of a CVS file: the least values that healthy jobs of its cells reach.

A least value is the mean of the jobs less three standard deviations of a job. The remark beside it
says how many jobs were measured, when they ran, and how often a healthy job misses the value.
"""

from __future__ import annotations

import math
from statistics import fmean, stdev

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.guests.cvs.thresholds import Demand
from pytest_xlatune.guests.cvs.values import PREFIX, TFLOPS, TOKENS
from pytest_xlatune.model.record import Json
from pytest_xlatune.model.text import counted
from pytest_xlatune.stats.noise import lower_bound
from pytest_xlatune.studies.calibration import jobs_of
from pytest_xlatune.studies.trials import usable

_KEPT_DIGITS = 4  # the digits of a least value


def least_values(campaign: Campaign, *, written: str) -> dict[str, Json]:
    """Return the entry of a threshold file for the cell of a finished calibration.

    The entry has a value for each metric that at least two jobs give. `written` is the date, ISO
    8601.
    """
    results = jobs_of(campaign.study, campaign.view().history)
    (cell,) = campaign.study.cells
    scores = [score for result in results if (score := usable(result))]
    # CVS refuses a cell that lacks a threshold for a metric that it judges
    entry: dict[str, Json] = {
        PREFIX + name: {"kind": "info", "value": None} for name in ("final_loss", "loss_decreased")
    }
    remarks = []
    for metric in (TFLOPS, TOKENS):
        figures = [Demand(metric=metric).figure(score, cell) for score in scores]
        values = [figure for figure in figures if figure is not None]
        if len(values) < 2:  # noqa: PLR2004 - a deviation needs two
            continue
        bound, miss_share = lower_bound(values)
        value = _rounded_down(bound)
        entry[PREFIX + metric] = {"kind": "min", "value": value}
        remarks.append(
            f"{metric}: at least {value:g}: mean {fmean(values):.6g} less 3 x {stdev(values):.3g} "
            f"of {counted(len(values), 'job')}; {miss_share:.2%} of healthy jobs miss it"
        )
    entry["_comment"] = f"least values of xlatune cvs calibrate, {written}: {'; '.join(remarks)}"
    return entry


def _rounded_down(value: float) -> float:
    """Return a number rounded down to `_KEPT_DIGITS` digits."""
    decimals = _KEPT_DIGITS - 1 - math.floor(math.log10(abs(value))) if value else 0
    scale = 10.0**decimals
    return math.floor(value * scale + 1e-9) / scale
