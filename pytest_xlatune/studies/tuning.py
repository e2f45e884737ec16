"""Which of these profiles makes the cell faster: screen once, confirm on fresh blocks, conclude.

Every profile is measured once, in random order among spread baselines; that ranks. On many node
slots the best run a second time. The best few enter a block with baselines inside, the best of
these go on to further blocks, each in a random order of its own; only those that stay to the end
get a verdict. Pure and deterministic: every process with the same study and history proposes and
concludes the same. This module must not know of executors, ledgers, clocks or logs.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import accumulate

from msgspec.structs import replace

from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import BASELINE, BASELINE_ID, NO_ENV_ID, Profile
from pytest_xlatune.model.reason import Reason, Why
from pytest_xlatune.model.record import Json
from pytest_xlatune.model.result import (
    MIN_TRIALS,
    Comparison,
    Conclusion,
    Recipe,
    Score,
    State,
    TrialResult,
    TrialStatus,
    TuningRecord,
    Verdict,
    VerdictKind,
)
from pytest_xlatune.model.rotation import options_of
from pytest_xlatune.model.rotation_score import copies, is_baseline
from pytest_xlatune.model.trial import Arm, ConfirmDesign, Trial
from pytest_xlatune.stats.design import Plan, Refusal
from pytest_xlatune.stats.rotations import (
    Checked,
    JobWork,
    OrdinaryNoise,
    TurnLayout,
    check_deployed,
    check_jobs,
    job_noise,
)
from pytest_xlatune.studies import NOT_YET, Answer, Ask, History, Question, remembered
from pytest_xlatune.studies.conclude import conclusion, place_of
from pytest_xlatune.studies.engine import SweepDecision, decide
from pytest_xlatune.studies.filling import kinds_of
from pytest_xlatune.studies.parts import recipe
from pytest_xlatune.studies.slots import Slots, derived_runs, rounds_of_blocks, rounds_of_screen
from pytest_xlatune.studies.staged import Walk
from pytest_xlatune.studies.trials import (
    AGAIN,
    ALIAS,
    CHECK,
    CONFIRM,
    STUDY,
    TURNS,
    Past,
    as_job,
    is_of_rotations,
    ordinary,
    pace_of,
    rotation_of,
    turns_score,
    usable,
    wave_order,
    why_not_turned,
)
from pytest_xlatune.studies.tuning_plan import TuningPlan, outline
from pytest_xlatune.studies.verdicts import (
    as_checked,
    beside,
    best,
    deployed,
    job_ids_of,
    named,
    reference,
    told,
    unmeasured,
    values_of,
    with_effect,
)
from pytest_xlatune.studies.waves import Waves
from pytest_xlatune.studies.ways import (
    FIRST_STEPS,
    RotateWay,
    RotationRule,
    Ways,
    begun_ways,
    goes_on,
    outline_of_ways,
    why_none_rotates,
)

__all__ = ["RotateWay", "RotationRule", "TuningStudy", "way_begun"]


_EVIDENCE_WAVE = "wave1_5"  # where an evidence run stands that a wave waits for


def is_by(wave: str, trial: Trial) -> bool:
    """Whether a trial outside blocks belongs to a wave, or to one before, which it may read.

    Second runs belong to none; "" is the last.
    """
    stage = trial.stage if trial.protocol.is_scored else _EVIDENCE_WAVE
    is_of_wave = not trial.block and stage != AGAIN
    return is_of_wave and (not wave or wave_order(stage) <= wave_order(wave))


def way_begun(study: TuningStudy, history: History) -> RotateWay | None:
    """Return the way that the trials of a ledger went; None where none of them tells."""
    return begun_ways(study, history).way


class TuningStudy(TuningPlan, frozen=True, kw_only=True, dict=True):
    """A sweep of profiles over one cell."""

    @remembered
    def decided(self, history: History) -> SweepDecision:
        """Return what follows from a history, of a sweep of jobs."""
        standing, slots = history, None
        if self.slots:
            slots = Slots(names=tuple(self.nodes), seed=self.seed, history=tuple(history))
            standing = slots.standing
        arms = Waves(self, standing, slots)
        return decide(self, arms, self.read(standing, arms.profiles), slots)

    def propose(self, history: History) -> tuple[Trial, ...]:
        """Return the trials to run next, in order."""
        return self.turned(history).pending if self.rotates else self.decided(history).due

    def left(self, history: History) -> int:
        """Return how many trials are likely still to come, those not planned yet included."""
        return self.turned(history).left if self.rotates else self.decided(history).left

    @remembered
    def conclude(self, history: History) -> Conclusion:
        """Return what follows from the results so far."""
        if self.rotates:
            return self.turned(history).conclusion()
        return conclusion(self.decided(history))

    @remembered
    def turned(self, history: History) -> RotatedSweep:
        """Return the walk of a sweep that rotates."""
        return RotatedSweep(self, self.ways, history).go()  # type: ignore[arg-type]

    @property
    def rotates(self) -> bool:
        """Whether profiles of it take turns in one job."""
        return not isinstance(self.ways, Refusal)

    def arms(self, history: History) -> tuple[Arm, ...]:
        """Return the baseline, the declared profiles, and those that waves derived."""
        if self.rotates:
            turned = self.turned(history).arms.values()
            return (deployed(self.cell), *(deployed(self.cell, each) for each in turned))
        profiles = self.decided(history).arms.profiles.values()
        return (deployed(self.cell), *(deployed(self.cell, each) for each in profiles))

    def slots_of(self, history: History) -> Mapping[str, Profile]:
        """Return the profile of each slot of a derived wave that is filled, by the slot's name."""
        if self.rotates:
            return self.turned(history).slots
        return self.decided(history).arms.slots

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
        if self.rotates or self.decided(history).arms.evidence is None:
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
        foreseen = self.foreseen(history)
        decision = foreseen.decided(history)
        own = (*self.propose(history), *decision.due, *foreseen.waiting(decision))
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
            filled=self.foreseen(history).decided(history).arms.told,
            kinds=kinds_of(self.decided(history).arms.read_evidence),
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
        waves = self.decided(history).arms
        found = [queue.wave for queue in waves.selected]
        if not found:
            return "" if waves.opens else waves.queues[0].wave
        planned = accumulate(self.baselines.get(wave, 1) for wave in found)
        enough = next((w for w, n in zip(found, planned, strict=True) if n >= MIN_TRIALS), "")
        return enough or ("" if waves.opens else found[-1])

    def _screened(self, history: History, wave: str, arm: str) -> Verdict | None:
        """Return the verdict from what was measured once, up to the end of a wave or of all."""
        until = self.conclude(self._until(history, wave)).verdict(arm)
        # the line of the screen goes through all waves: a later one moves what a report says, and
        # so do second runs
        is_last = not wave or wave_order(wave) >= max(map(wave_order, self.counts))
        is_last = is_last and not (isinstance(self.layout, Plan) and self.layout.again)
        if until is None or is_last or not until.n:
            return until
        return replace(until, up_to=wave)

    def _until(self, history: History, wave: str) -> tuple[TrialResult, ...]:
        """Return what was measured once, up to the end of a wave; "" is the last."""
        parts = self._parts(history)
        if wave not in parts:
            parts[wave] = tuple(each for each in history if is_by(wave, each.trial))
        return parts[wave]

    @remembered
    def _parts(self, history: History) -> dict[str, tuple[TrialResult, ...]]:
        del history
        return {}

    def waiting(self, decision: SweepDecision) -> tuple[Trial, ...]:
        """Return the trials of declared profiles whose wave is behind one that is still open."""
        arms = decision.arms
        own = {each.id for each in self.profiles} & arms.candidates
        return tuple(
            trial
            for queue in arms.queues[len(arms.plannable) :]
            if any(each.arm in own for each in queue.trials)
            for trial in queue.trials
            if (trial.is_baseline or trial.arm in own) and not decision.past.is_final(trial)
        )

    def at_most(self, history: History) -> int:
        """Return how many trials may still come: what the budget has left, where blocks are added.

        No block is added any more once every one is over and none was proposed.
        """
        if self.rotates:
            turned = self.turned(history)
            jobs = turned.jobs
            own = turned.left - (jobs.left(turned.beside) if jobs is not None else 0)
            return own + (jobs.at_most(turned.beside) if jobs is not None else 0)
        decision = self.decided(history)
        is_fixed = not (self.confirm and self.may_spare) or isinstance(self.layout, Refusal)
        if is_fixed or not decision.left:
            return decision.left
        blocks = decision.blocks if decision.is_ranked else None
        if blocks is not None and not blocks.may_grow:
            return decision.left
        past = decision.past
        spent = sum(
            each.status.is_final and each.not_run is None
            for each in (*past.screen.values(), *past.confirm.values())
        )
        has_run = decision.arms.evidence is not None
        return max(decision.left, self.budget - spent + has_run)

    def why_more(self, history: History) -> Reason | None:
        """Return which spare block is planned, and for which profiles."""
        if self.rotates:
            turned = self.turned(history)
            return None if turned.jobs is None else turned.jobs.why_more(turned.beside)
        decision = self.decided(history)
        blocks = decision.blocks if self.confirm and decision.is_ranked else None
        return blocks.added if blocks is not None else None

    def work(self, history: History) -> JobWork | None:
        """Return what the trials to come have to do, where rotations are among them."""
        return self.turned(history).load if self.rotates else None

    def rounds(self, history: History) -> int:
        """Return how many of the trials that are left follow one another; others run beside."""
        if self.rotates:
            return self.turned(history).left
        layout, slots, decision = self.layout, len(self.cells), self.decided(history)
        loads = Counter(each.cell_digest for each in decision.due)
        longest, later = max(loads.values(), default=0), decision.later
        if not later:
            return longest
        if isinstance(layout, Refusal) or any(each.block for each in decision.due):
            return longest + math.ceil(later / slots)
        begun = {each.stage for each in (*decision.due, *(each.trial for each in history))}
        runs = derived_runs([rule for rule in self.rules if rule.wave not in begun])
        runs += (layout.again,) if later >= layout.in_blocks + layout.again else ()
        of_blocks = rounds_of_blocks(layout, slots) if later >= layout.in_blocks else later
        return longest + rounds_of_screen(runs, layout, slots) + of_blocks


