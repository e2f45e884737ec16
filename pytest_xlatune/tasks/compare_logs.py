"""Compare two sides of plain logs, job by job.

A side is a directory with one log per job, or one sub-folder per job; a single log is a side of one
job. The order in which the jobs ran is unknown, so this module compares and never names a cause. If
the logs do not suffice, the result says so: one job is no evidence, however many steps it has.
"""

from __future__ import annotations

import filecmp
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from msgspec.structs import replace

from pytest_xlatune.logs.patterns import StepPattern
from pytest_xlatune.model.errors import ConfigError, Exit
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import Message, sentence, verbatim
from pytest_xlatune.model.record import Json
from pytest_xlatune.model.result import (
    MIN_TRIALS,
    NoScore,
    Score,
    Verdict,
    VerdictKind,
    relative,
)
from pytest_xlatune.model.text import counted, fine, size
from pytest_xlatune.stats.compare import NoComparison, decide, gate, two_samples
from pytest_xlatune.stats.design import MIN_DF, SWEEP_ALPHA
from pytest_xlatune.stats.score import rescore
from pytest_xlatune.stats.validity import different_loss
from pytest_xlatune.stats.window import common_window
from pytest_xlatune.tasks.read_logs import (
    RANK_0,
    Read,
    UnreadableLogError,
    is_log_name,
    logs_of,
    read_one,
    score_with,
)

