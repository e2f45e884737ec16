"""Import a CSV table of finished jobs into a ledger of its own.

A CSV (of commas, semicolons, tabs or bars), or the first table of a markdown text that has the
columns; headings above it are passed over. One row is one job. Columns are found by name, in any
order and case, as people print them (`Mean TGS`, `Job ID`, `seconds_per_step`):

    job        the job's id; without the column a job is called by its line, `line-3`
    profile    the tried profile; `baseline-deployed` (or `baseline`) is the cell as deployed
    flags      XLA flags, as one would paste them; an empty cell tells nothing of a profile
    env        variables, NAME=value separated by blanks; optional
    tgs        Tokens/s/device of the steady state
    step_s     seconds per step; one of the two may be missing
    step_ms    milliseconds per step, instead
    rate       steps per second, instead
    status     ok, or why there is no figure: oom, failed, ...; optional, and such a word in the
               figure's cell says the same

One message names all faults of the table with their line numbers; then nothing is written.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from statistics import median

from pytest_xlatune import owned
from pytest_xlatune.catalog.context import Context
from pytest_xlatune.catalog.rules import does_nothing
from pytest_xlatune.ledger import (
    LEDGER,
    CampaignOpened,
    Event,
    Ledger,
    TrialEnded,
    TrialPlanned,
    versions,
)
from pytest_xlatune.ledger.turns import Turns
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import BASELINE, BASELINE_ID, Profile, profile
from pytest_xlatune.model.reason import Reason, Why
from pytest_xlatune.model.record import dataclass, digest
from pytest_xlatune.model.result import Score, TrialResult, TrialStatus
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.studies.imported import CONTRADICTS, KIND, ImportedStudy
from pytest_xlatune.sweep.groups import Access

# column -> the names it goes by in published tables, in lower case, `per` as "/", no underscore
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "job": ("job", "job id", "jobid", "slurm job", "slurm job id", "slurm id", "run id", "run"),
    "profile": (
        *("profile", "tune profile", "name", "config", "configuration", "variant", "experiment"),
        *("case", "flag set"),
    ),
    "flags": ("flags", "xla flags", "flag"),
    "env": ("env", "environment", "variables"),
    "tgs": (
        "tgs",
        "tgs/device",
        *(f"{each}/device" for each in ("tokens/s", "tok/s", "tokens/sec", "tokens/second")),
        *(f"{each}/gpu" for each in ("tokens/s", "tok/s", "tokens/sec", "tokens/second")),
        *(f"{each}/chip" for each in ("tokens/s", "tok/s", "tokens/sec", "tokens/second")),
    ),
    "step_s": (
        *("step s", "step", "seconds", "step time", "step time s", "step seconds", "time/step"),
        *("s/step", "sec/step", "secs/step", "seconds/step", "step duration"),
        *("s/it", "s/iter", "sec/it", "seconds/iteration", "iteration time"),
    ),
    "rate": (
        *("it/s", "iter/s", "iters/s", "iterations/s", "iterations/sec", "iterations/second"),
        *("step/s", "steps/s", "steps/sec", "steps/second", "train steps/second"),
    ),
    "step_ms": ("step ms", "step time ms", "ms/step", "milliseconds/step", "iteration time ms"),
    "status": ("status", "state", "result"),
}
_OK = frozenset(
    {"", "ok", "pass", "passed", "success", "completed", "complete", "done"}
    | {"yes", "\u2705", "\u2713", "\u2714", "\u2714\ufe0f"}
)
# the profile's own failures; all others are trouble of the site
_CANNOT = frozenset(
    {"oom", "out of memory", "resource exhausted", "resource_exhausted", "nan"}
    | {"unknown flag", "unknown-flag", "invalid flag", "abort"}
)
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
    found, mark = _markdown(text), ","
    if not found:
        found, mark = _csv(text, where)
    if len(found) < 2:  # noqa: PLR2004 - a header and a job
        raise ConfigError(
            f"{where}: found no jobs; expected a header such as job,profile,flags,tgs and jobs"
        )
    at = _columns(found[0][1], where)
    problems: list[str] = []
    rows: list[TableRow] = []
    known: dict[str, Profile] = {}
    jobs: dict[str, int] = {}
    cells = [
        (
            line,
            {name: each[index].strip() if index < len(each) else "" for name, index in at.items()},
        )
        for line, each in found[1:]
    ]
    figures = _Figures.of(mark, [values for _, values in cells])
    for line, values in cells:
        try:
            row = _row(line, values, figures)
        except ConfigError as error:
            problems.append(f"line {line}: {error}")
            continue
        rows.append(row)
        earlier = known.setdefault(row.profile.id, row.profile)
        if not _has_settings(earlier):
            known[row.profile.id] = row.profile
        elif _has_settings(row.profile) and earlier != row.profile:
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
    # an empty cell beside others of the same profile is no other setting
    return tuple(replace(row, profile=known[row.profile.id]) for row in rows)


_SEPARATORS = (",", "\t", ";", "|")


def _csv(text: str, where: str) -> tuple[list[tuple[int, list[str]]], str]:
    """Return header and rows with their line numbers, and what separates the columns."""
    lines = text.splitlines(keepends=True)
    above, mark = _header(lines)
    table = _of_table(lines[above:], mark)
    reader = csv.reader(
        io.StringIO("".join(table), newline=""), strict=True, delimiter=mark or _SEPARATORS[0]
    )
    found: list[tuple[int, list[str]]] = []
    try:
        found.extend(
            (reader.line_num + above, fields) for fields in reader if any(map(str.strip, fields))
        )
    except csv.Error as error:
        raise ConfigError(
            f"{where}: line {reader.line_num + above}: {error}; expected a CSV with quotes in pairs"
        ) from None
    return found, mark


def _of_table(lines: Sequence[str], mark: str) -> Iterator[str]:
    """Yield the lines of a CSV: it ends with its code block, or at words below a blank line."""
    is_blank = False
    for line in lines:
        if line.startswith("```") or (is_blank and line.strip() and mark not in line):
            return
        is_blank = not line.strip()
        yield line


def _header(lines: Sequence[str]) -> tuple[int, str]:
    """Return how many lines stand above the header, and what separates its columns.

    Titles, a markdown heading, `sep=;` may stand above it. Without a header that has the columns it
    is the first line, so that the message shows it.
    """
    for above, line in enumerate(lines):
        for mark in _SEPARATORS:
            if _has_columns(line.split(mark)):
                return above, mark
    first = next((number for number, each in enumerate(lines) if each.strip()), 0)
    return first, max(_SEPARATORS, key="".join(lines[first : first + 1]).count)


def _has_columns(cells: Sequence[str]) -> bool:
    names = {_name(each.strip().strip('"')) for each in cells}
    return bool(names & {*COLUMNS["profile"]}) and any(
        names & {*COLUMNS[each]} for each in _FIGURES
    )


_FIGURES = ("tgs", "step_s", "step_ms", "rate")


# below a markdown table's header:  |---|---:|:---|
_RULE = re.compile(r"\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*")


def _markdown(text: str) -> list[tuple[int, list[str]]]:
    """Return the rows of the first markdown table with a profile and a figure; [] without one."""
    lines = text.splitlines()
    for at in range(1, len(lines)):
        if "|" not in lines[at - 1] or "-" not in lines[at] or not _RULE.fullmatch(lines[at]):
            continue
        if not _has_columns(_cells(lines[at - 1])):
            continue
        rows = itertools.takewhile(lambda each: "|" in each[1], enumerate(lines[at + 1 :], at + 2))
        return [(at, _cells(lines[at - 1])), *((number, _cells(line)) for number, line in rows)]
    return []


def _cells(line: str) -> list[str]:
    parts = re.split(r"(?<!\\)\|", line.strip().removeprefix("|").removesuffix("|"))
    return [_PLAIN.sub("", each).replace("\\|", "|").strip() for each in parts]


_PLAIN = re.compile(r"\*\*|`|[\u2605\u2b50]")  # bold, code, the winner's star
_AVERAGE = re.compile(r"\b(?:mean|avg\.?|average|median|steady(?:[- ]state)?)\s+")


# step time (s)     step time [ms]     TGS (tokens/s/device)
# (none in another: from each of 50,000 brackets the search would read on to the end)
_COLUMN_UNIT = re.compile(r" ?[(\[](?P<unit>[^()\[\]]*)[)\]]$")
_SECONDS = frozenset({"s", "sec", "secs", "seconds", "s/step"})
_MILLISECONDS = frozenset({"ms", "msec", "milliseconds", "ms/step"})


def _name(text: str) -> str:
    """Return a column's name without case, unit and the words for an average."""
    plain = _PLAIN.sub("", text).lower().lstrip("\ufeff").replace("_", " ")
    plain = _AVERAGE.sub("", re.sub(r"\s*(?:/|\bper\b)\s*", "/", " ".join(plain.split())))
    unit = _COLUMN_UNIT.search(plain)
    bare = plain[: unit.start()] if unit else plain
    if unit and unit["unit"] in _MILLISECONDS and bare in COLUMNS["step_s"]:
        return "step ms"
    known = _SECONDS if bare in COLUMNS["step_s"] else COLUMNS["tgs"] if bare == "tgs" else ()
    return bare if unit and unit["unit"] in known else plain


