"""The stages of a tuning sweep: the screen that ranks, the blocks that narrow, the look at them.

The screen measures every profile once; it ranks and bounds, and nothing of it is a verdict. Blocks
are looked at when all are complete and never before; between them arms are cut, by what was
measured until then. The layout stands in the design of every confirming trial, so that neither a
restart nor a larger budget can refill the alpha that was spent on it. Writes no verdict.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from pytest_xlatune.model.profile import BASELINE_ID, Profile
from pytest_xlatune.model.reason import Reason, Why
from pytest_xlatune.model.result import (
    Comparison,
    TrialResult,
    VerdictKind,
    relative,
)
from pytest_xlatune.model.trial import ConfirmDesign, Trial
from pytest_xlatune.stats.blocks import (
    BlockFit,
    Line,
    SlotScore,
    combine,
    fit_lines,
    fit_slots,
    is_apart,
    main_group,
)
from pytest_xlatune.stats.compare import NoComparison, decide, winners
from pytest_xlatune.stats.design import (
    MIN_DF,
    SWEEP_ALPHA,
    Plan,
)
from pytest_xlatune.studies.trials import (
    AGAIN,
    ALIAS,
    Orders,
    Past,
    Place,
    Segment,
    fitted,
    place,
    start_of,
    unlike_warmups,
    usable,
)
from pytest_xlatune.studies.tuning._recipe import bounds
from pytest_xlatune.studies.tuning._slots import ANOTHER_SESSION, second_shift, twice
from pytest_xlatune.studies.tuning.derived import entering
from pytest_xlatune.studies.verdicts import Losses, compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Screened:
    """A screened profile: log ratio to the line, its variance in units of sigma^2."""

    estimate: float
    variance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """What the screen says.

    Attributes:
        standings: by profile id.
        squares: sum of squared residuals of all baseline lines.
        df: their degrees of freedom.
        baselines: how many baselines were scored.
    """

    standings: Mapping[str, Screened]
    squares: float
    df: int
    baselines: int

    @property
    def sigma(self) -> float | None:
        """Standard deviation of one job's score, from the baselines alone."""
        return math.sqrt(self.squares / self.df) if self.df > 0 and self.squares > 0 else None

    @property
    def spread(self) -> float | None:
        """The same from the profiles that do next to nothing; None where there are few profiles."""
        scaled = [each.estimate / math.sqrt(each.variance) for each in self.standings.values()]
        if len(scaled) < _ENOUGH:
            return None
        return main_group([scaled])[1] or None

    @property
    def level(self) -> float:
        """Where profiles that do nothing lie: the baselines, or the middle of those where lower.

        Few baselines err together, and the profiles that neither help nor harm do not.
        """
        found = [each.estimate for each in self.standings.values()]
        return min(0.0, *main_group([found])[0]) if len(found) >= _ENOUGH else 0.0


_ENOUGH = 10  # profiles whose spread tells the noise


def screen(past: Past, segments: Iterable[Segment], *, has_second: bool = False) -> Ranking:
    """Fit one line through all baselines of an epoch and read every scored profile against it.

    The line goes through all waves, with the slope that baselines and profiles show together. A
    wave that joined in another session has a level of its own where a test puts its baselines
    apart. Several node slots have a level each, and one line of time.

    With `has_second` what ran a second time stands at the mean of its runs. The lines are those of
    the first runs, for the second are of the best only.
    """
    if past.slots:
        return _screen_on_slots(past, segments, has_second=has_second)
    runs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    lines: list[Line] = []
    # a line for each wave rests on two baselines: four waves found 71.6 % of winners, not 79.7
    for epoch in _by_epoch(past, list(segments)):
        for line, group in _lined(epoch):
            lines.append(line)
            for each, at, value in group:
                if not each.trial.is_baseline:
                    runs[each.trial.profile.id].append((value - line.at(at), line.leverage(at)))
    combined = {profile_id: combine(found) for profile_id, found in runs.items()}
    if has_second:
        combined |= twice(past, combined)
    return Ranking(
        standings={
            profile_id: Screened(estimate=estimate, variance=variance)
            for profile_id, (estimate, variance) in combined.items()
        },
        squares=math.fsum(line.squares for line in lines),
        df=sum(line.df for line in lines),
        baselines=sum(line.n for line in lines),
    )


