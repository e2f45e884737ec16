"""What becomes of each key of a CVS file: the accounting. The keys are data: `keys.toml`."""

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

# below a key: what all of it becomes, `CLASS: text`, or the keys that may stand there
Use = str | Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One leaf: where it stands, its value, its class, and as what it is used or why not."""

    path: Path
    value: Json
    cls: str
    text: str

    @property
    def name(self) -> str:
        """The path as it is written: `container.env.NCCL_IB_HCA`."""
        return written(self.path)


@cache
def keys_of(generation: str, *path: str) -> Mapping[str, Any]:
    """Return the keys of a generation that may stand below a path; `*` is any other."""
    keys = _tables()[generation]
    for key in path:
        keys = keys[key]
    return keys  # type: ignore[no-any-return]


@cache
def _tables() -> dict[str, Any]:
    text = FilePath(__file__).with_name("keys.toml").read_text(encoding="utf-8")
    return _single(tomllib.loads(text))


def _single(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with one key in each entry."""
    return {
        key: _single(use) if isinstance(use, dict) else use
        for keys, use in table.items()
        for key in keys.split()
    }


def account(
    data: Mapping[str, Json], generation: str, others: Mapping[Path, str]
) -> tuple[Leaf, ...]:
    """Put every leaf of a file into one class.

    Args:
        data: of the file.
        generation: whose keys.
        others: path -> what becomes of it in this file, in the place of what the keys say.
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
            use = f"{IGNORED}: nothing stands here"
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
    return f"{UNKNOWN}: no key of {written(path) or 'the file'} that CVS has{hint}"
