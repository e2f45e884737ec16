"""Read CVS configurations (AMD's cluster validation suite) of generations 1 and 4 as `CvsFile`s.

Sources: the published configuration files and the loaders of CVS' JAX suites, 2025-08 to 2026-09.
Generation 1 has `config` and `model_params`, and 4 has `train_params`; 2 and 3 are refused. An open
value is an open item only if this run uses it. This module takes texts and returns values; `files`
reads the files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pytest_xlatune.guests.cvs.keys import DIFFERENT, DROPPED, USED, Leaf, account, keys_of
from pytest_xlatune.guests.cvs.source import (
    PLACEHOLDER,
    Path,
    Source,
    has_change_mark,
    leaves_of,
    objects_of,
    path_text,
    sample_of,
    setting_text,
    typed,
)
from pytest_xlatune.guests.cvs.values import (
    DISTRIBUTED,
    PREFIX,
    SINGLE,
    TFLOPS,
    TOKENS,
    Container,
    CvsCell,
    CvsFile,
    OpenItem,
    Threshold,
)
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.record import Json

# name of a threshold file -> its path for messages, and its text; None if there is no such file
FindThresholds = Callable[[str], tuple[str, str] | None]

_DEFAULT_DEVICES = 8  # devices of a node if the file does not give their number
MODES = {"single_node": SINGLE, "multi_node": DISTRIBUTED}
# the variables that CVS adds to every run, and those that it adds to the runs of a mode
_ADDED = {
    "HSA_FORCE_FINE_GRAIN_PCIE": "1",
    "HIP_FORCE_DEV_KERNARG": "1",
    "NVTE_FUSED_ATTN": "1",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "1",
}
_ADDED_BY_MODE = {
    SINGLE: {"NCCL_IB_DISABLE": "1", "NCCL_SHM_DISABLE": "0", "NCCL_P2P_DISABLE": "0"},
    DISTRIBUTED: {"NCCL_CROSS_NIC": "0"},
}
# keys of generation 1 that CVS exports as variables in distributed runs only
_DISTRIBUTED_KEYS = (
    *("nccl_ib_hca", "nccl_ib_gid_index", "nccl_ib_tc", "nccl_ib_sl", "nccl_socket_ifname"),
    *("gloo_socket_ifname", "nccl_proto", "nccl_checks_disable"),
)
# all keys of generation 1 that are variables -> the names of the variable: that which CVS exports,
# and its later name in Transformer Engine if there is one
VARIABLES: Mapping[str, tuple[str, ...]] = {
    "nccl_debug": ("NCCL_DEBUG",),
    "gpu_max_hw_queues": ("GPU_MAX_HW_QUEUES",),
    "nvte_ck_bwd_v3": ("NVTE_CK_BWD_V3", "NVTE_CK_USES_BWD_V3"),
    "nvte_ck_v3_bf16_cvt": ("NVTE_CK_V3_BF16_CVT", "NVTE_CK_HOW_V3_BF16_CVT"),
    "xla_python_client_mem_fraction": ("XLA_PYTHON_CLIENT_MEM_FRACTION",),
    "xla_gpu_executable_warn_stuck_timeout": ("XLA_GPU_EXECUTABLE_WARN_STUCK_TIMEOUT",),
    **{key: (key.upper(),) for key in _DISTRIBUTED_KEYS},
}
# keys of MaxText that CVS of generation 1 sets for every model
_CONSTANT_KEYS: Mapping[str, Json] = {
    "packing": True,
    "enable_goodput_recording": False,
    "monitor_goodput": False,
    "optimizer_memory_host_offload": False,
    "param_scan_axis": 1,
    "shardy": False,
    "hardware": "gpu",
}
# the possible paths of MaxText's training script in an image, by the generation of CVS
_SCRIPTS_1 = ("/workspace/maxtext/MaxText/train.py",)
_SCRIPTS_4 = (
    "src/maxtext/trainers/pre_train/train.py",
    "src/MaxText/train.py",
    "MaxText/train.py",
)


def is_set_by_launcher(name: str) -> bool:
    """Return whether only the launcher of a job can set a variable correctly."""
    return str(keys_of("4", "container", "env").get(name, "")).startswith(DROPPED)


def is_passed_to_maxtext(name: str) -> bool:
    """Return whether CVS of generation 1 passes a key of a model to MaxText."""
    use = keys_of("1", "model_params", "*", "*", "*").get(name)
    return isinstance(use, str) and use.startswith(USED)


def read_cvs(
    text: str,
    *,
    where: str,
    find_thresholds: FindThresholds = lambda name: None,  # noqa: ARG005
    given: Mapping[str, str] | None = None,
    words: Mapping[str, str] | None = None,
    nodes: int | None = None,
    needs_digest: bool = False,
) -> CvsFile:
    """Read a configuration of CVS.

    Args:
        text: the text of the file.
        where: the name of the file in messages.
        find_thresholds: returns the threshold file with a given name.
        given: path of a leaf -> the value that replaces the value in the file.
        words: placeholder -> its value, e.g. for `user-id`.
        nodes: the number of nodes of the run; None means the number in the file.
        needs_digest: whether the file has to name its image with a digest.

    Raises:
        ConfigError: the file is not a configuration of CVS, or a value has a wrong type.
    """
    data, notes = objects_of(text, where=where)
    generation = _generation_of(data, text, where)
    for name, value in (given or {}).items():
        _set_value(data, name, value, where=where)
    source = Source(data, where=where, words=words or {})
    if generation == "1":
        file, others = _read_generation_1(source, nodes)
    else:
        file, others = _read_generation_4(source, nodes, find_thresholds)
    leaves = account(data, generation, others)
    open_items = _open_items(leaves, source, nodes, needs_digest=needs_digest)
    return replace(
        file,
        leaves=leaves,
        open_items=(*file.open_items, *open_items),
        notes=(*notes, *source.notes),
        data=data,
    )


_READABLE = "only generations 1 (config and model_params) and 4 (train_params) are read"
# other trainer -> keys that its files have; TorchTitan comes first, because its files also have the
# keys of Megatron
_OTHER_TRAINERS = {
    "TorchTitan": re.compile(r"torchtitan_root|use_generated_config|\w+_parallel_degree"),
    "Megatron-LM": re.compile(r"megatron_root|training_iterations|master_address"),
}


def _generation_of(data: Mapping[str, Json], text: str, where: str) -> str:
    """Return the generation of a configuration of MaxText.

    Raises:
        ConfigError: it is another kind of file, which the message names.
    """
    config = data.get("config")
    if isinstance(config, dict) and "model_params" in data:
        generation = "2" if config.keys() & {"xla_flags", "env_vars", "rdma_lib"} else "1"
    elif "train_params" in data:
        generation = "4"
    elif isinstance(data.get("training"), dict):
        generation = "3"
    elif "node_dict" in data:
        raise ConfigError(f"{where}: this is a cluster file of CVS: name it with --cvs-cluster")
    elif any(path[-1:] == ("kind",) for path, _ in leaves_of(dict(data))):
        raise ConfigError(
            f"{where}: this is a threshold file of CVS: name the configuration that refers to it"
        )
    else:
        first = re.search(r'"', text)
        line = text.count("\n", 0, first.start()) + 1 if first else 1
        raise ConfigError(
            f"{where}, line {line}: this is JSON, but not a CVS file for training: its keys are "
            f"{', '.join(sorted(data)[:6]) or 'none'}; {_READABLE}"
        )
    parts = {key: data.get(key) for key in ("config", "model_params", "train_params")}
    keys = {str(key) for path, _ in leaves_of(parts) for key in path}
    framework = str(data.get("framework", "")).lower()
    for trainer, pattern in _OTHER_TRAINERS.items():
        is_named = framework.startswith(trainer.lower().partition("-")[0])
        has_its_keys = "maxtext_config" not in keys and any(map(pattern.fullmatch, keys))
        if is_named or has_its_keys:
            raise ConfigError(
                f"{where}: this is a CVS file of {trainer}; only files of MaxText can be run here"
            )
    if generation not in ("1", "4"):
        raise ConfigError(
            f"{where}: this is a configuration of generation {generation} of CVS; {_READABLE}"
        )
    return generation


def _set_value(data: dict[str, Json], name: str, value: str, *, where: str) -> None:
    """Put a value of the user into the objects of a file; only its last key may be new.

    Raises:
        ConfigError: the file has no such path.
    """
    leaves = {path_text(path): path for path, _ in leaves_of(data)}
    path = leaves.get(name)
    if path is None:
        parent_name, _, key = name.rpartition(".")
        parents = {
            path_text(leaf_path[:depth]): leaf_path[:depth]
            for leaf_path in leaves.values()
            for depth in range(len(leaf_path))
        }
        parent = parents.get(parent_name)
        if parent is None:
            raise ConfigError.unknown("path", name, valid=leaves, where=f"--cvs-set ({where})")
        path = (*parent, key)
    container: Any = data
    for key_or_index in path[:-1]:
        container = container[key_or_index]
    if isinstance(container, list) and not isinstance(path[-1], int):
        raise ConfigError(f"--cvs-set {name}: {path_text(path[:-1])} is a list and has no keys")
    container[path[-1]] = value


_IMAGES = (("config", "container_image"), ("container", "image"))
# names of images with a digest:  rocm/jax:26.4@sha256:0f...   sha256:0f...
_PINNED = re.compile(r"(?:\S+@)?sha256:[0-9a-f]{64}")


def _open_items(
    leaves: tuple[Leaf, ...], source: Source, nodes: int | None, *, needs_digest: bool
) -> tuple[OpenItem, ...]:
    """Return the leaves that this run uses and that the user must still fill in."""
    open_items = []
    for leaf in leaves:
        is_node_count = leaf.path == ("config", "nnodes")
        if leaf.cls not in (USED, DIFFERENT) or (is_node_count and nodes is not None):
            continue
        text = leaf.value if isinstance(leaf.value, str) else ""
        wanted = leaf.text  # what CVS uses it for
        unfilled = PLACEHOLDER.search(source.filled(text))
        if unfilled:
            name = unfilled[1]
            wanted = f"a value without the placeholder {{{name}}}, which has no known value"
        is_no_count = is_node_count and not _is_count(leaf.value)
        lacks_digest = needs_digest and leaf.path in _IMAGES and not _PINNED.fullmatch(text)
        if lacks_digest:
            wanted = "the image with its digest, NAME@sha256:HEX; or give the run --xlatune-image"
        is_marked = any(has_change_mark(part) for part in (text, *leaf.path))
        if unfilled or is_no_count or lacks_digest or is_marked:  # only a marked value has a sample
            sample = sample_of(text) if is_marked and not (is_no_count or unfilled) else ""
            open_items.append(OpenItem(path=leaf.name, sample=sample, wanted=wanted))
    return tuple(open_items)


def _is_count(value: Json) -> bool:
    """Return whether a value is a whole number of at least 1."""
    number = typed(value)
    return isinstance(number, int) and not isinstance(number, bool) and number > 0


def _env_of(source: Source, *path: str) -> dict[str, str]:
    """Return the variables of an object, without those that only the launcher can set."""
    variables = {name: source.text(*path, name) for name in source.table(*path)}
    return {name: text for name, text in variables.items() if not is_set_by_launcher(name)}


# CVS writes flags without their dashes:  xla_gpu_autotune_level
_FLAG = re.compile(r"\w+")


def _flags_of(source: Source, *path: str) -> dict[str, str]:
    """Return the XLA flags of an object, by their names without dashes."""
    flags = {}
    for name in source.table(*path):
        if not _FLAG.fullmatch(name):
            raise source.error_at((*path, name), source.get(*path, name), "a flag without dashes")
        text = source.text(*path, name)
        # XLA removes quotes around a value, so "''" is the empty value
        is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
        flags[name] = text[1:-1] if is_quoted else text
    return flags


def _maxtext_of(source: Source, *path: str) -> dict[str, Json]:
    """Return the MaxText keys of an object with typed values, without open ones."""
    return {
        key: typed(source.filled(value))
        for key, value in source.table(*path).items()
        if not has_change_mark(value)
    }


_AXIS_NAMES = {
    "data": "DP",
    "fsdp": "FSDP",
    "tensor": "TP",
    "pipeline": "PP",
    "expert": "EP",
    "context": "CP",
    "sequence": "SP",
}
# names of axes in MaxText:  dcn_fsdp_parallelism
_AXIS_KEY = re.compile(r"(ici|dcn)_(\w+)_parallelism")


def _parallelism_of(
    source: Source, at: Path, maxtext: Mapping[str, Json], *, nodes: int | None, devices: int
) -> str:
    """Return the axes of a cell, such as `FSDP=16,TP=2`.

    They are "" if they depend on the number of nodes, and that is not known.

    The degree of an axis is its degree within a node (ici) times that between nodes (dcn); degrees
    of 1 are left out. A degree of -1 means the devices of a node, or the nodes, divided by the
    other degrees.

    Args:
        source: the file, for errors.
        at: the path of the keys in the file.
        maxtext: the MaxText keys of the cell.
        nodes: the number of nodes; None if it is not known.
        devices: the number of devices of a node.

    Raises:
        ConfigError: a degree is not a whole number, or two axes of one side are -1.
    """
    sides: dict[str, dict[str, int]] = {"ici": {}, "dcn": {}}
    for key, value in maxtext.items():
        match = _AXIS_KEY.fullmatch(key)
        degree = source.number((*at, key), value) if match else None
        if match is None or degree is None:
            continue
        if degree != int(degree) or degree == 0 or degree < -1:
            raise source.error_at((*at, key), value, "a degree from 1, or -1 for the rest")
        sides[match[1]][match[2]] = int(degree)
    # if no axis of a side is -1, MaxText gives the remaining devices to fsdp, and nodes to data
    sides["ici"].setdefault("fsdp", 1 if -1 in sides["ici"].values() else -1)
    sides["dcn"].setdefault("data", 1 if -1 in sides["dcn"].values() else -1)
    for side, count in (("ici", devices), ("dcn", nodes)):
        axes = sides[side]
        unset = [axis for axis, degree in axes.items() if degree == -1]
        if len(unset) > 1:
            names = ", ".join(f"{side}_{axis}_parallelism" for axis in unset)
            raise ConfigError(
                f"{source.where}: {path_text(at)}: {names} are -1, but only one axis of a side "
                "can be -1"
            )
        if unset:
            if count is None:
                return ""
            known = math.prod(degree for degree in axes.values() if degree != -1)
            axes[unset[0]] = max(count // known, 1)
    others = sorted((sides["ici"].keys() | sides["dcn"].keys()) - _AXIS_NAMES.keys())
    degrees = {
        axis: sides["ici"].get(axis, 1) * sides["dcn"].get(axis, 1)
        for axis in (*_AXIS_NAMES, *others)
    }
    parts = [
        f"{_AXIS_NAMES.get(axis, axis)}={degree}" for axis, degree in degrees.items() if degree > 1
    ]
    return ",".join(parts) or "DP=1"


def _make_cell(
    source: Source,
    at: Path,
    maxtext: dict[str, Json],
    *,
    nodes: int | None,
    devices: int = _DEFAULT_DEVICES,
    **fields: Any,
) -> CvsCell:
    """Return a cell with its axes; `at` is the path of its keys in the file."""
    for key in ("per_device_batch_size", "max_target_length"):
        source.number((*at, key), maxtext.get(key))  # raises where it is no number
    axes = _parallelism_of(source, at, maxtext, nodes=nodes, devices=devices)
    return CvsCell(maxtext=maxtext, nodes=nodes, gpus_per_node=devices, parallelism=axes, **fields)


def _read_generation_1(source: Source, nodes: int | None) -> tuple[CvsFile, dict[Path, str]]:
    """Return a file of generation 1, and path -> why this run does not use it."""
    modes = [key for key in MODES if source.table("model_params", key)]
    if len(modes) != 1:
        raise ConfigError(
            f"{source.where}: model_params has {' and '.join(modes) or 'no model'}, expected "
            "either single_node or multi_node with a model in it"
        )
    mode_key, mode = modes[0], MODES[modes[0]]
    others: dict[Path, str] = {}
    nodes_value = source.get("config", "nnodes")
    if mode == SINGLE:
        nodes = 1  # CVS runs a single-node file on each node separately
        others = {
            ("config", key): "ignored: CVS sets it in distributed runs only"
            for key in (*_DISTRIBUTED_KEYS, "nccl_ib_hca_list", "nic_type")
        }
    elif _is_count(nodes_value):
        file_nodes = source.count(("config", "nnodes"), nodes_value)
        if nodes not in (None, file_nodes):
            source.notes.append(f"config.nnodes is {file_nodes}, but the run has {nodes} nodes")
        nodes = nodes or file_nodes
    if source.get("config", "nccl_ib_hca"):
        others["config", "nccl_ib_hca_list"] = "ignored: CVS does not read it"
    steps = source.count(("config", "training_steps"), source.get("config", "training_steps"))
    checkpoints = source.truth("config", "enable_checkpointing")
    cells = []
    for model in source.table("model_params", mode_key):
        for gpu in source.table("model_params", mode_key, model):
            at = ("model_params", mode_key, model, gpu)
            keys = _maxtext_of(source, *at)
            passed = {key: value for key, value in keys.items() if is_passed_to_maxtext(key)}
            extra = {"model_name": model, "enable_checkpointing": checkpoints}
            cells.append(
                _make_cell(
                    source,
                    at,
                    {**passed, **_CONSTANT_KEYS, **extra},
                    nodes=nodes,
                    name=f"{model} {gpu}",
                    model=model,
                    gpu=gpu,
                    steps=steps,
                    xla_flags=_flags_of(source, *at, "xla_flags"),
                    thresholds=_thresholds_of_model(source, *at, "result_dict"),
                )
            )
    if not cells:
        raise ConfigError(f"{source.where}: model_params.{mode_key} has no model with a GPU in it")
    if len(cells) == 1:
        cells = [replace(cells[0], name="default")]
    container = ("config", "container_config")
    volumes = {
        source.filled(host): source.text(*container, "volume_dict", host)
        for host in source.table(*container, "volume_dict")
    }
    file = CvsFile(
        where=source.where,
        generation="1",
        mode=mode,
        image=sample_of(source.text("config", "container_image")),
        cells=tuple(cells),
        env=_environment_keys(source, mode) | _env_of(source, *container, "env_dict"),
        added=_ADDED | _ADDED_BY_MODE[mode],
        scripts=_SCRIPTS_1,
        container=Container(
            runtime="docker",
            mounts=tuple(f"{host}:{inside}" for host, inside in volumes.items()),
            devices=tuple(source.texts(*container, "device_list")),
            shm_size=source.text("config", "shm_size"),
            args=("--privileged",),  # CVS starts every container of this generation with it
        ),
        token_file=source.text("config", "hf_token_file"),
    )
    return file, others


def _environment_keys(source: Source, mode: str) -> dict[str, str]:
    """Return the variables that generation 1 has as keys of `config`."""
    variables: dict[str, str] = {}
    for key, names in VARIABLES.items():
        file_key = key
        if key == "nccl_ib_hca" and not source.get("config", key):
            file_key = "nccl_ib_hca_list"
        is_used = mode == DISTRIBUTED or key not in _DISTRIBUTED_KEYS
        if is_used and source.get("config", file_key) is not None:
            variables |= dict.fromkeys(names, source.text("config", file_key))
    return variables


def _thresholds_of_model(source: Source, *path: str) -> dict[str, Threshold]:
    """Return the thresholds of a model of generation 1, for the two metrics that CVS judges."""
    table = source.table(*path)
    return {
        name: Threshold(kind="min", value=source.number((*path, name), table[name]))
        for name in (TFLOPS, TOKENS)
        if name in table and not has_change_mark(table[name])
    }


def _read_generation_4(
    source: Source, nodes: int | None, find: FindThresholds
) -> tuple[CvsFile, dict[Path, str]]:
    """Return a file of generation 4, and path -> why this run does not use it."""
    config = ("train_params", "maxtext_config")
    env = _env_of(source, "container", "env")
    mode = DISTRIBUTED if "NCCL_IB_HCA" in env else SINGLE
    nodes = 1 if mode == SINGLE else nodes
    gpu = source.text("gpu_name")
    base = _maxtext_of(source, *config)
    if dtype := source.text("train_params", "dtype"):
        base.setdefault("dtype", dtype)
    name = source.text("threshold_json")
    thresholds = _thresholds_of(source, sample_of(name), find)
    sweeps, runs = source.table("sweeps"), source.texts("runs")
    for index, sweep in enumerate(runs if sweeps else ()):
        # refused, although CVS only warns about such a name and leaves the sweep out
        if sweep not in sweeps:
            where = f"{source.where}: runs[{index}]"
            raise ConfigError.unknown("sweep", sweep, valid=sweeps, where=where)
    open_items: list[OpenItem] = []
    cells = []
    names = [*dict.fromkeys(runs or sweeps)] if sweeps else ["default"]
    for sweep in names:
        at = ("sweeps", sweep) if sweeps else config
        sweep_keys = _maxtext_of(source, *at) if sweeps else {}
        maxtext = {**base, **_keys_in_sweep_name(source, sweep, gpu, open_items), **sweep_keys}
        maxtext = {key: value for key, value in maxtext.items() if not _is_set_for_trial(key)}
        steps_path = (*(at if "steps" in sweep_keys else config), "steps")
        cells.append(
            _make_cell(
                source,
                at,
                maxtext,
                nodes=nodes,
                devices=source.count(("gpus_per_node",), source.get("gpus_per_node"))
                or _DEFAULT_DEVICES,
                name=sweep,
                model=source.text("train_params", "model_id")
                or setting_text(base.get("model_name", "")),
                gpu=gpu,
                steps=source.count(steps_path, source.get(*steps_path)),
                xla_flags=_flags_of(source, "train_params", "xla_flags"),
                thresholds=thresholds.get(sweep, {}),
            )
        )
    if unknown := sorted(thresholds.keys() - (sweeps.keys() or {"default"})):
        source.notes.append(
            f"thresholds of {', '.join(map(repr, unknown))} belong to no sweep of this file "
            "and are not used; CVS refuses such a file if enforce_thresholds is true"
        )
    args = ("container", "runtime", "args")
    privileged = ["--privileged"] if source.truth(*args, "privileged") else []
    mounts = [text for text in source.texts(*args, "volumes") if not has_change_mark(text)]
    file = CvsFile(
        where=source.where,
        generation="4",
        mode=mode,
        image=sample_of(source.text("container", "image")),
        cells=tuple(cells),
        env=env,
        added=_ADDED | _ADDED_BY_MODE[mode],
        scripts=tuple(source.texts("train_params", "train_script_paths")) or _SCRIPTS_4,
        container=Container(
            runtime=source.text("container", "runtime", "name") or "docker",
            mounts=tuple(mounts),
            devices=tuple(source.texts(*args, "devices")),
            shm_size=source.text(*args, "shm-size"),
            args=(*privileged, *(f"--ulimit={text}" for text in source.texts(*args, "ulimit"))),
        ),
        enforce=source.truth("enforce_thresholds", default=True),
        threshold_name=sample_of(name),
        token_file=source.text("paths", "hf_token_file"),
        open_items=tuple(open_items[:1]),  # every sweep needs the same GPU
    )
    idle = sweeps.keys() - {cell.name for cell in cells}
    return file, {("sweeps", sweep): "ignored: this sweep does not run" for sweep in idle}


def _is_set_for_trial(key: str) -> bool:
    """Return whether the protocol or the launcher sets a key, and not the cell."""
    use = keys_of("4", "train_params", "maxtext_config").get(key, "")
    return key == "steps" or str(use).startswith(DROPPED)


# a part of the name of a sweep:  BS=5
_NAME_PART = re.compile(r"([A-Z_]+)=([^,\s;/]+)")


def _keys_in_sweep_name(
    source: Source, name: str, gpu: str, open_items: list[OpenItem]
) -> dict[str, Json]:
    """Return the MaxText keys that the name of a sweep sets by BS, SL and PRECISION.

    If the precision depends on an unknown GPU, an item is appended to `open_items`.

    Raises:
        ConfigError: the name has a word that CVS does not know.
    """
    keys: dict[str, Json] = {}
    for word, value in _NAME_PART.findall(name):
        where = f"{source.where}: sweeps.{name}"
        if word == "BS":
            keys["per_device_batch_size"] = typed(value)
        elif word == "SL":
            keys["max_target_length"] = typed(value)
        elif word != "PRECISION":
            raise ConfigError.unknown("word", word, valid=("BS", "SL", "PRECISION"), where=where)
        elif value.upper() == "BF16":
            keys["quantization"] = ""
        elif value.upper() == "FP8":
            keys["quantization"] = "fp8" if gpu.lower().startswith("mi35") else "nanoo_fp8"
            if "xx" in gpu.lower():
                wanted = f"the GPU: FP8 is fp8 from mi35x on, else nanoo_fp8; {gpu} may be either"
                open_items.append(OpenItem(path="gpu_name", sample="mi300x", wanted=wanted))
        else:
            raise ConfigError.unknown("precision", value, valid=("BF16", "FP8"), where=where)
    return keys


KINDS = ("min", "max", "max_ms", "info")  # the kinds of thresholds in the published files


def _thresholds_of(
    source: Source, name: str, find: FindThresholds
) -> dict[str, dict[str, Threshold]]:
    """Return cell -> metric -> threshold of the threshold file.

    If there is none, a note in `source` says so.

    Raises:
        ConfigError: there is no such kind of threshold, or a value is not a number.
    """
    found = find(name) if name else None
    if found is None:
        reason = f"there is no threshold file {name}" if name else "threshold_json names no file"
        source.notes.append(f"{reason}: no metric has a threshold")
        return {}
    where, text = found
    data, notes = objects_of(text, where=where)
    source.notes += notes
    thresholds = Source(data, where=where, words={})
    cells: dict[str, dict[str, Threshold]] = {}
    for cell in (key for key, table in thresholds.table().items() if isinstance(table, dict)):
        for metric in thresholds.table(cell):
            path = (cell, metric)
            kind, value = thresholds.text(*path, "kind"), thresholds.get(*path, "value")
            if kind not in KINDS:
                at = f"{where}: {path_text(path)}"
                raise ConfigError.unknown("kind of threshold", kind, valid=KINDS, where=at)
            threshold = Threshold(kind=kind, value=thresholds.number((*path, "value"), value))
            cells.setdefault(cell, {})[metric.removeprefix(PREFIX)] = threshold
    return cells
