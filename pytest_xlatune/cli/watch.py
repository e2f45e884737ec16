"""`xlatune watch`: show every cell below a folder on one screen, and change nothing.

The ledgers, the files next to them and the logs of the jobs in flight are only read, so the sweeps
of other users and sessions are shown too. For a cell that cannot be read, the reason is shown.
"""

from __future__ import annotations

import argparse
import contextlib
import textwrap
import time
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from pytest_xlatune.cli.options import options_of
from pytest_xlatune.cli.show import Output
from pytest_xlatune.ledger import find_ledgers, read_now
from pytest_xlatune.model.errors import ConfigError, XlatuneError
from pytest_xlatune.model.redact import hide_kept
from pytest_xlatune.model.text import ABSENT, points, printable
from pytest_xlatune.report.document import Table, brief, columns, compact_lines, lines
from pytest_xlatune.report.lines import is_pending, progress_text
from pytest_xlatune.tasks.cell_report import CellReport, current_cell_report
from pytest_xlatune.tasks.live import Pace, running_jobs
from pytest_xlatune.tasks.measured import folders_of

_PAUSE_S = 2.0  # seconds between two readings of the ledgers
_ALIVE_S = 90.0  # a session that drives a cell leaves a sign of life at least this often


class CellState(StrEnum):
    """The state of a cell; states that may still change come first."""

    RUNNING = "running"
    IDLE = "no session looks after it"
    STOPPED = "stopped"
    COMPLETE = "complete"
    UNREADABLE = "cannot be read"


class CellStatus(NamedTuple):
    """One cell at one moment."""

    state: CellState
    sweep: str
    label: str  # the cell in a few words
    progress: str = ABSENT  # the jobs that are over, the jobs to come and the time left, in words
    best: str = ABSENT  # the first profile of the conclusion with its change
    # why the cell was stopped, or why it cannot be read; then a line for each job in flight
    details: tuple[str, ...] = ()


def run_watch(arguments: argparse.Namespace) -> Output:
    """Show the screen until Ctrl-C; with `--once`, or without a terminal, return it."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    workdir, names = options_of(arguments).workdir, frozenset(arguments.cells)
    known = {part for folder in folders_of(workdir, ()) for part in _names_of(folder)}
    for name in arguments.cells:
        if name not in known:
            raise ConfigError.unknown("cell", name, valid=known, where=str(workdir))
    console = Console(highlight=False, emoji=False, markup=False)
    reports: dict[Path, CellReport] = {}  # folder of a cell -> its report as of the last read

    def screen_texts() -> list[Text]:
        folders = find_ledgers(workdir)
        watched = [path for path in folders if not names or not names.isdisjoint(_names_of(path))]
        order, texts = [*CellState], []
        cells = [_status_of(folder, reports, time.time()) for folder in watched]
        cells.sort(key=lambda cell: (order.index(cell.state), cell.sweep, cell.label))
        for line in _screen_lines(cells, console.width):
            texts.append(Text(printable(hide_kept(line)), no_wrap=True))
            texts[-1].truncate(console.width, overflow="ellipsis")
        return texts

    if arguments.once or not console.is_terminal:
        return Output(documents=(brief("Cells", lines(*(text.plain for text in screen_texts()))),))
    screen = Live(console=console, screen=True, auto_refresh=False)
    with contextlib.suppress(KeyboardInterrupt), screen as live:
        while True:
            head = Text(f"Ctrl-C quits  {time.strftime('%H:%M:%S')}", style="reverse")
            live.update(Group(head, *screen_texts()), refresh=True)
            time.sleep(_PAUSE_S)
    return Output()


def _names_of(folder: Path) -> tuple[str, str]:
    return folder.parent.name, folder.name


def _status_of(folder: Path, reports: dict[Path, CellReport], now_s: float) -> CellStatus:
    try:
        report = reports[folder] = current_cell_report(folder, reports.get(folder))
        running = running_jobs(report.state, folder)
        alive_s = max(read_now(folder).at_s, report.at_s)
    except (XlatuneError, OSError) as error:
        return CellStatus(CellState.UNREADABLE, *_names_of(folder), details=(str(error),))
    state = CellState.RUNNING if now_s - alive_s < _ALIVE_S else CellState.IDLE
    if report.state.stop is not None:
        state = CellState.STOPPED
    if report.conclusion.complete:
        state = CellState.COMPLETE
    pace = Pace()
    for entry in report.entries:
        pace.note(entry)
    # the study of the last session, which may have requested only a part of the sweep
    outlook = report.study.outlook(report.history)
    verdicts = (verdict for verdict in report.conclusion.verdicts if not is_pending(verdict))
    best = next(verdicts, None)
    return CellStatus(
        state,
        report.sweep,
        report.label,
        progress=progress_text(
            report.history,
            left=(outlook.left, outlook.at_most),
            trial_s=pace.trial_s if state is CellState.RUNNING else None,
        ),
        best=f"{best.arm} {points(best.delta)} %" if best is not None else ABSENT,
        details=(*([report.stop_reason] if state is CellState.STOPPED else []), *running),
    )


def _screen_lines(cells: Sequence[CellStatus], width: int) -> Iterator[str]:
    """Yield a table of all cells, then the details of each; the caller may cut long lines."""
    rows = tuple((cell.sweep, cell.label, cell.state, cell.progress, cell.best) for cell in cells)
    titles = columns("sweep", "cell", "state", "progress", "best")
    yield from compact_lines(Table(columns=titles, rows=rows))
    for cell in cells:
        if cell.details:
            yield ""
            yield f"{cell.sweep} {cell.label}"
        for detail in cell.details:
            yield from (f"  {line}" for line in textwrap.wrap(detail, max(width - 2, 20)))
