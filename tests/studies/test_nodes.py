"""The node study: what it runs again, whom it accuses, and what it says when it cannot tell."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import say, sentence
from pytest_xlatune.model.result import (
    Action,
    Conclusion,
    Finding,
    Score,
    State,
    TrialResult,
    TrialStatus,
    VerdictKind,
)
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.studies import Answered, Ask, Question
from pytest_xlatune.studies.node_check import HEALTHY_FILE, Nodes, NodesRecord, NodeStudy
from pytest_xlatune.sweep.earlier import read_reference
from tests.helpers import benchmarks
from tests.helpers.answers import NOT_ACCUSED, kinds, lost

rates = benchmarks.load("node_rates")

NOISE = (0.0031, -0.0024, 0.0008, -0.0015, 0.0022, -0.0007, 0.0013, -0.0028, 0.0004, -0.0011)
CELL = Cell(
    model_tag="llama2-70b", parallelism=Parallelism.parse("FSDP=8"), protocol=Protocol(steps=15)
)
Run = Callable[[Trial, int], TrialResult]


def study_of(
    count: int, *, names: tuple[str, ...] = (), budget: int = 200, **said: object
) -> NodeStudy:
    names = names or tuple(f"node{at:03d}" for at in range(1, count + 1))
    cells = tuple(replace(CELL, nodelist=(name,)) for name in names)
    return NodeStudy(cells=cells, asked=Nodes(**said), budget=budget)  # type: ignore[arg-type]


def scored(trial: Trial, value: float, *, loss: float | None = 7.1) -> TrialResult:
    score = Score(
        value=value, tgs=math.exp(value), step_s=1.0, n_steps=10, window=(5, 14), loss=loss
    )
    return TrialResult(trial=trial, status=TrialStatus.MEASURED, score=score, job_ids=(trial.id,))


def speeds(effects: Mapping[str, float], *, loss: Mapping[str, float] | None = None) -> Run:
    """Return nodes that are so much faster or slower; the noise is by node and round."""

    def run(trial: Trial, at: int) -> TrialResult:
        del at
        number = sum(map(ord, trial.arm)) * 7 + trial.block * 3
        value = math.log(1800) + effects.get(trial.arm, 0.0) + NOISE[number % len(NOISE)]
        return scored(trial, value, loss=(loss or {}).get(trial.arm, 7.1))

    return run


def drive(study: NodeStudy, run: Run) -> tuple[Conclusion, list[TrialResult], list[int]]:
    history: list[TrialResult] = []
    waves: list[int] = []
    while trials := study.decide(history).due:
        waves.append(len(trials))
        history += [run(each, at) for at, each in enumerate(trials)]
    return study.decide(history).conclusion, history, waves


def record(conclusion: Conclusion) -> NodesRecord:
    assert isinstance(conclusion.record, NodesRecord)
    return conclusion.record


def test_healthy_nodes_are_run_once_and_recommended() -> None:
    concluded, _, waves = drive(study_of(8), speeds({}))
    assert waves == [8]
    assert set(kinds(concluded).values()) == {NOT_ACCUSED}
    assert record(concluded).healthy == tuple(f"node{at:03d}" for at in range(1, 9))
    assert record(concluded).files[HEALTHY_FILE].splitlines()[-1].startswith("node001,node002,")
    assert all(each.ci95 and each.ci95[0] < 0 < each.ci95[1] for each in concluded.verdicts)


@pytest.mark.parametrize(
    ("effect", "kind"),
    [
        (-0.30, VerdictKind.SLOWER),
        (-0.08, VerdictKind.SLOWER),
        (-0.035, VerdictKind.SLOWER),
        (-0.012, VerdictKind.SCREENED),
    ],
)
@pytest.mark.parametrize("count", [4, 12])
def test_a_slow_node_is_run_again_beside_controls(
    count: int, effect: float, kind: VerdictKind
) -> None:
    concluded, history, waves = drive(study_of(count), speeds({"node002": effect}))
    found = concluded.verdict("node002")
    assert found is not None
    assert found.kind is kind
    assert set(kinds(concluded).values()) <= {str(kind), NOT_ACCUSED}
    if kind is VerdictKind.SLOWER:
        assert sentence(found.reasons[0]).startswith("a loss of "), found.reasons
        assert "-" not in sentence(found.reasons[0]), "a loss is written without a sign"
    if "node002" in record(concluded).suspects:
        assert len(waves) == 5
        assert found.n == 5
        assert found.ci95 is not None
        assert found.ci95[0] < math.expm1(effect) < found.ci95[1]
    assert ("node002" in record(concluded).healthy) is (kind is VerdictKind.SCREENED)
    assert len({each.trial.id for each in history}) == len(history)


def test_one_bad_run_accuses_no_one() -> None:
    steady = speeds({})

    def run(trial: Trial, at: int) -> TrialResult:
        found = steady(trial, at)
        is_bad = trial.arm == "node003" and not trial.block
        return scored(trial, found.score.value - 0.06) if is_bad and found.score else found

    concluded, _, waves = drive(study_of(8), run)
    assert len(waves) == 5
    assert set(kinds(concluded).values()) == {NOT_ACCUSED}


@pytest.mark.parametrize(
    "cls", [FailureClass.GPU_ECC, FailureClass.HANG_INIT, FailureClass.OOM_GPU]
)
def test_a_node_that_cannot_run_is_unhealthy_and_the_others_are_judged(cls: FailureClass) -> None:
    steady = speeds({"node004": -0.10})

    def run(trial: Trial, at: int) -> TrialResult:
        return lost(trial, cls) if trial.arm == "node001" else steady(trial, at)

    concluded, _, _ = drive(study_of(6), run)
    said = kinds(concluded)
    assert said.pop("node001") == "INVALID"
    assert said.pop("node004") == "SLOWER"
    assert set(said.values()) == {NOT_ACCUSED}
    unhealthy = concluded.verdict("node001")
    assert unhealthy is not None
    assert cls.meaning in sentence(unhealthy.reasons[0])
    assert concluded.verdicts[0] == unhealthy, "the worst stands first"


def test_a_suspect_that_dies_in_a_round_is_unhealthy_and_not_run_again() -> None:
    steady = speeds({"node002": -0.10, "node005": -0.10})

    def run(trial: Trial, at: int) -> TrialResult:
        is_dead = trial.arm == "node002" and trial.block == 2
        return lost(trial, FailureClass.NODE_FAIL) if is_dead else steady(trial, at)

    concluded, history, _ = drive(study_of(12), run)
    assert kinds(concluded)["node002"] == "INVALID"
    assert kinds(concluded)["node005"] == "SLOWER"
    assert max(each.trial.block for each in history if each.trial.arm == "node002") == 2


@pytest.mark.parametrize(
    ("cls", "state"),
    [(FailureClass.CANCELLED, State.CANCELLED), (FailureClass.HUB, State.FAILED)],
)
def test_what_is_not_the_nodes_doing_accuses_no_node(cls: FailureClass, state: State) -> None:
    steady = speeds({})

    def run(trial: Trial, at: int) -> TrialResult:
        return lost(trial, cls, state=state) if trial.arm == "node001" else steady(trial, at)

    concluded, _, _ = drive(study_of(6), run)
    assert kinds(concluded)["node001"] == "INCONCLUSIVE"
    assert "node001" not in record(concluded).healthy


def test_where_most_nodes_fail_none_is_accused() -> None:
    steady = speeds({})

    def run(trial: Trial, at: int) -> TrialResult:
        is_lost = trial.arm in ("node001", "node002", "node003", "node004")
        return lost(trial, FailureClass.CONFIG_ERROR) if is_lost else steady(trial, at)

    concluded, _, _ = drive(study_of(6), run)
    assert set(kinds(concluded).values()) == {"INCONCLUSIVE"}
    assert record(concluded).healthy == ()
    assert "what the nodes share" in sentence(concluded.notes[0])


def test_a_node_of_another_loss_computes_something_else() -> None:
    concluded, _, _ = drive(study_of(6), speeds({}, loss={"node006": 9.9}))
    said = kinds(concluded)
    assert [each.arm for each in concluded.verdicts if not each.can_run] == ["node006"], "it fails"
    assert said.pop("node006") == "INVALID"
    assert set(said.values()) == {NOT_ACCUSED}


def told(result: TrialResult, cls: FailureClass, text: str, *, by: str = "") -> TrialResult:
    """Return a result with what the site's command told of its node."""
    found = Finding(cls=cls, action=Action.NONE, text=text, source=by or result.trial.arm)
    return replace(result, findings=(*result.findings, found))


