"""CVS configurations from disk: with the cluster file and the thresholds that belong to them.

What a file means stands in `reading`; here are paths, the user's name, and error messages of files
that cannot be read. Nothing is started, no node is asked.
"""

from __future__ import annotations

import getpass
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pytest_xlatune import secure_files
from pytest_xlatune.guests.cvs.reading import read_cvs
from pytest_xlatune.guests.cvs.source import Source, is_open, objects_of
from pytest_xlatune.guests.cvs.values import NO_CONTAINER, CvsFile
from pytest_xlatune.model.errors import ConfigError

_LARGEST_BYTES = 16 << 20  # the published ones have 10 kB


class RunOptions(NamedTuple):
    """What the options of a run say, in place of a file."""

    nodes: int | None
    runtime: str
    has_image: bool

    @property
    def needs_digest(self) -> bool:
        """Whether the file has to name its image with the digest."""
        return not self.has_image and self.runtime != NO_CONTAINER


def given_values(words: Iterable[str]) -> dict[str, str]:
    """Return path -> value of `PATH=VALUE` words.

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


def asked_of(options: Mapping[str, Any]) -> RunOptions:
    """Return what a run's options say of the nodes, the container's runtime and the image."""
    nodes = len(options.get("nodelist") or ()) or options.get("nodes") or None
    runtimes = dict(options.get("container") or {}).get("runtime", "")
    runtime = runtimes if isinstance(runtimes, str) else runtimes[-1]
    return RunOptions(nodes, runtime, bool(options.get("image")))


def read_cvs_file(
    path: Path,
    *,
    cluster: Path | None = None,
    values: Mapping[str, str] | None = None,
    nodes: int | None = None,
    needs_digest: bool = False,
) -> CvsFile:
    """Return what a configuration of CVS says, with the thresholds that it names.

    Args:
        path: of the file.
        cluster: a cluster file: names and number of the nodes, the user's name.
        values: path of a leaf -> value in its place.
        nodes: how many nodes the run has; None is the cluster file's number, or the file's.
        needs_digest: whether the file has to name its image with the digest.

    Raises:
        ConfigError: a file cannot be read, or is no such file of CVS.
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
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user number without a name
        return "root"


def _cluster(path: Path) -> tuple[str, int | None]:
    """Return the user and the number of nodes that a cluster file names.

    Raises:
        ConfigError: it is no cluster file, or a name in it names no node.
    """
    data, _ = objects_of(text_of(path), where=str(path))
    source = Source(data, where=str(path), words={})
    if "node_dict" not in data:
        raise ConfigError(f"{path} is no cluster file: it has no node_dict")
    nodes = source.table("node_dict")
    # a template of a published file:  {xx.xx.xx.xx|hostname}
    if unnamed := [name for name in nodes if "{" in name or is_open(name)]:
        raise ConfigError(
            f"{path}: node_dict has {', '.join(unnamed)}, which names no node; put the names of "
            "the nodes there, or leave the cluster file out and say their number"
        )
    user = source.text("username")
    return ("" if "{" in user else user), len(nodes) or None


def threshold_file(path: Path, name: str) -> Path | None:
    """Return the threshold file of a configuration, which stands below its folder; None without."""
    try:
        thresholds_path = path.parent / name
        is_out = Path(name).is_absolute() or ".." in Path(name).parts
        return thresholds_path if thresholds_path.is_file() and not is_out else None
    except (OSError, ValueError):  # the name is too long, or has a NUL in it
        return None


def text_of(path: Path) -> str:
    """Return the text of a CVS file, without a byte order mark.

    Raises:
        ConfigError: it cannot be read, or is far too large.
    """
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise ConfigError(f"{path} has more than 16 MiB: no CVS file is so large")
        return secure_files.read_named(path, encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; name a JSON file of CVS") from None
