"""Named rules over the settings of a profile: its faults, before anything runs.

A rule looks at what a profile sets, on top of the deployed settings, and objects in one sentence: a
partner is missing, another flag overrides it, it is the default already. What would measure
nothing, or something wrong, is a fault; a profile whose id begins with `control` is *meant* to do
nothing. What only the target's own XLA can say is asked elsewhere (`effect`). No rule guesses:
where a fact is not known it is silent. Facts: XLA source, and HLO of programs compiled with and
without the flag.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

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
from pytest_xlatune.catalog.entries import Status, history, load, names_of, nccl_defaults, release
from pytest_xlatune.model.channels import (
    CHANNELS,
    channel_of,
    complaint,
    flags_in,
    on_top,
    settings_in,
)
from pytest_xlatune.model.profile import ALIASES, APPENDING, BASELINE_ID, Profile
from pytest_xlatune.model.profile import effective_values as values_of
from pytest_xlatune.model.text import same_value

_OPT_LEVEL = "xla_gpu_experimental_pipeline_parallelism_opt_level"
_LHS = "xla_gpu_enable_latency_hiding_scheduler"
_SOL = "xla_gpu_enable_analytical_sol_latency_estimator"
PGLE = "xla_gpu_pgle_profile_file_or_directory_path"
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
    # either of the two alone leaves the program as it is, by compiling it (jaxlib 0.8.3, 0.12.0)
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
    """Say why the scheduler is off; "" where it is on, or where that is unknown."""
    jaxlib, device = case.context.jaxlib, case.context.device
    if _LHS in case.after:
        return "" if case.is_on(_LHS) else "it is switched off"
    if case.env.get("JAX_OPTIMIZATION_LEVEL", "O0") not in ("O0", "") or PGLE in case.after:
        return ""
    if _SOL in case.after and not case.is_on(_SOL):
        return f"it is off with --{_SOL}=false"
    # what switches it on by itself came with 0.7.2 for Hopper and Blackwell, with 0.12 for gfx950
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
    """Return whether every setting is deployed already, or the default, as far as texts tell."""
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
    jaxlib, device = case.context.jaxlib, case.context.device
    has_it = device.startswith(("sm_9", "sm_10", "sm_12")) and jaxlib and release(jaxlib) >= (0, 7)
    if has_it and not case.profile.env and values_of(case.profile.flags) == {_LHS: "true"}:
        yield f"jaxlib {jaxlib} has the latency hiding scheduler on by itself on {device}"
    # published single runs of such settings lie between -5.3 and +1.8 % of their baseline
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
    """Return every objection: those to the deployed settings first, then in the profiles' order."""
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
    twins = {each.profile: each for each in _twins(profiles)}
    own = (
        found
        for each in profiles
        for found in (*objections(each, context), *filter(None, [twins.get(each.id)]))
    )
    return (*objections(deployed, bare, of_deployed), *own)


def why_not(profile: Profile, context: Context) -> str:
    """Return why a derived profile is not worth a trial; "" where nothing says so.

    What a rule calls a fault keeps it from running, as it would a declared one. So does a profile
    that is deployed anyway, since no user asked for it; env files on the nodes may change that.
    What does nothing to the deployed program may act beside another flag or key, which makes
    another program: that is asked of single flags and of variables alone.
    """
    if len(values_of(profile.flags)) > 1 or profile.overrides:
        context = replace(context, program=None)
    found = (
        each.text
        for each in objections(profile, context)
        if each.level is Level.FAULT or (each.rule == "no-op" and context.is_complete)
    )
    return next(found, "")


def does_nothing(profile: Profile, context: Context) -> str:
    """Return why all of a profile does nothing for certain; "" where that is not known.

    As certain as what the context says is deployed. A flag without its partner counts where it is
    all that the profile sets, for another one beside it may well act.
    """
    if profile.overrides or not context.is_complete:
        return ""
    sole = len(profile.flags) == 1 and not profile.env
    wanted = {"no-op", "partner"} if sole else {"no-op"}
    named = replace(profile, id="asked")  # of a control no rule says that it is idle
    found = (each.text for each in objections(named, context) if each.rule in wanted)
    return next(found, "").partition(": a run of it")[0]


def objections(
    profile: Profile, context: Context, rules: Sequence[CatalogRule] | None = None
) -> Iterator[Objection]:
    """Yield what the rules have against one profile; `rules` None is all of them."""
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
        level = rule.level if context.is_complete or not rule.is_idle else Level.NOTE
        for text in rule.check(case):
            yield Objection(rule=rule.name, level=level, profile=profile.id, text=text)


