"""Which files are the captures of one profiling window, and how each is read.

A window is one file per process. Its files lie in `plugins/profile/<timestamp>/`, and often in two
neighbouring timestamps, since processes do not start the profiler at the same second. Files that
cannot be read are named, and the others are read.

And what a capture is written out as. A timeline is the JSON that Perfetto (https://ui.perfetto.dev)
and chrome://tracing open: a process for each device, a thread for each stream, and one more whose
slices are the parts of the step: compute, exposed communication, exposed memory, idle. A viewer
colours slices by their names, so that each part has its colour. A profile is a text
`ProfiledInstructionsProto` (tsl/profiler/protobuf/profiled_instructions.proto), the mean time of
each operation, for `--xla_gpu_pgle_profile_file_or_directory_path`.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_xlatune.evidence import absent, unreadable
from pytest_xlatune.evidence.trace import ABSENT, KINDS, Ints, Kind, Trace
from pytest_xlatune.evidence.trace.breakdown import CaptureWindow, Drill, Observed, drill
from pytest_xlatune.model.errors import ConfigError, ParseError

if TYPE_CHECKING:
    from pytest_xlatune.evidence.hlo import Program

XPLANE = ".xplane.pb"
JSON = (".trace.json.gz", ".trace.json")
RIEGELI = ".xplane.riegeli"


def choose_captures(paths: Iterable[str]) -> tuple[str, ...]:
    """Choose one file per process: its xplane.pb, else its trace.json(.gz); others are ignored.

    Raises:
        ParseError: no capture, one in a format that is not read, one process in two windows.
    """
    chosen: dict[str, str] = {}
    found = sorted(set(paths))
    # the JSON ends at a million events without a word: of 1.35 million, 29 % of the kernel time and
    # the whole third step were missing
    for suffix in (XPLANE, *JSON, RIEGELI):
        for path in found:
            if path.endswith(suffix):
                chosen.setdefault(path.removesuffix(suffix), path)
    if not chosen:
        raise ParseError(
            f"no capture among {len(found)} files; expected *{XPLANE} or *{JSON[0]} of the "
            "profiler, as under plugins/profile/<timestamp>/"
        )
    window: dict[str, str] = {}
    for stem, path in chosen.items():
        process = Path(stem).name
        if path.endswith(RIEGELI):
            raise ParseError(
                f"{path}: a riegeli capture, which is not read yet; profile with a jaxlib that "
                "writes xplane.pb"
            )
        if process in window:
            raise ParseError(
                f"{process} has two captures, {window[process]} and {path}: two profiling windows; "
                "give the folder of one"
            )
        window[process] = path
    return tuple(window.values())


def _read(paths: Sequence[str]) -> Iterator[Trace | ParseError]:
    """Read captures one by one, by the ends of their names; what cannot be read is its error."""
    if sum(map(_size_of, paths)) >= _SIDE_BY_SIDE_BYTES and len(paths) > 1 and _forks():
        yield from _side_by_side(paths)
    else:
        yield from map(_read_one, paths)


def _read_one(path: str) -> Trace | ParseError:
    try:
        if path.endswith(JSON):
            from pytest_xlatune.evidence.trace._chrome import read_trace_json

            return read_trace_json(Path(path).read_bytes(), path)
        from pytest_xlatune.evidence.trace.xplane import read_xplane_file

        return read_xplane_file(path)
    except OSError as error:
        return ParseError(unreadable(path, error))
    except ParseError as error:
        return error


_SIDE_BY_SIDE_BYTES = 1 << 25  # below, processes cost more than they save
_MOST_PROCESSES = 8  # each needs the memory of a capture


def _size_of(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


def _forks() -> bool:
    """Whether this process may fork: another thread of it may hold a lock."""
    return sys.platform == "linux" and threading.active_count() == 1 and _cores() > 1


def _side_by_side(paths: Sequence[str]) -> Iterator[Trace | ParseError]:
    """Read captures in processes, a few ahead of who takes them in their order."""
    from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
    from multiprocessing import get_context

    count = min(len(paths), _cores(), _MOST_PROCESSES)
    ahead: deque[Future[tuple[Trace | ParseError, list[list[int]]]]] = deque()
    with ProcessPoolExecutor(count, get_context("fork"), _end_with_parent) as pool:
        for place in range(len(paths)):
            try:
                ahead += [
                    pool.submit(_packed, each)
                    for each in paths[place + len(ahead) : place + count + 1]
                ]
                found = _unpacked(*ahead.popleft().result())
            except BrokenExecutor:  # a process was killed: where memory is short one reads alone
                break
            yield found
        else:
            return
    yield from map(_read_one, paths[place:])


def _end_with_parent() -> None:
    """End this process when the command is killed: it would wait for work for ever."""
    from multiprocessing import parent_process

    def wait() -> None:
        if (parent := parent_process()) is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _packed(path: str) -> tuple[Trace | ParseError, list[list[int]]]:
    """Return a capture without the events of its streams, which a device has too, and their sizes.

    Sent as they are, the views of one array would arrive as copies.
    """
    found = _read_one(path)
    if isinstance(found, ParseError):
        return found, []
    sizes = [[len(each.events) for each in device.streams] for device in found.devices]
    devices = (
        replace(
            device,
            streams=tuple(
                replace(each, events=device.events.part(0, 0)) for each in device.streams
            ),
        )
        for device in found.devices
    )
    return replace(found, devices=tuple(devices)), sizes


def _unpacked(found: Trace | ParseError, sizes: list[list[int]]) -> Trace | ParseError:
    if isinstance(found, ParseError):
        return found
    devices = []
    for device, each in zip(found.devices, sizes, strict=True):
        ends = np.cumsum(each).tolist()
        views = (
            replace(stream, events=device.events.part(end - size, end))
            for stream, size, end in zip(device.streams, each, ends, strict=True)
        )
        devices.append(replace(device, streams=tuple(views)))
    return replace(found, devices=tuple(devices))


def read_window(
    paths: Sequence[Path],
    window: CaptureWindow,
    *,
    step_s: float | None = None,
    observe: Iterable[Callable[[Observed], None]] = (),
) -> tuple[Drill, tuple[str, ...]]:
    """Drill the captures under some folders, or the files named; one window of one job.

    Return where the time went, and one sentence for each path or capture that is not in it;
    `step_s` is the step time of a companion run without profiler; `observe` are called with the
    kernels of each device.

    Raises:
        ParseError: nothing to drill, or captures that do not belong together.
    """
    problems = [
        absent(path, "captures, or a folder of them")
        for path in paths
        if not (path.is_dir() or path.is_file())
    ]
    found = [file for path in paths for file in _files(path)]
    try:
        drilled = drill(_read(choose_captures(found)), window, step_s=step_s, observe=observe)
    except ParseError as error:
        raise ParseError("; ".join([*problems, str(error)])) from None
    return drilled, (*problems, *drilled.excluded)


def operation_paths(paths: Sequence[Path]) -> dict[str, str]:
    """Return operation -> its path in the framework, from the HLO in the captures of a window.

    A capture that cannot be read has none; a trace.json holds no HLO.
    """
    from pytest_xlatune.evidence.trace.xplane import read_paths

    found: dict[str, str] = {}
    for capture in choose_captures(file for path in paths for file in _files(path)):
        if capture.endswith(XPLANE):
            with suppress(OSError, ParseError):
                found = read_paths(capture) | found
    return found


def captures_below(path: Path) -> tuple[Path, ...]:
    """Return the captures of the one window below a folder, one file per process.

    Raises:
        ParseError: there is none, or there are two windows.
    """
    return tuple(Path(each) for each in choose_captures(_files(path)))


def _files(path: Path) -> Iterator[str]:
    if path.is_dir():
        for folder, _, names in os.walk(path):
            paths = (str(Path(folder, name)) for name in names)
            yield from filter(os.path.isfile, paths)  # a pipe would be waited for
    elif path.is_file():
        yield str(path)


PARTS = ("idle", "exposed memory", "exposed communication", "compute")
_PS_PER_US = 1e6
_PARTS_THREAD = 0


class TimelineWriter:
    """Writes the kernels of each device while its capture is in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._devices = 0
        self._zeros: dict[str, int] = {}  # of each capture: its devices share a clock
        try:
            # the name decides:  step.json    step.json.gz
            opener = gzip.open if path.suffix == ".gz" else open
            self._file = opener(path, "wt", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path}: the timeline cannot be written: {error.strerror}") from None
        self._file.write('{"displayTimeUnit": "ns", "traceEvents": [\n')

    def __call__(self, found: Observed) -> None:
        """Write a device."""
        self._devices += 1
        first_ps = int(found.events.start_ps.min(initial=1 << 62))
        zero_ps = self._zeros.setdefault(found.source, first_ps)
        for event in _events(found, self._devices, zero_ps):
            self._file.write(json.dumps(event, separators=(",", ":")) + ",\n")

    def close(self) -> None:
        """Write the end."""
        self._file.write(
            '{"ph":"M","name":"process_sort_index","pid":1,"args":{"sort_index":1}}]}\n'
        )
        self._file.close()


