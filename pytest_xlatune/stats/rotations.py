"""How a rotation is laid out in steps, and what jobs and rotations have to do.

A rotation ranks its programs and decides nothing. This module must not know of trials or logs.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_xlatune.model.record import Real, Record

LOOK = 1  # one job of the baseline alone shows whether programs can take turns at all
COPIES = 3  # of the baseline in each rotation: about the root of the profiles
FIRST_STEPS = 3  # of a rotation, before its first turn: the default of `RotationSpec`
RANKINGS = 2  # rotations of a profile, at most: one leaves .5 % of its change open, two .35 %
# Until something is measured, half of a job is start-up and 40 % of start-up is compilation: for a
# large model the pull, the init and the compilation take about 2, 3 and 4 minutes, 15 steps take 7.
START_SHARE, COMPILE_SHARE = 0.5, 0.4


class JobPace(Record, frozen=True, kw_only=True):
    """What the time of a job is made of.

    Attributes:
        start_s: seconds until its first step is over, with the one compilation of a job.
        step_s: seconds of a step.
        compile_s: seconds of each further compilation.
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
        """Return turns and rounds of about so many steps of each program."""
        turn_steps = next(turn for least, turn in _TURN_STEPS if steps >= least)
        rounds = min(max(steps // turn_steps, _ROUNDS[0]), _ROUNDS[1])
        return cls(turn_steps=turn_steps, rounds=rounds)

    @classmethod
    def paced(cls, pace: JobPace) -> TurnLayout:
        """Return the layout in which a program runs about as long as it compiles.

        Short steps so take more rounds, which noise needs; long ones the least, two turns of each.
        """
        return cls.of(int(pace.compile_s / pace.step_s) if pace.step_s > 0 else 0)

    @property
    def rankings(self) -> int:
        """How many rotations rank a profile: long steps cost more than the second one tells."""
        return 1 if self.rounds == _ROUNDS[0] else RANKINGS

    def steps(self, programs: int) -> int:
        """Return the steps of a rotation of so many programs."""
        return self.turn_steps * self.rounds * programs


# steps of a turn by the steps that a program has in a rotation; the first two or three of each do
# not count. Rounds first, as what disturbs a loaded machine outlasts a turn: between five rotations
# at a load of 9 to 17 a program differed by .22, a log, in 4 rounds of 6 steps, by .12 in 6 of 4
_TURN_STEPS = ((64, 8), (32, 6), (0, 5))
_ROUNDS = (2, 16)
