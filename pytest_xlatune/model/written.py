"""Check the arguments of classes that users construct against the classes' annotations.

Python itself does not check them. The messages name an unknown keyword with the nearest valid one,
a missing keyword, or a value of the wrong type.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.record import Real, Record
from pytest_xlatune.model.redact import brief, hide, secrets_in_argument

_T = TypeVar("_T")
# the place between the words of a class name:  RetryPolicy
_CAMEL_CASE_BORDER = re.compile(r"(?<=[a-z])(?=[A-Z])")
_TYPE_NAMES: dict[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    Real: "a number",
    bool: "True or False",
}


class CheckedStruct(msgspec.StructMeta):
    """Metaclass of Structs whose constructor checks its arguments. Decoders do not call it."""

    def __call__(cls, *args: Any, **keywords: Any) -> Any:  # noqa: N805 - of a class
        """Return the instance, or raise ConfigError that names the wrong keyword."""
        what = _CAMEL_CASE_BORDER.sub(" ", cls.__name__).lower()
        return _constructed(cls, what, super().__call__, *args, **keywords)


class Written(Record, frozen=True, kw_only=True, metaclass=CheckedStruct):
    """Base of a record that users construct. Messages use the class name in small letters."""


def written(what: str) -> Callable[[type[_T]], type[_T]]:
    """Decorate a dataclass that users construct, so that its constructor checks its arguments.

    Messages call the object `what`.
    """

    def with_checks(cls: type[_T]) -> type[_T]:
        unchecked: Any = cls.__init__

        @functools.wraps(unchecked)
        def init(self: Any, *args: Any, **keywords: Any) -> None:
            _constructed(cls, what, functools.partial(unchecked, self), *args, **keywords)

        cls.__init__ = init  # type: ignore[method-assign]
        return cls

    return with_checks


def _constructed(cls: Any, what: str, make: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    """Return what `make` constructs, or raise ConfigError that names the wrong argument."""
    names, where = names_of(cls), f"{cls.__name__}(...)"
    for name in keywords:
        if name not in names:
            raise ConfigError.unknown("keyword", name, valid=names, where=where)
    for name in _required(cls):
        if name not in keywords and name not in names[: len(args)]:
            raise ConfigError(f"{where}: {name} is missing; write {name}=...")
    try:
        return make(*args, **keywords)
    except ConfigError as error:
        raise without_secrets_of(error, *args, keywords) from None
    except (TypeError, AttributeError):
        # a value of the wrong type is the likely cause; if none is found, it is our own error
        try:
            _check_each(cls, keywords, what=what)
        except ConfigError as error:
            raise without_secrets_of(error, *args, keywords) from None
        raise


@functools.cache
def names_of(cls: Any) -> tuple[str, ...]:
    """Return the names of the fields of a class that its constructor takes."""
    if issubclass(cls, msgspec.Struct):
        return tuple(cls.__struct_fields__)
    return tuple(field.name for field in dataclasses.fields(cls) if field.init)


@functools.cache
def _required(cls: Any) -> tuple[str, ...]:
    if issubclass(cls, msgspec.Struct):
        return tuple(field.name for field in msgspec.structs.fields(cls) if field.required)
    fields = (field for field in dataclasses.fields(cls) if field.init)
    missing = dataclasses.MISSING
    return tuple(f.name for f in fields if f.default is missing and f.default_factory is missing)


def check_least(declared: object, *, what: str, least: Mapping[str, float]) -> None:
    """Raise ConfigError if an attribute is below its least value; messages call the object `what`.

    Raises:
        ConfigError: an attribute is too small or no number; the message names the first one.
    """
    for name, low in least.items():
        value = getattr(declared, name)
        if not value >= low:
            raise ConfigError(f"{what}: {name} is {value}, expected at least {low}")


def check_kinds(declared: object, *, what: str) -> None:
    """Raise ConfigError if the type of an attribute is not the annotated one.

    It checks texts, numbers, mappings, tuples (or lists), choices and classes; attributes with
    other annotations are not checked.

    Args:
        declared: a Struct or an instance of a dataclass; others are not checked.
        what: its name in messages, e.g. "sweep 'pp8'".

    Raises:
        ConfigError: it names the first wrong attribute, its value and the expected type.
    """
    cls: Any = type(declared)
    if dataclasses.is_dataclass(cls) or isinstance(declared, msgspec.Struct):
        _check_each(cls, {name: getattr(declared, name) for name in names_of(cls)}, what=what)


def _check_each(cls: Any, values: Mapping[str, Any], *, what: str) -> None:
    for name, kind in _kinds(cls).items():
        if name in values:
            _check(kind, values[name], where=f"{what}: {name}")


def without_secrets_of(error: ConfigError, *inputs: object) -> ConfigError:
    """Return an error about a user's inputs, without the secrets in these inputs."""
    secrets = frozenset[str]().union(*map(secrets_in_argument, inputs))
    return type(error)(hide(str(error), secrets))


@functools.cache
def _kinds(cls: Any) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(cls)
    except NameError:  # a user's own launcher may import types only for type checkers
        return {}
    return {name: hints[name] for name in names_of(cls)}


def _check(kind: Any, value: object, *, where: str) -> None:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if not any(_fits(member, value) for member in args):
            named = [member for member in args if member is not type(None)]
            _check(named[0] if len(named) == 1 else object, value, where=where)
            raise wrong_kind(where, value, " or ".join(member.__name__ for member in named))
    elif origin is typing.Literal:
        if value not in args:
            choice, _, attribute = where.rpartition(": ")
            raise ConfigError.unknown(attribute, str(value), valid=map(str, args), where=choice)
    elif origin is tuple:
        if not isinstance(value, tuple | list):
            raise wrong_kind(where, value, "a tuple: write (..., ) around its items")
        kinds = args[:1] * len(value) if args[-1] is Ellipsis else args
        for number, (item_kind, item) in enumerate(zip(kinds, value, strict=False)):
            _check(item_kind, item, where=f"{where}[{number}]")
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise wrong_kind(where, value, "a mapping of names to values")
        for key, item in value.items():
            _check(args[0], key, where=f"{where}, the name {key!r}")
            _check(args[1], item, where=f"{where}[{key!r}]")
    elif not _fits(kind, value):
        raise wrong_kind(where, value, _TYPE_NAMES.get(kind) or kind.__name__)


def _fits(kind: Any, value: object) -> bool:
    """Return whether a value has a type; True if its class does not show that."""
    if kind is Any:
        return True
    origin = typing.get_origin(kind)
    if origin is not None:
        try:
            _check(kind, value, where="")
        except ConfigError:
            return False
        return True
    if kind is Real or kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if not isinstance(kind, type) or typing.Protocol in kind.__bases__:
        return True
    return isinstance(value, kind)


def wrong_kind(where: str, value: object, expected: str) -> ConfigError:
    """Return the error for a value of a wrong type: where it is, its type, the expected type."""
    given = f"{where} is {brief(value)} ({type(value).__name__})"
    hint = f": write {str(value)!r}" if expected == _TYPE_NAMES[str] and _fits(float, value) else ""
    return ConfigError(f"{given}, expected {expected}{hint}")
