"""What a sweep that has confirmed nothing yet could confirm: the layouts of docs/statistics.md."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.document.estimates import dunnett, t_quantile

ASSUMED_SIGMA = 0.006
# baselines of the screen, finalists, baselines per block: the first that leaves three blocks
TABLE = ((5, 3, 2), (4, 3, 2), (4, 2, 2), (4, 2, 1), (1, 2, 1))
_RULES = ("stacks", "around", "singles")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The blocks of a plan, and the jobs of all of it."""

    arms: int
    controls: int
    blocks: int
    jobs: int

    def mde80(self, sigma: float) -> float:
        df = self.blocks * (self.arms + self.controls) - self.blocks - self.arms
        reach = dunnett(self.arms, df, weight=self.controls) + t_quantile(0.8, df)
        return math.expm1(reach * sigma * math.sqrt((1 + 1 / self.controls) / self.blocks))


def layout_of(declared: Mapping[str, Any]) -> Layout | None:
    """The layout of a tuning study as it was declared; None where it only ranks."""
    waves = Counter(each["wave"] for each in declared["profiles"])
    for rule in (each for kind in _RULES for each in declared[kind]):
        waves[rule["wave"]] += rule["slots"]
    count, of_screen = sum(waves.values()), declared["screen_baselines"]
    settled = of_screen * len(waves)
    if len(waves) > 1 and not of_screen:
        settled = sum(max(2, round(each / 6)) for each in waves.values())
    stated = [declared[key] for key in ("finalists", "block_baselines", "blocks")]
    found = _fitting(count, declared["budget"], settled, reserve=declared["second_blocks"])
    if not any(stated):
        return found
    found = found or _fitting(max(count, 1), count + 40, 0, reserve=0)
    if found is None:
        return None
    arms, controls, blocks = (
        own or planned
        for own, planned in zip(stated, (found.arms, found.controls, found.blocks), strict=True)
    )
    arms = min(arms, max(count, 1))
    before = settled or TABLE[0][0]
    of_blocks = (arms + controls) * (blocks + declared["second_blocks"])
    return Layout(arms=arms, controls=controls, blocks=blocks, jobs=count + before + of_blocks)


def _fitting(count: int, budget: int, settled: int, *, reserve: int) -> Layout | None:
    for of_screen, finalists, controls in TABLE:
        arms, before = min(finalists, max(count, 1)), settled or of_screen
        blocks = min((budget - count - before) // (arms + controls) - reserve, 6)
        if blocks >= 3 and blocks * (arms + controls) - blocks - arms >= 3:
            jobs = count + before + (arms + controls) * (blocks + reserve)
            return Layout(arms=arms, controls=controls, blocks=blocks, jobs=jobs)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The noise that a sweep plans with, and the smallest effect that its layout confirms."""

    jobs: int
    sigma: float
    mde80: float


def planned(declared: Mapping[str, Any], seen: float | None) -> Planned | None:
    """What a study plans with once its screen has `seen` some noise; None where it only ranks."""
    layout = layout_of(declared)
    if layout is None:
        return None
    before = declared["sigma_prior"] or ASSUMED_SIGMA
    sigma = max(before, seen or 0.0)
    return Planned(jobs=layout.jobs, sigma=sigma, mde80=layout.mde80(sigma))
