"""The network study: which pairs it runs, whom it accuses, and what it says when it cannot tell."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.result import (
    Conclusion,
    Score,
    State,
    TrialResult,
    TrialStatus,
    VerdictKind,
)
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.report.lines import live_line, standing
from pytest_xlatune.studies import Answered, Ask, Question
from pytest_xlatune.studies.network_check import (
    CONCLUSION,
    Network,
    NetworkRecord,
    NetworkStudy,
)
from pytest_xlatune.studies.network_check._pairs import every_pair_once
from tests.helpers import benchmarks
from tests.helpers.answers import NOT_ACCUSED, kinds, lost
from tests.helpers.examples import tried

rates = benchmarks.load("network_rates")

NOISE = (0.0031, -0.0024, 0.0008, -0.0015, 0.0022, -0.0007, 0.0013, -0.0028, 0.0004, -0.0011)
CELL = Cell(
    model_tag="llama2-70b", parallelism=Parallelism.parse("FSDP=16"), protocol=Protocol(steps=15)
)
Run = Callable[[Trial, tuple[str, str]], TrialResult]


def study_of(count: int, *, budget: int = 500, **said: object) -> NetworkStudy:
    names = tuple(f"node{at:03d}" for at in range(1, count + 1))
    cell = replace(CELL, nodelist=names)
    return NetworkStudy(cell=cell, asked=Network(**said), budget=budget)  # type: ignore[arg-type]


def scored(trial: Trial, value: float) -> TrialResult:
    score = Score(value=value, tgs=math.exp(value), step_s=1.0, n_steps=10, window=(5, 14))
    return TrialResult(trial=trial, status=TrialStatus.MEASURED, score=score, job_ids=(trial.id,))


def speeds(
    nodes: Mapping[str, float] | None = None, links: Mapping[tuple[str, str], float] | None = None
) -> Run:
    """Return nodes and links that cost so much; the noise is by pair and block."""

    def run(trial: Trial, pair: tuple[str, str]) -> TrialResult:
        number = sum(map(ord, trial.arm)) * 7 + trial.block * 3 + ord(trial.stage[0])
        effect = sum((nodes or {}).get(name, 0.0) for name in pair) + (links or {}).get(pair, 0.0)
        return scored(trial, math.log(1800) + effect + NOISE[number % len(NOISE)])

    return run


def drive(study: NetworkStudy, run: Run) -> tuple[Conclusion, list[TrialResult]]:
    history: list[TrialResult] = []
    while trials := study.decide(history).due:
        history += [run(each, study.pair_of(each)) for each in trials]
    assert len({each.trial.id for each in history}) == len(history) <= study.budget
    return study.decide(history).conclusion, history


def whole(concluded: Conclusion) -> str:
    """The verdict on the network, and what it names."""
    found = concluded.verdict(CONCLUSION)
    assert found is not None
    named = record(concluded)
    names = (*named.accused, *named.unhealthy, *(["-".join(named.link)] if named.link else []))
    return " ".join((kinds(concluded)[CONCLUSION], *names))


def said(concluded: Conclusion) -> list[tuple[str, str, float | None]]:
    return [(each.arm, str(each.kind), each.delta) for each in concluded.verdicts]


def record(concluded: Conclusion) -> NetworkRecord:
    assert isinstance(concluded.record, NetworkRecord)
    return concluded.record


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


@pytest.mark.parametrize("count", [4, 5, 8, 9])
def test_a_healthy_network_says_what_is_excluded(count: int) -> None:
    study = study_of(count)
    concluded, history = drive(study, speeds())
    assert len(history) == count * (count - 1) // 2
    said = kinds(concluded)
    assert said.pop(CONCLUSION) == NOT_ACCUSED
    assert set(said.values()) == {NOT_ACCUSED}
    found = record(concluded)
    assert found.node_loss is not None
    assert found.link_loss is not None
    assert 0 < found.node_loss < 0.02
    assert 0 < found.link_loss < 0.05
    assert f"no link {100 * found.link_loss:.1f} %" in sentence(found.summary[1])


@pytest.mark.parametrize("count", [4, 5, 8, 9, 16])
@pytest.mark.parametrize("effect", [-0.30, -0.05])
def test_a_slow_node_is_named_and_no_other(count: int, effect: float) -> None:
    concluded, history = drive(study_of(count), speeds({"node002": effect}))
    said = kinds(concluded)
    assert whole(concluded) == "SLOWER node002"
    del said[CONCLUSION]
    assert said.pop("node002") == "SLOWER"
    assert set(said.values()) == {NOT_ACCUSED}
    found = concluded.verdict(CONCLUSION)
    assert found is not None
    assert found.ci95 is not None
    assert found.ci95[0] - 0.003 < math.expm1(effect) < found.ci95[1] + 0.003
    assert len(history) == min(4, count - 1 + count % 2) * (count // 2) + 4 * 2, "then it is over"


@pytest.mark.parametrize("count", [4, 5, 8, 9, 16])
@pytest.mark.parametrize("effect", [-0.30, -0.05])
def test_a_slow_link_is_named_and_its_nodes_are_not_accused(count: int, effect: float) -> None:
    concluded, _ = drive(study_of(count), speeds(links={("node002", "node004"): effect}))
    said = kinds(concluded)
    assert whole(concluded) == "SLOWER node002-node004"
    del said[CONCLUSION]
    assert [said.pop(name) for name in ("node002", "node004")] == [NOT_ACCUSED, NOT_ACCUSED]
    assert set(said.values()) == {NOT_ACCUSED}
    assert any("has a faulty network card or link" in sentence(n) for n in concluded.notes)
    end = concluded.verdict("node002")
    assert end is not None
    assert end.kind is VerdictKind.EQUIVALENT
    assert isinstance(concluded.record, NetworkRecord)
    (slow,) = (e for e in concluded.record.pairs if set(e.nodes) == {"node002", "node004"})
    assert slow.fresh == pytest.approx(math.expm1(effect), abs=0.012), "its own loss is no usual"


def test_two_slow_nodes_are_several() -> None:
    concluded, _ = drive(study_of(12), speeds({"node002": -0.1, "node007": -0.06}))
    said = kinds(concluded)
    assert said[CONCLUSION] == "SLOWER"
    assert [said["node002"], said["node007"]] == ["SLOWER", "SLOWER"]


def test_one_bad_run_accuses_no_one() -> None:
    steady = speeds()

    def run(trial: Trial, pair: tuple[str, str]) -> TrialResult:
        found = steady(trial, pair)
        is_bad = trial.arm == "node002+node003" and trial.stage == "round"
        return scored(trial, found.score.value - 0.06) if is_bad and found.score else found

    concluded, history = drive(study_of(8), run)
    assert whole(concluded) == NOT_ACCUSED
    assert len(history) == 28 + 2


@pytest.mark.parametrize("cls", [FailureClass.HANG_INIT, FailureClass.NODE_FAIL])
def test_a_node_that_cannot_communicate_ends_its_rounds(cls: FailureClass) -> None:
    steady = speeds()

    def run(trial: Trial, pair: tuple[str, str]) -> TrialResult:
        return lost(trial, cls) if "node003" in pair else steady(trial, pair)

    study = study_of(8)
    history: list[TrialResult] = []
    while trials := study.decide(history).due:  # one by one, as they land
        history.append(run(trials[0], study.pair_of(trials[0])))
    concluded = study.decide(history).conclusion
    failed = [each for each in history if each.score is None]
    assert len(failed) == 2, "two partners are enough"
    said = kinds(concluded)
    assert whole(concluded) == "INVALID node003"
    assert said.pop("node003") == "INVALID"
    del said[CONCLUSION]
    assert set(said.values()) == {NOT_ACCUSED}
    unhealthy = concluded.verdict("node003")
    assert unhealthy is not None
    assert not unhealthy.can_run
    assert cls.meaning in sentence(unhealthy.reasons[0])


def test_three_nodes_that_cannot_communicate_stop_the_study() -> None:
    steady = speeds()
    dead = {"node003", "node007", "node011"}

    def run(trial: Trial, pair: tuple[str, str]) -> TrialResult:
        return lost(trial, FailureClass.HANG_INIT) if set(pair) & dead else steady(trial, pair)

    concluded, history = drive(study_of(16), run)
    said = kinds(concluded)
    assert said.pop(CONCLUSION) == "INVALID"
    assert {name for name, word in said.items() if word == "INVALID"} == dead
    assert len(history) <= 4 * 8


def test_where_everything_fails_no_node_is_accused() -> None:
    concluded, history = drive(study_of(8), lambda t, _: lost(t, FailureClass.HANG_INIT))
    said = kinds(concluded)
    assert said[CONCLUSION] == "INVALID"
    assert "more pairs failed than were measured" in sentence(record(concluded).summary[0])
    assert len(history) <= 16


def test_a_link_over_which_nothing_runs_is_named() -> None:
    steady = speeds()

    def run(trial: Trial, pair: tuple[str, str]) -> TrialResult:
        is_dead = pair == ("node002", "node005")
        return lost(trial, FailureClass.HANG_INIT) if is_dead else steady(trial, pair)

    concluded, history = drive(study_of(8), run)
    (why,) = record(concluded).objection
    assert sentence(why).startswith("node002-node005 cannot communicate with each other")
    assert len(history) == 28 + 2, "it failed again, twice"


def test_what_a_person_cancelled_is_not_called_healthy() -> None:
    steady = speeds()

    def run(trial: Trial, pair: tuple[str, str]) -> TrialResult:
        is_gone = pair == ("node002", "node005")
        cancelled = lost(trial, FailureClass.CANCELLED, state=State.CANCELLED)
        return cancelled if is_gone else steady(trial, pair)

    concluded, _ = drive(study_of(8), run)
    said = kinds(concluded)
    assert said[CONCLUSION] == "INCONCLUSIVE"
    assert "27 of 28 pairs" in sentence(record(concluded).summary[0])
    assert "INVALID" not in said.values()


def test_the_budget_is_never_exceeded() -> None:
    slow = speeds(links={("node002", "node004"): -0.1})
    for budget in range(16, 52):
        concluded, history = drive(study_of(8, budget=budget), slow)
        assert len(history) <= budget
        expected = ("INCONCLUSIVE", "SLOWER node002-node004")
        assert whole(concluded) in expected, budget
    assert whole(concluded) == "SLOWER node002-node004"
    for budget in range(16, 30):
        concluded, history = drive(study_of(8, budget=budget), speeds({"node002": -0.1}))
        assert len(history) <= budget
        named = "SLOWER node002" if budget >= 20 else "INCONCLUSIVE"
        assert whole(concluded) == named, budget
    with pytest.raises(ConfigError, match="8 nodes need 16 jobs to begin with"):
        study_of(8, budget=15)


RACKS = {f"rack{at}": f"node[{8 * at + 1:03d}-{8 * at + 8:03d}]" for at in range(4)}


def test_racks_need_fewer_pairs_and_an_uplink_is_named() -> None:
    study = study_of(32, racks=RACKS)
    concluded, history = drive(study, speeds())
    assert len(history) == study.all_pairs == 4 * 28 + 6
    assert whole(concluded) == NOT_ACCUSED
    rack_of = study.layout.rack_of

    def run(trial: Trial, pair: tuple[str, str]) -> TrialResult:
        is_up = {rack_of[name] for name in pair} == {"rack1", "rack3"}
        found = speeds()(trial, pair)
        assert found.score is not None
        return scored(trial, found.score.value - (0.06 if is_up else 0.0))

    concluded, _ = drive(study, run)
    assert whole(concluded) == "SLOWER rack1-rack3"
    concluded, _ = drive(study, speeds(links={("node009", "node012"): -0.06}))
    assert whole(concluded) == "SLOWER node009-node012"
    concluded, _ = drive(study, speeds({"node020": -0.06}))
    assert whole(concluded) == "SLOWER node020"


def test_racks_come_from_a_topology_too() -> None:
    text = "".join(
        f"SwitchName=leaf{at} LinkSpeed=9 Nodes={nodes}\n"
        for at, nodes in enumerate(RACKS.values())
    )
    text += "SwitchName=spine Switches=leaf[0-3]  # no node of its own\n"
    study = study_of(32, topology=text)
    assert study.all_pairs == 4 * 28 + 6
    assert set(study.layout.racks) == {"leaf0", "leaf1", "leaf2", "leaf3"}
    with pytest.raises(ConfigError, match="names no switch with nodes"):
        _ = study_of(32, topology="nodes: 1")
    with pytest.raises(ConfigError, match="without a rack: node032"):
        _ = study_of(32, racks={**RACKS, "rack3": "node[025-031]"})


def test_racks_may_name_their_nodes_in_another_order_than_the_node_list() -> None:
    """A rack's rounds held (a, b), and fresh pairs were looked for as (b, a)."""
    names = tuple(f"node{at:03d}" for at in (4, 2, 8, 6, 1, 3, 7, 5, *range(9, 17)))
    racks = {"a": "node[001-008]", "b": "node[009-012]", "c": "node[013-016]"}
    study = NetworkStudy(cell=replace(CELL, nodelist=names), asked=Network(racks=racks), budget=500)
    slow = {("node002", "node001"): -0.1, ("node001", "node002"): -0.1}
    concluded, _ = drive(study, speeds(links=slow))
    assert whole(concluded) == "SLOWER node002-node001"


