"""Read plain logs without a ledger: their steps, their score and their findings.

`xlatune steps` and `xlatune triage` show them. The protocol comes from the configuration lines of a
log, or from its steps if there are no such lines.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from msgspec.structs import replace

from pytest_xlatune.executors.folder import read_outcomes, read_standstill
from pytest_xlatune.logs import LogReader, LogReport, RankReader
from pytest_xlatune.logs.grammar import figures_in, plain_segments
from pytest_xlatune.logs.patterns import PRESETS, StepPattern
from pytest_xlatune.logs.standstill import Standstill
from pytest_xlatune.logs.triage import advice, diagnose, end_of, ended_by, primary
from pytest_xlatune.model.cell import Protocol
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.failure import Action, FailureClass, Finding, Outcome, State
from pytest_xlatune.model.message import Message, say, sentence
from pytest_xlatune.model.metric import NoScore, Score
from pytest_xlatune.model.record import Json
from pytest_xlatune.model.redact import hide_quoted
from pytest_xlatune.model.text import begun, counted, whole
from pytest_xlatune.stats.score import score
from pytest_xlatune.stats.stragglers import LEAST_RANKS, compare_ranks
from pytest_xlatune.tasks.files import DAMAGED, STDIN, chunks_of

RANK_0 = "log.0.txt"  # of several logs of one job, that of rank 0 is read

SCHEMA = 1
_SKIPPED, _PROFILED = 10, 3  # steps that a protocol skips and profiles, if a log does not say it
# read from a log without an end: lines, characters of a line
_END_LINES, _END_CHARS = 5, 160
_STEP_KEYS = ("step", "seconds", "tgs", "tflops", "mfu", "loss")
_QUIET = (Action.NONE, Action.SUCCESS)
_NO_SPEED = say("it found no GPU and ran on the CPU, so its steps have no speed")


class Health(StrEnum):
    """Whether a job reached its goal."""

    HEALTHY = "healthy"
    FAILED = "failed"
    UNFINISHED = "unfinished"  # the log ends before the last step, and says nothing about an end


class UnreadableLogError(ConfigError):
    """A file that is no log of a training job, or that cannot be opened; `reason` says which.

    `fits` is the name of the pattern that reads its lines; "" if there is none.
    """

    def __init__(self, path: Path, reason: str, *, fits: str = "") -> None:
        super().__init__(f"{path} {reason}")
        self.reason, self.fits = reason, fits


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A log with its report and its score."""

    path: Path  # the path as the user named it
    report: LogReport
    protocol: Protocol  # the protocol, from its configuration lines or its steps
    score: Score | NoScore  # the score of its steady state
    outcome: Outcome  # as the payload wrote it, or as the log says; RUNNING if neither says it
    findings: tuple[Finding, ...]  # what the log and the outcome show together
    goal_step: int  # the id of the last step that the job should run
    ranks: RankReader  # what all ranks print in the log

    @property
    def health(self) -> Health:
        """Whether the job reached its goal."""
        cause = primary(self.findings)
        if cause is not None and cause.action not in _QUIET:
            return Health.FAILED
        last = self.report.last_step
        if last is not None and last >= self.goal_step:
            return Health.HEALTHY
        if not self.outcome.state.is_final:
            return Health.UNFINISHED
        return Health.HEALTHY if self.outcome.state is State.COMPLETED else Health.FAILED

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
    def notes(self) -> tuple[str, ...]:
        """What a reader of its steps should know; where a log without an end stops."""
        ends = (end.detail for end in self.findings if end.cls == FailureClass.UNFINISHED)
        return (*self.report.notes, *ends)

    @property
    def reached(self) -> str:
        """How far the job came and what ended it, in words."""
        report, wanted = self.report, steps_wanted(self.report)
        last = "no step" if report.last_step is None else f"last step {report.last_step}"
        goal = f" of {wanted}" if wanted is not None else ""
        by = ended_by(self.outcome, self.findings)
        end = f"ended by {by}" if by else "no end in the log"
        cut = f"; {DAMAGED}" if DAMAGED in report.notes else ""
        return f"{counted(report.lines, 'line')}, phase {report.phase}, {last}{goal}; {end}{cut}"

    def to_json(self) -> dict[str, Json]:
        """Return the log's entry in `steps --json`; absent values are null, and NaN is "nan"."""
        scored = self.score if isinstance(self.score, Score) else None
        steps = self.report.steps
        figures = (
            map(_finite, column)
            for column in (steps.step_s, steps.tgs, steps.tflops, steps.mfu, steps.loss)
        )
        rows = zip(steps.step, *figures, strict=True)
        return {
            "path": str(self.path),
            "status": self.status,
            "health": str(self.health),
            "phase": str(self.report.phase),
            "last_step": self.report.last_step,
            "steps_wanted": steps_wanted(self.report),
            "ended_by": ended_by(self.outcome, self.findings) or None,
            "exit_code": self.outcome.exit_code,
            "steps": [dict(zip(_STEP_KEYS, row, strict=True)) for row in rows],
            "score": scored
            and {
                "tgs": scored.tgs,
                "step_s": scored.step_s,
                "n_steps": scored.n_steps,
                "window": list(scored.window),
                "dropped": list(scored.dropped),
                "flags": list(scored.flags),
            },
            "no_score_reason": sentence(self.score.reason)
            if isinstance(self.score, NoScore)
            else None,
            "findings": [
                {
                    "class": finding.cls,
                    "action": str(finding.action),
                    "line": finding.line,
                    "text": finding.text,
                    "detail": finding.detail,
                    "code": finding.code or None,
                    "advice": advice(finding) or None,
                }
                for finding in self.findings
            ],
            "xla_flags": self.report.xla_flags,
            "notes": list(self.report.notes),
        }


