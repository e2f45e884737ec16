"""Read CVS configurations (AMD's cluster validation suite) of generations 1 and 4 as `CvsFile`s.

Sources: the published configuration files and the loaders of CVS' JAX suites, 2025-08 to 2026-09.
Generation 1 has `config` and `model_params`, and 4 has `train_params`; 2 and 3 are refused. An open
value is an open item only if this run uses it.
"""

from __future__ import annotations

import getpass
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path as FilePath
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
from pytest_xlatune.guests.cvs.thresholds import Demand
from pytest_xlatune.guests.cvs.values import (
    DISTRIBUTED,
    NO_CONTAINER,
    PREFIX,
    SINGLE,
    TFLOPS,
    TOKENS,
    Container,
    CvsCell,
    CvsFile,
    OpenItem,
)
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.record import Json

_DEFAULT_DEVICES = 8  # devices of a node if the file does not give their number
_MODES = {"single_node": SINGLE, "multi_node": DISTRIBUTED}
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
# key of generation 1 that is a variable -> the names of the variable: the one that CVS exports, and
# the later one of Transformer Engine if there is one
_VARIABLES: Mapping[str, tuple[str, ...]] = {
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


def _is_set_by_launcher(name: str) -> bool:
    """Return whether only the launcher of a job can set a variable correctly."""
    return str(keys_of("4", "container", "env").get(name, "")).startswith(DROPPED)


def _is_passed_to_maxtext(name: str) -> bool:
    """Return whether CVS of generation 1 passes a key of a model to MaxText."""
    use = keys_of("1", "model_params", "*", "*", "*").get(name)
    return isinstance(use, str) and use.startswith(USED)


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


def run_options(options: Mapping[str, Any]) -> tuple[int | None, str, bool]:
    """Return the number of nodes and the runtime in options, and whether the image must be pinned.

    The number is None and the runtime "" if the options do not name them.
    """
    nodes = len(options.get("nodelist") or ()) or options.get("nodes") or None
    runtime = dict(options.get("container") or {}).get("runtime", "")
    if not isinstance(runtime, str):  # a list, where the key is given several times
        runtime = runtime[-1]
    return nodes, runtime, not options.get("image") and runtime != NO_CONTAINER


def read_cvs_file(
    path: FilePath,
    *,
    cluster: FilePath | None = None,
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
        ConfigError: a file cannot be read or is not a file of CVS, or a value has a wrong type.
    """
    user, count = _cluster(cluster) if cluster else ("", None)
    nodes = nodes or count
    data = objects_of(path)
    generation = _generation_of(data, path)
    for name, value in (values or {}).items():
        _set_value(data, name, value, path)
    source = Source(data, where=str(path), words={"user-id": user or _user()})
    if generation == "1":
        file, others = _read_generation_1(source, nodes)
    else:
        file, others = _read_generation_4(source, nodes, path.parent)
    leaves = account(data, generation, others)
    open_items = _open_items(leaves, source, nodes, needs_digest=needs_digest)
    return replace(
        file,
        leaves=leaves,
        open_items=(*file.open_items, *open_items),
        notes=tuple(source.notes),
    )


def _user() -> str:
    """Return the name of the user who runs this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user's id has no name on this machine
        return "root"


def _cluster(path: FilePath) -> tuple[str, int | None]:
    """Return the user that a cluster file names ("" if none), and the number of its nodes.

    Raises:
        ConfigError: it is not a cluster file, or an entry is not the name of a node.
    """
    source = Source(objects_of(path), where=str(path), words={})
    nodes = source.table("node_dict")
    # a published file has the template  {xx.xx.xx.xx|hostname}
    if not nodes or any("{" in name or has_change_mark(name) for name in nodes):
        raise ConfigError(
            f"{path}: its node_dict must have the names of the nodes; or leave the cluster file "
            "out and give their number"
        )
    user = source.text("username")
    return ("" if "{" in user else user), len(nodes)


# keys of the files of other trainers; some of these files have the objects of generation 1
_OTHER_TRAINERS = re.compile(
    r"megatron_root|training_iterations|master_address|torchtitan_root|\w+_parallel_degree"
)


def _generation_of(data: Mapping[str, Json], path: FilePath) -> str:
    """Return the generation of a configuration of MaxText.

    Raises:
        ConfigError: it is another kind of file.
    """
    keys = {str(key) for leaf_path, _ in leaves_of(dict(data)) for key in leaf_path}
    if "maxtext_config" not in keys and any(map(_OTHER_TRAINERS.fullmatch, keys)):
        raise ConfigError(
            f"{path}: this is a CVS file of Megatron-LM or TorchTitan; only files of MaxText can "
            "be run here"
        )
    config = data.get("config")
    is_generation_2 = isinstance(config, dict) and config.keys() & {
        *("xla_flags", "env_vars", "rdma_lib")
    }
    if isinstance(config, dict) and "model_params" in data and not is_generation_2:
        return "1"
    if "train_params" in data:
        return "4"
    raise ConfigError(
        f"{path}: this is no configuration of a training that can be read; expected a CVS file of "
        "generation 1 (config and model_params, without config.xla_flags) or 4 (train_params); "
        f"its keys are {', '.join(sorted(data)[:6]) or 'none'}"
    )


def _set_value(data: dict[str, Json], name: str, value: str, file: FilePath) -> None:
    """Put a value of the user into the objects of a file; only the last key of its path may be new.

    Raises:
        ConfigError: the file has no such path.
    """
    paths = {
        path_text(path[:depth]): path[:depth]
        for path, _ in leaves_of(data)
        for depth in range(len(path) + 1)
    }
    path = paths.get(name)
    if path is None:
        parent, _, key = name.rpartition(".")
        if parent not in paths:
            raise ConfigError.unknown("path", name, valid=paths, where=f"--cvs-set ({file})")
        path = (*paths[parent], key)
    container: Any = data
    for key_or_index in path[:-1]:
        container = container[key_or_index]
    can_hold_key = isinstance(container, list if isinstance(path[-1], int) else dict)
    if not can_hold_key:
        raise ConfigError(f"--cvs-set {name}: {path_text(path[:-1])} is no object and has no keys")
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
        if unfilled or is_no_count or lacks_digest or is_marked:
            # only a marked value has a sample
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
    return {name: text for name, text in variables.items() if not _is_set_by_launcher(name)}


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

    Raises:
        ConfigError: a degree is not a whole number, or two axes of one side are -1.
    """
    # if no axis of a side is -1, MaxText gives the remaining devices to fsdp, and nodes to data
    defaults = {"ici": "fsdp", "dcn": "data"}
    degrees: dict[str, int] = {}
    for side, count in (("ici", devices), ("dcn", nodes)):
        axes: dict[str, int] = {}
        for key, value in maxtext.items():
            match = _AXIS_KEY.fullmatch(key)
            degree = source.number((*at, key), value) if match and match[1] == side else None
            if match is None or degree is None:
                continue
            if degree != int(degree) or degree == 0 or degree < -1:
                raise source.error_at((*at, key), value, "a degree from 1, or -1 for the rest")
            axes[match[2]] = int(degree)
        if -1 not in axes.values():
            axes.setdefault(defaults[side], -1)
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
        for axis, degree in axes.items():
            degrees[axis] = degrees.get(axis, 1) * degree
    order = sorted(degrees, key=lambda axis: (*_AXIS_NAMES, axis).index(axis))
    parts = [f"{_AXIS_NAMES.get(axis, axis)}={degrees[axis]}" for axis in order]
    return ",".join(part for part in parts if not part.endswith("=1")) or "DP=1"


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
    modes = [key for key in _MODES if source.table("model_params", key)]
    if len(modes) != 1:
        raise ConfigError(
            f"{source.where}: model_params has {' and '.join(modes) or 'no model'}, expected "
            "either single_node or multi_node with a model in it"
        )
    mode_key, mode = modes[0], _MODES[modes[0]]
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
            passed = {key: value for key, value in keys.items() if _is_passed_to_maxtext(key)}
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
            args=(
                *(f"--device={device}" for device in source.texts(*container, "device_list")),
                *_shm_size(source.text("config", "shm_size")),
                "--privileged",  # CVS starts every container of this generation with it
            ),
        ),
        token_file=source.text("config", "hf_token_file"),
    )
    return file, others


def _shm_size(size: str) -> list[str]:
    """Return the option of a container for the size of /dev/shm; [] if there is no size."""
    return [f"--shm-size={size.lower()}"] if size else []


def _environment_keys(source: Source, mode: str) -> dict[str, str]:
    """Return the variables that generation 1 has as keys of `config`."""
    variables: dict[str, str] = {}
    for key, names in _VARIABLES.items():
        file_key = key
        if key == "nccl_ib_hca" and not source.get("config", key):
            file_key = "nccl_ib_hca_list"
        is_used = mode == DISTRIBUTED or key not in _DISTRIBUTED_KEYS
        if is_used and source.get("config", file_key) is not None:
            variables |= dict.fromkeys(names, source.text("config", file_key))
    return variables


def _thresholds_of_model(source: Source, *path: str) -> dict[str, Demand]:
    """Return the demands on a model of generation 1, for the two metrics that CVS judges."""
    table = source.table(*path)
    return {
        name: Demand(metric=name, bound="min", value=source.number((*path, name), table[name]))
        for name in (TFLOPS, TOKENS)
        if name in table and not has_change_mark(table[name])
    }


def _read_generation_4(
    source: Source, nodes: int | None, folder: FilePath
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
    thresholds = _thresholds_of(source, folder, sample_of(name))
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
            args=(
                *(f"--device={device}" for device in source.texts(*args, "devices")),
                *_shm_size(source.text(*args, "shm-size")),
                *privileged,
                *(f"--ulimit={text}" for text in source.texts(*args, "ulimit")),
            ),
        ),
        enforce=source.truth("enforce_thresholds", default=True),
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


_KINDS = ("min", "max", "max_ms", "info")  # the kinds of thresholds in the published files


def _thresholds_of(source: Source, folder: FilePath, name: str) -> dict[str, dict[str, Demand]]:
    """Return cell -> metric -> demand of the threshold file, which is in or below `folder`.

    If there is none, a note in `source` says so.

    Raises:
        ConfigError: there is no such kind of threshold, or a value is not a number.
    """
    is_outside = FilePath(name).is_absolute() or ".." in FilePath(name).parts
    try:
        is_missing = is_outside or not (folder / name).is_file()
    except (OSError, ValueError):  # the name is too long, or holds a NUL
        is_missing = True
    if is_missing:
        source.notes.append(f"threshold_json: there is no file {name!r}: no metric has a threshold")
        return {}
    where = str(folder / name)
    thresholds = Source(objects_of(folder / name), where=where, words={})
    cells: dict[str, dict[str, Demand]] = {}
    for cell in (key for key, table in thresholds.table().items() if isinstance(table, dict)):
        for metric in thresholds.table(cell):
            path = (cell, metric)
            kind, value = thresholds.text(*path, "kind"), thresholds.get(*path, "value")
            if kind not in _KINDS:
                at = f"{where}: {path_text(path)}"
                raise ConfigError.unknown("kind of threshold", kind, valid=_KINDS, where=at)
            limit = None if kind == "info" else thresholds.number((*path, "value"), value)
            name = metric.removeprefix(PREFIX)
            # the bound of max_ms is max: the name of the metric says that it is in milliseconds
            bound = "" if limit is None else kind[:3]
            demand = Demand(metric=name, bound=bound, value=limit)
            cells.setdefault(cell, {})[name] = demand
    return cells
