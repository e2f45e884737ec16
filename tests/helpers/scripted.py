"""A campaign on an executor that follows a script: it runs nothing and writes the logs.

The journal of a rotation is part of its script, in the words of `workers/rotate.py`.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from pytest_xlatune.campaign import Campaign, Clock
from pytest_xlatune.executors import Executor, Request, Resumed
from pytest_xlatune.launchers import Launcher
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.ledger import LEDGER, Ledger
from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.environment import NodeEnvironment
from pytest_xlatune.model.profile import (
    BASELINE,
    BASELINE_ID,
    OPTIONS_FOLDER,
    Profile,
    parse_flags,
    profile,
)
from pytest_xlatune.model.result import Conclusion, Outcome, State, Submission
from pytest_xlatune.model.rotation import RotatedProgram, RotationSpec
from pytest_xlatune.model.trial import ROTATION, Arm, LaunchSpec, Rotation, Trial
from pytest_xlatune.stats.rounds import draw_turns
from pytest_xlatune.studies import (
    NEVER,
    Answer,
    Decision,
    History,
    OnNodeFailure,
    Outlook,
    Policy,
    Question,
    Study,
)
from pytest_xlatune.studies.tuning import TuningStudy
from pytest_xlatune.sweep.declaration import Sweep
from pytest_xlatune.sweep.groups import Limits, SiteSettings
from pytest_xlatune.sweep.resolved import ResolvedSweep
from tests.helpers.toy import ToyStudy

STEPS = 12
CELL = Cell(
    model_tag="pretend",
    parallelism=Parallelism.parse("FSDP=4"),
    protocol=Protocol(steps=STEPS),
    deployed={"XLA_FLAGS": "--xla_deployed=1"},
)
PROFILES = (profile("fast", "--xla_fast=1"), profile("same", "--xla_same=1"))
OK = Outcome(state=State.COMPLETED, exit_code=0, start_s=0.0, end_s=1.0)
FAILED = Outcome(state=State.FAILED, exit_code=1)
KILLED = Outcome(state=State.FAILED, signal=9)
COPY = f"{BASELINE_ID}~2"
UNKNOWN_FLAG = "F1120 09:03:25.888154 1 parse_flags_from_env.cc:234] Unknown flag in XLA_FLAGS: --x"


def step_line(step: int, tgs: float, loss: str = "7.1") -> str:
    return (
        f"completed step: {step}, seconds: {512 / tgs:.6f}, TFLOP/s/device: 0.1, "
        f"Tokens/s/device: {tgs:.3f}, total_weights: 512, loss: {loss}\n"
    )


def log(speed: float = 1000.0, *, steps: int = STEPS, loss: str = "7.1", last: str = "") -> str:
    return "".join(step_line(step, speed, loss) for step in range(steps)) + f"{last}\n"


Script = Callable[[str, int], tuple[str, Outcome]]


def ordinary(trial_id: str, attempt: int) -> tuple[str, Outcome]:
    """Give a log whose speed is the profile's, with a little noise of the trial's own."""
    speed = 1100.0 if trial_id.startswith("fast") else 1000.0
    return log(speed * (1 + (sum(trial_id.encode()) % 7 - 3) / 2000)), OK


def tell_options(folder: Path, spec: LaunchSpec) -> None:
    """Write the options of a trial as its XLA does, where it is asked to."""
    asked = spec.first_env.get("XLA_FLAGS", "").rpartition('"')[2]
    if asked:
        (folder / OPTIONS_FOLDER).mkdir()
        lines = [f"  {flag.name}: {flag.value or 'true'}\n" for flag in parse_flags(asked)[1:]]
        path = folder / OPTIONS_FOLDER / "module_0001.jit_train_step.config.pbtxt"
        path.write_text("".join(lines), encoding="utf-8")


class FakeExecutor(Executor):
    """Runs nothing: writes the log that the script says and tells the outcome at the next poll."""

    name = "local"

    def __init__(self, script: Script = ordinary, *, max_in_flight: int = 1) -> None:
        self.script = script
        self.max_in_flight = max_in_flight
        self.ran: list[tuple[str, tuple[str, ...]]] = []  # each trial, and its nodes
        self.cancelled: list[str] = []
        self.holds = False  # jobs go on running
        self.revival = Resumed(faults=("node001 is drained: bad nic",))
        self.tells: Callable[[str], Sequence[NodeEnvironment]] = lambda _: ()
        self.clock = Clock()
        self._jobs: dict[str, tuple[str, Outcome]] = {}

    @property
    def submitted(self) -> list[str]:
        return [trial_id for trial_id, _ in self.ran]

    def submit(self, spec: LaunchSpec, request: Request) -> str:
        folder, comment = request.folder, request.comment
        known = [job_id for job_id, (of, _) in self._jobs.items() if of == comment]
        if known:
            return known[0]
        folder.mkdir(parents=True)
        trial_id, _, attempt = folder.name.rpartition(".")
        text, outcome = self.script(trial_id, int(attempt))
        (folder / "log.0.txt").write_text(text, encoding="utf-8")
        if "XLA_FLAGS=" not in text:  # a program that sets it anew loses --xla_dump_to too
            tell_options(folder, spec)
        for rank, each in enumerate(self.tells(trial_id)):
            path = folder / (f"environment.{rank}.json" if rank else "environment.json")
            path.write_text(json.dumps(each.to_json()), encoding="utf-8")
        job_id = f"{len(self._jobs) + 1}"
        self._jobs[job_id] = (comment, self.placed(job_id, request, outcome))
        self.ran.append((trial_id, self._jobs[job_id][1].nodes or request.nodelist))
        return job_id

    def placed(self, job_id: str, request: Request, outcome: Outcome) -> Outcome:
        """Return the outcome of a job with where and when it runs; here it is over at once."""
        return outcome

    def standing(self, job_id: str) -> Outcome:
        if job_id in self.cancelled:
            return Outcome(state=State.CANCELLED)
        return Outcome(state=State.RUNNING) if self.holds else self._jobs[job_id][1]

    def poll(self, submissions: Sequence[Submission], *, root: Path) -> Mapping[str, Outcome]:
        return {each.job_id: self.standing(each.job_id) for each in submissions}

    def cancel(self, submissions: Sequence[Submission], *, root: Path) -> None:
        self.cancelled += [each.job_id for each in submissions]

    def resume(self, nodes: Sequence[str]) -> Resumed:
        return self.revival


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


def on(*nodes: str) -> Cell:
    """The pretend cell on these nodes."""
    return replace(CELL, nodelist=nodes, config_tag="-".join(dict.fromkeys([nodes[0], nodes[-1]])))


class Cluster(FakeExecutor):
    """Every node takes its submissions one after the other, `took_s` each.

    It starts a submission when all its nodes are free of earlier ones, as Slurm does.
    """

    name = "slurm"
    took_s = 60.0

    def __init__(self, script: Script = ordinary) -> None:
        super().__init__(script, max_in_flight=0)
        self.now_s = 1e9
        self.sick: set[str] = set()  # nodes that take no job, and stay so
        self._free_s: dict[str, float] = {}
        self.clock = Clock(now=lambda: self.now_s, ticks=lambda: self.now_s)

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


def campaign_of(
    folder: Path,
    executor: Executor,
    study: Study,
    *,
    session: str = "first",
    launcher: Launcher | None = None,
    limits: Limits | None = None,
    clock: Clock | None = None,
    site: Mapping[str, Any] | None = None,
) -> Campaign:
    """Return the campaign of a study whose ledger lies in a folder; it is not open yet."""
    sweep = Sweep(
        name="pretend",
        launcher=launcher or CommandLauncher(argv=("trainer", "{steps}")),
        profiles=(profile("pretended", "--xla_pretended=1"),),
        limits=limits or Limits(),
        site=SiteSettings(**(site or {})),
    )
    return Campaign(
        ResolvedSweep(sweep=sweep, cell=study.cells[0]),
        executor,
        Ledger(folder / LEDGER),
        study=study,
        session=session,
        clock=clock,
    )


def ticking() -> Callable[[], float]:
    """Return a clock on which ten seconds pass at each look."""
    return itertools.count(10.0, 10.0).__next__


def campaign(
    folder: Path,
    executor: FakeExecutor,
    study: Study | None = None,
    *,
    profiles: tuple[Profile, ...] = PROFILES,
    cell: Cell = CELL,
    fresh: bool = False,
    clocks: Mapping[str, Callable[[], float]] = MappingProxyType({}),
    **given: Any,
) -> Campaign:
    """Return a campaign that is open; what else is given is `campaign_of`'s."""
    study = study or TuningStudy(
        cell=cell, profiles=profiles, budget=40, screen_baselines=2, finalists=2, blocks=3,
        block_baselines=1,
    )  # fmt: skip
    clock = dataclasses.replace(executor.clock, **clocks)
    made = campaign_of(folder / "pretend" / "cell", executor, study, clock=clock, **given)
    made.open(fresh=fresh)
    return made


