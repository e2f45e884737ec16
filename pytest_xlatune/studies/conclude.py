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
from pytest_xlatune.model.sentences import RANKING_ONLY, SETTINGS_CHANGED
from pytest_xlatune.stats.blocks import combine
from pytest_xlatune.stats.compare import STOP_FLOOR, interval90, may_stop, winner_figures
from pytest_xlatune.stats.design import MIN_DF, SWEEP_ALPHA, Plan, Refusal
from pytest_xlatune.stats.quantiles import t_quantile
from pytest_xlatune.studies.engine import SweepDecision, best_of, gain_bounds
from pytest_xlatune.studies.parts import recipe
from pytest_xlatune.studies.trials import ALIAS, is_spare, usable
from pytest_xlatune.studies.verdicts import (
    NOT_YET_MEASURED,
    BlockComparison,
    lost_runs,
    reference,
    relative_to,
    score_flags,
    straggler_veto,
    survivor_veto,
    unmeasured,
    verdict_without_figures,
    with_comparison,
    with_effect,
    with_figures,
)

_FAR = 3.0  # noise hardly explains a run this many standard deviations below the baselines
_LIKELY_SLOWER = "very likely slower ({runs:+run}): more than three standard deviations below"
# Fisher's exact p below which slow steps forbid a claim. It is smaller than that of a gate, because
# the screen adds steps: at this level the test has the power that blocks alone have at 0.05.
_VETO_P = 0.02
# A machine is too noisy if a setting that does nothing changes the speed by this fraction.
_TOO_NOISY = 0.02


def conclusion(decision: SweepDecision) -> Conclusion:
    """Return the verdicts, confirmed ones first, each group sorted by change."""
    screened, comparison = decision.screened, decision.comparison
    past, baseline = screened.past, reference(screened.past)
    verdicts = [
        relative_to(verdict, baseline)
        for name in decision.arms.profiles
        if (verdict := _verdict(decision, name)) is not None
    ]
    fit = comparison.fit if comparison else None
    bound, bound_arm = _bound(decision, verdicts) or (None, "")
    mde80, from_start80 = _power(decision)
    return Conclusion(
        verdicts=tuple(sorted(verdicts, key=_place_of)),
        reference=baseline,
        record=TuningRecord(
            finalists=decision.finalists,
            bound=bound,
            mde80=mde80,
            from_start80=from_start80,
            sigma=fit.sigma if fit and fit.df >= MIN_DF else screened.ranks.sigma,
            moved=_farthest_control(decision),
            recipe=recipe(
                profiles=decision.arms.profiles,
                verdicts=verdicts,
                scored=past.scored_in_blocks(),
                fit=fit,
            ),
        ),
        alpha=SWEEP_ALPHA if decision.blocks and past.design else 0.0,
        complete=not decision.due,
        first_step=past.window.moved_to,
        notes=tuple(_notes(decision, verdicts, bound, bound_arm)),
    )


def _place_of(verdict: Verdict) -> tuple[int, float]:
    """Return the sort key of a verdict: confirmed ones first, each group by its change."""
    is_ranked = verdict.kind is VerdictKind.SCREENED
    group = 0 if verdict.delta is not None and not is_ranked else 1
    if verdict.kind is VerdictKind.INVALID or verdict.n == 0:
        group = 2
    return group, math.inf if verdict.delta is None else -verdict.delta


