"""Which batch size is fastest, and how large a one fits: a search, then fresh blocks.

An arm is a cell: the sweep's own with another value of one key, most often
`per_device_batch_size`, or of that and a second key. A size that does not fit is an answer. The
first run of a size only chooses the sizes to run again; fresh runs side by side decide. This module
must not know of executors or logs.
"""

from __future__ import annotations

import dataclasses
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
from pytest_xlatune.model.pairs import CellsRecord
from pytest_xlatune.model.record import Real
from pytest_xlatune.model.resources import Next, RetryRule
from pytest_xlatune.model.result import (
    Comparison,
    Conclusion,
    NotRun,
    TrialResult,
    TrialStatus,
    Verdict,
    VerdictKind,
    relative,
)
from pytest_xlatune.model.sentences import BLOCKS, FEW_DF, ITS_FIRST_RUN, WITH_DETAIL
from pytest_xlatune.model.trial import Arm, CompiledMemory, Trial
from pytest_xlatune.stats.blocks import BlockFit, BlockScore, fit_blocks
from pytest_xlatune.stats.compare import (
    EQUIVALENCE,
    NoComparison,
    compare,
    is_within,
    standard_error,
)
from pytest_xlatune.stats.design import MIN_DF, bonferroni, t_quantile
from pytest_xlatune.stats.validity import different_loss
from pytest_xlatune.studies import Aim, Asked, DeclaredStudy, History, Policy, Traits, name_of
from pytest_xlatune.studies.cell_arms import (
    CellWalk,
    RankedCells,
    decided,
    dropped,
    refuse_unless_positive,
    undecided,
)
from pytest_xlatune.studies.trials import usable
from pytest_xlatune.studies.verdicts import (
    NO_SCORE,
    begun,
    beside,
    changed,
    measured,
    score_flags,
    screened,
    so_far,
)
from pytest_xlatune.studies.vetoes import NOT_FINITE, lost_runs

KIND = "batch"
BEST_FILE = "batch.best"  # in the work directory: the setting, one line
PER_DEVICE, TARGET_LENGTH = "per_device_batch_size", "max_target_length"
PROBE, BLOCK = "probe", "block"
COMPILED = "compiled"  # compiled alone: no job

# what may be tried
_MOST_CELLS = 256
_REACH = 4  # times the start: the largest size of a search that names none
MIN_BLOCKS = 2
# keys that change the computation: their speeds are a finding, and rank nothing
_CHANGES_LOSS = ("quantization", "dtype", "precision", "quantize")
# a variable:  XLA_PYTHON_CLIENT_MEM_FRACTION
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")
_SHORT: Mapping[str, str] = {PER_DEVICE: "pdbs", TARGET_LENGTH: "length"}

# the search
UP, DOWN = 1.5, 1.6  # factors while all sizes fit, while none does
# by halves more of the jobs ran out of memory, and none of those tells a speed
GAP = 1 / 3  # of the way from the largest that ran to the smallest that did not, as ratios
BRACKET = 1.12  # ratio at which the largest that fits is known well enough
ASIDE = 1.35  # from the best down, where no smaller size is known
NEAR = 1.15  # ratio of the neighbours that must be known
STEPS_NEAR, STEPS_RATIO = 2, 1.25  # places beside the best that must be known, up to this ratio
START = 0.75  # of an estimated ceiling
ALMOST = 1.05  # ratio to a compiled ceiling at which that itself is tried
MOST_COMPILED = 12  # sizes

# the blocks
ALPHA = 0.05
CUT_SIGMAS, CUT_AT = 3.0, 0.01  # below the lead, the larger of both: the sizes that run in blocks
_MOST_LEADERS = 4
_SIGMA = 0.006  # where none was measured
_BEST = say("the best")
_NEAR = say("it is too near to the ceiling to be relied on")
_SAME_FAILURE = 3  # runs that end alike before any other: the configuration
# what no other size would mend
_STOPS = frozenset(
    {
        *(FailureClass.UNKNOWN_FLAG, FailureClass.BAD_FLAG_VALUE, FailureClass.FLAGS_FILE_MISSING),
        *(FailureClass.IMAGE_MISSING, FailureClass.JOB_SETUP, FailureClass.NOT_STARTED),
    }
)
# the memory of a device, of its host, or what the pool leaves outside -> how the verdict says it
_UNFIT: Mapping[str, str] = {
    FailureClass.OOM_GPU: "",
    FailureClass.OOM_RCCL_HEADROOM: (
        "memory outside XLA's pool: at this memory fraction RCCL or NCCL gets too little; a "
        "smaller fraction leaves them more"
    ),
    FailureClass.HANG_SILENT_OOM: (
        "it stood still between Memstats and the first step, twice, and a smaller size did not"
    ),
    FailureClass.KILLED: "it was killed twice by SIGKILL, as the kernel does for want of memory",
    FailureClass.OOM_HOST: (
        "the host has too little memory: the kernel, the scheduler or the allocator refused more"
    ),
}


class BatchRecord(CellsRecord, frozen=True, kw_only=True):
    """What a search for a batch size recommends, and where the ceiling is.

    Attributes:
        key: what differed.
        arm, value: the recommended one; "" where there is none. With a second key values are named
            with that, `8 remat_policy=full`.
        same: values that cannot be told from the best, itself among them.
        largest, unfit: the largest that ran, the smallest that did not fit; "" is unknown.
    """

    kind: ClassVar[str] = KIND
    key: str = PER_DEVICE
    arm: str = ""
    value: str = ""
    same: tuple[str, ...] = ()
    largest: str = ""
    unfit: str = ""

    @property
    def setting(self) -> str:
        """The recommended setting, as a launcher takes it; "" where there is none."""
        return f"{self.key}={self.value}" if self.value else ""


