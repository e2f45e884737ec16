"""Which of these profiles makes the cell faster: screen once, confirm on fresh blocks, conclude.

Every profile is measured once, in random order among spread baselines; that ranks. The best few are
measured again in randomised complete blocks with baselines inside; only that decides. Pure and
deterministic: whoever holds the same study and the same history proposes and concludes the same.
This module must not know of executors, ledgers, clocks or logs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from pytest_xlatune.cells import Cell, Stage, Trial
from pytest_xlatune.errors import ConfigError
from pytest_xlatune.profiles import BASELINE_ID, Profile, check_unique, parse_flags, settings_digest
from pytest_xlatune.records import Record, canonical
from pytest_xlatune.results import Conclusion, TrialStatus
from pytest_xlatune.stats.capacity import MIN_DF, Plan, Refusal, plan
from pytest_xlatune.studies import History
from pytest_xlatune.studies.tuning_conclusion import conclusion
from pytest_xlatune.studies.tuning_confirm import Confirmation, confirm, design, frozen_arms
from pytest_xlatune.studies.tuning_history import Past, read
from pytest_xlatune.studies.tuning_layout import (
    ALIAS,
    STUDY,
    Orders,
    Segment,
    wave_baselines,
    wave_order,
)
from pytest_xlatune.studies.tuning_reading import Reading, loss_reason
from pytest_xlatune.studies.tuning_screen import Screen, screen

DEFAULT_SIGMA = 0.006  # of a cell that was never calibrated


@dataclass(frozen=True, kw_only=True)
class TuningStudy(Record):
    """A sweep of profiles over one cell.

    Not slotted, for what is derived from the fields is computed once.

    Attributes:
        cell: what is held fixed.
        profiles: all declared profiles of the sweep in declared order, the baseline left out.
        selected: ids explored in this run; None is all. Filters, never reorders.
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
        known = {BASELINE_ID, *(profile.id for profile in self.profiles)}
        for unknown in sorted((self.selected or frozenset()) - known):
            raise ConfigError.unknown("profile", unknown, valid=known, where=where)
        layout = self.layout
        screened = sum(len(segment.trials) for segment in self.segments)
        jobs = layout.jobs if isinstance(layout, Plan) else screened
        if jobs > self.budget:
            raise ConfigError(
                f"{where}: {len(self.profiles)} profiles and their baselines need {jobs} jobs, "
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
    def layout(self) -> Plan | Refusal:
        """How the budget is laid out, or why it only ranks."""
        count = len(self.profiles)
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

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The queue of each wave in the order they run, deselected profiles included."""
        layout = self.layout
        if isinstance(layout, Plan):
            planned = layout.screen_baselines
        else:
            planned = max(1, min(5, self.budget - len(self.profiles)))
        return tuple(
            self._orders.segment(wave, profiles, baselines=self._wave_baselines.get(wave, planned))
            for wave, profiles in self._waves.items()
        )

    def whole(self) -> TuningStudy:
        """Return the study of all profiles, confirmation included."""
        return replace(self, selected=None, confirm=True)

    def left(self, history: History) -> int:
        """Return how many trials are still to come, with the blocks that are not planned yet."""
        left = len(self.propose(history))
        is_confirming = any(each.trial.stage is Stage.CONFIRM for each in history)
        if self.confirm and not is_confirming and isinstance(self.layout, Plan):
            left += self.layout.blocks * (self.layout.finalists + self.layout.block_baselines)
        return left

    def propose(self, history: History) -> tuple[Trial, ...]:
        """Return the trials to run next: what the screen lacks, then what the blocks lack."""
        past = self._read(history)
        pending = self._pending_screen(past)
        if pending or not self.confirm:
            return pending
        return self._pending_blocks(past, self._confirmation(past, screen(past, self.segments)))

    def conclude(self, history: History) -> Conclusion:
        """Return what is known after any part of the sweep."""
        past = self._read(history)
        ranked = screen(past, self.segments)
        is_screened = not self._pending_screen(past)
        # a run that explores only has no finalists, unless an earlier one sent some
        is_confirming = bool(past.confirm) or (self.confirm and is_screened)
        confirmation = self._confirmation(past, ranked) if is_confirming else None
        arms = self._arms(past, ranked) if is_confirming else ()
        pending = self._pending_blocks(past, confirmation) if self.confirm else ()
        return conclusion(
            Reading(
                declared=self._declared,
                selected=self._candidates,
                repeats=self._repeats,
                past=past,
                screen=ranked,
                confirmation=confirmation,
                finalists=tuple(arm.id for arm in arms if arm.id != ALIAS.id),
                layout=self.layout,
                sigma=self._sigma(ranked),
                loss_tolerance=self.loss_tolerance,
                is_screened=is_screened,
                is_complete=is_screened and not pending,
            )
        )

    @cached_property
    def _orders(self) -> Orders:
        return Orders(cell=self.cell, cell_digest=self.cell.digest, seed=self.seed)

    @cached_property
    def _declared(self) -> dict[str, Profile]:
        return {profile.id: profile for profile in self.profiles}

    @cached_property
    def _candidates(self) -> frozenset[str]:
        declared = frozenset(self._declared)
        return declared if self.selected is None else declared & self.selected

    @cached_property
    def _waves(self) -> dict[str, list[Profile]]:
        waves = sorted({profile.wave for profile in self.profiles} or {"wave1"}, key=wave_order)
        return {wave: [each for each in self.profiles if each.wave == wave] for wave in waves}

    @cached_property
    def _wave_baselines(self) -> dict[str, int]:
        """Baselines by wave where they are settled before the layout; {} leaves it to the plan."""
        if self.screen_baselines:
            return dict.fromkeys(self._waves, self.screen_baselines)
        if len(self._waves) == 1:
            return {}
        return {wave: wave_baselines(len(found)) for wave, found in self._waves.items()}

    @cached_property
    def _repeats(self) -> dict[str, str]:
        """Profile -> the baseline or an earlier profile with the same effective settings."""
        deployed = dict(self.cell.deployed)
        flags = parse_flags(deployed.pop("XLA_FLAGS", ""), where="deployed XLA_FLAGS")
        first = {(settings_digest(flags, deployed), canonical({})): BASELINE_ID}
        repeats = {}
        for each in self.profiles:
            settings = settings_digest((*flags, *each.flags), {**deployed, **each.env})
            owner = first.setdefault((settings, canonical(each.overrides)), each.id)
            if owner != each.id:
                repeats[each.id] = owner
        return repeats

    def _read(self, history: History) -> Past:
        return read(
            history,
            cell_digest=self._orders.cell_digest,
            protocol=self.cell.protocol,
            declared=self._declared,
        )

    def _pending_screen(self, past: Past) -> tuple[Trial, ...]:
        """Return what the selected waves still lack; the baselines of a wave go with any of it."""
        wanted = [
            segment
            for segment in self.segments
            if any(trial.profile.id in self._candidates for trial in segment.trials)
        ] or list(self.segments[:1])
        return tuple(
            trial
            for segment in wanted
            for trial in segment.trials
            if (trial.is_baseline or trial.profile.id in self._candidates)
            and not past.is_final(trial)
        )

    def _pending_blocks(self, past: Past, confirmation: Confirmation | None) -> tuple[Trial, ...]:
        if confirmation is None:
            return ()
        arms = {trial.profile.id for trial in confirmation.trials}
        if not arms & self._candidates:
            return ()
        return tuple(trial for trial in confirmation.trials if not past.is_final(trial))

    def _confirmation(self, past: Past, ranked: Screen) -> Confirmation | None:
        layout = self.layout
        arms = self._arms(past, ranked)
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

    def _arms(self, past: Past, ranked: Screen) -> tuple[Profile, ...]:
        """Return the finalists in rank order, then the alias if it runs.

        Arms that have confirming trials stay; a stage that was cut off while it was being planned
        is filled up to its own size by the same rule that began it.
        """
        if isinstance(self.layout, Refusal):
            return ()
        order = {profile.id: at for at, profile in enumerate(self.profiles)}

        def rank(profile_id: str) -> tuple[float, int]:
            return -ranked.standings[profile_id].estimate, order[profile_id]

        interesting = sorted(
            (each for each in ranked.standings if self._is_of_interest(each, past, ranked)),
            key=rank,
        )[: self.layout.finalists]
        if interesting and len(interesting) < self.layout.finalists:
            interesting.append(ALIAS.id)
        frozen = frozen_arms(past)
        if frozen:
            size = design(past, self.layout, arms=0, second_blocks=0).arms
            interesting = [each for each in interesting if each not in frozen]
            interesting = [*frozen, *interesting[: max(size - len(frozen), 0)]]
        ranks = {each: rank(each) for each in ranked.standings}
        declared = {**self._declared, ALIAS.id: ALIAS}
        return tuple(
            declared[each]
            for each in sorted(interesting, key=lambda each: ranks.get(each, (math.inf, 0)))
            if each in declared
        )

    def _is_of_interest(self, profile_id: str, past: Past, ranked: Screen) -> bool:
        """Whether the screen leaves it possible that a profile helps."""
        if profile_id not in self._candidates or self._repeats.get(profile_id) == BASELINE_ID:
            return False
        trials = past.of_profile(profile_id, Stage.SCREEN)
        if any(each.status is TrialStatus.DROPPED for each in trials):
            return False
        if loss_reason(past, profile_id, tolerance=self.loss_tolerance):
            return False
        standing = ranked.standings[profile_id]
        reach = 2 * self._sigma(ranked) * math.sqrt(standing.variance)
        return math.isfinite(standing.estimate) and standing.estimate + reach > 0

    def _sigma(self, ranked: Screen) -> float:
        """Return the job noise to plan with: the larger of what was known and what was seen."""
        return max(self.sigma_prior or DEFAULT_SIGMA, ranked.sigma or 0.0)
