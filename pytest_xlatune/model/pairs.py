"""Results of studies of cells and of pairs of nodes, shared by studies and reports."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from pytest_xlatune.model.message import Message
from pytest_xlatune.model.record import Real, Record
from pytest_xlatune.model.result import NoiseRecord


class PairFound(Record, frozen=True, kw_only=True):
    """The result of one pair of nodes.

    Attributes:
        nodes: both nodes.
        change: relative change of its speed. Without fresh runs, its first run is compared with
            its round. Fresh runs are compared with the median of all first runs, or, for the
            slowest pair, with the runs beside them.
        runs: number of runs with a score.
    """

    nodes: tuple[str, ...]
    change: Real
    runs: int = 1


class CellsRecord(NoiseRecord, frozen=True, kw_only=True):
    """The common part of the results of studies whose arms are cells.

    Attributes:
        peak_tflops: declared peak of one device in TFLOP/s; None if unknown.
        summary: the answer first, then further lines of a summary.
        objection: why the test of the whole study fails; () if it passes.
        files: name -> text of each file for the work directory that later sweeps can use.
        pairs: the pairs of nodes that ran; () for studies of other arms.
    """

    kind: ClassVar[str] = "cells"
    arms_are_cells: ClassVar[bool] = True
    peak_tflops: Real | None = None
    summary: tuple[Message, ...] = ()
    objection: tuple[Message, ...] = ()
    files: dict[str, str] = msgspec.field(default_factory=dict)
    pairs: tuple[PairFound, ...] = ()
