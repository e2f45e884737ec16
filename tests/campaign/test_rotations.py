"""A rotation in a campaign: what it measured, whom it blames, and that it goes on without that."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign.rotating import MOST_BLAMED, read_journals
from pytest_xlatune.executors import Request
from pytest_xlatune.launchers.rotated import SPEC_FILE
from pytest_xlatune.ledger.state import LedgerState
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import BASELINE_ID
from pytest_xlatune.model.result import (
    BlamedAt,
    Outcome,
    RotationResult,
    State,
    TrialResult,
    TrialStatus,
)
from pytest_xlatune.model.rotation import RotationSpec
from pytest_xlatune.model.trial import LaunchSpec
from tests.helpers import scripted, turned
from tests.helpers.scripted import CELL, KILLED, OK, FakeExecutor
from tests.helpers.turned import RotationsStudy, at_call, journal, spec_of, step_lines

SPEC = spec_of(
    ("fast", {"xla_fast": "1"}), ("slow", {"xla_slow": "1"}), ("odd", {"xla_odd": "1"}), rounds=4
)
SPEEDS = {"fast": 1050.0, "slow": 900.0}
ABORTED = Outcome(state=State.FAILED, signal=6)
CHECK = "F0112 07:08:09.2 77 gemm.cc:14] Check failed: dims.size() == 1 (0 vs. 1)\n"
TIMED_OUT = Outcome(state=State.TIMEOUT, signal=9)

# of an attempt, given what it was told to run: log, outcome, journal of each process
Told = tuple[str, Outcome, tuple[str, ...]]
Play = Callable[[RotationSpec, int], Told]


class Rotating(FakeExecutor):
    """Writes the journals beside the log, by the spec that it was handed."""

    def __init__(self, play: Play) -> None:
        super().__init__()
        self.play = play
        self.specs: list[RotationSpec] = []
        self.launches: list[LaunchSpec] = []

    def submit(self, spec: LaunchSpec, request: Request) -> str:
        told = RotationSpec.from_json(json.loads(spec.files[SPEC_FILE]))
        attempt = int(request.folder.name.rpartition(".")[2])
        text, outcome, journals = self.play(told, attempt)
        self.script = lambda *_: (text, outcome)
        job = super().submit(spec, request)
        for rank, each in enumerate(journals):
            (request.folder / f"rotation.{rank}.jsonl").write_text(each, encoding="utf-8")
        self.specs.append(told)
        self.launches.append(spec)
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
        assert self.rotation.score is not None
        return {each.program: round(each.change, 3) for each in self.rotation.score.programs}

    @property
    def told(self) -> list[str]:
        found = [each.why for each in self.result.findings if each.cls == "program-left-out"]
        return [sentence(each) for each in found if each is not None]


def run(tmp_path: Path, play: Play, *, spec: RotationSpec = SPEC, cell: Cell = CELL) -> Ran:
    executor = Rotating(play)
    made = scripted.campaign(
        tmp_path, executor, cell=cell, study=RotationsStudy(cell=cell, specs=(spec,))
    )
    scripted.run(made)
    view = made.view()
    return Ran(state=view.state, executor=executor, result=view.history[0])


def whole(spec: RotationSpec, _: int) -> Told:
    return step_lines(spec, SPEEDS), OK, (journal(spec, refused=("odd",)),)


def dying(
    outcome: Outcome, said: str = "", *, compiling: str = "", turns: int = 0, times: int = 1
) -> Play:
    """Die so many times, while a program compiles or after so many turns."""

    def play(spec: RotationSpec, attempt: int) -> Told:
        if attempt > times:
            return step_lines(spec, SPEEDS), OK, (journal(spec),)
        told = journal(spec, dies_compiling=compiling, turns=turns or None, is_over=False)
        until = spec.first_step + turns * spec.turn_steps - 2 if turns else 0
        return step_lines(spec, SPEEDS, until=until) + said, outcome, (told,)

    return play


def test_a_rotation_tells_what_each_program_came_to(tmp_path: Path) -> None:
    ran = run(tmp_path, whole)
    assert ran.result.status is TrialStatus.MEASURED
    assert ran.result.score is None
    assert ran.result.reason is None
    changes = ran.changes
    assert changes["fast"] == pytest.approx(0.049, abs=0.003)
    assert changes["slow"] == pytest.approx(-0.105, abs=0.003)
    assert abs(changes[turned.COPY]) < 0.002
    assert "odd" not in changes
    (told,) = ran.told
    assert told.startswith("odd is left out")
    assert told.endswith("'xla_odd'")
    assert ran.rotation.read is not None
    assert ran.rotation.read.found == "train_step"
    assert len(ran.rotation.score.turns) == len(SPEC.order)  # type: ignore[union-attr]
    # it is the deployed cell that runs, with the worker in front
    launch = ran.executor.launches[0]
    assert launch.env["XLA_FLAGS"] == "--xla_deployed=1"
    assert launch.env["JAX_ENABLE_COMPILATION_CACHE"] == "false"


def test_a_rotation_on_another_device_than_the_one_before_compares_nothing(
    tmp_path: Path,
) -> None:
    """Each of its programs fell back, so that their differences are those of a CPU."""
    ran: list[RotationSpec] = []

    def play(spec: RotationSpec, _: int) -> Told:
        ran.append(spec)
        device = "cpu" if len(ran) > 1 else "gpu NVIDIA H100"
        told = journal(spec).replace('"name": "train_step"', f'"name": "f", "device": "{device}"')
        return step_lines(spec, SPEEDS), OK, (told,)

    study = RotationsStudy(cell=CELL, specs=(SPEC, SPEC))
    made = scripted.campaign(tmp_path, Rotating(play), study=study)
    scripted.run(made)
    first, second = made.view().history
    assert first.rotation is not None
    assert first.rotation.score is not None
    assert second.rotation is not None
    assert second.rotation.score is None
    assert len(ran) == 3, "the site may have been at fault: it is tried once more"
    assert second.rotation.reason is not None
    assert "it ran on cpu and rotation on gpu NVIDIA H100, as journal shows" in (
        sentence(second.rotation.reason)
    )


@pytest.mark.parametrize("first", [0, 1, 100], ids=["from 0", "from 1", "resumed at 100"])
def test_turns_follow_the_first_step_that_is_logged(tmp_path: Path, first: int) -> None:
    def play(spec: RotationSpec, _: int) -> Told:
        return step_lines(spec, SPEEDS, first=first), OK, (journal(spec),)

    assert run(tmp_path, play).changes["slow"] == pytest.approx(-0.105, abs=0.003)


@pytest.mark.parametrize(
    ("play", "program", "at", "cls"),
    [
        (dying(ABORTED, CHECK, compiling="slow"), "slow", BlamedAt.COMPILING, "xla-check-fail"),
        (dying(KILLED, compiling="slow", times=2), "slow", BlamedAt.COMPILING, "killed"),
        (dying(ABORTED, CHECK, turns=-1), "", BlamedAt.TURN, "xla-check-fail"),
    ],
    ids=[
        "a compiler that aborts",
        "a compiler that is killed twice at the same program",
        "a turn that aborts",
    ],
)
def test_a_death_is_blamed_and_the_rotation_goes_on_without(
    tmp_path: Path, play: Play, program: str, at: BlamedAt, cls: str
) -> None:
    if at is BlamedAt.TURN:  # the turn of the first program that is no baseline
        turn = next(n for n, each in enumerate(SPEC.order) if each > 1)
        program = SPEC.programs[SPEC.order[turn]].id
        play = dying(ABORTED, CHECK, turns=turn + 1)
    ran = run(tmp_path, play)
    assert ran.result.status is TrialStatus.MEASURED
    assert [(each.program, each.at, each.cls) for each in ran.rotation.blamed] == [
        (program, at, cls)
    ]
    *_, last = ran.executor.specs
    assert program not in turned.ids(last.programs)
    assert len(last.order) == len(SPEC.order)
    assert program not in ran.changes
    assert len(set(ran.executor.submitted)) == 1, "it is the same trial still"
    said = [sentence(each.why) for each in ran.state.decisions if each.why is not None]
    doing = "while it compiled" if at is BlamedAt.COMPILING else "in the turn of"
    assert any(f"ended {doing} {program}" in each for each in said), said


TURN = 1 + next(at for at, each in enumerate(SPEC.order) if each > 1)  # of the first profile
TOLD = "W0112 07:08:09.4 80 preemption_notifier.cc:89] SIGTERM caught at 2026-01-12\n"


def _goes_on(spec: RotationSpec) -> str:
    """Return the step that a rank prints which was told to end, for another one was killed."""
    first = spec.first_step + TURN * spec.turn_steps - 2
    return TOLD + step_lines(spec, SPEEDS, until=first + 1).splitlines(keepends=True)[first]


ONCE = [
    pytest.param(KILLED, "", "slow", id="a kill while it compiles"),
    pytest.param(KILLED, "", "", id="a kill in its turn"),
    pytest.param(KILLED, _goes_on(SPEC), "", id="a kill of another rank, the first one goes on"),
    pytest.param(
        Outcome(state=State.FAILED, exit_code=1), "RuntimeError: collective failed\n", "",
        id="an exception in its turn",
    ),
    pytest.param(
        Outcome(state=State.FAILED, signal=11), "Fatal Python error: Segmentation fault\n", "",
        id="a crash in its turn that may not come again",
    ),
    pytest.param(OK, "", "", id="an end with exit 0 in its turn, with most steps to come"),
]  # fmt: skip


@pytest.mark.parametrize(("outcome", "said", "compiling"), ONCE)
def test_one_event_is_no_fault_of_a_program(
    tmp_path: Path, outcome: Outcome, said: str, compiling: str
) -> None:
    turns = 0 if compiling else TURN
    program = compiling or SPEC.programs[SPEC.order[TURN - 1]].id
    ran = run(tmp_path, dying(outcome, said, compiling=compiling, turns=turns))
    assert ran.rotation.blamed == ()
    assert len(ran.executor.specs) == 2
    assert turned.ids(ran.executor.specs[-1].programs) == turned.ids(SPEC.programs)
    assert program in ran.changes
    again = run(tmp_path / "again", dying(outcome, said, compiling=compiling, turns=turns, times=2))
    assert [each.program for each in again.rotation.blamed] == [program]
    assert again.result.status is TrialStatus.MEASURED
    assert program not in again.changes
    assert len(again.executor.specs) == 3


RAISED = Outcome(state=State.FAILED, exit_code=1)
NAN = "E0112 07:09:00.3 77 train.py:410] Aborting training due to NaN loss.\n"
OOM = "RuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 88.25GiB.\n"


@pytest.mark.parametrize("guilty", ["fast", "slow", "odd"])
@pytest.mark.parametrize(
    ("said", "outcome", "late"),
    [
        pytest.param("RuntimeError: broken\n", RAISED, 6, id="an exception, a step late"),
        pytest.param("RuntimeError: broken\n", RAISED, 7, id="an exception, two steps late"),
        pytest.param(OOM, RAISED, 6, id="no memory, a step late"),
        pytest.param(OOM, RAISED, 0, id="no memory, at its first step"),
        pytest.param(CHECK, ABORTED, 1, id="an abort at its second step"),
        pytest.param(NAN, RAISED, 6, id="a NaN loss without its line, a step late"),
        pytest.param(NAN, RAISED, 3, id="a NaN loss without its line"),
        pytest.param("", OK, 3, id="an end with exit 0"),
    ],
)
def test_the_profile_that_an_end_is_of_is_blamed_and_not_its_neighbour(
    tmp_path: Path, guilty: str, said: str, outcome: Outcome, late: int
) -> None:
    """So many calls behind the first one of its turn, which another profile follows."""

    def play(spec: RotationSpec, _: int) -> Told:
        names = [spec.programs[each].id for each in spec.order]
        bases = [spec.programs[each].is_baseline for each in (*spec.order[1:], 0)]
        of_guilty = (at for at, each in enumerate(names) if each == guilty)
        turn = next((at for at in of_guilty if late <= 5 or not bases[at]), None)
        if turn is None:
            return step_lines(spec, SPEEDS), OK, (journal(spec),)
        call = turn * spec.turn_steps + late
        told = journal(spec, turns=call // spec.turn_steps + 1, is_over=False)
        return step_lines(spec, SPEEDS, until=spec.first_step + call) + said, outcome, (told,)

    ran = run(tmp_path, play)
    assert [each.program for each in ran.rotation.blamed] == [guilty]
    assert ran.result.status is TrialStatus.MEASURED
    assert {*ran.changes} == {*turned.ids(SPEC.programs)} - {guilty}


def test_ends_of_several_programs_in_turn_blame_none_of_them(tmp_path: Path) -> None:
    ends = ["slow", "fast", turned.COPY, "slow"]

    def play(spec: RotationSpec, attempt: int) -> Told:
        if attempt > len(ends):
            return step_lines(spec, SPEEDS), OK, (journal(spec),)
        names = [spec.programs[each].id for each in spec.order]
        call = names.index(ends[attempt - 1]) * spec.turn_steps + 4
        told = journal(spec, turns=call // spec.turn_steps + 1, is_over=False)
        return step_lines(spec, SPEEDS, until=spec.first_step + call), KILLED, (told,)

    ran = run(tmp_path, play)
    assert ran.rotation.blamed == ()
    assert ran.result.status is TrialStatus.MEASURED


def test_many_programs_may_die_and_none_counts_against_the_others(tmp_path: Path) -> None:
    names = [f"bad{at}" for at in range(6)]
    spec = spec_of(*((each, {"xla_bad": "1"}) for each in names), ("fast", {}), rounds=3)

    def play(told: RotationSpec, _: int) -> Told:
        bad = next((each for each in turned.ids(told.programs) if each in names), "")
        if bad:
            return CHECK, ABORTED, (journal(told, dies_compiling=bad),)
        return step_lines(told, SPEEDS), OK, (journal(told),)

    ran = run(tmp_path, play, spec=spec)
    assert [each.program for each in ran.rotation.blamed] == names
    assert ran.changes["fast"] == pytest.approx(0.049, abs=0.003)


def test_a_rotation_that_dies_again_and_again_ends(tmp_path: Path) -> None:
    names = [f"bad{at}" for at in range(20)]
    spec = spec_of(*((each, {"xla_bad": "1"}) for each in names), rounds=1)

    def play(told: RotationSpec, _: int) -> Told:
        return CHECK, ABORTED, (journal(told, dies_compiling=told.programs[2].id),)

    ran = run(tmp_path, play, spec=spec)
    assert ran.result.status is TrialStatus.DROPPED
    assert len(ran.rotation.blamed) == MOST_BLAMED[BlamedAt.COMPILING]
    assert ran.rotation.score is None
    assert ran.rotation.reason is not None


def test_a_death_of_the_baseline_is_blamed_on_none(tmp_path: Path) -> None:
    play = dying(ABORTED, CHECK, compiling=BASELINE_ID, times=9)
    ran = run(tmp_path, play)
    assert ran.result.status is TrialStatus.DROPPED
    assert ran.rotation.blamed == ()


def _ends(*, at: int, lines: int, times: int = 9, tail: str = "") -> Play:
    """Die in a turn so many times, when so many calls have written their lines."""

    def play(spec: RotationSpec, attempt: int) -> Told:
        if attempt > times:
            return whole(spec, attempt)
        told = journal(spec, turns=at + 1, is_over=False) + tail
        return step_lines(spec, SPEEDS, until=lines) + CHECK, ABORTED, (told,)

    return play


# a turn of the baseline, and the profile before it
OF_BASELINE = next(
    at for at, each in enumerate(SPEC.order) if at and each < 2 <= SPEC.order[at - 1]
)
BEFORE_IT = SPEC.programs[SPEC.order[OF_BASELINE - 1]].id
BEGINS = SPEC.first_step + OF_BASELINE * SPEC.turn_steps
EVERY = SPEC.first_step + len(SPEC.order) * SPEC.turn_steps
LAST = next(at for at in reversed(range(len(SPEC.order))) if SPEC.order[at] > 1)


@pytest.mark.parametrize(
    ("play", "blamed"),
    [
        pytest.param(
            _ends(at=OF_BASELINE, lines=BEGINS + 2), [], id="in the middle of the baseline's turn"
        ),
        pytest.param(_ends(at=OF_BASELINE, lines=BEGINS), [], id="at its first step"),
        pytest.param(
            _ends(at=OF_BASELINE, lines=BEGINS - 1, times=1), [BEFORE_IT],
            id="with a step of the profile before it still open",
        ),
        pytest.param(
            _ends(at=LAST, lines=SPEC.first_step + (LAST + 1) * SPEC.turn_steps), [],
            id="behind the last step of a profile's turn, as a checkpoint does",
        ),
        pytest.param(
            _ends(at=len(SPEC.order) - 1, lines=EVERY, tail=turned.line("end", calls=EVERY)), [],
            id="behind the last step of all",
        ),
        pytest.param(
            _ends(at=OF_BASELINE - 1, lines=BEGINS - 2, times=1,
                  tail=turned.line("raised", call=BEGINS - 2)),
            [BEFORE_IT], id="by an exception of a profile's program",
        ),
        pytest.param(
            _ends(at=2, lines=SPEC.first_step + 2 * SPEC.turn_steps, times=1,
                  tail=turned.line("raised", call=SPEC.first_step + 2 * SPEC.turn_steps)),
            [], id="by an exception at the first call behind another profile's turn",
        ),
    ],
)  # fmt: skip
def test_no_profile_is_blamed_whose_steps_are_all_over(
    tmp_path: Path, play: Play, blamed: list[str]
) -> None:
    ran = run(tmp_path, play)
    assert [each.program for each in ran.rotation.blamed] == blamed


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (Outcome(state=State.NODE_FAIL), ""),
        (Outcome(state=State.NODE_FAIL), CHECK),
        (Outcome(state=State.PREEMPTED), ""),
        (Outcome(state=State.LOST), ""),
        (Outcome(state=State.CANCELLED), ""),
        (Outcome(state=State.FAILED, exit_code=1), "OSError: [Errno 28] No space left on device\n"),
    ],
    ids=[
        *("a node", "a node whose programs abort for it", "a preemption", "a job that is lost"),
        *("a cancel", "a full disk"),
    ],
)
@pytest.mark.parametrize("compiling", ["slow", ""], ids=["compiling", "in a turn"])
def test_trouble_of_the_site_blames_no_program(
    tmp_path: Path, outcome: Outcome, said: str, compiling: str
) -> None:
    ran = run(
        tmp_path, dying(outcome, said, compiling=compiling, turns=0 if compiling else TURN, times=9)
    )
    assert all(
        attempt.blamed is None
        for each in ran.state.trials.values()
        for attempt in each.attempts.values()
    )
    # what ranks could not be measured: the next session tries it again, and no job is in its place
    assert ran.result.status is TrialStatus.UNMEASURED
    assert ran.state.stop is not None


@pytest.mark.parametrize("is_look", [True, False], ids=["a look", "a rotation"])
@pytest.mark.parametrize(
    ("play", "status", "stops"),
    [
        pytest.param(dying(Outcome(state=State.CANCELLED), times=9), "unmeasured", True,
                     id="a cancel"),
        pytest.param(dying(TIMED_OUT, times=9), "unmeasured", True, id="a time limit"),
        pytest.param(dying(Outcome(state=State.FAILED, exit_code=3), times=9), "dropped", False,
                     id="a trainer that ends by itself"),
        pytest.param(dying(KILLED, times=1), "measured", False, id="one kill"),
        pytest.param(
            lambda spec, _: (
                step_lines(spec, SPEEDS, until=spec.first_step + 15) + NAN, RAISED,
                (journal(replace(spec, order=(0,) * 3), turns=3, is_over=False),),
            ),
            "dropped", False, id="a NaN loss of the baseline, behind turns that count",
        ),
    ],
)  # fmt: skip
def test_what_ranks_stops_the_sweep_where_something_else_ended_it(
    tmp_path: Path, play: Play, status: str, *, stops: bool, is_look: bool
) -> None:
    looks = replace(spec_of(copies=1, rounds=3), order=(0, 0, 0))
    ran = run(tmp_path, play, spec=looks if is_look else SPEC)
    assert ran.result.status == status
    assert (ran.state.stop is not None) is stops
    assert (ran.result.reason is None) is (status == "measured")


def test_a_journal_that_names_another_program_blames_none(tmp_path: Path) -> None:
    other = spec_of(("of-another", {}), rounds=1)
    ran = run(tmp_path, lambda *_: (CHECK, ABORTED, (journal(other, dies_compiling="of-another"),)))
    assert ran.result.status is TrialStatus.DROPPED
    assert ran.rotation.blamed == ()
    assert len(ran.executor.specs) < 3


@pytest.mark.parametrize(
    "left",
    [
        pytest.param(lambda _: (), id="none"),
        pytest.param(lambda spec: (journal(spec, turns=3, is_over=False),), id="its end is lost"),
    ],
)
def test_a_rotation_whose_journal_is_lost_is_tried_again(
    tmp_path: Path, left: Callable[[RotationSpec], tuple[str, ...]]
) -> None:
    """The look has shown that the worker finds the step."""

    def play(spec: RotationSpec, attempt: int) -> Told:
        return whole(spec, attempt) if attempt > 1 else (step_lines(spec, SPEEDS), OK, left(spec))

    ran = run(tmp_path, play)
    assert len(ran.executor.specs) == 2
    assert ran.result.status is TrialStatus.MEASURED
    assert "slow" in ran.changes


def test_what_a_whole_run_is_refused_for_is_no_fault_of_a_program(tmp_path: Path) -> None:
    """Settings of the cell that are not in effect, in a rotation that ended in a profile's turn."""
    spec = replace(SPEC, order=(*SPEC.order[:-1], 2))
    lost = "XLA_FLAGS=--xla_other=1\n"
    ran = run(
        tmp_path, lambda told, _: (lost + step_lines(told, {}), OK, (journal(told),)), spec=spec
    )
    assert ran.result.status is TrialStatus.DROPPED
    assert ran.rotation.blamed == ()
    assert len(ran.executor.specs) == 1
    assert ran.executor.launches[0].first_env.get("XLA_FLAGS") is None


