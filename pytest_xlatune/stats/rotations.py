"""How a rotation is laid out in steps, and how much work jobs and rotations are.

A rotation ranks its programs and decides nothing. This module must not know of trials or logs.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_xlatune.model.record import Real, Record

LOOK_JOBS = 1  # the look: one job of the baseline alone shows whether programs can take turns
# copies of the baseline in each rotation: about the square root of the number of profiles
COPIES = 3
FIRST_STEPS = 3  # steps of a rotation before its first turn: the default of `RotationSpec`
# The most rotations that rank a profile. One leaves a standard error of .5 %, two leave .35 %.
RANKINGS = 2
# Until something is measured, half of a job is taken as start-up, and 40 % of that as compilation:
# for a large model, image pull, initialisation and compilation take about 2, 3 and 4 minutes, and
# 15 steps take 7.
START_SHARE, COMPILE_SHARE = 0.5, 0.4


class JobPace(Record, frozen=True, kw_only=True):
    """How the time of a job is composed.

    Attributes:
        start_s: seconds until the first step is over, including the one compilation of a job.
        step_s: seconds of a step.
        compile_s: seconds of each further compilation.
        jobs: number of jobs that were measured; 0 means an assumption.
        compilations: number of compilations that were measured; 0 means an assumption.
    """

    start_s: Real
    step_s: Real
    compile_s: Real
    jobs: int = 0
    compilations: int = 0

    @classmethod
    def guessed(cls, limit_s: float, steps: int) -> JobPace:
        """Return the pace of a job with `steps` steps that takes its whole time limit."""
        start_s = START_SHARE * limit_s
        return cls(
            start_s=start_s,
            step_s=(limit_s - start_s) / max(steps, 1),
            compile_s=COMPILE_SHARE * start_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWork:
    """The work of jobs: steps of the trainer, and compilations beyond the first of each job."""

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
        """Return the time of the jobs, one after the other."""
        compiling_s = self.compilations * pace.compile_s
        return self.jobs * pace.start_s + self.steps * pace.step_s + compiling_s


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLayout:
    """How a rotation is laid out in steps."""

    turn_steps: int
    rounds: int

    @classmethod
    def of(cls, steps: int) -> TurnLayout:
        """Return the layout with about `steps` steps for each program."""
        turn_steps = next(turn for least, turn in _TURN_STEPS if steps >= least)
        rounds = min(max(steps // turn_steps, _ROUNDS[0]), _ROUNDS[1])
        return cls(turn_steps=turn_steps, rounds=rounds)

    @classmethod
    def paced(cls, pace: JobPace) -> TurnLayout:
        """Return the layout in which a program runs about as long as it compiles.

        So a program with short steps has more turns, which average noise, and one with long steps
        has only two.
        """
        return cls.of(int(pace.compile_s / pace.step_s) if pace.step_s > 0 else 0)

    @property
    def rankings(self) -> int:
        """How many rotations rank a profile: with long steps, a second one costs too much."""
        return 1 if self.rounds == _ROUNDS[0] else RANKINGS

    def steps(self, programs: int) -> int:
        """Return the number of steps of a rotation of so many programs."""
        return self.turn_steps * self.rounds * programs


# fewest steps of a program in a rotation -> steps of a turn. The first two or three steps of a turn
# do not count. Many rounds are better than long turns, because disturbances
# of a loaded machine outlast a turn: at a load of 9 to 17, log scores of a program in five
# rotations spread by .22 with 4 rounds of 6 steps, and by .12 with 6 rounds of 4.
_TURN_STEPS = ((64, 8), (32, 6), (0, 5))
_ROUNDS = (2, 16)  # fewest and most rounds of a rotation
