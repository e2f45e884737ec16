"""Frozen dataclasses that share their methods, to JSON values and back.

What crosses a process border or is kept in the ledger is a `Record`: builtin scalars, strings,
lists and dicts after `to_json`, an equal value after `from_json`. Not-a-number and the infinities
are the strings "nan", "inf" and "-inf", for JSON has no other way to say them; an absent value is
null. What users construct is held against its annotations here too, for Python checks none. This
module does no input or output.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import math
import operator
import re
import reprlib
import types
import typing
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from enum import Enum
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pytest_xlatune.model.errors import ConfigError, LedgerError
from pytest_xlatune.model.redact import brief, hide, secrets_said

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - others import it from here

_T = TypeVar("_T")
# Python's words for keywords that are not given:  1 required keyword-only argument: 'model_tag'
_MISSING = re.compile(r"missing \d+ required [\w-]+ arguments?: '(?P<name>\w+)'")
_WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "True or False"}

Json = Any  # None, bool, int, float, str, and lists and str-keyed dicts of them
# a type without None, whether None is allowed, and what decodes it
_Rule = tuple[Any, bool, Callable[[Any, Json, str], object] | None]

# of a field that names a file or folder, `field(metadata=BELOW)`: relative to the record's own
# folder, and it stays below that; one that does not is no record
BELOW = {"is_below": True}
# of a field that a command of the scheduler gets: a text that this takes for an option is none
NO_OPTION = {"is_no_option": True}
_MARKS = BELOW.keys() | NO_OPTION.keys()
# of a field with seconds since the epoch, `field(metadata=TIME)`: another number is refused
TIME = {"is_time": True}

_COLUMNS = 120
_COLUMNS_OF_ELEMENT = 10_000  # of a list: a trial with its steps, and no cell with its trials

_AS_IT_IS = frozenset({bool, int, str, type(None)})  # of what JSON holds
_NUMBERS = frozenset({int, float})
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_LAST_S = float(1 << 37)  # seconds since the epoch, of the year 6325: no clock of ours says more


if not TYPE_CHECKING:

    def dataclass(cls: Any = None, /, **how: Any) -> Any:
        """Make a dataclass, as the library does, without a method that is compiled for it here.

        The library compiles six for each class, nine tenths of what a class costs where a command
        starts. Here `__init__` is compiled where it is first asked for, and the others are one for
        all classes: a command makes, compares and shows values of few.
        """
        if cls is None:
            return functools.partial(dataclass, **how)
        if how.get("order") or how.get("unsafe_hash"):
            return dataclasses.dataclass(**how)(cls)
        has_init, has_eq, has_repr = (how.get(each, True) for each in ("init", "eq", "repr"))
        how |= {"eq": False, "repr": False}
        own, is_frozen = vars(cls), how.get("frozen", False)
        # the library wants to be told that a subclass of a frozen one is frozen
        is_ours = is_frozen and not dataclasses.is_dataclass(cls)
        bare = how | {"init": False, "frozen": is_frozen and not is_ours}
        made = dataclasses.dataclass(**bare)(cls)
        if has_init and "__init__" not in own:
            made.__init__ = _Later(made, functools.partial(_init_of, made, how))
        if has_repr and "__repr__" not in own:
            made.__repr__ = _repr
        if has_eq:
            if own.get("__hash__") is None:  # absent, or taken away by an `__eq__` of its own
                made.__hash__ = _hash if is_frozen else None
            if "__eq__" not in own:
                made.__eq__ = _eq
        if is_ours:
            made.__dataclass_params__.frozen = True
            made.__setattr__, made.__delattr__ = _set, _delete
            if how.get("slots"):
                made.__getstate__, made.__setstate__ = _state, _set_state
        return made


class _Later:
    """The `__init__` of a class, made where it is first asked for, and put in place of this."""

    __slots__ = ("cls", "make")

    def __init__(self, cls: Any, make: Callable[[], Any]) -> None:
        self.cls, self.make = cls, make

    def __get__(self, instance: object, owner: Any = None) -> Any:
        made = self.cls.__init__ = self.make()
        return made.__get__(instance, owner)


def _init_of(cls: Any, how: Mapping[str, bool]) -> Any:
    """Return the `__init__` that the library makes, of a class that has the same fields alone."""
    own: dict[str, Any] = {each.name: each for each in fields(cls)}
    kinds = {name: each.type for name, each in own.items()}
    own |= {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": "A twin."}
    if any("__post_init__" in vars(each) for each in cls.__mro__):
        own["__post_init__"] = cls.__post_init__
    # no subclass: some classes keep a list of theirs
    twin: Any = type(cls.__name__, (), {**own, "__annotations__": kinds})
    return dataclasses.dataclass(**how)(twin).__init__


def _set(self: Any, name: str, value: object) -> None:
    if _is_sealed(self, name):
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _delete(self: Any, name: str) -> None:
    if _is_sealed(self, name):
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


def _is_sealed(self: Any, name: str) -> bool:
    """Whether an attribute is frozen: a subclass that is no dataclass may have more."""
    return "__dataclass_fields__" in vars(type(self)) or name in self.__dataclass_fields__


def _state(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for each, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)


def _eq(self: Any, other: Any) -> Any:
    if type(other) is not type(self):
        return NotImplemented
    compared, _, _ = _shared(typing.cast("Any", type(self)))
    return compared(self) == compared(other)


def _hash(self: Any) -> int:
    _, hashed, _ = _shared(typing.cast("Any", type(self)))
    return hash(hashed(self))


@reprlib.recursive_repr()
def _repr(self: Any) -> str:
    _, _, shown = _shared(typing.cast("Any", type(self)))
    told = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
    return f"{type(self).__qualname__}({told})"


@functools.cache
def _shared(cls: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any], tuple[str, ...]]:
    """Return what takes the compared and the hashed values of a class, and the names it shows."""
    found = fields(cls)
    is_hashed = [each.compare if each.hash is None else each.hash for each in found]
    return (
        _values([each.name for each in found if each.compare]),
        _values([each.name for each, is_in in zip(found, is_hashed, strict=True) if is_in]),
        tuple(each.name for each in found if each.repr),
    )


def _values(names: list[str]) -> Callable[[Any], Any]:
    if len(names) > 1:
        return operator.attrgetter(*names)  # a tuple, as fast as the library's own
    return lambda value: tuple(getattr(value, name) for name in names)


class Rows(Sequence[_T]):
    """Rows that are kept as columns; equal to any sequence of the same rows."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


