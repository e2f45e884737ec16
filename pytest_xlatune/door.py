"""The door: what other distributions add by entry points, known by name without an import.

A door is a group of entry points and our own names of the same kind, written alike: `module:attr`.
Ours stand in a table of the package that uses them, so that a source checkout has them too. No name
of ours is looked for among the entry points: a session that uses ours alone reads no metadata.

    EXECUTORS = Door("pytest_xlatune.executors", kind="executor", ours={"here": "module:attr"})
    EXECUTORS.names()                        name -> "module:attr", nothing is imported
    EXECUTORS.check("here", where="a.toml")  a ConfigError with the nearest name
    EXECUTORS.load("here", where="a.toml")   the object, or a ConfigError

Knows nothing of what comes in: a package looks at what it loaded.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_xlatune.model.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

OURS = "pytest-xlatune"  # the distribution of what needs no entry point


@dataclass(frozen=True, slots=True)
class Door:
    """One kind of things that have a name: ours, and those of other distributions.

    Attributes:
        group: of the entry points.
        kind: the word for one of them in messages.
        ours: name -> `module:attr`; no entry point takes one of these names.
    """

    group: str
    kind: str = field(kw_only=True)
    ours: Mapping[str, str] = field(kw_only=True, default_factory=dict)

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


def _distribution(found: EntryPoint) -> str:
    return f"{found.dist.name} {found.dist.version}" if found.dist else "no distribution"


@functools.lru_cache(maxsize=16)
def _guests(group: str, path: tuple[str, ...]) -> dict[str, tuple[EntryPoint, ...]]:  # noqa: ARG001
    """Return the entry points of a group by name; `path` is `sys.path`, which says where."""
    from importlib.metadata import entry_points  # reads the metadata of every distribution

    found: dict[str, tuple[EntryPoint, ...]] = {}
    for each in sorted(entry_points(group=group), key=lambda each: (each.name, each.value)):
        found[each.name] = (*found.get(each.name, ()), each)
    return found
