"""`dataclasses` for our values: the same classes, whose methods are made when they are first used.

    from pytest_xlatune.model.values import dataclass, field, replace

The library compiles six methods for each frozen class, and loads `inspect` to do so: half of the
time in which a command starts went into classes of which it makes no value. Here a slotted class
gets its slots at once; its fields and methods are the library's own, made from the class as it was
written, when one of them is asked for. A class without slots, or written in a way that is not
expected here, goes to the library at once. This module knows nothing of what the classes are.
"""

from __future__ import annotations

import re
import sys
from _thread import RLock
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass", "field", "fields", "is_dataclass", "replace"]

if TYPE_CHECKING:
    from dataclasses import dataclass, field, fields, is_dataclass, replace

_MADE = ("__dataclass_fields__", "__dataclass_params__", "__match_args__")
_ORDERS = ("__lt__", "__le__", "__gt__", "__ge__")
_KNOWN = frozenset({"frozen", "slots", "kw_only", "eq", "order"})
# From 3.14 on a class may hold no annotations before they are asked for.
_IS_LAZY = sys.version_info < (3, 14)
# ClassVar[str]    typing.ClassVar[Mapping[str, int]]
_CLASS_VARIABLE = re.compile(r"(?:typing\.)?ClassVar\b")
# InitVar[int]    KW_ONLY
_SPECIAL = re.compile(r"\b(?:InitVar|KW_ONLY)\b")
_lock = RLock()  # a class is made once, whichever threads ask for it


class _Deferred:
    """The arguments of a `field`, before the library is loaded."""

    __slots__ = ("arguments",)

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments


class _Later:
    """Stands in a class for what the library makes of it."""

    __slots__ = ("name", "written")

    def __init__(self, written: _Written, name: str) -> None:
        self.written, self.name = written, name

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        self.written.make()
        return getattr(owner if instance is None else instance, self.name)


if not TYPE_CHECKING:

    def field(**arguments: Any) -> Any:
        """Return a field of a dataclass, as `dataclasses.field` does."""
        return _Deferred(arguments)

    def fields(of: Any) -> tuple[Any, ...]:
        """Return the fields of a dataclass or of one of its values."""
        import dataclasses

        return dataclasses.fields(of)

    def is_dataclass(of: Any) -> bool:
        """Whether this is a dataclass, or one of its values."""
        import dataclasses

        return dataclasses.is_dataclass(of)

    def replace(value: Any, /, **changes: Any) -> Any:
        """Return a value with other fields."""
        import dataclasses

        return dataclasses.replace(value, **changes)

    def dataclass(cls: Any = None, /, **how: Any) -> Any:
        """Make a dataclass of a class, as `dataclasses.dataclass` does."""
        if cls is None:
            return lambda cls: _made(cls, how)
        return _made(cls, how)


class _Written:
    """A class as it was written, the arguments of its decorator, and the slotted class of it."""

    __slots__ = ("cls", "how", "made", "names")

    def __init__(self, cls: Any, how: dict[str, Any]) -> None:
        self.cls: Any = cls
        self.how = how
        self.made: Any = None
        self.names: tuple[str, ...] = ()

    def make(self) -> None:
        """Give the slotted class what the library makes."""
        with _lock:
            if self.cls is None:
                return
            found = vars(_by_library(self.cls, self.how | {"slots": False}))
            for name in self.names:
                if name in found:
                    setattr(self.made, name, found[name])
                else:
                    delattr(self.made, name)
            self.cls = None


def _by_library(cls: Any, how: dict[str, Any]) -> Any:
    import dataclasses

    if not cls.__doc__:
        cls.__doc__ = cls.__name__  # the library would spell the signature out
    for name, each in list(vars(cls).items()):
        if isinstance(each, _Deferred):
            setattr(cls, name, dataclasses.field(**each.arguments))
    return dataclasses.dataclass(**how)(cls)


def _made(cls: Any, how: dict[str, Any]) -> Any:
    own = vars(cls)
    annotations = own.get("__annotations__", {})
    bases = cls.__mro__[1:-1]
    is_usual = (
        _IS_LAZY
        and how.get("slots", False)
        and how.keys() <= _KNOWN
        and "__slots__" not in own
        and all(
            isinstance(each, str) and not _SPECIAL.search(each) for each in annotations.values()
        )
        and all("__slots__" in vars(b) for b in bases if "__dataclass_fields__" in vars(b))
    )
    if not is_usual:
        return _by_library(cls, how)
    names = [name for name, each in annotations.items() if not _CLASS_VARIABLE.match(each)]
    return _slotted(cls, names, bases, _Written(cls, how))


def _slotted(cls: Any, names: list[str], bases: tuple[Any, ...], written: _Written) -> Any:
    """Return the class with slots; a default would stand in the way of its slot."""
    own, how = vars(cls), written.how
    is_frozen, has_eq = how.get("frozen", False), how.get("eq", True)
    body = {
        name: each
        for name, each in own.items()
        if name not in names and name not in ("__dict__", "__weakref__")
    }
    known = {slot for base in bases for slot in _slots_of(base)}
    body["__slots__"] = tuple(name for name in names if name not in known)
    later = [*_MADE, "__init__", "__repr__"]
    later += ["__eq__"] if has_eq else []
    later += _ORDERS if how.get("order", False) else ()
    later = [name for name in later if name not in own]
    if has_eq and (own.get("__hash__") is None or "__hash__" not in own):
        if is_frozen:
            later.append("__hash__")
        else:
            body["__hash__"] = None
    body |= {name: _Later(written, name) for name in later}
    if is_frozen:
        body.setdefault("__getstate__", _state)
        body.setdefault("__setstate__", _set_state)
    made = type(cls)(cls.__name__, cls.__bases__, body)
    made.__qualname__ = cls.__qualname__
    if is_frozen:
        made.__setattr__, made.__delattr__ = _refusing(made)
    written.made, written.names = made, tuple(later)
    return made


def _slots_of(cls: Any) -> tuple[str, ...]:
    found = vars(cls).get("__slots__", ())
    return (found,) if isinstance(found, str) else tuple(found)


def _refusing(cls: Any) -> tuple[Any, Any]:
    """Return what refuses to change a frozen value."""

    def set_attribute(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in cls.__dataclass_fields__:
            raise _frozen(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def delete_attribute(self: Any, name: str) -> None:
        if type(self) is cls or name in cls.__dataclass_fields__:
            raise _frozen(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return set_attribute, delete_attribute


def _frozen(said: str) -> Exception:
    import dataclasses

    return dataclasses.FrozenInstanceError(said)


def _state(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for each, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)
