"""Evaluate an ended rotation: its turns, its findings, and the program to blame for its end.

The input is the journal of the rotation's worker and the trainer's step lines. No file and no clock
is read, so a recorded rotation always gives the same result. `assess` uses this module for the
parts of an attempt that only a rotation has.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from statistics import median

from msgspec.structs import replace

from pytest_xlatune.campaign._follow import EndedAttempt
from pytest_xlatune.campaign.playbook import Ruling, is_from_outside
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import Message, MessageCode, coded, say
from pytest_xlatune.model.profile import BASELINE_ID
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import (
    Action,
    Blamed,
    BlamedAt,
    Finding,
    RotationResult,
    State,
    StepRecord,
)
from pytest_xlatune.model.rotation import RotationRead
from pytest_xlatune.model.rotation_score import NoTurns, RotationScore
from pytest_xlatune.model.sentences import IN_BRACKETS, NO_STEP, PROGRAM_REFUSED, PROGRAM_TOO_LARGE
from pytest_xlatune.model.trial import Rotation
from pytest_xlatune.stats.rounds import SKIPPED_STEPS, fit_turns, read_turns
from pytest_xlatune.stats.score import timed_steps, window_steps

# The most attempts of a rotation that are blamed on a program; after them the playbook decides. An
# attempt that dies while it compiles has cost little; one that dies in a turn, perhaps a whole job.
MOST_BLAMED = {BlamedAt.COMPILING: 8, BlamedAt.TURN: 4}
# failures that the trainer causes, whichever program has its turn
_CAUSED_BY_TRAINER = frozenset(
    {
        *(FailureClass.CONFIG_ERROR, FailureClass.NO_STEPS, FailureClass.NO_SCORE),
        *(FailureClass.FLAGS_NOT_EFFECTIVE, FailureClass.FLAGS_UNVERIFIED),
    }
)
# actions of a cause that is a node or the site, so that no program is blamed
_NODE_OR_SITE_ACTIONS = (Action.RESUME_NODE, Action.HOOK, Action.WAIT, Action.STOP)
_LEAST_LINES_SHARE = 0.7  # of calls with a step line; less than 1, because last lines may be lost
_SPARE_CALLS = 2  # calls beyond the logged steps that are allowed, such as a warm-up
_LATE_STEPS = 2  # number of first steps of a turn in which an error of the turn before may show
_LEAST_TURNS_SHARE = 0.5  # least share of the planned turns for a score, if a rotation ended early
_NO_JOURNAL = (
    "there is no journal of the worker that rotates programs: the trainer's Python did not load "
    "it, or its file could not be written or read"
)


def rotation_result(attempt: EndedAttempt, rotation: Rotation) -> RotationResult:
    """Return the result of an ended rotation; its `reason` says why it has no score."""
    read = attempt.left.journal
    blamed = tuple(culprit for culprit in attempt.blamed if not culprit.is_suspect)
    result = RotationResult(read=read, blamed=blamed)
    score = _score_turns(read, attempt, rotation)
    if isinstance(score, NoTurns):
        return replace(result, reason=score.reason)
    return replace(result, score=score)


def _score_turns(
    read: RotationRead | None, attempt: EndedAttempt, rotation: Rotation
) -> RotationScore | NoTurns:
    if read is None:
        return NoTurns(reason=say(_NO_JOURNAL))
    if read.trouble or not read.found:
        trouble = say(IN_BRACKETS, text=read.trouble) if read.trouble else None
        return NoTurns(reason=say("the program of the step was not found{said}", said=trouble))
    protocol, tokens = attempt.trial.protocol, attempt.cell.tokens_per_device_step
    timed = timed_steps(attempt.left.steps, tokens_per_device_step=tokens)
    if not timed:
        return NoTurns(reason=coded(MessageCode.NO_TURNS, NO_STEP))
    mismatch = _steps_mismatch(read, timed)
    if mismatch is not None:
        return NoTurns(reason=mismatch)
    first = timed[0].step  # the first line belongs to the first call
    # with the whole run as the window, `window_steps` leaves out only the steps of evaluations
    scored_steps = window_steps(replace(protocol, first_step=0, profiler=""))
    evaluations = set[int]()
    if protocol.eval_interval:
        evaluations = {step.step for step in timed if step.step not in scored_steps}
    turns = read_turns(
        [(turn.program, first + turn.first_call, turn.calls) for turn in read.turns],
        timed,
        programs=len(rotation.spec.programs),
        # a line that is not written for each step may be the mean of all steps since the last line
        skipped=SKIPPED_STEPS + _steps_per_line(timed) - 1,
        left_out=evaluations | {first + call for call in read.odd_calls},
    )
    if isinstance(turns, NoTurns):
        return turns
    step_tokens = [step.tgs * step.step_s for step in timed if step.tgs and step.step_s]
    return fit_turns(turns, tokens=median(step_tokens) if step_tokens else None)


def _steps_per_line(timed: Sequence[StepRecord]) -> int:
    gaps = [after.step - before.step for before, after in itertools.pairwise(timed)]
    return max(round(median(gaps)), 1) if gaps else 1


def _steps_mismatch(read: RotationRead, timed: Sequence[StepRecord]) -> Message | None:
    """Return why the log's steps do not match the calls of the step's program; None if they do.

    If they do not match, steps could be attributed to the wrong program: the trainer may call it
    twice for each step, for example, or do several steps in a call. A call before the loop is
    allowed, and so are lines that are not written for each step.
    """
    if not read.turns:
        return None
    ids = [step.step for step in timed]
    steps = ids[-1] - ids[0] + 1
    last = read.turns[-1]
    # if a process was killed, its last lines may be missing
    fewest, most = round(_LEAST_LINES_SHARE * last.first_call), last.first_call + last.calls
    if read.calls is not None:
        fewest = most = read.calls
    spare = max(_SPARE_CALLS, _steps_per_line(timed))
    if fewest - spare <= steps <= most + spare:
        return None
    return coded(
        MessageCode.NO_TURNS,
        "the log has {lines:+step}, but the step's program was called {calls} times, so it is "
        "unknown which program ran a step",
        calls=most,
        lines=steps,
    )


def has_enough_turns(result: RotationResult, rotation: Rotation) -> bool:
    """Return whether a rotation that a time limit ended has enough turns for its score to count."""
    score = result.score
    return score is not None and len(score.turns) >= _LEAST_TURNS_SHARE * len(rotation.spec.order)


def _calls_logged(steps: Sequence[StepRecord]) -> int:
    """Return how many calls of the step's program have a line; the next call has this index."""
    ids = [step.step for step in steps]
    return max(ids) - min(ids) + 1


