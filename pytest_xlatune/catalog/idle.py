"""Settings that would measure nothing: without a partner, overridden, the default already.

Each check yields one sentence for each setting that does nothing on its ground, as far as texts
tell; a fact that is not known makes none. Facts: XLA source, and HLO of programs compiled with and
without the flag.
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_xlatune.catalog.ground import CONTROL, Case, Ground
from pytest_xlatune.catalog.history import history, release
from pytest_xlatune.catalog.program import out_of_effect, variables_out_of_effect
from pytest_xlatune.profiles import ALIASES, APPENDING, Profile
from pytest_xlatune.profiles import effective_values as values_of
from pytest_xlatune.spelling import same_value

P2P = "xla_gpu_enable_pipelined_p2p"
DECOMPOSER = "xla_gpu_collective_permute_decomposer_threshold"
_OPT_LEVEL = "xla_gpu_experimental_pipeline_parallelism_opt_level"
_LHS = "xla_gpu_enable_latency_hiding_scheduler"
_SOL = "xla_gpu_enable_analytical_sol_latency_estimator"
_PGLE = "xla_gpu_pgle_profile_file_or_directory_path"
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


def partner(case: Case) -> Iterator[str]:
    """Yield what does nothing without another flag."""
    old = bool(case.ground.jaxlib) and release(case.ground.jaxlib) < (0, 6)
    takes_none = DECOMPOSER not in case.after and _is_disabled(case.after.get(_OPT_LEVEL))
    if DECOMPOSER in case.asked and not case.is_on(P2P) and not old:
        yield f"--{DECOMPOSER} does nothing without --{P2P}=true"
    if P2P in case.asked and case.is_on(P2P) and takes_none:
        yield f"--{P2P} does nothing without --{DECOMPOSER}: by default it takes no permute"
    if _EARLY in case.asked and case.is_on(_EARLY) and case.number(_OVERLAP, 1) == 1:
        yield f"--{_EARLY} does nothing without --{_OVERLAP} above 1"
    if _STREAMS in case.asked and not {_WINDOW_MIB, _WINDOW_BYTES} & case.after.keys():
        yield f"--{_STREAMS} does nothing without --{_WINDOW_MIB} or --{_WINDOW_BYTES}"


def _is_disabled(level: str | None) -> bool:
    return level is None or level.endswith("DISABLE")


def latency_hiding(case: Case) -> Iterator[str]:
    """Yield an overlap flag where the latency hiding scheduler is off."""
    needs = [
        flag
        for flag, neutral in ((_OVERLAP, "1"), (_SCALE_UP, "1"), (_EARLY, "false"))
        if flag in case.asked and not same_value(case.asked[flag], neutral)
    ]
    why = _why_no_latency_hiding(case) if needs else ""
    if why:
        yield f"--{needs[0]} needs the latency hiding scheduler: {why}; add --{_LHS}=true"


def _why_no_latency_hiding(case: Case) -> str:
    """Say why the scheduler is off; "" where it is on or nobody knows."""
    jaxlib, device = case.ground.jaxlib, case.ground.device
    if _LHS in case.after:
        return "" if case.is_on(_LHS) else "it is switched off"
    if case.env.get("JAX_OPTIMIZATION_LEVEL", "O0") not in ("O0", "") or _PGLE in case.after:
        return ""
    if _SOL in case.after and not case.is_on(_SOL):
        return f"it is off with --{_SOL}=false"
    if jaxlib and release(jaxlib) < (0, 7):
        return f"jaxlib {jaxlib} has it off"
    if device.startswith("gfx94") or (
        device.startswith("gfx") and jaxlib and release(jaxlib) < (0, 12)
    ):
        return f"it is off on {device} with jaxlib {jaxlib or 'of any release'}"
    return ""


def overruled(case: Case) -> Iterator[str]:
    """Yield a flag beside another that overrides it."""
    if _DOUBLE in case.asked and _UNROLL in case.after:
        value = case.after[_UNROLL]
        if not value.endswith("AUTO_UNROLL"):
            yield f"--{_DOUBLE} does nothing beside --{_UNROLL}={value}, which overrides it"
    if _WINDOW_MIB in case.asked and case.number(_WINDOW_BYTES, -1) >= 0:
        yield f"--{_WINDOW_MIB} does nothing beside --{_WINDOW_BYTES}, which overrides it"


def is_idle(profile: Profile, ground: Ground) -> bool:
    """Return whether every setting is what is deployed, or the default, as far as texts tell."""
    probed, before = history(), values_of(ground.deployed)
    if not (profile.flags or profile.env) or profile.overrides:
        return False
    for name, value in values_of(profile.flags).items():
        known = before.get(name)
        if known is None and ALIASES.get(name, name) not in {ALIASES.get(n, n) for n in before}:
            known = probed.default(name, ground.jaxlib) if ground.jaxlib else _only(name)
        if name in APPENDING or known is None:
            return False
        if not same_value(value, known, kind=probed.kind(name)):
            return False
    return all(ground.env.get(name) == value for name, value in profile.env.items())


def _only(name: str) -> str | None:
    """Return a flag's default where no release had another."""
    known = history().defaults(name)
    return next(iter(known)) if len(known) == 1 else None


def no_op(case: Case) -> Iterator[str]:
    """Yield a sentence where every setting is deployed, or the default."""
    jaxlib, device = case.ground.jaxlib, case.ground.device
    has_it = device.startswith(("sm_9", "sm_10", "sm_12")) and jaxlib and release(jaxlib) >= (0, 7)
    if has_it and not case.profile.env and values_of(case.profile.flags) == {_LHS: "true"}:
        yield f"jaxlib {jaxlib} has the latency hiding scheduler on by itself on {device}"
    if is_idle(case.profile, case.ground):
        yield (
            "every setting is deployed already, or the default: a run of it measures noise. Call "
            f"it {CONTROL}-... to keep it as the A/A control"
        )


def program(case: Case) -> Iterator[str]:
    """Yield what does nothing to the deployed program."""
    if case.ground.program is not None:
        yield from out_of_effect(case.asked, case.after, case.ground.program)
        yield from variables_out_of_effect(case.profile.env, case.ground.program)
