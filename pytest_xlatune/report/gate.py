"""The document of a gate: which candidates pass, which regress, which cannot be told, and why.

Nothing is computed here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from pytest_xlatune.cells import Cell
from pytest_xlatune.profiles import Profile
from pytest_xlatune.report.document import Bullets, Document, Section, Text, literal, plain
from pytest_xlatune.report.figures import size
from pytest_xlatune.report.leaderboard import header, tables
from pytest_xlatune.report.lines import paragraph
from pytest_xlatune.results import Conclusion, TrialResult, Verdict, VerdictKind

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


def outcome(verdict: Verdict) -> str:
    """Say in a word or two how a candidate stands at its gate."""
    if verdict.kind is VerdictKind.INVALID:
        return NOT_MEASURED if verdict.can_run and not verdict.n else CANNOT_RUN
    return _WORDS[verdict.kind]


def gate(
    conclusion: Conclusion,
    *,
    cell: Cell,
    profiles: Sequence[Profile],
    history: Sequence[TrialResult],
    now: datetime,
) -> Document:
    """Return the gate as a document. `now` is when it is written."""
    counts = Counter(outcome(each) for each in conclusion.verdicts)
    lines = tuple(
        f"{outcome(each)}: {literal(each.profile)}: {plain(paragraph(each))}"
        for each in conclusion.verdicts
    )
    return Document(
        title=f"{cell.label}: gate",
        header=header(conclusion, cell=cell, history=history, now=now),
        sections=(
            Section(
                title="Gate",
                blocks=(
                    Text(text=", ".join(f"{count} {word}" for word, count in counts.items())),
                    Bullets(items=lines),
                ),
            ),
            Section(title="Figures", blocks=tables(conclusion, profiles=profiles, history=history)),
            Section(
                title="What this gate can tell",
                blocks=(
                    Bullets(
                        items=(
                            f"Sigma, the noise of one job's score: {size(conclusion.sigma)}.",
                            *map(plain, conclusion.notes),
                        )
                    ),
                ),
            ),
        ),
    )
