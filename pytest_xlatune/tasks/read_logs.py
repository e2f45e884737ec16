"""Read plain logs: their steps, score and findings, without a ledger.

`xlatune steps` and `xlatune triage` show them. The protocol comes from the configuration lines of a
log; where it prints none, from its steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from pytest_xlatune.logs import LogReader, LogReport
from pytest_xlatune.logs.triage import primary
from pytest_xlatune.model.cell import Protocol
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.record import Json
from pytest_xlatune.model.result import Action, NoScore, Score
from pytest_xlatune.stats.score import score

RANK_0 = "log.0.txt"  # of several logs of one job, rank 0's is read

SCHEMA = 1
_CHUNK_BYTES = 1 << 20
_QUIET = (Action.NONE, Action.SUCCESS)


class UnreadableLogError(ConfigError):
    """A file that is no log of a training job, or that cannot be opened; `reason` says which."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} {reason}")
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A log, its report and its score.

    Attributes:
        path: as the user named it.
        report: its steps, configuration and findings.
        protocol: as its configuration lines or its steps tell.
        score: of its steady state, or why there is none.
    """

    path: Path
    report: LogReport
    protocol: Protocol
    score: Score | NoScore

    @property
    def status(self) -> str:
        """The root cause's class; without one "ok", or "no-score"."""
        cause = primary(self.report.findings)
        if cause is not None and cause.action not in _QUIET:
            return cause.cls
        return "ok" if isinstance(self.score, Score) else "no-score"

    def to_json(self) -> Json:
        """Return the log's entry in `steps --json`; absent values are null, NaN is "nan"."""
        scored = self.score if isinstance(self.score, Score) else None
        return {
            "path": str(self.path),
            "status": self.status,
            "steps": [
                {
                    "step": each.step,
                    "seconds": each.step_s,
                    "tgs": each.tgs,
                    "tflops": each.tflops,
                    "mfu": each.mfu,
                    "loss": _finite(each.loss),
                }
                for each in self.report.steps
            ],
            "score": scored
            and {
                "tgs": scored.tgs,
                "step_s": scored.step_s,
                "n_steps": scored.n_steps,
                "window": list(scored.window),
                "dropped": list(scored.dropped),
                "flags": list(scored.flags),
            },
            "no_score_reason": None if scored else getattr(self.score, "reason", None),
            "findings": [
                {
                    "class": each.cls,
                    "action": str(each.action),
                    "line": each.line,
                    "text": each.text,
                }
                for each in self.report.findings
            ],
            "xla_flags": self.report.xla_flags,
        }


def log_of(path: Path) -> Path:
    """Return the log that a path means: the file itself, or the log of the job in that folder.

    An attempt of ours has `log.0.txt`. A job of maxtext-slurm has a folder `<id>-<name>`
    with a link `log` to `<id>-<name>.log` beside it; both names change when the job has ended:
    `outputs/<id>` means them too, and the link may be stale.
    """
    if (path / RANK_0).is_file():
        return path / RANK_0
    job = path.name.partition("-")[0]
    if path.is_file() or not job.isdigit() or not path.parent.is_dir():
        return path / "log" if (path / "log").is_file() else path
    beside = sorted(each for each in path.parent.glob(f"{job}-*.log") if each.is_file())
    return beside[0] if len(beside) == 1 else path


def read_one(path: Path) -> Read:
    """Read a log; a job of maxtext-slurm may be named by its folder or by the front of its name.

    Raises:
        UnreadableLogError: it cannot be opened, or it is not the log of a training job.
    """
    reader = LogReader()
    path = log_of(path)
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                reader.feed(chunk)
    except OSError as error:
        why = f"cannot be read: {error.strerror}; name the log of a job"
        raise UnreadableLogError(path, why) from None
    reader.close()
    report = reader.report()
    if not (report.steps or report.findings or report.config or report.env or report.xla_flags):
        why = (
            f"is not the log of a training job: {report.lines} lines, none of them a step "
            "(`completed step: 7, seconds: ...`), a configuration line or a known failure"
        )
        raise UnreadableLogError(path, why)
    protocol = protocol_of(report)
    return Read(
        path=path,
        report=report,
        protocol=protocol,
        score=score_with(report, protocol),
    )


def score_with(report: LogReport, protocol: Protocol) -> Score | NoScore:
    """Return the score of a log's steady state by a protocol, or why there is none."""
    return score(report.steps, protocol=protocol, tokens_per_device_step=_tokens(report))


def protocol_of(report: LogReport) -> Protocol:
    """Return the protocol that a log's configuration tells, with its steps where it is silent."""
    config = report.config
    last = report.last_step
    steps = _number(config.get("steps")) or (1 if last is None else last + 1)
    profiler = config.get("profiler", "")
    eval_interval = _number(config.get("eval_interval")) or 0
    return Protocol(
        steps=max(1, steps),
        profiler=profiler,
        skip_first_steps=_number(config.get("skip_first_n_steps_for_profiler")) or 10,
        profiler_steps=_number(config.get("profiler_steps")) or 3,
        eval_interval=max(0, eval_interval),
    )


def _tokens(report: LogReport) -> float | None:
    try:
        batch = float(report.config["per_device_batch_size"])
        return batch * int(report.config["max_target_length"])
    except (KeyError, ValueError):
        return None


def _number(text: str | None) -> int | None:
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


def _finite(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)
