"""Read configuration files of other launchers as sweeps.

A launcher is a class that a sweep file imports. A launcher whose trainer has its own configuration
file is added by an entry point of `pytest_xlatune.launchers` that names a `LauncherFile`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from pytest_xlatune.entry_points import EntryPointGroup

LAUNCHER_FILES = EntryPointGroup("pytest_xlatune.launchers", kind="launcher")


class LauncherFile(ABC):
    """A kind of configuration file; subclasses are instantiated without arguments."""

    @abstractmethod
    def declared(self, path: Path, **given: Any) -> dict[str, Any]:
        """Return the keywords of `Sweep` for a file: launcher, cell, study, ...

        Args:
            path: path of the file.
            given: keywords for this kind of file, and keywords of `Sweep`, which replace what the
                file says.

        Raises:
            ConfigError: the file is of another kind, or leaves out something that a sweep needs.
        """


def launcher_file(name: str, *, where: str) -> LauncherFile:
    """Return the `LauncherFile` of another distribution's launcher.

    Raises:
        ConfigError: there is no such launcher, or it cannot be loaded.
    """
    return LAUNCHER_FILES.load_as(name, LauncherFile, where=where)  # type: ignore[type-abstract]
