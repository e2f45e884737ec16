"""The stages of a tuning sweep: waves of the screen, second runs of its best, blocks that narrow.

On many node slots, and where the budget is large, the best of the screen run once more, and the
mean of both runs ranks them. Blocks are looked at when all that decide are complete and never
before; between them arms are cut, by what was measured until then. Profiles that have trials stay,
whatever is read since. Writes no verdict.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from pytest_xlatune.model.profile import BASELINE_ID, NO_ENV_ID, Profile
from pytest_xlatune.model.reason import Reason, Why
from pytest_xlatune.model.result import TrialResult, VerdictKind, relative
from pytest_xlatune.model.trial import ConfirmDesign, Trial
from pytest_xlatune.stats.blocks import combine
from pytest_xlatune.stats.design import MIN_DF, SECOND_RUNS, SWEEP_ALPHA, Plan, Refusal
from pytest_xlatune.studies import History
from pytest_xlatune.studies.staged import PastWalk, Stages
from pytest_xlatune.studies.trials import AGAIN, ALIAS, fitted, place, wave_order
from pytest_xlatune.studies.tuning._blocks import (
    SPARE,
    Look,
    begun,
    design,
    frozen_arms,
    is_spare,
    look_at,
)
from pytest_xlatune.studies.tuning._plan import JobNoise, TuningPlan, has_profiles
from pytest_xlatune.studies.tuning._recipe import bounds
from pytest_xlatune.studies.tuning._screen import Ranking, Screened, screen
from pytest_xlatune.studies.tuning._slots import (
    Slots,
    derived_runs,
    rounds_of_blocks,
    rounds_of_screen,
)
from pytest_xlatune.studies.tuning._waves import Waves
from pytest_xlatune.studies.tuning.derived import entering

BOUND = 0.02  # a sweep in which nothing can gain more is bounded
FAR = 3.0  # standard deviations below the baselines, which noise hardly explains
_CLEARLY = 1.5  # times the spread of a screen, which the noise hardly exceeds
_EVIDENCE_WAVE = "wave1_5"  # where an evidence run stands that a wave waits for


def is_by(wave: str, trial: Trial) -> bool:
    """Whether a trial outside blocks belongs to a wave, or to one before, which it may read.

    Second runs belong to none; "" is the last.
    """
    stage = trial.stage if trial.protocol.is_scored else _EVIDENCE_WAVE
    is_of_wave = not trial.block and stage != AGAIN
    return is_of_wave and (not wave or wave_order(stage) <= wave_order(wave))


class SweepWalk(PastWalk[TuningPlan]):
    """How far a sweep came, and what each stage hands to the next.

    Attributes:
        history: all results, those on dead node slots included.
        slots: the node slots; None where there is one.
        waves: the profiles that there are, and in which waves they run.
    """

    def __init__(self, study: TuningPlan, history: History) -> None:
        self.history = history
        self._parts: dict[str, tuple[TrialResult, ...]] = {}
        self.slots: Slots | None = None
        if study.slots:
            names = tuple(study.nodes)
            self.slots = Slots(names=names, seed=study.seed, history=tuple(history))
        standing = history if self.slots is None else self.slots.standing
        self.waves = Waves(study, standing, self.slots)
        super().__init__(study, study.read(standing, self.waves.profiles))

    def walk(self) -> None:
        """Run the screen, the second runs of its best, and the blocks."""
        self.run(self.to_screen, later=self._behind_waves)
        if not self.study.confirm:
            return
        self.run(self.second_runs, later=self._blocks_to_come)
        blocks = self.confirmation
        if blocks and self.has_node and self.waves.candidates & {e.arm for e in blocks.planned}:
            self.run(blocks.planned, later=blocks.later)

    @property
    def has_node(self) -> bool:
        """Whether any node slot takes a trial."""
        return self.slots is None or bool(self.slots.alive)

    @cached_property
    def to_screen(self) -> tuple[Trial, ...]:
        """The trials of the selected waves, then the evidence run that others wait for."""
        if not self.has_node:
            return ()
        waves = self.waves
        own = [each for queue in waves.selected for each in queue.trials if waves.is_asked(each)]
        return (*own, *([] if waves.evidence is None else [waves.evidence]))

    @cached_property
    def is_screened(self) -> bool:
        """Whether the screen of this run is over."""
        return all(self.over(each) is not None for each in self.to_screen)

    @cached_property
    def is_ranked(self) -> bool:
        """Whether all of it is, second runs too, so that blocks can be planned."""
        is_over = self.is_screened and not self.waves.opens
        return is_over and all(self.over(each) is not None for each in self.second_runs)

    @property
    def waiting(self) -> tuple[Trial, ...]:
        """The trials of declared profiles whose wave is behind one that is still open."""
        waves = self.waves
        own = {each.id for each in self.study.profiles} & waves.candidates
        return tuple(
            trial
            for queue in waves.queues[len(waves.plannable) :]
            if any(each.arm in own for each in queue.trials)
            for trial in queue.trials
            if (trial.is_baseline or trial.arm in own) and self.over(trial) is None
        )

    def until(self, wave: str) -> tuple[TrialResult, ...]:
        """Return what was measured once, up to the end of a wave; "" is the last."""
        if wave not in self._parts:
            self._parts[wave] = tuple(each for each in self.history if is_by(wave, each.trial))
        return self._parts[wave]

    @property
    def rounds(self) -> int:
        """How many of the trials that are left follow one another, unplanned ones included."""
        layout, slots, later = self.study.layout, len(self.study.cells), self.later
        loads = Counter(each.cell_digest for each in self.pending)
        longest = max(loads.values(), default=0)
        if not later:
            return longest
        if isinstance(layout, Refusal) or any(each.block for each in self.pending):
            return longest + math.ceil(later / slots)
        begun = {each.stage for each in (*self.pending, *(each.trial for each in self.history))}
        runs = derived_runs([rule for rule in self.study.rules if rule.wave not in begun])
        runs += (layout.again,) if later >= layout.in_blocks + layout.again else ()
        of_blocks = rounds_of_blocks(layout, slots) if later >= layout.in_blocks else later
        return longest + rounds_of_screen(runs, layout, slots) + of_blocks

    @property
    def _behind_waves(self) -> int:
        """How many trials follow the waves that can be planned."""
        waves, later = self.waves, 0
        if waves.opens:
            ready = {queue.wave for queue in waves.plannable}
            later = waves.unfilled + sum(
                waves.is_asked(trial) and self.over(trial) is None
                for queue in waves.queues
                if queue.wave not in ready
                for trial in queue.trials
            )
        layout = self.study.layout
        if not self.study.confirm or isinstance(layout, Refusal) or not self._blocks_to_come:
            return later
        return later + self._blocks_to_come + (0 if self.second else layout.again)

    @property
    def _blocks_to_come(self) -> int:
        """How many trials of blocks are likely to follow; 0 where there are some already."""
        layout = self.study.layout
        if isinstance(layout, Refusal) or any(each.trial.block for each in self.history):
            return 0
        return layout.in_blocks + (layout.blocks if layout.pair else 0)

    @cached_property
    def first(self) -> Ranking:
        """What the first runs of the screen say."""
        return screen(self.past, self.waves.queues)

    @cached_property
    def ranking(self) -> Ranking:
        """What all runs of the screen say; the same where none ran twice."""
        return screen(self.past, self.waves.queues, has_second=True) if self.second else self.first

    @cached_property
    def second(self) -> tuple[str, ...]:
        """The profiles that have a second run in the screen."""
        return tuple(sorted(key.arm for key in self.past.screen if key.stage == AGAIN))

    @property
    def noise(self) -> JobNoise:
        """The noise of a job, to plan with."""
        return JobNoise(known=self.study.sigma_prior, seen=self.ranking.sigma)

    @cached_property
    def _queued(self) -> tuple[Trial, ...]:
        """The trials of all waves; the baselines of one that stayed empty are never run."""
        return tuple(
            each for queue in filter(has_profiles, self.waves.queues) for each in queue.trials
        )

    @cached_property
    def screened_jobs(self) -> int:
        """The jobs that the screen took or takes, second runs included."""
        unrun = sum(each.not_run is not None for each in self.of(self._queued))
        return len(self._queued) + len(self.second) - unrun

    @cached_property
    def layout(self) -> Plan | Refusal:
        """The layout of the blocks: as declared, until the screen is over.

        Jobs of profiles that needed no run, or whose slot stayed empty, go to the finalists.
        """
        study, planned = self.study, self.study.layout
        if not self.is_screened or self.waves.opens or not isinstance(planned, Plan):
            return planned
        baselines = sum(trial.is_baseline for trial in self._queued)
        count = self.screened_jobs - len(self.second) - baselines
        # a screen alone must show a quiet cell clearly: by chance its spread is two thirds of the
        # noise in one sweep of twelve
        seen = self.first.spread
        sigma = study.sigma_prior or (None if seen is None else _CLEARLY * seen)
        found = study.laid_out(count, study.budget, sigma, baselines=baselines)
        if self.second and not (isinstance(found, Plan) and found.again):
            # a profile came since: second runs go on, and the blocks get the jobs that remain
            again = SECOND_RUNS if study.slots else len(self.second)
            left = study.budget - again
            found = study.laid_out(count, left, sigma, baselines=baselines, may_repeat=False)
            if isinstance(found, Plan):
                return replace(found, again=again, jobs=found.jobs + again)
            return planned if self.past.confirm else found
        return found if isinstance(found, Plan) else planned

    @cached_property
    def second_runs(self) -> tuple[Trial, ...]:
        """The second runs of the best of the screen; none once there are blocks.

        Those that exist stay, and are filled up by what the first runs say.
        """
        layout, waves = self.layout, self.waves
        if isinstance(layout, Refusal) or not self.has_node:
            return ()
        if not self.is_screened or waves.opens or self.past.confirm:
            return ()
        best = self._best(self.first, most=layout.again)
        if not self.second and len(best) <= layout.finalists:
            return ()
        more = [each for each in best if each not in self.second]
        arms = [*self.second, *more[: max(layout.again - len(self.second), 0)]]
        trials = self.study.orders.again([waves.profiles[each] for each in arms])
        if self.slots is not None:
            trials = self.slots.dealt_again(trials, at_most=self.study.screen_slots)
        return tuple(each for each in trials if each.arm in waves.candidates)

    def _ranks(self, ranking: Ranking) -> Mapping[str, tuple[float, int]]:
        """Return profile -> what it is sorted by: its estimate, and its place among equals."""
        places = {each: at for at, each in enumerate(self.waves.profiles)}
        return {
            each: (-standing.estimate, places[each]) for each, standing in ranking.standings.items()
        }

    def _best(
        self,
        ranking: Ranking,
        *,
        most: int,
        among: Collection[str] = (),
        always: Collection[str] = (),
    ) -> list[str]:
        """Return the first profiles of a ranking that are of interest, `always` or not.

        `among` some of them, or all.
        """
        ranks = self._ranks(ranking)
        own = (each for each in ranks if not among or each in among)
        found = (each for each in own if each in always or self._is_of_interest(each, ranking))
        return entering(sorted(found, key=ranks.__getitem__), most, profiles=self.waves.profiles)

    def _is_of_interest(self, profile_id: str, ranking: Ranking) -> bool:
        """Whether the screen leaves it possible that a profile helps."""
        waves = self.waves
        if profile_id not in waves.candidates or waves.repeats.get(profile_id) == BASELINE_ID:
            return False
        if not self.study.is_sound(self.past, profile_id):
            return False
        if profile_id in self._paired:
            return False  # it is in the blocks in any case
        standing = ranking.standings[profile_id]
        reach = 2 * self.noise.value * math.sqrt(standing.variance)
        return math.isfinite(standing.estimate) and standing.estimate + reach > 0

    @cached_property
    def _paired(self) -> frozenset[str]:
        """`baseline-no-env` where it is in every block, as they began or as they are planned."""
        pair, layout = self.study.no_env, self.layout
        if pair is None or isinstance(layout, Refusal):
            return frozenset()
        return frozenset({pair.id} if design(self.past, layout, arms=0).pair else ())

    @property
    def pair(self) -> Profile | None:
        """`baseline-no-env` where it is in every block and can run; else None."""
        return next((each for name, each in self.others.items() if name in self._paired), None)

    @cached_property
    def others(self) -> Mapping[str, Profile]:
        """The profiles that can run, and are not the baseline under another name, by id."""
        return {
            each: profile
            for each, profile in self.waves.profiles.items()
            if self.waves.repeats.get(each) != BASELINE_ID
            and each not in self.past.dropped
            and self.study.is_sound(self.past, each)
        }

    @cached_property
    def _frozen(self) -> tuple[str, ...]:
        """The arms with confirming trials, the pair left out: it has a place of its own."""
        return tuple(each for each in frozen_arms(self.past) if each not in self._paired)

    @cached_property
    def entered(self) -> tuple[Profile, ...]:
        """The finalists in rank order, then the alias if it runs; none before second runs.

        Arms that have confirming trials stay; a stage that was cut off while it was being planned
        is filled up to its own size by the same rule that began it.
        """
        layout = self.layout
        if isinstance(layout, Refusal):
            return ()
        if any(self.over(each) is None for each in self.second_runs):
            return ()
        size = design(self.past, layout, arms=0).arms  # 0 where no stage began
        most = max(layout.finalists, size)
        interesting = self._best(self.ranking, most=most, among=self.second)
        if interesting and len(interesting) < layout.finalists:
            interesting.append(ALIAS.id)
        frozen = self._frozen
        if frozen:
            interesting = [each for each in interesting if each not in frozen]
            interesting = [*frozen, *interesting[: max(size - len(frozen), 0)]]
        ranks = self._ranks(self.ranking)
        declared = {**self.waves.profiles, ALIAS.id: ALIAS}
        return tuple(
            declared[each]
            for each in sorted(interesting, key=lambda each: ranks.get(each, (math.inf, 0)))
            if each in declared
        )

    @property
    def late(self) -> tuple[str, ...]:
        """What would be a finalist by now, had the finalists not been fixed before."""
        layout, frozen = self.layout, self._frozen
        if not frozen or isinstance(layout, Refusal):
            return ()
        size = design(self.past, layout, arms=0).arms
        if len(frozen) < size:
            return ()  # still being planned, and filled up
        if self.second:  # it would have run a second time
            most = max(layout.again, len(self.second))
            ranked = self._best(self.first, most=most, always=self.second)
            return tuple(each for each in ranked if each not in self.second)
        ranked = self._best(self.ranking, most=size)
        return tuple(each for each in ranked if each not in frozen)

    @property
    def undecided_pair(self) -> tuple[Reason, ...]:
        """What it would cost to decide the pair of wave 1, where the blocks do not."""
        layout, past = self.layout, self.past
        is_ranked = self.study.no_env is not None and NO_ENV_ID in self.ranking.standings
        if not is_ranked or isinstance(layout, Refusal) or self._paired:
            return ()
        decided = any(not is_spare(each.trial) for each in past.confirms_of(NO_ENV_ID))
        if decided or NO_ENV_ID in {each.id for each in self.entered}:
            return ()
        kind = Why.PAIR_NEEDS_SWEEP if past.confirm else Why.PAIR_UNDECIDED
        return (Reason(kind, arm=NO_ENV_ID, jobs=layout.blocks),)

    @cached_property
    def is_confirming(self) -> bool:
        """Whether there are blocks, or may be: a run that explores only has none of its own."""
        return bool(self.past.confirm) or (self.study.confirm and self.is_screened)

    @cached_property
    def confirmation(self) -> Confirmation | None:
        """The blocks, as far as they came; None where there are none."""
        layout = self.layout
        if not self.is_confirming or isinstance(layout, Refusal) or not self.entered:
            return None
        return Confirmation(self, design(self.past, layout, arms=len(self.entered))).go()

    @property
    def look(self) -> Look | None:
        """The look at the deciding blocks; None while some are missing."""
        return self.confirmation.look if self.confirmation else None

    @cached_property
    def finalists(self) -> tuple[str, ...]:
        """Those that entered the blocks, in rank order, then the pair; the alias is none."""
        entered = self.entered if self.is_confirming else ()
        pair = self.confirmation.pair if self.confirmation else None
        return (
            *(arm.id for arm in entered if arm.id != ALIAS.id),
            *([] if pair is None else [NO_ENV_ID]),
        )

    @cached_property
    def kept(self) -> tuple[str, ...]:
        """The finalists that no cut has dropped so far."""
        kept = self.confirmation.kept if self.confirmation else ()
        return tuple(each for each in self.finalists if each in kept)


class Confirmation(Stages[TuningPlan]):
    """The blocks: cut after each run of equal width, looked at when all that decide are complete.

    A cut is a function of the screen and of the blocks before it alone. Arms with trials in later
    blocks have passed it, whatever is read since.

    Jobs that are left then go to spare blocks. Where nothing is faster they hold the profiles that
    keep the sweep from being bounded, and in any case the one that is worst by far.

    A walk of its own: a conclusion has it even where a new profile has opened the screen again.

    Attributes:
        sweep: whose.
        design: of the deciding blocks.
        widths: the arms of each of them.
        pair: `baseline-no-env` where it stands in every block, beside the finalists and uncut.
        look: at the deciding blocks; None while some are missing.
        may_grow: whether spare blocks may follow those that are planned.
        added: the last spare block and why it was added; None without one.
    """

    def __init__(self, sweep: SweepWalk, design: ConfirmDesign) -> None:
        super().__init__(sweep.study)
        self.sweep, self.past, self.design = sweep, sweep.past, design
        self.widths = design.widths or (design.arms,) * design.blocks
        self.pair = sweep.pair
        self._arms = {arm.id: arm for arm in sweep.entered}
        self._going = tuple(self._arms)  # that no cut has dropped
        self.look: Look | None = None
        self.may_grow = True
        self.added: Reason | None = None

    def result(self, trial: Trial) -> TrialResult | None:
        """Return the result of a trial so far; None where there is none."""
        return self.past.of(trial)

    @property
    def kept(self) -> tuple[str, ...]:
        """The arms that were not cut, best first, the alias and the pair included."""
        return (*self._going, *([] if self.pair is None else [self.pair.id]))

    @property
    def alpha_spent(self) -> float:
        """By trials that exist."""
        return 0.0 if begun(self.past) is None else SWEEP_ALPHA

    def walk(self) -> None:
        """Run the first blocks, narrow, run the later ones, look, and run spare blocks."""
        stage: tuple[Trial, ...] = ()
        for number, width in enumerate(self.widths, start=1):
            if number > 1 and width < self.widths[number - 2]:
                open_widths = self.widths[number - 1 :]
                beside = self.design.baselines + (self.pair is not None)
                self.run(stage, later=sum(open_widths) + len(open_widths) * beside)
                self._narrow(width, after=number - 1)
                stage = ()
            stage += self._block(number)
        # a sweep that states its blocks has no other
        jobs = self.study.budget - self.sweep.screened_jobs if self.study.may_spare else 0
        self.may_grow = jobs > 0
        self.run(stage)
        self.look = look_at(self.past, self.design, self.kept)
        won = (
            kind is VerdictKind.FASTER for arm, kind in self.look.kinds.items() if arm != ALIAS.id
        )
        is_won = any(won)
        self.may_grow = self.may_grow and not is_won
        self._spare(jobs, is_won=is_won)

    def _block(self, number: int) -> tuple[Trial, ...]:
        own = [self._arms[each] for each in self._going if each not in self.past.dropped]
        beside = [] if self.pair is None else [self.pair]
        return self._laid([*own, *beside], number, self.design)

    def _laid(
        self, arms: Sequence[Profile], number: int, design: ConfirmDesign
    ) -> tuple[Trial, ...]:
        """Return a block on its node slot."""
        trials = self.study.orders.blocks(arms, [number], design=design)
        return trials if self.sweep.slots is None else self.sweep.slots.lay(trials)

    def _narrow(self, width: int, *, after: int) -> None:
        """Cut the arms to so many."""
        ranked = self._ranked(after)
        passed = frozen_arms(self.past, after=after)
        frozen = [each for each in ranked if each in passed]
        able = [each for each in ranked if each != ALIAS.id]
        chosen = entering(able, width, profiles=self._arms, frozen=frozen)
        if len(chosen) < width and ALIAS.id in ranked and ALIAS.id not in chosen:
            chosen.append(ALIAS.id)
        # a dropped arm can never win: with the critical value of all that entered, the cut
        # needs no alpha of its own
        self._going = tuple(each for each in ranked if each in chosen)

    def _ranked(self, after: int) -> tuple[str, ...]:
        """Return the arms that may go on after a block, best first; the alias goes last.

        By screen and blocks together. A measurement that an arm lacks counts as one at the
        baseline's level: a lost run is no reason to stay, and none to leave.
        """
        past, arms = self.past, self._going
        fit = fitted(past.scored_in_blocks(designs=(self.design,), until=after))
        in_blocks = (1 + 1 / self.design.baselines) / after

        def promise(arm: str) -> float:
            screened = self.sweep.ranking.standings.get(arm) or Screened(estimate=0.0, variance=1.0)
            found = fit.arms.get(arm) if fit is not None else None
            here = (found.estimate, found.variance) if found is not None else (0.0, in_blocks)
            return combine([(screened.estimate, screened.variance), here])[0]

        sound = [
            each
            for each in arms
            if each not in past.dropped and not self.study.losses.reason(past, each)
        ]
        return tuple(
            sorted(sound, key=lambda arm: (arm == ALIAS.id, -promise(arm), arms.index(arm)))
        )

    def _spare(self, jobs: int, *, is_won: bool) -> None:
        """Run spare blocks while there is a use for one, in so many jobs of all blocks."""
        sweep, past = self.sweep, self.past
        others = {
            name: each for name, each in sweep.others.items() if name in sweep.waves.candidates
        }
        spare = ConfirmDesign(look=SPARE, arms=0, blocks=0, baselines=self.design.baselines)
        number = last = max(each.block for each in self.planned)
        while True:
            number += 1
            ran = {key for key, each in past.confirm.items() if each.status.is_final}
            taken = len(ran | {place(each) for each in self.planned})
            chosen = self._spared(
                others,
                before=number,
                free=jobs - taken - self.design.baselines,
                is_won=is_won,
                has_worst=number == last + 1,
            )
            if not chosen:
                return
            kind = Why.BLOCK_FOR_WORST if is_won else Why.BLOCK_FOR_BOUND
            self.added = Reason(kind, block=number, arms=sorted(chosen))
            self.run(self._laid([others[each] for each in chosen], number, spare))

    def _spared(
        self,
        others: Mapping[str, Profile],
        *,
        before: int,
        free: int,
        is_won: bool,
        has_worst: bool,
    ) -> list[str]:
        """Return which profiles a spare block holds; none where there is no use or no job left.

        Those that are in it already stay, whatever is read since.

        Args:
            others: the profiles that it may hold, by id.
            before: number of the block.
            free: for how many profiles.
            is_won: whether a profile is faster, so that nothing is left to rule out.
            has_worst: whether the worst single run has a place.
        """
        past, ranking = self.past, self.sweep.ranking
        held = {key.arm for key in past.confirm if key.block == before} & others.keys()
        fit = fitted(past.scored_in_blocks(until=before - 1))
        found = bounds(ranking, fit, others, kept=self._going)
        # at 0.6 % noise 29 % of sweeps without an effect could say so in 50 jobs; with blocks for
        # what may still gain 2 %, 73 % do in 65
        high = [] if is_won else sorted(found, key=lambda arm: (-found[arm], arm))
        # M was told of the others alone, while a profile without a score could gain +4 %
        # one that lost its run in the screen has another here, and no third
        tried = {key.arm for key in past.confirm if key.block < before}
        wanted = [
            arm
            for arm in high
            if relative(min(found[arm], 1.0)) >= BOUND
            and (math.isfinite(found[arm]) or arm not in tried)
        ]
        # one that was in blocks before is known well enough
        single = [arm for arm in others if fit is None or arm not in fit.arms]
        low = [
            (standing.estimate, arm)
            for arm in single
            if (standing := ranking.standings.get(arm)) is not None
            and fit is not None
            and fit.df >= MIN_DF
            and standing.estimate < -FAR * fit.sigma * math.sqrt(standing.variance)
        ]
        wanted += [arm for _, arm in sorted(low)[:1] if has_worst]
        left = free - len(held)
        return [*sorted(held), *[arm for arm in wanted if arm not in held][: max(left, 0)]]
