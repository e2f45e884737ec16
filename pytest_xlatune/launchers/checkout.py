"""A trainer at one commit: what another launcher starts in a repository, started in a checkout.

    CheckoutLauncher(repository="/shared/trainer", inner=CommandLauncher(
        argv=("/opt/venv/bin/python", "train.py"), cwd="/shared/trainer"))

`Cell.code` is the commit, as a full hash. Every path of the inner launcher that lies in the
repository becomes the same path in the checkout of that commit: program, working directory, env
files, variables such as PYTHONPATH. What git does not hold (a virtual environment) stays where it
is: `keep`. Several cells that differ in nothing but their commit so run side by side, while the
repository itself stays as its user has it.

Pure: `sweep.checkouts` makes the checkouts, before anything is submitted and again at each
submission. This module must not know git.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from pytest_xlatune.launchers import Check, Launcher
from pytest_xlatune.launchers.program import check_absolute
from pytest_xlatune.launchers.rotated import Rotates
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.trial import LaunchSpec, Trial
from pytest_xlatune.model.written import written

_HASH = re.compile("[0-9a-f]{40,64}")  # of a commit, whole


@written("checkout launcher")
@dataclass(frozen=True, slots=True, kw_only=True)
class CheckoutLauncher(Launcher):
    """Start what another launcher starts, at the cell's commit.

    Attributes:
        inner: how the trainer is started in the repository.
        repository: absolute path of the git repository, here.
        folder: where checkouts lie, absolute, seen by the nodes; "" is inside the repository's
            `.git`, where neither git nor its user sees them.
        keep: paths in the repository that no commit holds and that are used where they are.

    Raises:
        ConfigError: a relative path, or one that a shell would not read as one word.
    """

    inner: Launcher
    repository: str
    folder: str = ""
    keep: tuple[str, ...] = (".venv", "venv")

    def __post_init__(self) -> None:
        for kind in ("repository", "folder"):
            path = getattr(self, kind)
            if not path and kind != "repository":
                continue
            check_absolute(path, kind)
            if shlex.quote(path) != path:
                raise ConfigError(
                    f"checkout launcher: the {kind} {path!r} has a character that a shell does not "
                    "take as it is; use a path of letters, digits and . _ + - /"
                )
            object.__setattr__(self, kind, path.rstrip("/") or "/")
        if isinstance(self.inner, CheckoutLauncher):
            raise ConfigError("checkout launcher: its inner launcher is one as well; name one")

    def describe(self) -> str:
        """Return the inner launcher, with `{repository}` for the path: clones are one cell."""
        description = _swapped(self.inner.describe(), self.repository, "{repository}")
        return f"checkout of {description}"

    @property
    def interpreter(self) -> str:
        """The inner launcher's."""
        return self.inner.interpreter

    def checkout_of(self, cell: Cell) -> str:
        """Return where the checkout of a cell's commit lies, here.

        Raises:
            ConfigError: the cell names no commit by its hash.
        """
        if not _HASH.fullmatch(cell.code):
            raise ConfigError(
                f"cell {cell.label!r}: its code is {cell.code!r}, and a checkout needs a commit; "
                "name one: CellSettings(code='main')"
            )
        return f"{self.folder or f'{self.repository}/.git/xlatune'}/{cell.code}"

    @property
    def inside(self) -> Launcher:
        """The inner launcher."""
        return self.inner

    def env_files_of(self, cell: Cell) -> tuple[str, ...]:
        """Return the inner launcher's, each as the commit has it."""
        return tuple(map(self._mover(cell), self.inner.env_files_of(cell)))

    def files(self, cell: Cell) -> tuple[str, ...]:
        """Return what must exist where trials run: files of the commit, and the kept ones."""
        return tuple(map(self._mover(cell), self.inner.files(cell)))

    def checks(self, cell: Cell) -> tuple[Check, ...]:
        """Return what the inner launcher asks of a node, each at the commit's paths."""
        move = self._mover(cell)
        return tuple((move(command), why) for command, why in self.inner.checks(cell))

    def launch(self, trial: Trial, cell: Cell) -> LaunchSpec:
        """Return the inner launcher's spec with the commit's paths for the repository's.

        Raises:
            ConfigError: as of the inner launcher, or the cell names no commit.
        """
        spec, move = self.inner.launch(trial, cell), self._mover(cell)
        return msgspec.structs.replace(
            spec,
            argv=tuple(map(move, spec.argv)),
            probe=tuple(map(move, spec.probe)),
            paths=tuple(map(move, spec.paths)),
            env={name: move(value) for name, value in spec.env.items()},
            files={name: move(text) for name, text in spec.files.items()},
            cwd=move(spec.cwd),
        )

    def _mover(self, cell: Cell) -> Callable[[str], str]:
        checkout = self.checkout_of(cell)
        return lambda text: _swapped(text, self.repository, checkout, keep=self.keep)


