"""Rules of waves whose profiles follow from results: single settings, stacks, values, searches.

Each rule has a number of slots in its wave, which hold one profile each (node slots are something
else). Single settings are chosen by where the time of a step goes in an evidence run of the
baseline. The parts of a step share the slots in proportion to the time that could be saved there,
so that many variables of one library do not crowd out other flags. Stacks and neighbouring values
follow from the screen of the waves before. A profile is named by its settings, so that the same
ledger gives the same profiles in every process. This module knows no history and no catalog. It
only decides what to measure next, so it spends no alpha.
"""

from __future__ import annotations

import functools
import itertools
import math
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeVar

import msgspec
from msgspec.structs import replace

from pytest_xlatune.model.channels import CHANNELS, COLLECTIVES, on_top, with_flag
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import Message, MessageCode, coded, say
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
from pytest_xlatune.model.result import EvidenceResult, relative
from pytest_xlatune.model.rotation import options_of
from pytest_xlatune.model.sentences import SHARE_OF_STEP, SHARE_OF_STEP_ALONE
from pytest_xlatune.model.shares import Shares
from pytest_xlatune.model.text import to_integer
from pytest_xlatune.model.written import Written
from pytest_xlatune.stats.search import DEPLOYED, MOST_POINTS, Point, all_points, ask, count_points

# The share of the time of kernels that settings may save; of exposed communication they may save
# all. It is an assumption: communication can be hidden, but most kernels stay the same.
COMPUTE_SHARE = 0.1
NO_AIM = say("an evidence run does not show what it acts on")


class Rule(Written, frozen=True, kw_only=True, tag_field="kind"):
    """A rule that adds profiles to a wave, from what was measured before it.

    Attributes:
        wave: the marker of the wave that measures them.
        slots: how many profiles at most; the budget reserves them from the start.
    """

    wave: str
    slots: int

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ConfigError(
                f"{self.kind} of {self.wave}: {self.slots} slots, expected one or more"
            )

    def __hash__(self) -> int:
        return hash((self.kind, self.wave, self.slots))

    @property
    def kind(self) -> str:
        """The kind of rule, e.g. `stack`."""
        return str(self.__struct_config__.tag)

    def to_json(self) -> dict[str, Json]:
        """Return the rule and its kind as JSON values."""
        return {"kind": self.kind, **super().to_json()}

    @property
    @abstractmethod
    def fills(self) -> Message:
        """What fills the slots, for the lines of a plan."""

    def with_aims(self, aims_of: Callable[[Profile], tuple[str, ...]]) -> Self:
        """Return the rule with the parts of a step that each candidate acts on, from `aims_of`.

        A rule that orders no candidates is returned as it is.
        """
        del aims_of
        return self


class Singles(Rule, frozen=True, kw_only=True, tag="single"):
    """A wave of single settings: as many candidates as there are slots.

    Attributes:
        wave: the marker of the wave that measures them.
        slots: how many profiles at most; the budget reserves them from the start.
        candidates: the candidates, the most promising first if nothing is known, e.g.
            `catalog.profiles_for("PP")`.
        evidence: whether one job outside the budget first runs the baseline with profiler and dump,
            to order the candidates. A recorded run is not repeated.
        aims: profile id -> the parts of a step that it acts on, from the catalog.
        pgle: whether to add the candidate `pgle-profile`, for which XLA schedules by the trace of
            the evidence run. For GPUs only.

    Raises:
        ConfigError: no slot, no candidate, two of one id, or `pgle` without evidence.
    """

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
        if not self.all_candidates:
            raise ConfigError(
                f"single settings in {self.wave}: no candidate is given; name some, e.g. "
                "candidates=catalog.profiles_for('PP')"
            )
        check_unique(self.all_candidates, where=f"the candidates of {self.wave}")

    @property
    def fills(self) -> Message:
        """What fills the slots, as a plan says it."""
        text = (
            "single settings out of {candidates}, by an evidence run of the baseline"
            if self.evidence
            else "single settings out of {candidates}, in declared order"
        )
        return say(text, candidates=len(self.all_candidates))

    def with_aims(self, aims_of: Callable[[Profile], tuple[str, ...]]) -> Self:
        """Return the rule with the aims of each candidate; those that it states itself stay."""
        aims = {profile.id: aims_of(profile) for profile in self.all_candidates}
        return replace(self, aims={**aims, **self.aims})

    @property
    def all_candidates(self) -> tuple[Profile, ...]:
        """The candidates, then `pgle-profile`, whose trace file is not known yet."""
        return (*self.candidates, *([self.pgle_profile("")] if self.pgle else ()))

    def pgle_profile(self, path: str) -> Profile:
        """Return the profile for which XLA schedules by the trace at `path`."""
        return Profile(id=PGLE_ID, flags=(Flag(name=PGLE, value=path),), wave=self.wave)


