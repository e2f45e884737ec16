"""The score of one job, the one window of all, and what makes a trial valid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_xlatune.catalog.entries import history
from pytest_xlatune.model.cell import Protocol
from pytest_xlatune.model.channels import Options
from pytest_xlatune.model.message import sentence, verbatim
from pytest_xlatune.model.metric import Logged
from pytest_xlatune.model.profile import Profile, profile
from pytest_xlatune.model.result import Effect, NoScore, Score, StepRecord
from pytest_xlatune.stats.score import _median as middle_of
from pytest_xlatune.stats.score import rescore, score, window_steps
from pytest_xlatune.stats.validity import Witnesses, contradictions, different_loss, judge_settings
from pytest_xlatune.stats.window import common_window, steady_start

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


def result_of(
    steps: Sequence[StepRecord], protocol: Protocol = PLAIN, tokens: float | None = TOKENS
) -> Score | NoScore:
    return score(steps, protocol=protocol, tokens_per_device_step=tokens)


def scored(*given: Any, **tokens: Any) -> Score:
    found = result_of(*given, **tokens)
    assert isinstance(found, Score), found
    return found


def refused(*given: Any, **tokens: Any) -> str:
    found = result_of(*given, **tokens)
    assert isinstance(found, NoScore), found
    return sentence(found.reason)


def rough(by: float = 0.01, **off: float) -> list[StepRecord]:
    """Steps of 28.8 s, `by` less and `by` more in turn; `s7=0.04` makes step 7 4 % longer."""
    logs = [by * (at % 3 - 1) for at in range(15)]
    for name, value in off.items():
        logs[int(name[1:])] = value
    return job([28.8 * math.exp(each) for each in logs])


def altered(steps: Sequence[StepRecord], **fields: Any) -> list[StepRecord]:
    """Return the steps with other fields; a function is given the step."""
    return [
        each._replace(**{name: v(each) if callable(v) else v for name, v in fields.items()})
        for each in steps
    ]


FEW = replace(PLAIN, min_steps=5)
EARLY = Protocol(profiler="xplane", skip_first_steps=4)  # its window is 9 to 14


@pytest.mark.parametrize(
    ("steps", "window", "dropped", "stragglers"),
    [
        (steady(), (5, 14), (), 0),
        (steady(s9=36.0), (5, 14), (9,), 1),
        (steady(s9=20.0), (5, 14), (9,), 0),  # a fast step is no straggler
        (steady(s5=33.0, s6=30.0), (7, 14), (), 0),  # a cold start is guarded
        (steady(s5=33.0, s6=33.0, s7=33.0, s8=33.0, s9=33.0), (9, 14), (9,), 1),  # until step 9
        (steady(s9=29.07), (5, 14), (), 0),  # under 1 % nothing is dropped
        (steady(s9=29.12), (5, 14), (9,), 1),
        (rough(s9=0.032), (5, 14), (), 0),  # below four MADs it is noise
        (rough(s9=0.038), (5, 14), (9,), 1),
        # a resumed run warms up again
        (altered(steady(), step=lambda each: each.step + 3), (8, 14), (), 0),
    ],
)
def test_screen_and_guard(
    steps: list[StepRecord], window: tuple[int, int], dropped: tuple[int, ...], stragglers: int
) -> None:
    found = scored(steps, FEW)
    assert (found.window, found.dropped, found.stragglers) == (window, dropped, stragglers)
    assert ("stragglers" in found.flags) == (stragglers > 0)
    assert (found.tgs or 0) * (found.step_s or 0) == pytest.approx(TOKENS)
    usable = {each.step for each in steps if window[0] <= each.step <= window[1]}
    assert found.n_steps == len(usable) - len(dropped)


def test_flags() -> None:
    for flag, steps in (
        ("invariant-violated", altered(steady(), tgs=lambda each: 1.006 * each.tgs)),
        ("not-steady", job([28.8 * 1.008**at for at in range(15)])),
        ("not-steady", job([28.8 * (1 + 0.02 * (at > 9)) for at in range(15)])),
        # a slow start that the guard takes away is told all the same
        ("not-steady", steady(s5=30.0, s6=30.0, s7=30.0, s8=30.0)),
        ("incomplete", steady(12)),
    ):
        assert flag in scored(steps).flags


def test_what_leaves_the_score_where_it_was() -> None:
    ranks = [
        altered(steady(), label="1", step_s=99.0, tgs=TOKENS / 99),
        altered(steady(), label="0"),
    ]
    cut = altered(steady(9), step_s=50.0, tgs=TOKENS / 50)
    late = altered(steady(), tgs=None, step_s=lambda each: each.step_s + 0.5)
    for steps, same, rel in (
        (ranks[0] + ranks[1], steady(), 1e-6),  # one rank counts
        (cut + altered(steady(), start=1), steady(), 1e-6),  # so does the last start
        (altered(steady(), tgs=None) + late, late, 1e-6),  # of unlabelled ranks the slowest
        # a pause that the next step pays back costs its time once
        (steady(s7=43.2, s8=14.4), steady(), 2e-3),
    ):
        found, other = scored(steps), scored(same)
        for name in ("tgs", "window_tgs", "step_s"):
            assert getattr(found, name) == pytest.approx(getattr(other, name), rel=rel), name
    # the log is believed
    assert scored(steady(), tokens=2 * TOKENS).tgs == pytest.approx(scored(steady()).tgs)


def test_time_and_tokens_are_those_of_the_window() -> None:
    found = scored(steady(s9=36.0))
    assert found.window_tgs == pytest.approx(math.exp(found.value) / 1.025, rel=1e-3)
    # a batch that is ramped up: the first nine steps are of half the tokens
    ramped = altered(steady(), tgs=lambda each: each.tgs / (1 + (each.step < 9)))
    found = scored(ramped, EARLY, tokens=None)
    assert found.step_s == pytest.approx(scored(steady(), EARLY, tokens=None).step_s)
    assert "invariant-violated" not in found.flags
    # TGS has more digits than the seconds
    exact = job([0.0286 + 0.0001 * (at % 3) for at in range(15)])
    rounded = scored(altered(exact, step_s=0.029), tokens=None)
    assert rounded.tgs == pytest.approx(scored(exact).tgs, rel=1e-9)
    assert "Tokens/s/device" in refused(altered(steady(), tgs=None), tokens=None)


def test_window() -> None:
    for protocol, expected in (
        # capture, write-back and the step after are out
        (Protocol(profiler="xplane", skip_first_steps=10, steps=25), [9, *range(15, 25)]),
        # an evaluation and two after it are out
        (Protocol(eval_interval=5, steps=20), [7, 8, 12, 13, 17, 18]),
    ):
        window = window_steps(protocol)
        assert ([*window], len(window), window[-2]) == (expected, len(expected), expected[-2])
        assert [step for step in range(200) if step in window] == expected


def test_why_there_is_no_score() -> None:
    assert "no step" in refused([])
    assert "5 usable steps" in refused(steady(10))
    assert "profiler takes steps 10-14" in refused(steady(), Protocol(profiler="xplane"))
    assert "0 usable steps" in refused(altered(steady(), tgs=math.nan, step_s=0.0))


noisy = st.lists(st.floats(27.0, 31.0), min_size=15, max_size=15)


@given(seconds=noisy, factor=st.sampled_from([1e-3, 0.5, 8.0, 1000.0]))
def test_the_unit_of_tgs_does_not_matter(seconds: list[float], factor: float) -> None:
    plain = result_of(job(seconds), tokens=None)
    scaled = result_of(altered(job(seconds), tgs=lambda each: each.tgs * factor), tokens=None)
    assert type(scaled) is type(plain)
    if isinstance(plain, Score) and isinstance(scaled, Score):
        assert scaled.value == pytest.approx(plain.value + math.log(factor), abs=1e-9)
        assert (scaled.dropped, scaled.window) == (plain.dropped, plain.window)


@given(seconds=noisy, order=st.permutations(range(30)))
def test_order_and_repetition_of_lines_do_not_matter(
    seconds: list[float], order: list[int]
) -> None:
    once = job(seconds)
    assert result_of([(once + once)[at] for at in order]) == result_of(once)


@given(seconds=noisy)
def test_a_score_lies_between_its_fastest_and_slowest_step(seconds: list[float]) -> None:
    found = result_of(job(seconds))
    if isinstance(found, Score):
        assert min(seconds) <= (found.step_s or 0.0) <= max(seconds)
        assert found.n_steps >= PLAIN.min_steps


def test_another_figure_than_tgs_is_scored_and_a_job_without_it_says_why() -> None:
    def of_collectives(steps: list[StepRecord], logged: Logged) -> Score | NoScore:
        protocol = Protocol(metric="busbw")
        return score(steps, protocol=protocol, tokens_per_device_step=None, logged=logged)

    found = of_collectives([], Logged(value=4.0))
    assert isinstance(found, Score)
    assert found.figure
    assert (found.figure.value, found.value) == pytest.approx((4.0, math.log(4.0)))
    assert (found.n_steps, found.tgs, found.timings) == (1, None, ())
    assert Score.from_json(found.to_json()) == found
    for steps, logged, reason in (
        ([], Logged(), "no line prints `# Avg bus bandwidth"),
        ([], Logged(value=0.0), "bus bandwidth is 0: only"),
        ([], Logged(value=1.0, problem=verbatim("corrupt")), "corrupt"),
        (job([1.0, math.nan], loss=math.nan), Logged(), "loss is not finite"),
    ):
        found = of_collectives(steps, logged)
        assert isinstance(found, NoScore)
        assert reason in sentence(found.reason)


@pytest.mark.parametrize("count", [4_097, 5_000, 20_001])
def test_the_median_of_many_is_the_one_that_sorting_finds(count: int) -> None:
    values = [at * 7919 % 10_007 / 7 for at in range(count)]
    assert middle_of(values) == median(values)
    outliers = [1.0 if at % 9 else 1e9 for at in range(count)]
    assert middle_of(outliers) == 1.0


def seconds(tau: float, *, job: int = 0, steps: int = 15, noise: float = 0.0) -> list[float]:
    random = Random(f"{tau} {job}")
    return [
        30 * math.exp(0.25 * math.exp(-at / tau) + 0.0005 * job + random.gauss(0, noise))
        for at in range(steps)
    ]


def warming(
    tau: float, *, jobs: int = 12, steps: int = 15, noise: float = 0.0
) -> tuple[list[Score], Protocol]:
    protocol = Protocol(steps=steps)
    every = [seconds(tau, job=job, steps=steps, noise=noise) for job in range(jobs)]
    return [scored(job(each), protocol) for each in every], protocol


def test_the_pooled_start_finds_the_warm_up_and_no_slow_step_of_all_jobs() -> None:
    for tau, how, starts in (
        (0.9, {}, {4}),
        (2.5, {}, {8, 9, 10}),
        (0.9, {"jobs": 11}, {None}),  # too few to say
        # 105 steps are 105 chances to be slow by chance: none of them may push the start away
        (0.9, {"steps": 105, "noise": 0.02}, {*range(6)}),
    ):
        assert steady_start([each.timings for each in warming(tau, **how)[0]]) in starts
    jobs = ([*seconds(0.9, steps=10), 45.0 + job, *[30.0] * 9] for job in range(12))
    assert steady_start([scored(job(each), Protocol(steps=20)).timings for each in jobs]) == 4
    # level steps make a steady state only in a row
    early = [(step, 45.0 if step in (0, 2, 5) else 30.0) for step in range(15)]
    assert steady_start([early] * 12) == 6


def test_one_window_for_all() -> None:
    for tau, steps, jobs, moved_to, words in (
        (0.9, 15, 12, None, ""),
        (2.5, 25, 11, None, ""),  # too few jobs to say
        (2.5, 25, 14, 10, "of all trials starts at step 10"),
        (2.5, 15, 12, 7, "15 steps are too few, use steps=21"),
    ):
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
    expected = scored(job(times), later)
    found = rescore(scored(job(times), declared), protocol=later)
    assert isinstance(found, Score)
    assert (found.window, found.dropped, found.stragglers) == ((9, 24), (19,), 1)
    assert found.value == pytest.approx(expected.value, abs=1e-12)
    same = {"value": 0.0, "tgs": 0.0, "window_tgs": 0.0}
    assert replace(found, **same) == replace(expected, **same)
    back = rescore(found, protocol=declared)
    assert isinstance(back, Score)
    assert back.value == pytest.approx(scored(job(times), declared).value, abs=1e-12)


def test_a_job_that_has_too_few_steps_there_says_so() -> None:
    times = [*[30.0] * 10, 40.0, *[30.0] * 4]
    found = rescore(scored(job(times)), protocol=replace(PLAIN, first_step=9))
    assert isinstance(found, NoScore)
    assert "5 usable steps left after 1 outlier in the window 9-14" in sentence(found.reason)
    gone = rescore(replace(scored(job(times)), timings=()), protocol=PLAIN)
    assert isinstance(gone, NoScore)
    assert "were not kept" in sentence(gone.reason)


SCHEDULER = "xla_gpu_enable_latency_hiding_scheduler"
DEPLOYED = f"--xla_gpu_autotune_level=4 --{SCHEDULER}=true"
OVERLAP = profile("overlap", f"--{SCHEDULER}=false")


RINGS = profile("rings", env={"NCCL_ALGO": "Ring"})
M_REMAT = profile("m", env={"M_REMAT_POLICY": "full"})


def key(value: str) -> Profile:
    return profile("keys", overrides={"remat_policy": value})


def config(value: str) -> Witnesses:
    return Witnesses(config={"remat_policy": value})


EDITED = profile("p", "--xla_gpu_enable_command_buffer=+CONDITIONAL")


def whole(**values: str) -> Witnesses:
    return Witnesses(options=Options(values=values, is_whole=True), expects_options=True)


@pytest.mark.parametrize(
    ("of", "shown", "effect"),
    [
        pytest.param(OVERLAP, Witnesses(), "asked", id="a flag of which nothing is said"),
        pytest.param(OVERLAP, Witnesses(expects_options=True), "not seen", id="XLA is silent"),
        pytest.param(OVERLAP, Witnesses(flags=f"--{SCHEDULER}=true", options=Options(
                     values={SCHEDULER: "false"}, is_whole=True)), "in effect",
                     id="a dump is a stronger witness than the environment"),
        pytest.param(RINGS, Witnesses(env={"NCCL_ALGO": "Ring"}), "asked", id="the environment"),
        pytest.param(RINGS, Witnesses(nccl={"NCCL_ALGO": "ring"}), "in effect", id="NCCL says so"),
        pytest.param(RINGS, Witnesses(env={"NCCL_ALGO": "Tree"}), "contradicted", id="overwritten"),
        pytest.param(RINGS, Witnesses(env={"NCCL_ALGO": "Ring"}, nccl={"NCCL_ALGO": "Tree"}),
                     "contradicted", id="NCCL says otherwise"),
        pytest.param(key("full"), config("none"), "contradicted", id="another value of a key"),
        pytest.param(key("true"), config("True"), "in effect", id="a truth"),
        pytest.param(key("['data', 'fsdp']"), config('["data","fsdp"]'), "in effect", id="a list"),
        pytest.param(key("-1"), config("8"), "asked", id="a value that the framework fills in"),
        pytest.param(key("(hidden)"), config("a-token"), "asked",
                     id="a secret: two profiles with one stopped a sweep"),
        pytest.param(key("full"), Witnesses(config={"steps": "15"}), "not seen",
                     id="other keys are printed"),
        pytest.param(M_REMAT, config("full"), "in effect", id="MaxText's variable is its key"),
        # a dump that is whole tells more
        (EDITED, whole(xla_gpu_enable_command_buffer="FUSION,CONDITIONAL"), "in effect"),
        (EDITED, whole(xla_gpu_enable_command_buffer="FUSION,CUBLAS"), "contradicted"),
        (profile("p", "--xla_gpu_enable_command_buffer=''"), whole(), "in effect"),
        (profile("p", "--xla_never_heard_of=1"), whole(), "not seen"),
        (profile("p", "--xla_force_host_platform_device_count=4"),
         whole(xla_force_host_platform_device_count="1"), "contradicted"),
    ],
)  # fmt: skip
def test_what_a_witness_says_of_a_setting(of: Profile, shown: Witnesses, effect: str) -> None:
    found = judge_settings(of, shown, overrides=of.overrides, defaults=history().defaults)
    assert [str(each.effect) for each in found] == [effect]
    assert judge_settings(profile("none"), Witnesses(), deployed="") == ()


def test_flags_against_a_list_of_the_environment() -> None:
    asked = OVERLAP.settings_text
    for of, shown, words in (
        (OVERLAP, f"{DEPLOYED} {asked}", ""),
        # an env file sourced later wins
        (OVERLAP, f"{asked} {DEPLOYED}", "scheduler is 'true' in the log, expected 'false'"),
        (OVERLAP, asked, "autotune_level is not set in the log, expected '4'"),
        (profile("empty"), "", "not set"),
    ):
        found = judge_settings(of, Witnesses(flags=shown), deployed=DEPLOYED)
        reasons = contradictions(found)
        assert bool(reasons) == bool(words)
        assert words in " ".join(map(sentence, reasons))
        # such a list proves nothing
        assert {each.effect for each in found} <= {Effect.ASKED, Effect.CONTRADICTED}


def test_a_key_of_the_cell_is_told_where_it_is_contradicted_and_a_variable_may_be_exempt() -> None:
    keys = {"remat_policy": "full", "dtype": "bfloat16"}
    shown = Witnesses(config={**keys, "remat_policy": "none"})
    (lost,) = judge_settings(profile("p"), shown, overrides=keys)
    assert (lost.name, lost.effect) == ("remat_policy", Effect.CONTRADICTED)
    assert lost.is_deployed
    # a sweep may declare that nothing can show a variable
    both = profile("both", env={"HSA_NO_SCRATCH_RECLAIM": "1", "NCCL_ALGO": "Ring"})
    hsa, algo = judge_settings(both, Witnesses(), exempt=["HSA_*"])
    assert (hsa.is_proved, algo.is_proved, hsa.effect) == (True, False, Effect.ASKED)
    shown = Witnesses(env={"HSA_NO_SCRATCH_RECLAIM": "2"})
    lost, _ = judge_settings(both, shown, exempt=["HSA_*"])
    assert not lost.is_proved, "what is contradicted stays so"


def test_a_loss_may_be_as_far_off_as_the_baselines_own() -> None:
    falling = [3.374, 2.487]
    for loss, others, first, differs in (
        *((loss, [10.0], None, False) for loss in (10.0, 10.15)),
        *((loss, [10.0], None, True) for loss in (10.3, 9.7, math.nan)),
        (0.0257, [0.0385, 0.0377], 9.509, False),  # by heart, on an H200
        (0.0257, [0.0385, 0.0377], None, True),  # nothing says how it began
        (2.1, [2.0, 2.0], 10.0, True),  # a fifth is not yet by heart
        (3.383, falling, 9.509, False),
        (3.1, falling, 9.509, False),  # nearer than the baseline's own
        (2.9, falling, 9.509, True),  # never five times the tolerance
    ):
        found = different_loss(loss, others[0], tolerance=0.02, others=others, first=first)
        assert bool(found) is differs, loss


ON = "COLLECTIVE_PIPELINING_MODE_ON"
GATHER = "xla_gpu_enable_pipelined_all_gather"


@pytest.mark.parametrize(
    ("flags", "options", "lost"),
    [
        ("--xla_gpu_autotune_level=0", {"xla_gpu_autotune_level": "0"}, False),
        ("--xla_gpu_autotune_level=0", {}, True),  # it stands at its default: it was lost
        ("--xla_gpu_autotune_level=4", {}, False),  # which is the default
        # a list is added to what is deployed, and one that is edited is not judged
        ("--xla_disable_hlo_passes=fusion", {"xla_disable_hlo_passes": "algsimp,fusion"}, False),
        ("--xla_gpu_enable_command_buffer=+CONDITIONAL", {}, False),
        # under its newer name, and the other way
        (f"--{GATHER}=true", {"xla_gpu_pipeline_all_gather": ON}, False),
        (f"--{GATHER}=false", {"xla_gpu_pipeline_all_gather": ON}, True),
    ],
)
def test_a_dump_contradicts_what_was_asked_for(
    flags: str, options: dict[str, str], *, lost: bool
) -> None:
    for line in (flags, None):
        seen = Witnesses(flags=line, options=Options(values=options), expects_options=True)
        found = judge_settings(profile("p", flags), seen, deployed="", defaults=history().defaults)
        reasons = contradictions(found)
        assert bool(reasons) is lost, found
        assert all("dump" in sentence(reason) for reason in reasons)


def test_what_xla_silently_drops_was_not_in_effect() -> None:
    shown = Witnesses(flags="--xla_gpu_enable_triton_gemm=true , --xla_gpu_autotune_level=0")
    settings = judge_settings(profile("o", "--xla_gpu_autotune_level=0"), shown, deployed="")
    assert {each.seen for each in settings if each.effect is Effect.CONTRADICTED} == {""}
    (reason,) = contradictions(settings)
    assert "not set" in sentence(reason)
    assert "XLA stops reading at ', --xla_gpu_autotune_level=0'" in sentence(reason)
