"""The network study: which pairs it runs, whom it accuses, and what it says when it cannot tell."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.result import TrialResult
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.studies.network_check import every_pair_once
from tests.helpers.cells import Ended, drive, machine, network, node_names, row
from tests.helpers.examples import tried
from tests.helpers.history import NOT_ACCUSED, history

SLOWER, INVALID, OPEN = "SLOWER", "INVALID", "INCONCLUSIVE"
HANG = FailureClass.HANG_INIT
LINK = "node002+node004"
RACKS = {f"rack{at}": f"node[{8 * at + 1:03d}-{8 * at + 8:03d}]" for at in range(4)}
UPLINK = {f"node{8 + a:03d}+node{24 + b:03d}": -0.06 for a in range(1, 9) for b in range(1, 9)}
# the lists name node002 before node001
MIXED = tuple(f"node{at:03d}" for at in (4, 2, 8, 6, 1, 3, 7, 5, *range(9, 17)))
# racks of 4, 2, 3, 2 and 3 nodes: their fourth round took a pair that no cell stood for
UNEVEN = {"a": "node[001-004]", "b": "node[005-006]", "c": "node[007-009]", "d": "node[010-011]",
          "e": "node[012-014]"}  # fmt: skip
# 3 percent of 496 jobs are bad, a dozen of them slower than the link's run
PAIRS_OF_32 = [f"{a}+{b}" for a, b in combinations(node_names(32), 2)]
UNLUCKY = [each for each in PAIRS_OF_32 if "node004" not in each and "node021" not in each]


def whole(ended: Ended) -> str:
    """The gravest verdict, and what it names."""
    kinds = ended.kinds
    gravest = next(iter(kinds.values()))
    return " ".join((gravest, *(name for name in kinds if kinds[name] in (INVALID, SLOWER))))


@pytest.mark.parametrize(
    ("study", "world", "said", "expected"),
    [
        *(
            row(f"{count} healthy nodes", {"count": count}, {}, NOT_ACCUSED,
                jobs=count * (count - 1) // 2)
            for count in (4, 5, 8, 9)
        ),
        *(
            row(f"a node of {count} costs {-effect:.0%}", {"count": count},
                {"effects": {"node002": effect}}, "SLOWER node002", node002=SLOWER, effect=effect,
                jobs=min(4, count - 1 + count % 2) * (count // 2) + 4 * 2)
            for count in (4, 5, 8, 9, 16) for effect in (-0.30, -0.05)
        ),
        *(
            row(f"a link of {count} nodes costs {-effect:.0%}", {"count": count},
                {"effects": {LINK: effect}}, f"SLOWER {LINK}", effect=effect,
                notes="faulty network card or link")
            for count in (4, 5, 8, 9, 16) for effect in (-0.30, -0.05)
        ),
        row("one bad run accuses no one", {"count": 8},
            {"effects": {"node002+node003@round": -0.06}}, NOT_ACCUSED, jobs=28 + 2),
        row("one bad fresh run of the node does not decide", {"count": 8},
            {"effects": {"node002": -0.05, "node002@node/2": -0.05}}, "SLOWER node002",
            node002=SLOWER, effect=-0.05, jobs=24),
        row("three nodes that cannot communicate", {"count": 16},
            {"lost": dict.fromkeys(("node003", "node007", "node011"), HANG)},
            "INVALID node003 node007 node011"),
        row("where everything fails no node is accused", {"count": 8},
            {"lost": dict.fromkeys(node_names(8), HANG)}, OPEN, rest=OPEN, is_fault=True,
            summary="more pairs failed"),
        row("a link over which nothing runs is named", {"count": 8},
            {"lost": {"node002+node005": HANG}}, "INVALID node002+node005", jobs=28 + 2,
            summary="not measured: node002+node005"),
        row("a link among as many bad jobs as nodes", {"count": 32, "budget": 1000},
            {"effects": {"node004+node021": -0.04,
                         **{f"{each}@round": -0.05 for each in UNLUCKY[::35][:12]}}},
            "SLOWER node004+node021"),
        row("an uplink", {"count": 32, "racks": RACKS}, {"effects": UPLINK},
            "SLOWER node010+node026", why="all of rack1 and rack3"),
        row("a link inside a rack", {"count": 32, "racks": RACKS},
            {"effects": {"node009+node012": -0.06}}, "SLOWER node009+node012"),
        row("racks in another order than the node list",
            {"count": 16, "names": MIXED, "racks": {"a": "node[001-008]", "b": "node[009-012]",
                                                    "c": "node[013-016]"}},
            {"effects": {"node002+node001": -0.1}}, "SLOWER node002+node001"),
        row("racks of two and three nodes", {"count": 14, "racks": UNEVEN}, {}, OPEN, rest=OPEN),
    ],
)  # fmt: skip
def test_worlds(
    study: dict[str, Any], world: dict[str, Any], said: str, expected: dict[str, Any]
) -> None:
    ended = drive(network(**study), machine(**world))
    kinds, is_fault = ended.kinds, said.split(maxsplit=1)[0] in (SLOWER, INVALID)
    assert whole(ended) == said
    named = {name: kind for name, kind in expected.items() if name.startswith("node0")}
    assert {name: kinds[name] for name in named} == named
    innocent = {kinds[name] for name in kinds if name not in said.split()}
    assert innocent <= {NOT_ACCUSED, expected.get("rest", NOT_ACCUSED)}
    assert len(ended.history) == expected.get("jobs", len(ended.history))
    assert expected.get("summary", "") in ended.summary[0]
    assert bool(ended.record.objection) is expected.get("is_fault", is_fault)
    assert expected.get("notes", "") in ended.notes
    if "why" in expected:
        assert expected["why"] in ended.why(said.split()[1])
    if "effect" in expected:
        found, truth = ended.verdict(said.split()[1]), math.expm1(expected["effect"])
        assert found.delta == pytest.approx(truth, abs=0.012)
        assert found.ci95 is not None
        assert found.ci95[0] - 0.003 < truth < found.ci95[1] + 0.003
    for pair in ended.record.pairs:
        if is_fault and (effect := world.get("effects", {}).get("+".join(pair.nodes))):
            assert pair.change == pytest.approx(math.expm1(effect), abs=0.012), "not its usual"


@pytest.mark.parametrize("count", [4, 5, 8, 9, 16, 31])
def test_rounds_hold_every_pair_once_and_each_node_once_a_round(count: int) -> None:
    names = [f"n{at}" for at in range(count)]
    rounds = every_pair_once(names)
    assert len(rounds) == count - 1 + count % 2
    assert sorted(pair for pairs in rounds for pair in pairs) == sorted(
        tuple(sorted(pair, key=names.index)) for pair in combinations(names, 2)
    )
    for pairs in rounds:
        assert len({name for pair in pairs for name in pair}) == 2 * len(pairs) == count // 2 * 2


@pytest.mark.parametrize("cls", [FailureClass.HANG_INIT, FailureClass.NODE_FAIL])
def test_a_node_that_cannot_communicate_with_two_partners_ends_its_rounds(
    cls: FailureClass,
) -> None:
    study = network(8)
    results = history(machine(lost={"node003": cls}), of=study, one_by_one=True)
    assert sum(each.score is None for each in results) == 2
    ended = Ended(conclusion=study.decide(results).conclusion, history=tuple(results))
    assert whole(ended) == "INVALID node003"
    assert cls.meaning in ended.why("node003")
    assert set(ended.kinds.values()) == {INVALID, NOT_ACCUSED}


@settings(max_examples=tried(25), deadline=None)
@given(order=st.permutations(range(8)), is_link=st.booleans())
def test_the_order_of_the_nodes_changes_no_verdict(order: list[int], is_link: bool) -> None:
    """Names are handed round: the fault keeps its node, the runs of each node stay the same."""
    names = node_names(8)
    behind = dict(zip(names, (names[at] for at in order), strict=True))  # label -> its node
    fault = LINK if is_link else "node002"
    run = machine({fault: -0.1})

    def relabelled(trial: Trial) -> TrialResult:
        a, b = sorted(behind[each] for each in trial.arm.split("+"))
        return replace(run(replace(trial, arm=f"{a}+{b}")), trial=trial)

    def of_nodes(ended: Ended) -> dict[str, Any]:
        verdicts = ended.conclusion.verdicts
        return {e.arm: (e.kind, e.delta) for e in verdicts if "+" not in e.arm}

    # the same nodes at the same places under other names: equal in all that is said
    before = of_nodes(drive(network(8), run))
    after = drive(network(8, names=tuple(sorted(names, key=behind.__getitem__))), relabelled)
    assert {behind[name]: said for name, said in of_nodes(after).items()} == before
    # other places, thus other rounds: the same fault
    for ended in (after, drive(network(8), relabelled)):
        _, accused = whole(ended).split()
        assert {behind[each] for each in accused.split("+")} == set(fault.split("+"))
