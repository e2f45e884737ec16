"""The plan of a sweep, and the documents of gates, calibrations, evidence runs, imported tables.

Nothing is computed here: the caller decides, say, which profile needs no run. No figure of an
evidence run is a measurement of speed, and the document of an imported table claims nothing about
how its jobs were run, because the table does not tell.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.profile import BASELINE_ID, Profile
from pytest_xlatune.model.redact import hide, secrets_of, without_secrets
from pytest_xlatune.model.result import Conclusion, TrialResult, Verdict, VerdictKind
from pytest_xlatune.model.text import ABSENT, counted, percent, points, rate, significant, size
from pytest_xlatune.model.trial import LaunchSpec, Trial
from pytest_xlatune.report.document import (
    Block,
    Bullets,
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
from pytest_xlatune.report.leaderboard import header, job_rows, jobs_table, leaderboard, tables
from pytest_xlatune.report.lines import paragraph

PASS, REGRESSION, CANNOT_TELL, CANNOT_RUN, NOT_MEASURED = (
    "pass", "regression", "cannot tell", "cannot run", "not measured",
)  # fmt: skip
_WORDS = {
    VerdictKind.FASTER: PASS,
    VerdictKind.EQUIVALENT: PASS,
    VerdictKind.SLOWER: REGRESSION,
    VerdictKind.INCONCLUSIVE: CANNOT_TELL,
    VerdictKind.SCREENED: CANNOT_TELL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What the document of a study's conclusion is made of.

    Attributes:
        conclusion: of the study.
        cells: as measured, the nodes that the scheduler picked included.
        profiles: what was compared with the baseline.
        history: the results, every score in the window of all trials.
        raw: the results as the ledger has them.
        now: when, as the ledger says.
        stopped: why the sweep was stopped; "" where it was not.
        figures: of a calibration that is kept for later plans, one line each.
        evidence: each evidence run with what was read of it, one line each.
    """

    conclusion: Conclusion
    cells: tuple[Cell, ...]
    profiles: tuple[Profile, ...]
    history: tuple[TrialResult, ...]
    raw: tuple[TrialResult, ...]
    now: datetime
    stopped: str = ""
    figures: tuple[str, ...] = ()
    evidence: tuple[tuple[TrialResult, tuple[str, ...]], ...] = ()

    @property
    def header(self) -> tuple[str, ...]:
        """The bullets that tell the cell, the load and the time."""
        return header(self.conclusion, cell=self.cells[0], history=self.history, now=self.now)


def tuned(subject: Subject) -> Document:
    """Return the leaderboard of a tuning study."""
    return leaderboard(
        subject.conclusion,
        cell=subject.cells[0],
        profiles=subject.profiles,
        history=subject.history,
        now=subject.now,
        stopped=subject.stopped,
    )


def outcome(verdict: Verdict) -> str:
    """Return the gate's answer on a candidate in a word or two."""
    if verdict.kind is VerdictKind.INVALID:
        return NOT_MEASURED if verdict.can_run and not verdict.n else CANNOT_RUN
    return _WORDS[verdict.kind]


def gate(subject: Subject) -> Document:
    """Return the gate as a document."""
    conclusion = subject.conclusion
    counts = Counter(outcome(each) for each in conclusion.verdicts)
    lines = tuple(
        f"{outcome(each)}: {literal(each.arm)}: {plain(paragraph(each))}"
        for each in conclusion.verdicts
    )
    return Document(
        title=f"{subject.cells[0].label}: gate",
        header=subject.header,
        sections=(
            section(
                "Gate",
                Text(text=", ".join(f"{count} {word}" for word, count in counts.items())),
                Bullets(items=lines),
            ),
            section(
                "Figures",
                *tables(conclusion, profiles=subject.profiles, history=subject.history),
            ),
            section(
                "What this gate can tell",
                bullets(
                    f"Sigma, the noise of one job's score: {size(conclusion.noise.sigma)}.",
                    *map(plain, conclusion.notes),
                ),
            ),
        ),
    )


