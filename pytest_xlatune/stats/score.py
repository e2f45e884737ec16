"""Steps of one job to its score: the logarithm of tokens over time in steady state.

Where the protocol scores another figure, of that: it has one window, the declared one.

The job is the experimental unit: what happens in here shapes one number and is no evidence of
anything else. This module must not know of profiles, of other jobs or of logs.

A step's printed seconds are the host's time between two dispatches. They telescope: a pause makes
its own step slow and the next one impossibly fast, so a mean of rates is wrong by any amount and
tokens over time is right. Windows are by step id and the same for all jobs of a comparison.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeGuard, overload

from pytest_xlatune.model.cell import Protocol
from pytest_xlatune.model.metric import (
    BUSBW,
    FIRST_STEP,
    TGS,
    Figure,
    Logged,
    Metric,
    NoScore,
    Score,
    StepRecord,
)
from pytest_xlatune.model.reason import Reason, Why
from pytest_xlatune.model.text import whole
from pytest_xlatune.stats import median

PROFILED_FIRST_STEP = 9
LEAST_OUTLIER = 0.01  # no step within 1 % of the median is ever dropped
# without a screen a score has four times the noise where 3 % of the steps straggle
OUTLIER_MADS = 4 * 1.4826
GUARD_MADS = 4.0
# a start that each job chooses is a bias of its own, and a late straggler captures it (MSER, change
# points: 0.3 % to 4.7 % off in simulated jobs of 15 steps)
GUARD_STEPS = 4  # the guard moves the start of the window by so many steps at most
GUARD_TAIL = 6
SCATTER = 0.10  # a limit this wide finds no outlier: half the window may be one
# a false alarm in 0.4 % of simulated jobs; it finds 79 % of those that warm up for four steps
LEAST_UNSTEADY = 0.015
# the error of a difference of two medians of n/2 values each, 2.5 times
UNSTEADY_ERRORS = 2.5 * 1.2533
INVARIANT_TOLERANCE = 0.005
PRINTED_RESOLUTION_S = 0.0005  # seconds are printed with three digits

_FIRST_STEP = 1  # torchtitan and Megatron-LM count their steps from 1, MaxText from 0
_OF_THE_LOG = ("invariant-violated", "resumed")  # flags that timings cannot tell

# step id and seconds: what the arithmetic below works on
_Timed = tuple[int, float]


def score(
    steps: Sequence[StepRecord],
    *,
    protocol: Protocol,
    tokens_per_device_step: float | None,
    logged: Logged | None = None,
) -> Score | NoScore:
    """Return the score of a job, or why it has none.

    Args:
        steps: records in any order; repeats, other ranks and earlier starts may be among them.
        protocol: the cell's: window, profiler, evaluation, usable steps needed.
        tokens_per_device_step: TGS x seconds of a healthy step; None takes it from the steps.
        logged: figures of the protocol's metric that no step record holds.
    """
    if not steps and protocol.needs_steps:
        return NoScore(reason=Reason(Why.NO_STEP))
    # MaxText 0.1 ends a run whose loss is NaN with exit 0
    bad = sorted({r.step for r in steps if r.loss is not None and not math.isfinite(r.loss)})
    if bad:
        return NoScore(reason=Reason(Why.LOSS_NOT_FINITE, step=bad[0]))
    records = _one_rank(steps)
    if protocol.scored_by is not TGS:
        return _of_figure(records, logged or Logged(), protocol)
    wanted = window_steps(protocol, resumed_at=records[0].step)
    if len(wanted) < protocol.min_steps:
        return NoScore(reason=_too_short(protocol, wanted, resumed_at=records[0].step))
    own = [r for r in records if r.kind == "step"]
    among = wanted.among([r.step for r in own])
    inside = own if len(among) == len(own) else [r for r in own if r.step in among]
    products = _products(inside)
    tokens = _tokens(products, tokens_per_device_step)
    is_rate = tokens is None and any(_is_measure(r.tgs) for r in inside)
    if is_rate:  # no step prints its seconds; what a mean of rates is needs no tokens
        own = [r for r in own if _is_measure(r.tgs)]
        tokens = 1.0
    if tokens is None and inside:
        return NoScore(reason=Reason(Why.NO_TOKENS))
    tokens = tokens or 0.0  # of no step: there is nothing to time
    timed = _timed(own, tokens) if inside else []
    found = _scored(timed, tokens, wanted, protocol, seen=records[-1].step)
    if isinstance(found, NoScore):
        return found
    if is_rate:
        found = replace(found, step_s=None, timings=())
    flags = {
        "invariant-violated": _violates(products, tokens_per_device_step or tokens),
        "resumed": records[0].step > _FIRST_STEP,
    }
    losses = [r.loss for r in records if r.loss is not None]
    rates = [r for r in own if r.tgs is not None and 0 < r.tgs < math.inf]
    return replace(
        found,
        loss=losses[-1] if losses else None,
        first_loss=losses[0] if losses else None,
        tflops=_at_rate(found.tgs, [(r.tflops, r.tgs) for r in rates]),
        mfu=_at_rate(found.tgs, [(r.mfu, r.tgs) for r in rates]),
        flags=(*found.flags, *(name for name, is_set in flags.items() if is_set)),
    )


def timed_steps(
    steps: Sequence[StepRecord], *, tokens_per_device_step: float | None
) -> tuple[StepRecord, ...]:
    """Return one record a step of the last start and one rank, by step, with its exact seconds.

    TGS has more digits than the printed seconds: of a step of 12 ms these say 0.012. Where neither
    is printed the seconds are None; where nothing tells the tokens they are right to a factor.
    """
    records = _one_rank(steps)
    tokens = tokens_per_device_step or _tokens(_products(records), None) or 1.0
    exact = dict(_timed(records, tokens))
    return tuple(replace(each, step_s=exact.get(each.step)) for each in records)


def _at_rate(
    tgs: float | None, printed: Sequence[tuple[float | None, float | None]]
) -> float | None:
    """Return a figure that goes with the rate as it is at `tgs`; None where no step prints it."""
    ratios = [
        figure / rate
        for figure, rate in printed
        if figure is not None and 0 < figure < math.inf and rate
    ]
    return tgs * median(ratios) if ratios and tgs else None


def _of_figure(
    records: Sequence[StepRecord], logged: Logged, protocol: Protocol
) -> Score | NoScore:
    """Score the median of the metric's figures: those of the window, or all that are no step's."""
    metric, values = protocol.scored_by, logged.values
    resumed_at = records[0].step if records else 0
    if logged.problem:
        return NoScore(reason=logged.problem)
    if metric is FIRST_STEP:
        first = records[0]
        values = () if first.step_s is None else ((first.step, first.step_s),)
    if not values:
        absent = Reason(Why.NO_FIGURE, field=metric.field)
        return NoScore(reason=_ABSENT_FIGURES.get(metric, absent))
    of_steps = [(step, value) for step, value in values if step is not None]
    if of_steps and metric is not FIRST_STEP:
        wanted = window_steps(protocol, resumed_at=resumed_at)
        of_steps = [each for each in of_steps if each[0] in wanted]
        if len(of_steps) < protocol.min_steps:
            least = protocol.min_steps
            return NoScore(
                reason=Reason(
                    Why.FEW_FIGURES, steps=len(of_steps), field=metric.field, needed=least
                )
            )
    kept = [value for _, value in of_steps or values]
    figure = median(kept)
    if not _is_measure(figure):
        return NoScore(reason=Reason(Why.NO_MEASURE, figure=metric.title, value=figure))
    losses = [r.loss for r in records if r.loss is not None]
    return Score(
        value=metric.score(figure),
        n_steps=len(kept),
        window=(of_steps[0][0], of_steps[-1][0]) if of_steps else (0, 0),
        loss=losses[-1] if losses else None,
        flags=("resumed",) if resumed_at > _FIRST_STEP else (),
        figure=Figure(metric=metric, value=figure),
    )


_ABSENT_FIGURES: Mapping[Metric, Reason] = {
    FIRST_STEP: Reason(Why.NO_FIRST_STEP),
    BUSBW: Reason(Why.NO_BANDWIDTH),
}


def rescore(scored: Score, *, protocol: Protocol) -> Score | NoScore:
    """Return the score of the same job in the window of another protocol, from its timings.

    What only the log can tell (loss, a violated invariant, a resumed run) stays as it was.
    """
    if not scored.timings or scored.tgs is None or scored.step_s is None:
        return NoScore(reason=Reason(Why.STEPS_NOT_KEPT))
    first = scored.timings[0][0]
    resumed_at = first if "resumed" in scored.flags or first == _FIRST_STEP else 0
    wanted = window_steps(protocol, resumed_at=resumed_at)
    if len(wanted) < protocol.min_steps:
        return NoScore(reason=_too_short(protocol, wanted, resumed_at=resumed_at))
    tokens = scored.tgs * scored.step_s
    seen = scored.timings[-1][0]
    found = _scored(scored.timings, tokens, wanted, protocol, seen=seen)
    if isinstance(found, NoScore):
        return found
    kept = (name for name in _OF_THE_LOG if name in scored.flags)
    return replace(
        found,
        loss=scored.loss,
        flags=(*found.flags, *kept),
        first_loss=scored.first_loss,
        tflops=scored.tflops and found.tgs and scored.tflops / scored.tgs * found.tgs,
        mfu=scored.mfu and found.tgs and scored.mfu / scored.tgs * found.tgs,
        memory_gb=scored.memory_gb,
    )


def _scored(
    every: Sequence[_Timed],
    tokens: float,
    wanted: StepWindow,
    protocol: Protocol,
    *,
    seen: int,
) -> Score | NoScore:
    """Score the `wanted` ones of all timed steps; `seen` is the last step of the job."""
    among = wanted.among([step for step, _ in every])
    timed = [*every] if len(among) == len(every) else [e for e in every if e[0] in among]
    if len(timed) < protocol.min_steps:
        window = {"first": wanted[0], "last": wanted[-1]}
        return NoScore(
            reason=Reason(
                Why.FEW_STEPS, steps=len(timed), needed=protocol.min_steps, seen=seen, **window
            )
        )
    late = _guarded(timed, protocol)
    logs = [math.log(s) for _, s in timed]
    dropped, stragglers, limit = _screened(late, logs[len(timed) - len(late) :])
    kept = [each for each in late if each[0] not in dropped] if dropped else late
    if len(kept) < protocol.min_steps:
        window = {"first": late[0][0], "last": late[-1][0]}
        counts = {"steps": len(kept), "outliers": len(dropped)}
        return NoScore(reason=Reason(Why.FEW_LEFT, needed=protocol.min_steps, **counts, **window))
    # of five runs on a loaded machine: tokens over time vary by 0.8 %, the mean of rates by 6.2 %
    tgs = tokens * len(kept) / math.fsum(s for _, s in kept)
    flags = {
        "not-steady": _is_unsteady(logs),
        "scattered-steps": limit > SCATTER,
        "stragglers": stragglers > 0,
        "incomplete": timed[-1][0] < wanted[-1],
    }
    return Score(
        value=math.log(tgs),
        tgs=tgs,
        step_s=math.fsum(s for _, s in kept) / len(kept),
        n_steps=len(kept),
        window=(late[0][0], late[-1][0]),
        dropped=tuple(sorted(dropped)),
        stragglers=stragglers,
        window_tgs=tokens * len(timed) / math.fsum(s for _, s in timed),
        flags=tuple(name for name, is_set in flags.items() if is_set),
        timings=tuple(every),
    )


# the step after an evaluation is absurdly fast: a mean rate was 122,578 where 5,400 was true
_EVALUATED = 3  # an evaluation step and the two after it


@dataclass(frozen=True, slots=True)
class StepWindow(Sequence[int]):
    """The step ids that a protocol scores, in order; a step that is not written out costs nothing.

    Attributes:
        pieces: what the warm-up and the profiler leave, ascending.
        every: an evaluation follows every step whose id + 1 is a multiple of it; 0 is never.
    """

    pieces: tuple[range, ...]
    every: int = 0

    def __contains__(self, step: object) -> bool:
        return (
            isinstance(step, int)
            and any(step in each for each in self.pieces)
            and (not self.every or (step + 1) % self.every >= min(_EVALUATED, self.every))
        )

    def among(self, steps: Sequence[int]) -> set[int]:
        """Return which of some steps it has; of many that is faster than to ask for each."""
        ends = [(piece.start, piece.stop) for piece in self.pieces]
        found = {step for first, end in ends for step in steps if first <= step < end}
        return {step for step in found if step in self} if self.every else found

    def __iter__(self) -> Iterator[int]:
        return (step for each in self.pieces for step in each if step in self)

    def __len__(self) -> int:
        return sum(len(each) - self._evaluated_in(each) for each in self.pieces)

    @overload
    def __getitem__(self, at: int) -> int: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[int]: ...

    def __getitem__(self, at: int | slice) -> int | Sequence[int]:
        if isinstance(at, slice):
            return tuple(self)[at]
        if not -len(self) <= at < len(self):
            raise IndexError(at)
        backwards = (s for each in reversed(self.pieces) for s in reversed(each) if s in self)
        return next(islice(iter(self) if at >= 0 else backwards, max(at, ~at), None))

    def _evaluated_in(self, piece: range) -> int:
        """Count the steps that an evaluation takes: the first of each so many ids, shifted by 1."""
        if not self.every:
            return 0
        lost = min(_EVALUATED, self.every)

        def below(end: int) -> int:
            rounds, rest = divmod(end, self.every)
            return rounds * lost + min(rest, lost)

        return below(piece.stop + 1) - below(piece.start + 1) if piece else 0


def window_steps(protocol: Protocol, *, resumed_at: int = 0) -> StepWindow:
    """Return the step ids that a protocol scores, in order.

    Left out are the warm-up after (re)start, the capture and write-back of a profiler with the step
    after it, and each evaluation step with the two after it.
    """
    first = max(protocol.first_step, PROFILED_FIRST_STEP if protocol.profiler else 0)
    first += resumed_at
    pieces: tuple[range, ...] = (range(first, protocol.steps),)
    if protocol.profiler:
        start = protocol.skip_first_steps + resumed_at
        # the step behind a write-back printed 10,975 tokens a second where 1,450 was true
        after = max(start + protocol.profiler_steps + 2, first)
        pieces = (range(first, min(start, protocol.steps)), range(after, protocol.steps))
    return StepWindow(pieces=tuple(filter(None, pieces)), every=protocol.eval_interval)


def _too_short(protocol: Protocol, wanted: StepWindow, *, resumed_at: int) -> Reason:
    causes = []
    if protocol.profiler:
        end = protocol.skip_first_steps + protocol.profiler_steps + 1
        causes.append(Reason(Why.PROFILER_TAKES, first=protocol.skip_first_steps, last=end))
    if protocol.eval_interval:
        causes.append(Reason(Why.EVALUATION_TAKES, every=protocol.eval_interval))
    if resumed_at > _FIRST_STEP:
        causes.append(Reason(Why.RESUMED_AT, step=resumed_at))
    counts = {"steps": len(wanted), "of": protocol.steps, "needed": protocol.min_steps}
    if not causes:
        return Reason(Why.TOO_SHORT, **counts)
    return Reason(Why.TOO_SHORT_FOR, why=causes, **counts)


def _one_rank(steps: Sequence[StepRecord]) -> list[StepRecord]:
    """Return one record per step id, of the last start and one rank, by step; [] without steps.

    Rank 0 if its label is there, else the lowest. Where unlabelled ranks print the same step the
    slowest counts: the step is over when its last rank is.
    """
    if not steps:
        return []
    ids = [r.step for r in steps]
    if len({(r.start, r.label) for r in steps}) == 1 and all(map(operator.lt, ids, ids[1:])):
        return [*steps]  # as a log has them
    start = max(r.start for r in steps)
    label = min({r.label for r in steps if r.start == start}, key=_rank_order)
    chosen: dict[int, StepRecord] = {}
    for record in steps:
        if record.start == start and record.label == label:
            other = chosen.get(record.step)
            if other is None or _slowness(record) > _slowness(other):
                chosen[record.step] = record
    return [chosen[step] for step in sorted(chosen)]


def _rank_order(label: str) -> tuple[bool, int, str]:
    rank = whole(label)
    return (rank is None, rank or 0, label)


def _slowness(record: StepRecord) -> tuple[float, float, float]:
    """Order two records of one step without regard to the order they came in."""
    return (
        record.step_s if _is_measure(record.step_s) else -math.inf,
        -record.tgs if _is_measure(record.tgs) else -math.inf,
        -math.inf if record.loss is None else record.loss,
    )


def _is_measure(value: float | None) -> TypeGuard[float]:
    return value is not None and 0 < value < math.inf


def _products(records: Iterable[StepRecord]) -> list[tuple[float, float]]:
    """Return (TGS x seconds, seconds) of the records that have both."""
    # the rule of `_is_measure`, written out: a call for each figure of 100,000 steps took longer
    return [
        (tgs * step_s, step_s)
        for tgs, step_s in ((r.tgs, r.step_s) for r in records)
        if tgs is not None and step_s is not None and 0 < tgs < math.inf and 0 < step_s < math.inf
    ]


def _tokens(products: Sequence[tuple[float, float]], declared: float | None) -> float | None:
    """Return the tokens of a step: as the log's own two figures say, else as declared."""
    return median([product for product, _ in products]) if products else declared


