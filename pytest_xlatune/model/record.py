"""Records: values that cross a process border or are kept in the ledger.

`to_json` returns JSON data: scalars, strings, lists and dicts; `from_json` returns an equal record.
NaN and the infinities are written as "nan", "inf" and "-inf", because JSON has no numbers for them;
a missing value is null. This module does no input or output.
"""

from __future__ import annotations

import hashlib
import json
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Protocol, Self, TypeVar, runtime_checkable

import msgspec

from pytest_xlatune.model.errors import LedgerError, XlatuneError

_T = TypeVar("_T")

Json = Any  # None, bool, int, float, str, and lists and str-keyed dicts of them

# a relative path that does not leave the folder of the ledger:  trials/5e1f/1
_BELOW = r"^(?!/|\.?/*\Z|(.*/)?\.\.(/|\Z))[^\0]*\Z"
_BELOW_OR_NONE = rf"^\Z|{_BELOW}"
# A job id is passed to scancel, where one such as `--user=me` would end other jobs.
_NO_OPTION = r"^(?!-)"
RelativePath = Annotated[str, msgspec.Meta(pattern=_BELOW)]
AnyRelativePath = Annotated[str, msgspec.Meta(pattern=_BELOW_OR_NONE)]
JobId = Annotated[str, msgspec.Meta(pattern=_NO_OPTION)]
# seconds since 1970, up to the year 6325
Time = Annotated[float, msgspec.Meta(ge=0, lt=float(1 << 37))]

_JSON_TYPES = frozenset({bool, int, str, type(None)})  # types whose values JSON holds unchanged
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_MOST_MESSAGE = 300  # characters of an error message, which may quote a long value
_PHRASES = {  # phrase in an error message of msgspec -> our phrase
    **dict.fromkeys(
        (f"Expected `str` matching regex {pattern!r}" for pattern in (_BELOW, _BELOW_OR_NONE)),
        "a path that leads out of the ledger's folder",
    ),
    f"Expected `str` matching regex {_NO_OPTION!r}": "an option, and no name of a job",
    "Object contains unknown field": "written by another version? Unknown field",
}


class Rows(Sequence[_T]):
    """Rows that are stored as columns; equal to any sequence of the same rows."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


class DecodedType(type):
    """Metaclass of types whose `from_json` returns values of another type, `value_type`.

    msgspec asks `isinstance(value, cls)` of what `from_json` returned.
    """

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.value_type)  # type: ignore[attr-defined]


if TYPE_CHECKING:
    Real = float
else:

    class Real(metaclass=DecodedType):
        """A float that may be NaN or infinite."""

        value_type = float

        @staticmethod
        def from_json(data: Json) -> float:
            """Return the number in JSON data."""
            if type(data) in (int, float):
                return float(data)
            if isinstance(data, str) and data in _NON_FINITE:
                return _NON_FINITE[data]
            raise ValueError("expected a number")


class Pairs(Rows[tuple[int, float]]):
    """Pairs as columns. The steps of a 100 MB ledger take 60 MB as columns, 450 MB as tuples."""

    __slots__ = ("columns",)

    def __init__(self, first: Iterable[int], second: Iterable[float]) -> None:
        self.columns = array("q", first), array("d", second)

    def __len__(self) -> int:
        return len(self.columns[0])

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return zip(*self.columns, strict=True)

    def __getitem__(self, at: Any) -> Any:
        first, second = (column[at] for column in self.columns)
        return tuple(zip(first, second, strict=True)) if isinstance(at, slice) else (first, second)


def split_pairs(pairs: Sequence[tuple[int, float]]) -> tuple[Sequence[int], Sequence[float]]:
    """Return the first and the second values of pairs, without a copy for `Pairs`."""
    if isinstance(pairs, Pairs):
        return pairs.columns
    return [first for first, _ in pairs], [second for _, second in pairs]


if TYPE_CHECKING:
    Timings = Sequence[tuple[int, float]]
else:
    # With item types msgspec makes no list of lists first. A text is "nan", "inf" or "-inf".
    Timings = tuple[tuple[int, float | str], ...]


def as_columns(pairs: Sequence[tuple[int, float]]) -> Sequence[tuple[int, float]]:
    """Return the pairs as columns; `Pairs` are returned as they are.

    Raises:
        ValueError: a text among the numbers is not "nan", "inf" or "-inf".
    """
    if isinstance(pairs, Pairs) or not pairs:
        return pairs
    # zip(*pairs) would make an iterator for each step, which starts the garbage collector
    first, second = split_pairs(pairs)
    try:
        return Pairs(first, second)
    except TypeError:
        return Pairs(first, [decode(Real, value) for value in second])


@runtime_checkable
class OwnJson(Protocol):
    """A value that is no record but has its own JSON form."""

    def to_json(self) -> Json:
        """Return it as JSON data."""


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Base of all values that are stored. Subclasses must repeat `frozen=True, kw_only=True`.

    `gc=False` keeps the garbage collector from visiting all values of a ledger, which would take a
    sixth of a session that measures nothing. It is safe because no value refers to itself. A
    subclass with `dict=True` needs `gc=True`, because what it caches may refer to it.
    """

    def to_json(self) -> dict[str, Json]:
        """Return this record as JSON data, keyed by field name."""
        fields = msgspec.structs.asdict(self).items()
        # Most values need no encoding, so the check here saves half of the calls.
        return {
            name: value if type(value) in _JSON_TYPES else encode(value) for name, value in fields
        }

    @classmethod
    def from_json(cls, data: Json) -> Self:
        """Return the record for the data that `to_json` returned.

        A field with a default may be missing.

        Raises:
            LedgerError: `data` is no mapping, lacks a field, or a field is unknown or wrong.
        """
        try:
            return msgspec.convert(data, cls, dec_hook=decode, str_keys=True)
        except (XlatuneError, OverflowError, RecursionError, TypeError, ValueError) as error:
            raise LedgerError(f"{cls.__name__}: {explained(error)}") from None


