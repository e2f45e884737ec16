"""Find the node or link that slows the network: rounds of disjoint pairs, then fresh pairs.

An arm is a node; a trial is a pair of nodes with a two-node load. The single run of a pair only
chooses which pairs run again; fresh runs side by side decide. A node that cannot communicate is an
answer too, and the study goes on without it. docs/how-to/studies.md describes the study. This
module must not know of executors or logs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, combinations, zip_longest
from statistics import fmean, median
from typing import ClassVar

import msgspec
from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.hosts import expand
from pytest_xlatune.model.message import Message, say
from pytest_xlatune.model.pairs import CellsRecord, PairFound
from pytest_xlatune.model.result import Conclusion, TrialResult, Verdict, VerdictKind, relative
from pytest_xlatune.model.text import counted
from pytest_xlatune.model.trial import Arm, Trial
from pytest_xlatune.stats.beside import (
    ALPHA,
    LEAST_LOSS,
    LEAST_REPEATS,
    Slower,
    paired,
    slower,
    spread_of,
)
from pytest_xlatune.studies import Aim, Asked, History, Traits
from pytest_xlatune.studies.cell_arms import (
    ACCUSED,
    CellArms,
    CellProgress,
    DeclaredCells,
    decided,
    dropped,
    is_excused,
    not_accused,
    summary_sentence,
    undecided,
    worst_first,
)
from pytest_xlatune.studies.trials import usable
from pytest_xlatune.studies.verdicts import (
    NO_SCORE,
    as_screened,
    at_level,
    verdict_with_figures,
    with_change,
)

KIND = "network"
MIN_NODES, MIN_RACKS = 4, 3

ROUND, NODES, AGAIN, LINK = "round", "node", "again", "link"
_PLACES = {
    ROUND: "round {block} of about {rounds}",
    NODES: "slow nodes again, wave {block}",
    AGAIN: "slow pairs again, wave {block}",
    LINK: "the slowest pair again, wave {block}",
}

FIRST_ROUNDS = 4
# What is worse than both limits runs again: standard deviations, and loss as a log ratio.
EARLY = (2.0, 0.015)  # for a node after the first rounds
LATE = (1.0, 0.012)  # for a node once every pair has run
PAIR = (1.8, 0.012)  # for a pair by its single run
FRESH = 0.010  # for a pair by its two fresh runs: the loss alone
SHARE = 4  # at most a fourth of the nodes may be suspects
# At most half as many pairs as nodes may be suspects. With a few percent of bad jobs among N^2 / 2
# pairs, N / 2 pairs of 32 healthy nodes look slow, and the bad link is not always the slowest.
SHARE_OF_PAIRS = 2
REPEATS = 4
MANY = 8  # with so many nodes, the pairs of one round are enough for a median
_LEAST_OTHERS = 3

_MOST_FAIL = "more pairs failed than were measured: look at the load and what nodes share"

Pair = tuple[str, str]  # in the order of the node list
Round = tuple[Pair, ...]


def every_pair_once(names: Sequence[str]) -> tuple[Round, ...]:
    """Return rounds of disjoint pairs that hold every pair once; with an odd number one sits out.

    The circle method: the nodes stand on a circle, each is paired with its mirror image, and the
    mirror turns by one place each round.
    """
    circle = (len(names) - 1) | 1  # with an even number, the last node stands in the middle
    rounds = []
    for turn in range(circle):
        meet = [((turn + k) % circle, (turn - k) % circle) for k in range(1, circle // 2 + 1)]
        meet += [(turn, circle)] if circle < len(names) else []
        rounds.append(tuple((names[a], names[b]) for a, b in sorted(map(sorted, meet))))
    return tuple(rounds)


class NetworkRecord(CellsRecord, frozen=True, kw_only=True):
    """The result of a network study besides its verdicts."""

    kind: ClassVar[str] = KIND


class Network(DeclaredCells, frozen=True, kw_only=True):
    """What a sweep file declares: `Sweep(study=Network())`. It runs on the pinned nodes.

    Attributes:
        racks: rack or leaf switch -> its nodes as a host list, e.g. `node[001-016]`. With racks, it
            runs every pair inside each rack and one pair between each two racks; with () all.
        key: a name for this check, e.g. a date; runs with another key are not used again.
    """

    kind: ClassVar[str] = KIND
    racks: dict[str, str] = msgspec.field(default_factory=dict)
    key: str = ""

    def study(self, asked: Asked) -> NetworkStudy:
        """Return the study of the pinned nodes in pairs."""
        return NetworkStudy(cell=asked.cell, asked=self, budget=asked.budget)


class _NetworkProgress(CellProgress["NetworkStudy"]):
    """One check so far, and what it shows."""

    is_common = False  # whether so many pairs fail that the nodes are not the cause
    low: tuple[str, ...] = ()  # nodes that are slow in the rounds, the slowest first
    link: Pair | None = None  # the pair that ran again beside its nodes with other partners
    ends: tuple[Slower, ...] = ()  # its loss against each of its nodes with another partner
    # its loss against the mean of both, because the slower of two is chance
    loss: Slower | None = None

    def __init__(self, study: NetworkStudy, history: History) -> None:
        super().__init__(study, history)
        # nodes that cannot communicate -> the results that show it
        self.out: dict[str, list[TrialResult]] = {}
        self.broken: list[Pair] = []  # pairs that fail although both nodes work with others
        self.values: dict[Pair, float] = {}  # log scores of first runs
        self.centred: dict[Pair, float] = {}  # the same minus the median of their round
        # node -> median of its pairs minus that of the others, and the spread of the others
        self.known: dict[str, tuple[float, float]] = {}
        # node that ran again -> log ratios of fresh pairs
        self.differences: dict[str, list[float]] = {}
        self.nodes: dict[str, Slower | None] = {}  # the same nodes -> the loss that these show
        self.again: dict[Pair, list[float]] = {}  # log scores of pairs that ran again

    def run_stages(self) -> None:
        """Run rounds of pairs, then the nodes that are slow in them, then the slow pairs."""
        # Comparing halves of the nodes missed a link that was 5 % slow in 72 to 90 % of simulated
        # networks: a ring uses two links of a node, and rarely the slow one.
        self._find_out()
        if self.is_common:
            trials = chain(*self.study.round_trials)
            self.planned += [trial for trial in trials if trial.id in self.results]
            return
        rounds, first = self.study.round_trials, len(self.study.inside[:FIRST_ROUNDS])
        self._run_rounds(rounds[:first], later=sum(map(len, rounds[first:])))
        if self._accuse_nodes(EARLY):
            return
        self._run_rounds(rounds[first:])
        if len(rounds) > first and self._accuse_nodes(LATE, blocks_before=REPEATS):
            return
        self._accuse_link()

    def stage_results(self, trials: Sequence[Trial], *, later: int = 0) -> list[TrialResult]:
        """Return the results of a stage, without new trials of nodes that cannot communicate."""
        able = [
            trial
            for trial in trials
            if self.final_result(trial) or not self.out.keys() & {*self.study.pair_of(trial)}
        ]
        return super().stage_results(able, later=later)

    def arms_of(self, trial: Trial) -> Sequence[str]:
        return [node.lower() for node in self.study.pair_of(trial)]

    @property
    def accused(self) -> tuple[str, ...]:
        """The nodes that fresh pairs show to be slow, the slowest first."""
        shown = {name: loss for name, loss in self.nodes.items() if loss and loss.accuses}
        return tuple(sorted(shown, key=lambda name: shown[name].estimate))

    @property
    def accuses_link(self) -> bool:
        # a pair that is slower than only one of its nodes elsewhere may contain a slow node
        return bool(self.ends) and all(end.accuses for end in self.ends)

    @cached_property
    def sigma(self) -> float:
        """Robust spread of the pairs in the rounds; NaN before there are any."""
        return spread_of([*self.centred.values()]) if self.centred else math.nan

    def _find_out(self) -> None:
        """Find the nodes that cannot communicate: two of their pairs failed."""
        failed: dict[Pair, TrialResult] = {}
        worked: Counter[str] = Counter()
        for result in self.results_of(chain(*self.study.round_trials)):
            if usable(result) is not None:
                worked.update(self.study.pair_of(result.trial))
            elif result.status.is_final and not is_excused(result):
                failed[self.study.pair_of(result.trial)] = result
        left, place = dict(failed), self.study.place
        while left:
            counts = Counter(chain(*left))
            node = min(counts, key=lambda name: (-counts[name], worked[name], place[name]))
            if counts[node] < 2 or worked[node] > counts[node]:  # noqa: PLR2004 - one may be a link
                break
            self.out[node] = [result for pair, result in left.items() if node in pair]
            left = {pair: result for pair, result in left.items() if node not in pair}
        self.broken = [pair for pair in left if not self.out.keys() & {*pair}]
        self.is_common = len(failed) > worked.total() // 2 and len(failed) >= _LEAST_OTHERS

    def _run_rounds(self, rounds: Sequence[Sequence[Trial]], *, later: int = 0) -> None:
        """Run rounds; compare each pair with the median of its round, each node with the others.

        A round of few pairs has no reliable median; then that of all pairs of its kind is used.
        """
        trials, study = [*chain(*rounds)], self.study
        scores = {study.pair_of(trial): self.value(trial) for trial in trials}
        self.values |= {pair: value for pair, value in scores.items() if value is not None}
        least = MANY // 2 if len(study.nodes) >= MANY else math.inf
        usual, of_round = self._usual(), _grouped(self.values, study.round_of.__getitem__)
        for pair, value in self.values.items():
            alike, is_across = of_round[study.round_of[pair]], study.is_across(pair)
            has_own = len(alike) >= least and not is_across
            self.centred[pair] = value - (median(alike) if has_own else usual[is_across])
        inside = {pair: v for pair, v in self.centred.items() if not study.is_across(pair)}
        for node in study.nodes:
            values = [value for pair, value in inside.items() if node in pair]
            others = [value for pair, value in inside.items() if node not in pair]
            if len(values) >= LEAST_REPEATS and len(others) >= _LEAST_OTHERS:
                self.known[node] = median(values) - median(others), spread_of(others)
        self.stage_results(trials, later=later)

    def _usual(self) -> dict[int, float]:
        """Return the median first run of the pairs inside racks (0) and across racks (1)."""
        kinds = _grouped(self.values, self.study.is_across)
        return {kind: median(values) for kind, values in kinds.items()}

    def _nearest(self, nodes: Iterable[str]) -> list[str]:
        """Return the nodes, those closest to the median first: these are the best partners."""
        place, known = self.study.place, self.known
        off = {node: abs(known[node][0]) if node in known else 1.0 for node in nodes}
        return sorted(off, key=lambda node: (off[node], place[node]))

    def _accuse_nodes(self, rule: tuple[float, float], *, blocks_before: int = 0) -> bool:
        """Run the slow nodes in fresh pairs; return whether one is accused."""
        place = self.study.place
        low = {
            name: (depth, place[name])
            for name, (depth, spread) in self.known.items()
            if name not in self.out and depth < -max(rule[0] * spread, rule[1])
        }
        self.low = tuple(sorted(low, key=lambda name: low[name]))
        if not self.low:
            return False
        chosen = self.low[: max(1, len(place) // SHARE)]
        waves = [self._wave(chosen, at, blocks_before + at + 1) for at in range(REPEATS)]
        self.stage_results([trial for wave in waves for trial in wave.values()])
        runs = [{name: self.value(trial) for name, trial in wave.items()} for wave in waves]
        for name in chosen:
            differences = self.differences.setdefault(name, [])
            differences += paired([run.get(name) for run in runs], [run.get("") for run in runs])
            self.nodes[name] = self._shown(differences, self.low, family=len(chosen))
        return bool(self.accused)

    def _wave(self, chosen: Sequence[str], at: int, block: int) -> dict[str, Trial]:
        """Return disjoint pairs: suspect -> its pair with a good partner, and "" -> a good pair."""
        study = self.study
        good = self._nearest(n for n in self.known if n not in {*self.low, *self.out})
        first = at % max(len(good), 1)
        left = [*good[first:], *good[:first]]
        wave: dict[str, Pair] = {}
        for name in chosen:
            near = study.partners(name) - {self._worst_partner(name)}
            if partner := next((node for node in left if node in near), ""):
                left.remove(partner)
                wave[name] = study.pair(name, partner)
        pairs = (pair for pair in combinations(left, 2) if not study.is_across(pair))
        if good_pair := next(pairs, None):
            wave[""] = study.pair(*good_pair)
        return {name: study.trial(pair, NODES, block) for name, pair in wave.items()}

    def _worst_partner(self, node: str) -> str:
        """Return the partner with which a node was slowest, whether node or link is the cause."""
        order, centred = self.study.order, self.centred
        pairs = [pair for pair in centred if node in pair]
        if len(pairs) < LEAST_REPEATS or len(self.study.nodes) < MANY:
            return ""
        one, other = min(pairs, key=lambda pair: (centred[pair], order[pair]))
        return other if one == node else one

    def _accuse_link(self) -> None:
        """Run the slow pairs again, then the slowest one beside its nodes with other partners."""
        study, limit = self.study, -max(PAIR[0] * self.sigma, PAIR[1])
        low = [p for p, v in self.centred.items() if v < limit and not self.out.keys() & {*p}]
        low.sort(key=lambda pair: (self.centred[pair], study.order[pair]))
        suspects = [*self.broken, *low][: len(study.nodes) // SHARE_OF_PAIRS]
        suspects = [pair for pair in suspects if self._ends_of(pair)]
        if not suspects:
            return
        blocks = range(1, LEAST_REPEATS + 1)
        trials = [study.trial(pair, AGAIN, block) for block in blocks for pair in suspects]
        self.stage_results(trials)
        for trial in trials:
            value, runs = self.value(trial), self.again.setdefault(study.pair_of(trial), [])
            runs += [] if value is None else [value]
        self.broken = [pair for pair in self.broken if not self.again.get(pair, [0.0])]
        fresh = {pair: self._change(pair) for pair, values in self.again.items() if values}
        lowest = min(fresh, key=lambda pair: (fresh[pair], study.order[pair]), default=None)
        if lowest and not self.broken and fresh[lowest] <= -max(self.sigma, FRESH):
            self._confirm_link(lowest)

    def _change(self, pair: Pair) -> float:
        """Return the change of a pair: by fresh runs if it has any, because a first run chose it.

        Fresh runs are compared with the median of all first runs of their kind, which slow pairs do
        not move. A mean that included the pair showed a link that lost 23.1 % with -19.7 %.
        """
        runs = self.again.get(pair)
        if runs:
            return fmean(runs) - self._usual().get(self.study.is_across(pair), math.nan)
        return self.centred[pair]

    def _ends_of(self, pair: Pair) -> list[tuple[Pair, Pair]]:
        """Return disjoint pairs of each of its nodes with a good partner; [] if too few."""
        study, across = self.study, self.study.is_across(pair)
        bad = {*self.out, *self.accused, *pair, *chain(*self.broken)}
        if across:  # a node in a third rack tells on which side the fault is
            bad |= {*chain(*(study.racks[study.rack_of[end]] for end in pair))}
        one, other = (self._nearest(study.partners(end, across=across) - bad) for end in pair)
        ends = []
        for at in range(REPEATS):
            a = one[at % len(one)] if one else ""
            b = next((node for node in (*other[at + 1 :], *other) if node != a), "")
            if not a or not b:
                return []
            ends.append((study.pair(pair[0], a), study.pair(pair[1], b)))
        return ends

    def _confirm_link(self, pair: Pair) -> None:
        study, rows = self.study, []
        for at, ends in enumerate(self._ends_of(pair)):
            # in ABBA order (link, others, others, link), so that drift cancels
            first, second = 2 * at + 1 + at % 2, 2 * at + 2 - at % 2
            others = (study.trial(end, LINK, second) for end in ends)
            rows.append([study.trial(pair, LINK, first), *others])
        self.link = pair
        self.stage_results(sorted(chain(*rows), key=lambda trial: trial.block))
        link, one, other = zip(*(map(self.value, row) for row in rows), strict=True)
        both = zip(one, other, strict=True)
        mean = [None if a is None or b is None else (a + b) / 2 for a, b in both]
        # Its two nodes are not accused, so their other pairs contribute to the noise.
        against = [shown for side in (one, other) if (shown := self._shown(paired(link, side)))]
        self.loss = self._shown(paired(link, mean), jobs=1.5)
        self.ends = tuple(against) if self.loss and len(against) == len(pair) else ()

    def _healthy(self, but: Iterable[str]) -> list[list[float]]:
        """Return the first runs inside racks by round, without the nodes in `but`."""
        study, bad = self.study, {*but}
        kept = {
            pair: value
            for pair, value in self.values.items()
            if pair != self.link and not bad & {*pair} and not study.is_across(pair)
        }
        round_of = study.round_of if len(study.nodes) >= MANY else dict.fromkeys(kept, 0)
        return [*_grouped(kept, round_of.__getitem__).values()]

    def _shown(
        self, pairs: Sequence[float], but: Iterable[str] = (), *, family: int = 1, jobs: float = 2.0
    ) -> Slower | None:
        """Return the loss that pairs of runs show; the noise includes that of healthy pairs."""
        return slower(pairs, self._healthy([*but, *self.accused]), family=family, jobs=jobs)

    def conclusion(self) -> Conclusion:
        study = self.study
        level = median(self.values.values()) if self.values else math.nan
        links = self._open_links() if self.is_over and not self.is_common else ()
        verdicts = [*map(self._node, study.nodes), *map(self._link, links)]
        verdicts = worst_first(at_level(verdict, level) for verdict in verdicts)
        answer = summary_sentence(verdicts) if self.is_over else say("no verdict yet")
        if self.is_common:
            answer = say(_MOST_FAIL)
        text = "{nodes:+node}, {covered} of {pairs} pairs: {answer}"
        counts = {"covered": len(self.values), "pairs": len(study.round_of)}
        summary = [say(text, nodes=len(study.nodes), answer=answer, **counts)]
        is_fault = self.is_common or any(verdict.kind in ACCUSED for verdict in verdicts)
        record = NetworkRecord(
            sigma=None if math.isnan(self.sigma) else self.sigma,
            summary=tuple(summary),
            objection=tuple(summary) if is_fault and self.is_over else (),
            pairs=tuple(map(self._pair_found, (p for p in study.order if p in self.centred))),
        )
        alpha, notes = ALPHA if self.nodes or self.again else 0.0, self._notes()
        return self.concluded(verdicts, record, alpha=alpha, notes=notes)

    def _node(self, name: str) -> Verdict:
        """Return the verdict on a node, by the gravest case that applies."""
        runs, shown = self.by_arm[name.lower()], self.nodes.get(name)
        base = replace(verdict_with_figures(name.lower(), runs), against=say("the other pairs"))
        if name in self.known:
            base = with_change(base, self.known[name][0])
        if self.is_common:
            return undecided(base, say(_MOST_FAIL))
        if failed := self.out.get(name):
            text = "{pairs:+pair} with it failed, each with another partner: {why}"
            return dropped(base, say(text, pairs=len(failed), why=failed[0].reason or NO_SCORE))
        if not self.is_over:
            is_run = any(result.status.is_final for result in runs)
            return as_screened(base, say("single runs of its pairs")) if is_run else base
        if shown:
            text = "{pairs:+fresh pair} with good partners, against good pairs"
            base = _as_shown(base, shown, say(text, pairs=shown.n))
        if shown and shown.accuses:
            return decided(base, VerdictKind.SLOWER, _at_least(shown))
        if (shown and shown.is_open) or (not shown and name in self.low):
            text = "low over its pairs, and a loss is neither shown nor excluded by fresh ones"
            return undecided(base, say(text))
        if name not in self.known:
            return undecided(base, say("too few of its pairs have a score"))
        text = "low over its pairs, not in fresh ones" if shown else "not low over its pairs"
        return not_accused(base, say(text))

    def _open_links(self) -> Iterator[Pair]:
        """Yield the pair that ran again, and pairs without a score although both nodes work."""
        for result in self.results_of(chain(*self.study.round_trials)):
            pair = self.study.pair_of(result.trial)
            if pair == self.link or (pair not in self.values and not self.out.keys() & {*pair}):
                yield pair

    def _link(self, pair: Pair) -> Verdict:
        study, against = self.study, say("its nodes with other partners")
        runs = [run for run in self.by_arm[pair[0].lower()] if study.pair_of(run.trial) == pair]
        base = replace(verdict_with_figures(runs[0].trial.arm, runs), against=against)
        if pair == self.link and self.loss:
            base = _as_shown(base, self.loss, say("{runs:+run} beside them", runs=self.loss.n))
            if self.accuses_link:
                text = "the link is slower than both of its nodes with other partners: {loss}"
                racks = tuple(study.rack_of[node] for node in pair)
                if study.is_across(pair):
                    text = f"{text}; its pair stands for all of {{racks: and }}"
                why = say(text, loss=_at_least(self.loss), racks=racks)
                return decided(base, VerdictKind.SLOWER, why)
            if not all(end.estimate < LEAST_LOSS for end in self.ends):
                return not_accused(base, say("low in single runs, not beside its nodes elsewhere"))
            return undecided(base, say("a loss is neither shown nor excluded by fresh runs"))
        if pair in self.broken and pair in self.again:
            text = "they cannot communicate with each other, and both can with others"
            return dropped(base, say(text))
        return undecided(base, say("it has no score, so nothing is known of it"))

    def _pair_found(self, pair: Pair) -> PairFound:
        # the loss that accuses the slowest pair, so that all parts of a report show the same number
        shown = self.loss if pair == self.link else None
        change = shown.estimate if shown else self._change(pair)
        runs = 1 + len(self.again.get(pair, ())) + (shown.n if shown else 0)
        return PairFound(nodes=pair, change=relative(change), runs=runs)

    def _notes(self) -> Iterator[Message]:
        if self.is_over and not self.is_common:
            yield say("pairs of one round differ by {sigma:.2%} (one sigma)", sigma=self.sigma)
            if self.study.racks:
                yield say("between two racks one pair stands for all: other cables are not seen")
            if self.accused or self.accuses_link:
                text = "a node healthy alone and slow in pairs has a faulty network card or link"
                yield say(f"{text}; check again after its repair")


class NetworkStudy(CellArms, frozen=True, kw_only=True, dict=True):
    """One check of a network; its cell is the two-node load on all nodes of the check."""

    progress_class = _NetworkProgress
    traits: ClassVar[Traits] = Traits(aim=Aim.ACCUSES, cell_nodes=2)
    cell: Cell
    asked: Network = Network()

    def __post_init__(self) -> None:
        self.refuse_nodes(self.nodes, least=MIN_NODES)
        racks = self.racks.values()
        placed = Counter(chain(*racks))
        wrong = [name for name in self.nodes if placed[name] != 1]
        # a connection between two racks can only be compared with those between other racks
        is_few = len(racks) < MIN_RACKS or max(map(len, racks)) < MIN_NODES
        if self.asked.racks and (wrong or is_few):
            raise ConfigError(
                f"network: expected {MIN_RACKS} racks or more, one of them with {MIN_NODES} nodes "
                f"or more, and each node in one of them; found {counted(len(racks), 'rack')}"
                + (f", and in none or in two: {', '.join(wrong[:8])}" if wrong else "")
            )
        what = f"{len(self.nodes)} nodes need up to {self.most_jobs} jobs"
        self.refuse_budget(what, least=self.most_jobs, most=self.most_jobs)

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes, in the order of the node list."""
        return self.cell.nodelist

    @cached_property
    def place(self) -> Mapping[str, int]:
        """Node -> its index in the node list, which breaks ties."""
        return {name: at for at, name in enumerate(self.nodes)}

    @cached_property
    def racks(self) -> Mapping[str, tuple[str, ...]]:
        """Rack -> its nodes in the check, in order; {} if every pair is run."""
        listed = {rack: {*expand(text)} for rack, text in self.asked.racks.items()}
        racks = {rack: tuple(n for n in self.nodes if n in in_it) for rack, in_it in listed.items()}
        return {rack: nodes for rack, nodes in racks.items() if nodes}

    @cached_property
    def rack_of(self) -> Mapping[str, str]:
        """Node -> its rack; all are in one rack if none was declared."""
        racks = self.racks or {"": self.nodes}
        return {node: rack for rack, nodes in racks.items() for node in nodes}

    def is_across(self, pair: Pair) -> bool:
        """Return whether the two nodes are in different racks."""
        return self.rack_of[pair[0]] != self.rack_of[pair[1]]

    @cached_property
    def inside(self) -> tuple[Round, ...]:
        """The rounds of pairs inside racks; all racks run at the same time."""
        of_racks = map(every_pair_once, self.racks.values() if self.racks else [self.nodes])
        return tuple(tuple(chain(*rounds)) for rounds in zip_longest(*of_racks, fillvalue=()))

    @cached_property
    def rounds(self) -> tuple[Round, ...]:
        """All rounds: those inside racks, then those with one pair between each two racks."""
        between = (
            tuple(self._between(a, b, turn) for a, b in racks)
            for turn, racks in enumerate(every_pair_once(list(self.racks)) if self.racks else ())
        )
        return (*self.inside, *between)

    @cached_property
    def round_of(self) -> Mapping[Pair, int]:
        """Pair -> its round, counted from 1."""
        return {pair: at for at, pairs in enumerate(self.rounds, start=1) for pair in pairs}

    @cached_property
    def order(self) -> Mapping[Pair, int]:
        """Pair that may be run -> its index, which breaks ties.

        It includes pairs of each node with nodes of other racks that are in no round.
        """
        more = (
            self._between(a, b, turn)
            for a, b in combinations(self.racks, 2)
            for turn in range(max(len(self.racks[a]), len(self.racks[b])))
        )
        by_place = sorted({*self.round_of, *more}, key=lambda pair: [self.place[n] for n in pair])
        return {pair: at for at, pair in enumerate(by_place)}

    def _between(self, a: str, b: str, turn: int) -> Pair:
        nodes = (self.racks[rack][turn % len(self.racks[rack])] for rack in (a, b))
        return self.pair(*nodes)

    def pair(self, a: str, b: str) -> Pair:
        """Return two nodes as a pair, in the order of the node list."""
        return (a, b) if self.place[a] < self.place[b] else (b, a)

    def partners(self, node: str, *, across: bool = False) -> set[str]:
        """Return the possible partners of a node, inside its rack or in other racks."""
        pairs = (pair for pair in self.order if node in pair and self.is_across(pair) is across)
        return {*chain(*pairs)} - {node}

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """The cell of each pair that may be run."""
        return tuple(replace(self.cell, nodelist=pair) for pair in self.order)

    @property
    def ids(self) -> Sequence[str]:
        """Each pair by both names."""
        return ["+".join(pair).lower() for pair in self.order]

    def compared(self, history: History) -> tuple[Arm, ...]:
        """Return the nodes in the order of the node list; a trial runs a pair of them."""
        del history
        return tuple(replace(self.all_arms[0], id=name.lower()) for name in self.nodes)

    @cached_property
    def _pair_of(self) -> Mapping[str, Pair]:
        return {cell.digest: pair for pair, cell in zip(self.order, self.cells, strict=True)}

    def pair_of(self, trial: Trial) -> Pair:
        """Return the pair of a trial."""
        return self._pair_of[trial.cell_digest]

    def trial(self, pair: Pair, stage: str, block: int) -> Trial:
        """Return the trial of a pair in a stage and block."""
        return self.trial_of(self.all_arms[self.order[pair]], stage, block=block)

    @cached_property
    def round_trials(self) -> tuple[tuple[Trial, ...], ...]:
        """The trials of all rounds."""
        return tuple(
            tuple(self.trial(pair, ROUND, at) for pair in pairs)
            for at, pairs in enumerate(self.rounds, start=1)
        )

    @property
    def most_jobs(self) -> int:
        """How many jobs it costs at most: every round, then nodes and a link that run again."""
        nodes = len(self.nodes)
        of_nodes = 2 * REPEATS * (max(1, nodes // SHARE) + 1)
        of_pairs = LEAST_REPEATS * (nodes // SHARE_OF_PAIRS)
        return len(self.round_of) + of_nodes + of_pairs + 3 * REPEATS

    @property
    def outline(self) -> tuple[Message, ...]:
        """The lines of a plan about the study: jobs and waves."""
        counts = {"pairs": len(self.round_of), "rounds": len(self.rounds), "most": self.most_jobs}
        text = "{pairs} jobs of two nodes in {rounds} rounds, then what looks slow: at most {most}"
        return (say(text, **counts),)

    def place_of(self, trial: Trial) -> Message | None:
        """Return where a run stands, e.g. `round 3 of about 7`."""
        return say(_PLACES[trial.stage], block=trial.block, rounds=len(self.rounds))


def _as_shown(base: Verdict, shown: Slower, method: Message) -> Verdict:
    base = with_change(base, shown.estimate, shown.ci95)
    return replace(base, n=shown.n, method=method)


def _at_least(shown: Slower) -> Message:
    return say("a loss of {loss:size} or more", loss=-relative(shown.bound))


def _grouped(values: Mapping[Pair, float], by: Callable[[Pair], int]) -> dict[int, list[float]]:
    groups: dict[int, list[float]] = {}
    for pair, value in values.items():
        groups.setdefault(by(pair), []).append(value)
    return groups
