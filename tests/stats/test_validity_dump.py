"""Flags in effect by XLA's own word: the options that a dump tells, against what was asked for."""

from __future__ import annotations

import pytest

from pytest_xlatune.catalog.entries import history
from pytest_xlatune.model.channels import Options
from pytest_xlatune.model.message import say, sentence
from pytest_xlatune.model.profile import Profile, profile
from pytest_xlatune.model.result import Effect
from pytest_xlatune.stats.validity import Shown, contradictions, judged

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
    found = judged(
        of,
        Shown(flags=log, options=Options(values=options), expects_options=True),
        deployed="",
        defaults=history().defaults,
    )
    reasons = contradictions(found)
    assert bool(reasons) is lost, found
    assert all("dump" in sentence(reason) for reason in reasons)


def test_what_xla_silently_drops_was_not_in_effect() -> None:
    overlap = profile("o", "--xla_gpu_autotune_level=0")
    shown = Shown(flags="--xla_gpu_enable_triton_gemm=true , --xla_gpu_autotune_level=0")
    settings = judged(overlap, shown, deployed="")
    (setting,) = (each for each in settings if each.effect is Effect.CONTRADICTED)
    assert setting.why == say(
        "{seen}, for XLA stops reading at '{at}'",
        seen=say("not set"),
        at=", --xla_gpu_autotune_level=0",
    )
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
    shown = Shown(options=options, expects_options=True)
    (found,) = judged(of, shown, defaults=history().defaults)
    assert found.effect == effect
