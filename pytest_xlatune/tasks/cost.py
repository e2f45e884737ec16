"""What a run will cost before it spends anything: jobs, node-hours, wall time, by way of running.

The duration of a trial and its time in the queue are means of this cell's own ledger, where it has
any; else a trial's time limit is an upper bound, and a plan says that it is one. Where no wait was
measured, Slurm is asked what it expects; where that says nothing either, so does the plan. A site
may set a limit above which a person has to say yes.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from statistics import fmean

from pytest_xlatune.executors import Executor
from pytest_xlatune.executors.named import is_queued
from pytest_xlatune.ledger import LEDGER, AttemptEnded, AttemptSubmitted, LedgerEntry
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.reason import Reason, Why
from pytest_xlatune.model.record import dataclass
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.result import TrialResult
from pytest_xlatune.model.text import ABSENT, counted, duration, time_s
from pytest_xlatune.report.document import Section, Table, bullets, columns, plain, section
from pytest_xlatune.stats.noise import AllocationNoise
from pytest_xlatune.stats.rotations import JobPace, JobWork
from pytest_xlatune.studies import Study
from pytest_xlatune.studies.cell_arms import waves_in
from pytest_xlatune.sweep.earlier import Calibration, pace_in
from pytest_xlatune.sweep.resolved import ResolvedSweep

_HOUR_S = 3600.0
_FOLDERS_UP, _FOLDERS_DOWN = 4, 200  # of the current one, where another start may have worked


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a study will still cost.

    Attributes:
        jobs: that are still to come as planned.
        at_most: that may come; 0 is as planned.
        is_mixed: whether rotations are among them: `trial_s` is the mean of those to come.
        measured: trials that are over and are used again.
        nodes: of each job; the mean where jobs have nodes of their own.
        trial_s: seconds of a trial; None where not even a limit is known.
        known: measured trials behind `trial_s`; 0 where it is the limit.
        queue_s: mean seconds in the queue; None where no job has waited yet.
        queued_s: wall seconds with the time in the queue, as jobs are handed in; None likewise.
        rounds: of the jobs, so many follow one another; 0 is all of them.
        slots: on which they run side by side; 1 with rounds: jobs name nodes of their own.
    """

    jobs: int
    measured: int
    nodes: float
    trial_s: float | None
    known: int = 0
    queue_s: float | None = None
    queued_s: float | None = None
    rounds: int = 0
    slots: int = 1
    at_most: int = 0
    is_mixed: bool = False

    @property
    def most(self) -> int:
        """How many jobs may still come."""
        return max(self.jobs, self.at_most)

    @property
    def node_hours(self) -> float | None:
        """Hours of all jobs that may come, times nodes; a bound where no trial is known."""
        return self._node_hours(self.most)

    def _node_hours(self, jobs: int) -> float | None:
        return None if self.trial_s is None else jobs * self.trial_s * self.nodes / _HOUR_S

    @property
    def words(self) -> str:
        """The node-hours in words; they name an upper bound as one."""
        fewest, most = (self._node_hours(each) for each in (self.jobs, self.most))
        if fewest is None or most is None:
            return "unknown node-hours"
        if not self.known:
            return f"{self._bound} {_ceiled(most)} node-hours"
        to = f" to {_ceiled(most)}" if self.most > self.jobs else ""
        return f"about {_ceiled(fewest)}{to} node-hours"

    @property
    def _bound(self) -> str:
        """How a figure is called that no trial is behind: of rotations a limit bounds none."""
        return "perhaps" if self.is_mixed else "at most"

    @property
    def lines(self) -> tuple[str, ...]:
        """What a plan says of it."""
        reused = ""
        if self.measured:
            verb = "is" if self.measured == 1 else "are"
            reused = f"; {counted(self.measured, 'trial')} {verb} measured already and used again"
        whole = round(self.nodes)
        on = f"each on {counted(whole, 'node')}"
        if whole != self.nodes:
            on = f"on {self.nodes:.1f} nodes each on average"
        jobs = counted(self.jobs, "job")
        if self.most > self.jobs:
            jobs = f"{self.jobs} to {self.most} jobs"
        said = [f"{jobs} to run, {on}{reused}"]
        if not self.jobs:
            return tuple(said)
        if self.trial_s is None:
            return (*said, "how long a trial takes is not known: it has no limit")
        if self.is_mixed:
            how = f"as {self.known} here did" if self.known else "a guess"
            basis = f"a job to come, rotations among them, takes {duration(self.trial_s)}, {how}"
        elif self.known:
            basis = f"a trial takes {duration(self.trial_s)}, the mean of {self.known} here"
        else:
            basis = f"a trial takes {duration(self.trial_s)} at most, its limit; none has run here"
        said.append(f"{self.words}: {basis}")
        rounds = self.rounds or self.jobs
        later = self.most / self.jobs
        wall_s = rounds * self.trial_s
        about = "" if self.known else f"{self._bound} "
        how = "one after the other"
        if self.rounds:
            how = (
                f"in {counted(rounds, 'wave')}, jobs on other nodes at the same time"
                if self.slots == 1
                else f"on {self.slots} slots side by side"
            )
        most = f" to {duration(later * wall_s)}" if self.most > self.jobs else ""
        wall = f"{duration(wall_s)}{most}" if self.known else duration(later * wall_s)
        without = f"{about}{wall} {how}, without time in the queue"
        if self.queue_s is None or self.queued_s is None:
            return (*said, f"{without}, of which nothing is known yet")
        mean = duration(self.queue_s)
        queued = duration(self.queued_s)
        queued += f" to {duration(later * self.queued_s)}" if most else ""
        return (*said, f"{without}; {queued} with it (a mean of {mean} each)")


