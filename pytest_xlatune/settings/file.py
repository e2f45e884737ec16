"""The settings file of a site, `xlatune.toml`: the options by name, and tables.

    executor = "slurm"                     every option by its name, without --xlatune-
    nodelist = "node[001-008]"
    image = "rocm/jax-training:maxtext-v26.4@sha256:..."

    [slurm]                                as --xlatune-slurm
    [launcher]                             attributes of the sweep files' launchers
    [container]                            puts them into a container
    [deployed]                             variables of the cell
    [overrides]                            key=value arguments of the trainer
    [sweeps.pp8]                           the same for one sweep, tables included
    [sweeps.pp8.launcher]

A secret has no place here: the target of notifications is named by the variable that holds it. This
module is imported where there is such a file, and nowhere else.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_xlatune.errors import ConfigError
from pytest_xlatune.settings.options import OPTIONS, PATHS, SESSION_WIDE, TABLES

NAME = "xlatune.toml"
_SCALARS = frozenset(option.name for option in OPTIONS if option.name not in (*TABLES, "config"))
_NUMBERS = frozenset({"devices", "max-target-length"})
# tables whose values are text; those of the launchers are checked by their launcher
_TEXT = frozenset({"slurm", "deployed", "overrides"})
_TABLES = frozenset({*TABLES, "deployed", "overrides"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a settings file says, or one sweep's part of it.

    Attributes:
        place: how the file, and the table of a sweep in it, is named in messages.
        scalars: option -> text, as it would stand on the command line.
        numbers: what is no option: devices, max-target-length.
        tables: by name, each with whatever it holds.
        sweeps: name -> what is said of that sweep, without what is said of all.
    """

    place: str
    scalars: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sweeps: Mapping[str, Settings] = field(default_factory=dict)

    def table(self, name: str) -> Mapping[str, Any]:
        """Return a table; empty where it is not there."""
        return self.tables.get(name, {})


def read_settings(path: Path, *, root: Path) -> Settings:
    """Read a settings file.

    Raises:
        ConfigError: it cannot be read, is no TOML, or holds a name or a value that means nothing.
    """
    place = str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{place} cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # of UTF-8 too; tomllib says line and column
        raise ConfigError(f"{place} is no TOML: {error}") from None
    parts = content.pop("sweeps", {})
    if not isinstance(parts, dict) or not all(isinstance(each, dict) for each in parts.values()):
        raise ConfigError(f"{place}: `sweeps` must hold tables, one a sweep: [sweeps.pp8]")
    sweeps = {}
    for name, part in parts.items():
        where = f"{place} [sweeps.{name}]"
        for key in sorted(SESSION_WIDE & part.keys()):
            raise ConfigError(f"{where}: {key} is the whole session's; move it out of the table")
        sweeps[name] = _settings(part, where, folder=path.parent)
    return _settings(content, place, folder=path.parent, sweeps=sweeps)


def _settings(
    content: Mapping[str, Any],
    place: str,
    *,
    folder: Path,
    sweeps: Mapping[str, Settings] | None = None,
) -> Settings:
    scalars, numbers, tables = {}, {}, {}
    for key, value in content.items():
        if key in _SCALARS:
            scalars[key] = _text(key, value, place)
            if key in PATHS:
                scalars[key] = str(folder / scalars[key])
        elif key in _NUMBERS:
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"{place}: {key}: found {value!r}, expected a positive integer")
            numbers[key] = value
        elif key in _TABLES:
            tables[key] = _table(key, value, place, folder=folder)
        else:
            known = {*_SCALARS, *_NUMBERS, *_TABLES, *([] if sweeps is None else ["sweeps"])}
            raise ConfigError.unknown("setting", key, valid=known, where=place)
    return Settings(
        place=place, scalars=scalars, numbers=numbers, tables=tables, sweeps=sweeps or {}
    )


def _text(key: str, value: Any, place: str) -> str:
    """Return a value as it would stand on the command line."""
    if key == "nodelist" and isinstance(value, list) and all(isinstance(v, str) for v in value):
        return ",".join(value)
    if isinstance(value, str) or (isinstance(value, int | float) and not isinstance(value, bool)):
        return str(value)
    raise ConfigError(f"{place}: {key}: found {value!r}, expected text or a number")


def _table(key: str, value: Any, place: str, *, folder: Path) -> Mapping[str, Any]:
    where = f"{place} [{key}]" if "[" not in place else f"{place[:-1]}.{key}]"
    if not isinstance(value, dict):
        raise ConfigError(f"{place}: {key}: found {value!r}, expected a table: [{key}]")
    found = dict(value)
    if key in _TEXT:
        for name, each in found.items():
            if not isinstance(each, str | int | float):
                raise ConfigError(f"{where}: {name}: found {each!r}, expected text or a number")
            found[name] = str(each).lower() if isinstance(each, bool) else str(each)
    for name in ("env-files", "env_files"):
        if isinstance(found.get(name), list) and all(isinstance(v, str) for v in found[name]):
            # where they lie beside this file they are named so
            found[name] = [str(folder / each) for each in found[name]]
    return found
