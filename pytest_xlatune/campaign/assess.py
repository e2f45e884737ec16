"""What an ended attempt is worth: its findings, what follows, and its score.

The one place where the log, the metrics file, the outcome, the playbook and the score meet. It
reads no file and no clock: texts and values in, one `Assessment` out, so a recorded attempt is
assessed again to the same result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_xlatune.campaign.playbook import Decision, decide
from pytest_xlatune.catalog.entries import history
from pytest_xlatune.ledger import Cannot
from pytest_xlatune.logs import LogReport
from pytest_xlatune.logs.triage import diagnose, primary
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.metric import Logged
from pytest_xlatune.model.redact import hide
from pytest_xlatune.model.resources import Next, RetryPolicy
from pytest_xlatune.model.result import (
    Action,
    Finding,
    Outcome,
    Score,
    StepRecord,
    TrialStatus,
)
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.score import score
from pytest_xlatune.stats.validity import effective

_UNSCORED = (FailureClass.NO_SCORE, FailureClass.TOO_FEW_STEPS)  # it ran to its end, well

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
    """

    findings: tuple[Finding, ...]
    decision: Decision
    score: Score | None = None


def without_secrets(found: Assessment, secrets: frozenset[str]) -> Assessment:
    """Return what may be written down: a log quotes whatever it likes."""
    said, findings = found.decision, found.findings
    return replace(
        found,
        findings=tuple(
            replace(each, text=hide(each.text, secrets), detail=hide(each.detail, secrets))
            for each in findings
        ),
        decision=replace(
            said, detail=hide(said.detail, secrets), evidence=hide(said.evidence, secrets)
        ),
    )


def assess(
    trial: Trial,
    cell: Cell,
    outcome: Outcome,
    report: LogReport,
    *,
    metrics: Sequence[StepRecord] = (),
    logged: Logged | None = None,
    stalled_s: float | None = None,
    fatal: Finding | None = None,
    options: Mapping[str, str] | None = None,
    earlier: Sequence[str] = (),
    policy: RetryPolicy | None = None,
    reference: str = "",
) -> Assessment:
    """Assess one ended attempt.

    `metrics` are the unrounded steps of MaxText's metrics file, preferred to those of the log;
    `logged` the figures of the protocol's metric that stand beside the steps.
    Where we ended the attempt ourselves, it was after `stalled_s` seconds without a step or for the
    line `fatal`. `options` are those that XLA dumped, None where it did not; `earlier` the failure
    classes of its earlier attempts. An attempt of the arm `reference` that can never be measured
    stops the sweep; "" where the study compares its arms with none.
    """
    findings = diagnose(report, outcome, trial.protocol, stalled_s=stalled_s)
    findings = (*findings, *_flag_findings(trial, cell, report, options))
    cause = _same_line(fatal, findings) or primary(findings)
    decision = decide(outcome, cause, earlier=earlier, policy=policy)
    scored = None
    # profiler and dump change the time of a step: an evidence run is never scored
    if decision.next is Next.ACCEPT and trial.protocol.is_scored:
        found = score(
            steps_of(report, metrics),
            protocol=trial.protocol,
            tokens_per_device_step=cell.tokens_per_device_step,
            logged=logged,
        )
        if isinstance(found, Score):
            scored = found
        else:
            cls, why = FailureClass.NO_SCORE, found.reason
            cause = Finding(cls=cls, action=Action.RETRY, text=why, detail=why)
            findings = (*findings, cause)
            decision = decide(outcome, cause, earlier=earlier, policy=policy)
    is_reference = bool(reference) and trial.arm == reference
    if is_reference and trial.protocol.is_scored and _is_of_all(decision):
        cannot = Cannot.BE_SCORED if decision.cls in _UNSCORED else Cannot.RUN
        other = "" if trial.is_baseline else trial.arm
        decision = replace(decision, next=Next.STOP, cannot=cannot, arm=other)
    ordered = sorted(findings, key=lambda each: each != cause)
    return Assessment(findings=tuple(ordered), decision=decision, score=scored)


def _is_of_all(decision: Decision) -> bool:
    """Whether what the reference ended in leaves nothing to compare with."""
    was_tried = decision.cls in (*_UNSCORED, FailureClass.NOT_STARTED)
    return decision.next is Next.DROP or (decision.next is Next.GIVE_UP and was_tried)


def steps_of(report: LogReport, metrics: Sequence[StepRecord]) -> Sequence[StepRecord]:
    """Return the steps of the metrics file, unless its writer died before the log's."""
    return metrics if metrics and len(metrics) >= len(report.steps) else report.steps


def _same_line(fatal: Finding | None, findings: Sequence[Finding]) -> Finding | None:
    """Return the finding of the line that an attempt was ended for, if it still asks for something.

    It asks for nothing where the last step was logged all the same.
    """
    if fatal is None:
        return None
    found = (each for each in findings if (each.cls, each.detail) == (fatal.cls, fatal.detail))
    return next((each for each in found if each.action is not Action.NONE), None)


def _flag_findings(
    trial: Trial, cell: Cell, report: LogReport, options: Mapping[str, str] | None
) -> tuple[Finding, ...]:
    """Hold the settings that log and dump show against those that were asked for."""
    effect = effective(
        trial.profile,
        deployed=cell.deployed.get("XLA_FLAGS", ""),
        shown=report.xla_flags,
        shown_env=report.env or None,
        options=options,
        defaults=history().defaults,
    )
    drops = (FailureClass.FLAGS_NOT_EFFECTIVE, Action.DROP, effect.reasons)
    notes = (FailureClass.FLAGS_UNVERIFIED, Action.NONE, effect.notes)
    return tuple(
        Finding(cls=cls, action=action, text=text)
        for cls, action, texts in (drops, notes)
        for text in texts
    )
