"""Find the profiles that make a cell faster: screen once, confirm on fresh blocks, conclude.

Every profile is measured once, in random order among baselines; this ranks. On many node slots the
best run a second time. The best few enter a block with baselines, the best of these enter further
blocks, each in its own random order, and only those that stay to the end get a verdict. Pure and
deterministic: every process with the same study and history proposes and concludes the same. This
module must not know of executors, ledgers, clocks or logs.
"""

from __future__ import annotations

from functools import cached_property
from itertools import accumulate

from msgspec.structs import replace

from pytest_xlatune.model.profile import BASELINE_ID
from pytest_xlatune.model.result import MIN_TRIALS, Conclusion, Verdict
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.design import Plan
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
from pytest_xlatune.studies.derived import Singles
from pytest_xlatune.studies.engine import SweepDecision, decide
from pytest_xlatune.studies.outlook import outlook_of
from pytest_xlatune.studies.slots import Slots
from pytest_xlatune.studies.trials import AGAIN, wave_order
from pytest_xlatune.studies.tuning_plan import RotationRule, TuningPlan
from pytest_xlatune.studies.turning import Rotations, carried, is_turned, rotations
from pytest_xlatune.studies.verdicts import as_answer, best, deployed, named

__all__ = ["RotationRule", "TuningStudy"]


_EVIDENCE_WAVE = "wave1_5"  # the wave to which the evidence run belongs


def belongs_to_wave(wave: str, trial: Trial) -> bool:
    """Return whether a trial outside blocks belongs to a wave, or to one before it.

    Second runs belong to no wave; "" stands for the last wave.
    """
    if trial.rotation is not None:
        return True  # a rotation does not say to which waves its programs belong
    stage = trial.stage if trial.protocol.is_scored else _EVIDENCE_WAVE
    is_of_wave = not trial.block and stage != AGAIN
    return is_of_wave and (not wave or wave_order(stage) <= wave_order(wave))


