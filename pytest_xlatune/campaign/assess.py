"""What an ended attempt is worth: its findings, what follows, and its score.

The one place where the log, the metrics file, the outcome, the playbook and the score meet. It
reads no file and no clock: texts and values in, one `Assessment` out, so a recorded attempt is
assessed again to the same result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_xlatune.catalog.history import history
from pytest_xlatune.cells import Cell, Stage, Trial
from pytest_xlatune.hidden import hide
from pytest_xlatune.logs import LogReport
from pytest_xlatune.logs.triage import diagnose, primary
from pytest_xlatune.recovery import Decision, Next, RetryPolicy, decide
from pytest_xlatune.results import (
    Action,
    Finding,
    Outcome,
    Score,
    StepRecord,
    TrialStatus,
)
from pytest_xlatune.stats.score import score
from pytest_xlatune.stats.validity import effective

FLAGS_NOT_EFFECTIVE = "flags-not-effective"
FLAGS_UNVERIFIED = "flags-unverified"
NO_SCORE = "no-score"
_UNSCORED = (NO_SCORE, "too-few-steps")  # it ran to its end, well

STATUS = {
    Next.ACCEPT: TrialStatus.MEASURED,
    Next.DROP: TrialStatus.DROPPED,
    Next.GIVE_UP: TrialStatus.UNMEASURED,
    Next.STOP: TrialStatus.UNMEASURED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """What is known after an attempt.

    Attributes:
        findings: everything diagnosed, the root cause first.
        decision: what follows.
        score: where the attempt is accepted.
    """

    findings: tuple[Finding, ...]
    decision: Decision
    score: Score | None = None

    @property
    def status(self) -> TrialStatus | None:
        """The trial's final status; None where another attempt follows."""
        return STATUS.get(self.decision.next)


def without_secrets(found: Assessment, secrets: frozenset[str]) -> Assessment:
    """Return what may be written down: a log quotes whatever it likes."""
    decision = found.decision
    return dataclasses.replace(
        found,
        findings=tuple(
            dataclasses.replace(
                each, text=hide(each.text, secrets), detail=hide(each.detail, secrets)
            )
            for each in found.findings
        ),
        decision=dataclasses.replace(
            decision,
            reason=hide(decision.reason, secrets),
            evidence=hide(decision.evidence, secrets),
        ),
    )


def assess(
    trial: Trial,
    cell: Cell,
    outcome: Outcome,
    report: LogReport,
    *,
    metrics: Sequence[StepRecord] = (),
    stalled_s: float | None = None,
    fatal: Finding | None = None,
    options: Mapping[str, str] | None = None,
    earlier: Sequence[str] = (),
    policy: RetryPolicy | None = None,
) -> Assessment:
    """Assess one ended attempt.

    Args:
        trial: what was run.
        cell: in which cell.
        outcome: how it ended.
        report: its log.
        metrics: unrounded steps of MaxText's metrics file, preferred to those of the log.
        stalled_s: seconds without a step after which we ended it ourselves; None if we did not.
        fatal: the line for which we ended it ourselves; None if we did not.
        options: what XLA dumped of its options, where it dumped; None where it did not.
        earlier: failure classes of its earlier attempts.
        policy: the site's rules.
    """
    findings = diagnose(report, outcome, trial.protocol, stalled_s=stalled_s)
    findings = (*findings, *_flag_findings(trial, cell, report, options))
    cause = _same_line(fatal, findings) or primary(findings)
    decision = decide(outcome, cause, earlier=earlier, policy=policy)
    scored = None
    is_evidence = trial.stage is Stage.EVIDENCE
    # profiler and dump change the time of a step: an evidence run is never scored
    if decision.next is Next.ACCEPT and not is_evidence:
        found = score(
            steps_of(report, metrics),
            protocol=trial.protocol,
            tokens_per_device_step=cell.tokens_per_device_step,
        )
        if isinstance(found, Score):
            scored = found
        else:
            cause = Finding(
                cls=NO_SCORE, action=Action.RETRY, text=found.reason, detail=found.reason
            )
            findings = (*findings, cause)
            decision = decide(outcome, cause, earlier=earlier, policy=policy)
    if trial.is_baseline and not is_evidence and _is_of_all(decision):
        what = "be scored" if decision.cls in _UNSCORED else "run"
        reason = f"the cell as deployed cannot {what}: {decision.reason}"
        decision = dataclasses.replace(decision, next=Next.STOP, reason=reason)
    ordered = sorted(findings, key=lambda each: each != cause)
    return Assessment(findings=tuple(ordered), decision=decision, score=scored)


def _is_of_all(decision: Decision) -> bool:
    """Whether what a baseline ended in, no trial of the cell would escape."""
    is_tried = decision.next is Next.GIVE_UP and decision.cls in (*_UNSCORED, "not-started")
    return decision.next is Next.DROP or is_tried


def steps_of(report: LogReport, metrics: Sequence[StepRecord]) -> Sequence[StepRecord]:
    """Return the steps to go by: of the metrics file where it tells as much as the log.

    Its writer may have died before the log's.
    """
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
    return (
        *(
            Finding(cls=FLAGS_NOT_EFFECTIVE, action=Action.DROP, text=reason)
            for reason in effect.reasons
        ),
        *(Finding(cls=FLAGS_UNVERIFIED, action=Action.NONE, text=note) for note in effect.notes),
    )
