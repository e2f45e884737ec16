"""Rules of waves whose profiles follow from results: single settings, stacks, values, searches.

A rule has a number of slots in its wave, which hold one profile each (node slots are something
else). A profile is named by its settings, so that the same ledger gives the same profiles in every
process. This module knows no history: `waves.py` says who leads and what the evidence shows.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

import msgspec
from msgspec.structs import replace

from pytest_xlatune.catalog.entries import load, slug_of
from pytest_xlatune.model.channels import CHANNELS, COLLECTIVES, on_top, with_flag
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import Message, say
from pytest_xlatune.model.profile import (
    ALIASES,
    APPENDING,
    Flag,
    Key,
    Profile,
    check_unique,
    is_part,
    merge_flags,
    settings_of,
)
from pytest_xlatune.model.record import Json, digest
from pytest_xlatune.model.result import EvidenceResult, relative
from pytest_xlatune.model.rotation import options_of
from pytest_xlatune.model.shares import Shares
from pytest_xlatune.model.written import Written, check_least
from pytest_xlatune.stats.search import DEPLOYED, MOST_POINTS, Point, all_points, count_points


class Rule(Written, frozen=True, kw_only=True, tag_field="kind"):
    """A rule that adds profiles to a wave, from what was measured before it.

    Attributes:
        origin: why a profile was made of profiles that led; "" if the rule makes none of them.
        wave: the marker of the wave that measures them.
        slots: how many profiles at most; the budget reserves them from the start.
    """

    origin: ClassVar[str] = ""
    wave: str
    slots: int

    def __post_init__(self) -> None:
        check_least(self, what=f"{self.kind} of {self.wave}", least={"slots": 1})

    def __hash__(self) -> int:
        return hash((self.kind, self.wave, self.slots))

    @property
    def kind(self) -> str:
        """The kind of rule, e.g. `stack`."""
        return str(self.__struct_config__.tag)

    def to_json(self) -> dict[str, Json]:
        """Return the rule and its kind as JSON values."""
        return {"kind": self.kind, **super().to_json()}


class Singles(Rule, frozen=True, kw_only=True, tag="single"):
    """A wave of single settings: as many candidates as there are slots.

    Attributes:
        wave, slots: the marker of the wave, and how many profiles it has at most.
        candidates: the candidates, the most promising first if nothing is known, e.g.
            `catalog.profiles_for("PP")`.
        evidence: whether one job outside the budget first runs the baseline with profiler and dump,
            to order the candidates. A recorded run is not repeated.

    Raises:
        ConfigError: no slot, or two candidates of one id.
    """

    wave: str = "wave2"
    slots: int
    candidates: tuple[Profile, ...]
    evidence: bool = True

    def __post_init__(self) -> None:
        Rule.__post_init__(self)
        check_unique(self.candidates, where=f"the candidates of {self.wave}")


# The share of the time of kernels that settings may save; of exposed communication they may save
# all. It is an assumption: communication can be hidden, but most kernels stay the same.
COMPUTE_SHARE = 0.1


def order_candidates(rule: Singles, evidence: EvidenceResult | None) -> tuple[Profile, ...]:
    """Return the candidates in the order in which they get slots; `origin` has the reason.

    Each slot goes to a candidate for the part of the step that has the largest quotient: its
    weight, divided by one more than the slots that it already has (the D'Hondt method). So many
    variables of one library do not crowd out other flags. Ties keep the declared order, which stays
    for all if there is no evidence or it has no shares.
    """
    candidates = [replace(profile, wave=rule.wave) for profile in rule.candidates]
    if evidence is None or evidence.shares is None:
        return tuple(candidates)
    shares = evidence.shares
    weights = {profile.id: _weigh(load().aims_of(profile), shares) for profile in candidates}
    quotients: dict[str, float] = {}
    slot_counts = Counter[str]()
    for profile in sorted(candidates, key=lambda profile: -weights[profile.id][0]):
        weight, part = weights[profile.id]
        slot_counts[part] += 1
        # a setting whose part the program lacks stays last, however few slots the part has
        quotients[profile.id] = weight / slot_counts[part] if weight > 0 else weight
    origin = say("chosen by the evidence of {trial}", trial=evidence.trial.id)
    ordered = sorted(candidates, key=lambda profile: -quotients[profile.id])
    return tuple(replace(profile, origin=origin) for profile in ordered)


def _weigh(aims: Sequence[str], shares: Shares) -> tuple[float, str]:
    """Return how much of a step a setting may save, and in which of its parts most."""
    kinds = COLLECTIVES if shares.kinds is None else shares.kinds
    present = [part for part in aims if part not in COLLECTIVES or part in kinds]
    spent = {part: shares.of_step[part] for part in present if part in shares.of_step}
    if not spent:
        return -1.0 if aims and not present else 0.0, ""
    if "communication" in spent:  # this includes the time of each collective
        spent = {part: share for part, share in spent.items() if part not in COLLECTIVES}
    largest = max(spent, key=lambda part: spent[part])
    if largest == "compute":
        return COMPUTE_SHARE * spent[largest], largest
    return sum(spent.values()), largest


class Leader(NamedTuple):
    """A profile that leads the screen so far; `estimate` is its log ratio to the baseline."""

    profile: Profile
    estimate: float


def _label(leader: Leader) -> Message:
    """Return a leader and its change in the screen, e.g. `overlap-2 +3.1 %`."""
    change = relative(leader.estimate)
    return say("{profile} {change:percent}", profile=leader.profile.id, change=change)


class Stacks(Rule, frozen=True, kw_only=True, tag="stack"):
    """A wave of stacks: two or three single settings that led, applied together.

    Attributes:
        wave, slots: the marker of the wave, and how many stacks it has at most.
    """

    origin: ClassVar[str] = "stacked, for the screen showed {leaders}"
    wave: str = "wave3"
    slots: int = 4


class Around(Rule, frozen=True, kw_only=True, tag="around"):
    """A wave of leaders with a neighbouring value: the next one up and down a ladder of values.

    Attributes:
        wave, slots: the marker of the wave, and how many profiles it has at most.
        ladders: name of a flag (without dashes), a variable or an override -> its values in order,
            e.g. `{"xla_gpu_all_gather_combine_threshold_bytes": ("536870912", ...)}`.

    Raises:
        ConfigError: no slot, no ladder, or a ladder with fewer than two values or a value twice.
    """

    origin: ClassVar[str] = "beside {setting} of {leader} in the screen"
    wave: str = "wave4"
    slots: int = 4
    ladders: dict[str, tuple[str, ...]]

    def __post_init__(self) -> None:
        Rule.__post_init__(self)
        _check_values(self.ladders, where=f"values around the leaders in {self.wave}", least=2)


class Crossed(Rule, frozen=True, kw_only=True, tag="crossed"):
    """A last wave: the best settings of the program with the best shape of the pipeline.

    A leader that sets keys of the trainer is a shape; it is combined with a leader that sets only
    flags and variables, stacks included.

    Attributes:
        wave, slots: the marker of the wave, and how many profiles it has at most.
    """

    origin: ClassVar[str] = "flags and shape together: {leaders: and } in the screen"
    wave: str = "wave5_5"
    slots: int = 2


def made_of(rule: Rule, leaders: Sequence[Leader], pool: Sequence[Profile]) -> Iterator[Profile]:
    """Yield the profiles that a rule makes of leaders, the most promising first.

    The leaders are in the order of `pool`, which has all profiles of the waves before.
    """
    match rule:
        case Stacks():
            settings = [settings_of(profile) for profile in pool]
            singles = [
                leader
                for leader in leaders
                if not any(is_part(other, settings_of(leader.profile)) for other in settings)
            ]
            # the log ratios of independent gains add up; whether they are is then measured
            of_each_size = (_together(rule, itertools.combinations(singles, n)) for n in (2, 3))
            for pair, triple in itertools.zip_longest(*of_each_size):
                yield from filter(None, (pair, triple))
        case Around():
            yield from _around(rule, leaders)
        case Crossed():
            shapes = [leader for leader in leaders if leader.profile.overrides]
            others = [leader for leader in leaders if not leader.profile.overrides]
            yield from _together(rule, itertools.product(others, shapes))


def _together(rule: Rule, combinations: Iterable[Sequence[Leader]]) -> Iterator[Profile]:
    """Yield leaders as one profile, the largest sum of estimates first.

    Leaders of which two set one thing to two values are left out.
    """
    for leaders in sorted(combinations, key=lambda parts: -math.fsum(each[1] for each in parts)):
        profiles = [leader.profile for leader in leaders]
        values: dict[Key, set[str]] = defaultdict(set)
        for profile in profiles:
            for key, value in settings_of(profile).items():
                values[key].add(value)
        # an appending flag keeps the values of all
        if any(len(found) > 1 and key[1] not in APPENDING for key, found in values.items()):
            continue
        yield Profile(
            id=_cut("+".join(profile.id for profile in profiles)),
            flags=merge_flags(*(profile.flags for profile in profiles)),
            env=functools.reduce(on_top, (profile.env for profile in profiles)),
            overrides={k: v for profile in profiles for k, v in profile.overrides.items()},
            wave=rule.wave,
            origin=say(rule.origin, leaders=[*map(_label, leaders)]),
        )


def _around(rule: Around, leaders: Sequence[Leader]) -> Iterator[Profile]:
    """Yield the next values of each leader on its ladders, the best leader first, up first."""
    ladders = {ALIASES.get(name, name): values for name, values in rule.ladders.items()}
    for leader in sorted(leaders, key=lambda leader: -leader.estimate):
        settings = settings_of(leader.profile)
        on_ladders = [key for key, value in settings.items() if value in ladders.get(key[1], ())]
        for key in on_ladders:
            ladder, value = ladders[key[1]], settings[key]
            at = ladder.index(value)
            for neighbour in (*ladder[at + 1 : at + 2], *ladder[max(at - 1, 0) : at]):
                # the setting is named if the value alone would be ambiguous
                tag = f"{_initials(key[1])}-" if len(on_ladders) > 1 else ""
                yield replace(
                    _with_value(leader.profile, key, neighbour),
                    id=_cut(f"{leader.profile.id}.{tag}{slug_of(neighbour)}"),
                    wave=rule.wave,
                    origin=say(rule.origin, setting=f"{key[1]}={value}", leader=_label(leader)),
                )


def _with_value(profile: Profile, key: Key, value: str) -> Profile:
    kind, name = key
    if kind == "env":
        return replace(profile, env={**profile.env, name: value})
    if kind in CHANNELS:
        text = with_flag(profile.env[kind], name, value)
        return replace(profile, env={**profile.env, kind: text})
    if kind == "override":
        return replace(profile, overrides={**profile.overrides, name: value})
    flags = tuple(
        Flag(name=flag.name, value=value) if ALIASES.get(flag.name, flag.name) == name else flag
        for flag in merge_flags(profile.flags)
    )
    return replace(profile, flags=flags)


class Search(Rule, frozen=True, kw_only=True, tag="search", dict=True, gc=True):
    """A wave that searches values in rotations, beyond those of the catalog.

    A candidate sets one or two flags of the space. Each round is a rotation, whose candidates
    follow from the rounds before it. The best enter fresh blocks like any other profile, and only
    those give a verdict.

    Attributes:
        wave, slots: the marker of the wave, and how many candidates all rounds have at most.
        space: name of a flag without dashes -> the values to try in order; the deployed value need
            not be among them.
        rounds: how many rotations, all with the same number of candidates.

    Raises:
        ConfigError: no flag, a flag that is no option of a compilation, a value twice, too many
            points, or fewer candidates than rounds.
    """

    wave: str = "wave4"
    space: dict[str, tuple[str, ...]]
    rounds: int = 3
    slots: int = 90

    def __post_init__(self) -> None:
        where = f"the search of {self.wave}"
        _check_values(self.space, where=where, least=1)
        pairs = ((name, value) for name, values in self.space.items() for value in values)
        for flag, value in pairs:
            profile = Profile(id="searched", flags=(Flag(name=flag, value=value),))
            if isinstance(options_of(profile, ()), Message) or flag in APPENDING:
                raise ConfigError(
                    f"{where}: {flag}={value} is no option of a compilation, so it cannot take "
                    "turns with other values; declare profiles with it, or a ladder of Around"
                )
        points = count_points(self.sizes)
        if points > MOST_POINTS:
            raise ConfigError(
                f"{where}: {points} points of one flag or two, expected at most {MOST_POINTS}; "
                "give fewer flags, or fewer values of each"
            )
        msgspec.structs.force_setattr(self, "slots", min(self.slots, points))
        if not 1 <= self.rounds <= self.slots:
            raise ConfigError(
                f"{where}: {self.slots} candidates in {self.rounds} rounds; expected one round or "
                "more, and one candidate or more in each"
            )
        if len(self.points_by_id) < points:
            raise ConfigError(f"{where}: two values of a flag have one name; leave one of them out")

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many values each flag has."""
        return tuple(map(len, self.space.values()))

    @property
    def round_size(self) -> int:
        """How many candidates a round has at most."""
        return math.ceil(self.slots / self.rounds)

    @functools.cached_property
    def points_by_id(self) -> Mapping[str, Point]:
        """Profile id -> its point of the space."""
        counts = Counter(map(_initials, self.space))
        # a flag whose initials are those of another one has its whole name:  arctb-64m+epcol-2
        tags = [tag if counts[tag := _initials(name)] == 1 else name.lower() for name in self.space]
        return {
            _cut(
                "+".join(
                    f"{tag}-{slug_of(values[place])}"
                    for tag, values, place in zip(tags, self.space.values(), point, strict=True)
                    if place != DEPLOYED
                )
            ): point
            for point in all_points(self.sizes)
        }

    def find(self, profile_id: str) -> Profile | None:
        """Return the candidate with this id; None if the space has none."""
        point = self.points_by_id.get(profile_id)
        if point is None:
            return None
        return Profile(
            id=profile_id,
            flags=tuple(
                Flag(name=name, value=values[place])
                for (name, values), place in zip(self.space.items(), point, strict=True)
                if place != DEPLOYED
            ),
            wave=self.wave,
            origin=say("found by the search of {wave}", wave=self.wave),
        )

    @property
    def singles(self) -> tuple[Profile, ...]:
        """The candidates of one flag; all others are combinations of them."""
        ids = itertools.islice(self.points_by_id, sum(self.sizes))
        return tuple(filter(None, map(self.find, ids)))


def _check_values(values_of: Mapping[str, Sequence[str]], *, where: str, least: int) -> None:
    """Raise ConfigError unless settings are given, each with `least` different values or more."""
    if not values_of or any(
        name.startswith("-")
        or isinstance(values, str)
        or not least <= len(set(values)) == len(values)
        for name, values in values_of.items()
    ):
        raise ConfigError(
            f"{where}: found {values_of}, expected flags without dashes and {least} or more "
            "different values of each, e.g. {'xla_gpu_autotune_level': ('1', '2', '4')}"
        )


class Slot(NamedTuple):
    """A slot of a wave whose profiles follow from results."""

    name: str  # e.g. `stack-1`
    wave: str


def slots_of(rules: Iterable[Rule]) -> Mapping[Rule, tuple[Slot, ...]]:
    """Return the slots of each rule; rules of one kind are numbered consecutively."""
    numbers: defaultdict[str, Iterator[int]] = defaultdict(lambda: itertools.count(1))

    def slot(rule: Rule) -> Slot:
        return Slot(name=f"{rule.kind}-{next(numbers[rule.kind])}", wave=rule.wave)

    return {rule: tuple(slot(rule) for _ in range(rule.slots)) for rule in rules}


_ID_LENGTH = 64  # the most characters of a profile's id


def _initials(name: str) -> str:
    """Return a setting's name as part of an id: agctb for all_gather_combine_threshold_bytes."""
    words = name.lower().removeprefix("xla_").removeprefix("gpu_").split("_")
    return "".join(word[0] for word in words if word[:1].isalnum())


def _cut(slug: str) -> str:
    """Return an id of allowed length; a digest keeps shortened ones distinct."""
    if len(slug) <= _ID_LENGTH:
        return slug
    return f"{slug[: _ID_LENGTH - 9]}-{digest(slug, length=8)}"
