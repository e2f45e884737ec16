"""How arms are compared: rank all of them once, narrow the best on fresh blocks, conclude.

`decide` is a pure function of a plan and the results so far. It returns what runs next and what
follows from the results, so every process with the same history gets the same answer. The functions
stand in the order in which they are used: `decide`, `rank`, `lay_out`, `second_runs`, `enter`,
`confirm`.

This is the history of four profiles in 20 jobs, of which three enter the first of three blocks:

    screen     base  a  d  base  c  b  base          each profile once, in random order: this ranks
    block 1    c  base  a  base  b                   d stays out: it is fourth, or shows no gain
    block 2    base  a  c  base                      b was cut: screen and block 1 rank it last
    block 3    a  base  base  c                      the blocks are complete and are compared once

`a` and `c` are compared with the baselines of their blocks by least squares over block and arm,
with Dunnett's critical value for the three that entered. `b` and `d` are ranked and have no
verdict. A profile that is cut can never win, so a cut needs no alpha of its own. No result that
chose an arm counts in its verdict, so ranking needs none either.

A profile that has trials in blocks stays a finalist, whatever results are added later: alpha is
spent once. The remaining jobs of the budget go to spare blocks (`spare.py`), which bound and rank
but decide nothing. This module writes no verdict.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pytest_xlatune.model.profile import BASELINE_ID, Profile
from pytest_xlatune.model.trial import ConfirmDesign, Trial
from pytest_xlatune.stats.blocks import BlockFit, Estimate, combine
from pytest_xlatune.stats.design import SECOND_RUNS, Plan, Refusal
from pytest_xlatune.studies import History
from pytest_xlatune.studies.block_comparison import BlockComparison, compare_blocks
from pytest_xlatune.studies.parts import entering
from pytest_xlatune.studies.screen import Ranking, screen
from pytest_xlatune.studies.slots import Slots
from pytest_xlatune.studies.spare import spare_blocks
from pytest_xlatune.studies.trials import AGAIN, ALIAS, Past, fitted
from pytest_xlatune.studies.tuning_plan import TuningPlan
from pytest_xlatune.studies.vetoes import Veto, arm_vetoes
from pytest_xlatune.studies.waves import Waves

# The noise of a job hardly ever exceeds the spread of a screen times this.
_SPREAD_FACTOR = 1.5


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A sweep and the result of its screen. It has no `__slots__`, so that properties are cached.

    Attributes:
        arms: the arms that exist by now.
        past: the trials of the plan that count.
        slots: the node slots of the trials; None if there is only one.
        vetoes: arm id -> the veto because of which the arm cannot win.
        again: ids of the profiles that have a second run; () if none has.
        first: the ranking by the first runs of the screen.
        ranks: the ranking by all runs of the screen.
    """

    arms: Waves
    past: Past
    slots: Slots | None
    vetoes: Mapping[str, Veto]
    again: tuple[str, ...]
    first: Ranking
    ranks: Ranking

    @property
    def plan(self) -> TuningPlan:
        """The sweep with its arms as declared, and its jobs."""
        return self.arms.plan

    @property
    def noise(self) -> float:
        """The noise of a job: what the plan knows or assumes, or the screen's if that is larger."""
        return max(self.plan.noise, self.ranks.sigma or 0.0)

    @cached_property
    def in_blocks(self) -> BlockFit | None:
        """The least squares over all blocks, spare ones included."""
        return fitted(self.past.scored_in_blocks())

    @property
    def candidates(self) -> Mapping[str, Profile]:
        """The profiles that may win, by id: selected, without a veto, unlike the baseline."""
        return {
            name: profile
            for name, profile in self.arms.profiles.items()
            if name in self.arms.candidates
            and self.arms.repeats.get(name) != BASELINE_ID
            and name not in self.vetoes
        }

    @property
    def jobs_of_blocks(self) -> int:
        """How many jobs the screen leaves for blocks; 0 if no job may be added to the plan."""
        screened = len(self.arms.queued) + len(self.again)
        return self.plan.budget - screened if self.plan.may_spare else 0

    def block(
        self, arms: Sequence[Profile], number: int, design: ConfirmDesign
    ) -> tuple[Trial, ...]:
        """Return a block in its random order, on its node slot."""
        trials = self.plan.orders.blocks(arms, [number], design=design)
        return trials if self.slots is None else self.slots.place_blocks(trials)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The blocks so far.

    Attributes:
        design: the design of the blocks that decide.
        planned: the trials of all blocks that can be planned by now.
        staying: ids of the arms that no cut has dropped, the best first, including the alias.
        block_comparison: the comparison on the deciding blocks; None while trials are missing.
    """

    design: ConfirmDesign
    planned: tuple[Trial, ...]
    staying: tuple[str, ...]
    block_comparison: BlockComparison | None = None


@dataclass(frozen=True, kw_only=True)
class SweepDecision:
    """What runs next, and what follows from what ran.

    Attributes:
        ranked: the result of the screen.
        due: the trials to run next, in order; () when nothing is left.
        layout: the layout of the blocks.
        is_screened: whether the screen of the selected waves is over.
        entered: the finalists in rank order, then the alias if it runs; () if blocks cannot be
            planned.
        blocks: the blocks; None if there are none.
    """

    ranked: Ranked
    due: tuple[Trial, ...]
    layout: Plan | Refusal
    is_screened: bool
    entered: tuple[Profile, ...]
    blocks: Blocks | None

    @property
    def block_comparison(self) -> BlockComparison | None:
        """The comparison on the deciding blocks; None while trials are missing."""
        return self.blocks.block_comparison if self.blocks else None

    @cached_property
    def finalists(self) -> tuple[str, ...]:
        """The profiles that entered the blocks, in rank order, without the alias."""
        has_begun = bool(self.ranked.past.confirm)
        may_begin = self.ranked.plan.confirm and self.is_screened
        if not (has_begun or may_begin):
            return ()
        return tuple(profile.id for profile in self.entered if profile.id != ALIAS.id)

    @cached_property
    def staying_finalists(self) -> tuple[str, ...]:
        """The finalists that no cut has dropped so far."""
        staying = self.blocks.staying if self.blocks else ()
        return tuple(arm for arm in self.finalists if arm in staying)


def decide(plan: TuningPlan, history: History, slots: Slots | None = None) -> SweepDecision:
    """Return what runs next, and what follows from the results: screen, narrow, compare."""
    ranked = rank(plan, history, slots)
    arms, past = ranked.arms, ranked.past
    has_slot = slots is None or bool(slots.alive)
    to_screen = past.not_over(arms.to_screen) if has_slot else ()
    is_over = not (to_screen or arms.open_waves)
    layout = lay_out(ranked) if is_over else plan.layout
    again: tuple[Trial, ...] = ()
    if has_slot and is_over:
        again = past.not_over(second_runs(ranked, layout))
    entered = () if again else enter(ranked, layout)
    blocks = None
    has_begun, may_begin = bool(past.confirm), plan.confirm and not to_screen
    if entered and isinstance(layout, Plan) and (has_begun or may_begin):
        blocks = confirm(ranked, layout, entered)
    # The screen comes first, then second runs, then blocks. Without `plan.confirm` a session only
    # screens.
    due = to_screen
    if not to_screen and plan.confirm:
        due = again
        if blocks is not None and has_slot:
            has_selected_arm = any(trial.arm in arms.candidates for trial in blocks.planned)
            due = past.not_over(blocks.planned) if has_selected_arm else ()
    return SweepDecision(
        ranked=ranked,
        due=due,
        layout=layout,
        is_screened=not to_screen,
        entered=entered,
        blocks=blocks,
    )


def rank(plan: TuningPlan, history: History, slots: Slots | None) -> Ranked:
    """Return the screen's result so far: each arm against a line through the baselines."""
    arms, sigma = Waves(plan, history, slots), plan.noise
    past = plan.read(history, arms.profiles)
    first = screen(past, arms.queues, sigma=sigma)
    again = tuple(sorted(key.arm for key in past.screen if key.stage == AGAIN))
    return Ranked(
        arms=arms,
        past=past,
        slots=slots,
        vetoes=arm_vetoes(past, (*arms.profiles, ALIAS.id), tolerance=plan.loss_tolerance),
        again=again,
        first=first,
        ranks=screen(past, arms.queues, sigma=sigma, has_second=True) if again else first,
    )


