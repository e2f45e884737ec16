"""Read plain logs without a ledger: their steps, their score and their findings, as documents too.

The commands `steps`, `triage`, `compare` and `init --log` read logs in this way. The protocol comes
from the configuration lines of a log, or from its steps if there are no such lines.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import msgspec
from msgspec.structs import replace

from pytest_xlatune.executors.folder import read_outcomes, read_standstill
from pytest_xlatune.logs import LogReader, LogReport, read_log
from pytest_xlatune.logs.patterns import PRESETS, StepPattern, step_pattern
from pytest_xlatune.logs.standstill import Standstill
from pytest_xlatune.logs.triage import diagnose, end_of, ended_by, primary
from pytest_xlatune.model.cell import Protocol
from pytest_xlatune.model.failure import Action, FailureClass, Finding, Outcome, State
from pytest_xlatune.model.message import say, sentence
from pytest_xlatune.model.metric import NoScore, Score, StepRecord
from pytest_xlatune.model.record import Json, encode
from pytest_xlatune.model.redact import hide_quoted
from pytest_xlatune.model.text import ABSENT, counted, rate, shortened, significant, to_integer
from pytest_xlatune.report.document import (
    Code,
    Document,
    Table,
    Text,
    bullets,
    columns,
    literal,
    plain,
    section,
)
from pytest_xlatune.report.language import plainly
from pytest_xlatune.stats.score import score
from pytest_xlatune.tasks.files import DAMAGED, STDIN, UnreadableLogError, chunks_of

_END_LINES, _END_CHARS = 5, 160  # lines of the end of a log that are shown, and characters of each
RANK_0 = "log.0.txt"  # of several logs of one attempt, that of rank 0 is read
# settings of MaxText whose product is the number of tokens of a device in a step
TOKENS = ("per_device_batch_size", "max_target_length")
SCHEMA = 1
# the first fields of a step record by their names in JSON, then fields of findings and scores
_STEP_KEYS = ("step", "seconds", "tgs", "tflops", "mfu", "loss")
_FINDING_KEYS = ("action", "line", "text", "detail")
_SCORE_KEYS = ("tgs", "step_s", "n_steps", "window", "dropped", "flags")


class Health(StrEnum):
    """Whether a job reached its goal."""

    HEALTHY = "healthy"
    FAILED = "failed"
    UNFINISHED = "unfinished"  # the log ends before the last step, and says nothing about an end


# Names of logs of one job, or of one task of an array, with the rank that printed it:
#   slurm-123_4.out    14602-llama.log.gz    88_0_log.out (submitit: %j_%t_log.out)    log.0.txt
#   rank_3.log    slurm-88-rank3.out
_LOG_NAME = re.compile(
    r"(?:(?P<submitit>\d+(?:_\d+)?)_(?P<task>\d{1,9})_log\.out|log\.(?P<attempt>\d{1,9})\.txt"
    r"|(?P<front>(?:.*[._-])?)rank[._-]?(?P<rank>\d{1,9})\.(?:log|out|txt)"
    r"|(?P<job>.+?)\.(?:log|out))(?:\.gz)?"
)
# the number of a job in the name of its log or folder:  123    123_4    slurm-123    14602-llama
_NUMBER = re.compile(r"(?:slurm-)?(?P<number>\d+(?:_\d+)?)(?:-.*)?")


def logs_in(folder: Path) -> list[list[tuple[int, Path]]]:
    """Return for each job in a folder its ranks with their logs; rank 0 if a name has no rank."""
    jobs: dict[str, list[tuple[int, Path]]] = {}
    # a user who may not list a folder can still name a log in it
    can_list = folder.is_dir() and os.access(folder, os.R_OK)
    for path in folder.iterdir() if can_list else ():
        if (name := _LOG_NAME.fullmatch(path.name)) is not None and path.is_file():
            job = name["submitit"] or name["job"] or name["front"] or ""
            rank = int(name["task"] or name["attempt"] or name["rank"] or 0)
            jobs.setdefault(job, []).append((rank, path))
    return sorted(map(sorted, jobs.values()), key=lambda logs: logs[0][1])


def logs_of(path: Path) -> list[Path]:
    """Return the logs that a path means: for each job, the log of its lowest rank.

    A path is a log, a folder of one attempt, of one job of maxtext-slurm or of several jobs, or a
    job's number in a folder, as in `outputs/123`, which means its log or those of all tasks of an
    array. maxtext-slurm puts a folder `<id>-<name>` beside the log `<id>-<name>.log`, and renames
    both when the job has ended, so only the number of such a name counts. A path without any log
    means itself.
    """
    if path == STDIN or path.is_file():
        return [path]
    if (log := path / RANK_0).is_file():
        return [log]
    inside = [logs[0][1] for logs in logs_in(path)]
    beside: list[Path] = []
    if (name := _NUMBER.fullmatch(path.name)) is not None:
        is_of_job = re.compile(rf"(?:slurm-)?{name['number']}(?!\d)").match  # 123 is not 1234
        beside = [logs[0][1] for logs in logs_in(path.parent) if is_of_job(logs[0][1].name)]
    return beside or inside or [path]


class JobLog(msgspec.Struct, frozen=True, kw_only=True):
    """A log with its report, its score and its findings."""

    path: Path
    report: LogReport
    protocol: Protocol  # the protocol, from its configuration lines or its steps
    score: Score | NoScore  # the score of its steady state
    outcome: Outcome  # as the payload wrote it, or as the log says; RUNNING if neither says it
    findings: tuple[Finding, ...]  # what the log and the outcome show together
    is_complete: bool  # whether it has the last step that the job should run
    fits: str = ""  # the name of the pattern that was chosen for its steps; "" if none was

    @property
    def health(self) -> Health:
        """Whether the job reached its goal."""
        cause = primary(self.findings)
        if cause is not None and cause.action not in (Action.NONE, Action.SUCCESS):
            return Health.FAILED
        if self.is_complete or self.outcome.state is State.COMPLETED:
            return Health.HEALTHY
        return Health.FAILED if self.outcome.state.is_final else Health.UNFINISHED

    @property
    def status(self) -> str:
        """The class of the root cause; without a cause, "unfinished", "ok" or "no-score"."""
        cause, health = primary(self.findings), self.health
        if cause is not None and (health is Health.FAILED or cause.action is Action.SUCCESS):
            return cause.cls
        if health is Health.UNFINISHED:
            return FailureClass.UNFINISHED
        return "ok" if isinstance(self.score, Score) else "no-score"

    @property
    def reached(self) -> str:
        """How far the job came and what ended it, in words."""
        report, wanted = self.report, steps_wanted(self.report)
        last = "no step" if report.last_step is None else f"last step {report.last_step}"
        goal = f" of {wanted}" if wanted is not None else ""
        by = ended_by(self.outcome)
        end = f"its end: {by}" if by else "no end in the log"
        return f"{counted(report.lines, 'line')}, phase {report.phase}, {last}{goal}; {end}"

    def to_json(self) -> dict[str, Json]:
        """Return the log's entry in `steps --json`; absent values are null, and NaN is "nan"."""
        report, score = self.report, self.score
        scored = score.to_json() if isinstance(score, Score) else None
        entry = {
            "path": str(self.path),
            "status": self.status,
            "health": self.health,
            "phase": report.phase,
            "last_step": report.last_step,
            "steps_wanted": steps_wanted(report),
            "ended_by": ended_by(self.outcome) or None,
            "exit_code": self.outcome.exit_code,
            "steps": [dict(zip(_STEP_KEYS, step, strict=False)) for step in report.steps],
            "score": scored and {name: scored[name] for name in _SCORE_KEYS},
            "no_score_reason": sentence(score.reason) if isinstance(score, NoScore) else None,
            "findings": [
                {
                    "class": finding.cls,
                    **{name: getattr(finding, name) for name in _FINDING_KEYS},
                    "advice": FailureClass(finding.cls).advice,
                }
                for finding in self.findings
            ],
            "xla_flags": report.xla_flags,
            "notes": report.notes,
        }
        json: dict[str, Json] = encode(entry)
        return json


