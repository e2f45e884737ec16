"""Diagnose an attempt: report and outcome -> all findings, and their root cause.

Pure. It decides classes and their actions; the playbook decides what happens next.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Iterator

from msgspec.structs import replace

from pytest_xlatune.logs import STEPS_THAT_REFUTE, LogReport, Phase
from pytest_xlatune.logs._signatures import EVIDENCE_CHARS, Tier, table
from pytest_xlatune.model.cell import Protocol
from pytest_xlatune.model.failure import (
    CLASS_OF_STATE,
    Action,
    Blame,
    FailureClass,
    Finding,
    Outcome,
    State,
    blamed_on,
)

# a log of this size before step 0 is out of control, by the triage table of maxtext-slurm
_RUNAWAY_BYTES = 500_000_000
_SIGKILL, _SIGTERM, _SIGINT = 9, 15, 2
_SHELL_BASE = 128  # a shell's exit code for a signal is this plus the number
_HANG = {
    Phase.BEFORE_MEMSTATS: FailureClass.HANG_INIT,
    Phase.COMPILING: FailureClass.HANG_SILENT_OOM,
    Phase.TRAINING: FailureClass.HANG_MID_TRAINING,
}
_OF_SIGNAL = {
    _SIGKILL: FailureClass.KILLED,
    _SIGTERM: FailureClass.CANCELLED,
    _SIGINT: FailureClass.CANCELLED,
}
_ENDED_BY_OTHERS = (State.TIMEOUT, State.CANCELLED, State.REQUEUED, State.NODE_FAIL)
_ENDS = frozenset({FailureClass.CANCELLED, FailureClass.TIME_LIMIT})
_NO_STEP = (
    "it ran but printed no step line that can be read; expected e.g. `completed step: 7, seconds: "
    "0.510, Tokens/s/device: 990.5, loss: 7.125`, or step_pattern= in CellSettings or xlatune.toml "
    "for another form{}, see docs/how-to/trainer.md"
)
# classes that later steps do not refute: training went wrong, or ran on another device
_LASTING = (FailureClass.NUMERICAL_FAILURE, FailureClass.NO_GPU)
_WITHOUT_REASON = (FailureClass.EXIT_CODE, FailureClass.UNKNOWN_DEATH)
# what other ranks raise when one was killed: ConnectionResetError: [Errno 104] Connection reset by
# peer      RuntimeError: collective failed
_OF_OTHERS = re.compile(
    r"[\w.]*\b(?:\w*RuntimeError|Connection\w*|BrokenPipeError|TimeoutError|OSError|\w*Interrupt)\b"
)


def diagnose(
    report: LogReport,
    outcome: Outcome,
    protocol: Protocol,
    *,
    stalled_s: float | None = None,
    is_ended_by_us: bool = False,
) -> tuple[Finding, ...]:
    """Return the findings of the log, and those that follow from log and outcome together.

    Args:
        report: the report on the attempt's log.
        outcome: how the attempt ended, or that it is running.
        protocol: the trial's protocol.
        stalled_s: seconds without progress if the campaign calls that a hang; else None.
        is_ended_by_us: whether the campaign ended it, for whatever reason.
    """
    complete = report.last_step is not None and report.last_step >= protocol.last_step
    measured = complete and report.steps_after_cancel == 0 and not outcome.is_unreadable
    findings = _relevant_findings(report)
    # JAX's preemption notifier ignores SIGTERM: 161 more steps were printed after a scancel. Slurm
    # also calls a preempted job cancelled.
    is_preempted = any(finding.cls == FailureClass.PREEMPTED for finding in findings)
    is_ours = is_ended_by_us or stalled_s is not None or is_preempted
    if outcome.state in _ENDED_BY_OTHERS and not measured and not is_ours:
        findings = _still_asking(findings, outcome.state)
    if measured:
        # Trouble in the log did not prevent the steps, and the teardown of a complete run often
        # ends with exit 143.
        findings = _quiet(findings, [finding for finding in findings if finding.cls in _LASTING])
        if outcome.state.is_final and outcome.state is not State.COMPLETED:
            is_bad = any(finding.action is not Action.NONE for finding in findings)
            soft = () if is_bad else (_diagnosed(FailureClass.SOFT_SUCCESS, _how(outcome)),)
            return (*findings, *soft)
    stalled = None if complete else stalled_s
    return (*findings, *_combined(report, outcome, protocol, findings=findings, stalled_s=stalled))


def _quiet(findings: Iterable[Finding], but: Container[Finding]) -> tuple[Finding, ...]:
    """Return the findings; those that are not in `but` call for no action."""
    return tuple(
        finding if finding in but else replace(finding, action=Action.NONE) for finding in findings
    )


def _relevant_findings(report: LogReport) -> tuple[Finding, ...]:
    """Return the findings; a missing GPU calls for no action if a CPU was asked for."""
    asked = (report.config.get("hardware"), report.asked.get("hardware"))
    named = (report.env.get(key, "") for key in ("JAX_PLATFORMS", "JAX_PLATFORM_NAME"))
    if "cpu" not in (*asked, *named):
        return report.findings
    others = [finding for finding in report.findings if finding.cls != FailureClass.NO_GPU]
    return _quiet(report.findings, others)


def _still_asking(findings: tuple[Finding, ...], state: State) -> tuple[Finding, ...]:
    """Return the findings of a job that was ended from outside: a limit, a person, a dead node.

    What it printed after that belongs to the end, and consequences of other trouble explain
    nothing. Only an earlier cause still calls for an action; for a cancelled job, only one that
    excludes the profile or stops the sweep.
    """
    ends = (finding.line for finding in findings if finding.cls in _ENDS and not finding.source)
    end = min(filter(None, ends), default=math.inf)

    def stands(finding: Finding) -> bool:
        if state is State.NODE_FAIL:
            return finding.cls in blamed_on(Blame.NODE)
        if _tier(finding) is not Tier.CAUSE or (finding.line > end and not finding.source):
            return False
        return state is State.TIMEOUT or finding.action in (Action.DROP, Action.STOP)

    return _quiet(findings, [*filter(stands, findings)])


def as_told(outcome: Outcome, report: LogReport, *, is_ours: bool) -> Outcome:
    """Return the outcome; it is `cancelled` if a format's block says that a person ended the job.

    That only holds if we did not end it and no finding calls for an action, because a failing
    program also ends its other processes on purpose.
    """
    is_quiet = all(finding.action is Action.NONE for finding in report.findings)
    is_term = outcome.signal in (None, _SIGTERM, _SIGINT)
    if outcome.state is not State.FAILED or is_ours or not (is_quiet and is_term):
        return outcome
    return replace(outcome, state=State.CANCELLED) if report.is_cancelled else outcome


def end_of(report: LogReport) -> Outcome:
    """Return the outcome of a job from its log alone; still running if the log lacks an end."""
    asking = [finding for finding in report.findings if finding.action is not Action.NONE]
    # a finding about an end calls for no action, but says how the job ended
    ends = (finding for finding in report.findings if finding.cls in _ENDS)
    classes = {finding.cls for finding in (*asking, *ends)}
    for state, cls in CLASS_OF_STATE.items():
        if cls in classes:
            return Outcome(state=state, exit_code=report.exit_code)
    if report.exit_code is not None:
        state = State.FAILED if report.exit_code else State.COMPLETED
        return Outcome(state=state, exit_code=report.exit_code)
    if asking and report.steps_after_trouble < STEPS_THAT_REFUTE:
        return Outcome(state=State.FAILED)
    # the job may still run: a log that ended at step 7 of 15 was once called healthy
    return Outcome(state=State.RUNNING)


def ended_by(outcome: Outcome) -> str:
    """Return how a job ended, e.g. `failed (exit 1)`; "" if nothing shows an end."""
    if not outcome.state.is_final:
        return ""
    how = _how(outcome)
    if how != outcome.state:
        return f"{outcome.state} ({how})"
    # a failure without exit code or signal was concluded from a finding, and the job may still run
    return "" if outcome.state is State.FAILED else how


def primary(findings: Iterable[Finding]) -> Finding | None:
    """Return the root cause.

    Findings with an action come before those without, among which a time limit or a cancel comes
    first. A cause comes before its consequences and before generic messages; then the earliest line
    counts. Of several logs, one whose program raised an exception of its own comes before those
    whose programs only lost another.
    """
    candidates = tuple(findings)
    victims = {finding.source for finding in candidates if _tier(finding) is Tier.CONSEQUENCE}

    def rank(finding: Finding) -> tuple[bool, bool, Tier, bool, float]:
        is_quiet = finding.action is Action.NONE
        is_own = _is_own(finding) and finding.source not in victims
        tier = Tier.CONSEQUENCE if is_own else _tier(finding)
        is_no_end = is_quiet and finding.cls not in _ENDS
        return is_quiet, is_no_end, tier, not is_own, finding.line or math.inf

    return min(candidates, key=rank, default=None)


def _tier(finding: Finding) -> Tier:
    return table().tiers.get(finding.cls, Tier.CAUSE)


def _is_own(finding: Finding) -> bool:
    """Return whether an exception is not just the loss of another program."""
    return finding.cls == FailureClass.PYTHON_EXCEPTION and not _OF_OTHERS.match(finding.detail)


def _combined(
    report: LogReport,
    outcome: Outcome,
    protocol: Protocol,
    *,
    findings: tuple[Finding, ...],
    stalled_s: float | None,
) -> Iterator[Finding]:
    """Yield the findings that follow from log and outcome together, each class once."""
    known = {finding.cls for finding in findings}
    state = outcome.state
    # only after a good end, because srun cancels the other ranks when one is killed
    if report.steps_after_cancel and state is State.COMPLETED and not known & _ENDS:
        yield _diagnosed(FailureClass.STEPS_AFTER_CANCEL, f"{report.steps_after_cancel} steps")
    if not report.steps and report.size_bytes > _RUNAWAY_BYTES:
        yield _diagnosed(FailureClass.RUNAWAY_LOG, f"{report.size_bytes / 1e6:.0f} MB")
    if stalled_s is not None:
        yield _diagnosed(_HANG[report.phase], f"{stalled_s:.0f} s without a step", report)
    elif state is State.COMPLETED:
        usable = sum(
            step.step >= protocol.first_step and step.kind == "step" for step in report.steps
        )
        if not report.steps and protocol.needs_window:
            last = " | ".join(report.tail[-2:])
            expected = _NO_STEP.format(f" ({report.fits!r} fits)" if report.fits else "")
            detail = f"{expected}; its last lines: {last}" if last else expected
            yield _diagnosed(FailureClass.NO_STEPS, detail, report)
        elif usable < protocol.min_steps and protocol.needs_window:
            detail = (
                f"{usable} of the {protocol.min_steps} steps that a score needs from step "
                f"{protocol.first_step} on: the last step line is of step {report.last_step}, and "
                f"{protocol.steps} steps were asked for"
            )
            yield _diagnosed(FailureClass.TOO_FEW_STEPS, detail)
    elif state.is_final:
        cls = _class_of_end(outcome)
        explained = any(finding.action is not Action.NONE for finding in findings)
        if cls not in known and not (explained and cls in _WITHOUT_REASON):
            yield _diagnosed(cls, _how(outcome), report)


def _class_of_end(outcome: Outcome) -> FailureClass:
    """Return the class of an attempt's end if its log explains nothing."""
    if outcome.state in CLASS_OF_STATE:
        return CLASS_OF_STATE[outcome.state]
    if signal := outcome.signal or max((outcome.exit_code or 0) - _SHELL_BASE, 0):
        return _OF_SIGNAL.get(signal, FailureClass.SIGNAL_KILL)
    if outcome.is_unreadable:
        return FailureClass.OUTCOME_UNREADABLE
    if not outcome.is_started:
        return FailureClass.NOT_STARTED
    return FailureClass.EXIT_CODE if outcome.exit_code else FailureClass.UNKNOWN_DEATH


def _how(outcome: Outcome) -> str:
    if outcome.signal:
        return f"signal {outcome.signal}"
    if not outcome.is_started or outcome.is_unreadable or outcome.state is State.LOST:
        return outcome.reason
    return f"exit {outcome.exit_code}" if outcome.exit_code is not None else outcome.state.value


def _diagnosed(cls: FailureClass, detail: str, report: LogReport | None = None) -> Finding:
    evidence = "\n".join(report.tail) if report else ""
    # complete lines, because part of a secret would not be recognised
    if len(evidence) > EVIDENCE_CHARS:
        evidence = evidence[-EVIDENCE_CHARS - 1 :].partition("\n")[2]
    return Finding(
        cls=cls,
        action=cls.action or Action.RETRY,
        text=evidence or cls.meaning,
        detail=detail,
    )
