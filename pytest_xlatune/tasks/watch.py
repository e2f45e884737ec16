"""Show all cells below a folder in their current state, on any machine.

The ledgers, the files next to them and the logs of the jobs in flight are only read, so the sweeps
of other users and sessions are shown too. For a cell that cannot be read, the reason is shown.
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
from pytest_xlatune.model.text import ABSENT, points
from pytest_xlatune.report.document import Table, columns, plain
from pytest_xlatune.report.lines import is_pending, progress_text
from pytest_xlatune.report.render import compact_lines
from pytest_xlatune.tasks.cell_report import CellReport, current_cell_report
from pytest_xlatune.tasks.measured import folders_of
from pytest_xlatune.tasks.running import Pace, running_jobs

_ALIVE_S = 90.0  # a session that drives a cell leaves a sign of life at least this often


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
        best: the first profile of the conclusion with its change; a dash if there is none yet.
        progress: the jobs that are over, the jobs to come and the time left, in words.
    """

    sweep: str
    label: str
    state: CellState
    why: str = ""
    running: tuple[str, ...] = ()
    best: str = ABSENT
    progress: str = ABSENT


class Watcher:
    """The cells below a folder; it remembers what it has read."""

    def __init__(self, folder: Path, *, names: Sequence[str] = ()) -> None:
        """Watch all cells below `folder`, or those whose sweep or folder name is in `names`.

        Raises:
            ConfigError: there is no cell, or none with one of the names.
        """
        self._folder, self._names = folder, frozenset(names)
        # folder of a cell -> its report as of the last read
        self._cell_reports: dict[Path, CellReport] = {}
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
            try:
                cells.append(self._status(folder, now_s))
            except (XlatuneError, OSError) as error:
                sweep, label = _names_of(folder)
                unreadable = CellState.UNREADABLE
                cells.append(CellStatus(sweep=sweep, label=label, state=unreadable, why=str(error)))
        order = list(CellState)
        cells.sort(key=lambda cell: (order.index(cell.state), cell.sweep, cell.label))
        return tuple(cells)

    def _status(self, folder: Path, now_s: float) -> CellStatus:
        cell_report = current_cell_report(folder, self._cell_reports.get(folder))
        self._cell_reports[folder], pace = cell_report, Pace()
        for entry in cell_report.entries:
            pace.note(entry)
        # the study of the last session, which may have requested only a part of the sweep
        outlook = cell_report.study.outlook(cell_report.history)
        alive_s = max(read_now(folder).at_s, cell_report.at_s)
        state = _state_of(cell_report, is_alive=now_s - alive_s < _ALIVE_S)
        verdicts = cell_report.conclusion.verdicts
        best = next((verdict for verdict in verdicts if not is_pending(verdict)), None)
        return CellStatus(
            sweep=cell_report.sweep,
            label=cell_report.label,
            state=state,
            why=cell_report.stop_reason if state is CellState.STOPPED else "",
            running=tuple(plain(job.line) for job in running_jobs(cell_report.state, folder)),
            best=f"{best.arm} {points(best.delta)} %" if best is not None else ABSENT,
            progress=progress_text(
                cell_report.history,
                left=(outlook.left, outlook.at_most),
                trial_s=pace.trial_s if state is CellState.RUNNING else None,
            ),
        )


def _names_of(folder: Path) -> tuple[str, str]:
    return folder.parent.name, folder.name


def _state_of(cell_report: CellReport, *, is_alive: bool) -> CellState:
    if cell_report.conclusion.complete:
        return CellState.COMPLETE
    if cell_report.state.stop is not None:
        return CellState.STOPPED
    return CellState.RUNNING if is_alive else CellState.IDLE


def screen_lines(cells: Sequence[CellStatus], width: int) -> Iterator[str]:
    """Yield a table of all cells, then the jobs in flight, or the trouble, of each.

    The caller may cut what exceeds the width or height of the screen.
    """
    rows = tuple((cell.sweep, cell.label, cell.state, cell.progress, cell.best) for cell in cells)
    yield from compact_lines(
        Table(columns=columns("sweep", "cell", "state", "progress", "best"), rows=rows)
    )
    for cell in cells:
        if cell.running or cell.why:
            yield ""
            yield f"{cell.sweep} {cell.label}"
            yield from (f"  {line}" for line in textwrap.wrap(cell.why, max(width - 2, 20)))
            yield from (f"  {line}" for line in cell.running)
