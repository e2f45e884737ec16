"""The measurement of a rotation: its turns, and each program compared with the baseline.

Pure values: `stats/rounds.py` makes them from step lines, trial results contain them, and reports
show them. The spec and the journal of a rotation are in `model/rotation.py`.
"""

from __future__ import annotations

from pytest_xlatune.model.message import Message
from pytest_xlatune.model.profile import BASELINE_ID
from pytest_xlatune.model.record import Real, Record


def copies(count: int) -> tuple[str, ...]:
    """Return the ids of `count` copies of the baseline, e.g. three for 3: the id, id~2 and id~3."""
    return tuple(BASELINE_ID if at == 1 else f"{BASELINE_ID}~{at}" for at in range(1, count + 1))


def is_baseline(program: str) -> bool:
    """Return whether a program of a rotation is the deployed cell or a copy of it."""
    # the id of a profile cannot contain a tilde
    return program.partition("~")[0] == BASELINE_ID


class MeasuredTurn(Record, frozen=True, kw_only=True):
    """One turn of a program, measured from the trainer's step lines.

    Attributes:
        program: the program that had the turn.
        before: the program that had the turn before; "" for the first turn.
        round: the number of the round, from 0.
        first_step: id of its first step, even if that step does not count.
        steps: how many of its steps count.
        log_step_s: log of the median seconds of a counted step.
    """

    program: str
    before: str
    round: int
    first_step: int
    steps: int
    log_step_s: Real


class NoTurns(Record, frozen=True, kw_only=True):
    """Why a rotation has no score."""

    reason: Message


class ProgramChange(Record, frozen=True, kw_only=True):
    """One program of a rotation compared with the baseline.

    Attributes:
        program: the id of the program.
        change: log of its speed relative to the mean of the baseline's copies; above 0 is faster.
        error: standard error of `change` from the turns alone, which does not include differences
            between processes. None if there are too few turns.
        turns: how many of its turns count.
    """

    program: str
    change: Real
    error: Real | None
    turns: int


class RotationScore(Record, frozen=True, kw_only=True):
    """The score of one rotation; tests compare several of these, never turns.

    Attributes:
        level: log of the baseline's steps per second, the mean over its copies.
        programs: one entry for each program that had turns, in the order of the spec. The baseline
            and its copies are included; they differ only by chance within the process.
        turns: all measured turns, in order.
        tokens: tokens of a device in a step; None if the log does not print TGS.
    """

    level: Real
    programs: tuple[ProgramChange, ...]
    turns: tuple[MeasuredTurn, ...] = ()
    tokens: Real | None = None

    def of(self, program: str) -> ProgramChange | None:
        """Return the change of a program; None if it had no turns."""
        return next((change for change in self.programs if change.program == program), None)
