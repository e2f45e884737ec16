"""Rules of waves whose profiles follow from results: single settings, stacks, values, searches.

A rule says how many slots its wave has. Single settings are chosen by where the time of a step goes
in an evidence run of the baseline; parts of a step share the slots in proportion to what could be
saved there, so that thirty variables of one library do not keep the flags of another part out.
Stacks and values beside the leaders' follow from the screen of the waves before. What a rule makes
is named by what it holds: the same ledger gives the same profiles in every process. This module
knows no history and no catalog, and spends no error rate: it decides what to measure next, and only
fresh blocks decide what helped.
"""

from __future__ import annotations

import functools
import itertools
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from pytest_xlatune.model.channels import CHANNELS, COLLECTIVES, on_top, with_flag
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import Message, MessageCode, at_most, coded, say
from pytest_xlatune.model.profile import (
    ALIASES,
    APPENDING,
    NO_ENV_ID,
    PGLE,
    PGLE_ID,
    Flag,
    Key,
    Profile,
    check_unique,
    is_part,
    merge_flags,
    settings_of,
)
from pytest_xlatune.model.record import Json, digest
from pytest_xlatune.model.result import EvidenceResult, Shares, relative
from pytest_xlatune.model.rotation import options_of
from pytest_xlatune.model.sentences import SHARE_OF_STEP, SHARE_OF_STEP_ALONE
from pytest_xlatune.model.text import whole
from pytest_xlatune.model.written import Written
from pytest_xlatune.stats.search import DEPLOYED, MOST_POINTS, Point, ask, count_of, points_of

# An assumption, and a mild one: time that nothing hides may be hidden; kernels stay what they are
COMPUTE_COUNTS = 0.1
NO_AIM = say("an evidence run does not show what it acts on")


class Rule(Written, frozen=True, kw_only=True, tag_field="kind"):
    """A rule that adds profiles to a wave, from what was seen before it.

    Attributes:
        wave: the marker of the wave that measures them.
        slots: how many at most; they are part of the budget from the start.
    """

    kind: ClassVar[str]
    wave: str
    slots: int

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ConfigError(
                f"{self.kind} of {self.wave}: {self.slots} slots, expected one or more"
            )

    def __hash__(self) -> int:
        return hash((self.kind, self.wave, self.slots))

    def to_json(self) -> dict[str, Json]:
        """Return this rule as builtins only, with its kind."""
        return {"kind": self.kind, **super().to_json()}

    @property
    @abstractmethod
    def fills(self) -> Message:
        """What fills the slots."""


