"""The profiles of a tuning sweep at one moment: the declared ones, and those of derived waves.

A derived wave is filled once, from an evidence run of the baseline or from the finished screen of
the waves before it, so that later results change no slot. A profile that has a trial stays; the
rule fills the other slots. A profile that repeats another, or that the catalog objects to, gives
its slot to the next. The candidates of a search come round by round. This module spends no alpha
and decides no verdict.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    LOOK_STAGE,
    Past,
    Segment,
    is_ours,
    pace_of,
    wave_order,
)
from pytest_xlatune.studies.tuning_plan import TuningPlan
from pytest_xlatune.studies.vetoes import of_arm

LEAD = 1.0  # a profile leads from so many standard errors above the baseline


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledWave:
    """The result of a rule at one moment.

    Attributes:
        profiles: the profiles that it adds, in the order of the slots.
        is_open: whether more profiles may come.
        is_begun: whether the present profiles run before more may come.
        awaits_evidence: whether an evidence run must first show what fills the slots.
        messages: how the slots were filled, and what was passed over.
    """

    profiles: tuple[Profile, ...]
    is_open: bool = False
    is_begun: bool = False
    awaits_evidence: bool = False
    messages: tuple[Message, ...] = ()


class Waves:
    """The profiles of a sweep after a history, and the waves that they run in.

    Attributes:
        plan: the plan of the sweep.
        history: the history so far.
        profiles: id -> profile: the declared in declared order, then the derived by slot.
        slots: name of a filled slot -> its profile.
        candidates: ids of the profiles that this run measures.
        repeats: profile -> an earlier profile with the same effective settings.
        queues: the queue of each wave, in the order in which they run.
        opens: waves that this run asks for but whose slots cannot be filled yet, in order.
        partly_open: those of them of which some profiles run first.
        unfilled: the number of empty slots in open waves.
        evidence: the evidence run that waves wait for; None if none does.
        messages: how slots were filled, and what was passed over and why.
    """

    def __init__(self, plan: TuningPlan, history: History, slots: Slots | None) -> None:
        self.plan = plan
        self.history = history
        self.slots: dict[str, Profile] = {}
        self.opens: list[str] = []
        self.partly_open: set[str] = set()
        self.unfilled = 0
        self.evidence: Trial | None = None
        self.messages: list[Message] = []
        self._all = list(plan.profiles)  # the profiles that are known so far
        waits: list[str] = []
        for rule in plan.rules:
            is_waiting = any(wave_order(wave) < wave_order(rule.wave) for wave in waits)
            filled = self._filled(rule, is_waiting=is_waiting)
            named = zip(plan.places[rule], filled.profiles, strict=False)
            self.slots |= {slot.name: profile for slot, profile in named}
            self._all += filled.profiles
            self.messages += filled.messages
            waits += [rule.wave] * filled.is_open
            if filled.is_open and self._asks_for(rule):
                self.opens.append(rule.wave)
                self.partly_open |= {rule.wave} if filled.is_begun else set()
                self.unfilled += rule.slots - (len(filled.profiles) if filled.is_begun else 0)
                if filled.awaits_evidence:
                    self.evidence = plan.evidence_trial
        self.profiles = {profile.id: profile for profile in self._all}
        self.candidates = self._candidates()
        is_declared = not plan.rules
        self.repeats = plan.declared_aliases if is_declared else plan.effective.repeats(self._all)
        queues = plan.declared_queues if is_declared else plan.queues(self._all)
        self.queues = tuple(map(self._unranked, queues))
        if slots is not None:
            self.queues = slots.dealt(self.queues, at_most=plan.screen_slots)

    @cached_property
    def _settled(self) -> frozenset[str]:
        """The profiles that no further rotation ranks: jobs did, or the first one left them out."""
        return frozenset(
            result.trial.arm
            for result in self.history
            if result.trial.is_screened
            and result.status.is_final
            and (result.rotation is None or result.status is TrialStatus.DROPPED)
        )

    def _unranked(self, queue: Segment) -> Segment:
        """Return a queue without second rankings that are not needed or take too long."""
        if not self.plan.rotates:
            return queue
        looks = [result for result in self.history if result.trial.stage == LOOK_STAGE]
        is_once = self.plan.turns_by(pace_of(looks)).rankings == 1
        kept = (
            trial
            for trial in queue.trials
            if trial.is_baseline
            or not trial.position
            or not (is_once or trial.arm in self._settled)
        )
        return dataclasses.replace(queue, trials=tuple(kept))

    @cached_property
    def read_evidence(self) -> EvidenceResult | None:
        """The evidence of the baseline; None before a run was read."""
        return evidence_of(self.history, self.plan.evidence_trial)

    @cached_property
    def queued(self) -> tuple[Trial, ...]:
        """The trials of all waves, without the baselines of a wave that has no profile."""
        return tuple(t for segment in self.queues if segment.has_profiles for t in segment.trials)

    @property
    def plannable(self) -> tuple[Segment, ...]:
        """The queues that can be planned now: those before the first wave that is still open."""
        for at, segment in enumerate(self.queues):
            if segment.wave in self.opens:
                return self.queues[: at + (segment.wave in self.partly_open)]
        return self.queues

    @property
    def selected(self) -> tuple[Segment, ...]:
        """The queues of the selected waves; the first wave if none is selected."""
        segments = tuple(
            segment
            for segment in self.plannable
            if any(trial.arm in self.candidates for trial in segment.trials)
        )
        return segments or (() if self.opens else self.queues[:1])

    @property
    def to_screen(self) -> tuple[Trial, ...]:
        """The trials of the selected waves, then the evidence run if waves wait for it."""
        asked = [trial for queue in self.selected for trial in queue.trials if self.is_asked(trial)]
        return (*asked, *([] if self.evidence is None else [self.evidence]))

    def is_asked(self, trial: Trial) -> bool:
        """Return whether this run asks for a trial; baselines belong to all of their wave."""
        return trial.is_baseline or trial.arm in self.candidates

    def _asks_for(self, rule: Rule) -> bool:
        """Return whether one of its slots is selected, or of a later wave that depends on it."""
        if self.plan.selected is None:
            return True
        return any(
            slot.name in self.plan.selected
            for other, slots in self.plan.places.items()
            if other is rule or wave_order(other.wave) > wave_order(rule.wave)
            for slot in slots
        )

    def _candidates(self) -> frozenset[str]:
        """Return the ids that this run measures, with the waves that selected slots need."""
        selected, profiles, places = self.plan.selected, self._all, self.plan.places
        if selected is None:
            return frozenset(profile.id for profile in profiles)
        chosen = {profile.id for profile in profiles if profile.id in selected}
        chosen |= {profile.id for name, profile in self.slots.items() if name in selected}
        for rule in self.plan.rules:
            reads = isinstance(rule, LeaderRule)
            if reads and any(slot.name in selected for slot in places[rule]):
                chosen |= {profile.id for profile in self._before(rule)}
        return frozenset(chosen)

    def _before(self, rule: Rule) -> list[Profile]:
        """Return the profiles of the waves that a rule depends on."""
        return [
            profile for profile in self._all if wave_order(profile.wave) < wave_order(rule.wave)
        ]

    def _filled(self, rule: Rule, *, is_waiting: bool) -> FilledWave:
        """Return the profiles of a rule's slots; `is_waiting` while an earlier wave is open."""
        planned = self._planned(rule)
        match rule:
            case Singles():
                return self._chosen(rule, planned)
            case Search():
                return self._searched(rule, planned)
            case LeaderRule():
                return self._led(rule, planned, is_waiting=is_waiting)
            case _:
                raise TypeError(rule.kind)

    def _given(
        self,
        order: Iterable[Profile],
        kept: Mapping[str, Profile],
        *,
        slots: int,
        is_named: bool = False,
    ) -> tuple[dict[str, Profile], dict[str, Message]]:
        """Give slots to profiles in order; return id -> profile, and id -> why it got no slot.

        Args:
            order: the most promising first.
            kept: id -> profile that has trials, and so keeps its slot.
            slots: how many slots there are, including those of `kept`.
            is_named: whether people named the profiles, so that each without a slot is reported.
        """
        key, critic = self.plan.effective.key, self._critic()
        ids = {profile.id for profile in self._all}
        seen = {key(profile): profile.id for profile in (BASELINE, *self._all, *kept.values())}
        given: dict[str, Profile] = {}
        refused: dict[str, Message] = {}
        free = slots - len(kept)
        for profile in order:
            if len(given) == slots and not is_named:
                break
            if profile.id in kept:
                given[profile.id] = kept[profile.id]
                continue
            why: Message | None = None
            if profile.id in ids:
                why = say("the sweep declares it itself")
            elif key(profile) in seen:
                why = say("the same settings as {profile}", profile=seen[key(profile)])
            if (why is not None or free < 1) and not is_named:
                continue
            if why := why or critic(profile):
                refused[profile.id] = why
            elif free > 0:
                free -= 1
                given[profile.id] = profile
                seen[key(profile)] = profile.id
        return given, refused

    def _led(
        self, rule: LeaderRule, planned: Mapping[str, TrialResult], *, is_waiting: bool
    ) -> FilledWave:
        """Return the profiles that a rule makes of the leaders, those with trials first."""
        pool = self._before(rule)
        profiles = {name: result.trial.profile for name, result in planned.items()}
        kept = {profile.id: profile for profile in rule.kept(profiles, pool=pool)}
        leaders = None if is_waiting else self._leaders(rule, pool)
        if leaders is None:
            return FilledWave(profiles=tuple(kept.values()), is_open=len(kept) < rule.slots)
        order = rule.made(rule.able(leaders, pool=pool), pool=pool)
        given, refused = self._given(order, kept, slots=rule.slots)
        # a measured profile that leads no longer comes last
        ordered = given | {name: kept[name] for name in kept if name not in given}
        return FilledWave(profiles=tuple(ordered.values()), messages=left_out(rule.wave, refused))

    def _chosen(self, rule: Singles, planned: Mapping[str, TrialResult]) -> FilledWave:
        """Return the candidates that have a slot, in their order."""
        evidence = self.read_evidence
        order = placed(rule, evidence)
        kept = {
            name: planned[name].trial.profile
            for candidate in order
            if (name := candidate.profile.id) in planned
            and candidate.profile.same_as(planned[name].trial.profile)
        }
        if rule.evidence and evidence is None and len(kept) < rule.slots:
            running = tuple(kept.values())
            return FilledWave(profiles=running, is_open=True, awaits_evidence=True)
        noted = (
            _noted(candidate, number=number, count=len(order))
            for number, candidate in enumerate(order, start=1)
        )
        given, refused = self._given(noted, kept, slots=rule.slots, is_named=True)
        messages = choices(rule, order, evidence=evidence, chosen=given, refused=refused)
        return FilledWave(profiles=tuple(given.values()), messages=messages)

    def _searched(self, rule: Search, planned: Mapping[str, TrialResult]) -> FilledWave:
        """Return the candidates that were measured, by round, and those of the next round."""
        kept = tuple(
            candidate
            for name, result in planned.items()
            if (candidate := rule.find(name)) and candidate.same_as(result.trial.profile)
        )[: rule.slots]
        if any(not planned[profile.id].status.is_final for profile in kept):
            is_open = len(kept) < rule.slots
            return FilledWave(profiles=kept, is_open=is_open, is_begun=is_open)
        most = min(rule.at_once, rule.slots - len(kept))
        known = {profile.id: profile for profile in kept}
        order = itertools.chain(kept, self._asked(rule, kept, planned, most=most))
        given, refused = self._given(order, known, slots=len(kept) + most)
        profiles = tuple(given.values())
        is_open = len(profiles) == len(kept) + most and len(profiles) < rule.slots
        progress = say(
            "{wave}: the search measured {tried} of {points} candidates; the best of them "
            "go on to fresh blocks of ordinary jobs, which alone decide",
            wave=rule.wave,
            tried=len(kept),
            points=rule.points,
        )
        return FilledWave(
            profiles=profiles,
            is_open=is_open,
            is_begun=is_open,
            messages=(*([progress] if kept else ()), *left_out(rule.wave, refused)),
        )

    def _asked(
        self,
        rule: Search,
        kept: Sequence[Profile],
        planned: Mapping[str, TrialResult],
        *,
        most: int,
    ) -> Iterator[Profile]:
        """Yield the candidates of the next round, and further ones while some get no slot."""
        scores = self._scores_of(rule, kept)
        dropped = [e.id for e in kept if planned[e.id].status is TrialStatus.DROPPED]
        without = {rule.names[profile.id] for profile in kept} | rule.holding_dropped(
            dropped, scores
        )
        drawn = f"{self.plan.seed} {rule.wave}"
        while candidates := rule.asked(scores, without=without, count=most, rng_seed=drawn):
            for profile in candidates:
                without.add(rule.names[profile.id])
                yield profile

    def _scores_of(self, rule: Search, kept: Sequence[Profile]) -> dict[Point, float]:
        """Return point -> log ratio in the screen, for the measured candidates of a search."""
        results = [
            result for result in self.history if _is_before(rule.wave, result.trial, or_in=True)
        ]
        if not results or not kept:
            return {}
        declared = {profile.id: profile for profile in (*self._before(rule), *kept)}
        every = self.plan.queues(tuple(declared.values()), until=rule.wave)
        queues = [segment for segment in every if segment.has_profiles]
        standings = self._ranked(self.plan.read(results, declared), queues).standings
        return {
            rule.names[profile.id]: round(screened.estimate, 9)
            for profile in kept
            if (screened := standings.get(profile.id)) and math.isfinite(screened.estimate)
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
            and is_ours(result.trial, protocols=self.plan.orders.protocols)
        }

    def _critic(self) -> Callable[[Profile], Message | None]:
        """Return a function that says why a derived profile is not worth a trial, or None.

        The program is checked too, once an evidence run of the baseline has named its collectives.
        """
        context = self.plan.context
        if context is None:
            return lambda _: None
        kinds = kinds_of(self.read_evidence)
        if kinds is not None:
            context = replace(context, program=Shape.of_kinds(kinds))
        known = self.plan.objections.setdefault(kinds, {})

        def why(profile: Profile) -> Message | None:
            key = f"{profile.id} {profile.settings_text}"
            if key not in known:
                text = why_not(profile, context)
                known[key] = verbatim(text) if text else None  # the catalog's own words
            return known[key]

        return why

    def _ranked(self, past: Past, queues: Sequence[Segment]) -> Ranking:
        return screen(past, queues, sigma=self.plan.noise.value)

    def _leaders(self, rule: Rule, pool: Sequence[Profile]) -> tuple[Leader, ...] | None:
        """Return the leaders of the waves before, best first; None while those are not over."""
        plan = self.plan
        results = [result for result in self.history if _is_before(rule.wave, result.trial)]
        past = plan.read(results, {profile.id: profile for profile in pool})
        every = map(self._unranked, plan.queues(self._all, before=rule.wave))
        queues = [segment for segment in every if segment.has_profiles]
        if not all(past.is_final(trial) for segment in queues for trial in segment.trials):
            return None
        ranked = self._ranked(past, queues)
        # Chance can spread few baselines, and effects spread profiles, so the smaller counts.
        seen = ranked.sigma or 0.0
        sigma = max(plan.noise.value, min(seen, ranked.spread or seen))
        repeats = plan.effective.repeats(pool)
        level = ranked.level
        leaders = [
            Leader(profile=profile, estimate=screened.estimate)
            for profile in pool
            if (screened := ranked.standings.get(profile.id)) is not None
            and math.isfinite(screened.estimate)
            and screened.estimate - level > LEAD * sigma * math.sqrt(screened.variance)
            and profile.id not in repeats
            and of_arm(past, profile.id, tolerance=plan.loss_tolerance) is None
        ]
        return tuple(sorted(leaders, key=lambda leader: -leader.estimate))