def test_a_process_that_raises_is_blamed_and_not_those_that_are_killed_for_it() -> None:
    raised = journal(SPEC, dies_compiling="odd") + turned.line("end", calls=4)
    killed = journal(SPEC, dies_compiling="slow")
    found = read_journals((killed, raised))
    assert found is not None
    assert found.suspects == ("odd",)


def test_a_loss_is_blamed_on_the_turn_that_spoilt_it_and_only_once(tmp_path: Path) -> None:
    def play(spec: RotationSpec, _: int) -> Told:
        turn = next(n for n, each in enumerate(spec.order) if spec.programs[each].id == "fast")
        first = spec.first_step + (turn + 1) * spec.turn_steps  # shown by the step behind its turn
        return step_lines(spec, SPEEDS, nan_from=first), OK, (journal(spec),)

    ran = run(tmp_path, lambda spec, n: play(spec, n) if n == 1 else whole(spec, n))
    assert [each.program for each in ran.rotation.blamed] == ["fast"]
    again = run(tmp_path / "again", lambda spec, n: (
        play(spec, n) if "fast" in turned.ids(spec.programs)
        else (step_lines(spec, SPEEDS, nan_from=30), OK, (journal(spec),))
    ))  # fmt: skip
    assert [each.program for each in again.rotation.blamed] == ["fast"]
    assert again.result.status is TrialStatus.DROPPED


