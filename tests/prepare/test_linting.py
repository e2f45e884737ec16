"""The XLA that is installed here: its own options, decoded or dumped, and what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_xlatune.catalog.context import Context
from pytest_xlatune.catalog.entries import history, load
from pytest_xlatune.evidence.hlo.dump import seen_options
from pytest_xlatune.model.profile import (
    APPENDING,
    Flag,
    append_flags,
    format_flags,
    parse_flags,
    profile,
    restore_default,
)
from pytest_xlatune.model.result import Effect
from pytest_xlatune.prepare.lint import ZERO, Target, lint
from pytest_xlatune.stats.validity import Witnesses, judge_settings
from pytest_xlatune.sweep.deployed import defaults_of

programs = pytest.mark.part("programs")
PASSES = "--xla_disable_hlo_passes=fusion,algsimp --xla_disable_hlo_passes=dce"
MAP = "--xla_gpu_analytical_latency_estimator_options=nic_speed_gbps=3,gpus_per_node=8"


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(python=sys.executable, environ=os.environ)


@pytest.mark.jax
def test_xlas_own_options_are_those_that_were_probed(target: Target) -> None:
    """Decoding agrees with the table of releases, option by option, and lists, maps, enums read."""
    default, changed = target(
        ["", f"{PASSES} {MAP} --xla_gpu_enable_command_buffer=FUSION --xla_gpu_autotune_level=2"]
    )
    assert default.options is not None
    assert changed.options is not None
    probed = history()
    compared = 0
    for name, value in default.options.items():
        expected = probed.default(name, target.jaxlib)
        if expected is not None:
            zero = expected.lower() in ("false", "0", "") or expected.isupper()
            assert value.lower() == expected.lower() or (value == ZERO and zero), name
            compared += 1
    # a release that was not probed shares most of its options with its neighbours
    assert compared > 150 or target.jaxlib not in probed.versions
    differing = {
        name: value for name, value in changed.options.items() if default.options[name] != value
    }
    estimator = differing.pop("xla_gpu_analytical_latency_estimator_options")
    assert {"nic_speed_gbps=3", "gpus_per_node=8"} <= set(estimator.split(","))
    assert differing == {
        "xla_disable_hlo_passes": "fusion,algsimp,dce",
        "xla_gpu_enable_command_buffer": "FUSION",
        "xla_gpu_autotune_level": "2",
    }


@pytest.mark.jax
def test_a_lint_names_everything_at_once(target: Target) -> None:
    profiles = [
        profile("gone", "--xla_gpu_graph_level=0 --xla_gpu_enable_triton_gemm=maybe"),
        profile("added", "--xla_disable_hlo_passes=fusion"),
        profile("alone", "--xla_gpu_collective_permute_decomposer_threshold=1024"),
        profile("buffer", env={"NCCL_BUFFSIZE": "16M"}),
        profile("fine", "--xla_gpu_enable_triton_gemm=false"),
        profile("twin", "--xla_gpu_enable_triton_gemm=0"),
    ]
    context = Context(deployed=parse_flags("--xla_disable_hlo_passes=algsimp"))
    found = lint(profiles, context, target)
    assert [(each.profile, each.rule) for each in found.objections] == [
        ("gone", "unknown-flag"),
        ("gone", "bad-value"),
        ("added", "adds-up"),
        ("alone", "partner"),
        ("buffer", "plain-integer"),
        ("twin", "twin"),
    ]
    assert found.jaxlib == target.jaxlib


@programs
@pytest.mark.jax
def test_every_value_of_the_catalog_is_one_that_xla_takes(target: Target) -> None:
    """Of the flags that this release accepts."""
    profiles = [each for entry in load().entries for each in entry.profiles if each.flags]
    answers = target([format_flags(each.flags) for each in profiles])
    for each, answer in zip(profiles, answers, strict=True):
        assert answer.options is not None or answer.unknown, (each.id, answer.refused)
        accepted = (history().is_accepted(name, target.jaxlib) for name in answer.unknown)
        assert not any(accepted), each.id


@programs
@pytest.mark.jax
def test_what_is_put_back_is_xlas_default(target: Target) -> None:
    """Every flag of the release at its default in one text; and those of the catalog put back."""
    (first,) = target([""])
    all_defaults = defaults_of(history().flags, target.jaxlib)
    spelled = [Flag(name=name, value=value) for name, value in all_defaults.items()]
    deployed = {
        entry.name: str(Flag(name=entry.name, value=entry.values[-1]))
        for entry in load().entries
        if entry.values and entry.name in all_defaults and entry.name not in APPENDING
    }
    text = " ".join(deployed.values())
    back = restore_default(parse_flags(text), all_defaults)
    same, changed, after = target([format_flags(spelled), text, append_flags(text, back)])
    if target.jaxlib in history().versions:
        assert len(deployed) > 20
        assert len(spelled) > 200
    assert same.options is not None
    assert after.options is not None
    assert first.options is not None
    # an enum at zero is written by its name where it was set, and not at all where it was not
    zeros = {name for name, value in first.options.items() if value == ZERO}
    assert {name for name, value in same.options.items() - first.options.items()} <= zeros
    assert changed.options != first.options
    assert after.options == first.options


def test_without_an_xla_the_tables_are_asked_and_it_is_said() -> None:
    found = lint([profile("p", "--xla_gpu_graph_level=0")], Context(jaxlib="0.8.3"))
    assert [each.rule for each in found.objections] == ["unknown-flag"]
    assert "no XLA was asked" in found.unchecked[0]


@pytest.mark.jax
@programs
def test_what_a_real_xla_dumps(tmp_path: Path) -> None:
    """The first text is in effect; behind the lone comma of the second XLA drops a flag."""
    assert seen_options(tmp_path) is None
    passes, flags = "--xla_disable_hlo_passes=algsimp", "--xla_cpu_enable_fast_math=true"
    asked = profile("asked", f"{passes} {flags}")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    effects = {}
    for name, text in (("whole", f"{passes} {flags}"), ("cut", f"{passes} , {flags}")):
        to = f"--xla_dump_to={tmp_path / name} --xla_dump_hlo_as_text"
        subprocess.run(
            [sys.executable, "-c", "import jax; jax.jit(lambda x: x * 2 + 1)(1.0)"],
            env=clean | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{to} {text}"},
            check=True,
            capture_output=True,
            timeout=240,
        )
        judged = judge_settings(asked, Witnesses(options=seen_options(tmp_path / name)))
        effects[name] = {each.effect for each in judged}
    assert effects["whole"] == {Effect.IN_EFFECT}
    assert effects["cut"] == {Effect.IN_EFFECT, Effect.CONTRADICTED}
