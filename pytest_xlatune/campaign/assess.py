"""Assess an ended attempt: its findings, what follows, and its score.

This module brings together log, metrics file, outcome, playbook and score, and for a rotation the
journal of its worker: its turns, and the program to blame for its end. It reads no file and no
clock, so assessing a recorded attempt again gives the same result.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from msgspec.structs import replace

from pytest_xlatune.campaign._follow import EndedAttempt
from pytest_xlatune.campaign.playbook import (
    Ruling,
    decide,
    is_from_outside,
    rule_decision,
    with_exceptions,
)
from pytest_xlatune.catalog.entries import history
from pytest_xlatune.ledger import Decided, Event
from pytest_xlatune.ledger.state import LedgerState
from pytest_xlatune.logs import Phase
from pytest_xlatune.logs.triage import as_told, diagnose, primary
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import (
    Message,
    MessageCode,
    coded,
    first,
    say,
    sentence,
    several,
    verbatim,
)
from pytest_xlatune.model.profile import BASELINE_ID, OPTIONS_FOLDER, append_flags
from pytest_xlatune.model.redact import HIDDEN, is_secret
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import (
    Action,
    Blamed,
    BlamedAt,
    Effect,
    Finding,
    RotationResult,
    Score,
    SettingKind,
    State,
    StepRecord,
    TrialResult,
    TrialSetting,
    TrialStatus,
)
from pytest_xlatune.model.rotation import RotationRead
from pytest_xlatune.model.rotation_score import NoTurns, RotationScore
from pytest_xlatune.model.sentences import IN_BRACKETS, NO_STEP, PROGRAM_REFUSED, PROGRAM_TOO_LARGE
from pytest_xlatune.model.trial import Rotation
from pytest_xlatune.stats.rounds import SKIPPED_STEPS, fit_turns, read_turns
from pytest_xlatune.stats.score import NO_TOKENS, score, timed_steps, window_steps
from pytest_xlatune.stats.validity import (
    Witnesses,
    contradictions,
    judge_settings,
    other_device,
    unproved,
)

_LOG = logging.getLogger("pytest_xlatune.campaign")
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
_LEAST_LINES_SHARE = 0.7  # of calls with a step line; less than 1, because last lines may be lost
_SPARE_CALLS = 2  # calls beyond the logged steps that are allowed, such as a warm-up
_LATE_STEPS = 2  # number of first steps of a turn in which an error of the turn before may show
_LEAST_TURNS_SHARE = 0.5  # least share of the planned turns for a score, if a rotation ended early
# decision -> final status of the trial; after other decisions there is another attempt
STATUS = {
    Next.ACCEPT: TrialStatus.MEASURED,
    Next.DROP: TrialStatus.DROPPED,
    Next.GIVE_UP: TrialStatus.UNMEASURED,
    Next.STOP: TrialStatus.UNMEASURED,
}


class Assessed(NamedTuple):
    """The result of assessing an ended attempt."""

    decision: Ruling
    result: TrialResult  # of this attempt alone; its first finding is the root cause
    blamed: Blamed | None  # the program of a rotation that ended the attempt


def assess(attempt: EndedAttempt) -> Assessed:
    """Assess one ended attempt."""
    trial, left, facts, cut = attempt.trial, attempt.left, attempt.facts, attempt.cut
    report, rotation = left.report, trial.rotation
    fatal = cut.fatal if cut is not None else None
    outcome = as_told(attempt.outcome, report, is_ours=cut is not None)
    attempt = dataclasses.replace(attempt, outcome=outcome)
    devices = {**left.devices, **{f"log:{line}": at for line, at in report.devices.items()}}
    if left.journal is not None and left.journal.device:
        devices["journal"] = left.journal.device
    settings = _trial_settings(attempt)
    findings = (
        *diagnose(
            report,
            outcome,
            trial.protocol,
            stalled_s=cut.still_s if cut is not None and fatal is None else None,
            is_ended_by_us=fatal is not None,
        ),
        *_setting_findings(settings),
    )
    # The fatal line for which we ended the attempt comes first, if an action follows from it. None
    # follows if the trainer logged its last step nevertheless.
    acting = (finding for finding in findings if finding.action is not Action.NONE)
    fatal_cls = fatal.cls if fatal is not None else ""
    cause = next((finding for finding in acting if finding.cls == fatal_cls), None)
    cause = cause or primary(findings)
    decision, blamed, turned = rule_decision(outcome, cause, facts), None, None
    case_facts = facts
    if rotation is not None:
        turned = rotation_result(attempt, rotation)
        blamed = blame(decision, attempt, rotation)
        findings = (*findings, *findings_of(left.journal))
        turns = turned.score.turns if turned.score is not None else ()
        case_facts = dataclasses.replace(
            facts,
            blamed=blamed,
            has_enough_turns=len(turns) >= max(_LEAST_TURNS_SHARE * len(rotation.spec.order), 1),
            is_first_rotation=rotation.number <= 1,
        )
    decision = with_exceptions(decision, case_facts)
    attempt_score: Score | None = None
    # profiler and dump change the time of a step, so an evidence run is never scored
    if decision.next is Next.ACCEPT and trial.protocol.is_scored:
        # a trainer that falls back to the CPU may print nothing about it, and look normal
        compared = attempt.ran_on.items()
        elsewhere = first(other_device(devices, ran_on, arm=arm) for arm, ran_on in compared)
        rejection: Finding | None = None
        if elsewhere is not None:
            cls, action = FailureClass.OTHER_DEVICE, Action.RETRY
            rejection = Finding(cls=cls, action=action, why=elsewhere)
            turned = turned and replace(turned, score=None, reason=elsewhere)
        if rejection is None and (rotation is None or rotation.is_of_baseline):
            scoring = score(
                left.steps,
                protocol=trial.protocol,
                tokens_per_device_step=attempt.cell.tokens_per_device_step,
                logged=left.logged,
            )
            if isinstance(scoring, Score):
                attempt_score = replace(scoring, memory_gb=report.memory_gb)
            else:  # a trainer that prints no tokens would print the same again: it is not retried
                action = Action.DROP if scoring.reason == NO_TOKENS else Action.RETRY
                cls = FailureClass.NO_SCORE
                rejection = Finding(cls=cls, action=action, why=scoring.reason)
        if rejection is not None:
            cause, findings = rejection, (*findings, rejection)
            decision = decide(outcome, cause, facts)
    decision = _explained(decision, attempt)
    is_measured = bool(attempt_score or (turned and turned.score))
    reason = decision.why or (turned.reason if turned is not None else None)
    result = TrialResult(
        trial=trial,
        status=STATUS.get(decision.next, TrialStatus.PLANNED),
        score=attempt_score,
        reason=None if is_measured and decision.next is Next.ACCEPT else reason,
        findings=tuple(sorted(findings, key=lambda finding: finding != cause)),
        outcome=outcome,
        settings=tuple(
            replace(setting, asked=HIDDEN, seen="", why=None)
            if is_secret(setting.name)
            else setting
            for setting in settings
        ),
        rotation=turned,
        devices=devices,
    )
    return Assessed(decision, result, blamed)


# states of a job that the scheduler, a node or a person ended, and not the program itself
_ENDED_FROM_OUTSIDE = frozenset(
    {
        *(State.NODE_FAIL, State.TIMEOUT, State.CANCELLED, State.LOST),
        *(State.PREEMPTED, State.REQUEUED, State.OUT_OF_MEMORY),
    }
)
# classes without a line in the log to quote, because a killed or hanging program prints nothing
_NO_LINE_IN_LOG = frozenset(
    {
        *(FailureClass.KILLED, FailureClass.SIGNAL_KILL, FailureClass.UNKNOWN_DEATH),
        *(FailureClass.OUTCOME_UNREADABLE, FailureClass.HANG_INIT),
        *(FailureClass.HANG_SILENT_OOM, FailureClass.HANG_MID_TRAINING),
    }
)


def _explained(decision: Ruling, attempt: EndedAttempt) -> Ruling:
    """Return the decision on an attempt that was not accepted, with all that a person needs.

    The log is named if it has no known line, or if the reference cannot be measured. If no line of
    the log explains the end, the evidence is the scheduler's reason and the last step of the trial.
    """
    if decision.next is Next.ACCEPT:
        return decision
    outcome, report, cls = attempt.outcome, attempt.left.report, decision.cls
    is_unknown = cls in (FailureClass.EXIT_CODE, FailureClass.NO_STEPS)
    has_log = attempt.log is not None and cls != FailureClass.NOT_STARTED
    if has_log and (is_unknown or decision.cannot is not None):
        detail = verbatim(decision.detail) if decision.detail else decision.proof
        last_line = "".join(decision.evidence.strip().splitlines()[-1:]).strip()
        if cls == FailureClass.EXIT_CODE and last_line not in (
            "",
            decision.detail,
            FailureClass.EXIT_CODE.meaning,
        ):
            detail = say("{said}: {line}", said=decision.detail, line=last_line)
        found = say("{why}; its log: {log}", why=decision.found or detail, log=str(attempt.log))
        decision = replace(decision, found=found)
    if decision.cannot is not None and not attempt.trial.is_baseline:
        decision = replace(decision, arm=attempt.trial.arm)
    if outcome.state in _ENDED_FROM_OUTSIDE and attempt.cut is None:
        evidence = outcome.reason
    elif cls in _NO_LINE_IN_LOG:
        evidence = f"{attempt.executor}: {outcome.reason or decision.detail}"
    else:
        return decision
    progress = say("no step, {phase}", phase=report.phase)
    if report.last_step is not None:
        steps = attempt.trial.protocol.last_step
        progress = say("the last step is {step} of {steps}", step=report.last_step, steps=steps)
    late_ranks = (
        finding.why for finding in report.findings if finding.cls == FailureClass.RANK_BEHIND
    )
    shown = several([progress, *filter(None, late_ranks)])
    return replace(decision, evidence=evidence, shown=shown)


# prefixes of variables; any other name that a library reports as read is a flag
_NCCL_PREFIXES = ("NCCL_", "RCCL_")


def _trial_settings(attempt: EndedAttempt) -> tuple[TrialSetting, ...]:
    trial, cell, left = attempt.trial, attempt.cell, attempt.left
    report, dumps_options = left.report, attempt.dumps_options
    has_trained = report.phase is Phase.TRAINING
    flags = report.xla_flags or ""
    # if the user's own flags set xla_dump_to, XLA writes its options to the user's folder
    dumps_to_us = dumps_options and ("xla_dump_to" not in flags or OPTIONS_FOLDER in flags)
    keys = {**cell.overrides, **trial.profile.overrides}
    nccl = {name: value for name, value in report.nccl.items() if name.startswith(_NCCL_PREFIXES)}
    return judge_settings(
        trial.profile,
        Witnesses(
            flags=report.xla_flags,
            env=report.env,
            options=left.options,
            config=report.config,
            nccl=nccl,
            read={name: value for name, value in report.nccl.items() if name not in nccl},
            # a wrapper may restart a trainer without the flags that its first start dumped
            is_restarted=report.starts > 1,
            expects_options=has_trained and dumps_to_us,
            expects_readers=has_trained and dumps_options,
            pgle_found=report.pgle_found,
            pgle_unread=report.pgle_unread,
        ),
        deployed=append_flags(cell.deployed.get("XLA_FLAGS", ""), trial.pins),
        overrides={
            key: value.replace("{model_tag}", cell.model_tag) for key, value in keys.items()
        },
        exempt=attempt.exempt,
        defaults=history().defaults,
    )


def _setting_findings(settings: Sequence[TrialSetting]) -> tuple[Finding, ...]:
    drops = (FailureClass.FLAGS_NOT_EFFECTIVE, Action.DROP, contradictions(settings))
    notes = (FailureClass.FLAGS_UNVERIFIED, Action.NONE, unproved(settings))
    return tuple(
        Finding(cls=cls, action=action, why=why)
        for cls, action, messages in (drops, notes)
        for why in messages
    )


# The sweep stops if the settings of this number of profiles, and of no others, did not reach the
# program. A wrapper that ignores XLA_FLAGS would otherwise run every job for nothing.
_LEAST_LOST_PROFILES = 2
_NO_FLAG_SEEN = (
    "no flag of {profiles} was seen in effect: XLA was asked to write its options to a file, and "
    "wrote none. Does the trainer, or a wrapper around it, set XLA_FLAGS anew? Flags of libtpu are "
    "shown only on a TPU, by libtpu's own log. Such profiles win nothing. If nothing here can show "
    'a flag, declare that in the sweep, and it goes on: SiteSettings(unseen=("xla_*",))'
)


def settings_events(state: LedgerState, result: TrialResult) -> tuple[Event, ...]:
    """Return events for the whole sweep that follow from the settings of a finished trial.

    The sweep stops if the settings of the first two profiles did not reach the program, because all
    later trials would measure the deployed cell. It also stops if XLA was asked to dump its options
    and dumped none for both profiles.
    """
    ended = (progress.ended for progress in state.trials.values())
    results = [other for other in ended if other is not None and other.own_settings]
    unseen, no_flags = _has_unseen_flags, _NO_FLAG_SEEN
    refuted, no_settings = _is_contradicted, "of {profiles}, and of no other profile"
    for cls, is_lost, is_reached, found, proof in (
        (FailureClass.FLAGS_UNVERIFIED, unseen, _has_seen_flags, no_flags, unproved),
        (FailureClass.FLAGS_NOT_EFFECTIVE, refuted, _has_effect, no_settings, contradictions),
    ):
        if not is_lost(result) or any(map(is_reached, [*results, result])):
            continue
        arms = {result.trial.arm, *(other.trial.arm for other in results if is_lost(other))}
        if len(arms) >= _LEAST_LOST_PROFILES:
            decided = Decided(
                trial_id=result.trial.id,
                attempt=0,
                next=Next.STOP,
                cls=cls,
                found=say(found, profiles=sorted(arms)),
                shown=proof(result.own_settings)[0],
            )
            _LOG.warning("%s", sentence(decided.why))
            return (decided,)
    return ()


def _is_contradicted(result: TrialResult) -> bool:
    return bool(contradictions(result.own_settings))


def _has_effect(result: TrialResult) -> bool:
    effects = {setting.effect for setting in result.own_settings}
    return Effect.IN_EFFECT in effects and Effect.CONTRADICTED not in effects


def _has_seen_flags(result: TrialResult) -> bool:
    flags = [setting for setting in result.settings or () if setting.kind is SettingKind.FLAG]
    return any(setting.effect in (Effect.IN_EFFECT, Effect.CONTRADICTED) for setting in flags)


def _has_unseen_flags(result: TrialResult) -> bool:
    """Return whether a profile has flags, and nothing shows any of them in its scored trial."""
    flags = [setting for setting in result.own_settings if setting.kind is SettingKind.FLAG]
    unseen = [flag for flag in flags if flag.effect is Effect.NOT_SEEN and not flag.is_proved]
    return bool(flags) and unseen == flags and result.score is not None


def rotation_result(attempt: EndedAttempt, rotation: Rotation) -> RotationResult:
    """Return the result of an ended rotation; its `reason` says why it has no score."""
    blamed = tuple(culprit for culprit in attempt.blamed if not culprit.is_suspect)
    scored, read = _score_turns(attempt, rotation), attempt.left.journal
    if isinstance(scored, Message):
        return RotationResult(read=read, blamed=blamed, reason=scored)
    return RotationResult(read=read, blamed=blamed, score=scored)


def _score_turns(attempt: EndedAttempt, rotation: Rotation) -> RotationScore | Message:
    """Return the score of a rotation, or why it has none."""
    read, protocol = attempt.left.journal, attempt.trial.protocol
    if read is None:
        return say(
            "there is no journal of the worker that rotates programs: the trainer's Python did not "
            "load it, or its file could not be written or read"
        )
    if read.trouble or not read.found:
        trouble = say(IN_BRACKETS, text=read.trouble) if read.trouble else None
        return say("the program of the step was not found{said}", said=trouble)
    timed = timed_steps(
        attempt.left.steps, tokens_per_device_step=attempt.cell.tokens_per_device_step
    )
    if not timed:
        return coded(MessageCode.NO_TURNS, NO_STEP)
    gaps = [after.step - before.step for before, after in itertools.pairwise(timed)]
    line_steps = max(round(median(gaps)), 1) if gaps else 1  # steps from one line to the next
    # If the steps of the log do not match the calls of the step's program, they could be attributed
    # to the wrong program: the trainer may call it twice for each step, or do several steps in a
    # call. Calls before the loop are allowed, and lines that are not written for each step.
    if read.turns:
        spare, last_turn = max(_SPARE_CALLS, line_steps), read.turns[-1]
        logged = timed[-1].step - timed[0].step + 1
        # if a process was killed, its last lines may be missing
        fewest = round(_LEAST_LINES_SHARE * last_turn.first_call)
        most = last_turn.first_call + last_turn.calls
        if read.calls is not None:
            fewest = most = read.calls
        if not fewest - spare <= logged <= most + spare:
            return coded(
                MessageCode.NO_TURNS,
                "the log has {lines:+step}, but the step's program was called {calls} times, so it "
                "is unknown which program ran a step",
                calls=most,
                lines=logged,
            )
    first_step = timed[0].step  # the first line belongs to the first call
    # with the whole run as the window, `window_steps` leaves out only the steps of evaluations
    scored_steps = window_steps(replace(protocol, first_step=0, profiler=""))
    evaluations = set[int]()
    if protocol.eval_interval:
        evaluations = {step.step for step in timed if step.step not in scored_steps}
    turns = read_turns(
        [(turn.program, first_step + turn.first_call, turn.calls) for turn in read.turns],
        timed,
        programs=len(rotation.spec.programs),
        # a line that is not written for each step may be the mean of all steps since the last line
        skipped=SKIPPED_STEPS + line_steps - 1,
        left_out=evaluations | {first_step + call for call in read.odd_calls},
    )
    if isinstance(turns, NoTurns):
        return turns.reason
    step_tokens = [step.tgs * step.step_s for step in timed if step.tgs and step.step_s]
    scored = fit_turns(turns, tokens=median(step_tokens) if step_tokens else None)
    return scored.reason if isinstance(scored, NoTurns) else scored


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


def blame(decision: Ruling, attempt: EndedAttempt, rotation: Rotation) -> Blamed | None:
    """Return the program that an attempt died of; None if there is none, or too many were blamed.

    It is the program that was being compiled, or that had its turn. At first it is only a suspect,
    unless the playbook drops a profile at once for such an end. It is blamed if the next attempt
    ends in the same way and in the same program. In the first steps of a turn it is a suspect for
    any end, because an error of the turn before may show only then.

    At most one program of a rotation is blamed for a loss that is not finite, because all programs
    share the weights. An attempt that completed can only have died of its loss.
    """
    read, steps = attempt.left.journal, attempt.left.steps
    outcome, earlier = attempt.outcome, attempt.blamed
    is_loss = decision.cls == FailureClass.NUMERICAL_FAILURE
    if (
        read is None
        or decision.next in (Next.ACCEPT, Next.STOP)
        or outcome.state is State.NODE_FAIL
        or is_from_outside(decision.cls)
        or decision.cls in _CAUSED_BY_TRAINER
        or decision.is_of_node
        or (outcome.state is State.COMPLETED and not is_loss)
        or (is_loss and any(culprit.cls == decision.cls for culprit in earlier))
    ):
        return None
    if is_loss:
        program, is_early = _program_of_loss(read, steps), False
    else:
        program, is_early = _program_of_end(read, steps, rotation.spec.turn_steps)
    removed = {culprit.program for culprit in earlier if not culprit.is_suspect}
    at = BlamedAt.COMPILING if read.is_compiling and not is_loss else BlamedAt.TURN
    if (
        # programs in the journal that do not belong to the rotation are ignored
        program not in {known.id for known in rotation.spec.programs if not known.is_baseline}
        or program in removed
        or sum(culprit.at is at for culprit in earlier) >= MOST_BLAMED[at]
    ):
        return None
    # only the last blame counts, because an end in another program clears the former suspect
    is_again = [(culprit.program, culprit.at) for culprit in earlier[-1:]] == [(program, at)]
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
    ids = [step.step for step in steps]
    # the next call has the index of the number of calls that have a line
    call = max(ids) - min(ids) + 1 if raised is None else raised
    if call < last.first_call:  # a step of the turn before is not over
        return suspect, suspect == last.program
    turn_calls = last.calls if raised is None else turn_steps
    program = last.program if call < last.first_call + turn_calls else ""
    return program, call < last.first_call + _LATE_STEPS


def _program_of_loss(read: RotationRead, steps: Sequence[StepRecord]) -> str:
    """Return the program that most likely spoilt the loss; "" if it is no profile.

    A loss shows one step after the program that spoilt the weights, so in the first step of a turn
    it is that of the turn before. If no line has a bad loss, the trainer is taken to have aborted
    in the step after its last line.
    """
    if not steps:
        return ""
    ids = [step.step for step in steps]
    bad = [step.step for step in steps if step.loss is not None and not math.isfinite(step.loss)]
    call = min(bad, default=max(ids) + 1) - min(ids)
    turns = [turn for turn in read.turns if turn.first_call <= call][-2:]
    if turns and turns[-1].first_call < call:
        turns = turns[-1:]
    # the ids of baselines in a rotation are `baseline-deployed`, `baseline-deployed~2`, ...
    profiles = [turn for turn in turns if turn.program.partition("~")[0] != BASELINE_ID]
    return profiles[0].program if profiles else ""
