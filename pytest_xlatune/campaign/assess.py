"""What an ended attempt is worth: its findings, what follows, and its score.

The one place where the log, the metrics file, the outcome, the playbook and the score meet. It
reads no file and no clock: texts and values in, one `Assessment` out, so a recorded attempt is
assessed again to the same result.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from pytest_xlatune.campaign.playbook import Facts, Reference, Ruling, decide, in_case
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
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.channels import Options
from pytest_xlatune.model.errors import known_secrets
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import Message, say, sentence, verbatim
from pytest_xlatune.model.metric import Logged
from pytest_xlatune.model.profile import OPTIONS_FOLDER, append_flags
from pytest_xlatune.model.redact import HIDDEN, hide_quoted, is_secret
from pytest_xlatune.model.resources import Next, RetryPolicy
from pytest_xlatune.model.result import (
    Action,
    Blamed,
    Effect,
    Finding,
    Outcome,
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
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.score import NO_TOKENS, score
from pytest_xlatune.stats.validity import (
    Shown,
    contradictions,
    judged,
    other_device,
    unproved,
)

_LOG = logging.getLogger("pytest_xlatune.campaign")
# decision -> the trial's final status; the others are followed by another attempt
STATUS = {
    Next.ACCEPT: TrialStatus.MEASURED,
    Next.DROP: TrialStatus.DROPPED,
    Next.GIVE_UP: TrialStatus.UNMEASURED,
    Next.STOP: TrialStatus.UNMEASURED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """All that an ended attempt tells.

    Attributes:
        findings: everything diagnosed, the root cause first.
        decision: what follows.
        score: where the attempt is accepted.
        settings: each of the trial, and whether it was in effect.
        rotation: the result of a rotation; None of other trials.
        blamed: the program of a rotation that it died of; None where it died of none.
        devices: what shows where it ran -> the device that it shows.
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
        """Why nothing was measured; None where something was."""
        if self.decision.next is Next.ACCEPT and (
            self.score is not None
            or (self.rotation is not None and self.rotation.score is not None)
        ):
            return None
        return self.decision.why or (self.rotation.reason if self.rotation is not None else None)


