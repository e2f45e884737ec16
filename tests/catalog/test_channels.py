"""Flags of another library than XLA: appended, the last wins, each judged by itself."""

from __future__ import annotations

import msgspec
import pytest

from pytest_xlatune.catalog.candidates import profiles_for
from pytest_xlatune.catalog.context import Context, vendor_of
from pytest_xlatune.catalog.entries import load, probed_libtpu
from pytest_xlatune.catalog.rules import check
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.logs import read_log
from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import (
    Profile,
    profile,
    settings_digest,
    shell_exports,
)
from pytest_xlatune.model.result import Effect
from pytest_xlatune.model.trial import LaunchSpec, Trial
from pytest_xlatune.prepare.lint import Target, lint
from pytest_xlatune.stats.validity import Witnesses, judge_settings

TPU = "LIBTPU_INIT_ARGS"
VMEM = profile("vmem", "--xla_tpu_scoped_vmem_limit_kib=65536 --xla_gpu_autotune_level=0")
COMMAND = CommandLauncher(argv=("train", "{steps}"))
# what libtpu 0.0.52 prints with TPU_STDERR_LOG_LEVEL=0 and TPU_MIN_LOG_LEVEL=0
LOG = b"""\
I1123 09:40:31.596461   25377 b295d63588a.cc:912] argv[0]: './tpu_driver'
I1123 09:40:31.596463   25377 b295d63588a.cc:912] argv[2]: '--stderrthreshold=0'
I1123 09:40:31.596484   25377 b295d63588a.cc:912] argv[17]: '--xla_tpu_scoped_vmem_limit_kib=32768'
I1123 09:40:31.596485   25377 b295d63588a.cc:912] argv[18]: '--xla_tpu_scoped_vmem_limit_kib=65536'
"""


def launched(of: Profile, deployed: dict[str, str]) -> LaunchSpec:
    protocol = Protocol(steps=12)
    cell = Cell(
        model_tag="m",
        parallelism=Parallelism.parse("FSDP=4"),
        protocol=protocol,
        deployed=deployed,
    )
    trial = Trial(
        cell_digest=cell.digest, profile=of, protocol=protocol, study="tuning", stage="wave2"
    )
    return COMMAND.launch(trial, cell)


def test_a_flag_goes_to_the_library_that_reads_it() -> None:
    assert [each.name for each in VMEM.flags] == ["xla_gpu_autotune_level"]
    assert VMEM.env == {TPU: "--xla_tpu_scoped_vmem_limit_kib=65536"}
    own = profile("a", "--xla_tpu_rwb_fusion=false", env={TPU: "--xla_tpu_dot_dot_fusion=false"})
    assert own.env[TPU] == "--xla_tpu_dot_dot_fusion=false --xla_tpu_rwb_fusion=false"
    assert profile("nan", "--xla_tpu_detect_nan=true").flags, "XLA's own, in spite of its name"
    assert set(profile("c", "--xla_max_concurrent_async_all_gathers=4").env) == {TPU}
    with pytest.raises(ConfigError, match="knows no quotes"):
        profile("b", "--xla_tpu_rwb_fusion='a b'")


def test_it_is_appended_to_what_is_deployed() -> None:
    spec = launched(VMEM, {TPU: "--xla_tpu_scoped_vmem_limit_kib=32768"})
    assert spec.env[TPU] == (
        "--xla_tpu_scoped_vmem_limit_kib=32768 --xla_tpu_scoped_vmem_limit_kib=65536"
    )
    assert spec.first_env["TPU_STDERR_LOG_LEVEL"] == "0"
    assert "TPU_STDERR_LOG_LEVEL" not in launched(profile("none"), {}).first_env
    exported = shell_exports((), VMEM.env)
    assert exported.startswith(f'export {TPU}="${{{TPU}:+${TPU} }}"')
    one, other = {TPU: "--a=1 --b=2"}, {TPU: "--b=2 --a=3 --a=1"}
    assert settings_digest((), one) == settings_digest((), other)
    assert settings_digest((), one) != settings_digest((), {TPU: "--a=1 --b=3"})


