"""Examine a trainer that hangs, on its node: what each of its processes waits for.

It uses only the standard library, and the payload loads it by its path, because only an ancestor
may examine a process where the kernel restricts tracing. It judges nothing and ends nothing;
`logs.standstill` evaluates the result. There are two sources, none of which has to be in the
trainer's environment:

* the kernel: state, system call and wait channel of the main thread, its open file, CPU time;
* Python's stacks: from py-spy if it is installed and allowed, else from `faulthandler`, which the
payload's hook registered for a signal when the interpreter started.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SIGNAL = 47  # the hook's signal: a real-time signal, which hardly any program uses
SAMPLE_S = 1.0  # seconds between two readings of the CPU time
_STACK_S = 2.0  # seconds for the stacks of one process
_ALL_STACKS_S = 10.0
_MOST_BYTES = 1 << 18  # most bytes of stacks
_MOST_PROCESSES, _MOST_FRAMES, _MOST_THREADS = 64, 24, 16
_LINES, _CHARS = 3, 300
_HERTZ = os.sysconf("SC_CLK_TCK")
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
# calls whose first argument is the descriptor for which they wait
_OF_A_FILE = frozenset(
    {"read", "readv", "pread64", "write", "writev", "recvfrom", "recvmsg", "sendto", "sendmsg",
     "flock", "fsync", "accept", "accept4", "connect", "ioctl"}
)  # fmt: skip
# Thread 0x00007f12 (most recent call first):    Current thread 0x00007f12 [python3] (most recent
_THREAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):")
#   File "/home/u/train.py", line 12 in step
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.+)')
# Thread 4711 (idle): "MainThread"       Thread 0x7F12 (active)
_SPY_THREAD = re.compile(r'Thread (?:0x[0-9A-Fa-f]+|\d+) \((?P<how>[^)]*)\)(?:: "(?P<name>.*)")?')
#     step (/home/u/train.py:12)
_SPY_FRAME = re.compile(r"    (?P<function>.+) \((?P<file>.*?)(?::(?P<line>\d+))?\)$")


def look(top: int, *, stacks: Path, log: Path, rank: int) -> dict[str, Any]:
    """Return what the processes of one payload's trainer are doing, as JSON data.

    Args:
        top: the payload; all processes below it are examined, including zombies.
        stacks: the file to which `faulthandler` writes.
        log: the log of this rank.
        rank: the rank of the payload; a process whose launcher says another rank gets that one.
    """
    at_s, quiet_s = time.time(), 0.0
    with contextlib.suppress(OSError):
        quiet_s = at_s - log.stat().st_mtime
    processes = _below(top)[:_MOST_PROCESSES]
    before = [seen.cpu_ticks() for seen in processes]
    time.sleep(SAMPLE_S)
    records = [seen.record(ticks, rank) for seen, ticks in zip(processes, before, strict=True)]
    until_s = time.monotonic() + _ALL_STACKS_S
    for seen, record in zip(processes, records, strict=True):
        record.update(_stacks_of(seen, stacks, until_s=until_s))
    return {
        "rank": rank,
        "at_s": at_s,
        "quiet_s": round(quiet_s, 1),
        "last_lines": _last_lines(log),
        "processes": records,
    }


def _below(top: int) -> list[_Seen]:
    everyone = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (process := _Seen(int(entry.name))).is_there:
            everyone[process.pid] = process
    below = {top}
    while more := {pid for pid, seen in everyone.items() if seen.parent in below} - below:
        below |= more
    return [everyone[pid] for pid in sorted(below - {top}) if pid in everyone]


class _Seen:
    """One process as /proc shows it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.at = Path(f"/proc/{pid}")
        self.is_there, self.name, self.fields = True, "", [""] * 20
        try:
            text = self._text("stat")  # 4711 (a (b) c) S 1 4711 4711 0 -1 ...
        except OSError:
            self.is_there = False
            return
        front, _, rest = text.rpartition(")")
        self.name, self.fields = front.partition("(")[2], rest.split()

    @property
    def parent(self) -> int:
        return int(self.fields[1] or 0)

    @functools.cached_property
    def environ(self) -> dict[bytes, bytes]:
        with contextlib.suppress(OSError):
            pairs = (pair.partition(b"=") for pair in self._bytes("environ").split(b"\0"))
            return {name: value for name, _, value in pairs}
        return {}

    def _bytes(self, name: str) -> bytes:
        with (self.at / name).open("rb") as file:
            return file.read(1 << 20)

    def _text(self, name: str) -> str:
        return self._bytes(name).decode("utf-8", "replace").strip()

    def _text_if_any(self, name: str) -> str:
        try:
            return self._text(name)
        except OSError:
            return ""

    def threads(self) -> list[str]:
        with contextlib.suppress(OSError):
            return sorted(os.listdir(self.at / "task"), key=int)  # noqa: PTH208 - no paths needed
        return []

    def cpu_ticks(self) -> dict[str, int]:
        """Return the CPU time of each thread."""
        ticks = {}
        for tid in self.threads():
            fields = self._text_if_any(f"task/{tid}/stat").rpartition(")")[2].split()
            if fields:
                ticks[tid] = int(fields[11]) + int(fields[12])
        return ticks

    def record(self, before: dict[str, int], rank: int) -> dict[str, Any]:
        """Return what the process does; its CPU use in cores is measured since `before`."""
        now, main = self.cpu_ticks(), str(self.pid)
        used_ticks = now[main] - before[main] if main in now and main in before else 0
        named_rank, size = self._rank(rank)
        call, on = self._call()
        state = self._text_if_any("stat").rpartition(")")[2].split()[:1]
        return {
            "pid": self.pid,
            "parent": self.parent,
            "name": self.name,
            "rank": named_rank,
            "ranks": size,
            "state": state[0] if state else "",
            "threads": len(now),
            "call": call,
            "channel": self._text_if_any("wchan").replace("0", "", 1) if call != "running" else "",
            "on": on,
            "main_cores": round(used_ticks / _HERTZ / SAMPLE_S, 2),
        }

    def _rank(self, rank: int) -> tuple[int, int | None]:
        for name, size_name in _RANKS:
            text = self.environ.get(name, b"")
            if text.isdigit() and len(text) < _LINES + 6:
                size = self.environ.get(size_name, b"")
                return int(text), int(size) if size.isdigit() else None
        return rank, None

    def _call(self) -> tuple[str, str]:
        """Return the main thread's system call, and the file or socket that it waits for."""
        # running      202 0x7f12 0x189 0x0 0x0 0x0 0xffffffff 0x7ffc 0x7f12      -1 0x7ffc 0x7f12
        words = self._text_if_any("syscall").split()
        if not words or not words[0].isdigit():
            return (words[0] if words[:1] == ["running"] else ""), ""
        call = _CALLS.get(int(words[0]), f"system call {words[0]}")
        if call not in _OF_A_FILE:
            return call, ""
        number = int(words[1], 16) & 0xFFFFFFFF
        try:
            on = str((self.at / "fd" / str(number)).readlink())
        except OSError:
            return call, ""
        return call, self._peer(on) or on

    def _peer(self, link: str) -> str:
        """Return the remote end of a TCP socket: `socket:[4711]` -> `10.0.0.7:8476`."""
        if not link.startswith("socket:["):
            return ""
        for inode, remote in self.sockets():
            if inode == link[8:-1]:
                return remote
        return link

    def sockets(self) -> Iterator[tuple[str, str]]:
        """Yield the inode and the remote address of each TCP socket."""
        #   0: 0100007F:6D7C 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 5321 1 ...
        for name in ("net/tcp", "net/tcp6"):
            for line in self._text_if_any(name).splitlines()[1:]:
                words = line.split()
                if len(words) > 9:  # noqa: PLR2004 - the inode's place
                    yield words[9], _address(words[2])

    def descriptors(self) -> set[str]:
        links = set()
        with contextlib.suppress(OSError):
            for path in (self.at / "fd").iterdir():
                with contextlib.suppress(OSError):
                    links.add(str(path.readlink()))
        return links

    @property
    def catches_signal(self) -> bool:
        # SigCgt:	0000800180014a07
        for line in self._text_if_any("status").splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (SIGNAL - 1) & 1)
        return False


