"""Quantiles of Student's t, computed by scipy, which is loaded when it is used first."""

from __future__ import annotations

import functools
import math
from types import ModuleType


def special() -> ModuleType:
    """Return `scipy.special`; to import it takes a tenth of a second, which most commands save."""
    from scipy import special as functions

    return functions


@functools.lru_cache(maxsize=1024)
def t_quantile(probability: float, df: float) -> float:
    """Return the `probability` quantile of Student's t with `df` degrees of freedom; NaN below 1.

    With infinitely many degrees of freedom it is that of a standard normal.
    """
    if not df >= 1:
        return math.nan
    return float(special().stdtrit(df, probability))