def calibration(subject: Subject) -> Document:
    """Return the calibration as a document."""
    conclusion = subject.conclusion
    baseline = conclusion.baseline
    reasons = map(plain, baseline.reasons)
    speed = f"{rate(baseline.tgs)} TGS, {significant(baseline.step_s)} s/step"
    return Document(
        title=f"{subject.cells[0].label}: calibration",
        header=subject.header,
        sections=(
            section(
                "Noise of the cell",
                bullets(
                    f"{baseline.n} jobs as deployed: {speed}",
                    *(subject.figures or (f"job noise: {fine(conclusion.noise.sigma)}",)),
                    *map(plain, conclusion.notes),
                    *reasons,
                ),
            ),
        ),
    )


def fine(fraction: float | None) -> str:
    """Write a noise with two decimals: 0.0061 is `0.61 %`."""
    return ABSENT if fraction is None else f"{100 * fraction:.2f} %"


def noise_figures(
    *,
    sigma: tuple[float, float, float],
    step_sd: float | None,
    lag1: float | None,
    straggler_rate: float,
    drift: float,
    steady_from: int | None,
) -> tuple[str, ...]:
    """Return the estimates of a calibration; `sigma` is the job noise and its 95 % interval."""
    level, low, high = map(fine, sigma)
    steady = (
        "unknown: fewer than 12 jobs, or no job levels off"
        if steady_from is None
        else f"step {steady_from}"
    )
    correlation = ABSENT if lag1 is None else f"{lag1:.2f}"
    return (
        f"job noise: {level} (95 % interval {low} to {high})",
        f"step noise inside a job: {fine(step_sd)}, correlation of neighbours {correlation}",
        f"slow steps: {fine(straggler_rate)} of the window",
        f"drift from the first job to the last: {percent(drift)}",
        f"steady state begins at: {steady}",
    )


def evidence(subject: Subject) -> Document:
    """Return the document of evidence runs, each with its sentences."""
    cell = subject.cells[0]
    return Document(
        title=f"{cell.label}: evidence",
        header=(
            f"Written: {subject.now:%Y-%m-%d %H:%M %Z}".rstrip(),
            f"Cell: {literal(cell.digest)}",
            "Profiler and dump change the time of a step: no figure here is a measurement of speed",
        ),
        sections=tuple(
            section(
                f"{each.trial.profile.id}, job {', '.join(each.job_ids) or 'none'}",
                Bullets(items=tuple(map(plain, said or (each.reason or str(each.status),)))),
            )
            for each, said in subject.evidence
        ),
    )


_COLUMNS = columns(
    "~Profile",
    "~Flags",
    ">TGS",
    ">step (s)",
    ">delta % vs the control group",
    ">runs",
    "~compared with the noise",
    "~jobs",
)
_NO_FIGURE = columns("~Profile", "~Flags", "~reason", "~jobs")


def imported(subject: Subject) -> Document:
    """Return the document of a table."""
    conclusion, cell, history = subject.conclusion, subject.cells[0], subject.raw
    flags = {each.id: literal(each.shown_text) for each in subject.profiles}
    ranked = [each for each in conclusion.verdicts if each.kind is VerdictKind.SCREENED]
    rest = [each for each in conclusion.verdicts if each.kind is not VerdictKind.SCREENED]
    blocks: list[Block] = [
        Table(
            title="Ranks, proves nothing",
            columns=_COLUMNS,
            rows=tuple(_row(each, flags) for each in (*ranked, conclusion.baseline)),
        )
    ]
    if rest:
        rows = tuple(
            (
                literal(each.arm),
                flags.get(each.arm) or ABSENT,
                "; ".join(map(plain, each.reasons)) or ABSENT,
                ", ".join(each.job_ids) or ABSENT,
            )
            for each in rest
        )
        blocks.append(Table(title="No figure", columns=_NO_FIGURE, rows=rows))
    figures = (
        f"Sigma, the noise of one job's score between jobs: {size(conclusion.noise.sigma)}.",
        (
            f"A single run shows a change of {size(conclusion.noise.mde80)} with 80 % power, in "
            "one comparison."
        ),
        *map(plain, conclusion.notes),
    )
    jobs = jobs_table(job_rows(history), has_cells=False)
    return Document(
        title=f"{cell.label}: an imported table",
        header=(
            f"Imported: {subject.now:%Y-%m-%d %H:%M %Z}".rstrip(),
            f"Source: {plain(cell.launcher)}",
            f"Cell: {literal(cell.digest)}",
            f"State: {counted(len(history), 'job')}; measured elsewhere, and not in random order",
        ),
        sections=(
            section("Ranking", *blocks),
            section("What this table can tell", Bullets(items=figures)),
            section("Jobs", jobs or Text(text="No job.")),
        ),
    )


