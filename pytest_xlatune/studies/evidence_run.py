"""Run a profile once with the profiler and the compiler's dump, to explain its speed.

Profiling and dumping change the time of a step. So such a run has no score, and no other study uses
its trial. This module must not know how the files of the run are read.
"""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.message import say
from pytest_xlatune.model.profile import BASELINE, BASELINE_ID, Profile
from pytest_xlatune.model.record import digest
from pytest_xlatune.model.result import (
    Conclusion,
    EvidenceResult,
    TrialResult,
    TrialStatus,
    Verdict,
    VerdictKind,
)
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.studies import Decision, History, Outlook, Traits
from pytest_xlatune.studies.verdicts import OneCell, deployed

KIND = "evidence"
_PROFILER = "xplane"  # the profiler if the protocol names none
# fields of a profile that do not change its run, so the name of the study ignores them
_IGNORED = {"wave": "", "note": "", "is_control": False, "origin": None}
# steps after the profiler's window: the profiler writes in the first, and the second ends the run
_STEPS_AFTER = 2


class EvidenceStudy(OneCell, frozen=True, kw_only=True, dict=True):
    """One evidence run of one profile, which may be the baseline."""

    traits: ClassVar[Traits] = Traits(about_cell=True)
    cell: Cell
    profile: Profile

    @property
    def name(self) -> str:
        """The name of the study; each profile has its own, so that one ledger can hold many."""
        return f"{KIND}-{digest(self.profile.to_json() | _IGNORED, length=8)}"

    @cached_property
    def trial(self) -> Trial:
        """The one trial of the study: long enough for the profiler, without evaluations."""
        protocol = self.cell.protocol
        return Trial(
            cell_digest=self.cell.digest,
            profile=self.profile,
            protocol=replace(
                protocol,
                profiler=protocol.profiler or _PROFILER,
                steps=protocol.skip_first_steps + protocol.profiler_steps + _STEPS_AFTER,
                first_step=0,
                min_steps=1,  # the run is not scored
                eval_interval=0,
                metric="none",
                dump=True,
            ),
            study=self.name,
            stage=KIND,
        )

    def decide(self, history: History) -> Decision:
        """Return the trial as due until the run is over and its files have been read.

        The conclusion has no verdict, because evidence explains a verdict and is none.
        """
        is_over = any(
            run.status.is_final and not _is_unread(run)
            for run in history
            if run.trial.id == self.trial.id
        )
        due = () if is_over else (self.trial,)
        other_profiles = () if self.profile.id == BASELINE_ID else (self.profile,)
        why = say("an evidence run measures nothing")
        reference = Verdict(arm=BASELINE_ID, kind=VerdictKind.INCONCLUSIVE, reasons=(why,))
        conclusion = Conclusion(verdicts=(), reference=reference, complete=not due, notes=(why,))
        return Decision(
            due=due,
            arms=tuple(deployed(self.cell, profile) for profile in (BASELINE, *other_profiles)),
            concluded=lambda: conclusion,
        )

    def outlook(self, history: History) -> Outlook:
        """Return the run if it is still to come."""
        due = self.decide(history).due
        line = say("{runs} run with profiler and dump, without a score", runs=len(due))
        return Outlook.of(due, lines=(line,))


def _is_unread(run: TrialResult) -> bool:
    """Return whether the files of a measured run have not been read."""
    is_read = isinstance(run, EvidenceResult) and run.is_read
    return run.status is TrialStatus.MEASURED and not is_read
