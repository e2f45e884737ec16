"""Channels: variables whose value is a list of flags for a library. A profile appends to them.

XLA_FLAGS has rules of its own (see `profile`). Every other variable from which a library reads
flags has an entry in `CHANNELS`: the flags that only this library reads, the variables that make it
print what it read, and the pattern of those log lines. A new library needs an entry and no code.
The text of a profile is appended to the deployed one, the last value of a flag wins, and each flag
is checked by itself. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

DUMP_FOLDER = "xla_dump"  # the folder for `--xla_dump_to`, inside an attempt's folder

# parts of a step's time that settings act on: kinds of collectives, and others
COLLECTIVES = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")
PARTS = (*COLLECTIVES, "communication", "compute", "copies", "idle")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options that XLA wrote into its own dump.

    Attributes:
        values: name -> value; the values of a list are joined by commas.
        is_whole: whether options at their default are included.
    """

    values: Mapping[str, str]
    is_whole: bool = False


class Channel(msgspec.Struct, frozen=True, kw_only=True):
    """A variable from which a library reads flags.

    Attributes:
        reader: the name of the library.
        vendor: the maker of the library's devices; the catalog tries these flags on such devices.
        devices: pattern of the names of its devices, ignoring case.
        prefixes: beginnings of flags that only this library reads; `profile()` moves such flags
            from XLA_FLAGS into this variable.
        names: further flags that only this library reads.
        excluded: flags with one of the prefixes that XLA itself reads.
        negates: whether `--noflag` means `--flag=false`, as for flags of Abseil.
        logging_env: variables that make the library print the flags that it read.
        log_pattern: pattern of a log line with a flag that it read, in the group `flag`; "" if it
            prints none.
        at_start: pattern of flags that the library reads once, when it starts. The others are
            options of each compilation, so profiles with them may take turns in one process.
    """

    reader: str
    vendor: str = ""
    devices: str = ""
    prefixes: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()
    excluded: frozenset[str] = frozenset()
    negates: bool = False
    logging_env: Mapping[str, str] = msgspec.field(default_factory=dict)
    log_pattern: str = ""
    at_start: str = ".*"

    def owns(self, flag: str) -> bool:
        """Return whether only this library reads a flag, given without dashes; `noflag` counts."""
        bare = flag.removeprefix("no") if self.negates else flag
        return bare in self.names or (bare.startswith(self.prefixes) and bare not in self.excluded)

    def is_option(self, flag: str) -> bool:
        """Return whether a flag, given without dashes, is an option of each compilation."""
        return self.owns(flag) and not re.fullmatch(self.at_start, flag)


LIBTPU = "LIBTPU_INIT_ARGS"
CHANNELS: dict[str, Channel] = {
    # Abseil flags of libtpu 0.0.11 to 0.0.52; XLA aborts if one of them is in XLA_FLAGS.
    LIBTPU: Channel(
        reader="libtpu",
        vendor="google",
        # names in JAX and Cloud TPU:  TPU v5 lite   v5e   v6e-8   v5e:2x4   ct5lp-hightpu-4t
        devices=r".*tpu.*|trillium|ironwood|v\d(?!\d)[a-z -]*(-\d+|:\d+(x\d+)+)?",
        prefixes=("xla_tpu_", "xla_jf_", "xla_sc_", "xla_msa_", "xla_mosaic_", "xla_lhs_",
                  "xla_enable_async_", "xla_should_", "megascale_", "xla_max_", "xla_sparse_core_",
                  "xla_latency_hiding_scheduler_", "xla_hlo_scheduling_brkga_", "xla_vf_",
                  "xla_gf_", "xla_zf_", "xla_pf_"),
        names=frozenset({
            "xla_memory_scheduler", "vmodule", "2a886c8_chip_config_name",
            "xla_all_gather_latency_bound_threshold_in_bytes",
            "xla_all_reduce_latency_bound_threshold_in_bytes",
        }),
        excluded=frozenset({"xla_tpu_detect_inf", "xla_tpu_detect_nan"}),
        negates=True,
        logging_env={"TPU_STDERR_LOG_LEVEL": "0", "TPU_MIN_LOG_LEVEL": "0"},
        # I1123 09:40:31.596484   25377 m.cc:912] argv[17]: '--xla_tpu_dot_dot_fusion=false'
        log_pattern=r"\bargv\[\d+\]: '--?(?P<flag>[^']+)'",
        # libtpu 0.0.40, 0.0.42.1 and 0.0.52 take all other flags as options; `tox -e libtpu` tries
        # each name that occurs in the library
        at_start=(
            r"(?!xla).*|xla_(sc|sparse_core)_.*|xla_jf_(exit|internal|lsra|memory_allocator)_.*"
            r"|.*_(impure|dump|log|logs|logging|logfile|print|debug|test|sdc|autotune|profile"
            r"|diagnostic|llo|verify|verifier|hlo_module)(_.*)?"
            r"|xla_tpu_(always|buffer|cmem|compiler|explicit|force_non|instructions|perturb|region"
            r"|reserve|show|sparse_core_mismatch)_.*"
            r"|xla_tpu_(enable_lem_scheduler|layout_preference_policy|override_vmem_size_kib"
            r"|memory_bound_loop_optimizer_options|prefer_slice_with_dynamic_bounds"
            r"|(msa_sort_order|preferred_prefetch)_overrides|sparse_dense_matmul_fdo_config)"
        ),
    ),
}  # fmt: skip

