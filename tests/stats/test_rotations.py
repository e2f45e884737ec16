"""How rotations are laid out in steps, and what jobs and rotations have to do."""

from __future__ import annotations

import pytest

from pytest_xlatune.model.message import sentence
from pytest_xlatune.stats.design import MAX_BLOCKS, Plan, Refusal, plan
from pytest_xlatune.stats.rotations import JobPace, JobWork, TurnLayout


@pytest.mark.parametrize(
    ("compile_s", "turn_steps", "rounds"),
    [
        pytest.param(1.0, 5, 2, id="steps that take as long as a compilation"),
        pytest.param(16.0, 5, 3, id="as long as a program compiles"),
        pytest.param(40.0, 6, 6, id="longer turns of short steps"),
        pytest.param(900.0, 8, 16, id="never more than a rotation may have"),
    ],
)
def test_a_program_runs_about_as_long_as_it_compiles(
    compile_s: float, turn_steps: int, rounds: int
) -> None:
    found = TurnLayout.paced(JobPace(start_s=9.0, step_s=1.0, compile_s=compile_s))
    assert (found.turn_steps, found.rounds) == (turn_steps, rounds)
    assert found.steps(4) == 4 * turn_steps * rounds


def test_the_time_of_jobs_is_starts_steps_and_compilations() -> None:
    pace = JobPace.guessed(1000.0, 10)
    assert (pace.start_s, pace.step_s, pace.compile_s) == (500.0, 50.0, 200.0)
    work = JobWork(jobs=2, steps=20) + JobWork(jobs=1, steps=5, compilations=3)
    assert work.seconds(pace) == 3 * 500 + 25 * 50 + 3 * 200


@pytest.mark.parametrize(
    ("profiles", "alone", "budget", "widths", "jobs"),
    [
        pytest.param(25, 0, 25, (5, 3, 3, 3), 25, id="the usual sweep"),
        pytest.param(25, 0, 50, (6, 4, *[3] * 6), 47, id="a budget buys blocks"),
        pytest.param(25, 5, 33, (5, 3, 3, 3), 33, id="some stay jobs, with baselines"),
        pytest.param(60, 0, 25, (5, 3, 3, 3), 25, id="more profiles are no more jobs"),
        pytest.param(2, 0, 20, (2,) * 4, 19, id="few: all stand in all blocks"),
        pytest.param(25, 0, 18, (3, 3, 3), 18, id="a small one"),
    ],
)
def test_blocks_behind_rotations(
    profiles: int, alone: int, budget: int, widths: tuple[int, ...], jobs: int
) -> None:
    found = plan(profiles, budget, turned=profiles - alone, rotations=3)
    assert isinstance(found, Plan)
    assert (found.widths, found.jobs) == (widths, jobs)
    assert found.df >= 3
    assert len(found.widths) <= max(MAX_BLOCKS, 20)


def test_too_few_jobs_behind_rotations_only_rank_and_say_what_would_do() -> None:
    found = plan(25, 10, turned=25, rotations=3)
    assert isinstance(found, Refusal)
    least = found.why.values["least"]
    assert isinstance(plan(25, least, turned=25, rotations=3), Plan)
    assert isinstance(plan(25, least - 1, turned=25, rotations=3), Refusal)
    assert str(least) in sentence(found.why)