def _timed(records: Iterable[StepRecord], tokens: float) -> list[_Timed]:
    """Return (step, seconds); from TGS where printed: it has more digits than the seconds."""
    timed = []
    for record in records:
        tgs = record.tgs
        if tgs is not None and 0 < tgs < math.inf:
            timed.append((record.step, tokens / tgs))
        elif _is_measure(record.step_s):
            timed.append((record.step, record.step_s))
    return timed


def _violates(products: Iterable[tuple[float, float]], tokens: float) -> bool:
    """Whether TGS x seconds of any step differs from `tokens` by more than rounding explains."""
    return any(
        abs(product / tokens - 1) > INVARIANT_TOLERANCE + PRINTED_RESOLUTION_S / step_s
        for product, step_s in products
    )


def _guarded(timed: list[_Timed], protocol: Protocol) -> list[_Timed]:
    """Skip first steps that are still slower than the end of the job."""
    tail = [math.log(s) for _, s in timed[-GUARD_TAIL:]]
    level = median(tail)
    limit = level + max(GUARD_MADS * median(abs(x - level) for x in tail), LEAST_OUTLIER)
    at = 0
    last_skipped = timed[0][0] + GUARD_STEPS
    while (
        len(timed) - at > protocol.min_steps
        and timed[at][0] < last_skipped
        and math.log(timed[at][1]) > limit
    ):
        at += 1
    return timed[at:]


