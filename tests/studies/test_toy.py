"""The smallest study keeps the contract: pure, without a reference, known by its kind."""

from __future__ import annotations

import json
import math

import pytest
from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.result import Conclusion, TrialResult, VerdictKind
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.studies import Answered, Ask, Question
from pytest_xlatune.studies.trials import read
from tests.helpers import toy
from tests.helpers.history import arm, failing, history, measured

TGS = {"a": 900.0, "b": 1000.0, "c": 950.0}
ONE = Cell(model_tag="m", parallelism=Parallelism.parse("DP=1"), nodelist=("node001",))
STUDY = toy.ToyStudy(cells=tuple(replace(ONE, config_tag=name) for name in TGS), repeats=2)
OF_B = Question(about=Ask.CONFIRMED, name="b")


def run(trial: Trial) -> TrialResult:
    return measured(trial, math.log(TGS[trial.arm]))


def test_it_concludes_without_a_reference_and_survives_json() -> None:
    done = history(run, of=STUDY)
    part, whole = STUDY.decide(done[:4]).conclusion, STUDY.decide(done).conclusion
    assert (part.reference, part.complete, whole.complete) == (None, False, True)
    assert part.record == toy.ToyRecord(rounds=1, best="b")
    assert whole.record == toy.ToyRecord(rounds=2, best="b")
    assert whole.verdict("baseline-deployed") is None
    with pytest.raises(LedgerError, match="no reference"):
        _ = whole.baseline
    again = toy.ToyStudy.from_json(json.loads(json.dumps(STUDY.to_json())))
    assert again.decide(done[:2]).due == STUDY.decide(done[:2]).due
    assert Conclusion.from_json(json.loads(json.dumps(whole.to_json()))) == whole
    best = STUDY.answer(done, Question(about=Ask.BEST)).arm
    assert (best and best.id) == "b"


def test_what_a_node_could_not_run_is_the_answer_for_its_arm() -> None:
    lost = history(failing(run, arm("b"), why="node002 went down"), of=STUDY)
    found = STUDY.answer(lost, OF_B)
    assert found.state is Answered.UNMEASURED
    assert found.verdict is not None
    assert found.verdict.kind is VerdictKind.INVALID
    assert "node002 went down" in sentence(found.verdict.reasons[0])


def test_each_cell_has_a_window_of_its_own_and_the_study_its_reference() -> None:
    """One cell warms up for long: its trials move, those of the other stay."""
    cells = {name: replace(ONE, config_tag=name) for name in ("quick", "slow")}
    first = {"quick": 5, "slow": 8}
    own = STUDY.decide(()).arms[0].profile

    def result(name: str, number: int) -> TrialResult:
        cell = cells[name]
        trial = Trial(
            arm=name, cell_digest=cell.digest, profile=own, protocol=cell.protocol, study=toy.KIND,
            stage="round", block=number,
        )  # fmt: skip
        timings = tuple((step, 1.2 if step < first[name] else 1.0) for step in range(15))
        return measured(trial, math.log(1000.0), step_s=1.0, loss=7.0, timings=timings)

    past = read(
        [result(name, number) for number in range(1, 13) for name in cells],
        protocols={cell.digest: cell.protocol for cell in cells.values()},
        declared=dict.fromkeys(cells, own),
        study=toy.KIND,
        reference="quick",
    )
    windows = {name: past.windows[cell.digest].first_step for name, cell in cells.items()}
    assert windows == {"quick": 5, "slow": 7}  # eight steps are the least that a window keeps
    scores = [each.score for name in cells for each in past.confirms_of(name) if each.score]
    # of the slow cell the guard of each job takes the warm step that is left
    assert sorted({score.window for score in scores}) == [(5, 14), (8, 14)]
    assert (past.reference, past.reference_loss, past.foreign) == ("quick", 7.0, 0)
