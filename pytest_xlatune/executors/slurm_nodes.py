"""Check the pinned nodes against `sinfo`: they exist, are idle and equal; bring them back."""

from __future__ import annotations

import difflib
import getpass
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_xlatune.executors import OWN_JOBS, Resumed
from pytest_xlatune.executors.slurm_commands import Run, run_command
from pytest_xlatune.executors.slurm_text import SEPARATOR

# how long a resumed node may take to answer, before the second try and before the verdict
_RESUME_WAITS_S = (2.0, 10.0)
# how long a node may be silent that was just resumed, or whose daemon missed a ping
_SILENT_WAITS_S = (2.0, 3.0, 5.0)
_FIELDS = ("%N", "%T", "%R", "%c", "%m", "%G", "%E")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node as sinfo tells it.

    Attributes:
        name: the node's name.
        state: sinfo's word, e.g. "idle", "drained*", "allocated".
        partitions: that it belongs to.
        cpus, memory_mb, gres: what it has; the words are compared, never computed with.
        reason: why it is drained or down, "" otherwise.
    """

    name: str
    state: str
    partitions: frozenset[str]
    cpus: str
    memory_mb: str
    gres: str
    reason: str = ""


def check_nodes(
    names: Sequence[str],
    *,
    partition: str = "",
    idle: bool = True,
    run: Run = run_command,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[str, ...]:
    """Return everything that is wrong with the nodes, one message each; () when nothing is.

    A node that does not respond is asked again for 10 s, for one that was just resumed is like it.
    A node on which trials of ours run, of whichever sweep, is as good as idle: Slurm queues.

    Args:
        names: expanded.
        partition: that each must belong to; "" is any.
        idle: whether a node that is running something is wrong (it is not for a resumed campaign
            whose own jobs run there).
        run: runs a command of Slurm's.
        sleep: waits so many seconds.
    """
    waits_s = iter(_SILENT_WAITS_S)
    while True:
        answer = run(["sinfo", "-h", "-N", "-o", SEPARATOR.join(_FIELDS)])
        if answer.code:
            return (f"sinfo does not answer: {answer.error}",)
        nodes = parse_sinfo(answer.out)
        known = [nodes[name] for name in names if name in nodes]
        jobs = _jobs_on([node.name for node in known if _is_busy(node)], run) if idle else None
        # a job that sinfo saw may be over when squeue is asked
        is_unsure = any(map(_is_silent, known)) or jobs == ()
        wait_s = next(waits_s, None) if is_unsure else None
        if wait_s is None:
            is_ours = bool(jobs) and all(map(_is_ours, jobs or ()))
            return node_faults(names, nodes, partition=partition, idle=idle and not is_ours)
        sleep(wait_s)


def resume_nodes(
    names: Sequence[str], *, run: Run = run_command, sleep: Callable[[float], None] = time.sleep
) -> Resumed:
    """Return what it took to make the nodes usable again: `scontrol update ... State=RESUME`.

    Tried twice at most for nodes that are drained, down or failed; a node that runs a job is fit.
    A node that does not answer is no matter of RESUME alone: it stays a fault.
    """
    resumed: list[str] = []
    refused = ""
    for wait_s in _RESUME_WAITS_S:
        faults = check_nodes(names, idle=False, run=run, sleep=sleep)
        unfit = [name for name in names if any(fault.split()[0] == name for fault in faults)]
        if not unfit:
            break
        for name in unfit:
            answer = run(["scontrol", "update", f"NodeName={name}", "State=RESUME"])
            refused = f"{name}: {answer.error}" if answer.code else refused
        resumed += [name for name in unfit if name not in resumed]
        sleep(wait_s)
    faults = check_nodes(names, idle=False, run=run, sleep=sleep)
    if faults and refused:
        faults = (*faults, refused)
    return Resumed(nodes=tuple(resumed), faults=faults)


def parse_sinfo(text: str) -> dict[str, Node]:
    """Read `sinfo -h -N` with our fields; a node has one line per partition."""
    nodes: dict[str, Node] = {}
    for line in text.splitlines():
        values = line.split(SEPARATOR)
        if len(values) != len(_FIELDS):
            continue
        name, state, partition, cpus, memory_mb, gres, reason = values
        before = nodes[name].partitions if name in nodes else frozenset()
        nodes[name] = Node(
            name=name,
            state=state,
            partitions=before | {partition},
            cpus=cpus,
            memory_mb=memory_mb,
            gres=gres,
            reason="" if reason == "none" else reason,
        )
    return nodes


def node_faults(
    names: Sequence[str], nodes: Mapping[str, Node], *, partition: str = "", idle: bool = True
) -> tuple[str, ...]:
    """Judge nodes; see `check_nodes`. Pure."""
    known = [nodes[name] for name in names if name in nodes]
    return (
        *(_missing(name, nodes) for name in names if name not in nodes),
        *(
            f"{node.name} is not in partition {partition} (it is in "
            f"{', '.join(sorted(node.partitions))})"
            for node in known
            if partition and partition not in node.partitions
        ),
        *(fault for node in known for fault in _state_faults(node, idle=idle)),
        *_unequal(known, "CPUs", [node.cpus for node in known]),
        *_unequal(known, "MB of memory", [node.memory_mb for node in known]),
        *_unequal(known, "generic resources", [node.gres for node in known]),
    )


# a node on which a job is just ending is idle in a moment, and a trial that is queued waits for it
_IDLE = frozenset({"idle", "completing"})
_USABLE = _IDLE | {"allocated", "mixed"}
_SILENT = "*"  # after a state: the node does not respond
_OTHERWISE = "~#%$@^!+-"  # after a state: powering up or down, rebooting, planned


def _is_busy(node: Node) -> bool:
    return node.state in _USABLE - _IDLE


def _is_ours(job: tuple[str, str]) -> bool:
    user, name = job
    return user == getpass.getuser() and name.startswith(OWN_JOBS)


def _jobs_on(busy: Sequence[str], run: Run) -> tuple[tuple[str, str], ...] | None:
    """Return user and name of the jobs on these nodes; None where there is nothing to be said."""
    if not busy:
        return None
    form = SEPARATOR.join(("%u", "%j"))
    answer = run(["squeue", "-h", "-t", "running,completing", "-w", ",".join(busy), "-o", form])
    if answer.code:
        return None
    lines = (line.partition(SEPARATOR) for line in answer.out.splitlines())
    return tuple((user, name) for user, _, name in lines)


def _is_silent(node: Node) -> bool:
    return node.state.endswith(_SILENT) and node.state.removesuffix(_SILENT) in _USABLE


def _state_faults(node: Node, *, idle: bool) -> Iterable[str]:
    word = node.state.rstrip(_SILENT + _OTHERWISE)
    if word == node.state and word in (_IDLE if idle else _USABLE):
        return
    why = f": {node.reason}" if node.reason else ""
    star = ", it does not respond" if node.state.endswith(_SILENT) else ""
    yield f"{node.name} is {node.state}{star}, expected idle{why}"


def _missing(name: str, nodes: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(nodes), n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{name} does not exist in this cluster{hint}"


def _unequal(nodes: Sequence[Node], what: str, values: Sequence[str]) -> Iterable[str]:
    if len(set(values)) <= 1:
        return
    usual = Counter(values).most_common(1)[0][0]
    for node, value in zip(nodes, values, strict=True):
        if value != usual:
            yield f"{node.name} has {value} {what}, most of the nodes have {usual}"
