"""Read a CVS file into objects, and read typed values from them.

A *leaf* is a single value, or an empty object or list. A value is *open* if the file has only a
mark such as `<changeme>` in its place. `ConfigError` is the only error.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any

from pytest_xlatune import secure_files
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.record import Json

Path = tuple[str | int, ...]

_MOST_LEVELS = 40  # the most levels of nested objects; the published files have 8
_MOST_CHARS = 1 << 14  # the most characters of a value with its placeholders filled in
_MOST_VALUE = 1e18  # the largest number; more than the bytes of the largest machine


def path_text(path: Path) -> str:
    """Return a path as text: keys are joined by dots, and places in a list are in brackets."""
    text = ""
    for key in path:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            text += f".{key}" if text else key
    return text


def leaves_of(value: Json, path: Path = ()) -> Iterator[tuple[Path, Json]]:
    """Yield every leaf below a value, with its path."""
    if isinstance(value, dict) and value:
        for key, child in value.items():
            yield from leaves_of(child, (*path, key))
    elif isinstance(value, list) and value:
        for index, child in enumerate(value):
            yield from leaves_of(child, (*path, index))
    else:
        yield path, value


def objects_of(path: FilePath) -> dict[str, Json]:
    """Return the objects of a JSON file, in which no number is too large to be read.

    Raises:
        ConfigError: the file cannot be read, or is not a JSON object.
    """

    def number_of(word: str) -> float:
        number = float(word)
        if not math.isfinite(number):
            raise ConfigError(f"{path}: {word} is not a number that can be read")
        return number

    try:
        text = secure_files.read_named(path, encoding="utf-8-sig")
        data = json.loads(text, parse_float=number_of, parse_constant=number_of)
        depth = max(len(leaf_path) for leaf_path, _ in leaves_of(data))
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{path}, line {error.lineno}, column {error.colno}: this is not JSON: {error.msg}"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; name a JSON file of CVS") from None
    if not isinstance(data, dict) or depth > _MOST_LEVELS:
        raise ConfigError(f"{path}: a CVS file is an object {{...}} of few levels")
    return data


# the beginnings of keys that are remarks:  _comment    1__container_image    ex__nccl_ib_hca_list
_COMMENT = re.compile(r"_|_*ex_+|\d+__")


def is_comment(key: str, siblings: object = ()) -> bool:
    """Return whether a key is a remark.

    It is one if it begins like a remark, or if it is `...__KEY` for a KEY of the same object.
    """
    if _COMMENT.match(key):
        return True
    _, mark, rest = key.rpartition("__")
    return bool(mark) and isinstance(siblings, dict) and rest in siblings


# the mark of a value that the user has to change:  "eno0 <changeme>"   "<change>"   "X.X.X.X"
_CHANGE_MARK = re.compile(r"<change(?:me)?>|\bX\.X\.X\.X\b", re.IGNORECASE)


def has_change_mark(value: object) -> bool:
    """Return whether a value is a text with a mark that the user has to change it."""
    return isinstance(value, str) and _CHANGE_MARK.search(value) is not None


def sample_of(value: str) -> str:
    """Return the example before the mark; a value without the mark is returned unchanged."""
    match = _CHANGE_MARK.search(value)
    return value[: match.start()].strip() if match else value


_NUMBER = re.compile(r"[+-]?(?:\d[\d_]*(?:\.[\d_]*)?|\.\d[\d_]*)(?:[eE][+-]?\d+)?")


def typed(value: Json) -> Json:
    """Return the number or the boolean that a text spells; return other values unchanged.

    "500_000" becomes 500000, and "False" becomes False.
    """
    if isinstance(value, float):
        return whole_as_int(value)
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    number = float(text.replace("_", "")) if _NUMBER.fullmatch(text) else math.inf
    return whole_as_int(number) if abs(number) < _MOST_VALUE else text


def whole_as_int(number: float) -> float | int:
    """Return a whole number as an int, so that JSON and digests have 2 instead of 2.0."""
    return int(number) if number == int(number) and abs(number) < 1e15 else number  # noqa: PLR2004


def setting_text(value: Json) -> str:
    """Return a value as an argument of MaxText or a variable: true, 500000, ["a","b"]."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


