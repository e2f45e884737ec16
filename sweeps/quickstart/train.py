"""Train a small decoder-only transformer on synthetic tokens, in the manner of MaxText.

    python train.py [config.yml] key=value ...

Real JAX, real XLA flags, real traces and dumps, on forced host devices of a CPU or on GPUs, in one
process or several. What a harness sees is MaxText's: its arguments, its log, its metrics file,
its profiler folder. An argument that would not be honoured is an error. Run with
`log_config=true` to see every key and its value.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import difflib
import inspect
import json
import logging
import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

log = logging.getLogger("train")

AXES = ("data", "pipeline", "fsdp", "tensor")
BATCH = ("data", "fsdp")  # the axes over which sequences are spread


class ConfigError(Exception):
    """An argument that is unknown, malformed or would not be honoured."""


class NanLossError(Exception):
    """The loss went NaN, and `abort_on_nan_loss` is set."""


# --- configuration: defaults < config.yml < M_<KEY> of the environment < key=value ---------------


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


# --- what the log says before the first step ------------------------------------------------------

# Only what changes speed; a log is read by many, so nothing else of the environment goes in.
# TF_CPP_, but not the TF_VAR_ of another tool
SHOWN = re.compile(
    r"(XLA|LIBTPU|NCCL|RCCL|JAX|HSA|HIP|ROCR|GPU|CUDA|OMP|NVTE|UCX|MKL|TF_(CPP|XLA|GPU|CUDNN))_.*|NPROC"
)
SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|_KEY$|API_?KEY")


def environment_lines(environ: Mapping[str, str]) -> Iterator[str]:
    """List the variables that change speed as sorted NAME=VALUE lines, one line each."""
    for name, value in sorted(environ.items()):
        if SHOWN.fullmatch(name) and not SECRET.search(name):
            yield f"{name}={' '.join(value.splitlines())}"


class AbslFormatter(logging.Formatter):
    """The prefix of absl's log: `I1120 08:58:31.510559 139728751639424 train.py:265] `."""

    def format(self, record: logging.LogRecord) -> str:
        """Put the prefix before the message."""
        when = dt.datetime.fromtimestamp(record.created).astimezone()
        letter = "F" if record.levelno == logging.CRITICAL else record.levelname[0]
        return (
            f"{letter}{when:%m%d %H:%M:%S.%f} {threading.get_ident()} "
            f"{record.filename}:{record.lineno}] {record.getMessage()}"
        )


def log_memory(label: str) -> None:
    log.info("")
    log.info("Memstats: %s:", label)
    for device in jax.local_devices():
        stats = device.memory_stats()
        if not stats or "bytes_limit" not in stats:
            log.info("\tMemstats unavailable, error: %s reports none", device)
            continue
        used, limit = stats["bytes_in_use"] / 2**30, stats["bytes_limit"] / 2**30
        log.info("\tUsing (GB) %.2f / %.2f (%f%%) on %s", used, limit, 100 * used / limit, device)


def log_compiled_memory(compiled: Any) -> None:
    stats = compiled.memory_analysis()
    if stats is None:
        return
    sizes = {
        "Output": stats.output_size_in_bytes,
        "Temp": stats.temp_size_in_bytes,
        "Argument": stats.argument_size_in_bytes,
        "Host temp": stats.host_temp_size_in_bytes,
    }
    total = sum(sizes.values()) - stats.alias_size_in_bytes
    parts = ", ".join(f"{name} size: {size / 2**30:.3f} GB" for name, size in sizes.items())
    log.info("Total memory size: %.3f GB, %s", total / 2**30, parts)


# --- devices and processes ------------------------------------------------------------------------


def start_jax(config: Config, environ: Mapping[str, str]) -> None:
    """Choose the platform and the compile cache, and join the other processes if there are any."""
    if config.hardware == "cpu":
        jax.config.update("jax_platforms", "cpu")
    if config.jax_cache_dir:
        jax.config.update("jax_compilation_cache_dir", config.jax_cache_dir)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    if "--xla_dump_to" in environ.get("XLA_FLAGS", ""):
        # a module that comes out of the cache is not compiled, and so not dumped
        jax.config.update("jax_enable_compilation_cache", val=False)
    if config.skip_jax_distributed_system:
        return
    if config.hardware == "gpu_multiprocess":
        jax.distributed.initialize(**heartbeat(config))  # finds Slurm by itself
        return
    for contract in CONTRACTS:
        if contract[1] in environ:
            join(contract, environ, heartbeat(config))
            return


