"""Distribute a sweep over several node slots, and decide which trials count after a slot died.

A slot is the cell on a node list of its own. The trials of the screen are dealt to the slots, and
each slot gets a baseline; a block runs on one slot. Trials that exist keep their slot. A slot is
dead if its nodes could not run a trial: its missing trials move to another slot, and an unfinished
block moves as a whole. But an arm that fails on two slots is itself at fault, and no slot is dead
because of it. This module writes no verdict, and uses scores only to find slower slots.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import fmean, median

from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.failure import Blame, FailureClass, blamed_on
from pytest_xlatune.model.message import Message, say
from pytest_xlatune.model.profile import BASELINE_ID
from pytest_xlatune.model.record import digest
from pytest_xlatune.model.result import TrialResult, TrialStatus, relative
from pytest_xlatune.model.text import counted
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.blocks import BlockScore, Estimate, fit_group
from pytest_xlatune.stats.design import (
    MIN_DF,
    SLOTS_PER_MISSING_BASELINE,
)
from pytest_xlatune.stats.quantiles import t_quantile
from pytest_xlatune.studies.trials import AGAIN, Past, Place, Segment, place, start_of, usable

# failures after which a slot takes no more trials, in addition to failures of nodes
_DEADLY = (FailureClass.QUEUE_LIMIT, FailureClass.SUBMISSION_REFUSED)
_LEAST_FAILED_SLOTS = 2  # an arm that fails on so many slots is itself at fault
_LEAST_SLOTS = 2


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
            if trial.cell_digest not in self.names or not trial.protocol.is_scored:
                counted.append(result)
            elif trial.block:
                if self._blocks.get(trial.block) == trial.cell_digest:
                    counted.append(result)
            elif self._screen.get(place(trial)) == trial.cell_digest:
                counted.append(result)
        return tuple(counted)

    def number(self, cell_digest: str) -> int:
        """Return the number of a slot, from 1."""
        return self.names.index(cell_digest) + 1

    def deal(self, segments: Sequence[Segment], *, at_most: int) -> tuple[Segment, ...]:
        """Return the queues of all waves with each trial on a slot, using at most `at_most` slots.

        Trials that exist keep their slot. A new baseline goes to the slot with the fewest
        baselines, a new profile to the shortest queue among the slots that have a baseline by the
        end of its wave: without a baseline, the level of a slot is unknown. One slot in eight may
        lack a baseline, since its profiles show its level if the slots are alike.
        """
        open_slots = self.alive[:at_most] or self.names[:1]
        queue_lengths = Counter(self._screen.values())
        baseline_counts = Counter(
            slot for key, slot in self._screen.items() if key.arm == BASELINE_ID
        )
        queues: list[Segment] = []
        for segment in segments:
            slot_of = {
                key: self._screen[key] for key in map(place, segment.trials) if key in self._screen
            }
            new_trials = [trial for trial in segment.trials if place(trial) not in slot_of]
            for trial in new_trials:
                if trial.is_baseline:
                    slot = min(
                        open_slots, key=lambda slot: (baseline_counts[slot], queue_lengths[slot])
                    )
                    slot_of[place(trial)] = slot
                    queue_lengths[slot] += 1
                    baseline_counts[slot] += 1
            with_level = [slot for slot in open_slots if baseline_counts[slot]]
            may_lack = len(open_slots) // SLOTS_PER_MISSING_BASELINE
            if not with_level or len(open_slots) - len(with_level) <= may_lack:
                with_level = list(open_slots)
            for trial in new_trials:
                if not trial.is_baseline:
                    slot = min(with_level, key=lambda slot: queue_lengths[slot])
                    slot_of[place(trial)] = slot
                    queue_lengths[slot] += 1
            trials = (replace(trial, cell_digest=slot_of[place(trial)]) for trial in segment.trials)
            queues.append(dataclasses.replace(segment, trials=tuple(trials)))
        return tuple(queues)

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
                slot = min(
                    open_slots,
                    key=lambda slot: (queue_lengths[slot], (trial.arm, slot) in first_runs),
                )
                slot_of[key] = slot
                queue_lengths[slot] += 1
        return tuple(replace(trial, cell_digest=slot_of[place(trial)]) for trial in trials)

    def place_blocks(self, trials: Sequence[Trial]) -> tuple[Trial, ...]:
        """Return the trials of blocks, each block on its slot."""
        slot_of = self._block_slots(max((trial.block for trial in trials), default=0))
        return tuple(replace(trial, cell_digest=slot_of[trial.block]) for trial in trials)

    def _block_slots(self, last: int) -> Mapping[int, str]:
        """Return block -> slot up to block `last`; a new block gets the slot with fewest blocks."""
        block_counts = Counter(self._blocks.values())
        slot_of: dict[int, str] = {}
        open_slots = sorted(
            self.alive or self.names[:1], key=lambda slot: digest([self.seed, "slot of", slot])
        )
        for block in range(1, last + 1):
            slot = self._blocks.get(block)
            if slot is None:
                slot = min(open_slots, key=lambda slot: block_counts[slot])
                block_counts[slot] += 1
            slot_of[block] = slot
        return slot_of

    @cached_property
    def _screen(self) -> Mapping[Place, str]:
        """Place of an existing screening trial -> its slot; a dead slot's lost trials have none."""
        placed: dict[Place, tuple[tuple[bool, bool], str]] = {}
        for result in self.history:
            trial = result.trial
            if not trial.is_screened or trial.cell_digest not in self.names:
                continue
            is_over = result.status.is_final and not _is_lost_to_nodes(result)
            if not is_over and trial.cell_digest in self.dead:
                continue
            key, rank = place(trial), (is_over, result.status.is_final)
            # of two results with equal rank, the one that was planned first stays
            if key not in placed or rank > placed[key][0]:
                placed[key] = rank, trial.cell_digest
        return {key: slot for key, (_, slot) in placed.items()}

    @cached_property
    def _blocks(self) -> Mapping[int, str]:
        """Existing block -> its slot, without blocks that a dead slot did not finish."""
        results_of: dict[int, dict[str, list[TrialResult]]] = defaultdict(lambda: defaultdict(list))
        for result in self.history:
            if result.trial.block and result.trial.cell_digest in self.names:
                results_of[result.trial.block][result.trial.cell_digest].append(result)
        slots: dict[int, str] = {}
        for block, by_slot in results_of.items():
            finished = {
                slot: sum(result.status.is_final for result in results)
                for slot, results in by_slot.items()
                if slot not in self.dead or not any(map(_is_open, results))
            }
            if finished:
                slots[block] = max(finished, key=lambda slot: finished[slot])
        return slots


