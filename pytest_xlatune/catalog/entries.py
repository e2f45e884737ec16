"""Which XLA flags each jaxlib release accepts, of which type, and with which default.

The facts in `versions.json` were probed release by release. A release between two probed ones has a
fact if both have it. If they differ, and beyond the newest probed release, the fact is unknown:
None, never a guess. A vendor's fork may differ from the release that it is built on.

The settings that people tune are data too: `flags.toml`, `kernels.toml`, `variables.toml`,
`tpu.toml` and `keys.toml` have one entry for each way to try a setting. This module reads and
checks the entries and turns their values into profiles. It must not know a cell, a program or a
result.
"""

from __future__ import annotations

import functools
import json
import re
import tomllib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from pytest_xlatune.model.cell import Axis, Parallelism
from pytest_xlatune.model.channels import PARTS, channel_of, settings_in
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import Flag, Profile, by_channel, parse_flags
from pytest_xlatune.model.record import Record
from pytest_xlatune.model.rotation import ReadAt, read_at
from pytest_xlatune.model.text import to_integer


class FlagHistory(Record, frozen=True, kw_only=True):
    """What is known about one flag in all probed releases.

    Attributes:
        kind: its type: bool, int32, int64, float, string, enum or message; "" if unknown.
        first: the first probed release that accepts it.
        last: the last probed release that accepts it; all releases between accept it too.
        defaults: probed release -> the default from that release on; None if it is not shown.
    """

    kind: str
    first: str
    last: str
    defaults: dict[str, str | None]


class History(Record, frozen=True, kw_only=True):
    """All flags, and the releases that were probed.

    Attributes:
        note: what was probed, and how.
        versions: the probed releases, oldest first.
        flags: flag -> what is known about it.
    """

    note: str
    versions: tuple[str, ...]
    flags: dict[str, FlagHistory]

    def is_accepted(self, flag: str, jaxlib: str) -> bool | None:
        """Return whether a release accepts a flag; None if that is unknown.

        Raises:
            ConfigError: `jaxlib` is no release number.
        """
        answers = {self._accepts(flag, version) for version in self._around(jaxlib)}
        return answers.pop() if len(answers) == 1 else None

    def is_probed(self, jaxlib: str) -> bool:
        """Return whether a release itself was probed.

        Raises:
            ConfigError: `jaxlib` is no release number.
        """
        return release(jaxlib) in map(release, self.versions)

    def default(self, flag: str, jaxlib: str) -> str | None:
        """Return a flag's default as text; None if it is unknown.

        With "" as `jaxlib` it is the default that all releases share.

        Raises:
            ConfigError: `jaxlib` is no release number.
        """
        if not jaxlib:
            answers = set[str | None](self.defaults(flag))
        else:
            around = self._around(jaxlib)
            if not all(self._accepts(flag, version) for version in around):
                return None
            answers = {self._default(self.flags[flag], version) for version in around}
        return answers.pop() if len(answers) == 1 else None

    def kind(self, flag: str) -> str:
        """Return a flag's type, "" if it is unknown."""
        return self.flags[flag].kind if flag in self.flags else ""

    def defaults(self, flag: str) -> frozenset[str]:
        """Return every default that a flag ever had."""
        known = self.flags[flag].defaults.values() if flag in self.flags else ()
        return frozenset(default for default in known if default is not None)

    def accepted_in(self, flag: str) -> str:
        """Return which releases accept a flag, for a message."""
        oldest, newest = self.versions[0], self.versions[-1]
        if flag not in self.flags:
            return f"accepted by no jaxlib from {oldest} to {newest}"
        known = self.flags[flag]
        if known.last != newest:
            return f"accepted up to jaxlib {known.last}"
        or_before = " or before" if known.first == oldest else ""
        return f"accepted since jaxlib {known.first}{or_before}"

    def _accepts(self, flag: str, version: str) -> bool:
        known = self.flags.get(flag)
        return known is not None and (
            release(known.first) <= release(version) <= release(known.last)
        )

    def _default(self, known: FlagHistory, version: str) -> str | None:
        values = [
            value for since, value in known.defaults.items() if release(since) <= release(version)
        ]
        return values[-1] if values else None

    def _around(self, jaxlib: str) -> tuple[str, ...]:
        """Return the release if it was probed, else its neighbours; () outside the probed range."""
        numbers = [release(version) for version in self.versions]
        number = release(jaxlib)
        below, above = bisect_right(numbers, number) - 1, bisect_left(numbers, number)
        if below < 0 or above == len(numbers):
            return ()
        return tuple(dict.fromkeys((self.versions[below], self.versions[above])))