def lay_out(ranked: Ranked) -> Plan | Refusal:
    """Return the layout of the blocks once the screen is over.

    Jobs that were planned for profiles which do not exist, because a wave left slots empty, go to
    the finalists.
    """
    plan, planned = ranked.plan, ranked.plan.layout
    if plan.rotates or not isinstance(planned, Plan):
        return planned  # a profile that takes turns takes no job, so its absence frees none
    queued = ranked.arms.queued
    baselines = sum(trial.is_baseline for trial in queued)
    count = len(queued) - baselines
    # A screen has few jobs, so in one sweep of twelve its spread is only two thirds of the noise.
    # Therefore the spread is widened before it may show that a cell is quiet.
    spread = ranked.first.spread
    sigma = plan.sigma_prior or (None if spread is None else _SPREAD_FACTOR * spread)
    layout = plan.laid_out(count, plan.budget, sigma, baselines=baselines)
    if ranked.again and not (isinstance(layout, Plan) and layout.again):
        # A profile was added after second runs had begun, and the new layout has none. They go on,
        # and the blocks get the remaining jobs.
        runs = SECOND_RUNS if ranked.slots else len(ranked.again)
        budget = plan.budget - runs
        layout = plan.laid_out(count, budget, sigma, baselines=baselines, may_repeat=False)
        if isinstance(layout, Plan):
            return dataclasses.replace(layout, again=runs, jobs=layout.jobs + runs)
        if not ranked.past.confirm:
            return layout  # the remaining jobs are too few for blocks
    return layout if isinstance(layout, Plan) else planned


