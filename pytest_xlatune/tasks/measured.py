"""Find measured sweeps: those of a work directory, and one that another directory has."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from pytest_xlatune.ledger import LEDGER, find_ledgers
from pytest_xlatune.model.errors import ConfigError


def folders_of(workdir: Path, sweeps: Collection[str]) -> list[Path]:
    """Return the folders of the ledgers of `sweeps`; if that is empty, of all sweeps.

    Raises:
        ConfigError: no ledger has one of the names, or there is no ledger.
    """
    folders = find_ledgers(workdir)
    names = {folder.parent.name for folder in folders}
    for name in sweeps:
        if name not in names:
            raise ConfigError.unknown("sweep", name, valid=names, where=str(workdir))
    if not folders:
        raise ConfigError(
            f"no sweep was measured below {workdir}; run one, or name another --workdir"
        )
    return [path for path in folders if not sweeps or path.parent.name in sweeps]


def measured_elsewhere(folder: Path, workdir: Path) -> tuple[str, ...]:
    """Return which other work directories hold trials of this cell; () if `workdir` holds some.

    A start from another folder has another work directory, and would measure again. The current
    folder, the folders above it and the folders in it are searched.
    """
    if (workdir / folder / LEDGER).exists():
        return ()
    here = Path.cwd()
    others = {(path / workdir.name).resolve() for path in (here, *here.parents, *here.glob("*/"))}
    return tuple(
        f"{path} holds trials of this very cell, and this run would measure them again; start it "
        f"from {path.parent}, or with --xlatune-workdir={path}"
        for path in sorted(others - {workdir.resolve()})
        if os.path.isfile(path / folder / LEDGER)  # noqa: PTH113 - no error without permission
    )
