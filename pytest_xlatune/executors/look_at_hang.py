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
import functools
import os
import re
import time
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


def examine(payload_pid: int, *, stacks: Path, log: Path, rank: int) -> dict[str, Any]:
    """Return what the processes of one payload's trainer are doing, as JSON data.

    Args:
        payload_pid: the process id of the payload; all its descendants are examined, including
            zombies.
        stacks: the file to which `faulthandler` writes.
        log: the log of this rank.
        rank: the rank of the payload, for a process whose environment names no other rank.
    """
    at_s, quiet_s = time.time(), 0.0
    with contextlib.suppress(OSError):
        quiet_s = at_s - log.stat().st_mtime
    processes = _descendants(payload_pid)[:_MOST_PROCESSES]
    records = [process.record(rank) for process in processes]
    until_s = time.monotonic() + _ALL_STACKS_S
    for process, record in zip(processes, records, strict=True):
        record["stacks"] = _stacks_of(process, stacks, until_s=until_s)
    return {
        "rank": rank,
        "at_s": at_s,
        "quiet_s": round(quiet_s, 1),
        "processes": records,
    }


def _descendants(ancestor: int) -> list[_ProcessView]:
    processes = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (process := _ProcessView(int(entry.name))).is_there:
            processes[process.pid] = process
    family = {ancestor}
    while children := {pid for pid, view in processes.items() if view.parent in family} - family:
        family |= children
    return [processes[pid] for pid in sorted(family - {ancestor}) if pid in processes]


class _ProcessView:
    """One process as /proc shows it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.folder = Path(f"/proc/{pid}")
        self.is_there = True  # whether the process still existed when it was read
        self.name = ""
        self.fields: list[str] = []  # those of /proc/<pid>/stat, from the state on
        try:
            text = self._text("stat")  # 4711 (a (b) c) S 1 4711 4711 0 -1 ...
        except OSError:
            self.is_there = False
            return
        front, _, rest = text.rpartition(")")
        self.name, self.fields = front.partition("(")[2], rest.split()

    @property
    def parent(self) -> int:
        """The id of the process that started this one."""
        return int(self.fields[1])

    @functools.cached_property
    def environ(self) -> dict[bytes, bytes]:
        """The environment of the process; empty if it cannot be read."""
        with contextlib.suppress(OSError):
            pairs = (pair.partition(b"=") for pair in self._bytes("environ").split(b"\0"))
            return {name: value for name, _, value in pairs}
        return {}

    def _bytes(self, name: str) -> bytes:
        with (self.folder / name).open("rb") as file:
            return file.read(1 << 20)

    def _text(self, name: str) -> str:
        return self._bytes(name).decode("utf-8", "replace").strip()

    def _text_if_any(self, name: str) -> str:
        try:
            return self._text(name)
        except OSError:
            return ""

    def count_threads(self) -> int:
        """Return the number of threads; 0 if they cannot be read."""
        with contextlib.suppress(OSError):
            return len(os.listdir(self.folder / "task"))  # noqa: PTH208 - no paths needed
        return 0

    def record(self, rank: int) -> dict[str, Any]:
        """Return what the process does."""
        own_rank, ranks = self._rank(rank)
        call, waited_for = self._call()
        state = self._text_if_any("stat").rpartition(")")[2].split()[:1]
        channel = self._text_if_any("wchan")
        return {
            "pid": self.pid,
            "parent": self.parent,
            "name": self.name,
            "rank": own_rank,
            "ranks": ranks,
            "state": state[0] if state else "",
            "threads": self.count_threads(),
            "call": call,
            # the kernel writes 0 if the thread waits nowhere, or if it does not say where
            "channel": "" if call == "running" or channel == "0" else channel,
            "on": waited_for,
        }

    def _rank(self, default: int) -> tuple[int, int | None]:
        """Return the process's rank and the number of ranks, None if its environment names none."""
        for name, ranks_name in _RANKS:
            rank = self.environ.get(name, b"")
            if rank.isdigit() and len(rank) <= _MOST_RANK_DIGITS:
                ranks = self.environ.get(ranks_name, b"")
                return int(rank), int(ranks) if ranks.isdigit() else None
        return default, None

    def _call(self) -> tuple[str, str]:
        """Return the main thread's system call, and the file or socket that it waits for."""
        # running      202 0x7f12 0x189 0x0 0x0 0x0 0xffffffff 0x7ffc 0x7f12      -1 0x7ffc 0x7f12
        words = self._text_if_any("syscall").split()
        if not words or not words[0].isdigit():
            return ("running" if words[:1] == ["running"] else ""), ""
        call = _CALLS.get(int(words[0]), f"system call {words[0]}")
        if call not in _CALLS_ON_DESCRIPTORS:
            return call, ""
        descriptor = int(words[1], 16) & 0xFFFFFFFF
        try:
            link = str((self.folder / "fd" / str(descriptor)).readlink())
        except OSError:
            return call, ""
        return call, "a socket" if link.startswith("socket:[") else link

    def open_files(self) -> set[str]:
        """Return what each descriptor of the process refers to, as /proc writes it."""
        links = set()
        with contextlib.suppress(OSError):
            for path in (self.folder / "fd").iterdir():
                with contextlib.suppress(OSError):
                    links.add(str(path.readlink()))
        return links

    @property
    def catches_signal(self) -> bool:
        """Whether the process has a handler for the hook's signal."""
        # SigCgt:	0000800180014a07
        for line in self._text_if_any("status").splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (SIGNAL - 1) & 1)
        return False


def _stacks_of(process: _ProcessView, stacks: Path, *, until_s: float) -> list[list[str]]:
    """Return Python's stacks of a process, the main thread first; [] if they are unknown."""
    left_s = min(until_s - time.monotonic(), _STACK_S)
    if left_s <= 0 or process.fields[0] in ("Z", "X"):  # a zombie, or dead
        return []
    if process.catches_signal and str(stacks) in process.open_files():
        return _faulthandler_stacks(process, stacks, left_s)
    return []


def _faulthandler_stacks(process: _ProcessView, stacks: Path, left_s: float) -> list[list[str]]:
    """Make the process write its stacks, and return them when their file no longer grows."""
    before = _size(stacks)
    with contextlib.suppress(OSError):
        os.kill(process.pid, SIGNAL)
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