def _blocked(case: Case) -> Iterator[str]:
    for name, value in case.asked.items():
        for entry in load().find(name):
            hits = not entry.blocked or any(same_value(value, each) for each in entry.blocked)
            # an inflation factor of 0 leaves the collectives out: a profile would win by it
            if entry.status is Status.BLOCKED and hits:
                yield f"--{name} is never set: it {entry.mechanism}"


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


def _plain_integer(case: Case) -> Iterator[str]:
    integers = load().integers()
    for name, value in case.profile.env.items():
        size = _SIZE.fullmatch(value)
        named = name.startswith(("NCCL_", "RCCL_"))
        if not value or not (name in integers or (named and size)):
            continue
        # NCCL reads by strtoll(value, 0, 0): no suffix, no error, a word is 0 (src/misc/param.cc)
        begins = _INTEGER.match(value)
        if begins is None:
            yield f"{name}={value} is read as 0; expected a plain integer"
        elif begins.end() != len(value):
            right = f"; write {int(size[1]) << _SHIFT[size[2].lower()]}" if size else ""
            yield f"{name}={value} is read as {begins.group().strip()}, the rest is ignored{right}"


def _memory_fraction(case: Case) -> Iterator[str]:
    one, other = _FRACTIONS
    if {one, other} <= case.env.keys() and case.profile.env.keys() & {one, other}:
        yield f"{one} and {other} are both set, which JAX refuses; use the one that is deployed"


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
        # names come and go: a flag of MaxText's own recipes aborts before jaxlib 0.11.2
        accepted = probed.is_accepted(name, jaxlib) if jaxlib else None
        if accepted is False or (not jaxlib and name not in probed.flags):
            gone = [each for each in load().find(name) if each.status is Status.GONE]
            hint = f": {gone[0].mechanism}" if gone else ""
            if name not in probed.flags:
                hint = hint or did_you_mean(name, probed.flags, dashes="--")
            yield f"--{name} is {probed.when(name)}{hint}"


def did_you_mean(name: str, known: Iterable[str], *, dashes: str = "") -> str:
    """Return `; did you mean ...?` for the nearest of known names; "" where none is near."""
    near = nearest(name, known)
    return f"; did you mean {dashes}{near}?" if near else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the one of known names that was probably meant; "" where none is near."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=_NEAR)), "")


_NEAR = 0.88  # of 1: one letter wrong in ten


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


def _twins(profiles: Sequence[Profile]) -> Iterator[Objection]:
    """Object to the second of two profiles that set the same, in whatever order and spelling."""
    seen: dict[object, list[Profile]] = {}
    for each in profiles:
        if each.is_baseline:
            continue
        flags = {ALIASES.get(name, name): value for name, value in values_of(each.flags).items()}
        names = (frozenset(flags), tuple(sorted(settings_in(each.env, "").items())),
                 tuple(sorted(each.overrides.items())))  # fmt: skip
        alike = seen.setdefault(names, [])
        first = next((one for one in alike if _same(values_of(one.flags), flags)), None)
        if first is None:
            alike.append(each)
        elif not is_control(each):
            text = f"the same settings as {first.id}: one is measured twice"
            yield Objection(rule="twin", level=Level.NOTE, profile=each.id, text=text)


def _same(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    named = {ALIASES.get(name, name): value for name, value in one.items()}
    kind = history().kind
    return all(same_value(named[name], other[name], kind=kind(name)) for name in other)


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
    CatalogRule(name="channel", check=_channel, of_deployed=True,
                says="quotes, a stray first word or a flag of XLA_FLAGS in LIBTPU_INIT_ARGS"),
    CatalogRule(name="plain-integer", check=_plain_integer, of_deployed=True,
                says="`NCCL_BUFFSIZE=16M`: NCCL reads 16 and says nothing"),
    CatalogRule(name="memory-fraction", check=_memory_fraction, of_deployed=True,
                says="both spellings of the memory fraction, which JAX refuses"),
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
                says="a variable or key that is nearly one that exists: `NCCL_MAX_NCHANELS`"),
    CatalogRule(name="unknown-flag", check=_unknown, level=Level.NOTE, of_deployed=True,
                says="a flag that the release does not accept"),
)  # fmt: skip
