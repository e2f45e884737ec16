"""Which batch size is fastest, and how large a one fits: a search, then fresh blocks.

An arm is a cell: the sweep's own with another value of one key, most often
`per_device_batch_size`, or of that and a second key, whose pairs compiled memory chooses from. A
size that does not fit is an answer. The first run of a size only chooses the sizes to run again;
fresh runs side by side decide. This module must not know of executors or logs.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import ClassVar

import msgspec
from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import Message, say
from pytest_xlatune.model.record import Real
from pytest_xlatune.model.resources import Next, RetryRule
from pytest_xlatune.model.result import Comparison, Conclusion, TrialResult, TrialStatus
from pytest_xlatune.model.sentences import WITH_DETAIL
from pytest_xlatune.model.trial import Arm, CompiledMemory, Trial
from pytest_xlatune.stats.blocks import BlockFit, BlockScore, fit_blocks
from pytest_xlatune.stats.compare import NoComparison, compare, standard_error
from pytest_xlatune.stats.design import MIN_DF, bonferroni, t_quantile
from pytest_xlatune.stats.validity import different_loss
from pytest_xlatune.studies import Aim, Asked, DeclaredStudy, History, LossRule, Policy, Traits
from pytest_xlatune.studies.batch_size._concluded import (
    ALPHA,
    BEST_FILE,
    CUT_AT,
    KIND,
    LANE_CUT,
    PER_DEVICE,
    TARGET_LENGTH,
    BatchRecord,
    SizeCeiling,
    SizeWord,
    conclusion,
    is_unfit,
)
from pytest_xlatune.studies.batch_size._lane import Lane
from pytest_xlatune.studies.batch_size._search import (
    ceiling_by_compiled_memory,
    ceiling_by_formula,
    ceiling_by_log,
)
from pytest_xlatune.studies.cell_arms import (
    CellWalk,
    RankedCells,
    refuse_unless_positive,
)
from pytest_xlatune.studies.staged import name_of
from pytest_xlatune.studies.trials import usable

__all__ = [
    "BEST_FILE",
    "KIND",
    "BatchRecord",
    "BatchSize",
    "BatchStudy",
    "SizeCeiling",
    "SizeWord",
    "ceiling_by_compiled_memory",
    "ceiling_by_formula",
    "ceiling_by_log",
]

PROBE, BLOCK = "probe", "block"
COMPILED = "compiled"  # compiled alone: no job
CUT_SIGMAS = 3.0  # below the lead, or CUT_AT: the sizes that run in blocks
_MOST_LEADERS = 4
_SIGMA = 0.006  # where none was measured
_SAME_FAILURE = 3  # runs that end alike before any other: the configuration
_LEAST_BLOCKS = 2
# what no other size would mend
_STOPS = frozenset(
    {
        *(FailureClass.UNKNOWN_FLAG, FailureClass.BAD_FLAG_VALUE, FailureClass.FLAGS_FILE_MISSING),
        *(FailureClass.IMAGE_MISSING, FailureClass.JOB_SETUP, FailureClass.NOT_STARTED),
    }
)

_MOST_SIZES = 256  # pairs, where there is a second key
_REACH = 4  # times the start: the largest size of a search that names none
MIN_BLOCKS = 2
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
        by: another key whose values go with each size, e.g. `remat_policy`; compiled memory
            says which pairs fit. "" is none.
        by_values: its values.
    """

    kind: ClassVar[str] = KIND
    key: str = PER_DEVICE
    sizes: tuple[Real, ...] = ()
    values: tuple[str, ...] = ()
    is_ordered: bool | None = None
    start: Real | None = None
    step: Real = 1.0
    smallest: Real | None = None
    largest: Real | None = None
    ceiling: Real | None = None
    compiled_ceiling: Real | None = None
    blocks: int = 4
    sigma: Real | None = None
    prefers_smaller: bool = False
    peak_tflops: Real | None = None
    key_of_study: str = ""
    by: str = ""
    by_values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.sizes and self.values:
            raise ConfigError("batch size: sizes= and values= are two lists; leave one out")
        if self.blocks < MIN_BLOCKS:
            raise ConfigError(
                f"batch size: {self.blocks} blocks, expected at least {MIN_BLOCKS}; 4 have the "
                "error rates of docs/reference/error_rates.md"
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
        if "XLA_FLAGS" in (self.key, self.by):
            raise ConfigError("batch size: flags of XLA are tuned by profiles; name another key")
        for name in (self.key, self.by):
            if name.endswith("_parallelism"):
                raise ConfigError(
                    f"batch size: {name} is the cell's parallelism, which its sizes share; give "
                    "each parallelism a study of its own"
                )
        # 2048 and "2048" are one value
        msgspec.structs.force_setattr(self, "by_values", tuple(map(str, self.by_values)))
        self._check_second()

    def _check_second(self) -> None:
        """Refuse a second key that goes with no search, or that says nothing."""
        name, listed = self.by, self.by_values
        if not name:
            if listed:
                raise ConfigError("batch size: by_values need by=")
            return
        if name == self.key:
            raise ConfigError(f"batch size: {name} is both keys; name another by")
        if len(listed) < 2 or len(set(listed)) < len(listed):  # noqa: PLR2004
            raise ConfigError(
                f"batch size: by_values are {listed}, expected two values of {name} or more, "
                "each once"
            )
        if changes_loss(name):
            raise ConfigError(
                f"batch size: {name} changes the computation, so its values are not ranked; leave "
                "it out of by"
            )
        if not self.can_be_compiled:
            raise ConfigError(
                f"batch size: with by={name} compiled memory says which pairs fit: leave "
                "out compiled_ceiling=, and values= or a variable as the first key"
            )

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
        if self.by and not asked.asks_compiler:
            raise ConfigError(
                f"batch size: pairs with {self.by} are chosen by compiled memory, and the "
                "sweep compiles nothing: give it Sweep(compile_check=CompileCheck(...)), or name "
                "one key"
            )
        texts, start = self._listed(asked.cell)
        rows = [asked.cell]
        if self.by:
            rows = [_variant(asked.cell, self.by, each) for each in self.by_values]
        if len(texts) * len(rows) > _MOST_SIZES:
            raise ConfigError(
                f"batch size: {len(texts)} sizes with each of {len(rows)} values of "
                f"{self.by}, expected {_MOST_SIZES} pairs at most; change step=, smallest= "
                "or largest="
            )
        return BatchStudy(
            cells=tuple(_variant(row, self.key, text) for row in rows for text in texts),
            values=texts,
            by_values=self.by_values,
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
        if start < smallest and not expected:
            raise ConfigError(
                f"batch size: it would begin at {self.key}={start:g}, below the smallest size, "
                f"{smallest:g}; change step= or smallest="
            )
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


def changes_loss(key: str) -> bool:
    """Whether a key changes the computation: its values are never ranked."""
    return any(word in key.lower() for word in _CHANGES_LOSS)


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
        said = (self.asked.key, self.asked.key_of_study)
        second = (self.asked.by,) if self.asked.by else ()
        return name_of(KIND, *(said if said != (PER_DEVICE, "") or second else ()), *second)

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
        return changes_loss(self.asked.key)

    @cached_property
    def numbers(self) -> tuple[float, ...]:
        """The values as numbers that ascend with memory."""
        if self.asked.values:
            return tuple(float(at + 1) for at in range(len(self.values)))
        return tuple(map(float, self.values))

    @cached_property
    def ids(self) -> Sequence[str]:
        """An id for each value that may be tried, or for each pair."""
        own = [f"{_short(self.asked.key)}-{_slug(text)}" for text in self.values]
        head = _short(self.asked.by)
        return [f"{each}-{head}-{_slug(text)}" for text in self.by_values for each in own] or own

    @cached_property
    def labels(self) -> Sequence[str]:
        """How a sentence names each value that may be tried: `8`, `8 remat_policy=full`."""
        key = self.asked.by
        pairs = [f"{each} {key}={text}" for text in self.by_values for each in self.values]
        return pairs or self.values

    @property
    def is_listed(self) -> bool:
        """Whether the values were listed by a person, and not made for a search."""
        return self.asked.names_arms

    @property
    def tries_all(self) -> bool:
        """Whether each value is tried, in order, until one does not fit."""
        return self.is_listed or not self.asked.grows

    def arms(self, history: History) -> tuple[Arm, ...]:
        """Return the values that were listed, or those that a search has tried so far."""
        if self.is_listed:
            return self.every_arm
        tried = {each.trial.arm for each in self.walked(history).runs.values()}
        return tuple(each for each in self.every_arm if each.id in tried)

    def outline(self, history: History) -> tuple[Message, ...]:
        """Return what a plan says of it."""
        del history
        asked, count = self.asked, len(self.values)
        first = self.values[self.start]
        if self.is_listed:
            text = (
                (
                    "{values} values of {key}, each once, from the smallest up, until one does "
                    "not fit"
                )
                if asked.grows
                else "{values} values of {key}, each once"
            )
            how = say(text, values=count, key=asked.key)
        else:
            ends = {"least": self.values[0], "most": self.values[-1]}
            how = say(
                "{key} from {start}, in steps of {step:g} between {least} and {most}: the "
                "ceiling first, then around the best; about 5 to 8 jobs",
                key=asked.key,
                start=first,
                step=asked.step,
                **ends,
            )
        pairs = {"key": asked.by, "values": list(self.by_values)}
        each = (
            ("with each of {values} of {key}: a job for each pair that compiled memory lets fit")
            if self.is_listed
            else (
                "with each of {values} of {key}, where compiled memory lets the pair fit: about "
                "3 jobs more for each further value"
            )
        )
        return (
            *(
                [say("first a compiler says which sizes fit: it costs no job")]
                if self.asks_compiler
                else []
            ),
            how,
            *([say(each, **pairs)] if self.by_values else []),
            say(
                "then {blocks} complete blocks of the leading sizes, four at most: at most "
                "{budget} jobs in all",
                blocks=asked.blocks,
                budget=self.budget,
            ),
        )

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


class BatchWalk(CellWalk[BatchStudy]):
    """One search as far as it came, and what it shows of the values, by their places in the list.

    What has run is taken as it is, whichever search asked for it: a larger budget goes on from it.
    """

    def __init__(self, study: BatchStudy, history: History) -> None:
        super().__init__(study, history)
        # by id: the order of arrival says nothing
        own = sorted(self.results.items())
        self.runs = {name: each for name, each in own if each.trial.stage != COMPILED}
        self.blocks: list[tuple[Trial, ...]] = []  # those that were begun

    def walk(self) -> None:
        """Compile sizes, search by single runs, then compare the leaders in blocks."""
        if (asked := self.next_compiled) is not None:
            self.run([asked], later=self._left_of_search - 1)
        if (probe := self.next_probe) is not None:
            self.run([probe], later=self._left_of_search - 1)
        places, blocks = [*self.compared], self.affordable[1]
        # what did not fit in a block is in no later one; one alone is compared with nothing
        while len(self.blocks) < blocks and len(places) > 1:
            arms = (self.study.every_arm[at] for at in places)
            trials = self.study.block(BLOCK, len(self.blocks) + 1, arms)
            self.blocks.append(trials)
            later = (blocks - len(self.blocks)) * len(self.compared)
            gone = {each.trial.arm for each in self.run(trials, later=later) if is_unfit(each)}
            places = [at for at in places if self.study.ids[at] not in gone]

    @property
    def _left_of_search(self) -> int:
        """How many trials are likely still to come while it searches, the blocks included."""
        wanted = 1 + 2 * self.study.asked.blocks
        if self.study.tries_all:
            ends = ((lane.first, lane.known) for lane in self.lanes)
            left = (at for first, known in ends for at in range(first, first + known.end))
            wanted += sum(at not in self.probes for at in left) - 1
        else:
            wanted += max(2 + 3 * len(self.lanes) - len(self.probes), 0)
        begun = self.next_probe is not None and self.next_probe.id in self.runs
        return max(min(wanted, self.study.budget - len(self.runs) + begun), 1)

    def conclusion(self) -> Conclusion:
        """Return a verdict on every size, the recommended one first."""
        return conclusion(self)

    @cached_property
    def place_of(self) -> Mapping[str, int]:
        return {name: at for at, name in enumerate(self.study.ids)}

    @cached_property
    def by_place(self) -> Mapping[int, Sequence[TrialResult]]:
        """Place -> its runs, blocks last; the second run of a hang stands behind the first."""
        found: dict[int, list[TrialResult]] = {at: [] for at in self.place_of.values()}
        ordered = sorted(self.runs.values(), key=lambda e: (e.trial.block, e.trial.position))
        for each in ordered:
            if each.trial.arm in self.place_of:
                found[self.place_of[each.trial.arm]].append(each)
        return found

    @cached_property
    def probes(self) -> Mapping[int, Sequence[TrialResult]]:
        """Place -> its finished runs outside blocks, where it has any."""
        found = {
            at: [each for each in own if not each.trial.block and each.status.is_final]
            for at, own in self.by_place.items()
        }
        return {at: own for at, own in found.items() if own}

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
        return tuple(Lane(self, number) for number in range(max(len(self.study.by_values), 1)))

    def lane_of(self, at: int) -> Lane:
        """Return the lane of a place."""
        return self.lanes[at // len(self.study.values)]

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
        in_blocks = {
            at
            for at, own in self.by_place.items()
            if any(each.trial.block and is_unfit(each) for each in own)
        }
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
        return {
            at: own[-1]
            for at, own in self.probes.items()
            if at not in self.scores and at not in self.unfit and at not in self.hung
        }

    @cached_property
    def answers(self) -> Mapping[int, CompiledMemory]:
        """Place -> what compiling says of its memory."""
        return {
            self.place_of[each.trial.arm]: each.memory
            for each in self.results.values()
            if each.status.is_final and each.memory is not None
        }

    @cached_property
    def next_compiled(self) -> Trial | None:
        """The size that is to be compiled next; None where nothing is asked, or all is known."""
        if not self.study.asks_compiler or self.stopped:
            return None
        return next(filter(None, (lane.next_compiled for lane in self.lanes)), None)

    @cached_property
    def stopped(self) -> Message | None:
        """Why no other size is tried: what failed is no matter of size; None: it is one."""
        unknown = [(at, each.said) for at, each in self.answers.items() if each.fits is None]
        if self.study.by_values and unknown:
            # a value that the trainer refuses is one of several
            at, said = unknown[0]
            why = say(WITH_DETAIL, why=said, detail=self.study.labels[at])
            return say(
                "pairs with {key} are chosen by compiled memory, and there is none: {why}",
                key=self.study.asked.by,
                why=why,
            )
        over = [own[-1] for own in self.probes.values()]
        for each in over:
            if usable(each) is None and (cause := cause_of(each)) in _STOPS:
                return say(
                    "{cause}: {why}: no other size would mend it", cause=cause, why=each.reason
                )
        if self.scores or len(self.lost) < _SAME_FAILURE:
            return None
        causes = Counter[str | Message | None](
            cause_of(each) or each.reason for each in self.lost.values()
        )
        common, count = causes.most_common(1)[0]
        if count < _SAME_FAILURE:
            return None
        return say(
            "the first {sizes} sizes all ended in {cause}: the configuration is wrong, not "
            "the size",
            sizes=count,
            cause=common,
        )

    @cached_property
    def wanted(self) -> Trial | None:
        """The run outside blocks that would tell more, whatever the budget; None: there is none."""
        if self.stopped:
            return None
        if self.hung:
            return self.study.probe(min(self.hung), 1)
        found = (lane.wanted for lane in self._in_turn)
        place = next((each for each in found if each is not None), None)
        return None if place is None else self.study.probe(place)

    @cached_property
    def _in_turn(self) -> Sequence[Lane]:
        """The lanes that are searched: those without a figure first, the last value before others.

        Then the one that leads. One far behind is given up, unless each pair is tried.
        """
        if self.study.tries_all:
            return self.lanes[::-1]
        new = [lane for lane in reversed(self.lanes) if lane.best is None]
        begun = sorted(
            (lane for lane in self.lanes if lane not in self.given_up and lane not in new),
            key=lambda lane: -(lane.best or 0.0),
        )
        return (*new, *begun)

    @cached_property
    def given_up(self) -> Sequence[Lane]:
        """The lanes whose best first run is far behind the lead: no further size was tried."""
        if self.study.tries_all:
            return ()
        bests = [lane.best for lane in self.lanes if lane.best is not None]
        cut = max(bests, default=0.0) - LANE_CUT
        return [lane for lane in self.lanes if lane.best is not None and lane.best < cut]

    @cached_property
    def next_probe(self) -> Trial | None:
        """The run that is wanted next outside blocks; None where the search is over."""
        trial, least = self.wanted, 2 * _LEAST_BLOCKS
        if trial is None or trial.id in self.runs:
            return trial
        # the ceiling and a first figure are worth more than two blocks of two sizes
        is_kept = len(self.scores) > 1 and self.study.budget >= 2 * least
        left = self.study.budget - len(self.runs) - (least if is_kept else 0)
        return trial if left > 0 else None

    @property
    def is_cut_short(self) -> bool:
        """Whether the budget ended the search."""
        return self.wanted is not None and self.next_probe is None

    @cached_property
    def another_loss(self) -> Mapping[int, Message]:
        """Place -> how its loss differs from the first value's of the same batch and length.

        Another batch, or another length of it, has another loss.
        """
        tolerance = self.study.loss_tolerance
        losses = {
            at: (score.loss, score.first_loss)
            for at, own in sorted(self.probes.items())
            for each in own
            if (score := usable(each)) and score.loss is not None
        }
        first: dict[tuple[float | None, int | None], tuple[float, float | None]] = {}
        told = {}
        for at, (loss, began) in losses.items():
            cell = self.study.cells[at]
            size = (cell.per_device_batch_size, cell.max_target_length)
            of, of_began = first.setdefault(size, (loss, began))
            told[at] = different_loss(loss, of, tolerance=tolerance, first=of_began)
        return {at: why for at, why in told.items() if why}

    @cached_property
    def ranked(self) -> tuple[int, ...]:
        """Places that may be recommended, the fastest first run first."""
        if self.study.changes_loss:
            return ()
        return tuple(self._fastest(self.unfit.union(self.another_loss)))

    def _fastest(self, but: Collection[int]) -> list[int]:
        """Return the places that ran, the fastest first run first, some left out."""
        ran = [at for at in self.scores if at not in but]
        return sorted(ran, key=lambda at: (-self.scores[at], at))

    @cached_property
    def leaders(self) -> tuple[int, ...]:
        """The values that are run in blocks; () where a single one leads beyond all noise."""
        if self.next_probe is not None:
            return ()
        # by their first runs alone: a leader that fails later leaves its block, and no other enters
        ranked = self._fastest(self._above(self.unfit_probes).union(self.another_loss))
        if self.study.changes_loss or not ranked:
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
        probed = sum(not each.trial.block for each in self.runs.values())
        left = self.study.budget - probed
        for width in range(len(self.leaders), 1, -1):
            blocks = min(left // width, self.study.asked.blocks)
            if blocks >= _LEAST_BLOCKS:
                return width, blocks
        return 0, 0

    @cached_property
    def compared(self) -> tuple[int, ...]:
        return self.leaders[: self.affordable[0]]

    @cached_property
    def block_scores(self) -> tuple[BlockScore, ...]:
        planned = {each.id for trials in self.blocks for each in trials}
        return tuple(
            # nothing compares across a change of nodes
            BlockScore(block=(each.trial.block, each.epoch), arm=each.trial.arm, value=score.value)
            for each in self.runs.values()
            if each.trial.id in planned
            and self.place_of[each.trial.arm] not in self.unfit
            and (score := usable(each))
        )

    @cached_property
    def fitted(self) -> tuple[BlockFit, int] | None:
        """Least squares of the blocks, held against the place that leads among them."""
        names = [self.study.ids[at] for at in self.compared]
        for control in names:
            first = fit_blocks(self.block_scores, control=control)
            if first is None or not first.arms:
                continue
            leader = max(first.arms, key=lambda name: first.arms[name].estimate)
            if first.arms[leader].estimate <= 0:
                return first, self.place_of[control]
            again = fit_blocks(self.block_scores, control=leader)
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

    def against_lead(self, at: int) -> Comparison | NoComparison:
        """Compare a leader with the best of them."""
        if self.fit is None:
            return NoComparison(reason=say("no block holds it and the best"))
        family = max(len(self.compared) - 1, 1)
        return compare(self.fit, self.study.ids[at], family=family, alpha=ALPHA)

    @cached_property
    def noise(self) -> float | None:
        """Standard deviation of one job's score: of the blocks, else as declared."""
        if self.fit is not None and math.isfinite(self.fit.sigma):
            return self.fit.sigma
        return self.study.asked.sigma

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
        if self.lead is None:
            return {}
        found = {}
        for at in self.ranked:
            if at == self.lead:
                continue
            pair = self.against_lead(at) if at in self.compared else None
            if isinstance(pair, Comparison):
                reach = bonferroni(max(len(self.compared) - 1, 1), pair.df, alpha=ALPHA)
                found[at] = pair.estimate + reach * standard_error(pair) < 0
            elif self.fit is None and at in self.leaders:
                found[at] = False  # the budget left no block
            else:
                gap = self.scores[self.lead] - self.scores[at]
                found[at] = at not in self.compared and gap > self.by_chance
        return found

    @cached_property
    def same(self) -> tuple[int, ...]:
        """The best and what cannot be told from it, ascending."""
        if self.lead is None:
            return ()
        others = [at for at, apart in self.told_apart.items() if not apart]
        return tuple(sorted((self.lead, *others)))

    @cached_property
    def recommended(self) -> int | None:
        if self.lead is None or not self.is_over:
            return None
        if not self.study.asked.prefers_smaller:
            return self.lead
        return min(self.same, key=lambda at: at % len(self.study.values))


def cause_of(result: TrialResult) -> str:
    """Return the class that a run without a score ended in; "" where nothing was diagnosed."""
    return next((each.cls for each in (*result.asking, *reversed(result.findings))), "")


def _short(key: str) -> str:
    return _SHORT.get(key) or _slug(key)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.+]+", "-", text.lower()).strip("-.+")[:40] or "none"
