"""Estimate what a run costs before it starts: jobs, node-hours, wall time.

The duration of a trial and its time in the queue are means over this cell's ledger. Without such
trials, the time limit of a trial is used as an upper bound, and the plan says so; the time in the
queue is then unknown. A site may set a limit above which a person has to agree.
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
from pytest_xlatune.executors.named import is_queued
from pytest_xlatune.ledger import LEDGER, AttemptEnded, AttemptSubmitted, LedgerEntry
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.hosts import waves_in
from pytest_xlatune.model.result import TrialResult
from pytest_xlatune.model.text import counted, duration
from pytest_xlatune.stats.rotations import JobPace
from pytest_xlatune.studies import Outlook, Study
from pytest_xlatune.sweep.earlier import pace_in
from pytest_xlatune.sweep.resolved import ResolvedSweep

_HOUR_S = 3600.0
# how many folders up, and how many below the current one, are searched for ledgers
_FOLDERS_UP, _FOLDERS_DOWN = 4, 200


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
        rounds: number of groups of jobs, one after another, whose jobs run at the same time; 0 if
            all jobs run one after another.
        slots: number of node slots; 1 if there are none: the jobs of a group then name their nodes.
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
        return self._node_hours(self.most)

    def _node_hours(self, jobs: int) -> float | None:
        return None if self.trial_s is None else jobs * self.trial_s * self.nodes / _HOUR_S

    @property
    def node_hours_text(self) -> str:
        """The node-hours in words, which say whether the figure is an upper bound."""
        fewest, most = self._node_hours(self.jobs), self._node_hours(self.most)
        if fewest is None or most is None:
            return "unknown node-hours"
        if not self.known:
            return f"{self._hedge} {_ceiled(most)} node-hours"
        to = f" to {_ceiled(most)}" if _ceiled(most) != _ceiled(fewest) else ""
        return f"about {_ceiled(fewest)}{to} node-hours"

    @property
    def _hedge(self) -> str:
        """The word before a figure that rests on no trial; a time limit bounds no rotation."""
        return "perhaps" if self.is_mixed else "at most"

    @property
    def lines(self) -> tuple[str, ...]:
        """The sentences of a plan about the cost."""
        reused = ""
        if self.measured:
            verb = "is" if self.measured == 1 else "are"
            reused = f"; {counted(self.measured, 'trial')} {verb} measured already and used again"
        nodes = round(self.nodes)
        where = f"each on {counted(nodes, 'node')}"
        if nodes != self.nodes:
            where = f"on {self.nodes:.1f} nodes each on average"
        jobs = counted(self.jobs, "job")
        if self.most > self.jobs:
            jobs = f"{self.jobs} to {self.most} jobs"
        sentences = [f"{jobs} to run, {where}{reused}"]
        if not self.jobs:
            return tuple(sentences)
        if self.trial_s is None:
            return (*sentences, "how long a trial takes is not known: it has no limit")
        if self.is_mixed:
            how = f"from {counted(self.known, 'job')} here" if self.known else "a guess"
            mean = duration(self.trial_s)
            basis = f"the jobs to come, rotations among them, take {mean} on average, {how}"
        elif self.known:
            basis = f"a trial takes {duration(self.trial_s)}, the mean of {self.known} here"
        else:
            basis = f"a trial takes {duration(self.trial_s)} at most, its limit; none has run here"
        sentences.append(f"{self.node_hours_text}: {basis}")
        rounds = self.rounds or self.jobs
        wall_s = rounds * self.trial_s
        most_wall_s = wall_s * self.most / self.jobs
        order = "one after the other"
        if self.rounds:
            order = (
                f"in {counted(rounds, 'wave')}, jobs on other nodes at the same time"
                if self.slots == 1
                else f"on {self.slots} slots side by side"
            )
        wall = duration(wall_s) if self.known else f"{self._hedge} {duration(most_wall_s)}"
        if self.known and self.most > self.jobs:
            wall += f" to {duration(most_wall_s)}"
        time_text = f"{wall} {order}, without time in the queue"
        if self.queue_s is None:
            return (*sentences, f"{time_text}, which is unknown here")
        waited = f"where a job of this cell waited {duration(self.queue_s)}"
        return (*sentences, f"{time_text}, {waited}")


def _ceiled(hours: float) -> str:
    digits = 0 if hours >= 10 else 1  # noqa: PLR2004 - shows two digits at least
    return f"{math.ceil(hours * 10**digits) / 10**digits:.{digits}f}"


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
    waits_s = [attempt.wait_s for attempt in attempts if attempt.wait_s is not None]
    left, slots = outlook.left, len(resolved.slots) or 1
    rounds = outlook.rounds if len(study.cells) > 1 and resolved.slots else 0
    if executor.names_nodes and not resolved.slots:
        rounds = _waves_left(study, outlook)
    return Cost(
        jobs=left,
        # trials with `memory` only compiled
        measured=sum(result.status.is_final and result.memory is None for result in history),
        nodes=study.traits.cell_nodes
        or _nodes_of(study, outlook)
        or len(resolved.cell.nodelist)
        or resolved.sweep.launcher.nodes
        or max(site.resources.nodes, 1),
        trial_s=trial_s,
        known=known,
        queue_s=fmean(waits_s) if waits_s and executor.has_queue else None,
        rounds=rounds,
        slots=slots,
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
                if is_queued(submission.executor, executor):
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


def _nodes_of(study: Study, outlook: Outlook) -> float:
    """Return the mean number of nodes of the next trials; 0 if they name none."""
    nodes = {cell.digest: len(cell.nodelist) for cell in study.cells}
    counts = [nodes.get(trial.cell_digest, 0) for trial in outlook.ahead]
    return sum(counts) / len(counts) if counts and all(counts) else 0


def _waves_left(study: Study, outlook: Outlook) -> int:
    """Return how many waves of trials that run side by side remain; 0 if no two trials can."""
    nodes = {cell.digest: cell.nodelist for cell in study.cells}
    ahead = [nodes.get(trial.cell_digest, ()) for trial in outlook.ahead]
    waves = waves_in(ahead)
    return math.ceil(outlook.left * waves / len(ahead)) if waves < len(ahead) else 0


def measured_elsewhere(folder: Path, workdir: Path) -> tuple[str, ...]:
    """Return which other work directories hold trials of this cell; () if `workdir` holds some.

    A start from another folder has another work directory, and would measure again. The current
    folder, the folders above it and the folders in it are searched.
    """
    if (workdir / folder / LEDGER).exists():
        return ()
    here = Path.cwd()
    places = [here, *list(here.parents)[:_FOLDERS_UP], *sorted(here.glob("*/"))[:_FOLDERS_DOWN]]
    workdirs = dict.fromkeys((path / workdir.name).resolve() for path in places)
    return tuple(
        f"{path} holds trials of this very cell, and this run would measure them again; start it "
        f"from {path.parent}, or with --xlatune-workdir={path}"
        for path in workdirs
        if path != workdir.resolve() and os.path.isfile(path / folder / LEDGER)  # noqa: PTH113 - no error without permission
    )


def refuse_expensive(cost: Cost, *, limit_h: float | None, is_agreed: bool, sweep: str) -> None:
    """Refuse a run that costs more than `limit_h` node-hours, unless a person has agreed to it.

    Raises:
        ConfigError: the message says what the run would cost, and how to agree.
    """
    hours = cost.node_hours
    if is_agreed or limit_h is None or hours is None or hours <= limit_h:
        return
    raise ConfigError(
        f"sweep {sweep!r} would cost {cost.node_hours_text} ({'; '.join(cost.lines[:2])}). Above "
        f"{limit_h:g} (--xlatune-ask-above) a person has to agree: look at --xlatune-plan, then "
        "run it with --xlatune-yes"
    )
