"""What is taken out before anything is decided, and why: trials, arms and claims, in one place.

Validity comes before statistics. An arm that could not run, or that computed other numbers, is
compared with nothing. A claim is withdrawn if lost runs, slow steps or settings without effect may
explain it. Each veto names what it took out, and the verdict repeats it.
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
_SURVIVORS_P = 0.20
_SURVIVORS_N = 3


def of_history(past: Past) -> tuple[Message, ...]:
    """Return why trials of a history are not compared, or are not used any more."""
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
                "{trials} trials of another cell, protocol or study were ignored",
                trials=past.foreign,
            )
        )
    return tuple(notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Veto:
    """Why an arm is compared with nothing.

    Attributes:
        why: the reason, as the verdict gives it.
        can_run: whether the arm ran, but computed something else.
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


def of_arm(past: Past, arm: str, *, tolerance: float) -> Veto | None:
    """Return why an arm is out: it cannot run, or computes something else; None if it is in.

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
    others, began = past.reference_losses
    losses = losses_of(trials)
    why = first(
        different_loss(loss, expected, tolerance=tolerance, others=others, first=began)
        for loss in losses
    )
    return None if why is None else Veto(why=why)


def of_arms(past: Past, arms: Iterable[str], *, tolerance: float) -> Mapping[str, Veto]:
    """Return arm -> veto for the arms that are out."""
    vetoes = ((arm, of_arm(past, arm, tolerance=tolerance)) for arm in arms)
    return {arm: veto for arm, veto in vetoes if veto is not None}


def of_effect(base: Verdict) -> Message | None:
    """Return why a verdict means nothing: no sign that its settings were in effect; else None."""
    if not base.unproved:
        return None
    return say(
        "nothing shows that {names} was in effect ({effect})",
        names=base.unproved,
        effect=base.effect,
    )


def lost_runs(trials: Sequence[TrialResult]) -> LostRuns | None:
    """Return which of an arm's runs are over without a score; None if all have one."""
    over = [result for result in trials if result.status.is_final]
    lost = [result for result in over if usable(result) is None]
    if not lost:
        return None
    return LostRuns(lost=len(lost), runs=len(over), to=tuple(dict.fromkeys(map(_cause, lost))))


def _cause(result: TrialResult) -> Message:
    """Return what a run was lost to: its failure class if it has one."""
    if result.asking:
        cls = result.asking[-1].cls
        return say("hang") if cls in HANGS else say(_CLASS, cls=cls)
    why = result.reason or NOT_FINITE
    if "cls" in why.values:
        return say(_CLASS, cls=why.values["cls"])
    return why


def survivor_veto(
    trials: Sequence[TrialResult], references: Sequence[TrialResult]
) -> Message | None:
    """Return why lost runs forbid to call an arm faster; None if they do not.

    The runs that ended may be the fast ones. A claim is forbidden if fewer than three are left, or
    if Fisher's exact test at 20 % says that the arm loses more runs than the reference.
    """
    # A profile at +4 % that hung in half of its runs was FASTER in 205 of 300 sweeps. One that
    # gains nothing became FASTER because only its slow runs were lost.
    lost, reference_lost = lost_runs(trials), lost_runs(references)
    if lost is None:
        return None
    over = sum(result.status.is_final for result in references)
    p = straggler_p(lost.lost, lost.runs, reference_lost.lost if reference_lost else 0, over)
    left = lost.runs - lost.lost
    if p >= _SURVIVORS_P and left >= _SURVIVORS_N:
        return None
    return coded(
        MessageCode.SURVIVORS,
        "{runs}, {baselines_lost} of {baselines} of the baselines: those that ended may be "
        "the fast ones",
        runs=lost.told,
        baselines_lost=reference_lost.lost if reference_lost else 0,
        baselines=over,
    )


def straggler_veto(
    comparison: Comparison,
    trials: Sequence[TrialResult],
    baselines: Sequence[TrialResult],
    *,
    spare: float,
    level: float = VETO_P,
) -> Message | None:
    """Return why slow steps that the score leaves out forbid a claim; None if they do not.

    They do if there are significantly more than in the baselines, unless their cost over the window
    is below `spare`, the log ratio by which the claim exceeds its limit.
    """
    slow, steps = _stragglers(trials)
    base_slow, base_steps = _stragglers(baselines)
    p = straggler_p(slow, steps, base_slow, base_steps)
    cost, base_cost = _straggler_cost(trials), _straggler_cost(baselines)
    extra = math.inf if cost is None or base_cost is None else cost - base_cost
    if p >= level or spare > extra:
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
    """Return the mean log difference between score and whole window; None if unknown."""
    costs = [
        score.value - math.log(score.window_tgs) if score.window_tgs else None
        for result in trials
        if result.rotation is None and (score := usable(result))
    ]
    known = [cost for cost in costs if cost is not None]
    return fmean(known) if known and len(known) == len(costs) else None


def _stragglers(trials: Sequence[TrialResult]) -> tuple[int, int]:
    # no step of a turn is left out
    jobs = (result for result in trials if result.rotation is None)
    scores = [score for result in jobs if (score := usable(result))]
    return sum(s.stragglers for s in scores), sum(s.n_steps + len(s.dropped) for s in scores)
