"""Every key of a CVS file and what becomes of it, by generation: the accounting; its thresholds.

A table is as nested as the file. `Use` at a key is said of all that lies below it; `"*"` stands
for keys that have no entry. What no table knows is unknown.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from pytest_xlatune.guests.cvs._values import (
    COMMENT,
    DIFFERENT,
    DISTRIBUTED,
    IGNORED,
    METRICS,
    PREFIX,
    SINGLE,
    TFLOPS,
    TOKENS,
    UNKNOWN,
    USED,
    Leaf,
    Path,
    Source,
    Threshold,
    is_comment,
    is_open,
    leaves_of,
    typed,
    written,
)
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.record import Json


class Use(NamedTuple):
    """A class, and as what a leaf is used or why it is not."""

    cls: str
    text: str
    reaches: bool = True


Table = Mapping[str, "Use | Table"]

_LAUNCHER = Use(
    DIFFERENT, "comes from the launcher: the nodes of the job are known only there", reaches=False
)
_NOWHERE = Use(IGNORED, "CVS reads it nowhere")
_ENV = Use(USED, "environment")
_KEY = Use(USED, "MaxText key")
_RUN = Use(DIFFERENT, "set for each trial, so that two runs never share a folder", reaches=False)
_OTHER_MODE = Use(IGNORED, "of the other mode, which this run does not use")
_MULTI_ONLY = Use(IGNORED, "CVS sets it in distributed runs only")
_OWN_NAME = Use(DIFFERENT, "each attempt's container has a name of its own", reaches=False)
_SLURM = Use(DIFFERENT, "Slurm starts the tasks: no SSH", reaches=False)
_RDMA = Use(
    DIFFERENT,
    "no library is copied into the container: mount it where it is read",
    reaches=False,
)
_TOKEN = Use(
    DIFFERENT, "by reference: HF_TOKEN_PATH names it, its text is never read; mount its folder"
)

# variables that only the launcher of a job can set rightly
OF_THE_LAUNCHER = frozenset(
    {"JAX_COORDINATOR_IP", "JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_PORT", "NNODES"}
    | {"NODE_RANK", "JAX_PROCESS_INDEX", "LD_LIBRARY_PATH", "HF_TOKEN", "HF_HOME"}
)
_LAUNCHED: Table = {**dict.fromkeys(sorted(OF_THE_LAUNCHER), _LAUNCHER), "*": _ENV}

# single keys of generation 1 -> the variables they become; the later names of Transformer
# Engine stand beside the ones that CVS exports
SINGLE_KEYS: Mapping[str, tuple[str, ...]] = {
    "nccl_debug": ("NCCL_DEBUG",),
    "gpu_max_hw_queues": ("GPU_MAX_HW_QUEUES",),
    "nvte_ck_bwd_v3": ("NVTE_CK_BWD_V3", "NVTE_CK_USES_BWD_V3"),
    "nvte_ck_v3_bf16_cvt": ("NVTE_CK_V3_BF16_CVT", "NVTE_CK_HOW_V3_BF16_CVT"),
    "xla_python_client_mem_fraction": ("XLA_PYTHON_CLIENT_MEM_FRACTION",),
    "xla_gpu_executable_warn_stuck_timeout": ("XLA_GPU_EXECUTABLE_WARN_STUCK_TIMEOUT",),
}
DISTRIBUTED_KEYS: Mapping[str, tuple[str, ...]] = {
    each: (each.upper(),)
    for each in (
        *("nccl_ib_hca", "nccl_ib_gid_index", "nccl_ib_tc", "nccl_ib_sl", "nccl_socket_ifname"),
        *("gloo_socket_ifname", "nccl_proto", "nccl_checks_disable"),
    )
}

# what CVS adds to every run, by mode
ADDED: Mapping[str, str] = {
    "HSA_FORCE_FINE_GRAIN_PCIE": "1",
    "HIP_FORCE_DEV_KERNARG": "1",
    "NVTE_FUSED_ATTN": "1",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "1",
}
ADDED_BY_MODE: Mapping[str, Mapping[str, str]] = {
    SINGLE: {"NCCL_IB_DISABLE": "1", "NCCL_SHM_DISABLE": "0", "NCCL_P2P_DISABLE": "0"},
    DISTRIBUTED: {"NCCL_CROSS_NIC": "0"},
}

# keys of a model of generation 1 that reach the trainer, and constants that stand beside them
_AXES = [
    f"{side}_{axis}_parallelism"
    for side in ("ici", "dcn")
    for axis in ("fsdp", "data", "sequence", "tensor", "pipeline")
]
FIRST_KEYS = frozenset(
    {"attention", "dtype", "weight_dtype", "quantization", "quantize_kvcache", "kv_quant_axis"}
    | {"kv_quant_dtype", "checkpoint_is_quantized", "remat_policy", "use_iota_embed"}
    | {"scan_layers", "megablox", "logits_dot_in_fp32", "async_checkpointing", "dataset_type"}
    | {"per_device_batch_size", "max_target_length", "hf_path", "hf_train_files"}
    | {"tokenizer_path", "skip_first_n_steps_for_profiler", *_AXES}
)
CONSTANTS: Mapping[str, Json] = {
    "packing": True,
    "enable_goodput_recording": False,
    "monitor_goodput": False,
    "optimizer_memory_host_offload": False,
    "param_scan_axis": 1,
    "shardy": False,
    "hardware": "gpu",
}
ARCHITECTURE = frozenset(
    {"base_emb_dim", "base_mlp_dim", "base_num_query_heads", "base_num_kv_heads"}
    | {"base_num_decoder_layers", "head_dim", "mlp_activations", "vocab_size", "enable_dropout"}
    | {"logits_via_embedding", "normalization_layer_epsilon", "rope_max_timescale"}
    | {"decoder_block"}
)
NOWHERE_KEYS = frozenset(
    {"batch_size", "micro_batch_size", "sequence_length", "tensor_parallelism", "fsdp"}
    | {"pipeline_parallelism", "precision", "recompute", "model_size", "tokenizer_model"}
)
DROPPED_FLAGS = (
    "xla_gpu_first_collective_call_warn_stuck_timeout_seconds",
    "xla_gpu_first_collective_call_terminate_timeout_seconds",
)
# MaxText keys that a trial sets itself
OF_THE_TRIAL = frozenset({"run_name", "base_output_directory", "metrics_file"})
_WINDOW = Use(DIFFERENT, "steps of the profiler: set by the protocol where one is on")
_TRIAL: Table = {
    **dict.fromkeys(sorted(OF_THE_TRIAL), _RUN),
    "skip_first_n_steps_for_profiler": _WINDOW,
    "profiler_steps": _WINDOW,
    "profiler": Use(DIFFERENT, "off in a scored run; the protocol says when it is on"),
    "steps": Use(USED, "steps of a run"),
}


_FIRST_MODEL: Table = {
    **_TRIAL,
    **dict.fromkeys(sorted(FIRST_KEYS - _TRIAL.keys()), _KEY),
    **dict.fromkeys(
        sorted(ARCHITECTURE), Use(IGNORED, "CVS writes it into a file that nothing reads")
    ),
    **dict.fromkeys(sorted(NOWHERE_KEYS), _NOWHERE),
    **dict.fromkeys(
        sorted({*CONSTANTS, "max_segments_per_seq"}),
        Use(IGNORED, "CVS writes a constant of its own"),
    ),
    "xla_flags": {
        **dict.fromkeys(DROPPED_FLAGS, Use(DIFFERENT, "XLA_FLAGS as the file says; CVS drops it")),
        "*": Use(USED, "XLA_FLAGS"),
    },
    "result_dict": {
        **dict.fromkeys((TFLOPS, TOKENS), Use(USED, "threshold: min")),
        "*": Use(IGNORED, "CVS gates no such metric here"),
    },
}


def first_table(mode: str, *, has_hca: bool) -> Table:
    """Return the table of generation 1 for a mode; `has_hca`: whether nccl_ib_hca says it."""
    is_multi = mode == DISTRIBUTED
    listed = (
        Use(DIFFERENT, "read as nccl_ib_hca, which the file lacks; CVS reads it nowhere")
        if is_multi and not has_hca
        else _NOWHERE
    )
    own, other = ("multi_node", "single_node") if is_multi else ("single_node", "multi_node")
    return {
        "config": {
            "container_image": Use(USED, "image"),
            "container_name": _OWN_NAME,
            "container_config": {
                "device_list": Use(USED, "devices of the container"),
                "volume_dict": Use(USED, "mounts of the container"),
                "env_dict": _LAUNCHED,
            },
            "shm_size": Use(DIFFERENT, "size of /dev/shm; CVS has a fixed 256G"),
            "hf_token_file": _TOKEN,
            "distributed_training": Use(
                IGNORED, "CVS reads it nowhere: the shape of the file decides"
            ),
            "enable_checkpointing": _KEY,
            "training_steps": Use(USED, "steps of a run"),
            "nnodes": Use(USED, "number of nodes"),
            "coordinator_ip": _LAUNCHER,
            "nic_type": _RDMA if is_multi else _MULTI_ONLY,
            **dict.fromkeys(DISTRIBUTED_KEYS, _ENV if is_multi else _MULTI_ONLY),
            **dict.fromkeys(SINGLE_KEYS, _ENV),
            "nvte_ck_bwd_v3": Use(USED, "environment, also as NVTE_CK_USES_BWD_V3"),
            "nvte_ck_v3_bf16_cvt": Use(USED, "environment, also as NVTE_CK_HOW_V3_BF16_CVT"),
            "xla_gpu_executable_warn_stuck_timeout": Use(
                USED, "environment as CVS has it; XLA reads no such variable, only the flag"
            ),
            "nccl_ib_hca_list": listed,
            "log_dir": _RUN,
            **dict.fromkeys(("data_cache_dir", "mock_data", "dataset_source"), _NOWHERE),
        },
        "model_params": {own: {"*": {"*": _FIRST_MODEL}}, other: _OTHER_MODE},
    }


_RUNTIME: Table = {
    "name": Use(USED, "runtime of the container, where the site names no other"),
    "args": {
        "network": Use(USED, "option of the container"),
        "ipc": Use(USED, "option of the container"),
        "privileged": Use(USED, "option of the container"),
        "shm-size": Use(USED, "size of /dev/shm"),
        "shm_size": Use(USED, "size of /dev/shm"),
        "ulimit": Use(USED, "options of the container"),
        "volumes": Use(USED, "mounts of the container"),
        "volume": Use(USED, "mounts of the container"),
        "devices": Use(USED, "devices of the container"),
        "device": Use(USED, "devices of the container"),
        "*": Use(USED, "option of the container"),
    },
}
_TARGET = Use(USED, "metric: steps and seconds to the target")
_PICTURE = Use(DIFFERENT, "every step of the loss is taken, and no picture is drawn", reaches=False)
_CONTAINER: Table = {
    "lifetime": Use(DIFFERENT, "a container lives as long as its trial"),
    "name": _OWN_NAME,
    "image": Use(USED, "image"),
    "runtime": _RUNTIME,
    "env": _LAUNCHED,
}
_PATHS: Table = {
    "log_dir": _RUN,
    "temp_dir": _RUN,
    "hf_token_file": _TOKEN,
    "*": Use(USED, "fills placeholders"),
}
_CHECKOUT = Use(
    DIFFERENT, "the checkout inside the image is not changed; name an image that has it"
)
_FOURTH: Table = {
    "enforce_thresholds": Use(USED, "whether a threshold that is not met fails"),
    "threshold_json": Use(USED, "file of thresholds"),
    "paths": _PATHS,
    "container": _CONTAINER,
    "schema_version": Use(
        DIFFERENT, "not checked: the keys of a file say its generation", reaches=False
    ),
    "framework": Use(USED, "generation"),
    "scaling_baseline": dict.fromkeys(
        ("tokens_per_sec_total", "num_nodes"), Use(USED, "metric: scaling efficiency")
    ),
    "convergence": dict.fromkeys(("target_metric", "target_value"), _TARGET),
    "loss_curve": {
        "max_slope": Use(USED, "limit of the slope of the loss"),
        "enforce": Use(USED, "whether a slope above the limit fails"),
        **dict.fromkeys(("sample_every", "milestone_steps"), _PICTURE),
    },
    "checkpoint_resume": Use(
        DIFFERENT, "not run: checkpoint and resume is another test", reaches=False
    ),
    "smoke": Use(DIFFERENT, "not run: each trial is the smoke test of its own", reaches=False),
    "error_patterns": Use(
        USED, "pattern of failure in the logs of all nodes, beside our own; CVS drops its own then"
    ),
    "verify_dmesg": Use(DIFFERENT, "the kernel's log comes by the site's hook", reaches=False),
    "gpu_name": Use(USED, "GPU; decides what FP8 means"),
    "gpus_per_node": Use(USED, "devices of a node"),
    "train_params": {
        "model_id": Use(USED, "model"),
        "hf_model_id": Use(
            DIFFERENT, "nothing is downloaded: put the tokenizer where the nodes see it"
        ),
        "dtype": Use(USED, "MaxText key dtype"),
        "xla_flags": Use(USED, "XLA_FLAGS"),
        "train_script_paths": Use(USED, "script of the trainer: the first that exists"),
        "maxtext_config": {**_TRIAL, "*": _KEY},
        **dict.fromkeys(("maxtext_branch", "maxtext_root", "maxtext_install_cmd"), _CHECKOUT),
    },
    "runs": Use(USED, "which cells run"),
}
_CELL = Use(USED, "cell")
_IDLE = Use(IGNORED, "not among the sweeps that run")


def fourth_table(sweeps: Mapping[str, bool]) -> Table:
    """Return the table of generation 4; of each sweep it is said whether it runs."""
    cells = {name: _CELL if runs else _IDLE for name, runs in sweeps.items()}
    return {**_FOURTH, "sweeps": cells or _CELL}


THRESHOLD_TABLE: Table = {
    "kind": Use(USED, "kind of the threshold"),
    "value": Use(USED, "value of the threshold"),
    "tolerance_pct": Use(USED, "value of the threshold"),
    "reference": Use(USED, "value of the threshold"),
    "*": Use(USED, "remark of the threshold"),
}
# where a cluster file has its nodes
NODES_KEYS = ("node_dict", "nodes")
_NODES: Table = {
    "*": {
        "bmc_ip": Use(IGNORED, "no test of a training reads it"),
        "*": Use(USED, "the key is the name of a node; Slurm knows its address"),
    }
}
CLUSTER_TABLE: Table = {
    "username": Use(USED, "fills {user-id}"),
    "priv_key_file": _SLURM,
    "password": _SLURM,
    "head_node_dict": _SLURM,
    "head_node": _SLURM,
    **dict.fromkeys(NODES_KEYS, _NODES),
    "home_mount_dir_name": Use(USED, "fills {home-mount-dir}"),
    "node_dir_name": Use(USED, "fills {node-dir-name}"),
    "orchestrator": Use(DIFFERENT, "Slurm starts the tasks"),
    "container": Use(DIFFERENT, "the configuration's own container is started"),
    "env_vars": Use(DIFFERENT, "the configuration's own environment is set"),
    "*": Use(DIFFERENT, "Slurm starts the tasks"),
}


def account(data: Json, table: Table) -> tuple[Leaf, ...]:
    """Put every leaf of a file into one class, by the table of its generation."""
    found: list[Leaf] = []
    _walk(data, (), table, found)
    return tuple(found)


def _all(value: Json, path: Path, said: Use, found: list[Leaf]) -> None:
    """Put all below a key into one class, but the remarks among them."""
    if isinstance(value, dict) and value:
        for key, each in value.items():
            remark = Use(COMMENT, "a remark") if is_comment(key, value) else said
            _all(each, (*path, key), remark if said.cls != COMMENT else said, found)
    else:
        found += [
            Leaf(path=at, value=each, cls=said.cls, text=said.text, reaches=said.reaches)
            for at, each in leaves_of(value, path)
        ]


def _walk(value: Json, path: Path, table: Table, found: list[Leaf]) -> None:
    if not isinstance(value, dict) or not value:
        said = table.get("*")
        fits = not table or not isinstance(value, dict)
        text = "an object is expected here" if fits else "nothing stands here"
        known = said if isinstance(said, Use) else Use(UNKNOWN if fits else IGNORED, text)
        _all(value, path, known, found)
        return
    for key, each in value.items():
        at = (*path, key)
        if key not in table and is_comment(key, value):
            _all(each, at, Use(COMMENT, "a remark"), found)
            continue
        said = table.get(key, table.get("*"))
        if isinstance(said, Use):
            _all(each, at, said, found)
        elif said is not None:
            _walk(each, at, said, found)
        else:
            near = difflib.get_close_matches(key, table, n=1)
            where = written(path) or "the file"
            hint = f"; did you mean {near[0]}?" if near else ""
            _all(each, at, Use(UNKNOWN, f"no key of {where} that CVS has{hint}"), found)


KINDS = ("min", "max", "max_ms", "min_tok_s", "within", "min_ratio", "info")
_WRAPPERS = frozenset({"schema_version", "framework", "gpu_arch", "gpu_name", "model"})


def is_thresholds(data: Mapping[str, Json]) -> bool:
    """Whether objects are those of a threshold file."""
    return next(_found(data, ()), None) is not None


def _found(value: Json, path: Path) -> Iterator[tuple[Path, dict[str, Json]]]:
    if not isinstance(value, dict):
        return
    if isinstance(value.get("kind"), str) and path:
        yield path, value
        return
    for key, each in value.items():
        if not is_comment(key):
            yield from _found(each, (*path, key))


def read_thresholds(source: Source) -> dict[str, dict[str, Threshold]]:
    """Return cell -> metric -> threshold.

    Raises:
        ConfigError: a kind that does not exist, a value that is no number.
    """
    cells: dict[str, dict[str, Threshold]] = {}
    for path, entry in _found(source.data, ()):
        kind = entry["kind"]
        if kind not in KINDS:
            where = f"{source.where}: {written(path)}"
            raise ConfigError.unknown("kind of threshold", str(kind), valid=KINDS, where=where)
        at = (*path, "value")
        value = source.as_number(at, entry.get("value")) if kind != "info" else None
        raw = entry.get("value")
        if kind == "info" and isinstance(raw, int | float) and not isinstance(raw, bool):
            value = raw
        name = str(path[-2]) if len(path) > 1 else "default"
        demand = Threshold(kind=str(kind), value=value, path=written(path))
        if value is not None and kind in ("within", "min_ratio"):
            demand = _with_reference(source, path, entry, demand)
        cells.setdefault(name, {})[str(path[-1])] = demand
    return cells


def _with_reference(
    source: Source, path: Path, entry: Mapping[str, Json], demand: Threshold
) -> Threshold:
    """Return a threshold with what it is measured against.

    Raises:
        ConfigError: that is missing, or is none that CVS has.
    """
    if demand.kind == "within":
        at = (*path, "tolerance_pct")
        tolerance = source.as_number(at, entry.get("tolerance_pct"))
        if tolerance is None or tolerance <= 0:
            raise source.wrong(at, entry.get("tolerance_pct"), "percent above 0")
        return replace(demand, tolerance_pct=tolerance)
    at, said = (*path, "reference"), entry.get("reference")
    if isinstance(said, str) and not isinstance(typed(said), int | float):
        name = said.removeprefix(PREFIX)
        if name not in METRICS:
            where = f"{source.where}: {written(at)}"
            raise ConfigError.unknown("metric", said, valid=METRICS, where=where)
        return replace(demand, reference=name)
    number = source.as_number(at, said)
    if number is None:
        raise source.wrong(at, said, "a number, or the name of another metric")
    return replace(demand, reference=number)


def result_thresholds(source: Source, path: Path) -> dict[str, Threshold]:
    """Return the two metrics that CVS gates of a model's result_dict.

    Raises:
        ConfigError: a value is no number.
    """
    table = source.table(*path, "result_dict")
    return {
        name: Threshold(
            kind="min",
            value=source.as_number((*path, "result_dict", name), table[name]),
            path=written((*path, "result_dict", name)),
        )
        for name in (TFLOPS, TOKENS)
        if name in table and not is_open(table[name])
    }


def threshold_leaves(data: dict[str, Json]) -> tuple[Leaf, ...]:
    """Put every leaf of a threshold file into one class."""
    entries = [path for path, _ in _found(data, ())]
    found = []
    for path, value in leaves_of(data):
        entry = next((each for each in entries if path[: len(each)] == each), None)
        if any(isinstance(key, str) and is_comment(key) for key in path):
            said = Use(COMMENT, "a remark")
        elif entry is not None:
            known = THRESHOLD_TABLE.get(str(path[len(entry)]), THRESHOLD_TABLE["*"])
            said = known if isinstance(known, Use) else Use(UNKNOWN, "")
        elif path and path[0] in _WRAPPERS:
            said = Use(USED, "names what the thresholds are of")
        else:
            said = Use(UNKNOWN, "no threshold: it has no kind")
        found.append(Leaf(path=path, value=value, cls=said.cls, text=said.text))
    return tuple(found)
