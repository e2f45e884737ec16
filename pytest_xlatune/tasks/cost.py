"""Estimate what a run costs before it starts: jobs, node-hours, wall time.

The duration of a trial and its time in the queue are means over this cell's ledger. Without such
trials, the time limit of a trial is used as an upper bound, and the plan says so; the time in the
queue is then unknown.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from msgspec.structs import replace

from pytest_xlatune.executors import Executor
from pytest_xlatune.ledger import LEDGER, AttemptEnded, AttemptSubmitted, LedgerEntry
from pytest_xlatune.model.hosts import waves_in
from pytest_xlatune.model.result import TrialResult
from pytest_xlatune.model.text import counted, duration
from pytest_xlatune.stats.rotations import JobPace
from pytest_xlatune.studies import Study
from pytest_xlatune.sweep.earlier import pace_in
from pytest_xlatune.sweep.resolved import ResolvedSweep

_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a study will still cost.

    Attributes:
        jobs: number of jobs that are still planned.
        measured: number of finished trials that are used again.
        nodes: number of nodes of a job; the mean if jobs differ.
        trial_s: seconds that a trial takes; None if not even a limit is known.
        known: number of jobs of this cell from which `trial_s` is computed; 1 if the user gave the
            time; 0 if `trial_s` is the limit or a guess.
        queue_s: mean seconds in the queue; None if no job has waited yet.
        rounds: number of groups of planned jobs that run one after another; 0 if all run that way.
        slots: number of node slots, on which the jobs of a group run side by side; 1 without node
            slots.
        at_most: the most jobs that may come; 0 if no more than planned.
        is_mixed: whether rotations are among the jobs; `trial_s` is then a mean over both kinds.
    """

    jobs: int
    measured: int
    nodes: float
    trial_s: float | None
    known: int = 0
    queue_s: float | None = None
    rounds: int = 0
    slots: int = 1
    at_most: int = 0
    is_mixed: bool = False

    @property
    def most(self) -> int:
        """The most jobs that may still come."""
        return max(self.jobs, self.at_most)

    @property
    def node_hours(self) -> float | None:
        """The node-hours of all jobs that may come; an upper bound if no trial was measured."""
        return None if self.trial_s is None else self.most * self.trial_s * self.nodes / _HOUR_S

    @property
    def node_hours_text(self) -> str:
        """The node-hours in words, which say whether the figure is an upper bound."""
        hours = self.node_hours
        if hours is None:
            return "unknown node-hours"
        digits = 0 if hours >= 10 else 1  # noqa: PLR2004 - shows two digits at least
        ceiled = math.ceil(hours * 10**digits) / 10**digits
        return f"{self._hedge} {ceiled:.{digits}f} node-hours"

    @property
    def _hedge(self) -> str:
        """The word before a figure; "perhaps" for unmeasured rotations, which no limit bounds."""
        if self.known:
            return "about" if self.most == self.jobs else "at most about"
        return "perhaps" if self.is_mixed else "at most"

    @property
    def lines(self) -> tuple[str, ...]:
        """The sentences of a plan about the cost."""
        jobs = counted(self.jobs, "job")
        if self.most > self.jobs:
            jobs = f"{self.jobs} to {self.most} jobs"
        reused = f"; {counted(self.measured, 'trial')} measured already and used again"
        where = f"each on {counted(int(self.nodes), 'node')}"
        if self.nodes % 1:
            where = f"on {self.nodes:.1f} nodes each on average"
        first = f"{jobs} to run, {where}"
        sentences = [f"{first}{reused if self.measured else ''}"]
        if not self.jobs:
            return tuple(sentences)
        if self.trial_s is None:
            return (*sentences, "how long a trial takes is not known: it has no limit")
        what = "a job, rotations among them," if self.is_mixed else "a trial"
        basis = f"{what} takes {duration(self.trial_s)}"
        if self.known:
            basis += f", the mean of {self.known} here"
        else:
            basis += ", a guess" if self.is_mixed else " at most, its limit; none has run here"
        sentences.append(f"{self.node_hours_text}: {basis}")
        wall_s = (self.rounds or self.jobs) * self.trial_s * self.most / self.jobs
        order = "one after the other" if self.slots == 1 else f"on {self.slots} slots side by side"
        if self.rounds and self.slots == 1:
            order = f"in {counted(self.rounds, 'wave')}, jobs on other nodes at the same time"
        waiting = "which is unknown here"
        if self.queue_s is not None:
            waiting = f"where a job of this cell waited {duration(self.queue_s)}"
        wall = f"{self._hedge} {duration(wall_s)} {order}"
        return (*sentences, f"{wall}, without time in the queue, {waiting}")