def exit_of(read: Iterable[Read]) -> int:
    """Return the exit status of `triage`: 1 if a job failed, 3 if a job is unfinished."""
    healths = {log_read.health for log_read in read}
    return 1 if Health.FAILED in healths else 3 if Health.UNFINISHED in healths else 0


def advised(read: Read) -> list[tuple[str, str]]:
    """Return what a person can do about a log with a fault: class and advice, each once."""
    if read.health is Health.HEALTHY:
        return []
    advice_of_class: dict[str, str] = {}
    for finding in sorted(read.findings, key=lambda finding: finding.cls != read.status):
        if text := advice(finding):
            advice_of_class.setdefault(finding.cls, text)
    return [*advice_of_class.items()]


def _log_of(path: Path) -> Path:
    """Return the log that a path means: the file, or the log of the job in that folder.

    An attempt of ours has `log.0.txt`. A job of maxtext-slurm has a folder `<id>-<name>` with a
    link `log` to `<id>-<name>.log`, which is in the same place as the folder. Both names change
    when the job has ended; `outputs/<id>` means them too, and the link may be stale.
    """
    if (path / RANK_0).is_file():
        return path / RANK_0
    job = path.name.partition("-")[0]
    if path.is_file() or not job.isdigit() or not path.parent.is_dir():
        return path / "log" if (path / "log").is_file() else path
    logs = sorted(log for log in path.parent.glob(f"{job}-*.log") if log.is_file())
    return logs[0] if len(logs) == 1 else path


# names of logs of one job, or of one task of an array, with the rank that printed it:
#   slurm-123_4.out    88_0_log.out (submitit: %j_%t_log.out)    log.0.txt    14602-llama.log.gz
#   rank_3.log    slurm-88-rank3.out
_LOG_NAME = re.compile(
    r"(?:(?P<submitit>\d+(?:_\d+)?)_(?P<task>\d{1,9})_log\.out|log\.(?P<rank>\d{1,9})\.txt"
    r"|(?P<front>(?:.*[._-])?)rank[._-]?(?P<named>\d{1,9})\.(?:log|out|txt)"
    r"|(?P<job>.+?)\.(?:log|out))(?:\.gz)?"
)
# numbers of jobs:  123    123_4    slurm-123
_NUMBER = re.compile(r"(?:slurm-)?\d+(?:_\d+)?")


