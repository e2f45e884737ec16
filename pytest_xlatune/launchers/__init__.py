"""A trial to a launch spec: how the trainer is spelled. Pure; nothing is started here.

A launcher knows no scheduler and no executor: it turns a trial and its cell into plain data that
the payload carries out wherever the trial runs. What it would have to read (env files, the
trainer's configuration) is read on the node.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.trial import LaunchSpec, Trial

# a shell command, and why a node is not fit where it fails
Check = tuple[str, str]


class Launcher(Protocol):
    """The whole contract."""

    def describe(self) -> str:
        """Return one line that says all of how trials are started; it goes into `Cell.launcher`.

        Two launchers that could give one trial two speeds describe themselves differently.
        """
        ...

    def env_files_of(self, cell: Cell) -> tuple[str, ...]:
        """Return the shell files that are deployed for a cell, absolute paths."""
        ...

    @property
    def interpreter(self) -> str:
        """The Python whose XLA reads the flags, as it is started; "" where none is named."""
        ...

    def files(self, cell: Cell) -> tuple[str, ...]:
        """Return the absolute paths that must exist where trials run."""
        ...

    def launch(self, trial: Trial, cell: Cell) -> LaunchSpec:
        """Return what the payload does for this trial; the same for the same arguments.

        Raises:
            ConfigError: the cell or the profile asks for what this launcher cannot say.
        """
        ...


@runtime_checkable
class Sourced(Protocol):
    """What a launcher of a configuration file may say besides: the file, to write a recipe into."""

    @property
    def source(self) -> str:
        """The path of the file; "" where there is none."""
        ...

    @property
    def source_cell(self) -> str:
        """Which of the file's cells it starts."""
        ...


@runtime_checkable
class Checked(Protocol):
    """What a launcher may say besides: what a node must be able to do."""

    def checks(self, cell: Cell) -> tuple[Check, ...]:
        """Return what every node is asked before the first trial; each takes a second at most.

        Raises:
            ConfigError: the cell asks for what this launcher cannot say.
        """
        ...
