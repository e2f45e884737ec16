"""What studies found of cells and pairs of nodes; reports and studies share it."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from pytest_xlatune.model.message import Message
from pytest_xlatune.model.record import Real, Record
from pytest_xlatune.model.result import NoiseRecord


class PairFound(Record, frozen=True, kw_only=True):
    """One pair of nodes.

    Attributes:
        nodes: both.
        change: by fresh runs where it has any, against the median of all first runs, or of the
            slowest pair against the runs beside them; else by its first run against its round.
        runs: that have a score.
    """

    nodes: tuple[str, ...]
    change: Real
    runs: int = 1


class CellsRecord(NoiseRecord, frozen=True, kw_only=True):
    """What every study whose arms are cells says besides its verdicts.

    Attributes:
        peak_tflops: TFLOP/s that one device can do, as declared; None is unknown.
        summary: the answer, then what else a summary says.
        objection: what the test of the whole study fails on; () where it passes.
        files: files that later sweeps can take, kept in the work directory: name -> text.
        pairs: of nodes that ran; () of studies whose arms are no nodes in pairs.
    """

    kind: ClassVar[str] = "cells"
    arms_are_cells: ClassVar[bool] = True
    peak_tflops: Real | None = None
    summary: tuple[Message, ...] = ()
    objection: tuple[Message, ...] = ()
    files: dict[str, str] = msgspec.field(default_factory=dict)
    pairs: tuple[PairFound, ...] = ()
