"""The catalog: its data, the releases, and the profiles of an axis."""

from __future__ import annotations

import pytest

from pytest_xlatune.catalog.candidates import candidates, profiles_for
from pytest_xlatune.catalog.context import Context
from pytest_xlatune.catalog.entries import Status, history, load, release
from pytest_xlatune.evidence.hlo.difference import expectations
from pytest_xlatune.model.cell import Axis
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import APPENDING, check_unique, parse_flags
from pytest_xlatune.sweep.deployed import defaults_of

# every flag and variable that written recipes name, by axis
RECIPES = {
    "FSDP": (
        "xla_gpu_all_gather_combine_threshold_bytes",
        "xla_gpu_reduce_scatter_combine_threshold_bytes",
        "xla_gpu_enable_pipelined_all_gather",
        "xla_gpu_enable_pipelined_reduce_scatter",
        "xla_gpu_enable_pipelined_all_reduce",
        "xla_gpu_enable_while_loop_double_buffering",
        "xla_gpu_enable_highest_priority_async_stream",
        "xla_gpu_experimental_parallel_collective_overlap_limit",
        "xla_gpu_enable_latency_hiding_scheduler",
        "NCCL_BUFFSIZE",
        "NCCL_PROTO",
        "XLA_PYTHON_CLIENT_MEM_FRACTION",
    ),
    "PP": (
        "xla_gpu_collective_permute_decomposer_threshold",
        "xla_gpu_enable_pipelined_p2p",
        "xla_gpu_enable_async_collective_permute",
        "xla_gpu_experimental_parallel_collective_overlap_limit",
        "NCCL_NCHANNELS_PER_NET_PEER",
    ),
    "TP": (
        "xla_gpu_threshold_for_windowed_einsum_mib",
        "xla_gpu_enable_async_all_gather",
        "xla_gpu_collective_inflation_factor",
    ),
}


@pytest.mark.parametrize("axis", RECIPES)
def test_everything_that_recipes_name_is_there(axis: str) -> None:
    named = {each.name for each in load().of_axis(axis)}
    assert set(RECIPES[axis]) <= named
    # of all axes: the permutes of a pipeline ignore it, which the entry says
    assert {"NCCL_ALGO", "NCCL_PROTO"} <= {each.name for each in load().entries}


def test_entries_are_whole() -> None:
    entries = load().entries
    check_unique([each for entry in entries for each in entry.profiles], where="the catalog")
    for entry in entries:
        assert entry.mechanism, entry.slug
        assert entry.source, entry.slug
        has_values = entry.status in (Status.CANDIDATE, Status.CONTROL)
        assert has_values or not entry.values, f"{entry.slug} is {entry.status} and has values"
        assert (entry.status is Status.CONTROL) == entry.slug.startswith("control-"), entry.slug
        assert entry.vendor in ("", "nvidia", "amd"), entry.slug


@pytest.mark.parametrize(
    "entry", [each for each in load().entries if each.is_flag], ids=lambda each: each.slug
)
def test_a_flag_is_in_the_probed_releases_as_its_entry_says(entry: object) -> None:
    flag = next(each for each in load().entries if each is entry)
    probed = history().flags.get(flag.name)
    if flag.status is Status.GONE:
        assert probed is None or probed.last != history().versions[-1]
    else:
        assert probed is not None
        assert probed.last == history().versions[-1], "a candidate that no release accepts"


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
        ("xla_gpu_all_gather_combine_threshold_bytes", "0.4.30", True, "31457280"),
        ("xla_gpu_all_gather_combine_threshold_bytes", "0.4.33", True, None),
        ("xla_gpu_all_gather_combine_threshold_bytes", "0.8.1+rocm7", True, "31457287"),
        ("xla_gpu_enable_pipelined_reduce_scatter", "0.9.2", True, "true"),
        ("xla_gpu_graph_level", "0.7.2", False, None),
        ("xla_gpu_never", "0.7.2", False, None),
    ],
)
def test_releases(flag: str, jaxlib: str, *, accepted: bool | None, default: str | None) -> None:
    assert history().is_accepted(flag, jaxlib) is accepted
    assert history().default(flag, jaxlib) == default


def test_a_release_is_a_number() -> None:
    assert release("0.10.0.dev2") < release("0.10.2") < release("0.12")
    with pytest.raises(ConfigError, match=r"expected numbers such as 0\.10\.2"):
        history().is_accepted("xla_a", "newest")


