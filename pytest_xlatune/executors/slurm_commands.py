"""Run Slurm's commands in a known environment, and tell a refusal from a controller that is away.

The runner is an argument everywhere, so that a test can play Slurm. This module knows no trial.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

COMMAND_TIMEOUT_S = 60.0
_NOT_FOUND = 127

# Variables by which a user, or a surrounding allocation, changes what the commands ask and print.
_STEERING = ("SBATCH_", "SQUEUE_", "SACCT_", "SINFO_", "SCONTROL_", "SCANCEL_", "SRUN_", "SLURM_")
# ... and those without which they do not find or do not enter the cluster.
_KEPT = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT"})

# All that sbatch is given of the submitter's environment where the job is given sbatch's: to be
# found, to load its libraries, and to say who submits. The job's script takes it away again.
_NEEDED = frozenset(
    {
        *("HOME", "KRB5CCNAME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "SHELL"),
        *("TZ", "USER"),
        *_KEPT,
    }
)

# What Python's readline sets behind the back of os.environ.
_UNSEEN = ("COLUMNS", "LINES")

# The controller is away or busy; the same question may be answered later.
_AWAY = (
    # slurm_load_jobs error: Unable to contact slurm controller (connect failure)
    "unable to contact slurm controller",
    # sbatch: error: Batch job submission failed: Socket timed out on send/recv operation
    "socket timed out",
    "connection refused",
    "connection timed out",
    "zero bytes were transmitted or received",
    "transport endpoint is not connected",
    # sbatch: error: Slurm controller not responding, sleeping and retrying.
    "slurm controller not responding",
    "slurm backup controller in standby mode",
    "unexpected message received",
)
# The controller refuses for now; the same job may be taken later.
_FOR_NOW = (
    *_AWAY,
    "slurm temporarily unable to accept job",
    "resource temporarily unavailable",
    "job violates accounting/qos policy",
    "qosmaxsubmitjob",
    "assocmaxsubmitjob",
    "maxsubmitjobs",
    "too many pending jobs",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a command said."""

    code: int
    out: str = ""
    err: str = ""

    @property
    def error(self) -> str:
        """The error in one line, "" where the command succeeded."""
        return "" if self.code == 0 else " ".join((self.err or self.out).split())


Run = Callable[[Sequence[str]], Answer]


def run_command(argv: Sequence[str]) -> Answer:
    """Run one of Slurm's commands; a command that is missing or hangs is an answer as well."""
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
            env={
                **{k: v for k, v in os.environ.items() if k not in steering_names(os.environ)},
                "LC_ALL": "C",
                "SLURM_TIME_FORMAT": "%s",
            },
        )
    except FileNotFoundError:
        return Answer(code=_NOT_FOUND, err=f"{argv[0]}: command not found")
    except subprocess.TimeoutExpired:
        return Answer(code=1, err=f"{argv[0]}: Socket timed out ({COMMAND_TIMEOUT_S:.0f} s)")
    return Answer(code=done.returncode, out=done.stdout, err=done.stderr)


def steering_names(environ: Mapping[str, str]) -> list[str]:
    """Return the variables that must not reach a Slurm command, sorted."""
    return sorted(name for name in environ if name.startswith(_STEERING) and name not in _KEPT)


def unneeded_names(environ: Mapping[str, str]) -> list[str]:
    """Return the variables that sbatch can do without, sorted; secrets are among them."""
    return sorted({*environ, *_UNSEEN} - _NEEDED)


def is_away(error: str) -> bool:
    """Whether an error text says that the controller could not be asked."""
    return _has(error, _AWAY)


def is_for_now(error: str) -> bool:
    """Whether an error text of sbatch says that the same submission may succeed later."""
    return _has(error, _FOR_NOW)


def _has(error: str, texts: Sequence[str]) -> bool:
    lowered = error.lower()
    return any(text in lowered for text in texts)