def _screen_on_slots(past: Past, segments: Iterable[Segment], *, has_second: bool) -> Ranking:
    """Fit the lines of all slots together; where nodes were brought back, a slot is two.

    One baseline on each slot tells no noise by itself: that is left to the blocks.
    """
    segments = tuple(segments)
    stages = {segment.wave for segment in segments} | ({AGAIN} if has_second else set())
    scored = [
        (each, score.value)
        for key, each in past.screen.items()
        if key.stage in stages and (score := usable(each)) is not None
    ]
    places = {place(trial): at for at, trial in enumerate(_queue(segments))}
    queues: dict[tuple[str, int], list[tuple[TrialResult, float]]] = defaultdict(list)
    for each, value in scored:
        queues[each.trial.cell_digest, each.epoch].append((each, value))
    jobs: list[tuple[TrialResult, SlotScore]] = []
    for slot, own in queues.items():
        starts = {id(each): start_of(each) for each, _ in own}
        is_told = None not in starts.values()
        own.sort(key=lambda job: (
            (starts[id(job[0])] or 0.0) if is_told else 0.0,
            places.get(place(job[0].trial), len(places)),
        ))  # fmt: skip
        jobs += [
            (each, SlotScore(slot=slot, at=at, value=value, is_baseline=each.trial.is_baseline))
            for at, (each, value) in enumerate(own)
        ]
    lines = fit_slots([job for each, job in jobs if each.trial.stage != AGAIN])
    baselines = sum(job.is_baseline for _, job in jobs)
    placed = [
        (each, job.value - lines.at(job.slot, job.at), lines.leverage(job.slot, job.at))
        for each, job in jobs
        if lines is not None and not job.is_baseline and job.slot in lines.levels
    ]
    shift = second_shift([(each, value) for each, value, _ in placed])
    runs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for each, value, variance in placed:
        found = value - (shift if each.trial.stage == AGAIN else 0.0)
        runs[each.trial.profile.id].append((found, variance))
    combined = {name: combine(found) for name, found in runs.items()}
    standings = {
        name: Screened(estimate=estimate, variance=variance)
        for name, (estimate, variance) in combined.items()
    }
    return Ranking(standings=standings, squares=0.0, df=0, baselines=baselines)


def _queue(segments: Iterable[Segment]) -> Iterator[Trial]:
    return (trial for segment in segments for trial in segment.trials)


_Slotted = tuple[TrialResult, float, float]  # trial, slot, score


def _by_epoch(past: Past, segments: Sequence[Segment]) -> Sequence[Sequence[_Slotted]]:
    """Return the scored trials of all waves, apart where scores stopped being comparable."""
    planned = {place(trial): at for at, trial in enumerate(_queue(segments))}
    waves = {segment.wave for segment in segments}
    scored = [
        (result, score.value)
        for key, result in past.screen.items()
        if (key in planned or (key.stage in waves and result.trial.is_baseline))
        and (score := usable(result)) is not None
    ]
    slots = _slots([result for result, _ in scored], planned)
    epochs: dict[int, list[_Slotted]] = defaultdict(list)
    for result, value in scored:
        slot = slots.get(place(result.trial))
        if slot is not None:
            epochs[result.epoch].append((result, slot, value))
    return [epochs[epoch] for epoch in sorted(epochs)]


def _lined(epoch: Sequence[_Slotted]) -> Iterator[tuple[Line, Sequence[_Slotted]]]:
    """Yield the parts of an epoch that lie on one line, with that line."""
    parts: list[list[_Slotted]] = []
    for session in _sessions(epoch):
        if parts and not is_apart(_baselines(parts[-1]), _baselines(session)):
            parts[-1] += session
        else:
            parts.append(session)
    with_line = [part for part in parts if _baselines(part)]
    # a wave of other settings has a level of its own, so that it does not tilt the line
    beside: dict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    for number, part in enumerate(with_line):
        for each, at, value in part:
            if not each.trial.is_baseline:
                beside[number, each.trial.stage].append((at, value))
    lines = fit_lines([_baselines(each) for each in with_line], beside=list(beside.values()))
    yield from zip(lines, with_line, strict=True)


def _baselines(trials: Sequence[_Slotted]) -> list[tuple[float, float]]:
    return [(at, value) for each, at, value in trials if each.trial.is_baseline]


