"""Find the profiles that make a cell faster: screen once, confirm on fresh blocks, conclude.

Every profile is measured once, in random order among baselines; this ranks. On many node slots the
best run a second time. The best few enter a block with baselines, the best of these enter further
blocks, each in its own random order, and only those that stay to the end get a verdict. The study
is pure and deterministic: every process with the same study and history proposes and concludes the
same. This module must not know of executors, ledgers, clocks or logs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from pytest_xlatune.model.message import Message, MessageCode, coded, say
from pytest_xlatune.model.profile import BASELINE_ID
from pytest_xlatune.model.result import Conclusion
from pytest_xlatune.model.sentences import RANKING_ONLY
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.design import Plan
from pytest_xlatune.stats.rotations import COPIES, LOOK_JOBS, RANKINGS, JobWork
from pytest_xlatune.studies import (
    NOT_YET,
    Answer,
    Ask,
    Decision,
    History,
    Outlook,
    Question,
    all_selected,
    remembered,
)
from pytest_xlatune.studies.conclude import conclusion
from pytest_xlatune.studies.engine import SweepDecision, decide
from pytest_xlatune.studies.slots import Slots
from pytest_xlatune.studies.trials import AGAIN, pace_of, wave_order
from pytest_xlatune.studies.tuning_plan import DEFAULT_SIGMA, RotationRule, TuningPlan
from pytest_xlatune.studies.turning import (
    Rotations,
    next_rotation,
    rotations,
    turned_trials,
    with_rotations,
)
from pytest_xlatune.studies.verdicts import arm_answer, as_answer, deployed

__all__ = ["RotationRule", "TuningStudy"]

_EVIDENCE_WAVE = "wave1_5"  # the wave to which the evidence run belongs
_SIGMAS = (0.003, 0.006, 0.010)  # job noise of a quiet, a usual and a noisy cell


class TuningStudy(TuningPlan, frozen=True, kw_only=True, dict=True):
    """A sweep of profiles over one cell."""

    @remembered
    def rotations_so_far(self, history: History) -> Rotations:
        """Return the rotations so far, with their programs as trials."""
        return rotations(self, history)

    @remembered
    def state(self, history: History) -> SweepDecision:
        """Return the state of the sweep, with rotations replaced by trials of their programs."""
        if self.slots:
            slots = Slots(names=tuple(self.nodes), seed=self.seed, history=tuple(history))
            return decide(self, slots.counted_results, slots)
        so_far, plan = self.rotations_so_far(history), self
        if self.rotates and so_far.why_not is not None:
            plan = self.after_failed_rotations(len(so_far.trials))
        return decide(plan, so_far.results)

    @remembered
    def decide(self, history: History) -> Decision:
        """Return the trials to run next, and what follows from the results so far."""
        sweep, so_far = self.state(history), self.rotations_so_far(history)
        profiles = sweep.arms.profiles.values()
        return Decision(
            due=with_rotations(sweep.screened.plan, so_far, sweep.due),
            arms=(deployed(self.cell), *(deployed(self.cell, profile) for profile in profiles)),
            concluded=lambda: self._concluded(sweep, so_far),
        )

    def _concluded(self, sweep: SweepDecision, so_far: Rotations) -> Conclusion:
        """Return the conclusion of the sweep, with a note on its rotations first."""
        concluded, note = conclusion(sweep), so_far.message if so_far.numbered else None
        if self.rotates and so_far.why_not is not None:
            note = so_far.why_not
        is_lost = so_far.is_lost and not sweep.entered
        return replace(
            concluded,
            complete=concluded.complete and not is_lost,
            notes=concluded.notes if note is None else (note, *concluded.notes),
        )

    def answer(self, history: History, question: Question) -> Answer:
        """Return the answer to a waiting test, the same in every run of the sweep.

        The verdicts of a wave are those of the screen when the wave is over; those of the
        confirmation are given when everything is over.
        """
        pending, arms = self.state(history).due, self.decide(history).arms
        if question.about in (Ask.REFERENCE, Ask.SCREENED, Ask.SLOT):
            if any(_belongs_to_wave(question.wave, trial) for trial in pending):
                return NOT_YET
            if question.about is Ask.SLOT:
                filled = self.state(history).arms.slots.get(question.name)
                return arm_answer(filled.id if filled else "", arms)
            is_reference = question.about is Ask.REFERENCE
            wave, name = ("", BASELINE_ID) if is_reference else (question.wave, question.name)
            screen = tuple(e for e in history if _belongs_to_wave(wave, e.trial))
            return as_answer(self.decide(screen).conclusion.verdict(name))
        if question.about is Ask.RANKED and not pending:
            entered = self.decide(history).conclusion.tuning.finalists
            # The finalists are numbered in file order, because ranks may still change while names
            # of tests may not.
            in_file_order = [arm.id for arm in arms if arm.id in entered]
            return arm_answer("".join(in_file_order[question.number :][:1]), arms)
        study = all_selected(self) if question.about is Ask.PROVEN else self
        return super(TuningStudy, study).answer(history, question)

    @remembered
    def outlook(self, history: History) -> Outlook:
        """Return what is still to come, and the lines of a plan about the sweep."""
        sweep, so_far = self.state(history), self.rotations_so_far(history)
        plan, arms, past = sweep.screened.plan, sweep.arms, sweep.screened.past
        due, turned = self.decide(history).due, turned_trials(plan, sweep.due)
        ahead = list(due)
        if turned and so_far.look is None:
            ahead.append(next_rotation(plan, so_far, turned))
        if due:  # profiles of later waves have a name already
            queues = (queue.trials for queue in arms.queues if queue.has_profiles)
            waiting = [
                trial
                for trials in queues
                if any(trial.arm in arms.candidates for trial in trials)
                for trial in past.not_over(trials)
                if arms.is_selected(trial)
            ]
            later_turns = turned_trials(plan, waiting)
            ahead += (trial for trial in (*sweep.due, *waiting) if trial not in later_turns)
        known = tuple({trial.id: trial for trial in ahead if trial not in turned}.values())
        results = (*past.screen.values(), *past.confirm.values())
        over = sum(result.status.is_final and result.rotation is None for result in results)
        jobs = _jobs_left(sweep, known, over)
        rotations_left = 0
        if turned or (plan.rotates and arms.open_waves and due):
            pace = None if so_far.look is None else pace_of([so_far.look])
            most = plan.rotations - RANKINGS + plan.turns_by(pace).rankings
            rotations_left = max(most - sum(e.status.is_final for e in so_far.trials), 1)
        left = at_most = jobs + rotations_left
        if due and plan.confirm and plan.may_spare and isinstance(plan.layout, Plan):
            at_most = max(left, plan.budget - over)
        work = None
        if rotations_left:
            steps = jobs * plan.cell.protocol.steps
            work = JobWork(jobs=jobs, steps=steps) + _rotation_work(plan, due, rotations_left)
        screened = sum(trial.is_screened for trial in known)
        return Outlook(
            ahead=known,
            left=left,
            at_most=at_most,
            rounds=_rounds(plan, left),
            work=work,
            write_lines=lambda: (
                *_rotation_lines(self),
                *_trial_lines(self, screened=screened),
                *arms.messages,
            ),
        )


def _belongs_to_wave(wave: str, trial: Trial) -> bool:
    """Return whether a trial outside blocks belongs to a wave, or to one before it.

    Second runs belong to no wave; "" means the last wave.
    """
    if trial.rotation is not None:
        return True  # a rotation may hold programs of any wave
    stage = trial.stage if trial.protocol.is_scored else _EVIDENCE_WAVE
    is_of_wave = not trial.block and stage != AGAIN
    return is_of_wave and (not wave or wave_order(stage) <= wave_order(wave))


def _jobs_left(sweep: SweepDecision, known: Sequence[Trial], over: int) -> int:
    """Return how many ordinary jobs are likely still to come.

    `known` are the trials that have a name already; `over` counts the jobs that have ended.
    """
    plan, layout, blocks = sweep.screened.plan, sweep.screened.plan.layout, sweep.blocks
    jobs = sum(trial.rotation is None for trial in known)
    if not sweep.due:
        return 0
    if blocks is not None and sweep.is_screened:
        last_planned = max(trial.block for trial in blocks.planned)
        widths = blocks.design.all_widths[last_planned:]
        return jobs + sum(widths) + len(widths) * blocks.design.baselines
    if plan.confirm and isinstance(layout, Plan) and not sweep.screened.past.confirm:
        return max(layout.jobs - plan.rotations - over, jobs)
    return jobs if plan.rotates else jobs + sweep.arms.unfilled


def _rotation_work(plan: TuningPlan, due: Sequence[Trial], count: int) -> JobWork:
    """Return the work of some rotations, of which those in `due` are known.

    Rotations that are not due yet are assumed to have all profiles that can take turns.
    """
    known = [
        JobWork(jobs=1, steps=trial.protocol.steps, compilations=len(trial.rotation.spec.programs))
        for trial in due
        if trial.rotation is not None
    ]
    return sum(known, start=plan.rotation_work(max(count - len(known), 0)))


def _rounds(plan: TuningPlan, left: int) -> int:
    """Return how many of the jobs to come follow one another on a slot; 0 if there is one slot."""
    slots, layout = len(plan.cells), plan.layout
    if slots == 1:
        return 0
    in_blocks = min(left, layout.in_blocks) if isinstance(layout, Plan) else 0
    beside = min(slots, layout.blocks) if isinstance(layout, Plan) else slots
    return math.ceil((left - in_blocks) / plan.screen_slots) + math.ceil(in_blocks / beside)


def _rotation_lines(plan: TuningPlan) -> Iterator[Message]:
    """Yield the lines of a plan about rotations: which profiles take turns, and which are jobs."""
    if plan.rotation is None:
        return
    if plan.why_none_rotates is not None:
        yield say("no profile rotates: {why}", why=plan.why_none_rotates)
        return
    turns = plan.turns_by()
    turning = [profile.id for profile in plan.profiles if plan.can_turn(profile)]
    yield say(
        "ranked in rotations: {arms}. A look, then {rotations:+rotation}, the baseline "
        "{copies} times in each. A turn has {turn_steps:+step}, a rotation {rounds:+round} "
        "or so: {steps} steps. Ordinary jobs decide",
        arms=(*turning, *(search.wave for search in plan.searches)),
        rotations=plan.rotations - LOOK_JOBS - RANKINGS + turns.rankings,
        copies=COPIES,
        turn_steps=turns.turn_steps,
        rounds=turns.rounds,
        steps=turns.steps(plan.turned + COPIES),
    )
    arms_by_reason: dict[Message, list[str]] = {}
    for profile in plan.profiles:
        options = plan.turn_options(profile)
        if isinstance(options, Message):
            arms_by_reason.setdefault(options, []).append(profile.id)
    for why, arms in arms_by_reason.items():
        yield say("as jobs: {arms}, because {why}", arms=arms, why=why)
    rotating, not_rotating = plan.works
    yield say(
        "with rotation {jobs:+job} and {steps} steps of the trainer, without it "
        "{others:+job} and {other_steps} steps",
        jobs=rotating.jobs,
        steps=rotating.steps,
        others=not_rotating.jobs,
        other_steps=not_rotating.steps,
    )


def _trial_lines(plan: TuningPlan, *, screened: int) -> Iterator[Message]:
    """Yield the lines of a plan about trials, slots, and the smallest effect that it finds.

    `screened` is the number of trials of the screen that are planned by now.
    """
    layout, sigma = plan.layout, plan.sigma_prior
    slots = (
        say("{wave}: {slots:+slot} for {fills}", wave=rule.wave, slots=rule.slots, fills=rule.fills)
        for rule in plan.rules
    )
    more = say(", and those of derived waves") if plan.rules else None
    if not isinstance(layout, Plan):
        yield say("{trials} trials{more}", trials=screened, more=more)
        yield from slots
        yield say(RANKING_ONLY, why=layout.why)
        return
    yield say(
        "{screened} trials of the screen{more}, then {blocks}: {jobs} jobs of {budget}",
        screened=screened,
        more=more,
        blocks=layout.shape,
        jobs=layout.jobs,
        budget=plan.budget,
    )
    yield from slots
    yield coded(
        MessageCode.SMALLEST_GAIN,
        "the smallest gain that this sweep finds with 80 % power (in brackets: that of a "
        "finalist): {seen}{assumed}",
        seen=[
            say(
                "{start:size} ({finalist:size}) at {sigma:size} job noise",
                start=layout.from_start80(noise),
                finalist=layout.mde80(noise),
                sigma=noise,
            )
            for noise in (_SIGMAS if sigma is None else (sigma,))
        ],
        assumed=say(
            "; {sigma:size} is assumed, because this cell was not calibrated: "
            "`xlatune calibrate SWEEP_FILE`",
            sigma=DEFAULT_SIGMA,
        )
        if sigma is None
        else None,
    )
