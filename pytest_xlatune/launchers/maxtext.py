"""MaxText, and any trainer that is started like it: a config file and `key=value` arguments.

The steps, data, batch size, length, profiler and output folder of a trial come from the protocol
and the cell and cannot be overridden, because the study planned the trial with them. All other keys
may come from the overrides of the cell and of the profile, which replace those of the cell.
`{model_tag}` in a value is replaced by that of the cell. This module does not depend on a release
of MaxText: `prepare` finds out which keys the installed release has.

Relative output paths are below the attempt's folder. MaxText checkpoints only to absolute paths, so
a cell with checkpointing must override `base_output_directory` too.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from pytest_xlatune.launchers.command import (
    FOLDER,
    ProgramLauncher,
    check_absolute,
    for_model,
    metrics_file_of,
    sizes_of,
)
from pytest_xlatune.model.cell import AXIS_PREFIX, Axis, Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.trial import LaunchSpec, Trial
from pytest_xlatune.model.written import written

# A model's configuration sets a degree for one of these axes. If a cell names DP or one of them,
# those that it does not name are reset to 1.
_EXCLUSIVE = ("FSDP", "PP")

# keys that cannot be overridden, because the protocol, the cell or this package sets them
FIXED_KEYS = frozenset(
    {
        *("steps", "dataset_type", "eval_interval", "per_device_batch_size", "max_target_length"),
        *("profiler", "skip_first_n_steps_for_profiler", "profiler_steps"),
        *("run_name", "metrics_file"),
    }
)


def check_axis_prefix(axis_prefix: Mapping[str, str]) -> None:
    """Raise ConfigError for an axis or a prefix that does not exist.

    Raises:
        ConfigError: its message names the nearest valid name.
    """
    valid = ("dcn", "ici")
    for axis, prefix in axis_prefix.items():
        if axis not in AXIS_PREFIX:
            raise ConfigError.unknown("axis", axis, valid=AXIS_PREFIX, where="axis_prefix")
        if prefix not in valid:
            raise ConfigError.unknown("prefix", prefix, valid=valid, where=f"axis_prefix of {axis}")


def axis_prefix_text(axis_prefix: Mapping[str, str]) -> str:
    """Return the axis prefixes that the user has set, for `Launcher.describe`."""
    return " ".join(f"{axis}={prefix}" for axis, prefix in sorted(axis_prefix.items()))


def trial_keys(
    trial: Trial,
    cell: Cell,
    *,
    axis_prefix: Mapping[str, str] | None,
    fixed: frozenset[str] = FIXED_KEYS,
) -> dict[str, str]:
    """Return batch size, length, axes, overrides and protocol of a trial, each key once.

    Args:
        trial: a trial of this cell.
        cell: the cell of the trial.
        axis_prefix: axis -> "dcn" or "ici" if it differs from `AXIS_PREFIX`; None if the cell's
            overrides set the axes.
        fixed: keys that cannot be overridden.

    Raises:
        ConfigError: a key that the protocol or the cell sets is overridden.
    """
    protocol, profile = trial.protocol, trial.profile
    axes = {} if axis_prefix is None else _axes(cell, axis_prefix)
    for where, overrides, names in (
        (f"cell {cell.label!r}", cell.overrides, fixed),
        (f"profile {profile.id!r}", profile.overrides, fixed | axes.keys()),
    ):
        for key, value in overrides.items():
            if key in names:
                raise ConfigError(
                    f"{where} overrides {key}={value}, which would make it another measurement; "
                    "the cell, or its protocol or parallelism, sets this key"
                )
    keys = {**sizes_of(cell), **axes, **cell.overrides, **profile.overrides}
    keys |= {"steps": str(protocol.steps), "dataset_type": protocol.dataset_type}
    if protocol.eval_interval:
        keys["eval_interval"] = str(protocol.eval_interval)
    # an empty `profiler=` is refused by MaxText
    if protocol.profiler:
        keys |= {
            "profiler": protocol.profiler,
            "skip_first_n_steps_for_profiler": str(protocol.skip_first_steps),
            "profiler_steps": str(protocol.profiler_steps),
        }
    return keys


def _axes(cell: Cell, axis_prefix: Mapping[str, str]) -> dict[str, str]:
    """Return MaxText's keys for the parallelism of a cell, such as `ici_fsdp_parallelism`."""
    degrees = dict(cell.parallelism.axes)
    if degrees.keys() & {"DP", *_EXCLUSIVE}:
        degrees |= {axis: 1 for axis in _EXCLUSIVE if axis not in degrees}
    prefix = {**AXIS_PREFIX, **axis_prefix}
    return {
        f"{prefix[axis]}_{Axis[axis]}_parallelism": str(degree) for axis, degree in degrees.items()
    }