# who sets them: JAX's own names, and those of Slurm scripts. Address, count, index, port
CONTRACTS = (
    ("JAX_COORDINATOR_ADDRESS", "JAX_PROCESS_COUNT", "JAX_PROCESS_ID"),
    ("JAX_COORDINATOR_IP", "NNODES", "NODE_RANK", "JAX_COORDINATOR_PORT"),
)


def heartbeat(config: Config) -> dict[str, int]:
    """Return how long the other processes may be silent, as JAX takes it, if a user says so.

    Raises:
        ConfigError: this JAX cannot be told.
    """
    limit_s = config.jax_distributed_heartbeat_timeout_seconds
    if limit_s == FIELDS["jax_distributed_heartbeat_timeout_seconds"].default:
        return {}
    if "heartbeat_timeout_seconds" not in inspect.signature(jax.distributed.initialize).parameters:
        raise ConfigError(
            f"jax_distributed_heartbeat_timeout_seconds={limit_s}: JAX {jax.__version__} takes none"
        )
    return {"heartbeat_timeout_seconds": limit_s}


def join(contract: Sequence[str], environ: Mapping[str, str], options: Mapping[str, int]) -> None:
    """Join the processes that the variables of a contract name; one process needs no joining.

    Raises:
        ConfigError: a variable of the contract is missing, or is no number.
    """
    if environ[contract[1]] == "1":
        return
    try:
        address, count, index, *port = (environ[name] for name in contract)
        numbers = int(count), int(index)
    except KeyError as missing:
        raise ConfigError(f"{contract[1]} is set, but {missing} is not") from None
    except ValueError as error:
        raise ConfigError(f"{contract[1]} or {contract[2]}: {error}") from None
    jax.distributed.initialize(":".join([address, *port]), *numbers, **options)


def build_mesh(config: Config) -> Mesh:
    """Lay the devices out by the axes; degrees between slices vary slowest.

    Raises:
        ConfigError: the degrees do not multiply to the devices.
    """
    devices = jax.devices()
    degrees = [config.degree(axis, fabric) for fabric in ("dcn", "ici") for axis in AXES]
    known = math.prod(degree for degree in degrees if degree != -1)
    if degrees.count(-1) == 1 and known > 0 and len(devices) % known == 0:
        degrees[degrees.index(-1)] = len(devices) // known
    if any(degree < 1 for degree in degrees) or math.prod(degrees) != len(devices):
        named = ", ".join(
            f"{fabric}_{axis}={config.degree(axis, fabric)}"
            for fabric in ("dcn", "ici")
            for axis in AXES
            if config.degree(axis, fabric) != 1
        )
        raise ConfigError(
            f"Number of devices {len(devices)} does not match the product of the DCN and ICI "
            f"parallelism {known} ({named or 'every axis is 1'}; one axis may be -1)"
        )
    half = len(AXES)
    interleaved = [axis + fabric for axis in range(half) for fabric in (0, half)]
    sizes = [degrees[axis] * degrees[half + axis] for axis in range(half)]
    return Mesh(np.array(devices).reshape(degrees).transpose(interleaved).reshape(sizes), AXES)


# --- the model ------------------------------------------------------------------------------------