class Singles(Rule, frozen=True, kw_only=True, tag="single"):
    """A wave of single settings: as many of the candidates as there are slots.

    Attributes:
        wave: the marker of the wave that measures them.
        slots: how many at most; they are part of the budget from the start.
        candidates: in the order in which they are worth trying where nothing is known, e.g.
            `catalog.profiles_for("PP")`.
        evidence: whether the baseline is run once before, with profiler and dump, to order them;
            one job beside the budget. A recorded run is not repeated.
        aims: profile -> the parts of a step that it acts on; the catalog says it.
        pgle: whether one more candidate, `pgle-profile`, lets XLA schedule by the trace of that
            evidence run. A GPU's.

    Raises:
        ConfigError: no slot, no candidate, or two of one id; `pgle` without evidence.
    """

    kind: ClassVar[str] = "single"
    wave: str = "wave2"
    slots: int
    candidates: tuple[Profile, ...] = ()
    evidence: bool = True
    aims: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    pgle: bool = False

    def __post_init__(self) -> None:
        Rule.__post_init__(self)
        if self.pgle and not self.evidence:
            raise ConfigError(
                f"single settings in {self.wave}: pgle=True needs the trace of an evidence run; "
                "leave evidence=False out"
            )
        if not self.every:
            raise ConfigError(
                f"single settings in {self.wave}: no candidate is given; name some, e.g. "
                "candidates=catalog.profiles_for('PP')"
            )
        check_unique(self.every, where=f"the candidates of {self.wave}")

    @property
    def fills(self) -> Message:
        """What fills the slots."""
        text = (
            "single settings out of {candidates}, by an evidence run of the baseline"
            if self.evidence
            else "single settings out of {candidates}, in declared order"
        )
        return say(text, candidates=len(self.every))

    @property
    def every(self) -> tuple[Profile, ...]:
        """The candidates, and the one by the trace, whose file is not known yet."""
        return (*self.candidates, *([self.by_trace("")] if self.pgle else ()))

    def by_trace(self, path: str) -> Profile:
        """Return the profile by whose file XLA schedules."""
        return Profile(id=PGLE_ID, flags=(Flag(name=PGLE, value=path),), wave=self.wave)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A candidate in its place.

    Attributes:
        profile: the candidate.
        why: the reason for its place; None where that is the declared order.
    """

    profile: Profile
    why: Message | None = None


def placed(rule: Singles, evidence: EvidenceResult | None) -> tuple[Placed, ...]:
    """Return the candidates in the order in which slots are given to them.

    Each place goes to the largest weight divided by one more than the places that its part of the
    step already has (the divider method of D'Hondt); equal ones stay in declared order.

    Args:
        rule: the rule whose candidates they are.
        evidence: the evidence of the baseline; None, or one without shares, leaves the declared
            order.
    """
    candidates = [replace(profile, wave=rule.wave) for profile in rule.candidates]
    if rule.pgle and evidence is not None and evidence.pgle:
        candidates.insert(0, rule.by_trace(evidence.pgle))
    shares = evidence.shares if evidence is not None else None
    if shares is None:
        return tuple(Placed(profile=profile) for profile in candidates)
    known = {profile.id: _weighed(rule.aims.get(profile.id, ()), shares) for profile in candidates}
    left, taken, order = list(candidates), Counter[str](), []
    while left:
        best = max(
            left, key=lambda profile: _claim(known[profile.id], taken)
        )  # the first of equals
        left.remove(best)
        taken[known[best.id].part] += 1
        order.append(Placed(profile=best, why=known[best.id].why))
    return tuple(order)


def choices(
    rule: Singles,
    order: Sequence[Placed],
    *,
    evidence: EvidenceResult | None,
    chosen: Iterable[str],
    refused: Mapping[str, Message],
) -> tuple[Message, ...]:
    """Return which candidates are measured and which are cut, and why.

    Args:
        rule: the rule of the wave.
        order: its candidates in order.
        evidence: the evidence that orders them.
        chosen: the ids that have a slot.
        refused: id -> why it gets no slot whatever its place.
    """
    kept = set(chosen)
    measured = [candidate for candidate in order if candidate.profile.id in kept]
    cut = [
        candidate
        for candidate in order
        if candidate.profile.id not in kept and candidate.profile.id not in refused
    ]
    by = _by(rule, evidence)
    numbered = [
        say("{number} {name}", number=number, name=candidate.profile.id)
        for number, candidate in enumerate(measured, start=1)
    ]
    taken = _grouped(numbered, [candidate.why for candidate in measured])
    notes = [
        say("{wave}: {by}: {groups:; }", wave=rule.wave, by=by, groups=taken)
        if measured
        else say("{wave}: {by}", wave=rule.wave, by=by)
    ]
    if cut:
        named = _grouped(
            [candidate.profile.id for candidate in cut], [candidate.why for candidate in cut]
        )
        notes.append(
            say(
                "{wave}: cut at {slots:+slot}: {groups:; }",
                wave=rule.wave,
                slots=rule.slots,
                groups=named,
            )
        )
    if (unaimed := _unaimed(rule, evidence)) is not None:
        notes.append(unaimed)
    if rule.pgle and evidence is not None and not evidence.pgle:
        notes.append(
            say(
                "{wave}: no pgle-profile: the trace of {trial} names no operation of the "
                "program. A deployed --xla_gpu_enable_command_buffer= (empty) makes it do so",
                wave=rule.wave,
                trial=evidence.trial.id,
            )
        )
    return (*notes, *left_out(rule.wave, refused))


_ACTING = {
    "communication": say("settings that combine, pipeline or overlap collectives"),
    "compute": say("settings of matrix products, fusions and autotuning, or the program itself"),
    "copies": say("settings of memory and layout, offloading and rematerialisation"),
    "idle": say("settings of command buffers and of the host, its input pipeline first"),
}


def _unaimed(rule: Singles, evidence: EvidenceResult | None) -> Message | None:
    """Say that no candidate aims at the largest part of a step; None where one does."""
    shares = evidence.shares if evidence is not None else None
    spent = {} if shares is None else {part: shares.of_step.get(part, 0.0) for part in _ACTING}
    largest = max(spent, key=lambda part: spent[part], default="")
    aimed = {aim for profile in rule.candidates for aim in rule.aims.get(profile.id, ())}
    aimed |= {"communication"} if aimed & set(COLLECTIVES) else set()
    if shares is None or not spent[largest] or largest in aimed:
        return None
    return coded(
        MessageCode.UNAIMED,
        "{wave}: no candidate aims at the largest part of a step, {part}, {share:.1%}{kernels}; "
        "{settings} would act on it",
        wave=rule.wave,
        part=largest,
        share=spent[largest],
        kernels=say(" ({names})", names=names) if (names := shares.kernels.get(largest)) else None,
        settings=_ACTING[largest],
    )


def left_out(wave: str, refused: Mapping[str, Message]) -> tuple[Message, ...]:
    """Return, or not, what got no slot whatever it promised: id -> why."""
    named = _grouped(tuple(refused), tuple(refused.values()))
    return (say("{wave}: left out: {groups:; }", wave=wave, groups=named),) if refused else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weight:
    part: str  # whose places it counts among
    value: float
    why: Message


def _claim(weight: _Weight, taken: Counter[str]) -> float:
    # what no program holds stays last, however few of it were placed
    return weight.value / (1 + taken[weight.part]) if weight.value > 0 else weight.value


def _weighed(aims: Sequence[str], shares: Shares) -> _Weight:
    """Weigh what a profile acts on by what a step spends there with nothing beside it."""
    present = [part for part in aims if not _is_absent(part, shares)]
    if not aims:
        return _Weight(part="", value=0.0, why=NO_AIM)
    if not present:
        return _Weight(
            part="", value=-1.0, why=say("the program has no {parts: and no }", parts=aims)
        )
    spent = {part: shares.of_step[part] for part in present if part in shares.of_step}
    if not spent:
        return _Weight(
            part=present[0],
            value=0.0,
            why=say("{parts: and }: no trace tells the time that it costs", parts=present),
        )
    if "communication" in spent:  # that of all collectives
        spent = {part: share for part, share in spent.items() if part not in COLLECTIVES}
    largest = max(spent, key=lambda part: spent[part])
    if largest == "compute":
        why = say(SHARE_OF_STEP, parts=[largest], share=spent[largest])
        return _Weight(part=largest, value=COMPUTE_COUNTS * spent[largest], why=why)
    total = sum(spent.values())
    why = say(SHARE_OF_STEP_ALONE, parts=list(spent), share=total)
    if largest == "idle":
        why = say(SHARE_OF_STEP, parts=[largest], share=total)
    return _Weight(part=largest, value=total, why=why)


def _is_absent(part: str, shares: Shares) -> bool:
    return part in COLLECTIVES and shares.kinds is not None and part not in shares.kinds


def _by(rule: Singles, evidence: EvidenceResult | None) -> Message:
    if not rule.evidence and evidence is None:
        return say("candidates in declared order")
    if evidence is None:
        return say("candidates in declared order, for the baseline has no evidence")
    if evidence.shares is None:
        why = evidence.reason or say("it left nothing that says where the time of a step goes")
        return say(
            "candidates in declared order, for the evidence run {trial}: {why}",
            trial=evidence.trial.id,
            why=why,
        )
    return say("candidates by the evidence of {trial}", trial=evidence.trial.id)


def _grouped(
    names: Sequence[str | Message], reasons: Sequence[Message | None]
) -> tuple[Message, ...]:
    """Return profiles in their order, those of one reason together."""
    groups: dict[Message | None, list[str | Message]] = {}
    for name, why in zip(names, reasons, strict=True):
        groups.setdefault(why, []).append(name)
    return tuple(
        say("{names} ({why})", names=at_most(6, members), why=why)
        if why
        else say("{names}", names=at_most(6, members))
        for why, members in groups.items()
    )


ID_LENGTH = 64
_MIB, _GIB = 1 << 20, 1 << 30
_SIZES = (2, 3)
_LADDERS_NAMED = 3  # ladders that are listed by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """A profile that led the screen so far; `estimate` is its log ratio to the baseline."""

    profile: Profile
    estimate: float

    @property
    def label(self) -> Message:
        """The profile and what the screen said, e.g. `overlap-2 +3.1 %`."""
        return say(
            "{profile} {change:percent}", profile=self.profile.id, change=relative(self.estimate)
        )


class LeaderRule(Rule, frozen=True, kw_only=True):
    """A rule that makes profiles of those that led the waves before."""

    def able(self, leaders: Sequence[Leader], *, pool: Sequence[Profile]) -> Sequence[Leader]:
        """Return the leaders that new profiles are made of; `pool` is all of the waves before."""
        del pool
        return leaders

    @abstractmethod
    def made(self, leaders: Sequence[Leader], *, pool: Sequence[Profile]) -> Iterator[Profile]:
        """Yield what the rule makes of leaders, the most promising first."""

    def kept(
        self, planned: Mapping[str, Profile], *, pool: Sequence[Profile]
    ) -> tuple[Profile, ...]:
        """Return those of the planned profiles that it makes of any of `pool`, overtaken or not."""
        if not planned:
            return ()
        is_cut = any(len(name) == ID_LENGTH for name in planned)
        parts = (
            profile for profile in pool if is_cut or any(profile.id in name for name in planned)
        )
        made = self.made([Leader(profile=profile, estimate=0.0) for profile in parts], pool=pool)
        ids = {
            profile.id
            for profile in made
            if profile.id in planned and profile.same_as(planned[profile.id])
        }
        return tuple(planned[name] for name in sorted(ids))[: self.slots]


class Stacks(LeaderRule, frozen=True, kw_only=True, tag="stack"):
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
        Rule.__post_init__(self)
        if self.of not in _SIZES:
            raise ConfigError(f"stacks of {self.of}: expected 2 or 3")

    @property
    def fills(self) -> Message:
        """What fills the slots."""
        return say(
            "stacks of {sizes: or } profiles that led the waves before", sizes=range(2, self.of + 1)
        )

    def able(self, leaders: Sequence[Leader], *, pool: Sequence[Profile]) -> Sequence[Leader]:
        """Return those that hold no other profile, and are neither controls nor the image alone."""
        settings = [settings_of(profile) for profile in pool]
        return [
            leader
            for leader in leaders
            if _is_candidate(leader.profile)
            and not any(is_part(other, settings_of(leader.profile)) for other in settings)
        ]

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
        place = {profile.id: at for at, profile in enumerate(pool)}
        for parts in sorted(
            itertools.combinations(leaders, size),
            key=lambda parts: -sum(part.estimate for part in parts),
        ):
            ordered = sorted(parts, key=lambda part: place[part.profile.id])
            stack = _stack([part.profile for part in ordered], wave=self.wave)
            if stack is not None:
                labels = [part.label for part in ordered]
                yield replace(
                    stack, origin=say("stacked, for the screen showed {leaders}", leaders=labels)
                )


class Around(LeaderRule, frozen=True, kw_only=True, tag="around"):
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
        Rule.__post_init__(self)
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

    @property
    def fills(self) -> Message:
        """What fills the slots."""
        if len(self.ladders) <= _LADDERS_NAMED:
            return say("values beside the leaders' of {names}", names=sorted(self.ladders))
        return say("values beside the leaders' of {settings} settings", settings=len(self.ladders))

    def made(self, leaders: Sequence[Leader], *, pool: Sequence[Profile]) -> Iterator[Profile]:
        """Yield the neighbours of each leader on its ladders, the best leader's first, up first."""
        del pool  # a leader stands by itself
        for leader in leaders:
            for neighbour, name in self._neighbours_of(leader.profile):
                origin = say(
                    "beside {setting} of {leader} in the screen", setting=name, leader=leader.label
                )
                yield replace(neighbour, origin=origin)

    def _neighbours_of(self, profile: Profile) -> Iterator[tuple[Profile, str]]:
        settings = settings_of(profile)
        ladders = {ALIASES.get(name, name): values for name, values in self.ladders.items()}
        on_ladders = [key for key in settings if key[1] in ladders]
        for key in on_ladders:
            for value in _neighbours(ladders[key[1]], settings[key]):
                # the setting is named where the value alone would not say which
                tag = f"{_initials(key[1])}-" if len(on_ladders) > 1 else ""
                made = _with_value(profile, key, value)
                slug = f"{profile.id}.{tag}{_slug(value)}"
                yield replace(made, id=_cut(slug), wave=self.wave), f"{key[1]}={settings[key]}"


class Crossed(LeaderRule, frozen=True, kw_only=True, tag="crossed"):
    """A last wave: the best settings of the program with the best shape of the pipeline.

    What leads and sets keys of the trainer is a shape; what leads and sets only flags and variables
    is not. The two kinds of wave never measure each other's settings, so that their best are
    combined here: one of each, stacks among them.

    Attributes:
        wave: the marker of the wave that measures them; it reads the waves before it.
        slots: how many at most; they are part of the budget from the start.
    """

    kind: ClassVar[str] = "crossed"
    wave: str = "wave5_5"
    slots: int = 2

    @property
    def fills(self) -> Message:
        """What fills the slots."""
        return say("the best flags and variables with the best shape")

    def able(self, leaders: Sequence[Leader], *, pool: Sequence[Profile]) -> Sequence[Leader]:
        """Return those that are neither controls nor the image alone."""
        del pool
        return [leader for leader in leaders if _is_candidate(leader.profile)]

    def made(self, leaders: Sequence[Leader], *, pool: Sequence[Profile]) -> Iterator[Profile]:
        """Yield a leader of each kind together, by their summed estimates."""
        del pool  # leaders of any wave before
        shapes = [leader for leader in leaders if leader.profile.overrides]
        others = [leader for leader in leaders if not leader.profile.overrides]
        for parts in sorted(
            itertools.product(others, shapes),
            key=lambda pair: -sum(leader.estimate for leader in pair),
        ):
            crossed = _stack([leader.profile for leader in parts], wave=self.wave)
            if crossed is not None:
                labels = [leader.label for leader in parts]
                yield replace(
                    crossed,
                    origin=say(
                        "flags and shape together: {leaders: and } in the screen", leaders=labels
                    ),
                )


class Search(Rule, frozen=True, kw_only=True, tag="search"):
    """A wave of values that are searched in rotations, beyond those of the catalog.

    A candidate sets one flag of the space, or two. Each round is a rotation of its own; what the
    rounds before it measured says which candidates it has. None of it counts in a verdict: the best
    go on to fresh blocks, as any profile does.

    Attributes:
        wave: the marker of the wave that measures them; it reads no other.
        space: name of a flag without dashes -> the values to try in order, as `doubled("1M", "1G")`
            gives them; what the cell deploys need not be among them.
        rounds: rotations, each with as many candidates as the others.
        slots: candidates of all rounds at most; a smaller space has fewer.

    Raises:
        ConfigError: no flag, one that is no option of a compilation, a value twice, more points
            than can be weighed, fewer candidates than rounds.
    """

    kind: ClassVar[str] = "search"
    wave: str = "wave4"
    space: dict[str, tuple[str, ...]]
    rounds: int = 3
    slots: int = 90

    def __post_init__(self) -> None:
        where = f"the search of {self.wave}"
        if not self.space:
            raise ConfigError(
                f"{where}: no flag is given; name some and their values, e.g. "
                "space={'xla_gpu_all_reduce_combine_threshold_bytes': doubled('1M', '1G')}"
            )
        for name, values in self.space.items():
            _check_searched(name, values, where=where)
        points = count_of(self._sizes)
        if points > MOST_POINTS:
            raise ConfigError(
                f"{where}: {points} points of one flag or two, expected at most {MOST_POINTS}; "
                "give fewer flags, or fewer values of each"
            )
        Rule.__post_init__(self)
        if not 1 <= self.rounds <= self.slots:
            raise ConfigError(
                f"{where}: {self.slots} candidates in {self.rounds} rounds; expected one round or "
                "more, and one candidate or more in each"
            )
        msgspec.structs.force_setattr(self, "slots", min(self.slots, points))
        msgspec.structs.force_setattr(self, "rounds", min(self.rounds, self.slots))
        if len(self.names) < points:
            raise ConfigError(f"{where}: two values of a flag have one name; leave one of them out")

    @property
    def _sizes(self) -> tuple[int, ...]:
        return tuple(map(len, self.space.values()))

    @property
    def points(self) -> int:
        """How many candidates there are."""
        return count_of(self._sizes)

    @property
    def at_once(self) -> int:
        """Candidates of a round."""
        return -(-self.slots // self.rounds)

    @property
    def fills(self) -> Message:
        """What fills the slots."""
        return say(
            "candidates out of {points}, one or two of {settings:+flag}, in {rounds:+rotation}",
            points=self.points,
            settings=len(self.space),
            rounds=self.rounds,
        )

    @property
    def names(self) -> Mapping[str, Point]:
        """The points of the space by the ids of their profiles."""
        return _named_points(tuple(self.space.items()))

    def find(self, profile_id: str) -> Profile | None:
        """Return the candidate of an id; None where the space has none."""
        point = self.names.get(profile_id)
        return None if point is None else self.at(point)

    def at(self, point: Point) -> Profile:
        """Return the candidate at a point of the space."""
        flag_values = _set_at(self.space, point)
        return Profile(
            id=_candidate_id(flag_values, self.space),
            flags=tuple(Flag(name=name, value=value) for name, value in flag_values),
            wave=self.wave,
            origin=say("found by the search of {wave}", wave=self.wave),
        )

    def holding_dropped(self, dropped: Iterable[str], measured: Collection[Point]) -> set[Point]:
        """Return the candidates of several flags that hold a value of those that were dropped.

        A value that any candidate has that ran is none of them.
        """
        ran = {value for point in measured for value in enumerate(point)}
        bad = {
            value
            for name in dropped
            for value in enumerate(self.names[name])
            if value[1] != DEPLOYED and value not in ran
        }
        several = (point for point in self.names.values() if len(point) - point.count(DEPLOYED) > 1)
        return {point for point in several if bad.intersection(enumerate(point))} if bad else set()

    @property
    def singles(self) -> tuple[Profile, ...]:
        """The candidates of one flag, which all others are made of."""
        return tuple(
            self.at(point)
            for point in points_of(self._sizes)
            if point.count(DEPLOYED) + 1 == len(point)
        )

    def asked(
        self,
        measured: Mapping[Point, float],
        *,
        without: Iterable[Point],
        count: int,
        rng_seed: str,
    ) -> tuple[Profile, ...]:
        """Return the candidates to measure next; arguments are those of `stats.search.ask`."""
        ordered = tuple(
            len(values) >= _ORDERED and all(_number(value) is not None for value in values)
            for values in self.space.values()
        )
        points = _asked(
            self._sizes,
            ordered,
            tuple(measured.items()),
            without=frozenset(without),
            count=count,
            rng_seed=rng_seed,
        )
        return tuple(map(self.at, points))


_ORDERED = 3  # values of a flag from which neighbours may be alike


@functools.lru_cache(maxsize=64)
def _asked(
    sizes: tuple[int, ...],
    ordered: tuple[bool, ...],
    measured: tuple[tuple[Point, float], ...],
    *,
    without: frozenset[Point],
    count: int,
    rng_seed: str,
) -> tuple[Point, ...]:
    """Ask once: a study is walked again for each trial that lands."""
    return ask(sizes, ordered, dict(measured), without=without, count=count, rng_seed=rng_seed)


@functools.lru_cache(maxsize=8)
def _named_points(space: tuple[tuple[str, tuple[str, ...]], ...]) -> Mapping[str, Point]:
    values = dict(space)
    points = points_of(list(map(len, values.values())))
    return MappingProxyType(
        {_candidate_id(_set_at(values, point), values): point for point in points}
    )


def _set_at(space: Mapping[str, Sequence[str]], point: Point) -> list[tuple[str, str]]:
    """Return the flags that a point of a space sets, and their values."""
    return [
        (name, values[place])
        for (name, values), place in zip(space.items(), point, strict=True)
        if place != DEPLOYED
    ]


def doubled(first: str, last: str) -> tuple[str, ...]:
    """Return the numbers from one to another, each twice the one before: `doubled("16M", "1G")`.

    K, M and G are powers of 1024. All are digits, as XLA reads them.

    Raises:
        ConfigError: one of them is no whole number above 0, or the first is the larger one.
    """
    low, high = _size(first), _size(last)
    if low > high:
        raise ConfigError(f"doubled({first!r}, {last!r}): the first is larger than the last")
    return tuple(str(low << at) for at in range((high // low).bit_length()))


_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def _size(text: str) -> int:
    unit = _UNITS.get(text[-1:].upper(), 1)
    number = whole(text if unit == 1 else text[:-1])
    if number is None or number < 1:
        raise ConfigError(f"doubled: {text!r} is no size; write e.g. 4, '64M' or '1G' as text")
    return number * unit


def _check_searched(name: str, values: Sequence[str], *, where: str) -> None:
    """Refuse a setting that no rotation can search, and values that are none."""
    if name.startswith("-"):
        raise ConfigError(f"{where}: {name!r}: write the flag without dashes")
    if isinstance(values, str) or not values or len(set(values)) != len(values):
        shown = repr(values) if isinstance(values, str) else list(values)
        raise ConfigError(
            f"{where}: {name}: found {shown}, expected different values, e.g. ('1', '2', '4')"
        )
    for value in values:
        try:
            made = Profile(id="searched", flags=(Flag(name=name, value=value),))
            options = options_of(made, ())
        except ConfigError as error:
            raise ConfigError(f"{where}: {name}={value}: {error}") from None
        if isinstance(options, Message) or name in APPENDING:
            raise ConfigError(
                f"{where}: {name}={value} is no option of a compilation, so that it cannot take "
                "turns with others; declare profiles of it, or a ladder of Around"
            )


# parts of a flag's name that say little, and the short words for others; in this order
_SHORT = (
    ("xla_gpu_", ""),
    ("xla_tpu_", ""),
    ("xla_cpu_", ""),
    ("xla_", ""),
    ("experimental_", ""),
    ("enable_", ""),
    ("all_gather", "ag"),
    ("all_reduce", "ar"),
    ("reduce_scatter", "rs"),
    ("collective_permute", "cp"),
    ("combine_threshold_bytes", "threshold"),
    ("collective_overlap_limit", "overlap"),
)


def _short(name: str) -> str:
    for long, short in _SHORT:
        name = name.replace(long, short)
    return "".join(char if char.isascii() and char.isalnum() else "-" for char in name.lower())


def _candidate_id(flag_values: Sequence[tuple[str, str]], space: Iterable[str]) -> str:
    """Name a candidate by its values: `ar-threshold-64m`, two of them joined by a plus."""
    shorts = Counter(map(_short, space))
    parts = [
        f"{_short(name) if shorts[_short(name)] == 1 else name.lower()}-{_slug(value)}"
        for name, value in flag_values
    ]
    return _cut("+".join(part.strip("-") for part in parts))


R = TypeVar("R", bound=Rule)


def of_kind(kind: type[R], rules: Iterable[Rule]) -> tuple[R, ...]:
    """Return the rules of one kind, in declared order."""
    return tuple(rule for rule in rules if isinstance(rule, kind))


class Slot(NamedTuple):
    """A place of a derived wave: its name, e.g. `stack-1`, and the wave."""

    name: str
    wave: str


def slots_of(rules: Iterable[Rule]) -> Mapping[Rule, tuple[Slot, ...]]:
    """Return the slots of each rule; those of one kind are numbered through."""
    numbers: defaultdict[str, Iterator[int]] = defaultdict(lambda: itertools.count(1))
    return {
        rule: tuple(
            Slot(name=f"{rule.kind}-{next(numbers[rule.kind])}", wave=rule.wave)
            for _ in range(rule.slots)
        )
        for rule in rules
    }


def _is_candidate(profile: Profile) -> bool:
    """Whether a profile may be a part of another: no control, and not the image alone."""
    # the image alone beside a flag was recommended, while that flag alone gained as much
    return profile.id != NO_ENV_ID and not profile.is_control


def _stack_id(parts: Sequence[Profile]) -> str:
    return _cut("+".join(profile.id for profile in parts))


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
        env=functools.reduce(on_top, (part.env for part in parts)),
        overrides={name: value for part in parts for name, value in part.overrides.items()},
        wave=wave,
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


def _neighbours(ladder: Sequence[str], value: str) -> list[str]:
    """Return the next value up and the next down; [] where it has no place on the ladder."""
    if value in ladder:
        at = ladder.index(value)
        return [ladder[near] for near in (at + 1, at - 1) if 0 <= near < len(ladder)]
    number = _number(value)
    rungs = [(size, text) for text in ladder if (size := _number(text)) is not None]
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


def _slug(value: str) -> str:
    """Write a value as part of an id: 1g for 1073741824, others by their letters and digits."""
    if (size := whole(value) or 0) >= _MIB and size % _MIB == 0:
        return f"{size // _GIB}g" if size % _GIB == 0 else f"{size // _MIB}m"
    kept = "".join(char if char.isascii() and char.isalnum() else "-" for char in value.lower())
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
