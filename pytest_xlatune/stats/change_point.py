"""Find where in a sequence a level changed: the posterior of the position of one change.

The score of a job is the level, plus the size of the change from its position on, plus an error.
Errors are t-distributed with 5 degrees of freedom and a given scale, so that a bad job has little
influence. The prior of the position is uniform. This module must not know what the sequence
consists of.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DF = 5.0  # degrees of freedom of the errors
_SIZES = 19  # number of sizes on the grid from 1 % to 10 %, or further if the ends differ more
_LEVELS = 9  # number of levels on the grid around the given one
_LEVEL_SIGMAS = 2.5  # standard errors of the level that this grid reaches in both directions
# The smallest change that is searched for: a change of 0.2 % in a quiet trainer must not fail
# tests.
LEAST_CHANGE = math.log1p(0.01)
_MOST_CHANGE = math.log1p(0.10)  # the largest, unless the ends differ by more


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """The probability of each position to be the first that changed.

    Attributes:
        positions: ascending positions in the sequence that may be the first changed one.
        mass: the probability of each position; they sum to 1.
    """

    positions: tuple[int, ...]
    mass: tuple[float, ...]

    @property
    def likeliest(self) -> int:
        """The position with the most mass, the first of equal ones."""
        return self.positions[max(range(len(self.mass)), key=lambda at: (self.mass[at], -at))]

    @property
    def largest_mass(self) -> float:
        """The mass of the likeliest position."""
        return max(self.mass)

    def halving_position(self) -> int:
        """Return the position whose measurement halves the mass best.

        If it has changed, the change lies there or before. The last position is known to have
        changed, so measuring it tells nothing.
        """
        below, best, position = 0.0, math.inf, self.positions[0]
        for at, mass in zip(self.positions[:-1], self.mass[:-1], strict=True):
            below += mass
            if abs(below - 0.5) < best:
                best, position = abs(below - 0.5), at
        return position

    def interval(self, share: float) -> tuple[int, int]:
        """Return the first and last of the likeliest positions that together hold this share."""
        order = sorted(range(len(self.mass)), key=lambda at: -self.mass[at])
        total, likely_positions = 0.0, list[int]()
        for at in order:
            likely_positions.append(self.positions[at])
            total += self.mass[at]
            if total >= share:
                break
        return min(likely_positions), max(likely_positions)


def posterior(
    scores: Sequence[tuple[int, float]],
    *,
    positions: Sequence[int],
    sigma: float,
    expected: float,
    level: float,
    level_error: float,
) -> Posterior:
    """Return the posterior of the position at which the level rises, from jobs at positions.

    Args:
        scores: position and value of each job; the change is a rise.
        positions: ascending positions that may be the first changed one.
        sigma: scale of the errors, above 0.
        expected: difference between the ends; the grid of sizes reaches 1.5 times as far.
        level: mean value before the change.
        level_error: standard error of `level`.
    """
    places = np.array([place for place, _ in scores])
    values = np.array([value for _, value in scores])
    first_changed = np.asarray(positions)
    sizes = np.geomspace(LEAST_CHANGE, max(_MOST_CHANGE, 1.5 * expected), _SIZES)
    levels = level + level_error * np.linspace(-_LEVEL_SIGMAS, _LEVEL_SIGMAS, _LEVELS)
    # A job runs before or after the change. There is a table of log densities for each case, and
    # they are summed up for each position.
    before = _log_density(values[:, None] - levels[None, :], sigma)  # jobs x levels
    after = _log_density(
        values[:, None, None] - levels[None, None, :] - sizes[None, :, None], sigma
    )  # jobs x sizes x levels
    is_after = (places[:, None] >= first_changed[None, :]).astype(float)  # jobs x positions
    total = (1.0 - is_after).T @ before  # positions x levels
    summed = np.tensordot(is_after.T, after, axes=1) + total[:, None, :]
    by_position = summed.reshape(len(first_changed), -1)
    # the largest value is subtracted, so that no exponential overflows
    mass = np.exp(by_position - float(by_position.max())).sum(axis=1)
    mass /= mass.sum()
    return Posterior(positions=tuple(map(int, first_changed)), mass=tuple(map(float, mass)))


def _log_density(errors: NDArray[np.float64], sigma: float) -> NDArray[np.float64]:
    """Return the log density of t errors, up to a constant."""
    log_density: NDArray[np.float64] = -(DF + 1) / 2 * np.log1p((errors / sigma) ** 2 / DF)
    return log_density
