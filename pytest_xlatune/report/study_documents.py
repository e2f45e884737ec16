"""Make the documents of all studies but tuning; only the range of batch sizes is computed here.

No figure of an evidence run measures speed. The document of an imported table claims nothing about
how its jobs were run, because the table does not say it. The documents of studies whose arms are
cells (nodes, network, batch size, commits) have the same parts in the same order: the answer and
its error rates, the figures of each arm, the pairs if arms ran in pairs, what to deploy, how small
an effect the study can show, and the jobs.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from statistics import fmean

from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell, secrets_in, varied_fields
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import BASELINE_ID, Profile
from pytest_xlatune.model.redact import (
    command_without_secrets,
    hide,
    secrets_of,
    without_secrets,
)
from pytest_xlatune.model.result import (
    CellsRecord,
    Conclusion,
    PairFound,
    Score,
    TrialResult,
    Verdict,
    VerdictKind,
)
from pytest_xlatune.model.text import (
    ABSENT,
    counted,
    fine_percent,
    interval,
    points,
    rate,
    significant,
)
from pytest_xlatune.model.trial import LaunchSpec
from pytest_xlatune.report.document import (
    Block,
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
    JOBS,
    REASONS,
    VerdictColumn,
    can_tell,
    header,
    jobs,
    profile_columns,
    tables,
    verdict_table,
)
from pytest_xlatune.report.lines import figure, paragraph, speed, step, words_beside
from pytest_xlatune.report.measured_cell import MeasuredCell

_ANSWERS = {
    VerdictKind.FASTER: "pass",
    VerdictKind.EQUIVALENT: "pass",
    VerdictKind.SLOWER: "regression",
    VerdictKind.INCONCLUSIVE: "cannot tell",
    VerdictKind.SCREENED: "cannot tell",
}


def gate(subject: MeasuredCell) -> Document:
    """Return the document of a gate: its answer on each candidate, then the figures."""
    conclusion = subject.conclusion
    counts = Counter(map(_answer, conclusion.verdicts))
    return Document(
        title=f"{subject.cell.label}: gate",
        provenance=header(subject),
        sections=(
            section(
                "Gate",
                Text(text=", ".join(f"{count} {word}" for word, count in counts.items())),
                bullets(*(plain(paragraph(verdict)) for verdict in conclusion.verdicts)),
            ),
            *([section("Candidates", _candidates(subject))] if len(subject.cells) > 1 else []),
            section("Figures", *tables(subject)),
            can_tell(conclusion, "gate"),
        ),
    )


_FIELD_NAMES = {"code": "commit", "image": "image", "launcher": "started as"}


def _candidates(subject: MeasuredCell) -> Table:
    """Return a table of the fields in which the cells of the candidates and the baseline differ."""
    by_digest = {cell.digest: cell for cell in subject.cells}
    cell_of = {result.trial.arm: result.trial.cell_digest for result in subject.history}
    rows = []
    for arm in (BASELINE_ID, *(verdict.arm for verdict in subject.conclusion.verdicts)):
        cell = by_digest.get(cell_of.get(arm, ""), subject.cell)
        varied = [name for name in _FIELD_NAMES if name in varied_fields(subject.cells)]
        differences = (f"{_FIELD_NAMES[name]} {getattr(cell, name) or ABSENT}" for name in varied)
        rows.append((literal(arm), plain("; ".join(differences))))
    return Table(columns=columns("~Candidate", "~measured with"), rows=tuple(rows))


def _answer(verdict: Verdict) -> str:
    if verdict.kind is VerdictKind.INVALID:
        answer = "not comparable" if verdict.n else "not measured"
        return answer if verdict.can_run else "cannot run"
    return _ANSWERS[verdict.kind]


def calibration(subject: MeasuredCell) -> Document:
    """Return the document of a calibration."""
    conclusion, baseline = subject.conclusion, subject.conclusion.baseline
    measured = speed(baseline) + step(baseline, ", ")
    return Document(
        title=f"{subject.cell.label}: calibration",
        provenance=header(subject),
        sections=(
            section(
                "Noise of the cell",
                bullets(
                    f"{baseline.n} jobs as deployed: {measured}",
                    *(subject.known or (f"job noise: {fine_percent(conclusion.noise.sigma)}",)),
                    *map(plainly, conclusion.notes),
                    *map(plainly, baseline.reasons),
                ),
            ),
        ),
    )


def evidence(subject: MeasuredCell) -> Document:
    """Return the document of evidence runs, with the facts that each has shown."""
    return Document(
        title=f"{subject.cell.label}: evidence",
        header=(
            f"Written: {subject.written:%Y-%m-%d %H:%M %Z}".rstrip(),
            f"Cell: {literal(subject.cell.digest)}",
            "Profiler and dump change the time of a step: no figure here is a measurement of speed",
        ),
        sections=tuple(_evidence_section(*run) for run in subject.evidence),
    )


def _evidence_section(result: TrialResult, facts: tuple[str, ...]) -> Section:
    lines = map(plain, facts) if facts else [plainly(result.reason) or str(result.status)]
    job_ids = ", ".join(result.job_ids) or "none"
    return section(f"{result.trial.profile.id}, job {job_ids}", bullets(*lines))


def imported(subject: MeasuredCell) -> Document:
    """Return the document of an imported table, dated by its import."""
    conclusion, cell = subject.conclusion, subject.cell
    count = counted(len(subject.history), "job")
    named = profile_columns(subject)
    ranked = [verdict for verdict in conclusion.verdicts if verdict.kind is VerdictKind.SCREENED]
    unranked = [
        verdict for verdict in conclusion.verdicts if verdict.kind is not VerdictKind.SCREENED
    ]
    ranking = verdict_table(
        (*ranked, conclusion.baseline),
        *named,
        (">TGS", lambda verdict: rate(verdict.tgs)),
        (">step (s)", lambda verdict: significant(verdict.step_s)),
        (">delta % vs the control group", lambda verdict: points(verdict.delta)),
        (">runs", lambda verdict: str(verdict.n)),
        ("~compared with the noise", REASONS[1]),
        JOBS,
        title="Ranks, proves nothing",
    )
    without_figure = verdict_table(unranked, *named, REASONS, JOBS, title="No figure")
    return Document(
        title=f"{cell.label}: an imported table",
        header=(
            f"Imported: {subject.written:%Y-%m-%d %H:%M %Z}".rstrip(),
            f"Source: {plain(cell.launcher)}",
            f"Cell: {literal(cell.digest)}",
            f"State: {count}; measured elsewhere, and not in random order",
        ),
        sections=(
            section("Ranking", ranking, *([without_figure] if unranked else [])),
            section(
                "What this table can tell",
                bullets(
                    "Noise of one job's score, between jobs (sigma): "
                    f"{fine_percent(conclusion.noise.sigma)}.",
                    *map(plainly, conclusion.notes),
                ),
            ),
            jobs(subject),
        ),
    )


def listings(titled: Iterable[tuple[str, str]]) -> Iterator[Block]:
    """Yield texts to copy, each below its title."""
    for title, text in titled:
        yield Text(text=title)
        yield Code(text=text, language="bash")


def command_of(profile: Profile, spec: LaunchSpec, *, cell: Cell) -> str:
    """Return a command as a person types it, after its environment and before its files."""
    env = "".join(
        f"{name}={shlex.quote(value)} \\\n" for name, value in without_secrets(spec.env).items()
    )
    files = "".join(f"\n# {name}\n{text}" for name, text in spec.files.items())
    # in a container the deployed environment is a file, so secrets are hidden in files too
    secrets = secrets_of(spec.env) | secrets_in(cell, [profile])
    return hide(f"{env}{shlex.join(command_without_secrets(spec.argv))}{files}", secrets)


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
