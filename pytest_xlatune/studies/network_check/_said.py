"""What a network check finds: a verdict on each node and on the network, the losses excluded.

Everything follows from a walk through the history; nothing is planned here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import fmean, median
from typing import Protocol

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.metric import BUSBW
from pytest_xlatune.model.pairs import CONCLUSION, NetworkRecord, PairFound
from pytest_xlatune.model.reason import Reason, Why
from pytest_xlatune.model.result import (
    Conclusion,
    TrialResult,
    Verdict,
    VerdictKind,
    relative,
)
from pytest_xlatune.model.trial import Arm
from pytest_xlatune.stats.compare import EQUIVALENCE
from pytest_xlatune.stats.design import t_quantile
from pytest_xlatune.studies import History
from pytest_xlatune.studies.network_check._pairs import Pair
from pytest_xlatune.studies.network_check._walk import (
    ALPHA,
    LEAST_REPEATS,
    REPEATS,
    STOP_AT,
    Slower,
    Walk,
)
from pytest_xlatune.studies.trials import usable
from pytest_xlatune.studies.verdicts import (
    NO_SCORE,
    at_level,
    job_ids_of,
    level_kind,
    measured,
    troubled,
)


class NetworkWord(StrEnum):
    """What the study calls its verdicts; the conclusion's word names the node or link too."""

    NO_FAULT = "NO FAULT"
    NODE = "NODE"
    LINK = "LINK"
    SEVERAL = "SEVERAL"
    UNHEALTHY = "UNHEALTHY"
    CANNOT_TELL = "CANNOT TELL"
    CLUSTER = "STOP: THE CLUSTER"


# NO FAULT is what was not found; whether it is EQUIVALENT the losses say that are excluded
_KINDS: Mapping[NetworkWord, VerdictKind] = {
    NetworkWord.NODE: VerdictKind.SLOWER,
    NetworkWord.LINK: VerdictKind.SLOWER,
    NetworkWord.SEVERAL: VerdictKind.SLOWER,
    NetworkWord.UNHEALTHY: VerdictKind.INVALID,
    NetworkWord.CANNOT_TELL: VerdictKind.INCONCLUSIVE,
    NetworkWord.CLUSTER: VerdictKind.INVALID,
}
_CANNOT_RUN = (NetworkWord.UNHEALTHY, NetworkWord.CLUSTER)
# the worst first: the order of reports
_ORDER = (
    NetworkWord.UNHEALTHY,
    NetworkWord.NODE,
    NetworkWord.LINK,
    NetworkWord.CANNOT_TELL,
    NetworkWord.NO_FAULT,
)


class Demands(Protocol):
    """The demands of a declaration."""

    @property
    def peak_tflops(self) -> float | None: ...


class Asking(Protocol):
    """The study as its conclusion needs it."""

    @property
    def cell(self) -> Cell: ...
    @property
    def asked(self) -> Demands: ...
    @property
    def budget(self) -> int: ...
    @property
    def most_jobs(self) -> int: ...
    @property
    def all_pairs(self) -> int: ...
    def arms(self, history: History) -> tuple[Arm, ...]: ...


def load_of(cell: Cell) -> Reason:
    """Return which load the pairs run."""
    protocol = cell.protocol
    if protocol.scored_by is BUSBW:
        return Reason(Why.LOAD_BANDWIDTH)
    steps = {"first": protocol.first_step, "last": protocol.last_step, "steps": protocol.steps}
    return Reason(Why.LOAD_TRAINING, **steps)