def _address(text: str) -> str:
    """Read an address of /proc/net/tcp: `0100007F:6D7C` -> `127.0.0.1:28028`."""
    host, _, port = text.partition(":")
    words = [bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8)]
    packed = b"".join(words)
    if packed[:12] == b"\0" * 10 + b"\xff\xff":
        packed = packed[12:]
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6  # noqa: PLR2004 - bytes of v4
    shown = socket.inet_ntop(family, packed)
    return f"{shown}:{int(port, 16)}" if family == socket.AF_INET else f"[{shown}]:{int(port, 16)}"


def _stacks_of(process: _Seen, stacks: Path, *, until_s: float) -> dict[str, Any]:
    """Return Python's stacks of a process, the main thread first."""
    left_s = min(until_s - time.monotonic(), _STACK_S)
    if left_s <= 0 or process.fields[0] in ("Z", "X"):
        return {"stacks": []}
    if spy := _spy(process):
        if python_stacks := _of_spy(spy, process, left_s):
            return {"stacks": python_stacks}
        left_s = min(until_s - time.monotonic(), _STACK_S)
    if process.catches_signal and str(stacks) in process.descriptors():
        return {"stacks": _of_handler(process, stacks, left_s)}
    return {"stacks": []}


def _spy(process: _Seen) -> str:
    """Return py-spy, beside the process's interpreter or on its PATH; "" if there is none."""
    with contextlib.suppress(OSError):
        words = process._bytes("cmdline").split(b"\0")  # noqa: SLF001 - of this module
        py_spy = Path(os.fsdecode(words[0])).with_name("py-spy")
        is_python = Path(os.fsdecode(words[0])).name.startswith("python")
        if is_python and py_spy.is_absolute() and os.access(py_spy, os.X_OK):
            return str(py_spy)
        path = os.fsdecode(process.environ.get(b"PATH", b""))
        return (shutil.which("py-spy", path=path) or "") if is_python else ""
    return ""


