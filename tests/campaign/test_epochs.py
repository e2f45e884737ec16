"""Nodes that are not what they were, through a campaign: nothing compares across the change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.executors import Resumed
from pytest_xlatune.model.environment import NodeEnvironment
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import profile
from pytest_xlatune.model.result import Conclusion, Outcome, State
from pytest_xlatune.report.render import markdown
from pytest_xlatune.tasks.cell_report import read_cell_report
from pytest_xlatune.tasks.run_record import record_of_study
from tests.helpers import scripted
from tests.helpers.tables import rows

OLD, NEW = ("node001", "node002"), ("node001", "node009")
NODE_FAIL = Outcome(state=State.NODE_FAIL, reason="NODE_FAIL (NodeDown)", nodes=OLD)


def swept(folder: Path, change: int, *, fails: bool = False) -> Campaign:
    """Run a sweep whose trials are all alike, and 20 % faster from trial number `change` on."""
    count = 0

    def script(trial_id: str, attempt: int) -> tuple[str, Outcome]:
        nonlocal count
        count += 1
        if fails and count == change:
            return scripted.log(steps=3), NODE_FAIL
        is_new = count >= change
        speed = 1000 * (1.2 if is_new else 1.0) * (1 + (sum(trial_id.encode()) % 7 - 3) / 2000)
        same = OLD if count % 2 else OLD[::-1]  # the same nodes, in another order
        nodes = NEW if is_new and not fails else same
        return scripted.log(speed), replace(scripted.OK, nodes=nodes, start_s=count, end_s=None)

    executor = scripted.FakeExecutor(script)
    executor.revival = Resumed(nodes=("node002",))
    made = scripted.campaign(folder, executor)
    scripted.run(made)
    assert made.conclude().complete
    return made


def largest_change(conclusion: Conclusion) -> float:
    return max(abs(each.delta) for each in conclusion.verdicts if each.delta is not None)


# 4 trials are the screen, 9 the three blocks
@rows("fails", {"a node was swapped": False, "a node came back": True})
def test_a_change_inside_a_block_parts_it_in_two(tmp_path: Path, *, fails: bool) -> None:
    made = swept(tmp_path, 9, fails=fails)
    history, conclusion = made.view().history, made.conclude()
    blocks = {(each.trial.block, each.epoch) for each in history if each.trial.block}
    assert blocks == {(1, 0), (2, 0), (2, 1), (3, 1)}
    assert all(verdict.kind != "FASTER" for verdict in conclusion.verdicts)
    assert largest_change(conclusion) < 0.005
    # what the same trials would say without epochs: they prevent just this
    as_one = made.study.decide([replace(result, epoch=0) for result in history]).conclusion
    assert largest_change(as_one) > 0.05
    # it is told, and concluded again from the ledger alone
    notes = " ".join(map(sentence, made.view().state.notes))
    assert ("node001, node009, were node001, node002" in notes) is not fails
    known = read_cell_report(made.folder)
    assert known.conclusion == conclusion
    assert "2 epochs" in markdown(known.document)


# -- what trials tell of their nodes ---------------------------------------------------------------

OTHER = profile("other", "--xla_other=1", env={"LD_LIBRARY_PATH": "/opt/other"})


def node(name: str, jaxlib: str = "0.9", kernel: str = "6.8") -> NodeEnvironment:
    return NodeEnvironment(name=name, node={"kernel": kernel}, packages={"jaxlib": jaxlib})


# of a trial's number and its profile's name: what its nodes tell
Tells = Callable[[int, str], Sequence[NodeEnvironment]]


def silent_and_upgraded(number: int, _: str) -> Sequence[NodeEnvironment]:
    later = node("n2", "0.10" if number > 3 else "0.9")
    return [node("n1")] if number == 3 else [node("n1"), later]


def of_other_libraries(_: int, name: str) -> Sequence[NodeEnvironment]:
    return [node("n1", "0.11" if name == "other" else "0.9"), node("n2")]


UNLIKE = ["jaxlib: 0.9 on n1, 0.10 on n2"]


@rows(
    "tells, changes, differing",
    {
        "and may be upgraded meanwhile": (
            silent_and_upgraded, ["on n2 changed: jaxlib 0.9 -> 0.10"], UNLIKE),
        "a profile that asks for other libraries": (of_other_libraries, [], []),
    },
)  # fmt: skip
def test_what_nodes_tell_begins_an_epoch_where_it_changed(
    tmp_path: Path, tells: Tells, changes: list[str], differing: list[str]
) -> None:
    """A profile of other libraries would be alone in an epoch, and so would all after it."""
    executor = scripted.FakeExecutor(
        lambda *trial: (scripted.ordinary(*trial)[0], replace(scripted.OK, nodes=("n1", "n2")))
    )
    executor.tells = lambda trial_id: tells(len(executor.submitted) + 1, trial_id.partition("-")[0])
    made = scripted.campaign(tmp_path, executor, profiles=(*scripted.PROFILES, OTHER))
    scripted.run(made)
    record = record_of_study(made.view().state, made.study)
    assert [sentence(each) for each in record.changes] == changes
    assert list(record.differing) == differing
    assert {each.epoch for each in made.view().history} == ({0, 1} if changes else {0})
