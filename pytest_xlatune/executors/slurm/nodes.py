"""The nodes of a cluster: whether they exist, are usable and equal, and see a trial's files.

`sinfo`, `squeue` and one short srun on the nodes themselves answer that; `scontrol` resumes nodes.
"""

from __future__ import annotations

import getpass
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pytest_xlatune.executors import JOB_NAME_PREFIX, Executor, ProbeResult, Resumed
from pytest_xlatune.executors.slurm._commands import SEPARATOR, Run, run_command
from pytest_xlatune.executors.slurm._poller import ROUND_S, Poller
from pytest_xlatune.executors.slurm._script import site_options
from pytest_xlatune.model.hosts import compress

_log = logging.getLogger("pytest_xlatune.executors")
# seconds that a resumed node gets to answer: after the first RESUME, and after the second
_RESUME_WAITS_S = (2.0, 10.0)
# Seconds that a silent node gets to answer: after it was resumed or missed a ping, and after a
# restart of the controller, when all nodes are silent for seconds without a fault.
_SILENT_WAITS_S = (2.0, 3.0, 5.0)
_FIELDS = ("%N", "%T", "%c", "%m", "%G", "%E")
_SINFO = ("sinfo", "-h", "-N", "-o", SEPARATOR.join(_FIELDS))
# a node and a sentence on its fault; the node is "" if sinfo itself does not answer
_Fault = tuple[str, str]
_SRUN_WAIT_S = 15  # seconds that srun may wait for the nodes, which were usable a moment ago
# A shell script that runs on each node. It prints each path that the node does not see, and at its
# end the node's name alone.
_SCRIPT = f"""\
for path; do [ -e "$path" ] || echo "$SLURMD_NODENAME{SEPARATOR}$path"; done
echo "$SLURMD_NODENAME"
"""
# Reasons that Slurm itself gives for taking out a node. With another reason, such as "ADMIN:
# hardware swap", a person took the node out, and it must not be put back to work.
_REASON_BY_SLURM = re.compile(
    r"(?:not responding|node unexpectedly rebooted|kill task failed|prolog|epilog"
    r"|batch job complete|duplicate jobid|slurmd|gres/|reboot|resumetimeout"
    r"|low (?:realmemory|tmpdisk|socket|cpu|core)|invalid .*registration|job credential)",
    re.IGNORECASE,
)
# a node whose job is ending will soon be idle; nodes at work are no fault, because a sweep can be
# queued over night
_USABLE = frozenset({"idle", "completing", "allocated", "mixed"})
_SILENT = "*"  # after a state: the node does not respond
_MARKS = "*~#%$@^!+-"  # all marks: silent, powering up or down, rebooting, planned


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node as sinfo shows it."""

    name: str
    state: str  # as sinfo writes it, e.g. "idle", "drained", "allocated"
    marks: str  # characters after the state: "*" for no response; others: see `_MARKS`
    resources: str  # as a text that is only compared
    reason: str  # why it is drained or down; "none" if sinfo gives no reason

    @property
    def is_silent(self) -> bool:
        """Whether the node is usable except that it does not respond."""
        return self.marks == _SILENT and self.state in _USABLE

    @property
    def was_taken_out(self) -> bool:
        """Whether a person took the node out of service."""
        is_out = self.state not in _USABLE and self.reason != "none"
        return is_out and not _REASON_BY_SLURM.match(self.reason)


def parse_sinfo(text: str) -> dict[str, Node]:
    """Parse the output of `_SINFO`, in which a node may have a line for each partition."""
    nodes: dict[str, Node] = {}
    for line in text.splitlines():
        values = line.split(SEPARATOR)
        if len(values) != len(_FIELDS):
            continue
        name, state, cpus, memory_mb, gres, reason = values
        word = state.rstrip(_MARKS)
        nodes[name] = Node(
            name=name,
            state=word,
            marks=state[len(word) :],
            resources=f"{cpus} CPUs, {memory_mb} MB of memory, generic resources {gres}",
            reason=reason,
        )
    return nodes


def node_faults(names: Sequence[str], nodes: Mapping[str, Node]) -> tuple[_Fault, ...]:
    """Return the faults of the named nodes, as `OnSlurm.node_faults` does, from parsed output."""
    faults: list[_Fault] = []
    kinds = Counter(nodes[name].resources for name in names if name in nodes)
    for name in names:
        if (node := nodes.get(name)) is None:
            faults.append((name, f"{name} does not exist in this cluster"))
            continue
        if node.marks or node.state not in _USABLE:
            why = "" if node.reason == "none" else f": {node.reason}"
            silent = ", it does not respond" if node.marks.endswith(_SILENT) else ""
            shown = f"{node.state}{node.marks}{silent}"
            faults.append((name, f"{name} is {shown}, expected idle{why}"))
        usual, _ = kinds.most_common(1)[0]
        if node.resources != usual:
            faults.append((name, f"{name} has {node.resources}; most of the nodes have {usual}"))
    return tuple(faults)


class OnSlurm(Executor):
    """The part of an `Executor` that deals with the nodes of a cluster.

    It is the same whether trials are separate jobs or steps of an allocation.

    Args:
        run, sleep: the outside world, for tests.
        round_s: see `Poller`.
    """

    names_nodes = True
    scheduler = "Slurm"
    max_in_flight = 0  # Slurm orders trials that share nodes

    def __init__(
        self,
        *,
        run: Run = run_command,
        sleep: Callable[[float], None] = time.sleep,
        round_s: float = ROUND_S,
    ) -> None:
        self._run = run
        self._sleep = sleep
        self._poller = Poller(run=run, round_s=round_s)

    @property
    def _allocation_id(self) -> str:
        """The id of the allocation around this session; "" if each trial is a separate job."""
        return ""

    def node_faults(self, nodelist: Sequence[str]) -> tuple[str, ...]:
        """Return what is wrong with the nodes, one sentence for each fault; () if nothing is.

        A node that does not respond is asked again for 10 s, because it may just have been resumed.
        A node at work is no fault, because trials can wait for it in Slurm's queue.
        """
        _, faults = self._ask_sinfo(nodelist)
        return tuple(text for _, text in faults)

    def _ask_sinfo(self, names: Sequence[str]) -> tuple[dict[str, Node], tuple[_Fault, ...]]:
        """Return all nodes that sinfo names, and the faults of the nodes in `names`."""
        waits_s = iter(_SILENT_WAITS_S)
        while True:
            answer = self._run(_SINFO)
            if answer.code:
                return {}, (("", f"sinfo does not answer: {answer.error}"),)
            nodes = parse_sinfo(answer.out)
            is_silent = any(nodes[name].is_silent for name in names if name in nodes)
            wait_s = next(waits_s, None) if is_silent else None
            if wait_s is None:
                return nodes, node_faults(names, nodes)
            self._sleep(wait_s)

    def resume(self, names: Sequence[str]) -> Resumed:
        """Make the nodes usable again by `scontrol update ... State=RESUME`; return the result.

        It tries twice at most, and only if Slurm itself took the nodes out of service: if a person
        took one out, no node is resumed. A node that runs a job is fit. A silent node is left to
        Slurm, because RESUME does not help it, for example after a restart of the controller.
        """
        nodes, faults = self._ask_sinfo(names)
        known = [nodes[name] for name in names if name in nodes]
        if taken_out := [node for node in known if node.was_taken_out]:
            return Resumed(
                faults=tuple(
                    f"{node.name} is {node.state}: {node.reason!r}. A person took it out of "
                    "service; resume it yourself, then run again"
                    for node in taken_out
                ),
                unfit=tuple(node.name for node in taken_out),
            )
        refusals: dict[str, str] = {}  # node -> why its last RESUME was refused, "" if it was not
        for wait_s in (*_RESUME_WAITS_S, None):
            # Slurm itself waits for nodes that are only silent, unless they were just resumed
            unfit = [
                (name, text)
                for name, text in faults
                if name in refusals or name not in nodes or not nodes[name].is_silent
            ]
            texts = [text for _, text in unfit]
            to_resume = [name for name in names if name in dict(unfit)]
            if wait_s is None or not to_resume:
                break
            _log.warning("nodes are resumed: %s", "; ".join(texts))
            for name in to_resume:
                answer = self._run(["scontrol", "update", f"NodeName={name}", "State=RESUME"])
                refusals[name] = answer.error
            self._sleep(wait_s)
            nodes, faults = self._ask_sinfo(names)
        refused = (f"{name}: {refusals[name]}" for name in to_resume if refusals.get(name))
        return Resumed(nodes=tuple(refusals), faults=(*texts, *refused), unfit=tuple(to_resume))

    def busy_note(self, nodelist: Sequence[str]) -> str:
        """Return a note on other users' jobs on the nodes; "" if no trial has to wait for one."""
        if self._allocation_id:
            return ""  # nobody else's job runs on its nodes
        columns = SEPARATOR.join(("%i", "%u", "%j", "%N"))
        which = ["-t", "running,completing", "-w", ",".join(nodelist)]
        answer = self._run(["squeue", "-h", *which, "-o", columns])
        others = []
        for line in [] if answer.code else answer.out.splitlines():
            if line.count(SEPARATOR) == columns.count(SEPARATOR):
                job_id, user, name, nodes = line.split(SEPARATOR)
                if user != getpass.getuser() or not name.startswith(JOB_NAME_PREFIX):
                    others.append(f"{job_id} ({name} of {user} on {nodes})")
        if not others:
            return ""
        return f"trials wait in the queue behind other jobs: {', '.join(others)}"

    def probe(
        self,
        paths: Sequence[str],
        *,
        nodelist: Sequence[str],
        options: Mapping[str, str],
    ) -> ProbeResult:
        """Ask the nodes by one short srun, which is a step if there is an allocation around us."""
        sbatch, _ = site_options(options)
        where = [
            f"--{key}" if value is True else f"--{key}={value}" for key, value in sbatch.items()
        ]
        if self._allocation_id:
            where = [f"--jobid={self._allocation_id}"]
        answer = self._run(
            ["srun", f"--nodelist={compress(nodelist)}", f"--nodes={len(nodelist)}",
             "--ntasks-per-node=1", f"--immediate={_SRUN_WAIT_S}", "--time=1", "--export=NONE",
             "--chdir=/", f"--job-name={JOB_NAME_PREFIX}preflight", "--quiet", *where,
             "/bin/sh", "-c", _SCRIPT, "sh", *paths]
        )  # fmt: skip
        lines = [line.split(SEPARATOR) for line in answer.out.splitlines()]
        answered = {line[0] for line in lines if len(line) == 1}
        if answer.code or set(nodelist) - answered:
            silent = ", ".join(sorted(set(nodelist) - answered))
            return ProbeResult(unseen={}, why_not=answer.error or f"no answer from {silent}")
        unseen: dict[str, tuple[str, ...]] = {}
        # sorted, because the nodes answer in any order
        for node, path in sorted(line for line in lines if len(line) == 2):  # noqa: PLR2004
            unseen[path] = (*unseen.get(path, ()), node)
        return ProbeResult(unseen=unseen)
