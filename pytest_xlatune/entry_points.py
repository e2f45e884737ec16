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
import importlib
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any, NamedTuple, TypeVar

from pytest_xlatune.model.errors import ConfigError

_T = TypeVar("_T")
_OURS = "pytest-xlatune"  # our distribution; its names need no entry points
_PREFIX = "pytest_xlatune."  # prefix of our modules


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
        theirs = {name: first.target for name, (first, *_) in self._theirs.items()}
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

    @property
    def has_foreign(self) -> bool:
        """Whether another distribution adds a name; nothing is imported."""
        return not all(
            point.target.startswith(_PREFIX) for points in self._theirs.values() for point in points
        )

    def source(self, name: str) -> str:
        """Return name and version of the distribution that adds a name; "" if none does."""
        if name in self.ours:
            return _OURS
        return ", ".join(point.distribution for point in self._theirs.get(name, ()))

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
        target = self.ours[name] if name in self.ours else self._their_target(name, where)
        module, _, attribute = target.partition(":")
        try:
            loaded: Any = importlib.import_module(module)
            for part in filter(None, attribute.split(".")):
                loaded = getattr(loaded, part)
        except Exception as error:
            raise ConfigError(
                f"{self.kind} {name!r} in {where}: {target} of {self.source(name)} cannot be "
                f"loaded: {type(error).__name__}: {error}"
            ) from error
        return loaded

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

    def _their_target(self, name: str, where: str) -> str:
        self.check(name, where=where)
        points = self._theirs[name]
        if len(points) > 1:
            raise ConfigError(
                f"{self.kind} {name!r} in {where} is brought by {self.source(name)}: expected one "
                f"distribution with this entry point of {self.group}; uninstall the others"
            )
        return points[0].target

    @property
    def _theirs(self) -> dict[str, tuple[_EntryPoint, ...]]:
        return _entry_points(self.group, tuple(sys.path))


# It is here because callers ask whether there are log formats before they load the log reader.
LOG_FORMATS = EntryPointGroup("pytest_xlatune.log_formats", kind="log format")


class _EntryPoint(NamedTuple):
    target: str  # as `module:attr`
    distribution: str  # name and version


@functools.lru_cache(maxsize=32)
def _entry_points(group: str, _path: tuple[str, ...]) -> dict[str, tuple[_EntryPoint, ...]]:
    """Return the entry points of a group by name; `_path` is `sys.path`, as key of the cache."""
    by_name: dict[str, tuple[_EntryPoint, ...]] = {}
    for point in sorted(entry_points(group=group), key=lambda point: point.value):
        target = point.value.partition("[")[0].strip()  # the value may be:  module:attr [extra]
        distribution = f"{point.dist.name} {point.dist.version}" if point.dist else ""
        earlier = by_name.get(point.name, ())
        by_name[point.name] = (*earlier, _EntryPoint(target, distribution))
    return by_name
