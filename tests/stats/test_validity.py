"""Flags in effect, the loss guard, the pooled start of steady state."""

from __future__ import annotations

import math

import pytest

from pytest_xlatune.catalog.entries import history
from pytest_xlatune.model.channels import Options
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import Profile, profile
from pytest_xlatune.model.result import Effect
from pytest_xlatune.stats.validity import Witnesses, contradictions, different_loss, judge_settings

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
