"""Which trials may be submitted now, given the room on their nodes and the limits of the sweep.

Trials on disjoint nodes run at the same time. Trials that share a node keep the order in which the
study proposed them: a trial that waits blocks later trials on its own nodes only. At most
`queue_depth` submissions (two by default) wait behind what runs on a node, so that a node never
idles and a sweep that is stopped leaves little behind.

Limits are set on node-hours, and on the hours during which trials were with the scheduler. Both are
summed over all sessions of a ledger. A trial that would probably exceed a limit is not submitted.
This module submits and cancels nothing.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pytest_xlatune.campaign.sweep_run import SweepRun
from pytest_xlatune.ledger import (
    AttemptEnded,
    AttemptIntended,
    Decided,
    LedgerEntry,
    TrialPlanned,
)
from pytest_xlatune.ledger.state import LedgerState
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.message import Message, say
from pytest_xlatune.model.result import Outcome, State
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.sweep.groups import Limits

_THIS_MACHINE = ("this machine",)
_HOUR_S = 3600.0
_LOG = logging.getLogger("pytest_xlatune.campaign")


class Packing:
    """The room on the nodes of one campaign, and why a trial has to wait."""

    def __init__(self, run: SweepRun) -> None:
        self._run = run
        self._running: frozenset[str] = frozenset()  # ids of running jobs
        # trial id and wall-clock end of a back-off -> the same end on the monotonic clock
        self._waits_until: dict[tuple[str, float], float] = {}
        self._reasons: dict[str, str] = {}  # subject -> the reason that was last logged for it

    def note_running(self, outcomes: Mapping[str, Outcome]) -> None:
        """Note which jobs run, because these no longer wait for a node."""
        self._running = frozenset(
            job_id for job_id, outcome in outcomes.items() if outcome.state is State.RUNNING
        )

    def is_full(self, state: LedgerState) -> bool:
        """Return whether the executor takes no further submission."""
        at_most = self._run.executor.max_in_flight
        return 0 < at_most <= len(state.flying) + len(state.intended)

    def ready(
        self, state: LedgerState, pending: Sequence[Trial], *, one_each: bool = False
    ) -> Iterator[Trial]:
        """Yield the trials to submit now, in order; the caller submits each before the next.

        With `one_each`, a node gets one submission, and none in advance. The reason why a trial
        waits is logged when it changes.
        """
        ahead = self._count_ahead(state, with_running=one_each)
        held: set[str] = set()  # places that a waiting trial needs, see `_places`
        all_places = {
            place for cell in self._run.cells.values() for place in self._places(state, cell)[0]
        }
        for trial in pending:
            if held >= all_places:
                return
            progress = state.trials.get(trial.id)
            if progress is not None and not progress.is_to_run:
                continue
            if self.is_full(state):
                self.log_if_new(
                    "full", f"the executor takes no more than {len(state.flying)} submissions"
                )
                return
            places, depth = self._places(state, self._run.cell_of(trial, state))
            if not held.isdisjoint(places):
                # it is not logged, because the log says why the earlier trial waits there
                held.update(places)
                continue
            # A trial that is retried waits behind the submissions on its nodes. If these are many,
            # it runs long after the other trials of its block, so only few may be ahead.
            at_most = 1 if one_each else depth
            full_place = next((place for place in places if ahead[place] >= at_most), "")
            last_decision = self._back_off_of(state, trial)
            if last_decision is not None or full_place:
                why = f"{ahead[full_place]} submissions are ahead on {full_place}"
                if last_decision is not None:
                    until = datetime.fromtimestamp(last_decision.not_before_s, UTC)
                    why = f"it waits after {last_decision.cls} until {until:%H:%M:%S UTC}"
                self.log_if_new(",".join(places), f"{trial.id} is not submitted yet: {why}")
                held.update(places)
                continue
            self._reasons.pop(",".join(places), None)
            ahead.update(places)
            yield trial

    def log_if_new(self, about: str, reason: str) -> None:
        """Log a reason, unless it is the one that was last logged for this subject."""
        if self._reasons.get(about) != reason:
            self._reasons[about] = reason
            _LOG.info("%s", reason)

    def _count_ahead(self, state: LedgerState, *, with_running: bool) -> Counter[str]:
        """Return how many submissions wait for each place, or also run there, in `_places`."""
        ahead: Counter[str] = Counter()
        jobs = [(trial_id, job.job_id) for (trial_id, _), job in state.flying.items()]
        jobs += [(trial_id, "") for trial_id, _ in state.intended]  # without a job id so far
        for trial_id, job_id in jobs:
            cell = self._run.cell_of(state.trials[trial_id].trial, state)
            places, depth = self._places(state, cell)
            # a depth of 1 means one submission at a time, so that a running job counts too
            if with_running or depth == 1 or job_id not in self._running:
                ahead.update(places)
        return ahead

    def _places(self, state: LedgerState, cell: Cell) -> tuple[tuple[str, ...], int]:
        """Return the places of a cell's trials, and the depth of the queue at each place.

        A place is a node; or one name for the nodes that the scheduler will pick; or this machine.
        """
        nodes, depth = state.nodes_of(cell), self._run.queue_depth
        if nodes:
            return nodes, depth
        if self._run.picks_nodes(cell):
            return (f"the nodes of {cell.digest}",), 1
        return _THIS_MACHINE, depth

    def _back_off_of(self, state: LedgerState, trial: Trial) -> Decided | None:
        """Return the decision to retry a trial later, while it must wait; None if it need not."""
        decisions = state.decided_on(trial.id)
        not_before_s = decisions[-1].not_before_s if decisions else 0.0
        if not not_before_s:
            return None
        # the remaining time is computed once, then measured by a clock that does not jump
        key, remaining_s = (trial.id, not_before_s), not_before_s - self._run.clock.now()
        until_s = self._waits_until.setdefault(key, self._run.clock.ticks() + remaining_s)
        return decisions[-1] if self._run.clock.ticks() < until_s else None


@dataclass(slots=True, kw_only=True)
class Spending:
    """The cost of a sweep so far, from the events of its ledger in order.

    Attributes:
        nodes: number of nodes of a trial whose cell is not in `nodes_of_cell`.
        nodes_of_cell: digest of a cell -> number of nodes of its trials.
        node_s: sum over the ended attempts of their seconds times their nodes.
        ended: number of attempts that have ended.
        ended_nodes: sum of the nodes of these attempts.
        took_s: sum of the seconds of these attempts, also of those that ran at the same time.
    """

    nodes: int = 1
    nodes_of_cell: Mapping[str, int] = field(default_factory=dict)
    node_s: float = 0.0
    ended: int = 0
    ended_nodes: int = 0
    took_s: float = 0.0
    _at_s: float = 0.0  # time of the last event
    # intervals in which ended trials were with the scheduler
    _busy_s: list[tuple[float, float]] = field(default_factory=list)
    _cells: dict[str, str] = field(default_factory=dict)  # trial id -> digest of its cell
    # trial id and attempt -> when it was intended, if it has not ended
    _began_s: dict[tuple[str, int], float] = field(default_factory=dict)

    def feed(self, entries: Iterable[LedgerEntry]) -> None:
        """Add the events to the sums; an event must not be passed twice."""
        for entry in entries:
            event = entry.event
            self._at_s = entry.at_s
            if isinstance(event, TrialPlanned):
                self._cells[event.trial.id] = event.trial.cell_digest
            elif isinstance(event, AttemptIntended):
                self._began_s.setdefault((event.trial_id, event.attempt), entry.at_s)
            elif isinstance(event, AttemptEnded):
                began_s = self._began_s.pop((event.trial_id, event.attempt), None)
                if began_s is None:
                    continue
                outcome = event.outcome
                # if no session was there when it ended, the event comes late
                self._busy_s.append((began_s, min(outcome.end_s or entry.at_s, entry.at_s)))
                took_s = entry.at_s - began_s
                if outcome.start_s is not None and outcome.end_s is not None:
                    took_s = outcome.end_s - outcome.start_s
                # the clock may have jumped back, so a negative duration counts as 0
                nodes = len(outcome.nodes) or self.nodes_for(self._cells.get(event.trial_id, ""))
                self.node_s += max(took_s, 0.0) * nodes
                self.took_s += max(took_s, 0.0)
                self.ended_nodes += nodes
                self.ended += 1

    @property
    def busy_s(self) -> float:
        """Seconds during which at least one trial was with the scheduler."""
        flying = [(began_s, self._at_s) for began_s in self._began_s.values()]
        total_s, until_s = 0.0, 0.0
        for began_s, end_s in sorted(self._busy_s + flying):
            total_s += max(end_s - max(began_s, until_s), 0.0)
            until_s = max(until_s, end_s)
        return total_s

    def nodes_for(self, cell_digest: str) -> int:
        """Return the number of nodes of a cell's trials."""
        return self.nodes_of_cell.get(cell_digest, self.nodes)

    def is_unknown(self, limits: Limits) -> bool:
        """Return whether a limit is set and no trial has ended, so that the cost is unknown."""
        return not self.ended and limits != Limits()

    def exhausted(self, limits: Limits, *, cell_digest: str = "") -> Message | None:
        """Return which limit another trial of this cell would break; None if it may run.

        A trial that has not ended is expected to cost the average, in proportion to its nodes.
        Before any trial has ended, trials may run.
        """
        if not self.ended:
            return None
        hours, trial_hours = self.busy_s / _HOUR_S, self.took_s / self.ended / _HOUR_S
        if limits.hours is not None and hours + trial_hours > limits.hours:
            return _limit_message("hours", used=hours, of=limits.hours, each=trial_hours)
        limit = limits.node_hours
        if limit is None:
            return None
        used = self.node_s / _HOUR_S
        per_node = used / self.ended_nodes  # node-hours of a trial on one node
        trial_node_hours = per_node * self.nodes_for(cell_digest)
        running_cells = [self._cells.get(trial_id, "") for trial_id, _ in self._began_s]
        running_nodes = sum(self.nodes_for(digest) for digest in running_cells)
        if used + per_node * running_nodes + trial_node_hours <= limit:
            return None
        return _limit_message("node-hours", used=used, of=limit, each=trial_node_hours)


def _limit_message(limit: str, **hours: float) -> Message:
    """Return the message on a limit that is reached; `limit` is the name of its option."""
    return say(
        "{used:.3g} of {of:g} {limit} are spent and a trial takes about {each:.2g}, so "
        "no further trial is submitted; --xlatune-{limit} raises the limit",
        limit=limit,
        **hours,
    )