def release(version: str) -> tuple[int, ...]:
    """Return the numbers of a release, for comparisons.

    Raises:
        ConfigError: the text does not begin with a number.
    """
    # a wheel's version:  0.12.0.1      0.9.1+rocm7      0.10.0.dev20260101
    match = re.match(r"\d+(?:\.\d+)*", version)
    if match is None:
        raise ConfigError(f"jaxlib version {version!r}: expected numbers such as 0.10.2")
    return tuple(int(part) for part in match.group().split("."))


@functools.cache
def history() -> History:
    """Return the probed history of all flags."""
    text = Path(__file__).with_name("versions.json").read_text(encoding="utf-8")
    return History.from_json(json.loads(text))


ANY = "any"  # instead of an axis: the entry is for every parallelism
_VARIABLES, _TPU = "variables.toml", "tpu.toml"
_FILES = ("flags.toml", _VARIABLES, _TPU, "kernels.toml", "keys.toml")
# key in a file -> field of `CatalogEntry`
_FIELDS = {"with": "companions", "with_env": "companion_env", "with_keys": "companion_keys"}
_MIB, _GIB = 1 << 20, 1 << 30


class Status(StrEnum):
    """What an entry is for."""

    CANDIDATE = "candidate"
    CONTROL = "control"  # an A/A control: it is known to do nothing and shows the noise
    BLOCKED = "blocked"  # never set, because a profile could win by wrong results
    GONE = "gone"  # no longer accepted


class CatalogEntry(Record, frozen=True, kw_only=True):
    """One setting, and how it is tried.

    Attributes:
        name: the flag without dashes, the variable, or the key of MaxText (in small letters).
        slug: the unique beginning of its profiles' ids.
        axes: axes of `cell.Axis` on which it may matter, or "any".
        aims: the parts of a step that it acts on, out of `channels.PARTS`; () if none of them.
        values: the values to try; () if only the site knows one.
        mechanism: what the setting changes.
        source: where these facts come from.
        status: what the entry is for.
        constraints: what it needs, and when it has no effect; "" for none.
        corrects: what published recipes have wrong, and what is right; "" if they are right.
        companions: the flags set along with it; in them, `{value}` is replaced by its value.
        companion_env: the variables set along with it.
        companion_keys: the keys of MaxText set along with it.
        wave: the wave of its profiles: wave2 for a single setting, wave5 for a key, and a wave
            after wave2 for a stack of settings.
        vendor: nvidia, amd or google, or gpu for the first two. With "" a flag or a variable is for
            any GPU, and a key is for any device.
        changes_numerics: whether it changes the precision or order of sums, so that the loss must
            be compared too.
        since: the first probed libtpu that accepts it; "" if all before `until` do.
        until: the last probed libtpu that accepts it; "" if all later ones do.
        devices: a pattern of the names of the devices that it is for; case does not matter.
        integer: whether NCCL reads it as a plain integer.
        compile_time: whether it is a variable whose effect the HLO shows.
        defaults: vendor -> the default of the variable in that vendor's NCCL.
        blocked: the values that must not be set; () means all values if the status is BLOCKED.
    """

    name: str
    slug: str
    axes: tuple[str, ...]
    values: tuple[str, ...]
    mechanism: str
    source: str
    status: Status = Status.CANDIDATE
    constraints: str = ""
    corrects: str = ""
    companions: str = ""
    companion_env: dict[str, str] = msgspec.field(default_factory=dict)
    companion_keys: dict[str, str] = msgspec.field(default_factory=dict)
    wave: str = "wave2"
    vendor: str = ""
    integer: bool = False
    compile_time: bool = False
    defaults: dict[str, str] = msgspec.field(default_factory=dict)
    blocked: tuple[str, ...] = ()
    aims: tuple[str, ...] = ()
    changes_numerics: bool = False
    since: str = ""
    until: str = ""
    devices: str = ".*"

    @property
    def channel(self) -> str:
        """The variable that holds the flag; "" for flags of XLA_FLAGS and other settings."""
        return channel_of(self.name)

    @property
    def is_flag(self) -> bool:
        """Whether it is a flag of XLA_FLAGS."""
        return self.name.startswith("xla_") and not self.channel

    @property
    def read_at(self) -> ReadAt:
        """When the setting is read; only options of a compilation can take turns in a process."""
        return read_at(self.name) if self.is_flag else ReadAt.VARIABLE

    @property
    def is_key(self) -> bool:
        """Whether it is a key of the trainer's configuration."""
        return not (self.is_flag or self.channel) and self.name.islower()

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """One profile for each value, named by slug and value."""
        return tuple(self._profile(value) for value in self.values)

    def _profile(self, value: str) -> Profile:
        flags = parse_flags(self.companions.replace("{value}", value), where=self.name)
        if self.is_flag or self.channel:
            flags = (Flag(name=self.name, value=value), *flags)
        flags, channels = by_channel(flags)
        env = {**self.companion_env, **channels}
        keys = dict(self.companion_keys)
        if self.is_key:
            keys[self.name] = value
        elif not (self.is_flag or self.channel):
            env[self.name] = value
        name = self.slug if len(self.values) == 1 else f"{self.slug}-{slug_of(value)}"
        note = "; ".join(filter(None, (self.mechanism, self.constraints)))
        note += "; changes numerics: the rule on the loss decides" if self.changes_numerics else ""
        return Profile(id=name, flags=flags, env=env, overrides=keys, wave=self.wave, note=note)


