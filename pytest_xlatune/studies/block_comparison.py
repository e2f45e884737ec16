"""The comparison of arms on complete blocks, for sweeps and gates; it writes no verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_xlatune.model.profile import BASELINE_ID
from pytest_xlatune.model.result import Comparison, VerdictKind
from pytest_xlatune.stats.blocks import BlockFit
from pytest_xlatune.stats.compare import NoComparison, decide, winners
from pytest_xlatune.stats.design import SWEEP_ALPHA
from pytest_xlatune.stats.window import Window
from pytest_xlatune.studies.trials import ALIAS, ScoredTrial, fitted, unlike_warmups
from pytest_xlatune.studies.verdicts import compare_in_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockComparison:
    """A comparison of arms on complete blocks.

    Attributes:
        family: the number of arms that entered the blocks.
        fit: least squares over the blocks; None if no block has a baseline and another arm.
        comparisons: arm -> its comparison with the baseline, including the alias, without arms that
            a cut has dropped.
        kinds: arm -> the kind of its verdict.
        unlike: what `unlike_warmups` returns: the arms that warm up longer or shorter than the
            baseline.
    """

    family: int
    fit: BlockFit | None
    comparisons: Mapping[str, Comparison | NoComparison]
    kinds: Mapping[str, VerdictKind]
    unlike: Mapping[str, float]

    @property
    def has_winner(self) -> bool:
        """Whether an arm is faster; a gain of the alias can only be noise."""
        return any(
            kind is VerdictKind.FASTER for arm, kind in self.kinds.items() if arm != ALIAS.id
        )


def compare_blocks(
    scored: Sequence[ScoredTrial],
    arms: Sequence[str],
    *,
    family: int,
    window: Window,
) -> BlockComparison:
    """Compare arms with the baselines of their blocks, once.

    Args:
        scored: the scored trials of complete blocks.
        arms: the arms that no cut has dropped. A dropped arm can never win, so a cut spends no
            alpha of the arms that stay.
        family: the number of arms that entered, which share alpha.
        window: the window in which the trials are scored.
    """
    fit = fitted(scored)
    comparisons = {
        arm: compare_in_blocks(fit, arm, family=family, alpha=SWEEP_ALPHA) for arm in sorted(arms)
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
    return BlockComparison(
        family=family,
        fit=fit,
        comparisons=comparisons,
        kinds={**kinds, **dict.fromkeys(faster, VerdictKind.FASTER)},
        unlike=unlike_warmups(
            [(block, arm, score) for block, arm, score in scored if arm in {BASELINE_ID, *arms}],
            family=family,
            window=window,
        ),
    )
