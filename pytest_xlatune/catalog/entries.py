"""Which XLA flags each jaxlib release accepts, of which type, and with which default.

The facts were probed release by release (`versions.json` beside this file). Between two probed
releases a fact holds where both agree; beyond the newest, or where they differ, it is unknown, and
unknown is None, never a guess. A vendor's fork may differ from the release that it is built on.

The settings that people tune are data too, one entry for each way to try one (`flags.toml`,
`variables.toml`); this module reads and checks them and turns their values into profiles. It must
not know a cell, a program or a result.
"""

from __future__ import annotations

import functools
import json
import re
import tomllib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.resources import files
from typing import Any

from pytest_xlatune.model.cell import Axis
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import Flag, Profile, parse_flags
from pytest_xlatune.model.record import Record
from pytest_xlatune.model.result import PARTS
from pytest_xlatune.model.text import whole


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagHistory(Record):
    """One flag through the releases.

    Attributes:
        kind: bool, int32, int64, float, string, enum, message; "" where no field shows it.
        first, last: probed releases that accept it, and all between.
        defaults: probed release -> default from then on; None is not shown.
    """

    kind: str
    first: str
    last: str
    defaults: dict[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class History(Record):
    """All flags, and the releases that were probed, oldest first."""

    note: str
    versions: tuple[str, ...]
    flags: dict[str, FlagHistory]

    def is_accepted(self, flag: str, jaxlib: str) -> bool | None:
        """Return whether a release accepts a flag; None where no probe says.

        Raises:
            ConfigError: `jaxlib` is no release number.
        """
        answers = {self._accepts(flag, version) for version in self._around(jaxlib)}
        return answers.pop() if len(answers) == 1 else None

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
    text = files(__package__).joinpath("versions.json").read_text(encoding="utf-8")
    return History.from_json(json.loads(text))


ANY = "any"  # instead of an axis: whatever the parallelism
_FILES = ("flags.toml", "variables.toml")
_RENAMED = {"with": "companions", "with_env": "companion_env"}
_MIB, _GIB = 1 << 20, 1 << 30


class Status(StrEnum):
    """What an entry is for."""

    CANDIDATE = "candidate"
    CONTROL = "control"  # known to do nothing: an A/A control, which shows the noise
    BLOCKED = "blocked"  # never to be set, for a profile could win by being wrong
    GONE = "gone"  # no longer accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry(Record):
    """One setting, and how it is tried.

    Attributes:
        name: the flag without dashes, or the variable.
        slug: what its profiles' ids begin with; unique.
        axes: axes of `cell.Axis` on which it may matter, or "any".
        aims: the parts of a step that it acts on, of `result.PARTS`; () is none that shows there.
        values: what to try; () where only the site knows a value.
        mechanism: what it changes, one sentence.
        source: where this is known from.
        status: what it is for.
        constraints: what it needs, and when it does nothing.
        corrects: what written recipes say otherwise, and how it is; "" where they are right.
        companions: flags it is tried with; `{value}` in them is the value.
        companion_env: variables it is tried with.
        wave: of its profiles: single settings in wave2, stacks of several later.
        vendor: nvidia or amd; "" is both.
        integer: NCCL reads a plain integer.
        compile_time: a variable that HLO shows.
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
    companion_env: dict[str, str] = field(default_factory=dict)
    wave: str = "wave2"
    vendor: str = ""
    integer: bool = False
    compile_time: bool = False
    blocked: tuple[str, ...] = ()
    aims: tuple[str, ...] = ()

    @property
    def is_flag(self) -> bool:
        """Whether it is an XLA flag, not a variable."""
        return self.name.startswith("xla_")

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """One profile for each value, named by slug and value."""
        return tuple(self._profile(value) for value in self.values)

    def _profile(self, value: str) -> Profile:
        flags = parse_flags(self.companions.replace("{value}", value), where=self.name)
        env = dict(self.companion_env)
        if self.is_flag:
            flags = (Flag(name=self.name, value=value), *flags)
        else:
            env[self.name] = value
        name = self.slug if len(self.values) == 1 else f"{self.slug}-{_slug(value)}"
        note = "; ".join(filter(None, (self.mechanism, self.constraints)))
        return Profile(id=name, flags=flags, env=env, wave=self.wave, note=note)


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """All entries, in the order in which they are worth trying."""

    entries: tuple[CatalogEntry, ...]

    def of_axis(self, axis: str) -> tuple[CatalogEntry, ...]:
        """Return the entries of an axis, its own before those of any.

        Raises:
            ConfigError: no such axis.
        """
        word = axis.upper()
        if word not in Axis.__members__:
            raise ConfigError.unknown("axis", axis, valid=Axis.__members__, where="the catalog")
        own = [each for each in self.entries if word in each.axes]
        return (*own, *(each for each in self.entries if ANY in each.axes))

    def named(self, name: str) -> tuple[CatalogEntry, ...]:
        """Return the entries of a flag, a variable or a slug; dashes and `=...` do not count.

        Raises:
            ConfigError: there is none; names the nearest.
        """
        bare = name.lstrip("-").partition("=")[0]
        found = self.find(bare)
        if not found:
            known = {word for each in self.entries for word in (each.name, each.slug)}
            raise ConfigError.unknown("setting", bare, valid=known, where="the catalog")
        return found

    def find(self, name: str) -> tuple[CatalogEntry, ...]:
        """Return the entries of a name or a slug, () without one."""
        return tuple(each for each in self.entries if name in (each.name, each.slug))

    def aims_of(self, profile: Profile) -> tuple[str, ...]:
        """Return the parts of a step that a profile's settings act on, in the order of `PARTS`."""
        names = {*(flag.name for flag in profile.flags), *profile.env}
        found = {aim for each in self.entries if each.name in names for aim in each.aims}
        return tuple(part for part in PARTS if part in found)

    def integers(self) -> frozenset[str]:
        """Return the variables that NCCL reads as plain integers."""
        return frozenset(each.name for each in self.entries if each.integer)


@functools.cache
def names_of(kind: str) -> frozenset[str]:
    """Return the names that exist: of "variables", or of "keys" of MaxText; no list is complete."""
    text = files(__package__).joinpath(_FILES[1]).read_text(encoding="utf-8")
    own = {each.name for each in load().entries if not each.is_flag}
    return frozenset(tomllib.loads(text)[kind]) | (own if kind == "variables" else frozenset())


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
    text = files(__package__).joinpath(name).read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = tomllib.loads(text)["entry"]
    for row in rows:
        yield CatalogEntry.from_json({_RENAMED.get(key, key): value for key, value in row.items()})


def _slug(value: str) -> str:
    """Write a value as part of an id: 1g for 1073741824, on for true."""
    if value in ("true", "false", ""):
        return {"true": "on", "false": "off", "": "none"}[value]
    if (size := whole(value) or 0) >= _MIB and size % _MIB == 0:
        return f"{size // _GIB}g" if size % _GIB == 0 else f"{size // _MIB}m"
    words = re.sub(r"[^a-z0-9]+", "-", value.lower()).strip("-")
    # an enum's full name ends in what tells it from the others
    return words.rpartition("unrolling-")[2]
