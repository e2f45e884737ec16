"""Which profiles of a sweep can take turns in one job, and which stay jobs of their own, and why.

A sweep that rotates is two sweeps of one cell that share its alpha by their profiles: the first one
is measured in rotations, the second one in jobs as ever. This module knows no history.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pytest_xlatune.model.profile import Flags, Profile, parse_flags
from pytest_xlatune.model.reason import Reason, Why
from pytest_xlatune.model.record import Real, Record
from pytest_xlatune.model.result import TrialStatus
from pytest_xlatune.model.rotation import options_of
from pytest_xlatune.stats.design import SWEEP_ALPHA, Refusal
from pytest_xlatune.stats.rotations import (
    JOBS,
    LOOK,
    JobPace,
    JobWork,
    RotationPlan,
    TurnLayout,
    plan_rotations,
)
from pytest_xlatune.studies import History
from pytest_xlatune.studies.derived import Singles
from pytest_xlatune.studies.trials import CHECK, STUDY

if TYPE_CHECKING:
    from pytest_xlatune.studies.tuning_plan import TuningPlan


FIRST_STEPS = 3  # of a rotation, before its first turn: the default of `RotationSpec`


class RotateWay(StrEnum):
    """How the profiles of a sweep are measured that could rotate."""

    ROTATIONS = auto()
    JOBS = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """How far the trials in a ledger went either way.

    Attributes:
        looks: that began.
        rotations: that began, but for those that came to their end without a score.
        jobs: the profiles that could rotate, and have trials of their own.
    """

    looks: int = 0
    rotations: int = 0
    jobs: tuple[str, ...] = ()

    @property
    def way(self) -> RotateWay | None:
        """The way that later sessions go; None where nothing has begun.

        A sweep whose look or first rotation failed went on with jobs, and does so again by itself.
        """
        if self.looks or self.rotations:
            return RotateWay.ROTATIONS
        return RotateWay.JOBS if self.jobs else None

    def forbids(self, way: RotateWay) -> bool:
        """Whether going this way would measure profiles again, with their alpha spent."""
        if way is RotateWay.ROTATIONS:
            return bool(self.jobs) and not self.looks and not self.rotations
        return bool(self.rotations) and not self.jobs


def begun_ways(sweep: TuningPlan, history: History) -> Begun:
    """Return how far the trials of a sweep went either way, the checks of rotations left out."""
    own = [
        each
        for each in history
        if each.trial.study == STUDY
        and each.trial.cell_digest == sweep.cell.digest
        and each.trial.protocol.is_scored
        and each.trial.stage != CHECK
        and (each.status is not TrialStatus.PLANNED or each.job_ids)
        and each.not_run is None
    ]
    rotations = [each for each in own if each.trial.rotation is not None]
    looks = [each for each in rotations if each.trial.rotation and each.trial.rotation.is_look]
    failed = [
        each
        for each in rotations
        if each.status.is_final and (each.rotation is None or each.rotation.score is None)
    ]
    deployed = deployed_flags(sweep)
    jobs = dict.fromkeys(
        each.trial.arm
        for each in own
        if each.trial.rotation is None
        and not each.trial.is_baseline
        and not isinstance(options_of(each.trial.profile, deployed), Reason)
    )
    counted = [each for each in rotations if each not in looks and each not in failed]
    return Begun(looks=len(looks), rotations=len(counted), jobs=tuple(jobs))


class RotationRule(Record, frozen=True, kw_only=True):
    """How a sweep rotates.

    Attributes:
        jobs: of the rotations at most, the look before and the check behind them included.
        step_function: the HLO module of the step without `jit_`; "" is the one that runs once a
            step.
        must_save: whether it rotates only where that takes fewer jobs and no more time.
        share: of the variance of a job, what programs of one process have in common, as a
            calibration measured it; None is unknown.
        pace: of the jobs that earlier sessions measured; None is a guess from the time limit.
        kept: the way that an earlier session of the ledger went, whatever would be chosen now.
    """

    jobs: int = JOBS
    step_function: str = ""
    share: Real | None = None
    must_save: bool = False
    pace: JobPace | None = None
    kept: RotateWay | None = None


@dataclass(frozen=True, kw_only=True)
class Ways:
    """Which way the profiles of a sweep go.

    Attributes:
        options: profile that rotates -> the options of its compilation.
        stays: profile that stays a job -> why.
        plan: of the rotations.
        turns: how a rotation is laid out.
        alpha: of the sweep's, what the rotations get.
        deployed: the flags below all options.
        step_function: as the rule says it.
        rotated: the sweep of the first, whose trials no scheduler ever sees.
        jobs: the sweep of the others; None where there is none.
    """

    options: Mapping[str, Mapping[str, str]]
    stays: Mapping[str, Reason]
    plan: RotationPlan
    turns: TurnLayout
    alpha: float
    deployed: Flags
    step_function: str
    rotated: TuningPlan
    jobs: TuningPlan | None


def ways_of(sweep: TuningPlan) -> Ways | Refusal:
    """Return which way each profile goes, or why none rotates."""
    rule = sweep.rotation
    if rule is None:
        return Refusal(why=Reason(Why.ROTATION_OFF))
    if rule.kept is RotateWay.JOBS:
        return Refusal(why=Reason(Why.JOBS_AS_BEGUN))
    if sweep.slots:
        return Refusal(why=Reason(Why.NO_ROTATION_ON_SLOTS))
    deployed = deployed_flags(sweep)
    found = {each.id: options_of(each, deployed) for each in sweep.profiles}
    options = {name: each for name, each in found.items() if not isinstance(each, Reason)}
    stays = {name: each for name, each in found.items() if isinstance(each, Reason)}
    of_rules = {each: _rotates(each.every, sweep) for each in sweep.singles}
    singles = tuple(each for each, rotates in of_rules.items() if rotates)
    slots = sum(
        each.slots for each in sweep.rules_beside if not isinstance(each, Singles) or of_rules[each]
    )
    count = len(options) + slots
    searched = [each.at_once for each in sweep.searches for _ in range(each.rounds)]
    jobs = min(rule.jobs + len(searched), sweep.budget)
    layout = plan_rotations(
        count, jobs, best=sweep.finalists, deciding=sweep.blocks, searched=searched
    )
    if isinstance(layout, Refusal):
        return layout
    of_jobs = sweep.count - count
    # a search counts as one of its rounds: it is an extra, and takes little from those beside it
    weight = count + sum(each.at_once for each in sweep.searches)
    alpha = SWEEP_ALPHA * weight / (weight + of_jobs)
    waves = len(sweep.counts)
    width, deciding = layout.widths[-1], layout.deciding
    share = rule.share or 0.0
    sigma = None if sweep.sigma_prior is None else sweep.sigma_prior * (1 - share) ** 0.5
    chosen = [each for each in sweep.profiles if each.id in options]
    rotated = replace(
        sweep,
        rotation=None,
        profiles=tuple(chosen),
        singles=singles,
        selected=_selected(sweep, {*stays, *_slots(sweep, of_rules, rotates=False)}),
        budget=layout.profiles + waves * layout.copies + deciding * (width + layout.copies),
        screen_baselines=layout.copies,
        finalists=width,
        blocks=deciding,
        block_baselines=layout.copies,
        sigma_prior=sigma,
        pair="off",
        alpha=alpha,
    )
    others = None
    if of_jobs:
        others = replace(
            sweep,
            rotation=None,
            profiles=tuple(each for each in sweep.profiles if each.id in stays),
            singles=tuple(each for each in sweep.singles if each not in singles),
            stacks=(),
            around=(),
            crossed=(),
            searches=(),
            selected=_selected(sweep, {*options, *_slots(sweep, of_rules, rotates=True)}),
            budget=max(sweep.budget - layout.jobs, of_jobs + 1),
            alpha=SWEEP_ALPHA - alpha,
        )
        others = replace(others, budget=_as_sharp(others, than=sweep))
    ways = Ways(
        options=options,
        stays=stays,
        plan=layout,
        turns=layout.turns(job_steps=sweep.cell.protocol.steps, jobs=jobs_instead(sweep, weight)),
        alpha=alpha,
        deployed=deployed,
        step_function=rule.step_function,
        rotated=rotated,
        jobs=others,
    )
    own, without = both_plans(sweep, ways)
    pace = pace_of_plan(sweep)
    took_s, other_s = own.seconds(pace), without.seconds(pace)
    must_save = rule.must_save and not sweep.searches  # which no job can measure
    if must_save and not (own.jobs < without.jobs and took_s <= other_s):
        spent = {"jobs": own.jobs, "others": without.jobs, "took_s": took_s, "other_s": other_s}
        return Refusal(why=Reason(Why.ROTATION_SAVES_NOTHING, **spent))
    return ways


def deployed_flags(sweep: TuningPlan) -> Flags:
    """Return the flags that the cell deploys, as far as they are known."""
    return parse_flags(sweep.cell.environment.get("XLA_FLAGS", ""), where="deployed XLA_FLAGS")


def jobs_instead(sweep: TuningPlan, count: int) -> int:
    """Return how many ordinary jobs `count` profiles of a sweep would take."""
    layout = sweep.as_jobs.layout
    jobs = sweep.budget if isinstance(layout, Refusal) else layout.jobs
    return round(jobs * count / max(sweep.count, count, 1))


def _rotates(profiles: tuple[Profile, ...], sweep: TuningPlan) -> bool:
    deployed = deployed_flags(sweep)
    return not any(isinstance(options_of(each, deployed), Reason) for each in profiles)


def _slots(sweep: TuningPlan, of_rules: Mapping[Singles, bool], *, rotates: bool) -> set[str]:
    """Return the names of the slots of rules whose profiles rotate, or of the others."""
    return {
        slot.name
        for rule, slots in sweep.places.items()
        if (not isinstance(rule, Singles) or of_rules[rule]) == rotates
        for slot in slots
    }


def _selected(sweep: TuningPlan, without: set[str]) -> frozenset[str] | None:
    """Return what a part of the sweep is asked for; None is all of it."""
    return None if sweep.selected is None else frozenset(sweep.selected - without)


def why_none_rotates(sweep: TuningPlan) -> tuple[Reason, ...]:
    """Return why no profile rotates although the sweep asks for it; () where it does not ask."""
    found = sweep.ways
    if sweep.rotation is None or not isinstance(found, Refusal):
        return ()
    return (Reason(Why.NONE_ROTATES, why=found.why),)


def goes_on(sweep: TuningPlan) -> tuple[Reason, ...]:
    """Say that a sweep goes the way that an earlier session began; () where it chose its own."""
    kept = None if sweep.rotation is None else sweep.rotation.kept
    if kept is None:
        return ()
    return why_none_rotates(sweep) or (Reason(Why.ROTATES_AS_BEGUN),)


def outline_of_ways(
    sweep: TuningPlan, ways: Ways, jobs: TuningPlan | None, history: History
) -> tuple[Reason, ...]:
    """Return what a plan says of a sweep that rotates: who, in how many rotations, what they see.

    Args:
        sweep: the whole of it.
        ways: of its profiles.
        jobs: the sweep of those that stay jobs; None where none does.
        history: so far.
    """
    plan, turns, rule = ways.plan, ways.turns, sweep.rotation
    share = rule.share if rule is not None else None
    seen = [
        Reason(
            Why.FINDS_IN_ROTATION, change=plan.sees(sigma, share=each, alpha=ways.alpha), share=each
        )
        for sigma in [sweep.noise.value]
        for each in ([0.0, 0.5] if share is None else [share])
    ]
    widest = max(plan.widths) + plan.copies
    deciding = plan.widths[-1] + plan.copies
    rows = [
        *goes_on(sweep),
        *(
            Reason(Why.SEARCHES, wave=each.wave, slots=each.slots, fills=each.fills)
            for each in sweep.searches
        ),
        Reason(
            Why.ROTATES,
            arms=(*ways.options, *(each.wave for each in sweep.searches)),
            shape=plan.shape,
            turn_steps=turns.turn_steps,
            rounds=turns.rounds,
            steps=turns.steps(widest),
            deciding=turns.steps(deciding),
        ),
        Reason(Why.FINDS_BY_ROTATIONS, seen=seen, sigma=sweep.noise.value),
    ]
    for why in dict.fromkeys(ways.stays.values()):
        own = [name for name, each in ways.stays.items() if each == why]
        rows.append(Reason(Why.STAYS_A_JOB, arms=own, why=why))
    with_, others = both_plans(sweep, ways)
    both = {"jobs": with_.jobs, "steps": with_.steps, "compilations": with_.compilations}
    both |= {"others": others.jobs, "other_steps": others.steps}
    rows.append(Reason(Why.JOBS_OF_BOTH_PLANS, **both))
    return (*rows, *(() if jobs is None else jobs.outline(history)))


def both_plans(sweep: TuningPlan, ways: Ways) -> tuple[JobWork, JobWork]:
    """Return what this plan has to do at most, and what one without rotation has."""
    beside = 0 if ways.jobs is None else _jobs(ways.jobs)
    steps = sweep.cell.protocol.steps
    ordinary = beside + LOOK + ways.plan.checks
    rotations = ways.plan.load(ways.turns, first_steps=FIRST_STEPS)
    # the look compiles the baseline once more
    own = rotations + JobWork(jobs=ordinary, steps=ordinary * steps, compilations=LOOK)
    others = _jobs(sweep.as_jobs)
    return own, JobWork(jobs=others, steps=others * steps)


def pace_of_plan(sweep: TuningPlan) -> JobPace:
    """Return the pace of a sweep's jobs before it begins: as measured, or as guessed."""
    rule, protocol = sweep.rotation, sweep.cell.protocol
    known = None if rule is None else rule.pace
    return known or JobPace.guessed(protocol.deadline_s, protocol.steps)


def _as_sharp(others: TuningPlan, *, than: TuningPlan) -> int:
    """Return the fewest jobs in which some profiles see as much as the sweep without rotation.

    All that is left of the budget, where no fewer are enough, or the sweep states its blocks.
    """
    whole, sigma = than.as_jobs.layout, than.noise.value
    if others.is_stated or isinstance(whole, Refusal):
        return others.budget
    least = whole.from_start80(sigma)
    for jobs in range(others.count + 1, others.budget):
        found = others.laid_out(others.count, jobs, others.sigma_prior)
        if not isinstance(found, Refusal) and found.from_start80(sigma) <= least:
            return jobs
    return others.budget


def _jobs(sweep: TuningPlan) -> int:
    layout = sweep.layout
    return sweep.budget if isinstance(layout, Refusal) else layout.jobs
