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
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

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

    def family(stack: str) -> list[str]:
        """Return a set, its best part, the best part of that, and so on; then its other parts."""
        stack_settings = settings[stack]
        if len(stack_settings) <= 1:
            return [stack]
        parts = [part for part in ranked if is_part(settings[part], stack_settings)]
        if not parts:
            return [stack]
        return list(dict.fromkeys([stack, *family(parts[0]), *parts]))

    chosen = dict.fromkeys(arm for arm in ranked if arm in frozen)
    for arm in ranked:
        free = size - len(chosen)
        if free < 1:
            break
        if arm in chosen:
            continue
        chain = family(arm)
        new_arms = [member for member in chain[:_CHAIN] if member not in chosen]
        joining = dict.fromkeys(new_arms[:free])
        has_part = any(is_part(settings[other], settings[arm]) for other in chosen | joining)
        if len(chain) == 1 or has_part:
            chosen |= joining
    return [arm for arm in ranked if arm in chosen]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """The gain of an arm over another, mostly one of its parts, in the blocks with both.

    Attributes:
        arm: the larger arm.
        part: the arm that it is compared with.
        estimate: log ratio of `arm` to `part`.
        error: standard error of the estimate.
        n: number of blocks with both.
    """

    arm: str
    part: str
    estimate: float
    error: float
    n: int

    @property
    def t(self) -> float:
        """The estimate in standard errors."""
        return self.estimate / self.error if self.error > 0 else 0.0


def contrasts(
    arm: str, others: Iterable[str], *, scored: Sequence[BlockScore], fit: BlockFit
) -> list[Contrast]:
    """Compare an arm with others block by block; others that share no block with it are left out.

    The standard error comes from the noise of all blocks or from these differences, whichever is
    larger, so that the noise of a setting does not make it look needed.
    """
    scores: dict[str, dict[Hashable, float]] = {}
    for job in scored:
        scores.setdefault(job.arm, {})[job.block] = job.value
    arm_scores, arm_contrasts = scores.get(arm, {}), []
    for other in others:
        other_scores = scores.get(other, {})
        gains = [
            arm_scores[block] - other_scores[block] for block in arm_scores if block in other_scores
        ]
        if not gains:
            continue
        n = len(gains)
        spread = stdev(gains) if n >= _LEAST_BLOCKS else 0.0
        error = max(fit.sigma * math.sqrt(2), spread) / math.sqrt(n)
        arm_contrasts.append(Contrast(arm=arm, part=other, estimate=fmean(gains), error=error, n=n))
    return arm_contrasts


def positive_contrasts(all_contrasts: Sequence[Contrast], *, df: int) -> list[Contrast]:
    """Return the contrasts that are shown to be above zero, by Holm's step-down over all."""
    positive: list[Contrast] = []
    for contrast in sorted(all_contrasts, key=lambda contrast: -contrast.t):
        if contrast.t <= t_quantile(1 - ALPHA / (len(all_contrasts) - len(positive)), df):
            break
        positive.append(contrast)
    return positive