Tree = dict[str, Any]
# weight -> the axis each of its dimensions is spread over; layers are stacked in dimension 0
SPECS: Mapping[str, tuple[str | None, ...]] = {
    "embed": ("tensor", "fsdp"),
    "position": (None, "fsdp"),
    "qkv": ("pipeline", "fsdp", None, "tensor", None),
    "attention_out": ("pipeline", "tensor", None, "fsdp"),
    "mlp_in": ("pipeline", "fsdp", "tensor"),
    "mlp_out": ("pipeline", "tensor", "fsdp"),
    "attention_norm": ("pipeline", "fsdp"),
    "mlp_norm": ("pipeline", "fsdp"),
    "final_norm": ("fsdp",),
    "unembed": ("fsdp", "tensor"),
}
STACKED = tuple(name for name, spec in SPECS.items() if spec[0] == "pipeline")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The transformer of a configuration on a mesh.

    Attributes:
        config: the sizes.
        mesh: the devices by axis.
        stages: pipeline stages; 1 is no pipeline.
        microbatches: into how many parts a pipeline cuts the global batch.
        batch: sequences of the global batch.
    """

    config: Config
    mesh: Mesh
    stages: int
    microbatches: int
    batch: int

    @classmethod
    def build(cls, config: Config, mesh: Mesh) -> Model:
        """Check the sizes against the mesh.

        Raises:
            ConfigError: a size that an axis does not divide.
        """
        stages = mesh.shape["pipeline"]
        wanted = config.num_pipeline_microbatches
        model = cls(
            config=config,
            mesh=mesh,
            stages=stages,
            microbatches=stages if wanted == -1 else wanted,
            batch=round(config.per_device_batch_size * mesh.size),
        )
        model.check()
        return model

    def check(self) -> None:
        """Refuse what could not be spread evenly, or would silently mean something else."""
        config, shape = self.config, self.mesh.shape
        if self.batch != config.per_device_batch_size * self.mesh.size:
            raise ConfigError(
                f"per_device_batch_size={config.per_device_batch_size} on {self.mesh.size} "
                "devices is no whole number of sequences"
            )
        layers = config.num_layers_per_pipeline_stage
        if layers not in {-1, config.base_num_decoder_layers // self.stages}:
            raise ConfigError(
                f"num_layers_per_pipeline_stage={layers} with {config.base_num_decoder_layers} "
                f"layers on {self.stages} stages would need a circular pipeline, which this "
                "trainer has not"
            )
        if self.stages == 1 and self.microbatches != 1:
            raise ConfigError(
                f"num_pipeline_microbatches={self.microbatches} without a pipeline axis"
            )
        if self.microbatches < 1 or self.batch % self.microbatches:
            raise ConfigError(
                f"num_pipeline_microbatches={self.microbatches} does not divide the global batch "
                f"of {self.batch} sequences"
            )
        spread = shape["data"] * shape["fsdp"]
        for what, size, axis, degree in (
            ("base_emb_dim", config.base_emb_dim, "fsdp", shape["fsdp"]),
            ("base_num_decoder_layers", config.base_num_decoder_layers, "pipeline", self.stages),
            ("base_num_query_heads", config.base_num_query_heads, "tensor", shape["tensor"]),
            ("base_mlp_dim", config.base_mlp_dim, "tensor", shape["tensor"]),
            ("vocab_size", config.vocab_size, "tensor", shape["tensor"]),
            ("sequences of a microbatch", self.batch // self.microbatches, "data x fsdp", spread),
        ):
            if size % degree:
                raise ConfigError(f"{what} {size} is not divisible by {axis} parallelism {degree}")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every weight."""
        config = self.config
        layers, emb, mlp = config.base_num_decoder_layers, config.base_emb_dim, config.base_mlp_dim
        heads, head = config.base_num_query_heads, config.head_dim
        return {
            "embed": (config.vocab_size, emb),
            "position": (config.max_target_length, emb),
            "qkv": (layers, emb, 3, heads, head),
            "attention_out": (layers, heads, head, emb),
            "mlp_in": (layers, emb, mlp),
            "mlp_out": (layers, mlp, emb),
            "attention_norm": (layers, emb),
            "mlp_norm": (layers, emb),
            "final_norm": (emb,),
            "unembed": (emb, config.vocab_size),
        }

    @property
    def parameters(self) -> int:
        """The number of weights."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def tokens(self) -> int:
        """Tokens that have a target, in the global batch."""
        return self.batch * self.config.max_target_length

    @property
    def step_tflops(self) -> tuple[float, float]:
        """TFLOPs of a device and step: matrix products of weights, and of causal attention.

        A product of n weights costs 2n per token forward, and twice that backward. Attention is
        two products of T x T x heads x head, of which causality leaves one half.
        """
        config = self.config
        idle = ("embed", "position", "attention_norm", "mlp_norm", "final_norm")
        weights = sum(math.prod(shape) for name, shape in self.shapes.items() if name not in idle)
        width = config.base_num_query_heads * config.head_dim
        attention = 2 * config.max_target_length * width * config.base_num_decoder_layers
        scale = 3 * self.tokens / self.mesh.size / 1e12
        return 2 * weights * scale, attention * scale

    def sharding(self, *spec: Any) -> NamedSharding:
        """Return a sharding of this mesh."""
        return NamedSharding(self.mesh, PartitionSpec(*spec))

    def state_shardings(self) -> Tree:
        """Return the sharding of every leaf of the train state."""
        weights = {name: self.sharding(*spec) for name, spec in SPECS.items()}
        return {"params": weights, "mu": weights, "nu": weights, "step": self.sharding()}

    def place(self, value: np.ndarray[Any, Any], sharding: NamedSharding) -> jax.Array:
        """Spread a host's array, which every process holds, over the devices."""
        return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

    def initial_state(self) -> Tree:
        """Make the train state on the host: the same whatever the mesh and the XLA flags."""
        draw = np.random.default_rng(seed=0)

        def weight(name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
            if name.endswith("_norm"):
                return np.ones(shape, np.float32)
            fan_in = self.config.base_mlp_dim if name == "mlp_out" else self.config.base_emb_dim
            return draw.standard_normal(shape, np.float32) / np.float32(math.sqrt(fan_in))

        def zeros(_: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
            return np.zeros(shape, np.float32)

        shardings = self.state_shardings()
        state: Tree = {
            part: {
                name: self.place(make(name, shape), shardings[part][name])
                for name, shape in self.shapes.items()
            }
            for part, make in (("params", weight), ("mu", zeros), ("nu", zeros))
        }
        return state | {"step": self.place(np.zeros((), np.int32), shardings["step"])}

    def synthetic_batch(self) -> Tree:
        """Make the one batch that every step trains on."""
        shape = (self.batch, self.config.max_target_length + 1)
        tokens = np.random.default_rng(seed=1).integers(0, self.config.vocab_size, shape, np.int32)
        return {
            "inputs": self.place(tokens[:, :-1], self.sharding(BATCH)),
            "targets": self.place(tokens[:, 1:], self.sharding(BATCH)),
        }

    def layer(self, x: jax.Array, weights: Tree) -> jax.Array:
        """Apply one decoder layer to activations [batch, time, emb]."""
        weights = jax.tree.map(lambda weight: weight.astype(x.dtype), weights)
        h = rms_norm(x, weights["attention_norm"])
        q, k, v = jnp.einsum("bte,esnh->sbtnh", h, weights["qkv"])
        scores = jnp.einsum("btnh,bsnh->bnts", q, k) / math.sqrt(self.config.head_dim)
        causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        scores = jnp.where(causal, scores.astype(jnp.float32), -1e30)
        mixed = jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores).astype(x.dtype), v)
        x = x + jnp.einsum("btnh,nhe->bte", mixed, weights["attention_out"])
        h = jax.nn.gelu(rms_norm(x, weights["mlp_norm"]) @ weights["mlp_in"])
        x = x + h @ weights["mlp_out"]
        return jax.lax.with_sharding_constraint(x, self.sharding(BATCH))

    def stack(self, weights: Tree, x: jax.Array) -> jax.Array:
        """Apply the layers stacked in dimension 0 of `weights`, one after the other."""
        layer = jax.checkpoint(self.layer) if self.config.remat_policy == "full" else self.layer
        unroll = 1 if self.config.scan_layers else True
        return jax.lax.scan(
            lambda x, weights: (layer(x, weights), None), x, weights, unroll=unroll
        )[0]

    def pipeline(self, weights: Tree, x: jax.Array) -> jax.Array:
        """Apply the layers as a GPipe schedule: all stages work at once, on different microbatches.

        Each tick the stages apply their layers to what they hold, then hand it to the next stage.
        The first `stages - 1` outputs of the last stage are the bubble and are thrown away.
        """
        stages, parts = self.stages, self.microbatches
        weights = jax.tree.map(lambda w: w.reshape(stages, -1, *w.shape[1:]), weights)
        # a device's sequences go into every microbatch, so cutting moves no data
        micro = x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1)
        held = jnp.zeros((stages, *micro.shape[1:]), x.dtype)
        apply = jax.vmap(self.stack, spmd_axis_name="pipeline")

        def tick(held: jax.Array, step: jax.Array) -> tuple[jax.Array, jax.Array]:
            held = held.at[0].set(micro[jnp.minimum(step, parts - 1)])
            held = jax.lax.with_sharding_constraint(held, self.sharding("pipeline", BATCH))
            held = apply(weights, held)
            return jnp.roll(held, 1, axis=0), held[-1]

        _, out = jax.lax.scan(tick, held, jnp.arange(parts + stages - 1))
        return out[stages - 1 :].swapaxes(0, 1).reshape(x.shape)

    def loss(self, params: Tree, batch: Tree) -> jax.Array:
        """Return the mean cross-entropy of the next token, in nats."""
        x = params["embed"][batch["inputs"]] + params["position"]
        x = jax.lax.with_sharding_constraint(x.astype(self.config.dtype), self.sharding(BATCH))
        weights = {name: params[name] for name in STACKED}
        x = (self.stack if self.stages == 1 else self.pipeline)(weights, x)
        x = rms_norm(x, params["final_norm"].astype(x.dtype))
        logits = (x @ params["unembed"].astype(x.dtype)).astype(jnp.float32)
        predicted = jnp.take_along_axis(logits, batch["targets"][..., None], axis=-1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - predicted)

    def train_step(self, state: Tree, batch: Tree) -> tuple[Tree, jax.Array]:
        """Take one AdamW step; the loss is that before it."""
        config = self.config
        loss, grads = jax.value_and_grad(self.loss)(state["params"], batch)
        step = state["step"] + 1

        def moment(decay: float, power: int) -> Callable[[jax.Array, jax.Array], jax.Array]:
            return lambda old, grad: decay * old + (1 - decay) * grad**power

        mu = jax.tree.map(moment(config.adam_b1, 1), state["mu"], grads)
        nu = jax.tree.map(moment(config.adam_b2, 2), state["nu"], grads)
        debias_mu, debias_nu = 1 - config.adam_b1**step, 1 - config.adam_b2**step

        def update(weight: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
            direction = first / debias_mu / (jnp.sqrt(second / debias_nu) + config.adam_eps)
            return weight - config.learning_rate * (direction + config.adam_weight_decay * weight)

        params = jax.tree.map(update, state["params"], mu, nu)
        return {"params": params, "mu": mu, "nu": nu, "step": step}, loss


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    unit = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-6)
    return unit.astype(x.dtype) * scale


