"""A tuning sweep before anything is measured: profiles, waves, and how its budget is laid out.

Most values are derived from the declaration once and cached. This module must not know a history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import ClassVar, Self

from msgspec.structs import replace

from pytest_xlatune.catalog.context import Context
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import Message, say
from pytest_xlatune.model.profile import (
    BASELINE,
    BASELINE_ID,
    NO_ENV_ID,
    Effective,
    Flags,
    Profile,
    check_unique,
    parse_flags,
)
from pytest_xlatune.model.record import Real, Record
from pytest_xlatune.model.rotation import options_of
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.design import (
    MIN_DF,
    USUAL_BLOCK_JOBS,
    Plan,
    Refusal,
    plan,
    screen_slots,
    slot_baselines,
)
from pytest_xlatune.stats.rotations import (
    COPIES,
    FIRST_STEPS,
    LOOK_JOBS,
    RANKINGS,
    JobPace,
    JobWork,
    TurnLayout,
)
from pytest_xlatune.studies import History, OnNodeFailure, Policy, Traits
from pytest_xlatune.studies.derived import (
    Around,
    Crossed,
    Rule,
    Search,
    Singles,
    Slot,
    Stacks,
    slots_of,
)
from pytest_xlatune.studies.evidence_run import EvidenceStudy
from pytest_xlatune.studies.trials import (
    AGAIN,
    ALIAS,
    STUDY,
    Orders,
    Past,
    Segment,
    read,
    wave_order,
)
from pytest_xlatune.studies.verdicts import OneCell

_ROTATION_OFF = "rotation is off"

# The job noise that is assumed for a cell without a calibration. In real cells, flags without
# effect differed by 0.11 % on one cluster and by 1.84 % on another.
DEFAULT_SIGMA = 0.006


class RotationRule(Record, frozen=True, kw_only=True):
    """How a sweep rotates.

    Attributes:
        must_save: whether the sweep rotates only if that takes fewer jobs and no more time.
        pace: the pace of the jobs, as earlier sessions measured it or the sweep file states it;
            None assumes that a job takes its whole time limit.
        is_usual: whether the user states no budget, so that blocks take `USUAL_BLOCK_JOBS` jobs.
    """

    must_save: bool = False
    pace: JobPace | None = None
    is_usual: bool = False


class TuningPlan(OneCell, frozen=True, kw_only=True, dict=True):
    """A sweep of profiles over one cell.

    Attributes:
        cell: the cell that is held fixed.
        profiles: all declared profiles in declared order, without the baseline.
        derived: rules of the waves whose profiles follow from earlier results.
        context: what the rules of the catalog check profiles against; None checks none.
        selected: ids of profiles, and names of slots of derived waves, that this run explores; None
            selects all. Selecting a slot includes the waves that its own wave depends on.
        confirm: whether this run also confirms; if not, it only screens.
        budget: jobs of the whole sweep, over all its runs.
        seed: the seed of the random orders.
        sigma_prior: standard deviation of a job's score, from a calibration; None if unknown.
        screen_baselines: baselines in each wave's queue; 0 lets the budget decide.
        finalists, blocks, block_baselines: layout of the confirmation; 0 for all lets the budget
            decide, else 0 stands for 3 finalists, 4 blocks, and 2 baselines in each.
        loss_tolerance: relative distance from the baseline's loss that makes a trial invalid.
        slots: the nodes of each node slot, the cell's own first, as many for each and no node
            twice; () if there is only one slot.
        rotation: how profiles take turns in one job where they can; None runs each trial as a job.
    """

    traits: ClassVar[Traits] = Traits(
        compares_settings=True,
        is_deployed=True,
        has_slots=True,
        selection_fields={"selected": None, "confirm": True},
        measured_fields=("sigma_prior", "rotation"),
    )
    cell: Cell
    profiles: tuple[Profile, ...]
    derived: tuple[Singles | Stacks | Around | Crossed | Search, ...] = ()
    context: Context | None = None
    selected: frozenset[str] | None = None
    confirm: bool = True
    budget: int = 50
    seed: int = 0
    sigma_prior: Real | None = None
    screen_baselines: int = 0
    finalists: int = 0
    blocks: int = 0
    block_baselines: int = 0
    loss_tolerance: Real = 0.02
    slots: tuple[tuple[str, ...], ...] = ()
    rotation: RotationRule | None = None

    def __post_init__(self) -> None:
        where = f"the sweep of {self.cell.label}"
        check_unique(self.profiles, where=where)
        if any(profile.id == ALIAS.id for profile in self.profiles):
            raise ConfigError(f"{where}: the id {ALIAS.id!r} belongs to the A/A control arm")
        # trials of a wave of this name would be taken for second runs of the screen
        if AGAIN in {wave.wave for wave in (*self.profiles, *self.derived)}:
            raise ConfigError(
                f"{where}: a wave is called {AGAIN!r}, which is the word for second runs of "
                "the screen; give it another name, such as 'wave2'"
            )
        _check_rules(self, where=where)
        _check_layout(self, where=where)

    @property
    def name(self) -> str:
        """The kind of study."""
        return STUDY

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """The cell on each of its node slots."""
        return tuple(replace(self.cell, nodelist=nodes) for nodes in self.slots) or (self.cell,)

    @property
    def policy(self) -> Policy:
        """What the sweep demands of the campaign."""
        return Policy(
            reads_evidence=bool(self.rules),
            on_node_failure=OnNodeFailure.VERDICT if self.slots else OnNodeFailure.STOP,
        )

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """The rules of the derived waves, in the order in which the waves run."""
        return tuple(sorted(self.derived, key=lambda rule: wave_order(rule.wave)))

    @property
    def singles(self) -> tuple[Singles, ...]:
        """The rules whose slots an evidence run of the baseline, or the declared order, fills."""
        return tuple(rule for rule in self.derived if isinstance(rule, Singles))

    @property
    def searches(self) -> tuple[Search, ...]:
        """The rules whose values are searched in rotations."""
        return tuple(rule for rule in self.derived if isinstance(rule, Search))

    @cached_property
    def places(self) -> Mapping[Rule, tuple[Slot, ...]]:
        """The slots of each rule."""
        return slots_of(self.rules)

    @cached_property
    def evidence_trial(self) -> Trial:
        """The evidence run of the deployed cell."""
        return EvidenceStudy(cell=self.cell, profile=BASELINE).trial

    @cached_property
    def effective(self) -> Effective:
        """The effective settings of profiles on top of the deployed ones."""
        return Effective(self.cell.deployed)

    @cached_property
    def why_none_rotates(self) -> Message | None:
        """Why no profile takes turns; None if some do."""
        rule = self.rotation
        if rule is None:
            return say(_ROTATION_OFF)
        if self.slots:
            return say("a sweep on several node slots runs each trial as a job of its own")
        if not self.turned:
            options = (self.turn_options(profile) for profile in self.profiles)
            why = next((message for message in options if isinstance(message, Message)), None)
            return why or say(_ROTATION_OFF)
        if not rule.must_save or self.searches:  # no job can measure the candidates of a search
            return None
        rotating, not_rotating = replace(self, rotation=replace(rule, must_save=False)).works
        rotating_s, not_rotating_s = rotating.seconds(self._pace), not_rotating.seconds(self._pace)
        if rotating.jobs < not_rotating.jobs and rotating_s <= not_rotating_s:
            return None
        return say(
            "with rotations the plan takes {jobs:+job} and {took_s:time}, without them "
            "{others:+job} and {other_s:time}; --xlatune-rotate on rotates all the same",
            jobs=rotating.jobs,
            others=not_rotating.jobs,
            took_s=rotating_s,
            other_s=not_rotating_s,
        )

    @property
    def rotates(self) -> bool:
        """Whether rotations rank some of its profiles."""
        return self.why_none_rotates is None

    @cached_property
    def _deployed_flags(self) -> Flags:
        return parse_flags(self.cell.environment.get("XLA_FLAGS", ""), where="deployed XLA_FLAGS")

    def turn_options(self, profile: Profile) -> Mapping[str, str] | Message:
        """Return the compiler options of a profile in a rotation, or why it must be a job."""
        return options_of(profile, self._deployed_flags)

    def can_turn(self, profile: Profile) -> bool:
        """Return whether a profile can take turns."""
        return not isinstance(self.turn_options(profile), Message)

    @cached_property
    def _turning(self) -> frozenset[str]:
        """The ids of the declared profiles that can take turns."""
        return frozenset(profile.id for profile in self.profiles if self.can_turn(profile))

    @cached_property
    def _turning_rules(self) -> Mapping[Rule, int]:
        """The rules whose profiles take turns -> how many rotations these need at most.

        Rules that combine profiles are among them only if every declared profile can take turns.
        """
        turning_rules: dict[Rule, int] = {}
        for rule in self.rules:
            if isinstance(rule, Search):
                turning_rules[rule] = rule.rounds
            elif isinstance(rule, Singles):
                if all(map(self.can_turn, rule.candidates)):
                    turning_rules[rule] = RANKINGS
            elif len(self._turning) == len(self.profiles):
                turning_rules[rule] = 1
        return turning_rules

    @cached_property
    def turned(self) -> int:
        """How many profiles take turns, including slots of derived waves."""
        return len(self._turning) + sum(rule.slots for rule in self._turning_rules)

    @cached_property
    def rotations(self) -> int:
        """How many rotations there are at most, including the look; 0 if no profile rotates."""
        if not self.rotates:
            return 0
        declared = RANKINGS if self._turning else 0
        return LOOK_JOBS + declared + sum(self._turning_rules.values())

    def rankings(self, profile: Profile) -> int:
        """Return how many rotations rank a profile at most; only one if it follows from results."""
        return RANKINGS if profile.id in self._known_ids else 1

    @cached_property
    def _known_ids(self) -> frozenset[str]:
        """The ids of the profiles that are known before anything is measured."""
        candidates = (profile for rule in self.singles for profile in rule.candidates)
        return frozenset(profile.id for profile in (*self.profiles, *candidates))

    @property
    def _pace(self) -> JobPace:
        """The pace of the jobs before the look shows it."""
        protocol, pace = self.cell.protocol, self.rotation.pace if self.rotation else None
        return pace or JobPace.guessed(protocol.deadline_s, protocol.steps)

    def turns_by(self, pace: JobPace | None = None) -> TurnLayout:
        """Return the turns of a rotation for jobs with this pace; None before the look."""
        return TurnLayout.paced(pace or self._pace)

    def rotation_work(self, count: int) -> JobWork:
        """Return the work of some rotations of all profiles that take turns."""
        programs = self.turned + COPIES
        steps = self.turns_by().steps(programs) + FIRST_STEPS
        return JobWork(jobs=count, steps=count * steps, compilations=count * programs)

    @cached_property
    def works(self) -> tuple[JobWork, JobWork]:
        """The work of this plan at most, and that of the same plan without rotations."""
        steps = self.cell.protocol.steps
        jobs = self._jobs - self.rotations
        rotations = self.rotations - LOOK_JOBS - (RANKINGS - self.turns_by().rankings)
        ordinary = JobWork(jobs=jobs + LOOK_JOBS, steps=jobs * steps, compilations=LOOK_JOBS)
        others = self.after_failed_rotations(0)._jobs  # noqa: SLF001 - another instance
        return (
            ordinary + self.rotation_work(rotations),
            JobWork(jobs=others, steps=others * steps),
        )

    @property
    def _jobs(self) -> int:
        """How many jobs the whole sweep takes; its budget if it only ranks."""
        return self.layout.jobs if isinstance(self.layout, Plan) else self.budget

    @cached_property
    def as_jobs(self) -> Self:
        """The sweep without rotations, and so without its searches and what only follows them."""
        known: list[Profile | Rule] = [*self.profiles, *self.singles]
        rules = tuple(
            rule
            for rule in self.derived
            if isinstance(rule, Singles)
            or (not isinstance(rule, Search) and _has_source(rule, known))
        )
        dropped_slots = {
            slot.name for rule in self.rules if rule not in rules for slot in self.places[rule]
        }
        return replace(
            self,
            rotation=None,
            budget=max(self.budget, self.least_jobs),
            derived=rules,
            selected=None if self.selected is None else self.selected - dropped_slots,
        )

    def after_failed_rotations(self, spent: int) -> Self:
        """Return the sweep as jobs, after rotations took `spent` jobs and ranked nothing.

        The numbers of baselines and blocks that the sweep states are dropped if they do not fit
        into the remaining jobs.
        """
        unstated = dict.fromkeys(("screen_baselines", "finalists", "blocks", "block_baselines"), 0)
        try:
            return replace(self.as_jobs, budget=max(self.budget - spent, self.as_jobs.least_jobs))
        except ConfigError:
            jobs = replace(self, **unstated).as_jobs
            return replace(jobs, budget=max(self.budget - spent, jobs.least_jobs))

    @cached_property
    def layout(self) -> Plan | Refusal:
        """The layout of the budget before anything is measured, or why the sweep only ranks."""
        return self.laid_out(self.count, self.budget, self.sigma_prior)

    def laid_out(
        self,
        count: int,
        budget: int,
        sigma: float | None,
        *,
        baselines: int = 0,
        may_repeat: bool = True,
    ) -> Plan | Refusal:
        """Lay out `count` profiles of the screen in `budget` jobs, for a job noise of `sigma`.

        `baselines` of the screen have run, 0 lets the layout decide; if `may_repeat`, the best of
        the screen may run twice.
        """
        turned, slots = self.turned if self.rotates else 0, len(self.cells)
        in_screen = baselines or self.screen_baselines * len(self.job_waves)
        assumed_baselines = in_screen
        if not in_screen and count > turned:
            assumed_baselines = max(MIN_DF, len(self.job_waves), slot_baselines(slots, count))
        screened = count - turned + assumed_baselines + self.rotations
        if self.finalists or self.blocks or self.block_baselines:
            width, blocks = min(self.finalists or 3, max(count, 1)), self.blocks or 4
            block_baselines = self.block_baselines or 2
            return Plan(
                profiles=count,
                screen_baselines=assumed_baselines,
                widths=(width,) * blocks,
                block_baselines=block_baselines,
                jobs=screened + blocks * (width + block_baselines),
                rotations=self.rotations,
            )
        if turned and self.rotation and self.rotation.is_usual:
            budget = min(budget, screened + USUAL_BLOCK_JOBS)
        return plan(
            count,
            budget,
            screen_baselines=in_screen,
            waves=len(self.job_waves),
            sigma=sigma,
            slots=slots,
            may_repeat=may_repeat,
            turned=turned,
            rotations=self.rotations,
        )

    @property
    def may_spare(self) -> bool:
        """Whether remaining jobs may become spare blocks: not if the sweep states its blocks.

        With rotations there are none, since profiles without jobs are not bounded anyway.
        """
        return not (self.finalists or self.blocks or self.rotates)

    @property
    def noise(self) -> float:
        """The noise of a job's score, known or assumed, before anything is measured."""
        return self.sigma_prior or DEFAULT_SIGMA

    @property
    def count(self) -> int:
        """Number of runs of declared profiles in the screen, and of slots for derived ones.

        Candidates of a search count only if rotations measure them.
        """
        rules = (rule for rule in self.rules if self.rotates or not isinstance(rule, Search))
        return sum(map(self.runs_of, self.profiles)) + sum(rule.slots for rule in rules)

    def runs_of(self, profile: Profile) -> int:
        """Return how many jobs of the screen, or how many turns of a rotation, a profile takes.

        As jobs, the cell without its deployed flags takes two: if the difference is large, two
        pairs show without a block how much the flags gain.
        """
        is_job = not (self.rotates and self.can_turn(profile))
        return 2 if is_job and profile.id == NO_ENV_ID else 1

    @property
    def least_jobs(self) -> int:
        """How many jobs rank all profiles without rotations, each wave with one baseline."""
        slots = sum(rule.slots for rule in self.rules if not isinstance(rule, Search))
        no_env = sum(profile.id == NO_ENV_ID for profile in self.profiles)
        return len(self.profiles) + no_env + slots + len(self.counts)

    @cached_property
    def counts(self) -> dict[str, int]:
        """Waves in the order in which they run -> number of profiles, derived slots included."""
        return self._by_wave(self.profiles, self.rules) or {"wave1": 0}

    @cached_property
    def job_waves(self) -> dict[str, int]:
        """Wave that has jobs of its own -> number of profiles that no rotation ranks."""
        if not self.rotates:
            return self.counts
        return self._by_wave(
            (profile for profile in self.profiles if profile.id not in self._turning),
            (rule for rule in self.rules if rule not in self._turning_rules),
        )

    def _by_wave(self, profiles: Iterable[Profile], rules: Iterable[Rule]) -> dict[str, int]:
        """Return wave -> its runs of profiles and slots of derived ones, in the order of waves."""
        counts: Counter[str] = Counter()
        for profile in profiles:
            counts[profile.wave] += self.runs_of(profile)
        for rule in rules:
            counts[rule.wave] += rule.slots
        return {wave: counts[wave] for wave in sorted(counts, key=wave_order)}

    @cached_property
    def baselines(self) -> dict[str, int]:
        """Wave that has jobs of its own -> number of baselines in its queue.

        Each wave gets one, and each further one goes to the wave with the most profiles for one.
        """
        waves = self.job_waves
        if self.screen_baselines:
            return dict.fromkeys(waves, self.screen_baselines)
        layout = self.layout
        if isinstance(layout, Plan):
            planned = layout.screen_baselines
        else:
            # a sweep that only ranks has at most five baselines, or one on each slot
            most = max(5, self.screen_slots)
            planned = max(1, min(most, self.budget - self.count))
        baselines = dict.fromkeys(waves, 1)
        for _ in range(planned - len(waves) if waves else 0):
            baselines[max(waves, key=lambda wave: waves[wave] / baselines[wave])] += 1
        return baselines

    @property
    def screen_slots(self) -> int:
        """The number of node slots of the screen."""
        return screen_slots(len(self.cells), self.count)

    @cached_property
    def orders(self) -> Orders:
        """The source of the random orders."""
        slots = tuple(cell.digest for cell in self.cells) if self.slots else ()
        return Orders(cell=self.cell, seed=self.seed, slots=slots)

    def queues(
        self, profiles: Sequence[Profile], *, before: str = "", until: str = ""
    ) -> Iterator[Segment]:
        """Yield the queues of the waves in order.

        They end with the wave `until`, or with the last wave before `before`; "" sets no end.
        """
        for at, wave in enumerate(self.counts):
            if before and wave_order(wave) >= wave_order(before):
                return
            if until and wave_order(wave) > wave_order(until):
                return
            in_wave = [profile for profile in profiles if profile.wave == wave]
            turned = [profile for profile in in_wave if self.rotates and self.can_turn(profile)]
            jobs = [profile for profile in in_wave if profile not in turned]
            trials: tuple[Trial, ...] = ()
            if jobs or not self.rotates:
                trials = self.orders.segment(
                    wave,
                    [(profile, run) for profile in jobs for run in range(self.runs_of(profile))],
                    baselines=self.baselines.get(wave, 1),
                    # Single baselines are spread out: one line goes through those of all waves.
                    lone=at / max(len(self.counts) - 1, 1),
                )
            ranked = (
                self.orders.trial(profile, wave, position=number)
                for profile in turned
                for number in range(self.rankings(profile))
            )
            yield Segment(wave=wave, trials=(*trials, *ranked))

    def read(self, history: History, declared: Mapping[str, Profile]) -> Past:
        """Return the trials of the sweep; `declared` maps ids to profiles."""
        return read(history, protocols=self.orders.protocols, declared=declared)