@pytest.mark.parametrize("block", [0, 1])
@pytest.mark.parametrize("effect", [0.0, -0.10])
def test_a_hard_error_in_its_own_log_makes_a_node_unhealthy(effect: float, block: int) -> None:
    steady = speeds({"node002": effect, "node005": -0.10})

    def run(trial: Trial, at: int) -> TrialResult:
        found = steady(trial, at)
        is_told = trial.arm == "node002" and trial.block >= block
        return told(found, FailureClass.NODE_FAULT, "Xid 79 GPU 3") if is_told else found

    concluded, history, _ = drive(study_of(12), run)
    said = kinds(concluded)
    was_told = block == 0 or effect < 0  # a healthy node is run once
    assert said.pop("node002") == ("INVALID" if was_told else NOT_ACCUSED)
    assert said.pop("node005") == "SLOWER"
    assert set(said.values()) == {NOT_ACCUSED}
    found = concluded.verdict("node002")
    assert found is not None
    own = say("its own log: {lines: | }", lines=("Xid 79 GPU 3",))
    assert (own in found.reasons) is was_told
    assert ("node002" in record(concluded).healthy) is not was_told
    runs = [each.trial.block for each in history if each.trial.arm == "node002"]
    assert runs == ([0, 1] if block and was_told else [0]), "its fault is known: no further run"