def _is_lost_to_nodes(result: TrialResult) -> bool:
    """Return whether the nodes of a trial could not run it."""
    return result.status is TrialStatus.UNMEASURED and any(
        finding.cls in (*_DEADLY, *blamed_on(Blame.NODE)) for finding in result.findings[-1:]
    )


def _is_open(result: TrialResult) -> bool:
    """Return whether a trial is not over, or must run again on another slot."""
    return not result.status.is_final or _is_lost_to_nodes(result)


def check_slots(slots: Sequence[Sequence[str]], *, cell: Cell, where: str) -> None:
    """Refuse slots that share a node, differ in size, or are not the cell's.

    Raises:
        ConfigError: names the slots.
    """
    if not slots:
        return
    if len(slots) < _LEAST_SLOTS or tuple(slots[0]) != cell.nodelist:
        raise ConfigError(
            f"{where}: found {counted(len(slots), 'node slot')}, expected two or more, the first "
            f"on the cell's own nodes {','.join(cell.nodelist)}; for one slot leave them out"
        )
    if len({len(slot) for slot in slots}) > 1 or not slots[0]:
        sizes = ", ".join(str(len(slot)) for slot in slots)
        raise ConfigError(
            f"{where}: the node slots have {sizes} nodes; a cell has as many on each, so name as "
            "many nodes for every slot"
        )
    counts = Counter(node.lower() for slot in slots for node in slot)
    shared = sorted(node for node, count in counts.items() if count > 1)
    if shared:
        raise ConfigError(
            f"{where}: the node slots share {', '.join(shared)}; a node runs one trial at a time, "
            "so name each node once"
        )


ANOTHER_SESSION = 4.0  # a pause above so many median pauses begins another session


