"""What both generations share, and generation 1: `config` and `model_params`.

An item is open where this run uses its leaf; a leaf that nothing uses is never asked for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from pytest_xlatune.guests.cvs._keys import (
    ADDED,
    ADDED_BY_MODE,
    CONSTANTS,
    DISTRIBUTED_KEYS,
    FIRST_KEYS,
    OF_THE_LAUNCHER,
    OF_THE_TRIAL,
    SINGLE_KEYS,
    Table,
    first_table,
    is_thresholds,
    result_thresholds,
)
from pytest_xlatune.guests.cvs._values import (
    DIFFERENT,
    DISTRIBUTED,
    SINGLE,
    USED,
    Container,
    CvsCell,
    CvsFile,
    Leaf,
    OpenItem,
    Path,
    Source,
    is_comment,
    is_open,
    leaves_of,
    sample_of,
    setting_text,
    typed,
    written,
)
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.record import Json, dataclass

DEVICES = 8  # of a node, where the file does not say
_AXES = {
    "data": "DP",
    "fsdp": "FSDP",
    "tensor": "TP",
    "pipeline": "PP",
    "expert": "EP",
    "context": "CP",
    "sequence": "SP",
}
# an axis of MaxText:  dcn_fsdp_parallelism
_AXIS = re.compile(r"(ici|dcn)_(\w+)_parallelism")
# a placeholder:  {user-id}   {paths.models_dir}
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][\w.-]*)\}")
# a flag with or without its dashes:  --xla_gpu_autotune_level
_FLAG = re.compile(r"-{0,2}(\w+)")
_LONGEST = 1 << 14  # characters of a value with its placeholders filled


GENERATIONS = ("1", "4")


def generation_of(data: Mapping[str, Json]) -> tuple[str, str] | None:
    """Return generation and kind of a file's objects; None where it is no CVS file."""
    config = data.get("config")
    if isinstance(config, dict) and "model_params" in data:
        is_second = config.keys() & {"xla_flags", "env_vars", "rdma_lib"}
        return ("2" if is_second else "1", "config")
    if "train_params" in data:
        return ("4", "config")
    if isinstance(data.get("training"), dict):
        return ("3", "config")
    if "node_dict" in data or (isinstance(data.get("nodes"), dict) and "head_node" in data):
        return ("4" if data.keys() & {"orchestrator", "container"} else "1", "cluster")
    if is_thresholds(data):
        # generation 4: BS=5,PRECISION=BF16,SL=8192
        is_third = any("BATCH=" in name for name in data if not is_comment(name))
        return ("3" if is_third else "4", "threshold")
    return None


_MEGATRON, _TORCHTITAN = "Megatron-LM", "TorchTitan"
_FRAMEWORKS = {"megatron": _MEGATRON, "torchtitan": _TORCHTITAN}
# keys that the files of one trainer have, wherever their generation puts them
_SIGNS = {
    _TORCHTITAN: re.compile(r"torchtitan_root|use_generated_config|\w+_parallel_degree"),
    _MEGATRON: re.compile(r"megatron_root|training_iterations|master_address"),
}
_SETTINGS = frozenset({"precision", "sequence_length", "micro_batch_size", "batch_size"})


def other_trainer(data: Mapping[str, Json]) -> str:
    """Return the trainer of a file that is not MaxText's; "" where nothing says so.

    CVS keeps the configurations of its trainers in the same shapes: `config` and `model_params`,
    later `train_params`, with a framework beside them or without.
    """
    said = str(data.get("framework", "")).lower()
    by_name = next((name for word, name in _FRAMEWORKS.items() if said.startswith(word)), "")
    keys = _keys_below({key: data.get(key) for key in ("config", "model_params", "train_params")})
    if by_name or "maxtext_config" in keys:
        return by_name
    return next(
        (name for name, sign in _SIGNS.items() if any(map(sign.fullmatch, keys))),
        "",
    )


def settings_of_other(data: Mapping[str, Json]) -> str:
    """Return what a file of another trainer says of its runs: `batch_size 128, precision FP8`."""
    found: dict[str, dict[str, None]] = {}
    for path, value in leaves_of(dict(data)):
        if path and path[-1] in _SETTINGS and isinstance(value, str | int) and not is_open(value):
            found.setdefault(str(path[-1]), {})[str(value)] = None
    return ", ".join(f"{name} {' or '.join(values)}" for name, values in sorted(found.items()))


