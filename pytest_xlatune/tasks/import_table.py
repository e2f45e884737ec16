"""Import a CSV of finished jobs into a new ledger.

The first line names the columns, in any order and case; commas, semicolons or tabs separate them.
One row is one job:

    job        the job's id; without the column, the line number makes the id, `line-3`
    profile    the tried profile; `baseline-deployed` (or `baseline`) is the cell as deployed
    flags      XLA flags and variables (NAME=value) of the profile; one row with them is enough
    tgs        Tokens/s/device of the steady state
    step_s     seconds per step; either tgs or step_s may be missing
    status     ok, or why there is no figure: oom, failed, ...; optional

If the table has faults, one message names all of them with their line numbers, and nothing is
written.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from pytest_xlatune import secure_files
from pytest_xlatune.ledger import (
    LEDGER,
    CampaignOpened,
    Event,
    Ledger,
    TrialEnded,
    TrialPlanned,
    versions,
)
from pytest_xlatune.ledger.driver_lock import DriverLock
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import say
from pytest_xlatune.model.profile import BASELINE, BASELINE_ID, Profile, profile
from pytest_xlatune.model.record import digest
from pytest_xlatune.model.result import Score, TrialResult, TrialStatus
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.studies.imported import KIND, ImportedStudy
from pytest_xlatune.sweep.groups import Access

# column -> its possible headings, in lower case and with blanks for underscores
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "job": ("job", "job id", "jobid", "id"),
    "profile": ("profile", "name"),
    "flags": ("flags", "xla flags"),
    "tgs": ("tgs", "tokens/s/device", "tokens per second per device"),
    "step_s": ("step s", "seconds per step", "step time", "seconds"),
    "status": ("status", "state"),
}
_SEPARATORS = (",", ";", "\t")
_OK = frozenset({"", "ok", "pass", "passed", "success", "completed", "done", "finished"})
# words in a status: a failure of the profile itself, and trouble that another try may not have
_PROFILE_FAILURES = frozenset(
    {"oom", "out of memory", "resource exhausted", "resource_exhausted", "nan"}
    | {"unknown flag", "unknown-flag", "invalid flag", "abort"}
)
_SITE_TROUBLE = frozenset(
    {"fail", "error", "crash", "kill", "cancel", "timeout", "timed out", "time limit", "hang"}
    | {"hung", "preempt", "lost", "died", "running", "pending", "skipped", "unmeasured"}
)
_LOCK_WAIT_S = 60.0  # seconds to wait for another import of the same table


class TableRow(NamedTuple):
    """One job of the table."""

    job: str
    profile: Profile
    tgs: float | None  # Tokens/s/device; None if the job has no figure
    step_s: float | None  # seconds per step; None if unknown
    status: str  # in lower case; "" if missing


def read_table(text: str, *, where: str, tokens: float | None = None) -> tuple[TableRow, ...]:
    """Return the rows of a table; `tokens`, those of a device in a step, turn seconds into TGS.

    Raises:
        ConfigError: the table has faults; the message has a sentence for each.
    """
    problems: list[str] = []
    rows: list[TableRow] = []
    profiles: dict[str, Profile] = {}
    jobs: dict[str, int] = {}
    for line, values in _lines(text, where):
        try:
            row = _row(line, values, tokens)
        except ConfigError as error:
            problems.append(f"line {line}: {error}")
            continue
        if jobs.setdefault(row.job, line) != line:
            problems.append(f"line {line}: job {row.job} is in line {jobs[row.job]} too")
        earlier = profiles.setdefault(row.profile.id, row.profile)
        if not _has_settings(earlier):
            profiles[row.profile.id] = row.profile
        elif _has_settings(row.profile) and earlier != row.profile:
            problems.append(
                f"line {line}: profile {row.profile.id!r} has other settings than before "
                f"({earlier.shown_text}); give each its own name"
            )
        rows.append(row)
    if not problems and BASELINE_ID not in profiles:
        problems.append(f"no row is the baseline; name it {BASELINE_ID!r}")
    if problems:
        raise ConfigError(f"{where}: {'; '.join(problems)}")
    # a row without settings gets those that another row of its profile has
    return tuple(row._replace(profile=profiles[row.profile.id]) for row in rows)


def _lines(text: str, where: str) -> list[tuple[int, dict[str, str]]]:
    """Return the line number and the values of each job, by the names of `COLUMNS`."""
    header = text.partition("\n")[0]
    reader = csv.DictReader(
        io.StringIO(text, newline=""),
        restval="",
        strict=True,
        delimiter=max(_SEPARATORS, key=header.count),
    )
    try:
        names = [
            " ".join(name.lower().replace("_", " ").split()) for name in reader.fieldnames or ()
        ]
        reader.fieldnames = names
        jobs = [(reader.line_num, fields) for fields in reader if any(fields.values())]
    except csv.Error as error:
        raise ConfigError(
            f"{where}: line {reader.reader.line_num}: {error}; expected a CSV with quotes in pairs"
        ) from None
    headings = {
        column: next((spelling for spelling in spellings if spelling in names), "")
        for column, spellings in COLUMNS.items()
    }
    missing = [] if headings["profile"] else ["profile"]
    if not headings["tgs"] and not headings["step_s"]:
        missing.append("tgs (or step_s)")
    if missing:
        raise ConfigError(
            f"{where}: the header {header.strip()!r:.400} has no column {', '.join(missing)}; "
            f"known are {', '.join(COLUMNS)}"
        )
    if not jobs:
        raise ConfigError(f"{where}: found no jobs below the header")
    return [
        (line, {column: fields[heading].strip() for column, heading in headings.items() if heading})
        for line, fields in jobs
    ]


def _has_settings(tried: Profile) -> bool:
    return bool(tried.flags or tried.env or tried.overrides)


def import_table(
    rows: Sequence[TableRow],
    *,
    cell: Cell,
    no_ops: Sequence[str],
    sweep: str,
    workdir: Path,
    access: Access = "owner",
    at_s: float,
) -> Path:
    """Write a table into a new ledger, and return the folder of the ledger.

    Args:
        rows: the rows of the table.
        cell: the cell of all rows, as the user describes it.
        no_ops: the names of profiles that are known to do nothing.
        sweep: the name of the ledger's folder.
        workdir: the folder above the ledgers.
        access: who may read the ledger.
        at_s: the current time, in seconds since the epoch.

    Raises:
        ConfigError: a no-op is unknown, or a table was imported under this name.
        LedgerError: the ledger cannot be written.
    """
    profiles = tuple(
        {row.profile.id: row.profile for row in rows if row.profile != BASELINE}.values()
    )
    ids = {slug(name): name for name in no_ops}
    for profile_id, name in ids.items():
        if profile_id not in {profile.id for profile in profiles}:
            raise ConfigError.unknown(
                "profile", name, valid=[profile.id for profile in profiles], where="--no-op"
            )
    study = ImportedStudy(cell=cell, profiles=profiles, no_ops=tuple(ids))
    label = re.sub(r"[^A-Za-z0-9.=_-]+", "-", cell.label)
    name = f"{sweep}/{label}-{digest(study.to_json(), length=8)}"
    folder = secure_files.make_folder_for(workdir, name, access)
    opened = CampaignOpened(
        cells=(cell,),
        study=KIND,
        sweep=sweep,
        session="import",
        declared=study.to_json(),
        versions=versions(),
    )
    events = [opened, *_events(rows, cell)]
    with DriverLock(folder).mine(wait_s=_LOCK_WAIT_S):
        # two tables of a name, such as jobs.csv and jobs.tsv, would share a folder of reports
        if any(folder.parent.glob(f"*/{LEDGER}")):
            raise ConfigError(
                f"{folder.parent} holds a table already; `xlatune report {sweep}` shows it, and "
                "with another --name this one is imported beside it"
            )
        Ledger(folder / LEDGER).append(*events, at_s=at_s)
    return folder


def slug(name: str) -> str:
    """Return a profile id for a name in a table: `Gco1G + ll128` becomes `gco1g+ll128`."""
    text = re.sub(r"[^a-z0-9._+-]+", "-", name.strip().lower())
    text = re.sub(r"-*\+-*", "+", text).strip("-._+")
    return BASELINE_ID if text == "baseline" else text


def _row(line: int, values: Mapping[str, str], tokens: float | None) -> TableRow:
    name = values["profile"]
    profile_id = slug(name)
    job = values.get("job", f"line-{line}")
    if not job:
        raise ConfigError("the job's id is missing")
    if not profile_id:
        raise ConfigError(f"{name!r} names no profile")
    words = values.get("flags", "").split()
    # NCCL_ALGO=Tree is a variable; xla_a=1 is a flag without its dashes
    variables = [word for word in words if word.partition("=")[0].isupper() and "=" in word]
    flags = " ".join(word for word in words if word not in variables)
    env = dict(word.split("=", 1) for word in variables)
    tried = BASELINE if profile_id == BASELINE_ID else profile(profile_id, flags, env=env)
    if tried is BASELINE and words:
        raise ConfigError(
            f"{BASELINE_ID} has settings; give none, because it is the cell as deployed"
        )
    status = " ".join(values.get("status", "").lower().split())
    known_words = _PROFILE_FAILURES | _SITE_TROUBLE
    if status not in _OK and not any(word in status for word in known_words):
        raise ConfigError(
            f"status {values['status']!r:.80} is not known; write ok, or why there is no figure: a "
            f"word of {', '.join(sorted(known_words))}"
        )
    # a figure next to a failure is ignored, because the run was not complete
    measured = values if status in _OK else {}
    tgs, step_s = _figure(measured, "tgs"), _figure(measured, "step_s")
    if status in _OK and tgs is None and step_s is None:
        raise ConfigError(
            f"job {job} has neither TGS nor seconds, and its status does not say why; write a "
            "status such as OOM"
        )
    if step_s is not None and tgs is None:
        if not tokens:
            raise ConfigError(
                f"job {job} has seconds and no TGS, and the tokens per device and step are not "
                "known: add --tokens N"
            )
        tgs = tokens / step_s
    elif tgs is not None and step_s is None and tokens:
        step_s = tokens / tgs
    return TableRow(job=job, profile=tried, tgs=tgs, step_s=step_s, status=status)


def _figure(values: Mapping[str, str], column: str) -> float | None:
    text = values.get(column, "")
    if not text:
        return None
    try:
        figure = float(text)
    except ValueError:
        figure = math.nan
    if not 0 < figure < math.inf:
        raise ConfigError(
            f"{column}: found {text!r:.80}, expected a positive number such as 1234.5"
        )
    return figure


def _events(rows: Sequence[TableRow], cell: Cell) -> Iterator[Event]:
    counts: dict[str, int] = {}
    for row in rows:
        position = counts.setdefault(row.profile.id, 0)
        counts[row.profile.id] += 1
        trial = Trial(
            cell_digest=cell.digest,
            profile=row.profile,
            protocol=cell.protocol,
            study=KIND,
            stage=KIND,
            position=position,
        )
        yield TrialPlanned(trial=trial)
        yield TrialEnded(result=_result(row, trial))


def _result(row: TableRow, trial: Trial) -> TrialResult:
    result = TrialResult(trial=trial, status=TrialStatus.MEASURED, job_ids=(row.job,))
    if row.tgs is None:
        is_of_profile = any(word in row.status for word in _PROFILE_FAILURES)
        status = TrialStatus.DROPPED if is_of_profile else TrialStatus.UNMEASURED
        return replace(
            result, status=status, reason=say("the table says: {status}", status=row.status)
        )
    score = Score(
        value=math.log(row.tgs),
        tgs=row.tgs,
        step_s=row.step_s,
        n_steps=0,  # a table does not have it
        window=(trial.protocol.first_step, trial.protocol.last_step),
        flags=("imported",),
    )
    return replace(result, score=score)
