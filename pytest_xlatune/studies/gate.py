"""Whether a candidate is no worse than the baseline by a margin.

A candidate is settings, a commit, an image, an interpreter: more than settings is a cell of its
own, and its trials name that.

Validity first, then the margin, then the floor. A gate never passes on missing trials: every
planned trial must have a score.

No screen and no ranking: candidates and baselines in randomised blocks, looked at once, when
all are over. Pure and deterministic. What tells
one gate from another is in the study's name, so a new commit is compared with baselines measured
beside it and never with those of last night, unless the user names a stored baseline and with it
accepts the drift.
This module must not know of executors, ledgers, clocks or logs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import PurePath
from typing import ClassVar

import msgspec
from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import Message, say
from pytest_xlatune.model.metric import TGS
from pytest_xlatune.model.profile import (
    BASELINE,
    BASELINE_ID,
    Profile,
    check_unique,
)
from pytest_xlatune.model.profile import profile as profile_of
from pytest_xlatune.model.record import Json, Real, Record
from pytest_xlatune.model.result import (
    Comparison,
    Conclusion,
    NoiseRecord,
    TrialResult,
    Verdict,
    VerdictKind,
    relative,
)
from pytest_xlatune.model.sentences import SETTINGS_CHANGED
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
)
from pytest_xlatune.studies.staged import PastWalk, StagedStudy, name_of
from pytest_xlatune.studies.trials import (
    Orders,
    Past,
    ScoredTrial,
    fitted,
    median_loss,
    moved,
    read,
    unlike_warmup,
    unlike_warmups,
    usable,
)
from pytest_xlatune.studies.verdicts import (
    Losses,
    OneCell,
    beside,
    compared,
    deployed,
    job_ids_of,
    measured,
    reference,
    score_flags,
    straggler_veto,
    unmeasured,
    values_of,
    with_comparison,
)

_CANNOT_TELL_FOR = "cannot tell: {why}"

KIND = "gate"
NO_REGRESSION = "NO REGRESSION"
_BADNESS = {VerdictKind.INCONCLUSIVE: 1, VerdictKind.SLOWER: 2}
_Claim = tuple[VerdictKind, Message]


class Gate(DeclaredStudy, frozen=True, kw_only=True):
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
    margin: Real = 0.01
    floor_tgs: Real | None = None
    blocks: int = 4
    block_baselines: int = 1
    key: str = ""
    stored: str = ""
    candidates: tuple[Candidate, ...] = ()

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


class StoredBaseline(Record, frozen=True, kw_only=True):
    """Baseline trials of an earlier time: where they stand, when that was written, the trials."""

    source: str
    written: str
    trials: tuple[TrialResult, ...]


class GateStudy(StagedStudy["GateWalk"], OneCell, frozen=True, kw_only=True, dict=True):
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
    others: dict[str, Cell] = msgspec.field(default_factory=dict)
    gate: Gate = msgspec.field(default_factory=Gate)
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
        layout: list[Json] = [self.gate.blocks, self.design.baselines, self.seed]
        return name_of(KIND, settings, self.gate.key, layout, stored)

    @property
    def _orders(self) -> Orders:
        return Orders(cell=self.cell, seed=self.seed, study=self.name)

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

    def outline(self, history: History) -> tuple[Message, ...]:  # noqa: ARG002 - as above
        """Return what a plan says of the gate: its trials, and what it can see."""
        design, margin = self.design, self.gate.margin
        return (
            say(
                "{trials} trials: {blocks} blocks of {candidates} candidates + {baselines} "
                "baselines",
                trials=design.trials,
                blocks=design.blocks,
                candidates=design.arms,
                baselines=design.baselines,
            ),
            say(
                "an equal candidate passes at a margin of {margin:size} with 80 % power up to a "
                "job noise of {noise:.2%}",
                margin=margin,
                noise=design.noise(margin),
            ),
        )

    def begin(self, history: History) -> GateWalk:
        """Return the walk before the blocks."""
        return GateWalk(self, self.past(history))

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """All that it plans, in order."""
        design = self.design
        planned = self._orders.blocks(
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

    def past(self, history: History) -> Past:
        """Return its own trials of a history; a stored baseline is among them."""
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
        window = dataclasses.replace(past.window, is_moved=True)
        stored = tuple(
            moved(each, window if each.score and each.score.timings else past.window)
            for each in self.stored.trials
        )
        return dataclasses.replace(
            past,
            confirmed={**past.confirmed, BASELINE_ID: stored},
            reference_loss=median_loss(stored),
        )


class GateWalk(PastWalk[GateStudy]):
    """All that the verdicts of a gate rest on; a stored baseline stands in for a measured one."""

    def walk(self) -> None:
        """Run all blocks; none of a candidate that cannot run."""
        self.run([each for each in self.study.trials if each.arm not in self.dropped])

    def conclusion(self) -> Conclusion:
        """Return the candidates' verdicts; none passes before all trials are over."""
        return conclusion(self)

    @property
    def noise(self) -> float | None:
        """Standard deviation of a job's score; None where blocks do not tell it."""
        fit = self.fit
        return fit.sigma if fit is not None and fit.df >= MIN_DF else None

    @property
    def told(self) -> tuple[Message, ...]:
        """How it is laid out."""
        design, margin, stored = self.study.design, self.margin, self.stored
        layout = say(
            (
                "a gate at a margin of {margin:size}: {trials} trials of each candidate in "
                "randomised blocks, baselines: {baselines} stored; an equal candidate passes "
                "with 80 % power up to a job noise of {noise:.2%}"
            )
            if stored
            else (
                "a gate at a margin of {margin:size}: {trials} trials of each candidate in "
                "randomised blocks, baselines: {baselines} in each block; an equal candidate "
                "passes with 80 % power up to a job noise of {noise:.2%}"
            ),
            margin=margin,
            trials=design.blocks,
            baselines=design.stored if stored else design.baselines,
            noise=design.noise(margin),
        )
        if stored is None:
            return (layout,)
        return layout, say(
            "the baseline was not measured beside the candidates but taken from {source} of "
            "{written}: a drift of the cell since then cannot be told from a change",
            source=stored.source,
            written=stored.written,
        )

    def runs_of(self, arm: str) -> Sequence[TrialResult | None]:
        """Return what the verdict on a candidate rests on: None of a trial without a result."""
        own = (each for each in self.study.trials if each.arm in (arm, BASELINE_ID))
        return [self.past.of(each) for each in own]

    @property
    def margin(self) -> float:
        """Relative loss that is a regression."""
        return self.study.gate.margin

    @property
    def stored(self) -> StoredBaseline | None:
        """The stored baseline; None where it is measured beside the candidates."""
        return self.study.stored

    @cached_property
    def dropped(self) -> Mapping[str, Message]:
        """Candidate -> why it cannot run."""
        return self.past.dropped

    @cached_property
    def scored(self) -> list[ScoredTrial]:
        """What has a score, by block and arm; a stored baseline is one block with everything."""
        found = self.past.scored_in_blocks()
        if not self.stored:
            return found
        stored = [
            score
            for each in self.past.confirms_of(BASELINE_ID)
            if (score := usable(each)) is not None
        ]
        arms = [*((arm, score) for _, arm, score in found), *((BASELINE_ID, s) for s in stored)]
        return [(0, arm, score) for arm, score in arms]

    def verdict(self, profile_id: str) -> Verdict:
        """Return the verdict on a candidate."""
        return _verdict(self, profile_id)

    def judged(self, base: Verdict, trials: Sequence[TrialResult]) -> Verdict:
        """Return the verdict on a candidate that was measured and is valid."""
        del trials
        return _compared(self, base)

    @cached_property
    def fit(self) -> BlockFit | None:
        """Least squares of what has a score."""
        return fitted(self.scored)

    @cached_property
    def unlike(self) -> Mapping[str, float]:
        """The candidates whose steps become steady at another time than the baseline's."""
        family = len(self.study.profiles)
        return unlike_warmups(self.scored, family=family, window=self.past.window)

    def comparison(self, profile_id: str) -> Comparison | NoComparison:
        """Compare a candidate with the baseline; a stored one has a noise of its own."""
        # by one variance 12 stored jobs beside 3 of twice the noise passed 19 % at the margin
        if self.stored:
            values = {
                name: [score.value for _, arm, score in self.scored if arm == name]
                for name in (BASELINE_ID, profile_id)
            }
            family = len(self.study.profiles)
            return two_samples(
                values[BASELINE_ID], values[profile_id], family=family, alpha=SWEEP_ALPHA
            )
        return compared(self.fit, profile_id, family=len(self.study.profiles), alpha=SWEEP_ALPHA)


