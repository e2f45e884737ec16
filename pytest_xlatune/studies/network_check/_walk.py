"""One walk through a check of a network: which runs are due, and what the finished ones show.

Rounds of pairs choose the suspects; fresh runs side by side accuse. The walk ends where a
result that it needs is missing; the trials up to there are due. See docs/how-to/network_check.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from pytest_xlatune.model.result import TrialResult
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.design import t_quantile
from pytest_xlatune.studies.cell_arms import MAD, is_excused, spread_of
from pytest_xlatune.studies.network_check._pairs import Pair, PairLayout
from pytest_xlatune.studies.trials import usable

ROUND, NODES, AGAIN, LINK = "round", "node", "again", "link"

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
LEAST_REPEATS = 2
LEAST_LOSS = math.log1p(-0.01)  # of an accused node or link
ALPHA = 0.005  # one-sided, of an accusation
MOST_CONFIRMING_WAVES = 16
STOP_AT = 3  # nodes that cannot communicate: then it is the cluster
MANY = 8  # nodes from which a round has pairs enough for a median of its own
_LEAST_OTHERS = 3
# the standard error of a mean without the least and the greatest of so many normal values, in units
# of the plain mean's (from order statistics; 4 million draws each)
TRIMMED = (1.0, 1.0, 1.0, 1.160, 1.092, 1.066, 1.051, 1.042, 1.035)
FAR = 3.5  # robust standard deviations: a value farther off is a bad job


@dataclass(frozen=True, slots=True, kw_only=True)
class Slower:
    """How much slower fresh runs are than those beside them, as a log ratio.

    Attributes:
        estimate: the mean of the differences, of three or more without the least and the greatest.
        error: its standard error.
        df: degrees of freedom of the pooled noise.
        bound: which it exceeds with probability `ALPHA`, shared by all that were looked at.
        n: runs of it, each with one beside it.
        rest: the second greatest loss.
    """

    estimate: float
    error: float
    df: int
    bound: float
    n: int
    rest: float

    @property
    def accuses(self) -> bool:
        """Whether a loss is shown, of at least 1 %, and not by a single run."""
        return self.bound < 0 and max(self.estimate, self.rest) <= LEAST_LOSS

    @property
    def is_open(self) -> bool:
        """Whether a loss is neither shown nor unlikely."""
        return not self.accuses and self.estimate <= LEAST_LOSS

    @property
    def ci95(self) -> tuple[float, float]:
        reach = t_quantile(0.975, self.df) * self.error
        return self.estimate - reach, self.estimate + reach


@dataclass(kw_only=True)
class Walk:
    """What a history says so far.

    Attributes:
        layout: the pairs.
        results: by trial id.
        trial: stage, block and pair -> the trial.
        budget: jobs that it may cost.
        planned: all trials so far, in order.
        pending: those that are not over, of the last phase.
        rounds: how many are within the budget.
        out: nodes that cannot communicate -> the results that say so.
        nodes: confirmed suspects -> what fresh pairs show.
        link: the confirmed pair; None where none was.
        ends: of that pair: it against one end elsewhere, then the other.
        loss: of that pair against the mean of its ends elsewhere, the slower of which is chance.
        elsewhere: another pair of the same two racks against the same; None without racks.
        waves: that confirmed anything.
    """

    layout: PairLayout
    results: Mapping[str, TrialResult]
    trial: Callable[[str, int, Pair], Trial]
    budget: int
    planned: list[Trial] = field(default_factory=list)
    pending: tuple[Trial, ...] = ()
    still: int = 0  # runs that are not planned yet and will follow unless a node is accused
    rounds: int = 0
    out: dict[str, list[TrialResult]] = field(default_factory=dict)
    is_common: bool = False
    values: dict[Pair, tuple[int, float]] = field(default_factory=dict)
    low: tuple[str, ...] = ()
    nodes: dict[str, Slower | None] = field(default_factory=dict)
    again: dict[Pair, list[float]] = field(default_factory=dict)
    link: Pair | None = None
    ends: tuple[Slower, Slower] | None = None
    loss: Slower | None = None
    elsewhere: Slower | None = None
    broken: list[Pair] = field(default_factory=list)  # they fail, and their nodes work elsewhere
    waves: int = 0
    unaffordable: list[str] = field(default_factory=list)
    # by how many values there were: they are only added to
    _centred: dict[int, dict[Pair, tuple[float, int]]] = field(default_factory=dict)
    _of_nodes: dict[int, dict[str, tuple[float, float, float]]] = field(default_factory=dict)

    def begin(self) -> Walk:
        """Go as far as the results reach; return itself."""
        self._find_out()
        rounds = [*self.layout.inside, *self.layout.between]
        first = min(FIRST_ROUNDS, len(self.layout.inside))
        self.rounds = self._affordable(rounds)
        first = min(first, self.rounds)
        if not self._is_over(self._rounds(rounds[:first], 0)):
            self.still = sum(map(len, rounds[first : self.rounds]))
            return self
        if not self._nodes(EARLY, 1):
            return self
        if not self._is_over(self._rounds(rounds[first : self.rounds], first)):
            return self
        if self.rounds > first and not self._nodes(LATE, 2):
            return self
        self._links()
        return self

    def _place(self, node: str) -> int:
        return self.layout.place[node]

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
    def is_link_accused(self) -> bool:
        """Whether the confirmed pair is slower than both of its ends elsewhere."""
        return self.ends is not None and all(each.accuses for each in self.ends)

    @property
    def sigma(self) -> float:
        """Spread of the pairs of the rounds, slow ones hardly counted; NaN before there are any."""
        centred = self.centred()
        return spread_of([value for value, _ in centred.values()]) if centred else math.nan

    # -- failures

    def _find_out(self) -> None:
        """Find the nodes that cannot communicate: two failed pairs with different partners."""
        failed: dict[Pair, TrialResult] = {}
        worked: Counter[str] = Counter()
        ended = 0
        pairs = {self.trial(ROUND, at + 1, pair).id: pair
                 for at, pairs in enumerate([*self.layout.inside, *self.layout.between])
                 for pair in pairs}  # fmt: skip
        for trial_id, result in self.results.items():
            pair = pairs.get(trial_id)
            if pair is None or not result.status.is_final:
                continue
            if usable(result) is not None:
                worked.update(pair)
                ended += 1
            elif not is_excused(result):
                failed[pair] = result
        left = dict(failed)
        while left:
            counts = Counter(node for pair in left for node in pair)
            node = min(counts, key=lambda name: (-counts[name], worked[name], self._place(name)))
            if counts[node] < 2 or worked[node] > counts[node]:  # noqa: PLR2004 - one may be a link
                break
            self.out[node] = [each for pair, each in left.items() if node in pair]
            left = {pair: each for pair, each in left.items() if node not in pair}
        self.broken = [pair for pair in left if not set(pair) & self.out.keys()]
        self.is_common = len(failed) > ended and len(failed) >= _LEAST_OTHERS

    # -- planning

    def _affordable(self, rounds: Sequence[Sequence[Pair]]) -> int:
        left = self.budget
        for at, pairs in enumerate(rounds):
            left -= len(pairs)
            if left < 0:
                return at
        return len(rounds)

    def _rounds(self, rounds: Sequence[Sequence[Pair]], before: int) -> list[Trial]:
        return [
            self.trial(ROUND, before + at, pair)
            for at, pairs in enumerate(rounds, start=1)
            for pair in pairs
        ]

    def _is_over(self, trials: Sequence[Trial]) -> bool:
        """Take up the trials of a phase; nodes that cannot communicate run no further ones."""
        if self.is_stopped:
            return True
        due = []
        for each in trials:
            result = self.results.get(each.id)
            if result is not None and result.status.is_final:
                self.planned.append(each)
                self._take(each, result)
            elif not self._is_out(each):
                self.planned.append(each)
                due.append(each)
        self.pending = tuple(due)
        return not due

    def _is_out(self, trial: Trial) -> bool:
        return bool(self.out) and bool(set(self.pair_of(trial)) & self.out.keys())

    def pair_of(self, trial: Trial) -> Pair:
        """Return the nodes of a trial."""
        return self._pairs_of[trial.cell_digest]

    _pairs_of: Mapping[str, Pair] = field(default_factory=dict)

    def _take(self, trial: Trial, result: TrialResult) -> None:
        score = usable(result)
        if trial.stage == ROUND and score is not None:
            self.values[self.pair_of(trial)] = trial.block, score.value

    def _value(self, stage: str, block: int, pair: Pair) -> float | None:
        result = self.results.get(self.trial(stage, block, pair).id)
        score = usable(result) if result is not None else None
        return None if score is None else score.value

    # -- levels

    def centred(self) -> dict[Pair, tuple[float, int]]:
        """Return the pairs of the rounds against the median of their own round, and the round.

        A round of few pairs has no median of its own: then that of all pairs of its kind serves.
        """
        known = self._centred.get(len(self.values))
        if known is not None:
            return known
        by_round: dict[int, list[float]] = {}
        for block, value in self.values.values():
            by_round.setdefault(block, []).append(value)
        kinds: dict[bool, list[float]] = {}
        inside = len(self.layout.inside)
        for block, own in by_round.items():
            kinds.setdefault(block <= inside, []).extend(own)
        usual = {kind: median(own) for kind, own in kinds.items()}
        has_many = len(self.layout.nodes) >= MANY
        centre = {
            block: median(own)
            if has_many and len(own) >= MANY // 2 and block <= inside
            else usual[block <= inside]
            for block, own in by_round.items()
        }
        found = self._centred[len(self.values)] = {
            pair: (value - centre[block], block) for pair, (block, value) in self.values.items()
        }
        return found

    def of_nodes(self) -> dict[str, tuple[float, float, float]]:
        """Return of each node the median over its pairs, the level and the spread of the others."""
        before = self._of_nodes.get(len(self.values))
        if before is not None:
            return before
        inside = len(self.layout.inside)
        centred = {
            pair: value for pair, (value, block) in self.centred().items() if block <= inside
        }
        ordered = sorted((value, pair) for pair, value in centred.items())
        found = {}
        for node in self.layout.nodes:
            own = [value for value, pair in ordered if node in pair]
            others = [value for value, pair in ordered if node not in pair]
            if len(own) < LEAST_REPEATS or len(others) < _LEAST_OTHERS:
                continue
            found[node] = _middle(own), _middle(others), spread_of(others)
        self._of_nodes[len(self.values)] = found
        return found

    # -- nodes

    def _nodes(self, rule: tuple[float, float], number: int) -> bool:
        """Confirm the nodes that are low; whether the walk goes on."""
        if self.is_stopped:
            return False
        known = self.of_nodes()
        depth = {
            name: own - level
            for name, (own, level, spread) in known.items()
            if name not in self.out and own - level < -max(rule[0] * spread, rule[1])
        }
        low = sorted(depth, key=lambda name: (depth[name], self._place(name)))
        self.low = tuple(low)
        if not low:
            return True
        distance = {name: abs(own - level) for name, (own, level, _) in known.items()}
        good = sorted((n for n in known if n not in depth and n not in self.out),
                      key=lambda name: (distance[name], self._place(name)))  # fmt: skip
        chosen = low[: max(1, len(self.layout.nodes) // SHARE)]
        repeats = REPEATS
        while chosen and repeats * (len(chosen) + 1) > self.budget - len(self.planned):
            if len(chosen) > 1:
                chosen.pop()
            elif repeats > LEAST_REPEATS:
                repeats -= 1
            else:
                self.unaffordable += low
                return True
        waves = self._node_waves(chosen, good, repeats)
        blocks = [(REPEATS * (number - 1) + at, wave) for at, wave in enumerate(waves, start=1)]
        trials = [self.trial(NODES, at, pair) for at, wave in blocks for pair in wave.values()]
        self.waves += len(blocks)
        if not self._is_over(trials):
            return False
        for name in chosen:
            differences = []
            for at, wave in blocks:
                own = self._value(NODES, at, wave[name]) if name in wave else None
                beside = self._value(NODES, at, wave[""]) if "" in wave else None
                if own is not None and beside is not None:
                    differences.append(own - beside)
            both = [*self._differences.get(name, ()), *differences]
            self._differences[name] = both
            self.nodes[name] = self._shown(both, but={*low}, family=len(chosen))
        return not self.accused

    _differences: dict[str, list[float]] = field(default_factory=dict)

    def _node_waves(
        self, chosen: Sequence[str], good: Sequence[str], repeats: int
    ) -> list[dict[str, Pair]]:
        """Return waves of disjoint pairs: each suspect with a good partner, and a good pair, ""."""
        waves = []
        for at in range(repeats):
            turned = list(good[at % max(len(good), 1) :]) + list(good[: at % max(len(good), 1)])
            wave: dict[str, Pair] = {}
            used: set[str] = set()
            for name in chosen:
                near = {*self.layout.partners(name)} - {self._worst_partner(name)}
                partner = next((each for each in turned if each in near and each not in used), "")
                if partner:
                    used |= {name, partner}
                    wave[name] = self.layout.ordered(name, partner)
            rest = [each for each in turned if each not in used]
            for one in rest:
                near = set(self.layout.partners(one))
                other = next((each for each in rest if each in near), "")
                if other:
                    wave[""] = self.layout.ordered(one, other)
                    break
            waves.append(wave)
        return waves

    def _worst_partner(self, node: str) -> str:
        """Return with whom a node was slowest: that pair made it a suspect, be it a link or not."""
        own = [(v, pair) for pair, (v, _) in self.centred().items() if node in pair]
        if len(own) < LEAST_REPEATS or len(self.layout.nodes) < MANY:
            return ""
        one, other = min(own, key=lambda each: (each[0], self.layout.places(each[1])))[1]
        return other if one == node else one

    # -- links

    def _links(self) -> None:
        centred = self.centred()
        spread = self.sigma
        limit = -max(PAIR[0] * spread, PAIR[1])
        low = sorted(
            (value, self.layout.places(pair), pair)
            for pair, (value, _) in centred.items()
            if value < limit and not set(pair) & self.out.keys()
        )
        suspects = [*self.broken, *(pair for _, _, pair in low)]
        suspects = suspects[: len(self.layout.nodes) // SHARE_OF_PAIRS]
        suspects = [pair for pair in suspects if self._partners_of(pair) is not None]
        if not suspects:
            return
        width = 3 if not self.layout.is_across(suspects[0]) else 4
        most = MOST_CONFIRMING_WAVES - self.waves
        repeats = REPEATS if most >= 2 * REPEATS + LEAST_REPEATS else REPEATS - 1
        left = self.budget - len(self.planned)
        while LEAST_REPEATS + width * repeats > left:
            repeats -= 1
            if repeats < LEAST_REPEATS:
                self.unaffordable += [f"{a}+{b}" for a, b in suspects]
                return
        suspects = suspects[: (left - width * repeats) // LEAST_REPEATS]
        # each once before any twice: few waves leave out second runs, and no suspect
        waves = _packed(suspects * LEAST_REPEATS, at_most=most - 2 * repeats)
        trials = [self.trial(AGAIN, at, p) for at, wave in enumerate(waves, start=1) for p in wave]
        self.waves += len(waves)
        if not self._is_over(trials):
            return
        for at, wave in enumerate(waves, start=1):
            for pair in wave:
                value = self._value(AGAIN, at, pair)
                self.again.setdefault(pair, []).extend([] if value is None else [value])
        dead = [pair for pair in self.broken if pair in self.again and not self.again[pair]]
        self.broken = dead
        if dead:
            return
        fresh = {pair: fmean(own) for pair, own in self.fresh().items()}
        lowest = min(fresh, key=lambda p: (fresh[p], self.layout.places(p)), default=None)
        if lowest is None or fresh[lowest] > -max(spread, FRESH):
            return
        self._confirm_link(lowest, repeats)

    def fresh(self) -> dict[Pair, list[float]]:
        """Return the fresh runs of each pair that has some, against the usual first run.

        That is the median of all first runs of its kind: the pairs that are slow do not move it.
        """
        kinds: dict[bool, list[float]] = {}
        for pair, (_, value) in self.values.items():
            kinds.setdefault(self.layout.is_across(pair), []).append(value)
        usual = {kind: median(own) for kind, own in kinds.items()}
        return {
            pair: [value - usual.get(self.layout.is_across(pair), math.nan) for value in own]
            for pair, own in self.again.items()
            if own
        }

    def _partners_of(self, pair: Pair) -> list[tuple[Pair, Pair]] | None:
        """Return disjoint pairs of each end of a pair with a good partner; None without any."""
        is_across = self.layout.is_across(pair)
        known = self.of_nodes()
        bad = {*self.out, *self.accused, *pair, *(node for each in self.broken for node in each)}
        racks = {self.layout.rack_of[node] for node in pair} if is_across else set()

        def good(node: str) -> list[str]:
            found = [
                each
                for each in self.layout.partners(node, across=is_across)
                if each not in bad and self.layout.rack_of[each] not in racks
            ]
            centre = {each: known[each][0] - known[each][1] for each in found if each in known}
            return sorted(found, key=lambda each: (abs(centre.get(each, 1.0)), self._place(each)))

        one, other = good(pair[0]), good(pair[1])
        chosen = []
        for at in range(REPEATS):
            a = one[at % len(one)] if one else ""
            b = next((each for each in (*other[at + 1 :], *other) if each != a), "")
            if not a or not b:
                return None
            chosen.append((self.layout.ordered(pair[0], a), self.layout.ordered(pair[1], b)))
        return chosen

    def _confirm_link(self, pair: Pair, repeats: int) -> None:
        ends = (self._partners_of(pair) or [])[:repeats]
        twins = self._twins(pair)
        # itself, its ends, its ends, itself: a drift is the same for both
        waves: list[tuple[Pair, ...]] = []
        for at, both in enumerate(ends):
            beside = (pair, *([twins[at % len(twins)]] if twins else []))
            waves += [beside, both] if at % 2 == 0 else [both, beside]
        numbered = list(enumerate(waves, start=1))
        trials = [self.trial(LINK, at, each) for at, wave in numbered for each in wave]
        self.waves += len(waves)
        self.link = pair
        if not self._is_over(trials):
            return
        own: list[float | None] = []
        twin: list[float | None] = []
        elsewhere: tuple[list[float | None], list[float | None]] = ([], [])
        for at, wave in numbered:
            values = [self._value(LINK, at, each) for each in wave]
            if wave[0] == pair:
                own.append(values[0])
                twin.append(values[1] if twins else None)
            else:
                for side in (0, 1):
                    elsewhere[side].append(values[side])
        # its ends are no slow nodes: their other pairs tell the noise as well
        first, second = (self._shown(_paired(own, side), but=set()) for side in elsewhere)
        if first is not None and second is not None:
            self.ends = first, second
        mean = [
            None if a is None or b is None else (a + b) / 2 for a, b in zip(*elsewhere, strict=True)
        ]
        self.loss = self._shown(_paired(own, mean), but=set(), jobs=1.5)
        if twins:
            self.elsewhere = self._shown(_paired(twin, mean), but=set(), jobs=1.5)

    def _twins(self, pair: Pair) -> list[Pair]:
        """Return other pairs between the same two racks."""
        if not self.layout.is_across(pair):
            return []
        racks = {self.layout.rack_of[node] for node in pair}
        return [
            each
            for each in sorted(self.layout.across, key=self.layout.places)
            if {self.layout.rack_of[node] for node in each} == racks
            and not set(each) & {*pair, *self.out}
        ]

    # -- noise

    def pooled(self, *, but: set[str]) -> tuple[float, int]:
        """Return sum of squares and degrees of freedom inside rounds, these nodes left out."""
        return _inside(self._healthy(but))

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
        """Return what runs side by side show; None with less than two.

        A difference has the variance of so many jobs: two, of a run and another beside it.
        """
        n = len(differences)
        if n < LEAST_REPEATS:
            return None
        ordered = sorted(differences)
        own = [each / math.sqrt(jobs) for each in ordered]
        squares, df = _inside([*self._healthy({*but, *self.accused}), own])
        # one bad job, of it or of what ran beside it, must not make an accusation, nor prevent one
        estimate = fmean(ordered[1:-1] or ordered)
        error = TRIMMED[n] * math.sqrt(squares / df * jobs / n)
        return Slower(
            estimate=estimate,
            error=error,
            df=df,
            bound=estimate + t_quantile(1 - ALPHA / family, df) * error,
            n=n,
            rest=ordered[1],
        )


def _inside(groups: Iterable[Sequence[float]]) -> tuple[float, int]:
    """Return sum of squares and degrees of freedom inside groups, bad jobs hardly counted.

    A value that is far off the others of its group, in units of the robust spread of all, counts as
    one at that limit; the farthest of each group first: it moves the mean of the others.
    """
    kept = [sorted(own) for own in groups if len(own) > 1]
    total = sum(map(len, kept)) - len(kept)
    while True:
        means = [fmean(own) for own in kept]
        off = [abs(v - mean) for own, mean in zip(kept, means, strict=True) for v in own]
        df = len(off) - len(kept)
        squares = math.fsum(each * each for each in off)
        if df < 1:
            return squares, max(df, 0)
        limit = FAR * MAD * median(off) * math.sqrt(len(off) / df)
        is_left_out = False
        for own, mean in zip(kept, means, strict=True):
            at = 0 if mean - own[0] >= own[-1] - mean else -1
            far = abs(own[at] - mean) * math.sqrt(len(own) / (len(own) - 1))
            if len(own) > LEAST_REPEATS and far > limit > 0:
                del own[at]
                is_left_out = True
        if not is_left_out:
            return squares + (total - df) * limit**2, total


def _middle(ordered: Sequence[float]) -> float:
    """Return the median of values in order."""
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _paired(own: Sequence[float | None], beside: Sequence[float | None]) -> list[float]:
    return [
        a - b for a, b in zip(own, beside, strict=True) if a is not None and b is not None
    ]  # fmt: skip


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
