"""MaxText, and any trainer that is started like it: a config file and `key=value` arguments.

Which keys a trial has is `maxtext_keys`' business; `{model_tag}` in any value is the cell's. This
module must not know a MaxText release: what keys it has is asked elsewhere.

Relative outputs land in the attempt's folder. MaxText checkpoints to absolute paths only: a cell
that turns checkpointing on overrides `base_output_directory` too.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from pytest_xlatune.cells import Cell, LaunchSpec, Stage, Trial
from pytest_xlatune.launchers.maxtext_keys import check_axis_prefix, trial_keys
from pytest_xlatune.launchers.program import (
    FOLDER,
    Program,
    check_absolute,
    for_model,
    metrics_file_of,
)

OUTPUT_FOLDER = "output"


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxTextLauncher(Program):
    """Start `python -m module config key=value ...`.

    Attributes:
        config: the trainer's yml; absolute, or relative to `cwd`; `{model_tag}` is the cell's.
        python: the interpreter of the trainer's own environment.
        module: `MaxText.train` (to 0.1), `maxtext.trainers.pre_train.train` (from 0.2), or the
            path of a script, which ends in .py.
        axis_prefix: axis -> "dcn" or "ici", where it differs from `maxtext_keys.AXIS_PREFIX`.
    """

    config: str
    python: str = "python3"
    module: str = "MaxText.train"
    axis_prefix: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        Program.__post_init__(self)
        check_axis_prefix(self.axis_prefix)
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

    @property
    def package(self) -> str:
        """The package that brings the base configuration: `maxtext`; "" where a script does."""
        return "" if self.module.endswith(".py") else self.module.partition(".")[0]

    def config_of(self, cell: Cell) -> str:
        """Return the absolute path of a cell's config."""
        return str(PurePosixPath(self.cwd or "/") / for_model(self.config, cell))

    def files(self, cell: Cell) -> tuple[str, ...]:
        """Return what must exist where trials run, relative names below `cwd` included."""
        named = [
            self.config_of(cell),
            *([self.module] if self.module.endswith(".py") else []),
            *([self.python] if "/" in self.python else []),
        ]
        below = PurePosixPath(self.cwd or "/")
        return (*Program.files(self, cell), *(str(below / each) for each in named))

    def launch(self, trial: Trial, cell: Cell) -> LaunchSpec:
        """Return the command with every key once.

        Raises:
            ConfigError: an override of a key that the protocol or the cell sets.
        """
        keys = self.keys(trial, cell)
        words = [*self._head(), *(f"{key}={value}" for key, value in keys.items())]
        argv = [for_model(each, cell) for each in words]
        return self.start(argv, trial=trial, cell=cell, metrics_file=metrics_file_of(cell))

    def keys(self, trial: Trial, cell: Cell) -> dict[str, str]:
        """Return every `key=value` of a trial, in the order of the command line.

        Raises:
            ConfigError: as of `launch`.
        """
        keys = {
            "run_name": trial.id,
            "base_output_directory": f"{FOLDER}/{OUTPUT_FOLDER}",
            **trial_keys(trial, cell, axis_prefix=self.axis_prefix),
        }
        if trial.stage is Stage.EVIDENCE:
            # MaxText's own compile cache: what comes out of it is not dumped in full
            keys["jax_cache_dir"] = ""
        if metrics_file := metrics_file_of(cell):
            keys["metrics_file"] = f"{FOLDER}/{metrics_file}"
        return keys

    def _head(self) -> tuple[str, ...]:
        program = (self.module,) if self.module.endswith(".py") else ("-m", self.module)
        return (self.python, *program, self.config)
