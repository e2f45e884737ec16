"""The node study: what it runs again, whom it accuses, and what it says when it cannot tell."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.studies.node_check import HEALTHY_FILE
from tests.helpers.cells import drive, machine, node_names, nodes, row
from tests.helpers.history import NOT_ACCUSED

SLOWER, INVALID, OPEN = "SLOWER", "INVALID", "INCONCLUSIVE"
FAULT, SAID, UNASKED = (
    FailureClass.NODE_FAULT, FailureClass.NODE_SAID, FailureClass.NODE_UNASKED
)  # fmt: skip
ALTERNATING = {f"node002/{at}": 0.025 * (-1) ** at for at in range(1, 5)}


@pytest.mark.parametrize(
    ("count", "world", "expected"),
    [
        row("healthy nodes are run once", 8, {}, rounds=0),
        *(
            row(f"a node of {count} that costs {-effect:.1%} is run again beside controls", count,
                {"effects": {"node002": effect}}, node002=SLOWER, effect=effect, rounds=4)
            for count in (4, 12) for effect in (-0.30, -0.08, -0.035)
        ),
        row("a node of 12 that costs 1.2 % is not accused", 12, {"effects": {"node002": -0.012}}),
        *(
            row(f"a node that ended in {cls} is dropped, and the others are judged", 6,
                {"lost": {"node001": cls}, "effects": {"node004": -0.1}},
                node001=INVALID, node004=SLOWER, why={"node001": cls.meaning})
            for cls in (FailureClass.GPU_ECC, FailureClass.HANG_INIT, FailureClass.OOM_GPU)
        ),
        *(
            row(f"{cls} accuses no node", 6, {"lost": {"node001": cls}}, node001=OPEN)
            for cls in (FailureClass.CANCELLED, FailureClass.HUB)
        ),
        row("where most nodes fail none is accused", 6,
            {"lost": dict.fromkeys(node_names(4), FailureClass.CONFIG_ERROR)},
            rest=OPEN, notes="what the nodes share"),
        row("a node of another loss computes something else", 6, {"losses": {"node006": 9.9}},
            node006=INVALID, why={"node006": "it computes something else"}),
        row("a hard error of its own log needs no further run", 12,
            {"told": {"node002": (FAULT, "Xid 79 GPU 3", "")}, "effects": {"node002": -0.1}},
            node002=INVALID, blocks={"node002": [0]},
            why={"node002": "its own log: Xid 79 GPU 3"}),
        row("what a node says stands beside its verdict, and who was silent is told", 6,
            {"told": {"node001": (SAID, "3 corrected ECC errors", ""),
                      "node002": (UNASKED, "no answer in 30 s", ""),
                      "node003": (FAULT, "of another machine", "login1")}},
            why={"node001": "its own log says: 3 corrected ECC errors"},
            notes="log of node002 is not known: no answer in 30 s"),
        row("a node whose own runs scatter is told", 12,
            {"effects": {"node002": -0.06, "node004": -0.06, **ALTERNATING}, "noise": 0.001},
            node002=SLOWER, node004=SLOWER, notes="the runs of node002 scatter: 2."),
        row("more low nodes than can be run again are not called healthy", 12,
            {"effects": dict.fromkeys(node_names(5), -0.1)}, node001=OPEN, node002=SLOWER,
            node003=SLOWER, node004=SLOWER, node005=OPEN, notes="reference_tgs",
            summary="(-9.7 % to -9.3 %); neither shown nor excluded: node005, node001"),
        row("a median far below the reference is not healthy", 6, {"reference_tgs": 2000.0},
            rest=OPEN, notes="the median node is -10"),
        row("a node below the floor is told with its figure, and not accused", 8,
            {"floor_tgs": 1790.0, "effects": {"node002": -0.012}},
            notes="node002 is below the floor of 1790 TGS: 17"),
    ],
)  # fmt: skip
def test_worlds(count: int, world: dict[str, Any], expected: dict[str, Any]) -> None:
    asked = {name: world.pop(name) for name in [*world] if name.endswith("_tgs")}
    ended = drive(nodes(count, **asked), machine(**world))
    said = ended.kinds
    named = {name: kind for name, kind in expected.items() if name.startswith("node0")}
    assert {name: said.pop(name) for name in named} == named
    assert set(said.values()) <= {expected.get("rest", NOT_ACCUSED)}
    assert expected.get("summary", "") in ended.summary[0]
    for name, words in expected.get("why", {}).items():
        assert words in ended.why(name)
    assert expected.get("notes", "") in ended.notes
    for name, blocks in expected.get("blocks", {}).items():
        assert [e.trial.block for e in ended.history if e.trial.arm == name] == blocks
    if "effect" in expected:
        verdict = ended.verdict("node002")
        assert ended.why("node002").startswith("a loss of "), "and no sign before the figure"
        assert verdict.ci95 is not None
        assert verdict.ci95[0] < math.expm1(expected["effect"]) < verdict.ci95[1]
        assert verdict.n == 5
    rounds = max(each.trial.block for each in ended.history)
    assert rounds == expected.get("rounds", rounds)
    healthy = tuple(name for name in node_names(count) if ended.kinds[name] == NOT_ACCUSED)
    files = ended.record.files
    assert files.get(HEALTHY_FILE, "\n").splitlines()[-1] == ",".join(healthy)
    worst = [INVALID, SLOWER, OPEN, NOT_ACCUSED]
    order = [worst.index(ended.kinds[each.arm]) for each in ended.conclusion.verdicts]
    assert order == sorted(order), "the worst stands first"
    assert all(
        each.can_run is (ended.kinds[each.arm] != INVALID) for each in ended.conclusion.verdicts
    )
