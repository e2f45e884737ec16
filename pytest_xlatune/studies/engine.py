"""How arms are compared: rank all of them once, narrow the best on fresh blocks, conclude.

`decide` is a pure function of a plan and the results so far. It returns what runs next and what
follows from the results, so every process with the same history gets the same answer. The functions
stand in the order in which they are used: `decide`, `rank`, `lay_out`, `second_runs`, `enter`,
`confirm`, `spare_blocks`.

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
spent once. The remaining jobs of the budget go to spare blocks, which bound and rank but decide
nothing. This module writes no verdict.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pytest_xlatune.model.profile import BASELINE_ID, Profile
from pytest_xlatune.model.result import Comparison, VerdictKind
from pytest_xlatune.model.trial import ConfirmDesign, Trial
from pytest_xlatune.stats.blocks import BlockFit, Estimate, combine, upper_bound
from pytest_xlatune.stats.compare import compare, noise_of
from pytest_xlatune.stats.design import MIN_DF, SECOND_RUNS, SWEEP_ALPHA, Plan, Refusal
from pytest_xlatune.studies import History
from pytest_xlatune.studies.parts import entering
from pytest_xlatune.studies.screen import Ranking, screen
from pytest_xlatune.studies.slots import Slots
from pytest_xlatune.studies.trials import AGAIN, ALIAS, SPARE, Past, fitted, place
from pytest_xlatune.studies.tuning_plan import TuningPlan
from pytest_xlatune.studies.verdicts import (
    BlockComparison,
    Veto,
    arm_veto,
    compare_blocks,
)
from pytest_xlatune.studies.waves import Waves

BOUND = 0.02  # if no profile can gain more, the sweep is bounded
# A screen has few jobs, so in one sweep of twelve its spread is only two thirds of the noise.
# Therefore the spread is widened by this factor before it may show that a cell is quiet.
_SPREAD_FACTOR = 1.5


@dataclass(frozen=True, kw_only=True)
class Screened:
    """A sweep and the result of its screen. It has no `__slots__`, so that properties are cached.

    Attributes:
        plan: the sweep, and its jobs.
        arms: the arms that exist by now.
        past: the trials of the plan that count.
        slots: the node slots of the trials; None if there is only one.
        vetoes: arm id -> the veto because of which the arm cannot win.
        again: ids of the profiles that have a second run; () if none has.
        first: the ranking by the first runs of the screen.
        ranks: the ranking by all runs of the screen.
    """

    plan: TuningPlan
    arms: Waves
    past: Past
    slots: Slots | None
    vetoes: Mapping[str, Veto]
    again: tuple[str, ...]
    first: Ranking
    ranks: Ranking

    @property
    def noise(self) -> float:
        """The noise of a job: what the plan knows or assumes, or the screen's if that is larger."""
        return max(self.plan.noise, self.ranks.sigma or 0.0)

    @cached_property
    def in_blocks(self) -> BlockFit | None:
        """The least squares over all blocks, spare ones included."""
        return fitted(self.past.scored_in_blocks())

    @cached_property
    def candidates(self) -> Mapping[str, Profile]:
        """The profiles that may win, by id: selected, without a veto, unlike the baseline."""
        return {
            name: profile
            for name, profile in self.arms.profiles.items()
            if name in self.arms.candidates
            and self.arms.repeats.get(name) != BASELINE_ID
            and name not in self.vetoes
        }

    def block(
        self, arms: Sequence[Profile], number: int, design: ConfirmDesign
    ) -> tuple[Trial, ...]:
        """Return a block in its random order, on its node slot."""
        trials = self.plan.orders.blocks(arms, [number], design=design)
        return trials if self.slots is None else self.slots.place_blocks(trials)


