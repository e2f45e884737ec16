"""MaxText, and any trainer that is started like it: a config file and `key=value` arguments.

What a trial is (steps, synthetic data, batch, length, profiler, where it writes) comes from the
protocol and the cell and cannot be overridden; it would not be the trial that the study planned.
Everything else may come from the cell's overrides and then the profile's, last wins, and each key
appears once; `{model_tag}` in any is the cell's. This module must not know a MaxText release: what
keys it has is asked elsewhere.

Relative outputs land in the attempt's folder. MaxText checkpoints to absolute paths only: a cell
that turns checkpointing on overrides `base_output_directory` too.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from pytest_xlatune.cells import Axis, Cell, LaunchSpec, Protocol, Stage, Trial
from pytest_xlatune.errors import ConfigError
from pytest_xlatune.launchers.program import (
    FOLDER,
    Program,
    check_absolute,
    for_model,
    metrics_file_of,
    number,
)

OUTPUT_FOLDER = "output"

# Where an axis usually lies: between the slices (dcn) or inside one (ici). A CPU has no slices.
AXIS_PREFIX: Mapping[str, str] = {
    **dict.fromkeys(("DP", "FSDP", "PP"), "dcn"),
    **dict.fromkeys(("TP", "EP", "CP", "SP"), "ici"),
}
# Model configs ship with a degree for one of these; naming another must take that one back.
_EXCLUSIVE = ("FSDP", "PP")

# what a trial is made of -> where a user says it
_OWNED: Mapping[str, str] = {
    "steps": "Protocol(steps=...)",
    "dataset_type": "Protocol(dataset_type=...)",
    "eval_interval": "Protocol(eval_interval=...)",
    "profiler": "Protocol(profiler=...)",
    "skip_first_n_steps_for_profiler": "Protocol(skip_first_steps=...)",
    "profiler_steps": "Protocol(profiler_steps=...)",
    "per_device_batch_size": "Cell(per_device_batch_size=...)",
    "max_target_length": "Cell(max_target_length=...)",
    "run_name": "nothing: it is the trial's id",
    "metrics_file": "nothing: it is in the attempt's folder",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxTextLauncher(Program):
    """Start `python -m module config key=value ...`.

    Attributes:
        config: the trainer's yml; absolute, or relative to `cwd`; `{model_tag}` is the cell's.
        python: the interpreter of the trainer's own environment.
        module: `MaxText.train` (to 0.1), `maxtext.trainers.pre_train.train` (from 0.2), or the
            path of a script, which ends in .py.
        axis_prefix: axis -> "dcn" or "ici", where it differs from `AXIS_PREFIX`.
    """

    config: str
    python: str = "python3"
    module: str = "MaxText.train"
    axis_prefix: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        Program.__post_init__(self)
        for axis, prefix in self.axis_prefix.items():
            if axis not in AXIS_PREFIX:
                raise ConfigError.unknown("axis", axis, valid=AXIS_PREFIX, where="axis_prefix")
            if prefix not in ("dcn", "ici"):
                raise ConfigError.unknown(
                    "prefix", prefix, valid=("dcn", "ici"), where=f"axis_prefix of {axis}"
                )
        if not self.cwd:
            check_absolute(self.config, "config")
            if self.module.endswith(".py"):
                check_absolute(self.module, "script")
            if "/" in self.python:
                check_absolute(self.python, "interpreter")

    def describe(self) -> str:
        """Return the command up to its keys, the axis prefixes that differ, where it runs."""
        prefixes = " ".join(f"{axis}={self.axis_prefix[axis]}" for axis in sorted(self.axis_prefix))
        return " ".join(filter(None, ("maxtext", shlex.join(self._head()), prefixes, self.where())))

    @property
    def interpreter(self) -> str:
        """The interpreter of the trainer's own environment."""
        return self.python

    def files(self, cell: Cell) -> tuple[str, ...]:
        """Return what must exist where trials run, relative names below `cwd` included."""
        named = [
            for_model(self.config, cell),
            *([self.module] if self.module.endswith(".py") else []),
        ]
        if "/" in self.python:
            named.append(self.python)
        below = PurePosixPath(self.cwd or "/")
        return (*Program.files(self, cell), *(str(below / each) for each in named))

    def launch(self, trial: Trial, cell: Cell) -> LaunchSpec:
        """Return the command with every key once.

        Raises:
            ConfigError: an override of a key that the protocol or the cell sets.
        """
        axes = self._axes(cell)
        _check_overrides(cell.overrides, f"cell {cell.label!r}", _OWNED)
        _check_overrides(
            trial.profile.overrides,
            f"profile {trial.profile.id!r}",
            {**_OWNED, **dict.fromkeys(axes, "the cell's parallelism")},
        )
        metrics_file = metrics_file_of(cell)
        keys = {
            "run_name": trial.id,
            "base_output_directory": f"{FOLDER}/{OUTPUT_FOLDER}",
            **_shape(cell),
            **axes,
            **cell.overrides,
            **trial.profile.overrides,
            **_protocol_keys(trial.protocol),
        }
        if trial.stage is Stage.EVIDENCE:
            # MaxText's own compile cache: what comes out of it is not dumped in full
            keys["jax_cache_dir"] = ""
        if metrics_file:
            keys["metrics_file"] = f"{FOLDER}/{metrics_file}"
        words = [*self._head(), *(f"{key}={value}" for key, value in keys.items())]
        argv = [for_model(each, cell) for each in words]
        return self.start(argv, trial=trial, cell=cell, metrics_file=metrics_file)

    def _head(self) -> tuple[str, ...]:
        program = (self.module,) if self.module.endswith(".py") else ("-m", self.module)
        return (self.python, *program, self.config)

    def _axes(self, cell: Cell) -> dict[str, str]:
        named = dict(cell.parallelism.axes)
        if named.keys() & {"DP", *_EXCLUSIVE}:
            named |= {axis: 1 for axis in _EXCLUSIVE if axis not in named}
        prefix = {**AXIS_PREFIX, **self.axis_prefix}
        return {
            f"{prefix[axis]}_{Axis[axis]}_parallelism": str(degree)
            for axis, degree in named.items()
        }


def _shape(cell: Cell) -> dict[str, str]:
    shape = {
        "per_device_batch_size": cell.per_device_batch_size,
        "max_target_length": cell.max_target_length,
    }
    return {key: number(value) for key, value in shape.items() if value is not None}


def _protocol_keys(protocol: Protocol) -> dict[str, str]:
    keys = {"steps": str(protocol.steps), "dataset_type": protocol.dataset_type}
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


def _check_overrides(overrides: Mapping[str, str], where: str, owned: Mapping[str, str]) -> None:
    for key, value in overrides.items():
        if key in owned:
            raise ConfigError(
                f"{where} overrides {key}={value}, which would make it another measurement; it is "
                f"set by {owned[key]}"
            )
