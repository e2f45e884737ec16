"""What a tuning sweep says: its two stages, and the verdicts that follow from them.

The screen measures every profile once; it ranks and bounds, and nothing of it is a verdict. Only
trials of the confirmation carry one, in blocks that are looked at when complete and never before.
The sweep's 0.05 is spent once: the layout it is spent on stands in the design of every confirming
trial, so that neither a restart nor a larger budget can refill it. One look has all 0.05, the first
of two 0.04, the second 0.01 on all fresh data.

Validity first, statistics after: a profile that could not run, ran with other numbers or was never
measured has no delta to discuss. Works at any moment of a sweep.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_xlatune.model.profile import BASELINE_ID, Profile
from pytest_xlatune.model.result import (
    Comparison,
    Conclusion,
    TrialResult,
    TrialStatus,
    TuningRecord,
    Verdict,
    VerdictKind,
    relative,
)
from pytest_xlatune.model.text import percent
from pytest_xlatune.model.trial import ConfirmDesign, Trial
from pytest_xlatune.stats.blocks import (
    BlockFit,
    Line,
    combine,
    fit_line,
    upper_bound,
)
from pytest_xlatune.stats.compare import NoComparison, decide, interval90, stops
from pytest_xlatune.stats.design import (
    FIRST_STAGE_ALPHA,
    MIN_DF,
    SECOND_STAGE_ALPHA,
    SWEEP_ALPHA,
    Plan,
    Refusal,
    outlook,
)
from pytest_xlatune.studies.trials import (
    ALIAS,
    Orders,
    Past,
    Place,
    Segment,
    fitted,
    place,
    unlike_warmups,
    unlike_words,
    usable,
)
from pytest_xlatune.studies.verdicts import (
    Losses,
    compared,
    job_ids_of,
    measured,
    reference,
    score_flags,
    straggler_veto,
    unmeasured,
    with_comparison,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Screened:
    """A screened profile: log ratio to the line, its variance in units of sigma^2."""

    estimate: float
    variance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """What the screen says.

    Attributes:
        standings: by profile id.
        squares: sum of squared residuals of all baseline lines.
        df: their degrees of freedom.
        baselines: how many baselines were scored.
    """

    standings: Mapping[str, Screened]
    squares: float
    df: int
    baselines: int

    @property
    def sigma(self) -> float | None:
        """Standard deviation of one job's score, from the baselines alone."""
        return math.sqrt(self.squares / self.df) if self.df > 0 and self.squares > 0 else None


def screen(past: Past, segments: Iterable[Segment]) -> Ranking:
    """Fit one line per wave and epoch and read every scored profile against its own."""
    runs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    lines: list[Line] = []
    for segment in segments:
        for epoch in _by_epoch(past, segment):
            line = fit_line([(at, value) for each, at, value in epoch if each.trial.is_baseline])
            if line is None:
                continue
            lines.append(line)
            for each, at, value in epoch:
                if not each.trial.is_baseline:
                    runs[each.trial.profile.id].append((value - line.at(at), line.leverage(at)))
    combined = {profile_id: combine(found) for profile_id, found in runs.items()}
    return Ranking(
        standings={
            profile_id: Screened(estimate=estimate, variance=variance)
            for profile_id, (estimate, variance) in combined.items()
        },
        squares=math.fsum(line.squares for line in lines),
        df=sum(line.df for line in lines),
        baselines=sum(line.n for line in lines),
    )


_Slotted = tuple[TrialResult, float, float]  # trial, slot, score


def _by_epoch(past: Past, segment: Segment) -> Sequence[Sequence[_Slotted]]:
    """Return the scored trials of a wave, apart where scores stopped being comparable."""
    planned = {place(trial): at for at, trial in enumerate(segment.trials)}
    scored = [
        (result, score.value)
        for key, result in past.screen.items()
        if (key in planned or (key.stage == segment.wave and result.trial.is_baseline))
        and (score := usable(result)) is not None
    ]
    slots = _slots([result for result, _ in scored], planned)
    epochs: dict[int, list[_Slotted]] = defaultdict(list)
    for result, value in scored:
        slot = slots.get(place(result.trial))
        if slot is not None:
            epochs[result.epoch].append((result, slot, value))
    return [epochs[epoch] for epoch in sorted(epochs)]