def conclusion(walk: Walk, *, study: Asking) -> Conclusion:
    """Return a verdict on every node and on the network."""
    is_over = not walk.pending
    record = _record(walk, study)
    squares, df = walk.pooled(but={*walk.low, *walk.accused})
    sigma = math.sqrt(squares / df) if df else (None if math.isnan(walk.sigma) else walk.sigma)
    own = _Verdicts(walk=walk, record=replace(record, sigma=sigma), is_over=is_over, study=study)
    whole = own.whole()
    if is_over:
        is_fault = whole.kind in (VerdictKind.SLOWER, VerdictKind.INVALID)
        own.record = replace(own.record, answer=_answer(whole), is_fault=is_fault)
    nodes = study.arms(())
    known = walk.of_nodes()
    results = _by_node(walk)
    level = median(value for _, value in walk.values.values()) if walk.values else math.nan
    verdicts = [
        at_level(own.node(arm.id, name, results[name], known.get(name)), level)
        for arm, name in zip(nodes, study.cell.nodelist, strict=True)
    ]
    order = {str(word): at for at, word in enumerate(_ORDER)}
    verdicts.sort(key=lambda each: (order.get(each.word, len(order)), each.delta or 0.0))
    return Conclusion(
        verdicts=(whole, *verdicts),
        record=own.record,
        alpha=ALPHA if walk.waves else 0.0,
        complete=is_over,
        notes=tuple(_notes(walk, study, own.record)) if is_over else (),
    )


def _answer(verdict: Verdict) -> Reason:
    if not verdict.reasons:
        return Reason(Why.WORD, word=verdict.word)
    return Reason(Why.WORD_FOR, word=verdict.word, why=verdict.reasons[0])


def _by_node(walk: Walk) -> dict[str, list[TrialResult]]:
    found: dict[str, list[TrialResult]] = {node: [] for node in walk.layout.nodes}
    for trial in walk.planned:
        result = walk.results.get(trial.id)
        if result is not None:
            for node in walk.pair_of(trial):
                found[node].append(result)
    return found


