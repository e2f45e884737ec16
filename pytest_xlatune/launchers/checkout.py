"""A trainer at a commit: another launcher's command, started in a checkout of the repository.

    CheckoutLauncher(repository="/shared/trainer", inner=CommandLauncher(
        argv=("/opt/venv/bin/python", "train.py"), cwd="/shared/trainer"))

`Cell.code` is the full hash of the commit. Every path of the inner launcher inside the repository
becomes the same path in the checkout of that commit: program, working directory, env files,
variables such as PYTHONPATH. Files outside git (e.g. a virtual environment) stay where they are:
`keep`. So cells that differ only in their commit run side by side, and the repository itself is not
touched.

Pure: `sweep.checkouts` makes the checkouts before anything is submitted, and again at each
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

_HASH = re.compile("[0-9a-f]{40,64}")  # the full hash of a commit


@written("checkout launcher")
@dataclass(frozen=True, slots=True, kw_only=True)
class CheckoutLauncher(Launcher):
    """Start at the cell's commit what another launcher starts.

    Attributes:
        inner: the launcher that starts the trainer in the repository.
        repository: absolute path of the git repository on this machine.
        folder: absolute folder for the checkouts, visible to the nodes; "" uses the repository's
            `.git`, where neither git nor the user sees them.
        keep: paths in the repository that no commit contains, and that are used where they are.

    Raises:
        ConfigError: a path is relative, or not one word for a shell.
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
            raise ConfigError("checkout launcher: its inner launcher is one too; use only one")

    def describe(self) -> str:
        """Return the inner description with `{repository}` for the path: clones are one cell."""
        description = _swapped(self.inner.describe(), self.repository, "{repository}")
        return f"checkout of {description}"

    @property
    def interpreter(self) -> str:
        """The inner launcher's."""
        return self.inner.interpreter

    def checkout_of(self, cell: Cell) -> str:
        """Return the path of the checkout of a cell's commit, on this machine.

        Raises:
            ConfigError: the cell does not name a commit by its full hash.
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
        """Return the inner launcher's files, in the commit's checkout."""
        return tuple(map(self._mover(cell), self.inner.env_files_of(cell)))

    def files(self, cell: Cell) -> tuple[str, ...]:
        """Return what must exist where trials run: files of the commit, and kept files."""
        return tuple(map(self._mover(cell), self.inner.files(cell)))

    def checks(self, cell: Cell) -> tuple[Check, ...]:
        """Return the inner launcher's checks, with paths in the commit's checkout."""
        move = self._mover(cell)
        return tuple((move(command), why) for command, why in self.inner.checks(cell))

    def launch(self, trial: Trial, cell: Cell) -> LaunchSpec:
        """Return the inner launcher's spec with the repository's paths replaced by the checkout's.

        Raises:
            ConfigError: as the inner launcher raises it, or the cell names no commit.
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
    """Return a text with the path `old` replaced by `new`, also at the beginning of other paths."""
    if old not in text:
        return text
    kept = "|".join(map(re.escape, (*(name.strip("/") for name in keep), ".git")))
    # PYTHONPATH=/shared/trainer/src:/opt    but neither /shared/trainer2 nor /mnt/shared/trainer
    path = rf"(?<![\w./+-]){re.escape(old)}(?![\w.+-])(?!/(?:{kept})(?:[/\s'\":;,]|$))"
    return re.sub(path, lambda _: new, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherByCell(Launcher):
    """Start each cell with its own launcher, for cells that are started in different ways.

    Attributes:
        usual: the launcher of every cell without an own one.
        others: `Cell.launcher` -> the launcher with this description.
    """

    usual: Launcher
    others: dict[str, Launcher]

    def launcher_of(self, cell: Cell) -> Launcher:
        """Return the launcher of a cell."""
        return self.others.get(cell.launcher, self.usual)

    def describe(self) -> str:
        """Return the usual launcher's description; the cells have those of the others."""
        return self.usual.describe()

    @property
    def interpreter(self) -> str:
        """The usual launcher's."""
        return self.usual.interpreter

    def env_files_of(self, cell: Cell) -> tuple[str, ...]:
        """Return the files of the cell's launcher."""
        return self.launcher_of(cell).env_files_of(cell)

    def files(self, cell: Cell) -> tuple[str, ...]:
        """Return the files of the cell's launcher."""
        return self.launcher_of(cell).files(cell)

    @property
    def rotates(self) -> Rotates:
        """The usual launcher's."""
        return self.usual.rotates

    def checks(self, cell: Cell) -> tuple[Check, ...]:
        """Return the checks of the cell's launcher."""
        return self.launcher_of(cell).checks(cell)

    def launch(self, trial: Trial, cell: Cell) -> LaunchSpec:
        """Return the spec of the cell's launcher.

        Raises:
            ConfigError: as the cell's launcher raises it.
        """
        return self.launcher_of(cell).launch(trial, cell)


def with_python(launcher: Launcher, python: str) -> Launcher:
    """Return a launcher that starts the trainer with another interpreter.

    Raises:
        ConfigError: it is unknown which word of the command is the interpreter.
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
