"""Find the profiles that make a cell faster: screen once, confirm on fresh blocks, conclude.

Every profile is measured once, in random order among baselines; this ranks. On many node slots the
best run a second time. The best few enter a block with baselines, the best of these enter further
blocks, each in its own random order, and only those that stay to the end get a verdict.

A job in which the programs of several profiles take turns is a rotation. It ranks the programs and
decides nothing: a program may be fast in turns and slow once it is deployed, or may warm up
differently after each switch. Such a program may be ranked too high, but the rotation gives it no
verdict. The score of a program in a rotation becomes the result of a screening trial of its
profile. So waves, finalists, blocks and verdicts are the same as in any sweep, and the blocks are
ordinary jobs. The first rotation is the look: it runs the baseline alone to show whether the
trainer can rotate. If the look or the rotation after it shows that the trainer cannot, all profiles
run as jobs. A rotation that was cancelled, or lost through the site, stops the sweep and is tried
again.

The study is pure and deterministic: every process with the same study and history proposes and
concludes the same. This module must not know of executors, ledgers, clocks or logs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from msgspec.structs import replace

from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import Message, MessageCode, coded, first, say
from pytest_xlatune.model.profile import BASELINE, BASELINE_ID, Profile
from pytest_xlatune.model.result import (
    Conclusion,
    RotationResult,
    Score,
    TrialResult,
    TrialStatus,
)
from pytest_xlatune.model.rotation import RotatedProgram, RotationSpec
from pytest_xlatune.model.rotation_score import ProgramChange, RotationScore
from pytest_xlatune.model.rotation_score import copies as copies_of_baseline
from pytest_xlatune.model.sentences import PROGRAM_REFUSED, PROGRAM_TOO_LARGE, RANKING_ONLY
from pytest_xlatune.model.trial import ROTATION, Rotation, Trial
from pytest_xlatune.stats.design import Plan
from pytest_xlatune.stats.rotations import COPIES, LOOK_JOBS, RANKINGS, JobWork
from pytest_xlatune.stats.rounds import draw_turns
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
from pytest_xlatune.studies.trials import (
    AGAIN,
    LOOK_STAGE,
    STUDY,
    TURNS,
    pace_of,
    usable,
    wave_order,
)
from pytest_xlatune.studies.tuning_plan import DEFAULT_SIGMA, RotationRule, TuningPlan
from pytest_xlatune.studies.verdicts import arm_answer, as_answer, deployed
from pytest_xlatune.studies.waves import Waves

__all__ = ["RotationRule", "TuningStudy"]

_EVIDENCE_WAVE = "wave1_5"  # the wave to which the evidence run belongs
_SIGMAS = (0.003, 0.006, 0.010)  # job noise of a quiet, a usual and a noisy cell
_LONGER = 2.0  # a rotation may take so many times as long as the times of the look predict
_COMPILES_S = 300  # seconds allowed for each program to compile if the look has not measured it


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
            slots = Slots(names=self.orders.slots, seed=self.seed, history=tuple(history))
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
        if turned or (plan.rotates and arms.open_rules and due):
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
    unnamed = 0 if plan.rotates else sum(rule.slots for rule in sweep.arms.open_rules)
    return jobs + unnamed


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
        say(
            "{wave}: {slots:+slot} for {kind}",
            wave=rule.wave,
            slots=rule.slots,
            kind=type(rule).__name__,
        )
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


@dataclass(frozen=True, kw_only=True)
class Rotations:
    """The rotations of a sweep so far. It has no `__slots__`, so that properties are cached.

    Attributes:
        looks: the looks that have begun; more than one if a look was lost.
        numbered: the other rotations that have begun, in the order of their numbers.
        results: the history, in which each program of a rotation counts as an ordinary trial.
    """

    looks: tuple[TrialResult, ...]
    numbered: tuple[tuple[Rotation, TrialResult], ...]
    results: tuple[TrialResult, ...]

    @property
    def trials(self) -> tuple[TrialResult, ...]:
        """The looks and the other rotations that have begun."""
        return (*self.looks, *(result for _, result in self.numbered))

    @property
    def look(self) -> TrialResult | None:
        """The look that is over; None if none is over yet."""
        return next((result for result in self.looks if result.status.is_final), None)

    @cached_property
    def why_not(self) -> Message | None:
        """Why nothing can rotate, by the look or the first rotation; None unless one shows that.

        A rotation that could not be measured shows nothing: the next session tries it again.
        """
        over = (result for _, result in self.numbered if result.status.is_final)
        look, first_rotation = self.look, next(over, None)
        for result in (look, first_rotation):
            if result is None or result.status is TrialStatus.UNMEASURED:
                continue
            turns = result.rotation
            if turns is None or not (turns.is_found if result is look else _score_of(result)):
                text = "all profiles are jobs, because programs cannot take turns: {reason}"
                if result is not look:
                    text = (
                        "all profiles are jobs, because the first rotation measured nothing: "
                        "{reason}"
                    )
                return say(text, reason=first([result.reason, turns.reason if turns else None]))
        return None

    @property
    def is_lost(self) -> bool:
        """Whether a rotation could not be measured, so that the next session tries it again."""
        return any(result.status is TrialStatus.UNMEASURED for result in self.trials)

    @property
    def message(self) -> Message:
        """How many rotations have run so far."""
        scores = [score for _, result in self.numbered if (score := _score_of(result)) is not None]
        profiles = {name for rotation, _ in self.numbered for name in _profiles_in(rotation)}
        return say(
            "{profiles:+profile} took turns, to be ranked: {rotations:+rotation} with "
            "{turns:+turn} so far",
            profiles=len(profiles),
            rotations=len(scores),
            turns=sum(len(score.turns) for score in scores),
        )


def _profiles_in(rotation: Rotation) -> Mapping[str, RotatedProgram]:
    """Return profile id -> program, for the programs of a rotation that are not the baseline."""
    return {program.id: program for program in rotation.spec.programs if not program.is_baseline}


def _score_of(result: TrialResult) -> RotationScore | None:
    """Return the score of a rotation; None if it was not measured."""
    is_measured = result.status is TrialStatus.MEASURED and result.rotation is not None
    return result.rotation.score if is_measured and result.rotation else None


def rotations(plan: TuningPlan, history: History) -> Rotations:
    """Return the rotations in the history of a sweep, and the results of their programs."""
    rotated = [
        (result.trial.rotation, result)
        for result in history
        if result.trial.study == STUDY
        and result.trial.cell_digest == plan.cell.digest
        and result.trial.rotation is not None
    ]
    looks = tuple(result for rotation, result in rotated if rotation.is_look)
    others = [(rotation, result) for rotation, result in rotated if not rotation.is_look]
    numbered = tuple(sorted(others, key=lambda pair: pair[0].number))
    ordinary = tuple(result for result in history if result.trial.rotation is None)
    # the look runs only the baseline, so it counts as a job of the baseline
    results = [
        *ordinary,
        *(
            replace(result, trial=replace(result.trial, arm=BASELINE.id, rotation=None))
            for result in looks
        ),
    ]
    baseline_score = next((score for result in looks if (score := usable(result))), None)
    for rotation, result in numbered:
        if result.status.is_final:
            results += _programs(plan, rotation, result, results, baseline_score)
    so_far = Rotations(looks=looks, numbered=numbered, results=tuple(results))
    if so_far.why_not is not None:
        return Rotations(looks=looks, numbered=numbered, results=ordinary)
    return so_far


def _programs(
    plan: TuningPlan,
    rotation: Rotation,
    result: TrialResult,
    before: Sequence[TrialResult],
    base: Score | None,
) -> list[TrialResult]:
    """Return a result for each program of a rotation whose profile was not edited since.

    `before` has ordinary trials, and the programs of earlier rotations as trials; `base` is the
    score of the baseline as a job, None if it has none.
    """
    programs = _profiles_in(rotation)
    profiles = {profile.id: profile for profile in plan.profiles}
    # the name determines the profile that a search proposed, even if it would propose others now
    for name in programs:
        for search in plan.searches:
            if (profile := search.find(name)) is not None:
                profiles.setdefault(name, profile)
    if not profiles.keys() >= programs.keys():
        profiles |= Waves(plan, before, None).profiles
    ranked_arms = [earlier.trial.arm for earlier in before if earlier.rotation is not None]
    return [
        _as_job(
            result,
            plan.orders.trial(profile, profile.wave, position=ranked_arms.count(name)),
            base,
        )
        for name, program in programs.items()
        if (profile := profiles.get(name)) is not None
        and program.options == plan.turn_options(profile)
    ]


def _as_job(result: TrialResult, job: Trial, base: Score | None) -> TrialResult:
    """Return the result of a program in a rotation as if `job` had been an ordinary trial.

    Its score is its change on top of `base`, the score of the baseline as a job. If that is None,
    the turns of the baseline in the rotation are used.
    """
    rotation, program = result.rotation or RotationResult(), job.arm
    # The outcome is left out: a retry of the rotation says nothing about a program, unless the
    # program is blamed for it.
    blamed = tuple(blame for blame in rotation.blamed if blame.program == program)
    left_out, score = _left_out(rotation, program), _score_of(result)
    change = score.of(program) if score is not None else None
    if left_out is not None or score is None or change is None:
        why = first([left_out, rotation.reason, result.reason])
        return TrialResult(
            trial=job,
            status=TrialStatus.UNMEASURED if left_out is None else TrialStatus.DROPPED,
            reason=why or say("it had no turn that counts"),
            job_ids=result.job_ids,
            epoch=result.epoch,
            rotation=RotationResult(blamed=blamed),
        )
    # A program with the same text as the baseline still has a score of its own: the level at which
    # LLVM optimises loops is not in the text, and can make a step 2.2 times slower.
    return TrialResult(
        trial=job,
        status=TrialStatus.MEASURED,
        score=_job_score(score, change, base),
        job_ids=result.job_ids,
        epoch=result.epoch,
        rotation=RotationResult(score=replace(score, programs=(change,), turns=()), blamed=blamed),
    )


def _job_score(score: RotationScore, change: ProgramChange, base: Score | None) -> Score:
    """Return the score of a program: its change on top of the score of the baseline."""
    if base is None:
        log_rate = math.log(score.tokens or 1.0) + score.level
        base = Score(value=log_rate, step_s=math.exp(-score.level), n_steps=0, window=(0, 0))
    value, figure = base.value + change.change, base.figure
    return Score(
        value=value,
        tgs=None if figure else math.exp(value),
        step_s=None if base.step_s is None else base.step_s * math.exp(-change.change),
        n_steps=sum(turn.steps for turn in score.turns if turn.program == change.program),
        window=(0, 0),
        figure=replace(figure, value=math.exp(value)) if figure else None,
    )


def _left_out(rotation: RotationResult, program: str) -> Message | None:
    """Return why a program had no turn: it ended a job, was refused, or is too large; else None."""
    for blame in rotation.blamed:
        if blame.program == program and not blame.is_suspect:
            meaning = FailureClass(blame.cls).meaning
            return say("a rotation died of it: {meaning}", meaning=meaning, cls=blame.cls)
    read = rotation.read
    if read is not None and program in read.refused:
        return say(PROGRAM_REFUSED, program=program, said=read.refused[program])
    if read is not None and program in read.left_out:
        return say(PROGRAM_TOO_LARGE, program=program, gib=read.left_out[program] / 2**30)
    return None


def turned_trials(plan: TuningPlan, due: Sequence[Trial]) -> list[Trial]:
    """Return the trials that a rotation can replace: screening trials that are no baselines."""
    return [
        trial
        for trial in due
        if plan.rotates
        and trial.is_screened
        and not trial.is_baseline
        and plan.can_turn(trial.profile)
    ]


def with_rotations(plan: TuningPlan, so_far: Rotations, due: Sequence[Trial]) -> tuple[Trial, ...]:
    """Return the due trials, with those that can take turns replaced by the next rotation.

    The look comes first, because it shows whether any profile can take turns: it is one turn of the
    baseline alone, with the steps of a turn of a rotation.
    """
    turned = turned_trials(plan, due)
    if not turned:
        return tuple(due)
    if so_far.look is None:
        if so_far.looks:
            return (so_far.looks[0].trial,)
        programs, turn_steps = (RotatedProgram(id=BASELINE.id),), plan.turns_by().turn_steps
        spec = RotationSpec(programs=programs, order=(0,), turn_steps=turn_steps)
        look = plan.orders.trial(BASELINE, LOOK_STAGE)
        return (replace(look, arm=ROTATION, rotation=Rotation(number=0, spec=spec)),)
    others = (trial for trial in due if trial not in turned)
    open_ones = [result.trial for _, result in so_far.numbered if not result.status.is_final]
    return (*others, *(open_ones or [next_rotation(plan, so_far, turned)]))


def next_rotation(plan: TuningPlan, so_far: Rotations, turned: Sequence[Trial]) -> Trial:
    """Return the next rotation, with the trials that were ranked least often.

    Each round of a search has rotations of its own, after those of the other waves.
    """
    searched_waves = [search.wave for search in plan.searches]
    groups = [[trial for trial in turned if trial.stage not in searched_waves]]
    groups += ([trial for trial in turned if trial.stage == wave] for wave in searched_waves)
    chosen = next(group for group in groups if group)
    least = min(trial.position for trial in chosen)
    order = {profile.id: at for at, profile in enumerate(plan.profiles)}
    # programs run in the order of the sweep file, so its author can put one that may abort first
    profiles: list[Profile] = sorted(
        (trial.profile for trial in chosen if trial.position == least),
        key=lambda profile: order.get(profile.id, len(order)),
    )
    number = max((rotation.number for rotation, _ in so_far.numbered), default=0) + 1
    turns = plan.turns_by(None if so_far.look is None else pace_of([so_far.look]))
    programs = [RotatedProgram(id=copy_id) for copy_id in copies_of_baseline(COPIES)]
    programs += [
        RotatedProgram(id=profile.id, options=dict(options))
        for profile in profiles
        if not isinstance(options := plan.turn_options(profile), Message)
    ]
    rng_seed = f"{plan.seed} {plan.orders.cell_digest} {number}"
    spec = RotationSpec(
        programs=tuple(programs),
        order=draw_turns(len(programs), COPIES, turns.rounds, rng_seed),
        turn_steps=turns.turn_steps,
    )
    steps = Rotation(number=number, spec=spec).steps
    limit_s = _limit_s(plan, len(programs), steps, so_far.look)
    return replace(
        plan.orders.trial(BASELINE, TURNS, position=number),
        arm=ROTATION,
        protocol=replace(plan.cell.protocol, steps=steps, profiler=""),
        rotation=Rotation(number=number, spec=spec, deadline_s=limit_s),
    )


def _limit_s(plan: TuningPlan, programs: int, steps: int, look: TrialResult | None) -> int:
    """Return the time limit in seconds of a rotation with so many steps, by the look's times."""
    protocol = plan.cell.protocol
    read = look.rotation.read if look is not None and look.rotation else None
    compiled_s = [program.compile_s for program in read.compiled] if read else []
    base = usable(look) if look is not None else None
    if compiled_s and base is not None and base.step_s is not None:
        extra_s = _LONGER * (programs * max(compiled_s) + steps * base.step_s)
    else:  # as slow as the deadline of an ordinary trial allows
        extra_s = protocol.deadline_s * steps / protocol.steps + programs * _COMPILES_S
    return protocol.deadline_s + math.ceil(extra_s)
