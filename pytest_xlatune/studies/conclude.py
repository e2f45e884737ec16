"""The verdicts and notes of a tuning sweep, finished or not.

The screen measures every profile once. It ranks and bounds, but decides no verdict: that takes
blocks, and an arm that stayed in them to the end. Validity comes before statistics: a profile that
could not run, changed the numerics or was never measured has no change to discuss.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from pytest_xlatune.model.message import Message, MessageCode, say
from pytest_xlatune.model.profile import BASELINE_ID
from pytest_xlatune.model.result import (
    Comparison,
    Conclusion,
    TrialResult,
    TuningRecord,
    Verdict,
    VerdictKind,
    relative,
)
from pytest_xlatune.model.sentences import RANKING_ONLY
from pytest_xlatune.stats.blocks import Estimate, combine
from pytest_xlatune.stats.compare import STOP_FLOOR, interval90, may_stop, winner_figures
from pytest_xlatune.stats.design import (
    MIN_DF,
    SWEEP_ALPHA,
    Plan,
    Refusal,
    outlook,
)
from pytest_xlatune.stats.quantiles import t_quantile
from pytest_xlatune.studies.block_comparison import BlockComparison
from pytest_xlatune.studies.engine import SweepDecision, best_of
from pytest_xlatune.studies.parts import recipe
from pytest_xlatune.studies.slots import notes_on_slots
from pytest_xlatune.studies.spare import gain_bound, is_out
from pytest_xlatune.studies.trials import (
    ALIAS,
    is_spare,
    unlike_warmup,
    usable,
)
from pytest_xlatune.studies.verdicts import (
    NOT_YET_MEASURED,
    as_winner,
    job_ids_of,
    reference,
    relative_to,
    score_flags,
    unmeasured,
    with_comparison,
    with_effect,
    with_figures,
    with_troubles,
)
from pytest_xlatune.studies.vetoes import history_notes, lost_runs, straggler_veto, survivor_veto

FAR = 3.0  # noise hardly explains a run this many standard deviations below the baselines
_LIKELY_SLOWER = "very likely slower ({runs:+run}): more than three standard deviations below"


def verdict(decision: SweepDecision, profile_id: str) -> Verdict | None:
    """Return the verdict on a profile; None if it is neither selected nor measured.

    `_verdicts` scales its figures to those of the reference.
    """
    past = decision.ranked.past
    screened = past.screens_of(profile_id)
    in_blocks = past.confirms_of(profile_id)
    confirmed = [result for result in in_blocks if not is_spare(result.trial)]
    if not screened and not in_blocks and profile_id not in decision.ranked.arms.candidates:
        return None
    everything = (*screened, *in_blocks)
    base = with_troubles(
        Verdict(
            arm=profile_id,
            kind=VerdictKind.INVALID,
            job_ids=job_ids_of(everything),
            reasons=_repeat_reason(decision, profile_id),
            lost=lost_runs(confirmed),
        ),
        everything,
    )
    base = with_effect(base, everything)
    veto = decision.ranked.vetoes.get(profile_id)
    if veto is not None:
        return veto.verdict_on(with_figures(base, everything) if veto.can_run else base)
    stays = profile_id in decision.staying_finalists
    if stays and confirmed and decision.block_comparison is not None:
        return _confirmed(decision, decision.block_comparison, base, confirmed)
    is_in_spare_only = any(usable(result) for result in in_blocks) and not confirmed
    was_cut = profile_id in decision.finalists and not stays
    if is_in_spare_only or was_cut:
        return _ranked(decision, base, everything, is_cut=True)
    return _ranked(decision, base, screened, is_cut=False)


_IN_ROTATIONS = say(
    "ranked in rotations: a deployed program may differ from the one that took turns, so turns "
    "prove nothing"
)
_ONCE = say(
    "measured once: the delta ranks and proves nothing, for the best of many single runs looks "
    "better than it is"
)


def _ranked(
    decision: SweepDecision, base: Verdict, trials: Sequence[TrialResult], *, is_cut: bool
) -> Verdict:
    """Return the verdict on a profile on which no blocks decide: its figures only rank it.

    `is_cut` is true if it has trials in blocks, which then contribute to its figures.
    """
    scored = [result for result in trials if usable(result) is not None]
    final = [result for result in trials if result.status.is_final]
    if not scored and final:
        return replace(base, reasons=(unmeasured(final), *base.reasons))
    if not scored:
        reasons = (NOT_YET_MEASURED, *base.reasons)
        return replace(base, kind=VerdictKind.INCONCLUSIVE, reasons=reasons)
    ranks, runs = decision.ranked.ranks, len(scored)
    estimate = _mean(decision, base.arm) if is_cut else ranks.standings.get(base.arm)
    method = say("against the line through the screen's baselines")
    if is_cut:
        method = say("against the screen's baselines and those beside it in blocks")
        why = say("measured {times:+time}: ranks only", times=runs)
    elif estimate is None:
        why = say("no baseline of this wave and epoch has a score, so there is no delta")
    elif base.arm in ranks.turned:
        why, method = _IN_ROTATIONS, say("against the baseline's turns in the same rotations")
    else:
        why = _ONCE if runs == 1 else say("measured {times:+time}: ranks only", times=runs)
    # Slow profiles do not enter blocks: without this reason, even one at -31 % would not be called
    # slow anywhere.
    is_likely_slower = _is_likely_slower(decision, base.arm, estimate)
    reasons = (why,)
    if is_likely_slower:
        reasons = (say(_LIKELY_SLOWER, runs=runs), why)
    return replace(
        with_figures(base, scored),
        kind=VerdictKind.SCREENED,
        delta=relative(estimate.estimate) if estimate else None,
        method=method,
        is_likely_slower=is_likely_slower,
        reasons=(*reasons, *base.reasons, *score_flags(scored)),
    )


def _is_likely_slower(decision: SweepDecision, arm: str, screened: Estimate | None) -> bool:
    """Return whether the runs are so far below their baselines that noise hardly explains it.

    Rotations do not support such a claim.
    """
    if screened is None or arm in decision.ranked.ranks.turned:
        return False
    fit = decision.block_comparison.fit if decision.block_comparison else None
    in_blocks = fit.sigma if fit is not None and fit.df >= MIN_DF else 0.0
    sigma = max(in_blocks, decision.ranked.plan.noise)
    return screened.estimate < -FAR * sigma * math.sqrt(screened.variance)


def _mean(decision: SweepDecision, arm: str) -> Estimate | None:
    """Return an arm's estimate over screen and blocks; None if neither has one."""
    fit = decision.ranked.in_blocks
    effect = fit.arms.get(arm) if fit is not None else None
    screen_and_blocks = (decision.ranked.ranks.standings.get(arm), effect)
    estimates = [estimate for estimate in screen_and_blocks if estimate is not None]
    return combine(estimates) if estimates else None