class BatchSize(DeclaredStudy, frozen=True, kw_only=True):
    """What a sweep file declares: `Sweep(study=BatchSize(start=8))`.

    Attributes:
        key: what differs between arms: `per_device_batch_size`, `max_target_length`, any key of the
            trainer, or in capitals a variable, e.g. `XLA_PYTHON_CLIENT_MEM_FRACTION`.
        sizes: values to try. Numbers are tried from the smallest up, until one does not fit; of
            other values, e.g. remat policies, each is tried. () searches instead.
        start: where the search begins; None is the sweep's own size, else the configuration's.
        step: between sizes that may be tried.
        smallest, largest: ends of the search; None is one step, and four times the start.
        blocks: complete blocks of the leading sizes.
        sigma: noise of one job's score between jobs, from a calibration (0.006 is 0.6 %); None is
            unknown, and the best two sizes at least are run in blocks.
        peak_tflops: TFLOP/s that one device can do, for MFU; None is as logs print it.
        key_of_study: what tells this study from the last one: runs of another key are not used.
        by: another key each of whose values goes with each of `sizes`; "" is none.
        by_values: its values.
    """

    kind: ClassVar[str] = KIND
    key: str = PER_DEVICE
    sizes: tuple[float | str, ...] = ()
    start: Real | None = None
    step: Real = 1.0
    smallest: Real | None = None
    largest: Real | None = None
    blocks: int = 4
    sigma: Real | None = None
    peak_tflops: Real | None = None
    key_of_study: str = ""
    by: str = ""
    by_values: tuple[float | str, ...] = ()

    def __post_init__(self) -> None:
        if self.blocks < MIN_BLOCKS:
            raise ConfigError(
                f"batch size: {self.blocks} blocks, expected at least {MIN_BLOCKS}; 4 have the "
                "error rates of docs/reference/error_rates.md"
            )
        refuse_unless_positive(
            "batch size",
            start=self.start,
            step=self.step,
            smallest=self.smallest,
            largest=self.largest,
            sigma=self.sigma,
            peak_tflops=self.peak_tflops,
        )
        if any(not isinstance(size, str) and not 0 < size < math.inf for size in self.sizes):
            raise ConfigError(f"batch size: sizes are {self.sizes}, expected positive numbers")
        if bool(self.by) is not bool(self.by_values) or (self.by and not self.sizes):
            raise ConfigError("batch size: a second key is by=, by_values= and sizes= together")
        for name, values in ((self.key, self.sizes), (self.by, self.by_values)):
            texts = _texts(values)
            if len(texts) == 1 or len(set(texts)) < len(texts):
                raise ConfigError(
                    f"batch size: {name} has the values {', '.join(texts)}, expected two or more, "
                    "each once"
                )
            if name == "XLA_FLAGS":
                raise ConfigError("batch size: profiles tune the flags of XLA; name another key")
            if name.endswith("_parallelism"):
                raise ConfigError(
                    f"batch size: {name} is the cell's parallelism, which its sizes share; give "
                    "each parallelism a study of its own"
                )
        if self.by == self.key:
            raise ConfigError(f"batch size: {self.by} is both keys; name another by")

    @property
    def names_arms(self) -> bool:
        """Whether the values are known before anything runs, so that each can have a test."""
        return bool(self.sizes)

    @property
    def grows(self) -> bool:
        """Whether memory grows along the values."""
        return not any(isinstance(size, str) for size in self.sizes)

    def study(self, asked: Asked) -> BatchStudy:
        """Return the study of a sweep.

        Raises:
            ConfigError: nothing says where to begin, or there are too many sizes.
        """
        if asked.profiles:
            raise ConfigError(
                f"a batch size study compares values of {self.key}, and the sweep has profiles "
                f"({asked.profiles[0].id}); tune them in a sweep of their own"
            )
        texts, start = self._listed(asked)
        others = _texts(self.by_values)
        rows = [_variant(asked.cell, self.by, each) for each in others] or [asked.cell]
        if len(texts) * len(rows) > _MOST_CELLS:
            raise ConfigError(
                f"batch size: {len(texts)} sizes with each of {len(rows)} values of "
                f"{self.by}, expected {_MOST_CELLS} cells at most; leave some out"
            )
        return BatchStudy(
            cells=tuple(_variant(row, self.key, text) for row in rows for text in texts),
            values=texts,
            by_values=others,
            start=start,
            asked=self,
            budget=asked.budget,
            seed=asked.seed,
            loss_tolerance=asked.loss_tolerance,
            # a compiler knows the keys of the program, and no variable
            asks_compiler=asked.asks_compiler and self.grows and not _VARIABLE.fullmatch(self.key),
        )

    def _listed(self, asked: Asked) -> tuple[tuple[str, ...], int]:
        """Return all values that may be tried, numbers ascending, and the place of the first."""
        if self.sizes:
            return _texts(sorted(self.sizes) if self.grows else self.sizes), 0
        start = self.start or _own_value(asked, self.key)
        if start is None:
            raise ConfigError(
                f"a batch size study needs to know where to begin: neither the sweep nor the "
                f"trainer's configuration has {self.key}; say it (--xlatune-pdbs, "
                "BatchSize(start=...) or sizes=)"
            )
        smallest = self.smallest or self.step
        if start < smallest:
            raise ConfigError(
                f"batch size: it would begin at {self.key}={start:g}, below the smallest size, "
                f"{smallest:g}; change step= or smallest="
            )
        largest = self.largest or max(_REACH * start, smallest)
        first = math.ceil(smallest / self.step - 1e-9)
        last = math.floor(largest / self.step + 1e-9)
        if not 1 < last - first + 1 <= _MOST_CELLS:
            raise ConfigError(
                f"batch size: from {smallest:g} to {largest:g} in steps of {self.step:g} are "
                f"{max(last - first + 1, 0)} sizes of {self.key}, expected 2 to {_MOST_CELLS}; "
                "change step=, smallest= or largest="
            )
        sizes = [self.step * at for at in range(first, last + 1)]
        at = min(range(len(sizes)), key=lambda each: abs(sizes[each] - start))
        return _texts(sizes), at


def _texts(values: Sequence[float | str]) -> tuple[str, ...]:
    return tuple(value if isinstance(value, str) else f"{value:.12g}" for value in values)


def _own_value(asked: Asked, key: str) -> float | None:
    """Return the value that the cell or the trainer's configuration has of a key."""
    cell = asked.cell
    found: object = getattr(cell, key) if key in _SHORT else cell.overrides.get(key)
    try:
        return float(str(asked.configured.get(key, "") if found is None else found))
    except ValueError:
        return None


def _variant(cell: Cell, key: str, text: str) -> Cell:
    """Return the cell with another value of one key."""
    if key in _SHORT and not text.isdecimal():
        raise ConfigError(f"batch size: {key} is {text}, expected whole numbers")
    if key == PER_DEVICE:
        return replace(cell, per_device_batch_size=float(text))
    if key == TARGET_LENGTH:
        return replace(cell, max_target_length=int(text))
    if _VARIABLE.fullmatch(key):
        return replace(cell, deployed={**cell.deployed, key: text})
    return replace(cell, overrides={**cell.overrides, key: text})


def _short(key: str) -> str:
    return _SHORT.get(key) or _slug(key)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.+]+", "-", text.lower()).strip("-.+")[:40] or "none"


