"""The one model of a kernel, and a capture in memory: devices, and what ran on each as columns.

A kernel has a name, a class, the host call that launched it, a stream, a start, a duration, a step
and, where it is one, its collective: the operation of the program. The readers (`xplane`,
`_chrome`) fill all but class and step, which a window gives it; breakdown, exposed time,
collectives and late ranks are questions to these columns. Times are integer picoseconds since the
capture's own origin: nothing here is comparable between two files except durations.

Kernel names belong to families, of `families.toml` or a user's own file. A family also says what
its kernels do to the step: compute, communicate, or move memory. Whether something is a kernel at
all is not decided here, and never by its name: the trace's planes say so.
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

ABSENT = -1  # in an index column: this kernel has no such attribute


class Backend(StrEnum):
    """What a device is; on CPU a device is an ordinal among the host's events."""

    GPU = "gpu"
    CPU = "cpu"


class Kind(StrEnum):
    """What a kernel does to the step: its class."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    MEMORY = "memory"


KINDS = tuple(Kind)
COMPUTE, COMMUNICATION, MEMORY = range(len(KINDS))  # in a column of kinds


def _none() -> Ints:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kernels:
    """What ran on a device, in no promised order: columns of equal length, an element a kernel.

    Attributes:
        start_ps, duration_ps: its time on the capture's clock.
        name, op, module: indices of `Trace.names`; a collective is known by its operation.
        launch: correlation id (GPU) or run id (CPU) of the host call that caused it.
        stream: an index of `Device.streams`.
        kind: an index of `KINDS`; no column until the window's families are known.
        step: an index of the window's steps or ABSENT; no column until they are known.
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
        """Return the chosen kernels as a reader knows them: a mask, or positions in an order."""
        return Kernels(**{column: getattr(self, column)[which] for column in READ})


READ = ("start_ps", "duration_ps", "name", "op", "module", "launch")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Device:
    """A device with at least one kernel; `kernels` are those of all its streams, in their order."""

    name: str  # /device:GPU:0
    backend: Backend
    streams: tuple[str, ...]
    kernels: Kernels

    @classmethod
    def of(cls, name: str, backend: Backend, streams: Sequence[tuple[str, Kernels]]) -> Device:
        """Return a device with some streams: the name and the kernels of each."""
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
    """A host-side step marker: jax.profiler.StepTraceAnnotation. It brackets dispatch, not work."""

    step: int
    start_ps: int
    end_ps: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Launches:
    """Host calls that started device work: id and time, sorted by id."""

    id: Ints
    start_ps: Ints

    @classmethod
    def of(cls, ids: Ints, start_ps: Ints) -> Launches:
        """Return host calls; if several have one id, the first is the launch."""
        if not (np.diff(ids) > 0).all():  # otherwise as one thread writes them
            order = np.lexsort((start_ps, ids))
            ids, first = np.unique(ids[order], return_index=True)
            start_ps = start_ps[order][first]
        return cls(id=ids, start_ps=start_ps)

    def times(self, launch: Ints) -> Ints:
        """Return when each kernel was launched, on the host's clock; ABSENT where nothing says."""
        ids = self.id
        if not len(ids):
            return np.full(len(launch), ABSENT, np.int64)
        place = np.minimum(np.searchsorted(ids, launch), len(ids) - 1)
        return np.where(ids[place] == launch, self.start_ps[place], ABSENT)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """One capture file of one process."""

    source: str
    format: str  # xplane | trace.json
    names: tuple[str, ...]
    devices: tuple[Device, ...]
    planes_present: int  # device planes, idle ones included
    annotations: tuple[Annotation, ...]  # by their starts
    launches: Launches
    started_unix_ns: int | None = None
    stopped_unix_ns: int | None = None
    # why the file does not hold the whole window: shown always, and never averaged over
    truncated: str | None
    warnings: tuple[str, ...] = ()
    foreign: str | None = None  # of another device or profiler than we read: which


def narrow(column: Ints) -> Ints:
    """Return a column in half the memory where its numbers fit."""
    kept = cast("Ints", column.astype(np.int32))
    return kept if (kept == column).all() else column


def joined(parts: Sequence[Kernels]) -> Kernels:
    """Return the kernels of all parts as readers know them, one part after the other."""
    if len(parts) == 1:
        return parts[0]
    columns = {column: [getattr(part, column) for part in parts] or [_none()] for column in READ}
    return Kernels(**{column: np.concatenate(arrays) for column, arrays in columns.items()})


def without_containers(kernels: Kernels) -> Kernels:
    """Drop events that contain the next one of the same thread: a `while` is its body's time.

    Host events nest; those of a GPU stream do not.
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
    """Name the unsupported device that planes or processes show a capture to be of, else None."""
    kinds = {kind for plane in planes for kind in _OTHER_DEVICE.findall(plane)}
    devices = " and ".join(sorted(kinds))
    return f"a capture of a {devices}, which `drill` does not read" if kinds else None


_ROUND, _BINARY = 100_000, 1 << 20


def at_a_cap(count: int, *, is_round: bool = False) -> bool:
    """Tell whether a number of events is one at which writers stop, so that more were there.

    A collector keeps 2 x 1024 x 1024 of a kind, ROCm's one more. With `is_round` such numbers as
    300,000 count too: jaxlib's trace.json ends at 1,000,000 events (5,000,000 since mid-2026), a
    viewer's at what its user asked for. One file in 80,000 has such a number by chance.
    """
    is_binary = count >= _BINARY and count % _BINARY in (0, 1)
    return is_binary or (is_round and count >= _ROUND and count % _ROUND == 0)


class Names(dict[str, int]):
    """The index of each string: equal strings of several planes and files share one."""

    def __missing__(self, name: str) -> int:
        return self.setdefault(name, len(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A named set of kernels: those whose name the pattern finds, in any case of letters."""

    name: str
    kind: Kind
    pattern: str
    remedy: str = ""  # what acts on such a kernel where it blocks the main stream


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
    """Read a user's own families: a list of tables with `name`, `kind` and `pattern`.

    Raises:
        ConfigError: another shape, an unknown kind, a pattern that is no regular expression.
    """
    if not isinstance(data, list):
        raise ConfigError(f"{where}: expected a list of families, found {data!r:.80}")
    families = []
    for item in data:
        if not isinstance(item, dict) or item.keys() != {"name", "kind", "pattern"}:
            raise ConfigError(
                f"{where}: expected name, kind and pattern of a family, found {item!r:.80}"
            )
        name, kind, pattern = (str(item[key]) for key in ("name", "kind", "pattern"))
        if kind not in KINDS:
            raise ConfigError.unknown("kind", kind, valid=KINDS, where=where)
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"{where}: pattern {pattern!r}: {error}") from None
        families.append(Family(name=name, kind=Kind(kind), pattern=pattern))
    return tuple(families)


@functools.lru_cache(maxsize=2)  # ranks of a window bear the same names
def classify(names: tuple[str, ...], families: tuple[Family, ...]) -> tuple[Ints, NDArray[np.int8]]:
    """Return the family (an index; `len(families)` is other) and the kind of each name."""
    patterns = [re.compile(family.pattern, re.IGNORECASE) for family in families]
    kinds = np.array([KINDS.index(family.kind) for family in (*families, OTHER)], np.int8)
    family = np.array(
        [
            next((at for at, pattern in enumerate(patterns) if pattern.search(name)), len(families))
            for name in names
        ],
        np.int64,
    )
    return family, kinds[family]