# a flag:  --xla_tpu_dot_dot_fusion=false   -O1   --auto-cast
_NAME = re.compile(r"--?(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*)(?:=(?P<value>.*))?", re.DOTALL)


def channel_of(flag: str) -> str:
    """Return the variable of the library that alone reads a flag; "" for a flag of XLA_FLAGS."""
    return next((name for name, channel in CHANNELS.items() if channel.owns(flag)), "")


def flags_in(variable: str, text: str) -> dict[str, str]:
    """Return flag -> its last value in a channel's text; "true" for a bare flag.

    A word without a dash is the value of the bare flag before it: `--auto-cast none`.
    """
    channel = CHANNELS[variable]
    flags: dict[str, str] = {}
    open_name = ""  # the flag that may take the next word as its value
    for word in text.split():
        match = _NAME.fullmatch(word)
        if match is None:
            if open_name:
                flags[open_name] = word
                open_name = ""
            continue
        name, value = match["name"], match["value"]
        bare = name.removeprefix("no")
        if channel.negates and value is None and bare != name and channel.owns(bare):
            name, value = bare, "false"
        open_name = name if value is None else ""
        flags.pop(name, None)
        flags[name] = "true" if value is None else value
    return flags


def complaint(variable: str, text: str) -> str:
    """Return why a library would not read a channel's text as it is written; "" if it would."""
    is_after_bare_flag = False  # then the word may be that flag's value
    for word in text.split():
        flag = _NAME.fullmatch(word)
        if flag is None and not (is_after_bare_flag and "=" not in word):
            return f"{variable}: {word!r} has no dashes, so it is no flag and is ignored"
        is_after_bare_flag = flag is not None and flag["value"] is None
        if "=" in word and word.partition("=")[2][:1] in ("'", '"'):
            return f"{variable}: no shell reads {word!r}, so its quotes are part of the value"
    return ""


def appended(deployed: str, text: str) -> str:
    """Return the text of a channel: the deployed text unchanged, then the profile's."""
    return " ".join(filter(None, (deployed.strip(), text.strip())))


def on_top(below: Mapping[str, str], above: Mapping[str, str]) -> dict[str, str]:
    """Return `below` with `above` on top: channels are appended, other variables replaced."""
    merged = {**below, **above}
    for name in CHANNELS.keys() & below.keys() & above.keys():
        merged[name] = appended(below[name], above[name])
    return merged


def settings_in(env: Mapping[str, str], kind: str) -> dict[tuple[str, str], str]:
    """Return the settings in variables: (`kind`, name) -> value; (channel, flag) -> value."""
    settings: dict[tuple[str, str], str] = {}
    for name, value in env.items():
        if name in CHANNELS:
            settings |= {
                (name, flag): flag_value for flag, flag_value in flags_in(name, value).items()
            }
        else:
            settings[kind, name] = value
    return settings


def normalized(env: Mapping[str, str]) -> dict[str, str]:
    """Return variables in a form in which the order and repeats of flags make no difference."""
    result = dict(env)
    for name in CHANNELS.keys() & env.keys():
        flags = sorted(flags_in(name, env[name]).items())
        result[name] = "\n".join(f"{flag}={value}" for flag, value in flags)
    return result


def with_flag(text: str, flag: str, value: str) -> str:
    """Return a channel's text with another value of one flag."""
    kept = [word for word in text.split() if word.lstrip("-").partition("=")[0] != flag]
    return " ".join((*kept, f"--{flag}={value}"))


def flags_read(text: str) -> Iterator[tuple[str, str]]:
    """Yield flag and value if a log line says that a library read a flag."""
    for name, channel in CHANNELS.items():
        if channel.log_pattern and (match := re.search(channel.log_pattern, text)):
            yield from flags_in(name, f"--{match['flag']}").items()


def logging_env(variables: Iterable[str]) -> dict[str, str]:
    """Return the variables that make the libraries of these channels print what they read."""
    names = set(variables)
    logging: dict[str, str] = {}
    for name, channel in CHANNELS.items():
        logging |= channel.logging_env if name in names else {}
    return logging
