"""Profiles that take turns in one job: which can, how they are ranked, which rotation is next.

A job in which the programs of several profiles take turns is a rotation. It ranks the programs and
decides nothing: a program may be fast in turns and slow once it is deployed, or may warm up
differently after each switch. Such a program may be ranked too high, but the rotation gives it no
verdict. The score of a program in a rotation becomes the result of a screening trial of its
profile. So waves, finalists, blocks and verdicts are the same as in any sweep, and the blocks are
ordinary jobs.

The first rotation is the look: it runs the baseline alone to show whether the trainer can rotate.
If the look or the rotation after it shows that the trainer cannot, all profiles run as jobs. A
rotation that was cancelled, or lost through the site, stops the sweep and is tried again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import Message, first, say
from pytest_xlatune.model.profile import BASELINE, Profile
from pytest_xlatune.model.result import RotationResult, Score, TrialResult, TrialStatus
from pytest_xlatune.model.rotation import RotatedProgram, RotationSpec
from pytest_xlatune.model.rotation_score import ProgramChange, RotationScore, is_baseline
from pytest_xlatune.model.rotation_score import copies as copies_of_baseline
from pytest_xlatune.model.sentences import PROGRAM_REFUSED, PROGRAM_TOO_LARGE
from pytest_xlatune.model.trial import ROTATION, Rotation, Trial
from pytest_xlatune.stats.rotations import COPIES
from pytest_xlatune.stats.rounds import draw_turns
from pytest_xlatune.studies import History
from pytest_xlatune.studies.trials import LOOK_STAGE, STUDY, TURNS, pace_of, usable
from pytest_xlatune.studies.tuning_plan import TuningPlan
from pytest_xlatune.studies.waves import Waves


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotations:
    """The rotations of a sweep so far.

    Attributes:
        looks: the looks that have begun; more than one if a look was lost.
        numbered: the other rotations that have begun, in the order of their numbers.
        results: the history, in which each program of a rotation counts as an ordinary trial.
    """

    looks: tuple[TrialResult, ...]
    numbered: tuple[TrialResult, ...]
    results: tuple[TrialResult, ...]

    @property
    def look(self) -> TrialResult | None:
        """The look that is over; None if none is over yet."""
        return next((result for result in self.looks if result.status.is_final), None)

    @property
    def look_failed(self) -> bool:
        """Whether the look shows that the trainer cannot rotate."""
        look = self.look
        if look is None or not _is_conclusive(look):
            return False
        return look.rotation is None or not look.rotation.is_found

    @property
    def why_not(self) -> Message | None:
        """Why nothing can rotate, by the look or the first rotation; None unless one shows that.

        A rotation that could not be measured shows nothing: the next session tries it again.
        """
        look = self.look
        first_rotation = next((result for result in self.numbered if result.status.is_final), None)
        if look is not None and self.look_failed:
            text = "all profiles are jobs, because programs cannot take turns: {reason}"
            return say(text, reason=_why_no_turns(look))
        if (
            first_rotation is not None
            and _is_conclusive(first_rotation)
            and _score_of(first_rotation) is None
        ):
            text = "all profiles are jobs, because the first rotation measured nothing: {reason}"
            return say(text, reason=_why_no_turns(first_rotation))
        return None

    @property
    def is_lost(self) -> bool:
        """Whether a rotation could not be measured, so that the next session tries it again."""
        return any(
            result.status is TrialStatus.UNMEASURED for result in (*self.looks, *self.numbered)
        )

    @property
    def message(self) -> Message:
        """How many rotations have run so far."""
        counts = [
            len(score.turns) for result in self.numbered if (score := _score_of(result)) is not None
        ]
        programs = {
            program.id
            for result in self.numbered
            for program in rotation_of(result).spec.programs
            if not is_baseline(program.id)
        }
        return say(
            "{profiles:+profile} took turns, to be ranked: {rotations:+rotation} with "
            "{turns:+turn} so far",
            profiles=len(programs),
            rotations=len(counts),
            turns=sum(counts),
        )


def rotation_of(result: TrialResult) -> Rotation:
    """Return the rotation of a trial.

    Raises:
        ValueError: the trial is no rotation.
    """
    rotation = result.trial.rotation
    if rotation is None:
        raise ValueError(f"{result.trial.id} is no rotation")
    return rotation


def _score_of(result: TrialResult) -> RotationScore | None:
    """Return the score of a rotation; None if it was not measured."""
    if result.status is not TrialStatus.MEASURED or result.rotation is None:
        return None
    return result.rotation.score


def _is_conclusive(result: TrialResult) -> bool:
    """Return whether a rotation is over in a way that shows whether the trainer can rotate."""
    return result.status.is_final and result.status is not TrialStatus.UNMEASURED


def _why_no_turns(result: TrialResult) -> Message | None:
    """Return why a rotation failed, or else why no turns can be read from its log and journal."""
    return first([result.reason, result.rotation.reason if result.rotation else None])


def rotations(plan: TuningPlan, history: History) -> Rotations:
    """Return the rotations in the history of a sweep, and the results of their programs."""
    trials = [
        result
        for result in history
        if result.trial.study == STUDY
        and result.trial.cell_digest == plan.cell.digest
        and result.trial.rotation is not None
    ]
    looks = tuple(result for result in trials if rotation_of(result).is_look)
    other_rotations = (result for result in trials if not rotation_of(result).is_look)
    numbered = tuple(sorted(other_rotations, key=lambda result: rotation_of(result).number))
    ordinary = [result for result in history if result.trial.rotation is None]
    results = list(ordinary)
    # the look runs only the baseline, so it counts as a job of the baseline
    results += (
        replace(result, trial=replace(result.trial, arm=BASELINE.id, rotation=None))
        for result in looks
    )
    baseline_score = next((score for result in looks if (score := usable(result))), None)
    for result in numbered:
        if result.status.is_final:
            results += _programs(plan, result, results, baseline_score)
    so_far = Rotations(looks=looks, numbered=numbered, results=tuple(results))
    if so_far.why_not is not None:
        return dataclasses.replace(so_far, results=tuple(ordinary))
    return so_far


def _programs(
    plan: TuningPlan, result: TrialResult, before: Sequence[TrialResult], base: Score | None
) -> list[TrialResult]:
    """Return a result for each program of a rotation whose profile was not edited since.

    Args:
        plan: the sweep.
        result: the result of the rotation.
        before: ordinary trials, and the programs of earlier rotations as trials.
        base: the score of the baseline as a job; None if it has none.
    """
    programs = [
        program for program in rotation_of(result).spec.programs if not is_baseline(program.id)
    ]
    profiles = _profiles_of(plan, [program.id for program in programs], before)
    ranked_arms = [earlier.trial.arm for earlier in before if earlier.rotation is not None]
    results = []
    for program in programs:
        profile = profiles.get(program.id)
        if profile is None or program.options != _options(plan, profile):
            continue
        position = ranked_arms.count(profile.id)
        trial = plan.orders.trial(profile, profile.wave, position=position)
        results.append(_as_job(result, trial, base))
    return results


def _as_job(result: TrialResult, job: Trial, base: Score | None) -> TrialResult:
    """Return the result of a program in a rotation as if `job` had been an ordinary trial.

    Its score is its change on top of `base`, the score of the baseline as a job. If that is None,
    the turns of the baseline in the rotation are used.
    """
    rotation, program = result.rotation or RotationResult(), job.arm
    # The outcome is left out: a retry of the rotation says nothing about a program, unless the
    # program is blamed for it.
    blamed = tuple(blame for blame in rotation.blamed if blame.program == program)
    job_result = TrialResult(
        trial=job,
        status=TrialStatus.UNMEASURED,
        reason=first([rotation.reason, result.reason]) or say("it had no turn that counts"),
        job_ids=result.job_ids,
        epoch=result.epoch,
        rotation=RotationResult(blamed=blamed),
    )
    if (left_out := _left_out(rotation, program)) is not None:
        return replace(job_result, status=TrialStatus.DROPPED, reason=left_out)
    score = _score_of(result)
    change = score.of(program) if score is not None else None
    if score is None or change is None:
        return job_result
    # A program with the same text as the baseline still has a score of its own: the level at which
    # LLVM optimises loops is not in the text, and can make a step 2.2 times slower.
    program_score = replace(score, programs=(change,), turns=())
    return replace(
        job_result,
        status=TrialStatus.MEASURED,
        reason=None,
        score=_job_score(score, change, base),
        rotation=RotationResult(score=program_score, blamed=blamed),
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


def _options(plan: TuningPlan, profile: Profile) -> Mapping[str, str]:
    """Return the compiler options of a profile in a rotation; {} if it cannot take turns."""
    options = plan.turn_options(profile)
    return {} if isinstance(options, Message) else options


def _profiles_of(
    plan: TuningPlan, names: Sequence[str], before: Sequence[TrialResult]
) -> Mapping[str, Profile]:
    """Return name -> profile: declared, proposed by a search, or derived from earlier results.

    A name without a profile is left out.
    """
    profiles = {profile.id: profile for profile in plan.profiles}
    # the name determines the profile that a search proposed, even if it would propose others now
    for name in names:
        for search in plan.searches:
            if (profile := search.find(name)) is not None:
                profiles.setdefault(name, profile)
    if not profiles.keys() >= set(names):
        profiles |= Waves(plan, before, None).profiles
    return {name: profiles[name] for name in names if name in profiles}


def is_turned(plan: TuningPlan, trial: Trial) -> bool:
    """Return whether a rotation can replace a trial: a screening trial that is no baseline."""
    is_of_screen = trial.is_screened and not trial.is_baseline
    return plan.rotates and is_of_screen and plan.can_turn(trial.profile)


def with_rotations(plan: TuningPlan, so_far: Rotations, due: Sequence[Trial]) -> tuple[Trial, ...]:
    """Return the due trials, with those that can take turns replaced by the next rotation.

    The look comes first, because it shows whether any profile can take turns.
    """
    turned = [trial for trial in due if is_turned(plan, trial)]
    if not turned:
        return tuple(due)
    if so_far.look is None:
        return (so_far.looks[0].trial if so_far.looks else look_of(plan),)
    others = tuple(trial for trial in due if trial not in turned)
    not_over = tuple(result.trial for result in so_far.numbered if not result.status.is_final)
    return (*others, *not_over) if not_over else (*others, _new_rotation(plan, so_far, turned))


def next_rotation(plan: TuningPlan, so_far: Rotations, due: Sequence[Trial]) -> Trial | None:
    """Return the rotation that ranks the due trials; None if none of them can take turns."""
    turned = [trial for trial in due if is_turned(plan, trial)]
    return _new_rotation(plan, so_far, turned) if turned else None


def look_of(plan: TuningPlan) -> Trial:
    """Return the look: one turn of the baseline alone, with the steps of a turn of a rotation."""
    spec = RotationSpec(
        programs=(RotatedProgram(id=BASELINE.id),),
        order=(0,),
        turn_steps=plan.turns.turn_steps,
        step_function=_step_function(plan),
    )
    trial = plan.orders.trial(BASELINE, LOOK_STAGE)
    return replace(trial, arm=ROTATION, rotation=Rotation(number=0, spec=spec))


def _step_function(plan: TuningPlan) -> str:
    """Return the name of the step's function; "" leaves it to the worker to find it."""
    return plan.rotation.step_function if plan.rotation else ""