def _swapped(text: str, old: str, new: str, *, keep: tuple[str, ...] = ()) -> str:
    """Return a text with one path for another, wherever it stands as a path or begins one."""
    if old not in text:
        return text
    kept = "|".join(map(re.escape, (*(name.strip("/") for name in keep), ".git")))
    # PYTHONPATH=/shared/trainer/src:/opt  -- but neither /shared/trainer2 nor /mnt/shared/trainer
    path = rf"(?<![\w./+-]){re.escape(old)}(?![\w.+-])(?!/(?:{kept})(?:[/\s'\":;,]|$))"
    return re.sub(path, lambda _: new, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherByCell(Launcher):
    """Start each cell with its own launcher: cells that differ in how they are started.

    Attributes:
        usual: the launcher of every cell that has none of its own.
        others: `Cell.launcher` -> the launcher that describes itself so.
    """

    usual: Launcher
    others: dict[str, Launcher]

    def launcher_of(self, cell: Cell) -> Launcher:
        """Return the launcher of a cell."""
        return self.others.get(cell.launcher, self.usual)

    def describe(self) -> str:
        """Return the usual launcher's description: the others stand in their cells."""
        return self.usual.describe()

    @property
    def interpreter(self) -> str:
        """The usual launcher's."""
        return self.usual.interpreter

    def env_files_of(self, cell: Cell) -> tuple[str, ...]:
        """Return those of the cell's launcher."""
        return self.launcher_of(cell).env_files_of(cell)

    def files(self, cell: Cell) -> tuple[str, ...]:
        """Return those of the cell's launcher."""
        return self.launcher_of(cell).files(cell)

    @property
    def rotates(self) -> Rotates:
        """The usual launcher's."""
        return self.usual.rotates

    def checks(self, cell: Cell) -> tuple[Check, ...]:
        """Return what the cell's launcher asks of a node."""
        return self.launcher_of(cell).checks(cell)

    def launch(self, trial: Trial, cell: Cell) -> LaunchSpec:
        """Return the spec of the cell's launcher.

        Raises:
            ConfigError: as of that one.
        """
        return self.launcher_of(cell).launch(trial, cell)


def with_python(launcher: Launcher, python: str) -> Launcher:
    """Return a launcher that starts the trainer with another interpreter.

    Raises:
        ConfigError: nothing says which word of this launcher is its interpreter.
    """
    any_launcher: Any = launcher
    names = (
        {field.name for field in dataclasses.fields(any_launcher)}
        if dataclasses.is_dataclass(any_launcher)
        else ()
    )
    if "inner" in names:
        return cast(
            "Launcher",
            dataclasses.replace(any_launcher, inner=with_python(any_launcher.inner, python)),
        )
    if "python" in names and "sbatch" not in names:
        return cast("Launcher", dataclasses.replace(any_launcher, python=python))
    if "argv" in names and any_launcher.interpreter:
        return cast(
            "Launcher", dataclasses.replace(any_launcher, argv=(python, *any_launcher.argv[1:]))
        )
    raise ConfigError(
        f"python={python!r}: {type(launcher).__name__} names no interpreter that it could take the "
        "place of; write a command that begins with python, or use MaxTextLauncher"
    )