@dataclass(kw_only=True)
class _Verdicts:
    """Verdicts from a walk."""

    walk: Walk
    record: NetworkRecord
    is_over: bool
    study: Asking

    def node(  # noqa: PLR0911 - a table of cases, the gravest first
        self,
        arm: str,
        name: str,
        own: Sequence[TrialResult],
        known: tuple[float, float, float] | None,
    ) -> Verdict:
        """Return the verdict on a node."""
        walk = self.walk
        base = Verdict(arm=arm, kind=VerdictKind.INCONCLUSIVE, job_ids=job_ids_of(own))
        base = troubled(base, own)
        scored = [each for each in own if usable(each)]
        base = replace(measured(base, scored), job_ids=base.job_ids)
        if known is not None:
            base = replace(base, delta=relative(known[0] - known[1]))
        if name in walk.out:
            failed = walk.out[name]
            why = failed[0].reason or NO_SCORE
            found = Reason(Why.PAIRS_FAILED, pairs=len(failed), why=why)
            return _as(base, NetworkWord.UNHEALTHY, found)
        if not any(each.status.is_final for each in own):
            return base
        if not self.is_over:
            return replace(base, kind=VerdictKind.SCREENED, method=Reason(Why.SINGLE_RUNS_OF_PAIRS))
        if walk.is_stopped:
            return _as(base, NetworkWord.CANNOT_TELL, Reason(Why.CHECK_STOPPED))
        shown = walk.nodes.get(name)
        if shown is not None:
            return self._confirmed(base, shown)
        if name in walk.nodes or name in walk.low:
            return _as(base, NetworkWord.CANNOT_TELL, self._unconfirmed(name))
        if known is None:
            return _as(base, NetworkWord.CANNOT_TELL, Reason(Why.FEW_PAIRS_SCORED))
        kind = _level_kind(self.record.node_loss)
        if walk.is_link_accused and walk.link is not None and name in walk.link:
            why = Reason(Why.SLOW_WITH_ONE, pair=walk.link)
            return replace(_as(base, NetworkWord.LINK, why), kind=kind)
        why = Reason(Why.NOT_LOW_IN_PAIRS)
        return replace(_as(base, NetworkWord.NO_FAULT, why), kind=kind)

    def _unconfirmed(self, name: str) -> Reason:
        if name in self.walk.unaffordable:
            asked = {"budget": self.study.budget, "ask": self.study.most_jobs}
            return Reason(Why.LOW_PAIRS_NO_BUDGET, **asked)
        return Reason(Why.FRESH_PAIRS_MISSING)

    def _confirmed(self, base: Verdict, shown: Slower) -> Verdict:
        base = replace(
            base,
            delta=relative(shown.estimate),
            ci95=_ci(shown),
            n=shown.n,
            method=Reason(Why.FRESH_PAIRS, pairs=shown.n),
        )
        if shown.accuses:
            return _as(base, NetworkWord.NODE, _at_least(shown))
        if shown.is_open:
            return _as(base, NetworkWord.CANNOT_TELL, Reason(Why.LOW_PAIRS_OPEN))
        return _as(base, NetworkWord.NO_FAULT, Reason(Why.LOW_PAIRS_NOT_AGAIN))

    def whole(self) -> Verdict:  # noqa: PLR0911 - likewise
        """Return the verdict on the network."""
        walk = self.walk
        every = [each for t in walk.planned if (each := walk.results.get(t.id)) is not None]
        base = troubled(
            Verdict(arm=CONCLUSION, kind=VerdictKind.INCONCLUSIVE, job_ids=job_ids_of(every)), every
        )
        if not self.is_over:
            return base if not every else replace(base, kind=VerdictKind.SCREENED)
        base = replace(base, n=sum(usable(each) is not None for each in every))
        if walk.is_stopped:
            return _as(base, NetworkWord.CLUSTER, self._stopped())
        out, accused = tuple(walk.out), walk.accused
        dead = [
            Reason(Why.PAIR_DEAD, pair=pair) for pair in walk.broken if walk.again.get(pair) == []
        ]
        slow = [
            Reason(Why.NODE_SLOW, node=name, loss=_at_least(walk.nodes[name])) for name in accused
        ]
        faults = [*slow, *dead]
        link = self._link()
        if link and walk.is_link_accused:
            faults.append(link)
        if len(out) + len(faults) > 1:
            unwell = [Reason(Why.NODE_UNHEALTHY, node=name) for name in out]
            return _as(base, NetworkWord.SEVERAL, Reason(Why.SEVERAL, reasons=(*unwell, *faults)))
        if out:
            found = _as(base, NetworkWord.UNHEALTHY, Reason(Why.CANNOT_COMMUNICATE))
            return replace(found, word=f"{NetworkWord.UNHEALTHY} {out[0]}")
        if dead:
            found = _as(base, NetworkWord.UNHEALTHY, dead[0])
            pair = next(pair for pair in walk.broken if walk.again.get(pair) == [])
            return replace(found, word=f"{NetworkWord.LINK} {_dash(pair)}")
        if accused:
            shown = walk.nodes[accused[0]]
            found = _as(base, NetworkWord.NODE, _at_least(shown))
            if shown is not None:
                found = replace(found, delta=relative(shown.estimate), ci95=_ci(shown))
            return replace(found, word=f"{NetworkWord.NODE} {accused[0]}")
        shown = _of_link(walk)
        if walk.is_link_accused and shown is not None and link is not None:
            found = _as(base, NetworkWord.LINK, link)
            return replace(found, word=f"{NetworkWord.LINK} {'-'.join(self.record.link)}",
                           delta=relative(shown.estimate), ci95=_ci(shown))  # fmt: skip
        why = self._open()
        if why:
            return _as(base, NetworkWord.CANNOT_TELL, why)
        losses = [x for x in (self.record.node_loss, self.record.link_loss) if x is not None]
        found = _as(base, NetworkWord.NO_FAULT, Reason(Why.NOTHING_SLOW))
        most = math.ceil(1000 * max(losses) - 1e-9) / 10 if losses else math.nan
        kind = _level_kind(max(losses, default=None))
        return replace(found, kind=kind, word=f"{NetworkWord.NO_FAULT} ABOVE {most:.1f} %")

    def _stopped(self) -> Reason:
        if self.walk.is_common:
            return Reason(Why.ALL_PAIRS_FAIL)
        return Reason(Why.LOOK_AT_CLUSTER, least=STOP_AT, nodes=tuple(self.walk.out))

    def _link(self) -> Reason | None:
        walk = self.walk
        shown = _of_link(walk)
        if walk.link is None or shown is None:
            return None
        loss = _at_least(shown)
        if self.record.link and set(self.record.link) != set(walk.link):
            return Reason(Why.RACKS_SLOW, pair=walk.link, loss=loss)
        return Reason(Why.LINK_SLOW, loss=loss)

    def _open(self) -> Reason | None:
        """Return why nothing is excluded; None where it is."""
        walk, record = self.walk, self.record
        if walk.unaffordable:
            return Reason(
                Why.SLOW_NO_BUDGET,
                nodes=walk.unaffordable[:4],
                budget=self.study.budget,
                ask=self.study.most_jobs,
            )
        doubtful = [n for n, shown in walk.nodes.items() if shown is None or shown.is_open]
        if doubtful:
            return Reason(Why.LOSS_OF_OPEN, names=doubtful)
        if walk.link is not None and walk.ends is None:
            return Reason(Why.LINK_WITHOUT_SCORE, pair=walk.link)
        if walk.ends is not None and all(each.estimate < math.log1p(-0.01) for each in walk.ends):
            return Reason(Why.LOSS_OF_OPEN, names=[_dash(walk.link or ())])
        if record.covered < record.of_pairs:
            return Reason(Why.LINKS_UNKNOWN, covered=record.covered, pairs=record.of_pairs)
        return None


