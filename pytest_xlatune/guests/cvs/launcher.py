"""Start the trainer of a CVS file: the first of its scripts that exists, with MaxText keys.

CVS writes a YAML with `base_config: base.yml` and runs the first script that exists with it. This
launcher does the same in the folder of the attempt. It passes the keys on the command line, which
MaxText prefers to the YAML. Slurm starts one process on each node, which starts the container.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from pytest_xlatune.guests.cvs.source import setting_text
from pytest_xlatune.guests.cvs.values import NO_CONTAINER, Container, CvsCell, CvsFile
from pytest_xlatune.launchers.command import FOLDER, ProgramLauncher, metrics_file_of
from pytest_xlatune.launchers.maxtext import trial_keys
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.profile import Flag, format_flags
from pytest_xlatune.model.trial import LaunchSpec, Trial

CONFIG_FILE = "maxtext_config.yml"
_CONFIG = "base_config: base.yml\n"
# Runs the first script that exists. `exec` keeps the exit status of the trainer, which CVS loses in
# a pipe (`| tee`). Exit code 78 is EX_CONFIG of sysexits.h.
_RUN_FIRST_SCRIPT = """\
for script in {scripts}; do
  [ -f "$script" ] && exec {python} "$script" "$@"
done
echo "xlatune: none of the trainer's scripts is there: {shown}" >&2
exit 78
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CvsLauncher(ProgramLauncher):
    """Start the first script of a CVS file that exists, with the MaxText keys of the file.

    Attributes:
        scripts: the paths of the scripts, absolute or relative to `cwd`.
        python: the interpreter that runs the trainer.
    """

    scripts: tuple[str, ...] = ()
    python: str = "python3"

    def describe(self) -> str:
        """Return the interpreter, the scripts, and the folder in which they run."""
        head = f"cvs maxtext {shlex.join((self.python, *self.scripts))}"
        return " ".join(filter(None, (head, self.where())))

    @property
    def interpreter(self) -> str:
        """The interpreter of the trainer."""
        return self.python

    def launch(self, trial: Trial, cell: Cell) -> LaunchSpec:
        """Return the command line, with every key once.

        Raises:
            ConfigError: an override sets a key that the protocol or the cell sets.
        """
        keys = {
            "run_name": trial.id,
            "base_output_directory": f"{FOLDER}/output",
            **trial_keys(trial, cell, axis_prefix=None),
        }
        if metrics_file := metrics_file_of(cell):
            keys["metrics_file"] = f"{FOLDER}/{metrics_file}"
        script = _RUN_FIRST_SCRIPT.format(
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


# keys that the cell and the protocol set, and that are therefore no overrides
_SET_ELSEWHERE = frozenset(
    {"per_device_batch_size", "max_target_length", "dataset_type", "profiler"}
) | {*("eval_interval", "skip_first_n_steps_for_profiler", "profiler_steps", "steps")}


def overrides_of(cell: CvsCell) -> dict[str, str]:
    """Return the MaxText keys of a cell, with its axes, as arguments of the trainer."""
    return {
        key: setting_text(value) for key, value in cell.maxtext.items() if key not in _SET_ELSEWHERE
    }


def deployed_of(file: CvsFile, cell: CvsCell) -> dict[str, str]:
    """Return the environment of a run: variables of CVS, variables of the file, flags of XLA."""
    flags = format_flags(Flag(name=name, value=text) for name, text in cell.xla_flags.items())
    # only the path is passed on, while CVS writes the token itself into a script and its log
    token = {"HF_TOKEN_PATH": file.token_file} if file.token_file else {}
    return {**file.added, **file.env, **token, **({"XLA_FLAGS": flags} if flags else {})}


_WITH_ALL_OPTIONS = ("docker", "podman")  # runtimes that have all options of a CVS container


def container_settings(container: Container, runtime: str) -> tuple[dict[str, Any], list[str]]:
    """Return the attributes of a `ContainerLauncher`, and the options that the runtime lacks."""
    options = {"runtime": runtime, "mounts": container.mounts}
    if runtime in _WITH_ALL_OPTIONS:
        return {**options, "args": container.args}, []
    # pyxis supports mounts, but no further options
    volumes = container.mounts if runtime == NO_CONTAINER else ()
    return options, [*(f"--volume={mount}" for mount in volumes), *container.args]
