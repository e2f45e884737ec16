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
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from pytest_xlatune.launchers import Launcher
from pytest_xlatune.launchers.command import check_absolute
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.trial import LaunchSpec, Trial
from pytest_xlatune.model.written import written


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
        for kind in ("repository", *(["folder"] if self.folder else [])):
            path = getattr(self, kind)
            check_absolute(path, kind)
            if shlex.quote(path) != path:
                raise ConfigError(
                    f"checkout launcher: the {kind} {path!r} has a character that is special in a "
                    "shell; use a path of letters, digits and . _ + - /"
                )
            object.__setattr__(self, kind, path.rstrip("/") or "/")

    def describe(self) -> str:
        """Return the inner description without the repository's path, so clones share a cell."""
        description = _with_path_replaced(self.inner.describe(), self.repository, "{repository}")
        return f"checkout of {description}"

    def checkout_of(self, cell: Cell) -> str:
        """Return the path of the checkout of a cell's commit, on this machine."""
        return f"{self.folder or f'{self.repository}/.git/xlatune'}/{cell.code}"

    def _moved(self, texts: Iterable[str], cell: Cell) -> tuple[str, ...]:
        """Return texts in which paths of the repository are those of the cell's checkout."""
        old, new = self.repository, self.checkout_of(cell)
        return tuple(_with_path_replaced(text, old, new, keep=self.keep) for text in texts)

    def env_files_of(self, cell: Cell) -> tuple[str, ...]:
        """Return the inner launcher's files, in the commit's checkout."""
        return self._moved(self.inner.env_files_of(cell), cell)

    def files(self, cell: Cell) -> tuple[str, ...]:
        """Return what must exist where trials run: files of the commit, and kept files."""
        return self._moved(self.inner.files(cell), cell)

    def launch(self, trial: Trial, cell: Cell) -> LaunchSpec:
        """Return the inner launcher's spec with the repository's paths replaced by the checkout's.

        Raises:
            ConfigError: as the inner launcher raises it.
        """
        spec = self.inner.launch(trial, cell)
        (cwd,) = self._moved((spec.cwd,), cell)
        return msgspec.structs.replace(
            spec,
            argv=self._moved(spec.argv, cell),
            probe=self._moved(spec.probe, cell),
            paths=self._moved(spec.paths, cell),
            env=dict(zip(spec.env, self._moved(spec.env.values(), cell), strict=True)),
            files=dict(zip(spec.files, self._moved(spec.files.values(), cell), strict=True)),
            cwd=cwd,
        )


def _with_path_replaced(text: str, old: str, new: str, *, keep: tuple[str, ...] = ()) -> str:
    """Return a text with the path `old` replaced by `new`, also where other paths begin with it.

    Paths below `old` that begin with a name in `keep`, or with `.git`, are not changed.
    """
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
        """Return the spec of the cell's launcher, and raise the errors that it raises."""
        return self.launcher_of(cell).launch(trial, cell)


def with_python(launcher: Launcher, python: str) -> Launcher:
    """Return a launcher that starts the trainer with another interpreter.

    Raises:
        ConfigError: it is unknown which word of the command is the interpreter.
    """
    any_launcher: Any = launcher
    names = getattr(launcher, "__dataclass_fields__", {})
    changes: dict[str, Any] = {"python": python}
    if "inner" in names:
        changes = {"inner": with_python(any_launcher.inner, python)}
    elif "argv" in names and launcher.interpreter:
        changes = {"argv": (python, *any_launcher.argv[1:])}
    elif "python" not in names or not launcher.interpreter:
        raise ConfigError(
            f"python={python!r}: {type(launcher).__name__} names no interpreter to replace; write "
            "a command that begins with python, or use MaxTextLauncher"
        )
    return cast("Launcher", dataclasses.replace(any_launcher, **changes))