class Blocks(NamedTuple):
    """The blocks so far."""

    design: ConfirmDesign  # the design of the blocks that decide
    planned: tuple[Trial, ...]  # the trials of all blocks that can be planned by now
    staying: tuple[str, ...]  # the arms that no cut has dropped, the best first, the alias too
    comparison: BlockComparison | None = None  # on the deciding blocks; None while trials miss


@dataclass(frozen=True, kw_only=True)
class SweepDecision:
    """What runs next, and what follows from what ran.

    Attributes:
        screened: the result of the screen.
        due: the trials to run next, in order; () when nothing is left.
        layout: the layout of the blocks.
        is_screened: whether the screen of the selected waves is over.
        entered: the finalists in rank order, then the alias if it runs; () if blocks cannot be
            planned.
        blocks: the blocks; None if there are none.
    """

    screened: Screened
    due: tuple[Trial, ...]
    layout: Plan | Refusal
    is_screened: bool
    entered: tuple[Profile, ...]
    blocks: Blocks | None

    @property
    def arms(self) -> Waves:
        """The arms that exist by now."""
        return self.screened.arms

    @property
    def comparison(self) -> BlockComparison | None:
        """The comparison on the deciding blocks; None while trials are missing."""
        return self.blocks.comparison if self.blocks else None

    @cached_property
    def finalists(self) -> tuple[str, ...]:
        """The profiles that entered the blocks, in rank order, without the alias."""
        may_begin = self.screened.plan.confirm and self.is_screened
        if not (self.screened.past.confirm or may_begin):
            return ()
        return tuple(profile.id for profile in self.entered if profile.id != ALIAS.id)

    @cached_property
    def staying_finalists(self) -> frozenset[str]:
        """The finalists that no cut has dropped so far."""
        return frozenset(self.finalists).intersection(self.blocks.staying if self.blocks else ())


def decide(plan: TuningPlan, history: History, slots: Slots | None = None) -> SweepDecision:
    """Return what runs next, and what follows from the results: screen, narrow, compare."""
    screened = rank(plan, history, slots)
    arms, past = screened.arms, screened.past
    has_slot = slots is None or bool(slots.alive)
    to_screen = past.not_over(arms.to_screen) if has_slot else ()
    is_over = not (to_screen or arms.open_rules)
    layout = lay_out(screened) if is_over else plan.layout
    again: tuple[Trial, ...] = ()
    if has_slot and is_over:
        again = past.not_over(second_runs(screened, layout))
    entered = () if again else enter(screened, layout)
    # The screen comes first, then second runs, then blocks. Without `plan.confirm` a session only
    # screens.
    may_begin, blocks = plan.confirm and not to_screen, None
    if entered and isinstance(layout, Plan) and (past.confirm or may_begin):
        blocks = confirm(screened, layout, entered)
    due = again if may_begin else to_screen
    if may_begin and blocks is not None and has_slot:
        has_selected_arm = any(trial.arm in arms.candidates for trial in blocks.planned)
        due = past.not_over(blocks.planned) if has_selected_arm else ()
    return SweepDecision(
        screened=screened,
        due=due,
        layout=layout,
        is_screened=not to_screen,
        entered=entered,
        blocks=blocks,
    )


def rank(plan: TuningPlan, history: History, slots: Slots | None) -> Screened:
    """Return the screen's result so far: each arm against a line through the baselines."""
    arms, sigma = Waves(plan, history, slots), plan.noise
    past = plan.read(history, arms.profiles)
    first = screen(past, arms.queues, sigma=sigma)
    again = tuple(sorted(key.arm for key in past.screen if key.stage == AGAIN))
    vetoes = {
        arm: veto
        for arm in (*arms.profiles, ALIAS.id)
        if (veto := arm_veto(past, arm, tolerance=plan.loss_tolerance)) is not None
    }
    return Screened(
        plan=plan,
        arms=arms,
        past=past,
        slots=slots,
        vetoes=vetoes,
        again=again,
        first=first,
        ranks=screen(past, arms.queues, sigma=sigma, has_second=True) if again else first,
    )


