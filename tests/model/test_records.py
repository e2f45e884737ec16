"""Records: builtins only, an equal value back, strict about what they do not know."""

from __future__ import annotations

import json
import math
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import force_setattr

from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.model.pretty_json import pretty_json
from pytest_xlatune.model.record import Real, Record, Timings, as_columns, canonical, digest


class Colour(StrEnum):
    RED = "red"


class Inner(Record, frozen=True, kw_only=True):
    number: Real = 0.0


class Outer(Record, frozen=True, kw_only=True):
    name: str
    maybe: int | None = None
    pair: tuple[int, str] = (0, "")
    many: tuple[Inner, ...] = ()
    table: dict[str, Real | None]
    colour: Colour = Colour.RED
    flag: bool = False
    words: frozenset[str] | None = None


INNER = st.builds(Inner, number=st.floats(allow_nan=False))
OUTER = st.builds(
    Outer,
    name=st.text(st.characters(exclude_categories=["Cs"])),
    maybe=st.none() | st.integers(),
    pair=st.tuples(st.integers(), st.just("x")),
    many=st.lists(INNER, max_size=3).map(tuple),
    table=st.dictionaries(st.text(max_size=3), st.none() | st.floats(allow_nan=False), max_size=3),
    flag=st.booleans(),
    words=st.none() | st.frozensets(st.text(max_size=2), max_size=3),
)


@given(OUTER)
def test_a_record_comes_back_equal_through_json_text(record: Outer) -> None:
    text = json.dumps(record.to_json(), allow_nan=False)
    assert Outer.from_json(json.loads(text)) == record


def test_nan_is_a_word() -> None:
    assert Inner(number=math.nan).to_json() == {"number": "nan"}
    assert math.isnan(Inner.from_json({"number": "nan"}).number)
    assert Inner.from_json({"number": 3}).number == 3.0


GOOD = Outer(name="a", table={}).to_json()


def test_a_wrong_value_names_its_place() -> None:
    wrong: dict[str, Any] = {
        "another version.*nknown field `later`": GOOD | {"later": 1},
        r"Outer: Expected `str`, got `int` - at `\$.name`": GOOD | {"name": 5},
        r"\$\.many\[0\]\.number": GOOD | {"many": [{"number": "many"}]},
        r"\$\.colour": GOOD | {"colour": "blue"},
        "Expected `object`": [],
    }
    for message, data in wrong.items():
        with pytest.raises(LedgerError, match=message):
            Outer.from_json(data)


def test_a_foreign_number_is_refused_before_it_reaches_xdist() -> None:
    class Foreign(float):
        """What numpy.float64 is: a subclass of float."""

    with pytest.raises(TypeError, match="builtins only"):
        Inner(number=Foreign(1.0)).to_json()


def test_digest_ignores_order_and_sees_values() -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})
    assert canonical({"b": "é", "a": [1.5]}) == '{"a":[1.5],"b":"\\u00e9"}'
    with pytest.raises(ValueError, match="Out of range"):
        canonical(math.nan)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(width=32, allow_nan=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
).filter(lambda value: "Infinity" not in json.dumps(value))


@given(JSON)
def test_json_that_is_laid_out_is_the_same_json(value: object) -> None:
    assert json.loads(pretty_json(value)) == value


class Timed(Record, frozen=True, kw_only=True):
    steps: Timings = ()

    def __post_init__(self) -> None:
        force_setattr(self, "steps", as_columns(self.steps))


def test_pairs_come_back_as_they_were() -> None:
    read = ((0, 1.5), (1, 2.0), (2, math.inf))
    timed = Timed.from_json({"steps": [[0, 1.5], [1, 2], [2, "inf"]]})
    assert timed.steps == read
    assert (timed.steps[:1], [*timed.steps[1:]]) == (read[:1], [*read[1:]])
    assert (timed, hash(timed)) == (Timed(steps=read), hash(Timed(steps=read)))
    assert Timed.from_json(timed.to_json()) == timed
    assert all(type(at) is int and type(took) is float for at, took in timed.steps)


def test_pairs_of_other_kinds_are_refused() -> None:
    for wrong in ([[0, 1.5, 2.5]], [[True, 1.5]], [[0, "soon"]]):
        with pytest.raises(LedgerError, match=r"\$\.steps|expected a number"):
            Timed.from_json({"steps": wrong})
