"""A profiler's capture in memory: its devices, and the kernels of each device as columns.

A kernel has a name, a kind, the host call that launched it, a stream, a start, a duration and a
step. A collective also has the operation of the program that it belongs to. The readers (`xplane`,
`_chrome`) fill all columns but kind and step, which are known once a window is chosen. The other
modules compute breakdown, exposed time, collectives and late ranks from these columns. Times are
integer picoseconds since the start of the capture, so only durations can be compared between two
files.

Each kernel name belongs to a family of `families.toml` or of the user's file. A family also says
what its kernels do in a step: compute, communicate, or move memory. A name never decides whether an
event is a kernel: the planes of the trace do.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.record import Json

Ints = NDArray[np.int64]

ABSENT = -1  # in a column of indices: the kernel has no such attribute


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


def _none() -> Ints:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kernels:
    """The kernels of a device in any order: columns of equal length with one element per kernel.

    Attributes:
        start_ps: when the kernel started, in picoseconds on the clock of the capture.
        duration_ps: how long it ran, in picoseconds.
        name: its name, an index into `Trace.names`.
        op: the operation of the program that it belongs to, an index into `Trace.names`.
        module: the compiled module that it belongs to, an index into `Trace.names`.
        launch: the correlation id (GPU) or run id (CPU) of the host call that started it.
        stream: an index into `Device.streams`.
        kind: an index into `KINDS`; an empty column until the families are known.
        step: an index into the steps of the window, or ABSENT; an empty column until the steps are
            known.
    """

    start_ps: Ints
    duration_ps: Ints
    name: Ints
    op: Ints
    module: Ints
    launch: Ints
    stream: NDArray[np.uint16] = field(default_factory=lambda: np.zeros(0, np.uint16))
    kind: NDArray[np.int8] = field(default_factory=lambda: np.zeros(0, np.int8))
    step: Ints = field(default_factory=_none)

    def __len__(self) -> int:
        return len(self.start_ps)

    @property
    def end_ps(self) -> Ints:
        """The end of each kernel."""
        return self.start_ps + self.duration_ps

    def take(self, which: NDArray[np.bool_] | Ints) -> Kernels:
        """Return the kernels that a mask or some positions choose, with the columns in READ."""
        return Kernels(**{column: getattr(self, column)[which] for column in READ})


# the columns that a reader fills
READ = ("start_ps", "duration_ps", "name", "op", "module", "launch")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Device:
    """A device with at least one kernel; `kernels` has those of all streams, stream by stream."""

    name: str  # e.g. /device:GPU:0
    backend: Backend
    streams: tuple[str, ...]
    kernels: Kernels

    @classmethod
    def of(cls, name: str, backend: Backend, streams: Sequence[tuple[str, Kernels]]) -> Device:
        """Return a device with these streams; each has a name and its kernels."""
        kernels = joined([part for _, part in streams])
        sizes = [len(part) for _, part in streams]
        stream = np.repeat(np.arange(len(streams)), sizes).astype(np.uint16)
        return cls(
            name=name,
            backend=backend,
            streams=tuple(stream_name for stream_name, _ in streams),
            kernels=Kernels(stream=stream, **{column: getattr(kernels, column) for column in READ}),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """A step marker of the host, jax.profiler.StepTraceAnnotation: when a step was dispatched."""

    step: int
    start_ps: int
    end_ps: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Launches:
    """Host calls that started work on a device: their ids and times, sorted by id."""

    id: Ints
    start_ps: Ints

    @classmethod
    def of(cls, ids: Ints, start_ps: Ints) -> Launches:
        """Return host calls; if several have one id, the first is the launch."""
        if not (np.diff(ids) > 0).all():  # the ids of one thread are sorted already
            order = np.lexsort((start_ps, ids))
            ids, first = np.unique(ids[order], return_index=True)
            start_ps = start_ps[order][first]
        return cls(id=ids, start_ps=start_ps)

    def times(self, launch: Ints) -> Ints:
        """Return when each kernel was launched, on the host's clock; ABSENT where it is unknown."""
        ids = self.id
        if not len(ids):
            return np.full(len(launch), ABSENT, np.int64)
        place = np.minimum(np.searchsorted(ids, launch), len(ids) - 1)
        return np.where(ids[place] == launch, self.start_ps[place], ABSENT)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """One capture file of one process."""

    source: str
    format: str  # "xplane" or "trace.json"
    names: tuple[str, ...]  # all names of kernels, operations and modules; columns hold indices
    devices: tuple[Device, ...]
    planes_present: int  # the number of device planes, also of devices without a kernel
    annotations: tuple[Annotation, ...]  # sorted by their starts
    launches: Launches
    started_unix_ns: int | None = None
    stopped_unix_ns: int | None = None
    # why the file does not hold the whole window; None if it does. Such a capture is always shown
    # with the reason and never averaged with others
    truncated: str | None
    warnings: tuple[str, ...] = ()
    foreign: str | None = None  # the device or profiler, if it is not supported; else None


