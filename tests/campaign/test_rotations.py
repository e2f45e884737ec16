"""A rotation in a campaign: what it measured, whom it blames, and that it goes on without that."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign.assess import MOST_BLAMED
from pytest_xlatune.executors import Request
from pytest_xlatune.launchers.rotated import SPEC_FILE
from pytest_xlatune.ledger.state import LedgerState
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import BASELINE_ID
from pytest_xlatune.model.result import BlamedAt, Outcome, RotationResult, State, TrialResult
from pytest_xlatune.model.rotation import RotationSpec
from pytest_xlatune.model.trial import LaunchSpec
from tests.helpers import scripted
from tests.helpers.scripted import CELL, KILLED, OK, FakeExecutor
from tests.helpers.tables import rows
from tests.helpers.turned import (
    COPY,
    RotationsStudy,
    at_call,
    ids,
    journal,
    line,
    spec_of,
)

SPEC = spec_of(
    ("fast", {"xla_fast": "1"}), ("slow", {"xla_slow": "1"}), ("odd", {"xla_odd": "1"}), rounds=4
)
LOOK = spec_of(copies=1, rounds=3)
NAMES = [SPEC.programs[index].id for index in SPEC.order]
SPEEDS = {"fast": 1050.0, "slow": 900.0}
RAISED = Outcome(state=State.FAILED, exit_code=1)
ABORTED = Outcome(state=State.FAILED, signal=6)
TIMED_OUT = Outcome(state=State.TIMEOUT, signal=9)
CANCELLED = Outcome(state=State.CANCELLED)
CHECK = "F0112 07:08:09.2 77 gemm.cc:14] Check failed: dims.size() == 1 (0 vs. 1)\n"
NAN = "E0112 07:09:00.3 77 train.py:410] Aborting training due to NaN loss.\n"
# the first turn of a profile, and that profile
TURN = next(at for at, index in enumerate(SPEC.order) if index > 1)
OF_TURN = NAMES[TURN]

# log, outcome and journals of an attempt
Told = tuple[str, Outcome, tuple[str, ...]]
Play = Callable[[RotationSpec, int], Told]


def step_lines(
    spec: RotationSpec, *, first: int = 0, until: int | None = None, nan_from: float = math.inf
) -> str:
    """Return MaxText's lines of a rotation whose programs have these `SPEEDS`, else 1000."""
    total = spec.first_step + len(spec.order) * spec.turn_steps
    lines = []
    for call in range(total if until is None else until):
        tgs = SPEEDS.get(at_call(spec, call), 1000.0) * (1 + 0.002 * ((call * 7) % 5 - 2))
        loss = "nan" if call >= nan_from else "7.1"
        lines.append(scripted.step_line(first + call, tgs, loss))
    return "".join(lines)


class Rotating(FakeExecutor):
    """Writes the journals beside the log, by the spec that it was handed."""

    def __init__(self, play: Play) -> None:
        super().__init__()
        self.play = play
        self.specs: list[RotationSpec] = []

    def submit(self, spec: LaunchSpec, request: Request) -> str:
        told = RotationSpec.from_json(json.loads(spec.files[SPEC_FILE]))
        text, outcome, journals = self.play(told, int(request.folder.name.rpartition(".")[2]))
        self.script = lambda *_: (text, outcome)
        job = super().submit(spec, request)
        for rank, lines in enumerate(journals):
            (request.folder / f"rotation.{rank}.jsonl").write_text(lines, encoding="utf-8")
        self.specs.append(told)
        return job


@dataclass(frozen=True, kw_only=True)
class Ran:
    state: LedgerState
    executor: Rotating
    result: TrialResult

    @property
    def rotation(self) -> RotationResult:
        assert self.result.rotation is not None
        return self.result.rotation

    @property
    def changes(self) -> dict[str, float]:
        score = self.rotation.score
        return {each.program: round(each.change, 3) for each in score.programs} if score else {}

    @property
    def blamed(self) -> list[str]:
        return [each.program for each in self.rotation.blamed]


def run(folder: Path, play: Play, spec: RotationSpec = SPEC) -> Ran:
    executor = Rotating(play)
    study = RotationsStudy(cell=CELL, specs=(spec,))
    made = scripted.campaign(folder, executor, study=study)
    scripted.run(made)
    view = made.view()
    return Ran(state=view.state, executor=executor, result=view.history[-1])


def whole(spec: RotationSpec, _: int = 0) -> Told:
    return step_lines(spec), OK, (journal(spec),)


def dying(
    outcome: Outcome,
    said: str = "",
    *,
    compiling: str = "",
    turns: int = 0,
    lines: int | None = None,
    tail: str = "",
    times: int = 1,
) -> Play:
    """Die so many times: while a program compiles, or in a turn after the lines of so many calls.

    By default two calls before the end of the turn.
    """

    def play(spec: RotationSpec, attempt: int) -> Told:
        if attempt > times:
            return whole(spec)
        told = journal(spec, dies_compiling=compiling, turns=turns or None, is_over=False)
        until = spec.first_step + turns * spec.turn_steps - 2 if turns else 0
        text = step_lines(spec, until=until if lines is None else lines)
        return text + said, outcome, (told + tail,)

    return play