# Fisher's exact p below which slow steps forbid a claim. It is smaller than that of a gate, because
# the screen adds steps: at this level the test has the power that blocks alone have at 0.05.
_VETO_P = 0.02


def _confirmed(
    decision: SweepDecision,
    block_comparison: BlockComparison,
    base: Verdict,
    trials: Sequence[TrialResult],
) -> Verdict:
    """Return the verdict on an arm that stayed in the deciding blocks.

    `base` is the verdict so far. `trials` are the results of the arm in deciding blocks.
    """
    base = with_figures(base, trials)
    comparison = block_comparison.comparisons.get(base.arm)
    if not base.n:
        return replace(base, reasons=(unmeasured(trials), *base.reasons))
    if not isinstance(comparison, Comparison):
        why = (
            say("it is not among the arms of the blocks")
            if comparison is None
            else comparison.reason
        )
        kind = VerdictKind.INCONCLUSIVE
        return replace(base, kind=kind, reasons=(why, *base.reasons, *score_flags(trials)))
    kind = block_comparison.kinds[base.arm]
    past = decision.ranked.past
    baselines = [result for result in past.confirms_of(BASELINE_ID) if not is_spare(result.trial)]
    straggling = straggler_veto(
        comparison,
        (*past.screens_of(base.arm), *trials),
        (*past.screens_of(BASELINE_ID), *baselines),
        headroom=comparison.lower,
        level=_VETO_P,
    )
    objections = (straggling, survivor_veto(trials, baselines))
    vetoes = [why for why in objections if why and kind is VerdictKind.FASTER]
    winner = None
    if kind is VerdictKind.FASTER and not vetoes and block_comparison.fit is not None:
        winner = winner_figures(
            block_comparison.fit, comparison, base.arm, family=block_comparison.family
        )
    reasons = [_change_reason(kind, comparison, ends=winner.ci95 if winner else comparison.ci95)]
    for why in vetoes:
        kind = VerdictKind.INCONCLUSIVE
        # the reason without this veto comes second
        reasons = [why, say("else {reason}", reason=reasons[0]), *reasons[1:]]
    # the survivor veto names lost runs itself
    if base.lost is not None and reasons[0].code is not MessageCode.SURVIVORS:
        reasons.append(base.lost.message)
    if base.arm in block_comparison.unlike:
        reasons.append(unlike_warmup(block_comparison.unlike[base.arm]))
    reasons = [*reasons, *base.reasons, *score_flags(trials)]
    decided = with_comparison(base, comparison, kind=kind, reasons=reasons)
    return decided if winner is None else as_winner(decided, winner)