def test_small_racks_have_a_cell_for_each_pair_of_every_round() -> None:
    """The fourth round between racks of two and of three took a pair that no cell stood for."""
    sizes, racks, first = (4, 2, 3, 2, 3), {}, 1
    for at, size in enumerate(sizes):
        racks[f"r{at}"] = f"node[{first:03d}-{first + size - 1:03d}]"
        first += size
    study = study_of(sum(sizes), racks=racks)
    concluded, history = drive(study, speeds())
    assert len(history) == study.all_pairs
    assert whole(concluded) == NOT_ACCUSED


def test_a_hundred_and_twenty_eight_nodes_in_racks_plan_at_once() -> None:
    racks = {f"r{at}": f"node[{16 * at + 1:03d}-{16 * at + 16:03d}]" for at in range(8)}
    study = study_of(128, racks=racks, budget=1200)
    assert study.all_pairs == 8 * 120 + 28
    assert len(study.decide(()).due) == 4 * 64
    assert study.most_jobs <= 1400


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"count": 3}, "3 nodes are named, at least 4"),
        ({"count": 4, "steps": 1}, "a single step is compilation"),
    ],
)
def test_what_compares_nothing_is_refused(said: dict[str, int], why: str) -> None:
    names = tuple(f"node{at:03d}" for at in range(said["count"]))
    protocol = Protocol(steps=said.get("steps", 15))
    with pytest.raises(ConfigError, match=why):
        NetworkStudy(cell=replace(CELL, nodelist=names, protocol=protocol))