def is_log_name(path: Path) -> bool:
    """Return whether the name of a file is that of a log of a job."""
    return _LOG_NAME.fullmatch(path.name) is not None


def _job_and_rank(path: Path) -> tuple[str, int | None] | None:
    """Return the job and the rank in the name of a log; None if it is no such name."""
    name = _LOG_NAME.fullmatch(path.name)
    if name is None:
        return None
    rank = name["task"] or name["rank"] or name["named"]
    return name["submitit"] or name["job"] or name["front"] or "", int(rank) if rank else None


def _logs_by_job(folder: Path) -> dict[str, list[tuple[int | None, Path]]]:
    """Return job -> its logs in a folder, each with its rank, the lowest rank first."""
    jobs: dict[str, list[tuple[int | None, Path]]] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if (job_and_rank := _job_and_rank(path)) is not None and path.is_file():
            jobs.setdefault(job_and_rank[0], []).append((job_and_rank[1], path))
    return {job: sorted(logs, key=lambda log: log[0] or 0) for job, logs in jobs.items()}


def logs_of(path: Path) -> list[Path]:
    """Return the logs that a path means: for each job, the log of its lowest rank.

    A folder means each job in it, and each task of an array (`slurm-123_4.out`). The start of a
    name means all logs whose names start so (`outputs/123`).

    Raises:
        UnreadableLogError: a folder has no log.
    """
    if path == STDIN or (job_log := _log_of(path)).is_file():
        return [path if path == STDIN else job_log]
    folder, begin = (path, "") if path.is_dir() else (path.parent, path.name)
    if begin and _NUMBER.fullmatch(begin) is None:
        return [job_log]
    # `123` does not mean `1234.out`
    is_of = re.compile(rf"(?:slurm-)?{re.escape(begin)}(?!\d)" if begin else "")
    jobs = [
        [log for _, log in logs if is_of.match(log.name)] for logs in _logs_by_job(folder).values()
    ]
    if path.is_dir() and not jobs:
        why = "is a folder without a log: *.log, *.out or log.0.txt; name the log of a job"
        raise UnreadableLogError(path, why)
    return [logs[0] for logs in jobs if logs] or [job_log]


def read_one(
    path: Path,
    *,
    pattern: StepPattern | None = None,
    tokens: float | None = None,
) -> Read:
    """Read a log; a job of maxtext-slurm may be named by its folder or by the start of its name.

    `pattern` says how another trainer prints its steps; `tokens` are those of a device in a step,
    if the log does not give them.

    Raises:
        UnreadableLogError: the file cannot be opened, or it is no log of a training job.
    """
    path = path if path == STDIN else _log_of(path)
    rank = next((rank for rank, log in _logs_by_rank(path) if log == path), None)
    ranks = RankReader(pattern)
    reader = ranks.log(rank)
    notes: list[str] = []
    for chunk in _chunks_of(path, notes):
        ranks.feed(chunk, rank)
    reader.close()
    report = reader.report()
    fit = report.fits if pattern is None else ""
    if fit and report.findings:
        notes.append(f"its step lines are those of {fit}: --step-pattern {fit} reads them")
    elif pattern is None and not (report.steps or report.findings or report.config):
        notes.append(
            "no line is a step (`completed step: 7, seconds: ...`); --step-pattern reads others"
        )
    report = dataclasses.replace(report, notes=(*report.notes, *notes))
    if not (report.steps or report.findings or report.config or report.env or report.xla_flags):
        raise UnreadableLogError(path, _no_log(report, pattern, fit=fit), fits=fit)
    protocol = protocol_of(report)
    outcome = _outcome_of(path, report)
    goal = _goal_of(report, outcome, protocol, is_torn=_is_torn(reader.end, report, pattern))
    findings = _findings(report, outcome, replace(protocol, steps=goal + 1), end=reader.end)
    return Read(
        path=path,
        report=report,
        protocol=protocol,
        score=NoScore(reason=_NO_SPEED)
        if any(e.cls == FailureClass.NO_GPU and e.action is not Action.NONE for e in findings)
        else score_with(report, protocol, tokens=tokens),
        outcome=outcome,
        findings=tuple(
            replace(finding, text=hide_quoted(finding.text), detail=hide_quoted(finding.detail))
            for finding in findings
        ),
        goal_step=goal,
        ranks=ranks,
    )


