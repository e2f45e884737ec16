"""What the logs of a CVS file's jobs tell beside their score: patterns of failure, the loss.

A pattern of the file that matches a line is a failure of that job, told with node, line and text;
one after the last step is a warning, for programs often complain as they end. The slope of the loss
and the way to a target are figures of each job, held against their limits as every threshold is.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from pytest_xlatune import owned
from pytest_xlatune.campaign import Campaign
from pytest_xlatune.executors.folder import log_files
from pytest_xlatune.guests.cvs.files import demand_of
from pytest_xlatune.guests.cvs.reading import PREFIX, SLOPE, CvsCell, CvsFile
from pytest_xlatune.guests.cvs.thresholds import Demand, held
from pytest_xlatune.logs import read_log
from pytest_xlatune.model.reason import verbatim
from pytest_xlatune.model.record import dataclass
from pytest_xlatune.model.redact import hide_quoted
from pytest_xlatune.model.result import StepRecord, Verdict, VerdictKind
from pytest_xlatune.model.text import counted

ERRORS = "error_patterns"
Steps = Sequence[StepRecord]
_LINE_CHARS = 4096  # a pattern that backtracks sees no more of a line
_SHOWN_CHARS = 160
_SHOWN = 4


def _logs_of(campaign: Campaign) -> Iterator[tuple[str, int, Mapping[int, Path]]]:
    """Yield job id, last step and logs by rank of each job that is over."""
    view = campaign.view()
    for each in view.history:
        attempts = view.state.trials[each.trial.id].attempts
        submission = attempts[max(attempts)].submission if attempts else None
        if submission is not None and each.status.is_final:
            logs = log_files(campaign.setup.folder / submission.folder)
            yield submission.job_id, each.trial.protocol.last_step, logs


def steps_by_job(campaign: Campaign) -> dict[str, Steps]:
    """Return the steps of each job that is over, of the first log that has some."""
    return {
        job: next(filter(None, map(_steps, logs.values())), ())
        for job, _, logs in _logs_of(campaign)
    }


def _steps(path: Path) -> Steps:
    try:
        with os.fdopen(owned.open_file(path), "rb") as log:
            return [each for each in read_log(log).steps if each.kind == "step"]
    except OSError:
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedLine:
    """A line of a log that a pattern of the file matches.

    Attributes:
        name: of the pattern.
        job: whose log.
        rank: of the task that printed it.
        line: its number, from 1.
        is_late: whether it stands after the last step.
    """

    name: str
    job: str
    rank: int
    line: int
    text: str
    is_late: bool

    @property
    def words(self) -> str:
        """Where it stands, and what it says."""
        return f"{self.name}: job {self.job}, rank {self.rank}, line {self.line}: {self.text}"


# MaxText's line:  completed step: 29, seconds: 1.2
_STEP = re.compile(r"completed step: (\d+)")


def sights(campaign: Campaign, file: CvsFile) -> tuple[MatchedLine, ...]:
    """Return the first line of each log that each pattern of the file matches, ignoring case."""
    known = {name: re.compile(text, re.IGNORECASE) for name, text in file.patterns.items()}
    return tuple(
        each
        for job, last, logs in _logs_of(campaign)
        for rank, path in logs.items()
        for each in _sights(
            path, known, job=job, rank=rank, last=last, hidden=campaign.setup.hidden
        )
    )


def _sights(
    path: Path,
    known: Mapping[str, re.Pattern[str]],
    *,
    job: str,
    rank: int,
    last: int,
    hidden: frozenset[str],
) -> Iterator[MatchedLine]:
    seen, is_late = set(), False
    try:
        with os.fdopen(owned.open_file(path), encoding="utf-8", errors="replace") as log:
            for number, line in enumerate(log, 1):
                text = line[:_LINE_CHARS].rstrip()
                for name, pattern in known.items():
                    if name not in seen and pattern.search(text):
                        seen.add(name)
                        shown = hide_quoted(text.strip(), hidden)[:_SHOWN_CHARS]
                        yield MatchedLine(
                            name=name, job=job, rank=rank, line=number, text=shown, is_late=is_late
                        )
                step = _STEP.search(text)
                is_late = is_late or (step is not None and int(step[1]) >= last)
    except OSError:
        return


def sights_verdict(found: Sequence[MatchedLine], *, jobs: int) -> tuple[Verdict, list[str]]:
    """Return our verdict on the patterns of a file, and its lines: the first tells the verdict."""
    early = [each for each in found if not each.is_late]
    # core dumps on shutdown, after the last step, are common
    late = [each for each in found if each.is_late]
    failed = tuple(dict.fromkeys(each.job for each in early))
    if failed:
        said = f"fail: {len(failed)} of {counted(jobs, 'job')} have a line of an error pattern"
    else:
        said = f"pass: no error pattern in {counted(jobs, 'job')} before the last step"
    lines = [said, *(f"    {each.words}" for each in early[:_SHOWN])]
    if len(early) > _SHOWN:
        lines.append(f"    and {len(early) - _SHOWN} more")
    lines += [f"    a warning, after the last step: {each.words}" for each in late[:_SHOWN]]
    kind = VerdictKind.SLOWER if failed else VerdictKind.EQUIVALENT
    verdict = Verdict(
        arm=ERRORS, kind=kind, n=jobs, job_ids=failed, reasons=tuple(map(verbatim, lines))
    )
    return verdict, lines


def log_demands(file: CvsFile, cell: CvsCell) -> dict[str, Demand]:
    """Return the demands on the steps of the logs, by metric."""
    found: dict[str, Demand] = {}
    if file.max_slope is not None:
        found[SLOPE] = Demand(metric=SLOPE, bound="max", value=file.max_slope)
    if file.target is not None:
        found |= {name: Demand(metric=name) for name in _TO_TARGET}
    for name, each in cell.thresholds.items():
        metric = name.removeprefix(PREFIX)
        if metric in (SLOPE, *_TO_TARGET):
            found[metric] = demand_of(metric, each)
    return found


_TO_TARGET = ("steps_to_target", "time_to_target_seconds")


def figures(metric: str, jobs: Mapping[str, Steps], *, file: CvsFile) -> list[float]:
    """Return the figure of each job that tells it."""
    found: list[float] = []
    for steps in jobs.values():
        if metric == SLOPE:
            value = _slope(steps)
        else:
            reached = None if file.target is None else _reached(steps, file.target)
            value = reached[_TO_TARGET.index(metric)] if reached else None
        found += [] if value is None else [value]
    return found


def log_verdict(demand: Demand, jobs: Mapping[str, Steps], *, file: CvsFile) -> Verdict:
    """Return the verdict on a figure of the logs; all jobs must tell it."""
    values = figures(demand.metric, jobs, file=file)
    base = Verdict(
        arm=demand.metric, kind=VerdictKind.INCONCLUSIVE, n=len(values), job_ids=tuple(jobs)
    )
    short = len(jobs) - len(values)
    if short or not values:
        why = (
            "does not print a loss at two steps"
            if demand.metric == SLOPE
            else "does not reach the target in its steps"
            if file.target is not None
            else "has no target: the file has no convergence.target_value"
        )
        text = f"cannot tell: {short} of {counted(len(jobs), 'job')}: {demand.metric}: it {why}"
        return replace(base, reasons=(verbatim(text),))
    kind, text = held(values, demand)
    return replace(base, kind=kind, reasons=(verbatim(text),))


def _slope(steps: Steps) -> float | None:
    points = [
        (each.step, each.loss)
        for each in steps
        if each.loss is not None and math.isfinite(each.loss)
    ]
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
