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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from msgspec.structs import replace

from pytest_xlatune.catalog.rules import why_not
from pytest_xlatune.model.message import Message, say, verbatim
from pytest_xlatune.model.profile import BASELINE, NO_ENV_ID, Profile
from pytest_xlatune.model.result import EvidenceResult, TrialResult, TrialStatus
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.search import ask
from pytest_xlatune.studies import History
from pytest_xlatune.studies.derived import (
    Leader,
    Rule,
    Search,
    Singles,
    made_of,
    order_candidates,
)
from pytest_xlatune.studies.screen import screen
from pytest_xlatune.studies.slots import Slots
from pytest_xlatune.studies.trials import (
    LOOK_STAGE,
    Past,
    Segment,
    is_ours,
    pace_of,
    wave_order,
)
from pytest_xlatune.studies.tuning_plan import TuningPlan
from pytest_xlatune.studies.verdicts import arm_veto

LEAD = 1.0  # a profile leads if it is more than so many standard errors above the baseline
# id -> profile that keeps its slot, and the profiles that may get one, the most promising first;
# these are None while trials are missing that show them
Offer = tuple[dict[str, Profile], Iterable[Profile] | None]


class Waves:
    """The profiles of a sweep after a history, and the waves that they run in.

    Attributes:
        plan: the plan of the sweep.
        profiles: id -> profile: the declared in declared order, then the derived by slot.
        slots: name of a filled slot -> its profile.
        candidates: ids of the profiles that this run measures.
        repeats: id of a profile -> id of an earlier one with the same effective settings.
        queues: the queue of each wave, in the order in which the waves run.
        open_rules: the rules whose slots cannot all be filled yet, as far as this run needs them.
        messages: how slots were filled, and which candidates got none and why.
    """

    def __init__(self, plan: TuningPlan, history: History, node_slots: Slots | None) -> None:
        self.plan = plan
        self._history = history
        self.profiles = {profile.id: profile for profile in plan.profiles}
        self.slots: dict[str, Profile] = {}
        self.messages: list[Message] = []
        self._evidence = evidence_of(history, plan.cell.digest)
        self._not_filled: list[Rule] = []  # the rules that may add more profiles
        for rule in plan.rules:
            profiles, is_open = self._fill(rule)
            names = (slot.name for slot in plan.places[rule])
            self.slots |= dict(zip(names, profiles, strict=False))
            self.profiles |= {profile.id: profile for profile in profiles}
            if is_open:
                self._not_filled.append(rule)
        self.open_rules = [rule for rule in self._not_filled if self._is_needed(rule)]
        self.candidates = self._candidates()
        self.repeats = plan.effective.repeats(self.profiles.values())
        self.queues = tuple(self._queues(tuple(self.profiles.values())))
        if node_slots is not None:
            self.queues = node_slots.deal(self.queues, at_most=plan.screen_slots)

    def _is_needed(self, rule: Rule) -> bool:
        """Return whether a slot of the rule is selected, or of a later rule that reads its wave."""
        return self.plan.selected is None or any(
            slot.name in self.plan.selected
            for other, slots in self.plan.places.items()
            if other is rule or (other.origin and wave_order(other.wave) > wave_order(rule.wave))
            for slot in slots
        )

    def _candidates(self) -> frozenset[str]:
        """Return the ids that this run measures, with the waves that selected slots need."""
        selected = self.plan.selected
        if selected is None:
            return frozenset(self.profiles)
        chosen = self.profiles.keys() & selected
        chosen |= {profile.id for name, profile in self.slots.items() if name in selected}
        for rule in self.plan.rules:
            if rule.origin and self._is_needed(rule):
                chosen |= {profile.id for profile in self._earlier_profiles(rule)}
        return frozenset(chosen)

    def _earlier_profiles(self, rule: Rule) -> list[Profile]:
        order = wave_order(rule.wave)
        return [profile for profile in self.profiles.values() if wave_order(profile.wave) < order]

    @cached_property
    def queued(self) -> tuple[Trial, ...]:
        """The trials of all waves, without the baselines of a wave that has no profile."""
        return tuple(t for segment in self.queues if segment.has_profiles for t in segment.trials)

    @property
    def plannable(self) -> tuple[Segment, ...]:
        """The queues that can be planned now: those before the first open wave.

        The queue of an open search is included.
        """
        open_waves = {rule.wave for rule in self.open_rules}
        searched = {rule.wave for rule in self.open_rules if isinstance(rule, Search)}
        for at, segment in enumerate(self.queues):
            if segment.wave in open_waves:
                return self.queues[: at + (segment.wave in searched)]
        return self.queues

    @property
    def to_screen(self) -> tuple[Trial, ...]:
        """The trials of the selected waves, then the evidence run if waves wait for it.

        If no profile is selected, they are the baselines of the first queue.
        """
        queues = [
            queue
            for queue in self.plannable
            if any(trial.arm in self.candidates for trial in queue.trials)
        ]
        if not queues and not self.open_rules:
            queues = [*self.queues[:1]]
        trials = [trial for queue in queues for trial in queue.trials if self.is_selected(trial)]
        if any(isinstance(rule, Singles) for rule in self.open_rules):
            trials.append(self.plan.evidence_trial)
        return tuple(trials)

    def is_selected(self, trial: Trial) -> bool:
        """Return whether this run measures a trial of a selected wave."""
        return trial.is_baseline or trial.arm in self.candidates

    def _queues(
        self, profiles: Sequence[Profile], *, before: str = "", until: str = ""
    ) -> Iterator[Segment]:
        """Yield the queues of waves, without second rankings that are not worth it."""
        looks = [result for result in self._history if result.trial.stage == LOOK_STAGE]
        is_once = self.plan.turns_by(pace_of(looks)).rankings == 1
        for queue in self.plan.queues(profiles, before=before, until=until):
            needed = (
                trial
                for trial in queue.trials
                # a profile's trial at position 0 is its first ranking, that at 1 the second
                if trial.is_baseline
                or trial.position == 0
                or not (is_once or trial.arm in self._settled)
            )
            is_ranked = self.plan.rotates
            yield dataclasses.replace(queue, trials=tuple(needed)) if is_ranked else queue

    @cached_property
    def _settled(self) -> frozenset[str]:
        """The profiles that no further rotation ranks: jobs measured them, or they were dropped."""
        return frozenset(
            result.trial.arm
            for result in self._history
            if result.trial.is_screened
            and result.status.is_final
            and (result.rotation is None or result.status is TrialStatus.DROPPED)
        )

    def _fill(self, rule: Rule) -> tuple[tuple[Profile, ...], bool]:
        """Return the profiles of a rule in the order of its slots, and whether more may follow."""
        planned = {
            result.trial.arm: result
            for result in self._history
            if result.trial.stage == rule.wave
            and not result.trial.is_baseline
            # a profile of the sweep file, or of an earlier rule, is not of this rule
            and result.trial.arm not in self.profiles
            and is_ours(result.trial, protocols=self.plan.orders.protocols)
        }
        slots, is_named = rule.slots, isinstance(rule, Singles)
        if isinstance(rule, Singles):
            kept, order = self._offer_of_singles(rule, planned)
        elif isinstance(rule, Search):
            kept, order = self._offer_of_search(rule, planned)
            slots = min(slots, len(kept) + rule.round_size)
        else:
            kept, order = self._offer_of_leaders(rule, planned)
        if order is None:
            return tuple(kept.values()), len(kept) < rule.slots
        filled, refused = dict[str, Profile](), dict[str, Message]()
        settings_of = self.plan.effective.key
        known = (BASELINE, *self.profiles.values(), *kept.values())
        owners = {settings_of(profile): profile.id for profile in known}
        for profile in order:
            if len(filled) == slots and not is_named:
                break
            if profile.id in kept:
                filled[profile.id] = kept[profile.id]
                continue
            owner = profile.id if profile.id in self.profiles else owners.get(settings_of(profile))
            is_full = len(filled.keys() | kept.keys()) == slots
            # Of profiles that nobody named, a repeat or one too many is skipped without a message.
            if (owner or is_full) and not is_named:
                continue
            if why := self._objection(profile, owner):
                refused[profile.id] = why
            elif not is_full:
                filled[profile.id] = profile
                owners[settings_of(profile)] = profile.id
        named = [each.id for each in order] if is_named else []
        if cut := [name for name in named if name not in filled | refused]:
            text = "{wave}: cut at {slots:+slot}: {names}"
            self.messages.append(say(text, wave=rule.wave, slots=slots, names=cut))
        if refused:
            names = [say("{name} ({why})", name=name, why=why) for name, why in refused.items()]
            text = "{wave}: left out: {names:; }"
            self.messages.append(say(text, wave=rule.wave, names=names))
        # a measured profile that no longer follows from the leaders comes last
        profiles = tuple((filled | kept).values())
        return profiles, isinstance(rule, Search) and len(profiles) == slots < rule.slots

    def _objection(self, profile: Profile, owner: str | None) -> Message | None:
        """Return why a profile is not worth a slot; None if nothing is against it.

        Another profile, the `owner`, may have its name or settings. The catalog considers the
        program, once an evidence run of the baseline named its collectives.
        """
        if owner is not None:
            return say("the same name or settings as {profile}", profile=owner)
        if (context := self.plan.context) is None:
            return None
        shares = self._evidence.shares if self._evidence is not None else None
        if shares is not None and shares.kinds is not None:
            context = replace(context, collectives=shares.kinds)
        text = why_not(profile, context)
        return verbatim(text) if text else None

    def _offer_of_singles(self, rule: Singles, planned: Mapping[str, TrialResult]) -> Offer:
        order = order_candidates(rule, self._evidence)
        kept = {
            profile.id: planned[profile.id].trial.profile
            for profile in order
            if profile.id in planned and profile.same_as(planned[profile.id].trial.profile)
        }
        evidence = self._evidence
        if evidence is not None and evidence.shares is None:
            why = evidence.reason or say("it left nothing that says where the time of a step goes")
            text = "{wave}: candidates in declared order, for the evidence run {trial}: {why}"
            self.messages.append(say(text, wave=rule.wave, trial=evidence.trial.id, why=why))
        is_waiting = rule.evidence and evidence is None and len(kept) < rule.slots
        return kept, None if is_waiting else order

    def _offer_of_search(self, rule: Search, planned: Mapping[str, TrialResult]) -> Offer:
        found = filter(None, map(rule.find, planned))
        measured = {profile.id: profile for profile in itertools.islice(found, rule.slots)}
        if any(not planned[name].status.is_final for name in measured):
            return measured, None
        return measured, itertools.chain(measured.values(), self._proposed(rule, measured))

    def _proposed(self, rule: Search, measured: Mapping[str, Profile]) -> Iterator[Profile]:
        """Yield the candidates of the next round, and further ones while some get no slot."""
        pool = [*self._earlier_profiles(rule), *measured.values()]
        past, queues = self._screened(pool, until=rule.wave)
        standings = screen(past, queues, sigma=self.plan.noise).standings if measured else {}
        scores = {
            rule.points_by_id[name]: round(standings[name].estimate, 9)
            for name in measured
            if name in standings and math.isfinite(standings[name].estimate)
        }
        names = {point: name for name, point in rule.points_by_id.items()}
        excluded = {rule.points_by_id[name] for name in measured}
        while points := ask(
            rule.sizes,
            scores,
            excluded=excluded,
            count=min(rule.round_size, rule.slots - len(measured)),
            rng_seed=f"{self.plan.seed} {rule.wave}",
        ):
            excluded |= {*points}
            yield from filter(None, (rule.find(names[point]) for point in points))

    def _offer_of_leaders(self, rule: Rule, planned: Mapping[str, TrialResult]) -> Offer:
        profiles = (planned[name].trial.profile for name in sorted(planned))
        made = (each for each in profiles if each.origin and each.origin.text == rule.origin)
        kept = {profile.id: profile for profile in itertools.islice(made, rule.slots)}
        pool = self._earlier_profiles(rule)
        leaders = self._leaders(rule, pool)
        return kept, None if leaders is None else made_of(rule, leaders, pool)

    def _leaders(self, rule: Rule, pool: Sequence[Profile]) -> Sequence[Leader] | None:
        """Return the leaders of the waves before, in their order; None while a wave is not over.

        Controls lead nothing, nor does `baseline-no-env`: a stack with it would gain as much as
        its other part.
        """
        plan = self.plan
        past, queues = self._screened(pool, before=rule.wave)
        if any(
            wave_order(earlier.wave) < wave_order(rule.wave) for earlier in self._not_filled
        ) or past.not_over(trial for queue in queues for trial in queue.trials):
            return None
        ranked = screen(past, queues, sigma=plan.noise)
        # The few baselines may differ much by chance, and profiles differ by their effects, so the
        # smaller of both standard deviations is used.
        of_baselines = ranked.sigma or 0.0
        sigma = max(plan.noise, min(of_baselines, ranked.spread or of_baselines))
        repeats, level = plan.effective.repeats(pool), ranked.level
        return [
            Leader(profile, screened.estimate)
            for profile in pool
            if (screened := ranked.standings.get(profile.id)) is not None
            and math.isfinite(screened.estimate)
            and screened.estimate - level > LEAD * sigma * math.sqrt(screened.variance)
            and not (profile.is_control or profile.id == NO_ENV_ID or profile.id in repeats)
            and arm_veto(past, profile.id, tolerance=plan.loss_tolerance) is None
        ]

    def _screened(
        self, pool: Sequence[Profile], *, before: str = "", until: str = ""
    ) -> tuple[Past, list[Segment]]:
        """Return the trials of the waves up to one, and their queues; `pool` has all profiles."""
        queues = [
            queue for queue in self._queues(pool, before=before, until=until) if queue.has_profiles
        ]
        waves = {queue.wave for queue in queues}
        results = [result for result in self._history if result.trial.stage in waves]
        return self.plan.read(results, {profile.id: profile for profile in pool}), queues


def evidence_of(history: History, cell_digest: str) -> EvidenceResult | None:
    """Return the latest evidence of a cell's baseline with shares of a step, or the best there is.

    If none has shares, it is the latest that was read; if none was read, the latest that failed.
    """
    over = [
        result
        for result in reversed(history)
        if isinstance(result, EvidenceResult)
        and result.trial.is_baseline
        and result.trial.cell_digest == cell_digest
        # a measured run is read later
        and (result.is_read or result.status in (TrialStatus.DROPPED, TrialStatus.UNMEASURED))
    ]
    return max(over, key=lambda result: (result.is_read, result.shares is not None), default=None)
