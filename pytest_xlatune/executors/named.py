"""Which executor a name stands for; the module of another one is not loaded."""

from __future__ import annotations

from pytest_xlatune.executors import Executor
from pytest_xlatune.model.errors import ConfigError


def executor_named(name: str) -> Executor:
    """Return the executor of this name.

    Raises:
        ConfigError: there is none.
    """
    if name == "local":
        from pytest_xlatune.executors.local import LocalExecutor

        return LocalExecutor()
    if name == "slurm":
        from pytest_xlatune.executors.slurm import SlurmExecutor

        return SlurmExecutor()
    raise ConfigError.unknown("executor", name, valid=["local", "slurm"], where="the sweep")
