"""What is known of each setting that people tune, one entry for each way to try it.

The entries are data (`flags.toml`, `variables.toml`); this module reads and checks them and turns
their values into profiles. It must not know a cell, a program or a result.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.resources import files
from typing import Any

from pytest_xlatune.cells import Axis
from pytest_xlatune.errors import ConfigError
from pytest_xlatune.profiles import Flag, Profile, parse_flags
from pytest_xlatune.records import Record
from pytest_xlatune.results import PARTS

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
class Entry(Record):
    """One setting, and how it is tried.

    Attributes:
        name: the flag without dashes, or the variable.
        slug: what its profiles' ids begin with; unique.
        axes: axes of `cells.Axis` on which it may matter, or "any".
        aims: the parts of a step that it acts on, of `results.PARTS`; () is none that shows there.
        values: what to try; () where only the site knows a value.
        mechanism: what it changes, one sentence.
        source: where this is known from.
        status: what it is for.
        constraints: what it needs, and when it does nothing.
        seed: what the seed document says otherwise, corrected; "" where it is right or silent.
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
    seed: str = ""
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

    entries: tuple[Entry, ...]

    def of_axis(self, axis: str) -> tuple[Entry, ...]:
        """Return the entries of an axis, its own before those of any.

        Raises:
            ConfigError: no such axis.
        """
        word = axis.upper()
        if word not in Axis.__members__:
            raise ConfigError.unknown("axis", axis, valid=Axis.__members__, where="the catalog")
        own = [each for each in self.entries if word in each.axes]
        return (*own, *(each for each in self.entries if ANY in each.axes))

    def named(self, name: str) -> tuple[Entry, ...]:
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

    def find(self, name: str) -> tuple[Entry, ...]:
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


def _read(name: str) -> Iterator[Entry]:
    text = files(__package__).joinpath(name).read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = tomllib.loads(text)["entry"]
    for row in rows:
        yield Entry.from_json({_RENAMED.get(key, key): value for key, value in row.items()})


def _slug(value: str) -> str:
    """Write a value as part of an id: 1g for 1073741824, on for true."""
    if value in ("true", "false", ""):
        return {"true": "on", "false": "off", "": "none"}[value]
    if value.isdecimal() and (size := int(value)) >= _MIB and size % _MIB == 0:
        return f"{size // _GIB}g" if size % _GIB == 0 else f"{size // _MIB}m"
    words = re.sub(r"[^a-z0-9]+", "-", value.lower()).strip("-")
    # an enum's full name ends in what tells it from the others
    return words.rpartition("unrolling-")[2]
