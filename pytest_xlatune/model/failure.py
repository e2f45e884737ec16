"""Every way in which an attempt of a trial fails, or only looks as if it did; what compiling says.

A class is what the ledger keeps and what the playbook decides on. How a class is seen in a log
stands in `logs/signatures.toml`; which of them follow from log and outcome together in
`logs/triage.py`; what follows from a class in the playbook.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class _Told(StrEnum):
    """A class that the ledger keeps by its value, and people read by its meaning.

    Attributes:
        meaning: what the class says, without a full stop.
    """

    meaning: str

    def __new__(cls, value: str, meaning: str = "") -> Self:
        """Build a member of its value and its meaning; the default is there for `mypy` alone."""
        member = str.__new__(cls, value)
        member._value_, member.meaning = value, meaning
        return member


class CompileClass(_Told):
    """What compiling says of a profile."""

    IDENTICAL = "identical", "identical to the baseline"
    SCHEDULE = "schedule", "same program, other schedule"
    PROGRAM = "program", "other program"
    UNSEEN = "unseen", "acts at run time only"
    REFUSED = "refused", "flag refused"
    FAILED = "failed", "does not compile"
    MEMORY = "memory", "needs too much memory"
    FITS = "fits", "fits the memory"


class FailureClass(_Told):
    """What went wrong."""

    # flags and configuration
    UNKNOWN_FLAG = "unknown-flag", "XLA does not know a flag"
    BAD_FLAG_VALUE = "bad-flag-value", "XLA cannot read a flag's value"
    FLAGS_FILE_MISSING = "flags-file-missing", "XLA took the flags for a file's name"
    FLAGS_NOT_EFFECTIVE = "flags-not-effective", "the program shows other settings than asked for"
    FLAGS_UNVERIFIED = "flags-unverified", "nothing shows whether a setting is in effect"
    CONFIG_ERROR = "config-error", "MaxText refuses its configuration"
    JOB_SETUP = "job-setup", "the launcher does not find the model or the code to run"

    # memory
    OOM_GPU = "oom-gpu", "the GPU has too little memory for the program"
    OOM_RCCL_HEADROOM = "oom-rccl-headroom", "XLA's memory pool leaves RCCL or NCCL too little"
    OOM_HOST = "oom-host", "the host has too little memory"

    # the program
    XLA_COMPILE_FAIL = "xla-compile-fail", "XLA cannot compile the program"
    XLA_CHECK_FAIL = "xla-check-fail", "a check inside XLA does not hold"
    XLA_INTERNAL_CRASH = "xla-internal-crash", "XLA crashes inside"
    SEGFAULT = "segfault", "the program reads memory that is not its own"
    NUMERICAL_FAILURE = "numerical-failure", "a loss is NaN or infinite, at any exit code"
    PYTHON_EXCEPTION = "python-exception", "Python raised an exception of no other class"
    FATAL_LINE = "fatal-line", "the program logs a fatal error of no other class"
    PYTHON_TRACEBACK = "python-traceback", "Python printed a traceback"

    PROGRAM_LEFT_OUT = "program-left-out", "a rotation goes on without one of its programs"

    # GPUs and network
    GPU_MEMORY_FAULT = "gpu-memory-fault", "a kernel reads an address that is not mapped"
    HIP_ERROR = "hip-error", "HIP or CUDA reports an error"
    GPU_HARDWARE = "gpu-hardware", "the GPU or its driver reports a fault"
    NO_GPU = "no-gpu", "the container sees no GPU"
    NIC_FAULT = "nic-fault", "a network adapter reports a fault"
    NCCL_NIC_FAIL = "nccl-nic-fail", "the launcher finds no network interface for NCCL"
    NCCL_ERROR = "nccl-error", "a collective of NCCL or RCCL fails or times out"
    JAX_COORD_TIMEOUT = "jax-coord-timeout", "JAX's coordination service does not answer in time"
    HEARTBEAT_TIMEOUT = "heartbeat-timeout", "a task stopped sending heartbeats"
    PEER_LOST = "peer-lost", "the connection to another rank broke"

    GPU_ECC = "gpu-ecc", "a GPU's memory has errors that it cannot correct"
    DRIVER = "driver", "the driver of the GPUs does not work"
    NETWORK = "network", "a connection broke, was refused or timed out"
    HUB = "hub", "a server of models or data does not answer"
    RAY_ACTOR = "ray-actor", "a Ray actor or its node died"

    # TPUs and libtpu's Megascale runtime: the causes of its hang digests
    TPU_CHIP = "tpu-chip", "a TPU stands where no other does; its host is suspect"
    PROGRAM_MISMATCH = "program-mismatch", "hosts compiled one module to different programs"
    PROGRAM_DIVERGENCE = "program-divergence", "hosts run different programs, or in other order"
    DATA_STALL = "data-stall", "hosts got no input in time"
    NETWORK_LINK = "network-link", "a transfer between two hosts does not arrive"
    ICI_ERROR = "ici-error", "a link between the chips of a slice failed"
    HOST_STUCK = "host-stuck", "a host's program gives its TPUs nothing to do"
    DATA_CORRUPTION = "data-corruption", "data arrived other than it was sent"
    MXLA_ERROR = "mxla-error", "a TPU host ended with an error that cannot be undone"
    MXLA_HANG_UNKNOWN = "mxla-hang-unknown", "the job hangs and libtpu cannot tell why"

    # launcher, containers, storage
    NOT_STARTED = "not-started", "the program cannot be started on its node"
    PULL_TIMEOUT = "pull-timeout", "pulling the image takes too long"
    CONTAINER_FAIL = "container-fail", "the image cannot be pulled or loaded"
    IMAGE_MISSING = "image-missing", "the image is not there"
    STAGE_TIMEOUT = "stage-timeout", "a stage before training takes too long"
    STAGE_FAIL = "stage-fail", "a stage of the launcher fails"
    TRAIN_TIMEOUT = "train-timeout", "the launcher's own limit ended training"
    PORT_FAIL = "port-fail", "no port is free"
    RAY_DOWNSTREAM = "ray-downstream", "Ray cannot place an actor"
    GITHUB_5XX = "github-5xx", "the server of the code does not answer"
    CHECKOUT_FAIL = "checkout-fail", "the checkout of its commit cannot be made"
    FILESYSTEM = "filesystem", "storage is full, over quota or stale"

    # what the site's command tells of a node
    NODE_FAULT = "node-fault", "the node's own log names a hard error"
    NODE_SAID = "node-said", "the node's own log says something that is no hard error"
    NODE_UNASKED = "node-unasked", "what the node's own log says is not known"

    # the scheduler
    NODE_FAIL = "node-fail", "the scheduler lost a node"
    NODE_DRAIN = "node-drain", "a node is drained and takes no job"
    QUEUE_LIMIT = "queue-limit", "a limit of the scheduler keeps the job in the queue"
    NEVER_STARTS = "never-starts", "the scheduler will not start the job as it was asked for"
    PROLOG_KILL = "prolog-kill", "the job died before its script ran"
    SLURM_CONTROLLER_DOWN = "slurm-controller-down", "the scheduler does not answer"
    SUBMISSION_REFUSED = "submission-refused", "the scheduler refuses the job"
    PREEMPTED = "preempted", "another job took the nodes"
    REQUEUED = "requeued", "the job was put back into the queue after it had begun"
    PREEMPTION_NOTICE = "preemption-notice", "the program was told that it will be ended"
    TIME_LIMIT = "time-limit", "a time limit ended the job"
    CANCELLED = "cancelled", "the job was cancelled"
    LOST = "lost", "the scheduler no longer knows the job"

    # how an attempt ended
    UNFINISHED = "unfinished", "the log ends before the last step and tells no end"
    LOG_UNREADABLE = "log-unreadable", "its log cannot be read"
    OUTCOME_UNREADABLE = "outcome-unreadable", "what it wrote of its end cannot be read"
    SOFT_SUCCESS = "soft-success", "the last step is logged although the job ended badly"
    STEPS_AFTER_CANCEL = "steps-after-cancel", "steps were printed after the job was told to end"
    RUNAWAY_LOG = "runaway-log", "more than 500 MB of log before the first step"
    HANG_INIT = "hang-init", "no progress before Memstats"
    HANG_SILENT_OOM = "hang-silent-oom", "no progress between Memstats and the first step"
    HANG_MID_TRAINING = "hang-mid-training", "no progress after the first step"
    NO_STEPS = "no-steps", "ended well without one step line"
    TOO_FEW_STEPS = "too-few-steps", "ended well with too few steps to score"
    NO_SCORE = "no-score", "ended well, but its steps give no score"
    KILLED = "killed", "SIGKILL"
    SIGNAL_KILL = "signal-kill", "another signal"
    NODE_EXIT = "node-exit", "the program of one node ended with an error"
    EXIT_CODE = "exit-code", "a non-zero exit code and no known signature"
    UNKNOWN_DEATH = "unknown-death", "failed without exit code, signal or signature"

    # what the campaign decided
    COMPILE_CHECK = "compile-check", "the compile check said enough; the trial was not run"
    BUDGET = "budget", "the budget has no trial left"


# Trouble of the site: it says nothing of a profile and never drops one. What can pass by itself is
# tried again on the same nodes; what stays stops the cell, and a person is told.
SITE_CLASSES = frozenset(
    {
        *(FailureClass.GPU_HARDWARE, FailureClass.GPU_ECC, FailureClass.DRIVER),
        *(FailureClass.NO_GPU, FailureClass.NIC_FAULT, FailureClass.NCCL_NIC_FAIL),
        *(FailureClass.NETWORK, FailureClass.HUB, FailureClass.RAY_ACTOR),
        *(FailureClass.RAY_DOWNSTREAM, FailureClass.GITHUB_5XX, FailureClass.FILESYSTEM),
        *(FailureClass.PULL_TIMEOUT, FailureClass.CONTAINER_FAIL, FailureClass.IMAGE_MISSING),
        *(FailureClass.PORT_FAIL, FailureClass.STAGE_TIMEOUT, FailureClass.JOB_SETUP),
        *(FailureClass.NODE_FAIL, FailureClass.NODE_DRAIN, FailureClass.PROLOG_KILL),
        *(FailureClass.SLURM_CONTROLLER_DOWN, FailureClass.PREEMPTED, FailureClass.REQUEUED),
        *(FailureClass.TPU_CHIP, FailureClass.ICI_ERROR, FailureClass.NETWORK_LINK),
        *(FailureClass.DATA_CORRUPTION, FailureClass.DATA_STALL, FailureClass.HOST_STUCK),
    }
)

# It may be the profile's or the site's: tried once more, and the profile's only when it comes again
# while the reference runs.
UNKNOWN_CLASSES = frozenset(
    {FailureClass.PYTHON_EXCEPTION, FailureClass.PYTHON_TRACEBACK, FailureClass.FATAL_LINE}
)

# the classes that a hang digest of libtpu has
MEGASCALE = frozenset(
    {
        FailureClass.TPU_CHIP,
        FailureClass.PROGRAM_MISMATCH,
        FailureClass.PROGRAM_DIVERGENCE,
        FailureClass.DATA_STALL,
        FailureClass.NETWORK_LINK,
        FailureClass.ICI_ERROR,
        FailureClass.HOST_STUCK,
        FailureClass.DATA_CORRUPTION,
        FailureClass.MXLA_ERROR,
        FailureClass.MXLA_HANG_UNKNOWN,
    }
)

# what fails on one node and says nothing of the program; see `studies.Policy.on_node_failure`
NODE_CLASSES = frozenset(
    {
        FailureClass.NODE_FAIL,
        FailureClass.NODE_DRAIN,
        FailureClass.GPU_HARDWARE,
        FailureClass.GPU_ECC,
        FailureClass.DRIVER,
        FailureClass.NO_GPU,
        FailureClass.NIC_FAULT,
        FailureClass.NCCL_NIC_FAIL,
        FailureClass.OOM_HOST,
        FailureClass.PROLOG_KILL,
        FailureClass.TPU_CHIP,
        FailureClass.ICI_ERROR,
        FailureClass.HOST_STUCK,
    }
)