@pytest.mark.parametrize(
    ("journals", "words"),
    [
        (
            (),
            ("no journal of the worker"),
        ),
        (
            (turned.line("start", turn_steps=6) + turned.line("end", calls=0),),
            "program of the step was not",
        ),
        (
            (turned.line("trouble", words="the step is made by jax.pmap"),),
            "not found (the step is made by jax.pmap)",
        ),
        (("\0\0 no journal \n[[[",), "program of the step was not"),
    ],
    ids=["no journal", "no step", "the worker says why", "another file"],
)
def test_a_rotation_of_nothing_says_what_is_missing(
    tmp_path: Path, journals: tuple[str, ...], words: str
) -> None:
    ran = run(tmp_path, lambda spec, _: (step_lines(spec, {}), OK, journals))
    assert ran.result.status is TrialStatus.MEASURED
    assert not ran.rotation.is_found
    assert ran.result.reason is not None
    assert words in sentence(ran.result.reason)


@pytest.mark.parametrize(
    ("every", "skips", "ends", "is_apart"),
    [
        pytest.param(1, 0, True, False, id="a line a call"),
        pytest.param(1, 2, True, False, id="two warm-up calls before the loop"),
        pytest.param(2, 0, True, True, id="two calls a step"),
        pytest.param(2, 0, False, True, id="two calls a step, killed"),
        pytest.param(1, 9, True, True, id="nine calls before the loop"),
        pytest.param(1, 0, False, False, id="killed"),
        pytest.param(0.25, 0, True, True, id="four steps a call"),
        pytest.param(0.25, 0, False, True, id="four steps a call, killed"),
    ],
)
def test_where_a_step_is_no_call_no_turn_is_read_from_the_wrong_steps(
    tmp_path: Path, every: float, skips: int, ends: bool, is_apart: bool
) -> None:
    looks = spec_of(copies=1, rounds=8)
    for spec, name in ((SPEC, "turns"), (replace(looks, order=(0,) * 8), "look")):
        calls = spec.first_step + len(spec.order) * spec.turn_steps
        lines = step_lines(spec, SPEEDS, until=int((calls - skips) / every))
        told = journal(spec, is_over=ends)
        ran = run(tmp_path / name, lambda *_, a=lines, b=told: (a, OK, (b,)), spec=spec)
        assert (ran.rotation.score is None) is is_apart
        assert ran.rotation.is_found is not is_apart
        if is_apart:
            assert ran.rotation.reason is not None
            said = sentence(ran.rotation.reason)
            assert "which program ran" in said
            assert ("of its step 2 times" in said) is (every == 2 and ends)