def conclusion(gated: GateWalk) -> Conclusion:
    """Return the verdicts in declared order."""
    level = reference(gated.past)
    verdicts = tuple(beside(gated.verdict(each.id), level) for each in gated.study.profiles)
    seen = [each.mde80 for each in verdicts if each.mde80 is not None]
    window = gated.past.window
    return Conclusion(
        verdicts=verdicts,
        reference=level,
        record=NoiseRecord(
            mde80=max(seen, default=None),
            sigma=gated.noise,
        ),
        alpha=SWEEP_ALPHA if gated.past.confirm else 0.0,
        complete=gated.is_over,
        first_step=window.moved_to,
        notes=tuple(_notes(gated)),
    )


def _verdict(gated: GateWalk, profile_id: str) -> Verdict:
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
    if not gated.is_over:
        over = len(gated.planned) - len(gated.pending)
        return _because(
            base,
            say(
                "cannot tell yet: {over} of {trials} trials are over",
                over=over,
                trials=over + gated.left,
            ),
        )
    if not base.n:
        return replace(base, kind=VerdictKind.INVALID, reasons=(unmeasured(trials),))
    return gated.judged(base, trials)


def _compared(gated: GateWalk, base: Verdict) -> Verdict:
    found = gated.comparison(base.arm)
    missing = _missing(gated, base.arm)
    if isinstance(found, NoComparison):
        return _because(base, say(_CANNOT_TELL_FOR, why=found.reason), *missing)
    claims = [
        _margin(gated, found),
        *(_untold(each) for each in missing),
        *_stragglers(gated, found, base.arm),
        *_floor(gated, base),
        *_unseen(base),
    ]
    # the worst of the claims is the verdict; where all hold it is the first's word
    claims.sort(key=lambda claim: _BADNESS.get(claim[0], 0), reverse=True)
    kind = claims[0][0]
    reasons = [reason for _, reason in claims]
    if base.arm in gated.unlike:
        reasons.append(unlike_warmup(gated.unlike[base.arm]))
    rule = (
        (
            "non-inferiority at {margin:size}; {method}; stored baseline, a drift since then is "
            "not excluded"
        )
        if gated.stored
        else "non-inferiority at {margin:size}; {method}"
    )
    method = say(rule, margin=gated.margin, method=found.method)
    decided = with_comparison(base, found, kind=kind, reasons=(*reasons, *base.reasons))
    if kind is VerdictKind.EQUIVALENT and not is_within(found, margin=gated.margin):
        # a loss is excluded, a gain is not: it passes, and is not called the same
        decided = replace(decided, word=NO_REGRESSION, against=say("{arm}", arm=BASELINE_ID))
    return replace(decided, n=base.n, method=method)


