"""The verdicts of a gate: validity first, then the margin, then the floor.

A gate never passes on what is missing: every planned trial must have a score. Nothing here plans a
trial.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pytest_xlatune.cells import Stage, Trial
from pytest_xlatune.profiles import BASELINE_ID, Profile
from pytest_xlatune.results import (
    Comparison,
    Conclusion,
    TrialResult,
    TrialStatus,
    Verdict,
    VerdictKind,
    relative,
)
from pytest_xlatune.stats.blocks import BlockFit, BlockScore, fit_blocks
from pytest_xlatune.stats.capacity import MIN_DF, SWEEP_ALPHA
from pytest_xlatune.stats.compare import NoComparison, compare, interval90
from pytest_xlatune.stats.gates import Design, above, gate, settling
from pytest_xlatune.studies.one_window import Cell, unlike_warmups, unlike_words
from pytest_xlatune.studies.tuning_history import Past, usable
from pytest_xlatune.studies.tuning_reading import loss_reason, percent
from pytest_xlatune.studies.tuning_verdicts import (
    baseline,
    job_ids_of,
    measured,
    score_flags,
    straggler_veto,
)

_BADNESS = {VerdictKind.INCONCLUSIVE: 1, VerdictKind.SLOWER: 2}
_Claim = tuple[VerdictKind, str]


@dataclass(frozen=True, kw_only=True)
class Gated:
    """All that the verdicts of a gate rest on.

    Attributes:
        profiles: the candidates.
        trials: all planned, in order.
        past: what was measured; a stored baseline stands in for a measured one.
        design: how many trials were asked for.
        margin, floor_tgs: what is demanded.
        stored: where the stored baseline comes from; "" where it was measured beside.
        loss_tolerance: relative.
    """

    profiles: tuple[Profile, ...]
    trials: tuple[Trial, ...]
    past: Past
    design: Design
    margin: float
    floor_tgs: float | None
    stored: str
    loss_tolerance: float

    @cached_property
    def dropped(self) -> dict[str, str]:
        """Candidate -> why it cannot run."""
        return {
            each.trial.profile.id: each.reason or "it cannot run"
            for each in self.past.confirm.values()
            if each.status is TrialStatus.DROPPED
        }

    @cached_property
    def pending(self) -> tuple[Trial, ...]:
        """The trials that are still to come."""
        return tuple(
            trial
            for trial in self.trials
            if trial.profile.id not in self.dropped and not self.past.is_final(trial)
        )

    @cached_property
    def cells(self) -> list[Cell]:
        """What has a score, by block and arm; a stored baseline is one block with everything."""
        kept = [
            (key, each)
            for key, each in sorted(self.past.confirm.items())
            if key[2] not in self.dropped
        ]
        # a block that straddles a change of epoch is two blocks: nothing compares across it
        cells: list[Cell] = [
            (0 if self.stored else (key[1], each.epoch), key[2], score)
            for key, each in kept
            if (score := usable(each)) is not None
        ]
        if self.stored:
            cells += [
                (0, BASELINE_ID, score)
                for each in self.runs(BASELINE_ID)
                if (score := usable(each)) is not None
            ]
        return cells

    @cached_property
    def fit(self) -> BlockFit | None:
        """Least squares of what has a score."""
        scores = [
            BlockScore(block=block, arm=arm, value=score.value) for block, arm, score in self.cells
        ]
        return fit_blocks(scores, control=BASELINE_ID)

    @cached_property
    def unlike(self) -> Mapping[str, float]:
        """The candidates whose steps settle at another time than the baseline's."""
        return unlike_warmups(
            self.cells,
            control=BASELINE_ID,
            family=len(self.profiles),
            window=self.past.window,
        )

    def runs(self, profile_id: str) -> Sequence[TrialResult]:
        """Return the trials of a profile."""
        return self.past.of_profile(profile_id, Stage.CONFIRM)

    def comparison(self, profile_id: str) -> Comparison | NoComparison:
        """Compare a candidate with the baseline."""
        if self.fit is None:
            return NoComparison(reason="no block holds a scored baseline and a scored candidate")
        return compare(self.fit, profile_id, family=len(self.profiles), alpha=SWEEP_ALPHA)


def conclusion(gated: Gated) -> Conclusion:
    """Return the verdicts in declared order."""
    verdicts = tuple(_verdict(gated, each.id) for each in gated.profiles)
    seen = [each.mde80 for each in verdicts if each.mde80 is not None]
    fit, window = gated.fit, gated.past.window
    return Conclusion(
        verdicts=verdicts,
        baseline=baseline(gated.past),
        mde80=max(seen, default=None),
        sigma=fit.sigma if fit is not None and fit.df >= MIN_DF else None,
        alpha_spent=SWEEP_ALPHA if gated.past.confirm else 0.0,
        complete=not gated.pending,
        first_step=window.moved_to,
        notes=tuple(_notes(gated)),
    )


def _verdict(gated: Gated, profile_id: str) -> Verdict:
    trials = gated.runs(profile_id)
    base = measured(
        Verdict(
            profile=profile_id,
            kind=VerdictKind.INCONCLUSIVE,
            reasons=score_flags(trials),
            job_ids=job_ids_of(trials),
        ),
        trials,
    )
    if profile_id in gated.dropped:
        why = gated.dropped[profile_id]
        return replace(base, kind=VerdictKind.INVALID, can_run=False, reasons=(why,))
    differs = loss_reason(gated.past, profile_id, tolerance=gated.loss_tolerance)
    if differs:
        return replace(base, kind=VerdictKind.INVALID, reasons=(differs, *base.reasons))
    if gated.pending:
        over = len(gated.trials) - len(gated.pending)
        return _because(base, f"cannot tell yet: {over} of {len(gated.trials)} trials are over")
    if not base.n:
        why = next((each.reason for each in trials if each.reason), "its scores are not finite")
        reasons = (f"nobody could measure it: {why}",)
        return replace(base, kind=VerdictKind.INVALID, reasons=reasons)
    return _compared(gated, base, trials)


