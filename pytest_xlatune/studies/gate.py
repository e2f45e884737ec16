"""Whether a candidate is no worse than the baseline by a margin.

A candidate is settings, a commit, an image, an interpreter: more than settings is a cell of its
own, and its trials name that.

Validity first, then the margin, then the floor. A gate never passes on missing trials: every
planned trial must have a score.

No screen and no ranking: candidates and baselines in randomised blocks, looked at once, when
all are over. Pure and deterministic. What tells one gate from another is in the study's name,
so a new commit is compared with baselines measured beside it and never with those of last night,
unless the user names a stored baseline and with it accepts the drift.
This module must not know of executors, ledgers, clocks or logs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import PurePath
from typing import ClassVar

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.metric import TGS
from pytest_xlatune.model.profile import BASELINE, BASELINE_ID, Profile, check_unique
from pytest_xlatune.model.profile import profile as profile_of
from pytest_xlatune.model.record import LATER, Record, digest, written
from pytest_xlatune.model.result import (
    Comparison,
    Conclusion,
    NoiseRecord,
    TrialResult,
    Verdict,
    VerdictKind,
    relative,
)
from pytest_xlatune.model.text import fine, percent, size
from pytest_xlatune.model.trial import Arm, ConfirmDesign, Trial
from pytest_xlatune.stats.blocks import BlockFit
from pytest_xlatune.stats.compare import (
    GateLayout,
    NoComparison,
    above,
    deciding,
    gate,
    interval90,
    is_within,
    two_samples,
)
from pytest_xlatune.stats.design import MIN_DF, SWEEP_ALPHA
from pytest_xlatune.studies import (
    Aim,
    Asked,
    Candidate,
    DeclaredStudy,
    History,
    Traits,
    remembered,
)
from pytest_xlatune.studies.trials import (
    Orders,
    Past,
    ScoredTrial,
    fitted,
    median_loss,
    moved,
    read,
    unlike_warmups,
    unlike_words,
    usable,
)
from pytest_xlatune.studies.tuning.derived import settings_of
from pytest_xlatune.studies.verdicts import (
    Losses,
    OneCell,
    acting,
    beside,
    compared,
    deployed,
    job_ids_of,
    measured,
    reference,
    score_flags,
    straggler_veto,
    unmeasured,
    with_acting,
    with_comparison,
)

_BADNESS = {VerdictKind.INCONCLUSIVE: 1, VerdictKind.SLOWER: 2}
_Claim = tuple[VerdictKind, str]


@dataclass(frozen=True, kw_only=True)
class Gated:
    """All that the verdicts of a gate rest on.

    Attributes:
        study: the demands on which candidates.
        trials: all planned, in order.
        past: what was measured; a stored baseline stands in for a measured one.
    """

    study: GateStudy
    trials: tuple[Trial, ...]
    past: Past

    @property
    def margin(self) -> float:
        """Relative loss that is a regression."""
        return self.study.gate.margin

    @cached_property
    def stored(self) -> str:
        """Where the stored baseline comes from; "" where it was measured beside."""
        found = self.study.stored
        return f"{found.source} of {found.written}" if found else ""

    @cached_property
    def dropped(self) -> Mapping[str, str]:
        """Candidate -> why it cannot run."""
        return self.past.dropped

    @cached_property
    def pending(self) -> tuple[Trial, ...]:
        """The trials that are still to come."""
        return tuple(
            trial
            for trial in self.trials
            if trial.arm not in self.dropped and not self.past.is_final(trial)
        )

    @cached_property
    def cells(self) -> list[ScoredTrial]:
        """What has a score, by block and arm; a stored baseline is one block with everything."""
        cells = self.past.scored_in_blocks()
        if not self.stored:
            return cells
        stored = [
            score
            for each in self.past.confirms_of(BASELINE_ID)
            if (score := usable(each)) is not None
        ]
        arms = [*((arm, score) for _, arm, score in cells), *((BASELINE_ID, s) for s in stored)]
        return [(0, arm, score) for arm, score in arms]

    @cached_property
    def fit(self) -> BlockFit | None:
        """Least squares of what has a score."""
        return fitted(self.cells)

    @cached_property
    def unlike(self) -> Mapping[str, float]:
        """The candidates whose steps become steady at another time than the baseline's."""
        family = len(self.study.profiles)
        return unlike_warmups(self.cells, family=family, window=self.past.window)

    def comparison(self, profile_id: str) -> Comparison | NoComparison:
        """Compare a candidate with the baseline; a stored one has a noise of its own."""
        if self.stored:
            values = {
                name: [score.value for _, arm, score in self.cells if arm == name]
                for name in (BASELINE_ID, profile_id)
            }
            family = len(self.study.profiles)
            return two_samples(
                values[BASELINE_ID], values[profile_id], family=family, alpha=SWEEP_ALPHA
            )
        return compared(self.fit, profile_id, family=len(self.study.profiles), alpha=SWEEP_ALPHA)


