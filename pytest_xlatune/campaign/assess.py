"""Assess an ended attempt: its findings, what follows, and its score.

Log, metrics file, outcome, playbook and score are only brought together here. It reads no file and
no clock, so a recorded attempt is assessed to the same result again.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from pytest_xlatune.campaign.ended import EndedAttempt, Leftovers
from pytest_xlatune.campaign.playbook import (
    Reference,
    Ruling,
    by_rule,
    decide,
    in_case,
)
from pytest_xlatune.campaign.rotating import (
    blame,
    ends_early,
    findings_of,
    is_enough,
    measured,
)
from pytest_xlatune.catalog.entries import history
from pytest_xlatune.catalog.rules import nearest
from pytest_xlatune.ledger import Decided, Event, Noted
from pytest_xlatune.ledger.state import LedgerState
from pytest_xlatune.logs import LogReport, Phase
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
from pytest_xlatune.model.trial import Trial
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
    """All that is known about an ended attempt.

    Attributes:
        findings: all findings, the root cause first.
        decision: what the playbook decided.
        score: the score; None unless the attempt is accepted.
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
    report, fatal = left.report, cut.fatal if cut is not None else None
    outcome = as_told(attempt.outcome, report, is_ours=cut is not None)
    attempt = dataclasses.replace(attempt, outcome=outcome)
    settings, rotation = _settings(attempt), trial.rotation
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
    if rotation is not None and outcome.state is State.COMPLETED:
        early = ends_early(left, rotation)
        if early is not None and all(finding.cls != early.cls for finding in findings):
            findings = (*findings, early)
    cause = _same_line(fatal, findings) or primary(findings)
    decision, of_end, turned = by_rule(outcome, cause, facts), facts, None
    if rotation is not None:
        turned = measured(attempt, rotation)
        died_of = blame(decision, cause, attempt, rotation)
        findings = (*findings, *findings_of(left.journal))
        of_end = dataclasses.replace(
            facts,
            blamed=died_of,
            has_enough_turns=is_enough(turned, rotation),
            is_first_rotation=rotation.number <= 1,
        )
    decision = in_case(decision, of_end)
    devices = _devices(left)
    scored = None
    if decision.next is Next.ACCEPT:
        elsewhere = _elsewhere(devices, attempt.ran_on) if trial.protocol.is_scored else None
        missing = _lost_turns(trial, turned, facts.earlier) or elsewhere
        if turned is not None and elsewhere is not None and missing is elsewhere:
            turned = replace(turned, score=None, reason=missing.why)
        is_of_one_program = rotation is None or rotation.is_of_baseline
        # profiler and dump change the time of a step, so an evidence run is never scored
        if missing is None and trial.protocol.is_scored and is_of_one_program:
            scoring = score(
                left.steps,
                protocol=trial.protocol,
                tokens_per_device_step=attempt.cell.tokens_per_device_step,
                logged=left.logged,
            )
            if isinstance(scoring, Score):
                scored = replace(scoring, memory_gb=report.memory_gb)
            else:
                missing = _unscored(scoring.reason)
        if missing is not None:
            cause, findings = missing, (*findings, missing)
            decision = decide(outcome, cause, facts)
    if decision.cannot is not None and not trial.is_baseline:
        decision = replace(decision, arm=trial.arm)
    if decision.next is not Next.ACCEPT:
        decision = replace(decision, found=_found(decision, attempt.log))
    return Assessment(
        findings=tuple(sorted(findings, key=lambda finding: finding != cause)),
        decision=decision,
        score=scored,
        settings=tuple(map(_without_value, settings)),
        rotation=turned,
        blamed=of_end.blamed,
        devices=devices,
    )


def reference_for(trial: Trial, reference: str, *, runs: bool) -> Reference:
    """Return the state of the reference, as the playbook needs it for a trial.

    Args:
        trial: any trial of the study.
        reference: the arm that others are compared with; "" if there is none.
        runs: whether a trial of the reference was measured.
    """
    if not reference or not trial.protocol.is_scored:
        return Reference.RUNS
    if trial.arm == reference:
        return Reference.ITSELF if runs else Reference.FIRST
    return Reference.RUNS if runs else Reference.UNKNOWN


