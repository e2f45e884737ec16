"""The settings that a user gave, and where: command line, environment, ini, settings file.

The first of these places that has a setting decides; if none has it, the sweep file does. Tables of
key=value are merged by key. All places are read once, before a sweep is collected, so that a wrong
value ends the run before a trial is submitted.

The settings file of a site is `xlatune.toml`, with options and tables:

    executor = "slurm"                     an option, by its name without --xlatune-
    nodelist = "node[001-008]"
    image = "rocm/jax-training:maxtext-v26.4@sha256:..."

    [slurm]                                like --xlatune-slurm
    [launcher]                             attributes of the sweep files' launchers
    [container]                            puts the launchers into a container
    [deployed]                             variables of the cell
    [overrides]                            key=value arguments of the trainer

It must not contain secrets: addresses of notifications are in another file (`notify-file`).
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import structs

from pytest_xlatune import secure_files
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.sweep.groups import (
    FIELDS,
    FLAG,
    NODE_SETTINGS,
    OPTIONS,
    SWITCHES,
    Option,
    RunSettings,
    UserOptions,
    Where,
)

_PREFIX = "XLATUNE_"
_FILE = "xlatune.toml"
_BY_NAME = {option.name: option for option in FIELDS}
# tables of key=value, whose keys are merged from all places
_TABLES = frozenset({"slurm", "launcher", "container", "deployed", "overrides"})
# tables whose values are texts; the launcher checks its own settings
_TEXT_TABLES = frozenset({"slurm", "deployed", "overrides"})
# the keys that a settings file may contain
_SETTABLE = frozenset(
    option.name
    for option in FIELDS
    if option.where not in (Where.SWEEP_FILE, Where.NOT_SETTINGS_FILE)
)


def resolve_options(
    command_line: Mapping[str, Any],
    environ: Mapping[str, str],
    ini: Mapping[str, str],
    *,
    root: Path,
    prefix: str = FLAG,
) -> RunSettings:
    """Return the settings of this run; those for sweeps are in `for_sweeps`.

    Args:
        command_line: `Option.key` -> value, None if not given; for a switch, its flag with
            underscores and without leading dashes.
        environ: the environment.
        ini: `Option.key` -> value, "" if not set.
        root: the directory at which relative paths begin.
        prefix: the prefix of options on this command line.

    Raises:
        ConfigError: a value is not valid; the message says where it was given.
    """
    refuse_misspelt(environ)
    sources: tuple[tuple[Callable[[Option], str], Callable[[Option], Any]], ...] = (
        (lambda option: f"{prefix}{option.name}", lambda option: command_line.get(option.key)),
        (lambda option: option.variable, lambda option: environ.get(option.variable) or None),
        (lambda option: f"ini key {option.key}", lambda option: ini.get(option.key) or None),
    )
    parts = [
        UserOptions(
            values={
                option.field: _parsed(option, text, place_of(option))
                for option in OPTIONS
                if (text := text_of(option)) is not None
            }
        )
        for place_of, text_of in sources
    ]
    parts.reverse()
    file, ignored_file = _settings_file(_merged(*parts).values.get("config"), root, prefix)
    user_options = structs.replace(_merged(file, *parts), root=root, ignored_file=ignored_file)
    run = user_options.applied_to(RunSettings())
    switched_on = {
        name for flag, (name, _) in SWITCHES.items() if command_line.get(flag.replace("-", "_"))
    }
    return structs.replace(
        run,
        workdir=root / run.workdir,
        reports=root / run.reports,
        for_sweeps=user_options,
        **dict.fromkeys(switched_on, True),
    )


def _merged(*parts: UserOptions) -> UserOptions:
    """Merge options; values of later parts replace those of earlier ones."""
    values: dict[str, Any] = {}
    for part in parts:
        if NODE_SETTINGS.keys() & part.values:  # nodes or their number: each replaces both
            values = {name: value for name, value in values.items() if name not in NODE_SETTINGS}
        for name, value in part.values.items():
            values[name] = {**values.get(name, {}), **value} if name in _TABLES else value
    return UserOptions(values=values, file=parts[0].file)


def refuse_misspelt(environ: Mapping[str, str]) -> None:
    """Refuse a variable close to that of an option, which would be ignored without a message."""
    known = {option.variable for option in OPTIONS}
    unknown = [name for name in environ if name.startswith(_PREFIX) and name not in known]
    if not unknown:
        return
    names = [variable.removeprefix(_PREFIX) for variable in sorted(known)]
    for variable in sorted(unknown):
        if difflib.get_close_matches(variable.removeprefix(_PREFIX), names, n=1, cutoff=0.8):
            raise ConfigError.unknown("variable", variable, valid=known, where="the environment")


def _parsed(option: Option, text: object, place: str) -> Any:
    if not isinstance(text, str):  # pytest passes on a list of a pyproject.toml:  ["a=b"]
        raise ConfigError(f"{place}: found {text!r}, expected a text such as {option.metavar!r}")
    if (choices := option.choices) and text not in choices:
        raise ConfigError.unknown("value", text, valid=choices, where=place)
    try:
        return option.parse(text)
    except ConfigError as error:  # its message already has what was found and expected
        raise ConfigError(f"{place}: {error}") from None
    except ValueError as error:
        if option.expected:  # the message for a number already has what was expected
            raise ConfigError(f"{place}: found {text!r}, {error}") from None
        raise ConfigError(f"{place}: found {text!r}, expected {option.metavar} ({error})") from None


def _settings_file(named: str | None, root: Path, prefix: str) -> tuple[UserOptions, str]:
    """Read the named settings file, or the nearest one from the root directory upwards.

    A file that was not named is only read if no other user can have written it, because it names
    files that are sourced and programs that are run. The second value says which file was ignored,
    and why; "" if none.
    """
    if named:
        return read_settings(root / named, root=root), ""
    ignored = ""
    for path in (folder / _FILE for folder in _upward(root)):
        if not os.path.isfile(path):  # noqa: PTH113 - false where we may not look
            continue
        why = secure_files.why_not_ours(path)
        if not why:
            return read_settings(path, root=root), ignored
        ignored = ignored or f"{path} is not read: {why}; {prefix}config FILE reads it"
    return UserOptions(), ignored


def _upward(root: Path) -> Iterator[Path]:
    """Yield the root directory and its parents within the project's repository."""
    for path in (root, *root.parents):
        yield path
        if (path / ".git").exists():
            return