def order_candidates(rule: Singles, evidence: EvidenceResult | None) -> tuple[Profile, ...]:
    """Return the candidates in the order in which they get slots; `origin` has the reason.

    Each slot goes to a candidate for the part of the step that has the largest quotient: its
    weight, divided by one more than the slots that it already has (the D'Hondt method). Ties keep
    the declared order.

    Args:
        rule: the rule with the candidates.
        evidence: evidence of the baseline; the declared order stays if it is None or has no shares.
    """
    candidates = [replace(profile, wave=rule.wave) for profile in rule.candidates]
    if rule.pgle and evidence is not None and evidence.pgle:
        candidates.insert(0, rule.pgle_profile(evidence.pgle))
    shares = evidence.shares if evidence is not None else None
    if shares is None:
        return tuple(candidates)
    weights = {profile.id: _weigh(rule.aims.get(profile.id, ()), shares) for profile in candidates}
    remaining, slot_counts, order = list(candidates), Counter[str](), []
    while remaining:
        # `max` returns the first of equal ones
        best = max(remaining, key=lambda profile: _quotient(weights[profile.id], slot_counts))
        remaining.remove(best)
        slot_counts[weights[best.id].part] += 1
        origin = say("chosen by the evidence: {why}", why=weights[best.id].why)
        order.append(replace(best, origin=origin))
    return tuple(order)


def choice_notes(
    rule: Singles,
    order: Sequence[Profile],
    *,
    evidence: EvidenceResult | None,
    chosen: Collection[str],
    refused: Mapping[str, Message],
) -> tuple[Message, ...]:
    """Return which candidates are measured and which are left out.

    Args:
        rule: the rule of the wave.
        order: its candidates in order.
        evidence: the evidence that orders them; None if there is none.
        chosen: the ids that have a slot.
        refused: id -> why it gets no slot, even if one is free.
    """
    cut = [profile.id for profile in order if profile.id not in {*chosen, *refused}]
    measured = [profile.id for profile in order if profile.id in chosen]
    text = "{wave}: {by}: {names}" if measured else "{wave}: {by}"
    notes = [say(text, wave=rule.wave, by=_order_note(rule, evidence), names=measured)]
    if cut:
        text = "{wave}: cut at {slots:+slot}: {names}"
        notes.append(say(text, wave=rule.wave, slots=rule.slots, names=cut))
    if (unaimed_note := _unaimed_note(rule, evidence)) is not None:
        notes.append(unaimed_note)
    if rule.pgle and evidence is not None and not evidence.pgle:
        notes.append(
            say(
                "{wave}: no pgle-profile: the trace of {trial} names no operation of the "
                "program. A deployed --xla_gpu_enable_command_buffer= (empty) makes it do so",
                wave=rule.wave,
                trial=evidence.trial.id,
            )
        )
    return (*notes, *refusal_notes(rule.wave, refused))