def _sessions(epoch: Sequence[_Slotted]) -> list[list[_Slotted]]:
    """Return the trials of an epoch in order, apart where a wave began long after the one before.

    Only a part with a baseline stands apart: without one it has no level.
    """
    ordered = sorted(epoch, key=lambda each: (each[1], place(each[0].trial)))
    starts = [start_of(each) for each, _, _ in ordered]
    known = [each for each in starts if each is not None]
    if len(known) < len(starts) or len(known) < ANOTHER_SESSION:
        return [ordered]
    between = [after - before for before, after in pairwise(known)]
    long = ANOTHER_SESSION * median(between)
    sessions = [ordered[:1]]
    for gap, before, each in zip(between, ordered, ordered[1:], strict=False):
        if gap > long and each[0].trial.stage != before[0].trial.stage:
            sessions.append([])
        sessions[-1].append(each)
    return sessions


def _slots(results: Sequence[TrialResult], planned: Mapping[Place, int]) -> Mapping[Place, float]:
    """Return each trial's slot: its rank by the time it started, or its planned place."""
    starts = {place(each.trial): start for each in results if (start := start_of(each)) is not None}
    if len(starts) < len(results):
        return {key: float(at) for key, at in planned.items()}
    return {key: float(at) for at, key in enumerate(sorted(starts, key=lambda k: (starts[k], k)))}


