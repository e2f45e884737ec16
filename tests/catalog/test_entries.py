"""The catalog: its data, the releases, and the profiles of an axis."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from pytest_xlatune.catalog.candidates import candidates, ladders_of, profiles_for
from pytest_xlatune.catalog.context import Context, vendor_of
from pytest_xlatune.catalog.entries import ANY, Status, history, load, names_of, probed_libtpu
from pytest_xlatune.model.cell import Axis
from pytest_xlatune.model.channels import PARTS
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import APPENDING, check_unique, parse_flags
from pytest_xlatune.sweep.deployed import defaults_of

TPU = "LIBTPU_INIT_ARGS"


def test_entries_are_whole() -> None:
    entries = load().entries
    check_unique([each for entry in entries for each in entry.profiles], where="the catalog")
    assert len({entry.slug for entry in entries}) == len(entries)
    for entry in entries:
        assert all((entry.mechanism, entry.source, entry.axes)), entry.slug
        assert {*entry.axes} <= {ANY, *Axis.__members__}, entry.slug
        assert {*entry.aims} <= {*PARTS}, entry.slug
        is_tried = entry.status in (Status.CANDIDATE, Status.CONTROL)
        assert is_tried or not entry.values, f"{entry.slug} is {entry.status} and has values"
        assert (entry.status is Status.CONTROL) == entry.slug.startswith("control-"), entry.slug
        vendors = ("", "nvidia", "amd", *(("google", "gpu") if entry.is_key else ()))
        assert entry.vendor in vendors, entry.slug
        assert (entry.wave == "wave5") == entry.is_key, entry.slug
        if entry.channel:
            assert {entry.since, entry.until} <= {"", *probed_libtpu()}
            assert entry.profiles
            assert all(set(each.env) == {TPU} and not each.flags for each in entry.profiles)


def test_a_flag_is_in_the_probed_releases_as_its_entry_says() -> None:
    last = history().versions[-1]
    for flag in (each for each in load().entries if each.is_flag):
        probed = history().flags.get(flag.name)
        if flag.status is Status.GONE:
            assert probed is None or probed.last != last, flag.slug
        else:
            assert probed is not None, flag.slug
            assert probed.last == last, f"{flag.slug} is a candidate that no release accepts"


@pytest.mark.parametrize(
    ("flag", "jaxlib", "accepted", "default"),
    [
        ("xla_gpu_pipeline_all_gather", "0.10.2", False, None),
        ("xla_gpu_pipeline_all_gather", "0.11.1", None, None),
        ("xla_gpu_pipeline_all_gather", "0.12.0", True, "COLLECTIVE_PIPELINING_MODE_DEFAULT"),
        ("xla_gpu_pipeline_all_gather", "0.99", None, None),
        ("xla_gpu_all_gather_combine_threshold_bytes", "0.4.33", True, None),
        ("xla_gpu_all_gather_combine_threshold_bytes", "0.8.1+rocm7", True, "31457287"),
        ("xla_gpu_never", "0.7.2", False, None),
    ],
)
def test_releases(flag: str, jaxlib: str, *, accepted: bool | None, default: str | None) -> None:
    assert history().is_accepted(flag, jaxlib) is accepted
    assert history().default(flag, jaxlib) == default


def test_names_are_forgiving_and_unknown_ones_have_a_neighbour() -> None:
    catalog = load()
    assert catalog.named("--xla_gpu_autotune_level=3") == catalog.named("autotune")
    with pytest.raises(ConfigError, match="did you mean 'xla_gpu_autotune_level'"):
        catalog.named("xla_gpu_autotune_levels")
    for refused in (catalog.of_axis, profiles_for, ladders_of):
        with pytest.raises(ConfigError, match=r"unknown axis 'FSPD'.*did you mean 'FSDP'"):
            refused("FSPD")
    with pytest.raises(ConfigError, match=r"unknown wave 'wave9'.*wave2, wave3, wave5"):
        profiles_for("FSDP", wave="wave9")
    with pytest.raises(ConfigError, match=r"expected numbers such as 0\.10\.2"):
        history().is_accepted("xla_a", "newest")


@pytest.mark.parametrize("axis", ["FSDP", "PP", "TP"])
def test_profiles_of_an_axis(axis: str) -> None:
    found = profiles_for(axis, jaxlib="0.10.2", device="sm_90")
    check_unique(found, where=axis)
    assert [each.id for each in found if each.id.startswith("control")] == [found[-1].id]
    assert all(each.wave == "wave2" and each.note for each in found)
    for each in found:
        names = [flag.name for flag in each.flags if flag.name not in APPENDING]
        assert len(set(names)) == len(names), each.id
        assert all(history().is_accepted(name, "0.10.2") for name in names), each.id


def heads(text: str) -> list[str]:
    """The slugs of the entries of a parallelism, without those of any axis."""
    return [each.slug for each in load().of_axis(text) if "any" not in each.axes]


def test_a_hybrid_has_the_dominant_axis_first_then_the_second() -> None:
    pp, fsdp = heads("PP"), heads("FSDP")
    both = [*pp, *(each for each in fsdp if each not in pp)]
    assert len(both) > max(len(pp), len(fsdp))
    assert heads("FSDP=2,PP=4") == both, "the larger degree dominates, wherever it is written"
    assert heads("FSDP=2, pp=2") == [*fsdp, *(each for each in pp if each not in fsdp)]
    assert heads("PP=8,FSDP=1") == heads("PP=8") == pp, "an axis of degree 1 has no traffic"
    assert heads("PP=1") == []


SM90, SM90_OLD = (Context(jaxlib=each, device="sm_90") for each in ("0.10.2", "0.8.3"))
IMAGE = replace(SM90, env={"NCCL_GDRCOPY_ENABLE": "1"})
AMD, AMD_OLD = Context(device="gfx942"), Context(jaxlib="0.8.3", device="gfx942")
DEPLOYED = Context(
    deployed=parse_flags(
        "--xla_gpu_all_gather_combine_threshold_bytes=8589934592 --xla_gpu_enable_cublaslt=True"
    ),
    env={"XLA_PYTHON_CLIENT_MEM_FRACTION": ".95"},
)
HIDING = parse_flags("--xla_gpu_enable_latency_hiding_scheduler=true")


@pytest.mark.parametrize(
    ("axis", "context", "left_out", "why"),
    [
        ("FSDP", DEPLOYED, "ag-8g", "deployed already"),
        ("FSDP", DEPLOYED, "mem", "deployed already"),
        ("FSDP", DEPLOYED, "hw-queues-2", "the device is not known"),
        ("FSDP", SM90, "pipeline-ag", "since jaxlib 0.11.2"),
        ("FSDP", SM90, "cublaslt-on", "the default"),
        ("FSDP", replace(SM90, jaxlib="0.9.2"), "cublaslt-on", ""),
        # two names of one option
        ("FSDP", Context(jaxlib="0.12.0.1"), "pipeline-ag", "the same settings as pipelined-ag"),
        # the default of a vendor's own library, where no image can set it
        ("EP", SM90, "gdrcopy-0", "or the default"),
        ("EP", SM90, "gdrcopy-1", ""),
        ("EP", AMD, "gdrcopy-1", "or the default"),
        ("EP", IMAGE, "gdrcopy-0", ""),
        ("EP", IMAGE, "gdrcopy-1", "deployed already"),
        ("EP", replace(SM90, is_complete=False), "gdrcopy-0", ""),
        ("EP", replace(SM90, knows_env=False), "gdrcopy-0", ""),
        ("FSDP", SM90_OLD, "latency-hiding", "on by itself"),
        ("FSDP", AMD_OLD, "latency-hiding", ""),
        ("FSDP", replace(SM90, jaxlib="0.6.2"), "latency-hiding", ""),
        ("PP", AMD_OLD, "overlap-2", "latency hiding scheduler: it is off on gfx942"),
        ("PP", replace(AMD_OLD, deployed=HIDING), "overlap-2", ""),
    ],
)
def test_what_does_nothing_here_is_left_out_with_its_reason(
    axis: str, context: Context, left_out: str, why: str
) -> None:
    found = {each.profile: each.why for each in candidates(axis, context).left_out}
    assert why in found.get(left_out, "")
    assert (left_out in found) == bool(why)


def test_what_computes_in_another_order_or_precision_says_so() -> None:
    attention = {each.name for each in load().entries if each.name.startswith("NVTE_")}
    told = {each.name for each in load().entries if each.changes_numerics}
    assert attention - told == {"NVTE_USE_CAST_TRANSPOSE_TRITON"}, "which JAX does not read"
    for each in load().entries:
        speaks = re.search(r"order of (the sum|summation)", f"{each.mechanism} {each.constraints}")
        assert not speaks or each.changes_numerics, each.slug
    kernels = {"xla_gpu_enable_triton_gemm", "xla_gpu_enable_cublaslt", "xla_gpu_autotune_level"}
    shapes = {"NCCL_ALGO", "NCCL_NVLS_ENABLE", "RCCL_MSCCL_ENABLE"}
    assert kernels | shapes <= told, "another kernel or tree adds up in another order"


# key of MaxText -> whether the loss is computed otherwise with it
KEYS = {
    "remat_policy": False,
    "attention": True,
    "quantization": True,
    "scan_layers": True,  # other first weights
    "scan_layers_per_stage": True,
}


def test_the_keys_of_maxtext_are_a_wave_of_their_own_and_say_what_they_do_to_the_numbers() -> None:
    own = [each for each in load().entries if each.is_key]
    assert {each.name: each.changes_numerics for each in own} == KEYS
    assert {each.name for each in own} <= names_of("keys") - names_of("variables")
    for each in profiles_for("PP", device="sm_90", wave="wave5"):
        assert (each.wave, each.flags, each.env) == ("wave5", (), {})
        says = "changes numerics" in each.note
        assert says == any(KEYS.get(key, False) for key in each.overrides), each.id
    joint = {each.id: each.overrides for each in profiles_for("FSDP", wave="wave5")}
    both = {"attention": "cudnn_flash_te", "remat_policy": "minimal"}
    assert joint["attention-te-remat"] == both
    assert "scan-inside-stage" not in joint, "of pipelines alone"
    stacks = candidates("FSDP", Context(), wave="wave3").profiles
    assert [(each.id, len(each.flags)) for each in stacks] == [("ag-rs-256m", 2), ("ag-rs-1g", 2)]


@pytest.mark.parametrize(
    ("flag", "jaxlib", "default"),
    [
        ("xla_gpu_autotune_level", "0.10.2", "4"),
        ("xla_gpu_all_gather_mode", "0.10.2", "private"),
        ("xla_gpu_pipeline_reduce_scatter", "0.12.0.1", "on"),
        ("xla_gpu_enable_cublaslt", "", None),
        ("xla_gpu_disable_async_collectives", "0.10.2", None),
    ],
)
def test_what_puts_a_flag_back(flag: str, jaxlib: str, default: str | None) -> None:
    """None: unknown, changed over the releases, or not possible by any text."""
    assert defaults_of([flag], jaxlib).get(flag) == default


def test_a_ladder_is_of_numbers_in_order() -> None:
    ladders = ladders_of("FSDP")
    for values in ladders.values():
        numbers = list(map(int, values))
        assert numbers == sorted(set(numbers))
        assert len(numbers) > 1
    assert ladders
    assert "NCCL_CROSS_NIC" not in ladders, "a switch has nothing beside it"


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