def _keys_below(value: Json) -> frozenset[str]:
    keys = (key for path, _ in leaves_of(value) for key in path if isinstance(key, str))
    return frozenset(key for key in keys if not is_comment(key))


@dataclass(kw_only=True)
class Draft:
    """A file while it is read: its objects, placeholder -> value, questions, notes."""

    source: Source
    words: Mapping[str, str]
    nodes: int | None
    asked: list[OpenItem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def filled(self, value: Any) -> Any:
        """Return a value with its placeholders filled, in keys too."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict):
            return {self._text(str(key)): self.filled(each) for key, each in value.items()}
        return [self.filled(each) for each in value] if isinstance(value, list) else value

    def _text(self, text: str) -> str:
        if "{" not in text:
            return text
        seen = {text}
        while True:
            found = _PLACEHOLDER.sub(lambda match: self.words.get(match[1], match[0]), text)
            if found == text:
                return found
            if found in seen or len(found) > _LONGEST:
                raise ConfigError(
                    f"{self.source.where}: the placeholders in {text!r:.80} name each other in a "
                    "circle"
                )
            seen.add(found)
            text = found


# what must be filled in, in words; by the last key of a path
_WANTED = {
    "nnodes": "the number of nodes",
    "image": "the image",
    "container_image": "the image",
    "threshold_json": "the file of thresholds",
    **dict.fromkeys(
        ("NCCL_IB_HCA", "nccl_ib_hca", "nccl_ib_hca_list"), "the RDMA devices of the nodes"
    ),
    **dict.fromkeys(
        (
            *("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"),
            *("nccl_socket_ifname", "gloo_socket_ifname"),
        ),
        "the network interface of the nodes",
    ),
    **dict.fromkeys(
        ("NCCL_IB_GID_INDEX", "nccl_ib_gid_index"),
        "the GID index of the nodes' RDMA devices, often 3",
    ),
    "tflops_per_sec_per_gpu": "the least TFLOP/s of a device",
    "tokens_per_sec_per_gpu": "the least tokens/s of a device",
}


def open_items_of(leaves: tuple[Leaf, ...], draft: Draft) -> list[OpenItem]:
    """Return what must be filled in, of the leaves that reach a run."""
    found = []
    for leaf in leaves:
        if leaf.cls not in (USED, DIFFERENT) or not leaf.reaches:
            continue
        key = str(leaf.path[-1]) if leaf.path else ""
        if key == "nnodes" and draft.nodes is not None:
            continue
        is_prose = key == "nnodes" and not is_count(leaf.value)
        texts = [leaf.value, *(each for each in leaf.path if isinstance(each, str))]
        if any(map(is_open, texts)) or is_prose:
            sample = sample_of(str(leaf.value)) if not is_prose else ""
            wanted = _WANTED.get(key, "a value of your site")
            found.append(OpenItem(path=leaf.name, sample=sample, wanted=wanted))
        elif isinstance(leaf.value, str) and (
            left := _PLACEHOLDER.search(draft.filled(leaf.value))
        ):
            wanted = f"a value without the placeholder {{{left[1]}}}, which nothing fills"
            found.append(OpenItem(path=leaf.name, sample="", wanted=wanted))
    return found


def is_count(value: Json) -> bool:
    """Whether a value is a whole number from 1, as a number or as text."""
    found = typed(value)
    return isinstance(found, int) and not isinstance(found, bool) and found > 0


def env_of(draft: Draft, *path: str) -> dict[str, str]:
    """Return the variables of an object, less those that the launcher sets."""
    found = {}
    for name, value in draft.source.table(*path).items():
        if isinstance(value, dict | list):
            raise draft.source.wrong((*path, name), value, "a text")
        if name not in OF_THE_LAUNCHER:
            found[name] = setting_text(draft.filled(value))
    return found


def flags_of(draft: Draft, *path: str | int) -> dict[str, str]:
    """Return XLA's flags of an object, or of a text or a list of them."""
    value = draft.source.get(*path)
    if isinstance(value, str | list):
        words = value.split() if isinstance(value, str) else map(str, value)
        pairs = [each.partition("=") for each in words]
        value = {name: text if mark else "true" for name, mark, text in pairs}
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise draft.source.wrong(path, value, "an object of flags")
    found = {}
    for name, each in value.items():
        if is_comment(name, value):
            continue
        named = _FLAG.fullmatch(name)
        if named is None or isinstance(each, dict | list):
            raise draft.source.wrong((*path, name), each, "a flag of XLA and its value")
        text = setting_text(draft.filled(each))
        # XLA takes quotes around a value away:  "''" is the empty value
        is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
        found[named[1]] = text[1:-1] if is_quoted else text
    return found


def image_of(draft: Draft, *path: str) -> str:
    """Return the name of the image, without the mark that it is to be filled in."""
    return sample_of(draft.filled(draft.source.text(*path)))


def parallelism_of(
    draft: Draft, maxtext: Mapping[str, Json], *, nodes: int | None, devices: int, at: Path
) -> str:
    """Return the axes: the product of both sides, 1s dropped; "" where the nodes are not known.

    -1 stands for the rest of a side: of a node's devices, of the nodes.

    Raises:
        ConfigError: a degree is no whole number, or two of one side take the rest.
    """
    sides: dict[str, dict[str, int]] = {"ici": {}, "dcn": {}}
    for key, value in maxtext.items():
        found = _AXIS.fullmatch(key)
        if found is None or value == "":
            continue
        degree = draft.source.as_number((*at, key), value)
        if degree is None:
            continue
        if degree != int(degree) or degree == 0 or degree < -1:
            raise draft.source.wrong((*at, key), value, "a degree from 1, or -1 for the rest")
        sides[found[1]][found[2]] = int(degree)
    # MaxText's own: what a node has left is sharded, what the nodes have left is data parallel
    sides["ici"].setdefault("fsdp", 1 if -1 in sides["ici"].values() else -1)
    sides["dcn"].setdefault("data", 1 if -1 in sides["dcn"].values() else -1)
    for side, count in (("ici", devices), ("dcn", nodes)):
        axes = sides[side]
        rest = [axis for axis, degree in axes.items() if degree == -1]
        if len(rest) > 1:
            names = ", ".join(f"{side}_{axis}_parallelism" for axis in rest)
            raise ConfigError(
                f"{draft.source.where}: {written(at)}: {names} are -1, and only one of a side can "
                "take the rest"
            )
        if rest and count is None:
            return ""
        if rest and count is not None:
            known = math.prod(degree for degree in axes.values() if degree != -1)
            axes[rest[0]] = max(count // known, 1)
    others = sorted((sides["ici"].keys() | sides["dcn"].keys()) - _AXES.keys())
    products = {
        axis: sides["ici"].get(axis, 1) * sides["dcn"].get(axis, 1) for axis in (*_AXES, *others)
    }
    said = [f"{_AXES.get(axis, axis)}={degree}" for axis, degree in products.items() if degree > 1]
    return ",".join(said) or "DP=1"


MODES = {"single_node": SINGLE, "multi_node": DISTRIBUTED}


def read_first(draft: Draft) -> tuple[CvsFile, Table]:
    """Return the facts of generation 1 and its table of keys.

    Raises:
        ConfigError: a value is of another kind than CVS takes.
    """
    source = draft.source
    mode = _mode(draft)
    key = next(name for name, each in MODES.items() if each == mode)
    hca, listed = source.get("config", "nccl_ib_hca"), source.get("config", "nccl_ib_hca_list")
    if mode == DISTRIBUTED and hca and listed and hca != listed and not is_open(listed):
        draft.notes.append("nccl_ib_hca and nccl_ib_hca_list differ; CVS reads the first only")
    nodes = _nodes(draft, mode)
    steps = source.whole("config", "training_steps")
    cells: list[CvsCell] = []
    flags: dict[str, str] = {}
    for model in source.table("model_params", key):
        for gpu in source.table("model_params", key, model):
            at: Path = ("model_params", key, model, gpu)
            maxtext = _keys_of(draft, at, model)
            axes = parallelism_of(draft, maxtext, nodes=nodes, devices=DEVICES, at=at)
            cells.append(
                CvsCell(
                    name="default",
                    model=model,
                    gpu=gpu,
                    maxtext=maxtext,
                    steps=steps,
                    nodes=nodes,
                    parallelism=axes,
                    thresholds=result_thresholds(source, at),
                )
            )
            flags = flags or flags_of(draft, *at, "xla_flags")
    if not cells:
        raise ConfigError(f"{source.where}: model_params.{key} has no model with a GPU in it")
    if len(cells) > 1:
        cells = [replace(each, name=f"{each.model} {each.gpu}") for each in cells]
    made = CvsFile(
        where=source.where,
        generation="1",
        kind="config",
        model=cells[0].model,
        mode=mode,
        gpu=cells[0].gpu,
        image=image_of(draft, "config", "container_image"),
        steps=steps,
        cells=tuple(cells),
        xla_flags=flags,
        env=_env(draft, mode),
        added={**ADDED, **ADDED_BY_MODE[mode]},
        scripts=("/workspace/maxtext/MaxText/train.py",),
        container=_container(draft),
        token_file=draft.filled(source.text("config", "hf_token_file")),
    )
    return made, first_table(mode, has_hca=bool(hca))


def _mode(draft: Draft) -> str:
    """Return the mode: the file's only one, or the one that this run uses."""
    source = draft.source
    params = source.table("model_params")
    modes = [MODES[key] for key in params if key in MODES and params[key]]
    if not modes:
        raise ConfigError(
            f"{source.where}: model_params has no model: expected single_node or multi_node with "
            "one in it"
        )
    if len(modes) == 1:
        return modes[0]
    count = draft.nodes
    if count is None and is_count(source.get("config", "nnodes")):
        count = source.whole("config", "nnodes")
    if count is not None:
        mode = DISTRIBUTED if count > 1 else SINGLE
        why = f"{count} node{'s' if count > 1 else ''}"
    elif re.search(r"distributed|multi", source.where, re.IGNORECASE):
        mode, why = DISTRIBUTED, "its name"
    elif re.search(r"single", source.where, re.IGNORECASE):
        mode, why = SINGLE, "its name"
    else:
        is_here = source.text("config", "coordinator_ip") in ("", "localhost", "127.0.0.1")
        mode, why = (SINGLE if is_here else DISTRIBUTED), "its coordinator_ip"
    draft.notes.append(f"the file has both modes; this run is {mode}, by {why}")
    return mode


def _nodes(draft: Draft, mode: str) -> int | None:
    """Return the number of nodes of a cell: one of a single-node run, however many run it."""
    said = draft.source.get("config", "nnodes")
    stated = draft.source.whole("config", "nnodes") if is_count(said) else None
    if mode == SINGLE:
        return 1
    if draft.nodes and stated and draft.nodes != stated:
        draft.notes.append(
            f"config.nnodes is {stated}, and the run has {draft.nodes} nodes, which count"
        )
    return draft.nodes or stated


def _keys_of(draft: Draft, at: Path, model: str) -> dict[str, Json]:
    """Return the MaxText keys of a model: those that reach the trainer, and CVS' constants."""
    table = draft.source.table(*at)
    own = {
        key: typed(draft.filled(value))
        for key, value in table.items()
        if key in FIRST_KEYS and key not in OF_THE_TRIAL and not is_open(value)
    }
    for key in ("per_device_batch_size", "max_target_length"):
        draft.source.as_number((*at, key), table.get(key))
    checkpointing = draft.source.truth("config", "enable_checkpointing")
    return {**own, **CONSTANTS, "model_name": model, "enable_checkpointing": checkpointing}


def _env(draft: Draft, mode: str) -> dict[str, str]:
    source = draft.source
    keys = {**SINGLE_KEYS, **(DISTRIBUTED_KEYS if mode == DISTRIBUTED else {})}
    env: dict[str, str] = {}
    for key, names in keys.items():
        own = key
        if key == "nccl_ib_hca" and not source.get("config", key):
            own = "nccl_ib_hca_list"
        value = source.get("config", own)
        if isinstance(value, dict | list):
            raise source.wrong(("config", own), value, "a text")
        if value is not None:
            env |= dict.fromkeys(names, setting_text(draft.filled(value)))
    return env | env_of(draft, "config", "container_config", "env_dict")


def _container(draft: Draft) -> Container:
    source = draft.source
    place = ("config", "container_config")
    volumes = draft.filled(source.table(*place, "volume_dict"))
    mounts = [
        f"{host}:{inside}"
        for host, inside in volumes.items()
        if isinstance(inside, str) and not is_open(inside) and not is_open(host)
    ]
    devices = [str(draft.filled(each)) for each in source.items(*place, "device_list")]
    return Container(
        mounts=tuple(mounts),
        devices=tuple(devices),
        shm_size=source.text("config", "shm_size"),
        args=("--privileged",),  # as CVS starts every container of this generation
    )
