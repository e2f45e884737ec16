"""What the attempts of a trial are called: by a scheduler, in its books, and on disk."""

from __future__ import annotations

from pytest_xlatune.cells import Trial
from pytest_xlatune.executors import OWN_JOBS


def job_name_of(trial: Trial) -> str:
    """Return what a scheduler calls the jobs of a trial.

    A stack has a `+` in its id, which no name may have; the digest at the end keeps names apart.
    """
    return f"{OWN_JOBS}{trial.id.replace('+', '_')}"


def comment_of(run: str, trial: Trial, number: int) -> str:
    """Return by what an attempt is found again; `run` is the session that began the ledger."""
    return f"xlatune:{run}:{trial.id}.{number}"


def folder_of(run: str, trial: Trial, number: int) -> str:
    """Return the folder of an attempt below that of its cell."""
    return f"{run}/{trial.id}.{number}"
