"""Which nodes are slow: a job on every node at once, what looks slow again beside controls.

An arm is a node: the cell on that node alone. The first run of a node only chooses the
suspects; fresh runs side by side carry an accusation. A node that cannot run the load is an answer
too, and the study goes on. This module must not know of executors or logs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.metric import TGS
from pytest_xlatune.model.profile import BASELINE
from pytest_xlatune.model.record import digest, written
from pytest_xlatune.model.result import Conclusion
from pytest_xlatune.model.trial import Arm, Trial
from pytest_xlatune.studies import (
    Aim,
    Asked,
    DeclaredStudy,
    History,
    LossRule,
    OnNodeFailure,
    Policy,
    Traits,
    remembered,
)
from pytest_xlatune.studies.cell_arms import (
    CellArms,
    refuse_unless_positive,
    results_of,
    trial_of,
)
from pytest_xlatune.studies.node_check._checked import (
    HEALTHY_FILE,
    KIND,
    MEDIAN,
    MIN_NODES,
    MIN_ROUNDS,
    MIN_SUSPECTS,
    ROUND,
    SCREEN,
    SHARE,
    WORDS,
    NodeFindings,
    NodesRecord,
    Word,
    conclusion,
)

__all__ = ["HEALTHY_FILE", "KIND", "MEDIAN", "WORDS", "NodeStudy", "Nodes", "NodesRecord", "Word"]


@written("nodes")
@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes(DeclaredStudy):
    """What a sweep file declares: `Sweep(study=Nodes())`, and the nodes that it is run on.

    Attributes:
        rounds: fresh runs of each suspect, beside the controls.
        controls: nodes near the median that run beside the suspects.
        reference_tgs: Tokens/s/device of a healthy node, from an earlier check of the same cell;
            without it the median of these nodes is all that they are held against.
        reference: the path of an earlier check's `nodes.json`, in the place of `reference_tgs`: its
            median node, if its cell is this one on whatever nodes.
        floor_tgs: Tokens/s/device that every node must exceed; None demands nothing.
        peak_tflops: TFLOP/s that one device can do, for MFU; None is as logs print it.
        key: what tells this check from the last one, e.g. a date: runs of another key are not used.
    """

    kind: ClassVar[str] = KIND
    rounds: int = 4
    controls: int = 4
    reference_tgs: float | None = None
    reference: str = ""
    floor_tgs: float | None = None
    peak_tflops: float | None = None
    key: str = ""

    def __post_init__(self) -> None:
        if self.rounds < MIN_ROUNDS or self.controls < 1:
            raise ConfigError(
                f"nodes: {self.rounds} rounds with {self.controls} controls, expected at least "
                f"{MIN_ROUNDS} rounds and 1 control; 4 and 4 have the error rates of docs/nodes.md"
            )
        refuse_unless_positive(
            "nodes",
            reference_tgs=self.reference_tgs,
            floor_tgs=self.floor_tgs,
            peak_tflops=self.peak_tflops,
        )
        if self.reference and self.reference_tgs is not None:
            raise ConfigError(
                f"nodes: reference={self.reference!r} and reference_tgs={self.reference_tgs:g} are "
                "both given; give one of them"
            )

    def study(self, asked: Asked) -> NodeStudy:
        """Return the study of the pinned nodes, each by itself.

        Raises:
            ConfigError: the earlier check cannot be read, or is of another cell.
        """
        if self.reference:
            tgs = asked.read_reference(self.reference)
            return replace(self, reference="", reference_tgs=tgs).study(asked)
        return NodeStudy(
            cells=tuple(replace(asked.cell, nodelist=(node,)) for node in asked.cell.nodelist),
            asked=self,
            budget=asked.budget,
            seed=asked.seed,
            loss_tolerance=asked.loss_tolerance,
        )


@dataclass(frozen=True, kw_only=True)
class NodeStudy(CellArms):
    """One check of nodes.

    Attributes:
        cells: the load on each node alone.
        asked: the demands.
        budget: jobs that it may cost.
        seed: of the random orders inside a round.
        loss_tolerance: relative distance from the other nodes' loss at which a node computes wrong.
    """

    traits: ClassVar[Traits] = Traits(aim=Aim.ACCUSES, cell_nodes=1)
    cells: tuple[Cell, ...]
    asked: Nodes = Nodes()
    budget: int = 50
    seed: int = 0
    loss_tolerance: float = 0.02

    def __post_init__(self) -> None:
        found = [each.nodelist[0] for each in self.cells if len(each.nodelist) == 1]
        if len(found) < MIN_NODES:
            raise ConfigError(
                f"a node study compares nodes with each other: {len(found)} are named, at least "
                f"{MIN_NODES} are needed (--xlatune-nodelist 'node[001-008]')"
            )
        if len({each.lower() for each in found}) < len(found):
            raise ConfigError(
                f"the node list {','.join(found)} names a node twice; name each node once"
            )
        if len(found) > self.budget:
            raise ConfigError(
                f"{len(found)} nodes need {len(found)} jobs to begin with, the budget is "
                f"{self.budget}; ask for --xlatune-budget {self.most_jobs}, which is the most that "
                "it takes"
            )
        if self.asked.floor_tgs is not None and self.cells[0].protocol.scored_by is not TGS:
            raise ConfigError(
                f"a node study has a floor of {self.asked.floor_tgs:g} TGS, but its protocol "
                f"scores {self.cells[0].protocol.metric!r}; leave the floor out, or score 'tgs'"
            )

    @cached_property
    def name(self) -> str:
        """The study's word, and which check it is where that was said."""
        return f"{KIND}-{digest([self.asked.key], length=8)}" if self.asked.key else KIND

    @property
    def policy(self) -> Policy:
        """A node that cannot run is an answer; all nodes compute the same."""
        return Policy(on_node_failure=OnNodeFailure.VERDICT, loss=LossRule.NONE, asks_nodes=True)

    @property
    def most_suspects(self) -> int:
        """How many nodes are run again at most."""
        return max(MIN_SUSPECTS, len(self.cells) // SHARE)

    @property
    def most_jobs(self) -> int:
        """What it costs where as many nodes as can be are run again."""
        return len(self.cells) + self.asked.rounds * (self.most_suspects + self.asked.controls)

    @cached_property
    def _arms(self) -> tuple[Arm, ...]:
        return tuple(
            Arm(id=each.nodelist[0].lower(), cell_digest=each.digest, profile=BASELINE)
            for each in self.cells
        )

    def arms(self, history: History) -> tuple[Arm, ...]:
        """Return the nodes, in the order of the node list."""
        del history
        return self._arms

    def propose(self, history: History) -> tuple[Trial, ...]:
        """Return the first runs that are not over, then one round after the other."""
        return self._checked(history).pending

    def left(self, history: History) -> int:
        """Return how many trials are likely still to come: all rounds of the suspects so far."""
        return self._checked(history).left

    def outline(self, history: History) -> tuple[str, ...]:
        """Return what a plan says of it: jobs and waves."""
        del history
        nodes, asked = len(self.cells), self.asked
        return (
            f"{nodes} jobs, one on each node, all at once",
            (
                f"then {asked.rounds} rounds of the suspects (at most {self.most_suspects}) and "
                f"{asked.controls} controls: at most {min(self.most_jobs, self.budget)} jobs in "
                f"{1 + asked.rounds} waves"
            ),
        )

    @remembered
    def conclude(self, history: History) -> Conclusion:
        """Return a verdict on every node, and the nodes that can be recommended."""
        return conclusion(self._checked(history))

    @remembered
    def _checked(self, history: History) -> NodeFindings:
        return NodeFindings(study=self, results=results_of(self, history))

    def place(self, trial: Trial) -> str:
        """Return where a run stands: `first run of 32 nodes`, then `round 2 of 4`."""
        if trial.stage == SCREEN:
            return f"first run of {len(self.cells)} nodes"
        return f"round {trial.block} of {self.asked.rounds}, suspects and controls"

    def first_trials(self) -> tuple[Trial, ...]:
        """Return the first run of every node."""
        return tuple(self._trial(arm, SCREEN, 0) for arm in self._arms)

    def round_of(self, number: int, names: Sequence[str]) -> tuple[Trial, ...]:
        """Return a round of these nodes in an order of its own."""

        def drawn(arm: Arm) -> str:
            return digest([self.seed, number, arm.cell_digest])

        arms = sorted((arm for arm in self._arms if arm.id in names), key=drawn)
        return tuple(self._trial(arm, ROUND, number) for arm in arms)

    def _trial(self, arm: Arm, stage: str, block: int) -> Trial:
        return trial_of(arm, self.cells[0], study=self.name, stage=stage, block=block)
