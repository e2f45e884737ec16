"""What studies found of cells and pairs of nodes; reports and studies share it."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from pytest_xlatune.model.message import Message
from pytest_xlatune.model.record import Real, Record
from pytest_xlatune.model.result import NoiseRecord
from pytest_xlatune.model.trial import Trial

KIND = "network"
CONCLUSION = "conclusion"  # the arm of a verdict on the whole: no arm of a plot


class CellsRecord(NoiseRecord, frozen=True, kw_only=True):
    """What every study whose arms are cells says besides its verdicts.

    Attributes:
        peak_tflops: TFLOP/s that one device can do, as declared; None is unknown.
        summary: the answer, then what else a summary says.
        objection: what the test of the whole study fails on; () where it passes.
        files: files that later sweeps can take, kept in the work directory: name -> text.
    """

    kind: ClassVar[str] = "cells"
    peak_tflops: Real | None = None
    summary: tuple[Message, ...] = ()
    objection: tuple[Message, ...] = ()
    files: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def pairs(self) -> tuple[PairFound, ...]:
        """The pairs of nodes that ran; () of studies whose arms are no nodes in pairs."""
        return ()

    @property
    def named(self) -> tuple[str, ...]:
        """The nodes that the answer names, which a plot of pairs shows first."""
        return ()

    def shown_by(self, trial: Trial, nodes: tuple[str, ...]) -> tuple[str, ...]:
        """Return the arm of a trial."""
        del nodes
        return (trial.arm,)


class PairFound(Record, frozen=True, kw_only=True):
    """One pair of nodes.

    Attributes:
        nodes: both.
        delta: of its first run against the median of its round, a relative change.
        fresh: of its fresh runs against the median of all first runs; of the slowest pair, whose
            runs have others beside them, against those. None without any.
        runs: that have a score.
    """

    nodes: tuple[str, ...]
    delta: Real | None = None
    fresh: Real | None = None
    runs: int = 0

    @property
    def change(self) -> float | None:
        """The one figure that is told: of fresh runs, for a first one chose them; else of it."""
        return self.delta if self.fresh is None else self.fresh


class NetworkRecord(CellsRecord, frozen=True, kw_only=True):
    """Whom a network study accuses, what it excludes, and every pair that it ran.

    Attributes:
        accused: the nodes that are shown to be slow with all their partners.
        link: the pair that is shown to be slower than both of its ends elsewhere, or its racks.
        unhealthy: the nodes that cannot communicate.
        pairs: every pair that has run.
        node_loss: no other node costs as much or more, at 95 % over all nodes; None if unknown.
        link_loss: the same for links.
    """

    kind: ClassVar[str] = KIND
    accused: tuple[str, ...] = ()
    link: tuple[str, ...] = ()
    unhealthy: tuple[str, ...] = ()
    pairs: tuple[PairFound, ...] = ()
    node_loss: Real | None = None
    link_loss: Real | None = None

    def shown_by(self, trial: Trial, nodes: tuple[str, ...]) -> tuple[str, ...]:
        """Return both nodes of a pair."""
        del trial
        return tuple(name.lower() for name in nodes)

    @property
    def named(self) -> tuple[str, ...]:
        """The accused nodes, and those of the link."""
        return (*self.accused, *self.link)

    def shown_name(self, arm: str) -> str:
        """Return the link that the verdict on the whole accuses, or that it is on the whole."""
        if arm != CONCLUSION:
            return arm
        return "-".join(self.link) or "the whole network"