def conclusion(gated: Gated) -> Conclusion:
    """Return the verdicts in declared order."""
    level = reference(gated.past)
    verdicts = tuple(beside(_verdict(gated, each.id), level) for each in gated.study.profiles)
    seen = [each.mde80 for each in verdicts if each.mde80 is not None]
    fit, window = gated.fit, gated.past.window
    return Conclusion(
        verdicts=verdicts,
        reference=level,
        record=NoiseRecord(
            mde80=max(seen, default=None),
            sigma=fit.sigma if fit is not None and fit.df >= MIN_DF else None,
        ),
        alpha=SWEEP_ALPHA if gated.past.confirm else 0.0,
        complete=not gated.pending,
        first_step=window.moved_to,
        notes=tuple(_notes(gated)),
    )


def _verdict(gated: Gated, profile_id: str) -> Verdict:
    trials = gated.past.confirms_of(profile_id)
    base = measured(
        Verdict(
            arm=profile_id,
            kind=VerdictKind.INCONCLUSIVE,
            reasons=score_flags(trials),
            job_ids=job_ids_of(trials),
        ),
        trials,
    )
    if profile_id in gated.dropped:
        why = gated.dropped[profile_id]
        return replace(base, kind=VerdictKind.INVALID, can_run=False, reasons=(why,))
    differs = gated.study.losses.reason(gated.past, profile_id)
    if differs:
        return replace(base, kind=VerdictKind.INVALID, reasons=(differs, *base.reasons))
    if gated.pending:
        over = len(gated.trials) - len(gated.pending)
        return _because(base, f"cannot tell yet: {over} of {len(gated.trials)} trials are over")
    if not base.n:
        return replace(base, kind=VerdictKind.INVALID, reasons=(unmeasured(trials),))
    return _compared(gated, base, trials)


def _compared(gated: Gated, base: Verdict, trials: Sequence[TrialResult]) -> Verdict:
    found = gated.comparison(base.arm)
    missing = _missing(gated, base.arm)
    base = _shown_to_act(gated, base, found)
    if isinstance(found, NoComparison):
        return _because(base, f"cannot tell: {found.reason}", *missing)
    claims = [
        _margin(gated, found),
        *((VerdictKind.INCONCLUSIVE, f"cannot tell: {each}") for each in missing),
        *_stragglers(gated, found, trials),
        *_floor(gated, base, trials),
        *_unseen(base),
    ]
    # the worst of the claims is the verdict; where all hold it is the first's word
    claims.sort(key=lambda claim: _BADNESS.get(claim[0], 0), reverse=True)
    kind = claims[0][0]
    reasons = [reason for _, reason in claims]
    if base.arm in gated.unlike:
        reasons.append(unlike_words(gated.unlike[base.arm]))
    method = f"non-inferiority at {size(gated.margin)}; {found.method}"
    if gated.stored:
        method = f"{method}; stored baseline, a drift since then is not excluded"
    decided = with_comparison(base, found, kind=kind, reasons=(*reasons, *base.reasons))
    if kind is VerdictKind.EQUIVALENT and not is_within(found, margin=gated.margin):
        # a loss is excluded, a gain is not: it passes, and is not called the same
        decided = replace(decided, word=NO_REGRESSION, against=BASELINE_ID)
    return replace(decided, n=base.n, method=method)


def _shown_to_act(gated: Gated, base: Verdict, found: Comparison | NoComparison) -> Verdict:
    """Return a candidate without the doubt that its blocks remove: see `acting`."""
    profile = next(each for each in gated.study.profiles if each.id == base.arm)
    if isinstance(found, NoComparison) or base.arm in gated.study.others:
        return base
    told = with_comparison(base, found, kind=base.kind, reasons=())
    return with_acting(base, {name for _, name in acting(told, settings_of(profile))})


def _because(verdict: Verdict, *reasons: str) -> Verdict:
    return replace(verdict, reasons=(*reasons, *verdict.reasons))


