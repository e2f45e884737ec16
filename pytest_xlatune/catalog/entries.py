"""Which XLA flags each jaxlib release accepts, of which type, and with which default.

The facts were probed release by release (`versions.json` beside this file). Between two probed
releases a fact holds where both agree; beyond the newest, or where they differ, it is unknown, and
unknown is None, never a guess. A vendor's fork may differ from the release that it is built on.

The settings that people tune are data too, one entry for each way to try one (`flags.toml`,
`kernels.toml`, `variables.toml`, `tpu.toml`, `keys.toml`); this module reads and checks them and
turns their values into profiles. It must not know a cell, a program or a result.
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
from pytest_xlatune.model.channels import LIBTPU, PARTS, channel_of, settings_in
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import Flag, Profile, by_channel, parse_flags
from pytest_xlatune.model.record import Record
from pytest_xlatune.model.rotation import Taken, taken
from pytest_xlatune.model.text import whole


class FlagHistory(Record, frozen=True, kw_only=True):
    """One flag through the releases.

    Attributes:
        kind: bool, int32, int64, float, string, enum, message; "" where no field shows it.
        first, last: probed releases that accept it, and all between.
        defaults: probed release -> default from then on; None is not shown.
        words: of an enumeration, what a release from `History.words_from` to `words_to` takes of
            its names; () where that was not probed.
    """

    kind: str
    first: str
    last: str
    defaults: dict[str, str | None]
    words: tuple[str, ...] = ()


class History(Record, frozen=True, kw_only=True):
    """All flags, and the releases that were probed, oldest first."""

    note: str
    versions: tuple[str, ...]
    flags: dict[str, FlagHistory]
    words_from: str = ""
    words_to: str = ""

    def is_accepted(self, flag: str, jaxlib: str) -> bool | None:
        """Return whether a release accepts a flag; None where no probe says.

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
        """Return a flag's default as text; None where it is unknown.

        Where `jaxlib` is "", the default that every release had.

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

    def refuses_word(self, flag: str, value: str, jaxlib: str) -> bool:
        """Return whether no probed release near a named one takes a value of an enumeration.

        A list is judged word by word: `+A,-B`. Where both cases of a word are taken, any is.

        Raises:
            ConfigError: `jaxlib` is no release number.
        """
        words = frozenset(self.flags[flag].words) if flag in self.flags else frozenset()
        if not words or not jaxlib:
            return False
        if not release(self.words_from) <= release(jaxlib) <= release(self.words_to):
            return False
        parts = [each.strip().lstrip("+-") for each in value.split(",")]
        return any(
            part and part not in words and not {part.lower(), part.upper()} <= words
            for part in parts
        )

    def kind(self, flag: str) -> str:
        """Return a flag's type, "" where it is unknown."""
        return self.flags[flag].kind if flag in self.flags else ""

    def defaults(self, flag: str) -> frozenset[str]:
        """Return every default that a flag ever had."""
        known = self.flags[flag].defaults.values() if flag in self.flags else ()
        return frozenset(each for each in known if each is not None)

    def when(self, flag: str) -> str:
        """Say which releases accept a flag, for a message."""
        if flag not in self.flags:
            return f"accepted by no jaxlib from {self.versions[0]} to {self.versions[-1]}"
        known = self.flags[flag]
        if known.last == self.versions[-1]:
            return f"accepted since jaxlib {known.first}" + (
                " or before" if known.first == self.versions[0] else ""
            )
        return f"accepted up to jaxlib {known.last}"

    def _accepts(self, flag: str, version: str) -> bool:
        known = self.flags.get(flag)
        return known is not None and (
            release(known.first) <= release(version) <= release(known.last)
        )

    def _default(self, known: FlagHistory, version: str) -> str | None:
        at = [
            value for since, value in known.defaults.items() if release(since) <= release(version)
        ]
        return at[-1] if at else None

    def _around(self, jaxlib: str) -> tuple[str, ...]:
        """Return the probed release, or the two on either side; () beyond either end."""
        numbers = [release(version) for version in self.versions]
        asked = release(jaxlib)
        below, above = bisect_right(numbers, asked) - 1, bisect_left(numbers, asked)
        if below < 0 or above == len(numbers):
            return ()
        return tuple(dict.fromkeys((self.versions[below], self.versions[above])))


def release(version: str) -> tuple[int, ...]:
    """Return a release's numbers, to compare by.

    Raises:
        ConfigError: it begins with no number.
    """
    # a wheel's version:  0.12.0.1      0.9.1+rocm7      0.10.0.dev20260101
    match = re.match(r"\d+(?:\.\d+)*", version)
    if match is None:
        raise ConfigError(f"jaxlib version {version!r}: expected numbers such as 0.10.2")
    return tuple(int(part) for part in match.group().split("."))


@functools.cache
def history() -> History:
    """Return what was probed."""
    text = Path(__file__).with_name("versions.json").read_text(encoding="utf-8")
    return History.from_json(json.loads(text))


