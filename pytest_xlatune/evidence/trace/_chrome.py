"""Read a `*.trace.json.gz` into a `Trace`, where there is no xplane.pb for `xplane` to read.

jaxlib writes at most 1,000,000 events into this file (5,000,000 since mid-2026), the earliest ones,
and says nothing. A file that holds exactly so many is marked truncated. A file is read as a stream,
in bounded memory, whatever it unpacks to.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import re
import zlib
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pytest_xlatune.evidence.trace import (
    ABSENT,
    Backend,
    Columns,
    Device,
    Ints,
    Names,
    Trace,
    at_a_cap,
    by_id,
    other_device,
    without_containers,
)
from pytest_xlatune.model.errors import ParseError

_CHUNK = 1 << 20
_MAX_EVENT = 1 << 22  # characters of one event; the longest name is some thousand
_MAX_US = 2e12  # 23 days: in picoseconds the sum of two still fits in 63 bits

# what the code below raises for foreign JSON and damaged gzip
_WRONG = (
    ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, zlib.error,
    EOFError, gzip.BadGzipFile,
)  # fmt: skip

# a process name, of jaxlib and of xprof:  /device:GPU:3    node001 /device:GPU:3
_GPU = re.compile(r"/device:GPU:\d{1,9}(?!\d)")
# "cat" of kineto's events; JAX's have none
_KINETO = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cpu_op", "hip_runtime"})
_OF_KINETO = "a PyTorch (kineto) trace; `drill` reads what JAX's profiler writes"
# the start of the only list that we read:  "traceEvents":[
_LIST = re.compile(r'"traceEvents"\s*:\s*\[')
_GAP = re.compile(r"[\s,]*")


def read_trace_json(data: bytes, source: str) -> Trace:
    """Decode a whole file of the trace-viewer format, gzipped or plain; `source` is its name.

    Raises:
        ParseError: the file is empty, truncated, foreign or hostile.
    """
    if not data:
        raise ParseError(f"{source}: the file is empty; expected a trace.json.gz of the profiler")
    reader = _ChromeReader()
    file: Any = io.BytesIO(data)
    if data.startswith(b"\x1f\x8b"):
        file = gzip.GzipFile(fileobj=file)
    try:
        for event in _elements(io.TextIOWrapper(file, "utf-8", "replace")):
            reader.take(event)
    except _WRONG as error:
        raise ParseError(
            f"{source}: no readable trace.json: {type(error).__name__}: {str(error)[:200]}; the "
            f"file ({len(data)} bytes) is truncated, damaged or of another format: copy it again, "
            "or take the xplane.pb beside it"
        ) from None
    return reader.trace(source)


def _elements(file: io.TextIOWrapper) -> Iterator[Any]:
    """Yield the elements of "traceEvents", each parsed alone; numbers stay strings."""
    decoder = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=str)
    text, at, inside = "", 0, False
    while piece := file.read(_CHUNK):
        text, at = text[at:] + piece, 0
        if not inside:
            match = _LIST.search(text)
            if match is None:
                at = max(0, len(text) - _CHUNK)
                continue
            at, inside = match.end(), True
        while True:
            gap = _GAP.match(text, at)
            at = gap.end() if gap else at
            if text.startswith("]", at):
                return
            try:
                element, at = decoder.raw_decode(text, at)
            except json.JSONDecodeError as error:
                if len(text) - at > _MAX_EVENT:
                    raise ValueError(f"an event that is no JSON: {error.msg}") from None
                break  # the rest of it comes with the next piece
            yield element
    raise ValueError("the list of events does not end" if inside else 'no "traceEvents" in it')


class _ChromeReader:
    def __init__(self) -> None:
        self._names = Names()
        self._processes: dict[str, str] = {}
        self._threads: dict[tuple[str, str], str] = {}
        # each array is flat, row after row; the key is (device, process, thread) of the kernels
        self._lines: dict[tuple[str, str, str], array[int]] = defaultdict(lambda: array("q"))
        self._marks = array("q")
        self._launches = {key: array("q") for key in ("correlation_id", "run_id")}
        self._count = 0
        self._is_kineto = False

    def take(self, event: Any) -> None:
        kind = event.get("ph")
        if kind == "X":
            self._count += 1
            self._is_kineto |= event.get("cat") in _KINETO
            self._complete(event, event.get("args", {}))
        elif kind == "M" and event["name"] == "process_name":
            # a GPU is known by this name, because xprof numbers processes anew
            self._processes[event["pid"]] = event["args"]["name"]
        elif kind == "M" and event["name"] == "thread_name":
            self._threads[event["pid"], event["tid"]] = event["args"]["name"]

    def _complete(self, event: dict[str, Any], args: dict[str, str]) -> None:
        line = event["pid"], event["tid"]
        # event names do not show a GPU: the host's `EventWaiter` would pass for a kernel of aiter
        gpu = _GPU.search(self._processes.get(event["pid"], ""))
        device, launch = "", ""
        if gpu:
            if not self._threads.get(line, "").startswith("Stream"):
                return
            device, launch = gpu.group(), "correlation_id"
        elif "device_ordinal" in args and "hlo_op" in args:
            device, launch = f"/host:CPU:{int(args['device_ordinal'])}", "run_id"
        if device:
            self._lines[device, *line].extend(
                (
                    _ps(event["ts"]),
                    _ps(event["dur"]),
                    self._names[event["name"]],
                    self._names[args["hlo_op"]] if "hlo_op" in args else ABSENT,
                    self._names[args["hlo_module"]] if "hlo_module" in args else ABSENT,
                    int(args[launch]) if launch in args else ABSENT,
                )
            )
        elif "step_num" in args:
            start_ps = _ps(event["ts"])
            self._marks.extend((int(args["step_num"]), start_ps, start_ps + _ps(event["dur"])))
        elif "device_ordinal" not in args:
            for key, calls in self._launches.items():
                if key in args:
                    calls.extend((int(args[key]), _ps(event["ts"])))

    def trace(self, source: str) -> Trace:
        devices: dict[str, list[tuple[str, Sequence[Columns]]]] = defaultdict(list)
        for (device, pid, tid), line in self._lines.items():
            # in the order in which `_complete` fills them
            read = ("start_ps", "duration_ps", "name", "op", "module", "launch")
            kernels = Columns(zip(read, _rows(line, len(read)), strict=True))
            if not _GPU.fullmatch(device):
                kernels = without_containers(kernels)
            devices[device].append((self._threads.get((pid, tid), tid), [kernels]))
        gpus = [name for name in devices if _GPU.fullmatch(name)]
        backend = Backend.GPU if gpus else Backend.CPU
        names = sorted(gpus or devices, key=lambda name: int(name.rpartition(":")[2]))
        return Trace(
            source=source,
            format="trace.json",
            names=tuple(self._names),
            devices=tuple(Device.of(name, backend, devices[name]) for name in names),
            planes_present=sum(bool(_GPU.search(name)) for name in self._processes.values()),
            marks=_rows(self._marks, 3),
            launches=by_id(*_rows(self._launches["correlation_id" if gpus else "run_id"], 2)),
            truncated=at_a_cap(self._count, "events", "read the xplane.pb", is_round=True),
            foreign=_OF_KINETO if self._is_kineto else other_device(self._processes.values()),
        )


def _rows(flat: array[int], columns: int) -> Ints:
    """Return the columns of an array that holds row after row."""
    return np.array(flat, np.int64).reshape(-1, columns).T


def _ps(text: str) -> int:
    """Return a time in microseconds, as the JSON has it, in picoseconds.

    jaxlib prints doubles with 17 digits; a zero duration is printed as 1e-06.
    """
    value = float(text)
    if not (math.isfinite(value) and abs(value) < _MAX_US):
        raise ValueError(f"a time of {text[:40]} us")
    return round(value * 1e6)