def second_runs(ranked: Ranked, layout: Plan | Refusal) -> tuple[Trial, ...]:
    """Return the second runs of the best of the screen; () once there are blocks.

    Second runs that exist stay; further ones are added in the order of the first runs' ranking.
    """
    if isinstance(layout, Refusal) or ranked.past.confirm:
        return ()
    best = best_of(ranked, ranked.first, most=layout.again)
    if not ranked.again and len(best) <= layout.finalists:
        return ()
    more = [arm for arm in best if arm not in ranked.again]
    chosen = [*ranked.again, *more[: max(layout.again - len(ranked.again), 0)]]
    trials = ranked.plan.orders.again([ranked.arms.profiles[arm] for arm in chosen])
    if ranked.slots is not None:
        trials = ranked.slots.deal_again(trials, at_most=ranked.plan.screen_slots)
    return tuple(trial for trial in trials if trial.arm in ranked.arms.candidates)


def _order(arms: Waves, ranking: Ranking) -> Mapping[str, tuple[float, int]]:
    """Return profile id -> sort key: the largest estimate first, then the declared order."""
    places = {name: at for at, name in enumerate(arms.profiles)}
    return {
        name: (-screened.estimate, places[name]) for name, screened in ranking.standings.items()
    }


def best_of(
    ranked: Ranked,
    ranking: Ranking,
    *,
    most: int,
    among: Collection[str] = (),
) -> list[str]:
    """Return at most `most` ids of the profiles that may be faster, the best of a ranking first.

    Args:
        ranked: the result of the screen.
        ranking: the ranking that orders them.
        most: the largest number of profiles to return.
        among: the profiles to choose from; empty means all.
    """
    order = _order(ranked.arms, ranking)
    eligible = (arm for arm in order if not among or arm in among)
    candidates, noise = ranked.candidates, ranked.noise

    def may_help(arm: str) -> bool:
        """Return whether the screen leaves it possible that a profile is faster."""
        screened = ranking.standings[arm]
        two_errors = 2 * noise * math.sqrt(screened.variance)
        is_measured = math.isfinite(screened.estimate)
        return arm in candidates and is_measured and screened.estimate + two_errors > 0

    chosen = filter(may_help, eligible)
    return entering(sorted(chosen, key=order.__getitem__), most, profiles=ranked.arms.profiles)