@pytest.mark.parametrize(
    ("log", "effect"),
    [
        (LOG, Effect.IN_EFFECT),
        (LOG.replace(b"65536", b"16384"), Effect.CONTRADICTED),
        (LOG.replace(b"xla_tpu_scoped_vmem", b"xla_tpu_another"), Effect.CONTRADICTED),
        (b"", Effect.NOT_SEEN),
    ],
)
def test_libtpus_own_log_is_the_witness(log: bytes, effect: Effect) -> None:
    read = read_log([log]).nccl
    own = msgspec.structs.replace(VMEM, flags=())
    (found,) = judge_settings(own, Witnesses(read=read, expects_readers=True))
    assert found.effect is effect


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("--xla_tpu_rwb_fusion='true'", "quotes are part"),
        ("--xla_tpu_rwb_fusion=true xla_tpu_dot_dot_fusion=false", "fusion=false' has no dashes"),
        ("--xla_gpu_autotune_level=0", "libtpu refuses it"),
    ],
)
def test_what_libtpu_would_misread_is_a_fault(text: str, words: str) -> None:
    (found,) = check([Profile(id="a", env={TPU: text})], Context())
    assert found.rule == "channel"
    assert words in found.text


def test_profiles_of_a_tpu_are_tpu_settings_alone() -> None:
    found = profiles_for("FSDP", device="v5e")
    assert {"vmem-98304", "tpu-fuse-ag-off", "o1"} <= {each.id for each in found}
    assert not [each.id for each in found if each.flags or "NCCL_ALGO" in each.env]
    for device in ("TPU v5 lite", "v5litepod-8", "v5e:2x4", "ct5lp-hightpu-4t", "Trillium"):
        assert profiles_for("FSDP", device=device) == found, device
    gpus = {each.id for each in profiles_for("FSDP", device="v100")}
    assert not [each for each in gpus if each.startswith(("vmem", "tpu-"))]
    assert [each.id for each in profiles_for("FSDP", device="cpu")] == ["o1"]
    deployed = "--xla_tpu_scoped_vmem_limit_kib=98304 --xla_gpu_autotune_level=4"
    left = {each.id for each in profiles_for("FSDP", device="v5e", deployed=deployed)}
    assert {each.id for each in found} - left == {"vmem-98304"}, "what is deployed already"


DEVICES = {
    "nvidia": ("sm_90a", "L40S", "NVIDIA H100 80GB HBM3"),
    "amd": ("GFX942", "mi300x", "AMD Instinct MI250X"),
    "google": ("TPU v5p", "v6e-8", "ironwood", "tpu7x-128"),
    "cpu": ("CPU:8",),
    "": ("",),
}


def test_a_device_is_of_its_vendor_however_it_is_written() -> None:
    for vendor, devices in DEVICES.items():
        assert {vendor_of(device) for device in devices} == {vendor}
    with pytest.raises(ConfigError, match=r"unknown device 'trn2'.* v5e, cpu"):
        profiles_for("FSDP", device="trn2")


def test_an_entry_says_which_probed_libtpu_accepts_it() -> None:
    for entry in load().entries:
        if entry.channel:
            assert {entry.since, entry.until} <= {"", *probed_libtpu()}
            assert entry.profiles
            assert all(set(each.env) == {TPU} and not each.flags for each in entry.profiles)


class Answers(Target):
    """An XLA that takes every text."""

    def __call__(self, texts: object) -> list[object]:  # type: ignore[override]
        from pytest_xlatune.catalog.effect import ParsedText

        return [ParsedText(options={}) for _ in texts]  # type: ignore[attr-defined]


def test_a_flag_of_libtpu_that_a_later_one_puts_out_of_effect_is_named() -> None:
    twice = "--xla_tpu_rwb_fusion=true --xla_tpu_dot_dot_fusion --noxla_tpu_rwb_fusion"
    profiles = [
        Profile(id="twice", env={TPU: twice}),
        Profile(id="same", env={TPU: "--xla_tpu_rwb_fusion=false --noxla_tpu_rwb_fusion"}),
    ]
    found = lint(profiles, Context(), Answers(python="python", environ={})).objections
    said = {each.profile: (each.rule, each.text) for each in found if each.rule != "no-op"}
    why = "--xla_tpu_rwb_fusion=true is not in effect: xla_tpu_rwb_fusion is 'false' in the"
    assert said["twice"] == ("not-in-effect", f"{why} whole text")
    assert "same" not in said, "the same value again"
