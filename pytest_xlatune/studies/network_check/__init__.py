"""Which node or link slows the network: rounds of disjoint pairs, then fresh pairs side by side.

An arm is a node; a trial is a pair of nodes under a two-node load. A pair's single run only
chooses which pairs run again; fresh runs side by side accuse. A node that cannot communicate is an
answer too, and the study goes on without it. The reference note is docs/how-to/network_check.md.
This module must not know of executors or logs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from statistics import fmean, median
from typing import ClassVar

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.hosts import switches
from pytest_xlatune.model.metric import BUSBW, TGS
from pytest_xlatune.model.pairs import CONCLUSION, KIND, NetworkRecord, PairFound
from pytest_xlatune.model.profile import BASELINE
from pytest_xlatune.model.reason import Reason, Why
from pytest_xlatune.model.record import digest, written
from pytest_xlatune.model.result import Conclusion, TrialResult, Verdict, VerdictKind, relative
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
    is_excused,
    refuse_twice,
    refuse_unless_positive,
    trial_of,
)
from pytest_xlatune.studies.network_check._pairs import MIN_NODES, MIN_RACKS, Pair, PairLayout
from pytest_xlatune.studies.staged import FAILS, Words, name_of, refuse_budget
from pytest_xlatune.studies.trials import usable
from pytest_xlatune.studies.verdicts import NO_SCORE, at_level, begun, so_far

__all__ = ["CONCLUSION", "KIND", "Network", "NetworkRecord", "NetworkStudy", "NetworkWord",
           "PairFound"]  # fmt: skip

# a published recipe compares groups by `steps=1`: that is step 0, and all of it compilation
MIN_STEPS = 8  # of a training load: step 0 compiles, the first ones warm up
BY_RACKS_FROM = 17  # nodes from which racks, or the bandwidth test, save most of the cost
_SLUG_CHARS = 64

ROUND, NODES, AGAIN, LINK = "round", "node", "again", "link"
_AGAIN = {NODES: Why.SLOW_NODES_AGAIN, AGAIN: Why.SLOW_PAIRS_AGAIN, LINK: Why.LINK_AGAIN}

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


class NetworkWord(Words):
    """What the study calls its verdicts; that on the network names the node or link too."""

    CLUSTER = "STOP: THE CLUSTER", VerdictKind.INVALID, FAILS
    SEVERAL = "SEVERAL", VerdictKind.SLOWER
    UNHEALTHY = "UNHEALTHY", VerdictKind.INVALID, FAILS
    NODE = "NODE", VerdictKind.SLOWER
    LINK = "LINK", VerdictKind.SLOWER
    CANNOT_TELL = "CANNOT TELL", VerdictKind.INCONCLUSIVE
    NO_FAULT = "NO FAULT"  # none was found


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
class NetworkStudy(CellArms["NetworkWalk"]):
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
        if len(names) < MIN_NODES:
            raise ConfigError(
                f"a network study compares pairs of nodes with each other: {len(names)} nodes are "
                f"named, at least {MIN_NODES} are needed (--xlatune-nodelist 'node[001-008]')"
            )
        refuse_twice(names)
        if CONCLUSION in (each.lower() for each in names):
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
        rounds = FIRST_ROUNDS
        what = f"{len(names)} nodes need {least} jobs to begin with ({rounds} rounds of pairs)"
        refuse_budget(what, budget=self.budget, least=least, most=self.most_jobs)

    @cached_property
    def layout(self) -> PairLayout:
        """The pairs of all rounds.

        Raises:
            ConfigError: the racks and the node list do not fit.
        """
        return PairLayout.of(self.cell.nodelist, self.asked.groups)

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
        return name_of(KIND, *filter(None, [self.asked.key]))

    @cached_property
    def round_trials(self) -> tuple[tuple[Trial, ...], ...]:
        """The trials of all rounds."""
        return tuple(
            tuple(self.trial(ROUND, at, pair) for pair in pairs)
            for at, pairs in enumerate(self.layout.rounds, start=1)
        )

    @property
    def all_pairs(self) -> int:
        """Jobs of all rounds."""
        return sum(map(len, self.layout.rounds))

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

    def outline(self, history: History) -> tuple[Reason, ...]:
        """Return what a plan says of it: jobs and waves."""
        del history
        layout, nodes, every = self.layout, len(self.cell.nodelist), self.all_pairs
        rounds, most = len(layout.rounds), min(self.most_jobs, self.budget)
        lines = [
            Reason(Why.JOBS_OF_PAIRS, jobs=every, rounds=rounds, first=FIRST_ROUNDS),
            Reason(Why.FRESH_RUNS_OF_SLOW, jobs=most, waves=rounds + MOST_CONFIRMING_WAVES),
            Reason(Why.LOAD_IS, load=self.load),
        ]
        if layout.racks:
            lines.append(Reason(Why.PAIRS_OF_RACKS, racks=len(layout.racks)))
        elif self.asked.groups:
            lines.append(Reason(Why.FEW_RACKS, least=MIN_RACKS))
        elif nodes >= BY_RACKS_FROM:
            lines.append(Reason(Why.MANY_PAIRS, nodes=nodes, pairs=every))
        if self.budget < every:
            asked = {"budget": self.budget, "ask": self.most_jobs}
            lines.append(Reason(Why.BUDGET_NOT_ALL_PAIRS, **asked))
        return tuple(lines)

    @property
    def load(self) -> Reason:
        """Which load the pairs run."""
        protocol = self.cell.protocol
        if protocol.scored_by is BUSBW:
            return Reason(Why.LOAD_BANDWIDTH)
        steps = {"first": protocol.first_step, "last": protocol.last_step, "steps": protocol.steps}
        return Reason(Why.LOAD_TRAINING, **steps)

    def begin(self, history: History) -> NetworkWalk:
        """Return the walk before the first round."""
        return NetworkWalk(self, history)

    def place(self, trial: Trial) -> Reason | None:
        """Return where a run stands: `round 3 of about 7, 4 pairs`."""
        if trial.stage != ROUND:
            return Reason(_AGAIN[trial.stage], wave=trial.block)
        rounds = self.layout.rounds
        pairs = len(rounds[trial.block - 1])
        return Reason(Why.ROUND_OF_PAIRS, round=trial.block, rounds=len(rounds), pairs=pairs)

    def pair_of(self, trial: Trial) -> Pair:
        """Return the nodes of a trial."""
        return self._pairs[trial.cell_digest]

    def trial(self, stage: str, block: int, pair: Pair) -> Trial:
        """Return the trial of a pair in a stage and block."""
        cell, whole = self._by_pair[pair], "+".join(pair).lower()
        # both names, shortened where they are long
        short = "+".join(each[:26] for each in pair).lower() + f".{digest([whole], length=8)}"
        slug = whole if len(whole) <= _SLUG_CHARS else short
        arm = Arm(id=slug, cell_digest=cell.digest, profile=BASELINE)
        return trial_of(arm, cell, study=self.name, stage=stage, block=block)


class NetworkWalk(CellWalk[NetworkStudy]):
    """One check as far as it came, and what it shows."""

    is_common = False  # whether most pairs fail
    low: tuple[str, ...] = ()  # nodes that are low in the rounds, the lowest first
    link: Pair | None = None  # the pair that was held against its ends elsewhere
    ends: tuple[Slower, Slower] | None = None  # it against one end elsewhere, then the other
    loss: Slower | None = None  # of it against the mean of both, the slower of which is chance
    elsewhere: Slower | None = None  # another pair of the same racks against the same
    waves = 0  # that confirmed anything

    def __init__(self, study: NetworkStudy, history: History) -> None:
        super().__init__(study, history)
        self.layout = study.layout
        # nodes that cannot communicate -> the results that say so
        self.out: dict[str, list[TrialResult]] = {}
        self.broken: list[Pair] = []  # pairs that fail although their nodes work elsewhere
        self.values: dict[Pair, tuple[int, float]] = {}  # their round, log score of the first run
        self.centred: dict[Pair, float] = {}  # that score against the median of the round
        # node -> the median over its pairs, the level and the spread of the others
        self.known: dict[str, tuple[float, float, float]] = {}
        self.nodes: dict[str, Slower | None] = {}  # those that ran again -> what fresh pairs show
        self.again: dict[Pair, list[float]] = {}  # log scores of fresh runs
        self.unaffordable: list[str] = []  # nodes and pairs that the budget does not let run again
        self._differences: dict[str, list[float]] = {}

    def walk(self) -> None:
        """Run rounds of pairs, then nodes that are low in them, then pairs that are."""
        # by halves of all nodes 72 to 90 % of simulated networks with a link 5 % slow were called
        # healthy: a ring uses two of a node's links, and rarely the slow one
        self._find_out()
        if self.is_stopped:
            return
        rounds = self._affordable_rounds()
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
        able = [e for e in trials if self.over(e) or not self.out.keys() & {*self._pair(e)}]
        return super().run(able, later=later)

    def _pair(self, trial: Trial) -> Pair:
        return self.study.pair_of(trial)

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

    @property
    def of_link(self) -> Slower | None:
        """What fresh runs of the slowest pair show; None before both its ends are known."""
        if self.ends is None:
            return None
        return self.loss or max(self.ends, key=lambda each: each.estimate)

    @cached_property
    def sigma(self) -> float:
        """Spread of the pairs of the rounds, slow ones hardly counted; NaN before there are any."""
        return spread_of([*self.centred.values()]) if self.centred else math.nan

    # -- failures

    def _find_out(self) -> None:
        """Find the nodes that cannot communicate: two failed pairs with different partners."""
        failed: dict[Pair, TrialResult] = {}
        worked: Counter[str] = Counter()
        planned = {each.id for pairs in self.study.round_trials for each in pairs}
        over = [r for name, r in self.results.items() if name in planned and r.status.is_final]
        for result in over:
            if usable(result) is not None:
                worked.update(self._pair(result.trial))
            elif not is_excused(result):
                failed[self._pair(result.trial)] = result
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
        ended = sum(usable(each) is not None for each in over)
        self.is_common = len(failed) > ended and len(failed) >= _LEAST_OTHERS

    # -- rounds

    def _affordable_rounds(self) -> list[tuple[Trial, ...]]:
        rounds, left = list[tuple[Trial, ...]](), self.study.budget
        for trials in self.study.round_trials:
            left -= len(trials)
            if left < 0:
                break
            rounds.append(trials)
        return rounds

    def _run_rounds(self, rounds: Sequence[Sequence[Trial]], *, later: int = 0) -> None:
        trials = [each for pairs in rounds for each in pairs]
        for each in trials:
            if (value := self.value(each)) is not None:
                self.values[self._pair(each)] = each.block, value
        self._centre()
        self.run(trials, later=later)

    def _centre(self) -> None:
        """Hold each pair against the median of its round, and each node against the others.

        A round of few pairs has no median of its own: then that of all pairs of its kind serves.
        """
        by_round: dict[int, list[float]] = {}
        for block, value in self.values.values():
            by_round.setdefault(block, []).append(value)
        usual, inside = self._usual(), len(self.layout.inside)
        least = MANY // 2 if len(self.layout.nodes) >= MANY else math.inf
        centre = {
            block: median(own) if len(own) >= least and block <= inside else usual[block > inside]
            for block, own in by_round.items()
        }
        self.centred = {pair: value - centre[at] for pair, (at, value) in self.values.items()}
        ordered = sorted((v, p) for p, v in self.centred.items() if not self.layout.is_across(p))
        for node in self.layout.nodes:
            own = [value for value, pair in ordered if node in pair]
            others = [value for value, pair in ordered if node not in pair]
            if len(own) >= LEAST_REPEATS and len(others) >= _LEAST_OTHERS:
                self.known[node] = median(own), median(others), spread_of(others)

    def _usual(self) -> dict[bool, float]:
        """Return the median first run of the pairs inside racks, and of those across."""
        kinds: dict[bool, list[float]] = {}
        for pair, (_, value) in self.values.items():
            kinds.setdefault(self.layout.is_across(pair), []).append(value)
        return {kind: median(own) for kind, own in kinds.items()}

    # -- nodes

    def _accuse_nodes(self, rule: tuple[float, float], *, blocks_before: int = 0) -> bool:
        """Run the nodes that are low in fresh pairs; whether one is accused."""
        depth = {
            name: own - level
            for name, (own, level, spread) in self.known.items()
            if name not in self.out and own - level < -max(rule[0] * spread, rule[1])
        }
        place = self.layout.place
        self.low = tuple(sorted(depth, key=lambda name: (depth[name], place[name])))
        if not self.low:
            return False
        width, left = max(1, len(place) // SHARE), self.study.budget - len(self.planned)
        choices = [(each, REPEATS) for each in range(min(width, len(self.low)), 0, -1)]
        choices += [(1, each) for each in range(REPEATS - 1, LEAST_REPEATS - 1, -1)]
        fitting = [(width, repeats) for width, repeats in choices if repeats * (width + 1) <= left]
        if not fitting:
            self.unaffordable += self.low
            return False
        width, repeats = fitting[0]
        chosen = self.low[:width]
        waves = [self._wave(chosen, at, blocks_before + at + 1) for at in range(repeats)]
        self.waves += repeats
        self.run([each for wave in waves for each in wave.values()])
        values = [{name: self.value(trial) for name, trial in wave.items()} for wave in waves]
        for name in chosen:
            both = self._differences.setdefault(name, [])
            both += paired([e.get(name) for e in values], [e.get("") for e in values])
            self.nodes[name] = self._shown(both, but={*self.low}, family=width)
        return bool(self.accused)

    def _wave(self, chosen: Sequence[str], at: int, block: int) -> dict[str, Trial]:
        """Return disjoint pairs: each suspect with a good partner, and a good pair as ""."""
        layout = self.layout
        distance = {name: abs(own - level) for name, (own, level, _) in self.known.items()}
        able = [n for n in self.known if n not in self.low and n not in self.out]
        good = sorted(able, key=lambda name: (distance[name], layout.place[name]))
        first = at % max(len(good), 1)
        rest = [*good[first:], *good[:first]]
        wave: dict[str, Pair] = {}
        for name in chosen:
            near = {*layout.partners(name)} - {self._worst_partner(name)}
            if partner := next((each for each in rest if each in near and each != name), ""):
                rest.remove(partner)
                wave[name] = layout.ordered(name, partner)
        for one in rest:
            near = set(layout.partners(one))
            if other := next((each for each in rest if each in near), ""):
                wave[""] = layout.ordered(one, other)
                break
        return {name: self.study.trial(NODES, block, pair) for name, pair in wave.items()}

    def _worst_partner(self, node: str) -> str:
        """Return with whom a node was slowest: that pair made it a suspect, be it a link or not."""
        own = [(value, pair) for pair, value in self.centred.items() if node in pair]
        if len(own) < LEAST_REPEATS or len(self.layout.nodes) < MANY:
            return ""
        one, other = min(own, key=lambda each: (each[0], self.layout.places(each[1])))[1]
        return other if one == node else one

    # -- links

    def _accuse_link(self) -> None:
        """Run the pairs that are low again, then the slowest beside its ends elsewhere."""
        limit = -max(PAIR[0] * self.sigma, PAIR[1])
        low = sorted(
            (value, self.layout.places(pair), pair)
            for pair, value in self.centred.items()
            if value < limit and not set(pair) & self.out.keys()
        )
        most = len(self.layout.nodes) // SHARE_OF_PAIRS
        suspects = [*self.broken, *(pair for _, _, pair in low)][:most]
        suspects = [pair for pair in suspects if self._partners_of(pair)]
        if not suspects:
            return
        width = 4 if self.layout.is_across(suspects[0]) else 3
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
        trials = [self.study.trial(AGAIN, at, pair) for at, wave in numbered for pair in wave]
        self.waves += len(waves)
        self.run(trials)
        for each in trials:
            value = self.value(each)
            self.again.setdefault(self._pair(each), []).extend([] if value is None else [value])
        self.broken = [pair for pair in self.broken if self.again.get(pair) == []]
        fresh = {pair: fmean(own) for pair, own in self.fresh().items()}
        lowest = min(fresh, key=lambda p: (fresh[p], self.layout.places(p)), default=None)
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

    def _partners_of(self, pair: Pair) -> list[tuple[Pair, Pair]]:
        """Return disjoint pairs of each end of a pair with a good partner; [] without enough."""
        layout, is_across = self.layout, self.layout.is_across(pair)
        bad = {*self.out, *self.accused, *pair, *(node for each in self.broken for node in each)}
        racks = layout.racks_of(pair) if is_across else set()
        centre = {node: own - level for node, (own, level, _) in self.known.items()}

        def good(node: str) -> list[str]:
            near = layout.partners(node, across=is_across)
            able = [each for each in near if each not in bad and layout.rack_of[each] not in racks]
            return sorted(able, key=lambda e: (abs(centre.get(e, 1.0)), layout.place[e]))

        one, other = good(pair[0]), good(pair[1])
        chosen = []
        for at in range(REPEATS):
            a = one[at % len(one)] if one else ""
            b = next((each for each in (*other[at + 1 :], *other) if each != a), "")
            if not a or not b:
                return []
            chosen.append((layout.ordered(pair[0], a), layout.ordered(pair[1], b)))
        return chosen

    def _confirm_link(self, pair: Pair, repeats: int) -> None:
        twins = self._twins(pair)
        # itself, its ends, its ends, itself: a drift is the same for both
        waves: list[tuple[Pair, ...]] = []
        for at, both in enumerate(self._partners_of(pair)[:repeats]):
            beside = (pair, *([twins[at % len(twins)]] if twins else []))
            waves += [beside, both] if at % 2 == 0 else [both, beside]
        trials = [
            [self.study.trial(LINK, at, each) for each in wave]
            for at, wave in enumerate(waves, start=1)
        ]
        self.waves += len(waves)
        self.link = pair
        self.run([each for wave in trials for each in wave])
        values = [[self.value(each) for each in wave] for wave in trials]
        is_own = [wave[0] == pair for wave in waves]
        own, *twin = zip(*(v for v, it in zip(values, is_own, strict=True) if it), strict=True)
        sides = [*zip(*(v for v, it in zip(values, is_own, strict=True) if not it), strict=True)]
        # its ends are no slow nodes: their other pairs tell the noise as well
        first, second = (self._shown(paired(own, side), but=set()) for side in sides)
        if first is not None and second is not None:
            self.ends = first, second
        mean = [
            None if a is None or b is None else (a + b) / 2 for a, b in zip(*sides, strict=True)
        ]
        self.loss = self._shown(paired(own, mean), but=set(), jobs=1.5)
        if twin:
            self.elsewhere = self._shown(paired(twin[0], mean), but=set(), jobs=1.5)

    def _twins(self, pair: Pair) -> list[Pair]:
        """Return other pairs between the same two racks."""
        layout, bad = self.layout, {*pair, *self.out}
        if not layout.is_across(pair):
            return []
        racks = layout.racks_of(pair)
        found = (each for each in layout.across if layout.racks_of(each) == racks)
        return sorted((each for each in found if not bad & {*each}), key=layout.places)

    # -- noise

    def pooled(self, *, but: set[str]) -> tuple[float, int]:
        """Return sum of squares and degrees of freedom inside rounds, these nodes left out."""
        return pooled(self._healthy(but))

    def _healthy(self, but: set[str]) -> list[list[float]]:
        by_round: dict[int, list[float]] = {}
        is_small = len(self.layout.nodes) < MANY
        for pair, (block, value) in self.values.items():
            is_suspect = pair == self.link or set(pair) & but
            if not is_suspect and not self.layout.is_across(pair):
                by_round.setdefault(0 if is_small else block, []).append(value)
        return list(by_round.values())

    def _shown(
        self, differences: Sequence[float], *, but: set[str], family: int = 1, jobs: float = 2.0
    ) -> Slower | None:
        """Return what runs side by side show, noise pooled with that of healthy pairs."""
        others = self._healthy({*but, *self.accused})
        return slower(differences, others, family=family, jobs=jobs)

    # -- verdicts

    def conclusion(self) -> Conclusion:
        """Return a verdict on every node and on the network."""
        record = self._record()
        whole = self._whole(record)
        if self.is_over:
            is_fault = whole.kind in (VerdictKind.SLOWER, VerdictKind.INVALID)
            record = replace(record, answer=_answer(whole), is_fault=is_fault)
        results: dict[str, list[TrialResult]] = {node: [] for node in self.layout.nodes}
        for each in self.of(self.planned):
            for node in self._pair(each.trial):
                results[node].append(each)
        level = median(value for _, value in self.values.values()) if self.values else math.nan
        verdicts = [at_level(self._node(name, own, record), level) for name, own in results.items()]
        return Conclusion(
            verdicts=(whole, *NetworkWord.ordered(verdicts)),
            record=record,
            alpha=ALPHA if self.waves else 0.0,
            complete=self.is_over,
            notes=tuple(self._notes(record)) if self.is_over else (),
        )

    def _node(self, name: str, own: Sequence[TrialResult], record: NetworkRecord) -> Verdict:
        """Return the verdict on a node: the gravest case first."""
        base, known = so_far(name.lower(), own), self.known.get(name)
        if known is not None:
            base = replace(base, delta=relative(known[0] - known[1]))
        if failed := self.out.get(name):
            why = Reason(Why.PAIRS_FAILED, pairs=len(failed), why=failed[0].reason or NO_SCORE)
            return NetworkWord.UNHEALTHY.say(base, why)
        if not any(each.status.is_final for each in own):
            return base
        if not self.is_over:
            return replace(base, kind=VerdictKind.SCREENED, method=Reason(Why.SINGLE_RUNS_OF_PAIRS))
        if shown := self.nodes.get(name):
            return self._confirmed(base, shown)
        if name in self.nodes or name in self.low or known is None:
            return NetworkWord.CANNOT_TELL.say(base, self._unknown(name))
        link = self.accused_link
        if link is not None and name in link:
            found = NetworkWord.LINK.say(base, Reason(Why.SLOW_WITH_ONE, pair=link))
        else:
            found = NetworkWord.NO_FAULT.say(base, Reason(Why.NOT_LOW_IN_PAIRS))
        return replace(found, kind=_level_kind(record.node_loss))

    def _unknown(self, name: str) -> Reason:
        if name in self.unaffordable:
            asked = {"budget": self.study.budget, "ask": self.study.most_jobs}
            return Reason(Why.LOW_PAIRS_NO_BUDGET, **asked)
        is_low = name in self.nodes or name in self.low
        return Reason(Why.FRESH_PAIRS_MISSING if is_low else Why.FEW_PAIRS_SCORED)

    def _confirmed(self, base: Verdict, shown: Slower) -> Verdict:
        method = Reason(Why.FRESH_PAIRS, pairs=shown.n)
        base = replace(_told(base, shown), n=shown.n, method=method)
        if shown.accuses:
            return NetworkWord.NODE.say(base, _at_least(shown))
        if shown.is_open:
            return NetworkWord.CANNOT_TELL.say(base, Reason(Why.LOW_PAIRS_OPEN))
        return NetworkWord.NO_FAULT.say(base, Reason(Why.LOW_PAIRS_NOT_AGAIN))

    def _whole(self, record: NetworkRecord) -> Verdict:
        """Return the verdict on the network."""
        every = self.of(self.planned)
        base = begun(CONCLUSION, every)
        if not self.is_over:
            return base if not every else replace(base, kind=VerdictKind.SCREENED)
        base = replace(base, n=sum(usable(each) is not None for each in every))
        if self.is_stopped:
            out = tuple(self.out)
            cluster = Reason(Why.LOOK_AT_CLUSTER, least=STOP_AT, nodes=out)
            common = Reason(Why.ALL_PAIRS_FAIL) if self.is_common else cluster
            return NetworkWord.CLUSTER.say(base, common)
        faults = self._faults(record)
        if len(faults) > 1:
            all_of_them = Reason(Why.SEVERAL, reasons=[each.among for each in faults])
            return NetworkWord.SEVERAL.say(base, all_of_them)
        if faults:
            (fault,) = faults
            found = fault.word.say(base, fault.alone)
            found = _told(found, fault.shown) if fault.shown else found
            return replace(found, word=fault.text)
        if why := self._open(record):
            return NetworkWord.CANNOT_TELL.say(base, why)
        losses = [x for x in (record.node_loss, record.link_loss) if x is not None]
        found = NetworkWord.NO_FAULT.say(base, Reason(Why.NOTHING_SLOW))
        most = math.ceil(1000 * max(losses) - 1e-9) / 10 if losses else math.nan
        kind = _level_kind(max(losses, default=None))
        return replace(found, kind=kind, word=f"{NetworkWord.NO_FAULT} ABOVE {most:.1f} %")

    def _faults(self, record: NetworkRecord) -> list[_Fault]:
        """Return all that is wrong, the gravest first."""
        found = [
            _Fault(
                NetworkWord.UNHEALTHY,
                f"{NetworkWord.UNHEALTHY} {name}",
                alone=Reason(Why.CANNOT_COMMUNICATE),
                among=Reason(Why.NODE_UNHEALTHY, node=name),
            )
            for name in self.out
        ]
        for name in self.accused:
            if shown := self.nodes[name]:
                among = Reason(Why.NODE_SLOW, node=name, loss=_at_least(shown))
                text, alone = f"{NetworkWord.NODE} {name}", _at_least(shown)
                found.append(_Fault(NetworkWord.NODE, text, alone=alone, among=among, shown=shown))
        for pair in self.broken:
            if self.again.get(pair) == []:
                why = Reason(Why.PAIR_DEAD, pair=pair)
                text = f"{NetworkWord.LINK} {'-'.join(pair)}"
                found.append(_Fault(NetworkWord.UNHEALTHY, text, alone=why, among=why))
        link, shown = self.accused_link, self.of_link
        if link and shown:
            loss, of_racks = _at_least(shown), set(record.link) != set(link)
            why = Reason(Why.RACKS_SLOW, pair=link, loss=loss)
            why = why if of_racks else Reason(Why.LINK_SLOW, loss=loss)
            text = f"{NetworkWord.LINK} {'-'.join(record.link)}"
            found.append(_Fault(NetworkWord.LINK, text, alone=why, among=why, shown=shown))
        return found

    def _open(self, record: NetworkRecord) -> Reason | None:
        """Return why nothing is excluded; None where it is."""
        if self.unaffordable:
            asked = {"budget": self.study.budget, "ask": self.study.most_jobs}
            return Reason(Why.SLOW_NO_BUDGET, nodes=self.unaffordable[:4], **asked)
        doubtful = [n for n, shown in self.nodes.items() if shown is None or shown.is_open]
        if doubtful:
            return Reason(Why.LOSS_OF_OPEN, names=doubtful)
        if self.link is not None and self.ends is None:
            return Reason(Why.LINK_WITHOUT_SCORE, pair=self.link)
        if self.ends is not None and all(each.estimate < LEAST_LOSS for each in self.ends):
            return Reason(Why.LOSS_OF_OPEN, names=["-".join(self.link or ())])
        if record.covered < record.of_pairs:
            return Reason(Why.LINKS_UNKNOWN, covered=record.covered, pairs=record.of_pairs)
        return None

    def _record(self) -> NetworkRecord:
        study, layout, fresh = self.study, self.layout, self.fresh()
        squares, df = self.pooled(but={*self.low, *self.accused})
        sigma = math.sqrt(squares / df) if df else (None if math.isnan(self.sigma) else self.sigma)
        link: Pair | tuple[()] = self.accused_link or ()
        if link and self.elsewhere is not None and self.elsewhere.accuses:
            link = layout.rack_of[link[0]], layout.rack_of[link[1]]
        is_whole = self.is_over and not self.is_stopped
        node_loss, link_loss = self._excluded(fresh) if is_whole else (None, None)
        return NetworkRecord(
            sigma=sigma,
            peak_tflops=study.asked.peak_tflops,
            nodes=study.cell.nodelist,
            accused=self.accused,
            link=link,
            unhealthy=tuple(self.out),
            pairs=tuple(
                self._pair_found(pair, fresh.get(pair, []))
                for pair in layout.pairs
                if pair in self.centred or pair in fresh
            ),
            covered=len(self.values),
            of_pairs=study.all_pairs,
            node_loss=node_loss,
            link_loss=link_loss if len(self.values) >= study.all_pairs else None,
            racks=len(layout.racks),
        )

    def _pair_found(self, pair: Pair, fresh: Sequence[float]) -> PairFound:
        # of the slowest pair what accuses it, with as many runs: one number wherever it stands
        shown = self.of_link if pair == self.link else None
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
        squares, df = self.pooled(but={*bad, *self.low})
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

    def _notes(self, record: NetworkRecord) -> list[Reason]:
        notes = [Reason(Why.LOAD_NOTED, load=self.study.load)]
        if self.is_stopped:
            return notes
        if not math.isnan(self.sigma):
            notes.append(Reason(Why.PAIRS_DIFFER, sigma=self.sigma))
        missing = record.of_pairs - record.covered
        if missing > 0:
            kind = Why.ENDS_WITH_ACCUSED if self.accused else Why.LINKS_UNSAID
            notes.append(Reason(kind, covered=record.covered, pairs=record.of_pairs))
        if record.racks:
            notes.append(Reason(Why.ONE_PAIR_OF_RACKS))
        if self.accused or self.accused_link:
            notes.append(Reason(Why.CROSS_CHECK))
        if self.accused_link and any(own and p != self.link for p, own in self.again.items()):
            notes.append(Reason(Why.SLOWEST_ONLY))
        if missing and not (self.accused or self.out or self.broken):
            notes.append(Reason(Why.PAIRS_EXCUSED, pairs=missing, budget=self.study.budget))
        notes.append(Reason(Why.ACCUSATION_RESTS_ON, runs=REPEATS, level=1 - ALPHA))
        return notes


@dataclass(frozen=True, slots=True)
class _Fault:
    """A node or a link that is wrong: its word, and why, told alone or among others."""

    word: NetworkWord
    text: str
    _: KW_ONLY
    alone: Reason
    among: Reason
    shown: Slower | None = None


def _told(verdict: Verdict, shown: Slower) -> Verdict:
    """Return a verdict with the change that is shown, and its 95 % interval."""
    low, high = shown.ci95
    return replace(verdict, delta=relative(shown.estimate), ci95=(relative(low), relative(high)))


def _at_least(shown: Slower) -> Reason:
    change, loss = relative(shown.estimate), -relative(shown.bound)
    return Reason(Why.LOSS_AT_LEAST, change=change, loss=loss)


def _answer(verdict: Verdict) -> Reason:
    if not verdict.reasons:
        return Reason(Why.WORD, word=verdict.word)
    return Reason(Why.WORD_FOR, word=verdict.word, why=verdict.reasons[0])


def _level_kind(excluded: float | None) -> VerdictKind:
    """Return the kind of what shows no fault: EQUIVALENT where a loss of 1 % is excluded."""
    is_level = excluded is not None and excluded < EQUIVALENCE
    return VerdictKind.EQUIVALENT if is_level else VerdictKind.SCREENED


def _packed(pairs: Sequence[Pair], *, at_most: int) -> list[list[Pair]]:
    """Put pairs into waves in which no node stands twice; what no wave takes is left out."""
    waves: list[list[Pair]] = []
    for pair in pairs:
        for wave in waves:
            if not any(set(pair) & set(other) for other in wave):
                wave.append(pair)
                break
        else:
            if len(waves) < at_most:
                waves.append([pair])
    return waves
