"""The catalog: its data, the releases, and the profiles of an axis."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from pytest_xlatune.catalog.candidates import candidates, ladders_of, profiles_for
from pytest_xlatune.catalog.context import Context
from pytest_xlatune.catalog.entries import Status, history, load, names_of
from pytest_xlatune.evidence.hlo.difference import expectations
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import APPENDING, check_unique, parse_flags, profile
from pytest_xlatune.studies.derived import Around, Leader
from pytest_xlatune.sweep.deployed import defaults_of


def test_entries_are_whole() -> None:
    entries = load().entries
    check_unique([each for entry in entries for each in entry.profiles], where="the catalog")
    for entry in entries:
        assert entry.mechanism, entry.slug
        assert entry.source, entry.slug
        has_values = entry.status in (Status.CANDIDATE, Status.CONTROL)
        assert has_values or not entry.values, f"{entry.slug} is {entry.status} and has values"
        assert (entry.status is Status.CONTROL) == entry.slug.startswith("control-"), entry.slug
        vendors = ("", "nvidia", "amd", *(("google", "gpu") if entry.is_key else ()))
        assert entry.vendor in vendors, entry.slug
        assert (entry.wave == "wave5") == entry.is_key, entry.slug


def test_a_flag_is_in_the_probed_releases_as_its_entry_says() -> None:
    last = history().versions[-1]
    for flag in (each for each in load().entries if each.is_flag):
        probed = history().flags.get(flag.name)
        if flag.status is Status.GONE:
            assert probed is None or probed.last != last, flag.slug
        else:
            assert probed is not None, flag.slug
            assert probed.last == last, f"{flag.slug} is a candidate that no release accepts"


def test_where_a_flag_is_seen_stands_in_one_place() -> None:
    """Each flag that is tried has a row in the table."""
    tried = {each.name for each in load().entries if each.is_flag and each.profiles}
    assert tried - expectations().keys() == set()


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


def left_out(axis: str, context: Context) -> dict[str, str]:
    return {each.profile: each.why for each in candidates(axis, context).left_out}


def test_what_does_nothing_here_is_left_out_with_its_reason() -> None:
    deployed = parse_flags(
        "--xla_gpu_all_gather_combine_threshold_bytes=8589934592 --xla_gpu_enable_cublaslt=True"
    )
    context = Context(deployed=deployed, env={"XLA_PYTHON_CLIENT_MEM_FRACTION": ".95"})
    found = left_out("FSDP", context)
    assert "deployed already" in found["ag-8g"]
    assert "deployed already" in found["mem"]
    assert "the device is not known" in found["hw-queues-2"]
    older = left_out("FSDP", Context(jaxlib="0.10.2", device="sm_90"))
    assert "since jaxlib 0.11.2" in older["pipeline-ag"]
    assert "the default" in older["cublaslt-on"], "true since 0.10.2"
    assert "cublaslt-on" not in left_out("FSDP", Context(jaxlib="0.9.2", device="sm_90"))


def test_a_variable_at_the_default_of_the_vendors_nccl_is_left_out_where_none_sets_it() -> None:
    plain = Context(jaxlib="0.10.2", device="sm_90")
    found = left_out("EP", plain)
    assert "or the default" in found["gdrcopy-0"]
    assert "gdrcopy-1" not in found
    twice = left_out("FSDP", Context(jaxlib="0.12.0.1"))
    assert twice["pipeline-ag"] == "the same settings as pipelined-ag", "two names of one option"
    of_amd = left_out("EP", Context(device="gfx942"))
    assert "or the default" in of_amd["gdrcopy-1"], "RCCL's are other ones"
    image = replace(plain, env={"NCCL_GDRCOPY_ENABLE": "1"})
    assert "gdrcopy-0" not in left_out("EP", image)
    assert "deployed already" in left_out("EP", image)["gdrcopy-1"]
    for unknown in (replace(plain, is_complete=False), replace(plain, knows_env=False)):
        assert "gdrcopy-0" not in left_out("EP", unknown)


def test_latency_hiding_is_a_candidate_where_it_is_the_lever() -> None:
    known = left_out("FSDP", Context(jaxlib="0.8.3", device="sm_90"))
    assert "on by itself" in known["latency-hiding"]
    assert "latency-hiding" not in left_out("FSDP", Context(jaxlib="0.8.3", device="gfx942"))
    assert "latency-hiding" not in left_out("FSDP", Context(jaxlib="0.6.2", device="sm_90"))
    overlap = left_out("PP", Context(jaxlib="0.8.3", device="gfx942"))["overlap-2"]
    assert "latency hiding scheduler: it is off on gfx942" in overlap
    deployed = parse_flags("--xla_gpu_enable_latency_hiding_scheduler=true")
    on = Context(jaxlib="0.8.3", device="gfx942", deployed=deployed)
    assert "overlap-2" not in left_out("PP", on)


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


AG = "xla_gpu_all_gather_combine_threshold_bytes"


def test_a_ladder_is_of_numbers_in_order() -> None:
    found = ladders_of("FSDP")
    assert found
    for values in found.values():
        numbers = list(map(int, values))
        assert numbers == sorted(set(numbers))
        assert len(numbers) > 1
    assert "NCCL_CROSS_NIC" not in found  # a switch has nothing beside it


def test_a_leader_of_the_axis_has_neighbours_on_it() -> None:
    lead = Leader(profile=profile("ag-1g", f"--{AG}={1 << 30}"), estimate=0.02)
    around = Around(ladders=ladders_of("FSDP"))
    assert [each.id for each in around.make([lead], pool=[])] == ["ag-1g.2g", "ag-1g.512m"]