def run(made: Campaign, cluster: Cluster | None = None, *, turns: int = 9000) -> float:
    """Take turns until nothing is left, without sleeping; return what a cluster's clock went on.

    A turn takes a second of the cluster's time.
    """
    began_s = cluster.now_s if cluster else 0.0
    for _ in range(turns):
        view = made.view()
        if view.stopped or not view.pending:
            return cluster.now_s - began_s if cluster else 0.0
        made.turn()
        if cluster:
            cluster.now_s += 1
    raise AssertionError("the sweep does not end")


def failing(which: str, text: str, outcome: Outcome, *, times: int = 99) -> Script:
    def script(trial_id: str, attempt: int) -> tuple[str, Outcome]:
        if trial_id.startswith(which) and attempt <= times:
            return text, outcome
        return ordinary(trial_id, attempt)

    return script


def at_call(spec: RotationSpec, call: int) -> str:
    """Return the id of the program that runs a call of the step function, counted from 0."""
    if call < spec.first_step:
        return spec.programs[0].id
    turn = (call - spec.first_step) // spec.turn_steps
    return spec.programs[spec.order[turn % len(spec.order)]].id


def spec_of(
    *programs: tuple[str, dict[str, str]], rounds: int = 3, copies: int = 2
) -> RotationSpec:
    """Return a spec of the baseline's copies and these programs, in an order that is drawn."""
    named = [BASELINE_ID, *(f"{BASELINE_ID}~{at}" for at in range(2, copies + 1))]
    every = [
        *(RotatedProgram(id=each) for each in named),
        *(RotatedProgram(id=name, options=options) for name, options in programs),
    ]
    order = draw_turns(len(every), copies, rounds, "of a test")
    return RotationSpec(programs=tuple(every), order=order, turn_steps=6)