def _change_reason(
    kind: VerdictKind, comparison: Comparison, *, ends: tuple[float, float]
) -> Message:
    """Return a sentence with the kind of a verdict and the interval of the change."""
    # Only the interval of this arm is shown. The simultaneous bound decides but is not shown,
    # because two lower ends for one arm confuse readers.
    low, high = map(relative, ends)
    if kind is VerdictKind.EQUIVALENT:
        low, high = map(relative, interval90(comparison))
        return say(
            "no relevant difference: {low:percent} to {high:percent} (90 %)", low=low, high=high
        )
    if kind in (VerdictKind.FASTER, VerdictKind.SLOWER):
        why = (
            "faster: {low:percent} to {high:percent} (95 %)"
            if kind is VerdictKind.FASTER
            else "slower: {low:percent} to {high:percent} (95 %)"
        )
        return say(why, low=low, high=high)
    return say(
        "cannot tell: {low:percent} to {high:percent} (95 %); a change of {mde80:percent} "
        "would be found with 80 % power",
        low=low,
        high=high,
        mde80=relative(comparison.mde80),
    )


def _repeat_reason(decision: SweepDecision, profile_id: str) -> tuple[Message, ...]:
    """Return which profile this one repeats; () if it repeats none."""
    owner = decision.ranked.arms.repeats.get(profile_id)
    if owner is None:
        return ()
    return (
        say(
            "same effective flags and environment as {owner}: an A/A trial, no candidate"
            if owner == BASELINE_ID
            else "same effective flags and environment as {owner}: a repeat of it",
            owner=owner,
        ),
    )


_CONFIRMED = (
    VerdictKind.FASTER,
    VerdictKind.SLOWER,
    VerdictKind.EQUIVALENT,
    VerdictKind.INCONCLUSIVE,
)


def _verdicts(decision: SweepDecision, baseline: Verdict) -> Iterator[Verdict]:
    """Yield the verdicts, with figures relative to the reference."""
    for name in decision.ranked.arms.profiles:
        of_profile = verdict(decision, name)
        if of_profile is not None:
            yield relative_to(of_profile, baseline)


def conclusion(decision: SweepDecision) -> Conclusion:
    """Return the verdicts, confirmed ones first, each group sorted by change."""
    baseline = reference(decision.ranked.past)
    verdicts = list(_verdicts(decision, baseline))
    fit = decision.block_comparison.fit if decision.block_comparison else None
    if fit is not None and fit.df >= MIN_DF:
        sigma: float | None = fit.sigma
    else:
        sigma = decision.ranked.ranks.sigma
    bound, bound_arm = _bound(decision, verdicts) or (None, "")
    if bound is not None and not math.isfinite(bound):
        bound = None
    window = decision.ranked.past.window
    return Conclusion(
        verdicts=tuple(sorted(verdicts, key=place_of)),
        reference=baseline,
        record=TuningRecord(
            finalists=decision.finalists,
            bound=bound,
            mde80=_mde80(decision),
            from_start80=_from_start80(decision),
            sigma=sigma,
            moved=_farthest_control(decision),
            recipe=recipe(
                profiles=decision.ranked.arms.profiles,
                verdicts=verdicts,
                scored=decision.ranked.past.scored_in_blocks(),
                fit=fit,
            ),
        ),
        alpha=SWEEP_ALPHA if decision.blocks and decision.ranked.past.design else 0.0,
        complete=not decision.due,
        first_step=window.moved_to,
        notes=tuple(_notes(decision, verdicts, bound, bound_arm)),
    )


