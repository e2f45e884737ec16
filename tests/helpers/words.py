"""The JSON of reports and ledgers, read without the product's own reader, and its reasons."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
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


def whole_lines(path: Path) -> list[dict[str, Any]]:
    """Return what the lines hold; one that was torn is left out, wherever it was cut."""
    held = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            held.append(json.loads(line))
        except ValueError:
            continue
    return held


def events_in(ledgers: Iterable[Path], kind: str) -> list[dict[str, Any]]:
    """Return the events of a kind in some ledgers, which are read in the order of their names."""
    lines = (line for path in sorted(ledgers) for line in whole_lines(path))
    return [line for line in lines if line["event"] == kind]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Give each place of a value of JSON: the container and the key."""
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    for key in list(keys):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])
