"""Waves that read what earlier ones found: stacks of what led, values beside the leaders'.

A rule says how many slots its wave has; which profiles fill them follows from the screen of the
waves before it. What a rule makes is named by what it holds, so that whoever has the same ledger
has the same profiles. This module knows no history and spends no error rate: it decides what to
measure next, and only fresh blocks decide what helped.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from pytest_xlatune.errors import ConfigError
from pytest_xlatune.profiles import (
    ALIASES,
    APPENDING,
    BASELINE_ID,
    Flag,
    Flags,
    Profile,
    effective_values,
    merge_flags,
    parse_flags,
    settings_digest,
)
from pytest_xlatune.records import Record, canonical, digest
from pytest_xlatune.results import relative
from pytest_xlatune.studies.singles import Singles

ID_LENGTH = 64
_MIB, _GIB = 1 << 20, 1 << 30
_SIZES = (2, 3)
_NAMED = 3  # ladders that are listed by name

Key = tuple[str, str]  # kind of setting, name


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """A profile that led the screen so far; `estimate` is its log ratio to the baseline."""

    profile: Profile
    estimate: float

    @property
    def words(self) -> str:
        """The profile and what the screen said, e.g. `overlap-2 +3.1 %`."""
        return f"{self.profile.id} {100 * relative(self.estimate):+.1f} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacks(Record):
    """A wave of stacks: two or three profiles that led, applied together.

    Attributes:
        wave: the marker of the wave that measures them; it reads the waves before it.
        slots: how many stacks at most; they are part of the budget from the start.
        of: 2 for pairs, 3 for pairs and triples in turn.

    Raises:
        ConfigError: no slot, or stacks of another size.
    """

    kind: ClassVar[str] = "stack"
    wave: str = "wave3"
    slots: int = 4
    of: int = 3

    def __post_init__(self) -> None:
        _check_slots(self)
        if self.of not in _SIZES:
            raise ConfigError(f"stacks of {self.of}: expected 2 or 3")

    @property
    def words(self) -> str:
        """What fills the slots."""
        sizes = " or ".join(str(size) for size in range(2, self.of + 1))
        return f"stacks of {sizes} profiles that led the waves before"

    def made(self, leaders: Sequence[Leader], *, pool: Sequence[Profile]) -> Iterator[Profile]:
        """Yield the stacks of leaders: sizes in turn, each size by its parts' summed estimates.

        Logarithms of gains that do not touch each other add up; whether they do is measured. Parts
        stand in the order of `pool`; those that set one thing to two values make no stack.
        """
        queues = [self._of_size(size, leaders, pool) for size in range(2, self.of + 1)]
        for turn in itertools.zip_longest(*queues):
            yield from filter(None, turn)

    def _of_size(
        self, size: int, leaders: Sequence[Leader], pool: Sequence[Profile]
    ) -> Iterator[Profile]:
        place = {each.id: at for at, each in enumerate(pool)}
        for parts in sorted(
            itertools.combinations(leaders, size),
            key=lambda parts: -sum(part.estimate for part in parts),
        ):
            ordered = sorted(parts, key=lambda part: place[part.profile.id])
            found = _stack([part.profile for part in ordered], wave=self.wave)
            if found is not None:
                words = ", ".join(part.words for part in ordered)
                yield replace(found, note=f"stacked, for the screen showed {words}")

    def kept(self, planned: Mapping[str, Profile], *, pool: Sequence[Profile]) -> Iterator[Profile]:
        """Yield those of the planned profiles that are stacks of `pool`, whatever led since."""
        for size in range(2, self.of + 1) if planned else ():
            for parts in itertools.combinations(pool, size):
                found = planned.get(_stack_id(parts))
                made = None if found is None else _stack(parts, wave=self.wave)
                if found is not None and made is not None and _same(found, made):
                    yield found


@dataclass(frozen=True, slots=True, kw_only=True)
class Around(Record):
    """A wave of the leaders with another value: the next one up and down a ladder.

    Attributes:
        wave: the marker of the wave that measures them; it reads the waves before it.
        slots: how many profiles at most; they are part of the budget from the start.
        ladders: name of a flag (without dashes), a variable or an override -> its values in
            order, e.g. `{"xla_gpu_all_gather_combine_threshold_bytes": ("536870912", ...)}`.

    Raises:
        ConfigError: no slot, no ladder, or one with less than two values or a value twice.
    """

    kind: ClassVar[str] = "around"
    wave: str = "wave4"
    slots: int = 4
    ladders: dict[str, tuple[str, ...]]

    def __post_init__(self) -> None:
        _check_slots(self)
        if not self.ladders:
            raise ConfigError(
                f"values around the leaders in {self.wave}: no ladder is given; name a flag and "
                "its values in order, e.g. ladders={'xla_gpu_...': ('1', '2', '4')}"
            )
        for name, values in self.ladders.items():
            if name.startswith("-"):
                raise ConfigError(f"ladder {name!r}: write the flag without dashes")
            if len(set(values)) < 2 or len(set(values)) != len(values):  # noqa: PLR2004 - a pair
                raise ConfigError(
                    f"ladder of {name}: found {list(values)}, expected two or more different values"
                )

    def __hash__(self) -> int:
        return hash((self.wave, self.slots, tuple(sorted(self.ladders))))

    @property
    def words(self) -> str:
        """What fills the slots."""
        names = ", ".join(sorted(self.ladders))
        named = names if len(self.ladders) <= _NAMED else f"{len(self.ladders)} settings"
        return f"values beside the leaders' of {named}"

    def made(self, leaders: Sequence[Leader], *, pool: Sequence[Profile]) -> Iterator[Profile]:
        """Yield the neighbours of each leader on its ladders, the best leader's first, up first."""
        del pool  # a leader stands by itself
        for leader in leaders:
            for found, name in self._beside(leader.profile):
                yield replace(found, note=f"beside {name} of {leader.words} in the screen")

    def kept(self, planned: Mapping[str, Profile], *, pool: Sequence[Profile]) -> Iterator[Profile]:
        """Yield those of the planned profiles that are neighbours of `pool`, whatever led since."""
        for each in pool if planned else ():
            for made, _ in self._beside(each):
                found = planned.get(made.id)
                if found is not None and _same(found, made):
                    yield found

    def _beside(self, profile: Profile) -> Iterator[tuple[Profile, str]]:
        own = settings_of(profile)
        ladders = {ALIASES.get(name, name): values for name, values in self.ladders.items()}
        on_ladders = [key for key in own if key[1] in ladders]
        for key in on_ladders:
            for value in _neighbours(ladders[key[1]], own[key]):
                # the setting is named where the value alone would not say which
                tag = f"{_initials(key[1])}-" if len(on_ladders) > 1 else ""
                made = _with_value(profile, key, value)
                slug = f"{profile.id}.{tag}{_slug(value)}"
                yield replace(made, id=_cut(slug), wave=self.wave), f"{key[1]}={own[key]}"


