"""Which node or link slows the network: rounds of disjoint pairs, then fresh pairs side by side.

An arm is a node; a trial is a pair of nodes under a two-node load. A
pair's single run only chooses which pairs run again. A node that cannot communicate is an answer
too, and the study goes on without it. This module must not know of executors or logs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.hosts import expand, switches
from pytest_xlatune.model.metric import TGS
from pytest_xlatune.model.pairs import CONCLUSION, KIND, NetworkRecord, PairFound
from pytest_xlatune.model.profile import BASELINE
from pytest_xlatune.model.record import digest, written
from pytest_xlatune.model.result import Conclusion
from pytest_xlatune.model.text import counted
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
from pytest_xlatune.studies.network_check._pairs import MIN_RACKS, Pair, PairLayout
from pytest_xlatune.studies.network_check._said import (
    NetworkWord,
    conclusion,
    load_of,
)
from pytest_xlatune.studies.network_check._walk import (
    AGAIN,
    FIRST_ROUNDS,
    LEAST_REPEATS,
    LINK,
    NODES,
    REPEATS,
    ROUND,
    SHARE,
    SHARE_OF_PAIRS,
    Walk,
)

__all__ = ["CONCLUSION", "KIND", "Network", "NetworkRecord", "NetworkStudy", "NetworkWord",
           "PairFound"]  # fmt: skip

MIN_NODES = 4
MIN_STEPS = 8  # of a training load: step 0 compiles, the first ones warm up
BY_RACKS_FROM = 17  # nodes from which racks, or the bandwidth test, save most of the cost
_SLUG_CHARS = 64
# what runs again in a stage after the rounds
_AGAIN = {NODES: "slow nodes again", AGAIN: "slow pairs again", LINK: "the slowest pair again"}


@written("network")
@dataclass(frozen=True, slots=True, kw_only=True)
class Network(DeclaredStudy):
    """What a sweep file declares: `Sweep(study=Network())`, and the nodes that it is run on.

    Attributes:
        racks: rack or leaf switch -> its nodes as a host list, e.g. `node[001-016]`; () runs every
            pair. With racks, every pair inside each rack and one pair between each two racks.
        topology: the text of Slurm's topology.conf, in the place of `racks`.
        peak_tflops: TFLOP/s that one device can do, for MFU; None is as logs print it.
        key: what tells this check from the last one, e.g. a date: runs of another key are not used.
    """

    kind: ClassVar[str] = KIND
    racks: dict[str, str] = field(default_factory=dict)
    topology: str = ""
    peak_tflops: float | None = None
    key: str = ""

    def __hash__(self) -> int:
        return hash((tuple(self.racks.items()), self.topology, self.key))

    def __post_init__(self) -> None:
        refuse_unless_positive("network", peak_tflops=self.peak_tflops)
        if self.racks and self.topology:
            raise ConfigError("network: racks and a topology are both given; give one of them")

    @property
    def groups(self) -> Mapping[str, str]:
        """The racks and their host lists, wherever they were told."""
        if not self.topology:
            return self.racks
        if found := switches(self.topology):
            return found
        raise ConfigError(
            "network: the topology names no switch with nodes, expected lines such as "
            "'SwitchName=leaf01 Nodes=node[001-016]' (Slurm's topology.conf)"
        )

    def study(self, asked: Asked) -> NetworkStudy:
        """Return the study of the pinned nodes in pairs."""
        return NetworkStudy(cell=asked.cell, asked=self, budget=asked.budget)


@dataclass(frozen=True, kw_only=True)
class NetworkStudy(CellArms):
    """One check of a network.

    Attributes:
        cell: the load of two nodes, and all nodes of the check.
        asked: the demands.
        budget: jobs that it may cost.
    """

    traits: ClassVar[Traits] = Traits(aim=Aim.ACCUSES, cell_nodes=2)
    cell: Cell
    asked: Network = Network()
    budget: int = 50

    def __post_init__(self) -> None:
        names = self.cell.nodelist
        if len(names) < MIN_NODES:
            raise ConfigError(
                f"a network study compares pairs of nodes with each other: {len(names)} nodes are "
                f"named, at least {MIN_NODES} are needed (--xlatune-nodelist 'node[001-008]')"
            )
        if len({each.lower() for each in names}) < len(names):
            raise ConfigError(
                f"the node list {','.join(names)} names a node twice; name each node once"
            )
        if CONCLUSION in (each.lower() for each in names):
            raise ConfigError(
                f"a node is named {CONCLUSION!r}, as the verdict on the whole network is; leave "
                "it out of the node list"
            )
        protocol = self.cell.protocol
        if protocol.scored_by is TGS and protocol.steps < MIN_STEPS:
            raise ConfigError(
                f"a network study scores steady training steps, but its protocol runs "
                f"{protocol.steps}: expected {MIN_STEPS} or more, e.g. Protocol(steps=10, "
                "first_step=3, min_steps=5); a single step is compilation"
            )
        least = sum(map(len, self.layout.inside[:FIRST_ROUNDS]))
        if least > self.budget:
            raise ConfigError(
                f"{len(names)} nodes need {least} jobs to begin with ({FIRST_ROUNDS} rounds of "
                f"pairs), the budget is {self.budget}; ask for --xlatune-budget {self.most_jobs}, "
                "which is the most that it takes"
            )

    @cached_property
    def layout(self) -> PairLayout:
        """The pairs of all rounds.

        Raises:
            ConfigError: the racks and the node list do not fit.
        """
        names = self.cell.nodelist
        groups = self.asked.groups
        if not groups:
            return PairLayout(nodes=names, racks={})
        listed = {rack: expand(text) for rack, text in groups.items()}
        known = set(names)
        racks = {
            rack: own
            for rack, each in listed.items()
            if (own := tuple(n for n in each if n in known))
        }
        told = [node for own in racks.values() for node in own]
        missing = [node for node in names if node not in set(told)]
        if missing or len(told) > len(set(told)):
            twice = sorted({node for node in told if told.count(node) > 1})
            raise ConfigError(
                f"network: the racks name {len(set(told))} of {counted(len(names), 'node')}; "
                + (f"without a rack: {', '.join(missing[:8])}" if missing else "")
                + (f"in two racks: {', '.join(twice[:8])}" if twice else "")
                + "; name each node of the node list in one rack"
            )
        if len(racks) < MIN_RACKS:
            # what lies between two racks can only be held against other pairs of racks
            return PairLayout(nodes=names, racks={})
        if max(map(len, racks.values())) < MIN_NODES:
            raise ConfigError(
                f"network: no rack holds {MIN_NODES} nodes or more, so no pair inside one has "
                "others beside it; leave the racks out"
            )
        return PairLayout(nodes=names, racks=racks)

    @cached_property
    def _by_pair(self) -> Mapping[Pair, Cell]:
        return {pair: replace(self.cell, nodelist=pair) for pair in self.layout.pairs}

    @cached_property
    def _pairs(self) -> Mapping[str, Pair]:
        return {cell.digest: pair for pair, cell in self._by_pair.items()}

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """The load on each pair that may be run."""
        return tuple(self._by_pair.values())

    @cached_property
    def name(self) -> str:
        """The study's word, and which check it is where that was said."""
        return f"{KIND}-{digest([self.asked.key], length=8)}" if self.asked.key else KIND

    @property
    def policy(self) -> Policy:
        """A node that cannot run is an answer."""
        return Policy(on_node_failure=OnNodeFailure.VERDICT, loss=LossRule.NONE)

    @cached_property
    def all_pairs(self) -> int:
        """Jobs of all rounds."""
        return sum(map(len, (*self.layout.inside, *self.layout.between)))

    @property
    def most_jobs(self) -> int:
        """What it costs at most: every round, nodes and a link run again."""
        nodes = len(self.cell.nodelist)
        of_nodes = 2 * REPEATS * (max(1, nodes // SHARE) + 1)
        of_pairs = LEAST_REPEATS * (nodes // SHARE_OF_PAIRS)
        of_a_link = (4 if self.layout.between else 3) * REPEATS
        return self.all_pairs + of_nodes + of_pairs + of_a_link

    @cached_property
    def _arms(self) -> tuple[Arm, ...]:
        first = self.cells[0].digest
        names = (each.lower() for each in self.cell.nodelist)
        return tuple(Arm(id=each, cell_digest=first, profile=BASELINE) for each in names)

    def arms(self, history: History) -> tuple[Arm, ...]:
        """Return the nodes, in the order of the node list."""
        del history
        return self._arms

    def propose(self, history: History) -> tuple[Trial, ...]:
        """Return the pairs that can be planned and are not over, round after round."""
        return self.walk(history).pending

    def left(self, history: History) -> int:
        """Return how many trials are likely still to come: every round of pairs."""
        found = self.walk(history)
        if not found.pending:
            return 0
        return len(found.pending) + found.still

    def outline(self, history: History) -> tuple[str, ...]:
        """Return what a plan says of it: jobs and waves."""
        del history
        layout, nodes = self.layout, len(self.cell.nodelist)
        rounds = len(layout.inside) + len(layout.between)
        lines = [
            (
                f"{self.all_pairs} jobs of two nodes in {rounds} rounds, each node once a round; "
                f"after {FIRST_ROUNDS} of them a node that is slow with all its partners is found"
            ),
            (
                f"then fresh runs of what looks slow: at most {min(self.most_jobs, self.budget)} "
                f"jobs in {rounds + 16} waves"
            ),
            f"the load is {load_of(self.cell)}",
        ]
        if layout.racks:
            lines.append(
                f"{len(layout.racks)} racks: every pair inside each, one pair between each two"
            )
        elif self.asked.groups:
            lines.append(f"fewer than {MIN_RACKS} racks hold these nodes: every pair is run")
        elif nodes >= BY_RACKS_FROM:
            lines.append(
                f"{nodes} nodes have {self.all_pairs} pairs: Network(racks=...) needs fewer, a "
                "bandwidth test (metric='busbw') takes seconds a job"
            )
        if self.budget < self.all_pairs:
            lines.append(
                f"the budget of {self.budget} jobs does not cover every pair: links cannot all be "
                f"judged; {self.most_jobs} jobs are the most that it takes"
            )
        return tuple(lines)

    @remembered
    def conclude(self, history: History) -> Conclusion:
        """Return a verdict on every node and on the network."""
        return conclusion(self.walk(history), study=self)

    @remembered
    def walk(self, history: History) -> Walk:
        """Return how far a history reaches, and what it shows."""
        return Walk(
            layout=self.layout,
            results=results_of(self, history),
            trial=self.trial,
            budget=self.budget,
            _pairs_of=self._pairs,
        ).begin()

    def place(self, trial: Trial) -> str:
        """Return where a run stands: `round 3 of about 7, 4 pairs`."""
        if trial.stage != ROUND:
            return f"{_AGAIN[trial.stage]}, wave {trial.block}"
        rounds = (*self.layout.inside, *self.layout.between)
        pairs = counted(len(rounds[trial.block - 1]), "pair")
        return f"round {trial.block} of about {len(rounds)}, {pairs}"

    def pair_of(self, trial: Trial) -> Pair:
        """Return the nodes of a trial."""
        return self._pairs[trial.cell_digest]

    @cached_property
    def _made(self) -> dict[tuple[str, int, Pair], Trial]:
        return {}

    def trial(self, stage: str, block: int, pair: Pair) -> Trial:
        """Return the trial of a pair in a stage and block; the same object each time."""
        key = stage, block, pair
        if key not in self._made:
            cell = self._by_pair[pair]
            arm = Arm(id=_slug(pair), cell_digest=cell.digest, profile=BASELINE)
            self._made[key] = trial_of(arm, cell, study=self.name, stage=stage, block=block)
        return self._made[key]


def _slug(pair: Pair) -> str:
    """Return the id of a pair's trials: `node001+node002`, shortened where names are long."""
    whole = "+".join(pair).lower()
    if len(whole) <= _SLUG_CHARS:
        return whole
    return "+".join(each[:26] for each in pair).lower() + f".{digest([whole], length=8)}"
