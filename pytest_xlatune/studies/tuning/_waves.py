"""Which profiles a tuning sweep has at one moment: the declared ones, and those that waves derive.

Of a wave of single settings a candidate that has a trial stays; one that needs no run, that repeats
another or that the catalog objects to gives its slot to the next. A derived wave is filled from the
screen of the waves before it, once that is over, or from what an evidence run of the baseline
shows, and from nothing else: what comes later moves no slot. Half of the stacks run before the
others are chosen: settings that work against each other are in no further one. Profiles that have
trials stay, whatever is read since; the rest of the slots are filled by the rule. Decides no
verdict.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from pytest_xlatune.catalog.context import Context, Shape
from pytest_xlatune.catalog.rules import why_not
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import BASELINE, BASELINE_ID, Profile
from pytest_xlatune.model.reason import Reason, Why, several, verbatim
from pytest_xlatune.model.result import TrialResult, TrialStatus
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.studies import History
from pytest_xlatune.studies.evidence_run import EvidenceStudy
from pytest_xlatune.studies.trials import (
    AGAIN,
    ALIAS,
    Orders,
    Past,
    Segment,
    is_ours,
    read,
    wave_order,
)
from pytest_xlatune.studies.tuning._filling import (
    Filled,
    choose,
    evidence_of,
    kinds_of,
    short_of,
    without_gain,
)
from pytest_xlatune.studies.tuning._slots import Slots
from pytest_xlatune.studies.tuning._stages import Ranking, screen
from pytest_xlatune.studies.tuning.derived import (
    Around,
    Crossed,
    DerivedRule,
    Effective,
    Key,
    Leader,
    Singles,
    Slot,
    Stacks,
    is_part,
    left_out,
    settings_of,
    slots_of,
)
from pytest_xlatune.studies.verdicts import Losses


def wanted(moment: Moment) -> tuple[Segment, ...]:
    """Return the queues of the selected waves; of the first wave where none is selected."""
    found = tuple(
        segment
        for segment in moment.plannable
        if any(trial.arm in moment.candidates for trial in segment.trials)
    )
    return found or (() if moment.opens else moment.segments[:1])


def pending_screen(moment: Moment, past: Past) -> tuple[Trial, ...]:
    """Return what the selected waves still lack; the baselines of a wave go with any of it."""
    screened = (
        trial
        for segment in wanted(moment)
        for trial in segment.trials
        if (trial.is_baseline or trial.arm in moment.candidates) and not past.is_final(trial)
    )
    return (*screened, *([] if moment.evidence is None else [moment.evidence]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """What may fill the slots of a rule at one moment.

    Attributes:
        most: how many slots at most, those that are filled included.
        candidates: the best first; those that have trials among them.
        objections: why -> the settings that no new profile may hold.
        told: what was passed over, and why.
    """

    most: int
    candidates: Iterator[Profile]
    objections: Mapping[Reason, Mapping[Key, str]] = field(default_factory=dict)
    told: tuple[Reason, ...] = ()


LEAD = 1.0  # standard errors above the baseline from which a profile leads


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The profiles of a moment.

    Attributes:
        profiles: by id: the declared in declared order, then the derived in the order of slots.
        slots: name of a slot that is filled -> its profile.
        candidates: ids that this run is about.
        repeats: profile -> what has the same effective settings.
        segments: the queue of each wave in the order they run.
        opens: waves that this run asks for and whose slots cannot be filled yet, in order.
        begun: those of them of which a part runs first.
        unfilled: how many slots of them are not filled.
        evidence: the run of the baseline that they wait for; None where they wait for none.
        told: how slots were filled, what was passed over and why.
    """

    profiles: Mapping[str, Profile]
    slots: Mapping[str, Profile]
    candidates: frozenset[str]
    repeats: Mapping[str, str]
    segments: tuple[Segment, ...]
    opens: tuple[str, ...]
    begun: frozenset[str] = frozenset()
    unfilled: int = 0
    evidence: Trial | None = None
    told: tuple[Reason, ...] = ()

    @property
    def plannable(self) -> tuple[Segment, ...]:
        """The queues that can be planned now: those before the first wave that is still open."""
        for at, segment in enumerate(self.segments):
            if segment.wave in self.opens:
                return self.segments[: at + (segment.wave in self.begun)]
        return self.segments


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """What a sweep says before anything was measured.

    Not slotted, because much follows from its fields and is kept.

    Attributes:
        orders: where the random orders come from.
        profiles: in declared order.
        rules: of the derived waves.
        selected: ids of profiles and names of slots; None is all.
        baselines: wave -> baselines in its queue.
        sigma: standard deviation of a job's score as far as known before.
        losses: with what a trial's loss is compared.
        context: what the catalog's rules are held against; None holds none.
    """

    orders: Orders
    profiles: tuple[Profile, ...]
    rules: tuple[DerivedRule, ...] = ()
    selected: frozenset[str] | None = None
    baselines: Mapping[str, int]
    sigma: float
    losses: Losses
    context: Context | None = None

    def at(self, history: History) -> Moment:
        """Return the profiles that there are after `history`."""
        if not self.rules:
            return self._without_rules
        profiles = list(self.profiles)
        slots: dict[str, Profile] = {}
        opens: list[str] = []
        told: list[Reason] = []
        evidence: Trial | None = None
        begun: set[str] = set()
        unfilled = 0
        waits: list[str] = []
        for rule in self.rules:
            is_waiting = any(wave_order(wave) < wave_order(rule.wave) for wave in waits)
            found = self._filled(rule, profiles, history, is_waiting=is_waiting)
            named = zip(self.slots[rule], found.slotted, strict=False)
            slots |= {slot.name: each for slot, each in named}
            profiles += found.profiles
            told += found.told
            waits += [rule.wave] * found.is_open
            if found.is_open and self._asks_for(rule):
                opens.append(rule.wave)
                begun |= {rule.wave} if found.is_begun else set()
                unfilled += rule.slots - (len(found.slotted) if found.is_begun else 0)
                if found.awaits_evidence:
                    evidence = self.evidence_trial
        moment = self._moment(profiles, slots, tuple(opens))
        return replace(
            moment,
            begun=frozenset(begun),
            unfilled=unfilled,
            evidence=evidence,
            told=tuple(told),
        )

    @cached_property
    def slots(self) -> Mapping[DerivedRule, tuple[Slot, ...]]:
        """The slots of each rule."""
        return slots_of(self.rules)

    @cached_property
    def _without_rules(self) -> Moment:
        return self._moment(self.profiles, {}, ())

    def _moment(
        self, profiles: Sequence[Profile], slots: Mapping[str, Profile], opens: tuple[str, ...]
    ) -> Moment:
        return Moment(
            profiles={each.id: each for each in profiles},
            slots=slots,
            candidates=self._candidates(profiles, slots),
            repeats=self._effective.repeats(profiles),
            segments=tuple(self._segments(profiles)),
            opens=opens,
        )

    @cached_property
    def _effective(self) -> Effective:
        return Effective(self.orders.cell.deployed)

    def _segments(
        self, profiles: Sequence[Profile], *, before: str = "", until: str = ""
    ) -> Iterator[Segment]:
        waves = sorted(self.baselines, key=wave_order)
        for at, wave in enumerate(waves):
            if before and wave_order(wave) >= wave_order(before):
                return
            if until and wave_order(wave) > wave_order(until):
                return
            own = [each for each in profiles if each.wave == wave]
            # one line goes through the baselines of all waves: they lie far apart
            lone = at / max(len(waves) - 1, 1)
            yield self.orders.segment(wave, own, baselines=self.baselines[wave], lone=lone)

    def _asks_for(self, rule: DerivedRule) -> bool:
        """Whether a slot of it is selected, or one of a later wave, which reads this one."""
        if self.selected is None:
            return True
        return any(
            slot.name in self.selected
            for other, slots in self.slots.items()
            if other is rule or wave_order(other.wave) > wave_order(rule.wave)
            for slot in slots
        )

    def _candidates(
        self, profiles: Sequence[Profile], slots: Mapping[str, Profile]
    ) -> frozenset[str]:
        """Return what this run is about; who asks for a slot asks for the waves that it reads."""
        if self.selected is None:
            return frozenset(each.id for each in profiles)
        chosen = {each.id for each in profiles if each.id in self.selected}
        chosen |= {each.id for name, each in slots.items() if name in self.selected}
        for rule in self.rules:
            reads = not isinstance(rule, Singles)
            if reads and any(slot.name in self.selected for slot in self.slots[rule]):
                chosen |= {each.id for each in _before(rule.wave, profiles)}
            if isinstance(rule, Stacks) and self._asks_again(rule):
                first = self.slots[rule][: rule.first]
                chosen |= {slots[each.name].id for each in first if each.name in slots}
        return frozenset(chosen)

    def _asks_again(self, rule: Stacks) -> bool:
        """Whether a slot is selected that is filled by a second look, or one of a later wave."""
        if self.selected is None:
            return True
        own = {slot.name for slot in self.slots[rule][rule.first :]}
        later = {
            slot.name
            for other, slots in self.slots.items()
            if wave_order(other.wave) > wave_order(rule.wave)
            for slot in slots
        }
        return bool((own | later) & self.selected)

    def _filled(
        self, rule: DerivedRule, profiles: Sequence[Profile], history: History, *, is_waiting: bool
    ) -> Filled:
        """Return the profiles of a rule's slots; `is_waiting` while a wave before is open."""
        if isinstance(rule, Singles):
            return choose(
                rule,
                evidence=evidence_of(history, self.evidence_trial),
                planned=self._planned(rule, profiles, history),
                profiles=profiles,
                effective=self._effective,
                why_not=self._critic(history),
            )
        pool = _before(rule.wave, profiles)
        kept = self._kept(rule, pool, profiles, history)
        leaders = None if is_waiting else self._leaders(rule, pool, profiles, history)
        if leaders is None:
            return Filled(profiles=kept, slotted=kept, is_open=len(kept) < rule.slots)
        offered = self._offered(rule, leaders, pool, kept, history)
        most = offered.most
        free = most - len(kept)
        made = []
        refused: dict[str, Reason] = {}
        ids = {each.id for each in profiles}
        seen = set(map(self._effective.key, (*profiles, ALIAS)))
        critic = self._critic(history)
        for each in offered.candidates:
            as_kept = next((old for old in kept if old.id == each.id), None)
            if each.id in ids:
                continue
            if as_kept is not None:
                made.append(as_kept)
            elif free and self._effective.key(each) not in seen:
                settings = settings_of(each)
                against = [
                    why for why, part in offered.objections.items() if is_part(part, settings)
                ]
                if why := several(against) or critic(each):
                    refused[each.id] = why
                    continue
                made.append(each)
                free -= 1
            else:
                continue
            ids.add(each.id)
            seen.add(self._effective.key(each))
            if len(made) == most:
                break
        # a profile that was measured and leads no longer comes last
        slotted = (*made, *(each for each in kept if each.id not in ids))
        is_open = most < rule.slots and len(slotted) == most
        return Filled(
            profiles=slotted,
            slotted=slotted,
            is_open=is_open,
            is_begun=is_open,
            told=(*offered.told, *left_out(rule.wave, refused)),
        )

    def _offered(
        self,
        rule: Stacks | Around | Crossed,
        leaders: Sequence[Leader],
        pool: Sequence[Profile],
        kept: Sequence[Profile],
        history: History,
    ) -> Offered:
        """Return the candidates for the slots that are free, and what none of them may hold."""
        candidates = rule.made(leaders, pool=pool)
        if len(kept) >= rule.slots:
            return Offered(most=rule.slots, candidates=candidates)
        idle = self._useless(rule, history)
        objections = {Reason(Why.GAINS_NOTHING, arm=each): idle[each] for each in idle}
        if isinstance(rule, Stacks) and self._is_first_look(rule, kept, history):
            return Offered(most=rule.first, candidates=candidates, objections=objections)
        short = self._short(rule, pool, kept, history) if isinstance(rule, Stacks) else {}
        told: tuple[Reason, ...] = ()
        if isinstance(rule, Stacks) and short:
            ran = {each.id for each in kept}
            own = (each for each in candidates if each.id in ran)
            more = rule.again(leaders, pool=pool, short=short.values())
            candidates = itertools.chain(own, more)
            told = (Reason(Why.FELL_SHORT, wave=rule.wave, arms=tuple(short)),)
        return Offered(most=rule.slots, candidates=candidates, objections=objections, told=told)

    def _is_first_look(self, rule: Stacks, kept: Sequence[Profile], history: History) -> bool:
        """Whether the first stacks have to run before the others are chosen."""
        if rule.first == rule.slots or len(kept) > rule.first or not self._asks_again(rule):
            return False
        ids = {each.id for each in kept}
        over = {
            each.trial.arm
            for each in history
            if each.trial.stage == rule.wave and each.status.is_final and each.trial.arm in ids
        }
        return len(over) < rule.first

    def _short(
        self,
        rule: Stacks,
        pool: Sequence[Profile],
        kept: Sequence[Profile],
        history: History,
    ) -> dict[str, Mapping[Key, str]]:
        """Return the settings of the stacks that ran and fell short of their parts, by id."""
        declared = {each.id: each for each in (*pool, *kept)}
        own = [each for each in history if _is_before(rule.wave, each.trial, or_in=True)]
        segments = self._segments(tuple(declared.values()), until=rule.wave)
        standings = screen(self._read(own, declared), _measured(segments)).standings
        return short_of(kept, pool, {name: each.estimate for name, each in standings.items()})

    def _useless(self, rule: DerivedRule, history: History) -> Mapping[str, Mapping[Key, str]]:
        """Return the settings of arms that no new stack may hold: confirmed to gain nothing."""
        blocks = [each.trial for each in history if each.trial.block]
        if isinstance(rule, Around) or not blocks:
            return {}
        arms = {each.arm: each.profile for each in blocks if not each.is_baseline}
        past = self._read(history, arms)
        found = without_gain(past)
        return {each: settings_of(arms[each]) for each in sorted(found & arms.keys())}

    def _planned(
        self, rule: DerivedRule, profiles: Sequence[Profile], history: History
    ) -> dict[str, TrialResult]:
        """Return the trials of a rule's wave whose profiles the sweep does not declare."""
        known = {each.id for each in profiles}
        return {
            each.trial.profile.id: each
            for each in history
            if each.trial.stage == rule.wave
            and not each.trial.is_baseline
            and each.trial.profile.id not in known
            and is_ours(each.trial, protocols=self.orders.protocols)
        }

    @cached_property
    def evidence_trial(self) -> Trial:
        """The evidence run of the cell as deployed."""
        return EvidenceStudy(cell=self.orders.cell, profile=BASELINE).trial

    def _critic(self, history: History) -> Callable[[Profile], Reason | None]:
        """Return what says why a derived profile is not worth a trial.

        The program is asked too, once an evidence run of the baseline has named its collectives.
        """
        context = self.context
        if context is None:
            return lambda _: None
        kinds = kinds_of(evidence_of(history, self.evidence_trial))
        if kinds is not None:
            context = replace(context, program=Shape.of_kinds(kinds))
        known = self._objections.setdefault(kinds, {})

        def why(profile: Profile) -> Reason | None:
            key = f"{profile.id} {profile.settings_text}"
            if key not in known:
                text = why_not(profile, context)
                known[key] = verbatim(text) if text else None  # the catalog's own words
            return known[key]

        return why

    @cached_property
    def _objections(self) -> dict[tuple[str, ...] | None, dict[str, Reason | None]]:
        return {}

    def _kept(
        self,
        rule: Stacks | Around | Crossed,
        pool: Sequence[Profile],
        profiles: Sequence[Profile],
        history: History,
    ) -> tuple[Profile, ...]:
        """Return the profiles of this rule that have trials."""
        planned = {
            name: each.trial.profile
            for name, each in self._planned(rule, profiles, history).items()
        }
        found = {each.id: each for each in rule.kept(planned, pool=pool)}
        return tuple(found[each] for each in sorted(found))[: rule.slots]

    def _leaders(
        self,
        rule: DerivedRule,
        pool: Sequence[Profile],
        profiles: Sequence[Profile],
        history: History,
    ) -> tuple[Leader, ...] | None:
        """Return what led the waves before, best first; None while they are not over."""
        declared = {each.id: each for each in pool}
        past = self._read([each for each in history if _is_before(rule.wave, each.trial)], declared)
        segments = _measured(self._segments(profiles, before=rule.wave))
        if not all(past.is_final(trial) for each in segments for trial in each.trials):
            return None
        ranked = screen(past, segments)
        # a few baselines may lie far apart by chance, and profiles by what they do: both must
        own = ranked.sigma or 0.0
        sigma = max(self.sigma, min(own, ranked.spread or own))
        repeats = self._effective.repeats(pool)
        level = ranked.level
        leaders = [
            Leader(profile=each, estimate=standing.estimate)
            for each in pool
            if (standing := ranked.standings.get(each.id)) is not None
            and math.isfinite(standing.estimate)
            and standing.estimate - level > LEAD * sigma * math.sqrt(standing.variance)
            and each.id not in repeats
            and self._is_sound(past, each.id)
        ]
        return tuple(sorted(leaders, key=lambda each: -each.estimate))

    def _read(self, history: History, declared: Mapping[str, Profile]) -> Past:
        orders = self.orders
        return read(
            history, protocols=orders.protocols, declared=declared, slots=bool(orders.slots)
        )

    def _is_sound(self, past: Past, profile_id: str) -> bool:
        trials = past.screens_of(profile_id)
        is_dropped = any(each.status is TrialStatus.DROPPED for each in trials)
        return not is_dropped and not self.losses.reason(past, profile_id)


