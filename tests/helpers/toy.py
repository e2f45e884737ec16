"""The smallest study whose arms are cells: which of three is fastest, judged by nothing but means.

An example of the contract for tests, and for the author of the next study: rounds of equal trials,
a conclusion per arm, no reference. A failure on a node is the answer for its arm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.message import Message, verbatim
from pytest_xlatune.model.result import Conclusion, StudyRecord, TrialResult, Verdict, VerdictKind
from pytest_xlatune.model.text import rate
from pytest_xlatune.report.document import Document, Table, columns, section
from pytest_xlatune.report.measured_cell import MeasuredCell
from pytest_xlatune.studies import Asked, DeclaredStudy, OnNodeFailure, Policy
from pytest_xlatune.studies.cell_arms import CellArms, CellProgress
from pytest_xlatune.studies.verdicts import unmeasured, verdict_with_figures
from pytest_xlatune.sweep.registry import StudyKind


class ToyRecord(StudyRecord, frozen=True, kw_only=True):
    kind: ClassVar[str] = "toy"
    rounds: int = 0
    best: str = ""


class Toy(DeclaredStudy, frozen=True, kw_only=True):
    """What a sweep file declares: `Sweep(study=Toy(rounds=2), config_tags={...})`, a cell a tag."""

    kind: ClassVar[str] = "toy"
    rounds: int = 2

    def study(self, asked: Asked) -> ToyStudy:
        return ToyStudy(cells=tuple(asked.variants.values()), repeats=self.rounds)


class ToyWalk(CellProgress["ToyStudy"]):
    """The study's question, and what a history says to it."""

    def run_stages(self) -> None:
        arms, rounds = self.study.all_arms, range(1, self.study.repeats + 1)
        # it returns the results: another stage would be planned from them, and run below
        self.stage_results(
            [self.study.trial_of(arm, "round", block=n) for n in rounds for arm in arms]
        )

    def conclusion(self) -> Conclusion:
        verdicts = tuple(self._verdict(arm, own) for arm, own in self.by_arm.items())
        ranked = sorted((each for each in verdicts if each.tgs), key=lambda each: -(each.tgs or 0))
        rounds = self.study.repeats - len({each.block for each in self.pending})
        record = ToyRecord(rounds=rounds, best=ranked[0].arm if ranked else "")
        return Conclusion(verdicts=verdicts, record=record, complete=self.is_over)

    def _verdict(self, arm: str, own: list[TrialResult]) -> Verdict:
        found = verdict_with_figures(arm, own)
        if found.n:
            how = verbatim("mean of equal trials")
            return replace(found, kind=VerdictKind.SCREENED, method=how)
        if over := [each for each in own if each.status.is_final]:
            return replace(found, kind=VerdictKind.INVALID, reasons=(unmeasured(over),))
        return found


class ToyStudy(CellArms, frozen=True, kw_only=True):
    """So many equal trials of every cell, in rounds; an arm is named by the cell's config tag."""

    progress_class = ToyWalk
    cells: tuple[Cell, ...]
    repeats: int = 2

    @property
    def name(self) -> str:
        return "toy"

    @property
    def policy(self) -> Policy:
        return Policy(on_node_failure=OnNodeFailure.VERDICT)

    @property
    def ids(self) -> Sequence[str]:
        return [cell.config_tag for cell in self.cells]

    @property
    def outline(self) -> tuple[Message, ...]:
        return (verbatim(f"{self.repeats} rounds of {len(self.cells)} cells, one trial each"),)

    def best(self, conclusion: Conclusion) -> str:
        return conclusion.found(ToyRecord).best if conclusion.complete else ""


def document(subject: MeasuredCell) -> Document:
    """Return the arms and their means as a document of one table."""
    rows = tuple((each.arm, rate(each.tgs), str(each.n)) for each in subject.conclusion.verdicts)
    return Document(
        title=f"{subject.cell.model_tag}: toy",
        header=(f"{subject.written:%Y-%m-%d}",),
        sections=(section("Arms", Table(columns=columns("Arm", "TGS", "n"), rows=rows)),),
    )


# its entry, for `KINDS["toy"] = TOY`
TOY = StudyKind(
    f"{__name__}:ToyStudy", f"{__name__}:document", "toy", {"toy": "which of the cells is fastest"}
)