def lay_out(screened: Screened) -> Plan | Refusal:
    """Return the layout of the blocks once the screen is over.

    Jobs that were planned for profiles which do not exist, because a wave left slots empty, go to
    the finalists.
    """
    plan, planned = screened.plan, screened.plan.layout
    if plan.rotates or not isinstance(planned, Plan):
        return planned  # a profile that takes turns takes no job, so its absence frees none
    queued = screened.arms.queued
    baselines = sum(trial.is_baseline for trial in queued)
    count = len(queued) - baselines
    spread = screened.first.spread
    sigma = plan.sigma_prior or (None if spread is None else _SPREAD_FACTOR * spread)
    layout = plan.laid_out(count, plan.budget, sigma, baselines=baselines)
    if screened.again and not (isinstance(layout, Plan) and layout.again):
        # A profile was added after second runs had begun, and the new layout has none. They go on,
        # and the blocks get the remaining jobs.
        runs = SECOND_RUNS if screened.slots else len(screened.again)
        budget = plan.budget - runs
        layout = plan.laid_out(count, budget, sigma, baselines=baselines, may_repeat=False)
        if isinstance(layout, Plan):
            return dataclasses.replace(layout, again=runs, jobs=layout.jobs + runs)
        if not screened.past.confirm:
            return layout  # the remaining jobs are too few for blocks
    return layout if isinstance(layout, Plan) else planned


def second_runs(screened: Screened, layout: Plan | Refusal) -> tuple[Trial, ...]:
    """Return the second runs of the best of the screen; () once there are blocks.

    Second runs that exist stay; further ones are added in the order of the first runs' ranking.
    """
    if isinstance(layout, Refusal) or screened.past.confirm:
        return ()
    best = best_of(screened, screened.first, most=layout.again)
    if not screened.again and len(best) <= layout.finalists:
        return ()
    more = [arm for arm in best if arm not in screened.again]
    chosen = [*screened.again, *more[: max(layout.again - len(screened.again), 0)]]
    trials = screened.plan.orders.again([screened.arms.profiles[arm] for arm in chosen])
    if screened.slots is not None:
        trials = screened.slots.deal_again(trials, at_most=screened.plan.screen_slots)
    return tuple(trial for trial in trials if trial.arm in screened.arms.candidates)


def _order(screened: Screened, ranking: Ranking) -> Mapping[str, tuple[float, int]]:
    """Return profile id -> sort key: the largest estimate first, then the declared order."""
    places = {name: at for at, name in enumerate(screened.arms.profiles)}
    return {name: (-run.estimate, places[name]) for name, run in ranking.standings.items()}


def best_of(
    screened: Screened, ranking: Ranking, *, most: int, among: Collection[str] = ()
) -> list[str]:
    """Return at most `most` ids of the profiles that may be faster, the best of a ranking first.

    They are chosen from the profiles in `among`, from all if that is empty.
    """
    order, candidates = _order(screened, ranking), screened.candidates

    def may_help(arm: str) -> bool:
        """Return whether the screen leaves it possible that a profile is faster."""
        estimate, variance = ranking.standings[arm]
        return math.isfinite(estimate) and estimate + 2 * screened.noise * math.sqrt(variance) > 0

    able = [arm for arm in order if arm in candidates and (not among or arm in among)]
    able = sorted(filter(may_help, able), key=order.__getitem__)
    return entering(able, most, profiles=screened.arms.profiles)


