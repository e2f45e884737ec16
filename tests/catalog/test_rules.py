"""Named rules over settings: each fires where it must, and is silent beside it."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from pytest_xlatune.catalog.context import Context, Level
from pytest_xlatune.catalog.entries import history
from pytest_xlatune.catalog.rules import RULES, check, why_not
from pytest_xlatune.model.profile import Flag, Profile, parse_flags, profile
from pytest_xlatune.prepare.lint import Target


def in_xla_flags(text: str) -> Profile:
    """A profile whose flags all stand in XLA_FLAGS; `profile()` would put libtpu's elsewhere."""
    return Profile(id="p", flags=parse_flags(text))


P2P = "--xla_gpu_enable_pipelined_p2p=true"
THRESHOLD = "--xla_gpu_collective_permute_decomposer_threshold=1024"
OVERLAP = "--xla_gpu_experimental_parallel_collective_overlap_limit=2"
DOUBLE = "--xla_gpu_enable_while_loop_double_buffering=true"
LHS_OFF = "--xla_gpu_enable_latency_hiding_scheduler=false"
SOL_OFF = "--xla_gpu_enable_analytical_sol_latency_estimator=false"
AG = "--xla_gpu_all_gather_combine_threshold_bytes"
UNROLL = "--xla_gpu_enable_while_loop_unrolling=WHILE_LOOP_UNROLLING_NO_UNROLL"
WINDOW_MIB = "--xla_gpu_threshold_for_windowed_einsum_mib=0"
WINDOW_BYTES = "--xla_gpu_operand_bytes_threshold_for_windowed_einsum"

MIB = 1 << 20
GATHERS, PERMUTES = ("all-gather",), ("collective-permute",)


def rules_of(of: Profile, context: Context) -> list[str]:
    return [each.rule for each in check([of], context) if each.profile == of.id]


def context(deployed: str = "", **facts: object) -> Context:
    return Context(deployed=parse_flags(deployed), **facts)  # type: ignore[arg-type]


def beside(**variables: str) -> Context:
    return context(env=variables)


def flags(text: str) -> Profile:
    return profile("p", text)


def env(**variables: str) -> Profile:
    return profile("p", env=variables)


# rule -> settings of which it fires without more: variables, or flags
ALONE = {
    "blocked": (
        "--xla_gpu_collective_inflation_factor=2",
        "--xla_gpu_enable_analytical_latency_estimator=1",
    ),
    "channel": ("LIBTPU_INIT_ARGS=--xla_tpu_rwb_fusion='true'",),
    "plain-integer": (
        "NCCL_BUFFSIZE=16M", "NCCL_IB_DISABLE=true", "NCCL_NOT_IN_THE_CATALOG=4k",
    ),
    "memory-fraction": (
        "XLA_PYTHON_CLIENT_MEM_FRACTION=100", "XLA_CLIENT_MEM_FRACTION=90%",
        "XLA_CLIENT_MEM_FRACTION=nan", "XLA_CLIENT_MEM_FRACTION=0",
    ),
    "library-value": (
        "NCCL_ALGO=Rings", "NCCL_ALGO=allreduce:ring,treee", "NCCL_ALGO=allreduce:tree",
        "NCCL_ALGO=allreduce:ring;allgather:^NVLS", "NCCL_DEBUG_SUBSYS=INIT,FOO",
    ),
    "contradiction": (
        "NCCL_IB_DISABLE=1 NCCL_IB_HCA=m",
    ),
    "bad-value": ("--xla_gpu_enable_triton_gemm=yes",),
    "retired": ("NCCL_IB_CUDA_SUPPORT=1",),
    "partner": ("--xla_gpu_multi_streamed_windowed_einsum=false",),
    "no-op": ("--xla_gpu_enable_highest_priority_async_stream=1",),
    "adds-up": ("--xla_disable_hlo_passes=",),
    "second-name": (
        "--xla_gpu_enable_pipelined_all_gather=true --xla_gpu_pipeline_all_gather=off",
    ),
    "unknown-flag": ("--xla_gpu_enable_async_all_gather=true",),
    "near-miss": ("NCCL_MAX_NCHANELS=8",),
}  # fmt: skip


