"""How arms are compared: rank all of them once, narrow the best on fresh blocks, conclude.

`decide` is a function of a plan and of what was measured so far. It returns what runs next and what
follows, and keeps nothing: every process that asks with the same history gets the same answer. Read
it from the top: `decide`, `rank`, `lay_out`, `second_runs`, `enter`, `confirm`.

Of four profiles in 21 jobs, three of them in the first of three blocks, a history grows like this:

    screen     base  a  d  base  c  b  base          each once, in drawn order: this ranks
    block 1    c  base  a  base  b                   d is not of interest, or the fourth
    block 2    base  a  c  base                      b was cut: screen and block 1 rank it last
    block 3    a  base  base  c                      complete: the look, and the only one

`a` and `c` are held against the baselines beside them by least squares of block and arm, with
Dunnett's value for the three that entered; `b` and `d` are ranked and have no verdict. A profile
that is cut can never win, so the cuts need no alpha of their own; nothing that was used to choose
an arm counts in its verdict, so the ranks need none either.

Profiles that have trials in blocks stay, whatever is read since: alpha is spent once. Jobs that are
left go to spare blocks, which bound and rank, and decide nothing. Writes no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pytest_xlatune.model.message import Message, at_most, say
from pytest_xlatune.model.profile import BASELINE_ID, Profile
from pytest_xlatune.model.result import VerdictKind, relative
from pytest_xlatune.model.trial import ConfirmDesign, Trial
from pytest_xlatune.stats.blocks import BlockFit, combine
from pytest_xlatune.stats.design import SECOND_RUNS, Plan, Refusal
from pytest_xlatune.studies.look import (
    SPARE,
    Look,
    design_of,
    frozen_arms,
    look_at_design,
    not_over,
)
from pytest_xlatune.studies.parts import bounds, entering
from pytest_xlatune.studies.screen import Ranking, Screened, screen
from pytest_xlatune.studies.slots import Slots
from pytest_xlatune.studies.trials import (
    AGAIN,
    ALIAS,
    Past,
    fitted,
    place,
)
from pytest_xlatune.studies.tuning_plan import JobNoise, TuningPlan
from pytest_xlatune.studies.turning import is_turned
from pytest_xlatune.studies.vetoes import Veto, of_arms
from pytest_xlatune.studies.waves import Waves

BOUND = 0.02  # a sweep in which nothing can gain more is bounded
FAR = 3.0  # standard deviations below the baselines, which noise hardly explains
_CLEARLY = 1.5  # times the spread of a screen, which the noise hardly exceeds


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksSoFar:
    """The blocks, as far as they came.

    Attributes:
        design: the design of the blocks that decide.
        planned: the trials of all blocks that can be planned.
        due: those of them that are not over.
        later: how many trials are likely to follow.
        going: arms that no cut has dropped, best first, the alias included.
        look: the look at the deciding blocks; None while some are missing.
        may_grow: whether spare blocks may follow those that are planned.
        added: the last spare block and why it was added; None without one.
    """

    design: ConfirmDesign
    planned: tuple[Trial, ...]
    due: tuple[Trial, ...]
    going: tuple[str, ...]
    later: int = 0
    look: Look | None = None
    may_grow: bool = True
    added: Message | None = None


@dataclass(frozen=True, kw_only=True)
class SweepDecision:
    """What runs next, and what follows from what ran. Its cached properties need no slots.

    Attributes:
        plan, arms, past, slots: what it was made of.
        taken: the arms that are out before anything is decided, and why.
        due: the trials to run next, in order; () when nothing is left.
        later: how many are likely to follow them, those that cannot be planned yet included.
        first: what the first runs of the screen say.
        ranks: what all its runs say.
        again: the profiles that have a second run.
        layout: the layout of the blocks.
        is_screened: whether the screen that this run is about is over.
        is_ranked: whether the whole screen is over, second runs too, so that blocks can be planned.
        entered: the finalists in rank order, then the alias if it runs.
        blocks: None where there are none.
    """

    plan: TuningPlan
    arms: Waves
    past: Past
    slots: Slots | None
    taken: Mapping[str, Veto]
    due: tuple[Trial, ...] = ()
    later: int = 0
    first: Ranking
    ranks: Ranking
    again: tuple[str, ...] = ()
    layout: Plan | Refusal
    is_screened: bool = False
    is_ranked: bool = False
    entered: tuple[Profile, ...] = ()
    blocks: BlocksSoFar | None = None

    @property
    def left(self) -> int:
        """How many trials are likely still to come."""
        return len(self.due) + self.later if self.due else 0

    @property
    def noise(self) -> JobNoise:
        """The noise of a job, to plan with."""
        return JobNoise(known=self.plan.sigma_prior, seen=self.ranks.sigma)

    @property
    def look(self) -> Look | None:
        """The look at the deciding blocks; None while some are missing."""
        return self.blocks.look if self.blocks else None

    @cached_property
    def in_blocks(self) -> BlockFit | None:
        """The least squares of all blocks, spare ones included."""
        return fitted(self.past.scored_in_blocks())

    @cached_property
    def finalists(self) -> tuple[str, ...]:
        """Those that entered the blocks, in rank order; the alias is none."""
        if not (self.past.confirm or (self.plan.confirm and self.is_screened)):
            return ()
        return tuple(profile.id for profile in self.entered if profile.id != ALIAS.id)

    @cached_property
    def kept(self) -> tuple[str, ...]:
        """The finalists that no cut has dropped so far."""
        going = self.blocks.going if self.blocks else ()
        return tuple(arm for arm in self.finalists if arm in going)

    @cached_property
    def able(self) -> Mapping[str, Profile]:
        """The profiles that can run, and are not the baseline under another name, by id."""
        return {
            name: profile
            for name, profile in self.arms.profiles.items()
            if self.arms.repeats.get(name) != BASELINE_ID and name not in self.taken
        }


def decide(plan: TuningPlan, arms: Waves, past: Past, slots: Slots | None = None) -> SweepDecision:
    """Return what runs next, and what follows from what ran: screen, narrow, look.

    Args:
        plan: the sweep with its arms as declared, and its jobs.
        arms: the arms that there are by now.
        past: the trials of the plan that stand.
        slots: the node slots that they lie on; None where there is one.
    """
    decision = rank(plan, arms, past, slots)
    to_screen = _to_screen(decision)
    screened = not_over(past, to_screen)
    decision = replace(decision, is_screened=not screened)
    decision = replace(decision, layout=lay_out(decision))
    second = second_runs(decision)
    again = not_over(past, second)
    decision = replace(decision, is_ranked=not (screened or arms.opens or again))
    if not again:
        decision = replace(decision, entered=enter(decision))
    layout = decision.layout
    is_due = past.confirm or (plan.confirm and not screened)
    if decision.entered and isinstance(layout, Plan) and is_due:
        decision = replace(decision, blocks=confirm(decision, layout))
    if screened:
        return replace(decision, due=screened, later=_behind_screen(decision))
    if again and plan.confirm:
        return replace(decision, due=again, later=_blocks_to_come(decision))
    blocks = decision.blocks
    if blocks is None or not plan.confirm or not _has_node(slots):
        return decision
    if not arms.candidates & {trial.arm for trial in blocks.planned}:
        return decision
    return replace(decision, due=blocks.due, later=blocks.later)


def rank(plan: TuningPlan, arms: Waves, past: Past, slots: Slots | None) -> SweepDecision:
    """Return what the screen says so far: each arm against the line of the baselines."""
    sigma = plan.noise.value
    first = screen(past, arms.queues, sigma=sigma)
    again = tuple(sorted(key.arm for key in past.screen if key.stage == AGAIN))
    ranks = screen(past, arms.queues, sigma=sigma, has_second=True) if again else first
    return SweepDecision(
        plan=plan,
        arms=arms,
        past=past,
        slots=slots,
        taken=of_arms(past, (*arms.profiles, ALIAS.id), tolerance=plan.loss_tolerance),
        first=first,
        ranks=ranks,
        again=again,
        layout=plan.layout,
    )


def _to_screen(decision: SweepDecision) -> tuple[Trial, ...]:
    """Return the trials of the selected waves, then the evidence run that others wait for."""
    arms = decision.arms
    if not _has_node(decision.slots):
        return ()
    asked = [trial for queue in arms.selected for trial in queue.trials if arms.is_asked(trial)]
    return (*asked, *([] if arms.evidence is None else [arms.evidence]))


def _has_node(slots: Slots | None) -> bool:
    return slots is None or bool(slots.alive)


def _behind_screen(decision: SweepDecision) -> int:
    """Return how many trials follow the waves that can be planned."""
    plan, arms, later = decision.plan, decision.arms, 0
    if arms.opens:
        ready = {queue.wave for queue in arms.plannable}
        later = (0 if plan.rotates else arms.unfilled) + sum(
            arms.is_asked(trial)
            and not decision.past.is_final(trial)
            and not is_turned(plan, trial)
            for queue in arms.queues
            if queue.wave not in ready
            for trial in queue.trials
        )
    layout, to_come = plan.layout, _blocks_to_come(decision)
    if not plan.confirm or isinstance(layout, Refusal) or not to_come:
        return later
    return later + to_come + (0 if decision.again else layout.again)


def _blocks_to_come(decision: SweepDecision) -> int:
    """Return how many trials of blocks are likely to follow; 0 where there are some already."""
    layout = decision.plan.layout
    if isinstance(layout, Refusal) or decision.past.confirm:
        return 0
    return layout.in_blocks


def _screened_jobs(decision: SweepDecision) -> int:
    """Return the jobs that the screen took or takes, second runs included."""
    return len(decision.arms.queued) + len(decision.again)


def lay_out(decision: SweepDecision) -> Plan | Refusal:
    """Return the layout of the blocks: as declared, until the screen is over.

    Jobs of profiles whose slot stayed empty go to the finalists.
    """
    plan, planned = decision.plan, decision.plan.layout
    if not decision.is_screened or decision.arms.opens or not isinstance(planned, Plan):
        return planned
    if plan.rotates:
        return planned  # no profile that turned leaves a job
    baselines = sum(trial.is_baseline for trial in decision.arms.queued)
    count = _screened_jobs(decision) - len(decision.again) - baselines
    # A screen has few jobs: in one sweep of twelve its spread is two thirds of the noise by
    # chance. So the spread is widened before a cell counts as quiet.
    seen = decision.first.spread
    sigma = plan.sigma_prior or (None if seen is None else _CLEARLY * seen)
    layout = plan.laid_out(count, plan.budget, sigma, baselines=baselines)
    if decision.again and not (isinstance(layout, Plan) and layout.again):
        # a profile came since: second runs go on, and the blocks get the jobs that remain
        again = SECOND_RUNS if decision.slots else len(decision.again)
        left = plan.budget - again
        layout = plan.laid_out(count, left, sigma, baselines=baselines, may_repeat=False)
        if isinstance(layout, Plan):
            return replace(layout, again=again, jobs=layout.jobs + again)
        return planned if decision.past.confirm else layout
    return layout if isinstance(layout, Plan) else planned


def second_runs(decision: SweepDecision) -> tuple[Trial, ...]:
    """Return the second runs of the best of the screen; none once there are blocks.

    Those that exist stay, and are filled up by what the first runs say.
    """
    layout, arms = decision.layout, decision.arms
    if isinstance(layout, Refusal) or not _has_node(decision.slots):
        return ()
    if not decision.is_screened or arms.opens or decision.past.confirm:
        return ()
    best = best_of(decision, decision.first, most=layout.again)
    if not decision.again and len(best) <= layout.finalists:
        return ()
    more = [arm for arm in best if arm not in decision.again]
    chosen = [*decision.again, *more[: max(layout.again - len(decision.again), 0)]]
    trials = decision.plan.orders.again([arms.profiles[arm] for arm in chosen])
    if decision.slots is not None:
        trials = decision.slots.dealt_again(trials, at_most=decision.plan.screen_slots)
    return tuple(trial for trial in trials if trial.arm in arms.candidates)


def _order(arms: Waves, ranking: Ranking) -> Mapping[str, tuple[float, int]]:
    """Return profile -> what it is sorted by: its estimate, and its place among equals."""
    places = {name: at for at, name in enumerate(arms.profiles)}
    return {
        name: (-screened.estimate, places[name]) for name, screened in ranking.standings.items()
    }


def best_of(
    decision: SweepDecision,
    ranking: Ranking,
    *,
    most: int,
    among: Collection[str] = (),
    always: Container[str] = (),
) -> list[str]:
    """Return the best profiles of a ranking that may help; those in `always` stay in any case.

    With `among` only these profiles are looked at.
    """
    order = _order(decision.arms, ranking)
    eligible = (arm for arm in order if not among or arm in among)
    chosen = (arm for arm in eligible if arm in always or _may_help(decision, arm, ranking))
    return entering(sorted(chosen, key=order.__getitem__), most, profiles=decision.arms.profiles)


def _may_help(decision: SweepDecision, arm: str, ranking: Ranking) -> bool:
    """Whether the screen leaves it possible that a profile helps."""
    arms = decision.arms
    if arm not in arms.candidates or arms.repeats.get(arm) == BASELINE_ID:
        return False
    if arm in decision.taken:
        return False
    screened = ranking.standings[arm]
    reach = 2 * decision.noise.value * math.sqrt(screened.variance)
    return math.isfinite(screened.estimate) and screened.estimate + reach > 0


def enter(decision: SweepDecision) -> tuple[Profile, ...]:
    """Return the finalists in rank order, then the alias where places are left.

    Arms that have confirming trials stay; a stage that was cut off while it was being planned is
    filled up to its own size by the same rule that began it.
    """
    layout = decision.layout
    if isinstance(layout, Refusal):
        return ()
    size = design_of(decision.past, layout, arms=0).arms  # 0 where no stage began
    most = max(layout.finalists, size)
    chosen = best_of(decision, decision.ranks, most=most, among=decision.again)
    if chosen and len(chosen) < layout.finalists:
        chosen.append(ALIAS.id)
    if frozen := frozen_arms(decision.past):
        chosen = [arm for arm in chosen if arm not in frozen]
        chosen = [*frozen, *chosen[: max(size - len(frozen), 0)]]
    order = _order(decision.arms, decision.ranks)
    declared = {**decision.arms.profiles, ALIAS.id: ALIAS}
    ordered = sorted(chosen, key=lambda arm: order.get(arm, (math.inf, 0)))
    return tuple(declared[arm] for arm in ordered if arm in declared)


def confirm(decision: SweepDecision, layout: Plan) -> BlocksSoFar:
    """Lay out blocks of falling width; cut between them, look when all that decide are complete.

    A cut is a function of the screen and of the blocks before it alone.
    """
    plan, past = decision.plan, decision.past
    design = design_of(past, layout, arms=len(decision.entered))
    widths = design.widths or (design.arms,) * design.blocks
    profiles = {profile.id: profile for profile in decision.entered}
    going = tuple(profiles)
    planned: tuple[Trial, ...] = ()
    for number, width in enumerate(widths, start=1):
        if number > 1 and width < widths[number - 2]:
            if due := not_over(past, planned):
                later = widths[number - 1 :]
                return BlocksSoFar(
                    design=design,
                    planned=planned,
                    due=due,
                    going=going,
                    later=sum(later) + len(later) * design.baselines,
                )
            going = _narrowed(decision, going, width, profiles, design, after=number - 1)
        staying = [profiles[arm] for arm in going if arm not in past.dropped]
        planned += _block(decision, staying, number, design)
    jobs = plan.budget - _screened_jobs(decision) if plan.may_spare else 0
    blocks = BlocksSoFar(
        design=design,
        planned=planned,
        due=not_over(past, planned),
        going=going,
        may_grow=jobs > 0,
    )
    if blocks.due:
        return blocks
    look = look_at_design(past, design, blocks.going)
    is_won = any(kind is VerdictKind.FASTER for arm, kind in look.kinds.items() if arm != ALIAS.id)
    if is_won:
        return replace(blocks, look=look, may_grow=False)
    return _with_spare_blocks(decision, replace(blocks, look=look), jobs)


def _block(
    decision: SweepDecision, arms: Sequence[Profile], number: int, design: ConfirmDesign
) -> tuple[Trial, ...]:
    """Return a block in its drawn order, on its node slot."""
    trials = decision.plan.orders.blocks(arms, [number], design=design)
    return trials if decision.slots is None else decision.slots.lay(trials)


def _narrowed(
    decision: SweepDecision,
    going: Sequence[str],
    width: int,
    profiles: Mapping[str, Profile],
    design: ConfirmDesign,
    *,
    after: int,
) -> tuple[str, ...]:
    """Return the arms that go on after a block, best first; those that did already have passed."""
    ranked = _promising(decision, going, design, after)
    passed = frozen_arms(decision.past, after=after)
    able = [arm for arm in ranked if arm != ALIAS.id]
    frozen = [arm for arm in ranked if arm in passed]
    chosen = entering(able, width, profiles=profiles, frozen=frozen)
    if len(chosen) < width and ALIAS.id in ranked and ALIAS.id not in chosen:
        chosen.append(ALIAS.id)
    # a dropped arm can never win: with the critical value of all that entered, the cut needs no
    # alpha of its own
    return tuple(arm for arm in ranked if arm in chosen)


def _promising(
    decision: SweepDecision, going: Sequence[str], design: ConfirmDesign, after: int
) -> tuple[str, ...]:
    """Return the arms that may go on, best first by screen and blocks together, the alias last.

    A measurement that an arm lacks counts as one at the baseline's level: a lost run is no reason
    to stay, and none to leave.
    """
    fit = fitted(decision.past.scored_in_blocks(designs=(design,), until=after))
    lacking = (0.0, (1 + 1 / design.baselines) / after)

    def promise(arm: str) -> float:
        screened = decision.ranks.standings.get(arm) or Screened(estimate=0.0, variance=1.0)
        inside = fit.arms.get(arm) if fit is not None else None
        here = (inside.estimate, inside.variance) if inside is not None else lacking
        return combine([(screened.estimate, screened.variance), here])[0]

    sound = [arm for arm in going if arm not in decision.taken]
    return tuple(sorted(sound, key=lambda e: (e == ALIAS.id, -promise(e), going.index(e))))


def _with_spare_blocks(decision: SweepDecision, blocks: BlocksSoFar, jobs: int) -> BlocksSoFar:
    """Add spare blocks while there is a use for one, in so many jobs of all blocks."""
    past = decision.past
    others = {
        name: profile for name, profile in decision.able.items() if name in decision.arms.candidates
    }
    spare = ConfirmDesign(look=SPARE, arms=0, blocks=0, baselines=blocks.design.baselines)
    number = max(trial.block for trial in blocks.planned)
    while not blocks.due:
        number += 1
        ran = {key for key, result in past.confirm.items() if result.status.is_final}
        taken = len(ran | {place(trial) for trial in blocks.planned})
        free = jobs - taken - spare.baselines
        chosen = _spared(decision, others, blocks.going, before=number, free=free)
        if not chosen:
            return blocks
        trials = _block(decision, [others[arm] for arm in chosen], number, spare)
        blocks = replace(
            blocks,
            planned=(*blocks.planned, *trials),
            due=not_over(past, trials),
            added=say(
                "block {block} is added: nothing is faster, and what {arms} may gain is "
                "not narrow yet",
                block=number,
                arms=at_most(4, sorted(chosen)),
            ),
        )
    return blocks


def _spared(
    decision: SweepDecision,
    others: Mapping[str, Profile],
    going: Sequence[str],
    *,
    before: int,
    free: int,
) -> list[str]:
    """Return which profiles a spare block holds; none where there is no use or no job left.

    They are those that keep the sweep from being bounded. Those that are in it already stay,
    whatever is read since.

    Args:
        decision: what the sweep comes to so far.
        others: the profiles that it may hold, by id.
        going: the arms that no cut has dropped.
        before: the number of the block.
        free: for how many profiles there is room.
    """
    past = decision.past
    held = {key.arm for key in past.confirm if key.block == before} & others.keys()
    fit = fitted(past.scored_in_blocks(until=before - 1))
    may_gain = bounds(decision.ranks, fit, others, kept=going)
    # A profile without a score may gain anything, so the bound M does not hold for it. One that
    # lost its run in the screen gets a second run here, and no third.
    tried = {key.arm for key in past.confirm if key.block < before}
    # Without these blocks 29 % of sweeps without an effect could exclude a gain of 2 % (50 jobs,
    # 0.6 % noise); with them 73 % can, in 65 jobs.
    wanted = [
        arm
        for arm in sorted(may_gain, key=lambda arm: (-may_gain[arm], arm))
        if relative(min(may_gain[arm], 1.0)) >= BOUND
        and (math.isfinite(may_gain[arm]) or arm not in tried)
        and arm not in held
    ]
    return [*sorted(held), *wanted[: max(free - len(held), 0)]]
