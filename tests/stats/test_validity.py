"""Flags in effect, the loss guard, the pooled start of steady state."""

from __future__ import annotations

import math

import pytest

from pytest_xlatune.catalog.entries import history
from pytest_xlatune.model.channels import Options
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import Profile, profile
from pytest_xlatune.model.result import Effect, TrialSetting
from pytest_xlatune.stats.validity import Witnesses, contradictions, different_loss, judge_settings

DEPLOYED = "--xla_gpu_autotune_level=4 --xla_gpu_enable_latency_hiding_scheduler=true"
OVERLAP = profile("overlap", "--xla_gpu_enable_latency_hiding_scheduler=false")


@pytest.mark.parametrize(
    ("of", "shown", "words"),
    [
        pytest.param(OVERLAP, f"{DEPLOYED} {OVERLAP.settings_text}", "", id="appended last"),
        pytest.param(
            OVERLAP,
            f"{OVERLAP.settings_text} {DEPLOYED}",
            "scheduler is 'true' in the log, expected 'false'",
            id="an env file sourced later wins",
        ),
        pytest.param(
            OVERLAP,
            OVERLAP.settings_text,
            "autotune_level is not set in the log, expected '4'",
            id="what is deployed was lost",
        ),
        pytest.param(
            OVERLAP,
            "--xla_gpu_autotune_level=4 --xla_gpu_enable_latency_hiding_scheduler=0 --xla_new=1",
            "",
            id="another spelling, and more than asked for",
        ),
        pytest.param(profile("empty"), "", "not set", id="the baseline is checked as well"),
    ],
)
def test_flags_in_effect(of: Profile, shown: str, words: str) -> None:
    found = judge_settings(of, Witnesses(flags=shown), deployed=DEPLOYED)
    reasons = contradictions(found)
    assert bool(reasons) == bool(words)
    assert words in " ".join(map(sentence, reasons))
    assert all(each.effect in (Effect.ASKED, Effect.CONTRADICTED) for each in found), (
        "a list of the environment proves nothing"
    )


def effects(found: tuple[TrialSetting, ...]) -> dict[str, str]:
    return {each.label: str(each.effect) for each in found}


@pytest.mark.parametrize("text", [None, "--xla_gpu='never closed"], ids=["silent", "cut"])
def test_only_we_say_so_or_a_witness_is_silent(text: str | None) -> None:
    quiet = judge_settings(OVERLAP, Witnesses(flags=text), deployed="")
    assert effects(quiet) == {"--xla_gpu_enable_latency_hiding_scheduler": "asked"}
    silent = judge_settings(OVERLAP, Witnesses(flags=text, expects_options=True), deployed="")
    assert effects(silent) == {"--xla_gpu_enable_latency_hiding_scheduler": "not seen"}
    assert judge_settings(profile("none"), Witnesses(), deployed="") == ()


RINGS = profile("rings", env={"NCCL_ALGO": "Ring", "HSA_NO_SCRATCH_RECLAIM": "1"})


@pytest.mark.parametrize(
    ("shown", "algo"),
    [
        pytest.param(Witnesses(env={"NCCL_ALGO": "Ring"}), "asked", id="a list of the environment"),
        pytest.param(Witnesses(nccl={"NCCL_ALGO": "ring"}), "in effect", id="NCCL says so"),
        pytest.param(Witnesses(env={"NCCL_ALGO": "Tree"}), "contradicted", id="overwritten"),
        pytest.param(
            Witnesses(env={"NCCL_ALGO": "Ring"}, nccl={"NCCL_ALGO": "Tree"}), "contradicted",
            id="NCCL says otherwise",
        ),
        pytest.param(
            Witnesses(nccl={"NCCL_PROTO": "LL"}), "not seen", id="NCCL says nothing of it"
        ),
        pytest.param(
            Witnesses(expects_readers=True), "not seen", id="NCCL was asked and says nothing"
        ),
        pytest.param(Witnesses(), "asked", id="there is nothing that could say it"),
    ],
)  # fmt: skip
def test_variables(shown: Witnesses, algo: str) -> None:
    assert effects(judge_settings(RINGS, shown)) == {
        "NCCL_ALGO": algo,
        "HSA_NO_SCRATCH_RECLAIM": "asked",
    }