def settings(text: str) -> Profile:
    """A profile of variables, or of flags."""
    if text.startswith("-"):
        return flags(text)
    return env(**dict(word.split("=", 1) for word in text.split()))


# the rule that fires, of what, and beside what
CASES: list[tuple[Any, ...]] = [
    *((rule, settings(text)) for rule, texts in ALONE.items() for text in texts),
    ("tpu-flag", in_xla_flags("--xla_tpu_enable_async_collective_fusion=true")),
    ("gpu-flag", flags(OVERLAP), context(device="v6e")),
    ("gpu-flag", flags(OVERLAP), context(device="cpu")),
    ("bad-value", flags(f"{AG}=9223372036854775808"), context(jaxlib="0.10.2")),
    ("contradiction", env(NCCL_IB_SL="3"), beside(NCCL_NET="Socket")),
    ("partner", flags(P2P)),
    ("partner", flags(THRESHOLD)),
    ("latency-hiding", flags(OVERLAP), context(LHS_OFF)),
    ("latency-hiding", flags(OVERLAP), context(SOL_OFF)),
    ("latency-hiding", flags(OVERLAP), context(jaxlib="0.7.1")),
    ("latency-hiding", flags(OVERLAP), context(device="gfx950", jaxlib="0.11.2")),
    ("overruled", flags(DOUBLE), context(UNROLL)),
    ("overruled", flags(WINDOW_MIB), context(f"{WINDOW_BYTES}=0")),
    ("program", flags(f"{AG}={64 * MIB}"), context(collectives=PERMUTES)),
    ("program", flags(f"{P2P} {THRESHOLD}"), context(collectives=GATHERS)),
    ("program", env(NCCL_NCHANNELS_PER_NET_PEER="8"), context(collectives=GATHERS)),
    ("aborts", env(NCCL_ALGO="tree"), context(collectives=GATHERS)),
    ("no-op", flags("--xla_gpu_autotune_level=4"), context(jaxlib="0.10.2")),
    (
        "adds-up",
        flags("--xla_disable_hlo_passes=fusion"),
        context("--xla_disable_hlo_passes=rematerialization"),
    ),
    ("unknown-flag", flags("--xla_gpu_graph_level=0"), context(jaxlib="0.8.3")),
]


@pytest.mark.parametrize("case", CASES)
def test_a_rule_fires(case: tuple[str, Profile, Context]) -> None:
    rule, of, *where = case
    assert rule in rules_of(of, *where or [context()])


def test_every_rule_is_shown_to_fire() -> None:
    assert {rule for rule, *_ in CASES} == {rule.name for rule in RULES}


