"""Find which ranks of a hanging job are behind, and what they do. Pure.

`executors.look_at_hang` writes one `HangLook` for each rank on its node. In a job of collectives,
the waiting ranks are innocent: all wait in one place for a rank that is elsewhere. So three rules
name a rank: it is gone (it has ended, is stopped or was not heard of), it is behind (its last step
is two or more lower), or it is in another place than the others. If all are alike, no rank is
named.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import PurePath

import msgspec

from pytest_xlatune.model.message import Message, at_most, say
from pytest_xlatune.model.record import Record

_MOST_RANKS = 1 << 16
_STEPS_APART = 2  # the line of the last step may not have been printed yet
_DEVICES = ("/dev/kfd", "/dev/nvidia", "/dev/dri", "/dev/infiniband", "/dev/accel", "/dev/vfio")
# files of frames that are not the user's:  /usr/lib/python3.11/threading.py    <frozen runpy>
_OF_OTHERS = re.compile(r"<frozen |.*/(?:site|dist)-packages/|.*/lib/python3\.\d+/")


class SeenProcess(Record, frozen=True, kw_only=True):
    """A process of a trainer, from `/proc` and its interpreter."""

    pid: int
    parent: int
    name: str
    rank: int
    ranks: int | None = None  # number of ranks; None if its launcher does not say
    state: str  # the kernel's letter: R, S, D, T, t, Z
    threads: int
    call: str  # what the main thread's system call does: sleeps, waits, reads; "running" if in none
    channel: str  # where it waits in the kernel
    on: str  # file or pipe of the call, or `a socket`; "" if none
    # Python's stacks, the main thread's first, the innermost frame first: `FILE:LINE NAME`
    stacks: tuple[tuple[str, ...], ...] = ()


class HangLook(Record, frozen=True, kw_only=True):
    """What one payload found about its trainer: `hang.json`, `hang.<rank>.json`."""

    node: str
    rank: int  # the rank of the payload
    at_s: float  # seconds since 1970 by the node's clock
    quiet_s: float  # how long its log had not grown
    processes: tuple[SeenProcess, ...] = ()  # the processes below the payload


class Doing(StrEnum):
    """What the main thread of a rank does, as the template of a reason."""

    GONE = "its program has ended ({on})"
    SILENT = "its node did not answer"
    STOPPED = "stopped by a signal or a debugger{at}"
    DISK = "in an uninterruptible wait of the kernel ({on}){at}"
    READS = "waits for {on}{at}"
    SLEEPS = "sleeps{at}"
    RUNS = "computes on the host{at}"
    WAITS = "waiting{at}"


class RankState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one rank."""

    rank: int
    node: str = ""  # the node; "" if unknown
    doing: Doing = Doing.SILENT
    at: str = ""  # the innermost frame of the user's own code, `train.py:24 load`; "" if unknown
    on: str = ""  # what it reads from, the kernel's wait channel, or how it ended
    step: int | None = None  # step of its last step line; None if there is none

    @property
    def why(self) -> Message:
        """What it does, as a reason."""
        at = say(" in {at}", at=self.at) if self.at else None
        return say(str(self.doing), on=self.on or "unknown", at=at)


class Standstill(msgspec.Struct, frozen=True, kw_only=True):
    """Which ranks of a hanging job are behind."""

    stands: tuple[RankState, ...]  # the states of all ranks, in order of rank
    behind: tuple[int, ...]  # the ranks for which the others wait; () if none stands out
    why: Message  # what they do, or that none stands out
    node: str = ""  # the node of all ranks in `behind`, if no other rank is on it; else ""


def standstill(
    looks: Iterable[HangLook],
    *,
    steps: Mapping[int, int] | None = None,
    ended: Mapping[int, str] | None = None,
    ranks: Iterable[int] = (),
) -> Standstill | None:
    """Return which rank is behind; None if no payload reported.

    Args:
        looks: the report of each payload.
        steps: rank -> its last step in the log.
        ended: rank -> how its program ended, e.g. `exit 3`.
        ranks: all ranks that were started, as far as known.
    """
    seen = tuple(looks)
    if not seen:
        return None
    states = _states(seen, steps or {}, ended or {}, ranks)
    behind = _gone(states)
    if not behind and all(state.step is not None for state in states):
        behind = _steps_behind(states)
    behind = behind or _elsewhere(states)
    if behind:
        return _named(states, behind)
    why = say("no rank of {ranks} stands out", ranks=len(states))
    if len({state.why for state in states}) == 1:
        why = say(
            "no rank stands out; all {ranks}: {doing}. They wait for a device or the network",
            ranks=len(states),
            doing=states[0].why,
        )
    return Standstill(stands=states, behind=(), why=why)


def _gone(states: Sequence[RankState]) -> Sequence[RankState]:
    """Return ranks that have ended, are stopped or were not heard of: the others cannot go on."""
    for doing in (Doing.GONE, Doing.STOPPED, Doing.SILENT):
        gone = [state for state in states if state.doing is doing]
        if gone and len(gone) < len(states):
            return gone
    return ()


