"""Examine a trainer that hangs, on its node: what each of its processes waits for.

The payload loads this module by its path and runs it itself, because only an ancestor may examine
a process where the kernel restricts tracing. So it uses only the standard library. It judges
nothing and ends nothing; `logs.standstill` evaluates the result. There are two sources, neither of
which needs a package in the trainer's environment:

* the kernel: state, system call and wait channel of the main thread, the file or socket that it
  waits for;
* Python's stacks from `faulthandler`, which the payload's hook registered for a signal when the
  interpreter started.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SIGNAL = 47  # the hook's signal: a real-time signal, which hardly any program uses
_STACK_S = 2.0  # the most seconds for the stacks of one process
_ALL_STACKS_S = 10.0  # the most seconds for the stacks of all processes
_MOST_BYTES = 1 << 18  # the most bytes of stacks of one process
_MOST_PROCESSES, _MOST_FRAMES, _MOST_THREADS = 64, 24, 16
_MOST_RANK_DIGITS = 8  # a longer number is no rank
# variables with a process's rank and the number of ranks; the innermost launcher first
_RANKS = (
    (b"JAX_PROCESS_INDEX", b"JAX_PROCESS_COUNT"),
    (b"JAX_PROCESS_ID", b"JAX_NUM_PROCESSES"),
    (b"OMPI_COMM_WORLD_RANK", b"OMPI_COMM_WORLD_SIZE"),
    (b"PMI_RANK", b"PMI_SIZE"),
    (b"RANK", b"WORLD_SIZE"),
    (b"SLURM_PROCID", b"SLURM_NTASKS"),
)
# system calls by number: x86_64, and the generic table of aarch64 (asm/unistd_64.h, asm-generic)
_X86 = {
    0: "read", 1: "write", 7: "poll", 16: "ioctl", 17: "pread64", 19: "readv", 20: "writev",
    23: "select", 24: "sched_yield", 35: "nanosleep", 42: "connect", 43: "accept", 44: "sendto",
    45: "recvfrom", 46: "sendmsg", 47: "recvmsg", 61: "wait4", 73: "flock", 74: "fsync",
    202: "futex", 230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid", 257: "openat",
    262: "newfstatat", 270: "pselect6", 271: "ppoll", 281: "epoll_pwait", 288: "accept4",
}  # fmt: skip
_ARM = {
    22: "epoll_pwait", 29: "ioctl", 32: "flock", 56: "openat", 63: "read", 64: "write",
    65: "readv", 66: "writev", 67: "pread64", 72: "pselect6", 73: "ppoll", 79: "newfstatat",
    82: "fsync", 95: "waitid", 98: "futex", 101: "nanosleep", 115: "clock_nanosleep",
    124: "sched_yield", 202: "accept", 203: "connect", 206: "sendto", 207: "recvfrom",
    211: "sendmsg", 212: "recvmsg", 242: "accept4", 260: "wait4",
}  # fmt: skip
_CALLS = _ARM if os.uname().machine == "aarch64" else _X86
# calls whose first argument is the descriptor that they wait for
_CALLS_ON_DESCRIPTORS = frozenset(
    {"read", "readv", "pread64", "write", "writev", "recvfrom", "recvmsg", "sendto", "sendmsg",
     "flock", "fsync", "accept", "accept4", "connect", "ioctl"}
)  # fmt: skip
# Thread 0x00007f12 (most recent call first):    Current thread 0x00007f12 [python3] (most recent
_THREAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):")
#   File "/home/u/train.py", line 12 in step
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.+)')


def examine(processes: Mapping[int, Any], *, stacks: Path, log: Path, rank: int) -> dict[str, Any]:
    """Return what the processes of one payload's trainer are doing, as JSON data.

    Args:
        processes: process id -> its `state` and `parent`, of all processes below the payload,
            including zombies.
        stacks: the file to which `faulthandler` writes.
        log: the log of this rank.
        rank: the rank of the payload, for a process whose environment names no other rank.
    """
    at_s, quiet_s = time.time(), 0.0
    with contextlib.suppress(OSError):
        quiet_s = at_s - log.stat().st_mtime
    seen = list(processes.items())[:_MOST_PROCESSES]
    records = [_record(pid, process, rank) for pid, process in seen]
    until_s = time.monotonic() + _ALL_STACKS_S
    for record in records:
        record["stacks"] = _stacks_of(record, stacks, until_s)
    return {"rank": rank, "at_s": at_s, "quiet_s": round(quiet_s, 1), "processes": records}


def _record(pid: int, process: Any, rank: int) -> dict[str, Any]:
    """Return what a process does."""
    own_rank, ranks = _rank(pid, rank)
    call, waited_for = _call(pid)
    channel = _text(pid, "wchan")
    return {
        "pid": pid,
        "parent": process.parent,
        "name": _text(pid, "comm"),
        "rank": own_rank,
        "ranks": ranks,
        "state": process.state,
        "threads": int(_status(pid, "Threads") or 0),
        "call": call,
        # the kernel writes 0 if the thread waits nowhere, or if it does not say where
        "channel": "" if call == "running" or channel == "0" else channel,
        "on": waited_for,
    }


def _bytes(pid: int, name: str) -> bytes:
    """Return a file of a process in /proc; b"" if it cannot be read."""
    with contextlib.suppress(OSError), Path(f"/proc/{pid}", name).open("rb") as file:
        return file.read(1 << 20)
    return b""


def _text(pid: int, name: str) -> str:
    return _bytes(pid, name).decode("utf-8", "replace").strip()


def _status(pid: int, name: str) -> str:
    # Threads:	12    SigCgt:	0000800180014a07
    match = re.search(rf"^{name}:\s*(\S+)$", _text(pid, "status"), re.MULTILINE)
    return match[1] if match else ""


def _rank(pid: int, default: int) -> tuple[int, int | None]:
    """Return a process's rank and the number of ranks, None if its environment names none."""
    pairs = (pair.partition(b"=") for pair in _bytes(pid, "environ").split(b"\0"))
    environ = {name: value for name, _, value in pairs}
    for name, ranks_name in _RANKS:
        rank, ranks = environ.get(name, b""), environ.get(ranks_name, b"")
        if rank.isdigit() and len(rank) <= _MOST_RANK_DIGITS:
            count = int(ranks) if ranks.isdigit() else None
            return int(rank), count
    return default, None


