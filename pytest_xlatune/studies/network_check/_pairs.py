"""Which pairs of nodes are run in which round: every pair once, each node once a round.

Beyond a handful of racks the pairs inside each rack and one pair between each two racks stand for
all: what lies between two racks is shared by their nodes. Names in, pairs out; nothing is measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.hosts import expand
from pytest_xlatune.model.text import counted

Pair = tuple[str, str]  # in the order of the node list
Round = tuple[Pair, ...]
MIN_NODES, MIN_RACKS = 4, 3


def every_pair_once(names: Sequence[str]) -> tuple[Round, ...]:
    """Return rounds of disjoint pairs that hold every pair once; of an odd number one sits out.

    The circle method: one stays, the others move on by one each round.
    """
    if len(names) < 2:  # noqa: PLR2004 - a pair
        return ()
    places: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    order = {name: at for at, name in enumerate(names)}
    fixed, ring, rounds = places[-1], places[:-1], list[Round]()
    for turn in range(len(ring)):
        first, *others = ring[turn:] + ring[:turn]
        half = len(others) // 2
        both = [(fixed, first), *zip(others[:half], reversed(others[half:]), strict=True)]
        told = [(a, b) for a, b in both if a is not None and b is not None]
        pairs = [(a, b) if order[a] < order[b] else (b, a) for a, b in told]
        rounds.append(tuple(sorted(pairs, key=lambda pair: order[pair[0]])))
    return tuple(rounds)


@dataclass(frozen=True, kw_only=True)
class PairLayout:
    """The pairs of a check. Without slots: what follows from its fields is kept.

    Attributes:
        nodes: all of them, in the order of the node list.
        racks: name -> its nodes; empty where every pair is run.
    """

    nodes: tuple[str, ...]
    racks: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, names: tuple[str, ...], groups: Mapping[str, str]) -> PairLayout:
        """Return the layout of nodes in racks, each told as a host list; {} has none.

        Raises:
            ConfigError: a node is in no rack or in two, or no rack has pairs enough.
        """
        listed = {rack: expand(text) for rack, text in groups.items()}
        known = {rack: tuple(n for n in each if n in names) for rack, each in listed.items()}
        racks = {rack: own for rack, own in known.items() if own}
        told = [node for own in racks.values() for node in own]
        missing = [node for node in names if node not in told] if groups else []
        twice = sorted({node for node in told if told.count(node) > 1})
        if missing or twice:
            raise ConfigError(
                f"network: the racks name {len(set(told))} of {counted(len(names), 'node')}; "
                + (f"without a rack: {', '.join(missing[:8])}" if missing else "")
                + (f"in two racks: {', '.join(twice[:8])}" if twice else "")
                + "; name each node of the node list in one rack"
            )
        if len(racks) < MIN_RACKS:
            # what lies between two racks can only be held against other pairs of racks
            return cls(nodes=names, racks={})
        if max(map(len, racks.values())) < MIN_NODES:
            raise ConfigError(
                f"network: no rack holds {MIN_NODES} nodes or more, so no pair inside one has "
                "others beside it; leave the racks out"
            )
        return cls(nodes=names, racks=racks)

    @cached_property
    def rack_of(self) -> Mapping[str, str]:
        """Node -> its rack; one rack of all where none was told."""
        told = {node: rack for rack, nodes in self.racks.items() for node in nodes}
        return told or dict.fromkeys(self.nodes, "")

    @cached_property
    def inside(self) -> tuple[Round, ...]:
        """The rounds of pairs inside racks; all racks have theirs at the same time."""
        groups = [every_pair_once(each) for each in (self.racks or {"": self.nodes}).values()]
        longest = max(map(len, groups), default=0)
        return tuple(
            tuple(pair for rounds in groups for pair in (rounds[at] if at < len(rounds) else ()))
            for at in range(longest)
        )

    @cached_property
    def between(self) -> tuple[Round, ...]:
        """The rounds of one pair between each two racks; () without racks."""
        return tuple(
            tuple(self._across(a, b, turn) for a, b in pairs)
            for turn, pairs in enumerate(every_pair_once(list(self.racks)))
        )

    @property
    def rounds(self) -> tuple[Round, ...]:
        """All rounds, those inside racks first."""
        return (*self.inside, *self.between)

    @cached_property
    def across(self) -> frozenset[Pair]:
        """All pairs between racks that may be run: each node has one partner in each other rack."""
        names = list(self.racks)
        return frozenset(
            self._across(a, b, turn)
            for at, a in enumerate(names)
            for b in names[at + 1 :]
            for turn in range(max(len(self.racks[a]), len(self.racks[b])))
        )

    def _across(self, a: str, b: str, turn: int) -> Pair:
        one, other = self.racks[a], self.racks[b]
        return self.ordered(one[turn % len(one)], other[turn % len(other)])

    @cached_property
    def place(self) -> Mapping[str, int]:
        """Node -> its place in the node list."""
        return {name: at for at, name in enumerate(self.nodes)}

    def ordered(self, a: str, b: str) -> Pair:
        """Return two nodes as a pair."""
        return (a, b) if self.place[a] < self.place[b] else (b, a)

    def places(self, pair: Pair) -> tuple[int, int]:
        """Return the places of both: they decide between equals, not the names."""
        return self.place[pair[0]], self.place[pair[1]]

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """Every pair that may be run."""
        inside = {pair for pairs in self.inside for pair in pairs}
        return tuple(sorted(inside | self.across, key=self.places))

    def racks_of(self, pair: Pair) -> set[str]:
        """Return the racks of both."""
        return {self.rack_of[node] for node in pair}

    def is_across(self, pair: Pair) -> bool:
        """Whether the two stand in different racks."""
        return len(self.racks_of(pair)) > 1

    def partners(self, node: str, *, across: bool = False) -> tuple[str, ...]:
        """Return the nodes that may stand beside one, inside its rack or in other racks."""
        return tuple(self._partners.get((node, across), ()))

    @cached_property
    def _partners(self) -> Mapping[tuple[str, bool], list[str]]:
        found: dict[tuple[str, bool], list[str]] = {}
        for a, b in self.pairs:
            is_across = self.is_across((a, b))
            found.setdefault((a, is_across), []).append(b)
            found.setdefault((b, is_across), []).append(a)
        return found
