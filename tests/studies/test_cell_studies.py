"""Studies whose arms are cells: the contract, the rates, and what each says of a world."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.result import Conclusion, TrialResult, TrialStatus
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.studies import Answered, Ask, Question, Study
from pytest_xlatune.studies.batch_size import BEST_FILE
from pytest_xlatune.studies.commit_check import Load
from pytest_xlatune.studies.node_check import HEALTHY_FILE
from tests.helpers import benchmarks, toy
from tests.helpers.cells import (
    CEILINGS,
    CELL,
    LIMIT,
    PAIRED,
    Ended,
    Run,
    asking,
    batch,
    changing,
    commits,
    compiled,
    drive,
    machine,
    network,
    node_names,
    nodes,
    paired,
    row,
    size_in,
    sizes,
    unfit,
)
from tests.helpers.history import NOT_ACCUSED, knobs, measured
from tests.helpers.second_looks import tried

SLOWER, INVALID, OPEN = "SLOWER", "INVALID", "INCONCLUSIVE"
HANG = FailureClass.HANG_INIT
LINK = "node002+node004"
RACKS = {f"rack{at}": f"node[{8 * at + 1:03d}-{8 * at + 8:03d}]" for at in range(4)}
UPLINK = {f"node{8 + a:03d}+node{24 + b:03d}": -0.06 for a in range(1, 9) for b in range(1, 9)}
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
        *(
            row(f"a node that ends in {cls} with two partners has no further round", {"count": 8},
                {"lost": {"node003": cls}}, "INVALID node003", jobs=25, why=cls.meaning)
            for cls in (HANG, FailureClass.NODE_FAIL)
        ),
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
def test_networks(
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
    rounds = [each.trial for each in ended.history if each.trial.stage == "round"]
    for block in {each.block for each in rounds}:
        members = [name for e in rounds if e.block == block for name in e.arm.split("+")]
        assert len(set(members)) == len(members), "each node once a round"


@settings(max_examples=tried(25), deadline=None)
@given(order=st.permutations(range(8)), is_link=st.booleans())
def test_the_order_of_the_nodes_changes_no_verdict(order: list[int], is_link: bool) -> None:
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

    before = of_nodes(drive(network(8), run))
    after = drive(network(8, names=tuple(sorted(names, key=behind.__getitem__))), relabelled)
    assert {behind[name]: said for name, said in of_nodes(after).items()} == before
    # other places, thus other rounds: the same fault
    for ended in (after, drive(network(8), relabelled)):
        _, accused = whole(ended).split()
        assert {behind[each] for each in accused.split("+")} == set(fault.split("+"))


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
def test_nodes(count: int, world: dict[str, Any], expected: dict[str, Any]) -> None:
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


OOM = FailureClass.OOM_GPU
WHOLE = tuple(
    Load(model=name, nodes=count)
    for name, count in {"a": 1, "b": 2, "c": 4, "d": 8, "e": 0}.items()
)


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


def test_loads_of_less_than_all_nodes_are_disjoint_and_alternate() -> None:
    nodes = [load.cell(CELL).nodelist for load in WHOLE]
    assert [len(each) for each in nodes] == [1, 2, 4, 8, 8]
    assert len({*nodes[0], *nodes[1], *nodes[2]}) == 1 + 2 + 4
    # the order alternates, else a drift would look like a regression of all loads
    order = [int(each.arm[-1]) for each in commits(2, loads=WHOLE).decide(()).due]
    assert order == [1, 2, 2, 1, 1, 2, 2, 1, 1, 2]
    with pytest.raises(ConfigError, match="needs 9 nodes, the node list names 8"):
        Load(model="a", nodes=9).cell(CELL)


ONE, TWO = "000000000001", "000000000002"  # the commits of a table
OLD, NEW, NEITHER = (INVALID, True), (INVALID, False), (OPEN, True)


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
            {f"a-1n-{ONE}": OLD, f"a-1n-{TWO}": OLD, f"b-2n-{TWO}": NEW, f"c-4n-{TWO}": NEITHER},
            10,
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


# a study by its budget, its machine, an arm of it, who is best, and its live lines
STUDIES: dict[str, tuple[Callable[..., Study], Run, str, str, list[str]]] = {
    "nodes": (
        partial(nodes, 8), machine({"node002": -0.1}), "node002", "",
        ["first run of 8 nodes", "round 1 of 4, suspects and controls"],
    ),
    "network": (
        partial(network, 8), machine({"node002+node004": -0.1}), "node002+node004", "",
        ["round 1 of about 7", "round 2 of about 7"],
    ),
    "sizes": (partial(batch, start=8), sizes(ceiling=21, best=12), "pdbs-12", "pdbs-12", []),
    "pairs of a size and a policy": (
        partial(batch, sigma=0.002, compiles=True, **PAIRED), paired(c=0.8),
        "pdbs-9-remat-policy-minimal", "pdbs-9-remat-policy-minimal", [],
    ),
    "a search of commits": (
        partial(commits, 17), machine(level=changing(7, -0.05)), "000000000008", "", [],
    ),
    "a table of commits": (
        partial(commits, 2, loads=WHOLE), machine({f"b-2n-{TWO}": -0.05}, noise=0.33),
        f"b-2n-{TWO}", "", [],
    ),
    "means of three cells": (
        lambda: toy.ToyStudy(cells=tuple(replace(CELL, config_tag=name) for name in "abc")),
        machine({"b": 0.1}), "b", "b", [],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "run", "arm", "best", "places"), STUDIES.values(), ids=STUDIES)
def test_the_contract(
    make: Callable[..., Any], run: Run, arm: str, best: str, places: list[str]
) -> None:
    study: Study = make()
    ended = drive(study, run)
    history, whole = ended.history, ended.conclusion
    for end in range(0, len(history), 3):
        decision = study.decide(history[:end])
        assert decision.due, "whatever the order, a prefix is not the end"
        assert not decision.conclusion.complete
        runs = TrialResult(trial=decision.due[0], status=TrialStatus.RUNNING)
        assert study.decide([*history[:end], runs]).due == decision.due, "what runs is not over"
    assert study.decide(tuple(reversed(history))).conclusion == whole
    assert type(study).from_json(study.to_json()).decide(history).conclusion == whole
    assert Conclusion.from_json(whole.to_json()) == whole
    asked = Question(about=Ask.CONFIRMED, name=arm)
    assert study.answer(history[:5], asked).state is Answered.NOT_YET
    found = study.answer(history, asked)
    assert (found.state, found.verdict) == (Answered.YES, whole.verdict(arm))
    assert study.answer(history, replace(asked, name="nothing")).state is Answered.NEVER
    assert study.answer(history, Question(about=Ask.REFERENCE)).state is Answered.NEVER
    named = study.answer(history, Question(about=Ask.BEST)).arm
    assert (named.id if named else "") == best
    said = study.outlook(history).places
    lines = list(dict.fromkeys(sentence(said.get(each.trial.id)) for each in history))
    assert lines[: len(places)] == places


@pytest.mark.parametrize(
    ("kind", "budget"),
    [("nodes", 36), ("network", 72), *(("a table of commits", budget) for budget in (10, 14, 18))],
)
def test_a_budget_is_never_exceeded(kind: str, budget: int) -> None:
    make, run, *_ = STUDIES[kind]
    drive(make(budget=budget), run)  # it fails where more is run


REFUSED: list[tuple[Callable[..., Study], dict[str, Any], str]] = [
    (nodes, {"count": 2}, "2 nodes are named, at least 3"),
    (nodes, {"count": 0, "names": ("n1", "n2", "N1")}, "names a node twice"),
    (nodes, {"count": 12, "budget": 39}, "12 nodes need up to 40 jobs, the budget is 39"),
    (network, {"count": 8, "budget": 65}, "8 nodes need up to 72 jobs"),
    (network, {"count": 8, "racks": {"a": "node[001-007]"}}, "none or in two: node008"),
    (network, {"count": 8, "racks": {"a": "node[001-008]"}}, "found 1 rack$"),
    (commits, {"count": 9, "budget": 16}, "a search takes 17 jobs or more, the budget is 16"),
    (commits, {"count": 0}, "no commit is named"),
    (batch, {"own": None}, "where to begin"),
    (batch, {"profiles": knobs(1)}, "the sweep has profiles"),
    (batch, {"sizes": (4, 4)}, "two or more, each once"),
    (batch, {"sizes": (4, -1)}, "a size is -1, expected"),
    (batch, {"key": "XLA_FLAGS", "sizes": ("a", "b")}, "tune flags by profiles"),
    (batch, {"start": 8, "step": 0.01}, "smallest= or largest="),
    (batch, {"by_values": ("full", "none")}, "by_values= and sizes= together"),
    (batch, {**PAIRED, "by": "per_device_batch_size"}, "key and by are both"),
    (batch, {**PAIRED, "by": "ici_fsdp_parallelism"}, "give each parallelism"),
    (batch, {"sizes": (0.3, 8)}, "per_device_batch_size is 0.3, expected whole numbers"),
    (batch, {"key": "remat_policy", "sizes": ("a b", "A_B")}, "in letters or digits"),
    (batch, {"sizes": (4, 8), "budget": 1}, "takes 2 jobs, the budget is 1"),
]


@pytest.mark.parametrize(("make", "said", "why"), REFUSED)
def test_what_compares_nothing_is_refused(
    make: Callable[..., Study], said: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        make(**said)


def test_simulated_studies_keep_the_promised_rates() -> None:
    """A part of `benchmarks/*_rates.py`, whose figures are in error_rates.md."""
    of_nodes, of_pairs, of_sizes, of_commits = (
        benchmarks.load(f"{kind}_rates") for kind in ("node", "network", "batch", "commit")
    )

    def rates(simulate: Callable[[Any, int], Any], world: Any, runs: int) -> Any:
        results = [simulate(world, number) for number in range(runs)]
        sums = of_nodes.pages.total(results)
        for name in ("oom", "waves"):
            sums[f"most {name}"] = max(counts[name] for counts in results)
        return sums

    noise = of_nodes.NOISES[2]
    assert rates(of_nodes.check, noise, 20)["false"] <= 1
    slow = rates(of_nodes.check, dataclasses.replace(noise, slow=1, loss=0.05), 20)
    assert (slow["found"] >= 19, slow["most waves"]) == (True, 5)
    noise = of_pairs.NOISES[1]
    none = rates(of_pairs.check, noise, 20)
    assert (none["accusing"] <= 1, none["most waves"] <= 7 + 16) == (True, True)
    for fault in (of_pairs.NODE, of_pairs.LINK):
        found = rates(of_pairs.check, dataclasses.replace(noise, fault=fault, loss=0.05), 20)
        assert (found["right"] >= 18, found["accusing"] <= 1) == (True, True)
    rough = rates(of_sizes.run_one, of_sizes.WORLDS[1], 33)
    assert rough["above 3"] == rough["over budget"] == 0
    assert (rough["above 1"] <= 2, rough["held"] >= 30) == (True, True)
    assert rough["ceiling held"] == rough["ceilings"]
    compiles = next(each for each in of_sizes.WORLDS if each.estimate == "asked")
    assert rates(of_sizes.run_one, compiles, 33)["most oom"] <= 1
    both = rates(of_sizes.run_pairs, of_sizes.PAIRS[0], 20)
    assert both["above 3"] == both["over budget"] == both["none"] == 0
    assert both["held"] >= 17
    searches = rates(of_commits.search, of_commits.World(16, 0.05, of_commits.Noise()), 30)
    assert (searches["right"] >= 28, searches["wrong"]) == (True, 0)
    none = rates(of_commits.search, of_commits.World(16, 0.0, of_commits.Noise()), 30)
    assert none["no change"] >= 28


SCATTERED = {(0, 1): -0.5, (0, 2): 0.0, (0, 4): 0.05, (1, 2): 0.07, (1, 4): 0.0, (2, 2): -0.11,
             (2, 4): 0.0}  # fmt: skip
REMAT: dict[str, Any] = {"key": "remat_policy", "sizes": ("full", "minimal", "none")}


def probed(ended: Ended) -> list[float]:
    return [size_in(each.trial) for each in ended.jobs if not each.trial.block]


def failing(run: Run, cls: FailureClass, where: Callable[[Trial], Any]) -> Run:
    return lambda trial: unfit(trial, cls) if where(trial) else run(trial)


def loss_of_its_size(trial: Trial) -> float:
    return 9.9 if trial.arm.endswith("none") else 7.0 + size_in(trial)


@pytest.mark.parametrize(
    ("study", "run", "expected"),
    [
        row("a list goes upwards, and no further than fits", {"sizes": (4, 8, 12, 16, 20)},
            sizes(ceiling=12), probed=[4, 8, 12, 16], unfit={"pdbs-16": "88.25 GiB"},
            why={"pdbs-20": "not run: larger than 16, which did not fit"}),
        row("a lone leader needs no block where the noise is known",
            {"sizes": (1.0, 2.0, 4.0), "sigma": 0.003}, sizes(), jobs=3, same=("4",),
            kinds={"pdbs-1": NOT_ACCUSED, "pdbs-2": NOT_ACCUSED, "pdbs-4": NOT_ACCUSED}),
        *(
            row(f"{cls} is memory, and is not tried again", {"start": 8},
                failing(sizes(), cls, lambda trial: size_in(trial) > 9),
                largest="9", probed=[8, 12, 9, 10], unfit={"pdbs-10": why, "pdbs-12": why})
            for cls, why in ((OOM, "too little memory"), (FailureClass.KILLED, "SIGKILL"),
                             (FailureClass.OOM_HOST, "the host has too little memory"),
                             (FailureClass.OOM_RCCL_HEADROOM, "pool leaves RCCL"))
        ),
        row("a hang where a smaller size ran is tried once more", {"sizes": (4, 8, 12, 16)},
            failing(sizes(), FailureClass.HANG_SILENT_OOM, lambda trial: size_in(trial) > 9),
            probed=[4, 8, 12, 12], unfit={"pdbs-12": "no progress"}),
        row("a flag unknown three times first is the configuration, and no matter of size",
            {"start": 8}, failing(sizes(), FailureClass.UNKNOWN_FLAG, lambda _: True), jobs=3,
            objection="not the size"),
        row("where nothing fits it says so", {"start": 8}, sizes(ceiling=0.5),
            objection="is recommended: none fits", summary="ceiling: none ran, 1 did not fit"),
        row("a size that fits by chance is not recommended", {"sizes": (8, 10, 12)},
            failing(sizes(), OOM, lambda e: e.arm == "pdbs-12" and e.block == 2), value="10",
            unfit={"pdbs-12": "near to the ceiling"}),
        row("where the noise is not known the best two are run in blocks",
            {"sizes": (1.0, 2.0, 4.0)}, sizes(), jobs=3 + 4 * 2, kinds={"pdbs-2": "SLOWER"}),
        row("two runs of one program are 47 % apart: a first run is not called worse",
            {"sizes": (1.0, 2.0, 4.0), "budget": 7},
            lambda e: measured(e, SCATTERED[e.block, int(size_in(e))]),
            kinds={"pdbs-1": "INCONCLUSIVE"}, jobs=7),
        row("a budget without blocks says that single runs decided", {"start": 8, "budget": 5},
            sizes(best=12), value="12", same=("12", "18"),
            why={"pdbs-12": "left no block"}),
        row("what computes something else is no winner", REMAT,
            machine({"remat-policy-minimal": 0.05, "remat-policy-none": 0.1},
                    losses={"remat-policy-none": 9.9}, noise=0.4),
            value="minimal", kinds={"remat-policy-none": "INCONCLUSIVE"},
            why={"remat-policy-none": "and is not ranked"}),
        row("pairs of the same batch and length must have the same loss",
            {"sigma": 0.002, **PAIRED, "sizes": (2, 4)}, paired(loss=loss_of_its_size),
            value="4 remat_policy=minimal",
            why=dict.fromkeys(("pdbs-2-remat-policy-none", "pdbs-4-remat-policy-none"),
                              "something else")),
        row("a listed size above the compiled ceiling is not tried",
            {"sizes": (4, 8, 16, 24), "sigma": 0.003, "compiles": True},
            asking(sizes(ceiling=12), lambda size: size * LIMIT / 12), probed=[4, 8],
            why={"pdbs-16": "no size above 8 fits"}),
        row("memory as the root of the size is bracketed too", {"start": 8, "compiles": True},
            asking(sizes(ceiling=11), lambda size: LIMIT * (size / 11.5) ** 0.5),
            most=11, alone=9),
        row("and as its square", {"start": 8, "compiles": True},
            asking(sizes(ceiling=11), lambda size: LIMIT * (size / 11.5) ** 2), most=11, alone=9),
        row("compiling that ends for want of memory is an answer", {"start": 8, "compiles": True},
            lambda trial: compiled(trial, None, is_refused=True)
            if trial.stage == "compiled" and size_in(trial) > 9
            else asking(sizes(ceiling=9), lambda size: size * LIMIT / 30)(trial),
            most=9),
    ],
)  # fmt: skip
def test_worlds(study: dict[str, Any], run: Run, expected: dict[str, Any]) -> None:
    ended = drive(batch(**study), run)
    record, unfit = ended.record, expected.get("unfit", {})
    probes = probed(ended) if "key" not in study else []
    facts = {
        "value": record.value,
        "largest": record.largest,
        "same": record.same,
        "jobs": len(ended.jobs),
        "probed": probes,
        "most": max(probes, default=0),
    }
    assert {name: fact for name, fact in facts.items() if expected.get(name, fact) != fact} == {}
    assert sum(e.memory is not None for e in ended.history) <= expected.get("alone", 12)
    assert expected.get("kinds", {}).items() <= ended.kinds.items()
    for arm, words in {**expected.get("why", {}), **unfit}.items():
        assert words in ended.why(arm)
    for arm in unfit:
        assert (ended.kinds[arm], ended.verdict(arm).can_run) == ("INVALID", False)
    assert expected.get("summary", "") in " ".join(ended.summary)
    assert expected.get("notes", "") in ended.notes
    assert expected.get("objection", "") in " ".join(map(sentence, record.objection))
    assert bool(record.objection) is ("objection" in expected)
    if probes and expected.get("objection") != "not the size":
        gone = [size_in(e.trial) for e in ended.jobs if e.status is TrialStatus.DROPPED]
        assert sorted(gone, reverse=True) == gone, "no larger one after one that did not fit"


def test_it_finds_the_ceiling_and_the_best_below_it() -> None:
    ended = drive(batch(start=8), sizes(ceiling=21, best=12))
    found = ended.record
    assert found.value in ("11", "12", "13")
    assert "12" in found.same
    assert found.files[BEST_FILE] == f"per_device_batch_size={found.value}\n"
    assert float(found.largest) <= 21 < float(found.unfit) <= 1.13 * float(found.largest)
    assert ended.summary[0].startswith(f"recommended: {found.key}={found.value} with ")
    assert ended.summary[-1] == f"ceiling: {found.largest} ran, {found.unfit} did not fit"
    # its neighbours cannot be told from it, so nothing is FASTER
    assert ended.conclusion.verdicts[0].arm == found.arm
    assert (ended.kinds[found.arm], ended.conclusion.winner) == ("INCONCLUSIVE", None)
    blocks = [[e.trial.arm for e in ended.history if e.trial.block == at] for at in (1, 2, 3, 4)]
    assert len(set(map(frozenset, blocks))) == 1, "complete blocks"
    assert len(set(map(tuple, blocks))) > 1, "each block has an order of its own"
    # where no compiler answers it goes on as without one
    silent = asking(sizes(ceiling=21, best=12), lambda _: None, said="no target")
    asked = drive(batch(start=8, compiles=True), silent)
    assert len(asked.history) - len(asked.jobs) == 1, "it is asked once"
    assert [each.trial.id for each in asked.jobs] == [each.trial.id for each in ended.history]
    assert "looked for the ceiling: no target" in asked.notes


def test_a_size_that_ran_above_one_that_did_not_fit_is_not_recommended() -> None:
    steady, asked = sizes(ceiling=40, best=12), list[float]()

    def run(trial: Trial) -> TrialResult:
        asked.append(size_in(trial))
        is_between = 8 < size_in(trial) < max(asked)
        return unfit(trial, OOM) if is_between else steady(trial)

    ended = drive(batch(start=8), run)
    end = float(ended.record.unfit)
    above = {size_in(e.trial) for e in ended.history if e.score and size_in(e.trial) > end}
    assert above
    for size in above:
        assert not ended.verdict(f"pdbs-{size:g}").can_run
        assert ended.why(f"pdbs-{size:g}").startswith(f"it ran, but {end:g} did not")
    assert all(float(each) < end for each in (ended.record.value, *ended.record.same))
    assert not any(each.trial.block and size_in(each.trial) in above for each in ended.history)


def test_values_of_other_keys_are_cells_too() -> None:
    length = batch(key="max_target_length", sizes=(1024, 2048))
    assert [each.max_target_length for each in length.cells] == [1024, 2048]
    fraction = batch(key="XLA_PYTHON_CLIENT_MEM_FRACTION", sizes=(0.9, 0.93), compiles=True)
    assert fraction.cells[1].deployed["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.93"
    remat = batch(**REMAT, compiles=True)
    assert [each.overrides["remat_policy"] for each in remat.cells] == [*REMAT["sizes"]]
    assert len({each.name for each in (length, fraction, remat)}) == 3
    # a compiler knows how the sizes of a program grow, and no variable and no word
    assert {each.policy.compiled_stage for each in (fraction, remat, batch(start=4))} == {""}
    assert batch(start=4).decide(()).arms == ()
    configured = batch(own=None, configured={"per_device_batch_size": "12.0"})
    assert configured.values[configured.start] == "12"


@pytest.mark.parametrize("ceiling", [1, 13, 31, 99])
def test_a_compiler_is_asked_before_any_job_and_no_job_is_out_of_memory(ceiling: int) -> None:
    slope = LIMIT / (ceiling + 0.5) / 1.25
    run = asking(sizes(ceiling=ceiling), lambda size: 0.2 * LIMIT + slope * size)
    ended = drive(batch(start=8, sigma=0.004, compiles=True), run)
    assert all(each.score for each in ended.jobs), "no job that does not fit"
    assert max(probed(ended)) == min(ceiling, 32)
    assert (ended.record.largest, ended.record.unfit) == (str(min(ceiling, 32)), "")
    assert ended.summary[-1].endswith("no larger one may be tried")


def test_a_second_key_is_a_list_of_cells() -> None:
    for compiles in (True, False):
        ended = drive(batch(sigma=0.002, **PAIRED, compiles=compiles), paired(c=0.1))
        alone = len(ended.history) - len(ended.jobs)
        assert [bool(each.memory) for each in ended.history[:alone]] == [True] * alone
        gone = [each for each in ended.jobs if not each.score]
        assert len(gone) == (0 if compiles else 2), "the smallest of each policy that does not fit"
        assert "4 remat_policy=none" in ended.record.same
        assert len(probed(ended)) == len(gone) + 6, "each cell that fits, once"


@settings(max_examples=tried(60), deadline=None)
@given(
    is_paired=st.booleans(),
    ceiling=st.floats(0.5, 60),
    start=st.integers(1, 30),
    budget=st.integers(2, 40),
    failures=st.dictionaries(st.integers(0, 39), st.sampled_from(list(FailureClass)), max_size=6),
    order=st.randoms(use_true_random=False),
)
def test_it_ends_in_every_world_within_its_budget(
    *, is_paired: bool, ceiling: float, start: int, budget: int, failures: Any, order: Any
) -> None:
    steady = paired(beside=min(ceiling / 40, 1)) if is_paired else sizes(ceiling=ceiling)
    asked: dict[str, Any] = {"compiles": True, **PAIRED} if is_paired else {"start": start}
    jobs: list[Trial] = []

    def run(trial: Trial) -> TrialResult:
        if trial.stage == "compiled":
            return steady(trial)
        jobs.append(trial)
        cls = failures.get(len(jobs) - 1)
        status = (TrialStatus.DROPPED, TrialStatus.UNMEASURED)[len(jobs) % 2]
        return steady(trial) if cls is None else replace(unfit(trial, cls), status=status)

    ended = drive(batch(budget=budget, **asked), run)
    history = [*ended.history]
    order.shuffle(history)
    again = batch(budget=budget, **asked).decide(history)
    assert (again.conclusion, again.due) == (ended.conclusion, ())
    value, _, policy = ended.record.value.partition(" remat_policy=")
    if value:
        assert ended.record.value in ended.record.same
        assert float(value) <= (CEILINGS[policy] if is_paired else ceiling)
        assert float(value) in probed(ended)
