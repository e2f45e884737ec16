"""What becomes of each key of a CVS file; `keys.toml` has the keys."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path as FilePath
from typing import Any

from pytest_xlatune.guests.cvs.source import Path, is_comment, leaves_of, path_text
from pytest_xlatune.model.record import Json

# the classes of leaves; `keys.toml` says what they mean
USED, DIFFERENT, DROPPED = "used", "different", "dropped"
IGNORED, COMMENT, UNKNOWN = "ignored", "comment", "unknown"
CLASSES = (USED, DIFFERENT, DROPPED, IGNORED, COMMENT, UNKNOWN)

# a use is either `CLASS: text`, for all that is below a key, or the keys that may be below it, each
# with its own use
Use = str | Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One leaf of a file: its path, its value, its class, and how it is used or why it is not."""

    path: Path
    value: Json
    cls: str
    text: str

    @property
    def name(self) -> str:
        """The path in the notation of messages: `container.env.NCCL_IB_HCA`."""
        return path_text(self.path)


@cache
def keys_of(generation: str, *path: str) -> Mapping[str, Any]:
    """Return the keys that may be below a path in a generation; `*` matches any other key."""
    keys = _tables()[generation]
    for key in path:
        keys = keys[key]
    return keys  # type: ignore[no-any-return]


@cache
def _tables() -> dict[str, Any]:
    """Return the content of `keys.toml`: generation -> its keys."""
    text = FilePath(__file__).with_name("keys.toml").read_text(encoding="utf-8")
    return _one_key_each(tomllib.loads(text))


def _one_key_each(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a nested table in which each key is separate: "a b" = x becomes a = x and b = x."""
    separate = {}
    for keys, use in table.items():
        for key in keys.split():
            separate[key] = _one_key_each(use) if isinstance(use, dict) else use
    return separate


def account(
    data: Mapping[str, Json], generation: str, others: Mapping[Path, str]
) -> tuple[Leaf, ...]:
    """Return every leaf of a file with its class.

    Args:
        data: the objects of the file.
        generation: the generation of the file, which decides what becomes of a key.
        others: path -> what becomes of it in this file, if its entry in `keys.toml` does not apply.
    """
    leaves: list[Leaf] = []
    _add_leaves(data, (), keys_of(generation), others, leaves)
    return tuple(leaves)


def _add_leaves(
    value: Json, path: Path, use: Use, others: Mapping[Path, str], leaves: list[Leaf]
) -> None:
    """Append the leaves below a value to `leaves`; `use` is the entry for its path."""
    use = others.get(path, use)
    if isinstance(value, dict) and value:
        for key, child in value.items():
            child_use = _use_of_child(use, key, path)
            is_named = isinstance(use, Mapping) and key in use
            if is_comment(key, value) and not is_named:
                child_use = f"{COMMENT}: a remark"
            _add_leaves(child, (*path, key), child_use, others, leaves)
        return
    if not isinstance(use, str):
        if value == {}:
            use = f"{IGNORED}: there is no value here"
        else:
            use = use.get("*", "")
            use = use if isinstance(use, str) and use else f"{UNKNOWN}: an object is expected here"
    cls, _, text = use.partition(": ")
    leaves += [Leaf(path=at, value=leaf, cls=cls, text=text) for at, leaf in leaves_of(value, path)]


def _use_of_child(use: Use, key: str, path: Path) -> Use:
    """Return the entry for a key, given the entry for the path of its object."""
    if isinstance(use, str):
        return use
    known: Use | None = use.get(key, use.get("*"))
    if known is not None:
        return known
    near = difflib.get_close_matches(key, use, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{UNKNOWN}: CVS has no such key in {path_text(path) or 'the file'}{hint}"
