"""A sentence that stays a value: its English text, and the values that stand in it.

    say("the budget of {budget} jobs left {left:+trial}", budget=50, left=2)
    verbatim("Killed by the site")

A message is stated where the thing is decided. The ledger and every JSON text keep the text and the
values, so that a number stays a number; the English text is also the msgid of a translation. What
others said, a scheduler or a log, is a value, and is never read as a text.

A text names its values, each with the way in which it is written:

    {arm}  {p:.3f}      as Python writes it; nothing where the value is None
    {sigma:.2%}         a share, 0.61 %
    {change:percent}    a change with its sign, +3.4 %
    {loss:size}         the same without a sign, where it has no direction
    {took_s:time}       a duration
    {jobs:+job}         a counted noun, 1 job or 3 jobs
    {arms}              several values, with commas
    {lines: | }         several values, with other words between them

A value that is itself a message is its sentence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Self

from pytest_xlatune.model.record import Json, Real, Record
from pytest_xlatune.model.text import counted, duration, percent, size

# a number, a name, another message, several of them, or None where there is none
Value = Any
Translate = Callable[[str], str]
# {arm}  {jobs:+job}  {p:.3f}
_FIELD = re.compile(r"\{(?P<name>[a-z]\w*)(?::(?P<how>[^{}]*))?\}")
# .3f  .2%  g
_NUMBER = re.compile(r"(?:\.\d)?[efg%]")


class MessageCode(StrEnum):
    """What code recognises a message by."""

    NO_TURNS = "no-turns"  # the log's lines are no turns of programs
    BOTH_PLANS = "both-plans"  # its values are the work of two plans
    OWN_NOISE = "own-noise"
    DUNNETT = "dunnett"
    SURVIVORS = "survivors"
    PGLE = "pgle"
    UNAIMED = "unaimed"


class Values(dict[str, Value]):
    """The values of a message by name. A list is kept as a tuple."""

    def __init__(self, values: Mapping[str, Value] | Iterable[tuple[str, Value]] = ()) -> None:
        super().__init__({name: _kept(value) for name, value in dict(values).items()})

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    @classmethod
    def from_json(cls, data: Json) -> Self:
        """Return the values that JSON holds.

        Raises:
            TypeError: it has no names.
        """
        if not isinstance(data, dict):
            raise TypeError("expected values by name")
        return cls({name: _read(item) for name, item in data.items()})


class Message(Record, frozen=True, kw_only=True):
    """A text and its values. Equal, hashable, and the same after a way through JSON.

    Attributes:
        text: the English text, with its values named in braces.
        values: name -> number, name, other message, several of these, or None.
        code: by which code recognises it; None of most.
    """

    text: str
    values: Values = Values()
    code: MessageCode | None = None

    def __format__(self, spec: str) -> str:
        raise TypeError(f"`sentence` writes a message: {self!r}")

    def changed(self, text: Callable[[str], str]) -> Message:
        """Return the message with each text of its values changed, those of its messages too."""

        def new(value: Value) -> Value:
            if isinstance(value, Message):
                return value.changed(text)
            if isinstance(value, tuple):
                return tuple(map(new, value))
            return text(value) if type(value) is str else value

        return self.with_values(**{name: new(value) for name, value in self.values.items()})

    def with_values(self, **values: Value) -> Message:
        """Return the message with other values."""
        return Message(text=self.text, values=Values({**self.values, **values}), code=self.code)

    def to_json(self) -> dict[str, Json]:
        """Return the text, and the values and the code where there are any, as builtins."""
        return {name: value for name, value in super().to_json().items() if value or name == "text"}


def say(text: str, /, **values: Value) -> Message:
    """Return a message; `text` names each of the values that it shows."""
    return Message(text=text, values=Values(values))


def coded(code: MessageCode | None, text: str, /, **values: Value) -> Message:
    """Return a message that code recognises by its code."""
    return Message(text=text, values=Values(values), code=code)


def verbatim(text: str) -> Message:
    """Return what others said, a log or a scheduler, as they said it."""
    return say("{text}", text=text)


def first(messages: Iterable[Message | None]) -> Message | None:
    """Return the first message that there is."""
    return next((message for message in messages if message is not None), None)


def several(messages: Sequence[Message]) -> Message | None:
    """Return messages that hold together as one; None where there is none."""
    if len(messages) > 1:
        return say("{reasons:; }", reasons=messages)
    return first(messages)


def at_most(most: int, values: Sequence[Value]) -> tuple[Value, ...]:
    """Return the first values, and how many more there are."""
    more = len(values) - most
    return (*values[:most], say("and {more} more", more=more)) if more > 0 else tuple(values)


def sentence(message: Message | None, translate: Translate = str) -> str:
    """Return the sentence of a message, in the language of `translate`; "" of none.

    It may quote a log, so it is no markup.
    """
    if message is None:
        return ""
    return _filled(translate(message.text), message.values, translate)


def _kept(value: Value) -> Value:
    return tuple(map(_kept, value)) if isinstance(value, list | tuple | range) else value


def _read(item: Json) -> Value:
    if isinstance(item, dict):
        return Message.from_json(item)
    if isinstance(item, list):
        return tuple(map(_read, item))
    return Real.from_json(item) if item in ("nan", "inf", "-inf") else item  # type: ignore[attr-defined]


_WRITERS: Mapping[str, Callable[[Any], str]] = {"percent": percent, "size": size, "time": duration}


def _filled(text: str, values: Mapping[str, Value], translate: Translate) -> str:
    # one pass over the text, so that braces inside of a value are not taken for fields
    def write(match: re.Match[str]) -> str:
        return _written(values.get(match["name"]), match["how"] or "", translate)

    return _FIELD.sub(write, text)


def _written(value: Value, how: str, translate: Translate) -> str:
    if value is None:
        return ""
    if isinstance(value, Message):
        return sentence(value, translate)
    if isinstance(value, tuple):
        return (how or ", ").join(_written(part, "", translate) for part in value)
    if isinstance(value, int | float):
        return _number(value, how)
    return str(value)


def _number(value: float, spec: str) -> str:
    if spec in _WRITERS:
        return _WRITERS[spec](value)
    if spec.startswith("+"):
        return counted(int(value), spec[1:])
    if _NUMBER.fullmatch(spec):
        return format(value, spec).replace("%", " %")
    return str(value)
