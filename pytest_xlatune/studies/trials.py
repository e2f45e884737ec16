"""The trials of a study: the order in which they are planned, and which belong to it.

Orders are random, and the same in every process: the place of an item comes from a digest of the
seed and of what the item sets. So adding, renaming or deselecting a profile does not change the
order of the others.

A study takes its own trials from a history, each once, whatever their order. The trials of a cell
are scored in one window. The window is chosen from the trials outside blocks if these are enough,
so that fresh blocks do not influence their own window; otherwise it is chosen from all trials.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple

from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell, Protocol
from pytest_xlatune.model.message import Message, say
from pytest_xlatune.model.profile import BASELINE, Profile
from pytest_xlatune.model.record import digest
from pytest_xlatune.model.result import (
    Comparison,
    Score,
    TrialResult,
    TrialStatus,
    relative,
)
from pytest_xlatune.model.trial import ConfirmDesign, Trial
from pytest_xlatune.stats.blocks import BlockFit, BlockScore, fit_blocks
from pytest_xlatune.stats.compare import compare
from pytest_xlatune.stats.rotations import COMPILE_SHARE, JobPace
from pytest_xlatune.stats.score import rescore
from pytest_xlatune.stats.window import (
    MIN_JOBS,
    TOLERANCE,
    Window,
    common_window,
    first_half_excess,
)
from pytest_xlatune.studies import History

STUDY = "tuning"
CONFIRM = "confirm"  # the stage of every trial in a block
AGAIN = "again"  # the stage of a second run in the screen
LOOK_STAGE = "look"  # the stage of the first rotation, which tests whether programs can take turns
TURNS = "rotation"  # the stage of the other rotations
SPARE = 3  # the `look` of a design of spare blocks, which decide nothing and spend no alpha
CANNOT_RUN = say("it cannot run")
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
    ) -> Segment:
        """Return the queue of a wave: runs of profiles in random order, baselines at equal spacing.

        A run is a profile and the number of the run, from 0.
        A single baseline is placed at the fraction `lone` of the queue: 0 is its head, 1 its end.
        """
        queue = self._shuffled(runs, scope=wave)
        last = len(queue) + baselines - 1
        places = [round(at * last / max(baselines - 1, 1)) for at in range(baselines)]
        if baselines == 1:
            places = [round(lone * last)]
        for position, place in enumerate(places):
            queue.insert(place, (BASELINE, position))
        return Segment(
            wave=wave,
            trials=tuple(
                self.trial(profile, wave, position=position) for profile, position in queue
            ),
        )

    def ranked(self, wave: str, profiles: Iterable[tuple[Profile, int]]) -> tuple[Trial, ...]:
        """Return the trials that rotations replace: for each profile, one for each ranking.

        Args:
            wave: the wave of the profiles.
            profiles: each profile, and how many rotations rank it.
        """
        return tuple(
            self.trial(profile, wave, position=at)
            for profile, rankings in profiles
            for at in range(rankings)
        )

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


def wave_baselines(counts: Mapping[str, int], total: int) -> dict[str, int]:
    """Return wave -> number of baselines.

    Each wave gets one. Each further one goes to the wave with the most profiles for a baseline.

    Args:
        counts: wave -> number of its profiles.
        total: number of baselines in all; each wave gets one even if that exceeds it.
    """
    shared = dict.fromkeys(counts, 1)
    for _ in range(total - len(counts)):
        most = max(counts, key=lambda wave: counts[wave] / shared[wave])
        shared[most] += 1
    return shared


# rate of false alarms about the warm-up; it is low, so that readers take the note seriously
ALPHA = 0.01
ScoredTrial = tuple[Hashable, str, Score]  # block, arm, score of one trial


_Pool = tuple[Score, ...]
_WINDOWS: dict[Protocol, tuple[_Pool, Window]] = {}  # protocol -> the last pool and its window


def window_of(screened: Iterable[Score], confirmed: Iterable[Score], protocol: Protocol) -> Window:
    """Return the window of a study's trials, chosen from scores outside blocks and in them.

    It is cached, because the pool of a finished screen does not change while blocks run.
    """
    first = tuple(screened)
    pool = first if len(first) >= MIN_JOBS else (*first, *confirmed)
    if protocol in _WINDOWS:
        last_pool, window = _WINDOWS[protocol]
        if len(last_pool) == len(pool) and all(map(operator.is_, last_pool, pool)):
            return window
    window = common_window(list(pool), protocol)
    _WINDOWS[protocol] = pool, window
    return window


def moved(result: TrialResult, window: Window) -> TrialResult:
    """Return a trial rescored in the common window; without a score there, it has the reason."""
    if not window.is_moved or result.score is None or result.rotation is not None:
        return result
    rescored = rescore(result.score, protocol=window.protocol)
    if isinstance(rescored, Score):
        return replace(result, score=rescored)
    return replace(result, score=None, reason=rescored.reason)


def in_window(results: Iterable[TrialResult], first_step: int | None) -> tuple[TrialResult, ...]:
    """Return results scored in the window that begins at `first_step`, as conclusions use it.

    None means the protocol's window, in which each trial was scored when it ended.
    """
    if first_step is None:
        return tuple(results)
    return tuple(
        moved(
            result,
            Window(protocol=replace(result.trial.protocol, first_step=first_step), is_moved=True),
        )
        for result in results
    )


def unlike_warmups(
    scored: Sequence[ScoredTrial], *, family: int, window: Window
) -> Mapping[str, float]:
    """Return the arms that become steady earlier or later than the baseline in the same blocks.

    The value of an arm is by what fraction its first half of the window is slower than the second,
    minus the same figure of the baseline. If it is positive, the arm becomes steady later and its
    score is too low. Like all comparisons, it uses the job as the unit.
    """
    contrasts = [
        BlockScore(block=block, arm=arm, value=value)
        for block, arm, score in scored
        if (value := first_half_excess(score, window.protocol)) is not None
    ]
    fit = fit_blocks(contrasts, control=BASELINE.id) if len(contrasts) == len(scored) else None
    if fit is None:
        return {}
    unlike = {}
    for arm in sorted({contrast.arm for contrast in contrasts} - {BASELINE.id}):
        comparison = compare(fit, arm, family=family, alpha=ALPHA)
        if not isinstance(comparison, Comparison) or abs(comparison.estimate) <= TOLERANCE:
            continue
        # the upper bound is as far above the estimate as the lower one is below it
        if abs(comparison.estimate) > comparison.estimate - comparison.lower and comparison.n > 1:
            unlike[arm] = relative(comparison.estimate)
    return unlike


def fitted(scored: Sequence[ScoredTrial]) -> BlockFit | None:
    """Return the least squares over blocks; None if no block holds a baseline and another arm."""
    scores = [BlockScore(block=block, arm=arm, value=score.value) for block, arm, score in scored]
    return fit_blocks(scores, control=BASELINE.id)


def unlike_warmup(excess: float) -> Message:
    """Return what it means for the change of an arm that it warms up unlike the baseline."""
    return say(
        (
            "its steps become steady later than the baseline's ({excess:percent} in the first "
            "half of the window): the change is understated; run more steps"
        )
        if excess > 0
        else (
            "its steps become steady earlier than the baseline's ({excess:percent} in the first "
            "half of the window): the change is overstated; run more steps"
        ),
        excess=excess,
    )


class Place(NamedTuple):
    """The place of a trial in its study; places sort field by field."""

    stage: str
    layout: tuple[int, ...]  # figures of the trial's design; () outside blocks
    block: int
    arm: str
    position: int


# A late trial ran beside a block if it started at most so many median pauses before its first
# trial or after its last; a pause is the time between two starts.
_BESIDE_PAUSES = 2.0


def _real_blocks(
    trials: Mapping[Place, TrialResult], *, on_slots: bool = False
) -> Mapping[Place, Hashable]:
    """Return the block of each trial: as planned, unless it began after most of a later block.

    A retry runs beside a later block if, for example, eight jobs were queued ahead of it. A late
    trial that ran beside no block gets a block of its own, so it is compared with nothing. With
    `on_slots`, blocks run side by side, and only later blocks on the same nodes count.
    """
    if on_slots:
        by_slot: dict[str, dict[Place, TrialResult]] = defaultdict(dict)
        for key, result in trials.items():
            by_slot[result.trial.cell_digest][key] = result
        real_blocks: dict[Place, Hashable] = {}
        for slot_trials in by_slot.values():
            real_blocks |= _real_blocks(slot_trials)
        return real_blocks
    starts = {
        key: start
        for key, result in trials.items()
        if usable(result) is not None and (start := start_of(result)) is not None
    }
    by_block: dict[int, list[float]] = defaultdict(list)
    for key, start in starts.items():
        by_block[key.block].append(start)
    middles = {block: median(block_starts) for block, block_starts in by_block.items()}
    late = {
        key: start
        for key, start in starts.items()
        if any(block > key.block and middle < start for block, middle in middles.items())
    }
    blocks: dict[Place, Hashable] = {key: key.block for key in trials}
    if not late:
        return blocks
    on_time: dict[int, list[float]] = defaultdict(list)
    for key in starts.keys() - late.keys():
        on_time[key.block].append(starts[key])
    ordered = sorted(starts.values())
    margin = _BESIDE_PAUSES * median(after - before for before, after in pairwise(ordered))
    for key, start in late.items():
        overlapping = [
            block
            for block, block_starts in on_time.items()
            if block > key.block
            and min(block_starts) - margin <= start <= max(block_starts) + margin
        ]
        # of equally near blocks the first is taken: the order of a set differs between processes
        nearest = min(
            overlapping, key=lambda block: (abs(middles[block] - start), block), default=None
        )
        blocks[key] = ("alone", *key) if nearest is None else nearest
    return blocks


_SLUG_CHARS = 57  # 64 are allowed; this leaves room for a suffix


def allocation_of(result: TrialResult) -> str:
    """Return the allocation in which a trial's last attempt was a step; "" if it was a job."""
    return result.outcome.allocation if result.outcome is not None else ""