def second_run_shift(placed: Sequence[tuple[TrialResult, float]]) -> float:
    """Return how far second runs are shifted against the first; 0 if they are of one session.

    No baselines run beside second runs, so only the pause before them shows another session. The
    shift is the mean difference between second and first runs of the same profiles.

    Args:
        placed: first and second runs of the screen, and their log ratio to the line of the first.
    """
    starts: dict[str, list[tuple[float, bool]]] = defaultdict(list)
    for result, _ in placed:
        if (start := start_of(result)) is not None:
            starts[result.trial.cell_digest].append((start, result.trial.stage == AGAIN))
    usual_pauses: list[float] = []
    pauses_before_second: list[float] = []
    for times in starts.values():
        for (before, was_second), (after, is_second) in pairwise(sorted(times)):
            pauses = pauses_before_second if is_second and not was_second else usual_pauses
            pauses.append(after - before)
    if not usual_pauses or not pauses_before_second:
        return 0.0
    if min(pauses_before_second) <= ANOTHER_SESSION * median(usual_pauses):
        return 0.0
    first = {result.trial.arm: value for result, value in placed if result.trial.stage != AGAIN}
    differences = [
        value - first[result.trial.arm]
        for result, value in placed
        if result.trial.stage == AGAIN and result.trial.arm in first
    ]
    return fmean(differences) if differences else 0.0


def second_run_means(past: Past, first: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """Return profile -> mean of its two runs, and the variance of that, for one slot.

    No baseline runs beside second runs, so in each epoch their mean is set to that of the first
    runs of the same profiles. The baselines' error is in both runs, so a second run halves only the
    variance of the job.

    `first` is profile -> log ratio of its first run, and its variance in sigma^2.
    """
    second_scores: dict[int, dict[str, float]] = defaultdict(dict)
    for key, result in past.screen.items():
        if key.stage == AGAIN and (score := usable(result)) is not None and key.arm in first:
            second_scores[result.epoch][key.arm] = score.value
    means = {}
    for scores in second_scores.values():
        shift = fmean(value - first[arm].estimate for arm, value in scores.items())
        for arm, value in scores.items():
            first_change, variance = first[arm]
            means[arm] = Estimate((first_change + value - shift) / 2, variance - 1 / 2)
    return means


_ALPHA = 0.05  # probability that any slot is called slower although none is


def slower_slots(past: Past, slots: Slots) -> dict[str, float]:
    """Return digest -> change of the slots that are slower than the others by more than noise.

    This is least squares over slot and arm, from the baselines and the arms of blocks, with
    one-sided t tests at 5 % over all slots. Profiles that were screened once do not compare slots.
    """
    arms = {BASELINE_ID, *(key.arm for key in past.confirm)} - past.dropped.keys()
    # slots as arms, arms as blocks
    scores = [
        BlockScore(block=key.arm, arm=result.trial.cell_digest, value=score.value)
        for key, result in (*past.screen.items(), *past.confirm.items())
        if key.arm in arms and (score := usable(result)) is not None
    ]
    scored_slots = {score.arm for score in scores}
    if len(scored_slots) < _LEAST_SLOTS:
        return {}
    changes = {}
    for slot in slots.names:
        others = scored_slots - {slot}
        fit = fit_group(scores, controls=others) if slot in scored_slots else None
        effect = fit.arms.get(slot) if fit is not None else None
        if fit is None or effect is None or fit.df < MIN_DF or not math.isfinite(fit.sigma):
            continue
        critical = t_quantile(1 - _ALPHA / len(scored_slots), fit.df)
        if effect.estimate < -critical * fit.sigma * math.sqrt(effect.variance):
            changes[slot] = relative(effect.estimate)
    return changes


def notes_on_slots(past: Past, slots: Slots, nodes: Mapping[str, str]) -> list[Message]:
    """Return the lines of a report about slots that are slower or died.

    `nodes` is digest of the cell on a slot -> the nodes of the slot, as a host list.
    """
    notes = []
    counted_ids = {id(result) for result in slots.counted_results}
    for slot, change in slower_slots(past, slots).items():
        named_slot = {"slot": slots.number(slot), "nodes": nodes[slot]}
        notes.append(
            say(
                "slot {slot} ({nodes}) is slower than the others by {loss:size}, more than "
                "noise explains; no comparison rests on it",
                loss=-change,
                **named_slot,
            )
        )
    for slot in slots.names:
        if slot not in slots.dead:
            continue
        why = next(
            (
                result.reason
                for result in slots.history
                if result.trial.cell_digest == slot and _is_lost_to_nodes(result)
            ),
            None,
        )
        lost = sum(
            result.trial.cell_digest == slot and result.trial.block > 0 and result.status.is_final
            for result in slots.history
            if id(result) not in counted_ids
        )
        with_block = (
            say(", and {trials:+trial} of its block were lost with it", trials=lost)
            if lost
            else None
        )
        named_slot = {"slot": slots.number(slot), "nodes": nodes[slot]}
        notes.append(
            say(
                "slot {slot} ({nodes}) takes no trial: {why}{block}",
                why=why,
                block=with_block,
                **named_slot,
            )
        )
    return notes
