"""Write numbers as text, the same way everywhere, and compare spellings of values.

A missing value is a dash, and NaN is "nan". Relative changes are fractions and are shown in
percent. XLA uses different spellings of one value (`1` and `true`, `on` and
`COLLECTIVE_..._MODE_ON`). This module knows no flag and no document.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

# an integer:  -1    1073741824
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")

# characters that steer a terminal or hide text, and surrogates:  \x1b  \x9b  \r  U+202E
_CONTROL = re.compile(
    r"\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    r"\ud800-\udfff\U000e0000-\U000e007f]"
)
# a line that the log of a pipeline takes for a command:  ::error::text
#   ##[error]text    ##vso[task...]
_PIPELINE_COMMAND = re.compile(r"^[^\S\n]*:(?=:)|#(?=#\w*\[)", re.MULTILINE)

_SWITCH = {"1": "true", "0": "false", "t": "true", "f": "false", "": "true"}
_SWITCHES = frozenset({"true", "false", *_SWITCH})
# a number for XLA, without a suffix:  1073741824    -1    0.75    1e-3
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?([eE][-+]?\d+)?|[-+]?\.\d+([eE][-+]?\d+)?")
# the full name of an enum value:  COLLECTIVE_PIPELINING_MODE_ON
_ENUM_NAME = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")


def printable(text: str) -> str:
    """Return a text that is safe for a terminal, a document and the log of a pipeline.

    A ledger or a log may contain any character. Line ends and tabs stay.
    """
    return _PIPELINE_COMMAND.sub(r"\g<0> ", _CONTROL.sub(" ", text))


def to_integer(text: str) -> int | None:
    """Return the integer in a text; None if there is none, or it has more than 18 digits.

    Python raises ValueError for integers of thousands of digits.

    >>> to_integer(" 42 "), to_integer("4.2"), to_integer("9" * 5000)
    (42, None, None)
    """
    text = text.strip()
    return int(text) if _INTEGER.fullmatch(text) else None


def same_value(one: str, other: str, *, kind: str = "") -> bool:
    """Return whether two spellings are one value.

    Args:
        one: a value as it was written.
        other: the value to compare it with.
        kind: the flag's type, e.g. "bool", "int64", "enum"; "" if unknown. An unknown type is taken
            for a bool only if both values are words of a switch, such as `1` and `true`.
    """
    if one == other:
        return True
    left, right = one.strip().lower(), other.strip().lower()
    if left == right and kind != "string":
        return True
    if kind == "string":
        return False
    if kind == "bool" or (not kind and left and right and {left, right} <= _SWITCHES):
        return _SWITCH.get(left, left) == _SWITCH.get(right, right)
    if is_number(left) and is_number(right):
        return float(left) == float(right) and _digits(left) == _digits(right)
    if "," in left + right:
        return _parts(left) == _parts(right)
    return _is_short_for(left, other) or _is_short_for(right, one)


def is_number(text: str) -> bool:
    """Return whether a text is a number for XLA."""
    return _NUMBER.fullmatch(text.strip()) is not None


def is_relative(value: str) -> bool:
    """Return whether the value of a list flag edits the list (`+FUSION,-CUBLAS`)."""
    parts = [part.strip() for part in value.split(",") if part.strip()]
    return bool(parts) and all(part[0] in "+-" and part[1:2].isalpha() for part in parts)


def _digits(text: str) -> str:
    """Return the digits of an integer, because large ones may be equal as floats; else ""."""
    if re.fullmatch(r"[-+]?\d+", text) is None:
        return ""
    digits = text.lstrip("-+").lstrip("0") or "0"
    return f"-{digits}" if text[0] == "-" and digits != "0" else digits


def _parts(text: str) -> set[str]:
    return {part.strip() for part in text.split(",") if part.strip()}


def _is_short_for(short: str, full: str) -> bool:
    """Return whether a word such as `on` abbreviates COLLECTIVE_PIPELINING_MODE_ON."""
    if not short or _ENUM_NAME.fullmatch(full.strip()) is None:
        return False
    return f"_{short}_" in f"_{full.strip().lower()}_"


ABSENT = "–"  # noqa: RUF001 - a dash, not a minus

_MINUTE_S = 60
_HOUR_S = 60 * _MINUTE_S
_DAY_S = 24 * _HOUR_S


def points(fraction: float | None) -> str:
    """Write a relative change in signed percentage points, e.g. 0.034 as `+3.4`.

    It has one decimal, or two if one would show a change as 0.
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


def fine_percent(fraction: float | None) -> str:
    """Write a fraction, e.g. a noise level, in percent with two decimals: 0.0061 is `0.61 %`."""
    return ABSENT if fraction is None else f"{100 * fraction:.2f} %"


def minute(at_s: float | None) -> str:
    """Write a time since the epoch to the minute, in UTC: `2026-11-24 09:30`."""
    return f"{datetime.fromtimestamp(at_s or 0.0, UTC):%Y-%m-%d %H:%M}"


def interval(ends: tuple[float, float] | None) -> str:
    """Write an interval of relative changes in percentage points, e.g. `[+1.2, +3.4]`."""
    return ABSENT if ends is None else f"[{points(ends[0])}, {points(ends[1])}]"


def significant(value: float | None) -> str:
    """Write four significant digits, and all digits before the point: `28.82`, `15321`."""
    if value is None:
        return ABSENT
    if not math.isfinite(value) or abs(value) >= 1000:  # noqa: PLR2004 - four digits
        return f"{value:.0f}"
    return f"{value:#.4g}"


def rate(tgs: float | None) -> str:
    """Write Tokens/s/device: with one decimal from 100 upwards, else four significant digits."""
    if tgs is not None and math.isfinite(tgs) and abs(tgs) >= 100:  # noqa: PLR2004
        return f"{tgs:.1f}"
    return significant(tgs)


def duration(seconds: float | None) -> str:
    """Write a duration in its two largest units, rounded up to minutes: `2 h 10 min`."""
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


def shortened(text: str, most: int) -> str:
    """Return the beginning of a text, at most `most` characters, cut at the end of a word.

    A secret that is cut would not be recognised and hidden.

    >>> shortened("401 for hf_abcdef", 12), shortened("a" * 9, 4)
    ('401 for', 'aaaa')
    """
    if len(text) <= most:
        return text
    at = max(text.rfind(separator, 0, most + 1) for separator in " \t\n,;\"'")
    return text[:at].rstrip() if at > 0 else text[:most]