def rotation_trial(cell: Cell, spec: RotationSpec) -> Trial:
    rotation = Rotation(number=1, spec=spec, deadline_s=cell.protocol.deadline_s)
    return Trial(
        arm=ROTATION,
        cell_digest=cell.digest,
        profile=BASELINE,
        protocol=replace(cell.protocol, steps=rotation.steps),
        study="rotations",
        stage="rank",
        rotation=rotation,
    )


class RotationsStudy(Study, frozen=True, kw_only=True):
    """One rotation, of which nothing is concluded."""

    cell: Cell
    spec: RotationSpec

    @property
    def name(self) -> str:
        return "rotations"

    @property
    def cells(self) -> tuple[Cell, ...]:
        return (self.cell,)

    def decide(self, history: History) -> Decision:
        is_over = any(each.status.is_final for each in history)
        due = () if is_over else (rotation_trial(self.cell, self.spec),)
        return Decision(
            due=due,
            arms=(Arm(id=ROTATION, cell_digest=self.cell.digest, profile=BASELINE),),
            concluded=lambda: Conclusion(verdicts=(), complete=is_over),
        )

    def outlook(self, history: History) -> Outlook:
        return Outlook.of(self.decide(history).due, lines=())

    def answer(self, history: History, question: Question) -> Answer:
        del history, question
        return NEVER


def line(event: str, **said: object) -> str:
    return json.dumps({"event": event, "pid": 4711, **said}) + "\n"


def journal(
    spec: RotationSpec,
    *,
    refused: Sequence[str] = (),
    dies_compiling: str = "",
    turns: int | None = None,
    is_over: bool = True,
) -> str:
    """Return what the worker writes: of the first so many turns, or until it dies."""
    text = [line("start", turn_steps=spec.turn_steps), line("jax", version="0.10.2")]
    text.append(line("found", name="train_step"))
    for each in spec.programs:
        text.append(line("compile", program=each.id))
        if each.id == dies_compiling:
            return "".join(text)
        words = "No such compile option: 'xla_odd'"
        text.append(
            line("refused", program=each.id, words=words)
            if each.id in refused
            else line("compiled", program=each.id, compile_s=0.5)
        )
    count = len(spec.order) if turns is None else turns
    for at, program in enumerate(spec.order[:count]):
        name = spec.programs[program].id
        ran = BASELINE_ID if name in refused else name
        first = spec.first_step + at * spec.turn_steps
        text.append(line("turn", program=ran, first_call=first))
    if is_over and turns is None:
        text.append(line("end", calls=spec.first_step + count * spec.turn_steps))
    return "".join(text)