def _unscored(why: Message | None) -> Finding:
    # another run would print the same lines
    action = Action.DROP if why == NO_TOKENS else Action.RETRY
    return Finding(cls=FailureClass.NO_SCORE, action=action, why=why)


def _lost_turns(
    trial: Trial, result: RotationResult | None, earlier: Sequence[str]
) -> Finding | None:
    """Return the finding that the turns of a rotation cannot be read, the first time.

    The first rotation showed that they can be read, so the journal or lines of it were lost.
    """
    if trial.rotation is None or result is None or result.score is not None:
        return None
    if trial.rotation.is_look or FailureClass.NO_SCORE in earlier:
        return None
    return _unscored(result.reason)


def _devices(left: Leftovers) -> dict[str, str]:
    """Return witness -> the device on which the attempt ran, as far as it shows one."""
    log_lines = {f"log:{line}": device for line, device in left.report.devices.items()}
    device_of = {**left.devices, **log_lines}
    if left.journal is not None and left.journal.device:
        device_of["journal"] = left.journal.device
    return device_of


def _elsewhere(
    devices: Mapping[str, str], ran_on: Mapping[str, Mapping[str, str]]
) -> Finding | None:
    """Return a finding if an attempt ran on another device than what it is compared with.

    A trainer that falls back to the CPU may not say so, and its steps look like any others.
    """
    differences = (
        other_device(devices, arm_devices, arm=arm) for arm, arm_devices in ran_on.items()
    )
    why = next(filter(None, differences), None)
    if why is None:
        return None
    return Finding(cls=FailureClass.OTHER_DEVICE, action=Action.RETRY, why=why)


def proved(decision: Ruling, attempt: EndedAttempt, executor: str) -> Ruling:
    """Return a decision with its evidence.

    If no line of the log explains the end, the evidence is who ended the job, and how far it came.
    """
    outcome, report = attempt.outcome, attempt.left.report
    if outcome.state in _OF_SLURM and attempt.cut is None:
        evidence = outcome.reason
    elif decision.cls in _WITHOUT_A_LINE:
        evidence = f"{executor}: {outcome.reason or decision.detail}"
    else:
        return decision
    late_ranks = (
        finding.why for finding in report.findings if finding.cls == FailureClass.RANK_BEHIND
    )
    shown = several([_last_step(report, attempt.trial), *filter(None, late_ranks)])
    return replace(decision, evidence=evidence, shown=shown)


# states in which the scheduler, a node or a person ended the job, and not the program itself
_OF_SLURM = frozenset(
    {
        *(State.NODE_FAIL, State.TIMEOUT, State.CANCELLED, State.LOST),
        *(State.PREEMPTED, State.REQUEUED, State.OUT_OF_MEMORY),
    }
)
# a program that is killed or hangs prints nothing about it, so no line of the log is quoted: a
# report once showed the first lines of the log as the evidence
_WITHOUT_A_LINE = frozenset(
    {
        *(FailureClass.KILLED, FailureClass.SIGNAL_KILL, FailureClass.UNKNOWN_DEATH),
        *(FailureClass.OUTCOME_UNREADABLE, FailureClass.HANG_INIT),
        *(FailureClass.HANG_SILENT_OOM, FailureClass.HANG_MID_TRAINING),
    }
)


def _found(decision: Ruling, log: Path | None) -> Message | None:
    """Return what was found, with the path of the log if a person has to read it.

    A person has to read it if nothing in it is known, or if the sweep stops. For a flag that XLA
    does not know, the flag that was probably meant is named.
    """
    found, why = decision.found, verbatim(decision.detail) if decision.detail else None
    if log is None:
        return found
    if decision.cls == FailureClass.UNKNOWN_FLAG:
        names = (flag.removeprefix("--").partition("=")[0] for flag in decision.detail.split())
        meant = [f"--{near}" for name in names if (near := nearest(name, history().flags))]
        if meant:
            found = say("{flags}; did you mean {meant}?", flags=decision.detail, meant=meant)
    if decision.cls == FailureClass.EXIT_CODE:
        lines = [line.strip() for line in decision.evidence.splitlines() if line.strip()]
        if lines and lines != [FailureClass.EXIT_CODE.meaning]:
            why = say("{said}: {line}", said=decision.detail, line=lines[-1])
    elif decision.cls == FailureClass.NO_STEPS or decision.cannot is not None:
        why = found or why or decision.proof
    else:
        return found
    if decision.cls == FailureClass.NOT_STARTED:  # it has no log
        return found
    return say("{why}; its log: {log}", why=why, log=str(log))


