"""A profiler's capture in memory: its devices, and the kernels of each device as columns.

The readers (`xplane`, `_chrome`) make the same columns from both formats; breakdown, exposed time,
collectives and late ranks are computed from them. Times are integer picoseconds since the start of
the capture, so only durations can be compared between two files.

Each kernel name belongs to a family of `families.toml` or of the user's file. A family also says
what its kernels do in a step: compute, communicate, or move memory. A name never decides whether an
event is a kernel: the planes of the trace do.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

ABSENT = -1  # marks a row without the attribute, in a column of indices


class Backend(StrEnum):
    """What a device is. A CPU device is a device ordinal in the events of the host."""

    GPU = "gpu"
    CPU = "cpu"


class Kind(StrEnum):
    """What a kernel does in a step."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    MEMORY = "memory"


KINDS = tuple(Kind)
# the numbers that stand for them in a column of kinds
COMPUTE, COMMUNICATION, MEMORY = range(len(KINDS))


class Columns(dict[str, NDArray[Any]]):
    """Rows as columns of equal length. A column that was not read is ABSENT in every row."""

    def __missing__(self, column: str) -> Ints:
        return np.full(self.size, ABSENT, np.int64)

    @property
    def size(self) -> int:
        """The number of rows."""
        return next(iter(self.values())).size

    @classmethod
    def joined(cls, parts: Sequence[Columns]) -> Columns:
        """Return the rows of some parts, which have the same columns, one after the other."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            {column: np.concatenate([part[column] for part in parts]) for column in parts[0]}
        )

    def where(self, which: NDArray[np.bool_] | Ints) -> Columns:
        """Return the rows that a mask or some positions choose."""
        return Columns({column: numbers[which] for column, numbers in self.items()})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Device:
    """A device with at least one kernel."""

    name: str  # e.g. /device:GPU:0
    backend: Backend
    streams: tuple[str, ...]  # the names of its streams
    # The kernels in any order. A reader fills these columns:
    #   start_ps, duration_ps   picoseconds on the clock of the capture
    #   name, op, module        the kernel, the operation of the program and the compiled module
    #                           that it belongs to, as indices into `Trace.names`
    #   launch                  the correlation id (GPU) or run id (CPU) of the host's call
    #   stream                  an index into `streams`
    # Once families and steps are known, there are three more:
    #   kind                    an index into `KINDS`
    #   is_counted              whether steps are found by counting it
    #   step                    an index into the steps of the window, or ABSENT
    kernels: Columns

    @classmethod
    def of(
        cls, name: str, backend: Backend, streams: Sequence[tuple[str, Sequence[Columns]]]
    ) -> Device:
        """Return a device with these streams; each has a name and its kernels, in parts."""
        kernels = Columns.joined([part for _, parts in streams for part in parts])
        sizes = [sum(part.size for part in parts) for _, parts in streams]
        kernels["stream"] = np.repeat(np.arange(len(streams), dtype=np.uint16), sizes)
        names = tuple(stream for stream, _ in streams)
        return cls(name=name, backend=backend, streams=names, kernels=kernels)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """One capture file of one process."""

    source: str  # the name of the file
    format: str  # "xplane" or "trace.json"
    names: tuple[str, ...]  # of kernels, operations and modules; columns hold indices
    devices: tuple[Device, ...]  # those with a kernel
    planes_present: int  # the number of device planes, also of devices without a kernel
    # the step markers of the host (jax.profiler.StepTraceAnnotation), which say when a step was
    # dispatched: rows of step, start and end in picoseconds
    marks: Ints
    launches: tuple[Ints, Ints]  # host calls that started work: their ids, sorted, and their starts
    # Why the file does not hold the whole window; None if it does. Such a capture is always shown
    # with the reason and never averaged with others.
    truncated: str | None
    # start and end of the profiler's session, in Unix nanoseconds; None if unknown
    session_ns: tuple[int, int] | None = None
    warnings: tuple[str, ...] = ()  # those of the profiler
    foreign: str | None = None  # the device or profiler, if it is not supported; else None


def by_id(ids: Ints, start_ps: Ints) -> tuple[Ints, Ints]:
    """Return host calls by their ids; if several have one id, the first is the launch."""
    if not (np.diff(ids) > 0).all():  # the ids of one thread are sorted already
        order = np.lexsort((start_ps, ids))
        ids, first = np.unique(ids[order], return_index=True)
        start_ps = start_ps[order][first]
    return ids, start_ps


def without_containers(kernels: Columns) -> Columns:
    """Return kernels without those that contain the next one of the same thread.

    Events of the host nest, so the time of a `while` is that of its body. Those of a GPU stream do
    not nest.
    """
    # if two start together, the longer one contains the other
    ordered = kernels.where(np.lexsort((-kernels["duration_ps"], kernels["start_ps"])))
    start_ps = ordered["start_ps"]
    inner = np.ones(ordered.size, bool)
    inner[:-1] = start_ps[1:] >= (start_ps + ordered["duration_ps"])[:-1]
    return ordered.where(inner)


# /device:TPU:0      host-3 /device:XPU:1      /device:TPU:0 SparseCore 1
_OTHER_DEVICE = re.compile(r"/device:(?!GPU:|CPU:|CUSTOM:)([A-Za-z]\w*):\d{1,9}")


def other_device(planes: Iterable[str]) -> str | None:
    """Return which unsupported device a capture is of, by its planes or processes; None if none."""
    kinds = {kind for plane in planes for kind in _OTHER_DEVICE.findall(plane)}
    devices = " and ".join(sorted(kinds))
    return f"a capture of a {devices}, which `drill` does not read" if kinds else None


_ROUND, _BINARY = 100_000, 1 << 20


def at_a_cap(count: int, what: str, remedy: str, *, is_round: bool = False) -> str | None:
    """Return why events may be missing, if their number is one at which writers stop.

    A collector keeps 2 x 1024 x 1024 events of a kind, and that of ROCm one more. So multiples of
    1024 x 1024, and these plus one, count. With `is_round`, 300,000 and the like count too: jaxlib
    ends trace.json at 1,000,000 events (5,000,000 since mid-2026), and a viewer ends its file where
    its user asks. One file in 80,000 has such a number by chance.
    """
    is_binary = count >= _BINARY and count % _BINARY in (0, 1)
    if not is_binary and not (is_round and count >= _ROUND and count % _ROUND == 0):
        return None
    return (
        f"{count} {what}: the end of the window is missing, because this is a number at which a "
        f"writer stops; {remedy}"
    )


class Names(dict[str, int]):
    """String -> its index. Equal strings of several planes and files share one index."""

    def __missing__(self, name: str) -> int:
        return self.setdefault(name, len(self))


class Family(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A named set of kernels: those whose name contains a match of `pattern`, in any case."""

    name: str
    kind: Kind
    pattern: str
    kernels: tuple[str, ...] = ()  # examples of its names, for the tests
    remedy: str = ""  # which settings help if such a kernel blocks the main stream; "" if none


_LIBRARY = r"(?:nccl|rccl|msccl)\w*"


@functools.cache
def shipped_families() -> tuple[Family, ...]:
    """Return the families of `families.toml`; the last one, `other`, matches every name."""
    text = Path(__file__).with_name("families.toml").read_text(encoding="utf-8")
    rows = tomllib.loads(text.replace("(LIBRARY)", _LIBRARY))["family"]
    return msgspec.convert(rows, tuple[Family, ...])


@functools.lru_cache(maxsize=2)  # the ranks of a window have the same names
def classify(names: tuple[str, ...], families: tuple[Family, ...]) -> tuple[Ints, NDArray[np.int8]]:
    """Return the family and the kind of each name, as indices; the last family matches any."""
    patterns = [re.compile(family.pattern, re.IGNORECASE) for family in families]
    kinds = np.array([KINDS.index(family.kind) for family in families], np.int8)
    matches = (
        next(index for index, pattern in enumerate(patterns) if pattern.search(name))
        for name in names
    )
    family = np.array([*matches], np.int64)
    return family, kinds[family]