def _ceiled(hours: float) -> str:
    digits = 0 if hours >= 10 else 1  # noqa: PLR2004 - two digits are enough
    return f"{math.ceil(hours * 10**digits) / 10**digits:.{digits}f}"


def cost_of(
    resolved: ResolvedSweep,
    study: Study,
    history: Sequence[TrialResult],
    entries: Sequence[LedgerEntry],
) -> Cost:
    """Return what a study will still cost, given its results and the ledger of its cell."""
    site, protocol = resolved.sweep.site, resolved.cell.protocol
    runs_by, limits = site.runs_by, [protocol.deadline_s]
    ran, load = _ran(entries, runs_by), study.work(tuple(history))
    took_s = [each.end_s - each.start_s for each in ran]
    if not runs_by.is_here:
        limits.append(site.resources.time_limit_s)
    known = len(took_s)
    trial_s = sum(took_s) / known if known else min(limits, default=None)
    if load is not None and load.jobs:
        pace = pace_in(entries, resolved.cell) or JobPace.guessed(
            protocol.deadline_s, protocol.steps
        )
        trial_s, known = load.seconds(pace) / load.jobs, pace.jobs
    waits = _waits_of(each for each in ran if each.is_job) if runs_by.has_queue else None
    left, slots = study.left(tuple(history)), len(resolved.slots) or 1
    rounds = study.rounds(tuple(history)) if len(study.cells) > 1 and resolved.slots else 0
    if runs_by.names_nodes and not resolved.slots:
        rounds = _waves_left(study, history, left)
    queued_s = None
    if waits is not None and trial_s is not None:
        run = _Run(jobs=left, rounds=rounds or left, slots=slots, nodes=1, trial_s=trial_s)
        queued_s = run.as_jobs(waits.mean_s, depth=site.queue_depth)[0]
    return Cost(
        jobs=left,
        measured=sum(each.status.is_final and each.memory is None for each in history),
        nodes=study.traits.cell_nodes
        or _nodes_of(study, history)
        or len(resolved.cell.nodelist)
        or max(site.resources.nodes, 1),
        trial_s=trial_s,
        known=known,
        queue_s=waits.mean_s if waits else None,
        queued_s=queued_s,
        rounds=rounds,
        slots=slots,
        at_most=study.at_most(tuple(history)),
        is_mixed=load is not None,
    )