def test_what_a_node_says_stands_beside_its_verdict_and_a_silent_command_is_told() -> None:
    steady = speeds({})

    def run(trial: Trial, at: int) -> TrialResult:
        found = steady(trial, at)
        if trial.arm == "node001":
            return told(found, FailureClass.NODE_SAID, "3 corrected ECC errors")
        if trial.arm == "node002":
            return told(found, FailureClass.NODE_UNASKED, "no answer in 30 s")
        if trial.arm == "node003":  # a job script that starts the payload on a login node
            return told(found, FailureClass.NODE_FAULT, "of another machine", by="login1")
        return found

    concluded, _, _ = drive(study_of(6), run)
    assert set(kinds(concluded).values()) == {NOT_ACCUSED}
    found = concluded.verdict("node001")
    assert found is not None
    assert sentence(found.reasons[-1]) == "its own log says: 3 corrected ECC errors"
    silent = [each for each in concluded.notes if sentence(each).startswith("the own log of")]
    assert "the own log of node002 is not known: no answer in 30 s" in sentence(silent[0])
    assert "node003 is not known: the command ran on login1" in sentence(silent[1])
    assert len(silent) == 2


@pytest.mark.parametrize(
    ("off", "is_told"),
    [
        pytest.param(0.025, True, id="far more than the others"),
        pytest.param(0.0004, False, id="too little to matter to a run"),
    ],
)
def test_a_node_whose_own_runs_scatter_is_told(off: float, *, is_told: bool) -> None:
    def run(trial: Trial, at: int) -> TrialResult:
        del at
        slow = -0.06 if trial.arm in ("node002", "node004") else 0.0
        own = off * (-1) ** trial.block if trial.arm == "node002" and trial.block else 0.0
        tiny = 1e-6 * ((7 * trial.block + int(trial.arm[4:])) % 5)
        return scored(trial, 7.5 + slow + own + tiny)

    concluded, _, _ = drive(study_of(12), run)
    told = [sentence(each) for each in concluded.notes if "scatter" in sentence(each)]
    assert len(told) == is_told
    assert all(each.startswith("the runs of node002 scatter: 2.") for each in told)
    assert kinds(concluded)["node002"] == "SLOWER"


def test_more_low_nodes_than_can_be_run_again_are_not_called_healthy() -> None:
    slow = {f"node{at:03d}": -0.10 for at in range(1, 6)}
    concluded, _, _ = drive(study_of(12), speeds(slow))
    said = kinds(concluded)
    assert sum(said[name] == "SLOWER" for name in slow) == 3
    assert sum(said[name] == "INCONCLUSIVE" for name in slow) == 2
    assert any("reference_tgs" in sentence(note) for note in concluded.notes)


def test_the_budget_is_never_exceeded() -> None:
    slow = speeds({"node002": -0.10})
    for budget in range(12, 34):
        study = study_of(12, budget=budget)
        concluded, history, _ = drive(study, slow)
        assert len(history) <= budget
        again = (budget - 12) // 5
        assert record(concluded).rounds == (min(again, 4) if again >= 2 else 0)
        expected = "SLOWER" if again >= 2 else "INCONCLUSIVE"
        assert kinds(concluded)["node002"] == expected, budget
    with pytest.raises(ConfigError, match="12 nodes need 12 jobs to begin with, the budget is 11"):
        study_of(12, budget=11)


def test_a_median_far_below_the_reference_is_not_healthy() -> None:
    concluded, _, _ = drive(study_of(6, reference_tgs=2000.0), speeds({}))
    assert set(kinds(concluded).values()) == {"INCONCLUSIVE"}
    assert record(concluded).shift == pytest.approx(-0.1, abs=0.01)
    concluded, _, _ = drive(study_of(6, reference_tgs=1810.0), speeds({}))
    assert set(kinds(concluded).values()) == {NOT_ACCUSED}