# part of a step -> the settings that act on it
_SETTINGS_FOR = {
    "communication": say("settings that combine, pipeline or overlap collectives"),
    "compute": say("settings of matrix products, fusions and autotuning, or the program itself"),
    "copies": say("settings of memory and layout, offloading and rematerialisation"),
    "idle": say("settings of command buffers and of the host, its input pipeline first"),
}


def _unaimed_note(rule: Singles, evidence: EvidenceResult | None) -> Message | None:
    """Return a note if no candidate acts on the largest part of a step, else None."""
    shares = evidence.shares if evidence is not None else None
    if shares is None:
        return None
    spent = {part: shares.of_step.get(part, 0.0) for part in _SETTINGS_FOR}
    largest = max(spent, key=lambda part: spent[part])
    aims = {aim for profile in rule.candidates for aim in rule.aims.get(profile.id, ())}
    if aims & set(COLLECTIVES):
        aims.add("communication")
    if not spent[largest] or largest in aims:
        return None
    kernels = shares.kernels.get(largest)
    return coded(
        MessageCode.UNAIMED,
        "{wave}: no candidate aims at the largest part of a step, {part}, {share:.1%}{kernels}; "
        "{settings} would act on it",
        wave=rule.wave,
        part=largest,
        share=spent[largest],
        kernels=say(" ({names})", names=kernels) if kernels else None,
        settings=_SETTINGS_FOR[largest],
    )


def refusal_notes(wave: str, refused: Mapping[str, Message]) -> tuple[Message, ...]:
    """Return a note on the candidates that got no slot, by `refused`: id -> why; () if none."""
    if not refused:
        return ()
    names = [say("{name} ({why})", name=name, why=why) for name, why in refused.items()]
    return (say("{wave}: left out: {names:; }", wave=wave, names=names),)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weight:
    """How much of a step a candidate may save.

    Attributes:
        part: the part of the step whose slots it competes for; "" if it has none.
        value: share of a step; 0 if it is unknown, -1 if the program lacks all its parts.
        why: the reason for the value.
    """

    part: str
    value: float
    why: Message


def _quotient(weight: _Weight, slot_counts: Counter[str]) -> float:
    """Return the value by which a candidate gets the next slot."""
    # a setting whose part the program lacks stays last, however few slots the part has
    return weight.value / (1 + slot_counts[weight.part]) if weight.value > 0 else weight.value


def _weigh(aims: Sequence[str], shares: Shares) -> _Weight:
    """Return the weight of a candidate: the exposed time of the parts that it acts on."""
    kinds = COLLECTIVES if shares.kinds is None else shares.kinds
    present = [part for part in aims if part not in COLLECTIVES or part in kinds]
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
    if "communication" in spent:  # this includes the time of each collective
        spent = {part: share for part, share in spent.items() if part not in COLLECTIVES}
    largest = max(spent, key=lambda part: spent[part])
    if largest == "compute":
        why = say(SHARE_OF_STEP, parts=[largest], share=spent[largest])
        return _Weight(part=largest, value=COMPUTE_SHARE * spent[largest], why=why)
    total = sum(spent.values())
    why = say(SHARE_OF_STEP_ALONE, parts=list(spent), share=total)
    if largest == "idle":
        why = say(SHARE_OF_STEP, parts=[largest], share=total)
    return _Weight(part=largest, value=total, why=why)


def _order_note(rule: Singles, evidence: EvidenceResult | None) -> Message:
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


ID_LENGTH = 64  # the most characters of a profile's id
_MIB, _GIB = 1 << 20, 1 << 30
_SIZES = (2, 3)  # how many profiles a stack may combine
_LADDERS_NAMED = 3  # with more ladders than this, only their number is shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """A profile that leads the screen so far; `estimate` is its log ratio to the baseline."""

    profile: Profile
    estimate: float

    @property
    def label(self) -> Message:
        """The profile and its change in the screen, e.g. `overlap-2 +3.1 %`."""
        return say(
            "{profile} {change:percent}", profile=self.profile.id, change=relative(self.estimate)
        )


