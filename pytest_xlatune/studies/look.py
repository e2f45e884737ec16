"""What the engine builds on: the trials still to run, and the look at complete blocks.

Sweeps, gates and calibrations use it. The layout of the blocks is recorded in the design of every
confirming trial, so that neither a restart nor a larger budget can restore alpha that was spent.
This module writes no verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_xlatune.model.profile import BASELINE_ID
from pytest_xlatune.model.result import Comparison, VerdictKind
from pytest_xlatune.model.trial import ConfirmDesign, Trial
from pytest_xlatune.stats.blocks import BlockFit
from pytest_xlatune.stats.compare import NoComparison, decide, winners
from pytest_xlatune.stats.design import SWEEP_ALPHA, Plan
from pytest_xlatune.stats.window import Window
from pytest_xlatune.studies.trials import ALIAS, Past, ScoredTrial, fitted, unlike_warmups
from pytest_xlatune.studies.verdicts import compared

SPARE = 3  # number of the look of spare blocks, which decide nothing and spend no alpha


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at complete blocks.

    Attributes:
        family: how many arms entered.
        fit: least squares over the blocks; None if no block has a baseline and another arm.
        comparisons: the comparison of each arm with the baseline, the alias included, without
            dropped arms.
        kinds: the kind of verdict on each arm.
        unlike: the arms whose steps become steady at another time, see `unlike_warmups`.
    """

    family: int
    fit: BlockFit | None
    comparisons: Mapping[str, Comparison | NoComparison]
    kinds: Mapping[str, VerdictKind]
    unlike: Mapping[str, float]


def not_over(past: Past, trials: Iterable[Trial]) -> tuple[Trial, ...]:
    """Return the trials that are not over."""
    return tuple(trial for trial in trials if not past.is_final(trial))


def begun_design(past: Past) -> ConfirmDesign | None:
    """Return the design of the deciding blocks that have trials; None before the first."""
    designs = {
        result.trial.design for result in past.confirm.values() if result.trial.design is not None
    }
    return max((design for design in designs if design.look != SPARE), default=None)


def is_spare(trial: Trial) -> bool:
    """Return whether a trial is in a spare block, which bounds and ranks but decides nothing."""
    return trial.design is not None and trial.design.look == SPARE


def frozen_arms(past: Past, *, after: int = 0) -> tuple[str, ...]:
    """Return the arms that have trials in blocks after number `after`, the alias included."""
    arms = {
        key.arm
        for key, result in past.confirm.items()
        if key.block > after and not is_spare(result.trial)
    }
    return tuple(sorted(arms - {BASELINE_ID}))


def design_of(past: Past, layout: Plan, *, arms: int) -> ConfirmDesign:
    """Return the design of the deciding blocks: as begun, else as planned for `arms` arms.

    It is recorded in every confirming trial, so that neither a restart nor a larger budget can
    restore alpha that was spent.
    """
    widths = tuple(min(width, arms) for width in layout.widths)
    is_narrowing = len(set(widths)) > 1
    return begun_design(past) or ConfirmDesign(
        arms=arms,
        blocks=layout.blocks,
        baselines=layout.block_baselines,
        widths=widths if is_narrowing else (),
    )


def look_at(
    cells: Sequence[ScoredTrial],
    arms: Sequence[str],
    *,
    family: int,
    window: Window,
) -> Look:
    """Compare arms with the baselines beside them, once.

    Args:
        cells: the scored trials of complete blocks.
        arms: those that were kept to the end. A dropped arm can never win, so that those that stay
            need no alpha for the cut.
        family: how many entered, which share alpha.
        window: the window in which the trials are scored.
    """
    fit = fitted(cells)
    comparisons = {
        arm: compared(fit, arm, family=family, alpha=SWEEP_ALPHA) for arm in sorted(arms)
    }
    tested = {
        arm: comparison
        for arm, comparison in comparisons.items()
        if isinstance(comparison, Comparison) and arm != ALIAS.id
    }
    faster = () if fit is None else winners(fit, tested, family=family, alpha=SWEEP_ALPHA)
    kinds = {
        arm: decide(comparison) if isinstance(comparison, Comparison) else VerdictKind.INCONCLUSIVE
        for arm, comparison in comparisons.items()
    }
    return Look(
        family=family,
        fit=fit,
        comparisons=comparisons,
        kinds={**kinds, **dict.fromkeys(faster, VerdictKind.FASTER)},
        unlike=unlike_warmups(
            [cell for cell in cells if cell[1] in {BASELINE_ID, *arms}],
            family=family,
            window=window,
        ),
    )


def look_at_design(past: Past, design: ConfirmDesign, kept: Sequence[str]) -> Look:
    """Look at the complete blocks of a design, and at the arms that were kept to their end."""
    inside = {key.arm for key, result in past.confirm.items() if result.trial.design == design}
    entered = inside - {BASELINE_ID, ALIAS.id} - past.dropped.keys()
    return look_at(
        past.scored_in_blocks(designs=(design,)),
        [arm for arm in kept if arm in inside and arm not in past.dropped],
        family=max(len(entered), 1),
        window=past.window,
    )
