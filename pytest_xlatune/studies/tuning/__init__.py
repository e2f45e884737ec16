"""Which of these profiles makes the cell faster: screen once, confirm on fresh blocks, conclude.

Every profile is measured once, in random order among spread baselines; that ranks. On many node
slots the best run a second time. The best few enter a block with baselines inside, the best of
these go on to further blocks, each in a random order of its own; only those that stay to the end
get a verdict. Pure and deterministic: every process with the same study and history proposes and
concludes the same. This module must not know of executors, ledgers, clocks or logs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import cast

from pytest_xlatune.model.profile import BASELINE_ID, NO_ENV_ID, Profile
from pytest_xlatune.model.reason import Reason, Why
from pytest_xlatune.model.record import Json, dataclass
from pytest_xlatune.model.result import MIN_TRIALS, Verdict
from pytest_xlatune.model.trial import Arm, Trial
from pytest_xlatune.stats.design import Plan, Refusal
from pytest_xlatune.stats.rotations import JobWork
from pytest_xlatune.studies import NOT_YET, Answer, Ask, History, Question
from pytest_xlatune.studies.staged import StagedStudy
from pytest_xlatune.studies.trials import wave_order
from pytest_xlatune.studies.tuning._conclude import TuningWalk
from pytest_xlatune.studies.tuning._filling import kinds_of
from pytest_xlatune.studies.tuning._plan import TuningPlan, outline
from pytest_xlatune.studies.tuning._rotated import RotatedSweep
from pytest_xlatune.studies.tuning._stages import is_by
from pytest_xlatune.studies.tuning._ways import (
    RotateWay,
    RotationRule,
    begun_ways,
    goes_on,
    outline_of_ways,
    why_none_rotates,
)
from pytest_xlatune.studies.verdicts import best, deployed, named, told

__all__ = ["RotateWay", "RotationRule", "TuningStudy", "way_begun"]


def way_begun(study: TuningStudy, history: History) -> RotateWay | None:
    """Return the way that the trials of a ledger went; None where none of them tells."""
    return begun_ways(study, history).way


@dataclass(frozen=True, kw_only=True)
class TuningStudy(StagedStudy[TuningWalk], TuningPlan):
    """A sweep of profiles over one cell."""

    def begin(self, history: History) -> TuningWalk:
        """Return the walk before the screen, or before the look of a sweep that rotates."""
        if isinstance(self.ways, Refusal):
            return TuningWalk(self, history)
        return cast("TuningWalk", RotatedSweep(self, self.ways, history))  # a walk as well

    @property
    def rotates(self) -> bool:
        """Whether profiles of it take turns in one job."""
        return not isinstance(self.ways, Refusal)

    def turned(self, history: History) -> RotatedSweep:
        """Return the walk of a sweep that rotates."""
        return cast("RotatedSweep", self.walked(history))

    def arms(self, history: History) -> tuple[Arm, ...]:
        """Return the baseline, the declared profiles, and those that waves derived."""
        if self.rotates:
            turned = self.turned(history).arms.values()
            return (deployed(self.cell), *(deployed(self.cell, each) for each in turned))
        profiles = self.walked(history).waves.profiles.values()
        return (deployed(self.cell), *(deployed(self.cell, each) for each in profiles))

    def slots_of(self, history: History) -> Mapping[str, Profile]:
        """Return the profile of each slot of a derived wave that is filled, by the slot's name."""
        if self.rotates:
            return self.turned(history).slots
        return self.walked(history).waves.slots

    def whole(self) -> TuningStudy:
        """Return the study of all profiles, confirmation included."""
        return self._whole

    @cached_property
    def _whole(self) -> TuningStudy:
        names = {each.id for each in self.profiles}
        is_all = self.selected is None or (not self.rules and names <= self.selected)
        if is_all and self.confirm:
            return self
        return replace(self, selected=None, confirm=True)

    def as_begun(self, declared: Mapping[str, Json]) -> TuningStudy:
        """Return the study with the noise, and the way of its profiles, that its session began."""
        own, noise = self.to_json(), {"sigma_prior": declared.get("sigma_prior")}
        noise["rotation"] = declared.get("rotation")
        if own | noise == own:
            return self
        # a declaration is kept without its secrets: all but the noise stays our own
        before = self.from_json(own | noise)
        return replace(self, sigma_prior=before.sigma_prior, rotation=before.rotation)

    def goes_on(self) -> tuple[Reason, ...]:
        """Say that profiles go the way that an earlier session began."""
        return goes_on(self)

    def other_way(self, history: History) -> Reason | None:
        """Return how much is measured of the profiles in the other way, with their alpha spent."""
        begun = begun_ways(self, history)
        if not begun.forbids(RotateWay.ROTATIONS if self.rotates else RotateWay.JOBS):
            return None
        jobs = self.whole().at_most(history)
        if self.rotates:
            return Reason(Why.BEGUN_AS_JOBS, profiles=len(begun.jobs), jobs=jobs)
        return Reason(Why.BEGUN_IN_ROTATIONS, rotations=begun.rotations, jobs=jobs)

    def foreseen(self, history: History) -> TuningStudy:
        """Return what this study becomes where an evidence run that it awaits says nothing."""
        if self.rotates or self.walked(history).waves.evidence is None:
            return self
        rules = (each for each in self.singles if each.candidates)  # what needs no trace
        singles = tuple(replace(each, evidence=False, pgle=False) for each in rules)
        return replace(self, singles=singles)

    def ahead(self, history: History) -> tuple[Trial, ...]:
        """Return the trials that are proposed, and those that can be named and wait for others.

        Those behind an evidence run are foreseen as if it said nothing. Profiles that the sweep
        declares in a wave behind a derived one wait for that.
        """
        if self.rotates:
            return self.turned(history).ahead
        walk = self.foreseen(history).walked(history)
        own = (*self.propose(history), *walk.pending, *walk.waiting)
        return tuple({each.id: each for each in own}.values())

    def outline(self, history: History) -> tuple[Reason, ...]:
        """Return what a plan says of the sweep: trials, slots, and the smallest effect it finds."""
        if not isinstance(self.ways, Refusal):
            return outline_of_ways(self, self.ways, self.turned(history).jobs, history)
        return (*why_none_rotates(self), *self._outline(history))

    def _outline(self, history: History) -> tuple[Reason, ...]:
        return outline(
            self,
            screened=sum(trial.is_screened for trial in self.ahead(history)),
            filled=self.foreseen(history).walked(history).waves.told,
            kinds=kinds_of(self.walked(history).waves.read_evidence),
        )

    def answer(self, history: History, question: Question) -> Answer:
        """Return what a waiting test asks, the same in the run that measures and in every later.

        The verdicts of a wave are those of the screen, taken when the wave is over; those of the
        confirmation are taken when everything is over.
        """
        if self.rotates:
            asked = self.whole() if question.about is Ask.PROVEN else self
            return asked.turned(history).answer(question)
        if question.about is Ask.PROVEN:
            whole = self.whole()
            return best(whole.conclude(history), whole.arms(history))
        if self._lacks(history, question):
            return NOT_YET
        match question.about:
            case Ask.REFERENCE:
                wave = self._reference_wave(history)
                found = told(self._screened(history, wave, BASELINE_ID))
            case Ask.SCREENED:
                found = told(self._screened(history, question.wave, question.name))
            case Ask.SLOT:
                filled = self.slots_of(history).get(question.name)
                found = named(filled.id if filled else "", self.arms(history))
            case Ask.RANKED:
                arms = self.arms(history)
                entered = self.conclude(history).tuning.finalists
                # by the sweep file: a rank may change with the next trial, and a test's name stays
                pair = {NO_ENV_ID} if self.pair == "on" else set()
                own = [each.id for each in arms if each.id in {*entered} - pair][question.number :]
                found = named(own[0] if own else "", arms)
            case Ask.BEST:
                found = best(self.conclude(history), self.arms(history))
            case _:
                found = told(self.conclude(history).verdict(question.name))
        return found

    def _lacks(self, history: History, question: Question) -> bool:
        """Whether trials are still to come that the answer rests on."""
        pending = self.propose(history)
        if question.about is Ask.REFERENCE:
            wave = self._reference_wave(history)
            return not wave or any(is_by(wave, trial) for trial in pending)
        if question.about in (Ask.SCREENED, Ask.SLOT):
            return any(is_by(question.wave, trial) for trial in pending)
        return bool(pending)

    def _reference_wave(self, history: History) -> str:
        """Return the wave of this run up to which two baselines are planned, or its last one.

        A small wave has one of its own. "" while an evidence run, or results, have to open it.
        """
        waves = self.walked(history).waves
        found = [queue.wave for queue in waves.selected]
        if not found:
            return "" if waves.opens else waves.queues[0].wave
        planned = accumulate(self.baselines.get(wave, 1) for wave in found)
        enough = next((w for w, n in zip(found, planned, strict=True) if n >= MIN_TRIALS), "")
        return enough or ("" if waves.opens else found[-1])

    def _screened(self, history: History, wave: str, arm: str) -> Verdict | None:
        """Return the verdict from what was measured once, up to the end of a wave or of all."""
        until = self.conclude(self.walked(history).until(wave)).verdict(arm)
        # the line of the screen goes through all waves: a later one moves what a report says, and
        # so do second runs
        is_last = not wave or wave_order(wave) >= max(map(wave_order, self.counts))
        is_last = is_last and not (isinstance(self.layout, Plan) and self.layout.again)
        if until is None or is_last or not until.n:
            return until
        return replace(until, up_to=wave)

    def at_most(self, history: History) -> int:
        """Return how many trials may still come: what the budget has left, where blocks are added.

        No block is added any more once every one is over and none was proposed.
        """
        if self.rotates:
            turned = self.turned(history)
            jobs = turned.jobs
            own = turned.left - (jobs.left(turned.beside) if jobs is not None else 0)
            return own + (jobs.at_most(turned.beside) if jobs is not None else 0)
        walk = self.walked(history)
        is_fixed = not (self.confirm and self.may_spare) or isinstance(self.layout, Refusal)
        if is_fixed or not walk.left:
            return walk.left
        blocks = walk.confirmation if walk.is_ranked else None
        if blocks is not None and not blocks.may_grow:
            return walk.left
        spent = sum(
            each.status.is_final and each.not_run is None
            for each in (*walk.past.screen.values(), *walk.past.confirm.values())
        )
        return max(walk.left, self.budget - spent + (walk.waves.evidence is not None))

    def why_more(self, history: History) -> Reason | None:
        """Return which spare block is planned, and for which profiles."""
        if self.rotates:
            turned = self.turned(history)
            return None if turned.jobs is None else turned.jobs.why_more(turned.beside)
        walk = self.walked(history)
        blocks = walk.confirmation if self.confirm and walk.is_ranked else None
        return blocks.added if blocks is not None else None

    def work(self, history: History) -> JobWork | None:
        """Return what the trials to come have to do, where rotations are among them."""
        return self.turned(history).load if self.rotates else None

    def rounds(self, history: History) -> int:
        """Return how many of the trials that are left follow one another; others run beside."""
        if self.rotates:
            return self.turned(history).left
        return self.walked(history).rounds