def recipe(
    *,
    profiles: Mapping[str, Profile],
    verdicts: Sequence[Verdict],
    scored: Sequence[BlockScore],
    fit: BlockFit | None,
) -> Recipe | None:
    """Return the recipe; None if no arm is confirmed to be faster.

    Args:
        profiles: the profiles of the sweep, by id.
        verdicts: the verdicts on them.
        scored: the scored trials of the blocks.
        fit: least squares over the blocks; None if there is none.
    """
    wins = {verdict.arm for verdict in verdicts if verdict.wins}
    faster = {
        verdict.arm: verdict.delta
        for verdict in verdicts
        if verdict.kind is VerdictKind.FASTER
        and not verdict.unproved
        and verdict.delta is not None
        and verdict.arm in profiles
        and not profiles[verdict.arm].is_control
    }
    if not faster or fit is None or fit.df < MIN_DF:
        return None
    settings = {profile: settings_of(profiles[profile]) for profile in profiles}
    invalid = {verdict.arm for verdict in verdicts if verdict.kind is VerdictKind.INVALID}
    valid = {verdict.arm for verdict in verdicts} & profiles.keys() - invalid
    # an arm that was cut from the blocks is only ranked
    decided = {verdict.arm for verdict in verdicts if verdict.kind is not VerdictKind.SCREENED}
    in_blocks = sorted({job.arm for job in scored} & valid & decided)
    parts = {
        arm: [part for part in in_blocks if is_part(settings[part], settings[arm])]
        for arm in in_blocks
    }
    # the leader is the best of several, so all arms and their parts share the error rate
    all_contrasts = [
        contrast
        for arm, others in parts.items()
        for contrast in contrasts(arm, others, scored=scored, fit=fit)
    ]
    needed = positive_contrasts(all_contrasts, df=fit.df)

    def may_lead(arm: str) -> bool:
        """Return whether one of the arm's parts was in its blocks, or it has no measured part."""
        if parts[arm]:
            return True
        return not any(is_part(settings[other], settings[arm]) for other in valid)

    # A stack whose measured parts are in no block comes after all other arms. Every stack with the
    # one useful setting looks as good: without this rule, 60 % of the recommended stacks hold a
    # useless setting if one of 25 profiles gains 4 %.
    may_be_recommended = [arm for arm in faster if may_lead(arm)] or list(faster)

    def smallest(arm: str) -> str:
        """Return the smallest of an arm and its parts that is not shown to gain less."""
        worse = {contrast.part for contrast in needed if contrast.arm == arm}
        choice = [part for part in (arm, *parts[arm]) if part in faster and part not in worse]
        return min(choice, key=lambda part: (len(settings[part]), -faster[part], part))

    # an arm leads only if its `smallest` wins: without a win, the set may gain nothing
    leaders = sorted(may_be_recommended, key=lambda arm: (faster[arm], arm), reverse=True)
    leader = next((arm for arm in leaders if smallest(arm) in wins), leaders[0])
    best = smallest(leader)
    best_contrasts = [contrast for contrast in all_contrasts if contrast.arm == best]
    recipe_parts = _parts(best, best_contrasts, faster[best], settings=settings, needed=needed)
    # the settings of the leader that are not in the recipe
    recipe_parts += [
        _part_of(contrast, settings, need=Needed.NOT_SHOWN, is_deployed=False)
        for contrast in all_contrasts
        if contrast.arm == leader and contrast.part == best
    ]
    return Recipe(
        arm=best,
        largest=leader,
        parts=tuple(recipe_parts),
        ties=_ties(best, faster, scored=scored, fit=fit, settings=settings),
    )


Settings = Mapping[str, Mapping[Key, str]]


def _parts(
    arm: str,
    arm_contrasts: Sequence[Contrast],
    delta: float,
    *,
    settings: Settings,
    needed: Sequence[Contrast],
) -> list[RecipePart]:
    """Return the settings of an arm; those that were only measured together form one entry."""
    arm_settings = settings[arm]
    if len(arm_settings) == 1:  # the gain of the arm is the gain of its one setting
        name = next(iter(arm_settings))[1]
        return [RecipePart(settings=(name,), need=Needed.NEEDED, gain=delta, without=BASELINE_ID)]
    # settings that a part lacks -> the contrast that shows their gain most clearly
    groups: dict[tuple[Key, ...], Contrast] = {}
    for contrast in sorted(arm_contrasts, key=lambda contrast: -contrast.t):
        lacking = tuple(key for key in arm_settings if key not in settings[contrast.part])
        groups.setdefault(lacking, contrast)
    recipe_parts: list[RecipePart] = []
    covered: set[Key] = set()
    # a setting is judged by the smallest group that contains it
    for lacking, contrast in sorted(groups.items(), key=lambda item: len(item[0])):
        if covered >= set(lacking):
            continue
        covered |= set(lacking)
        need = Needed.NEEDED if contrast in needed else Needed.NOT_SHOWN
        recipe_parts.append(_part_of(contrast, settings, need=need))
    not_tested = tuple(name for kind, name in arm_settings if (kind, name) not in covered)
    if not_tested:
        recipe_parts.append(RecipePart(settings=not_tested, need=Needed.NOT_TESTED))
    return recipe_parts


def _part_of(
    contrast: Contrast, settings: Settings, *, need: Needed, is_deployed: bool = True
) -> RecipePart:
    """Return the settings by which the two arms of a contrast differ, with their gain."""
    smaller, larger = settings[contrast.part], settings[contrast.arm]
    return RecipePart(
        settings=tuple(name for kind, name in larger if (kind, name) not in smaller),
        need=need,
        gain=relative(contrast.estimate),
        without=contrast.part,
        n=contrast.n,
        is_deployed=is_deployed,
    )


def _ties(
    arm: str,
    faster: Mapping[str, float],
    *,
    scored: Sequence[BlockScore],
    fit: BlockFit,
    settings: Settings,
) -> tuple[str, ...]:
    """Return the other confirmed arms that the recipe is not shown to beat, best first.

    Arms that contain the recipe, or a part of it, are no alternatives.
    """
    others = [
        other
        for other in faster
        if other != arm
        and not is_part(settings[other], settings[arm])
        and not is_part(settings[arm], settings[other])
    ]
    arm_contrasts = contrasts(arm, others, scored=scored, fit=fit)
    beaten = {
        contrast.part for contrast in arm_contrasts if contrast.t > t_quantile(1 - ALPHA, fit.df)
    }
    return tuple(sorted(set(others) - beaten, key=lambda other: -faster[other]))
