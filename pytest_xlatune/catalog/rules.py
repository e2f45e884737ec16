"""Named rules that find the faults of a profile's settings before anything runs.

A rule examines what a profile sets, on top of the deployed settings, and objects in one sentence: a
partner is missing, another flag overrides a flag, or the value is the default already. A setting
that would measure nothing, or something wrong, is a fault, but a profile whose id begins with
`control` is *meant* to do nothing. The module `effect` asks the target's XLA for all that only XLA
knows. No rule guesses: if a fact is unknown, the rule says nothing. The facts come from the source
of XLA, and from the HLO of programs that were compiled with and without a flag.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from pytest_xlatune.catalog.context import (
    CONTROL,
    DECOMPOSER,
    P2P,
    Case,
    CatalogRule,
    Context,
    Level,
    Objection,
    is_control,
    no_algorithm,
    out_of_effect,
    variables_out_of_effect,
    vendor_of,
)
from pytest_xlatune.catalog.entries import (
    Status,
    flags_of,
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
    on_top,
    settings_in,
)
from pytest_xlatune.model.profile import ALIASES, APPENDING, BASELINE_ID, PGLE, Profile
from pytest_xlatune.model.profile import effective_values as values_of
from pytest_xlatune.model.text import is_number, same_value, whole

_OPT_LEVEL = "xla_gpu_experimental_pipeline_parallelism_opt_level"
_LHS = "xla_gpu_enable_latency_hiding_scheduler"
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
    old = bool(case.context.jaxlib) and release(case.context.jaxlib) < (0, 6)
    is_off = case.after.get(_OPT_LEVEL, "DISABLE").endswith("DISABLE")
    takes_none = DECOMPOSER not in case.after and is_off
    # programs compiled with jaxlib 0.8.3 and 0.12.0 show that either flag alone changes nothing
    if DECOMPOSER in case.asked and not case.is_on(P2P) and not old:
        yield f"--{DECOMPOSER} does nothing without --{P2P}=true"
    if P2P in case.asked and case.is_on(P2P) and takes_none:
        yield f"--{P2P} does nothing without --{DECOMPOSER}: by default it takes no permute"
    if _EARLY in case.asked and case.is_on(_EARLY) and case.number(_OVERLAP, 1) == 1:
        yield f"--{_EARLY} does nothing without --{_OVERLAP} above 1"
    if _STREAMS in case.asked and not {_WINDOW_MIB, _WINDOW_BYTES} & case.after.keys():
        yield f"--{_STREAMS} does nothing without --{_WINDOW_MIB} or --{_WINDOW_BYTES}"


def _latency_hiding(case: Case) -> Iterator[str]:
    needs = [
        flag
        for flag, neutral in ((_OVERLAP, "1"), (_SCALE_UP, "1"), (_EARLY, "false"))
        if flag in case.asked and not same_value(case.asked[flag], neutral)
    ]
    why = _why_no_latency_hiding(case) if needs else ""
    if why:
        yield f"--{needs[0]} needs the latency hiding scheduler: {why}; add --{_LHS}=true"


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
    if jaxlib and release(jaxlib) < (0, 7):
        return f"jaxlib {jaxlib} has it off"
    if device.startswith("gfx94") or (
        device.startswith("gfx") and jaxlib and release(jaxlib) < (0, 12)
    ):
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
    """Return whether every setting is deployed already or is the default, judged by its text."""
    probed, before = history(), values_of(context.deployed)
    if not (profile.flags or profile.env) or profile.overrides:
        return False
    for name, value in values_of(profile.flags).items():
        known = before.get(name)
        if known is None and ALIASES.get(name, name) not in {ALIASES.get(n, n) for n in before}:
            known = probed.default(name, context.jaxlib)
        if name in APPENDING or known is None:
            return False
        if not same_value(value, known, kind=probed.kind(name)):
            return False
    is_known = context.knows_env and context.is_complete
    unset = nccl_defaults(vendor_of(context.device)) if is_known else {}
    return settings_in(profile.env, "").items() <= settings_in(unset | context.env, "").items()


def _no_op(case: Case) -> Iterator[str]:
    jaxlib, device = case.context.jaxlib, case.context.device.lower()
    has_it = device.startswith(("sm_9", "sm_10", "sm_12")) and jaxlib and release(jaxlib) >= (0, 7)
    if has_it and not case.profile.env and values_of(case.profile.flags) == {_LHS: "true"}:
        yield f"jaxlib {jaxlib} has the latency hiding scheduler on by itself on {device}"
    # published single runs of such settings differ from their baseline by -5.3 to +1.8 %
    if is_idle(case.profile, case.context):
        yield (
            "every setting is deployed already, or the default: a run of it measures noise. Call "
            f"it {CONTROL}-... to keep it as the A/A control"
        )


def _program(case: Case) -> Iterator[str]:
    if case.context.program is not None:
        yield from out_of_effect(case.asked, case.after, case.context.program)
        yield from variables_out_of_effect(case.profile.env, case.context.program)


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
    of_deployed = [rule for rule in RULES if rule.of_deployed]
    twins = {objection.profile: objection for objection in _twins(profiles)}
    of_profiles = (
        objection
        for profile in profiles
        for objection in (*objections(profile, context), *filter(None, [twins.get(profile.id)]))
    )
    return (*objections(deployed, bare, of_deployed), *of_profiles)


def why_not(profile: Profile, context: Context) -> str:
    """Return why a derived profile is not worth a trial; "" if no rule objects.

    A fault keeps it from running, as it does a declared profile. A profile that is deployed anyway
    does not run either, because no user asked for it, unless env files on the nodes may differ. A
    flag that does nothing to the deployed program may act together with another flag or key, which
    makes another program, so only single flags and variables are compared with that program.
    """
    if len(values_of(profile.flags)) > 1 or profile.overrides:
        context = replace(context, program=None)
    reasons = (
        objection.text
        for objection in objections(profile, context)
        if objection.level is Level.FAULT or (objection.rule == "no-op" and context.is_complete)
    )
    return next(reasons, "")


def objections(
    profile: Profile, context: Context, rules: Sequence[CatalogRule] | None = None
) -> Iterator[Objection]:
    """Yield the objections of rules to one profile; `rules` of None are all rules."""
    asked = values_of(profile.flags)
    case = Case(
        profile=profile,
        context=context,
        asked=asked,
        after=values_of((*context.deployed, *profile.flags)),
        env=on_top(context.env, profile.env),
    )
    for rule in RULES if rules is None else rules:
        if rule.is_idle and is_control(profile):
            continue
        is_note = (rule.is_idle and not context.is_complete) or (
            rule.of_release and not context.jaxlib
        )
        level = Level.NOTE if is_note else rule.level
        for text in rule.check(case):
            yield Objection(rule=rule.name, level=level, profile=profile.id, text=text)


def _blocked(case: Case) -> Iterator[str]:
    for name, value in case.asked.items():
        for entry in load().find(name):
            hits = not entry.blocked or any(same_value(value, blocked) for blocked in entry.blocked)
            # an inflation factor of 0 leaves out the collectives, and a profile would win by that
            if entry.status is Status.BLOCKED and hits:
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
                    f"--{name} stands in {variable}, but XLA_FLAGS is where it is read; "
                    f"{CHANNELS[variable].reader} refuses it"
                )


_SLICES, _MEETING, _OWN = (
    f"MEGASCALE_{suffix}" for suffix in ("NUM_SLICES", "COORDINATOR_ADDRESS", "SLICE_ID")
)


def _slices(case: Case) -> Iterator[str]:
    """Yield why the slices of a TPU job do not meet (jax/_src/clusters/cloud_tpu_cluster.py)."""
    if not {_SLICES, _MEETING, _OWN} & case.profile.env.keys():
        return
    text = case.env.get(_SLICES, "")
    count = whole(text) if text else 1
    if count is None or count < 1:
        yield f"{_SLICES}={text:.40} ends JAX; expected a number of slices"
        return
    if count > 1 and not case.env.get(_MEETING) and case.context.is_complete:
        yield (
            f"{_SLICES}={count} without {_MEETING}: the processes of a slice wait for those of the "
            "others, which do not know where to meet them. Set it to a host of slice 0"
        )
    if count > 1 and whole(case.env.get(_OWN, "")) is not None:
        yield (
            f"{_OWN}={case.env[_OWN]} is every process's of {count} slices, so that all claim one "
            "slice; let the script on the nodes set it in each"
        )
    if count == 1 and case.env.get(_MEETING):
        yield f"{_MEETING} without {_SLICES} above 1: each slice runs as if it were the only one"


def _plain_integer(case: Case) -> Iterator[str]:
    integers = load().integers
    for name, value in case.profile.env.items():
        size = _SIZE.fullmatch(value)
        named = name.startswith(("NCCL_", "RCCL_"))
        # NCCL_IB_DISABLE=true is 0, so that InfiniBand stays in use
        is_integer = name in integers or (named and name.endswith(("_DISABLE", "_ENABLE")))
        if not value or not (is_integer or (named and size)):
            continue
        # NCCL reads by strtoll(value, 0, 0): no suffix, no error, a word is 0 (src/misc/param.cc)
        begins = _INTEGER.match(value)
        if begins is None:
            yield f"{name}={value} is read as 0; expected a plain integer"
        elif begins.end() != len(value):
            right = f"; write {int(size[1]) << _SHIFT[size[2].lower()]}" if size else ""
            yield f"{name}={value} is read as {begins.group().strip()}, the rest is ignored{right}"


def _type_of(flag: str) -> tuple[str, dict[str, Any]]:
    """Return the type of a flag, and what is known of it: see `values.toml`; {} is nothing."""
    kind = values()["kinds"].get(flag) or history().kind(flag)
    return kind, values()["types"].get(kind, {})


def _bad_value(case: Case) -> Iterator[str]:
    """Yield values that XLA refuses for a type."""
    for flag in case.profile.flags:
        kind, known = _type_of(flag.name)
        if flag.value is None:
            # only a switch may have no value; XLA reports any other flag without = as unknown
            if kind == "string" or (known and kind != "bool"):
                yield f"--{flag.name} needs a value; without =... the process aborts on it"
            continue
        if known and not re.fullmatch(known["pattern"], flag.value, re.IGNORECASE):
            yield f"--{flag.name}={flag.value:.40} ends the process; expected {known['expected']}"
        elif history().refuses_word(flag.name, flag.value, case.context.jaxlib):
            words = ", ".join(_shortest(history().flags[flag.name].words))
            yield f"--{flag.name}={flag.value:.40} ends the process; known are {words}"
        elif "bits" in known and not _fits(flag.value, known["bits"]) and not _wraps(case):
            yield (
                f"--{flag.name}={flag.value:.40} ends the process: it does not fit "
                f"{known['bits']} bits"
            )


def _shortest(words: Sequence[str]) -> list[str]:
    """Return some words of an enumeration, each in one case, and without its prefix."""
    lower = {word.lower(): word for word in words}
    ends = [word for word in lower if not any(o != word and word.endswith(f"_{o}") for o in lower)]
    return [lower[word] for word in ends][:_SHOWN]


_SHOWN = 8


def _fits(value: str, bits: int) -> bool:
    digits = value.strip().lstrip("+-").lstrip("0")
    if len(digits) > 19:  # noqa: PLR2004 - of 2**63; Python refuses thousands of digits
        return False
    number = int(digits or 0) * (-1 if value.strip().startswith("-") else 1)
    return -(1 << (bits - 1)) <= number < 1 << (bits - 1)


def _wraps(case: Case) -> bool:
    jaxlib = case.context.jaxlib
    return bool(jaxlib) and release(jaxlib) < _REFUSES_LARGE


_REFUSES_LARGE = (0, 8)  # jaxlib 0.7.2 takes such a number, 0.8.3 ends the process


def _wrapped(case: Case) -> Iterator[str]:
    for flag in case.profile.flags:
        _, known = _type_of(flag.name)
        bits, value = known.get("bits"), flag.value or ""
        is_whole = bits is not None and re.fullmatch(known["pattern"], value)
        if bits and is_whole and _wraps(case) and not _fits(value, bits):
            yield (
                f"--{flag.name}={value:.40} is read as another number: it does not fit {bits} bits"
            )


def _memory_fraction(case: Case) -> Iterator[str]:
    one, other = _FRACTIONS
    if {one, other} <= case.env.keys() and case.profile.env.keys() & {one, other}:
        yield f"{one} and {other} are both set, which JAX refuses; use the one that is deployed"
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
            right = f"; for {share:g} % write {share / 100:g}" if 1 < share <= 100 else ""  # noqa: PLR2004
            yield f"{name}={text:.40} is a share of the device's memory: above 0, 1 at most{right}"


def _client_variable(case: Case) -> Iterator[str]:
    """Yield values that JAX refuses, or reads in a surprising way (jaxlib/xla_client.py)."""
    of_jax = values()["jax"]
    for name, value in case.profile.env.items():
        if not value:
            continue
        if name == _ALLOCATOR and value.lower() not in of_jax["allocators"]:
            hint = did_you_mean(value.lower(), of_jax["allocators"], cutoff=_NEAR_WORD)
            yield f"{name}={value:.40} ends JAX; known are {', '.join(of_jax['allocators'])}{hint}"
        elif name == _PREALLOCATE and _looks_off(value):
            yield f"{name}={value} is read as true; off is false, False or 0"
        elif name in of_jax["integers"] and not re.fullmatch(r"\s*[-+]?\d+\s*", value):
            yield f"{name}={value:.40} ends JAX; expected a plain integer"
        elif name in history().flags:
            yield f"{name} is a flag of XLA, no variable; write --{name}={value:.40}"
        elif name in of_jax["switches"] and value.lower() not in of_jax["booleans"]:
            yield f"{name}={value:.40} ends JAX; expected true or false"


def _looks_off(value: str) -> bool:
    """Return whether a person means off by a value that JAX reads as on: `off`, `flase`."""
    is_known = value.lower() in ("", "0", "1", "true") or value in ("false", "False")
    return value in values()["jax"]["looks_off"] or (
        not is_known and bool(nearest(value.lower(), ("false",), cutoff=_NEAR_WORD))
    )


_ALLOCATOR, _PREALLOCATE = "XLA_PYTHON_CLIENT_ALLOCATOR", "XLA_PYTHON_CLIENT_PREALLOCATE"


def _library_value(case: Case) -> Iterator[str]:
    """Yield values that NCCL misreads or ignores (src/graph/tuning.cc, topo.cc, debug.cc)."""
    ranges, multiples = values()["ranges"], values()["multiples"]
    for name, value in case.profile.env.items():
        words, text = values()["words"].get(name), value.strip()
        if words is not None and text:
            # NCCL_ALGO=allreduce:ring,tree;allgather:ring     NCCL_PROTO=^LL128
            listed = re.split("[;,]", re.sub(r"\w+:", "", text).replace("^", ""))
            known = {word.lower() for word in words} | {""}
            odd = [word for word in listed if word.strip().lower() not in known]
            if odd and whole(text) is None:
                hint = did_you_mean(odd[0], words, cutoff=_NEAR_WORD)
                yield (
                    f"{name}={value:.40}: NCCL knows no {odd[0]:.40}; known are "
                    f"{', '.join(words)}{hint}"
                )
        if name == _ALGO and (without := _without_algorithm(text)):
            yield (
                f"{name}={value:.40} names none for {', '.join(without)}: from NCCL 2.31 on these "
                f"have no algorithm left; begin with those of all, {name}=ring,tree;{text:.40}"
            )
        number = whole(text)
        if name in ranges and number is not None and number != _UNSET:
            low, high = ranges[name]
            if not low <= number <= high:
                yield f"{name}={value:.40} is outside of {low} to {high}{_hint_of_level(name)}"
            elif number % multiples.get(name, 1):
                yield f"{name}={value:.40} is no multiple of {multiples[name]}"
        elif name in ranges and words is None and text and number is None and "$" not in text:
            low, high = ranges[name]
            yield f"{name}={value:.40} is no number; NCCL takes {low} to {high}"


def _without_algorithm(text: str) -> list[str]:
    """Return the collectives for which NCCL_ALGO names no algorithm; [] if it names some for all.

    The first list may have no prefix, and is then for all (src/graph/tuning.cc, parseList).
    """
    # allreduce:tree      ring,tree;allreduce:tree
    prefixes = [part.rpartition(":")[0].strip().lower() for part in text.split(";")]
    return (
        []
        if "" in prefixes
        else [collective for collective in _COLLECTIVES if collective not in prefixes]
    )


def _hint_of_level(name: str) -> str:
    # a greater number than that of the last, old level is read as SYS
    return "; write LOC, PIX, PXB, PHB or SYS" if name in _LEVELS else ""


_UNSET = -2  # how NCCL represents a number that is not set
_COLLECTIVES = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
_LEVELS = ("NCCL_NET_GDR_LEVEL", "NCCL_P2P_LEVEL")


def _contradiction(case: Case) -> Iterator[str]:
    """Yield contradictions between variables, which NCCL does not report."""
    set_by_profile = case.profile.env.keys()
    for switch in (
        switch for switch in switches() if switch.name in case.env and switch.acts(case.env)
    ):
        idle = [name for name in case.env if case.env[name] and re.fullmatch(switch.idle, name)]
        set_to = f"{switch.name}={case.env[switch.name]}"
        if idle and set_by_profile & {switch.name, *idle}:
            verb = "does" if len(idle) == 1 else "do"
            yield f"{', '.join(idle)} {verb} nothing with {set_to}"
        words = case.env.get(_ALGO, "").lower().split(",")
        if set_by_profile & {switch.name, _ALGO} and {*words} <= {*switch.algorithms}:
            yield f"{_ALGO}={case.env[_ALGO]} leaves no algorithm with {set_to}"
    for low, high in _PAIRS:
        least, most = whole(case.env.get(low, "")), whole(case.env.get(high, ""))
        if set_by_profile & {low, high} and least is not None and most is not None and least > most:
            yield f"{low}={least} is above {high}={most}"
    yield from _against(case)


def _against(case: Case) -> Iterator[str]:
    """Yield contradictions of variables that are not in the table of switches."""
    set_by_profile, env = case.profile.env.keys(), case.env
    is_off = (whole(env.get("NCCL_IB_DISABLE", "")) or 0) > 0
    if (
        is_off
        and set_by_profile & {"NCCL_IB_DISABLE", "NCCL_NET"}
        and env.get("NCCL_NET", "").lower() == "ib"
    ):
        yield "NCCL_NET=IB finds no network with NCCL_IB_DISABLE=1"
    threads, sockets = (whole(env.get(name, "")) or 0 for name in _SOCKETS)
    if set_by_profile & {*_SOCKETS} and threads * sockets > _MOST_SOCKETS:
        yield (
            f"{_SOCKETS[0]}={threads} times {_SOCKETS[1]}={sockets} is {threads * sockets}, and "
            f"NCCL takes {_MOST_SOCKETS} at most"
        )
    shares = [name for name in _FRACTIONS if env.get(name)]
    if (
        set_by_profile & {_ALLOCATOR, *shares}
        and shares
        and env.get(_ALLOCATOR, "").lower() == "platform"
    ):
        yield f"{shares[0]} does nothing with {_ALLOCATOR}=platform, which takes memory as asked"


_SOCKETS = ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD")
_MOST_SOCKETS = 64


_ALGO = "NCCL_ALGO"
_PAIRS = tuple(
    (f"NCCL_MIN_{suffix}", f"NCCL_MAX_{suffix}")
    for suffix in ("NCHANNELS", "CTAS", "P2P_NCHANNELS", "NRINGS")
)


def _retired(case: Case) -> Iterator[str]:
    for name in case.profile.env:
        if name in retired():
            yield f"{name}: {retired()[name]}"


def _second_name(case: Case) -> Iterator[str]:
    names = {flag.name for flag in case.profile.flags}
    for old, new in ALIASES.items():
        if {old, new} <= names:
            yield f"--{old} and --{new} write one option: the last of either wins"


def _adds_up(case: Case) -> Iterator[str]:
    before = values_of(case.context.deployed)
    for name, value in case.asked.items():
        if name not in APPENDING:
            continue
        if not value:
            yield (
                f"--{name}= restores nothing: XLA adds an empty entry. Take the deployed one out "
                "of XLA_FLAGS instead"
            )
        elif name in before:
            yield f"--{name}={value} is added to the deployed {before[name]}, not in its place"


def _unknown(case: Case) -> Iterator[str]:
    jaxlib, probed = case.context.jaxlib, history()
    for name in case.asked:
        if channel_of(name):
            continue  # the rule about the wrong variable says more
        # flags come and go: one in the recipes of MaxText aborts before jaxlib 0.11.2
        accepted = probed.is_accepted(name, jaxlib) if jaxlib else None
        if accepted is False or (not jaxlib and name not in probed.flags):
            gone = [entry for entry in load().find(name) if entry.status is Status.GONE]
            hint = f": {gone[0].mechanism}" if gone else ""
            if name in names_of("variables"):
                hint = hint or f"; it is a variable, as in env={{{name!r}: ...}}"
            elif name not in probed.flags:
                hint = hint or did_you_mean(name, probed.flags, dashes="--")
            yield f"--{name} is {probed.when(name)}{hint}"


_NEAR = 0.88  # the least similarity: one wrong letter in ten
_NEAR_WORD = 0.7  # the same for a short word: two wrong letters


def did_you_mean(
    name: str, known: Iterable[str], *, dashes: str = "", cutoff: float = _NEAR
) -> str:
    """Return `; did you mean ...?` for the nearest of known names; "" if none is near."""
    near = nearest(name, known, cutoff=cutoff)
    return f"; did you mean {dashes}{near}?" if near else ""


def nearest(name: str, known: Iterable[str], *, cutoff: float = _NEAR) -> str:
    """Return the one of known names that was probably meant; "" if none is near."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)), "")


