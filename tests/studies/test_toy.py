"""The smallest study keeps the contract: pure, without a reference, known by its kind."""

from __future__ import annotations

import json
import math

import pytest
from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.model.result import Conclusion, TrialResult
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.studies import Ask, Question
from tests.helpers import toy
from tests.helpers.history import history, measured

TGS = {"a": 900.0, "b": 1000.0, "c": 950.0}
ONE = Cell(model_tag="m", parallelism=Parallelism.parse("DP=1"), nodelist=("node001",))
STUDY = toy.ToyStudy(cells=tuple(replace(ONE, config_tag=name) for name in TGS), repeats=2)


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
