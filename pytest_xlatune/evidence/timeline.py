"""Intervals on one device to busy, idle, overlap and exposure: one sweep over their ends.

Everything is integer picoseconds and adds up exactly:

    sum  = busy + concurrency
    span = busy + idle
    busy = compute + exposed communication + exposed memory

where exposed communication is time with no compute beside it, and exposed memory is time with
neither beside it. Knows nothing of names, steps or files.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import numpy as np
from numpy.typing import NDArray

from pytest_xlatune.evidence.families import KINDS, Kind
from pytest_xlatune.evidence.trace import Ints
from pytest_xlatune.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline(Record):
    """How a stretch of device time was used, in picoseconds. Timelines add up."""

    kernels: int = 0
    sum_ps: int = 0  # every kernel counted in full
    span_ps: int = 0  # first start to last end
    busy_ps: int = 0  # at least one kernel
    compute_ps: int = 0  # unions of one kind
    communication_ps: int = 0
    memory_ps: int = 0
    overlap_ps: int = 0  # compute and communication at once
    exposed_communication_ps: int = 0
    exposed_memory_ps: int = 0

    @property
    def idle_ps(self) -> int:
        """The span without any kernel."""
        return self.span_ps - self.busy_ps

    @property
    def concurrency_ps(self) -> int:
        """What the sum counts more than once."""
        return self.sum_ps - self.busy_ps

    def __add__(self, other: Self) -> Timeline:
        return Timeline(
            **{
                each.name: getattr(self, each.name) + getattr(other, each.name)
                for each in fields(Timeline)
            }
        )


def timeline(start_ps: Ints, end_ps: Ints, kind: Ints) -> tuple[Timeline, Ints]:
    """Sweep over the kernels of one device.

    Args:
        start_ps: start of each kernel.
        end_ps: end of each kernel.
        kind: index in `KINDS` of each kernel.

    Returns:
        The timeline, and of each kernel how long it ran with nothing beside it.
    """
    size = len(start_ps)
    if not size:
        return Timeline(), np.zeros(0, np.int64)
    points = np.concatenate([start_ps, end_ps])
    order = np.argsort(points, kind="stable")
    width = np.diff(points[order], append=points[order[-1]])
    change = np.repeat(np.array([1, -1], np.int8), size)[order]
    kinds = np.tile(kind.astype(np.int8), 2)[order]
    running = [
        np.cumsum(np.where(kinds == KINDS.index(each), change, 0), dtype=np.int32) for each in Kind
    ]
    compute, comm, memory = (each > 0 for each in running)
    depth = running[0] + running[1] + running[2]
    # time alone up to each point; a kernel's own is the difference between its two ends
    alone = np.concatenate([[0], np.cumsum(np.where(depth == 1, width, 0))[:-1]])
    place = np.empty(2 * size, np.int64)
    place[order] = np.arange(2 * size)

    def measure(where: NDArray[np.bool_]) -> int:
        return int((width * where).sum())

    return (
        Timeline(
            kernels=size,
            sum_ps=int((end_ps - start_ps).sum()),
            span_ps=int(points[order[-1]] - points[order[0]]),
            busy_ps=measure(depth > 0),
            compute_ps=measure(compute),
            communication_ps=measure(comm),
            memory_ps=measure(memory),
            overlap_ps=measure(compute & comm),
            exposed_communication_ps=measure(comm & ~compute),
            exposed_memory_ps=measure(memory & ~compute & ~comm),
        ),
        alone[place[size:]] - alone[place[:size]],
    )
