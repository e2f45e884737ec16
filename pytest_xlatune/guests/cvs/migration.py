"""A CVS configuration of generation 1, 2 or 3 as one of generation 4 with its threshold file.

All that reaches a run is carried over, so that the cell stays the same. Variables that CVS adds by
itself are written out. Keys without a place in generation 4 are listed, each with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_xlatune.guests.cvs._keys import ADDED, ADDED_BY_MODE
from pytest_xlatune.guests.cvs._values import (
    DISTRIBUTED,
    IGNORED,
    PREFIX,
    UNKNOWN,
    Container,
    CvsCell,
    CvsFile,
    setting_text,
)
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.record import Json, dataclass

_MARK = " <changeme>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrated:
    """A configuration of generation 4, its thresholds, the keys that have no place there."""

    config: dict[str, Json]
    thresholds: dict[str, Json]
    left_out: tuple[str, ...]


def migrated(file: CvsFile, *, threshold_name: str) -> Migrated:
    """Return a configuration as generation 4 has it.

    Args:
        file: of generation 1, 2, 3-early or 3.
        threshold_name: how the file of its thresholds will be called.

    Raises:
        ConfigError: it is no configuration, or of generation 4 already.
    """
    if file.kind != "config":
        raise ConfigError(f"{file.where} is a {file.kind} file of CVS: name a configuration")
    if file.generation == "4":
        raise ConfigError(f"{file.where} is of generation 4 already")
    cells = (*file.cells, *file.idle)
    first = cells[0]
    keys = _names(cells)
    shared = {
        key: value
        for key, value in first.maxtext.items()
        if all(key in each.maxtext and each.maxtext[key] == value for each in cells)
    }
    steps = {"steps": file.steps} if file.steps is not None else {}
    env = {**ADDED, **ADDED_BY_MODE[file.mode], **file.env}
    if file.mode == DISTRIBUTED:
        env.setdefault("NCCL_IB_HCA", "")  # generation 4 has no other word for distributed
    is_open = {each.path.rpartition(".")[2] for each in file.open_items}
    image = file.image + (_MARK if is_open & {"image", "container_image"} else "")
    config: dict[str, Json] = {
        "gpu_name": file.gpu,
        "gpus_per_node": first.gpus_per_node,
        "enforce_thresholds": file.enforce,
        "threshold_json": threshold_name,
        "paths": {"hf_token_file": file.token_file} if file.token_file else {},
        "container": {
            "lifetime": "per_run",
            "name": f"cvs-{first.model}",
            "image": image,
            "runtime": {"name": file.container.runtime, "args": _args(file.container)},
            "env": env,
        },
        "train_params": {
            "model_id": file.model,
            "train_script_paths": list(file.scripts),
            "xla_flags": dict(file.xla_flags),
            "maxtext_config": {**shared, **steps},
        },
        **dict(file.watched),
        "sweeps": {keys[at]: _own(each, shared, file) for at, each in enumerate(cells)},
        "runs": keys[: len(file.cells)],
    }
    thresholds: dict[str, Json] = {
        keys[at]: {
            name if name.startswith(PREFIX) else f"{PREFIX}{name}": demand.to_json()
            for name, demand in each.thresholds.items()
        }
        for at, each in enumerate(cells)
        if each.thresholds
    }
    left_out = [
        f"{leaf.name}: {leaf.text}"
        for leaf in file.leaves
        if leaf.cls in (IGNORED, UNKNOWN) or not leaf.reaches
    ]
    if file.mode == DISTRIBUTED:
        count = "" if first.nodes is None else f" This file has {first.nodes}."
        left_out.append(
            "the number of nodes: generation 4 has no key of it. Say it with every command: show "
            f"and migrate --nodes N, pytest --xlatune-nodelist or --xlatune-nodes N.{count}"
        )
    return Migrated(config=config, thresholds=thresholds, left_out=tuple(left_out))


def _names(cells: tuple[CvsCell, ...]) -> list[str]:
    """Return the keys of the sweeps: BS, PRECISION and SL as far as a cell has them."""
    found: list[str] = []
    for each in cells:
        parts = {
            "BS": each.maxtext.get("per_device_batch_size"),
            "PRECISION": "BF16" if each.maxtext.get("quantization") == "" else None,
            "SL": each.maxtext.get("max_target_length"),
        }
        said = [f"{key}={setting_text(value)}" for key, value in parts.items() if value is not None]
        name = ",".join(said) or "default"
        count = sum(known.partition(" (")[0] == name for known in found)
        found.append(f"{name} ({count + 1})" if count else name)
    return found


def _own(cell: CvsCell, shared: Mapping[str, Json], file: CvsFile) -> dict[str, Json]:
    own = {key: value for key, value in cell.maxtext.items() if key not in shared}
    return {**own, **({"steps": cell.steps} if cell.steps != file.steps else {})}


def _args(container: Container) -> dict[str, Json]:
    args: dict[str, Json] = {"network": "host", "ipc": "host"}
    if container.shm_size:
        args["shm-size"] = container.shm_size
    if container.mounts:
        args["volumes"] = list(container.mounts)
    if container.devices:
        args["devices"] = list(container.devices)
    for word in container.args:
        name, mark, value = word.removeprefix("--").partition("=")
        if not mark:
            args[name] = True
        else:
            args[name] = [*args.get(name, []), value]
    return args
