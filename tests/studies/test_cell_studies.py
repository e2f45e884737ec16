"""What every study whose arms are cells keeps: the contract, the budget, the promised rates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import profile
from pytest_xlatune.model.result import Conclusion, TrialResult, TrialStatus
from pytest_xlatune.studies import Answered, Ask, Question, Study
from pytest_xlatune.studies.batch_size import BatchSize
from pytest_xlatune.studies.commit_check import Load
from tests.helpers import benchmarks
from tests.helpers.cells import (
    CELL,
    PAIRED,
    Run,
    batch,
    changing,
    commits,
    drive,
    machine,
    network,
    nodes,
    paired,
    sizes,
)

LAST = "000000000002"
LOADS = tuple(Load(model=name) for name in "abcd")
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
        partial(commits, 2, loads=LOADS), machine({f"b-{LAST}": -0.05}, noise=0.33), f"b-{LAST}",
        "", [],
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
    [("nodes", 36), ("network", 72), *(("a table of commits", budget) for budget in (8, 12, 16))],
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


@pytest.mark.parametrize(
    ("make", "said", "why"),
    REFUSED,
    ids=[f"{make.__name__} of {said}" for make, said, _ in REFUSED],
)
def test_what_compares_nothing_is_refused(
    make: Callable[..., Study], said: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        make(**said)


def test_sizes_are_compared_in_a_sweep_without_profiles() -> None:
    asked = benchmarks.load("batch_rates").asked_of(CELL, 30)
    asked = dataclasses.replace(asked, profiles=(profile("fast", "--xla_fast=1"),))
    with pytest.raises(ConfigError, match="the sweep has profiles"):
        BatchSize(start=8).study(asked)


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
