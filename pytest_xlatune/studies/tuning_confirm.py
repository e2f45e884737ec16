"""The confirmation of a tuning sweep: fresh blocks, looked at when complete and never before.

Only these trials carry a verdict. The sweep's 0.05 is spent once. What was spent, and the layout it
was spent on, stand in the group of every confirming trial, so that neither a restart nor a larger
budget can refill it:

    "1-k3r4c2"      the only stage, all 0.05: 3 arms, 4 blocks, 2 baselines in each
    "1of2-k3r4c2"   the first of two, 0.04
    "2of2-k3r4c2"   further blocks of the same arms, 0.01 on all fresh data
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_xlatune.cells import Trial
from pytest_xlatune.profiles import BASELINE_ID, Profile
from pytest_xlatune.results import Comparison, TrialStatus, VerdictKind
from pytest_xlatune.stats.blocks import BlockFit, BlockScore, fit_blocks
from pytest_xlatune.stats.capacity import (
    FIRST_STAGE_ALPHA,
    SECOND_STAGE_ALPHA,
    SWEEP_ALPHA,
    Plan,
)
from pytest_xlatune.stats.compare import NoComparison, compare, decide
from pytest_xlatune.studies.one_window import unlike_warmups
from pytest_xlatune.studies.tuning_history import Past, usable
from pytest_xlatune.studies.tuning_layout import ALIAS, Orders

ONLY, FIRST, SECOND = "1", "1of2", "2of2"
ALPHA: Mapping[str, float] = {
    ONLY: SWEEP_ALPHA,
    FIRST: FIRST_STAGE_ALPHA,
    SECOND: SECOND_STAGE_ALPHA,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """The layout of one stage, as the group of its trials spells it."""

    stage: str
    arms: int
    blocks: int
    baselines: int

    @property
    def group(self) -> str:
        """The text that `parse` reads."""
        return f"{self.stage}-k{self.arms}r{self.blocks}c{self.baselines}"

    @classmethod
    def parse(cls, group: str) -> Design | None:
        """Read the group of a confirming trial; None where it is none of ours."""
        # a group:  1of2-k3r4c2
        match = re.fullmatch(r"(1|1of2|2of2)-k([0-9]+)r([0-9]+)c([0-9]+)", group)
        if match is None:
            return None
        arms, blocks, baselines = map(int, match.groups()[1:])
        return cls(stage=match.group(1), arms=arms, blocks=blocks, baselines=baselines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at complete blocks.

    Attributes:
        alpha: shared by the family.
        fit: the blocks' least squares; None where no block holds a baseline and something else.
        comparisons: by arm, the alias included, dropped arms left out.
        kinds: the verdict of each.
        unlike: the arms whose steps settle at another time, see `unlike_warmups`.
    """

    alpha: float
    fit: BlockFit | None
    comparisons: Mapping[str, Comparison | NoComparison]
    kinds: Mapping[str, VerdictKind]
    unlike: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """Where the confirmation stands.

    Attributes:
        trials: planned so far, in order.
        looks: taken so far; () while blocks are missing.
        dropped: arm -> why it cannot run.
        alpha_spent: by trials that exist.
    """

    trials: tuple[Trial, ...]
    looks: tuple[Look, ...]
    dropped: Mapping[str, str]
    alpha_spent: float


def begun(past: Past) -> Mapping[str, Design]:
    """Return stage -> its design, for the stages that have trials."""
    found = (Design.parse(group) for group in sorted({key[0] for key in past.confirm}))
    return {each.stage: each for each in found if each is not None}


def frozen_arms(past: Past) -> tuple[str, ...]:
    """Return the arms that have confirming trials, the alias included; () before."""
    return tuple(sorted({key[2] for key in past.confirm} - {BASELINE_ID}))


def design(past: Past, plan: Plan, *, arms: int, second_blocks: int) -> Design:
    """Return the design of the first stage: as begun, else as planned."""
    stages = begun(past)
    started = stages.get(ONLY) or stages.get(FIRST)
    return started or Design(
        stage=FIRST if second_blocks else ONLY,
        arms=arms,
        blocks=plan.blocks,
        baselines=plan.block_baselines,
    )


def confirm(
    past: Past,
    *,
    first: Design,
    arms: Sequence[Profile],
    orders: Orders,
    second_blocks: int,
    equivalence: float,
) -> Confirmation:
    """Plan the blocks of `arms` and look at what is complete."""
    stages = begun(past)
    dropped = _dropped(past)

    def blocks(stage: Design, after: int) -> tuple[Trial, ...]:
        numbers = range(after + 1, after + stage.blocks + 1)
        trials = orders.blocks(arms, numbers, baselines=stage.baselines, group=stage.group)
        return tuple(trial for trial in trials if trial.profile.id not in dropped)

    trials = blocks(first, 0)
    looks = []
    if all(past.is_final(trial) for trial in trials):
        looks.append(_look(past, (first.group,), first.stage, equivalence))
        second = stages.get(SECOND) or replace(first, stage=SECOND, blocks=second_blocks)
        undecided = VerdictKind.INCONCLUSIVE in _of_candidates(looks[0])
        if first.stage == FIRST and second.blocks and (undecided or SECOND in stages):
            more = blocks(second, first.blocks)
            trials += more
            if all(past.is_final(trial) for trial in more):
                groups = (first.group, second.group)
                looks.append(_look(past, groups, SECOND, equivalence))
    return Confirmation(
        trials=trials,
        looks=tuple(looks),
        dropped=dropped,
        alpha_spent=round(sum(ALPHA[stage] for stage in stages), 4),
    )


def _of_candidates(look: Look) -> list[VerdictKind]:
    return [kind for arm, kind in look.kinds.items() if arm != ALIAS.id]


def _dropped(past: Past) -> Mapping[str, str]:
    return {
        key[2]: result.reason or "it cannot run"
        for key, result in sorted(past.confirm.items(), key=lambda item: item[0])
        if result.status is TrialStatus.DROPPED
    }


def _look(past: Past, groups: Sequence[str], stage: str, equivalence: float) -> Look:
    dropped = _dropped(past)
    inside = {key: r for key, r in past.confirm.items() if key[0] in groups}
    # a block that straddles a change of epoch is two blocks: nothing compares across it
    cells = [
        ((key[1], inside[key].epoch), key[2], score)
        for key in sorted(inside)
        if key[2] not in dropped and (score := usable(inside[key])) is not None
    ]
    scores = [BlockScore(block=block, arm=arm, value=score.value) for block, arm, score in cells]
    arms = sorted({key[2] for key in inside} - {BASELINE_ID} - dropped.keys())
    family = max(len([arm for arm in arms if arm != ALIAS.id]), 1)
    alpha = ALPHA[stage]
    fit = fit_blocks(scores, control=BASELINE_ID)
    comparisons: dict[str, Comparison | NoComparison] = {
        arm: NoComparison(reason="no block holds a scored baseline and a scored profile")
        if fit is None
        else compare(fit, arm, family=family, alpha=alpha)
        for arm in arms
    }
    return Look(
        alpha=alpha,
        fit=fit,
        comparisons=comparisons,
        kinds={
            arm: decide(each, equivalence=equivalence)
            if isinstance(each, Comparison)
            else VerdictKind.INCONCLUSIVE
            for arm, each in comparisons.items()
        },
        unlike=unlike_warmups(cells, control=BASELINE_ID, family=family, window=past.window),
    )
