"""What a history says of nodes: who is run again beside whom, and the verdict on each.

Plans no trial of its own: the study names them. The reference note is docs/how-to/nodes.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from statistics import fmean, median, stdev
from typing import ClassVar, Protocol

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.pairs import CellsRecord
from pytest_xlatune.model.reason import Reason, Why, verbatim
from pytest_xlatune.model.result import (
    Comparison,
    Conclusion,
    TrialResult,
    Verdict,
    VerdictKind,
    relative,
)
from pytest_xlatune.model.text import counted
from pytest_xlatune.model.trial import Arm, Trial
from pytest_xlatune.stats.blocks import BlockFit, BlockScore, fit_group
from pytest_xlatune.stats.compare import NoComparison, above, compare
from pytest_xlatune.stats.design import t_quantile
from pytest_xlatune.stats.validity import different_loss
from pytest_xlatune.studies import (
    History,
)
from pytest_xlatune.studies.cell_arms import is_excused, spread_of
from pytest_xlatune.studies.trials import usable
from pytest_xlatune.studies.verdicts import (
    NOT_FINITE,
    beside,
    job_ids_of,
    level_kind,
    measured,
    troubled,
    with_comparison,
)

KIND = "nodes"
HEALTHY_FILE = "healthy.nodes"  # in the work directory; `--xlatune-nodelist=@healthy` reads it
MEDIAN = "the median node"

MARGINAL_AT = math.log1p(-0.02)  # a loss that counts
DEGRADED_AT = math.log1p(-0.05)
SUSPECT_SIGMAS, SUSPECT_AT = 2.0, 0.01  # below the median by both
MIN_SUSPECTS, SHARE = 3, 4  # suspects: a fourth of the nodes, three at least
MIN_NODES = 3
MIN_ROUNDS = 2
ALPHA = 0.05
SCATTER = 3.0  # times the spread of all others: a node's own runs scatter
SCATTER_AT = 0.005  # of them at least: where nothing varies, less means nothing
_OWN_RUNS, _REST_DF = 3, 4  # fresh runs of it, degrees of freedom of the others, at least
_OF_LOG = (FailureClass.NODE_FAULT, FailureClass.NODE_SAID, FailureClass.NODE_UNASKED)
_MAD_DF = 0.37  # its efficiency there: degrees of freedom per further value
SCREEN, ROUND = "screen", "round"


class Word(StrEnum):
    """What the study calls its verdicts."""

    HEALTHY = "HEALTHY"
    MARGINAL = "MARGINAL"
    DEGRADED = "DEGRADED"
    UNHEALTHY = "UNHEALTHY"
    CANNOT_TELL = "CANNOT TELL"


# HEALTHY is no loss that counts; whether it is EQUIVALENT its interval says
_KINDS: Mapping[Word, VerdictKind] = {
    Word.MARGINAL: VerdictKind.SLOWER,
    Word.DEGRADED: VerdictKind.SLOWER,
    Word.UNHEALTHY: VerdictKind.INVALID,
    Word.CANNOT_TELL: VerdictKind.INCONCLUSIVE,
}
# the worst first: the order of reports
WORDS = (Word.UNHEALTHY, Word.DEGRADED, Word.MARGINAL, Word.CANNOT_TELL, Word.HEALTHY)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesRecord(CellsRecord):
    """What a node study found besides its verdicts.

    Attributes:
        nodes: all that were asked about, by the names that Slurm knows.
        healthy: those that are recommended.
        suspects, controls: those that were run again, and those beside them.
        rounds: how often.
        shift: of the median node against the reference, a relative change; None without one.
    """

    kind: ClassVar[str] = KIND
    nodes: tuple[str, ...] = ()
    healthy: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()
    controls: tuple[str, ...] = ()
    rounds: int = 0
    shift: float | None = None
    words: tuple[tuple[str, int], ...] = ()

    @property
    def summary(self) -> tuple[Reason, ...]:
        """How many nodes are what, and which ones can be recommended."""
        counts = [Reason(Why.COUNTED, number=number, word=word) for word, number in self.words]
        nodes = {"nodes": len(self.nodes)}
        return (
            Reason(Why.NODES_COUNTED, counts=counts, **nodes)
            if counts
            else Reason(Why.NODES_OPEN, **nodes),
            Reason(Why.RECOMMENDED, nodes=self.healthy)
            if self.healthy
            else Reason(Why.NONE_RECOMMENDED),
        )

    @property
    def objection(self) -> tuple[Reason, ...]:
        """That no node can be recommended, once all were run."""
        if self.healthy or not self.words:
            return ()
        return (Reason(Why.NO_NODE_GOOD, nodes=len(self.nodes)), *self.summary)

    @property
    def files(self) -> Mapping[str, str]:
        """The recommended nodes, as `--xlatune-nodelist=@healthy` reads them."""
        if not self.healthy:
            return {}
        head = f"# {len(self.healthy)} of {counted(len(self.nodes), 'node')}\n"
        return {HEALTHY_FILE: f"{head}{','.join(self.healthy)}\n"}


class Asks(Protocol):
    """The demands of a declaration."""

    @property
    def rounds(self) -> int: ...
    @property
    def controls(self) -> int: ...
    @property
    def reference_tgs(self) -> float | None: ...
    @property
    def floor_tgs(self) -> float | None: ...
    @property
    def peak_tflops(self) -> float | None: ...


class Planned(Protocol):
    """The study as its findings need it."""

    @property
    def asked(self) -> Asks: ...
    @property
    def cells(self) -> tuple[Cell, ...]: ...
    @property
    def budget(self) -> int: ...
    @property
    def loss_tolerance(self) -> float: ...
    @property
    def most_suspects(self) -> int: ...
    @property
    def most_jobs(self) -> int: ...
    def arms(self, history: History) -> tuple[Arm, ...]: ...
    def first_trials(self) -> tuple[Trial, ...]: ...
    def round_of(self, number: int, names: Sequence[str]) -> tuple[Trial, ...]: ...


# without slots: results are worked out once and kept
@dataclass(frozen=True, kw_only=True)
class NodeFindings:
    """What a history says of the nodes."""

    study: Planned
    results: Mapping[str, TrialResult]

    def of(self, trials: Sequence[Trial]) -> list[TrialResult]:
        """Return the results of trials, as far as there are any."""
        return [self.results[each.id] for each in trials if each.id in self.results]

    def is_over(self, trials: Sequence[Trial]) -> bool:
        """Whether all trials are final."""
        return all(each.id in self.results and self.results[each.id].status.is_final
                   for each in trials)  # fmt: skip

    @cached_property
    def first(self) -> tuple[Trial, ...]:
        return self.study.first_trials()

    @cached_property
    def values(self) -> Mapping[str, float]:
        """Node -> log score of its first run."""
        return {
            each.trial.arm: score.value for each in self.of(self.first) if (score := usable(each))
        }

    @cached_property
    def level(self) -> float:
        return median(self.values.values()) if self.values else math.nan

    @cached_property
    def sigma(self) -> float:
        """How far nodes' first runs are apart, slow ones hardly counted."""
        return spread_of(list(self.values.values()))

    @cached_property
    def is_common(self) -> bool:
        """Whether so many nodes failed that it is what they share, and no node's fault."""
        failed = sum(each.status.is_final and usable(each) is None for each in self.of(self.first))
        return failed > len(self.values) or len(self.values) < MIN_NODES

    @cached_property
    def faulty(self) -> frozenset[str]:
        """The nodes whose own log named a hard error by the end of their first run."""
        return frozenset(each.trial.arm for each in self.of(self.first) if _own_log(each).hard)

    @cached_property
    def low(self) -> tuple[str, ...]:
        """The nodes whose first run is low, the lowest first; not those whose fault is known."""
        floor = self.study.asked.floor_tgs
        limit = self.level - max(SUSPECT_SIGMAS * self.sigma, SUSPECT_AT)
        if floor is not None:
            limit = max(limit, math.log(floor))
        low = (n for n, v in self.values.items() if v < limit and n not in self.faulty)
        return tuple(sorted(low, key=lambda name: (self.values[name], name)))

    @cached_property
    def suspects(self) -> tuple[str, ...]:
        if not self.is_over(self.first) or self.is_common:
            return ()
        return self.low[: self.study.most_suspects]

    @cached_property
    def controls(self) -> tuple[str, ...]:
        """The nodes nearest the median, where anything is to be run beside them."""
        if not self.suspects:
            return ()
        rest = [name for name in self.values if name not in {*self.low, *self.faulty}]
        rest.sort(key=lambda name: (abs(self.values[name] - self.level), name))
        return tuple(rest[: self.study.asked.controls])

    @cached_property
    def affordable(self) -> int:
        """Rounds that the budget allows."""
        width = len(self.suspects) + len(self.controls)
        if not width:
            return 0
        found = (self.study.budget - len(self.first)) // width
        return 0 if found < MIN_ROUNDS else min(found, self.study.asked.rounds)

    @cached_property
    def rounds(self) -> tuple[tuple[Trial, ...], ...]:
        """The rounds as far as they can be planned; what failed in one is in no later one."""
        rounds: list[tuple[Trial, ...]] = []
        names = [*self.suspects, *self.controls]
        for number in range(1, self.affordable + 1):
            trials = self.study.round_of(number, names)
            rounds.append(trials)
            if not self.is_over(trials):
                break
            lost = {
                each.trial.arm
                for each in self.of(trials)
                if usable(each) is None or _own_log(each).hard
            }
            names = [name for name in names if name not in lost]
            if not set(names) & set(self.suspects):
                break
        return tuple(rounds)

    @cached_property
    def pending(self) -> tuple[Trial, ...]:
        for trials in (self.first, *self.rounds):
            if not self.is_over(trials):
                return tuple(
                    each
                    for each in trials
                    if each.id not in self.results or not self.results[each.id].status.is_final
                )
        return ()

    @property
    def left(self) -> int:
        """How many trials are likely still to come."""
        if not self.pending:
            return 0
        later = self.affordable - len(self.rounds)
        return len(self.pending) + later * (len(self.rounds[-1]) if self.rounds else 0)

    @cached_property
    def by_arm(self) -> Mapping[str, list[TrialResult]]:
        planned = [*self.first, *(each for trials in self.rounds for each in trials)]
        found: dict[str, list[TrialResult]] = {arm.id: [] for arm in self.study.arms(())}
        for each in self.of(planned):
            found[each.trial.arm].append(each)
        return found

    @cached_property
    def fresh(self) -> tuple[BlockScore, ...]:
        """The scores of the rounds."""
        last = {name: max(each.epoch for each in own) for name, own in self.by_arm.items() if own}
        return tuple(
            BlockScore(block=each.trial.block, arm=each.trial.arm, value=score.value)
            for own in self.by_arm.values()
            for each in own
            # a node that was brought back is another one than before
            if each.trial.block and (score := usable(each))
            and each.epoch == last[each.trial.arm]
        )  # fmt: skip

    @cached_property
    def fit(self) -> BlockFit | None:
        """Least squares of the rounds: nodes and rounds."""
        return fit_group(self.fresh, controls=self.controls)

    def scatter(self, name: str) -> tuple[float, float] | None:
        """Return the spread of a node's fresh runs, and that of all others in the same rounds.

        Both as standard deviations of one job, nodes and rounds apart; None with less than three
        runs, or with too few others.
        """
        others = [each for each in self.fresh if each.arm != name]
        level = {
            block: fmean(each.value for each in others if each.block == block)
            for block in {each.block for each in others}
        }
        own = [x.value - level[x.block] for x in self.fresh if x.arm == name and x.block in level]
        rest = spread_in(others) if len(own) >= _OWN_RUNS else None
        if rest is None:
            return None
        width = len({each.arm for each in others})
        return stdev(own) / math.sqrt(1 + 1 / width), rest

    @cached_property
    def losses(self) -> list[float]:
        return [
            score.loss
            for own in self.by_arm.values()
            for each in own
            if (score := usable(each)) and score.loss is not None
        ]

    @property
    def shift(self) -> float | None:
        """The median node against the reference, a log ratio; None without one."""
        reference = self.study.asked.reference_tgs
        if reference is None or not self.values:
            return None
        return self.level - math.log(reference)