@dataclass(frozen=True, kw_only=True)
class Catalog:
    """All entries, in the order in which they are worth trying.

    It has no slots, because it caches tables.
    """

    entries: tuple[CatalogEntry, ...]

    def of_axis(self, axis: str) -> tuple[CatalogEntry, ...]:
        """Return the entries of one axis or several, then those for any axis.

        Args:
            axis: e.g. FSDP, or a parallelism such as PP=4,FSDP=2. Of a parallelism, the entries of
                the axis with the larger degree come first; axes of equal degree keep their order,
                and axes of degree 1, which have no traffic, are left out.

        Raises:
            ConfigError: there is no such axis, or the parallelism is malformed.
        """
        words = (*_axes_of(axis), ANY)
        by_slug = {
            entry.slug: entry for word in words for entry in self.entries if word in entry.axes
        }
        return tuple(by_slug.values())

    def named(self, name: str) -> tuple[CatalogEntry, ...]:
        """Return the entries of a flag, a variable or a slug; dashes and `=...` are ignored.

        Raises:
            ConfigError: there is none; the message has the nearest name.
        """
        bare = name.lstrip("-").partition("=")[0]
        entries = self.find(bare)
        if not entries:
            known = {word for entry in self.entries for word in (entry.name, entry.slug)}
            raise ConfigError.unknown("setting", bare, valid=known, where="the catalog")
        return entries

    @functools.cached_property
    def _by_word(self) -> Mapping[str, list[CatalogEntry]]:
        by_word: dict[str, list[CatalogEntry]] = {}
        for entry in self.entries:
            for word in {entry.name, entry.slug}:
                by_word.setdefault(word, []).append(entry)
        return by_word

    def find(self, name: str) -> tuple[CatalogEntry, ...]:
        """Return the entries of a name or a slug; () if there is none."""
        return tuple(self._by_word.get(name, ()))

    def aims_of(self, profile: Profile) -> tuple[str, ...]:
        """Return the parts of a step that a profile's settings act on, in the order of `PARTS`."""
        names = {flag.name for flag in profile.flags}
        names |= {name for _, name in settings_in(profile.env, "")} | profile.overrides.keys()
        aims = {aim for entry in self.entries if entry.name in names for aim in entry.aims}
        return tuple(part for part in PARTS if part in aims)

    @functools.cached_property
    def integers(self) -> frozenset[str]:
        """The variables that NCCL reads as plain integers."""
        return frozenset(entry.name for entry in self.entries if entry.integer)


