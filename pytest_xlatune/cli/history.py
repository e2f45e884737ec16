"""`xlatune history`: list all that was measured, or one cell in all its sweeps and gates."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pytest_xlatune.cli.options import options_of
from pytest_xlatune.cli.show import Output
from pytest_xlatune.ledger import ARCHIVED, LEDGER
from pytest_xlatune.model.cell import Cell, varied_fields
from pytest_xlatune.model.errors import ConfigError, Exit, LedgerError
from pytest_xlatune.model.record import Json
from pytest_xlatune.model.result import Verdict
from pytest_xlatune.model.text import ABSENT, counted, interval, minute, percent, significant
from pytest_xlatune.report.document import (
    Document,
    Table,
    Text,
    columns,
    literal,
    plain,
    section,
)
from pytest_xlatune.report.language import plainly
from pytest_xlatune.report.lines import figure, tally
from pytest_xlatune.tasks.cell_report import CellReport, read_cell_report
from pytest_xlatune.tasks.run_record import record_of_study

# how deep ledgers are searched: below a home are projects, work directories, sweeps, cells
_MAX_LEVELS = 5
_MIN_DIGEST_CHARS = 4  # a shorter start of an id does not name a cell
_FIELD_NAMES = {  # field of a cell -> its name for people
    "image": "image",
    "code": "commit",
    "launcher": "started as",
    "nodelist": "nodes",
    "config_tag": "configuration",
    "per_device_batch_size": "batch",
    "deployed": "deployed settings",
    "overrides": "overrides",
}


class _Past(NamedTuple):
    """One study: its row for programs, and what its row for people has beside it."""

    json: dict[str, Json]
    cell: Cell
    reference: Verdict | None
    answer: str


def run_history(arguments: argparse.Namespace) -> Output:
    """Return all studies below a folder, or those of one cell.

    Raises:
        ConfigError: the folder holds no ledger.
        LedgerError: none of its ledgers can be read.
    """
    folder, called = arguments.folder, arguments.cell
    is_name = folder is not None and folder.name == str(folder) and not folder.exists()
    if called is None and is_name:
        called, folder = folder.name, None  # the name of a sweep, as `report` and `watch` take it
    root = folder or options_of(arguments).workdir
    ledgers = sorted(_ledgers_below(root, _MAX_LEVELS))
    if not ledgers:
        raise ConfigError(f"no {LEDGER} lies below {root}; run a sweep, or name another FOLDER")
    past, problems, names = list[_Past](), list[str](), set[str]()
    for ledger in ledgers:
        try:
            report = read_cell_report(ledger)
        except LedgerError as error:
            problems.append(f"not shown: {error}")
            continue
        names |= {report.study.cells[0].label, report.sweep}
        if called is None or _is_called(called, ledger, report):
            past.append(_past(ledger, report))
    if not names:
        raise LedgerError("; ".join(problems))
    if called is not None and not past:
        unknown = ConfigError.unknown("cell", called, valid=names, where="the ledgers")
        return Output(problems=(*problems, str(unknown)))
    past.sort(key=lambda study: (study.json["ended_s"], study.json["folder"]))
    return Output(
        documents=(_document(past, is_one_cell=called is not None),),
        json=lambda: [study.json for study in past],
        problems=problems,
        problem_status=Exit.INTERNAL,
    )


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


def _is_called(name: str, ledger: Path, report: CellReport) -> bool:
    """Return whether a name may mean a cell: its label, model, sweep, folder or start of its id."""
    cell, folder = report.study.cells[0], ledger.parent
    names = (cell.label, cell.variant, cell.model_tag, report.sweep, folder.name, str(folder))
    return name in names or (len(name) >= _MIN_DIGEST_CHARS and cell.digest.startswith(name))


def _past(ledger: Path, report: CellReport) -> _Past:
    conclusion, digest = report.conclusion, report.study.cells[0].digest
    best = None if conclusion.facts.summary else conclusion.winner
    if conclusion.facts.summary:
        answer = plainly(conclusion.facts.summary[0])
    elif best is not None:
        ci95 = f" {interval(best.ci95)}" if best.ci95 else ""
        answer = f"★ {literal(best.arm)} {percent(best.delta)}{ci95}"
    else:
        answer = tally(conclusion.verdicts)
    attempts = [
        attempt
        for progress in report.state.trials.values()
        for attempt in progress.attempts.values()
    ]
    row = {
        # a file that `--xlatune-fresh` moved aside is named itself
        "folder": str(ledger.parent if ledger.name == LEDGER else ledger),
        "sweep": report.sweep,
        "kind": report.study.name.partition("-")[0],
        "cell": report.cell.label,
        "cell_digest": digest,
        "ended_s": report.at_s,
        "complete": conclusion.complete,
        "answer": answer.replace("`", ""),
        "winner": best.arm if best else None,
        "delta": best.delta if best else None,
        "ci95": list(best.ci95) if best and best.ci95 else None,
        "jobs": sum(attempt.submission is not None for attempt in attempts),
        "node_hours": record_of_study(report.state, report.study).node_hours,
    }
    return _Past(json=row, cell=report.cell, reference=conclusion.reference, answer=answer)


def _document(past: Sequence[_Past], *, is_one_cell: bool) -> Document:
    """Return studies, which are in the order of their ends, with their cost.

    `is_one_cell` says that a user named one cell. The name stays if the cell changes, so the
    document then also says how each study's cell differs from the first study's: figures of
    different cells do not compare.
    """
    differing = varied_fields([study.cell for study in past]) if is_one_cell else ()
    varied = [name for name in _FIELD_NAMES if name in differing]
    rows = tuple(
        (
            minute(row["ended_s"]),
            plain(row["sweep"]),
            plain(row["kind"]),
            plain(row["cell"]),
            figure(reference),
            str(reference.n) if reference else ABSENT,
            answer,
            str(row["jobs"]),
            significant(row["node_hours"]),
            "complete" if row["complete"] else "preliminary",
            *([_differences(cell, past[0].cell, varied)] if varied else []),
            literal(row["cell_digest"]),
        )
        for row, cell, reference, answer in past
    )
    titles = columns(
        "When (UTC)", "~Sweep", "study", "~Cell", ">reference", ">n", "~found", ">jobs",
        ">node-hours", "state", *(("~differs from the first in",) if varied else ()), "~cell id",
    )  # fmt: skip
    known = [study.json["node_hours"] for study in past if study.json["node_hours"] is not None]
    hours = significant(sum(known)) if known else ABSENT
    cells = counted(len({study.json["cell_digest"] for study in past}), "cell")
    jobs = counted(sum(study.json["jobs"] for study in past), "job")
    note = Text(text="The references of different cells do not compare.")
    return Document(
        title="History",
        header=(f"{counted(len(past), 'ledger')} of {cells}", f"Cost: {jobs}, {hours} node-hours"),
        sections=(
            section(
                "Studies, the oldest first",
                Table(columns=titles, rows=rows),
                *([note] if varied else []),
            ),
        ),
    )


def _differences(cell: Cell, first: Cell, varied: Sequence[str]) -> str:
    """Return the fields in which a cell differs from the first, each with its value if short."""
    parts = []
    for field in varied:
        value = getattr(cell, field)
        if value != getattr(first, field):
            shown = f" {literal(str(value))}" if isinstance(value, str | float) else ""
            parts.append(f"{_FIELD_NAMES[field]}{shown}")
    return "; ".join(parts) or ABSENT
