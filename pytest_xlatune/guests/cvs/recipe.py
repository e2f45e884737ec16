"""Values of a CVS file changed in its text: a recipe, thresholds; all else stays as it was written.

Comments, order, blanks and spellings are a person's: only the characters of a changed value are
replaced, and a key that is new follows the last of its object. The result is read again before it
is handed out. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from pytest_xlatune.guests.cvs._draft import MODES
from pytest_xlatune.guests.cvs._keys import (
    DISTRIBUTED_KEYS,
    FIRST_KEYS,
    OF_THE_LAUNCHER,
    SINGLE_KEYS,
)
from pytest_xlatune.guests.cvs._values import (
    CvsCell,
    CvsFile,
    Path,
    is_comment,
    setting_text,
    typed,
    written,
)
from pytest_xlatune.model.channels import on_top
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import (
    APPENDING,
    Profile,
    effective_values,
    format_flags,
    parse_flags,
)
from pytest_xlatune.model.record import Json, dataclass
from pytest_xlatune.model.redact import is_secret

_DECODER = json.JSONDecoder()
_BLANK = re.compile(r"[ \t\n\r]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a value stands; of an object also where its last value ends and how a key is set in."""

    start: int
    end: int
    last: int | None = None
    indent: str = ""


class _Scan:
    """The places of all values of a JSON text that was read before, so that it has no fault."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.places: dict[Path, _Place] = {}
        self._value(self._skip(0), ())

    def _skip(self, at: int) -> int:
        found = _BLANK.match(self.text, at)
        return found.end() if found else at

    def _value(self, at: int, path: Path) -> int:
        first = self.text[at]
        last, indent = None, ""
        if first == "{":
            end, last, indent = self._members(at, path)
        elif first == "[":
            end = self._items(at, path)
        else:
            _, end = _DECODER.raw_decode(self.text, at)
        self.places[path] = _Place(start=at, end=end, last=last, indent=indent)
        return end

    def _members(self, at: int, path: Path) -> tuple[int, int | None, str]:
        last, indent = None, ""
        at = self._skip(begun := at + 1)
        while self.text[at] != "}":
            if last is None:
                indent = self.text[begun:at]
            key, at = _DECODER.raw_decode(self.text, at)
            # a key that stands twice: the last counts, here as in every reader
            at = last = self._value(self._skip(self._skip(at) + 1), (*path, key))
            at = self._skip(at)
            at = self._skip(at + 1) if self.text[at] == "," else at
        return at + 1, last, indent

    def _items(self, at: int, path: Path) -> int:
        at, number = self._skip(at + 1), 0
        while self.text[at] != "]":
            at = self._skip(self._value(at, (*path, number)))
            at = self._skip(at + 1) if self.text[at] == "," else at
            number += 1
        return at + 1


def with_values(text: str, changes: Mapping[Path, Json], *, where: str) -> str:
    """Return a JSON text with values set; a text stays a text: `"380"` becomes `"390"`.

    Args:
        text: of an object, read before.
        changes: path -> value; objects on the way to a new key are made.
        where: how messages call the file.

    Raises:
        ConfigError: a path leads through a value that holds no keys.
    """
    for path, value in changes.items():
        text = _with_value(text, path, value, where=where)
    return text


def _with_value(text: str, path: Path, value: Json, *, where: str) -> str:
    places = _Scan(text).places
    if path in places:
        place = places[path]
        old = json.loads(text[place.start : place.end])
        if isinstance(old, str) and not isinstance(value, str | dict | list):
            value = setting_text(value)
        return f"{text[: place.start]}{_shown(value)}{text[place.end :]}"
    depth = next(at for at in range(len(path) - 1, -1, -1) if path[:at] in places)
    above = places[path[:depth]]
    key, *below = path[depth:]
    for each in reversed(below):
        value = {str(each): value}
    if text[above.start] != "{" or not isinstance(key, str):
        raise ConfigError(f"{where}: {written(path[:depth])} holds no keys")
    member = f"{json.dumps(key, ensure_ascii=False)}: {_shown(value)}"
    if above.last is None:
        return f"{text[: above.start]}{{{member}}}{text[above.end :]}"
    indent = above.indent or " "
    return f"{text[: above.last]},{indent}{member}{text[above.last :]}"


def _shown(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CvsRecipe:
    """A profile in terms of a CVS file: path -> value, and what has no place there."""

    changes: Mapping[Path, Json]
    left_out: tuple[str, ...]


def recipe_of(file: CvsFile, cell: CvsCell, profile: Profile) -> CvsRecipe:
    """Return the changes that deploy a profile in a CVS file, for one of its cells.

    XLA flags and environment are of the whole file; a MaxText key goes to the cell's own sweep
    where the file has several that run, or where the sweep says that key.
    """
    changes: dict[Path, Json] = {}
    left_out: list[str] = []
    _add_flags(file, cell, profile, changes, left_out)
    for name, value in profile.env.items():
        if is_secret(name):
            left_out.append(f"{name}: its value is secret; set it yourself")
        elif name in OF_THE_LAUNCHER:
            left_out.append(f"{name}: only the launcher of a job sets it")
        else:
            text = on_top(file.env, {name: value})[name]
            changes |= dict.fromkeys(_places_of_variable(file, name), text)
            if name in file.added and file.generation == "1":
                left_out.append(
                    f"{name}: it is in the file, and CVS itself sets {file.added[name]} over it"
                )
    for name, value in profile.overrides.items():
        path = _place_of_key(file, cell, name)
        if path is None:
            left_out.append(f"{name}: generation 1 gives MaxText no such key")
        elif is_secret(name):
            left_out.append(f"{name}: its value is secret; set it yourself")
        else:
            changes[path] = typed(value)
    return CvsRecipe(changes=changes, left_out=tuple(left_out))


def untaken(
    before: CvsFile, after: CvsFile, *, cell: CvsCell, profile: Profile, recipe: CvsRecipe
) -> tuple[str, ...]:
    """Return what a file that was written and read again does not say of the recipe; () is none."""
    own = next((each for each in after.cells if each.name == cell.name), None)
    left_out = " ".join(recipe.left_out)
    wanted = {
        f"--{each.name}": "true" if each.value is None else each.value for each in profile.flags
    }
    flags = {f"--{name}": text for name, text in after.xla_flags.items()}
    if not after.xla_flags and "XLA_FLAGS" in after.env:
        parsed = parse_flags(after.env["XLA_FLAGS"], where=after.where)
        flags = {f"--{name}": text for name, text in effective_values(parsed).items()}
    found: dict[str, Json] = {**flags, **after.env, **(own.maxtext if own else {})}
    whole = on_top(before.env, profile.env)
    wanted |= {**{name: whole[name] for name in profile.env}, **profile.overrides}
    lost = [
        name
        for name, value in wanted.items()
        if setting_text(typed(found.get(name))) != setting_text(typed(value))
        and f"{name}:" not in left_out
        and f"{name}=" not in left_out
    ]
    kept = before.env.keys() - after.env.keys() | before.xla_flags.keys() - after.xla_flags.keys()
    return tuple(f"{each}: reading the file does not give it" for each in (*lost, *sorted(kept)))


def _add_flags(
    file: CvsFile,
    cell: CvsCell,
    profile: Profile,
    changes: dict[Path, Json],
    left_out: list[str],
) -> None:
    if not profile.flags:
        return
    above = model_of(file, cell) if file.generation == "1" else ("train_params",)
    at: Path = (*above, "xla_flags")
    known = _at(file.data, at)
    env = _env_table(file)
    if not known and "XLA_FLAGS" in _table(file, env):
        # the file has its flags in the environment
        at = (*env, "XLA_FLAGS")
        known = _at(file.data, at)
    words = format_flags(profile.flags).split()
    if isinstance(known, str):
        changes[at] = " ".join([known, *words]).strip()
        return
    if isinstance(known, list):
        changes[at] = [*known, *words]
        return
    spelt = {key.lstrip("-"): key for key in known or {} if not is_comment(key)}
    for each in profile.flags:
        if each.name in APPENDING and each.name in spelt:
            left_out.append(f"--{each.name}={each.value}: an object holds a flag once; add it")
            continue
        value = "true" if each.value is None else each.value  # as XLA reads a bare flag
        changes[*at, spelt.get(each.name, each.name)] = value
    if file.generation == "1":
        left_out.append(
            "flags of generation 1: CVS hands ten of its own to XLA and drops the others; run the "
            "file here"
        )


def _at(data: Json, path: Path) -> Json:
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _table(file: CvsFile, path: Path) -> Mapping[str, Json]:
    found = _at(file.data, path)
    return found if isinstance(found, dict) else {}


def _env_table(file: CvsFile) -> Path:
    """Return the object of variables."""
    if file.generation == "1":
        return ("config", "container_config", "env_dict")
    return ("container", "env")


def _places_of_variable(file: CvsFile, name: str) -> list[Path]:
    """Return each place that says a variable, or the one where it is new."""
    table = _env_table(file)
    found: list[Path] = [(*table, name)] if name in _table(file, table) else []
    if file.generation == "1":
        keys = [key for key, names in {**SINGLE_KEYS, **DISTRIBUTED_KEYS}.items() if name in names]
        found += [("config", key) for key in keys if key in _table(file, ("config",))]
    return found or [(*table, name)]


def model_of(file: CvsFile, cell: CvsCell) -> Path:
    """Return where a model of generation 1 stands."""
    mode = next((key for key, each in MODES.items() if each == file.mode), "")
    return ("model_params", mode, cell.model, cell.gpu)


def _place_of_key(file: CvsFile, cell: CvsCell, name: str) -> Path | None:
    """Return where a MaxText key of a cell stands; None where the generation has no place."""
    if file.generation == "1":
        if name == "enable_checkpointing":
            return ("config", name)
        return (*model_of(file, cell), name) if name in FIRST_KEYS else None
    own: Path = ("sweeps", cell.name)
    has_sweep = cell.name in _table(file, ("sweeps",))
    if has_sweep and (name in _table(file, own) or len(file.cells) > 1):
        return (*own, name)
    return ("train_params", "maxtext_config", name)
