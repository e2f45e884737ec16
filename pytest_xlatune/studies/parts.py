"""Sets of settings: those that go to blocks together, and the recommended one.

The recipe is the smallest set of settings that is shown to be needed. The arm with the largest
estimate may carry settings that do nothing: if one setting helps, every stack with it looks as
good. So a stack and its parts run in the same blocks. The recipe is the smallest confirmed set that
is not shown to be worse than the largest, and it says for each setting whether it was shown to be
needed. Contrasts are differences within blocks, tested one-sided at 5 % by Holm over the parts.

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
from pytest_xlatune.stats.blocks import BlockFit
from pytest_xlatune.stats.design import MIN_DF
from pytest_xlatune.stats.quantiles import t_quantile
from pytest_xlatune.studies.trials import ScoredTrial

ALPHA = 0.05  # error rate over all parts of a set, one-sided
_OWN = 3  # from so many blocks on, the noise is the spread of the differences


_CHAIN = 3  # a stack and its parts take at most so many arms before the next profile in rank


def entering(
    ranked: Sequence[str],
    size: int,
    *,
    profiles: Mapping[str, Profile],
    frozen: Sequence[str] = (),
) -> list[str]:
    """Return which of the ranked profiles enter the next blocks, at most `size`, best first.

    A stack enters with its best part, that one with its own best part, and so on down to a single
    setting while there is room, because only blocks with its parts can show what it needs. A stack
    without room for a part stays out. The `frozen` profiles enter in any case.
    """
    settings = {arm: settings_of(profiles[arm]) for arm in ranked}

    def family(stack: str) -> list[str]:
        """Return a set, its best part, the best part of that, and so on; then its other parts."""
        stack_settings = settings[stack]
        # a single setting has no parts to be compared with
        parts = (
            [part for part in ranked if is_part(settings[part], stack_settings)]
            if len(stack_settings) > 1
            else []
        )
        return list(dict.fromkeys([stack, *(family(parts[0]) if parts else ()), *parts]))

    chosen = dict.fromkeys(arm for arm in ranked if arm in frozen)
    for arm in ranked:
        free = size - len(chosen)
        if free < 1:
            break
        if arm in chosen:
            continue
        chain = family(arm)
        joining = dict.fromkeys([one for one in chain[:_CHAIN] if one not in chosen][:free])
        if len(chain) == 1 or any(
            is_part(settings[one], settings[arm]) for one in chosen | joining
        ):
            chosen |= joining
    return [arm for arm in ranked if arm in chosen]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """The gain of an arm over another, mostly one of its parts, in the blocks with both.

    Attributes:
        arm: the larger arm.
        without: the part that it is compared with.
        estimate: log ratio of `arm` to `without`.
        error: standard error of the estimate.
        n: number of blocks with both.
    """

    arm: str
    without: str
    estimate: float
    error: float
    n: int

    @property
    def t(self) -> float:
        """The estimate in standard errors."""
        return self.estimate / self.error if self.error > 0 else 0.0


def contrasts(
    arm: str, others: Iterable[str], *, cells: Sequence[ScoredTrial], fit: BlockFit
) -> list[Contrast]:
    """Compare an arm with others block by block; others that share no block with it are left out.

    The standard error is the larger of that of all blocks and that of these differences, so that
    noise of a setting does not make it look needed.
    """
    scores: dict[str, dict[Hashable, float]] = {}
    for block, name, score in cells:
        scores.setdefault(name, {})[block] = score.value
    arm_scores, arm_contrasts = scores.get(arm, {}), []
    for other in others:
        theirs = scores.get(other, {})
        gains = [arm_scores[block] - theirs[block] for block in arm_scores if block in theirs]
        if not gains:
            continue
        n = len(gains)
        # fewer than three differences say too little about their noise
        spread = stdev(gains) if n >= _OWN else 0.0
        error = max(fit.sigma * math.sqrt(2), spread) / math.sqrt(n)
        arm_contrasts.append(
            Contrast(arm=arm, without=other, estimate=fmean(gains), error=error, n=n)
        )
    return arm_contrasts


def shown(every: Sequence[Contrast], *, df: int) -> list[Contrast]:
    """Return the contrasts that are shown to be above zero, by Holm's step-down over all."""
    rejected: list[Contrast] = []
    for contrast in sorted(every, key=lambda contrast: -contrast.t):
        if contrast.t <= t_quantile(1 - ALPHA / (len(every) - len(rejected)), df):
            break
        rejected.append(contrast)
    return rejected


