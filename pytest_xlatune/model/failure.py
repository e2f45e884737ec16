"""How an attempt ended, and every way in which it fails, or only looks as if it did.

A class is what the ledger keeps and what the playbook decides on. How a class is seen in a log
stands in `logs/signatures.toml`; which of them follow from log and outcome together in
`logs/triage.py`; what follows from a class in the playbook.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from pytest_xlatune.model.message import Message, verbatim
from pytest_xlatune.model.record import Record, Time


class _Told(StrEnum):
    """A class that the ledger keeps by its value, and people read by its meaning.

    Attributes:
        meaning: what the class says, without a full stop.
        advice: what a person can do about it, without a full stop; "" is nothing.
    """

    meaning: str
    advice: str

    def __new__(cls, value: str, meaning: str = "", advice: str = "") -> Self:
        """Build a member of its value and its texts; the defaults are there for `mypy` alone."""
        member = str.__new__(cls, value)
        member._value_, member.meaning, member.advice = value, meaning, advice
        return member


class CompileClass(_Told):
    """What compiling says of a profile."""

    IDENTICAL = "identical", "identical to the baseline"
    SCHEDULE = "schedule", "same program, other schedule"
    PROGRAM = "program", "other program"
    UNSEEN = "unseen", "effect not seen"
    REFUSED = "refused", "flag refused"
    FAILED = "failed", "does not compile"
    MEMORY = "memory", "needs too much memory"
    FITS = "fits", "fits the memory"


class FailureClass(_Told):
    """What went wrong."""

    # flags and configuration
    UNKNOWN_FLAG = (
        "unknown-flag",
        "XLA does not know a flag",
        "remove the flag, or name one that this jaxlib has: `xlatune flags lint`",
    )
    BAD_FLAG_VALUE = (
        "bad-flag-value",
        "XLA cannot read a flag's value",
        "give a value of the flag's type: `xlatune flags lint`",
    )
    FLAGS_FILE_MISSING = (
        "flags-file-missing",
        "XLA took the flags for a file's name",
        "begin the text of XLA_FLAGS with `--`",
    )
    FLAGS_NOT_EFFECTIVE = (
        "flags-not-effective",
        "the program shows other settings than asked for",
        "look where the job sets the variable a second time",
    )
    FLAGS_UNVERIFIED = (
        "flags-unverified",
        "nothing shows whether a setting is in effect",
        "print the environment in the job, or set NCCL_DEBUG=INFO",
    )
    CONFIG_ERROR = (
        "config-error",
        "the program refuses its configuration",
        "correct the argument that the line names",
    )
    JOB_SETUP = (
        "job-setup",
        "the launcher does not find the model or the code to run",
        "correct the model's name, the request to Slurm or the access to the code",
    )

    # memory
    OOM_GPU = (
        "oom-gpu",
        "the GPU has too little memory for the program",
        "take a smaller batch, more shards or more remat",
    )
    OOM_RCCL_HEADROOM = (
        "oom-rccl-headroom",
        "XLA's memory pool leaves RCCL, NCCL or cuDNN too little",
        "lower XLA_PYTHON_CLIENT_MEM_FRACTION",
    )
    OOM_HOST = (
        "oom-host",
        "the host has too little memory",
        "ask for more host memory, or load less data at once",
    )

    # the program
    XLA_COMPILE_FAIL = (
        "xla-compile-fail",
        "XLA cannot compile the program",
        "take the profile's flags out; of a kernel take smaller blocks",
    )
    XLA_CHECK_FAIL = (
        "xla-check-fail",
        "a check inside XLA does not hold",
        "take the profile's flags out, and report the line to XLA",
    )
    XLA_INTERNAL_CRASH = (
        "xla-internal-crash",
        "XLA crashes inside",
        "take the profile's flags out, and report the line to XLA",
    )
    SEGFAULT = (
        "segfault",
        "the program reads memory that is not its own",
        "run it again; if it comes back, look at the core file",
    )
    NUMERICAL_FAILURE = (
        "numerical-failure",
        "a loss is NaN or infinite, at any exit code",
        "look at the step before; a profile that does so is wrong",
    )
    PYTHON_EXCEPTION = (
        "python-exception",
        "Python raised an exception of no other class",
        "read the traceback",
    )
    FATAL_LINE = (
        "fatal-line",
        "the program logs a fatal error of no other class",
        "read the line and those before it",
    )
    PYTHON_TRACEBACK = (
        "python-traceback",
        "Python printed a traceback",
        "read the traceback",
    )

    PROGRAM_LEFT_OUT = (
        "program-left-out",
        "a rotation goes on without one of its programs",
        "look why that profile's program ended: its own line says it",
    )

    # GPUs and network
    GPU_MEMORY_FAULT = (
        "gpu-memory-fault",
        "a kernel reads an address that is not mapped",
        "take custom kernels and the profile's flags out; if it stays on one node, test that node",
    )
    HIP_ERROR = (
        "hip-error",
        "HIP or CUDA reports an error",
        "run it again; if it stays on one node, test that node",
    )
    GPU_HARDWARE = (
        "gpu-hardware",
        "the GPU or its driver reports a fault",
        "drain the node, and read its kernel's log",
    )
    NO_GPU = (
        "no-gpu",
        "the program sees no GPU",
        "install the jaxlib of your GPU, and set JAX_PLATFORMS so that JAX ends without one",
    )
    OTHER_DEVICE = (
        "other-device",
        "it ran on another platform, or kind of device, than the trials that it is compared with",
        "look at the node's devices, and at variables such as JAX_PLATFORMS that hide them",
    )
    NIC_FAULT = (
        "nic-fault",
        "a network adapter reports a fault",
        "look at the adapter's link and counters, or leave the node out",
    )
    NCCL_NIC_FAIL = (
        "nccl-nic-fail",
        "the launcher finds no network interface for NCCL",
        "set NCCL_SOCKET_IFNAME",
    )
    NCCL_ERROR = (
        "nccl-error",
        "a collective of NCCL or RCCL fails or times out",
        "look for the rank that failed first; set NCCL_DEBUG=INFO",
    )
    JAX_COORD_TIMEOUT = (
        "jax-coord-timeout",
        "JAX's coordination service does not answer in time",
        "look for the rank that never came, or compiles much longer",
    )
    HEARTBEAT_TIMEOUT = (
        "heartbeat-timeout",
        "a task stopped sending heartbeats",
        "read the log of the task that it names: it died or hung first",
    )
    PEER_LOST = (
        "peer-lost",
        "the connection to another rank broke",
        "read the other rank's log: it died first",
    )

    GPU_ECC = (
        "gpu-ecc",
        "a GPU's memory has errors that it cannot correct",
        "drain the node and replace the GPU",
    )
    DRIVER = (
        "driver",
        "the driver of the GPUs does not work",
        "make driver, CUDA and cuDNN fit jaxlib; end what holds the device",
    )
    NETWORK = (
        "network",
        "a connection broke, was refused or timed out",
        "look at the host that the line names",
    )
    HUB = (
        "hub",
        "a server of models or data does not answer",
        "wait, or keep a copy of the model on your storage",
    )
    RAY_ACTOR = (
        "ray-actor",
        "a Ray actor or its node died",
        "read the actor's own log, or its node's",
    )

    # TPUs and libtpu's Megascale runtime: the causes of its hang digests
    TPU_CHIP = (
        "tpu-chip",
        "a TPU failed, or stands where no other does; its host is suspect",
        "drain the host",
    )
    PROGRAM_MISMATCH = (
        "program-mismatch",
        "hosts compiled one module to different programs",
        "give all hosts the same image, flags and libtpu",
    )
    PROGRAM_DIVERGENCE = (
        "program-divergence",
        "hosts run different programs, or in other order",
        "give all hosts the same image, XLA_FLAGS and libtpu",
    )
    DATA_STALL = (
        "data-stall",
        "hosts got no input in time",
        "look at the input pipeline of the hosts that it names",
    )
    NETWORK_LINK = (
        "network-link",
        "a transfer between two hosts does not arrive",
        "test the link between the two hosts",
    )
    ICI_ERROR = (
        "ici-error",
        "a link between the chips of a slice failed",
        "drain the hosts of the link",
    )
    HOST_STUCK = (
        "host-stuck",
        "a host's program gives its TPUs nothing to do",
        "read the stacks of that host's program",
    )
    DATA_CORRUPTION = (
        "data-corruption",
        "data arrived other than it was sent",
        "drain the hosts of the transfer",
    )
    MXLA_ERROR = (
        "mxla-error",
        "a TPU host ended with an error that cannot be undone",
        "read the other hosts' logs for the first error",
    )
    MXLA_HANG_UNKNOWN = (
        "mxla-hang-unknown",
        "the job hangs and libtpu cannot tell why",
        "keep the logs of all hosts and compare their last lines",
    )

    # launcher, containers, storage
    NOT_STARTED = (
        "not-started",
        "the program cannot be started on its node",
        "look at the node's slurmd, munge and MPI plugin",
    )
    PULL_TIMEOUT = (
        "pull-timeout",
        "pulling the image takes too long",
        "keep the image near the nodes, or raise the limit",
    )
    CONTAINER_FAIL = (
        "container-fail",
        "the image cannot be pulled or loaded",
        "look at the image's name, the access to it and the node's container runtime",
    )
    IMAGE_MISSING = (
        "image-missing",
        "the image is not there",
        "put the image where the job looks for it",
    )
    STAGE_TIMEOUT = (
        "stage-timeout",
        "a stage before training takes too long",
        "look for the node that did not answer",
    )
    STEP_ABORTED = (
        "step-aborted",
        "Slurm ended a step of the job, and the line does not say why",
        "read the lines before it, and ask sacct how each step ended",
    )
    STAGE_FAIL = (
        "stage-fail",
        "a stage of the launcher fails",
        "read the stage's own lines",
    )
    TRAIN_TIMEOUT = (
        "train-timeout",
        "the launcher's own limit ended training",
        "raise the launcher's limit, or take fewer steps",
    )
    PORT_FAIL = (
        "port-fail",
        "no port is free",
        "run it again",
    )
    RAY_DOWNSTREAM = (
        "ray-downstream",
        "Ray cannot place an actor",
        "look for a node that did not join Ray",
    )
    GITHUB_5XX = (
        "github-5xx",
        "the server of the code does not answer",
        "wait",
    )
    CHECKOUT_FAIL = (
        "checkout-fail",
        "the checkout of its commit cannot be made",
        "look at the checkout and its commit",
    )
    FILESYSTEM = (
        "filesystem",
        "storage is full, over quota or stale",
        "free space on what the line names, or look at it; give a container more /dev/shm",
    )

    # what the site's command tells of a node
    NODE_FAULT = (
        "node-fault",
        "the node's own log names a hard error",
        "drain the node",
    )
    NODE_SAID = (
        "node-said",
        "the node's own log says something that is no hard error",
        "read the node's log",
    )
    NODE_UNASKED = (
        "node-unasked",
        "what the node's own log says is not known",
        "name a command that tells it",
    )

    # the scheduler
    NODE_FAIL = (
        "node-fail",
        "the scheduler lost a node",
        "look at the node before it is resumed",
    )
    NODE_DRAIN = (
        "node-drain",
        "a node is drained and takes no job",
        "resume the node, or name others",
    )
    QUEUE_LIMIT = (
        "queue-limit",
        "a limit of the scheduler keeps the job in the queue",
        "ask for less, or wait",
    )
    NEVER_STARTS = (
        "never-starts",
        "the scheduler will not start the job as it was asked for",
        "correct the request that Slurm names",
    )
    PROLOG_KILL = (
        "prolog-kill",
        "the job died before its script ran",
        "look at the prolog on that node; a long job name does it too",
    )
    SLURM_CONTROLLER_DOWN = (
        "slurm-controller-down",
        "the scheduler does not answer",
        "wait",
    )
    SUBMISSION_REFUSED = (
        "submission-refused",
        "the scheduler refuses the job",
        "correct what Slurm names",
    )
    PREEMPTED = (
        "preempted",
        "another job took the nodes",
        "take a partition that is not preempted, or wait",
    )
    REQUEUED = (
        "requeued",
        "the job was put back into the queue after it had begun",
        "look why Slurm requeued it: a node, an operator",
    )
    PREEMPTION_NOTICE = (
        "preemption-notice",
        "the program was told that it will be ended",
        "look what follows it: a preemption, a cancel or the time limit",
    )
    TIME_LIMIT = (
        "time-limit",
        "a time limit ended the job",
        "ask for more time",
    )
    CANCELLED = (
        "cancelled",
        "the job was cancelled",
        "ask who cancelled it; a hang before it is a reason",
    )
    LOST = (
        "lost",
        "the scheduler no longer knows the job",
        "ask sacct",
    )

    # how an attempt ended
    UNFINISHED = (
        "unfinished",
        "the log ends before the last step and tells no end",
        "look whether the job still runs",
    )
    LOG_UNREADABLE = (
        "log-unreadable",
        "its log cannot be read",
        "look at the storage",
    )
    OUTCOME_UNREADABLE = (
        "outcome-unreadable",
        "what it wrote of its end cannot be read",
        "look at the storage",
    )
    SOFT_SUCCESS = (
        "soft-success",
        "the last step is logged although the job ended badly",
        "nothing: its steps count; look at the teardown if each job ends so",
    )
    STEPS_AFTER_CANCEL = (
        "steps-after-cancel",
        "steps were printed after the job was told to end",
        "let one job end before the next begins",
    )
    RUNAWAY_LOG = (
        "runaway-log",
        "more than 500 MB of log before the first step",
        "lower the level of the log",
    )
    HANG_INIT = (
        "hang-init",
        "no progress before Memstats",
        "read `xlatune triage` of all ranks: one is behind",
    )
    HANG_SILENT_OOM = (
        "hang-silent-oom",
        "no progress between Memstats and the first step",
        "take a smaller batch",
    )
    HANG_MID_TRAINING = (
        "hang-mid-training",
        "no progress after the first step",
        "read `xlatune triage` of all ranks: one is behind",
    )
    RANK_BEHIND = (
        "rank-behind",
        "the job stood still: which rank the others waited for",
        "look at that rank's process and node; the other ranks only waited",
    )
    NO_STEPS = (
        "no-steps",
        "ended well without one step line",
        "say how the trainer prints a step: `--step-pattern`",
    )
    TOO_FEW_STEPS = (
        "too-few-steps",
        "ended well with too few steps to score",
        "take more steps",
    )
    NO_SCORE = (
        "no-score",
        "ended well, but its steps give no score",
        "say the tokens of a step, or take more steps",
    )
    KILLED = (
        "killed",
        "SIGKILL",
        "look at the node's kernel log for want of memory",
    )
    SIGNAL_KILL = (
        "signal-kill",
        "another signal",
        "look at the core file and the lines before",
    )
    NODE_EXIT = (
        "node-exit",
        "the program of one node ended with an error",
        "read that node's lines",
    )
    EXIT_CODE = (
        "exit-code",
        "a non-zero exit code and no known signature",
        "read the last lines",
    )
    UNKNOWN_DEATH = (
        "unknown-death",
        "failed without exit code, signal or signature",
        "ask sacct",
    )

    # what the campaign decided
    COMPILE_CHECK = (
        "compile-check",
        "the compile check said enough; the trial was not run",
        "to run it anyway, leave the compile check out",
    )
    BUDGET = (
        "budget",
        "the budget has no trial left",
        "raise the budget to run it",
    )


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
    {
        *(FailureClass.PYTHON_EXCEPTION, FailureClass.PYTHON_TRACEBACK, FailureClass.FATAL_LINE),
        FailureClass.OTHER_DEVICE,
    }
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
    """One diagnosed thing about an attempt.

    Attributes:
        cls: the failure class, e.g. "oom-gpu", "unknown-flag", "numerical-failure".
        action: what it asks for.
        line: 1-based number of the evidence line in the log; 0 where there is no line.
        text: the evidence, at most 500 characters; "" where `why` says it.
        detail: the figure or name in it, e.g. "171.96 GiB" or the flag's name.
        source: which log, when an attempt has several.
        count: how often the log says it.
        why: what was found where no line says it; None where `text` is the evidence.
        code: of XLA's published list of errors, e.g. "E0200"; "" without one.
    """

    cls: str
    action: Action
    line: int = 0
    text: str = ""
    detail: str = ""
    source: str = ""
    count: int = 1
    why: Message | None = None
    code: str = ""

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


class Outcome(Record, frozen=True, kw_only=True):
    """How one attempt ended.

    Attributes:
        state: where the attempt stands; final in the ledger.
        exit_code, signal: of the trainer's end; None where it never ran, or ended of the other.
        nodes: where it ran.
        start_s, end_s: seconds since the epoch, by the node's clock; None where unknown.
        reason: the executor's own words.
        lacks_nodes: whether it waits because nodes that it needs are drained, down or reserved.
        is_started: whether the trainer's process began; False only where it could not.
        is_suspended: whether the scheduler stopped its processes for a while.
        is_held: whether a person holds it in the queue.
        allocation: of the scheduler, in which it was a step; "" where it was a job of its own.
        is_requeued: whether it was put back into the queue after it had begun.
        never_starts: what to change where the scheduler will not start it as asked; "" it may.
        is_unreadable: whether its payload's word of its end cannot be read; it has failed then.
    """

    state: State
    exit_code: int | None = None
    signal: int | None = None
    nodes: tuple[str, ...] = ()
    start_s: Time | None = None
    end_s: Time | None = None
    reason: str = ""
    lacks_nodes: bool = False
    is_started: bool = True
    is_suspended: bool = False
    is_held: bool = False
    allocation: str = ""
    is_requeued: bool = False
    never_starts: str = ""
    is_unreadable: bool = False
