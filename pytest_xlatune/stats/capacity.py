"""What a budget of jobs can see: the layout of a sweep, and the smallest effect it confirms.

Pure arithmetic before anything is submitted. What cannot decide is refused by name: a sweep that
only ranks must say so before it costs cluster time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pytest_xlatune.results import relative
from pytest_xlatune.stats.critical import dunnett, t_quantile

SWEEP_ALPHA = 0.05
FIRST_STAGE_ALPHA = 0.04  # where a second stage is held in reserve
SECOND_STAGE_ALPHA = 0.01
MIN_DF = 3
MAX_BLOCKS = 6

# (baselines of the screen, finalists, baselines per block), fewest blocks is 3; first fit wins
_LAYOUTS = ((5, 3, 2), (4, 3, 2), (4, 2, 2), (4, 2, 1), (1, 2, 1))
MIN_BLOCKS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The layout of a sweep.

    Attributes:
        screen_baselines: baselines spread through the queue of the screen.
        finalists: arms of the confirmation.
        block_baselines: baselines in each block.
        blocks: complete blocks.
        jobs: of the whole sweep.
    """

    screen_baselines: int
    finalists: int
    block_baselines: int
    blocks: int
    jobs: int

    @property
    def df(self) -> int:
        """Residual degrees of freedom of the confirmation."""
        return design_df(self.finalists, self.block_baselines, self.blocks)

    def mde80(self, sigma: float, *, alpha: float = SWEEP_ALPHA) -> float:
        """Return the relative effect confirmed with 80 % power at a job noise of `sigma`."""
        c = dunnett(self.finalists, self.df, control_weight=self.block_baselines, alpha=alpha)
        return mde80(
            sigma, critical=c, df=self.df, variance=(1 + 1 / self.block_baselines) / self.blocks
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a budget decides nothing; `what` is what it is still good for."""

    what: str
    why: str


def plan(
    profiles: int, budget: int, *, reserved_blocks: int = 0, screen_baselines: int = 0
) -> Plan | Refusal:
    """Lay out a sweep of so many profiles in so many jobs: the first layout that fits.

    Args:
        profiles: to screen, each once.
        budget: jobs of the whole sweep.
        reserved_blocks: kept back for a second stage.
        screen_baselines: where they are already settled; 0 leaves them to the layout.
    """
    for wanted, finalists, block_baselines in _LAYOUTS:
        in_screen = screen_baselines or wanted
        arms = min(finalists, max(profiles, 1))
        block = arms + block_baselines
        left = budget - profiles - in_screen
        blocks = min(left // block - reserved_blocks, MAX_BLOCKS)
        if blocks >= MIN_BLOCKS and design_df(arms, block_baselines, blocks) >= MIN_DF:
            return Plan(
                screen_baselines=in_screen,
                finalists=arms,
                block_baselines=block_baselines,
                blocks=blocks,
                jobs=profiles + in_screen + block * (blocks + reserved_blocks),
            )
    return Refusal(what="ranking only", why=_why(profiles, budget, reserved_blocks))


def _why(profiles: int, budget: int, reserved_blocks: int) -> str:
    screen_baselines, finalists, block_baselines = _LAYOUTS[-1]
    block = min(finalists, max(profiles, 1)) + block_baselines
    least = profiles + screen_baselines + block * (MIN_BLOCKS + reserved_blocks)
    return (
        f"{budget} jobs screen {profiles} profiles but leave no {MIN_BLOCKS} blocks to confirm "
        f"one: {least} jobs are the least, {profiles + 5 + 20} are recommended"
    )


def design_df(finalists: int, block_baselines: int, blocks: int) -> int:
    """Return the residual degrees of freedom of complete blocks: r (K + c0) - r - K."""
    return blocks * (finalists + block_baselines) - blocks - finalists


def mde80(sigma: float, *, critical: float, df: float, variance: float) -> float:
    """Return the smallest relative effect that is found with 80 % power.

    (c + t_{.8, df}) sigma sqrt(variance); with the noncentral t it is 80 % to a point.
    """
    return relative((critical + t_quantile(0.8, df)) * sigma * math.sqrt(variance))


def outlook(
    sigma: float,
    *,
    profiles: int = 25,
    budgets: tuple[int, ...] = (36, 50, 65),
    words: str = "",
) -> str:
    """Return in words what budgets of jobs could see at a job noise of `sigma`.

    `words` say that noise, and where it is from, where it is not of this very cell's jobs.
    """
    seen = []
    for budget in budgets:
        found = plan(profiles, budget)
        what = found.what if isinstance(found, Refusal) else f"+{100 * found.mde80(sigma):.1f} %"
        seen.append(f"{budget} jobs: {what}")
    noise = words or f"a job noise of {100 * sigma:.2f} %"
    return f"at {noise} a sweep of {profiles} profiles confirms with 80 % power: {', '.join(seen)}"
