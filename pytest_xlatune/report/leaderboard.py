"""The leaderboard of a cell: what was confirmed, what was only screened, what could not be had.

Confirmed and screened profiles never share a table: the first of many single runs is first by luck
(winner's curse), and its delta does not compare with a confirmed one. The order inside a table is
the conclusion's. Nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from pytest_xlatune.cells import Cell, Stage
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
from pytest_xlatune.report.ending import ending_text
from pytest_xlatune.report.figures import (
    ABSENT,
    interval,
    points,
    rate,
    significant,
    size,
)
from pytest_xlatune.report.lines import is_pending, tally, words
from pytest_xlatune.report.phrases import ENGLISH, Say
from pytest_xlatune.results import (
    SETTLED,
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

_SETTLED = "Not run: settled by compiling"
_DROPPED = "Dropped: cannot run here"
_NOT_VALID = "No valid measurement"

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
    stopped: str = "",
) -> Document:
    """Return the leaderboard as a document. `now` is when it is written.

    `stopped` is why the sweep was stopped, "" if it was not.
    """
    how = ending_text(ENGLISH, conclusion, history=history, stopped=stopped)
    found = f"{headline(conclusion)} {how}"
    return Document(
        title=f"{cell.label}: leaderboard",
        header=header(conclusion, cell=cell, history=history, now=now),
        sections=(
            Section(title="What was found", blocks=(Text(text=found),)),
            Section(
                title="Leaderboard",
                blocks=tables(conclusion, profiles=profiles, history=history),
            ),
            Section(title="What this sweep can tell", blocks=(sensitivity(conclusion),)),
        ),
    )


def header(
    conclusion: Conclusion,
    *,
    cell: Cell,
    history: Sequence[TrialResult],
    now: datetime,
    digest: str = "",
    say: Say = ENGLISH,
) -> tuple[str, ...]:
    """Return the bullets that say what was measured, where, how and when.

    `digest` is the cell's where `cell` itself is only what may be shown of it.
    """
    protocol = cell.protocol
    jobs = sum(len(each.job_ids) for each in history)
    final = sum(each.status.is_final for each in history)
    length = cell.max_target_length
    batch = cell.per_device_batch_size
    axes = literal(str(cell.parallelism))
    on = say.count(cell.devices, "device")
    texts = {
        "configuration": literal(cell.config_tag),
        "nodes": literals(cell.nodelist) or say("this-machine"),
        "image": literal(cell.image),
        "launcher": literal(cell.launcher),
    }
    return (
        say("written", text=f"{now:%Y-%m-%d %H:%M %Z}".rstrip()),
        say("model", text=literal(cell.model_tag)),
        say("parallelism-on" if cell.devices else "parallelism", axes=axes, devices=on),
        *(say(key, text=text) for key, text in texts.items() if text),
        say(
            "load",
            batch=say("load-own") if batch is None else say("load-batch", number=f"{batch:g}"),
            length="" if length is None else say("load-length", number=length),
            dataset=plain(protocol.dataset_type),
        ),
        say(
            "steady",
            first=conclusion.first_step or protocol.first_step,
            last=protocol.last_step,
            steps=protocol.steps,
            least=protocol.min_steps,
        ),
        say("cell", text=literal(digest or cell.digest)),
        say(
            "state",
            state=say("complete" if conclusion.complete else "preliminary"),
            final=final,
            trials=say.count(len(history), "trial"),
            jobs=say.count(jobs, "job"),
            tally=tally(conclusion.verdicts),
        ),
    )


def winner(conclusion: Conclusion) -> Verdict | None:
    """Return the first of the profiles that are FASTER, None where no profile is."""
    faster = (each for each in conclusion.verdicts if each.kind is VerdictKind.FASTER)
    return next(faster, None)


def headline(conclusion: Conclusion, say: Say = ENGLISH) -> str:
    """Say in a few sentences what a reader came for."""
    best = winner(conclusion)
    text = say("no-best")
    if best is not None:
        text = say(
            "best",
            profile=literal(best.profile),
            delta=points(best.delta),
            ci95=interval(best.ci95),
            n=best.n,
        )
    return f"{text} {bound(conclusion, say)}"


def bound(conclusion: Conclusion, say: Say = ENGLISH) -> str:
    """Say what the sweep excludes."""
    if conclusion.bound is None:
        return say("no-bound")
    return say("bound", bound=size(conclusion.bound))


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
    best: Verdict | None = None,
    say: Say = ENGLISH,
) -> tuple[Block, ...]:
    """Return the tables that have rows.

    `limit` keeps so many of the top and of the bottom; `best` is the sweep's winner where the
    conclusion holds a part of its verdicts.
    """
    flags = {each.id: literal(each.shown_text) for each in profiles}
    pending = [each for each in conclusion.verdicts if is_pending(each)]
    confirmed = [
        each for each in conclusion.verdicts if each.kind in CONFIRMED and not is_pending(each)
    ]
    screened = [each for each in conclusion.verdicts if each.kind is VerdictKind.SCREENED]
    invalid = [each for each in conclusion.verdicts if each.kind is VerdictKind.INVALID]
    best = best or winner(conclusion)
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
    if confirmed:
        blocks.append(Text(text=say("within-blocks")))
    if shown:
        rows = tuple(_row(each, flags, is_winner=False) for each in shown)
        title = "Screened once: ranks, proves nothing"
        blocks.append(Table(title=title, columns=_COLUMNS, rows=rows))
    if len(_waves(shown, history)) > 1:
        blocks.append(Text(text=say("own-wave")))
    if left_out:
        blocks.append(Text(text=say("more-between", profiles=say.count(left_out, "more profile"))))
    for title in (_SETTLED, _DROPPED, _NOT_VALID):
        group = [each for each in invalid if _table_of(each, history) == title]
        rows = tuple(_invalid_row(each, flags, history) for each in group)
        if rows:
            blocks.append(Table(title=title, columns=_INVALID_COLUMNS, rows=rows))
    if pending:
        names = literals(each.profile for each in pending)
        blocks.append(Text(text=say("pending", names=names)))
    return tuple(blocks)


def _waves(screened: Sequence[Verdict], history: Sequence[TrialResult]) -> set[str]:
    """Return the waves that profiles were screened in."""
    ids = {each.profile for each in screened}
    return {
        each.trial.group
        for each in history
        if each.trial.stage is Stage.SCREEN and each.trial.profile.id in ids and each.score
    }


def _table_of(verdict: Verdict, history: Sequence[TrialResult]) -> str:
    """Return the title of the table that an invalid profile stands in."""
    if verdict.can_run:
        return _NOT_VALID
    finding = evidence_of(verdict.profile, history)
    return _SETTLED if finding is not None and finding.cls == SETTLED else _DROPPED


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