def _call(pid: int) -> tuple[str, str]:
    """Return the main thread's system call, and the file or socket that it waits for."""
    # running      202 0x7f12 0x189 0x0 0x0 0x0 0xffffffff 0x7ffc 0x7f12      -1 0x7ffc 0x7f12
    words = _text(pid, "syscall").split()
    if words[:1] == ["running"]:
        return "running", ""
    if not words or not words[0].isdigit():
        return "", ""
    call, link = _CALLS.get(int(words[0]), f"system call {words[0]}"), ""
    if call in _CALLS_ON_DESCRIPTORS:
        with contextlib.suppress(OSError):
            link = str(Path(f"/proc/{pid}/fd/{int(words[1], 16) & 0xFFFFFFFF}").readlink())
    if link.startswith("socket:["):
        link = "a socket"
    return call, link


def _stacks_of(record: dict[str, Any], stacks: Path, until_s: float) -> list[list[str]]:
    """Return Python's stacks of a process, the main thread first; [] if they are unknown."""
    pid, left_s = record["pid"], min(until_s - time.monotonic(), _STACK_S)
    catches_signal = int(_status(pid, "SigCgt") or "0", 16) >> (SIGNAL - 1) & 1
    if left_s <= 0 or record["state"] in "ZX" or not catches_signal:
        return []
    links = set()
    with contextlib.suppress(OSError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                links.add(str(path.readlink()))
    return _faulthandler_stacks(pid, stacks, left_s) if str(stacks) in links else []


def _faulthandler_stacks(pid: int, stacks: Path, left_s: float) -> list[list[str]]:
    """Make the process write its stacks, and return them when their file no longer grows."""
    before = _size(stacks)
    with contextlib.suppress(OSError):
        os.kill(pid, SIGNAL)
    until_s, last = time.monotonic() + left_s, before
    while time.monotonic() < until_s:
        time.sleep(0.05)
        now = _size(stacks)
        if now > before and now == last:
            break
        last = now
    with contextlib.suppress(OSError), stacks.open("rb") as file:
        file.seek(before)
        return parse_faulthandler(file.read(_MOST_BYTES).decode("utf-8", "replace"))
    return []


def parse_faulthandler(text: str) -> list[list[str]]:
    """Parse stacks written by `faulthandler`, where the main thread is last; return it first."""
    stacks: list[list[str]] = []
    for line in text.splitlines():
        if _THREAD.match(line):
            stacks.append([])
        elif stacks and (frame := _FRAME.match(line)):
            stacks[-1].append(f"{frame['file']}:{frame['line']} {frame['function']}")
    return [stack[:_MOST_FRAMES] for stack in stacks[::-1][:_MOST_THREADS]]


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0
