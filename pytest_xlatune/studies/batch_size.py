"""Find the fastest batch size and the largest that fits: a search, then fresh blocks.

An arm is a cell: the sweep's own with another value of one key, most often `per_device_batch_size`,
or of two keys. A size that does not fit in memory is an answer. The stages are, in order:

    compiled   If a compile check is asked for, the ceiling is searched by compiling sizes. It costs
               no job.
    probe      Sizes run once: larger ones while they fit, then some between the largest that ran
               and the smallest that did not fit, then neighbours of the best.
    block      The leading sizes run side by side, in random order.

The first run of a size only chooses the sizes to run again; blocks decide. This module must not
know of executors or logs.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import Message, say
from pytest_xlatune.model.record import Real
from pytest_xlatune.model.resources import Next, RetryRule
from pytest_xlatune.model.result import (
    CellsRecord,
    Comparison,
    Conclusion,
    Score,
    TrialResult,
    TrialStatus,
    Verdict,
    VerdictKind,
    relative,
)
from pytest_xlatune.model.sentences import ITS_FIRST_RUN, WITH_DETAIL
from pytest_xlatune.model.trial import Arm, CompiledMemory, Trial
from pytest_xlatune.stats.blocks import BlockFit, BlockScore, fit_blocks
from pytest_xlatune.stats.compare import (
    EQUIVALENCE,
    NoComparison,
    compare,
    is_within,
    standard_error,
)
from pytest_xlatune.stats.design import MIN_DF, bonferroni
from pytest_xlatune.stats.quantiles import t_quantile
from pytest_xlatune.stats.validity import different_loss
from pytest_xlatune.studies import Aim, Asked, History, Policy, Traits, name_of
from pytest_xlatune.studies.cell_arms import (
    CellArms,
    CellProgress,
    DeclaredCells,
    decided,
    dropped,
    undecided,
)
from pytest_xlatune.studies.trials import usable
from pytest_xlatune.studies.verdicts import (
    NOT_FINITE,
    as_screened,
    lost_runs,
    relative_to,
    score_flags,
    verdict_with_figures,
    verdict_without_figures,
    with_change,
    with_figures,
)

KIND = "batch"
BEST_FILE = "batch.best"  # file in the work directory; its one line is the setting
PER_DEVICE, TARGET_LENGTH = "per_device_batch_size", "max_target_length"
COMPILED, PROBE, BLOCK = "compiled", "probe", "block"

_MOST_CELLS = 256  # a study has at most so many values, or combinations of values
_REACH = 4  # default for the largest size of a search, as a multiple of the start
# the name of an environment variable:  XLA_PYTHON_CLIENT_MEM_FRACTION
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")
_SHORT: Mapping[str, str] = {PER_DEVICE: "pdbs", TARGET_LENGTH: "length"}

UP, DOWN = 1.5, 1.6  # factor to the next size while every size fits, and while none does
# The place of the next size between the largest that ran (0) and the smallest that did not fit (1),
# on a log scale. At one half, more jobs would run out of memory, and those show no speed.
GAP = 1 / 3
BRACKET = 1.12  # if the ratio of these two sizes is no larger, the ceiling is known well enough
ASIDE = 1.35  # factor from the best size down to the next, if no smaller size has run
NEAR = 1.15  # the best size needs neighbours on both sides within this ratio
# so many sizes on both sides of the best are tried, if they are within this ratio of it
STEPS_NEAR, STEPS_RATIO = 2, 1.25
START = 0.75  # first size, as a fraction of the ceiling by compiled memory
ALMOST = 1.05  # within this ratio of the compiled ceiling, the ceiling itself is tried

ALPHA = 0.05  # error rate of the blocks, over all comparisons
# A size runs in blocks if its first run is behind the best one by less than the larger of two
# limits: standard deviations, and a log ratio.
CUT_SIGMAS, CUT_AT = 3.0, 0.01
_MOST_LEADERS = 4  # at most so many sizes run in blocks
BLOCKS_RUN = 4  # number of blocks
_LEAST_BLOCKS = 2  # if the budget allows fewer blocks, none is run
_SIGMA = 0.006  # noise of a score that is assumed if none was measured
_BEST = say("the best")
_NEAR = say("it is too near to the ceiling to be relied on")

_WORSE = (VerdictKind.SLOWER, VerdictKind.SCREENED)  # kinds of sizes that are behind the best

_SAME_FAILURE = 3  # if so many first runs fail in one way, the configuration is at fault
# failures for want of memory: on the device, on its host, or outside of the memory pool
_UNFIT = frozenset(
    {
        *(FailureClass.OOM_GPU, FailureClass.OOM_RCCL_HEADROOM, FailureClass.OOM_HOST),
        *(FailureClass.HANG_SILENT_OOM, FailureClass.KILLED),
    }
)


class BatchRecord(CellsRecord, frozen=True, kw_only=True):
    """What a search for a batch size recommends, and where the ceiling is.

    Attributes:
        key: the key whose values are compared.
        arm, value: id and value of the recommended cell; "" if there is none. With a second key,
            the value includes that: `8 remat_policy=full`.
        same: the values that are not shown to be slower than the best, and the best itself; () if
            there is no best.
        largest, unfit: the largest value that ran, the smallest that did not fit; "" if unknown.
    """

    kind: ClassVar[str] = KIND
    key: str = PER_DEVICE
    arm: str = ""
    value: str = ""
    same: tuple[str, ...] = ()
    largest: str = ""
    unfit: str = ""


class BatchSize(DeclaredCells, frozen=True, kw_only=True):
    """What a sweep file declares: `Sweep(study=BatchSize(start=8))`.

    Attributes:
        key: key whose values are compared: `per_device_batch_size`, `max_target_length`, another
            key of the trainer, or an environment variable, e.g. `XLA_PYTHON_CLIENT_MEM_FRACTION`.
        sizes: the values to try. Numbers are tried from the smallest upwards until one does not
            fit; other values, e.g. remat policies, are all tried. () searches instead.
        start: first size of the search; None takes the size of the sweep, or else that of the
            trainer's configuration.
        step: all sizes of a search are multiples of it.
        smallest, largest: bounds of the search; None means one step for the smallest, and four
            times the start for the largest.
        sigma: standard deviation of a score between jobs, from a calibration (0.006 is 0.6 %). None
            if unknown; then at least the best two sizes run in blocks.
        by: a second key; each of its values is combined with each of `sizes`. "" if there is none.
        by_values: the values of the second key; () if there is none.
    """

    kind: ClassVar[str] = KIND
    positive: ClassVar[tuple[str, ...]] = ("start", "step", "smallest", "largest", "sigma")
    key: str = PER_DEVICE
    sizes: tuple[float | str, ...] = ()
    start: Real | None = None
    step: Real = 1.0
    smallest: Real | None = None
    largest: Real | None = None
    sigma: Real | None = None
    by: str = ""
    by_values: tuple[float | str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for size in self.sizes:
            if not isinstance(size, str) and not 0 < size < math.inf:
                raise ConfigError(f"batch size: a size is {size}, expected a positive number")
        if bool(self.by) is not bool(self.by_values) or (self.by and not self.sizes):
            raise ConfigError("batch size: a second key is by=, by_values= and sizes= together")
        for name, values in ((self.key, self.sizes), (self.by, self.by_values)):
            texts = _texts(values)
            if values and not 1 < len(texts) == len(set(map(_slug, texts))):
                raise ConfigError(
                    f"batch size: {name} has the values {', '.join(texts)}, expected two or more, "
                    "each once, and different in letters or digits"
                )
            if name == "XLA_FLAGS" or name.endswith("_parallelism"):
                raise ConfigError(
                    f"batch size: {name} cannot differ between sizes; tune flags by profiles, and "
                    "give each parallelism a study of its own"
                )
        if self.by == self.key:
            raise ConfigError(f"batch size: key and by are both {self.by}; name another key in by")

    @property
    def names_arms(self) -> bool:
        """Whether the values are known before anything runs, so that each can have a test."""
        return bool(self.sizes)

    @property
    def grows(self) -> bool:
        """Whether memory use grows with the values."""
        return not any(isinstance(size, str) for size in self.sizes)

    def study(self, asked: Asked) -> BatchStudy:
        """Return the study of a sweep.

        Raises:
            ConfigError: no size to start from is known, or there are too many sizes.
        """
        if asked.profiles:
            raise ConfigError(
                f"a batch size study compares values of {self.key}, and the sweep has profiles "
                f"({asked.profiles[0].id}); tune them in a sweep of their own"
            )
        texts, start = self._values(asked)
        second_texts = _texts(self.by_values)
        if not 1 < len(texts) * max(len(second_texts), 1) <= _MOST_CELLS:
            raise ConfigError(
                f"batch size: there are {len(texts)} sizes or more, expected 2 to {_MOST_CELLS} in "
                "all; change step=, smallest= or largest=, or leave values out"
            )
        second_cells = [_variant(asked.cell, self.by, text) for text in second_texts]
        return BatchStudy(
            cells=tuple(
                _variant(cell, self.key, text)
                for cell in second_cells or [asked.cell]
                for text in texts
            ),
            values=texts,
            by_values=second_texts,
            start=start,
            asked=self,
            budget=asked.budget,
            seed=asked.seed,
            loss_tolerance=asked.loss_tolerance,
            # a compile check needs a key of the program, whose memory grows with the value
            asks_compiler=asked.asks_compiler and self.grows and not _VARIABLE.fullmatch(self.key),
        )

    def _values(self, asked: Asked) -> tuple[tuple[str, ...], int]:
        """Return all values that may be tried, numbers ascending, and the index of the first."""
        if self.sizes:
            return _texts(sorted(self.sizes) if self.grows else self.sizes), 0
        start = self.start or _configured_value(asked, self.key)
        if start is None:
            raise ConfigError(
                f"a batch size study needs to know where to begin: neither the sweep nor the "
                f"trainer's configuration has {self.key}; give it by --xlatune-pdbs, "
                "BatchSize(start=...) or sizes="
            )
        smallest = self.smallest or self.step
        largest = self.largest or max(_REACH * start, smallest)
        first = math.ceil(smallest / self.step - 1e-9)
        last = min(math.floor(largest / self.step + 1e-9), first + _MOST_CELLS)
        sizes = [self.step * number for number in range(first, last + 1)]
        nearest = min(range(len(sizes)), key=lambda at: abs(sizes[at] - start), default=0)
        return _texts(sizes), nearest


def _texts(values: Sequence[float | str]) -> tuple[str, ...]:
    return tuple(value if isinstance(value, str) else f"{value:.12g}" for value in values)


def _slug(text: str) -> str:
    """Return a key or a value as part of an arm's id, of at most 40 characters."""
    return re.sub(r"[^a-z0-9.+]+", "-", text.lower()).strip("-.+")[:40] or "none"


