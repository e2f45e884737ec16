"""Turn a trial into a launch spec: the command of the trainer. Nothing is started here.

A launcher turns a trial and its cell into plain data, which the payload executes wherever the trial
runs. Env files and the trainer's configuration are read only on the node.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.trial import LaunchSpec, Trial


class Rotates(StrEnum):
    """How programs can take turns in what a launcher starts."""

    PYTHON = "python"  # it starts Python itself, so the worker comes first
    WRAPPED = "wrapped"  # another program starts Python and must pass PYTHONPATH on
    NO = "no"


class Launcher(ABC):
    """The contract of all launchers: a subclass is a frozen dataclass.

    Attributes:
        inherit: names and patterns of the node's variables that a trial inherits.
    """

    __slots__ = ()
    inherit: tuple[str, ...] = ()

    @property
    def _wrapped(self) -> Launcher | None:
        """The launcher that this one runs in a container or at a commit."""
        return getattr(self, "inner", None)

    @property
    def inside(self) -> Launcher:
        """The launcher of the trainer itself, inside of all others."""
        return self._wrapped.inside if self._wrapped else self

    @abstractmethod
    def describe(self) -> str:
        """Return one line that fully describes how trials are started, for `Cell.launcher`.

        Two launchers that may give a trial different speeds must have different descriptions.
        """

    @abstractmethod
    def env_files_of(self, cell: Cell) -> tuple[str, ...]:
        """Return the absolute paths of the shell files that are deployed for a cell."""

    @property
    def interpreter(self) -> str:
        """The trainer's Python, as its command names it; "" if unknown. Its XLA checks flags."""
        return self._wrapped.interpreter if self._wrapped else ""

    @abstractmethod
    def files(self, cell: Cell) -> tuple[str, ...]:
        """Return the absolute paths that must exist where trials run."""

    @property
    def nodes(self) -> int:
        """The number of nodes of a job that the trial itself makes; 0 if it makes none."""
        return self._wrapped.nodes if self._wrapped else 0

    @property
    def image_file(self) -> str:
        """The shell file that sets DOCKER_IMAGE, the image of the jobs; "" if there is none."""
        return self._wrapped.image_file if self._wrapped else ""

    @property
    def rotates(self) -> Rotates:
        """How programs can take turns in the trainer; NO for a launcher that does not say it."""
        return self._wrapped.rotates if self._wrapped else Rotates.NO

    @abstractmethod
    def launch(self, trial: Trial, cell: Cell) -> LaunchSpec:
        """Return what the payload does for this trial; equal arguments give equal specs.

        Raises:
            ConfigError: the cell or the profile needs something that this launcher cannot do.
        """