@dataclass(frozen=True, kw_only=True)
class Past:
    """The usable part of a history. The class has no `__slots__`, so that properties are cached.

    Attributes:
        screen: place -> result of a trial outside blocks.
        confirm: place -> result of a trial in a block, including undeclared profiles.
        undeclared: ids of profiles in the history that are no longer declared.
        changed: ids of profiles whose settings were edited after they were measured.
        foreign: number of trials of another cell, protocol or study.
        reference: the arm that the others are compared with; "" if there is none.
        windows: digest of a cell -> the window in which all its trials are scored.
        slots: whether the cells are node slots of one cell.
    """

    screen: Mapping[Place, TrialResult]
    confirm: Mapping[Place, TrialResult]
    reference: str
    windows: Mapping[str, Window]
    undeclared: frozenset[str]
    changed: frozenset[str]
    foreign: int
    slots: bool = False

    @property
    def window(self) -> Window:
        """The window of the first cell, for a study with one cell."""
        return next(iter(self.windows.values()))

    @cached_property
    def dropped(self) -> Mapping[str, Message]:
        """Arm in blocks -> why it cannot run."""
        return {
            key.arm: result.reason or CANNOT_RUN
            for key, result in sorted(self.confirm.items(), key=operator.itemgetter(0))
            if result.status is TrialStatus.DROPPED
        }

    def scored_in_blocks(
        self, *, designs: Sequence[ConfirmDesign] = (), until: int = 0
    ) -> list[ScoredTrial]:
        """Return the scored trials of blocks, without arms that cannot run.

        A block that was interrupted by a change of epoch, or that spans two allocations, counts as
        two blocks, because scores of its parts cannot be compared. A retried trial that began after
        a later block counts in the block beside which it ran, or in a block of its own.

        Args:
            designs: the designs of the blocks; () accepts all.
            until: the number of the last block; 0 accepts all.
        """
        return [
            cell
            for key, design, cell in self._scored_in_blocks
            if (not designs or design in designs) and (not until or key.block <= until)
        ]

    @cached_property
    def _scored_in_blocks(self) -> Sequence[tuple[Place, ConfirmDesign | None, ScoredTrial]]:
        """The scored trials of blocks in the order of their places, with place and design."""
        scored_trials = []
        for key, result in sorted(self.confirm.items(), key=operator.itemgetter(0)):
            score = usable(result)
            if key.arm not in self.dropped and score is not None:
                block = (self.real_blocks[key], result.epoch, allocation_of(result))
                scored_trials.append((key, result.trial.design, (block, key.arm, score)))
        return scored_trials

    @cached_property
    def real_blocks(self) -> Mapping[Place, Hashable]:
        """Place -> the block in which the trial really ran, by its start."""
        return _real_blocks(self.confirm, on_slots=self.slots)

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

    @property
    def epochs(self) -> int:
        """The number of epochs of the scores."""
        results = (*self.screen.values(), *self.confirm.values())
        return len({result.epoch for result in results if usable(result)})

    @property
    def reference_loss(self) -> float | None:
        """The median loss of the reference's scored trials; None if no log printed one."""
        return median(self.reference_losses[0]) if self.reference_losses[0] else None

    @cached_property
    def reference_losses(self) -> tuple[list[float], float | None]:
        """The losses of the reference's scored trials, and the median of their first losses.

        The median is None if no first loss is known.
        """
        trials = (*self.screens_of(self.reference), *self.confirms_of(self.reference))
        return losses_of(trials), first_loss(trials)

    @cached_property
    def _screened(self) -> Mapping[str, Sequence[TrialResult]]:
        return _by_arm(self.screen)

    @cached_property
    def _confirmed(self) -> Mapping[str, Sequence[TrialResult]]:
        return _by_arm(self.confirm)

    def screens_of(self, arm: str) -> Sequence[TrialResult]:
        """Return the trials of an arm outside blocks, in the order of their places."""
        return self._screened.get(arm, ())

    def confirms_of(self, arm: str) -> Sequence[TrialResult]:
        """Return the trials of an arm in blocks, in the order of their places."""
        return self._confirmed.get(arm, ())


