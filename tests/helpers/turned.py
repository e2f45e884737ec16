"""Rotations for tests: the smallest study that runs some, and a worker that is but a script.

The study proposes what it was given and concludes nothing. A journal is made of the words of
`workers/rotate.py`, so that a test says in one line how far a rotation came.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.profile import BASELINE, BASELINE_ID
from pytest_xlatune.model.result import Conclusion
from pytest_xlatune.model.rotation import RotatedProgram, RotationSpec
from pytest_xlatune.model.trial import ROTATION, Arm, Rotation, Trial
from pytest_xlatune.stats.rounds import draw_turns
from pytest_xlatune.studies import NEVER, Answer, Decision, History, Outlook, Question, Study

COPY = f"{BASELINE_ID}~2"


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


def rotation_trial(cell: Cell, spec: RotationSpec, *, number: int = 1) -> Trial:
    rotation = Rotation(number=number, spec=spec, deadline_s=cell.protocol.deadline_s)
    return Trial(
        arm=ROTATION,
        cell_digest=cell.digest,
        profile=BASELINE,
        protocol=replace(cell.protocol, steps=rotation.steps),
        study="rotations",
        stage="rank",
        position=number,
        rotation=rotation,
    )


class RotationsStudy(Study, frozen=True, kw_only=True):
    """So many rotations, one after the other."""

    cell: Cell
    specs: tuple[RotationSpec, ...]

    @property
    def name(self) -> str:
        return "rotations"

    @property
    def cells(self) -> tuple[Cell, ...]:
        return (self.cell,)

    @property
    def trials(self) -> tuple[Trial, ...]:
        return tuple(
            rotation_trial(self.cell, spec, number=at) for at, spec in enumerate(self.specs, 1)
        )

    def decide(self, history: History) -> Decision:
        over = {each.trial.id for each in history if each.status.is_final}
        due = tuple(each for each in self.trials if each.id not in over)
        return Decision(
            due=due,
            arms=(Arm(id=ROTATION, cell_digest=self.cell.digest, profile=BASELINE),),
            concluded=lambda: Conclusion(verdicts=(), complete=not due),
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
        is_refused = each.id in refused
        text.append(
            line("refused", program=each.id, words="No such compile option: 'xla_odd'")
            if is_refused
            else line("compiled", program=each.id, compile_s=0.5)
        )
    count = len(spec.order) if turns is None else turns
    for at, program in enumerate(spec.order[:count]):
        of = spec.programs[program].id
        first = spec.first_step + at * spec.turn_steps
        text.append(
            line("turn", program=of if of not in refused else BASELINE_ID, first_call=first)
        )
    if is_over and turns is None:
        text.append(line("end", calls=spec.first_step + count * spec.turn_steps))
    return "".join(text)


def ids(programs: Iterable[RotatedProgram]) -> list[str]:
    return [each.id for each in programs]
