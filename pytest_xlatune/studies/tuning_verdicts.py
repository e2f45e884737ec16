"""One verdict per profile of a tuning sweep.

Validity first, statistics after: a profile that could not run, ran with other numbers or was never
measured has no delta to discuss. Nothing here plans a trial.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from pytest_xlatune.cells import Stage
from pytest_xlatune.profiles import BASELINE_ID
from pytest_xlatune.results import (
    Comparison,
    Score,
    TrialResult,
    TrialStatus,
    Verdict,
    VerdictKind,
    relative,
)
from pytest_xlatune.stats.compare import VETO_P, interval90, straggler_p
from pytest_xlatune.studies.one_window import unlike_words
from pytest_xlatune.studies.tuning_confirm import Confirmation, Look
from pytest_xlatune.studies.tuning_history import Past, usable
from pytest_xlatune.studies.tuning_reading import Reading, loss_reason, percent


def verdict(reading: Reading, profile_id: str) -> Verdict | None:
    """Return the verdict on a profile; None where it is neither selected nor measured."""
    past = reading.past
    screened = past.of_profile(profile_id, Stage.SCREEN)
    confirmed = past.of_profile(profile_id, Stage.CONFIRM)
    if not screened and not confirmed and profile_id not in reading.selected:
        return None
    everything = (*screened, *confirmed)
    base = Verdict(
        profile=profile_id,
        kind=VerdictKind.INVALID,
        job_ids=job_ids_of(everything),
        reasons=_repeat_reason(reading, profile_id),
    )
    dropped = [each for each in everything if each.status is TrialStatus.DROPPED]
    if dropped:
        why = dropped[0].reason or "it cannot run"
        return replace(base, can_run=False, reasons=(why, *base.reasons))
    differs = loss_reason(past, profile_id, tolerance=reading.loss_tolerance)
    if differs:
        return replace(measured(base, everything), reasons=(differs, *base.reasons))
    if profile_id in reading.finalists and confirmed and reading.looks:
        return _confirmed(reading, measured(base, confirmed), confirmed)
    return _screened(reading, base, screened)


def _screened(reading: Reading, base: Verdict, trials: Sequence[TrialResult]) -> Verdict:
    scored = [each for each in trials if usable(each) is not None]
    final = [each for each in trials if each.status.is_final]
    if not scored and final:
        return replace(base, reasons=(_unmeasured(final), *base.reasons))
    if not scored:
        why = "not measured yet"
        return replace(base, kind=VerdictKind.INCONCLUSIVE, reasons=(why, *base.reasons))
    standing = reading.screen.standings.get(base.profile)
    if standing is None:
        reasons = ["no baseline of this wave and epoch has a score, so there is no delta"]
    elif len(scored) == 1:
        reasons = ["measured once: the delta ranks, is biased by selection and proves nothing"]
    else:
        reasons = ["measured in the screen only: the delta ranks and proves nothing"]
    if reading.confirmation and base.profile in reading.finalists:
        reasons.append(_progress(reading.past, reading.confirmation, base.profile))
    return replace(
        measured(base, scored),
        kind=VerdictKind.SCREENED,
        delta=relative(standing.estimate) if standing else None,
        method="distance from the line of the screen's baselines",
        reasons=(*reasons, *base.reasons, *score_flags(scored)),
    )


def _unmeasured(trials: Sequence[TrialResult]) -> str:
    why = next((each.reason for each in trials if each.reason), "its score is not finite")
    return f"nobody could measure it: {why}"


def _progress(past: Past, confirmation: Confirmation, profile_id: str) -> str:
    own = [trial for trial in confirmation.trials if trial.profile.id == profile_id]
    done = sum(past.is_final(trial) for trial in own)
    return f"a finalist: {done} of {len(own)} confirming trials are over"


def _confirmed(reading: Reading, base: Verdict, trials: Sequence[TrialResult]) -> Verdict:
    last = reading.looks[-1]
    comparison = last.comparisons.get(base.profile)
    if not base.n:
        return replace(base, reasons=(_unmeasured(trials), *base.reasons))
    if not isinstance(comparison, Comparison):
        why = "it is not among the arms of the blocks" if comparison is None else comparison.reason
        kind = VerdictKind.INCONCLUSIVE
        return replace(base, kind=kind, reasons=(why, *base.reasons, *score_flags(trials)))
    look = next((each for each in reading.looks if _decides(each, base.profile)), last)
    decider = look.comparisons.get(base.profile)
    kind = look.kinds[base.profile]
    reasons = [_sentence(kind, decider if isinstance(decider, Comparison) else comparison)]
    if look is not last:
        reasons.append(f"decided at the first look, with alpha {look.alpha:g}")
    veto = straggler_veto(reading.past, comparison, trials, spare=comparison.lower)
    if kind is VerdictKind.FASTER and veto:
        kind = VerdictKind.INCONCLUSIVE
        reasons = [veto, f"else {reasons[0]}", *reasons[1:]]
    if base.profile in last.unlike:
        reasons.append(unlike_words(last.unlike[base.profile]))
    low, high = comparison.ci95
    return replace(
        base,
        kind=kind,
        delta=relative(comparison.estimate),
        ci95=(relative(low), relative(high)),
        n=comparison.n,
        mde80=relative(comparison.mde80),
        method=comparison.method,
        reasons=(*reasons, *base.reasons, *score_flags(trials)),
    )


def _decides(look: Look, profile_id: str) -> bool:
    return look.kinds.get(profile_id) in (VerdictKind.FASTER, VerdictKind.SLOWER)


def _sentence(kind: VerdictKind, comparison: Comparison) -> str:
    lower = percent(relative(comparison.lower))
    upper = percent(relative(2 * comparison.estimate - comparison.lower))
    low, high = (percent(relative(end)) for end in interval90(comparison))
    return {
        VerdictKind.FASTER: f"faster by at least {lower}",
        VerdictKind.SLOWER: f"slower: {upper} at best",
        VerdictKind.EQUIVALENT: f"no relevant difference: {low} to {high} (90 %)",
    }.get(
        kind,
        f"cannot tell: between {lower} and {upper}; 80 % power begins at "
        f"{percent(relative(comparison.mde80))}",
    )


def straggler_veto(
    past: Past, comparison: Comparison, trials: Sequence[TrialResult], *, spare: float
) -> str:
    """Return why slow steps that the score leaves out forbid a claim; "" where they do not.

    They do where there are significantly more than in the baselines beside, unless what they cost
    in tokens over the whole window is less than `spare`: a log ratio that the claim can do without.
    """
    baselines = past.of_profile(BASELINE_ID, Stage.CONFIRM)
    slow, steps = _stragglers(trials)
    base_slow, base_steps = _stragglers(baselines)
    p = straggler_p(slow, steps, base_slow, base_steps)
    cost, base_cost = _straggler_cost(trials), _straggler_cost(baselines)
    extra = math.inf if cost is None or base_cost is None else cost - base_cost
    if p >= VETO_P or spare > extra:
        return ""
    is_known = math.isfinite(extra)
    with_them = percent(relative(comparison.estimate - extra)) if is_known else "unknown"
    return (
        f"{slow} of its {steps} steps straggle against {base_slow} of {base_steps} of the "
        f"baselines (p = {p:.3f}); with them the change is {with_them}"
    )


def _straggler_cost(trials: Sequence[TrialResult]) -> float | None:
    """Return the mean log loss of the whole window against the score; None where unknown."""
    costs = [
        score.value - math.log(score.window_tgs) if score.window_tgs else None
        for each in trials
        if (score := usable(each))
    ]
    known = [cost for cost in costs if cost is not None]
    return fmean(known) if known and len(known) == len(costs) else None


def _stragglers(trials: Sequence[TrialResult]) -> tuple[int, int]:
    scores = [score for each in trials if (score := usable(each))]
    return sum(s.stragglers for s in scores), sum(s.n_steps + len(s.dropped) for s in scores)


def measured(base: Verdict, trials: Sequence[TrialResult]) -> Verdict:
    """Fill in the geometric means and the jobs of the scored trials."""
    scored = [(each, score) for each in trials if (score := usable(each))]
    if not scored:
        return base
    return replace(
        base,
        n=len(scored),
        tgs=math.exp(fmean(score.value for _, score in scored)),
        step_s=math.exp(fmean(math.log(score.step_s) for _, score in scored)),
        job_ids=job_ids_of([each for each, _ in scored]),
    )


def job_ids_of(trials: Sequence[TrialResult]) -> tuple[str, ...]:
    """Return the jobs of all attempts."""
    return tuple(job_id for each in trials for job_id in each.job_ids)


def score_flags(trials: Sequence[TrialResult]) -> tuple[str, ...]:
    """Return how many of the scored trials carry which flag."""
    scores: list[Score] = [score for each in trials if (score := usable(each))]
    names = list(dict.fromkeys(flag for score in scores for flag in score.flags))
    counts = {name: sum(name in score.flags for score in scores) for name in names}
    return tuple(f"{name} in {count} of {len(scores)} trials" for name, count in counts.items())


def _repeat_reason(reading: Reading, profile_id: str) -> tuple[str, ...]:
    owner = reading.repeats.get(profile_id)
    if owner is None:
        return ()
    kind = "an A/A trial, no candidate" if owner == BASELINE_ID else "a repeat of it"
    return (f"same effective flags and environment as {owner}: {kind}",)


def baseline(past: Past) -> Verdict:
    """Return the baseline's own line: all its trials of both stages, aliases left out."""
    every = [
        each
        for stage in (Stage.SCREEN, Stage.CONFIRM)
        for each in past.of_profile(BASELINE_ID, stage)
    ]
    base = Verdict(profile=BASELINE_ID, kind=VerdictKind.INVALID, job_ids=job_ids_of(every))
    scored = [each for each in every if usable(each)]
    if scored:
        kind, method = VerdictKind.EQUIVALENT, "the reference"
        flags = score_flags(scored)
        return replace(measured(base, scored), kind=kind, delta=0.0, method=method, reasons=flags)
    final = [each for each in every if each.status.is_final]
    if not final:
        return replace(base, kind=VerdictKind.INCONCLUSIVE, reasons=("not measured yet",))
    can_run = all(each.status is not TrialStatus.DROPPED for each in final)
    return replace(base, can_run=can_run, reasons=(final[0].reason or "no score",))
