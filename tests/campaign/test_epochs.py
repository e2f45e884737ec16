"""Nodes that are not what they were, through a campaign: nothing compares across the change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.executors import Resumed
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.result import Conclusion, Outcome, State, TrialResult, VerdictKind
from pytest_xlatune.report.render import markdown
from pytest_xlatune.tasks.cell_report import read_cell_report
from tests.helpers import scripted

OLD, NEW = ("node001", "node002"), ("node001", "node009")
NODE_FAIL = Outcome(state=State.NODE_FAIL, reason="NODE_FAIL (NodeDown)", nodes=OLD)


class Machine:
    """Runs every trial alike, and 20 % faster from trial number `change` on."""

    def __init__(self, change: int, *, fails: bool) -> None:
        self.change = change
        self.fails = fails
        self.count = 0

    def __call__(self, trial_id: str, attempt: int) -> tuple[str, Outcome]:
        self.count += 1
        if self.fails and self.count == self.change:
            return scripted.log(steps=3), NODE_FAIL
        is_new = self.count >= self.change
        speed = 1000 * (1.2 if is_new else 1.0) * (1 + (sum(trial_id.encode()) % 7 - 3) / 2000)
        nodes = NEW if is_new and not self.fails else OLD
        outcome = Outcome(state=State.COMPLETED, exit_code=0, nodes=nodes, start_s=self.count)
        return scripted.log(speed), outcome


def swept(folder: Path, machine: Machine) -> Campaign:
    executor = scripted.FakeExecutor(machine)
    executor.revival = Resumed(nodes=("node002",))
    each: Campaign = scripted.campaign(folder, executor)
    scripted.run(each)
    assert each.conclude().complete
    return each


def changes(conclusion: Conclusion) -> list[float]:
    return [abs(each.delta) for each in conclusion.verdicts if each.delta is not None]


def blocks(history: Sequence[TrialResult]) -> list[tuple[int, int]]:
    confirmed = (each for each in history if each.trial.block)
    return sorted({(each.trial.block, each.epoch) for each in confirmed})


# 4 trials are the screen, 9 the three blocks
@pytest.mark.parametrize("fails", [False, True], ids=["a node was swapped", "a node came back"])
def test_a_change_inside_a_block_parts_it_in_two(tmp_path: Path, *, fails: bool) -> None:
    each = swept(tmp_path, Machine(9, fails=fails))
    history = each.view().history
    assert blocks(history) == [(1, 0), (2, 0), (2, 1), (3, 1)]
    conclusion = each.conclude()
    assert all(v.kind is not VerdictKind.FASTER for v in conclusion.verdicts)
    assert max(changes(conclusion)) < 0.005
    # what the same trials would say without epochs: they prevent just this
    as_one = each.study.decide([replace(result, epoch=0) for result in history]).conclusion
    assert max(changes(as_one)) > 0.05


@pytest.mark.parametrize("change", [2, 3, 4])
def test_a_change_in_the_screen_parts_its_line(tmp_path: Path, change: int) -> None:
    each = swept(tmp_path, Machine(change, fails=False))
    ranked = [result for result in each.view().history if not result.trial.block]
    screened = each.study.decide(ranked).conclusion
    assert max(changes(screened)) < 0.005
    assert {result.epoch for result in each.view().history} == {0, 1}


def test_a_change_is_told_and_concluded_again_from_the_ledger_alone(tmp_path: Path) -> None:
    each = swept(tmp_path, Machine(9, fails=False))
    assert any(
        "node001, node009, were node001, node002" in sentence(note)
        for note in each.view().state.notes
    )
    known = read_cell_report(each.folder)
    assert known.conclusion == each.conclude()
    assert "2 epochs" in " ".join(map(sentence, known.conclusion.notes))
    assert "2 epochs" in markdown(known.document)


def test_the_same_nodes_in_another_order_are_the_same(tmp_path: Path) -> None:
    machine = Machine(99, fails=False)

    def turning(trial_id: str, attempt: int) -> tuple[str, Outcome]:
        text, outcome = machine(trial_id, attempt)
        return text, replace(outcome, nodes=OLD if machine.count % 2 else OLD[::-1])

    each = scripted.campaign(tmp_path, scripted.FakeExecutor(turning))
    scripted.run(each)
    assert {result.epoch for result in each.view().history} == {0}
    assert each.conclude().complete
