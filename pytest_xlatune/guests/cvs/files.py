"""CVS files from disk: the configuration, its cluster file, thresholds beside it; as sweeps.

What a file means stands in `reading`; here are paths, the user's name, error messages of
files that cannot be read, and the sweep that a cell becomes. Nothing is started, no node is asked.
"""

from __future__ import annotations

import getpass
import re
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from pytest_xlatune.guests.cvs.launcher import (
    CvsLauncher,
    container_settings,
    deployed_of,
    overrides_of,
)
from pytest_xlatune.guests.cvs.reading import (
    EFFICIENCY,
    OF_LOGS,
    PREFIX,
    TFLOPS,
    TOKENS,
    CvsCell,
    CvsFile,
    Threshold,
    cluster_of,
    read_cvs,
    typed,
)
from pytest_xlatune.guests.cvs.thresholds import Demand, Thresholds
from pytest_xlatune.launchers import Launcher
from pytest_xlatune.launchers.container import ContainerLauncher
from pytest_xlatune.model.cell import Protocol
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import Profile
from pytest_xlatune.model.record import Json, dataclass
from pytest_xlatune.studies import DeclaredStudy
from pytest_xlatune.sweep.groups import CellSettings

NO_CONTAINER = "none"

_BESIDE = "*threshold.json"
_LARGEST_BYTES = 16 << 20  # the published ones have 10 kB


@dataclass(frozen=True, kw_only=True)
class CvsGiven:
    """What the user says beside a CVS file.

    Attributes:
        cluster: a cluster file: names and number of the nodes, the user's name.
        values: path of a leaf -> value in its place.
        nodes: how many nodes the run has; None is the cluster file's number, or the file's.
    """

    cluster: Path | None = None
    values: Mapping[str, str] = field(default_factory=dict)
    nodes: int | None = None


def given_of(
    said: Mapping[str, Any], *, cluster: Path | None, values: Mapping[str, str]
) -> tuple[CvsGiven, str]:
    """Return what the options of a run say of a CVS file, and the container's runtime, or "".

    Args:
        said: option -> value, as the settings of a run have them.
        cluster: a cluster file.
        values: path of a leaf -> value in its place.
    """
    nodes = len(said.get("nodelist") or ()) or said.get("nodes") or None
    runtimes = dict(said.get("container") or {}).get("runtime", "")
    runtime = runtimes if isinstance(runtimes, str) else runtimes[-1]
    return CvsGiven(cluster=cluster, values=values, nodes=nodes), runtime


def given_values(words: Iterable[str]) -> dict[str, str]:
    """Return path -> value of `PATH=VALUE` words.

    Raises:
        ConfigError: a word has no `=`.
    """
    found = {}
    for word in words:
        name, mark, value = word.partition("=")
        if not (mark and name.strip()):
            raise ConfigError(f"--cvs-set {word!r}: expected PATH=VALUE: config.nnodes=4")
        found[name.strip()] = value
    return found


def read_cvs_file(path: Path, given: CvsGiven | None = None) -> CvsFile:
    """Return what a CVS file says, with the thresholds that stand beside it.

    Raises:
        ConfigError: a file cannot be read, or is no CVS file.
    """
    given = given or CvsGiven()
    cluster = None
    if given.cluster is not None:
        cluster = cluster_of(text_of(given.cluster), where=str(given.cluster))
    nodes = given.nodes or (len(cluster.nodes) if cluster else None) or None

    def beside(name: str) -> tuple[str, str] | None:
        found = _beside(path, name)
        return None if found is None else (str(found), text_of(found))

    return read_cvs(
        text_of(path),
        where=str(path),
        find_thresholds=beside,
        given=given.values,
        words=_words(cluster),
        nodes=nodes,
    )


def thresholds_of(path: Path, file: CvsFile) -> Path | None:
    """Return the threshold file that a configuration names or has beside it; None without one."""
    return _beside(path, file.threshold_name)


def _beside(path: Path, name: str) -> Path | None:
    if name:
        try:
            found = path.parent / name
            is_out = Path(name).is_absolute() or ".." in Path(name).parts
            return found if found.is_file() and not is_out else None
        except (OSError, ValueError):  # longer than a name may be, a NUL in it
            return None
    owners = {0, path.stat().st_uid}  # a stranger may put one into a shared folder
    beside = filter(Path.is_file, path.parent.glob(_BESIDE))
    only = sorted(each for each in beside if each.stat().st_uid in owners)
    return only[0] if len(only) == 1 else None


def text_of(path: Path) -> str:
    """Return the text of a CVS file with its line ends as they are, without a byte order mark.

    Raises:
        ConfigError: it cannot be read, or is far too large.
    """
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise ConfigError(f"{path} has more than 16 MiB: no CVS file is so large")
        return path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; name a JSON file of CVS") from None


def _words(cluster: CvsFile | None) -> dict[str, str]:
    """Return placeholder -> value: the cluster file's, else this process' user."""
    data: Mapping[str, Json] = cluster.data if cluster else {}
    user = cluster.username if cluster else ""
    if not user or "{" in user:
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # a user number without a name
            user = "root"
    found = {"user-id": user, "user": user, "home": str(Path("~").expanduser())}
    for key, word in (
        ("home_mount_dir_name", "home-mount-dir"),
        ("node_dir_name", "node-dir-name"),
    ):
        value = data.get(key)
        if isinstance(value, str) and value:
            found[word] = value
    return found


# told in every run, and gated where the file has a threshold of it
_ALWAYS = (TOKENS, TFLOPS, "step_time_seconds", "final_loss")
_BOUNDS = {"min": "min", "min_tok_s": "min", "max": "max", "max_ms": "max", "within": "within"}