def _compared(gated: Gated, base: Verdict, trials: Sequence[TrialResult]) -> Verdict:
    found = gated.comparison(base.profile)
    missing = _missing(gated, base.profile)
    if isinstance(found, NoComparison):
        return _because(base, f"cannot tell: {found.reason}", *missing)
    claims = [
        _margin(gated, found),
        *((VerdictKind.INCONCLUSIVE, f"cannot tell: {each}") for each in missing),
        *_stragglers(gated, found, trials),
        *_floor(gated, base, trials),
    ]
    # the worst of the claims is the verdict; where all hold it is the first's word
    claims.sort(key=lambda claim: _BADNESS.get(claim[0], 0), reverse=True)
    kind = claims[0][0]
    reasons = [reason for _, reason in claims]
    if base.profile in gated.unlike:
        reasons.append(unlike_words(gated.unlike[base.profile]))
    low, high = found.ci95
    method = f"non-inferiority at {gated.margin:.1%}; {found.method}"
    if gated.stored:
        method = f"{method}; stored baseline, a drift since then is not excluded"
    return replace(
        base,
        kind=kind,
        delta=relative(found.estimate),
        ci95=(relative(low), relative(high)),
        mde80=relative(found.mde80),
        method=method,
        reasons=(*reasons, *base.reasons),
    )


def _because(verdict: Verdict, *reasons: str) -> Verdict:
    return replace(verdict, reasons=(*reasons, *verdict.reasons))


def _margin(gated: Gated, comparison: Comparison) -> _Claim:
    kind = gate(comparison, margin=gated.margin)
    margin = f"the margin is {gated.margin:.1%}"
    least = percent(relative(comparison.lower))
    worst = percent(relative(interval90(comparison)[0]))
    best = percent(relative(2 * comparison.estimate - comparison.lower))
    sentences = {
        VerdictKind.FASTER: f"no regression: faster by at least {least}",
        VerdictKind.EQUIVALENT: f"no regression: {worst} at worst, {margin}",
        VerdictKind.SLOWER: f"regression: {best} at best, {worst} at worst, {margin}",
        VerdictKind.INCONCLUSIVE: f"cannot tell: {worst} at worst, {best} at best, {margin}; "
        f"{_settling(gated, comparison)}",
    }
    return kind, sentences[kind]


def _settling(gated: Gated, comparison: Comparison) -> str:
    enough = settling(comparison, gated.design, margin=gated.margin)
    if enough is None:
        return (
            f"at a job noise of {comparison.sigma:.2%} no reasonable number of trials would settle "
            "it: the change is too close to the margin"
        )
    return (
        f"at the noise seen ({comparison.sigma:.2%}) {enough.blocks} blocks would settle it with "
        f"80 % power: {enough.trials} trials, {max(enough.trials - gated.design.trials, 0)} more"
    )


def _missing(gated: Gated, profile_id: str) -> list[str]:
    """Return why the candidate's or the baseline's trials are incomplete."""
    own = [each for each in gated.trials if each.profile.id in (profile_id, BASELINE_ID)]
    absent = [each for each in own if (r := gated.past.of(each)) is None or usable(r) is None]
    if not absent:
        return []
    result = gated.past.of(absent[0])
    why = result.reason if result is not None and result.reason else "no finite score"
    return [f"{len(absent)} of {len(own)} trials have no score ({why}); run it again"]


def _stragglers(
    gated: Gated, comparison: Comparison, trials: Sequence[TrialResult]
) -> list[_Claim]:
    spare = interval90(comparison)[0] - math.log1p(-gated.margin)
    veto = straggler_veto(gated.past, comparison, trials, spare=spare)
    return [(VerdictKind.INCONCLUSIVE, f"cannot tell: {veto}")] if veto else []


def _floor(gated: Gated, base: Verdict, trials: Sequence[TrialResult]) -> list[_Claim]:
    """Hold a candidate against the absolute floor, where there is one."""
    if gated.floor_tgs is None or base.tgs is None:
        return []
    kind = above(
        [score.value for each in trials if (score := usable(each))], math.log(gated.floor_tgs)
    )
    words = {
        VerdictKind.EQUIVALENT: "above the floor",
        VerdictKind.SLOWER: "regression: below the floor",
        VerdictKind.INCONCLUSIVE: "cannot tell whether it is above the floor",
    }
    return [(kind, f"{words[kind]}: {base.tgs:.1f} TGS, the floor is {gated.floor_tgs:g}")]


def _notes(gated: Gated) -> list[str]:
    design = gated.design
    beside = f"{design.stored} stored" if gated.stored else f"{design.baselines} in each block"
    notes = [
        (
            f"a gate at a margin of {gated.margin:.1%}: {design.blocks} trials of each candidate "
            f"in randomised blocks, baselines: {beside}; an equal candidate passes with 80 % power "
            f"up to a job noise of {design.noise(gated.margin):.2%}"
        )
    ]
    if gated.stored:
        notes.append(
            f"the baseline was not measured beside the candidates but taken from {gated.stored}: "
            "a drift of the cell since then cannot be told from a change"
        )
    if gated.past.window.note:
        notes.append(gated.past.window.note)
    if gated.past.changed:
        names = ", ".join(sorted(gated.past.changed))
        notes.append(f"settings changed since they were measured, old trials ignored: {names}")
    return notes
