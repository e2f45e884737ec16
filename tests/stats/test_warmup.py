"""Where steady state begins over all jobs, and the one window that all of them are scored in."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.model.cell import Protocol
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.result import NoScore, Score, StepRecord
from pytest_xlatune.stats.score import rescore, score
from pytest_xlatune.stats.window import common_window, first_half_excess, steady_start

TOKENS = 28672.0
PLAIN = Protocol()


def seconds(tau: float, *, job: int = 0, steps: int = 15, noise: float = 0.0) -> list[float]:
    random = Random(f"{tau} {job}")
    return [
        30 * math.exp(0.25 * math.exp(-at / tau) + 0.0005 * job + random.gauss(0, noise))
        for at in range(steps)
    ]


def scored(times: Sequence[float], protocol: Protocol = PLAIN) -> Score:
    steps = [
        StepRecord(step=at, step_s=each, tgs=TOKENS / each, loss=9.0)
        for at, each in enumerate(times)
    ]
    found = score(steps, protocol=protocol, tokens_per_device_step=TOKENS)
    assert isinstance(found, Score)
    return found


def warming(
    tau: float, *, jobs: int = 12, steps: int = 15, noise: float = 0.0
) -> tuple[list[Score], Protocol]:
    protocol = Protocol(steps=steps)
    every = [seconds(tau, job=job, steps=steps, noise=noise) for job in range(jobs)]
    return [scored(each, protocol) for each in every], protocol


Timings = list[Sequence[tuple[int, float]]]


def timings(tau: float, **how: Any) -> Timings:
    return [each.timings for each in warming(tau, **how)[0]]


def stalled() -> Timings:
    """A slow step of every job."""
    jobs = ([*seconds(0.9, steps=10), 45.0 + job, *[30.0] * 9] for job in range(12))
    return [scored(each, Protocol(steps=20)).timings for each in jobs]


def in_turn() -> Timings:
    return [[(step, 45.0 if step in (0, 2, 5) else 30.0) for step in range(15)]] * 12


@pytest.mark.parametrize(
    ("jobs", "starts"),
    [
        pytest.param(lambda: timings(0.9), {4}, id="a short warm-up"),
        pytest.param(lambda: timings(2.5), {8, 9, 10}, id="a long one"),
        pytest.param(lambda: timings(0.9, jobs=11), {None}, id="too few jobs to say"),
        # 105 steps are 105 chances to be slow by chance: none of them may push the start away
        pytest.param(lambda: timings(0.9, steps=105, noise=0.02), {*range(6)}, id="noise alone"),
        pytest.param(stalled, {4}, id="a slow step of every job"),
        pytest.param(in_turn, {6}, id="level steps make a steady state only in a row"),
    ],
)
def test_the_pooled_start_finds_the_warm_up(
    jobs: Callable[[], Timings], starts: set[int | None]
) -> None:
    assert steady_start(jobs()) in starts


@pytest.mark.parametrize(
    ("tau", "steps", "jobs", "moved_to", "words"),
    [
        pytest.param(0.9, 15, 12, None, "", id="the window holds"),
        pytest.param(2.5, 25, 11, None, "", id="too few jobs to say"),
        pytest.param(2.5, 25, 14, 10, "of all trials starts at step 10", id="it moves"),
        pytest.param(2.5, 15, 12, 7, "15 steps are too few, use steps=21", id="as far as it can"),
    ],
)
def test_one_window_for_all(
    tau: float, steps: int, jobs: int, moved_to: int | None, words: str
) -> None:
    scores, protocol = warming(tau, steps=steps, jobs=jobs)
    window = common_window(scores, protocol)
    assert window.moved_to == moved_to
    assert words in sentence(window.note)
    assert bool(window.note) is bool(words)
    # it moves for all or for none
    scores[3] = replace(scores[3], timings=())
    window = common_window(scores, protocol)
    assert not window.is_moved
    assert ("steps of 1 trials were" in sentence(window.note)) is (jobs > 12)


def test_a_score_in_another_window_is_the_one_that_the_log_gives_there() -> None:
    times = [*seconds(2.5, steps=15, noise=0.001), *[30.0] * 4, 36.0, *[30.0] * 5]
    declared, later = Protocol(steps=25), Protocol(steps=25, first_step=9)
    found = rescore(scored(times, declared), protocol=later)
    assert isinstance(found, Score)
    expected = scored(times, later)
    assert found.value == pytest.approx(expected.value, abs=1e-12)
    assert (found.window, found.dropped, found.stragglers) == ((9, 24), (19,), 1)
    assert replace(found, value=0.0, tgs=0.0, window_tgs=0.0) == replace(
        expected, value=0.0, tgs=0.0, window_tgs=0.0
    )
    back = rescore(found, protocol=declared)
    assert isinstance(back, Score)
    assert back.value == pytest.approx(scored(times, declared).value, abs=1e-12)


def test_a_job_that_has_too_few_steps_there_says_so() -> None:
    times = [*[30.0] * 10, 40.0, *[30.0] * 4]
    found = rescore(scored(times), protocol=replace(PLAIN, first_step=9))
    assert isinstance(found, NoScore)
    assert "5 usable steps left after 1 outlier in the window 9-14" in sentence(found.reason)
    gone = rescore(replace(scored(times), timings=()), protocol=PLAIN)
    assert isinstance(gone, NoScore)
    assert "were not kept" in sentence(gone.reason)
    # settling is the first half against the second
    times = [30.0] * 5 + [30.3] * 5 + [30.0] * 5
    assert first_half_excess(scored(times), PLAIN) == pytest.approx(math.log(1.01))
    assert first_half_excess(replace(scored(times), timings=()), PLAIN) is None
