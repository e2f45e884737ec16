"""What a test holds in its hand: a verdict, what it means for the test, and how it reads.

    def test_single_flag(measure, profile):
        measured = measure(profile)
        assert measured.not_slower, measured.paragraph

    def test_gate(measure, profile):
        assert measure(profile).no_regression

This module knows nothing of pytest.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from pytest_xlatune.report.lines import paragraph, words
from pytest_xlatune.results import Verdict, VerdictKind
from pytest_xlatune.stats import claims
from pytest_xlatune.stats.claims import Claim


@dataclass(frozen=True, slots=True)
class Measured:
    """A profile's verdict for an assertion."""

    verdict: Verdict

    def __repr__(self) -> str:
        return f"<{self.verdict.profile}: {self.words}>"

    @property
    def kind(self) -> VerdictKind:
        """The verdict's word."""
        return self.verdict.kind

    @property
    def n(self) -> int:
        """Trials behind it."""
        return self.verdict.n

    @property
    def faster(self) -> Claim:
        """That fresh trials show it faster than the baseline; never from a single run."""
        return claims.faster(self.verdict)

    def faster_by(self, margin: float) -> Claim:
        """Claim a gain of more than `margin`; 0.02 is +2 %."""
        return claims.faster_by(self.verdict, margin)

    def not_slower_than(self, margin: float) -> Claim:
        """Claim that a loss of `margin` or more is excluded."""
        return claims.not_slower_than(self.verdict, margin)

    def within(self, margin: float) -> Claim:
        """Claim that any difference of `margin` or more is excluded."""
        return claims.within(self.verdict, margin)

    @property
    def no_regression(self) -> Claim:
        """That the gate passes, margin and floor; what cannot be told does not."""
        return claims.no_regression(self.verdict)

    @property
    def not_slower(self) -> bool:
        """Whether fresh trials do *not* show it slower; a single run shows nothing."""
        return self.kind is not VerdictKind.SLOWER

    @property
    def cannot_run(self) -> bool:
        """Whether the profile itself cannot run here: unknown flag, out of memory, NaN."""
        return self.kind is VerdictKind.INVALID and not self.verdict.can_run

    @property
    def words(self) -> str:
        """The verdict in a few words, as it stands in a table."""
        return words(self.verdict)

    @property
    def paragraph(self) -> str:
        """The report's own paragraph for this profile: the message of a failed assertion."""
        return paragraph(self.verdict)

    def properties(self) -> list[tuple[str, str]]:
        """Return what junit gets: short strings, and everything as one JSON string."""
        verdict = self.verdict
        figures = {
            "tgs": verdict.tgs and f"{verdict.tgs:.3f}",
            "delta_pct": verdict.delta is not None and f"{100 * verdict.delta:+.3f}",
            "ci95": verdict.ci95
            and f"[{100 * verdict.ci95[0]:+.3f}, {100 * verdict.ci95[1]:+.3f}]",
            "n": str(verdict.n),
            "verdict": str(verdict.kind),
            "words": self.words,
            "jobs": ",".join(verdict.job_ids),
        }
        named = [(f"xlatune.{name}", text) for name, text in figures.items() if text]
        return [*named, ("xlatune", json.dumps(verdict.to_json()))]
