"""Assess an ended attempt: its findings, what follows, and its score.

This module brings together log, metrics file, outcome, playbook and score. It reads no file and no
clock, so assessing a recorded attempt again gives the same result.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from pytest_xlatune.campaign._follow import EndedAttempt
from pytest_xlatune.campaign.playbook import Ruling, decide, rule_decision, with_exceptions
from pytest_xlatune.campaign.rotating import (
    blame,
    findings_of,
    has_enough_turns,
    rotation_result,
)
from pytest_xlatune.catalog.entries import history
from pytest_xlatune.ledger import Decided, Event
from pytest_xlatune.ledger.state import LedgerState
from pytest_xlatune.logs import Phase
from pytest_xlatune.logs.triage import as_told, diagnose, primary
from pytest_xlatune.model.errors import known_secrets
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import Message, say, sentence, several, verbatim
from pytest_xlatune.model.profile import OPTIONS_FOLDER, append_flags
from pytest_xlatune.model.redact import HIDDEN, hide_quoted, is_secret
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import (
    Action,
    Blamed,
    Effect,
    Finding,
    RotationResult,
    Score,
    SettingKind,
    State,
    TrialResult,
    TrialSetting,
    TrialStatus,
)
from pytest_xlatune.stats.score import NO_TOKENS, score
from pytest_xlatune.stats.validity import (
    Witnesses,
    contradictions,
    judge_settings,
    other_device,
    unproved,
)

_LOG = logging.getLogger("pytest_xlatune.campaign")
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

    Attributes:
        findings: all findings, the root cause first.
        decision: what the playbook decided.
        score: the score; None if the attempt is not accepted, or is not to be scored.
        settings: each setting of the trial, and whether it was in effect.
        rotation: the result of a rotation; None for other trials.
        blamed: the program of a rotation that ended the attempt; None if none did.
        devices: witness -> the device that it shows.
    """

    findings: tuple[Finding, ...]
    decision: Ruling
    score: Score | None = None
    settings: tuple[TrialSetting, ...] = ()
    rotation: RotationResult | None = None
    blamed: Blamed | None = None
    devices: dict[str, str] = field(default_factory=dict)

    @property
    def why_none(self) -> Message | None:
        """Why nothing was measured; None if something was."""
        if self.decision.next is Next.ACCEPT and (
            self.score is not None
            or (self.rotation is not None and self.rotation.score is not None)
        ):
            return None
        return self.decision.why or (self.rotation.reason if self.rotation is not None else None)


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
    decision, measured_rotation, blamed = rule_decision(outcome, cause, facts), None, None
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
    decision, attempt_score = with_exceptions(decision, case_facts), None
    if decision.next is Next.ACCEPT and trial.protocol.is_scored:
        rejection = _other_device_finding(devices, attempt)
        if measured_rotation is not None and rejection is not None:
            measured_rotation = replace(measured_rotation, score=None, reason=rejection.why)
        # profiler and dump change the time of a step, so an evidence run is never scored
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

    None follows if the trainer logged its last step nevertheless. `fatal` is the finding in the
    ledger; None if we ended the attempt for another reason, or not at all.
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
