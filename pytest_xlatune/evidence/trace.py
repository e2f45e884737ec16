"""A capture in memory: devices, their streams, and the events on them as numpy columns.

Readers (`xplane`, `tracejson`) make it, `drill` reads it. Times are integer picoseconds since the
capture's own origin: nothing here is comparable between two files except durations.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

ABSENT = -1  # in an index column: this event has no such attribute


class Backend(StrEnum):
    """What a device is; on CPU a device is an ordinal among the host's events."""

    GPU = "gpu"
    CPU = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Events:
    """Columns of equal length, one element per event.

    `name`, `op` and `module` index `Trace.names`; `launch` is the correlation id (GPU) or the run
    id (CPU) that ties the event to the host call which caused it.
    """

    start_ps: Ints
    duration_ps: Ints
    name: Ints
    op: Ints
    module: Ints
    launch: Ints

    def __len__(self) -> int:
        return len(self.start_ps)

    @property
    def end_ps(self) -> Ints:
        """The end of each event."""
        return self.start_ps + self.duration_ps

    def take(self, which: NDArray[np.bool_] | Ints) -> Events:
        """Return the chosen events: a mask, or positions in the order wanted."""
        return Events(**{column: getattr(self, column)[which] for column in COLUMNS})


COLUMNS = ("start_ps", "duration_ps", "name", "op", "module", "launch")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stream:
    """One line of a device plane: what ran on one queue of the device, in no promised order."""

    name: str
    events: Events


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Device:
    """A device with at least one event on a stream line."""

    name: str  # /device:GPU:0
    backend: Backend
    streams: tuple[Stream, ...]


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """One capture file of one process."""

    source: str
    format: str  # xplane | trace.json
    host: str | None
    names: tuple[str, ...]
    devices: tuple[Device, ...]
    has_all: bool  # its format keeps all events, or says that it dropped some
    planes_present: int  # device planes, idle ones included
    annotations: tuple[Annotation, ...]
    launches: Launches
    started_unix_ns: int | None
    stopped_unix_ns: int | None
    # why the file does not hold the whole window: shown always, and never averaged over
    truncated: str | None
    warnings: tuple[str, ...] = field(default=())


def columns(size: int) -> Events:
    """Return events without attributes, to be filled by a reader that just made them."""
    return Events(
        start_ps=np.zeros(size, np.int64),
        duration_ps=np.zeros(size, np.int64),
        **{each: np.full(size, ABSENT, np.int64) for each in COLUMNS[2:]},
    )


def joined(parts: list[Events]) -> Events:
    """Return the events of all parts, one after the other."""
    if not parts:
        return columns(0)
    return Events(
        **{column: np.concatenate([getattr(part, column) for part in parts]) for column in COLUMNS}
    )


class Names:
    """Strings to indices: equal strings of several planes and files share one."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}

    def __getitem__(self, name: str) -> int:
        return self._index.setdefault(name, len(self._index))

    def __len__(self) -> int:
        return len(self._index)

    def all(self) -> tuple[str, ...]:
        """Return the strings, each at its index."""
        return tuple(self._index)


def without_containers(events: Events) -> Events:
    """Drop events that contain the next one of the same thread: a `while` is its body's time.

    Host events nest; those of a GPU stream do not.
    """
    # of two that start together the longer one is outside
    order = np.lexsort((-events.duration_ps, events.start_ps))
    ordered = events.take(order)
    inner = np.ones(len(ordered), bool)
    if len(ordered) > 1:
        inner[:-1] = ordered.start_ps[1:] >= ordered.end_ps[:-1]
    return ordered.take(inner)


def launches(ids: Ints, start_ps: Ints) -> Launches:
    """Return host calls by id; of several with one id the first is the launch."""
    if (np.diff(ids) > 0).all():
        return Launches(id=ids, start_ps=start_ps)  # as one thread writes them
    order = np.lexsort((start_ps, ids))
    ids, first = np.unique(ids[order], return_index=True)
    return Launches(id=ids, start_ps=start_ps[order][first])
