"""The catalog: its entries and releases, the profiles of an axis, rules, and answers of XLA."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from pytest_xlatune.catalog.candidates import candidates, ladders_of, profiles_for
from pytest_xlatune.catalog.context import Context, Level, vendor_of
from pytest_xlatune.catalog.effect import ParsedText, examine
from pytest_xlatune.catalog.entries import ANY, Status, history, load, names_of, probed_libtpu
from pytest_xlatune.catalog.rules import RULES, check
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.logs import read_log
from pytest_xlatune.model.cell import Axis
from pytest_xlatune.model.channels import PARTS
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import (
    APPENDING,
    Flag,
    Profile,
    check_unique,
    parse_flags,
    profile,
    read_as_xla,
    settings_digest,
    shell_exports,
)
from pytest_xlatune.model.result import Effect
from pytest_xlatune.model.trial import LaunchSpec
from pytest_xlatune.prepare.preflight import Target
from pytest_xlatune.stats.validity import Witnesses, judge_settings
from pytest_xlatune.sweep.deployed import defaults_of
from tests.helpers.probes import make_cell, make_trial

LEVEL = "--xla_gpu_autotune_level"
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

GATHERS, PERMUTES = ("all-gather",), ("collective-permute",)


def context(deployed: str = "", **facts: object) -> Context:
    return Context(deployed=parse_flags(deployed), **facts)  # type: ignore[arg-type]


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
    "contradiction": ("NCCL_IB_DISABLE=1 NCCL_IB_HCA=m",),
    "bad-value": ("--xla_gpu_enable_triton_gemm=yes",),
    "retired": ("NCCL_IB_CUDA_SUPPORT=1",),
    "partner": ("--xla_gpu_multi_streamed_windowed_einsum=false", P2P, THRESHOLD),
    "no-op": ("--xla_gpu_enable_highest_priority_async_stream=1",),
    "adds-up": ("--xla_disable_hlo_passes=",),
    "second-name": (
        "--xla_gpu_enable_pipelined_all_gather=true --xla_gpu_pipeline_all_gather=off",
    ),
    "unknown-flag": ("--xla_gpu_enable_async_all_gather=true",),
    "near-miss": ("NCCL_MAX_NCHANELS=8",),
}  # fmt: skip


def settings(text: str) -> Profile:
    """A profile of variables and of flags."""
    words = text.split()
    variables = dict(word.split("=", 1) for word in words if word[0] != "-")
    return profile("p", " ".join(word for word in words if word[0] == "-"), env=variables)


CHANNELS = "NCCL_NCHANNELS_PER_NET_PEER=8"
TPU_FLAG = Profile(id="p", flags=parse_flags("--xla_tpu_enable_async_collective_fusion=true"))
# the rule that fires, of what, and beside what
CASES: list[tuple[str, Profile | str, Context]] = [
    *((rule, text, context()) for rule, texts in ALONE.items() for text in texts),
    ("tpu-flag", TPU_FLAG, context()),
    ("gpu-flag", OVERLAP, context(device="v6e")),
    ("gpu-flag", OVERLAP, context(device="cpu")),
    ("bad-value", f"{AG}=9223372036854775808", context(jaxlib="0.10.2")),
    ("contradiction", "NCCL_IB_SL=3", context(env={"NCCL_NET": "Socket"})),
    ("latency-hiding", OVERLAP, context(LHS_OFF)),
    ("latency-hiding", OVERLAP, context(SOL_OFF)),
    ("latency-hiding", OVERLAP, context(jaxlib="0.7.1")),
    ("latency-hiding", OVERLAP, context(device="gfx950", jaxlib="0.11.2")),
    ("overruled", DOUBLE, context(UNROLL)),
    ("overruled", WINDOW_MIB, context(f"{WINDOW_BYTES}=0")),
    ("program", f"{AG}={64 << 20}", context(collectives=PERMUTES)),
    ("program", f"{P2P} {THRESHOLD}", context(collectives=GATHERS)),
    ("program", CHANNELS, context(collectives=GATHERS)),
    ("aborts", "NCCL_ALGO=tree", context(collectives=GATHERS)),
    ("no-op", "--xla_gpu_autotune_level=4", context(jaxlib="0.10.2")),
    ("adds-up", "--xla_disable_hlo_passes=fusion", context("--xla_disable_hlo_passes=cse")),
    ("unknown-flag", "--xla_gpu_graph_level=0", context(jaxlib="0.8.3")),
]


@pytest.mark.parametrize(("rule", "given", "where"), CASES)
def test_a_rule_fires(rule: str, given: Profile | str, where: Context) -> None:
    arm = settings(given) if isinstance(given, str) else given
    assert rule in [each.rule for each in check([arm], where) if each.profile == arm.id]


def test_every_rule_is_shown_to_fire() -> None:
    assert {rule for rule, *_ in CASES} == {rule.name for rule in RULES}


PRIORITY = "--xla_gpu_enable_highest_priority_async_stream"
# beside a rule there is silence: what is set, and where
SILENT: dict[str, tuple[str, Context]] = {
    "permutes": (f"{P2P} {THRESHOLD}", context(collectives=PERMUTES)),
    "the partner is deployed": (THRESHOLD, context(P2P)),
    "it needed none then": (THRESHOLD, context(jaxlib="0.5.3")),
    "the scheduler is unknown": (OVERLAP, context()),
    "O1 brings the scheduler": (
        f"{OVERLAP} JAX_OPTIMIZATION_LEVEL=O1", context(jaxlib="0.6.2")),
    "hexadecimal": ("NCCL_BUFFSIZE=0x1000000", context()),
    "memory of the host beside the device's": (
        "XLA_PYTHON_CLIENT_MEM_FRACTION=4.0 TF_FORCE_UNIFIED_MEMORY=1", context()),
    "words of an enumeration": (
        "--xla_gpu_enable_command_buffer=+WHILE,-custom_call", context(jaxlib="0.10.2")),
    "algorithms by collective, below those of all": (
        "NCCL_ALGO=ring,tree;allreduce:tree;allgather:^NVLS", context()),
    "small letters, a level of old": ("NCCL_DEBUG=info NCCL_P2P_LEVEL=4", context()),
    "a contradiction that is deployed below": (
        "NCCL_DEBUG=INFO", context(env={"NCCL_IB_DISABLE": "1", "NCCL_IB_HCA": "mlx5"})),
    "a default that is not what is deployed": (f"{PRIORITY}=true", context(f"{PRIORITY}=false")),
    "a tree for an all-reduce": (
        "NCCL_ALGO=Tree", context(collectives=(*PERMUTES, "all-reduce"))),
    "channels of permutes": (CHANNELS, context(collectives=PERMUTES)),
    "names that resemble others": (
        "NCCL_MAX_P2P_NCHANNELS=8 NCCL_IB_TIMEOUT=22 --xla_tpu_no_entry_has_it=true", context()),
}  # fmt: skip


@pytest.mark.parametrize(("text", "where"), SILENT.values(), ids=SILENT)
def test_beside_a_rule_there_is_silence(text: str, where: Context) -> None:
    found = check([settings(text)], where)
    assert [each.rule for each in found if each.profile == "p"] == []


GRAPH = profile("p", "--xla_gpu_graph_level=0")
NO_SUCH = profile("p", "--xla_gpu_no_such=0")
BLOCKED = profile("control-inflation", "--xla_gpu_collective_inflation_factor=1")


@pytest.mark.parametrize(
    ("arm", "where", "levels"),
    [
        pytest.param(GRAPH, context(jaxlib="0.8.3"), [Level.FAULT], id="an abort"),
        pytest.param(NO_SUCH, context(jaxlib="0.8.3"), [Level.FAULT], id="an unknown flag"),
        pytest.param(NO_SUCH, context(), [Level.NOTE], id="of an unknown release"),
        pytest.param(profile("control-decomposer", THRESHOLD), context(), [], id="a control"),
        pytest.param(BLOCKED, context(), [Level.FAULT], id="a control that does harm"),
        pytest.param(profile("p", THRESHOLD), context(), [Level.FAULT], id="no partner"),
        pytest.param(
            profile("p", THRESHOLD), Context(is_complete=False), [Level.NOTE],
            id="which an unread env file may set",
        ),
    ],
)  # fmt: skip
def test_a_fault_is_what_can_never_run_here(
    arm: Profile, where: Context, levels: list[Level]
) -> None:
    assert [each.level for each in check([arm], where)] == levels


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


TPU = "LIBTPU_INIT_ARGS"


def of_libtpu(text: str) -> Profile:
    return Profile(id="p", env={TPU: text})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (settings("NCCL_MAX_NCHANELS=8"), "did you mean NCCL_MAX_NCHANNELS?"),
        (settings("--NCCL_PROTO=LL"), "as in env={'NCCL_PROTO': ...}"),
        (profile("p", overrides={"remat_polcy": "full"}), "did you mean remat_policy?"),
        (settings("--xla_gpu_autotune_levle=2"), "did you mean --xla_gpu_autotune_level?"),
        (of_libtpu("--xla_tpu_rwb_fusion='true'"), "quotes are part"),
        (of_libtpu("--xla_tpu_a=true xla_tpu_rwb_fusion=false"), "fusion=false' has no dashes"),
        (of_libtpu("--xla_gpu_autotune_level=0"), "libtpu refuses it"),
    ],
)
def test_an_objection_says_what_to_write(given: Profile, words: str) -> None:
    assert any(words in each.text for each in check([given], Context()))


P2P_TOO = "--xla_gpu_enable_pipelined_p2p=1"


@pytest.mark.parametrize(
    ("texts", "twins"),
    [
        ([f"{LEVEL}=2 {P2P}", f"{P2P_TOO} {LEVEL}=2", f"{P2P_TOO} {LEVEL}=3"], [1]),
        ([f"{LEVEL}={each}" for each in ("1024", "+1024", "1024.0", "1000", "01000")], [1, 4]),
    ],
    ids=["in another order and spelling", "spellings of a number"],
)
def test_a_twin_is_told(texts: list[str], twins: list[int]) -> None:
    profiles = [profile(f"p{at}", text) for at, text in enumerate(texts)]
    found = {each.profile: each.text for each in check(profiles, Context()) if each.rule == "twin"}
    assert [*found] == [f"p{at}" for at in twins]
    assert "the same settings as p" in found[f"p{twins[0]}"]


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


DEFAULT = {"a": "0", "b": "false", "xla_disable_hlo_passes": "", "map": "k=1,l=2", "mode": "OFF"}


def stand_in(texts: Sequence[str]) -> list[ParsedText]:
    """Parse as XLA does: an appending flag, a map, an older name, unknown and bad ones."""
    return [answer(text) for text in texts]


def answer(text: str) -> ParsedText:
    options = dict(DEFAULT)
    flags, _ = read_as_xla(text)
    if bad := [flag.name for flag in flags if flag.value == "bad"]:
        said = f"Couldn't interpret value bad for flag {bad[0]}"
        return ParsedText(options=None, refused=said)
    if unknown := tuple(flag.name for flag in flags if flag.name.startswith("no_")):
        return ParsedText(options=None, unknown=unknown)
    for flag in flags:
        value = flag.value or ""
        if flag.name == "xla_disable_hlo_passes":
            value = ",".join(filter(None, (options[flag.name], value)))
        elif flag.name == "map":
            pairs = dict(each.split("=") for each in f"{options['map']},{value}".split(","))
            value = ",".join(f"{k}={v}" for k, v in sorted(pairs.items()))
        if flag.name == "old_mode":
            options["mode"] = "ON" if value == "true" else "OFF"
        elif flag.name != "custom":
            options[flag.name] = value
    if "b=twin" in text:
        options["a"] = "9"  # one that overrides another, whatever the order
    return ParsedText(options=options)


@pytest.mark.parametrize(
    ("text", "deployed", "rules"),
    [
        pytest.param("--a=1", "", [], id="in effect"),
        pytest.param("--no_such=1", "", ["unknown-flag"], id="unknown"),
        pytest.param("--a=bad", "", ["bad-value"], id="a bad value"),
        pytest.param("--a=1 --a=2", "", ["not-in-effect"], id="overridden by itself"),
        pytest.param("--a=1 --b=twin", "", ["not-in-effect"], id="overridden by another name"),
        pytest.param(
            "--xla_disable_hlo_passes=x", "--xla_disable_hlo_passes=y", ["adds-up"], id="appended"
        ),
        pytest.param("--map=l=3", "--map=k=5", ["adds-up"], id="merged into a map"),
        pytest.param("--a=0", "", ["no-op"], id="the default"),
        pytest.param("--a=0", "--a=1", [], id="back to the default is a change"),
        pytest.param("--old_mode=true", "", [], id="an older name of an option"),
        pytest.param("--custom=1", "", [], id="without an option, so unchecked and not idle"),
    ],
)
def test_what_is_found(text: str, deployed: str, rules: list[str]) -> None:
    found = examine([profile("p", text)], parse_flags(deployed), stand_in)
    assert [each.rule for each in found.objections] == rules, found
    assert ["--custom has no option" in each for each in found.unchecked] == [True] * (
        "custom" in text
    )


def test_one_of_two_profiles_that_come_to_the_same_is_named() -> None:
    twins = [profile("first", "--a=1"), profile("second", "--a=0 --a=1 --b=false")]
    apart = profile("third", "--a=1", env={"NCCL_ALGO": "Ring"})
    found = examine([*twins, apart], (), stand_in)
    rules = [(each.profile, each.rule) for each in found.objections]
    assert rules == [("second", "not-in-effect"), ("second", "twin")]


VMEM = profile("vmem", "--xla_tpu_scoped_vmem_limit_kib=65536 --xla_gpu_autotune_level=0")
# what libtpu 0.0.52 prints with TPU_STDERR_LOG_LEVEL=0 and TPU_MIN_LOG_LEVEL=0
LOG = b"""\
I1123 09:40:31.596461   25377 b295d63588a.cc:912] argv[0]: './tpu_driver'
I1123 09:40:31.596463   25377 b295d63588a.cc:912] argv[2]: '--stderrthreshold=0'
I1123 09:40:31.596484   25377 b295d63588a.cc:912] argv[17]: '--xla_tpu_scoped_vmem_limit_kib=32768'
I1123 09:40:31.596485   25377 b295d63588a.cc:912] argv[18]: '--xla_tpu_scoped_vmem_limit_kib=65536'
"""


def launched(arm: Profile, **deployed: str) -> LaunchSpec:
    cell = make_cell(deployed=deployed)
    return CommandLauncher(argv=("train", "{steps}")).launch(make_trial(cell, arm), cell)


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
    spec = launched(VMEM, **{TPU: "--xla_tpu_scoped_vmem_limit_kib=32768"})
    assert spec.env[TPU] == (
        "--xla_tpu_scoped_vmem_limit_kib=32768 --xla_tpu_scoped_vmem_limit_kib=65536"
    )
    assert spec.first_env["TPU_STDERR_LOG_LEVEL"] == "0"
    assert "TPU_STDERR_LOG_LEVEL" not in launched(profile("none")).first_env
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
    own = replace(VMEM, flags=())
    (found,) = judge_settings(own, Witnesses(read=read, expects_readers=True))
    assert found.effect is effect


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


def test_what_puts_a_flag_back() -> None:
    """Nothing does where the default is unknown, changed over the releases, or set by no text."""
    level, mode = "xla_gpu_autotune_level", "xla_gpu_all_gather_mode"
    found = defaults_of([level, mode, "xla_gpu_disable_async_collectives"], "0.10.2")
    assert found == {level: "4", mode: "private"}
    scatter = "xla_gpu_pipeline_reduce_scatter"
    assert defaults_of([scatter], "0.12.0.1") == {scatter: "on"}
    assert defaults_of(["xla_gpu_enable_cublaslt"], "") == {}


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
