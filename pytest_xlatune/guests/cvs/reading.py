"""CVS configurations (AMD's cluster validation suite): files of generations 1 and 4, read.

Sources: the published configuration files and the loaders of CVS' JAX suites, 2025-08 to 2026-09.
Generation 1 has `config` and `model_params`, 4 has `train_params`; one between them is refused.
Pure: text in, values out; `files` finds files. One kind of error: `ConfigError`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from pytest_xlatune.guests.cvs._draft import (
    GENERATIONS,
    Draft,
    generation_of,
    open_items_of,
    other_trainer,
    read_first,
    settings_of_other,
)
from pytest_xlatune.guests.cvs._keys import (
    CLUSTER_TABLE,
    NODES_KEYS,
    account,
    read_thresholds,
    threshold_leaves,
)
from pytest_xlatune.guests.cvs._values import (
    CLASSES,
    EFFICIENCY,
    OF_LOGS,
    PREFIX,
    SLOPE,
    TFLOPS,
    TOKENS,
    CvsCell,
    CvsFile,
    Leaf,
    OpenItem,
    Source,
    Threshold,
    is_comment,
    is_open,
    leaves_of,
    objects_of,
    typed,
    written,
)
from pytest_xlatune.guests.cvs.generation4 import read_fourth
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.record import Json

__all__ = [
    "CLASSES",
    "EFFICIENCY",
    "OF_LOGS",
    "PREFIX",
    "SLOPE",
    "TFLOPS",
    "TOKENS",
    "CvsCell",
    "CvsFile",
    "Leaf",
    "OpenItem",
    "Threshold",
    "cluster_of",
    "leaves_of",
    "objects_of",
    "read_cvs",
    "typed",
]

_SCHEMA = 1  # the only one that CVS has had
# name of a threshold file -> its path for messages and its text; None where there is none
FindThresholds = Callable[[str], tuple[str, str] | None]


def cluster_of(text: str, *, where: str) -> CvsFile:
    """Read a cluster file: the names of its nodes, its user.

    Raises:
        ConfigError: it is no cluster file.
    """
    data, notes = objects_of(text, where=where)
    found = generation_of(data)
    if found is None or found[1] != "cluster":
        raise ConfigError(f"{where} is no cluster file: it has no node_dict")
    file = _cluster(data, notes, generation=found[0], where=where)
    if unnamed := [name for name in file.nodes if is_unnamed(name)]:
        raise ConfigError(
            f"{where}: node_dict has {', '.join(unnamed)}, which names no node; put the names of "
            "the nodes there, or leave the cluster file out and say their number"
        )
    return file


def is_unnamed(name: str) -> bool:
    """Whether the name of a node is a template:  {xx.xx.xx.xx|hostname}."""
    return "{" in name or is_open(name)


def _cluster(
    data: dict[str, Json], notes: tuple[str, ...], *, generation: str, where: str
) -> CvsFile:
    source = Source(data, where=where)
    tables = [source.table(key) for key in NODES_KEYS]
    nodes = tuple(name for table in tables for name in table if not is_comment(name))
    if unnamed := [name for name in nodes if is_unnamed(name)]:
        notes = (*notes, f"{', '.join(unnamed)}: no name of a node yet; put the names there")
    return CvsFile(
        where=where,
        generation=generation,
        kind="cluster",
        nodes=nodes,
        username=source.text("username"),
        leaves=account(data, CLUSTER_TABLE),
        notes=notes,
        data=data,
    )


def read_cvs(
    text: str,
    *,
    where: str,
    find_thresholds: FindThresholds = lambda name: None,  # noqa: ARG005
    given: Mapping[str, str] | None = None,
    words: Mapping[str, str] | None = None,
    nodes: int | None = None,
) -> CvsFile:
    """Read a CVS file of any kind.

    Args:
        text: of the file.
        where: how messages call it.
        find_thresholds: gives the threshold file that a configuration names, or its only one.
        given: path of a leaf -> the value that the user gives in its place.
        words: placeholder -> value, e.g. user-id.
        nodes: how many nodes the run has; None leaves it to the file.

    Raises:
        ConfigError: it is no CVS file, or a value is of another kind than CVS takes.
    """
    data, notes = objects_of(text, where=where)
    found = generation_of(data)
    if found is None:
        raise ConfigError(
            f"{where}, line {_line_of_first_key(text)}: JSON, but no CVS file of a training: "
            f"it has {', '.join(sorted(map(str, data))[:6]) or 'no key'}; expected config and "
            "model_params, or train_params, or node_dict, or thresholds by cell"
        )
    generation, kind = found
    schema = data.get("schema_version", _SCHEMA)
    if schema not in (_SCHEMA, str(_SCHEMA)):
        said = (
            f"schema_version {schema!s:.40} is not known, only {_SCHEMA} is: the file is read as "
            f"one of generation {generation}, and a key may mean something else now"
        )
        notes = (*notes, said)
    if kind == "cluster":
        return _cluster(data, notes, generation=generation, where=where)
    if kind == "config" and (trainer := other_trainer(data)):
        said = settings_of_other(data)
        raise ConfigError(
            f"{where}: a CVS file of {trainer}, and only those of MaxText are run here"
            + (f"; it says {said}" if said else "")
        )
    if generation not in GENERATIONS:
        raise ConfigError(
            f"{where}: a {kind} file of CVS' generation {generation}; only generations 1 (config "
            "and model_params) and 4 (train_params) are read"
        )
    if kind == "threshold":
        cells = read_thresholds(Source(data, where=where))
        return CvsFile(
            where=where,
            generation=generation,
            kind=kind,
            cells=tuple(
                CvsCell(
                    name=name,
                    model="",
                    gpu="",
                    maxtext={},
                    steps=None,
                    nodes=None,
                    thresholds=demands,
                )
                for name, demands in cells.items()
            ),
            leaves=threshold_leaves(data),
            notes=notes,
            data=data,
        )
    data = _with_given(data, given or {}, where=where)
    made = _read_config(
        Source(data, where=where),
        generation=generation,
        find_thresholds=find_thresholds,
        words=words or {},
        nodes=nodes,
    )
    return replace(made, notes=(*notes, *made.notes))


def _read_config(
    source: Source,
    *,
    generation: str,
    find_thresholds: FindThresholds,
    words: Mapping[str, str],
    nodes: int | None,
) -> CvsFile:
    named = source.table("paths").items()
    paths = {name: each for name, each in named if isinstance(each, str)}
    words = {**words, **paths, **{f"paths.{name}": each for name, each in paths.items()}}
    draft = Draft(source=source, words=words, nodes=nodes)
    made, table = read_first(draft) if generation == "1" else read_fourth(draft, find_thresholds)
    leaves = account(source.data, table)
    items = (*open_items_of(leaves, draft), *draft.asked)
    return replace(
        made,
        leaves=leaves,
        open_items=tuple({each.path: each for each in items}.values()),
        notes=tuple(draft.notes),
        data=source.data,
    )


def _line_of_first_key(text: str) -> int:
    found = re.search(r'"', text)
    return text.count("\n", 0, found.start()) + 1 if found else 1


def _with_given(data: dict[str, Json], given: Mapping[str, str], *, where: str) -> dict[str, Json]:
    """Return the objects with the user's values in their places; a new key is made where needed."""
    leaves = {written(path): path for path, _ in leaves_of(data)}
    for name, value in given.items():
        path = leaves.get(name)
        if path is None:
            parent, _, key = name.rpartition(".")
            places = {
                written(path[:depth]): path[:depth]
                for path in leaves.values()
                for depth in range(len(path))
            }
            if parent not in places:
                raise ConfigError.unknown("path", name, valid=leaves, where=f"--cvs-set ({where})")
            path = (*places[parent], key)
        below: Json = data
        for step in path[:-1]:
            below = below[step]
        if not isinstance(below, dict | list):
            raise ConfigError(f"--cvs-set {name}: {written(path[:-1])} holds no keys")
        below[path[-1]] = value  # type: ignore[index]
    return data
