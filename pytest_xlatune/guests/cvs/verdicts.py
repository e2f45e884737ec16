"""CVS' own verdict beside ours, from the logs of the same jobs.

CVS judges one run; here each job of a study is one. Generations 1 and 2 take every step with an
index above 5 by itself; 3 and 4 the mean of the last ten lines, those of the compilation among them
where the run has no more. Generations 1 and 2 read the last node's log,
3 and 4 the first's: so does this. No verdict of ours rests on anything here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from pytest_xlatune.guests.cvs.files import demand_of
from pytest_xlatune.guests.cvs.reading import PREFIX, TFLOPS, TOKENS, CvsCell, CvsFile, Threshold
from pytest_xlatune.model.record import dataclass
from pytest_xlatune.model.result import StepRecord, Verdict, VerdictKind

Steps = Sequence[StepRecord]

OUR_WORDS = {VerdictKind.EQUIVALENT: "pass", VerdictKind.SLOWER: "fail"}


def our_word(verdict: Verdict) -> str:
    """Return our verdict in CVS' words, and `cannot tell`."""
    return OUR_WORDS.get(verdict.kind, "cannot tell")


def cvs_verdict(
    jobs: Mapping[str, Steps], *, file: CvsFile, cell: CvsCell, verdict: Verdict
) -> str:
    """Return CVS' verdict on each job, and the step or rule that makes it differ from ours.

    "" where CVS gates no such metric.
    """
    demand = next(
        (
            each
            for name, each in cell.thresholds.items()
            if name.removeprefix(PREFIX) == verdict.arm
        ),
        None,
    )
    if demand is None:
        return ""
    judged = {
        job: found
        for job, steps in jobs.items()
        if (found := strict(steps, generation=file.generation, metric=verdict.arm, demand=demand))
    }
    if not judged:
        return ""
    failed = [job for job, each in judged.items() if not each.passes]
    word = "pass" if not failed else "fail" if len(failed) == len(judged) else "pass or fail"
    shown = failed[0] if failed else next(iter(judged))
    text = (
        f"CVS: {word}: {len(judged) - len(failed)} of {len(judged)} jobs pass "
        f"(job {shown}: {judged[shown].why})"
    )
    if word == our_word(verdict):
        return text
    rule = (
        "CVS takes every step by itself"
        if file.generation in ("1", "2")
        else "CVS takes the last lines of one job"
    )
    return f"{text}; ours: {our_word(verdict)}: {rule}, ours the mean of all jobs with its noise"


_AFTER = 5
_LAST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Strict:
    """What CVS says of one job: whether it passes, and by which step or mean."""

    passes: bool
    why: str


def strict(
    steps: Sequence[StepRecord], *, generation: str, metric: str, demand: Threshold
) -> Strict | None:
    """Return CVS' verdict on a metric of a job; None where CVS gates no such metric."""
    name = metric.removeprefix(PREFIX)
    values = [(each.step, found) for each in steps if (found := _value(each, name)) is not None]
    if demand.value is None or demand.kind == "info" or name not in _VALUES:
        return None
    if not values:
        return Strict(passes=False, why="no step prints it")
    if generation in ("1", "2"):
        if name not in (TFLOPS, TOKENS):
            return None
        bad = [(step, value) for step, value in values if step > _AFTER and value < demand.value]
        if bad:
            step, value = bad[0]
            others = f", and {len(bad) - 1} more steps" if len(bad) > 1 else ""
            return Strict(
                passes=False, why=f"step {step}: {value:g} is below {demand.value:g}{others}"
            )
        return Strict(passes=True, why=f"every step after {_AFTER} has {demand.value:g} or more")
    mean, count, first = _mean(values, name)
    what = "the last loss" if name == "final_loss" else f"the mean of the last {count} lines"
    against = demand_of(name, demand)
    if against.of:
        below = [(each.step, other) for each in steps if (other := _value(each, against.of))]
        if not below:
            return Strict(passes=False, why=f"no step prints {against.of}")
        mean /= _mean(below, against.of)[0]
        what += f" over that of {against.of}"
    holds = all(sign * (mean - level) >= 0 for sign, level in against.limits)
    remark = " (the compilation's step is among them)" if first == 0 else ""
    return Strict(passes=holds, why=f"{what} is {mean:.6g}{remark}, {against.words} is demanded")


def _mean(values: Sequence[tuple[int, float]], name: str) -> tuple[float, int, int]:
    """Return CVS' mean of (step, value) pairs, of how many, and the first step among them."""
    last = values[-_LAST:]
    mean = last[-1][1] if name == "final_loss" else fmean(value for _, value in last)
    return mean, len(last), last[0][0]


_VALUES = {
    TFLOPS: ("tflops", 1.0),
    TOKENS: ("tgs", 1.0),
    "step_time_seconds": ("step_s", 1.0),
    "step_time_mean_ms": ("step_s", 1000.0),
    "final_loss": ("loss", 1.0),
}


def _value(step: StepRecord, name: str) -> float | None:
    field, factor = _VALUES.get(name, ("", 1.0))
    found = getattr(step, field, None) if field else None
    return found * factor if found is not None else None