def _configured_value(asked: Asked, key: str) -> float | None:
    """Return the value of a key in the sweep, or else in the trainer's configuration.

    None if neither has it, or it is no number.
    """
    cell = asked.cell
    value: object = getattr(cell, key) if key in _SHORT else cell.overrides.get(key)
    if value is None:
        value = asked.configured.get(key, "")
    try:
        return float(str(value))
    except ValueError:
        return None


def _variant(cell: Cell, key: str, text: str) -> Cell:
    if key in _SHORT:
        if not text.isdecimal():
            raise ConfigError(f"batch size: {key} is {text}, expected whole numbers")
        if key == PER_DEVICE:
            return replace(cell, per_device_batch_size=float(text))
        return replace(cell, max_target_length=int(text))
    if _VARIABLE.fullmatch(key):
        return replace(cell, deployed={**cell.deployed, key: text})
    return replace(cell, overrides={**cell.overrides, key: text})


# --- the search ---


@dataclass(frozen=True, kw_only=True)
class _Lane:
    """The sizes that are combined with one value of the second key; all sizes without such a key.

    A size is given by the index of its cell; sizes ascend with the index. No larger size is tried
    after one that did not fit. Each lane has its own ceiling, from compiled memory and from runs.
    The class has no `__slots__`, because derived values are cached.

    Attributes:
        sizes: the size of every cell of the study.
        tried: indices of all cells that have run once.
        places: the indices of the lane.
        scores: index in the lane -> log score of its first run.
        unfit: indices in the lane of sizes that did not fit.
        memory: index in the lane -> its compiled memory.
    """

    sizes: Sequence[float]
    tried: Collection[int]
    places: range
    scores: Mapping[int, float]
    unfit: Collection[int]
    memory: Mapping[int, CompiledMemory]

    @cached_property
    def compiled(self) -> tuple[int, int]:
        """The largest index that fits by compiled memory, and the smallest that does not."""
        fits = [at for at, memory in self.memory.items() if memory.fits]
        too_large = [at for at, memory in self.memory.items() if memory.fits is False]
        return max(fits, default=self.places.start - 1), min(too_large, default=self.places.stop)

    @property
    def next_compiled(self) -> int | None:
        """The index to compile next; None once the ceiling is known, or cannot be known."""
        low, high = self.compiled
        if high - low <= 1 or any(memory.fits is None for memory in self.memory.values()):
            return None
        return (low + high) // 2

    @property
    def is_compiled(self) -> bool:
        """Whether compiled memory shows that some size does not fit."""
        return self.compiled[1] < self.places.stop

    @property
    def top(self) -> int:
        """The largest index that may be tried."""
        return self.compiled[0] if self.is_compiled else self.places.stop - 1

    @cached_property
    def end(self) -> int:
        """The smallest index that is known or predicted not to fit; no size from it on is tried.

        If a job did not fit although its compiled memory does, compiled memory is not all that a
        job needs. Then `end` is the index after the largest size that ran.
        """
        end = min((*self.unfit, self.top + 1))
        ran = [at for at in self.scores if at < end]
        return max(ran) + 1 if self.unfit and self.is_compiled and ran else end

    def nearest_untried(
        self, target: float, after: int = -1, before: int = _MOST_CELLS
    ) -> int | None:
        """Return the untried index whose size is nearest to `target`; None if there is none.

        Only indices between `after` and `before` are considered, without these two.
        """
        within = range(max(after + 1, self.places.start), min(before, self.end))
        untried = (at for at in within if at not in self.tried)
        distances = {at: abs(math.log(self.sizes[at] / target)) for at in untried}
        return min(distances, key=lambda at: (distances[at], at), default=None)

    def next_searched(self, start: float) -> int | None:
        """Return the index to try next, from `start` on; None once the best is known."""
        if not (self.scores or self.unfit):
            if self.is_compiled and self.top in self.places:
                target = START * self.sizes[self.top]
                fitting = self.sizes[self.places.start : self.top + 1]
                start = min(fitting, key=lambda size: abs(size - target))
            return self.nearest_untried(start)
        for target, after, before in (*self._towards_ceiling(), *self._around_best()):
            at = self.nearest_untried(target, after, before)
            if at is not None:
                return at
        return None

    def _ratio(self, low: int, high: int) -> float:
        return self.sizes[high] / self.sizes[low]

    def _towards_ceiling(self) -> Iterator[tuple[float, int, int]]:
        """Yield the next targets until the ceiling is known: a size, and the indices around it."""
        sizes = self.sizes
        if not self.scores:
            yield sizes[self.end] / DOWN, -1, self.end
            return
        low = max(self.scores)
        if self.unfit:
            ratio = self._ratio(low, min(self.unfit))
            if ratio > BRACKET:
                yield sizes[low] * ratio**GAP, low, self.end
        elif low < self.top:
            target = sizes[low] * UP
            # the ceiling itself is tried if it is near, else at most the middle
            if self.is_compiled and self._ratio(low, self.top) > ALMOST:
                target = min(target, math.sqrt(sizes[low] * sizes[self.top]))
            yield target, low, self.end

    def _around_best(self) -> Iterator[tuple[float, int, int]]:
        """Yield the next targets beside the best size: a size, and the indices around it."""
        if not self.scores:
            return
        best = max(self.scores, key=lambda at: (self.scores[at], -at))
        size = self.sizes[best]
        smaller = max((at for at in self.scores if at < best), default=None)
        larger = min((at for at in self.scores if at > best), default=None)
        if smaller is None:
            yield size / ASIDE, -1, best
        elif self._ratio(smaller, best) > NEAR:
            yield math.sqrt(self.sizes[smaller] * size), smaller, best
        if larger is not None and self._ratio(best, larger) > NEAR:
            yield math.sqrt(size * self.sizes[larger]), best, larger
        # Odd sizes are often slower, so the optimum may lie beyond the next size. The next size on
        # both sides is tried in any case, others only if they are near.
        for step in range(1, STEPS_NEAR + 1):
            for at in (best - step, best + step):
                if at not in self.places:
                    continue
                ratio = self._ratio(min(at, best), max(at, best))
                if step == 1 or ratio <= STEPS_RATIO:
                    yield self.sizes[at], at - 1, at + 1


