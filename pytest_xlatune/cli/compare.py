"""`xlatune compare`: compare two sides of plain logs of any jobs, job by job.

A side is a directory with one log per job, or one sub-folder per job; a single log is a side of one
job. The order in which the jobs ran is unknown, so this module compares and never names a cause. If
the logs do not suffice, the result says so: one job is no evidence, however many steps it has.
"""

from __future__ import annotations

import argparse
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median

import msgspec
from msgspec.structs import replace

from pytest_xlatune.cli.read_logs import pattern_of
from pytest_xlatune.cli.show import Output
from pytest_xlatune.model.errors import ConfigError, Exit, of_command
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.result import Comparison, Score, VerdictKind, relative
from pytest_xlatune.model.text import fine_percent, interval, percent, rate, significant, size
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
from pytest_xlatune.stats.compare import NoComparison, decide, gate, two_samples
from pytest_xlatune.stats.design import SWEEP_ALPHA
from pytest_xlatune.stats.validity import different_loss
from pytest_xlatune.stats.window import common_window
from pytest_xlatune.tasks.files import UnreadableLogError
from pytest_xlatune.tasks.read_logs import RANK_0, JobLog, logs_in, logs_of, read_one, score_with

# sides whose losses differ by a larger fraction did not run the same training
LOSS_TOLERANCE = 0.02
_EXPECTED = "name a directory with one log, or one sub-folder with a log, per job"
# the statuses of logs that are compared; a job that ended early is compared by the steps it has
_COMPARED_STATUSES = (
    *("ok", "no-score", FailureClass.SOFT_SUCCESS),
    *(FailureClass.UNFINISHED, FailureClass.CANCELLED, FailureClass.TIME_LIMIT),
)
_JOB_COLUMNS = columns("side", "~job", ">TGS", ">step (s)", ">steps", "window")
_ORDER = "the order of these jobs is unknown: a drift between the sides is not excluded"


class Side(msgspec.Struct, kw_only=True):
    """One side of a comparison."""

    name: str  # "A" for the baseline, or "B"
    path: Path  # the directory, or the single log
    logs: list[JobLog] = []  # those that count as jobs
    left_out: dict[Path, str] = {}  # file or folder -> why it does not count as a job
    scores: dict[Path, Score] = {}  # log of a job -> its score in the common window

    @property
    def values(self) -> list[float]:
        """The scores of the jobs, which are logarithms."""
        return [score.value for score in self.scores.values()]

    @property
    def tgs(self) -> float | None:
        """The geometric mean of the TGS of all jobs; None if there is no job."""
        return math.exp(fmean(self.values)) if self.scores else None

    def loss(self, step: int) -> float | None:
        """Return the median loss of the jobs at a step; None if no job prints it."""
        losses = [
            record.loss
            for log in self.logs
            for record in log.report.steps
            if log.path in self.scores and record.step == step and record.loss is not None
        ]
        return median(losses) if losses else None


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """Side B against side A, the baseline."""

    a: Side
    b: Side
    kind: VerdictKind  # the verdict on B; INVALID if the sides did not run the same training
    comparison: Comparison | None  # the figures behind the verdict; None if there is none
    reasons: tuple[str, ...]  # why there is no verdict, and remarks on the comparison


# verdict of a gate -> its answer and the exit status; every other verdict passes
_ANSWERS = {
    VerdictKind.SLOWER: ("regression", Exit.NEGATIVE),
    VerdictKind.INCONCLUSIVE: ("cannot tell", Exit.CANNOT_TELL),
    VerdictKind.INVALID: ("cannot tell", Exit.NOT_MEASURED),
}


def run_compare(arguments: argparse.Namespace) -> Output:
    """Return the comparison of the logs in two folders, A and B."""
    margin: float | None = arguments.gate
    if margin is not None and not 0 < margin < 1:
        raise ConfigError(f"--gate {margin}: expected a fraction such as 0.01 for 1 %")
    read_log = partial(read_one, pattern=pattern_of(arguments), tokens=arguments.tokens)
    compared = compare_sides(arguments.a, arguments.b, read_log, tokens=arguments.tokens)
    answer, status = "", Exit.OK
    if margin is not None:
        figures = compared.comparison
        kind = compared.kind if figures is None else gate(figures, margin=margin)
        word, status = _ANSWERS.get(kind, ("pass", Exit.OK))
        answer = f"gate at a margin of {size(margin)}: {word}"
    return Output(documents=(_document(compared, answer),), status=of_command(status))