def _chunks_of(path: Path, notes: list[str] | None = None) -> Iterator[bytes]:
    """Yield a log piece by piece; remarks for its reader are added to `notes`.

    Raises:
        UnreadableLogError: the file cannot be read.
    """
    try:
        yield from chunks_of(path, [] if notes is None else notes)
    except OSError as error:
        why = f"cannot be read: {error.strerror or error}; name the log of a job"
        raise UnreadableLogError(path, why) from None


def _goal_of(
    report: LogReport, outcome: Outcome, protocol: Protocol, *, is_torn: bool = False
) -> int:
    """Return the id of the last step that a job should run.

    If nothing gives the goal of a job that was ended, or of a torn log, it is one more than the
    last step. Else the last step would count as the goal.
    """
    is_told = steps_wanted(report) is not None
    is_ended = outcome.state not in (State.COMPLETED, State.RUNNING)
    is_torn &= outcome.state is State.RUNNING
    return protocol.last_step + (not is_told and (is_ended or is_torn))


def _is_torn(end: bytes, report: LogReport, pattern: StepPattern | None) -> bool:
    """Return whether a log ends within a line, so that its last line may lack a part of a step."""
    last = end.rpartition(b"\n")[2]
    if not last or last.endswith(b"\r"):
        return False
    reader = LogReader(pattern)
    reader.feed(last + b"\n")
    reader.close()
    alone = reader.report().steps
    return len(alone) != 1 or figures_in(alone[0]) < max(map(figures_in, report.steps), default=0)


def _no_log(report: LogReport, pattern: StepPattern | None, *, fit: str) -> str:
    """Return why a file without a step, a setting or a failure is no log of a training job."""
    if not report.size_bytes and DAMAGED in report.notes:
        return "cannot be read: its gzip data is damaged from the first byte on; copy it again"
    if not report.size_bytes:
        return "is empty; name the log of a job that has begun to print"
    how = (
        "of another trainer say how it prints a step: --step-pattern NAME, or step-pattern in "
        "xlatune.toml (to xlatune init in the file that it writes without --log), with NAME one of "
        f"{', '.join(PRESETS)}; for another form copy a step line, "
        "put (?P<step>\\d+) in the place of its number, and (?P<seconds>[\\d.]+) in that of its "
        "seconds (or ms, rate, tgs, loss)"
        if pattern is None
        else f"the step pattern {pattern.line.pattern!r} fits none of them"
    )
    if fit:
        how = f"its step lines are those of {fit}: say --step-pattern {fit}"
    return (
        f"is not the log of a training job: {counted(report.lines, 'line')}, none of them a step "
        f"(`completed step: 7, seconds: ...`), a configuration line or a known failure; {how}"
    )


def _all_ranks(read: Read) -> RankReader:
    """Return what all ranks of a log's job print, in this log or in others of its folder.

    Raises:
        UnreadableLogError: a log cannot be read.
    """
    for rank, log in _logs_by_rank(read.path):
        if not read.ranks.is_known(rank):
            for chunk in _chunks_of(log):
                read.ranks.feed(chunk, rank)
    return read.ranks


def _logs_by_rank(path: Path) -> list[tuple[int | None, Path]]:
    job_and_rank = _job_and_rank(path)
    if job_and_rank is None or job_and_rank[1] is None:
        return [(None, path)]
    logs = _logs_by_job(path.parent).get(job_and_rank[0], ())
    ranks = [log for log in logs if log[0] is not None]
    return ranks if len(ranks) > 1 else [(None, path)]