def _has_settings(made: Profile) -> bool:
    return bool(made.flags or made.env or made.overrides)


def import_table(
    rows: Sequence[TableRow],
    *,
    cell: Cell,
    no_ops: Sequence[str],
    sweep: str,
    workdir: Path,
    access: Access = "owner",
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
        access: who may read the ledger.
        at_s: now, seconds since the epoch.
        tokens: of one device in a step; None takes the cell's, else the median of the rows.
        context: the settings that the profiles came on top of, where the table's author names them:
            then the catalog's no-ops are controls too. None: the catalog names no control, because
            a default is no no-op where another value was deployed.

    Raises:
        ConfigError: an unknown no-op, a row that cannot be scored, or a ledger that is there.
        LedgerError: it cannot be written.
    """
    # the cell's own arithmetic first: the median over right and wrong rows blames right ones
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
        said = {
            each.id: does_nothing(each, context)
            for each in profiles
            # a table of names alone: its winner of +11.6 % was one of the controls, the noise 7.2 %
            if each.id not in ids and _has_settings(each)
        }
        idle = {name: why for name, why in said.items() if why}
    study = ImportedStudy(
        cell=cell,
        profiles=profiles,
        no_ops=tuple(ids),
        tokens=tokens,
        idle=idle,
    )
    label = re.sub(r"[^A-Za-z0-9.=_-]+", "-", cell.label)
    name = f"{sweep}/{label}-{digest(study.to_json(), length=8)}"
    folder = owned.open_to(workdir, name, access)
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
    names = [_name(each) for each in header]
    at = {
        column: names.index(spelling)
        for column, spellings in COLUMNS.items()
        for spelling in [next((each for each in spellings if each in names), "")]
        if spelling
    }
    missing = [name for name in ("profile",) if name not in at]
    if not {*_FIGURES} & at.keys():
        missing.append("tgs (or step_s)")
    if missing:
        raise ConfigError(
            f"{where}: the header {','.join(header)!r} has no column {', '.join(missing)}; known "
            f"are {', '.join(COLUMNS)}"
        )
    return at


def _row(line: int, values: Mapping[str, str], figures: _Figures) -> TableRow:
    name = values["profile"]
    profile_id = slug(name)
    job = values.get("job", f"line-{line}")
    if not job:
        raise ConfigError("the job's id is missing")
    if not profile_id:
        raise ConfigError(f"{name!r} names no profile")
    env = {}
    try:
        words = shlex.split(values.get("env", ""))
    except ValueError as error:
        raise ConfigError(f"env: {error} in {values['env']!r:.80}") from None
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise ConfigError(f"env: found {word!r}, expected NAME=value")
        env[key] = value
    flags = _flags(values.get("flags", ""))
    made = profile(profile_id, flags, env=env) if profile_id != BASELINE_ID else None
    if made is None and (flags or env):
        raise ConfigError(
            f"{BASELINE_ID} has settings; give none, because it is the cell as deployed"
        )
    status, values = _status(values)
    row = TableRow(
        line=line,
        job=job.strip("()[]# "),
        profile=made or BASELINE,
        tgs=figures.number(values, "tgs"),
        step_s=figures.seconds(values),
        status=status,
    )
    if row.status in _OK and not (row.tgs or row.step_s):
        raise ConfigError(
            f"job {row.job} has neither TGS nor seconds, and its status does not say why; write a "
            "status such as OOM"
        )
    return row


def _flags(text: str) -> str:
    """Return the flags of a cell: `export XLA_FLAGS="..."` as people paste it, (none), a dash."""
    bare = _ASSIGNED.sub("", text.strip()).strip("'\"")
    return "" if bare.lower().strip("()") in _NO_FLAGS else bare


_ASSIGNED = re.compile(r"(?:export )?XLA_FLAGS=")
_NO_FLAGS = frozenset({"none", "-", "\u2013", "\u2014", "n/a", "default", "defaults"})


# OOM     FAILED (exit 1)     timed out     \u274c
_FAILURE = re.compile(
    r"\b(?:oom|out[ -]of[ -]memory|resource[ _]exhausted|(?:unknown|invalid) flag|fail\w*|crash\w*"
    r"|error\w*|abort\w*|kill\w*|died|hang|hung|time[d-]? ?out|cancel\w*|preempt\w*|skip\w*"
    r"|exit(?: code| status)? \d+|not run|dnf)\b|[\u274c\u2717\u2718]",
    re.IGNORECASE,
)


def _status(values: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
    """Return why there is no figure, and the values less the figures that say it."""
    status = " ".join(values.get("status", "").lower().split())
    said = {
        column: " ".join(text.lower().split())
        for column in _FIGURES
        if (text := values.get(column, "")) and not text[0].isdecimal() and _FAILURE.search(text)
    }
    for each in said.values():
        if status in _OK:
            status = each
        elif each not in status:
            status = f"{status}, {each}"
    return status, {**values, **dict.fromkeys(said, "")}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figures:
    """How a table writes its figures: in most with a decimal point, in some with a comma.

    Attributes:
        is_comma_decimal: `1.234,5` is 1234.5.
        is_unclear: no figure tells whether `1,234` is 1234 or 1.234.
    """

    is_comma_decimal: bool = False
    is_unclear: bool = False

    @classmethod
    def of(cls, mark: str, cells: Sequence[Mapping[str, str]]) -> _Figures:
        """Return how a table writes them, by those that can be read in one way only.

        Spreadsheets separate columns by semicolons or tabs where the comma is the decimal mark; in
        a table of commas or bars a comma separates thousands.
        """
        if mark not in (";", "\t"):
            return cls()
        printed = [_bare(each.get(column, "")) for each in cells for column in _FIGURES]
        commas = [each for each in printed if _COMMA_DECIMAL.fullmatch(each)]
        points = [each for each in printed if _FIGURE.fullmatch(each) and not each.isdecimal()]
        only_commas, only_points = {*commas} - {*points}, {*points} - {*commas}
        return cls(
            is_comma_decimal=bool(only_commas) and not only_points,
            is_unclear=bool(commas) and bool(only_commas) == bool(only_points),
        )

    def number(self, values: Mapping[str, str], column: str) -> str:
        """Return the digits of a figure with a decimal point, "" where there is none."""
        text = values.get(column, "")
        bare = _bare(text)
        if bare.lower() in ("", "-", "–", "—", "n/a", "nan", "none"):  # noqa: RUF001 - as printed
            return ""
        if self.is_unclear and _COMMA_DECIMAL.fullmatch(bare):
            raise ConfigError(
                f"{column}: found {text!r:.80}, where the comma may separate thousands or "
                "decimals; write 1234.5"
            )
        if self.is_comma_decimal and _COMMA_DECIMAL.fullmatch(bare):
            bare = bare.replace(".", "").replace(",", ".")
        if column == "tgs" and (thousands := _THOUSANDS.fullmatch(bare)):
            bare = f"{Decimal(thousands[1]).scaleb(3):f}"
        figure = bare.replace(",", "")
        if not _FIGURE.fullmatch(bare) or not 0 < float(figure) < math.inf:
            raise ConfigError(
                f"{column}: found {text!r:.80}, expected a positive number such as 1234.5 or "
                "1,234.5"
            )
        return figure

    def seconds(self, values: Mapping[str, str]) -> str:
        """Return the seconds of a step with as many digits as printed, "" where there are none."""
        for column in ("step_s", "step_ms"):
            if figure := self.number(values, column):
                unit = _UNIT.search(values[column].strip("() "))
                printed = unit["unit"].lower() if unit else ""
                is_ms = printed.startswith("ms") or (column == "step_ms" and not printed)
                return f"{Decimal(figure).scaleb(-3):f}" if is_ms else figure
        rate = self.number(values, "rate")
        digits = len(rate.replace(".", "").lstrip("0")) + 2
        return f"{Decimal(f'{1 / float(rate):.{digits}g}'):f}" if rate else ""


def _bare(text: str) -> str:
    return _UNIT.sub("", _SPREAD.sub("", text.strip().strip("()")))


# 8000 \u00b1 20     8000 +/- 0.3 %
_SPREAD = re.compile(r"\s{0,9}(?:\u00b1|\+/-|\+-)\s{0,9}[0-9.,]+\s{0,9}%?(?=\D*$)")
# 8.1k
_THOUSANDS = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?[kK]")


# thousands are separated in published tables:  1,234.5
_FIGURE = re.compile(r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?")
# 1234,5     1.234,5
_COMMA_DECIMAL = re.compile(r"(?:[0-9]{1,3}(?:\.[0-9]{3})+|[0-9]+),[0-9]+")
# 25.24 s     3030 ms     994.9 tok/s/device
_UNIT = re.compile(
    r"\s{0,9}(?P<unit>s|sec|secs|seconds|s/step|ms|ms/step|TGS|tok(?:ens)?/s(?:/(?:device|gpu))?)$",
    re.IGNORECASE,
)


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
        return replace(result, status=status, reason=Reason(Why.TABLE_SAYS, status=row.status))
    tgs = float(row.tgs) if row.tgs else 0.0
    step_s = float(row.step_s) if row.step_s else 0.0
    if not tgs and tokens is None:
        raise ConfigError(
            f"line {row.line}: job {row.job} has seconds and no TGS, and the tokens of a device in "
            "a step are not known: give them, --tokens N"
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
        step_s=step_s or None,
        n_steps=0,  # a table does not say
        window=(trial.protocol.first_step, trial.protocol.last_step),
        flags=tuple(flags),
    )
    return replace(result, score=score)


def _usual(rows: Sequence[TableRow]) -> float | None:
    """Return the tokens per device and step that most rows agree on; None where there are none."""
    both = [row for row in rows if row.tgs and row.step_s]
    if not both:
        return None
    middle = median(float(row.tgs) * float(row.step_s) for row in both)
    agree = [
        abs(float(row.tgs) * float(row.step_s) / middle - 1) <= TOLERANCE + _rounding(row)
        for row in both
    ]
    return middle if 2 * sum(agree) > len(agree) else None


def _rounding(row: TableRow) -> float:
    """Return the relative error of TGS x seconds that printing so few digits explains."""
    return sum(
        0.5 * 10.0 ** -len(text.partition(".")[2]) / float(text) for text in (row.tgs, row.step_s)
    )
