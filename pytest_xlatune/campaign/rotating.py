"""Read a rotation's journal and step lines: its turns, its findings, the program to blame.

It reads no file and no clock, so a recorded rotation is judged to the same result again. `assess`
uses it for what other trials do not have, and decides the rest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from statistics import median

from msgspec.structs import replace

from pytest_xlatune.campaign.ended import EndedAttempt, Leftovers
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
from pytest_xlatune.model.rotation import RotationRead, read_rotation
from pytest_xlatune.model.rotation_score import NoTurns, RotationScore
from pytest_xlatune.model.sentences import IN_BRACKETS, NO_STEP, PROGRAM_REFUSED, PROGRAM_TOO_LARGE
from pytest_xlatune.model.trial import Rotation
from pytest_xlatune.stats.rounds import SKIPPED_STEPS, fit_turns, read_turns
from pytest_xlatune.stats.score import timed_steps, window_steps

# A rotation blames programs for at most so many attempts; then the playbook decides. An attempt
# that dies while it compiles has cost little, one that dies in a turn perhaps most of a job.
MOST_BLAMED = {BlamedAt.COMPILING: 8, BlamedAt.TURN: 4}
# failures of the trainer, whichever program has its turn
_OF_TRAINER = frozenset(
    {
        *(FailureClass.CONFIG_ERROR, FailureClass.NO_STEPS, FailureClass.NO_SCORE),
        *(FailureClass.FLAGS_NOT_EFFECTIVE, FailureClass.FLAGS_UNVERIFIED),
    }
)
_OF_OTHERS = (Action.RESUME_NODE, Action.HOOK, Action.WAIT, Action.STOP)
_ENOUGH_LINES = 0.7  # least share of calls with a step line, because the last lines may be lost
_SPARE_CALLS = 2  # calls beyond the logged steps that are allowed, such as a warm-up
# When the time limit strikes, a turn or a compilation counts as hung if it ran so many seconds,
# and so many times its usual time.
_STILL_S, _STILL_TIMES = 60.0, 10
_ENOUGH = 0.5  # least share of the planned turns, if a rotation ended before the last
_LATE_STEPS = 2  # first steps of a turn, in which an error of the turn before may still show


def read_journals(texts: Sequence[str]) -> RotationRead | None:
    """Return the combined journal of a trainer's processes; None if there is none.

    Turns and programs come from the first process. The program to blame comes from the process that
    is furthest behind, in compilations or else in turns: others went on while it died or hung.

    Args:
        texts: the text of each rank's journal, in order of ranks.
    """
    read = [read_rotation(text) for text in texts]
    if not read:
        return None
    first = read[0]
    named = [process for process in read if process.suspects]
    # a process that raised an exception records its end; the others, killed for it, do not
    raised = [process for process in named if process.is_over]
    if raised and len(raised) < len(read):
        named = raised
    if named:
        last = min(named, key=_got)
        first = replace(
            first,
            suspects=last.suspects,
            is_compiling=last.is_compiling,
            last_at_s=last.last_at_s,
        )
    return first


def _got(read: RotationRead) -> tuple[int, int]:
    """Return the progress of a process: number of compiled programs, call of its last turn."""
    turns = read.turns[-1].first_call if read.turns else 0
    return len(read.compiled) + len(read.refused), turns


def measured(attempt: EndedAttempt, rotation: Rotation) -> RotationResult:
    """Return the result of an ended rotation, or why it measured nothing."""
    read = attempt.left.journal
    blamed = tuple(culprit for culprit in attempt.blamed if not culprit.is_suspect)
    known = RotationResult(read=read, blamed=blamed)
    if read is None:
        return replace(
            known,
            reason=say(
                "there is no journal of the worker that rotates programs: the trainer's Python "
                "did not load it, or its file could not be written or read"
            ),
        )
    if read.trouble or not read.found:
        trouble = say(IN_BRACKETS, text=read.trouble) if read.trouble else None
        return replace(
            known, reason=say("the program of the step was not found{said}", said=trouble)
        )
    scored = _turns(read, attempt, rotation)
    if isinstance(scored, NoTurns):
        return replace(known, reason=scored.reason)
    return replace(known, score=scored)


def _turns(
    read: RotationRead, attempt: EndedAttempt, rotation: Rotation
) -> RotationScore | NoTurns:
    protocol, tokens = attempt.trial.protocol, attempt.cell.tokens_per_device_step
    timed = timed_steps(attempt.left.steps, tokens_per_device_step=tokens)
    if not timed:
        return NoTurns(reason=coded(MessageCode.NO_TURNS, NO_STEP))
    apart = _calls_apart(read, timed)
    if apart is not None:
        return NoTurns(reason=apart)
    first = timed[0].step  # the first line belongs to the first call
    every = protocol.eval_interval
    # the window is the whole run, so that only evaluations are left out of a turn
    inside = window_steps(replace(protocol, first_step=0, profiler=""))
    away = {step.step for step in timed if every and step.step not in inside}
    gap = _gap(timed)
    turns = read_turns(
        [(turn.program, first + turn.first_call, turn.calls) for turn in read.turns],
        timed,
        programs=len(rotation.spec.programs),
        # if lines are only written now and then, a line may be the mean of several steps
        skipped=SKIPPED_STEPS + gap - 1,
        left_out=away | {first + call for call in read.odd_calls},
    )
    if isinstance(turns, NoTurns):
        return _why_none(turns, read, gap=gap, turn_steps=rotation.spec.turn_steps)
    in_step = [step.tgs * step.step_s for step in timed if step.tgs and step.step_s]
    return fit_turns(turns, tokens=median(in_step) if in_step else None)


def _gap(timed: Sequence[StepRecord]) -> int:
    """Return the usual number of steps between two lines."""
    gaps = [after.step - before.step for before, after in itertools.pairwise(timed)]
    return max(round(median(gaps)), 1) if gaps else 1


def _why_none(no_turns: NoTurns, read: RotationRead, *, gap: int, turn_steps: int) -> NoTurns:
    """Return why there is no turn, as far as the trainer's behaviour explains it."""
    if read.turns and read.odd_calls:
        words = say(IN_BRACKETS, text=read.odd_words) if read.odd_words else None
        last = read.turns[-1]
        calls = last.first_call + last.calls if read.calls is None else read.calls
        odd = len(read.odd_calls)
        return NoTurns(
            reason=coded(
                MessageCode.NO_TURNS,
                "{odd} of {calls} calls of the step had other arguments than the first "
                "ones{said}, and the trainer's own program ran them, so that no turn of the "
                "baseline is left: give each step the same shapes and static values, for "
                "example drop a short last batch",
                odd=odd,
                calls=calls,
                said=words,
            )
        )
    if read.turns and gap > 1:
        return NoTurns(
            reason=coded(
                MessageCode.NO_TURNS,
                "the log has a line every {every} steps, and a turn has {turn_steps:+step}: let "
                "the trainer write a line for each step",
                every=gap,
                turn_steps=turn_steps,
            )
        )
    return no_turns


