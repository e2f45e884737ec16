"""The words of a network check: a verdict on each node and on the network, the losses excluded.

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
from pytest_xlatune.model.result import (
    Conclusion,
    TrialResult,
    Verdict,
    VerdictKind,
    relative,
)
from pytest_xlatune.model.text import counted, fine, percent, size
from pytest_xlatune.model.trial import Arm
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
    EQUIVALENCE,
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


def load_of(cell: Cell) -> str:
    """Say which load the pairs run."""
    protocol = cell.protocol
    if protocol.scored_by is BUSBW:
        return "a bandwidth test: bus bandwidth of one size, in GB/s"
    return f"training, steps {protocol.first_step} to {protocol.last_step} of {protocol.steps}"


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
        own.record = replace(own.record, answer=_sentence(whole), is_fault=is_fault)
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


def _sentence(verdict: Verdict) -> str:
    return verdict.word + (f": {verdict.reasons[0]}" if verdict.reasons else "")


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
            why = failed[0].reason or "no score"
            return _as(base, NetworkWord.UNHEALTHY,
                       f"{counted(len(failed), 'pair')} with it failed, each with another partner: "
                       f"{why}")  # fmt: skip
        if not any(each.status.is_final for each in own):
            return base
        if not self.is_over:
            return replace(base, kind=VerdictKind.SCREENED, method="single runs of its pairs")
        if walk.is_stopped:
            return _as(base, NetworkWord.CANNOT_TELL, "the check was stopped: see the conclusion")
        shown = walk.nodes.get(name)
        if shown is not None:
            return self._confirmed(base, shown)
        if name in walk.nodes or name in walk.low:
            return _as(base, NetworkWord.CANNOT_TELL, self._unconfirmed(name))
        if known is None:
            return _as(base, NetworkWord.CANNOT_TELL, "too few of its pairs have a score")
        kind = _level_kind(self.record.node_loss)
        if walk.is_link_accused and walk.link is not None and name in walk.link:
            return replace(
                _as(base, NetworkWord.LINK, f"slow with one partner alone: {_dash(walk.link)}"),
                kind=kind,
            )
        return replace(_as(base, NetworkWord.NO_FAULT, "not low over its pairs"), kind=kind)

    def _unconfirmed(self, name: str) -> str:
        if name in self.walk.unaffordable:
            return (
                f"low over its pairs; the budget of {self.study.budget} jobs leaves none to run it "
                f"again, ask for {self.study.most_jobs}"
            )
        return (
            "low over its pairs, and fresh runs with good partners beside a good pair are missing: "
            "too many nodes are low at once, or those runs failed"
        )

    def _confirmed(self, base: Verdict, shown: Slower) -> Verdict:
        base = replace(
            base,
            delta=relative(shown.estimate),
            ci95=_ci(shown),
            n=shown.n,
            method=f"{counted(shown.n, 'fresh pair')} with good partners beside good pairs",
        )
        if shown.accuses:
            return _as(base, NetworkWord.NODE, _at_least(shown))
        if shown.is_open:
            return _as(base, NetworkWord.CANNOT_TELL, "low over its pairs, and a loss is neither "
                       "shown nor excluded by fresh ones")  # fmt: skip
        return _as(base, NetworkWord.NO_FAULT, "low over its pairs, not in fresh ones")

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
        dead = [f"{_dash(pair)} cannot communicate, and both do with others"
                for pair in walk.broken if walk.again.get(pair) == []]  # fmt: skip
        slow = [f"{NetworkWord.NODE} {name}, {_at_least(walk.nodes[name])}" for name in accused]
        faults = [*slow, *dead]
        link = self._link()
        if link and walk.is_link_accused:
            faults.append(link)
        if len(out) + len(faults) > 1:
            unwell = [f"{NetworkWord.UNHEALTHY} {name}" for name in out]
            return _as(base, NetworkWord.SEVERAL, "; ".join((*unwell, *faults)))
        if out:
            found = _as(base, NetworkWord.UNHEALTHY, "it cannot communicate; the others were "
                        "judged without it")  # fmt: skip
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
        if walk.is_link_accused and shown is not None:
            found = _as(base, NetworkWord.LINK, link)
            return replace(found, word=f"{NetworkWord.LINK} {'-'.join(self.record.link)}",
                           delta=relative(shown.estimate), ci95=_ci(shown))  # fmt: skip
        why = self._open()
        if why:
            return _as(base, NetworkWord.CANNOT_TELL, why)
        losses = [x for x in (self.record.node_loss, self.record.link_loss) if x is not None]
        found = _as(base, NetworkWord.NO_FAULT, "no node and no link is shown to be slow")
        most = math.ceil(1000 * max(losses) - 1e-9) / 10 if losses else math.nan
        kind = _level_kind(max(losses, default=None))
        return replace(found, kind=kind, word=f"{NetworkWord.NO_FAULT} ABOVE {most:.1f} %")

    def _stopped(self) -> str:
        if self.walk.is_common:
            return (
                "more pairs failed than were measured: that is the load, or what all nodes share, "
                "and no node is accused"
            )
        names = ", ".join(self.walk.out)
        return f"{STOP_AT} nodes or more cannot communicate: {names}. Look at the cluster first"

    def _link(self) -> str:
        walk = self.walk
        shown = _of_link(walk)
        if walk.link is None or shown is None:
            return ""
        both = f"slower than both of its ends elsewhere, {_at_least(shown)}"
        if self.record.link and set(self.record.link) != set(walk.link):
            return f"{_dash(walk.link)} and other pairs of the same two racks are {both}"
        return both

    def _open(self) -> str:
        """Return why nothing is excluded; "" where it is."""
        walk, record = self.walk, self.record
        if walk.unaffordable:
            return (
                f"{', '.join(walk.unaffordable[:4])} look slow, and the budget of "
                f"{self.study.budget} jobs leaves none to run them again; ask for "
                f"{self.study.most_jobs}"
            )
        doubtful = [n for n, shown in walk.nodes.items() if shown is None or shown.is_open]
        if doubtful:
            return f"{', '.join(doubtful)}: a loss is neither shown nor excluded"
        if walk.link is not None and walk.ends is None:
            return f"{_dash(walk.link)} looks slow, and its fresh runs have no score"
        if walk.ends is not None and all(each.estimate < math.log1p(-0.01) for each in walk.ends):
            return f"{_dash(walk.link or ())}: a loss is neither shown nor excluded"
        if record.covered < record.of_pairs:
            return (
                f"{record.covered} of {record.of_pairs} pairs have a score; of the other links "
                "nothing is known"
            )
        return ""


def _as(verdict: Verdict, word: NetworkWord, *reasons: str) -> Verdict:
    said = (*reasons, *verdict.reasons)
    kind = level_kind(verdict) if word is NetworkWord.NO_FAULT else _KINDS[word]
    return replace(
        verdict, kind=kind, word=str(word), reasons=said, can_run=word not in _CANNOT_RUN
    )


def _level_kind(excluded: float | None) -> VerdictKind:
    """Return the kind of what shows no fault: EQUIVALENT where a loss of 1 % is excluded."""
    is_level = excluded is not None and excluded < EQUIVALENCE
    return VerdictKind.EQUIVALENT if is_level else VerdictKind.SCREENED


def _ci(shown: Slower) -> tuple[float, float]:
    low, high = shown.ci95
    return relative(low), relative(high)


def _at_least(shown: Slower | None) -> str:
    if shown is None:
        return "not measured"
    return f"{percent(relative(shown.estimate))}, a loss of {size(-relative(shown.bound))} or more"


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


def _notes(walk: Walk, study: Asking, record: NetworkRecord) -> list[str]:
    notes = [f"the load: {load_of(study.cell)}"]
    if walk.is_stopped:
        return notes
    if not math.isnan(walk.sigma):
        notes.append(
            f"pairs of one round differ by {fine(walk.sigma)} (one standard deviation, slow pairs "
            "hardly counted)"
        )
    if record.covered < record.of_pairs:
        ended = "the check ends with the accused node: its repair comes first. " if (
            walk.accused
        ) else ""  # fmt: skip
        notes.append(
            f"{ended}{record.covered} of {record.of_pairs} pairs have a score; of the other links "
            "nothing is said"
        )
    if record.racks:
        notes.append(
            "between two racks one pair stands for all: a fault of a single cable that only other "
            "pairs use is not seen"
        )
    if walk.accused or walk.is_link_accused:
        notes.append(
            "cross-check with the check of nodes, which runs each node alone: alone healthy and "
            "slow in pairs is a network card or a link; slow alone is not the network"
        )
    low = [pair for pair, own in walk.again.items() if own and pair != walk.link]
    if walk.is_link_accused and low:
        notes.append(
            "only the slowest link is confirmed; run the check again after its repair, with "
            "another key"
        )
    excused = study.all_pairs - record.covered if not walk.accused else 0
    if excused and not walk.out and not walk.broken and walk.rounds:
        notes.append(
            f"{counted(excused, 'pair')} without a score: left out by the budget of "
            f"{study.budget} jobs, cancelled, or lost by the scheduler"
        )
    notes.append(
        f"an accusation rests on {REPEATS} fresh runs beside others, one-sided "
        f"{100 * (1 - ALPHA):.1f} %, and a loss of 1 % at least"
    )
    return notes