def findings_of(read: RotationRead | None) -> tuple[Finding, ...]:
    """Return a finding, without an action, for each program that the worker left out."""
    if read is None:
        return ()
    reasons = {
        **{
            name: say(PROGRAM_REFUSED, program=name, said=text)
            for name, text in read.refused.items()
        },
        **{
            name: say(PROGRAM_TOO_LARGE, program=name, gib=size / 2**30)
            for name, size in read.left_out.items()
        },
    }
    cls = FailureClass.PROGRAM_LEFT_OUT
    return tuple(
        Finding(cls=cls, action=Action.NONE, detail=name, why=why) for name, why in reasons.items()
    )


def blame(
    decision: Ruling, cause: Finding | None, attempt: EndedAttempt, rotation: Rotation
) -> Blamed | None:
    """Return the program that an attempt died of; None if there is none, or too many were blamed.

    It is the program that was being compiled, or that had its turn. At first it is only a suspect,
    unless the playbook drops a profile at once for such an end. It is blamed if the next attempt
    ends in the same way and in the same program. In the first steps of a turn it is a suspect for
    any end, because an error of the turn before may show only then.

    A loss that is not finite shows one step after the program that spoilt the weights. In the first
    step of a turn it is therefore blamed on the program of the turn before. At most one program of
    a rotation is blamed for a loss, because all programs share the weights. An attempt that
    completed can only have died of its loss. Programs in the journal that do not belong to the
    rotation are ignored.
    """
    read, steps = attempt.left.journal, attempt.left.steps
    outcome, earlier = attempt.outcome, attempt.blamed
    is_loss = decision.cls == FailureClass.NUMERICAL_FAILURE
    if (
        read is None
        or decision.next is Next.ACCEPT
        or outcome.state is State.NODE_FAIL
        or is_from_outside(decision.cls)
        or decision.cls in _CAUSED_BY_TRAINER
        or decision.is_of_node
        or (outcome.state is State.COMPLETED and not is_loss)
        or (cause is not None and cause.action in _NODE_OR_SITE_ACTIONS)
        or (is_loss and any(culprit.cls == decision.cls for culprit in earlier))
    ):
        return None
    removed = {culprit.program for culprit in earlier if not culprit.is_suspect}
    ids = {program.id for program in rotation.spec.programs if not program.is_baseline} - removed
    turn_steps = rotation.spec.turn_steps
    program, is_early = _program_of_end(read, steps, turn_steps)
    if is_loss:
        program, is_early = _program_of_loss(read, steps), False
    if program not in ids:
        return None
    at = BlamedAt.COMPILING if read.is_compiling and not is_loss else BlamedAt.TURN
    if sum(culprit.at is at for culprit in earlier) >= MOST_BLAMED[at]:
        return None
    # Only the last blame counts, because an end in another program clears the former suspect.
    last = earlier[-1] if earlier and earlier[-1].at is at else None
    is_again = last is not None and last.program == program
    return Blamed(
        program=program,
        at=at,
        cls=decision.cls,
        attempt=attempt.number,
        is_suspect=not is_again and (is_early or decision.next is not Next.DROP),
    )