class Pairs(Rows[tuple[int, float]]):
    """Pairs: the steps of a ledger of 100 MB take 60 MB, and as tuples 450.

    A field of `Sequence[tuple[int, float]]` is read as such.
    """

    __slots__ = ("_columns",)

    def __init__(self, first: Sequence[int], second: Sequence[float]) -> None:
        self._columns = array("q", first), array("d", second)

    def __len__(self) -> int:
        return len(self._columns[0])

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return zip(*self._columns, strict=True)

    def __getitem__(self, at: Any) -> Any:
        one, other = (each[at] for each in self._columns)
        return tuple(zip(one, other, strict=True)) if isinstance(at, slice) else (one, other)


class Record:
    """Base of every persisted dataclass. Subclasses are frozen, slotted and keyword-only."""

    __slots__ = ()

    def to_json(self) -> dict[str, Json]:
        """Return this record as builtins only, keyed by field name."""
        return {
            name: value if type(value) in _AS_IT_IS else _encode(value)
            for name in _names(typing.cast("Any", type(self)))
            for value in (getattr(self, name),)
        }

    @classmethod
    def from_json(cls, data: Json) -> Self:
        """Return the record that `to_json` described.

        A field with a default may be missing.

        Raises:
            LedgerError: `data` is no mapping, lacks a field, has an unknown one or a wrong type.
        """
        if not isinstance(data, dict):
            raise LedgerError(f"{cls.__name__}: expected a mapping, found {brief(data)}")
        fields = _field_rules(typing.cast("Any", cls))
        for name in sorted(data.keys() - fields.keys()):
            raise LedgerError(
                f"{cls.__name__}: unknown field {name!r}; written by another version?"
            )
        values: dict[str, Any] = {
            name: value
            if type(value := data[name]) is rule[0]  # a scalar, as most are
            else _by_rule(rule, value, where=f"{cls.__name__}.{name}")
            for name, rule in fields.items()
            if name in data
        }
        _check_texts(cls, values)
        try:
            for name in _times(typing.cast("Any", cls)):
                check_time(name, values.get(name))
            return cls(**values)
        except (TypeError, ValueError, ConfigError) as error:
            raise LedgerError(f"{cls.__name__}: {error}") from None


