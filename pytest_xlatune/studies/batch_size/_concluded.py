"""The verdict on each size, and the recommended one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar

from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.pairs import CellsRecord
from pytest_xlatune.model.result import (
    Comparison,
    Conclusion,
    TrialResult,
    TrialStatus,
    Verdict,
    VerdictKind,
    relative,
)
from pytest_xlatune.model.text import counted, fine, interval, percent, size
from pytest_xlatune.stats.compare import is_within
from pytest_xlatune.studies.batch_size._findings import (
    ALPHA,
    CUT_AT,
    NO_FIT,
    BatchFindings,
    is_unfit,
)
from pytest_xlatune.studies.trials import usable
from pytest_xlatune.studies.verdicts import (
    EQUIVALENCE,
    beside,
    job_ids_of,
    lost_runs,
    measured,
    score_flags,
    troubled,
)

KIND = "batch"
_BEST = "the best"
BEST_FILE = "batch.best"  # in the work directory: the setting, one line
PER_DEVICE, TARGET_LENGTH = "per_device_batch_size", "max_target_length"


class SizeWord(StrEnum):
    """What the study calls its verdicts."""

    BEST = "BEST"
    SAME = "SAME AS BEST"
    CANNOT_TELL = "CANNOT TELL"
    WORSE = "WORSE"
    DOES_NOT_FIT = "DOES NOT FIT"
    NOT_TRIED = "NOT TRIED"
    CANNOT_RUN = "CANNOT RUN"
    OTHER_LOSS = "ANOTHER LOSS"
    NOT_MEASURED = "NOT MEASURED"


WORDS = tuple(SizeWord)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord(CellsRecord):
    """What a search for a batch size found besides its verdicts.

    Attributes:
        key: what differed.
        arm, value: the recommended one; "" where there is none.
        same: values that cannot be told from the best, itself among them.
        largest, unfit: the largest that ran, the smallest that did not fit; "" is unknown.
        is_at_end: whether the largest that may be tried ran, so that the ceiling is above it.
        blocks: complete blocks behind the recommendation; 0 is a single run.
        sentence: of the answer.
        ranks: whether its values are ranked at all.
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
    sentence: str = ""
    ranks: bool = True

    @property
    def setting(self) -> str:
        """The recommended setting, as a launcher takes it; "" where there is none."""
        return f"{self.key}={self.value}" if self.value else ""

    @property
    def said(self) -> tuple[str, ...]:
        """The recommendation, what cannot be told from it, the ceiling."""
        others = [each for each in self.same if each != self.value]
        same = f"cannot be told from it: {', '.join(others)}" if others else ""
        return tuple(filter(None, (self.sentence, same, self.ceiling)))

    @property
    def objection(self) -> str:
        """That nothing can be recommended, once the study is over and was to rank."""
        return "" if self.value or not self.ranks else self.sentence

    @property
    def ceiling(self) -> str:
        """The ceiling, in words; "" where memory does not grow along the values."""
        if self.largest and self.unfit:
            return f"ceiling: {self.largest} ran, {self.unfit} did not fit"
        if self.unfit:
            return f"ceiling: none ran, {self.unfit} did not fit"
        if self.largest and self.is_at_end:
            return f"ceiling: {self.largest} ran, and no larger one may be tried"
        return ""

    @property
    def files(self) -> Mapping[str, str]:
        """The recommended setting, one line."""
        return {BEST_FILE: f"{self.setting}\n"} if self.setting else {}


def conclusion(found: BatchFindings) -> Conclusion:
    """Return what follows from a history."""
    study, is_over = found.study, not found.pending
    shown = range(len(study.values)) if study.is_listed else sorted({*found.probes, *found.unfit})
    verdicts = [_verdict(found, at) for at in shown]
    order = {word: at for at, word in enumerate(WORDS)}
    verdicts.sort(key=lambda each: (order.get(SizeWord(each.word), 9) if each.word else 9,
                                    found.place_of[each.arm]))  # fmt: skip
    chosen = found.recommended
    ran = [at for at in found.scores if at not in found.unfit]
    grows = study.asked.grows
    unfit = min(found.unfit, default=None) if grows else None
    largest = max((at for at in ran if unfit is None or at < unfit), default=None)
    value_of = study.values
    record = BatchRecord(
        sigma=found.noise,
        mde80=next((each.mde80 for each in verdicts if each.mde80), None),
        key=study.asked.key,
        arm="" if chosen is None else study.every_arm[chosen].id,
        value="" if chosen is None else value_of[chosen],
        same=tuple(value_of[at] for at in found.same) if is_over else (),
        largest=value_of[largest] if grows and largest is not None else "",
        unfit="" if unfit is None else value_of[unfit],
        is_at_end=grows and largest is not None and largest >= found.top,
        blocks=found.fit.n_blocks if found.fit is not None else 0,
        sentence=_sentence(found, verdicts) if is_over else "",
        ranks=not study.changes_loss,
        peak_tflops=study.asked.peak_tflops,
    )
    return Conclusion(
        verdicts=tuple(_at_the_best(verdicts)),
        record=record,
        alpha=ALPHA if found.blocks else 0.0,
        complete=is_over,
        notes=tuple(_notes(found)) if is_over else (),
    )


