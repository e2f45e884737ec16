"""How an attempt ended, and every way in which it fails, or only looks as if it did.

A class is what the ledger keeps and what the playbook decides on. What it means, whose trouble it
is and how it is seen in a log stands in `logs/signatures.toml`, a row each; which classes follow
from log and outcome together in `logs/triage.py`; what follows from a class in the playbook.
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
    """Return the whole of `signatures.toml`; it is read when something of it is asked for."""
    return tomllib.loads(SIGNATURES.read_text(encoding="utf-8"))


class FailureClass(StrEnum):
    """What went wrong; each is a row of `signatures.toml`."""

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

    # what the site's command tells of a node
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
        """What the class says, without a full stop."""
        return str(self._row["meaning"])

    @property
    def advice(self) -> str:
        """What a person can do about it, without a full stop."""
        return str(self._row["advice"])

    @property
    def action(self) -> Action | None:
        """What the class asks for; None where the campaign says that itself."""
        return Action(self._row["action"]) if "action" in self._row else None

    def is_blamed_on(self, *whose: Blame) -> bool:
        """Whether the class is the trouble of one of these."""
        return not {*whose}.isdisjoint(self._row.get("blame", ()))

    @property
    def _row(self) -> Mapping[str, Any]:
        row: Mapping[str, Any] = signatures()["class"][self]
        return row


class Blame(StrEnum):
    """Whose trouble a class is that is not the program's."""

    SITE = "site"  # what can pass is tried again, what stays stops the cell; it drops no profile
    NODE = "node"  # it fails on one node and says nothing of the program
    UNKNOWN = "unknown"  # the profile's only when it comes again while the reference runs


@functools.cache
def blamed_on(*whose: Blame) -> frozenset[FailureClass]:
    """Return the classes that are the trouble of one of these."""
    return frozenset(cls for cls in FailureClass if cls.is_blamed_on(*whose))


class Action(StrEnum):
    """What a finding asks for. Retries depend on it, never on a measured value."""

    NONE = "none"  # worth knowing, changes nothing
    SUCCESS = "success"  # looks like a failure, is none
    RETRY = "retry"
    RESUME_NODE = "resume-node"
    HOOK = "hook"  # needs a person's rights: a site's own command
    WAIT = "wait"
    DROP = "drop"  # the profile cannot run
    STOP = "stop"  # the sweep cannot go on


class Finding(Record, frozen=True, kw_only=True):
    """One diagnosed thing about an attempt."""

    cls: str  # the failure class
    action: Action  # what it asks for
    line: int = 0  # 1-based number of the evidence line in the log; 0 where there is no line
    text: str = ""  # the evidence, at most 500 characters; "" where `why` says it
    detail: str = ""  # the figure or name in it, e.g. "171.96 GiB" or the flag's name
    source: str = ""  # which log, when an attempt has several
    count: int = 1  # how often the log says it
    why: Message | None = None  # what was found where no line says it
    code: str = ""  # of XLA's published list of errors, e.g. "E0200"

    @property
    def said(self) -> Message | None:
        """The evidence; None without any."""
        return self.why or (verbatim(self.text) if self.text else None)


class State(StrEnum):
    """How an attempt stands or ended, in the words of every executor."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"  # exit code 0
    FAILED = "failed"  # non-zero exit or a signal
    TIMEOUT = "timeout"  # the scheduler's limit or the trial's deadline
    CANCELLED = "cancelled"
    NODE_FAIL = "node-fail"
    PREEMPTED = "preempted"  # the scheduler took the nodes for another job
    OUT_OF_MEMORY = "out-of-memory"  # the scheduler ended it for want of host memory
    LOST = "lost"  # the scheduler knows it no more
    REQUEUED = "requeued"  # put back into the queue after it had begun, and not run again

    @property
    def is_final(self) -> bool:
        """Whether the attempt is over."""
        return self not in (State.PENDING, State.RUNNING)


# how the scheduler ends a job, in the class that an end without a word of the log has
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

    state: State  # where the attempt stands; final in the ledger
    exit_code: int | None = None  # the trainer's; None where it never ran, or a signal ended it
    signal: int | None = None  # that ended the trainer
    nodes: tuple[str, ...] = ()  # where it ran
    start_s: Time | None = None  # seconds since the epoch, by the node's clock; None: unknown
    end_s: Time | None = None  # likewise
    reason: str = ""  # the executor's own words
    lacks_nodes: bool = False  # it waits for nodes that are drained, down or reserved
    is_started: bool = True  # False only where the trainer's process could not begin
    is_suspended: bool = False  # the scheduler stopped its processes for a while
    is_held: bool = False  # a person holds it in the queue
    allocation: str = ""  # in which it was a step; "" where it was a job of its own
    is_requeued: bool = False  # it was put back into the queue after it had begun
    never_starts: str = ""  # what to change where the scheduler will not start it as asked
    is_unreadable: bool = False  # its payload's word of its end cannot be read; it has failed then
    job: str = ""  # the scheduler's id of the job that it made and followed; "" where it was it
