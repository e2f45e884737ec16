"""What a log says: the events of reading it, and the report at any moment.

Values only. This module knows nothing of how lines look.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from pytest_xlatune.records import Record
from pytest_xlatune.results import Finding, StepRecord


class Phase(StrEnum):
    """How far a start of the program has come; what a hang means depends on it."""

    BEFORE_MEMSTATS = "before-memstats"  # containers, collectives, parameters
    COMPILING = "compiling"  # after `Memstats: After params initialized`
    TRAINING = "training"  # after the first step line


@dataclass(frozen=True, slots=True, kw_only=True)
class NewStart:
    """The program started again in the same log: a requeued or resumed job.

    Attributes:
        start: which start begins, from 1 (the first, 0, is not announced).
        line: 1-based number of the line that shows it.
    """

    start: int
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseChange:
    """A phase begins at this 1-based line."""

    phase: Phase
    line: int


Event = StepRecord | Finding | NewStart | PhaseChange


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReport(Record):
    """What a log tells, of its last start and of one rank.

    Attributes:
        steps: steps of the last start, one rank, one record per step id, in the order printed.
        findings: in order of first appearance; those of an earlier start ask for nothing.
        xla_flags: text of XLA_FLAGS as the environment dump shows it; None where it is not shown.
        env: other variables shown (NCCL_*, RCCL_*, XLA_*, JAX_*, HSA_*, ...).
        config: MaxText's `Config param` lines, values as printed.
        phase: how far the last start came.
        lines: lines, a torn last one included.
        size_bytes: bytes.
        starts: how often the program started in this log.
        steps_after_cancel: steps printed after a notice that the job is being ended.
        tail: the last lines that are neither steps nor known to be harmless.
        notes: what a reader of the steps should know, one sentence each.
    """

    steps: tuple[StepRecord, ...] = ()
    findings: tuple[Finding, ...] = ()
    xla_flags: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
    phase: Phase = Phase.BEFORE_MEMSTATS
    lines: int = 0
    size_bytes: int = 0
    starts: int = 1
    steps_after_cancel: int = 0
    tail: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def last_step(self) -> int | None:
        """The highest step id of the last start, None before its first step."""
        return max((each.step for each in self.steps), default=None)