def test_any_prefix_of_the_results_leads_to_the_same_end() -> None:
    study = study_of(8)
    concluded, history = drive(study, speeds(links={("node002", "node004"): -0.1}))
    for end in range(len(history)):
        proposed = study.decide(history[:end]).due
        assert proposed, end
        assert not study.decide(history[:end]).conclusion.complete
        assert study.outlook(history[:end]).left >= len(proposed)
    assert study.decide(list(reversed(history))).conclusion == concluded
    again = NetworkStudy.from_json(study.to_json())
    assert again.decide(history).conclusion == concluded
    assert Conclusion.from_json(concluded.to_json()) == concluded


def test_renaming_nodes_changes_no_verdict() -> None:
    links = {("node002", "node004"): -0.1}
    concluded, _ = drive(study_of(8), speeds(links=links))
    old = study_of(8).cell.nodelist
    new = tuple(f"gpu-{letter}" for letter in "qwertyui")
    own = dict(zip(new, old, strict=True))
    steady = speeds(links=links)

    def run(trial: Trial, pair: tuple[str, str]) -> TrialResult:
        a, b = own[pair[0]], own[pair[1]]
        found = steady(replace(trial, arm=f"{a}+{b}"), (a, b))
        return replace(found, trial=trial)

    renamed, _ = drive(NetworkStudy(cell=replace(CELL, nodelist=new), budget=500), run)
    assert whole(renamed) == "SLOWER gpu-w-gpu-r"
    by_old = {own.get(each.arm, each.arm): each.delta for each in renamed.verdicts}
    assert by_old == {each.arm: each.delta for each in concluded.verdicts}


