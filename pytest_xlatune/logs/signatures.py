"""The ordered table of failure signatures, what is harmless, and the classes without a line.

The first row that matches a line names it. Harmless lines are taken out before: they appear in
every good run and some of them read like failures.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pytest_xlatune.logs.cluster import CLUSTER, GENERIC
from pytest_xlatune.logs.row import Row, Tier
from pytest_xlatune.logs.workload import WORKLOAD
from pytest_xlatune.results import Action

SIGNATURES: tuple[Row, ...] = (*WORKLOAD, *CLUSTER, *GENERIC)

# sample line of each harmless signature, and what is searched for it
BENIGN: Mapping[str, str] = {
    "failed call to cuInit: INTERNAL: CUDA error: UNKNOWN ERROR (303)": r"\bcuInit\b",
    "n1:812:901 [0] NCCL INFO Failed to open libibverbs.so[.1]": r"\bNCCL INFO\b",
    "n1:812:901 [0] NCCL WARN MSCCL++: Feature not enabled, error ignored": r"MSCCL\+\+",
    "NCCL WARN LL cutoff points not detected for a supported arch gfx950": r"LL cutoff points",
    "WARNING: AMD GPU device(s) is/are in a low-power state, error state": r"low-power state",
    "Token indices sequence length is longer than 4096, errors": r"sequence length is long",
    "W0112 07:08:09.1 9 lhs.cc:1] LatencyHidingScheduler current memory usage: 9 bytes, out of "
    "memory limit": r"LatencyHidingScheduler current memory",
    "jellyfish: failed to find the driver": r"jellyfish",
    "Cannot read CPU core 12: error 2": r"Cannot read CPU core",
    "No device identifiers found: error": r"No device identifiers",
    "Error response from daemon: could not kill container": r"could not kill container",
    "OCI runtime exec failed: exec failed: unable to start": r"OCI (?:runtime )?exec",
    "nsenter: failed: setns: error while loading": r"\bsetns\b",
    "bfc_allocator.cc:7] ran out of memory trying to allocate 2GiB; the caller indicates that "
    "this is not a failure": r"this is not a failure",
    "E0112 cuda_dnn.cc:8310] Unable to register cuDNN factory: error": r"Unable to register cu\w+",
    "NODE_EXIT host=n1 exit=143, Killed": r"NODE_EXIT host=\S+ exit=(?:0|143)\b",
}
_BENIGN = re.compile("|".join(BENIGN.values()))

# classes that only the combination of log and outcome tells: action, tier, when
DIAGNOSED: Mapping[str, tuple[Action, Tier, str]] = {
    "soft-success": (
        Action.SUCCESS, Tier.CAUSE, "the last step is logged although the job ended badly"),
    "numerical-failure": (Action.DROP, Tier.CAUSE, "a loss is NaN or infinite, at any exit code"),
    "steps-after-cancel": (
        Action.RETRY, Tier.CAUSE, "steps were printed after the job was told to end"),
    "node-fail": (Action.RESUME_NODE, Tier.CAUSE, "the scheduler lost a node"),
    "runaway-log": (Action.RETRY, Tier.CAUSE, "more than 500 MB of log before the first step"),
    "hang-init": (Action.RETRY, Tier.CONSEQUENCE, "no progress before Memstats"),
    "hang-silent-oom": (
        Action.DROP, Tier.CONSEQUENCE, "no progress between Memstats and the first step"),
    "hang-mid-training": (Action.RETRY, Tier.CONSEQUENCE, "no progress after the first step"),
    "time-limit": (Action.NONE, Tier.CONSEQUENCE, "a time limit ended the job"),
    "no-steps": (Action.DROP, Tier.GENERIC, "ended well without one step line"),
    "too-few-steps": (Action.RETRY, Tier.GENERIC, "ended well with too few steps to score"),
    "killed": (Action.RETRY, Tier.GENERIC, "SIGKILL"),
    "signal-kill": (Action.RETRY, Tier.GENERIC, "another signal"),
    "cancelled": (Action.NONE, Tier.GENERIC, "somebody cancelled the job"),
    "exit-code": (Action.RETRY, Tier.SYMPTOM, "a non-zero exit code and no known signature"),
    "not-started": (Action.RETRY, Tier.CAUSE, "the program cannot be started on its node"),
    "unknown-death": (Action.RETRY, Tier.SYMPTOM, "failed without exit code, signal or signature"),
    "lost": (Action.RETRY, Tier.SYMPTOM, "nobody knows the job any more"),
}  # fmt: skip


def is_benign(text: str) -> bool:
    """Whether a line is known to appear in good runs."""
    return _BENIGN.search(text) is not None


def words() -> frozenset[str]:
    """Return every word of the table: a line without any of them matches no row."""
    return frozenset(word for row in SIGNATURES for word in row.words)


def table() -> Iterator[str]:
    """Yield the lines of `docs/logs.md`'s table of failure classes, in Markdown."""
    yield "| class | phase | action | fatal | what is seen |"
    yield "|---|---|---|---|---|"
    for row in SIGNATURES:
        seen = row.sample.replace("|", "\\|")
        fatal = "yes" if row.is_fatal else ""
        yield f"| {row.cls} | {row.phase} | {row.action} | {fatal} | `{seen}` |"
    for cls, (action, _, when) in DIAGNOSED.items():
        yield f"| {cls} | after the end | {action} | | {when} |"