def recipe(
    *,
    profiles: Mapping[str, Profile],
    verdicts: Sequence[Verdict],
    cells: Sequence[ScoredTrial],
    fit: BlockFit | None,
) -> Recipe | None:
    """Return the recipe; None if no arm is confirmed to be faster.

    Args:
        profiles: the profiles of the sweep, by id.
        verdicts: the verdicts on them.
        cells: the scored trials of the blocks.
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
    inside = sorted({arm for _, arm, _ in cells} & valid & decided)
    parts = {
        arm: [part for part in inside if is_part(settings[part], settings[arm])] for arm in inside
    }
    # the largest arm is the best of several, so all arms and their parts share the error rate
    every = [
        contrast
        for arm, others in parts.items()
        for contrast in contrasts(arm, others, cells=cells, fit=fit)
    ]
    needed = shown(every, df=fit.df)

    def may_lead(arm: str) -> bool:
        """Return whether one of its parts was in its blocks, or none was measured at all."""
        others = (other for other in valid if is_part(settings[other], settings[arm]))
        return bool(parts[arm]) or next(others, None) is None

    # Every stack with the one useful setting looks as good: 60 % of the recommended stacks held a
    # useless setting when one of 25 profiles gained 4 %.
    # A stack without a measured part gives way to the best arm that has none.
    able = [arm for arm in faster if may_lead(arm)] or list(faster)

    def smallest(arm: str) -> str:
        """Return the smallest of an arm and its parts that is not shown to gain less."""
        worse = {contrast.without for contrast in needed if contrast.arm == arm}
        choice = [part for part in (arm, *parts[arm]) if part in faster and part not in worse]
        return min(choice, key=lambda part: (len(settings[part]), -faster[part], part))

    # A part that may gain nothing is no winner, and no stack wins in its place.
    leaders = sorted(able, key=lambda arm: (faster[arm], arm), reverse=True)
    largest = next((arm for arm in leaders if smallest(arm) in wins), leaders[0])
    best = smallest(largest)
    best_contrasts = [contrast for contrast in every if contrast.arm == best]
    beyond = next(
        (contrast for contrast in every if (contrast.arm, contrast.without) == (largest, best)),
        None,
    )
    return Recipe(
        arm=best,
        largest=largest,
        parts=(
            *_parts(best, best_contrasts, faster[best], settings=settings, needed=needed),
            *([] if beyond is None else [_left_out(beyond, settings=settings)]),
        ),
        ties=_ties(best, faster, cells=cells, fit=fit, settings=settings),
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
    groups: dict[tuple[Key, ...], Contrast] = {}
    for contrast in sorted(arm_contrasts, key=lambda contrast: -contrast.t):
        lacks = tuple(key for key in arm_settings if key not in settings[contrast.without])
        groups.setdefault(lacks, contrast)
    recipe_parts: list[RecipePart] = []
    covered: set[Key] = set()
    # a setting is judged by the smallest group that contains it
    for lacks, contrast in sorted(groups.items(), key=lambda item: len(item[0])):
        if covered >= set(lacks):
            continue
        covered |= set(lacks)
        is_needed = contrast in needed
        recipe_parts.append(
            RecipePart(
                settings=tuple(name for _, name in lacks),
                need=Needed.NEEDED if is_needed else Needed.NOT_SHOWN,
                gain=relative(contrast.estimate),
                without=contrast.without,
                n=contrast.n,
            )
        )
    rest = tuple(name for kind, name in arm_settings if (kind, name) not in covered)
    return [*recipe_parts, *([RecipePart(settings=rest, need=Needed.NOT_TESTED)] if rest else [])]


def _left_out(contrast: Contrast, *, settings: Settings) -> RecipePart:
    """Return the settings of the largest set that are not in the recipe."""
    recommended, largest = settings[contrast.without], settings[contrast.arm]
    return RecipePart(
        settings=tuple(name for kind, name in largest if (kind, name) not in recommended),
        need=Needed.NOT_SHOWN,
        gain=relative(contrast.estimate),
        without=contrast.without,
        n=contrast.n,
        is_deployed=False,
    )


def _ties(
    arm: str,
    faster: Mapping[str, float],
    *,
    cells: Sequence[ScoredTrial],
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
    arm_contrasts = contrasts(arm, others, cells=cells, fit=fit)
    beaten = {
        contrast.without for contrast in arm_contrasts if contrast.t > t_quantile(1 - ALPHA, fit.df)
    }
    return tuple(sorted(set(others) - beaten, key=lambda other: -faster[other]))
