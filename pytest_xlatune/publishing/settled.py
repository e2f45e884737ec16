"""What compiling said of a sweep's profiles, from the ledger: for a plan, and for a leaderboard.

In a plan what follows is decided anew, by the step that the campaign will take; in a leaderboard it
is what was done. Nothing is compiled here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_xlatune.campaign.jobs import LEDGER
from pytest_xlatune.cells import Trial
from pytest_xlatune.ledger import Ledger, LedgerState, ProfileCompiled, replay
from pytest_xlatune.profiles import BASELINE_ID, Profile
from pytest_xlatune.report.compiled import Row, compiled
from pytest_xlatune.report.document import Section
from pytest_xlatune.results import SETTLED, TrialResult
from pytest_xlatune.screening.step import Fate, Step, derived
from pytest_xlatune.sweep.sweep import ResolvedSweep


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreseen:
    """What compiling will settle before a sweep begins, as far as it is known now.

    Attributes:
        fates: of the profiles that were compiled already.
        said: what compiling said of them.
        unknown: ids of the profiles that will be compiled first.
        by: what compiles, and for which device.
    """

    fates: Mapping[str, Fate]
    said: tuple[ProfileCompiled, ...]
    unknown: tuple[str, ...]
    by: str

    @property
    def settled(self) -> frozenset[str]:
        """Ids of the profiles that need no run."""
        return frozenset(name for name, fate in self.fates.items() if fate.is_settled)

    @property
    def section(self) -> Section | None:
        """What is known, as a section; None where nothing is."""
        rows = [
            Row(
                profile=each.profile,
                cls=each.cls,
                sentence=each.sentence,
                follows=("not run: " if fate.is_settled else "") + fate.why,
                is_settled=fate.is_settled,
            )
            for each in self.said
            for fate in [self.fates[each.profile]]
        ]
        return compiled(rows, by=self.by) if rows else None


def foresee(resolved: ResolvedSweep, folder: Path, *, pending: Sequence[Trial]) -> Foreseen | None:
    """Return what is known before a sweep begins; None where it compiles nothing first.

    Args:
        resolved: the sweep.
        folder: of its campaign; need not exist.
        pending: the trials that the run would begin with, those of derived profiles included.

    Raises:
        ConfigError: there is no compiler for it.
        LedgerError: the ledger cannot be read.
    """
    screening = resolved.screening
    if screening is None:
        return None
    state = replay(Ledger(folder / LEDGER).refresh())
    profiles = (*resolved.sweep.profiles, *derived(pending, resolved.sweep.profiles))
    selected = {each.profile.id for each in pending}
    step = Step(resolved.compiler(screening), profiles, controls=screening.controls)
    fates = step.fates(state, alive=frozenset(selected - {BASELINE_ID}))
    return Foreseen(
        fates=fates,
        said=tuple(state.compiled[each.id] for each in profiles if each.id in fates),
        unknown=tuple(each.id for each in profiles if each.id in selected and each.id not in fates),
        by=step.by,
    )


def was_compiled(
    state: LedgerState, profiles: Sequence[Profile], history: Sequence[TrialResult]
) -> Section | None:
    """Return what compiling said and what followed; None where nothing was compiled."""
    why = {
        each.trial.profile.id: finding.text
        for each in history
        for finding in each.findings
        if finding.cls == SETTLED
    }
    run = {each.trial.profile.id for each in history if each.job_ids}
    said = [state.compiled[each.id] for each in profiles if each.id in state.compiled]
    rows = [
        Row(
            profile=each.profile,
            cls=each.cls,
            sentence=each.sentence,
            follows=_done(each.profile, why, run),
            is_settled=each.profile in why,
        )
        for each in said
    ]
    return compiled(rows, by=said[-1].by) if rows else None


def _done(profile: str, why: Mapping[str, str], run: set[str]) -> str:
    if profile in why:
        return f"not run: {why[profile]}"
    return "measured" if profile in run else "to be measured"