def _verdict(decision: SweepDecision, arm: str) -> Verdict | None:
    """Return the verdict on a profile; None if it is neither selected nor measured."""
    past = decision.screened.past
    screened, in_blocks = past.screens_of(arm), past.confirms_of(arm)
    if not screened and not in_blocks and arm not in decision.arms.candidates:
        return None
    everything = (*screened, *in_blocks)
    deciding = [result for result in in_blocks if not is_spare(result.trial)]
    owner, text = decision.arms.repeats.get(arm), "same effective flags and environment as {owner}"
    text += ": an A/A trial, no candidate" if owner == BASELINE_ID else ": a repeat of it"
    base = replace(
        verdict_without_figures(arm, everything),
        kind=VerdictKind.INVALID,
        reasons=() if owner is None else (say(text, owner=owner),),
        lost=lost_runs(deciding),
    )
    base = with_effect(base, everything)
    veto = decision.screened.vetoes.get(arm)
    if veto is not None:
        return veto.verdict_on(with_figures(base, everything) if veto.can_run else base)
    stays = arm in decision.staying_finalists
    if stays and deciding and decision.comparison is not None:
        return _confirmed(decision, decision.comparison, base, deciding)
    is_in_spare_only = any(usable(result) for result in in_blocks) and not deciding
    if is_in_spare_only or (arm in decision.finalists and not stays):
        return _ranked(decision, base, everything, is_cut=True)
    return _ranked(decision, base, screened, is_cut=False)


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
    ranks, runs = decision.screened.ranks, len(scored)
    estimate = ranks.standings.get(base.arm)
    method = say("against the line through the screen's baselines")
    why = say("measured {times:+time}: ranks only", times=runs)
    if is_cut:
        method = say("against the screen's baselines and those beside it in blocks")
        fit = decision.screened.in_blocks
        effect = fit.arms.get(base.arm) if fit is not None else None
        parts = [part for part in (estimate, effect) if part is not None]
        estimate = combine(parts) if parts else None
    elif estimate is None:
        why = say("no baseline of this wave and epoch has a score, so there is no delta")
    elif base.arm in ranks.turned:
        method = say("against the baseline's turns in the same rotations")
        why = say(
            "ranked in rotations: a deployed program may differ from the one that took turns, so "
            "turns prove nothing"
        )
    elif runs == 1:
        why = say(
            "measured once: the delta ranks and proves nothing, for the best of many single runs "
            "looks better than it is"
        )
    # Slow profiles do not enter blocks: without this reason, even one at -31 % would not be called
    # slow anywhere. Rotations do not support such a claim.
    is_likely_slower = False
    if estimate is not None and base.arm not in ranks.turned:
        fit = decision.comparison.fit if decision.comparison else None
        in_blocks = fit.sigma if fit is not None and fit.df >= MIN_DF else 0.0
        error = max(in_blocks, decision.screened.plan.noise) * math.sqrt(estimate.variance)
        is_likely_slower = estimate.estimate < -_FAR * error
    slower = (say(_LIKELY_SLOWER, runs=runs),) if is_likely_slower else ()
    return replace(
        with_figures(base, scored),
        kind=VerdictKind.SCREENED,
        delta=relative(estimate.estimate) if estimate else None,
        method=method,
        is_likely_slower=is_likely_slower,
        reasons=(*slower, why, *base.reasons, *score_flags(scored)),
    )


def _confirmed(
    decision: SweepDecision,
    blocks: BlockComparison,
    base: Verdict,
    trials: Sequence[TrialResult],
) -> Verdict:
    """Return the verdict on an arm that stayed in the deciding blocks.

    `base` is the verdict so far. `trials` are the results of the arm in deciding blocks.
    """
    base = with_figures(base, trials)
    comparison = blocks.comparisons.get(base.arm)
    if not base.n:
        return replace(base, reasons=(unmeasured(trials), *base.reasons))
    if not isinstance(comparison, Comparison):
        why = say("it is not among the arms of the blocks")
        why = comparison.reason if comparison else why
        undecided = replace(base, kind=VerdictKind.INCONCLUSIVE)
        return replace(undecided, reasons=(why, *base.reasons, *score_flags(trials)))
    kind, ends, likely = blocks.kinds[base.arm], comparison.ci95, None
    vetoes: list[Message] = []
    if kind is VerdictKind.FASTER:
        past, references = decision.screened.past, decision.screened.past.trials_of(BASELINE_ID)
        baselines = [result for result in references if not is_spare(result.trial)]
        straggling = straggler_veto(
            comparison,
            (*past.screens_of(base.arm), *trials),
            baselines,
            headroom=comparison.lower,
            level=_VETO_P,
        )
        lost = survivor_veto(trials, [result for result in baselines if result.trial.block])
        vetoes = [why for why in (straggling, lost) if why is not None]
    if kind is VerdictKind.FASTER and not vetoes and blocks.fit is not None:
        winner = winner_figures(blocks.fit, comparison, base.arm, family=blocks.family)
        ends, likely = winner.ci95, winner.likely
    reasons = [_change_reason(kind, comparison, ends=ends)]
    for veto in vetoes:
        kind = VerdictKind.INCONCLUSIVE
        # the reason without this veto comes second
        reasons = [veto, say("else {reason}", reason=reasons[0]), *reasons[1:]]
    # the survivor veto names lost runs itself
    if base.lost is not None and reasons[0].code is not MessageCode.SURVIVORS:
        reasons.append(base.lost.message)
    reasons = [*reasons, *base.reasons, *score_flags(trials)]
    decided = with_comparison(base, comparison, kind=kind, reasons=reasons)
    low, high = map(relative, ends)
    if likely is None:
        return replace(decided, ci95=(low, high))
    mean, least, most = map(relative, likely)
    return replace(decided, ci95=(low, high), likely=(mean, least, most))


