"""Make the document of a study whose arms are cells: nodes, network, batch size, commits.

All such documents have the same parts in the same order: the answer and its error rates, the
figures of each arm, the pairs if arms ran in pairs, what to deploy, how small an effect the study
can show, and the jobs. This module computes only the range of the batch sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from statistics import fmean

from msgspec.structs import replace

from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.result import CellsRecord, Conclusion, PairFound, Score, Verdict
from pytest_xlatune.model.text import ABSENT, counted, interval, points, significant
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
from pytest_xlatune.report.language import plainly
from pytest_xlatune.report.leaderboard import (
    REASONS,
    VerdictColumn,
    can_tell,
    header,
    jobs,
    verdict_table,
)
from pytest_xlatune.report.lines import figure, speed, words_beside
from pytest_xlatune.report.measured_cell import MeasuredCell

_RATES = "How often such an answer is wrong: docs/reference/error_rates.md."
_MAX_PAIRS = 40  # pairs in the table, the slowest ones


def cell_document(subject: MeasuredCell) -> Document:
    """Return the document of a conclusion about cells."""
    conclusion, record = subject.conclusion, subject.conclusion.found(CellsRecord)
    nodes = tuple(dict.fromkeys(name for cell in subject.cells for name in cell.nodelist))
    on_all_nodes = replace(subject, cells=(replace(subject.cell, nodelist=nodes),))
    answer = [Text(text=plain(f"{sentence(message)}.")) for message in record.summary[:1]]
    remarks = [] if conclusion.complete else ["Not over: this report is preliminary."]
    if subject.stopped:
        remarks.append(f"Stopped: {plain(subject.stopped)}")
    remarks += [plain(sentence(message)) for message in record.summary[1:]]
    remarks += subject.known
    if (reference := conclusion.reference) is not None:
        remarks.append(f"reference: {plain(reference.arm)}, {speed(reference)}")
    remarks.append(_RATES)
    return Document(
        title=f"{subject.cell.model_tag} {subject.cell.parallelism}: {record.kind}",
        provenance=header(on_all_nodes, load=_sizes(subject)),
        sections=(
            section("Answer", *answer, bullets(*remarks)),
            section("Arms", _arms(subject)),
            *([_pairs(record.pairs)] if record.pairs else []),
            *_to_deploy(subject),
            can_tell(conclusion, "study"),
            jobs(subject, arms="Arm"),
        ),
    )


def checked_alone(conclusion: Conclusion, *, sweep: str, written: datetime) -> str:
    """Return the answer of an earlier check of each node alone, for a document about pairs."""
    answer = plain(sentence(conclusion.facts.summary[0]))
    when = f"{written:%Y-%m-%d %H:%M %Z}".rstrip()
    return f"the nodes were checked alone, {when}, {literal(sweep)}: {answer}"


def _sizes(subject: MeasuredCell) -> str:
    """Return the batch sizes of the measured cells; "" if all are equal."""
    ran = {result.trial.cell_digest for result in subject.history}
    sizes = {cell.per_device_batch_size or 0.0 for cell in subject.cells if cell.digest in ran}
    if len(sizes) < 2:  # noqa: PLR2004 - a single size is shown as that of the cell
        return ""
    return f"{min(sizes):g} to {max(sizes):g} sequences per device and step"


def _arms(subject: MeasuredCell) -> Table:
    """Return a row of figures for each arm, with the reference first."""
    conclusion = subject.conclusion
    reference = conclusion.reference

    def name(verdict: Verdict) -> str:
        remark = conclusion.facts.shown_name(verdict.arm).removeprefix(verdict.arm)
        return f"{literal(verdict.arm)} {plain(remark)}".strip()

    shown: list[VerdictColumn] = [
        ("~Arm", name),
        ("verdict", words_beside),
        (f">{conclusion.metric.head}", figure),
        (">change %", lambda verdict: points(verdict.delta)),
        ("95 % interval", lambda verdict: interval(verdict.ci95) if verdict.ci95 else ABSENT),
        (
            "~against",
            lambda verdict: ABSENT if verdict.delta is None else plainly(verdict.against) or ABSENT,
        ),
        *([] if conclusion.found(CellsRecord).pairs else _use_columns(subject)),
        (">runs", lambda verdict: str(verdict.n)),
        ("~why", REASONS[1]),
    ]
    ran = {result.trial.arm for result in subject.history}
    first = [reference] if reference and reference.arm in ran else []
    return verdict_table((*first, *conclusion.verdicts), *shown)


def _pairs(pairs: Sequence[PairFound]) -> Section:
    slowest = sorted(pairs, key=lambda pair: pair.change)[:_MAX_PAIRS]
    rows = tuple(
        (literal("-".join(pair.nodes)), points(pair.change), str(pair.runs)) for pair in slowest
    )
    return section(
        "Pairs",
        Text(
            text=f"The slowest {len(rows)} of {counted(len(pairs), 'pair')}; network.json has all. "
            "A first run is compared with the median of its round, and fresh runs with the median "
            "of all first runs. The fresh runs of the slowest pair are compared with the runs next "
            "to them."
        ),
        Table(columns=columns("~Pair", ">change %", ">runs"), rows=rows),
    )


def _use_columns(subject: MeasuredCell) -> list[VerdictColumn]:
    """Return the columns about the use of devices, except those without a figure.

    MFU is in percent of the peak that the user stated, or else what the logs print.
    """
    scores: dict[str, list[Score]] = {}
    for result in subject.history:
        if result.score is not None:
            scores.setdefault(result.trial.arm, []).append(result.score)
    peak_tflops = subject.conclusion.facts.peak_tflops

    def mfu(score: Score) -> float | None:
        return 100 * score.tflops / peak_tflops if score.tflops and peak_tflops else score.mfu

    def column(
        head: str,
        figure_of: Callable[[Score], float | None],
        typical: Callable[[list[float]], float],
    ) -> list[VerdictColumn]:
        figures = {
            arm: typical(printed)
            for arm, arm_scores in scores.items()
            if (printed := [f for score in arm_scores if (f := figure_of(score)) is not None])
        }
        return [(head, lambda verdict: significant(figures.get(verdict.arm)))] if figures else []

    return [
        *column(">TFLOP/s", lambda score: score.tflops, fmean),
        *column(">MFU %", mfu, fmean),
        *column(">compiled memory (GB)", lambda score: score.memory_gb, max),
    ]


def _to_deploy(subject: MeasuredCell) -> tuple[Section, ...]:
    """Return the setting that the study recommends for later sweeps."""
    files = subject.conclusion.facts.files if subject.conclusion.complete else {}
    blocks = [Code(text=text.strip()) for text in files.values()]
    return (section("To deploy", *blocks),) if blocks else ()
