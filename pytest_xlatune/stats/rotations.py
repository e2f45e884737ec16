"""Several rotations: how many, of which profiles, what they decide, and the check by ordinary jobs.

A rotation is a block: a process of its own, in which each program was compiled anew. What a
contrast varies by from one rotation to the next is the noise that decides, and never what its turns
say. The first rotation ranks all profiles; the best few stand in the others, which alone decide.
What they prove is then run as ordinary jobs, as it would be deployed.

This module must not know of turns, trials or logs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, median, variance

from pytest_xlatune.model.profile import BASELINE_ID
from pytest_xlatune.model.reason import Reason, Why
from pytest_xlatune.model.record import Real, Record
from pytest_xlatune.model.result import Comparison, VerdictKind, relative
from pytest_xlatune.model.rotation_score import RotationScore, is_baseline
from pytest_xlatune.stats.blocks import BlockFit, BlockScore, fit_blocks
from pytest_xlatune.stats.compare import (
    EQUIVALENCE,
    NoComparison,
    compare,
    decide,
    standard_error,
    winners,
)
from pytest_xlatune.stats.design import (
    MIN_DF,
    SWEEP_ALPHA,
    Refusal,
    design_df,
    dunnett,
    mde80,
    selected80,
    t_quantile,
)
from pytest_xlatune.stats.rounds import shuffled

JOBS = 10  # of a sweep of rotations, the look before and the check behind them included
LOOK = 1  # job of the baseline alone, which shows whether programs can take turns at all
COPIES = 3  # of the baseline in each rotation: about the root of the profiles
WIDTH = 8  # profiles of the rotations that decide
CHECKS = 4  # ordinary jobs that check the deployed form
# guesses, where nothing was measured: of a job its start, and of that the compilation; pull, init
# and compilation of a large model take about 2, 3 and 4 minutes, 15 of its steps 7
START_SHARE, COMPILE_SHARE = 0.5, 0.4
LEAST = 3  # rotations that decide
_MOST = 12


class JobPace(Record, frozen=True, kw_only=True):
    """What the time of a job is made of.

    Attributes:
        start_s: until its first step is over, with the one compilation of an ordinary job.
        step_s: of a step.
        compile_s: of each further program.
        jobs: measured ones behind it; 0 is a guess.
        compilations: measured ones; 0 is a guess.
    """

    start_s: Real
    step_s: Real
    compile_s: Real
    jobs: int = 0
    compilations: int = 0

    @classmethod
    def guessed(cls, limit_s: float, steps: int) -> JobPace:
        """Return the pace of a job of so many steps that takes its whole time limit."""
        start_s = START_SHARE * limit_s
        return cls(
            start_s=start_s,
            step_s=(limit_s - start_s) / max(steps, 1),
            compile_s=COMPILE_SHARE * start_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWork:
    """What jobs have to do: steps of the trainer, and programs beyond the one of each start."""

    jobs: int
    steps: int
    compilations: int = 0

    def __add__(self, other: JobWork) -> JobWork:
        return JobWork(
            jobs=self.jobs + other.jobs,
            steps=self.steps + other.steps,
            compilations=self.compilations + other.compilations,
        )

    def seconds(self, pace: JobPace) -> float:
        """Return how long the jobs take, one after the other."""
        compiling_s = self.compilations * pace.compile_s
        return self.jobs * pace.start_s + self.steps * pace.step_s + compiling_s


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLayout:
    """How a rotation is laid out in steps."""

    turn_steps: int
    rounds: int

    @classmethod
    def of(cls, steps: int) -> TurnLayout:
        """Return turns and rounds of about so many steps of each program, eight at least."""
        turn_steps = next(turn for least, turn in _TURN_STEPS if steps >= least)
        rounds = min(max(steps // turn_steps, _ROUNDS[0]), _ROUNDS[1])
        return cls(turn_steps=turn_steps, rounds=rounds)

    def steps(self, programs: int) -> int:
        """Return the steps of a rotation of so many programs."""
        return self.turn_steps * self.rounds * programs

    def sharpened(self, ranked: RotationScore, pace: JobPace) -> TurnLayout:
        """Return the layout that decides: with more rounds where the turns are noisy.

        As many steps as bring what turns leave open of a change down to what counts as none, and as
        take no longer than a program compiles.

        Args:
            ranked: the rotation before, laid out as this.
            pace: of the jobs so far.
        """
        own = self.steps(1)
        errors = [math.inf if each.error is None else each.error for each in ranked.programs]
        wanted = own * (median(errors) / EQUIVALENCE) ** 2
        more = min(wanted, pace.compile_s / pace.step_s)
        return TurnLayout.of(int(more)) if more > own else self


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationPlan:
    """The rotations of a sweep.

    Attributes:
        profiles: that rotate.
        widths: profiles of each rotation in turn; the first one only ranks.
        copies: of the baseline in each.
        checks: ordinary jobs, at most, that check the deployed form behind them.
        searched: candidates of each further rotation that ranks, in which values are searched.
    """

    profiles: int
    widths: tuple[int, ...]
    copies: int = COPIES
    checks: int = CHECKS
    searched: tuple[int, ...] = ()

    @property
    def jobs(self) -> int:
        """Jobs at most: the check needs none where nothing won."""
        return LOOK + len(self.searched) + len(self.widths) + self.checks

    @property
    def deciding(self) -> int:
        """How many rotations decide: all but the first."""
        return len(self.widths) - 1

    def load(self, turns: TurnLayout, *, first_steps: int) -> JobWork:
        """Return what its rotations have to do; the first steps run before the first turn."""
        programs = [width + self.copies for width in (*self.searched, *self.widths)]
        return JobWork(
            jobs=len(programs),
            steps=sum(map(turns.steps, programs)) + first_steps * len(programs),
            compilations=sum(programs),
        )

    @property
    def df(self) -> int:
        """Residual degrees of freedom of those."""
        return design_df(self.widths[-1], self.copies, self.deciding)

    def turns(self, *, job_steps: int, jobs: int) -> TurnLayout:
        """Return turns and rounds: all rotations run no more steps than the jobs they replace.

        So rotations save start-ups and queues, whatever a step takes: 8 steps of a profile in each
        where 50 jobs have 15 steps each. Two rounds of four steps are the least.

        Args:
            job_steps: of an ordinary job of this sweep.
            jobs: ordinary jobs that would do without rotations.
        """
        programs = sum(self.widths) + len(self.widths) * self.copies
        return TurnLayout.of(max(jobs - LOOK - self.checks, 0) * job_steps // programs)

    def sees(
        self, sigma: float, *, share: float, of_turns: float = 0.0, alpha: float = SWEEP_ALPHA
    ) -> float:
        """Return the relative effect of one of the profiles that is found with 80 % power.

        Args:
            sigma: job noise.
            share: of its variance, what the programs of one process have in common.
            of_turns: what the turns of a rotation leave open of a program's level, a log.
            alpha: of the rotations.
        """
        own = math.hypot(sigma * math.sqrt(1 - share), of_turns)
        decided = self.widths[-1]
        critical = dunnett(decided, self.df, control_weight=self.copies, alpha=alpha)
        spread = (1 + 1 / self.copies) / self.deciding
        least = mde80(own, critical=critical, df=self.df, variance=spread)
        found = selected80(self.profiles, self.widths[1:], self.copies, alpha=alpha)
        return max(relative(found * own), least)

    @property
    def shape(self) -> Reason:
        """The rotations in words: `1 of 25 profiles that ranks, 5 of the best 8`."""
        return Reason(
            Why.ROTATION_LAYOUT,
            profiles=self.widths[0],
            deciding=self.deciding,
            best=self.widths[-1],
            copies=self.copies,
            checks=self.checks,
        )


# steps of a turn by the steps that a profile has in a rotation; two of each do not count. Rounds
# first, as what disturbs a loaded machine outlasts a turn: between five rotations at a load of 9 to
# 17 a program differed by .22, a log, in 4 rounds of 6 steps, by .12 in 6 of 4
_TURN_STEPS = ((64, 8), (32, 6), (0, 4))
_ROUNDS = (2, 16)


def plan_rotations(
    profiles: int,
    jobs: int = JOBS,
    *,
    best: int = 0,
    deciding: int = 0,
    searched: Sequence[int] = (),
) -> RotationPlan | Refusal:
    """Lay out the rotations of so many profiles in so many jobs, look and check included.

    Args:
        profiles: that are ranked in one rotation.
        jobs: at most.
        best: profiles of the rotations that decide; 0 is the usual number.
        deciding: rotations that decide, three at least; 0 is what the jobs allow.
        searched: candidates of the rotations in which values are searched, which rank as well.
    """
    ranking = [*([profiles] if profiles > 0 else []), *searched]
    every = sum(ranking)
    width = min(every, best or WIDTH)
    stated = max(deciding, LEAST) if deciding else _MOST
    deciding = min(jobs - LOOK - len(ranking) - CHECKS, stated)
    if every < 1 or deciding < LEAST:
        needed = LOOK + max(len(ranking), 1) + LEAST + CHECKS
        return Refusal(why=Reason(Why.FEW_JOBS_TO_ROTATE, jobs=jobs, needed=needed))
    widths = (ranking[0],) + (width,) * deciding
    return RotationPlan(profiles=every, widths=widths, searched=tuple(ranking[1:]))


def best_of(ranked: RotationScore, *, width: int, arms: Collection[str]) -> tuple[str, ...]:
    """Return the best of `arms` in a rotation that ranks, the first one first."""
    own = [each for each in ranked.programs if each.program in arms]
    own.sort(key=lambda each: (-each.change, each.program))
    return tuple(each.program for each in own[:width])


def as_blocks(scores: Sequence[RotationScore]) -> list[BlockScore]:
    """Return rotations as blocks: each copy of the baseline is a job of the control."""
    return [
        BlockScore(
            block=at,
            arm=BASELINE_ID if is_baseline(each.program) else each.program,
            value=score.level + each.change,
        )
        for at, score in enumerate(scores)
        for each in score.programs
    ]


def fit_rotations(scores: Sequence[RotationScore]) -> BlockFit | None:
    """Fit rotations and profiles; its sigma is what a program differs by between rotations."""
    return fit_blocks(as_blocks(scores), control=BASELINE_ID)


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationDecision:
    """What rotations decide of a profile, before the deployed form is checked."""

    kind: VerdictKind
    comparison: Comparison


def decide_rotations(
    fit: BlockFit | None, arms: Collection[str], *, alpha: float = SWEEP_ALPHA
) -> Mapping[str, RotationDecision | NoComparison]:
    """Decide on the profiles that stood in all deciding rotations, which share `alpha`."""
    if fit is None:
        reason = Reason(Why.FEW_DF, df=0, needed=MIN_DF)
        return dict.fromkeys(sorted(arms), NoComparison(reason=reason))
    family = max(len(arms), 1)
    told = {arm: compare(fit, arm, family=family, alpha=alpha) for arm in sorted(arms)}
    found = {arm: each for arm, each in told.items() if isinstance(each, Comparison)}
    faster = winners(fit, found, family=family, alpha=alpha)
    return {
        arm: RotationDecision(
            kind=VerdictKind.FASTER if arm in faster else decide(each), comparison=each
        )
        if isinstance(each, Comparison)
        else each
        for arm, each in told.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class OrdinaryNoise:
    """The noise of one ordinary job of the cell, and the degrees of freedom behind it."""

    sigma: float
    df: float


def job_noise(scores: Sequence[RotationScore], fit: BlockFit | None) -> OrdinaryNoise | None:
    """Return the noise of an ordinary job as rotations show it; None with too few of them.

    The levels of rotations differ by what the programs of a process have in common, and drift; the
    programs of one by their own part. An ordinary job has both. Degrees of freedom after
    F. E. Satterthwaite, Biometrics Bulletin 2, 1946.
    """
    if fit is None or fit.df < 1 or len(scores) < LEAST or not math.isfinite(fit.sigma):
        return None
    copies = max(fit.n_control / fit.n_blocks, 1.0)
    common = variance(each.level for each in scores)
    own = fit.sigma**2 * (1 - 1 / copies)
    both = common + own
    if both <= 0:
        return None
    df = both**2 / (common**2 / (len(scores) - 1) + own**2 / fit.df)
    return OrdinaryNoise(sigma=math.sqrt(both), df=df)


def check_jobs(won: Sequence[str], *, rng_seed: str, jobs: int = CHECKS) -> tuple[str, ...]:
    """Return the ordinary jobs that check the deployed form of winners, in drawn order.

    Each job is an arm or the baseline. Winners beyond the jobs are not checked, and so never
    called FASTER: the clearest come first. One or two winners leave two for the baseline.
    """
    checked = list(won[: jobs - 1])
    if not checked:
        return ()
    beside = 1 if len(checked) + 2 > jobs else 2
    rest = jobs - beside - len(checked)
    again = checked[: max(rest, 0)]
    found = [*checked, *again, *([BASELINE_ID] * beside)]
    return tuple(shuffled(found, f"checks {rng_seed}"))


# of one check, one-sided: with 1 % a sweep of three true winners of +2 % loses one in a hundred
CHECK_ALPHA = 0.005


class Checked(StrEnum):
    """What ordinary jobs say of the deployed form of a rotation's winner."""

    AGREES = "agrees"
    UNTOLD = "untold"  # too noisy: not even no change at all would contradict
    MORE = "more"  # it gains more than in the rotation
    CONTRADICTS = "contradicts"  # it gains less
    MISSING = "missing"  # no job of it, or of the baseline, has a score

    @property
    def withholds(self) -> bool:
        """Whether FASTER is not said."""
        return self in (Checked.CONTRADICTS, Checked.MISSING)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedCheck:
    """The check of one winner.

    Attributes:
        kind: what it comes to.
        change: log ratio to the baseline in ordinary jobs; None where there is none.
        least: deployed change, above which nothing contradicts; None likewise.
        own, beside: jobs of it, and of the baseline, that have a score.
    """

    kind: Checked
    change: float | None = None
    least: float | None = None
    own: int = 0
    beside: int = 0

    @property
    def withholds(self) -> bool:
        """Whether FASTER is not said."""
        return self.kind.withholds


def check_deployed(
    rotation: Comparison,
    *,
    own: Sequence[float],
    beside: Sequence[float],
    noise: OrdinaryNoise | None,
    alpha: float = CHECK_ALPHA,
) -> DeployedCheck:
    """Hold the deployed form against the rotations: log scores of its jobs and the baseline's.

    It contradicts where the ordinary jobs lie below what the rotations say, by more than both
    noises explain (one-sided, `alpha`). It never makes a winner.
    """
    counted = {"own": len(own), "beside": len(beside)}
    if not own or not beside or noise is None:
        return DeployedCheck(kind=Checked.MISSING, **counted)
    change = fmean(own) - fmean(beside)
    error = math.hypot(
        noise.sigma * math.sqrt(1 / len(own) + 1 / len(beside)), standard_error(rotation)
    )
    reach = t_quantile(1 - alpha, noise.df) * error
    least = rotation.estimate - reach
    if change < least:
        kind = Checked.CONTRADICTS
    elif change > rotation.estimate + reach:
        kind = Checked.MORE
    else:
        kind = Checked.AGREES if least > 0 else Checked.UNTOLD
    return DeployedCheck(kind=kind, change=change, least=least, **counted)