def _change_reason(
    kind: VerdictKind, comparison: Comparison, *, ends: tuple[float, float]
) -> Message:
    """Return a sentence with the kind of a verdict and the interval of the change."""
    # Only the interval of this arm is shown. The simultaneous bound decides but is not shown,
    # because two lower ends for one arm confuse readers.
    is_equivalent = kind is VerdictKind.EQUIVALENT
    low, high = map(relative, interval90(comparison) if is_equivalent else ends)
    if kind is VerdictKind.INCONCLUSIVE:
        return say(
            "cannot tell: {low:percent} to {high:percent} (95 %); a change of {mde80:percent} "
            "would be found with 80 % power",
            low=low,
            high=high,
            mde80=relative(comparison.mde80),
        )
    text = {
        VerdictKind.EQUIVALENT: "no relevant difference: {low:percent} to {high:percent} (90 %)",
        VerdictKind.FASTER: "faster: {low:percent} to {high:percent} (95 %)",
    }.get(kind, "slower: {low:percent} to {high:percent} (95 %)")
    return say(text, low=low, high=high)


def _bound(decision: SweepDecision, verdicts: Sequence[Verdict]) -> tuple[float, str] | None:
    """Return the bound M, as a fraction, and the arm that sets it: no profile gains more.

    M is the largest 95 % bound over all profiles, spare blocks included. It needs no factor for
    multiplicity, because the claim is about the maximum of all. There is none before screen and
    blocks are over, if a profile is FASTER, since there is nothing to rule out, or if one has no
    score or was only measured in rotations. Profiles that cannot run, or train to another loss, do
    not count. A profile whose settings are not known to have been in effect cannot set M, but M is
    never below its interval.
    """
    is_open = decision.finalists and decision.blocks and not decision.comparison
    if not decision.is_screened or is_open:
        return None
    if any(verdict.kind is VerdictKind.FASTER for verdict in verdicts):
        return None
    ranks = decision.screened.ranks
    fit = decision.screened.in_blocks if decision.comparison else None
    claimed = {
        verdict.arm: verdict
        for verdict in verdicts
        if verdict.arm in decision.arms.candidates and not _is_out(verdict)
    }
    if any(arm in ranks.turned and (not fit or arm not in fit.arms) for arm in claimed):
        return None
    proved = [arm for arm, verdict in claimed.items() if not verdict.unproved]
    bounds = gain_bounds(ranks, fit, proved, staying=decision.staying_finalists)
    if not bounds:
        return None
    for arm, verdict in claimed.items():
        if verdict.ci95 is not None:
            bounds[arm] = math.log1p(verdict.ci95[1])
        elif verdict.delta is not None and arm in bounds:
            bounds[arm] = max(bounds[arm], math.log1p(verdict.delta))
    widest = max(bounds, key=lambda arm: bounds[arm])
    return (relative(bounds[widest]), widest) if math.isfinite(bounds[widest]) else None


def _is_out(verdict: Verdict) -> bool:
    """Return whether M need not cover a profile: it cannot run, or trains to another loss."""
    return verdict.kind is VerdictKind.INVALID and (not verdict.can_run or verdict.n > 0)


def _power(decision: SweepDecision) -> tuple[float | None, float | None]:
    """Return the changes that the confirmation, and the whole sweep, find with 80 % power.

    The second one includes selection. The noise is the measured or the assumed one. Both are None
    if no arm is compared; the second also if the sweep only ranks or has no profile.
    """
    layout, comparison, sigma = decision.layout, decision.comparison, decision.screened.noise
    if comparison is not None:
        compared = comparison.comparisons.values()
        effects = [each.mde80 for each in compared if isinstance(each, Comparison)]
        finalist = relative(max(effects)) if effects else None
        sigma = comparison.fit.sigma if comparison.fit else sigma
    else:
        finalist = layout.mde80(sigma) if isinstance(layout, Plan) else None
    if finalist is None or not isinstance(layout, Plan) or not decision.arms.profiles:
        return finalist, None
    return finalist, max(layout.from_start80(sigma), finalist)


