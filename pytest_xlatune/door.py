"""The door: what other distributions add by entry points, known by name without an import.

A door is a group of entry points and our own names of the same kind, written alike: `module:attr`.
Ours stand in a table of the package that uses them, so that a source checkout has them too. No name
of ours is looked for among the entry points: a session that uses ours alone reads no metadata.

    EXECUTORS = Door("pytest_xlatune.executors", kind="executor", ours={"here": "module:attr"})
    EXECUTORS.names()                        name -> "module:attr", nothing is imported
    EXECUTORS.check("here", where="a.toml")  a ConfigError with the nearest name
    EXECUTORS.load("here", where="a.toml")   the object, or a ConfigError

Knows nothing of what comes in: a package looks at what it loaded. The files of distributions are
read here as `importlib.metadata` reads them: loading that takes longer than `xlatune --help`.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pytest_xlatune.model.errors import ConfigError

OURS = "pytest-xlatune"  # the distribution of what needs no entry point


class Door:
    """One kind of things that have a name: ours, and those of other distributions.

    Attributes:
        group: of the entry points.
        kind: the word for one of them in messages.
        ours: name -> `module:attr`; no entry point takes one of these names.
    """

    __slots__ = ("group", "kind", "ours")

    def __init__(self, group: str, *, kind: str, ours: Mapping[str, str] | None = None) -> None:
        self.group, self.kind, self.ours = group, kind, ours or {}

    def names(self) -> dict[str, str]:
        """Return name -> `module:attr` of all, by name; imports none of them."""
        found = _guests(self.group, tuple(sys.path))
        known = {name: first.value for name, (first, *_) in found.items()} | dict(self.ours)
        return dict(sorted(known.items()))

    def __contains__(self, name: object) -> bool:
        """Whether there is something of this name; one of ours asks no other distribution."""
        return name in self.ours or name in _guests(self.group, tuple(sys.path))

    def __iter__(self) -> Iterator[str]:
        """Give all names."""
        return iter(self.names())

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.names())

    @property
    def has_strangers(self) -> bool:
        """Whether one is brought by code that is not of this package; imports none of them."""
        found = _guests(self.group, tuple(sys.path)).values()
        return not all(each.value.startswith(_PREFIX) for all_ in found for each in all_)

    def source(self, name: str) -> str:
        """Return the distribution that brings a name; "" where none does."""
        if name in self.ours:
            return OURS
        found = _guests(self.group, tuple(sys.path)).get(name, ())
        return ", ".join(_distribution(each) for each in found)

    def check(self, name: str, *, where: str) -> None:
        """Refuse a name that nothing has, with the nearest one; `where` it was said.

        Raises:
            ConfigError: there is no such name.
        """
        if name not in self:
            raise ConfigError.unknown(self.kind, name, valid=self.names(), where=where)

    def load(self, name: str, *, where: str) -> Any:
        """Return what a name stands for; its module is imported.

        Args:
            name: one of `names`.
            where: the place where it was said, for the message.

        Raises:
            ConfigError: the name is unknown, two distributions bring it, or its module or attribute
                cannot be imported, whatever that raised.
        """
        target = self.ours.get(name)
        if target is None:
            target = self._guest(name, where)
        module, _, attribute = target.partition(":")
        try:
            found: Any = importlib.import_module(module)
            for each in filter(None, attribute.split(".")):
                found = getattr(found, each)
        except Exception as error:
            raise ConfigError(
                f"{self.kind} {name!r} in {where}: {target} of {self.source(name)} cannot be "
                f"loaded: {type(error).__name__}: {error}"
            ) from error
        return found

    def _guest(self, name: str, where: str) -> str:
        self.check(name, where=where)
        found = _guests(self.group, tuple(sys.path))[name]
        if len(found) > 1:
            raise ConfigError(
                f"{self.kind} {name!r} in {where} is brought by {self.source(name)}: expected one "
                f"distribution with this entry point of {self.group}; uninstall the others"
            )
        return found[0].value


# told here, for what has to know whether there is one before it loads the reader of logs
LOG_FORMATS = Door("pytest_xlatune.log_formats", kind="log format")
_PREFIX = "pytest_xlatune."  # of every group, and of our modules


class _EntryPoint(NamedTuple):
    name: str
    value: str  # module:attr
    folder: str  # of its distribution's metadata


def versions_of(names: Iterable[str]) -> dict[str, str]:
    """Return the version of each distribution; "" of one that is not installed."""
    found: dict[str, str] = {}
    for folder, name in (each for place in sys.path for each in _distributions(place)):
        found.setdefault(name, folder)
    folders = {each: found.get(_normal(each), "") for each in names}
    return {name: _told(each).get("Version", "") if each else "" for name, each in folders.items()}


def _distribution(found: _EntryPoint) -> str:
    """Return name and version of the distribution, as its metadata says them."""
    told = _told(found.folder)
    return f"{told.get('Name', '')} {told.get('Version', '')}".strip() or found.folder


def _told(folder: str) -> dict[str, str]:
    told: dict[str, str] = {}
    for name in ("METADATA", "PKG-INFO"):
        # Name: their-executors
        lines = _text(f"{folder}/{name}").partition("\n\n")[0].splitlines()
        told |= dict(each.split(": ", 1) for each in lines if ": " in each)
    return told


@functools.lru_cache(maxsize=32)
def _guests(group: str, path: tuple[str, ...]) -> dict[str, tuple[_EntryPoint, ...]]:
    """Return the entry points of a group by name; `path` is `sys.path`, which says where."""
    found: dict[str, tuple[_EntryPoint, ...]] = {}
    for each in sorted(_entry_points(path).get(group, ())):
        found[each.name] = (*found.get(each.name, ()), each)
    return found


@functools.lru_cache(maxsize=4)
def _entry_points(path: tuple[str, ...]) -> dict[str, list[_EntryPoint]]:
    """Return the entry points of our groups: of each distribution that the path finds first."""
    found: dict[str, list[_EntryPoint]] = {}
    known = set()
    for folder, name in (each for place in path for each in _distributions(place)):
        if name in known:
            continue
        known.add(name)
        text = _text(f"{folder}/entry_points.txt")
        for group, each, value in _parsed(text) if _PREFIX in text else ():
            found.setdefault(group, []).append(_EntryPoint(each, value, folder))
    return found


def _distributions(place: str) -> Iterable[tuple[str, str]]:
    """Return the folders of metadata in a folder of the path, each with its distribution's name."""
    try:
        names = sorted(os.listdir(place or "."))  # noqa: PTH208 - no pathlib yet
    except OSError:  # not there, or an archive, which holds none of ours
        return []
    # pytest_xlatune-0.1.0.dist-info    their_tools.egg-info
    metadata = [each for each in names if each.endswith((".dist-info", ".egg-info"))]
    return [(f"{place or '.'}/{each}", _normal(each[:-10].partition("-")[0])) for each in metadata]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


def _parsed(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield group, name and value of each line of our groups in an `entry_points.txt`."""
    group = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            group = line.strip("[]")
        elif group.startswith(_PREFIX) and "=" in line and line[0] != "#":
            name, _, value = line.partition("=")
            # module:attr [extra]
            yield group, name.strip(), value.partition("[")[0].strip()


def _text(path: str) -> str:
    """Return the text of a file; "" where there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - no pathlib yet
            return file.read()
    except OSError:
        return ""