def hours_of_both(
    outline: Sequence[Reason], entries: Sequence[LedgerEntry], *, cell: Cell
) -> tuple[str, ...]:
    """Say how long the plan of a study takes, and the one without rotation; () where it is one.

    Args:
        outline: what a plan says of the study.
        entries: of the ledger of its cell.
        cell: the same.
    """
    both_of = next((each.fields for each in outline if each.kind is Why.JOBS_OF_BOTH_PLANS), None)
    if both_of is None:
        return ()
    plans = (
        JobWork(jobs=both_of["jobs"], steps=both_of["steps"], compilations=both_of["compilations"]),
        JobWork(jobs=both_of["others"], steps=both_of["other_steps"]),
    )
    protocol = cell.protocol
    pace = pace_in(entries, cell) or JobPace.guessed(protocol.deadline_s, protocol.steps)
    own, other = (duration(each.seconds(pace)) for each in plans)
    about = "about" if pace.jobs else "perhaps"
    said = f"one job after the other: {about} {own} with rotation, {other} without it"
    return (f"{said}: {_told(pace, limit_s=protocol.deadline_s)}",)


def _told(pace: JobPace, *, limit_s: float) -> str:
    """Say what the time of a job is made of, and how that is known."""
    parts = (
        f"{duration(pace.start_s)} to start, {pace.step_s:.3g} s a step, "
        f"{duration(pace.compile_s)} to compile a further program"
    )
    if not pace.jobs:
        return f"{parts}, a guess from the time limit of {duration(limit_s)}: no job has run here"
    guess = "" if pace.compilations else ", the last a guess"
    return f"{parts}{guess}, the mean of {counted(pace.jobs, 'job')} here"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ran:
    """An attempt that has begun, or an allocation: when it was asked for, began and was over."""

    asked_s: float
    start_s: float
    end_s: float
    nodes: frozenset[str] = frozenset()  # () are all
    is_job: bool = True  # of its own; no step of an allocation


