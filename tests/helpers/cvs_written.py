"""CVS files of generations 1 and 4, written here in their documented shapes, and their oddities.

None is a published file: the keys, spellings and places are, the values are ours.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Data = dict[str, Any]

TINY_KEYS: Data = {
    "model_size": "70",
    **{
        f"{side}_{axis}_parallelism": "1"
        for side in ("ici", "dcn")
        for axis in ("fsdp", "data", "sequence", "tensor", "pipeline")
    },
    "scan_layers": "true",
    "ici_fsdp_parallelism": "8",
    "dcn_fsdp_parallelism": "-1",
    "remat_policy": "full",
    "dtype": "bfloat16",
    "quantization": "",
    "per_device_batch_size": "2",
    "max_target_length": "8192",
    "skip_first_n_steps_for_profiler": "3",
    "mlp_activations": ["silu", "linear"],
    "normalization_layer_epsilon": "1.0e-5",
    "rope_max_timescale": "500_000",
    "precision": "TE_FP8",
}
FIRST_FLAGS: Data = {
    "xla_gpu_enable_cublaslt": "True",
    "xla_gpu_graph_level": "0",
    "xla_gpu_first_collective_call_warn_stuck_timeout_seconds": "300",
}


def first(*, multi: bool = False) -> Data:
    config: Data = {
        "container_image": "example/jax-training:v25.9",
        "nnodes": "<changeme> = number of nodes used",
        "coordinator_ip": "<changeme>" if multi else "localhost",
        "training_steps": "30",
        "nvte_ck_bwd_v3": "1",
        "xla_python_client_mem_fraction": ".93",
        "hf_token_file": "/shared/{user-id}/.hf_token",
        "shm_size": "256G",
        "_comments_data_cache_dir": "fill in <changeme> everywhere",
        "data_cache_dir": "/shared/{user-id}/cache",
        "container_config": {
            "device_list": ["/dev/dri", "/dev/kfd"],
            "volume_dict": {"/shared/{user-id}": "/shared/{user-id}"},
            "env_dict": {"JAX_COORDINATOR_IP": "<changeme>", "NNODES": "1", "MINE": "7"},
        },
    }
    if multi:
        config |= {
            "nccl_ib_hca_list": "<changeme>",
            "nccl_ib_hca": "<changeme>",
            "nccl_socket_ifname": "eno0 <changeme>",
            "nccl_ib_tc": "41",
        }
    gates = {"tflops_per_sec_per_gpu": "380", "tokens_per_sec_per_gpu": "800"}
    model = {**TINY_KEYS, "xla_flags": dict(FIRST_FLAGS), "result_dict": gates}
    mode = "multi_node" if multi else "single_node"
    return {"config": config, "model_params": {mode: {"llama3.1-70b": {"mi300x": model}}}}


def thresholds(*names: str, tflops: float = 380) -> Data:
    return {
        "_comment": "of <changeme>",
        **{
            name: {
                "training.tflops_per_sec_per_gpu": {"kind": "min", "value": tflops},
                "training.tokens_per_sec_per_gpu": {"kind": "min", "value": 800},
                "training.step_time_seconds": {"kind": "info", "value": None},
            }
            for name in names
        },
    }


def fourth(*, multi: bool = True) -> Data:
    env: Data = {"NCCL_DEBUG": "WARN", "JAX_COORDINATOR_PORT": "12345"}
    if multi:
        env |= {"NCCL_IB_HCA": "bnxt_re0 <changeme>", "NCCL_SOCKET_IFNAME": "eno0 <changeme>"}
    of_first = ("model_size", "precision")
    maxtext = {key: value for key, value in TINY_KEYS.items() if key not in of_first}
    return {
        "enforce_thresholds": False,
        "threshold_json": "tiny_threshold.json <changeme>",
        "paths": {"shared_fs": "/shared/{user-id}", "models_dir": "{shared_fs}/models"},
        "container": {
            "lifetime": "per_run",
            "image": "example/jax-training:v26.4 <changeme>",
            "runtime": {
                "name": "docker",
                "args": {
                    "network": "host",
                    "privileged": True,
                    "shm-size": "256G",
                    "ulimit": ["memlock=-1"],
                    "volumes": ["{paths.models_dir}:/models"],
                },
            },
            "env": env,
        },
        "gpu_name": "mi300x",
        "train_params": {
            "train_script_paths": ["src/MaxText/train.py", "MaxText/train.py"],
            "xla_flags": {"xla_gpu_autotune_level": "4"},
            "maxtext_config": {**maxtext, "model_name": "llama3.1-70b", "steps": 30},
        },
        "smoke": {"enabled": True, "steps": 5},
        "sweeps": {
            "_comment": "of <changeme>",
            "BS=2,PRECISION=BF16,SL=8192": {},
            "BS=5,PRECISION=FP8,SL=4096": {"remat_policy": "minimal"},
        },
        "runs": ["BS=2,PRECISION=BF16,SL=8192"],
    }


CLUSTER: Data = {
    "username": "{user-id}",
    "priv_key_file": "/shared/{user-id}/.ssh/id",
    "head_node_dict": {"mgmt_ip": "node001"},
    "node_dict": {
        f"node{number:03}": {"bmc_ip": "NA", "vpc_ip": f"node{number:03}"} for number in range(1, 5)
    },
}


def write(folder: Path, name: str, data: Data) -> Path:
    path = folder / name
    path.write_text(json.dumps(data, indent=2))
    return path
