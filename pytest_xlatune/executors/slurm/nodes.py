"""The nodes of a cluster: whether they exist, are usable and equal, and see a trial's files.

It asks `sinfo`, `squeue`, and by one short srun the nodes themselves; `scontrol` resumes them.
"""

from __future__ import annotations

import difflib
import getpass
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pytest_xlatune.executors import OWN_JOBS, Executor, ProbeResult, Resumed
from pytest_xlatune.executors.slurm._commands import SEPARATOR, Run, run_command
from pytest_xlatune.executors.slurm._script import site_options
from pytest_xlatune.model.errors import ConfigError, SubmissionError
from pytest_xlatune.model.hosts import compress
from pytest_xlatune.model.text import counted

_log = logging.getLogger("pytest_xlatune.executors")
# seconds that a resumed node gets to answer, before the second try and before the verdict
_RESUME_WAITS_S = (2.0, 10.0)
# Seconds that a silent node gets to answer: after it was resumed or missed a ping, and after a
# restart of the controller, when all nodes are silent for seconds without a fault.
_SILENT_WAITS_S = (2.0, 3.0, 5.0)
_FIELDS = ("%N", "%T", "%R", "%c", "%m", "%G", "%E")
_SINFO = ("sinfo", "-h", "-N", "-o", SEPARATOR.join(_FIELDS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node as sinfo shows it; its resources are texts that are only compared."""

    name: str
    state: str  # state in the words of sinfo, e.g. "idle", "drained", "allocated"
    marks: str  # marks after the state: "*" for no response; others for power, reboot, plans
    partitions: tuple[str, ...]  # sorted
    cpus: str
    memory_mb: str
    gres: str
    reason: str = ""  # why it is drained or down

    @property
    def is_silent(self) -> bool:
        """Whether it would be usable if it answered."""
        return self.marks == _SILENT and self.state in _USABLE


_Fault = tuple[str, str]  # a node and its fault; the node is "" if sinfo itself does not answer


def _unfit(
    faults: Iterable[_Fault], nodes: Mapping[str, Node], resumed: Sequence[str]
) -> list[_Fault]:
    """Return the faults without those of silent nodes, for which Slurm waits."""
    return [
        (name, text)
        for name, text in faults
        if name in resumed or name not in nodes or not nodes[name].is_silent
    ]


# Reasons that Slurm itself gives for taking out a node. A node with another reason is never
# resumed: RESUME once put a node back to work whose drain said "ADMIN: hardware swap".
_SLURMS_REASON = re.compile(
    r"(?:not responding|node unexpectedly rebooted|kill task failed|prolog|epilog"
    r"|batch job complete|duplicate jobid|slurmd|gres/|reboot|resumetimeout"
    r"|low (?:realmemory|tmpdisk|socket|cpu|core)|invalid .*registration|job credential)",
    re.IGNORECASE,
)
_STANDS = "is {}: {!r}. A person said so, and it stands; resume the node, then run again"


def _is_persons(node: Node) -> bool:
    """Return whether a person took a node out of service."""
    is_out = node.state not in _USABLE and bool(node.reason)
    return is_out and not _SLURMS_REASON.match(node.reason)


def parse_sinfo(text: str) -> dict[str, Node]:
    """Parse `sinfo -h -N` with our fields; a node has one line for each partition."""
    nodes: dict[str, Node] = {}
    for line in text.splitlines():
        values = line.split(SEPARATOR)
        if len(values) != len(_FIELDS):
            continue
        name, state, partition, cpus, memory_mb, gres, reason = values
        word = state.rstrip(_MARKS)
        before = nodes[name].partitions if name in nodes else ()
        nodes[name] = Node(
            name=name,
            state=word,
            marks=state[len(word) :],
            partitions=tuple(sorted({*before, partition})),
            cpus=cpus,
            memory_mb=memory_mb,
            gres=gres,
            reason="" if reason == "none" else reason,
        )
    return nodes


def node_faults(
    names: Sequence[str], nodes: Mapping[str, Node], *, partition: str = ""
) -> tuple[_Fault, ...]:
    """Return the faults of nodes; see `OnSlurm.node_faults`. Pure."""
    known = [nodes[name] for name in names if name in nodes]
    return (
        *(_missing(name, nodes) for name in names if name not in nodes),
        *(
            _fault(node, f"is not in partition {partition} (it is in {', '.join(node.partitions)})")
            for node in known
            if partition and partition not in node.partitions
        ),
        *(fault for node in known for fault in _state_faults(node)),
        *_unequal(known, "CPUs", [node.cpus for node in known]),
        *_unequal(known, "MB of memory", [node.memory_mb for node in known]),
        *_unequal(known, "generic resources", [node.gres for node in known]),
    )


# a node whose job is just ending will be idle in a moment, and a queued trial waits for it
_IDLE = frozenset({"idle", "completing"})
# nodes at work are no fault, so that a sweep can be queued over night
_USABLE = _IDLE | {"allocated", "mixed"}
_SILENT = "*"  # after a state: the node does not respond
_SHOWN = 3  # a note names at most so many jobs of others
_MOST_CLOCK = 11  # most digits of a time in seconds
_MARKS = "*~#%$@^!+-"  # further marks: powering up or down, rebooting, planned


def _clock(seconds: str) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%d %H:%M UTC")


def _state_faults(node: Node) -> Iterable[_Fault]:
    if not node.marks and node.state in _USABLE:
        return
    why = f": {node.reason}" if node.reason else ""
    star = ", it does not respond" if node.marks.endswith(_SILENT) else ""
    yield _fault(node, f"is {node.state}{node.marks}{star}, expected idle{why}")


def _missing(name: str, nodes: Iterable[str]) -> _Fault:
    near = difflib.get_close_matches(name, list(nodes), n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return name, f"{name} does not exist in this cluster{hint}"


def _unequal(nodes: Sequence[Node], what: str, values: Sequence[str]) -> Iterable[_Fault]:
    if len(set(values)) <= 1:
        return
    usual = Counter(values).most_common(1)[0][0]
    for node, value in zip(nodes, values, strict=True):
        if value != usual:
            yield _fault(node, f"has {value} {what}, most of the nodes have {usual}")


def _fault(node: Node, problem: str) -> _Fault:
    return node.name, f"{node.name} {problem}"


_PATIENCE_S = 15  # seconds that srun may wait for the nodes, which were usable a moment ago
# Arguments: the paths, an empty word, then commands. A failed check prints its number.
_SCRIPT = f"""\
while [ -n "$1" ]; do [ -e "$1" ] || echo "$SLURMD_NODENAME{SEPARATOR}$1"; shift; done
number=0
while shift; [ $# -gt 0 ]; do
  sh -c "$1" </dev/null >/dev/null 2>&1 || echo "$SLURMD_NODENAME{SEPARATOR}$number{SEPARATOR}"
  number=$((number + 1))
done
echo "$SLURMD_NODENAME"
"""


class OnSlurm(Executor):
    """What separate jobs and steps of an allocation have in common: the cluster.

    Args:
        run, sleep: the outside world, for tests.
    """

    names_nodes = True
    scheduler = "Slurm"
    max_in_flight = 0  # Slurm orders trials that share nodes

    def __init__(
        self, *, run: Run = run_command, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._run = run
        self._sleep = sleep

    @property
    def _allocation_id(self) -> str:
        """The id of the allocation around this session; "" if trials are jobs of their own."""
        return ""

    def node_faults(self, nodelist: Sequence[str], *, partition: str = "") -> tuple[str, ...]:
        """Return what is wrong with the nodes, one message for each fault; () if nothing is.

        A node that does not respond is asked again for 10 s, because it may just have been resumed.
        A node at work is as good as an idle one, because Slurm queues. All nodes must belong to
        `partition` if one is named.
        """
        _, faults = self._ask_sinfo(nodelist, partition=partition)
        return tuple(text for _, text in faults)

    def _ask_sinfo(
        self, names: Sequence[str], *, partition: str = ""
    ) -> tuple[dict[str, Node], tuple[_Fault, ...]]:
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
                return nodes, node_faults(names, nodes, partition=partition)
            self._sleep(wait_s)

    def pick_nodes(self, count: int, partition: str) -> tuple[str, ...]:
        """Return the names of `count` usable nodes of a partition, in Slurm's order.

        They are equal in CPUs, memory and generic resources: of the most frequent kind. Idle nodes
        come before nodes at work. Nodes that are down, drained, silent or planned are left out.

        Raises:
            ConfigError: the partition has fewer, or does not exist.
            SubmissionError: sinfo does not answer.
        """
        answer = self._run(_SINFO)
        if answer.code:
            raise SubmissionError(f"sinfo does not answer: {answer.error}")
        nodes = parse_sinfo(answer.out).values()
        known = {name for node in nodes for name in node.partitions}
        if partition not in known:
            raise ConfigError.unknown("partition", partition, valid=known, where="this cluster")
        members = [node for node in nodes if partition in node.partitions]
        usable = [node for node in members if not node.marks and node.state in _USABLE]
        kinds = Counter((node.cpus, node.memory_mb, node.gres) for node in usable)
        kind = kinds.most_common(1)[0][0] if kinds else ()
        equal = [node for node in usable if (node.cpus, node.memory_mb, node.gres) == kind]
        if len(equal) < count:
            raise ConfigError(
                f"partition {partition} has {counted(len(members), 'node')}, {len(usable)} of them "
                f"usable, and at most {len(equal)} of those are equal; {count} are needed"
            )
        first = sorted(equal, key=lambda node: node.state not in _IDLE)[:count]
        return tuple(node.name for node in equal if node in first)

    def resume(self, names: Sequence[str]) -> Resumed:
        """Make the nodes usable again by `scontrol update ... State=RESUME`; return the result.

        It tries twice at most, for nodes that Slurm itself took out. If a person took one out,
        nothing is resumed. A node that runs a job is fit. RESUME does not help a silent node, for
        which Slurm waits, e.g. after a restart of the controller.
        """
        resumed: list[str] = []
        refused = ""
        nodes, faults = self._ask_sinfo(names)
        if stands := [nodes[name] for name in names if name in nodes and _is_persons(nodes[name])]:
            return Resumed(
                faults=tuple(
                    _fault(node, _STANDS.format(node.state, node.reason))[1] for node in stands
                ),
                unfit=tuple(node.name for node in stands),
            )
        for wait_s in _RESUME_WAITS_S:
            bad = _unfit(faults, nodes, resumed)
            unfit = [name for name in names if name in dict(bad)]
            if not unfit:
                break
            _log.warning("nodes are resumed: %s", "; ".join(text for _, text in bad))
            for name in unfit:
                answer = self._run(["scontrol", "update", f"NodeName={name}", "State=RESUME"])
                refused = f"{name}: {answer.error}" if answer.code else refused
            resumed += [name for name in unfit if name not in resumed]
            self._sleep(wait_s)
            nodes, faults = self._ask_sinfo(names)
        left = _unfit(faults, nodes, resumed)
        return Resumed(
            nodes=tuple(resumed),
            tried=tuple(resumed) if left else (),
            faults=(*(text for _, text in left), *([refused] if left and refused else [])),
            unfit=tuple(name for name in names if name in dict(left)),
        )

    def busy_note(self, nodelist: Sequence[str]) -> str:
        """Return a note on other users' jobs on the nodes; "" if no trial has to wait for one."""
        form = ("%i", "%u", "%j", "%N", "%e")
        which = ["-t", "running,completing", "-w", ",".join(nodelist)]
        answer = self._run(["squeue", "-h", *which, "-o", SEPARATOR.join(form)])
        text = "" if answer.code else answer.out
        rows = [line.split(SEPARATOR) for line in text.splitlines()]
        me = getpass.getuser()
        others = [
            f"{job_id} ({name} of {user} on {nodes}"
            + (
                f", at most until {_clock(end)})"
                if end.isdecimal() and len(end) <= _MOST_CLOCK
                else ")"
            )
            for job_id, user, name, nodes, end in (row for row in rows if len(row) == len(form))
            if not (user == me and name.startswith(OWN_JOBS))
        ]
        if not others:
            return ""
        more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        return f"trials wait in the queue behind other jobs: {', '.join(others[:_SHOWN])}{more}"

    def look(
        self,
        paths: Sequence[str],
        *,
        checks: Sequence[tuple[str, str]] = (),
        nodelist: Sequence[str],
        options: Mapping[str, str],
    ) -> ProbeResult:
        """Ask the nodes by one short srun; inside an allocation it is a step of that."""
        sbatch, _ = site_options(options)
        site = [
            f"--{key}" if value is True else f"--{key}={value}" for key, value in sbatch.items()
        ]
        if self._allocation_id:
            site = [f"--jobid={self._allocation_id}"]
        answer = self._run(
            ["srun", f"--nodelist={compress(nodelist)}", f"--nodes={len(nodelist)}",
             "--ntasks-per-node=1", f"--immediate={_PATIENCE_S}", "--time=1", "--export=NONE",
             "--chdir=/", f"--job-name={OWN_JOBS}preflight", "--quiet", *site,
             "/bin/sh", "-c", _SCRIPT, "sh", *paths, "", *(command for command, _ in checks)]
        )  # fmt: skip
        lines = [line.split(SEPARATOR) for line in answer.out.splitlines()]
        heard = {line[0] for line in lines if len(line) == 1}
        if answer.code or set(nodelist) - heard:
            silent = ", ".join(sorted(set(nodelist) - heard))
            return ProbeResult(unseen={}, why_not=answer.error or f"no answer from {silent}")
        unseen: dict[str, tuple[str, ...]] = {}
        # the nodes answer in any order
        for node, path in sorted(line for line in lines if len(line) == 2):  # noqa: PLR2004
            unseen[path] = (*unseen.get(path, ()), node)
        unfit: dict[str, tuple[str, ...]] = {}
        for node, number, _ in sorted(line for line in lines if len(line) == 3):  # noqa: PLR2004
            wrong = checks[int(number)][1]
            unfit[wrong] = (*unfit.get(wrong, ()), node)
        return ProbeResult(unseen=unseen, unfit=unfit)
