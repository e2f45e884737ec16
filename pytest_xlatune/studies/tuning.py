"""Find the profiles that make a cell faster: screen once, confirm on fresh blocks, conclude.

Every profile is measured once, in random order among baselines; this ranks. On many node slots the
best run a second time. The best few enter a block with baselines, the best of these enter further
blocks, each in its own random order, and only those that stay to the end get a verdict. Pure and
deterministic: every process with the same study and history proposes and concludes the same. This
module must not know of executors, ledgers, clocks or logs.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import cached_property
from itertools import accumulate

from msgspec.structs import replace

from pytest_xlatune.model.message import Message
from pytest_xlatune.model.profile import BASELINE_ID
from pytest_xlatune.model.result import MIN_TRIALS, Conclusion, TrialResult, Verdict
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.design import Plan, Refusal
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
from pytest_xlatune.studies.slots import Slots, derived_runs, rounds_of_blocks, rounds_of_screen
from pytest_xlatune.studies.trials import AGAIN, wave_order
from pytest_xlatune.studies.tuning_plan import RotationRule, TuningPlan, outline
from pytest_xlatune.studies.turning import (
    Rotations,
    carried,
    first_of,
    is_turned,
    rotations,
    to_come,
    work,
)
from pytest_xlatune.studies.turning import outline as outline_of_rotations
from pytest_xlatune.studies.verdicts import as_answer, best, deployed, named
from pytest_xlatune.studies.waves import Waves

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
            arms = Waves(self, slots.kept_results, slots)
            return decide(self, arms, self.read(slots.kept_results, arms.profiles), slots)
        so_far, plan = self.rotated(history), self
        if self.rotates and so_far.why_not is not None:
            plan = self.as_jobs
            spent = len(so_far.looks) + len(so_far.numbered)
            plan = replace(plan, budget=max(self.budget - spent, plan.least))
        arms = Waves(plan, so_far.results, None)
        return decide(plan, arms, plan.read(so_far.results, arms.profiles))

    @remembered
    def decide(self, history: History) -> Decision:
        """Return the trials to run next, and what follows from the results so far."""
        sweep, so_far = self.swept(history), self.rotated(history)
        blocks = sweep.blocks if self.confirm and sweep.is_ranked else None
        profiles = sweep.arms.profiles.values()
        return Decision(
            due=carried(sweep.plan, so_far, sweep.due),
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
        if self.swept(history).arms.evidence is None:
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
        """Return what is still to come, and the lines of a plan about the sweep.

        Trials after an evidence run are planned as if it showed nothing. Declared profiles in a
        wave after a derived one wait for that one.
        """
        sweep, so_far, due = self.swept(history), self.rotated(history), self.decide(history).due
        foreseen = self.foreseen(history)
        later = sweep if foreseen is self else foreseen.swept(history)
        jobs = (job for job in (*later.due, *waiting(foreseen, later)))
        named = (
            *due,
            *first_of(later.plan, so_far, later.due),
            *(job for job in jobs if not is_turned(later.plan, job)),
        )
        ahead = tuple({trial.id: trial for trial in named}.values())
        jobs_left, turned = self._left(sweep, so_far)

        def lines() -> tuple[Message, ...]:
            of_trials = outline(
                self,
                screened=sum(trial.is_screened for trial in ahead),
                filled=later.arms.messages,
            )
            return (*outline_of_rotations(self), *of_trials)

        return Outlook(
            ahead=ahead,
            left=jobs_left + turned,
            at_most=self._at_most(sweep, jobs_left + turned),
            rounds=jobs_left + turned if self.rotates else self._rounds(sweep, history),
            work=work(sweep.plan, due, jobs_left, turned) if turned else None,
            write_lines=lines,
        )

    def _left(self, sweep: SweepDecision, so_far: Rotations) -> tuple[int, int]:
        """Return how many jobs, and how many rotations, are likely still to come."""
        plan, due = sweep.plan, sweep.due
        turned = sum(is_turned(plan, trial) for trial in due)
        if not turned and not (plan.rotates and sweep.arms.opens):
            return sweep.left, 0
        return len(due) - turned + sweep.later, max(to_come(plan, so_far), 1)

    def _at_most(self, sweep: SweepDecision, left: int) -> int:
        """Return how many trials may still come: the rest of the budget, if blocks may be added.

        Once all blocks are over and none was added, no further block is added.
        """
        plan = sweep.plan
        is_fixed = not (plan.confirm and plan.may_spare) or isinstance(plan.layout, Refusal)
        if is_fixed or not sweep.left:
            return left
        blocks = sweep.blocks if sweep.is_ranked else None
        if blocks is not None and not blocks.may_grow:
            return sweep.left
        past = sweep.past
        spent = sum(
            result.status.is_final for result in (*past.screen.values(), *past.confirm.values())
        )
        has_run = sweep.arms.evidence is not None
        return max(sweep.left, plan.budget - spent + has_run)

    def _rounds(self, sweep: SweepDecision, history: History) -> int:
        """Return how many of the trials that are left must follow one another on their nodes."""
        layout, slots = self.layout, len(self.cells)
        loads = Counter(trial.cell_digest for trial in sweep.due)
        longest, later = max(loads.values(), default=0), sweep.later
        if not later:
            return longest
        if isinstance(layout, Refusal) or any(trial.block for trial in sweep.due):
            return longest + math.ceil(later / slots)
        stages = {trial.stage for trial in (*sweep.due, *(result.trial for result in history))}
        runs = derived_runs([rule for rule in self.rules if rule.wave not in stages])
        runs += (layout.again,) if later >= layout.in_blocks + layout.again else ()
        of_blocks = rounds_of_blocks(layout, slots) if later >= layout.in_blocks else later
        return longest + rounds_of_screen(runs, layout, slots) + of_blocks

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
                filled = self.swept(history).arms.slots.get(question.name)
                answer = named(filled.id if filled else "", decision.arms)
            case Ask.RANKED:
                entered = decision.conclusion.tuning.finalists
                # in file order, because ranks may change with the next trial but the name of a test
                # must not
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
        return rotations.look is not None and not rotations.is_look_in_vain

    def _reference_wave(self, history: History) -> str:
        """Return the wave of this run by whose end two baselines are planned, else the last wave.

        A small wave has one baseline. "" if an evidence run, or results, must come first.
        """
        waves = self.swept(history).arms
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

    def _until(self, history: History, wave: str) -> tuple[TrialResult, ...]:
        """Return the screening results up to the end of a wave; "" for the last."""
        parts = self._parts(history)
        if wave not in parts:
            parts[wave] = tuple(result for result in history if belongs_to_wave(wave, result.trial))
        return parts[wave]

    @remembered
    def _parts(self, history: History) -> dict[str, tuple[TrialResult, ...]]:
        del history
        return {}

    @cached_property
    def _with_all_selected(self) -> TuningStudy:
        return all_selected(self)


def waiting(plan: TuningPlan, sweep: SweepDecision) -> tuple[Trial, ...]:
    """Return the trials of declared profiles whose wave comes after one that is still open."""
    arms = sweep.arms
    declared = {profile.id for profile in plan.profiles} & arms.candidates
    return tuple(
        trial
        for queue in arms.queues[len(arms.plannable) :]
        if any(trial.arm in declared for trial in queue.trials)
        for trial in queue.trials
        if (trial.is_baseline or trial.arm in declared) and not sweep.past.is_final(trial)
    )
