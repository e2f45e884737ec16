"""Which pairs of nodes are run in which round: every pair once, each node once a round.

Beyond a handful of racks the pairs inside each rack and one pair between each two racks stand for
all: what lies between two racks is shared by their nodes. Names in, pairs out; nothing is measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations, zip_longest

from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.hosts import expand
from pytest_xlatune.model.text import counted

Pair = tuple[str, str]  # in the order of the node list
Round = tuple[Pair, ...]
MIN_NODES, MIN_RACKS = 4, 3


def every_pair_once(names: Sequence[str]) -> tuple[Round, ...]:
    """Return rounds of disjoint pairs that hold every pair once; of an odd number one sits out.

    The circle method: places on a circle meet their mirror images, and the mirror turns each round.
    """
    circle = (len(names) - 1) | 1  # of an even number the last stands in the middle
    rounds = []
    for turn in range(circle):
        meet = [((turn + k) % circle, (turn - k) % circle) for k in range(1, circle // 2 + 1)]
        meet += [(turn, circle)] if circle < len(names) else []
        rounds.append(tuple((names[a], names[b]) for a, b in sorted(map(sorted, meet))))
    return tuple(rounds)


@dataclass(frozen=True, kw_only=True)
class PairLayout:
    """The pairs of a check. Without slots: what follows from its fields is kept.

    Attributes:
        nodes: all of them, in the order of the node list.
        racks: name -> its nodes, in that order; empty where every pair is run.
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
        known = {rack: tuple(n for n in names if n in each) for rack, each in listed.items()}
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
    def place(self) -> Mapping[str, int]:
        """Node -> its place in the node list, which decides between equals, not the name."""
        return {name: at for at, name in enumerate(self.nodes)}

    def ordered(self, a: str, b: str) -> Pair:
        """Return two nodes as a pair."""
        return (a, b) if self.place[a] < self.place[b] else (b, a)

    def places(self, pair: Iterable[str]) -> tuple[int, ...]:
        """Return the places of a pair: between equals the first one counts."""
        return tuple(self.place[node] for node in pair)

    @cached_property
    def rack_of(self) -> Mapping[str, str]:
        """Node -> its rack; one rack of all where none was told."""
        racks = self.racks or {"": self.nodes}
        return {node: rack for rack, nodes in racks.items() for node in nodes}

    def racks_of(self, pair: Pair) -> set[str]:
        """Return the racks of both."""
        return {self.rack_of[node] for node in pair}

    def is_across(self, pair: Pair) -> bool:
        """Whether the two stand in different racks."""
        return len(self.racks_of(pair)) > 1

    @cached_property
    def inside(self) -> tuple[Round, ...]:
        """The rounds of pairs inside racks; all racks have theirs at the same time."""
        of_racks = map(every_pair_once, self.racks.values() if self.racks else [self.nodes])
        return tuple(tuple(chain(*rounds)) for rounds in zip_longest(*of_racks, fillvalue=()))

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
    def pairs(self) -> tuple[Pair, ...]:
        """Every pair that may be run: beside those of the rounds each node with others across."""
        more = (
            self._across(a, b, turn)
            for a, b in combinations(self.racks, 2)
            for turn in range(max(len(self.racks[a]), len(self.racks[b])))
        )
        return tuple(sorted({*chain(*self.rounds), *more}, key=self.places))

    def _across(self, a: str, b: str, turn: int) -> Pair:
        one, other = self.racks[a], self.racks[b]
        return self.ordered(one[turn % len(one)], other[turn % len(other)])

    def partners(self, node: str, *, across: bool = False) -> set[str]:
        """Return the nodes that may stand beside one, inside its rack or in other racks."""
        own = (each for each in self.pairs if node in each and self.is_across(each) is across)
        return {*chain(*own)} - {node}
