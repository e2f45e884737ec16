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
from dataclasses import dataclass, field
from statistics import median

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
from pytest_xlatune.model.errors import known_secrets
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import (
    Message,
    MessageCode,
    coded,
    say,
    sentence,
    several,
    verbatim,
)
from pytest_xlatune.model.profile import BASELINE_ID, OPTIONS_FOLDER, append_flags
from pytest_xlatune.model.redact import HIDDEN, hide_quoted, is_secret
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
# decision -> final status of the trial; after other decisions there is another attempt
STATUS = {
    Next.ACCEPT: TrialStatus.MEASURED,
    Next.DROP: TrialStatus.DROPPED,
    Next.GIVE_UP: TrialStatus.UNMEASURED,
    Next.STOP: TrialStatus.UNMEASURED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """The result of assessing an ended attempt.

    `score` is None for a trial that is not to be scored, and `rotation` if it is no rotation.
    """

    findings: tuple[Finding, ...]  # the root cause first
    decision: Ruling
    score: Score | None = None
    settings: tuple[TrialSetting, ...] = ()
    rotation: RotationResult | None = None
    blamed: Blamed | None = None  # the program of a rotation that ended the attempt
    devices: dict[str, str] = field(default_factory=dict)  # witness -> the device that it shows

    @property
    def why_none(self) -> Message | None:
        """Why nothing was measured; None if something was."""
        rotation = self.rotation
        has_score = self.score is not None
        if rotation is not None:
            has_score = has_score or rotation.score is not None
        if has_score and self.decision.next is Next.ACCEPT:
            return None
        return self.decision.why or (rotation.reason if rotation is not None else None)


def assess(attempt: EndedAttempt) -> Assessment:
    """Assess one ended attempt."""
    trial, left, facts, cut = attempt.trial, attempt.left, attempt.facts, attempt.cut
    report, rotation = left.report, trial.rotation
    fatal = cut.fatal if cut is not None else None
    outcome = as_told(attempt.outcome, report, is_ours=cut is not None)
    attempt = dataclasses.replace(attempt, outcome=outcome)
    settings, devices = _trial_settings(attempt), _devices(attempt)
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
    cause = _finding_of_fatal(fatal, findings) or primary(findings)
    decision = rule_decision(outcome, cause, facts)
    measured_rotation: RotationResult | None = None
    blamed: Blamed | None = None
    case_facts = facts
    if rotation is not None:
        measured_rotation = rotation_result(attempt, rotation)
        blamed = blame(decision, cause, attempt, rotation)
        findings = (*findings, *findings_of(left.journal))
        case_facts = dataclasses.replace(
            facts,
            blamed=blamed,
            has_enough_turns=has_enough_turns(measured_rotation, rotation),
            is_first_rotation=rotation.number <= 1,
        )
    decision = with_exceptions(decision, case_facts)
    attempt_score: Score | None = None
    # profiler and dump change the time of a step, so an evidence run is never scored
    if decision.next is Next.ACCEPT and trial.protocol.is_scored:
        rejection = _other_device_finding(devices, attempt)
        if measured_rotation is not None and rejection is not None:
            measured_rotation = replace(measured_rotation, score=None, reason=rejection.why)
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
    return Assessment(
        findings=tuple(sorted(findings, key=lambda finding: finding != cause)),
        decision=_explained(decision, attempt),
        score=attempt_score,
        settings=tuple(map(_without_value, settings)),
        rotation=measured_rotation,
        blamed=blamed,
        devices=devices,
    )


def _devices(attempt: EndedAttempt) -> dict[str, str]:
    """Return witness -> device: each line or file that shows on which device the attempt ran."""
    left = attempt.left
    log_lines = {f"log:{line}": device for line, device in left.report.devices.items()}
    device_of = {**left.devices, **log_lines}
    if left.journal is not None and left.journal.device:
        device_of["journal"] = left.journal.device
    return device_of


def _other_device_finding(devices: dict[str, str], attempt: EndedAttempt) -> Finding | None:
    """Return a finding if an attempt ran on another device than the trials it is compared with.

    A trainer that falls back to the CPU may print nothing about it, and its steps look normal.
    """
    for arm, arm_devices in attempt.ran_on.items():
        why = other_device(devices, arm_devices, arm=arm)
        if why is not None:
            return Finding(cls=FailureClass.OTHER_DEVICE, action=Action.RETRY, why=why)
    return None


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
    arm = attempt.trial.arm if decision.cannot and not attempt.trial.is_baseline else ""
    decision = replace(decision, arm=arm, found=_with_log_path(decision, attempt))
    outcome, report = attempt.outcome, attempt.left.report
    if outcome.state in _ENDED_FROM_OUTSIDE and attempt.cut is None:
        evidence = outcome.reason
    elif decision.cls in _NO_LINE_IN_LOG:
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


def _with_log_path(decision: Ruling, attempt: EndedAttempt) -> Message | None:
    found, detail = decision.found, decision.detail
    why = verbatim(detail) if detail else None
    if attempt.log is None or decision.cls == FailureClass.NOT_STARTED:  # then there is no log
        return found
    if decision.cls == FailureClass.EXIT_CODE:
        lines = [line.strip() for line in decision.evidence.splitlines() if line.strip()]
        if lines and lines != [FailureClass.EXIT_CODE.meaning]:
            why = say("{said}: {line}", said=detail, line=lines[-1])
    elif decision.cls == FailureClass.NO_STEPS or decision.cannot is not None:
        why = found or why or decision.proof
    else:
        return found
    return say("{why}; its log: {log}", why=why, log=str(attempt.log))


def _finding_of_fatal(fatal: Finding | None, findings: Sequence[Finding]) -> Finding | None:
    """Return the finding of the fatal line for which we ended an attempt, if an action follows.

    No action follows if the trainer logged its last step nevertheless. `fatal` is the finding in
    the ledger; None if we ended the attempt for another reason, or not at all.
    """
    if fatal is None:
        return None
    secrets = known_secrets()  # they are hidden in the ledger's copy of the line
    key = (fatal.cls, hide_quoted(fatal.detail, secrets))
    for finding in findings:
        is_same = (finding.cls, hide_quoted(finding.detail, secrets)) == key
        if is_same and finding.action is not Action.NONE:
            return finding
    return None


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
    is_nccl = {name: name.startswith(_NCCL_PREFIXES) for name in report.nccl}
    return judge_settings(
        trial.profile,
        Witnesses(
            flags=report.xla_flags,
            env=report.env,
            options=left.options,
            config=report.config,
            nccl={name: value for name, value in report.nccl.items() if is_nccl[name]},
            read={name: value for name, value in report.nccl.items() if not is_nccl[name]},
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


def _without_value(setting: TrialSetting) -> TrialSetting:
    """Return a setting without its value if its name is that of a secret."""
    if not is_secret(setting.name):
        return setting
    return replace(setting, asked=HIDDEN, seen="", why=None)


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
_ALL_CONTRADICTED = "of {profiles}, and of no other profile"


def settings_events(state: LedgerState, result: TrialResult) -> tuple[Event, ...]:
    """Return events for the whole sweep that follow from the settings of a finished trial.

    The sweep stops if the settings of the first two profiles did not reach the program: something
    drops or replaces them, and all later trials would measure the deployed cell. It also stops if
    XLA was asked to dump its options and dumped none for both profiles. Settings that the sweep
    declares unseen do not stop it, and neither do profiles that set only variables and keys.
    """
    ended_trials = (progress.ended for progress in state.trials.values())
    results = [ended for ended in ended_trials if ended is not None and ended.own_settings]
    results.append(result)
    contradicted = [ended for ended in results if contradictions(ended.own_settings)]
    unseen = [ended for ended in results if _has_unseen_flags(ended)]
    if any(map(_has_effect, results)):
        contradicted = []
    if any(map(_has_seen_flags, results)):
        unseen = []
    for cls, lost, found, proof in (
        (FailureClass.FLAGS_UNVERIFIED, unseen, _NO_FLAG_SEEN, unproved),
        (FailureClass.FLAGS_NOT_EFFECTIVE, contradicted, _ALL_CONTRADICTED, contradictions),
    ):
        arms = {ended.trial.arm for ended in lost}
        if lost and lost[-1] is result and len(arms) >= _LEAST_LOST_PROFILES:
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


def _has_effect(result: TrialResult) -> bool:
    """Return whether a trial's own settings were in effect, and none was contradicted."""
    own = result.own_settings
    has_effect = any(setting.effect is Effect.IN_EFFECT for setting in own)
    return has_effect and not contradictions(own)


def _has_seen_flags(result: TrialResult) -> bool:
    seen = (Effect.IN_EFFECT, Effect.CONTRADICTED)
    flags = [setting for setting in result.settings or () if setting.kind is SettingKind.FLAG]
    return any(setting.effect in seen for setting in flags)


def _has_unseen_flags(result: TrialResult) -> bool:
    """Return whether a scored trial's profile has flags, and nothing shows any of them.

    A trial without a score has another reason why its profile cannot win.
    """
    flags = [setting for setting in result.own_settings if setting.kind is SettingKind.FLAG]
    return (
        bool(flags)
        and result.score is not None
        and all(setting.effect is Effect.NOT_SEEN and not setting.is_proved for setting in flags)
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
        name: say(PROGRAM_REFUSED, program=name, said=text) for name, text in read.refused.items()
    }
    for name, size in read.left_out.items():
        reasons[name] = say(PROGRAM_TOO_LARGE, program=name, gib=size / 2**30)
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
    if call >= last.first_call + turn_calls:
        return "", is_early
    return last.program, is_early


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
