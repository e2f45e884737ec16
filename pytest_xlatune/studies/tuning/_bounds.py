"""What a sweep rules out: by profile the most that it may gain, and M, the largest of them.

A page shows M over intervals and single runs, so M excludes nothing that one of them allows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from pytest_xlatune.model.result import Comparison, Verdict, VerdictKind
from pytest_xlatune.stats.blocks import BlockFit, combine, upper_bound
from pytest_xlatune.stats.compare import noise_of
from pytest_xlatune.stats.design import MIN_DF, SWEEP_ALPHA
from pytest_xlatune.studies.verdicts import compared

if TYPE_CHECKING:
    from pytest_xlatune.studies.tuning._stages import Ranking


def bounds(
    ranking: Ranking, fit: BlockFit | None, arms: Iterable[str], *, kept: Collection[str] = ()
) -> dict[str, float]:
    """Return by profile what its log ratio exceeds with 5 % probability; {} where noise is unknown.

    Of arms that were `kept` to the last block it is the upper end of their 95 % interval. Of others
    it is the smaller of two bounds at 2.5 % each: from the screen, and from screen and blocks. The
    noise is that of baselines and blocks, or an arm's own. An arm without any score may gain
    anything.
    """
    squares, df = ranking.squares, ranking.df
    if fit is not None and fit.df > 0:
        squares, df = squares + fit.sigma**2 * fit.df, df + fit.df
    if df < MIN_DF or squares <= 0 or not math.isfinite(squares):
        return {}
    sigma = math.sqrt(squares / df)
    found: dict[str, float] = {}
    for arm in arms:
        standing = ranking.standings.get(arm)
        inside = fit.arms.get(arm) if fit else None
        shown = compared(fit, arm, family=1, alpha=SWEEP_ALPHA) if arm in kept else None
        if isinstance(shown, Comparison):
            found[arm] = shown.ci95[1]
            continue
        parts = [(standing.estimate, standing.variance)] if standing is not None else []
        noise, its_df = noise_of(inside, sigma=sigma, df=df)
        own = [upper_bound(*each, sigma=noise, df=its_df) for each in parts]
        if inside is not None:
            both = combine([*parts, (inside.estimate, inside.variance)])
            own.append(upper_bound(*both, sigma=noise, df=its_df))
        found[arm] = min(own, default=math.inf)
    return found


def largest(
    ranking: Ranking,
    fit: BlockFit | None,
    verdicts: Sequence[Verdict],
    *,
    arms: Collection[str],
    kept: Collection[str],
) -> tuple[float, str] | None:
    """Return M as a log ratio, and whose bound it is: no scored profile beats the baseline by more.

    None where a profile is FASTER: then there is nothing to rule out. Profiles that cannot run, or
    train to another loss, do not count. One that could run and has no score may gain anything, so
    that M is infinite. What is not known to have been in effect excludes nothing: alone it makes no
    M, but no M lies below its interval. At 95 %: the largest over profiles of their bounds, spare
    blocks included. No multiplicity factor: the claim is of all.

    Args:
        ranking: what the screen says.
        fit: of all blocks; None before they tell.
        verdicts: as they are shown.
        arms: what the claim is about.
        kept: the arms that stayed to the last deciding block.
    """
    if any(each.kind is VerdictKind.FASTER for each in verdicts):
        return None
    claimed = {each.arm: each for each in verdicts if each.arm in arms and not is_out(each)}
    proved = [arm for arm, each in claimed.items() if not each.unproved]
    found = bounds(ranking, fit, proved, kept=kept)
    if not found:
        return None
    for arm, each in claimed.items():
        if each.ci95 is not None:
            found[arm] = math.log1p(each.ci95[1])
        elif each.delta is not None and arm in found:
            found[arm] = max(found[arm], math.log1p(each.delta))
    widest = max(found, key=lambda each: found[each])
    return found[widest], widest


def is_out(verdict: Verdict) -> bool:
    """Whether nothing is to be ruled out of a profile: it cannot run, or not with these numbers."""
    return verdict.kind is VerdictKind.INVALID and (not verdict.can_run or verdict.n > 0)
