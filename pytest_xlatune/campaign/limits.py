"""What a sweep may cost beside its number of jobs: node-hours, and hours with the scheduler.

Both are counted over all sessions of a ledger, from its own events. A trial that would probably not
fit is not submitted: the sweep stops with what it knows. This module decides; it cancels nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pytest_xlatune.errors import ConfigError
from pytest_xlatune.ledger import AttemptEnded, AttemptIntended, Entry

_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that a sweep may cost; None is no limit.

    Attributes:
        node_hours: hours of its trials times their nodes.
        queue_hours: hours in which a trial of it waited or ran.
    """

    node_hours: float | None = None
    queue_hours: float | None = None

    def __post_init__(self) -> None:
        for name in ("node_hours", "queue_hours"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"limits: {name} is {value}, expected more than 0 hours")

    def over(self, other: Limits) -> Limits:
        """Return these limits, and those of `other` where there is none."""
        return Limits(
            node_hours=other.node_hours if self.node_hours is None else self.node_hours,
            queue_hours=other.queue_hours if self.queue_hours is None else self.queue_hours,
        )


@dataclass(slots=True, kw_only=True)
class Spending:
    """What a sweep has cost so far, fed with the events of its ledger in order.

    Attributes:
        nodes: of a trial whose outcome names none.
        node_s: seconds of its trials times their nodes.
        queue_s: seconds in which a trial of it waited or ran.
        ended: attempts behind both.
    """

    nodes: int = 1
    node_s: float = 0.0
    queue_s: float = 0.0
    ended: int = 0
    _began_s: dict[tuple[str, int], float] = field(default_factory=dict)
    _busy_since_s: float | None = None

    def feed(self, entries: Iterable[Entry]) -> None:
        """Count the events; each is fed once."""
        for entry in entries:
            event = entry.event
            if isinstance(event, AttemptIntended):
                self._began_s.setdefault((event.trial_id, event.attempt), entry.at_s)
                if self._busy_since_s is None:
                    self._busy_since_s = entry.at_s
            elif isinstance(event, AttemptEnded):
                began_s = self._began_s.pop((event.trial_id, event.attempt), None)
                if began_s is None:
                    continue
                outcome = event.outcome
                took_s = entry.at_s - began_s
                if outcome.start_s is not None and outcome.end_s is not None:
                    took_s = outcome.end_s - outcome.start_s
                # clocks jump; time that runs backwards costs nothing
                self.node_s += max(took_s, 0.0) * (len(outcome.nodes) or self.nodes)
                self.ended += 1
                if not self._began_s and self._busy_since_s is not None:
                    self.queue_s += max(entry.at_s - self._busy_since_s, 0.0)
                    self._busy_since_s = None

    def exhausted(self, limits: Limits) -> str:
        """Return why another trial may not be submitted, "" where it may.

        Another trial costs what they cost on average; before the first has ended, nothing is known
        and it may.
        """
        for name, what, used_s, limit in (
            ("node-hours", "node-hours", self.node_s, limits.node_hours),
            ("queue-hours", "hours with the scheduler", self.queue_s, limits.queue_hours),
        ):
            if limit is None or not self.ended:
                continue
            used, each = used_s / _HOUR_S, used_s / _HOUR_S / self.ended
            if used + each > limit:
                return (
                    f"budget: {used:.3g} of {limit:g} {what} are spent and a trial takes about "
                    f"{each:.2g}, so no further one is submitted; --xlatune-{name} raises it"
                )
        return ""
