"""The plan of a sweep, and the documents of gates, calibrations, evidence runs, imported tables.

Nothing is computed here: the caller decides, say, which profile needs no run. No figure of an
evidence run is a measurement of speed, and the document of an imported table claims nothing about
how its jobs were run, because the table does not tell.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_xlatune.model.cell import Cell, varied_fields
from pytest_xlatune.model.pairs import NetworkRecord
from pytest_xlatune.model.profile import BASELINE_ID, Profile
from pytest_xlatune.model.redact import hide, secrets_of, without_secrets
from pytest_xlatune.model.result import Verdict, VerdictKind
from pytest_xlatune.model.text import (
    ABSENT,
    counted,
    fine,
    interval,
    points,
    rate,
    significant,
    size,
)
from pytest_xlatune.model.trial import LaunchSpec, Trial
from pytest_xlatune.report import Subject
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
from pytest_xlatune.report.leaderboard import header, jobs_table, settings_by_arm, tables
from pytest_xlatune.report.lines import figure, paragraph, speed, step, words

_ANSWERS = {
    VerdictKind.FASTER: "pass",
    VerdictKind.EQUIVALENT: "pass",
    VerdictKind.SLOWER: "regression",
    VerdictKind.INCONCLUSIVE: "cannot tell",
    VerdictKind.SCREENED: "cannot tell",
}


def gate(subject: Subject) -> Document:
    """Return the gate as a document: its answer on each candidate, then the figures."""
    conclusion = subject.conclusion
    answers = [(_answer(each), each) for each in conclusion.verdicts]
    counts = Counter(answer for answer, _ in answers)
    lines = (f"{answer}: {literal(each.arm)}: {plain(paragraph(each))}" for answer, each in answers)
    return Document(
        title=f"{subject.cell.label}: gate",
        header=header(subject),
        sections=(
            section(
                "Gate",
                Text(text=", ".join(f"{count} {word}" for word, count in counts.items())),
                bullets(*lines),
            ),
            *([section("Candidates", _candidates(subject))] if len(subject.cells) > 1 else []),
            section("Figures", *tables(subject)),
            section(
                "What this gate can tell",
                bullets(
                    f"Sigma, the noise of one job's score: {fine(conclusion.noise.sigma)}.",
                    *map(plain, conclusion.notes),
                ),
            ),
        ),
    )


_NAMED = {"code": "commit", "image": "image", "launcher": "started as"}


def _candidates(subject: Subject) -> Table:
    """Say of each candidate in a cell of its own what differs from the baseline's."""
    by_digest = {each.digest: each for each in subject.cells}
    cell_of = {each.trial.arm: each.trial.cell_digest for each in subject.history}
    rows = []
    for arm in (BASELINE_ID, *(each.arm for each in subject.conclusion.verdicts)):
        cell = by_digest.get(cell_of.get(arm, ""), subject.cell)
        varied = [name for name in _NAMED if name in varied_fields(subject.cells)]
        said = (f"{_NAMED[name]} {getattr(cell, name) or ABSENT}" for name in varied)
        rows.append((literal(arm), plain("; ".join(said))))
    return Table(columns=columns("~Candidate", "~measured with"), rows=tuple(rows))


def _answer(verdict: Verdict) -> str:
    if verdict.kind is VerdictKind.INVALID:
        return "not measured" if verdict.can_run and not verdict.n else "cannot run"
    return _ANSWERS[verdict.kind]


# tests/report/test_error_rates.py holds the figures of *_RATES to the measured table of the page
# that they name, and says what to write here once that is measured anew
NETWORK_RATES = (
    "In simulated checks of 8 to 32 nodes an innocent node or link was accused in at most 0.5 % of "
    "the checks of a kind, and a slow one called healthy in at most 0.5 %; a node 5 % slower was "
    "named in 100.0 %, a link 5 % slower in 99.5 to 100.0 %, by the noise of a job "
    "(docs/network_check.md)."
)
_NETWORK_WAY = (
    "A pair's single run proves nothing: a node or link is accused by fresh runs beside others "
    "alone. "
)
_MOST_PAIRS = 40  # in the table: the slowest


