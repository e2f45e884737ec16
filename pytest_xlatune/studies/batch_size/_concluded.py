"""The verdict on each size, and the recommended one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace

from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import Message, say
from pytest_xlatune.model.pairs import CellsRecord
from pytest_xlatune.model.record import Record
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
from pytest_xlatune.stats.compare import EQUIVALENCE, is_within
from pytest_xlatune.stats.design import MIN_DF
from pytest_xlatune.studies.batch_size._lane import Lane
from pytest_xlatune.studies.staged import FAILS, Words
from pytest_xlatune.studies.trials import usable
from pytest_xlatune.studies.verdicts import (
    NO_SCORE,
    NOT_FINITE,
    begun,
    beside,
    changed,
    lost_runs,
    measured,
    score_flags,
    screened,
    so_far,
)

if TYPE_CHECKING:
    from pytest_xlatune.studies.batch_size import BatchWalk

KIND = "batch"
_BEST = say("the best")
BEST_FILE = "batch.best"  # in the work directory: the setting, one line
PER_DEVICE, TARGET_LENGTH = "per_device_batch_size", "max_target_length"


class SizeWord(Words):
    """What the study calls its verdicts."""

    BEST = "BEST", VerdictKind.FASTER
    SAME = "SAME AS BEST", VerdictKind.EQUIVALENT
    CANNOT_TELL = "CANNOT TELL", VerdictKind.INCONCLUSIVE
    WORSE = "WORSE", VerdictKind.SLOWER
    DOES_NOT_FIT = "DOES NOT FIT", VerdictKind.INVALID, FAILS
    NOT_TRIED = "NOT TRIED", VerdictKind.SCREENED
    CANNOT_RUN = "CANNOT RUN", VerdictKind.INVALID, FAILS
    OTHER_LOSS = "ANOTHER LOSS", VerdictKind.INCONCLUSIVE
    NOT_MEASURED = "NOT MEASURED", VerdictKind.INVALID


ALPHA = 0.05
CUT_AT = 0.01  # below the lead
LANE_CUT = 0.10  # likewise: the best first run with another value of the second key
# the memory of a device, of its host, or what the pool leaves outside
NO_FIT = frozenset(
    {
        *(FailureClass.OOM_GPU, FailureClass.OOM_RCCL_HEADROOM, FailureClass.OOM_HOST),
        *(FailureClass.HANG_SILENT_OOM, FailureClass.KILLED),
    }
)


class SizeCeiling(Record, frozen=True, kw_only=True):
    """How large a size fits, with one value of the second key where there is one.

    Attributes:
        by_value: that value.
        compiled: the largest that fits by compiled memory; 0 is none, "" is unknown.
        largest, unfit: the largest that ran, the smallest that did not fit; "" is unknown.
        is_at_end: whether the largest that may be tried ran, so that the ceiling is above it.
    """

    by_value: str = ""
    compiled: str = ""
    largest: str = ""
    unfit: str = ""
    is_at_end: bool = False

    @property
    def reason(self) -> Message | None:
        """The ceiling in words; None where nothing is known of it."""
        if self.largest and self.unfit:
            return say(
                "ceiling: {ran} ran, {unfit} did not fit", ran=self.largest, unfit=self.unfit
            )
        if self.unfit:
            return say("ceiling: none ran, {unfit} did not fit", unfit=self.unfit)
        if self.largest and self.is_at_end:
            return say("ceiling: {ran} ran, and no larger one may be tried", ran=self.largest)
        return None


class BatchRecord(CellsRecord, frozen=True, kw_only=True):
    """What a search for a batch size found besides its verdicts.

    Attributes:
        key: what differed.
        arm, value: the recommended one; "" where there is none.
        same: values that cannot be told from the best, itself among them.
        largest, unfit: the largest that ran, the smallest that did not fit; "" is unknown.
        is_at_end: whether the largest that may be tried ran, so that the ceiling is above it.
        blocks: complete blocks behind the recommendation; 0 is a single run.
        answer: the recommendation, or why there is none.
        ranks: whether its values are ranked at all.
        by, by_value: a second key whose values went with each size, and the recommended one;
            then values are named with it, `8 remat_policy=full`, and `ceilings` tell each ceiling.
        ceilings: one for each value of the second key; () without one.
    """

    kind: ClassVar[str] = KIND
    key: str = PER_DEVICE
    arm: str = ""
    value: str = ""
    same: tuple[str, ...] = ()
    largest: str = ""
    unfit: str = ""
    is_at_end: bool = False
    blocks: int = 0
    answer: Message | None = None
    ranks: bool = True
    by: str = ""
    by_value: str = ""
    ceilings: tuple[SizeCeiling, ...] = ()

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
        return (self.answer,) if self.answer and self.ranks and not self.value else ()

    @property
    def ceiling(self) -> Message | None:
        """The ceiling; None where memory does not grow along the values."""
        if not self.ceilings:
            return SizeCeiling(
                largest=self.largest, unfit=self.unfit, is_at_end=self.is_at_end
            ).reason
        each = [
            say(
                "{second} {ran} of {most}",
                second=of.by_value,
                ran=of.largest or "0",
                most=of.compiled,
            )
            for of in self.ceilings
        ]
        return say(
            "largest size that ran, of the largest that compiles, by {key}: {each}",
            key=self.by,
            each=each,
        )

    @property
    def files(self) -> Mapping[str, str]:
        """The recommended setting, one line."""
        return {BEST_FILE: f"{self.setting}\n"} if self.setting else {}


def is_unfit(result: TrialResult) -> bool:
    """Whether a run shows that its value does not fit."""
    if result.status is not TrialStatus.DROPPED:
        return False
    if result.not_run is NotRun.CANNOT:
        return True
    return any(each.cls in NO_FIT for each in result.findings)


def conclusion(found: BatchWalk) -> Conclusion:
    """Return what follows from a history."""
    study, is_over = found.study, found.is_over
    shown = range(len(study.cells)) if study.is_listed else sorted({*found.probes, *found.unfit})
    verdicts = [_verdict(found, at) for at in shown]
    verdicts = SizeWord.ordered(verdicts, lambda each: found.place_of[each.arm])
    chosen, labels = found.recommended, study.labels
    ceilings = tuple(_ceiling(lane) for lane in found.lanes)
    one = SizeCeiling() if study.by_values or not study.asked.grows else ceilings[0]
    record = BatchRecord(
        sigma=found.noise,
        mde80=next((each.mde80 for each in verdicts if each.mde80), None),
        key=study.asked.key,
        arm="" if chosen is None else study.ids[chosen],
        value="" if chosen is None else labels[chosen],
        same=tuple(labels[at] for at in found.same) if is_over else (),
        largest=one.largest,
        unfit=one.unfit,
        is_at_end=one.is_at_end,
        blocks=found.fit.n_blocks if found.fit is not None else 0,
        answer=_answer(found, verdicts) if is_over else None,
        ranks=not study.changes_loss,
        peak_tflops=study.asked.peak_tflops,
        by=study.asked.by,
        by_value=ceilings[found.lane_of(chosen).number].by_value if chosen is not None else "",
        ceilings=ceilings if study.by_values else (),
    )
    return Conclusion(
        verdicts=tuple(_at_the_best(verdicts)),
        record=record,
        alpha=ALPHA if found.blocks else 0.0,
        complete=is_over,
        notes=tuple(_notes(found)) if is_over else (),
    )


def _ceiling(lane: Lane) -> SizeCeiling:
    """Return how large a size fits in a lane, by what ran and by compiled memory."""
    study, walk = lane.study, lane.walk
    own = range(lane.first, lane.first + len(study.values))
    unfit = min((at for at in walk.unfit if at in own), default=None)
    ran = [at for at in walk.scores if at in own and (unfit is None or at < unfit)]
    most, largest = max(lane.compiled.fit, default=None), max(ran, default=None)
    is_compiled = bool(lane.answered) and lane.compiled.grows
    return SizeCeiling(
        by_value=study.by_values[lane.number] if study.by_values else "",
        compiled=(study.values[most] if most is not None else "0") if is_compiled else "",
        largest="" if largest is None else study.values[largest - lane.first],
        unfit="" if unfit is None else study.values[unfit - lane.first],
        is_at_end=largest is not None and largest - lane.first >= lane.top,
    )


def _at_the_best(verdicts: Sequence[Verdict]) -> Iterator[Verdict]:
    """Yield the verdicts, each figure that of the best times the change beside it."""
    best = next((each for each in verdicts if each.word == SizeWord.BEST), None)
    for each in verdicts:
        yield beside(each, best) if each.against == _BEST else each


def _answer(found: BatchWalk, verdicts: Sequence[Verdict]) -> Message:
    study, chosen = found.study, found.recommended
    if chosen is None:
        if found.stopped:
            return say(
                "no value of {key} is recommended: {why}", key=study.asked.key, why=found.stopped
            )
        if study.changes_loss and found.scores:
            return say(
                "{key} changes the computation: its values are not ranked by speed",
                key=study.asked.key,
            )
        if found.unfit and not found.scores:
            return say("no value of {key} fits", key=study.asked.key)
        return say("no value of {key} is recommended: none was measured", key=study.asked.key)
    setting = f"{study.asked.key}={study.labels[chosen]}"
    own = next(each for each in verdicts if each.arm == study.ids[chosen])
    in_blocks = found.fit.arms if found.fit else None  # a single run says less than they
    others = [
        each
        for each in verdicts
        if each.word in (SizeWord.SAME, SizeWord.CANNOT_TELL, SizeWord.WORSE)
        and each.delta is not None
        and (in_blocks is None or each.arm in in_blocks)
    ]
    second = max(others, key=lambda each: each.delta or 0.0, default=None)
    how = say(BLOCKS, blocks=found.fit.n_blocks) if found.fit else say("single runs")
    behind = None
    if second is not None:
        value = study.labels[found.place_of[second.arm]]
        if second.ci95 is None:
            behind = say(
                "; the next is {value}, {change:percent} ({how}, too few for an interval)",
                value=value,
                change=second.delta,
                how=how,
            )
        else:
            low, high = second.ci95
            behind = say(
                "; the next is {value}, {low:percent} to {high:percent} against it (95 %, {how})",
                value=value,
                low=low,
                high=high,
                how=how,
            )
    speed = say(" with {tgs:.1f} TGS", tgs=own.tgs) if own.tgs is not None else None
    return say("recommended: {setting}{speed}{next}", setting=setting, speed=speed, next=behind)


def _verdict(found: BatchWalk, at: int) -> Verdict:
    study = found.study
    own = found.by_place[at]
    arm = study.ids[at]
    base = replace(begun(arm, own), against=_BEST)
    if at in found.unfit:
        return _unfit(found, base, at)
    if at not in found.probes:
        return _untried(found, base, at)
    base = replace(so_far(arm, own), against=_BEST)
    if at in found.lost:
        return _lost(base, found.lost[at])
    if at not in found.scores:
        return screened(base, say("it stood still; it is run again"))
    reasons = score_flags([each for each in own if usable(each)])
    base = replace(
        base, reasons=reasons, lost=lost_runs([each for each in own if each.trial.block])
    )
    if at in found.another_loss:
        why = say(
            "{why}: it computes something else, and is not ranked", why=found.another_loss[at]
        )
        return SizeWord.OTHER_LOSS.say(base, why)
    if study.changes_loss:
        why = say("{key} changes the computation: a finding, not a ranking", key=study.asked.key)
        return SizeWord.OTHER_LOSS.say(base, why)
    if not found.is_over or found.lead is None:
        lead = found.ranked[0] if found.ranked else at
        base = changed(base, found.scores[at] - found.scores[lead])
        return screened(base, say("so far"))
    return _of_speed(found, base, at)


def _of_speed(found: BatchWalk, base: Verdict, at: int) -> Verdict:
    """Return the verdict on a size that ran, once everything is over."""
    fit = found.fit
    is_lead = at == found.lead and at in found.compared
    is_block = fit is not None and (is_lead or base.arm in fit.arms)
    if is_block:
        blocks = [each for each in found.by_place[at] if each.trial.block and usable(each)]
        n = len(blocks)
        how = say("{blocks:+block}, Bonferroni", blocks=fit.n_blocks if fit else 0)
        base = replace(measured(base, blocks), job_ids=base.job_ids, n=n, method=how)
    else:
        base = replace(base, method=say(ITS_FIRST_RUN))
    if at == found.lead:
        return _leading(found, base, at, is_block=is_block)
    lead = found.lead
    pair = found.against_lead(at) if is_block else None
    if isinstance(pair, Comparison):
        base = changed(base, pair.estimate, pair.ci95)
        base = replace(base, mde80=relative(pair.mde80))
    elif fit is not None and is_block:
        # the mean of the blocks is known, its error is not
        base = changed(base, fit.arms[base.arm].estimate)
        return SizeWord.CANNOT_TELL.say(base, *([pair.reason] if pair is not None else []))
    elif lead is not None:
        gap = found.scores[at] - found.scores[lead]
        reach = found.singles_differ
        base = changed(base, gap, None if reach is None else (gap - reach, gap + reach))
    if found.told_apart[at]:
        worse = SizeWord.WORSE.say(base)
        return worse if is_block else replace(worse, kind=VerdictKind.SCREENED)
    if isinstance(pair, Comparison) and is_within(pair, margin=EQUIVALENCE):
        same = say("a difference of {difference:size} is excluded", difference=EQUIVALENCE)
        return SizeWord.SAME.say(base, same)
    near = say("within {cut:size} or three standard deviations of it", cut=CUT_AT)
    if found.rough_df:
        near = say(FEW_DF, df=found.rough_df, needed=MIN_DF)
    why = [] if is_block else [near]
    return SizeWord.CANNOT_TELL.say(base, *why)


def _leading(found: BatchWalk, base: Verdict, at: int, *, is_block: bool) -> Verdict:
    """Return the verdict on the size of the largest figure: FASTER where it beats every other.

    Its change is then against the next of its blocks. Where one of them cannot be told from it, or
    it ran once, nothing is shown.
    """
    why = (
        []
        if is_block
        else [say("it leads by more than three standard deviations, so no block was run")]
    )
    if at != found.recommended:
        why.append(say("a smaller size cannot be told from it, and is recommended"))
    others = [each for each in found.compared if each != at and each in found.told_apart]
    pairs = {each: found.against_lead(each) for each in others}
    told = {each: pair for each, pair in pairs.items() if isinstance(pair, Comparison)}
    if not is_block or not told or not all(found.told_apart.values()):
        kind = VerdictKind.INCONCLUSIVE if is_block else VerdictKind.SCREENED
        return replace(SizeWord.BEST.say(base, *why), against=None, kind=kind)
    following = max(told, key=lambda each: told[each].estimate)
    pair = told[following]
    low, high = pair.ci95
    against = say("the next, {value}", value=found.study.labels[following])
    base = replace(changed(base, -pair.estimate, (-high, -low)), against=against)
    return SizeWord.BEST.say(base, *why)


_UNFIT: Mapping[str, str] = {
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


def _unfit(found: BatchWalk, base: Verdict, at: int) -> Verdict:
    own = found.by_place[at]
    ended = [each for each in own if is_unfit(each)]
    if not ended:
        smaller = found.study.labels[min(found.smaller(at, found.unfit))]
        why = say(
            "it ran, but {smaller} did not fit: it is too near to the ceiling to be relied on",
            smaller=smaller,
        )
        return SizeWord.DOES_NOT_FIT.say(base, why)
    last = ended[-1]
    classes = [each for each in last.findings if each.cls in NO_FIT]
    cls = classes[0].cls if classes else ""
    detail = next((each.detail for each in classes if each.detail), "")
    head = (
        say("{meaning}", meaning=FailureClass(cls).meaning, cls=cls)
        if cls
        else last.reason or NO_SCORE
    )
    why = say(_UNFIT[cls]) if cls in _UNFIT else head
    if detail:
        why = say(WITH_DETAIL, why=why, detail=detail)
    if cls == FailureClass.HANG_SILENT_OOM and not found.probes.get(at, [])[1:]:
        why = head  # it stood still once
    reasons = [why]
    if any(map(usable, own)):
        reasons.append(
            say(
                "it failed once and ran at other times: it is too near to the ceiling to be "
                "relied on"
            )
        )
    return SizeWord.DOES_NOT_FIT.say(base, *reasons)


def _untried(found: BatchWalk, base: Verdict, at: int) -> Verdict:
    if not found.is_over:
        return base
    study, lane = found.study, found.lane_of(at)
    place, smaller = at - lane.first, found.smaller(at, found.unfit)
    if smaller and study.asked.grows:
        why = say("larger than {unfit}, which did not fit", unfit=study.labels[min(smaller)])
    elif place > lane.top:
        limit = study.numbers[lane.top] if lane.top >= 0 else 0.0
        why = say(
            "compiled memory says that no size above {limit:g} fits",
            limit=study.asked.compiled_ceiling or limit,
        )
    else:
        why = found.stopped or say("the budget of {budget} jobs left no job", budget=study.budget)
    return SizeWord.NOT_TRIED.say(base, why)


def _lost(base: Verdict, result: TrialResult) -> Verdict:
    why = result.reason or NOT_FINITE
    if result.status is TrialStatus.DROPPED:
        return SizeWord.CANNOT_RUN.say(base, why)
    return SizeWord.NOT_MEASURED.say(base, why)


def _of_compiling(found: BatchWalk) -> list[Message]:
    """Return what a compiler told of the ceilings, or why it told nothing; [] is no news."""
    study, answers = found.study, found.answers
    if not study.asks_compiler:
        is_news = found.unfit and study.asked.grows and study.asked.compiled_ceiling is None
        return (
            [
                say(
                    "no compiler was asked, so jobs that did not fit found the ceiling: "
                    "Sweep(compile_check=...) asks one first"
                )
            ]
            if is_news
            else []
        )
    unknown = next((each.said for each in answers.values() if each.fits is None), "")
    if unknown:
        # pairs are not searched without it: why the study stopped says so
        return (
            []
            if study.by_values
            else [say("no compiled memory, so jobs looked for the ceiling: {why}", why=unknown)]
        )
    return [_of_lane(found, lane) for lane in found.lanes if lane.answered]


def _of_lane(found: BatchWalk, lane: Lane) -> Message:
    study, compiled = found.study, lane.compiled
    own = {at: found.answers[lane.first + at].needed_bytes for at in sorted(lane.answered)}
    told = [
        say(
            "{value}: {needed}",
            value=study.labels[lane.first + at],
            needed=say("{gib:.3g}", gib=needed / 2**30) if needed else "more than there is",
        )
        for at, needed in own.items()
    ]
    if not compiled.grows:
        follows = say(
            "it does not grow with {key}, so it says nothing of the ceiling", key=study.asked.key
        )
    elif compiled.top is None:
        follows = say("the largest that may be tried fits")
    elif compiled.top < 0:
        follows = say("by that none fits")
    else:
        follows = say("no size above {top} was run", top=study.values[compiled.top])
    return say(
        "compiled memory of one device in GiB, of {limit_gib:.3g} GiB, by {by}: {sizes}; {follows}",
        limit_gib=(compiled.limit or 0) / 2**30,
        by=next((each.by for each in found.answers.values()), ""),
        sizes=told,
        follows=follows,
    )


def _of_pairs(found: BatchWalk) -> list[Message]:
    """Return which pairs were left out, and on whose word."""
    asked, notes = found.study.asked, []
    if asked.by == TARGET_LENGTH:
        notes.append(
            say(
                "{key} changes the tokens of a step: TGS is comparable, the loss of different "
                "lengths is not, and neither is what a model learns",
                key=asked.by,
            )
        )
    alike: dict[int, list[str]] = {}  # number of a lane -> its value, and those with its memory
    for lane in found.lanes:
        of = next((at for at in alike if lane.takes_as(found.lanes[at])), lane.number)
        alike.setdefault(of, []).append(found.study.by_values[lane.number])
    if len(alike) == 1:
        notes.append(
            say(
                "compiled memory is the same with each value of {key}: does the program take it?",
                key=asked.by,
            )
        )
    else:
        several = (each for each in alike.values() if len(each) > 1)
        notes += [
            say(
                "compiled memory is the same with {values} of {key}: is that one program?",
                key=asked.by,
                values=each,
            )
            for each in several
        ]
    if behind := [found.study.by_values[lane.number] for lane in found.given_up]:
        notes.append(
            say(
                "with {values} of {key} the best first run was more than {cut:size} behind: no "
                "further size was tried",
                key=asked.by,
                values=behind,
                cut=LANE_CUT,
            )
        )
    return notes


def _notes(found: BatchWalk) -> list[Message]:
    study, notes = found.study, _of_compiling(found)
    if study.by_values:
        notes += _of_pairs(found)
    if found.stopped:
        notes.append(say("stopped: {why}", why=found.stopped))
    if found.is_cut_short:
        notes.append(
            say(
                "the budget of {budget} jobs ended the search: a larger one may find better",
                budget=study.budget,
            )
        )
    if found.leaders and found.affordable[1] < study.asked.blocks:
        width, blocks = found.affordable
        asked = {"blocks": study.asked.blocks, "leading": len(found.leaders)}
        notes.append(
            say(
                "the budget allows {allowed} of {blocks} blocks, of {width} of "
                "{leading:+leading size}",
                allowed=blocks,
                width=width,
                **asked,
            )
        )
    if study.asked.sigma is None and found.scores:
        notes.append(
            say(
                "the noise between jobs was not known before; blocks measured it"
                if found.noise is not None
                else (
                    "the noise between jobs is not known: give BatchSize(sigma=...) from a "
                    "calibration"
                )
            )
        )
    elif found.noise is not None:
        notes.append(say("noise of one job's score: {sigma:.2%}", sigma=found.noise))
    return notes
