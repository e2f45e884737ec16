"""All cells below a folder as they stand now, for a person who looks on from any machine.

Everything is read and nothing written: the ledgers, the files beside them, the logs of the jobs in
flight. So it shows the sweeps of other users and of other sessions alike. A cell that cannot be
read shows why, and the others are shown all the same.

Then the cells are laid out as lines of a screen: what may still change in full. A line is parts of
text, each with a style of rich; "" is none. A line is one line high: the screen cuts a longer one.
"""

from __future__ import annotations

import dataclasses
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pytest_xlatune.ledger import (
    AttemptSubmitted,
    CampaignOpened,
    LedgerEntry,
    TrialEnded,
    find_ledgers,
)
from pytest_xlatune.ledger.now import read_now
from pytest_xlatune.model.errors import ConfigError, XlatuneError
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.result import Verdict
from pytest_xlatune.model.text import counted, interval, points
from pytest_xlatune.report.document import Table, columns, plain
from pytest_xlatune.report.lines import is_pending, speed, standing, words_in_short
from pytest_xlatune.report.render import compact_lines
from pytest_xlatune.tasks.measured import folders_of
from pytest_xlatune.tasks.publish import CellReport, known_now
from pytest_xlatune.tasks.running import Pace, Running, RunningJobs, event_lines

_ALIVE_S = 90.0  # a session that drives a cell gives a sign of life more often


class Standing(StrEnum):
    """How a cell stands."""

    RUNNING = "running"
    IDLE = "no session looks after it"
    STOPPED = "stopped"
    COMPLETE = "complete"
    UNREADABLE = "cannot be read"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellStatus:
    """One cell at one moment.

    Attributes:
        sweep: the sweep's name.
        label: the cell in a few words.
        standing: how it stands.
        why: the reason of a stop, or why it cannot be read; "" otherwise.
        running: its jobs in flight.
        ranking: verdicts in the conclusion's order, confirmed ones first; those without a trial
            are left out.
        progress: jobs over, jobs to come, time left.
        events: time and text of its last events, the newest first.
    """

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
        known = {part for path in folders_of(folder, ()) for part in _names_of(path)}
        for name in self._names:
            if name not in known:
                raise ConfigError.unknown("cell", name, valid=known, where=str(folder))

    def look(self, now_s: float) -> tuple[CellStatus, ...]:
        """Return every cell, those that run first."""
        found = []
        for folder in self._folders():
            cell = self._cells.setdefault(folder, _Cell(folder))
            try:
                found.append(cell.look(now_s))
            except (XlatuneError, OSError) as error:
                found.append(
                    CellStatus(
                        sweep=folder.parent.name,
                        label=folder.name,
                        standing=Standing.UNREADABLE,
                        why=str(error),
                    )
                )
        return tuple(sorted(found, key=lambda each: (not each.is_active, each.sweep, each.label)))

    def _folders(self) -> list[Path]:
        return [
            path
            for path in find_ledgers(self._folder)
            if not self._names or not _names_of(path).isdisjoint(self._names)
        ]


def _names_of(folder: Path) -> frozenset[str]:
    return frozenset({folder.parent.name, folder.name})


