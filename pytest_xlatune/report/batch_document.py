"""The document of a batch size study: the answer, every size, the setting to deploy, the jobs.

Nothing is computed here but the geometric means of what the scores themselves carry.
"""

from __future__ import annotations

from pytest_xlatune.model.result import TrialResult
from pytest_xlatune.model.text import ABSENT, fine, interval, points, significant
from pytest_xlatune.report import Subject
from pytest_xlatune.report.document import (
    Code,
    Document,
    Section,
    Table,
    Text,
    bullets,
    columns,
    literal,
    plain,
    section,
)
from pytest_xlatune.report.leaderboard import header, jobs_table
from pytest_xlatune.report.lines import figure, words

# tests/report/test_error_rates.py holds the figures to the measured table of docs/batch.md
BATCH_RATES = (
    "In simulated studies of random curves the recommended size lost 0.02 % of TGS on average, and "
    "more than 1 % in 0.0 % of them, and the best size was recommended or in the set in 99.0 % "
    "(a job's noise 0.6 %); with noise of 1.0 % and bad jobs 0.08 %, 2.0 % and 96.6 % "
    "(docs/batch.md)."
)
_WAY = "A first run only chooses the sizes that are run again; blocks decide. "


def batch(subject: Subject) -> Document:
    """Return the document of a conclusion on batch sizes, or on the values of another key."""
    conclusion = subject.conclusion
    record = conclusion.record
    said = record.said if record is not None else ()
    unfinished = "" if conclusion.complete else "The study is not over: this report is preliminary."
    stopped = f"Stopped: {plain(subject.stopped)}" if subject.stopped else ""
    return Document(
        title=f"{subject.cell.model_tag} {subject.cell.parallelism}: batch size",
        header=header(subject),
        sections=(
            section(
                "Answer",
                bullets(
                    *filter(None, [unfinished, stopped]), *map(plain, said), _WAY + BATCH_RATES
                ),
            ),
            section("Sizes", _sizes(subject)),
            *_setting(subject),
            section(
                "What this study can tell",
                bullets(
                    f"Sigma, the noise of one job's score: {fine(conclusion.noise.sigma)}.",
                    *map(plain, conclusion.notes),
                ),
            ),
            section("Jobs", jobs_table([("", subject.history, {})]) or Text(text="No job.")),
        ),
    )


def _sizes(subject: Subject) -> Table:
    own: dict[str, list[TrialResult]] = {each.arm: [] for each in subject.conclusion.verdicts}
    for each in subject.history:
        own.setdefault(each.trial.arm, []).append(each)
    record = subject.conclusion.record
    peak: float | None = getattr(record, "peak_tflops", None)
    has_memory = any(_memory(each) for each in own.values())
    titles = [
        *("~Arm", "verdict", f">{subject.conclusion.metric.head}", ">against the best %"),
        *("95 % interval", ">step (s)", ">TFLOP/s"),
        *([">MFU %"] if peak else []),
        *([">compiled memory (GB)"] if has_memory else []),
        *(">runs", "~why", "~jobs"),
    ]
    rows = tuple(
        (
            literal(each.arm),
            words(each),
            figure(each),
            points(each.delta),
            interval(each.ci95) if each.ci95 else ABSENT,
            significant(each.step_s),
            significant(_tflops(own[each.arm])),
            *([significant(_mfu(own[each.arm], peak))] if peak else []),
            *([significant(_memory(own[each.arm]))] if has_memory else []),
            str(each.n),
            "; ".join(map(plain, each.reasons)) or ABSENT,
            ", ".join(each.job_ids) or ABSENT,
        )
        for each in subject.conclusion.verdicts
    )
    return Table(columns=columns(*titles), rows=rows)


def _tflops(results: list[TrialResult]) -> float | None:
    found = [each.score.tflops for each in results if each.score and each.score.tflops]
    return sum(found) / len(found) if found else None


def _mfu(results: list[TrialResult], peak: float) -> float | None:
    found = _tflops(results)
    return None if found is None else 100 * found / peak


def _memory(results: list[TrialResult]) -> float | None:
    found = [each.score.memory_gb for each in results if each.score]
    return max((each for each in found if each is not None), default=None)


def _setting(subject: Subject) -> tuple[Section, ...]:
    record = subject.conclusion.record
    texts = () if record is None else record.files.values()
    if not subject.conclusion.complete:
        return ()
    codes: list[Code | Text] = [Code(text=text.strip()) for text in texts]
    if subject.patch:
        codes += [
            Text(text="The same as a patch, `batch.patch` beside this report, for `git apply`:"),
            Code(text=subject.patch.rstrip("\n"), language="diff"),
        ]
    return (section("Setting to deploy", *codes),) if codes else ()
