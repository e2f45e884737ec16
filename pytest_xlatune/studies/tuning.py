"""Find the profiles that make a cell faster: screen once, confirm on fresh blocks, conclude.

Every profile is measured once, in random order among baselines; this ranks. On many node slots the
best run a second time. The best few enter a block with baselines, the best of these enter further
blocks, each in its own random order, and only those that stay to the end get a verdict. The study
is pure and deterministic: every process with the same study and history proposes and concludes the
same. This module must not know of executors, ledgers, clocks or logs.
"""

from __future__ import annotations

from functools import cached_property

from msgspec.structs import replace

from pytest_xlatune.model.message import Message
from pytest_xlatune.model.profile import BASELINE_ID
from pytest_xlatune.model.result import Conclusion, Verdict
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.studies import (
    NOT_YET,
    Answer,
    Ask,
    Decision,
    History,
    Outlook,
    Question,
    all_selected,
    remembered,
)
from pytest_xlatune.studies.conclude import conclusion
from pytest_xlatune.studies.engine import SweepDecision, decide
from pytest_xlatune.studies.outlook import outlook_of
from pytest_xlatune.studies.slots import Slots
from pytest_xlatune.studies.trials import AGAIN, wave_order
from pytest_xlatune.studies.tuning_plan import RotationRule, TuningPlan
from pytest_xlatune.studies.turning import Rotations, rotations, with_rotations
from pytest_xlatune.studies.verdicts import arm_answer, as_answer, deployed, winner_answer

__all__ = ["RotationRule", "TuningStudy"]


_EVIDENCE_WAVE = "wave1_5"  # the wave to which the evidence run belongs


def belongs_to_wave(wave: str, trial: Trial) -> bool:
    """Return whether a trial outside blocks belongs to a wave, or to one before it.

    Second runs belong to no wave; "" means the last wave.
    """
    if trial.rotation is not None:
        return True  # a rotation may hold programs of any wave
    stage = trial.stage if trial.protocol.is_scored else _EVIDENCE_WAVE
    is_of_wave = not trial.block and stage != AGAIN
    return is_of_wave and (not wave or wave_order(stage) <= wave_order(wave))


class TuningStudy(TuningPlan, frozen=True, kw_only=True, dict=True):
    """A sweep of profiles over one cell."""

    @remembered
    def rotations_so_far(self, history: History) -> Rotations:
        """Return the rotations so far, with their programs as trials."""
        return rotations(self, history)

    @remembered
    def state(self, history: History) -> SweepDecision:
        """Return the state of the sweep, with rotations replaced by trials of their programs."""
        if self.slots:
            slots = Slots(names=tuple(self.nodes), seed=self.seed, history=tuple(history))
            return decide(self, slots.counted_results, slots)
        so_far, plan = self.rotations_so_far(history), self
        if self.rotates and so_far.why_not is not None:
            plan = self.after_failed_rotations(len(so_far.looks) + len(so_far.numbered))
        return decide(plan, so_far.results)

    @remembered
    def decide(self, history: History) -> Decision:
        """Return the trials to run next, and what follows from the results so far."""
        sweep, so_far = self.state(history), self.rotations_so_far(history)
        profiles = sweep.ranked.arms.profiles.values()
        return Decision(
            due=with_rotations(sweep.ranked.plan, so_far, sweep.due),
            arms=(deployed(self.cell), *(deployed(self.cell, profile) for profile in profiles)),
            concluded=lambda: self._concluded(sweep, so_far),
        )

    def _concluded(self, sweep: SweepDecision, so_far: Rotations) -> Conclusion:
        """Return the conclusion of the sweep, with notes on its rotations first."""
        concluded = conclusion(sweep)
        if so_far.is_lost and not sweep.entered:
            concluded = replace(concluded, complete=False)
        notes: tuple[Message, ...] = ()
        if self.rotates and so_far.why_not is not None:
            notes = (so_far.why_not,)
        elif so_far.numbered:
            notes = (so_far.message,)
        return replace(concluded, notes=(*notes, *concluded.notes))

    @remembered
    def outlook(self, history: History) -> Outlook:
        """Return what is still to come, and the lines of a plan about the sweep."""
        sweep, so_far = self.state(history), self.rotations_so_far(history)
        return outlook_of(self, sweep, so_far, due=self.decide(history).due)

    def answer(self, history: History, question: Question) -> Answer:
        """Return the answer to a waiting test, the same in every run of the sweep.

        The verdicts of a wave are those of the screen when the wave is over; those of the
        confirmation are given when everything is over.
        """
        if question.about is Ask.PROVEN:
            return winner_answer(self._with_all_selected.decide(history), question.number)
        if self._awaits_trials(history, question):
            return NOT_YET
        decision = self.decide(history)
        match question.about:
            case Ask.REFERENCE:
                answer = as_answer(self._screened(history, "", BASELINE_ID))
            case Ask.SCREENED:
                answer = as_answer(self._screened(history, question.wave, question.name))
            case Ask.SLOT:
                filled = self.state(history).ranked.arms.slots.get(question.name)
                answer = arm_answer(filled.id if filled else "", decision.arms)
            case Ask.RANKED:
                entered = decision.conclusion.tuning.finalists
                # The finalists are numbered in file order, because ranks may still change while
                # names of tests may not.
                in_file_order = [arm.id for arm in decision.arms if arm.id in entered]
                number = question.number
                finalist = in_file_order[number] if number < len(in_file_order) else ""
                answer = arm_answer(finalist, decision.arms)
            case Ask.BEST:
                answer = winner_answer(decision, question.number)
            case _:
                answer = as_answer(decision.conclusion.verdict(question.name))
        return answer

    def _awaits_trials(self, history: History, question: Question) -> bool:
        """Return whether the answer depends on trials that are still to come."""
        pending = self.state(history).due
        if question.about in (Ask.REFERENCE, Ask.SCREENED, Ask.SLOT):
            return any(belongs_to_wave(question.wave, trial) for trial in pending)
        return bool(pending)

    def _screened(self, history: History, wave: str, arm: str) -> Verdict | None:
        """Return the verdict of the screen on an arm, by the end of a wave; "" for all waves."""
        return self.decide(self._screen_until(history, wave)).conclusion.verdict(arm)

    def _screen_until(self, history: History, wave: str) -> History:
        """Return the first runs of the screen up to a wave; computed once for all tests."""
        by_wave = self._screens(history)
        if wave not in by_wave:
            by_wave[wave] = tuple(
                result for result in history if belongs_to_wave(wave, result.trial)
            )
        return by_wave[wave]

    @remembered
    def _screens(self, history: History) -> dict[str, History]:
        """Return the cache of `_screen_until` for a history: wave -> results."""
        del history
        return {}

    @cached_property
    def _with_all_selected(self) -> TuningStudy:
        return all_selected(self)
