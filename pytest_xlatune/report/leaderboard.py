"""The leaderboard of a cell: what was confirmed, what was only screened, what could not be had.

Confirmed and screened profiles never share a table: the first of many single runs is first by luck
(winner's curse), and its delta does not compare with a confirmed one. The order inside a table is
the conclusion's. Nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from pytest_xlatune.cells import Cell
from pytest_xlatune.profiles import BASELINE_ID, Profile
from pytest_xlatune.report.document import (
    Block,
    Bullets,
    Column,
    Document,
    Section,
    Table,
    Text,
    literal,
    literals,
    plain,
)
from pytest_xlatune.report.figures import (
    ABSENT,
    counted,
    interval,
    points,
    rate,
    significant,
    size,
)
from pytest_xlatune.report.lines import is_pending, tally, words
from pytest_xlatune.results import (
    Action,
    Conclusion,
    Finding,
    TrialResult,
    Verdict,
    VerdictKind,
)

ALPHA = 0.05  # of a sweep; the conclusion says how much of it is spent
CONFIRMED = frozenset(
    {VerdictKind.FASTER, VerdictKind.SLOWER, VerdictKind.EQUIVALENT, VerdictKind.INCONCLUSIVE}
)

_COLUMNS = (
    Column(title="Profile", wrap=True),
    Column(title="Flags", wrap=True),
    Column(title="TGS", align="right"),
    Column(title="step (s)", align="right"),
    Column(title=f"delta % vs {BASELINE_ID}", align="right"),
    Column(title="95 %"),
    Column(title="n", align="right"),
    Column(title="verdict", wrap=True),
)
_INVALID_COLUMNS = (
    Column(title="Profile", wrap=True),
    Column(title="Flags", wrap=True),
    Column(title="reason", wrap=True),
    Column(title="evidence", wrap=True),
    Column(title="jobs", wrap=True),
)


def leaderboard(
    conclusion: Conclusion,
    *,
    cell: Cell,
    profiles: Sequence[Profile],
    history: Sequence[TrialResult],
    now: datetime,
) -> Document:
    """Return the leaderboard as a document. `now` is when it is written."""
    return Document(
        title=f"{cell.label}: leaderboard",
        header=header(conclusion, cell=cell, history=history, now=now),
        sections=(
            Section(title="What was found", blocks=(Text(text=headline(conclusion)),)),
            Section(
                title="Leaderboard",
                blocks=tables(conclusion, profiles=profiles, history=history),
            ),
            Section(title="What this sweep can tell", blocks=(sensitivity(conclusion),)),
        ),
    )


def header(
    conclusion: Conclusion, *, cell: Cell, history: Sequence[TrialResult], now: datetime
) -> tuple[str, ...]:
    """Return the bullets that say what was measured, where, how and when."""
    protocol = cell.protocol
    jobs = sum(len(each.job_ids) for each in history)
    final = sum(each.status.is_final for each in history)
    state = "complete" if conclusion.complete else "preliminary"
    length = "" if cell.max_target_length is None else f", {cell.max_target_length} tokens each"
    batch = (
        "the model's own batch size"
        if cell.per_device_batch_size is None
        else f"{cell.per_device_batch_size:g} sequences per device and step"
    )
    bullets = {
        "Written": f"{now:%Y-%m-%d %H:%M %Z}".rstrip(),
        "Model": literal(cell.model_tag),
        "Parallelism": f"{literal(str(cell.parallelism))}"
        + (f" on {counted(cell.devices, 'device')}" if cell.devices else ""),
        "Configuration": literal(cell.config_tag),
        "Nodes": literals(cell.nodelist) or "this machine",
        "Image": literal(cell.image),
        "Launcher": literal(cell.launcher),
        "Load": f"{batch}{length}, {plain(protocol.dataset_type)} data",
        "Steady state": f"tokens over time of steps {protocol.first_step} to "
        f"{protocol.last_step}, in Tokens/s/device (TGS); at least {protocol.min_steps} usable "
        "steps or no score",
        "Cell": literal(cell.digest),
        "State": f"{state}: {final} of {counted(len(history), 'trial')} over, "
        f"{counted(jobs, 'job')}; {tally(conclusion.verdicts)}",
    }
    return tuple(f"{name}: {text}" for name, text in bullets.items() if text)


def winner(conclusion: Conclusion) -> Verdict | None:
    """Return the first of the profiles that are FASTER, None where no profile is."""
    faster = (each for each in conclusion.verdicts if each.kind is VerdictKind.FASTER)
    return next(faster, None)


def headline(conclusion: Conclusion) -> str:
    """Say in a few sentences what a reader came for."""
    best = winner(conclusion)
    if best is None:
        text = f"No profile is confirmed to be faster than `{BASELINE_ID}`."
    else:
        text = (
            f"★ {literal(best.profile)} is faster than `{BASELINE_ID}` by {points(best.delta)} % "
            f"(95 % interval {interval(best.ci95)}, n = {best.n})."
        )
    if not conclusion.complete:
        text += " The sweep is not complete."
    return f"{text} {bound(conclusion)}"


def bound(conclusion: Conclusion) -> str:
    """Say what the sweep excludes."""
    if conclusion.bound is None:
        return "How much a profile may be better than the baseline (M) is not known."
    return f"No profile beats the baseline by more than {size(conclusion.bound)} (M, at 95 %)."


def sensitivity(conclusion: Conclusion) -> Bullets:
    """Say what the sweep could have seen, what it excludes, and what it spent."""
    methods = dict.fromkeys(
        plain(each.method) for each in conclusion.verdicts if each.kind in CONFIRMED and each.method
    )
    return Bullets(
        items=(
            bound(conclusion),
            f"MDE80, the smallest effect it finds with 80 % power: {size(conclusion.mde80)}.",
            f"Sigma, the noise of one job's score between jobs: {size(conclusion.sigma)}.",
            f"Alpha spent: {conclusion.alpha_spent:.3g} of {ALPHA:g}.",
            f"Method: {'; '.join(methods) or ABSENT}.",
            *map(plain, conclusion.notes),
        )
    )


def tables(
    conclusion: Conclusion,
    *,
    profiles: Sequence[Profile],
    history: Sequence[TrialResult],
    limit: tuple[int, int] | None = None,
) -> tuple[Block, ...]:
    """Return the tables that have rows. `limit` keeps so many of the top and of the bottom."""
    flags = {each.id: literal(each.settings_text) for each in profiles}
    pending = [each for each in conclusion.verdicts if is_pending(each)]
    confirmed = [
        each for each in conclusion.verdicts if each.kind in CONFIRMED and not is_pending(each)
    ]
    screened = [each for each in conclusion.verdicts if each.kind is VerdictKind.SCREENED]
    invalid = [each for each in conclusion.verdicts if each.kind is VerdictKind.INVALID]
    best = winner(conclusion)
    shown, left_out = _ends(screened, limit)
    blocks: list[Block] = [
        Table(
            title="Confirmed",
            columns=_COLUMNS,
            rows=(
                *(_row(each, flags, is_winner=each is best) for each in confirmed),
                _row(conclusion.baseline, flags, is_winner=False),
            ),
        )
    ]
    if shown:
        rows = tuple(_row(each, flags, is_winner=False) for each in shown)
        title = "Screened once: ranks, proves nothing"
        blocks.append(Table(title=title, columns=_COLUMNS, rows=rows))
    if left_out:
        blocks.append(Text(text=f"{counted(left_out, 'more profile')} between these."))
    for title, can_run in (("Dropped: cannot run here", False), ("No valid measurement", True)):
        group = [each for each in invalid if each.can_run is can_run]
        rows = tuple(_invalid_row(each, flags, history) for each in group)
        if rows:
            blocks.append(Table(title=title, columns=_INVALID_COLUMNS, rows=rows))
    if pending:
        names = literals(each.profile for each in pending)
        blocks.append(Text(text=f"Not measured yet: {names}."))
    return tuple(blocks)


def evidence_of(profile_id: str, history: Sequence[TrialResult]) -> Finding | None:
    """Return the finding that a dropped profile is dropped for, else the first with a text."""
    findings = [
        finding
        for each in history
        if each.trial.profile.id == profile_id
        for finding in each.findings
        if finding.text
    ]
    dropping = (each for each in findings if each.action is Action.DROP)
    return next(dropping, next(iter(findings), None))


def _ends(
    verdicts: Sequence[Verdict], limit: tuple[int, int] | None
) -> tuple[Sequence[Verdict], int]:
    if limit is None or len(verdicts) <= sum(limit):
        return verdicts, 0
    top, bottom = limit
    return [*verdicts[:top], *verdicts[len(verdicts) - bottom :]], len(verdicts) - sum(limit)


def _row(verdict: Verdict, flags: Mapping[str, str], *, is_winner: bool) -> tuple[str, ...]:
    is_baseline = verdict.profile == BASELINE_ID
    return (
        ("★ " if is_winner else "") + literal(verdict.profile),
        "as deployed" if is_baseline else flags.get(verdict.profile) or ABSENT,
        rate(verdict.tgs),
        significant(verdict.step_s),
        ABSENT if is_baseline else points(verdict.delta),
        ABSENT if is_baseline else interval(verdict.ci95),
        str(verdict.n),
        "baseline" if is_baseline and verdict.n else words(verdict),
    )


def _invalid_row(
    verdict: Verdict, flags: Mapping[str, str], history: Sequence[TrialResult]
) -> tuple[str, ...]:
    finding = evidence_of(verdict.profile, history)
    return (
        literal(verdict.profile),
        flags.get(verdict.profile) or ABSENT,
        "; ".join(map(plain, verdict.reasons)) or ABSENT,
        literal(finding.text) if finding else ABSENT,
        ", ".join(verdict.job_ids) or ABSENT,
    )