def check_rules(
    rules: Sequence[DerivedRule],
    profiles: Sequence[Profile],
    *,
    selected: frozenset[str] | None,
    where: str,
) -> None:
    """Refuse rules that nothing can come of, and names that no profile has.

    Raises:
        ConfigError: a wave that has none before it, two rules of a kind in one wave, a profile
            that takes a slot's name, a selected name that is neither.
    """
    ids = {BASELINE_ID, *(each.id for each in profiles)}
    kinds = [(rule.kind, rule.wave) for rule in rules]
    sources: list[Profile | Singles] = [*profiles]
    sources += [rule for rule in rules if isinstance(rule, Singles)]
    for rule in rules:
        if isinstance(rule, Singles):
            ids |= {each.id for each in rule.candidates}
        elif not any(wave_order(each.wave) < wave_order(rule.wave) for each in sources):
            raise ConfigError(
                f"{where}: {rule.wave} is derived from the waves before it, and no profile is in "
                f"one of them; declare single flags in an earlier wave, or name a later one"
            )
        if kinds.count((rule.kind, rule.wave)) > 1:
            raise ConfigError(
                f"{where}: {rule.wave} has two rules of the kind {rule.kind!r}; give one more slots"
            )
    names = {slot.name for slots in slots_of(rules).values() for slot in slots}
    for taken in sorted(names & ids):
        raise ConfigError(
            f"{where}: the id {taken!r} is the name of a slot of a derived wave; choose another id"
        )
    ids = {BASELINE_ID, *(each.id for each in profiles)}
    for unknown in sorted((selected or frozenset()) - ids - names):
        raise ConfigError.unknown("profile", unknown, valid=ids | names, where=where)