def _screened(timed: Sequence[_Timed], logs: Sequence[float]) -> tuple[set[int], int, float]:
    """Return the step ids to drop, how many of them were slow, and the limit used.

    Two-sided. A slow step takes the fast one that pays it back along, even where that one alone
    would pass: half the limit is enough to betray it. `logs` are those of the seconds.
    """
    ordered = sorted(logs)  # the distances from its middle are two runs, which merge in no time
    level = median(ordered)
    limit = max(OUTLIER_MADS * median([abs(x - level) for x in ordered]), LEAST_OUTLIER)
    dropped: set[int] = set()
    stragglers = 0
    slow_at = -1
    half = limit / 2
    for at, x in [(at, x) for at, x in enumerate(logs) if abs(x - level) > half]:
        step = timed[at][0]
        if x - level > limit:
            stragglers += 1
            slow_at = step
            dropped.add(step)
        elif level - x > limit or (step == slow_at + 1 and level - x > half):
            dropped.add(step)
    return dropped, stragglers, limit


def _is_unsteady(logs: Sequence[float]) -> bool:
    """Whether the medians of the window's halves differ by more than their scatter explains."""
    half = len(logs) // 2
    parts = (sorted(logs[:half]), sorted(logs[-half:]))
    levels = [median(part) for part in parts]
    scatter = 1.4826 * median(
        [abs(x - level) for part, level in zip(parts, levels, strict=True) for x in part]
    )
    limit = max(LEAST_UNSTEADY, UNSTEADY_ERRORS * scatter * math.sqrt(2 / half))
    return abs(levels[0] - levels[1]) > limit
