"""MaxText through a checkout of maxtext-slurm: its `submit.sh`, its containers, its output folders.

The scripts of that repository call sbatch themselves, so a trial is a process on the login node
(local executor) that makes one Slurm job and follows it; the process is
`workers.maxtext_slurm_job`. The attribute `sbatch` pins the nodes.

Settings are passed in two ways, because `submit.sh` makes the names of the job, and of files and
folders, from all its arguments after `--`, the passthroughs:

* Keys that are allowed in a file name are passthroughs, `key=value`, as users of the repository
  write them.
* Other keys, those of the profiler, and the profile's flags and variables are appended to
  `configs/<model>.env.sh` in a copy of the checkout for this trial. MaxText reads a key from
  M_<KEY>. That file is sourced after the image's environment and `train_env.sh`, so its flags win.
  Flags in `train_env.sh` would not win, and `_env_XLA_FLAGS` would replace deployed flags.

A rotation is passed in the second way too: that file writes the spec and its worker into the job's
output folder, and each Python in the container loads the worker.

Formats: amd-agi/maxtext-slurm, main of 2026-06.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_xlatune.launchers import Launcher, Rotates
from pytest_xlatune.launchers.command import (
    PROFILE_FILE,
    check_absolute,
    for_model,
    rotation_files,
    shows_settings,
    trial_env,
    witness_script,
)
from pytest_xlatune.launchers.maxtext import (
    FIXED_KEYS,
    axis_prefix_text,
    check_axis_prefix,
    trial_keys,
)
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.hosts import expand
from pytest_xlatune.model.profile import shell_exports
from pytest_xlatune.model.trial import LaunchSpec, Trial
from pytest_xlatune.model.written import written

# the most bytes of a job's name in the file name `<id>-<name>.log`, which has 255 at most: 7 are
# for the id, and 5 for `-` and `.log`
JOB_NAME_BYTES = 243
AXES_FILE = "axes.env.sh"
DRIVER = "pytest_xlatune.workers.maxtext_slurm_job"
# variables of pytest's shell that the job inherits; a SLURM_* of an allocation must not be one
INHERIT = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "SLURM_CONF")

# the nodes in NUL-separated sbatch arguments:  -wn1,n2   --nodelist\0node[001-008]
_NODELIST = re.compile(r"(?:^|\0)(?:-w|--nodelist)\0?([^\0]+)")
_FIXED_KEYS = FIXED_KEYS | {"base_output_directory"}
_ENV_PREFIX = "_env_"
# a value that may be in a file name and in a shell word:  minimal_with_context  0.5  -1
_FILE_NAME_VALUE = re.compile(r"[A-Za-z0-9._,+-]*")
_PROFILER_KEYS = frozenset({"profiler", "profiler_steps", "skip_first_n_steps_for_profiler"})
_TAG_CHARACTERS = 24  # characters of a profile's id before the trial's digest


@written("MaxText launcher of Slurm")
@dataclass(frozen=True, slots=True, kw_only=True)
class MaxTextSlurmLauncher(Launcher):
    """Start `submit.sh model:tag sbatch... -- key=value...` and follow the job that it makes.

    Attributes:
        checkout: absolute path of the repository, visible to the nodes.
        sbatch: arguments of sbatch, which name the nodes: `("-N", "8", "-w", "node[001-008]")`.
        workspace: folder for logs and output folders; "" for the checkout's `outputs`.
        is_ray: whether jobs run through Ray (RAY=1).
        axis_prefix: axis -> "dcn" or "ici" if it differs from `AXIS_PREFIX`.
        queue_s: seconds that a job may wait for its nodes, in addition to the trial's deadline.
        inherit: names of this process's variables that `submit.sh`, and so the job, inherits.
        python: the interpreter for the process that follows the job.
    """

    checkout: str
    sbatch: tuple[str, ...]
    workspace: str = ""
    is_ray: bool = False
    axis_prefix: Mapping[str, str] = field(default_factory=dict)
    queue_s: int = 24 * 3600
    inherit: tuple[str, ...] = INHERIT
    python: str = sys.executable

    def __post_init__(self) -> None:
        check_absolute(self.checkout, "checkout")
        if self.workspace:
            check_absolute(self.workspace, "workspace")
        check_axis_prefix(self.axis_prefix)
        if not any(re.match(r"-w|--nodelist", word) for word in self.sbatch):
            raise ConfigError(
                f"maxtext-slurm launcher: sbatch={shlex.join(self.sbatch)!r} names no nodes, so "
                "each trial might run on other nodes; add '-w', 'node[001-008]'"
            )
        if "--" in self.sbatch:
            raise ConfigError(
                "maxtext-slurm launcher: sbatch holds `--`; put the keys after it, which are "
                "MaxText's, into the cell's overrides"
            )

    def describe(self) -> str:
        """Return checkout, sbatch arguments (including nodes), Ray, and set axis prefixes."""
        ray = "RAY=1" if self.is_ray else ""
        prefixes = axis_prefix_text(self.axis_prefix)
        words = ("maxtext-slurm", self.checkout, shlex.join(self.sbatch), ray, prefixes)
        return " ".join(filter(None, words))

    @property
    def rotates(self) -> Rotates:
        """How programs can take turns: in a container's Python, unless Ray starts it."""
        return Rotates.NO if self.is_ray else Rotates.WRAPPED

    def env_files_of(self, cell: Cell) -> tuple[str, ...]:
        """Return the files that deploy a cell, in the order in which they are sourced."""
        names = ("train_env.sh", f"configs/{cell.model_tag}.env.sh")
        return tuple(f"{self.checkout}/{name}" for name in names)

    @property
    def nodes(self) -> int:
        """The number of nodes in the sbatch arguments."""
        words = "\0".join(part for word in self.sbatch for part in word.split("=", 1))
        names = _NODELIST.search(words)
        return len(expand(names[1])) if names is not None else 0

    @property
    def image_file(self) -> str:
        """The shell file that sets the image of jobs, and the branch that is patched in."""
        return f"{self.checkout}/container_env.sh"

    def files(self, cell: Cell) -> tuple[str, ...]:
        """Return what must exist, with the model's exact name, because a part may be ambiguous."""
        names = ("submit.sh", "train_env.sh", f"configs/{cell.model_tag}.gpu.yml")
        image = (cell.image,) if cell.image.startswith("/") else ()
        return (*(f"{self.checkout}/{name}" for name in names), *image)

    def launch(self, trial: Trial, cell: Cell) -> LaunchSpec:
        """Return the spec of the process that submits and follows, with the profile's file.

        Raises:
            ConfigError: a setting would be lost or would replace a deployed one, or the job's name
                is too long for a file system.
        """
        if cell.deployed:
            raise ConfigError(
                f"cell {cell.label!r}: deployed={sorted(cell.deployed)} cannot be set before the "
                f"checkout's own environment; put it into {self.env_files_of(cell)[1]}"
            )
        words, variables = self._split_keys(trial, cell)
        minutes, seconds = divmod(trial.deadline_s, 60)
        has_time = any(re.match(r"-t|--time", word) for word in self.sbatch)
        argv = (
            *(self.python, "-m", DRIVER),
            *("--checkout", self.checkout, "--model", cell.model_tag),
            *("--workspace", self.workspace or f"{self.checkout}/outputs"),
            *("--name", _job_name(cell, words), "--"),
            *(f"{cell.model_tag}:{words[0]}", *self.sbatch),
            *([] if has_time else [f"--time={minutes}:{seconds:02}"]),
            *("--", *words[1:]),
        )
        is_witness, flags = shows_settings(trial), (*trial.pins, *trial.profile.flags)
        profile_text = (
            f"\n# profile {trial.profile.id}, after all that is deployed\n"
            f"{shell_exports(flags, {**variables, **trial_env(trial)})}"
            f"{witness_script('OUTPUT_PATH') if is_witness else ''}"
        )
        return LaunchSpec(
            argv=argv,
            env={"RAY": "1"} if self.is_ray else {},
            inherit=self.inherit,
            files={
                AXES_FILE: shell_exports((), cell.guard_variables),
                PROFILE_FILE: profile_text,
                **rotation_files(trial),
            },
            tells_options=is_witness,
            folders=tuple(filter(None, [trial.autotune_folder])),
            last_step=trial.protocol.last_step,
            deadline_s=trial.deadline_s + self.queue_s,
        )

    def _split_keys(self, trial: Trial, cell: Cell) -> tuple[list[str], dict[str, str]]:
        """Return a tag and the passthroughs, and the variables for all other keys."""
        keys = trial_keys(trial, cell, axis_prefix=self.axis_prefix, fixed=_FIXED_KEYS)
        keys = {key: for_model(value, cell) for key, value in keys.items()}
        for key in keys:
            name = key.removeprefix(_ENV_PREFIX)
            if key != name and (name == "XLA_FLAGS" or name in trial.profile.env):
                raise ConfigError(
                    f"{key} is exported after profile {trial.profile.id!r} and would replace "
                    f"{name} of the profile or the deployment; put it into the model's env.sh"
                )
        if trial.protocol.dump:
            keys[f"{_ENV_PREFIX}ENABLE_XLA_DUMP"] = "1"
        if trial.compiles_anew:
            keys["jax_cache_dir"] = ""
        passed = [
            key
            for key, value in keys.items()
            if _FILE_NAME_VALUE.fullmatch(value) and key not in _PROFILER_KEYS
        ]
        for key in keys:
            if key not in passed and key.startswith(_ENV_PREFIX):
                raise ConfigError(
                    f"{key}={keys[key]!r} cannot be a passthrough: blanks and `/` break the job's "
                    "name; put it into the model's env.sh or the profile's env"
                )
        tag = f"{trial.profile.id[:_TAG_CHARACTERS].rstrip('-')}-{trial.digest}"
        if len(_job_name(cell, [tag, *(f"{key}={keys[key]}" for key in passed)])) > JOB_NAME_BYTES:
            # all keys become variables, except for those that are variables of the job already
            tag = trial.digest
            passed = [key for key in passed if key.startswith(_ENV_PREFIX)]
        words = [tag, *(f"{key}={keys[key]}" for key in passed)]
        if len(name := _job_name(cell, words)) > JOB_NAME_BYTES:
            raise ConfigError(
                f"maxtext-slurm makes the job's name of its arguments. It has {len(name)} bytes, "
                f"but a file's name has room for {JOB_NAME_BYTES}: {name}. Put variables that all "
                f"trials share into {self.env_files_of(cell)[1]}"
            )
        return words, {f"M_{key.upper()}": keys[key] for key in keys if key not in passed}


def _job_name(cell: Cell, words: Sequence[str]) -> str:
    """Return the name that `submit.sh` gives a job: `JAX-<model>-<tag>-<key>_<value>-...`."""
    parts = [word.removeprefix("--").removeprefix("-").replace("=", "_") for word in words[1:]]
    return "-".join((f"JAX-{cell.model_tag}", words[0], *parts))