def slower_of(read: Read) -> tuple[Message, ...]:
    """Return which ranks take longer for a step, or that none does; () if the data is too small.

    Raises:
        UnreadableLogError: a log cannot be read.
    """
    if max(read.report.origins, len(_logs_by_rank(read.path))) < LEAST_RANKS:
        return ()
    times = compare_ranks(_all_ranks(read).seconds(), first_step=read.protocol.first_step)
    if times is None:
        return ()
    if not times.stragglers:
        return (
            say(
                "steps {first}-{last} of {ranks} ranks: none takes clearly longer for a step "
                "than the others, which differ by {spread:.1%}. Where each step waits for all "
                "ranks, the lines of a slow one look like those of the others",
                spread=times.spread,
                ranks=times.ranks,
                first=times.first,
                last=times.last,
            ),
        )
    return tuple(
        say(
            "rank {rank} takes {slower:.1%} longer for a step than the median of {ranks} ranks",
            rank=straggler.rank,
            slower=straggler.slower,
            ranks=times.ranks,
        )
        for straggler in times.stragglers
    )


def behind_of(read: Read) -> Standstill | None:
    """Return for which rank of a failed job the others waited; None if that is not known.

    If the job was a trial that stood still, its attempt's folder has what its processes did. Else
    only its lines tell it.

    Raises:
        UnreadableLogError: a log cannot be read.
    """
    is_seen = read.path.name == RANK_0 and any(read.path.parent.glob("hang*.json"))
    if read.health is Health.HEALTHY and not is_seen:
        return None
    reader = _all_ranks(read)
    standstill = reader.standstill()
    if is_seen:
        last = {rank: log.last_step for rank, log in reader.ranks.items()}
        steps = {rank: step for rank, step in last.items() if step is not None}
        seen = read_standstill(read.path.parent, steps=steps, is_sure=True)
        if seen is not None and (seen.behind or standstill is None):
            standstill = seen
    if standstill is None:
        return None
    stands = (  # a log may quote anything
        dataclasses.replace(state, last_line=hide_quoted(state.last_line))
        for state in standstill.stands
    )
    why = standstill.why.changed(hide_quoted)
    return dataclasses.replace(standstill, why=why, stands=tuple(stands))


def standstill_json(standstill: Standstill | None) -> Json:
    """Return as builtins for which rank a job waits; None if that is not known."""
    if standstill is None:
        return None
    return {
        "ranks": [*standstill.behind],
        "node": standstill.node or None,
        "sentence": sentence(standstill.why),
        "stands": [
            {
                "rank": state.rank,
                "node": state.node or None,
                "doing": str(state.doing),
                "at": state.at or None,
                "on": state.on or None,
                "step": state.step,
                "last_line": state.last_line or None,
            }
            for state in standstill.stands
        ],
    }


def _outcome_of(path: Path, report: LogReport) -> Outcome:
    """Return how the job ended, as the payload of an attempt wrote it, or as the log says."""
    by_log = end_of(report)
    # the payload sees only a signal; what Slurm printed says who sent it
    if path.name != RANK_0 or by_log.state in (State.CANCELLED, State.TIMEOUT, State.NODE_FAIL):
        return by_log
    ranks = read_outcomes(path.parent)
    failed = [outcome for outcome in ranks.values() if outcome.state is not State.COMPLETED]
    first = min(failed, key=lambda outcome: outcome.end_s or math.inf) if failed else ranks.get(0)
    return first or by_log