def _has_source(rule: Rule, sources: Sequence[Profile | Rule]) -> bool:
    """Return whether one of these profiles and rules is in a wave before that of a rule."""
    return any(wave_order(source.wave) < wave_order(rule.wave) for source in sources)


def _check_layout(sweep: TuningPlan, *, where: str) -> None:
    """Refuse a sweep whose trials exceed its budget, or whose blocks cannot show the noise.

    Raises:
        ConfigError: says the number of jobs, or the degrees of freedom.
    """
    if sweep.searches and not sweep.rotates:
        sweep = sweep.as_jobs  # candidates of a search never run as jobs of their own
    layout, budget = sweep.layout, sweep.budget
    profile_jobs = sweep.count - (sweep.turned if sweep.rotates else 0)
    screened = profile_jobs + sum(sweep.baselines.values()) + sweep.rotations
    jobs = layout.jobs if isinstance(layout, Plan) else screened
    if jobs > budget:
        raise ConfigError(
            f"{where}: {sweep.count} profiles and their baselines need {jobs} jobs, "
            f"the budget is {budget}; raise the budget or declare fewer"
        )
    if isinstance(layout, Plan) and layout.df < MIN_DF:
        raise ConfigError(
            f"{where}: {layout.blocks} blocks of {layout.finalists} finalists and "
            f"{layout.block_baselines} baselines leave {layout.df} degrees of freedom, "
            f"{MIN_DF} are needed; add a block or a baseline"
        )