class BatchStudy(RankedCells["BatchWalk"], frozen=True, kw_only=True, dict=True):
    """One search for a batch size.

    Attributes:
        cells: one for each value that may be tried; with a second key, for each of its values in
            turn, one for each size.
        values: of the key, as text; numbers ascend.
        start: the place of the first one that is tried.
        asked: the demands.
        budget: jobs that it may cost.
        seed: of the random orders inside a block.
        loss_tolerance: relative distance of a loss at which two runs compute something else.
        asks_compiler: whether sizes are compiled before any is run.
        by_values: values of the second key; () is no such key.
    """

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
        if len(set(self.ids)) < len(self.ids):
            raise ConfigError(
                f"batch size: two values are both named {Counter(self.ids).most_common(1)[0][0]} "
                "once signs and case are left out; name one of them otherwise"
            )
        if self.budget < MIN_BLOCKS:
            raise ConfigError(
                f"a batch size study has a budget of {self.budget}, expected {MIN_BLOCKS} or more; "
                "--xlatune-budget 30 is enough for most"
            )

    @cached_property
    def name(self) -> str:
        """The study's word, and which study it is: of another key, another name."""
        said = (self.asked.key, self.asked.key_of_study, *filter(None, [self.asked.by]))
        return name_of(KIND, *(said if said != (PER_DEVICE, "") else ()))

    @property
    def policy(self) -> Policy:
        """A size that does not fit is an answer, and is not tried again."""
        return Policy(
            compiled_stage=COMPILED if self.asks_compiler else "",
            rules={
                FailureClass.OOM_HOST: RetryRule(retries=0, then=Next.DROP),
                # by the kernel for want of memory, or by a person: the second time it is memory
                FailureClass.KILLED: RetryRule(retries=1, then=Next.DROP),
            },
        )

    @property
    def changing_key(self) -> str:
        """The key that changes the computation, so that nothing is ranked; "" where none does."""
        keys = (self.asked.key, self.asked.by)
        return next((k for k in keys if any(each in k.lower() for each in _CHANGES_LOSS)), "")

    @cached_property
    def numbers(self) -> tuple[float, ...]:
        """The values as numbers that ascend with memory; of others their places."""
        grows = self.asked.grows
        return tuple(float(v) if grows else at + 1.0 for at, v in enumerate(self.values))

    @cached_property
    def ids(self) -> Sequence[str]:
        """An id for each cell: `pdbs-8`, `pdbs-8-remat-policy-full`."""
        own = [f"{_short(self.asked.key)}-{_slug(text)}" for text in self.values]
        head = _short(self.asked.by)
        return [f"{each}-{head}-{_slug(text)}" for text in self.by_values for each in own] or own

    @cached_property
    def labels(self) -> Sequence[str]:
        """How a sentence names each cell: `8`, `8 remat_policy=full`."""
        key = self.asked.by
        pairs = [f"{value} {key}={text}" for text in self.by_values for value in self.values]
        return pairs or self.values

    def compared(self, history: History) -> tuple[Arm, ...]:
        """Return the values that were listed, or those that a search has tried so far."""
        if self.asked.names_arms:
            return self.every_arm
        tried = {result.trial.arm for result in self.walked(history).runs.values()}
        return tuple(arm for arm in self.every_arm if arm.id in tried)

    @property
    def outline(self) -> tuple[Message, ...]:
        """What a plan says of it."""
        asked = self.asked
        compiled = "first a compiler says which sizes fit: it costs no job"
        if not asked.names_arms:
            search = (
                "{key} from {start}, in steps of {step:g} between {least} and {most}: the ceiling "
                "first, then around the best; about 5 to 8 jobs, then a first answer"
            )
        elif asked.grows:
            search = "{cells} cells of {keys}, each once, upwards until one does not fit"
        else:
            search = "{cells} cells of {keys}, each once"
        blocks = "then {blocks} blocks of four sizes at most decide: at most {budget} jobs in all"
        values = {
            "key": asked.key,
            "keys": [each for each in (asked.key, asked.by) if each],
            "cells": len(self.cells),
            "start": self.values[self.start],
            "step": asked.step,
            "least": self.values[0],
            "most": self.values[-1],
            "blocks": asked.blocks,
            "budget": self.budget,
        }
        texts = ([compiled] if self.asks_compiler else []) + [search, blocks]
        return tuple(say(text, **values) for text in texts)

    def best(self, conclusion: Conclusion) -> str:
        """Return the id of the recommended size; "" where there is none."""
        return conclusion.found(BatchRecord).arm

    def begin(self, history: History) -> BatchWalk:
        """Return the walk before the first size."""
        return BatchWalk(self, history)