def _row(verdict: Verdict, flags: dict[str, str]) -> tuple[str, ...]:
    is_baseline = verdict.arm == BASELINE_ID
    return (
        literal(verdict.arm),
        "as deployed" if is_baseline else flags.get(verdict.arm) or ABSENT,
        rate(verdict.tgs),
        significant(verdict.step_s),
        points(verdict.delta),
        str(verdict.n),
        "; ".join(map(plain, verdict.reasons)) or ABSENT,
        ", ".join(verdict.job_ids) or ABSENT,
    )


_LIMITS = (
    "The compiler does not see settings that act at run time only (NCCL variables, stream "
    "priority, command buffers), nor the choices of a real device's autotuning, nor the speed of a "
    "program."
)
_COMPILED_COLUMNS = columns(
    "~Profile", "class", "~compared with the baseline's program", "~consequence"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledRow:
    """A compiled profile: its class, the reason for it, and the consequence."""

    profile: str
    cls: str
    sentence: str
    follows: str
    is_needless: bool


def compiled(rows: Sequence[CompiledRow], *, by: str) -> Section:
    """Return the section. `by` names the compiler and its device."""
    needless = sum(each.is_needless for each in rows)
    verb = "needs" if needless == 1 else "need"
    blocks: list[Block] = [
        Text(
            text=f"By {plain(by)}: {needless} of {counted(len(rows), 'profile')} {verb} no run. "
            f"{_LIMITS}"
        ),
        Table(
            columns=_COMPILED_COLUMNS,
            rows=tuple(
                (literal(each.profile), plain(each.cls), plain(each.sentence), plain(each.follows))
                for each in rows
            ),
        ),
    ]
    return section("Compile check", *blocks)


_TRIAL_COLUMNS = columns(">#", "stage", "~trial", "~flags")


def plan(
    *,
    cell: Cell,
    trials: Sequence[Trial],
    launches: Sequence[tuple[Profile, LaunchSpec]],
    capacity: Sequence[str],
    scripts: Sequence[tuple[str, str]] = (),
) -> Document:
    """Return the plan as a document.

    Args:
        cell: the cell that the sweep measures.
        trials: the first trials, in order; their results decide which ones confirm.
        launches: the launch of each profile.
        capacity: the effects that the plan can find, one sentence each.
        scripts: title and text of submission scripts.
    """
    rows = tuple(
        (str(number), trial.stage, literal(trial.id), literal(trial.profile.shown_text))
        for number, trial in enumerate(trials, start=1)
    )
    started = tuple(block for each in launches for block in _launch(*each, cell=cell))
    written = tuple(
        block
        for title, text in scripts
        for block in (Text(text=title), Code(text=text, language="bash"))
    )
    return Document(
        title=f"{cell.label}: plan",
        header=(f"nodes: {', '.join(cell.nodelist) or 'this machine, or as given'}",),
        sections=(
            section("What it can see", Bullets(items=tuple(capacity))),
            section("Trials", Table(columns=_TRIAL_COLUMNS, rows=rows)),
            section("Commands", *started),
            *((section("Submission scripts", *written),) if written else ()),
        ),
    )


def _launch(profile: Profile, spec: LaunchSpec, *, cell: Cell) -> tuple[Block, ...]:
    env = "".join(
        f"{name}={shlex.quote(value)} \\\n" for name, value in without_secrets(spec.env).items()
    )
    files = "".join(f"\n# {name}\n{text}" for name, text in spec.files.items())
    # in a container the deployed environment is a file
    secrets = secrets_of(spec.env, cell.deployed, profile.env, profile.overrides)
    command = hide(f"{env}{shlex.join(spec.argv)}{files}", secrets)
    return (Text(text=literal(profile.id)), Code(text=command, language="bash"))
