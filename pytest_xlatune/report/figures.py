"""Numbers to text, the same way in every artefact. Must not know where a number is shown.

An absent value is a dash; not-a-number is "nan", for it is a value. Relative changes come as
fractions and are shown in percent.
"""

from __future__ import annotations

import math

ABSENT = "–"  # noqa: RUF001 - a dash, not a minus

_MINUTE_S = 60
_HOUR_S = 60 * _MINUTE_S
_DAY_S = 24 * _HOUR_S


def points(fraction: float | None) -> str:
    """Write a relative change in signed percentage points, e.g. 0.034 as `+3.4`.

    One decimal, and two where one would show a change as none.
    """
    if fraction is None:
        return ABSENT
    text = f"{100 * fraction:+.1f}"
    if float(text) == 0 and fraction:
        text = f"{100 * fraction:+.2f}"
    return "+0.0" if float(text) == 0 else text.removeprefix("+" if math.isnan(fraction) else "")


def percent(fraction: float | None) -> str:
    """Write a relative change with its sign, e.g. `+3.4 %`."""
    return ABSENT if fraction is None else f"{points(fraction)} %"


def size(fraction: float | None) -> str:
    """Write a fraction that has no direction, e.g. a noise level, as `0.6 %`."""
    return percent(fraction).removeprefix("+")


def interval(ends: tuple[float, float] | None) -> str:
    """Write an interval of relative changes in percentage points, e.g. `[+1.2, +3.4]`."""
    return ABSENT if ends is None else f"[{points(ends[0])}, {points(ends[1])}]"


def significant(value: float | None) -> str:
    """Write four significant digits, and all digits in front of the point: `28.82`, `15321`."""
    if value is None:
        return ABSENT
    if not math.isfinite(value) or abs(value) >= 1000:  # noqa: PLR2004 - four digits
        return f"{value:.0f}"
    return f"{value:#.4g}"


def rate(tgs: float | None) -> str:
    """Write Tokens/s/device: one decimal from 100 upwards, four significant digits below."""
    if tgs is not None and math.isfinite(tgs) and abs(tgs) >= 100:  # noqa: PLR2004
        return f"{tgs:.1f}"
    return significant(tgs)


def duration(seconds: float | None) -> str:
    """Write a wall time in its two largest units, rounded up to minutes: `2 h 10 min`."""
    if seconds is None or not math.isfinite(seconds):
        return ABSENT
    if seconds < _MINUTE_S:
        return f"{math.ceil(max(seconds, 0))} s"
    minutes = math.ceil(seconds / _MINUTE_S) * _MINUTE_S
    days, rest = divmod(minutes, _DAY_S)
    hours, rest = divmod(rest, _HOUR_S)
    if days:
        return f"{days} d {hours} h" if hours else f"{days} d"
    parts = [f"{hours} h"] if hours else []
    return " ".join([*parts, f"{rest // _MINUTE_S} min"] if rest else parts)


def counted(number: int, noun: str) -> str:
    """Write a number and its noun, e.g. `1 job`, `3 jobs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
