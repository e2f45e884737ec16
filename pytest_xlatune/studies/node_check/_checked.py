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
from pytest_xlatune.model.result import (
    Comparison,
    Conclusion,
    TrialResult,
    Verdict,
    VerdictKind,
    relative,
)
from pytest_xlatune.model.text import counted, fine, percent, size
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
_MOST_LINES = 3  # of a node's own log, in its verdict
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
    def said(self) -> tuple[str, ...]:
        """How many nodes are what, and which ones can be recommended."""
        counts = ", ".join(f"{number} {word}" for word, number in self.words) or "no verdict"
        good = ",".join(self.healthy) or "none"
        return (f"{counted(len(self.nodes), 'node')}: {counts}", f"recommended: {good}")

    @property
    def objection(self) -> str:
        """That no node can be recommended, once all were run."""
        if self.healthy or not self.words:
            return ""
        return f"no node of {len(self.nodes)} can be recommended; {'; '.join(self.said)}"

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
    unasked: tuple[str, ...] = ()


def _own_log(*results: TrialResult) -> OwnLog:
    """Return what the node of these runs says, each sentence once."""
    found: dict[str, dict[str, None]] = {}
    for result in results:
        name = result.trial.arm
        for each in result.findings:
            cls, text = each.cls, each.text
            if cls in _OF_LOG and each.source and each.source.lower() != name:
                cls, text = FailureClass.NODE_UNASKED, f"the command ran on {each.source}"
            found.setdefault(cls, {})[text] = None
    hard, said, unasked = (tuple(found.get(each, ())) for each in _OF_LOG)
    return OwnLog(hard=hard, said=said, unasked=unasked)


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
    return replace(line, job_ids=(), step_s=None, method="the median of the first runs")


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
        return replace(base, kind=VerdictKind.SCREENED, method="its first run")
    if checked.is_common:
        return _word(base, Word.CANNOT_TELL, _COMMON)
    return _beside_reference(checked, _of_speed(checked, base, scored))


def _with_log(checked: NodeFindings, verdict: Verdict) -> Verdict:
    """Add what the node's own log says; a hard error makes it UNHEALTHY, however fast it is."""
    told = _own_log(*checked.by_arm[verdict.arm])
    if told.hard:
        why = f"its own log: {_few(told.hard)}"
        verdict = _word(replace(verdict, reasons=()), Word.UNHEALTHY, why, *verdict.reasons)
    if told.said:
        said = f"its own log says: {_few(told.said)}"
        verdict = replace(verdict, reasons=(*verdict.reasons, said))
    found = checked.scatter(verdict.arm) if not checked.pending else None
    if found is not None and found[0] > max(SCATTER * found[1], SCATTER_AT):
        said = (
            f"its own runs scatter: {fine(found[0])} (one standard deviation of its fresh runs), "
            f"all others {fine(found[1])}"
        )
        verdict = replace(verdict, reasons=(*verdict.reasons, said))
    return verdict


def _few(lines: Sequence[str]) -> str:
    more = len(lines) - _MOST_LINES
    shown = " | ".join(lines[:_MOST_LINES])
    return shown + (f" | and {counted(more, 'further line')}" if more > 0 else "")


_COMMON = (
    "more nodes failed than were measured: that is the load or what the nodes share, and no node "
    "is accused"
)


def _lost(checked: NodeFindings, base: Verdict, lost: Sequence[TrialResult]) -> Verdict:
    """Return what follows from runs of a node that are over and have no score."""
    why = lost[0].reason or "its score is not finite"
    if checked.is_common and not lost[0].trial.block:
        return _word(base, Word.CANNOT_TELL, f"{why}; {_COMMON}")
    blamed = [each for each in lost if not is_excused(each)]
    if not blamed:
        return _word(base, Word.CANNOT_TELL, f"not measured: {why}; run it again")
    count = f"{len(lost)} of {counted(len(checked.by_arm[base.arm]), 'run')} failed: "
    return _word(base, Word.UNHEALTHY, f"{count}{blamed[0].reason or why}")


def _wrong_loss(checked: NodeFindings, scored: Sequence[TrialResult]) -> str:
    """Return how the loss of a node differs from that of all others, "" where it does not."""
    expected = median(checked.losses) if checked.losses else None
    tolerance = checked.study.loss_tolerance
    if expected is None or len(checked.values) < MIN_NODES:
        return ""
    for each in scored:
        loss = each.score.loss if each.score else None
        if loss is not None and different_loss(
            loss, expected, tolerance=checked.study.loss_tolerance
        ):
            return (
                f"its loss is {loss:.6g}, that of the median node {expected:.6g}, more than "
                f"{tolerance:.0%} apart: it computes something else"
            )
    return ""


def _of_speed(checked: NodeFindings, base: Verdict, scored: Sequence[TrialResult]) -> Verdict:
    """Return the verdict on a node whose runs all have a score."""
    name = base.arm
    if name in checked.suspects:
        return _suspect(checked, base, scored)
    if name in checked.low:
        return _word(
            base,
            Word.CANNOT_TELL,
            f"low in its first run, and not run again: {len(checked.low)} of "
            f"{counted(len(checked.values), 'node')} are low, at most "
            f"{checked.study.most_suspects} are run again",
        )
    df = max(_MAD_DF * (len(checked.values) - 1), 1.0)
    reach = t_quantile(0.975, df) * checked.sigma
    at = checked.values[name] - checked.level
    base = replace(
        base,
        ci95=(relative(at - reach), relative(at + reach)),
        method="first runs of all nodes, noise from their spread",
    )
    return _word(base, Word.HEALTHY, "not low in its first run")


