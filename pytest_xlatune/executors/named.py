"""Which executor a name stands for; the module of another one is not loaded."""

from __future__ import annotations

from pytest_xlatune.executors import Executor
from pytest_xlatune.model.errors import ConfigError


def executor_named(
    name: str, *, hold_s: int = 0, nodes: tuple[str, ...] = (), session: str = ""
) -> Executor:
    """Return the executor of this name.

    The other arguments are of an allocation, see `AllocationExecutor`; to look after what runs none
    is needed.

    Raises:
        ConfigError: there is none.
    """
    if name == "local":
        from pytest_xlatune.executors.local import LocalExecutor

        return LocalExecutor()
    if name == "slurm":
        from pytest_xlatune.executors.slurm import SlurmExecutor

        return SlurmExecutor()
    if name == "allocation":
        from pytest_xlatune.executors.slurm.allocation import AllocationExecutor

        return AllocationExecutor(hold_s=hold_s, nodes=nodes, session=session)
    raise ConfigError.unknown(
        "executor", name, valid=["local", "slurm", "allocation"], where="the sweep"
    )