def _before(wave: str, profiles: Sequence[Profile]) -> list[Profile]:
    return [each for each in profiles if wave_order(each.wave) < wave_order(wave)]


def _is_before(wave: str, trial: Trial, *, or_in: bool = False) -> bool:
    is_of_wave = trial.is_screened and trial.stage != AGAIN
    is_in = or_in and trial.stage == wave
    return is_of_wave and (is_in or wave_order(trial.stage) < wave_order(wave))


def _measured(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """Return the queues that run: the baselines of a wave that stayed empty never do."""
    return tuple(each for each in segments if not all(trial.is_baseline for trial in each.trials))


@dataclass(frozen=True, kw_only=True)
class SweepMoment:
    """What one history comes to, worked out once.

    Attributes:
        slots: the node slots; None where there is one.
        moment: the profiles that there are.
        past: the trials of the study.
        first: what the first runs of the screen say.
        ranking: what all of them say; the same where none ran twice.
        pending: the trials that the screen still lacks.
    """

    slots: Slots | None
    moment: Moment
    past: Past
    first: Ranking
    ranking: Ranking
    pending: tuple[Trial, ...]

    @cached_property
    def second(self) -> tuple[str, ...]:
        """The profiles that have a second run in the screen."""
        return tuple(sorted(key.arm for key in self.past.screen if key.stage == AGAIN))

    @cached_property
    def queues(self) -> tuple[tuple[Trial, ...], ...]:
        """The queues of the waves; the baselines of one that stayed empty are never run."""
        return tuple(
            each.trials
            for each in self.moment.segments
            if not all(trial.is_baseline for trial in each.trials)
        )

    @property
    def screened_jobs(self) -> int:
        """The jobs that the screen took or takes, second runs included."""
        results = [self.past.of(trial) for queue in self.queues for trial in queue]
        unrun = sum(each is not None and each.not_run is not None for each in results)
        return len(results) + len(self.second) - unrun

    @cached_property
    def ranks(self) -> Mapping[str, tuple[float, int]]:
        """Profile -> what it is sorted by: its estimate, and its place among equals."""
        places = {each: at for at, each in enumerate(self.moment.profiles)}
        return {
            each: (-standing.estimate, places[each])
            for each, standing in self.ranking.standings.items()
        }