def _axes_of(text: str) -> tuple[str, ...]:
    """Return the axes of `FSDP` or of `PP=4,FSDP=2`, the one of the largest degree first."""
    if "=" in text or "," in text:
        axes = [axis for axis in Parallelism.parse(text).axes if axis[1] > 1]
        return tuple(name for name, _ in sorted(axes, key=lambda axis: -axis[1]))
    word = text.strip().upper()
    if word not in Axis.__members__:
        raise ConfigError.unknown("axis", text, valid=Axis.__members__, where="the catalog")
    return (word,)


@functools.cache
def names_of(kind: str) -> frozenset[str]:
    """Return the known names of a kind, "variables" or MaxText's "keys"; no list is complete."""
    no_flags = [entry for entry in load().entries if not (entry.is_flag or entry.channel)]
    names = {entry.name for entry in no_flags if entry.is_key == (kind == "keys")}
    return frozenset(_data(_VARIABLES)[kind]) | names


@functools.cache
def retired() -> dict[str, str]:
    """Return variable -> message, for variables that are not read any more or were renamed."""
    return dict(_data(_VARIABLES)["retired"])


class Switch(Record, frozen=True, kw_only=True):
    """A variable with a value at which other variables do nothing.

    Attributes:
        name: the variable's name.
        idle: a pattern of the names of the variables that then do nothing.
        is_on: at which value they do nothing: any integer but 0 (True), 0 (False), `value` (None).
        value: the word at which they do nothing, in small letters; "" if `is_on` decides.
    """

    name: str
    idle: str
    is_on: bool | None = None
    value: str = ""

    def acts(self, env: Mapping[str, str]) -> bool:
        """Return whether it has a value at which the other variables do nothing."""
        text = env.get(self.name, "").strip().lower()
        if not text:
            return False
        if self.is_on is None:
            return text == self.value
        number = to_integer(text)
        return number is not None and bool(number) is self.is_on


@functools.cache
def switches() -> tuple[Switch, ...]:
    """Return the variables with a value at which others do nothing."""
    return tuple(map(Switch.from_json, _data(_VARIABLES)["switch"]))


@functools.cache
def nccl_defaults(vendor: str) -> dict[str, str]:
    """Return variable -> its default in a vendor's NCCL, where it is known."""
    entries = load().entries
    return {entry.name: entry.defaults[vendor] for entry in entries if vendor in entry.defaults}


@functools.cache
def probed_libtpu() -> tuple[str, ...]:
    """Return the releases of libtpu whose flags were probed, oldest first."""
    return tuple(_data(_TPU)["probed"])


@functools.cache
def load() -> Catalog:
    """Return the catalog."""
    return Catalog(entries=tuple(entry for name in _FILES for entry in _read(name)))


def _read(name: str) -> Iterator[CatalogEntry]:
    for row in _data(name)["entry"]:
        yield CatalogEntry.from_json({_FIELDS.get(key, key): value for key, value in row.items()})


@functools.cache
def _data(name: str) -> dict[str, Any]:
    """Return the content of a catalog file, which is read once; callers must not change it."""
    return tomllib.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


def values() -> dict[str, Any]:
    """Return what XLA, JAX and NCCL accept as values; `values.toml` explains each table."""
    return _data("values.toml")


def slug_of(value: str) -> str:
    """Write a value as part of an id: 1g for 1073741824, on for true."""
    if value in ("true", "false", ""):
        return {"true": "on", "false": "off", "": "none"}[value]
    if (size := to_integer(value) or 0) >= _MIB and size % _MIB == 0:
        return f"{size // _GIB}g" if size % _GIB == 0 else f"{size // _MIB}m"
    words = re.sub(r"[^a-z0-9]+", "-", value.lower()).strip("-")
    # values of `xla_gpu_enable_while_loop_unrolling` differ only in their ends
    return words.rpartition("unrolling-")[2]
