"""Named rules that find the faults of a profile's settings before anything runs.

A rule examines what a profile sets on top of the deployed settings, and objects in one sentence: a
partner is missing, another flag overrides a flag, or the value is the default already. A setting
that would measure nothing, or something wrong, is a fault, except in a profile whose id begins with
`control`, which is *meant* to do nothing. For facts that only XLA knows, the module `effect` asks
the target's XLA. No rule guesses: if a fact is unknown, it does not object. The facts come from the
source of XLA, and from the HLO of programs that were compiled with and without a flag.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from pytest_xlatune.catalog.context import (
    CONTROL,
    Case,
    CatalogRule,
    Context,
    Level,
    Objection,
    is_control,
    vendor_of,
)
from pytest_xlatune.catalog.entries import (
    Status,
    history,
    load,
    names_of,
    nccl_defaults,
    release,
    retired,
    switches,
    values,
)
from pytest_xlatune.model.channels import (
    CHANNELS,
    channel_of,
    complaint,
    flags_in,
    normalized,
    on_top,
    settings_in,
)
from pytest_xlatune.model.profile import ALIASES, APPENDING, BASELINE_ID, PGLE, Profile
from pytest_xlatune.model.profile import effective_values as values_of
from pytest_xlatune.model.text import is_number, same_value, to_integer

_P2P = "xla_gpu_enable_pipelined_p2p"
_DECOMPOSER = "xla_gpu_collective_permute_decomposer_threshold"
_OPT_LEVEL = "xla_gpu_experimental_pipeline_parallelism_opt_level"
_LHS = "xla_gpu_enable_latency_hiding_scheduler"
_LHS_ON_SINCE = (0, 7, 2)  # the release of jaxlib in which XLA turned this scheduler on
_SOL = "xla_gpu_enable_analytical_sol_latency_estimator"
_OVERLAP = "xla_gpu_experimental_parallel_collective_overlap_limit"
_SCALE_UP = "xla_gpu_experimental_parallel_scale_up_collective_overlap_limit"
_EARLY = "xla_gpu_experimental_collective_start_as_early_as_possible"
_DOUBLE, _UNROLL = (
    "xla_gpu_enable_while_loop_double_buffering",
    "xla_gpu_enable_while_loop_unrolling",
)
_WINDOW_MIB = "xla_gpu_threshold_for_windowed_einsum_mib"
_WINDOW_BYTES = "xla_gpu_operand_bytes_threshold_for_windowed_einsum"
_STREAMS = "xla_gpu_multi_streamed_windowed_einsum"


def _partner(case: Case) -> Iterator[str]:
    is_before_p2p = bool(case.context.jaxlib) and release(case.context.jaxlib) < (0, 6)
    is_opt_level_off = case.after.get(_OPT_LEVEL, "DISABLE").endswith("DISABLE")
    decomposes_none = _DECOMPOSER not in case.after and is_opt_level_off
    # programs compiled with jaxlib 0.8.3 and 0.12.0 show that either flag alone changes nothing
    if _DECOMPOSER in case.asked and not case.is_on(_P2P) and not is_before_p2p:
        yield f"--{_DECOMPOSER} does nothing without --{_P2P}=true"
    if _P2P in case.asked and case.is_on(_P2P) and decomposes_none:
        yield f"--{_P2P} does nothing without --{_DECOMPOSER}: by default no permute is decomposed"
    if _EARLY in case.asked and case.is_on(_EARLY) and case.number(_OVERLAP, 1) == 1:
        yield f"--{_EARLY} does nothing without --{_OVERLAP} above 1"
    if _STREAMS in case.asked and not {_WINDOW_MIB, _WINDOW_BYTES} & case.after.keys():
        yield f"--{_STREAMS} does nothing without --{_WINDOW_MIB} or --{_WINDOW_BYTES}"


def _latency_hiding(case: Case) -> Iterator[str]:
    dependent = [
        flag
        for flag, neutral in ((_OVERLAP, "1"), (_SCALE_UP, "1"), (_EARLY, "false"))
        if flag in case.asked and not same_value(case.asked[flag], neutral)
    ]
    why = _why_no_latency_hiding(case) if dependent else ""
    if why:
        yield f"--{dependent[0]} needs the latency hiding scheduler: {why}; add --{_LHS}=true"


def _why_no_latency_hiding(case: Case) -> str:
    """Return why the scheduler is off; "" if it is on, or if that is unknown."""
    jaxlib, device = case.context.jaxlib, case.context.device.lower()
    if _LHS in case.after:
        return "" if case.is_on(_LHS) else "it is switched off"
    if case.env.get("JAX_OPTIMIZATION_LEVEL", "O0") not in ("O0", "") or PGLE in case.after:
        return ""
    if _SOL in case.after and not case.is_on(_SOL):
        return f"it is off with --{_SOL}=false"
    # it is on by default since 0.7.2 for Hopper and Blackwell, and since 0.12 for gfx950
    if jaxlib and release(jaxlib) < _LHS_ON_SINCE:
        return f"jaxlib {jaxlib} has it off"
    is_old_amd = device.startswith("gfx") and bool(jaxlib) and release(jaxlib) < (0, 12)
    if device.startswith("gfx94") or is_old_amd:
        return f"it is off on {device} with jaxlib {jaxlib or 'of any release'}"
    return ""


def _overruled(case: Case) -> Iterator[str]:
    if _DOUBLE in case.asked and _UNROLL in case.after:
        value = case.after[_UNROLL]
        if not value.endswith("AUTO_UNROLL"):
            yield f"--{_DOUBLE} does nothing beside --{_UNROLL}={value}, which overrides it"
    if _WINDOW_MIB in case.asked and case.number(_WINDOW_BYTES, -1) >= 0:
        yield f"--{_WINDOW_MIB} does nothing beside --{_WINDOW_BYTES}, which overrides it"


def is_idle(profile: Profile, context: Context) -> bool:
    """Return whether every setting of a profile has its deployed value or its default."""
    probed, before = history(), values_of(context.deployed)
    if not (profile.flags or profile.env) or profile.overrides:
        return False
    deployed_options = {ALIASES.get(name, name) for name in before}
    for name, value in values_of(profile.flags).items():
        known = before.get(name)
        # the default holds unless the flag is deployed under its other name
        if known is None and ALIASES.get(name, name) not in deployed_options:
            known = probed.default(name, context.jaxlib)
        if name in APPENDING or known is None:
            return False
        if not same_value(value, known, kind=probed.kind(name)):
            return False
    knows_all = context.knows_env and context.is_complete
    defaults = nccl_defaults(vendor_of(context.device)) if knows_all else {}
    return settings_in(profile.env, "").items() <= settings_in(defaults | context.env, "").items()


def _no_op(case: Case) -> Iterator[str]:
    jaxlib, device = case.context.jaxlib, case.context.device.lower()
    is_new = bool(jaxlib) and release(jaxlib) >= _LHS_ON_SINCE
    has_lhs = is_new and device.startswith(("sm_9", "sm_10", "sm_12"))
    if has_lhs and not case.profile.env and values_of(case.profile.flags) == {_LHS: "true"}:
        yield f"jaxlib {jaxlib} has the latency hiding scheduler on by itself on {device}"
    # published single runs of such settings differ from their baseline by -5.3 to +1.8 %
    if is_idle(case.profile, case.context):
        yield (
            "every setting is deployed already, or the default: a run of it measures noise. Call "
            f"it {CONTROL}-... to keep it as the A/A control"
        )


# flag -> the kind of collective that it combines
_COMBINES = {
    "xla_gpu_all_gather_combine_threshold_bytes": "all-gather",
    "xla_gpu_reduce_scatter_combine_threshold_bytes": "reduce-scatter",
    "xla_gpu_all_reduce_combine_threshold_bytes": "all-reduce",
    "xla_gpu_collective_permute_combine_threshold_bytes": "collective-permute",
}
# flags that do nothing to a program without a collective-permute
_NEEDS_PERMUTE = (_P2P, _DECOMPOSER, _OPT_LEVEL, "xla_gpu_collective_permute_mode")
_NEEDED_KIND = {**_COMBINES, **dict.fromkeys(_NEEDS_PERMUTE, "collective-permute")}
# the collectives that NCCL makes of sends and receives
_POINT_TO_POINT = frozenset(
    {"collective-permute", "send", "recv", "all-to-all", "ragged-all-to-all"}
)
_NET_CHANNELS = "NCCL_NCHANNELS_PER_NET_PEER"


def _program(case: Case) -> Iterator[str]:
    """Yield the settings that do nothing to the deployed program, for want of a collective."""
    kinds = case.context.collectives
    if kinds is None:
        return
    for name, value in case.asked.items():
        kind = _NEEDED_KIND.get(name)
        if kind is not None and kind not in kinds:
            yield f"--{name}={value} does nothing to this program: it has no {kind}"
    # NCCL reads it only for send, recv and all-to-all between nodes (graph/paths.cc)
    if _NET_CHANNELS in case.profile.env and not _POINT_TO_POINT & {*kinds}:
        yield f"{_NET_CHANNELS} does nothing to this program: it has no send, recv or all-to-all"


_FRACTIONS = ("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION")
# an integer as C reads it with base 0:  16777216    0x1000000    -1
_INTEGER = re.compile(r"\s*[-+]?(?:0[xX][0-9a-fA-F]+|\d+)")
# a size as people write it:  16M    4MiB
_SIZE = re.compile(r"(\d{1,15})\s*([kKmMgG])(?:i?[bB])?")
_SHIFT = {"k": 10, "m": 20, "g": 30}


def check(profiles: Sequence[Profile], context: Context) -> tuple[Objection, ...]:
    """Return all objections: to the deployed settings first, then to each profile in order."""
    deployed = Profile(
        id=BASELINE_ID,
        flags=tuple(context.deployed),
        env={
            name: value
            for name, value in context.env.items()
            if name != "XLA_FLAGS" and name.isidentifier()  # bash exports functions too
        },
    )
    bare = Context(jaxlib=context.jaxlib, device=context.device)
    rules_for_deployed = [rule for rule in RULES if rule.checks_deployed]
    found = list(objections(deployed, bare, rules_for_deployed))
    twins = {objection.profile: objection for objection in _twins(profiles)}
    for profile in profiles:
        found += objections(profile, context)
        if profile.id in twins:
            found.append(twins[profile.id])
    return tuple(found)


def why_not(profile: Profile, context: Context) -> str:
    """Return why a derived profile is not worth a trial; "" if no rule objects.

    A fault keeps it from running, as with a declared profile. Since no user declared it, it also
    does not run if all its settings are deployed and no env file on a node may set more. The
    collectives of the deployed program only count for a profile of at most one flag: several flags,
    or an override, make another program, in which a flag may have an effect.
    """
    if len(values_of(profile.flags)) > 1 or profile.overrides:
        context = replace(context, collectives=None)
    reasons = (
        objection.text
        for objection in objections(profile, context)
        if objection.level is Level.FAULT or (objection.rule == "no-op" and context.is_complete)
    )
    return next(reasons, "")


def objections(
    profile: Profile, context: Context, rules: Sequence[CatalogRule] | None = None
) -> Iterator[Objection]:
    """Yield the objections of rules to one profile; None as `rules` means all rules."""
    asked = values_of(profile.flags)
    case = Case(
        profile=profile,
        context=context,
        asked=asked,
        after=values_of((*context.deployed, *profile.flags)),
        env=on_top(context.env, profile.env),
    )
    for rule in RULES if rules is None else rules:
        if rule.is_idle and is_control(profile):  # a control is meant to do nothing
            continue
        # an env file may set what makes a setting have an effect
        may_have_effect = rule.is_idle and not context.is_complete
        is_release_unknown = rule.needs_release and not context.jaxlib
        level = Level.NOTE if may_have_effect or is_release_unknown else rule.level
        for text in rule.check(case):
            yield Objection(rule=rule.name, level=level, profile=profile.id, text=text)


def _blocked(case: Case) -> Iterator[str]:
    for name, value in case.asked.items():
        for entry in load().find(name):
            if entry.status is not Status.BLOCKED:
                continue
            # e.g. with an inflation factor of 0 a profile would win by leaving out its collectives
            if not entry.blocked or any(same_value(value, blocked) for blocked in entry.blocked):
                yield f"--{name} is never set: it {entry.mechanism}"


def _gpu_flag(case: Case) -> Iterator[str]:
    device = case.context.device
    if vendor_of(device) in ("google", "cpu"):
        for name in case.asked:
            if name.startswith("xla_gpu_"):
                yield f"--{name} does nothing on {device}, which is no GPU"


def _other_channel(case: Case) -> Iterator[str]:
    for name in case.asked:
        variable = channel_of(name)
        if variable and name not in history().flags:
            yield f"--{name} is read from {variable}; in XLA_FLAGS the process aborts on it"


def _channel(case: Case) -> Iterator[str]:
    for variable in CHANNELS.keys() & case.profile.env.keys():
        text = case.profile.env[variable]
        yield from filter(None, [complaint(variable, text)])
        for name in flags_in(variable, text):
            if channel_of(name) != variable and name in history().flags:
                yield (
                    f"--{name} is in {variable}, but it is read from XLA_FLAGS; "
                    f"{CHANNELS[variable].reader} refuses it"
                )


def _plain_integer(case: Case) -> Iterator[str]:
    integers = load().integers
    for name, value in case.profile.env.items():
        size = _SIZE.fullmatch(value)
        is_nccl = name.startswith(("NCCL_", "RCCL_"))
        # e.g. NCCL_IB_DISABLE=true is read as 0, so that InfiniBand stays in use
        is_integer = name in integers or (is_nccl and name.endswith(("_DISABLE", "_ENABLE")))
        if not value or not (is_integer or (is_nccl and size)):
            continue
        # NCCL reads by strtoll(value, 0, 0): no suffix, no error, a word is 0 (src/misc/param.cc)
        integer = _INTEGER.match(value)
        if integer is None:
            yield f"{name}={value} is read as 0; expected a plain integer"
        elif integer.end() != len(value):
            hint = f"; write {int(size[1]) << _SHIFT[size[2].lower()]}" if size else ""
            yield f"{name}={value} is read as {integer.group().strip()}, the rest is ignored{hint}"


def _type_of(flag: str) -> tuple[str, dict[str, Any]]:
    """Return the type of a flag, and its row in `values.toml`; {} if it has none."""
    kind = values()["kinds"].get(flag) or history().kind(flag)
    return kind, values()["types"].get(kind, {})


def _bad_value(case: Case) -> Iterator[str]:
    """Yield an objection to each value that XLA refuses for the type of its flag."""
    for flag in case.profile.flags:
        kind, known = _type_of(flag.name)
        if flag.value is None:
            # only a switch may have no value; XLA reports any other flag without = as unknown
            if kind == "string" or (known and kind != "bool"):
                yield f"--{flag.name} needs a value; without =... the process aborts on it"
            continue
        if known and not re.fullmatch(known["pattern"], flag.value, re.IGNORECASE):
            yield f"--{flag.name}={flag.value:.40} ends the process; expected {known['expected']}"
        elif "bits" in known and not _fits(flag.value, known["bits"]):
            yield f"--{flag.name}={flag.value:.40} does not fit {known['bits']} bits"


def _fits(value: str, bits: int) -> bool:
    digits = value.strip().lstrip("+-").lstrip("0")
    if len(digits) > 19:  # noqa: PLR2004 - 2**63 has 19 digits; `int` refuses thousands of them
        return False
    number = int(digits or 0) * (-1 if value.strip().startswith("-") else 1)
    return -(1 << (bits - 1)) <= number < 1 << (bits - 1)


def _memory_fraction(case: Case) -> Iterator[str]:
    both = {*_FRACTIONS}
    if both <= case.env.keys() and case.profile.env.keys() & both:
        names = " and ".join(_FRACTIONS)
        yield f"{names} are both set, which JAX refuses; use the one that is deployed"
    for name in _FRACTIONS:
        text = case.profile.env.get(name, "")
        if not text:
            continue
        try:
            share = float(text)
        except ValueError:
            yield f"{name}={text:.40} is no number, which JAX refuses; write .9 for 90 %"
            continue
        # with unified memory, a share above 1 uses the host's memory too
        is_unified = case.env.get("TF_FORCE_UNIFIED_MEMORY", "").lower() in ("1", "true")
        if not 0 < share < math.inf or (share > 1 and not is_unified):
            hint = f"; for {share:g} % write {share / 100:g}" if 1 < share <= 100 else ""  # noqa: PLR2004
            yield (
                f"{name}={text:.40} must be a share of the device's memory above 0, at most 1{hint}"
            )


def _library_value(case: Case) -> Iterator[str]:
    """Yield values that NCCL misreads or ignores (src/graph/tuning.cc, topo.cc, debug.cc)."""
    for name, value in case.profile.env.items():
        words, text = values()["words"].get(name), value.strip()
        if words is not None and text:
            # NCCL_ALGO=allreduce:ring,tree;allgather:ring     NCCL_PROTO=^LL128
            listed = re.split("[;,]", re.sub(r"\w+:", "", text).replace("^", ""))
            known = {word.lower() for word in words} | {""}
            unknown = [word for word in listed if word.strip().lower() not in known]
            if unknown and to_integer(text) is None:
                known_words = ", ".join(words)
                yield f"{name}={value:.40}: NCCL knows no {unknown[0]:.40}; known are {known_words}"
        if name == _ALGO and (without := _without_algorithm(text)):
            yield (
                f"{name}={value:.40} names no algorithm for {', '.join(without)}, so NCCL since "
                f"2.31 has none for them; begin with the algorithms for all collectives: "
                f"{name}=ring,tree;{text:.40}"
            )


def _without_algorithm(text: str) -> list[str]:
    """Return the collectives for which NCCL_ALGO names no algorithm.

    A list without a prefix is for all collectives (src/graph/tuning.cc, parseList).
    """
    # allreduce:tree      ring,tree;allreduce:tree
    prefixes = [part.rpartition(":")[0].strip().lower() for part in text.split(";")]
    if "" in prefixes:
        return []
    return [collective for collective in _COLLECTIVES if collective not in prefixes]


_COLLECTIVES = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")


def _contradiction(case: Case) -> Iterator[str]:
    """Yield contradictions between variables, which NCCL does not report."""
    set_by_profile = case.profile.env.keys()
    for switch in switches():
        if switch.name not in case.env or not switch.acts(case.env):
            continue
        idle = [name for name in case.env if case.env[name] and re.fullmatch(switch.idle, name)]
        set_to = f"{switch.name}={case.env[switch.name]}"
        if idle and set_by_profile & {switch.name, *idle}:
            verb = "does" if len(idle) == 1 else "do"
            yield f"{', '.join(idle)} {verb} nothing with {set_to}"


_ALGO = "NCCL_ALGO"


def _retired(case: Case) -> Iterator[str]:
    for name in case.profile.env:
        if name in retired():
            yield f"{name}: {retired()[name]}"


def _second_name(case: Case) -> Iterator[str]:
    names = {flag.name for flag in case.profile.flags}
    for old, new in ALIASES.items():
        if {old, new} <= names:
            yield f"--{old} and --{new} write one option: the last one wins"


def _adds_up(case: Case) -> Iterator[str]:
    before = values_of(case.context.deployed)
    for name, value in case.asked.items():
        if name not in APPENDING:
            continue
        if not value:
            yield (
                f"--{name}= does not restore the default: XLA adds an empty entry. Remove the flag "
                "from the deployed XLA_FLAGS instead"
            )
        elif name in before:
            yield f"--{name}={value} is added to the deployed {before[name]}, not in its place"


def _unknown(case: Case) -> Iterator[str]:
    jaxlib, probed = case.context.jaxlib, history()
    for name in case.asked:
        if channel_of(name):
            continue  # `_other_channel` objects to it
        accepted = probed.is_accepted(name, jaxlib) if jaxlib else None
        if accepted is False or (not jaxlib and name not in probed.flags):
            gone = [entry for entry in load().find(name) if entry.status is Status.GONE]
            hint = f": {gone[0].mechanism}" if gone else ""
            if name in names_of("variables"):
                hint = hint or f"; it is a variable, as in env={{{name!r}: ...}}"
            elif name not in probed.flags:
                hint = hint or did_you_mean(name, probed.flags, dashes="--")
            yield f"--{name} is {probed.accepted_in(name)}{hint}"


_NEAR = 0.88  # least similarity (`difflib`) of a misspelt name: about one wrong letter in ten


def did_you_mean(name: str, known: Iterable[str], *, dashes: str = "") -> str:
    """Return `; did you mean ...?` for the nearest of known names; "" if none is near."""
    near = nearest(name, known)
    return f"; did you mean {dashes}{near}?" if near else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that was probably meant; "" if none is near."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=_NEAR)), "")


def _near_miss(case: Case) -> Iterator[str]:
    for kind, asked, word in (
        ("variables", case.profile.env, "variable"),
        ("keys", case.profile.overrides, "key"),
    ):
        known = names_of(kind)
        for name in asked:
            hint = "" if name in known else did_you_mean(name, known)
            if hint:
                yield f"{name} is no known {word}{hint}"


def _twins(profiles: Sequence[Profile]) -> Iterator[Objection]:
    """Object to the second of two profiles with equal settings in any order and spelling."""
    first_with: dict[object, str] = {}
    for profile in profiles:
        if profile.is_baseline:
            continue
        first = first_with.setdefault(settings_key(profile, Context()), profile.id)
        if first != profile.id and not is_control(profile):
            text = f"the same settings as {first}, so they are measured twice"
            yield Objection(rule="twin", level=Level.NOTE, profile=profile.id, text=text)


def settings_key(profile: Profile, context: Context) -> object:
    """Return one key for all profiles of the same settings in effect, in any order and spelling."""
    values = values_of((*context.deployed, *profile.flags))
    flags = {ALIASES.get(name, name): _canonical(name, value) for name, value in values.items()}
    env = normalized(on_top(context.env, profile.env))
    return frozenset(flags.items()), frozenset(env.items()), frozenset(profile.overrides.items())


def _canonical(flag: str, value: str) -> object:
    """Return one value for all spellings of a flag's value: `1` and `true`, `8` and `08`."""
    kind = history().kind(flag)
    if flag in ALIASES:  # an older name switches the newer one on, or leaves its default
        return "on" if same_value(value, "true", kind="bool") else "default"
    if kind == "string":
        return value
    if kind == "bool":
        return same_value(value, "true", kind=kind)
    number = to_integer(value)
    if number is not None:
        return number
    return f"{float(value.strip())}" if is_number(value) else value.lower()


