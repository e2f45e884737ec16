"""What went wrong with an attempt: report and outcome -> all findings, and the root cause of them.

Pure. It decides classes and what they ask for, never what happens next: that is the playbook's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from pytest_xlatune.logs import LogReport, Phase
from pytest_xlatune.logs._signatures import EVIDENCE_CHARS, Tier, table
from pytest_xlatune.model.cell import Protocol
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.result import Action, Finding, Outcome, State

_RUNAWAY_BYTES = 500_000_000
_SIGKILL, _SIGTERM, _SIGINT = 9, 15, 2
_HANG = {
    Phase.BEFORE_MEMSTATS: FailureClass.HANG_INIT,
    Phase.COMPILING: FailureClass.HANG_SILENT_OOM,
    Phase.TRAINING: FailureClass.HANG_MID_TRAINING,
}
_OF_STATE = {
    State.TIMEOUT: FailureClass.TIME_LIMIT,
    State.CANCELLED: FailureClass.CANCELLED,
    State.NODE_FAIL: FailureClass.NODE_FAIL,
    State.LOST: FailureClass.LOST,
}
_OF_SIGNAL = {
    _SIGKILL: FailureClass.KILLED,
    _SIGTERM: FailureClass.CANCELLED,
    _SIGINT: FailureClass.CANCELLED,
}
_WITHOUT_REASON = (FailureClass.EXIT_CODE, FailureClass.UNKNOWN_DEATH)
# ConnectionResetError: [Errno 104] Connection reset by peer      RuntimeError: collective failed
_OF_OTHERS = re.compile(
    r"[\w.]*\b(?:\w*RuntimeError|Connection\w*|BrokenPipeError|TimeoutError|OSError|\w*Interrupt)\b"
)


def diagnose(
    report: LogReport, outcome: Outcome, protocol: Protocol, *, stalled_s: float | None = None
) -> tuple[Finding, ...]:
    """Return what the log says and what only its combination with the outcome tells.

    Args:
        report: of the attempt's log.
        outcome: how the attempt ended, or that it runs.
        protocol: the trial's.
        stalled_s: seconds without progress, where the campaign calls that a hang; else None.
    """
    complete = report.last_step is not None and report.last_step >= protocol.last_step
    measured = complete and report.steps_after_cancel == 0
    told = report.findings
    if measured:
        # what the log complains of did not keep the job from its steps
        told = tuple(
            each if _is_numerical(each) else replace(each, action=Action.NONE) for each in told
        )
        if outcome.state.is_final and outcome.state is not State.COMPLETED:
            is_bad = any(map(_is_numerical, told))
            soft = () if is_bad else (_diagnosed(FailureClass.SOFT_SUCCESS, _how(outcome)),)
            return (*told, *soft)
    stalled = None if complete else stalled_s
    return (*told, *_combined(report, outcome, protocol, told=told, stalled_s=stalled))


def primary(findings: Iterable[Finding]) -> Finding | None:
    """Choose the root cause.

    Findings that ask for something come before those that ask for nothing; a cause comes before
    what follows from it, before generic words; then the earliest line counts. Of several logs, one
    with an exception of its own comes before those whose programs only lost it.
    """
    found = tuple(findings)
    bereft = {each.source for each in found if _tier(each) is Tier.CONSEQUENCE}

    def rank(each: Finding) -> tuple[bool, Tier, bool, float]:
        is_own = _is_own(each) and each.source not in bereft
        tier = Tier.CONSEQUENCE if is_own else _tier(each)
        return each.action is Action.NONE, tier, not is_own, each.line or math.inf

    return min(found, key=rank, default=None)


def _tier(finding: Finding) -> Tier:
    return table().tiers.get(finding.cls, Tier.CAUSE)


def _is_own(finding: Finding) -> bool:
    """Whether an exception is none that the loss of another program raises."""
    return finding.cls == FailureClass.PYTHON_EXCEPTION and not _OF_OTHERS.match(finding.detail)


def _combined(
    report: LogReport,
    outcome: Outcome,
    protocol: Protocol,
    *,
    told: tuple[Finding, ...],
    stalled_s: float | None,
) -> Iterator[Finding]:
    """Yield what follows from log and outcome together; each class once."""
    known = {each.cls for each in told}
    state = outcome.state
    if report.steps_after_cancel:
        yield _diagnosed(FailureClass.STEPS_AFTER_CANCEL, f"{report.steps_after_cancel} steps")
    if not report.steps and report.size_bytes > _RUNAWAY_BYTES:
        yield _diagnosed(FailureClass.RUNAWAY_LOG, f"{report.size_bytes / 1e6:.0f} MB")
    if stalled_s is not None:
        yield _diagnosed(_HANG[report.phase], f"{stalled_s:.0f} s without a step", report)
    elif state is State.COMPLETED:
        usable = sum(
            each.step >= protocol.first_step and each.kind == "step" for each in report.steps
        )
        if not report.steps and protocol.needs_steps:
            yield _diagnosed(FailureClass.NO_STEPS, "", report)
        elif usable < protocol.min_steps and protocol.needs_window:
            yield _diagnosed(FailureClass.TOO_FEW_STEPS, f"{usable} of {protocol.min_steps}")
    elif state.is_final:
        cls = _class_of_end(outcome)
        explained = any(each.action is not Action.NONE for each in told)
        if cls not in known and not (explained and cls in _WITHOUT_REASON):
            yield _diagnosed(cls, _how(outcome), report)


def _class_of_end(outcome: Outcome) -> FailureClass:
    """Name how an attempt ended when its log explains nothing."""
    if outcome.state in _OF_STATE:
        return _OF_STATE[outcome.state]
    if signal := outcome.signal or max((outcome.exit_code or 0) - 128, 0):
        return _OF_SIGNAL.get(signal, FailureClass.SIGNAL_KILL)
    if not outcome.is_started:
        return FailureClass.NOT_STARTED
    return FailureClass.EXIT_CODE if outcome.exit_code else FailureClass.UNKNOWN_DEATH


def _how(outcome: Outcome) -> str:
    if outcome.signal:
        return f"signal {outcome.signal}"
    if not outcome.is_started:
        return outcome.reason
    return f"exit {outcome.exit_code}" if outcome.exit_code is not None else outcome.state.value


def _is_numerical(finding: Finding) -> bool:
    return finding.cls == FailureClass.NUMERICAL_FAILURE


def _diagnosed(cls: FailureClass, detail: str, report: LogReport | None = None) -> Finding:
    evidence = "\n".join(report.tail) if report else ""
    return Finding(
        cls=cls,
        action=table().diagnosed[cls].action,
        text=(evidence or cls.meaning)[-EVIDENCE_CHARS:],
        detail=detail,
    )