@pytest.mark.parametrize(
    ("asked", "printed", "effect"),
    [
        ("full", "full", "in effect"),
        ("full", "none", "contradicted"),
        ("true", "True", "in effect"),
        ("7", "7.0", "in effect"),
        ("none", "ProfilerType.NONE", "in effect"),
        ("['data', 'fsdp']", '["data","fsdp"]', "in effect"),
        ("-1", "8", "asked"),
        ("1e-3", "0.001", "in effect"),
        ("false", "True", "contradicted"),
        ("(hidden)", "a-token", "asked"),  # a secret: two profiles with one stopped a sweep
    ],
)
def test_overrides_against_the_lines_of_the_framework(
    asked: str, printed: str, effect: str
) -> None:
    of = profile("keys", overrides={"remat_policy": asked})
    found = judge_settings(of, Witnesses(config={"remat_policy": printed}), overrides=of.overrides)
    assert effects(found) == {"remat_policy": effect}


def test_a_key_that_the_framework_does_not_print() -> None:
    of = profile("keys", overrides={"remat_policy": "full"})
    assert effects(judge_settings(of, Witnesses())) == {"remat_policy": "asked"}
    assert effects(judge_settings(of, Witnesses(config={"steps": "15"}))) == {
        "remat_policy": "not seen"
    }


def test_a_key_of_the_cell_is_told_only_where_it_is_contradicted() -> None:
    of, keys = profile("p", "--xla_a=1"), {"remat_policy": "full", "dtype": "bfloat16"}
    shown = Witnesses(config={"remat_policy": "none", "dtype": "bfloat16"})
    (_, lost) = judge_settings(of, shown, overrides=keys)
    assert (lost.name, lost.effect, lost.is_deployed) == (
        "remat_policy", Effect.CONTRADICTED, True,
    )  # fmt: skip


def test_a_variable_of_maxtext_is_a_key_of_its_configuration() -> None:
    of = profile("m", env={"M_REMAT_POLICY": "full"})
    assert effects(judge_settings(of, Witnesses(config={"remat_policy": "full"}))) == {
        "M_REMAT_POLICY": "in effect"
    }
    assert effects(judge_settings(of, Witnesses(config={"remat_policy": "none"}))) == {
        "M_REMAT_POLICY": "contradicted"
    }


def test_a_sweep_may_declare_that_nothing_can_show_a_variable() -> None:
    hsa, algo = reversed(judge_settings(RINGS, Witnesses(), exempt=["HSA_*"]))
    assert (hsa.is_proved, hsa.effect) == (True, Effect.ASKED)
    assert not algo.is_proved
    (lost,) = judge_settings(
        profile("a", env={"HSA_A": "1"}), Witnesses(env={"HSA_A": "2"}), exempt=["HSA_*"]
    )
    assert not lost.is_proved, "what is contradicted stays so"


def test_the_dump_is_a_stronger_witness_than_a_list_of_the_environment() -> None:
    name = "xla_gpu_enable_latency_hiding_scheduler"
    whole = Options(values={name: "false"}, is_whole=True)
    found = judge_settings(OVERLAP, Witnesses(flags=f"--{name}=true", options=whole), deployed="")
    assert effects(found) == {f"--{name}": "in effect"}


@pytest.mark.parametrize(
    ("loss", "differs"),
    [(10.0, False), (10.15, False), (10.3, True), (9.7, True), (math.nan, True)],
)
def test_loss_guard(loss: float, *, differs: bool) -> None:
    assert bool(different_loss(loss, 10.0, tolerance=0.02)) is differs


@pytest.mark.parametrize(
    ("loss", "reference", "others", "first", "differs"),
    [
        pytest.param(0.0257, 0.0385, [0.0385, 0.0377], 9.509, False, id="by heart, on an H200"),
        pytest.param(0.0257, 0.0385, [0.0385, 0.0377], None, True, id="nothing says how it began"),
        pytest.param(0.2, 0.0385, [0.0385], 9.509, True, id="by heart, and far off"),
        pytest.param(2.1, 2.0, [2.0, 2.0], 10.0, True, id="a fifth is not yet by heart"),
        pytest.param(3.383, 3.374, [3.374, 2.487], 9.509, False, id="in the middle of the fall"),
        pytest.param(3.1, 3.374, [3.374, 2.487], 9.509, False, id="nearer than the baseline's own"),
        pytest.param(2.9, 3.374, [3.374, 2.487], 9.509, True, id="never five times the tolerance"),
        pytest.param(math.nan, 3.374, [3.374, 2.487], 9.509, True, id="not a number"),
    ],
)
def test_a_loss_may_be_as_far_off_as_the_baselines_own(
    loss: float, reference: float, others: list[float], first: float | None, *, differs: bool
) -> None:
    found = different_loss(loss, reference, tolerance=0.02, others=others, first=first)
    assert bool(found) is differs