def explained(error: Exception) -> str:
    """Return the message of an error of decoding, in our words."""
    text = f"{error!s:.{_MOST_MESSAGE}}"
    for phrase, ours in _PHRASES.items():
        text = text.replace(phrase, ours)
    return text


def decode(kind: Any, data: Json) -> Any:
    """Return a value of a type that msgspec does not know but that has a `from_json`."""
    if isinstance(data, kind):
        return data
    try:
        return kind.from_json(data)
    except (XlatuneError, msgspec.ValidationError) as error:
        raise ValueError(str(error)) from None  # msgspec adds where in the data it was


def encode(value: object) -> Json:
    """Return a record, a scalar, or a container of them as JSON data.

    Raises:
        TypeError: a value is nothing of these.
    """
    if type(value) in _JSON_TYPES:
        return value
    if type(value) is float:
        # `str` writes them as they are stored:  nan  inf  -inf
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, tuple | list | frozenset):
        items = sorted(value) if isinstance(value, frozenset) else value
        return [item if type(item) in _JSON_TYPES else encode(item) for item in items]
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Pairs):
        return [[at, encode(item)] for at, item in value]
    if isinstance(value, OwnJson):
        return value.to_json()
    raise TypeError(f"a record holds builtins only, found {type(value).__name__}: {value!r:.80}")


def read_json(text: str | bytes, *, is_strict: bool = False) -> Json:
    """Return the value of a JSON text.

    Args:
        text: the text of a file, or of one line.
        is_strict: whether the constants NaN and Infinity, which no record of ours has, are errors.

    Raises:
        ValueError: it is no JSON, is nested too deeply, or has an integer of thousands of digits.
    """
    try:
        return json.loads(text, parse_constant=_refuse if is_strict else None)
    except RecursionError:  # e.g. a metrics file of 100,000 `[`, which must not end the sweep
        raise ValueError("JSON that is nested too deeply") from None


def _refuse(constant: str) -> Json:
    raise ValueError(f"{constant}, which is no JSON")


# made once, because the plan of a sweep with 2,000 profiles has 16,000 digests
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical(value: Json) -> str:
    """Return the canonical JSON text of a value: sorted keys, no white space, ASCII."""
    return _CANONICAL.encode(value)


def without_empty(data: Mapping[str, Json], *names: str) -> dict[str, Json]:
    """Return the JSON data of a record without those of the named fields that are empty.

    So a field that is not used changes neither an identity nor a random order.
    """
    return {name: value for name, value in data.items() if value or name not in names}


def digest(value: Json, *, length: int = 16) -> str:
    """Return the first `length` hexadecimal digits of SHA-256 over the canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:length]
