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
from pytest_xlatune.model.reason import Reason, verbatim
from pytest_xlatune.model.result import Conclusion, StudyRecord, Verdict, VerdictKind
from pytest_xlatune.model.text import rate
from pytest_xlatune.model.trial import Arm, Trial
from pytest_xlatune.report import Subject
from pytest_xlatune.report.document import Column, Document, Section, Table
from pytest_xlatune.studies import (
    NEVER,
    NOT_YET,
    Answer,
    Answered,
    Ask,
    Asked,
    History,
    LossRule,
    OnNodeFailure,
    Policy,
    Question,
)
from pytest_xlatune.studies.trials import usable
from pytest_xlatune.studies.verdicts import Common, job_ids_of, measured, named, told, unmeasured
from pytest_xlatune.sweep.registry import StudyKind

KIND = "toy"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyRecord(StudyRecord):
    """How many rounds are complete, and which arm has the largest mean."""

    kind: ClassVar[str] = "toy"
    rounds: int
    best: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Toy:
    """What a sweep file declares: `Sweep(study=Toy(rounds=2), config_tags={...})`, a cell a tag."""

    kind: ClassVar[str] = KIND
    rounds: int = 2

    def study(self, asked: Asked) -> ToyStudy:
        return ToyStudy(cells=tuple(asked.variants.values()), rounds=self.rounds)


@dataclass(frozen=True, kw_only=True)
class ToyStudy(Common):
    """So many equal trials of every cell, in rounds; an arm is named by the cell's config tag."""

    cells: tuple[Cell, ...]
    rounds: int = 2

    @property
    def name(self) -> str:
        return KIND

    @property
    def reference(self) -> str:
        return ""

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
        return tuple(trial for trial in self._trials() if trial.id not in over)

    def outline(self, history: History) -> tuple[Reason, ...]:
        return (verbatim(f"{self.rounds} rounds of {len(self.cells)} cells, one trial each"),)

    def conclude(self, history: History) -> Conclusion:
        verdicts = [self._verdict(arm, history) for arm in self.arms(history)]
        ranked = sorted((each for each in verdicts if each.tgs), key=lambda each: -(each.tgs or 0))
        pending = {trial.block for trial in self.propose(history)}
        return Conclusion(
            verdicts=tuple(verdicts),
            record=ToyRecord(
                rounds=self.rounds - len(pending), best=ranked[0].arm if ranked else ""
            ),
            complete=not pending,
        )

    def answer(self, history: History, question: Question) -> Answer:
        if question.about in (Ask.REFERENCE, Ask.SLOT, Ask.RANKED):
            return NEVER
        if question.about is not Ask.PROVEN and self.propose(history):
            return NOT_YET
        concluded = self.conclude(history)
        if question.about in (Ask.BEST, Ask.PROVEN):
            record = concluded.record
            if not isinstance(record, ToyRecord) or not concluded.complete:
                return Answer(state=Answered.YES)
            return named(record.best, self.arms(history))
        return told(concluded.verdict(question.name))

    def _trials(self) -> tuple[Trial, ...]:
        return tuple(
            Trial(
                arm=arm.id,
                cell_digest=arm.cell_digest,
                profile=arm.profile,
                protocol=cell.protocol,
                study=KIND,
                stage="round",
                block=number,
            )
            for number in range(1, self.rounds + 1)
            for arm, cell in zip(self.arms(()), self.cells, strict=True)
        )

    def _verdict(self, arm: Arm, history: History) -> Verdict:
        own = [
            each
            for each in history
            if each.trial.study == KIND and each.trial.cell_digest == arm.cell_digest
        ]
        scores = [score for each in own if (score := usable(each))]
        verdict = Verdict(arm=arm.id, kind=VerdictKind.INCONCLUSIVE, job_ids=job_ids_of(own))
        if not scores:
            final = [each for each in own if each.status.is_final]
            if not final:
                return verdict
            return Verdict(
                arm=arm.id,
                kind=VerdictKind.INVALID,
                reasons=(unmeasured(final),),
                job_ids=verdict.job_ids,
            )
        kind, method = VerdictKind.SCREENED, "mean of equal trials"
        return measured(replace(verdict, kind=kind, method=verbatim(method)), own)


def document(subject: Subject) -> Document:
    """Return the arms and their means as a document of one table."""
    rows = tuple((each.arm, rate(each.tgs), str(each.n)) for each in subject.conclusion.verdicts)
    columns = (Column(title="Arm"), Column(title="TGS"), Column(title="n"))
    return Document(
        title=f"{subject.cells[0].model_tag}: toy",
        header=(f"{subject.now:%Y-%m-%d}",),
        sections=(Section(title="Arms", blocks=(Table(columns=columns, rows=rows),)),),
    )


# its entry, for `KINDS["toy"] = TOY`
TOY = StudyKind(
    f"{__name__}:ToyStudy", f"{__name__}:document", "toy", {"toy": "which of the cells is fastest"}
)