def _check_texts(cls: Any, values: Mapping[str, Any]) -> None:
    """Refuse what leads out of the record's folder, or what a command takes for an option."""
    for field in _marked(cls):
        value = values.get(field.name, field.default)
        for text in () if value == field.default else (value,) if isinstance(value, str) else value:
            where, path = f"{cls.__name__}.{field.name}", PurePosixPath(text)
            is_out = not path.parts or path.is_absolute() or ".." in path.parts or "\0" in text
            if "is_below" in field.metadata and is_out:
                raise LedgerError(f"{where}: {text!r:.80} leads out of the ledger's folder")
            # of scancel it would end other jobs:  --user=me
            if "is_no_option" in field.metadata and text.startswith("-"):
                raise LedgerError(f"{where}: {text!r:.80} is no name of a job")


def read_json(text: str | bytes, *, is_ours: bool = False) -> Json:
    """Return the value of a JSON text.

    Args:
        text: of a file, or a line of one.
        is_ours: whether a record of ours is expected, which holds neither NaN nor Infinity.

    Raises:
        ValueError: it is no JSON, is nested deeper than a record ever is, or holds an integer of
            thousands of digits.
    """
    try:
        # a metrics file of 100,000 `[` stopped the sweep, in each of its next runs too
        return json.loads(text, parse_constant=_refuse if is_ours else None)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None


def _refuse(constant: str) -> Json:
    raise ValueError(f"{constant}, which is no JSON")


def check_time(what: str, value: float | None) -> None:
    """Refuse a number that is no time in seconds since the epoch; None is an unknown time.

    Raises:
        ConfigError: it is not a number, negative, or beyond all calendars.
    """
    if value is not None and (isinstance(value, bool) or not 0 <= value < _LAST_S):
        raise ConfigError(f"{what} is {value}, expected seconds since 1970")


def laid_out(value: Json, *, keeps_order: bool = False) -> str:
    """Return JSON text for people and for `diff`, one newline at its end.

    What fits on a line stands on one, and so does each element of a list, e.g. a trial. Keys are
    sorted, unless their order is kept.

    Raises:
        ValueError: a number is not finite.
    """
    one_line = json.JSONEncoder(sort_keys=not keeps_order, allow_nan=False).encode
    return _laid_out(value, one_line, depth=0, columns=_COLUMNS, is_sorted=not keeps_order) + "\n"


def _laid_out(
    value: Json, one_line: Callable[[Json], str], *, depth: int, columns: int, is_sorted: bool
) -> str:
    is_flat = isinstance(value, list) and not any(isinstance(x, list | dict) for x in value)
    # written whole on each level before its parts were, a report of 800 profiles took twice as long
    if not isinstance(value, list | dict) or is_flat or not _is_long(value, columns):
        line = one_line(value)
        if not isinstance(value, list | dict) or is_flat or len(line) + 2 * depth <= columns:
            return line
    within = functools.partial(_laid_out, one_line=one_line, depth=depth + 1, is_sorted=is_sorted)
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


def canonical(value: Json) -> str:
    """Return the one JSON text of a value: sorted keys, no white space, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def used(data: Mapping[str, Json], *names: str) -> dict[str, Json]:
    """Return the JSON of a record without those of these fields that say nothing.

    They are no part of an identity, and so of no random order, where a cell does not use them.
    """
    return {name: each for name, each in data.items() if each or name not in names}


def digest(value: Json, *, length: int = 16) -> str:
    """Return the first `length` hexadecimal digits of SHA-256 over the canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:length]


@functools.cache
def _names(cls: Any) -> tuple[str, ...]:
    return tuple(each.name for each in dataclasses.fields(cls))


@functools.cache
def _marked(cls: Any) -> tuple[dataclasses.Field[Any], ...]:
    return tuple(each for each in dataclasses.fields(cls) if each.metadata.keys() & _MARKS)


