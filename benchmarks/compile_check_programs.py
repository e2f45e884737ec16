"""Training steps to check profiles with: DP, FSDP, TP and EP of a scanned MLP, and a pipeline.

Each function takes the devices and returns a jitted step and the shapes of its arguments, which is
what `xlatune compile-check --program compile_check_programs:fsdp` asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

LAYERS, WIDTH, HIDDEN, TOKENS = 8, 2048, 8192, 4096
MICROBATCHES = 16


def fsdp(devices: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    """Weights and batch in as many parts as there are devices."""
    return _mlp(devices, up=P(None, "x"), down=P(None, None, "x"), rows=P("x"))


def dp(devices: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    """Each device has all weights, and a part of the batch."""
    return _mlp(devices, up=P(), down=P(), rows=P("x"))


def ep(devices: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    """One expert per device in each layer; tokens go to them and come back by all-to-all."""
    mesh = Mesh(np.array(devices), ("x",))
    number = len(devices)

    def experts(x: Any, w: Any) -> Any:
        def layer(x: Any, w: Any) -> tuple[Any, None]:
            sent = jax.lax.all_to_all(x.reshape(number, -1, WIDTH), "x", 0, 0)
            back = jax.lax.all_to_all(jax.nn.relu(sent @ w[0]) @ w[0].T, "x", 0, 0)
            return x + back.reshape(x.shape), None

        return jax.lax.scan(layer, x, w)[0]

    run = jax.shard_map(
        experts, mesh=mesh, in_specs=(P("x"), P(None, "x")), out_specs=P("x"), check_vma=False
    )

    def loss(w: Any, x: Any) -> Any:
        return jnp.mean(run(x, w).astype("f4") ** 2)

    arguments = (_shape(LAYERS, number, WIDTH, HIDDEN // 4), _shape(TOKENS, WIDTH))
    return _step(loss, NamedSharding(mesh, P(None, "x")), NamedSharding(mesh, P("x"))), arguments


def tp(devices: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    """Each matrix in parts, the batch whole."""
    return _mlp(devices, up=P(None, None, "x"), down=P(None, "x"), rows=P())


def pp(devices: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    """One stage per device, without a way back from the last to the first."""
    mesh = Mesh(np.array(devices), ("stage",))
    forward = [(i, i + 1) for i in range(len(devices) - 1)]

    def stage(w: Any, xs: Any) -> Any:
        first = jax.lax.axis_index("stage") == 0

        def tick(carry: Any, x: Any) -> tuple[Any, Any]:
            y = jax.nn.relu(jnp.where(first, x, carry) @ w[0]) @ w[0].T
            return jax.lax.ppermute(y, "stage", forward), y

        return jax.lax.scan(tick, jnp.zeros_like(xs[0]), xs)[1]

    run = jax.shard_map(
        stage, mesh=mesh, in_specs=(P("stage"), P()), out_specs=P(), check_vma=False
    )

    def loss(w: Any, xs: Any) -> Any:
        return jnp.mean(run(w, xs).astype("f4") ** 2)

    arguments = (_shape(len(devices), WIDTH, HIDDEN), _shape(MICROBATCHES, 1024, WIDTH))
    return _step(loss, NamedSharding(mesh, P("stage")), NamedSharding(mesh, P())), arguments


def _mlp(devices: Sequence[Any], *, up: P, down: P, rows: P) -> tuple[Any, tuple[Any, ...]]:
    mesh = Mesh(np.array(devices), ("x",))
    of_rows = NamedSharding(mesh, rows)

    def layer(x: Any, w: Any) -> tuple[Any, None]:
        out = x + jax.nn.relu(x @ w[0]) @ w[1]
        return jax.lax.with_sharding_constraint(out, of_rows), None

    def loss(w: Any, x: Any) -> Any:
        return jnp.mean(jax.lax.scan(layer, x, w)[0].astype("f4") ** 2)

    weights = (_shape(LAYERS, WIDTH, HIDDEN), _shape(LAYERS, HIDDEN, WIDTH))
    of_weights = (NamedSharding(mesh, up), NamedSharding(mesh, down))
    return _step(loss, of_weights, of_rows), (weights, _shape(TOKENS, WIDTH))


def _step(loss: Callable[[Any, Any], Any], of_weights: Any, of_batch: Any) -> Any:
    def train_step(w: Any, x: Any) -> tuple[Any, Any]:
        value, grad = jax.value_and_grad(loss)(w, x)
        return value, jax.tree.map(lambda w, g: w - (0.1 * g).astype(w.dtype), w, grad)

    return jax.jit(
        train_step, in_shardings=(of_weights, of_batch), out_shardings=(None, of_weights)
    )


def _shape(*sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, jnp.bfloat16)
