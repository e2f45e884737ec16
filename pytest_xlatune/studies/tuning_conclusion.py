"""The conclusion of a tuning sweep: its verdicts in order, what it could see, what it excludes.

Works at any moment of a sweep. Nothing here plans a trial.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pytest_xlatune.results import Comparison, Conclusion, Verdict, VerdictKind, relative
from pytest_xlatune.stats.capacity import MIN_DF, Plan, Refusal, outlook
from pytest_xlatune.stats.compare import stops
from pytest_xlatune.stats.line import combine, upper_bound
from pytest_xlatune.studies.tuning_layout import ALIAS
from pytest_xlatune.studies.tuning_reading import Reading, percent
from pytest_xlatune.studies.tuning_verdicts import baseline, verdict

BOUND = 0.02
_CONFIRMED = (
    VerdictKind.FASTER,
    VerdictKind.SLOWER,
    VerdictKind.EQUIVALENT,
    VerdictKind.INCONCLUSIVE,
)


def conclusion(reading: Reading) -> Conclusion:
    """Return the verdicts, confirmed ones first, each group by delta."""
    verdicts = [verdict(reading, profile_id) for profile_id in reading.declared]
    shown = [each for each in verdicts if each is not None]
    fit = reading.looks[-1].fit if reading.looks else None
    if fit is not None and fit.df >= MIN_DF:
        sigma: float | None = fit.sigma
    else:
        sigma = reading.screen.sigma
    bound, widest = _bound(reading) or (None, "")
    window = reading.past.window
    return Conclusion(
        verdicts=tuple(sorted(shown, key=_standing)),
        baseline=baseline(reading.past),
        finalists=reading.finalists,
        bound=bound,
        mde80=_mde80(reading),
        sigma=sigma,
        alpha_spent=reading.confirmation.alpha_spent if reading.confirmation else 0.0,
        complete=reading.is_complete,
        first_step=window.moved_to,
        notes=tuple(_notes(reading, shown, bound, widest)),
    )


def _standing(verdict: Verdict) -> tuple[int, float]:
    group = 0 if verdict.kind in _CONFIRMED and verdict.delta is not None else 1
    if verdict.kind not in (*_CONFIRMED, VerdictKind.SCREENED) or verdict.n == 0:
        group = 2
    return group, math.inf if verdict.delta is None else -verdict.delta


def _bound(reading: Reading) -> tuple[float, str] | None:
    """Return M, and whose bound it is: no selected and scored profile beats the baseline by more.

    At 95 %: the largest over profiles of the smaller of two bounds at 2.5 % each, from the screen
    alone and from screen and blocks together; sigma is pooled. No multiplicity factor: the claim is
    of all.
    """
    ranked = reading.screen
    if not reading.is_screened or (
        reading.finalists and reading.confirmation and not reading.looks
    ):
        return None
    fit = reading.looks[-1].fit if reading.looks else None
    squares, df = ranked.squares, ranked.df
    if fit is not None and fit.df > 0:
        squares, df = squares + fit.sigma**2 * fit.df, df + fit.df
    wanted = [each for each in ranked.standings if each in reading.selected]
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


def _mde80(reading: Reading) -> float | None:
    """Return what the confirmation finds: as measured, else as planned; None if it only ranks."""
    for look in reading.looks[-1:]:
        found = [each.mde80 for each in look.comparisons.values() if isinstance(each, Comparison)]
        return relative(max(found)) if found else None
    return reading.layout.mde80(reading.noise.value) if isinstance(reading.layout, Plan) else None


def _notes(
    reading: Reading, verdicts: Sequence[Verdict], bound: float | None, widest: str
) -> list[str]:
    notes = []
    if not reading.declared:
        seen, noise = reading.screen.sigma, reading.noise
        notes.append(outlook(seen) if seen else outlook(noise.value, words=noise.words))
    elif isinstance(reading.layout, Refusal):
        notes.append(f"{reading.layout.what}: {reading.layout.why}")
    elif not reading.looks:
        planned = reading.layout.mde80(reading.noise.value)
        notes.append(
            f"with {reading.noise.words} this plan ({reading.layout.jobs} jobs) confirms "
            f"{percent(planned)} with 80 % power"
        )
    for look in reading.looks[-1:]:
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
        arms = reading.looks[-1].comparisons if reading.looks else {}
        once = "" if widest in arms else ", which was screened once"
        is_bounded = bound < BOUND
        notes.append(
            f"{text}; bounded at {percent(BOUND)}"
            if is_bounded
            else f"{text}: so far reaches the interval of {widest}{once}"
        )
    notes += _window_notes(reading)
    if reading.screen.baselines == 1 and reading.screen.standings:
        notes.append("the screen has a single baseline: drift and noise cannot be told apart")
    notes += _history_notes(reading)
    notes += reading.said
    absent = len(reading.declared) - len(verdicts)
    if absent:
        notes.append(f"{absent} declared profiles are neither selected nor measured")
    return notes


def _window_notes(reading: Reading) -> Iterator[str]:
    """Say where steady state begins, and which profiles warm up unlike the baseline."""
    window = reading.past.window
    if window.note:
        yield window.note
    for look in reading.looks[-1:]:
        unlike = [each for each in look.unlike if each != ALIAS.id]
        if unlike:
            yield (
                f"profiles differ in warm-up from the baseline: {', '.join(unlike)}; the window of "
                f"all trials starts at step {window.first_step}"
            )


def _history_notes(reading: Reading) -> Iterator[str]:
    """Say what of the history is not compared, or no longer decided, and why."""
    past = reading.past
    if reading.late:
        yield (
            f"{', '.join(reading.late)} would be confirmed by now, but the finalists were fixed "
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