def read_one(
    path: Path,
    *,
    pattern: StepPattern | None = None,
    tokens: float | None = None,
    is_any: bool = False,
) -> JobLog:
    """Read the log in a file.

    `pattern` says how another trainer prints its steps; with `is_any`, one that fits is chosen.
    `tokens` are those of a device in a step, if the log does not give them.

    Raises:
        UnreadableLogError: the file cannot be opened, or it is no log of a training job.
    """
    reader, notes = LogReader(pattern), list[str]()
    for chunk in chunks_of(path, notes):
        reader.feed(chunk)
    reader.close()
    report = reader.report()
    if is_any and report.fits:
        log = read_one(path, pattern=step_pattern(report.fits), tokens=tokens)
        return replace(log, fits=report.fits)
    if not (report.steps or report.config) and (report.fits or not report.findings):
        notes.append(f"no line of it is a step; {_how_to_read(report, pattern)}")
    report = replace(report, notes=(*report.notes, *notes))
    if not (report.steps or report.findings or report.config or report.env or report.xla_flags):
        raise UnreadableLogError(path, _no_log(report, pattern))
    protocol, outcome = protocol_of(report), _outcome_of(path, report)
    # A job that was ended should have run more steps than it has, if nothing says how many.
    is_ended = outcome.state not in (State.COMPLETED, State.RUNNING)
    asked = replace(protocol, steps=protocol.steps + (is_ended and steps_wanted(report) is None))
    is_complete = report.last_step is not None and report.last_step >= asked.last_step
    findings = diagnose(report, outcome, asked)
    if is_complete:  # even if its steps are too few for a score
        findings = tuple(each for each in findings if each.cls != FailureClass.TOO_FEW_STEPS)
    elif not outcome.state.is_final:  # the job went on after these findings
        quiet = (replace(finding, action=Action.NONE) for finding in findings)
        findings = (_unfinished(report, reader.end()), *quiet)
    computed = score_with(report, protocol, tokens=tokens)
    if any(each.cls == FailureClass.NO_GPU and each.action is not Action.NONE for each in findings):
        why = say("it found no GPU and ran on the CPU, so its steps have no speed")
        computed = NoScore(reason=why)
    return JobLog(
        path=path,
        report=report,
        protocol=protocol,
        score=computed,
        outcome=outcome,
        findings=tuple(
            replace(finding, text=hide_quoted(finding.text), detail=hide_quoted(finding.detail))
            for finding in findings
        ),
        is_complete=is_complete,
    )


