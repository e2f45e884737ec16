"""Decide which trials, arms and claims are taken out, and why, before anything else is decided.

Validity comes before statistics. An arm that could not run, or that computed other numbers, is
compared with nothing. A claim is withdrawn if lost runs, slow steps or settings without effect may
explain it. Each veto gives its reason, which the verdict repeats.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from msgspec.structs import replace

from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import Message, MessageCode, coded, first, say
from pytest_xlatune.model.result import (
    Comparison,
    LostRuns,
    Score,
    TrialResult,
    TrialStatus,
    Verdict,
    VerdictKind,
    relative,
)
from pytest_xlatune.model.sentences import SETTINGS_CHANGED
from pytest_xlatune.stats.compare import VETO_P, straggler_p
from pytest_xlatune.stats.validity import different_loss
from pytest_xlatune.studies.trials import CANNOT_RUN, Past, losses_of, usable

_CLASS = "{cls}"
NOT_FINITE = say("its score is not finite")
HANGS = (FailureClass.HANG_INIT, FailureClass.HANG_SILENT_OOM, FailureClass.HANG_MID_TRAINING)
_SURVIVORS_P = 0.20  # Fisher's exact p below which lost runs forbid a claim
_LEAST_SURVIVORS = 3  # with fewer scored runs, lost runs always forbid it


def history_notes(past: Past) -> tuple[Message, ...]:
    """Return why trials of a history are not compared with others, or are ignored."""
    notes = []
    if past.epochs > 1:
        notes.append(
            say(
                "the nodes or the software on them changed: {epochs} epochs, and trials of two "
                "epochs are not compared",
                epochs=past.epochs,
            )
        )
    if past.undeclared:
        notes.append(say("no longer declared, ignored: {arms}", arms=sorted(past.undeclared)))
    if past.changed:
        notes.append(say(SETTINGS_CHANGED, arms=sorted(past.changed)))
    if past.foreign:
        notes.append(
            say(
                "ignored: {trials:+trial} of another cell, protocol or study",
                trials=past.foreign,
            )
        )
    return tuple(notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Veto:
    """Why an arm is compared with nothing.

    Attributes:
        why: the reason, as the verdict gives it.
        can_run: True if the arm ran, but computed something else; False if it cannot run.
    """

    why: Message
    can_run: bool = True

    def verdict_on(self, base: Verdict) -> Verdict:
        """Return the INVALID verdict on the arm, with `why` before its earlier reasons."""
        return replace(
            base,
            kind=VerdictKind.INVALID,
            can_run=self.can_run,
            reasons=(self.why, *base.reasons),
        )


def arm_veto(past: Past, arm: str, *, tolerance: float) -> Veto | None:
    """Return the veto on an arm that cannot run, or computes something else; None if there is none.

    Args:
        past: the trials of its study.
        arm: its id.
        tolerance: relative distance from the reference's loss that counts as another computation.
    """
    trials = (*past.screens_of(arm), *past.confirms_of(arm))
    for result in trials:
        if result.status is TrialStatus.DROPPED:
            return Veto(why=result.reason or CANNOT_RUN, can_run=False)
    expected = past.reference_loss
    if expected is None:
        return None
    others, first_loss = past.reference_losses
    losses = losses_of(trials)
    why = first(
        different_loss(loss, expected, tolerance=tolerance, others=others, first=first_loss)
        for loss in losses
    )
    return None if why is None else Veto(why=why)


def arm_vetoes(past: Past, arms: Iterable[str], *, tolerance: float) -> Mapping[str, Veto]:
    """Return arm -> veto for the arms that have one."""
    vetoes = ((arm, arm_veto(past, arm, tolerance=tolerance)) for arm in arms)
    return {arm: veto for arm, veto in vetoes if veto is not None}


def effect_veto(base: Verdict) -> Message | None:
    """Return that nothing shows the settings of a verdict to be in effect; None if all are."""
    if not base.unproved:
        return None
    return say(
        "nothing shows that {names} was in effect ({effect})",
        names=base.unproved,
        effect=base.effect,
    )


def lost_runs(trials: Sequence[TrialResult]) -> LostRuns | None:
    """Return the runs of an arm that are over without a score; None if there are none."""
    over = [result for result in trials if result.status.is_final]
    lost = [result for result in over if usable(result) is None]
    if not lost:
        return None
    return LostRuns(lost=len(lost), runs=len(over), to=tuple(dict.fromkeys(map(_cause, lost))))


def _cause(result: TrialResult) -> Message:
    """Return what a run was lost to: its failure class if it has one."""
    if result.actionable:
        cls = result.actionable[-1].cls
        return say("hang") if cls in HANGS else say(_CLASS, cls=cls)
    why = result.reason or NOT_FINITE
    if "cls" in why.values:
        return say(_CLASS, cls=why.values["cls"])
    return why


def survivor_veto(
    trials: Sequence[TrialResult], references: Sequence[TrialResult]
) -> Message | None:
    """Return why lost runs forbid to call an arm faster; None if they do not.

    The runs with a score may be the fast ones: without this veto, a profile without a gain is
    FASTER if its slow runs are lost, and a profile at +4 % that hangs in half of its runs is FASTER
    in 205 of 300 sweeps. A claim is forbidden if fewer than three runs have a score, or if Fisher's
    exact test at 20 % shows that the arm loses more runs than the reference.
    """
    lost, reference_lost = lost_runs(trials), lost_runs(references)
    if lost is None:
        return None
    reference_runs = sum(result.status.is_final for result in references)
    baselines_lost = reference_lost.lost if reference_lost else 0
    p = straggler_p(lost.lost, lost.runs, baselines_lost, reference_runs)
    if p >= _SURVIVORS_P and lost.runs - lost.lost >= _LEAST_SURVIVORS:
        return None
    return coded(
        MessageCode.SURVIVORS,
        "{runs}, {baselines_lost} of {baselines} of the baselines: those that ended may be "
        "the fast ones",
        runs=lost.message,
        baselines_lost=baselines_lost,
        baselines=reference_runs,
    )


def straggler_veto(
    comparison: Comparison,
    trials: Sequence[TrialResult],
    baselines: Sequence[TrialResult],
    *,
    headroom: float,
    level: float = VETO_P,
) -> Message | None:
    """Return why slow steps that the score leaves out forbid a claim; None if they do not.

    They do if there are significantly more of them than in the baselines, unless their cost over
    the window is below the headroom of the claim.

    `comparison` and `trials` are those of the arm; `headroom` is the log ratio by which the claim
    exceeds its limit, `level` Fisher's exact p below which the number of slow steps is significant.
    """
    slow, steps = _stragglers(trials)
    base_slow, base_steps = _stragglers(baselines)
    p = straggler_p(slow, steps, base_slow, base_steps)
    cost, base_cost = _straggler_cost(trials), _straggler_cost(baselines)
    extra = math.inf if cost is None or base_cost is None else cost - base_cost
    if p >= level or headroom > extra:
        return None
    is_known = math.isfinite(extra)
    return say(
        "{slow} of its {steps} steps straggle against {baselines_slow} of {baselines_steps} "
        "of the baselines (p = {p:.3f}); with them the change is {change:percent}",
        slow=slow,
        steps=steps,
        baselines_slow=base_slow,
        baselines_steps=base_steps,
        p=p,
        change=relative(comparison.estimate - extra) if is_known else say("unknown"),
    )


def _straggler_cost(trials: Sequence[TrialResult]) -> float | None:
    """Return the mean log ratio of the score to the TGS of the whole window; None if unknown."""
    scores = _job_scores(trials)
    costs = [score.value - math.log(score.window_tgs) for score in scores if score.window_tgs]
    return fmean(costs) if costs and len(costs) == len(scores) else None


def _stragglers(trials: Sequence[TrialResult]) -> tuple[int, int]:
    """Return the number of slow steps, and of all steps of the windows."""
    scores = _job_scores(trials)
    steps = sum(score.n_steps + len(score.dropped) for score in scores)
    return sum(score.stragglers for score in scores), steps


def _job_scores(trials: Sequence[TrialResult]) -> list[Score]:
    """Return the scores of ordinary jobs; a program in a rotation has no slow steps."""
    jobs = (result for result in trials if result.rotation is None)
    return [score for result in jobs if (score := usable(result))]
