"""What studies found of cells and pairs of nodes; reports and studies share it."""

from __future__ import annotations

from typing import ClassVar

from pytest_xlatune.model.message import Message, say
from pytest_xlatune.model.record import Real, Record
from pytest_xlatune.model.result import NoiseRecord
from pytest_xlatune.model.trial import Trial

KIND = "network"
CONCLUSION = "conclusion"  # the arm of a verdict on the whole: no arm of a plot


class CellsRecord(NoiseRecord, frozen=True, kw_only=True):
    """What every study whose arms are cells knows of them.

    Attributes:
        peak_tflops: TFLOP/s that one device can do, as declared; None is unknown.
    """

    kind: ClassVar[str] = "cells"
    peak_tflops: Real | None = None

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
    """What a network study found besides its verdicts.

    Attributes:
        nodes: all that were asked about, by the names that Slurm knows.
        answer: the conclusion in a line.
        accused: the nodes that are shown to be slow with all their partners.
        link: the pair that is shown to be slower than both of its ends elsewhere, or its racks.
        unhealthy: the nodes that cannot communicate.
        pairs: every pair that has run.
        covered: how many of them have a score, of `of_pairs`.
        of_pairs: pairs that the rounds would run.
        node_loss: no other node costs as much or more, at 95 % over all nodes; None if unknown.
        link_loss: the same for links.
        racks: how many; 0 where every pair is run.
        is_fault: whether a node, a link or the cluster is accused.
    """

    kind: ClassVar[str] = KIND
    nodes: tuple[str, ...] = ()
    answer: Message | None = None
    accused: tuple[str, ...] = ()
    link: tuple[str, ...] = ()
    unhealthy: tuple[str, ...] = ()
    pairs: tuple[PairFound, ...] = ()
    covered: int = 0
    of_pairs: int = 0
    node_loss: Real | None = None
    link_loss: Real | None = None
    racks: int = 0
    is_fault: bool = False

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

    @property
    def objection(self) -> tuple[Message, ...]:
        """Why the test of the conclusion fails; () where it passes."""
        return (self.answer,) if self.is_fault and self.answer is not None else ()

    @property
    def summary(self) -> tuple[Message, ...]:
        """The conclusion, and the losses that it excludes."""
        covered = {"nodes": len(self.nodes), "covered": self.covered, "pairs": self.of_pairs}
        found = say(
            "{nodes:+node}, {covered} of {pairs} pairs: {answer}", answer=self.answer, **covered
        )
        if self.node_loss is None:
            return (found,)
        is_other = bool(self.accused or self.link)
        text = (
            "no other node costs {loss:size} or more{links} (95 %)"
            if is_other
            else "no node costs {loss:size} or more{links} (95 %)"
        )
        link = self.link_loss
        links = None if link is None else say(", no link {loss:size}", loss=link)
        return found, say(text, loss=self.node_loss, links=links)