def _slots(results: Sequence[TrialResult], planned: Mapping[Place, int]) -> Mapping[Place, float]:
    """Return each trial's slot: its rank by the time it started, or its planned place."""
    starts = {
        place(each.trial): each.outcome.start_s
        for each in results
        if each.outcome is not None and each.outcome.start_s is not None
    }
    if len(starts) < len(results):
        return {key: float(at) for key, at in planned.items()}
    return {key: float(at) for at, key in enumerate(sorted(starts, key=lambda k: (starts[k], k)))}


_SECOND = 2  # look
# look, of how many -> its share of the sweep's alpha
ALPHA: Mapping[tuple[int, int], float] = {
    (1, 1): SWEEP_ALPHA,
    (1, 2): FIRST_STAGE_ALPHA,
    (2, 2): SECOND_STAGE_ALPHA,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at complete blocks.

    Attributes:
        alpha: shared by the family.
        fit: the blocks' least squares; None where no block holds a baseline and something else.
        comparisons: by arm, the alias included, dropped arms left out.
        kinds: the verdict of each.
        unlike: the arms whose steps become steady at another time, see `unlike_warmups`.
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
        alpha_spent: by trials that exist.
    """

    trials: tuple[Trial, ...]
    looks: tuple[Look, ...]
    alpha_spent: float


def begun(past: Past) -> Mapping[int, ConfirmDesign]:
    """Return look -> its design, for the looks that have trials."""
    found = {each.trial.design for each in past.confirm.values() if each.trial.design is not None}
    return {each.look: each for each in sorted(found)}


def frozen_arms(past: Past) -> tuple[str, ...]:
    """Return the arms that have confirming trials, the alias included; () before."""
    return tuple(sorted({key.arm for key in past.confirm} - {BASELINE_ID}))


def design(past: Past, plan: Plan, *, arms: int, second_blocks: int) -> ConfirmDesign:
    """Return the design of the first look: as begun, else as planned."""
    return begun(past).get(1) or ConfirmDesign(
        looks=2 if second_blocks else 1,
        arms=arms,
        blocks=plan.blocks,
        baselines=plan.block_baselines,
    )


def confirm(
    past: Past,
    *,
    first: ConfirmDesign,
    arms: Sequence[Profile],
    orders: Orders,
    second_blocks: int,
    equivalence: float,
) -> Confirmation:
    """Plan the blocks of `arms` and look at those that are complete."""
    known = begun(past)
    dropped = past.dropped

    def blocks(design: ConfirmDesign, after: int) -> tuple[Trial, ...]:
        numbers = range(after + 1, after + design.blocks + 1)
        trials = orders.blocks(arms, numbers, design=design)
        return tuple(trial for trial in trials if trial.arm not in dropped)

    trials = blocks(first, 0)
    looks = []
    if all(past.is_final(trial) for trial in trials):
        looks.append(_look(past, (first,), equivalence))
        second = known.get(_SECOND) or replace(first, look=_SECOND, blocks=second_blocks)
        undecided = VerdictKind.INCONCLUSIVE in _of_candidates(looks[0])
        if first.looks > 1 and second.blocks and (undecided or _SECOND in known):
            more = blocks(second, first.blocks)
            trials += more
            if all(past.is_final(trial) for trial in more):
                looks.append(_look(past, (first, second), equivalence))
    return Confirmation(
        trials=trials,
        looks=tuple(looks),
        alpha_spent=round(sum(ALPHA[each.look, each.looks] for each in known.values()), 4),
    )


def _of_candidates(look: Look) -> list[VerdictKind]:
    return [kind for arm, kind in look.kinds.items() if arm != ALIAS.id]


def _look(past: Past, designs: Sequence[ConfirmDesign], equivalence: float) -> Look:
    cells = past.scored_in_blocks(designs=designs)
    inside = {key.arm for key, each in past.confirm.items() if each.trial.design in designs}
    arms = sorted(inside - {BASELINE_ID} - past.dropped.keys())
    family = max(len([arm for arm in arms if arm != ALIAS.id]), 1)
    alpha = ALPHA[designs[-1].look, designs[-1].looks]
    fit = fitted(cells)
    comparisons = {arm: compared(fit, arm, family=family, alpha=alpha) for arm in arms}
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
        unlike=unlike_warmups(cells, family=family, window=past.window),
    )


DEFAULT_SIGMA = 0.006  # of a cell that was never calibrated
# what turns the assumption into a figure
NOT_CALIBRATED = "this cell was not calibrated: `xlatune calibrate SWEEP_FILE`"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNoise:
    """The noise of a job's score between jobs, to plan with, and where it comes from.

    Attributes:
        known: from a calibration of the cell, or as the sweep states it; None if unknown.
        seen: in the screen; None before that tells.
    """

    known: float | None
    seen: float | None = None

    @property
    def value(self) -> float:
        """The larger of what was known, or else assumed, and what was seen."""
        return max(self.known or DEFAULT_SIGMA, self.seen or 0.0)

    @property
    def words(self) -> str:
        """Say the value and where it is from; what was not measured is called assumed."""
        value = f"{100 * self.value:.2f} %"
        if self.seen is not None and self.seen >= self.value:
            return f"the job noise of {value} that the screen shows"
        if self.known:
            return f"the known job noise of {value}"
        return f"an assumed job noise of {value} ({NOT_CALIBRATED})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """All that the verdicts rest on.

    Attributes:
        declared: the profiles by id, in declared order.
        selected: ids of this run.
        repeats: profile -> what has the same effective settings.
        past, screen, confirmation: what was measured; no confirmation before the screen is over.
        finalists: in rank order.
        late: what would be a finalist by now, but was screened after they were fixed.
        layout: the plan of the sweep.
        noise: of a job, to plan with.
        losses: with what a trial's loss is compared.
        said: how derived waves were filled, one sentence each.
        is_screened, is_complete: whether this run's screen, and everything of it, is over.
    """

    declared: Mapping[str, Profile]
    selected: frozenset[str]
    repeats: Mapping[str, str]
    past: Past
    screen: Ranking
    confirmation: Confirmation | None
    finalists: tuple[str, ...]
    late: tuple[str, ...]
    layout: Plan | Refusal
    noise: JobNoise
    losses: Losses
    is_screened: bool
    is_complete: bool
    said: tuple[str, ...] = ()

    @property
    def looks(self) -> tuple[Look, ...]:
        """The looks taken at complete blocks."""
        return self.confirmation.looks if self.confirmation else ()


def verdict(basis: Basis, profile_id: str) -> Verdict | None:
    """Return the verdict on a profile; None where it is neither selected nor measured."""
    past = basis.past
    screened = past.screens_of(profile_id)
    confirmed = past.confirms_of(profile_id)
    if not screened and not confirmed and profile_id not in basis.selected:
        return None
    everything = (*screened, *confirmed)
    base = Verdict(
        arm=profile_id,
        kind=VerdictKind.INVALID,
        job_ids=job_ids_of(everything),
        reasons=_repeat_reason(basis, profile_id),
    )
    dropped = [each for each in everything if each.status is TrialStatus.DROPPED]
    if dropped:
        why = dropped[0].reason or "it cannot run"
        not_run = dropped[0].not_run
        return replace(base, can_run=False, not_run=not_run, reasons=(why, *base.reasons))
    differs = basis.losses.reason(past, profile_id)
    if differs:
        return replace(measured(base, everything), reasons=(differs, *base.reasons))
    if profile_id in basis.finalists and confirmed and basis.looks:
        return _confirmed(basis, measured(base, confirmed), confirmed)
    return _screened(basis, base, screened)


def _screened(basis: Basis, base: Verdict, trials: Sequence[TrialResult]) -> Verdict:
    scored = [each for each in trials if usable(each) is not None]
    final = [each for each in trials if each.status.is_final]
    if not scored and final:
        return replace(base, reasons=(unmeasured(final), *base.reasons))
    if not scored:
        why = "not measured yet"
        return replace(base, kind=VerdictKind.INCONCLUSIVE, reasons=(why, *base.reasons))
    standing = basis.screen.standings.get(base.arm)
    if standing is None:
        reasons = ["no baseline of this wave and epoch has a score, so there is no delta"]
    elif len(scored) == 1:
        reasons = ["measured once: the delta ranks, is biased by selection and proves nothing"]
    else:
        reasons = ["measured in the screen only: the delta ranks and proves nothing"]
    if basis.confirmation and base.arm in basis.finalists:
        reasons.append(_progress(basis.past, basis.confirmation, base.arm))
    return replace(
        measured(base, scored),
        kind=VerdictKind.SCREENED,
        delta=relative(standing.estimate) if standing else None,
        method="distance from the line of the screen's baselines",
        reasons=(*reasons, *base.reasons, *score_flags(scored)),
    )


def _progress(past: Past, confirmation: Confirmation, profile_id: str) -> str:
    own = [trial for trial in confirmation.trials if trial.profile.id == profile_id]
    done = sum(past.is_final(trial) for trial in own)
    return f"a finalist: {done} of {len(own)} confirming trials are over"


def _confirmed(basis: Basis, base: Verdict, trials: Sequence[TrialResult]) -> Verdict:
    last = basis.looks[-1]
    comparison = last.comparisons.get(base.arm)
    if not base.n:
        return replace(base, reasons=(unmeasured(trials), *base.reasons))
    if not isinstance(comparison, Comparison):
        why = "it is not among the arms of the blocks" if comparison is None else comparison.reason
        kind = VerdictKind.INCONCLUSIVE
        return replace(base, kind=kind, reasons=(why, *base.reasons, *score_flags(trials)))
    look = next((each for each in basis.looks if _decides(each, base.arm)), last)
    decider = look.comparisons.get(base.arm)
    kind = look.kinds[base.arm]
    reasons = [_sentence(kind, decider if isinstance(decider, Comparison) else comparison)]
    if look is not last:
        reasons.append(f"decided at the first look, with alpha {look.alpha:g}")
    veto = straggler_veto(basis.past, comparison, trials, spare=comparison.lower)
    if kind is VerdictKind.FASTER and veto:
        kind = VerdictKind.INCONCLUSIVE
        reasons = [veto, f"else {reasons[0]}", *reasons[1:]]
    if base.arm in last.unlike:
        reasons.append(unlike_words(last.unlike[base.arm]))
    reasons = [*reasons, *base.reasons, *score_flags(trials)]
    return with_comparison(base, comparison, kind=kind, reasons=reasons)


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


def _repeat_reason(basis: Basis, profile_id: str) -> tuple[str, ...]:
    owner = basis.repeats.get(profile_id)
    if owner is None:
        return ()
    kind = "an A/A trial, no candidate" if owner == BASELINE_ID else "a repeat of it"
    return (f"same effective flags and environment as {owner}: {kind}",)


BOUND = 0.02
_CONFIRMED = (
    VerdictKind.FASTER,
    VerdictKind.SLOWER,
    VerdictKind.EQUIVALENT,
    VerdictKind.INCONCLUSIVE,
)


def conclusion(basis: Basis) -> Conclusion:
    """Return the verdicts, confirmed ones first, each group by delta."""
    verdicts = [verdict(basis, profile_id) for profile_id in basis.declared]
    shown = [each for each in verdicts if each is not None]
    fit = basis.looks[-1].fit if basis.looks else None
    if fit is not None and fit.df >= MIN_DF:
        sigma: float | None = fit.sigma
    else:
        sigma = basis.screen.sigma
    bound, widest = _bound(basis) or (None, "")
    window = basis.past.window
    return Conclusion(
        verdicts=tuple(sorted(shown, key=_standing)),
        reference=reference(basis.past),
        record=TuningRecord(
            finalists=basis.finalists, bound=bound, mde80=_mde80(basis), sigma=sigma
        ),
        alpha=basis.confirmation.alpha_spent if basis.confirmation else 0.0,
        complete=basis.is_complete,
        first_step=window.moved_to,
        notes=tuple(_notes(basis, shown, bound, widest)),
    )


def _standing(verdict: Verdict) -> tuple[int, float]:
    group = 0 if verdict.kind in _CONFIRMED and verdict.delta is not None else 1
    if verdict.kind not in (*_CONFIRMED, VerdictKind.SCREENED) or verdict.n == 0:
        group = 2
    return group, math.inf if verdict.delta is None else -verdict.delta


def _bound(basis: Basis) -> tuple[float, str] | None:
    """Return M, and whose bound it is: no selected and scored profile beats the baseline by more.

    At 95 %: the largest over profiles of the smaller of two bounds at 2.5 % each, from the screen
    alone and from screen and blocks together; sigma is pooled. No multiplicity factor: the claim is
    of all.
    """
    ranked = basis.screen
    if not basis.is_screened or (basis.finalists and basis.confirmation and not basis.looks):
        return None
    fit = basis.looks[-1].fit if basis.looks else None
    squares, df = ranked.squares, ranked.df
    if fit is not None and fit.df > 0:
        squares, df = squares + fit.sigma**2 * fit.df, df + fit.df
    wanted = [each for each in ranked.standings if each in basis.selected]
    if df < MIN_DF or squares <= 0 or not wanted or not math.isfinite(squares):
        return None
    sigma = math.sqrt(squares / df)
    bounds: dict[str, float] = {}
    for profile_id in wanted:
        standing = ranked.standings[profile_id]
        own = [upper_bound(standing.estimate, standing.variance, sigma=sigma, df=df)]
        arm = fit.arms.get(profile_id) if fit else None
        if arm is not None:
            both = combine([(standing.estimate, standing.variance), (arm.estimate, arm.variance)])
            own.append(upper_bound(*both, sigma=sigma, df=df))
        bounds[profile_id] = min(own)
    widest = max(bounds, key=lambda each: bounds[each])
    return relative(bounds[widest]), widest


def _mde80(basis: Basis) -> float | None:
    """Return what the confirmation finds: as measured, else as planned; None if it only ranks."""
    for look in basis.looks[-1:]:
        found = [each.mde80 for each in look.comparisons.values() if isinstance(each, Comparison)]
        return relative(max(found)) if found else None
    return basis.layout.mde80(basis.noise.value) if isinstance(basis.layout, Plan) else None


def _notes(
    basis: Basis, verdicts: Sequence[Verdict], bound: float | None, widest: str
) -> list[str]:
    notes = []
    if not basis.declared:
        seen, noise = basis.screen.sigma, basis.noise
        notes.append(outlook(seen) if seen else outlook(noise.value, words=noise.words))
    elif isinstance(basis.layout, Refusal):
        notes.append(f"{basis.layout.what}: {basis.layout.why}")
    elif not basis.looks:
        planned = basis.layout.mde80(basis.noise.value)
        notes.append(
            f"with {basis.noise.words} this plan ({basis.layout.jobs} jobs) confirms "
            f"{percent(planned)} with 80 % power"
        )
    for look in basis.looks[-1:]:
        notes += [
            f"stop rule reached: {each} is at {percent(relative(found.estimate))}, at least "
            f"{percent(relative(found.lower))}"
            for each, found in look.comparisons.items()
            if each != ALIAS.id and isinstance(found, Comparison) and stops(found)
        ]
        control = look.comparisons.get(ALIAS.id)
        if isinstance(control, Comparison):
            low, high = (percent(relative(end)) for end in control.ci95)
            notes.append(f"A/A control: the baseline against itself is between {low} and {high}")
    if bound is not None:
        text = f"no measured profile beats the baseline by more than {percent(bound)} (95 %)"
        arms = basis.looks[-1].comparisons if basis.looks else {}
        once = "" if widest in arms else ", which was screened once"
        is_bounded = bound < BOUND
        notes.append(
            f"{text}; bounded at {percent(BOUND)}"
            if is_bounded
            else f"{text}: so far reaches the interval of {widest}{once}"
        )
    notes += _window_notes(basis)
    if basis.screen.baselines == 1 and basis.screen.standings:
        notes.append("the screen has a single baseline: drift and noise cannot be told apart")
    notes += _history_notes(basis)
    notes += basis.said
    absent = len(basis.declared) - len(verdicts)
    if absent:
        notes.append(f"{absent} declared profiles are neither selected nor measured")
    return notes


def _window_notes(basis: Basis) -> Iterator[str]:
    """Say where steady state begins, and which profiles warm up unlike the baseline."""
    window = basis.past.window
    if window.note:
        yield window.note
    for look in basis.looks[-1:]:
        unlike = [each for each in look.unlike if each != ALIAS.id]
        if unlike:
            yield (
                f"profiles differ in warm-up from the baseline: {', '.join(unlike)}; the window of "
                f"all trials starts at step {window.first_step}"
            )


def _history_notes(basis: Basis) -> Iterator[str]:
    """Say what of the history is not compared, or no longer decided, and why."""
    past = basis.past
    if basis.late:
        yield (
            f"{', '.join(basis.late)} would be confirmed by now, but the finalists were fixed "
            "when the confirmation began, and its alpha is spent once: a sweep of its own may "
            "confirm it"
        )
    if past.epochs > 1:
        yield f"the nodes changed on the way: {past.epochs} epochs, and nothing is compared across"
    if past.undeclared:
        yield f"no longer declared, ignored: {', '.join(sorted(past.undeclared))}"
    if past.changed:
        names = ", ".join(sorted(past.changed))
        yield f"settings changed since they were measured, old trials ignored: {names}"
    if past.foreign:
        yield f"{past.foreign} trials of another cell, protocol or study were ignored"