def enter(screened: Screened, layout: Plan | Refusal) -> tuple[Profile, ...]:
    """Return the finalists in rank order, then the alias if there is room.

    Arms that have confirming trials stay. If an earlier process was stopped while it submitted the
    first block, the missing arms are chosen by the same rule, up to the size of that block.
    """
    if isinstance(layout, Refusal):
        return ()
    begun_design = screened.past.design
    begun_width = begun_design.arms if begun_design is not None else 0
    most = max(layout.finalists, begun_width)
    chosen = best_of(screened, screened.ranks, most=most, among=screened.again)
    if chosen and len(chosen) < layout.finalists:
        chosen.append(ALIAS.id)
    if in_blocks := screened.past.arms_in_blocks():
        chosen = [arm for arm in chosen if arm not in in_blocks]
        chosen = [*in_blocks, *chosen[: max(begun_width - len(in_blocks), 0)]]
    order = _order(screened, screened.ranks)
    declared = {**screened.arms.profiles, ALIAS.id: ALIAS}
    ordered = sorted(chosen, key=lambda arm: order.get(arm, (math.inf, 0)))
    return tuple(declared[arm] for arm in ordered if arm in declared)


def confirm(screened: Screened, layout: Plan, entered: Sequence[Profile]) -> Blocks:
    """Plan blocks of falling width, cut between them, and compare when the deciding ones are over.

    A cut depends only on the screen and the blocks before it.
    """
    past, profiles = screened.past, {profile.id: profile for profile in entered}
    design = past.design or layout.design(len(entered))
    staying: tuple[str, ...] = tuple(profiles)
    planned: tuple[Trial, ...] = ()
    width_before = design.all_widths[0]
    for number, width in enumerate(design.all_widths, start=1):
        if width < width_before:
            if past.not_over(planned):
                return Blocks(design, planned, staying)
            staying = _narrowed(screened, staying, width, design, after=number - 1)
        in_block = [profiles[arm] for arm in staying if arm not in past.dropped]
        planned += screened.block(in_block, number, design)
        width_before = width
    if past.not_over(planned):
        return Blocks(design, planned, staying)
    compared = {key.arm for key, result in past.confirm.items() if result.trial.design == design}
    compared -= {BASELINE_ID, *past.dropped}
    comparison = compare_blocks(
        past.scored_in_blocks(design=design),
        [arm for arm in staying if arm in compared],
        family=max(len(compared - {ALIAS.id}), 1),
    )
    # a gain of the alias can only be noise
    faster = {arm for arm, kind in comparison.kinds.items() if kind is VerdictKind.FASTER}
    if not faster - {ALIAS.id}:
        planned += spare_blocks(screened, staying, planned, baselines=design.baselines)
    return Blocks(design, planned, staying, comparison)


def _narrowed(
    screened: Screened, staying: Sequence[str], width: int, design: ConfirmDesign, *, after: int
) -> tuple[str, ...]:
    """Return the `width` arms that stay after a block, the best first.

    Arms that have trials in later blocks stay in any case. The arms are ranked by screen and blocks
    together, the alias last. An arm without a measurement is ranked as if it had the baseline's
    score: a lost run is no reason to keep an arm, nor to drop it.
    """
    past = screened.past
    fit = fitted(past.scored_in_blocks(design=design, until=after))
    not_measured = Estimate(0.0, (1 + 1 / design.baselines) / after)

    def estimate(arm: str) -> float:
        """Return the gain of an arm by screen and blocks, as a log ratio."""
        in_screen = screened.ranks.standings.get(arm, Estimate(0.0, 1.0))
        in_blocks = fit.arms.get(arm, not_measured) if fit is not None else not_measured
        return combine([in_screen, in_blocks]).estimate

    without_veto = [arm for arm in staying if arm not in screened.vetoes]
    best_first = sorted(
        without_veto, key=lambda arm: (arm == ALIAS.id, -estimate(arm), staying.index(arm))
    )
    in_later_blocks = past.arms_in_blocks(after=after)
    profiles = [arm for arm in best_first if arm != ALIAS.id]
    frozen = [arm for arm in best_first if arm in in_later_blocks]
    chosen = entering(profiles, width, profiles=screened.arms.profiles, frozen=frozen)
    if len(chosen) < width:
        chosen.append(ALIAS.id)
    return tuple(arm for arm in best_first if arm in chosen)