@functools.cache
def _field_rules(cls: Any) -> dict[str, _Rule]:
    hints = typing.get_type_hints(cls)
    return {each.name: _rule_of(hints[each.name]) for each in dataclasses.fields(cls)}


@functools.cache
def _times(cls: Any) -> tuple[str, ...]:
    """Return the names of the fields that hold a time."""
    return tuple(each.name for each in dataclasses.fields(cls) if "is_time" in each.metadata)


def _encode(value: object) -> Json:
    if type(value) in _AS_IT_IS:
        return value
    if type(value) is float:
        # Python writes them as they are kept:  nan  inf  -inf
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Pairs):
        return [[at, _encode(each)] for at, each in value]
    if isinstance(value, tuple | list | frozenset):
        items = sorted(value) if isinstance(value, frozenset) else value
        return [_encode(item) for item in items]
    if isinstance(value, dict):
        return {str(key): _encode(item) for key, item in value.items()}
    raise TypeError(f"a record holds builtins only, found {type(value).__name__}: {value!r:.80}")


def _by_rule(rule: _Rule, value: Json, *, where: str) -> object:
    kind, is_optional, decode = rule
    if kind is Json or (value is None and is_optional):
        return value
    try:
        if decode is not None:
            return decode(kind, value, where)
    except (KeyError, OverflowError, RecursionError, TypeError, ValueError):
        pass
    raise LedgerError(f"{where}: expected {kind}, found {brief(value)}")


@functools.cache
def _rule_of(kind: Any) -> _Rule:
    """Return how values of an annotation are decoded."""
    is_optional = typing.get_origin(kind) in (types.UnionType, typing.Union)
    if is_optional:
        kind = next(each for each in typing.get_args(kind) if each is not type(None))
    if kind is Json:
        return kind, is_optional, None
    origin = typing.get_origin(kind) or kind
    decode = next((rule for base, rule in _RULES if issubclass(origin, base)), None)
    return kind, is_optional, decode


def _decode_items(kind: Any, value: Json, where: str) -> object:
    if not isinstance(value, list):
        raise TypeError
    sort, rules, is_alike = _parts(kind)
    return sort(
        item if type(item) is rule[0] else _by_rule(rule, item, where=where)
        for rule, item in zip(rules * len(value) if is_alike else rules, value, strict=True)
    )


@functools.cache
def _parts(kind: Any) -> tuple[Any, tuple[_Rule, ...], bool]:
    """Return the class of a sequence, the rules of its items, and whether one is that of all."""
    sort, kinds = typing.get_origin(kind), typing.get_args(kind)
    is_alike = sort is frozenset or kinds[-1] is Ellipsis
    return sort, tuple(map(_rule_of, kinds[:1] if is_alike else kinds)), is_alike


def _decode_pairs(kind: Any, value: Json, where: str) -> object:
    # one by one, the steps of a ledger took longer than its JSON
    if value and isinstance(value, list) and {*map(type, value)} == {list}:
        columns = [*zip(*value, strict=True)] if {*map(len, value)} == {2} else []
        if [{*map(type, each)} for each in columns] == [{int}, {float}]:
            with contextlib.suppress(OverflowError):
                return Pairs(*columns)
    return _decode_items(types.GenericAlias(tuple, (*typing.get_args(kind), ...)), value, where)


def _decode_dict(kind: Any, value: Json, where: str) -> object:
    rule = _rule_of(typing.get_args(kind)[1])
    if not isinstance(value, dict):
        raise TypeError
    return {key: _by_rule(rule, item, where=where) for key, item in value.items()}


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
    (Sequence, _decode_pairs),
)


def check_kinds(
    declared: object, *, what: str, named: Mapping[str, type] = MappingProxyType({})
) -> None:
    """Refuse an attribute whose value is not of its annotated kind.

    Texts, numbers, mappings, tuples (a list will do), choices and classes are looked at; an
    annotation of another sort is left alone.

    Args:
        declared: an instance of a dataclass; any other is left alone.
        what: how messages call it, e.g. "sweep 'pp8'".
        named: classes that its annotations name without loading them.

    Raises:
        ConfigError: names the first wrong one, the value and the expected kind.
    """
    cls: Any = type(declared)
    if not dataclasses.is_dataclass(declared):
        return
    for name, kind in _kinds(cls, tuple(named.items())).items():
        _check(kind, getattr(declared, name), where=f"{what}: {name}")


