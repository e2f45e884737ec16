"""Distribute a sweep over several node slots, and decide which trials count after a slot died.

A slot is the cell on a node list of its own. The trials of the screen are dealt to the slots, and
each slot gets a baseline; a block runs on one slot. Trials that exist keep their slot. A slot is
dead if its nodes could not run a trial: its missing trials move to another slot, and an unfinished
block moves as a whole. But an arm that fails on two slots is itself at fault, and no slot is dead
because of it. This module writes no verdict, and uses no score.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from msgspec.structs import replace

from pytest_xlatune.model.failure import Blame, FailureClass, blamed_on
from pytest_xlatune.model.profile import BASELINE_ID
from pytest_xlatune.model.record import digest
from pytest_xlatune.model.result import TrialResult, TrialStatus
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.design import SLOTS_PER_MISSING_BASELINE
from pytest_xlatune.studies.trials import AGAIN, Place, Segment, place

# failures after which a slot takes no more trials, in addition to failures of nodes
_DEADLY = (FailureClass.QUEUE_LIMIT, FailureClass.SUBMISSION_REFUSED)
_LEAST_FAILED_SLOTS = 2  # an arm that fails on so many slots is itself at fault


@dataclass(frozen=True, kw_only=True)
class Slots:
    """The node slots after a history. The class has no `__slots__`, so that properties are cached.

    Attributes:
        names: the digest of the cell on each slot, in the order of the declaration.
        seed: the seed of the order in which blocks use the slots.
        history: the results of the sweep, including those on dead slots.
    """

    names: tuple[str, ...]
    seed: int
    history: tuple[TrialResult, ...] = ()

    @cached_property
    def dead(self) -> frozenset[str]:
        """The slots whose nodes took a trial and could not run it."""
        failed_slots: dict[str, set[str]] = defaultdict(set)
        for result in self.history:
            if _is_lost_to_nodes(result) and result.trial.cell_digest in self.names:
                failed_slots[result.trial.arm].add(result.trial.cell_digest)
        dead: set[str] = set()
        for arm, slots in failed_slots.items():
            if len(slots) < _LEAST_FAILED_SLOTS or arm == BASELINE_ID:
                dead |= slots
        return frozenset(dead)

    @property
    def alive(self) -> tuple[str, ...]:
        """The slots that take trials."""
        return tuple(name for name in self.names if name not in self.dead)

    @cached_property
    def counted_results(self) -> tuple[TrialResult, ...]:
        """The results that count: each trial once, and each block on one slot.

        Trials that moved from a dead slot count only where they moved to.
        """
        counted = []
        for result in self.history:
            trial = result.trial
            slot = self._blocks.get(trial.block) if trial.block else self._screen.get(place(trial))
            is_elsewhere = trial.cell_digest not in self.names or not trial.protocol.is_scored
            if is_elsewhere or slot == trial.cell_digest:
                counted.append(result)
        return tuple(counted)

    def deal(self, segments: Sequence[Segment], *, at_most: int) -> tuple[Segment, ...]:
        """Return the queues of all waves with each trial on a slot, using at most `at_most` slots.

        Trials that exist keep their slot. A new baseline goes to the slot with the fewest
        baselines, a new profile to the shortest queue among the slots that have a baseline by the
        end of its wave: without a baseline, the level of a slot is unknown. One slot in eight may
        lack a baseline, since its profiles show its level if the slots are alike.
        """
        open_slots = self.alive[:at_most] or self.names[:1]
        slot_of = dict(self._screen)
        queue_lengths = Counter(slot_of.values())
        baseline_counts = Counter(slot for key, slot in slot_of.items() if key.arm == BASELINE_ID)
        for segment in segments:
            new_trials = (trial for trial in segment.trials if place(trial) not in slot_of)
            for trial in sorted(new_trials, key=lambda trial: not trial.is_baseline):
                with_level = [slot for slot in open_slots if baseline_counts[slot]]
                lacking = len(open_slots) - len(with_level)
                if trial.is_baseline:
                    slot = min(open_slots, key=lambda at: (baseline_counts[at], queue_lengths[at]))
                    baseline_counts[slot] += 1
                elif with_level and lacking > len(open_slots) // SLOTS_PER_MISSING_BASELINE:
                    slot = min(with_level, key=lambda at: queue_lengths[at])
                else:
                    slot = min(open_slots, key=lambda at: queue_lengths[at])
                slot_of[place(trial)] = slot
                queue_lengths[slot] += 1
        return tuple(
            dataclasses.replace(segment, trials=_placed(segment.trials, slot_of))
            for segment in segments
        )

    def deal_again(self, trials: Sequence[Trial], *, at_most: int) -> tuple[Trial, ...]:
        """Return second runs of the screen on the slots with the fewest of them.

        Of equal slots, one that did not run the first run of the profile is preferred.
        """
        open_slots = self.alive[:at_most] or self.names[:1]
        slot_of = {key: slot for key, slot in self._screen.items() if key.stage == AGAIN}
        queue_lengths = Counter(slot_of.values())
        first_runs = {(key.arm, slot) for key, slot in self._screen.items() if key not in slot_of}
        for trial in trials:
            if (key := place(trial)) not in slot_of:
                slot_of[key] = min(
                    open_slots, key=lambda at: (queue_lengths[at], (key.arm, at) in first_runs)
                )
                queue_lengths[slot_of[key]] += 1
        return _placed(trials, slot_of)

    def place_blocks(self, trials: Sequence[Trial]) -> tuple[Trial, ...]:
        """Return the trials of blocks, each block on one slot; new blocks go where fewest are."""
        block_counts = Counter(self._blocks.values())
        slot_of = dict(self._blocks)
        open_slots = sorted(
            self.alive or self.names[:1], key=lambda slot: digest([self.seed, "slot of", slot])
        )
        for block in range(1, max((trial.block for trial in trials), default=0) + 1):
            if block not in slot_of:
                slot_of[block] = min(open_slots, key=lambda slot: block_counts[slot])
                block_counts[slot_of[block]] += 1
        return tuple(replace(trial, cell_digest=slot_of[trial.block]) for trial in trials)

    @cached_property
    def _on_slots(self) -> Sequence[TrialResult]:
        """The results on slots, those that are over first, without open ones of dead slots."""
        results = [
            result
            for result in self.history
            if result.trial.cell_digest in self.names
            and not (_is_open(result) and result.trial.cell_digest in self.dead)
        ]
        return sorted(results, key=_is_open)

    @cached_property
    def _screen(self) -> Mapping[Place, str]:
        """Place of an existing screening trial -> its slot."""
        slot_of: dict[Place, str] = {}
        for result in self._on_slots:
            if result.trial.is_screened:
                slot_of.setdefault(place(result.trial), result.trial.cell_digest)
        return slot_of

    @cached_property
    def _blocks(self) -> Mapping[int, str]:
        """Existing block -> its slot, without blocks that a dead slot did not finish."""
        unfinished = {
            (result.trial.block, result.trial.cell_digest)
            for result in self.history
            if _is_open(result) and result.trial.cell_digest in self.dead
        }
        finished: Counter[tuple[int, str]] = Counter()
        for result in self._on_slots:
            key = (result.trial.block, result.trial.cell_digest)
            if result.trial.block and key not in unfinished:
                finished[key] += result.status.is_final
        slot_of: dict[int, str] = {}
        for (block, slot), _ in finished.most_common():
            slot_of.setdefault(block, slot)
        return slot_of


def _placed(trials: Iterable[Trial], slot_of: Mapping[Place, str]) -> tuple[Trial, ...]:
    return tuple(replace(trial, cell_digest=slot_of[place(trial)]) for trial in trials)


def _is_lost_to_nodes(result: TrialResult) -> bool:
    """Return whether the nodes of a trial could not run it."""
    return result.status is TrialStatus.UNMEASURED and any(
        finding.cls in (*_DEADLY, *blamed_on(Blame.NODE)) for finding in result.findings[-1:]
    )


def _is_open(result: TrialResult) -> bool:
    """Return whether a trial is not over, or must run again on another slot."""
    return not result.status.is_final or _is_lost_to_nodes(result)