def _suspect(checked: NodeFindings, base: Verdict, scored: Sequence[TrialResult]) -> Verdict:
    if not checked.rounds:
        return _word(
            base,
            Word.CANNOT_TELL,
            f"low in its first run; the budget of {checked.study.budget} jobs leaves none to run "
            f"it again, ask for {checked.study.most_jobs}",
        )
    if checked.pending:
        return replace(base, kind=VerdictKind.SCREENED, method="its first run; it is run again")
    fit = checked.fit
    found: Comparison | NoComparison = NoComparison(
        reason="no control beside it has a score: more nodes are low than are not"
    )
    if fit is not None:
        found = compare(fit, base.arm, family=len(checked.suspects), alpha=ALPHA)
    if isinstance(found, NoComparison):
        word, why = Word.CANNOT_TELL, found.reason
    else:
        word, why = _told(found)
        base = with_comparison(base, found, kind=base.kind, reasons=())
        rule = found.method.partition(",")[0]
        controls = counted(len(checked.controls), "control")
        method = f"{fit.n_blocks if fit else 0} rounds beside {controls}, {rule}"
        base = replace(base, n=len(scored), method=method)
    return _floor(checked, _word(base, word, why), scored)


def _told(found: Comparison) -> tuple[Word, str]:
    """Return the word for a comparison with the controls, and why."""
    upper = 2 * found.estimate - found.lower
    low, high = found.ci95
    limit, worse = size(-relative(MARGINAL_AT)), size(-relative(DEGRADED_AT))
    if upper < MARGINAL_AT:
        word = Word.DEGRADED if found.estimate <= DEGRADED_AT else Word.MARGINAL
        return word, f"a loss of {size(-relative(upper))} or more, 95 % over all suspects"
    if low < DEGRADED_AT and high > MARGINAL_AT:
        return Word.CANNOT_TELL, f"its interval holds losses of {limit} and of {worse}"
    if found.estimate < MARGINAL_AT:
        return Word.CANNOT_TELL, f"a loss of {limit} is neither shown nor excluded"
    return Word.HEALTHY, "low in its first run, not when run again beside controls"


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
    said = f"{mean:.1f} TGS in {counted(len(fresh), 'fresh run')}, the floor is {floor:g}"
    if kind is VerdictKind.SLOWER:
        return _word(verdict, Word.MARGINAL, f"below the floor: {said}")
    if verdict.word == Word.MARGINAL:
        return verdict
    return _word(verdict, Word.CANNOT_TELL, f"cannot tell whether it is above the floor: {said}")


def _beside_reference(checked: NodeFindings, verdict: Verdict) -> Verdict:
    """Withhold HEALTHY where the median itself is far below what a healthy node is known to do."""
    shift = checked.shift
    if shift is None or shift > MARGINAL_AT or verdict.word != Word.HEALTHY:
        return verdict
    return _word(
        verdict,
        Word.CANNOT_TELL,
        f"like the other nodes, but their median is {percent(relative(shift))} from the reference "
        f"of {checked.study.asked.reference_tgs:g} TGS: all are slow, or the load has changed",
    )


def _word(verdict: Verdict, word: Word, *reasons: str) -> Verdict:
    said = (*reasons, *verdict.reasons)
    can_run = word is not Word.UNHEALTHY  # else its test would pass
    kind = level_kind(verdict) if word is Word.HEALTHY else _KINDS[word]
    return replace(verdict, kind=kind, word=str(word), reasons=said, can_run=can_run)


def _unasked(checked: NodeFindings) -> list[str]:
    """Say of which nodes the own log is not known, and why."""
    nodes: dict[str, list[str]] = {}
    for name, own in checked.by_arm.items():
        for why in _own_log(*own).unasked:
            nodes.setdefault(why, []).append(name)
    return [
        f"the own log of {_few(names)} is not known: {why}; its verdict rests on its runs alone"
        for why, names in nodes.items()
    ]


def _notes(checked: NodeFindings) -> list[str]:
    study, notes = checked.study, _unasked(checked)
    if not checked.is_over(checked.first):
        return notes
    if checked.is_common:
        return [*notes, _COMMON]
    notes.append(
        f"first runs of nodes differ by {fine(checked.sigma)} (one standard deviation, slow nodes "
        "hardly counted); nodes differ for good by 0.2 to 0.5 %, which is no fault"
    )
    if len(checked.low) > len(checked.suspects):
        notes.append(
            f"{len(checked.low)} of {counted(len(checked.values), 'node')} are low: the median is "
            "not to be trusted. Say what a healthy node does: Nodes(reference_tgs=...), from an "
            "earlier check"
        )
    if checked.suspects and checked.affordable < study.asked.rounds:
        notes.append(
            f"the budget of {study.budget} jobs allows {checked.affordable} of "
            f"{study.asked.rounds} rounds; {study.most_jobs} jobs are the most that all take"
        )
    shift = checked.shift
    if shift is not None:
        notes.append(
            f"the median node is {percent(relative(shift))} from the reference of "
            f"{study.asked.reference_tgs:g} TGS"
        )
    else:
        notes.append(
            "nodes are held against their own median: where most of them are slow alike, only a "
            "reference shows it"
        )
    return notes
