"""When two texts are one value of a flag: `1` and `true`, `on` and `COLLECTIVE_..._MODE_ON`.

What XLA parses, prints and keeps as its default are spelled differently. This module must not know
a flag; where the spelling alone cannot tell, it says None.
"""

from __future__ import annotations

import re

_SWITCH = {"1": "true", "0": "false", "t": "true", "f": "false", "": "true"}
_SWITCHES = frozenset({"true", "false", *_SWITCH})
# a number as XLA takes it; a suffix is none:  1073741824    -1    0.75    1e-3
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?([eE][-+]?\d+)?|[-+]?\.\d+([eE][-+]?\d+)?")
# an enum's full name:  COLLECTIVE_PIPELINING_MODE_ON
_FULL = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")


def same_value(one: str, other: str, *, kind: str = "") -> bool:
    """Return whether two spellings are one value.

    Args:
        one: a value as somebody wrote it.
        other: the value to hold it against.
        kind: the flag's type, e.g. "bool", "int64", "enum"; "" where it is not known, and then a
            switch is one only by its words.
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
    if _NUMBER.fullmatch(low) and _NUMBER.fullmatch(high):
        return float(low) == float(high) and _digits(low) == _digits(high)
    if "," in low + high:
        return _parts(low) == _parts(high)
    return _is_short_for(low, other) or _is_short_for(high, one)


def is_relative(value: str) -> bool:
    """Return whether a list flag's value edits the list (`+FUSION,-CUBLAS`) and replaces none."""
    parts = [part.strip() for part in value.split(",") if part.strip()]
    return bool(parts) and all(part[0] in "+-" and part[1:2].isalpha() for part in parts)


def _digits(text: str) -> str:
    """Keep integers beyond a float's precision apart."""
    return str(int(text)) if re.fullmatch(r"[-+]?\d+", text) else ""


def _parts(text: str) -> set[str]:
    return {part.strip() for part in text.split(",") if part.strip()}


def _is_short_for(short: str, full: str) -> bool:
    """`on` is short for COLLECTIVE_PIPELINING_MODE_ON, `symmetric` for COLLECTIVES_SYMMETRIC_..."""
    if not short or _FULL.fullmatch(full.strip()) is None:
        return False
    return f"_{short}_" in f"_{full.strip().lower()}_"