def _events(found: Observed, pid: int, zero: int) -> Iterator[dict[str, Any]]:
    yield _named("process_name", pid, 0, f"{found.device} {Path(found.source).name}")
    yield _named("thread_name", pid, _PARTS_THREAD, "parts of the step")
    for place, stream in enumerate(found.streams, 1):
        yield _named("thread_name", pid, place, stream)
    events = found.events
    for row in range(len(events)):
        step, op = int(found.step[row]), int(events.op[row])
        known = {"kind": str(KINDS[int(found.kind[row])])}
        if op != ABSENT:
            known["op"] = found.names[op]
        if step != ABSENT:
            known["step"] = str(found.steps[step])
        yield {
            "ph": "X", "pid": pid, "tid": int(found.stream[row]) + 1,
            "ts": (int(events.start_ps[row]) - zero) / _PS_PER_US,
            "dur": int(events.duration_ps[row]) / _PS_PER_US,
            "name": found.names[int(events.name[row])], "args": known,
        }  # fmt: skip
    for number in range(len(found.steps)):
        here = np.flatnonzero(found.step == number)
        for part, begin, end in parts_of(
            events.start_ps[here], events.end_ps[here], found.kind[here]
        ):
            yield {
                "ph": "X", "pid": pid, "tid": _PARTS_THREAD, "ts": (begin - zero) / _PS_PER_US,
                "dur": (end - begin) / _PS_PER_US, "name": part,
                "args": {"step": str(found.steps[number])},
            }  # fmt: skip


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def parts_of(start_ps: Ints, end_ps: Ints, kind: Ints) -> Iterator[tuple[str, int, int]]:
    """Yield the parts of a step in their order: name, begin and end in picoseconds.

    What computes counts before what communicates, and that before what copies, as in a drill.
    """
    if not len(start_ps):
        return
    points = np.concatenate([start_ps, end_ps])
    order = np.argsort(points, kind="stable")
    at = points[order]
    change = np.repeat([1, -1], len(start_ps))[order]
    kinds = np.tile(kind, 2)[order]
    part = np.zeros(len(at), np.int64)
    for value, each in enumerate((Kind.MEMORY, Kind.COMMUNICATION, Kind.COMPUTE), 1):
        part[np.cumsum(np.where(kinds == KINDS.index(each), change, 0)) > 0] = value
    wide = np.flatnonzero(np.diff(at))
    begins, ends, part = at[wide], at[wide + 1], part[wide]
    firsts = np.flatnonzero(np.diff(part, prepend=-1))
    lasts = np.append(firsts[1:], len(part)) - 1
    for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
        yield PARTS[int(part[first])], int(begins[first]), int(ends[last])


