"""JSON text for people and for `diff`: what fits on a line stands on one, keys are sorted."""

from __future__ import annotations

import functools
import itertools
import json
import math
import typing
from collections.abc import Callable, Sequence

from pytest_xlatune.model.record import Json

_COLUMNS = 120
_COLUMNS_OF_ELEMENT = 10_000  # of a list: a trial with its steps, and no cell with its trials
_NUMBERS = frozenset({int, float})


def pretty_json(value: Json, *, keeps_order: bool = False) -> str:
    """Return JSON text for people and for `diff`, one newline at its end.

    What fits on a line stands on one, and so does each element of a list, e.g. a trial. Keys are
    sorted, unless their order is kept.

    Raises:
        ValueError: a number is not finite.
    """
    one_line = json.JSONEncoder(sort_keys=not keeps_order, allow_nan=False).encode
    return _text(value, one_line, depth=0, columns=_COLUMNS, is_sorted=not keeps_order) + "\n"


def _text(
    value: Json, one_line: Callable[[Json], str], *, depth: int, columns: int, is_sorted: bool
) -> str:
    is_flat = isinstance(value, list) and not any(isinstance(x, list | dict) for x in value)
    # written whole on each level before its parts were, a report of 800 profiles took twice as long
    if not isinstance(value, list | dict) or is_flat or not _is_long(value, columns):
        line = one_line(value)
        if not isinstance(value, list | dict) or is_flat or len(line) + 2 * depth <= columns:
            return line
    within = functools.partial(_text, one_line=one_line, depth=depth + 1, is_sorted=is_sorted)
    if isinstance(value, dict):
        opening, closing = "{}"
        keys = sorted(value) if is_sorted else value
        parts = [f"{json.dumps(key)}: {within(value[key], columns=_COLUMNS)}" for key in keys]
    else:
        opening, closing = "[]"
        parts = (
            [f"[{each}]" for each in one_line(value)[2:-2].split("], [")]
            if _are_rows(value)
            else [within(each, columns=_COLUMNS_OF_ELEMENT) for each in value]
        )
    inner, outer = "  " * (depth + 1), "  " * depth
    lines = f",\n{inner}".join(parts)
    return f"{opening}\n{inner}{lines}\n{outer}{closing}"


def _are_rows(value: Sequence[object]) -> bool:
    """Whether values are rows of numbers, such as the times of steps: most of a long job's text."""
    if {*map(type, value)} != {list} or not all(value):
        return False
    rows = typing.cast("Sequence[Sequence[float]]", value)
    kinds = {*map(type, itertools.chain.from_iterable(rows))}
    return kinds <= _NUMBERS and all(map(math.isfinite, itertools.chain.from_iterable(rows)))


def _is_long(value: list[Json] | dict[str, Json], columns: int) -> bool:
    """Whether the line of a value is too long for sure, by how many things its parts hold."""
    # an element mostly fits, and a long look at it takes longer than its line
    depth = 2 if columns == _COLUMNS_OF_ELEMENT else 5
    return len(value) > columns or _least(value, columns, depth=depth) > columns


def _least(value: Json, enough: int, *, depth: int) -> int:
    """Return how many characters a value takes at least; of one that takes enough, part of them."""
    if not depth or not isinstance(value, list | dict):
        return 1 + len(value) if isinstance(value, str | list | dict) else 1
    least = 0
    for each in value.values() if isinstance(value, dict) else value:
        least += _least(each, enough, depth=depth - 1)
        if least > enough:
            break
    return least