def read(
    history: History,
    *,
    protocols: Mapping[str, Protocol],
    declared: Mapping[str, Profile],
    study: str = STUDY,
    reference: str = BASELINE.id,
    is_one_window: bool = False,
    slots: bool = False,
) -> Past:
    """Return the trials of a study in a history, each once, scored in its window.

    Args:
        history: all results.
        protocols: digest of a cell -> the protocol of its trials; each cell has its own window.
        declared: arm id -> its profile.
        study: the name of the study.
        reference: the arm that the others are compared with; "" if there is none.
        is_one_window: whether trials of several cells are compared, so that all are scored in one
            window.
        slots: whether the cells are node slots of one cell, which run side by side.
    """
    known = {BASELINE.id: BASELINE, ALIAS.id: ALIAS, **declared}
    outside_blocks: dict[Place, TrialResult] = {}
    confirm: dict[Place, TrialResult] = {}
    undeclared: set[str] = set()
    changed: set[str] = set()
    foreign = 0
    for recorded in history:
        result, trial = recorded, recorded.trial
        if not trial.protocol.is_scored:
            continue  # an evidence run belongs to no other study
        if study == STUDY and trial.rotation is not None:
            continue  # a rotation has been replaced by the results of its programs
        if not is_ours(trial, protocols=protocols, study=study):
            foreign += 1
            continue
        profile = known.get(trial.arm)
        if profile is None:
            undeclared.add(trial.arm)
        elif not profile.same_as(trial.profile):
            changed.add(trial.arm)
            if study != STUDY or not trial.block:
                continue
            # The settings that were measured keep their place among the finalists of these blocks,
            # under another id. The edited profile is treated like one that was added too late.
            trial = replace(trial, arm=f"{trial.arm[:_SLUG_CHARS]}.edited")
            result = replace(result, trial=trial)
        results = confirm if trial.block else outside_blocks
        key = place(trial)
        if key not in results or _precedence(result) > _precedence(results[key]):
            results[key] = result
    screen = {key: result for key, result in outside_blocks.items() if key.arm in known}
    windows = {}
    for cell, protocol in protocols.items():
        scored_cell = None if is_one_window or slots else cell
        windows[cell] = window_of(
            _scores(screen, scored_cell), _scores(confirm, scored_cell), protocol
        )
    # All scores are moved here, so that no report mixes the declared window and the moved one.
    if any(window.is_moved for window in windows.values()):
        screen = {
            key: moved(result, windows[result.trial.cell_digest]) for key, result in screen.items()
        }
        confirm = {
            key: moved(result, windows[result.trial.cell_digest]) for key, result in confirm.items()
        }
    return Past(
        screen=screen,
        confirm=confirm,
        reference=reference,
        windows=windows,
        undeclared=frozenset(undeclared),
        changed=frozenset(changed),
        foreign=foreign,
        slots=slots,
    )


