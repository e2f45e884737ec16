"""The gain that profiles may still have, and the spare blocks that narrow it.

M is the most that any profile may still gain. It is never below an interval or a single run that
the same report shows. Spare blocks bound and rank: they spend no alpha, and decide no verdict. This
module makes no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from pytest_xlatune.model.profile import Profile
from pytest_xlatune.model.result import Comparison, Verdict, VerdictKind
from pytest_xlatune.model.trial import ConfirmDesign, Trial
from pytest_xlatune.stats.blocks import BlockFit, combine, upper_bound
from pytest_xlatune.stats.compare import noise_of
from pytest_xlatune.stats.design import MIN_DF, SWEEP_ALPHA
from pytest_xlatune.studies.screen import Ranking
from pytest_xlatune.studies.trials import SPARE, Past, fitted, place
from pytest_xlatune.studies.verdicts import compare_in_blocks

BOUND = 0.02  # if no profile can gain more, the sweep is bounded


def spare_blocks(
    past: Past,
    ranks: Ranking,
    candidates: Mapping[str, Profile],
    *,
    staying: Collection[str],
    deciding: Sequence[Trial],
    baselines: int,
    jobs: int,
    block_trials: Callable[[Sequence[Profile], int, ConfirmDesign], tuple[Trial, ...]],
) -> tuple[Trial, ...]:
    """Return the trials of the spare blocks so far.

    Blocks are added as long as a profile may gain more than `BOUND` and jobs remain. Profiles with
    a trial in a block stay in it, whatever is measured later.

    Args:
        past: the trials of the sweep.
        ranks: the ranking by its screen.
        candidates: the profiles that a spare block may hold, by id.
        staying: ids of the arms that stayed to the last deciding block.
        deciding: the trials of the deciding blocks, all of them over.
        baselines: the number of baselines in a block.
        jobs: the number of jobs that all blocks together may take.
        block_trials: a function that returns the trials of a block.
    """
    design = ConfirmDesign(look=SPARE, arms=0, blocks=0, baselines=baselines)
    planned: tuple[Trial, ...] = ()
    number = max(trial.block for trial in deciding)
    while all(map(past.is_final, planned)):
        number += 1
        final = {key for key, result in past.confirm.items() if result.status.is_final}
        used_jobs = len(final | {place(trial) for trial in (*deciding, *planned)})
        free_jobs = jobs - used_jobs - baselines
        begun = {key.arm for key in past.confirm if key.block == number} & candidates.keys()
        unbounded = _unbounded(past, ranks, candidates, staying, number)
        more = [arm for arm in unbounded if arm not in begun]
        chosen = [*sorted(begun), *more[: max(free_jobs - len(begun), 0)]]
        if not chosen:
            break
        planned += block_trials([candidates[arm] for arm in chosen], number, design)
    return planned


def _unbounded(
    past: Past, ranks: Ranking, candidates: Iterable[str], staying: Collection[str], number: int
) -> list[str]:
    """Return the profiles that may gain `BOUND` or more before block `number`, the most first.

    Without spare blocks, 29 % of sweeps without an effect can exclude a gain of 2 % (50 jobs, 0.6 %
    noise); with them 73 % can, in 65 jobs.
    """
    fit = fitted(past.scored_in_blocks(until=number - 1))
    may_gain = gain_bounds(ranks, fit, candidates, staying=staying)
    # A profile without a score may gain anything. If its run in the screen was lost, it gets a
    # second run in a spare block, but no third.
    in_earlier_blocks = {key.arm for key in past.confirm if key.block < number}
    return [
        arm
        for arm in sorted(may_gain, key=lambda arm: (-may_gain[arm], arm))
        if may_gain[arm] >= math.log1p(BOUND)
        and (math.isfinite(may_gain[arm]) or arm not in in_earlier_blocks)
    ]


def gain_bounds(
    ranking: Ranking, fit: BlockFit | None, arms: Iterable[str], *, staying: Collection[str] = ()
) -> dict[str, float]:
    """Return arm -> bound that its log ratio exceeds with 5 % probability.

    The result is empty if the noise is unknown.

    For an arm in `staying`, which was in all deciding blocks, it is the upper end of its 95 %
    interval. For others it is the smaller of two bounds at 2.5 % each: from the screen, and from
    screen and blocks. The noise is the arm's own if it is larger than that of baselines and blocks.
    The bound of an arm without a score is infinite.
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
        in_blocks = fit.arms.get(arm) if fit else None
        if arm in staying:
            comparison = compare_in_blocks(fit, arm, family=1, alpha=SWEEP_ALPHA)
            if isinstance(comparison, Comparison):
                limits[arm] = comparison.ci95[1]
                continue
        estimates = [screened] if screened is not None else []
        if in_blocks is not None:
            estimates.append(combine([*estimates, in_blocks]))
        noise, noise_df = noise_of(in_blocks, sigma=sigma, df=df)
        limits[arm] = min(
            (upper_bound(estimate, sigma=noise, df=noise_df) for estimate in estimates),
            default=math.inf,
        )
    return limits


def gain_bound(
    ranking: Ranking,
    fit: BlockFit | None,
    verdicts: Sequence[Verdict],
    *,
    arms: Collection[str],
    staying: Collection[str],
) -> tuple[float, str] | None:
    """Return M as a log ratio and the arm that sets it: no scored profile gains more.

    M is the largest 95 % bound over all profiles, spare blocks included. It needs no factor for
    multiplicity, because the claim is about the maximum of all. M is None if a profile is FASTER,
    since there is nothing to rule out, or if a profile was only measured in rotations. Profiles
    that cannot run, or train to another loss, do not count. If a profile can run but has no score,
    M is infinite. A profile whose settings are not known to have been in effect cannot set M alone,
    but M is never below its interval.

    Args:
        ranking: the result of the screen.
        fit: least squares over all blocks; None if there are none yet.
        verdicts: the verdicts as a report shows them.
        arms: the arms that the claim covers.
        staying: the arms that stayed to the last deciding block.
    """
    if any(verdict.kind is VerdictKind.FASTER for verdict in verdicts):
        return None
    claimed = {
        verdict.arm: verdict for verdict in verdicts if verdict.arm in arms and not is_out(verdict)
    }
    if any(arm in ranking.turned and (not fit or arm not in fit.arms) for arm in claimed):
        return None  # a profile was ranked only in rotations
    proved = [arm for arm, verdict in claimed.items() if not verdict.unproved]
    limits = gain_bounds(ranking, fit, proved, staying=staying)
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
    """Return whether M need not cover a profile: it cannot run, or trains to another loss."""
    return verdict.kind is VerdictKind.INVALID and (not verdict.can_run or verdict.n > 0)