@settings(max_examples=tried(25), deadline=None)
@given(order=st.permutations(range(8)), is_link=st.booleans())
def test_the_order_of_the_nodes_changes_no_verdict(order: list[int], is_link: bool) -> None:
    """Names are handed round: the fault keeps its node, the runs of each node stay the same."""
    names = study_of(8).cell.nodelist
    own = dict(zip(names, (names[at] for at in order), strict=True))  # label -> the node behind it
    label = {node: name for name, node in own.items()}
    pair = ("node002", "node004")
    run = speeds(None if is_link else {"node002": -0.1}, {pair: -0.1} if is_link else None)

    def relabelled(trial: Trial, labels: tuple[str, str]) -> TrialResult:
        a, b = sorted(own[each] for each in labels)
        return replace(run(replace(trial, arm=f"{a}+{b}"), (a, b)), trial=trial)

    # the same nodes at the same places under other names: equal in all that is said
    listed = NetworkStudy(cell=replace(CELL, nodelist=tuple(map(label.get, names))), budget=500)
    before, _ = drive(study_of(8), run)
    after, _ = drive(listed, relabelled)
    assert {own.get(arm, arm): (word, delta) for arm, word, delta in said(after)
            if arm != CONCLUSION} == {arm: (word, delta) for arm, word, delta in said(before)
                                      if arm != CONCLUSION}  # fmt: skip
    # other places, thus other rounds: the same fault
    moved, _ = drive(study_of(8), relabelled)
    for found in (record(after), record(moved)):
        assert {own[each] for each in found.link} == (set(pair) if is_link else set())
        assert [own[each] for each in found.accused] == ([] if is_link else ["node002"])