_SPARE = 3  # no look: blocks in it decide nothing and spend no alpha
BOUND = 0.02  # a sweep in which nothing can gain more is bounded
FAR = 3.0  # standard deviations below the baselines, which noise hardly explains


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at complete blocks.

    Attributes:
        family: how many arms entered.
        fit: the blocks' least squares; None where no block holds a baseline and something else.
        comparisons: by arm, the alias included, dropped arms left out.
        kinds: the verdict of each.
        unlike: the arms whose steps become steady at another time, see `unlike_warmups`.
    """

    family: int
    fit: BlockFit | None
    comparisons: Mapping[str, Comparison | NoComparison]
    kinds: Mapping[str, VerdictKind]
    unlike: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """Where the confirmation stands.

    Attributes:
        trials: planned so far, in order.
        blocks: how many decide.
        kept: the arms that were not cut, the alias included, best first; all before a cut.
        look: at the deciding blocks; None while some are missing.
        left: trials of the deciding blocks that no cut has planned yet.
        alpha_spent: by trials that exist.
        has_pair: whether `baseline-no-env` stands in every block.
        may_grow: whether spare blocks may follow those that are planned.
        added: the last spare block and why it was added; None without one.
    """

    trials: tuple[Trial, ...]
    blocks: int
    kept: tuple[str, ...]
    look: Look | None
    left: int
    alpha_spent: float
    has_pair: bool = False
    may_grow: bool = True
    added: Reason | None = None


def begun(past: Past) -> ConfirmDesign | None:
    """Return the design of the deciding blocks that have trials; None before the first."""
    found = {each.trial.design for each in past.confirm.values() if each.trial.design is not None}
    return max((each for each in found if each.look != _SPARE), default=None)


def is_spare(trial: Trial) -> bool:
    """Whether a trial stands in a spare block, which bounds and ranks, and decides nothing."""
    return trial.design is not None and trial.design.look == _SPARE


def frozen_arms(past: Past, *, after: int = 0) -> tuple[str, ...]:
    """Return the arms that have trials in blocks after number `after`, the alias included."""
    found = {
        key.arm
        for key, each in past.confirm.items()
        if key.block > after and not is_spare(each.trial)
    }
    return tuple(sorted(found - {BASELINE_ID}))


def design(past: Past, plan: Plan, *, arms: int) -> ConfirmDesign:
    """Return the design of the deciding blocks: as begun, else as planned for so many arms."""
    widths = tuple(min(each, arms) for each in plan.widths)
    is_narrowing = len(set(widths)) > 1
    return begun(past) or ConfirmDesign(
        arms=arms,
        blocks=plan.blocks,
        baselines=plan.block_baselines,
        widths=widths if is_narrowing else (),
        pair=plan.pair,
    )


def confirm(
    past: Past,
    *,
    ranking: Ranking,
    first: ConfirmDesign,
    arms: Sequence[Profile],
    orders: Orders,
    losses: Losses,
    others: Mapping[str, Profile],
    jobs: int,
    pair: Profile | None = None,
    lay: Callable[[Sequence[Trial]], tuple[Trial, ...]] = tuple,
) -> Confirmation:
    """Plan the blocks of `arms`, cut after each run of equal width, look when all are complete.

    A cut is a function of the screen and of the blocks before it alone. Arms with trials in later
    blocks have passed it, whatever is read since.

    Jobs that are left then go to spare blocks. Where nothing is faster they hold the profiles that
    keep the sweep from being bounded, and in any case the one that is worst by far.

    Args:
        past: what was measured.
        ranking: what the screen says.
        first: design of the deciding blocks.
        arms: the finalists in rank order.
        orders: of the trials.
        losses: with what the loss of a trial is compared.
        others: the profiles that spare blocks may hold, by id.
        jobs: of all blocks at most.
        pair: `baseline-no-env` where it stands in every block, beside the finalists and uncut.
        lay: puts blocks on their node slots.
    """
    spent = 0.0 if begun(past) is None else SWEEP_ALPHA
    widths = first.widths or (first.arms,) * first.blocks
    named = {arm.id: arm for arm in arms}
    trials: tuple[Trial, ...] = ()
    kept = tuple(named)
    decided = () if pair is None else (pair.id,)

    def block(number: int, design: ConfirmDesign) -> tuple[Trial, ...]:
        own = [named[each] for each in kept if each not in past.dropped]
        beside = [] if pair is None else [pair]
        return lay(orders.blocks([*own, *beside], [number], design=design))

    def are_over(some: Sequence[Trial]) -> bool:
        return all(past.is_final(trial) for trial in some)

    for number, width in enumerate(widths, start=1):
        if number > 1 and width < widths[number - 2]:
            if not are_over(trials):
                at = number - 1
                left = sum(widths[at:]) + len(widths[at:]) * (first.baselines + len(decided))
                return Confirmation(
                    trials=trials,
                    blocks=len(widths),
                    kept=(*kept, *decided),
                    has_pair=bool(decided),
                    look=None,
                    left=left,
                    alpha_spent=spent,
                )
            ranked = cut(past, ranking, kept, design=first, after=number - 1, losses=losses)
            frozen = [each for each in ranked if each in frozen_arms(past, after=number - 1)]
            able = [each for each in ranked if each != ALIAS.id]
            chosen = entering(able, width, profiles=named, frozen=frozen)
            if len(chosen) < width and ALIAS.id in ranked and ALIAS.id not in chosen:
                chosen.append(ALIAS.id)
            # a dropped arm can never win: with the critical value of all that entered, the cut
            # needs no alpha of its own
            kept = tuple(each for each in ranked if each in chosen)
        trials += block(number, first)
    look, is_won, added = None, False, None
    if are_over(trials):
        look = look_at(past, first, (*kept, *decided))
        is_won = VerdictKind.FASTER in _of_candidates(look)
        number = last = max(each.block for each in trials)
        spare = ConfirmDesign(look=_SPARE, arms=0, blocks=0, baselines=first.baselines)
        while are_over(trials):
            number += 1
            ran = {key for key, each in past.confirm.items() if each.status.is_final}
            free = jobs - len(ran | {place(each) for each in trials}) - first.baselines
            chosen = _spared(
                past,
                ranking,
                others,
                kept=kept,
                before=number,
                free=free,
                is_won=is_won,
                has_worst=number == last + 1,
            )
            if not chosen:
                break
            more = orders.blocks([others[each] for each in chosen], [number], design=spare)
            trials += lay(more)
            added = _why_spare(number, chosen, is_won=is_won)
    return Confirmation(
        trials=trials,
        blocks=len(widths),
        kept=(*kept, *decided),
        has_pair=bool(decided),
        look=look,
        left=0,
        alpha_spent=spent,
        may_grow=jobs > 0 and not is_won,
        added=added,
    )


def _why_spare(number: int, arms: Sequence[str], *, is_won: bool) -> Reason:
    """Return which spare block was added, and why."""
    kind = Why.BLOCK_FOR_WORST if is_won else Why.BLOCK_FOR_BOUND
    return Reason(kind, block=number, arms=sorted(arms))


def _spared(
    past: Past,
    ranking: Ranking,
    others: Mapping[str, Profile],
    *,
    kept: Collection[str],
    before: int,
    free: int,
    is_won: bool,
    has_worst: bool,
) -> list[str]:
    """Return which profiles a spare block holds; none where there is no use or no job left.

    Those that are in it already stay, whatever is read since.

    Args:
        past: what was measured.
        ranking: what the screen says.
        others: the profiles that it may hold, by id.
        kept: the arms that stayed to the last deciding block.
        before: number of the block.
        free: for how many profiles.
        is_won: whether a profile is faster, so that nothing is left to rule out.
        has_worst: whether the worst single run has a place.
    """
    held = {key.arm for key in past.confirm if key.block == before} & others.keys()
    fit = fitted(past.scored_in_blocks(until=before - 1))
    found = bounds(ranking, fit, others, kept=kept)
    # at 0.6 % noise 29 % of sweeps without an effect could say so in 50 jobs; with blocks for what
    # may still gain 2 %, 73 % do in 65
    high = [] if is_won else sorted(found, key=lambda arm: (-found[arm], arm))
    # M was told of the others alone, while a profile without a score could gain +4 %
    # one that lost its run in the screen has another here, and no third
    tried = {key.arm for key in past.confirm if key.block < before}
    wanted = [
        arm
        for arm in high
        if relative(min(found[arm], 1.0)) >= BOUND
        and (math.isfinite(found[arm]) or arm not in tried)
    ]
    # one that was in blocks before is known well enough
    single = [arm for arm in others if fit is None or arm not in fit.arms]
    low = [
        (standing.estimate, arm)
        for arm in single
        if (standing := ranking.standings.get(arm)) is not None
        and fit is not None
        and fit.df >= MIN_DF
        and standing.estimate < -FAR * fit.sigma * math.sqrt(standing.variance)
    ]
    wanted += [arm for _, arm in sorted(low)[:1] if has_worst]
    left = free - len(held)
    return [*sorted(held), *[arm for arm in wanted if arm not in held][: max(left, 0)]]


def cut(
    past: Past,
    ranking: Ranking,
    arms: Sequence[str],
    *,
    design: ConfirmDesign,
    after: int,
    losses: Losses,
) -> tuple[str, ...]:
    """Return the arms that may go on after a block, best first; the alias goes last.

    By screen and blocks together. A measurement that an arm lacks counts as one at the baseline's
    level: a lost run is no reason to stay, and none to leave.
    """
    fit = fitted(past.scored_in_blocks(designs=(design,), until=after))
    in_blocks = (1 + 1 / design.baselines) / after

    def promise(arm: str) -> float:
        screened = ranking.standings.get(arm) or Screened(estimate=0.0, variance=1.0)
        found = fit.arms.get(arm) if fit is not None else None
        here = (found.estimate, found.variance) if found is not None else (0.0, in_blocks)
        return combine([(screened.estimate, screened.variance), here])[0]

    sound = [each for each in arms if each not in past.dropped and not losses.reason(past, each)]
    return tuple(sorted(sound, key=lambda arm: (arm == ALIAS.id, -promise(arm), arms.index(arm))))


def _of_candidates(look: Look) -> list[VerdictKind]:
    return [kind for arm, kind in look.kinds.items() if arm != ALIAS.id]


def look_at(past: Past, design: ConfirmDesign, kept: Sequence[str]) -> Look:
    cells = past.scored_in_blocks(designs=(design,))
    inside = {key.arm for key, each in past.confirm.items() if each.trial.design == design}
    entered = inside - {BASELINE_ID, ALIAS.id} - past.dropped.keys()
    family = max(len(entered), 1)
    fit = fitted(cells)
    # a dropped arm can never win, so that those that stay need no alpha for the cut
    comparisons = {
        arm: compared(fit, arm, family=family, alpha=SWEEP_ALPHA)
        for arm in sorted(kept)
        if arm in inside and arm not in past.dropped
    }
    found = {
        arm: each
        for arm, each in comparisons.items()
        if isinstance(each, Comparison) and arm != ALIAS.id
    }
    faster = () if fit is None else winners(fit, found, family=family, alpha=SWEEP_ALPHA)
    kinds = {
        arm: decide(each) if isinstance(each, Comparison) else VerdictKind.INCONCLUSIVE
        for arm, each in comparisons.items()
    }
    return Look(
        family=family,
        fit=fit,
        comparisons=comparisons,
        kinds={**kinds, **dict.fromkeys(faster, VerdictKind.FASTER)},
        unlike=unlike_warmups(
            [each for each in cells if each[1] in {BASELINE_ID, *kept}],
            family=family,
            window=past.window,
        ),
    )