def spread_in(scores: Sequence[BlockScore]) -> float | None:
    """Return the standard deviation of one job, arms and blocks apart; None with too few."""
    fit = fit_group(scores, controls={each.arm for each in scores[:1]})
    return fit.sigma if fit is not None and fit.df >= _REST_DF and fit.sigma > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnLog:
    """What a node's own log says, as the site's command tells it: see docs/how-to/nodes.md.

    Attributes:
        hard: hard errors.
        said: anything else.
        unasked: why it is not known.
    """

    hard: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    unasked: tuple[Reason, ...] = ()


def _own_log(*results: TrialResult) -> OwnLog:
    """Return what the node of these runs says, each line once."""
    found: dict[str, dict[str, None]] = {}
    unasked: dict[Reason, None] = {}
    for result in results:
        name = result.trial.arm
        for each in result.findings:
            if each.cls in _OF_LOG and each.source and each.source.lower() != name:
                unasked[Reason(Why.ASKED_ELSEWHERE, node=each.source)] = None
            elif each.cls == FailureClass.NODE_UNASKED:
                unasked[verbatim(each.text)] = None
            else:
                found.setdefault(each.cls, {})[each.text] = None
    hard, said = (tuple(found.get(each, ())) for each in _OF_LOG[:2])
    return OwnLog(hard=hard, said=said, unasked=tuple(unasked))


