"""Which executor a name stands for; the module of another one is not loaded.

Another distribution adds one by an entry point of the group `pytest_xlatune.executors`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pytest_xlatune.entry_points import EntryPointGroup
from pytest_xlatune.executors import Executor
from pytest_xlatune.model.errors import ConfigError, LedgerError

EXECUTORS = EntryPointGroup(
    "pytest_xlatune.executors",
    kind="executor",
    ours={
        "local": "pytest_xlatune.executors.local:LocalExecutor",
        "slurm": "pytest_xlatune.executors.slurm:SlurmExecutor",
        "allocation": "pytest_xlatune.executors.slurm.allocation:AllocationExecutor",
    },
)
DEFAULT = "slurm"  # where a sweep names none


def class_named(name: str, *, where: str = "the sweep") -> type[Executor]:
    """Return the class of an executor, whose attributes say what it can.

    Raises:
        ConfigError: there is none of this name, it cannot be loaded, or it is no executor.
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
        ConfigError: as of `class_named`.
    """
    return class_named(name, where=where)()


def executor_in(folder: Path, name: str) -> Executor:
    """Return the executor that looks after jobs of a ledger.

    Raises:
        LedgerError: it is not installed here, or cannot be loaded.
    """
    try:
        return executor_named(name, where=f"the ledger in {folder}")
    except ConfigError as error:
        raise LedgerError(
            f"{error}. Its jobs cannot be asked for: install what brings it, or end them yourself"
        ) from None


def is_queued(name: str, runs_by: Executor) -> bool:
    """Whether jobs of an executor wait in the queue of another one's scheduler, or of its own.

    Not where it is not installed here: its jobs tell nothing of this queue.
    """
    try:
        executor_class = class_named(name)
    except ConfigError:
        return False
    return executor_class.has_queue and executor_class.scheduler == runs_by.scheduler


def one_of_ours(which: Callable[[type[Executor]], bool]) -> str:
    """Return the name of the first of ours of which a fact holds, which a message recommends."""
    return next(name for name in EXECUTORS.ours if which(class_named(name)))