def _as(verdict: Verdict, word: NetworkWord, *reasons: Reason) -> Verdict:
    told = (*reasons, *verdict.reasons)
    kind = level_kind(verdict) if word is NetworkWord.NO_FAULT else _KINDS[word]
    return replace(
        verdict, kind=kind, word=str(word), reasons=told, can_run=word not in _CANNOT_RUN
    )


def _level_kind(excluded: float | None) -> VerdictKind:
    """Return the kind of what shows no fault: EQUIVALENT where a loss of 1 % is excluded."""
    is_level = excluded is not None and excluded < EQUIVALENCE
    return VerdictKind.EQUIVALENT if is_level else VerdictKind.SCREENED


def _ci(shown: Slower) -> tuple[float, float]:
    low, high = shown.ci95
    return relative(low), relative(high)


def _at_least(shown: Slower | None) -> Reason:
    if shown is None:
        return Reason(Why.NOT_MEASURED)
    change, loss = relative(shown.estimate), -relative(shown.bound)
    return Reason(Why.LOSS_AT_LEAST, change=change, loss=loss)


def _dash(pair: Sequence[str]) -> str:
    return "-".join(pair)


def _of_link(walk: Walk) -> Slower | None:
    """Return what the fresh runs of the slowest pair show; None before both its ends are known."""
    if walk.ends is None:
        return None
    return walk.loss or max(walk.ends, key=lambda each: each.estimate)