def conclusion(checked: NodeFindings) -> Conclusion:
    study = checked.study
    median_line = _median_line(checked)
    verdicts = [
        _with_log(checked, beside(_verdict(checked, arm.id), median_line)) for arm in study.arms(())
    ]
    by_arm = {each.nodelist[0].lower(): each.nodelist[0] for each in study.cells}
    good = {each.arm for each in verdicts if each.word == Word.HEALTHY}
    is_over = not checked.pending
    shift = checked.shift
    fit = checked.fit
    sigma = fit.sigma if fit is not None and math.isfinite(fit.sigma) else None
    if sigma is None and checked.values:
        sigma = checked.sigma
    record = NodesRecord(
        peak_tflops=study.asked.peak_tflops,
        sigma=sigma,
        mde80=next((each.mde80 for each in verdicts if each.mde80), None),
        nodes=tuple(by_arm.values()),
        healthy=tuple(name for arm, name in by_arm.items() if arm in good) if is_over else (),
        suspects=checked.suspects,
        controls=checked.controls,
        rounds=len(checked.rounds),
        shift=None if shift is None else relative(shift),
        words=tuple(
            (str(word), count)
            for word in WORDS
            if (count := sum(each.word == word for each in verdicts))
        ),
    )
    order = {str(word): at for at, word in enumerate(WORDS)}
    verdicts.sort(key=lambda each: (order.get(each.word, len(order)), each.delta or 0.0))
    return Conclusion(
        reference=median_line,
        verdicts=tuple(verdicts),
        record=record,
        alpha=ALPHA if checked.rounds else 0.0,
        complete=is_over,
        notes=tuple(_notes(checked)),
    )


