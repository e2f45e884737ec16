"""Find where in a sequence a level changed: posterior of position and size of one change.

The score of a job is level + (size, from the changed position on) + error. Errors are t-distributed
with 5 degrees of freedom and a given scale, so that a bad job has little influence. The prior of
the position is uniform. This module must not know what the sequence consists of.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DF = 5.0  # degrees of freedom of the errors
SIZES = 19  # number of sizes on the grid from 1 % to 10 %, or further if the ends differ more
_LEVELS = 9
_LEVEL_SIGMAS = 2.5
# without a least size, a quiet trainer's loss of 0.2 % was found and failed tests
LEAST, _MOST = math.log1p(0.01), math.log1p(0.10)  # a smaller change is not looked for


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
    def most(self) -> float:
        """The mass of the likeliest position."""
        return max(self.mass)

    def splitting(self) -> int:
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

    def holding(self, share: float) -> tuple[int, int]:
        """Return the first and last of the likeliest positions that together hold this share."""
        order = sorted(range(len(self.mass)), key=lambda at: -self.mass[at])
        total, kept = 0.0, list[int]()
        for at in order:
            kept.append(self.positions[at])
            total += self.mass[at]
            if total >= share:
                break
        return min(kept), max(kept)


def posterior(
    scores: Sequence[tuple[int, float]],
    *,
    positions: Sequence[int],
    sigma: float,
    expected: float,
    level: float,
    level_error: float,
) -> Posterior:
    """Return where the level rises, given jobs at positions of the sequence.

    Args:
        scores: position and value of each job; the change is a rise.
        positions: ascending positions that may be the first changed one.
        sigma: scale of the errors, above 0.
        expected: size of the change between the ends; the grid of sizes reaches beyond it.
        level: mean value before the change.
        level_error: standard error of `level`.
    """
    places = np.array([place for place, _ in scores])
    values = np.array([value for _, value in scores])
    at = np.asarray(positions)
    sizes = np.geomspace(LEAST, max(_MOST, 1.5 * expected), SIZES)
    levels = level + level_error * np.linspace(-_LEVEL_SIGMAS, _LEVEL_SIGMAS, _LEVELS)
    # a job is before or after the change: one table for each, summed up by position
    before = _log_density(values[:, None] - levels[None, :], sigma)  # jobs x levels
    after = _log_density(
        values[:, None, None] - levels[None, None, :] - sizes[None, :, None], sigma
    )  # jobs x sizes x levels
    is_after = (places[:, None] >= at[None, :]).astype(float)  # jobs x positions
    total = (1.0 - is_after).T @ before  # positions x levels
    summed = np.tensordot(is_after.T, after, axes=1) + total[:, None, :]
    flat = summed.reshape(len(at), -1)
    top = float(flat.max())
    mass = np.exp(flat - top).sum(axis=1)
    mass /= mass.sum()
    return Posterior(positions=tuple(map(int, at)), mass=tuple(map(float, mass)))


def _log_density(errors: NDArray[np.float64], sigma: float) -> NDArray[np.float64]:
    """Return the log density of t errors, up to a constant."""
    log_density: NDArray[np.float64] = -(DF + 1) / 2 * np.log1p((errors / sigma) ** 2 / DF)
    return log_density