def narrow(column: Ints) -> Ints:
    """Return a column as 32-bit integers if its numbers fit, in half the memory."""
    kept = cast("Ints", column.astype(np.int32))
    return kept if (kept == column).all() else column


def joined(parts: Sequence[Kernels]) -> Kernels:
    """Return the kernels of all parts, one part after the other, with the columns in READ."""
    if len(parts) == 1:
        return parts[0]
    columns = {column: [getattr(part, column) for part in parts] or [_none()] for column in READ}
    return Kernels(**{column: np.concatenate(arrays) for column, arrays in columns.items()})


def without_containers(kernels: Kernels) -> Kernels:
    """Return kernels without those that contain the next one of the same thread.

    Events of the host nest, so the time of a `while` is that of its body. Those of a GPU stream do
    not nest.
    """
    # if two start together, the longer one contains the other
    order = np.lexsort((-kernels.duration_ps, kernels.start_ps))
    ordered = kernels.take(order)
    inner = np.ones(len(ordered), bool)
    if len(ordered) > 1:
        inner[:-1] = ordered.start_ps[1:] >= ordered.end_ps[:-1]
    return ordered.take(inner)


# /device:TPU:0      host-3 /device:XPU:1      /device:TPU:0 SparseCore 1
_OTHER_DEVICE = re.compile(r"/device:(?!GPU:|CPU:|CUSTOM:)([A-Za-z]\w*):\d{1,9}")


def other_device(planes: Iterable[str]) -> str | None:
    """Say which unsupported device a capture is of, by its planes or processes; None if of none."""
    kinds = {kind for plane in planes for kind in _OTHER_DEVICE.findall(plane)}
    devices = " and ".join(sorted(kinds))
    return f"a capture of a {devices}, which `drill` does not read" if kinds else None


_ROUND, _BINARY = 100_000, 1 << 20


def at_a_cap(count: int, *, is_round: bool = False) -> bool:
    """Return whether a number of events is one at which writers stop, so that some may be missing.

    A collector keeps 2 x 1024 x 1024 events of a kind, that of ROCm one more. With `is_round`,
    numbers such as 300,000 count too: jaxlib ends trace.json at 1,000,000 events (5,000,000 since
    mid-2026), and a viewer ends its file at the number that its user asked for. One file in 80,000
    has such a number by chance.
    """
    is_binary = count >= _BINARY and count % _BINARY in (0, 1)
    return is_binary or (is_round and count >= _ROUND and count % _ROUND == 0)


class Names(dict[str, int]):
    """String -> its index. Equal strings of several planes and files share one index."""

    def __missing__(self, name: str) -> int:
        return self.setdefault(name, len(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A named set of kernels: those whose name contains a match of `pattern`, in any case."""

    name: str
    kind: Kind
    pattern: str
    remedy: str = ""  # which settings help if such a kernel blocks the main stream; "" if none


OTHER = Family(name="other", kind=Kind.COMPUTE, pattern="")
_LIBRARY = r"(?:nccl|rccl|msccl)\w*"


@functools.cache
def shipped_families() -> tuple[Family, ...]:
    """Return the families of `families.toml`."""
    text = Path(__file__).with_name("families.toml").read_text(encoding="utf-8")
    return tuple(
        Family(
            name=row["name"],
            kind=Kind(row["kind"]),
            pattern=row["pattern"].replace("(LIBRARY)", _LIBRARY),
            remedy=row.get("remedy", ""),
        )
        for row in tomllib.loads(text)["family"]
    )


def parse_families(data: Json, *, where: str) -> tuple[Family, ...]:
    """Read the families of a user: a list of tables with `name`, `kind` and `pattern`.

    Raises:
        ConfigError: the data have another shape, a kind is unknown, or a pattern is no regular
            expression.
    """
    if not isinstance(data, list):
        raise ConfigError(f"{where}: expected a list of families, found {data!r:.80}")
    families = []
    for row in data:
        if not isinstance(row, dict) or row.keys() != {"name", "kind", "pattern"}:
            raise ConfigError(
                f"{where}: expected name, kind and pattern of a family, found {row!r:.80}"
            )
        name, kind, pattern = (str(row[key]) for key in ("name", "kind", "pattern"))
        if kind not in KINDS:
            raise ConfigError.unknown("kind", kind, valid=KINDS, where=where)
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"{where}: pattern {pattern!r}: {error}") from None
        families.append(Family(name=name, kind=Kind(kind), pattern=pattern))
    return tuple(families)


@functools.lru_cache(maxsize=2)  # the ranks of a window have the same names
def classify(names: tuple[str, ...], families: tuple[Family, ...]) -> tuple[Ints, NDArray[np.int8]]:
    """Return the family and the kind of each name, as indices; `len(families)` is no family."""
    patterns = [re.compile(family.pattern, re.IGNORECASE) for family in families]
    kinds = np.array([KINDS.index(family.kind) for family in (*families, OTHER)], np.int8)
    family = np.array(
        [
            next(
                (index for index, pattern in enumerate(patterns) if pattern.search(name)),
                len(families),
            )
            for name in names
        ],
        np.int64,
    )
    return family, kinds[family]