def _median_line(checked: NodeFindings) -> Verdict | None:
    if not checked.values:
        return None
    scored = [each for each in checked.of(checked.first) if usable(each)]
    line = measured(Verdict(arm=MEDIAN, kind=VerdictKind.EQUIVALENT, delta=0.0), scored)
    if line.figure is None:
        line = replace(line, tgs=math.exp(checked.level))
    else:
        value = line.figure.metric.figure(checked.level)
        line = replace(line, figure=replace(line.figure, value=value))
    return replace(line, job_ids=(), step_s=None, method=Reason(Why.MEDIAN_OF_FIRST))


def _verdict(checked: NodeFindings, name: str) -> Verdict:
    own = checked.by_arm[name]
    base = troubled(Verdict(arm=name, kind=VerdictKind.INCONCLUSIVE, job_ids=job_ids_of(own)), own)
    final = [each for each in own if each.status.is_final]
    if not final:
        return base
    scored = [each for each in own if usable(each)]
    base = replace(measured(base, scored), job_ids=base.job_ids)
    if name in checked.values:
        base = replace(base, delta=relative(checked.values[name] - checked.level))
    lost = [each for each in final if usable(each) is None]
    if lost:
        return _lost(checked, base, lost)
    wrong = _wrong_loss(checked, scored)
    if wrong:
        return _word(base, Word.UNHEALTHY, wrong)
    if not checked.is_over(checked.first):
        return replace(base, kind=VerdictKind.SCREENED, method=Reason(Why.ITS_FIRST_RUN))
    if checked.is_common:
        return _word(base, Word.CANNOT_TELL, Reason(Why.ALL_NODES_FAIL))
    return _beside_reference(checked, _of_speed(checked, base, scored))


