"""Which files deploy a cell, and what is in them: what a recipe will be a patch of.

A sweep names its env file; the launcher's own env files and the trainer's configuration are found
by the launcher. Read when a campaign opens, for the report may be written on another day. Paths are
those inside the repository that holds the file, so that a patch applies there.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from pytest_xlatune.cells import Cell, DeployedFile
from pytest_xlatune.errors import ConfigError
from pytest_xlatune.hidden import hide_assignments
from pytest_xlatune.launchers import Launcher

MAX_CHARACTERS = 1 << 17  # of a file; a trainer's configuration has a thousandth of it
_SHELL = (".sh", ".env", ".bash")
_CONFIG = (".yml", ".yaml")


def deployed_files(
    launcher: Launcher, cell: Cell, *, env_file: str, root: Path
) -> tuple[DeployedFile, ...]:
    """Return the env file that recipes go into, and the trainer's configuration.

    Files that are not on this machine, or cannot be read, are left out: nothing can be said of
    them here.

    Args:
        launcher: names env files and the trainer's configuration.
        cell: whose.
        env_file: that the sweep names; "" takes the last of the launcher's.
        root: of the project; what relative paths are relative to.
    """
    shells = [env_file] if env_file else launcher.env_files_of(cell)[-1:]
    configs = [each for each in launcher.files(cell) if PurePosixPath(each).suffix in _CONFIG]
    read = [
        *(_read(root / path, root, is_shell=True) for path in shells),
        *(_read(root / path, root, is_shell=False) for path in configs[:1]),
    ]
    return tuple(each for each in read if each is not None)


def refuse_changed(
    before: Iterable[DeployedFile],
    now: Iterable[DeployedFile],
    *,
    launcher: Launcher,
    cell: Cell,
    where: str,
) -> None:
    """Refuse to go on with a trainer's configuration that is not what was measured.

    What an env file comes to is part of the cell and compared there, unless the node sources it.

    Raises:
        ConfigError: naming the file.
    """
    is_sourced = bool(launcher.env_files_of(cell))
    known = {each.path: _meaning(each.text) for each in before if is_sourced or not each.is_shell}
    for each in now:
        if known.get(each.path, _meaning(each.text)) != _meaning(each.text):
            raise ConfigError(
                f"{each.path} has changed since the trials in {where} were measured: numbers of "
                "two configurations cannot be compared. Go back to what it was, or start over with "
                "--xlatune-new-baseline (nothing measured is deleted)"
            )


def _read(path: Path, root: Path, *, is_shell: bool) -> DeployedFile | None:
    named = _below(path, root)
    if not path.exists():
        is_ours = is_shell and path.suffix in _SHELL and path.parent.is_dir()
        return DeployedFile(path=named, is_new=True) if is_ours else None
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    if len(text) > MAX_CHARACTERS:
        return None
    return DeployedFile(path=named, text=hide_assignments(text), is_shell=is_shell)


def _below(path: Path, root: Path) -> str:
    """Return the path inside the repository that holds it, else in the project, else its name."""
    path = path.absolute()
    repository = next((each for each in path.parents if (each / ".git").exists()), None)
    for each in (repository, root):
        if each is not None and path.is_relative_to(each):
            return path.relative_to(each).as_posix()
    return path.name


def _meaning(text: str) -> list[str]:
    """Return the lines that say something: without comments, blank lines and trailing blanks."""
    lines = (line.split(" #")[0].rstrip() for line in text.split("\n"))
    return [line for line in lines if line and not line.lstrip().startswith("#")]
