"""A trial to a launch spec: how the trainer is spelled. Pure; nothing is started here.

A launcher knows no scheduler and no executor: it turns a trial and its cell into plain data that
the payload carries out wherever the trial runs. What it would have to read (env files, the
trainer's configuration) is read on the node.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from pytest_xlatune.launchers.rotated import Rotates
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.trial import LaunchSpec, Trial

# a shell command, and why a node is not fit where it fails
Check = tuple[str, str]


class Launcher(ABC):
    """The whole contract: a subclass is a frozen dataclass.

    Attributes:
        inherit: names and patterns of the node's variables that a trial is given.
    """

    __slots__ = ()
    inherit: tuple[str, ...] = ()

    @property
    def inside(self) -> Launcher:
        """The launcher that this one is around, as in a container or at a commit; else itself."""
        return self

    @abstractmethod
    def describe(self) -> str:
        """Return one line that says all of how trials are started; it goes into `Cell.launcher`.

        Two launchers that could give one trial two speeds describe themselves differently.
        """

    @abstractmethod
    def env_files_of(self, cell: Cell) -> tuple[str, ...]:
        """Return the shell files that are deployed for a cell, absolute paths."""

    @property
    @abstractmethod
    def interpreter(self) -> str:
        """The Python whose XLA reads the flags, as it is started; "" where none is named."""

    @abstractmethod
    def files(self, cell: Cell) -> tuple[str, ...]:
        """Return the absolute paths that must exist where trials run."""

    @property
    def nodes(self) -> int:
        """How many nodes a job has that a trial makes itself; 0 where a trial makes none."""
        return 0 if self.inside is self else self.inside.nodes

    @property
    def image_file(self) -> str:
        """The shell file that names the image of the jobs, DOCKER_IMAGE; "" where none does."""
        return "" if self.inside is self else self.inside.image_file

    @property
    def source(self) -> str:
        """The configuration file that a recipe is written into; "" where there is none."""
        return ""

    @property
    def source_cell(self) -> str:
        """Which of the cells of `source` it starts."""
        return ""

    @property
    def rotates(self) -> Rotates:
        """How programs can take turns in what it starts; a launcher of its own kind says NO."""
        return Rotates.NO if self.inside is self else self.inside.rotates

    def checks(self, cell: Cell) -> tuple[Check, ...]:
        """Return what every node is asked before the first trial; each takes a second at most.

        Raises:
            ConfigError: the cell asks for what this launcher cannot say.
        """
        del cell
        return ()

    @abstractmethod
    def launch(self, trial: Trial, cell: Cell) -> LaunchSpec:
        """Return what the payload does for this trial; the same for the same arguments.

        Raises:
            ConfigError: the cell or the profile asks for what this launcher cannot say.
        """