# sides whose losses differ by a larger fraction did not run the same training
LOSS_TOLERANCE = 0.02
SCHEMA = 1
_EXPECTED = "name a directory with one log, or one sub-folder with a log, per job"
# the statuses of logs that are compared; a job that ended early is compared by the steps it has
_COMPARED_STATUSES = (
    *("ok", "no-score", FailureClass.SOFT_SUCCESS),
    *(FailureClass.UNFINISHED, FailureClass.CANCELLED, FailureClass.TIME_LIMIT),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SideJob:
    """One job of a side that has a score.

    Attributes:
        path: the log.
        score: its score in the window of all jobs.
        xla_flags: XLA_FLAGS as the log prints them; None if it does not.
        loss: the loss at the last step of the window; None if the log has none.
    """

    path: Path
    score: Score
    xla_flags: str | None
    loss: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side: its jobs with a score, and the files that are left out, each with the reason."""

    path: Path
    jobs: tuple[SideJob, ...]
    left_out: tuple[tuple[Path, str], ...]

    @property
    def tgs(self) -> float | None:
        """The geometric mean of the TGS of all jobs; None if there is no job."""
        return math.exp(fmean(job.score.value for job in self.jobs)) if self.jobs else None

    def to_json(self) -> Json:
        """Return the side as builtins."""
        return {
            "path": str(self.path),
            "tgs": self.tgs,
            "jobs": [
                {
                    "path": str(job.path),
                    "tgs": job.score.tgs,
                    "step_s": job.score.step_s,
                    "n_steps": job.score.n_steps,
                    "window": list(job.score.window),
                    "flags": list(job.score.flags),
                }
                for job in self.jobs
            ],
            "left_out": [{"path": str(path), "reason": reason} for path, reason in self.left_out],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Side B against side A.

    Attributes:
        a, b: the sides; A is the baseline.
        verdict: the verdict on B.
        ratio: the TGS of B divided by that of A; None if a side has no job.
        margin: the margin of the gate, as a fraction; None if there is no gate.
        passes: whether B passes the gate; None if the jobs do not suffice or there is no gate.
    """

    a: Side
    b: Side
    verdict: Verdict
    ratio: float | None
    margin: float | None = None
    passes: bool | None = None

    @property
    def gate(self) -> str:
        """The answer of the gate as text; "" if there is no gate."""
        if self.margin is None:
            return ""
        answer = {True: "pass", False: "regression", None: "cannot tell"}[self.passes]
        return f"gate at a margin of {size(self.margin)}: {answer}"

    @property
    def exit(self) -> Exit:
        """The exit status: the answer of the gate, or success if there is no gate."""
        if self.margin is None:
            return Exit.OK
        if self.verdict.kind is VerdictKind.INVALID:
            return Exit.NOT_MEASURED
        return {True: Exit.OK, False: Exit.NEGATIVE, None: Exit.CANNOT_TELL}[self.passes]

    def to_json(self) -> Json:
        """Return the comparison as builtins; absent values are null."""
        return {
            "schema": SCHEMA,
            "a": self.a.to_json(),
            "b": self.b.to_json(),
            "ratio": self.ratio,
            "verdict": self.verdict.to_json(),
            "gate": None if self.margin is None else {"margin": self.margin, "passes": self.passes},
        }


def compare_sides(
    a: Path,
    b: Path,
    *,
    margin: float | None = None,
    pattern: StepPattern | None = None,
    tokens: float | None = None,
) -> Compared:
    """Compare the jobs of side B with those of side A.

    Args:
        a: the logs of the baseline.
        b: the logs of the candidate.
        margin: the margin of a gate that B has to pass, as a fraction; None is no gate.
        pattern: the form of a step line; None recognizes the known trainers.
        tokens: tokens per device and step, for logs that print no rate.

    Raises:
        ConfigError: a side does not exist or holds no log, one log is on both sides, or the jobs
            ran by different protocols.
    """
    if margin is not None and not 0 < margin < 1:
        raise ConfigError(f"--gate {margin}: expected a fraction such as 0.01 for 1 %")
    logs_by_size: dict[int, list[Path]] = {}
    read_sides = [_read_side(path, logs_by_size, pattern, tokens) for path in (a, b)]
    reads = [read for jobs, _ in read_sides for read in jobs]
    _check_protocols(reads)
    steps = [read.protocol.steps for read in reads if isinstance(read.score, Score)]
    fewest_steps = min(steps, default=max(read.protocol.steps for read in reads))
    scores: dict[Path, Score | NoScore] = {}
    for read in reads:
        protocol = replace(read.protocol, steps=min(fewest_steps, read.protocol.steps))
        scores[read.path] = score_with(read.report, protocol, tokens=tokens)
    scored = {path: score for path, score in scores.items() if isinstance(score, Score)}
    window = common_window([*scored.values()], replace(reads[0].protocol, steps=fewest_steps))
    if window.is_moved:
        for path, score in scored.items():
            scores[path] = rescore(score, protocol=window.protocol)
    notes = [window.note] if window.note else []
    if len(set(steps)) > 1:
        text = (
            f"the jobs have {fewest_steps} to {max(steps)} steps: each is scored up to the last "
            "step of the shortest"
        )
        notes.insert(0, verbatim(text))
    sides = [
        _side(path, jobs, left_out, scores, last_step=window.protocol.last_step)
        for path, (jobs, left_out) in zip((a, b), read_sides, strict=True)
    ]
    return _compared(*sides, margin=margin, notes=notes)


def _side(
    path: Path,
    reads: Sequence[Read],
    left_out: Sequence[tuple[Path, str]],
    scores: Mapping[Path, Score | NoScore],
    *,
    last_step: int,
) -> Side:
    """Return a side: jobs without a score are left out, and losses are those at `last_step`."""
    jobs, excluded = [], list(left_out)
    for read in reads:
        score = scores[read.path]
        if isinstance(score, NoScore):
            excluded.append((read.path, f"no score: {sentence(score.reason)}"))
            continue
        losses = (step.loss for step in read.report.steps if step.step == last_step)
        loss = max((loss for loss in losses if loss is not None), default=None)
        flags = read.report.xla_flags
        jobs.append(SideJob(path=read.path, score=score, xla_flags=flags, loss=loss))
    return Side(path=path, jobs=tuple(jobs), left_out=tuple(excluded))


def _compared(a: Side, b: Side, *, margin: float | None, notes: Sequence[Message]) -> Compared:
    """Return the comparison of two sides, with `notes` among the reasons of the verdict."""
    estimate = math.log(b.tgs / a.tgs) if a.tgs and b.tgs else None
    steps_s = [job.score.step_s for job in b.jobs if job.score.step_s is not None]
    loss_fault, passes = _other_loss(a, b), None
    scores_of_a, scores_of_b = ([job.score.value for job in side.jobs] for side in (a, b))
    comparison = two_samples(scores_of_a, scores_of_b, alpha=SWEEP_ALPHA)
    kind, reason = VerdictKind.INCONCLUSIVE, ""
    ci95, mde80, method = None, None, None
    if loss_fault:
        kind, reason = VerdictKind.INVALID, loss_fault
    elif isinstance(comparison, NoComparison):
        reason = f"no verdict: {_missing_jobs(a, b) or sentence(comparison.reason)}"
    else:
        low, high = map(relative, comparison.ci95)
        kind, ci95, mde80 = decide(comparison), (low, high), relative(comparison.mde80)
        method = verbatim(
            f"two samples of {len(a.jobs)} and {len(b.jobs)} jobs, Welch's t, "
            f"one-sided alpha {SWEEP_ALPHA:g}, job noise {fine(comparison.sigma)}"
        )
        gated = VerdictKind.INCONCLUSIVE if margin is None else gate(comparison, margin=margin)
        passes = None if gated is VerdictKind.INCONCLUSIVE else gated is not VerdictKind.SLOWER
    order = "the order of these jobs is unknown: a drift between the sides is not excluded"
    mixed = [
        f"the jobs of {name} ran with different XLA_FLAGS, so they are not one configuration"
        for name, side in (("A", a), ("B", b))
        if len({job.xla_flags for job in side.jobs}) > 1
    ]
    reasons = [verbatim(reason)] if reason else []
    verdict = Verdict(
        arm=str(b.path),
        kind=kind,
        n=len(b.jobs),
        tgs=b.tgs,
        step_s=math.exp(fmean(map(math.log, steps_s))) if steps_s else None,
        delta=None if estimate is None else relative(estimate),
        reasons=(*reasons, *notes, *map(verbatim, (order, *mixed))),
        ci95=ci95,
        mde80=mde80,
        method=method,
    )
    ratio = None if estimate is None else math.exp(estimate)
    return Compared(a=a, b=b, verdict=verdict, ratio=ratio, margin=margin, passes=passes)


def _missing_jobs(a: Side, b: Side) -> str:
    """Return that a verdict needs more jobs than the sides have; "" if there are enough."""
    if min(len(a.jobs), len(b.jobs)) >= MIN_TRIALS and len(a.jobs) + len(b.jobs) - 2 >= MIN_DF:
        return ""
    counts = []
    for name, side in (("A", a), ("B", b)):
        count = f"{name} has {counted(len(side.jobs), 'scored job')}"
        if not side.jobs and side.left_out:
            _, reason = side.left_out[0]
            count += f" ({reason})"
        counts.append(count)
    return (
        f"{' and '.join(counts)}; {MIN_TRIALS} on each side and {MIN_DF + 2} in all are needed. "
        "More steps do not replace jobs: run more jobs"
    )


def _other_loss(a: Side, b: Side) -> str:
    """Return how the losses of the sides differ at the last common step; "" if they do not."""
    losses = [[job.loss for job in side.jobs if job.loss is not None] for side in (a, b)]
    if not all(losses):
        return ""
    reason = different_loss(median(losses[1]), median(losses[0]), tolerance=LOSS_TOLERANCE)
    return f"not the same training: {sentence(reason)}" if reason else ""


def _read_side(
    path: Path,
    logs_by_size: dict[int, list[Path]],
    pattern: StepPattern | None,
    tokens: float | None,
) -> tuple[list[Read], list[tuple[Path, str]]]:
    """Return the logs of a side, and the files that are left out, each with the reason.

    `logs_by_size` has the logs that were read before, on either side, and gets those of this side.
    Only logs of one size can be copies of each other.
    """
    if not path.exists():
        raise ConfigError(f"{path} does not exist; {_EXPECTED}")
    reads: list[Read] = []
    left_out: list[tuple[Path, str]] = []
    side_logs: set[Path] = set()
    for job, reason in _entries(path):
        if reason:
            left_out.append((job, reason))
            continue
        try:
            read = read_one(job, pattern=pattern, tokens=tokens)
        except UnreadableLogError as error:
            left_out.append((job, error.reason))
            continue
        same_size = logs_by_size.setdefault(job.stat().st_size, [])
        original = next(
            (other for other in same_size if filecmp.cmp(job, other, shallow=False)), None
        )
        if read.status not in _COMPARED_STATUSES:
            left_out.append((job, f"{read.status}: the job failed"))
            continue
        # a copy is no second job, and its equal score would make the noise of jobs look small
        if original in side_logs:
            left_out.append((job, f"a copy of {original}: the same job counts once"))
            continue
        if original is not None:
            raise ConfigError(f"{job} is the same log as {original}, on the other side")
        same_size.append(job)
        side_logs.add(job)
        reads.append(read)
    if not reads:
        raise ConfigError(_why_no_job(path, left_out))
    return reads, left_out


def _why_no_job(path: Path, left_out: Sequence[tuple[Path, str]]) -> str:
    """Return why a side has no job: its files for each reason, and the expected layout."""
    if not left_out:
        return f"{path} is empty: no log of a training job; {_EXPECTED}"
    names: dict[str, list[str]] = {}
    for job, reason in left_out:
        names.setdefault(reason, []).append(job.name)
    why = "; ".join(f"{', '.join(job_names)}: {reason}" for reason, job_names in names.items())
    return f"{path} holds no log of a healthy training job ({why}); {_EXPECTED}"


def _entries(path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the log of each job with "", and each sub-folder without one job, with the reason."""
    if path.is_file():
        yield path, ""
        return
    jobs = _job_logs(path)
    for entry in sorted(path.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            logs = _job_logs(entry)
            reason = f"{len(logs)} logs in the folder of one job: name the log of rank 0 {RANK_0}"
            yield (logs[0], "") if len(logs) == 1 else (entry, reason)
        elif entry in jobs or not is_log_name(entry):  # the logs of further ranks are skipped
            yield entry, ""


def _job_logs(folder: Path) -> list[Path]:
    """Return the log of each job in a folder; [] if no file is named like a log."""
    try:
        return logs_of(folder)
    except UnreadableLogError:
        return []


def _check_protocols(reads: Sequence[Read]) -> None:
    """Refuse jobs whose protocols differ in more than the number of steps."""

    def rules(read: Read) -> Json:
        return {**read.protocol.to_json(), "steps": 0}

    for read in reads[1:]:
        first, other = rules(reads[0]), rules(read)
        differing = "; ".join(
            f"{name} {first[name]!r} and {other[name]!r}"
            for name in first
            if first[name] != other[name]
        )
        if differing:
            raise ConfigError(
                f"{reads[0].path} and {read.path} ran by different protocols ({differing}): their "
                "scores do not compare. Leave one kind out"
            )
