"""Which profiles a tuning sweep has at one moment: the declared ones, and those that waves derive.

A derived wave is filled once: from what an evidence run of the baseline shows, or from the screen
of the waves before it when that is over, and from nothing else, so that what comes later moves no
slot. A profile that has a trial stays, whatever is read since; the rest of the slots are filled by
the rule. What repeats another profile, or what the catalog objects to, gives its slot to the next.
The candidates of a search come round by round. Spends no error rate and decides no verdict.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from msgspec.structs import replace

from pytest_xlatune.catalog.context import Shape
from pytest_xlatune.catalog.rules import why_not
from pytest_xlatune.model.message import Message, say, verbatim
from pytest_xlatune.model.profile import BASELINE, Profile
from pytest_xlatune.model.result import EvidenceResult, TrialResult, TrialStatus
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.search import Point
from pytest_xlatune.studies import History
from pytest_xlatune.studies.derived import (
    Leader,
    LeaderRule,
    Placed,
    Rule,
    Search,
    Singles,
    choices,
    left_out,
    placed,
)
from pytest_xlatune.studies.screen import Ranking, screen
from pytest_xlatune.studies.slots import Slots
from pytest_xlatune.studies.trials import (
    AGAIN,
    ALIAS,
    LOOK,
    Past,
    Segment,
    is_ours,
    pace_of,
    wave_order,
)
from pytest_xlatune.studies.tuning_plan import TuningPlan
from pytest_xlatune.studies.vetoes import of_arm

LEAD = 1.0  # standard errors above the baseline from which a profile leads


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledWave:
    """What a rule comes to at one moment.

    Attributes:
        profiles: that it adds, one in each slot that it fills, in their order.
        is_open: whether more could come.
        is_begun: whether those that there are run before more can come.
        awaits_evidence: whether an evidence run has to say so.
        told: how, and what was passed over.
    """

    profiles: tuple[Profile, ...]
    is_open: bool = False
    is_begun: bool = False
    awaits_evidence: bool = False
    told: tuple[Message, ...] = ()


class Waves:
    """The profiles of a sweep after a history, and the waves that they run in.

    Attributes:
        sweep: whose.
        history: after which.
        profiles: by id: the declared in declared order, then the derived in the order of slots.
        slots: name of a slot that is filled -> its profile.
        candidates: ids that this run is about.
        repeats: profile -> what has the same effective settings.
        queues: the queue of each wave in the order they run.
        opens: waves that this run asks for and whose slots cannot be filled yet, in order.
        begun: those of them of which a part runs first.
        unfilled: how many slots of them are not filled.
        evidence: the run of the baseline that they wait for; None where they wait for none.
        told: how slots were filled, what was passed over and why.
    """

    def __init__(self, sweep: TuningPlan, history: History, slots: Slots | None) -> None:
        self.sweep = sweep
        self.history = history
        self.slots: dict[str, Profile] = {}
        self.opens: list[str] = []
        self.begun: set[str] = set()
        self.unfilled = 0
        self.evidence: Trial | None = None
        self.told: list[Message] = []
        self._all = list(sweep.profiles)  # those that are known so far
        waits: list[str] = []
        for rule in sweep.rules:
            is_waiting = any(wave_order(wave) < wave_order(rule.wave) for wave in waits)
            found = self._filled(rule, is_waiting=is_waiting)
            named = zip(sweep.places[rule], found.profiles, strict=False)
            self.slots |= {slot.name: profile for slot, profile in named}
            self._all += found.profiles
            self.told += found.told
            waits += [rule.wave] * found.is_open
            if found.is_open and self._asks_for(rule):
                self.opens.append(rule.wave)
                self.begun |= {rule.wave} if found.is_begun else set()
                self.unfilled += rule.slots - (len(found.profiles) if found.is_begun else 0)
                if found.awaits_evidence:
                    self.evidence = sweep.evidence_trial
        self.profiles = {profile.id: profile for profile in self._all}
        self.candidates = self._candidates()
        is_declared = not sweep.rules
        self.repeats = sweep.declared_aliases if is_declared else sweep.effective.repeats(self._all)
        own = sweep.declared_queues if is_declared else sweep.queues(self._all)
        self.queues = tuple(map(self._unranked, own))
        if slots is not None:
            self.queues = slots.dealt(self.queues, at_most=sweep.screen_slots)

    @cached_property
    def _told(self) -> frozenset[str]:
        """The profiles that no further rotation ranks: jobs did, or the first one left them out."""
        return frozenset(
            result.trial.arm
            for result in self.history
            if result.trial.is_screened
            and result.status.is_final
            and (result.rotation is None or result.status is TrialStatus.DROPPED)
        )

    def _unranked(self, queue: Segment) -> Segment:
        """Return a queue without second rotations of a profile that is told, or of long steps."""
        if not self.sweep.rotates:
            return queue
        looks = [result for result in self.history if result.trial.stage == LOOK]
        is_once = self.sweep.turns_by(pace_of(looks)).rankings == 1
        kept = (
            trial
            for trial in queue.trials
            if trial.is_baseline or not trial.position or not (is_once or trial.arm in self._told)
        )
        return dataclasses.replace(queue, trials=tuple(kept))

    @cached_property
    def read_evidence(self) -> EvidenceResult | None:
        """What an evidence run of the baseline says; None before one did."""
        return evidence_of(self.history, self.sweep.evidence_trial)

    @cached_property
    def queued(self) -> tuple[Trial, ...]:
        """The trials of all waves; the baselines of one that stayed empty are never run."""
        return tuple(t for segment in self.queues if segment.has_profiles for t in segment.trials)

    @property
    def plannable(self) -> tuple[Segment, ...]:
        """The queues that can be planned now: those before the first wave that is still open."""
        for at, segment in enumerate(self.queues):
            if segment.wave in self.opens:
                return self.queues[: at + (segment.wave in self.begun)]
        return self.queues

    @property
    def selected(self) -> tuple[Segment, ...]:
        """Those of the selected waves; of the first wave where none is selected."""
        found = tuple(
            segment
            for segment in self.plannable
            if any(trial.arm in self.candidates for trial in segment.trials)
        )
        return found or (() if self.opens else self.queues[:1])

    def is_asked(self, trial: Trial) -> bool:
        """Whether this run is about a trial: the baselines of a wave go with any of it."""
        return trial.is_baseline or trial.arm in self.candidates

    def _asks_for(self, rule: Rule) -> bool:
        """Whether a slot of it is selected, or one of a later wave, which reads this one."""
        if self.sweep.selected is None:
            return True
        return any(
            slot.name in self.sweep.selected
            for other, slots in self.sweep.places.items()
            if other is rule or wave_order(other.wave) > wave_order(rule.wave)
            for slot in slots
        )

    def _candidates(self) -> frozenset[str]:
        """Return what this run is about; who asks for a slot asks for the waves that it reads."""
        selected, profiles, places = self.sweep.selected, self._all, self.sweep.places
        if selected is None:
            return frozenset(profile.id for profile in profiles)
        chosen = {profile.id for profile in profiles if profile.id in selected}
        chosen |= {profile.id for name, profile in self.slots.items() if name in selected}
        for rule in self.sweep.rules:
            reads = isinstance(rule, LeaderRule)
            if reads and any(slot.name in selected for slot in places[rule]):
                chosen |= {profile.id for profile in self._before(rule)}
        return frozenset(chosen)

    def _before(self, rule: Rule) -> list[Profile]:
        """Return the profiles of the waves that a rule reads."""
        return [
            profile for profile in self._all if wave_order(profile.wave) < wave_order(rule.wave)
        ]

    def _filled(self, rule: Rule, *, is_waiting: bool) -> FilledWave:
        """Return the profiles of a rule's slots; `is_waiting` while a wave before is open."""
        match rule:
            case Singles():
                return self._chosen(rule)
            case Search():
                return self._searched(rule)
            case LeaderRule():
                return self._led(rule, self._before(rule), is_waiting=is_waiting)
            case _:
                raise TypeError(rule.kind)

    def _led(self, rule: LeaderRule, pool: Sequence[Profile], *, is_waiting: bool) -> FilledWave:
        """Return what a rule makes of the leaders of the waves before, those with trials first."""
        planned = {name: result.trial.profile for name, result in self._planned(rule).items()}
        kept = {profile.id: profile for profile in rule.kept(planned, pool=pool)}
        leaders = None if is_waiting else self._leaders(rule, pool)
        if leaders is None:
            own = tuple(kept.values())
            return FilledWave(profiles=own, is_open=len(own) < rule.slots)
        key, critic = self.sweep.effective.key, self._critic()
        free = rule.slots - len(kept)
        made: dict[str, Profile] = {}
        refused: dict[str, Message] = {}
        known = {profile.id for profile in self._all}
        seen = set(map(key, (*self._all, ALIAS)))
        for profile in rule.made(rule.able(leaders, pool=pool), pool=pool):
            if len(made) == rule.slots:
                break
            if profile.id in known or profile.id in made:
                continue
            if profile.id not in kept:
                if not free or key(profile) in seen:
                    continue
                if why := critic(profile):
                    refused[profile.id] = why
                    continue
                free -= 1
            made[profile.id] = kept.get(profile.id, profile)
            seen.add(key(profile))
        # a profile that was measured and leads no longer comes last
        own = tuple((made | {name: kept[name] for name in kept if name not in made}).values())
        return FilledWave(profiles=own, told=left_out(rule.wave, refused))

    def _chosen(self, rule: Singles) -> FilledWave:
        """Return the candidates that have a slot, in their order, and those that need no run."""
        evidence, planned, why_not = self.read_evidence, self._planned(rule), self._critic()
        order = placed(rule, evidence)
        kept = {
            candidate.profile.id: planned[candidate.profile.id]
            for candidate in order
            if candidate.profile.id in planned
            and candidate.profile.same_as(planned[candidate.profile.id].trial.profile)
        }
        free = rule.slots - len(kept)
        if rule.evidence and evidence is None and free > 0:
            own = tuple(result.trial.profile for result in kept.values())
            return FilledWave(profiles=own, is_open=True, awaits_evidence=True)
        ids, key = {profile.id for profile in self._all}, self.sweep.effective.key
        seen = {key(each): each.id for each in (BASELINE, *self._all)}
        refused: dict[str, Message] = {}
        chosen: list[Profile] = []
        for number, candidate in enumerate(order, start=1):
            profile = candidate.profile
            if profile.id in kept:
                chosen.append(kept[profile.id].trial.profile)
            else:
                if profile.id in ids:
                    why: Message | None = say("the sweep declares it itself")
                elif key(profile) in seen:
                    why = say("the same settings as {profile}", profile=seen[key(profile)])
                else:
                    why = why_not(profile)
                if why is not None:
                    refused[profile.id] = why
                    continue
                if free <= 0:
                    continue
                free -= 1
                chosen.append(_noted(candidate, number=number, of=len(order)))
            seen.setdefault(key(profile), profile.id)
        told = choices(
            rule, order, evidence=evidence, chosen=[each.id for each in chosen], refused=refused
        )
        return FilledWave(profiles=tuple(chosen), told=told)

    def _searched(self, rule: Search) -> FilledWave:
        """Return the candidates that were measured, by rounds, and those of the next."""
        planned = self._planned(rule)
        kept = tuple(
            found
            for name, result in planned.items()
            if (found := rule.find(name)) and found.same_as(result.trial.profile)
        )[: rule.slots]
        if any(not planned[profile.id].status.is_final for profile in kept):
            is_open = len(kept) < rule.slots
            return FilledWave(profiles=kept, is_open=is_open, is_begun=is_open)
        most = min(rule.at_once, rule.slots - len(kept))
        asked, refused = self._next_round(rule, kept, planned, most=most)
        own = (*kept, *asked)
        is_open = len(asked) == most and len(own) < rule.slots
        said = say(
            "{wave}: the search measured {tried} of {points} candidates; the best of them "
            "go on to fresh blocks of ordinary jobs, which alone decide",
            wave=rule.wave,
            tried=len(kept),
            points=rule.points,
        )
        return FilledWave(
            profiles=own,
            is_open=is_open,
            is_begun=is_open,
            told=(*([said] if kept else ()), *left_out(rule.wave, refused)),
        )

    def _next_round(
        self,
        rule: Search,
        kept: Sequence[Profile],
        planned: Mapping[str, TrialResult],
        *,
        most: int,
    ) -> tuple[list[Profile], dict[str, Message]]:
        """Return the candidates of the next round, and why others have no place in it."""
        key, critic, scores = self.sweep.effective.key, self._critic(), self._scores_of(rule, kept)
        seen = set(map(key, (*self._all, *kept, ALIAS)))
        ids = {profile.id for profile in (*self._all, *kept)}
        dropped = [e.id for e in kept if planned[e.id].status is TrialStatus.DROPPED]
        without = {rule.names[profile.id] for profile in kept} | rule.beside(dropped, scores)
        asked: list[Profile] = []
        refused: dict[str, Message] = {}
        while len(asked) < most:
            found = rule.asked(
                scores,
                without=without,
                count=most - len(asked),
                rng_seed=f"{self.sweep.seed} {rule.wave}",
            )
            if not found:
                break
            for profile in found:
                without.add(rule.names[profile.id])
                if profile.id in ids or key(profile) in seen:
                    continue
                if why := critic(profile):
                    refused[profile.id] = why
                    continue
                asked.append(profile)
        return asked, refused

    def _scores_of(self, rule: Search, kept: Sequence[Profile]) -> dict[Point, float]:
        """Return what the screen says of the candidates of a search that were measured."""
        own = [result for result in self.history if _is_before(rule.wave, result.trial, or_in=True)]
        if not own or not kept:
            return {}
        declared = {profile.id: profile for profile in (*self._before(rule), *kept)}
        every = self.sweep.queues(tuple(declared.values()), until=rule.wave)
        queues = [segment for segment in every if segment.has_profiles]
        standings = self._ranked(self.sweep.read(own, declared), queues).standings
        return {
            rule.names[profile.id]: round(standing.estimate, 9)
            for profile in kept
            if (standing := standings.get(profile.id)) and math.isfinite(standing.estimate)
        }

    def _planned(self, rule: Rule) -> dict[str, TrialResult]:
        """Return the trials of a rule's wave whose profiles are not known otherwise."""
        known = {profile.id for profile in self._all}
        return {
            result.trial.profile.id: result
            for result in self.history
            if result.trial.stage == rule.wave
            and not result.trial.is_baseline
            and result.trial.profile.id not in known
            and is_ours(result.trial, protocols=self.sweep.orders.protocols)
        }

    def _critic(self) -> Callable[[Profile], Message | None]:
        """Return what says why a derived profile is not worth a trial.

        The program is asked too, once an evidence run of the baseline has named its collectives.
        """
        context = self.sweep.context
        if context is None:
            return lambda _: None
        kinds = kinds_of(self.read_evidence)
        if kinds is not None:
            context = replace(context, program=Shape.of_kinds(kinds))
        known = self.sweep.objections.setdefault(kinds, {})

        def why(profile: Profile) -> Message | None:
            key = f"{profile.id} {profile.settings_text}"
            if key not in known:
                text = why_not(profile, context)
                known[key] = verbatim(text) if text else None  # the catalog's own words
            return known[key]

        return why

    def _ranked(self, past: Past, queues: Sequence[Segment]) -> Ranking:
        return screen(past, queues, sigma=self.sweep.noise.value)

    def _leaders(self, rule: Rule, pool: Sequence[Profile]) -> tuple[Leader, ...] | None:
        """Return what led the waves before, best first; None while they are not over."""
        sweep = self.sweep
        own = [result for result in self.history if _is_before(rule.wave, result.trial)]
        past = sweep.read(own, {profile.id: profile for profile in pool})
        every = map(self._unranked, sweep.queues(self._all, before=rule.wave))
        queues = [segment for segment in every if segment.has_profiles]
        if not all(past.is_final(trial) for segment in queues for trial in segment.trials):
            return None
        ranked = self._ranked(past, queues)
        # a few baselines may lie far apart by chance, and profiles by what they do: both must
        seen = ranked.sigma or 0.0
        sigma = max(sweep.noise.value, min(seen, ranked.spread or seen))
        repeats = sweep.effective.repeats(pool)
        level = ranked.level
        leaders = [
            Leader(profile=profile, estimate=standing.estimate)
            for profile in pool
            if (standing := ranked.standings.get(profile.id)) is not None
            and math.isfinite(standing.estimate)
            and standing.estimate - level > LEAD * sigma * math.sqrt(standing.variance)
            and profile.id not in repeats
            and of_arm(past, profile.id, tolerance=sweep.loss_tolerance) is None
        ]
        return tuple(sorted(leaders, key=lambda each: -each.estimate))