def demands_of(file: CvsFile, cell: CvsCell) -> tuple[Demand, ...]:
    """Return what a cell's thresholds demand, by metric, and metrics to record besides.

    What only logs tell is not among them.
    """
    found: dict[str, Demand] = {name: Demand(metric=name) for name in _ALWAYS}
    for name, each in cell.thresholds.items():
        metric = name.removeprefix(PREFIX)
        if metric not in OF_LOGS:
            found[metric] = demand_of(metric, each)
    if EFFICIENCY in found:
        factor = efficiency_factor(file, cell)
        found[EFFICIENCY] = replace(found[EFFICIENCY], factor=factor)
    return tuple(found.values())


def demand_of(metric: str, threshold: Threshold) -> Demand:
    """Return a threshold as a demand on the mean of jobs; recorded only, where it has no value."""
    value, reference = threshold.value, threshold.reference
    if threshold.kind == "min_ratio" and value is not None:
        if isinstance(reference, str):
            return Demand(metric=metric, bound="min", value=value, of=reference)
        return Demand(metric=metric, bound="min", value=value * (reference or 0.0))
    bound = _BOUNDS.get(threshold.kind, "") if value is not None else ""
    return Demand(
        metric=metric,
        bound=bound,
        value=value if bound else None,
        tolerance_pct=threshold.tolerance_pct if bound else None,
    )


def efficiency_factor(file: CvsFile, cell: CvsCell) -> float | None:
    """Return what makes percent of the file's baseline of tokens/s a device; None without one."""
    total = typed(file.baseline.get("tokens_per_sec_total"))
    nodes = typed(file.baseline.get("num_nodes", 1))
    if not (isinstance(total, int | float) and isinstance(nodes, int | float)):
        return None
    return 100 * cell.gpus_per_node * nodes / total if total > 0 and nodes > 0 else None


def declared_of(
    file: CvsFile,
    cell: CvsCell,
    *,
    profiles: tuple[Profile, ...] = (),
    study: DeclaredStudy | None = None,
    runtime: str = "",
) -> dict[str, Any]:
    """Return the keywords of the `Sweep` of one cell of a CVS file, which is deployed there.

    Args:
        file: as `read_cvs_file` returns it.
        cell: one of its cells.
        profiles: tuned on top of the file.
        study: the question; the file's thresholds where there is no profile either.
        runtime: of the container, where it is another than the file's; `none` is no container.

    Raises:
        ConfigError: something is open, the number of nodes is not known, the file does not fit.
    """
    if file.open_items:
        lines = "".join(
            f"\n  {each.path}: {each.wanted}"
            + (f" (the file's sample: {each.sample})" if each.sample else "")
            + f": {each.how}"
            for each in file.open_items
        )
        raise ConfigError(f"{file.where}: {len(file.open_items)} open items, fill them in:{lines}")
    if cell.nodes is None or not cell.parallelism:
        raise ConfigError(
            f"{file.where}: how many nodes has cell {cell.name!r}? Say --xlatune-nodelist "
            "'node[001-004]', --xlatune-nodes 4, or give a cluster file (--cvs-cluster)"
        )
    if cell.steps is None:
        raise ConfigError(f"{file.where}: the file does not say how many steps a run has")
    if cell.steps < _FEWEST:
        raise ConfigError(
            f"{file.where}: {cell.steps} steps, of which the first {_WARM_UP} warm up; "
            f"{_FEWEST} are the least: fill in more with --cvs-set"
        )
    if study is None and not profiles:
        study = Thresholds(demands=demands_of(file, cell))
    source = str(Path(file.where).absolute())
    launcher: Launcher = CvsLauncher(scripts=file.scripts, source=source, source_cell=cell.name)
    runtime = runtime or file.container.runtime
    if runtime != NO_CONTAINER:
        options, _ = container_settings(file.container, runtime)
        launcher = ContainerLauncher(inner=launcher, **options)
    dataset = cell.maxtext.get("dataset_type", "synthetic")
    own = CellSettings(
        model_tag=_tag(cell.model or "model"),
        parallelism=cell.parallelism,
        config_tag=f"{_tag(cell.gpu or file.gpu or 'gpu')}-{file.mode}",
        per_device_batch_size=cell.per_device_batch_size,
        max_target_length=cell.max_target_length,
        image=file.image,
        deployed=deployed_of(file),
        overrides=overrides_of(cell),
        devices=cell.nodes * cell.gpus_per_node,
        protocol=Protocol(
            steps=cell.steps,
            first_step=_WARM_UP,
            min_steps=min(_USABLE, cell.steps - _WARM_UP),
            dataset_type=str(dataset),
        ),
    )
    is_only = len(file.cells) == 1
    name = _slug(f"cvs-{Path(file.where).stem}" + ("" if is_only else f"-{cell.name}"))
    return {
        "name": name,
        "launcher": launcher,
        "profiles": profiles,
        "cell": own,
        "study": study,
    }


def dropped_of(file: CvsFile, runtime: str) -> list[str]:
    """Return the container's options that a runtime has no place for, as a user writes them."""
    runtime = runtime or file.container.runtime
    if runtime != NO_CONTAINER:
        return container_settings(file.container, runtime)[1]
    mounts = [f"--volume={each}" for each in file.container.mounts]
    return [*mounts, *container_settings(file.container, "")[1]]


_WARM_UP, _USABLE = 5, 6
_FEWEST = _WARM_UP + 5


def _tag(text: str) -> str:
    """Return a name as a model tag may be: `meta-llama/Llama-3` becomes `meta-llama-Llama-3`."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-._+") or "model"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9_]+", "-", text.lower()).strip("-_")