def assess(
    trial: Trial,
    cell: Cell,
    outcome: Outcome,
    report: LogReport,
    *,
    metrics: Sequence[StepRecord] = (),
    logged: Logged | None = None,
    journal: RotationRead | None = None,
    stalled_s: float | None = None,
    fatal: Finding | None = None,
    options: Options | None = None,
    devices: Mapping[str, str] | None = None,
    ran_on: Mapping[str, Mapping[str, str]] | None = None,
    is_asked: bool = False,
    exempt: Sequence[str] = (),
    earlier: Sequence[str] = (),
    number: int = 1,
    blamed: Sequence[Blamed] = (),
    policy: RetryPolicy | None = None,
    reference: str = "",
    reference_runs: bool = True,
    facts: Facts | None = None,
) -> Assessment:
    """Assess one ended attempt.

    `metrics` are the unrounded steps of MaxText's metrics file, preferred to those of the log;
    `logged` the figures of the protocol's metric that stand beside the steps.
    Where we ended the attempt ourselves, it was after `stalled_s` seconds without a step or for the
    line `fatal`. `options` are those that XLA dumped, None where it did not, `is_asked` whether it
    was asked to; `devices` are those of its modules, by witness, and `ran_on` those of the trials
    that it is compared with, by arm; `exempt` are patterns of settings that nothing can show.
    `earlier` are the failure classes of its earlier attempts. `reference` is the arm that others
    are compared with, "" where the study compares with none, and `reference_runs` whether a trial
    of it was measured. Of a rotation `journal` is what its worker wrote, `number` that of the
    attempt, `blamed` what the earlier ones died of. `facts` are what its session knows of it.
    """
    facts = facts or Facts()
    is_ours = fatal is not None or stalled_s is not None
    outcome = as_told(outcome, report, is_ours=is_ours)
    stands = _reference(trial, reference, runs=reference_runs)
    rules = functools.partial(decide, outcome, earlier=earlier, policy=policy, reference=stands)
    findings = diagnose(
        report,
        outcome,
        trial.protocol,
        stalled_s=stalled_s,
        is_ended_by_us=fatal is not None,
    )
    settings = _settings(trial, cell, report, options, is_asked=is_asked, exempt=exempt)
    findings = (*findings, *_setting_findings(settings))
    steps = steps_of(report, metrics)
    if trial.rotation is not None and outcome.state is State.COMPLETED:
        early = ends_early(journal, steps, trial.rotation)
        known = {finding.cls for finding in findings}
        findings = (*findings, *([early] if early and early.cls not in known else []))
    cause = _same_line(fatal, findings) or primary(findings)
    decision, rotation, of_end = rules(cause), trial.rotation, facts
    turned, died_of = None, None
    if rotation is not None:
        turned = measured(
            *(journal, steps),
            rotation=rotation,
            protocol=trial.protocol,
            tokens_per_device_step=cell.tokens_per_device_step,
            blamed=[culprit for culprit in blamed if not culprit.is_suspect],
        )
        died_of = blame(
            *(decision, cause, journal, steps),
            rotation=rotation,
            number=number,
            outcome=outcome,
            earlier=blamed,
        )
        findings = (*findings, *findings_of(journal))
        of_end = dataclasses.replace(
            facts,
            blamed=died_of,
            has_enough_turns=is_enough(turned, rotation),
            is_first_rotation=rotation.number <= 1,
        )
    decision = in_case(decision, of_end)
    devices = _devices(report, journal, devices or {})
    scored = None
    if decision.next is Next.ACCEPT:
        elsewhere = _elsewhere(devices, ran_on or {}) if trial.protocol.is_scored else None
        missing = _lost_turns(trial, turned, earlier) or elsewhere
        if turned is not None and elsewhere is not None and missing is elsewhere:
            turned = replace(turned, score=None, reason=missing.why)
        is_of_one_program = rotation is None or rotation.is_of_baseline
        # profiler and dump change the time of a step: an evidence run is never scored
        if missing is None and trial.protocol.is_scored and is_of_one_program:
            tokens, protocol = cell.tokens_per_device_step, trial.protocol
            scoring = score(steps, protocol=protocol, tokens_per_device_step=tokens, logged=logged)
            if isinstance(scoring, Score):
                scored = replace(scoring, memory_gb=report.memory_gb)
            else:
                missing = _unscored(scoring.reason)
        if missing is not None:
            cause, findings = missing, (*findings, missing)
            decision = rules(cause, facts=facts)
    if decision.cannot is not None and not trial.is_baseline:
        decision = replace(decision, arm=trial.arm)
    ordered = sorted(findings, key=lambda finding: finding != cause)
    return Assessment(
        findings=tuple(ordered),
        decision=decision,
        score=scored,
        settings=tuple(map(_without_value, settings)),
        rotation=turned,
        blamed=died_of,
        devices=devices,
    )


def _reference(trial: Trial, reference: str, *, runs: bool) -> Reference:
    """Return where the reference stands, as a trial sees it."""
    if not reference or not trial.protocol.is_scored:
        return Reference.RUNS
    if trial.arm == reference:
        return Reference.ITSELF if runs else Reference.FIRST
    return Reference.RUNS if runs else Reference.UNKNOWN


def _unscored(why: Message | None) -> Finding:
    # another run prints the same lines
    action = Action.DROP if why == NO_TOKENS else Action.RETRY
    return Finding(cls=FailureClass.NO_SCORE, action=action, why=why)


def _lost_turns(
    trial: Trial, result: RotationResult | None, earlier: Sequence[str]
) -> Finding | None:
    """Return that the turns of a rotation are not told, the first time.

    Whether they can be told is known from the look: the journal was lost, or lines of it.
    """
    if trial.rotation is None or result is None or result.score is not None:
        return None
    if trial.rotation.is_look or FailureClass.NO_SCORE in earlier:
        return None
    return _unscored(result.reason)


def _devices(
    report: LogReport, journal: RotationRead | None, dumped: Mapping[str, str]
) -> dict[str, str]:
    """Return all that an attempt shows of where it ran, by witness."""
    device_of = {**dumped, **{f"log:{line}": device for line, device in report.devices.items()}}
    if journal is not None and journal.device:
        device_of["journal"] = journal.device
    return device_of


def _elsewhere(
    devices: Mapping[str, str], ran_on: Mapping[str, Mapping[str, str]]
) -> Finding | None:
    """Return that an attempt ran on another device than what it is compared with, if it did.

    A trainer that fell back to the CPU may say nothing of it, and its steps look like any others.
    """
    differences = (
        other_device(devices, arm_devices, arm=arm) for arm, arm_devices in ran_on.items()
    )
    why = next(filter(None, differences), None)
    if why is None:
        return None
    return Finding(cls=FailureClass.OTHER_DEVICE, action=Action.RETRY, why=why)


