"""All cells below a folder as they stand now, for a person who looks on from any machine.

Everything is read and nothing written: the ledgers, the files beside them, the logs of the jobs in
flight. So it shows the sweeps of other users and of other sessions alike. A cell that cannot be
read shows why, and the others are shown all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from pytest_xlatune.ledger import (
    LEDGER,
    AttemptSubmitted,
    CampaignOpened,
    Decided,
    EpochBegan,
    Ledger,
    LedgerEntry,
    NodesPinned,
    Noted,
    ProfileCompiled,
    TrialEnded,
    find_ledgers,
)
from pytest_xlatune.ledger.now import read_now
from pytest_xlatune.model.errors import ConfigError, XlatuneError
from pytest_xlatune.model.redact import hide_kept
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import TrialStatus, Verdict
from pytest_xlatune.report.document import plain
from pytest_xlatune.report.lines import is_pending, speed, standing
from pytest_xlatune.report.words import sentence
from pytest_xlatune.tasks.measured import folders_of
from pytest_xlatune.tasks.publish import Known, read_known
from pytest_xlatune.tasks.running import Flights, Pace, Running

_ALIVE_S = 90.0  # a session that drives a cell gives a sign of life more often
_TOLD = frozenset({Next.RETRY, Next.STOP, Next.INTERRUPTED, Next.DROP})


class Standing(StrEnum):
    """How a cell stands."""

    RUNNING = "running"
    IDLE = "no session looks after it"
    STOPPED = "stopped"
    COMPLETE = "complete"
    UNREADABLE = "cannot be read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One cell at one moment.

    Attributes:
        folder: of its ledger.
        sweep: the sweep's name.
        label: the cell in a few words.
        standing: how it stands.
        why: the reason of a stop, or why it cannot be read; "" otherwise.
        running: its jobs in flight.
        ranking: verdicts in the conclusion's order, confirmed ones first; those without a trial
            are left out.
        progress: trials over, trials to come, time left.
        events: time and text of its last events, the newest first.
    """

    folder: Path
    sweep: str
    label: str
    standing: Standing
    why: str = ""
    running: tuple[Running, ...] = ()
    ranking: tuple[Verdict, ...] = ()
    progress: str = ""
    events: tuple[tuple[float, str], ...] = ()

    @property
    def is_active(self) -> bool:
        """Whether something may still happen to it."""
        return self.standing in (Standing.RUNNING, Standing.IDLE)


class Watcher:
    """The cells below a folder; keeps what it has read between two looks."""

    def __init__(self, folder: Path, *, names: Sequence[str] = ()) -> None:
        """Watch the cells below `folder`: those whose sweep or folder `names` has, else all.

        Raises:
            ConfigError: there is none, or none of a name.
        """
        self._folder, self._names = folder, tuple(names)
        self._cells: dict[Path, _Cell] = {}
        known = {part for each in folders_of(folder, ()) for part in _names_of(each)}
        for name in self._names:
            if name not in known:
                raise ConfigError.unknown("cell", name, valid=known, where=str(folder))

    def look(self, now_s: float) -> tuple[Seen, ...]:
        """Return every cell, those that run first."""
        found = []
        for folder in self._folders():
            cell = self._cells.setdefault(folder, _Cell(folder))
            try:
                found.append(cell.look(now_s))
            except (XlatuneError, OSError) as error:
                found.append(
                    Seen(
                        folder=folder,
                        sweep=folder.parent.name,
                        label=folder.name,
                        standing=Standing.UNREADABLE,
                        why=str(error),
                    )
                )
        return tuple(sorted(found, key=lambda each: (not each.is_active, each.sweep, each.label)))

    def _folders(self) -> list[Path]:
        return [
            each
            for each in find_ledgers(self._folder)
            if not self._names or not _names_of(each).isdisjoint(self._names)
        ]


def _names_of(folder: Path) -> frozenset[str]:
    return frozenset({folder.parent.name, folder.name})


class _Cell:
    """One cell: its ledger is read again when it has grown."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._flights = Flights(folder)
        self._size_bytes = -1
        self._known: Known | None = None
        self._entries: tuple[LedgerEntry, ...] = ()

    def look(self, now_s: float) -> Seen:
        """Return how it stands.

        Raises:
            XlatuneError, OSError: it cannot be read.
        """
        size_bytes = (self._folder / LEDGER).stat().st_size
        if self._known is None or size_bytes != self._size_bytes:
            self._entries = Ledger(self._folder / LEDGER).refresh()
            self._known = read_known(self._folder)
            self._size_bytes = size_bytes
        known, pace = self._known, Pace()
        for entry in self._entries:
            pace.note(entry)
        running = self._flights.look(known.state, pace.submitted_s)
        # what the last session asked for, which may be less than the whole study
        left = known.study.left(known.history), known.study.at_most(known.history)
        left_s = pace.range_s(left, now_s, running=running)
        at_s = max(read_now(self._folder).at_s, known.at_s)
        ranked = [each for each in known.conclusion.verdicts if not is_pending(each)]
        stands = _standing(known, is_alive=now_s - at_s < _ALIVE_S)
        is_alive = stands is Standing.RUNNING
        return Seen(
            folder=self._folder,
            sweep=known.sweep,
            label=known.cell.label,
            standing=stands,
            why=known.stop_reason if stands is Standing.STOPPED else "",
            running=tuple(replace(each, reason=hide_kept(plain(each.reason))) for each in running),
            ranking=tuple(ranked),
            progress=standing(
                known.history,
                left_s=left_s if is_alive else None,
                ahead=known.study.ahead(known.history),
                left=left,
            ),
            events=tuple(
                (entry.at_s, hide_kept(text))
                for entry in reversed(self._entries)
                if (text := _said(entry))
            ),
        )


def _standing(known: Known, *, is_alive: bool) -> Standing:
    if known.conclusion.complete:
        return Standing.COMPLETE
    if known.state.stop is not None:
        return Standing.STOPPED
    return Standing.RUNNING if is_alive else Standing.IDLE


def _said(entry: LedgerEntry) -> str:  # noqa: PLR0911 - a line for each event
    """Return an event as a short line; "" for one that is no news."""
    match entry.event:
        case CampaignOpened(session=session):
            return f"session {session} began"
        case AttemptSubmitted(submission=of):
            return f"{of.trial_id} submitted as job {of.job_id}"
        case TrialEnded(result=result) if result.score is not None:
            return f"{result.trial.id}: {speed(result.score)}"
        case TrialEnded(result=result):
            how = "dropped" if result.status is TrialStatus.DROPPED else result.status.value
            return plain(f"{result.trial.id}: {sentence(result.reason) or how}")
        case Decided(trial_id=trial_id, next=follows, why=why) if follows in _TOLD:
            return plain(f"{trial_id}: {sentence(why)}")
        case NodesPinned(nodes=nodes):
            return f"pinned to {', '.join(nodes)}"
        case EpochBegan(why=why):
            return plain(f"a new epoch: {sentence(why)}")
        case Noted(said=said):
            return plain(f"note: {sentence(said)}")
        case ProfileCompiled(profile=profile, sentence=text):
            return plain(f"{profile} compiled: {text}")
        case _:
            return ""
