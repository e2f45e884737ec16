"""Find an executor by its name, without loading the modules of other executors.

Another distribution adds an executor by an entry point of `pytest_xlatune.executors`.
"""

from __future__ import annotations

from pathlib import Path

from pytest_xlatune.entry_points import EntryPointGroup
from pytest_xlatune.executors import Executor
from pytest_xlatune.model.errors import ConfigError, LedgerError

LOCAL, SLURM, ALLOCATION = "local", "slurm", "allocation"
EXECUTORS = EntryPointGroup(
    "pytest_xlatune.executors",
    kind="executor",
    ours={
        LOCAL: "pytest_xlatune.executors.local:LocalExecutor",
        SLURM: "pytest_xlatune.executors.slurm:SlurmExecutor",
        ALLOCATION: "pytest_xlatune.executors.slurm.allocation:AllocationExecutor",
    },
)
DEFAULT = SLURM  # the executor if a sweep names none


def class_named(name: str, *, where: str = "the sweep") -> type[Executor]:
    """Return the class of an executor, whose attributes say what it can do.

    Raises:
        ConfigError: there is no such name, it cannot be loaded, or it is no executor.
    """
    executor_class = EXECUTORS.load(name, where=where)
    if not (isinstance(executor_class, type) and issubclass(executor_class, Executor)):
        raise ConfigError(
            f"executor {name!r} of {EXECUTORS.source(name)} is {executor_class!r}, expected a "
            f"subclass of {Executor.__module__}.{Executor.__qualname__}"
        )
    if executor_class.name != name:
        raise ConfigError(
            f"executor {name!r} of {EXECUTORS.source(name)} calls itself {executor_class.name!r}; "
            "ledgers hold that name, so its entry point must have it too"
        )
    return executor_class


def executor_named(name: str, *, where: str = "the sweep") -> Executor:
    """Return the executor of this name.

    Raises:
        ConfigError: as `class_named` raises it.
    """
    return class_named(name, where=where)()


def executor_in(folder: Path, name: str) -> Executor:
    """Return the executor that handles the jobs of a ledger.

    Raises:
        LedgerError: the executor is not installed here, or cannot be loaded.
    """
    try:
        return executor_named(name, where=f"the ledger in {folder}")
    except ConfigError as error:
        raise LedgerError(
            f"{error}. Its jobs cannot be watched: install its distribution, or end them yourself"
        ) from None