class LeaderRule(Rule, frozen=True, kw_only=True):
    """A rule that makes profiles out of those that led the waves before."""

    def eligible(self, leaders: Sequence[Leader], *, pool: Sequence[Profile]) -> Sequence[Leader]:
        """Return the leaders that may be combined; `pool` holds all earlier profiles."""
        del pool
        return leaders

    @abstractmethod
    def make(self, leaders: Sequence[Leader], *, pool: Sequence[Profile]) -> Iterator[Profile]:
        """Yield the profiles that the rule makes of the leaders, the most promising first."""

    def find_planned(
        self, planned: Mapping[str, Profile], *, pool: Sequence[Profile]
    ) -> tuple[Profile, ...]:
        """Return the planned profiles that the rule makes of profiles in `pool`, leaders or not.

        Args:
            planned: id -> profile that has a trial in the wave.
            pool: all earlier profiles.
        """
        if not planned:
            return ()
        # An id contains those of the parts, unless it was shortened. To combine only these parts is
        # much faster than to combine the whole pool.
        is_shortened = any(len(name) == ID_LENGTH for name in planned)
        parts = (
            profile
            for profile in pool
            if is_shortened or any(profile.id in name for name in planned)
        )
        made = self.make([Leader(profile=profile, estimate=0.0) for profile in parts], pool=pool)
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
        slots: how many stacks at most; the budget reserves them from the start.
        of: 2 for pairs, 3 for pairs and triples alternately.

    Raises:
        ConfigError: no slot, or another number than 2 or 3.
    """

    wave: str = "wave3"
    slots: int = 4
    of: int = 3

    def __post_init__(self) -> None:
        Rule.__post_init__(self)
        if self.of not in _SIZES:
            raise ConfigError(f"stacks of {self.of}: expected 2 or 3")

    @property
    def fills(self) -> Message:
        """What fills the slots, as a plan says it."""
        return say(
            "stacks of {sizes: or } profiles that led the waves before", sizes=range(2, self.of + 1)
        )

    def eligible(self, leaders: Sequence[Leader], *, pool: Sequence[Profile]) -> Sequence[Leader]:
        """Return the leaders that are not stacks, not controls and not `baseline-no-env`."""
        settings = [settings_of(profile) for profile in pool]
        return [
            leader
            for leader in leaders
            if _is_candidate(leader.profile)
            and not any(is_part(other, settings_of(leader.profile)) for other in settings)
        ]

    def make(self, leaders: Sequence[Leader], *, pool: Sequence[Profile]) -> Iterator[Profile]:
        """Yield the stacks: sizes alternate, and each size is sorted by the sum of estimates.

        The log ratios of independent gains add up; whether gains are independent is then measured.
        The parts of a stack are in the order of `pool`. Profiles that contradict each other make no
        stack.
        """
        queues = [self._stacks_of_size(size, leaders, pool) for size in range(2, self.of + 1)]
        for one_of_each_size in itertools.zip_longest(*queues):
            yield from filter(None, one_of_each_size)

    def _stacks_of_size(
        self, size: int, leaders: Sequence[Leader], pool: Sequence[Profile]
    ) -> Iterator[Profile]:
        place = {profile.id: at for at, profile in enumerate(pool)}
        combinations = (
            sorted(parts, key=lambda part: place[part.profile.id])
            for parts in itertools.combinations(leaders, size)
        )
        for stack, labels in _stacks(combinations, wave=self.wave):
            origin = say("stacked, for the screen showed {leaders}", leaders=labels)
            yield replace(stack, origin=origin)


class Around(LeaderRule, frozen=True, kw_only=True, tag="around"):
    """A wave of leaders with a neighbouring value: the next one up and down a ladder of values.

    Attributes:
        wave: the marker of the wave that measures them; it reads the waves before it.
        slots: how many profiles at most; the budget reserves them from the start.
        ladders: name of a flag (without dashes), a variable or an override -> its values in order,
            e.g. `{"xla_gpu_all_gather_combine_threshold_bytes": ("536870912", ...)}`.

    Raises:
        ConfigError: no slot, no ladder, or a ladder with fewer than two values or a value twice.
    """

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
        """What fills the slots, as a plan says it."""
        if len(self.ladders) <= _LADDERS_NAMED:
            return say("values beside the leaders' of {names}", names=sorted(self.ladders))
        return say("values beside the leaders' of {settings} settings", settings=len(self.ladders))

    def make(self, leaders: Sequence[Leader], *, pool: Sequence[Profile]) -> Iterator[Profile]:
        """Yield the next values of each leader on its ladders, the best leader first, up first."""
        del pool  # only leaders are changed
        for leader in leaders:
            for neighbour, name in self._neighbours_of(leader.profile):
                origin = say(
                    "beside {setting} of {leader} in the screen", setting=name, leader=leader.label
                )
                yield replace(neighbour, origin=origin)

    def _neighbours_of(self, profile: Profile) -> Iterator[tuple[Profile, str]]:
        """Yield the profile with each neighbouring value, and the setting that was changed."""
        settings = settings_of(profile)
        ladders = {ALIASES.get(name, name): values for name, values in self.ladders.items()}
        on_ladders = [key for key in settings if key[1] in ladders]
        for key in on_ladders:
            for value in _neighbours(ladders[key[1]], settings[key]):
                # the setting is named if the value alone would be ambiguous
                tag = f"{_initials(key[1])}-" if len(on_ladders) > 1 else ""
                made = _with_value(profile, key, value)
                slug = f"{profile.id}.{tag}{_slug(value)}"
                yield replace(made, id=_cut(slug), wave=self.wave), f"{key[1]}={settings[key]}"


class Crossed(LeaderRule, frozen=True, kw_only=True, tag="crossed"):
    """A last wave: the best settings of the program with the best shape of the pipeline.

    A leader that sets keys of the trainer is a shape; a leader that sets only flags and variables
    is none. Waves of shapes measure no flags, and waves of flags no shapes, so this rule combines
    the best of both, stacks included.

    Attributes:
        wave: the marker of the wave that measures them; it reads the waves before it.
        slots: how many profiles at most; the budget reserves them from the start.
    """

    wave: str = "wave5_5"
    slots: int = 2

    @property
    def fills(self) -> Message:
        """What fills the slots, as a plan says it."""
        return say("the best flags and variables with the best shape")

    def eligible(self, leaders: Sequence[Leader], *, pool: Sequence[Profile]) -> Sequence[Leader]:
        """Return the leaders that are not controls and not `baseline-no-env`."""
        del pool
        return [leader for leader in leaders if _is_candidate(leader.profile)]

    def make(self, leaders: Sequence[Leader], *, pool: Sequence[Profile]) -> Iterator[Profile]:
        """Yield pairs of a shape and another leader, the largest sum of estimates first."""
        del pool  # only leaders of the waves before are combined
        shapes = [leader for leader in leaders if leader.profile.overrides]
        others = [leader for leader in leaders if not leader.profile.overrides]
        for crossed, labels in _stacks(itertools.product(others, shapes), wave=self.wave):
            origin = say("flags and shape together: {leaders: and } in the screen", leaders=labels)
            yield replace(crossed, origin=origin)


class Search(Rule, frozen=True, kw_only=True, tag="search", dict=True, gc=True):
    """A wave that searches values in rotations, beyond those of the catalog.

    A candidate sets one or two flags of the space. Each round is a rotation, whose candidates
    follow from the rounds before it. The best enter fresh blocks like any other profile, and only
    those give a verdict.

    Attributes:
        wave: the marker of the wave that measures them; it does not depend on other waves.
        space: name of a flag without dashes -> the values to try in order; the deployed value need
            not be among them.
        rounds: how many rotations, all with the same number of candidates.
        slots: candidates of all rounds at most; a small space may have fewer.

    A point of the space says which value each flag takes: see `stats/search.py`.

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
        if not self.space:
            raise ConfigError(
                f"{where}: no flag is given; name some and their values, e.g. "
                "space={'xla_gpu_all_reduce_combine_threshold_bytes': ('1048576', '2097152')}"
            )
        for name, values in self.space.items():
            _check_searched(name, values, where=where)
        points = count_points(self._sizes)
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
        if len(self.points_by_id) < points:
            raise ConfigError(f"{where}: two values of a flag have one name; leave one of them out")

    @property
    def _sizes(self) -> tuple[int, ...]:
        return tuple(map(len, self.space.values()))

    @property
    def round_size(self) -> int:
        """How many candidates a round has at most."""
        return math.ceil(self.slots / self.rounds)

    @property
    def fills(self) -> Message:
        """What fills the slots, as a plan says it."""
        return say(
            "candidates out of {points}, one or two of {settings:+flag}, in {rounds:+rotation}",
            points=len(self.points_by_id),
            settings=len(self.space),
            rounds=self.rounds,
        )

    @functools.cached_property
    def points_by_id(self) -> Mapping[str, Point]:
        """Profile id -> its point of the space."""
        points = all_points(self._sizes)
        return {_candidate_id(self._flags_at(point), self.space): point for point in points}

    def find(self, profile_id: str) -> Profile | None:
        """Return the candidate with this id; None if the space has none."""
        point = self.points_by_id.get(profile_id)
        return None if point is None else self.at(point)

    def at(self, point: Point) -> Profile:
        """Return the candidate at a point of the space."""
        flag_values = self._flags_at(point)
        return Profile(
            id=_candidate_id(flag_values, self.space),
            flags=tuple(Flag(name=name, value=value) for name, value in flag_values),
            wave=self.wave,
            origin=say("found by the search of {wave}", wave=self.wave),
        )

    def _flags_at(self, point: Point) -> list[tuple[str, str]]:
        return [
            (name, values[place])
            for (name, values), place in zip(self.space.items(), point, strict=True)
            if place != DEPLOYED
        ]

    @property
    def singles(self) -> tuple[Profile, ...]:
        """The candidates of one flag; all others are combinations of them."""
        return tuple(
            self.at(point)
            for point in all_points(self._sizes)
            if point.count(DEPLOYED) + 1 == len(point)
        )

    def next_candidates(
        self,
        measured: Mapping[Point, float],
        *,
        excluded: Collection[Point],
        count: int,
        rng_seed: str,
    ) -> tuple[Profile, ...]:
        """Return the candidates to measure next; `stats.search.ask` explains the arguments."""
        ordered = [
            len(values) >= _ORDERED and all(_number(value) is not None for value in values)
            for values in self.space.values()
        ]
        points = ask(
            self._sizes,
            ordered,
            measured,
            excluded=excluded,
            count=count,
            rng_seed=rng_seed,
        )
        return tuple(map(self.at, points))