# placeholders:  {user-id}   {paths.models_dir}
PLACEHOLDER = re.compile(r"\{([A-Za-z_][\w.-]*)\}")


class Source:
    """The objects of one file. Its methods return typed values, and their errors name the path.

    Attributes:
        data: the objects.
        where: the name of the file in messages.
        words: placeholder -> its value, also for the file's own `paths`.
        notes: remarks on the file for the user; readers of the file add to them.
    """

    def __init__(self, data: dict[str, Json], *, where: str, words: Mapping[str, str]) -> None:
        self.data = data
        self.where = where
        self.notes: list[str] = []
        paths = {name: text for name, text in self.table("paths").items() if isinstance(text, str)}
        self.words = {**words, **paths, **{f"paths.{name}": text for name, text in paths.items()}}

    def error_at(self, path: Path, value: object, expected: str) -> ConfigError:
        """Return the error for a value that is not what CVS expects at its path."""
        shown = f"{value!r:.60}" if not isinstance(value, dict | list) else type(value).__name__
        return ConfigError(f"{self.where}: {path_text(path)} is {shown}, expected {expected}")

    def filled(self, value: Any) -> Any:
        """Return a value with the placeholders in its texts filled in.

        Raises:
            ConfigError: placeholders refer to each other in a circle.
        """
        if isinstance(value, list):
            return [self.filled(child) for child in value]
        if not isinstance(value, str):
            return value
        text = value
        # repeated, because the value of a placeholder may contain placeholders
        for _ in range(_MOST_LEVELS):
            filled = PLACEHOLDER.sub(lambda match: self.words.get(match[1], match[0]), text)
            if filled == text:
                return text
            text = filled
            if len(text) > _MOST_CHARS:
                break
        raise ConfigError(
            f"{self.where}: the placeholders in {value!r:.80} refer to each other in a circle"
        )

    def get(self, *path: str | int) -> Any:
        """Return the value at a path; None if a key is missing."""
        value: Any = self.data
        for depth, key in enumerate(path):
            if value is None:
                return None
            if not isinstance(value, dict):
                raise self.error_at(path[:depth], value, "an object")
            value = value.get(str(key))
        return value

    def table(self, *path: str | int) -> dict[str, Any]:
        """Return an object without its remarks; {} if it is missing."""
        table = self.get(*path)
        if table is None:
            return {}
        if not isinstance(table, dict):
            raise self.error_at(path, table, "an object")
        return {key: value for key, value in table.items() if not is_comment(key)}

    def texts(self, *path: str | int) -> list[str]:
        """Return a list of texts, filled in; [] if it is missing."""
        texts = self.get(*path)
        if texts is None:
            return []
        if not isinstance(texts, list):
            raise self.error_at(path, texts, "a list")
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise self.error_at((*path, index), text, "a text")
        return [self.filled(text) for text in texts]

    def text(self, *path: str | int) -> str:
        """Return a text or a number as text, filled in; "" if it is missing."""
        value = self.get(*path)
        if isinstance(value, dict | list):
            raise self.error_at(path, value, "a text")
        return setting_text(self.filled(value))

    def number(self, path: Path, value: Json) -> float | None:
        """Return a value as a number; None if it is missing or has a change mark."""
        if value is None or has_change_mark(value) or value == "":
            return None
        number = typed(value)
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        if is_number and abs(number) <= _MOST_VALUE:
            return number  # type: ignore[no-any-return]
        raise self.error_at(path, value, "a number below 1e18")

    def count(self, path: Path, value: Json) -> int | None:
        """Return a whole number of at least 1; None if it is missing or has a change mark."""
        number = self.number(path, value)
        if number is not None and (number != int(number) or number < 1):
            raise self.error_at(path, value, "a whole number, at least 1")
        return None if number is None else int(number)

    def truth(self, *path: str | int, default: bool = False) -> bool:
        """Return a boolean, which the file may spell as "True" or "1"."""
        stated = self.get(*path)
        if stated is None or has_change_mark(stated) or stated == "":
            return default
        value = typed(stated)  # "1" becomes 1, and 1 equals True
        if isinstance(value, dict | list) or value not in (True, False):
            raise self.error_at(path, stated, "true or false")
        return bool(value)
