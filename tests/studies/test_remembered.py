"""What a study says of a history is worked out once, however many tests ask (fault S14)."""

from __future__ import annotations

import random
from collections import Counter
from types import ModuleType
from typing import Any

import pytest

from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.profile import profile
from pytest_xlatune.studies import Ask, Question, engine, gate, imported, tuning, verdicts
from pytest_xlatune.studies.gate import GateStudy
from pytest_xlatune.studies.imported import ImportedStudy
from pytest_xlatune.studies.tuning_plan import TuningPlan
from tests.helpers.history import history, measured, study

CELL = Cell(model_tag="m", parallelism=Parallelism.parse("FSDP=8"))


def counted(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType | type, *names: str
) -> Counter[str]:
    """Count the calls of functions of a module, or methods of a class, from here on."""
    calls: Counter[str] = Counter()

    def counting(name: str, real: Any) -> Any:
        def call(*args: Any, **known: Any) -> Any:
            calls[name] += 1
            return real(*args, **known)

        return call

    for name in names:
        monkeypatch.setattr(module, name, counting(name, getattr(module, name)))
    return calls


def test_a_sweep_is_concluded_once_for_all_tests_that_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    results = history({"p7": 0.05}, of=study())
    calls = counted(monkeypatch, TuningPlan, "read")
    decisions = counted(monkeypatch, tuning, "decide", "conclusion")
    blocks = counted(monkeypatch, engine, "confirm")
    asked = study(loss_tolerance=0.03)  # equal studies share what was worked out
    for about in (Ask.CONFIRMED, Ask.BEST, Ask.RANKED, Ask.PROVEN):
        for at in range(25):
            question = Question(about=about, name=f"p{at}")
            asked.answer(list(results), question)  # a list of its own, as of another process
    assert asked.decide(results).due == ()
    assert calls["read"] == 1
    assert decisions == {"decide": 1, "conclusion": 1}
    assert blocks == {"confirm": 1}, "to propose and to conclude"
    looks = counted(monkeypatch, tuning, "belongs_to_wave")
    for at in range(25):
        asked.answer(results, Question(about=Ask.SCREENED, name=f"p{at}", wave="wave2"))
    assert (calls["read"], decisions["conclusion"]) == (2, 2), "and once without the blocks"
    assert looks["belongs_to_wave"] <= len(results), "each trial is looked at once for all tests"


def test_the_whole_history_is_decided_once_however_many_waves_are_asked_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waves = [f"wave{number}" for number in range(1, 7)]
    declared = [profile(f"p-{wave}", f"--xla_{wave}=1", wave=wave) for wave in waves]
    results = history({}, of=study(profiles=tuple(declared)))
    asked = study(profiles=tuple(declared), loss_tolerance=0.03)
    decisions = counted(monkeypatch, tuning, "decide")
    for wave in waves:
        for _ in range(2):
            question = Question(about=Ask.SCREENED, name=f"p-{wave}", wave=wave)
            assert asked.answer(results, question).verdict is not None
    assert decisions["decide"] == 1 + len(waves), "and once up to the end of each wave"


def test_a_gate_and_a_table_are_concluded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    new = profile("new", "--xla_new=1")
    gated = GateStudy(cell=CELL, profiles=(new,))
    history = [measured(each, 6.9 + at / 1e4) for at, each in enumerate(gated.decide([]).due)]
    calls = counted(monkeypatch, verdicts, "read")
    comparisons = counted(monkeypatch, gate, "compare_blocks")
    asked = GateStudy(cell=CELL, profiles=(new,))
    for _ in range(3):
        assert asked.decide(history).due == ()
        assert asked.decide(tuple(history)).conclusion.complete
    assert (calls, comparisons) == ({"read": 1}, {"compare_blocks": 1})
    table = ImportedStudy(cell=CELL, profiles=(new,))
    calls = counted(monkeypatch, imported, "Conclusion")
    assert table.decide([]).conclusion is table.decide(()).conclusion
    assert calls == {"Conclusion": 1}


def test_what_is_remembered_is_never_told_of_another_history() -> None:
    done = history({"p1": 0.03}, of=study(6, budget=40))
    asked = study(6, budget=40)
    cuts = [*range(0, len(done) + 1, 4), len(done)] * 3
    random.Random(7).shuffle(cuts)
    for at, cut in enumerate(cuts, start=1):
        fresh = study(6, budget=40, loss_tolerance=0.02 + at / 1e6)  # which shares nothing
        assert asked.decide(done[:cut]).conclusion == fresh.decide(done[:cut]).conclusion
        assert asked.decide(done[:cut]).due == fresh.decide(done[:cut]).due