def _is_before(wave: str, trial: Trial, *, or_in: bool = False) -> bool:
    is_of_wave = trial.is_screened and trial.stage != AGAIN
    is_in = or_in and trial.stage == wave
    return is_of_wave and (is_in or wave_order(trial.stage) < wave_order(wave))


def evidence_of(history: History, run: Trial) -> EvidenceResult | None:
    """Return the latest evidence of the baseline that was read, or failed to be recorded.

    Args:
        history: the results, including evidence trials.
        run: the evidence run of the deployed cell.
    """
    runs = [
        result
        for result in history
        if isinstance(result, EvidenceResult)
        and result.trial.is_baseline
        and result.trial.cell_digest == run.cell_digest
    ]
    read = [result for result in runs if result.is_read]
    with_shares = [result for result in read if result.shares is not None]
    lost = [
        result
        for result in runs
        if result.trial.id == run.id
        and result.status.is_final
        and result.status is not TrialStatus.MEASURED
    ]
    return next(reversed([*lost, *read, *with_shares]), None)


def kinds_of(evidence: EvidenceResult | None) -> tuple[str, ...] | None:
    """Return the collectives of the program, as evidence names them; None if it is unknown."""
    shares = evidence.shares if evidence is not None else None
    return None if shares is None else shares.kinds


def _noted(placed: Placed, *, number: int, count: int) -> Profile:
    """Return a candidate with the reason for its place; unchanged without evidence."""
    if placed.why is None:
        return placed.profile
    place = say(
        "number {number} of {of} by the evidence ({why})", number=number, of=count, why=placed.why
    )
    return replace(placed.profile, origin=place)
