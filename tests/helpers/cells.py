"""Studies whose arms are cells, machines of made speeds to run them on, and what came of some."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import Profile
from pytest_xlatune.model.result import (
    Action,
    Conclusion,
    Finding,
    State,
    TrialResult,
    TrialStatus,
    Verdict,
)
from pytest_xlatune.model.trial import CompiledMemory, Trial
from pytest_xlatune.report.measured_cell import MeasuredCell
from pytest_xlatune.studies import Study
from pytest_xlatune.studies.batch_size import BatchSize, BatchStudy
from pytest_xlatune.studies.commit_check import Commits, CommitStudy, Load
from pytest_xlatune.studies.network_check import Network, NetworkStudy
from pytest_xlatune.studies.node_check import Nodes, NodeStudy
from tests.helpers import benchmarks, history

NOISE = (0.0031, -0.0024, 0.0008, -0.0015, 0.0022, -0.0007, 0.0013, -0.0028, 0.0004, -0.0011)
CELL = Cell(
    model_tag="llama2-70b",
    parallelism=Parallelism.parse("FSDP=8"),
    protocol=Protocol(steps=15),
    nodelist=tuple(f"node{at:03d}" for at in range(1, 9)),
)
LIMIT = 80 * 2**30  # bytes of a device
# bigger batches gain less and less, and later policies take more memory
LATER = {"full": 0.0, "minimal": 0.06, "none": 0.1}
CEILINGS = {"full": 20, "minimal": 9, "none": 4}
PAIRED: dict[str, Any] = {"sizes": (4, 9, 20), "by": "remat_policy", "by_values": tuple(LATER)}
Run = Callable[[Trial], TrialResult]


def row(name: str, *given: Any, **expected: Any) -> Any:
    """Return a row of a table of worlds: what is run, and what is said of it."""
    return pytest.param(*given, expected, id=name)


def node_names(count: int) -> tuple[str, ...]:
    return tuple(f"node{at:03d}" for at in range(1, count + 1))


def nodes(count: int, *, names: tuple[str, ...] = (), budget: int = 200, **said: Any) -> NodeStudy:
    cells = tuple(replace(CELL, nodelist=(name,)) for name in names or node_names(count))
    return NodeStudy(cells=cells, asked=Nodes(**said), budget=budget)


def network(
    count: int, *, names: tuple[str, ...] = (), budget: int = 500, **said: Any
) -> NetworkStudy:
    cell = replace(CELL, nodelist=names or node_names(count))
    return NetworkStudy(cell=cell, asked=Network(**said), budget=budget)


def commits(count: int, *, loads: tuple[Load, ...] = (), budget: int = 200) -> CommitStudy:
    cells = tuple(replace(CELL, code=f"{at + 1:012x}{0:028x}") for at in range(count))
    return CommitStudy(
        cells=tuple(load.cell(cell) for load in loads for cell in cells) or cells,
        labels=tuple(f"{at + 1:012x} change {at}" for at in range(count)),
        asked=Commits(loads=loads),
        is_search=not loads,
        budget=budget,
    )


def batch(
    *, budget: int = 40, own: float | None = 8, compiles: bool = False,
    configured: Mapping[str, str] | None = None, profiles: tuple[Profile, ...] = (), **said: Any,
) -> BatchStudy:  # fmt: skip
    """Return a study of sizes; `own` is the sweep's, `compiles` asks a compiler."""
    rates = benchmarks.load("batch_rates")
    asked = rates.asked_of(replace(CELL, per_device_batch_size=own), budget)
    changes = {"asks_compiler": compiles, "configured": configured or {}, "profiles": profiles}
    asked = dataclasses.replace(asked, **changes)
    return BatchSize(**said).study(asked)


def unfit(trial: Trial, cls: FailureClass) -> TrialResult:
    """Return a run that ended for good, as one does that does not fit."""
    finding = Finding(cls=cls, action=Action.DROP, text="a line", detail="88.25 GiB")
    return replace(history.lost(trial, cls), status=TrialStatus.DROPPED, findings=(finding,))


def changing(first: int, change: float, *, step: float = 0.0) -> Callable[[Trial], float]:
    """Return the speeds of commits: a change at the first one, and a loss at each."""

    def level(trial: Trial) -> float:
        at = int(trial.arm, 16) - 1  # a commit's hash is its number
        return 7.5 - step * at + (math.log1p(change) if at >= first else 0.0)

    return level


def machine(
    effects: Mapping[str, float] | None = None,
    *,
    lost: Mapping[str, FailureClass] | None = None,
    losses: Mapping[str, float] | None = None,
    told: Mapping[str, tuple[FailureClass, str, str]] | None = None,
    level: Callable[[Trial], float] = lambda _: math.log(1800),
    noise: float = 1.0,
) -> Run:
    """Return a machine of made speeds; `told` is what the site says of a node: class, text, by.

    A world names the whole of an arm (`node001`, `node001+node002`), or a part of it:
    `node001/2` in block 2, `node001@round` in a stage, `node001@node/2` in both.
    """

    def run(trial: Trial) -> TrialResult:
        names = dict.fromkeys((trial.arm, *trial.arm.split("+")))
        parts = ("", f"/{trial.block}", f"@{trial.stage}", f"@{trial.stage}/{trial.block}")
        keys = [f"{name}{part}" for part in parts for name in names]
        if cls := next((lost[key] for key in keys if lost and key in lost), None):
            state = State.CANCELLED if cls is FailureClass.CANCELLED else State.FAILED
            return history.lost(trial, cls, state=state)
        number = sum(map(ord, trial.arm)) * 7 + trial.block * 3 + ord(trial.stage[0])
        effect = sum((effects or {}).get(key, 0.0) for key in keys)
        value = level(trial) + effect + noise * NOISE[(number + trial.position) % len(NOISE)]
        loss = next((losses[key] for key in keys if losses and key in losses), 7.1)
        found = history.measured(trial, value, loss=loss)
        for cls, text, by in (told[key] for key in keys if told and key in told):
            said = Finding(cls=cls, action=Action.NONE, text=text, source=by or trial.arm)
            found = replace(found, findings=(*found.findings, said))
        return found

    return run


