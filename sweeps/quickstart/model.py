"""The transformer of a configuration on a mesh of devices: weights, forward pass, update."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from configuration import Config, ConfigError
from jax.sharding import Mesh, NamedSharding, PartitionSpec

BATCH = ("data", "fsdp")  # the axes over which sequences are spread


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
