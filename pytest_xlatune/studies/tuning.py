"""Which of these profiles makes the cell faster: screen once, confirm on fresh blocks, conclude.

Every profile is measured once, in random order among spread baselines; that ranks. The best few are
measured again in randomised complete blocks with baselines inside; only that decides. Pure and
deterministic: whoever holds the same study and the same history proposes and concludes the same.
This module must not know of executors, ledgers, clocks or logs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from pytest_xlatune.catalog.ground import Ground
from pytest_xlatune.cells import Cell, Stage, Trial
from pytest_xlatune.errors import ConfigError
from pytest_xlatune.profiles import BASELINE_ID, Profile, check_unique
from pytest_xlatune.records import Record
from pytest_xlatune.results import Conclusion, TrialStatus
from pytest_xlatune.stats.capacity import MIN_DF, Plan, Refusal, plan
from pytest_xlatune.studies import History
from pytest_xlatune.studies.derived import Around, Rule, Stacks
from pytest_xlatune.studies.singles import Singles
from pytest_xlatune.studies.tuning_conclusion import conclusion
from pytest_xlatune.studies.tuning_confirm import Confirmation, confirm, design, frozen_arms
from pytest_xlatune.studies.tuning_history import Past, read
from pytest_xlatune.studies.tuning_layout import (
    ALIAS,
    STUDY,
    Orders,
    wave_baselines,
    wave_order,
)
from pytest_xlatune.studies.tuning_lineup import Declaration, Lineup, check_rules
from pytest_xlatune.studies.tuning_reading import JobNoise, Reading, loss_reason
from pytest_xlatune.studies.tuning_screen import Screen, screen


@dataclass(frozen=True, kw_only=True)
class TuningStudy(Record):
    """A sweep of profiles over one cell.

    Not slotted, for what is derived from the fields is computed once.

    Attributes:
        cell: what is held fixed.
        profiles: all declared profiles of the sweep in declared order, the baseline left out.
        stacks, around: rules of the waves that are filled from what earlier ones found.
        singles: rules of the waves that are filled by what an evidence run of the baseline shows.
        ground: what profiles are applied to, for the rules of the catalog; None asks none of them.
        selected: ids explored in this run, and names of slots of derived waves; None is all.
            Filters, never reorders. A slot brings the waves along that its own reads.
        confirm: whether this run goes on to confirmation.
        budget: jobs of the whole sweep, over all runs of it.
        seed: of the random orders.
        sigma_prior: standard deviation of a job's score, from an earlier sweep or calibration.
        screen_baselines: in each wave's queue; 0 is as planned from the budget.
        finalists, blocks, block_baselines: of the confirmation; 0 is as planned from the budget.
        second_blocks: blocks of a second stage; with any, the first stage spends 0.04 of 0.05.
        equivalence: relative change that counts as none.
        loss_tolerance: relative distance from the baseline's loss that makes a trial invalid.
    """

    cell: Cell
    profiles: tuple[Profile, ...]
    stacks: tuple[Stacks, ...] = ()
    around: tuple[Around, ...] = ()
    singles: tuple[Singles, ...] = ()
    ground: Ground | None = None
    selected: frozenset[str] | None = None
    confirm: bool = True
    budget: int = 50
    seed: int = 0
    sigma_prior: float | None = None
    screen_baselines: int = 0
    finalists: int = 0
    blocks: int = 0
    block_baselines: int = 0
    second_blocks: int = 0
    equivalence: float = 0.01
    loss_tolerance: float = 0.02

    def __post_init__(self) -> None:
        where = f"the sweep of {self.cell.label}"
        check_unique(self.profiles, where=where)
        if any(profile.id == ALIAS.id for profile in self.profiles):
            raise ConfigError(f"{where}: the id {ALIAS.id!r} belongs to the A/A control arm")
        check_rules(self.rules, self.profiles, selected=self.selected, where=where)
        layout = self.layout
        screened = self._count + sum(self._baselines.values())
        jobs = layout.jobs if isinstance(layout, Plan) else screened
        if jobs > self.budget:
            raise ConfigError(
                f"{where}: {self._count} profiles and their baselines need {jobs} jobs, "
                f"the budget is {self.budget}; raise the budget or declare fewer"
            )
        if isinstance(layout, Plan) and layout.df < MIN_DF:
            raise ConfigError(
                f"{where}: {layout.blocks} blocks of {layout.finalists} finalists and "
                f"{layout.block_baselines} baselines leave {layout.df} degrees of freedom, "
                f"{MIN_DF} are needed; add a block or a baseline"
            )

    @property
    def name(self) -> str:
        """The study's word."""
        return STUDY

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """The rules of the derived waves, in the order the waves run."""
        rules: tuple[Rule, ...] = (*self.singles, *self.stacks, *self.around)
        return tuple(sorted(rules, key=lambda rule: wave_order(rule.wave)))

    @property
    def reads_evidence(self) -> bool:
        """Whether its history holds evidence trials too: `LedgerState.evidence`."""
        return bool(self.rules)

    @cached_property
    def layout(self) -> Plan | Refusal:
        """How the budget is laid out, or why it only ranks."""
        count = self._count
        settled = sum(self._wave_baselines.values()) if self._wave_baselines else 0
        planned = plan(
            count, self.budget, reserved_blocks=self.second_blocks, screen_baselines=settled
        )
        if not (self.finalists or self.blocks or self.block_baselines):
            return planned
        start = planned if isinstance(planned, Plan) else plan(max(count, 1), count + 40)
        if isinstance(start, Refusal):
            return start
        arms = min(self.finalists or start.finalists, max(count, 1))
        in_block = self.block_baselines or start.block_baselines
        blocks = self.blocks or start.blocks
        return replace(
            start,
            screen_baselines=settled or start.screen_baselines,
            finalists=arms,
            block_baselines=in_block,
            blocks=blocks,
            jobs=count
            + (settled or start.screen_baselines)
            + (arms + in_block) * (blocks + self.second_blocks),
        )

    def profiles_of(self, history: History) -> tuple[Profile, ...]:
        """Return the declared profiles, and those that waves derived from `history`."""
        return tuple(self._lineup(history).profiles.values())

    def slots_of(self, history: History) -> Mapping[str, Profile]:
        """Return the profile of each slot of a derived wave that is filled, by the slot's name."""
        return self._lineup(history).slots

    def whole(self) -> TuningStudy:
        """Return the study of all profiles, confirmation included."""
        return replace(self, selected=None, confirm=True)

    def foreseen(self, history: History) -> TuningStudy:
        """Return what this study becomes where an evidence run that it awaits says nothing."""
        if self._lineup(history).evidence is None:
            return self
        return replace(self, singles=tuple(replace(each, evidence=False) for each in self.singles))

    def filled(self, history: History) -> tuple[str, ...]:
        """Return how the slots of derived waves are filled, one sentence each."""
        return self._lineup(history).said

    def left(self, history: History) -> int:
        """Return how many trials are still to come, with the blocks that are not planned yet."""
        lineup, past = self._read(history)
        pending = self.propose(history)
        left = len(pending)
        if lineup.opens:
            ready = {segment.wave for segment in lineup.plannable}
            later = sum(
                (trial.is_baseline or trial.profile.id in lineup.candidates)
                and not past.is_final(trial)
                for segment in lineup.segments
                if segment.wave not in ready
                for trial in segment.trials
            )
            slots = sum(rule.slots for rule in self.rules if rule.wave in lineup.opens)
            left += later + slots
        planned = (*pending, *(each.trial for each in history))
        is_confirming = any(each.stage is Stage.CONFIRM for each in planned)
        if self.confirm and not is_confirming and isinstance(self.layout, Plan):
            left += self.layout.blocks * (self.layout.finalists + self.layout.block_baselines)
        return left

    def propose(self, history: History) -> tuple[Trial, ...]:
        """Return the trials to run next: what the screen lacks, then what the blocks lack."""
        lineup, past = self._read(history)
        pending = _pending_screen(lineup, past)
        if pending or not self.confirm:
            return pending
        ranked = screen(past, lineup.segments)
        return _pending_blocks(lineup, past, self._confirmation(lineup, past, ranked))

    def conclude(self, history: History) -> Conclusion:
        """Return what is known after any part of the sweep."""
        lineup, past = self._read(history)
        ranked = screen(past, lineup.segments)
        is_screened = not _pending_screen(lineup, past)
        # a run that explores only has no finalists, unless an earlier one sent some
        is_confirming = bool(past.confirm) or (self.confirm and is_screened)
        confirmation = self._confirmation(lineup, past, ranked) if is_confirming else None
        arms = self._arms(lineup, past, ranked) if is_confirming else ()
        pending = _pending_blocks(lineup, past, confirmation) if self.confirm else ()
        return conclusion(
            Reading(
                declared=lineup.profiles,
                selected=lineup.candidates,
                repeats=lineup.repeats,
                past=past,
                screen=ranked,
                confirmation=confirmation,
                finalists=tuple(arm.id for arm in arms if arm.id != ALIAS.id),
                late=self._late(lineup, past, ranked),
                layout=self.layout,
                noise=self._noise(ranked),
                loss_tolerance=self.loss_tolerance,
                said=lineup.said,
                is_screened=is_screened,
                is_complete=is_screened and not pending,
            )
        )

    @cached_property
    def _orders(self) -> Orders:
        return Orders(cell=self.cell, cell_digest=self.cell.digest, seed=self.seed)

    @cached_property
    def _declaration(self) -> Declaration:
        return Declaration(
            orders=self._orders,
            profiles=self.profiles,
            rules=self.rules,
            ground=self.ground,
            selected=self.selected,
            baselines=self._baselines,
            sigma=JobNoise(known=self.sigma_prior).value,
            loss_tolerance=self.loss_tolerance,
        )

    @property
    def _count(self) -> int:
        """Profiles that are declared, and slots for derived ones."""
        return len(self.profiles) + sum(rule.slots for rule in self.rules)

    @cached_property
    def _waves(self) -> dict[str, int]:
        """Waves in the order they run -> their profiles, slots of derived ones included."""
        own = [*((each.wave, 1) for each in self.profiles)]
        own += [(rule.wave, rule.slots) for rule in self.rules]
        waves = sorted({wave for wave, _ in own} or {"wave1"}, key=wave_order)
        return {wave: sum(count for other, count in own if other == wave) for wave in waves}

    @cached_property
    def _wave_baselines(self) -> dict[str, int]:
        """Baselines by wave where they are settled before the layout; {} leaves it to the plan."""
        if self.screen_baselines:
            return dict.fromkeys(self._waves, self.screen_baselines)
        if len(self._waves) == 1:
            return {}
        return {wave: wave_baselines(count) for wave, count in self._waves.items()}

    @cached_property
    def _baselines(self) -> dict[str, int]:
        """Baselines in the queue of each wave."""
        layout = self.layout
        if isinstance(layout, Plan):
            planned = layout.screen_baselines
        else:
            planned = max(1, min(5, self.budget - self._count))
        return {wave: self._wave_baselines.get(wave, planned) for wave in self._waves}

    def _lineup(self, history: History) -> Lineup:
        return self._declaration.at(history)

    def _read(self, history: History) -> tuple[Lineup, Past]:
        lineup = self._lineup(history)
        past = read(
            history,
            cell_digest=self._orders.cell_digest,
            protocol=self.cell.protocol,
            declared=lineup.profiles,
        )
        return lineup, past

    def _confirmation(self, lineup: Lineup, past: Past, ranked: Screen) -> Confirmation | None:
        layout = self.layout
        arms = self._arms(lineup, past, ranked)
        if isinstance(layout, Refusal) or not arms:
            return None
        return confirm(
            past,
            first=design(past, layout, arms=len(arms), second_blocks=self.second_blocks),
            arms=arms,
            orders=self._orders,
            second_blocks=self.second_blocks,
            equivalence=self.equivalence,
        )

    def _arms(self, lineup: Lineup, past: Past, ranked: Screen) -> tuple[Profile, ...]:
        """Return the finalists in rank order, then the alias if it runs.

        Arms that have confirming trials stay; a stage that was cut off while it was being planned
        is filled up to its own size by the same rule that began it.
        """
        if isinstance(self.layout, Refusal):
            return ()
        interesting = self._ranking(lineup, past, ranked, most=self.layout.finalists)
        if interesting and len(interesting) < self.layout.finalists:
            interesting.append(ALIAS.id)
        frozen = frozen_arms(past)
        if frozen:
            size = design(past, self.layout, arms=0, second_blocks=0).arms
            interesting = [each for each in interesting if each not in frozen]
            interesting = [*frozen, *interesting[: max(size - len(frozen), 0)]]
        ranks = {each: _rank(each, lineup, ranked) for each in ranked.standings}
        declared = {**lineup.profiles, ALIAS.id: ALIAS}
        return tuple(
            declared[each]
            for each in sorted(interesting, key=lambda each: ranks.get(each, (math.inf, 0)))
            if each in declared
        )

    def _ranking(self, lineup: Lineup, past: Past, ranked: Screen, *, most: int) -> list[str]:
        """Return the first profiles of the screen that are of interest."""
        found = (
            each for each in ranked.standings if self._is_of_interest(each, lineup, past, ranked)
        )
        return sorted(found, key=lambda each: _rank(each, lineup, ranked))[:most]

    def _late(self, lineup: Lineup, past: Past, ranked: Screen) -> tuple[str, ...]:
        """Return what would be a finalist by now, had the finalists not been fixed before."""
        frozen = frozen_arms(past)
        if not frozen or isinstance(self.layout, Refusal):
            return ()
        size = design(past, self.layout, arms=0, second_blocks=0).arms
        if len(frozen) < size:
            return ()  # still being planned, and filled up
        ranking = self._ranking(lineup, past, ranked, most=size)
        return tuple(each for each in ranking if each not in frozen)

    def _is_of_interest(self, profile_id: str, lineup: Lineup, past: Past, ranked: Screen) -> bool:
        """Whether the screen leaves it possible that a profile helps."""
        if profile_id not in lineup.candidates or lineup.repeats.get(profile_id) == BASELINE_ID:
            return False
        trials = past.of_profile(profile_id, Stage.SCREEN)
        if any(each.status is TrialStatus.DROPPED for each in trials):
            return False
        if loss_reason(past, profile_id, tolerance=self.loss_tolerance):
            return False
        standing = ranked.standings[profile_id]
        reach = 2 * self._noise(ranked).value * math.sqrt(standing.variance)
        return math.isfinite(standing.estimate) and standing.estimate + reach > 0

    def _noise(self, ranked: Screen) -> JobNoise:
        return JobNoise(known=self.sigma_prior, seen=ranked.sigma)


def _rank(profile_id: str, lineup: Lineup, ranked: Screen) -> tuple[float, int]:
    return -ranked.standings[profile_id].estimate, list(lineup.profiles).index(profile_id)


def _pending_screen(lineup: Lineup, past: Past) -> tuple[Trial, ...]:
    """Return what the selected waves still lack; the baselines of a wave go with any of it."""
    wanted = [
        segment
        for segment in lineup.plannable
        if any(trial.profile.id in lineup.candidates for trial in segment.trials)
    ]
    if not wanted and not lineup.opens:
        wanted = list(lineup.segments[:1])
    screened = (
        trial
        for segment in wanted
        for trial in segment.trials
        if (trial.is_baseline or trial.profile.id in lineup.candidates) and not past.is_final(trial)
    )
    return (*screened, *([] if lineup.evidence is None else [lineup.evidence]))


def _pending_blocks(
    lineup: Lineup, past: Past, confirmation: Confirmation | None
) -> tuple[Trial, ...]:
    if confirmation is None:
        return ()
    arms = {trial.profile.id for trial in confirmation.trials}
    if not arms & lineup.candidates:
        return ()
    return tuple(trial for trial in confirmation.trials if not past.is_final(trial))
