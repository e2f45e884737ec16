"""Forecast what a sweep still has to run, and write the lines of a plan about it.

This module decides nothing: what is likely to follow depends on results that do not exist yet.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pytest_xlatune.model.message import Message, MessageCode, coded, say
from pytest_xlatune.model.sentences import RANKING_ONLY
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.design import Plan
from pytest_xlatune.stats.rotations import COPIES, FIRST_STEPS, LOOK_JOBS, RANKINGS, JobWork
from pytest_xlatune.studies import Outlook
from pytest_xlatune.studies.engine import SweepDecision
from pytest_xlatune.studies.trials import pace_of
from pytest_xlatune.studies.tuning_plan import DEFAULT_SIGMA, TuningPlan
from pytest_xlatune.studies.turning import Rotations, is_turned, next_rotation

_SIGMAS = (0.003, 0.006, 0.010)  # job noise of a quiet, a usual and a noisy cell


def outlook_of(
    study: TuningPlan, sweep: SweepDecision, so_far: Rotations, *, due: tuple[Trial, ...]
) -> Outlook:
    """Return what is still to come, and the lines of a plan about the sweep.

    Args:
        study: the sweep as declared.
        sweep: its decision so far; a program of a rotation counts as a trial.
        so_far: the rotations so far.
        due: the trials that run next.
    """
    plan, jobs = sweep.ranked.plan, [*sweep.due, *_waiting(sweep)]
    after_look = next_rotation(plan, so_far, sweep.due) if so_far.look is None else None
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
        filled = sweep.ranked.arms.messages
        return (*_rotation_lines(study), *_trial_lines(study, screened=screened, filled=filled))

    past, at_most = sweep.ranked.past, left
    if sweep.due and plan.confirm and plan.may_spare and isinstance(plan.layout, Plan):
        results = (*past.screen.values(), *past.confirm.values())
        at_most = max(left, plan.budget - sum(result.status.is_final for result in results))
    return Outlook(
        ahead=ahead,
        left=left,
        at_most=at_most,
        rounds=_rounds(plan, left),
        work=_work(plan, due, jobs_left, rotations_left) if rotations_left else None,
        write_lines=lines,
    )


def _rounds(plan: TuningPlan, left: int) -> int:
    """Return how many of the jobs to come follow one another on a slot; 0 if there is one slot."""
    layout, slots = plan.layout, len(plan.cells)
    if slots == 1 or not isinstance(layout, Plan):
        return math.ceil(left / slots) if slots > 1 else 0
    in_blocks = min(left, layout.in_blocks)
    widest = layout.finalists + layout.block_baselines
    of_blocks = math.ceil(layout.blocks / slots) * widest * in_blocks / layout.in_blocks
    return math.ceil((left - in_blocks) / plan.screen_slots) + math.ceil(of_blocks)


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
    ranked, layout, blocks = sweep.ranked, sweep.ranked.plan.layout, sweep.blocks
    if not sweep.due:
        return 0
    if blocks is not None and sweep.is_screened:
        last_planned = max(trial.block for trial in blocks.planned)
        widths = blocks.design.all_widths[last_planned:]
        return sum(widths) + len(widths) * blocks.design.baselines
    later = 0 if sweep.is_screened else _not_planned(sweep)
    if ranked.plan.confirm and isinstance(layout, Plan) and not ranked.past.confirm:
        later += layout.in_blocks
        later += 0 if ranked.again or sweep.is_screened else layout.again
    return later


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
    layout, sigma = sweep.layout, sweep.sigma_prior
    slots = [
        say("{wave}: {slots:+slot} for {fills}", wave=rule.wave, slots=rule.slots, fills=rule.fills)
        for rule in sweep.rules
    ]
    more = say(", and those of derived waves") if sweep.rules else None
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
