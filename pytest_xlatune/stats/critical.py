"""Quantiles that turn an error rate into a bound: Student's t, Bonferroni, Dunnett.

Pure numbers, no randomness: the same question has the same digits. Exact for the designs used here
(one control, equal correlation); an unbalanced stage takes Bonferroni, which needs neither.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt
from scipy import special

_MIDDLE = (1e-13, 1 - 1e-13)  # of a distribution, by its quantiles


@functools.lru_cache(maxsize=1024)
def t_quantile(probability: float, df: float) -> float:
    """Return the `probability` quantile of Student's t with `df` degrees of freedom."""
    return float(special.stdtrit(df, probability))


def bonferroni(arms: int, df: float, *, alpha: float) -> float:
    """Return the one-sided critical value for `arms` comparisons of any correlation."""
    return t_quantile(1 - alpha / arms, df)


@functools.lru_cache(maxsize=1024)
def dunnett(arms: int, df: int, *, control_weight: float, alpha: float) -> float:
    """Return the one-sided critical value of `arms` comparisons with one control.

    The control has `control_weight` times the observations of an arm, so that the comparisons
    correlate by rho = 1 / (1 + control_weight). Solves P(max_i T_i <= c) = 1 - alpha, with

        P = E_s E_z Phi((c s - sqrt(rho) z) / sqrt(1 - rho)) ** arms,

    z standard normal and df s^2 chi-squared (C. W. Dunnett, JASA 50, 1955), by Gauss quadrature.
    """
    if arms == 1:
        return t_quantile(1 - alpha, df)
    from scipy import optimize  # noqa: PLC0415 - slow to import, and few processes come here

    rho = 1 / (1 + control_weight)
    z, z_weights = np.polynomial.hermite_e.hermegauss(48)
    z_weights = z_weights / math.sqrt(2 * math.pi)
    # only the middle of s: the density does the weighting
    nodes, u_weights = np.polynomial.legendre.leggauss(64)
    low, high = (math.sqrt(2 * float(special.gammaincinv(df / 2, p)) / df) for p in _MIDDLE)
    s = low + (high - low) * (nodes + 1) / 2
    s_weights = u_weights / 2 * (high - low) * _chi2_density(df * s * s, df) * 2 * df * s

    def excess(c: float) -> float:
        inner = (c * s[:, None] - math.sqrt(rho) * z[None, :]) / math.sqrt(1 - rho)
        return float(s_weights @ (special.ndtr(inner) ** arms) @ z_weights) - (1 - alpha)

    return float(optimize.brentq(excess, 0.0, bonferroni(arms, df, alpha=alpha) + 1e-6, xtol=1e-10))


def _chi2_density(x: npt.NDArray[np.float64], df: int) -> npt.NDArray[np.float64]:
    """Return the density of chi-squared; scipy.stats has it, and is slow to import."""
    log_norm = special.gammaln(df / 2) + math.log(2) * df / 2
    return np.asarray(np.exp(special.xlogy(df / 2 - 1, x) - x / 2 - log_norm))