def _margin(gated: Gated, comparison: Comparison) -> _Claim:
    kind = gate(comparison, margin=gated.margin)
    margin = f"the margin is {size(gated.margin)}"
    least = percent(relative(comparison.lower))
    worst = percent(relative(interval90(comparison)[0]))
    best = percent(relative(2 * comparison.estimate - comparison.lower))
    sentences = {
        VerdictKind.FASTER: f"no regression: faster by at least {least}",
        VerdictKind.EQUIVALENT: f"no regression: {worst} at worst, {margin}",
        VerdictKind.SLOWER: f"regression: {best} at best, {worst} at worst, {margin}",
        VerdictKind.INCONCLUSIVE: f"cannot tell: {worst} at worst, {best} at best, {margin}; "
        f"{_enough(gated, comparison)}",
    }
    return kind, sentences[kind]


def _enough(gated: Gated, comparison: Comparison) -> str:
    have = gated.study.design.trials
    enough = deciding(comparison, gated.study.design, margin=gated.margin)
    if enough is None:
        return (
            f"at a job noise of {fine(comparison.sigma)} no reasonable number of trials would "
            "decide it: the change is too close to the margin"
        )
    return (
        f"at the noise seen ({fine(comparison.sigma)}) {enough.blocks} blocks would decide it with "
        f"80 % power: {enough.trials} trials, {max(enough.trials - have, 0)} more"
    )


def _missing(gated: Gated, profile_id: str) -> list[str]:
    """Return why the candidate's or the baseline's trials are incomplete."""
    own = [each for each in gated.trials if each.arm in (profile_id, BASELINE_ID)]
    absent = [each for each in own if (r := gated.past.of(each)) is None or usable(r) is None]
    if not absent:
        return []
    result = gated.past.of(absent[0])
    why = result.reason if result is not None and result.reason else "no finite score"
    return [f"{len(absent)} of {len(own)} trials have no score ({why}); run it again"]


def _unseen(base: Verdict) -> list[_Claim]:
    """Return why a candidate says nothing: its settings may not have been in effect."""
    if not base.unproved:
        return []
    why = f"nothing shows that {', '.join(base.unproved)} was in effect ({base.effect})"
    return [(VerdictKind.INCONCLUSIVE, f"cannot tell: {why}")]


def _stragglers(
    gated: Gated, comparison: Comparison, trials: Sequence[TrialResult]
) -> list[_Claim]:
    spare = interval90(comparison)[0] - math.log1p(-gated.margin)
    baselines = gated.past.confirms_of(gated.past.reference)
    veto = straggler_veto(comparison, trials, baselines, spare=spare)
    return [(VerdictKind.INCONCLUSIVE, f"cannot tell: {veto}")] if veto else []


def _floor(gated: Gated, base: Verdict, trials: Sequence[TrialResult]) -> list[_Claim]:
    """Hold a candidate against the absolute floor, where there is one."""
    floor_tgs = gated.study.gate.floor_tgs
    if floor_tgs is None or base.tgs is None:
        return []
    kind = above([score.value for each in trials if (score := usable(each))], math.log(floor_tgs))
    words = {
        VerdictKind.EQUIVALENT: "above the floor",
        VerdictKind.SLOWER: "regression: below the floor",
        VerdictKind.INCONCLUSIVE: "cannot tell whether it is above the floor",
    }
    return [(kind, f"{words[kind]}: {base.tgs:.1f} TGS, the floor is {floor_tgs:g}")]