def _calls_apart(read: RotationRead, timed: Sequence[StepRecord]) -> Message | None:
    """Return why the log's steps do not match the calls of the step's program; None if they do.

    Otherwise steps could be attributed to the wrong program, e.g. if a trainer calls it twice for
    each step, or does several steps in a call. A call before the loop, and lines that are only
    written now and then, are allowed.
    """
    if not read.turns:
        return None
    ids = [step.step for step in timed]
    lines = ids[-1] - ids[0] + 1
    last = read.turns[-1]
    # the last lines of a process that was killed may be missing
    fewest, most = round(_ENOUGH_LINES * last.first_call), last.first_call + last.calls
    if read.calls is not None:
        fewest = most = read.calls
    spare = max(_SPARE_CALLS, _gap(timed))
    if fewest - spare <= lines <= most + spare:
        return None
    if read.another_call is not None and most < lines:
        return coded(
            MessageCode.NO_TURNS,
            "the trainer made its step anew as another program, for the first time before "
            "call {call}, so that {calls} of {lines:+step} took turns: let it call jax.jit "
            "once, before its loop",
            call=read.another_call,
            calls=most,
            lines=lines,
        )
    times = round(most / lines)
    if read.calls is not None and times > 1 and abs(most - times * lines) <= times * spare:
        return coded(
            MessageCode.NO_TURNS,
            "the trainer calls the program of its step {times} times for each step of its "
            "log: whose turn a step was cannot be told",
            times=times,
        )
    return coded(
        MessageCode.NO_TURNS,
        "the log has {lines:+step}, and the step's program was called {calls} times: whose "
        "turn a step was cannot be told",
        calls=most,
        lines=lines,
    )