def _program_of_end(
    read: RotationRead, steps: Sequence[StepRecord], turn_steps: int
) -> tuple[str, bool]:
    """Return the program in which an attempt ended, and whether in the first steps of its turn.

    The program is "" if a trainer failed after the last step of a turn, or between two steps.
    """
    suspect = next(iter(read.suspects), "")
    if read.is_compiling or not read.turns or not steps:
        return suspect, False
    last, raised = read.turns[-1], read.raised_call
    # the last turn was complete, so the exception was raised at the first call of the next one
    if raised is not None and last.calls == turn_steps:
        return suspect, True
    # the suspects are those of another process, which was in another turn than the first process
    if not set(read.suspects) <= {turn.program for turn in read.turns[-2:]}:
        return suspect, False
    call = _calls_logged(steps) if raised is None else raised
    if call < last.first_call:  # a step of the turn before is not over
        return suspect, suspect == last.program
    is_early = call < last.first_call + _LATE_STEPS
    turn_calls = last.calls if raised is None else turn_steps
    return (last.program if call < last.first_call + turn_calls else ""), is_early


def _program_of_loss(read: RotationRead, steps: Sequence[StepRecord]) -> str:
    """Return the program that most likely spoilt the loss; "" if it is no profile.

    If no line has a bad loss, the trainer is taken to have aborted in the step after its last line.
    """
    if not steps:
        return ""
    ids = [step.step for step in steps]
    bad = [step.step for step in steps if step.loss is not None and not math.isfinite(step.loss)]
    call = min(bad) - min(ids) if bad else _calls_logged(steps)
    candidates = [turn for turn in read.turns if turn.first_call <= call][-2:]
    # except in its first step, a turn spoilt the loss itself
    if candidates and candidates[-1].first_call < call:
        candidates = candidates[-1:]
    for turn in candidates:
        # the ids of baselines in a rotation are `baseline-deployed`, `baseline-deployed~2`, ...
        if turn.program.partition("~")[0] != BASELINE_ID:
            return turn.program
    return ""
