"""Render and submit the batch script of a trial, with two private names of submitit.

submitit has no public way to render a script for a command instead of a pickled function. So this
module, and no other, uses two private names of submitit 1.5. `pyproject.toml` pins that release,
and `tests/data/slurm/script.sh` holds the rendered script. This module calls sbatch itself, because
submitit waits for sbatch without a limit and takes any output that it cannot parse for a refusal.
"""

from __future__ import annotations

import re
import shlex
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_xlatune import secure_files
from pytest_xlatune.executors import payload
from pytest_xlatune.executors.slurm._commands import Reply, needed, run_program
from pytest_xlatune.model.errors import ConfigError

SCRIPTS = "submitit"  # the folder of submitit's files, inside the attempt's folder
SBATCH_LOCK = "sbatch.lock"  # a lock in that folder, which a session holds while its sbatch runs
# Options that the harness sets for every trial, so that trials are comparable and can be found.
_RESERVED = frozenset(
    {"array", "chdir", "comment", "error", "exclusive", "export", "export-file", "input",
     "job-name", "no-requeue", "nodelist", "nodes", "ntasks", "ntasks-per-node", "open-mode",
     "output", "oversubscribe", "parsable", "requeue", "signal", "test-only", "time", "wait",
     "wrap"}
)  # fmt: skip
# an option's name:  cpus-per-task    srun.cpu-bind
_OPTION = re.compile(r"(?:srun\.)?[a-z][a-z0-9-]*")
# Submitted batch job 4711    Submitted batch job 4711 on cluster c2
_SUBMITTED = re.compile(r"^(?:sbatch: )?Submitted batch job (?P<id>\d+)\b", re.MULTILINE)


def site_options(options: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Split `resources.options` into sbatch's options and srun's; an empty value is a bare flag."""
    sbatch: dict[str, Any] = {}
    srun: list[str] = []
    for key, value in options.items():
        name = key.lstrip("-").replace("_", "-")
        if not _OPTION.fullmatch(name):
            raise ConfigError(f"Slurm option {key!r}: expected a name such as partition or qos")
        if name in _RESERVED:
            raise ConfigError(
                f"Slurm option {key!r} is set by the harness for every trial and cannot be passed "
                "through"
            )
        word = f"--{name.removeprefix('srun.')}" + (f"={value}" if value else "")
        if name.startswith("srun."):
            srun.append(word)
            continue
        sbatch[name] = value or True
        if name == "cpus-per-task":
            srun.append(word)  # since Slurm 22.05, srun does not inherit this option from the job
    return sbatch, srun


def render(folder: Path, parameters: Mapping[str, Any], *, digest: str) -> str:
    """Return the script of the attempt in a folder, without starting or writing anything.

    `parameters` are those of submitit. `digest` is the digest of the spec that the payload finds in
    the folder.
    """
    from submitit import SlurmExecutor

    class ScriptExecutor(SlurmExecutor):
        _submitit_command_str = shlex.join(payload.payload_argv(folder, digest))

        @classmethod
        def affinity(cls) -> int:
            return 2  # submitit's answer where srun is installed; we render elsewhere too

    executor = ScriptExecutor(folder=folder / SCRIPTS, max_num_timeout=0)
    executor.update_parameters(**parameters)
    text = executor._make_submission_file_text(executor._submitit_command_str, "dry-run")  # noqa: SLF001
    return str(text)


def submit(folder: Path, parameters: Mapping[str, Any], *, digest: str) -> Reply:
    """Call sbatch once; return a reply whose `out` is the job id, or which says why there is none.

    If sbatch names a job, the job exists, whatever else sbatch prints and however it ends. If it
    names none and gives no reason, or does not answer in time, a job may exist or not.
    """
    scripts = folder / SCRIPTS
    path = scripts / f".submission_file_{uuid.uuid4().hex}.sh"
    text = render(folder, parameters, digest=digest)
    secure_files.write_bytes(path, text.encode())
    # The sbatch of a killed session may submit its job later. The next session waits for this lock
    # before it looks for the job. With -o no process that sbatch leaves running holds the lock.
    locked = ["flock", "-o", str(scripts / SBATCH_LOCK)] if shutil.which("flock") else []
    # with `env`, the exit code says whether there is no sbatch
    argv = [*locked, "env", "sbatch", str(path)]
    reply = run_program(argv, env=needed(), name="sbatch")
    # an error beside "Submitted batch job 4711" is no refusal: a second try would make a second job
    if (submitted := _SUBMITTED.search(reply.out)) is None:
        if reply.error and (reply.out.strip() or reply.err.strip()):
            return reply
        reason = f"sbatch ended with {reply.code} and named no job"
        return Reply(code=reply.code or 1, out=reply.out, err=reason)
    submitted_script = scripts / f"{submitted['id']}_submission.sh"
    path.replace(submitted_script)
    path.symlink_to(submitted_script.name)  # Slurm still names the script by this path
    return Reply(code=0, out=submitted["id"])
