"""What a rotation measured: its turns, and the contrast of each program with the baseline.

Pure values: `stats/rounds.py` makes them of step lines, a trial's result holds them, reports show
them. The spec and the journal of a rotation are in `model/rotation.py`.
"""

from __future__ import annotations

from pytest_xlatune.model.message import Message
from pytest_xlatune.model.profile import BASELINE_ID
from pytest_xlatune.model.record import Real, Record


def copies(count: int) -> tuple[str, ...]:
    """Return the names under which the baseline stands in a rotation so many times."""
    return (BASELINE_ID, *(f"{BASELINE_ID}~{at}" for at in range(2, count + 1)))[:count]


def is_baseline(program: str) -> bool:
    """Whether a program of a rotation is the cell as deployed, or a copy of it."""
    # no profile's id has a tilde
    return program.partition("~")[0] == BASELINE_ID


class MeasuredTurn(Record, frozen=True, kw_only=True):
    """One turn of a program, as the trainer's own step lines tell it.

    Attributes:
        program: the program that had the turn.
        before: the program that had the turn before; "" for the first turn.
        round: from 0.
        first_step: id of its first step, those that are left out included.
        steps: how many of its steps are kept.
        log_step_s: log of the median seconds of a kept step.
    """

    program: str
    before: str
    round: int
    first_step: int
    steps: int
    log_step_s: Real


class NoTurns(Record, frozen=True, kw_only=True):
    """Why nothing of a rotation can be told."""

    reason: Message


class ProgramChange(Record, frozen=True, kw_only=True):
    """One program of a rotation against the baseline.

    Attributes:
        program: which.
        change: log of its speed over the mean of the baseline's copies; above 0 is faster.
        error: its standard error from the turns alone; what a program differs by from one process
            to the next is not in it. None where there are too few turns.
        turns: how many of its turns count.
    """

    program: str
    change: Real
    error: Real | None
    turns: int


class RotationScore(Record, frozen=True, kw_only=True):
    """What the turns of one rotation say; a test rests on several of these, never on turns.

    Attributes:
        level: log of the baseline's steps a second, the mean of its copies.
        programs: of each program that had turns, in the order of the spec; the baseline and its
            copies too, which differ by what the process makes of one program twice.
        turn_sd: residual standard deviation of a turn, as a log; None with too few turns.
        turns: all that were measured, in order.
        tokens: of a device in a step; None where the log does not print TGS.
    """

    level: Real
    programs: tuple[ProgramChange, ...]
    turn_sd: Real | None
    turns: tuple[MeasuredTurn, ...] = ()
    tokens: Real | None = None

    def of(self, program: str) -> ProgramChange | None:
        """Return what a program came to; None where it had no turns."""
        return next((change for change in self.programs if change.program == program), None)
