"""What a rule of the catalog gets and returns: a profile in its context, and objections to it.

This module must not know the rules, nor read a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from pytest_xlatune.model.channels import CHANNELS
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import BASELINE_ID, Flags, Profile, parse_flags
from pytest_xlatune.model.record import Record
from pytest_xlatune.model.text import same_value, to_integer

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
        collectives: the kinds of collectives of the deployed program; None if they are unknown.

    Raises:
        ConfigError: the device is unknown.
    """

    deployed: Flags = ()
    env: dict[str, str] = msgspec.field(default_factory=dict)
    knows_env: bool = True
    is_complete: bool = True
    jaxlib: str = ""
    device: str = ""
    collectives: tuple[str, ...] | None = None

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
        ConfigError: the device is unknown, so no setting is known to suit it.
    """
    channel_patterns = {
        channel.vendor: channel.devices for channel in CHANNELS.values() if channel.devices
    }
    for vendor, names in (channel_patterns | _DEVICES).items():
        if re.fullmatch(names, device, re.IGNORECASE):
            return vendor
    if device:
        raise ConfigError(
            f"unknown device {device!r}; expected an architecture or a device such as sm_90, H100, "
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
    """Return the context for the text of `--deployed`: flags, and variables as NAME=value.

    Raises:
        ConfigError: XLA would stop reading at a flag.
    """
    flags, env = _flags_and_env(text.split())
    deployed = parse_flags(" ".join(flags), where="--deployed")
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
