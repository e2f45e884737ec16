"""What a budget of jobs can see: critical values, the layout of a sweep, the effect it confirms.

Pure arithmetic before anything is submitted: the same question has the same digits, also where
selection is simulated. What cannot decide is refused by name: a sweep that only ranks must say so
before it costs cluster time.

Dunnett's quantile is exact for the designs used here (one control, equal correlation); an
unbalanced stage takes Bonferroni, which needs no correlation. Its distribution is a mean over s,
the estimated noise of a job in units of the true one, with df s^2 chi-squared: a sum over equal
steps of log s, which for such smooth and short integrands converges faster than any power of the
step (Trefethen and Weideman, SIAM Review 56, 2014).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_xlatune.model.message import Message, say
from pytest_xlatune.model.metric import relative
from pytest_xlatune.model.sentences import BLOCKS

_RANKS_ONLY = (
    "{budget} jobs screen {profiles:+profile} and leave too few for the {blocks} blocks that "
    "confirm one: ask for {least} jobs at least, {recommended} are recommended"
)

_CLOSE = 1e-12  # of a critical value, relative: where the search ends
_REACH = 9.0  # standard deviations, beyond which a normal density is below the rounding error


@functools.lru_cache(maxsize=1024)
def t_quantile(probability: float, df: float) -> float:
    """Return the `probability` quantile of Student's t with `df` degrees of freedom; NaN below 1.

    With infinitely many degrees of freedom it is that of a standard normal.
    """
    from scipy import special

    if not df >= 1:
        return math.nan
    return float(special.stdtrit(df, probability))


def bonferroni(arms: int, df: float, *, alpha: float) -> float:
    """Return the one-sided critical value for `arms` comparisons of any correlation."""
    return t_quantile(1 - alpha / arms, df)


@functools.lru_cache(maxsize=1024)
def dunnett(arms: int, df: int, *, control_weight: float, alpha: float) -> float:
    """Return the one-sided critical value of `arms` comparisons with one control; NaN below 1 df.

    The control has `control_weight` times the observations of an arm, so that the comparisons
    correlate by rho = 1 / (1 + control_weight). Solves P(max_i T_i <= c) = 1 - alpha, with

        P = E_s E_z Phi((c s - sqrt(rho) z) / sqrt(1 - rho)) ** arms,

    z standard normal (C. W. Dunnett, JASA 50, 1955).
    """
    from scipy import special

    if arms == 1 or df < 1:
        return t_quantile(1 - alpha, df)
    rho = 1 / (1 + control_weight)
    z = np.linspace(-_REACH, _REACH, 145)
    upper = _REACH / math.sqrt(2 * df)  # the density falls slower below 1 than above it
    log_s = np.arange(-upper - upper**2, upper, min(0.1, 0.4 / math.sqrt(df)))
    s = np.exp(log_s)
    shared = _weights(-(z**2) / 2)
    levels = _weights(df * (log_s - (s**2 - 1) / 2))

    def error(c: float) -> float:
        below = special.ndtr((c * s[:, None] - math.sqrt(rho) * z) / math.sqrt(1 - rho)) ** arms
        return 1 - float(levels @ below @ shared)

    low, high = t_quantile(1 - alpha, df), bonferroni(arms, df, alpha=alpha)
    while high - low > _CLOSE * high:
        middle = (low + high) / 2
        low, high = (middle, high) if error(middle) > alpha else (low, middle)
    return high


def _weights(log_density: NDArray[np.float64]) -> NDArray[np.float64]:
    """Turn the logarithms of a density at equal steps into weights, which sum up to 1."""
    density: NDArray[np.float64] = np.exp(log_density)
    return density / np.sum(density)


SWEEP_ALPHA = 0.05
MIN_DF = 3
MAX_BLOCKS = 6
MOST_BLOCKS = 20  # blocks that a large budget may have
_USUAL_BUDGET = 65  # jobs up to which few profiles are not measured more often than need be

MIN_BLOCKS = 3
# jobs that stay for a last block of what may still gain 2 %, before the full layout is made longer
_SPARE_JOBS = 8
_QUIET = 0.004  # job noise up to which three runs tell, and up to five arms may stay to the end


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepLayout:
    """One way to lay out a sweep: arms of each block in turn, and what stands beside them."""

    screen_baselines: int
    widths: tuple[int, ...]
    # with one a single baseline job that is 3 % slow makes 13 % false winners, with two 5 %
    block_baselines: int = 2
    again: int = 0  # the best of the screen that run a second time before the blocks
    most: int = MAX_BLOCKS  # blocks at most

    def for_profiles(self, profiles: int, *, slots: int = 1) -> SweepLayout:
        """Return this layout for so many profiles: no block has more arms than there are profiles.

        On several node slots as many blocks begin at once, and none of them waits for a cut.
        """
        first = self.widths[0]
        widths = (first if at < slots else width for at, width in enumerate(self.widths))
        return dataclasses.replace(
            self, widths=tuple(min(width, max(profiles, 1)) for width in widths)
        )

    @property
    def in_blocks(self) -> int:
        """Jobs of all blocks."""
        return sum(self.widths) + len(self.widths) * self.block_baselines

    @property
    def df(self) -> int:
        """Residual degrees of freedom of the blocks."""
        return narrowed_df(self.widths, self.block_baselines)


# falling widths: 92 % of three winners at +2 % are found in 50 jobs, 83.5 % with equal blocks
# in the order in which they are tried; statistics of all of them: docs/explanation/statistics.md
# a third finalist is worth more than two baselines of the screen: of three winners among 8 profiles
# 25 jobs find 90 % with it, and 59 % without
_LAYOUTS = (
    SweepLayout(screen_baselines=3, widths=(6, 4, 3, 3, 3)),
    SweepLayout(screen_baselines=3, widths=(5, 3, 3, 3)),
    SweepLayout(screen_baselines=3, widths=(4, 3, 3)),
    SweepLayout(screen_baselines=2, widths=(4, 3, 3)),
    SweepLayout(screen_baselines=1, widths=(4, 3, 3)),
    SweepLayout(screen_baselines=1, widths=(3, 3, 3)),
    SweepLayout(screen_baselines=1, widths=(2, 2, 2), block_baselines=1),
)
# on node slots all blocks begin at once: what they cost more is wide, not long
_SLOT_LAYOUTS = (SweepLayout(screen_baselines=3, widths=(6, 6, 6, 6)),)
# where there are slots for all of these blocks a round of second runs costs little time, and few
# finalists need short blocks
# with second runs eight slots take 10 rounds, and 13 without them, at no less power
SECOND_RUNS = 8
_TWICE = SweepLayout(
    screen_baselines=3, widths=(4, 4, 4, 4, 4), block_baselines=1, again=SECOND_RUNS
)
# a large budget: beyond six blocks one more run of a finalist tells less than a second run of those
# that nearly became one. The share of the profiles that run twice, and arms of each block
_LARGE = (
    (1.0, (12, 8, 6, 5, 4, *[3] * 8)),
    (2 / 3, (6, 5, 5, *[3] * 6)),
    (1 / 2, (6, 5, 4, 3, 3, 3, 3)),
    (1 / 2, (5, 5, 4, 3, 3, 3)),
)
# where the noise is small there may be more than three winners, and three runs show each of them
_QUIET_LAYOUTS = (
    SweepLayout(screen_baselines=3, widths=(6, 6, 6)),
    SweepLayout(screen_baselines=3, widths=(5, 5, 5)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The layout of a sweep."""

    profiles: int  # profiles to screen
    screen_baselines: int  # baselines spread through the queues of the screen
    widths: tuple[int, ...]  # arms of each block in turn; the first are all finalists
    block_baselines: int  # baselines in each block
    jobs: int  # jobs of the whole sweep
    again: int = 0  # the best of the screen that run a second time before the blocks
    rotations: int = 0  # jobs in which profiles take turns, to be ranked; the look is one

    @property
    def finalists(self) -> int:
        """Arms that enter the blocks."""
        return self.widths[0]

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return len(self.widths)

    @property
    def in_blocks(self) -> int:
        """Jobs of all blocks, those in reserve left out."""
        return sum(self.widths) + self.blocks * self.block_baselines

    @property
    def df(self) -> int:
        """Residual degrees of freedom of the confirmation."""
        return narrowed_df(self.widths, self.block_baselines)

    @property
    def shape(self) -> Message:
        """The blocks: `5 finalists in the first block, 3 in 3 more, 2 baselines in each`."""
        (_, first), *later = (
            (width, len(list(same))) for width, same in itertools.groupby(self.widths)
        )
        rest = [
            say("the best {best} in {blocks} more", best=width, blocks=many)
            for width, many in later
        ]
        blocks = say(BLOCKS, blocks=self.blocks)
        if rest and first == 1:
            blocks = say("the first block, {rest}", rest=rest)
        elif rest:
            blocks = say("the first {blocks} blocks, {rest}", blocks=first, rest=rest)
        return say(
            "{again}{finalists:+finalist} in {blocks}, {baselines:+baseline} in each",
            again=say("the best {best} once more, then ", best=self.again) if self.again else None,
            finalists=self.finalists,
            blocks=blocks,
            baselines=self.block_baselines,
        )

    def mde80(self, sigma: float) -> float:
        """Return the relative effect of a finalist that stays to the end, found with 80 % power."""
        c = dunnett(self.finalists, self.df, control_weight=self.block_baselines, alpha=SWEEP_ALPHA)
        return mde80(
            sigma, critical=c, df=self.df, variance=(1 + 1 / self.block_baselines) / self.blocks
        )

    def from_start80(self, sigma: float) -> float:
        """Return the relative effect of one of the profiles that the sweep finds with 80 % power.

        Before it stands in all blocks a profile must be among the best of the screen, where one run
        speaks for it, and among the best of the first block. The others do nothing. Two rotations
        rank at least as well as two jobs of each.
        """
        again = self.profiles if self.rotations else self.again
        least = selected80(self.profiles, self.widths, self.block_baselines, again=again)
        return max(relative(least * sigma), self.mde80(sigma))


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a budget decides nothing, and only ranks."""

    why: Message


def plan(
    profiles: int,
    budget: int,
    *,
    screen_baselines: int = 0,
    waves: int = 1,
    sigma: float | None = None,
    slots: int = 1,
    may_repeat: bool = True,
    turned: int = 0,
    rotations: int = 0,
) -> Plan | Refusal:
    """Lay out a sweep of so many profiles in so many jobs: the first layout that fits.

    Args:
        profiles: how many there are to rank.
        budget: how many jobs the whole sweep may take.
        screen_baselines: the baselines of the screen where they are fixed already; 0 leaves them to
            the layout.
        waves: number of waves of the screen; each has a baseline of its own.
        sigma: the job noise where it is known; None is the usual one.
        slots: node slots that run side by side; the screen has a baseline on nearly each.
        may_repeat: whether the best of the screen may run a second time.
        turned: how many of the profiles rotations rank; the others run once.
        rotations: how many jobs those rotations take.
    """
    if turned:
        alone = profiles - turned
        in_screen = alone and (screen_baselines or max(_LAYOUTS[0].screen_baselines, waves))
        return _behind_rotations(
            profiles, budget, alone + in_screen + rotations, in_screen, rotations
        )
    on_slots = slot_baselines(slots, profiles)
    is_quiet = sigma is not None and sigma <= _QUIET
    quiet = _QUIET_LAYOUTS if is_quiet else ()
    several = _SLOT_LAYOUTS if slots > 1 else ()
    is_repeated = may_repeat and profiles >= 2 * SECOND_RUNS
    twice = _with_second_runs(profiles, slots=slots) if is_repeated else ()
    for layout in (*twice, *quiet, *_LAYOUTS[:1], *several, *_LAYOUTS[1:]):
        candidate = layout.for_profiles(profiles, slots=slots)
        in_screen = screen_baselines or max(candidate.screen_baselines, waves, on_slots)
        block = candidate.widths[-1] + candidate.block_baselines
        left = budget - profiles - in_screen - candidate.again - candidate.in_blocks
        if left < 0 or candidate.df < MIN_DF:
            continue
        left -= _SPARE_JOBS if layout is _LAYOUTS[0] else 0
        most = candidate.most
        is_plain = slots == 1 and not is_repeated
        if layout is _LAYOUTS[0] and is_plain and budget > _USUAL_BUDGET:
            most = MOST_BLOCKS  # few profiles, of which none runs twice
        more = max(min(left // block, most - len(candidate.widths)), 0)
        widths = candidate.widths + candidate.widths[-1:] * more
        return Plan(
            profiles=profiles,
            screen_baselines=in_screen,
            widths=widths,
            block_baselines=candidate.block_baselines,
            again=candidate.again,
            jobs=profiles
            + in_screen
            + candidate.again
            + sum(widths)
            + len(widths) * candidate.block_baselines,
        )
    return Refusal(why=_why(profiles, budget, waves, slots))


def _behind_rotations(
    profiles: int, budget: int, screened: int, in_screen: int, rotations: int
) -> Plan | Refusal:
    """Return the widest blocks that fit behind a screen of so many jobs, and more of the last."""
    layouts = [layout.for_profiles(profiles) for layout in _LAYOUTS]
    for candidate in layouts:
        left = budget - screened - candidate.in_blocks
        if left < 0 or candidate.df < MIN_DF:
            continue
        more = left // (candidate.widths[-1] + candidate.block_baselines)
        widths = candidate.widths + candidate.widths[-1:] * min(
            more, MOST_BLOCKS - len(candidate.widths)
        )
        return Plan(
            profiles=profiles,
            screen_baselines=in_screen,
            widths=widths,
            block_baselines=candidate.block_baselines,
            jobs=screened + sum(widths) + len(widths) * candidate.block_baselines,
            rotations=rotations,
        )
    least = screened + min(layout.in_blocks for layout in layouts if layout.df >= MIN_DF)
    usual = max(screened + layouts[1].in_blocks, least)
    return Refusal(
        why=say(
            _RANKS_ONLY,
            budget=budget,
            profiles=profiles,
            blocks=MIN_BLOCKS,
            least=least,
            recommended=usual,
        )
    )


USUAL_BLOCKS = _LAYOUTS[1].in_blocks  # jobs of blocks behind rotations, where no budget is named


def jobs_for_second_runs(layout: Plan, *, slots: int) -> int:
    """Return the jobs with which the best of the screen run twice; 0 where they do, or never do."""
    if layout.again or slots < len(_TWICE.widths) or layout.profiles < 2 * _TWICE.again:
        return 0
    return layout.profiles + layout.screen_baselines + _TWICE.again + _TWICE.in_blocks


def _with_second_runs(profiles: int, *, slots: int) -> tuple[SweepLayout, ...]:
    """Return the layouts in which the best of the screen run twice, in the order of their trial.

    On one slot those of a large budget; the last two have as many second runs as fit, eight or
    more. On several slots all blocks lie side by side.
    """
    if slots > 1:
        is_wide = slots >= len(_TWICE.widths)
        return (dataclasses.replace(_TWICE, most=min(MAX_BLOCKS, slots)),) if is_wide else ()
    return tuple(
        SweepLayout(screen_baselines=3, widths=widths, again=again, most=MOST_BLOCKS)
        for share, widths in _LARGE
        for again in range(int(share * profiles), _fewest(share, profiles) - 1, -1)
    )


def _fewest(share: float, profiles: int) -> int:
    """Return how many second runs a layout has at least."""
    return SECOND_RUNS if share <= 1 / 2 else int(share * profiles)


def unused(layout: Plan, budget: int) -> Message | None:
    """Return why a plan leaves jobs of its budget, and what becomes of them; None: it does not."""
    left = budget - layout.jobs
    if not left:
        return None
    block = layout.widths[-1] + layout.block_baselines
    if left < block:
        why = say(" (one more block takes {jobs})", jobs=block)
    elif left < block + _SPARE_JOBS:
        why = None
    else:
        why = say(
            " ({blocks} blocks are the most planned here; `blocks=` asks for more)",
            blocks=layout.blocks,
        )
    return say(
        "the plan keeps {jobs:+job} of {budget} for spare blocks, which run only where "
        "nothing is faster{why}",
        jobs=left,
        budget=budget,
        why=why,
    )


def screen_slots(slots: int, profiles: int) -> int:
    """Return on how many node slots a screen lies: a baseline is for two profiles or more."""
    return 1 if slots == 1 else min(slots, max(profiles // 2, 1))


FEW = 8  # slots of which one may lack a baseline: the profiles on it tell its level too


def slot_baselines(slots: int, profiles: int) -> int:
    """Return the baselines of a screen on node slots: one each, or few less if that saves a round.

    Eight slots screen 25 profiles and seven baselines in four rounds, and would need a fifth for
    one baseline more.
    """
    used = screen_slots(slots, profiles)
    last = (profiles + used) % used
    return used - last if last <= used // FEW else used


def _why(profiles: int, budget: int, waves: int, slots: int) -> Message:
    most = max(waves, slot_baselines(slots, profiles))

    def jobs(layout: SweepLayout) -> int:
        return profiles + max(layout.screen_baselines, most) + layout.in_blocks

    layouts = [layout.for_profiles(profiles, slots=slots) for layout in _LAYOUTS]
    least = min(jobs(layout) for layout in layouts if layout.df >= MIN_DF)
    recommended = max(jobs(layouts[1]), least)
    return say(
        _RANKS_ONLY,
        budget=budget,
        profiles=profiles,
        blocks=MIN_BLOCKS,
        least=least,
        recommended=recommended,
    )


def narrowed_df(widths: Sequence[int], block_baselines: int) -> int:
    """Return the residual degrees of freedom of blocks of falling width: cells less parameters."""
    cells = sum(widths) + len(widths) * block_baselines
    return cells - len(widths) - max(widths, default=0)


def design_df(finalists: int, block_baselines: int, blocks: int) -> int:
    """Return the residual degrees of freedom of complete blocks: r (K + c0) - r - K."""
    return blocks * (finalists + block_baselines) - blocks - finalists


def mde80(sigma: float, *, critical: float, df: float, variance: float) -> float:
    """Return the smallest relative effect that is found with 80 % power.

    (c + t_{.8, df}) sigma sqrt(variance); with the noncentral t it is 80 % to a point.
    """
    return relative((critical + t_quantile(0.8, df)) * sigma * math.sqrt(variance))


_RUNS = 10_000  # of the simulated selection; another start of the numbers moves it by .5 %
# 80 %, and what the guards against an arm's own noise and against slow steps cost
_FOUND = 0.825


@functools.lru_cache(maxsize=256)
def selected80(
    profiles: int,
    widths: tuple[int, ...],
    block_baselines: int,
    *,
    alpha: float = SWEEP_ALPHA,
    again: int = 0,
) -> float:
    """Return what one of `profiles` must gain to be found with 80 % power, selection included.

    In standard deviations of a job's score. The others do nothing. Each simulated sweep tells the
    least effect with which the profile enters the first block, stays at each cut, and passes the
    critical value: the largest of these is what that sweep needs. What the baselines share moves
    all profiles alike, and no rank.

    Args:
        profiles: number of profiles of the screen, each measured once.
        widths: arms of each block in turn.
        block_baselines: baselines in each block.
        alpha: the error rate of the confirmation.
        again: how many of the best of the screen are measured a second time before the first block.
    """
    blocks, df = len(widths), narrowed_df(widths, block_baselines)
    contrast_variance = 1 + 1 / block_baselines
    critical = max(
        dunnett(widths[0], df, control_weight=block_baselines, alpha=alpha), t_quantile(0.975, df)
    )
    rng = np.random.default_rng(1)
    normal = rng.standard_normal
    rivals_count = profiles - 1
    candidate, need = normal(_RUNS), np.full(_RUNS, -np.inf)
    # a row is a sweep; the screen of the rivals, falling, as far as any of them can come
    if again >= profiles:
        runs = 2
        rivals = _best_of(rivals_count, widths[0], rng) / math.sqrt(runs)
        candidate = candidate / math.sqrt(runs)
    elif again > widths[0]:
        runs = 2
        rivals = _best_of(rivals_count, again, rng)
        if rivals.shape[1] == again:
            need = rivals[:, -1] - candidate
        rivals, candidate = rivals[:, : again - 1], (candidate + normal(_RUNS)) / 2
        rivals = -np.sort(-(rivals + normal(rivals.shape)) / 2)[:, : widths[0]]
    else:
        runs = 1
        rivals = _best_of(rivals_count, widths[0], rng)
    if rivals.shape[1] == widths[0]:
        need = np.maximum(need, rivals[:, -1] - candidate)
    rivals = rivals[:, : widths[0] - 1]
    sums, total = np.zeros_like(rivals), np.zeros(_RUNS)
    for at, width in enumerate(widths):
        if at and width < widths[at - 1] and rivals.shape[1] >= width:
            # screen and blocks so far, by inverse variance
            share = at / (at + contrast_variance * runs)
            pooled = (1 - share) * rivals + share * sums / at
            order = np.argsort(-pooled)[:, :width]
            last = np.take_along_axis(pooled, order[:, -1:], axis=1)[:, 0]
            need = np.maximum(need, last - ((1 - share) * candidate + share * total / at))
            rivals = np.take_along_axis(rivals, order[:, :-1], axis=1)
            sums = np.take_along_axis(sums, order[:, :-1], axis=1)
        sums = sums + normal(sums.shape)
        total = total + normal(_RUNS)
    baselines = normal(_RUNS) / math.sqrt(blocks * block_baselines)
    # chi-squared by the cube of a normal (E. B. Wilson and M. M. Hilferty, PNAS 17, 1931)
    seen = np.maximum(1 - 2 / (9 * df) + normal(_RUNS) * math.sqrt(2 / (9 * df)), 0.0) ** 1.5
    passes = critical * math.sqrt(contrast_variance / blocks) * seen - (total / blocks - baselines)
    return float(np.sort(np.maximum(need, passes))[math.ceil(_FOUND * _RUNS) - 1])


def _best_of(count: int, kept: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the best of `count` normal values in each simulated sweep, falling; `kept` at most.

    The largest of n uniform values is distributed as a uniform value to the power 1/n, and those
    below it in turn are as the largest of one value less (L. Devroye, Non-Uniform Random Variate
    Generation, 1986, chapter V.3). So nothing is drawn that could not come so far.
    """
    from scipy import special

    left = np.arange(count, count - min(kept, count), -1)
    logs = np.log(rng.random((_RUNS, left.size))) / left
    best: NDArray[np.float64] = special.ndtri(np.exp(np.cumsum(logs, axis=1)))
    return best


def outlook(
    sigma: float,
    *,
    profiles: int = 25,
    budgets: tuple[int, ...] = (36, 50, 65),
    noise: Message | None = None,
) -> Message:
    """Return what budgets of jobs could see at a job noise of `sigma`.

    `noise` is that noise, and where it is from, where it is not of this very cell's jobs.
    """
    seen = []
    for budget in budgets:
        layout = plan(profiles, budget)
        if isinstance(layout, Refusal):
            seen.append(say("{jobs} jobs: ranking only", jobs=budget))
            continue
        start, finalist = layout.from_start80(sigma), layout.mde80(sigma)
        seen.append(
            say(
                "{jobs} jobs: {start:percent} ({finalist:percent})",
                jobs=budget,
                start=start,
                finalist=finalist,
            )
        )
    noise = noise or say("a job noise of {sigma:.2%}", sigma=sigma)
    return say(
        "at {noise} a sweep of {profiles} profiles finds these gains and larger ones with "
        "80 % power (in brackets: those of a finalist): {seen}",
        noise=noise,
        profiles=profiles,
        seen=seen,
    )