ANY = "any"  # instead of an axis: whatever the parallelism
_FILES = ("flags.toml", "variables.toml", "tpu.toml", "kernels.toml", "keys.toml")
_FIELDS = {"with": "companions", "with_env": "companion_env", "with_keys": "companion_keys"}
_MIB, _GIB = 1 << 20, 1 << 30


class Status(StrEnum):
    """What an entry is for."""

    CANDIDATE = "candidate"
    CONTROL = "control"  # known to do nothing: an A/A control, which shows the noise
    BLOCKED = "blocked"  # never to be set, for a profile could win by being wrong
    GONE = "gone"  # no longer accepted


class CatalogEntry(Record, frozen=True, kw_only=True):
    """One setting, and how it is tried.

    Attributes:
        name: the flag without dashes, the variable, or the key of MaxText (in small letters).
        slug: what its profiles' ids begin with; unique.
        axes: axes of `cell.Axis` on which it may matter, or "any".
        aims: the parts of a step that it acts on, of `channels.PARTS`; () is none that shows there.
        values: what to try; () where only the site knows a value.
        mechanism: what it changes, one sentence.
        source: where this is known from.
        status: what it is for.
        constraints: what it needs, and when it does nothing.
        corrects: what written recipes say otherwise, and how it is; "" where they are right.
        companions: flags it is tried with; `{value}` in them is the value.
        companion_env: variables it is tried with.
        companion_keys: keys of MaxText it is tried with: a joint setting.
        wave: of its profiles: single settings in wave2, stacks of several later, keys in wave5.
        vendor: nvidia, amd or google; gpu is either of the first two; "" is every GPU's of a flag
            or a variable, every device's of a key.
        changes_numerics: it computes with other precision or order, so the loss rule decides.
        since, until: first and last probed libtpu that accepts it; "" where that is no limit.
        devices: pattern of the names of those it is for, in either case.
        integer: NCCL reads a plain integer.
        compile_time: a variable that HLO shows.
        defaults: vendor -> what its NCCL takes where nothing sets the variable.
        blocked: the values that are; () is each, where the status is BLOCKED.
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
        """The variable of another library that reads it as a flag; "" where none does."""
        return channel_of(self.name)

    @property
    def is_flag(self) -> bool:
        """Whether it is a flag of XLA_FLAGS."""
        return self.name.startswith("xla_") and not self.channel

    @property
    def taken(self) -> Taken:
        """When it is read: options of a compilation can take turns in one process."""
        return taken(self.name) if self.is_flag else Taken.VARIABLE

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
        name = self.slug if len(self.values) == 1 else f"{self.slug}-{_slug(value)}"
        note = "; ".join(filter(None, (self.mechanism, self.constraints)))
        note += "; changes numerics: the rule on the loss decides" if self.changes_numerics else ""
        return Profile(id=name, flags=flags, env=env, overrides=keys, wave=self.wave, note=note)


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """All entries, in the order in which they are worth trying."""

    entries: tuple[CatalogEntry, ...]

    def of_axis(self, axis: str) -> tuple[CatalogEntry, ...]:
        """Return the entries of an axis or of several, their own before those of any.

        Args:
            axis: e.g. FSDP, or a parallelism such as PP=4,FSDP=2: then the entries of the axis
                with the larger degree come first, and the written order decides between equal
                ones. An axis of degree 1 has no traffic and adds nothing.

        Raises:
            ConfigError: no such axis, a malformed parallelism.
        """
        words = (*_axes_of(axis), ANY)
        found = {
            entry.slug: entry for word in words for entry in self.entries if word in entry.axes
        }
        return tuple(found.values())

    def named(self, name: str) -> tuple[CatalogEntry, ...]:
        """Return the entries of a flag, a variable or a slug; dashes and `=...` do not count.

        Raises:
            ConfigError: there is none; names the nearest.
        """
        bare = name.lstrip("-").partition("=")[0]
        found = self.find(bare)
        if not found:
            known = {word for entry in self.entries for word in (entry.name, entry.slug)}
            raise ConfigError.unknown("setting", bare, valid=known, where="the catalog")
        return found

    def find(self, name: str) -> tuple[CatalogEntry, ...]:
        """Return the entries of a name or a slug, () without one."""
        return tuple(entry for entry in self.entries if name in (entry.name, entry.slug))

    def aims_of(self, profile: Profile) -> tuple[str, ...]:
        """Return the parts of a step that a profile's settings act on, in the order of `PARTS`."""
        names = {flag.name for flag in profile.flags}
        names |= {name for _, name in settings_in(profile.env, "")} | profile.overrides.keys()
        found = {aim for entry in self.entries if entry.name in names for aim in entry.aims}
        return tuple(part for part in PARTS if part in found)

    def integers(self) -> frozenset[str]:
        """Return the variables that NCCL reads as plain integers."""
        return frozenset(entry.name for entry in self.entries if entry.integer)