def network(subject: Subject) -> Document:
    """Return the check of a network: the answer, every node, the slowest pairs, the jobs."""
    conclusion, first = subject.conclusion, subject.cell
    record = conclusion.record
    found = record if isinstance(record, NetworkRecord) else NetworkRecord()
    whole = replace(subject, cells=(replace(first, nodelist=found.nodes),))
    rows = [
        (
            literal(each.arm),
            words(each),
            figure(each),
            points(each.delta),
            interval(each.ci95) if each.ci95 else ABSENT,
            str(each.n),
            "; ".join(map(plain, each.reasons)) or ABSENT,
        )
        for each in conclusion.verdicts
    ]
    ordered = sorted(
        found.pairs, key=lambda each: each.fresh if each.fresh is not None else each.delta or 0.0
    )
    pairs = tuple(
        (literal("-".join(each.nodes)), points(each.delta), points(each.fresh), str(each.runs))
        for each in ordered[:_MOST_PAIRS]
    )
    unfinished = "" if conclusion.complete else "The check is not over: this report is preliminary."
    return Document(
        title=f"{first.label}: network",
        header=header(whole),
        sections=(
            section(
                "Answer",
                bullets(
                    *filter(None, [unfinished]),
                    *map(plain, found.said),
                    _NETWORK_WAY + NETWORK_RATES,
                ),
            ),
            section(
                "Nodes",
                Table(
                    columns=columns(
                        "~Node", "verdict", f">{conclusion.metric.head}", ">change %",
                        "95 % interval", ">runs", "~why",
                    ),
                    rows=tuple(rows),
                ),
            ),
            section(
                "Pairs",
                Text(
                    text=f"The slowest {len(pairs)} of {counted(len(found.pairs), 'pair')}; "
                    "network.json has all. A first run is held against the median of its round."
                ),
                Table(
                    columns=columns("~Pair", ">first run %", ">fresh runs %", ">runs"), rows=pairs
                ),
            ),
            section(
                "What this check can tell",
                bullets(
                    f"Sigma, the noise of one job's score: {fine(conclusion.noise.sigma)}.",
                    *map(plain, conclusion.notes),
                ),
            ),
            section(
                "Jobs", jobs_table([("", subject.history, {})]) or Text(text="No job.")
            ),
        ),
    )  # fmt: skip


NODE_RATES = (
    "In simulated checks of 4 to 128 nodes a healthy node was accused in at most 0.1 % of the "
    "checks of a kind; a node 5 % slower was found in 90.6 to 100.0 %, one 3 % slower in 30.8 to "
    "99.9 %, by the noise of a job (docs/nodes.md)."
)
_NODE_WAY = "Single runs prove nothing, so a node is accused by fresh runs beside controls alone. "


def nodes(subject: Subject) -> Document:
    """Return the check of nodes: the answer, every node, the list to deploy, the jobs."""
    conclusion, first = subject.conclusion, subject.cell
    named = tuple(dict.fromkeys(name for each in subject.cells for name in each.nodelist))
    whole = replace(subject, cells=(replace(first, nodelist=named),))
    record = conclusion.record
    rows = [
        (
            literal(each.arm),
            words(each),
            figure(each),
            points(each.delta),
            interval(each.ci95) if each.ci95 else ABSENT,
            str(each.n),
            "; ".join(map(plain, each.reasons)) or ABSENT,
            ", ".join(each.job_ids) or ABSENT,
        )
        for each in conclusion.verdicts
    ]
    median = conclusion.reference
    listed = [
        Code(text=text.strip()) for text in (record.files.values() if record is not None else ())
    ]
    unfinished = "" if conclusion.complete else "The check is not over: this report is preliminary."
    return Document(
        title=f"{first.label}: nodes",
        header=header(whole),
        sections=(
            section(
                "Answer",
                bullets(
                    *filter(None, [unfinished]),
                    *(plain(each) for each in (record.said if record is not None else ())),
                    *([f"The median node: {speed(median)}"] if median is not None else []),
                    _NODE_WAY + NODE_RATES,
                ),
            ),
            section(
                "Nodes",
                Table(
                    columns=columns(
                        "~Node", "verdict", f">{conclusion.metric.head}", ">against the median %",
                        "95 % interval", ">runs", "~why", "~jobs",
                    ),
                    rows=tuple(rows),
                ),
            ),
            *(
                [
                    section(
                        "Recommended nodes",
                        Text(text="A sweep takes them with `--xlatune-nodelist=@healthy`."),
                        *listed,
                    )
                ]
                if listed and conclusion.complete
                else []
            ),
            section(
                "What this check can tell",
                bullets(
                    f"Sigma, the noise of one job's score: {fine(conclusion.noise.sigma)}.",
                    *map(plain, conclusion.notes),
                ),
            ),
            section(
                "Jobs", jobs_table([("", subject.history, {})]) or Text(text="No job.")
            ),
        ),
    )  # fmt: skip