def _notes(gated: Gated) -> list[str]:
    design = gated.study.design
    beside = f"{design.stored} stored" if gated.stored else f"{design.baselines} in each block"
    notes = [
        (
            f"a gate at a margin of {size(gated.margin)}: {design.blocks} trials of each candidate "
            f"in randomised blocks, baselines: {beside}; an equal candidate passes with 80 % power "
            f"up to a job noise of {fine(design.noise(gated.margin))}"
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


KIND = "gate"
NO_REGRESSION = "NO REGRESSION"


@written("gate")
@dataclass(frozen=True, slots=True, kw_only=True)
class Gate(DeclaredStudy):
    """What a gate demands.

    Attributes:
        margin: relative loss of TGS that is a regression; 0.01 is 1 %.
        floor_tgs: Tokens/s/device that a candidate must exceed; None demands nothing.
        blocks: trials of each candidate.
        block_baselines: baselines beside them in each block.
        key: what tells this run of the gate from the last, e.g. the commit, where the candidates'
            settings do not; trials of another key are never used.
        stored: a `leaderboard.json`, a `gate.json` or a ledger, whose baseline trials are used
            instead of fresh ones; "" is none. A user who names it accepts that a drift since then
            is not excluded.
        candidates: rivals of the cell, beside the profiles of the sweep.
    """

    kind: ClassVar[str] = KIND
    margin: float = 0.01
    floor_tgs: float | None = None
    blocks: int = 4
    block_baselines: int = 1
    key: str = ""
    stored: str = ""
    candidates: tuple[Candidate, ...] = field(default=(), metadata=LATER)

    def __post_init__(self) -> None:
        if not 0 < self.margin < 1:
            raise ConfigError(
                f"gate: the margin is {self.margin}, expected a fraction such as 0.01 for 1 %"
            )
        if self.floor_tgs is not None and not 0 < self.floor_tgs < math.inf:
            raise ConfigError(
                f"gate: the floor is {self.floor_tgs} TGS, expected a positive number"
            )
        if self.floor_tgs is not None and self.blocks <= MIN_DF:
            raise ConfigError(
                f"gate: {self.blocks} trials of a candidate cannot be held against a floor, "
                f"{MIN_DF + 1} are needed; raise `blocks`"
            )

    def study(self, asked: Asked) -> GateStudy:
        """Return the gate of the selected candidates, of all where no test selects one."""
        stored = None
        if self.stored:
            written, trials = asked.read_baselines(self.stored)
            stored = StoredBaseline(
                source=PurePath(self.stored).name, written=written, trials=trials
            )
        profiles = tuple(
            each for each in asked.profiles if not asked.selected or each.id in asked.selected
        )
        return GateStudy(
            cell=asked.cell,
            profiles=profiles,
            others={each.id: asked.others[each.id] for each in profiles if each.id in asked.others},
            gate=self,
            budget=asked.budget,
            seed=asked.seed,
            stored=stored,
            loss_tolerance=asked.loss_tolerance,
        )


def candidate(
    name: str,
    flags: str = "",
    *,
    env: Mapping[str, str] | None = None,
    overrides: Mapping[str, str] | None = None,
    note: str = "",
    code: str = "",
    image: str = "",
    python: str = "",
) -> Candidate:
    """Return a candidate of a gate: `candidate("head", code="HEAD")`.

    Args:
        name: a slug.
        flags: of XLA, as one text.
        env: variables on top of the deployed.
        overrides: `key=value` for the trainer.
        note: for people.
        code: a commit of the trainer's repository; takes a `CheckoutLauncher`.
        image: in the place of the cell's; takes a `ContainerLauncher`.
        python: an interpreter, in the place of the launcher's.

    Raises:
        ConfigError: a malformed name or flag.
    """
    settings = profile_of(name, flags, env=env or {}, overrides=overrides or {}, note=note)
    return Candidate(profile=settings, code=code, image=image, python=python)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBaseline(Record):
    """Baseline trials of an earlier time: where they stand, when that was written, the trials."""

    source: str
    written: str
    trials: tuple[TrialResult, ...]


@dataclass(frozen=True, kw_only=True)
class GateStudy(OneCell):
    """One run of a gate; fewer candidates are another gate.

    Attributes:
        cell: held fixed; as deployed it is the baseline.
        profiles: the candidates that are asked about, on top of it.
        others: id of a candidate -> the cell that it is measured in, where that is another.
        gate: the demands.
        budget: jobs that it may cost.
        seed: of the random orders.
        stored: the baseline, where it is not measured beside the candidates.
        loss_tolerance: relative distance from the baseline's loss that makes a trial invalid.
    """

    traits: ClassVar[Traits] = Traits(aim=Aim.GATES, compares_settings=True)
    cell: Cell
    profiles: tuple[Profile, ...]
    others: dict[str, Cell] = field(default_factory=dict)
    gate: Gate = field(default_factory=Gate)
    budget: int = 50
    seed: int = 0
    stored: StoredBaseline | None = None
    loss_tolerance: float = 0.02

    def __post_init__(self) -> None:
        where = f"the gate of {self.cell.label}"
        check_unique(self.profiles, where=where)
        if not self.profiles:
            raise ConfigError(f"{where} has no candidate; declare at least one profile")
        if self.gate.floor_tgs is not None and self.cell.protocol.scored_by is not TGS:
            raise ConfigError(
                f"{where} has a floor of {self.gate.floor_tgs:g} TGS, but its protocol scores "
                f"{self.cell.protocol.metric!r}; leave the floor out, or score 'tgs'"
            )
        design = self.design
        if design.trials > self.budget:
            raise ConfigError(
                f"{where} needs {design.trials} jobs, the budget is {self.budget}; raise the "
                "budget, or declare fewer candidates"
            )
        if min(design.blocks, design.baselines + design.stored) < 1 or design.df < MIN_DF:
            raise ConfigError(
                f"{where}: {design.blocks} trials of each of {design.arms} candidates and "
                f"{design.baselines * design.blocks + design.stored} baselines leave "
                f"{design.df} degrees of freedom, {MIN_DF} are needed; add a block or a baseline"
            )

    @cached_property
    def name(self) -> str:
        """The study's word and which gate it is: candidates, key and layout, in any order."""
        settings = sorted(
            [each.id, each.settings_text, *([other.digest] if other else [])]
            for each in self.profiles
            for other in [self.others.get(each.id)]
        )
        stored = [each.trial.id for each in self.stored.trials] if self.stored else []
        layout = [self.gate.blocks, self.design.baselines, self.seed]
        return f"{KIND}-{digest([settings, self.gate.key, layout, stored], length=8)}"

    @property
    def design(self) -> GateLayout:
        """How many trials it rests on."""
        stored = len(self.stored.trials) if self.stored else 0
        return GateLayout(
            arms=len(self.profiles),
            blocks=self.gate.blocks,
            baselines=0 if self.stored else self.gate.block_baselines,
            stored=stored,
        )

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The baseline's, then those of candidates that have one of their own."""
        return tuple(dict.fromkeys((self.cell, *self.others.values())))

    def arms(self, history: History) -> tuple[Arm, ...]:
        """Return the cell as deployed, then the candidates."""
        del history
        return (
            deployed(self.cell, BASELINE),
            *(deployed(self.others.get(each.id, self.cell), each) for each in self.profiles),
        )

    @property
    def losses(self) -> Losses:
        """With what a trial's loss is compared."""
        return Losses(tolerance=self.loss_tolerance, rule=self.policy.loss)

    def outline(self, history: History) -> tuple[str, ...]:  # noqa: ARG002 - as above
        """Return what a plan says of the gate: its trials, and what it can see."""
        design, margin = self.design, self.gate.margin
        block = f"{design.arms} candidates + {design.baselines} baselines"
        power = f"with 80 % power up to a job noise of {fine(design.noise(margin))}"
        return (
            f"{design.trials} trials: {design.blocks} blocks of {block}",
            f"an equal candidate passes at a margin of {size(margin)} {power}",
        )

    def propose(self, history: History) -> tuple[Trial, ...]:
        """Return the trials that are not over; none of a candidate that cannot run."""
        return self._gated(history).pending

    @remembered
    def conclude(self, history: History) -> Conclusion:
        """Return the candidates' verdicts; none passes before all trials are over."""
        return conclusion(self._gated(history))

    @remembered
    def _gated(self, history: History) -> Gated:
        return Gated(study=self, trials=self._trials, past=self._past(history))

    @cached_property
    def _trials(self) -> tuple[Trial, ...]:
        orders = Orders(cell=self.cell, seed=self.seed, study=self.name)
        design = self.design
        planned = orders.blocks(
            self.profiles,
            range(1, design.blocks + 1),
            design=ConfirmDesign(
                arms=design.arms, blocks=design.blocks, baselines=design.baselines
            ),
        )
        return tuple(
            replace(each, cell_digest=self.others[each.arm].digest)
            if each.arm in self.others
            else each
            for each in planned
        )

    def _past(self, history: History) -> Past:
        past = read(
            history,
            protocols={each.digest: each.protocol for each in self.cells},
            declared={profile.id: profile for profile in self.profiles},
            study=self.name,
            is_one_window=True,
        )
        if self.stored is None:
            return past
        # a report has them in its own window; they are held beside the candidates in theirs
        window = replace(past.window, is_moved=True)
        stored = tuple(
            moved(each, window if each.score and each.score.timings else past.window)
            for each in self.stored.trials
        )
        return replace(
            past,
            confirmed={**past.confirmed, BASELINE_ID: stored},
            reference_loss=median_loss(stored),
        )