def _check_rules(sweep: TuningPlan, *, where: str) -> None:
    """Refuse rules that can add nothing, or are named twice, and selected names that are unknown.

    Raises:
        ConfigError: names the wave, or the name.
    """
    rules, profiles = sweep.rules, sweep.profiles
    known = {BASELINE_ID, *(profile.id for profile in profiles)}
    kinds = [(rule.kind, rule.wave) for rule in rules]
    sources: list[Profile | Rule] = [*profiles]
    sources += [rule for rule in rules if isinstance(rule, Singles | Search)]
    for rule in rules:
        if not (isinstance(rule, Singles | Search) or _has_source(rule, sources)):
            raise ConfigError(
                f"{where}: {rule.wave} is derived from the waves before it, and no profile is in "
                f"one of them; declare single flags in an earlier wave, or name a later one"
            )
        if kinds.count((rule.kind, rule.wave)) > 1:
            raise ConfigError(
                f"{where}: {rule.wave} has two rules of the kind {rule.kind!r}; give one more slots"
            )
    names = {slot.name for slots in sweep.places.values() for slot in slots}
    candidates = (rule.candidates for rule in rules if isinstance(rule, Singles))
    for taken in sorted(names & known.union(*({arm.id for arm in arms} for arms in candidates))):
        raise ConfigError(
            f"{where}: the id {taken!r} is the name of a slot of a derived wave; choose another id"
        )
    for unknown in sorted((sweep.selected or frozenset()) - known - names):
        raise ConfigError.unknown("profile", unknown, valid=known | names, where=where)
