"""The trials of a study: the order in which they are planned, and which belong to it.

Orders are random, and the same in every process: the place of an item comes from a digest of the
seed and of what the item sets. So adding, renaming or deselecting a profile does not change the
order of the others.

A study takes its own trials from a history, each once, whatever their order, and scores them in one
window. The window is chosen from the trials outside blocks if these are enough, so that fresh
blocks do not influence their own window; otherwise it is chosen from all trials.
"""

from __future__ import annotations

import functools
import math
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from operator import itemgetter
from statistics import fmean, median
from typing import NamedTuple

from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell, Protocol
from pytest_xlatune.model.message import say
from pytest_xlatune.model.profile import BASELINE, Profile
from pytest_xlatune.model.record import digest
from pytest_xlatune.model.result import Score, TrialResult, TrialStatus
from pytest_xlatune.model.trial import ConfirmDesign, Trial
from pytest_xlatune.stats.blocks import BlockFit, BlockScore, fit_blocks
from pytest_xlatune.stats.rotations import COMPILE_SHARE, JobPace
from pytest_xlatune.stats.score import rescore
from pytest_xlatune.stats.window import MIN_JOBS, Window, common_window
from pytest_xlatune.studies import History

STUDY = "tuning"
CONFIRM = "confirm"  # the stage of every trial in a block
AGAIN = "again"  # the stage of a second run in the screen
LOOK_STAGE = "look"  # the stage of the first rotation, which tests whether programs can take turns
TURNS = "rotation"  # the stage of the other rotations
SPARE = 3  # the `look` of a design of spare blocks, which decide nothing and spend no alpha
ALIAS = Profile(
    id="baseline-aa", wave="confirm", origin=say("the baseline under an alias: an A/A control")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The queue of one wave: trials in order, a baseline first and last."""

    wave: str
    trials: tuple[Trial, ...]

    @property
    def has_profiles(self) -> bool:
        """Whether the wave runs: the baselines of a wave without profiles never do."""
        return not all(trial.is_baseline for trial in self.trials)


@dataclass(frozen=True, kw_only=True)
class Orders:
    """The source of the random orders of a study.

    Attributes:
        cell: the cell of the trials, on its first node slot.
        seed: the seed of the orders.
        study: the name of the study.
        slots: the digest of the cell on each node slot; () if there is only one slot.
    """

    cell: Cell
    seed: int
    study: str = STUDY
    slots: tuple[str, ...] = ()

    @cached_property
    def cell_digest(self) -> str:
        """The digest of the cell, cached."""
        return self.cell.digest

    @property
    def protocols(self) -> Mapping[str, Protocol]:
        """Digest of a cell -> the protocol of its trials."""
        return dict.fromkeys(self.slots or (self.cell_digest,), self.cell.protocol)

    def segment(
        self, wave: str, runs: Sequence[tuple[Profile, int]], *, baselines: int, lone: float = 0.0
    ) -> tuple[Trial, ...]:
        """Return the queue of a wave: runs of profiles in random order, baselines at equal spacing.

        A run is a profile and its number, from 0. A single baseline is placed at the fraction
        `lone` of the queue: 0 is its head, 1 its end.
        """
        queue = self._shuffled(runs, scope=wave)
        last = len(queue) + baselines - 1
        places = [round(at * last / max(baselines - 1, 1)) for at in range(baselines)]
        if baselines == 1:
            places = [round(lone * last)]
        for position, place in enumerate(places):
            queue.insert(place, (BASELINE, position))
        return tuple(self.trial(profile, wave, position=position) for profile, position in queue)

    def again(self, profiles: Sequence[Profile]) -> tuple[Trial, ...]:
        """Return second runs of the screen, in random order."""
        ordered = self._shuffled([(profile, 0) for profile in profiles], scope=AGAIN)
        return tuple(self.trial(profile, AGAIN) for profile, _ in ordered)

    def blocks(
        self, arms: Sequence[Profile], numbers: Iterable[int], *, design: ConfirmDesign
    ) -> tuple[Trial, ...]:
        """Return complete blocks, each in its own random order.

        Baselines are drawn too: one that is always first, and therefore 0.5 % slower, makes 32.6 %
        false winners. Blocks are not mirrored, because that makes 9.6 %: a drift whose period is
        two blocks would not cancel.
        """
        cells = [(arm, 0) for arm in arms] + [(BASELINE, at) for at in range(design.baselines)]
        return tuple(
            self.trial(profile, CONFIRM, design=design, block=number, position=position)
            for number in numbers
            for profile, position in self._shuffled(cells, scope=f"block {number}")
        )

    def _shuffled(
        self, items: Sequence[tuple[Profile, int]], *, scope: str
    ) -> list[tuple[Profile, int]]:
        def key(item: tuple[Profile, int]) -> str:
            profile, position = item
            # The key depends on what a profile sets, not on its name. Arms that set nothing are
            # distinguished: the alias by a mark, an arm that differs only in its cell by its id.
            mark: object = profile.id == ALIAS.id
            if profile.is_baseline and profile.id not in (ALIAS.id, BASELINE.id):
                mark = profile.id
            return digest(
                [self.seed, self.cell_digest, scope, mark, profile.settings_text, position]
            )

        return sorted(items, key=key)

    def trial(
        self,
        profile: Profile,
        stage: str,
        *,
        design: ConfirmDesign | None = None,
        block: int = 0,
        position: int = 0,
    ) -> Trial:
        """Return a trial of the cell in this study."""
        return Trial(
            cell_digest=self.cell_digest,
            profile=profile,
            protocol=self.cell.protocol,
            study=self.study,
            stage=stage,
            block=block,
            position=position,
            design=design,
        )


@functools.cache
def wave_order(wave: str) -> tuple[bool, tuple[int, ...], str]:
    """Return the key that sorts waves: wave1, wave1_5, wave2, ..., wave10, then other names."""
    # the name of a numbered wave:  wave1_5
    numbered = re.fullmatch(r"wave[0-9]+(_[0-9]+)?", wave) is not None
    return not numbered, tuple(int(part) for part in re.findall(r"[0-9]{1,18}", wave)), wave


def in_window(results: Iterable[TrialResult], first_step: int | None) -> tuple[TrialResult, ...]:
    """Return results scored in the window that begins at `first_step`, as conclusions use it.

    A job without a score there has the reason. None means the protocol's window, in which each
    trial was scored when it ended.
    """
    return tuple(_rescored(result, first_step) for result in results)


def _rescored(result: TrialResult, first_step: int | None) -> TrialResult:
    if first_step is None or result.score is None or result.rotation is not None:
        return result
    protocol = replace(result.trial.protocol, first_step=first_step)
    score = rescore(result.score, protocol=protocol)
    if isinstance(score, Score):
        return replace(result, score=score)
    return replace(result, score=None, reason=score.reason)


def fitted(scored: Sequence[BlockScore]) -> BlockFit | None:
    """Return the least squares over blocks; None if no block holds a baseline and another arm."""
    return fit_blocks(scored, control=BASELINE.id)


class Place(NamedTuple):
    """The place of a trial in its study; places sort field by field."""

    stage: str
    layout: tuple[int, ...]  # figures of the trial's design; () outside blocks
    block: int
    arm: str
    position: int


def place(trial: Trial) -> Place:
    """Return the place of a trial in its study."""
    design = trial.design
    layout = (
        (design.look, design.looks, design.arms, design.blocks, design.baselines) if design else ()
    )
    return Place(trial.stage, layout, trial.block, trial.arm, trial.position)


def allocation_of(result: TrialResult) -> str:
    """Return the allocation in which a trial's last attempt was a step; "" if it was a job."""
    return result.outcome.allocation if result.outcome is not None else ""


# A late trial ran beside a block if it began at most so many median pauses before the block's first
# trial or after its last; a pause is the time between two starts.
_BESIDE_PAUSES = 2.0


def _blocks_of_late(starts: Mapping[Place, float]) -> Iterator[tuple[Place, Hashable]]:
    """Yield each trial that began after most of a later block, and where it counts.

    It counts in the block beside which it ran, or alone: compared with nothing.
    """
    by_block: dict[int, list[float]] = defaultdict(list)
    for key, start_s in starts.items():
        by_block[key.block].append(start_s)
    middles = {block: median(of_block) for block, of_block in by_block.items()}
    late = {
        key: start_s
        for key, start_s in starts.items()
        if any(block > key.block and middle < start_s for block, middle in middles.items())
    }
    if not late:
        return
    on_time: dict[int, list[float]] = defaultdict(list)
    for key in starts.keys() - late.keys():
        on_time[key.block].append(starts[key])
    pauses = [after - before for before, after in pairwise(sorted(starts.values()))]
    margin_s = _BESIDE_PAUSES * median(pauses)
    for key, start_s in late.items():
        beside = [
            (abs(middles[block] - start_s), block)
            for block, of_block in on_time.items()
            if block > key.block and min(of_block) - margin_s <= start_s <= max(of_block) + margin_s
        ]
        yield key, min(beside)[1] if beside else key


@dataclass(frozen=True, kw_only=True)
class Past:
    """The usable part of a history. The class has no `__slots__`, so that properties are cached.

    Attributes:
        screen: place -> result of a trial outside blocks.
        confirm: place -> result of a trial in a block, including undeclared profiles.
        changed: ids of profiles whose settings were edited after they were measured.
        window: the window in which all trials are scored.
        is_split: whether the trials run on several cells, such as node slots.
    """

    screen: Mapping[Place, TrialResult]
    confirm: Mapping[Place, TrialResult]
    changed: frozenset[str]
    window: Window
    is_split: bool

    @cached_property
    def dropped(self) -> frozenset[str]:
        """The arms in blocks that cannot run."""
        results = self.confirm.items()
        return frozenset(key.arm for key, run in results if run.status is TrialStatus.DROPPED)

    def scored_in_blocks(
        self, *, design: ConfirmDesign | None = None, until: float = math.inf
    ) -> list[BlockScore]:
        """Return the scores of blocks up to number `until`, without arms that cannot run.

        None accepts all designs. A block that was interrupted by a change of epoch, or that spans
        two allocations, counts as two blocks, because scores of its parts cannot be compared. A
        retried trial that began after most of a later block counts in the block beside which it
        ran, or in a block of its own.
        """
        return [
            BlockScore(
                block=(
                    self._blocks_of_late.get(key, key.block),
                    result.epoch,
                    allocation_of(result),
                ),
                arm=key.arm,
                value=score.value,
            )
            for key, result in sorted(self.confirm.items(), key=itemgetter(0))
            if key.arm not in self.dropped
            and key.block <= until
            and design in (None, result.trial.design)
            and (score := usable(result)) is not None
        ]

    @cached_property
    def _blocks_of_late(self) -> Mapping[Place, Hashable]:
        """Place of a late trial -> the block beside which it ran, or its place if it ran alone."""
        starts: dict[str, dict[Place, float]] = defaultdict(dict)
        for key, result in self.confirm.items():
            if usable(result) is not None and result.start_s is not None:
                # blocks on several cells run side by side
                starts[result.trial.cell_digest if self.is_split else ""][key] = result.start_s
        return {
            key: block
            for starts_of_cell in starts.values()
            for key, block in _blocks_of_late(starts_of_cell)
        }

    def result_of(self, trial: Trial) -> TrialResult | None:
        """Return the result of a planned trial so far; None if there is none."""
        return (self.confirm if trial.block else self.screen).get(place(trial))

    def is_final(self, trial: Trial) -> bool:
        """Return whether a planned trial is over."""
        result = self.result_of(trial)
        return result is not None and result.status.is_final

    def not_over(self, trials: Iterable[Trial]) -> tuple[Trial, ...]:
        """Return the planned trials that are not over."""
        return tuple(trial for trial in trials if not self.is_final(trial))

    @property
    def design(self) -> ConfirmDesign | None:
        """The design of the deciding blocks that have trials; None before the first.

        It is recorded in every confirming trial, so that neither a restart nor a larger budget can
        restore alpha that was spent.
        """
        designs = {result.trial.design for result in self.confirm.values()}
        return max((design for design in designs if design and design.look != SPARE), default=None)

    def arms_in_blocks(self, *, after: int = 0) -> tuple[str, ...]:
        """Return the arms that have trials in deciding blocks after a number, the alias too."""
        arms = {
            key.arm
            for key, result in self.confirm.items()
            if key.block > after and not is_spare(result.trial)
        }
        return tuple(sorted(arms - {BASELINE.id}))

    @cached_property
    def baseline_losses(self) -> tuple[list[float], float | None]:
        """The losses of the baseline's scored trials, and the median of their first losses.

        The median is None if no first loss is known.
        """
        trials = self.trials_of(BASELINE.id)
        return losses_of(trials), first_loss(trials)

    @cached_property
    def _by_arm(self) -> Mapping[tuple[bool, str], Sequence[TrialResult]]:
        """Whether in blocks, and arm -> its trials in the order of their places."""
        by_arm: dict[tuple[bool, str], list[TrialResult]] = defaultdict(list)
        for trials in (self.screen, self.confirm):
            for key in sorted(trials):
                by_arm[key.block > 0, key.arm].append(trials[key])
        return dict(by_arm)

    def screens_of(self, arm: str) -> Sequence[TrialResult]:
        """Return the trials of an arm outside blocks, in the order of their places."""
        return self._by_arm.get((False, arm), ())

    def confirms_of(self, arm: str) -> Sequence[TrialResult]:
        """Return the trials of an arm in blocks, in the order of their places."""
        return self._by_arm.get((True, arm), ())

    def trials_of(self, arm: str) -> Sequence[TrialResult]:
        """Return all trials of an arm, those outside blocks first."""
        return (*self.screens_of(arm), *self.confirms_of(arm))


def read(
    history: History,
    *,
    protocols: Mapping[str, Protocol],
    declared: Mapping[str, Profile],
    study: str = STUDY,
) -> Past:
    """Return the trials of a study in a history, each once, all scored in one window.

    `protocols` is digest of a cell -> the protocol of its trials, of which the first one has the
    window; `declared` is arm id -> its profile.
    """
    known = {BASELINE.id: BASELINE, ALIAS.id: ALIAS, **declared}
    screen: dict[Place, TrialResult] = {}
    confirm: dict[Place, TrialResult] = {}
    changed: set[str] = set()
    for recorded in history:
        result, trial = recorded, recorded.trial
        # a rotation of a sweep has been replaced by the results of its programs
        is_replaced = study == STUDY and trial.rotation is not None
        if is_replaced or not is_ours(trial, protocols=protocols, study=study):
            continue
        profile = known.get(trial.arm)
        if profile is not None and not profile.same_as(trial.profile):
            changed.add(trial.arm)
            if study != STUDY or not trial.block:
                continue
            # The settings that were measured keep their place among the finalists of these blocks,
            # under another id. The edited profile is treated like one that was added too late.
            trial = replace(trial, arm=f"{trial.arm[:57]}.edited")
            result = replace(result, trial=trial)
        elif profile is None and not trial.block:
            continue
        results = confirm if trial.block else screen
        key = place(trial)
        if key not in results or _precedence(result) > _precedence(results[key]):
            results[key] = result
    pool = _scores(screen)
    if len(pool) < MIN_JOBS:
        pool += _scores(confirm)
    window = common_window(pool, next(iter(protocols.values())))
    # All scores are moved here, so that no report mixes the declared window and the moved one.
    return Past(
        screen=dict(zip(screen, in_window(screen.values(), window.moved_to), strict=True)),
        confirm=dict(zip(confirm, in_window(confirm.values(), window.moved_to), strict=True)),
        changed=frozenset(changed),
        window=window,
        is_split=len(protocols) > 1,
    )


def is_ours(trial: Trial, *, protocols: Mapping[str, Protocol], study: str = STUDY) -> bool:
    """Return whether a trial belongs to this study, one of its cells and that cell's protocol.

    The protocol includes the profiler, so trials with it are never mixed with others.
    """
    protocol = protocols.get(trial.cell_digest)
    if protocol is None or trial.study != study:
        return False
    return trial.protocol == protocol or trial.protocol.identity == protocol.identity


def median_loss(results: Sequence[TrialResult]) -> float | None:
    """Return the median loss of the scored trials; None if no log printed one."""
    losses = losses_of(results)
    return median(losses) if losses else None


def losses_of(results: Iterable[TrialResult]) -> list[float]:
    """Return the losses that the logs of the scored trials printed."""
    return [s.loss for result in results if (s := usable(result)) and s.loss is not None]


def first_loss(results: Iterable[TrialResult]) -> float | None:
    """Return the median first loss of the scored trials; None if none is known."""
    scores = filter(None, map(usable, results))
    losses = [score.first_loss for score in scores if score.first_loss is not None]
    return median(losses) if losses else None


def pace_of(results: Iterable[TrialResult]) -> JobPace | None:
    """Return how long the parts of a job take, from measured jobs of a cell; None if unknown.

    The results are of one cell; rotations among them show how long a program compiles. If there is
    none, that is assumed to take a fixed share of the start-up.
    """
    starts_s, steps_s, compiled_s = [], [], []
    for result in results:
        log = result.rotation.read if result.rotation is not None else None
        job_compiled_s = [program.compile_s for program in log.compiled] if log is not None else []
        compiled_s += job_compiled_s
        outcome, score = result.outcome, usable(result)
        if score is None or not score.step_s or outcome is None or result.trial.protocol.dump:
            continue
        if outcome.start_s is not None and outcome.end_s is not None:
            all_steps_s = result.trial.protocol.steps * score.step_s
            other_s = math.fsum(job_compiled_s) + all_steps_s
            starts_s.append(max(outcome.end_s - outcome.start_s - other_s, 0.0))
            steps_s.append(score.step_s)
    if not starts_s:
        return None
    start_s = fmean(starts_s)
    return JobPace(
        start_s=start_s,
        step_s=fmean(steps_s),
        compile_s=fmean(compiled_s) if compiled_s else COMPILE_SHARE * start_s,
        jobs=len(starts_s),
        compilations=len(compiled_s),
    )


def is_spare(trial: Trial) -> bool:
    """Return whether a trial is in a spare block, which bounds and ranks but decides nothing."""
    return trial.design is not None and trial.design.look == SPARE


def usable(result: TrialResult) -> Score | None:
    """Return the score of a measured trial; None if there is none or it is not finite."""
    score = result.score
    if result.status is not TrialStatus.MEASURED or score is None:
        return None
    return score if math.isfinite(score.value) else None


def _scores(results: Mapping[Place, TrialResult]) -> list[Score]:
    """Return the scores of jobs, in the order of their places; that of a turn has no window."""
    jobs = (result for _, result in sorted(results.items()) if result.rotation is None)
    return [score for result in jobs if (score := usable(result)) is not None]


def _precedence(result: TrialResult) -> tuple[bool, bool, tuple[str, ...], float]:
    """Return the sort key of the results of one trial; the largest counts.

    Final results count before others, and measured ones before the rest. The score only makes the
    choice between equal results deterministic.
    """
    value = 0.0 if result.score is None else -result.score.value
    return (
        result.status.is_final,
        result.status is TrialStatus.MEASURED,
        result.job_ids,
        value,
    )
