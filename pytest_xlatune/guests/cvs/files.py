"""Read CVS configurations from disk, with the cluster file and the thresholds that they name.

The module `reading` interprets the text of a file. This module handles paths, the name of the user,
and errors of files that cannot be read.
"""

from __future__ import annotations

import getpass
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pytest_xlatune import secure_files
from pytest_xlatune.guests.cvs.reading import read_cvs
from pytest_xlatune.guests.cvs.source import Source, has_change_mark, objects_of
from pytest_xlatune.guests.cvs.values import NO_CONTAINER, CvsFile
from pytest_xlatune.model.errors import ConfigError

_LARGEST_BYTES = 16 << 20  # the published files have 10 kB


class RunOptions(NamedTuple):
    """What the options of a run set in place of the file."""

    nodes: int | None  # the number of nodes; None if the options do not give it
    runtime: str  # the runtime of the container; "" if the options do not name it
    has_image: bool  # whether the options name an image

    @property
    def needs_digest(self) -> bool:
        """Whether the file has to name its image with a digest."""
        return not self.has_image and self.runtime != NO_CONTAINER


def given_values(words: Iterable[str]) -> dict[str, str]:
    """Return path -> value for the arguments of --cvs-set, such as `config.nnodes=4`.

    Raises:
        ConfigError: a word has no `=`.
    """
    values = {}
    for word in words:
        name, mark, value = word.partition("=")
        if not (mark and name.strip()):
            raise ConfigError(f"--cvs-set {word!r}: expected PATH=VALUE: config.nnodes=4")
        values[name.strip()] = value
    return values


def run_options(options: Mapping[str, Any]) -> RunOptions:
    """Return the nodes, the runtime of the container and the image that a run's options name."""
    nodes = len(options.get("nodelist") or ()) or options.get("nodes") or None
    runtime = dict(options.get("container") or {}).get("runtime", "")
    if not isinstance(runtime, str):  # an option whose key is given several times has a list
        runtime = runtime[-1]
    return RunOptions(nodes, runtime, bool(options.get("image")))


def read_cvs_file(
    path: Path,
    *,
    cluster: Path | None = None,
    values: Mapping[str, str] | None = None,
    nodes: int | None = None,
    needs_digest: bool = False,
) -> CvsFile:
    """Read a configuration of CVS, with the thresholds that it names.

    Args:
        path: the path of the configuration.
        cluster: a cluster file, which has the names of the nodes and the name of the user.
        values: path of a leaf -> the value that replaces the file's own.
        nodes: the number of nodes; None means that of the cluster file, or else that of `path`.
        needs_digest: whether the file has to name its image with a digest.

    Raises:
        ConfigError: a file cannot be read, or is not a file of CVS.
    """
    user, count = _cluster(cluster) if cluster else ("", None)

    def thresholds_named(name: str) -> tuple[str, str] | None:
        thresholds_path = threshold_file(path, name)
        return None if thresholds_path is None else (str(thresholds_path), text_of(thresholds_path))

    return read_cvs(
        text_of(path),
        where=str(path),
        find_thresholds=thresholds_named,
        given=values,
        words={"user-id": user or _user()},
        nodes=nodes or count,
        needs_digest=needs_digest,
    )


def _user() -> str:
    """Return the name of the user who runs this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user's id has no name on this machine
        return "root"


def _cluster(path: Path) -> tuple[str, int | None]:
    """Return the user that a cluster file names ("" if none), and the number of its nodes.

    Raises:
        ConfigError: it is not a cluster file, or an entry is not the name of a node.
    """
    data, _ = objects_of(text_of(path), where=str(path))
    source = Source(data, where=str(path), words={})
    if "node_dict" not in data:
        raise ConfigError(f"{path} is not a cluster file of CVS: it has no node_dict")
    nodes = source.table("node_dict")
    # a published file has the template  {xx.xx.xx.xx|hostname}
    if unnamed := [name for name in nodes if "{" in name or has_change_mark(name)]:
        raise ConfigError(
            f"{path}: node_dict has {', '.join(unnamed)}, which names no node; put the names of "
            "the nodes there, or leave the cluster file out and give their number"
        )
    user = source.text("username")
    return ("" if "{" in user else user), len(nodes) or None


def threshold_file(path: Path, name: str) -> Path | None:
    """Return the threshold file of a configuration, in or below its folder; None if it has none."""
    try:
        thresholds_path = path.parent / name
        is_outside = Path(name).is_absolute() or ".." in Path(name).parts
        return thresholds_path if thresholds_path.is_file() and not is_outside else None
    except (OSError, ValueError):  # the name is too long, or holds a NUL
        return None


def text_of(path: Path) -> str:
    """Return the text of a CVS file, without a byte order mark.

    Raises:
        ConfigError: the file cannot be read, or it is far too large.
    """
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise ConfigError(f"{path} is larger than 16 MiB, so it is not a CVS file")
        return secure_files.read_named(path, encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; name a JSON file of CVS") from None
