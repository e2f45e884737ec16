"""A CVS file's trainer started by us: what its YAML says as MaxText keys, its first script.

CVS writes a YAML with `base_config: base.yml` and gives it to the first of the scripts that exists.
So does this launcher, in the attempt's folder; the keys stand on the command line, where MaxText
reads them on top. Slurm starts one process a node, and the container is inside it.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from pytest_xlatune.guests.cvs.source import setting_text
from pytest_xlatune.guests.cvs.values import NO_CONTAINER, Container, CvsCell, CvsFile
from pytest_xlatune.launchers.maxtext import trial_keys
from pytest_xlatune.launchers.program import FOLDER, ProgramLauncher, metrics_file_of
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.profile import Flag, format_flags
from pytest_xlatune.model.trial import LaunchSpec, Trial

CONFIG_FILE = "maxtext_config.yml"
_CONFIG = "base_config: base.yml\n"
# exit code 78 is EX_CONFIG of sysexits.h
# there is exec and no pipe, because CVS' `| tee` loses the exit status of the trainer
_FIRST = """\
for script in {scripts}; do
  [ -f "$script" ] && exec {python} "$script" "$@"
done
echo "xlatune: none of the trainer's scripts is there: {shown}" >&2
exit 78
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CvsLauncher(ProgramLauncher):
    """Start the first of a CVS file's scripts that exists, with the file's MaxText keys.

    Attributes:
        scripts: absolute, or relative to `cwd`.
        python: the interpreter of the trainer.
        source: path of the file, into which a recipe can be written; no part of the cell.
        source_cell: the name of its cell.
    """

    scripts: tuple[str, ...] = ()
    python: str = "python3"
    source: str = ""
    source_cell: str = ""

    def describe(self) -> str:
        """Return interpreter and scripts, and where they run."""
        head = f"cvs maxtext {shlex.join((self.python, *self.scripts))}"
        return " ".join(filter(None, (head, self.where())))

    @property
    def interpreter(self) -> str:
        """The interpreter of the trainer."""
        return self.python

    def launch(self, trial: Trial, cell: Cell) -> LaunchSpec:
        """Return the command with every key once.

        Raises:
            ConfigError: an override of a key that the protocol or the cell sets.
        """
        keys = {
            "run_name": trial.id,
            "base_output_directory": f"{FOLDER}/output",
            **trial_keys(trial, cell, axis_prefix=None),
        }
        if metrics_file := metrics_file_of(cell):
            keys["metrics_file"] = f"{FOLDER}/{metrics_file}"
        script = _FIRST.format(
            scripts=shlex.join(self.scripts),
            python=shlex.quote(self.python),
            shown=" ".join(self.scripts).replace('"', "'").replace("$", ""),
        )
        words = [f"{key}={value}" for key, value in keys.items()]
        head = ("bash", "--norc", "--noprofile", "-c", script, "cvs", f"{FOLDER}/{CONFIG_FILE}")
        argv = [*head, *words]
        spec = self.start(argv, trial=trial, cell=cell, metrics_file=metrics_file)
        spec.files[CONFIG_FILE] = _CONFIG
        return spec


# cell and protocol set these, so no override may say them
_OWN = frozenset({"per_device_batch_size", "max_target_length", "dataset_type", "profiler"}) | {
    *("eval_interval", "skip_first_n_steps_for_profiler", "profiler_steps", "steps")
}


def overrides_of(cell: CvsCell) -> dict[str, str]:
    """Return the MaxText keys that make a cell, as arguments; axes are among them."""
    return {key: setting_text(value) for key, value in cell.maxtext.items() if key not in _OWN}


def deployed_of(file: CvsFile, cell: CvsCell) -> dict[str, str]:
    """Return the environment of a run: what CVS adds, what the file sets, the flags of XLA."""
    flags = format_flags(Flag(name=name, value=text) for name, text in cell.xla_flags.items())
    # only the path is handed on, where CVS writes the token itself into a script and its log
    token = {"HF_TOKEN_PATH": file.token_file} if file.token_file else {}
    return {**file.added, **file.env, **token, **({"XLA_FLAGS": flags} if flags else {})}


_WITH_OPTIONS = ("docker", "podman")


def container_settings(container: Container, runtime: str) -> tuple[dict[str, Any], list[str]]:
    """Return the options of a runtime, and in words what has no place in it."""
    options = {"runtime": runtime, "mounts": container.mounts}
    if runtime in _WITH_OPTIONS:
        more = {"devices": container.devices, "args": container.args}
        return {**options, **more, "shm_size": container.shm_size.lower()}, []
    left = [f"--volume={mount}" for mount in container.mounts] if runtime == NO_CONTAINER else []
    left += [f"--device={device}" for device in container.devices]
    left += [f"--shm-size={container.shm_size}"] if container.shm_size else []
    return options, [*left, *container.args]
