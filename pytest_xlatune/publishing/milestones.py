"""When people are told how a sweep stands: it begins, a result is confirmed, it is half way.

The stop and the end are told by the controller, which knows when a session is over. A milestone is
crossed once in a session: what was so when the session began is no news. Nothing is sent here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_xlatune.report.figures import counted, duration
from pytest_xlatune.report.lines import paragraph, tally
from pytest_xlatune.report.stop import best_lines
from pytest_xlatune.results import Conclusion, TrialResult, VerdictKind
from pytest_xlatune.studies import Study

_CONFIRMED = frozenset({VerdictKind.FASTER, VerdictKind.SLOWER, VerdictKind.EQUIVALENT})
_TAG = "[xla-tuning]"


@dataclass(slots=True)
class Milestones:
    """Those of one study in one session, seen from the session's start."""

    study: Study
    _known: dict[str, VerdictKind] = field(default_factory=dict)
    _is_past_half: bool = True

    def begin(self, history: Sequence[TrialResult]) -> str:
        """Return the message that the session begins, "" where nothing is left to run."""
        done, left = _done(history), self.study.left(history)
        self._known = _confirmed(self.study.conclude(history))
        self._is_past_half = done >= left
        if not left:
            return ""
        cell = self.study.cell
        nodes = ",".join(cell.nodelist) or "this machine, or as the scheduler picks"
        reused = f", {counted(done, 'trial')} reused" if done else ""
        return "\n".join(
            [
                f"{_TAG} kickoff: {cell.label}",
                f"- {counted(left, 'trial')} to run{reused}",
                f"- Profiles: {len(self.study.profiles)} and the baseline",
                f"- Nodelist: {nodes}",
            ]
        )

    def landed(
        self, history: Sequence[TrialResult], conclusion: Conclusion, *, left_s: float | None
    ) -> tuple[str, ...]:
        """Return the messages that follow from a trial that has come in."""
        messages = []
        now = _confirmed(conclusion)
        news = [each for each, kind in now.items() if self._known.get(each) is not kind]
        self._known = now
        label = self.study.cell.label
        if news:
            said = [paragraph(each) for each in conclusion.verdicts if each.profile in news]
            messages.append("\n".join([f"{_TAG} {label}: confirmed", *said]))
        done = _done(history)
        total = done + self.study.left(history)
        if not self._is_past_half and 2 * done >= total:
            self._is_past_half = True
            left = f", about {duration(left_s)} left" if left_s is not None else ""
            head = f"{_TAG} half way: {label}: {done} of {counted(total, 'trial')}{left}"
            lines = [head, f"- {tally(conclusion.verdicts)}", *best_lines(conclusion)]
            messages.append("\n".join(lines))
        return tuple(messages)


def _done(history: Sequence[TrialResult]) -> int:
    return sum(each.status.is_final for each in history)


def _confirmed(conclusion: Conclusion) -> dict[str, VerdictKind]:
    return {each.profile: each.kind for each in conclusion.verdicts if each.kind in _CONFIRMED}