def _near_miss(case: Case) -> Iterator[str]:
    for kind, asked, word in (
        ("variables", case.profile.env, "variable"),
        ("keys", case.profile.overrides, "key"),
    ):
        # `remat_polcy=full` once passed plan and lint without a word
        known = names_of(kind)
        for name in asked:
            hint = "" if name in known else did_you_mean(name, known)
            if hint:
                yield f"{name} is no {word} known here{hint}"
    for variable in CHANNELS.keys() & case.profile.env.keys():
        channel, listed = CHANNELS[variable], flags_of(variable)
        for name in flags_in(variable, case.profile.env[variable]) if listed else ():
            hint = "" if name in listed else did_you_mean(name, listed, dashes="--")
            # the list is not complete, so that one that only looks like the library's may be right
            if hint or not (channel.owns(name) or name in history().flags):
                yield f"--{name} is no flag of {channel.reader} known here{hint}"


def _twins(profiles: Sequence[Profile]) -> Iterator[Objection]:
    """Object to the second of two profiles with equal settings in any order and spelling."""
    groups: dict[object, list[tuple[Profile, Mapping[str, str]]]] = {}
    for profile in profiles:
        if profile.is_baseline:
            continue
        flags = {ALIASES.get(name, name): value for name, value in values_of(profile.flags).items()}
        names = (frozenset(flags), tuple(sorted(settings_in(profile.env, "").items())),
                 tuple(sorted(profile.overrides.items())))  # fmt: skip
        groups.setdefault(names, []).append((profile, flags))
    for group in groups.values():
        # numbers are compared first, because 2,000 thresholds took 8 s pair by pair
        plain = [n for n in sorted(group[0][1]) if all(is_number(theirs[n]) for _, theirs in group)]
        seen: dict[object, list[tuple[Profile, Mapping[str, str]]]] = {}
        for profile, mine in group:
            alike = seen.setdefault(tuple(float(mine[name]) for name in plain), [])
            first = next((one for one, theirs in alike if _same(theirs, mine)), None)
            if first is None:
                alike.append((profile, mine))
            elif not is_control(profile):
                text = f"the same settings as {first.id}: one is measured twice"
                yield Objection(rule="twin", level=Level.NOTE, profile=profile.id, text=text)