@dataclass(frozen=True, kw_only=True)
class Lane:
    """The sizes with one value of the second key; all sizes where there is none.

    Sizes are told by their places in their list, ascending. A larger size is never tried after one
    that did not fit. Each lane has a ceiling of its own, by compiled memory and by runs. Without
    slots: what follows from its fields is kept.

    Attributes:
        sizes: all that may be tried.
        start: the place that is expected to fit.
        is_asked: whether a person said where to begin.
        first: the place of its smallest size among all cells.
        scores: log scores of those that ran.
        unfit: those whose run did not fit.
        lost: those of which no run tells anything.
        memory: what compiling says of its sizes.
        least: the place that is tried even if a compiler says that no size fits; -1 is none.
    """

    sizes: Sequence[float]
    start: int
    is_asked: bool
    first: int
    scores: Mapping[int, float]
    unfit: Collection[int]
    lost: Collection[int]
    memory: Mapping[int, CompiledMemory]
    least: int = -1

    # -- by compiling

    @cached_property
    def needed(self) -> Mapping[int, int]:
        """Bytes of the sizes that compiled."""
        known = self.memory.items()
        return {
            at: e.needed_bytes
            for at, e in known
            if e.fits is not None and e.needed_bytes is not None
        }

    @cached_property
    def too_large(self) -> list[int]:
        """The places that need more than there is, or whose compiling ended for want of memory."""
        return [at for at, memory in self.memory.items() if memory.fits is False]

    @cached_property
    def compiled_top(self) -> int | None:
        """The largest place that fits, -1 is none; None before a larger one is known not to."""
        fit = set(self.needed) - set(self.too_large)
        return max(fit, default=-1) if self.too_large else None

    @property
    def grows(self) -> bool:
        """Whether memory grows along the sizes, as far as two of them tell."""
        least, most = (end(self.needed, default=0) for end in (min, max))
        return len(self.needed) < 2 or self.needed[most] > self.needed[least]  # noqa: PLR2004

    def _by_line(self) -> int | None:
        """Return the largest place below the ceiling, by the two compiled sizes nearest to it."""
        limit = next(
            (e.limit_bytes for e in self.memory.values() if e.limit_bytes is not None), None
        )
        if len(self.needed) < 2 or limit is None:  # noqa: PLR2004
            return None
        nearest = sorted(self.needed, key=lambda at: abs(self.needed[at] - (limit or 0)))
        low, high = sorted(nearest[:2])
        slope = (self.needed[high] - self.needed[low]) / (self.sizes[high] - self.sizes[low])
        if slope <= 0:
            return None
        ceiling = self.sizes[low] + (limit - self.needed[low]) / slope
        return max((at for at, size in enumerate(self.sizes) if size <= ceiling), default=0)

    @property
    def next_compiled(self) -> int | None:
        """The place to compile next; None once the ceiling is known, or cannot be."""
        end = len(self.sizes)
        is_over = any(memory.fits is None for memory in self.memory.values())
        if is_over or not self.grows or len(self.needed) + len(self.too_large) >= MOST_COMPILED:
            return None
        fit = set(self.needed) - set(self.too_large)
        low, high = max(fit, default=-1), min(self.too_large, default=end)
        if high - low <= 1:
            return None
        if not (self.needed or self.too_large):
            return self._nearest(self.sizes[self.start] / 2, end)
        if len(self.needed) == 1 and not self.too_large and low < self.start:
            return self.start
        found = self._by_line()
        if found is None or (found >= high and self.too_large):
            # no line, or one that a size without a figure belies: the middle, or twice as large
            above = self.sizes[high] if self.too_large else 4 * self.sizes[low]
            middle = math.sqrt(self.sizes[max(low, 0)] * above)
            found = self._nearest(middle if low >= 0 else above / DOWN, end)
        # one that is known to fit already is followed by the next, to prove the ceiling
        return min(max(found, low + 1), high - 1)

    def _nearest(self, size: float, end: int) -> int:
        return min(range(end), key=lambda at: (abs(self.sizes[at] - size), at))

    # -- by runs

    @cached_property
    def top(self) -> int:
        """The largest place that may be tried by compiled memory; -1 where none fits."""
        top = self.compiled_top
        return len(self.sizes) - 1 if top is None else max(top, self.least)

    @cached_property
    def end(self) -> int:
        """The smallest place that is known, or said, not to fit; it is not tried.

        A job that did not fit although a compiler said that it would shows that the compiler does
        not see everything: the search came from below, and risks no further size beside it.
        """
        failed = min(self.unfit, default=None)
        ran = [at for at in self.scores if failed is not None and at < failed]
        if failed is None or not ran or self.compiled_top is None:
            return min((*self.unfit, self.top + 1))
        return min(failed, max(ran) + 1)

    def free(self, target: float, after: int, before: int) -> int | None:
        """Return the untried place strictly between two whose size is nearest to a target."""
        known = {*self.scores, *self.unfit, *self.lost}
        places = [at for at in range(max(after + 1, 0), min(before, self.end)) if at not in known]
        nearest = sorted(places, key=lambda at: (abs(math.log(self.sizes[at] / target)), at))
        return next(iter(nearest), None)

    def ratio(self, low: int, high: int) -> float:
        """Return how many times as large one is as the other."""
        return self.sizes[high] / self.sizes[low]

    @property
    def in_order(self) -> int | None:
        """The smallest untried place below what does not fit: every size of a short list."""
        return self.free(self.sizes[0], -1, self.end)

    @property
    def searched(self) -> int | None:
        """The place to try next; None where the best is known well enough."""
        if self.scores or self.unfit:
            found = self._bracket()
            return self._refine() if found is None else found
        at = min(self.start, self.top)
        if self.compiled_top is not None and not self.is_asked:
            # below the compiled ceiling where no size was asked for
            at = self._nearest(START * self.sizes[self.top], self.top + 1)
        return self.free(self.sizes[min(at, self.top)], -1, self.end)

    def _bracket(self) -> int | None:
        end, sizes = self.end, self.sizes
        if not self.scores:
            return self.free(sizes[end] / DOWN, -1, end) if end < len(sizes) else None
        low = max(self.scores)
        if not self.unfit:
            # the largest that may be tried is tried where it is not far
            wanted = sizes[low] * UP
            is_near = low >= self.top or self.ratio(low, self.top) <= ALMOST
            if self.compiled_top is not None and not is_near:
                # by halves: what fails then is near to what ran
                wanted = min(wanted, math.sqrt(sizes[low] * sizes[self.top]))
            return self.free(wanted, low, end)
        if self.ratio(low, min(self.unfit)) <= BRACKET:
            return None
        # nearer to what ran: a job that does not fit tells nothing of the speed
        wanted = sizes[low] * self.ratio(low, min(self.unfit)) ** GAP
        return self.free(wanted, low, end)

    def _refine(self) -> int | None:
        if not self.scores:
            return None
        best = max(self.scores, key=lambda at: (self.scores[at], -at))
        size = self.sizes[best]
        left = max((at for at in self.scores if at < best), default=None)
        right = min((at for at in self.scores if at > best), default=None)
        tries: list[tuple[float, int, int]] = []
        if left is None:
            tries.append((size / ASIDE, -1, best))
        elif self.ratio(left, best) > NEAR:
            tries.append((math.sqrt(self.sizes[left] * size), left, best))
        if right is not None and self.ratio(best, right) > NEAR:
            tries.append((math.sqrt(size * self.sizes[right]), best, right))
        # odd sizes dip: a step beside the best may be on the other side of that
        for step in range(1, STEPS_NEAR + 1):
            for at in (best - step, best + step):
                if not 0 <= at < len(self.sizes):
                    continue
                if step == 1 or self.ratio(min(at, best), max(at, best)) <= STEPS_RATIO:
                    tries.append((self.sizes[at], at - 1, at + 1))
        found = (self.free(*attempt) for attempt in tries)
        return next((each for each in found if each is not None), None)


def is_unfit(result: TrialResult) -> bool:
    """Whether a run shows that its value does not fit."""
    is_refused = result.not_run is NotRun.CANNOT
    is_told = is_refused or any(finding.cls in _UNFIT for finding in result.findings)
    return result.status is TrialStatus.DROPPED and is_told


def cause_of(result: TrialResult) -> str:
    """Return the class that a run without a score ended in; "" where nothing was diagnosed."""
    return next((finding.cls for finding in (*result.asking, *reversed(result.findings))), "")


