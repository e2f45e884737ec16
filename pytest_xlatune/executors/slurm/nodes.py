"""Check the pinned nodes against `sinfo`: they exist, are idle and equal; bring them back."""

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

from pytest_xlatune.executors import OWN_JOBS, Resumed
from pytest_xlatune.executors.slurm._commands import SEPARATOR, Run, run_command
from pytest_xlatune.model.errors import ConfigError, SubmissionError
from pytest_xlatune.model.text import counted

_log = logging.getLogger("pytest_xlatune.executors")
# how long a resumed node may take to answer, before the second try and before the verdict
_RESUME_WAITS_S = (2.0, 10.0)
# after a restart of the controller all nodes are silent for seconds, and none is at fault
# how long a node may be silent that was just resumed, or whose daemon missed a ping
_SILENT_WAITS_S = (2.0, 3.0, 5.0)
_FIELDS = ("%N", "%T", "%R", "%c", "%m", "%G", "%E")
_SINFO = ("sinfo", "-h", "-N", "-o", SEPARATOR.join(_FIELDS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node as sinfo tells it; its resources are words, compared and never computed with."""

    name: str
    state: str  # sinfo's word, e.g. "idle", "drained", "allocated"
    marks: str  # behind it: "*" does not respond; others power, reboot, plan it
    partitions: tuple[str, ...]  # sorted
    cpus: str
    memory_mb: str
    gres: str
    reason: str = ""  # why it is drained or down

    @property
    def is_silent(self) -> bool:
        """Whether it would be usable if it answered."""
        return self.marks == _SILENT and self.state in _USABLE


_Fault = tuple[str, str]  # a node ("" where sinfo itself does not answer), and its fault


def check_nodes(
    names: Sequence[str],
    *,
    partition: str = "",
    run: Run = run_command,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[str, ...]:
    """Return everything that is wrong with the nodes, one message each; () when nothing is.

    A node that does not respond is asked again for 10 s: one that was just resumed is like it.
    A node that runs something is as good as idle: Slurm queues. Each must belong to `partition`, if
    one is named.
    """
    _, faults = _look(names, run, sleep, partition=partition)
    return tuple(text for _, text in faults)


def _look(
    names: Sequence[str],
    run: Run,
    sleep: Callable[[float], None],
    *,
    partition: str = "",
) -> tuple[dict[str, Node], tuple[_Fault, ...]]:
    """Return all nodes that sinfo names, and what is wrong with these."""
    waits_s = iter(_SILENT_WAITS_S)
    while True:
        answer = run(_SINFO)
        if answer.code:
            return {}, (("", f"sinfo does not answer: {answer.error}"),)
        nodes = parse_sinfo(answer.out)
        is_silent = any(nodes[name].is_silent for name in names if name in nodes)
        wait_s = next(waits_s, None) if is_silent else None
        if wait_s is None:
            return nodes, node_faults(names, nodes, partition=partition)
        sleep(wait_s)


def pick_nodes(count: int, partition: str, *, run: Run = run_command) -> tuple[str, ...]:
    """Return names of so many usable nodes of a partition, in Slurm's order.

    They are equal in CPUs, memory and generic resources: of the kind that most usable nodes are of.
    Idle ones come before those at work. Nodes that are down, drained, silent or planned are left
    out.

    Raises:
        ConfigError: the partition has fewer; or it does not exist.
        SubmissionError: sinfo does not answer.
    """
    answer = run(_SINFO)
    if answer.code:
        raise SubmissionError(f"sinfo does not answer: {answer.error}")
    nodes = parse_sinfo(answer.out).values()
    known = {name for node in nodes for name in node.partitions}
    if partition not in known:
        raise ConfigError.unknown("partition", partition, valid=known, where="this cluster")
    own = [each for each in nodes if partition in each.partitions]
    usable = [each for each in own if not each.marks and each.state in _USABLE]
    kinds = Counter((each.cpus, each.memory_mb, each.gres) for each in usable)
    kind = kinds.most_common(1)[0][0] if kinds else ()
    equal = [each for each in usable if (each.cpus, each.memory_mb, each.gres) == kind]
    if len(equal) < count:
        raise ConfigError(
            f"partition {partition} has {counted(len(own), 'node')}, {len(usable)} of them usable, "
            f"and at most {len(equal)} of those are equal; {count} are needed"
        )
    first = sorted(equal, key=lambda each: each.state not in _IDLE)[:count]
    return tuple(each.name for each in equal if each in first)


def resume_nodes(
    names: Sequence[str], *, run: Run = run_command, sleep: Callable[[float], None] = time.sleep
) -> Resumed:
    """Return what it took to make the nodes usable again: `scontrol update ... State=RESUME`.

    Tried twice at most for nodes that Slurm itself took out; where a person did, with whatever
    reason, that stands and nothing is resumed. A node that runs a job is fit; one that is silent,
    as after a restart of the controller, is one that Slurm waits for: RESUME does not help it.
    """
    resumed: list[str] = []
    refused = ""
    nodes, faults = _look(names, run, sleep)
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
            answer = run(["scontrol", "update", f"NodeName={name}", "State=RESUME"])
            refused = f"{name}: {answer.error}" if answer.code else refused
        resumed += [name for name in unfit if name not in resumed]
        sleep(wait_s)
        nodes, faults = _look(names, run, sleep)
    left = _unfit(faults, nodes, resumed)
    return Resumed(
        nodes=tuple(resumed),
        tried=tuple(resumed) if left else (),
        faults=(*(text for _, text in left), *([refused] if left and refused else [])),
        unfit=tuple(name for name in names if name in dict(left)),
    )


def _unfit(
    faults: Iterable[_Fault], nodes: Mapping[str, Node], resumed: Sequence[str]
) -> list[_Fault]:
    """Return the faults, but of nodes that only do not answer yet: Slurm waits for them."""
    return [
        (name, text)
        for name, text in faults
        if name in resumed or name not in nodes or not nodes[name].is_silent
    ]


# RESUME once put a node back to work whose drain said "ADMIN: hardware swap"
# what Slurm itself writes as the reason of a node that it takes out, as it begins
_SLURMS_REASON = re.compile(
    r"(?:not responding|node unexpectedly rebooted|kill task failed|prolog|epilog"
    r"|batch job complete|duplicate jobid|slurmd|gres/|reboot|resumetimeout"
    r"|low (?:realmemory|tmpdisk|socket|cpu|core)|invalid .*registration|job credential)",
    re.IGNORECASE,
)
_STANDS = "is {}: {!r}. A person said so, and it stands; resume the node, then run again"


def _is_persons(node: Node) -> bool:
    """Whether a person took a node out."""
    is_out = node.state not in _USABLE and bool(node.reason)
    return is_out and not _SLURMS_REASON.match(node.reason)


def parse_sinfo(text: str) -> dict[str, Node]:
    """Read `sinfo -h -N` with our fields; a node has one line per partition."""
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
    """Judge nodes; see `check_nodes`. Pure."""
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


# a node on which a job is just ending is idle in a moment, and a trial that is queued waits for it
_IDLE = frozenset({"idle", "completing"})
# nodes at work were a fault once, so that no sweep could be queued over night
_USABLE = _IDLE | {"allocated", "mixed"}
_SILENT = "*"  # after a state: the node does not respond
_SHOWN = 3  # jobs of others that a note names
_MOST_CLOCK = 11  # digits of a time in seconds
_MARKS = "*~#%$@^!+-"  # besides: powering up or down, rebooting, planned


def busy_note(names: Sequence[str], *, run: Run = run_command) -> str:
    """Say which jobs of others run on the nodes, "" where none does: trials queue behind them."""
    form = ("%i", "%u", "%j", "%N", "%e")
    which = ["-t", "running,completing", "-w", ",".join(names)]
    answer = run(["squeue", "-h", *which, "-o", SEPARATOR.join(form)])
    rows = [line.split(SEPARATOR) for line in answer.out.splitlines()] if not answer.code else []
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


def _fault(node: Node, said: str) -> _Fault:
    return node.name, f"{node.name} {said}"