def read_settings(path: Path, *, root: Path) -> UserOptions:
    """Read a settings file.

    Raises:
        ConfigError: it cannot be read, is no TOML, or has an unknown name or an invalid value.
    """
    place = str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
    try:
        content = tomllib.loads(secure_files.read_named(path, encoding="utf-8-sig"))
    except OSError as error:
        why = error.strerror or "it is no plain file"
        raise ConfigError(f"{place} cannot be read: {why}") from None
    except RecursionError:
        raise ConfigError(
            f"{place} is not a settings file: its TOML is nested too deeply"
        ) from None
    except ValueError as error:  # also a UnicodeDecodeError; tomllib names line and column
        raise ConfigError(f"{place} is not valid TOML: {error}") from None
    return _options_in(content, place, folder=path.parent)


def _options_in(content: Mapping[str, Any], place: str, *, folder: Path) -> UserOptions:
    values: dict[str, Any] = {}
    for key, value in content.items():
        if key not in _SETTABLE:
            raise ConfigError.unknown("setting", key, valid=_SETTABLE, where=place)
        option = _BY_NAME[key]
        if key in _TABLES:
            values[option.field] = _table(key, value, place, folder=folder)
        else:
            parsed = _parsed(option, _text(key, value, place), f"{place}: {key}")
            if parsed is None:
                raise ConfigError(f"{place}: {key}: found {value!r}, which names no node")
            values[option.field] = folder / parsed if option.kind is Path else parsed
    return UserOptions(values=values, file=place)


def _text(key: str, value: Any, place: str) -> str:
    """Return the value in the notation of the command line."""
    if key == "nodelist" and isinstance(value, list) and all(isinstance(v, str) for v in value):
        return ",".join(value)
    if isinstance(value, str) or (isinstance(value, int | float) and not isinstance(value, bool)):
        return str(value)
    raise ConfigError(f"{place}: {key}: found {value!r}, expected text or a number")


def _table(key: str, value: Any, place: str, *, folder: Path) -> Mapping[str, Any]:
    where = f"{place} [{key}]"
    if not isinstance(value, dict):
        raise ConfigError(f"{place}: {key}: found {value!r}, expected a table: [{key}]")
    table = dict(value)
    if key in _TEXT_TABLES:
        for name, setting in table.items():
            if not isinstance(setting, str | int | float):
                raise ConfigError(f"{where}: {name}: found {setting!r}, expected text or a number")
            table[name] = str(setting).lower() if isinstance(setting, bool) else str(setting)
    for name in ("env-files", "env_files"):
        if isinstance(table.get(name), list) and all(isinstance(v, str) for v in table[name]):
            # relative paths are relative to the folder of this file
            table[name] = [str(folder / file) for file in table[name]]
    return table


def check_folders(folders: Iterable[tuple[str, Path]]) -> None:
    """Raise ConfigError for a folder that cannot be made or written, as far as that can be known.

    It makes no folder.

    Args:
        folders: (option, absolute path), e.g. ("--xlatune-reports", ...); a path need not exist.

    Raises:
        ConfigError: a path is not printable, is a file, is below a file, or may not be written, or
            another user could replace a parent of the work directory. The message names the path,
            the obstacle and what to do.
    """
    for option, path in folders:
        if not str(path).isprintable() or any(sign in str(path) for sign in '\\"'):
            raise ConfigError(
                f"{option}: {str(path)!r} has a character that a script of Slurm or XLA's flags "
                "cannot hold; name another folder"
            )
        if option.endswith("workdir"):
            try:
                secure_files.check_path(path, option=option)
            except secure_files.NotOursError as error:
                raise ConfigError(str(error)) from None
        # `Path.exists` would raise for a folder without permission
        lowest = next(parent for parent in (path, *path.parents) if os.path.lexists(parent))
        if not os.path.isdir(lowest) or not os.access(lowest, os.W_OK | os.X_OK):  # noqa: PTH112
            raise ConfigError(
                f"{option}: {path} cannot be made or written, because {lowest} is a file or a "
                "broken link, or you may not write in it; name another folder"
            )
