"""The objects of a CVS file, and its values: typed, filled in, and with open items found.

Pure, and `ConfigError` is its only error. A *leaf* is a single value, or an empty object or list.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.record import Json

Path = tuple[str | int, ...]

_DEEPEST = 40  # levels of nested objects; the published files have 8
_LONGEST = 1 << 14  # characters of a value with its placeholders filled in
_LARGEST = 1e18  # more than the bytes of the largest machine
_DIGITS = 300  # digits of a number; no setting has more


def written(path: Path) -> str:
    """Return a path as text: keys are joined by dots, and places in a list are in brackets."""
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
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


def objects_of(text: str, *, where: str) -> tuple[dict[str, Json], tuple[str, ...]]:
    """Return the objects of a JSON file, and a note for keys that an object has more than once.

    Raises:
        ConfigError: the text is no JSON object; the message gives line and column.
    """
    notes: list[str] = []

    def pairs(members: list[tuple[str, Json]]) -> dict[str, Json]:
        made = dict(members)
        # a published cluster file has a key three times
        if len(made) != len(members):
            names = [name for name, _ in members]
            twice = sorted({name for name in names if names.count(name) > 1})
            notes.append(
                f"{', '.join(twice)} is more than once in one object; the last value counts"
            )
        return made

    def refuse(word: str) -> Json:
        raise ConfigError(f"{where}: {word} is no number of JSON; write a number or a text")

    try:
        data = json.loads(text, object_pairs_hook=pairs, parse_constant=refuse)
        leaves = list(leaves_of(data))
    # a published cluster file lacks a comma, which line and column help to find
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{where}, line {error.lineno}, column {error.colno}: this is not JSON: {error.msg}"
        ) from None
    except RecursionError:
        leaves = [(("",) * (_DEEPEST + 1), None)]
    except ValueError as error:  # a number has more digits than Python reads
        raise ConfigError(f"{where}: a number cannot be read: {error}") from None
    for path, value in leaves:
        if len(path) > _DEEPEST:
            raise ConfigError(f"{where}: objects are nested too deeply to be a CVS file")
        if isinstance(value, float) and value in (float("inf"), float("-inf")):
            raise ConfigError(f"{where}: {written(path)} is larger than any number")
    if not isinstance(data, dict):
        kind = "a list" if isinstance(data, list) else repr(data)[:40]
        raise ConfigError(f"{where}, line 1: this is {kind}, and a CVS file is an object {{...}}")
    return data, tuple(notes)


# keys of remarks that do not begin with "_":  1__container_image   ex__nccl_ib_hca_list
_COMMENT = re.compile(r"_|_*ex_+|\d+__")


def is_comment(key: str, siblings: object = ()) -> bool:
    """Return whether a key is a remark: `_...`, `ex_...`, `1__...`, or `...__` and another key."""
    if _COMMENT.match(key):
        return True
    _, mark, rest = key.rpartition("__")
    return bool(mark) and isinstance(siblings, dict) and rest in siblings and rest != key


# values to be filled in:  "eno0 <changeme>"   "<change>"   "X.X.X.X"
_OPEN = re.compile(r"<change(?:me)?>|\bX\.X\.X\.X\b", re.IGNORECASE)


def is_open(value: object) -> bool:
    """Return whether a value is a text that has yet to be filled in."""
    return isinstance(value, str) and _OPEN.search(value) is not None


def sample_of(value: str) -> str:
    """Return the file's own example, which comes before the mark of an open value."""
    match = _OPEN.search(value)
    return value[: match.start()].strip() if match else value


_NUMBER = re.compile(r"[+-]?(?:\d[\d_]*(?:\.[\d_]*)?|\.\d[\d_]*)(?:[eE][+-]?\d+)?")


def typed(value: Json) -> Json:
    """Return the number or the boolean that a text spells; other values are returned as they are.

    "500_000" becomes 500000, and "False" becomes false.
    """
    if isinstance(value, float):
        return plain(value)
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if len(text) < _DIGITS and _NUMBER.fullmatch(text):
        number = float(text.replace("_", ""))
        if re.fullmatch(r"[+-]?[\d_]+", text):
            return int(text.replace("_", ""))
        return plain(number) if abs(number) != float("inf") else text
    return text


def plain(number: float) -> float | int:
    """Return a whole number as an int, so that 2.0 is written as 2 in JSON and in a digest."""
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
    """The objects of one file; each error of a getter names the path.

    `words` has the values of the placeholders, and `notes` collects remarks for the user.
    """

    def __init__(self, data: dict[str, Json], *, where: str, words: Mapping[str, str]) -> None:
        self.data = data
        self.where = where
        self.notes: list[str] = []
        paths = {name: text for name, text in self.table("paths").items() if isinstance(text, str)}
        self.words = {**words, **paths, **{f"paths.{name}": text for name, text in paths.items()}}

    def wrong(self, path: Path, value: object, expected: str) -> ConfigError:
        """Return the error for a value that is not what CVS expects there."""
        shown = f"{value!r:.60}" if not isinstance(value, dict | list) else type(value).__name__
        return ConfigError(f"{self.where}: {written(path)} is {shown}, expected {expected}")

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
        for _ in range(_DEEPEST):
            filled = PLACEHOLDER.sub(lambda match: self.words.get(match[1], match[0]), text)
            if filled == text:
                return text
            text = filled
            if len(text) > _LONGEST:
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
                raise self.wrong(path[:depth], value, "an object")
            value = value.get(str(key))
        return value

    def table(self, *path: str | int) -> dict[str, Any]:
        """Return an object without its remarks; {} if it is missing."""
        table = self.get(*path)
        if table is None:
            return {}
        if not isinstance(table, dict):
            raise self.wrong(path, table, "an object")
        return {key: value for key, value in table.items() if not is_comment(key)}

    def texts(self, *path: str | int) -> list[str]:
        """Return a list of texts, filled in; [] if it is missing."""
        texts = self.get(*path)
        if texts is None:
            return []
        if not isinstance(texts, list):
            raise self.wrong(path, texts, "a list")
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise self.wrong((*path, index), text, "a text")
        return [self.filled(text) for text in texts]

    def text(self, *path: str | int) -> str:
        """Return a text or a number as text, filled in; "" if it is missing."""
        value = self.get(*path)
        if isinstance(value, dict | list):
            raise self.wrong(path, value, "a text")
        return setting_text(self.filled(value))

    def number(self, path: Path, value: Json) -> float | None:
        """Return a value as a number; None if it is missing or open."""
        if value is None or is_open(value) or value == "":
            return None
        number = typed(value)
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise self.wrong(path, value, "a number")
        if abs(number) > _LARGEST:
            raise self.wrong(path, value, "a number below 1e18")
        return number

    def count(self, path: Path, value: Json) -> int | None:
        """Return a value as a whole number of at least 1; None if it is missing or open."""
        number = self.number(path, value)
        if number is not None and (number != int(number) or number < 1):
            raise self.wrong(path, value, "a whole number, at least 1")
        return None if number is None else int(number)

    def truth(self, *path: str | int, default: bool = False) -> bool:
        """Return a boolean, which the file may spell as "True" or "1"."""
        stated = self.get(*path)
        if stated is None or is_open(stated) or stated == "":
            return default
        value = typed(stated)  # "1" becomes 1, and 1 equals True
        if isinstance(value, dict | list) or value not in (True, False):
            raise self.wrong(path, stated, "true or false")
        return bool(value)
