"""Show all cells below a folder in their current state, on any machine.

The ledgers, the files next to them and the logs of the jobs in flight are only read, so the sweeps
of other users and sessions are shown too. For a cell that cannot be read, the reason is shown. A
screen is a table of all cells, followed by the details of the cells that may still change.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pytest_xlatune.ledger import find_ledgers
from pytest_xlatune.ledger.now import read_now
from pytest_xlatune.model.errors import ConfigError, XlatuneError
from pytest_xlatune.model.result import Verdict
from pytest_xlatune.model.text import ABSENT, interval, points
from pytest_xlatune.report.document import Table, columns, plain
from pytest_xlatune.report.lines import is_pending, progress_text, words_beside
from pytest_xlatune.report.render import compact_lines
from pytest_xlatune.tasks.cell_report import CellReport, current_cell_report
from pytest_xlatune.tasks.measured import folders_of
from pytest_xlatune.tasks.running import Pace, RunningJobs

_ALIVE_S = 90.0  # a session that drives a cell leaves a sign of life at least this often
_MAX_VERDICTS = 6  # verdicts that the details of a cell show


class CellState(StrEnum):
    """The state of a cell; states that may still change come first."""

    RUNNING = "running"
    IDLE = "no session looks after it"
    STOPPED = "stopped"
    COMPLETE = "complete"
    UNREADABLE = "cannot be read"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellStatus:
    """One cell at one moment.

    Attributes:
        sweep: the name of the sweep.
        label: the cell in a few words.
        state: the state of the cell.
        why: why the cell was stopped, or why it cannot be read; "" otherwise.
        running: a line for each job in flight.
        ranking: the verdicts in the order of the conclusion, without those that have no trial.
        progress: the jobs that are over, the jobs to come and the time left, in words.
    """

    sweep: str
    label: str
    state: CellState
    why: str = ""
    running: tuple[str, ...] = ()
    ranking: tuple[Verdict, ...] = ()
    progress: str = ""

    @property
    def has_more(self) -> bool:
        """Whether the cell has details that the table does not show."""
        return self.state in (CellState.RUNNING, CellState.IDLE) or bool(self.why)


class Watcher:
    """The cells below a folder; it remembers what it has read."""

    def __init__(self, folder: Path, *, names: Sequence[str] = ()) -> None:
        """Watch all cells below `folder`, or those whose sweep or folder name is in `names`.

        Raises:
            ConfigError: there is no cell, or none with one of the names.
        """
        self._folder, self._names = folder, frozenset(names)
        self._cells: dict[Path, _Cell] = {}
        known = {part for path in folders_of(folder, ()) for part in _names_of(path)}
        for name in names:
            if name not in known:
                raise ConfigError.unknown("cell", name, valid=known, where=str(folder))

    def statuses(self, now_s: float) -> tuple[CellStatus, ...]:
        """Return the status of every cell, with running ones first."""
        cells = []
        for folder in find_ledgers(self._folder):
            if self._names and self._names.isdisjoint(_names_of(folder)):
                continue
            cell = self._cells.setdefault(folder, _Cell(folder))
            try:
                cells.append(cell.status(now_s))
            except (XlatuneError, OSError) as error:
                cells.append(
                    CellStatus(
                        sweep=folder.parent.name,
                        label=folder.name,
                        state=CellState.UNREADABLE,
                        why=str(error),
                    )
                )
        order = list(CellState)
        cells.sort(key=lambda cell: (order.index(cell.state), cell.sweep, cell.label))
        return tuple(cells)


def _names_of(folder: Path) -> tuple[str, str]:
    return folder.parent.name, folder.name


class _Cell:
    """One cell, whose ledger is read again when it has grown."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._jobs = RunningJobs(folder)
        self._cell_report: CellReport | None = None

    def status(self, now_s: float) -> CellStatus:
        """Return the status of the cell.

        Raises:
            XlatuneError, OSError: the cell cannot be read.
        """
        cell_report, pace = current_cell_report(self._folder, self._cell_report), Pace()
        self._cell_report = cell_report
        for entry in cell_report.entries:
            pace.note(entry)
        running = self._jobs.poll(cell_report.state, pace.submitted_s)
        # the study of the last session, which may have requested only a part of the sweep
        outlook = cell_report.study.outlook(cell_report.history)
        jobs_left = outlook.left, outlook.at_most
        left_s = pace.range_s(jobs_left, now_s, running=running)
        alive_s = max(read_now(self._folder).at_s, cell_report.at_s)
        state = _state_of(cell_report, is_alive=now_s - alive_s < _ALIVE_S)
        return CellStatus(
            sweep=cell_report.sweep,
            label=cell_report.label,
            state=state,
            why=cell_report.stop_reason if state is CellState.STOPPED else "",
            running=tuple(plain(job.line) for job in running),
            ranking=tuple(
                verdict for verdict in cell_report.conclusion.verdicts if not is_pending(verdict)
            ),
            progress=progress_text(
                cell_report.history,
                left_s=left_s if state is CellState.RUNNING else None,
                left=jobs_left,
            ),
        )


def _state_of(cell_report: CellReport, *, is_alive: bool) -> CellState:
    if cell_report.conclusion.complete:
        return CellState.COMPLETE
    if cell_report.state.stop is not None:
        return CellState.STOPPED
    return CellState.RUNNING if is_alive else CellState.IDLE


def screen_lines(cells: Sequence[CellStatus], width: int) -> Iterator[str]:
    """Yield the lines of a screen; the caller may cut what exceeds its width or height."""
    yield from compact_lines(
        Table(
            columns=columns("sweep", "cell", "state", "progress", "best"),
            rows=tuple(
                (cell.sweep, cell.label, cell.state, cell.progress or ABSENT, _best(cell))
                for cell in cells
            ),
        )
    )
    for cell in cells:
        if cell.has_more or len(cells) == 1:
            yield ""
            yield f"{cell.sweep} {cell.label}"
            yield from (f"  {line}" for line in textwrap.wrap(cell.why, max(width - 2, 20)))
            yield from (f"  {line}" for line in cell.running)
            if cell.ranking:
                yield from (f"  {line}" for line in compact_lines(_ranking(cell.ranking)))


def _best(cell: CellStatus) -> str:
    first = next(iter(cell.ranking), None)
    return ABSENT if first is None else f"{first.arm} {points(first.delta)} %"


def _ranking(verdicts: Sequence[Verdict]) -> Table:
    """Return the best arms; the names come last, so that a narrow screen cuts names only."""
    return Table(
        columns=columns(">delta %", ">95 %", ">n", "verdict", "profile"),
        rows=tuple(
            (
                points(verdict.delta),
                interval(verdict.ci95),
                str(verdict.n),
                words_beside(verdict),
                verdict.arm,
            )
            for verdict in verdicts[:_MAX_VERDICTS]
        ),
    )
