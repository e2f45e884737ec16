"""The study of commits: what it runs next, which commit it accuses, and what it cannot tell."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import sentence
from pytest_xlatune.studies.commit_check import Load
from tests.helpers.cells import CELL, changing, commits, drive, machine, row
from tests.helpers.history import NOT_ACCUSED

OOM = FailureClass.OOM_GPU
LOADS = tuple(Load(model=name, nodes=count) for name, count in (("a", 1), ("b", 2), ("c", 4)))
WHOLE = (*LOADS, Load(model="d", nodes=8), Load(model="e"))


def arm(at: int) -> str:
    return f"{at + 1:012x}"


@pytest.mark.parametrize(
    ("count", "world", "found", "expected"),
    [
        *(
            row(f"a loss at commit {first} of 17", 17, {"level": changing(first, -0.05)}, "FIRST",
                range=(first, first), jobs=24)
            for first in (1, 7, 15, 16)
        ),
        row("nothing changed", 64, {"level": changing(99, 0)}, "NO CHANGE", jobs=16),
        *(
            row(f"a quiet trainer's loss of {loss:.1%}", 3,
                {"level": changing(2, -loss), "noise": 0.03}, "NO CHANGE", jobs=8, excluded=loss,
                verdict="EQUIVALENT")
            for loss in (0.002, 0.008)
        ),
        *(
            row(f"a loss of many small steps over {count} commits", count,
                {"level": changing(99, 0, step=0.004), "noise": 0.33}, "RANGE",
                range=(0, count - 1),
                notes=["a loss of 1 % or more: -0.4 %",
                       "several commits changed the speed"])
            for count in (4, 9)
        ),
        row("a commit that does not run leaves a range", 9,
            {"level": changing(5, -0.05), "lost": {arm(4): OOM}}, "RANGE", range=(3, 5),
            skipped=(arm(4),)),
        row("an end that never runs", 9, {"level": changing(99, 0), "lost": {arm(8): OOM}},
            "CANNOT TELL", verdict="INVALID"),
    ],
)  # fmt: skip
def test_searches(count: int, world: dict[str, Any], found: str, expected: dict[str, Any]) -> None:
    study = commits(count)
    ended = drive(study, machine(**world))
    record = ended.record
    assert record.found == found
    if "range" in expected:
        named = tuple(study.ids.index(each) for each in (record.first, record.last))
        assert named == expected["range"]
    assert bool(record.objection) is (found in ("FIRST", "RANGE"))
    assert record.skipped == expected.get("skipped", ())
    assert len(ended.history) <= expected.get("jobs", 200)
    if found == "FIRST":
        assert ended.verdict(record.first).kind == "SLOWER"
    if found == "NO CHANGE":
        assert expected.get("excluded", -1) < record.excluded < 0.01
    last = ended.verdict(arm(count - 1)).kind
    assert last == expected.get("verdict", last)
    for words in expected.get("notes", ()):
        assert words in ended.notes


@pytest.mark.parametrize("budget", [17, 20, 24, 30])
def test_a_small_budget_ends_in_a_range_that_holds_the_commit(budget: int) -> None:
    study = commits(65, budget=budget)
    record = drive(study, machine(level=changing(40, -0.05))).record
    low, high = (study.ids.index(each) for each in (record.first, record.last))
    assert (low, high) == (40, 40) if record.found == "FIRST" else low < 40 <= high


def test_loads_of_less_than_all_nodes_are_disjoint_and_keep_their_nodes() -> None:
    nodes = [set(load.cell(CELL).nodelist) for load in LOADS]
    assert [len(each) for each in nodes] == [1, 2, 4]
    assert len(set.union(*nodes)) == 1 + 2 + 4
    assert {load.cell(CELL).nodelist for load in WHOLE[3:]} == {CELL.nodelist}
    # the order alternates, else a drift would look like a regression of all loads
    order = [int(each.arm[-1]) for each in commits(2, loads=WHOLE).decide(()).due]
    assert order == [1, 2, 2, 1, 1, 2, 2, 1, 1, 2]
    with pytest.raises(ConfigError, match="needs 9 nodes, the node list names 8"):
        Load(model="a", nodes=9).cell(CELL)


ONE, TWO = "000000000001", "000000000002"  # the commits of a table
OLD, NEW, OPEN = ("INVALID", True), ("INVALID", False), ("INCONCLUSIVE", True)


@pytest.mark.parametrize(
    ("world", "said", "jobs"),
    [
        pytest.param(
            {"effects": {f"b-2n-{TWO}": -0.05}}, {f"b-2n-{TWO}": ("SLOWER", True)}, 10 + 8,
            id="only the slow load is accused, and only it is run again",
        ),
        pytest.param(
            {"lost": {f"a-1n-{ONE}": OOM, f"a-1n-{TWO}": OOM, f"b-2n-{TWO}": OOM,
                      f"c-4n-{TWO}": FailureClass.CANCELLED}},
            {f"a-1n-{ONE}": OLD, f"a-1n-{TWO}": OLD, f"b-2n-{TWO}": NEW, f"c-4n-{TWO}": OPEN}, 10,
            id="breakage is new or was there before, and a cancelled run says neither",
        ),
        pytest.param({"losses": {f"a-1n-{TWO}": 9.9}}, {}, 10, id="another loss is a finding"),
    ],
)  # fmt: skip
def test_tables(world: dict[str, Any], said: dict[str, tuple[str, bool]], jobs: int) -> None:
    ended = drive(commits(2, loads=WHOLE), machine(**world, noise=0.33))
    told = {e.arm: (ended.kinds[e.arm], e.can_run) for e in ended.conclusion.verdicts}
    assert {name: told.pop(name) for name in said} == said
    assert set(told.values()) == {(NOT_ACCUSED, True)}
    assert len(ended.history) == jobs
    objections = [sentence(each) for each in ended.record.objection]
    assert all("computes something else" in each for each in objections)
    assert len(objections) == len(world.get("losses", ()))
