"""Import a CSV table of finished jobs into a ledger of its own.

One row is one job. Columns are found by name, in any order and case:

    job        the job's id
    profile    the tried profile; `baseline-deployed` (or `baseline`) is the cell as deployed
    flags      XLA flags, as one would paste them; optional where a profile has none
    env        variables, NAME=value separated by blanks; optional
    tgs        Tokens/s/device of the steady state
    step_s     seconds per step; one of the two may be missing
    status     ok, or why there is no figure: oom, failed, ...; optional

One message names all faults of the table with their line numbers; then nothing is written.
"""

from __future__ import annotations

import csv
import io
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from pytest_xlatune.campaign import versions
from pytest_xlatune.campaign.turns import Turns
from pytest_xlatune.catalog.context import Context
from pytest_xlatune.catalog.rules import does_nothing
from pytest_xlatune.ledger import LEDGER, CampaignOpened, Event, Ledger, TrialEnded, TrialPlanned
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import BASELINE, BASELINE_ID, Profile, profile
from pytest_xlatune.model.record import digest
from pytest_xlatune.model.result import Score, TrialResult, TrialStatus
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.studies.imported import CONTRADICTS, KIND, ImportedStudy

# column -> the names it goes by in published tables
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "job": ("job", "job id", "jobid", "job_id"),
    "profile": ("profile", "tune_profile", "name"),
    "flags": ("flags", "xla_flags", "xla flags", "flag"),
    "env": ("env", "environment", "variables"),
    "tgs": ("tgs", "tokens/s/device", "tok/s/device", "tgs/device"),
    "step_s": ("step_s", "step (s)", "step", "seconds", "step time", "step time (s)", "s/step"),
    "status": ("status", "state", "result"),
}
_OK = frozenset({"", "ok", "pass", "passed", "success", "completed", "complete", "done"})
# the profile's own failures; all others are trouble of the site
_CANNOT = frozenset({"oom", "nan", "unknown flag", "unknown-flag", "invalid flag", "abort"})
_TURN_S = 60.0  # how long another import of the same table may take
TOLERANCE = 0.002  # of TGS x seconds, beside what rounding explains


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One job of the table; `line` is its line number, the texts are as printed."""

    line: int
    job: str
    profile: Profile
    tgs: str
    step_s: str
    status: str


def read_table(text: str, *, where: str) -> tuple[TableRow, ...]:
    """Read a table.

    Raises:
        ConfigError: the table has faults; one sentence for each.
    """
    reader = csv.reader(io.StringIO(text))
    found = [(reader.line_num, fields) for fields in reader if any(map(str.strip, fields))]
    if len(found) < 2:  # noqa: PLR2004 - a header and a job
        raise ConfigError(
            f"{where}: found no jobs; expected a header such as job,profile,flags,tgs and jobs"
        )
    at = _columns(found[0][1], where)
    problems: list[str] = []
    rows: list[TableRow] = []
    known: dict[str, Profile] = {}
    jobs: dict[str, int] = {}
    for line, fields in found[1:]:
        values = {
            name: fields[index].strip() if index < len(fields) else "" for name, index in at.items()
        }
        try:
            row = _row(line, values)
        except ConfigError as error:
            problems.append(f"line {line}: {error}")
            continue
        rows.append(row)
        earlier = known.setdefault(row.profile.id, row.profile)
        if earlier != row.profile:
            problems.append(
                f"line {line}: profile {row.profile.id!r} has other settings than before "
                f"({earlier.shown_text or 'none'}); give each its own name"
            )
        if jobs.setdefault(row.job, line) != line:
            problems.append(f"line {line}: job {row.job} is in line {jobs[row.job]} too")
    if not problems and BASELINE_ID not in known:
        problems.append(f"no row is the baseline; name it {BASELINE_ID!r}")
    if problems:
        raise ConfigError(f"{where}: " + "; ".join(problems))
    return tuple(rows)


def import_table(
    rows: Sequence[TableRow],
    *,
    cell: Cell,
    no_ops: Sequence[str],
    sweep: str,
    workdir: Path,
    at_s: float,
    tokens: float | None = None,
    context: Context | None = None,
) -> Path:
    """Write a table into a ledger of its own and return its folder.

    Args:
        rows: of the table.
        cell: of all rows, as the table's author describes it.
        no_ops: ids of profiles that do nothing.
        sweep: name of the ledger's folder.
        workdir: the folder above the ledgers.
        at_s: now, seconds since the epoch.
        tokens: of one device in a step; None takes the cell's, else the median of the rows.
        context: the settings that the profiles came on top of, where the table's author names them:
            then the catalog's no-ops are controls too. None: the catalog names no control, because
            a default is no no-op where another value was deployed.

    Raises:
        ConfigError: an unknown no-op, a row that cannot be scored, or a ledger that is there.
        LedgerError: it cannot be written.
    """
    tokens = tokens or cell.tokens_per_device_step or _usual(rows)
    profiles = tuple(
        {row.profile.id: row.profile for row in rows if row.profile != BASELINE}.values()
    )
    ids = {slug(each): each for each in no_ops}
    for profile_id, name in ids.items():
        if profile_id not in {each.id for each in profiles}:
            raise ConfigError.unknown(
                "profile", name, valid=[each.id for each in profiles], where="--no-op"
            )
    idle: dict[str, str] = {}
    if context is not None:
        said = {each.id: does_nothing(each, context) for each in profiles if each.id not in ids}
        idle = {name: why for name, why in said.items() if why}
    study = ImportedStudy(
        cell=cell,
        profiles=profiles,
        no_ops=tuple(ids),
        tokens=tokens,
        idle=idle,
    )
    label = re.sub(r"[^A-Za-z0-9.=_-]+", "-", cell.label)
    folder = workdir / sweep / f"{label}-{digest(study.to_json(), length=8)}"
    opened = CampaignOpened(
        cells=(cell,),
        study=KIND,
        sweep=sweep,
        session="import",
        declared=study.to_json(),
        versions=versions(),
    )
    events = [opened, *_events(rows, cell, tokens)]
    with Turns(folder).mine(wait_s=_TURN_S):
        if (folder / LEDGER).exists():
            raise ConfigError(
                f"{folder} holds this table already; `xlatune report {sweep}` shows it, and "
                "with another --name it is imported again"
            )
        Ledger(folder / LEDGER).append(*events, at_s=at_s)
    return folder


def slug(name: str) -> str:
    """Return a profile id for a name of a table: `Gco1G + ll128` is `gco1g+ll128`."""
    text = re.sub(r"[^a-z0-9._+-]+", "-", name.strip().lower())
    text = re.sub(r"-*\+-*", "+", text).strip("-._+")
    return BASELINE_ID if text == "baseline" else text


def _columns(header: Sequence[str], where: str) -> dict[str, int]:
    names = [each.strip().lower().lstrip("﻿") for each in header]
    at = {
        column: names.index(spelling)
        for column, spellings in COLUMNS.items()
        for spelling in [next((each for each in spellings if each in names), "")]
        if spelling
    }
    missing = [name for name in ("job", "profile") if name not in at]
    if not {"tgs", "step_s"} & at.keys():
        missing.append("tgs (or step_s)")
    if missing:
        raise ConfigError(
            f"{where}: the header {','.join(header)!r} has no column {', '.join(missing)}; known "
            f"are {', '.join(COLUMNS)}"
        )
    return at


def _row(line: int, values: Mapping[str, str]) -> TableRow:
    name = values["profile"]
    profile_id = slug(name)
    if not values["job"]:
        raise ConfigError("the job's id is missing")
    if not profile_id:
        raise ConfigError(f"{name!r} names no profile")
    env = {}
    for word in shlex.split(values.get("env", "")):
        key, equals, value = word.partition("=")
        if not equals:
            raise ConfigError(f"env: found {word!r}, expected NAME=value")
        env[key] = value
    made = (
        profile(profile_id, values.get("flags", ""), env=env) if profile_id != BASELINE_ID else None
    )
    if made is None and (values.get("flags") or env):
        raise ConfigError(
            f"{BASELINE_ID} has settings; give none, because it is the cell as deployed"
        )
    row = TableRow(
        line=line,
        job=values["job"],
        profile=made or BASELINE,
        tgs=_number(values.get("tgs", ""), "tgs"),
        step_s=_number(values.get("step_s", ""), "step_s"),
        status=" ".join(values.get("status", "").lower().split()),
    )
    if row.status in _OK and not (row.tgs or row.step_s):
        raise ConfigError(
            f"job {row.job} has neither TGS nor seconds, and its status does not say why"
        )
    return row


def _number(text: str, column: str) -> str:
    """Return the digits of a figure as printed, "" where there is none."""
    # thousands are separated in published tables:  1,234.5
    bare = text.replace(",", "").strip()
    if bare.lower() in ("", "-", "–", "n/a", "nan", "none"):  # noqa: RUF001 - as tables print it
        return ""
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", bare) or not float(bare) > 0:
        raise ConfigError(f"{column}: found {text!r}, expected a positive number")
    return bare


def _events(rows: Sequence[TableRow], cell: Cell, tokens: float | None) -> Iterator[Event]:
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
        yield TrialEnded(result=_result(row, trial, tokens))


def _result(row: TableRow, trial: Trial, tokens: float | None) -> TrialResult:
    result = TrialResult(trial=trial, status=TrialStatus.MEASURED, job_ids=(row.job,))
    if row.status not in _OK:
        is_its_own = any(word in row.status for word in _CANNOT)
        status = TrialStatus.DROPPED if is_its_own else TrialStatus.UNMEASURED
        return replace(result, status=status, reason=f"the table says: {row.status}")
    tgs = float(row.tgs) if row.tgs else 0.0
    step_s = float(row.step_s) if row.step_s else 0.0
    if not (tgs and step_s) and tokens is None:
        raise ConfigError(
            f"line {row.line}: job {row.job} has one of TGS and seconds, and no row has both; give "
            "the tokens of a device in a step: --tokens N"
        )
    flags = ["imported"]
    if tgs and step_s:
        if tokens and abs(tgs * step_s / tokens - 1) > TOLERANCE + _rounding(row):
            flags.append(CONTRADICTS)
    elif tokens:
        tgs, step_s = tgs or tokens / step_s, step_s or tokens / tgs
    score = Score(
        value=math.log(tgs),
        tgs=tgs,
        step_s=step_s,
        n_steps=0,  # a table does not say
        window=(trial.protocol.first_step, trial.protocol.last_step),
        flags=tuple(flags),
    )
    return replace(result, score=score)


def _usual(rows: Sequence[TableRow]) -> float | None:
    """Return the median of tokens per device and step; None where no row has both figures."""
    products = [float(row.tgs) * float(row.step_s) for row in rows if row.tgs and row.step_s]
    return median(products) if products else None


def _rounding(row: TableRow) -> float:
    """Return the relative error of TGS x seconds that printing so few digits explains."""
    return sum(
        0.5 * 10.0 ** -len(text.partition(".")[2]) / float(text) for text in (row.tgs, row.step_s)
    )