@pytest.mark.parametrize(
    ("of", "where"),
    [
        pytest.param(flags(f"{P2P} {THRESHOLD}"), context(collectives=PERMUTES), id="permutes"),
        pytest.param(flags(THRESHOLD), context(P2P), id="the partner is deployed"),
        pytest.param(flags(THRESHOLD), context(jaxlib="0.5.3"), id="it needed none then"),
        pytest.param(flags(OVERLAP), context(), id="the scheduler is unknown"),
        pytest.param(
            profile("p", OVERLAP, env={"JAX_OPTIMIZATION_LEVEL": "O1"}), context(jaxlib="0.6.2"),
            id="O1 brings the scheduler",
        ),
        pytest.param(env(NCCL_BUFFSIZE="0x1000000"), context(), id="hexadecimal"),
        pytest.param(
            env(XLA_PYTHON_CLIENT_MEM_FRACTION="4.0",
                              TF_FORCE_UNIFIED_MEMORY="1"), context(),
            id="memory of the host beside the device's",
        ),
        pytest.param(flags("--xla_gpu_enable_command_buffer=+WHILE,-custom_call"),
                     context(jaxlib="0.10.2"), id="words of an enumeration"),
        pytest.param(env(NCCL_ALGO="ring,tree;allreduce:tree;allgather:^NVLS"),
                     context(), id="algorithms by collective, below those of all"),
        pytest.param(env(NCCL_DEBUG="info", NCCL_P2P_LEVEL="4"), context(),
                     id="small letters, a level of old"),
        pytest.param(env(NCCL_DEBUG="INFO"),
                     beside(NCCL_IB_DISABLE="1", NCCL_IB_HCA="mlx5"),
                     id="a contradiction that is deployed below"),
        pytest.param(
            flags("--xla_gpu_enable_highest_priority_async_stream=true"),
            context("--xla_gpu_enable_highest_priority_async_stream=false"),
            id="a default that is not what is deployed",
        ),
        pytest.param(env(NCCL_ALGO="Tree"), context(collectives=(*PERMUTES, "all-reduce")),
                     id="a tree for an all-reduce"),
        pytest.param(env(NCCL_NCHANNELS_PER_NET_PEER="8"), context(collectives=PERMUTES),
                     id="channels of permutes"),
    ],
)  # fmt: skip
def test_beside_a_rule_there_is_silence(of: Profile, where: Context) -> None:
    assert rules_of(of, where) == []


def test_an_abort_is_a_fault_where_the_release_is_named() -> None:
    of = profile("p", "--xla_gpu_graph_level=0")
    assert [each.level for each in check([of], context(jaxlib="0.8.3"))] == [Level.FAULT]
    unknown = profile("p", "--xla_gpu_no_such=0")
    assert [each.level for each in check([unknown], context(jaxlib="0.8.3"))] == [Level.FAULT]
    assert [each.level for each in check([unknown], context())] == [Level.NOTE]


def test_a_control_is_meant_to_do_nothing_but_not_to_do_harm() -> None:
    assert not check([profile("control-decomposer", THRESHOLD)], context())
    blocked = profile("control-inflation", "--xla_gpu_collective_inflation_factor=1")
    assert [each.rule for each in check([blocked], context())] == ["blocked"]


def test_what_an_unread_env_file_may_mend_is_a_note() -> None:
    complete, unread = context(), Context(is_complete=False)
    assert [each.level for each in check([profile("p", THRESHOLD)], complete)] == [Level.FAULT]
    assert [each.level for each in check([profile("p", THRESHOLD)], unread)] == [Level.NOTE]


def test_what_is_deployed_is_held_against_the_rules_of_harm() -> None:
    found = check(
        [profile("fine", "--xla_gpu_autotune_level=0")],
        context(
            f"--xla_gpu_collective_inflation_factor=0 {THRESHOLD}",
            env={"NCCL_BUFFSIZE": "4M", "BASH_FUNC_x%%": "() { :; }"},
        ),
    )
    assert [(each.profile, each.rule) for each in found] == [
        ("baseline-deployed", "blocked"),
        ("baseline-deployed", "plain-integer"),
    ]
    assert str(found[0]).startswith("deployed: ")


def test_a_program_of_which_only_the_collectives_are_named() -> None:
    gathers, permutes = (context(collectives=kinds) for kinds in (GATHERS, PERMUTES))
    channels, tree = env(NCCL_NCHANNELS_PER_NET_PEER="8"), env(NCCL_ALGO="Tree")
    assert "no send, recv" in why_not(channels, gathers)
    assert "has no tree" in why_not(tree, gathers)
    assert not why_not(tree, context())
    assert not why_not(flags(f"{P2P} {THRESHOLD}"), permutes)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (profile("p", env={"NCCL_MAX_NCHANELS": "8"}), "did you mean NCCL_MAX_NCHANNELS?"),
        (profile("p", "--NCCL_PROTO=LL"), "as in env={'NCCL_PROTO': ...}"),
        (profile("p", overrides={"remat_polcy": "full"}), "did you mean remat_policy?"),
        (
            profile("p", "--xla_gpu_enable_latency_hiding_schedular=true"),
            "did you mean --xla_gpu_enable_latency_hiding_scheduler?",
        ),
    ],
)
def test_a_near_miss_is_told_with_the_name_it_may_have_meant(given: Profile, words: str) -> None:
    assert any(words in each.text for each in check([given], Context()))


