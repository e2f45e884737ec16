"""Files of other launchers that say all of a cell: as sweeps, and with a recipe in them.

A launcher is a class, which a sweep file imports. One whose trainer is configured by a file of its
own comes in by an entry point of `pytest_xlatune.launchers` that names a `LauncherFile`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pytest_xlatune.entry_points import EntryPointGroup
from pytest_xlatune.model.cell import DeployedFile
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.report.measured_cell import MeasuredCell

BROUGHT = EntryPointGroup("pytest_xlatune.launchers", kind="launcher")


class LauncherFile(ABC):
    """A kind of configuration file; a subclass is made without arguments."""

    @abstractmethod
    def declared(self, path: Path, **given: Any) -> dict[str, Any]:
        """Return the keywords of the `Sweep` of a file: launcher, cell, study, ...

        Args:
            path: of the file.
            given: what this kind of file takes, and further keywords of `Sweep`, which go on top.

        Raises:
            ConfigError: it is no such file, or something in it is open.
        """

    def with_recipe(self, source: DeployedFile, covered: MeasuredCell) -> dict[str, str]:
        """Return file name -> text of a file with the recipe of its cell in it.

        Nothing where there is no recipe. What has no place in the file stands in a remark of it.
        """
        del source, covered
        return {}


def launcher_file(name: str, *, where: str) -> LauncherFile:
    """Return the files of a launcher that another distribution brings.

    Raises:
        ConfigError: there is none of this name, or it cannot be loaded.
    """
    made = BROUGHT.load(name, where=where)()
    if not isinstance(made, LauncherFile):
        raise ConfigError(
            f"launcher {name!r} of {BROUGHT.source(name)} is {type(made).__name__}, expected a "
            "pytest_xlatune.sweep.launcher_files.LauncherFile"
        )
    return made


def with_recipes(files: Iterable[DeployedFile], covered: MeasuredCell) -> dict[str, str]:
    """Return file name -> text of each launcher's file with the recipe of its cell in it.

    A file whose launcher is not installed any more is left out: a report needs nothing of it.

    Raises:
        ConfigError: a launcher cannot be loaded.
    """
    recipes: dict[str, str] = {}
    for file in files:
        if file.launcher in BROUGHT:
            recipes |= launcher_file(file.launcher, where=file.path).with_recipe(file, covered)
    return recipes