# of a sweep of jobs: what they plan, and what they see
_OF_JOBS = frozenset(
    {Why.PLAN_FINDS, Why.SINGLE_BASELINE, Why.KEPT_FOR_SPARE, Why.NEITHER_SELECTED}
)


class RotatedSweep(Walk["TuningStudy"]):
    """How far a sweep that rotates came.

    Attributes:
        study: the whole sweep.
        ways: which profile goes which way.
        beside: the trials of sweeps of jobs, and others, in the order of the history.
        rotated, jobs: the sweeps of those that rotate and of the others; `jobs` is None where all
            rotate, and the whole sweep where none can.
    """

    def __init__(self, study: TuningStudy, ways: Ways, history: History) -> None:
        super().__init__(study)
        self.ways, self.history = ways, tuple(history)
        own = [each for each in history if each.trial.study == STUDY]
        own = [each for each in own if each.trial.cell_digest == study.cell.digest]
        self.beside = tuple(each for each in history if not is_of_rotations(each.trial))
        self._checks = tuple(each for each in own if each.trial.stage == CHECK)
        rotations = [each for each in own if each.trial.rotation is not None]
        self._looks = tuple(each for each in rotations if rotation_of(each).is_look)
        found = (each for each in rotations if not rotation_of(each).is_look)
        self.rotations = tuple(sorted(found, key=lambda each: rotation_of(each).number))
        self.rotated: TuningStudy = ways.rotated  # type: ignore[assignment]

    def result(self, trial: Trial) -> TrialResult | None:
        """Return the result of a trial so far; None where there is none."""
        return self._by_id.get(trial.id)

    @cached_property
    def _by_id(self) -> dict[str, TrialResult]:
        return {each.trial.id: each for each in reversed(self.history)}

    def walk(self) -> None:
        """Propose the trials that are due: of the rotations first, then jobs."""
        jobs = self.jobs if self._are_told else None
        due = (*self.turning, *(jobs.propose(self.beside) if jobs is not None else ()))
        self.run(due, later=max(self._left - len(due), 0))

    @cached_property
    def look(self) -> TrialResult | None:
        """The look that is over; None before."""
        return next((each for each in self._looks if each.status.is_final), None)

    @cached_property
    def asks_rotations(self) -> bool:
        """Whether this run is about profiles that rotate, or about nothing but their baseline."""
        selected = self.study.selected
        return selected is None or bool(self.rotated.selected) or self.ways.jobs is None

    @cached_property
    def why_not(self) -> Reason | None:
        """Why nothing can rotate, as the look or the first rotation tells; None: it can, so far."""
        begun = (each for each in self.rotations if each.status.is_final)
        return why_not_turned(self.look, next(begun, None))

    @cached_property
    def jobs(self) -> TuningStudy | None:
        """The sweep of the profiles that are jobs; None where there is none."""
        if self.why_not is None:
            return self.ways.jobs  # type: ignore[return-value]
        whole = self.study.as_jobs
        try:
            return replace(whole, budget=whole.budget - len(self._looks) - len(self.rotations))
        except ConfigError:  # too few jobs are left to lay it out
            return whole

    # the rotations, as if each program had been a job

    @cached_property
    def base(self) -> Score | None:
        """The score of the baseline as a job, at whose level all of it stands; None before."""
        scores = [score for each in self._looks if (score := usable(each))]
        return scores[0] if scores else None

    @cached_property
    def laid_out(self) -> tuple[TrialResult, ...]:
        """What rotations that are over say of each program, in the sweep that rotates.

        A profile that was derived is known by the rotations before.
        """
        found: list[TrialResult] = []
        for each in self.rotations:
            if each.status.is_final:
                found += self._programs(each, self._known(tuple(found)))
        # evidence of the baseline is read by waves of either sweep
        return (*found, *(each for each in self.beside if not each.trial.protocol.is_scored))

    def _known(self, history: History) -> Mapping[str, Profile]:
        arms = self.rotated.arms(history)
        # what a search asked for is known by its name, whatever it would ask for today
        names = {
            program.id for each in self.rotations for program in rotation_of(each).spec.programs
        }
        asked = {name: found for name in names if (found := self._candidate(name))}
        return {ALIAS.id: ALIAS, **asked, **{each.id: each.profile for each in arms}}

    def _candidate(self, name: str) -> Profile | None:
        """Return the candidate of a search that has this id; None where there is none."""
        found = (each.find(name) for each in self.study.searches)
        return next((each for each in found if each is not None), None)

    def _options(self, profile: Profile) -> dict[str, str]:
        """Return the options of a profile's program."""
        found = options_of(profile, self.ways.deployed)
        return {} if isinstance(found, Reason) else found

    def _programs(self, result: TrialResult, known: Mapping[str, Profile]) -> Iterator[TrialResult]:
        """Yield what a rotation says of each of its programs, the baseline for each wave."""
        trial, spec = result.trial, rotation_of(result).spec
        profiles = {
            each.id: known[each.id]
            for each in spec.programs
            if not is_baseline(each.id)
            # one that was edited since is another profile
            and each.id in known
            and each.options == self._options(known[each.id])
        }
        stages = sorted({CONFIRM if trial.block else each.wave for each in profiles.values()})
        for each in spec.programs:
            if is_baseline(each.id):
                position = copies(len(spec.programs)).index(each.id)
                for stage in stages:
                    yield self._as_job(result, each.id, BASELINE, stage, position)
            elif each.id in profiles:
                profile = profiles[each.id]
                stage = CONFIRM if trial.block else profile.wave
                yield self._as_job(result, each.id, profile, stage)

    def _as_job(
        self, result: TrialResult, program: str, profile: Profile, stage: str, position: int = 0
    ) -> TrialResult:
        protocol = self.study.cell.protocol
        return as_job(
            result,
            program,
            profile,
            stage=stage,
            position=position,
            protocol=protocol,
            base=self.base,
        )

    # what comes next

    @property
    def _are_told(self) -> bool:
        """Whether it is known which profiles are jobs."""
        return self.look is not None or not self.asks_rotations

    @cached_property
    def turning(self) -> tuple[Trial, ...]:
        """The look, the rotations and the checks that are due."""
        if not self.asks_rotations or self.why_not is not None:
            return ()
        if self.look is None:
            return (next((each.trial for each in self._looks), self._look),)
        open_ones = [each.trial for each in self.rotations if not each.status.is_final]
        held = {
            (each.block, program.id)
            for each in open_ones
            for program in each.rotation.spec.programs  # type: ignore[union-attr]
        }
        due = self.rotated.propose(self.laid_out)
        # each round of a search is a rotation of its own
        waves = {each.wave for each in self.study.searches}
        is_searching = any(self._candidate(name) for block, name in held if not block)
        groups: dict[tuple[int, str], list[Trial]] = {}
        for each in due:
            wave = each.stage if each.stage in waves else ""
            if each.protocol.is_scored and (each.block, each.arm) not in held:
                groups.setdefault((each.block, wave), []).append(each)
        number = max((rotation_of(each).number for each in self.rotations), default=0)
        made = []
        for (block, wave), trials in sorted(groups.items()):
            if wave and is_searching:
                continue  # the next round reads this one
            profiles = {each.arm: each.profile for each in trials if not each.is_baseline}
            if profiles:
                number += 1
                made.append(self._rotate(profiles, number, block, trials[0].design))
        others = tuple(each for each in due if not each.protocol.is_scored)
        return (*others, *open_ones, *made) or self.checks_due

    @cached_property
    def turns(self) -> TurnLayout:
        """How rotations are laid out from here on: as planned until one has ranked."""
        ranked = next((each for each in self.rotations if not each.trial.block), None)
        score = turns_score(ranked) if ranked is not None else None
        pace = pace_of((*self._looks, ranked)) if ranked is not None else None
        planned = self.ways.turns
        return planned if score is None or pace is None else planned.sharpened(score, pace)

    @property
    def _look(self) -> Trial:
        steps = self.ways.turns.turn_steps  # of the rotations
        return self.study.orders.look(turn_steps=steps, step_function=self.ways.step_function)

    def _rotate(
        self,
        profiles: Mapping[str, Profile],
        number: int,
        block: int,
        design: ConfirmDesign | None,
    ) -> Trial:
        """Return the rotation of some profiles.

        One that ranks compiles them in the order of the sweep file: what may abort can stand first.
        """
        names = list(profiles)
        if not block:
            declared = {each.id: at for at, each in enumerate(self.rotated.profiles)}
            names.sort(key=lambda name: declared.get(name, len(declared)))
        return self.study.orders.rotation(
            {name: self._options(profiles[name]) for name in names},
            number,
            turns=self.turns if block else self.ways.turns,
            copies=self.ways.plan.copies,
            block=block,
            design=design,
            looked=self.look,
            step_function=self.ways.step_function,
        )

    # the check of the deployed form

    @cached_property
    def decided(self) -> Conclusion:
        """What the rotations say, before the check."""
        return self.rotated.conclude(self.laid_out)

    @cached_property
    def won(self) -> tuple[str, ...]:
        """The profiles that rotations prove faster: the recommended one, then by their change."""
        found = self.decided
        own = [each for each in found.verdicts if each.kind is VerdictKind.FASTER]
        chosen = found.tuning.recipe
        lead = chosen.arm if chosen is not None else ""
        own.sort(key=lambda each: (each.arm != lead, -(each.delta or 0.0), each.arm))
        return tuple(each.arm for each in own)

    @cached_property
    def checks(self) -> tuple[Trial, ...]:
        """The ordinary jobs of the check, once rotations decided."""
        if not self.rotated.confirm or self.rotated.propose(self.laid_out):
            return ()
        known = self._known(self.laid_out)
        drawn = check_jobs(self.won, rng_seed=f"{self.study.seed}", jobs=self.ways.plan.checks)
        return self.study.orders.checks(known[each] for each in drawn)

    @property
    def checks_due(self) -> tuple[Trial, ...]:
        """Those of them that are not over."""
        over = {each.trial.id for each in self._checks if each.status.is_final}
        return tuple(each for each in self.checks if each.id not in over)

    @cached_property
    def ordinary(self) -> Past:
        """The look and the checks: jobs in which the trainer ran as it is deployed."""
        return ordinary(
            (*self._looks, *self._checks),
            protocols=self.study.orders.protocols,
            declared=self._known(self.laid_out),
        )

    @cached_property
    def noise(self) -> OrdinaryNoise | None:
        """The noise of an ordinary job, as the levels of rotations and their programs show it."""
        scores = [score for each in self.rotations if (score := turns_score(each))]
        look = self.rotated.decided(self.laid_out).look
        return job_noise(scores, look.fit if look is not None else None)

    def _checked(self, verdict: Verdict) -> Verdict:
        """Return a verdict with the check of the deployed form."""
        arm, past = verdict.arm, self.ordinary
        if arm not in self.won:
            return verdict
        open_one = self._not_checked(arm)
        if open_one is not None:
            return _withheld(verdict, open_one)
        own = past.confirms_of(arm)
        verdict = with_effect(replace(verdict, job_ids=(*verdict.job_ids, *job_ids_of(own))), own)
        dropped = next((each for each in own if each.status is TrialStatus.DROPPED), None)
        if dropped is not None:
            why = Reason(Why.DEPLOYED_FORM_FAILS, why=dropped.reason)
            return _withheld(replace(verdict, can_run=False), why, kind=VerdictKind.INVALID)
        loss = self.study.losses.reason(past, arm)
        if loss is not None:
            return _withheld(verdict, loss, kind=VerdictKind.INVALID)
        rotation = self._rotation_of(arm)
        values = [values_of(past.confirms_of(each)) for each in (arm, BASELINE_ID)]
        found = check_deployed(rotation, own=values[0], beside=values[1], noise=self.noise)
        if found.kind is Checked.MISSING:
            return _withheld(verdict, Reason(Why.CHECK_MISSING, why=_lost(past, arm)))
        why = as_checked(rotation, found, past, arm)
        if found.withholds:
            return _withheld(verdict, why)
        return replace(verdict, reasons=(verdict.reasons[0], why, *verdict.reasons[1:]))

    def _not_checked(self, arm: str) -> Reason | None:
        """Return why the check of a winner says nothing yet, or never; None where it is over."""
        if self.checks and arm not in {each.arm for each in self.checks}:
            return Reason(Why.CHECK_HAS_NO_JOB, jobs=self.ways.plan.checks)
        if not self.checks or any(each.arm in (arm, BASELINE_ID) for each in self.checks_due):
            return Reason(Why.CHECK_TO_COME)
        return None

    def _rotation_of(self, arm: str) -> Comparison:
        """Return the comparison that made a winner.

        Raises:
            ValueError: the arm is none.
        """
        look = self.rotated.decided(self.laid_out).look
        found = look.comparisons.get(arm) if look is not None else None
        if not isinstance(found, Comparison):
            raise ValueError(f"{arm} won no rotation")  # noqa: TRY004 - of a state, not a type
        return found

    # what follows

    def conclusion(self) -> Conclusion:
        """Return the verdicts of rotations and jobs, with the notes of both."""
        return self._concluded

    @cached_property
    def _concluded(self) -> Conclusion:
        jobs = self.jobs.conclude(self.beside) if self.jobs is not None else None
        if self.why_not is not None and jobs is not None:
            return replace(jobs, notes=(self.why_not, *jobs.notes), complete=not self.pending)
        decided = self.decided
        level = self._level(jobs)
        shown = [
            beside(self._measured_how(self._checked(each)), level) for each in decided.verdicts
        ]
        walk = self.rotated.decided(self.laid_out)
        chosen = recipe(
            profiles=walk.arms.profiles,
            verdicts=shown,
            cells=walk.past.scored_in_blocks(),
            fit=walk.look.fit if walk.look is not None else None,
        )
        found = decided.tuning
        record = replace(found, recipe=chosen, sigma=self.noise.sigma if self.noise else None)
        if any(each.kind is VerdictKind.FASTER for each in decided.verdicts):
            record = replace(record, bound=None)
        faster = {each.arm: each.delta or 0.0 for each in shown if each.wins}
        notes = [
            each
            for each in decided.notes
            if each.kind not in _OF_JOBS
            and (each.kind is not Why.STOP_RULE or each.fields["arm"] in faster)
        ]
        if jobs is not None:
            faster |= {each.arm: each.delta or 0.0 for each in jobs.verdicts if each.wins}
            record = _joined(record, jobs.tuning, faster)
            shown += jobs.verdicts
            notes += _both_won(chosen, jobs.tuning.recipe)
            notes += [each for each in jobs.notes if each not in notes]
        contradicted = [
            each.arm
            for each in shown
            if each.reasons and each.reasons[0].kind is Why.CHECK_CONTRADICTS
        ]
        if contradicted:
            notes.insert(0, Reason(Why.STARTS_OTHERWISE, arms=contradicted))
        notes[:0] = self._told
        return Conclusion(
            verdicts=tuple(sorted(shown, key=place_of)),
            reference=level,
            record=record,
            alpha=decided.alpha + (jobs.alpha if jobs is not None else 0.0),
            complete=not self.pending,
            first_step=jobs.first_step if jobs is not None else None,
            notes=tuple(notes),
        )

    def _level(self, jobs: Conclusion | None) -> Verdict | None:
        """Return the line of the baseline: of ordinary jobs, and of rotations before there are."""
        own = reference(self.ordinary)
        if own.n:
            return own
        if jobs is not None and jobs.reference is not None and jobs.reference.n:
            return jobs.reference
        found = self.decided.reference
        return own if found is None or not found.n else found

    def _measured_how(self, verdict: Verdict) -> Verdict:
        """Return a verdict that says that rotations are behind it."""
        if not verdict.n:
            return verdict
        how = Reason(Why.IN_ROTATIONS, rotations=verdict.n, method=verdict.method)
        return replace(verdict, method=how)

    @property
    def _told(self) -> tuple[Reason, ...]:
        """How many profiles rotate, in how many rotations so far, and which were cut."""
        counts = {
            rotation_of(each).number: len(score.turns)
            for each in self.rotations
            if (score := turns_score(each)) is not None
        }
        rotate = Reason(
            Why.PROFILES_ROTATE,
            profiles=len(self._known(self.laid_out)) - 2,  # the baseline and its alias
            rotations=len(counts),
            turns=sum(counts.values()),
            stay=len(self.ways.stays),
        )
        cut = [
            Reason(
                Why.ROTATION_CUT,
                number=rotation_of(each).number,
                turns=counts[rotation_of(each).number],
                planned=len(rotation_of(each).spec.order),
            )
            for each in self.rotations
            if rotation_of(each).number in counts
            and each.outcome is not None
            and each.outcome.state is State.TIMEOUT
        ]
        return (rotate, *cut)

    @cached_property
    def load(self) -> JobWork:
        """What the trials that are likely still to come have to do."""
        steps = self.study.cell.protocol.steps
        jobs = self.jobs.left(self.beside) if self.jobs is not None else 0
        found = JobWork(jobs=jobs, steps=jobs * steps)
        if not self.asks_rotations or self.why_not is not None:
            return found
        for each in self.turning:
            programs = len(each.rotation.spec.programs) if each.rotation is not None else 0
            found += JobWork(jobs=1, steps=each.protocol.steps, compilations=programs)
        confirm = self.rotated.confirm
        if confirm and not self.rotated.propose(self.laid_out):
            return found  # decided
        plan, turns = self.ways.plan, self.turns
        blocks = {each.trial.id: each.trial.block for each in self.rotations}
        blocks |= {each.id: each.block for each in self.turning if each.stage == TURNS}
        later = max(plan.deciding - len({*blocks.values()} - {0}), 0) if confirm else 0
        ranking = plan.widths[:1] + plan.searched * self._asks_search
        widths = ranking[[*blocks.values()].count(0) :] + plan.widths[-1:] * later
        rotations = dataclasses.replace(plan, widths=widths, searched=())
        found += rotations.load(turns, first_steps=FIRST_STEPS)
        checks = plan.checks if confirm else 0
        return found + JobWork(jobs=checks, steps=checks * steps)

    @property
    def _asks_search(self) -> bool:
        """Whether this run is about a candidate of a search."""
        places, selected = self.rotated.places, self.rotated.selected
        own = {slot.name for each in self.rotated.searches for slot in places[each]}
        return selected is None or bool(own & selected)

    @property
    def _left(self) -> int:
        """How many trials are likely still to come."""
        return self.load.jobs

    @property
    def ahead(self) -> tuple[Trial, ...]:
        """The trials that are proposed, and those that can be named and wait for others."""
        found = [*self.turning]
        if self.asks_rotations and self.why_not is None and self.look is None:
            due = [each for each in self.rotated.propose(()) if each.protocol.is_scored]
            profiles = {each.arm: each.profile for each in due if not each.is_baseline}
            found += [self._rotate(profiles, 1, 0, None)] if profiles else []
        return (*found, *(self.jobs.ahead(self.beside) if self.jobs is not None else ()))

    def answer(self, question: Question) -> Answer:
        """Return what a waiting test asks."""
        match question.about:
            case Ask.PROVEN:
                return best(self._concluded, self.study.arms(self.history))
            case Ask.REFERENCE:
                return self._of_reference(question)
            case Ask.SCREENED | Ask.SLOT:
                return self._of_part(question)
            case _ if self.pending:
                return NOT_YET
            case Ask.RANKED:
                arms = self.study.arms(self.history)
                entered = self._concluded.tuning.finalists
                own = [each.id for each in arms if each.id in entered][question.number :]
                return named(own[0] if own else "", arms)
            case Ask.BEST:
                return best(self._concluded, self.study.arms(self.history))
            case _:
                return told(self._concluded.verdict(question.name))

    def _of_reference(self, question: Question) -> Answer:
        """Return all that tells of the baseline: the look, or jobs where that is in vain."""
        if self.asks_rotations and self.look is None:
            return NOT_YET
        is_of_jobs = self.why_not is not None or (self.base is None and not self.asks_rotations)
        if is_of_jobs and self.jobs is not None:
            return self.jobs.answer(self.beside, question)
        return told(self._concluded.reference)

    @cached_property
    def _of_jobs(self) -> frozenset[str]:
        """The names of the arms and slots that the sweep of ordinary jobs has."""
        jobs = self.jobs
        if jobs is None:
            return frozenset()
        arms = (each.id for each in jobs.arms(self.beside))
        places = (slot.name for own in jobs.places.values() for slot in own)
        return frozenset((*arms, *jobs.slots_of(self.beside), *places))

    def _of_part(self, question: Question) -> Answer:
        """Return what a wave says of an arm or slot, of the sweep that has it."""
        if self.jobs is not None and question.name in self._of_jobs:
            return self.jobs.answer(self.beside, question) if self._are_told else NOT_YET
        if self.look is None:
            return NOT_YET
        return self.rotated.answer(self.laid_out, question)

    @property
    def arms(self) -> Mapping[str, Profile]:
        """All profiles by id: the declared ones, and those that waves derived."""
        found = {each.id: each for each in self.study.profiles}
        if self.why_not is None:
            found |= {each.id: each.profile for each in self.rotated.arms(self.laid_out)}
        if self.jobs is not None:
            found |= {each.id: each.profile for each in self.jobs.arms(self.beside)}
        return {name: each for name, each in found.items() if name != BASELINE_ID}

    @property
    def slots(self) -> Mapping[str, Profile]:
        """The profile of each slot of a derived wave that is filled, by the slot's name."""
        own = self.rotated.slots_of(self.laid_out) if self.why_not is None else {}
        return {**own, **(self.jobs.slots_of(self.beside) if self.jobs is not None else {})}


