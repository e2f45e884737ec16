"""Which profiles a tuning sweep has at one moment: the declared ones, and those that waves derive.

Of a wave of single settings a candidate that has a trial stays; one that needs no run, that repeats
another or that the catalog objects to gives its slot to the next. A derived wave is filled from the
screen of the waves before it, once that is over, or from what an evidence run of the baseline
shows, and from nothing else: what comes later moves no slot. Profiles that have trials stay,
whatever is read since; the rest of the slots are filled by the rule. Decides no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pytest_xlatune.catalog.context import Context, Shape
from pytest_xlatune.catalog.rules import why_not
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import BASELINE, BASELINE_ID, Profile
from pytest_xlatune.model.result import EvidenceResult, TrialResult, TrialStatus
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
from pytest_xlatune.studies.tuning._slots import Slots
from pytest_xlatune.studies.tuning._stages import Ranking, screen, without_gain
from pytest_xlatune.studies.tuning.derived import (
    Around,
    Crossed,
    DerivedRule,
    Effective,
    Key,
    Leader,
    Placed,
    Singles,
    Slot,
    Stacks,
    is_part,
    left_out,
    placed,
    sentences,
    settings_of,
    slots_of,
)
from pytest_xlatune.studies.verdicts import Losses


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """What a rule comes to at one moment.

    Attributes:
        profiles: that it adds, in order; those that a compile check took out included.
        slotted: those of them that have a slot.
        is_open: whether more could come.
        awaits_evidence: whether an evidence run has to say so.
        said: one sentence each.
    """

    profiles: tuple[Profile, ...]
    slotted: tuple[Profile, ...]
    is_open: bool = False
    awaits_evidence: bool = False
    said: tuple[str, ...] = ()


def choose(
    rule: Singles,
    *,
    evidence: EvidenceResult | None,
    planned: Mapping[str, TrialResult],
    profiles: Sequence[Profile],
    effective: Effective,
    why_not: Callable[[Profile], str],
) -> Filled:
    """Return the candidates that have a slot, in their order, and those that need none.

    Args:
        rule: of the wave.
        evidence: of the baseline; None where there is none yet.
        planned: profile -> its trial in the wave.
        profiles: those that the sweep has besides.
        effective: of the cell.
        why_not: says why a candidate is not worth a trial; "" where nothing says so.
    """
    order = placed(rule, evidence)
    kept = {
        each.profile.id: planned[each.profile.id]
        for each in order
        if each.profile.id in planned
        and each.profile.same_as(planned[each.profile.id].trial.profile)
    }
    # a compile check took them out: the next ones take their places
    unrun = {name for name, each in kept.items() if each.not_run is not None}
    free = rule.slots - len(kept.keys() - unrun)
    if rule.evidence and evidence is None and free > 0:
        own = tuple(each.trial.profile for each in kept.values())
        return Filled(profiles=own, slotted=own, is_open=True, awaits_evidence=True)
    ids = {each.id for each in profiles}
    seen = {effective.key(each): each.id for each in (BASELINE, *profiles)}
    refused: dict[str, str] = {}
    chosen: list[Profile] = []
    for number, each in enumerate(order, start=1):
        profile, key = each.profile, effective.key(each.profile)
        if profile.id in kept:
            chosen.append(kept[profile.id].trial.profile)
        else:
            if profile.id in ids:
                why = "the sweep declares it itself"
            else:
                why = f"the same settings as {seen[key]}" if key in seen else why_not(profile)
            if why:
                refused[profile.id] = why
                continue
            if free <= 0:
                continue
            free -= 1
            chosen.append(_noted(each, number=number, of=len(order)))
        seen.setdefault(key, profile.id)
    said = sentences(
        rule, order, evidence=evidence, chosen=[each.id for each in chosen], refused=refused
    )
    slotted = tuple(each for each in chosen if each.id not in unrun)[: rule.slots]
    return Filled(profiles=tuple(chosen), slotted=slotted, said=said)


def evidence_of(history: History, run: Trial) -> EvidenceResult | None:
    """Return the latest evidence of the baseline that was read, or that could not be recorded.

    Args:
        history: with the evidence trials among it.
        run: the evidence run of the cell as deployed.
    """
    own = [
        each
        for each in history
        if isinstance(each, EvidenceResult)
        and each.trial.is_baseline
        and each.trial.cell_digest == run.cell_digest
    ]
    read = [each for each in own if each.is_read]
    told = [each for each in read if each.shares is not None]
    lost = [
        each
        for each in own
        if each.trial.id == run.id
        and each.status.is_final
        and each.status is not TrialStatus.MEASURED
    ]
    return next(reversed([*lost, *read, *told]), None)


def kinds_of(evidence: EvidenceResult | None) -> tuple[str, ...] | None:
    """Return the collectives of the program, as evidence names them; None where none does."""
    shares = evidence.shares if evidence is not None else None
    return None if shares is None else shares.kinds


def _noted(placed: Placed, *, number: int, of: int) -> Profile:
    """Return a candidate with its place in its note; without evidence as it was declared."""
    profile = placed.profile
    if not placed.why:
        return profile
    place = f"number {number} of {of} by the evidence ({placed.why})"
    return replace(profile, note="; ".join(filter(None, (profile.note, place))))


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
        evidence: the run of the baseline that they wait for; None where they wait for none.
        said: how slots were filled, what was passed over and why, one sentence each.
    """

    profiles: Mapping[str, Profile]
    slots: Mapping[str, Profile]
    candidates: frozenset[str]
    repeats: Mapping[str, str]
    segments: tuple[Segment, ...]
    opens: tuple[str, ...]
    evidence: Trial | None = None
    said: tuple[str, ...] = ()

    @property
    def plannable(self) -> tuple[Segment, ...]:
        """The queues that can be planned now: those before the first wave that is still open."""
        for at, segment in enumerate(self.segments):
            if segment.wave in self.opens:
                return self.segments[:at]
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
        equivalence: relative change that counts as none.
        context: what the catalog's rules are held against; None holds none.
    """

    orders: Orders
    profiles: tuple[Profile, ...]
    rules: tuple[DerivedRule, ...] = ()
    selected: frozenset[str] | None = None
    baselines: Mapping[str, int]
    sigma: float
    losses: Losses
    equivalence: float
    context: Context | None = None

    def at(self, history: History) -> Moment:
        """Return the profiles that there are after `history`."""
        if not self.rules:
            return self._without_rules
        profiles = list(self.profiles)
        slots: dict[str, Profile] = {}
        opens: list[str] = []
        said: list[str] = []
        evidence: Trial | None = None
        is_waiting = False
        for rule in self.rules:
            found = self._filled(rule, profiles, history, is_waiting=is_waiting)
            named = zip(self.slots[rule], found.slotted, strict=False)
            slots |= {slot.name: each for slot, each in named}
            profiles += found.profiles
            said += found.said
            is_waiting = is_waiting or found.is_open
            if found.is_open and self._asks_for(rule):
                opens.append(rule.wave)
                if found.awaits_evidence:
                    evidence = self.evidence_trial
        moment = self._moment(profiles, slots, tuple(opens))
        return replace(moment, evidence=evidence, said=tuple(said))

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

    def _segments(self, profiles: Sequence[Profile], *, before: str = "") -> Iterator[Segment]:
        waves = sorted(self.baselines, key=wave_order)
        for at, wave in enumerate(waves):
            if before and wave_order(wave) >= wave_order(before):
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
        return frozenset(chosen)

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
        made = []
        refused: dict[str, str] = {}
        ids = {each.id for each in profiles}
        seen = set(map(self._effective.key, (*profiles, ALIAS)))
        why_not = self._critic(history)
        free = rule.slots - len(kept)
        useless = self._useless(rule, history) if free else {}
        for each in rule.made(leaders, pool=pool):
            as_kept = next((old for old in kept if old.id == each.id), None)
            if as_kept is not None:
                made.append(as_kept)
            elif free and each.id not in ids and self._effective.key(each) not in seen:
                own = settings_of(each)
                idle = [name for name, part in useless.items() if is_part(part, own)]
                why = f"confirmed to gain nothing: {', '.join(idle)}" if idle else why_not(each)
                if why:
                    refused[each.id] = why
                    continue
                made.append(each)
                free -= 1
            else:
                continue
            ids.add(each.id)
            seen.add(self._effective.key(each))
            if len(made) == rule.slots:
                break
        # a profile that was measured and leads no longer comes last
        found = (*made, *(each for each in kept if each.id not in ids))
        return Filled(profiles=found, slotted=found, said=left_out(rule.wave, refused))

    def _useless(self, rule: DerivedRule, history: History) -> Mapping[str, Mapping[Key, str]]:
        """Return the settings of arms that no new stack may hold: confirmed to gain nothing."""
        blocks = [each.trial for each in history if each.trial.block]
        if isinstance(rule, Around) or not blocks:
            return {}
        arms = {each.arm: each.profile for each in blocks if not each.is_baseline}
        past = self._read(history, arms)
        found = without_gain(past, equivalence=self.equivalence)
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

    def _critic(self, history: History) -> Callable[[Profile], str]:
        """Return what says why a derived profile is not worth a trial.

        The program is asked too, once an evidence run of the baseline has named its collectives.
        """
        context = self.context
        if context is None:
            return lambda _: ""
        kinds = kinds_of(evidence_of(history, self.evidence_trial))
        if kinds is not None:
            context = replace(context, program=Shape.of_kinds(kinds))
        known = self._objections.setdefault(kinds, {})

        def say(profile: Profile) -> str:
            key = f"{profile.id} {profile.settings_text}"
            if key not in known:
                known[key] = why_not(profile, context)
            return known[key]

        return say

    @cached_property
    def _objections(self) -> dict[tuple[str, ...] | None, dict[str, str]]:
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
        segments = tuple(
            each
            for each in self._segments(profiles, before=rule.wave)
            # the baselines of a wave that stayed empty are never run
            if not all(trial.is_baseline for trial in each.trials)
        )
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


def _is_before(wave: str, trial: Trial) -> bool:
    is_of_wave = trial.is_screened and trial.stage != AGAIN
    return is_of_wave and wave_order(trial.stage) < wave_order(wave)


def known_when(rule: DerivedRule) -> str:
    """Say when it is known what fills the slots of a rule."""
    if not isinstance(rule, Singles):
        return "their results decide which profiles"
    if not rule.evidence:
        return "a profile that is left out, or needs no run, gives its slot to the next"
    return "until that evidence run, one more job, they are in declared order"


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
