"""What kind of value each attribute of a declared dataclass takes, checked when it is declared.

A sweep file is Python, and Python checks no annotation: a number where a text is expected would
reach the ledger, which nobody could read again, and a text where a list is expected would be taken
letter by letter. This module knows annotations and nothing of sweeps.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any

from pytest_xlatune.errors import ConfigError

_WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "True or False"}


def check_kinds(declared: object, *, what: str) -> None:
    """Refuse an attribute whose value is not of its annotated kind.

    Texts, numbers, mappings, tuples (a list will do), choices and classes are looked at; an
    annotation of another sort is left alone.

    Args:
        declared: an instance of a dataclass; any other is left alone.
        what: how messages call it, e.g. "sweep 'pp8'".

    Raises:
        ConfigError: names the first wrong one, what was found and what is expected.
    """
    cls: Any = type(declared)
    if not hasattr(cls, "__dataclass_fields__"):
        return
    for name, kind in _kinds(cls).items():
        _check(kind, getattr(declared, name), where=f"{what}: {name}")


@functools.cache
def _kinds(cls: Any) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(cls)
    except NameError:  # a launcher of the user's own may name types for its checker alone
        return {}
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _check(kind: Any, value: object, *, where: str) -> None:
    origin, of = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if not any(_fits(each, value) for each in of):
            named = [each for each in of if each is not type(None)]
            _check(named[0] if len(named) == 1 else object, value, where=where)
            raise _wrong(where, value, " or ".join(each.__name__ for each in named))
    elif origin is typing.Literal:
        if value not in of:
            choice, _, attribute = where.rpartition(": ")
            raise ConfigError.unknown(attribute, str(value), valid=map(str, of), where=choice)
    elif origin is tuple:
        if not isinstance(value, tuple | list):
            raise _wrong(where, value, "a tuple: write (..., ) around what it holds")
        kinds = of[:1] * len(value) if of[-1] is Ellipsis else of
        for number, (each, item) in enumerate(zip(kinds, value, strict=False)):
            _check(each, item, where=f"{where}[{number}]")
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise _wrong(where, value, "a mapping of names to values")
        for key, item in value.items():
            _check(of[0], key, where=f"{where}, the name {key!r}")
            _check(of[1], item, where=f"{where}[{key!r}]")
    elif not _fits(kind, value):
        raise _wrong(where, value, _WORDS.get(kind) or kind.__name__)


def _fits(kind: Any, value: object) -> bool:
    """Whether a value is of a kind as far as its class says; what cannot be told fits."""
    origin = typing.get_origin(kind)
    if origin is not None:
        try:
            _check(kind, value, where="")
        except ConfigError:
            return False
        return True
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return True
    return isinstance(value, kind)


def _wrong(where: str, value: object, expected: str) -> ConfigError:
    found = f"{where} is {value!r:.80} ({type(value).__name__})"
    hint = f": write {str(value)!r}" if expected == _WORDS[str] and _is_scalar(value) else ""
    return ConfigError(f"{found}, expected {expected}{hint}")


def _is_scalar(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
