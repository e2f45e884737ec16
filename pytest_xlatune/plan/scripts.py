"""The submission script of a trial, word for word, before anything is submitted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_xlatune.campaign.naming import comment_of, folder_of, job_name_of
from pytest_xlatune.cells import Trial
from pytest_xlatune.executors.slurm import SlurmExecutor
from pytest_xlatune.sweep.sweep import ResolvedSweep

_SESSION = "SESSION"  # a plan belongs to none


def scripts_of(
    resolved: ResolvedSweep, trials: Sequence[Trial], *, workdir: Path
) -> tuple[tuple[str, str], ...]:
    """Return title and text of the first trial's script; () where nothing is submitted to Slurm.

    The other trials' differ in the trial's name alone: in the job's name, the comment, the folder.

    Raises:
        ConfigError: an option of the scheduler cannot be passed through.
    """
    if resolved.executor != "slurm" or not trials:
        return ()
    trial = trials[0]
    text = SlurmExecutor().script(
        folder=workdir / resolved.folder / folder_of(_SESSION, trial, 1),
        job_name=job_name_of(trial),
        comment=comment_of(_SESSION, trial, 1),
        nodelist=resolved.cell.nodelist,
        resources=resolved.resources,
    )
    others = len(trials) - 1
    of_others = f"; the {others} others differ in its name alone" if others else ""
    return ((f"sbatch's of `{trial.id}`{of_others}", text),)