def size_in(trial: Trial) -> float:
    return float(trial.arm.split("-")[1])


def sizes(*, ceiling: float = math.inf, best: float = math.inf, **said: Any) -> Run:
    """Return a machine on which TGS saturates, falls above `best`, and ends above the ceiling."""

    def level(trial: Trial) -> float:
        size = size_in(trial)
        return math.log(2000 * size / (size + 4)) - 0.02 * max(0, size - best)

    steady = machine(**{"level": level, "noise": 0.4, **said})

    def run(trial: Trial) -> TrialResult:
        is_out = size_in(trial) > ceiling
        return unfit(trial, FailureClass.OOM_GPU) if is_out else steady(trial)

    return run


def compiled(trial: Trial, needed_bytes: float | None, **said: Any) -> TrialResult:
    needed = None if needed_bytes is None else int(needed_bytes)
    memory = CompiledMemory(**{"needed_bytes": needed, "limit_bytes": LIMIT, **said})
    return TrialResult(trial=trial, status=TrialStatus.DROPPED, memory=memory)


def asking(run: Run, needed: Callable[[float], float | None], **said: Any) -> Run:
    """Return a machine beside which a compiler says what each size needs."""

    def answer(trial: Trial) -> TrialResult:
        is_alone = trial.stage == "compiled"
        return compiled(trial, needed(size_in(trial)), **said) if is_alone else run(trial)

    return answer


def paired(
    *, beside: float = 1.0, c: float = 1.0, loss: Callable[[Trial], float | None] = lambda _: None
) -> Run:
    """Return a machine of three policies with ceilings of their own, and its compiler.

    A job takes memory that the compiler does not see, where `beside` is below 1.
    """

    def run(trial: Trial) -> TrialResult:
        policy, size = trial.arm.rpartition("-")[2], size_in(trial)
        share = size / (CEILINGS[policy] + 0.5)
        if trial.stage == "compiled":
            return compiled(trial, share * LIMIT)
        if share > beside:
            return unfit(trial, FailureClass.OOM_GPU)
        noise = 0.4 * NOISE[(int(size) * 7 + len(policy) + 3 * trial.block) % len(NOISE)]
        value = 7.5 + math.log(size / (size + c)) + LATER[policy] + noise
        return history.measured(trial, value, loss=loss(trial))

    return run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ended:
    """A study that was run to its end: its conclusion, and all results."""

    conclusion: Conclusion
    history: tuple[TrialResult, ...]

    @property
    def kinds(self) -> dict[str, str]:
        return history.kinds(self.conclusion)

    @property
    def record(self) -> Any:
        return self.conclusion.record

    @property
    def notes(self) -> str:
        return "\n".join(map(sentence, self.conclusion.notes))

    @property
    def summary(self) -> list[str]:
        return [sentence(each) for each in self.conclusion.facts.summary]

    @property
    def jobs(self) -> list[TrialResult]:
        return [each for each in self.history if each.memory is None]

    def verdict(self, arm: str) -> Verdict:
        return history.verdict(self.conclusion, arm)

    def why(self, arm: str) -> str:
        return "; ".join(map(sentence, self.verdict(arm).reasons))


def drive(study: Study, run: Run) -> Ended:
    history: list[TrialResult] = []
    while trials := study.decide(history).due:
        assert study.outlook(history).left >= len(trials)
        history += map(run, trials)
    ended = Ended(conclusion=study.decide(history).conclusion, history=tuple(history))
    assert ended.conclusion.complete
    assert len({each.trial.id for each in history}) == len(history)
    assert len(ended.jobs) <= study.budget  # type: ignore[attr-defined]
    return ended


WORLDS: Mapping[str, Callable[[], tuple[Study, Run]]] = {
    "batch": lambda: (batch(start=8), sizes(ceiling=12, best=6)),
    "pairs-of-sizes": lambda: (
        batch(sigma=0.002, compiles=True, **PAIRED),
        paired(c=0.8),
    ),
    "nodes": lambda: (nodes(12), machine({"node003": -0.08, "node007": -0.03})),
    "network": lambda: (network(8), machine({"node004": -0.06})),
    "commits": lambda: (commits(17), machine(level=changing(7, -0.05))),
}


def subject(name: str) -> MeasuredCell:
    study, run = WORLDS[name]()
    ended = drive(study, run)
    return MeasuredCell(
        conclusion=ended.conclusion,
        cells=study.cells,
        history=ended.history,
        written_s=datetime(2026, 11, 23, tzinfo=UTC).timestamp(),
    )


def scored_with(results: Sequence[TrialResult], **changes: Any) -> tuple[TrialResult, ...]:
    return tuple(
        replace(result, score=replace(result.score, **changes)) if result.score else result
        for result in results
    )