def every(lines: str, steps: int) -> str:
    """Return each so manieth line of a log."""
    return "".join(lines.splitlines(keepends=True)[::steps])


ODD = '"words": "argument [0][1] was float32[8,32], and is float32[5,32]"'


@pytest.mark.parametrize(
    ("log", "told", "words"),
    [
        pytest.param(
            lambda lines: every(lines, 2),
            "",
            "line every 2 steps, and a turn has 4",
            id="a line every other step",
        ),
        pytest.param(
            lambda lines: every(lines, 5),
            "",
            "line every 5 steps, and a turn has 4",
            id="a line every fifth step",
        ),
        pytest.param(
            lambda lines: lines,
            "".join(turned.line("odd_call", call=at) for at in range(3, 99, 2)).replace(
                '"call": 3}', f'"call": 3, {ODD}}}'
            ),
            "48 of 83 calls of the step had",
            id="shapes that alternate",
        ),
    ],
)
def test_a_trainer_whose_lines_tell_no_turn_is_told_what_to_do(
    tmp_path: Path, log: Callable[[str], str], told: str, words: str
) -> None:
    one = replace(spec_of(copies=1, rounds=20), turn_steps=4)
    spec = replace(SPEC, turn_steps=4)
    for each, name in ((spec, "turns"), (replace(one, order=(0,) * 20), "look")):
        lines, said = log(step_lines(each, SPEEDS)), journal(each) + told
        ran = run(tmp_path / name, lambda *_, a=lines, b=said: (a, OK, (b,)), spec=each)
        assert ran.rotation.score is None
        assert not ran.rotation.is_found, "the look tells it before a rotation is spent"
        assert ran.rotation.reason is not None
        assert words in sentence(ran.rotation.reason)


