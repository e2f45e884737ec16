"""Look before anything is submitted, and say everything that is wrong at once.

Faults keep a campaign from beginning; notes are for people and go into the ledger. The look is
cheap where the trials run on this machine. On Slurm the nodes are asked once, before the first
trial of a cell, whether they see what the trials need. This module changes nothing but a marker in
the work directory that it takes away again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_xlatune.cells import Cell, Resources
from pytest_xlatune.errors import ConfigError
from pytest_xlatune.launchers import Check, Checked, Launcher
from pytest_xlatune.preflight.images import image_faults, image_file

MIN_FREE_BYTES = 1 << 30
_LEFTOVER = "TUNE_PROFILE"
_CHECK_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """What was found: faults that must be mended first, and notes."""

    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def raise_faults(self, what: str) -> None:
        """Say all faults in one message.

        Raises:
            ConfigError: there is one.
        """
        if self.faults:
            listed = "".join(f"\n  - {fault}" for fault in self.faults)
            raise ConfigError(f"{what} cannot begin, nothing was submitted:{listed}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where a campaign is about to run.

    Attributes:
        cell: what is held fixed.
        launcher: how its trials are started.
        resources: what a scheduler is asked for.
        executor: "slurm" or "local".
        folder: the campaign's, need not exist yet.
        is_first: whether no trial of the cell has run yet.
        is_busy: whether trials of the cell may be running now.
    """

    cell: Cell
    launcher: Launcher
    resources: Resources
    executor: str
    folder: Path
    is_first: bool = True
    is_busy: bool = False


def look(site: Site) -> Preflight:
    """Return everything that is wrong with a site."""
    faults = [*_folder_faults(site.folder), *_leftovers(site.launcher.env_files_of(site.cell))]
    faults += image_faults(site.cell, site.folder)
    needed = [*dict.fromkeys((*site.launcher.files(site.cell), image_file(site.cell)))]
    needed = [path for path in needed if path]
    checks = site.launcher.checks(site.cell) if isinstance(site.launcher, Checked) else ()
    if site.executor != "slurm":
        return Preflight(faults=(*faults, *_absent(needed), *_unfit(checks)))
    node_faults = _node_faults(site)
    notes: list[str] = []
    if site.is_first and site.cell.nodelist and not faults and not node_faults:
        seen, notes = _from_the_nodes(site, needed, checks)
        faults += seen
    elif site.is_first:
        # whether the nodes see a file that is not here, only they can say
        notes += [f"not looked for on the nodes: {fault}" for fault in _absent(needed)]
    return Preflight(faults=(*faults, *node_faults), notes=tuple(notes))


def _folder_faults(folder: Path) -> Iterator[str]:
    marker = folder / f"preflight.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        marker.write_text("written to see whether it can be\n", encoding="utf-8")
        marker.unlink(missing_ok=True)  # another host may have a process of our id
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        yield f"work directory {folder} cannot be written: {error.strerror or error}"
        return
    if free_bytes < MIN_FREE_BYTES:
        yield (
            f"work directory {folder} has {free_bytes / 2**20:.0f} MiB free, expected at least "
            f"{MIN_FREE_BYTES >> 20}: logs and dumps would be cut"
        )


def _leftovers(env_files: Iterable[str]) -> Iterator[str]:
    for name in env_files:
        try:
            lines = Path(name).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue  # told with the other files
        for number, line in enumerate(lines, start=1):
            if _LEFTOVER in line.partition("#")[0]:
                yield (
                    f"{name}:{number}: {_LEFTOVER} is left over from tuning by hand; it would be "
                    "part of every trial, the baseline included. Take it out"
                )
                break


def _absent(paths: Iterable[str]) -> list[str]:
    return [f"{path} does not exist on this machine" for path in paths if not Path(path).exists()]


def _unfit(checks: Iterable[Check]) -> Iterator[str]:
    """Run the checks of a launcher on this machine."""
    for command, wrong in checks:
        try:
            done = subprocess.run(
                ["/bin/sh", "-c", command],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_CHECK_TIMEOUT_S,
                check=False,
            )
            is_fit = done.returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            is_fit = False
        if not is_fit:
            yield f"this machine: {wrong}"


def _node_faults(site: Site) -> tuple[str, ...]:
    if not site.cell.nodelist:
        return ()
    from pytest_xlatune.executors.slurm_nodes import check_nodes  # noqa: PLC0415

    return check_nodes(
        site.cell.nodelist,
        partition=site.resources.options.get("partition", ""),
        idle=not site.is_busy,
    )


def _from_the_nodes(
    site: Site, needed: Sequence[str], checks: Sequence[Check]
) -> tuple[list[str], list[str]]:
    """Return faults and notes of what the nodes see and can, the work directory included."""
    from pytest_xlatune.executors.slurm_sight import look as look_from_nodes  # noqa: PLC0415

    marker = site.folder / f"preflight.{os.getpid()}"
    marker.touch()
    try:
        sight = look_from_nodes(
            [str(marker), *needed],
            checks=checks,
            nodelist=site.cell.nodelist,
            options=site.resources.options,
        )
    finally:
        marker.unlink()
    if sight.why_not:
        return [], [f"nobody looked from the nodes: {sight.why_not}", *_absent(needed)]
    unseen = [
        f"{', '.join(nodes)} cannot see "
        + (f"the work directory {site.folder}" if path == str(marker) else path)
        for path, nodes in sight.unseen.items()
    ]
    return [*unseen, *(f"{', '.join(nodes)}: {wrong}" for wrong, nodes in sight.unfit.items())], []