def _at_the_best(verdicts: Sequence[Verdict]) -> Iterator[Verdict]:
    """Yield the verdicts, each figure that of the best times the change beside it."""
    best = next((each for each in verdicts if each.word == SizeWord.BEST), None)
    for each in verdicts:
        yield beside(each, best) if each.against == _BEST else each


def _sentence(found: BatchFindings, verdicts: Sequence[Verdict]) -> str:
    study, chosen = found.study, found.recommended
    if chosen is None:
        if found.stopped:
            return f"no value of {study.asked.key} is recommended: {found.stopped}"
        if study.changes_loss and found.scores:
            return f"{study.asked.key} changes the computation: its values are not ranked by speed"
        if found.unfit and not found.scores:
            return f"no value of {study.asked.key} fits"
        return f"no value of {study.asked.key} is recommended: none was measured"
    setting = f"{study.asked.key}={study.values[chosen]}"
    own = next(each for each in verdicts if each.arm == study.every_arm[chosen].id)
    in_blocks = found.fit.arms if found.fit else None  # a single run says less than they
    others = [
        each
        for each in verdicts
        if each.word in (SizeWord.SAME, SizeWord.CANNOT_TELL, SizeWord.WORSE)
        and each.delta is not None
        and (in_blocks is None or each.arm in in_blocks)
    ]
    second = max(others, key=lambda each: each.delta or 0.0, default=None)
    how = f"{counted(found.fit.n_blocks, 'block')}" if found.fit else "single runs"
    tail = ""
    if second is not None:
        value = study.values[found.place_of[second.arm]]
        told = f"{interval(second.ci95)} % against it (95 %, {how})"
        if second.ci95 is None:
            told = f"{percent(second.delta)} ({how}, too few for an interval)"
        tail = f"; the next is {value}, {told}"
    speed = f" with {own.tgs:.1f} TGS" if own.tgs is not None else ""
    return f"recommended: {setting}{speed}{tail}"


def _verdict(found: BatchFindings, at: int) -> Verdict:
    study = found.study
    own = found.of(at)
    arm = study.every_arm[at].id
    base = Verdict(arm=arm, kind=VerdictKind.INCONCLUSIVE, against=_BEST)
    base = replace(troubled(base, own), job_ids=job_ids_of(own))
    final = [each for each in own if each.status.is_final]
    if at in found.unfit:
        return _unfit(found, base, [each for each in final if is_unfit(each)])
    if at not in found.probes:
        return _untried(found, base, at)
    base = replace(measured(base, [each for each in own if usable(each)]), job_ids=base.job_ids)
    if at in found.lost:
        return _lost(base, found.lost[at])
    if at not in found.scores:
        return replace(base, kind=VerdictKind.SCREENED, method="it stood still; it is run again")
    reasons = score_flags([each for each in own if usable(each)])
    base = replace(
        base, reasons=reasons, lost=lost_runs([each for each in own if each.trial.block])
    )
    if at in found.another_loss:
        why = f"{found.another_loss[at]}: it computes something else, and is not ranked"
        return _word(base, SizeWord.OTHER_LOSS, VerdictKind.INCONCLUSIVE, why)
    if study.changes_loss:
        why = f"{study.asked.key} changes the computation: a finding, not a ranking"
        return _word(base, SizeWord.OTHER_LOSS, VerdictKind.INCONCLUSIVE, why)
    if found.pending or found.lead is None:
        lead = found.ranked[0] if found.ranked else at
        delta = relative(found.scores[at] - found.scores[lead])
        return replace(base, kind=VerdictKind.SCREENED, delta=delta, method="so far")
    return _of_speed(found, base, at)


