"""What a rule of the catalog gets and returns: a profile in its context, and objections to it.

This module also decides which settings do nothing to a program. For that it needs the shape of the
program: plain numbers, which the reader of XLA's dumps fills in. The sizes are those of the
deployed program, whose collectives may have been combined already, so the module reports only what
is certain in spite of that.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from pytest_xlatune.model.channels import CHANNELS
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import BASELINE_ID, Flags, Profile, parse_flags
from pytest_xlatune.model.record import Record
from pytest_xlatune.model.text import same_value, to_integer

# flag -> the kind of collective that it combines
_THRESHOLD = {
    "xla_gpu_all_gather_combine_threshold_bytes": "all-gather",
    "xla_gpu_reduce_scatter_combine_threshold_bytes": "reduce-scatter",
    "xla_gpu_all_reduce_combine_threshold_bytes": "all-reduce",
    "xla_gpu_collective_permute_combine_threshold_bytes": "collective-permute",
}
# flags that do nothing to a program without a loop
_NEEDS_LOOP = (
    "xla_gpu_enable_while_loop_double_buffering",
    "xla_gpu_enable_pipelined_all_gather",
    "xla_gpu_enable_pipelined_all_reduce",
    "xla_gpu_enable_pipelined_reduce_scatter",
    "xla_gpu_pipeline_all_gather",
    "xla_gpu_pipeline_all_reduce",
    "xla_gpu_pipeline_reduce_scatter",
)
P2P = "xla_gpu_enable_pipelined_p2p"
DECOMPOSER = "xla_gpu_collective_permute_decomposer_threshold"
# flags that do nothing to a program without a collective-permute
_NEEDS_PERMUTE = (
    P2P,
    DECOMPOSER,
    "xla_gpu_experimental_pipeline_parallelism_opt_level",
    "xla_gpu_collective_permute_mode",
)
# the collectives that NCCL makes of sends and receives
_POINT_TO_POINT = frozenset(
    {"collective-permute", "send", "recv", "all-to-all", "ragged-all-to-all"}
)
_UNLISTED = "collective-broadcast"  # the only kind that `result.Shares` never lists


class Shape(Record, frozen=True, kw_only=True):
    """The facts of a program on which the effect of settings depends.

    Attributes:
        groups: kind of collective -> for each computation with such collectives, the sizes of
            their results in bytes; () instead of the computations if the sizes are unknown.
        loops: number of while loops; None if unknown.
        loop_permutes: sizes in bytes of the collective-permutes inside loops; None if unknown.
        has_cycle: whether the source-target pairs of a permute in a loop are known to form a cycle.
    """

    groups: dict[str, tuple[tuple[int, ...], ...]]
    loops: int | None
    loop_permutes: tuple[int, ...] | None = ()
    has_cycle: bool = False

    @classmethod
    def of_kinds(cls, kinds: Iterable[str]) -> Shape:
        """Return the shape of a program of which only the kinds of its collectives are known.

        `kinds` are those of `result.Shares`, which never list a broadcast: the shape assumes one.
        """
        groups: dict[str, tuple[tuple[int, ...], ...]] = dict.fromkeys((*kinds, _UNLISTED), ())
        return cls(groups=groups, loops=None, loop_permutes=None)


def out_of_effect(
    asked: Mapping[str, str], after: Mapping[str, str], shape: Shape
) -> Iterator[str]:
    """Yield a sentence for each flag in `asked` that does nothing to this program.

    Args:
        asked: the flags of the profile.
        after: the deployed flags with those of the profile on top.
        shape: the shape of the deployed program.
    """
    for name, value in asked.items():
        if name in _THRESHOLD:
            why = _threshold(_THRESHOLD[name], value, shape)
        elif name in _NEEDS_LOOP and shape.loops == 0:
            why = "it has no loop (scan_layers=false?)"
        elif name in _NEEDS_PERMUTE and "collective-permute" not in shape.groups:
            why = "it has no collective-permute"
        elif name == DECOMPOSER:
            why = _decomposer(after[name], shape)
        else:
            why = ""
        if why:
            yield f"--{name}={value} does nothing to this program: {why}"


def variables_out_of_effect(env: Mapping[str, str], shape: Shape) -> Iterator[str]:
    """Yield a sentence for each variable of a profile that does nothing to this program."""
    for name, why in idle_variables(env, shape).items():
        yield f"{name} does nothing to this program: {why}"


def idle_variables(env: Mapping[str, str], shape: Shape) -> dict[str, str]:
    """Return a mapping from each variable that does nothing to this program to the reason."""
    reasons: dict[str, str] = {}
    # NCCL reads it only for send, recv and all-to-all between nodes (graph/paths.cc)
    channels = "NCCL_NCHANNELS_PER_NET_PEER"
    if channels in env and not shape.groups.keys() & _POINT_TO_POINT:
        reasons[channels] = "it has no send, recv or all-to-all"
    # a send uses LL up to 16 KiB per channel and Simple above, whatever these say (enqueue.cc)
    for name in ("NCCL_ALGO", "NCCL_PROTO"):
        if name in env and not shape.groups.keys() - _POINT_TO_POINT:
            reasons[name] = "send and recv ignore it"
    return reasons


def no_algorithm(env: Mapping[str, str], shape: Shape) -> Iterator[str]:
    """Yield a sentence if NCCL_ALGO leaves NCCL no algorithm for a collective of the program."""
    # a list of words, or one that is negated with ^, may leave an algorithm, and is not checked
    unsupported = sorted(shape.groups.keys() & {"all-gather", "reduce-scatter"})
    if env.get("NCCL_ALGO", "").lower() == "tree" and unsupported:
        yield (
            f"NCCL_ALGO=Tree: NCCL has no tree for {' and '.join(unsupported)}, which this program "
            "has, and fails; RCCL keeps the ring in silence"
        )


def _threshold(kind: str, value: str, shape: Shape) -> str:
    """Return why a threshold for combining collectives does nothing; "" if it may do something."""
    if kind not in shape.groups:
        return f"it has no {kind}"
    computations, limit = shape.groups[kind], to_integer(value)
    if not computations or limit is None or limit < 0:
        return ""
    largest = max(max(sizes) for sizes in computations)
    sums_of_two = [sum(sorted(sizes)[:2]) for sizes in computations if len(sizes) > 1]
    # A collective above the limit may be a combined one, which the limit would take apart.
    if largest > limit:
        return ""
    if not sums_of_two:
        return f"no computation has two {kind}s to combine"
    if min(sums_of_two) > limit:
        smallest = min(sums_of_two)
        return f"no two {kind}s of one computation fit; the smallest two are {smallest} bytes"
    return ""


def _decomposer(value: str, shape: Shape) -> str:
    """Return why the threshold of `DECOMPOSER` does nothing; "" if it may do something."""
    if shape.loop_permutes is None:
        return ""
    if not shape.loop_permutes:
        return "none of its collective-permutes is in a loop"
    if (to_integer(value) or 0) > max(shape.loop_permutes):
        return f"its largest collective-permute in a loop is {max(shape.loop_permutes)} bytes"
    return ""


def has_cycle(pairs: str) -> bool:
    """Return whether source-target pairs form a cycle.

    `pairs` is the text in HLO, e.g. `{{0,1},{1,2},{2,3},{3,0}}`.
    """
    # one of the pairs:  {0,1}
    matches = re.findall(r"\{(\d{1,9}),(\d{1,9})\}", pairs)
    targets = {int(source): int(target) for source, target in matches}
    for start, first in targets.items():
        visited, device = {start}, first
        while device in targets and device not in visited:
            visited.add(device)
            device = targets[device]
        if device == start:
            return True
    return False


CONTROL = "control"  # the id of a control begins with it


class Level(StrEnum):
    """What follows from an objection."""

    FAULT = "fault"  # nothing is submitted before it is repaired
    NOTE = "note"  # the user is told, and the trials run


class Objection(Record, frozen=True, kw_only=True):
    """What a rule says against a profile.

    Attributes:
        rule: the name of the rule.
        level: what follows.
        profile: the id of the profile; the baseline's if the deployed settings are meant.
        text: the sentence for the user.
    """

    rule: str
    level: Level
    profile: str
    text: str

    def __str__(self) -> str:
        whose = "deployed" if self.profile == BASELINE_ID else f"profile {self.profile}"
        return f"{whose}: {self.text} [{self.rule}]"


class Context(Record, frozen=True, kw_only=True):
    """What profiles are applied to.

    Attributes:
        deployed: the deployed flags, in the order in which they are written.
        env: the deployed environment variables.
        knows_env: whether `env` is known; if not, no variable may be taken to have its default.
        is_complete: whether nothing else is set; if not, env files on the nodes may set more.
        jaxlib: the release of jaxlib on the target; "" if it is unknown.
        device: the architecture of the target, e.g. sm_90, gfx942, v5e, cpu; "" if it is unknown.
        program: the shape of the deployed program; None if it is unknown.

    Raises:
        ConfigError: the device is unknown.
    """

    deployed: Flags = ()
    env: dict[str, str] = msgspec.field(default_factory=dict)
    knows_env: bool = True
    is_complete: bool = True
    jaxlib: str = ""
    device: str = ""
    program: Shape | None = None

    def __post_init__(self) -> None:
        vendor_of(self.device)


GPU_VENDORS = ("nvidia", "amd")
_DEVICES = {
    # sm_90   H100   GB200   A100-SXM4-80GB   NVIDIA H100 80GB HBM3   Tesla V100
    "nvidia": r"sm_?\d+[a-z]?|g?[abhlptv]\d+s?\b.*|.*\b(nvidia|tesla|geforce|quadro|rtx).*",
    # gfx942   MI300X   AMD Instinct MI300X
    "amd": r"gfx\d+[a-z]?|mi\d+.*|.*\b(amd|instinct|radeon)\b.*",
    "cpu": r"cpu\b.*",
}


def vendor_of(device: str) -> str:
    """Return the vendor of a device, `cpu` for a CPU, or "" if `device` is "".

    Raises:
        ConfigError: the device is unknown, so that the settings for it are too.
    """
    channel_patterns = {
        channel.vendor: channel.devices for channel in CHANNELS.values() if channel.devices
    }
    for vendor, names in (channel_patterns | _DEVICES).items():
        if re.fullmatch(names, device, re.IGNORECASE):
            return vendor
    if device:
        raise ConfigError(
            f"unknown device {device!r}; expected an architecture or its name such as sm_90, H100, "
            "gfx942, MI300X, v5e, cpu"
        )
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A profile in its context.

    Attributes:
        profile: the profile.
        context: the deployed settings and the target.
        asked: flag -> value, for the flags of the profile alone.
        after: flag -> value, for the deployed flags with those of the profile on top.
        env: the deployed variables with those of the profile on top.
    """

    profile: Profile
    context: Context
    asked: Mapping[str, str]
    after: Mapping[str, str]
    env: Mapping[str, str]

    def is_on(self, flag: str) -> bool:
        """Return whether `after` turns a flag on; False if it does not set it."""
        return same_value(self.after.get(flag, "false"), "true", kind="bool")

    def number(self, flag: str, default: int) -> int:
        """Return the value of a flag in `after`; the default if it is unset or no whole number."""
        value = to_integer(self.after.get(flag, ""))
        return default if value is None else value