def _steps_behind(states: Sequence[RankState]) -> Sequence[RankState]:
    """Return the ranks with the lowest last step, if others came two steps further."""
    steps = [state.step for state in states if state.step is not None]
    if not steps or max(steps) - min(steps) < _STEPS_APART:
        return ()
    return [state for state in states if state.step == min(steps)]


def _elsewhere(states: Sequence[RankState]) -> Sequence[RankState]:
    """Return ranks whose main thread is in a place where those of the others are not."""
    # if more than half read from a socket, they wait for a rank that does not
    peers = [s for s in states if s.doing is Doing.READS and s.on == "a socket"]
    waiting = [state for state in states if state.doing is Doing.WAITS]
    for waits in (peers if 2 * len(peers) > len(states) else [], waiting):
        if waits and len(waits) < len(states):
            return [state for state in states if state not in waits]
    # else those that differ from more than half
    ((most, count),) = Counter((state.doing, state.at) for state in states).most_common(1)
    others = [state for state in states if (state.doing, state.at) != most]
    return others if 2 * count > len(states) else ()


def _states(
    looks: Sequence[HangLook],
    steps: Mapping[int, int],
    ended: Mapping[int, str],
    ranks: Iterable[int],
) -> tuple[RankState, ...]:
    answered = {hang_look.rank: hang_look.node for hang_look in looks}
    silent = {*ranks} - {*answered, *ended}  # their payloads reported nothing
    expected = {*ended, *silent}
    seen: dict[int, list[tuple[HangLook, SeenProcess]]] = {}
    for hang_look in looks:
        for process in hang_look.processes:
            seen.setdefault(process.rank, []).append((hang_look, process))
            if process.ranks is not None and process.ranks <= _MOST_RANKS:
                expected |= {*range(process.ranks)}
    # one payload may run many ranks, and the steps in its log belong to one of them
    is_nested = any(process.rank != look.rank for pairs in seen.values() for look, process in pairs)
    nodes, steps = ({}, {}) if is_nested else (answered, steps)
    states = []
    for rank in sorted({*expected, *nodes, *seen}):
        if rank in seen and rank not in ended:
            states.append(_state(rank, seen[rank], steps.get(rank)))
            continue
        is_gone = rank in ended or rank in answered or not silent
        states.append(
            RankState(
                rank=rank,
                node=nodes.get(rank, ""),
                doing=Doing.GONE if is_gone else Doing.SILENT,
                on=ended.get(rank, ""),
                step=steps.get(rank),
            )
        )
    return tuple(states)


def _state(rank: int, seen: Sequence[tuple[HangLook, SeenProcess]], step: int | None) -> RankState:
    """Return the state of a rank; of its processes, the one with the most threads computes."""
    hang_look, main = max(
        seen, key=lambda pair: (bool(pair[1].stacks), pair[1].threads, pair[1].pid)
    )
    doing = _doing(main)
    return RankState(
        rank=rank,
        node=hang_look.node,
        doing=doing,
        at=_user_frame(main.stacks[0]) if main.stacks else "",
        on={Doing.READS: main.on, Doing.DISK: main.channel}.get(doing, ""),
        step=step,
    )


def _doing(process: SeenProcess) -> Doing:
    states = {"T": Doing.STOPPED, "t": Doing.STOPPED, "Z": Doing.GONE, "D": Doing.DISK}
    if process.state in states:
        return states[process.state]
    if process.call == "sleeps":
        return Doing.SLEEPS
    if process.call == "waits" or process.on.startswith(_DEVICES):
        return Doing.WAITS
    if process.on:
        return Doing.READS
    is_busy = process.state == "R" or process.call == "running"
    return Doing.RUNS if is_busy else Doing.WAITS


def _user_frame(frames: Sequence[str]) -> str:
    """Return the innermost frame of the user's own code, without the folder of its file."""
    for frame in frames:
        if not _OF_OTHERS.match(frame):
            file, _, rest = frame.rpartition(":")
            return f"{PurePath(file).name}:{rest}"
    return ""


def _named(stands: tuple[RankState, ...], behind: Sequence[RankState]) -> Standstill:
    """Return that these ranks are behind, and what the others do if they all do the same."""
    others = [state for state in stands if state not in behind]
    nodes, other_nodes = ({state.node for state in part} - {""} for part in (behind, others))
    is_only_node = len(nodes) == 1 and bool(other_nodes) and not nodes & other_nodes
    reasons, waits = {state.why for state in others}, None
    if len(reasons) == 1:
        waits = say("; {others:+other rank} {doing}", others=len(others), doing=reasons.pop())
    step = behind[0].step
    why = say(
        "rank {ranks}{place} is behind{step}: {doing}{others}"
        if len(behind) == 1
        else "ranks {ranks}{place} are behind{step}: {doing}{others}",
        ranks=at_most(8, [state.rank for state in behind]),
        place=say(" on {nodes}", nodes=at_most(4, sorted(nodes))) if nodes else None,
        step=say(" after step {step}", step=step) if step is not None else None,
        doing=behind[0].why,
        others=waits,
    )
    return Standstill(
        stands=stands,
        behind=tuple(state.rank for state in behind),
        why=why,
        node=nodes.pop() if is_only_node else "",
    )