def is_enough(turned: RotationResult, rotation: Rotation) -> bool:
    """Return whether a rotation that a time limit ended has enough turns to count."""
    score = turned.score
    return score is not None and len(score.turns) >= _ENOUGH * len(rotation.spec.order)


def ends_early(left: Leftovers, rotation: Rotation) -> Finding | None:
    """Return a finding if a trainer ended well with fewer steps than the turns need, else None.

    More than half of the planned turns count, because each program has had one.
    """
    read, steps = left.journal, left.steps
    if rotation.is_look or read is None or not read.turns or not steps:
        return None
    made, turns, planned = _calls_logged(steps), len(read.turns), len(rotation.spec.order)
    # a trainer that went on without turns did not end early
    if turns > _ENOUGH * planned or made > _ENOUGH * rotation.steps:
        return None
    cls, detail = FailureClass.TOO_FEW_STEPS, f"{made} of {rotation.steps} steps"
    return Finding(cls=cls, action=Action.RETRY, text=cls.meaning, detail=detail)


def _calls_logged(steps: Sequence[StepRecord]) -> int:
    """Return how many calls have written their lines; this is the number of the next call."""
    ids = [step.step for step in steps]
    return max(ids) - min(ids) + 1


def findings_of(read: RotationRead | None) -> tuple[Finding, ...]:
    """Return a finding for each program that the worker left out; none asks for an action."""
    if read is None:
        return ()
    cls = FailureClass.PROGRAM_LEFT_OUT
    refused = (
        (name, say(PROGRAM_REFUSED, program=name, said=words))
        for name, words in read.refused.items()
    )
    large = (
        (name, say(PROGRAM_TOO_LARGE, program=name, gib=size / 2**30))
        for name, size in read.left_out.items()
    )
    return tuple(
        Finding(cls=cls, action=Action.NONE, detail=name, why=why)
        for name, why in (*refused, *large)
    )


def blame(
    decision: Ruling, cause: Finding | None, attempt: EndedAttempt, rotation: Rotation
) -> Blamed | None:
    """Return the program that an attempt died of; None if it was none, or too many were blamed.

    It is the program that was being compiled, or that had its turn. At first it is a suspect,
    unless the playbook drops a profile for such an end at once. It is blamed if the next attempt
    ends the same way in the same program. In the first steps of a turn, the profile before may have
    caused the end; then both are suspects, and the next such end decides. A loss that is not finite
    shows one step after the program that spoilt the weights, so in the first step of a turn, the
    program before is meant. At most one program of a rotation is blamed for a loss, because all
    share the weights.

    An attempt that ended well can only have died of its loss, and a time limit is blamed on a
    program that hung for most of it. Other names than the rotation's in a journal are ignored.
    """
    read, steps = attempt.left.journal, attempt.left.steps
    outcome, earlier = attempt.outcome, attempt.blamed
    if read is None or decision.next is Next.ACCEPT or outcome.state is State.NODE_FAIL:
        return None
    if (is_from_outside(decision.cls) or decision.cls in _OF_TRAINER) and not (
        decision.cls == FailureClass.TIME_LIMIT
        and _stood_still(read, steps, rotation, outcome.end_s)
    ):
        return None
    is_loss = decision.cls == FailureClass.NUMERICAL_FAILURE
    is_well = outcome.state is State.COMPLETED
    if is_well and not is_loss and ends_early(attempt.left, rotation) is None:
        return None
    if decision.is_of_node or (cause is not None and cause.action in _OF_OTHERS):
        return None
    if is_loss and any(culprit.cls == decision.cls for culprit in earlier):
        return None
    gone = {culprit.program for culprit in earlier if not culprit.is_suspect}
    ids = {program.id for program in rotation.spec.programs if not program.is_baseline} - gone
    if is_loss:
        named = (_of_loss(read, steps), "")
    else:
        named = _of_end(read, steps, rotation.spec.turn_steps, is_well=is_well)
    program, before = (name if name in ids else "" for name in named)
    at = BlamedAt.COMPILING if read.is_compiling and not is_loss else BlamedAt.TURN
    if sum(culprit.at is at for culprit in earlier) >= MOST_BLAMED[at]:
        return None
    # An end in another program in between clears this one, so only the last blame counts.
    last = earlier[-1] if earlier and earlier[-1].at is at else None
    # The retry gives the suspect the first turn, after a baseline. If it survived that, and the
    # next end comes after the same profile as before, that profile is to blame.
    is_before = last is not None and bool(before) and last.before == before
    program = before if is_before else program
    if not program:
        return None
    is_again = is_before or (last is not None and last.program == program)
    is_suspect = not is_again and (bool(before) or decision.next is not Next.DROP)
    return Blamed(
        program=program,
        at=at,
        cls=decision.cls,
        attempt=attempt.number,
        is_suspect=is_suspect,
        before=before if is_suspect else "",
    )