def written(what: str) -> Callable[[type[_T]], type[_T]]:
    """Decorate a dataclass that users construct: its mistakes are told, not tripped over.

    A keyword that does not exist is told with the nearest one, a missing one by its name, and a
    value of another kind where the class' own checks cannot deal with it.

    Args:
        what: how messages call it, e.g. "protocol".
    """

    def telling(cls: type[_T]) -> type[_T]:
        plain: Any = vars(cls)["__init__"]
        later: Any = _Later(cls, lambda: _telling(plain.__get__(None, cls), cls.__name__, what))
        cls.__init__ = later  # type: ignore[method-assign]
        return cls

    return telling


def _telling(made: Callable[..., None], name: str, what: str) -> Callable[..., None]:
    @functools.wraps(made)
    def init(self: Any, *args: Any, **said: Any) -> None:
        try:
            made(self, *args, **said)
        except ConfigError as error:
            raise told_without(error, *args, said) from None
        except (TypeError, AttributeError) as error:
            names = [each.name for each in fields(self) if each.init]
            unknown = next((each for each in said if each not in names), None)
            if unknown is not None:
                where = f"{name}(...)"
                raise ConfigError.unknown("keyword", unknown, valid=names, where=where) from None
            missing = _MISSING.search(str(error))
            if missing and not hasattr(self, missing["name"]):
                absent = missing["name"]
                raise ConfigError(f"{name}(...): {absent} is missing; write {absent}=...") from None
            try:
                check_kinds(self, what=what)
            except ConfigError as told:
                raise told_without(told, *args, said) from None
            raise

    return init


def told_without(error: ConfigError, *said: object) -> ConfigError:
    """Return an error about what a user said, without the secrets in it."""
    secrets = frozenset[str]().union(*map(secrets_said, said))
    return type(error)(hide(str(error), secrets))


@functools.cache
def _kinds(cls: Any, named: tuple[tuple[str, type], ...]) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(cls, localns=dict(named))
    except NameError:  # a launcher of the user's own may name types for its checker alone
        return {}
    return {each.name: hints[each.name] for each in fields(cls)}


def _check(kind: Any, value: object, *, where: str) -> None:
    origin, of = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if not any(_fits(each, value) for each in of):
            named = [each for each in of if each is not type(None)]
            _check(named[0] if len(named) == 1 else object, value, where=where)
            raise wrong_kind(where, value, " or ".join(each.__name__ for each in named))
    elif origin is typing.Literal:
        if value not in of:
            choice, _, attribute = where.rpartition(": ")
            raise ConfigError.unknown(attribute, str(value), valid=map(str, of), where=choice)
    elif origin is tuple:
        if not isinstance(value, tuple | list):
            raise wrong_kind(where, value, "a tuple: write (..., ) around what it holds")
        kinds = of[:1] * len(value) if of[-1] is Ellipsis else of
        for number, (each, item) in enumerate(zip(kinds, value, strict=False)):
            _check(each, item, where=f"{where}[{number}]")
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise wrong_kind(where, value, "a mapping of names to values")
        for key, item in value.items():
            _check(of[0], key, where=f"{where}, the name {key!r}")
            _check(of[1], item, where=f"{where}[{key!r}]")
    elif not _fits(kind, value):
        raise wrong_kind(where, value, _WORDS.get(kind) or kind.__name__)


def _fits(kind: Any, value: object) -> bool:
    """Whether a value is of a kind as far as its class says; one that cannot be told fits."""
    if kind is Any:
        return True
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
    if not isinstance(kind, type) or typing.Protocol in kind.__bases__:
        return True
    return isinstance(value, kind)


def wrong_kind(where: str, value: object, expected: str) -> ConfigError:
    """Return the error of a value of another kind: where it stands, its kind, the expected one."""
    found = f"{where} is {brief(value)} ({type(value).__name__})"
    hint = f": write {str(value)!r}" if expected == _WORDS[str] and _fits(float, value) else ""
    return ConfigError(f"{found}, expected {expected}{hint}")
