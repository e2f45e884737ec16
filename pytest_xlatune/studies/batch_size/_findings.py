"""What a history says of sizes: which one is tried next, and which are compared in blocks.

Plans no trial of its own: the study names them. The reference note is docs/how-to/batch.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.reason import Reason, Why
from pytest_xlatune.model.result import (
    Action,
    Comparison,
    NotRun,
    TrialResult,
    TrialStatus,
)
from pytest_xlatune.model.trial import Arm, CompiledMemory, Trial
from pytest_xlatune.stats.blocks import BlockFit, BlockScore, fit_blocks
from pytest_xlatune.stats.compare import NoComparison, compare, standard_error
from pytest_xlatune.stats.design import bonferroni
from pytest_xlatune.stats.validity import different_loss
from pytest_xlatune.studies.batch_size._search import (
    START,
    CompiledSizes,
    KnownSizes,
    in_order,
    searched,
)
from pytest_xlatune.studies.trials import usable

PROBE, BLOCK = "probe", "block"
COMPILED = "compiled"  # compiled alone: no job
ALPHA = 0.05
CUT_SIGMAS, CUT_AT = 3.0, 0.01  # below the lead: the sizes that run in blocks
_MOST_LEADERS = 4
_SIGMA = 0.006  # where none was measured
_SAME_FAILURE = 3  # runs that end alike before any other: the configuration
_LEAST_BLOCKS = 2
# the memory of a device, of its host, or what the pool leaves outside
NO_FIT = frozenset(
    {
        *(FailureClass.OOM_GPU, FailureClass.OOM_RCCL_HEADROOM, FailureClass.OOM_HOST),
        *(FailureClass.HANG_SILENT_OOM, FailureClass.KILLED),
    }
)
# what no other size would mend
_STOPS = frozenset(
    {
        *(FailureClass.UNKNOWN_FLAG, FailureClass.BAD_FLAG_VALUE, FailureClass.FLAGS_FILE_MISSING),
        *(FailureClass.IMAGE_MISSING, FailureClass.JOB_SETUP, FailureClass.NOT_STARTED),
    }
)


class SizeDemands(Protocol):
    """The demands of a declaration."""

    @property
    def key(self) -> str: ...
    @property
    def values(self) -> tuple[str, ...]: ...
    @property
    def grows(self) -> bool: ...
    @property
    def start(self) -> float | None: ...
    @property
    def compiled_ceiling(self) -> float | None: ...
    @property
    def blocks(self) -> int: ...
    @property
    def sigma(self) -> float | None: ...
    @property
    def peak_tflops(self) -> float | None: ...
    @property
    def prefers_smaller(self) -> bool: ...


class SizePlan(Protocol):
    """The study as its findings need it."""

    @property
    def asked(self) -> SizeDemands: ...
    @property
    def values(self) -> tuple[str, ...]: ...
    @property
    def numbers(self) -> tuple[float, ...]: ...
    @property
    def start(self) -> int: ...
    @property
    def budget(self) -> int: ...
    @property
    def loss_tolerance(self) -> float: ...
    @property
    def is_listed(self) -> bool: ...
    @property
    def asks_compiler(self) -> bool: ...
    @property
    def changes_loss(self) -> bool: ...
    @property
    def keeps_loss(self) -> bool: ...
    @property
    def every_arm(self) -> tuple[Arm, ...]: ...
    def compiled(self, at: int) -> Trial: ...
    def probe(self, at: int, position: int = 0) -> Trial: ...
    def block(self, number: int, places: Sequence[int]) -> tuple[Trial, ...]: ...


def cause_of(result: TrialResult) -> str:
    """Return the class that a run without a score ended in; "" where nothing was diagnosed."""
    asked = [each for each in result.findings if each.action not in (Action.NONE, Action.SUCCESS)]
    return next((each.cls for each in (*asked, *reversed(result.findings))), "")


def is_unfit(result: TrialResult) -> bool:
    """Whether a run shows that its value does not fit."""
    if result.status is not TrialStatus.DROPPED:
        return False
    if result.not_run is NotRun.CANNOT:
        return True
    return any(each.cls in NO_FIT for each in result.findings)


# without slots: results are worked out once and kept
@dataclass(frozen=True, kw_only=True)
class BatchFindings:
    """What a history says of the values, by their places in the list."""

    study: SizePlan
    results: Mapping[str, TrialResult]
    asked_alone: Mapping[str, TrialResult]  # those of compiled sizes

    def _final(self, trial: Trial) -> TrialResult | None:
        found = self.results.get(trial.id)
        return found if found is not None and found.status.is_final else None

    @cached_property
    def place_of(self) -> Mapping[str, int]:
        return {arm.id: at for at, arm in enumerate(self.study.every_arm)}

    @cached_property
    def probes(self) -> Mapping[int, tuple[TrialResult, ...]]:
        """Place -> its finished runs outside blocks, the second one of a hang behind the first."""
        found: dict[int, list[TrialResult]] = {}
        ordered = sorted(self.results.values(), key=lambda each: each.trial.position)
        for each in ordered:
            if not each.trial.block and each.status.is_final and each.trial.arm in self.place_of:
                found.setdefault(self.place_of[each.trial.arm], []).append(each)
        return {at: tuple(own) for at, own in sorted(found.items())}

    @cached_property
    def scores(self) -> Mapping[int, float]:
        """Place -> log score of its first run."""
        found = {}
        for at, own in self.probes.items():
            scored = [score.value for each in own if (score := usable(each))]
            if scored:
                found[at] = scored[0]
        return found

    @cached_property
    def hung(self) -> frozenset[int]:
        """Places whose only run stood still before its first step, while a smaller size ran."""
        return frozenset(
            at
            for at, own in self.probes.items()
            if len(own) == 1
            and own[0].status is TrialStatus.DROPPED
            and cause_of(own[0]) == FailureClass.HANG_SILENT_OOM
            and any(other < at for other in self.scores)
        )

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
            self.place_of[each.trial.arm]
            for each in self.results.values()
            if each.trial.block and each.status.is_final and is_unfit(each)
        }
        found = self.unfit_probes | in_blocks
        return found | self._above(found)

    def _above(self, unfit: Collection[int]) -> frozenset[int]:
        """Return the places that ran above the smallest of these, where memory grows with them."""
        if not unfit or not self.study.asked.grows:
            return frozenset()
        return frozenset(at for at in self.scores if at > min(unfit))

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
            for each in self.asked_alone.values()
            if each.status.is_final and each.memory is not None
        }

    @cached_property
    def compiled(self) -> CompiledSizes:
        """What compiling says of all sizes together."""
        known = self.answers
        limits = [each.limit_bytes for each in known.values() if each.limit_bytes is not None]
        return CompiledSizes(
            sizes=self.study.numbers,
            start=self.study.start,
            needed={
                at: float(each.needed_bytes)
                for at, each in sorted(known.items())
                if each.needed_bytes is not None and each.fits is not None
            },
            limit=limits[0] if limits else None,
            unfit=[at for at, each in known.items() if each.fits is False],
            is_over=any(each.fits is None for each in known.values()),
        )

    @cached_property
    def next_compiled(self) -> Trial | None:
        """The size that is to be compiled next; None where nothing is asked, or all is known."""
        if not self.study.asks_compiler:
            return None
        found = self.compiled.next()
        return None if found is None else self.study.compiled(found)

    @cached_property
    def start(self) -> int:
        """The place of the first job: below the compiled ceiling where no size was asked for."""
        if self.compiled.top is None or self.study.asked.start is not None:
            return min(self.study.start, self.top)
        wanted = START * self.study.numbers[self.top]
        return min(range(self.top + 1), key=lambda at: abs(self.study.numbers[at] - wanted))

    @cached_property
    def top(self) -> int:
        """The largest place that may be tried."""
        limit = self.study.asked.compiled_ceiling
        last = len(self.study.values) - 1
        if self.compiled.top is not None:
            return max(self.compiled.top, 0)  # where none fits, a job says so
        if limit is None or not self.study.asked.grows:
            return last
        fitting = [at for at, each in enumerate(self.study.numbers) if each <= limit]
        return max(fitting, default=0)

    @cached_property
    def known(self) -> KnownSizes:
        grows = self.study.asked.grows
        # sizes that failed in a block were below the ceiling of the search
        probed = {at for at in self.unfit if at not in self.scores}
        return KnownSizes(
            sizes=self.study.numbers,
            scores=self.scores,
            unfit=probed if grows else (),
            lost=self.lost if grows else {*self.lost, *probed},
            top=self._top_after(probed),
            is_compiled=self.compiled.top is not None,
        )

    def _top_after(self, unfit: Collection[int]) -> int:
        """Return the largest place to try after jobs of these did not fit.

        One that a compiler said would fit shows that it does not see everything: the search came
        from below, and risks no further size beside it.
        """
        failed = min(unfit, default=None)
        ran = [at for at in self.scores if failed is not None and at < failed]
        if failed is None or not ran or self.compiled.top is None:
            return self.top
        return max(ran)

    @cached_property
    def used(self) -> int:
        return len(self.results)

    @cached_property
    def reserve(self) -> int:
        """Jobs that refining leaves for two blocks of two sizes."""
        least = _LEAST_BLOCKS * 2
        return least if self.study.budget >= 2 * least else 0

    @cached_property
    def stopped(self) -> Reason | None:
        """Why no other size is tried: what failed is no matter of size; None: it is one."""
        over = [own[-1] for own in self.probes.values()]
        for each in over:
            if usable(each) is None and (cause := cause_of(each)) in _STOPS:
                return Reason(Why.NO_SIZE_MENDS, cause=cause, why=each.reason)
        if self.scores or len(self.lost) < _SAME_FAILURE:
            return None
        causes = Counter[str | Reason | None](
            cause_of(each) or each.reason for each in self.lost.values()
        )
        common, count = causes.most_common(1)[0]
        if count < _SAME_FAILURE:
            return None
        return Reason(Why.ALL_SIZES_FAIL, sizes=count, cause=common)

    @cached_property
    def next_probe(self) -> Trial | None:
        """The run that is wanted next outside blocks; None where the search is over."""
        if self.stopped:
            return None
        found: int | None
        again = min(self.hung, default=None)
        if again is not None:
            trial = self.study.probe(again, 1)
        else:
            is_whole = self.study.is_listed or not self.study.asked.grows
            found = in_order(self.known) if is_whole else searched(self.known, self.start)
            if found is None:
                return None
            trial = self.study.probe(found)
        if trial.id in self.results:
            return trial
        # the ceiling and a first figure are worth more than blocks
        least = self.reserve if len(self.scores) > 1 else 0
        return trial if self.used + 1 + least <= self.study.budget else None

    @cached_property
    def is_cut_short(self) -> bool:
        """Whether the budget ended the search."""
        if self.stopped or self.next_probe is not None:
            return False
        is_whole = self.study.is_listed or not self.study.asked.grows
        more = in_order(self.known) if is_whole else searched(self.known, self.start)
        return more is not None or bool(self.hung)

    @cached_property
    def another_loss(self) -> Mapping[int, Reason]:
        """Place -> how its loss differs from the first value's, where all must compute the same."""
        if not self.study.keeps_loss:
            return {}
        losses = {
            at: score.loss
            for at, own in self.probes.items()
            for each in own
            if (score := usable(each)) and score.loss is not None
        }
        if not losses:
            return {}
        first = losses[min(losses)]
        tolerance = self.study.loss_tolerance
        told = {at: different_loss(each, first, tolerance=tolerance) for at, each in losses.items()}
        return {at: why for at, why in told.items() if why}

    @cached_property
    def ranked(self) -> tuple[int, ...]:
        """Places that may be recommended, the fastest first run first."""
        if self.study.changes_loss:
            return ()
        fit = [at for at in self.scores if at not in self.unfit and at not in self.another_loss]
        return tuple(sorted(fit, key=lambda at: (-self.scores[at], at)))

    @property
    def sigma(self) -> float:
        """The noise by which sizes are chosen for blocks."""
        return self.study.asked.sigma or _SIGMA

    @cached_property
    def leaders(self) -> tuple[int, ...]:
        """The values that are run in blocks; () where a single one leads beyond all noise."""
        if self.next_probe is not None:
            return ()
        # by their first runs alone: a leader that fails later leaves its block, and no other enters
        gone = self._above(self.unfit_probes).union(self.another_loss)
        able = [at for at in self.scores if at not in gone]
        ranked = sorted(able, key=lambda at: (-self.scores[at], at))
        if self.study.changes_loss or not ranked:
            return ()
        cut = self.scores[ranked[0]] - max(CUT_SIGMAS * self.sigma, CUT_AT)
        near = [at for at in ranked if self.scores[at] >= cut][:_MOST_LEADERS]
        if self.study.asked.sigma is None:
            near = ranked[: max(len(near), 2)]  # the noise is known by blocks alone
        return tuple(near) if len(near) > 1 else ()

    @cached_property
    def affordable(self) -> tuple[int, int]:
        """How many leaders in how many blocks the budget allows."""
        probed = sum(not each.trial.block for each in self.results.values())
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
    def blocks(self) -> tuple[tuple[Trial, ...], ...]:
        """The blocks as far as they can be planned; what did not fit in one is in no later one."""
        blocks: list[tuple[Trial, ...]] = []
        places = list(self.compared)
        for number in range(1, self.affordable[1] + 1):
            trials = self.study.block(number, places)
            blocks.append(trials)
            ended = [self._final(each) for each in trials]
            if not all(ended):
                break
            gone = {self.place_of[each.trial.arm] for each in ended if each and is_unfit(each)}
            places = [at for at in places if at not in gone]
            if len(places) < 2:  # noqa: PLR2004 - one is compared with nothing
                break
        return tuple(blocks)

    @cached_property
    def pending(self) -> tuple[Trial, ...]:
        if self.next_compiled is not None:
            return (self.next_compiled,)
        probe = self.next_probe
        if probe is not None:
            return (probe,)
        for trials in self.blocks:
            left = tuple(each for each in trials if self._final(each) is None)
            if left:
                return left
        return ()

    @property
    def left(self) -> int:
        """How many trials are likely still to come."""
        if not self.pending:
            return 0
        if self.next_probe is None:
            later = self.affordable[1] - len(self.blocks)
            return len(self.pending) + later * len(self.compared)
        wanted = 1 + 2 * self.study.asked.blocks
        if self.study.is_listed or not self.study.asked.grows:
            wanted += sum(at not in self.probes for at in range(self.known.end)) - 1
        else:
            wanted += max(5 - len(self.probes), 0)
        begun = self.next_probe.id in self.results
        return max(min(wanted, self.study.budget - self.used + begun), 1)

    def of(self, at: int) -> list[TrialResult]:
        """Return all results of a place, probes first."""
        arm = self.study.every_arm[at].id
        own = [each for each in self.results.values() if each.trial.arm == arm]
        return sorted(own, key=lambda each: (each.trial.block, each.trial.position))

    @cached_property
    def block_scores(self) -> tuple[BlockScore, ...]:
        planned = {each.id for trials in self.blocks for each in trials}
        return tuple(
            # nothing compares across a change of nodes
            BlockScore(block=(each.trial.block, each.epoch), arm=each.trial.arm, value=score.value)
            for each in self.results.values()
            if each.trial.id in planned
            and self.place_of[each.trial.arm] not in self.unfit
            and (score := usable(each))
        )

    @cached_property
    def fitted(self) -> tuple[BlockFit, int] | None:
        """Least squares of the blocks, held against the place that leads among them."""
        names = [self.study.every_arm[at].id for at in self.compared]
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
            return NoComparison(reason=Reason(Why.NO_BLOCK_WITH_BEST))
        family = max(len(self.compared) - 1, 1)
        return compare(self.fit, self.study.every_arm[at].id, family=family, alpha=ALPHA)

    @cached_property
    def noise(self) -> float | None:
        """Standard deviation of one job's score: of the blocks, else as declared."""
        if self.fit is not None and math.isfinite(self.fit.sigma):
            return self.fit.sigma
        return self.study.asked.sigma

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
                sigma = self.study.asked.sigma or self.noise or _SIGMA
                gap = self.scores[self.lead] - self.scores[at]
                found[at] = at not in self.compared and gap > max(CUT_SIGMAS * sigma, CUT_AT)
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
        if self.lead is None or self.pending:
            return None
        return self.same[0] if self.study.asked.prefers_smaller else self.lead