def _stood_still(
    read: RotationRead, steps: Sequence[StepRecord], rotation: Rotation, ended_s: float | None
) -> bool:
    """Return whether the last compilation or turn never ended and took many times the usual.

    A time limit shorter than our patience ends such a hang first.
    """
    if ended_s is None or read.last_at_s is None:
        return False
    took_s = [step.step_s for step in steps if step.step_s is not None and step.step_s > 0]
    usual_s = rotation.spec.turn_steps * median(took_s) if took_s else math.inf
    if read.is_compiling:
        usual_s = max((program.compile_s for program in read.compiled), default=math.inf)
    return ended_s - read.last_at_s > max(_STILL_S, _STILL_TIMES * usual_s)


def _of_end(
    read: RotationRead, steps: Sequence[StepRecord], turn_steps: int, *, is_well: bool
) -> tuple[str, str]:
    """Return the program of an end, and the one before if it may be the cause; "" if none.

    A baseline that hangs is not blamed on the profile before it, whose steps are over. A trainer
    that fails after the last step of a turn, or between two steps, is blamed on no program.
    """
    suspect = next(iter(read.suspects), "")
    recent = [turn.program for turn in read.turns[-2:]]
    if read.is_compiling or not recent or not steps:
        return suspect, ""
    last, raised = read.turns[-1], read.raised_call
    # it was raised at the first call of the next turn
    if raised is not None and last.calls == turn_steps:
        return suspect, last.program if suspect != last.program else ""
    # the suspects belong to a process that came further than the first one
    if not set(read.suspects) <= {*recent}:
        return suspect, ""
    call = _calls_logged(steps) if raised is None else raised
    if call >= last.first_call + (turn_steps if is_well or raised is not None else last.calls):
        return "", ""
    if call < last.first_call and suspect != last.program:  # a step of the turn before is not over
        return suspect, ""
    is_late = call < last.first_call + _LATE_STEPS and len(recent) > 1
    return last.program, recent[0] if is_late else ""


def _of_loss(read: RotationRead, steps: Sequence[StepRecord]) -> str:
    """Return the program that most likely spoilt the loss; "" if it is no profile.

    If a trainer aborts before it writes the line of a step, the step after its last line is meant.
    """
    if not steps:
        return ""
    ids = [step.step for step in steps]
    bad = [step.step for step in steps if step.loss is not None and not math.isfinite(step.loss)]
    call = min(bad) - min(ids) if bad else _calls_logged(steps)
    named = [turn for turn in read.turns if turn.first_call <= call][-2:]
    if named and named[-1].first_call < call:
        named = named[-1:]
    ours = (turn.program for turn in named if turn.program.partition("~")[0] != BASELINE_ID)
    return next(ours, "")
