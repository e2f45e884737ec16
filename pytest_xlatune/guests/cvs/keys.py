"""What becomes of each key of a CVS file. The keys are data: `keys.toml`."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path as FilePath
from typing import Any

from pytest_xlatune.guests.cvs.source import Path, is_comment, leaves_of, written
from pytest_xlatune.model.record import Json

USED, DIFFERENT, DROPPED = "used", "different", "dropped"
IGNORED, COMMENT, UNKNOWN = "ignored", "comment", "unknown"
CLASSES = (USED, DIFFERENT, DROPPED, IGNORED, COMMENT, UNKNOWN)

# what becomes of everything below a key (`CLASS: text`), or the keys that may be below it
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
        return written(self.path)


@cache
def keys_of(generation: str, *path: str) -> Mapping[str, Any]:
    """Return the keys that may be below a path in a generation; `*` matches any other key."""
    keys = _tables()[generation]
    for key in path:
        keys = keys[key]
    return keys  # type: ignore[no-any-return]


@cache
def _tables() -> dict[str, Any]:
    text = FilePath(__file__).with_name("keys.toml").read_text(encoding="utf-8")
    return _single(tomllib.loads(text))


def _single(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a nested table in which keys that share an entry have one each."""
    return {
        key: _single(use) if isinstance(use, dict) else use
        for keys, use in table.items()
        for key in keys.split()
    }


def account(
    data: Mapping[str, Json], generation: str, others: Mapping[Path, str]
) -> tuple[Leaf, ...]:
    """Return every leaf of a file with its class.

    Args:
        data: the objects of the file.
        generation: the generation of the file, which decides what becomes of a key.
        others: path -> what becomes of it in this file, if that differs from what its key says.
    """
    leaves: list[Leaf] = []
    _walk(data, (), keys_of(generation), others, leaves)
    return tuple(leaves)


def _walk(
    value: Json, path: Path, use: Use, others: Mapping[Path, str], leaves: list[Leaf]
) -> None:
    use = others.get(path, use)
    if isinstance(value, dict) and value:
        for key, child in value.items():
            below = _below(use, key, path)
            is_named = isinstance(use, Mapping) and key in use
            if is_comment(key, value) and not is_named:
                below = f"{COMMENT}: a remark"
            _walk(child, (*path, key), below, others, leaves)
        return
    if not isinstance(use, str):
        if value == {}:
            use = f"{IGNORED}: there is no value here"
        else:
            use = use.get("*", "")
            use = use if isinstance(use, str) and use else f"{UNKNOWN}: an object is expected here"
    cls, _, text = use.partition(": ")
    leaves += [Leaf(path=at, value=leaf, cls=cls, text=text) for at, leaf in leaves_of(value, path)]


def _below(use: Use, key: str, path: Path) -> Use:
    if isinstance(use, str):
        return use
    known: Use | None = use.get(key, use.get("*"))
    if known is not None:
        return known
    near = difflib.get_close_matches(key, use, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{UNKNOWN}: CVS has no such key in {written(path) or 'the file'}{hint}"
