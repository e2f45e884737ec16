"""A study whose arms are cells keeps the contract: pure, without a reference, known by its kind."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.model.message import sentence, verbatim
from pytest_xlatune.model.result import (
    Conclusion,
    TrialResult,
    TrialStatus,
    VerdictKind,
)
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.report.measured_cell import MeasuredCell
from pytest_xlatune.report.render import markdown
from pytest_xlatune.studies import Answered, Ask, Question, Study
from pytest_xlatune.studies.trials import read
from pytest_xlatune.sweep import registry
from tests.helpers import toy
from tests.helpers.history import measured

TGS = {"a": 900.0, "b": 1000.0, "c": 950.0}
NODES = {"a": ("node001",), "b": ("node002",), "c": ("node001",)}


def study(rounds: int = 2) -> toy.ToyStudy:
    cells = tuple(
        Cell(
            model_tag="m",
            parallelism=Parallelism.parse("DP=1"),
            config_tag=name,
            nodelist=NODES[name],
        )
        for name in TGS
    )
    return toy.ToyStudy(cells=cells, repeats=rounds)


def run(trial: Trial) -> TrialResult:
    return measured(trial, math.log(TGS[trial.arm]))


def test_its_conclusion_has_no_reference_and_a_record_of_its_own() -> None:
    done = [run(trial) for trial in study().decide(()).due]
    part, whole = study().decide(done[:4]).conclusion, study().decide(done).conclusion
    assert (part.reference, part.complete) == (None, False)
    assert part.record == toy.ToyRecord(rounds=1, best="b")
    assert whole.record == toy.ToyRecord(rounds=2, best="b")
    assert whole.complete
    assert whole.verdict("baseline-deployed") is None
    with pytest.raises(LedgerError, match="no reference"):
        _ = whole.baseline
    assert study().decide(done).profiles == ()


def test_it_answers_not_yet_then_the_verdict_and_never_of_what_it_has_not() -> None:
    done = [run(trial) for trial in study().decide(()).due]
    asked = Question(about=Ask.CONFIRMED, name="a")
    assert study().answer(done[:5], asked).state is Answered.NOT_YET
    found = study().answer(done, asked)
    assert found.state is Answered.YES
    assert found.verdict is not None
    assert (found.verdict.arm, found.verdict.n) == ("a", 2)
    assert study().answer(done, replace(asked, name="d")).state is Answered.NEVER
    assert study().answer(done, Question(about=Ask.REFERENCE)).state is Answered.NEVER
    best = study().answer(done, Question(about=Ask.BEST)).arm
    assert best is not None
    assert best.id == "b"


def test_what_a_node_could_not_run_is_the_answer_for_its_arm() -> None:
    done = [run(trial) for trial in study().decide(()).due]
    lost = [
        replace(
            each, status=TrialStatus.UNMEASURED, score=None, reason=verbatim("node002 went down")
        )
        if each.trial.arm == "b"
        else each
        for each in done
    ]
    found = study().answer(lost, Question(about=Ask.CONFIRMED, name="b"))
    assert found.state is Answered.UNMEASURED
    assert found.verdict is not None
    assert found.verdict.kind is VerdictKind.INVALID
    assert "node002 went down" in sentence(found.verdict.reasons[0])


def test_study_and_conclusion_survive_json() -> None:
    sweep = study()
    done = [run(trial) for trial in sweep.decide(()).due]
    again = toy.ToyStudy.from_json(json.loads(json.dumps(sweep.to_json())))
    assert again == sweep
    assert again.decide(done[:2]).due == sweep.decide(done[:2]).due
    concluded = sweep.decide(done).conclusion
    assert Conclusion.from_json(json.loads(json.dumps(concluded.to_json()))) == concluded


def test_the_registry_finds_it_by_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LedgerError, match="known are"):
        registry.study_of(toy.KIND, {})
    monkeypatch.setitem(registry.KINDS, toy.KIND, toy.TOY)
    sweep: Study = study()
    assert registry.study_of(sweep.name, sweep.to_json()) == sweep
    kind = registry.kind_of(sweep.name)
    assert (kind.file_name, *kind.markers) == ("toy", "toy")
    done = tuple(run(trial) for trial in sweep.decide(()).due)
    text = markdown(
        kind.document_of(
            MeasuredCell(
                conclusion=sweep.decide(done).conclusion,
                cells=sweep.cells,
                history=done,
                written_s=datetime(2026, 11, 22, tzinfo=UTC).timestamp(),
            )
        )
    )
    assert "| b" in text
    assert "1000" in text


def test_each_cell_has_a_window_of_its_own_and_the_study_its_reference() -> None:
    """One cell warms up for long: its trials move, those of the other stay."""
    cells = {name: replace(study().cells[0], config_tag=name) for name in ("quick", "slow")}
    first = {"quick": 5, "slow": 8}

    def result(arm: str, number: int) -> TrialResult:
        trial = Trial(
            arm=arm,
            cell_digest=cells[arm].digest,
            profile=study().decide(()).arms[0].profile,
            protocol=cells[arm].protocol,
            study=toy.KIND,
            stage="round",
            block=number,
        )
        timings = tuple((step, 1.2 if step < first[arm] else 1.0) for step in range(15))
        return measured(trial, math.log(1000.0), step_s=1.0, loss=7.0, timings=timings)

    past = read(
        [result(arm, number) for number in range(1, 13) for arm in cells],
        protocols={cell.digest: cell.protocol for cell in cells.values()},
        declared={arm: study().decide(()).arms[0].profile for arm in cells},
        study=toy.KIND,
        reference="quick",
    )
    windows = {arm: past.windows[cell.digest].first_step for arm, cell in cells.items()}
    assert windows == {"quick": 5, "slow": 7}  # eight steps are the least that a window keeps
    scores = [each.score for arm in cells for each in past.confirms_of(arm) if each.score]
    # of the slow cell the guard of each job takes the warm step that is left
    assert sorted({score.window for score in scores}) == [(5, 14), (8, 14)]
    assert (past.reference, past.reference_loss, past.foreign) == ("quick", 7.0, 0)