def _no_log(report: LogReport, pattern: StepPattern | None) -> str:
    """Return why a file without a step, a setting or a failure is no log of a training job."""
    if not report.size_bytes and DAMAGED in report.notes:
        return "cannot be read: its gzip data is damaged from the first byte on; copy it again"
    if not report.size_bytes:
        return "is empty; name the log of a job that has begun to print"
    return (
        f"is not the log of a training job: {counted(report.lines, 'line')}, none of them a step "
        "(`completed step: 7, seconds: ...`), a configuration line or a known failure; "
        f"{_how_to_read(report, pattern)}"
    )


def _how_to_read(report: LogReport, pattern: StepPattern | None) -> str:
    """Return what to do about a log of which no line was read as a step."""
    if report.fits:
        return f"its step lines are those of {report.fits}: --step-pattern {report.fits} reads them"
    if pattern is not None:
        return f"the step pattern {pattern.pattern!r} fits none of them"
    return (
        f"--step-pattern reads those of {', '.join(PRESETS)}; for another trainer's copy a step "
        "line, put (?P<step>\\d+) in the place of its number, and (?P<seconds>[\\d.]+) in that of "
        "its seconds (or ms, rate, tgs, loss)"
    )


def _outcome_of(path: Path, report: LogReport) -> Outcome:
    """Return how the job ended, as the payload of an attempt wrote it, or as the log says."""
    by_log = end_of(report)
    # the payload sees only a signal; what Slurm printed says who sent it
    if path.name != RANK_0 or by_log.state in (State.CANCELLED, State.TIMEOUT, State.NODE_FAIL):
        return by_log
    ranks = read_outcomes(path.parent)
    failed = [outcome for outcome in ranks.values() if outcome.state is not State.COMPLETED]
    return min(failed, key=lambda outcome: outcome.end_s or math.inf, default=ranks.get(0, by_log))