def with_log(assessment: Assessment, log: Path) -> Assessment:
    """Name the log where it is to be looked at: nothing in it is known, or the sweep stops.

    Of a flag that XLA does not know, name the flag that was probably meant.
    """
    decision = assessment.decision
    if decision.cls == FailureClass.UNKNOWN_FLAG:
        names = (flag.removeprefix("--").partition("=")[0] for flag in decision.detail.split())
        meant = [f"--{near}" for name in names if (near := nearest(name, history().flags))]
        if meant:
            decision = replace(
                decision,
                found=say("{flags}; did you mean {meant}?", flags=decision.detail, meant=meant),
            )
            assessment = dataclasses.replace(assessment, decision=decision)
    if decision.cls == FailureClass.EXIT_CODE:
        lines = [line.strip() for line in decision.evidence.splitlines() if line.strip()]
        is_silent = not lines or lines == [FailureClass.EXIT_CODE.meaning]
        why: Message | None = verbatim(decision.detail)
        if not is_silent:
            why = say("{said}: {line}", said=decision.detail, line=lines[-1])
    elif decision.cls == FailureClass.NO_STEPS or decision.cannot is not None:
        if decision.cls == FailureClass.NOT_STARTED:  # it has none
            return assessment
        why = decision.found or (verbatim(decision.detail) if decision.detail else decision.proof)
    else:
        return assessment
    return dataclasses.replace(
        assessment,
        decision=replace(decision, found=say("{why}; its log: {log}", why=why, log=str(log))),
    )


def steps_of(report: LogReport, metrics: Sequence[StepRecord]) -> Sequence[StepRecord]:
    """Return the steps of the metrics file, unless its writer died before the log's."""
    # a metrics file cut short was taken for the whole run
    return metrics if metrics and len(metrics) >= len(report.steps) else report.steps


def _same_line(fatal: Finding | None, findings: Sequence[Finding]) -> Finding | None:
    """Return the finding of the line that an attempt was ended for, if it still asks for something.

    It asks for nothing where the last step was logged all the same.
    """
    if fatal is None:
        return None
    # the ledger keeps the fatal line as it may be shown
    secrets = known_secrets()
    seen = (fatal.cls, hide_quoted(fatal.detail, secrets))
    matches = (
        finding
        for finding in findings
        if (finding.cls, hide_quoted(finding.detail, secrets)) == seen
    )
    return next((finding for finding in matches if finding.action is not Action.NONE), None)


_OF_NCCL = ("NCCL_", "RCCL_")  # names of variables; what else a library says it read is a flag