def test_a_line_now_and_then_is_of_one_turn_alone(tmp_path: Path) -> None:
    """Its seconds may be the mean of the steps since the line before."""
    spec = replace(SPEC, turn_steps=10)
    calls = spec.first_step + len(spec.order) * spec.turn_steps
    one = {at_call(spec, call): 1000.0 for call in range(calls)} | SPEEDS
    lines = [
        f"completed step: {call}, seconds: {seconds:.6f}, Tokens/s/device: {512 / seconds:.3f}, "
        "loss: 7.1\n"
        for call in range(1, calls, 2)
        for seconds in [sum(512 / one[at_call(spec, at)] for at in (call - 1, call)) / 2]
    ]
    ran = run(tmp_path, lambda told, _: ("".join(lines), OK, (journal(told),)), spec=spec)
    assert ran.changes["slow"] == pytest.approx(-0.1054, abs=0.0005)
    assert ran.changes["fast"] == pytest.approx(0.0488, abs=0.0005)


def test_a_step_that_is_made_anew_as_another_program_is_named(tmp_path: Path) -> None:
    told = journal(SPEC, turns=2, is_over=False)
    told += turned.line("another", call=11) + turned.line("end", calls=11)
    ran = run(tmp_path, lambda spec, _: (step_lines(spec, SPEEDS), OK, (told,)))
    assert not ran.rotation.is_found
    assert ran.rotation.reason is not None
    assert "for the first time before call 11" in sentence(ran.rotation.reason)


