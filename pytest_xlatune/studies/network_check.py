"""Find the node or link that slows the network, by rounds of disjoint pairs, then fresh pairs.

An arm is a node; a trial is a pair of nodes with a two-node load. A link is what connects the two
nodes of a pair. The single run of a pair only chooses which pairs run again; fresh runs side by
side decide. A node that cannot communicate is an answer too, and the study goes on without it.
docs/how-to/studies.md describes the study. This module must not know of executors or logs.
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
from pytest_xlatune.model.result import (
    CellsRecord,
    Conclusion,
    PairFound,
    TrialResult,
    Verdict,
    VerdictKind,
    relative,
)
from pytest_xlatune.model.text import counted
from pytest_xlatune.model.trial import Arm, Trial
from pytest_xlatune.stats.paired_runs import (
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

FIRST_ROUNDS = 4  # after so many rounds, slow nodes run again for the first time
# A node or a pair runs again if its loss exceeds both limits: standard deviations, and a log ratio.
EARLY = (2.0, 0.015)  # for a node after the first rounds
LATE = (1.0, 0.012)  # for a node once every pair has run
PAIR = (1.8, 0.012)  # for a pair by its single run
FRESH = 0.010  # for a pair by its two fresh runs: this log ratio and one standard deviation
SHARE = 4  # at most a fourth of the nodes may be suspects
# At most half as many pairs as nodes may be suspects. With a few percent of bad jobs, 16 of
# the 496 pairs of 32 healthy nodes look slow, and the bad link is not always the slowest.
SHARE_OF_PAIRS = 2
REPEATS = 4  # fresh runs of a slow node, and of the slowest pair
MANY = 8  # with so many nodes, the pairs of one round are enough for a median
_LEAST_OTHERS = 3  # fewest other pairs that a node is compared with

_MOST_FAIL = "more pairs failed than were measured: look at the load and what nodes share"

Pair = tuple[str, str]  # in the order of the node list
Round = tuple[Pair, ...]


def every_pair_once(names: Sequence[str]) -> tuple[Round, ...]:
    """Return rounds of disjoint pairs that together hold every pair once.

    With an odd number of nodes, one node has no partner in each round. This is the circle method:
    an odd number of nodes is placed on a circle, each is paired with its mirror image, and the
    mirror turns by one place each round. With an even number, the last node is in the middle and is
    paired with the node that has no mirror image.
    """
    on_circle = len(names) if len(names) % 2 else len(names) - 1
    rounds = []
    for turn in range(on_circle):
        places = [
            ((turn + step) % on_circle, (turn - step) % on_circle)
            for step in range(1, on_circle // 2 + 1)
        ]
        if on_circle < len(names):
            places.append((turn, on_circle))
        in_order = sorted((min(pair), max(pair)) for pair in places)
        rounds.append(tuple((names[one], names[other]) for one, other in in_order))
    return tuple(rounds)


class NetworkRecord(CellsRecord, frozen=True, kw_only=True):
    """The result of a network study besides its verdicts."""

    kind: ClassVar[str] = KIND


class Network(DeclaredCells, frozen=True, kw_only=True):
    """What a sweep file declares: `Sweep(study=Network())`. It runs on the pinned nodes.

    Attributes:
        racks: rack or leaf switch -> its nodes as a host list, e.g. `node[001-016]`. With racks,
            the study runs every pair inside each rack, and one pair between each two racks; without
            racks (empty), it runs every pair.
    """

    kind: ClassVar[str] = KIND
    racks: dict[str, str] = msgspec.field(default_factory=dict)

    def study(self, asked: Asked) -> NetworkStudy:
        """Return the study of the pinned nodes in pairs."""
        return NetworkStudy(cell=asked.cell, asked=self, budget=asked.budget)


class _NetworkProgress(CellProgress["NetworkStudy"]):
    """The progress of a check, and what it shows.

    Attributes:
        is_common: whether so many pairs fail that the nodes are not the cause.
        low: the nodes that are slow in the rounds, the slowest first.
        link: the slowest pair, which ran again beside its nodes with other partners; None if none.
        link_loss: the loss of that pair against the mean of its nodes with other partners, since
            the slower of these may be slow by chance; None if unknown.
        end_losses: its loss against each of its nodes with another partner; () if unknown.
        failed_nodes: nodes that cannot communicate -> the results that show it.
        broken: pairs that fail although both nodes work with others.
        values: pair -> log score of its first run.
        centred: pair -> the same minus the median of its round.
        changes: node -> median of its pairs minus that of the others, and the spread of the others.
        differences: node that ran again -> log ratios of its fresh pairs to a good pair.
        node_losses: node that ran again -> the loss that these show; None if they are too few.
        again: pair that ran again -> log scores of these runs.
    """

    is_common = False
    low: tuple[str, ...] = ()
    link: Pair | None = None
    link_loss: Slower | None = None
    end_losses: tuple[Slower, ...] = ()

    def __init__(self, study: NetworkStudy, history: History) -> None:
        super().__init__(study, history)
        self.failed_nodes: dict[str, list[TrialResult]] = {}
        self.broken: list[Pair] = []
        self.values: dict[Pair, float] = {}
        self.centred: dict[Pair, float] = {}
        self.changes: dict[str, tuple[float, float]] = {}
        self.differences: dict[str, list[float]] = {}
        self.node_losses: dict[str, Slower | None] = {}
        self.again: dict[Pair, list[float]] = {}

    def run_stages(self) -> None:
        """Run rounds of pairs, then the nodes that are slow in them, then the slow pairs.

        Pairs are run because jobs on halves of the nodes miss a link that is 5 % slow in 72 to 90 %
        of simulated networks: a ring uses two links of a node, and rarely the slow one.
        """
        self._find_failed_nodes()
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
            if self.final_result(trial)
            or not self.failed_nodes.keys() & {*self.study.pair_of(trial)}
        ]
        return super().stage_results(able, later=later)

    def arms_of(self, trial: Trial) -> Sequence[str]:
        return [node.lower() for node in self.study.pair_of(trial)]

    @property
    def accused(self) -> tuple[str, ...]:
        """The nodes that fresh pairs show to be slow, the slowest first."""
        losses = {name: loss for name, loss in self.node_losses.items() if loss and loss.accuses}
        return tuple(sorted(losses, key=lambda name: losses[name].estimate))

    @property
    def accuses_link(self) -> bool:
        """Whether the slowest pair is slower than both of its nodes with other partners.

        If it is slower than only one of them, the other node may be the cause.
        """
        return bool(self.end_losses) and all(loss.accuses for loss in self.end_losses)

    @cached_property
    def sigma(self) -> float:
        """Robust spread of the pairs in the rounds; NaN before there are any."""
        return spread_of([*self.centred.values()]) if self.centred else math.nan

    def _find_failed_nodes(self) -> None:
        """Find the nodes that cannot communicate: those of which two pairs or more failed.

        The node with the most failed pairs is blamed for these, then the next for the remaining
        ones. Pairs that remain at the end are broken.
        """
        failed: dict[Pair, TrialResult] = {}
        worked: Counter[str] = Counter()
        for result in self.results_of(chain(*self.study.round_trials)):
            if usable(result) is not None:
                worked.update(self.study.pair_of(result.trial))  # both nodes of the pair
            elif result.status.is_final and not is_excused(result):
                failed[self.study.pair_of(result.trial)] = result
        unexplained, place = dict(failed), self.study.place
        while unexplained:
            counts = Counter(chain(*unexplained))
            node = min(counts, key=lambda name: (-counts[name], worked[name], place[name]))
            if counts[node] < 2 or worked[node] > counts[node]:  # noqa: PLR2004 - one may be a link
                break
            self.failed_nodes[node] = [
                result for pair, result in unexplained.items() if node in pair
            ]
            unexplained = {pair: result for pair, result in unexplained.items() if node not in pair}
        self.broken = [pair for pair in unexplained if not self.failed_nodes.keys() & {*pair}]
        self.is_common = len(failed) > worked.total() // 2 and len(failed) >= _LEAST_OTHERS

    def _run_rounds(self, rounds: Sequence[Sequence[Trial]], *, later: int = 0) -> None:
        """Run rounds; compare each pair with the median of its round, each node with the others.

        A round of few pairs has no reliable median; then that of all pairs of its kind is used.
        """
        trials, study = [*chain(*rounds)], self.study
        scores = {study.pair_of(trial): self.value(trial) for trial in trials}
        self.values |= {pair: value for pair, value in scores.items() if value is not None}
        least_pairs = MANY // 2 if len(study.nodes) >= MANY else math.inf
        medians = self._medians()
        by_round = _grouped(self.values, study.round_of.__getitem__)
        for pair, value in self.values.items():
            in_round, is_across = by_round[study.round_of[pair]], study.is_across(pair)
            uses_round = len(in_round) >= least_pairs and not is_across
            level = median(in_round) if uses_round else medians[is_across]
            self.centred[pair] = value - level
        inside = {pair: value for pair, value in self.centred.items() if not study.is_across(pair)}
        for node in study.nodes:
            values = [value for pair, value in inside.items() if node in pair]
            others = [value for pair, value in inside.items() if node not in pair]
            if len(values) >= LEAST_REPEATS and len(others) >= _LEAST_OTHERS:
                self.changes[node] = median(values) - median(others), spread_of(others)
        self.stage_results(trials, later=later)

    def _medians(self) -> dict[int, float]:
        """Return the median score of first runs inside racks (False) and across (True)."""
        kinds = _grouped(self.values, self.study.is_across)
        return {kind: median(values) for kind, values in kinds.items()}

    def _best_partners(self, nodes: Iterable[str]) -> list[str]:
        """Return the nodes, those closest to the median first; unknown ones come last."""
        place, changes = self.study.place, self.changes
        distances = {node: abs(changes[node][0]) if node in changes else 1.0 for node in nodes}
        return sorted(distances, key=lambda node: (distances[node], place[node]))

    def _accuse_nodes(self, limits: tuple[float, float], *, blocks_before: int = 0) -> bool:
        """Run the slow nodes in fresh pairs; return whether one is accused.

        Args:
            limits: standard deviations and log ratio, which a node must exceed to run again.
            blocks_before: the number of blocks in which slow nodes ran again earlier.
        """
        place = self.study.place
        sigmas, least_loss = limits
        low = {
            name: (change, place[name])
            for name, (change, spread) in self.changes.items()
            if name not in self.failed_nodes and change < -max(sigmas * spread, least_loss)
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
            self.node_losses[name] = self._loss(differences, self.low, family=len(chosen))
        return bool(self.accused)

    def _wave(self, chosen: Sequence[str], number: int, block: int) -> dict[str, Trial]:
        """Return disjoint pairs: suspect -> its pair with a good partner, and "" -> a good pair.

        Partners differ between waves, which are counted from 0.
        """
        study = self.study
        bad = {*self.low, *self.failed_nodes}
        good = self._best_partners(name for name in self.changes if name not in bad)
        first = number % max(len(good), 1)
        free = [*good[first:], *good[:first]]
        wave: dict[str, Pair] = {}
        for name in chosen:
            partners = study.partners(name) - {self._worst_partner(name)}
            if partner := next((node for node in free if node in partners), ""):
                free.remove(partner)
                wave[name] = study.pair(name, partner)
        pairs = (pair for pair in combinations(free, 2) if not study.is_across(pair))
        if good_pair := next(pairs, None):
            wave[""] = study.pair(*good_pair)
        return {name: study.trial(pair, NODES, block) for name, pair in wave.items()}

    def _worst_partner(self, node: str) -> str:
        """Return the partner with which a node was slowest, since the link may be the cause.

        It is "" if the node has too few pairs.
        """
        order, centred = self.study.order, self.centred
        pairs = [pair for pair in centred if node in pair]
        if len(pairs) < LEAST_REPEATS or len(self.study.nodes) < MANY:
            return ""
        one, other = min(pairs, key=lambda pair: (centred[pair], order[pair]))
        return other if one == node else one

    def _accuse_link(self) -> None:
        study, (sigmas, least_loss) = self.study, PAIR
        limit = -max(sigmas * self.sigma, least_loss)
        slow = [
            pair
            for pair, value in self.centred.items()
            if value < limit and not self.failed_nodes.keys() & {*pair}
        ]
        slow.sort(key=lambda pair: (self.centred[pair], study.order[pair]))
        suspects = [*self.broken, *slow][: len(study.nodes) // SHARE_OF_PAIRS]
        suspects = [pair for pair in suspects if self._control_pairs(pair)]
        if not suspects:
            return
        blocks = range(1, LEAST_REPEATS + 1)
        trials = [study.trial(pair, AGAIN, block) for block in blocks for pair in suspects]
        self.stage_results(trials)
        for trial in trials:
            values = self.again.setdefault(study.pair_of(trial), [])
            if (value := self.value(trial)) is not None:
                values.append(value)
        # a pair stays broken if it ran again without a score
        self.broken = [pair for pair in self.broken if pair in self.again and not self.again[pair]]
        fresh = {pair: self._change(pair) for pair, values in self.again.items() if values}
        lowest = min(fresh, key=lambda pair: (fresh[pair], study.order[pair]), default=None)
        if lowest and not self.broken and fresh[lowest] <= -max(self.sigma, FRESH):
            self._confirm_link(lowest)

    def _change(self, pair: Pair) -> float:
        """Return the change of a pair: by fresh runs if it has any, because a first run chose it.

        Fresh runs are compared with the median of all first runs of their kind, which slow pairs do
        not move. A mean that includes the pair would show -19.7 % for a link that loses 23.1 %.
        """
        runs = self.again.get(pair)
        if runs:
            return fmean(runs) - self._medians().get(self.study.is_across(pair), math.nan)
        return self.centred[pair]

    def _control_pairs(self, pair: Pair) -> list[tuple[Pair, Pair]]:
        """Return for each repeat two disjoint pairs: each node of the pair with a good partner.

        They run beside the pair. [] if there are too few good partners.
        """
        study, across = self.study, self.study.is_across(pair)
        bad = {*self.failed_nodes, *self.accused, *pair, *chain(*self.broken)}
        if across:  # partners are in a third rack, because that shows on which side the fault is
            for node in pair:
                bad |= {*study.racks[study.rack_of[node]]}
        first_partners, second_partners = (
            self._best_partners(study.partners(node, across=across) - bad) for node in pair
        )
        controls = []
        for at in range(REPEATS):
            first = first_partners[at % len(first_partners)] if first_partners else ""
            candidates = (*second_partners[at + 1 :], *second_partners)
            second = next((node for node in candidates if node != first), "")
            if not first or not second:
                return []
            controls.append((study.pair(pair[0], first), study.pair(pair[1], second)))
        return controls

    def _confirm_link(self, pair: Pair) -> None:
        study, rows = self.study, []
        for at, controls in enumerate(self._control_pairs(pair)):
            # in ABBA order (link, others, others, link), so that drift cancels
            link_block, controls_block = 2 * at + 1 + at % 2, 2 * at + 2 - at % 2
            others = (study.trial(control, LINK, controls_block) for control in controls)
            rows.append([study.trial(pair, LINK, link_block), *others])
        self.link = pair
        self.stage_results(sorted(chain(*rows), key=lambda trial: trial.block))
        values = [[self.value(trial) for trial in row] for row in rows]
        link, first, second = zip(*values, strict=True)
        means = [
            None if one is None or other is None else (one + other) / 2
            for one, other in zip(first, second, strict=True)
        ]
        # a difference from a mean of two runs has 1.5 times the variance of a run
        self.link_loss = self._loss(paired(link, means), jobs=1.5)
        first_loss = self._loss(paired(link, first))
        second_loss = self._loss(paired(link, second))
        if self.link_loss and first_loss and second_loss:
            self.end_losses = (first_loss, second_loss)

    def _loss(
        self,
        differences: Sequence[float],
        excluded: Iterable[str] = (),
        *,
        family: int = 1,
        jobs: float = 2.0,
    ) -> Slower | None:
        """Return the loss that differences of runs show; None if there are too few.

        The noise also comes from first runs inside racks, by round; the slowest pair and pairs with
        excluded or accused nodes do not count. For `family` and `jobs` see `slower`.
        """
        study, bad = self.study, {*excluded, *self.accused}
        healthy = {
            pair: value
            for pair, value in self.values.items()
            if pair != self.link and not bad & {*pair} and not study.is_across(pair)
        }
        round_of = study.round_of if len(study.nodes) >= MANY else dict.fromkeys(healthy, 0)
        groups = [*_grouped(healthy, round_of.__getitem__).values()]
        return slower(differences, groups, family=family, jobs=jobs)

    def conclusion(self) -> Conclusion:
        study = self.study
        level = median(self.values.values()) if self.values else math.nan
        links = self._open_links() if self.is_over and not self.is_common else ()
        verdicts = [*map(self._node_verdict, study.nodes), *map(self._link_verdict, links)]
        verdicts = worst_first(at_level(verdict, level) for verdict in verdicts)
        answer = summary_sentence(verdicts) if self.is_over else say("no verdict yet")
        if self.is_common:
            answer = say(_MOST_FAIL)
        text = "{nodes:+node}, {covered} of {pairs} pairs: {answer}"
        counts = {"covered": len(self.values), "pairs": len(study.round_of)}
        summary = (say(text, nodes=len(study.nodes), answer=answer, **counts),)
        has_fault = self.is_common or any(verdict.kind in ACCUSED for verdict in verdicts)
        measured = [pair for pair in study.order if pair in self.centred]
        record = NetworkRecord(
            sigma=None if math.isnan(self.sigma) else self.sigma,
            summary=summary,
            objection=summary if has_fault and self.is_over else (),
            pairs=tuple(map(self._pair_found, measured)),
        )
        alpha = ALPHA if self.node_losses or self.again else 0.0
        return self.concluded(verdicts, record, alpha=alpha, notes=self._notes())

    def _node_verdict(self, name: str) -> Verdict:
        """Return the verdict on a node, by the gravest case that applies."""
        runs, loss = self.by_arm[name.lower()], self.node_losses.get(name)
        base = replace(verdict_with_figures(name.lower(), runs), against=say("the other pairs"))
        if name in self.changes:
            base = with_change(base, self.changes[name][0])
        if self.is_common:
            return undecided(base, say(_MOST_FAIL))
        if failed := self.failed_nodes.get(name):
            text = "{pairs:+pair} with it failed, each with another partner: {why}"
            return dropped(base, say(text, pairs=len(failed), why=failed[0].reason or NO_SCORE))
        if not self.is_over:
            has_run = any(result.status.is_final for result in runs)
            return as_screened(base, say("single runs of its pairs")) if has_run else base
        if loss:
            text = "{pairs:+fresh pair} with good partners, against good pairs"
            base = _with_loss(base, loss, say(text, pairs=loss.n))
        if loss and loss.accuses:
            return decided(base, VerdictKind.SLOWER, _least_loss(loss))
        if (loss and loss.is_open) or (not loss and name in self.low):
            text = "low over its pairs, and a loss is neither shown nor excluded by fresh ones"
            return undecided(base, say(text))
        if name not in self.changes:
            return undecided(base, say("too few of its pairs have a score"))
        text = "low over its pairs, not in fresh ones" if loss else "not low over its pairs"
        return not_accused(base, say(text))

    def _open_links(self) -> Iterator[Pair]:
        """Yield the pair that ran again, and pairs without a score although both nodes work."""
        for result in self.results_of(chain(*self.study.round_trials)):
            pair = self.study.pair_of(result.trial)
            works = not self.failed_nodes.keys() & {*pair}
            if pair == self.link or (pair not in self.values and works):
                yield pair

    def _link_verdict(self, pair: Pair) -> Verdict:
        """Return the verdict on a pair that ran again, or that has no score."""
        study, against = self.study, say("its nodes with other partners")
        runs = [run for run in self.by_arm[pair[0].lower()] if study.pair_of(run.trial) == pair]
        base = replace(verdict_with_figures(runs[0].trial.arm, runs), against=against)
        if pair == self.link and self.link_loss:
            loss = self.link_loss
            base = _with_loss(base, loss, say("{runs:+run} beside them", runs=loss.n))
            if self.accuses_link:
                text = "the link is slower than both of its nodes with other partners: {loss}"
                racks = tuple(study.rack_of[node] for node in pair)
                if study.is_across(pair):
                    text = f"{text}; its pair stands for all of {{racks: and }}"
                why = say(text, loss=_least_loss(loss), racks=racks)
                return decided(base, VerdictKind.SLOWER, why)
            if any(end_loss.estimate >= LEAST_LOSS for end_loss in self.end_losses):
                return not_accused(base, say("low in single runs, not beside its nodes elsewhere"))
            return undecided(base, say("a loss is neither shown nor excluded by fresh runs"))
        if pair in self.broken and pair in self.again:
            text = "they cannot communicate with each other, and both can with others"
            return dropped(base, say(text))
        return undecided(base, say("it has no score, so nothing is known of it"))

    def _pair_found(self, pair: Pair) -> PairFound:
        """Return the change of a pair and the number of its runs.

        The slowest pair has the loss of its verdict, so that all parts of a report agree.
        """
        loss = self.link_loss if pair == self.link else None
        change = loss.estimate if loss else self._change(pair)
        runs = 1 + len(self.again.get(pair, ())) + (loss.n if loss else 0)
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
        rack_counts = Counter(chain(*racks))
        wrong = [name for name in self.nodes if rack_counts[name] != 1]
        # a connection between two racks can only be compared with connections between other racks
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
        """Rack -> its nodes in the check, in order; empty if no racks are declared."""
        racks = {}
        for rack, text in self.asked.racks.items():
            rack_nodes = {*expand(text)}
            nodes = tuple(name for name in self.nodes if name in rack_nodes)
            if nodes:
                racks[rack] = nodes
        return racks

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
        groups = self.racks.values() if self.racks else [self.nodes]
        rounds_of_groups = map(every_pair_once, groups)
        return tuple(
            tuple(chain(*rounds)) for rounds in zip_longest(*rounds_of_groups, fillvalue=())
        )

    @cached_property
    def rounds(self) -> tuple[Round, ...]:
        """All rounds: those inside racks, then those with one pair between each two racks."""
        if not self.racks:
            return self.inside
        between = [
            tuple(self._between(one, other, turn) for one, other in rack_pairs)
            for turn, rack_pairs in enumerate(every_pair_once(list(self.racks)))
        ]
        return (*self.inside, *between)

    @cached_property
    def round_of(self) -> Mapping[Pair, int]:
        """Pair -> its round, counted from 1."""
        return {pair: at for at, pairs in enumerate(self.rounds, start=1) for pair in pairs}

    @cached_property
    def order(self) -> Mapping[Pair, int]:
        """Pair that may be run -> its index, which breaks ties.

        Besides the pairs of the rounds, it has a pair of each node with some node of each other
        rack, which may run as a control.
        """
        pairs = {*self.round_of}
        for one, other in combinations(self.racks, 2):
            turns = max(len(self.racks[one]), len(self.racks[other]))
            pairs |= {self._between(one, other, turn) for turn in range(turns)}
        by_place = sorted(pairs, key=lambda pair: (self.place[pair[0]], self.place[pair[1]]))
        return {pair: at for at, pair in enumerate(by_place)}

    def _between(self, one_rack: str, other_rack: str, turn: int) -> Pair:
        """Return a pair of nodes of two racks; each turn takes the next node of both."""
        one_nodes, other_nodes = self.racks[one_rack], self.racks[other_rack]
        return self.pair(one_nodes[turn % len(one_nodes)], other_nodes[turn % len(other_nodes)])

    def pair(self, one: str, other: str) -> Pair:
        """Return two nodes as a pair, in the order of the node list."""
        return (one, other) if self.place[one] < self.place[other] else (other, one)

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
        """The id of each pair: both names in lower case, joined by a plus."""
        return ["+".join(pair).lower() for pair in self.order]

    def compared(self, history: History) -> tuple[Arm, ...]:
        """Return the nodes in the order of the node list; a trial runs a pair of them."""
        del history
        return tuple(replace(self.all_arms[0], id=name.lower()) for name in self.nodes)

    @cached_property
    def _pairs_by_cell(self) -> Mapping[str, Pair]:
        """Digest of a cell -> its pair."""
        return {cell.digest: pair for pair, cell in zip(self.order, self.cells, strict=True)}

    def pair_of(self, trial: Trial) -> Pair:
        """Return the pair of a trial."""
        return self._pairs_by_cell[trial.cell_digest]

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
        """How many jobs the study takes at most: every round, then nodes and pairs again."""
        nodes = len(self.nodes)
        # slow nodes may run again twice, each time with one good pair beside them
        node_jobs = 2 * REPEATS * (max(1, nodes // SHARE) + 1)
        pair_jobs = LEAST_REPEATS * (nodes // SHARE_OF_PAIRS)
        link_jobs = 3 * REPEATS  # the slowest pair, and both of its nodes with another partner
        return len(self.round_of) + node_jobs + pair_jobs + link_jobs

    @property
    def outline(self) -> tuple[Message, ...]:
        """The lines of a plan about the study: jobs and waves."""
        counts = {"pairs": len(self.round_of), "rounds": len(self.rounds), "most": self.most_jobs}
        text = "{pairs} jobs of two nodes in {rounds} rounds, then what looks slow: at most {most}"
        return (say(text, **counts),)

    def place_of(self, trial: Trial) -> Message | None:
        """Return the place of a run in the study, e.g. `round 3 of about 7`."""
        return say(_PLACES[trial.stage], block=trial.block, rounds=len(self.rounds))


def _with_loss(base: Verdict, loss: Slower, method: Message) -> Verdict:
    base = with_change(base, loss.estimate, loss.ci95)
    return replace(base, n=loss.n, method=method)


def _least_loss(loss: Slower) -> Message:
    return say("a loss of {loss:size} or more", loss=-relative(loss.bound))


def _grouped(values: Mapping[Pair, float], key: Callable[[Pair], int]) -> dict[int, list[float]]:
    groups: dict[int, list[float]] = {}
    for pair, value in values.items():
        groups.setdefault(key(pair), []).append(value)
    return groups
