"""Frozen dataclasses to JSON values and back.

What crosses a process border or is kept in the ledger is a `Record`: builtin scalars, strings,
lists and dicts after `to_json`, an equal value after `from_json`. Not-a-number and the infinities
are the strings "nan", "inf" and "-inf", for JSON has no other way to say them; an absent value is
null. This module does no input or output.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import types
import typing
from collections.abc import Callable
from enum import Enum
from typing import Any, Self

from pytest_xlatune.model.errors import LedgerError

Json = Any  # None, bool, int, float, str, and lists and str-keyed dicts of them

# of a field that came after the first records were written, `field(default=..., metadata=LATER)`:
# left out at its default, so that what was written before it, digests too, stays the same
LATER = {"is_later": True}

_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class Record:
    """Base of every persisted dataclass. Subclasses are frozen, slotted and keyword-only."""

    __slots__ = ()

    def to_json(self) -> dict[str, Json]:
        """Return this record as builtins only, keyed by field name."""
        return {
            field.name: _encode(value)
            for field in dataclasses.fields(typing.cast("Any", self))
            if (value := getattr(self, field.name)) != field.default
            or "is_later" not in field.metadata
        }

    @classmethod
    def from_json(cls, data: Json) -> Self:
        """Return the record that `to_json` described.

        A field with a default may be missing: an older writer did not know it.

        Raises:
            LedgerError: `data` is no mapping, lacks a field, has an unknown one or a wrong type.
        """
        if not isinstance(data, dict):
            raise LedgerError(f"{cls.__name__}: expected a mapping, found {data!r:.80}")
        fields = _field_types(typing.cast("Any", cls))
        unknown = sorted(data.keys() - fields.keys())
        if unknown:
            raise LedgerError(
                f"{cls.__name__}: unknown field {unknown[0]!r}; written by a newer version?"
            )
        values = {
            name: _decode(kind, data[name], where=f"{cls.__name__}.{name}")
            for name, kind in fields.items()
            if name in data
        }
        try:
            return cls(**values)
        except TypeError as error:
            raise LedgerError(f"{cls.__name__}: {error}") from None


def read_json(text: str | bytes) -> Json:
    """Return the value of a JSON text.

    Raises:
        ValueError: it is no JSON, is nested deeper than a record ever is, or holds an integer of
            thousands of digits.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None


def canonical(value: Json) -> str:
    """Return the one JSON text of a value: sorted keys, no white space, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: Json, *, length: int = 16) -> str:
    """Return the first `length` hexadecimal digits of SHA-256 over the canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:length]


@functools.cache
def _field_types(cls: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(typing.cast("Any", cls))}


def _encode(value: object) -> Json:
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list | frozenset):
        items = sorted(value) if isinstance(value, frozenset) else value
        return [_encode(item) for item in items]
    if isinstance(value, dict):
        return {str(key): _encode(item) for key, item in value.items()}
    if type(value) is float:
        # Python writes them as they are kept:  nan  inf  -inf
        return value if math.isfinite(value) else str(value)
    raise TypeError(f"a record holds builtins only, found {type(value).__name__}: {value!r:.80}")


def _decode(kind: Any, value: Json, *, where: str) -> object:
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        if value is None:
            return None
        kind = next(each for each in typing.get_args(kind) if each is not type(None))
    if kind is Json:
        return value
    origin = typing.get_origin(kind) or kind
    decode = next((rule for base, rule in _RULES if issubclass(origin, base)), None)
    try:
        if decode is not None:
            return decode(kind, value, where)
    except (KeyError, OverflowError, TypeError, ValueError):
        pass
    raise LedgerError(f"{where}: expected {kind}, found {value!r:.80}")


def _decode_items(kind: Any, value: Json, where: str) -> object:
    if not isinstance(value, list):
        raise TypeError
    sort, kinds = typing.get_origin(kind), typing.get_args(kind)
    if sort is frozenset or kinds[-1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    pairs = zip(kinds, value, strict=True)
    return sort(_decode(each, item, where=where) for each, item in pairs)


def _decode_dict(kind: Any, value: Json, where: str) -> object:
    of = typing.get_args(kind)[1]
    if not isinstance(value, dict):
        raise TypeError
    return {key: _decode(of, item, where=where) for key, item in value.items()}


def _decode_float(_: Any, value: Json, __: str) -> object:
    if isinstance(value, str):
        return _NON_FINITE[value]
    return float(_decode_scalar(float if isinstance(value, float) else int, value, ""))


def _decode_scalar(kind: Any, value: Json, _: str) -> Any:
    if type(value) is not kind:
        raise TypeError
    return value


# first match decides; bool and str enums come before what they derive from
_RULES: tuple[tuple[type, Callable[[Any, Json, str], object]], ...] = (
    (Record, lambda kind, value, _: kind.from_json(value)),
    (Enum, lambda kind, value, _: kind(value)),
    (tuple, _decode_items),
    (frozenset, _decode_items),
    (dict, _decode_dict),
    (float, _decode_float),
    (int, _decode_scalar),
    (str, _decode_scalar),
)