def test_an_earlier_check_is_the_reference_if_its_cell_is_the_same(tmp_path: Path) -> None:
    here = replace(CELL, nodelist=("node001", "node002", "node003"))
    path = tmp_path / "nodes.json"

    def write(cell: Cell, *, complete: bool = True) -> None:
        conclusion = {
            "record": {"kind": "nodes"}, "complete": complete, "reference": {"tgs": 1840.5},
        }  # fmt: skip
        path.write_text(json.dumps({"cell": cell.to_json(), "conclusion": conclusion}), "utf-8")

    write(replace(here, nodelist=("other001",)))
    assert read_reference(path, here) == 1840.5
    write(replace(here, image="another"))
    with pytest.raises(ConfigError, match="another cell: image was 'another'"):
        read_reference(path, here)
    write(here, complete=False)
    with pytest.raises(ConfigError, match="not the report of a finished check of nodes"):
        read_reference(path, here)
    with pytest.raises(ConfigError, match="FileNotFoundError"):
        read_reference(tmp_path / "none.json", here)
    with pytest.raises(ConfigError, match="both given"):
        Nodes(reference="nodes.json", reference_tgs=1.0)


def test_a_node_below_the_floor_is_told_with_its_figure_and_accused_by_no_floor() -> None:
    concluded, _, _ = drive(study_of(8, floor_tgs=1790.0), speeds({"node002": -0.012}))
    (note,) = (sentence(each) for each in concluded.notes if "floor" in sentence(each))
    assert note.startswith("node002 is below the floor of 1790 TGS: 17")
    assert set(kinds(concluded).values()) == {NOT_ACCUSED}


def test_renaming_nodes_changes_no_verdict() -> None:
    effects = {"node002": -0.10, "node007": -0.03}
    concluded, _, _ = drive(study_of(9), speeds(effects))
    other = {f"node{at:03d}": f"gpu-{'qwertyuio'[at - 1]}" for at in range(1, 10)}
    own = {new: old for old, new in other.items()}
    steady = speeds(effects)

    def run(trial: Trial, at: int) -> TrialResult:
        found = steady(replace(trial, arm=own[trial.arm]), at)
        return replace(found, trial=trial)

    renamed, _, _ = drive(study_of(9, names=tuple(other.values())), run)
    by_old = {
        own[each.arm]: (each.kind, round(each.delta or 0, 9), each.n) for each in renamed.verdicts
    }
    assert by_old == {
        each.arm: (each.kind, round(each.delta or 0, 9), each.n) for each in concluded.verdicts
    }


def test_any_prefix_of_the_results_leads_to_the_same_end() -> None:
    study = study_of(8)
    concluded, history, _ = drive(study, speeds({"node002": -0.10}))
    for end in range(len(history)):
        proposed = study.decide(history[:end]).due
        assert proposed, end
        assert not study.decide(history[:end]).conclusion.complete
        assert study.outlook(history[:end]).left >= len(proposed)
    assert study.decide(list(reversed(history))).conclusion == concluded
    again = NodeStudy.from_json(study.to_json())
    assert again.decide(history).conclusion == concluded
    assert Conclusion.from_json(concluded.to_json()) == concluded


def test_a_test_waits_until_everything_is_over() -> None:
    study = study_of(6)
    _, history, _ = drive(study, speeds({"node002": -0.10}))
    asked = Question(about=Ask.CONFIRMED, name="node002")
    assert study.answer(history[:6], asked).state is Answered.NOT_YET
    found = study.answer(history, asked)
    assert found.state is Answered.YES
    assert found.verdict is not None
    assert found.verdict.kind == "SLOWER"
    assert study.answer(history, replace(asked, name="node9")).state is Answered.NEVER


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (("node001", "node002"), "2 nodes are named, at least 3 are needed"),
        (("node001", "node002", "Node001"), "names a node twice"),
    ],
)
def test_a_node_list_that_compares_nothing_is_refused(names: tuple[str, ...], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        study_of(0, names=names)


def test_simulated_checks_keep_the_promised_rates() -> None:
    """A fiftieth of `benchmarks/node_rates.py`, whose figures are in error_rates.md."""
    healthy = rates.rates(rates.NOISES[2], 20)
    assert healthy["false"] <= 1
    slow = rates.rates(dataclasses.replace(rates.NOISES[2], slow=1, loss=0.05), 20)
    assert slow["found"] >= 19
    assert slow["most waves"] == 5


def test_a_live_line_says_which_round_of_how_many() -> None:
    study = study_of(12)
    _, history, _ = drive(study, speeds({"node002": -0.10}))
    places = list(dict.fromkeys(sentence(study.place_of(each.trial)) for each in history))
    assert places[0] == "first run of 12 nodes"
    assert places[1:] == [f"round {at} of 4, suspects and controls" for at in range(1, 5)]
