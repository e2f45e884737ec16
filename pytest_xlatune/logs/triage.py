"""What went wrong: one line -> finding; a report and an outcome -> all findings; the root cause.

Pure. Decides classes and what they ask for, never what happens next: that is the playbook's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from pytest_xlatune.cells import Protocol
from pytest_xlatune.logs.events import LogReport, Phase
from pytest_xlatune.logs.row import Row, Tier
from pytest_xlatune.logs.signatures import DIAGNOSED, SIGNATURES, is_benign
from pytest_xlatune.results import Action, Finding, Outcome, State

_EVIDENCE_CHARS = 500
_RUNAWAY_BYTES = 500_000_000
_NOT_STARTED = "could not be started: "  # the payload's word
_SIGKILL, _SIGTERM, _SIGINT = 9, 15, 2
_HANG = {
    Phase.BEFORE_MEMSTATS: "hang-init",
    Phase.COMPILING: "hang-silent-oom",
    Phase.TRAINING: "hang-mid-training",
}
# W0112 07:08:09.000001 77 lhs.cc:1]      2026-01-12 07:08:09.123456: F external/xla/flags.cc:225]
_SEVERITY = re.compile(r"\b([IWEF])\d{4} \d\d:\d\d:\d\d\.\d|\d\d:\d\d:\d\d\.\d+: ([IWEF]) ")
# jax.errors.JaxRuntimeError: INTERNAL: ...      jaxlib.xla_extension.XlaRuntimeError: INTERNAL: ...
_RAISED = re.compile(r"(?:jax|jaxlib)\.[\w.]*(?:Jax|Xla)RuntimeError: ")
# ConnectionResetError: [Errno 104] Connection reset by peer      RuntimeError: collective failed
_OF_OTHERS = re.compile(
    r"[\w.]*\b(?:\w*RuntimeError|Connection\w*|BrokenPipeError|TimeoutError|OSError|\w*Interrupt)\b"
)
_PLACES = tuple((word, place) for place, row in enumerate(SIGNATURES) for word in row.words)
_TIERS = {
    **{cls: tier for cls, (_, tier, _) in DIAGNOSED.items()},
    # rows of one class may differ; the class ranks as its most telling row
    **{row.cls: row.tier for row in sorted(SIGNATURES, key=lambda row: -row.tier)},
}


class Sighting(NamedTuple):
    """What one line makes: its finding, and whether the program that printed it cannot go on."""

    finding: Finding
    is_fatal: bool


def classify(text: str, *, line: int = 0, evidence: str = "") -> Finding | None:
    """Return the finding that one line without its prefix makes, None for a harmless one."""
    seen = sight(text, line=line, evidence=evidence)
    return seen.finding if seen else None


def sight(text: str, *, line: int = 0, evidence: str = "") -> Sighting | None:
    """Return what one line makes, None for a harmless one.

    Args:
        text: the line without its prefix.
        line: its number.
        evidence: the line with its prefix, which holds the severity.
    """
    low = text.lower()
    places = {place for word, place in _PLACES if word in low}
    if not places or is_benign(text):
        return None
    for place in sorted(places):
        row = SIGNATURES[place]
        match = row.pattern.search(text)
        if match is not None:
            finding = Finding(
                cls=row.cls,
                action=row.action,
                line=line,
                text=(evidence or text).strip()[:_EVIDENCE_CHARS],
                detail=row.detail(match)[:_EVIDENCE_CHARS],
            )
            return Sighting(finding, is_fatal(text, row, evidence=evidence))
    return None


def is_fatal(text: str, row: Row, *, evidence: str = "") -> bool:
    """Whether a line of this row says that its program cannot go on.

    The logger's own severity counts before the row's: what is logged as a warning is survived, what
    is logged as fatal is not. An error that JAX raised, at the beginning of a line, is the end of a
    traceback.
    """
    if row.action is Action.NONE:
        return False
    found = _SEVERITY.search(evidence)
    severity = (found[1] or found[2]) if found else ""
    if severity in ("I", "W"):
        return False
    return severity == "F" or row.is_fatal or _RAISED.match(text) is not None


def diagnose(
    report: LogReport, outcome: Outcome, protocol: Protocol, *, stalled_s: float | None = None
) -> tuple[Finding, ...]:
    """Return what the log says and what only its combination with the outcome tells.

    Args:
        report: of the attempt's log.
        outcome: how the attempt ended, or that it runs.
        protocol: the trial's.
        stalled_s: seconds without progress when whoever watches calls it a hang; else None.
    """
    numerical = tuple(_numerical(report))
    complete = report.last_step is not None and report.last_step >= protocol.last_step
    measured = complete and report.steps_after_cancel == 0
    told = (*report.findings, *numerical)
    if measured:
        # what the log complains of did not keep the job from its steps
        told = tuple(
            each if each.cls == "numerical-failure" else replace(each, action=Action.NONE)
            for each in told
        )
        is_numerical = any(each.cls == "numerical-failure" for each in told)
        if outcome.state.is_final and outcome.state is not State.COMPLETED:
            soft = () if is_numerical else (_diagnosed("soft-success", _how(outcome)),)
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
    return _TIERS.get(finding.cls, Tier.CAUSE)


def _is_own(finding: Finding) -> bool:
    """Whether an exception is none that the loss of another program raises."""
    return finding.cls == "python-exception" and not _OF_OTHERS.match(finding.detail)


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
        yield _diagnosed("steps-after-cancel", f"{report.steps_after_cancel} steps")
    if not report.steps and report.size_bytes > _RUNAWAY_BYTES:
        yield _diagnosed("runaway-log", f"{report.size_bytes / 1e6:.0f} MB")
    if stalled_s is not None:
        yield _diagnosed(_HANG[report.phase], f"{stalled_s:.0f} s without a step", report)
    elif state is State.COMPLETED:
        usable = _usable(report, protocol)
        if not report.steps:
            yield _diagnosed("no-steps", "", report)
        elif usable < protocol.min_steps:
            yield _diagnosed("too-few-steps", f"{usable} of {protocol.min_steps}")
    elif state.is_final:
        cls = _class_of_end(outcome)
        explained = any(each.action is not Action.NONE for each in told)
        if cls not in known and not (explained and cls in ("exit-code", "unknown-death")):
            yield _diagnosed(cls, _how(outcome), report)


def _class_of_end(outcome: Outcome) -> str:
    """Name how an attempt ended when its log explains nothing."""
    by_state = {
        State.TIMEOUT: "time-limit",
        State.CANCELLED: "cancelled",
        State.NODE_FAIL: "node-fail",
        State.LOST: "lost",
    }
    signal = outcome.signal or max((outcome.exit_code or 0) - 128, 0)
    if outcome.state in by_state:
        return by_state[outcome.state]
    if signal == _SIGKILL:
        return "killed"
    if signal:
        return "cancelled" if signal in (_SIGTERM, _SIGINT) else "signal-kill"
    if _NOT_STARTED in outcome.reason:
        return "not-started"
    return "exit-code" if outcome.exit_code else "unknown-death"


def _how(outcome: Outcome) -> str:
    if outcome.signal:
        return f"signal {outcome.signal}"
    if _NOT_STARTED in outcome.reason:
        return outcome.reason
    return f"exit {outcome.exit_code}" if outcome.exit_code is not None else outcome.state.value


def _usable(report: LogReport, protocol: Protocol) -> int:
    """Count the steps of the window."""
    return sum(each.step >= protocol.first_step and each.kind == "step" for each in report.steps)


def _numerical(report: LogReport) -> Iterator[Finding]:
    """Yield a finding where a loss of the report is not finite and no line was blamed yet."""
    if any(each.cls == "numerical-failure" for each in report.findings):
        return
    for each in report.steps:
        if each.loss is not None and not math.isfinite(each.loss):
            yield _diagnosed("numerical-failure", f"loss {each.loss} at step {each.step}")
            return


def _diagnosed(cls: str, detail: str, report: LogReport | None = None) -> Finding:
    action, _, when = DIAGNOSED[cls]
    evidence = "\n".join(report.tail) if report else ""
    return Finding(
        cls=cls, action=action, text=(evidence or when)[-_EVIDENCE_CHARS:], detail=detail
    )