_ORDERED = 3  # a flag with so many values is searched as an ordered one


def _check_searched(name: str, values: Sequence[str], *, where: str) -> None:
    """Raise ConfigError for a flag that no rotation can search, or for unusable values."""
    if name.startswith("-"):
        raise ConfigError(f"{where}: {name!r}: write the flag without dashes")
    if isinstance(values, str) or not values or len(set(values)) != len(values):
        shown = repr(values) if isinstance(values, str) else list(values)
        raise ConfigError(
            f"{where}: {name}: found {shown}, expected different values, e.g. ('1', '2', '4')"
        )
    for value in values:
        try:
            profile = Profile(id="searched", flags=(Flag(name=name, value=value),))
            options = options_of(profile, ())
        except ConfigError as error:
            raise ConfigError(f"{where}: {name}={value}: {error}") from None
        if isinstance(options, Message) or name in APPENDING:
            raise ConfigError(
                f"{where}: {name}={value} is no option of a compilation, so it cannot take turns "
                "with other values; declare profiles with it, or a ladder of Around"
            )


def _candidate_id(flag_values: Sequence[tuple[str, str]], space: Iterable[str]) -> str:
    """Return an id from initials and values: `arctb-64m`; two of them are joined by a plus.

    A flag whose initials are those of another one has its whole name.
    """
    counts = Counter(map(_initials, space))
    return _cut(
        "+".join(
            f"{_initials(name) if counts[_initials(name)] == 1 else name.lower()}-{_slug(value)}"
            for name, value in flag_values
        )
    )


