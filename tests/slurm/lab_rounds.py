"""A plugin for sessions on the lab: they ask Slurm twice a second, for a trial takes a second.

`conftest.py` copies it beside the sweep and loads it by `-p`. It is found there, and not in this
folder: with this checkout on the path a session would not try the package that is installed.
"""

from __future__ import annotations

import functools


def quicken() -> None:
    """Let every executor of this process ask so often."""
    from pytest_xlatune.executors.slurm import SlurmExecutor
    from pytest_xlatune.executors.slurm.allocation import AllocationExecutor

    for each in (SlurmExecutor, AllocationExecutor):
        vars_of = functools.partialmethod(each.__init__, round_s=0.5)
        each.__init__ = vars_of  # type: ignore[method-assign, assignment]


def pytest_configure() -> None:
    """Not when it is imported: pytest rewrites the asserts of plugins that nothing has imported."""
    quicken()