def _axes_of(text: str) -> tuple[str, ...]:
    """Return the axes of `FSDP` or of `PP=4,FSDP=2`, the one of the largest degree first."""
    if "=" in text or "," in text:
        axes = [axis for axis in Parallelism.parse(text).axes if axis[1] > 1]
        return tuple(name for name, _ in sorted(axes, key=lambda each: -each[1]))
    word = text.strip().upper()
    if word not in Axis.__members__:
        raise ConfigError.unknown("axis", text, valid=Axis.__members__, where="the catalog")
    return (word,)


@functools.cache
def names_of(kind: str) -> frozenset[str]:
    """Return the names that exist: of "variables", or of "keys" of MaxText; no list is complete."""
    of_kind = [entry for entry in load().entries if not (entry.is_flag or entry.channel)]
    own = {entry.name for entry in of_kind if entry.is_key == (kind == "keys")}
    return frozenset(_data(_FILES[1])[kind]) | own


@functools.cache
def retired() -> dict[str, str]:
    """Return the variables that are read no more, or under another name -> what to say of them."""
    return dict(_data(_FILES[1])["retired"])


class Switch(Record, frozen=True, kw_only=True):
    """A variable with which others do nothing.

    Attributes:
        name: the variable's name.
        idle: a pattern of the variables that do nothing then.
        is_on: whether that is where it is on (an integer other than 0), or off; None asks `value`.
        value: the word it is then, in small letters.
        algorithms: words of NCCL_ALGO that it takes away.
    """

    name: str
    idle: str
    is_on: bool | None = None
    value: str = ""
    algorithms: tuple[str, ...] = ()

    def acts(self, env: Mapping[str, str]) -> bool:
        """Return whether it is set so that the others do nothing."""
        set_to = env.get(self.name, "").strip().lower()
        if not set_to or self.is_on is None:
            return bool(set_to) and set_to == self.value
        # as C reads it:  1    0x1    -1
        number = whole(set_to)
        return number is not None and bool(number) is self.is_on


@functools.cache
def switches() -> tuple[Switch, ...]:
    """Return the variables with which others do nothing."""
    return tuple(map(Switch.from_json, _data(_FILES[1])["switch"]))


@functools.cache
def nccl_defaults(vendor: str) -> dict[str, str]:
    """Return the variables whose default is known of a vendor's NCCL -> that."""
    found = load().entries
    return {entry.name: entry.defaults[vendor] for entry in found if vendor in entry.defaults}


@functools.cache
def compiled_in() -> frozenset[str]:
    """Return the variables that act on the program alone: where it is equal they did nothing."""
    named = (entry.name for entry in load().entries if entry.compile_time)
    # PGLE compiles anew after some steps, which one compilation does not show
    return frozenset(each for each in named if not each.startswith("JAX_PGLE_"))


@functools.cache
def tpu_flags() -> frozenset[str]:
    """Return the flags of libtpu that the catalog knows."""
    own = (each for each in load().entries if each.channel == LIBTPU)
    each_profile = (profile for entry in own for profile in entry.profiles)
    return frozenset(name for profile in each_profile for _, name in settings_in(profile.env, ""))


@functools.cache
def probed_libtpu() -> tuple[str, ...]:
    """Return the releases of libtpu that were asked about its flags, oldest first."""
    return tuple(_data(_FILES[2])["probed"])


@functools.cache
def load() -> Catalog:
    """Return the catalog.

    Raises:
        ConfigError: a data file is malformed; names the entry.
    """
    entries = tuple(entry for name in _FILES for entry in _read(name))
    slugs: set[str] = set()
    for entry in entries:
        if entry.slug in slugs:
            raise ConfigError(f"catalog: the slug {entry.slug!r} is given twice")
        slugs.add(entry.slug)
        wrong = [axis for axis in entry.axes if axis != ANY and axis not in Axis.__members__]
        if wrong or not entry.axes:
            raise ConfigError(f"catalog: {entry.slug!r} is of no axis, or of {wrong}")
        for part in entry.aims:
            if part not in PARTS:
                raise ConfigError.unknown(
                    "part of a step", part, valid=PARTS, where=f"the catalog's {entry.slug!r}"
                )
    return Catalog(entries=entries)


def _read(name: str) -> Iterator[CatalogEntry]:
    for row in _data(name)["entry"]:
        yield CatalogEntry.from_json({_FIELDS.get(key, key): each for key, each in row.items()})


@functools.cache
def _data(name: str) -> dict[str, Any]:
    """Return what a file of the catalog holds, read once; it is not to be changed."""
    return tomllib.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


def _slug(value: str) -> str:
    """Write a value as part of an id: 1g for 1073741824, on for true."""
    if value in ("true", "false", ""):
        return {"true": "on", "false": "off", "": "none"}[value]
    if (size := whole(value) or 0) >= _MIB and size % _MIB == 0:
        return f"{size // _GIB}g" if size % _GIB == 0 else f"{size // _MIB}m"
    words = re.sub(r"[^a-z0-9]+", "-", value.lower()).strip("-")
    # an enum's full name ends in what tells it from the others
    return words.rpartition("unrolling-")[2]
