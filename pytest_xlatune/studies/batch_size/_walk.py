"""How far a search for a batch size came, the verdict on each size, and the recommended one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace

from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import Message, say
from pytest_xlatune.model.pairs import CellsRecord
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
from pytest_xlatune.model.trial import CompiledMemory, Trial
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
from pytest_xlatune.studies import History
from pytest_xlatune.studies.batch_size._lane import Lane
from pytest_xlatune.studies.cell_arms import CellWalk, decided, dropped, undecided
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

if TYPE_CHECKING:
    from pytest_xlatune.studies.batch_size import BatchStudy

KIND = "batch"
BEST_FILE = "batch.best"  # in the work directory: the setting, one line
PER_DEVICE = "per_device_batch_size"
PROBE, BLOCK = "probe", "block"
COMPILED = "compiled"  # compiled alone: no job
ALPHA = 0.05
CUT_SIGMAS, CUT_AT = 3.0, 0.01  # below the lead, the larger of both: the sizes that run in blocks
_MOST_LEADERS = 4
_SIGMA = 0.006  # where none was measured
_SAME_FAILURE = 3  # runs that end alike before any other: the configuration
_LEAST_BLOCKS = 2
_BEST = say("the best")
_NEAR = say("it is too near to the ceiling to be relied on")
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
    """What a search for a batch size found besides its verdicts.

    Attributes:
        key: what differed.
        by: a second key whose values went with each size: values are named with it then, `8
            remat_policy=full`; "" is none.
        arm, value: the recommended one; "" where there is none.
        same: values that cannot be told from the best, itself among them.
        largest, unfit: the largest that ran, the smallest that did not fit; "" is unknown.
        is_at_end: whether the largest that may be tried ran, so that the ceiling is above it.
        blocks: complete blocks behind the recommendation; 0 is a single run.
        answer: the recommendation, or why there is none; before the blocks the first answer.
        ranks: whether its values are ranked at all.
        is_over: whether nothing is left to run.
    """

    kind: ClassVar[str] = KIND
    key: str = PER_DEVICE
    by: str = ""
    arm: str = ""
    value: str = ""
    same: tuple[str, ...] = ()
    largest: str = ""
    unfit: str = ""
    is_at_end: bool = False
    blocks: int = 0
    answer: Message | None = None
    ranks: bool = True
    is_over: bool = False

    @property
    def setting(self) -> str:
        """The recommended setting, as a launcher takes it; "" where there is none."""
        return f"{self.key}={self.value}" if self.value else ""

    @property
    def summary(self) -> tuple[Message, ...]:
        """The recommendation, what cannot be told from it, the ceiling."""
        others = [each for each in self.same if each != self.value]
        same = say("cannot be told from it: {values}", values=others) if others else None
        return tuple(filter(None, (self.answer, same, self.ceiling)))

    @property
    def objection(self) -> tuple[Message, ...]:
        """That nothing can be recommended, once the study is over and was to rank."""
        is_missing = self.is_over and self.ranks and not self.value
        return (self.answer,) if is_missing and self.answer else ()

    @property
    def ceiling(self) -> Message | None:
        """The ceiling in words; None where nothing is known of it."""
        if self.unfit:
            ran = self.largest or "none"
            return say("ceiling: {ran} ran, {unfit} did not fit", ran=ran, unfit=self.unfit)
        if self.largest and self.is_at_end:
            return say("ceiling: {ran} ran, and no larger one may be tried", ran=self.largest)
        return None

    @property
    def files(self) -> Mapping[str, str]:
        """The recommended setting, one line."""
        return {BEST_FILE: f"{self.setting}\n"} if self.setting else {}


def is_unfit(result: TrialResult) -> bool:
    """Whether a run shows that its value does not fit."""
    if result.status is not TrialStatus.DROPPED:
        return False
    is_refused = result.not_run is NotRun.CANNOT
    return is_refused or any(each.cls in _UNFIT for each in result.findings)


def cause_of(result: TrialResult) -> str:
    """Return the class that a run without a score ended in; "" where nothing was diagnosed."""
    return next((each.cls for each in (*result.asking, *reversed(result.findings))), "")


class BatchWalk(CellWalk["BatchStudy"]):
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
        if self.study.asked.names_arms:
            ends = ((lane.first, lane.known) for lane in self.lanes)
            left = (at for first, known in ends for at in range(first, first + known.end))
            wanted += sum(at not in self.probes for at in left) - 1
        else:
            wanted += max(5 - len(self.probes), 0)
        begun_runs = self.next_probe is not None and self.next_probe.id in self.runs
        return max(min(wanted, self.study.budget - len(self.runs) + begun_runs), 1)

    # -- what ran, by places

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

    # -- what to run next

    @cached_property
    def next_compiled(self) -> Trial | None:
        """The size that is to be compiled next; None where nothing is asked, or all is known."""
        if not self.study.asks_compiler or self.stopped:
            return None
        found = (lane.next_compiled for lane in self.lanes)
        place = next((each for each in found if each is not None), None)
        return None if place is None else self.study.compiled(place)

    @cached_property
    def stopped(self) -> Message | None:
        """Why no other size is tried: what failed is no matter of size; None: it is one."""
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
        found = (lane.wanted for lane in reversed(self.lanes))
        place = next((each for each in found if each is not None), None)
        return None if place is None else self.study.probe(place)

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
            size = (cell.per_device_batch_size, cell.max_target_length)
            score = next(filter(None, map(usable, own)), None)
            if score is None or score.loss is None:
                continue
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
        if self.next_probe is not None:
            return ()
        # by their first runs alone: a leader that fails later leaves its block, and no other enters
        ranked = self._fastest(self._above(self.unfit_probes).union(self.another_loss))
        if not ranked:
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

    # -- conclusion

    def conclusion(self) -> Conclusion:
        """Return a verdict on every size, the recommended one first."""
        study, lead, labels = self.study, self.lead if self.is_over else None, self.study.labels
        tried = sorted({*self.probes, *self.unfit})
        shown = range(len(study.cells)) if study.asked.names_arms else tried
        told = {at: self._verdict(at) for at in shown}
        order = sorted(told, key=lambda at: (at != lead, not told[at].n, -(told[at].delta or 0.0)))
        best = told.get(lead) if lead is not None else None
        verdicts = [beside(told[at], best) if told[at].against == _BEST else told[at]
                    for at in order]  # fmt: skip
        largest, unfit, is_at_end = self._ceiling()
        record = BatchRecord(
            sigma=self.noise,
            mde80=next((each.mde80 for each in verdicts if each.mde80), None),
            peak_tflops=study.asked.peak_tflops,
            key=study.asked.key,
            by=study.asked.by,
            arm="" if lead is None else study.ids[lead],
            value="" if lead is None else labels[lead],
            same=tuple(labels[at] for at in self.same) if self.is_over else (),
            largest=largest,
            unfit=unfit,
            is_at_end=is_at_end,
            blocks=self.fit.n_blocks if self.fit is not None else 0,
            answer=self._answer(best, verdicts) if self.is_over else self._first_answer(),
            ranks=not study.changing_key,
            is_over=self.is_over,
        )
        return Conclusion(
            verdicts=tuple(verdicts),
            record=record,
            alpha=ALPHA if self.blocks else 0.0,
            complete=self.is_over,
            notes=tuple(self._notes()) if self.is_over else (),
        )

    def _ceiling(self) -> tuple[str, str, bool]:
        """Return the largest that ran, the smallest that did not fit, whether none is above."""
        study, (lane, *others) = self.study, self.lanes
        if others or not study.asked.grows:
            return "", "", False
        unfit = min(self.unfit, default=None)
        ran = [at for at in self.scores if unfit is None or at < unfit]
        largest = max(ran, default=None)
        texts = ("" if at is None else study.values[at] for at in (largest, unfit))
        return *texts, largest is not None and largest >= lane.top  # type: ignore[return-value]

    def _first_answer(self) -> Message | None:
        """Return what single runs say, once the search is over and blocks are left to run."""
        if self.next_compiled is not None or self.next_probe is not None or not self.ranked:
            return None
        best, *others = (self.study.labels[at] for at in self.compared)
        text = "first answer, by single runs: {key}={best}; blocks with {others} decide"
        return say(text, key=self.study.asked.key, best=best, others=others)

    def _answer(self, best: Verdict | None, verdicts: Sequence[Verdict]) -> Message:
        study, key = self.study, self.study.asked.key
        if best is None:
            if self.stopped:
                return say("no value of {key} is recommended: {why}", key=key, why=self.stopped)
            if study.changing_key and self.scores:
                return say(
                    "{key} changes the computation: its values are not ranked by speed",
                    key=study.changing_key,
                )
            if self.unfit and not self.scores:
                return say("no value of {key} fits", key=key)
            return say("no value of {key} is recommended: none was measured", key=key)
        in_blocks = self.fit.arms if self.fit else None  # a single run says less than they
        others = [
            each
            for each in verdicts
            if each.against == _BEST
            and each.delta is not None
            and (in_blocks is None or each.arm in in_blocks)
        ]
        following = max(others, key=lambda each: each.delta or 0.0, default=None)
        how = say(BLOCKS, blocks=self.fit.n_blocks) if self.fit else say("single runs")
        behind = None
        if following is not None:
            value = study.labels[self.place_of[following.arm]]
            if following.ci95 is None:
                text = "; the next is {value}, {change:percent} ({how}, too few for an interval)"
                behind = say(text, value=value, change=following.delta, how=how)
            else:
                low, high = following.ci95
                text = (
                    "; the next is {value}, {low:percent} to {high:percent} against it (95 %, "
                    "{how})"
                )
                behind = say(text, value=value, low=low, high=high, how=how)
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
            lost = self.lost[at]
            why = lost.reason or NOT_FINITE
            if lost.status is TrialStatus.DROPPED:
                return dropped(base, why)
            return decided(base, VerdictKind.INVALID, why)
        if at not in self.scores:
            return screened(base, say("it stood still; it is run again"))
        flags = score_flags([each for each in own if usable(each)])
        in_blocks = lost_runs([each for each in own if each.trial.block])
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
        fit = self.fit
        is_lead = at == self.lead and at in self.compared
        is_block = fit is not None and (is_lead or base.arm in fit.arms)
        if fit is not None and is_block:
            blocks = [each for each in self.by_place[at] if each.trial.block and usable(each)]
            how = say("{blocks:+block}, Bonferroni", blocks=fit.n_blocks)
            base = replace(measured(base, blocks), job_ids=base.job_ids, n=len(blocks), method=how)
        else:
            base = replace(base, method=say(ITS_FIRST_RUN))
        if at == self.lead:
            return self._leading(base, at, is_block=is_block)
        pair = self.against_lead(at) if is_block else None
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
            kind = VerdictKind.SLOWER if is_block else VerdictKind.SCREENED
            return decided(base, kind)
        if isinstance(pair, Comparison) and is_within(pair, margin=EQUIVALENCE):
            text = "a difference of {difference:size} is excluded"
            return decided(base, VerdictKind.EQUIVALENT, say(text, difference=EQUIVALENCE))
        near = say("within {cut:size} or three standard deviations of it", cut=CUT_AT)
        if self.rough_df:
            near = say(FEW_DF, df=self.rough_df, needed=MIN_DF)
        return undecided(base, *([] if is_block else [near]))

    def _leading(self, base: Verdict, at: int, *, is_block: bool) -> Verdict:
        """Return the verdict on the size of the largest figure: FASTER where it beats every other.

        Its change is then against the next of its blocks. Where one of them cannot be told from it,
        or it ran once, nothing is shown.
        """
        why = say("the best")
        if not is_block:
            is_far = all(self.told_apart.values())
            why = say(
                "the best: it leads by more than three standard deviations, so no block was run"
                if is_far
                else "the best of single runs; the budget left no block to decide"
            )
        others = [each for each in self.compared if each != at and each in self.told_apart]
        pairs = {each: self.against_lead(each) for each in others}
        told = {each: pair for each, pair in pairs.items() if isinstance(pair, Comparison)}
        if not is_block or not told or not all(self.told_apart.values()):
            kind = VerdictKind.INCONCLUSIVE if is_block else VerdictKind.SCREENED
            return decided(replace(base, against=None), kind, why)
        following = max(told, key=lambda each: told[each].estimate)
        low, high = told[following].ci95
        against = say("the next, {value}", value=self.study.labels[following])
        base = changed(base, -told[following].estimate, (-high, -low))
        return decided(replace(base, against=against), VerdictKind.FASTER, why)

    def _why_unfit(self, at: int) -> Iterator[Message]:
        own = self.by_place[at]
        ended = [each for each in own if is_unfit(each)]
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
        if not study.asks_compiler:
            if self.unfit and asked.grows:
                yield say(
                    "no compiler was asked, so jobs that did not fit found the ceiling: "
                    "Sweep(compile_check=...) asks one first"
                )
        elif unknown := next((e.said for e in self.answers.values() if e.fits is None), ""):
            yield say("no compiled memory, so jobs looked for the ceiling: {why}", why=unknown)
        else:
            yield from (self._of_compiling(lane) for lane in self.lanes if lane.is_answered)
        if self.stopped:
            yield say("stopped: {why}", why=self.stopped)
        if self.is_cut_short:
            text = "the budget of {budget} jobs ended the search: a larger one may find better"
            yield say(text, budget=study.budget)
        width, blocks = self.affordable
        if self.leaders and blocks < asked.blocks:
            yield say(
                "the budget allows {allowed} of {blocks} blocks, of {width} of "
                "{leading:+leading size}",
                allowed=blocks,
                blocks=asked.blocks,
                width=width,
                leading=len(self.leaders),
            )
        if self.scores and self.noise is None:
            yield say(
                "the noise between jobs is not known: give BatchSize(sigma=...) from a calibration"
            )

    def _of_compiling(self, lane: Lane) -> Message:
        study, compiled = self.study, lane.compiled
        own = [
            at for at in sorted(self.answers) if lane.first <= at < lane.first + len(study.values)
        ]
        if not compiled.grows:
            follows = say("it does not grow with {key}: nothing follows", key=study.asked.key)
        elif compiled.top is None:
            follows = say("the largest that may be tried fits")
        elif compiled.top < 0:
            follows = say("by that none fits")
        else:
            follows = say("no size above {top} was run", top=study.values[compiled.top])
        text = (
            "compiled memory of one device in GiB, of {limit_gib:.3g} GiB, by {by}: {sizes}; "
            "{follows}"
        )
        return say(
            text,
            limit_gib=(compiled.limit or 0) / 2**30,
            by=self.answers[own[0]].by,
            sizes=[_needed(study.labels[at], self.answers[at]) for at in own],
            follows=follows,
        )


def _needed(label: str, memory: CompiledMemory) -> Message:
    if not memory.needed_bytes:
        return say("{value}: more than there is", value=label)
    return say("{value}: {gib:.3g}", value=label, gib=memory.needed_bytes / 2**30)