def test_a_rotation_tells_what_each_program_came_to(tmp_path: Path) -> None:
    refused = journal(SPEC, refused=("odd",))
    lines = step_lines(SPEC, first=100)  # of a trainer that resumed
    ran = run(tmp_path, lambda *_: (lines, OK, (refused,)))
    assert (ran.result.status, ran.result.score, ran.result.reason) == ("measured", None, None)
    expected = {"fast": 0.049, "slow": -0.105, COPY: 0.0}
    assert {name: ran.changes[name] for name in expected} == pytest.approx(expected, abs=0.003)
    assert "odd" not in ran.changes
    (left_out,) = (each.why for each in ran.result.findings if each.cls == "program-left-out")
    assert sentence(left_out).startswith("odd is left out")
    assert ran.rotation.score is not None
    assert len(ran.rotation.score.turns) == len(SPEC.order)


# a turn of the baseline behind one of a profile, and the last turn of a profile
OF_BASELINE = next(
    at for at, index in enumerate(SPEC.order) if at and index < 2 <= SPEC.order[at - 1]
)
BEGINS = SPEC.first_step + OF_BASELINE * SPEC.turn_steps
BEFORE_IT = NAMES[OF_BASELINE - 1]
LAST = max(at for at, index in enumerate(SPEC.order) if index > 1)
BEHIND_LAST = SPEC.first_step + (LAST + 1) * SPEC.turn_steps
THIRD = SPEC.first_step + 2 * SPEC.turn_steps


def spoiling(spec: RotationSpec, attempt: int) -> Told:
    """Spoil the loss in a turn of "fast": the step behind the turn shows it."""
    if attempt > 1:
        return whole(spec)
    turn = next(at for at, index in enumerate(spec.order) if spec.programs[index].id == "fast")
    first = spec.first_step + (turn + 1) * spec.turn_steps
    return step_lines(spec, nan_from=first), OK, (journal(spec),)


def of_two_processes(first: str, second: str, tail: str = "") -> Play:
    """Both die while they compile one of these, the second one after a line."""

    def play(spec: RotationSpec, attempt: int) -> Told:
        died, ended = (journal(spec, dies_compiling=name) for name in (first, second))
        return whole(spec) if attempt > 1 else (CHECK, ABORTED, (died, ended + tail))

    return play


CHECKED = (ABORTED, CHECK)


@rows(
    "play, blamed, status",
    {
        "a compiler that aborts": (
            dying(*CHECKED, compiling="slow"), "slow compiling xla-check-fail", "measured"),
        "a process that raises, and another that is killed for it": (
            of_two_processes("slow", "odd", line("end", calls=4)),
            "odd compiling xla-check-fail", "measured"),
        "two processes that die, of which one is behind": (
            of_two_processes("odd", "slow"), "slow compiling xla-check-fail", "measured"),
        "a kill while it compiles, which is one event": (
            dying(KILLED, compiling="slow"), "", "measured"),
        "two kills while the same program compiles": (
            dying(KILLED, compiling="slow", times=2), "slow compiling killed", "measured"),
        "a kill in a turn": (dying(KILLED, turns=TURN + 1), "", "measured"),
        "two kills in turns of the same program": (
            dying(KILLED, turns=TURN + 1, times=2), f"{OF_TURN} turn killed", "measured"),
        "a loss that a turn spoilt": (spoiling, "fast turn numerical-failure", "measured"),
        "a compiler that dies of the baseline": (
            dying(*CHECKED, compiling=BASELINE_ID, times=9), "", "dropped"),
        "at the first step of the baseline's turn": (
            dying(*CHECKED, turns=OF_BASELINE + 1, lines=BEGINS, times=9), "", "dropped"),
        "with a step of the profile before it still open": (
            dying(*CHECKED, turns=OF_BASELINE + 1, lines=BEGINS - 1),
            f"{BEFORE_IT} turn xla-check-fail", "measured"),
        "at the first step of a turn, with one of another profile still open": (
            dying(*CHECKED, turns=5, lines=SPEC.first_step + 4 * SPEC.turn_steps - 1),
            "", "measured"),
        "behind the last step of a profile's turn, as a checkpoint does": (
            dying(*CHECKED, turns=LAST + 1, lines=BEHIND_LAST, times=9), "", "measured"),
        "by an exception at the first call behind another profile's turn": (
            dying(*CHECKED, turns=3, lines=THIRD, tail=line("raised", call=THIRD)),
            "", "measured"),
    },
)  # fmt: skip
def test_who_is_blamed_for_an_end(tmp_path: Path, play: Play, blamed: str, status: str) -> None:
    ran = run(tmp_path, play)
    told = " ".join(f"{each.program} {each.at} {each.cls}" for each in ran.rotation.blamed)
    assert (told, ran.result.status) == (blamed, status)
    assert len({*ran.executor.submitted}) == 1, "it is the same trial still"
    last = ran.executor.specs[-1]
    assert len(last.order) == len(SPEC.order)
    assert not {*ran.blamed} & {*ids(last.programs), *ran.changes}


