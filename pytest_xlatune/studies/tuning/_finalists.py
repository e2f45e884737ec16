"""Which profiles of a screen go on: those that run a second time, and the finalists.

On many node slots, and where the budget is large, the best of the screen run once more, and the
mean of both runs ranks them. On slots each runs on another than before. Profiles that have trials
stay, whatever is read since. Decides no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from pytest_xlatune.model.profile import BASELINE_ID, NO_ENV_ID, Profile
from pytest_xlatune.model.reason import Reason, Why
from pytest_xlatune.model.result import TrialStatus
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.design import Plan, Refusal
from pytest_xlatune.studies.trials import ALIAS, Orders, Past
from pytest_xlatune.studies.tuning._stages import (
    Confirmation,
    Ranking,
    design,
    frozen_arms,
    is_spare,
)
from pytest_xlatune.studies.tuning._waves import SweepMoment
from pytest_xlatune.studies.tuning.derived import entering
from pytest_xlatune.studies.verdicts import Losses


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalistChoice:
    """What goes on at one moment.

    Attributes:
        known: what one history comes to.
        layout: of the blocks.
        orders: of the trials.
        losses: with what a trial's loss is compared.
        sigma: job noise, to plan with.
        at_most: on how many node slots the screen lies.
        pair: `baseline-no-env`; None where the sweep has none.
    """

    known: SweepMoment
    layout: Plan | Refusal
    orders: Orders
    losses: Losses
    sigma: float
    at_most: int
    pair: Profile | None = None

    def second_runs(self) -> tuple[Trial, ...]:
        """Return the second runs that the best of the screen lack; none once there are blocks.

        Those that exist stay, and are filled up by what the first runs say.
        """
        known, slots, layout = self.known, self.known.slots, self.layout
        if isinstance(layout, Refusal) or (slots is not None and not slots.alive):
            return ()
        if known.pending or known.moment.opens or known.past.confirm:
            return ()
        best = self._ranked(known.first, most=layout.again)
        if not known.second and len(best) <= layout.finalists:
            return ()
        more = [each for each in best if each not in known.second]
        arms = [*known.second, *more[: max(layout.again - len(known.second), 0)]]
        trials = self.orders.again([known.moment.profiles[each] for each in arms])
        if slots is not None:
            trials = slots.dealt_again(trials, at_most=self.at_most)
        return tuple(
            each
            for each in trials
            if each.arm in known.moment.candidates and not known.past.is_final(each)
        )

    def _has_pair(self) -> bool:
        """Whether `baseline-no-env` stands in every block, as they began or as they are planned."""
        layout = self.layout
        if self.pair is None or isinstance(layout, Refusal):
            return False
        return design(self.known.past, layout, arms=0).pair

    def pair_in_blocks(self) -> Profile | None:
        """Return `baseline-no-env` where it is in every block and can run; else None."""
        past, pair = self.known.past, self.pair
        if pair is None or not self._has_pair():
            return None
        trials = past.screens_of(pair.id)
        is_dropped = any(each.status is TrialStatus.DROPPED for each in trials)
        is_repeat = self.known.moment.repeats.get(pair.id) == BASELINE_ID
        is_out = is_dropped or is_repeat or pair.id in past.dropped
        return None if is_out or self.losses.reason(past, pair.id) else pair

    def undecided_pair(self) -> tuple[Reason, ...]:
        """Return what it would cost to decide the pair of wave 1, where the blocks do not."""
        layout, past = self.layout, self.known.past
        standing = None
        if self.pair is not None:
            standing = self.known.ranking.standings.get(self.pair.id)
        if standing is None or isinstance(layout, Refusal) or self._has_pair():
            return ()
        ids = {each.id for each in self.finalists()}
        decided = any(not is_spare(each.trial) for each in past.confirms_of(NO_ENV_ID))
        if NO_ENV_ID in ids or decided:
            return ()
        kind = Why.PAIR_NEEDS_SWEEP if past.confirm else Why.PAIR_UNDECIDED
        return (Reason(kind, arm=NO_ENV_ID, jobs=layout.blocks),)

    def _frozen(self) -> tuple[str, ...]:
        """Return the arms with confirming trials, the pair left out: it has a place of its own."""
        beside = {self.pair.id} if self.pair is not None and self._has_pair() else set()
        return tuple(each for each in frozen_arms(self.known.past) if each not in beside)

    def finalists(self) -> tuple[Profile, ...]:
        """Return the finalists in rank order, then the alias if it runs; none before second runs.

        Arms that have confirming trials stay; a stage that was cut off while it was being planned
        is filled up to its own size by the same rule that began it.
        """
        layout = self.layout
        if isinstance(layout, Refusal) or self.second_runs():
            return ()
        known, past = self.known, self.known.past
        size = design(past, layout, arms=0).arms  # 0 where no stage began
        most = max(layout.finalists, size)
        interesting = self._ranked(known.ranking, most=most, among=known.second)
        if interesting and len(interesting) < layout.finalists:
            interesting.append(ALIAS.id)
        frozen = self._frozen()
        if frozen:
            interesting = [each for each in interesting if each not in frozen]
            interesting = [*frozen, *interesting[: max(size - len(frozen), 0)]]
        ranks = known.ranks
        declared = {**known.moment.profiles, ALIAS.id: ALIAS}
        return tuple(
            declared[each]
            for each in sorted(interesting, key=lambda each: ranks.get(each, (math.inf, 0)))
            if each in declared
        )

    def late(self) -> tuple[str, ...]:
        """Return what would be a finalist by now, had the finalists not been fixed before."""
        known, layout = self.known, self.layout
        frozen = self._frozen()
        if not frozen or isinstance(layout, Refusal):
            return ()
        size = design(known.past, layout, arms=0).arms
        if len(frozen) < size:
            return ()  # still being planned, and filled up
        if known.second:  # it would have run a second time
            most = max(layout.again, len(known.second))
            ranking = self._ranked(known.first, most=most, always=known.second)
            return tuple(each for each in ranking if each not in known.second)
        ranking = self._ranked(known.ranking, most=size)
        return tuple(each for each in ranking if each not in frozen)

    def _ranked(
        self,
        ranking: Ranking,
        *,
        most: int,
        among: Collection[str] = (),
        always: Collection[str] = (),
    ) -> list[str]:
        """Return the first profiles of a ranking that are of interest, `always` or not.

        `among` some of them, or all.
        """
        known = replace(self.known, ranking=ranking)
        own = (each for each in known.ranks if not among or each in among)
        found = (each for each in own if each in always or self._is_of_interest(each, ranking))
        ranked = sorted(found, key=lambda each: known.ranks[each])
        return entering(ranked, most, profiles=known.moment.profiles)

    def _is_of_interest(self, profile_id: str, ranking: Ranking) -> bool:
        """Whether the screen leaves it possible that a profile helps."""
        moment, past = self.known.moment, self.known.past
        if profile_id not in moment.candidates or moment.repeats.get(profile_id) == BASELINE_ID:
            return False
        trials = past.screens_of(profile_id)
        if any(each.status is TrialStatus.DROPPED for each in trials):
            return False
        if self.losses.reason(past, profile_id):
            return False
        if self.pair is not None and profile_id == self.pair.id and self._has_pair():
            return False  # it is in the blocks in any case
        standing = ranking.standings[profile_id]
        reach = 2 * self.sigma * math.sqrt(standing.variance)
        return math.isfinite(standing.estimate) and standing.estimate + reach > 0


def pending_blocks(
    past: Past, confirmation: Confirmation | None, *, candidates: frozenset[str]
) -> tuple[Trial, ...]:
    """Return the trials of blocks that are not over, where a candidate of this run is in them."""
    if confirmation is None:
        return ()
    arms = {trial.arm for trial in confirmation.trials}
    if not arms & candidates:
        return ()
    return tuple(trial for trial in confirmation.trials if not past.is_final(trial))


_MOST_BLOCKS = 64  # of any layout


def beside_pair(
    layout_of: Callable[[int], Plan | Refusal], budget: int, *, has_pair: bool
) -> Plan | Refusal:
    """Return the layout in so many jobs, with one trial more in each block for the pair.

    Args:
        layout_of: returns the layout without it.
        budget: jobs of both.
        has_pair: whether there is one to decide.
    """
    if not has_pair:
        return layout_of(budget)
    for blocks in range(1, min(budget, _MOST_BLOCKS)):
        found = layout_of(budget - blocks)
        if isinstance(found, Refusal) or found.blocks <= blocks:
            break
    if isinstance(found, Refusal):
        return found
    return replace(found, pair=True, jobs=found.jobs + found.blocks)