def _because(verdict: Verdict, *reasons: Message) -> Verdict:
    return replace(verdict, reasons=(*reasons, *verdict.reasons))


def _untold(why: Message) -> _Claim:
    return VerdictKind.INCONCLUSIVE, say(_CANNOT_TELL_FOR, why=why)


def _margin(gated: GateWalk, comparison: Comparison) -> _Claim:
    """Hold a candidate against the margin."""
    kind = gate(comparison, margin=gated.margin)
    worst = relative(interval90(comparison)[0])
    ends = {"worst": worst, "best": relative(2 * comparison.estimate - comparison.lower)}
    match kind:
        case VerdictKind.FASTER:
            found = say(
                "no regression: faster by at least {least:percent}",
                least=relative(comparison.lower),
            )
        case VerdictKind.EQUIVALENT:
            found = say(
                "no regression: {worst:percent} at worst, the margin is {margin:size}",
                worst=worst,
                margin=gated.margin,
            )
        case VerdictKind.SLOWER:
            found = say(
                "regression: {best:percent} at best, {worst:percent} at worst, the margin "
                "is {margin:size}",
                margin=gated.margin,
                **ends,
            )
        case _:
            enough = _enough(gated, comparison)
            found = say(
                "cannot tell: {worst:percent} at worst, {best:percent} at best, the margin "
                "is {margin:size}; {enough}",
                margin=gated.margin,
                enough=enough,
                **ends,
            )
    return kind, found