def test_a_bad_link_is_found_among_as_many_bad_jobs_as_nodes() -> None:
    """Of 32 nodes: 3 percent of 496 jobs are bad, a dozen of them slower than the link's run."""
    names = study_of(32).cell.nodelist
    link = (names[3], names[20])
    pairs = [pair for pair in combinations(names, 2) if link[0] not in pair and link[1] not in pair]
    unlucky = set(pairs[::35][:12])
    steady = speeds(links={link: -0.04})

    def run(trial: Trial, pair: tuple[str, str]) -> TrialResult:
        found = steady(trial, pair)
        if trial.stage != "round" or pair not in unlucky or found.score is None:
            return found
        return replace(found, score=replace(found.score, value=found.score.value - 0.05))

    concluded, history = drive(study_of(32, budget=1000), run)
    assert whole(concluded) == f"SLOWER {'-'.join(link)}"
    assert len(history) <= 1.1 * 525


def test_one_bad_fresh_run_neither_accuses_nor_acquits() -> None:
    for stage_side in ("own", "beside"):
        steady = speeds({"node002": -0.05})

        def run(
            trial: Trial, pair: tuple[str, str], side: str = stage_side, steady: Run = steady
        ) -> TrialResult:
            found = steady(trial, pair)
            is_hit = (trial.stage, trial.block) == ("node", 2) and (
                ("node002" in pair) is (side == "own")
            )
            if not is_hit or found.score is None:
                return found
            return replace(found, score=replace(found.score, value=found.score.value - 0.05))

        concluded, history = drive(study_of(8), run)
        found = concluded.verdict(CONCLUSION)
        assert found is not None
        assert whole(concluded) == "SLOWER node002"
        assert found.delta == pytest.approx(-0.05, abs=0.006)
        assert len(history) == 24


def test_a_test_waits_until_everything_is_over() -> None:
    study = study_of(8)
    _, history = drive(study, speeds({"node002": -0.10}))
    asked = Question(about=Ask.CONFIRMED, name="node002")
    assert study.answer(history[:6], asked).state is Answered.NOT_YET
    found = study.answer(history, asked)
    assert found.verdict is not None
    assert found.verdict.kind == "SLOWER"
    assert study.answer(history, replace(asked, name=CONCLUSION)).state is Answered.YES
    assert study.answer(history, replace(asked, name="node9")).state is Answered.NEVER
    assert [each.id for each in study.decide(()).arms] == list(study.cell.nodelist)


def test_simulated_checks_keep_the_promised_rates() -> None:
    """A fiftieth of `benchmarks/network_rates.py`, which writes error_rates.md."""
    noise = rates.NOISES[1]
    none = rates.rates(noise, 20)
    assert none["accusing"] <= 1
    assert none["most waves"] <= 7 + 16
    for fault in (rates.NODE, rates.LINK):
        found = rates.rates(dataclasses.replace(noise, fault=fault, loss=0.05), 20)
        assert found["right"] >= 18
        assert found["accusing"] <= 1


def test_a_live_line_says_which_round_of_how_many() -> None:
    study = study_of(8)
    _, history = drive(study, speeds(links={("node002", "node003"): -0.10}))
    places = list(dict.fromkeys(sentence(study.place_of(each.trial)) for each in history))
    assert places[:2] == ["round 1 of about 7, 4 pairs", "round 2 of about 7, 4 pairs"]
    assert "slow pairs again, wave 1" in places
    assert places[-1] == "the slowest pair again, wave 8"
    landed = next(each for each in history if each.trial.block == 3)
    so_far = study.decide(history[:12]).conclusion.verdict(landed.trial.arm)
    progress = standing(history[:12], left_s=(240.0, 240.0))
    line = live_line(landed, verdict=so_far, progress=progress, place=study.place_of(landed.trial))
    assert "TGS" in line
    assert line.endswith(" round 3 of about 7, 4 pairs | 12 of 12 jobs, about 4 min left"), line
    assert "confirm" not in line