def place_of(verdict: Verdict) -> tuple[int, float]:
    """Return the sort key of a verdict: confirmed ones first, each group by its change."""
    group = 0 if verdict.kind in _CONFIRMED and verdict.delta is not None else 1
    if verdict.kind not in (*_CONFIRMED, VerdictKind.SCREENED) or verdict.n == 0:
        group = 2
    return group, math.inf if verdict.delta is None else -verdict.delta


def _bound(decision: SweepDecision, verdicts: Sequence[Verdict]) -> tuple[float, str] | None:
    """Return the bound M, as a fraction, and the arm that sets it.

    M is infinite if that arm has no score. None before screen and blocks are over, or if there is
    no bound: see `gain_bound`.
    """
    if not decision.is_screened or (
        decision.finalists and decision.blocks and not decision.block_comparison
    ):
        return None
    fit = decision.ranked.in_blocks if decision.block_comparison else None
    limit = gain_bound(
        decision.ranked.ranks,
        fit,
        verdicts,
        arms=decision.ranked.arms.candidates,
        staying=decision.staying_finalists,
    )
    if limit is None:
        return None
    log_ratio, bound_arm = limit
    return (relative(log_ratio) if math.isfinite(log_ratio) else math.inf), bound_arm


def _mde80(decision: SweepDecision) -> float | None:
    """Return the change that the confirmation finds with 80 % power, by measured or assumed noise.

    None if no arm is compared, or the sweep only ranks.
    """
    if decision.block_comparison is not None:
        compared_arms = decision.block_comparison.comparisons.values()
        effects = [
            comparison.mde80 for comparison in compared_arms if isinstance(comparison, Comparison)
        ]
        return relative(max(effects)) if effects else None
    if not isinstance(decision.layout, Plan):
        return None
    return decision.layout.mde80(decision.ranked.noise)


def _from_start80(decision: SweepDecision) -> float | None:
    """Return the change that the whole sweep finds with 80 % power, including selection.

    None if the sweep only ranks, or if no arm is compared.
    """
    finalist = _mde80(decision)
    if not (isinstance(decision.layout, Plan) and decision.ranked.arms.profiles):
        return None
    fit = decision.block_comparison.fit if decision.block_comparison else None
    if decision.block_comparison is None:
        return decision.layout.from_start80(decision.ranked.noise)
    if finalist is None or fit is None:
        return None
    return max(decision.layout.from_start80(fit.sigma), finalist)


def _notes(
    decision: SweepDecision, verdicts: Sequence[Verdict], bound: float | None, bound_arm: str
) -> list[Message]:
    """Return the notes of a report.

    `bound` is M as a fraction, None if there is none or it is infinite; `bound_arm` sets it.
    """
    # this note comes first, because it concerns a profile that the user just added
    notes = [*_late_note(decision)]
    if not decision.ranked.arms.profiles and decision.ranked.ranks.sigma:
        notes.append(outlook(decision.ranked.ranks.sigma))
    elif isinstance(decision.layout, Refusal):
        notes.append(say(RANKING_ONLY, why=decision.layout.why))
    may_win = {
        verdict.arm
        for verdict in verdicts
        if verdict.wins and not decision.ranked.arms.profiles[verdict.arm].is_control
    }
    block_comparison = decision.block_comparison
    if block_comparison is not None:
        notes += [
            say(
                "{arm} gains {change:percent} and its lower bound is above {excluded:percent}: "
                "you may stop here",
                arm=arm,
                change=relative(comparison.estimate),
                excluded=STOP_FLOOR,
            )
            for arm, comparison in block_comparison.comparisons.items()
            if arm in may_win and isinstance(comparison, Comparison) and may_stop(comparison)
        ]
        notes += _tie(block_comparison)
    notes += _bound_notes(verdicts, bound, bound_arm)
    notes += _noise_notes(decision, verdicts)
    if decision.ranked.past.window.note:
        notes.append(decision.ranked.past.window.note)
    notes += history_notes(decision.ranked.past)
    notes += decision.ranked.arms.messages
    if decision.ranked.slots is not None:
        notes += notes_on_slots(decision.ranked.slots, decision.ranked.plan.nodes)
    return notes