class TuningStudy(TuningPlan, frozen=True, kw_only=True, dict=True):
    """A sweep of profiles over one cell."""

    @remembered
    def rotated(self, history: History) -> Rotations:
        """Return the rotations so far, with their programs as trials."""
        return rotations(self, history)

    @remembered
    def swept(self, history: History) -> SweepDecision:
        """Return the state of the sweep, with rotations replaced by trials of their programs."""
        if self.slots:
            slots = Slots(names=tuple(self.nodes), seed=self.seed, history=tuple(history))
            return decide(self, slots.kept_results, slots)
        so_far, plan = self.rotated(history), self
        if self.rotates and so_far.why_not is not None:
            plan = self.rotated_in_vain(len(so_far.looks) + len(so_far.numbered))
        return decide(plan, so_far.results)

    @remembered
    def decide(self, history: History) -> Decision:
        """Return the trials to run next, and what follows from the results so far."""
        sweep, so_far = self.swept(history), self.rotated(history)
        blocks = sweep.blocks if self.confirm and sweep.is_ranked else None
        profiles = sweep.ranked.arms.profiles.values()
        return Decision(
            due=carried(sweep.ranked.plan, so_far, sweep.due),
            arms=(deployed(self.cell), *(deployed(self.cell, profile) for profile in profiles)),
            concluded=lambda: self._concluded(sweep, so_far),
            added=blocks.added if blocks is not None else None,
        )

    def _concluded(self, sweep: SweepDecision, so_far: Rotations) -> Conclusion:
        concluded = conclusion(sweep)
        if so_far.is_lost and not sweep.entered:
            concluded = replace(concluded, complete=False)
        if self.rotates and so_far.why_not is not None:
            return replace(concluded, notes=(so_far.why_not, *concluded.notes))
        return (
            replace(concluded, notes=(*so_far.messages, *concluded.notes))
            if so_far.numbered
            else concluded
        )

    def foreseen(self, history: History) -> TuningStudy:
        """Return what this study becomes if the evidence run that it awaits shows nothing."""
        if self.swept(history).ranked.arms.evidence is None:
            return self
        # whether a candidate needs no trace
        needs_none = any(rule.candidates for rule in self.singles)
        if not (needs_none or self.profiles or self.searches) and self.policy.derives:
            return self  # a derived wave would have no results to follow from
        rules = tuple(
            replace(rule, evidence=False, pgle=False) if isinstance(rule, Singles) else rule
            for rule in self.derived
            if not isinstance(rule, Singles) or rule.candidates
        )
        study = replace(self, derived=rules, selected=None)
        if self.selected is None:
            return study
        slots = {slot.name for every in study.places.values() for slot in every}
        names = {BASELINE_ID, *(profile.id for profile in self.profiles), *slots}
        return replace(study, selected=self.selected & names)

    @remembered
    def outlook(self, history: History) -> Outlook:
        """Return what is still to come, and the lines of a plan about the sweep."""
        return outlook_of(
            self,
            history,
            self.swept(history),
            self.rotated(history),
            due=self.decide(history).due,
            foreseen=self.foreseen(history).swept(history),
        )

    def answer(self, history: History, question: Question) -> Answer:
        """Return the answer to a waiting test, the same in every run of the sweep.

        The verdicts of a wave are those of the screen when the wave is over; those of the
        confirmation are given when everything is over.
        """
        if question.about is Ask.PROVEN:
            return best(self._with_all_selected.decide(history))
        if self._lacks(history, question):
            return NOT_YET
        decision = self.decide(history)
        match question.about:
            case Ask.REFERENCE if self._is_told_by_the_look(history):
                answer = as_answer(decision.conclusion.reference)
            case Ask.REFERENCE:
                wave = self._reference_wave(history)
                answer = as_answer(self._screened(history, wave, BASELINE_ID))
            case Ask.SCREENED:
                answer = as_answer(self._screened(history, question.wave, question.name))
            case Ask.SLOT:
                filled = self.swept(history).ranked.arms.slots.get(question.name)
                answer = named(filled.id if filled else "", decision.arms)
            case Ask.RANKED:
                entered = decision.conclusion.tuning.finalists
                # in file order, because the next trial may change ranks, but no name of a test
                in_file_order = [arm.id for arm in decision.arms if arm.id in entered]
                answer = named(
                    "".join(in_file_order[question.number : question.number + 1]), decision.arms
                )
            case Ask.BEST:
                answer = best(decision)
            case _:
                answer = as_answer(decision.conclusion.verdict(question.name))
        return answer

    def _lacks(self, history: History, question: Question) -> bool:
        """Return whether the answer depends on trials that are still to come."""
        pending = self.swept(history).due
        if question.about is Ask.REFERENCE:
            if self._is_told_by_the_look(history):
                return False
            if any(is_turned(self, trial) for trial in pending):
                return True
            wave = self._reference_wave(history)
            return not wave or any(belongs_to_wave(wave, trial) for trial in pending)
        if question.about in (Ask.SCREENED, Ask.SLOT):
            return any(belongs_to_wave(question.wave, trial) for trial in pending)
        return bool(pending)

    def _is_told_by_the_look(self, history: History) -> bool:
        """Return whether the first rotation measured the baseline; if not, jobs must."""
        rotations = self.rotated(history)
        return rotations.look is not None and not rotations.look_failed

    def _reference_wave(self, history: History) -> str:
        """Return the wave of this run by whose end two baselines are planned, else the last wave.

        A small wave has one baseline. "" if an evidence run, or results, must come first.
        """
        waves = self.swept(history).ranked.arms
        selected = [queue.wave for queue in waves.selected]
        if not selected:
            return "" if waves.opens else waves.queues[0].wave
        planned = accumulate(self.baselines.get(wave, 1) for wave in selected)
        enough = next((w for w, n in zip(selected, planned, strict=True) if n >= MIN_TRIALS), "")
        return enough or ("" if waves.opens else selected[-1])

    def _screened(self, history: History, wave: str, arm: str) -> Verdict | None:
        """Return the verdict of the screen on an arm, by the end of a wave; "" for all waves."""
        until = self.decide(self._until(history, wave)).conclusion.verdict(arm)
        # The screen's line goes through all waves, so later waves and second runs change what a
        # report says of an earlier one.
        is_last = not wave or wave_order(wave) >= max(map(wave_order, self.counts))
        is_last = is_last and not (isinstance(self.layout, Plan) and self.layout.again)
        if until is None or is_last or not until.n:
            return until
        return replace(until, up_to=wave)

    def _until(self, history: History, wave: str) -> History:
        """Return what was measured once, by the end of a wave; looked up once for all tests."""
        parts = self._parts(history)
        if wave not in parts:
            parts[wave] = tuple(result for result in history if belongs_to_wave(wave, result.trial))
        return parts[wave]

    @remembered
    def _parts(self, history: History) -> dict[str, History]:
        del history
        return {}

    @cached_property
    def _with_all_selected(self) -> TuningStudy:
        return all_selected(self)