@rows("count, status", {"six of seven": (6, "measured"), "again and again": (20, "dropped")})
def test_many_programs_may_die_but_not_without_end(tmp_path: Path, count: int, status: str) -> None:
    bad = [f"bad{at}" for at in range(count)]
    spec = spec_of(*((name, {"xla_bad": "1"}) for name in bad), ("fast", {}), rounds=3)

    def play(told: RotationSpec, _: int) -> Told:
        left = next((name for name in ids(told.programs) if name in bad), "")
        return (CHECK, ABORTED, (journal(told, dies_compiling=left),)) if left else whole(told)

    ran = run(tmp_path, play, spec)
    assert ran.result.status == status
    assert ran.blamed == bad[: MOST_BLAMED[BlamedAt.COMPILING]]
    assert (ran.rotation.reason is None) is ("fast" in ran.changes) is (count == 6)


def losing(spec: RotationSpec, _: int) -> Told:
    """Lose the baseline's loss behind turns that would count."""
    told = journal(replace(spec, order=(0,) * 3), turns=3, is_over=False)
    return step_lines(spec, until=spec.first_step + 15) + NAN, RAISED, (told,)


def at_a_limit(thirds: int) -> Play:
    """Reach the time limit behind so many thirds of the turns."""

    def play(spec: RotationSpec, _: int) -> Told:
        turns = thirds * len(spec.order) // 3
        until = spec.first_step + turns * spec.turn_steps
        told = journal(spec, turns=turns, is_over=False)
        return step_lines(spec, until=until), TIMED_OUT, (told,)

    return play


@rows("spec", {"a look": replace(LOOK, order=(0, 0, 0)), "a rotation": SPEC})
@rows(
    "play, status, stops",
    {
        "a cancel": (dying(CANCELLED, compiling="slow", times=9), "unmeasured", True),
        "a node whose programs abort for it": (
            dying(Outcome(state=State.NODE_FAIL), CHECK, turns=TURN + 1, times=9),
            "unmeasured", True),
        "a full disk": (
            dying(RAISED, "OSError: [Errno 28] No space left on device\n", compiling="slow",
                  times=9), "unmeasured", True),
        "a time limit behind few turns": (at_a_limit(1), "unmeasured", True),
        "a time limit behind most turns": (at_a_limit(2), "measured", False),
        "a trainer that ends by itself": (
            dying(Outcome(state=State.FAILED, exit_code=3), times=9), "dropped", False),
        "a NaN loss of the baseline": (losing, "dropped", False),
    },
)  # fmt: skip
def test_what_ranks_stops_the_sweep_where_something_else_ended_it(
    tmp_path: Path, spec: RotationSpec, play: Play, status: str, *, stops: bool
) -> None:
    ran = run(tmp_path, play, spec)
    assert (ran.result.status, ran.state.stop is not None) == (status, stops)
    assert (ran.result.reason is None) is (status == "measured")
    attempts = [each for trial in ran.state.trials.values() for each in trial.attempts.values()]
    assert not stops or {each.blamed for each in attempts} == {None}, "no program is a suspect"
    if status == "measured":  # a look is scored as any trial, and shows that the step is found
        assert (ran.result.score is None) is (spec is SPEC)
        assert ran.rotation.is_found


@rows(
    "journals, words",
    {
        "no journal": ((), "no journal of the worker"),
        "the worker says why": (
            (line("trouble", words="the step is made by jax.pmap"),),
            "not found (the step is made by jax.pmap)"),
        "another file": (("\0\0 no journal \n[[[",), "program of the step was not"),
    },
)  # fmt: skip
def test_a_rotation_of_nothing_says_what_is_missing(
    tmp_path: Path, journals: tuple[str, ...], words: str
) -> None:
    ran = run(tmp_path, lambda spec, _: (step_lines(spec), OK, journals))
    assert ran.result.status == "measured"
    assert not ran.rotation.is_found
    assert words in sentence(ran.result.reason)


@rows(
    "every, skips, ends, is_apart",
    {
        "a line a call": (1, 0, True, False),
        "two calls a step": (2, 0, True, True),
        "nine calls before the loop": (1, 9, True, True),
        "killed": (1, 0, False, False),
        "four steps a call": (0.25, 0, True, True),
    },
)
def test_where_a_step_is_no_call_no_turn_is_read_from_the_wrong_steps(
    tmp_path: Path, every: float, skips: int, ends: bool, is_apart: bool
) -> None:
    look = replace(spec_of(copies=1, rounds=8), order=(0,) * 8)
    for spec, name in ((SPEC, "turns"), (look, "look")):
        calls = spec.first_step + len(spec.order) * spec.turn_steps
        lines = step_lines(spec, until=int((calls - skips) / every))
        told = (lines, OK, (journal(spec, is_over=ends),))
        ran = run(tmp_path / name, lambda *_, told=told: told, spec)
        assert (ran.rotation.score is None, ran.rotation.is_found) == (is_apart, not is_apart)
        said = sentence(ran.rotation.reason) if ran.rotation.reason else ""
        assert ("which program ran" in said) is is_apart