@written("MaxText launcher")
@dataclass(frozen=True, slots=True, kw_only=True)
class MaxTextLauncher(ProgramLauncher):
    """Start `python -m module config key=value ...`.

    Attributes:
        config: the trainer's YAML file, absolute or relative to `cwd`; `{model_tag}` is replaced.
        python: the interpreter of the trainer's environment.
        module: `MaxText.train` (MaxText up to 0.1), `maxtext.trainers.pre_train.train` (from 0.2),
            or the path of a script that ends in .py.
        axis_prefix: axis -> "dcn" or "ici" if it differs from `AXIS_PREFIX`.
    """

    config: str
    python: str = "python3"
    module: str = "MaxText.train"
    axis_prefix: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ProgramLauncher.__post_init__(self)
        check_axis_prefix(self.axis_prefix)
        if not self.cwd:
            check_absolute(self.config, "config")
            if self.module.endswith(".py"):
                check_absolute(self.module, "script")
            if "/" in self.python:
                check_absolute(self.python, "interpreter")

    def describe(self) -> str:
        """Return the command without keys, unusual axis prefixes, and the working directory."""
        prefixes = axis_prefix_text(self.axis_prefix)
        parts = ("maxtext", shlex.join(self._command_head()), prefixes, self.where())
        return " ".join(filter(None, parts))

    @property
    def interpreter(self) -> str:
        """The interpreter of the trainer's environment."""
        return self.python

    @property
    def package(self) -> str:
        """The package with the base configuration, e.g. `maxtext`; "" for a script."""
        return "" if self.module.endswith(".py") else self.module.partition(".")[0]

    def config_of(self, cell: Cell) -> str:
        """Return the absolute path of a cell's configuration file."""
        return str(PurePosixPath(self.cwd or "/") / for_model(self.config, cell))

    def files(self, cell: Cell) -> tuple[str, ...]:
        """Return what must exist where trials run, including relative names below `cwd`."""
        base = PurePosixPath(self.cwd or "/")
        names = [self.module] if self.module.endswith(".py") else []
        names += [self.python] if "/" in self.python else []
        paths = (str(base / name) for name in names)
        return (*ProgramLauncher.files(self, cell), self.config_of(cell), *paths)

    def launch(self, trial: Trial, cell: Cell) -> LaunchSpec:
        """Return the spec with every key once.

        Raises:
            ConfigError: a key that the protocol or the cell sets is overridden.
        """
        metrics_file = metrics_file_of(cell)
        keys = {
            "run_name": trial.id,
            "base_output_directory": f"{FOLDER}/output",
            **trial_keys(trial, cell, axis_prefix=self.axis_prefix),
            # MaxText's compile cache is turned off, because cached programs are not dumped in full
            **({"jax_cache_dir": ""} if trial.compiles_anew else {}),
            **({"metrics_file": f"{FOLDER}/{metrics_file}"} if metrics_file else {}),
        }
        words = [*self._command_head(), *(f"{key}={value}" for key, value in keys.items())]
        argv = [for_model(word, cell) for word in words]
        return self.start(
            argv, trial=trial, cell=cell, metrics_file=metrics_file, program=self.module
        )

    def _command_head(self) -> tuple[str, ...]:
        program = (self.module,) if self.module.endswith(".py") else ("-m", self.module)
        return (self.python, *program, self.config)
