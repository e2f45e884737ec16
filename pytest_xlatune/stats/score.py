"""Turn the steps of one job into its score: the logarithm of tokens over time in steady state.

If the protocol scores another figure, its logarithm in the declared window is the score.

The job is the experimental unit: steps give one number and support no other claim. This module must
not know of profiles, of other jobs or of logs.

The printed seconds of a step are the host's time between two dispatches. Their sum is exact, but a
pause makes its own step slow and the next one impossibly fast. So a mean of rates may be wrong by
any amount, and tokens over time is right. Windows are given by step id and are the same for all
jobs of a comparison.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, islice
from statistics import median
from typing import TypeGuard, cast, overload

from msgspec.structs import replace

from pytest_xlatune.model.cell import Protocol
from pytest_xlatune.model.message import Message, MessageCode, coded, say
from pytest_xlatune.model.metric import (
    TGS,
    Figure,
    Logged,
    Metric,
    NoScore,
    Score,
    StepRecord,
    Steps,
)
from pytest_xlatune.model.record import Pairs, split_pairs
from pytest_xlatune.model.sentences import NO_STEP
from pytest_xlatune.model.text import to_integer

PROFILED_FIRST_STEP = 9  # first scored step of a run with a profiler, after its warm-up
LEAST_OUTLIER = 0.01  # no step within 1 % of the median is dropped
# A step farther from the median than so many median absolute deviations is dropped. If outliers
# stayed, a score would have four times the noise where 3 % of the steps straggle.
OUTLIER_MADS = 4 * 1.4826
# Slow first steps of the window are skipped if they are slower than the last steps by so many
# median absolute deviations.
GUARD_MADS = 4.0
# At most so many first steps are skipped. If each job chose its own start freely, that would bias
# the score, and a late straggler would determine the start: by MSER and by change points, scores of
# simulated jobs of 15 steps are 0.3 % to 4.7 % off.
GUARD_STEPS = 4
GUARD_TAIL = 6  # number of last steps with which the first ones are compared
# Halves of a window that differ by no more than this, as a log ratio, are steady. The limit raises
# a false alarm in 0.4 % of simulated jobs, and finds 79 % of those with four steps of warm-up.
LEAST_UNSTEADY = 0.015
# 2.5 standard errors of the difference of two medians of n/2 values each
UNSTEADY_ERRORS = 2.5 * 1.2533
INVARIANT_TOLERANCE = 0.005  # TGS x seconds may differ so much from the tokens of a step
PRINTED_RESOLUTION_S = 0.0005  # seconds are printed with three decimals

# if there are more values than `_MANY`, a sample of `_SAMPLE` narrows down the median first
_MANY, _SAMPLE = 1 << 12, 1 << 9
NO_TOKENS = say(
    "no step of the window tells Tokens/s/device, and the tokens of a step are not declared: set "
    "per_device_batch_size and max_target_length of the cell; xlatune steps takes --tokens"
)
# A log that begins after this step is of a resumed run: MaxText counts steps from 0, torchtitan and
# Megatron-LM from 1.
_FIRST_STEP = 1
_FLAGS_OF_LOG = ("invariant-violated", "resumed")  # flags that cannot be derived from timings

_Figures = Sequence[float | None]  # one value for each step


def score(
    steps: Sequence[StepRecord],
    *,
    protocol: Protocol,
    tokens_per_device_step: float | None,
    logged: Logged | None = None,
) -> Score | NoScore:
    """Return the score of a job, or the reason why it has none.

    Args:
        steps: records in any order, possibly with repeats, other ranks and earlier starts.
        protocol: the cell's protocol: window, profiler, evaluation, least number of steps.
        tokens_per_device_step: TGS x seconds of a step, for a log without both; None if unknown.
        logged: the figure of the protocol's metric, if it is not in step records.
    """
    if not steps and protocol.needs_window:
        return NoScore(reason=coded(MessageCode.NO_TURNS, NO_STEP))
    records = Steps.of(steps)
    # MaxText 0.1 exits with 0 even if the loss is NaN
    if not all(math.isfinite(loss) for loss in records.loss if loss is not None):
        losses = zip(records.step, records.loss, strict=True)
        bad = min(step for step, loss in losses if loss is not None and not math.isfinite(loss))
        return NoScore(reason=say("the loss is not finite from step {step} on", step=bad))
    records = _one_rank(records)
    if protocol.scored_by is not TGS:
        return _score_figure(records, logged or Logged(), protocol.scored_by)
    first, last = records.step[0], records.step[-1]
    window = window_steps(protocol, resumed_at=first)
    if len(window) < protocol.min_steps:
        return NoScore(reason=_too_short(protocol, window, resumed_at=first))
    plain_steps = records.chosen(kind == "step" for kind in records.kind)
    inside = plain_steps.chosen(window.has(plain_steps.step))
    products, step_s = _products(inside)
    tokens = _tokens(products, tokens_per_device_step)
    uses_rates = tokens is None and any(map(_is_measure, inside.tgs))
    if uses_rates:  # no step prints its seconds; a mean of rates needs no tokens
        plain_steps = plain_steps.chosen(map(_is_measure, plain_steps.tgs))
        tokens = 1.0
    if tokens is None and inside:
        return NoScore(reason=NO_TOKENS)
    tokens = tokens or 0.0  # 0 only if the window has no step, so that it is not used
    ids, seconds = _timed(plain_steps, tokens) if inside else ((), ())
    job_score = _scored(ids, seconds, tokens, window, protocol, last_step=last)
    if isinstance(job_score, NoScore):
        return job_score
    if uses_rates:
        job_score = replace(job_score, step_s=None, timings=())
    flags = {
        "invariant-violated": _violates(products, step_s, tokens_per_device_step or tokens),
        "resumed": first > _FIRST_STEP,
    }
    loss = [printed for printed in records.loss if printed is not None]
    return replace(
        job_score,
        loss=loss[-1] if loss else None,
        first_loss=loss[0] if loss else None,
        tflops=_at_rate(job_score.tgs, plain_steps.tflops, plain_steps.tgs),
        mfu=_at_rate(job_score.tgs, plain_steps.mfu, plain_steps.tgs),
        flags=(*job_score.flags, *(name for name, is_set in flags.items() if is_set)),
    )


def timed_steps(
    steps: Sequence[StepRecord], *, tokens_per_device_step: float | None
) -> tuple[StepRecord, ...]:
    """Return one record for each step of the last start, from one rank, with exact seconds.

    The seconds come from TGS, which has more digits: a step of 12 ms is printed as 0.012 seconds.
    They are None if neither is printed, and only right up to a factor if the tokens are unknown.
    """
    records = _one_rank(Steps.of(steps))
    tokens = tokens_per_device_step or _tokens(_products(records)[0], None) or 1.0
    ids, seconds = _timed(records, tokens)
    exact = dict(zip(ids, seconds, strict=True))
    return tuple(record._replace(step_s=exact.get(record.step)) for record in records)


def _at_rate(tgs: float | None, figures: _Figures, rates: _Figures) -> float | None:
    """Return the figure that corresponds to a rate of `tgs`; None if no step prints it."""
    ratios = [*map(operator.truediv, *_measured(figures, rates))]
    return tgs * _median(ratios) if ratios and tgs else None


def _score_figure(steps: Steps, logged: Logged, metric: Metric) -> Score | NoScore:
    """Score the figure that a log prints beside its steps."""
    if logged.problem:
        return NoScore(reason=logged.problem)
    if logged.value is None:
        return NoScore(reason=say("no line prints `# Avg bus bandwidth : NUMBER`"))
    if not _is_measure(logged.value):
        return NoScore(
            reason=say(
                "{figure} is {value:g}: only a positive, finite figure has a score",
                figure=metric.title,
                value=logged.value,
            )
        )
    losses = [loss for loss in steps.loss if loss is not None]
    return Score(
        value=math.log(logged.value),
        n_steps=1,
        window=(0, 0),
        loss=losses[-1] if losses else None,
        figure=Figure(metric=metric, value=logged.value),
    )


def rescore(scored: Score, *, protocol: Protocol) -> Score | NoScore:
    """Return the score of the same job in the window of another protocol, from its timings.

    What only the log shows stays as it was: loss, violated invariants, resumption.
    """
    if not scored.timings or scored.tgs is None or scored.step_s is None:
        return NoScore(reason=say("the seconds of its steps were not kept: it has one window only"))
    first = scored.timings[0][0]
    resumed_at = first if "resumed" in scored.flags or first == _FIRST_STEP else 0
    window = window_steps(protocol, resumed_at=resumed_at)
    if len(window) < protocol.min_steps:
        return NoScore(reason=_too_short(protocol, window, resumed_at=resumed_at))
    tokens = scored.tgs * scored.step_s
    last_step = scored.timings[-1][0]
    ids, seconds = split_pairs(scored.timings)
    moved = _scored(ids, seconds, tokens, window, protocol, last_step=last_step)
    if isinstance(moved, NoScore):
        return moved
    log_flags = (name for name in _FLAGS_OF_LOG if name in scored.flags)
    return replace(
        moved,
        loss=scored.loss,
        flags=(*moved.flags, *log_flags),
        first_loss=scored.first_loss,
        tflops=scored.tflops and moved.tgs and scored.tflops / scored.tgs * moved.tgs,
        mfu=scored.mfu and moved.tgs and scored.mfu / scored.tgs * moved.tgs,
        memory_gb=scored.memory_gb,
    )


def _scored(
    ids: Sequence[int],
    seconds: Sequence[float],
    tokens: float,
    window: StepWindow,
    protocol: Protocol,
    *,
    last_step: int,
) -> Score | NoScore:
    """Score the steps in the window, given the seconds and ids of all steps of the job."""
    timings = Pairs(ids, seconds)
    inside = window.has(ids)
    if not all(inside):
        ids, seconds = [*compress(ids, inside)], [*compress(seconds, inside)]
    if len(ids) < protocol.min_steps:
        return NoScore(
            reason=say(
                "{steps:+usable step} in the window {first}-{last}, {needed} needed (last step "
                "seen: {seen})",
                steps=len(ids),
                needed=protocol.min_steps,
                seen=last_step,
                first=window[0],
                last=window[-1],
            )
        )
    logs = [*map(math.log, seconds)]
    skipped = _slow_first_steps(ids, logs, protocol)
    dropped, stragglers = _screened(ids[skipped:], logs[skipped:])
    kept_s = seconds[skipped:]
    if dropped:
        kept_s = [s for step, s in zip(ids[skipped:], kept_s, strict=True) if step not in dropped]
    if len(kept_s) < protocol.min_steps:
        return NoScore(
            reason=say(
                "{steps:+usable step} left after {outliers:+outlier} in the window "
                "{first}-{last}, {needed} needed; run more steps",
                needed=protocol.min_steps,
                steps=len(kept_s),
                outliers=len(dropped),
                first=ids[skipped],
                last=ids[-1],
            )
        )
    total_s = math.fsum(kept_s)
    # on a loaded machine, tokens over time of five runs vary by 0.8 %, means of rates by 6.2 %
    tgs = tokens * len(kept_s) / total_s
    flags = {
        "not-steady": _is_unsteady(logs),
        "stragglers": stragglers > 0,
        "incomplete": ids[-1] < window[-1],
    }
    return Score(
        value=math.log(tgs),
        tgs=tgs,
        step_s=total_s / len(kept_s),
        n_steps=len(kept_s),
        window=(ids[skipped], ids[-1]),
        dropped=tuple(sorted(dropped)),
        stragglers=stragglers,
        window_tgs=tokens * len(ids) / math.fsum(seconds),
        flags=tuple(name for name, is_set in flags.items() if is_set),
        timings=timings,
    )


# An evaluation takes so many steps: its own and the two after it, which look absurdly fast (122,578
# tokens a second instead of 5,400).
_EVALUATED = 3


@dataclass(frozen=True, slots=True)
class StepWindow(Sequence[int]):
    """The step ids that a protocol scores, in order; none of them is stored.

    Attributes:
        pieces: ascending ranges that remain without warm-up and profiler.
        every: an evaluation follows each step whose id + 1 is a multiple of it; 0 means never.
    """

    pieces: tuple[range, ...]
    every: int = 0

    def __contains__(self, step: object) -> bool:
        return (
            isinstance(step, int)
            and any(step in piece for piece in self.pieces)
            and (not self.every or (step + 1) % self.every >= min(_EVALUATED, self.every))
        )

    def has(self, steps: Sequence[int]) -> list[bool]:
        """Return for each step whether it is in the window; this is faster than `in` for each."""
        inside = [False] * len(steps)
        for piece in self.pieces:
            first, end = piece.start, piece.stop
            inside = [is_in or first <= at < end for is_in, at in zip(inside, steps, strict=True)]
        if self.every:
            every, least = self.every, min(_EVALUATED, self.every)
            inside = [
                is_in and (at + 1) % every >= least for is_in, at in zip(inside, steps, strict=True)
            ]
        return inside

    def __iter__(self) -> Iterator[int]:
        return (step for piece in self.pieces for step in piece if step in self)

    def __len__(self) -> int:
        return sum(len(piece) - self._evaluated_in(piece) for piece in self.pieces)

    @overload
    def __getitem__(self, at: int) -> int: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[int]: ...

    def __getitem__(self, at: int | slice) -> int | Sequence[int]:
        if isinstance(at, slice):
            return tuple(self)[at]
        if not -len(self) <= at < len(self):
            raise IndexError(at)
        backwards = (s for piece in reversed(self.pieces) for s in reversed(piece) if s in self)
        return next(islice(iter(self) if at >= 0 else backwards, max(at, ~at), None))

    def _evaluated_in(self, piece: range) -> int:
        """Return how many ids in a piece an evaluation takes: three of each `every`."""
        if not self.every:
            return 0
        lost = min(_EVALUATED, self.every)

        def lost_before(end: int) -> int:
            periods, remainder = divmod(end, self.every)
            return periods * lost + min(remainder, lost)

        return lost_before(piece.stop + 1) - lost_before(piece.start + 1) if piece else 0


def window_steps(protocol: Protocol, *, resumed_at: int = 0) -> StepWindow:
    """Return the step ids that a protocol scores, in order.

    These are all but the warm-up after a start or restart, the steps of the profiler, those in
    which it writes and the next one, and each evaluation step with the two after it.
    """
    first = max(protocol.first_step, PROFILED_FIRST_STEP if protocol.profiler else 0)
    first += resumed_at
    pieces: tuple[range, ...] = (range(first, protocol.steps),)
    if protocol.profiler:
        start = protocol.skip_first_steps + resumed_at
        # the step after the profiler has written looks fast: 10,975 tokens a second, not 1,450
        after = max(start + protocol.profiler_steps + 2, first)
        pieces = (range(first, min(start, protocol.steps)), range(after, protocol.steps))
    return StepWindow(pieces=tuple(filter(None, pieces)), every=protocol.eval_interval)


def _too_short(protocol: Protocol, window: StepWindow, *, resumed_at: int) -> Message:
    causes = []
    if protocol.profiler:
        end = protocol.skip_first_steps + protocol.profiler_steps + 1
        causes.append(
            say(
                "the profiler takes steps {first}-{last}", first=protocol.skip_first_steps, last=end
            )
        )
    if protocol.eval_interval:
        causes.append(
            say(
                "an evaluation every {every} steps takes three steps each",
                every=protocol.eval_interval,
            )
        )
    if resumed_at > _FIRST_STEP:
        causes.append(say("the run resumed at step {step}", step=resumed_at))
    counts = {"steps": len(window), "of": protocol.steps, "needed": protocol.min_steps}
    if not causes:
        return say("{steps:+usable step} in {of}, {needed} needed; run more steps", **counts)
    return say(
        "{steps:+usable step} in {of}, {needed} needed: {why}; run more steps", why=causes, **counts
    )


def _one_rank(steps: Steps) -> Steps:
    """Return one record for each step id, of the last start and one rank, by step.

    The rank is 0 if it is labelled, else the lowest. If several unlabelled ranks print a step, the
    slowest counts, because a step is over when its last rank is.
    """
    ids = steps.step
    is_one = len({*steps.start}) == len({*steps.label}) == 1
    is_ascending = all(map(operator.lt, ids, ids[1:]))
    if not steps or (is_one and is_ascending):
        return steps
    start = max(steps.start)
    label = min({r.label for r in steps if r.start == start}, key=_rank_order)
    chosen: dict[int, StepRecord] = {}
    for record in steps:
        if record.start == start and record.label == label:
            other = chosen.get(record.step)
            if other is None or _slowness(record) > _slowness(other):
                chosen[record.step] = record
    return Steps.of(chosen[step] for step in sorted(chosen))


def _rank_order(label: str) -> tuple[bool, int, str]:
    """Return a sort key for labels of ranks: numbers in order, then other labels."""
    rank = to_integer(label)
    return (rank is None, rank or 0, label)


def _slowness(record: StepRecord) -> tuple[float, float, float]:
    """Return a sort key for two records of one step that does not depend on their order."""
    return (
        record.step_s if _is_measure(record.step_s) else -math.inf,
        -record.tgs if _is_measure(record.tgs) else -math.inf,
        -math.inf if record.loss is None else record.loss,
    )


def _is_measure(value: float | None) -> TypeGuard[float]:
    return value is not None and 0 < value < math.inf


def _measured(
    first_column: _Figures, second_column: _Figures
) -> tuple[Sequence[float], Sequence[float]]:
    """Return two columns of figures, reduced to the steps that have both."""
    # `_is_measure` is inlined, because 100,000 calls of it are slow
    has_both = [
        one is not None and other is not None and 0 < one < math.inf and 0 < other < math.inf
        for one, other in zip(first_column, second_column, strict=True)
    ]
    reduced = ([*compress(first_column, has_both)], [*compress(second_column, has_both)])
    return cast("tuple[list[float], list[float]]", reduced)


def _products(steps: Steps) -> tuple[Sequence[float], Sequence[float]]:
    """Return TGS x seconds and the seconds of the steps that have both."""
    tgs, step_s = _measured(steps.tgs, steps.step_s)
    return [*map(operator.mul, tgs, step_s)], step_s


def _tokens(products: Sequence[float], declared: float | None) -> float | None:
    """Return the tokens of a step: TGS x seconds of the log, else as declared."""
    return _median(products) if products else declared


def _median(values: Sequence[float]) -> float:
    """Return the median of the values.

    If there are many, they are not all sorted: a sample first shows between which two values the
    median must lie.
    """
    sample = sorted(values[:: len(values) // _SAMPLE]) if len(values) > _MANY else ()
    if not sample:
        return median(values)
    low, high = sample[len(sample) * 9 // 20], sample[len(sample) * 11 // 20]
    near = sorted([value for value in values if low <= value <= high])
    # the places of the one or two middle values among those near the median
    lower = (len(values) - 1) // 2 - len([value for value in values if value < low])
    upper = lower + 1 - len(values) % 2
    if 0 <= lower <= upper < len(near):
        return (near[lower] + near[upper]) / 2
    return median(values)


def _timed(steps: Steps, tokens: float) -> tuple[Sequence[int], Sequence[float]]:
    """Return step ids and their seconds, without steps that print neither seconds nor TGS.

    The seconds come from TGS if it is printed, since it has more digits.
    """
    figures = zip(steps.tgs, steps.step_s, strict=True)
    seconds = [
        tokens / tgs
        if tgs is not None and 0 < tgs < math.inf
        else step_s
        if step_s is not None and 0 < step_s < math.inf
        else None
        for tgs, step_s in figures
    ]
    has_seconds = [exact_s is not None for exact_s in seconds]
    return [*compress(steps.step, has_seconds)], [s for s in seconds if s is not None]


def _violates(products: Sequence[float], step_s: Sequence[float], tokens: float) -> bool:
    """Return whether TGS x seconds of a step differs from `tokens` by more than rounding."""
    return any(
        abs(product / tokens - 1) > INVARIANT_TOLERANCE + PRINTED_RESOLUTION_S / seconds
        for product, seconds in zip(products, step_s, strict=True)
    )


def _slow_first_steps(ids: Sequence[int], logs: Sequence[float], protocol: Protocol) -> int:
    """Return how many first steps are slower than the end of the job; `logs` are of seconds."""
    tail = logs[-GUARD_TAIL:]
    level = median(tail)
    limit = level + max(GUARD_MADS * median(abs(x - level) for x in tail), LEAST_OUTLIER)
    at = 0
    last_skipped = ids[0] + GUARD_STEPS
    while len(ids) - at > protocol.min_steps and ids[at] < last_skipped and logs[at] > limit:
        at += 1
    return at


def _screened(ids: Sequence[int], logs: Sequence[float]) -> tuple[set[int], int]:
    """Return the step ids to drop, and how many of them are slow.

    The limit is two-sided. After a slow step, half the limit is enough to drop a fast step, because
    that one compensates the slow one. `logs` are logarithms of seconds.
    """
    level = _median(logs)
    limit = max(OUTLIER_MADS * _median([abs(x - level) for x in logs]), LEAST_OUTLIER)
    dropped: set[int] = set()
    stragglers = 0
    slow_step = -1
    half = limit / 2
    # only steps beyond half the limit can be dropped, and there are few of these
    far_steps = [(at, x) for at, x in enumerate(logs) if abs(x - level) > half]
    for at, x in far_steps:
        step = ids[at]
        if x - level > limit:
            stragglers += 1
            slow_step = step
            dropped.add(step)
        elif level - x > limit or (step == slow_step + 1 and level - x > half):
            dropped.add(step)
    return dropped, stragglers


def _is_unsteady(logs: Sequence[float]) -> bool:
    """Return whether the medians of the window's halves differ by more than their scatter."""
    half = len(logs) // 2
    first, second = logs[:half], logs[-half:]
    first_level, second_level = _median(first), _median(second)
    distances = [abs(x - first_level) for x in first] + [abs(x - second_level) for x in second]
    scatter = 1.4826 * _median(distances)
    limit = max(LEAST_UNSTEADY, UNSTEADY_ERRORS * scatter * math.sqrt(2 / half))
    return abs(first_level - second_level) > limit