# --- the run --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """Writes a step's line and metrics, one step late: reading a loss waits for its step."""

    config: Config
    model: Model
    metrics: TextIO | None

    def write(self, step: int, seconds: float, loss: float) -> None:
        """Write one step; `seconds` is the host's time since the dispatch of the step before.

        Raises:
            NanLossError: after the line and the metrics of the step.
        """
        config, model = self.config, self.model
        tgs = config.per_device_batch_size * config.max_target_length / seconds
        tflops = sum(model.step_tflops) / seconds
        if config.hide_profiler_step_metric and step in profiler_boundary(config):
            head = f"completed profiler activation/deactivation step: {step}"
        else:
            head = (
                f"completed step: {step}, seconds: {seconds:.3f}, TFLOP/s/device: {tflops:.3f}, "
                f"Tokens/s/device: {tgs:.3f}"
            )
        log.info("%s, total_weights: %d, loss: %.3f", head, model.tokens, loss)
        if self.metrics:
            record = {
                "step": step,
                "run_name": config.run_name,
                "learning/loss": loss,
                "learning/total_weights": model.tokens,
                "perf/step_time_seconds": seconds,
                "perf/per_device_tokens_per_sec": tgs,
                "perf/per_device_tflops_per_sec": tflops,
            }
            print(json.dumps(record), file=self.metrics, flush=True)
        if config.abort_on_nan_loss and math.isnan(loss):
            raise NanLossError("Aborting training due to NaN loss.")