def _with_log(checked: NodeFindings, verdict: Verdict) -> Verdict:
    """Add what the node's own log says; a hard error makes it UNHEALTHY, however fast it is."""
    told = _own_log(*checked.by_arm[verdict.arm])
    if told.hard:
        why = Reason(Why.OWN_LOG, lines=told.hard)
        verdict = _word(replace(verdict, reasons=()), Word.UNHEALTHY, why, *verdict.reasons)
    if told.said:
        own = Reason(Why.OWN_LOG_SAYS, lines=told.said)
        verdict = replace(verdict, reasons=(*verdict.reasons, own))
    found = checked.scatter(verdict.arm) if not checked.pending else None
    if found is not None and found[0] > max(SCATTER * found[1], SCATTER_AT):
        own = Reason(Why.OWN_RUNS_SCATTER, own=found[0], others=found[1])
        verdict = replace(verdict, reasons=(*verdict.reasons, own))
    return verdict


def _lost(checked: NodeFindings, base: Verdict, lost: Sequence[TrialResult]) -> Verdict:
    """Return what follows from runs of a node that are over and have no score."""
    why = lost[0].reason or NOT_FINITE
    if checked.is_common and not lost[0].trial.block:
        both = Reason(Why.SEVERAL, reasons=(why, Reason(Why.ALL_NODES_FAIL)))
        return _word(base, Word.CANNOT_TELL, both)
    blamed = [each for each in lost if not is_excused(each)]
    if not blamed:
        return _word(base, Word.CANNOT_TELL, Reason(Why.RUN_AGAIN, why=why))
    counts = {"failed": len(lost), "runs": len(checked.by_arm[base.arm])}
    return _word(
        base, Word.UNHEALTHY, Reason(Why.RUNS_FAILED, why=blamed[0].reason or why, **counts)
    )


def _wrong_loss(checked: NodeFindings, scored: Sequence[TrialResult]) -> Reason | None:
    """Return how the loss of a node differs from that of all others; None where it does not."""
    expected = median(checked.losses) if checked.losses else None
    tolerance = checked.study.loss_tolerance
    if expected is None or len(checked.values) < MIN_NODES:
        return None
    for each in scored:
        loss = each.score.loss if each.score else None
        if loss is not None and different_loss(
            loss, expected, tolerance=checked.study.loss_tolerance
        ):
            losses = {"loss": loss, "median": expected}
            return Reason(Why.NODE_OTHER_LOSS, tolerance=tolerance, **losses)
    return None


def _of_speed(checked: NodeFindings, base: Verdict, scored: Sequence[TrialResult]) -> Verdict:
    """Return the verdict on a node whose runs all have a score."""
    name = base.arm
    if name in checked.suspects:
        return _suspect(checked, base, scored)
    if name in checked.low:
        return _word(
            base,
            Word.CANNOT_TELL,
            Reason(
                Why.LOW_NOT_AGAIN,
                low=len(checked.low),
                nodes=len(checked.values),
                most=checked.study.most_suspects,
            ),
        )
    df = max(_MAD_DF * (len(checked.values) - 1), 1.0)
    reach = t_quantile(0.975, df) * checked.sigma
    at = checked.values[name] - checked.level
    base = replace(
        base,
        ci95=(relative(at - reach), relative(at + reach)),
        method=Reason(Why.FIRST_RUNS_SPREAD),
    )
    return _word(base, Word.HEALTHY, Reason(Why.NOT_LOW))


def _suspect(checked: NodeFindings, base: Verdict, scored: Sequence[TrialResult]) -> Verdict:
    if not checked.rounds:
        return _word(
            base,
            Word.CANNOT_TELL,
            Reason(Why.LOW_NO_BUDGET, budget=checked.study.budget, ask=checked.study.most_jobs),
        )
    if checked.pending:
        return replace(base, kind=VerdictKind.SCREENED, method=Reason(Why.ITS_FIRST_RUN_AGAIN))
    fit = checked.fit
    found: Comparison | NoComparison = NoComparison(reason=Reason(Why.NO_CONTROL_BESIDE))
    if fit is not None:
        found = compare(fit, base.arm, family=len(checked.suspects), alpha=ALPHA)
    if isinstance(found, NoComparison):
        word, why = Word.CANNOT_TELL, found.reason
    else:
        word, why = _told(found)
        base = with_comparison(base, found, kind=base.kind, reasons=())
        is_dunnett = found.method.kind is Why.DUNNETT
        method = Reason(
            Why.ROUNDS_BESIDE,
            rounds=fit.n_blocks if fit else 0,
            controls=len(checked.controls),
            rule=Reason(Why.BY_DUNNETT if is_dunnett else Why.BY_BONFERRONI),
        )
        base = replace(base, n=len(scored), method=method)
    return _floor(checked, _word(base, word, why), scored)