Check = Callable[[Case], Iterator[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogRule:
    """A rule of the catalog.

    Attributes:
        name: the name, which objections show in brackets.
        finds: what the rule finds, as a phrase for the documentation.
        check: yields the text of each objection to a case.
        level: what follows from an objection.
        is_idle: whether its objections say that a setting does nothing. Then it is not applied to
            controls, and its objections are notes if env files that were not read may set more.
        checks_deployed: whether it also checks the deployed settings.
        needs_release: whether its objections depend on the release of jaxlib. If the target's
            release is unknown, they are notes.
    """

    name: str
    finds: str
    check: Check
    level: Level = Level.FAULT
    is_idle: bool = False
    checks_deployed: bool = False
    needs_release: bool = False


def is_control(profile: Profile) -> bool:
    """Return whether a profile is a control, which is meant to do nothing; its id says so."""
    return profile.id.startswith(CONTROL)


# --- flags and variables as a person types them ---------------------------------------------------

TEXT_ID = "text"  # the id of the profile that `text_profile` returns


def text_profile(words: Sequence[str]) -> Profile:
    """Return the profile for the words of a command line: flags, and NAME=value.

    Raises:
        ConfigError: a word is neither, or XLA would stop reading at it.
    """
    flags, env = _flags_and_env(word.strip() for word in words)
    return Profile(id=TEXT_ID, flags=parse_flags(" ".join(flags), where="the text"), env=env)


def deployed_context(text: str, *, jaxlib: str = "", device: str = "") -> Context:
    """Return the context for the text of `--deployed`: flags and NAME=value, as in a shell.

    Raises:
        ConfigError: a quotation is not closed, or XLA would stop reading at a flag.
    """
    try:
        words = shlex.split(text) if text else []
    except ValueError as error:  # no closing quotation
        raise ConfigError(f"--deployed: a shell cannot read {text!r:.80}: {error}") from None
    flags, env = _flags_and_env(words)
    # `split` removed the quotes of the shell, but XLA needs them around a value with blanks
    deployed = parse_flags(" ".join(map(_requoted, flags)), where="--deployed")
    return Context(deployed=deployed, env=env, jaxlib=jaxlib, device=device)


def _flags_and_env(words: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    flags: list[str] = []
    env: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name.isidentifier():
            env[name] = value
        elif word:
            flags.append(word)
    return flags, env


def _requoted(word: str) -> str:
    """Return a flag with quotes around its value if XLA needs them."""
    name, equals, value = word.partition("=")
    needs_quotes = any(char.isspace() for char in value) or not value
    return f"{name}='{value}'" if equals and needs_quotes else word