def _notes(
    decision: SweepDecision, verdicts: Sequence[Verdict], bound: float | None, bound_arm: str
) -> Iterator[Message]:
    """Yield the notes of a report; `bound` is M as a fraction, and `bound_arm` sets it."""
    past, profiles = decision.screened.past, decision.arms.profiles
    # this note comes first, because it concerns a profile that the user just added
    if late := _late_finalists(decision):
        yield say(
            "{arms} would be a finalist by now, but the finalists were fixed when the "
            "confirmation began, and another one would raise the error rate: confirm it in "
            "a sweep of its own (another name=, or --xlatune-fresh)",
            arms=late,
        )
    if isinstance(decision.layout, Refusal) and profiles:
        yield say(RANKING_ONLY, why=decision.layout.why)
    if decision.comparison is not None:
        wins = {verdict.arm for verdict in verdicts if verdict.wins}
        yield from (
            say(
                "{arm} gains {change:percent} and its lower bound is above {excluded:percent}: "
                "you may stop here",
                arm=arm,
                change=relative(comparison.estimate),
                excluded=STOP_FLOOR,
            )
            for arm, comparison in decision.comparison.comparisons.items()
            if arm in wins and not profiles[arm].is_control
            if isinstance(comparison, Comparison) and may_stop(comparison)
        )
        yield from _tie(decision.comparison)
    if bound is not None and bound >= 0:
        yield say(
            "no tested setting gains more than {bound:percent} (95 %): the interval of {arm} "
            "reaches so far",
            bound=bound,
            arm=bound_arm,
        )
    unproved = [verdict.arm for verdict in verdicts if verdict.unproved and not _is_out(verdict)]
    if bound is not None and unproved:
        yield say(
            "{arms} may gain more: nothing shows that the settings were in effect", arms=unproved
        )
    changes = [
        abs(verdict.delta)
        for verdict in verdicts
        if verdict.arm in _controls(decision) and verdict.delta is not None
    ]
    if max(changes, default=0.0) >= _TOO_NOISY:
        yield say(
            "this machine is too noisy: settings that do nothing moved by up to {moved:size}",
            moved=max(changes),
        )
    if past.window.note:
        yield past.window.note
    results = (*past.screen.values(), *past.confirm.values())
    epochs = len({result.epoch for result in results if usable(result)})
    if epochs > 1:
        yield say(
            "the nodes or the software on them changed: {epochs} epochs, and trials of two "
            "epochs are not compared",
            epochs=epochs,
        )
    if past.changed:
        yield say(SETTINGS_CHANGED, arms=sorted(past.changed))
    yield from decision.arms.messages


def _late_finalists(decision: SweepDecision) -> list[str]:
    """Return the profiles that would be finalists, but were screened after the blocks began."""
    screened, past = decision.screened, decision.screened.past
    finalists = past.arms_in_blocks()
    if past.design is None or len(finalists) < past.design.arms:
        return []  # the first block still takes finalists
    # with second runs, finalists are chosen from the profiles that have one
    chosen = screened.again or finalists
    # nobody replaces a finalist that turned out unable to run
    places = (len(screened.again) or past.design.arms) - len(past.dropped.intersection(chosen))
    best = best_of(screened, screened.first, most=places)
    return [arm for arm in best if arm not in chosen]


def _controls(decision: SweepDecision) -> set[str]:
    """Return the arms whose true change is 0: the alias, controls, repeats of the baseline."""
    profiles, repeats = decision.arms.profiles, decision.arms.repeats
    controls = {profile.id for profile in profiles.values() if profile.is_control}
    controls |= {name for name, owner in repeats.items() if owner == BASELINE_ID}
    return controls | {ALIAS.id}


def _farthest_control(decision: SweepDecision) -> tuple[float, float] | None:
    """Return the interval of a control that is farthest from 0; None if all contain 0."""
    compared = decision.comparison.comparisons if decision.comparison else {}
    apart = [
        comparison
        for arm in _controls(decision)
        if isinstance(comparison := compared.get(arm), Comparison)
        and not comparison.ci95[0] <= 0 <= comparison.ci95[1]
    ]
    if not apart:
        return None
    low, high = max(apart, key=lambda comparison: abs(comparison.estimate)).ci95
    return relative(low), relative(high)


def _tie(comparison: BlockComparison) -> Iterator[Message]:
    """Yield a note if the best two winners cannot be told apart."""
    fit = comparison.fit
    won = [arm for arm, kind in comparison.kinds.items() if kind is VerdictKind.FASTER]
    if fit is None or len(won) < 2:  # noqa: PLR2004 - a pair
        return
    first, second, *_ = sorted(won, key=lambda arm: -fit.arms[arm].estimate)
    first_fit, second_fit = fit.arms[first], fit.arms[second]
    gap = first_fit.estimate - second_fit.estimate
    error = fit.sigma * math.sqrt(1 / first_fit.n + 1 / second_fit.n)
    half_width = t_quantile(0.975, fit.df) * error
    if gap < half_width:
        yield say(
            "a tie: {first} and {second} are both faster, and which of the two is faster "
            "cannot be told ({low:percent} to {high:percent}, 95 %)",
            first=first,
            second=second,
            low=relative(gap - half_width),
            high=relative(gap + half_width),
        )