COMMIT_RATES = (
    "In simulated searches at most 0.3 % named a wrong commit, and at most 0.2 % named one where "
    "nothing changed; a loss of 3 % was found in 85.0 to 99.9 %, by the noise of a job. At most "
    "0.3 % of simulated tables accused a load falsely (docs/commits.md)."
)
_COMMIT_WAY = (
    "Single runs prove nothing: a commit is accused by fresh pairs with the one before it alone. "
)


def commits(subject: Subject) -> Document:
    """Return a study of commits: the answer, the commits of each load, the jobs."""
    conclusion, first = subject.conclusion, subject.cell
    record = conclusion.record
    lines = (*((conclusion.reference,) if conclusion.reference else ()), *conclusion.verdicts)
    by_load: dict[str, list[Verdict]] = {}
    if len(lines) == len(subject.cells) and conclusion.reference is None:
        for cell, verdict in zip(subject.cells, lines, strict=True):
            nodes = f", {counted(len(cell.nodelist), 'node')}" if cell.nodelist else ""
            on = f" ({', '.join(cell.nodelist)})" if cell.nodelist else ""
            by_load.setdefault(f"{cell.label}{nodes}{on}", []).append(verdict)
    else:
        by_load["Commits that were measured"] = list(lines)
    found = (each.partition(" ") for each in getattr(record, "commits", ()))
    subjects = {short: said for short, _, said in found}
    unfinished = "" if conclusion.complete else "The study is not over: this report is preliminary."
    named = tuple(dict.fromkeys(name for each in subject.cells for name in each.nodelist))
    head = replace(subject, cells=(replace(first, nodelist=named),))
    return Document(
        title=f"{first.label}: commits" if len(by_load) == 1 else "models on commits",
        header=header(head),
        sections=(
            section(
                "Answer",
                bullets(
                    *filter(None, [unfinished]),
                    *(plain(each) for each in (record.said if record is not None else ())),
                    _COMMIT_WAY + COMMIT_RATES,
                ),
            ),
            *(
                section(title, _commit_table(own, subjects, conclusion.metric.head))
                for title, own in by_load.items()
            ),
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


def _commit_table(own: Sequence[Verdict], subjects: Mapping[str, str], head: str) -> Table:
    def commit(verdict: Verdict) -> str:
        short = verdict.arm.rpartition("-")[2]
        return f"{literal(short)} {plain(subjects.get(short, ''))}".strip()

    rows = [
        (
            commit(each),
            words(each),
            figure(each),
            points(each.delta),
            interval(each.ci95) if each.ci95 else ABSENT,
            plain(each.against) or ABSENT,
            str(each.n),
            "; ".join(map(plain, each.reasons)) or ABSENT,
            ", ".join(each.job_ids) or ABSENT,
        )
        for each in own
    ]
    titles = columns(
        "~Commit", "verdict", f">{head}", ">change %", "95 % interval", "~against", ">runs",
        "~why", "~jobs",
    )  # fmt: skip
    return Table(columns=titles, rows=tuple(rows))


_HELD = {VerdictKind.EQUIVALENT: "pass", VerdictKind.SLOWER: "fail"}


def thresholds(subject: Subject) -> Document:
    """Return the verdict on each metric of a cell, and the jobs that all rest on."""
    conclusion, own = subject.conclusion, subject.conclusion.reference
    words = [_HELD.get(each.kind, "cannot tell") for each in conclusion.verdicts]
    lines = (
        f"{literal(each.arm)}: {plain('; '.join(each.reasons))}" for each in conclusion.verdicts
    )
    table = jobs_table([("", subject.history, {})])
    measured = [f"{own.n} jobs: {speed(own)}{step(own, ', ')}"] if own and own.n else []
    return Document(
        title=f"{subject.cell.label}: thresholds",
        header=header(subject),
        sections=(
            section(
                "Thresholds",
                Text(text=", ".join(f"{count} {word}" for word, count in Counter(words).items())),
                bullets(*lines),
            ),
            section(
                "Jobs",
                bullets(
                    *measured,
                    f"Sigma, the noise of one job's score: {fine(conclusion.noise.sigma)}.",
                    *map(plain, conclusion.notes),
                ),
                *([table] if table else []),
            ),
        ),
    )


def calibration(subject: Subject) -> Document:
    """Return the calibration as a document."""
    conclusion, baseline = subject.conclusion, subject.conclusion.baseline
    measured = speed(baseline) + step(baseline, ", ")
    return Document(
        title=f"{subject.cell.label}: calibration",
        header=header(subject),
        sections=(
            section(
                "Noise of the cell",
                bullets(
                    f"{baseline.n} jobs as deployed: {measured}",
                    *(subject.figures or (f"job noise: {fine(conclusion.noise.sigma)}",)),
                    *map(plain, conclusion.notes),
                    *map(plain, baseline.reasons),
                ),
            ),
        ),
    )


def evidence(subject: Subject) -> Document:
    """Return the document of evidence runs, each with its sentences."""
    return Document(
        title=f"{subject.cell.label}: evidence",
        header=(
            f"Written: {subject.now:%Y-%m-%d %H:%M %Z}".rstrip(),
            f"Cell: {literal(subject.cell.digest)}",
            "Profiler and dump change the time of a step: no figure here is a measurement of speed",
        ),
        sections=tuple(
            section(
                f"{each.trial.profile.id}, job {', '.join(each.job_ids) or 'none'}",
                bullets(*map(plain, said or (each.reason or str(each.status),))),
            )
            for each, said in subject.evidence
        ),
    )


def imported(subject: Subject) -> Document:
    """Return the document of a table; it is dated by its import."""
    conclusion, cell = subject.conclusion, subject.cell
    jobs = counted(len(subject.history), "job")
    settings = settings_by_arm(subject.profiles)
    ranked = [each for each in conclusion.verdicts if each.kind is VerdictKind.SCREENED]
    rest = [each for each in conclusion.verdicts if each.kind is not VerdictKind.SCREENED]

    def row(verdict: Verdict, *figures: str) -> tuple[str, ...]:
        return (
            literal(verdict.arm),
            settings.get(verdict.arm, ABSENT),
            *figures,
            "; ".join(map(plain, verdict.reasons)) or ABSENT,
            ", ".join(verdict.job_ids) or ABSENT,
        )

    ranking = Table(
        title="Ranks, proves nothing",
        columns=columns(
            "~Profile", "~Flags", ">TGS", ">step (s)", ">delta % vs the control group", ">runs",
            "~compared with the noise", "~jobs",
        ),
        rows=tuple(
            row(each, rate(each.tgs), significant(each.step_s), points(each.delta), str(each.n))
            for each in (*ranked, conclusion.baseline)
        ),
    )  # fmt: skip
    without = Table(
        title="No figure",
        columns=columns("~Profile", "~Flags", "~reason", "~jobs"),
        rows=tuple(map(row, rest)),
    )
    return Document(
        title=f"{cell.label}: an imported table",
        header=(
            f"Imported: {subject.now:%Y-%m-%d %H:%M %Z}".rstrip(),
            f"Source: {plain(cell.launcher)}",
            f"Cell: {literal(cell.digest)}",
            f"State: {jobs}; measured elsewhere, and not in random order",
        ),
        sections=(
            section("Ranking", ranking, *([without] if rest else [])),
            section(
                "What this table can tell",
                bullets(
                    "Sigma, the noise of one job's score between jobs: "
                    f"{fine(conclusion.noise.sigma)}.",
                    f"A single run shows a change of {size(conclusion.noise.mde80)} with 80 % "
                    "power, in one comparison.",
                    *map(plain, conclusion.notes),
                ),
            ),
            section("Jobs", jobs_table([("", subject.history, {})]) or Text(text="No job.")),
        ),
    )


_LIMITS = (
    "The compiler does not see settings that act at run time only (NCCL variables, stream "
    "priority, command buffers), nor the choices of a real device's autotuning, nor the speed of a "
    "program."
)


def compiled(rows: Sequence[tuple[str, str, str, str]], *, needless: int, by: str) -> Section:
    """Return the section on compiled profiles.

    `rows` have of each its id, its class, the reason for it and the consequence; `needless` of them
    need no run. `by` names the compiler and its device.
    """
    verb = "needs" if needless == 1 else "need"
    count = f"{needless} of {counted(len(rows), 'profile')} {verb} no run"
    titles = columns("~Profile", "class", "~compared with the baseline's program", "~consequence")
    lines = tuple((literal(name), *map(plain, texts)) for name, *texts in rows)
    return section(
        "Compile check",
        Text(text=f"By {plain(by)}: {count}. {_LIMITS}"),
        Table(columns=titles, rows=lines),
    )


def plan(
    *,
    cell: Cell,
    trials: Sequence[Trial],
    launches: Sequence[tuple[Profile, LaunchSpec]],
    capacity: Sequence[str],
    cost: Sequence[str] = (),
    measured: Collection[str] = (),
    scripts: Sequence[tuple[str, str]] = (),
) -> Document:
    """Return the plan as a document.

    `trials` are the first ones, in order: their results decide which ones confirm. `capacity` says
    which effects the plan can find, `cost` what it takes. The trials whose ids are `measured` are
    not run again. `scripts` are titles and texts for submission.
    """
    rows = tuple(
        (
            str(number),
            f"{trial.stage}, measured" if trial.id in measured else trial.stage,
            literal(trial.id),
            literal(trial.profile.shown_text),
        )
        for number, trial in enumerate(trials, start=1)
    )
    commands = [
        (literal(profile.id), _command(profile, spec, cell=cell)) for profile, spec in launches
    ]
    return Document(
        title=f"{cell.label}: plan",
        header=(f"nodes: {', '.join(cell.nodelist) or 'this machine, or as given'}",),
        sections=(
            section("What it can see", bullets(*capacity)),
            *([section("What it costs", bullets(*cost))] if cost else []),
            section("Trials", Table(columns=columns(">#", "stage", "~trial", "~flags"), rows=rows)),
            section("Commands", *_listings(commands)),
            *([section("Submission scripts", *_listings(scripts))] if scripts else []),
        ),
    )


def _listings(titled: Iterable[tuple[str, str]]) -> Iterator[Block]:
    for title, text in titled:
        yield Text(text=title)
        yield Code(text=text, language="bash")


def _command(profile: Profile, spec: LaunchSpec, *, cell: Cell) -> str:
    env = "".join(
        f"{name}={shlex.quote(value)} \\\n" for name, value in without_secrets(spec.env).items()
    )
    files = "".join(f"\n# {name}\n{text}" for name, text in spec.files.items())
    # in a container the deployed environment is a file
    secrets = secrets_of(spec.env, cell.deployed, profile.env, profile.overrides)
    return hide(f"{env}{shlex.join(spec.argv)}{files}", secrets)
