"""Records: builtins only, an equal value back, strict about what they do not know."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import math
import pickle
import tracemalloc
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_xlatune.model import errors, record
from pytest_xlatune.model.errors import ConfigError, LedgerError
from pytest_xlatune.model.record import Record, canonical, dataclass, digest, laid_out


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner(Record):
    number: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer(Record):
    name: str
    maybe: int | None = None
    pair: tuple[int, str] = (0, "")
    many: tuple[Inner, ...] = ()
    table: dict[str, float | None]
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"later": 1}, "unknown field 'later'"),
        ({"name": 5}, r"Outer.name: expected .*str.*found 5"),
        ({"maybe": "5"}, "Outer.maybe"),
        ({"maybe": True}, "Outer.maybe"),
        ({"pair": [1]}, "Outer.pair"),
        ({"pair": 1}, "Outer.pair"),
        ({"many": [{"number": "many"}]}, "Inner.number"),
        ({"colour": "blue"}, "Outer.colour"),
        ({"table": []}, "Outer.table"),
        ({"flag": 1}, "Outer.flag"),
        ({"words": "ab"}, "Outer.words"),
    ],
    ids=[
        "an unknown field",
        "a number for a text",
        "a text for a number",
        "a truth for a number",
        "a short tuple",
        "no list",
        "deep inside",
        "no such word",
        "a list for a table",
        "a number for a truth",
        "a text for a set",
    ],
)
def test_a_wrong_value_names_its_place(change: dict[str, object], message: str) -> None:
    with pytest.raises(LedgerError, match=message):
        Outer.from_json(GOOD | change)


def test_a_missing_field_and_a_list_are_refused() -> None:
    with pytest.raises(LedgerError, match="name"):
        Outer.from_json({"table": {}})
    with pytest.raises(LedgerError, match="expected a mapping"):
        Outer.from_json([])


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
    assert json.loads(laid_out(value)) == value


def told_plainly(value: object, columns: int = 120, depth: int = 0) -> str:
    """Do what `laid_out` does, with each value written whole before its parts are."""
    line = json.dumps(value, sort_keys=True)
    has_parts = isinstance(value, dict) or (
        isinstance(value, list) and any(isinstance(each, list | dict) for each in value)
    )
    if not has_parts or len(line) + 2 * depth <= columns:
        return line
    inner = ",\n" + "  " * (depth + 1)
    if isinstance(value, dict):
        told = {each: told_plainly(value[each], 120, depth + 1) for each in sorted(value)}
        parts, ends = [f"{json.dumps(each)}: {text}" for each, text in told.items()], "{}"
    else:
        assert isinstance(value, list)
        parts, ends = [told_plainly(each, 10_000, depth + 1) for each in value], "[]"
    return f"{ends[0]}{inner[1:]}{inner.join(parts)}{inner[1:-2]}{ends[1]}"


LONG = st.text('é"a', min_size=20, max_size=30)
NESTED = st.recursive(
    LONG | st.integers(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(LONG, inner, max_size=4),
)


@given(NESTED)
def test_each_value_that_fits_stands_on_one_line_and_no_other(value: object) -> None:
    assert laid_out(value) == told_plainly(value) + "\n"


def test_a_trial_stands_on_one_line() -> None:
    trials = [{"id": at, "steps": [[each, 0.5] for each in range(99)]} for at in range(3)]
    lines = laid_out({"trials": trials, "cell": {"model": "m"}}).splitlines()
    assert lines[:3] == ["{", '  "cell": {"model": "m"},', '  "trials": [']
    assert [json.loads(each.strip(" ,")) for each in lines[3:6]] == trials
    assert lines[6:] == ["  ]", "}"]
    with pytest.raises(ValueError, match="Out of range"):
        laid_out({"found": math.nan})


@pytest.mark.parametrize("name", ["ConfigError", "SubmissionError", "LedgerError"])
def test_every_error_survives_pickling(name: str) -> None:
    error = getattr(errors, name)("what was found")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), "what was found")


def test_an_unknown_name_comes_with_the_nearest() -> None:
    message = str(ConfigError.unknown("wave", "wave22", valid=["wave2", "confirm"], where="-m"))
    assert message == "unknown wave 'wave22' in -m; did you mean 'wave2'? Known: confirm, wave2"
    assert "Known: none" in str(ConfigError.unknown("wave", "x", valid=[], where="-m"))


def classes_by(dataclass: Any, **how: Any) -> tuple[Any, Any, Any]:
    """Return a class, its subclass, and one with methods of its own, made by a decorator."""

    @dataclass(**how)
    class Base:
        a: Any
        b: tuple[int, ...] = ()

    @dataclass(**how)
    class Sub(Base):
        c: str = "x"
        d: int = dataclasses.field(default=2, compare=False, repr=False)
        e: int = dataclasses.field(default=2, hash=False)
        f: list[int] = dataclasses.field(default_factory=list, hash=False)
        g: int = dataclasses.field(default=9, init=False)
        told: list[str] = dataclasses.field(default_factory=list, init=False, hash=False)

        def __post_init__(self) -> None:
            self.told.append(self.c)

    @dataclass(**how)
    class Own:  # noqa: PLW1641 - what becomes of its hash is seen below
        a: int

        def __eq__(self, other: object) -> bool:
            return True

        def __repr__(self) -> str:
            return "own"

    return Base, Sub, Own


def below(base: Any) -> Any:
    """Return an instance of a subclass that is no dataclass, with an attribute of its own."""

    class Plain(base):  # type: ignore[misc]
        pass

    made = Plain(a=1)
    made.more = 2
    return made


def told_below(base: Any) -> list[str]:
    """Return what is told where a subclass that is no dataclass has its own `__post_init__`."""

    class Telling(base):  # type: ignore[misc]
        def __post_init__(self) -> None:
            self.told.append("below")

    told: list[str] = Telling(a=1).told
    return told


def attempt(call: Any) -> Any:
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - both must raise the same
        return type(error), str(error).replace(classes_by.__qualname__, "")


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"frozen": True, "slots": True, "kw_only": True}, id="frozen"),
        pytest.param({"frozen": True}, id="frozen, without slots"),
        pytest.param({"slots": True}, id="mutable"),
        pytest.param({"frozen": True, "eq": False}, id="by identity"),
        pytest.param({"frozen": True, "eq": False, "repr": False}, id="not shown"),
        pytest.param({"frozen": True, "order": True}, id="ordered"),
        pytest.param({"unsafe_hash": True}, id="hashed although mutable"),
    ],
)
def test_a_dataclass_of_ours_is_that_of_the_library(how: dict[str, Any]) -> None:
    def told(by: Any) -> dict[str, Any]:
        base, sub, own = classes_by(by, **how)
        one, like, other = sub(a=1), sub(a=1, d=5), sub(a=math.nan, b=(4,), c="y")
        texts = [repr(each) for each in (base(a=0), one, other, own(a=1))]
        loop = base(a=[])
        loop.a.append(loop)
        return {
            "texts": [each.partition(" object at ")[0] for each in texts],
            "of itself": repr(loop).partition(" object at ")[0],
            "equal": [
                one == like,
                one == other,
                other == copy.copy(other),
                one == base(a=1),
                one == 1,
            ],
            "own": own(a=1) == own(a=2),
            "hash": [
                attempt(lambda each=each: hash(each) == hash(each)) for each in (one, own(a=1))
            ],
            "same hash": attempt(lambda: hash(one) == hash(sub(a=1, d=5, e=3))),
            "no hash": sub.__hash__ is None,
            "order": attempt(lambda: one < sub(a=2)),
            "changed": [
                attempt(lambda each=each: setattr(each, "a", 7)) for each in (base(a=0), one)
            ],
            # the library trips over itself where a frozen one has slots
            "below": ()
            if how.keys() >= {"frozen", "slots"}
            else (
                attempt(lambda: below(base).more),
                attempt(lambda: setattr(below(base), "a", 7)),
                attempt(lambda: delattr(below(base), "a")),
                attempt(lambda: delattr(below(base), "more")),
                attempt(lambda: setattr(base(a=0), "nosuch", 7)),
            ),
            "deleted": [attempt(lambda each=each: delattr(each, "a")) for each in (base(a=0), one)],
            "made": [one.f, one.g, one.told, other.told, sub(a=1, f=[2]).f, one.f is like.f],
            "subclasses": sub.__subclasses__(),
            "told below": told_below(sub),
            "refused": [
                attempt(sub),
                attempt(lambda: sub(a=1, nosuch=2)),
                attempt(lambda: sub(a=1, g=2)),
                attempt(lambda: sub(1, 2).b),
            ],
            "deep": copy.deepcopy(base(a=[3], b=(1,))).a,
            "kinds": list(inspect.get_annotations(sub.__init__)),
            "named": sub.__init__.__qualname__,
            "copied": copy.copy(other).b,
            "replaced": dataclasses.replace(other, c="z").c,
            "signature": str(inspect.signature(sub)),
            "frozen": sub.__dataclass_params__.frozen,
        }

    assert told(record.dataclass) == told(dataclasses.dataclass)


def test_the_library_compiles_no_method_of_a_class_that_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[object] = []

    def compiling(*said: Any) -> None:
        compiled.append(said)
        exec(*said)

    monkeypatch.setattr(dataclasses, "exec", compiling, raising=False)

    @record.dataclass(frozen=True, slots=True, kw_only=True)
    class Seldom:
        a: int = 0

    assert not compiled
    assert Seldom(a=1).a == 1
    assert compiled
    assert inspect.isfunction(vars(Seldom)["__init__"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed(Record):
    steps: Sequence[tuple[int, float]] = ()


@pytest.mark.parametrize(
    ("said", "read"),
    [
        pytest.param([[0, 1.5], [1, 0.5]], ((0, 1.5), (1, 0.5)), id="as they are"),
        pytest.param([[0, 1.5], [1, 2]], ((0, 1.5), (1, 2.0)), id="a whole number of seconds"),
        pytest.param([[0, "inf"]], ((0, math.inf),), id="one that JSON has no word for"),
        pytest.param([], (), id="none"),
        *(
            pytest.param(wrong, None, id=f"refused: {wrong}")
            for wrong in ([[0, 1.5, 2.5]], [[0]], [[True, 1.5]], ["ab"], [[0, None]], [{"0": 1.5}])
        ),
    ],
)
def test_pairs_are_held_to_their_kinds(
    said: object, read: tuple[tuple[int, float], ...] | None
) -> None:
    if read is None:
        with pytest.raises(LedgerError, match=r"Timed\.steps"):
            Timed.from_json({"steps": said})
        return
    timed = Timed.from_json({"steps": said})
    found = timed.steps
    assert found == read
    assert (found[:1], [*found[1:]]) == (read[:1], [*read[1:]])
    assert timed == Timed(steps=read)
    assert hash(timed) == hash(Timed(steps=read))
    assert Timed.from_json(timed.to_json()) == timed
    assert all(type(at) is int and type(took) is float for at, took in found)


@pytest.mark.parametrize(
    "row",
    [
        pytest.param([0, 1.5], id="numbers"),
        pytest.param([-0.0, 1e-300, 10**20], id="odd numbers"),
        pytest.param([7], id="one"),
        pytest.param([], id="none"),
        pytest.param([True, None], id="no numbers"),
        pytest.param(["], [", 1], id="a text that looks like the next row"),
    ],
)
def test_rows_of_a_long_list_are_laid_out_one_a_line(row: list[Any]) -> None:
    rows = [row, *([[1, 2.5]] * 60), row]
    assert laid_out(rows) == "[\n  " + ",\n  ".join(map(json.dumps, rows)) + "\n]\n"


def test_rows_that_json_has_no_word_for_are_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        laid_out([[0, math.inf]] * 60)
    assert Timed(steps=((0, 1.5), (1, math.nan))).to_json() == {"steps": [[0, 1.5], [1, "nan"]]}
    assert Timed(steps=((0, 1.5), (1, 2.0))).to_json() == {"steps": [[0, 1.5], [1, 2.0]]}


def test_pairs_take_no_more_than_their_numbers() -> None:
    said = {"steps": [[at, 0.5 + at] for at in range(10_000)]}
    tracemalloc.start()
    try:
        timed = Timed.from_json(said)
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(timed.steps) == 10_000
    assert kept_bytes < 20 * 10_000  # 16 of each pair; a tuple of tuples takes 64