def _is_before(wave: str, trial: Trial, *, or_in: bool = False) -> bool:
    is_of_wave = trial.is_screened and trial.stage != AGAIN
    is_in = or_in and trial.stage == wave
    return is_of_wave and (is_in or wave_order(trial.stage) < wave_order(wave))


def evidence_of(history: History, run: Trial) -> EvidenceResult | None:
    """Return the latest evidence of the baseline that was read, or that could not be recorded.

    Args:
        history: with the evidence trials among it.
        run: the evidence run of the cell as deployed.
    """
    own = [
        result
        for result in history
        if isinstance(result, EvidenceResult)
        and result.trial.is_baseline
        and result.trial.cell_digest == run.cell_digest
    ]
    read = [result for result in own if result.is_read]
    told = [result for result in read if result.shares is not None]
    lost = [
        result
        for result in own
        if result.trial.id == run.id
        and result.status.is_final
        and result.status is not TrialStatus.MEASURED
    ]
    return next(reversed([*lost, *read, *told]), None)


def kinds_of(evidence: EvidenceResult | None) -> tuple[str, ...] | None:
    """Return the collectives of the program, as evidence names them; None where none does."""
    shares = evidence.shares if evidence is not None else None
    return None if shares is None else shares.kinds


def _noted(placed: Placed, *, number: int, of: int) -> Profile:
    """Return a candidate with its place; without evidence as it was declared."""
    if placed.why is None:
        return placed.profile
    place = say(
        "number {number} of {of} by the evidence ({why})", number=number, of=of, why=placed.why
    )
    return replace(placed.profile, origin=place)
