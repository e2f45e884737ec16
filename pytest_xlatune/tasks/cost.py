"""What a run will cost before it spends anything: jobs, node-hours, wall time.

The duration of a trial and its time in the queue are means of this cell's own ledger, where it has
any; else a trial's time limit is an upper bound, and a plan says that it is one. A site may set a
limit above which a person has to say yes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_xlatune.ledger import LEDGER, AttemptEnded, AttemptSubmitted, LedgerEntry
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.result import TrialResult
from pytest_xlatune.model.text import counted, duration
from pytest_xlatune.studies import Study
from pytest_xlatune.sweep.registry import kind_of
from pytest_xlatune.sweep.resolved import ResolvedSweep

_HOUR_S = 3600.0
_FOLDERS_UP, _FOLDERS_DOWN = 4, 200  # of the current one, where another start may have worked


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a study will still cost.

    Attributes:
        jobs: that are likely still to come.
        measured: trials that are over and are used again.
        nodes: of each job; the mean where jobs have nodes of their own.
        trial_s: seconds of a trial; None where not even a limit is known.
        known: measured trials behind `trial_s`; 0 where it is the limit.
        queue_s: mean seconds in the queue; None where no trial has waited yet.
    """

    jobs: int
    measured: int
    nodes: float
    trial_s: float | None
    known: int = 0
    queue_s: float | None = None

    @property
    def node_hours(self) -> float | None:
        """Hours of trials times nodes; an upper bound where no trial is known."""
        return None if self.trial_s is None else self.jobs * self.trial_s * self.nodes / _HOUR_S

    @property
    def words(self) -> str:
        """The node-hours in words; they name an upper bound as one."""
        hours = self.node_hours
        if hours is None:
            return "unknown node-hours"
        about = "about" if self.known else "at most"
        digits = 0 if hours >= 10 else 1  # noqa: PLR2004 - two digits are enough
        return f"{about} {math.ceil(hours * 10**digits) / 10**digits:.{digits}f} node-hours"

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
        said = [f"{counted(self.jobs, 'job')} to run, {on}{reused}"]
        if not self.jobs:
            return tuple(said)
        if self.trial_s is None:
            return (*said, "how long a trial takes is not known: it has no limit")
        if self.known:
            basis = f"a trial takes {duration(self.trial_s)}, the mean of {self.known} here"
        else:
            basis = f"a trial takes {duration(self.trial_s)} at most, its limit; none has run here"
        said.append(f"{self.words}: {basis}")
        wall_s = self.jobs * self.trial_s
        about = "" if self.known else "at most "
        without = f"{about}{duration(wall_s)} one after the other, without time in the queue"
        if self.queue_s is None:
            return (*said, f"{without}, of which nothing is known yet")
        waits_s = self.jobs * self.queue_s
        mean = duration(self.queue_s)
        return (*said, f"{without}; {duration(wall_s + waits_s)} with it (a mean of {mean} each)")


def cost_of(
    resolved: ResolvedSweep,
    study: Study,
    history: Sequence[TrialResult],
    entries: Sequence[LedgerEntry],
) -> Cost:
    """Return what a study will still cost, given its results and the ledger of its cell."""
    submitted_s: dict[tuple[str, int], float] = {}
    took_s, waited_s = [], []
    for entry in entries:
        match entry.event:
            case AttemptSubmitted(submission=of):
                submitted_s[of.trial_id, of.attempt] = entry.at_s
            case AttemptEnded(trial_id=trial_id, attempt=attempt, outcome=outcome):
                if outcome.start_s is None or outcome.end_s is None:
                    continue
                took_s.append(max(outcome.end_s - outcome.start_s, 0.0))
                before_s = submitted_s.get((trial_id, attempt))
                if before_s is not None:
                    waited_s.append(max(outcome.start_s - before_s, 0.0))
            case _:
                pass
    site, protocol = resolved.sweep.site, resolved.cell.protocol
    limits = [protocol.deadline_s]
    if site.executor == "slurm":
        limits.append(site.resources.time_limit_s)
    known = len(took_s)
    trial_s = sum(took_s) / known if known else min(limits, default=None)
    is_slurm = site.executor == "slurm" and waited_s
    return Cost(
        jobs=study.left(tuple(history)),
        measured=sum(each.status.is_final for each in history),
        nodes=kind_of(study.name).cell_nodes
        or _nodes_of(study, history)
        or len(resolved.cell.nodelist)
        or max(site.resources.nodes, 1),
        trial_s=trial_s,
        known=known,
        queue_s=sum(waited_s) / len(waited_s) if is_slurm else None,
    )


def _nodes_of(study: Study, history: Sequence[TrialResult]) -> float:
    """Return the mean number of nodes of the trials that come next; 0 where they name none."""
    nodes = {each.digest: len(each.nodelist) for each in study.cells}
    counts = [nodes.get(each.cell_digest, 0) for each in study.ahead(tuple(history))]
    return sum(counts) / len(counts) if counts and all(counts) else 0


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
