"""The leaderboard of a cell: how its sweep ended, its profiles in tables, and all of its jobs.

A winner is a profile that the statistics call FASTER, never a point estimate. "Structurally
bounded" is a claim about all measured profiles at once, by M. Confirmed and screened profiles never
share a table: the first of many single runs is first by luck (winner's curse), and its delta does
not compare with a confirmed one. The order inside a table is the conclusion's. This module computes
no delta, interval or verdict.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.profile import BASELINE_ID, Profile
from pytest_xlatune.model.redact import without_secrets
from pytest_xlatune.model.result import (
    Action,
    Conclusion,
    Finding,
    State,
    TrialResult,
    TrialStatus,
    Verdict,
    VerdictKind,
)
from pytest_xlatune.model.text import (
    ABSENT,
    interval,
    points,
    rate,
    significant,
    size,
)
from pytest_xlatune.report.document import (
    Block,
    Document,
    Table,
    Text,
    columns,
    literal,
    literals,
    plain,
    section,
)
from pytest_xlatune.report.language import ENGLISH, N_, Say
from pytest_xlatune.report.lines import ending_text, is_pending, tally, words

SCHEMA = 2  # of the JSON text
_JOB_COLUMNS = columns("~Job", "~Profile", "Stage", ">Attempt", "State", ">TGS", "~Remark")


def job_rows(
    history: Sequence[TrialResult], *, remarks: Mapping[str, str] | None = None, cell: str = ""
) -> list[tuple[str, ...]]:
    """Return a row for each attempt; its first entry is the job id, the last the cell.

    `remarks`: job id -> why it has no score, where no result gives a reason.
    """
    said = remarks or {}
    return [
        (*_job_row(result, attempt, job_id, said.get(job_id, "")), cell)
        for result in history
        for attempt, job_id in enumerate(result.job_ids, start=1)
    ]


def jobs_table(rows: Sequence[tuple[str, ...]], *, has_cells: bool) -> Table | None:
    """Return the table of some rows; None where there is none."""
    if not rows:
        return None
    ordered = sorted(rows, key=lambda row: _natural(row[0]))
    if has_cells:
        return Table(
            columns=(*_JOB_COLUMNS[:1], *columns("~Cell"), *_JOB_COLUMNS[1:]),
            rows=tuple((row[0], row[-1], *row[1:-1]) for row in ordered),
        )
    return Table(columns=_JOB_COLUMNS, rows=tuple(row[:-1] for row in ordered))


def _job_row(result: TrialResult, attempt: int, job_id: str, remark: str) -> tuple[str, ...]:
    trial = result.trial
    stage = "screen" if trial.is_screened else trial.stage
    stage = " ".join(filter(None, (stage, str(trial.block or ""))))
    is_last = attempt == len(result.job_ids)
    score = result.score if is_last else None
    if is_last:
        remark = result.reason or ("" if score else remark)
    return (
        plain(job_id),
        literal(trial.profile.id),
        stage,
        str(attempt),
        _state(result) if is_last else "retried",
        rate(score.tgs if score else None),
        plain(remark) or ABSENT,
    )


def _state(result: TrialResult) -> str:
    outcome = result.outcome
    # while an attempt runs, the outcome is still that of the one before
    if outcome is None or result.status is TrialStatus.RUNNING:
        return str(result.status)
    if outcome.signal is not None:
        return f"{outcome.state}, signal {outcome.signal}"
    if outcome.state is State.FAILED and outcome.exit_code is not None:
        return f"{outcome.state}, exit {outcome.exit_code}"
    return str(outcome.state)


def _natural(job_id: str) -> tuple[tuple[int, int, str], ...]:
    """Order numbers as numbers, those of `9990.1309` too, and all others after them."""
    parts = job_id.split(".")
    return tuple((0, int(each), "") if each.isdecimal() else (1, 0, each) for each in parts)


ALPHA = 0.05  # of a sweep; the conclusion says how much of it is spent
CONFIRMED = frozenset(
    {VerdictKind.FASTER, VerdictKind.SLOWER, VerdictKind.EQUIVALENT, VerdictKind.INCONCLUSIVE}
)

_NEEDLESS = "Not run: compiling decided them"
_DROPPED = "Dropped: cannot run here"
_NOT_VALID = "No valid measurement"

_FIGURES = columns("~Figure", "~Value")
_INVALID_COLUMNS = columns("~Profile", "~Flags", "~reason", "~evidence", "~jobs")


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
            section("What was found", Text(text=found)),
            section("Leaderboard", *tables(conclusion, profiles=profiles, history=history)),
            section("What this sweep can tell", sensitivity(conclusion)),
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
    """Return the bullets that tell the cell, the nodes, the load and the time.

    `digest` is the cell's identity where secrets are hidden in `cell`.
    """
    protocol = cell.protocol
    jobs = sum(len(each.job_ids) for each in history)
    final = sum(each.status.is_final for each in history)
    length = cell.max_target_length
    batch = cell.per_device_batch_size
    axes = literal(str(cell.parallelism))
    on = say.count(cell.devices, "{n} device", "{n} devices")
    texts = {
        N_("Configuration: {text}"): literal(cell.config_tag),
        N_("Nodes: {text}"): literals(cell.nodelist) or say("this machine"),
        N_("Image: {text}"): literal(cell.image),
        N_("Launcher: {text}"): literal(cell.launcher),
    }
    return (
        say("Written: {text}", text=f"{now:%Y-%m-%d %H:%M %Z}".rstrip()),
        say("Model: {text}", text=literal(cell.model_tag)),
        say("Parallelism: {axes} on {devices}", axes=axes, devices=on)
        if cell.devices
        else say("Parallelism: {axes}", axes=axes),
        *(say(msgid, text=text) for msgid, text in texts.items() if text),
        say(
            "Load: {batch}{length}, {dataset} data",
            batch=say("the model's own batch size")
            if batch is None
            else say("{number} sequences per device and step", number=f"{batch:g}"),
            length="" if length is None else say(", {number} tokens each", number=length),
            dataset=plain(protocol.dataset_type),
        ),
        say(
            "Steady state: tokens over time of steps {first} to {last} of {steps}, "
            "in Tokens/s/device (TGS); fewer than {least} usable steps give no score",
            first=conclusion.first_step or protocol.first_step,
            last=protocol.last_step,
            steps=protocol.steps,
            least=protocol.min_steps,
        ),
        say("Cell: {text}", text=literal(digest or cell.digest)),
        say(
            "State: {state}: {final} of {trials} over, {jobs}; {tally}",
            state=say("complete") if conclusion.complete else say("preliminary"),
            final=final,
            trials=say.count(len(history), "{n} trial", "{n} trials"),
            jobs=say.count(jobs, "{n} job", "{n} jobs"),
            tally=tally(conclusion.verdicts),
        ),
    )


def winner(conclusion: Conclusion) -> Verdict | None:
    """Return the first of the profiles that are FASTER, None where no profile is."""
    faster = (each for each in conclusion.verdicts if each.kind is VerdictKind.FASTER)
    return next(faster, None)


def headline(conclusion: Conclusion, say: Say = ENGLISH) -> str:
    """Say in two sentences which profile won and how much a better one may gain."""
    best = winner(conclusion)
    text = say("No profile is confirmed to be faster than `baseline-deployed`.")
    if best is not None:
        text = say(
            "★ {profile} is faster than `baseline-deployed` by {delta} % (95 % "
            "interval {ci95}, n = {n}).",
            profile=literal(best.arm),
            delta=points(best.delta),
            ci95=interval(best.ci95),
            n=best.n,
        )
    return f"{text} {bound(conclusion, say)}"


def bound(conclusion: Conclusion, say: Say = ENGLISH) -> str:
    """Say which gains the sweep excludes."""
    if conclusion.tuning.bound is None:
        return say(
            "The sweep cannot tell yet how much better than the baseline a profile may be (M)."
        )
    return say(
        "No profile beats the baseline by more than {bound} (M, at 95 %).",
        bound=size(conclusion.tuning.bound),
    )


def sensitivity(conclusion: Conclusion) -> Table:
    """Say which effects the sweep finds, which it excludes, and how much alpha it spent."""
    methods = dict.fromkeys(
        plain(each.method) for each in conclusion.verdicts if each.kind in CONFIRMED and each.method
    )
    rows = (
        ("M: no profile beats the baseline by more, at 95 %", size(conclusion.tuning.bound)),
        ("MDE80: the smallest effect found with 80 % power", size(conclusion.noise.mde80)),
        ("Sigma: noise of one job's score between jobs", size(conclusion.noise.sigma)),
        ("Alpha spent", f"{conclusion.alpha:.3g} of {ALPHA:g}"),
        ("Method", "; ".join(methods) or ABSENT),
        *(("Note", plain(each)) for each in conclusion.notes),
    )
    return Table(columns=_FIGURES, rows=rows)


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
    reference = conclusion.baseline.arm
    delta = f">delta % vs {reference}"
    titles = columns("~Profile", "~Flags", ">TGS", ">step (s)", delta, "95 %", ">n", "~verdict")
    blocks: list[Block] = [
        Table(
            title="Confirmed",
            columns=titles,
            rows=(
                *(_row(each, flags, reference, is_winner=each is best) for each in confirmed),
                _row(conclusion.baseline, flags, reference, is_winner=False),
            ),
        )
    ]
    if confirmed:
        blocks.append(
            say.text(
                "delta % compares jobs of the same block; TGS is the mean of all jobs of "
                "a row, so the ratio of two rows may differ from it."
            )
        )
    if shown:
        rows = tuple(_row(each, flags, reference, is_winner=False) for each in shown)
        title = "Screened once: ranks, proves nothing"
        blocks.append(Table(title=title, columns=titles, rows=rows))
    if len(_waves(shown, history)) > 1:
        blocks.append(
            say.text(
                "Each wave was screened beside baselines of its own, and delta % is the "
                "distance from the line through them. So the order of two profiles of "
                "different waves is less sure than the order within one wave."
            )
        )
    if left_out:
        blocks.append(
            Text(
                text=say.count(
                    left_out, "{n} more profile between these.", "{n} more profiles between these."
                )
            )
        )
    for title in (_NEEDLESS, _DROPPED, _NOT_VALID):
        group = [each for each in invalid if _table_of(each) == title]
        rows = tuple(_invalid_row(each, flags, history) for each in group)
        if rows:
            blocks.append(Table(title=title, columns=_INVALID_COLUMNS, rows=rows))
    if pending:
        names = literals(each.arm for each in pending)
        blocks.append(say.text("Not measured yet: {names}.", names=names))
    return tuple(blocks)


def _waves(screened: Sequence[Verdict], history: Sequence[TrialResult]) -> set[str]:
    """Return the waves that profiles were screened in."""
    ids = {each.arm for each in screened}
    return {
        each.trial.stage
        for each in history
        if each.trial.is_screened and each.trial.profile.id in ids and each.score
    }


def _table_of(verdict: Verdict) -> str:
    """Return the title of the table that lists an invalid profile."""
    if verdict.can_run:
        return _NOT_VALID
    return _NEEDLESS if verdict.not_run is not None else _DROPPED


def evidence_of(profile_id: str, history: Sequence[TrialResult]) -> Finding | None:
    """Return the finding that dropped a profile, else its first with a text."""
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


def _row(
    verdict: Verdict, flags: Mapping[str, str], reference: str, *, is_winner: bool
) -> tuple[str, ...]:
    is_reference = verdict.arm == reference
    return (
        ("★ " if is_winner else "") + literal(verdict.arm),
        "as deployed" if verdict.arm == BASELINE_ID else flags.get(verdict.arm) or ABSENT,
        rate(verdict.tgs),
        significant(verdict.step_s),
        ABSENT if is_reference else points(verdict.delta),
        ABSENT if is_reference else interval(verdict.ci95),
        str(verdict.n),
        "baseline" if is_reference and verdict.n else words(verdict),
    )


def _invalid_row(
    verdict: Verdict, flags: Mapping[str, str], history: Sequence[TrialResult]
) -> tuple[str, ...]:
    finding = evidence_of(verdict.arm, history)
    return (
        literal(verdict.arm),
        flags.get(verdict.arm) or ABSENT,
        "; ".join(map(plain, verdict.reasons)) or ABSENT,
        literal(finding.text) if finding else ABSENT,
        ", ".join(verdict.job_ids) or ABSENT,
    )


def leaderboard_json(
    conclusion: Conclusion,
    *,
    cell: Cell,
    profiles: Sequence[Profile],
    history: Sequence[TrialResult],
    now: datetime,
) -> str:
    """Return the leaderboard for programs: one JSON text with everything a conclusion rests on.

    One newline at its end. The fields:

        schema       2; raised when a field changes its meaning or goes
        written      when, ISO 8601
        cell_digest  identity of the cell
        cell         `Cell`; deployed values whose names speak of secrets are hidden
        profiles     list of `Profile`
        conclusion   `Conclusion`: reference, verdicts, alpha and the study's record, in a tuning
                     sweep finalists, bound (M), mde80, sigma; changes are fractions, +0.034 is
                     +3.4 %
        trials       list of `TrialResult`, each with its `id`; sorted by it

    The records are those of the package, field by field, as their own `to_json` writes them: absent
    values are null, not-a-number and the infinities are the strings "nan", "inf" and "-inf". Keys
    are sorted, so that two reports can be compared line by line.
    """
    trials = [{"id": each.trial.id, **shown(each).to_json()} for each in history]
    document = {
        "schema": SCHEMA,
        "written": now.isoformat(timespec="seconds"),
        "cell_digest": cell.digest,
        "cell": shown_cell(cell).to_json(),
        "profiles": [each.shown.to_json() for each in profiles],
        "conclusion": conclusion.to_json(),
        "trials": sorted(trials, key=lambda each: str(each["id"])),
    }
    text = json.dumps(document, indent=2, sort_keys=True, allow_nan=False)
    return f"{text}\n"


def shown_cell(cell: Cell) -> Cell:
    """Return the cell as it may be shown; its digest is then another."""
    return replace(
        cell, deployed=without_secrets(cell.deployed), overrides=without_secrets(cell.overrides)
    )


def shown(result: TrialResult) -> TrialResult:
    """Return the result as it may be shown; its trial's id may then be another."""
    profile = result.trial.profile
    if profile.shown == profile:
        return result
    return replace(result, trial=replace(result.trial, profile=profile.shown))