_LONGER = 2.0  # a rotation may take so many times as long as the times of the look predict
_COMPILES_S = 300  # seconds allowed for each program to compile if the look has not measured it


def _limit_s(plan: TuningPlan, spec: RotationSpec, steps: int, look: TrialResult | None) -> int:
    """Return the time limit in seconds of a rotation with so many steps, by the look's times."""
    protocol, programs = plan.cell.protocol, len(spec.programs)
    read = look.rotation.read if look is not None and look.rotation else None
    compiled_s = [program.compile_s for program in read.compiled] if read else []
    base = usable(look) if look is not None else None
    if compiled_s and base is not None and base.step_s is not None:
        extra_s = _LONGER * (programs * max(compiled_s) + steps * base.step_s)
    else:  # as slow as the deadline of an ordinary trial allows
        extra_s = protocol.deadline_s * steps / protocol.steps + programs * _COMPILES_S
    return protocol.deadline_s + math.ceil(extra_s)


def _new_rotation(plan: TuningPlan, so_far: Rotations, turned: Sequence[Trial]) -> Trial:
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
    profiles = sorted(
        (trial.profile for trial in chosen if trial.position == least),
        key=lambda profile: order.get(profile.id, len(order)),
    )
    pace = None if so_far.look is None else pace_of([so_far.look])
    number = max((rotation_of(result).number for result in so_far.numbered), default=0) + 1
    turns = plan.turns_by(pace)
    programs = (
        *(RotatedProgram(id=copy_id) for copy_id in copies_of_baseline(COPIES)),
        *(
            RotatedProgram(id=profile.id, options=dict(_options(plan, profile)))
            for profile in profiles
        ),
    )
    rng_seed = f"{plan.seed} {plan.orders.cell_digest} {number}"
    spec = RotationSpec(
        programs=programs,
        order=draw_turns(len(programs), COPIES, turns.rounds, rng_seed),
        turn_steps=turns.turn_steps,
        step_function=_step_function(plan),
    )
    steps = Rotation(number=number, spec=spec).steps
    limit_s = _limit_s(plan, spec, steps, so_far.look)
    return replace(
        plan.orders.trial(BASELINE, TURNS, position=number),
        arm=ROTATION,
        protocol=replace(plan.cell.protocol, steps=steps, profiler=""),
        rotation=Rotation(number=number, spec=spec, deadline_s=limit_s),
    )