def _findings(
    report: LogReport, outcome: Outcome, protocol: Protocol, *, end: bytes
) -> tuple[Finding, ...]:
    """Return the findings from log and outcome; without an end, missing steps are a finding."""
    findings = diagnose(report, outcome, protocol)
    is_complete = report.last_step is not None and report.last_step >= protocol.last_step
    # a job that ran all its steps is complete, even if they are too few for a score
    if is_complete:
        return tuple(finding for finding in findings if finding.cls != FailureClass.TOO_FEW_STEPS)
    if outcome.state.is_final:
        return findings
    findings = tuple(
        replace(finding, action=Action.NONE) for finding in findings
    )  # it continued after them
    where = "before its first step" if report.last_step is None else f"at step {report.last_step}"
    if steps_wanted(report) is not None:
        where += f" of {report.goal_step or protocol.steps}"
    elif report.last_step is not None:  # only a torn line shows that steps are missing
        where += " within a line"
    detail = f"the log ends {where} without an end: killed, or still running"
    # the last lines of the log show where it stopped, so lines of steps are among them
    lines = end.split(b"\n")[report.size_bytes > len(end) :]
    texts = [begun(part.strip(), _END_CHARS) for line in lines for part in plain_segments(line)]
    text = "\n".join(texts[-_END_LINES:]) or detail
    # without this finding, such a log would show "nothing that is known to matter" and status 0
    unfinished = Finding(cls=FailureClass.UNFINISHED, action=Action.NONE, text=text, detail=detail)
    return (unfinished, *findings)


def score_with(
    report: LogReport, protocol: Protocol, *, tokens: float | None = None
) -> Score | NoScore:
    """Return the score of a log's steady state by a protocol, or why there is none."""
    per_step = tokens or _tokens(report)
    return score(report.steps, protocol=protocol, tokens_per_device_step=per_step)


def protocol_of(report: LogReport) -> Protocol:
    """Return the protocol in a log's configuration; its steps give what that lacks."""
    config = report.config
    last = report.last_step
    profiler_steps = _number(config.get("profiler_steps"))
    skipped = _number(config.get("skip_first_n_steps_for_profiler"))
    return Protocol(
        # ids of other trainers begin at 1, so the last id in their lines is the number of steps
        steps=(
            (steps_wanted(report) or (1 if last is None else last + 1))
            if report.goal_step is None
            else report.goal_step + 1
        ),
        profiler=_profiler(config.get("profiler", "")),
        skip_first_steps=_SKIPPED if skipped is None else max(0, skipped),
        profiler_steps=_PROFILED if profiler_steps is None else max(0, profiler_steps),
        eval_interval=max(0, _number(config.get("eval_interval")) or 0),
    )


def steps_wanted(report: LogReport) -> int | None:
    """Return how many steps were requested, by lines of steps or settings; None if none say it.

    MaxText takes -1 to mean the steps of its learning rate schedule.
    """
    if report.goal_step is not None:
        return report.goal_step
    sources = (report.config, report.asked)
    keys = ("steps", "learning_rate_schedule_steps")
    asked = (_number(settings.get(key)) for settings in sources for key in keys)
    return next((number for number in asked if number is not None and number > 0), None)


# How MaxText prints that no profiler is on: release 0.1; the enum of 0.2; a name in YAML.
#   Config param profiler:       Config param profiler: ProfilerType.NONE        None
# When ProfilerType.NONE was read as a profiler that is on, logs of 0.2 were scored from step 9 and
# not
# from step 5, and two of 23 were refused.
_NO_PROFILER = frozenset({"", "none", "null", "false"})
# members of the enum:  ProfilerType.XPLANE      <ProfilerType.XPLANE: 'xplane'>
_PROFILER_TYPE = re.compile(r"<?ProfilerType\.(?P<name>\w+)")


def _profiler(text: str) -> str:
    """Return the profiler's name for a protocol; "" if no profiler is on."""
    member = _PROFILER_TYPE.match(text)
    name = (member["name"] if member else text.strip("\"' ")).lower()
    return "" if name in _NO_PROFILER else name


def _tokens(report: LogReport) -> float | None:
    config = {**report.asked, **report.config}
    length = _number(config.get("max_target_length"))
    try:
        tokens = float(config["per_device_batch_size"]) * (length or 0)
    except (KeyError, ValueError):
        return None
    return tokens if 0 < tokens < math.inf else None


def _number(text: str | None) -> int | None:
    return None if text is None else whole(text)


def _finite(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)