def profiler_boundary(config: Config) -> set[int]:
    """Return the steps whose time holds the start or the stop of the profiler (MaxText's set)."""
    if not config.profiler:
        return set()
    first, end = config.skip_first_n_steps_for_profiler, config.profile_end
    return {first, first + 1, end, end + 1}


def train(config: Config, model: Model, metrics: TextIO | None) -> None:
    """Compile the step, then run it, one step ahead of the log."""
    state, batch = model.initial_state(), model.synthetic_batch()
    log_memory("After params initialized")

    def train_step(state: Tree, batch: Tree) -> tuple[Tree, jax.Array]:
        return model.train_step(state, batch)

    step_fn = jax.jit(
        train_step, donate_argnums=0, out_shardings=(model.state_shardings(), model.sharding())
    )
    compiled = step_fn.lower(state, batch).compile()
    log_compiled_memory(compiled)

    report = StepReport(config=config, model=model, metrics=metrics)
    traced = bool(config.profiler) and (
        config.upload_all_profiler_results or jax.process_index() == 0
    )
    folder = Path(config.base_output_directory, config.run_name, "tensorboard")
    # Two steps at once on a CPU fight for the cores, and the time between dispatches says nothing.
    one_at_a_time = jax.default_backend() == "cpu"
    pending: tuple[int, float, jax.Array] | None = None
    dispatched = time.perf_counter()
    for step in range(config.steps):
        if pending and one_at_a_time:
            jax.block_until_ready(pending[2])
        if traced and step == config.skip_first_n_steps_for_profiler:
            jax.profiler.start_trace(str(folder))
        with jax.profiler.StepTraceAnnotation("train", step_num=step):
            state, loss = compiled(state, batch)
        before, dispatched = dispatched, time.perf_counter()
        if pending:
            report.write(pending[0], pending[1], float(pending[2]))
        pending = (step, dispatched - before, loss)
        if traced and step == config.profile_end - 1:
            jax.block_until_ready(state)
            jax.profiler.stop_trace()
    if pending:
        report.write(pending[0], pending[1], float(pending[2]))