Rule = Stacks | Around | Singles


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A place of a derived wave: its name, e.g. `stack-1`, and the wave."""

    name: str
    wave: str


def slots_of(rules: Iterable[Rule]) -> Mapping[Rule, tuple[Slot, ...]]:
    """Return the slots of each rule; those of one kind are numbered through."""
    numbers = {kind.kind: itertools.count(1) for kind in (Stacks, Around, Singles)}
    return {
        rule: tuple(
            Slot(name=f"{rule.kind}-{next(numbers[rule.kind])}", wave=rule.wave)
            for _ in range(rule.slots)
        )
        for rule in rules
    }


def settings_of(profile: Profile) -> dict[Key, str]:
    """Return all that a profile sets: (kind, name) -> value, the newer name for a flag's alias."""
    flags = {
        ("flag", ALIASES.get(name, name)): value
        for name, value in effective_values(profile.flags).items()
    }
    env = {("env", name): value for name, value in profile.env.items()}
    return {**flags, **env, **{("override", k): v for k, v in profile.overrides.items()}}


class Effective:
    """What profiles come to on top of what is deployed: equal keys are repeats of one another."""

    def __init__(self, deployed: Mapping[str, str]) -> None:
        self._env = dict(deployed)
        self._flags: Flags = parse_flags(self._env.pop("XLA_FLAGS", ""), where="deployed XLA_FLAGS")

    def key(self, profile: Profile) -> Key:
        """Return a digest of the effective flags and environment, and the overrides."""
        flags, env = (*self._flags, *profile.flags), {**self._env, **profile.env}
        return settings_digest(flags, env), canonical(profile.overrides)

    def repeats(self, profiles: Iterable[Profile]) -> dict[str, str]:
        """Return profile -> the baseline or an earlier profile with the same effective settings."""
        first = {(settings_digest(self._flags, self._env), canonical({})): BASELINE_ID}
        owners = {each.id: first.setdefault(self.key(each), each.id) for each in profiles}
        return {each: owner for each, owner in owners.items() if owner != each}