def _enough(gated: GateWalk, comparison: Comparison) -> Message:
    have = gated.study.design.trials
    enough = deciding(comparison, gated.study.design, margin=gated.margin)
    if enough is None:
        return say(
            "at a job noise of {sigma:.2%} no reasonable number of trials would decide it: "
            "the change is too close to the margin",
            sigma=comparison.sigma,
        )
    return say(
        "at the noise seen ({sigma:.2%}) {blocks} blocks would decide it with 80 % power: "
        "{trials} trials, {more} more",
        sigma=comparison.sigma,
        blocks=enough.blocks,
        trials=enough.trials,
        more=max(enough.trials - have, 0),
    )


def _missing(gated: GateWalk, profile_id: str) -> list[Message]:
    """Return why the candidate's or the baseline's trials are incomplete."""
    own = gated.runs_of(profile_id)
    absent = [each for each in own if each is None or usable(each) is None]
    if not absent:
        return []
    result = absent[0]
    why = result.reason if result is not None else None
    why = why or say("no finite score")
    return [
        say(
            "{absent} of {trials} trials have no score ({why}); run it again",
            absent=len(absent),
            trials=len(own),
            why=why,
        )
    ]


def _unseen(base: Verdict) -> list[_Claim]:
    """Return why a candidate says nothing: its settings may not have been in effect."""
    if not base.unproved:
        return []
    return [
        _untold(
            say(
                "nothing shows that {names} was in effect ({effect})",
                names=base.unproved,
                effect=base.effect,
            )
        )
    ]


def _stragglers(gated: GateWalk, comparison: Comparison, arm: str) -> list[_Claim]:
    spare = interval90(comparison)[0] - math.log1p(-gated.margin)
    own, baselines = (gated.past.confirms_of(each) for each in (arm, gated.past.reference))
    veto = straggler_veto(comparison, own, baselines, spare=spare)
    return [_untold(veto)] if veto else []


def _floor(gated: GateWalk, base: Verdict) -> list[_Claim]:
    """Hold a candidate against the absolute floor, where there is one."""
    floor_tgs = gated.study.gate.floor_tgs
    if floor_tgs is None or base.tgs is None:
        return []
    kind = above(values_of(gated.past.confirms_of(base.arm)), math.log(floor_tgs))
    kinds = {
        VerdictKind.EQUIVALENT: "above the floor: {tgs:.1f} TGS, the floor is {floor:g}",
        VerdictKind.SLOWER: "regression: below the floor: {tgs:.1f} TGS, the floor is {floor:g}",
        VerdictKind.INCONCLUSIVE: (
            "cannot tell whether it is above the floor: {tgs:.1f} TGS, the floor is {floor:g}"
        ),
    }
    return [(kind, say(kinds[kind], tgs=base.tgs, floor=floor_tgs))]


def _notes(gated: GateWalk) -> list[Message]:
    notes = [*gated.told]
    if gated.past.window.note:
        notes.append(gated.past.window.note)
    if gated.past.changed:
        notes.append(say(SETTINGS_CHANGED, arms=sorted(gated.past.changed)))
    return notes
