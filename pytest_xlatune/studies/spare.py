"""The gain that profiles may still have, and the spare blocks that narrow it.

M is the most that any profile may still gain. It is consistent with the intervals and single runs
on the same page. Spare blocks bound and rank: they spend no alpha, and decide no verdict. This
module makes no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from pytest_xlatune.model.message import Message, at_most, say
from pytest_xlatune.model.profile import Profile
from pytest_xlatune.model.result import Comparison, Verdict, VerdictKind, relative
from pytest_xlatune.model.trial import ConfirmDesign, Trial
from pytest_xlatune.stats.blocks import BlockFit, combine, upper_bound
from pytest_xlatune.stats.compare import noise_of
from pytest_xlatune.stats.design import MIN_DF, SWEEP_ALPHA
from pytest_xlatune.studies.screen import Ranking
from pytest_xlatune.studies.trials import SPARE, Past, fitted, place
from pytest_xlatune.studies.verdicts import compared

BOUND = 0.02  # if no profile can gain more, the sweep is bounded


def spare_blocks(
    past: Past,
    ranks: Ranking,
    others: Mapping[str, Profile],
    *,
    going: Collection[str],
    after: Sequence[Trial],
    baselines: int,
    jobs: int,
    lay: Callable[[Sequence[Profile], int, ConfirmDesign], tuple[Trial, ...]],
) -> tuple[tuple[Trial, ...], Message | None]:
    """Return the spare blocks so far, and why the last one was added; no block if none is of use.

    Blocks are added while profiles keep the sweep from being bounded and jobs are left. Profiles
    with a trial in a block stay in it, whatever is measured later.

    Args:
        past: the trials of the sweep.
        ranks: the ranking by its screen.
        others: the profiles that a spare block may hold, by id.
        going: the arms that stayed to the last deciding block.
        after: the trials of the deciding blocks, all of them over.
        baselines: the number of baselines in a block.
        jobs: the number of jobs that all blocks together may take.
        lay: returns the trials of a block.
    """
    design = ConfirmDesign(look=SPARE, arms=0, blocks=0, baselines=baselines)
    planned: tuple[Trial, ...] = ()
    added: Message | None = None
    number = max(trial.block for trial in after)
    while not past.not_over(planned):
        number += 1
        ran = {key for key, result in past.confirm.items() if result.status.is_final}
        taken = len(ran | {place(trial) for trial in (*after, *planned)})
        free = jobs - taken - baselines
        held = {key.arm for key in past.confirm if key.block == number} & others.keys()
        wanted = [arm for arm in _unbounded(past, ranks, others, going, number) if arm not in held]
        chosen = [*sorted(held), *wanted[: max(free - len(held), 0)]]
        if not chosen:
            break
        planned += lay([others[arm] for arm in chosen], number, design)
        added = say(
            "block {block} is added: nothing is faster, and what {arms} may gain is not narrow yet",
            block=number,
            arms=at_most(4, sorted(chosen)),
        )
    return planned, added


def _unbounded(
    past: Past, ranks: Ranking, others: Iterable[str], going: Collection[str], before: int
) -> list[str]:
    """Return which profiles keep the sweep from being bounded before a block, the worst first."""
    fit = fitted(past.scored_in_blocks(until=before - 1))
    may_gain = bounds(ranks, fit, others, kept=going)
    # A profile without a score may gain anything, so the bound M does not cover it. One whose run
    # in the screen was lost gets a second run here, but no third.
    tried = {key.arm for key in past.confirm if key.block < before}
    # Without spare blocks, 29 % of sweeps without an effect could exclude a gain of 2 % (50 jobs,
    # 0.6 % noise); with them 73 % can, in 65 jobs.
    return [
        arm
        for arm in sorted(may_gain, key=lambda arm: (-may_gain[arm], arm))
        if relative(min(may_gain[arm], 1.0)) >= BOUND
        and (math.isfinite(may_gain[arm]) or arm not in tried)
    ]


def bounds(
    ranking: Ranking, fit: BlockFit | None, arms: Iterable[str], *, kept: Collection[str] = ()
) -> dict[str, float]:
    """Return arm -> what its log ratio exceeds with 5 % probability; {} if the noise is unknown.

    For an arm that was `kept` to the last block, this is the upper end of its 95 % interval. For
    others it is the smaller of two bounds at 2.5 % each: from the screen, and from screen and
    blocks. The noise is the arm's own if it is larger than that of baselines and blocks. An arm
    without a score may gain anything.
    """
    squares, df = ranking.squares, ranking.df
    if fit is not None and fit.df > 0:
        squares, df = squares + fit.sigma**2 * fit.df, df + fit.df
    if df < MIN_DF or squares <= 0 or not math.isfinite(squares):
        return {}
    sigma = math.sqrt(squares / df)
    limits: dict[str, float] = {}
    for arm in arms:
        # rotations bound nothing, because the deployed program may differ
        screened = None if arm in ranking.turned else ranking.standings.get(arm)
        inside = fit.arms.get(arm) if fit else None
        shown = compared(fit, arm, family=1, alpha=SWEEP_ALPHA) if arm in kept else None
        if isinstance(shown, Comparison):
            limits[arm] = shown.ci95[1]
            continue
        parts = [screened] if screened is not None else []
        if inside is not None:
            parts.append(combine([*parts, inside]))
        noise, its_df = noise_of(inside, sigma=sigma, df=df)
        limits[arm] = min(
            (upper_bound(part, sigma=noise, df=its_df) for part in parts), default=math.inf
        )
    return limits


def largest(
    ranking: Ranking,
    fit: BlockFit | None,
    verdicts: Sequence[Verdict],
    *,
    arms: Collection[str],
    kept: Collection[str],
) -> tuple[float, str] | None:
    """Return M as a log ratio and the arm that sets it: no scored profile gains more.

    It is None if a profile is FASTER, since there is nothing to rule out, or if one was only
    measured in rotations. Profiles that cannot run, or train to another loss, do not count. One
    that can run but has no score may gain anything, so M is infinite. A profile that is not known
    to have been in effect cannot set M alone, but M is never below its interval. M is the largest
    95 % bound over all profiles, spare blocks included. It needs no multiplicity factor, because
    the claim is about the maximum of all.

    Args:
        ranking: the result of the screen.
        fit: least squares over all blocks; None if there are none yet.
        verdicts: the verdicts as shown.
        arms: the arms that the claim covers.
        kept: the arms that stayed to the last deciding block.
    """
    # A fast profile with another loss once held M at 12.6 %, beside a winner at [+5.6, +6.8].
    if any(verdict.kind is VerdictKind.FASTER for verdict in verdicts):
        return None
    claimed = {
        verdict.arm: verdict for verdict in verdicts if verdict.arm in arms and not is_out(verdict)
    }
    if any(arm in ranking.turned and (not fit or arm not in fit.arms) for arm in claimed):
        return None  # a profile was ranked only in rotations
    proved = [arm for arm, verdict in claimed.items() if not verdict.unproved]
    limits = bounds(ranking, fit, proved, kept=kept)
    if not limits:
        return None
    for arm, verdict in claimed.items():
        if verdict.ci95 is not None:
            limits[arm] = math.log1p(verdict.ci95[1])
        elif verdict.delta is not None and arm in limits:
            limits[arm] = max(limits[arm], math.log1p(verdict.delta))
    widest = max(limits, key=lambda arm: limits[arm])
    return limits[widest], widest


def is_out(verdict: Verdict) -> bool:
    """Return whether M need not cover a profile: it cannot run, or changes the numerics."""
    return verdict.kind is VerdictKind.INVALID and (not verdict.can_run or verdict.n > 0)
