"""Find what was measured: the ledgers of a work directory by name, and all below a folder."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_xlatune.ledger import LEDGER, MOVED_ASIDE, find_ledgers
from pytest_xlatune.model.errors import ConfigError, LedgerError
from pytest_xlatune.report.history import PastStudy, is_called
from pytest_xlatune.tasks.publish import CellReport, named_in, read_known
from pytest_xlatune.tasks.run_record import record_of_study

_BEGIN_BYTES = 256
_MOST_LEVELS = 5  # a home, its projects, a project's work directory, its sweeps, their cells


def folders_of(workdir: Path, sweeps: Collection[str]) -> list[Path]:
    """Return the folders of the ledgers of sweeps; of all, where none is named.

    Raises:
        ConfigError: there is none of a name, or none at all.
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
        past: those whose ledger can be read.
        problems: why each of the others cannot.
        copies: what to say of the ledgers that are copies of another.
        names: that may be asked for: the label of each cell, and its sweep.
    """

    past: tuple[PastStudy, ...]
    names: frozenset[str]
    problems: tuple[str, ...]
    copies: tuple[str, ...]


def studies_below(root: Path, called: str | None = None) -> MeasuredBelow:
    """Read every ledger below a folder; with `called` those of one cell (`report.history`).

    Of the others, which may be large, only the name of the cell is read.

    Raises:
        ConfigError: the folder holds no ledger.
        LedgerError: none of its ledgers can be read.
    """
    ledgers = sorted(_ledgers_below(root, _MOST_LEVELS))
    if not ledgers:
        raise ConfigError(f"no {LEDGER} lies below {root}; run a sweep, or name another FOLDER")
    # who has no ledger waits for none of it
    kept, copies = _without_copies(ledgers)
    past, problems, names = [], [], set[str]()
    for ledger in kept:
        try:
            sweep, cell = named_in(ledger)
            if called is None or is_called(called, cell, sweep=sweep, folder=str(ledger.parent)):
                past.append(_past(ledger, read_known(ledger)))
            names |= {cell.label, sweep}
        except LedgerError as error:
            problems.append(f"not shown: {error}")
    if not names:
        raise LedgerError("; ".join(problems))
    return MeasuredBelow(
        past=tuple(past), problems=tuple(problems), copies=tuple(copies), names=frozenset(names)
    )


def _past(ledger: Path, known: CellReport) -> PastStudy:
    submitted = [
        attempt.submission
        for progress in known.state.trials.values()
        for attempt in progress.attempts.values()
        if attempt.submission is not None
    ]
    return PastStudy(
        folder=_name_of(ledger),
        sweep=known.sweep,
        kind=known.study.name.partition("-")[0],
        cells=known.cells,
        digest=known.study.cells[0].digest,
        conclusion=known.conclusion,
        jobs=len(submitted),
        node_hours=record_of_study(known.state, known.study).node_hours,
        ended_s=known.at_s,
    )


def _name_of(ledger: Path) -> str:
    """Return the folder of a ledger, or the file where `--xlatune-fresh` moved it aside."""
    return str(ledger.parent if ledger.name == LEDGER else ledger)


def _without_copies(ledgers: list[Path]) -> tuple[list[Path], list[str]]:
    """Leave out the ledgers that a longer one begins with, and say so: they are its copies."""
    kept: list[Path] = []
    copies: list[str] = []
    by_begin: dict[bytes, list[Path]] = {}
    for ledger in sorted(ledgers, key=lambda path: -path.stat().st_size):
        longer: list[Path] = []
        with contextlib.suppress(OSError):  # what cannot be read is told with its reason
            with ledger.open("rb") as file:
                begin = file.read(_BEGIN_BYTES)  # with the time and the session that began it
            longer = by_begin.setdefault(begin, []) if begin else []
            own = ledger.read_bytes() if longer else b""
            # of a copy that went on by itself only the begin is the same: it is shown
            whole = (other for other in longer if other.read_bytes().startswith(own))
            if of := next(whole, None):
                copies.append(f"{_name_of(ledger)} is not shown: an earlier copy of {_name_of(of)}")
                continue
        longer.append(ledger)
        kept.append(ledger)
    return sorted(kept), copies


def _ledgers_below(folder: Path, levels: int) -> Iterator[Path]:
    """Yield the ledgers, those that were moved aside too; below their folder lie jobs' files."""
    if found := [*folder.glob(LEDGER), *folder.glob(MOVED_ASIDE)]:
        yield from found
    elif levels and folder.is_dir():
        with contextlib.suppress(PermissionError):  # of another user, above several projects
            for path in folder.iterdir():
                if path.is_dir():
                    yield from _ledgers_below(path, levels - 1)