def is_ours(trial: Trial, *, protocols: Mapping[str, Protocol], study: str = STUDY) -> bool:
    """Return whether a trial belongs to this study, one of its cells and that cell's protocol.

    The protocol includes the profiler, so trials with it are never mixed with others.
    """
    protocol = protocols.get(trial.cell_digest)
    if protocol is None or trial.study != study:
        return False
    return trial.protocol == protocol or trial.protocol.identity == protocol.identity


def _by_arm(trials: Mapping[Place, TrialResult]) -> Mapping[str, Sequence[TrialResult]]:
    by_arm: dict[str, list[TrialResult]] = defaultdict(list)
    for key in sorted(trials):
        by_arm[key.arm].append(trials[key])
    return dict(by_arm)


def median_loss(results: Sequence[TrialResult]) -> float | None:
    """Return the median loss of the scored trials; None if no log printed one."""
    losses = losses_of(results)
    return median(losses) if losses else None


def losses_of(results: Iterable[TrialResult]) -> list[float]:
    """Return the losses that the logs of the scored trials printed."""
    return [s.loss for result in results if (s := usable(result)) and s.loss is not None]


def first_loss(results: Sequence[TrialResult]) -> float | None:
    """Return the median first loss of the scored trials; None if none is known."""
    scores = filter(None, map(usable, results))
    losses = [score.first_loss for score in scores if score.first_loss is not None]
    return median(losses) if losses else None


