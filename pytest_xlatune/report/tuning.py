"""`<MODEL_TAG>-tuning.md`: what a team deploys from, and what the next sweep need not repeat.

Every section is built from the results; where they do not carry a sentence, the document says so
instead. It must not explain what was not recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from pytest_xlatune.cells import Cell
from pytest_xlatune.profiles import Profile, shell_exports
from pytest_xlatune.report.document import (
    Block,
    Bullets,
    Code,
    Column,
    Document,
    Section,
    Table,
    Text,
    literal,
    plain,
)
from pytest_xlatune.report.figures import ABSENT, rate, without_secrets
from pytest_xlatune.report.leaderboard import (
    evidence_of,
    header,
    headline,
    sensitivity,
    tables,
    winner,
)
from pytest_xlatune.report.lines import paragraph
from pytest_xlatune.results import Conclusion, State, TrialResult, Verdict, VerdictKind

NO_ENV_ID = "baseline-no-env"  # the profile that puts every deployed flag back to its default
TOP_AND_BOTTOM = (8, 5)

_EFFECT = {
    VerdictKind.FASTER: "The deployed flags cost throughput here.",
    VerdictKind.SLOWER: "The deployed flags help here.",
    VerdictKind.EQUIVALENT: "The deployed flags make no difference that matters here.",
}


def tuning(
    conclusion: Conclusion,
    *,
    cell: Cell,
    profiles: Sequence[Profile],
    history: Sequence[TrialResult],
    now: datetime,
    evidence: Sequence[str] = (),
) -> Document:
    """Return the tuning document. `evidence` are recorded facts on why the winner wins."""
    best = winner(conclusion)
    profile = next((each for each in profiles if best and each.id == best.profile), None)
    parts: dict[str, tuple[Block, ...]] = {
        "TL;DR": (Text(text=headline(conclusion)),),
        "Inventory": tuple(_inventory(cell)),
        f"Effect of the deployed environment on {cell.parallelism}": (
            Text(text=_effect(conclusion.verdict(NO_ENV_ID))),
        ),
        "Tuning leaderboard": tables(
            conclusion, profiles=profiles, history=history, limit=TOP_AND_BOTTOM
        ),
        "What this sweep can tell": (sensitivity(conclusion),),
        "Why the winner wins": _why(best, profile, evidence),
        "Negative findings": (_negative(conclusion, history),),
        "Recommended deployment": tuple(_deployment(best, profile, cell)),
        "Appendix: jobs": (_jobs(history),),
    }
    return Document(
        title=f"{cell.model_tag}: XLA tuning, {cell.parallelism}",
        header=header(conclusion, cell=cell, history=history, now=now),
        sections=tuple(Section(title=title, blocks=blocks) for title, blocks in parts.items()),
    )


def _inventory(cell: Cell) -> Iterator[Block]:
    columns = (Column(title="Setting"), Column(title="Value", wrap=True))
    deployed = without_secrets(cell.deployed)
    for title, settings in (
        ("Deployed environment", deployed),
        ("Configuration of the cell", cell.overrides),
    ):
        if settings:
            rows = tuple((literal(name), literal(settings[name])) for name in sorted(settings))
            yield Table(title=title, columns=columns, rows=rows)
        else:
            yield Text(text=f"{title}: nothing is set.")


def _effect(verdict: Verdict | None) -> str:
    if verdict is None:
        return f"Not measured: the sweep has no profile `{NO_ENV_ID}`."
    tail = "This does not tell whether the deployed flags help here."
    return f"{paragraph(verdict)} {_EFFECT.get(verdict.kind, tail)}"


def _why(
    best: Verdict | None, profile: Profile | None, evidence: Sequence[str]
) -> tuple[Block, ...]:
    if best is None:
        return (Text(text="There is no winner to explain."),)
    expected = f" Why it was tried: {plain(profile.note)}." if profile and profile.note else ""
    if evidence:
        return (Text(text=paragraph(best) + expected), Bullets(items=tuple(map(plain, evidence))))
    nothing = "No evidence (HLO dump, trace) was recorded, so why it wins is not known."
    return (Text(text=paragraph(best) + expected), Text(text=nothing))


def _negative(conclusion: Conclusion, history: Sequence[TrialResult]) -> Block:
    slower = [paragraph(each) for each in conclusion.verdicts if each.kind is VerdictKind.SLOWER]
    dropped = []
    for each in conclusion.verdicts:
        if each.kind is VerdictKind.INVALID and not each.can_run:
            finding = evidence_of(each.profile, history)
            dropped.append(paragraph(each) + (f" {literal(finding.text)}" if finding else ""))
    if not slower and not dropped:
        return Text(text="No profile is confirmed to be slower, and none had to be dropped.")
    return Bullets(items=(*slower, *dropped))


def _deployment(best: Verdict | None, profile: Profile | None, cell: Cell) -> Iterator[Block]:
    if best is None:
        yield Text(text="Leave the deployed environment as it is.")
        return
    if profile is None:
        yield Text(text=f"The sweep no longer names the settings of {literal(best.profile)}.")
        return
    exports = shell_exports(profile.flags, profile.env)
    if exports:
        yield Text(text=f"Append to {literal(f'configs/{cell.model_tag}.env.sh')}:")
        yield Code(text=exports, language="bash")
    if profile.overrides:
        yield Text(text="Give these to the trainer:")
        yield Code(text="\n".join(f"{key}={value}" for key, value in profile.overrides.items()))
    yield Text(
        text=f"Measured on {literal(cell.label)} only. Another parallelism may turn its sign."
    )


def _jobs(history: Sequence[TrialResult]) -> Block:
    columns = (
        Column(title="Job", wrap=True),
        Column(title="Profile", wrap=True),
        Column(title="Stage"),
        Column(title="Attempt", align="right"),
        Column(title="State"),
        Column(title="TGS", align="right"),
        Column(title="Remark", wrap=True),
    )
    rows = [
        (job_id, _job_row(result, attempt, job_id))
        for result in history
        for attempt, job_id in enumerate(result.job_ids, start=1)
    ]
    if not rows:
        return Text(text="No job was submitted.")
    rows.sort(key=lambda row: _natural(row[0]))
    return Table(columns=columns, rows=tuple(row for _, row in rows))


def _job_row(result: TrialResult, attempt: int, job_id: str) -> tuple[str, ...]:
    trial = result.trial
    stage = " ".join(filter(None, (trial.stage, str(trial.block or ""))))
    is_last = attempt == len(result.job_ids)
    score = result.score if is_last else None
    return (
        plain(job_id),
        literal(trial.profile.id),
        stage,
        str(attempt),
        _state(result) if is_last else "retried",
        rate(score.tgs if score else None),
        (plain(result.reason) if is_last else "") or ABSENT,
    )


def _state(result: TrialResult) -> str:
    outcome = result.outcome
    if outcome is None:
        return str(result.status)
    if outcome.signal is not None:
        return f"{outcome.state}, signal {outcome.signal}"
    if outcome.state is State.FAILED and outcome.exit_code is not None:
        return f"{outcome.state}, exit {outcome.exit_code}"
    return str(outcome.state)


def _natural(job_id: str) -> tuple[int, int, str]:
    """Order numbers as numbers, and whatever is no number after them."""
    return (0, int(job_id), "") if job_id.isdecimal() else (1, 0, job_id)