def test_a_look_is_scored_as_any_trial_and_tells_whether_the_step_is_found(tmp_path: Path) -> None:
    spec = replace(spec_of(copies=1, rounds=3), order=(0, 0, 0))
    ran = run(tmp_path, lambda told, _: (step_lines(told, {}), OK, (journal(told),)), spec=spec)
    assert ran.result.score is not None
    assert ran.rotation.is_found


def test_a_time_limit_keeps_what_more_than_half_of_the_turns_say(tmp_path: Path) -> None:
    def ending(turns: int) -> Play:
        return lambda spec, _: (
            step_lines(spec, SPEEDS, until=spec.first_step + turns * spec.turn_steps),
            TIMED_OUT,
            (journal(spec, turns=turns, is_over=False),),
        )

    most = run(tmp_path / "most", ending(len(SPEC.order) - 4))
    assert most.result.status is TrialStatus.MEASURED
    assert most.changes["slow"] == pytest.approx(-0.105, abs=0.003)
    few = run(tmp_path / "few", ending(6))
    assert few.result.status is TrialStatus.UNMEASURED
    assert few.rotation.blamed == ()


@pytest.mark.parametrize(
    ("still_s", "compiling", "blamed"),
    [
        (100.0, "", True),
        (100.0, "slow", True),
        (30.0, "", False),
        (30.0, "slow", False),
    ],
    ids=["in a turn", "in a compilation", "in a turn as ever", "in a compilation as ever"],
)
def test_a_hang_that_a_time_limit_ended_is_blamed_on_its_program(
    tmp_path: Path, still_s: float, compiling: str, blamed: bool
) -> None:
    """The limit is shorter than the patience with a hang."""
    turns = 1 + next(at for at, each in enumerate(SPEC.order) if SPEC.programs[each].options)
    program = compiling or SPEC.programs[SPEC.order[turns - 1]].id
    began = f', "at": {1000.0 - still_s}}}\n'

    def play(spec: RotationSpec, attempt: int) -> Told:
        if attempt > 2:
            return step_lines(spec, SPEEDS), OK, (journal(spec),)
        told = journal(
            spec, dies_compiling=compiling, turns=None if compiling else turns, is_over=False
        )
        until = 1 if compiling else spec.first_step + (turns - 1) * spec.turn_steps
        ended = replace(TIMED_OUT, start_s=0.0, end_s=1000.0)
        return step_lines(spec, SPEEDS, until=until), ended, (told.removesuffix("}\n") + began,)

    ran = run(tmp_path, play)
    assert len(ran.executor.specs) == (3 if blamed else 1), "the first time it is a suspect"
    assert [each.program for each in ran.rotation.blamed] == [program] * blamed
    assert (ran.rotation.score is not None and "slow" in ran.changes) is (
        blamed and program != "slow"
    )