def _of_speed(found: BatchFindings, base: Verdict, at: int) -> Verdict:
    """Return the verdict on a size that ran, once everything is over."""
    fit = found.fit
    is_lead = at == found.lead and at in found.compared
    is_block = fit is not None and (is_lead or base.arm in fit.arms)
    if is_block:
        blocks = [each for each in found.of(at) if each.trial.block and usable(each)]
        n = len(blocks)
        how = f"{counted(fit.n_blocks if fit else 0, 'block')}, Bonferroni"
        base = replace(measured(base, blocks), job_ids=base.job_ids, n=n, method=how)
    else:
        base = replace(base, method="its first run")
    if at == found.lead:
        return _leading(found, base, at, is_block=is_block)
    lead = found.lead
    pair = found.against_lead(at) if is_block else None
    if isinstance(pair, Comparison):
        low, high = pair.ci95
        base = replace(
            base,
            delta=relative(pair.estimate),
            ci95=(relative(low), relative(high)),
            mde80=relative(pair.mde80),
        )
    elif fit is not None and is_block:
        # the mean of the blocks is known, its error is not
        delta, few = relative(fit.arms[base.arm].estimate), pair.reason if pair is not None else ""
        return _word(replace(base, delta=delta), *_OPEN, few)
    elif lead is not None:
        gap = found.scores[at] - found.scores[lead]
        base = replace(base, delta=relative(gap))
        if found.noise:
            reach = 1.96 * math.sqrt(2) * found.noise
            base = replace(base, ci95=(relative(gap - reach), relative(gap + reach)))
    if found.told_apart[at]:
        kind = VerdictKind.SLOWER if is_block else VerdictKind.SCREENED
        return _word(base, SizeWord.WORSE, kind)
    if isinstance(pair, Comparison) and is_within(pair, margin=EQUIVALENCE):
        same = f"a difference of {size(EQUIVALENCE)} is excluded"
        return _word(base, SizeWord.SAME, VerdictKind.EQUIVALENT, same)
    why = (f"within {size(CUT_AT)} or three standard deviations of it",) if not is_block else ()
    return _word(base, *_OPEN, *why)


def _leading(found: BatchFindings, base: Verdict, at: int, *, is_block: bool) -> Verdict:
    """Return the verdict on the size of the largest figure: FASTER where it beats every other.

    Its change is then against the next of its blocks. Where one of them cannot be told from it, or
    it ran once, nothing is shown.
    """
    why = () if is_block else (_ALONE,)
    if at != found.recommended:
        why = (*why, "a smaller size cannot be told from it, and is recommended")
    others = [each for each in found.compared if each != at and each in found.told_apart]
    pairs = {each: found.against_lead(each) for each in others}
    told = {each: pair for each, pair in pairs.items() if isinstance(pair, Comparison)}
    if not is_block or not told or not all(found.told_apart.values()):
        kind = VerdictKind.INCONCLUSIVE if is_block else VerdictKind.SCREENED
        return _word(replace(base, against=""), SizeWord.BEST, kind, *why)
    following = max(told, key=lambda each: told[each].estimate)
    pair = told[following]
    low, high = pair.ci95
    base = replace(
        base,
        delta=relative(-pair.estimate),
        ci95=(relative(-high), relative(-low)),
        against=f"the next, {found.study.values[following]}",
    )
    return _word(base, SizeWord.BEST, VerdictKind.FASTER, *why)


_OPEN = SizeWord.CANNOT_TELL, VerdictKind.INCONCLUSIVE
_ALONE = "it leads by more than three standard deviations, so no block was run"
_UNFIT_WORDS: Mapping[str, str] = {
    FailureClass.OOM_RCCL_HEADROOM: (
        "memory outside XLA's pool: at this memory fraction RCCL or NCCL gets too little; a "
        "smaller fraction leaves them more"
    ),
    FailureClass.HANG_SILENT_OOM: (
        "it stood still between Memstats and the first step, twice, and a smaller size did not"
    ),
    FailureClass.KILLED: "it was killed twice by SIGKILL, as the kernel does for want of memory",
    FailureClass.OOM_HOST: "the host's memory: the kernel, the scheduler or the allocator refused",
}


