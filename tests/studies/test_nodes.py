"""The node study: what it runs again, whom it accuses, and what it says when it cannot tell."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.studies.node_check import HEALTHY_FILE
from tests.helpers.answers import NOT_ACCUSED
from tests.helpers.cells import drive, machine, node_names, nodes

SLOWER, INVALID, OPEN = "SLOWER", "INVALID", "INCONCLUSIVE"
ONCE, ROUNDS = 1, 5  # waves
FAULT, SAID, UNASKED = (
    FailureClass.NODE_FAULT, FailureClass.NODE_SAID, FailureClass.NODE_UNASKED
)  # fmt: skip
ALTERNATING = {f"node002/{at}": 0.025 * (-1) ** at for at in range(1, 5)}
FIVE_LOW = dict.fromkeys(node_names(5), -0.1)


def row(name: str, count: int, world: dict[str, Any], **expected: Any) -> Any:
    """Return a world of so many nodes, and what is said; every node not named is not accused."""
    return pytest.param(count, world, expected, id=name)


@pytest.mark.parametrize(
    ("count", "world", "expected"),
    [
        row("healthy nodes are run once", 8, {}, waves=ONCE),
        row(
            "a bad first run accuses no one", 8, {"effects": {"node003/0": -0.06}}, waves=ROUNDS
        ),
        *(
            row(
                f"a node that ended in {cls} is dropped, and the others are judged", 6,
                {"lost": {"node001": cls}, "effects": {"node004": -0.1}},
                node001=INVALID, node004=SLOWER, why={"node001": cls.meaning},
            )
            for cls in (FailureClass.GPU_ECC, FailureClass.HANG_INIT, FailureClass.OOM_GPU)
        ),
        row(
            "a suspect that dies in a round is not run again", 12,
            {"lost": {"node002/2": FailureClass.NODE_FAIL},
             "effects": {"node002": -0.1, "node005": -0.1}},
            node002=INVALID, node005=SLOWER, blocks={"node002": [0, 1, 2]},
        ),
        *(
            row(f"{cls} accuses no node", 6, {"lost": {"node001": cls}}, node001=OPEN)
            for cls in (FailureClass.CANCELLED, FailureClass.HUB)
        ),
        row(
            "where most nodes fail none is accused", 6,
            {"lost": dict.fromkeys(node_names(4), FailureClass.CONFIG_ERROR)},
            rest=OPEN, notes=["what the nodes share"],
        ),
        row(
            "a node of another loss computes something else", 6, {"losses": {"node006": 9.9}},
            node006=INVALID, why={"node006": "it computes something else"},
        ),
        row(
            "a hard error of its own log needs no further run", 12,
            {"told": {"node002": (FAULT, "Xid 79 GPU 3", "")}, "effects": {"node002": -0.1}},
            node002=INVALID, blocks={"node002": [0]},
            why={"node002": "its own log: Xid 79 GPU 3"},
        ),
        row(
            "a hard error in a round ends a suspect's rounds", 12,
            {"told": {"node002/1": (FAULT, "Xid 79", "")},
             "effects": {"node002": -0.1, "node005": -0.1}},
            node002=INVALID, node005=SLOWER, blocks={"node002": [0, 1]},
        ),
        row(
            "what a node says stands beside its verdict, and who was silent is told", 6,
            {"told": {"node001": (SAID, "3 corrected ECC errors", ""),
                      "node002": (UNASKED, "no answer in 30 s", ""),
                      "node003": (FAULT, "of another machine", "login1")}},
            why={"node001": "its own log says: 3 corrected ECC errors"},
            notes=["the own log of node002 is not known: no answer in 30 s"],
        ),
        row(
            "a node whose own runs scatter is told", 12,
            {"effects": {"node002": -0.06, "node004": -0.06, **ALTERNATING}, "noise": 0.001},
            node002=SLOWER, node004=SLOWER, notes=["the runs of node002 scatter: 2."],
        ),
        row(
            "more low nodes than can be run again are not called healthy", 12,
            {"effects": FIVE_LOW}, counts={SLOWER: 3, OPEN: 2}, notes=["reference_tgs"],
        ),
        row(
            "a median far below the reference is not healthy", 6, {"reference_tgs": 2000.0},
            rest=OPEN, notes=["the median node is -10"],
        ),
        row("a median at the reference is", 6, {"reference_tgs": 1810.0}),
        row(
            "a node below the floor is told with its figure, and not accused", 8,
            {"floor_tgs": 1790.0, "effects": {"node002": -0.012}},
            notes=["node002 is below the floor of 1790 TGS: 17"],
        ),
    ],
)  # fmt: skip
def test_worlds(count: int, world: dict[str, Any], expected: dict[str, Any]) -> None:
    asked = {name: world.pop(name) for name in [*world] if name.endswith("_tgs")}
    ended = drive(nodes(count, **asked), machine(**world))
    said = ended.kinds
    if "counts" in expected:
        for kind, number in expected["counts"].items():
            found = [name for name, each in said.items() if each == kind]
            assert len(found) == number
            assert all(said.pop(name) for name in found)
    named = {name: kind for name, kind in expected.items() if name.startswith("node0")}
    assert {name: said.pop(name) for name in named} == named
    assert set(said.values()) <= {expected.get("rest", NOT_ACCUSED)}
    for name, words in expected.get("why", {}).items():
        assert words in ended.why(name)
    for words in expected.get("notes", ()):
        assert words in ended.notes
    for name, blocks in expected.get("blocks", {}).items():
        assert [e.trial.block for e in ended.history if e.trial.arm == name] == blocks
    assert len(ended.waves) == expected.get("waves", len(ended.waves))
    healthy = tuple(name for name in node_names(count) if ended.kinds[name] == NOT_ACCUSED)
    files = ended.record.files
    assert files.get(HEALTHY_FILE, "\n").splitlines()[-1] == ",".join(healthy)
    worst = [INVALID, SLOWER, OPEN, NOT_ACCUSED]
    order = [worst.index(ended.kinds[each.arm]) for each in ended.conclusion.verdicts]
    assert order == sorted(order), "the worst stands first"
    assert all(
        each.can_run is (ended.kinds[each.arm] != INVALID) for each in ended.conclusion.verdicts
    )


@pytest.mark.parametrize("count", [4, 12])
@pytest.mark.parametrize(
    ("effect", "kind"), [(-0.30, SLOWER), (-0.08, SLOWER), (-0.035, SLOWER), (-0.012, NOT_ACCUSED)]
)
def test_a_slow_node_is_run_again_beside_controls(count: int, effect: float, kind: str) -> None:
    ended = drive(nodes(count), machine({"node002": effect}))
    found = ended.verdict("node002")
    assert ended.kinds.pop("node002") == kind
    assert set(ended.kinds.values()) <= {kind, NOT_ACCUSED}
    if kind == SLOWER:
        assert ended.why("node002").startswith("a loss of "), "and no sign before the figure"
        assert (len(ended.waves), found.n) == (5, 5)
        assert found.ci95 is not None
        assert found.ci95[0] < math.expm1(effect) < found.ci95[1]
