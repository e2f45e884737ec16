"""Make a sweep of a cell of a CVS file; an entry point."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_xlatune.guests.cvs.launcher import (
    CvsLauncher,
    container_settings,
    deployed_of,
    overrides_of,
)
from pytest_xlatune.guests.cvs.reading import read_cvs_file
from pytest_xlatune.guests.cvs.thresholds import Demand, Thresholds
from pytest_xlatune.guests.cvs.values import NO_CONTAINER, TFLOPS, TOKENS, CvsCell, CvsFile
from pytest_xlatune.launchers import Launcher
from pytest_xlatune.launchers.container import ContainerLauncher
from pytest_xlatune.model.cell import Protocol
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import Profile
from pytest_xlatune.sweep.declaration import LauncherFile
from pytest_xlatune.sweep.groups import CellSettings

# metrics that every run records; those for which the file has a threshold are also judged
_ALWAYS_RECORDED = (TOKENS, TFLOPS, "step_time_seconds", "final_loss")
_WARM_UP_STEPS, _MIN_SCORED_STEPS = 5, 6
_MIN_STEPS = _WARM_UP_STEPS + 5


class CvsLauncherFile(LauncherFile):
    """The files of CVS, as files of a launcher."""

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
        """Return the keywords of `Sweep` for a cell of the file: see `Sweep.from_cvs`.

        Raises:
            ConfigError: the file is not a CVS file, has an open item, or has no such cell.
        """
        file = read_cvs_file(
            path, cluster=Path(cluster) if cluster else None, values=values, nodes=nodes
        )
        cells = {cvs_cell.name: cvs_cell for cvs_cell in file.cells}
        if cell not in cells and (cell or len(cells) > 1):
            raise ConfigError.unknown("cell", cell, valid=cells, where=str(path))
        chosen = cells[cell] if cell else file.cells[0]
        _check_runnable(file, chosen)
        study = settings.pop("study", None)
        if study is None and not profiles:
            study = Thresholds(demands=demands_of(chosen))
        name = f"cvs-{Path(file.where).stem}"
        if len(file.cells) > 1:
            name += f"-{chosen.name}"
        return {
            "name": re.sub(r"[^a-z0-9_]+", "-", name.lower()).strip("-_"),
            "launcher": _launcher(file, runtime),
            "profiles": profiles,
            "cell": _cell_settings(file, chosen),
            "study": study,
            **settings,
        }


def demands_of(cell: CvsCell) -> tuple[Demand, ...]:
    """Return a demand for each threshold of a cell, and for the metrics that are only recorded."""
    demands = {name: Demand(metric=name) for name in _ALWAYS_RECORDED}
    return tuple({**demands, **cell.thresholds}.values())


def _check_runnable(file: CvsFile, cell: CvsCell) -> None:
    """Refuse a file or a cell that cannot run.

    Raises:
        ConfigError: an item is open, the number of nodes or steps is unknown, or the steps are too
            few.
    """
    file.refuse_open()
    if cell.nodes is None or not cell.parallelism:
        raise ConfigError(
            f"{file.where}: the number of nodes of cell {cell.name!r} is not known: "
            "give --xlatune-nodelist 'node[001-004]', --xlatune-nodes 4, or a cluster file "
            "(--cvs-cluster)"
        )
    if cell.steps is None:
        raise ConfigError(f"{file.where}: the file does not say how many steps a run has")
    if cell.steps < _MIN_STEPS:
        raise ConfigError(
            f"{file.where}: a run has {cell.steps} steps, of which {_WARM_UP_STEPS} warm up, but "
            f"at least {_MIN_STEPS} are needed; set more with --cvs-set"
        )


def _launcher(file: CvsFile, runtime: str) -> Launcher:
    """Return the launcher of a file; `runtime` replaces the file's own unless it is ""."""
    inner = CvsLauncher(scripts=file.scripts)
    runtime = runtime or file.container.runtime
    if runtime == NO_CONTAINER:
        return inner
    options, _ = container_settings(file.container, runtime)
    return ContainerLauncher(inner=inner, **options)


def _cell_settings(file: CvsFile, cell: CvsCell) -> CellSettings:
    """Return the cell of a sweep for a cell of the file."""
    nodes, steps = cell.nodes or 1, cell.steps or _MIN_STEPS
    return CellSettings(
        model_tag=_tag(cell.model, "model"),
        parallelism=cell.parallelism,
        config_tag=f"{_tag(cell.gpu, 'gpu')}-{file.mode}",
        per_device_batch_size=cell.per_device_batch_size,
        max_target_length=cell.max_target_length,
        image=file.image,
        deployed=deployed_of(file, cell),
        overrides=overrides_of(cell),
        devices=nodes * cell.gpus_per_node,
        protocol=Protocol(
            steps=steps,
            first_step=_WARM_UP_STEPS,
            min_steps=min(_MIN_SCORED_STEPS, steps - _WARM_UP_STEPS),
            dataset_type=str(cell.maxtext.get("dataset_type", "synthetic")),
        ),
    )


def _tag(text: str, default: str) -> str:
    """Return a name as a valid tag: `meta-llama/Llama-3` becomes `meta-llama-Llama-3`."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-._+") or default