def _unfit(found: BatchFindings, base: Verdict, ended: Sequence[TrialResult]) -> Verdict:
    base = replace(base, can_run=False)
    if not ended:
        smaller = found.study.values[min(found.unfit)]
        why = f"it ran, but {smaller} did not fit: it is too near to the ceiling to be relied on"
        return _word(base, SizeWord.DOES_NOT_FIT, VerdictKind.INVALID, why)
    last = ended[-1]
    classes = [each for each in last.findings if each.cls in NO_FIT]
    cls = classes[0].cls if classes else ""
    detail = next((each.detail for each in classes if each.detail), "")
    head = FailureClass(cls).meaning if cls else last.reason
    why = _UNFIT_WORDS.get(cls, head) + (f" ({detail})" if detail else "")
    if cls == FailureClass.HANG_SILENT_OOM and len(found.probes.get(
        found.place_of[base.arm], ())) < 2:  # noqa: PLR2004  # fmt: skip
        why = head
    reasons = [why]
    if any(usable(each) for each in found.of(found.place_of[base.arm])):
        reasons.append("it ran at other times: it is too near to the ceiling to be relied on")
    return _word(base, SizeWord.DOES_NOT_FIT, VerdictKind.INVALID, *reasons)


def _untried(found: BatchFindings, base: Verdict, at: int) -> Verdict:
    if found.pending:
        return base
    smallest = min(found.unfit, default=None)
    if smallest is not None and at > smallest and found.study.asked.grows:
        why = f"larger than {found.study.values[smallest]}, which did not fit"
    elif at > found.top:
        limit = found.study.asked.compiled_ceiling or found.study.numbers[found.top]
        why = f"compiled memory says that no size above {limit:g} fits"
    else:
        why = found.stopped or f"the budget of {found.study.budget} jobs left no job"
    return _word(base, SizeWord.NOT_TRIED, VerdictKind.SCREENED, why)


def _lost(base: Verdict, result: TrialResult) -> Verdict:
    why = result.reason or "its score is not finite"
    if result.status is TrialStatus.DROPPED:
        return _word(replace(base, can_run=False), SizeWord.CANNOT_RUN, VerdictKind.INVALID, why)
    return _word(base, SizeWord.NOT_MEASURED, VerdictKind.INVALID, why)


def _word(verdict: Verdict, word: SizeWord, kind: VerdictKind, *reasons: str) -> Verdict:
    return replace(verdict, kind=kind, word=str(word), reasons=(*reasons, *verdict.reasons))


def _of_compiling(found: BatchFindings) -> str:
    """Say what a compiler told of the ceiling, or why it told nothing; "" where that is no news."""
    study, compiled, answers = found.study, found.compiled, found.answers
    if not study.asks_compiler:
        is_news = found.unfit and study.asked.grows and study.asked.compiled_ceiling is None
        return _NOT_ASKED if is_news else ""
    unknown = next((each.said for each in answers.values() if each.fits is None), "")
    if unknown:
        return f"no compiled memory, so jobs looked for the ceiling: {unknown}"
    told = ", ".join(
        f"{study.values[at]}: " + (f"{needed / 2**30:.3g}" if needed else "more than there is")
        for at, needed in sorted((at, answers[at].needed_bytes) for at in answers)
    )
    by = next((each.by for each in answers.values()), "")
    limit = f"{(compiled.limit or 0) / 2**30:.3g} GiB"
    said = f"compiled memory of one device in GiB, of {limit}, by {by}: {told}"
    if not compiled.grows:
        return f"{said}; it does not grow with {study.asked.key}, so it says nothing of the ceiling"
    if compiled.top is None:
        return f"{said}; the largest that may be tried fits"
    if compiled.top < 0:
        return f"{said}; by that none fits"
    return f"{said}; no size above {study.values[compiled.top]} was run"


_NOT_ASKED = (
    "no compiler was asked, so jobs that did not fit found the ceiling: "
    "Sweep(compile_check=...) asks one first"
)


def _notes(found: BatchFindings) -> list[str]:
    study, notes = found.study, list(filter(None, [_of_compiling(found)]))
    if found.stopped:
        notes.append(f"stopped: {found.stopped}")
    if found.is_cut_short:
        notes.append(
            f"the budget of {study.budget} jobs ended the search: a larger one may find better"
        )
    if found.leaders and found.affordable[1] < study.asked.blocks:
        width, blocks = found.affordable
        notes.append(
            f"the budget allows {blocks} of {study.asked.blocks} blocks, of {width} of "
            f"{counted(len(found.leaders), 'leading size')}"
        )
    if study.asked.sigma is None and found.scores:
        notes.append(
            "the noise between jobs was not known before; blocks measured it"
            if found.noise is not None
            else "the noise between jobs is not known: give BatchSize(sigma=...) from a calibration"
        )
    elif found.noise is not None:
        notes.append(f"noise of one job's score: {fine(found.noise)}")
    return notes