def _same(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    kind = history().kind
    return all(same_value(one[name], other[name], kind=kind(name)) for name in other)


def _aborts(case: Case) -> Iterator[str]:
    shape = case.context.program
    if shape is not None:
        yield from no_algorithm(case.profile.env, shape)
    # compilers of jaxlib 0.8.3 and 0.12 die on a cyclic permute that is taken apart
    both = {P2P, DECOMPOSER}
    takes = case.is_on(P2P) and DECOMPOSER in case.after and both & case.asked.keys()
    if shape is not None and shape.has_cycle and takes:
        yield f"--{P2P} makes the compiler abort on this program: its permutes form a cycle"


RULES: tuple[CatalogRule, ...] = (
    CatalogRule(name="blocked", check=_blocked, of_deployed=True,
                says="a flag that makes results wrong, or every compilation crash"),
    CatalogRule(name="tpu-flag", check=_other_channel, of_deployed=True,
                says="a flag of libtpu in XLA_FLAGS, where the process aborts on it"),
    CatalogRule(name="gpu-flag", check=_gpu_flag, level=Level.NOTE, is_idle=True,
                says="a flag of GPUs where the device is a TPU or the CPU"),
    CatalogRule(name="channel", check=_channel, of_deployed=True,
                says="quotes, a stray first word or a flag of XLA_FLAGS in LIBTPU_INIT_ARGS"),
    CatalogRule(name="slices", check=_slices, of_deployed=True,
                says="several slices of a TPU that do not meet: `MEGASCALE_NUM_SLICES=2` alone"),
    CatalogRule(name="plain-integer", check=_plain_integer, of_deployed=True,
                says="`NCCL_BUFFSIZE=16M`: NCCL reads 16 and says nothing"),
    CatalogRule(name="bad-value", check=_bad_value, of_deployed=True,
                says="a value on which XLA ends the process: `=yes`, `=1e9`, none, too large"),
    CatalogRule(name="wrapped", check=_wrapped, of_deployed=True,
                says="a number that is too large, where jaxlib before 0.8 takes its lowest bits"),
    CatalogRule(name="memory-fraction", check=_memory_fraction, of_deployed=True,
                says="both spellings of the memory fraction, no number, or more than the whole"),
    CatalogRule(name="client-variable", check=_client_variable, of_deployed=True,
                says="a value that JAX refuses or misreads: `XLA_PYTHON_CLIENT_PREALLOCATE=off`"),
    CatalogRule(name="aborts", check=_aborts,
                says="send and recv for permutes that form a cycle, or no algorithm left for a "
                     "collective"),
    CatalogRule(name="partner", check=_partner, is_idle=True,
                says="a flag without the flag it needs"),
    CatalogRule(name="latency-hiding", check=_latency_hiding, is_idle=True,
                says="an overlap flag where the latency hiding scheduler is off"),
    CatalogRule(name="overruled", check=_overruled, is_idle=True,
                says="a flag beside another that overrides it"),
    CatalogRule(name="program", check=_program, is_idle=True,
                says="a value that does nothing to the deployed program (`--dump`)"),
    CatalogRule(name="no-op", check=_no_op, level=Level.NOTE, is_idle=True,
                says="every setting is deployed already, or the default of the release"),
    CatalogRule(name="adds-up", check=_adds_up, level=Level.NOTE,
                says="a flag that XLA appends to the deployed one: nothing later undoes it"),
    CatalogRule(name="second-name", check=_second_name, level=Level.NOTE,
                says="two names of one option in one profile"),
    CatalogRule(name="near-miss", check=_near_miss, level=Level.NOTE, of_deployed=True,
                says="a variable, a key or a flag of libtpu that is nearly one that exists: "
                     "`NCCL_MAX_NCHANELS`"),
    CatalogRule(name="contradiction", check=_contradiction, level=Level.NOTE, of_deployed=True,
                says="variables of NCCL that another one switches off, a least above its most"),
    CatalogRule(name="library-value", check=_library_value, level=Level.NOTE, of_deployed=True,
                says="a word or number that NCCL does not take, or algorithms of some "
                     "collectives alone: `NCCL_ALGO=Rings`, `NCCL_ALGO=allreduce:tree`"),
    CatalogRule(name="retired", check=_retired, level=Level.NOTE, of_deployed=True,
                says="a variable that NCCL reads no more, or under another name"),
    CatalogRule(name="unknown-flag", check=_unknown, of_deployed=True, of_release=True,
                says="a flag that the release does not accept; a note where none is named"),
)  # fmt: skip
