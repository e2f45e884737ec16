"""Compare two sides of plain logs, job by job.

A side is a directory with one log per job, or one sub-folder per job; a single log is a side of one
job. The order in which the jobs ran is unknown, so this module compares and never names a cause. If
the logs do not suffice, the result says so: one job is no evidence, however many steps it has.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median

import msgspec
from msgspec.structs import replace

from pytest_xlatune.logs.patterns import StepPattern
from pytest_xlatune.model.cell import Protocol
from pytest_xlatune.model.errors import ConfigError, Exit
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import Message, say, sentence, verbatim
from pytest_xlatune.model.result import (
    NoScore,
    Score,
    Verdict,
    VerdictKind,
    relative,
)
from pytest_xlatune.model.text import (
    ABSENT,
    interval,
    percent,
    rate,
    significant,
    size,
)
from pytest_xlatune.report.document import (
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
from pytest_xlatune.stats.compare import NoComparison, decide, gate, two_samples
from pytest_xlatune.stats.design import SWEEP_ALPHA
from pytest_xlatune.stats.validity import different_loss
from pytest_xlatune.stats.window import common_window
from pytest_xlatune.tasks.files import UnreadableLogError
from pytest_xlatune.tasks.read_logs import (
    RANK_0,
    JobLog,
    logs_in,
    logs_of,
    read_one,
    score_with,
)

# sides whose losses differ by a larger fraction did not run the same training
LOSS_TOLERANCE = 0.02
_EXPECTED = "name a directory with one log, or one sub-folder with a log, per job"
# the statuses of logs that are compared; a job that ended early is compared by the steps it has
_COMPARED_STATUSES = (
    *("ok", "no-score", FailureClass.SOFT_SUCCESS),
    *(FailureClass.UNFINISHED, FailureClass.CANCELLED, FailureClass.TIME_LIMIT),
)
_JOB_COLUMNS = columns("side", "~job", ">TGS", ">step (s)", ">steps", "window")
_ORDER = verbatim("the order of these jobs is unknown: a drift between the sides is not excluded")


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One side: its jobs, and the files that are left out, each with the reason."""

    name: str  # "A" for the baseline, or "B"
    path: Path
    jobs: tuple[JobLog, ...]
    left_out: tuple[tuple[Path, str], ...]

    @property
    def scores(self) -> list[Score]:
        """The scores of the jobs that have one."""
        return [job.score for job in self.jobs if isinstance(job.score, Score)]

    @property
    def tgs(self) -> float | None:
        """The geometric mean of the TGS of all jobs; None if there is no job."""
        return math.exp(fmean(score.value for score in self.scores)) if self.scores else None

    def scored(self, protocol: Protocol, *, tokens: float | None) -> Side:
        """Return the side with its jobs scored by a protocol; those without a score are left out.

        `tokens` are those of a device in a step, for logs that print no rate.
        """
        jobs = [
            replace(job, score=score_with(job.report, protocol, tokens=tokens)) for job in self.jobs
        ]
        left_out = (
            (job.path, f"no score: {sentence(job.score.reason)}")
            for job in jobs
            if isinstance(job.score, NoScore)
        )
        return replace(
            self,
            jobs=tuple(job for job in jobs if isinstance(job.score, Score)),
            left_out=(*self.left_out, *left_out),
        )


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """Side B against side A."""

    a: Side  # the baseline
    b: Side
    verdict: Verdict  # the verdict on B
    margin: float | None = None  # the margin of the gate, as a fraction; None without a gate
    passes: bool | None = None  # whether B passes the gate; None if that cannot be told

    @property
    def ratio(self) -> float | None:
        """The TGS of B divided by that of A; None if a side has no job."""
        return None if self.verdict.delta is None else 1 + self.verdict.delta

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
        pattern: the form of a step line; None reads those of MaxText.
        tokens: tokens per device and step, for logs that print no rate.

    Raises:
        ConfigError: a side does not exist or holds no log, one log is on both sides, or the jobs
            ran by different protocols.
    """
    if margin is not None and not 0 < margin < 1:
        raise ConfigError(f"--gate {margin}: expected a fraction such as 0.01 for 1 %")
    seen: dict[bytes, tuple[str, Path]] = {}
    read_log = partial(read_one, pattern=pattern, tokens=tokens)
    sides = [_read_side(name, path, read_log, seen) for name, path in (("A", a), ("B", b))]
    logs = [log for side in sides for log in side.jobs]
    _check_protocols(logs)
    steps = [log.protocol.steps for log in logs if isinstance(log.score, Score)]
    fewest_steps = min(steps, default=max(log.protocol.steps for log in logs))
    protocol = replace(logs[0].protocol, steps=fewest_steps)
    scores = (score for side in sides for score in side.scored(protocol, tokens=tokens).scores)
    window = common_window([*scores], protocol)
    notes = [window.note] if window.note else []
    a_scored, b_scored = (side.scored(window.protocol, tokens=tokens) for side in sides)
    other_loss = _other_loss(a_scored, b_scored, step=window.protocol.last_step)
    return _compared(a_scored, b_scored, margin=margin, notes=notes, other_loss=other_loss)


def _compared(
    a: Side, b: Side, *, margin: float | None, notes: Sequence[Message], other_loss: str
) -> Compared:
    """Return the comparison of two sides, with `notes` among the reasons of the verdict."""
    scores_of_a, scores_of_b = ([score.value for score in side.scores] for side in (a, b))
    comparison = two_samples(scores_of_a, scores_of_b, alpha=SWEEP_ALPHA)
    steps_s = [score.step_s for score in b.scores if score.step_s is not None]
    verdict = Verdict(
        arm=str(b.path),
        kind=VerdictKind.INCONCLUSIVE,
        n=len(b.jobs),
        tgs=b.tgs,
        step_s=math.exp(fmean(map(math.log, steps_s))) if steps_s else None,
        delta=b.tgs / a.tgs - 1 if a.tgs and b.tgs else None,
        reasons=(*notes, _ORDER),
    )
    reason, passes = other_loss, None
    if reason:
        verdict = replace(verdict, kind=VerdictKind.INVALID)
    elif isinstance(comparison, NoComparison):
        reason = f"no verdict, run more jobs: {sentence(comparison.reason)}"
    else:
        low, high = comparison.ci95
        verdict = replace(
            verdict,
            kind=decide(comparison),
            ci95=(relative(low), relative(high)),
            mde80=relative(comparison.mde80),
            method=say(
                "{method}, job noise {noise:.2%}", method=comparison.method, noise=comparison.sigma
            ),
        )
        gated = VerdictKind.INCONCLUSIVE if margin is None else gate(comparison, margin=margin)
        passes = None if gated is VerdictKind.INCONCLUSIVE else gated is not VerdictKind.SLOWER
    if reason:
        verdict = replace(verdict, reasons=(verbatim(reason), *verdict.reasons))
    return Compared(a=a, b=b, verdict=verdict, margin=margin, passes=passes)


def compared_document(compared: Compared) -> Document:
    """Return the comparison of B with A."""
    verdict, sides = compared.verdict, (compared.a, compared.b)
    ratio = ABSENT if compared.ratio is None else f"{compared.ratio:.4f}"
    ends = f"95 % interval {interval(verdict.ci95)}"
    figures = (
        f"B against A: {percent(verdict.delta)}, {ends}, ratio {ratio}",
        f"verdict: {verdict.kind if verdict.ci95 else 'none'}",
        *([compared.gate] if compared.gate else []),
        *([f"method: {plainly(verdict.method)}"] if verdict.method else []),
        *([f"80 % power at {size(verdict.mde80)}"] if verdict.mde80 is not None else []),
        *map(plainly, verdict.reasons),
    )
    rows = tuple(
        (
            side.name,
            literal(str(job.path)),
            rate(score.tgs),
            significant(score.step_s),
            str(score.n_steps),
            f"{score.window[0]}-{score.window[1]}",
        )
        for side in sides
        for job, score in zip(side.jobs, side.scores, strict=True)
    )
    out = bullets(
        *(
            f"{side.name}: {literal(str(path))}: {plain(reason)}"
            for side in sides
            for path, reason in side.left_out
        )
    )
    return Document(
        title=f"B against A: {verdict.arm}",
        header=figures,
        sections=(
            section("Jobs", Table(columns=_JOB_COLUMNS, rows=rows)),
            *((section("Left out", Text(text="Not counted:"), out),) if out.items else ()),
        ),
    )


def _other_loss(a: Side, b: Side, *, step: int) -> str:
    """Return how the losses of the sides differ at the last common step; "" if they do not."""
    losses = [
        [
            record.loss
            for job in side.jobs
            for record in job.report.steps
            if record.step == step and record.loss is not None
        ]
        for side in (a, b)
    ]
    if not all(losses):
        return ""
    reason = different_loss(median(losses[1]), median(losses[0]), tolerance=LOSS_TOLERANCE)
    return f"not the same training: {sentence(reason)}" if reason else ""


def _read_side(
    name: str, path: Path, read_log: Callable[[Path], JobLog], seen: dict[bytes, tuple[str, Path]]
) -> Side:
    """Read the logs of a side.

    `seen` is shared by the sides: the digest of a log that counts -> its side and its path.
    """
    if not path.exists():
        raise ConfigError(f"{path} does not exist; {_EXPECTED}")
    jobs, left_out = list[JobLog](), list[tuple[Path, str]]()
    for file, problem in _entries(path):
        try:
            log = None if problem else read_log(file)
            reason = problem if log is None else _why_not_counted(log, name, seen)
        except UnreadableLogError as error:
            log, reason = None, error.reason
        if log is None or reason:
            left_out.append((file, reason))
        else:
            jobs.append(log)
    if not jobs and not left_out:
        raise ConfigError(f"{path} is empty: no log of a training job; {_EXPECTED}")
    if not jobs:
        why = "; ".join(f"{file.name}: {reason}" for file, reason in left_out)
        raise ConfigError(f"{path} holds no log of a healthy training job ({why}); {_EXPECTED}")
    return Side(name=name, path=path, jobs=tuple(jobs), left_out=tuple(left_out))


def _why_not_counted(log: JobLog, name: str, seen: dict[bytes, tuple[str, Path]]) -> str:
    """Return why a log of a side does not count; "" if it does.

    A copy is no second job, and its equal score would make the noise of jobs look small.

    Raises:
        ConfigError: the other side has the same log.
    """
    if log.status not in _COMPARED_STATUSES:
        return f"{log.status}: the job failed"
    with log.path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    if digest not in seen:
        seen[digest] = name, log.path
        return ""
    side, same = seen[digest]
    if side != name:
        raise ConfigError(f"{log.path} is the same log as {same}, on the other side")
    return f"a copy of {same}: the same job counts once"


def _entries(path: Path) -> Iterator[tuple[Path, str]]:
    """Yield each log and ""; or a sub-folder without exactly one log, and why it is left out."""
    if path.is_file():
        yield path, ""
        return
    other_ranks = {log for logs in logs_in(path) for _, log in logs[1:]}
    for entry in sorted(path.iterdir()):
        if entry.name.startswith(".") or entry in other_ranks:
            continue
        if not entry.is_dir():
            yield entry, ""
            continue
        logs = logs_of(entry)
        reason = f"{len(logs)} logs in the folder of one job: name the log of rank 0 {RANK_0}"
        yield (logs[0], "") if len(logs) == 1 else (entry, reason)


def _check_protocols(logs: Sequence[JobLog]) -> None:
    """Refuse jobs whose protocols differ in more than the number of steps."""
    first, *others = (replace(log.protocol, steps=1).to_json() for log in logs)
    for log, other in zip(logs[1:], others, strict=True):
        differs = [name for name in first if first[name] != other[name]]
        if differs:
            differing = "; ".join(f"{name} {first[name]!r} and {other[name]!r}" for name in differs)
            raise ConfigError(
                f"{logs[0].path} and {log.path} ran by different protocols ({differing}): their "
                "scores do not compare. Leave one kind out"
            )