ON = "COLLECTIVE_PIPELINING_MODE_ON"


@pytest.mark.parametrize(
    ("of", "options", "lost"),
    [
        pytest.param(
            profile("a", "--xla_gpu_autotune_level=0"), {"xla_gpu_autotune_level": "0"}, False,
            id="dumped as asked",
        ),
        pytest.param(
            profile("b", "--xla_gpu_autotune_level=0"), {}, True, id="at its default: it was lost"
        ),
        pytest.param(
            profile("c", "--xla_gpu_autotune_level=4"), {}, False, id="the default itself"
        ),
        pytest.param(
            profile("d", "--xla_gpu_autotune_level=0"), {"xla_gpu_autotune_level": "2"}, True,
            id="another value",
        ),
        pytest.param(
            profile("e", "--xla_disable_hlo_passes=fusion"),
            {"xla_disable_hlo_passes": "algsimp,fusion"}, False,
            id="added to what is deployed",
        ),
        pytest.param(
            profile("f", "--xla_disable_hlo_passes=fusion"),
            {"xla_disable_hlo_passes": "algsimp"}, True,
            id="not among what is disabled",
        ),
        pytest.param(
            profile("g", "--xla_gpu_enable_pipelined_all_gather=true"),
            {"xla_gpu_pipeline_all_gather": ON}, False,
            id="under its newer name",
        ),
        pytest.param(
            profile("h", "--xla_gpu_enable_pipelined_all_gather=false"),
            {"xla_gpu_pipeline_all_gather": ON}, True,
            id="under its newer name, and the other way",
        ),
        pytest.param(
            profile("i", "--xla_gpu_pipeline_all_gather=on"),
            {"xla_gpu_pipeline_all_gather": ON}, False,
            id="a short word for an enum",
        ),
        pytest.param(
            profile("j", "--xla_gpu_enable_command_buffer=''"), {}, False,
            id="an emptied list is printed as a default is",
        ),
        pytest.param(
            profile("k", "--xla_gpu_enable_command_buffer=+CONDITIONAL"), {}, False,
            id="a list that is edited is not judged",
        ),
        pytest.param(
            profile("l", "--xla_dump_to=/d --xla_force_host_platform_device_count=4"), {}, False,
            id="what a dump does not tell",
        ),
        pytest.param(
            profile("m", "--xla_never_heard_of=1"), {}, False, id="an unknown option"
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("shown", [True, False], ids=["with a log line", "without"])
def test_a_dump_contradicts_what_was_asked_for(
    of: Profile, options: dict[str, str], *, lost: bool, shown: bool
) -> None:
    log = of.settings_text if shown else None
    found = judge_settings(
        of,
        Witnesses(flags=log, options=Options(values=options), expects_options=True),
        deployed="",
        defaults=history().defaults,
    )
    reasons = contradictions(found)
    assert bool(reasons) is lost, found
    assert all("dump" in sentence(reason) for reason in reasons)


def test_what_xla_silently_drops_was_not_in_effect() -> None:
    overlap = profile("o", "--xla_gpu_autotune_level=0")
    shown = Witnesses(flags="--xla_gpu_enable_triton_gemm=true , --xla_gpu_autotune_level=0")
    settings = judge_settings(overlap, shown, deployed="")
    (setting,) = (each for each in settings if each.effect is Effect.CONTRADICTED)
    assert setting.why is not None
    assert setting.why.values["at"] == ", --xla_gpu_autotune_level=0"
    assert setting.seen == ""
    (reason,) = contradictions(settings)
    assert "not set" in sentence(reason)
    assert "XLA stops reading at ', --xla_gpu_autotune_level=0'" in sentence(reason)


@pytest.mark.parametrize(
    ("flags", "values", "effect"),
    [
        ("--xla_gpu_enable_command_buffer=+CONDITIONAL", "FUSION,CONDITIONAL", "in effect"),
        ("--xla_gpu_enable_command_buffer=-FUSION", "FUSION,CUBLAS", "contradicted"),
        ("--xla_gpu_enable_command_buffer=''", None, "in effect"),
        ("--xla_never_heard_of=1", None, "not seen"),
        ("--xla_force_host_platform_device_count=4", "1", "contradicted"),
    ],
)
def test_a_whole_dump_tells_more(flags: str, values: str | None, effect: str) -> None:
    of = profile("p", flags)
    name = of.flags[0].name
    options = Options(values={name: values} if values else {}, is_whole=True)
    shown = Witnesses(options=options, expects_options=True)
    (found,) = judge_settings(of, shown, defaults=history().defaults)
    assert found.effect == effect