def pace_of(results: Iterable[TrialResult]) -> JobPace | None:
    """Return how long the parts of a job take, from measured jobs of a cell; None if unknown.

    If no rotation timed a compilation, it is assumed to take a fixed share of the start-up.

    Args:
        results: the results of one cell; rotations among them show how long a program compiles.
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


def place(trial: Trial) -> Place:
    """Return the place of a trial in its study."""
    design = trial.design
    layout = (
        (design.look, design.looks, design.arms, design.blocks, design.baselines) if design else ()
    )
    return Place(trial.stage, layout, trial.block, trial.arm, trial.position)


def usable(result: TrialResult) -> Score | None:
    """Return the score of a measured trial; None if there is none or it is not finite."""
    score = result.score
    if result.status is not TrialStatus.MEASURED or score is None:
        return None
    return score if math.isfinite(score.value) else None


def start_of(result: TrialResult) -> float | None:
    """Return when the measured attempt began, in seconds since 1970; None if unknown."""
    return None if result.outcome is None else result.outcome.start_s


def _scores(results: Mapping[Place, TrialResult], cell_digest: str | None) -> list[Score]:
    """Return the scores of one cell; of all cells if `cell_digest` is None."""
    scores = []
    for _, result in sorted(results.items()):
        if result.rotation is not None:
            continue  # the score of a rotation has no window
        score = usable(result)
        if score is not None and cell_digest in (None, result.trial.cell_digest):
            scores.append(score)
    return scores


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
