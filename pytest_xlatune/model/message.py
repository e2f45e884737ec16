"""A sentence that stays a value: an English text, and the values to fill in.

    say("the budget of {budget} jobs left {left:+trial}", budget=50, left=2)
    verbatim("Killed by the site")

A message is written where its content is decided. The ledger and JSON keep the text and the values,
so that a number stays a number; the text is also the msgid of its translation. A text from
elsewhere, such as a scheduler or a log, is only ever a value.

A text has fields, each with the name of a value and a format:

    {arm}  {p:.3f}      as Python writes it; nothing if the value is None
    {sigma:.2%}         a share, 0.61 %
    {change:percent}    a change with its sign, +3.4 %
    {loss:size}         the same without a sign, if the direction is clear
    {took_s:time}       a duration
    {jobs:+job}         a counted noun, 1 job or 3 jobs
    {arms}              several values, separated by commas
    {lines: | }         several values with another separator

A value that is itself a message is replaced by its sentence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Self

from pytest_xlatune.model.record import Json, Real, Record
from pytest_xlatune.model.text import counted, duration, percent, size

# a number, a text, another message, several of these, or None
Value = Any
Translate = Callable[[str], str]
# fields of a text:  {arm}  {jobs:+job}  {p:.3f}
_FIELD = re.compile(r"\{(?P<name>[a-z]\w*)(?::(?P<format>[^{}]*))?\}")
# formats of Python that are allowed:  .3f  .2%  g
_NUMBER = re.compile(r"(?:\.\d)?[efg%]")


class MessageCode(StrEnum):
    """What a message says, where the program acts on it."""

    NO_TURNS = "no-turns"  # the lines of the log show no turns of programs
    SMALLEST_GAIN = "smallest-gain"  # what a plan finds at a noise that is assumed or calibrated
    OWN_NOISE = "own-noise"  # an arm is compared with a noise estimated from it alone
    DUNNETT = "dunnett"  # the comparison is Dunnett's
    SURVIVORS = "survivors"  # so many runs were lost that the rest may be a biased choice
    PGLE = "pgle"  # XLA scheduled without the profile for its scheduler


class Values(dict[str, Value]):
    """The values of a message by name. Lists become tuples."""

    def __init__(self, values: Mapping[str, Value] | Iterable[tuple[str, Value]] = ()) -> None:
        super().__init__({name: _lists_as_tuples(value) for name, value in dict(values).items()})

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    @classmethod
    def from_json(cls, data: Json) -> Self:
        """Return the values in JSON data.

        Raises:
            TypeError: the data are no mapping.
        """
        if not isinstance(data, dict):
            raise TypeError("expected values by name")
        return cls({name: _value_from_json(item) for name, item in data.items()})


class Message(Record, frozen=True, kw_only=True):
    """A text and its values. Messages are hashable, and stay equal through JSON.

    Attributes:
        text: the English text, with the names of its values in braces.
        values: name -> number, text, other message, several of these, or None.
        code: what the message says, if the program acts on it; None for most.
    """

    text: str
    values: Values = Values()
    code: MessageCode | None = None

    def __format__(self, spec: str) -> str:
        raise TypeError(f"write a message with `sentence`, not in an f-string: {self!r}")

    def changed(self, change: Callable[[str], str]) -> Message:
        """Return the message with `change` applied to every text in its values, nested ones too."""

        def new(value: Value) -> Value:
            if isinstance(value, Message):
                return value.changed(change)
            if isinstance(value, tuple):
                return tuple(map(new, value))
            return change(value) if type(value) is str else value

        return self.with_values(**{name: new(value) for name, value in self.values.items()})

    def with_values(self, **values: Value) -> Message:
        """Return the message with some values replaced or added."""
        return Message(text=self.text, values=Values({**self.values, **values}), code=self.code)

    def to_json(self) -> dict[str, Json]:
        """Return the text, values and code as JSON data; empty ones are left out."""
        return {name: value for name, value in super().to_json().items() if value or name == "text"}


def say(text: str, /, **values: Value) -> Message:
    """Return a message; `text` has a field for each value that it shows."""
    return Message(text=text, values=Values(values))


def coded(code: MessageCode | None, text: str, /, **values: Value) -> Message:
    """Return a message that the program recognises by its code."""
    return Message(text=text, values=Values(values), code=code)


def verbatim(text: str) -> Message:
    """Return a message that quotes a log or a scheduler word for word."""
    return say("{text}", text=text)


def first(messages: Iterable[Message | None]) -> Message | None:
    """Return the first message that is not None; None if there is none."""
    return next((message for message in messages if message is not None), None)


def several(messages: Sequence[Message]) -> Message | None:
    """Return several messages as one; None if there are none."""
    if len(messages) > 1:
        return say("{reasons:; }", reasons=messages)
    return first(messages)


def at_most(most: int, values: Sequence[Value]) -> tuple[Value, ...]:
    """Return the first `most` values, then how many more there are."""
    more = len(values) - most
    return (*values[:most], say("and {more} more", more=more)) if more > 0 else tuple(values)


def sentence(message: Message | None, translate: Translate = str) -> str:
    """Return the sentence of a message, in the language of `translate`; "" for None.

    It may quote a log, so it must not be used as markup.
    """
    if message is None:
        return ""
    return _filled(translate(message.text), message.values, translate)


def _lists_as_tuples(value: Value) -> Value:
    if isinstance(value, list | tuple | range):
        return tuple(map(_lists_as_tuples, value))
    return value


def _value_from_json(item: Json) -> Value:
    if isinstance(item, dict):
        return Message.from_json(item)
    if isinstance(item, list):
        return tuple(map(_value_from_json, item))
    return Real.from_json(item) if item in ("nan", "inf", "-inf") else item  # type: ignore[attr-defined]


_WRITERS: Mapping[str, Callable[[Any], str]] = {"percent": percent, "size": size, "time": duration}


def _filled(text: str, values: Mapping[str, Value], translate: Translate) -> str:
    # in one pass, so that braces inside a value are not taken for fields
    def write(match: re.Match[str]) -> str:
        return _written(values.get(match["name"]), match["format"] or "", translate)

    return _FIELD.sub(write, text)


def _written(value: Value, spec: str, translate: Translate) -> str:
    if value is None:
        return ""
    if isinstance(value, Message):
        return sentence(value, translate)
    if isinstance(value, tuple):
        separator = spec or ", "
        return separator.join(_written(part, "", translate) for part in value)
    if isinstance(value, int | float):
        return _number(value, spec)
    return str(value)


def _number(value: float, spec: str) -> str:
    if spec in _WRITERS:
        return _WRITERS[spec](value)
    if spec.startswith("+"):
        return counted(int(value), spec[1:])
    if _NUMBER.fullmatch(spec):
        return format(value, spec).replace("%", " %")
    return str(value)
