"""Read configuration files of other launchers as sweeps, and write recipes into them.

A launcher is a class that a sweep file imports. A launcher whose trainer has its own configuration
file is added by an entry point of `pytest_xlatune.launchers` that names a `LauncherFile`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pytest_xlatune.entry_points import EntryPointGroup
from pytest_xlatune.model.cell import DeployedFile
from pytest_xlatune.report.measured_cell import MeasuredCell

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

    def with_recipe(self, source: DeployedFile, covered: MeasuredCell) -> dict[str, str]:
        """Return file name -> text of a file with the recipe of its cell; {} without a recipe.

        A remark in the text names settings that the file cannot hold.
        """
        del source, covered
        return {}


def launcher_file(name: str, *, where: str) -> LauncherFile:
    """Return the `LauncherFile` of another distribution's launcher.

    Raises:
        ConfigError: there is no such launcher, or it cannot be loaded.
    """
    return LAUNCHER_FILES.load_as(name, LauncherFile, where=where)  # type: ignore[type-abstract]


def with_recipes(files: Iterable[DeployedFile], covered: MeasuredCell) -> dict[str, str]:
    """Return file name -> text of each of these files with the recipe of its cell.

    Files of launchers that are no longer installed are left out.

    Raises:
        ConfigError: a launcher cannot be loaded.
    """
    recipes: dict[str, str] = {}
    for file in files:
        if file.launcher in LAUNCHER_FILES:
            recipes |= launcher_file(file.launcher, where=file.path).with_recipe(file, covered)
    return recipes
