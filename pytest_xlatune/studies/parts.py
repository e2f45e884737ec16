"""Sets of settings: those that go to blocks together, and the recommended one.

The recipe is the smallest set of settings that is shown to be needed. The leader, the arm with
the largest estimate, may carry settings that do nothing: if one setting helps, every stack with it
looks as good. So a stack and its parts run in the same blocks. The recipe is the smallest confirmed
set that is not shown to gain less than the leader, and it says for each setting whether it was
shown to be needed. Contrasts are differences within blocks, tested one-sided at 5 % by Holm over
the parts.

This module plans no trial and makes no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from pytest_xlatune.model.profile import BASELINE_ID, Key, Profile, is_part, settings_of
from pytest_xlatune.model.result import (
    Needed,
    Recipe,
    RecipePart,
    Verdict,
    VerdictKind,
    relative,
)
from pytest_xlatune.stats.blocks import BlockFit, BlockScore
from pytest_xlatune.stats.design import MIN_DF
from pytest_xlatune.stats.quantiles import t_quantile

ALPHA = 0.05  # error rate over all parts of a set, one-sided
_LEAST_BLOCKS = 3  # fewer differences of two arms say too little about their noise
_CHAIN = 3  # at most so many of a stack and its parts enter before the next profile in rank


def entering(
    ranked: Sequence[str],
    size: int,
    *,
    profiles: Mapping[str, Profile],
    frozen: Sequence[str] = (),
) -> list[str]:
    """Return which of the ranked profiles enter the next blocks, at most `size`, best first.

    A stack enters with its best part, that part with its own best part, and so on down to a single
    setting while there is room, because only blocks with its parts can show which settings a stack
    needs. A stack without room for a part stays out. The `frozen` profiles enter in any case.
    """
    settings = {arm: settings_of(profiles[arm]) for arm in ranked}

    def family(arm: str) -> list[str]:
        """Return a set, its best part, the best part of that, and so on; then its other parts."""
        parts = [part for part in ranked if is_part(settings[part], settings[arm])]
        return list(dict.fromkeys([arm, *(family(parts[0]) if parts else []), *parts]))

    chosen = dict.fromkeys(arm for arm in ranked if arm in frozen)
    for arm in ranked:
        if arm in chosen or len(chosen) >= size:
            continue
        chain = family(arm)
        new_arms = [member for member in chain[:_CHAIN] if member not in chosen]
        joining = dict.fromkeys(new_arms[: size - len(chosen)])
        if len(chain) == 1 or any(part in chosen | joining for part in chain[1:]):
            chosen |= joining
    return [arm for arm in ranked if arm in chosen]


class _Contrast(NamedTuple):
    """The gain of an arm over another, mostly one of its parts, in the blocks with both."""

    arm: str
    part: str  # the arm that it is compared with
    estimate: float  # log ratio of `arm` to `part`
    t: float  # the estimate in standard errors
    n: int  # number of blocks with both


def _contrasts(
    arm: str, others: Iterable[str], *, scored: Sequence[BlockScore], fit: BlockFit
) -> Iterator[_Contrast]:
    """Compare an arm with others block by block; others that share no block with it are left out.

    The standard error comes from the noise of all blocks or from these differences, whichever is
    larger, so that the noise of a setting does not make it look needed.
    """
    scores: dict[str, dict[Hashable, float]] = {}
    for job in scored:
        scores.setdefault(job.arm, {})[job.block] = job.value
    for other in others:
        in_other = scores.get(other, {})
        gains = [
            value - in_other[block]
            for block, value in scores.get(arm, {}).items()
            if block in in_other
        ]
        if gains:
            spread = stdev(gains) if len(gains) >= _LEAST_BLOCKS else 0.0
            error = max(fit.sigma * math.sqrt(2), spread) / math.sqrt(len(gains))
            gain = fmean(gains)
            yield _Contrast(arm, other, gain, gain / error if error > 0 else 0.0, len(gains))


def recipe(
    *,
    profiles: Mapping[str, Profile],
    verdicts: Sequence[Verdict],
    scored: Sequence[BlockScore],
    fit: BlockFit | None,
) -> Recipe | None:
    """Return the recipe; None if no arm is confirmed to be faster.

    `scored` has the scored trials of the blocks, `fit` their least squares; None if there is none.
    """
    wins = {verdict.arm for verdict in verdicts if verdict.wins}
    faster = {
        verdict.arm: verdict.delta
        for verdict in verdicts
        if verdict.kind is VerdictKind.FASTER
        and not verdict.unproved
        and verdict.delta is not None
        and not profiles[verdict.arm].is_control
    }
    if not faster or fit is None or fit.df < MIN_DF:
        return None
    settings = {name: settings_of(profile) for name, profile in profiles.items()}
    valid = {verdict.arm for verdict in verdicts if verdict.kind is not VerdictKind.INVALID}
    # an arm that was cut from the blocks is only ranked
    ranked = {verdict.arm for verdict in verdicts if verdict.kind is VerdictKind.SCREENED}
    in_blocks = sorted(({job.arm for job in scored} & valid) - ranked)
    parts = {
        arm: [part for part in in_blocks if is_part(settings[part], settings[arm])]
        for arm in in_blocks
    }
    # the leader is the best of several, so all arms and their parts share the error rate
    contrasts = [
        contrast
        for arm in in_blocks
        for contrast in _contrasts(arm, parts[arm], scored=scored, fit=fit)
    ]
    # Holm's step-down
    needed: list[_Contrast] = []
    for contrast in sorted(contrasts, key=lambda contrast: -contrast.t):
        if contrast.t <= t_quantile(1 - ALPHA / (len(contrasts) - len(needed)), fit.df):
            break
        needed.append(contrast)

    # A stack whose measured parts are in no block comes after all other arms. Every stack with the
    # one useful setting looks as good: without this rule, 60 % of the recommended stacks hold a
    # useless setting if one of 25 profiles gains 4 %.
    may_lead = [
        arm
        for arm in faster
        if parts[arm] or not any(is_part(settings[other], settings[arm]) for other in valid)
    ]

    def smallest(arm: str) -> str:
        """Return the smallest of an arm and its parts that is not shown to gain less."""
        worse = {contrast.part for contrast in needed if contrast.arm == arm}
        choice = [part for part in (arm, *parts[arm]) if part in faster and part not in worse]
        return min(choice, key=lambda part: (len(settings[part]), -faster[part], part))

    # an arm leads only if its `smallest` wins: without a win, the set may gain nothing
    leaders = sorted(may_lead or faster, key=lambda arm: (faster[arm], arm), reverse=True)
    leader = next((arm for arm in leaders if smallest(arm) in wins), leaders[0])
    best = smallest(leader)
    own = [contrast for contrast in contrasts if contrast.arm == best]
    recipe_parts = _parts(best, own, faster[best], settings=settings, needed=needed)
    return Recipe(arm=best, largest=leader, parts=tuple(recipe_parts))


def _parts(
    arm: str,
    contrasts: Sequence[_Contrast],
    delta: float,
    *,
    settings: Mapping[str, Mapping[Key, str]],
    needed: Collection[_Contrast],
) -> Iterator[RecipePart]:
    """Yield the settings of an arm; those that were only measured together form one entry."""
    arm_settings = settings[arm]
    if len(arm_settings) == 1:  # the gain of the arm is the gain of its one setting
        ((_, name),) = arm_settings
        yield RecipePart(settings=(name,), need=Needed.NEEDED, gain=delta, without=BASELINE_ID)
        return
    # settings that a part lacks -> the contrast that shows their gain most clearly
    groups: dict[tuple[Key, ...], _Contrast] = {}
    for contrast in sorted(contrasts, key=lambda contrast: -contrast.t):
        lacking = tuple(key for key in arm_settings if key not in settings[contrast.part])
        groups.setdefault(lacking, contrast)
    covered: set[Key] = set()
    # a setting is judged by the smallest group that contains it
    for lacking, contrast in sorted(groups.items(), key=lambda item: len(item[0])):
        if not covered >= set(lacking):
            covered |= set(lacking)
            yield RecipePart(
                settings=tuple(key[1] for key in lacking),
                need=Needed.NEEDED if contrast in needed else Needed.NOT_SHOWN,
                gain=relative(contrast.estimate),
                without=contrast.part,
                n=contrast.n,
            )
    if not_tested := tuple(key[1] for key in arm_settings if key not in covered):
        yield RecipePart(settings=not_tested, need=Needed.NOT_TESTED)
