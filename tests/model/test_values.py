"""A value of ours is the library's dataclass, and costs nothing before it is one."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
import threading
from typing import Any, ClassVar

import pytest

from pytest_xlatune.model import values


def made(by: Any, **how: Any) -> tuple[Any, Any]:
    """Return a base and its subclass as one of the two libraries makes them."""

    @by.dataclass(**how)
    class Base:
        kind: ClassVar[str] = "base"
        a: int
        b: tuple[int, ...] = by.field(default_factory=tuple)

        def __post_init__(self) -> None:
            if self.a < 0:
                raise ValueError("negative")

    @by.dataclass(**how)
    class Sub(Base):
        c: str = "x"
        d: int = by.field(default=2, compare=False, repr=False, metadata={"unit": "s"})

    return Base, Sub


WAYS = {
    "frozen": {"frozen": True, "slots": True, "kw_only": True},
    "mutable": {"slots": True, "kw_only": True},
    "by identity": {"frozen": True, "slots": True, "kw_only": True, "eq": False},
    "ordered": {"frozen": True, "slots": True, "kw_only": True, "order": True},
    "without slots": {"frozen": True, "kw_only": True},
}


def attempt(call: Any) -> Any:
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - both must raise the same
        return type(error), str(error)


def said_of(base: Any, sub: Any) -> dict[str, Any]:
    """Return all that a program can see of the two classes."""
    first, second, other = sub(a=1), sub(a=1, d=5), sub(a=3, b=(4,), c="y")
    return {
        "texts": [repr(first), repr(other), repr(base(a=0))],
        "equal": [first == second, first == other, first != second, first == base(a=1)],
        "hash": sub.__hash__ is None or (hash(first) == hash(second)),
        "order": attempt(lambda: (other < first, first <= other)),
        "signature": str(inspect.signature(sub)),
        "fields": [
            (f.name, f.default, dict(f.metadata), f.kw_only) for f in dataclasses.fields(sub)
        ],
        "as a dict": dataclasses.asdict(other),
        "replaced": repr(dataclasses.replace(other, a=9)),
        "copied": [copy.copy(other).b, copy.deepcopy(other).c],
        "unknown": attempt(lambda: sub(q=1)),
        "missing": attempt(sub),
        "refused": attempt(lambda: sub(a=-1)),
        "set": attempt(lambda: setattr(first, "a", 7)) or first.a,
        "deleted": attempt(lambda: delattr(first, "c")) or hasattr(first, "c"),
        "slots": getattr(sub, "__slots__", "none"),
        "match": sub.__match_args__,
        "class variable": sub.kind,
        "module": (sub.__module__, sub.__qualname__.rpartition(".")[2]),
        "a dataclass": (dataclasses.is_dataclass(sub), values.is_dataclass(first)),
        "frozen": sub.__dataclass_params__.frozen,
    }


@pytest.mark.parametrize("how", WAYS.values(), ids=WAYS)
def test_it_is_the_dataclass_that_the_library_makes(how: dict[str, Any]) -> None:
    assert said_of(*made(values, **how)) == said_of(*made(dataclasses, **how))


@pytest.mark.parametrize("first", ["fields", "signature", "equal", "hash", "subclass"])
def test_whatever_is_asked_first_makes_it(first: str) -> None:
    _, sub = made(values, **WAYS["frozen"])
    if first == "fields":
        assert [each.name for each in dataclasses.fields(sub)] == ["a", "b", "c", "d"]
    elif first == "signature":
        assert "a: 'int'" in str(inspect.signature(sub))
    elif first == "subclass":  # of another distribution, by the library
        theirs = dataclasses.make_dataclass(
            "Theirs", ["e"], bases=(sub,), frozen=True, kw_only=True
        )
        assert repr(theirs(a=1, e=2)).endswith("Theirs(a=1, b=(), c='x', e=2)")
    else:
        one, two = sub(a=1), sub(a=1)
        assert one == two if first == "equal" else hash(one) == hash(two)


@values.dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What a process sends to another."""

    a: int
    b: list[int] = values.field(default_factory=list)


def test_it_is_pickled() -> None:
    assert pickle.loads(pickle.dumps(Sent(a=1, b=[2]))) == Sent(a=1, b=[2])


def test_threads_that_ask_at_once_get_one_class() -> None:
    _, sub = made(values, **WAYS["frozen"])
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(repr(sub(a=1)))) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert [text.rpartition(".")[2] for text in found] == ["Sub(a=1, b=(), c='x')"] * 8


def test_a_class_of_which_there_is_no_value_loads_no_library() -> None:
    code = """
import sys
import pytest_xlatune.cli
print("dataclasses" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "False\n"
