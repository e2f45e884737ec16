"""Where in a sequence a level changed: the posterior over position and size of one change.

Every job's score is level + (size, from the changed position on) + error. Errors are t-distributed
with 5 degrees of freedom, so that a bad job moves little; the scale is given. Positions are equally
likely before anything is measured. This module must not know what stands in the sequence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DF = 5.0  # degrees of freedom of the errors
SIZES = 19  # from 1 % to 10 %, or to what the ends say
_LEVELS = 9
_LEVEL_SIGMAS = 2.5
# a quiet trainer's loss of 0.2 % was taken up as a change before, and failed tests
LEAST, _MOST = math.log1p(0.01), math.log1p(0.10)  # a smaller change is not looked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """How likely each position is the first that changed.

    Attributes:
        positions: places in the sequence that may be it, ascending.
        mass: the probability of each position; they sum to 1.
    """

    positions: tuple[int, ...]
    mass: tuple[float, ...]

    @property
    def likeliest(self) -> int:
        """The position with most mass, the first of equals."""
        return self.positions[max(range(len(self.mass)), key=lambda at: (self.mass[at], -at))]

    @property
    def most(self) -> float:
        """The mass of the likeliest position."""
        return max(self.mass)

    def splitting(self) -> int:
        """Return the position whose measurement splits the mass best: half of it lies before.

        Changed at that position means that the change lies there or before it. The last position
        is known to be changed and tells nothing.
        """
        below, best, position = 0.0, math.inf, self.positions[0]
        for at, mass in zip(self.positions[:-1], self.mass[:-1], strict=True):
            below += mass
            if abs(below - 0.5) < best:
                best, position = abs(below - 0.5), at
        return position

    def holding(self, share: float) -> tuple[int, int]:
        """Return the first and last position of the likeliest ones that hold this share."""
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
    """Return where the level rises, given jobs at places of the sequence.

    Args:
        scores: place and value of each job, a change being a rise.
        positions: ascending places that may be the first changed one.
        sigma: scale of the errors, above 0.
        expected: size of the change as the ends say: the grid of sizes reaches beyond it.
        level: mean value before the change.
        level_error: its standard error.
    """
    places = np.array([place for place, _ in scores])
    values = np.array([value for _, value in scores])
    at = np.asarray(positions)
    sizes = np.geomspace(LEAST, max(_MOST, 1.5 * expected), SIZES)
    levels = level + level_error * np.linspace(-_LEVEL_SIGMAS, _LEVEL_SIGMAS, _LEVELS)
    # a job is before the change or after it: two tables, summed by position
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