def is_unfit(result: TrialResult) -> bool:
    """Return whether a run shows that its value does not fit."""
    lacks_memory = any(finding.cls in _UNFIT for finding in result.findings)
    return result.status is TrialStatus.DROPPED and lacks_memory


def _cause_of(result: TrialResult) -> str | Message | None:
    """Return the failure class of a run without a score, else the reason why it has none."""
    findings = (*result.actionable, *reversed(result.findings))
    return next((finding.cls for finding in findings), result.reason)


class _BatchProgress(CellProgress["BatchStudy"]):
    """The progress of a search, and what it shows of the values, which are given by index.

    Every run of a value counts, also if a search with a smaller budget planned it: a larger budget
    continues a search.

    Attributes:
        jobs: the runs, without compiled ones.
        by_place: index -> its runs.
        probes: index -> its last run outside blocks that is over.
        scores: index -> log score of that run.
        hung: indices of sizes that hung in their only run although a smaller size ran; they run
            once more.
        unfit_probes: indices that did not fit outside blocks, and larger ones that ran.
        unfit: the same, with runs in blocks.
        lost: index -> its last run, if that has no score and neither hung nor lacked memory.
        memory: index -> its compiled memory.
        blocks: the trials of each block so far.
        leaders: indices that should run in blocks; () if one size leads by far.
        compared: the leaders that the budget can compare in blocks.
        most_blocks: how many blocks the budget allows.
        fit: least squares over the blocks; None if no block has two scores.
        lead: index of the largest block mean, else of the fastest first run; None if none ran.
        noise: standard deviation of a job's score, from the blocks or else as declared; None if
            unknown.
    """

    def __init__(self, study: BatchStudy, history: History) -> None:
        super().__init__(study, history)
        results = sorted(
            self.results.values(), key=lambda run: (run.trial.block, run.trial.position)
        )
        self.jobs = [run for run in results if run.trial.stage != COMPILED]
        self.by_place = {
            at: [run for run in self.jobs if run.trial.arm == name]
            for at, name in enumerate(study.ids)
        }
        self.probes = {
            at: run
            for at, runs in self.by_place.items()
            for run in runs
            if not run.trial.block and run.status.is_final
        }
        self.scores = {at: score.value for at, run in self.probes.items() if (score := usable(run))}
        self.hung = {at for at in self.probes if self._has_hung(at)}
        failed = {at for at, run in self.probes.items() if is_unfit(run)} - self.hung
        self.unfit_probes = self._with_larger(failed)
        failed_in_blocks = {
            study.ids.index(run.trial.arm) for run in self.jobs if run.trial.block and is_unfit(run)
        }
        self.unfit = self._with_larger(failed | failed_in_blocks)
        known = {*self.scores, *self.unfit, *self.hung}
        self.lost = {at: run for at, run in self.probes.items() if at not in known}
        self.memory = {
            study.ids.index(result.trial.arm): result.memory
            for result in results
            if result.status.is_final and result.memory is not None
        }
        self.blocks: list[tuple[Trial, ...]] = []
        self.leaders: Sequence[int] = ()
        self.compared: Sequence[int] = ()
        self.most_blocks = 0
        self.fit: BlockFit | None = None
        self.lead: int | None = None
        self.noise = study.asked.sigma

    def run_stages(self) -> None:
        """Compile sizes, run sizes once, then run the leading ones in blocks."""
        to_compile = (lane.next_compiled for lane in self.lanes if self.study.asks_compiler)
        for trial in (self._trial(to_compile, COMPILED), self.next_probe):
            if trial is not None:
                usual_probes = len(self.study.cells) if self.study.asked.names_arms else 5
                likely = max(usual_probes - len(self.probes) - 1, 0) + 2 * BLOCKS_RUN
                allowed = self.study.budget - len(self.jobs) - 1  # this trial is left out too
                self.stage_results([trial], later=max(min(likely, allowed), 0))
        self.leaders = self._leaders()
        remaining = self.study.budget - sum(not run.trial.block for run in self.jobs)
        for width in range(2, len(self.leaders) + 1):
            blocks = min(remaining // width, BLOCKS_RUN)
            if blocks >= _LEAST_BLOCKS:
                self.compared, self.most_blocks = self.leaders[:width], blocks
        places = [*self.compared]
        # A size that failed in a block enters no later block, and one size alone compares nothing.
        while len(self.blocks) < self.most_blocks and len(places) > 1:
            arms = (self.study.all_arms[at] for at in places)
            trials = self.study.block(BLOCK, len(self.blocks) + 1, arms)
            self.blocks.append(trials)
            blocks = self.most_blocks - len(self.blocks)
            results = self.stage_results(trials, later=blocks * len(self.compared))
            unfit = {result.trial.arm for result in results if is_unfit(result)}
            places = [at for at in places if self.study.ids[at] not in unfit]

    def _smaller(self, at: int, among: Iterable[int]) -> list[int]:
        """Return those of the indices that are smaller sizes in the lane of `at`."""
        first = at - at % len(self.study.values)
        return [other for other in among if first <= other < at]

    def _with_larger(self, unfit: set[int]) -> set[int]:
        """Return the sizes that did not fit, and those that ran although a smaller one did not fit.

        Near the ceiling a run may fit by chance, so a larger size that ran once is not relied on.
        """
        if not self.study.asked.grows:
            return unfit
        return unfit | {at for at in self.scores if self._smaller(at, unfit)}

    def _has_hung(self, at: int) -> bool:
        """Return whether a size hung in its only run although a smaller one ran."""
        run = self.probes[at]
        is_hang = _cause_of(run) == FailureClass.HANG_SILENT_OOM and run.trial.position == 0
        return is_hang and is_unfit(run) and bool(self._smaller(at, self.scores))

    @cached_property
    def lanes(self) -> tuple[_Lane, ...]:
        """The sizes for each value of the second key; a single lane without a second key."""
        study, count = self.study, len(self.study.values)
        # a size that failed only in a block is below the ceiling of the search
        unfit = self.unfit - self.scores.keys() if study.asked.grows else set[int]()
        lanes = []
        for first in range(0, len(study.cells), count):
            places = range(first, first + count)
            lanes.append(
                _Lane(
                    sizes=study.numbers,
                    places=places,
                    tried=self.probes.keys(),
                    scores={at: self.scores[at] for at in places if at in self.scores},
                    unfit=unfit.intersection(places),
                    memory={at: self.memory[at] for at in places if at in self.memory},
                )
            )
        return tuple(lanes)

    def _trial(self, places: Iterable[int | None], stage: str, position: int = 0) -> Trial | None:
        """Return the trial of the first index that is not None; None if there is none."""
        at = next((at for at in places if at is not None), None)
        if at is None or self.stopped:
            return None
        return self.study.trial_of(self.study.all_arms[at], stage, position=position)

    @cached_property
    def next_useful(self) -> Trial | None:
        """The next useful run outside blocks, whatever the budget; None if there is none."""
        if self.hung:
            return self._trial([min(self.hung)], PROBE, position=1)
        start, is_listed = self.study.numbers[self.study.start], self.study.asked.names_arms
        places = (
            # listed sizes are tried upwards
            lane.nearest_untried(start) if is_listed else lane.next_searched(start)
            for lane in reversed(self.lanes)
        )
        return self._trial(places, PROBE)

    @cached_property
    def next_probe(self) -> Trial | None:
        """The next run outside blocks within the budget; None if the search is over."""
        trial, block_jobs = self.next_useful, 2 * _LEAST_BLOCKS
        if trial is None or trial.id in self.results:  # it costs no further job
            return trial
        # Once two sizes have a score, jobs for two blocks of them are reserved.
        is_reserved = len(self.scores) > 1 and self.study.budget >= 2 * block_jobs
        remaining = self.study.budget - len(self.jobs) - (block_jobs if is_reserved else 0)
        return trial if remaining > 0 else None

    @cached_property
    def stopped(self) -> Message | None:
        """Why no size is tried any more: all fail in one way; None as long as that is not shown."""
        causes = Counter[str | Message | None](map(_cause_of, self.lost.values()))
        if self.scores or not causes:
            return None
        ((common, count),) = causes.most_common(1)
        if count < _SAME_FAILURE:
            return None
        text = (
            "the first {sizes} sizes all ended in {cause}: the configuration is wrong, not the size"
        )
        return say(text, sizes=count, cause=common)

    @cached_property
    def another_loss(self) -> Mapping[int, Message]:
        """Index -> why its value is not ranked: it changes the computation.

        Losses are compared only between cells with the same batch size and sequence length, because
        both change the loss.
        """
        references: dict[tuple[float | None, int | None], Score] = {}
        reasons = {}
        for at in sorted(self.scores):
            cell, score = self.study.cells[at], self.probes[at].score
            if score is None or score.loss is None:
                continue
            shape = (cell.per_device_batch_size, cell.max_target_length)
            reference = references.setdefault(shape, score)
            difference = different_loss(
                score.loss,
                reference.loss or 0.0,
                tolerance=self.study.loss_tolerance,
                first=reference.first_loss,
            )
            if difference is not None:
                text = "{why}: it computes something else, and is not ranked"
                reasons[at] = say(text, why=difference)
        return reasons

    def _fastest(self, excluded: Collection[int]) -> list[int]:
        """Return the indices with a score by speed, without excluded ones and other losses."""
        ran = [at for at in self.scores if at not in excluded and at not in self.another_loss]
        return sorted(ran, key=lambda at: (-self.scores[at], at))

    @cached_property
    def ranked(self) -> Sequence[int]:
        """The indices that may be recommended, the fastest first run first."""
        return self._fastest(self.unfit)

    def _leaders(self) -> Sequence[int]:
        """Return the indices that should run in blocks, by first runs; () if one leads by far.

        The best of single runs alone loses more than 1 % of TGS in 28 % of simulated curves. If a
        leader fails in a block, no other takes its place.
        """
        ranked, sigma = self._fastest(self.unfit_probes), self.study.asked.sigma
        if not ranked:
            return ()
        cut = self.scores[ranked[0]] - max(CUT_SIGMAS * (sigma or _SIGMA), CUT_AT)
        near = sum(self.scores[at] >= cut for at in ranked)
        # without a declared sigma only blocks show the noise, so at least two sizes enter
        least = 1 if sigma else 2
        leaders = ranked[: min(max(near, least), _MOST_LEADERS)]
        return leaders if len(leaders) > 1 else ()

    def _fitted(self) -> tuple[BlockFit | None, int | None]:
        """Return the least squares of the blocks against their largest mean, and that size's index.

        Without two sizes that have a score in blocks, the fit is None, and the index is that of the
        fastest first run, or None.
        """
        ids = self.study.ids
        places = {arm: at for at, arm in enumerate(ids) if at not in self.unfit}
        trials = {trial.id for block in self.blocks for trial in block}
        scores = [
            # a block whose nodes were changed counts as two, because scores differ between nodes
            BlockScore(block=(run.trial.block, run.epoch), arm=run.trial.arm, value=score.value)
            for run in self.jobs
            if run.trial.id in trials and run.trial.arm in places and (score := usable(run))
        ]
        ran = {score.arm for score in scores}
        control = next((ids[at] for at in self.compared if ids[at] in ran), "")
        fit = fit_blocks(scores, control=control)
        if fit is None:
            return None, next(iter(self.ranked), None)
        estimates = {control: 0.0, **{arm: effect.estimate for arm, effect in fit.arms.items()}}
        lead = max(estimates, key=estimates.__getitem__)
        if lead != control:
            fit = fit_blocks(scores, control=lead)
        return fit, places[lead]

    def conclusion(self) -> Conclusion:
        self.fit, self.lead = self._fitted()
        if self.fit is not None and math.isfinite(self.fit.sigma):
            self.noise = self.fit.sigma
        study, labels = self.study, self.study.labels
        lead = self.lead if self.is_over else None
        tried = sorted({*self.probes, *self.unfit})
        places = range(len(study.cells)) if study.asked.names_arms else tried
        verdicts = {at: self._verdict(at) for at in places}
        same = []
        if lead is not None:
            others = (at for at in self.ranked if at != lead)
            near = [at for at in others if verdicts[at].kind not in _WORSE]
            same = [labels[at] for at in sorted([lead, *near])]
            verdicts[lead] = self._verdict_on_best(verdicts[lead], is_far=not near)
        best = None if lead is None else verdicts[lead]
        arm, value = ("", "") if lead is None else (study.ids[lead], labels[lead])
        largest, unfit, ceiling = self._ceiling()
        answer = self._answer(value, best) if self.is_over else self._first_answer()
        alike = [label for label in same if label != value]
        also = say("not distinguishable from it: {values}", values=alike) if alike else None
        is_missing = self.is_over and best is None
        record = BatchRecord(
            sigma=self.noise,
            key=study.asked.key,
            arm=arm,
            value=value,
            same=tuple(same),
            largest=largest,
            unfit=unfit,
            summary=tuple(filter(None, (answer, also, ceiling))),
            objection=(answer,) if is_missing and answer else (),
            files={BEST_FILE: f"{study.asked.key}={value}\n"} if value else {},
        )
        lines = [
            relative_to(verdict, best) if verdict.against == _BEST else verdict
            for verdict in verdicts.values()
        ]
        # the best first, then the values that ran, by speed
        lines.sort(key=lambda verdict: (verdict.arm != arm, not verdict.n, -(verdict.delta or 0.0)))
        notes = self._notes() if self.is_over else ()
        return self.concluded(lines, record, alpha=ALPHA if self.blocks else 0.0, notes=notes)

    def _ceiling(self) -> tuple[str, str, Message | None]:
        """Return the largest value that ran, the smallest that did not fit, and a line on both.

        They are "", "" and None if the study has no ceiling, or it is unknown.
        """
        values = self.study.values
        if len(self.lanes) > 1 or not self.study.asked.grows:
            return "", "", None
        end = min(self.unfit, default=len(values))
        ran = max((at for at in self.scores if at < end), default=-1)
        largest = values[ran] if ran >= 0 else ""
        unfit = values[end] if end < len(values) else ""
        text = "ceiling: {ran} ran, and no larger one may be tried"
        if unfit:
            text = "ceiling: {ran} ran, {unfit} did not fit"
        is_known = unfit or ran >= self.lanes[0].top >= 0
        ceiling = say(text, ran=largest or "none", unfit=unfit) if is_known else None
        return largest, unfit, ceiling

    def _first_answer(self) -> Message | None:
        """Return which size leads by single runs, while blocks run; None before that."""
        if not self.compared:
            return None
        best, *others = (self.study.labels[at] for at in self.compared)
        text = "first answer, by single runs: {key}={best}; blocks with {others} decide"
        return say(text, key=self.study.asked.key, best=best, others=others)

    def _answer(self, value: str, best: Verdict | None) -> Message:
        key = self.study.asked.key
        if best is not None:
            speed = say(" with {tgs:.1f} TGS", tgs=best.tgs) if best.tgs is not None else None
            return say("recommended: {key}={value}{speed}", key=key, value=value, speed=speed)
        why = self.stopped or say("none was measured")
        if not self.stopped and not self.scores and self.unfit:
            why = say("none fits")
        elif all(lane.top < lane.places.start for lane in self.lanes):
            why = say("none fits, says compiled memory")
        return say("no value of {key} is recommended: {why}", key=key, why=why)

    def _verdict(self, at: int) -> Verdict:
        runs, arm = self.by_place[at], self.study.ids[at]
        if at in self.unfit:
            return dropped(verdict_without_figures(arm, runs), *self._why_unfit(at))
        base = replace(verdict_with_figures(arm, runs), against=_BEST)
        if at not in self.probes:
            return self._verdict_not_run(base, at) if self.is_over else base
        if at in self.lost:
            why = self.lost[at].reason or NOT_FINITE
            is_dropped = self.lost[at].status is TrialStatus.DROPPED
            return dropped(base, why) if is_dropped else decided(base, VerdictKind.INVALID, why)
        if at not in self.scores:
            return as_screened(base, say("it stood still; it is run again"))
        in_blocks = lost_runs([run for run in runs if run.trial.block])
        base = replace(base, reasons=score_flags(runs), lost=in_blocks)
        if at in self.another_loss:
            return undecided(replace(base, against=None), self.another_loss[at])
        if self.is_over:
            return self._verdict_by_speed(base, at)
        if at != self.ranked[0]:
            base = with_change(base, self.scores[at] - self.scores[self.ranked[0]])
        return as_screened(base, say("so far"))

    def _verdict_by_speed(self, base: Verdict, at: int) -> Verdict:
        """Return the verdict on a size that ran; that on the best only gets its figures."""
        fit, is_best = self.fit, at == self.lead
        if fit is None or at not in self.compared or not (is_best or base.arm in fit.arms):
            base = replace(base, method=say(ITS_FIRST_RUN))
            return base if is_best else self._verdict_by_first_run(base, at)
        runs = [run for run in self.by_place[at] if run.trial.block and usable(run)]
        how = say("{blocks:+block}, Bonferroni", blocks=fit.n_blocks)
        base = replace(with_figures(base, runs), job_ids=base.job_ids, n=len(runs), method=how)
        if is_best:
            return base
        pair, family = self._comparison(at), len(self.compared) - 1
        if isinstance(pair, NoComparison):  # the block mean is known, its error is not
            return undecided(with_change(base, fit.arms[base.arm].estimate), pair.reason)
        base = replace(with_change(base, pair.estimate, pair.ci95), mde80=relative(pair.mde80))
        if pair.estimate + bonferroni(family, pair.df, alpha=ALPHA) * standard_error(pair) < 0:
            return decided(base, VerdictKind.SLOWER)
        if not is_within(pair, margin=EQUIVALENCE):
            return undecided(base)
        why = say("a difference of {difference:size} is excluded", difference=EQUIVALENCE)
        return decided(base, VerdictKind.EQUIVALENT, why)

    def _verdict_by_first_run(self, base: Verdict, at: int) -> Verdict:
        """Return the verdict on a size that no block compares with the best."""
        fit, sigma, noise = self.fit, self.study.asked.sigma, self.noise
        gap = self.scores[at] - self.scores[self.lead or 0]  # the lead is never None here
        base, sigmas = with_change(base, gap), CUT_SIGMAS
        if sigma is None and noise is not None and fit is not None and fit.df < MIN_DF:
            # The noise is known from few blocks only, so a wider limit is needed: on a busy
            # machine, 47 % of first runs seem worse than blocks of the same program.
            df = fit.df if math.isfinite(fit.sigma) else math.inf
            sigmas = max(sigmas, t_quantile(0.975, df) * math.sqrt(2))
        # the largest gap that noise alone may cause
        by_chance = max(sigmas * (sigma or noise or _SIGMA), CUT_AT)
        if gap < -by_chance:
            should_be_compared = at in (self.leaders if fit is None else self.compared)
            if should_be_compared:
                return undecided(base, say("no block compares the two"))
            return decided(base, VerdictKind.SCREENED)
        text = "within {cut:size} or three standard deviations of it"
        return undecided(base, say(text, cut=CUT_AT))

    def _comparison(self, at: int) -> Comparison | NoComparison:
        arm, family = self.study.ids[at], len(self.compared) - 1
        return compare(self.fit, arm, family=family, alpha=ALPHA)

    def _verdict_on_best(self, base: Verdict, *, is_far: bool) -> Verdict:
        """Return the verdict on the best: FASTER if blocks show every other value to be slower.

        Then its change is relative to the next best in the blocks. `is_far` is true if no other
        value may be as fast.
        """
        pairs = {at: self._comparison(at) for at in self.compared if at != self.lead}
        comparisons = {at: pair for at, pair in pairs.items() if isinstance(pair, Comparison)}
        is_in_blocks = self.fit is not None and self.lead in self.compared
        if is_in_blocks and is_far and comparisons:
            next_best = max(comparisons, key=lambda at: comparisons[at].estimate)
            comparison = comparisons[next_best]
            low, high = comparison.ci95
            base = with_change(base, -comparison.estimate, (-high, -low))
            label = self.study.labels[next_best]
            base = replace(base, against=say("the next, {value}", value=label))
            return decided(base, VerdictKind.FASTER, _BEST)
        base = replace(base, against=None)
        if is_in_blocks:
            return undecided(base, _BEST)
        text = "the best of single runs; the budget left no block to decide"
        if is_far:
            text = "the best: it leads by more than three standard deviations, so it needs no block"
        return decided(base, VerdictKind.SCREENED, say(text))

    def _why_unfit(self, at: int) -> Iterator[Message]:
        runs = self.by_place[at]
        unfit_runs = [run for run in runs if is_unfit(run)]
        if not unfit_runs:
            smaller = self.study.labels[min(self._smaller(at, self.unfit))]
            yield say("it ran, but {smaller} did not fit: {near}", smaller=smaller, near=_NEAR)
            return
        finding = [finding for finding in unfit_runs[-1].findings if finding.cls in _UNFIT][-1]
        why = say("{meaning}", meaning=FailureClass(finding.cls).meaning)
        yield say(WITH_DETAIL, why=why, detail=finding.detail) if finding.detail else why
        if any(map(usable, runs)):
            yield say("it failed once and ran at other times: {near}", near=_NEAR)

    def _verdict_not_run(self, base: Verdict, at: int) -> Verdict:
        study, sizes = self.study, self.study.numbers
        lane = next(lane for lane in self.lanes if at in lane.places)
        why = self.stopped or say("the budget of {budget} jobs left no job", budget=study.budget)
        if at > lane.top:
            limit = sizes[lane.top] if lane.top in lane.places else 0.0
            why = say("compiled memory says that no size above {limit:g} fits", limit=limit)
        if study.asked.grows and (smaller := self._smaller(at, self.unfit)):
            why = say("larger than {unfit}, which did not fit", unfit=study.labels[min(smaller)])
        return decided(base, VerdictKind.SCREENED, say("not run: {why}", why=why))

    def _notes(self) -> Iterator[Message]:
        unknown = next((memory.said for memory in self.memory.values() if memory.fits is None), "")
        if unknown:
            yield say("no compiled memory, so jobs looked for the ceiling: {why}", why=unknown)
        if self.stopped:
            yield say("stopped: {why}", why=self.stopped)
        if self.next_useful is not None:
            text = "the budget of {budget} jobs ended the search: a larger one may find better"
            yield say(text, budget=self.study.budget)


# --- the study ---


class BatchStudy(CellArms, frozen=True, kw_only=True, dict=True):
    """A search for a batch size.

    Attributes:
        cells: a cell for each value that may be tried; with a second key, all sizes for its first
            value, then all for the next.
        values: the values of the key as text; numbers ascend.
        start: the index of the first value that is tried.
        asks_compiler: whether sizes are compiled before any is run.
        by_values: values of the second key as text; () if there is none.
    """

    progress_class = _BatchProgress
    traits: ClassVar[Traits] = Traits(aim=Aim.RANKS)
    cells: tuple[Cell, ...]
    values: tuple[str, ...]
    start: int = 0
    asked: BatchSize = BatchSize()
    budget: int = 30
    seed: int = 0
    loss_tolerance: Real = 0.02
    asks_compiler: bool = False
    by_values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        what = "batch size: a first run of two sizes takes 2 jobs"
        self.refuse_budget(what, least=2, most=30)

    @cached_property
    def name(self) -> str:
        """The kind of study and a digest: studies of different keys have different names."""
        keys = list(filter(None, (self.asked.key, self.asked.by)))
        return name_of(KIND) if keys == [PER_DEVICE] else name_of(KIND, *keys)

    @property
    def policy(self) -> Policy:
        """What the study demands: a size that does not fit is an answer, and is not tried again."""
        return Policy(
            compiled_stage=COMPILED if self.asks_compiler else "",
            rules={
                FailureClass.OOM_HOST: RetryRule(retries=0, then=Next.DROP),
                # The kernel kills a process that lacks memory, but a person may kill one too. If
                # the second run is killed as well, lack of memory is assumed.
                FailureClass.KILLED: RetryRule(retries=1, then=Next.DROP),
            },
        )

    @cached_property
    def numbers(self) -> tuple[float, ...]:
        """The size of each cell; if the values are not numbers, their places from 1."""
        places = range(1, len(self.values) + 1)
        sizes = tuple(map(float, self.values if self.asked.grows else places))
        return sizes * (len(self.cells) // len(sizes))

    @cached_property
    def ids(self) -> Sequence[str]:
        """The id of each cell: `pdbs-8`, `pdbs-8-remat-policy-full`."""
        head, second = (_SHORT.get(key) or _slug(key) for key in (self.asked.key, self.asked.by))
        ends = [f"-{second}-{_slug(text)}" for text in self.by_values] or [""]
        return [f"{head}-{_slug(text)}{end}" for end in ends for text in self.values]

    @cached_property
    def labels(self) -> Sequence[str]:
        """The name of each cell in a sentence: `8`, `8 remat_policy=full`."""
        ends = [f" {self.asked.by}={text}" for text in self.by_values] or [""]
        return [value + end for end in ends for value in self.values]

    def compared(self, history: History) -> tuple[Arm, ...]:
        """Return the listed values, or those that the search has tried so far."""
        if self.asked.names_arms:
            return self.all_arms
        tried = {run.trial.arm for run in self.progress(history).jobs}
        return tuple(arm for arm in self.all_arms if arm.id in tried)

    @property
    def outline(self) -> tuple[Message, ...]:
        """The lines of a plan about the study."""
        search = (
            "{key} from {start}, between {least} and {most}: about 5 to 8 jobs, one for each size"
        )
        if self.asked.names_arms:
            search = "{cells} cells of {key}, each once, upwards until one does not fit"
        blocks = "then {blocks} blocks of four sizes at most decide: at most {budget} jobs in all"
        compiled = ["first a compiler says which sizes fit: it costs no job"]
        texts = (*(compiled if self.asks_compiler else []), search, blocks)
        ends = {"least": self.values[0], "most": self.values[-1], "start": self.values[self.start]}
        counts = {"cells": len(self.cells), "blocks": BLOCKS_RUN, "budget": self.budget}
        keys = " and ".join(filter(None, (self.asked.key, self.asked.by)))
        return tuple(say(text, key=keys, **ends, **counts) for text in texts)

    def best(self, conclusion: Conclusion) -> str:
        """Return the id of the recommended size; "" if there is none."""
        return conclusion.found(BatchRecord).arm
