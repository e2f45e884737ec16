"""How an attempt ended, and all ways in which it can fail, or only look as if it did.

The ledger keeps a failure class, and the playbook decides by it. `logs/signatures.toml` has a row
for each class: its meaning, whose trouble it is, and how a log shows it. `logs/triage.py` derives
classes from log and outcome together; the playbook says what follows from a class.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from pytest_xlatune.model.message import Message, verbatim
from pytest_xlatune.model.record import Record, Time

SIGNATURES = Path(__file__).parents[1] / "logs" / "signatures.toml"


@functools.cache
def signatures() -> Mapping[str, Any]:
    """Return the content of `signatures.toml`, which is read on first use."""
    return tomllib.loads(SIGNATURES.read_text(encoding="utf-8"))


class FailureClass(StrEnum):
    """What went wrong; each class is a row of `signatures.toml`."""

    # flags and configuration
    UNKNOWN_FLAG = "unknown-flag"
    BAD_FLAG_VALUE = "bad-flag-value"
    FLAGS_FILE_MISSING = "flags-file-missing"
    FLAGS_NOT_EFFECTIVE = "flags-not-effective"
    FLAGS_UNVERIFIED = "flags-unverified"
    CONFIG_ERROR = "config-error"
    JOB_SETUP = "job-setup"

    # memory
    OOM_GPU = "oom-gpu"
    OOM_RCCL_HEADROOM = "oom-rccl-headroom"
    OOM_HOST = "oom-host"

    # the program
    XLA_COMPILE_FAIL = "xla-compile-fail"
    XLA_CHECK_FAIL = "xla-check-fail"
    XLA_INTERNAL_CRASH = "xla-internal-crash"
    SEGFAULT = "segfault"
    NUMERICAL_FAILURE = "numerical-failure"
    PYTHON_EXCEPTION = "python-exception"
    FATAL_LINE = "fatal-line"
    PYTHON_TRACEBACK = "python-traceback"
    PROGRAM_LEFT_OUT = "program-left-out"

    # GPUs and network
    GPU_MEMORY_FAULT = "gpu-memory-fault"
    HIP_ERROR = "hip-error"
    GPU_HARDWARE = "gpu-hardware"
    NO_GPU = "no-gpu"
    OTHER_DEVICE = "other-device"
    NIC_FAULT = "nic-fault"
    NCCL_NIC_FAIL = "nccl-nic-fail"
    NCCL_ERROR = "nccl-error"
    JAX_COORD_TIMEOUT = "jax-coord-timeout"
    HEARTBEAT_TIMEOUT = "heartbeat-timeout"
    PEER_LOST = "peer-lost"
    GPU_ECC = "gpu-ecc"
    DRIVER = "driver"
    NETWORK = "network"
    HUB = "hub"
    RAY_ACTOR = "ray-actor"

    # TPUs and libtpu's Megascale runtime: the causes of its hang digests
    TPU_CHIP = "tpu-chip"
    PROGRAM_MISMATCH = "program-mismatch"
    PROGRAM_DIVERGENCE = "program-divergence"
    DATA_STALL = "data-stall"
    NETWORK_LINK = "network-link"
    ICI_ERROR = "ici-error"
    HOST_STUCK = "host-stuck"
    DATA_CORRUPTION = "data-corruption"
    MXLA_ERROR = "mxla-error"
    MXLA_HANG_UNKNOWN = "mxla-hang-unknown"

    # launcher, containers, storage
    NOT_STARTED = "not-started"
    PULL_TIMEOUT = "pull-timeout"
    CONTAINER_FAIL = "container-fail"
    IMAGE_MISSING = "image-missing"
    STAGE_TIMEOUT = "stage-timeout"
    STEP_ABORTED = "step-aborted"
    STAGE_FAIL = "stage-fail"
    TRAIN_TIMEOUT = "train-timeout"
    PORT_FAIL = "port-fail"
    RAY_DOWNSTREAM = "ray-downstream"
    GITHUB_5XX = "github-5xx"
    CHECKOUT_FAIL = "checkout-fail"
    FILESYSTEM = "filesystem"

    # what the site's command reports about a node
    NODE_FAULT = "node-fault"
    NODE_SAID = "node-said"
    NODE_UNASKED = "node-unasked"

    # the scheduler
    NODE_FAIL = "node-fail"
    NODE_DRAIN = "node-drain"
    QUEUE_LIMIT = "queue-limit"
    NEVER_STARTS = "never-starts"
    PROLOG_KILL = "prolog-kill"
    SLURM_CONTROLLER_DOWN = "slurm-controller-down"
    SUBMISSION_REFUSED = "submission-refused"
    PREEMPTED = "preempted"
    REQUEUED = "requeued"
    PREEMPTION_NOTICE = "preemption-notice"
    TIME_LIMIT = "time-limit"
    CANCELLED = "cancelled"
    LOST = "lost"

    # how an attempt ended
    UNFINISHED = "unfinished"
    LOG_UNREADABLE = "log-unreadable"
    OUTCOME_UNREADABLE = "outcome-unreadable"
    SOFT_SUCCESS = "soft-success"
    STEPS_AFTER_CANCEL = "steps-after-cancel"
    RUNAWAY_LOG = "runaway-log"
    HANG_INIT = "hang-init"
    HANG_SILENT_OOM = "hang-silent-oom"
    HANG_MID_TRAINING = "hang-mid-training"
    RANK_BEHIND = "rank-behind"
    NO_STEPS = "no-steps"
    TOO_FEW_STEPS = "too-few-steps"
    NO_SCORE = "no-score"
    KILLED = "killed"
    SIGNAL_KILL = "signal-kill"
    NODE_EXIT = "node-exit"
    EXIT_CODE = "exit-code"
    UNKNOWN_DEATH = "unknown-death"

    # what the campaign decided
    COMPILE_CHECK = "compile-check"
    BUDGET = "budget"

    @property
    def meaning(self) -> str:
        """The meaning of the class, without a full stop."""
        return str(self._row["meaning"])

    @property
    def advice(self) -> str:
        """What a person can do about it, without a full stop."""
        return str(self._row["advice"])

    @property
    def action(self) -> Action | None:
        """The action of the class; None if the campaign decides it."""
        return Action(self._row["action"]) if "action" in self._row else None

    @property
    def _row(self) -> Mapping[str, Any]:
        row: Mapping[str, Any] = signatures()["class"][self]
        return row


class Blame(StrEnum):
    """Whose trouble a failure is if it is not the program's."""

    # a passing failure is retried, a lasting one stops the cell; no profile is dropped for it
    SITE = "site"
    NODE = "node"  # it happens on one node and says nothing about the program
    UNKNOWN = "unknown"  # the profile's only if it happens again while the reference runs


@functools.cache
def blamed_on(*whose: Blame) -> frozenset[FailureClass]:
    """Return the classes that are the trouble of one of these."""
    rows: Mapping[str, Mapping[str, Any]] = signatures()["class"]
    return frozenset(cls for cls in FailureClass if {*whose} & {*rows[cls].get("blame", ())})


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
    code: str = ""  # error code from XLA's published list, e.g. "E0200"; "" without one

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
    # what must be changed if the scheduler will never start it as asked; else ""
    never_starts: str = ""
    # the end that its payload recorded cannot be read, so it counts as failed
    is_unreadable: bool = False
    job: str = ""  # id of the scheduler's job, if it is not the attempt's own; else ""
