"""Least squares of fresh blocks: one estimate per arm against the control beside it.

Additive model, score = block + arm + error, so that whatever a block has in common (time of day,
drift, a node swap) drops out. Missing cells are allowed; complete blocks give differences of plain
means. This module must not know what an arm is or how its scores came about.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

IDENTICAL = 1e-9  # scores that agree to this were copied, not measured


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockScore:
    """The score of one job of an arm in a block."""

    block: Hashable
    arm: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmFit:
    """An arm against the control: difference of log scores, its variance in units of sigma^2."""

    estimate: float
    variance: float
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFit:
    """What the blocks say.

    Attributes:
        arms: by name, the control left out; an arm that no block links to the control is absent.
        sigma: residual standard deviation of one job's score.
        df: residual degrees of freedom.
        n_control: control jobs.
        n_blocks: blocks.
        control_weight: control jobs per job of an arm, where every block is complete; else None.
    """

    arms: dict[str, ArmFit]
    sigma: float
    df: int
    n_control: int
    n_blocks: int
    control_weight: float | None


def fit_blocks(scores: Sequence[BlockScore], *, control: str) -> BlockFit | None:
    """Fit block and arm effects; None where there is no control or nothing beside it."""
    counts = Counter(each.arm for each in scores)
    arms = sorted(counts.keys() - {control})
    if not arms or not counts[control]:
        return None
    blocks = list(dict.fromkeys(each.block for each in scores))
    column = {arm: at for at, arm in enumerate(arms)}
    row = {block: len(arms) + at for at, block in enumerate(blocks)}
    design = np.zeros((len(scores), len(arms) + len(blocks)))
    for at, each in enumerate(scores):
        design[at, row[each.block]] = 1.0
        if each.arm != control:
            design[at, column[each.arm]] = 1.0
    values = np.array([each.value for each in scores])
    # centred: a common factor of all TGS must not cost digits
    values -= values.mean()
    normal = design.T @ design
    inverse = np.linalg.pinv(normal, rcond=1e-10, hermitian=True)
    effects = inverse @ (design.T @ values)
    residual = values - design @ effects
    estimable = inverse @ normal
    df = len(scores) - round(float(np.trace(estimable)))
    squares = float(residual @ residual)
    fits = {
        arm: ArmFit(estimate=float(effects[at]), variance=float(inverse[at, at]), n=counts[arm])
        for arm, at in column.items()
        if abs(float(estimable[at, at]) - 1) < 1e-6  # noqa: PLR2004 - rounding of a projection
    }
    return BlockFit(
        arms=fits,
        sigma=math.sqrt(squares / df) if df > 0 else math.nan,
        df=df,
        n_control=counts[control],
        n_blocks=len(blocks),
        control_weight=_control_weight(scores, arms, control, len(blocks)),
    )


def _control_weight(
    scores: Sequence[BlockScore], arms: Sequence[str], control: str, blocks: int
) -> float | None:
    cells = Counter((each.block, each.arm) for each in scores)
    per_block = {block: cells[block, control] for block, _ in cells}
    complete = len(set(per_block.values())) == 1 and all(
        cells[block, arm] == 1 for block in per_block for arm in arms
    )
    weight = next(iter(per_block.values()))
    return float(weight) if complete and weight and len(per_block) == blocks else None