def _aborts(case: Case) -> Iterator[str]:
    """Yield that NCCL_ALGO leaves NCCL no algorithm for a collective of the program."""
    # several words, or a word negated with ^, may leave an algorithm, so they are not checked
    unsupported = sorted({*(case.context.collectives or ())} & {"all-gather", "reduce-scatter"})
    if case.profile.env.get(_ALGO, "").lower() == "tree" and unsupported:
        yield (
            f"NCCL_ALGO=Tree: NCCL has no tree for {' and '.join(unsupported)}, which this program "
            "has, so it fails; RCCL silently keeps the ring"
        )


RULES: tuple[CatalogRule, ...] = (
    CatalogRule(name="blocked", check=_blocked, checks_deployed=True,
                finds="a flag that makes results wrong, or every compilation crash"),
    CatalogRule(name="tpu-flag", check=_other_channel, checks_deployed=True,
                finds="a flag of libtpu in XLA_FLAGS, where the process aborts on it"),
    CatalogRule(name="gpu-flag", check=_gpu_flag, level=Level.NOTE, is_idle=True,
                finds="a flag of GPUs if the device is a TPU or the CPU"),
    CatalogRule(name="channel", check=_channel, checks_deployed=True,
                finds="quotes, a stray first word or a flag of XLA_FLAGS in LIBTPU_INIT_ARGS"),
    CatalogRule(name="plain-integer", check=_plain_integer, checks_deployed=True,
                finds="`NCCL_BUFFSIZE=16M`: NCCL reads 16, without an error"),
    CatalogRule(name="bad-value", check=_bad_value, checks_deployed=True,
                finds="a value on which XLA ends the process: `=yes`, `=1e9`, missing, too large"),
    CatalogRule(name="memory-fraction", check=_memory_fraction, checks_deployed=True,
                finds="a memory fraction in both spellings, above 1, or not a number"),
    CatalogRule(name="aborts", check=_aborts,
                finds="`NCCL_ALGO=Tree` for a program with all-gathers or reduce-scatters"),
    CatalogRule(name="partner", check=_partner, is_idle=True,
                finds="a flag without the flag it needs"),
    CatalogRule(name="latency-hiding", check=_latency_hiding, is_idle=True,
                finds="an overlap flag where the latency hiding scheduler is off"),
    CatalogRule(name="overruled", check=_overruled, is_idle=True,
                finds="a flag beside another that overrides it"),
    CatalogRule(name="program", check=_program, is_idle=True,
                finds="a setting of a collective that the deployed program does not have"),
    CatalogRule(name="no-op", check=_no_op, level=Level.NOTE, is_idle=True,
                finds="every setting is deployed already, or the default of the release"),
    CatalogRule(name="adds-up", check=_adds_up, level=Level.NOTE,
                finds="a flag that XLA appends to the deployed one: nothing later undoes it"),
    CatalogRule(name="second-name", check=_second_name, level=Level.NOTE,
                finds="two names of one option in one profile"),
    CatalogRule(name="near-miss", check=_near_miss, level=Level.NOTE, checks_deployed=True,
                finds="a misspelt variable or key: `NCCL_MAX_NCHANELS`"),
    CatalogRule(name="contradiction", check=_contradiction, level=Level.NOTE, checks_deployed=True,
                finds="variables of NCCL that another one switches off"),
    CatalogRule(name="library-value", check=_library_value, level=Level.NOTE, checks_deployed=True,
                finds="a word that NCCL does not know, or algorithms for some collectives only: "
                     "`NCCL_ALGO=Rings`, `NCCL_ALGO=allreduce:tree`"),
    CatalogRule(name="retired", check=_retired, level=Level.NOTE, checks_deployed=True,
                finds="a variable that NCCL does not read any more, or reads under another name"),
    CatalogRule(name="unknown-flag", check=_unknown, checks_deployed=True, needs_release=True,
                finds="a flag that the release does not accept; a note if no release is named"),
)  # fmt: skip