def run(args: Sequence[str]) -> None:
    """Do what the arguments say."""
    config = load_config(args, os.environ)
    print("Show all environment variables:", *environment_lines(os.environ), sep="\n", flush=True)
    start_jax(config, os.environ)
    mesh = build_mesh(config)
    model = Model.build(config, mesh)
    log.info("System Information: Jax Version: %s", jax.__version__)
    log.info("System Information: Jax Backend: %s", jax.default_backend())
    log.info("System Information: Devices: %s", jax.devices())
    log.info("Num_devices: %d, shape %s", mesh.size, mesh.devices.shape)
    if config.log_config:
        for key in sorted(FIELDS):
            log.info("Config param %s: %s", key, getattr(config, key))
    log.info("number parameters: %.3f billion", model.parameters / 1e9)
    weights, attention = model.step_tflops
    total = weights + attention
    print(
        f"Per train step:\n Total TFLOPs: {total:.6f} \n split as {100 * weights / total:.2f}% "
        f"learnable weight flops and {100 * attention / total:.2f}% attention flops",
        flush=True,
    )
    if not config.metrics_file:
        train(config, model, None)
        return
    path = Path(config.metrics_file)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as metrics:
        train(config, model, metrics)


def main() -> int:
    """Run, and turn the two troubles that have a name into one line and exit code 1."""
    handler = logging.StreamHandler()
    handler.setFormatter(AbslFormatter())
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        run(sys.argv[1:])
    except ConfigError as error:
        log.critical("CONFIG ERROR: %s", error)
        return 1
    except NanLossError as error:
        log.critical("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