def _bound_notes(
    verdicts: Sequence[Verdict], bound: float | None, bound_arm: str
) -> Iterator[Message]:
    """Yield what the bound M says, and the profiles that it does not cover."""
    if bound is None:
        if bound_arm:
            yield say("{arm} has no score and may gain anything: measure it again", arm=bound_arm)
        return
    if bound >= 0:
        yield say(
            "no tested setting gains more than {bound:percent} (95 %): the interval of {arm} "
            "reaches so far",
            bound=bound,
            arm=bound_arm,
        )
    unproved = [verdict.arm for verdict in verdicts if verdict.unproved and not is_out(verdict)]
    if unproved:
        yield say(
            "{arms} may gain more: nothing shows that the settings were in effect", arms=unproved
        )


def _controls(decision: SweepDecision) -> set[str]:
    """Return the arms whose true change is 0: the alias, controls, repeats of the baseline."""
    profiles, repeats = decision.ranked.arms.profiles, decision.ranked.arms.repeats
    controls = {profile.id for profile in profiles.values() if profile.is_control}
    controls |= {name for name, owner in repeats.items() if owner == BASELINE_ID}
    return controls | {ALIAS.id}


def _farthest_control(decision: SweepDecision) -> tuple[float, float] | None:
    """Return the interval of a control that is farthest from 0; None if all contain 0."""
    if decision.block_comparison is None:
        return None
    compared_arms = decision.block_comparison.comparisons
    apart = [
        comparison
        for arm, comparison in compared_arms.items()
        if arm in _controls(decision)
        and isinstance(comparison, Comparison)
        and _excludes_zero(comparison)
    ]
    if not apart:
        return None
    low, high = max(apart, key=lambda comparison: abs(comparison.estimate)).ci95
    return relative(low), relative(high)


def _excludes_zero(control: Comparison) -> bool:
    """Return whether the interval of a control excludes 0, its true change."""
    low, high = control.ci95
    return low > 0 or high < 0


def _tie(block_comparison: BlockComparison) -> Iterator[Message]:
    """Yield a note if the best two winners cannot be told apart."""
    fit = block_comparison.fit
    won = [arm for arm, kind in block_comparison.kinds.items() if kind is VerdictKind.FASTER]
    if fit is None or len(won) < 2:  # noqa: PLR2004 - a pair
        return
    won.sort(key=lambda arm: -fit.arms[arm].estimate)
    first, second = won[:2]
    first_fit, second_fit = fit.arms[first], fit.arms[second]
    gap = first_fit.estimate - second_fit.estimate
    error = fit.sigma * math.sqrt(1 / first_fit.n + 1 / second_fit.n)
    half_width = t_quantile(0.975, fit.df) * error
    if gap < half_width:
        low, high = relative(gap - half_width), relative(gap + half_width)
        yield say(
            "a tie: {first} and {second} are both faster, and which of the two is faster "
            "cannot be told ({low:percent} to {high:percent}, 95 %)",
            first=first,
            second=second,
            low=low,
            high=high,
        )


# A machine is too noisy if a setting that does nothing changes the speed by this fraction.
TOO_NOISY = 0.02


def _noise_notes(decision: SweepDecision, verdicts: Sequence[Verdict]) -> Iterator[Message]:
    """Yield a note if settings that do nothing changed by more than the effects of interest."""
    controls = _controls(decision)
    changes = [
        abs(verdict.delta)
        for verdict in verdicts
        if verdict.arm in controls and verdict.delta is not None
    ]
    if max(changes, default=0.0) >= TOO_NOISY:
        yield say(
            "this machine is too noisy: settings that do nothing moved by up to {moved:size}",
            moved=max(changes),
        )


def _late_note(decision: SweepDecision) -> Iterator[Message]:
    """Yield which profiles would be finalists, but were screened after the blocks began."""
    ranked, design = decision.ranked, decision.ranked.past.design
    finalists = ranked.past.arms_in_blocks()
    if design is None or len(finalists) < design.arms:
        return  # the first block still takes finalists
    # with second runs, finalists are chosen from the profiles that have one
    chosen = ranked.again or finalists
    # nobody replaces a finalist that turned out unable to run
    places = len(ranked.again) or design.arms
    places -= sum(arm in ranked.past.dropped for arm in chosen)
    best = best_of(ranked, ranked.first, most=places)
    late = tuple(arm for arm in best if arm not in chosen)
    if late:
        yield say(
            "{arms} would be a finalist by now, but the finalists were fixed when the "
            "confirmation began, and another one would raise the error rate: confirm it in "
            "a sweep of its own (another name=, or --xlatune-fresh)",
            arms=late,
        )
