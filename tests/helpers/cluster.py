"""A study whose arms are cells on their own nodes, and a cluster of such nodes with a clock."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from pytest_xlatune.campaign import Campaign, Clock
from pytest_xlatune.executors import Request, Resumed
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.resources import Resources, RetryPolicy
from pytest_xlatune.model.result import Outcome, State
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.studies import OnNodeFailure, Policy
from pytest_xlatune.sweep.groups import Limits
from tests.helpers.resolved import campaign_of
from tests.helpers.scripted import CELL, FakeExecutor, Script, ordinary
from tests.helpers.toy import ToyStudy


def on(*nodes: str) -> Cell:
    """The pretend cell on these nodes."""
    return replace(CELL, nodelist=nodes, config_tag="-".join(dict.fromkeys([nodes[0], nodes[-1]])))


class CellsStudy(ToyStudy, frozen=True, kw_only=True):
    """The toy study: every cell as deployed, in rounds."""

    repeats: int = 1
    on_node_failure: OnNodeFailure = OnNodeFailure.STOP

    @property
    def policy(self) -> Policy:
        return Policy(on_node_failure=self.on_node_failure)

    def trial(self, cell: Cell, number: int) -> Trial:
        """The trial of a cell in a round, from 0."""
        every = (each for each in self.decide(()).due if each.cell_digest == cell.digest)
        return next(each for each in every if each.block == number + 1)


class Cluster(FakeExecutor):
    """Every node takes its submissions one after the other, `took_s` each.

    It starts a submission when all its nodes are free of earlier ones, as Slurm does.
    """

    name = "slurm"

    def __init__(self, script: Script = ordinary, *, took_s: float = 60.0) -> None:
        super().__init__(script, max_in_flight=0)
        self.took_s = took_s
        self.now_s = 1e9
        self.sick: set[str] = set()  # nodes that take no job, and stay so
        self._free_s: dict[str, float] = {}

    def placed(self, job_id: str, request: Request, outcome: Outcome) -> Outcome:
        nodes = request.nodelist or (f"any{len(self._jobs)}",)
        start_s = max([self.now_s, *(self._free_s.get(node, 0.0) for node in nodes)])
        self._free_s.update(dict.fromkeys(nodes, start_s + self.took_s))
        return replace(outcome, nodes=nodes, start_s=start_s, end_s=start_s + self.took_s)

    def standing(self, job_id: str) -> Outcome:
        ended = self._jobs[job_id][1]
        start_s = ended.start_s or 0.0
        if job_id in self.cancelled:
            return Outcome(state=State.CANCELLED, reason="CANCELLED")
        if self.sick & {*ended.nodes}:
            return Outcome(state=State.PENDING, reason="ReqNodeNotAvail", lacks_nodes=True)
        if self.now_s < start_s:
            return Outcome(state=State.PENDING, reason="Resources")
        if self.now_s < start_s + self.took_s:
            return Outcome(state=State.RUNNING, nodes=ended.nodes, start_s=start_s)
        return ended

    def resume(self, nodes: Sequence[str]) -> Resumed:
        bad = tuple(node for node in nodes if node in self.sick)
        return Resumed(faults=tuple(f"{node} is drained: bad nic" for node in bad), unfit=bad)


def campaign(
    folder: Path,
    executor: Cluster,
    study: CellsStudy,
    *,
    session: str = "first",
    nodes: int = 0,
    limits: Limits | None = None,
    rules: RetryPolicy | None = None,
) -> Campaign:
    made = campaign_of(
        folder / "toy",
        executor,
        study,
        name="toy",
        session=session,
        limits=limits,
        clock=Clock(now=lambda: executor.now_s, ticks=lambda: executor.now_s),
        site={"resources": Resources(nodes=nodes), "retry_policy": rules or RetryPolicy()},
    )
    made.open()
    return made


def run(made: Campaign, cluster: Cluster) -> float:
    """Take a turn a second of the cluster's time until nothing is left; return how long it took."""
    began_s = cluster.now_s
    while True:
        view = made.view()
        if view.stopped or not view.pending:
            return cluster.now_s - began_s
        made.turn()
        cluster.now_s += 1
        assert cluster.now_s - began_s < 9000, "the study does not end"
