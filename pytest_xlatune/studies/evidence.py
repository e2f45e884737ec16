"""Why a profile is as fast as it is: one run of it with the profiler and the compiler's dump.

Profiling and dumping change the time of a step, so that such a run has no score and no other study
takes its trial for one of its own. This module must not know what is read from what it leaves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from pytest_xlatune.cells import Cell, Protocol, Stage, Trial
from pytest_xlatune.profiles import BASELINE_ID, Profile
from pytest_xlatune.records import Record, digest
from pytest_xlatune.results import (
    Conclusion,
    EvidenceResult,
    TrialResult,
    TrialStatus,
    Verdict,
    VerdictKind,
)
from pytest_xlatune.studies import History

KIND = "evidence"
PROFILER = "xplane"  # where the protocol names none
_UNREAD = {"wave": "", "note": ""}  # what may be reworded without its being another profile
_AFTER = 2  # steps behind the window: the profiler writes in the first, the second ends the run


@dataclass(frozen=True, kw_only=True)
class EvidenceStudy(Record):
    """One evidence run of one profile, the baseline included.

    Not slotted, for what is derived from the fields is computed once.
    """

    cell: Cell
    profile: Profile

    @property
    def name(self) -> str:
        """The study's word, apart for each profile: any number of them may be recorded."""
        return f"{KIND}-{digest(self.profile.to_json() | _UNREAD, length=8)}"

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """The profile, unless it is the baseline."""
        return () if self.profile.id == BASELINE_ID else (self.profile,)

    @cached_property
    def trial(self) -> Trial:
        """The trial."""
        return Trial(
            cell_digest=self.cell.digest,
            profile=self.profile,
            protocol=evidence_protocol(self.cell.protocol),
            study=self.name,
            stage=Stage.EVIDENCE,
        )

    def whole(self) -> EvidenceStudy:
        """Return itself."""
        return self

    def left(self, history: History) -> int:
        """Return how many trials are still to come."""
        return len(self.propose(history))

    def propose(self, history: History) -> tuple[Trial, ...]:
        """Return the run, if it is not over or what it left is not read yet."""
        own = [each for each in history if each.trial.id == self.trial.id]
        return () if any(_is_over(each) for each in own) else (self.trial,)

    def conclude(self, history: History) -> Conclusion:
        """Return that nothing was measured: evidence explains a verdict and is none."""
        why = "an evidence run measures nothing"
        baseline = Verdict(profile=BASELINE_ID, kind=VerdictKind.INCONCLUSIVE, reasons=(why,))
        is_over = not self.propose(history)
        return Conclusion(verdicts=(), baseline=baseline, complete=is_over, notes=(why,))


def _is_over(run: TrialResult) -> bool:
    if run.status is TrialStatus.MEASURED:
        return isinstance(run, EvidenceResult) and run.is_read
    return run.status.is_final


def evidence_protocol(protocol: Protocol) -> Protocol:
    """Return the protocol of an evidence run: long enough for its window, without evals."""
    return replace(
        protocol,
        profiler=protocol.profiler or PROFILER,
        steps=protocol.skip_first_steps + protocol.profiler_steps + _AFTER,
        first_step=0,
        min_steps=1,  # it has no window to score
        eval_interval=0,
    )