class BatchWalk(CellWalk[BatchStudy]):
    """One search as far as it came, and what it shows of the values, by their places in the list.

    What has run is taken as it is, whichever search asked for it: a larger budget goes on from it.
    """

    def __init__(self, study: BatchStudy, history: History) -> None:
        super().__init__(study, history)
        every = self.results.items()
        self.runs = {name: result for name, result in every if result.trial.stage != COMPILED}
        self.blocks: list[tuple[Trial, ...]] = []  # those that were begun

    def walk(self) -> None:
        """Compile sizes, search by single runs, then compare the leaders in blocks."""
        for asked in (self.next_compiled, self.next_probe):
            if asked is not None:
                self.run([asked], later=self._left_of_search - 1)
        places, blocks = [*self.compared], self.affordable[1]
        # what did not fit in a block is in no later one; one alone is compared with nothing
        while len(self.blocks) < blocks and len(places) > 1:
            arms = (self.study.every_arm[at] for at in places)
            trials = self.study.block(BLOCK, len(self.blocks) + 1, arms)
            self.blocks.append(trials)
            later = (blocks - len(self.blocks)) * len(self.compared)
            gone = {
                result.trial.arm for result in self.run(trials, later=later) if is_unfit(result)
            }
            places = [at for at in places if self.study.ids[at] not in gone]

    @property
    def _left_of_search(self) -> int:
        """How many trials are likely still to come while it searches, the blocks included."""
        wanted = 1 + 2 * self.study.asked.blocks
        if self.study.asked.names_arms:
            left = (at for lane in self.lanes for at in range(lane.first, lane.first + lane.end))
            wanted += sum(at not in self.probes for at in left) - 1
        else:
            wanted += max(5 - len(self.probes), 0)
        begun_runs = self.next_probe is not None and self.next_probe.id in self.runs
        return max(min(wanted, self.study.budget - len(self.runs) + begun_runs), 1)

    # -- what ran, by places

    @cached_property
    def place_of(self) -> Mapping[str, int]:
        """Arm -> its place among all cells."""
        return {name: at for at, name in enumerate(self.study.ids)}

    @cached_property
    def by_place(self) -> Mapping[int, Sequence[TrialResult]]:
        """Place -> its runs, blocks last; the second run of a hang stands behind the first."""
        found: dict[int, list[TrialResult]] = {at: [] for at in self.place_of.values()}
        ordered = sorted(self.runs.values(), key=lambda e: (e.trial.block, e.trial.position))
        for result in ordered:
            if result.trial.arm in self.place_of:
                found[self.place_of[result.trial.arm]].append(result)
        return found

    @cached_property
    def probes(self) -> Mapping[int, Sequence[TrialResult]]:
        """Place -> its finished runs outside blocks, where it has any."""
        every = self.by_place.items()
        over = {
            at: [e for e in own if not e.trial.block and e.status.is_final] for at, own in every
        }
        return {at: own for at, own in over.items() if own}

    @cached_property
    def scores(self) -> Mapping[int, float]:
        """Place -> log score of its first run."""
        scored = {at: list(filter(None, map(usable, own))) for at, own in self.probes.items()}
        return {at: own[0].value for at, own in scored.items() if own}

    @cached_property
    def hung(self) -> frozenset[int]:
        """Places whose only run stood still before its first step, while a smaller size ran."""
        return frozenset(
            at
            for at, own in self.probes.items()
            if len(own) == 1
            and own[0].status is TrialStatus.DROPPED
            and cause_of(own[0]) == FailureClass.HANG_SILENT_OOM
            and self.smaller(at, self.scores)
        )

    def smaller(self, at: int, among: Iterable[int]) -> list[int]:
        """Return the places of smaller sizes than that of a place, with the same second value."""
        first = at - at % len(self.study.values)
        return [each for each in among if first <= each < at]

    @cached_property
    def lanes(self) -> tuple[Lane, ...]:
        """The sizes with each value of the second key; a single lane without one."""
        study, count = self.study, len(self.study.values)
        grows = study.asked.grows
        # sizes that failed in a block were below the ceiling of the search
        failed = [at for at in self.unfit if at not in self.scores]

        def lane(first: int) -> Lane:
            def own(places: Iterable[int]) -> set[int]:
                return {at - first for at in sorted(places) if 0 <= at - first < count}

            return Lane(
                sizes=study.numbers,
                start=study.start,
                is_asked=study.asked.start is not None,
                first=first,
                scores={at: self.scores[first + at] for at in own(self.scores)},
                unfit=own(failed) if grows else (),
                lost=own(self.lost) if grows else own((*self.lost, *failed)),
                memory={at: self.answers[first + at] for at in sorted(own(self.answers))},
            )

        lanes = [lane(first) for first in range(0, len(study.cells), count)]
        if all(each.compiled_top == -1 for each in lanes):  # a job says so
            lanes = [dataclasses.replace(each, least=0) for each in lanes]
        return tuple(lanes)

    @cached_property
    def unfit_probes(self) -> frozenset[int]:
        """Places whose run of the search did not fit."""
        return frozenset(at for at, own in self.probes.items() if is_unfit(own[-1])) - self.hung

    @cached_property
    def unfit(self) -> frozenset[int]:
        """Places that did not fit, in blocks too: near the ceiling a run may fit by chance.

        Where memory grows with the size, one that ran although a smaller one did not fit is as near
        to the ceiling as that one.
        """
        places = self.by_place.items()
        in_blocks = {at for at, own in places if any(e.trial.block and is_unfit(e) for e in own)}
        found = self.unfit_probes | in_blocks
        return found | self._above(found)

    def _above(self, unfit: Collection[int]) -> frozenset[int]:
        """Return the places that ran above the smallest of these, where memory grows with them."""
        if not unfit or not self.study.asked.grows:
            return frozenset()
        return frozenset(at for at in self.scores if self.smaller(at, unfit))

    @cached_property
    def lost(self) -> Mapping[int, TrialResult]:
        """Places of which no run tells anything: not measured, or refused for another reason."""
        known = {*self.scores, *self.unfit, *self.hung}
        return {at: own[-1] for at, own in self.probes.items() if at not in known}

    @cached_property
    def answers(self) -> Mapping[int, CompiledMemory]:
        """Place -> what compiling says of its memory."""
        return {
            self.place_of[result.trial.arm]: result.memory
            for result in self.results.values()
            if result.status.is_final and result.memory is not None
        }

    # -- what to run next

    @cached_property
    def next_compiled(self) -> Trial | None:
        """The size that is to be compiled next; None where nothing is asked, or all is known."""
        if not self.study.asks_compiler or self.stopped:
            return None
        return self._trial(((lane, lane.next_compiled) for lane in self.lanes), COMPILED)

    def _trial(self, found: Iterable[tuple[Lane, int | None]], stage: str) -> Trial | None:
        """Return the trial of the first place that a lane asks for; None where none does."""
        place = next((lane.first + at for lane, at in found if at is not None), None)
        return None if place is None else self.study.trial_of(self.study.every_arm[place], stage)

    @cached_property
    def stopped(self) -> Message | None:
        """Why no other size is tried: what failed is no matter of size; None: it is one."""
        for result in (own[-1] for own in self.probes.values()):
            if usable(result) is None and (cause := cause_of(result)) in _STOPS:
                text = "{cause}: {why}: no other size would mend it"
                return say(text, cause=cause, why=result.reason)
        lost = self.lost.values()
        causes = Counter[str | Message | None](cause_of(e) or e.reason for e in lost)
        common, count = next(iter(causes.most_common(1)), ("", 0))
        if self.scores or count < _SAME_FAILURE:
            return None
        text = (
            "the first {sizes} sizes all ended in {cause}: the configuration is wrong, not the size"
        )
        return say(text, sizes=count, cause=common)

    @cached_property
    def wanted(self) -> Trial | None:
        """The run outside blocks that would tell more, whatever the budget; None: there is none."""
        if self.stopped:
            return None
        if self.hung:
            return self.study.trial_of(self.study.every_arm[min(self.hung)], PROBE, position=1)
        is_listed = self.study.asked.names_arms
        lanes = reversed(self.lanes)
        found = ((lane, lane.in_order if is_listed else lane.searched) for lane in lanes)
        return self._trial(found, PROBE)

    @cached_property
    def next_probe(self) -> Trial | None:
        """The run that is wanted next outside blocks; None where the search is over."""
        trial, least = self.wanted, 2 * MIN_BLOCKS
        if trial is None or trial.id in self.runs:
            return trial
        # the ceiling and a first figure are worth more than two blocks of two sizes
        is_kept = len(self.scores) > 1 and self.study.budget >= 2 * least
        left = self.study.budget - len(self.runs) - (least if is_kept else 0)
        return trial if left > 0 else None

    @cached_property
    def another_loss(self) -> Mapping[int, Message]:
        """Place -> why its value is not ranked: it computes something else.

        Its loss is held against the first value's of the same batch and length: another batch, or
        another length of it, has another loss.
        """
        if key := self.study.changing_key:
            why = say("{key} changes the computation: a finding, not a ranking", key=key)
            return dict.fromkeys(self.scores, why)
        first: dict[tuple[float | None, int | None], tuple[float, float | None]] = {}
        found = {}
        for at, own in sorted(self.probes.items()):
            cell = self.study.cells[at]
            score = next(filter(None, map(usable, own)), None)
            if score is None or score.loss is None:
                continue
            size = (cell.per_device_batch_size, cell.max_target_length)
            usual, began = first.setdefault(size, (score.loss, score.first_loss))
            tolerance = self.study.loss_tolerance
            other = different_loss(score.loss, usual, tolerance=tolerance, first=began)
            if other is not None:
                text = "{why}: it computes something else, and is not ranked"
                found[at] = say(text, why=other)
        return found

    # -- which are compared, and how

    @cached_property
    def ranked(self) -> tuple[int, ...]:
        """Places that may be recommended, the fastest first run first."""
        return tuple(self._fastest(self.unfit.union(self.another_loss)))

    def _fastest(self, but: Collection[int]) -> list[int]:
        """Return the places that ran, the fastest first run first, some left out."""
        ran = [at for at in self.scores if at not in but]
        return sorted(ran, key=lambda at: (-self.scores[at], at))

    @cached_property
    def leaders(self) -> tuple[int, ...]:
        """The values that are run in blocks; () where a single one leads beyond all noise."""
        # by their first runs alone: a leader that fails later leaves its block, and no other enters
        ranked = self._fastest(self._above(self.unfit_probes).union(self.another_loss))
        if self.next_probe is not None or not ranked:
            return ()
        # the best of the single runs alone loses more than 1 % of TGS in 28 % of simulated curves
        cut = self.scores[ranked[0]] - max(CUT_SIGMAS * (self.study.asked.sigma or _SIGMA), CUT_AT)
        near = [at for at in ranked if self.scores[at] >= cut][:_MOST_LEADERS]
        if self.study.asked.sigma is None:
            near = ranked[: max(len(near), 2)]  # the noise is known by blocks alone
        return tuple(near) if len(near) > 1 else ()

    @cached_property
    def affordable(self) -> tuple[int, int]:
        """How many leaders in how many blocks the budget allows."""
        probed = sum(not result.trial.block for result in self.runs.values())
        left = self.study.budget - probed
        for width in range(len(self.leaders), 1, -1):
            blocks = min(left // width, self.study.asked.blocks)
            if blocks >= MIN_BLOCKS:
                return width, blocks
        return 0, 0

    @cached_property
    def compared(self) -> tuple[int, ...]:
        """The leaders that the budget lets run in blocks."""
        return self.leaders[: self.affordable[0]]

    @cached_property
    def fitted(self) -> tuple[BlockFit, int] | None:
        """Least squares of the blocks, held against the place that leads among them."""
        planned = {trial.id for trials in self.blocks for trial in trials}
        scores = [
            # nothing compares across a change of nodes
            BlockScore(
                block=(result.trial.block, result.epoch), arm=result.trial.arm, value=score.value
            )
            for result in self.runs.values()
            if result.trial.id in planned
            and self.place_of[result.trial.arm] not in self.unfit
            and (score := usable(result))
        ]
        for place in self.compared:
            first = fit_blocks(scores, control=self.study.ids[place])
            if first is None or not first.arms:
                continue
            leader = max(first.arms, key=lambda name: first.arms[name].estimate)
            if first.arms[leader].estimate <= 0:
                return first, place
            again = fit_blocks(scores, control=leader)
            return None if again is None else (again, self.place_of[leader])
        return None

    @property
    def fit(self) -> BlockFit | None:
        """Least squares of the blocks; None where none holds two that ran."""
        return None if self.fitted is None else self.fitted[0]

    @cached_property
    def lead(self) -> int | None:
        """The place of the largest figure: by blocks where there are any, else by its first run."""
        if self.fitted is not None and self.fitted[1] in self.ranked:
            return self.fitted[1]
        return self.ranked[0] if self.ranked else None

    @cached_property
    def family(self) -> int:
        """How many comparisons with the best share the error."""
        return max(len(self.compared) - 1, 1)

    @cached_property
    def pairs(self) -> Mapping[int, Comparison | NoComparison]:
        """Place -> the leader there against the best, by the blocks; none without any."""
        if self.fit is None:
            return {}
        others = [(at, self.study.ids[at]) for at in self.compared if at != self.lead]
        return {at: compare(self.fit, e, family=self.family, alpha=ALPHA) for at, e in others}

    @cached_property
    def noise(self) -> float | None:
        """Standard deviation of one job's score: of the blocks, else as declared."""
        is_known = self.fit is not None and math.isfinite(self.fit.sigma)
        return self.fit.sigma if self.fit is not None and is_known else self.study.asked.sigma

    @cached_property
    def singles_differ(self) -> float | None:
        """How far two single runs may differ, of 95 % of pairs; None where the noise is unknown."""
        if self.noise is None or self.rough_df:
            return None
        df = self.fit.df if self.fit is not None and math.isfinite(self.fit.sigma) else math.inf
        return t_quantile(0.975, df) * math.sqrt(2) * self.noise

    @cached_property
    def by_chance(self) -> float:
        """How far a first run may lie behind the best by noise alone."""
        sigma = self.study.asked.sigma or self.noise or _SIGMA
        reach = CUT_SIGMAS * sigma
        # the same program, run on a busy machine beside two blocks, was called worse by 47 %
        if self.rough_df:
            reach = max(reach, t_quantile(0.975, self.rough_df) * math.sqrt(2) * sigma)
        return max(reach, CUT_AT)

    @property
    def rough_df(self) -> int:
        """The degrees of freedom of a noise that is known by too few blocks; 0 where it is not."""
        if self.study.asked.sigma is not None or self.fit is None or self.fit.df >= MIN_DF:
            return 0
        return max(self.fit.df, 0)

    @cached_property
    def told_apart(self) -> Mapping[int, bool]:
        """Place -> whether it is shown to be worse than the best."""
        found = {}
        for at in self.ranked:
            if self.lead is None or at == self.lead:
                continue
            pair = self.pairs.get(at)
            if isinstance(pair, Comparison):
                reach = bonferroni(self.family, pair.df, alpha=ALPHA)
                found[at] = pair.estimate + reach * standard_error(pair) < 0
            elif self.fit is None and at in self.leaders:
                found[at] = False  # the budget left no block
            else:
                gap = self.scores[self.lead] - self.scores[at]
                found[at] = at not in self.compared and gap > self.by_chance
        return found

    # -- conclusion

    def conclusion(self) -> Conclusion:
        """Return a verdict on every size, the recommended one first."""
        study, lead, labels = self.study, self.lead if self.is_over else None, self.study.labels
        tried = sorted({*self.probes, *self.unfit})
        shown = range(len(study.cells)) if study.asked.names_arms else tried
        told = {at: self._verdict(at) for at in shown}
        order = sorted(told, key=lambda at: (at != lead, not told[at].n, -(told[at].delta or 0.0)))
        best = told.get(lead) if lead is not None else None
        verdicts = [
            beside(told[at], best) if told[at].against == _BEST else told[at] for at in order
        ]
        same = (
            []
            if lead is None
            else sorted((lead, *(a for a, off in self.told_apart.items() if not off)))
        )
        record = BatchRecord(
            sigma=self.noise,
            key=study.asked.key,
            arm="" if lead is None else study.ids[lead],
            value="" if lead is None else labels[lead],
            same=tuple(labels[at] for at in same),
        )
        answer = self._answer(best, verdicts) if self.is_over else self._first_answer()
        is_missing = self.is_over and not study.changing_key and not record.value
        others = [each for each in record.same if each != record.value]
        also = say("cannot be told from it: {values}", values=others) if others else None
        largest, unfit, ceiling = self._ceiling()
        record = replace(
            record,
            largest=largest,
            unfit=unfit,
            summary=tuple(filter(None, (answer, also, ceiling))),
            objection=(answer,) if is_missing and answer else (),
            files={BEST_FILE: f"{record.setting}\n"} if record.setting else {},
        )
        alpha, notes = ALPHA if self.blocks else 0.0, self._notes() if self.is_over else ()
        return self.concluded(verdicts, record, alpha=alpha, notes=notes)

    def _ceiling(self) -> tuple[str, str, Message | None]:
        """Return the largest that ran, the smallest that did not fit, and both in words."""
        study, (lane, *others) = self.study, self.lanes
        if others or not study.asked.grows:
            return "", "", None
        end = min(self.unfit, default=len(study.values))
        ran = max((at for at in self.scores if at < end), default=None)
        largest = "" if ran is None else study.values[ran]
        if self.unfit:
            text = "ceiling: {ran} ran, {unfit} did not fit"
            unfit = study.values[end]
            return largest, unfit, say(text, ran=largest or "none", unfit=unfit)
        is_at_end = ran is not None and ran >= lane.top
        text = "ceiling: {ran} ran, and no larger one may be tried"
        return largest, "", say(text, ran=largest) if is_at_end else None

    def _first_answer(self) -> Message | None:
        """Return what single runs say, once the search is over and blocks are left to run."""
        if self.next_compiled is not None or self.next_probe is not None or not self.ranked:
            return None
        best, *others = (self.study.labels[at] for at in self.compared)
        text = "first answer, by single runs: {key}={best}; blocks with {others} decide"
        return say(text, key=self.study.asked.key, best=best, others=others)

    def _answer(self, best: Verdict | None, verdicts: Sequence[Verdict]) -> Message:
        """Return the recommendation, or why there is none."""
        study, key, fit = self.study, self.study.asked.key, self.fit
        if best is None:
            text = "no value of {key} is recommended: none was measured"
            if self.stopped:
                text = "no value of {key} is recommended: {why}"
            elif study.changing_key and self.scores:
                key = study.changing_key
                text = "{key} changes the computation: its values are not ranked by speed"
            elif self.unfit and not self.scores:
                text = "no value of {key} fits"
            return say(text, key=key, why=self.stopped)
        # a single run says less than blocks
        others = [e for e in verdicts if e.against == _BEST and (fit is None or e.arm in fit.arms)]
        told = [verdict for verdict in others if verdict.delta is not None]
        following = max(told, key=lambda each: each.delta or 0.0, default=None)
        behind = None
        if following is not None:
            how = say(BLOCKS, blocks=fit.n_blocks) if fit else say("single runs")
            low, high = following.ci95 or (None, None)
            text = "; the next is {value}, {low:percent} to {high:percent} against it (95 %, {how})"
            if following.ci95 is None:
                text = "; the next is {value}, {change:percent} ({how}, too few for an interval)"
            value = study.labels[self.place_of[following.arm]]
            behind = say(text, value=value, low=low, high=high, change=following.delta, how=how)
        speed = say(" with {tgs:.1f} TGS", tgs=best.tgs) if best.tgs is not None else None
        setting = f"{key}={study.labels[self.place_of[best.arm]]}"
        return say("recommended: {setting}{speed}{next}", setting=setting, speed=speed, next=behind)

    def _verdict(self, at: int) -> Verdict:
        own, arm = self.by_place[at], self.study.ids[at]
        base = replace(begun(arm, own), against=_BEST)
        if at in self.unfit:
            return dropped(replace(base, against=None), *self._why_unfit(at))
        if at not in self.probes:
            return self._untried(base, at) if self.is_over else base
        base = replace(so_far(arm, own), against=_BEST)
        if at in self.lost:
            why, lost = self.lost[at].reason or NOT_FINITE, self.lost[at]
            if lost.status is TrialStatus.DROPPED:
                return dropped(base, why)
            return decided(base, VerdictKind.INVALID, why)
        if at not in self.scores:
            return screened(base, say("it stood still; it is run again"))
        flags = score_flags([result for result in own if usable(result)])
        in_blocks = lost_runs([result for result in own if result.trial.block])
        base = replace(base, reasons=flags, lost=in_blocks)
        if at in self.another_loss:
            return undecided(replace(base, against=None), self.another_loss[at])
        if not self.is_over:
            if at != self.ranked[0]:
                base = changed(base, self.scores[at] - self.scores[self.ranked[0]])
            return screened(base, say("so far"))
        return self._of_speed(base, at)

    def _of_speed(self, base: Verdict, at: int) -> Verdict:
        """Return the verdict on a size that ran, once everything is over."""
        fit, is_lead = self.fit, at == self.lead
        is_block = fit is not None and ((is_lead and at in self.compared) or base.arm in fit.arms)
        if fit is not None and is_block:
            blocks = [
                result for result in self.by_place[at] if result.trial.block and usable(result)
            ]
            how = say("{blocks:+block}, Bonferroni", blocks=fit.n_blocks)
            base = replace(measured(base, blocks), job_ids=base.job_ids, n=len(blocks), method=how)
        else:
            base = replace(base, method=say(ITS_FIRST_RUN))
        if is_lead:
            return self._leading(base, is_block=is_block)
        pair = self.pairs.get(at) if is_block else None
        if isinstance(pair, Comparison):
            base = changed(base, pair.estimate, pair.ci95)
            base = replace(base, mde80=relative(pair.mde80))
        elif fit is not None and pair is not None:
            # the mean of the blocks is known, its error is not
            return undecided(changed(base, fit.arms[base.arm].estimate), pair.reason)
        elif self.lead is not None:
            gap, reach = self.scores[at] - self.scores[self.lead], self.singles_differ
            base = changed(base, gap, None if reach is None else (gap - reach, gap + reach))
        if self.told_apart[at]:
            return decided(base, VerdictKind.SLOWER if is_block else VerdictKind.SCREENED)
        if isinstance(pair, Comparison) and is_within(pair, margin=EQUIVALENCE):
            text = "a difference of {difference:size} is excluded"
            return decided(base, VerdictKind.EQUIVALENT, say(text, difference=EQUIVALENCE))
        if is_block:
            return undecided(base)
        near = say("within {cut:size} or three standard deviations of it", cut=CUT_AT)
        rough = say(FEW_DF, df=self.rough_df, needed=MIN_DF)
        return undecided(base, rough if self.rough_df else near)

    def _leading(self, base: Verdict, *, is_block: bool) -> Verdict:
        """Return the verdict on the size of the largest figure: FASTER where it beats every other.

        Its change is then against the next of its blocks. Where one of them cannot be told from it,
        or it ran once, nothing is shown.
        """
        is_far, why = all(self.told_apart.values()), say("the best")
        if not is_block and is_far:
            why = say(
                "the best: it leads by more than three standard deviations, so no block was run"
            )
        elif not is_block:
            why = say("the best of single runs; the budget left no block to decide")
        known = {each: pair for each, pair in self.pairs.items() if each in self.told_apart}
        told = {each: pair for each, pair in known.items() if isinstance(pair, Comparison)}
        if not is_block or not told or not is_far:
            kind = VerdictKind.INCONCLUSIVE if is_block else VerdictKind.SCREENED
            return decided(replace(base, against=None), kind, why)
        following = max(told, key=lambda each: told[each].estimate)
        low, high = told[following].ci95
        against = say("the next, {value}", value=self.study.labels[following])
        base = changed(base, -told[following].estimate, (-high, -low))
        return decided(replace(base, against=against), VerdictKind.FASTER, why)

    def _why_unfit(self, at: int) -> Iterator[Message]:
        own = self.by_place[at]
        ended = [result for result in own if is_unfit(result)]
        if not ended:
            smaller = self.study.labels[min(self.smaller(at, self.unfit))]
            yield say("it ran, but {smaller} did not fit: {near}", smaller=smaller, near=_NEAR)
            return
        finding = next((each for each in ended[-1].findings if each.cls in _UNFIT), None)
        why = ended[-1].reason or NO_SCORE
        if finding is not None:
            cls = FailureClass(finding.cls)
            is_first_hang = cls is FailureClass.HANG_SILENT_OOM and not self.probes.get(at, [])[1:]
            text = "" if is_first_hang else _UNFIT[cls]
            why = say(text) if text else say("{meaning}", meaning=cls.meaning)
            if finding.detail:
                why = say(WITH_DETAIL, why=why, detail=finding.detail)
        yield why
        if any(map(usable, own)):
            yield say("it failed once and ran at other times: {near}", near=_NEAR)

    def _untried(self, base: Verdict, at: int) -> Verdict:
        study, lane = self.study, self.lanes[at // len(self.study.values)]
        smaller = self.smaller(at, self.unfit)
        if smaller and study.asked.grows:
            why = say("larger than {unfit}, which did not fit", unfit=study.labels[min(smaller)])
        elif at - lane.first > lane.top:
            limit = study.numbers[lane.top] if lane.top >= 0 else 0.0
            why = say("compiled memory says that no size above {limit:g} fits", limit=limit)
        else:
            text = "the budget of {budget} jobs left no job"
            why = self.stopped or say(text, budget=study.budget)
        return decided(base, VerdictKind.SCREENED, say("not run: {why}", why=why))

    def _notes(self) -> Iterator[Message]:
        study, asked = self.study, self.study.asked
        unknown = next((e.said for e in self.answers.values() if e.fits is None), "")
        if not study.asks_compiler:
            if self.unfit and asked.grows:
                yield say(
                    "no compiler was asked, so jobs that did not fit found the ceiling: "
                    "Sweep(compile_check=...) asks one first"
                )
        elif unknown:
            yield say("no compiled memory, so jobs looked for the ceiling: {why}", why=unknown)
        else:
            told = [lane for lane in self.lanes if lane.needed or lane.too_large]
            yield from map(self._of_compiling, told)
        if self.stopped:
            yield say("stopped: {why}", why=self.stopped)
        if self.wanted is not None:
            text = "the budget of {budget} jobs ended the search: a larger one may find better"
            yield say(text, budget=study.budget)
        width, blocks = self.affordable
        if self.leaders and blocks < asked.blocks:
            sizes = say("{width} of {count:+leading size}", width=width, count=len(self.leaders))
            text = "the budget allows {allowed} of {blocks} blocks, of {sizes}"
            yield say(text, allowed=blocks, blocks=asked.blocks, sizes=sizes)
        if self.scores and self.noise is None:
            yield say(
                "the noise between jobs is not known: give BatchSize(sigma=...) from a calibration"
            )

    def _of_compiling(self, lane: Lane) -> Message:
        """Return what compiling says of the sizes of a lane."""
        study, top = self.study, lane.compiled_top
        if not lane.grows:
            follows = say("it does not grow with {key}: nothing follows", key=study.asked.key)
        elif top is None:
            follows = say("the largest that may be tried fits")
        elif top < 0:
            follows = say("by that none fits")
        else:
            follows = say("no size above {top} was run", top=study.values[top])
        sizes = []
        for at, memory in lane.memory.items():
            gib = (memory.needed_bytes or 0) / 2**30
            text = "{value}: {gib:.3g}" if gib else "{value}: more than there is"
            sizes.append(say(text, value=study.labels[lane.first + at], gib=gib))
        first = next(iter(lane.memory.values()))
        limits = [each.limit_bytes for each in lane.memory.values() if each.limit_bytes is not None]
        text = (
            "compiled memory of one device in GiB, of {limit_gib:.3g} GiB, by {by}: {sizes}; "
            "{follows}"
        )
        limit_gib = (limits[0] if limits else 0) / 2**30
        return say(text, limit_gib=limit_gib, by=first.by, sizes=sizes, follows=follows)
