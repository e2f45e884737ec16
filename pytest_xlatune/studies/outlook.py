"""Forecast what a sweep still has to run, and write the lines of a plan about it.

This module decides nothing: what is likely to follow depends on results that do not exist yet.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.message import Message, MessageCode, coded, say
from pytest_xlatune.model.sentences import RANKING_ONLY
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.design import (
    SECOND_RUNS,
    Plan,
    Refusal,
    jobs_for_second_runs,
    screen_slots,
    unused,
)
from pytest_xlatune.stats.rotations import COPIES, FIRST_STEPS, LOOK_JOBS, RANKINGS, JobWork
from pytest_xlatune.studies import History, Outlook
from pytest_xlatune.studies.derived import Rule, Singles
from pytest_xlatune.studies.engine import SweepDecision
from pytest_xlatune.studies.trials import pace_of
from pytest_xlatune.studies.tuning_plan import DEFAULT_SIGMA, TuningPlan
from pytest_xlatune.studies.turning import Rotations, is_turned, next_rotation

_SIGMAS = (0.003, 0.006, 0.010)  # job noise of a quiet, a usual and a noisy cell


def outlook_of(
    study: TuningPlan,
    history: History,
    sweep: SweepDecision,
    so_far: Rotations,
    *,
    due: tuple[Trial, ...],
    foreseen: SweepDecision,
) -> Outlook:
    """Return what is still to come, and the lines of a plan about the sweep.

    Args:
        study: the sweep as declared.
        history: the results so far.
        sweep: the decision that follows from them; a program of a rotation counts as a trial.
        so_far: the rotations so far.
        due: the trials that run next.
        foreseen: the decision as if the evidence run that waves wait for showed nothing; it has the
            trials after that run.
    """
    plan, jobs = foreseen.ranked.plan, [*foreseen.due, *_waiting(foreseen)]
    after_look = next_rotation(plan, so_far, foreseen.due) if so_far.look is None else None
    known_trials = (
        *due,
        *([] if after_look is None else [after_look]),
        *(job for job in jobs if not is_turned(plan, job)),
    )
    ahead = tuple({trial.id: trial for trial in known_trials}.values())
    jobs_left, rotations_left = _left(sweep, so_far)
    left = jobs_left + rotations_left

    def lines() -> tuple[Message, ...]:
        screened = sum(trial.is_screened for trial in ahead)
        filled = foreseen.ranked.arms.messages
        return (*_rotation_lines(study), *_trial_lines(study, screened=screened, filled=filled))

    return Outlook(
        ahead=ahead,
        left=left,
        at_most=_at_most(sweep, left),
        rounds=left if study.rotates else _rounds(study, sweep, history),
        work=_work(sweep.ranked.plan, due, jobs_left, rotations_left) if rotations_left else None,
        write_lines=lines,
    )


def _waiting(sweep: SweepDecision) -> Iterator[Trial]:
    """Yield the trials of declared profiles whose wave comes after one that is still open."""
    arms = sweep.ranked.arms
    declared = {profile.id for profile in sweep.ranked.plan.profiles} & arms.candidates
    for queue in arms.queues[len(arms.plannable) :]:
        if any(trial.arm in declared for trial in queue.trials):
            trials = (trial for trial in queue.trials if trial.is_baseline or trial.arm in declared)
            yield from sweep.ranked.past.not_over(trials)


def _left(sweep: SweepDecision, so_far: Rotations) -> tuple[int, int]:
    """Return how many jobs, and how many rotations, are likely still to come."""
    plan, due = sweep.ranked.plan, sweep.due
    turned = sum(is_turned(plan, trial) for trial in due)
    jobs = len(due) + _later(sweep)
    if not turned and not (plan.rotates and sweep.ranked.arms.open_waves):
        return jobs, 0
    over = sum(result.status.is_final for result in (*so_far.looks, *so_far.numbered))
    pace = None if so_far.look is None else pace_of([so_far.look])
    rotations = plan.rotations - RANKINGS + plan.turns_by(pace).rankings - over
    return jobs - turned, max(rotations, 1)


def _later(sweep: SweepDecision) -> int:
    """Return how many trials are likely to follow those that are due, planned or not."""
    if not sweep.due:
        return 0
    ranked, planned = sweep.ranked, sweep.ranked.plan.layout
    blocks, layout = sweep.blocks, planned if isinstance(planned, Plan) else None
    if blocks is not None and sweep.is_screened:
        last_planned = max(trial.block for trial in blocks.planned)
        widths = blocks.design.all_widths[last_planned:]
        return sum(widths) + len(widths) * blocks.design.baselines
    in_blocks = 0 if layout is None or ranked.past.confirm else layout.in_blocks
    if sweep.is_screened:
        return in_blocks
    later = _not_planned(sweep)
    if layout is None or not ranked.plan.confirm or not in_blocks:
        return later
    return later + in_blocks + (0 if ranked.again else layout.again)


def _not_planned(sweep: SweepDecision) -> int:
    """Return how many jobs follow in waves that cannot be planned yet."""
    plan, arms = sweep.ranked.plan, sweep.ranked.arms
    if not arms.open_waves:
        return 0
    plannable = {queue.wave for queue in arms.plannable}
    later = [
        trial for queue in arms.queues if queue.wave not in plannable for trial in queue.trials
    ]
    known_jobs = sum(
        arms.is_selected(trial) and not is_turned(plan, trial)
        for trial in sweep.ranked.past.not_over(later)
    )
    return known_jobs if plan.rotates else known_jobs + arms.unfilled


def _at_most(sweep: SweepDecision, left: int) -> int:
    """Return how many trials may still come: the rest of the budget, if blocks may be added.

    If all blocks are over and none was added, none will be added.
    """
    ranked, plan = sweep.ranked, sweep.ranked.plan
    is_fixed = not (plan.confirm and plan.may_spare) or isinstance(plan.layout, Refusal)
    if is_fixed or not sweep.due:
        return left
    likely = len(sweep.due) + _later(sweep)
    blocks = sweep.blocks if sweep.is_ranked else None
    if blocks is not None:
        are_planned = max(trial.block for trial in blocks.planned) >= blocks.design.blocks
        has_winner = blocks.block_comparison is not None and blocks.block_comparison.has_winner
        if are_planned and (has_winner or ranked.jobs_of_blocks <= 0):
            return likely
    past = ranked.past
    spent = sum(
        result.status.is_final for result in (*past.screen.values(), *past.confirm.values())
    )
    evidence_runs = 1 if ranked.arms.evidence is not None else 0  # it is not part of the budget
    return max(likely, plan.budget - spent + evidence_runs)


def _rounds(study: TuningPlan, sweep: SweepDecision, history: History) -> int:
    """Return how many of the trials to come must follow one another on their nodes."""
    layout, slots = study.layout, len(study.cells)
    loads = Counter(trial.cell_digest for trial in sweep.due)
    longest, later = max(loads.values(), default=0), _later(sweep)
    if not later:
        return longest
    if isinstance(layout, Refusal) or any(trial.block for trial in sweep.due):
        return longest + math.ceil(later / slots)
    stages = {trial.stage for trial in (*sweep.due, *(result.trial for result in history))}
    runs = _derived_runs(rule for rule in study.rules if rule.wave not in stages)
    runs += (layout.again,) if later >= layout.in_blocks + layout.again else ()
    block_rounds = _rounds_of_blocks(layout, slots) if later >= layout.in_blocks else later
    return longest + _rounds_of_screen(runs, layout, slots) + block_rounds


def _rounds_of_screen(runs: Sequence[int], layout: Plan, slots: int) -> int:
    """Return how many trials follow one another on a slot, for waves of `runs` trials each."""
    used = screen_slots(slots, layout.profiles)
    return sum(math.ceil(count / used) for count in runs)


def _rounds_of_blocks(layout: Plan, slots: int) -> int:
    """Return how many trials of the blocks follow one another on a slot."""
    return sum(
        math.ceil(len(list(same)) / slots) * (width + layout.block_baselines)
        for width, same in groupby(layout.widths)
    )


def _derived_runs(rules: Iterable[Rule]) -> tuple[int, ...]:
    """Return the number of trials of each derived wave, baseline included."""
    counts: Counter[str] = Counter()
    for rule in rules:
        counts[rule.wave] += rule.slots
    return tuple(count + 1 for count in counts.values())  # each wave has a baseline


def _slot_lines(
    cells: Sequence[Cell], layout: Plan, rules: Sequence[Rule], *, is_stated: bool
) -> tuple[Message, ...]:
    """Return the lines of a plan about node slots; () if there is only one slot.

    Unless the sweep states its blocks, a line says which budget would find smaller effects.
    """
    if len(cells) == 1:
        return ()
    derived = _derived_runs(rules)
    first = max(layout.profiles + layout.screen_baselines - sum(derived), 0)
    screen = _rounds_of_screen((first, *derived, layout.again), layout, len(cells))
    blocks = _rounds_of_blocks(layout, len(cells))
    used = screen_slots(len(cells), layout.profiles)
    side_by_side = say(
        "{slots} slots of {nodes:+node} side by side{used}: {screen} rounds of the screen "
        "and {blocks} of the blocks, so that {rounds} trials follow one another and not "
        "{jobs}",
        slots=len(cells),
        nodes=len(cells[0].nodelist),
        used=say(" (the screen uses {slots} of them)", slots=used) if used < len(cells) else None,
        screen=screen,
        blocks=blocks,
        rounds=screen + blocks,
        jobs=layout.jobs,
    )
    jobs = 0 if is_stated else jobs_for_second_runs(layout, slots=len(cells))
    if not jobs:
        return (side_by_side,)
    return (
        side_by_side,
        say(
            "with {jobs} jobs (--xlatune-budget {jobs}) the best {again} of the screen run a "
            "second time, and the sweep finds smaller effects",
            jobs=jobs,
            again=SECOND_RUNS,
        ),
    )


def _work(plan: TuningPlan, due: Sequence[Trial], jobs: int, rotations: int) -> JobWork:
    """Return the work of the trials to come: ordinary jobs, and rotations.

    Rotations that are not due yet are assumed to have all profiles that can take turns.

    Args:
        plan: the plan of the sweep.
        due: the trials that are due.
        jobs: the number of ordinary jobs to come, including those that are due.
        rotations: the number of rotations to come, including those that are due.
    """
    total = JobWork(jobs=jobs, steps=jobs * plan.cell.protocol.steps)
    for trial in due:
        if trial.rotation is not None:
            programs = len(trial.rotation.spec.programs)
            total += JobWork(jobs=1, steps=trial.protocol.steps, compilations=programs)
            rotations -= 1
    count, programs = max(rotations, 0), plan.turned + COPIES
    steps = plan.turns.steps(programs) + FIRST_STEPS
    return total + JobWork(jobs=count, steps=count * steps, compilations=count * programs)


def _rotation_lines(plan: TuningPlan) -> tuple[Message, ...]:
    """Return the lines of a plan about rotations: which profiles take turns, and which are jobs."""
    if plan.rotation is None:
        return ()
    if plan.why_none_rotates is not None:
        return (say("no profile rotates: {why}", why=plan.why_none_rotates),)
    turns = plan.turns
    turning = [profile.id for profile in plan.profiles if plan.can_turn(profile)]
    lines = [
        *(
            say(
                "{wave} searches: {slots} {fills}; half of each rotation but the first are steps "
                "from the best so far, the others are drawn",
                wave=search.wave,
                slots=search.slots,
                fills=search.fills,
            )
            for search in plan.searches
        ),
        say(
            "ranked in rotations: {arms}. A look, then {rotations:+rotation}, the baseline "
            "{copies} times in each. A turn has {turn_steps:+step}, a rotation {rounds:+round} "
            "or so: {steps} steps. Ordinary jobs decide",
            arms=(*turning, *(search.wave for search in plan.searches)),
            rotations=plan.rotations - LOOK_JOBS - RANKINGS + turns.rankings,
            copies=COPIES,
            turn_steps=turns.turn_steps,
            rounds=turns.rounds,
            steps=turns.steps(plan.turned + COPIES),
        ),
    ]
    arms_by_reason: dict[Message, list[str]] = {}
    for profile in plan.profiles:
        options = plan.turn_options(profile)
        if isinstance(options, Message):
            arms_by_reason.setdefault(options, []).append(profile.id)
    lines += (
        say("as jobs: {arms}, because {why}", arms=arms, why=why)
        for why, arms in arms_by_reason.items()
    )
    rotating, not_rotating = plan.works
    lines.append(
        say(
            "with rotation {jobs:+job} and {steps} steps of the trainer, without it "
            "{others:+job} and {other_steps} steps",
            jobs=rotating.jobs,
            steps=rotating.steps,
            others=not_rotating.jobs,
            other_steps=not_rotating.steps,
        )
    )
    return tuple(lines)


def _trial_lines(
    sweep: TuningPlan, *, screened: int, filled: Sequence[Message]
) -> tuple[Message, ...]:
    """Return the lines of a plan about a sweep: trials, slots, and the smallest effect it finds.

    Args:
        sweep: the sweep that is planned.
        screened: number of trials of the screen that are planned by now.
        filled: messages on how slots of derived waves are filled so far.
    """
    layout, rules, sigma = sweep.layout, sweep.rules, sweep.sigma_prior
    slots = [
        say(
            "{wave}: {slots:+slot} for {fills}; {known}",
            wave=rule.wave,
            slots=rule.slots,
            fills=rule.fills,
            known=_known_when(rule),
        )
        for rule in rules
    ]
    more = say(", and those of derived waves") if sweep.policy.derives else None
    if not isinstance(layout, Plan):
        trials = say("{trials} trials{more}", trials=screened, more=more)
        return (trials, *slots, say(RANKING_ONLY, why=layout.why), *filled)
    smallest_gains = [
        say(
            "{start:size} ({finalist:size}) at {sigma:size} job noise",
            start=layout.from_start80(noise),
            finalist=layout.mde80(noise),
            sigma=noise,
        )
        for noise in (_SIGMAS if sigma is None else (sigma,))
    ]
    jobs = say("{jobs} jobs of {budget}", jobs=layout.jobs, budget=sweep.budget)
    if sweep.may_spare and sweep.budget > layout.jobs:
        jobs = say(
            "{jobs} jobs, up to {most} where nothing is faster: further blocks lower the "
            "largest gain that is still possible",
            jobs=layout.jobs,
            most=sweep.budget,
        )
    spare = None if sweep.is_stated or sweep.rotates else unused(layout, sweep.budget)
    trials = say(
        "{screened} trials of the screen{more}, then {blocks}: {jobs}",
        screened=screened,
        more=more,
        blocks=layout.shape,
        jobs=jobs,
    )
    if sweep.rotates and not screened:
        trials = say("after the rotations {blocks}", blocks=layout.shape)
    return (
        trials,
        *([spare] if spare else []),
        *_slot_lines(sweep.cells, layout, rules, is_stated=sweep.is_stated),
        *slots,
        coded(
            MessageCode.SMALLEST_GAIN,
            "the smallest gain that this sweep finds with 80 % power (in brackets: that of a "
            "finalist): {seen}{assumed}",
            seen=smallest_gains,
            assumed=say(
                "; {sigma:size} is assumed, because this cell was not calibrated: "
                "`xlatune calibrate SWEEP_FILE`",
                sigma=DEFAULT_SIGMA,
            )
            if sigma is None
            else None,
        ),
        *filled,
    )


def _known_when(rule: Rule) -> Message:
    """Return when it is known which profiles fill the slots of a rule."""
    if not isinstance(rule, Singles):
        return say("their results decide which profiles")
    return say(
        "until that evidence run, one more job, they are in declared order"
        if rule.evidence
        else "a profile that is left out, or needs no run, gives its slot to the next"
    )
