"""What other distributions add by entry points: listed without an import, loaded by name.

A group has the entry points of one kind and our own names of that kind, both written as
`module:attr`. Ours are in a table of the package that uses them, so they also exist in a checkout.

    EXECUTORS = EntryPointGroup("pytest_xlatune.executors", kind="executor", ours={"here": "a:b"})
    EXECUTORS.names()                        name -> "module:attr", nothing is imported
    EXECUTORS.check("here", where="a.toml")  a ConfigError with the nearest name
    EXECUTORS.load("here", where="a.toml")   the object, or a ConfigError

This module knows nothing of what is loaded; the caller checks it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from pytest_xlatune.model.errors import ConfigError

_T = TypeVar("_T")
_OURS = "pytest-xlatune"  # our distribution; its names need no entry points


class EntryPointGroup:
    """Named things of one kind: ours, and those of other distributions.

    Attributes:
        group: the group of the entry points.
        kind: the word for one of them, for messages.
        ours: name -> `module:attr`; entry points cannot replace these names.
    """

    __slots__ = ("group", "kind", "ours")

    def __init__(self, group: str, *, kind: str, ours: Mapping[str, str] | None = None) -> None:
        self.group, self.kind, self.ours = group, kind, ours or {}

    def names(self) -> dict[str, str]:
        """Return name -> `module:attr` of all, sorted by name; imports none of them."""
        theirs = {name: points[0].value for name, points in self._theirs.items()}
        return dict(sorted({**theirs, **self.ours}.items()))

    def __contains__(self, name: object) -> bool:
        """Return whether there is something with this name; our names need no entry points."""
        return name in self.ours or name in self._theirs

    def __iter__(self) -> Iterator[str]:
        """Yield all names."""
        return iter(self.names())

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.names())

    def source(self, name: str) -> str:
        """Return name and version of the distribution that adds a name; "" if none does."""
        if name in self.ours:
            return _OURS
        distributions = (point.dist for point in self._theirs.get(name, ()))
        return ", ".join(f"{dist.name} {dist.version}" for dist in distributions if dist)

    def check(self, name: str, *, where: str) -> None:
        """Raise ConfigError if there is no such name; `where` is the place that gave the name.

        Raises:
            ConfigError: there is no such name; the message has the nearest one.
        """
        if name not in self:
            raise ConfigError.unknown(self.kind, name, valid=self.names(), where=where)

    def load(self, name: str, *, where: str) -> Any:
        """Return the object with this name; its module is imported.

        Args:
            name: one of `names`.
            where: the place where the name was given, for the message.

        Raises:
            ConfigError: the name is unknown, two distributions add it, or its import fails.
        """
        self.check(name, where=where)
        is_ours = name in self.ours
        points = [] if is_ours else self._theirs[name]
        if len(points) > 1:
            raise ConfigError(
                f"{self.kind} {name!r} in {where} is brought by {self.source(name)}: expected one "
                f"distribution with this entry point of {self.group}; uninstall the others"
            )
        point = EntryPoint(name, self.ours[name], self.group) if is_ours else points[0]
        try:
            return point.load()
        except Exception as error:
            raise ConfigError(
                f"{self.kind} {name!r} in {where}: {point.value} of {self.source(name)} cannot be "
                f"loaded: {type(error).__name__}: {error}"
            ) from error

    def load_as(self, name: str, base: type[_T], *, where: str) -> _T:
        """Return the object with this name, or an object of the class with this name.

        Raises:
            ConfigError: as `load`, or the object is no `base`.
        """
        loaded = self.load(name, where=where)
        is_class = isinstance(loaded, type)
        made = loaded() if is_class and issubclass(loaded, base) else loaded
        if not isinstance(made, base):
            kind = loaded.__name__ if is_class else type(loaded).__name__
            raise ConfigError(
                f"{self.kind} {name!r} of {self.source(name)} is {kind}, expected a "
                f"{base.__module__}.{base.__qualname__}"
            )
        return made

    @property
    def _theirs(self) -> dict[str, list[EntryPoint]]:
        return _entry_points(self.group, tuple(sys.path))


@functools.lru_cache(maxsize=32)
def _entry_points(group: str, _path: tuple[str, ...]) -> dict[str, list[EntryPoint]]:
    """Return the entry points of a group by name; `_path` is `sys.path`, as key of the cache."""
    by_name: dict[str, list[EntryPoint]] = {}
    for point in sorted(entry_points(group=group), key=lambda point: point.value):
        by_name.setdefault(point.name, []).append(point)
    return by_name
