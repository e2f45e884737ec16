"""The smallest study whose arms are cells: which of three is fastest, judged by nothing but means.

An example of the contract for tests, and for the author of the next study: one cell a node list or
two, rounds of equal trials, a conclusion per arm, no reference. Each cell's loss is compared with
its own trials' alone. A failure on a node is the answer for its arm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.profile import BASELINE
from pytest_xlatune.model.result import Conclusion, StudyRecord, Verdict, VerdictKind
from pytest_xlatune.model.text import rate
from pytest_xlatune.model.trial import Arm, Trial
from pytest_xlatune.report import Subject
from pytest_xlatune.report.document import Document, Table, columns, section
from pytest_xlatune.studies import Asked, DeclaredStudy, History, LossRule, OnNodeFailure, Policy
from pytest_xlatune.studies.cell_arms import RankedCells, results_of, trial_of
from pytest_xlatune.studies.trials import usable
from pytest_xlatune.studies.verdicts import job_ids_of, measured, unmeasured
from pytest_xlatune.sweep.registry import StudyKind

KIND = "toy"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyRecord(StudyRecord):
    """How many rounds are complete, and which arm has the largest mean."""

    kind: ClassVar[str] = "toy"
    rounds: int = 0
    best: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Toy(DeclaredStudy):
    """What a sweep file declares: `Sweep(study=Toy(rounds=2), config_tags={...})`, a cell a tag."""

    kind: ClassVar[str] = KIND
    rounds: int = 2

    def study(self, asked: Asked) -> ToyStudy:
        return ToyStudy(cells=tuple(asked.variants.values()), repeats=self.rounds)


@dataclass(frozen=True, kw_only=True)
class ToyStudy(RankedCells):
    """So many equal trials of every cell, in rounds; an arm is named by the cell's config tag."""

    cells: tuple[Cell, ...]
    repeats: int = 2

    @property
    def name(self) -> str:
        return KIND

    @property
    def policy(self) -> Policy:
        return Policy(on_node_failure=OnNodeFailure.VERDICT, loss=LossRule.OWN_ARM)

    def arms(self, history: History) -> tuple[Arm, ...]:
        return tuple(
            Arm(id=cell.config_tag, cell_digest=cell.digest, profile=BASELINE)
            for cell in self.cells
        )

    def propose(self, history: History) -> tuple[Trial, ...]:
        over = {each.trial.id for each in history if each.status.is_final}
        planned = (
            trial_of(arm, cell, study=KIND, stage="round", block=number)
            for number in range(1, self.repeats + 1)
            for arm, cell in zip(self.arms(()), self.cells, strict=True)
        )
        return tuple(trial for trial in planned if trial.id not in over)

    def outline(self, history: History) -> tuple[str, ...]:
        return (f"{self.repeats} rounds of {len(self.cells)} cells, one trial each",)

    def conclude(self, history: History) -> Conclusion:
        verdicts = [self._verdict(arm, history) for arm in self.arms(history)]
        ranked = sorted((each for each in verdicts if each.tgs), key=lambda each: -(each.tgs or 0))
        pending = {trial.block for trial in self.propose(history)}
        best = ranked[0].arm if ranked else ""
        return Conclusion(
            verdicts=tuple(verdicts),
            record=ToyRecord(rounds=self.repeats - len(pending), best=best),
            complete=not pending,
        )

    def best(self, conclusion: Conclusion) -> str:
        return conclusion.found(ToyRecord).best if conclusion.complete else ""

    def _verdict(self, arm: Arm, history: History) -> Verdict:
        own = [each for each in results_of(self, history).values() if each.trial.arm == arm.id]
        base = Verdict(arm=arm.id, kind=VerdictKind.INCONCLUSIVE, job_ids=job_ids_of(own))
        if any(map(usable, own)):
            kind, method = VerdictKind.SCREENED, "mean of equal trials"
            return measured(replace(base, kind=kind, method=method), own)
        if over := [each for each in own if each.status.is_final]:
            return replace(base, kind=VerdictKind.INVALID, reasons=(unmeasured(over),))
        return base


def document(subject: Subject) -> Document:
    """Return the arms and their means as a document of one table."""
    rows = tuple((each.arm, rate(each.tgs), str(each.n)) for each in subject.conclusion.verdicts)
    return Document(
        title=f"{subject.cell.model_tag}: toy",
        header=(f"{subject.now:%Y-%m-%d}",),
        sections=(section("Arms", Table(columns=columns("Arm", "TGS", "n"), rows=rows)),),
    )


# its entry, for `KINDS["toy"] = TOY`
TOY = StudyKind(
    f"{__name__}:ToyStudy", f"{__name__}:document", "toy", {"toy": "which of the cells is fastest"}
)