R = TypeVar("R", bound=Rule)


def rules_of_kind(kind: type[R], rules: Iterable[Rule]) -> tuple[R, ...]:
    """Return the rules of one kind, in declared order."""
    return tuple(rule for rule in rules if isinstance(rule, kind))


class Slot(NamedTuple):
    """A slot of a wave whose profiles follow from results."""

    name: str  # e.g. `stack-1`
    wave: str


def slots_of(rules: Iterable[Rule]) -> Mapping[Rule, tuple[Slot, ...]]:
    """Return the slots of each rule; rules of one kind are numbered consecutively."""
    numbers: defaultdict[str, Iterator[int]] = defaultdict(lambda: itertools.count(1))
    return {
        rule: tuple(
            Slot(name=f"{rule.kind}-{next(numbers[rule.kind])}", wave=rule.wave)
            for _ in range(rule.slots)
        )
        for rule in rules
    }


def _is_candidate(profile: Profile) -> bool:
    """Return whether a profile may be combined with others: no control, no `baseline-no-env`.

    A stack with `baseline-no-env` would gain as much as its other part.
    """
    return profile.id != NO_ENV_ID and not profile.is_control


def _stacks(
    combinations: Iterable[Sequence[Leader]], *, wave: str
) -> Iterator[tuple[Profile, list[Message]]]:
    """Yield stacks and the labels of their parts, the largest sum of estimates first."""
    by_estimate = sorted(
        combinations, key=lambda parts: -math.fsum(part.estimate for part in parts)
    )
    for parts in by_estimate:
        stack = _stack([part.profile for part in parts], wave=wave)
        if stack is not None:
            yield stack, [part.label for part in parts]