def _settings(
    trial: Trial,
    cell: Cell,
    report: LogReport,
    options: Options | None,
    *,
    is_asked: bool,
    exempt: Sequence[str],
) -> tuple[TrialSetting, ...]:
    """Say of each setting whether log and dump show that it was in effect."""
    ran = report.phase is Phase.TRAINING
    flags = report.xla_flags or ""
    # where a user dumps, XLA tells it in another place
    is_told = is_asked and ("xla_dump_to" not in flags or OPTIONS_FOLDER in flags)
    keys = {**cell.overrides, **trial.profile.overrides}
    return judged(
        trial.profile,
        Shown(
            flags=report.xla_flags,
            env=report.env,
            options=options,
            config=report.config,
            nccl={name: value for name, value in report.nccl.items() if name[:5] in _OF_NCCL},
            read={name: value for name, value in report.nccl.items() if name[:5] not in _OF_NCCL},
            # a wrapper started a trainer again without the flags that its first start wrote down
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
        exempt=exempt,
        defaults=history().defaults,
    )


def _without_value(setting: TrialSetting) -> TrialSetting:
    """Return a setting without its value where its name speaks of a secret."""
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
_LOST_PROFILES = 2  # whose settings did not reach the program, while those of no other one did
# what to look at where nothing shows a setting, by its kind
_LOOK_AT = {
    SettingKind.FLAG: (
        "nothing shows that {settings} of {arm} was in effect ({effect}): such a profile cannot "
        "win. Does the trainer, or a wrapper around it, set XLA_FLAGS anew? XLA was asked to "
        "write its options down. Flags of libtpu show in its own log, on a TPU alone. If "
        'nothing can show it, the sweep may declare it: SiteSettings(unseen=("{name}",))'
    ),
    SettingKind.VARIABLE: (
        "nothing shows that {settings} of {arm} was in effect ({effect}): such a profile cannot "
        "win. Of variables only those of NCCL and RCCL are shown, by their own lines, where the "
        "trainer loads it. If nothing can show it, the sweep may declare it: "
        'SiteSettings(unseen=("{name}",))'
    ),
    SettingKind.OVERRIDE: (
        "nothing shows that {settings} of {arm} was in effect ({effect}): such a profile cannot "
        "win. The trainer prints no configuration line about it. If nothing can show it, the "
        'sweep may declare it: SiteSettings(unseen=("{name}",))'
    ),
}


def said_of_settings(state: LedgerState, result: TrialResult) -> tuple[Event, ...]:
    """Return what the settings of a trial that is over say of the whole sweep.

    A stop where those of the first two profiles did not reach the program: something between us and
    it drops or replaces them, and all further trials would measure the cell as it is. The same
    where XLA was asked to write its options down and wrote none in either. A note on the first
    trial with a setting of some kind that nothing shows, before the night is spent.
    """
    others = (progress.ended for progress in state.trials.values())
    ran = [ended for ended in others if ended is not None and ended.own_settings]
    # a program that refused a flag, or ran out of memory, tells by itself why it wins nothing
    silent = _silent(ran, result) if result.score is not None else ()
    if unread := _unread(ran, result):
        return (*silent, unread)
    lost_here = contradictions(result.own_settings)
    if not lost_here:
        return silent
    ran.append(result)
    lost = {ended.trial.arm for ended in ran if contradictions(ended.own_settings)}
    works = any(
        setting.effect is Effect.IN_EFFECT and not contradictions(ended.own_settings)
        for ended in ran
        for setting in ended.own_settings
    )
    if works or len(lost) < _LOST_PROFILES:
        return silent
    decided = Decided(
        trial_id=result.trial.id,
        attempt=0,
        next=Next.STOP,
        cls=FailureClass.FLAGS_NOT_EFFECTIVE,
        found=say("of {profiles}, and no other profile's were", profiles=sorted(lost)),
        shown=lost_here[0],
    )
    _LOG.warning("%s", sentence(decided.why))
    return (*silent, decided)


def _unread(ran: Sequence[TrialResult], result: TrialResult) -> Decided | None:
    """Return the stop where no flag of two profiles is seen, and XLA told none of any; else None.

    What the sweep declares unseen, and a profile of variables and keys alone, stops nothing.
    """
    if not _is_unread(result):
        return None
    ran = [*ran, result]
    lost = sorted({ended.trial.arm for ended in ran if _is_unread(ended)})
    flags = [
        setting
        for ended in ran
        for setting in ended.settings or ()
        if setting.kind is SettingKind.FLAG
    ]
    is_read = any(setting.effect in (Effect.IN_EFFECT, Effect.CONTRADICTED) for setting in flags)
    if is_read or len(lost) < _LOST_PROFILES:
        return None
    decided = Decided(
        trial_id=result.trial.id,
        attempt=0,
        next=Next.STOP,
        cls=FailureClass.FLAGS_UNVERIFIED,
        found=say(
            "no flag of {profiles} was seen in effect: XLA was asked to write its options down, "
            "and wrote none. Does the trainer, or a wrapper around it, set XLA_FLAGS anew? "
            "Flags of libtpu show in its own log, on a TPU alone. Such profiles win nothing. If "
            "nothing here can show a flag, the sweep says so, and goes on: "
            'SiteSettings(unseen=("xla_*",))',
            profiles=lost,
        ),
        shown=unproved(result.own_settings)[0],
    )
    _LOG.warning("%s", sentence(decided.why))
    return decided


def _is_unread(result: TrialResult) -> bool:
    """Whether a scored trial has flags of its own, and a witness that should show them is silent.

    A program that ended early tells by itself why it wins nothing.
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
    by_kind: dict[SettingKind, list[TrialSetting]] = {}
    for setting in result.own_settings:
        if _is_silent(setting) and setting.kind not in known:
            by_kind.setdefault(setting.kind, []).append(setting)
    return tuple(
        Noted(
            why=say(
                _LOOK_AT[kind],
                settings=[setting.label for setting in settings],
                arm=result.trial.arm,
                effect=settings[0].effect,
                name=settings[0].name,
            )
        )
        for kind, settings in by_kind.items()
    )


def _is_silent(setting: TrialSetting) -> bool:
    return setting.effect is not Effect.CONTRADICTED and not setting.is_proved
