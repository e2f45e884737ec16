"""Which batch size is fastest, and how large a one fits: a search, then fresh blocks.

An arm is a cell: the sweep's own with another value of one key, most often
`per_device_batch_size`, or of that and a second key. A size that does not fit is an answer. The
first run of a size only chooses the sizes to run again; fresh runs side by side decide. This module
must not know of executors or logs.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import ClassVar

from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import Message, say
from pytest_xlatune.model.record import Real
from pytest_xlatune.model.resources import Next, RetryRule
from pytest_xlatune.model.result import Conclusion
from pytest_xlatune.model.trial import Arm, Trial
from pytest_xlatune.studies import (
    Aim,
    Asked,
    DeclaredStudy,
    History,
    Policy,
    Traits,
    name_of,
)
from pytest_xlatune.studies.batch_size._walk import (
    BEST_FILE,
    COMPILED,
    KIND,
    PER_DEVICE,
    PROBE,
    BatchRecord,
    BatchWalk,
)
from pytest_xlatune.studies.cell_arms import RankedCells, refuse_unless_positive

__all__ = ["BEST_FILE", "KIND", "BatchRecord", "BatchSize", "BatchStudy"]

_MOST_CELLS = 256
_REACH = 4  # times the start: the largest size of a search that names none
MIN_BLOCKS = 2
TARGET_LENGTH = "max_target_length"
# keys that change the computation: their speeds are a finding, and rank nothing
_CHANGES_LOSS = ("quantization", "dtype", "precision", "quantize")
# a variable:  XLA_PYTHON_CLIENT_MEM_FRACTION
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")
_SHORT: Mapping[str, str] = {PER_DEVICE: "pdbs", TARGET_LENGTH: "length"}


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
        if any(not isinstance(each, str) and not 0 < each < math.inf for each in self.sizes):
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
        return not any(isinstance(each, str) for each in self.sizes)

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
    return tuple(each if isinstance(each, str) else f"{each:.12g}" for each in values)


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


class BatchStudy(RankedCells[BatchWalk], frozen=True, kw_only=True, dict=True):
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
        said = (self.asked.key, self.asked.key_of_study)
        second = (self.asked.by,) if self.asked.by else ()
        return name_of(KIND, *(said if said != (PER_DEVICE, "") or second else ()), *second)

    @property
    def policy(self) -> Policy:
        """A size that does not fit is an answer, and is not tried again."""
        drop = RetryRule(retries=0, then=Next.DROP)
        return Policy(
            compiled_stage=COMPILED if self.asks_compiler else "",
            rules={
                FailureClass.OOM_HOST: drop,
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
        if self.asked.grows:
            return tuple(map(float, self.values))
        return tuple(float(at + 1) for at in range(len(self.values)))

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
        pairs = [f"{each} {key}={text}" for text in self.by_values for each in self.values]
        return pairs or self.values

    def compared(self, history: History) -> tuple[Arm, ...]:
        """Return the values that were listed, or those that a search has tried so far."""
        if self.asked.names_arms:
            return self.every_arm
        tried = {each.trial.arm for each in self.walked(history).runs.values()}
        return tuple(each for each in self.every_arm if each.id in tried)

    @property
    def outline(self) -> tuple[Message, ...]:
        """What a plan says of it."""
        asked, lines = self.asked, []
        if self.asks_compiler:
            lines.append(say("first a compiler says which sizes fit: it costs no job"))
        if asked.names_arms:
            text = (
                "{cells} cells of {keys}, each once, from the smallest size up, until one does not "
                "fit"
                if asked.grows
                else "{cells} cells of {keys}, each once"
            )
            keys = [each for each in (asked.key, asked.by) if each]
            lines.append(say(text, cells=len(self.cells), keys=keys))
        else:
            lines.append(
                say(
                    "{key} from {start}, in steps of {step:g} between {least} and {most}: the "
                    "ceiling first, then around the best; about 5 to 8 jobs, then a first answer",
                    key=asked.key,
                    start=self.values[self.start],
                    step=asked.step,
                    least=self.values[0],
                    most=self.values[-1],
                )
            )
        text = (
            "then {blocks} complete blocks of the leading sizes, four at most, decide: at most "
            "{budget} jobs in all"
        )
        return (*lines, say(text, blocks=asked.blocks, budget=self.budget))

    def best(self, conclusion: Conclusion) -> str:
        """Return the id of the recommended size; "" where there is none."""
        return conclusion.found(BatchRecord).arm

    def begin(self, history: History) -> BatchWalk:
        """Return the walk before the first size."""
        return BatchWalk(self, history)

    def compiled(self, at: int) -> Trial:
        """Return the trial that asks a compiler for the memory of a value; it is not run."""
        return self.trial_of(self.every_arm[at], COMPILED)

    def probe(self, at: int, position: int = 0) -> Trial:
        """Return the run that tells whether a value fits; a second one stands at position 1."""
        return self.trial_of(self.every_arm[at], PROBE, position=position)


def _short(key: str) -> str:
    return _SHORT.get(key) or _slug(key)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.+]+", "-", text.lower()).strip("-.+")[:40] or "none"
