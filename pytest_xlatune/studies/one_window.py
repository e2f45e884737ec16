"""One window for all trials of a comparison, and who of them settles at another time.

The window is pooled over the screen where it has jobs enough, so that fresh blocks are scored in a
window that was settled without them; else over everything. Nothing here plans a trial.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

from pytest_xlatune.cells import Protocol
from pytest_xlatune.results import Comparison, Score, TrialResult, relative
from pytest_xlatune.stats.blocks import BlockScore, fit_blocks
from pytest_xlatune.stats.compare import compare
from pytest_xlatune.stats.score import rescore
from pytest_xlatune.stats.warmup import MIN_JOBS, TOLERANCE, Window, common_window, settling

ALPHA = 0.01  # of calling a warm-up another one: it flags, and a flag that cries wolf is not read
Cell = tuple[Hashable, str, Score]  # block, arm, score of one trial


def window_of(screened: Iterable[Score], confirmed: Iterable[Score], protocol: Protocol) -> Window:
    """Return the window of a study's trials from the scores of its two stages."""
    first = list(screened)
    return common_window(first if len(first) >= MIN_JOBS else [*first, *confirmed], protocol)


def moved(result: TrialResult, window: Window) -> TrialResult:
    """Return a trial as scored in the window of all; it may have no score there, and says why."""
    if not window.is_moved or result.score is None:
        return result
    found = rescore(result.score, protocol=window.protocol)
    if isinstance(found, Score):
        return replace(result, score=found)
    return replace(result, score=None, reason=found.reason)


def unlike_warmups(
    cells: Sequence[Cell], *, control: str, family: int, window: Window
) -> Mapping[str, float]:
    """Return the arms whose steps settle at another time than those of the control beside them.

    By arm the relative excess of the first half of the window over the second, that of the control
    taken off: positive settles later and is scored low. A comparison of jobs, like every other.
    """
    contrasts = [
        BlockScore(block=block, arm=arm, value=value)
        for block, arm, score in cells
        if (value := settling(score, window.protocol)) is not None
    ]
    fit = fit_blocks(contrasts, control=control) if len(contrasts) == len(cells) else None
    if fit is None:
        return {}
    unlike = {}
    for arm in sorted({each.arm for each in contrasts} - {control}):
        found = compare(fit, arm, family=family, alpha=ALPHA)
        if not isinstance(found, Comparison) or abs(found.estimate) <= TOLERANCE:
            continue
        # the bound lies as far below the estimate as its mirror image lies above
        if abs(found.estimate) > found.estimate - found.lower and found.n > 1:
            unlike[arm] = relative(found.estimate)
    return unlike


def unlike_words(excess: float) -> str:
    """Say of an arm what its other warm-up means for its change."""
    when, how = ("later", "understated") if excess > 0 else ("earlier", "overstated")
    return (
        f"its steps settle {when} than the baseline's ({100 * excess:+.1f} % in the first half of "
        f"the window): the change is {how}; run more steps"
    )
