"""The document of the studies whose arms are cells: nodes, network, batch size, commits.

Their documents have the same parts in the same order: the answer and its error rates, the figures
of each arm, the pairs if arms ran in pairs, what to deploy, what the study can tell, and the jobs.
The only computation is that of means over scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from msgspec.structs import replace

from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.pairs import CellsRecord, PairFound
from pytest_xlatune.model.result import Conclusion, Verdict, VerdictKind
from pytest_xlatune.model.text import ABSENT, counted, interval, points, significant
from pytest_xlatune.report.deployment import recommended_patch
from pytest_xlatune.report.document import (
    Code,
    Document,
    Section,
    Table,
    Text,
    bullets,
    columns,
    drawn,
    literal,
    plain,
    section,
)
from pytest_xlatune.report.language import plainly
from pytest_xlatune.report.leaderboard import REASONS, Shown, can_tell, header, jobs, verdict_table
from pytest_xlatune.report.lines import figure, speed, words_beside
from pytest_xlatune.report.measured_cell import DeviceUse, MeasuredCell
from pytest_xlatune.report.study_plots import pair_matrix

_HOW_SURE = {
    "network": "A pair's single run proves nothing: only fresh runs, compared "
    "with other fresh runs, accuse a node or a link. ",
    "nodes": "Single runs prove nothing: only fresh runs beside controls accuse a node. ",
    "commits": "Single runs prove nothing: only fresh pairs with the commit before "
    "accuse a commit. ",
    "batch": "A first run only chooses the sizes that are run again; blocks decide. ",
}
_RATES = "How often that is wrong: docs/reference/error_rates.md."
_MOST_PAIRS = 40  # pairs in the table: the slowest ones


def cell_document(subject: MeasuredCell) -> Document:
    """Return the document of a conclusion about cells."""
    conclusion, record = subject.conclusion, subject.conclusion.found(CellsRecord)
    nodes = tuple(dict.fromkeys(name for cell in subject.cells for name in cell.nodelist))
    on_all = replace(subject, cells=(replace(subject.cell, nodelist=nodes),))
    reference, (answer, *rest) = conclusion.reference, record.summary or (None,)
    worst = (VerdictKind.SLOWER, VerdictKind.INVALID)
    accused = [verdict.arm for verdict in conclusion.verdicts if verdict.kind in worst]
    against = [f"reference: {plain(reference.arm)}, {speed(reference)}"] if reference else []
    first = [name for arm in accused for name in arm.split("+")]
    return Document(
        title=f"{subject.cell.model_tag} {subject.cell.parallelism}: {record.kind}",
        header=header(on_all, load=_sizes(subject)),
        sections=(
            section(
                "Answer",
                *([] if answer is None else [Text(text=plain(f"{sentence(answer)}."))]),
                bullets(
                    *([] if conclusion.complete else ["Not over: this report is preliminary."]),
                    *([f"Stopped: {plain(subject.stopped)}"] if subject.stopped else []),
                    *(plain(sentence(message)) for message in rest),
                    *subject.known,
                    *against,
                    _HOW_SURE.get(record.kind, "") + _RATES,
                ),
            ),
            section("Arms", _arms(subject)),
            *([_pairs(record.pairs)] if record.pairs else []),
            *_to_deploy(subject),
            can_tell(conclusion, "study"),
            jobs(subject, arms="Arm"),
        ),
        drawn=drawn("Every pair", pair_matrix(record.pairs, nodes=nodes, first=first)),
    )


def checked_alone(conclusion: Conclusion, *, sweep: str, written: datetime) -> str:
    """Return how nodes did in the earlier check of each node alone, for a document about pairs."""
    answer = plain(sentence(conclusion.facts.summary[0]))
    when = f"{written:%Y-%m-%d %H:%M %Z}".rstrip()
    return f"the nodes were checked alone, {when}, {literal(sweep)}: {answer}"


def _sizes(subject: MeasuredCell) -> str:
    """Return the batch sizes of the measured cells; "" if all are equal."""
    ran = {result.trial.cell_digest for result in subject.history}
    sizes = {cell.per_device_batch_size or 0.0 for cell in subject.cells if cell.digest in ran}
    if len(sizes) < 2:  # noqa: PLR2004 - one size is the load
        return ""
    return f"{min(sizes):g} to {max(sizes):g} sequences per device and step"


def _arms(subject: MeasuredCell) -> Table:
    """Return a row of figures for each arm, with the reference first."""
    conclusion = subject.conclusion
    reference = conclusion.reference

    def name(verdict: Verdict) -> str:
        called = conclusion.facts.shown_name(verdict.arm)
        return f"{literal(verdict.arm)} {plain(called.removeprefix(verdict.arm))}".strip()

    shown: list[Shown] = [
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
    slowest = sorted(pairs, key=lambda pair: pair.change)[:_MOST_PAIRS]
    rows = tuple(
        (literal("-".join(pair.nodes)), points(pair.change), str(pair.runs)) for pair in slowest
    )
    return section(
        "Pairs",
        Text(
            text=f"The slowest {len(rows)} of {counted(len(pairs), 'pair')}; network.json has all. "
            "A first run is compared with the median of its round, and fresh runs with the median "
            "of all first runs; those of the slowest pair with the runs next to them."
        ),
        Table(columns=columns("~Pair", ">change %", ">runs"), rows=rows),
    )


def _use_columns(subject: MeasuredCell) -> list[Shown]:
    uses = subject.uses

    def column(head: str, figure_of: Callable[[DeviceUse], float | None]) -> list[Shown]:
        figures = {arm: value for arm, use in uses.items() if (value := figure_of(use)) is not None}
        return [(head, lambda verdict: significant(figures.get(verdict.arm)))] if figures else []

    return [
        *column(">TFLOP/s", lambda use: use.tflops),
        *column(">MFU %", lambda use: use.mfu),
        *column(">compiled memory (GB)", lambda use: use.memory_gb),
    ]


def _to_deploy(subject: MeasuredCell) -> tuple[Section, ...]:
    """Return the setting that the study recommends for later sweeps, and the patch for it."""
    if not subject.conclusion.complete:
        return ()
    files = subject.conclusion.facts.files
    blocks: list[Code | Text] = [Code(text=text.strip()) for text in files.values()]
    if patch := recommended_patch(subject):
        blocks += [
            Text(text="The same as a patch, `batch.patch` beside this report, for `git apply`:"),
            Code(text=patch.rstrip("\n"), language="diff"),
        ]
    return (section("To deploy", *blocks),) if blocks else ()