def test_other_names_are_left_alone() -> None:
    others = {"NCCL_MAX_P2P_NCHANNELS": "8", "NCCL_IB_TIMEOUT": "22", "OUR_OWN_SWITCH": "1"}
    libtpus = "--xla_tpu_scoped_vmem_limit_kib=65536 --xla_tpu_no_entry_has_it=true"
    given = profile("p", libtpus, env=others, overrides={"width": "128"})
    assert [each for each in check([given], Context()) if each.rule == "near-miss"] == []


def test_a_twin_is_told_in_whatever_order_and_spelling() -> None:
    one = profile("one", "--xla_gpu_autotune_level=2 --xla_gpu_enable_pipelined_p2p=true")
    two = profile("two", "--xla_gpu_enable_pipelined_p2p=1 --xla_gpu_autotune_level=2")
    other = profile("other", "--xla_gpu_enable_pipelined_p2p=1 --xla_gpu_autotune_level=3")
    found = [each for each in check([one, two, other], Context()) if each.rule == "twin"]
    ((arm, words),) = [(each.profile, each.text) for each in found]
    assert (arm, "the same settings as one" in words) == ("two", True)


@pytest.mark.parametrize(
    ("values", "twins"), [("1024 +1024 1024.0 1000 01000", [1, 4]), ("8 7 8 08", [2, 3])]
)
def test_twins_among_many_values(values: str, twins: list[int]) -> None:
    profiles = [
        profile(f"p{n}", f"--xla_gpu_autotune_level={each}")
        for n, each in enumerate(values.split())
    ]
    found = [each.profile for each in check(profiles, Context()) if each.rule == "twin"]
    assert found == [f"p{n}" for n in twins]


WORDS = ("yes", "on", "t", "2", "", "maybe", "truE,", "4,5", "true", "TRUE", "1", "0", "False")
FIGURES = ("+4", "-1", "04", "4.0", "1e9", "0x10", "1G", "1_000", ".5", "5.", "inf", "1e400")
LARGE = ("2147483647", "2147483648", "-2147483649", "9223372036854775807", "9223372036854775808")
VALUES = (*WORDS, *FIGURES, *LARGE, "30s", "1h30m", "500 ms")
OWN_SETTERS = (
    "xla_gpu_executable_warn_stuck_timeout",
    "xla_gpu_enable_triton_gemm_int4",
    "xla_gpu_execution_terminate_timeout",
)


def accepted(jaxlib: str) -> list[str]:
    known = [each for each in history().flags if history().is_accepted(each, jaxlib)]
    kinds: dict[str, list[str]] = {}
    for each in known:
        kinds.setdefault(history().kind(each), []).append(each)
    some = [flag for kind in ("bool", "int32", "int64", "float", "enum", "string")
            for flag in kinds[kind][:2]]  # fmt: skip
    return [*some, *(each for each in OWN_SETTERS if each in known)]


@pytest.mark.jax
def test_the_rule_refuses_what_the_installed_xla_refuses() -> None:
    target = Target(python=sys.executable, environ=os.environ)
    target([])
    flags = [
        Flag(name=name, value=value)
        for name in accepted(target.jaxlib)
        for value in (None, *VALUES)
    ]
    context = Context(jaxlib=target.jaxlib)
    for flag, answer in zip(flags, target([str(each) for each in flags]), strict=True):
        rules = {each.rule for each in check([Profile(id="p", flags=(flag,))], context)}
        dies = answer.options is None
        kind = history().kind(flag.name)
        if kind == "enum" and not rules & {"bad-value"}:
            continue  # of their words the table knows only what none can be
        assert ("bad-value" in rules) is dies, (str(flag), answer.refused, answer.unknown)
