"""Make the documents of gates, calibrations, evidence runs and imported tables; computes nothing.

No figure of an evidence run measures speed. The document of an imported table claims nothing about
how its jobs were run, because the table does not say it.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator

from pytest_xlatune.model.cell import Cell, secrets_in, varied_fields
from pytest_xlatune.model.profile import BASELINE_ID, Profile
from pytest_xlatune.model.redact import (
    command_without_secrets,
    hide,
    secrets_of,
    without_secrets,
)
from pytest_xlatune.model.result import TrialResult, Verdict, VerdictKind
from pytest_xlatune.model.text import (
    ABSENT,
    counted,
    fine_percent,
    points,
    rate,
    significant,
    size,
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
    can_tell,
    header,
    jobs,
    profile_columns,
    tables,
    verdict_table,
)
from pytest_xlatune.report.lines import paragraph, speed, step
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
                    f"A single run shows a change of {size(conclusion.noise.mde80)} with 80 % "
                    "power, in one comparison.",
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
