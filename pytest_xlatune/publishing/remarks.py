"""Why jobs have no score, by what the ledger says of each attempt: pure.

A result knows the reason of its last attempt alone, and a trial that is to be run again has none
yet; what a campaign let go, or tried again, is told here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_xlatune.campaign.jobs import INTERRUPTED
from pytest_xlatune.ledger import (
    AttemptEnded,
    AttemptLetGo,
    AttemptSubmitted,
    CampaignOpened,
    Decided,
    Entry,
    Event,
)
from pytest_xlatune.recovery import Next

_LET_GO = "let go: nobody waits for it"
_STOPPED = "ended after the sweep was stopped; to be run again"

_Key = tuple[str, int]  # trial id, number of the attempt


@dataclass(slots=True)
class _Read:
    jobs: dict[_Key, str] = field(default_factory=dict)
    said: dict[_Key, str] = field(default_factory=dict)
    sessions: set[str] = field(default_factory=set)
    is_stopped: bool = False


def remarks_of(entries: Iterable[Entry]) -> dict[str, str]:
    """Return job id -> what was decided on it, or that it was let go; nothing of an accepted one.

    A trial's own result says more of its last attempt, where there is one.
    """
    read = _Read()
    for entry in entries:
        rule = _RULES.get(type(entry.event))
        if rule is not None:
            rule(read, entry.event)
    return {read.jobs[key]: words for key, words in read.said.items() if words and key in read.jobs}


def _open(read: _Read, event: CampaignOpened) -> None:
    if event.session not in read.sessions:
        read.sessions.add(event.session)
        read.is_stopped = False


def _submit(read: _Read, event: AttemptSubmitted) -> None:
    of = event.submission
    read.jobs[of.trial_id, of.attempt] = of.job_id


def _let_go(read: _Read, event: AttemptLetGo) -> None:
    read.said[event.trial_id, event.attempt] = _LET_GO


def _decide(read: _Read, event: Decided) -> None:
    is_ours = event.next == INTERRUPTED and read.is_stopped
    read.said[event.trial_id, event.attempt] = _STOPPED if is_ours else event.reason
    read.is_stopped |= event.next == Next.STOP


def _end(read: _Read, event: AttemptEnded) -> None:
    # it came to its own end before we did
    if read.said.get((event.trial_id, event.attempt)) == _LET_GO:
        del read.said[event.trial_id, event.attempt]


_RULES: Mapping[type[Event], Callable[[_Read, Any], None]] = {
    CampaignOpened: _open,
    AttemptSubmitted: _submit,
    AttemptLetGo: _let_go,
    Decided: _decide,
    AttemptEnded: _end,
}
