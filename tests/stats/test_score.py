"""The score of one job: window, guard, screen, tokens over time, reasons."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_xlatune.model.cell import Protocol
from pytest_xlatune.model.message import sentence, verbatim
from pytest_xlatune.model.metric import Logged
from pytest_xlatune.model.result import NoScore, Score, StepRecord
from pytest_xlatune.stats.score import _median as middle_of
from pytest_xlatune.stats.score import rescore, score, window_steps

TOKENS = 28672.0
PLAIN = Protocol()


def job(seconds: Sequence[float], **changes: object) -> list[StepRecord]:
    """Steps 0.. of these seconds, with the TGS that belongs to them."""
    return [
        StepRecord(step=at, step_s=s, tgs=TOKENS / s, **{"loss": 10 - at / 10, **changes})  # type: ignore[arg-type]
        for at, s in enumerate(seconds)
    ]


def steady(steps: int = 15, **slow: float) -> list[StepRecord]:
    """A healthy job; `s7=40.0` makes step 7 take 40 seconds."""
    noise = (0.0, 0.05, -0.04, 0.02, -0.06, 0.03, 0.01, -0.02)
    seconds = [28.8 + noise[at % len(noise)] for at in range(steps)]
    seconds[0] += 90
    for name, value in slow.items():
        seconds[int(name[1:])] = value
    return job(seconds)


def scored(
    steps: Sequence[StepRecord], protocol: Protocol = PLAIN, tokens: float | None = TOKENS
) -> Score:
    found = score(steps, protocol=protocol, tokens_per_device_step=tokens)
    assert isinstance(found, Score), found
    return found


def refused(
    steps: Sequence[StepRecord], protocol: Protocol = PLAIN, tokens: float | None = TOKENS
) -> str:
    found = score(steps, protocol=protocol, tokens_per_device_step=tokens)
    assert isinstance(found, NoScore), found
    return sentence(found.reason)


def test_a_healthy_job_scores_steps_5_to_14() -> None:
    found = scored(steady())
    assert (found.window, found.n_steps, found.dropped, found.flags) == ((5, 14), 10, (), ())
    assert found.tgs
    assert found.step_s == pytest.approx(TOKENS / found.tgs)
    assert found.value == pytest.approx(math.log(found.tgs))
    assert found.loss == pytest.approx(8.6)


def test_tokens_over_time_is_no_mean_of_rates() -> None:
    """A pause and the fast step that pays it back cost their time once, in the whole window."""
    found = scored(steady(s7=43.2, s8=14.4))
    assert found.dropped == (7, 8)
    assert found.stragglers == 1
    assert found.window_tgs == pytest.approx(scored(steady()).tgs, rel=2e-3)
    assert found.tgs == pytest.approx(scored(steady()).tgs, rel=2e-3)


@pytest.mark.parametrize(
    ("steps", "window", "dropped", "stragglers"),
    [
        pytest.param(steady(s9=36.0), (5, 14), (9,), 1, id="one straggler is dropped"),
        pytest.param(
            steady(s9=36.0, s10=28.6), (5, 14), (9, 10), 1, id="with a mildly fast follower"
        ),
        pytest.param(steady(s10=28.6), (5, 14), (), 0, id="which alone would have stayed"),
        pytest.param(steady(s9=20.0), (5, 14), (9,), 0, id="a fast step is no straggler"),
        pytest.param(steady(s5=33.0, s6=30.0), (7, 14), (), 0, id="a cold start is guarded"),
        pytest.param(
            steady(s5=33.0, s6=33.0, s7=33.0, s8=33.0, s9=33.0),
            (9, 14),
            (9,),
            1,
            id="the guard ends at step 9",
        ),
        pytest.param(steady(s9=29.07), (5, 14), (), 0, id="under 1 % nothing is dropped"),
        pytest.param(steady(s9=29.12), (5, 14), (9,), 1, id="above it is"),
        pytest.param(
            steady(s9=36.0, s12=28.6), (5, 14), (9,), 1, id="a fast step pays for the one before"
        ),
    ],
)
def test_screen_and_guard(
    steps: list[StepRecord], window: tuple[int, int], dropped: tuple[int, ...], stragglers: int
) -> None:
    protocol = replace(PLAIN, min_steps=5)
    found = scored(steps, protocol)
    assert (found.window, found.dropped, found.stragglers) == (window, dropped, stragglers)
    assert ("stragglers" in found.flags) == (stragglers > 0)


@pytest.mark.parametrize(
    ("protocol", "expected"),
    [
        pytest.param(Protocol(), range(5, 15), id="unprofiled: 5 to the last"),
        pytest.param(
            Protocol(profiler="xplane", skip_first_steps=4),
            range(9, 15),
            id="profiled early: 9 to the last",
        ),
        pytest.param(
            Protocol(profiler="xplane", skip_first_steps=10, steps=25),
            [9, *range(15, 25)],
            id="capture, write-back and the step after are out",
        ),
        pytest.param(
            Protocol(eval_interval=5, steps=20),
            [7, 8, 12, 13, 17, 18],
            id="an evaluation and two after it are out",
        ),
    ],
)
def test_window(protocol: Protocol, expected: Sequence[int]) -> None:
    window = window_steps(protocol)
    assert (tuple(window), len(window)) == (tuple(expected), len(expected))
    assert (window[0], window[-1], window[-2]) == (expected[0], expected[-1], expected[-2])
    assert [step for step in range(200) if step in window] == list(expected)


@pytest.mark.parametrize(
    ("steps", "protocol", "words"),
    [
        pytest.param([], PLAIN, "no step", id="an empty log"),
        pytest.param(steady(10), PLAIN, "5 usable steps", id="a job that died at step 9"),
        pytest.param(
            steady(), Protocol(profiler="xplane"), "profiler takes steps 10-14", id="a profiler"
        ),
        pytest.param(
            steady(), Protocol(eval_interval=3), "evaluation every 3", id="evaluation everywhere"
        ),
        pytest.param(
            [*steady()[:-1], StepRecord(step=14, step_s=28.8, tgs=995.0, loss=math.nan)],
            PLAIN,
            "not finite from step 14",
            id="a NaN loss",
        ),
        pytest.param(
            [*steady()[1:], StepRecord(step=0, step_s=99.0, tgs=290.0, loss=math.inf)],
            PLAIN,
            "not finite from step 0",
            id="an infinite loss before the window",
        ),
        pytest.param(
            steady(s6=40, s8=41, s11=43, s13=44),
            Protocol(min_steps=7),
            "after 4 outliers",
            id="too many stragglers",
        ),
        pytest.param(
            [StepRecord(step=at, tgs=math.nan, step_s=0.0) for at in range(15)],
            PLAIN,
            "0 usable steps",
            id="no figure is a number",
        ),
    ],
)
def test_why_there_is_no_score(steps: list[StepRecord], protocol: Protocol, words: str) -> None:
    assert words in refused(steps, protocol)


def rough(by: float = 0.01, **off: float) -> list[StepRecord]:
    """Steps of 28.8 s, `by` less and `by` more in turn; `s7=0.04` makes step 7 4 % longer."""
    logs = [by * (at % 3 - 1) for at in range(15)]
    for name, value in off.items():
        logs[int(name[1:])] = value
    return job([28.8 * math.exp(each) for each in logs])


@pytest.mark.parametrize(
    ("steps", "first", "dropped"),
    [
        pytest.param(rough(s9=0.032), 5, (), id="less than four MADs off is noise"),
        pytest.param(rough(s9=0.038), 5, (9,), id="more is none"),
        pytest.param(rough(s5=0.035), 5, (), id="a first step of less than four MADs is warm"),
        pytest.param(rough(s5=0.055), 6, (), id="of more is cold"),
    ],
)
def test_how_far_off_a_step_may_be_goes_by_the_scatter_of_all(
    steps: list[StepRecord], first: int, dropped: tuple[int, ...]
) -> None:
    found = scored(steps)
    assert (found.window[0], found.dropped) == (first, dropped)


def test_the_guard_leaves_as_many_steps_as_a_score_needs() -> None:
    protocol = Protocol(profiler="xplane", skip_first_steps=4)
    found = scored(rough(s9=0.032), protocol)
    assert (found.window, found.n_steps) == ((9, 14), protocol.min_steps)


def test_steps_outside_the_window_say_nothing_of_the_tokens_of_a_step() -> None:
    """A batch that is ramped up: the first nine steps are of half the tokens."""
    protocol = Protocol(profiler="xplane", skip_first_steps=4)
    ramped = [r._replace(tgs=(r.tgs or 0) / (1 + (r.step < 9))) for r in steady()]
    found = scored(ramped, protocol, tokens=None)
    assert found.step_s == pytest.approx(scored(steady(), protocol, tokens=None).step_s)
    assert "invariant-violated" not in found.flags


def test_the_log_is_believed_where_the_cell_declares_other_tokens() -> None:
    assert scored(steady(), tokens=2 * TOKENS).step_s == pytest.approx(scored(steady()).step_s)


def test_tgs_has_more_digits_than_the_seconds() -> None:
    seconds = [0.0286 + 0.0001 * (at % 3) for at in range(15)]
    rounded = [r._replace(step_s=0.029) for r in job(seconds)]
    assert scored(rounded, tokens=None).tgs == pytest.approx(scored(job(seconds)).tgs, rel=1e-9)


def test_a_straggler_costs_its_time_in_the_whole_window() -> None:
    found = scored(steady(s9=36.0))
    assert found.window_tgs == pytest.approx(math.exp(found.value) / 1.025, rel=1e-3)


def test_tokens_come_from_the_log_or_from_the_cell() -> None:
    without_tgs = [r._replace(tgs=None) for r in steady()]
    assert scored(without_tgs).tgs == pytest.approx(scored(steady()).tgs)
    assert scored(steady(), tokens=None).value == pytest.approx(scored(steady()).value)
    assert "no step" in (reason := refused(without_tgs, tokens=None))
    assert "Tokens/s/device" in reason


def test_an_invariant_that_does_not_hold_is_flagged() -> None:
    assert "invariant-violated" in scored(steady(), tokens=TOKENS * 2).flags
    assert "invariant-violated" in scored(steady(), tokens=TOKENS * 1.006).flags
    assert "invariant-violated" not in scored(steady(), tokens=TOKENS * 1.004).flags
    mixed = [r._replace(tgs=(r.tgs or 0) * (1.02 if r.step == 8 else 1)) for r in steady()]
    assert "invariant-violated" in scored(mixed, tokens=None).flags
    # seconds of fast steps are rounded coarsely; that is no violation
    fast = [
        r._replace(step_s=round(0.0288 + r.step * 1e-5, 3), tgs=TOKENS / (0.0288 + r.step * 1e-5))
        for r in steady()
    ]
    assert "invariant-violated" not in scored(fast).flags


def test_a_job_that_slows_down_is_not_steady() -> None:
    throttled = job([28.8 * 1.008**at for at in range(15)])
    assert "not-steady" in scored(throttled).flags
    assert "not-steady" not in scored(steady()).flags
    for step, is_steady in ((1.01, True), (1.02, False)):
        halves = job([28.8 * (step if at > 9 else 1.0) for at in range(15)])
        assert ("not-steady" not in scored(halves).flags) is is_steady
    # the guard takes the slow start away; that there was one is told all the same
    late = scored(steady(s5=30.0, s6=30.0, s7=30.0, s8=30.0))
    assert late.window[0] == 9
    assert "not-steady" in late.flags


def test_steps_that_scatter_widely_say_so() -> None:
    stalling = steady(s5=43.0, s6=14.0, s8=43.0, s9=14.0, s11=43.0, s13=40.0)
    assert "scattered-steps" in scored(stalling).flags
    assert "scattered-steps" not in scored(steady(s9=43.0)).flags
    assert "scattered-steps" in scored(rough(0.025)).flags
    assert "scattered-steps" not in scored(rough(0.015)).flags


def test_one_rank_and_the_last_start_count() -> None:
    own = [r._replace(label="0") for r in steady()]
    other = [r._replace(label="1", step_s=99.0, tgs=TOKENS / 99) for r in steady()]
    assert scored(other + own) == scored(own)
    first = [r._replace(step_s=50.0, tgs=TOKENS / 50) for r in steady(9)]
    again = [r._replace(start=1) for r in steady()]
    assert scored(first + again).value == scored(steady()).value


def test_of_unlabelled_ranks_the_slowest_counts() -> None:
    late = [r._replace(step_s=(r.step_s or 0) + 0.5, tgs=None) for r in steady()]
    early = [r._replace(tgs=None) for r in steady()]
    assert scored(early + late).step_s == scored(late).step_s


def test_a_resumed_run_warms_up_again() -> None:
    resumed = [r._replace(step=r.step + 3) for r in steady(15)]
    found = scored(resumed)
    assert found.window == (8, 14)
    assert "resumed" in found.flags


def test_a_trainer_that_counts_from_one_did_not_resume() -> None:
    found = scored([r._replace(step=r.step + 1) for r in steady(15)])
    assert found.window == (6, 14)
    assert "resumed" not in found.flags


def test_a_cut_off_run_says_so() -> None:
    assert "incomplete" in scored(steady(12)).flags


def test_hidden_profiler_steps_do_not_count() -> None:
    hidden = [r._replace(kind="profiler") if r.step in {6, 7} else r for r in steady()]
    assert scored(hidden).n_steps == 8


noisy = st.lists(st.floats(27.0, 31.0), min_size=15, max_size=15)


@given(seconds=noisy, factor=st.sampled_from([1e-3, 0.5, 8.0, 1000.0]))
def test_the_unit_of_tgs_does_not_matter(seconds: list[float], factor: float) -> None:
    plain = score(job(seconds), protocol=PLAIN, tokens_per_device_step=None)
    scaled = score(
        [r._replace(tgs=(r.tgs or 0) * factor) for r in job(seconds)],
        protocol=PLAIN,
        tokens_per_device_step=None,
    )
    if isinstance(plain, NoScore):
        assert isinstance(scaled, NoScore)
        return
    assert isinstance(scaled, Score)
    assert scaled.value == pytest.approx(plain.value + math.log(factor), abs=1e-9)
    assert (scaled.dropped, scaled.window) == (plain.dropped, plain.window)


@given(seconds=noisy, order=st.permutations(range(30)))
def test_order_and_repetition_of_lines_do_not_matter(
    seconds: list[float], order: list[int]
) -> None:
    once = job(seconds)
    twice = [(once + once)[at] for at in order]
    assert score(twice, protocol=PLAIN, tokens_per_device_step=TOKENS) == score(
        once, protocol=PLAIN, tokens_per_device_step=TOKENS
    )


@given(seconds=noisy)
def test_a_score_lies_between_its_fastest_and_slowest_step(seconds: list[float]) -> None:
    found = score(job(seconds), protocol=PLAIN, tokens_per_device_step=TOKENS)
    if isinstance(found, Score):
        assert min(seconds) <= (found.step_s or 0.0) <= max(seconds)
        assert found.n_steps >= PLAIN.min_steps


FIELD = Protocol(metric="field:wait", metric_is_better="lower", steps=8, first_step=2, min_steps=3)
NO_STEP = StepRecord(step=0)


@pytest.mark.parametrize(
    ("protocol", "steps", "logged", "figure", "n"),
    [
        pytest.param(
            FIELD,
            job([1.0] * 8),
            Logged(values=tuple((at, 99.0 if at < 2 else 10.0 + at) for at in range(8))),
            14.5,
            6,
            id="a field's median over the window",
        ),
        pytest.param(
            FIELD, [], Logged(values=((None, 3.0), (None, 5.0))), 4.0, 2, id="of all, without steps"
        ),
    ],
)
def test_another_figure_than_tgs_is_scored_so_that_more_is_better(
    protocol: Protocol, steps: list[StepRecord], logged: Logged, figure: float, n: int
) -> None:
    found = score(steps, protocol=protocol, tokens_per_device_step=None, logged=logged)
    assert isinstance(found, Score)
    assert found.figure is not None
    assert found.figure.value == pytest.approx(figure)
    assert found.value == pytest.approx(-math.log(figure))
    assert found.figure.metric.figure(found.value) == pytest.approx(figure)
    assert (found.n_steps, found.tgs, found.timings) == (n, None, ())
    assert Score.from_json(found.to_json()) == found


@pytest.mark.parametrize(
    ("protocol", "steps", "logged", "reason"),
    [
        (Protocol(metric="busbw"), [], Logged(), "prints `# Avg bus bandwidth"),
        (FIELD, [NO_STEP], Logged(), "no line prints `wait: NUMBER`"),
        (FIELD, [], Logged(values=((2, 1.0),)), "1 steps of the window print"),
        (FIELD, [], Logged(values=((None, 0.0),)), "wait is 0: only"),
        (FIELD, [], Logged(values=((None, 1.0),), problem=verbatim("corrupt")), "corrupt"),
        (FIELD, job([1.0, math.nan], loss=math.nan), Logged(), "loss is not finite"),
    ],
)
def test_a_job_without_its_figure_says_why(
    protocol: Protocol, steps: list[StepRecord], logged: Logged, reason: str
) -> None:
    found = score(steps, protocol=protocol, tokens_per_device_step=None, logged=logged)
    assert isinstance(found, NoScore)
    assert reason in sentence(found.reason)


def test_what_a_device_does_stands_in_a_score_at_its_tgs() -> None:
    """A straggler prints its own lower figures; the score's are those at the score's TGS."""
    steps = steady(s9=36.0)
    told = [(each, each.tgs or 0.0) for each in steps]
    found = scored([each._replace(tflops=tgs / 2, mfu=tgs / 40) for each, tgs in told])
    assert found.tgs
    assert found.tflops == pytest.approx(found.tgs / 2)
    assert found.mfu == pytest.approx(found.tgs / 40)
    again = rescore(replace(found, memory_gb=3.5), protocol=replace(PLAIN, first_step=7))
    assert isinstance(again, Score)
    assert again.tgs
    assert again.mfu == pytest.approx(again.tgs / 40)
    assert again.memory_gb == 3.5
    assert scored(steady()).mfu is None


@pytest.mark.parametrize("count", [4_097, 5_000, 20_001])
@pytest.mark.parametrize(
    "value",
    [
        pytest.param(lambda at: at * 7919 % 10_007 / 7, id="values in no order"),
        pytest.param(lambda at: float(-at), id="values that fall"),
        pytest.param(lambda at: float(at % 2), id="two values"),
        pytest.param(lambda at: 1.0 if at % 9 else 1e9, id="a sample of outliers alone"),
        pytest.param(lambda _: 3.5, id="one value"),
    ],
)
def test_the_median_of_many_is_the_one_that_sorting_finds(
    value: Callable[[int], float], count: int
) -> None:
    values = [value(at) for at in range(count)]
    assert middle_of(values) == median(values)