def _last_step(report: LogReport, trial: Trial) -> Message:
    """Return how far an attempt came, for the evidence of its end."""
    if report.last_step is None:
        return say("no step, {phase}", phase=report.phase)
    return say(
        "the last step is {step} of {steps}", step=report.last_step, steps=trial.protocol.last_step
    )


def _same_line(fatal: Finding | None, findings: Sequence[Finding]) -> Finding | None:
    """Return the finding of the line for which an attempt was ended, if it still matters.

    It does not matter if the last step was logged nevertheless.
    """
    if fatal is None:
        return None
    # secrets in the ledger's copy of the line are hidden
    secrets = known_secrets()
    seen = (fatal.cls, hide_quoted(fatal.detail, secrets))
    matches = (
        finding
        for finding in findings
        if (finding.cls, hide_quoted(finding.detail, secrets)) == seen
    )
    return next((finding for finding in matches if finding.action is not Action.NONE), None)


# prefixes of variables; anything else that a library says it read is a flag
_OF_NCCL = ("NCCL_", "RCCL_")


def _settings(attempt: EndedAttempt) -> tuple[TrialSetting, ...]:
    """Return for each setting whether log and dump show that it was in effect."""
    trial, cell, left = attempt.trial, attempt.cell, attempt.left
    report, is_asked = left.report, attempt.is_asked
    ran = report.phase is Phase.TRAINING
    flags = report.xla_flags or ""
    # if the user dumps, XLA writes its options elsewhere
    is_told = is_asked and ("xla_dump_to" not in flags or OPTIONS_FOLDER in flags)
    keys = {**cell.overrides, **trial.profile.overrides}
    return judge_settings(
        trial.profile,
        Witnesses(
            flags=report.xla_flags,
            env=report.env,
            options=left.options,
            config=report.config,
            nccl={name: value for name, value in report.nccl.items() if name[:5] in _OF_NCCL},
            read={name: value for name, value in report.nccl.items() if name[:5] not in _OF_NCCL},
            # a wrapper may restart a trainer without the flags that its first start dumped
            is_restarted=report.starts > 1,
            expects_options=ran and is_told,
            expects_nccl=ran and is_asked,
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


# a wrapper that ignored XLA_FLAGS ended green: each job ran, and each profile was dropped
_LOST_PROFILES = 2  # so many profiles, and no others, had settings that did not reach the program
_NO_FLAG_SEEN = (
    "no flag of {profiles} was seen in effect: XLA was asked to write its options down, and wrote "
    "none. Does the trainer, or a wrapper around it, set XLA_FLAGS anew? Flags of libtpu show in "
    "its own log, on a TPU alone. Such profiles win nothing. If nothing here can show a flag, the "
    'sweep says so, and goes on: SiteSettings(unseen=("xla_*",))'
)
_NO_OTHER = "of {profiles}, and no other profile's were"
_NOTHING_SHOWS = (
    "nothing shows that {settings} of {arm} was in effect ({effect}): such a profile cannot win. "
    "{hint} If nothing can show it, the sweep may declare it: "
    'SiteSettings(unseen=("{name}",))'
)
# kind of a setting -> what to check if nothing shows that the setting was in effect
_LOOK_AT = {
    SettingKind.FLAG: (
        "Does the trainer, or a wrapper around it, set XLA_FLAGS anew? XLA was asked to write its "
        "options down. Flags of libtpu show in its own log, on a TPU alone."
    ),
    SettingKind.VARIABLE: (
        "Of variables only those of NCCL and RCCL are shown, by their own lines, where the trainer "
        "loads it."
    ),
    SettingKind.OVERRIDE: "The trainer prints no configuration line about it.",
}


def said_of_settings(state: LedgerState, result: TrialResult) -> tuple[Event, ...]:
    """Return events for the whole sweep that follow from the settings of a finished trial.

    The sweep stops if the settings of the first two profiles did not reach the program: something
    drops or replaces them, and all later trials would measure the deployed cell. It also stops if
    XLA was asked to dump its options and dumped none in both. Settings that the sweep declares
    unseen stop nothing, and neither do profiles of only variables and keys. The first trial with a
    setting of some kind that nothing shows gets a note, before the night is spent.
    """
    others = (progress.ended for progress in state.trials.values())
    ran = [ended for ended in others if ended is not None and ended.own_settings]
    # a program that refused a flag, or ran out of memory, tells by itself why it wins nothing
    notes = _silent(ran, result) if result.score is not None else ()
    ran.append(result)
    for cls, lost, found, proof in (
        (FailureClass.FLAGS_UNVERIFIED, _unread(ran), _NO_FLAG_SEEN, unproved),
        (FailureClass.FLAGS_NOT_EFFECTIVE, _contradicted(ran), _NO_OTHER, contradictions),
    ):
        arms = {ended.trial.arm for ended in lost}
        if lost and lost[-1] is result and len(arms) >= _LOST_PROFILES:
            decided = Decided(
                trial_id=result.trial.id,
                attempt=0,
                next=Next.STOP,
                cls=cls,
                found=say(found, profiles=sorted(arms)),
                shown=proof(result.own_settings)[0],
            )
            _LOG.warning("%s", sentence(decided.why))
            return (*notes, decided)
    return notes


def _unread(ran: Sequence[TrialResult]) -> list[TrialResult]:
    """Return the trials without a flag that was seen; none if any trial has one."""
    told = (Effect.IN_EFFECT, Effect.CONTRADICTED)
    for ended in ran:
        for setting in ended.settings or ():
            if setting.kind is SettingKind.FLAG and setting.effect in told:
                return []
    return [ended for ended in ran if _is_unread(ended)]


def _contradicted(ran: Sequence[TrialResult]) -> list[TrialResult]:
    """Return the trials with a contradicted setting; none if another has one in effect."""
    lost = [ended for ended in ran if contradictions(ended.own_settings)]
    is_reached = any(
        setting.effect is Effect.IN_EFFECT
        for ended in ran
        if not contradictions(ended.own_settings)
        for setting in ended.own_settings
    )
    return [] if is_reached else lost


def _is_unread(result: TrialResult) -> bool:
    """Return whether a scored trial has flags of its own that their witness does not show.

    A trial without a score has another reason for not winning.
    """
    flags = [setting for setting in result.own_settings if setting.kind is SettingKind.FLAG]
    return (
        bool(flags)
        and result.score is not None
        and all(setting.effect is Effect.NOT_SEEN and not setting.is_proved for setting in flags)
    )


def _silent(ran: Sequence[TrialResult], result: TrialResult) -> tuple[Event, ...]:
    """Return a note for each kind of setting that nothing shows for the first time."""
    known = {setting.kind for ended in ran for setting in ended.own_settings if _is_silent(setting)}
    notes = []
    for kind in dict.fromkeys(setting.kind for setting in result.own_settings):
        settings = [
            setting
            for setting in result.own_settings
            if setting.kind is kind and _is_silent(setting)
        ]
        if settings and kind not in known:
            why = say(
                _NOTHING_SHOWS,
                settings=[setting.label for setting in settings],
                arm=result.trial.arm,
                effect=settings[0].effect,
                hint=say(_LOOK_AT[kind]),
                name=settings[0].name,
            )
            notes.append(Noted(why=why))
    return tuple(notes)


def _is_silent(setting: TrialSetting) -> bool:
    return setting.effect is not Effect.CONTRADICTED and not setting.is_proved
