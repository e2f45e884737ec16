"""The profiles of a tuning sweep at one moment: the declared ones, and those of derived waves.

A rule of the sweep file reserves slots in a wave for profiles that are not known yet. Such a wave
is derived. It is filled once, from an evidence run of the baseline or from the finished screen of
the waves before it, so that later results change no slot. A profile that has a trial keeps its
slot; the rule fills the other slots. A profile that repeats another, or that the catalog objects
to, leaves its slot to the next. The candidates of a search come round by round. This module spends
no alpha and decides no verdict.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from msgspec.structs import replace

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
    Rule,
    Search,
    Singles,
    choice_notes,
    order_candidates,
    refusal_notes,
)
from pytest_xlatune.studies.screen import screen
from pytest_xlatune.studies.slots import Slots
from pytest_xlatune.studies.trials import (
    AGAIN,
    LOOK_STAGE,
    Segment,
    is_ours,
    pace_of,
    wave_order,
)
from pytest_xlatune.studies.tuning_plan import TuningPlan
from pytest_xlatune.studies.verdicts import arm_veto

LEAD = 1.0  # a profile leads if it is more than so many standard errors above the baseline


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledWave:
    """The profiles of a derived wave after a history.

    Attributes:
        profiles: the profiles that the rule adds, in the order of the slots.
        is_open: whether more profiles may be added.
        messages: how the slots were filled, and which candidates got none.
    """

    profiles: tuple[Profile, ...]
    is_open: bool = False
    messages: tuple[Message, ...] = ()


class Waves:
    """The profiles of a sweep after a history, and the waves that they run in.

    Attributes:
        plan: the plan of the sweep.
        history: the history so far.
        profiles: id -> profile: the declared in declared order, then the derived by slot.
        slots: name of a filled slot -> its profile.
        candidates: ids of the profiles that this run measures.
        repeats: id of a profile -> id of an earlier one with the same effective settings.
        queues: the queue of each wave, in the order in which the waves run.
        open_waves: the selected waves whose slots cannot all be filled yet, in order.
        begun_waves: the open waves whose present profiles run before more are added.
        unfilled: the number of empty slots in open waves.
        evidence: the evidence run that waves wait for; None if no wave waits.
        messages: how slots were filled, and which candidates got none and why.
    """

    def __init__(self, plan: TuningPlan, history: History, node_slots: Slots | None) -> None:
        self.plan = plan
        self.history = history
        self.slots: dict[str, Profile] = {}
        self.open_waves: list[str] = []
        self.begun_waves: set[str] = set()
        self.unfilled = 0
        self.evidence: Trial | None = None
        self.messages: list[Message] = []
        self._all = list(plan.profiles)  # the profiles that are known so far
        not_filled: list[str] = []  # the waves that are open, selected or not
        for rule in plan.rules:
            is_waiting = any(wave_order(wave) < wave_order(rule.wave) for wave in not_filled)
            filled = self._fill(rule, is_waiting=is_waiting)
            filled_slots = zip(plan.places[rule], filled.profiles, strict=False)
            self.slots |= {slot.name: profile for slot, profile in filled_slots}
            self._all += filled.profiles
            self.messages += filled.messages
            if filled.is_open:
                not_filled.append(rule.wave)
            if filled.is_open and self._is_rule_selected(rule):
                self.open_waves.append(rule.wave)
                self.unfilled += rule.slots
                # the candidates of a round run before the next ones are chosen
                if isinstance(rule, Search):
                    self.begun_waves.add(rule.wave)
                    self.unfilled -= len(filled.profiles)
                # an evidence run must first show what fills the slots
                if isinstance(rule, Singles):
                    self.evidence = plan.evidence_trial
        self.profiles = {profile.id: profile for profile in self._all}
        self.candidates = self._candidates()
        has_rules = bool(plan.rules)
        self.repeats = plan.effective.repeats(self._all) if has_rules else plan.declared_aliases
        queues = plan.queues(self._all) if has_rules else plan.declared_queues
        self.queues = tuple(map(self._with_needed_rankings, queues))
        if node_slots is not None:
            self.queues = node_slots.deal(self.queues, at_most=plan.screen_slots)

    @cached_property
    def _settled(self) -> frozenset[str]:
        """The profiles that no further rotation ranks: jobs measured them, or they were dropped."""
        return frozenset(
            result.trial.arm
            for result in self.history
            if result.trial.is_screened
            and result.status.is_final
            and (result.rotation is None or result.status is TrialStatus.DROPPED)
        )

    def _with_needed_rankings(self, queue: Segment) -> Segment:
        """Return a queue without second rankings that are not needed or take too long."""
        if not self.plan.rotates:
            return queue
        first_rotations = [result for result in self.history if result.trial.stage == LOOK_STAGE]
        if self.plan.turns_by(pace_of(first_rotations)).rankings == 1:
            ranked_once = {trial.arm for trial in queue.trials}
        else:
            ranked_once = set(self._settled)
        needed = (
            trial
            for trial in queue.trials
            # a profile's trial at position 0 is its first ranking, that at 1 the second
            if trial.is_baseline or trial.position == 0 or trial.arm not in ranked_once
        )
        return dataclasses.replace(queue, trials=tuple(needed))

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
        """The queues that can be planned now: those before the first open wave.

        The queue of that wave is included if some of its profiles run before more are added.
        """
        for at, segment in enumerate(self.queues):
            if segment.wave in self.begun_waves:
                return self.queues[: at + 1]
            if segment.wave in self.open_waves:
                return self.queues[:at]
        return self.queues

    @property
    def selected(self) -> tuple[Segment, ...]:
        """The queues of the selected waves that can be planned now.

        If there is none, this is () while a selected wave is open, and otherwise the first queue,
        for its baselines.
        """
        segments = tuple(
            segment
            for segment in self.plannable
            if any(trial.arm in self.candidates for trial in segment.trials)
        )
        if segments or self.open_waves:
            return segments
        return self.queues[:1]

    @property
    def to_screen(self) -> tuple[Trial, ...]:
        """The trials of the selected waves, then the evidence run if waves wait for it."""
        trials = [
            trial for queue in self.selected for trial in queue.trials if self.is_selected(trial)
        ]
        if self.evidence is not None:
            trials.append(self.evidence)
        return tuple(trials)

    def is_selected(self, trial: Trial) -> bool:
        """Return whether this run measures a trial of a selected wave."""
        return trial.is_baseline or trial.arm in self.candidates

    def _is_rule_selected(self, rule: Rule) -> bool:
        """Return whether a slot of the rule, or of a later wave, is selected.

        A later wave counts because it depends on the rule.
        """
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
            is_selected = any(slot.name in selected for slot in places[rule])
            if isinstance(rule, LeaderRule) and is_selected:
                chosen |= {profile.id for profile in self._earlier_profiles(rule)}
        return frozenset(chosen)

    def _earlier_profiles(self, rule: Rule) -> list[Profile]:
        return [
            profile for profile in self._all if wave_order(profile.wave) < wave_order(rule.wave)
        ]

    def _fill(self, rule: Rule, *, is_waiting: bool) -> FilledWave:
        """Return the profiles of a rule's slots; `is_waiting` while an earlier wave is open."""
        planned = self._planned(rule)
        match rule:
            case Singles():
                return self._fill_singles(rule, planned)
            case Search():
                return self._fill_search(rule, planned)
            case LeaderRule():
                return self._fill_from_leaders(rule, planned, is_waiting=is_waiting)
            case _:
                raise TypeError(rule.kind)

    def _fill_slots(
        self,
        order: Iterable[Profile],
        with_trials: Mapping[str, Profile],
        *,
        slots: int,
        are_named: bool = False,
    ) -> tuple[dict[str, Profile], dict[str, Message]]:
        """Give slots to profiles in order; return id -> profile, and id -> why it got no slot.

        Args:
            order: the most promising first.
            with_trials: id -> profile that has trials, and so keeps its slot.
            slots: how many slots there are, including those of `with_trials`.
            are_named: whether people named the profiles, so that each without a slot is reported.
        """
        settings_of, objection_to = self.plan.effective.key, self._objection_function()
        ids = {profile.id for profile in self._all}
        known = {
            settings_of(profile): profile.id
            for profile in (BASELINE, *self._all, *with_trials.values())
        }
        filled: dict[str, Profile] = {}
        refused: dict[str, Message] = {}
        free = slots - len(with_trials)
        for profile in order:
            if len(filled) == slots and not are_named:
                break
            if profile.id in with_trials:
                filled[profile.id] = with_trials[profile.id]
                continue
            why: Message | None = None
            if profile.id in ids:
                why = say("the sweep declares it itself")
            elif settings_of(profile) in known:
                why = say("the same settings as {profile}", profile=known[settings_of(profile)])
            # Of profiles that nobody named, a repeat or one too many is skipped without a message.
            if (why is not None or free < 1) and not are_named:
                continue
            if why := why or objection_to(profile):
                refused[profile.id] = why
            elif free > 0:
                free -= 1
                filled[profile.id] = profile
                known[settings_of(profile)] = profile.id
        return filled, refused

    def _fill_from_leaders(
        self, rule: LeaderRule, planned: Mapping[str, TrialResult], *, is_waiting: bool
    ) -> FilledWave:
        pool = self._earlier_profiles(rule)
        profiles = {name: result.trial.profile for name, result in planned.items()}
        with_trials = {profile.id: profile for profile in rule.find_planned(profiles, pool=pool)}
        leaders = None if is_waiting else self._leaders(rule, pool)
        if leaders is None:
            is_open = len(with_trials) < rule.slots
            return FilledWave(profiles=tuple(with_trials.values()), is_open=is_open)
        order = rule.make(rule.eligible(leaders, pool=pool), pool=pool)
        filled, refused = self._fill_slots(order, with_trials, slots=rule.slots)
        # a measured profile that no longer follows from the leaders comes last
        others = {name: profile for name, profile in with_trials.items() if name not in filled}
        ordered = filled | others
        return FilledWave(
            profiles=tuple(ordered.values()), messages=refusal_notes(rule.wave, refused)
        )

    def _fill_singles(self, rule: Singles, planned: Mapping[str, TrialResult]) -> FilledWave:
        """Return the candidates that have a slot, in their order."""
        evidence = self.read_evidence
        order = order_candidates(rule, evidence)
        with_trials = {
            profile.id: planned[profile.id].trial.profile
            for profile in order
            if profile.id in planned and profile.same_as(planned[profile.id].trial.profile)
        }
        if rule.evidence and evidence is None and len(with_trials) < rule.slots:
            return FilledWave(profiles=tuple(with_trials.values()), is_open=True)
        filled, refused = self._fill_slots(order, with_trials, slots=rule.slots, are_named=True)
        messages = choice_notes(rule, order, evidence=evidence, chosen=filled, refused=refused)
        return FilledWave(profiles=tuple(filled.values()), messages=messages)

    def _fill_search(self, rule: Search, planned: Mapping[str, TrialResult]) -> FilledWave:
        """Return the candidates that were measured, by round, and those of the next round."""
        found = (
            candidate
            for name, result in planned.items()
            if (candidate := rule.find(name)) and candidate.same_as(result.trial.profile)
        )
        measured = tuple(itertools.islice(found, rule.slots))
        if any(not planned[profile.id].status.is_final for profile in measured):
            return FilledWave(profiles=measured, is_open=len(measured) < rule.slots)
        most = min(rule.round_size, rule.slots - len(measured))
        with_trials = {profile.id: profile for profile in measured}
        order = itertools.chain(measured, self._next_candidates(rule, measured, most=most))
        filled, refused = self._fill_slots(order, with_trials, slots=len(measured) + most)
        profiles = tuple(filled.values())
        is_open = len(profiles) == len(measured) + most and len(profiles) < rule.slots
        progress = say(
            "{wave}: the search measured {tried} of {points} candidates; the best of them "
            "go on to fresh blocks of ordinary jobs, which alone decide",
            wave=rule.wave,
            tried=len(measured),
            points=len(rule.points_by_id),
        )
        messages = refusal_notes(rule.wave, refused)
        if measured:
            messages = (progress, *messages)
        return FilledWave(profiles=profiles, is_open=is_open, messages=messages)

    def _next_candidates(
        self, rule: Search, measured: Sequence[Profile], *, most: int
    ) -> Iterator[Profile]:
        """Yield the candidates of the next round, and further ones while some get no slot."""
        scores = self._scores_of(rule, measured)
        excluded = {rule.points_by_id[profile.id] for profile in measured}
        rng_seed = f"{self.plan.seed} {rule.wave}"
        while candidates := rule.next_candidates(
            scores, excluded=excluded, count=most, rng_seed=rng_seed
        ):
            excluded |= {rule.points_by_id[profile.id] for profile in candidates}
            yield from candidates

    def _scores_of(self, rule: Search, measured: Sequence[Profile]) -> dict[Point, float]:
        """Return point -> log ratio in the screen, for the measured candidates of a search."""
        results = [
            result
            for result in self.history
            if _runs_in_wave(result.trial)
            and wave_order(result.trial.stage) <= wave_order(rule.wave)
        ]
        if not results or not measured:
            return {}
        declared = {profile.id: profile for profile in (*self._earlier_profiles(rule), *measured)}
        all_queues = self.plan.queues(tuple(declared.values()), until=rule.wave)
        queues = [segment for segment in all_queues if segment.has_profiles]
        past = self.plan.read(results, declared)
        standings = screen(past, queues, sigma=self.plan.noise).standings
        return {
            rule.points_by_id[profile.id]: round(screened.estimate, 9)
            for profile in measured
            if (screened := standings.get(profile.id)) and math.isfinite(screened.estimate)
        }

    def _planned(self, rule: Rule) -> dict[str, TrialResult]:
        """Return id -> result for the profiles of a rule's wave that have trials already.

        Profiles that are known without the rule, from the sweep file or an earlier rule, are left
        out.
        """
        known = {profile.id for profile in self._all}
        return {
            result.trial.profile.id: result
            for result in self.history
            if result.trial.stage == rule.wave
            and not result.trial.is_baseline
            and result.trial.profile.id not in known
            and is_ours(result.trial, protocols=self.plan.orders.protocols)
        }

    def _objection_function(self) -> Callable[[Profile], Message | None]:
        """Return a function from a profile to the catalog's objection; None if there is none.

        The objection also considers the program, once an evidence run of the baseline has named its
        collectives.
        """
        context = self.plan.context
        if context is None:
            return lambda _: None
        evidence = self.read_evidence
        shares = evidence.shares if evidence is not None else None
        kinds = shares.kinds if shares is not None else None
        if kinds is not None:
            context = replace(context, collectives=tuple(kinds))
        cache = self.plan.objections.setdefault(kinds, {})

        def objection(profile: Profile) -> Message | None:
            key = f"{profile.id} {profile.settings_text}"
            if key not in cache:
                text = why_not(profile, context)
                cache[key] = verbatim(text) if text else None
            return cache[key]

        return objection

    def _leaders(self, rule: Rule, pool: Sequence[Profile]) -> tuple[Leader, ...] | None:
        """Return the leaders of the waves before, the best first; None while a wave is not over."""
        plan = self.plan
        results = [
            result
            for result in self.history
            if _runs_in_wave(result.trial)
            and wave_order(result.trial.stage) < wave_order(rule.wave)
        ]
        past = plan.read(results, {profile.id: profile for profile in pool})
        all_queues = map(self._with_needed_rankings, plan.queues(self._all, before=rule.wave))
        queues = [segment for segment in all_queues if segment.has_profiles]
        if not all(past.is_final(trial) for segment in queues for trial in segment.trials):
            return None
        ranked = screen(past, queues, sigma=plan.noise)
        # The few baselines may differ much by chance, and profiles differ by their effects, so the
        # smaller of both standard deviations is used.
        of_baselines = ranked.sigma or 0.0
        sigma = max(plan.noise, min(of_baselines, ranked.spread or of_baselines))
        repeats = plan.effective.repeats(pool)
        level = ranked.level
        leaders = [
            Leader(profile=profile, estimate=screened.estimate)
            for profile in pool
            if (screened := ranked.standings.get(profile.id)) is not None
            and math.isfinite(screened.estimate)
            and screened.estimate - level > LEAD * sigma * math.sqrt(screened.variance)
            and profile.id not in repeats
            and arm_veto(past, profile.id, tolerance=plan.loss_tolerance) is None
        ]
        return tuple(sorted(leaders, key=lambda leader: -leader.estimate))


def _runs_in_wave(trial: Trial) -> bool:
    """Return whether a trial is in the queue of a wave; second runs of the screen are in none."""
    return trial.is_screened and trial.stage != AGAIN


def evidence_of(history: History, run: Trial) -> EvidenceResult | None:
    """Return the latest evidence of the baseline with shares of a step, or else the best there is.

    If none has shares, it is the latest that was read; if none was read, the failed evidence run.

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
    by_value = [*lost, *read, *with_shares]
    return by_value[-1] if by_value else None