def _withheld(
    verdict: Verdict, why: Reason, *, kind: VerdictKind = VerdictKind.INCONCLUSIVE
) -> Verdict:
    """Return a verdict that is not FASTER, although rotations say so."""
    reasons = (why, Reason(Why.ELSE, reason=verdict.reasons[0]), *verdict.reasons[1:])
    return replace(verdict, kind=kind, likely=None, reasons=reasons)


def _lost(past: Past, arm: str) -> Reason | None:
    """Return why a job of the check has no score."""
    lost = [
        each
        for name in (arm, BASELINE_ID)
        for each in past.confirms_of(name)
        if each.status.is_final and usable(each) is None
    ]
    return Reason(Why.CHECK_LOST, why=unmeasured(lost)) if lost else None


def _both_won(rotated: Recipe | None, jobs: Recipe | None) -> tuple[Reason, ...]:
    """Say that each sweep has a recipe, and that none measured both together."""
    if rotated is None or jobs is None:
        return ()
    return (Reason(Why.WON_APART, rotated=rotated.arm, jobs=jobs.arm),)


def _joined(rotated: TuningRecord, jobs: TuningRecord, faster: Mapping[str, float]) -> TuningRecord:
    """Return the record of both sweeps: what either leaves open is open.

    The recipe is that of the larger change; `faster` has those of all that won.
    """
    recipes = [each for each in (rotated.recipe, jobs.recipe) if each is not None]
    best_one = max(recipes, key=lambda each: faster.get(each.arm, 0.0), default=None)
    bounds = (rotated.bound, jobs.bound)
    starts = (rotated.from_start80, jobs.from_start80)
    least = (rotated.mde80, jobs.mde80)
    return replace(
        rotated,
        finalists=(*rotated.finalists, *jobs.finalists),
        bound=None if None in bounds else max(filter(None.__ne__, bounds)),  # type: ignore[type-var]
        mde80=max((each for each in least if each is not None), default=None),
        from_start80=max((each for each in starts if each is not None), default=None),
        sigma=rotated.sigma or jobs.sigma,
        recipe=best_one,
    )