def enter(ranked: Ranked, layout: Plan | Refusal) -> tuple[Profile, ...]:
    """Return the finalists in rank order, then the alias if there is room.

    Arms that have confirming trials stay. If an earlier process was stopped while it submitted the
    first block, the missing arms are chosen by the same rule, up to the size of that block.
    """
    if isinstance(layout, Refusal):
        return ()
    begun_design = ranked.past.design
    begun_width = begun_design.arms if begun_design is not None else 0
    most = max(layout.finalists, begun_width)
    chosen = best_of(ranked, ranked.ranks, most=most, among=ranked.again)
    if chosen and len(chosen) < layout.finalists:
        chosen.append(ALIAS.id)
    if in_blocks := ranked.past.arms_in_blocks():
        chosen = [arm for arm in chosen if arm not in in_blocks]
        chosen = [*in_blocks, *chosen[: max(begun_width - len(in_blocks), 0)]]
    order = _order(ranked.arms, ranked.ranks)
    declared = {**ranked.arms.profiles, ALIAS.id: ALIAS}
    ordered = sorted(chosen, key=lambda arm: order.get(arm, (math.inf, 0)))
    return tuple(declared[arm] for arm in ordered if arm in declared)


def confirm(ranked: Ranked, layout: Plan, entered: Sequence[Profile]) -> Blocks:
    """Plan blocks of falling width, cut between them, and compare when the deciding ones are over.

    A cut depends only on the screen and the blocks before it.
    """
    past, profiles = ranked.past, {profile.id: profile for profile in entered}
    design = past.design or layout.design(len(entered))
    staying: tuple[str, ...] = tuple(profiles)
    planned: tuple[Trial, ...] = ()
    width_before = design.all_widths[0]
    for number, width in enumerate(design.all_widths, start=1):
        if width < width_before:
            if past.not_over(planned):
                return Blocks(design=design, planned=planned, staying=staying)
            staying = _narrowed(ranked, staying, width, design, after=number - 1)
        in_block = [profiles[arm] for arm in staying if arm not in past.dropped]
        planned += ranked.block(in_block, number, design)
        width_before = width
    if past.not_over(planned):
        return Blocks(design=design, planned=planned, staying=staying)
    compared = {key.arm for key, result in past.confirm.items() if result.trial.design == design}
    compared -= {BASELINE_ID, *past.dropped}
    block_comparison = compare_blocks(
        past.scored_in_blocks(designs=(design,)),
        [arm for arm in staying if arm in compared],
        family=max(len(compared - {ALIAS.id}), 1),
        window=past.window,
    )
    if block_comparison.has_winner:
        return Blocks(
            design=design, planned=planned, staying=staying, block_comparison=block_comparison
        )
    spare = spare_blocks(
        past,
        ranked.ranks,
        ranked.candidates,
        staying=staying,
        deciding=planned,
        baselines=design.baselines,
        jobs=ranked.jobs_of_blocks,
        block_trials=ranked.block,
    )
    return Blocks(
        design=design,
        planned=(*planned, *spare),
        staying=staying,
        block_comparison=block_comparison,
    )


def _narrowed(
    ranked: Ranked, staying: Sequence[str], width: int, design: ConfirmDesign, *, after: int
) -> tuple[str, ...]:
    """Return the `width` arms that stay after a block, the best first.

    Arms that have trials in later blocks stay in any case. The arms are ranked by screen and blocks
    together, the alias last. An arm without a measurement is ranked as if it had the baseline's
    score: a lost run is no reason to keep an arm, nor to drop it.
    """
    past = ranked.past
    fit = fitted(past.scored_in_blocks(designs=(design,), until=after))
    not_measured = Estimate(0.0, (1 + 1 / design.baselines) / after)

    def estimate(arm: str) -> float:
        """Return the gain of an arm by screen and blocks, as a log ratio."""
        in_screen = ranked.ranks.standings.get(arm, Estimate(0.0, 1.0))
        in_blocks = fit.arms.get(arm, not_measured) if fit is not None else not_measured
        return combine([in_screen, in_blocks]).estimate

    without_veto = [arm for arm in staying if arm not in ranked.vetoes]
    best_first = sorted(
        without_veto, key=lambda arm: (arm == ALIAS.id, -estimate(arm), staying.index(arm))
    )
    in_later_blocks = past.arms_in_blocks(after=after)
    profiles = [arm for arm in best_first if arm != ALIAS.id]
    frozen = [arm for arm in best_first if arm in in_later_blocks]
    chosen = entering(profiles, width, profiles=ranked.arms.profiles, frozen=frozen)
    if len(chosen) < width and ALIAS.id in best_first and ALIAS.id not in chosen:
        chosen.append(ALIAS.id)
    # A dropped arm can never win, and the critical value counts all that entered, so the cut needs
    # no alpha of its own.
    return tuple(arm for arm in best_first if arm in chosen)