def test_names_are_forgiving_and_unknown_ones_have_a_neighbour() -> None:
    catalog = load()
    assert catalog.named("--xla_gpu_autotune_level=3") == catalog.named("autotune")
    with pytest.raises(ConfigError, match="did you mean 'xla_gpu_autotune_level'"):
        catalog.named("xla_gpu_autotune_levels")
    with pytest.raises(ConfigError, match="unknown axis 'XP'"):
        catalog.of_axis("XP")


def test_an_axis_begins_with_its_own_entries() -> None:
    for axis in Axis.__members__:
        axes = [entry.axes for entry in load().of_axis(axis)]
        first_any = next(at for at, each in enumerate(axes) if "any" in each)
        assert all(axis in each for each in axes[:first_any])
        assert all("any" in each for each in axes[first_any:])


@pytest.mark.parametrize("axis", ["FSDP", "PP", "TP"])
def test_profiles_of_an_axis(axis: str) -> None:
    found = profiles_for(axis, jaxlib="0.10.2", device="sm_90")
    assert found == profiles_for(axis.lower(), jaxlib="0.10.2", device="sm_90"), "deterministic"
    check_unique(found, where=axis)
    assert [each.id for each in found if each.id.startswith("control")] == [found[-1].id]
    assert all(each.wave == "wave2" and each.note for each in found)
    for each in found:
        names = [flag.name for flag in each.flags if flag.name not in APPENDING]
        assert len(set(names)) == len(names), each.id
        assert all(history().is_accepted(name, "0.10.2") for name in names), each.id


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
    assert "deployed already" in found["cublaslt-on"]
    assert "the device is not known" in found["hw-queues-2"]
    older = left_out("FSDP", Context(jaxlib="0.10.2", device="sm_90"))
    assert "since jaxlib 0.11.2" in older["pipeline-ag"]
    assert "the default" in older["cublaslt-on"], "true since 0.10.2"
    assert "cublaslt-on" not in left_out("FSDP", Context(jaxlib="0.9.2", device="sm_90"))


def test_two_names_of_one_option_are_tried_once() -> None:
    found = left_out("FSDP", Context(jaxlib="0.12.0.1"))
    assert found["pipeline-ag"] == "the same settings as pipelined-ag"


def test_latency_hiding_is_a_candidate_where_it_is_the_lever() -> None:
    assert (
        "on by itself"
        in left_out("FSDP", Context(jaxlib="0.8.3", device="sm_90"))["latency-hiding"]
    )
    assert "latency-hiding" not in left_out("FSDP", Context(jaxlib="0.8.3", device="gfx942"))
    assert "latency-hiding" not in left_out("FSDP", Context(jaxlib="0.6.2", device="sm_90"))
    overlap = left_out("PP", Context(jaxlib="0.8.3", device="gfx942"))["overlap-2"]
    assert "needs the latency hiding scheduler: it is off on gfx942" in overlap
    deployed = parse_flags("--xla_gpu_enable_latency_hiding_scheduler=true")
    on = Context(jaxlib="0.8.3", device="gfx942", deployed=deployed)
    assert "overlap-2" not in left_out("PP", on)


def test_stacks_are_of_a_later_wave() -> None:
    found = candidates("FSDP", Context(), wave="wave3").profiles
    assert [each.id for each in found] == ["ag-rs-256m", "ag-rs-1g"]
    assert all(len(each.flags) == 2 for each in found)


def test_a_vendors_settings_need_its_device() -> None:
    amd = {each.id for each in profiles_for("FSDP", device="gfx950")}
    nvidia = {each.id for each in profiles_for("FSDP", device="sm_90")}
    assert "hw-queues-2" in amd - nvidia
    assert "max-connections-1" in nvidia - amd


@pytest.mark.parametrize(
    ("flag", "jaxlib", "default"),
    [
        ("xla_gpu_autotune_level", "0.10.2", "4"),
        ("xla_gpu_autotune_level", "", "4"),
        ("xla_gpu_all_gather_mode", "0.10.2", "private"),
        ("xla_gpu_pipeline_reduce_scatter", "0.12.0.1", "on"),
        ("xla_gpu_enable_cublaslt", "", None),
        ("xla_cpu_use_thunk_runtime", "0.10.2", None),
        ("xla_gpu_disable_async_collectives", "0.10.2", None),
        ("xla_gpu_never", "0.10.2", None),
    ],
)
def test_what_puts_a_flag_back(flag: str, jaxlib: str, default: str | None) -> None:
    """None: unknown, changed over the releases, or not possible by any text."""
    assert defaults_of([flag], jaxlib).get(flag) == default
