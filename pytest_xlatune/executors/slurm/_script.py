"""The batch script of a trial and its submission: all that uses submitit's private names.

submitit renders the script and calls sbatch. It has no public way to submit a script of its own
making instead of a pickled function, nor to render one without Slurm, so that five private names of
its 1.5 are used here and nowhere else; `pyproject.toml` pins that release for this module, and
`tests/data/slurm/script.sh` holds the script that comes out. It knows no trial.
"""

from __future__ import annotations

import functools
import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_xlatune.executors import payload
from pytest_xlatune.executors.slurm._commands import Reply, steering_names, unneeded_names

SCRIPTS = "submitit"  # the folder of submitit's own files, inside the attempt's
HELD = "sbatch.lock"  # in it; held as long as an sbatch runs, by the session that started it
# the one value of the option `export` that a site may ask for: slurmd then logs in for every job
SLURM_LOGS_IN = "NONE"


def render(
    folder: Path,
    parameters: Mapping[str, Any],
    program: str = payload.__file__,
    *,
    digest: str = "",
) -> str:
    """Return the script of the attempt in a folder; starts nothing and writes nothing.

    `parameters` are submitit's; their `additional_parameters` have `export`. `program` is the file
    that an isolated interpreter runs, with the folder and the `digest` of what it reads there as
    its arguments; without a digest with the folder alone.
    """
    executor = _executor(folder, parameters, program, digest)
    command = executor._submitit_command_str  # noqa: SLF001
    return str(executor._make_submission_file_text(command, "dry-run"))  # noqa: SLF001


def submit(
    folder: Path,
    parameters: Mapping[str, Any],
    program: str = payload.__file__,
    *,
    digest: str = "",
) -> Reply:
    """Call sbatch once; return the job id as what it printed, or why there is none."""
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    try:
        executor = _executor(folder, parameters, program, digest)
        # `submit` would pickle a function, and the node would have to import all it refers to
        job = executor._submit_command(executor._submitit_command_str)  # noqa: SLF001
    except FileNotFoundError:
        return Reply(code=127, err="sbatch: command not found on this machine")
    except (FailedJobError, FailedSubmissionError) as error:
        return Reply(code=1, err=str(error).strip() or "sbatch said nothing")
    return Reply(code=0, out=str(job.job_id))


def _executor(folder: Path, parameters: Mapping[str, Any], program: str, digest: str) -> Any:
    made = _script_executor(program, digest)(folder=folder / SCRIPTS, max_num_timeout=0)
    made.update_parameters(**parameters)
    return made


@functools.lru_cache(maxsize=8)
def _script_executor(program: str, digest: str) -> Any:
    """Return submitit's executor, which runs a program of ours as a script.

    It calls sbatch without what would steer it behind our back.
    """
    from submitit import SlurmExecutor

    class ScriptExecutor(SlurmExecutor):
        @classmethod
        def affinity(cls) -> int:
            return 2  # a script can be rendered where there is no srun

        @property
        def _submitit_command_str(self) -> str:
            # isolated and without site: it needs the standard library only
            words = (program, str(Path(self.folder).parent), *([digest] if digest else []))
            return f"{self.python} -I -S {shlex.join(words)}"

        def _make_submission_command(self, submission_file_path: Path) -> list[str]:
            logs_in = self.parameters["additional_parameters"]["export"] == SLURM_LOGS_IN
            names = steering_names(os.environ) if logs_in else unneeded_names(os.environ)
            dropped = [word for name in names for word in ("-u", name)]
            # flock itself holds it: what sbatch may leave running does not
            held = ["flock", "-o", str(Path(self.folder) / HELD)] if shutil.which("flock") else []
            return [*held, "env", *dropped, "sbatch", str(submission_file_path)]

    return ScriptExecutor