def compare_sides(
    a: Path,
    b: Path,
    read_log: Callable[[Path], JobLog] = read_one,
    *,
    tokens: float | None = None,
) -> Compared:
    """Compare the jobs of side B with those of side A, the baseline.

    `tokens` are those of a device in a step, for logs that print no rate.

    Raises:
        ConfigError: a side does not exist or holds no log, one log is on both sides, or the jobs
            ran by different protocols.
    """
    digests: dict[bytes, tuple[Side, Path]] = {}
    sides = baseline, candidate = (
        _read_side(Side(name="A", path=a), read_log, digests),
        _read_side(Side(name="B", path=b), read_log, digests),
    )
    logs = [*baseline.logs, *candidate.logs]
    _check_protocols(logs)
    steps = [log.protocol.steps for log in logs if isinstance(log.score, Score)]
    fewest_steps = min(steps, default=max(log.protocol.steps for log in logs))
    protocol = replace(logs[0].protocol, steps=fewest_steps)
    scores = (score_with(log.report, protocol, tokens=tokens) for log in logs)
    window = common_window([score for score in scores if isinstance(score, Score)], protocol)
    for side in sides:
        for log in side.logs:
            score = score_with(log.report, window.protocol, tokens=tokens)
            if isinstance(score, Score):
                side.scores[log.path] = score
            else:
                side.left_out[log.path] = f"no score: {sentence(score.reason)}"
    comparison = two_samples(baseline.values, candidate.values, alpha=SWEEP_ALPHA)
    kind, why, figures = VerdictKind.INCONCLUSIVE, "", None
    loss_a, loss_b = (side.loss(window.protocol.last_step) for side in sides)
    other_loss = None
    if loss_a is not None and loss_b is not None:
        other_loss = different_loss(loss_b, loss_a, tolerance=LOSS_TOLERANCE)
    if other_loss is not None:
        kind, why = VerdictKind.INVALID, f"not the same training: {sentence(other_loss)}"
    elif isinstance(comparison, NoComparison):
        why = f"no verdict, run more jobs: {sentence(comparison.reason)}"
    else:
        kind, figures = decide(comparison), comparison
    return Compared(
        a=baseline,
        b=candidate,
        kind=kind,
        comparison=figures,
        reasons=tuple(filter(None, (why, sentence(window.note), _ORDER))),
    )


def _read_side(
    side: Side, read_log: Callable[[Path], JobLog], digests: dict[bytes, tuple[Side, Path]]
) -> Side:
    """Read the logs of a side, and return it.

    `digests` is shared by the sides: the digest of a log that counts -> its side and its path. A
    copy is no second job, and its equal score would make the noise of jobs look small.

    Raises:
        ConfigError: the side has no log of a job, or a log of the other side.
    """
    if not side.path.exists():
        raise ConfigError(f"{side.path} does not exist; {_EXPECTED}")
    for path, logs in _entries(side.path):
        if len(logs) != 1:
            why = f"{len(logs)} logs in the folder of one job: name the log of rank 0 {RANK_0}"
            side.left_out[path] = why
            continue
        try:
            log = read_log(*logs)
        except UnreadableLogError as error:
            side.left_out[logs[0]] = error.reason
            continue
        if log.status not in _COMPARED_STATUSES:
            side.left_out[log.path] = f"{log.status}: the job failed"
            continue
        with log.path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
        other, same = digests.setdefault(digest, (side, log.path))
        if other is not side:
            raise ConfigError(f"{log.path} is the same log as {same}, on the other side")
        if same != log.path:
            side.left_out[log.path] = f"a copy of {same}: the same job counts once"
        else:
            side.logs.append(log)
    if not side.logs:
        reasons = [f"{path.name}: {why}" for path, why in side.left_out.items()]
        raise ConfigError(
            f"{side.path} holds no log of a healthy training job "
            f"({'; '.join(reasons) or 'it is empty'}); {_EXPECTED}"
        )
    return side


def _entries(path: Path) -> Iterator[tuple[Path, list[Path]]]:
    """Yield each file and folder of a side, with its logs."""
    if path.is_file():
        yield path, [path]
        return
    other_ranks = {log for logs in logs_in(path) for _, log in logs[1:]}
    for entry in sorted(path.iterdir()):
        if not entry.name.startswith(".") and entry not in other_ranks:
            yield entry, logs_of(entry) if entry.is_dir() else [entry]


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


def _document(compared: Compared, answer: str) -> Document:
    """Return the document of a comparison; `answer` is that of the gate, "" without a gate."""
    a, b, figures = compared.a, compared.b, compared.comparison
    delta = b.tgs / a.tgs - 1 if a.tgs and b.tgs else None
    ends = None if figures is None else (relative(figures.ci95[0]), relative(figures.ci95[1]))
    texts = [
        f"B against A: {percent(delta)}, 95 % interval {interval(ends)}",
        f"verdict: {'none' if figures is None else compared.kind}",
        answer,
    ]
    if figures is not None:
        noise = f"job noise {fine_percent(figures.sigma)}"
        texts.append(f"{noise}, 80 % power at {size(relative(figures.mde80))}")
        texts.append(plain(sentence(figures.method)))
    texts += map(plain, compared.reasons)
    rows = tuple(
        (
            side.name,
            literal(str(path)),
            rate(score.tgs),
            significant(score.step_s),
            str(score.n_steps),
            f"{score.window[0]}-{score.window[1]}",
        )
        for side in (a, b)
        for path, score in side.scores.items()
    )
    out = bullets(
        *(
            f"{side.name}: {literal(str(path))}: {plain(why)}"
            for side in (a, b)
            for path, why in side.left_out.items()
        )
    )
    return Document(
        title=f"B against A: {b.path}",
        header=tuple(filter(None, texts)),
        sections=(
            section("Jobs", Table(columns=_JOB_COLUMNS, rows=rows)),
            *((section("Left out", Text(text="Not counted:"), out),) if out.items else ()),
        ),
    )
