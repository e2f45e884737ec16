"""Which batch size is fastest, and how large a one fits: a search, then fresh blocks.

An arm is a cell: the sweep's own with another value of one key, most often
`per_device_batch_size`. A size that does not fit is an answer. The first run of a size only chooses
the sizes to run again; fresh runs side by side decide. This module must not know of executors or
logs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.profile import BASELINE
from pytest_xlatune.model.record import digest, written
from pytest_xlatune.model.resources import Next, RetryRule
from pytest_xlatune.model.result import Conclusion
from pytest_xlatune.model.trial import Arm, Trial
from pytest_xlatune.studies import (
    Aim,
    Asked,
    DeclaredStudy,
    History,
    LossRule,
    Policy,
    Traits,
    remembered,
)
from pytest_xlatune.studies.batch_size._concluded import (
    BEST_FILE,
    KIND,
    PER_DEVICE,
    TARGET_LENGTH,
    WORDS,
    BatchRecord,
    SizeWord,
    conclusion,
)
from pytest_xlatune.studies.batch_size._findings import BLOCK, COMPILED, PROBE, BatchFindings
from pytest_xlatune.studies.cell_arms import (
    RankedCells,
    refuse_unless_positive,
    results_of,
    trial_of,
)

__all__ = [
    "BEST_FILE",
    "KIND",
    "WORDS",
    "BatchRecord",
    "BatchSize",
    "BatchStudy",
    "SizeWord",
    "ceiling_by_compiled_memory",
    "ceiling_by_formula",
    "ceiling_by_log",
]

_MOST_SIZES = 256
_REACH = 4  # times the start: the largest size of a search that names none
MIN_BLOCKS = 2
# keys that change the computation: their speeds are a finding, and rank nothing
_CHANGES_LOSS = ("quantization", "dtype", "precision", "quantize")
# a variable:  XLA_PYTHON_CLIENT_MEM_FRACTION
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")
_SHORT: Mapping[str, str] = {PER_DEVICE: "pdbs", TARGET_LENGTH: "length"}


@written("batch size")
@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSize(DeclaredStudy):
    """What a sweep file declares: `Sweep(study=BatchSize(start=8))`.

    Attributes:
        key: what differs between arms: `per_device_batch_size`, `max_target_length`, any key of the
            trainer, or in capitals a variable, e.g. `XLA_PYTHON_CLIENT_MEM_FRACTION`.
        sizes: numbers to try, all of them until one does not fit; () searches instead.
        values: the same for a key whose values are no numbers, e.g. remat policies.
        is_ordered: whether memory grows along `sizes` or `values`: a later one is then never tried
            after one that did not fit. None: so it is for numbers, not for `values`.
        start: where the search begins; None is 0.75 of `ceiling`, or the sweep's own size.
        step: between sizes that may be tried.
        smallest, largest: ends of the search; None is one step, and four times the start.
        ceiling: the largest size that is expected to fit: `ceiling_by_log`, `ceiling_by_formula`.
        compiled_ceiling: the same by compiled memory, `ceiling_by_compiled_memory`: no larger size
            is tried.
        blocks: complete blocks of the leading sizes.
        sigma: noise of one job's score between jobs, from a calibration (0.006 is 0.6 %); None is
            unknown, and the best two sizes at least are run in blocks.
        prefers_smaller: whether the smallest of the sizes that cannot be told apart is recommended.
        peak_tflops: TFLOP/s that one device can do, for MFU; None is as logs print it.
        key_of_study: what tells this study from the last one: runs of another key are not used.
    """

    kind: ClassVar[str] = KIND
    key: str = PER_DEVICE
    sizes: tuple[float, ...] = ()
    values: tuple[str, ...] = ()
    is_ordered: bool | None = None
    start: float | None = None
    step: float = 1.0
    smallest: float | None = None
    largest: float | None = None
    ceiling: float | None = None
    compiled_ceiling: float | None = None
    blocks: int = 4
    sigma: float | None = None
    prefers_smaller: bool = False
    peak_tflops: float | None = None
    key_of_study: str = ""

    def __post_init__(self) -> None:
        if self.sizes and self.values:
            raise ConfigError("batch size: sizes= and values= are two lists; leave one out")
        if self.blocks < MIN_BLOCKS:
            raise ConfigError(
                f"batch size: {self.blocks} blocks, expected at least {MIN_BLOCKS}; 4 have the "
                "error rates of docs/batch.md"
            )
        listed: tuple[float | str, ...] = self.sizes or self.values
        if len(set(listed)) < len(listed):
            raise ConfigError(f"batch size: {self.key} is listed with a value twice: {listed}")
        if len(listed) == 1:
            raise ConfigError(f"batch size: one value of {self.key} is compared with nothing")
        refuse_unless_positive(
            "batch size",
            start=self.start,
            step=self.step,
            smallest=self.smallest,
            largest=self.largest,
            ceiling=self.ceiling,
            compiled_ceiling=self.compiled_ceiling,
            sigma=self.sigma,
            peak_tflops=self.peak_tflops,
        )
        if any(not 0 < each < math.inf for each in self.sizes):
            raise ConfigError(f"batch size: sizes are {self.sizes}, expected positive numbers")
        if self.key == "XLA_FLAGS":
            raise ConfigError("batch size: flags of XLA are tuned by profiles; name another key")

    @property
    def names_arms(self) -> bool:
        """Whether the values are known before anything runs, so that each can have a test."""
        return bool(self.sizes or self.values)

    @property
    def grows(self) -> bool:
        """Whether memory grows along the values."""
        return not self.values if self.is_ordered is None else self.is_ordered

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
        texts, start = self._listed(asked.cell)
        cells = tuple(_variant(asked.cell, self.key, text) for text in texts)
        return BatchStudy(
            cells=cells,
            values=texts,
            start=start,
            asked=self,
            budget=asked.budget,
            seed=asked.seed,
            loss_tolerance=asked.loss_tolerance,
            asks_compiler=asked.asks_compiler and self.can_be_compiled,
        )

    @property
    def can_be_compiled(self) -> bool:
        """Whether a compiler can say which values fit, and none has: a key of the program."""
        is_variable = bool(_VARIABLE.fullmatch(self.key))
        return self.grows and not is_variable and self.compiled_ceiling is None

    def _listed(self, cell: Cell) -> tuple[tuple[str, ...], int]:
        """Return all values that may be tried, ascending, and the place of the first."""
        if self.values:
            return self.values, 0
        if self.sizes:
            return tuple(f"{each:.12g}" for each in sorted(self.sizes)), 0
        expected = self.compiled_ceiling or self.ceiling
        start = self.start or (expected and 0.75 * expected) or _own_value(cell, self.key)
        if start is None:
            raise ConfigError(
                f"a batch size study needs to know where to begin: the sweep has no {self.key}; "
                "give it one (--xlatune-pdbs), or BatchSize(start=...), ceiling=... or sizes="
            )
        start, smallest = float(start), self.smallest or self.step
        largest = self.largest or max(_REACH * start, smallest)
        if self.compiled_ceiling:
            largest = self.largest or max(self.compiled_ceiling, smallest)
        first = math.ceil(smallest / self.step - 1e-9)
        last = math.floor(largest / self.step + 1e-9)
        if not 1 < last - first + 1 <= _MOST_SIZES:
            raise ConfigError(
                f"batch size: from {smallest:g} to {largest:g} in steps of {self.step:g} are "
                f"{max(last - first + 1, 0)} sizes of {self.key}, expected 2 to {_MOST_SIZES}; "
                "change step=, smallest= or largest="
            )
        sizes = [self.step * at for at in range(first, last + 1)]
        at = min(range(len(sizes)), key=lambda each: abs(sizes[each] - start))
        return tuple(f"{each:.12g}" for each in sizes), at


def _own_value(cell: Cell, key: str) -> float | None:
    found: object = getattr(cell, key) if key in _SHORT else cell.overrides.get(key)
    try:
        return None if found is None else float(str(found))
    except ValueError:
        return None


def _variant(cell: Cell, key: str, text: str) -> Cell:
    """Return the cell with another value of one key."""
    if key == PER_DEVICE:
        return replace(cell, per_device_batch_size=float(text))
    if key == TARGET_LENGTH:
        if not text.isdecimal():
            raise ConfigError(f"batch size: {key} is {text}, expected whole numbers: step=1024")
        return replace(cell, max_target_length=int(text))
    if _VARIABLE.fullmatch(key):
        return replace(cell, deployed={**cell.deployed, key: text})
    return replace(cell, overrides={**cell.overrides, key: text})


def ceiling_by_compiled_memory(sizes_bytes: Mapping[float, float], *, limit_bytes: float) -> float:
    """Return the size at which compiled memory reaches a limit: a line through what was compiled.

    Args:
        sizes_bytes: size -> bytes of one device that the compiler says; two sizes or more.
        limit_bytes: of one device: memory times the fraction that XLA's pool takes.

    Raises:
        ConfigError: less than two sizes, or memory does not grow with them.
    """
    points = sorted(sizes_bytes.items())
    if len(points) > 1:
        mean = sum(x for x, _ in points) / len(points)
        level = sum(y for _, y in points) / len(points)
        slope = sum((x - mean) * (y - level) for x, y in points) / sum(
            (x - mean) ** 2 for x, _ in points
        )
        if slope > 0 and (found := mean + (limit_bytes - level) / slope) > 0:
            return found
    raise ConfigError(
        f"compiled memory: {points} give no ceiling below {limit_bytes:g} bytes; expected two "
        "sizes or more, memory that grows with them, and a limit above that of no sequence at all"
    )


def ceiling_by_log(*, size: float, allocation_bytes: float, used_bytes: float,
                   limit_bytes: float) -> float:  # fmt: skip
    """Return the largest size by the log of a run that failed: what it asked for, what was free.

    Args:
        size: of that run.
        allocation_bytes: that it could not have: `Out of memory while trying to allocate ...`.
        used_bytes: after the parameters were initialised: `Memstats: After params initialized`.
        limit_bytes: of the pool, in the same line.
    """
    if not 0 < used_bytes < limit_bytes or allocation_bytes <= 0:
        raise ConfigError(
            f"ceiling by a log: {used_bytes:g} of {limit_bytes:g} bytes are used, "
            f"{allocation_bytes:g} were asked for; expected less used than there is, and a "
            "positive allocation"
        )
    return size * (limit_bytes - used_bytes) / allocation_bytes


def ceiling_by_formula(
    *,
    memory_bytes: float,
    fraction: float,
    parameters: float,
    bytes_per_parameter: float,
    shards: int,
    sequence: int,
    embedding: int,
    layers: int,
    bytes_per_activation: float = 12.0,
) -> float:
    """Return the largest size by a rule of thumb; it is wrong by a factor of 1.5 either way.

    Args:
        memory_bytes: of one device.
        fraction: of it that XLA's pool takes.
        parameters: of the model.
        shards: devices over which they are spread.
        bytes_per_parameter: weights, master copy, gradient and both moments together: 2 are the
            weights alone, 16 to 18 what training takes.
        sequence: tokens of one.
        embedding: the model's width.
        layers: its depth.
        bytes_per_activation: kept per token, width and layer; 12 without rematerialisation.
    """
    free = memory_bytes * fraction - parameters * bytes_per_parameter / shards
    if free <= 0:
        raise ConfigError(
            f"ceiling by formula: {memory_bytes * fraction:g} bytes of memory, and the parameters "
            f"alone take {parameters * bytes_per_parameter / shards:g}; spread them over more "
            "devices"
        )
    return free / (sequence * embedding * layers * bytes_per_activation)


@dataclass(frozen=True, kw_only=True)
class BatchStudy(RankedCells):
    """One search for a batch size.

    Attributes:
        cells: one for each value that may be tried.
        values: theirs, as text; numbers ascend.
        start: the place of the first one that is tried.
        asked: the demands.
        budget: jobs that it may cost.
        seed: of the random orders inside a block.
        loss_tolerance: relative distance of a loss at which two runs compute something else.
        asks_compiler: whether sizes are compiled before any is run.
    """

    traits: ClassVar[Traits] = Traits(aim=Aim.RANKS)
    cells: tuple[Cell, ...]
    values: tuple[str, ...]
    start: int = 0
    asked: BatchSize = BatchSize()
    budget: int = 30
    seed: int = 0
    loss_tolerance: float = 0.02
    asks_compiler: bool = False

    def __post_init__(self) -> None:
        if self.budget < MIN_BLOCKS:
            raise ConfigError(
                f"a batch size study has a budget of {self.budget}, expected {MIN_BLOCKS} or more; "
                "--xlatune-budget 30 is enough for most"
            )

    @cached_property
    def name(self) -> str:
        """The study's word, and which study it is: of another key, another name."""
        said = (self.asked.key, self.asked.key_of_study)
        return KIND if said == (PER_DEVICE, "") else f"{KIND}-{digest(list(said), length=8)}"

    @property
    def policy(self) -> Policy:
        """A size that does not fit is an answer, and is not tried again."""
        drop = RetryRule(retries=0, then=Next.DROP)
        return Policy(
            loss=LossRule.OWN_ARM,
            compiled_stage=COMPILED if self.asks_compiler else "",
            rules={
                FailureClass.OOM_HOST: drop,
                # by the kernel for want of memory, or by a person: the second time it is memory
                FailureClass.KILLED: RetryRule(retries=1, then=Next.DROP),
            },
        )

    @property
    def changes_loss(self) -> bool:
        """Whether the key changes the computation: then nothing is ranked."""
        return any(word in self.asked.key.lower() for word in _CHANGES_LOSS)

    @property
    def keeps_loss(self) -> bool:
        """Whether arms must compute the same: another batch has another loss."""
        return self.asked.key not in _SHORT

    @cached_property
    def numbers(self) -> tuple[float, ...]:
        """The values as numbers that ascend with memory."""
        if self.asked.values:
            return tuple(float(at + 1) for at in range(len(self.values)))
        return tuple(map(float, self.values))

    @cached_property
    def every_arm(self) -> tuple[Arm, ...]:
        """An arm for each value that may be tried."""
        head = _SHORT.get(self.asked.key) or _slug(self.asked.key)
        return tuple(
            Arm(id=f"{head}-{_slug(text)}", cell_digest=cell.digest, profile=BASELINE)
            for text, cell in zip(self.values, self.cells, strict=True)
        )

    @property
    def is_listed(self) -> bool:
        """Whether the values were listed by a person, and not made for a search."""
        return self.asked.names_arms

    def arms(self, history: History) -> tuple[Arm, ...]:
        """Return the values that were listed, or those that a search has tried so far."""
        if self.is_listed:
            return self.every_arm
        tried = {each.trial.arm for each in self._findings(history).results.values()}
        return tuple(each for each in self.every_arm if each.id in tried)

    def propose(self, history: History) -> tuple[Trial, ...]:
        """Return the next size to try, or the rest of a block."""
        return self._findings(history).pending

    def left(self, history: History) -> int:
        """Return how many trials are likely still to come, the blocks included."""
        return self._findings(history).left

    def outline(self, history: History) -> tuple[str, ...]:
        """Return what a plan says of it."""
        del history
        asked, count = self.asked, len(self.values)
        first = self.values[self.start]
        if self.is_listed:
            how = f"{count} values of {asked.key}, each once"
            if asked.grows:
                how += ", from the smallest up, until one does not fit"
        else:
            how = (
                f"{asked.key} from {first}, in steps of {asked.step:g} between {self.values[0]} "
                f"and {self.values[-1]}: the ceiling first, then around the best; about 5 to 8 jobs"
            )
        compiled = "first a compiler says which sizes fit: it costs no job"
        return (
            *([compiled] if self.asks_compiler else []),
            how,
            (
                f"then {asked.blocks} complete blocks of the leading sizes, four at most: "
                f"at most {self.budget} jobs in all"
            ),
        )

    @remembered
    def conclude(self, history: History) -> Conclusion:
        """Return a verdict on every size, the recommended one first."""
        return conclusion(self._findings(history))

    def best(self, conclusion: Conclusion) -> str:
        """Return the id of the recommended size; "" where there is none."""
        return conclusion.found(BatchRecord).arm

    @remembered
    def _findings(self, history: History) -> BatchFindings:
        # by id: the order of arrival says nothing
        own = sorted(results_of(self, history).items())
        return BatchFindings(
            study=self,
            results={name: each for name, each in own if each.trial.stage != COMPILED},
            asked_alone={name: each for name, each in own if each.trial.stage == COMPILED},
        )

    def compiled(self, at: int) -> Trial:
        """Return the trial that asks a compiler for the memory of a value; it is not run."""
        return self._trial(at, COMPILED, 0)

    def probe(self, at: int, position: int = 0) -> Trial:
        """Return the run that tells whether a value fits; a second one stands at position 1."""
        return self._trial(at, PROBE, 0, position)

    def block(self, number: int, places: Sequence[int]) -> tuple[Trial, ...]:
        """Return a block of these values in an order of its own."""

        def drawn(at: int) -> str:
            return digest([self.seed, number, self.every_arm[at].cell_digest])

        return tuple(self._trial(at, BLOCK, number) for at in sorted(places, key=drawn))

    def _trial(self, at: int, stage: str, block: int, position: int = 0) -> Trial:
        arm, cell = self.every_arm[at], self.cells[at]
        return trial_of(arm, cell, study=self.name, stage=stage, block=block, position=position)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.+]+", "-", text.lower()).strip("-.+")[:40] or "none"