def _ran(entries: Sequence[LedgerEntry], runs_by: Executor) -> list[_Ran]:
    """Return the attempts of a ledger that have begun and are over, in the order they began.

    A job is one that waited in the queue of this executor's scheduler.
    """
    asked: dict[tuple[str, int], tuple[float, bool]] = {}
    found = []
    for entry in entries:
        match entry.event:
            case AttemptSubmitted(submission=of):
                asked[of.trial_id, of.attempt] = entry.at_s, is_queued(of.executor, runs_by)
            case AttemptEnded(trial_id=trial_id, attempt=attempt, outcome=outcome):
                if outcome.start_s is None or outcome.end_s is None:
                    continue
                at_s, is_job = asked.get((trial_id, attempt), (math.nan, False))
                found.append(
                    _Ran(
                        asked_s=at_s,
                        start_s=outcome.start_s,
                        end_s=max(outcome.end_s, outcome.start_s),
                        nodes=frozenset(outcome.nodes),
                        is_job=is_job,
                    )
                )
            case _:
                pass
    return sorted(found, key=lambda each: each.start_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """How long a job, or an allocation, waits in the queue.

    Attributes:
        mean_s: mean seconds.
        known: waits behind it; 0 is what Slurm expects.
        behind: of these, so many began as soon as the one before on their nodes had ended.
        source: where it is from, in words.
    """

    mean_s: float
    known: int = 0
    behind: int = 0
    source: str


_AT_ONCE_S = 60.0  # Slurm may take so long to see that nodes are free
_STEPS = 1000  # of EM


def _waits_of(ran: Iterable[_Ran]) -> Waits | None:
    """Return the mean wait of what has begun; None without any.

    What began as soon as the one of ours before it on its nodes had ended would have waited no
    longer than it did, and maybe not at all. It counts as that: the mean of an exponential
    distribution of which some values are known by their upper bound alone, by its EM steps.
    """
    exact: list[float] = []
    at_most: list[float] = []
    before: list[_Ran] = []
    for each in ran:
        beside = [b for b in before if not (b.nodes and each.nodes) or b.nodes & each.nodes]
        free_s = max((b.end_s for b in beside), default=-math.inf)
        before.append(each)
        if math.isnan(each.asked_s):
            continue
        wait_s = max(each.start_s - each.asked_s, 0.0)
        # it waited for our own job, which is no time in the queue
        is_behind = each.asked_s < free_s and each.start_s - free_s < _AT_ONCE_S
        (at_most if is_behind else exact).append(wait_s)
    known = len(exact) + len(at_most)
    if not known:
        return None
    mean_s = fmean([*exact, *at_most]) if exact else 0.0
    for _ in range(_STEPS if at_most and any(exact) else 0):
        # E(w | w <= c) = m - c / (exp(c / m) - 1)
        below = [
            mean_s - each / math.expm1(each / mean_s) if 0 < each < _FAR * mean_s else
            min(each, mean_s)
            for each in at_most
        ]  # fmt: skip
        mean_s = (math.fsum(exact) + math.fsum(below)) / known
    return Waits(mean_s=mean_s, known=known, behind=len(at_most), source="the ledger")


_FAR = 500.0  # times the mean, beyond which a bound is none
_DRAWS = 200  # of a run, whose mean counts
_AHEAD = 3  # trials that fit in, below which the next allocation is asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What has to run, whatever the way.

    Attributes:
        jobs: of them all.
        rounds: so many of them follow one another on each of the slots.
        slots: on which they run side by side.
        nodes: of one slot.
        trial_s: seconds of a trial.
    """

    jobs: int
    rounds: int
    slots: int
    nodes: float
    trial_s: float

    def as_jobs(self, wait_s: float, *, depth: int) -> tuple[float, float]:
        """Return wall seconds and node-seconds; `depth` jobs of a node wait behind what runs."""
        ends = []
        for number in range(_DRAWS if wait_s else 1):
            random, slots = Random(number), []  # noqa: S311 - waits, no secrets
            for _ in range(self.slots):
                starts: list[float] = []
                for at in range(self.rounds):
                    asked_s = starts[at - depth] if at >= depth else 0.0
                    free_s = starts[-1] + self.trial_s if starts else 0.0
                    starts.append(max(asked_s + _drawn(random, wait_s), free_s))
                slots.append(starts[-1] + self.trial_s if starts else 0.0)
            ends.append(max(slots))
        return fmean(ends), self.jobs * self.trial_s * self.nodes

    def in_allocations(self, wait_s: float, *, hold_s: float) -> tuple[float, float]:
        """Return the same where trials are steps of allocations of so many seconds each."""
        ends, held = [], []
        for number in range(_DRAWS if wait_s else 1):
            random = Random(number)  # noqa: S311 - likewise
            at_s, held_s = 0.0, 0.0
            begin_s = _drawn(random, wait_s)
            left = self.rounds
            while True:
                fit = min(max(int(hold_s / self.trial_s + 1e-9), 1), left)
                at_s = begin_s + fit * self.trial_s
                left -= fit
                if left <= 0:
                    break
                end_s = begin_s + hold_s
                held_s += hold_s
                asked_s = end_s - _AHEAD * self.trial_s
                begin_s = max(asked_s + _drawn(random, wait_s), end_s)
            ends.append(at_s)
            held.append(held_s + at_s - begin_s)
        return fmean(ends), fmean(held) * self.nodes * self.slots


def _drawn(random: Random, mean_s: float) -> float:
    return random.expovariate(1 / mean_s) if mean_s else 0.0


_HOLD_S = 4 * 3600.0  # of an allocation, where the sweep names no time
_SIDE = 4  # slots that a plan looks at, where the sweep has one
_UNMEASURED = (
    "no calibration has measured here what slots cost each other: "
    "`xlatune calibrate SWEEP_FILE --slots {slots}`"
)


def ways_of(
    resolved: ResolvedSweep,
    study: Study,
    history: Sequence[TrialResult],
    entries: Sequence[LedgerEntry],
    *,
    folder: Path,
    calibration: Calibration | None = None,
    tells: bool = True,
) -> Section | None:
    """Compare the ways of running the trials that are left; None where no nodes can be held.

    The waits are those of the ledger in `folder`, of jobs and of allocations that we asked for;
    else what Slurm expects now. Nothing is submitted. With a calibration of allocations it says too
    which way finds most in an hour: trials of one allocation are compared with what they share left
    out, so that as many of them tell more. It `tells` what was found too.

    Raises:
        ConfigError: an option of the scheduler cannot be passed through.
    """
    site, cost = resolved.sweep.site, cost_of(resolved, study, history, entries)
    if not site.runs_by.held_by or not cost.jobs or cost.trial_s is None:
        return None
    if cost.rounds and cost.slots == 1:
        return None  # the ways are worked out for jobs that share their nodes
    nodes = len(resolved.cell.nodelist) or max(site.resources.nodes, 1)
    one = _Run(jobs=cost.jobs, rounds=cost.jobs, slots=1, nodes=nodes, trial_s=cost.trial_s)
    side = one if not cost.rounds else replace(one, rounds=cost.rounds, slots=cost.slots)
    if side is one and not cost.measured:
        side = _side_by_side(resolved, one) or one
    hold_s = max(float(time_s(site.allocation)) or _HOLD_S, cost.trial_s)
    expected = _Expected(resolved, folder, entries, hold_s=hold_s)
    of_jobs, of_held = expected.of_jobs(), expected.of_allocations()
    said = [f"a trial takes {duration(cost.trial_s)}" + ("" if cost.known else ", its limit")]
    said += [_of_waits("a job", of_jobs), _of_waits("an allocation", of_held)]
    noise = calibration.allocations if calibration else None
    said += calibration.shared if calibration and tells else ()
    if resolved.slots:
        said += filter(None, [site.runs_by.shared_note(resolved.slots)])
    if resolved.slots and (calibration is None or calibration.slots is None):
        said.append(_UNMEASURED.format(slots=len(resolved.slots)))
    if isinstance(of_jobs, str) and isinstance(of_held, str):
        return section(_TITLE, bullets(*map(plain, said)))
    hold = duration(hold_s)
    held = f"--xlatune-executor {site.runs_by.held_by} --xlatune-allocation {_clock(hold_s)}"
    rows: list[tuple[str, str, bool, Callable[[], tuple[float, float]] | None]] = []
    for run in dict.fromkeys((one, side)):
        slots = f"--xlatune-slots {run.slots}" if run.slots > 1 else ""
        where = f", {run.slots} slots of {counted(round(nodes), 'node')}" if slots else ""
        for depth in (1, 2):
            words = " ".join(filter(None, [f"--xlatune-queue-depth {depth}", slots]))
            rows.append(
                (f"jobs, {depth} waiting{where}", words, False,
                 None if isinstance(of_jobs, str) else
                 partial(run.as_jobs, of_jobs.mean_s, depth=depth))
            )  # fmt: skip
        words = " ".join(filter(None, [held, slots]))
        rows.append(
            (f"allocations of {hold}{where}", words, True,
             None if isinstance(of_held, str) else
             partial(run.in_allocations, of_held.mean_s, hold_s=hold_s))
        )  # fmt: skip
    found = [
        _Way(name=name, options=words, is_held=is_held, spent=ask() if ask else None)
        for name, words, is_held, ask in rows
    ]
    if isinstance(of_held, str) and not isinstance(of_jobs, str):
        said.append(_break_even(one, of_jobs.mean_s, hold_s=hold_s))
    if side.slots > 1 and not isinstance(of_held, str):
        said.append("the wait of larger allocations was not measured: that of one slot is taken")
    if noise is not None:
        said.append(_most_found(found, noise))
    more = [">hours for the same precision"] if noise else []
    table = Table(
        columns=columns("~way", "~options", ">hours", ">node-hours", *more),
        rows=tuple(
            (
                plain(each.name),
                plain(each.options),
                *(_hours(figure) for figure in each.spent or (None, None)),
                *([_hours(each.precise_s(noise.rho))] if noise else []),
            )
            for each in found
        ),
    )
    return section(_TITLE, bullets(*map(plain, said)), table)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """One way of running, and what it takes: wall seconds and node-seconds; None is unknown."""

    name: str
    options: str
    is_held: bool
    spent: tuple[float, float] | None

    def precise_s(self, rho: float) -> float | None:
        """Return the wall time after which it tells as much as jobs do after theirs.

        Blocks lie inside an allocation, so that a share `rho` of the variance cancels.
        """
        if self.spent is None:
            return None
        return self.spent[0] * (1 - rho if self.is_held else 1.0)


def _most_found(ways: Sequence[_Way], noise: AllocationNoise) -> str:
    """Say which way finds most in an hour, where the interval of the share leaves no doubt."""
    known = [(each, each.spent) for each in ways if each.spent is not None]
    if len({each.is_held for each, _ in known}) < len((True, False)):
        return (
            "cannot tell which way of running finds most in an hour: how long one of them waits "
            "is not known"
        )

    def best(rho: float) -> _Way:
        return min((each for each, _ in known), key=lambda each: each.precise_s(rho) or 0.0)

    low, high = best(noise.rho_low), best(noise.rho_high)
    if low.name == high.name:
        return f"{low.name}: finds most in an hour, wherever in its interval that share lies"
    return (
        f"cannot tell which way finds most in an hour: {low.name} where allocations share "
        f"{100 * noise.rho_low:.0f} % of the variance, {high.name} where it is "
        f"{100 * noise.rho_high:.0f} %; more allocations would tell"
    )


_TITLE = "Which way of running"


def _hours(seconds: float | None) -> str:
    return ABSENT if seconds is None else f"{seconds / _HOUR_S:.1f}"


def _clock(seconds: float) -> str:
    minutes, hours = round(seconds / 60) % 60, int(round(seconds / 60) // 60)
    return f"{hours}:{minutes:02d}:00"


def _of_waits(what: str, waits: Waits | str) -> str:
    """Say how long a job or an allocation waits, and how that is known."""
    if isinstance(waits, str):
        return f"how long {what} waits in the queue is not known: {waits}"
    if not waits.known:
        return f"{what} waits {duration(waits.mean_s)} in the queue: {waits.source}"
    behind = ""
    if waits.behind:
        behind = (
            f"; {waits.behind} of them began as soon as the one before had ended, and would have "
            "waited no longer than they did"
        )
    return (
        f"{what} waits {duration(waits.mean_s)} in the queue, the mean of {waits.known} in "
        f"{waits.source}{behind}"
    )


def _break_even(run: _Run, wait_s: float, *, hold_s: float) -> str:
    """Say up to which wait of its own an allocation ends before the chain of jobs."""
    jobs_s, _ = run.as_jobs(wait_s, depth=2)
    low, high = 0.0, 64 * max(wait_s, run.trial_s)
    if run.in_allocations(low, hold_s=hold_s)[0] >= jobs_s:
        return "however short an allocation waits, jobs are done as soon"
    for _ in range(30):
        middle = (low + high) / 2
        is_sooner = run.in_allocations(middle, hold_s=hold_s)[0] < jobs_s
        low, high = (middle, high) if is_sooner else (low, middle)
    return (
        f"allocations of {duration(hold_s)} are done before jobs (2 of which wait in the queue) "
        f"where each allocation waits less than {duration(low)}"
    )


def _side_by_side(resolved: ResolvedSweep, one: _Run) -> _Run | None:
    """Return what would run on several slots of as many nodes; None where the sweep has none."""
    nodelist = resolved.cell.nodelist
    if resolved.sweep.declared is not None or not nodelist:
        return None
    others = tuple(tuple(f"slot-{at}-{name}" for name in nodelist) for at in range(2, _SIDE + 1))
    try:
        study = replace(resolved, slots=(nodelist, *others)).tuning()
        rounds, jobs = study.rounds(()), study.left(())
    except ConfigError:
        return None
    return replace(one, jobs=jobs, rounds=rounds, slots=_SIDE) if rounds else None


class _Expected:
    """The waits of a sweep: measured ones, else those that Slurm expects; else why none."""

    def __init__(
        self,
        resolved: ResolvedSweep,
        folder: Path,
        entries: Sequence[LedgerEntry],
        *,
        hold_s: float,
    ) -> None:
        self._resolved, self._folder, self._entries = resolved, folder, entries
        self._runs_by = resolved.sweep.site.runs_by
        self._hold_s = hold_s
        self._why_not = ""  # what a scheduler said that cannot be asked: it is asked once

    def of_jobs(self) -> Waits | str:
        measured = _waits_of(each for each in _ran(self._entries, self._runs_by) if each.is_job)
        return measured or self._foreseen() or self._asked(self._resolved.sweep.site.resources)

    def of_allocations(self) -> Waits | str:
        held = self._runs_by.held_waits(self._folder)
        measured = _waits_of(_Ran(asked_s=a, start_s=b, end_s=c) for a, b, c in held)
        resources = self._resolved.sweep.site.resources
        return measured or self._asked(replace(resources, time_limit_s=math.ceil(self._hold_s)))

    def _foreseen(self) -> Waits | None:
        ids: dict[tuple[str, int], str] = {}
        for entry in self._entries:
            match entry.event:
                case AttemptSubmitted(submission=of) if is_queued(of.executor, self._runs_by):
                    ids[of.trial_id, of.attempt] = of.job_id
                case AttemptEnded(trial_id=trial_id, attempt=attempt):
                    ids.pop((trial_id, attempt), None)
                case _:
                    pass
        found = self._runs_by.pending_waits([*ids.values()])
        if not found.waits:
            return None
        jobs = counted(len(found.waits), "job")
        source = f"{found.said} of {jobs} of ours that waits"
        return Waits(mean_s=fmean(found.waits), source=source)

    def _asked(self, resources: Resources) -> Waits | str:
        if not self._why_not:
            found = self._runs_by.expected_wait(
                nodelist=self._resolved.cell.nodelist, resources=resources, now_s=time.time()
            )
            if found.waits:
                source = f"{found.said} expects it now; none was measured"
                return Waits(mean_s=fmean(found.waits), source=source)
            self._why_not = found.said
        return f"none was measured here, and {self._why_not}"


def _nodes_of(study: Study, history: Sequence[TrialResult]) -> float:
    """Return the mean number of nodes of the trials that come next; 0 where they name none."""
    nodes = {each.digest: len(each.nodelist) for each in study.cells}
    counts = [nodes.get(each.cell_digest, 0) for each in study.ahead(tuple(history))]
    return sum(counts) / len(counts) if counts and all(counts) else 0


def _waves_left(study: Study, history: Sequence[TrialResult], left: int) -> int:
    """Return how many of the trials that are left follow one another; 0 where all do."""
    nodes = {each.digest: each.nodelist for each in study.cells}
    ahead = [nodes.get(each.cell_digest, ()) for each in study.ahead(tuple(history))]
    waves = waves_in(ahead)
    return math.ceil(left * waves / len(ahead)) if waves < len(ahead) else 0


def kept_elsewhere(folder: Path, workdir: Path) -> tuple[str, ...]:
    """Say where another work directory holds trials of this cell; () where this one does.

    A start from another folder has another work directory, and would measure again. Looked at are
    the current folder, those above it and those in it.
    """
    if (workdir / folder / LEDGER).exists():
        return ()
    here = Path.cwd()
    places = [here, *list(here.parents)[:_FOLDERS_UP], *sorted(here.glob("*/"))[:_FOLDERS_DOWN]]
    found = dict.fromkeys((each / workdir.name).resolve() for each in places)
    return tuple(
        f"{each} holds trials of this very cell, and this run would measure them again; start it "
        f"from {each.parent}, or with --xlatune-workdir {each}"
        for each in found
        if each != workdir.resolve() and os.path.isfile(each / folder / LEDGER)  # noqa: PTH113 - false where we may not look
    )


def refuse_unasked(cost: Cost, *, limit_h: float | None, is_said: bool, sweep: str) -> None:
    """Refuse a run above the site's limit that no person has said yes to.

    Raises:
        ConfigError: says what the run would cost, and how to say yes.
    """
    hours = cost.node_hours
    if is_said or limit_h is None or hours is None or hours <= limit_h:
        return
    raise ConfigError(
        f"sweep {sweep!r} would cost {cost.words} ({'; '.join(cost.lines[:2])}). Above "
        f"{limit_h:g} (--xlatune-ask-above) a person has to say yes: look at --xlatune-plan, then "
        "run it with --xlatune-yes"
    )
