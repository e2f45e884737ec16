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
    "sleeps": {35, 230},  # nanosleep, clock_nanosleep
    # poll, select, sched_yield, wait4, futex, epoll_wait, waitid, pselect6, ppoll, epoll_pwait
    "waits": {7, 23, 24, 61, 202, 232, 247, 270, 271, 281},
    # read, write, ioctl, pread64, readv, writev, connect, accept, sendto, recvfrom, sendmsg,
    # recvmsg, flock, fsync, accept4: the first argument is the descriptor
    "reads": {0, 1, 16, 17, 19, 20, 42, 43, 44, 45, 46, 47, 73, 74, 288},
}
_ARM = {
    "sleeps": {101, 115},
    "waits": {22, 72, 73, 95, 98, 124, 260},
    "reads": {29, 32, 63, 64, 65, 66, 67, 82, 202, 203, 206, 207, 211, 212, 242},
}
_CALLS = _ARM if os.uname().machine == "aarch64" else _X86
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
    records = [_record(pid, processes[pid], rank) for pid in [*processes][:_MOST_PROCESSES]]
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
    """Return the kind of the main thread's system call, and the file or socket that it reads."""
    # running      202 0x7f12 0x189 0x0 0x0 0x0 0xffffffff 0x7ffc 0x7f12      -1 0x7ffc 0x7f12
    words = _text(pid, "syscall").split()
    if words[:1] == ["running"]:
        return "running", ""
    number = int(words[0]) if words and words[0].isdigit() else -1
    call, link = next((kind for kind, numbers in _CALLS.items() if number in numbers), ""), ""
    if call == "reads":
        with contextlib.suppress(OSError):
            link = str(Path(f"/proc/{pid}/fd/{int(words[1], 16) & 0xFFFFFFFF}").readlink())
    return call, "a socket" if link.startswith("socket:[") else link


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
    if str(stacks) not in links:
        return []
    # the process writes its stacks; they are read when their file no longer grows
    with contextlib.suppress(OSError):
        before = last = stacks.stat().st_size
        os.kill(pid, SIGNAL)
        until_s = time.monotonic() + left_s
        while time.monotonic() < until_s:
            time.sleep(0.05)
            now = stacks.stat().st_size
            if now > before and now == last:
                break
            last = now
        with stacks.open("rb") as file:
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