def _told(found: Comparison) -> tuple[Word, Reason]:
    """Return the word for a comparison with the controls, and why."""
    upper = 2 * found.estimate - found.lower
    low, high = found.ci95
    limit, worse = -relative(MARGINAL_AT), -relative(DEGRADED_AT)
    if upper < MARGINAL_AT:
        word = Word.DEGRADED if found.estimate <= DEGRADED_AT else Word.MARGINAL
        return word, Reason(Why.LOSS_OF_SUSPECT, loss=-relative(upper))
    if low < DEGRADED_AT and high > MARGINAL_AT:
        return Word.CANNOT_TELL, Reason(Why.INTERVAL_HOLDS_BOTH, loss=limit, worse=worse)
    if found.estimate < MARGINAL_AT:
        return Word.CANNOT_TELL, Reason(Why.LOSS_OPEN, loss=limit)
    return Word.HEALTHY, Reason(Why.LOW_ONCE_ONLY)


def _floor(checked: NodeFindings, verdict: Verdict, scored: Sequence[TrialResult]) -> Verdict:
    """Hold a suspect against the absolute floor too, where there is one."""
    floor = checked.study.asked.floor_tgs
    if floor is None or verdict.word in (Word.DEGRADED, Word.UNHEALTHY):
        return verdict
    fresh = [score.value for each in scored if each.trial.block and (score := usable(each))]
    kind = above(fresh, math.log(floor))
    if kind is VerdictKind.EQUIVALENT:
        return verdict
    mean = math.exp(fmean(fresh)) if fresh else math.nan
    told = {"tgs": mean, "runs": len(fresh), "floor": floor}
    if kind is VerdictKind.SLOWER:
        return _word(verdict, Word.MARGINAL, Reason(Why.NODE_BELOW_FLOOR, **told))
    if verdict.word == Word.MARGINAL:
        return verdict
    return _word(verdict, Word.CANNOT_TELL, Reason(Why.NODE_FLOOR_OPEN, **told))


def _beside_reference(checked: NodeFindings, verdict: Verdict) -> Verdict:
    """Withhold HEALTHY where the median itself is far below what a healthy node is known to do."""
    shift = checked.shift
    if shift is None or shift > MARGINAL_AT or verdict.word != Word.HEALTHY:
        return verdict
    return _word(
        verdict,
        Word.CANNOT_TELL,
        Reason(
            Why.LIKE_THE_OTHERS,
            shift=relative(shift),
            reference=checked.study.asked.reference_tgs,
        ),
    )


def _word(verdict: Verdict, word: Word, *reasons: Reason) -> Verdict:
    told = (*reasons, *verdict.reasons)
    can_run = word is not Word.UNHEALTHY  # else its test would pass
    kind = level_kind(verdict) if word is Word.HEALTHY else _KINDS[word]
    return replace(verdict, kind=kind, word=str(word), reasons=told, can_run=can_run)


def _unasked(checked: NodeFindings) -> list[Reason]:
    """Return of which nodes the own log is not known, and why."""
    nodes: dict[Reason, list[str]] = {}
    for name, own in checked.by_arm.items():
        for why in _own_log(*own).unasked:
            nodes.setdefault(why, []).append(name)
    return [Reason(Why.OWN_LOG_UNKNOWN, nodes=names, why=why) for why, names in nodes.items()]


def _notes(checked: NodeFindings) -> list[Reason]:
    study, notes = checked.study, _unasked(checked)
    if not checked.is_over(checked.first):
        return notes
    if checked.is_common:
        return [*notes, Reason(Why.ALL_NODES_FAIL)]
    notes.append(Reason(Why.NODES_DIFFER, sigma=checked.sigma))
    if len(checked.low) > len(checked.suspects):
        low = {"low": len(checked.low), "nodes": len(checked.values)}
        notes.append(Reason(Why.MEDIAN_NOT_TRUSTED, **low))
    if checked.suspects and checked.affordable < study.asked.rounds:
        rounds = {"allowed": checked.affordable, "rounds": study.asked.rounds}
        notes.append(
            Reason(Why.BUDGET_ALLOWS_ROUNDS, budget=study.budget, most=study.most_jobs, **rounds)
        )
    shift = checked.shift
    if shift is not None:
        known = study.asked.reference_tgs
        notes.append(Reason(Why.MEDIAN_SHIFT, shift=relative(shift), reference=known))
    else:
        notes.append(Reason(Why.NO_REFERENCE_OF_NODES))
    return notes