class _Cell:
    """One cell: its ledger is read again when it has grown."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._flights = RunningJobs(folder)
        self._known: CellReport | None = None

    def look(self, now_s: float) -> CellStatus:
        """Return how it stands.

        Raises:
            XlatuneError, OSError: it cannot be read.
        """
        known, pace = known_now(self._folder, self._known), Pace()
        self._known = known
        for entry in known.entries:
            pace.note(entry)
        running = self._flights.look(known.state, pace.submitted_s)
        # what the last session asked for, which may be less than the whole study
        outlook = known.study.outlook(known.history)
        left = outlook.left, outlook.at_most
        left_s = pace.range_s(left, now_s, running=running)
        at_s = max(read_now(self._folder).at_s, known.at_s)
        ranked = [verdict for verdict in known.conclusion.verdicts if not is_pending(verdict)]
        stands = _standing(known, is_alive=now_s - at_s < _ALIVE_S)
        is_alive = stands is Standing.RUNNING
        return CellStatus(
            sweep=known.sweep,
            label=known.cell.label,
            standing=stands,
            why=known.stop_reason if stands is Standing.STOPPED else "",
            running=tuple(dataclasses.replace(job, reason=plain(job.reason)) for job in running),
            ranking=tuple(ranked),
            progress=standing(known.history, left_s=left_s if is_alive else None, left=left),
            events=tuple(
                (entry.at_s, text) for entry in reversed(known.entries) if (text := _said(entry))
            ),
        )


def _standing(known: CellReport, *, is_alive: bool) -> Standing:
    if known.conclusion.complete:
        return Standing.COMPLETE
    if known.state.stop is not None:
        return Standing.STOPPED
    return Standing.RUNNING if is_alive else Standing.IDLE


def _said(entry: LedgerEntry) -> str:
    """Return an event as a short line; "" for one that is no news."""
    match entry.event:
        case CampaignOpened(session=session):
            return f"session {session} began"
        case AttemptSubmitted(submission=of):
            return f"{of.trial_id} submitted as job {of.job_id}"
        case TrialEnded(result=result) if result.score is not None:
            return f"{result.trial.id}: {speed(result.score)}"
        case TrialEnded(result=result):
            return plain(f"{result.trial.id}: {sentence(result.reason) or result.status}")
        case event:
            return plain("; ".join(event_lines(event)))


ScreenLine = tuple[tuple[str, str], ...]
_NAME = 12  # characters of a name at least
_WHY, _RANKED, _EVENTS = 8, 6, 4  # lines of a cell that is shown in full
_STYLE = {"running": "green", "complete": "cyan", "stopped": "red", "cannot be read": "red"}


def all_lines(cells: Sequence[CellStatus], width: int) -> list[ScreenLine]:
    """Return the lines of all cells, however many."""
    return _laid_out(cells, width, sys.maxsize)


def screen_lines(
    cells: Sequence[CellStatus], *, width: int, height: int, now_s: float
) -> list[ScreenLine]:
    """Return the lines of as many cells as fit, below a line that says how to quit."""
    at = time.strftime("%H:%M:%S", time.localtime(now_s))
    head = f"q quits  {at}  {counted(len(cells), 'cell')}  xlatune watch"
    return [((head, "reverse"),), *_laid_out(cells, width, height - 2)]


def _laid_out(cells: Sequence[CellStatus], width: int, left: int) -> list[ScreenLine]:
    shown: list[ScreenLine] = []
    for others, status in zip(range(len(cells) - 1, -1, -1), cells, strict=True):
        is_full = status.is_active or bool(status.why) or len(cells) == 1
        block = list(_cell(status, width)) if is_full else []
        if not block or len(block) + others > left:
            block = [_line(status)]
        if len(block) > left:
            more = f"and {others + 1} more: name one, or make the window higher"
            return [*shown, ((more, ""),)]
        shown += block
        left -= len(block)
    return shown


def _line(cell: CellStatus, *, is_alone: bool = True) -> ScreenLine:
    """Tell a cell in one line; where its block follows, that shows the rest."""
    has_best = is_alone and cell.ranking
    best = f", best {cell.ranking[0].arm} {points(cell.ranking[0].delta)} %" if has_best else ""
    said = cell.why if is_alone and cell.why else f"{cell.progress}{best}"
    return (
        (f"{cell.sweep} ", "bold"),
        (f"{cell.label} ", ""),
        (cell.standing, _STYLE.get(cell.standing, "yellow")),
        (f": {' '.join(said.split())}" if said else "", ""),
    )


def _cell(cell: CellStatus, width: int) -> Iterator[ScreenLine]:
    """Give the lines of a cell."""
    yield (("─" * width, "dim"),)
    yield _line(cell, is_alone=False)
    for why in textwrap.wrap(cell.why, max(width - 2, 20), max_lines=_WHY, placeholder=" ..."):
        yield ((f"  {why}", "yellow"),)
    for job in cell.running:
        yield ((f"  {job.trial.called} (job {job.job_id}) {job.words}", "bold"),)
    head, *rows = compact_lines(_ranking(cell.ranking[:_RANKED], width - 2))
    if rows:
        yield ((f"  {head}", "dim"),)
        yield from (((f"  {row}", ""),) for row in rows)
    for at_s, text in cell.events[:_EVENTS]:
        yield ((f"  {time.strftime('%H:%M', time.localtime(at_s))} {text}", "dim"),)


def _ranking(verdicts: Sequence[Verdict], width: int) -> Table:
    """Return the best arms; where a line is longer than `width`, names are cut, not verdicts."""
    titles = ("delta %", "95 %", "n", "verdict")
    rows = [
        (points(verdict.delta), interval(verdict.ci95), str(verdict.n), words_in_short(verdict))
        for verdict in verdicts
    ]
    taken = sum(max(map(len, column)) + 2 for column in zip(titles, *rows, strict=True))
    most = max(_NAME, width - taken)
    return Table(
        columns=columns("profile", *(f">{title}" for title in titles[:3]), titles[3]),
        rows=tuple(
            (verdict.arm if len(verdict.arm) <= most else f"{verdict.arm[: most - 1]}…", *row)
            for verdict, row in zip(verdicts, rows, strict=True)
        ),
        compact=True,
    )