def test_a_killed_session_goes_on_without_what_was_blamed(tmp_path: Path) -> None:
    executor = Rotating(dying(ABORTED, CHECK, compiling="slow"))
    study = RotationsStudy(cell=CELL, specs=(SPEC,))
    first = scripted.campaign(tmp_path, executor, study=study)
    while len(first.view().state.trials) == 0 or not first.view().state.decisions:
        first.turn()
    second = scripted.campaign(tmp_path, executor, study=study, session="second")
    scripted.run(second)
    assert "slow" not in turned.ids(executor.specs[-1].programs)
    assert len(executor.specs) == 2
    result = second.view().history[0].rotation
    assert result is not None
    assert [each.program for each in result.blamed] == ["slow"]


def test_the_process_that_is_furthest_behind_tells_whom_to_blame() -> None:
    ahead = journal(SPEC, dies_compiling="odd")
    behind = journal(SPEC, dies_compiling="slow")
    found = read_journals((ahead, behind))
    assert found is not None
    assert found.suspects == ("slow",)
    assert found.is_compiling
    assert read_journals(()) is None


def test_a_process_that_died_in_a_turn_which_the_first_had_not_begun_was_not_compiling() -> None:
    turns = 1 + next(at for at, each in enumerate(SPEC.order) if SPEC.programs[each].options)
    # the first process still runs the baseline
    found = read_journals(
        (journal(SPEC, turns=0, is_over=False), died := journal(SPEC, turns=turns, is_over=False))
    )
    assert found is not None
    alone = read_journals((died,))
    assert alone is not None
    assert found.suspects == alone.suspects
    assert not found.is_compiling


def test_the_turns_end_with_a_call_that_raises(tmp_path: Path) -> None:
    """A trainer that catches it and goes on has a line for that call, or has none."""
    call = SPEC.first_step + (len(SPEC.order) - 3) * SPEC.turn_steps + 2
    told = journal(SPEC, turns=len(SPEC.order) - 2, is_over=False)
    told += turned.line("raised", call=call, words="INTERNAL") + turned.line("end", calls=EVERY + 1)
    ran = run(tmp_path, lambda spec, _: (step_lines(spec, SPEEDS), OK, (told,)))
    assert ran.result.status is TrialStatus.MEASURED
    assert ran.rotation.score is not None
    last = ran.rotation.score.turns[-1]
    assert last.first_step + last.steps + 2 <= call
    assert ran.changes["slow"] == pytest.approx(-0.105, abs=0.003)