def cost_of(
    resolved: ResolvedSweep,
    study: Study,
    history: Sequence[TrialResult],
    entries: Sequence[LedgerEntry],
) -> Cost:
    """Return what a study will still cost, from its results and the ledger of its cell."""
    site, protocol = resolved.sweep.site, resolved.cell.protocol
    executor, limits = site.chosen_executor, [protocol.deadline_s]
    outlook = study.outlook(tuple(history))
    attempts, work = _ended_attempts(entries, executor), outlook.work
    durations_s = [attempt.end_s - attempt.start_s for attempt in attempts]
    if not executor.is_here:
        limits.append(site.resources.time_limit_s)
    if site.trial_s and not durations_s:
        durations_s = [site.trial_s]
    known = len(durations_s)
    trial_s = sum(durations_s) / known if known else min(limits, default=None)
    if work is not None and work.jobs:
        pace = _pace(resolved, entries)
        trial_s, known = work.seconds(pace) / work.jobs, pace.jobs
    cells = {cell.digest: cell for cell in study.cells}
    ahead = (cells.get(trial.cell_digest) for trial in outlook.ahead)
    nodelists = [cell.nodelist for cell in ahead if cell is not None]
    rounds = outlook.rounds if resolved.slots else 0
    if len(cells) > 1 and executor.names_nodes and not resolved.slots and nodelists:
        waves = waves_in(nodelists)
        # two trials on the same nodes never run at the same time
        rounds = math.ceil(outlook.left * waves / len(nodelists)) if waves < len(nodelists) else 0
    waits_s = [attempt.wait_s for attempt in attempts if attempt.wait_s is not None]
    return Cost(
        jobs=outlook.left,
        # a trial that has `memory` was only compiled
        measured=sum(result.status.is_final and result.memory is None for result in history),
        nodes=study.traits.cell_nodes
        or (fmean(map(len, nodelists)) if nodelists else 0)
        or resolved.sweep.launcher.nodes
        or max(site.resources.nodes, 1),
        trial_s=trial_s,
        known=known,
        queue_s=fmean(waits_s) if waits_s and executor.has_queue else None,
        rounds=rounds,
        slots=len(resolved.slots) or 1,
        at_most=outlook.at_most,
        is_mixed=work is not None,
    )


def _pace(resolved: ResolvedSweep, entries: Sequence[LedgerEntry]) -> JobPace:
    """Return the parts of a job's time: measured here, given in the file, or guessed."""
    protocol, given_s = resolved.cell.protocol, resolved.sweep.site.trial_s
    if pace := pace_in(entries, resolved.cell):
        return pace
    guessed = JobPace.guessed(given_s or protocol.deadline_s, protocol.steps)
    return replace(guessed, jobs=1) if given_s else guessed


@dataclass(frozen=True, slots=True, kw_only=True)
class _EndedAttempt:
    """An attempt that is over: when it ran, and how long it waited in the queue."""

    start_s: float
    end_s: float
    wait_s: float | None  # None if it was not a job in the queue of this scheduler


def _ended_attempts(entries: Sequence[LedgerEntry], executor: Executor) -> list[_EndedAttempt]:
    """Return the attempts of a ledger that began and are over."""
    submitted_s: dict[tuple[str, int], float] = {}
    attempts = []
    for entry in entries:
        match entry.event:
            case AttemptSubmitted(submission=submission):
                if executor.has_queue and submission.executor == executor.name:
                    submitted_s[submission.trial_id, submission.attempt] = entry.at_s
            case AttemptEnded(trial_id=trial_id, attempt=attempt, outcome=outcome):
                if outcome.start_s is None or outcome.end_s is None:
                    continue
                at_s = submitted_s.get((trial_id, attempt))
                attempts.append(
                    _EndedAttempt(
                        start_s=outcome.start_s,
                        end_s=max(outcome.end_s, outcome.start_s),
                        wait_s=None if at_s is None else max(outcome.start_s - at_s, 0.0),
                    )
                )
            case _:
                pass
    return attempts


def measured_elsewhere(folder: Path, workdir: Path) -> tuple[str, ...]:
    """Return which other work directories hold trials of this cell; () if `workdir` holds some.

    A start from another folder has another work directory, and would measure again. The current
    folder, the folders above it and the folders in it are searched.
    """
    if (workdir / folder / LEDGER).exists():
        return ()
    here = Path.cwd()
    others = {(path / workdir.name).resolve() for path in (here, *here.parents, *here.glob("*/"))}
    return tuple(
        f"{path} holds trials of this very cell, and this run would measure them again; start it "
        f"from {path.parent}, or with --xlatune-workdir={path}"
        for path in sorted(others - {workdir.resolve()})
        if os.path.isfile(path / folder / LEDGER)  # noqa: PTH113 - no error without permission
    )