def pgle_profile(found: Drill, program: Program | None = None) -> str:
    """Return the mean time of each operation as XLA's scheduler reads it.

    With the program of the capture each name begins with the fingerprint that XLA gave it before it
    was scheduled, `FINGERPRINT::NAME`: of another program XLA then takes no time at all, as of its
    own converter's files (xla/service/gpu/gpu_hlo_schedule.cc, `FilterWithFingerprint`). Its
    checker is silent where it finds every operation, so the shortest one is left out: a log then
    always says how many it found.

    Raises:
        ConfigError: the capture names no operation.
    """
    if not found.ops:
        raise ConfigError(
            "the capture names no operation of the program, so that a profile for XLA would be "
            "empty; profile once with --xla_gpu_enable_command_buffer= (empty)"
        )
    sums: dict[str, tuple[int, int]] = {}
    for row in found.ops:
        spent, count = sums.get(row.name, (0, 0))
        sums[row.name] = spent + row.sum_ps, count + row.count
    costs_us = {name: spent / count / _PS_PER_US for name, (spent, count) in sums.items()}
    lines, front = [], ""
    if program is not None and program.fingerprint is not None:
        lines, front = [f"# of {program.module} for {program.target}"], f"{program.fingerprint}::"
        if len(costs_us) > 1:
            del costs_us[min(costs_us, key=lambda each: costs_us[each])]
    lines += [
        f"costs {{ name: {json.dumps(front + name)} cost_us: {cost_us:.6f} }}"
        for name, cost_us in costs_us.items()
    ]
    return "\n".join(lines) + "\n"