def spare_blocks(
    screened: Screened, staying: Collection[str], deciding: Sequence[Trial], *, baselines: int
) -> tuple[Trial, ...]:
    """Return the trials of the spare blocks so far.

    Blocks are added as long as a profile may gain `BOUND` or more and jobs remain. Without them,
    29 % of sweeps without an effect can exclude a gain of 2 % (50 jobs, 0.6 % noise); with them
    73 % can, in 65 jobs. Profiles with a trial in a block stay in it, whatever is measured later.
    The arms in `staying` stayed to the last of the `deciding` blocks, which are over.
    """
    past, candidates = screened.past, screened.candidates
    if not screened.plan.may_spare:
        return ()
    jobs = screened.plan.budget - len(screened.arms.queued) - len(screened.again)
    design = ConfirmDesign(look=SPARE, arms=0, blocks=0, baselines=baselines)
    final = {key for key, result in past.confirm.items() if result.status.is_final}
    planned: tuple[Trial, ...] = ()
    number = max(trial.block for trial in deciding)
    while all(map(past.is_final, planned)):
        number += 1
        used_jobs = len(final | {place(trial) for trial in (*deciding, *planned)})
        begun = {key.arm for key in past.confirm if key.block == number} & candidates.keys()
        in_earlier_blocks = {key.arm for key in past.confirm if key.block < number}
        fit = fitted(past.scored_in_blocks(until=number - 1))
        bounds = gain_bounds(screened.ranks, fit, candidates, staying=staying)
        # A profile without a score may gain anything. If its run in the screen was lost, it gets a
        # second run in a spare block, but no third.
        unbounded = [
            arm
            for arm in sorted(bounds, key=lambda arm: (-bounds[arm], arm))
            if bounds[arm] >= math.log1p(BOUND)
            and (math.isfinite(bounds[arm]) or arm not in in_earlier_blocks)
            and arm not in begun
        ]
        free_jobs = jobs - used_jobs - baselines - len(begun)
        chosen = [*sorted(begun), *unbounded[: max(free_jobs, 0)]]
        if not chosen:
            break
        planned += screened.block([candidates[arm] for arm in chosen], number, design)
    return planned


def gain_bounds(
    ranking: Ranking, fit: BlockFit | None, arms: Iterable[str], *, staying: Collection[str]
) -> dict[str, float]:
    """Return arm -> bound that its log ratio exceeds with 5 % probability.

    The result is empty if the noise is unknown.

    For an arm in `staying`, which was in all deciding blocks, it is the upper end of its 95 %
    interval. For others it is the smaller of two bounds at 2.5 % each: from the screen, and from
    screen and blocks. The noise is the arm's own if it is larger than that of baselines and blocks.
    The bound of an arm without a score is infinite.
    """
    squares, df = ranking.squares, ranking.df
    if fit is not None and fit.df > 0:
        squares, df = squares + fit.sigma**2 * fit.df, df + fit.df
    if df < MIN_DF or squares <= 0 or not math.isfinite(squares):
        return {}
    sigma = math.sqrt(squares / df)
    bounds: dict[str, float] = {}
    for arm in arms:
        if arm in staying:
            comparison = compare(fit, arm, family=1, alpha=SWEEP_ALPHA)
            if isinstance(comparison, Comparison):
                bounds[arm] = comparison.ci95[1]
                continue
        # rotations bound nothing, because the deployed program may differ
        screened = None if arm in ranking.turned else ranking.standings.get(arm)
        in_blocks = fit.arms.get(arm) if fit else None
        estimates = [screened] if screened is not None else []
        if in_blocks is not None:
            estimates.append(combine([*estimates, in_blocks]))
        noise, noise_df = noise_of(in_blocks, sigma=sigma, df=df)
        bounds[arm] = min(
            (upper_bound(estimate, sigma=noise, df=noise_df) for estimate in estimates),
            default=math.inf,
        )
    return bounds