def _record(walk: Walk, study: Asking) -> NetworkRecord:
    centred = walk.centred()
    fresh = walk.fresh()
    # of the slowest pair what accuses it, with as many runs: one number wherever it stands
    shown = _of_link(walk)
    pairs = tuple(
        PairFound(
            nodes=pair,
            delta=relative(centred[pair][0]) if pair in centred else None,
            fresh=relative(shown.estimate)
            if shown is not None and pair == walk.link
            else relative(fmean(fresh[pair]))
            if pair in fresh
            else None,
            runs=(pair in centred)
            + len(fresh.get(pair, ()))
            + (shown.n if shown is not None and pair == walk.link else 0),
        )
        for pair in walk.layout.pairs
        if pair in centred or pair in fresh
    )
    link: Pair | tuple[()] = ()
    if walk.is_link_accused and walk.link is not None:
        link = walk.link
        twin = walk.elsewhere
        if twin is not None and twin.accuses:
            link = walk.layout.rack_of[link[0]], walk.layout.rack_of[link[1]]
    is_whole = not walk.pending and not walk.is_stopped
    node_loss, link_loss = _excluded(walk, centred, fresh) if is_whole else (None, None)
    is_covered = len(walk.values) >= study.all_pairs
    return NetworkRecord(
        peak_tflops=study.asked.peak_tflops,
        nodes=study.cell.nodelist,
        accused=walk.accused,
        link=link,
        unhealthy=tuple(walk.out),
        pairs=pairs,
        covered=len(walk.values),
        of_pairs=study.all_pairs,
        node_loss=node_loss,
        link_loss=link_loss if is_covered else None,
        racks=len(walk.layout.racks),
    )


def _excluded(
    walk: Walk,
    centred: Mapping[Pair, tuple[float, int]],
    fresh: Mapping[Pair, Sequence[float]],
) -> tuple[float | None, float | None]:
    """Return the loss that no node that is not accused has, and no link, at 95 % over all."""
    bad = {*walk.accused, *walk.out}
    squares, df = walk.pooled(but={*bad, *walk.low})
    if df < LEAST_REPEATS:
        return None, None
    sigma = math.sqrt(squares / df)
    good = {p: v for p, (v, _) in centred.items() if not set(p) & bad and p != walk.link}
    nodes = [node for node in walk.layout.nodes if node not in bad]
    worst, n_all, total = 0.0, len(good), math.fsum(good.values())
    critical = t_quantile(1 - 0.05 / len(nodes), df)
    sums = dict.fromkeys(nodes, (0.0, 0))
    for pair, value in good.items():
        if not walk.layout.is_across(pair):
            for node in pair:
                sums[node] = sums[node][0] + value, sums[node][1] + 1
    for own, n in sums.values():
        if n and n_all > n:
            difference = own / n - (total - own) / (n_all - n)
            error = sigma * math.sqrt(1 / n + 1 / (n_all - n))
            worst = min(worst, difference - critical * error)
    if not good:
        return None, None
    level, lowest = total / n_all, 0.0
    critical = t_quantile(1 - 0.05 / n_all, df)
    for pair, value in good.items():
        again = fresh.get(pair)
        mean, n = (fmean(again), len(again)) if again else (value - level, 1)
        lowest = min(lowest, mean - critical * sigma * math.sqrt(1 / n + 1 / n_all))
    return -relative(worst), -relative(lowest)


def _notes(walk: Walk, study: Asking, record: NetworkRecord) -> list[Reason]:
    notes = [Reason(Why.LOAD_NOTED, load=load_of(study.cell))]
    if walk.is_stopped:
        return notes
    if not math.isnan(walk.sigma):
        notes.append(Reason(Why.PAIRS_DIFFER, sigma=walk.sigma))
    if record.covered < record.of_pairs:
        kind = Why.ENDS_WITH_ACCUSED if walk.accused else Why.LINKS_UNSAID
        notes.append(Reason(kind, covered=record.covered, pairs=record.of_pairs))
    if record.racks:
        notes.append(Reason(Why.ONE_PAIR_OF_RACKS))
    if walk.accused or walk.is_link_accused:
        notes.append(Reason(Why.CROSS_CHECK))
    low = [pair for pair, own in walk.again.items() if own and pair != walk.link]
    if walk.is_link_accused and low:
        notes.append(Reason(Why.SLOWEST_ONLY))
    excused = study.all_pairs - record.covered if not walk.accused else 0
    if excused and not walk.out and not walk.broken and walk.rounds:
        notes.append(Reason(Why.PAIRS_EXCUSED, pairs=excused, budget=study.budget))
    notes.append(Reason(Why.ACCUSATION_RESTS_ON, runs=REPEATS, level=1 - ALPHA))
    return notes
