"""A cell of a CVS file as a sweep, and a recipe in the file: an entry point names it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_xlatune.guests.cvs.files import CvsGiven, declared_of, read_cvs_file
from pytest_xlatune.guests.cvs.written import patched_cvs
from pytest_xlatune.model.cell import DeployedFile
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import Profile
from pytest_xlatune.report.covered import Covered
from pytest_xlatune.sweep.launcher_files import LauncherFile


class CvsLauncherFile(LauncherFile):
    """The files of CVS."""

    def declared(
        self,
        path: Path,
        *,
        profiles: tuple[Profile, ...] = (),
        cell: str = "",
        cluster: str | Path | None = None,
        values: Mapping[str, str] | None = None,
        nodes: int | None = None,
        runtime: str = "",
        **settings: Any,
    ) -> dict[str, Any]:
        """Return the keywords of the sweep over a cell: see `Sweep.from_cvs`.

        Raises:
            ConfigError: it is no CVS file, something in it is open, it has no such cell.
        """
        given = CvsGiven(
            cluster=Path(cluster) if cluster else None, values=values or {}, nodes=nodes
        )
        file = read_cvs_file(path, given)
        cells = {each.name: each for each in file.cells}
        if not cells:
            raise ConfigError(f"{path} is a {file.kind} file of CVS: name a configuration")
        if cell not in cells and (cell or len(cells) > 1):
            raise ConfigError.unknown("cell", cell, valid=cells, where=str(path))
        found = cells[cell] if cell else file.cells[0]
        own = declared_of(
            file, found, profiles=profiles, study=settings.pop("study", None), runtime=runtime
        )
        return {**own, **settings}

    def with_recipe(self, source: DeployedFile, covered: Covered) -> dict[str, str]:
        """Return the file with the recipe of its cell in it, under a name of its own."""
        # only a report needs it
        return patched_cvs(source, covered)
