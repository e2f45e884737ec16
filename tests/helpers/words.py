"""The reasons in the JSON of reports and ledgers, as a reader sees them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pytest_xlatune.model.message import Message, sentence


def in_words(told: Any) -> str:
    """Return the sentence of a reason, those of several in one line, "" of none."""
    if isinstance(told, list):
        return " ".join(map(in_words, told))
    return sentence(Message.from_json(told)) if told else ""


def with_values(told: Iterable[Message], *names: str) -> list[Message]:
    """Return the messages that have just these values: they tell a message whatever its words."""
    return [each for each in told if each.values.keys() == {*names}]
