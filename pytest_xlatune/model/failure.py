"""How an attempt ended, and all ways in which it can fail, or only look as if it did.

A failure class is a row of `logs/signatures.toml`: its meaning, the action that it asks for, and
whose trouble it is. The ledger keeps its id, and the playbook decides by it. `logs/triage.py`
derives classes from log and outcome together.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from enum import EnumType, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pytest_xlatune.model.message import Message, verbatim
from pytest_xlatune.model.record import Record, Time

_SIGNATURES = Path(__file__).parents[1] / "logs" / "signatures.toml"


@functools.cache
def signatures() -> Mapping[str, Any]:
    """Return the content of `signatures.toml`, which is read once."""
    return tomllib.loads(_SIGNATURES.read_text(encoding="utf-8"))


class Action(StrEnum):
    """The action for a finding. Retries depend on it, never on a measured value."""

    NONE = "none"  # worth knowing, but changes nothing
    SUCCESS = "success"  # looks like a failure but is none
    RETRY = "retry"
    RESUME_NODE = "resume-node"
    HOOK = "hook"  # needs a person's rights: the site's own command runs
    WAIT = "wait"
    DROP = "drop"  # the profile cannot run
    STOP = "stop"  # the sweep cannot go on


class Blame(StrEnum):
    """Whose trouble a failure is if it is not the program's."""

    # a passing failure is retried, a lasting one stops the cell; no profile is dropped for it
    SITE = "site"
    NODE = "node"  # it happens on one node and says nothing about the program
    UNKNOWN = "unknown"  # blamed on the profile only if it happens again while the reference runs


class FailureRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of the table of failure classes."""

    meaning: str  # without a full stop
    advice: str  # what a person can do about it, without a full stop
    action: Action | None = None  # None if the campaign decides it
    blame: tuple[Blame, ...] = ()  # () if it is the program's
    tier: str = ""  # as in a [[signature]], for a class that log and outcome together show; else ""
    digest: bool = False  # whether the lines of a hang digest of libtpu name it


FAILURES = msgspec.convert(signatures()["class"], dict[str, FailureRow])


class _Rows(EnumType):
    if TYPE_CHECKING:  # the members are rows of a file, which mypy does not read

        def __getattr__(cls, name: str) -> FailureClass: ...


class FailureClass(StrEnum, metaclass=_Rows):
    """What went wrong; `FailureClass.OOM_GPU` is the row `[class.oom-gpu]` of the table."""

    # one member for each row
    vars().update({cls.upper().replace("-", "_"): cls for cls in FAILURES})

    @property
    def meaning(self) -> str:
        """The meaning of the class, without a full stop."""
        return FAILURES[self].meaning

    @property
    def advice(self) -> str:
        """What a person can do about it, without a full stop."""
        return FAILURES[self].advice

    @property
    def action(self) -> Action | None:
        """The action of the class; None if the campaign decides it."""
        return FAILURES[self].action


@functools.cache
def blamed_on(*whose: Blame) -> frozenset[FailureClass]:
    """Return the classes that are the trouble of one of these."""
    return frozenset(cls for cls in FailureClass if {*whose} & {*FAILURES[cls].blame})


class Finding(Record, frozen=True, kw_only=True):
    """One diagnosed fact about an attempt."""

    cls: str  # the failure class
    action: Action  # the action for it
    line: int = 0  # number of the evidence line in the log, from 1; 0 if there is no line
    text: str = ""  # the evidence, at most 500 characters; "" if `why` has it
    detail: str = ""  # a figure or name in the evidence, e.g. "171.96 GiB" or the name of a flag
    source: str = ""  # the log that it is in, if an attempt has several; "" otherwise
    count: int = 1  # how often the log has it
    why: Message | None = None  # what was found, if no log line says it; else None

    @property
    def said(self) -> Message | None:
        """The evidence; None if there is none."""
        return self.why or (verbatim(self.text) if self.text else None)


class State(StrEnum):
    """The state or end of an attempt, in the same words for every executor."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"  # exit code 0
    FAILED = "failed"  # non-zero exit or a signal
    TIMEOUT = "timeout"  # it reached the scheduler's limit or the trial's deadline
    CANCELLED = "cancelled"
    NODE_FAIL = "node-fail"
    PREEMPTED = "preempted"  # the scheduler took the nodes for another job
    OUT_OF_MEMORY = "out-of-memory"  # the scheduler killed it because the host ran out of memory
    LOST = "lost"  # the scheduler no longer knows it
    REQUEUED = "requeued"  # put back into the queue after it had started, and not started again

    @property
    def is_final(self) -> bool:
        """Whether the attempt is over."""
        return self not in (State.PENDING, State.RUNNING)


# the failure class of each state, if the log names no cause
CLASS_OF_STATE = {
    State.TIMEOUT: FailureClass.TIME_LIMIT,
    State.CANCELLED: FailureClass.CANCELLED,
    State.NODE_FAIL: FailureClass.NODE_FAIL,
    State.PREEMPTED: FailureClass.PREEMPTED,
    State.REQUEUED: FailureClass.REQUEUED,
    State.OUT_OF_MEMORY: FailureClass.OOM_HOST,
    State.LOST: FailureClass.LOST,
}


class Outcome(Record, frozen=True, kw_only=True):
    """How one attempt ended."""

    state: State  # the state; final in the ledger
    # exit code of the trainer; None if it never ran, or a signal ended it
    exit_code: int | None = None
    signal: int | None = None  # signal that ended the trainer; None if none did
    nodes: tuple[str, ...] = ()  # the nodes on which it ran
    start_s: Time | None = None  # start in seconds since 1970, by the node's clock; None if unknown
    end_s: Time | None = None  # end, in seconds since the epoch
    reason: str = ""  # reason in the executor's own words; "" if none
    lacks_nodes: bool = False  # it waits for nodes that are drained, down or reserved
    is_started: bool = True  # False only if the trainer's process could not be started
    is_suspended: bool = False  # the scheduler has stopped its processes for a while
    is_held: bool = False  # a person holds it in the queue
    allocation: str = ""  # the allocation of which it was a step; "" if it was a job of its own
    is_requeued: bool = False  # it was put back into the queue after it had started
    # the reason if the scheduler will never start it as asked; else ""
    never_starts: str = ""
    # the end that its payload recorded cannot be read, so it counts as failed
    is_unreadable: bool = False
    job: str = ""  # id of the scheduler's job, if it is not the attempt's own; else ""
