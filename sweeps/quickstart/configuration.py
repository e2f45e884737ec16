"""The trainer's arguments: defaults < config.yml < M_<KEY> of the environment < key=value.

An argument that would not be honoured is an error.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

AXES = ("data", "pipeline", "fsdp", "tensor")


class ConfigError(Exception):
    """An argument that is unknown, malformed or would not be honoured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Every key, its type and its default. Keys that MaxText has mean what they mean there."""

    run_name: str = "quickstart"
    base_output_directory: str = ""
    hardware: str = "cpu"
    model_name: str = "default"
    skip_jax_distributed_system: bool = False
    jax_distributed_heartbeat_timeout_seconds: int = 100
    steps: int = 40
    log_config: bool = True
    metrics_file: str = ""
    jax_cache_dir: str = ""
    abort_on_nan_loss: bool = True
    # parallelism: dcn_ and ici_ degrees of an axis multiply; one of all may be -1, the rest
    dcn_data_parallelism: int = 1
    dcn_pipeline_parallelism: int = 1
    dcn_fsdp_parallelism: int = 1
    dcn_tensor_parallelism: int = 1
    ici_data_parallelism: int = 1
    ici_pipeline_parallelism: int = 1
    ici_fsdp_parallelism: int = -1
    ici_tensor_parallelism: int = 1
    num_layers_per_pipeline_stage: int = -1
    num_pipeline_microbatches: int = -1
    # data
    dataset_type: str = "synthetic"
    per_device_batch_size: float = 2.0
    max_target_length: int = 64
    # model
    base_emb_dim: int = 128
    base_mlp_dim: int = 512
    base_num_decoder_layers: int = 4
    base_num_query_heads: int = 4
    head_dim: int = 32
    vocab_size: int = 512
    dtype: str = "float32"
    scan_layers: bool = True
    remat_policy: str = "none"
    # optimizer: AdamW; 1e30 is the honest way to a NaN
    learning_rate: float = 1e-3
    adam_b1: float = 0.9
    adam_b2: float = 0.95
    adam_eps: float = 1e-8
    adam_weight_decay: float = 0.1
    # profiler
    profiler: str = ""
    skip_first_n_steps_for_profiler: int = 10
    profiler_steps: int = 3
    hide_profiler_step_metric: bool = False
    upload_all_profiler_results: bool = False
    # what this trainer does not do; the keys exist so that a launcher may say so
    enable_checkpointing: bool = False
    eval_interval: int = -1

    def __post_init__(self) -> None:
        for key, allowed in CHOICES.items():
            if getattr(self, key) not in allowed:
                raise ConfigError(
                    f"{key}={getattr(self, key)}: this trainer honours only "
                    f"{', '.join(map(repr, allowed))}"
                )
        for key in POSITIVE:
            if getattr(self, key) <= 0:
                raise ConfigError(f"{key}={getattr(self, key)}: expected more than 0")
        if self.profiler and not self.base_output_directory:
            raise ConfigError("profiler=xplane: base_output_directory= is empty, name a folder")
        if self.profiler and self.profile_end > self.steps:
            raise ConfigError(
                f"profiler=xplane: the window ends before step {self.profile_end}, but steps="
                f"{self.steps}; lower skip_first_n_steps_for_profiler or profiler_steps"
            )

    @property
    def profile_end(self) -> int:
        """The first step after the profiled ones."""
        return self.skip_first_n_steps_for_profiler + self.profiler_steps

    def degree(self, axis: str, fabric: str) -> int:
        """Return the degree of one axis within (`ici`) or between (`dcn`) the slices."""
        return int(getattr(self, f"{fabric}_{axis}_parallelism"))


CHOICES: Mapping[str, tuple[Any, ...]] = {
    "hardware": ("cpu", "gpu", "gpu_multiprocess"),
    "model_name": ("default", "quickstart"),
    "dataset_type": ("synthetic",),
    "dtype": ("float32", "bfloat16"),
    "remat_policy": ("none", "full"),
    "profiler": ("", "xplane"),
    "enable_checkpointing": (False,),
    "eval_interval": (-1, 0),
}
POSITIVE = (
    "steps", "per_device_batch_size", "max_target_length", "base_emb_dim", "base_mlp_dim",
    "base_num_decoder_layers", "base_num_query_heads", "head_dim", "vocab_size", "profiler_steps",
)  # fmt: skip
FIELDS = {field.name: field for field in dataclasses.fields(Config)}


def parse_bool(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


PARSERS: Mapping[str, Callable[[str], Any]] = {
    "bool": parse_bool, "int": int, "float": float, "str": str,
}  # fmt: skip


def parse_value(key: str, text: str, where: str) -> Any:
    """Read the text of a value as the type of its key."""
    if key not in FIELDS:
        nearest = difflib.get_close_matches(key, FIELDS, n=1, cutoff=0)[0]
        raise ConfigError(
            f"Key {key} ({where}) is no key of this trainer; the nearest is {nearest}"
        )
    kind = str(FIELDS[key].type)
    try:
        return PARSERS[kind](text)
    except (KeyError, ValueError):
        raise ConfigError(f"{key}={text} ({where}): expected a value of type {kind}") from None


def load_config(args: Sequence[str], environ: Mapping[str, str]) -> Config:
    """Put the configuration together; a key by both M_<KEY> and argument is an error.

    Raises:
        ConfigError: naming the key, where it was found and what was expected.
    """
    values: dict[str, Any] = {}
    rest = list(args)
    if rest and rest[0].endswith((".yml", ".yaml")):
        path = rest.pop(0)
        try:
            loaded = YAML(typ="safe").load(Path(path)) or {}
        except (OSError, YAMLError) as error:
            raise ConfigError(f"{path}: {error}") from error
        for key, value in loaded.items():
            values[key] = parse_value(key, "" if value is None else str(value), path)
    by_environ = {name[2:].lower(): text for name, text in environ.items() if name[:2] == "M_"}
    for key, text in by_environ.items():
        values[key] = parse_value(key, text, f"variable M_{key.upper()}")
    for arg in rest:
        key, equals, text = arg.partition("=")
        if not equals:
            raise ConfigError(f"argument {arg!r}: expected key=value")
        if key in by_environ:
            raise ConfigError(f"{key} is given by both the variable M_{key.upper()} and {arg!r}")
        values[key] = parse_value(key, text, "argument")
    return Config(**values)