def _stack(parts: Sequence[Profile], *, wave: str) -> Profile | None:
    """Return the parts as one profile; None if two of them set one thing to two values."""
    values: dict[Key, str] = {}
    for part in parts:
        for key, value in settings_of(part).items():
            # an appending flag keeps the values of all parts
            if key[1] not in APPENDING and values.setdefault(key, value) != value:
                return None
    return Profile(
        id=_cut("+".join(part.id for part in parts)),
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
    """Return the next value up, then the next down; [] if the value has no place on the ladder."""
    if value in ladder:
        at = ladder.index(value)
        return [ladder[near] for near in (at + 1, at - 1) if 0 <= near < len(ladder)]
    # a number between two values of a ladder of numbers has neighbours too
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
    """Return a value as part of an id: 1g for 1073741824, others by their letters and digits."""
    size = to_integer(value) or 0
    if size >= _MIB and size % _MIB == 0:
        return f"{size // _GIB}g" if size % _GIB == 0 else f"{size // _MIB}m"
    slug = "".join(char if char.isascii() and char.isalnum() else "-" for char in value.lower())
    return slug.strip("-") or digest(value, length=4)


def _initials(name: str) -> str:
    """Return a setting's name as part of an id: agctb for all_gather_combine_threshold_bytes."""
    words = name.lower().removeprefix("xla_").removeprefix("gpu_").split("_")
    return "".join(word[0] for word in words if word[:1].isalnum())


def _cut(slug: str) -> str:
    """Return an id of allowed length; a digest keeps shortened ones distinct."""
    if len(slug) <= ID_LENGTH:
        return slug
    return f"{slug[: ID_LENGTH - 9]}-{digest(slug, length=8)}"
