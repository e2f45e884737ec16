"""A trainer at a commit: the command of another launcher, started in a checkout of a repository.

    CheckoutLauncher(repository="/shared/trainer", inner=CommandLauncher(
        argv=("/opt/venv/bin/python", "train.py"), cwd="/shared/trainer"))

`Cell.code` is the full hash of the commit. Every path of the inner launcher in the repository
becomes the same path in the checkout of that commit: program, working directory, env files, and
variables such as PYTHONPATH. Paths in `keep`, such as a virtual environment that is not in git, are
not changed. So cells that differ only in their commit run side by side, and the repository itself
is not changed.

This module only replaces paths. `sweep.checkouts` makes the checkouts before anything is submitted,
and again at each submission.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from pytest_xlatune.launchers import Launcher
from pytest_xlatune.launchers.command import check_absolute
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.trial import LaunchSpec, Trial
from pytest_xlatune.model.written import written

_HASH = re.compile("[0-9a-f]{40,64}")  # the full hash of a commit


@written("checkout launcher")
@dataclass(frozen=True, slots=True, kw_only=True)
class CheckoutLauncher(Launcher):
    """Start the command of another launcher at the cell's commit.

    Attributes:
        inner: the launcher that starts the trainer in the repository.
        repository: absolute path of the git repository on this machine.
        folder: absolute folder for the checkouts, visible to the nodes; "" means a folder in the
            repository's `.git`, where neither git nor the user sees them.
        keep: paths in the repository that no commit contains, and that all cells use.

    Raises:
        ConfigError: a path is relative, or a shell would not read it as one plain word.
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
                    f"checkout launcher: the {kind} {path!r} has a character that is special in a "
                    "shell; use a path of letters, digits and . _ + - /"
                )
            object.__setattr__(self, kind, path.rstrip("/") or "/")
        if isinstance(self.inner, CheckoutLauncher):
            raise ConfigError(
                "checkout launcher: its inner launcher is a checkout launcher too; use only one"
            )

    def describe(self) -> str:
        """Return the inner description without the repository's path, so clones share a cell."""
        description = _with_path_replaced(self.inner.describe(), self.repository, "{repository}")
        return f"checkout of {description}"

    def checkout_of(self, cell: Cell) -> str:
        """Return the path of the checkout of a cell's commit, on this machine.

        Raises:
            ConfigError: the cell does not name a commit by its full hash.
        """
        if not _HASH.fullmatch(cell.code):
            raise ConfigError(
                f"cell {cell.label!r}: its code is {cell.code!r}, but a checkout needs a commit; "
                "name one by CellSettings(code='main')"
            )
        return f"{self.folder or f'{self.repository}/.git/xlatune'}/{cell.code}"

    def env_files_of(self, cell: Cell) -> tuple[str, ...]:
        """Return the inner launcher's files, in the commit's checkout."""
        return tuple(map(self._path_mover(cell), self.inner.env_files_of(cell)))

    def files(self, cell: Cell) -> tuple[str, ...]:
        """Return what must exist where trials run: files of the commit, and kept files."""
        return tuple(map(self._path_mover(cell), self.inner.files(cell)))

    def launch(self, trial: Trial, cell: Cell) -> LaunchSpec:
        """Return the inner launcher's spec with the repository's paths replaced by the checkout's.

        Raises:
            ConfigError: as the inner launcher raises it, or the cell names no commit.
        """
        spec, move = self.inner.launch(trial, cell), self._path_mover(cell)
        return msgspec.structs.replace(
            spec,
            argv=tuple(map(move, spec.argv)),
            probe=tuple(map(move, spec.probe)),
            paths=tuple(map(move, spec.paths)),
            env={name: move(value) for name, value in spec.env.items()},
            files={name: move(text) for name, text in spec.files.items()},
            cwd=move(spec.cwd),
        )

    def _path_mover(self, cell: Cell) -> Callable[[str], str]:
        checkout = self.checkout_of(cell)
        return lambda text: _with_path_replaced(text, self.repository, checkout, keep=self.keep)


def _with_path_replaced(text: str, old: str, new: str, *, keep: tuple[str, ...] = ()) -> str:
    """Return a text with the path `old` replaced by `new`, also where other paths begin with it.

    Paths below `old` that begin with a name in `keep`, or with `.git`, are not changed.
    """
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
        inner: the launcher of every cell that is not in `others`.
        others: the text of `Cell.launcher` -> the launcher with this description.
    """

    inner: Launcher
    others: dict[str, Launcher]

    def launcher_of(self, cell: Cell) -> Launcher:
        """Return the launcher of a cell."""
        return self.others.get(cell.launcher, self.inner)

    def describe(self) -> str:
        """Return the description of `inner`; other cells have theirs in `Cell.launcher`."""
        return self.inner.describe()

    def env_files_of(self, cell: Cell) -> tuple[str, ...]:
        """Return the files of the cell's launcher."""
        return self.launcher_of(cell).env_files_of(cell)

    def files(self, cell: Cell) -> tuple[str, ...]:
        """Return the files of the cell's launcher."""
        return self.launcher_of(cell).files(cell)

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
    names = set[str]()
    if dataclasses.is_dataclass(any_launcher):
        names = {field.name for field in dataclasses.fields(any_launcher)}
    if "inner" in names:
        changes: dict[str, Any] = {"inner": with_python(any_launcher.inner, python)}
    elif "python" in names and "sbatch" not in names:
        # with `sbatch`, `python` is the interpreter that follows the job, not that of the trainer
        changes = {"python": python}
    elif "argv" in names and any_launcher.interpreter:
        changes = {"argv": (python, *any_launcher.argv[1:])}
    else:
        raise ConfigError(
            f"python={python!r}: {type(launcher).__name__} names no interpreter to replace; write "
            "a command that begins with python, or use MaxTextLauncher"
        )
    return cast("Launcher", dataclasses.replace(any_launcher, **changes))
