"""Find measured studies: those of named sweeps in a work directory, or all below a folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_xlatune.ledger import ARCHIVED, LEDGER, find_ledgers
from pytest_xlatune.model.errors import ConfigError, LedgerError
from pytest_xlatune.report.history import PastStudy, is_called
from pytest_xlatune.tasks.cell_report import CellReport, read_cell_report
from pytest_xlatune.tasks.run_record import record_of_study

# how deep ledgers are searched: below a home are projects, work directories, sweeps, cells
_MAX_LEVELS = 5


def folders_of(workdir: Path, sweeps: Collection[str]) -> list[Path]:
    """Return the folders of the ledgers of `sweeps`; if that is empty, of all sweeps.

    Raises:
        ConfigError: no ledger has one of the names, or there is no ledger.
    """
    folders = find_ledgers(workdir)
    names = {folder.parent.name for folder in folders}
    for name in sweeps:
        if name not in names:
            raise ConfigError.unknown("sweep", name, valid=names, where=str(workdir))
    if not folders:
        raise ConfigError(
            f"no sweep was measured below {workdir}; run one, or name another --workdir"
        )
    return [path for path in folders if not sweeps or path.parent.name in sweeps]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredBelow:
    """The studies below a folder.

    Attributes:
        past: the requested studies.
        names: the label and the sweep of every cell whose ledger can be read, requested or not.
        problems: why a ledger cannot be read, one text for each such ledger.
    """

    past: tuple[PastStudy, ...]
    names: frozenset[str]
    problems: tuple[str, ...]


def studies_below(root: Path, called: str | None = None) -> MeasuredBelow:
    """Read every ledger below a folder; with `called`, return only the studies of that cell.

    Raises:
        ConfigError: the folder holds no ledger.
        LedgerError: none of its ledgers can be read.
    """
    ledgers = sorted(_ledgers_below(root, _MAX_LEVELS))
    if not ledgers:
        raise ConfigError(f"no {LEDGER} lies below {root}; run a sweep, or name another FOLDER")
    past, problems, names = [], [], set[str]()
    for ledger in ledgers:
        try:
            cell_report = read_cell_report(ledger)
        except LedgerError as error:
            problems.append(f"not shown: {error}")
            continue
        cell, sweep, folder = cell_report.study.cells[0], cell_report.sweep, str(ledger.parent)
        if called is None or is_called(called, cell, sweep=sweep, folder=folder):
            past.append(_past(ledger, cell_report))
        names |= {cell.label, sweep}
    if not names:
        raise LedgerError("; ".join(problems))
    return MeasuredBelow(past=tuple(past), problems=tuple(problems), names=frozenset(names))


def _past(ledger: Path, cell_report: CellReport) -> PastStudy:
    submitted = [
        attempt.submission
        for progress in cell_report.state.trials.values()
        for attempt in progress.attempts.values()
        if attempt.submission is not None
    ]
    return PastStudy(
        folder=_name_of(ledger),
        sweep=cell_report.sweep,
        kind=cell_report.study.name.partition("-")[0],
        cell=cell_report.cell,
        digest=cell_report.study.cells[0].digest,
        conclusion=cell_report.conclusion,
        jobs=len(submitted),
        node_hours=record_of_study(cell_report.state, cell_report.study).node_hours,
        ended_s=cell_report.at_s,
    )


def _name_of(ledger: Path) -> str:
    """Return the folder of a ledger, or the path of a file that `--xlatune-fresh` moved aside."""
    return str(ledger.parent if ledger.name == LEDGER else ledger)


def _ledgers_below(folder: Path, levels: int) -> Iterator[Path]:
    """Yield the ledgers in a folder, with those moved aside; without any, search its sub-folders.

    A folder with a ledger is not searched further: below it are only files of jobs.
    """
    if ledgers := [*folder.glob(LEDGER), *folder.glob(ARCHIVED)]:
        yield from ledgers
    elif levels and folder.is_dir():
        # among several projects there may be a folder of another user
        with contextlib.suppress(PermissionError):
            for path in folder.iterdir():
                if path.is_dir():
                    yield from _ledgers_below(path, levels - 1)


def measured_elsewhere(folder: Path, workdir: Path) -> tuple[str, ...]:
    """Return which other work directories hold trials of this cell; () if `workdir` holds some.

    A start from another folder has another work directory, and would measure again. The current
    folder, the folders above it and the folders in it are searched.
    """
    if (workdir / folder / LEDGER).exists():
        return ()
    here = Path.cwd()
    others = {(path / workdir.name).resolve() for path in (here, *here.parents, *here.glob("*/"))}
    return tuple(
        f"{path} holds trials of this very cell, and this run would measure them again; start it "
        f"from {path.parent}, or with --xlatune-workdir={path}"
        for path in sorted(others - {workdir.resolve()})
        if os.path.isfile(path / folder / LEDGER)  # noqa: PTH113 - no error without permission
    )
