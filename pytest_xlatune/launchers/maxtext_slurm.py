"""MaxText through a checkout of maxtext-slurm: its `submit.sh`, its containers, its output folders.

That repository submits, so a trial is a process on the login node (the local executor) which makes
one Slurm job and follows it; `workers.maxtext_slurm_job` is that process. `sbatch` pins the nodes.

What a trial is told goes two ways, because `submit.sh` builds the job's name, and with it names of
files and folders, from every passthrough:

* keys that can stand in a file's name are passthroughs, `key=value`, as its users write them;
* the profile's flags and variables, keys that cannot, and the profiler's, are appended to
  `configs/<model>.env.sh` in a copy of the checkout that only this trial uses. That file is sourced
  after the image's environment and `train_env.sh`, so a flag there is the last word, which one in
  `train_env.sh` is not, and `_env_XLA_FLAGS` would replace all that is deployed. MaxText reads a
  key from the variable M_<KEY>.

A rotation goes the second way as well: the spec and its worker are written by that file into the
job's output folder, and each Python of the container loads the worker.

Formats: amd-agi/maxtext-slurm, main of 2026-06.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_xlatune.launchers import Launcher, rotated
from pytest_xlatune.launchers.maxtext import check_axis_prefix, described, trial_keys
from pytest_xlatune.launchers.program import (
    EVIDENCE_ENV,
    PROFILE_FILE,
    cache_env,
    check_absolute,
    for_model,
    is_watched,
    kept_folders,
    witness_script,
)
from pytest_xlatune.launchers.rotated import Rotates
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.hosts import expand
from pytest_xlatune.model.profile import shell_exports
from pytest_xlatune.model.trial import LaunchSpec, Trial
from pytest_xlatune.model.written import written

# the log and the folder of a job are `<id>-<name>.log`: 255 bytes, less a 7-digit id, `-`, `.log`
JOB_NAME_BYTES = 243
AXES_FILE = "axes.env.sh"
DRIVER = "pytest_xlatune.workers.maxtext_slurm_job"
# Of the shell that pytest was started in; a SLURM_* of an allocation would become the job's.
INHERIT = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "SLURM_CONF")

# between arguments of sbatch:   -N8   -N\0008   --nodes\0008        -w\0node[001-008]
_COUNT = re.compile(r"(?:^|\0)(?:-N|--nodes)\0?(\d{1,6})")
_NODELIST = re.compile(r"(?:^|\0)(?:-w|--nodelist)\0?([^\0]+)")
_ANEW_KEYS = {"jax_cache_dir": ""}
_EVIDENCE_KEYS = {"_env_ENABLE_XLA_DUMP": "1", **_ANEW_KEYS}
_OWNED = {"base_output_directory": "nothing: it is the job's folder"}
_OF_AN_ENV = "_env_"
# what may stand in a file's name and in a word of a shell:   minimal_with_context  0.5  -1
_NAMEABLE = re.compile(r"[A-Za-z0-9._,+-]*")
_PROFILER_KEYS = frozenset({"profiler", "profiler_steps", "skip_first_n_steps_for_profiler"})
_TAG_CHARACTERS = 24  # of a profile's id, in front of the trial's digest


@written("MaxText launcher of Slurm")
@dataclass(frozen=True, slots=True, kw_only=True)
class MaxTextSlurmLauncher(Launcher):
    """Start `submit.sh model:tag sbatch... -- key=value...` and follow the job that it makes.

    Attributes:
        checkout: absolute path of the repository, on a file system that the nodes see.
        sbatch: arguments for sbatch; they name the nodes: `("-N", "8", "-w", "node[001-008]")`.
        workspace: where logs and output folders go; "" is the checkout's `outputs`.
        is_ray: whether jobs run through Ray (RAY=1).
        axis_prefix: axis -> "dcn" or "ici", where it differs from `AXIS_PREFIX`.
        queue_s: how long a job may wait for its nodes, in seconds, on top of the trial's deadline.
        inherit: names of this process' variables that `submit.sh` and so the job are given.
        python: the interpreter that runs the following process.
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
                "every trial might run on others; add '-w', 'node[001-008]'"
            )
        if "--" in self.sbatch:
            raise ConfigError(
                "maxtext-slurm launcher: sbatch holds `--`; what comes after it is MaxText's and "
                "belongs to the cell's overrides"
            )

    def describe(self) -> str:
        """Return checkout, sbatch arguments (the nodes among them), what differs otherwise."""
        ray = "RAY=1" if self.is_ray else ""
        prefixes = described(self.axis_prefix)
        words = ("maxtext-slurm", self.checkout, shlex.join(self.sbatch), ray, prefixes)
        return " ".join(filter(None, words))

    @property
    def interpreter(self) -> str:
        """None: the XLA that reads the flags is in the image."""
        return ""

    @property
    def rotates(self) -> Rotates:
        """Programs can take turns in a container's Python, but not in one that Ray started."""
        return Rotates.NO if self.is_ray else Rotates.WRAPPED

    def env_files_of(self, cell: Cell) -> tuple[str, ...]:
        """Return the files that deploy a cell, in the order they are sourced."""
        names = ("train_env.sh", f"configs/{cell.model_tag}.env.sh")
        return tuple(f"{self.checkout}/{name}" for name in names)

    @property
    def nodes(self) -> int:
        """The number of nodes that sbatch is asked for."""
        words = [part for word in self.sbatch for part in word.split("=", 1)]
        text = "\0".join(words)
        if (number := _COUNT.search(text)) is not None:
            return int(number[1])
        names = _NODELIST.search(text)
        return len(expand(names[1])) if names is not None else 0

    @property
    def image_file(self) -> str:
        """The file that says in which image jobs run, and which branch is patched in."""
        return f"{self.checkout}/container_env.sh"

    def files(self, cell: Cell) -> tuple[str, ...]:
        """Return what must exist: the model by its exact name, as a part of one is ambiguous."""
        names = ("submit.sh", "train_env.sh", f"configs/{cell.model_tag}.gpu.yml")
        image = (cell.image,) if cell.image.startswith("/") else ()
        return (*(f"{self.checkout}/{name}" for name in names), *image)

    def launch(self, trial: Trial, cell: Cell) -> LaunchSpec:
        """Return the process that submits and follows, with the profile's file beside it.

        Raises:
            ConfigError: a setting that would be lost or replace a deployed one, or a job name that
                no file system takes.
        """
        if cell.deployed:
            raise ConfigError(
                f"cell {cell.label!r}: deployed={sorted(cell.deployed)} cannot be put under the "
                f"checkout's own environment; it belongs into {self.env_files_of(cell)[1]}"
            )
        words, variables = self._split(trial, cell)
        has_time = any(re.match(r"-t|--time", word) for word in self.sbatch)
        minutes, seconds = divmod(trial.deadline_s, 60)
        argv = (
            *(self.python, "-m", DRIVER),
            *("--checkout", self.checkout, "--model", cell.model_tag),
            *("--workspace", self.workspace or f"{self.checkout}/outputs"),
            *("--name", _job_name(cell, words), "--"),
            *(f"{cell.model_tag}:{words[0]}", *self.sbatch),
            *([] if has_time else [f"--time={minutes}:{seconds:02}"]),
            *("--", *words[1:]),
        )
        profile_env = {**cache_env(trial), **trial.profile.env}
        env = {**variables, **profile_env, **(EVIDENCE_ENV if trial.protocol.dump else {})}
        exports = shell_exports((*trial.pins, *trial.profile.flags), env)
        exports += witness_script("OUTPUT_PATH") if is_watched(trial) else ""
        head = f"\n# profile {trial.profile.id}, after all that is deployed\n"
        turns = trial.rotation
        worker = rotated.files_of(turns.as_run, worker=rotated.SITE_FILE) if turns else {}
        return LaunchSpec(
            argv=argv,
            env={"RAY": "1"} if self.is_ray else {},
            inherit=self.inherit,
            files={
                AXES_FILE: shell_exports((), cell.guard_variables),
                PROFILE_FILE: head + exports,
                **worker,
            },
            tells_options=is_watched(trial),
            folders=kept_folders(trial),
            last_step=trial.protocol.last_step,
            deadline_s=trial.deadline_s + self.queue_s,
        )

    def _split(self, trial: Trial, cell: Cell) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return tag and passthroughs, and the variables of the keys that are none."""
        asked = trial_keys(trial, cell, axis_prefix=self.axis_prefix, owned=_OWNED)
        keys = {key: for_model(value, cell) for key, value in asked.items()}
        for key in keys:
            name = key.removeprefix(_OF_AN_ENV)
            if key != name and (name == "XLA_FLAGS" or name in trial.profile.env):
                raise ConfigError(
                    f"{key} is exported after profile {trial.profile.id!r} and would replace "
                    f"{name}, the profile's or the deployed one; put it into the model's env.sh"
                )
        if trial.compiles_anew:
            keys |= _EVIDENCE_KEYS if trial.protocol.dump else _ANEW_KEYS
        elif trial.compile_folder:
            keys["jax_cache_dir"] = trial.compile_folder
        named = {
            key: value
            for key, value in keys.items()
            if _NAMEABLE.fullmatch(value) and key not in _PROFILER_KEYS
        }
        lost = [key for key in keys if key not in named and key.startswith(_OF_AN_ENV)]
        if lost:
            raise ConfigError(
                f"{lost[0]}={keys[lost[0]]!r} cannot be a passthrough: blanks and `/` break the "
                "job's name; put it into the model's env.sh or the profile's env"
            )
        tag = f"{trial.profile.id[:_TAG_CHARACTERS].rstrip('-')}-{trial.digest}"
        # a name that is too long loses the profile's id first, then its longest keys
        # these reach MaxText as variables: a profile of many keys was refused at its slot before
        movable = [key for key in named if not key.startswith(_OF_AN_ENV)]
        movable.sort(key=lambda key: len(key) + len(named[key]))
        while len(name := _job_name(cell, words := _words(tag, named))) > JOB_NAME_BYTES:
            if tag != trial.digest:
                tag = trial.digest
            elif movable:
                del named[movable.pop()]
            else:
                raise ConfigError(
                    f"maxtext-slurm makes the job's name of its arguments: {len(name)} bytes, at "
                    f"most {JOB_NAME_BYTES} fit a file's name: {name}. Put variables that all "
                    f"trials share into {self.env_files_of(cell)[1]}"
                )
        return words, {f"M_{key.upper()}": keys[key] for key in keys if key not in named}


def _words(tag: str, named: Mapping[str, str]) -> tuple[str, ...]:
    return (tag, *(f"{key}={value}" for key, value in named.items()))


def _job_name(cell: Cell, words: tuple[str, ...]) -> str:
    """Return the name that `submit.sh` gives a job: `JAX-<model>-<tag>-<key>_<value>-...`."""
    parts = [word.removeprefix("--").removeprefix("-").replace("=", "_") for word in words[1:]]
    return "-".join((f"JAX-{cell.model_tag}", words[0], *parts))
