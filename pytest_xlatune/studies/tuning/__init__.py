"""Which of these profiles makes the cell faster: screen once, confirm on fresh blocks, conclude.

Every profile is measured once, in random order among spread baselines; that ranks. On many node
slots the best run a second time. The best few enter a block with baselines inside, the best of
these go on to further blocks, each in a random order of its own; only those that stay to the end
get a verdict. Pure and deterministic: every process with the same study and history proposes and
concludes the same. This module must not know of executors, ledgers, clocks or logs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import ClassVar

from pytest_xlatune.catalog.context import Context
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.hosts import compress
from pytest_xlatune.model.profile import BASELINE_ID, NO_ENV_ID, Profile, check_unique
from pytest_xlatune.model.reason import Reason
from pytest_xlatune.model.record import LATER, Json
from pytest_xlatune.model.result import MIN_TRIALS, Conclusion, TrialResult, TrialStatus, Verdict
from pytest_xlatune.model.trial import Arm, Trial
from pytest_xlatune.stats.design import (
    SECOND_RUNS,
    Plan,
    Refusal,
    plan,
    screen_slots,
)
from pytest_xlatune.studies import (
    NOT_YET,
    Answer,
    Ask,
    History,
    OnNodeFailure,
    Policy,
    Question,
    Traits,
    remembered,
)
from pytest_xlatune.studies.trials import (
    AGAIN,
    ALIAS,
    STUDY,
    Orders,
    read,
    wave_baselines,
    wave_order,
)
from pytest_xlatune.studies.tuning._conclude import (
    Basis,
    JobNoise,
    conclusion,
)
from pytest_xlatune.studies.tuning._filling import evidence_of, kinds_of
from pytest_xlatune.studies.tuning._finalists import (
    FinalistChoice,
    beside_pair,
    pending_blocks,
)
from pytest_xlatune.studies.tuning._outline import capacity, check_layout, held
from pytest_xlatune.studies.tuning._slots import (
    Slots,
    check_slots,
    follow,
    notes_on_slots,
)
from pytest_xlatune.studies.tuning._stages import (
    Confirmation,
    Ranking,
    confirm,
    design,
    screen,
)
from pytest_xlatune.studies.tuning._waves import (
    Declaration,
    SweepMoment,
    check_rules,
    pending_screen,
    wanted,
)
from pytest_xlatune.studies.tuning.derived import (
    Around,
    Crossed,
    DerivedRule,
    Singles,
    Stacks,
)
from pytest_xlatune.studies.verdicts import Losses, OneCell, best, deployed, named, told

_CLEARLY = 1.5  # times the spread of a screen, which the noise hardly exceeds
_EVIDENCE_WAVE = "wave1_5"  # where an evidence run stands that a wave waits for


@dataclass(frozen=True, kw_only=True)
class TuningStudy(OneCell):
    """A sweep of profiles over one cell.

    Attributes:
        cell: held fixed.
        profiles: all declared profiles of the sweep in declared order, the baseline left out.
        stacks, around, crossed: rules of the waves that are filled from what earlier ones found.
        singles: rules of the waves that are filled by what an evidence run of the baseline shows.
        context: what profiles are applied to, for the rules of the catalog; None asks none of them.
        selected: ids explored in this run, and names of slots of derived waves; None is all.
            Filters, never reorders. A slot brings the waves along that its own reads.
        confirm: whether this run goes on to confirmation.
        budget: jobs of the whole sweep, over all runs of it.
        seed: of the random orders.
        sigma_prior: standard deviation of a job's score, from a calibration; None is unknown.
        screen_baselines: in each wave's queue; 0 is as planned from the budget.
        finalists, blocks, block_baselines: of the confirmation; 0 is as planned from the budget.
        loss_tolerance: relative distance from the baseline's loss that makes a trial invalid.
        slots: the nodes of each node slot, the cell's own first; () is the cell's alone.
        pair: "on" has `baseline-no-env` in every block, whatever its screen said.
    """

    traits: ClassVar[Traits] = Traits(compares_settings=True, is_deployed=True, has_slots=True)
    gone: ClassVar[Mapping[str, Json]] = {
        "early_end": "off",
        "equivalence": 0.01,
        "second_blocks": 0,
    }
    cell: Cell
    profiles: tuple[Profile, ...]
    stacks: tuple[Stacks, ...] = ()
    around: tuple[Around, ...] = ()
    crossed: tuple[Crossed, ...] = field(default=(), metadata=LATER)
    singles: tuple[Singles, ...] = ()
    context: Context | None = None
    selected: frozenset[str] | None = None
    confirm: bool = True
    budget: int = 50
    seed: int = 0
    sigma_prior: float | None = None
    screen_baselines: int = 0
    finalists: int = 0
    blocks: int = 0
    block_baselines: int = 0
    loss_tolerance: float = 0.02
    slots: tuple[tuple[str, ...], ...] = field(default=(), metadata=LATER)
    pair: str = field(default="off", metadata=LATER)

    def __post_init__(self) -> None:
        where = f"the sweep of {self.cell.label}"
        check_slots(self.slots, cell=self.cell, where=where)
        check_unique(self.profiles, where=where)
        if any(profile.id == ALIAS.id for profile in self.profiles):
            raise ConfigError(f"{where}: the id {ALIAS.id!r} belongs to the A/A control arm")
        # on one slot such a wave changed which profiles became finalists
        if any(each.wave == AGAIN for each in (*self.profiles, *self.rules)):
            raise ConfigError(
                f"{where}: a wave is called {AGAIN!r}, which is the word for second runs of "
                "the screen; give it another name, such as 'wave2'"
            )
        check_rules(self.rules, self.profiles, selected=self.selected, where=where)
        screened = self._count + sum(self._baselines.values())
        check_layout(self.layout, self._count, screened, budget=self.budget, where=where)

    @property
    def name(self) -> str:
        """The study's word."""
        return STUDY

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """The cell on each of its node slots."""
        return tuple(replace(self.cell, nodelist=nodes) for nodes in self.slots) or (self.cell,)

    @cached_property
    def _nodes(self) -> Mapping[str, str]:
        return {each.digest: compress(each.nodelist) for each in self.cells}

    @cached_property
    def rules(self) -> tuple[DerivedRule, ...]:
        """The rules of the derived waves, in the order the waves run."""
        rules: tuple[DerivedRule, ...] = (
            *self.singles,
            *self.stacks,
            *self.around,
            *self.crossed,
        )
        return tuple(sorted(rules, key=lambda rule: wave_order(rule.wave)))

    @cached_property
    def layout(self) -> Plan | Refusal:
        """How the budget is laid out before anything is measured, or why it only ranks."""
        return self._laid_out(self._count, self.budget, self.sigma_prior)

    def _laid_out(
        self,
        count: int,
        budget: int,
        sigma: float | None,
        *,
        baselines: int = 0,
        may_repeat: bool = True,
    ) -> Plan | Refusal:
        """Lay out so many profiles in so many jobs; `baselines` of the screen, where they ran."""
        has_pair = self._no_env is not None and self.pair == "on"
        return beside_pair(
            lambda jobs: self._without_pair(
                count, jobs, sigma, baselines=baselines, may_repeat=may_repeat
            ),
            budget,
            has_pair=has_pair,
        )

    @cached_property
    def _no_env(self) -> Profile | None:
        return next((each for each in self.profiles if each.id == NO_ENV_ID), None)

    def _without_pair(
        self, count: int, budget: int, sigma: float | None, *, baselines: int, may_repeat: bool
    ) -> Plan | Refusal:
        in_screen = baselines or self.screen_baselines * len(self._waves)
        planned = plan(
            count,
            budget,
            screen_baselines=in_screen,
            waves=len(self._waves),
            sigma=sigma,
            slots=len(self.cells),
            may_repeat=may_repeat and not self._is_stated,
        )
        if not self._is_stated:
            return planned
        start = (
            planned
            if isinstance(planned, Plan)
            else plan(max(count, 1), count + 40, slots=len(self.cells), may_repeat=False)
        )
        if isinstance(start, Refusal):
            return start
        widths = self._stated_widths(start.widths, count)
        beside = self.block_baselines or start.block_baselines
        screened = count + (in_screen or start.screen_baselines)
        return replace(
            start,
            profiles=count,
            screen_baselines=in_screen or start.screen_baselines,
            widths=widths,
            block_baselines=beside,
            jobs=screened + sum(widths) + len(widths) * beside,
        )

    @property
    def _is_stated(self) -> bool:
        """Whether the sweep states how it confirms, or a part of it."""
        return bool(self.finalists or self.blocks or self.block_baselines)

    def _stated_widths(self, planned: tuple[int, ...], count: int) -> tuple[int, ...]:
        """Return the arms of each block where the sweep states finalists or blocks itself."""
        blocks = self.blocks or len(planned)
        if self.finalists:
            return (min(self.finalists, max(count, 1)),) * blocks
        return (planned + planned[-1:] * blocks)[:blocks]

    def arms(self, history: History) -> tuple[Arm, ...]:
        """Return the baseline, the declared profiles, and those that waves derived."""
        profiles = self._known(history).moment.profiles.values()
        return (deployed(self.cell), *(deployed(self.cell, each) for each in profiles))

    def slots_of(self, history: History) -> Mapping[str, Profile]:
        """Return the profile of each slot of a derived wave that is filled, by the slot's name."""
        return self._known(history).moment.slots

    @property
    def policy(self) -> Policy:
        """What it wants of its campaign."""
        return Policy(
            reads_evidence=bool(self.rules),
            compiles_first=True,
            on_node_failure=OnNodeFailure.VERDICT if self.slots else OnNodeFailure.STOP,
            derives=any(not isinstance(rule, Singles) for rule in self.rules),
        )

    def whole(self) -> TuningStudy:
        """Return the study of all profiles, confirmation included."""
        return self._whole

    @cached_property
    def _whole(self) -> TuningStudy:
        if self.selected is None and self.confirm:
            return self
        return replace(self, selected=None, confirm=True)

    def as_begun(self, declared: Mapping[str, Json]) -> TuningStudy:
        """Return the study with the job noise that its session began with."""
        own, noise = self.to_json(), {"sigma_prior": declared.get("sigma_prior")}
        if own | noise == own:
            return self
        # a declaration is kept without its secrets: all but the noise stays our own
        return replace(self, sigma_prior=self.from_json(own | noise).sigma_prior)

    def filled(self, history: History) -> tuple[Reason, ...]:
        """Return how the slots of derived waves are filled."""
        return self._known(history).moment.told

    def foreseen(self, history: History) -> TuningStudy:
        """Return what this study becomes where an evidence run that it awaits says nothing."""
        if self._known(history).moment.evidence is None:
            return self
        return replace(self, singles=tuple(replace(each, evidence=False) for each in self.singles))

    def ahead(self, history: History) -> tuple[Trial, ...]:
        """Return the trials that are proposed, and those that can be named and wait for others.

        Those behind an evidence run are foreseen as if it said nothing. Profiles that the sweep
        declares in a wave behind a derived one wait for that.
        """
        ahead = self.foreseen(history)
        own = (*self.propose(history), *ahead.propose(history), *ahead.waiting(history))
        return tuple({each.id: each for each in own}.values())

    def waiting(self, history: History) -> tuple[Trial, ...]:
        """Return the trials of declared profiles whose wave is behind one that is still open."""
        known = self._known(history)
        moment = known.moment
        own = {each.id for each in self.profiles} & moment.candidates
        return tuple(
            trial
            for segment in moment.segments[len(moment.plannable) :]
            if any(each.arm in own for each in segment.trials)
            for trial in segment.trials
            if (trial.is_baseline or trial.arm in own) and not known.past.is_final(trial)
        )

    def outline(self, history: History) -> tuple[Reason, ...]:
        """Return what a plan says of the sweep: trials, slots, and the smallest effect it finds."""
        said = self.foreseen(history).filled(history)
        evidence = evidence_of(history, self._declaration.evidence_trial)
        known = held(self.rules, kinds_of(evidence)) if self.context is not None else ()
        outlined = capacity(
            self.cells,
            self.layout,
            self.rules,
            screened=sum(trial.is_screened for trial in self.ahead(history)),
            sigma=self.sigma_prior,
            budget=self.budget,
            at_most=self.budget if self._may_spare else 0,
            is_stated=self._is_stated,
        )
        return (*outlined, *said, *known)

    def answer(self, history: History, question: Question) -> Answer:
        """Return what a waiting test asks, the same in the run that measures and in every later.

        The verdicts of a wave are those of the screen, taken when the wave is over; those of the
        confirmation are taken when everything is over.
        """
        if question.about is Ask.PROVEN:
            whole = self.whole()
            return best(whole.conclude(history), whole.arms(history))
        if self._lacks(history, question):
            return NOT_YET
        match question.about:
            case Ask.REFERENCE:
                wave = self._reference_wave(history)
                found = told(self._screened(history, wave, BASELINE_ID))
            case Ask.SCREENED:
                found = told(self._screened(history, question.wave, question.name))
            case Ask.SLOT:
                filled = self.slots_of(history).get(question.name)
                found = named(filled.id if filled else "", self.arms(history))
            case Ask.RANKED:
                arms = self.arms(history)
                entered = self.conclude(history).tuning.finalists
                # by the sweep file: a rank may change with the next trial, and a test's name stays
                pair = {NO_ENV_ID} if self.pair == "on" else set()
                own = [each.id for each in arms if each.id in {*entered} - pair][question.number :]
                found = named(own[0] if own else "", arms)
            case Ask.BEST:
                found = best(self.conclude(history), self.arms(history))
            case _:
                found = told(self.conclude(history).verdict(question.name))
        return found

    def _lacks(self, history: History, question: Question) -> bool:
        """Whether trials are still to come that the answer rests on."""
        pending = self.propose(history)
        if question.about is Ask.REFERENCE:
            wave = self._reference_wave(history)
            return not wave or any(_is_by(wave, trial) for trial in pending)
        if question.about in (Ask.SCREENED, Ask.SLOT):
            return any(_is_by(question.wave, trial) for trial in pending)
        return bool(pending)

    def _reference_wave(self, history: History) -> str:
        """Return the wave of this run up to which two baselines are planned, or its last one.

        A small wave has one of its own. "" while an evidence run, or results, have to open it.
        """
        moment = self._known(history).moment
        found = [segment.wave for segment in wanted(moment)]
        if not found:
            return "" if moment.opens else moment.segments[0].wave
        planned = accumulate(self._baselines.get(wave, 1) for wave in found)
        enough = next((w for w, n in zip(found, planned, strict=True) if n >= MIN_TRIALS), "")
        return enough or ("" if moment.opens else found[-1])

    @remembered
    def _by_waves(self, _: History) -> dict[str, tuple[TrialResult, ...]]:
        """Return what was measured once up to the end of each wave that was asked for."""
        return {}

    def _screened(self, history: History, wave: str, arm: str) -> Verdict | None:
        """Return the verdict from what was measured once, up to the end of a wave or of all."""
        parts = self._by_waves(history)
        if wave not in parts:
            parts[wave] = tuple(each for each in history if _is_by(wave, each.trial))
        until = self.conclude(parts[wave]).verdict(arm)
        # the line of the screen goes through all waves: a later one moves what a report says, and
        # so do second runs
        is_last = not wave or wave_order(wave) >= max(map(wave_order, self._waves))
        is_last = is_last and not (isinstance(self.layout, Plan) and self.layout.again)
        if until is None or is_last or not until.n:
            return until
        return replace(until, up_to=wave)

    def left(self, history: History) -> int:
        """Return how many trials are still to come, with the blocks that are not planned yet."""
        known = self._known(history)
        moment, past = known.moment, known.past
        pending = self.propose(history)
        left = len(pending)
        if moment.opens:
            ready = {segment.wave for segment in moment.plannable}
            later = sum(
                (trial.is_baseline or trial.arm in moment.candidates) and not past.is_final(trial)
                for segment in moment.segments
                if segment.wave not in ready
                for trial in segment.trials
            )
            left += later + moment.unfilled
        if not self.confirm:
            return left
        second = self._choice(known).second_runs()
        if known.pending or moment.opens or second:
            layout = self.layout
            if isinstance(layout, Refusal) or any(each.trial.block for each in history):
                return left
            more = layout.in_blocks + (layout.blocks if layout.pair else 0)
            return left + more + (0 if second or known.second else layout.again)
        confirmation = self._confirmation(history)
        return left + (confirmation.left if confirmation is not None else 0)

    @property
    def _may_spare(self) -> bool:
        """Whether jobs that are left may become spare blocks: no blocks are stated."""
        return not (self.finalists or self.blocks)

    def at_most(self, history: History) -> int:
        """Return how many trials may still come: what the budget has left, where blocks are added.

        No block is added any more once every one is over and none was proposed.
        """
        left = self.left(history)
        if not (left and self.confirm and self._may_spare) or isinstance(self.layout, Refusal):
            return left
        confirmation = self._confirmation(history) if not self._is_exploring(history) else None
        if confirmation is not None and not confirmation.may_grow:
            return left
        known = self._known(history)
        past, evidence = known.past, known.moment.evidence
        spent = sum(
            each.status.is_final and each.not_run is None
            for each in (*past.screen.values(), *past.confirm.values())
        )
        return max(left, self.budget - spent + (evidence is not None))

    def why_more(self, history: History) -> Reason | None:
        """Return which spare block is planned, and for which profiles."""
        if not self.confirm or self._is_exploring(history):
            return None
        confirmation = self._confirmation(history)
        return confirmation.added if confirmation is not None else None

    def _is_exploring(self, history: History) -> bool:
        """Whether the screen is not over, so that no block can be planned."""
        known = self._known(history)
        return bool(known.pending or known.moment.opens or self._choice(known).second_runs())

    def rounds(self, history: History) -> int:
        """Return how many of the trials that are left follow one another; others run beside."""
        return follow(self, history)

    @remembered
    def propose(self, history: History) -> tuple[Trial, ...]:
        """Return the trials to run next: what the screen lacks, then what the blocks lack."""
        known = self._known(history)
        if known.pending or not self.confirm:
            return known.pending
        return self._choice(known).second_runs() or self._pending_blocks(known, history)

    @remembered
    def conclude(self, history: History) -> Conclusion:
        """Return what follows from any part of the sweep."""
        known = self._known(history)
        moment, past = known.moment, known.past
        is_screened = not known.pending
        # a run that explores only has no finalists, unless an earlier one sent some
        is_confirming = bool(past.confirm) or (self.confirm and is_screened)
        confirmation = self._confirmation(history) if is_confirming else None
        arms = self._choice(known).finalists() if is_confirming else ()
        pending = self.confirm and (
            self._choice(known).second_runs() or self._pending_blocks(known, history)
        )
        return conclusion(
            Basis(
                declared=moment.profiles,
                selected=moment.candidates,
                repeats=moment.repeats,
                past=past,
                screen=known.ranking,
                confirmation=confirmation,
                finalists=(
                    *(arm.id for arm in arms if arm.id != ALIAS.id),
                    *([NO_ENV_ID] if confirmation is not None and confirmation.has_pair else []),
                ),
                late=self._choice(known).late(),
                layout=self._blocks(known),
                noise=self._noise(known.ranking),
                losses=self._losses,
                derived=(
                    *moment.told,
                    *(notes_on_slots(past, known.slots, self._nodes) if is_screened else ()),
                    *self._choice(known).undecided_pair(),
                ),
                is_screened=is_screened,
                is_complete=is_screened and not pending,
            )
        )

    @cached_property
    def _orders(self) -> Orders:
        slots = tuple(self._nodes) if self.slots else ()
        return Orders(cell=self.cell, seed=self.seed, slots=slots)

    @cached_property
    def _declaration(self) -> Declaration:
        return Declaration(
            orders=self._orders,
            profiles=self.profiles,
            rules=self.rules,
            context=self.context,
            selected=self.selected,
            baselines=self._baselines,
            sigma=JobNoise(known=self.sigma_prior).value,
            losses=self._losses,
        )

    @property
    def _count(self) -> int:
        """Profiles that are declared, and slots for derived ones."""
        return len(self.profiles) + sum(rule.slots for rule in self.rules)

    @cached_property
    def _waves(self) -> dict[str, int]:
        """Waves in the order they run -> their profiles, slots of derived ones included."""
        rules = ((rule.wave, rule.slots) for rule in self.rules)
        own = [*((each.wave, 1) for each in self.profiles), *rules]
        waves = sorted({wave for wave, _ in own} or {"wave1"}, key=wave_order)
        return {wave: sum(count for other, count in own if other == wave) for wave in waves}

    @cached_property
    def _baselines(self) -> dict[str, int]:
        """Baselines in the queue of each wave."""
        if self.screen_baselines:
            return dict.fromkeys(self._waves, self.screen_baselines)
        layout = self.layout
        if isinstance(layout, Plan):
            planned = layout.screen_baselines
        else:
            most = max(5, screen_slots(len(self.cells), self._count))
            planned = max(1, min(most, self.budget - self._count))
        return wave_baselines(self._waves, planned)

    @remembered
    def _known(self, history: History) -> SweepMoment:
        names = tuple(self._nodes)
        slots = Slots(names=names, seed=self.seed, history=tuple(history)) if self.slots else None
        standing = history if slots is None else slots.standing
        moment = self._declaration.at(standing)
        if slots is not None:
            moment = replace(moment, segments=slots.dealt(moment.segments, at_most=self._at_most))
        past = read(
            standing,
            protocols=self._orders.protocols,
            declared=moment.profiles,
            slots=slots is not None,
        )
        first = screen(past, moment.segments)
        is_twice = any(key.stage == AGAIN for key in past.screen)
        return SweepMoment(
            slots=slots,
            moment=moment,
            past=past,
            first=first,
            ranking=screen(past, moment.segments, has_second=True) if is_twice else first,
            pending=pending_screen(moment, past) if slots is None or slots.alive else (),
        )

    @property
    def _at_most(self) -> int:
        """On how many node slots the screen lies."""
        return screen_slots(len(self.cells), self._count)

    def _choice(self, known: SweepMoment) -> FinalistChoice:
        return FinalistChoice(
            known=known,
            layout=self._blocks(known),
            orders=self._orders,
            losses=self._losses,
            sigma=self._noise(known.ranking).value,
            at_most=self._at_most,
            pair=self._no_env,
        )

    def _pending_blocks(self, known: SweepMoment, history: History) -> tuple[Trial, ...]:
        if known.slots is not None and not known.slots.alive:
            return ()  # no node takes a trial
        return pending_blocks(
            known.past, self._confirmation(history), candidates=known.moment.candidates
        )

    @remembered
    def _confirmation(self, history: History) -> Confirmation | None:
        known = self._known(history)
        layout = self._blocks(known)
        arms = self._choice(known).finalists()
        if isinstance(layout, Refusal) or not arms:
            return None
        return confirm(
            known.past,
            ranking=known.ranking,
            first=design(known.past, layout, arms=len(arms)),
            pair=self._choice(known).pair_in_blocks(),
            arms=arms,
            orders=self._orders,
            losses=self._losses,
            others=self._others(known),
            lay=tuple if known.slots is None else known.slots.lay,
            # a sweep that states its blocks has no other
            jobs=0 if self.finalists or self.blocks else self.budget - known.screened_jobs,
        )

    def _others(self, known: SweepMoment) -> Mapping[str, Profile]:
        """Return the profiles that are neither invalid nor the baseline under another name."""
        moment, past = known.moment, known.past
        return {
            each: profile
            for each, profile in moment.profiles.items()
            if each in moment.candidates
            and moment.repeats.get(each) != BASELINE_ID
            and not any(one.status is TrialStatus.DROPPED for one in past.screens_of(each))
            and each not in past.dropped
            and not self._losses.reason(past, each)
        }

    def _blocks(self, known: SweepMoment) -> Plan | Refusal:
        """Return the layout of the blocks: as declared, until the screen is over.

        Jobs of profiles that needed no run, or whose slot stayed empty, go to the finalists.
        """
        if known.pending or known.moment.opens or not isinstance(self.layout, Plan):
            return self.layout
        baselines = sum(trial.is_baseline for queue in known.queues for trial in queue)
        count = known.screened_jobs - len(known.second) - baselines
        sigma = self._seen_noise(known)
        found = self._laid_out(count, self.budget, sigma, baselines=baselines)
        if known.second and not (isinstance(found, Plan) and found.again):
            # a profile came since: second runs go on, and the blocks get the jobs that remain
            again = SECOND_RUNS if self.slots else len(known.second)
            left = self.budget - again
            found = self._laid_out(count, left, sigma, baselines=baselines, may_repeat=False)
            if isinstance(found, Plan):
                return replace(found, again=again, jobs=found.jobs + again)
            return self.layout if known.past.confirm else found
        return found if isinstance(found, Plan) else self.layout

    def _seen_noise(self, known: SweepMoment) -> float | None:
        """Return the job noise to plan blocks with; None where the cell tells none.

        A screen alone must show a quiet cell clearly: by chance its spread is two thirds of the
        noise in one sweep of twelve.
        """
        seen = known.first.spread
        return self.sigma_prior or (None if seen is None else _CLEARLY * seen)

    @property
    def _losses(self) -> Losses:
        return Losses(tolerance=self.loss_tolerance, rule=self.policy.loss)

    def _noise(self, ranking: Ranking) -> JobNoise:
        return JobNoise(known=self.sigma_prior, seen=ranking.sigma)


def _is_by(wave: str, trial: Trial) -> bool:
    """Whether a trial outside blocks belongs to a wave, or to one before, which it may read.

    Second runs belong to none; "" is the last.
    """
    stage = trial.stage if trial.protocol.is_scored else _EVIDENCE_WAVE
    is_of_wave = not trial.block and stage != AGAIN
    return is_of_wave and (not wave or wave_order(stage) <= wave_order(wave))
