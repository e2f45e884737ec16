"""Which node or link slows the network: rounds of disjoint pairs, then fresh pairs side by side.

An arm is a node; a trial is a pair of nodes under a two-node load. A pair's single run only
chooses which pairs run again; fresh runs side by side accuse. A node that cannot communicate is an
answer too, and the study goes on without it. The reference note is docs/how-to/studies.md.
This module must not know of executors or logs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, combinations, zip_longest
from statistics import fmean, median
from typing import ClassVar

import msgspec
from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.hosts import expand, switches
from pytest_xlatune.model.message import Message, say
from pytest_xlatune.model.metric import BUSBW, TGS
from pytest_xlatune.model.pairs import CONCLUSION, KIND, NetworkRecord, PairFound
from pytest_xlatune.model.profile import BASELINE
from pytest_xlatune.model.record import Real, digest
from pytest_xlatune.model.result import Conclusion, TrialResult, Verdict, VerdictKind, relative
from pytest_xlatune.model.text import counted
from pytest_xlatune.model.trial import Arm, Trial
from pytest_xlatune.stats.beside import (
    ALPHA,
    LEAST_LOSS,
    LEAST_REPEATS,
    Slower,
    paired,
    pooled,
    slower,
    spread_of,
)
from pytest_xlatune.stats.compare import EQUIVALENCE
from pytest_xlatune.stats.design import t_quantile
from pytest_xlatune.studies import Aim, Asked, DeclaredStudy, History, Traits
from pytest_xlatune.studies.cell_arms import (
    CellArms,
    CellWalk,
    decided,
    dropped,
    is_excused,
    not_accused,
    refuse_budget,
    refuse_nodes,
    refuse_unless_positive,
    undecided,
    worst_first,
)
from pytest_xlatune.studies.trials import usable
from pytest_xlatune.studies.verdicts import NO_SCORE, at_level, begun, changed, screened, so_far

_COVERED = "{covered} of {pairs} pairs have a score; of the other links nothing is known"

# a published recipe compares groups by `steps=1`: that is step 0, and all of it compilation
MIN_STEPS = 8  # of a training load: step 0 compiles, the first ones warm up
BY_RACKS_FROM = 17  # nodes from which racks, or the bandwidth test, save most of the cost
_SLUG_CHARS = 64

ROUND, NODES, AGAIN, LINK = "round", "node", "again", "link"
_AGAIN = {
    NODES: "slow nodes again, wave {wave}",
    AGAIN: "slow pairs again, wave {wave}",
    LINK: "the slowest pair again, wave {wave}",
}

FIRST_ROUNDS = 4
EARLY = (2.0, 0.015)  # standard deviations and loss below which a node is confirmed, by both
LATE = (1.0, 0.012)  # the same once every pair has run
PAIR = (1.8, 0.012)  # the same of one pair's single run
FRESH = 0.010  # of a pair's two fresh runs
SHARE = 4  # suspected nodes: a fourth of the nodes' number at most
# suspected pairs: half the nodes' number at most. A few percent of bad jobs among N^2 / 2 pairs are
# N / 2 slow ones of a healthy 32 nodes, and the bad link is not always the slowest of them
SHARE_OF_PAIRS = 2
REPEATS = 4
MOST_CONFIRMING_WAVES = 16
STOP_AT = 3  # nodes that cannot communicate: then it is the cluster
MANY = 8  # nodes from which a round has pairs enough for a median of its own
_LEAST_OTHERS = 3
MIN_NODES, MIN_RACKS = 4, 3

Pair = tuple[str, str]  # in the order of the node list
Round = tuple[Pair, ...]


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
        own = (pair for pair in self.pairs if node in pair and self.is_across(pair) is across)
        return {*chain(*own)} - {node}


class Network(DeclaredStudy, frozen=True, kw_only=True):
    """What a sweep file declares: `Sweep(study=Network())`, and the nodes that it is run on.

    Attributes:
        racks: rack or leaf switch -> its nodes as a host list, e.g. `node[001-016]`; () runs every
            pair. With racks, every pair inside each rack and one pair between each two racks.
        topology: the text of Slurm's topology.conf, in the place of `racks`.
        peak_tflops: TFLOP/s that one device can do, for MFU; None is as logs print it.
        key: what tells this check from the last one, e.g. a date: runs of another key are not used.
    """

    kind: ClassVar[str] = KIND
    racks: dict[str, str] = msgspec.field(default_factory=dict)
    topology: str = ""
    peak_tflops: Real | None = None
    key: str = ""

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


class NetworkStudy(CellArms["NetworkWalk"], frozen=True, kw_only=True, dict=True):
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
        names, protocol = self.cell.nodelist, self.cell.protocol
        refuse_nodes(names, least=MIN_NODES, study="network")
        if CONCLUSION in (name.lower() for name in names):
            raise ConfigError(
                f"a node is named {CONCLUSION!r}, as the verdict on the whole network is; leave "
                "it out of the node list"
            )
        if protocol.scored_by is TGS and protocol.steps < MIN_STEPS:
            raise ConfigError(
                f"a network study scores steady training steps, but its protocol runs "
                f"{protocol.steps}: expected {MIN_STEPS} or more, e.g. Protocol(steps=10, "
                "first_step=3, min_steps=5); a single step is compilation"
            )
        least = sum(map(len, self.layout.inside[:FIRST_ROUNDS]))
        what = (
            f"{len(names)} nodes need {least} jobs to begin with ({FIRST_ROUNDS} rounds of pairs)"
        )
        refuse_budget(what, budget=self.budget, least=least, most=self.most_jobs)

    @cached_property
    def layout(self) -> PairLayout:
        """The pairs of all rounds.

        Raises:
            ConfigError: the racks and the node list do not fit.
        """
        return PairLayout.of(self.cell.nodelist, self.asked.groups)

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """The load on each pair that may be run."""
        return tuple(replace(self.cell, nodelist=pair) for pair in self.layout.pairs)

    @cached_property
    def ids(self) -> Sequence[str]:
        """The pairs by both names, which are shortened where they are long."""
        whole = ["+".join(pair).lower() for pair in self.layout.pairs]
        short = ["+".join(each[:26] for each in pair).lower() for pair in self.layout.pairs]
        return [
            name if len(name) <= _SLUG_CHARS else f"{head}.{digest([name], length=8)}"
            for name, head in zip(whole, short, strict=True)
        ]

    @cached_property
    def _arm_of(self) -> Mapping[Pair, Arm]:
        return dict(zip(self.layout.pairs, self.every_arm, strict=True))

    @cached_property
    def _pair_of(self) -> Mapping[str, Pair]:
        return {arm.cell_digest: pair for pair, arm in self._arm_of.items()}

    @cached_property
    def round_trials(self) -> tuple[tuple[Trial, ...], ...]:
        """The trials of all rounds."""
        return tuple(
            tuple(self.trial(pair, ROUND, at) for pair in pairs)
            for at, pairs in enumerate(self.layout.rounds, start=1)
        )

    @cached_property
    def round_of(self) -> Mapping[Pair, int]:
        """Pair -> its round, counted from 1."""
        return {pair: at for at, pairs in enumerate(self.layout.rounds, start=1) for pair in pairs}

    @property
    def all_pairs(self) -> int:
        """Jobs of all rounds."""
        return len(self.round_of)

    @property
    def most_jobs(self) -> int:
        """What it costs at most: every round, nodes and a link run again."""
        nodes = len(self.cell.nodelist)
        of_nodes = 2 * REPEATS * (max(1, nodes // SHARE) + 1)
        of_pairs = LEAST_REPEATS * (nodes // SHARE_OF_PAIRS)
        of_a_link = (4 if self.layout.between else 3) * REPEATS
        return self.all_pairs + of_nodes + of_pairs + of_a_link

    def compared(self, history: History) -> tuple[Arm, ...]:
        """Return the nodes, in the order of the node list; a trial runs a pair of them."""
        del history
        cell, names = self.cells[0].digest, self.cell.nodelist
        return tuple(Arm(id=name.lower(), cell_digest=cell, profile=BASELINE) for name in names)

    @property
    def outline(self) -> tuple[Message, ...]:
        """What a plan says of it: jobs and waves."""
        layout, nodes, rounds = self.layout, len(self.cell.nodelist), len(self.layout.rounds)
        texts = [
            "{pairs} jobs of two nodes in {rounds} rounds, each node once a round",
            "after {first} of them a node that is slow with all its partners is found",
            "then fresh runs of what looks slow: at most {most} jobs in {waves} waves",
            "the load is {load}",
        ]
        if layout.racks:
            texts.append("{racks} racks: every pair inside each, one pair between each two")
        elif self.asked.groups:
            texts.append("fewer than {least} racks hold these nodes: every pair is run")
        elif nodes >= BY_RACKS_FROM:
            texts.append("{nodes} nodes have {pairs} pairs; racks, or metric='busbw', cost less")
        if self.budget < self.all_pairs:
            texts.append("the budget of {budget} jobs does not cover every pair; {ask} do")
        values = {"nodes": nodes, "pairs": self.all_pairs, "rounds": rounds, "load": self.load}
        values |= {"first": FIRST_ROUNDS, "least": MIN_RACKS, "racks": len(layout.racks)}
        values |= {"waves": rounds + MOST_CONFIRMING_WAVES, **self.jobs}
        most = min(self.most_jobs, self.budget)
        return tuple(say(text, most=most, **values) for text in texts)

    @property
    def load(self) -> Message:
        """Which load the pairs run."""
        protocol = self.cell.protocol
        if protocol.scored_by is BUSBW:
            return say("a bandwidth test: bus bandwidth of one size, in GB/s")
        steps = {"first": protocol.first_step, "last": protocol.last_step, "steps": protocol.steps}
        return say("training, steps {first} to {last} of {steps}", **steps)

    def begin(self, history: History) -> NetworkWalk:
        """Return the walk before the first round."""
        return NetworkWalk(self, history)

    def place_of(self, trial: Trial) -> Message | None:
        """Return where a run stands: `round 3 of about 7, 4 pairs`."""
        if trial.stage != ROUND:
            return say(_AGAIN[trial.stage], wave=trial.block)
        rounds = self.layout.rounds
        pairs = len(rounds[trial.block - 1])
        return say(
            "round {round} of about {rounds}, {pairs:+pair}",
            round=trial.block,
            rounds=len(rounds),
            pairs=pairs,
        )

    def pair_of(self, trial: Trial) -> Pair:
        """Return the nodes of a trial."""
        return self._pair_of[trial.cell_digest]

    def trial(self, pair: Pair, stage: str, block: int) -> Trial:
        """Return the trial of a pair in a stage and block."""
        return self.trial_of(self._arm_of[pair], stage, block=block)


class NetworkWalk(CellWalk[NetworkStudy]):
    """One check as far as it came, and what it shows."""

    is_common = False  # whether most pairs fail
    low: tuple[str, ...] = ()  # nodes that are low in the rounds, the lowest first
    link: Pair | None = None  # the pair that was held against its ends elsewhere
    ends: tuple[Slower, Slower] | None = None  # it against one end elsewhere, then the other
    loss: Slower | None = None  # of it against the mean of both: the slower of them is chance
    elsewhere: Slower | None = None  # another pair of the same racks against the same
    waves = 0  # that confirmed anything

    def __init__(self, study: NetworkStudy, history: History) -> None:
        super().__init__(study, history)
        self.layout = study.layout
        # nodes that cannot communicate -> the results that say so
        self.out: dict[str, list[TrialResult]] = {}
        self.broken: list[Pair] = []  # pairs that fail although their nodes work elsewhere
        self.values: dict[Pair, float] = {}  # log scores of first runs
        self.centred: dict[Pair, float] = {}  # those against the median of their round
        # node -> its pairs' median against that of the others, whose spread is second
        self.known: dict[str, tuple[float, float]] = {}
        self.nodes: dict[str, Slower | None] = {}  # those that ran again -> what fresh pairs show
        self.again: dict[Pair, list[float]] = {}  # log scores of fresh runs
        self.unaffordable: list[str] = []  # nodes and pairs that the budget does not let run again
        self._differences: dict[str, list[float]] = {}  # of the nodes that ran again

    def walk(self) -> None:
        """Run rounds of pairs, then nodes that are low in them, then pairs that are."""
        # by halves of all nodes 72 to 90 % of simulated networks with a link 5 % slow were called
        # healthy: a ring uses two of a node's links, and rarely the slow one
        self._find_out()
        if self.is_stopped:
            return
        spent = accumulate(map(len, self.study.round_trials))
        affordable = sum(jobs <= self.study.budget for jobs in spent)
        rounds = self.study.round_trials[:affordable]
        first = min(FIRST_ROUNDS, len(self.layout.inside), len(rounds))
        self._run_rounds(rounds[:first], later=sum(map(len, rounds[first:])))
        if self._accuse_nodes(EARLY):
            return
        self._run_rounds(rounds[first:])
        if len(rounds) > first and self._accuse_nodes(LATE, blocks_before=REPEATS):
            return
        self._accuse_link()

    def run(self, trials: Sequence[Trial], *, later: int = 0) -> list[TrialResult]:
        """Run a stage; nodes that cannot communicate run no further trials."""
        able = [e for e in trials if self.over(e) or not self.out.keys() & {*self.study.pair_of(e)}]
        return super().run(able, later=later)

    def arms_of(self, trial: Trial) -> Sequence[str]:
        """Return both nodes of a pair."""
        return [node.lower() for node in self.study.pair_of(trial)]

    @property
    def is_stopped(self) -> bool:
        """Whether so much fails that it is no single node's fault."""
        return self.is_common or len(self.out) >= STOP_AT

    @property
    def accused(self) -> tuple[str, ...]:
        """The nodes that fresh pairs show to be slow, the slowest first."""
        found = {name: each for name, each in self.nodes.items() if each and each.accuses}
        return tuple(sorted(found, key=lambda name: found[name].estimate))

    @property
    def accused_link(self) -> Pair | None:
        """The confirmed pair, where it is slower than both of its ends elsewhere."""
        # slower than one end alone: that may be a slow node
        is_slow = self.ends is not None and all(each.accuses for each in self.ends)
        return self.link if is_slow else None

    @cached_property
    def sigma(self) -> float:
        """Spread of the pairs of the rounds, slow ones hardly counted; NaN before there are any."""
        return spread_of([*self.centred.values()]) if self.centred else math.nan

    def _find_out(self) -> None:
        """Find the nodes that cannot communicate: two failed pairs with different partners."""
        over = self.of([trial for trials in self.study.round_trials for trial in trials])
        failed: dict[Pair, TrialResult] = {}
        worked: Counter[str] = Counter()
        for result in over:
            if usable(result) is not None:
                worked.update(self.study.pair_of(result.trial))
            elif result.status.is_final and not is_excused(result):
                failed[self.study.pair_of(result.trial)] = result
        left = dict(failed)
        while left:
            counts = Counter(node for pair in left for node in pair)
            place = self.layout.place
            node = min(counts, key=lambda name: (-counts[name], worked[name], place[name]))
            if counts[node] < 2 or worked[node] > counts[node]:  # noqa: PLR2004 - one may be a link
                break
            self.out[node] = [each for pair, each in left.items() if node in pair]
            left = {pair: each for pair, each in left.items() if node not in pair}
        self.broken = [pair for pair in left if not set(pair) & self.out.keys()]
        self.is_common = len(failed) > worked.total() // 2 and len(failed) >= _LEAST_OTHERS

    # -- rounds

    def _run_rounds(self, rounds: Sequence[Sequence[Trial]], *, later: int = 0) -> None:
        trials = [trial for pairs in rounds for trial in pairs]
        found = {self.study.pair_of(trial): self.value(trial) for trial in trials}
        self.values |= {pair: value for pair, value in found.items() if value is not None}
        self._centre()
        self.run(trials, later=later)

    def _centre(self) -> None:
        """Hold each pair against the median of its round, and each node against the others.

        A round of few pairs has no median of its own: then that of all pairs of its kind serves.
        """
        least = MANY // 2 if len(self.layout.nodes) >= MANY else math.inf
        round_of, is_across = self.study.round_of, self.layout.is_across
        usual, of_round = self._usual(), _grouped(self.values, round_of.__getitem__)
        for pair, value in self.values.items():
            own = of_round[round_of[pair]]
            has_own = len(own) >= least and not is_across(pair)
            self.centred[pair] = value - (median(own) if has_own else usual[is_across(pair)])
        inside = {pair: v for pair, v in self.centred.items() if not is_across(pair)}
        for node in self.layout.nodes:
            own = [value for pair, value in inside.items() if node in pair]
            others = [value for pair, value in inside.items() if node not in pair]
            if len(own) >= LEAST_REPEATS and len(others) >= _LEAST_OTHERS:
                self.known[node] = median(own) - median(others), spread_of(others)

    def _usual(self) -> dict[int, float]:
        """Return the median first run of the pairs inside racks, and of those across."""
        kinds = _grouped(self.values, self.layout.is_across)
        return {kind: median(own) for kind, own in kinds.items()}

    def _off(self, node: str) -> tuple[float, int]:
        """Return how far a node is off the others, and its place: the least is the best partner."""
        return abs(self.known[node][0]) if node in self.known else 1.0, self.layout.place[node]

    # -- nodes

    def _accuse_nodes(self, rule: tuple[float, float], *, blocks_before: int = 0) -> bool:
        """Run the nodes that are low in fresh pairs; whether one is accused."""
        place = self.layout.place
        low = (
            (depth, place[name], name)
            for name, (depth, spread) in self.known.items()
            if name not in self.out and depth < -max(rule[0] * spread, rule[1])
        )
        self.low = tuple(name for *_, name in sorted(low))
        if not self.low:
            return False
        # of a small budget fewer suspects, then fewer repeats of a single one
        left = self.study.budget - len(self.planned)
        most = min(len(self.low), len(place) // SHARE, left // REPEATS - 1)
        chosen = self.low[: max(most, 1)]
        repeats = min(REPEATS, left // (len(chosen) + 1))
        if repeats < LEAST_REPEATS:
            self.unaffordable += self.low
            return False
        waves = [self._wave(chosen, at, blocks_before + at + 1) for at in range(repeats)]
        self.waves += repeats
        self.run([each for wave in waves for each in wave.values()])
        values = [{name: self.value(trial) for name, trial in wave.items()} for wave in waves]
        for name in chosen:
            both = self._differences.setdefault(name, [])
            both += paired([e.get(name) for e in values], [e.get("") for e in values])
            self.nodes[name] = self._shown(both, self.low, family=len(chosen))
        return bool(self.accused)

    def _wave(self, chosen: Sequence[str], at: int, block: int) -> dict[str, Trial]:
        """Return disjoint pairs: each suspect with a good partner, and a good pair as ""."""
        layout = self.layout
        good = sorted((n for n in self.known if n not in {*self.low, *self.out}), key=self._off)
        first = at % max(len(good), 1)
        rest = [*good[first:], *good[:first]]
        wave: dict[str, Pair] = {}
        for name in chosen:
            near = layout.partners(name) - {self._worst_partner(name)}
            if partner := next((each for each in rest if each in near), ""):
                rest.remove(partner)
                wave[name] = layout.ordered(name, partner)
        pairs = (pair for pair in combinations(rest, 2) if not layout.is_across(pair))
        if beside := next(pairs, None):
            wave[""] = layout.ordered(*beside)
        return {name: self.study.trial(pair, NODES, block) for name, pair in wave.items()}

    def _worst_partner(self, node: str) -> str:
        """Return with whom a node was slowest: that pair made it a suspect, be it a link or not."""
        own = [(value, self.layout.places(p), p) for p, value in self.centred.items() if node in p]
        if len(own) < LEAST_REPEATS or len(self.layout.nodes) < MANY:
            return ""
        one, other = min(own)[-1]
        return other if one == node else one

    # -- links

    def _accuse_link(self) -> None:
        """Run the pairs that are low again, then the slowest beside its ends elsewhere."""
        layout, limit = self.layout, -max(PAIR[0] * self.sigma, PAIR[1])
        low = sorted(
            (value, layout.places(pair), pair)
            for pair, value in self.centred.items()
            if value < limit and not set(pair) & self.out.keys()
        )
        suspects = [*self.broken, *(pair for *_, pair in low)]
        suspects = suspects[: len(layout.nodes) // SHARE_OF_PAIRS]
        suspects = [pair for pair in suspects if self._ends_of(pair)]
        if not suspects:
            return
        width = 4 if layout.is_across(suspects[0]) else 3
        most = MOST_CONFIRMING_WAVES - self.waves
        wanted = REPEATS if most >= 2 * REPEATS + LEAST_REPEATS else REPEATS - 1
        left = self.study.budget - len(self.planned) - LEAST_REPEATS
        repeats = min(wanted, left // width)
        if repeats < LEAST_REPEATS:
            self.unaffordable += [f"{a}+{b}" for a, b in suspects]
            return
        suspects = suspects[: (left + LEAST_REPEATS - width * repeats) // LEAST_REPEATS]
        # each once before any twice: few waves leave out second runs, and no suspect
        waves = _packed(suspects * LEAST_REPEATS, at_most=most - 2 * repeats)
        numbered = enumerate(waves, start=1)
        trials = [self.study.trial(pair, AGAIN, at) for at, wave in numbered for pair in wave]
        self.waves += len(waves)
        self.run(trials)
        for trial in trials:
            value = self.value(trial)
            self.again.setdefault(self.study.pair_of(trial), []).extend(
                [] if value is None else [value]
            )
        self.broken = [pair for pair in self.broken if self.again.get(pair) == []]
        fresh = {pair: fmean(own) for pair, own in self.fresh().items()}
        lowest = min(fresh, key=lambda p: (fresh[p], layout.places(p)), default=None)
        if self.broken or lowest is None or fresh[lowest] > -max(self.sigma, FRESH):
            return
        self._confirm_link(lowest, repeats)

    def fresh(self) -> dict[Pair, list[float]]:
        """Return the fresh runs of each pair that has some, against the usual first run.

        That is the median of all first runs of its kind: the pairs that are slow do not move it.
        """
        # held against a mean with itself in it, a link that lost 23.1 % was shown with -19.7 %
        usual, is_across = self._usual(), self.layout.is_across
        return {
            pair: [value - usual.get(is_across(pair), math.nan) for value in own]
            for pair, own in self.again.items()
            if own
        }

    def _ends_of(self, pair: Pair) -> list[tuple[Pair, Pair]]:
        """Return disjoint pairs of each end of a pair with a good partner; [] without enough."""
        layout, across = self.layout, self.layout.is_across(pair)
        bad = {*self.out, *self.accused, *pair, *chain(*self.broken)}
        if across:  # a third rack tells on which end it is
            bad |= {node for node, rack in layout.rack_of.items() if rack in layout.racks_of(pair)}
        one, other = (
            sorted(layout.partners(end, across=across) - bad, key=self._off) for end in pair
        )
        chosen = []
        for at in range(REPEATS):
            a = one[at % len(one)] if one else ""
            b = next((each for each in (*other[at + 1 :], *other) if each != a), "")
            if not a or not b:
                return []
            chosen.append((layout.ordered(pair[0], a), layout.ordered(pair[1], b)))
        return chosen

    def _confirm_link(self, pair: Pair, repeats: int) -> None:
        """Run a pair, another of the same racks where there is one, and both its ends elsewhere."""
        racks, bad = self.layout.racks_of(pair), {*pair, *self.out}
        alike = (
            p for p in self.layout.pairs if self.layout.racks_of(p) == racks and not bad & {*p}
        )
        twins = [*alike] if len(racks) > 1 else []
        rows = []
        for at, ends in enumerate(self._ends_of(pair)[:repeats]):
            beside = (pair, *twins[at % max(len(twins), 1) :][:1])
            # itself, its ends, its ends, itself: a drift is the same for both
            its, others = 2 * at + 1 + at % 2, 2 * at + 2 - at % 2
            row = [self.study.trial(each, LINK, its) for each in beside]
            rows.append([*row, *(self.study.trial(each, LINK, others) for each in ends)])
        self.waves += 2 * len(rows)
        self.link = pair
        self.run(sorted((trial for row in rows for trial in row), key=lambda each: each.block))
        values = zip(*(map(self.value, row) for row in rows), strict=True)
        own, *twin, one, other = values
        both = zip(one, other, strict=True)
        mean = [None if a is None or b is None else (a + b) / 2 for a, b in both]
        # its ends are no slow nodes: their other pairs tell the noise as well
        first, second = (self._shown(paired(own, side)) for side in (one, other))
        if first is not None and second is not None:
            self.ends = first, second
            both_ends = self._shown(paired(own, mean), jobs=1.5)
            self.loss = both_ends or max(self.ends, key=lambda each: each.estimate)
        if twin:
            self.elsewhere = self._shown(paired(twin[0], mean), jobs=1.5)

    # -- noise

    def _healthy(self, but: set[str]) -> list[list[float]]:
        """Return the first runs inside racks, round by round, these nodes left out."""
        kept = {
            pair: value
            for pair, value in self.values.items()
            if pair != self.link and not set(pair) & but and not self.layout.is_across(pair)
        }
        round_of = self.study.round_of if len(self.layout.nodes) >= MANY else dict.fromkeys(kept, 0)
        return [*_grouped(kept, round_of.__getitem__).values()]

    def _shown(
        self, pairs: Sequence[float], but: Iterable[str] = (), *, family: int = 1, jobs: float = 2.0
    ) -> Slower | None:
        """Return what pairs of runs show, noise pooled with that of healthy pairs of nodes."""
        return slower(pairs, self._healthy({*but, *self.accused}), family=family, jobs=jobs)

    # -- verdicts

    def conclusion(self) -> Conclusion:
        """Return a verdict on every node and on the network."""
        fresh, is_whole = self.fresh(), self.is_over and not self.is_stopped
        node_loss, link_loss = self._excluded(fresh) if is_whole else (None, None)
        if len(self.values) < self.study.all_pairs:
            link_loss = None
        whole = self._whole(node_loss, link_loss)
        answer = whole.reasons[0] if self.is_over else None
        is_fault = self.is_over and whole.kind in (VerdictKind.SLOWER, VerdictKind.INVALID)
        squares, df = pooled(self._healthy({*self.low, *self.accused}))
        record = NetworkRecord(
            sigma=math.sqrt(squares / df) if df else None if math.isnan(self.sigma) else self.sigma,
            summary=tuple(self._summary(answer, node_loss, link_loss)),
            objection=(answer,) if is_fault and answer else (),
            accused=self.accused,
            link=self.named_link,
            unhealthy=tuple(self.out),
            pairs=tuple(
                self._pair_found(pair, fresh.get(pair, []))
                for pair in self.layout.pairs
                if pair in self.centred or pair in fresh
            ),
            node_loss=node_loss,
            link_loss=link_loss,
        )
        level = median(self.values.values()) if self.values else math.nan
        nodes = worst_first(at_level(self._node(e, node_loss), level) for e in self.layout.nodes)
        alpha, notes = ALPHA if self.waves else 0.0, self._notes() if self.is_over else ()
        return self.concluded((whole, *nodes), record, alpha=alpha, notes=notes)

    @property
    def named_link(self) -> tuple[str, ...]:
        """The accused pair, or both racks where other pairs of them are as slow; () without one."""
        link = self.accused_link
        if link and self.elsewhere is not None and self.elsewhere.accuses:
            return self.layout.rack_of[link[0]], self.layout.rack_of[link[1]]
        return link or ()

    @property
    def _counts(self) -> Mapping[str, int]:
        """How many of the pairs of all rounds have a score."""
        return {"covered": len(self.values), "pairs": self.study.all_pairs}

    def _summary(
        self, answer: Message | None, node_loss: float | None, link_loss: float | None
    ) -> Iterator[Message]:
        text = "{nodes:+node}, {covered} of {pairs} pairs: {answer}"
        yield say(text, nodes=len(self.layout.nodes), answer=answer, **self._counts)
        if node_loss is not None:
            other = say("other ") if self.accused or self.named_link else None
            links = None if link_loss is None else say(", no link {loss:size}", loss=link_loss)
            text = "no {other}node costs {loss:size} or more{links} (95 %)"
            yield say(text, other=other, loss=node_loss, links=links)

    def _node(self, name: str, node_loss: float | None) -> Verdict:
        """Return the verdict on a node: the gravest case first."""
        own = self.by_arm[name.lower()]
        base = replace(so_far(name.lower(), own), against=say("the other pairs"))
        if name in self.known:
            base = changed(base, self.known[name][0])
        if failed := self.out.get(name):
            text = "{pairs:+pair} with it failed, each with another partner: {why}"
            return dropped(base, say(text, pairs=len(failed), why=failed[0].reason or NO_SCORE))
        if not any(result.status.is_final for result in own):
            return base
        if not self.is_over:
            return screened(base, say("single runs of its pairs"))
        return self._judged(base, name, node_loss)

    def _judged(self, base: Verdict, name: str, node_loss: float | None) -> Verdict:
        """Return the verdict on a node whose pairs have run, once everything is over."""
        if shown := self.nodes.get(name):
            text = "{pairs:+fresh pair} with good partners beside good pairs"
            base = replace(_as_shown(base, shown), n=shown.n, method=say(text, pairs=shown.n))
            if shown.accuses:
                return decided(base, VerdictKind.SLOWER, _at_least(shown))
            if not shown.is_open:
                return not_accused(base, say("low over its pairs, not in fresh ones"))
            text = "low over its pairs, and a loss is neither shown nor excluded by fresh ones"
        elif name in self.unaffordable:
            text = "low over its pairs; the budget of {budget} jobs is spent, ask for {ask}"
        elif name in self.nodes or name in self.low:
            text = "low over its pairs; too many are at once, or their fresh runs failed"
        elif name not in self.known:
            text = "too few of its pairs have a score"
        else:
            link = self.accused_link or ()
            text = "slow with one partner alone: {pair:-}"
            why = say(text, pair=link) if name in link else say("not low over its pairs")
            return replace(not_accused(base, why), kind=_level_kind(node_loss))
        return undecided(base, say(text, **self.study.jobs))

    def _whole(self, node_loss: float | None, link_loss: float | None) -> Verdict:
        """Return the verdict on the network."""
        every = self.of(self.planned)
        base = begun(CONCLUSION, every)
        if not self.is_over:
            return replace(base, kind=VerdictKind.SCREENED) if every else base
        base = replace(base, n=sum(usable(result) is not None for result in every))
        faults = list(self._faults(base))
        if len(faults) > 1:
            reasons = [verdict.reasons[0] for verdict in faults]
            return decided(base, VerdictKind.SLOWER, say("{reasons:; }", reasons=reasons))
        if faults:
            return faults[0]
        if why := self._open():
            return undecided(base, why)
        losses = [each for each in (node_loss, link_loss) if each is not None]
        kind = _level_kind(max(losses, default=None))
        return decided(base, kind, say("no node and no link is shown to be slow"))

    def _faults(self, base: Verdict) -> Iterator[Verdict]:
        """Yield the verdict on each thing that is wrong as if it were alone, the gravest first."""
        if self.is_stopped:
            text = (
                "more pairs failed than were measured: look at the load and what nodes share"
                if self.is_common
                else "{least} nodes or more cannot communicate: {nodes}. Look at the cluster first"
            )
            yield dropped(base, say(text, least=STOP_AT, nodes=tuple(self.out)))
            return
        for name in self.out:
            text = "{node} cannot communicate; the others were judged without it"
            yield dropped(base, say(text, node=name))
        for name in self.accused:
            if shown := self.nodes[name]:
                why = say("{node} is slow, {loss}", node=name, loss=_at_least(shown))
                yield decided(_as_shown(base, shown), VerdictKind.SLOWER, why)
        for pair in self.broken:
            if self.again.get(pair) == []:
                text = "{pair:-} cannot communicate with each other, and both can with others"
                yield dropped(base, say(text, pair=pair))
        link, shown = self.accused_link, self.loss
        if link and shown:
            who = say("{pair:-}", pair=link)
            if self.named_link != link:
                text = "{racks:-} ({pair:-} and other pairs of the same two racks)"
                who = say(text, racks=self.named_link, pair=link)
            text = "the link {link} is slower than both of its nodes with other partners, {loss}"
            why = say(text, link=who, loss=_at_least(shown))
            yield decided(_as_shown(base, shown), VerdictKind.SLOWER, why)

    def _open(self) -> Message | None:
        """Return why nothing is excluded; None where it is."""
        if self.unaffordable:
            text = "{nodes} look slow; the budget of {budget} jobs is spent, ask for {ask}"
            return say(text, nodes=self.unaffordable[:4], **self.study.jobs)
        doubtful = [n for n, shown in self.nodes.items() if shown is None or shown.is_open]
        if self.ends is not None and all(each.estimate < LEAST_LOSS for each in self.ends):
            doubtful = doubtful or ["-".join(self.link or ())]
        if doubtful:
            return say("{names}: a loss is neither shown nor excluded", names=doubtful)
        if self.link is not None and self.ends is None:
            return say("{pair:-} looks slow, and its fresh runs have no score", pair=self.link)
        if len(self.values) < self.study.all_pairs:
            return say(_COVERED, **self._counts)
        return None

    def _pair_found(self, pair: Pair, fresh: Sequence[float]) -> PairFound:
        # of the slowest pair what accuses it, with as many runs: one number wherever it stands
        shown = self.loss if pair == self.link else None
        again = shown.estimate if shown else fmean(fresh) if fresh else None
        return PairFound(
            nodes=pair,
            delta=relative(self.centred[pair]) if pair in self.centred else None,
            fresh=None if again is None else relative(again),
            runs=(pair in self.centred) + len(fresh) + (shown.n if shown else 0),
        )

    def _excluded(self, fresh: Mapping[Pair, Sequence[float]]) -> tuple[float | None, float | None]:
        """Return the loss that no node that is not accused has, and no link, at 95 % over all."""
        bad = {*self.accused, *self.out}
        squares, df = pooled(self._healthy({*bad, *self.low}))
        good = {p: v for p, v in self.centred.items() if not set(p) & bad and p != self.link}
        if df < LEAST_REPEATS or not good:
            return None, None
        sigma = math.sqrt(squares / df)
        nodes = [node for node in self.layout.nodes if node not in bad]
        n_all, total = len(good), math.fsum(good.values())
        worst = lowest = 0.0
        critical = t_quantile(1 - 0.05 / len(nodes), df)
        inside = {pair: value for pair, value in good.items() if not self.layout.is_across(pair)}
        for node in nodes:
            own = [value for pair, value in inside.items() if node in pair]
            n = len(own)
            if own and n_all > n:
                difference = sum(own) / n - (total - sum(own)) / (n_all - n)
                error = sigma * math.sqrt(1 / n + 1 / (n_all - n))
                worst = min(worst, difference - critical * error)
        critical = t_quantile(1 - 0.05 / n_all, df)
        for pair, value in good.items():
            again = fresh.get(pair)
            mean, n = (fmean(again), len(again)) if again else (value - total / n_all, 1)
            lowest = min(lowest, mean - critical * sigma * math.sqrt(1 / n + 1 / n_all))
        return -relative(worst), -relative(lowest)

    def _notes(self) -> Iterator[Message]:
        yield say("the load: {load}", load=self.study.load)
        if self.is_stopped:
            return
        if not math.isnan(self.sigma):
            text = "pairs of one round differ by {sigma:.2%} (one sigma)"
            yield say(text, sigma=self.sigma)
        if missing := self.study.all_pairs - len(self.values):
            yield say(_COVERED, **self._counts)
            if self.accused:
                yield say("the check ends with the accused node: its repair comes first")
            elif not (self.out or self.broken):
                text = "{pairs:+pair} without a score: cancelled, lost, or left out by the budget"
                yield say(text, pairs=missing)
        if self.layout.racks:
            yield say("between two racks one pair stands for all: other cables are not seen")
        if self.accused or self.accused_link:
            yield say("a node healthy alone and slow in pairs has a faulty network card or link")
        if self.accused_link and any(own and p != self.link for p, own in self.again.items()):
            yield say("only the slowest link is confirmed; check again after its repair")
        text = "an accusation takes {runs} fresh runs, one-sided {level:.1%}, and a loss of 1 %"
        yield say(text, runs=REPEATS, level=1 - ALPHA)


def _as_shown(base: Verdict, shown: Slower) -> Verdict:
    return changed(base, shown.estimate, shown.ci95)


def _at_least(shown: Slower) -> Message:
    change, loss = relative(shown.estimate), -relative(shown.bound)
    return say("{change:percent}, a loss of {loss:size} or more", change=change, loss=loss)


def _level_kind(excluded: float | None) -> VerdictKind:
    """Return the kind of what shows no fault: EQUIVALENT where a loss of 1 % is excluded."""
    is_level = excluded is not None and excluded < EQUIVALENCE
    return VerdictKind.EQUIVALENT if is_level else VerdictKind.SCREENED


def _grouped(values: Mapping[Pair, float], by: Callable[[Pair], int]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for pair, value in values.items():
        found.setdefault(by(pair), []).append(value)
    return found


def _packed(pairs: Sequence[Pair], *, at_most: int) -> list[list[Pair]]:
    """Put pairs into waves in which no node stands twice; what no wave takes is left out."""
    waves: list[list[Pair]] = [[] for _ in range(at_most)]
    for pair in pairs:
        free = (wave for wave in waves if not set(pair) & {*chain(*wave)})
        next(free, []).append(pair)
    return [wave for wave in waves if wave]
