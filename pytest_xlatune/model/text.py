"""Turn numbers into text in the same way in every artefact, and tell when two texts are one value.

An absent value is a dash. Not-a-number is a value: "nan". Relative changes come as fractions and
are shown in percent. XLA parses, prints and keeps the values of flags in different spellings (`1`
and `true`, `on` and `COLLECTIVE_..._MODE_ON`). This module knows no flag and no document.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

# an integer that a program takes:  -1    1073741824
_WHOLE = re.compile(r"[-+]?[0-9]{1,18}")

# what moves a terminal's cursor or turns its text, and half characters:  \x1b  \x9b  \r  U+202E
_UNSEEN = re.compile(
    r"\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    r"\ud800-\udfff\U000e0000-\U000e007f]"
)
# what the log of a pipeline would take for an order:  ::error::text  ##[error]text  ##vso[task...]
_ORDER = re.compile(r"^[^\S\n]*:(?=:)|#(?=#\w*\[)", re.MULTILINE)

_SWITCH = {"1": "true", "0": "false", "t": "true", "f": "false", "": "true"}
_SWITCHES = frozenset({"true", "false", *_SWITCH})
# a number as XLA takes it; a suffix is none:  1073741824    -1    0.75    1e-3
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?([eE][-+]?\d+)?|[-+]?\.\d+([eE][-+]?\d+)?")
# an enum's full name:  COLLECTIVE_PIPELINING_MODE_ON
_FULL = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")


def printable(text: str) -> str:
    """Return a text as a terminal, a document and the log of a pipeline may have it.

    A ledger or a log may hold any character. Ends of lines and tabs stay.
    """
    return _ORDER.sub(r"\g<0> ", _UNSEEN.sub(" ", text))


def whole(text: str) -> int | None:
    """Return the integer that a text writes; None where it is none or of more than 18 digits.

    Python refuses to read or write integers of thousands of digits, with a ValueError.

    >>> whole(" 42 "), whole("4.2"), whole("9" * 5000)
    (42, None, None)
    """
    text = text.strip()
    return int(text) if _WHOLE.fullmatch(text) else None


def same_value(one: str, other: str, *, kind: str = "") -> bool:
    """Return whether two spellings are one value.

    Args:
        one: a value as it was written.
        other: the value to compare it with.
        kind: the flag's type, e.g. "bool", "int64", "enum"; "" where it is unknown. Then only
            the words of a switch, such as `on`, make it one.
    """
    if one == other:
        return True
    low, high = one.strip().lower(), other.strip().lower()
    if low == high and kind != "string":
        return True
    if kind == "string":
        return False
    if kind == "bool" or (not kind and low and high and {low, high} <= _SWITCHES):
        return _SWITCH.get(low, low) == _SWITCH.get(high, high)
    if is_number(low) and is_number(high):
        return float(low) == float(high) and _digits(low) == _digits(high)
    if "," in low + high:
        return _parts(low) == _parts(high)
    return _is_short_for(low, other) or _is_short_for(high, one)


def is_number(text: str) -> bool:
    """Return whether a text is a number as XLA takes it."""
    return _NUMBER.fullmatch(text.strip()) is not None


def is_relative(value: str) -> bool:
    """Return whether a list flag's value edits the list (`+FUSION,-CUBLAS`) and replaces none."""
    parts = [part.strip() for part in value.split(",") if part.strip()]
    return bool(parts) and all(part[0] in "+-" and part[1:2].isalpha() for part in parts)


def _digits(text: str) -> str:
    """Keep integers beyond a float's precision apart."""
    if re.fullmatch(r"[-+]?\d+", text) is None:
        return ""
    digits = text.lstrip("-+").lstrip("0") or "0"
    return f"-{digits}" if text[0] == "-" and digits != "0" else digits


def _parts(text: str) -> set[str]:
    return {part.strip() for part in text.split(",") if part.strip()}


def _is_short_for(short: str, full: str) -> bool:
    """`on` is short for COLLECTIVE_PIPELINING_MODE_ON, `symmetric` for COLLECTIVES_SYMMETRIC_..."""
    if not short or _FULL.fullmatch(full.strip()) is None:
        return False
    return f"_{short}_" in f"_{full.strip().lower()}_"


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


def fine(fraction: float | None) -> str:
    """Write a noise between jobs or steps with two decimals: 0.0061 is `0.61 %`."""
    return ABSENT if fraction is None else f"{100 * fraction:.2f} %"


def minute(at_s: float | None) -> str:
    """Write a time since the epoch to the minute, in UTC: `2026-11-24 09:30`."""
    return f"{datetime.fromtimestamp(at_s or 0.0, UTC):%Y-%m-%d %H:%M}"


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


def begun(text: str, most: int) -> str:
    """Return the beginning of a text, `most` characters at most, without a part of a word.

    Half of a secret is not known as one.

    >>> begun("401 for hf_abcdef", 12), begun("a" * 9, 4)
    ('401 for', 'aaaa')
    """
    if len(text) <= most:
        return text
    at = max(text.rfind(separator, 0, most + 1) for separator in " \t\n,;\"'")
    return text[:at].rstrip() if at > 0 else text[:most]
