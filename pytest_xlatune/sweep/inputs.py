"""What the user said about a cell, wherever it was said, as a sweep takes it.

Options know what stands on which command line; a sweep knows cells. This module is between them and
decides nothing: where nothing was said, None says so and the sweep file decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pytest_xlatune.campaign.limits import Limits
from pytest_xlatune.executors.hostlist import expand
from pytest_xlatune.settings.options import Options

ExecutorName = Literal["local", "slurm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What the user said, on the command line, in the environment, in an ini or a settings file.

    Attributes:
        launcher, container: settings by name, see `launchers.configured`.
        deployed, overrides: go on top of the sweep file's, by name.
        root: of the project: paths below it are named relative to it.
        where: the settings file, for messages.
        places: option -> where it was said.
        sweeps: name of a sweep -> its inputs, where the settings file says something of it.
    """

    model_tag: str | None = None
    parallelism: str | None = None
    config_tag: str | None = None
    per_device_batch_size: float | None = None
    max_target_length: int | None = None
    devices: int | None = None
    image: str | None = None
    nodelist: tuple[str, ...] | None = None
    nodes: int | None = None
    partition: str | None = None
    scheduler_options: Mapping[str, str] = field(default_factory=dict)
    launcher: Mapping[str, Any] = field(default_factory=dict)
    container: Mapping[str, Any] = field(default_factory=dict)
    deployed: Mapping[str, str] = field(default_factory=dict)
    overrides: Mapping[str, str] = field(default_factory=dict)
    executor: ExecutorName | None = None
    screening: Literal["on", "off"] | None = None
    budget: int | None = None
    seed: int | None = None
    limits: Limits = field(default_factory=Limits)
    root: Path | None = None
    where: str = ""
    places: Mapping[str, str] = field(default_factory=dict)
    sweeps: Mapping[str, Inputs] = field(default_factory=dict)

    def of(self, sweep: str) -> Inputs:
        """Return what was said about one sweep."""
        return self.sweeps.get(sweep, self)


def inputs_of(options: Options, root: Path) -> Inputs:
    """Return the user's options as inputs of a sweep.

    Raises:
        ConfigError: a malformed node list.
    """
    return Inputs(
        model_tag=options.model,
        parallelism=options.parallelism,
        config_tag=options.config_tag,
        per_device_batch_size=options.pdbs,
        max_target_length=options.max_target_length,
        devices=options.devices,
        image=options.image,
        nodelist=expand(options.nodelist) if options.nodelist else None,
        nodes=options.nodes,
        partition=options.partition,
        scheduler_options=options.slurm or {},
        launcher=options.launcher or {},
        container=options.container or {},
        deployed=options.deployed,
        overrides=options.overrides,
        executor=options.executor,
        screening=options.screening,
        budget=options.budget,
        seed=options.seed,
        limits=Limits(node_hours=options.node_hours, queue_hours=options.queue_hours),
        root=root,
        where=options.file,
        places=options.places,
        sweeps={name: inputs_of(each, root) for name, each in options.sweeps.items()},
    )