def _check_slots(rule: Rule) -> None:
    if rule.slots < 1:
        raise ConfigError(f"{rule.kind} of {rule.wave}: {rule.slots} slots, expected at least 1")


def _stack_id(parts: Sequence[Profile]) -> str:
    return _cut("+".join(each.id for each in parts))


def _stack(parts: Sequence[Profile], *, wave: str) -> Profile | None:
    """Return the parts as one profile; None where two of them set one thing to two values."""
    values: dict[Key, str] = {}
    for part in parts:
        for key, value in settings_of(part).items():
            # the values of an appending flag add up
            if key[1] not in APPENDING and values.setdefault(key, value) != value:
                return None
    return Profile(
        id=_stack_id(parts),
        flags=merge_flags(*(part.flags for part in parts)),
        env={name: value for part in parts for name, value in part.env.items()},
        overrides={name: value for part in parts for name, value in part.overrides.items()},
        wave=wave,
    )


def _with_value(profile: Profile, key: Key, value: str) -> Profile:
    kind, name = key
    if kind == "env":
        return replace(profile, env={**profile.env, name: value})
    if kind == "override":
        return replace(profile, overrides={**profile.overrides, name: value})
    flags = tuple(
        Flag(name=flag.name, value=value) if ALIASES.get(flag.name, flag.name) == name else flag
        for flag in merge_flags(profile.flags)
    )
    return replace(profile, flags=flags)


def _neighbours(ladder: Sequence[str], value: str) -> list[str]:
    """Return the next value up and the next down; [] where it has no place on the ladder."""
    if value in ladder:
        at = ladder.index(value)
        return [ladder[near] for near in (at + 1, at - 1) if 0 <= near < len(ladder)]
    number = _number(value)
    rungs = [(found, each) for each in ladder if (found := _number(each)) is not None]
    if number is None or len(rungs) < len(ladder):
        return []
    above = sorted(rung for rung in rungs if rung[0] > number)
    below = sorted(rung for rung in rungs if rung[0] < number)
    return [text for _, text in (*above[:1], *below[-1:])]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _same(one: Profile, other: Profile) -> bool:
    return (one.flags, one.env, one.overrides) == (other.flags, other.env, other.overrides)


def _slug(value: str) -> str:
    """Write a value as part of an id: 1g for 1073741824, others by their letters and digits."""
    if value.isdecimal() and (size := int(value)) >= _MIB and size % _MIB == 0:
        return f"{size // _GIB}g" if size % _GIB == 0 else f"{size // _MIB}m"
    kept = "".join(each if each.isascii() and each.isalnum() else "-" for each in value.lower())
    return kept.strip("-") or digest(value, length=4)


def _initials(name: str) -> str:
    """Write a setting's name as part of an id: agctb for all_gather_combine_threshold_bytes."""
    words = name.lower().removeprefix("xla_").removeprefix("gpu_").split("_")
    return "".join(word[0] for word in words if word[:1].isalnum())


def _cut(slug: str) -> str:
    """Shorten an id that is too long; a digest of the whole keeps it apart from its like."""
    if len(slug) <= ID_LENGTH:
        return slug
    return f"{slug[: ID_LENGTH - 9]}-{digest(slug, length=8)}"
