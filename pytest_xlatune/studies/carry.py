"""Whether a gain that a small cell has carries to the cell of the sweep, which costs more.

The gain is that of a report, as decided there, or a gate in the small cell measures it first. Then
profiles and baselines run in blocks here. They are looked at twice, and each profile is left out
from where it is told on. Validity is a gate's. Pure and deterministic. This module must not know of
executors, ledgers, clocks or logs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePath
from typing import ClassVar, NamedTuple

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import BASELINE_ID, check_unique
from pytest_xlatune.model.reason import Reason, Why
from pytest_xlatune.model.record import Record, written
from pytest_xlatune.model.result import (
    Comparison,
    Conclusion,
    Effect,
    NoiseRecord,
    TrialResult,
    Verdict,
    VerdictKind,
    relative,
)
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.compare import Change, NoComparison, carrying, change_in, change_of, less
from pytest_xlatune.stats.design import MIN_DF, SWEEP_ALPHA, design_df
from pytest_xlatune.studies import Aim, Asked, DeclaredStudy, History, Traits
from pytest_xlatune.studies.gate import Gate, GateStudy, GateWalk, conclusion
from pytest_xlatune.studies.staged import Words, name_of
from pytest_xlatune.studies.trials import Past, fitted
from pytest_xlatune.studies.verdicts import (
    compared,
    lost_runs,
    straggler_veto,
    survivor_veto,
    with_comparison,
    with_effect,
)

KIND = "carry"
SMALL = "small"  # the stage of trials of the small cell
LOOKS = 2  # each by 95 % intervals, so that either end is wrong in 5 % of all studies


class CarryWord(Words):
    """What becomes of a gain; every word but CANNOT TELL is shown."""

    LOST = "LOST", VerdictKind.SLOWER
    CANNOT_TELL = "CANNOT TELL", VerdictKind.INCONCLUSIVE
    SMALLER = "SMALLER", VerdictKind.FASTER
    CARRIES = "CARRIES", VerdictKind.FASTER


@written("carry")
@dataclass(frozen=True, slots=True, kw_only=True)
class Carry(DeclaredStudy):
    """What a sweep file declares: `Sweep(study=Carry(small="reports/pp8/leaderboard.json"))`.

    Attributes:
        small: where the gain was found: the `leaderboard.json` or `gate.json` of the small cell, or
            one of the sweep's `config_tags`, whose cell is then measured first.
        least: share of the gain that must be here for CARRIES; with less it is LOST.
        blocks: of this cell at most, and of a small cell that is measured.
        block_baselines: baselines in each of them.
        key: what tells this study from the last one: trials of another key are not used.
    """

    kind: ClassVar[str] = KIND
    small: str
    least: float = 0.5
    blocks: int = 8
    block_baselines: int = 1
    key: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.least < 1:
            raise ConfigError(
                f"carry: least is {self.least}, expected a share of the gain such as 0.5"
            )
        if self.block_baselines < 1 or self.blocks < 1:
            raise ConfigError(
                f"carry: {self.blocks} blocks with {self.block_baselines} baselines each, expected "
                "1 or more"
            )

    def study(self, asked: Asked) -> CarryStudy:
        """Return the study of the selected profiles, of all where no test selects one.

        Raises:
            ConfigError: there is no such small cell or report, it is this cell, it shows no gain of
                a profile, or the budget is too small.
        """
        profiles = tuple(
            each for each in asked.profiles if not asked.selected or each.id in asked.selected
        )
        small = asked.variants.get(self.small)
        return CarryStudy(
            cell=asked.cell,
            profiles=profiles,
            gate=Gate(blocks=self.blocks, block_baselines=self.block_baselines, key=self.key),
            small=SmallCell(cell=small, digest=small.digest) if small else self._read(asked),
            least=self.least,
            budget=asked.budget,
            seed=asked.seed,
            loss_tolerance=asked.loss_tolerance,
        )

    def _read(self, asked: Asked) -> SmallCell:
        """Return the small cell of a report, with its verdicts on all profiles."""
        if not self.small.endswith(".json"):
            raise ConfigError(
                f"carry: small is {self.small!r}, expected one of the sweep's config_tags "
                f"({', '.join(asked.variants) or 'it has none'}) or the leaderboard.json of the "
                "cell where the gain was found"
            )
        report = asked.read_report(self.small)
        if report.cell.protocol.scored_by != asked.cell.protocol.scored_by:
            raise ConfigError(
                f"carry: {self.small} is scored by {report.cell.protocol.metric!r}, this cell by "
                f"{asked.cell.protocol.metric!r}: their changes do not compare"
            )
        if not report.conclusion.complete:
            raise ConfigError(f"carry: the sweep of {self.small} is not over; finish it first")
        known = {each.id: each for each in report.profiles}
        found = []
        for each in asked.profiles:
            own = next((e.id for e in known.values() if e.same_as(each.shown)), None)
            if own is None:
                raise ConfigError(
                    f"carry: {self.small} has no profile with the settings of {each.id!r} "
                    f"({each.settings_text}); it has {', '.join(known) or 'none'}"
                )
            verdict = report.conclusion.verdict(own)
            if verdict is None or not verdict.wins or None in (verdict.delta, verdict.ci95):
                kind = "not measured" if verdict is None else verdict.kind
                raise ConfigError(
                    f"carry: {own!r} is {kind} in {self.small}, so no gain is shown there that "
                    "could carry; confirm it in that cell first, or leave it out"
                )
            low, high = verdict.ci95 or (0.0, 0.0)
            if not -1 < low <= (verdict.delta or 0.0) <= high < math.inf:
                raise ConfigError(
                    f"carry: the figures of {own!r} in {self.small} do not go together: "
                    f"{verdict.delta} in [{low}, {high}]; take that report as it was written"
                )
            found.append(replace(verdict, arm=each.id))
        return SmallCell(
            cell=report.cell,
            digest=report.digest,
            source=PurePath(self.small).name,
            verdicts=tuple(found),
            sigma=report.conclusion.noise.sigma,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallCell(Record):
    """The cell where a gain was found.

    Attributes:
        cell: as it is measured here; of a report without the values of its secrets.
        digest: its identity.
        source: the name of the report; "": the study measures the cell itself.
        verdicts: of the report on the profiles, by the ids that they have here.
        sigma: noise of its jobs by the report; None is unknown.
    """

    cell: Cell
    digest: str
    source: str = ""
    verdicts: tuple[Verdict, ...] = ()
    sigma: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried(Record):
    """What became of one gain: relative changes, each with the ends of its 95 % interval.

    Attributes:
        arm: the profile.
        word: of its verdict.
        small, full: its change in the small cell and here.
        apart: by how much the change here is the larger one.
    """

    arm: str
    word: str
    small: Change
    full: Change
    apart: Change

    @property
    def three(self) -> tuple[Change, Change, Change]:
        """All of them."""
        return self.small, self.full, self.apart

    @property
    def figures(self) -> Reason:
        """The three changes."""
        return Reason(Why.CARRY_FIGURES, full=self.full, small=self.small, apart=self.apart)


@dataclass(frozen=True, slots=True, kw_only=True)
class CarryRecord(NoiseRecord):
    """What a study of a gain found besides its verdicts.

    Attributes:
        small: how the small cell is called.
        digest: its identity.
        changes: of the profiles that were measured in both cells.
    """

    kind: ClassVar[str] = "carry"
    small: str = ""
    digest: str = ""
    changes: tuple[Carried, ...] = ()

    @property
    def follows(self) -> str:
        """The identity of the small cell."""
        return self.digest

    @property
    def summary(self) -> tuple[Reason, ...]:
        """What became of each gain."""
        return tuple(
            Reason(Why.CARRY_TOLD, arm=each.arm, word=each.word, figures=each.figures)
            for each in self.changes
        )


def told(small: Change, full: Change, *, least: float) -> CarryWord:
    """Return what becomes of a gain by its changes in both cells, log ratios with their intervals.

    Three hypotheses on `full - share * small`: nothing of the gain is here (share 0), `least` of it
    is, all of it is. LOST takes that less than `least` is shown, and no gain is.
    """
    keeps, apart = less(full, small, share=least), less(full, small)
    if full[1] > 0:
        if apart[2] < 0 or keeps[2] < 0:
            return CarryWord.SMALLER
        return CarryWord.CARRIES if keeps[1] > 0 else CarryWord.CANNOT_TELL
    return CarryWord.LOST if max(keeps[2], apart[2]) < 0 else CarryWord.CANNOT_TELL


@dataclass(frozen=True, kw_only=True)
class SmallGate(GateStudy):
    """The blocks of a small cell that is measured, which are those of the study that owns them."""

    owner: str

    @cached_property
    def name(self) -> str:
        """The name of that study."""
        return self.owner

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """All that it plans, in order; lists of jobs tell them by their stage."""
        planned = super().trials
        return tuple(replace(each, stage=SMALL) for each in planned)


@dataclass(frozen=True, kw_only=True)
class CarryStudy(GateStudy):
    """One study of gains; its cell is the one that costs.

    Attributes:
        small: the cell where they were found.
        least: share of a gain that must be here.
    """

    traits: ClassVar[Traits] = Traits(aim=Aim.GATES, compares_settings=True)
    small: SmallCell
    least: float = 0.5

    def __post_init__(self) -> None:
        where = f"the study of gains of {self.cell.label}"
        check_unique(self.profiles, where=where)
        if not self.profiles:
            raise ConfigError(f"{where} has no profile; name the winners of the small cell")
        if self.small.digest == self.cell.digest:
            raise ConfigError(
                f"{where}: the small cell is this very cell, so there is nothing to carry; name "
                "another cell's report or config tag"
            )
        if self.design.blocks < self.least_blocks:
            raise ConfigError(
                f"{where}: {self.design.blocks} blocks leave {max(self.design.df, 0)} degrees of "
                f"freedom, {MIN_DF} are needed; say blocks={self.least_blocks} or more"
            )
        jobs = self.design.trials * len(self.cells)
        if jobs > self.budget:
            raise ConfigError(
                f"{where} takes {jobs} jobs at most, the budget is {self.budget}; say "
                f"--xlatune-budget {jobs}, or fewer blocks"
            )

    @property
    def least_blocks(self) -> int:
        """The blocks of a first look."""
        arms, beside = self.design.arms, self.design.baselines
        return next(n for n in range(2, 9) if design_df(arms, beside, n) >= MIN_DF)

    @cached_property
    def looks(self) -> tuple[int, ...]:
        """After how many blocks it looks: half of them, and all."""
        most = self.design.blocks
        return tuple(dict.fromkeys((max(self.least_blocks, math.ceil(most / LOOKS)), most)))

    @cached_property
    def name(self) -> str:
        """The study's word, and which one it is: the trials are the same by whichever report."""
        settings = sorted([each.id, each.settings_text] for each in self.profiles)
        beside = "" if self.small.source else self.small.digest
        layout = [self.design.blocks, self.design.baselines, self.seed]
        return name_of(KIND, settings, self.gate.key, layout, beside)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The one that costs, then the small one where that is measured."""
        return (self.cell,) if self.small.source else (self.cell, self.small.cell)

    @cached_property
    def in_small(self) -> SmallGate | None:
        """The gate of the small cell; None where a report has its verdicts."""
        if self.small.source:
            return None
        return SmallGate(
            owner=self.name,
            cell=self.small.cell,
            profiles=self.profiles,
            gate=self.gate,
            budget=self.budget,
            seed=self.seed,
            loss_tolerance=self.loss_tolerance,
        )

    def place(self, trial: Trial) -> Reason | None:
        """Return where a trial of the small cell stands."""
        return Reason(Why.CARRY_PLACE, block=trial.block) if trial.stage == SMALL else None

    def outline(self, history: History) -> tuple[Reason, ...]:
        """Return what a plan says of it: its trials, and how many would tell."""
        del history
        design, small = self.design, self.small
        label, source, known = small.cell.label, small.source, small.verdicts if small.sigma else ()
        return (
            Reason(
                Why.CARRY_PLAN,
                trials=design.trials,
                blocks=design.blocks,
                profiles=design.arms,
                baselines=design.baselines,
                first=self.looks[0],
            ),
            Reason(Why.CARRY_TAKES_SMALL, label=label, source=source)
            if source
            else Reason(Why.CARRY_MEASURES_SMALL, label=label, trials=design.trials),
            *(
                self.blocks_for(each.arm, gain, small.sigma or 0.0)
                for each in known
                if (gain := change_in(each, family=design.arms)) is not None
            ),
        )

    def blocks_for(self, arm: str, gain: Change, sigma: float) -> Reason:
        """Say how many blocks tell that a gain carries, at a noise of a job."""
        blocks = carrying(gain, self.design, sigma=sigma, least=self.least)
        if blocks is None:
            return Reason(Why.CARRY_UNTOLD, arm=arm, sigma=sigma)
        whole = relative(gain[0])
        return Reason(Why.CARRY_NEEDS, arm=arm, sigma=sigma, blocks=blocks, gain=whole)

    def begin(self, history: History) -> CarryWalk:
        """Return the walk before the first block."""
        in_small = None
        if self.in_small is not None:  # of its own trials alone, so that it is remembered
            own = tuple(each for each in history if each.trial.stage == SMALL)
            in_small = self.in_small.walked(own)
        return CarryWalk(self, self.past_of(history, (self.cell,)), in_small)


class SeenGain(NamedTuple):
    """What the last look at a profile shows."""

    word: CarryWord
    found: Comparison | NoComparison
    doubts: tuple[Reason, ...] = ()  # why it must not tell
    carried: Carried | None = None  # where it was compared in both cells


class CarryWalk(GateWalk):
    """The blocks of the small cell, if any, then those of this one, look by look.

    Attributes:
        gains: profile -> its gain in the small cell, where one is shown.
        seen: profile -> the last look at it.
    """

    study: CarryStudy

    def __init__(self, study: CarryStudy, past: Past, in_small: GateWalk | None) -> None:
        super().__init__(study, past)
        self.in_small = in_small
        self.gains: dict[str, Change] = {}
        self.seen: dict[str, SeenGain] = {}
        self.family = len(study.profiles)

    def result(self, trial: Trial) -> TrialResult | None:
        """Return the result of a trial so far, by the past of its cell."""
        if self.in_small is not None and trial.stage == SMALL:
            return self.in_small.result(trial)
        return self.past.of(trial)

    def walk(self) -> None:
        """Measure the small cell, then look twice at the profiles that gain there."""
        study, after = self.study, 0
        if self.in_small is not None:
            self.run(self.in_small.planned, later=study.design.trials)
        for each in study.profiles:
            there = self._in_small(each.id)
            gain = change_in(there, family=self.family) if there and there.wins else None
            if gain is not None:
                self.gains[each.id] = gain
        for last in study.looks:
            arms = [name for name in self.gains if self._is_open(name)]
            if not arms:
                return
            wanted = {*arms, BASELINE_ID}
            trials = [t for t in study.trials if after < t.block <= last and t.arm in wanted]
            self.run(trials, later=len(wanted) * (study.design.blocks - last))
            fit, after = fitted(self.past.scored_in_blocks(until=last)), last
            for name in arms:
                found = compared(fit, name, family=self.family, alpha=SWEEP_ALPHA)
                self.seen[name] = self._look(name, found)

    def _is_open(self, arm: str) -> bool:
        """Whether an arm can run, and no look has told what becomes of its gain."""
        is_told = arm in self.seen and self.seen[arm].word is not CarryWord.CANNOT_TELL
        return not is_told and arm not in self.past.dropped

    def _in_small(self, arm: str) -> Verdict | None:
        """Return the verdict of the small cell on an arm; None where there is none yet."""
        if self.in_small is not None:
            return self.in_small.verdict(arm)
        return next((each for each in self.study.small.verdicts if each.arm == arm), None)

    def _look(self, arm: str, found: Comparison | NoComparison) -> SeenGain:
        """Return what blocks show of the gain of an arm, unless its runs forbid to tell."""
        if isinstance(found, NoComparison):
            return SeenGain(CarryWord.CANNOT_TELL, found)
        small, full = self.gains[arm], change_of(found, family=self.family)
        trials, beside = self.past.confirms_of(arm), self.past.confirms_of(BASELINE_ID)
        word, least = told(small, full, least=self.study.least), self.study.least
        doubts = [survivor_veto(trials, beside)]
        if word.kind is VerdictKind.FASTER:
            kept = less(full, small, share=least)[1]
            spare = kept if word is CarryWord.CARRIES else full[1]
            doubts.append(straggler_veto(found, trials, beside, spare=spare))
        shown = with_effect(Verdict(arm=arm, kind=VerdictKind.INCONCLUSIVE), trials)
        if shown.effect is Effect.NOT_SEEN:  # the small cell showed that it acts, if it arrives
            doubts.append(Reason(Why.NOTHING_SHOWS, names=shown.unproved, effect=shown.effect))
        forbids = tuple(filter(None, doubts))
        word = CarryWord.CANNOT_TELL if forbids else word
        three = {"small": small, "full": full, "apart": less(full, small)}
        changes = {name: _relative(each) for name, each in three.items()}
        return SeenGain(word, found, forbids, Carried(arm=arm, word=str(word), **changes))

    def verdict(self, profile_id: str) -> Verdict:
        """Return the verdict on a profile: that of the small cell where no gain is shown there."""
        there = self._in_small(profile_id) if self.is_over else None
        if there is None or profile_id in self.gains:
            return super().verdict(profile_id)
        why = [Reason(Why.CARRY_OF_SMALL, why=each) for each in there.reasons[:1]]
        if there.kind is VerdictKind.INVALID:
            return replace(there, reasons=tuple(why), n=0)
        none = Verdict(arm=profile_id, kind=there.kind, job_ids=there.job_ids)
        if there.delta is not None and there.ci95 is not None:
            why = [Reason(Why.CARRY_NO_GAIN, small=(there.delta, *there.ci95)), *why]
        return CarryWord.CANNOT_TELL.say(none, *why)

    def judged(self, base: Verdict, trials: Sequence[TrialResult]) -> Verdict:
        """Return what becomes of the gain of a profile that was measured and is valid."""
        word, found, doubts, carried = self.seen[base.arm]
        # the small cell showed that its settings reach the trainer
        against = Reason(Why.ARM, arm=BASELINE_ID)
        base = replace(base, lost=lost_runs(trials), unproved=(), against=against)
        if isinstance(found, NoComparison) or carried is None:
            why = found.reason if isinstance(found, NoComparison) else None
            return word.say(base, Reason(Why.CANNOT_TELL_FOR, why=why))
        reasons = [*(doubts or (Reason(_SAID[word], least=self.study.least),)), carried.figures]
        if word is CarryWord.LOST and found.ci95[1] < 0:
            reasons.append(Reason(Why.CARRY_HARMS))
        if word is CarryWord.CANNOT_TELL and not doubts:
            reasons.append(self.study.blocks_for(base.arm, self.gains[base.arm], found.sigma))
        decided = with_comparison(base, found, kind=base.kind, reasons=base.reasons)
        method = Reason(Why.CARRY_METHOD, looks=len(self.study.looks), method=found.method)
        return word.say(replace(decided, method=method), *reasons)

    def conclusion(self) -> Conclusion:
        """Return the verdicts in declared order, with the changes that they rest on."""
        found = conclusion(self)
        record = CarryRecord(
            sigma=found.noise.sigma,
            mde80=found.noise.mde80,
            small=self.study.small.cell.label,
            digest=self.study.small.digest,
            changes=tuple(each.carried for each in self.seen.values() if each.carried),
        )
        notes = tuple(each for each in found.notes if each.kind is not Why.GATE_LAYOUT)
        return replace(found, record=record, notes=notes)


_SAID = {
    CarryWord.CARRIES: Why.CARRIES,
    CarryWord.SMALLER: Why.CARRIES_SMALLER,
    CarryWord.LOST: Why.CARRY_LOST,
    CarryWord.CANNOT_TELL: Why.CARRY_OPEN,
}


def _relative(found: Change) -> Change:
    middle, low, high = map(relative, found)
    return middle, low, high
