"""The trainer's configuration, a YAML text: its keys are read, one is changed where it stands.

ruamel.yaml tells where each value begins and ends. Only the characters of a changed value are
replaced, so that comments, quotes, blanks and order stay as a person wrote them and a patch shows
the change alone. The result is read again before it is handed out. Pure.
"""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from typing import Any

# a scalar that YAML reads as it stands:  false   0.5   minimal_flash
_PLAIN = re.compile(r"[A-Za-z0-9_.+/][A-Za-z0-9_.+/-]*|-[0-9.][A-Za-z0-9_.+/-]*")
_BLOCK = "(several lines)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A key at the top of a configuration.

    Attributes:
        key: its name.
        value: a scalar's text without quotes, "" where it is empty; None for a list or a table.
        written: as the file has it, in one line.
        at: where the value begins and ends in the text; None where one line does not hold all of
            it, or other keys refer to it.
    """

    key: str
    value: str | None
    written: str
    at: tuple[int, int] | None


def settings_of(text: str) -> tuple[Setting, ...] | None:
    """Return the keys at the top of a YAML text in its order; None where it is no YAML table."""
    from ruamel.yaml import YAML, MappingNode
    from ruamel.yaml.error import YAMLError

    try:
        root = YAML().compose(io.StringIO(text))
    except YAMLError:
        return None
    if root is None:
        return ()
    if not isinstance(root, MappingNode):
        return None
    return tuple(_setting(text, key, value) for key, value in root.value)


def values_of(text: str) -> dict[str, str]:
    """Return the scalars at the top of a YAML text, by their keys."""
    found = settings_of(text) or ()
    return {each.key: each.value for each in found if each.value is not None}


def with_value(text: str, key: str, value: str) -> str | None:
    """Return a YAML text with a key at its top set; None where the key has no single value."""
    before = settings_of(text)
    if before is None:
        return None
    written = value if _PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=False)
    same = [each for each in before if each.key == key]
    if not same:
        ended = text if not text or text.endswith("\n") else f"{text}\n"
        made = f"{ended}{key}: {written}\n"
    elif len(same) == 1 and same[0].at is not None:
        start, end = same[0].at
        blank = " " if text[start - 1] == ":" else ""
        made = f"{text[:start]}{blank}{written}{text[end:]}"
    else:
        return None
    wanted = {each.key: each.value for each in before} | {key: value}
    after = {each.key: each.value for each in settings_of(made) or ()}
    return made if after == wanted else None


def _setting(text: str, key: Any, node: Any) -> Setting:
    start, end = node.start_mark.index, node.end_mark.index
    if start == end:  # an empty value stands where the next key begins
        start = end = text.find(":", key.end_mark.index) + 1
    is_scalar = isinstance(node.value, str)
    is_block = not is_scalar and not node.flow_style
    # an alias is the very node that it refers to, which stands further up
    is_alias = start < key.end_mark.index
    is_one_line = is_scalar and "\n" not in text[start:end]
    return Setting(
        key=str(key.value),
        value=node.value if is_scalar else None,
        written=_BLOCK if is_block else " ".join(text[start:end].split()),
        at=(start, end) if is_one_line and not is_alias and not node.anchor else None,
    )