def _of_spy(spy: str, process: _Seen, left_s: float) -> list[list[str]]:
    argv = [spy, "dump", "--nonblocking", "--pid", str(process.pid)]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            argv, capture_output=True, timeout=max(left_s, 0.1), check=False, env={}
        )
        return of_spy(done.stdout[:_MOST_BYTES].decode("utf-8", "replace"))
    return []


def _of_handler(process: _Seen, stacks: Path, left_s: float) -> list[list[str]]:
    """Make the process write its stacks, and return them once no more come."""
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
        return of_handler(file.read(_MOST_BYTES).decode("utf-8", "replace"))
    return []


def of_handler(text: str) -> list[list[str]]:
    """Parse stacks written by `faulthandler`, where the main thread is last; return it first."""
    stacks: list[list[str]] = []
    for line in text.splitlines():
        if _THREAD.match(line):
            stacks.append([])
        elif stacks and (frame := _FRAME.match(line)):
            stacks[-1].append(f"{frame['file']}:{frame['line']} {frame['function']}")
    return _cut(stacks[::-1])


def of_spy(text: str) -> list[list[str]]:
    """Parse stacks printed by `py-spy dump`; return the main thread's first."""
    threads: list[tuple[bool, list[str]]] = []
    for line in text.splitlines():
        if thread := _SPY_THREAD.match(line):
            threads.append((thread["name"] == "MainThread", []))
        elif threads and (frame := _SPY_FRAME.match(line)):
            threads[-1][1].append(f"{frame['file']}:{frame['line'] or '?'} {frame['function']}")
    return _cut([frames for _, frames in sorted(threads, key=lambda thread: not thread[0])])


def _cut(stacks: list[list[str]]) -> list[list[str]]:
    return [stack[:_MOST_FRAMES] for stack in stacks[:_MOST_THREADS]]


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def _last_lines(log: Path) -> list[str]:
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - (1 << 13), 0))
        lines = file.read().decode("utf-8", "replace").splitlines()
        return [line.strip()[:_CHARS] for line in lines if line.strip()][-_LINES:]
    return []
