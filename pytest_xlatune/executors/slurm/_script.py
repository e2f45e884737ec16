"""The batch script of a trial and its submission: all that uses submitit's private names.

submitit renders the script. It has no public way to render one for a command of ours instead of a
pickled function, so that two private names of its 1.5 are used here and nowhere else;
`pyproject.toml` pins that release for this module, and `tests/data/slurm/script.sh` holds the
script that comes out. sbatch is called here: submitit waits for it without end, and takes all that
it cannot read for a refusal. It knows no trial.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import shutil
import signal
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_xlatune import secure_files
from pytest_xlatune.executors import payload
from pytest_xlatune.executors.slurm._commands import (
    COMMAND_TIMEOUT_S,
    Reply,
    steering_names,
    unneeded_names,
)

SCRIPTS = "submitit"  # the folder of submitit's own files, inside the attempt's
HELD = "sbatch.lock"  # in it; held as long as an sbatch runs, by the session that started it
# the one value of the option `export` that a site may ask for: slurmd then logs in for every job
SLURM_LOGS_IN = "NONE"


def render(folder: Path, parameters: Mapping[str, Any], *, digest: str) -> str:
    """Return the script of the attempt in a folder; starts nothing and writes nothing.

    `parameters` are submitit's; their `additional_parameters` have `export`. `digest` is that of
    the spec which the payload finds in the folder.
    """
    executor = _script_executor()(folder=folder / SCRIPTS, max_num_timeout=0)
    executor.digest = digest
    executor.update_parameters(**parameters)
    command = executor._submitit_command_str  # noqa: SLF001
    return str(executor._make_submission_file_text(command, "dry-run"))  # noqa: SLF001


def submit(folder: Path, parameters: Mapping[str, Any], *, digest: str) -> Reply:
    """Call sbatch once; return the job id as what it printed, or why there is none.

    Whatever else it says and however it ends: once it names a job, there is one. Where it neither
    names one nor says why not, or does not answer in time, that is not known.
    """
    scripts = folder / SCRIPTS
    path = scripts / f".submission_file_{uuid.uuid4().hex}.sh"
    text = render(folder, parameters, digest=digest)
    secure_files.write_bytes(path, text.encode())
    logs_in = parameters["additional_parameters"]["export"] == SLURM_LOGS_IN
    names = steering_names(os.environ) if logs_in else unneeded_names(os.environ)
    dropped = [word for name in names for word in ("-u", name)]
    # flock itself holds it: what sbatch may leave running does not
    # a session that was killed left its sbatch running, whose job came when the next had asked
    held = ["flock", "-o", str(scripts / HELD)] if shutil.which("flock") else []
    reply = _answer([*held, "env", *dropped, "sbatch", str(path)])
    # an error behind "Submitted batch job 4711" was taken for a refusal, and the trial ran twice
    if (named := _NAMED.search(reply.out)) is None:
        return reply
    kept = scripts / f"{named['id']}_submission.sh"
    path.replace(kept)
    path.symlink_to(kept.name)
    return Reply(code=0, out=named["id"])


# Submitted batch job 4711    Submitted batch job 4711 on cluster c2
_NAMED = re.compile(r"^(?:sbatch: )?Submitted batch job (?P<id>\d+)\b", re.MULTILINE)
_CLOSE_S = 5.0  # for what a killed program printed last


def _answer(argv: Sequence[str]) -> Reply:
    """Run sbatch, with all that it starts, for so long as a command of Slurm's may take."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except FileNotFoundError as error:
        return Reply(code=127, err=f"{error.filename}: command not found on this machine")
    with process:
        try:
            out, err = process.communicate(timeout=COMMAND_TIMEOUT_S)
            is_late = False
        except subprocess.TimeoutExpired:
            is_late = process.poll() is None
            # where a site's sbatch is a script, what hangs is its child, which keeps the pipe open
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            out, err = _rest(process)
    if is_late:
        said = f"sbatch did not answer in {COMMAND_TIMEOUT_S:.0f} s and was ended"
        return Reply(code=1, out=out, err=said, is_late=True)
    if process.returncode and (out.strip() or err.strip()):
        return Reply(code=process.returncode, out=out, err=err)
    said = f"sbatch ended with {process.returncode} and named no job, it said {out[:80]!r}"
    return Reply(code=process.returncode or 1, out=out, err=said, is_unclear=True)


def _rest(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return what a program printed that was killed; "" where another one keeps its pipe open."""
    try:
        return process.communicate(timeout=_CLOSE_S)
    except subprocess.TimeoutExpired:
        return "", ""


@functools.cache
def _script_executor() -> Any:
    """Return submitit's executor, which runs the payload as a script."""
    from submitit import SlurmExecutor

    class ScriptExecutor(SlurmExecutor):
        digest = ""

        @classmethod
        def affinity(cls) -> int:
            return 2  # a script can be rendered where there is no srun

        @property
        def _submitit_command_str(self) -> str:
            return shlex.join(payload.payload_argv(Path(self.folder).parent, self.digest))

    return ScriptExecutor