def _unfinished(report: LogReport, last_texts: list[str]) -> Finding:
    """Return a finding with the last lines, also those of steps, of a log that has no end."""
    where = "before its first step" if report.last_step is None else f"at step {report.last_step}"
    if (wanted := steps_wanted(report)) is not None:
        where += f" of {wanted}"
    detail = f"the log ends {where} without an end: killed, or still running"
    text = "\n".join(shortened(part, _END_CHARS) for part in last_texts[-_END_LINES:]) or detail
    return Finding(cls=FailureClass.UNFINISHED, action=Action.NONE, text=text, detail=detail)


def score_with(
    report: LogReport, protocol: Protocol, *, tokens: float | None = None
) -> Score | NoScore:
    """Return the score of a log's steady state by a protocol, or why there is none."""
    config = {**report.asked, **report.config}
    product = math.prod(positive(config.get(name, "")) or 0.0 for name in TOKENS)
    per_step = tokens or (product if 0 < product < math.inf else None)
    return score(report.steps, protocol=protocol, tokens_per_device_step=per_step)


def positive(text: str) -> float | None:
    """Return a positive finite number; None if the text is none."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 < number < math.inf else None


_NUMBERS = {
    "skip_first_n_steps_for_profiler": "skip_first_steps",
    "profiler_steps": "profiler_steps",
    "eval_interval": "eval_interval",
}
# what releases of MaxText print around the name of a profiler:
#   xplane    ProfilerType.NONE    <ProfilerType.NSYS: 'nsys'>    ""
_NO_NAME = re.compile(r"<?ProfilerType\.|:.*|[\"' ]")


def protocol_of(report: LogReport) -> Protocol:
    """Return the protocol in a log's configuration; its steps give what that lacks."""
    config, last, wanted = report.config, report.last_step, steps_wanted(report)
    if report.goal_step is not None:  # the id of the last step, because these ids begin at 1
        wanted = report.goal_step + 1
    profiler = _NO_NAME.sub("", config.get("profiler", "")).lower()
    numbers = {name: to_integer(config.get(key, "")) for key, name in _NUMBERS.items()}
    return replace(
        Protocol(),
        steps=wanted or (1 if last is None else last + 1),
        profiler="" if profiler in ("none", "null", "false") else profiler,
        **{name: max(0, number) for name, number in numbers.items() if number is not None},
    )


def steps_wanted(report: LogReport) -> int | None:
    """Return how many steps were requested, by lines of steps or settings; None if none say it.

    MaxText takes -1 to mean the steps of its learning rate schedule.
    """
    if report.goal_step is not None:
        return report.goal_step
    settings = (report.config, report.asked)
    keys = ("steps", "learning_rate_schedule_steps")
    numbers = (to_integer(config.get(key, "")) for config in settings for key in keys)
    return next((number for number in numbers if number is not None and number > 0), None)


def standstill_of(log: JobLog, pattern: StepPattern | None = None) -> Standstill | None:
    """Return for which rank the others of a failed trial waited; None if that is not known.

    If the trial stood still, the folder of its attempt has what its processes did.

    Raises:
        UnreadableLogError: the log of another rank cannot be read.
    """
    if log.health is Health.HEALTHY or log.path.name != RANK_0:
        return None
    ranks = next((logs for logs in logs_in(log.path.parent) if (0, log.path) in logs), [])
    last_steps = {rank: read_log(chunks_of(path, []), pattern).last_step for rank, path in ranks}
    steps = {rank: step for rank, step in last_steps.items() if step is not None}
    standstill = read_standstill(log.path.parent, steps=steps, is_sure=True)
    # a log may quote secrets
    return standstill and replace(standstill, why=standstill.why.changed(hide_quoted))


