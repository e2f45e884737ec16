"""JSON text for people and for `diff`."""

from __future__ import annotations

import json

from pytest_xlatune.model.record import Json

_LEVELS = 2  # outer levels of objects whose fields have a line each


def pretty_json(value: Json, *, keeps_order: bool = False) -> str:
    """Return JSON text for people and for `diff`, with a newline at its end.

    Each field of the two outer levels of objects has its own line, and so has each item of a list
    of objects there, e.g. each trial. Keys are sorted unless `keeps_order`.

    Raises:
        ValueError: a number is not finite.
    """
    one_line = json.JSONEncoder(sort_keys=not keeps_order, allow_nan=False).encode

    def text(value: Json, levels: int, indent: str) -> str:
        inner = f"{indent}  "
        if isinstance(value, dict) and levels:
            keys = value if keeps_order else sorted(value)
            parts = [f"{one_line(key)}: {text(value[key], levels - 1, inner)}" for key in keys]
            opening, closing = "{}"
        elif isinstance(value, list) and any(isinstance(part, dict | list) for part in value):
            parts = [one_line(part) for part in value]
            opening, closing = "[]"
        else:
            return one_line(value)
        lines = f",\n{inner}".join(parts)
        return f"{opening}\n{inner}{lines}\n{indent}{closing}" if parts else opening + closing

    return text(value, _LEVELS, "") + "\n"
