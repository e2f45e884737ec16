"""CVS' own verdict beside ours, from the logs of the same jobs; the loss as a curve.

CVS judges one run; here each job of a study is one. Generations 1 and 2 take every step with an
index above 5 by itself; 3 and 4 the mean of the last ten lines, those of the compilation among them
where the run has no more. Generations 1 and 2 read the last node's log,
3 and 4 the first's: so does this. No verdict of ours rests on anything here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.executors.folder import log_files
from pytest_xlatune.launchers.cvs import PREFIX, TFLOPS, TOKENS, CvsCell, CvsFile, Threshold, typed
from pytest_xlatune.logs import read_log
from pytest_xlatune.model.record import Json
from pytest_xlatune.model.result import StepRecord, Verdict, VerdictKind

Steps = Sequence[StepRecord]

OUR_WORDS = {VerdictKind.EQUIVALENT: "pass", VerdictKind.SLOWER: "fail"}


def our_word(verdict: Verdict) -> str:
    """Return our verdict in CVS' words, and `cannot tell`."""
    return OUR_WORDS.get(verdict.kind, "cannot tell")


def steps_by_job(campaign: Campaign, file: CvsFile) -> dict[str, Steps]:
    """Return the steps of each job that is over, as the node's log has them that CVS reads."""
    found: dict[str, Steps] = {}
    view = campaign.view()
    for each in view.history:
        attempts = view.state.trials[each.trial.id].attempts
        submission = attempts[max(attempts)].submission if attempts else None
        if submission is None or not each.status.is_final:
            continue
        logs = log_files(campaign.setup.folder / submission.folder)
        order = [*logs.values()][:: -1 if file.generation in ("1", "2") else 1]
        found[submission.job_id] = next(filter(None, map(_steps, order)), ())
    return found


def _steps(path: Path) -> Steps:
    try:
        with path.open("rb") as log:
            return [each for each in read_log(log).steps if each.kind == "step"]
    except OSError:
        return ()


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


def loss_curve(jobs: Mapping[str, Steps], *, file: CvsFile) -> dict[str, float]:
    """Return the slope of the loss by least squares, and the steps and seconds to the target.

    Means over the jobs; what no job tells is left out.
    """
    slopes = [slope for steps in jobs.values() if (slope := _slope(steps)) is not None]
    found = {"loss_slope": fmean(slopes)} if slopes else {}
    wanted = file.watched.get("convergence")
    target = typed(wanted.get("target_value")) if isinstance(wanted, dict) else None
    if isinstance(target, int | float) and not isinstance(target, bool):
        reached = [each for steps in jobs.values() if (each := _reached(steps, target))]
        if reached and len(reached) == len(jobs):
            found["steps_to_target"] = fmean(step for step, _ in reached)
            found["time_to_target_seconds"] = fmean(seconds for _, seconds in reached)
    return found


def _slope(steps: Steps) -> float | None:
    points = [(each.step, each.loss) for each in steps if each.loss is not None]
    if len(points) < 2:  # noqa: PLR2004 - a line needs two points
        return None
    middle, level = fmean(x for x, _ in points), fmean(y for _, y in points)
    squares = sum((x - middle) ** 2 for x, _ in points)
    return sum((x - middle) * (y - level) for x, y in points) / squares if squares else None


def _reached(steps: Steps, target: float) -> tuple[int, float] | None:
    seconds = 0.0
    for each in steps:
        seconds += each.step_s or 0.0
        if each.loss is not None and each.loss <= target:
            return each.step, seconds
    return None


def efficiency_pct(file: CvsFile, cell: CvsCell, tgs: float | None) -> float | None:
    """Return the scaling efficiency in percent against the file's baseline; None without one."""
    block: Json = file.watched.get("scaling_baseline")
    if not isinstance(block, dict) or tgs is None:
        return None
    total, nodes = typed(block.get("tokens_per_sec_total")), typed(block.get("num_nodes", 1))
    if not (isinstance(total, int | float) and isinstance(nodes, int | float)):
        return None
    if total <= 0 or nodes <= 0:
        return None
    return 100 * tgs * cell.gpus_per_node * nodes / total


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
    last = values[-_LAST:]
    mean = last[-1][1] if name == "final_loss" else fmean(value for _, value in last)
    what = "the last loss" if name == "final_loss" else f"the mean of the last {len(last)} lines"
    holds = mean <= demand.value if demand.kind.startswith("max") else mean >= demand.value
    first = " (the compilation's step is among them)" if last[0][0] == 0 else ""
    sign = "at most" if demand.kind.startswith("max") else "at least"
    return Strict(
        passes=holds, why=f"{what} is {mean:.6g}{first}, {sign} {demand.value:g} is demanded"
    )


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