_STEP_COLUMNS = columns(">step", ">seconds", ">TGS", ">TFLOP/s", ">MFU %", ">loss", "in the score")
_FINDING_COLUMNS = columns("class", "action", ">line", "~evidence")
_MOST_ROWS = 200  # steps in a table


def steps_document(log: JobLog, *, title: str = "") -> Document:
    """Return the steps of a log, and the score of its steady state.

    The title is the log's path if it is empty.
    """
    score = log.score
    steps = [*log.report.steps]
    rows = tuple(_row(step, score) for step in steps[-_MOST_ROWS:])
    ends = (each.detail for each in log.findings if each.cls == FailureClass.UNFINISHED)
    notes = [*log.report.notes, *ends]
    if len(steps) > _MOST_ROWS:
        notes.append(f"the table has the last {_MOST_ROWS} of {len(steps)} steps, --json all")
    return Document(
        title=title or str(log.path),
        header=(*_figures(score), *map(plain, notes)),
        sections=(section("Steps", Table(columns=_STEP_COLUMNS, rows=rows)),) if rows else (),
    )


def _figures(score: Score | NoScore) -> Iterator[str]:
    if isinstance(score, NoScore):
        yield f"no score: {plainly(score.reason)}"
        return
    first, last = score.window
    yield f"TGS {rate(score.tgs)}, {significant(score.step_s)} s/step"
    yield f"tokens over time of {score.n_steps} steps of {first}-{last}"
    if score.dropped:
        yield f"dropped steps: {', '.join(map(str, score.dropped))}"
    if score.flags:
        yield f"flags: {', '.join(score.flags)}"


def _use(step: StepRecord, score: Score | NoScore) -> str:
    """Return the kind of a special step, or how the score uses a step; "" outside the window."""
    if step.kind != "step":
        return step.kind
    if isinstance(score, NoScore) or not score.window[0] <= step.step <= score.window[1]:
        return ""
    return "dropped" if step.step in score.dropped else "yes"


def _row(step: StepRecord, score: Score | NoScore) -> tuple[str, ...]:
    figures = (step.step_s, step.tgs, step.tflops, step.mfu, step.loss)
    texts = (ABSENT if figure is None else f"{figure:.3f}" for figure in figures)
    return (str(step.step), *texts, _use(step, score))


def triage_document(log: JobLog) -> Document:
    """Return how far a job came, and the findings of its log with the root cause first."""
    ordered = sorted(
        log.findings,
        key=lambda finding: (finding.cls != log.status, finding.action is Action.NONE),
    )
    rows = tuple(
        (
            finding.cls,
            str(finding.action),
            str(finding.line or ABSENT),
            literal(finding.text.rpartition("\n")[2]),
        )
        for finding in ordered
    )
    details = (
        f"{finding.cls}: {plain(finding.detail)}"
        for finding in ordered
        if finding.detail and (finding.cls == log.status or finding.action is not Action.NONE)
    )
    found = Table(columns=_FINDING_COLUMNS, rows=rows) if rows else Text(text="no known failure")
    advice_of_class: dict[str, str] = {}
    for finding in ordered if log.health is not Health.HEALTHY else ():
        advice_of_class[finding.cls] = FailureClass(finding.cls).advice
    to_do = bullets(*(f"{cls}: {text}" for cls, text in advice_of_class.items() if text))
    # `plain` removes escape sequences, which lines of a log may have
    last_lines = next((each.text.splitlines() for each in ordered if "\n" in each.text), [])
    text = "\n".join(map(plain, last_lines))
    return Document(
        title=f"{log.path}: {log.status}",
        header=(log.reached, *map(plain, log.report.notes), *details),
        sections=(
            section("Findings", found),
            *((section("What to do", to_do),) if to_do.items else ()),
            *((section("Last lines", Code(text=text)),) if text else ()),
        ),
    )
